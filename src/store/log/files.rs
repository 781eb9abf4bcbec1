//! The files of the log, by number, and all that is asked of them.
//!
//! Owns: the directory `log` in the data directory. The trait stands between the log and the disk, so that tests can lose what was not synced.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::synced_mark::{self, SyncedMark};
use crate::instruments::{LogLimiter, LogPermit};
use crate::store::ENGINE_DIRECTORY;
use crate::store::directory::foreign;

/// The directory inside the data directory.
pub(in crate::store) const LOG_DIRECTORY: &str = "log";

/// File next to the engine's files that says up to which group the log is synced.
const SYNCED_FILE: &str = "synced";

/// Files with this number or a higher one are not ours: at a file each millisecond a log reaches it in 31,000 years.
const NUMBER_MAX: u64 = 1_000_000_000_000_000;

/// What is in the log's directory, is not ours, and was logged lately.
static FOREIGN: LogLimiter = LogLimiter::new();

/// Numbered files that are only appended to.
pub(in crate::store) trait Files: Debug + Send + Sync {
    /// The numbers of the files that there are, in order.
    fn numbers(&self) -> io::Result<Vec<u64>>;

    /// Reads all of a file.
    fn read(&self, file: u64) -> io::Result<Vec<u8>>;

    /// Makes an empty one.
    fn create(&self, file: u64) -> io::Result<()>;

    /// Writes behind what it has. After an error part of it may be there.
    fn append(&self, file: u64, bytes: &[u8]) -> io::Result<()>;

    /// Takes off what is behind so many bytes.
    fn cut(&self, file: u64, length: u64) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, file: u64) -> io::Result<()>;

    /// Makes what a file has outlive a power cut.
    fn sync(&self, file: u64) -> io::Result<()>;

    /// Makes what files there are outlive a power cut.
    fn sync_directory(&self) -> io::Result<()>;

    /// What is known to have been synced; `None` where that is not known.
    fn synced(&self) -> Option<SyncedMark>;

    /// Notes what is synced. The note itself is not: after a power cut an older one may be there.
    fn note_synced(&self, mark: SyncedMark) -> io::Result<()>;
}

/// Makes the first file from a number on whose name is not taken by anything. Returns its number.
pub(super) fn create_next(files: &dyn Files, from: u64) -> io::Result<u64> {
    // only a foreign file has such a number
    let mut number = if from < NUMBER_MAX { from } else { 1 };
    loop {
        match files.create(number) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            outcome => return outcome.map(|()| number),
        }
    }
}

/// The number of a file of the log; `None` for the name of anything else, such as `09` or `+9`.
fn number_of(name: &OsStr) -> Option<u64> {
    let name = name.to_str()?;
    name.parse().ok().filter(|number: &u64| *number < NUMBER_MAX && number.to_string() == name)
}

/// What is known of a file.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct LogFileInfo {
    pub(in crate::store) file: u64,
    /// The group that it begins with, and the last one in it.
    pub(in crate::store) first: u64,
    pub(in crate::store) last: u64,
    pub(in crate::store) bytes: u64,
    /// How many of them are synced.
    pub(super) synced_bytes: u64,
}

/// The files on the disk.
#[derive(Debug)]
pub(in crate::store) struct Directory {
    path: PathBuf,
    /// Where the mark of what is synced is.
    mark: PathBuf,
    /// The files that are written.
    open: Mutex<BTreeMap<u64, Arc<File>>>,
    open_mark: Mutex<Option<File>>,
}

impl Directory {
    /// The log's files of a data directory.
    pub(in crate::store) fn of(data_directory: &Path) -> Self {
        Self::at(data_directory.join(LOG_DIRECTORY), data_directory.join(ENGINE_DIRECTORY).join(SYNCED_FILE))
    }

    fn at(path: PathBuf, mark: PathBuf) -> Self {
        Self { path, mark, open: Mutex::default(), open_mark: Mutex::default() }
    }

    fn place(&self, file: u64) -> PathBuf {
        self.path.join(file.to_string())
    }

