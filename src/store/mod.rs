//! The store: everything that is mirrored, on disk, in atomic groups together with the cursors that say how far it reaches.
//!
//! Owns: the data directory and its lock, the layout (docs/store.md), recovery from damage and migrations between layouts. Receives:
//! [`Group`]s from the one writer. Emits: [`Loaded`] at start and [`StoreError`]s that name the directory. Keeps the invariants 1
//! (a cursor is never ahead of its entries), 7 (newest and last good bytes survive) and 8 (unreadable data costs a resync, never the start)
//! of ARCHITECTURE.md. Deliberately lacks: async (it runs on the writer's thread), Cilium's formats (the caller decodes what it loads),
//! decisions on what to write when, and sled outside of `engine`.

mod bytes;
mod codec;
mod engine;
mod error;
mod group;
mod journal;
mod load;
mod lock;
mod recovery;
#[cfg(test)]
mod tests;
mod witness;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use error::{EngineError, StoreError};
pub use group::Group;
pub use journal::{Journal, JournalRun, read_journals};
pub use load::Loaded;

use engine::{Engine, Write};
use lock::DirectoryLock;
use witness::Witness;

/// The engine's directory inside the data directory.
const ENGINE_DIRECTORY: &str = "store";

/// The unit of [`MetadataExt::blocks`], in bytes (stat(2)).
const BLOCK_BYTES: u64 = 512;

/// An open store. It has the data directory to itself until it is dropped.
#[derive(Debug)]
pub struct Store {
    /// The engine's files.
    directory: PathBuf,
    inner: Mutex<Inner>,
    /// Dropped last: nobody else may come in before the engine is closed.
    _lock: DirectoryLock,
}

#[derive(Debug)]
struct Inner {
    /// `None` after an error, until the next group opens it anew.
    engine: Option<Engine>,
    witness: Witness,
    /// The number of the last group that was applied.
    group_number: u64,
    /// What opening has read, until it is asked for.
    loaded: Option<Loaded>,
}

/// What opening found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The old store, if it had to be put out of the way.
    pub set_aside: Option<SetAside>,
    /// Whether the store is new and empty.
    pub created: bool,
}

/// A store that this version could not use and left for people to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Where it is now.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

impl Store {
    /// Opens the store in a data directory, or creates it. While another living process holds the directory's lock, this waits up to
    /// `lock_wait` (30 s in production, design.md, invariant 8) without touching anything. A store that is damaged beyond reading, or that a newer
    /// version wrote, is renamed to `set-aside-…` inside the directory and a new one begun; [`Opened`] says so.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::NotWritable`], or [`StoreError::Engine`] where the machine and not the files is the reason.
    pub fn open(directory: &Path, lock_wait: Duration) -> Result<(Self, Opened), StoreError> {
        let lock = DirectoryLock::take(directory, lock_wait)?;
        let recovered = recovery::open(directory)?;
        let inner = Inner {
            engine: Some(recovered.engine),
            witness: recovered.witness,
            group_number: recovered.group_number,
            loaded: Some(recovered.loaded),
        };
        let store = Self { directory: directory.join(ENGINE_DIRECTORY), inner: Mutex::new(inner), _lock: lock };
        Ok((store, recovered.opened))
    }

    /// Everything that is stored. Opening has read it already, so the first call only hands it over; later ones read again.
    ///
    /// # Errors
    /// [`StoreError::Engine`], in later calls only.
    pub fn load(&self) -> Result<Loaded, StoreError> {
        let mut inner = self.inner();
        if let Some(loaded) = inner.loaded.take() {
            return Ok(loaded);
        }
        let engine = inner.take_engine(&self.directory).map_err(|source| self.failed(source))?;
        match load::load_and_repair(&engine, &mut inner.witness) {
            Ok((loaded, _)) => {
                inner.engine = Some(engine);
                Ok(loaded)
            }
            Err(source) => {
                engine.discard();
                Err(self.failed(source))
            }
        }
    }

    /// Stores a group: all of it or, if the process is killed meanwhile, none; durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::Engine`], for instance on a full disk. The group must then be tried again, alone or merged into a newer one
    /// ([`Group::merge_older`]), before any other: part of it may show. Should the process end before that, the next start drops the
    /// cursors, so none is ever ahead of its entries.
    pub fn apply(&self, group: &Group) -> Result<(), StoreError> {
        if group.is_empty() {
            return Ok(());
        }
        let mut inner = self.inner();
        inner.loaded = None;
        let engine = inner.take_engine(&self.directory).map_err(|source| self.failed(source))?;
        let number = inner.group_number + 1;
        match write(&engine, group.writes(number)) {
            Ok(()) => {
                inner.group_number = number;
                inner.engine = Some(engine);
                if let Err(error) = inner.witness.confirm(number, group.sequence_reserved.unwrap_or_default()) {
                    tracing::warn!(%error, "could not note that the store is whole up to group {number}");
                }
                Ok(())
            }
            Err(source) => {
                // Before the engine goes, for going it writes what it still has, which can be part of the group.
                if let Err(error) = inner.witness.suspect() {
                    tracing::warn!(%error, "could not note that part of group {number} may be stored");
                }
                engine.discard();
                Err(self.failed(source))
            }
        }
    }

    /// Closes the store and lets go of the directory.
    ///
    /// # Errors
    /// [`StoreError::Engine`] if the last flush fails; every group that was applied without an error is durable all the same.
    pub fn close(self) -> Result<(), StoreError> {
        let Some(engine) = self.inner().engine.take() else {
            return Ok(());
        };
        let outcome = engine.sync();
        engine.discard();
        outcome.map_err(|source| self.failed(source))
    }

    /// The data directory, which this store has to itself: the announce journal is beside it.
    #[must_use]
    pub fn data_directory(&self) -> &Path {
        self.directory.parent().unwrap_or(&self.directory)
    }

    /// How much room the engine's files take, in bytes; `None` if they cannot be looked at.
    #[must_use]
    pub fn bytes_on_disk(&self) -> Option<u64> {
        directory_bytes(&self.directory).ok()
    }

    /// A panic inside the lock leaves at worst no engine, and then the next group opens one: no reason to stop.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, source: EngineError) -> StoreError {
        StoreError::Engine { directory: self.directory.clone(), source }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(engine) = self.inner().engine.take() {
            engine.discard();
        }
    }
}

impl Inner {
    /// The engine, opened anew if an error closed it. Never creates one: cursors without the entries before them would be ahead.
    fn take_engine(&mut self, directory: &Path) -> Result<Engine, EngineError> {
        if let Some(engine) = self.engine.take() {
            return Ok(engine);
        }
        if !Engine::exists(directory) {
            return Err(EngineError::Replaced);
        }
        let engine = Engine::open(directory)?;
        match recovery::read_marks(&engine) {
            Ok(marks) if marks.is_current() && marks.group_number >= self.group_number => Ok(engine),
            Ok(_) => {
                engine.discard();
                Err(EngineError::Replaced)
            }
            Err(error) => {
                engine.discard();
                Err(error)
            }
        }
    }
}

fn write(engine: &Engine, writes: Vec<Write>) -> Result<(), EngineError> {
    engine.apply(writes)?;
    engine.sync()
}

fn directory_bytes(directory: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for file in fs::read_dir(directory)? {
        let file = file?;
        // sled removes big pages' files at any time
        let Ok(metadata) = file.metadata() else { continue };
        bytes += if metadata.is_dir() { directory_bytes(&file.path())? } else { metadata.blocks() * BLOCK_BYTES };
    }
    Ok(bytes)
}
