//! Opens the engine's directory in any state: missing, intact, damaged, or written by another
//! version.
//!
//! If a store cannot be read, it is opened again without sled's snapshots
//! (docs/develop/measurements.md §1.3, trap 6). If that fails too, the store is set aside. The
//! caller holds the lock of the data directory. `load` drops single values that cannot be decoded.

pub(super) mod load;
pub(super) mod losses;
pub(super) mod partial_store;
pub(super) mod slot_scan;
pub(super) mod upgrade;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::load::{StoreContents, create_log, load_and_repair};
use self::partial_store::PartialStore;
use self::slot_scan::{DamageReport, SlotScan, recover};
use self::upgrade::{UPGRADES, upgrade_from};
use super::chunks::chunk_store::ChunkStore;
use super::directory::foreign::{self, ExpectedType};
use super::directory::set_aside::{self, SET_ASIDE_PREFIX};
use super::encoding::group::KeyChanges;
use super::engine::Engine;
use super::engine::layout::{LAYOUT, read_layout, write_layout};
use super::engine::slots::SlotStorage;
use super::error::{EngineError, StoreError};
use super::log::files::{LOG_DIRECTORY, LogDirectory, LogFiles};
use super::log::frames::{self, LogContents};
use super::log::recovered_log::RecoveredLog;
use super::objects::packing::RANGES;
use super::{ENGINE_DIRECTORY, OpenReport, SetAsideStore};

/// Number of slots of a new store: a chunk for each range, the checkpoint, and the manifest.
const NEW_STORE_SLOTS: usize = RANGES.len() + 2;

/// Name of the file with the number of the layout, for programs that must not open the engine. The
/// engine stores the same number.
const FORMAT_FILE: &str = "format";

/// Text before the number in the format file.
const FORMAT_FILE_HEAD: &str = "meshkeep store format ";

/// Maximum length of a format file, in bytes. It has only a few words.
const FORMAT_FILE_LENGTH_MAX: u64 = 256;

/// File that each start writes and removes, to check that the directory is writable.
const PROBE_FILE: &str = "probe";

/// Size of the probe, in bytes: two segments of sled, an estimate of what sled needs to open.
const PROBE_BYTES: usize = 1024 * 1024;

/// File that reserves disk space. sled cannot read without writing, so a start on a full disk
/// deletes this file.
const RESERVE_FILE: &str = "reserve";

/// Size of the reserve, in bytes: four times what a start needs. The space that a start does not
/// need is reserved again for the next start.
const RESERVE_BYTES: usize = 4 * PROBE_BYTES;

/// Maximum number of damaged stores that are kept for inspection. Older ones are removed, so that a
/// failing disk does not fill up. Stores of other versions are all kept.
const DAMAGED_KEPT_MAX: usize = 3;

/// An engine that was opened and read completely.
#[derive(Debug)]
pub(super) struct RecoveredStore {
    pub(super) chunk_store: ChunkStore<Engine>,
    /// The log as it was read. New groups continue after it.
    pub(super) recovered_log: RecoveredLog,
    pub(super) files: Arc<dyn LogFiles>,
    /// Report about this opening, for the caller of [`super::Store::open`].
    pub(super) contents: StoreContents,
    pub(super) opened: OpenReport,
}

/// Reason why a store was not opened.
enum OpenFailure {
    /// It has the layout of a newer version.
    Newer(u64),
    /// It has the layout of an older version, from which there is no upgrade.
    Older(u64),
    Damaged(String),
    /// One of its files is a link, a FIFO or the like, and must not be opened.
    Foreign(String),
    /// The content of the files is not the cause ([`EngineError::is_damage`]).
    NotDamaged(EngineError),
}

impl From<EngineError> for OpenFailure {
    fn from(error: EngineError) -> Self {
        if error.is_damage() { Self::Damaged(error.to_string()) } else { Self::NotDamaged(error) }
    }
}

impl From<io::Error> for OpenFailure {
    fn from(error: io::Error) -> Self {
        EngineError::from(error).into()
    }
}