    fn file(&self, number: u64, is_new: bool) -> io::Result<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&number) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(foreign::open_file(&self.place(number), File::options().append(true).create_new(is_new))?);
        open.insert(number, Arc::clone(&file));
        Ok(file)
    }

    fn close(&self, below: u64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.last_key_value().is_some_and(|(newest, _)| *newest > below) {
            open.remove(&below);
        }
    }
}

impl Files for Directory {
    fn numbers(&self) -> io::Result<Vec<u64>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            outcome => outcome?,
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let entry = entry?;
            match number_of(&entry.file_name()) {
                Some(number) if entry.file_type()?.is_file() => numbers.push(number),
                Some(_) | None => {
                    if let Some(LogPermit { more }) = FOREIGN.permit("entry") {
                        tracing::warn!(path = %entry.path().display(), more, "ignoring a file in the log's directory that is not a log file");
                    }
                }
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn read(&self, file: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        foreign::open_file(&self.place(file), File::options().read(true))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, file: u64) -> io::Result<()> {
        fs::create_dir_all(&self.path).map_err(|error| match error.kind() {
            // this kind would mean that a file of this number exists, and that the next number may be free
            io::ErrorKind::AlreadyExists => io::Error::new(io::ErrorKind::NotADirectory, format!("{} is a file", self.path.display())),
            _ => error,
        })?;
        self.file(file, true).map(drop)
    }

    fn append(&self, file: u64, bytes: &[u8]) -> io::Result<()> {
        (&*self.file(file, false)?).write_all(bytes)
    }

    fn cut(&self, file: u64, length: u64) -> io::Result<()> {
        self.file(file, false)?.set_len(length)
    }

    fn remove(&self, file: u64) -> io::Result<()> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&file);
        fs::remove_file(self.place(file))
    }

    fn sync(&self, file: u64) -> io::Result<()> {
        self.file(file, false)?.sync_data()?;
        // nothing is written to it any more where there is a newer one
        self.close(file);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()?;
        self.path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
    }

    fn synced(&self) -> Option<SyncedMark> {
        let mut bytes = Vec::new();
        let file = foreign::open_file(&self.mark, File::options().read(true)).ok()?;
        file.take(synced_mark::LENGTH as u64).read_to_end(&mut bytes).ok()?;
        SyncedMark::read(&bytes).ok()
    }

    fn note_synced(&self, mark: SyncedMark) -> io::Result<()> {
        let mut open = self.open_mark.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*open {
            return file.write_all_at(&mark.write(), 0);
        }
        // the first one of a process is there for sure, so that later ones need not be
        let file = foreign::open_file(&self.mark, File::options().write(true).create(true).truncate(false))?;
        file.write_all_at(&mark.write(), 0)?;
        file.sync_all()?;
        self.mark.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())?;
        *open = Some(file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device has nothing to sync, and says so (EINVAL, fdatasync(2)): a call that reaches it fails so.
    #[test]
    fn a_file_is_synced_by_the_kernel() {
        let directory = tempfile::tempdir().unwrap();
        let files = Directory::of(directory.path());
        files.create(1).unwrap();
        files.sync(1).unwrap();
        let device = Arc::new(File::options().write(true).open("/dev/null").unwrap());
        files.open.lock().unwrap().insert(1, device);
        assert_eq!(files.sync(1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    /// A directory of the kernel's own has nothing to sync either (EINVAL).
    #[test]
    fn a_directory_is_synced_with_the_one_that_it_is_in() {
        let of = |path: &Path| Directory::at(path.into(), path.join(SYNCED_FILE));
        let directory = tempfile::tempdir().unwrap();
        let files = Directory::of(directory.path());
        files.create(1).unwrap();
        files.sync_directory().unwrap();
        // the kernel's, by a link from an ordinary one
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/proc/self/task", &link).unwrap();
        assert_eq!(of(&link).sync_directory().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        // an ordinary one, by a link from one of the kernel's
        assert_eq!(of(Path::new("/proc/self/cwd")).sync_directory().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
