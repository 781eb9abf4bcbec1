//! Opening the engine's directory whatever state it is in: new, good, damaged, or written by a newer version.
//!
//! Owns: the order of attempts (docs/develop/measurements.md §1.3, trap 6), the number of the layout, and what is set aside. Emits: an engine that has been
//! read in full. Deliberately lacks: the lock, which is held before anything here runs, and single bad values (`load`).

pub(super) mod load;
pub(super) mod losses;
pub(super) mod partial_store;
pub(super) mod slot_scan;
pub(super) mod upgrade;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::load::{Loaded, begin_log, load_and_repair};
use self::partial_store::PartialStore;
use self::slot_scan::{DamageReport, SlotScan, recover};
use self::upgrade::{UPGRADES, upgrade_from};
use super::chunks::chunk_store::ChunkStore;
use super::directory::foreign::{self, Expected};
use super::directory::set_aside::{self, SET_ASIDE};
use super::encoding::group::Changes;
use super::engine::Engine;
use super::engine::format::{FORMAT, read_mark, write_number};
use super::engine::slots::Slots;
use super::error::{EngineError, StoreError};
use super::log::files::{Directory, Files, LOG_DIRECTORY};
use super::log::frames::{self, LogRead};
use super::log::run::Run;
use super::objects::packing::RANGES;
use super::{ENGINE_DIRECTORY, Opened, SetAside};

/// A new store has a chunk for each range, the mark, and the manifest.
const BEGUN_SLOTS: usize = RANGES.len() + 2;

/// Names the layout for programs that must not open the engine to learn it. The record inside the engine has the same number.
const FORMAT_FILE: &str = "format";

/// What stands before the number in the format file.
const FORMAT_FILE_HEAD: &str = "meshkeep store format ";

/// A format file is a few words; more than this is none, in bytes.
const FORMAT_FILE_LENGTH_MAX: u64 = 256;

/// Written and removed at each start to see whether the directory takes writes.
const PROBE_FILE: &str = "probe";

/// Two of the engine's segments, in bytes: an estimate of what it needs to open, not measured.
const PROBE_BYTES: usize = 1024 * 1024;

/// Kept so that a start on a disk that has become full can still read what is stored, which the engine does not do without writing.
const RESERVE_FILE: &str = "reserve";

/// Four times what a start asks for, in bytes: what is left over after one is kept for the next.
const RESERVE_BYTES: usize = 4 * PROBE_BYTES;

/// Damaged stores kept to be looked at; older ones make room, or a failing disk would fill itself. Those of newer versions all stay.
const DAMAGED_KEPT_MAX: usize = 3;

/// An engine that opened and was read in full.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) chunk_store: ChunkStore<Arc<Engine>>,
    /// What the log goes on from.
    pub(super) run: Run,
    pub(super) files: Arc<dyn Files>,
    pub(super) loaded: Loaded,
    pub(super) opened: Opened,
}

