//! The announce journal: which keys were announced at which sequence, written plainly before anybody hears of them.
//!
//! A plain write survives a kill of the process, which is all that it is for: what was announced and not stored yet is announced
//! anew at the next start (docs/invariants.md, 6). Nothing is synced; after a power cut its end is missing, and positions above
//! what is left are refused. Owns: the files `journal/<number>` in the data directory. Deliberately lacks: values (the store or
//! the source has them) and the decision what a missing record means ([`crate::commit`] has it).
//!
//! A file is a head and records. Each is `varint length · sealed bytes`, sealed as every stored value is, with the epoch in place
//! of a key, so that no record is taken for one of another start. Head: form 1 · `u64` epoch · varint sequence at which it began.
//! Record: form 1 · varint sequence · cache form of the key, or nothing where a sequence stands for no key.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::bytes::{Malformed, Reader, Writer};
use super::codec;
use crate::model::{Causes, Due, EntryKey, Epoch, Sequence};

/// The directory inside the data directory.
pub(super) const JOURNAL_DIRECTORY: &str = "journal";

/// The form of heads and records.
const FORM: u8 = 1;

/// Stands in for the epoch where the head's checksum is made, since only the head tells it.
const HEAD_KEY: &[u8] = b"journal";

/// A file that is larger is followed by a new one, so that the old one can go: some 60,000 changes, 3 s at the highest rate of the plan.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// While the store takes nothing, the journal grows to this, some 4 million changes; then its run ends and positions above are refused.
const TOTAL_BYTES_MAX: u64 = 256 << 20;

/// Why the journal could not be written, as far as it was logged lately.
static UNWRITTEN: Causes = Causes::new();

/// The journal of this start.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    epoch: Epoch,
    began: Sequence,
    /// The file that is written; `None` after an error, until the next append begins another.
    file: Option<File>,
    file_bytes: u64,
    next_number: u64,
    /// Files that are complete, oldest first, with the newest sequence and size of each.
    complete: Vec<(PathBuf, Sequence, u64)>,
    current: PathBuf,
    newest: Sequence,
    failing: bool,
}

/// What a journal file of an earlier start holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRun {
    /// The start that wrote it.
    pub epoch: Epoch,
    /// The sequence at which that start began.
    pub began: Sequence,
    /// The announcements, in order, up to the first that cannot be read. No key: the sequence stands for none.
    pub records: Vec<(Sequence, Option<EntryKey>)>,
}

/// Reads the journals of earlier starts, oldest first. A file that cannot be read at all is left out; its run ends there.
///
/// # Errors
/// Where the directory cannot be read.
pub fn read_journals(data_directory: &Path) -> io::Result<Vec<JournalRun>> {
    let mut runs = Vec::new();
    for (_, path) in files(&data_directory.join(JOURNAL_DIRECTORY))? {
        match fs::read(&path) {
            Ok(bytes) => runs.extend(parse(&bytes)),
            Err(error) => tracing::warn!(path = %path.display(), %error, "a journal of an earlier start cannot be read"),
        }
    }
    Ok(runs)
}

impl Journal {
    /// Begins the journal of this start behind those of earlier ones.
    ///
    /// # Errors
    /// Where its first file cannot be written; [`Journal::append`] tries again.
    pub fn begin(data_directory: &Path, epoch: Epoch, began: Sequence) -> (Self, io::Result<()>) {
        let directory = data_directory.join(JOURNAL_DIRECTORY);
        let next_number = files(&directory).ok().and_then(|files| files.last().map(|(number, _)| number + 1)).unwrap_or(1);
        let mut journal = Self {
            current: directory.clone(),
            directory,
            epoch,
            began,
            file: None,
            file_bytes: 0,
            next_number,
            complete: Vec::new(),
            newest: began,
            failing: false,
        };
        let begun = journal.begin_file();
        (journal, begun)
    }

