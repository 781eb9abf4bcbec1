//! Looking at a store that no process uses: what is in it, whether it is whole, and everything out of it again.
//!
//! Owns: reading a copy, so that nothing is changed, not even by an engine that repairs itself. Deliberately lacks: printing (`cli`), and repairs,
//! which every start does.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ENGINE_DIRECTORY;
use super::directory::foreign::{self, Expected};
use super::directory::lock::DirectoryLock;
use super::disk_usage;
use super::encoding::codec;
use super::engine::Engine;
use super::engine::format::{FORMAT, read_mark};
use super::engine::slots::{SlotKind, Slots};
use super::error::{EngineError, StoreError};
use super::log::files::{Directory, LOG_DIRECTORY};
use super::log::frames;
use super::objects::object;
use super::recovery::load::{self, Loaded};
use super::recovery::losses::losses;
use super::recovery::slot_scan::recover;

/// What is stored, and what is wrong with it.
#[derive(Debug)]
pub struct Inspection {
    /// The number of the layout.
    pub layout: u64,
    /// The last group that is stored.
    pub group_number: u64,
    /// How many bytes the files take.
    pub disk_bytes: u64,
    /// What the slots hold, by what it is.
    pub shares: Vec<Share>,
    /// What is damaged or missing, in words; nothing for a store that is whole.
    pub findings: Vec<String>,
    /// Everything that is stored and can be read.
    pub loaded: Loaded,
}

/// What one sort of things takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// What it is.
    pub name: String,
    /// How many objects.
    pub objects: u64,
    /// How many keys are in them.
    pub keys: u64,
    /// How long keys and values are before compression (entries in chunks: as they are packed), in bytes.
    pub raw_bytes: u64,
    /// How long they are as stored, in bytes.
    pub stored_bytes: u64,
}

/// Looks at the store in a data directory, without changing anything. Tells what it does, for each takes long where much is stored.
///
/// # Errors
/// [`StoreError::Nothing`] where there is none, [`StoreError::Locked`] where a living process uses it; [`StoreError::Engine`] where it cannot be read at all, also where it has another layout
/// than the present one.
pub fn inspect(data_directory: &Path, tell: &dyn Fn(&'static str)) -> Result<Inspection, StoreError> {
    let directory = data_directory.join(ENGINE_DIRECTORY);
    let failed = |cause| StoreError::Engine { directory: directory.clone(), cause };
    if !Engine::exists(&directory) {
        return Err(StoreError::Nothing { directory: data_directory.to_owned() });
    }
    let _lock = DirectoryLock::take(data_directory, Duration::ZERO)?;
    if let Some(reason) = foreign::in_engine_directory(&directory).map_err(|error| failed(error.into()))? {
        return Err(failed(EngineError::Damaged(reason)));
    }
    tell("copying the store");
    let copy = Copy::of(data_directory).map_err(|error| failed(error.into()))?;
    look(&copy.0, tell).map_err(failed)
}

fn look(data_directory: &Path, tell: &dyn Fn(&'static str)) -> Result<Inspection, EngineError> {
    let directory = &data_directory.join(ENGINE_DIRECTORY);
    tell("opening the copy");
    let engine = Engine::open(directory)?;
    let layout = read_mark(&engine)?.unwrap_or_default();
    if layout != FORMAT {
        return Err(EngineError::Damaged(format!(
            "it has layout {layout}, but the command can only read {FORMAT}: start meshkeep once to upgrade an older store"
        )));
    }
    tell("measuring the store");
    let mut shares = shares(&engine)?;
    tell("checking the store");
    let (chunk_store, found, run) = recover(engine, frames::read_all(&Directory::of(data_directory))?, u64::MAX)?;
    tell("reading the store");
    let scan = load::read(&chunk_store, BTreeMap::new())?;
    let findings = losses(&found, scan.loaded.damaged_count);
    let (objects, stored_bytes) = run.size();
    shares.push(Share { name: "log".to_owned(), objects, keys: 0, raw_bytes: chunk_store.log_raw_bytes(), stored_bytes });
    let disk_bytes = disk_usage::bytes_of(data_directory);
    Ok(Inspection { layout, group_number: chunk_store.group_number(), disk_bytes, shares, findings, loaded: scan.loaded })
}

/// What the slots hold, whether it still counts or not.
fn shares(engine: &Engine) -> Result<Vec<Share>, EngineError> {
    let mut shares: BTreeMap<String, Share> = BTreeMap::new();
    for slot in engine.slots()? {
        let Some(value) = engine.get(slot)? else { continue };
        let stored_bytes = value.len() as u64;
        let part = object::read_part(slot, value).ok();
        let name = match (slot.kind, &part) {
            (_, None) => "unreadable".to_owned(),
            (SlotKind::Chunk, Some(part)) => format!("chunks of {}", sort_of(&part.head.low)),
            (SlotKind::Mark, Some(_)) => "mark".to_owned(),
            (SlotKind::Manifest, Some(_)) => "manifest".to_owned(),
        };
        let share = shares.entry(name.clone()).or_insert_with(|| Share { name, objects: 0, keys: 0, raw_bytes: 0, stored_bytes: 0 });
        share.stored_bytes += stored_bytes;
        if let Some(part) = part.filter(|part| part.number == 0) {
            share.objects += 1;
            share.keys += part.head.count;
            share.raw_bytes += part.head.raw_bytes;
        }
    }
    Ok(shares.into_values().collect())
}

/// What a range that begins there holds.
fn sort_of(low: &[u8]) -> &'static str {
    match low.first() {
        None => "cursors",
        Some(&codec::ENTRY) => "entries",
        Some(_) => "clusters, marks and tombstones",
    }
}

/// A copy of the engine's files and the log, removed when it is dropped.
struct Copy(PathBuf);

impl Copy {
    fn of(data_directory: &Path) -> std::io::Result<Self> {
        let copy = Self(std::env::temp_dir().join(format!("meshkeep-inspect-{}-{:016x}", std::process::id(), rand::random::<u64>())));
        fs::create_dir(&copy.0)?;
        for part in [ENGINE_DIRECTORY, LOG_DIRECTORY].map(Path::new) {
            let from = data_directory.join(part);
            // a log that is a link counts as missing, as for a start
            if from.exists() && foreign::foreign_type(&from, Expected::Directory)?.is_none() {
                copy_files(&from, &copy.0.join(part))?;
            }
        }
        Ok(copy)
    }
}

impl Drop for Copy {
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
        let found = file.file_type()?;
        if found.is_dir() {
            copy_files(&file.path(), &target)?;
        } else if found.is_file() {
            // through a handle of our own: a FIFO in its place would block
            io::copy(&mut foreign::open_file(&file.path(), File::options().read(true))?, &mut File::create_new(target)?)?;
        }
    }
    Ok(())
}
