//! Opening the engine's directory whatever state it is in: new, good, damaged, or written by a newer version.
//!
//! Owns: the order of attempts (measurements.md §1.3, trap 6), the number of the layout, and what is set aside. Emits: an engine that has been
//! read in full. Deliberately lacks: the lock, which is held before anything here runs, and single bad values (`load`).

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::codec;
use super::engine::Engine;
use super::error::{EngineError, StoreError};
use super::load::{Loaded, load_and_repair};
use super::witness::Witness;
use super::{ENGINE_DIRECTORY, Opened, SetAside};

/// The layout that this version writes: `migrations/0001-plain`.
const FORMAT: u64 = 1;

/// Names the layout for those who must not open the engine to learn it. The record inside the engine has the same number.
const FORMAT_FILE: &str = "format";

/// What stands before the number in the format file.
const FORMAT_FILE_HEAD: &str = "meshkeep store format ";

/// A format file is a few words; more than this is none, in bytes.
const FORMAT_FILE_LENGTH_MAX: u64 = 256;

/// Written and removed at each start to see whether the directory takes writes.
const PROBE_FILE: &str = "probe";

/// Two of the engine's segments, in bytes: an estimate of what it needs to open, not measured.
const PROBE_BYTES: usize = 1024 * 1024;

/// The beginning of the names of what is set aside.
const SET_ASIDE: &str = "set-aside";

/// Damaged stores kept to be looked at; older ones make room, or a failing disk would fill itself. Those of newer versions all stay.
const DAMAGED_KEPT_MAX: usize = 3;

/// An engine that opened and was read in full.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) engine: Engine,
    pub(super) witness: Witness,
    pub(super) loaded: Loaded,
    pub(super) group_number: u64,
    pub(super) opened: Opened,
}

/// The marks that say whether an engine's content is the one expected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks {
    format: Option<u64>,
    /// The number of the last group, 0 if there is none.
    pub(super) group_number: u64,
}

impl Marks {
    /// Whether the content has the layout of this version.
    pub(super) fn is_current(self) -> bool {
        self.format == Some(FORMAT)
    }
}

/// Why a store was not opened.
enum Failure {
    /// It is fine, as far as anybody can tell, but this version cannot read it.
    Newer(u64),
    /// It cannot be read.
    Damaged(String),
    /// The machine does not let us.
    Environment(EngineError),
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        if error.is_environment() { Self::Environment(error) } else { Self::Damaged(error.to_string()) }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        EngineError::from(error).into()
    }
}

/// Opens the store in the data directory, or a new one in its place. Its lock must be held.
pub(super) fn open(data_directory: &Path) -> Result<Recovered, StoreError> {
    let not_writable = |source| StoreError::NotWritable { directory: data_directory.to_owned(), source };
    probe(data_directory).map_err(not_writable)?;
    let directory = data_directory.join(ENGINE_DIRECTORY);
    let failed = |source| StoreError::Engine { directory: directory.clone(), source };
    let (slug, reason) = match attempt_twice(&directory) {
        Ok(recovered) => return Ok(recovered),
        Err(Failure::Environment(source)) => return Err(failed(source)),
        Err(Failure::Newer(format)) => {
            ("newer-version", format!("it has format {format} of a newer version; this one reads up to {FORMAT}"))
        }
        Err(Failure::Damaged(reason)) => ("damaged", reason),
    };
    let path = set_aside(data_directory, slug).map_err(not_writable)?;
    match attempt(&directory) {
        Ok(mut recovered) => {
            recovered.opened.set_aside = Some(SetAside { path, reason });
            Ok(recovered)
        }
        Err(Failure::Environment(source)) => Err(failed(source)),
        Err(Failure::Damaged(reason)) => Err(failed(EngineError::Damaged(reason))),
        Err(Failure::Newer(format)) => Err(failed(EngineError::Damaged(format!("a new store has format {format}")))),
    }
}

/// Both marks; each bad one is damage, the group's is not looked for where the format is another.
pub(super) fn read_marks(engine: &Engine) -> Result<Marks, EngineError> {
    let number = |key: &[u8]| match engine.get(key)? {
        Some(stored) => codec::read_number(key, &stored).map(Some).map_err(|error| EngineError::Damaged(error.to_string())),
        None => Ok(None),
    };
    let format = number(codec::FORMAT_KEY)?;
    let group_number = if format == Some(FORMAT) { number(codec::GROUP_KEY).unwrap_or(None).unwrap_or(0) } else { 0 };
    Ok(Marks { format, group_number })
}

