//! The store: everything that is mirrored, on disk, in atomic groups together with the cursors that say how far it reaches.
//!
//! Owns: the data directory and its lock, the layout (docs/develop/store.md), recovery from damage and migrations between layouts. Receives:
//! [`Group`]s from the one writer. Emits: [`Loaded`] at start and [`StoreError`]s that name the directory. Keeps the invariants 1
//! (a cursor is never ahead of its entries), 7 (newest and last good bytes survive) and 8 (unreadable data costs a resync, never the start)
//! of ARCHITECTURE.md. Deliberately lacks: async (it runs on the writer's thread), Cilium's formats (the caller decodes what it loads),
//! decisions on what to write when, and sled outside of `engine`.
//!
//! Its modules, each importing only those before it: `directory`, `encoding` (bytes of keys, values and
//! groups), `engine` (sled, and its slots), `log`, `objects` (chunk bodies in slots), `manifest`,
//! `chunks` (the chunks of an open store, and folding into them) and `recovery` (opening a store).

mod chunks;
mod directory;
mod disk_usage;
mod encoding;
mod engine;
mod error;
mod inspection;
mod log;
mod manifest;
mod objects;
mod recovery;
#[cfg(test)]
mod tests;
mod threads;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use disk_usage::disk_bytes;
pub use encoding::group::Group;
pub use error::{EngineError, StoreError};
pub use inspection::{Inspection, inspect};
pub use log::Log;
pub use recovery::load::Loaded;
pub use recovery::partial_store::PartialStore;

use chunks::chunk_store::ChunkStore;
use directory::lock::DirectoryLock;
use engine::Engine;
use engine::slots::Slots;
use log::files::{Directory, Files};
use recovery::Recovered;

use crate::model::Record;

/// The engine's directory inside the data directory.
const ENGINE_DIRECTORY: &str = "store";

/// How long closing may move changes to where they stay: well within the 4.7 s of a shutdown (docs/develop/invariants.md, "Retries and shutdown").
const SETTLE_AT_CLOSE_MAX: Duration = Duration::from_millis(1_500);