/// Opens the store in the data directory, or creates a new one. The caller holds the lock.
///
/// `offer` gets a partial store as soon as lookups are possible, and `None` before each attempt.
pub(super) fn open(data_directory: &Path, offer: &mut dyn FnMut(Option<PartialStore>)) -> Result<RecoveredStore, StoreError> {
    let not_writable = |cause| StoreError::NotWritable { directory: data_directory.to_owned(), cause };
    let directory = data_directory.join(ENGINE_DIRECTORY);
    let failed = |cause| StoreError::Engine { directory: directory.clone(), cause };
    set_foreign_aside(data_directory).map_err(not_writable)?;
    // if this attempt succeeds, the reserve is not touched; otherwise everything is tried again
    // with the space of the reserve
    if has_reserve(data_directory)
        && let Ok(recovered) = try_open(&directory, offer)
    {
        return Ok(recovered);
    }
    probe_directory(data_directory).map_err(not_writable)?;
    let (slug, reason) = match try_open_twice(&directory, offer) {
        Ok(recovered) => {
            keep_reserve(data_directory);
            return Ok(recovered);
        }
        Err(OpenFailure::Older(layout)) => {
            ("older-version", format!("it has layout {layout} of an older version, which this version cannot read"))
        }
        Err(OpenFailure::NotDamaged(source)) => return Err(failed(source)),
        Err(OpenFailure::Newer(layout)) => {
            ("newer-version", format!("it has layout {layout} of a newer version; this version reads layouts up to {LAYOUT}"))
        }
        Err(OpenFailure::Damaged(reason) | OpenFailure::Foreign(reason)) => ("damaged", reason),
    };
    let path = set_store_aside(data_directory, slug).map_err(not_writable)?;
    match try_open(&directory, offer) {
        Ok(mut recovered) => {
            keep_reserve(data_directory);
            recovered.opened.set_aside = Some(SetAsideStore { path, reason });
            Ok(recovered)
        }
        Err(OpenFailure::NotDamaged(source)) => Err(failed(source)),
        Err(OpenFailure::Damaged(reason) | OpenFailure::Foreign(reason)) => Err(failed(EngineError::Damaged(reason))),
        Err(OpenFailure::Newer(_) | OpenFailure::Older(_)) => {
            Err(failed(EngineError::Damaged("the new store has another layout".to_owned())))
        }
    }
}

/// Reopens the engine after an error and reads everything, with the log up to group `up_to`.
///
/// If the first attempt fails, sled's snapshots are removed. They may not fit the log after a write
/// to a full disk.
pub(super) fn reopen(directory: &Path, files: &dyn LogFiles, up_to: u64) -> Result<(ChunkStore<Engine>, DamageReport), EngineError> {
    if let Some(reason) = foreign::find_foreign_engine_file(directory)? {
        return Err(EngineError::Damaged(reason));
    }
    match Engine::open(directory).and_then(|engine| read_slots(engine, files, up_to)) {
        Err(error) if error.is_damage() => {
            tracing::warn!(%error, "cannot reopen the store: trying again without snapshots");
            Engine::remove_snapshots(directory)?;
            Engine::open(directory).and_then(|engine| read_slots(engine, files, up_to))
        }
        outcome => outcome,
    }
}

/// Reads the slots of an engine that has the current layout.
fn read_slots(engine: Engine, files: &dyn LogFiles, up_to: u64) -> Result<(ChunkStore<Engine>, DamageReport), EngineError> {
    if read_layout(&engine)? != Some(LAYOUT) {
        return Err(EngineError::Replaced);
    }
    let (chunk_store, damage, _) = recover(Arc::new(engine), frames::read_log(files)?, up_to)?;
    Ok((chunk_store, damage))
}

fn try_open_twice(directory: &Path, offer: &mut dyn FnMut(Option<PartialStore>)) -> Result<RecoveredStore, OpenFailure> {
    match try_open(directory, offer) {
        Err(OpenFailure::Damaged(reason)) => {
            tracing::warn!(directory = %directory.display(), reason, "cannot open the store: trying again without snapshots");
            Engine::remove_snapshots(directory)?;
            match try_open(directory, offer) {
                // this process has the lock, so only the engine of the failed attempt can still
                // have the files open
                Err(OpenFailure::NotDamaged(EngineError::Busy(_))) => Err(OpenFailure::Damaged(reason)),
                outcome => outcome,
            }
        }
        outcome => outcome,
    }
}