fn attempt_twice(directory: &Path) -> Result<Recovered, Failure> {
    match attempt(directory) {
        Err(Failure::Damaged(reason)) => {
            tracing::warn!(directory = %directory.display(), reason, "the store did not open: trying again without snapshots");
            Engine::remove_snapshots(directory)?;
            match attempt(directory) {
                // nobody else has the data directory: what holds the files is left over from the failed attempt
                Err(Failure::Environment(EngineError::Busy(_))) => Err(Failure::Damaged(reason)),
                outcome => outcome,
            }
        }
        outcome => outcome,
    }
}

fn attempt(directory: &Path) -> Result<Recovered, Failure> {
    fs::create_dir_all(directory)?;
    match read_format_file(directory) {
        Some(format) if format > FORMAT => return Err(Failure::Newer(format)),
        Some(_) | None => {}
    }
    let existed = Engine::exists(directory);
    let mut witness = Witness::open(directory, existed)?;
    let engine = Engine::open(directory)?;
    match prepare(directory, &engine, existed).and_then(|created| Ok((created, load_and_repair(&engine, &mut witness)?))) {
        Ok((created, (loaded, group_number))) => {
            Ok(Recovered { engine, witness, loaded, group_number, opened: Opened { set_aside: None, created } })
        }
        Err(failure) => {
            engine.discard();
            Err(failure)
        }
    }
}

/// Checks the layout of the content, or starts it. Returns whether it is new.
fn prepare(directory: &Path, engine: &Engine, existed: bool) -> Result<bool, Failure> {
    let created = match read_marks(engine)?.format {
        Some(FORMAT) => false,
        Some(format) if format > FORMAT => return Err(Failure::Newer(format)),
        Some(format) => return Err(Failure::Damaged(format!("there never was a format {format}"))),
        None if read_format_file(directory).is_some() => return Err(Failure::Damaged("its content is gone".to_owned())),
        None => {
            begin(engine)?;
            true
        }
    };
    if created || read_format_file(directory).is_none() {
        write_format_file(directory)?;
    }
    Ok(created || !existed)
}

/// Starts the layout in an engine without any content; a kill between its creation and this leaves one.
fn begin(engine: &Engine) -> Result<(), Failure> {
    let mut count = 0_u64;
    engine.scan(&[], |_, _| count += 1)?;
    if count > 0 {
        return Err(Failure::Damaged(format!("{count} values and no format")));
    }
    super::write(engine, vec![(codec::FORMAT_KEY.to_vec(), Some(codec::write_number(codec::FORMAT_KEY, FORMAT)))])?;
    Ok(())
}

/// `None` where the file is missing or unreadable: then the record inside the engine decides.
fn read_format_file(directory: &Path) -> Option<u64> {
    let path = directory.join(FORMAT_FILE);
    if fs::metadata(&path).ok()?.len() > FORMAT_FILE_LENGTH_MAX {
        return None;
    }
    fs::read_to_string(path).ok()?.strip_prefix(FORMAT_FILE_HEAD)?.trim().parse().ok()
}

fn write_format_file(directory: &Path) -> io::Result<()> {
    let mut file = File::create(directory.join(FORMAT_FILE))?;
    writeln!(file, "{FORMAT_FILE_HEAD}{FORMAT}")?;
    file.sync_all()?;
    sync_directory(directory)?;
    directory.parent().map_or(Ok(()), sync_directory)
}

/// Finds a full or read-only file system before the engine does, which would take some of its errors for damage.
fn probe(data_directory: &Path) -> io::Result<()> {
    let path = data_directory.join(PROBE_FILE);
    let written = fs::write(&path, vec![0; PROBE_BYTES]);
    let removed = fs::remove_file(&path);
    written.and(removed)
}

/// Renames the engine's directory and returns its new path.
fn set_aside(data_directory: &Path, slug: &str) -> io::Result<PathBuf> {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let path = (seconds..)
        .map(|seconds| data_directory.join(format!("{SET_ASIDE}-{slug}-{seconds}")))
        .find(|path| !path.exists())
        .unwrap_or_else(|| data_directory.join(SET_ASIDE));
    fs::rename(data_directory.join(ENGINE_DIRECTORY), &path)?;
    sync_directory(data_directory)?;
    if let Err(error) = remove_oldest_damaged(data_directory) {
        tracing::warn!(%error, directory = %data_directory.display(), "could not remove old damaged stores");
    }
    Ok(path)
}

fn remove_oldest_damaged(data_directory: &Path) -> io::Result<()> {
    let head = format!("{SET_ASIDE}-damaged-");
    let mut damaged: Vec<(u64, PathBuf)> = fs::read_dir(data_directory)?
        .filter_map(|file| {
            let file = file.ok()?;
            let seconds = file.file_name().to_str()?.strip_prefix(&head)?.parse().ok()?;
            Some((seconds, file.path()))
        })
        .collect();
    damaged.sort();
    let excess = damaged.len().saturating_sub(DAMAGED_KEPT_MAX);
    damaged.iter().take(excess).try_for_each(|(_, path)| fs::remove_dir_all(path))
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
