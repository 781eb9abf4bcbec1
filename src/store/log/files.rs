//! The trait [`LogFiles`] for the files of the log, and its implementation in the data directory.
//!
//! Tests implement the trait to lose unsynced bytes.

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

/// Name of the log's directory in the data directory.
pub(in crate::store) const LOG_DIRECTORY: &str = "log";

/// File of the [`SyncedMark`], in the engine's directory.
const SYNCED_FILE: &str = "synced";

/// Exclusive upper bound of the numbers of log files. With a file per millisecond a log reaches it
/// in 31,000 years.
const NUMBER_MAX: u64 = 1_000_000_000_000_000;

/// Recently logged foreign entries of the log's directory.
static FOREIGN: LogLimiter = LogLimiter::new();

/// Numbered files that are only appended to.
pub(in crate::store) trait LogFiles: Debug + Send + Sync {
    /// Returns the numbers of all files, ascending.
    fn list_numbers(&self) -> io::Result<Vec<u64>>;

    /// Reads a whole file.
    fn read(&self, file: u64) -> io::Result<Vec<u8>>;

    /// Creates an empty file.
    fn create(&self, file: u64) -> io::Result<()>;

    /// Appends to a file. After an error, a part of the bytes may be in the file.
    fn append(&self, file: u64, bytes: &[u8]) -> io::Result<()>;

    /// Truncates a file to this length.
    fn truncate(&self, file: u64, length: u64) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, file: u64) -> io::Result<()>;

    /// Makes the content of a file survive a power cut.
    fn sync(&self, file: u64) -> io::Result<()>;

    /// Makes created and removed files survive a power cut.
    fn sync_directory(&self) -> io::Result<()>;

    /// Returns the last synced group. `None` if it is unknown.
    fn read_synced_mark(&self) -> Option<SyncedMark>;

    /// Records the last synced group. The record is not synced: after a power cut it may be older.
    fn write_synced_mark(&self, mark: SyncedMark) -> io::Result<()>;
}

/// Creates the file with the first free number from `from` on. Returns the number.
pub(super) fn create_next_file(files: &dyn LogFiles, from: u64) -> io::Result<u64> {
    // only a foreign file has such a number
    let mut number = if from < NUMBER_MAX { from } else { 1 };
    loop {
        match files.create(number) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            outcome => return outcome.map(|()| number),
        }
    }
}

/// Returns the number of a log file. `None` for any other name, such as `09` or `+9`.
fn parse_file_number(name: &OsStr) -> Option<u64> {
    let name = name.to_str()?;
    name.parse().ok().filter(|number: &u64| *number < NUMBER_MAX && number.to_string() == name)
}

/// State of a log file.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct LogFileInfo {
    /// Number of the file, which is its name.
    pub(in crate::store) number: u64,
    /// First and last group in the file.
    pub(in crate::store) first_group: u64,
    pub(in crate::store) last_group: u64,
    pub(in crate::store) bytes: u64,
    /// Length of the synced part.
    pub(super) synced_bytes: u64,
}

/// The files on the disk.
#[derive(Debug)]
pub(in crate::store) struct LogDirectory {
    path: PathBuf,
    synced_mark_path: PathBuf,
    /// Files that are open for writing.
    open_files: Mutex<BTreeMap<u64, Arc<File>>>,
    open_synced_mark: Mutex<Option<File>>,
}

impl LogDirectory {
    /// Returns the log files in a data directory.
    pub(in crate::store) fn in_data_directory(data_directory: &Path) -> Self {
        Self::new(data_directory.join(LOG_DIRECTORY), data_directory.join(ENGINE_DIRECTORY).join(SYNCED_FILE))
    }

    fn new(path: PathBuf, mark: PathBuf) -> Self {
        Self { path, synced_mark_path: mark, open_files: Mutex::default(), open_synced_mark: Mutex::default() }
    }

    fn file_path(&self, file: u64) -> PathBuf {
        self.path.join(file.to_string())
    }