fn try_open(directory: &Path, offer: &mut dyn FnMut(Option<PartialStore>)) -> Result<RecoveredStore, OpenFailure> {
    offer(None);
    if let Some(reason) = foreign::find_foreign_engine_file(directory)? {
        return Err(OpenFailure::Foreign(reason));
    }
    fs::create_dir_all(directory)?;
    match read_format_file(directory) {
        Some(layout) if layout > LAYOUT => return Err(OpenFailure::Newer(layout)),
        Some(_) | None => {}
    }
    let existed = Engine::exists(directory);
    let files: Arc<dyn LogFiles> = Arc::new(LogDirectory::in_data_directory(directory.parent().unwrap_or(directory)));
    // in a thread of its own, because opening the engine uses only one core
    let log_reader = std::thread::spawn({
        let files = Arc::clone(&files);
        move || frames::read_log(&*files)
    });
    let engine = Engine::open(directory);
    let log = log_reader.join().map_err(|_| EngineError::Damaged("reading the log panicked".to_owned()))?;
    let engine = Arc::new(engine?);
    let layout = read_layout(&engine)?;
    let format_file = read_format_file(directory);
    let (mut chunk_store, damage, recovered_log) = match layout {
        Some(LAYOUT) => recover_with_early_lookups(engine, log?, offer)?,
        Some(newer) if newer > LAYOUT => return Err(OpenFailure::Newer(newer)),
        Some(older) => {
            if !upgrade_from(older, &engine, UPGRADES)? {
                return Err(OpenFailure::Older(older));
            }
            drop(engine);
            return try_open(directory, offer);
        }
        None if format_file.is_some() => return Err(OpenFailure::Damaged("it is empty".to_owned())),
        None => {
            let (chunk_store, recovered_log) = create(engine, &*files)?;
            (chunk_store, DamageReport::default(), recovered_log)
        }
    };
    if format_file != Some(LAYOUT) {
        write_format_file(directory)?;
    }
    let (contents, losses, recovered_log) = load_and_repair(&mut chunk_store, damage, recovered_log, &*files)?;
    let opened = OpenReport { set_aside: None, created: layout.is_none() || !existed, losses };
    Ok(RecoveredStore { chunk_store, recovered_log, files, contents, opened })
}

/// Reads everything, and offers a partial store as soon as the log and the manifest are read.
fn recover_with_early_lookups(
    engine: Arc<Engine>,
    log: LogContents,
    offer: &mut dyn FnMut(Option<PartialStore>),
) -> Result<(ChunkStore<Engine>, DamageReport, RecoveredLog), EngineError> {
    let mut scan = SlotScan::start(Arc::clone(&engine))?;
    let recovered_log = scan.add_log(log, u64::MAX)?;
    offer(scan.early_index().and_then(|early| PartialStore::new(&engine, early)));
    let (chunk_store, mut damage) = scan.finish()?;
    let (older, _) = recovered_log.decode_batches(0, chunk_store.checkpoint_group())?;
    damage.replaced.insert_older(older.into_iter().map(|batch| batch.block));
    Ok((chunk_store, damage, recovered_log))
}

/// Creates the layout in an empty engine. The number of the layout is written last: after a kill,
/// the engine has at most empty chunks and a checkpoint.
fn create(engine: Arc<Engine>, files: &dyn LogFiles) -> Result<(ChunkStore<Engine>, RecoveredLog), EngineError> {
    let mut count = usize::from(engine.has_values_in_default_tree()?);
    count += engine.list_slots()?.len().saturating_sub(NEW_STORE_SLOTS);
    if count > 0 {
        return Err(EngineError::Damaged(format!("it has {count} values and no layout")));
    }
    let mut chunk_store = ChunkStore::create(engine)?;
    let recovered_log = create_log(&mut chunk_store, &KeyChanges::new(), files)?;
    write_layout(chunk_store.storage(), LAYOUT)?;
    Ok((chunk_store, recovered_log))
}