/// An open store. It has the data directory to itself until it is dropped.
#[derive(Debug)]
pub struct Store {
    /// The engine's files.
    directory: PathBuf,
    log: Arc<Log>,
    files: Arc<dyn Files>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None` after an error, until it is opened anew.
    chunk_store: Option<ChunkStore<Arc<Engine>>>,
    /// False until there is room for a first store.
    begun: bool,
    /// The last group that is synced in the log, and in `chunk_store` if there is one.
    taken_in: u64,
    /// What the engine said last, while it fails.
    trouble: Option<String>,
    /// What opening has read, until it is asked for.
    loaded: Option<Loaded>,
    /// Dropped last: nobody else may come in before the engine is closed. `None` until there is room for its file.
    lock: Option<DirectoryLock>,
}

/// What opening found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The old store, if it had to be put out of the way.
    pub set_aside: Option<SetAside>,
    /// Whether the store is new and empty.
    pub created: bool,
    /// What of the last start it has lost, in words; empty where it has all. What is missing is read from the remote clusters again.
    pub losses: Vec<String>,
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
    /// `lock_wait` (30 s in production, docs/develop/invariants.md, 8) without touching anything. A store that is damaged beyond reading, or that a newer
    /// version wrote, is renamed to `set-aside-…` inside the directory and a new one begun; [`Opened`] says so.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::NotWritable`], or [`StoreError::Engine`] where the machine and not the files is the reason.
    #[cfg(any(test, feature = "internals"))]
    pub fn open(directory: &Path, lock_wait: Duration) -> Result<(Self, Opened), StoreError> {
        Self::open_offering(directory, lock_wait, &mut |_| ())
    }

    /// Opens the store as [`Store::open`] does. Meanwhile `offer` gets `None` when opening begins, the directory being locked, and what lookups can be answered from before
    /// everything is read, if all is well. `None` once more says that nothing can be, or that opening begins anew: what was offered
    /// before then counts no more.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_offering(
        directory: &Path,
        lock_wait: Duration,
        offer: &mut dyn FnMut(Option<PartialStore>),
    ) -> Result<(Self, Opened), StoreError> {
        // where nothing is stored yet, a start needs no room
        let is_new = !Engine::exists(&directory.join(ENGINE_DIRECTORY));
        let lock = match DirectoryLock::take(directory, lock_wait) {
            Err(error) if is_new && error.is_full() => return Ok(Self::without_room(directory, None)),
            outcome => outcome?,
        };
        directory::permissions::narrow(directory);
        let recovered = match recovery::open(directory, offer) {
            Err(error) if is_new && error.is_full() => return Ok(Self::without_room(directory, Some(lock))),
            outcome => outcome?,
        };
        let Recovered { chunk_store, run, files, loaded, opened } = recovered;
        let log = Arc::new(Log::closed(Arc::clone(&files)));
        log.open(&run);
        let (taken_in, loaded, lock) = (chunk_store.group_number(), Some(loaded), Some(lock));
        let inner = Inner { chunk_store: Some(chunk_store), begun: true, taken_in, trouble: None, loaded, lock };
        Ok((Self { directory: directory.join(ENGINE_DIRECTORY), log, files, inner: Mutex::new(inner) }, opened))
    }

    /// A store that is begun by the first group that finds room.
    fn without_room(directory: &Path, lock: Option<DirectoryLock>) -> (Self, Opened) {
        let files: Arc<dyn Files> = Arc::new(Directory::of(directory));
        let inner = Inner { chunk_store: None, begun: false, taken_in: 0, trouble: None, loaded: Some(Loaded::default()), lock };
        let log = Arc::new(Log::closed(Arc::clone(&files)));
        let store = Self { directory: directory.join(ENGINE_DIRECTORY), log, files, inner: Mutex::new(inner) };
        (store, Opened { set_aside: None, created: true, losses: Vec::new() })
    }

    /// The log, to which the writer appends before anybody hears of what it writes.
    #[must_use]
    pub const fn log(&self) -> &Arc<Log> {
        &self.log
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
        drop(inner);
        self.with_chunk_store(|chunk_store| recovery::load::read(chunk_store, BTreeMap::new()).map(|scan| scan.loaded))
    }

    /// Stores a group, all of it or none: durable in the log when this returns. One that was not appended to the log before is.
    ///
    /// # Errors
    /// [`StoreError::Engine`] where the log cannot be written, for instance on a full disk; [`StoreError::LogFull`] after the engine took
    /// nothing for long. The group must then be tried again merged into newer ones ([`Group::merge_older`]): it may be stored all the same.
    pub fn apply(&self, group: &Group) -> Result<(), StoreError> {
        if group.is_empty() {
            return Ok(());
        }
        let changes = group.changes();
        let number = if group.number == 0 { self.log.append_changes(&changes) } else { group.number };
        self.begin()?;
        if self.log.is_full() {
            // only the engine can make room
            drop(self.with_chunk_store(ChunkStore::fold_all));
            if self.log.is_full() {
                let (directory, cause) = (self.data_directory().to_owned(), self.inner().trouble.clone().unwrap_or_default());
                return Err(StoreError::LogFull { directory, cause });
            }
        }
        self.log.persist(number, &changes).map_err(|error| self.failed(EngineError::Log(error)))?;
        let mut inner = self.inner();
        inner.loaded = None;
        inner.taken_in = number;
        if let Some(mut chunk_store) = inner.chunk_store.take() {
            match chunk_store.make_room() {
                Ok(()) => {
                    chunk_store.take_in(number, &changes);
                    inner.chunk_store = Some(chunk_store);
                }
                // it goes, for it fails every call until it is opened anew; the log has the group
                Err(error) => inner.trouble = Some(error.to_string()),
            }
        }
        Ok(())
    }

    /// Takes in what records mean that are in the log, so that it is packed with them. The log has just their bytes.
    pub fn know(&self, records: &[Arc<Record>]) {
        if let Some(chunk_store) = &mut self.inner().chunk_store {
            chunk_store.know(records);
        }
    }

    /// Lets the engine forget what a start has read: a fifth of what a large store takes in memory.
    pub fn forget_pages(&self) {
        let forgotten = self.inner().chunk_store.as_ref().map_or(Ok(()), |chunk_store| chunk_store.slots().forget_pages());
        if let Err(error) = forgotten {
            tracing::warn!(%error, "the engine could not release its cache");
        }
    }

    /// Does what is due between groups: moves changes from the log to where they stay, as fast as new ones come. It ends when
    /// the next group may come, but takes up to 20 ms in any case, the longer the more waits to be moved.
    ///
    /// # Errors
    /// [`StoreError::Engine`]. Nothing that was stored is lost: the log has it, and the next call opens the engine anew.
    pub fn tend(&self, until: Instant) -> Result<(), StoreError> {
        self.with_chunk_store(|chunk_store| {
            chunk_store.tend(Instant::now(), until)?;
            chunk_store.slots().tend_cache()
        })
    }

    /// Moves all changes from the log to where they stay, as far as that takes no longer than `time_max`: the disk is then at its
    /// smallest and a start at its fastest. Returns whether all is done.
    ///
    /// # Errors
    /// As [`Store::tend`].
    pub fn settle(&self, time_max: Duration) -> Result<bool, StoreError> {
        let settled = self.with_chunk_store(|chunk_store| chunk_store.settle(Instant::now() + time_max))?;
        if settled {
            self.trim_log();
        }
        Ok(settled)
    }

    /// Whether there is nothing for [`Store::settle`] to do.
    #[cfg(test)]
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.inner().chunk_store.as_ref().is_none_or(ChunkStore::is_settled)
    }

    fn with_chunk_store<T>(&self, work: impl FnOnce(&mut ChunkStore<Arc<Engine>>) -> Result<T, EngineError>) -> Result<T, StoreError> {
        self.begin()?;
        let mut inner = self.inner();
        let outcome = inner.take(&self.directory, &*self.files).and_then(|mut chunk_store| {
            let outcome = work(&mut chunk_store)?;
            self.log.cut(chunk_store.folded());
            inner.chunk_store = Some(chunk_store);
            Ok(outcome)
        });
        // on an error the engine goes, for it fails every call until it is opened anew
        inner.trouble = outcome.as_ref().err().map(ToString::to_string);
        outcome.map_err(|source| self.failed(source))
    }

    /// Begins the store that there was no room for at the start. One that somebody else has put there meanwhile is left alone.
    fn begin(&self) -> Result<(), StoreError> {
        let mut inner = self.inner();
        if inner.begun {
            return Ok(());
        }
        if inner.lock.is_none() {
            inner.lock = Some(DirectoryLock::take(self.data_directory(), Duration::ZERO)?);
        }
        let Recovered { chunk_store, run, loaded, .. } = recovery::open(self.data_directory(), &mut |_| ())?;
        // groups have numbers already, from 1 on
        let is_used =
            chunk_store.group_number() > 0 || loaded.record_count() > 0 || !loaded.cursors.is_empty() || !loaded.clusters.is_empty();
        if is_used {
            return Err(self.failed(EngineError::Replaced));
        }
        self.log.open(&run);
        (inner.taken_in, inner.chunk_store, inner.begun) = (chunk_store.group_number(), Some(chunk_store), true);
        Ok(())
    }

    fn trim_log(&self) {
        if let Err(error) = self.log.trim() {
            tracing::warn!(%error, "cannot start a new log: the next start reads more than necessary");
        }
    }

    /// Closes the store and lets go of the directory.
    ///
    /// # Errors
    /// [`StoreError::Engine`] if the last flush fails; every group that was applied without an error is durable all the same.
    pub fn close(self) -> Result<(), StoreError> {
        let Some(mut chunk_store) = self.inner().chunk_store.take() else {
            return Ok(());
        };
        let outcome = chunk_store.settle(Instant::now() + SETTLE_AT_CLOSE_MAX).and_then(|_| chunk_store.slots().sync());
        self.log.cut(chunk_store.folded());
        drop(chunk_store);
        if outcome.is_ok() {
            self.trim_log();
        }
        if let Err(error) = outcome.as_ref().map_or(Ok(()), |()| Engine::note_pages(&self.directory)) {
            tracing::warn!(%error, "the engine could not record its free pages: the next start takes longer");
        }
        outcome.map_err(|source| self.failed(source))
    }

    fn data_directory(&self) -> &Path {
        self.directory.parent().unwrap_or(&self.directory)
    }

    /// How much room the engine's files and the log take, in bytes.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn bytes_on_disk(&self) -> u64 {
        disk_usage::bytes_of(&self.directory) + disk_usage::bytes_of(&self.data_directory().join(log::files::LOG_DIRECTORY))
    }

    /// A panic inside the lock leaves at worst no engine, and then the next group opens one: no reason to stop.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, cause: EngineError) -> StoreError {
        StoreError::Engine { directory: self.directory.clone(), cause }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // before the lock
        self.inner().chunk_store = None;
    }
}

impl Inner {
    /// The open store, opened anew if an error closed it. Never begins one, nor one that lost anything: cursors without the entries
    /// before them would be ahead.
    fn take(&mut self, directory: &Path, files: &dyn Files) -> Result<ChunkStore<Arc<Engine>>, EngineError> {
        if let Some(chunk_store) = self.chunk_store.take() {
            return Ok(chunk_store);
        }
        if !Engine::exists(directory) {
            return Err(EngineError::Replaced);
        }
        let (chunk_store, found) = recovery::reopen(directory, files, self.taken_in)?;
        if found.is_whole() && chunk_store.group_number() == self.taken_in { Ok(chunk_store) } else { Err(EngineError::Replaced) }
    }
}