    /// Removes the journals of earlier starts: everything in them is stored or announced anew.
    ///
    /// # Errors
    /// Where a file cannot be removed; it is read again at the next start, which does no harm.
    pub fn remove_earlier(&self) -> io::Result<()> {
        for (_, path) in files(&self.directory)? {
            if path != self.current && !self.complete.iter().any(|(complete, ..)| *complete == path) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Notes announcements before anybody hears of them. An error ends the run, not the announcing: positions above it are refused
    /// after a crash, unless the store has caught up by then.
    pub fn append<'a>(&mut self, announcements: impl Iterator<Item = (Sequence, Option<&'a EntryKey>)>) {
        let mut bytes = Vec::new();
        let mut newest = self.newest;
        for (sequence, key) in announcements {
            write_record(&mut bytes, self.epoch, sequence, key);
            newest = sequence;
        }
        if bytes.is_empty() {
            return;
        }
        match self.write(&bytes) {
            Ok(()) => self.failing = false,
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true)
                    && let Some(Due { more }) = UNWRITTEN.due(&error.to_string())
                {
                    tracing::error!(%error, directory = %self.directory.display(), more, "cannot write the announce journal: after a crash some streams begin anew");
                }
                self.finish_file();
            }
        }
        self.newest = newest;
    }

    /// Whether the last announcements could not be noted.
    #[must_use]
    pub const fn is_failing(&self) -> bool {
        self.failing
    }

    /// Lets go of files whose announcements are all stored, durably, up to `durable`.
    pub fn cut(&mut self, durable: Sequence) {
        if self.file_bytes > FILE_BYTES_MAX {
            self.finish_file();
        }
        while let Some((path, newest, _)) = self.complete.first() {
            if *newest > durable {
                return;
            }
            if let Err(error) = fs::remove_file(path) {
                tracing::warn!(path = %path.display(), %error, "a journal that is no longer needed cannot be removed");
            }
            self.complete.remove(0);
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let total: u64 = self.complete.iter().map(|(.., bytes)| bytes).sum::<u64>() + self.file_bytes;
        if total > TOTAL_BYTES_MAX {
            return Err(io::Error::other(format!("more than {TOTAL_BYTES_MAX} bytes wait for the store")));
        }
        if self.file.is_none() {
            self.begin_file()?;
        }
        let Some(file) = &mut self.file else { return Err(io::Error::other("no journal file")) };
        file.write_all(bytes)?;
        self.file_bytes += bytes.len() as u64;
        Ok(())
    }

    fn begin_file(&mut self) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let path = self.directory.join(self.next_number.to_string());
        self.next_number += 1;
        let mut file = File::options().write(true).create_new(true).open(&path)?;
        self.current = path;
        let mut head = Writer::new(FORM);
        head.fixed(self.epoch.0);
        head.varint(self.began.0);
        let mut bytes = Vec::new();
        frame(&mut bytes, &head.seal(HEAD_KEY));
        if let Err(error) = file.write_all(&bytes) {
            // or a full disk would fill with empty files, one for each try
            drop(fs::remove_file(&self.current));
            return Err(error);
        }
        self.file_bytes = bytes.len() as u64;
        self.file = Some(file);
        Ok(())
    }

    fn finish_file(&mut self) {
        if self.file.take().is_some() {
            self.complete.push((self.current.clone(), self.newest, self.file_bytes));
        }
        self.file_bytes = 0;
    }
}

fn write_record(bytes: &mut Vec<u8>, epoch: Epoch, sequence: Sequence, key: Option<&EntryKey>) {
    let mut writer = Writer::new(FORM);
    writer.varint(sequence.0);
    writer.raw(key.map(codec::name).unwrap_or_default().as_bytes());
    frame(bytes, &writer.seal(&epoch.0.to_le_bytes()));
}

fn frame(bytes: &mut Vec<u8>, sealed: &[u8]) {
    let mut length = Writer::default();
    length.varint(sealed.len() as u64);
    bytes.extend(length.into_bytes());
    bytes.extend_from_slice(sealed);
}

/// Reads a file up to its first damage; `None` where not even the head can be read.
fn parse(bytes: &[u8]) -> Option<JournalRun> {
    let mut rest = Reader::over(bytes);
    let mut head = Reader::open(HEAD_KEY, rest.bytes().ok()?, FORM).ok()?;
    let (epoch, began) = (Epoch(head.fixed().ok()?), Sequence(head.varint().ok()?));
    let mut records = Vec::new();
    while let Ok(sealed) = rest.bytes() {
        match read_record(epoch, sealed) {
            Ok(record) => records.push(record),
            Err(error) => {
                tracing::warn!(%error, "a journal of an earlier start ends in a record that cannot be read");
                break;
            }
        }
    }
    Some(JournalRun { epoch, began, records })
}

fn read_record(epoch: Epoch, sealed: &[u8]) -> Result<(Sequence, Option<EntryKey>), Malformed> {
    let mut reader = Reader::open(&epoch.0.to_le_bytes(), sealed, FORM)?;
    let sequence = Sequence(reader.varint()?);
    let text = std::str::from_utf8(reader.rest()).map_err(|_| Malformed::Field("key"))?;
    if text.is_empty() {
        return Ok((sequence, None));
    }
    Ok((sequence, Some(codec::read_name(text).ok_or(Malformed::Field("key"))?)))
}

/// The journal files by number, oldest first.
fn files(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if let Some(number) = path.file_name().and_then(|name| name.to_str()?.parse().ok()) {
            files.push((number, path));
        }
    }
    files.sort_unstable();
    Ok(files)
}