/// Why a store was not opened.
enum Failure {
    /// It is fine, as far as anybody can tell, but this version cannot read it.
    Newer(u64),
    /// It has a layout of an older version that this one has no upgrade from.
    Older(u64),
    /// It cannot be read.
    Damaged(String),
    /// Something that is not its own is among its files, which must not be touched through it.
    Foreign(String),
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

/// Opens the store in the data directory, or a new one in its place. Its lock must be held. Meanwhile what lookups need is offered, and
/// withdrawn where it has to be tried again.
pub(super) fn open(data_directory: &Path, offer: &mut dyn FnMut(Option<PartialStore>)) -> Result<Recovered, StoreError> {
    let not_writable = |cause| StoreError::NotWritable { directory: data_directory.to_owned(), cause };
    let directory = data_directory.join(ENGINE_DIRECTORY);
    let failed = |cause| StoreError::Engine { directory: directory.clone(), cause };
    put_foreign_aside(data_directory).map_err(not_writable)?;
    // a start that goes well needs no more; whatever goes wrong is judged anew once there is certainly room
    if has_reserve(data_directory)
        && let Ok(recovered) = attempt(&directory, offer)
    {
        return Ok(recovered);
    }
    probe(data_directory).map_err(not_writable)?;
    let (slug, reason) = match attempt_twice(&directory, offer) {
        Ok(recovered) => {
            keep_reserve(data_directory);
            return Ok(recovered);
        }
        Err(Failure::Older(format)) => {
            ("older-version", format!("it has format {format} of an older version, which this version cannot read"))
        }
        Err(Failure::Environment(source)) => return Err(failed(source)),
        Err(Failure::Newer(format)) => {
            ("newer-version", format!("it has format {format} of a newer version; this version reads formats up to {FORMAT}"))
        }
        Err(Failure::Damaged(reason) | Failure::Foreign(reason)) => ("damaged", reason),
    };
    let path = set_aside(data_directory, slug).map_err(not_writable)?;
    match attempt(&directory, offer) {
        Ok(mut recovered) => {
            keep_reserve(data_directory);
            recovered.opened.set_aside = Some(SetAside { path, reason });
            Ok(recovered)
        }
        Err(Failure::Environment(source)) => Err(failed(source)),
        Err(Failure::Damaged(reason) | Failure::Foreign(reason)) => Err(failed(EngineError::Damaged(reason))),
        Err(Failure::Newer(_) | Failure::Older(_)) => Err(failed(EngineError::Damaged("a new store has another format".to_owned()))),
    }
}

/// Opens the engine anew after an error, and reads everything: from its whole log where its snapshot does not fit, as after a write that found
/// no room; and our log up to the last group that was taken in.
pub(super) fn reopen(directory: &Path, files: &dyn Files, upto: u64) -> Result<(ChunkStore<Arc<Engine>>, DamageReport), EngineError> {
    if let Some(reason) = foreign::in_engine_directory(directory)? {
        return Err(EngineError::Damaged(reason));
    }
    match Engine::open(directory).and_then(|engine| read_slots(engine, files, upto)) {
        Err(error) if !error.is_environment() => {
            tracing::warn!(%error, "cannot reopen the store: trying again without snapshots");
            Engine::remove_snapshots(directory)?;
            Engine::open(directory).and_then(|engine| read_slots(engine, files, upto))
        }
        outcome => outcome,
    }
}

/// Reads everything behind the mark of the layout, from an engine that has the present one.
fn read_slots(engine: Engine, files: &dyn Files, upto: u64) -> Result<(ChunkStore<Arc<Engine>>, DamageReport), EngineError> {
    if read_mark(&engine)? != Some(FORMAT) {
        return Err(EngineError::Replaced);
    }
    let (chunk_store, found, _) = recover(Arc::new(engine), frames::read_all(files)?, upto)?;
    Ok((chunk_store, found))
}

fn attempt_twice(directory: &Path, offer: &mut dyn FnMut(Option<PartialStore>)) -> Result<Recovered, Failure> {
    match attempt(directory, offer) {
        Err(Failure::Damaged(reason)) => {
            tracing::warn!(directory = %directory.display(), reason, "cannot open the store: trying again without snapshots");
            Engine::remove_snapshots(directory)?;
            match attempt(directory, offer) {
                // nobody else has the data directory: what holds the files is left over from the failed attempt
                Err(Failure::Environment(EngineError::Busy(_))) => Err(Failure::Damaged(reason)),
                outcome => outcome,
            }
        }
        outcome => outcome,
    }
}

fn attempt(directory: &Path, offer: &mut dyn FnMut(Option<PartialStore>)) -> Result<Recovered, Failure> {
    offer(None);
    if let Some(reason) = foreign::in_engine_directory(directory)? {
        return Err(Failure::Foreign(reason));
    }
    fs::create_dir_all(directory)?;
    match read_format_file(directory) {
        Some(format) if format > FORMAT => return Err(Failure::Newer(format)),
        Some(_) | None => {}
    }
    let existed = Engine::exists(directory);
    let files: Arc<dyn Files> = Arc::new(Directory::of(directory.parent().unwrap_or(directory)));
    // while the engine opens, which takes one core
    let reading = std::thread::spawn({
        let files = Arc::clone(&files);
        move || frames::read_all(&*files)
    });
    let engine = Engine::open(directory);
    let log = reading.join().map_err(|_| EngineError::Damaged("reading the log panicked".to_owned()))?;
    let engine = Arc::new(engine?);
    let format = read_mark(&engine)?;
    let format_file = read_format_file(directory);
    let (mut chunk_store, found, run) = match format {
        Some(FORMAT) => recover_offering(engine, log?, offer)?,
        Some(format) if format > FORMAT => return Err(Failure::Newer(format)),
        Some(format) => {
            if !upgrade_from(format, &engine, UPGRADES)? {
                return Err(Failure::Older(format));
            }
            drop(engine);
            return attempt(directory, offer);
        }
        None if format_file.is_some() => return Err(Failure::Damaged("it is empty".to_owned())),
        None => {
            let (chunk_store, run) = begin(engine, &*files)?;
            (chunk_store, DamageReport::default(), run)
        }
    };
    if format_file != Some(FORMAT) {
        write_format_file(directory)?;
    }
    let (loaded, losses, run) = load_and_repair(&mut chunk_store, found, run, &*files)?;
    let opened = Opened { set_aside: None, created: format.is_none() || !existed, losses };
    Ok(Recovered { chunk_store, run, files, loaded, opened })
}

/// Reads everything, and offers what lookups need as soon as there is that much.
fn recover_offering(
    engine: Arc<Engine>,
    log: LogRead,
    offer: &mut dyn FnMut(Option<PartialStore>),
) -> Result<(ChunkStore<Arc<Engine>>, DamageReport, Run), EngineError> {
    let mut reading = SlotScan::begin(Arc::clone(&engine))?;
    let run = reading.take_log(log, u64::MAX)?;
    offer(reading.early().and_then(|early| PartialStore::new(&engine, early)));
    let (chunk_store, found) = reading.finish()?;
    Ok((chunk_store, found, run))
}

/// Starts the layout in an engine without any content. A kill meanwhile leaves one with empty chunks, perhaps a mark, and without the number.
fn begin(engine: Arc<Engine>, files: &dyn Files) -> Result<(ChunkStore<Arc<Engine>>, Run), EngineError> {
    let mut count = usize::from(engine.has_plain()?);
    count += engine.slots()?.len().saturating_sub(BEGUN_SLOTS);
    if count > 0 {
        return Err(EngineError::Damaged(format!("{count} values and no format")));
    }
    let mut chunk_store = ChunkStore::begin(engine)?;
    let run = begin_log(&mut chunk_store, &Changes::new(), files)?;
    write_number(chunk_store.slots(), FORMAT)?;
    Ok((chunk_store, run))
}

/// Renames foreign entries in the places of what a start makes anew. Of the log this costs what the chunks do not have, which is judged later.
fn put_foreign_aside(data_directory: &Path) -> io::Result<()> {
    for name in [PROBE_FILE, RESERVE_FILE] {
        foreign::put_aside(data_directory, name, Expected::File)?;
    }
    foreign::put_aside(data_directory, LOG_DIRECTORY, Expected::Directory).map(drop)
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

/// Finds a full or read-only file system before the engine does, which would take some of its errors for damage. On a full one there is
/// the room that was kept for this.
fn probe(data_directory: &Path) -> io::Result<()> {
    match fs::remove_file(data_directory.join(RESERVE_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Err(_) | Ok(()) => {}
    }
    let path = data_directory.join(PROBE_FILE);
    let written = fs::write(&path, vec![0; PROBE_BYTES]);
    let removed = fs::remove_file(&path);
    written.and(removed)
}

/// Whether the room is there, and the file system takes writes.
fn has_reserve(data_directory: &Path) -> bool {
    let file = File::options().write(true).open(data_directory.join(RESERVE_FILE));
    file.and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.len() >= RESERVE_BYTES as u64)
}

/// Keeps room for the next start, as much of it as there is.
fn keep_reserve(data_directory: &Path) {
    let written = File::create(data_directory.join(RESERVE_FILE)).and_then(|mut file| {
        (0..RESERVE_BYTES / PROBE_BYTES).try_for_each(|_| file.write_all(&vec![0; PROBE_BYTES]))?;
        file.sync_all()
    });
    if let Err(error) = written {
        tracing::error!(%error, "the data directory is almost full: the next start reads unstored changes from the remote clusters again");
    }
}

/// Renames the engine's directory and returns its new path.
fn set_aside(data_directory: &Path, slug: &str) -> io::Result<PathBuf> {
    let path = set_aside::unused_path(data_directory, slug);
    fs::rename(data_directory.join(ENGINE_DIRECTORY), &path)?;
    // it says nothing of the store that is begun now
    if foreign::foreign_type(&path, Expected::Directory)?.is_none() && data_directory.join(LOG_DIRECTORY).exists() {
        fs::rename(data_directory.join(LOG_DIRECTORY), path.join(LOG_DIRECTORY))?;
    }
    sync_directory(data_directory)?;
    if let Err(error) = remove_oldest_damaged(data_directory) {
        tracing::warn!(%error, directory = %data_directory.display(), "cannot remove old damaged stores");
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