    fn open_file(&self, number: u64, is_new: bool) -> io::Result<Arc<File>> {
        let mut open = self.open_files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&number) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(foreign::open_file(&self.file_path(number), File::options().append(true).create_new(is_new))?);
        open.insert(number, Arc::clone(&file));
        Ok(file)
    }

    fn close_if_not_newest(&self, number: u64) {
        let mut open = self.open_files.lock().unwrap_or_else(PoisonError::into_inner);
        if open.last_key_value().is_some_and(|(newest, _)| *newest > number) {
            open.remove(&number);
        }
    }
}

impl LogFiles for LogDirectory {
    fn list_numbers(&self) -> io::Result<Vec<u64>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            outcome => outcome?,
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let entry = entry?;
            match parse_file_number(&entry.file_name()) {
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
        foreign::open_file(&self.file_path(file), File::options().read(true))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, file: u64) -> io::Result<()> {
        fs::create_dir_all(&self.path).map_err(|error| match error.kind() {
            // for the caller, `AlreadyExists` means that a file with this number exists, and that
            // the next number may be free
            io::ErrorKind::AlreadyExists => io::Error::new(io::ErrorKind::NotADirectory, format!("{} is a file", self.path.display())),
            _ => error,
        })?;
        self.open_file(file, true).map(drop)
    }

    fn append(&self, file: u64, bytes: &[u8]) -> io::Result<()> {
        (&*self.open_file(file, false)?).write_all(bytes)
    }

    fn truncate(&self, file: u64, length: u64) -> io::Result<()> {
        self.open_file(file, false)?.set_len(length)
    }

    fn remove(&self, file: u64) -> io::Result<()> {
        self.open_files.lock().unwrap_or_else(PoisonError::into_inner).remove(&file);
        fs::remove_file(self.file_path(file))
    }

    fn sync(&self, file: u64) -> io::Result<()> {
        self.open_file(file, false)?.sync_data()?;
        // only the newest file is written to
        self.close_if_not_newest(file);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()?;
        self.path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
    }

    fn read_synced_mark(&self) -> Option<SyncedMark> {
        let mut bytes = Vec::new();
        let file = foreign::open_file(&self.synced_mark_path, File::options().read(true)).ok()?;
        file.take(synced_mark::LENGTH as u64).read_to_end(&mut bytes).ok()?;
        SyncedMark::decode(&bytes).ok()
    }

    fn write_synced_mark(&self, mark: SyncedMark) -> io::Result<()> {
        let mut open = self.open_synced_mark.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*open {
            return file.write_all_at(&mark.encode(), 0);
        }
        // the first write of a process is synced, so the file exists after a power cut
        let file = foreign::open_file(&self.synced_mark_path, File::options().write(true).create(true).truncate(false))?;
        file.write_all_at(&mark.encode(), 0)?;
        file.sync_all()?;
        self.synced_mark_path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())?;
        *open = Some(file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `fdatasync` of a device fails with EINVAL (fdatasync(2)), which shows that it was called.
    #[test]
    fn a_file_is_synced_by_the_kernel() {
        let directory = tempfile::tempdir().unwrap();
        let files = LogDirectory::in_data_directory(directory.path());
        files.create(1).unwrap();
        files.sync(1).unwrap();
        let device = Arc::new(File::options().write(true).open("/dev/null").unwrap());
        files.open_files.lock().unwrap().insert(1, device);
        assert_eq!(files.sync(1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    /// `fsync` of a directory in `/proc` fails with EINVAL, which shows that it was called.
    #[test]
    fn a_directory_is_synced_with_its_parent() {
        let log_in = |path: &Path| LogDirectory::new(path.into(), path.join(SYNCED_FILE));
        let directory = tempfile::tempdir().unwrap();
        let files = LogDirectory::in_data_directory(directory.path());
        files.create(1).unwrap();
        files.sync_directory().unwrap();
        // a directory in `/proc`, through a link in an ordinary directory
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/proc/self/task", &link).unwrap();
        assert_eq!(log_in(&link).sync_directory().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        // an ordinary directory, through a link in `/proc`
        assert_eq!(log_in(Path::new("/proc/self/cwd")).sync_directory().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
