//! Inspection of a store that no process uses: its content, its size and its damage.
//!
//! It reads a copy, because even opening the engine can change files. `meshkeep store` prints the
//! result.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::ENGINE_DIRECTORY;
use super::directory::foreign::{self, ExpectedType};
use super::directory::lock::DirectoryLock;
use super::disk_usage;
use super::encoding::codec;
use super::engine::Engine;
use super::engine::layout::{LAYOUT, read_layout};
use super::engine::slots::{SlotKind, SlotStorage};
use super::error::{EngineError, StoreError};
use super::log::files::{LOG_DIRECTORY, LogDirectory};
use super::log::frames;
use super::objects::object;
use super::recovery::load::{self, StoreContents};
use super::recovery::losses::describe_losses;
use super::recovery::slot_scan::recover;

/// Content of a store, and its damage.
#[derive(Debug)]
pub struct Inspection {
    /// Number of the layout.
    pub layout: u64,
    /// Number of the last stored group.
    pub group_number: u64,
    /// Disk space of all files, in bytes.
    pub disk_bytes: u64,
    /// Space used in the slots and the log, by type of content.
    pub usage: Vec<SpaceUsage>,
    /// Damage and losses, human-readable. Empty if the store is intact.
    pub losses: Vec<String>,
    /// Everything that can be read.
    pub contents: StoreContents,
}

/// Space that one type of content uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceUsage {
    /// Name of the type.
    pub name: String,
    /// Number of objects.
    pub objects: u64,
    /// Number of keys in the objects.
    pub keys: u64,
    /// Length of keys and values before compression, in bytes. For chunks of entries: the length of
    /// the packed entries.
    pub raw_bytes: u64,
    /// Length as stored, in bytes.
    pub stored_bytes: u64,
}

/// Inspects the store in a data directory and changes nothing. Calls `report_step` with the name of
/// each step before the step begins, because a step may take long for a large store.
///
/// # Errors
/// [`StoreError::NoStore`] if there is no store, [`StoreError::Locked`] if a process uses it, and
/// [`StoreError::Engine`] if it cannot be read or has another layout.
pub fn inspect(data_directory: &Path, report_step: &dyn Fn(&'static str)) -> Result<Inspection, StoreError> {
    let directory = data_directory.join(ENGINE_DIRECTORY);
    let failed = |cause| StoreError::Engine { directory: directory.clone(), cause };
    if !Engine::exists(&directory) {
        return Err(StoreError::NoStore { directory: data_directory.to_owned() });
    }
    let _lock = DirectoryLock::acquire(data_directory, Duration::ZERO)?;
    if let Some(reason) = foreign::find_foreign_engine_file(&directory).map_err(|error| failed(error.into()))? {
        return Err(failed(EngineError::Damaged(reason)));
    }
    report_step("copying the store");
    let copy = StoreCopy::create(data_directory).map_err(|error| failed(error.into()))?;
    inspect_copy(&copy.0, report_step).map_err(failed)
}

fn inspect_copy(data_directory: &Path, report_step: &dyn Fn(&'static str)) -> Result<Inspection, EngineError> {
    let directory = &data_directory.join(ENGINE_DIRECTORY);
    report_step("opening the copy");
    let engine = Engine::open(directory)?;
    let layout = read_layout(&engine)?.unwrap_or_default();
    if layout != LAYOUT {
        return Err(EngineError::Damaged(format!(
            "it has layout {layout}, but the command can only read {LAYOUT}: start meshkeep once to upgrade an older store"
        )));
    }
    report_step("measuring the store");
    let mut usage = measure_usage(&engine)?;
    report_step("checking the store");
    let (chunk_store, damage, recovered_log) =
        recover(Arc::new(engine), frames::read_log(&LogDirectory::in_data_directory(data_directory))?, u64::MAX)?;
    report_step("reading the store");
    let scan = load::load_contents(&chunk_store, BTreeMap::new())?;
    let losses = describe_losses(&damage, scan.contents.damaged_count);
    let (objects, stored_bytes) = recovered_log.size();
    usage.push(SpaceUsage { name: "log".to_owned(), objects, keys: 0, raw_bytes: chunk_store.log_raw_bytes(), stored_bytes });
    let disk_bytes = disk_usage::disk_usage_of(data_directory);
    Ok(Inspection { layout, group_number: chunk_store.group_number(), disk_bytes, usage, losses, contents: scan.contents })
}

/// Measures the content of all slots, including objects that are no longer used.
fn measure_usage(engine: &Engine) -> Result<Vec<SpaceUsage>, EngineError> {
    let mut usage: BTreeMap<String, SpaceUsage> = BTreeMap::new();
    for slot in engine.list_slots()? {
        let Some(value) = engine.get(slot)? else { continue };
        let stored_bytes = value.len() as u64;
        let part = object::decode_part(slot, value).ok();
        let name = match (slot.kind, &part) {
            (_, None) => "unreadable".to_owned(),
            (SlotKind::Chunk, Some(part)) => format!("chunks of {}", range_name(&part.head.low)),
            (SlotKind::Checkpoint, Some(_)) => "checkpoint".to_owned(),
            (SlotKind::Manifest, Some(_)) => "manifest".to_owned(),
        };
        let entry = usage.entry(name.clone()).or_insert_with(|| SpaceUsage { name, objects: 0, keys: 0, raw_bytes: 0, stored_bytes: 0 });
        entry.stored_bytes += stored_bytes;
        if let Some(part) = part.filter(|part| part.number == 0) {
            entry.objects += 1;
            entry.keys += part.head.count;
            entry.raw_bytes += part.head.raw_bytes;
        }
    }
    Ok(usage.into_values().collect())
}

/// Names the content of a range that begins at `low`.
fn range_name(low: &[u8]) -> &'static str {
    match low.first() {
        None => "cursors",
        Some(&codec::ENTRY_TAG) => "entries",
        Some(_) => "clusters, metadata and tombstones",
    }
}

/// Temporary copy of the engine's files and the log. Removed on drop.
struct StoreCopy(PathBuf);

impl StoreCopy {
    fn create(data_directory: &Path) -> std::io::Result<Self> {
        let copy = Self(std::env::temp_dir().join(format!("meshkeep-inspect-{}-{:016x}", std::process::id(), rand::random::<u64>())));
        fs::create_dir(&copy.0)?;
        for name in [ENGINE_DIRECTORY, LOG_DIRECTORY].map(Path::new) {
            let from = data_directory.join(name);
            // a log that is a link counts as missing, as at a start
            if from.exists() && foreign::foreign_type(&from, ExpectedType::Directory)?.is_none() {
                copy_files(&from, &copy.0.join(name))?;
            }
        }
        Ok(copy)
    }
}

impl Drop for StoreCopy {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove a copy of the store");
        }
    }
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir(to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        let target = to.join(file.file_name());
        let file_type = file.file_type()?;
        if file_type.is_dir() {
            copy_files(&file.path(), &target)?;
        } else if file_type.is_file() {
            // `open_file` does not block if the file was replaced by a FIFO
            io::copy(&mut foreign::open_file(&file.path(), File::options().read(true))?, &mut File::create_new(target)?)?;
        }
    }
    Ok(())
}