/// Renames foreign entries whose names a start needs. If the log is one of them, its unfolded
/// changes are lost, and recovery reports that.
fn set_foreign_aside(data_directory: &Path) -> io::Result<()> {
    for name in [PROBE_FILE, RESERVE_FILE] {
        foreign::set_foreign_aside(data_directory, name, ExpectedType::File)?;
    }
    foreign::set_foreign_aside(data_directory, LOG_DIRECTORY, ExpectedType::Directory).map(drop)
}

/// Returns the number in the format file. `None` if the file is missing or unreadable; the engine's
/// number is then used.
fn read_format_file(directory: &Path) -> Option<u64> {
    let path = directory.join(FORMAT_FILE);
    if fs::metadata(&path).ok()?.len() > FORMAT_FILE_LENGTH_MAX {
        return None;
    }
    fs::read_to_string(path).ok()?.strip_prefix(FORMAT_FILE_HEAD)?.trim().parse().ok()
}

fn write_format_file(directory: &Path) -> io::Result<()> {
    let mut file = File::create(directory.join(FORMAT_FILE))?;
    writeln!(file, "{FORMAT_FILE_HEAD}{LAYOUT}")?;
    file.sync_all()?;
    sync_directory(directory)?;
    directory.parent().map_or(Ok(()), sync_directory)
}

/// Checks that the file system is writable and has space, before sled mistakes such an error for
/// damage. Deletes the reserve to make space.
fn probe_directory(data_directory: &Path) -> io::Result<()> {
    match fs::remove_file(data_directory.join(RESERVE_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Err(_) | Ok(()) => {}
    }
    let path = data_directory.join(PROBE_FILE);
    let written = fs::write(&path, vec![0; PROBE_BYTES]);
    let removed = fs::remove_file(&path);
    written.and(removed)
}

/// Returns whether the reserve exists and the file system is writable.
fn has_reserve(data_directory: &Path) -> bool {
    let file = File::options().write(true).open(data_directory.join(RESERVE_FILE));
    file.and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.len() >= RESERVE_BYTES as u64)
}

/// Reserves as much space as possible for the next start.
fn keep_reserve(data_directory: &Path) {
    let written = File::create(data_directory.join(RESERVE_FILE)).and_then(|mut file| {
        (0..RESERVE_BYTES / PROBE_BYTES).try_for_each(|_| file.write_all(&vec![0; PROBE_BYTES]))?;
        file.sync_all()
    });
    if let Err(error) = written {
        tracing::error!(%error, "cannot reserve disk space for the next start: the data directory is almost full, and changes that do not fit are read again from the remote clusters");
    }
}

/// Renames the engine's directory and returns the new path.
fn set_store_aside(data_directory: &Path, slug: &str) -> io::Result<PathBuf> {
    let path = set_aside::unused_path(data_directory, slug);
    fs::rename(data_directory.join(ENGINE_DIRECTORY), &path)?;
    // the log belongs to the old store
    if foreign::foreign_type(&path, ExpectedType::Directory)?.is_none() && data_directory.join(LOG_DIRECTORY).exists() {
        fs::rename(data_directory.join(LOG_DIRECTORY), path.join(LOG_DIRECTORY))?;
    }
    sync_directory(data_directory)?;
    if let Err(error) = remove_oldest_damaged(data_directory) {
        tracing::warn!(%error, directory = %data_directory.display(), "cannot remove old damaged stores");
    }
    Ok(path)
}

fn remove_oldest_damaged(data_directory: &Path) -> io::Result<()> {
    let prefix = format!("{SET_ASIDE_PREFIX}-damaged-");
    let mut damaged: Vec<(u64, PathBuf)> = fs::read_dir(data_directory)?
        .filter_map(|file| {
            let file = file.ok()?;
            let seconds = file.file_name().to_str()?.strip_prefix(&prefix)?.parse().ok()?;
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
