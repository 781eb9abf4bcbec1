//! The store: the mirrored entries on disk, in atomic groups with the cursors that cover them.
//!
//! A [`Group`] is written to the log first and folded into chunks later. The committer and the
//! storing thread use the store through [`Store`] and [`WriteAheadLog`]. At a start,
//! [`Store::load`] returns the [`StoreContents`]. Values stay bytes; the caller decodes them.
//! docs/develop/store.md describes the layout.
//!
//! The store keeps three invariants of docs/develop/invariants.md: 1 (a cursor is never ahead of
//! its entries), 7 (the newest and the last good bytes survive) and 8 (unreadable data costs a
//! resync, never the start).
//!
//! Each module imports only the ones before it: `directory`, `encoding` (bytes of keys, values and
//! groups), `engine` (sled and its slots), `log`, `objects` (chunks in slots), `manifest`, `chunks`
//! (the chunks of an open store, and folding) and `recovery` (opening a store).

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

pub use disk_usage::disk_usage_by_class;
pub use encoding::group::Group;
pub use error::{EngineError, StoreError};
pub use inspection::{Inspection, inspect};
pub use log::WriteAheadLog;
pub use recovery::load::StoreContents;
pub use recovery::partial_store::PartialStore;

use chunks::chunk_store::ChunkStore;
use directory::lock::DirectoryLock;
use engine::Engine;
use engine::slots::SlotStorage;
use log::files::{LogDirectory, LogFiles};
use recovery::RecoveredStore;

use crate::model::Record;

/// Name of the engine's directory in the data directory.
const ENGINE_DIRECTORY: &str = "store";

/// Maximum time for folding when the store is closed, well below the 4.7 s of a shutdown
/// (docs/develop/invariants.md, "Retries and shutdown").
const FOLD_AT_CLOSE_MAX: Duration = Duration::from_millis(1_500);

/// An open store. It holds the lock of the data directory until it is dropped.
#[derive(Debug)]
pub struct Store {
    /// Directory of the engine's files.
    directory: PathBuf,
    log: Arc<WriteAheadLog>,
    files: Arc<dyn LogFiles>,
    inner: Mutex<OpenStoreState>,
}

#[derive(Debug, Default)]
struct OpenStoreState {
    /// `None` after an error, until it is reopened.
    chunk_store: Option<ChunkStore<Engine>>,
    /// False until there is space for a new store.
    is_created: bool,
    /// Last group that is synced in the log, and that `chunk_store` contains if it is open.
    stored_group: u64,
    /// Last error of the engine. `None` once it works again.
    last_engine_error: Option<String>,
    /// Contents that were read while the store was opened, until [`Store::load`] moves them out.
    contents: Option<StoreContents>,
    /// Dropped last, so that no other process starts before the engine is closed. `None` until
    /// there is space for the lock file.
    lock: Option<DirectoryLock>,
}

/// Result of opening a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenReport {
    /// The old store, if it could not be used.
    pub set_aside: Option<SetAsideStore>,
    /// True if the store is new and empty.
    pub created: bool,
    /// Losses since the last start, human-readable. Empty if nothing was lost. Lost entries are
    /// read from the remote clusters again.
    pub losses: Vec<String>,
}

/// A store that this version could not use and that was kept for inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAsideStore {
    /// Its path.
    pub path: PathBuf,
    /// Reason why it could not be used.
    pub reason: String,
}

impl Store {
    /// Opens or creates the store in a data directory.
    ///
    /// While another process has the lock, this waits up to `lock_wait` (30 s in production,
    /// docs/develop/invariants.md, 8) and changes nothing. A store that cannot be read, or that a
    /// newer version wrote, is renamed to `set-aside-…` and replaced by a new one; the
    /// [`OpenReport`] has its path.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::NotWritable`], or [`StoreError::Engine`] if the
    /// machine is the cause and not the files.
    #[cfg(any(test, feature = "internals"))]
    pub fn open(directory: &Path, lock_wait: Duration) -> Result<(Self, OpenReport), StoreError> {
        Self::open_with_early_lookups(directory, lock_wait, &mut |_| ())
    }

    /// Opens the store like [`Store::open`], and offers a [`PartialStore`] for lookups before
    /// everything is read.
    ///
    /// Once the lock is held, this calls `offer` with `None`. It calls `offer` again with the
    /// partial store as soon as lookups are possible, if nothing is damaged. If opening has to
    /// start again, another `None` withdraws the partial store.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with_early_lookups(
        directory: &Path,
        lock_wait: Duration,
        offer: &mut dyn FnMut(Option<PartialStore>),
    ) -> Result<(Self, OpenReport), StoreError> {
        // a full disk does not prevent a start without a store, which is then created later
        let is_new = !Engine::exists(&directory.join(ENGINE_DIRECTORY));
        let lock = match DirectoryLock::acquire(directory, lock_wait) {
            Err(error) if is_new && error.is_full() => return Ok(Self::new_without_space(directory, None)),
            outcome => outcome?,
        };
        directory::permissions::restrict_to_owner(directory);
        let recovered = match recovery::open(directory, offer) {
            Err(error) if is_new && error.is_full() => return Ok(Self::new_without_space(directory, Some(lock))),
            outcome => outcome?,
        };
        let RecoveredStore { chunk_store, recovered_log, files, contents, opened } = recovered;
        let log = Arc::new(WriteAheadLog::new_closed(Arc::clone(&files)));
        log.open(&recovered_log);
        let (stored_group, contents, lock) = (chunk_store.group_number(), Some(contents), Some(lock));
        let inner =
            OpenStoreState { chunk_store: Some(chunk_store), is_created: true, stored_group, last_engine_error: None, contents, lock };
        Ok((Self { directory: directory.join(ENGINE_DIRECTORY), log, files, inner: Mutex::new(inner) }, opened))
    }

    /// Returns a store without files. The first group for which there is space creates them.
    fn new_without_space(directory: &Path, lock: Option<DirectoryLock>) -> (Self, OpenReport) {
        let files: Arc<dyn LogFiles> = Arc::new(LogDirectory::in_data_directory(directory));
        let inner = OpenStoreState { contents: Some(StoreContents::default()), lock, ..OpenStoreState::default() };
        let log = Arc::new(WriteAheadLog::new_closed(Arc::clone(&files)));
        let store = Self { directory: directory.join(ENGINE_DIRECTORY), log, files, inner: Mutex::new(inner) };
        (store, OpenReport { set_aside: None, created: true, losses: Vec::new() })
    }

    /// Returns the log, to which the committer appends each group first.
    #[must_use]
    pub const fn log(&self) -> &Arc<WriteAheadLog> {
        &self.log
    }

    /// Returns everything that is stored. The first call returns what opening has read; later calls
    /// read it again.
    ///
    /// # Errors
    /// [`StoreError::Engine`], only in later calls.
    pub fn load(&self) -> Result<StoreContents, StoreError> {
        let mut inner = self.inner();
        if let Some(loaded) = inner.contents.take() {
            return Ok(loaded);
        }
        drop(inner);
        self.with_chunk_store(|chunk_store| recovery::load::load_contents(chunk_store, BTreeMap::new()).map(|scan| scan.contents))
    }

    /// Stores a group atomically. The group is durable in the log when this returns. A group
    /// without a number is first appended to the log.
    ///
    /// # Errors
    /// [`StoreError::Engine`] if the log cannot be written, for example on a full disk;
    /// [`StoreError::LogFull`] if the engine has failed for long. The caller must then try again
    /// with the group merged into newer ones ([`Group::merge_older`]). Even after an error, the
    /// group may have been stored.
    pub fn apply(&self, group: &Group) -> Result<(), StoreError> {
        if group.is_empty() {
            return Ok(());
        }
        let changes = group.changes();
        let number = if group.number == 0 { self.log.append_changes(&changes) } else { group.number };
        self.create_if_missing()?;
        if self.log.is_full() {
            // only the engine can make space
            drop(self.with_chunk_store(ChunkStore::fold_all));
            if self.log.is_full() {
                let (directory, cause) = (self.data_directory().to_owned(), self.inner().last_engine_error.clone().unwrap_or_default());
                return Err(StoreError::LogFull { directory, cause });
            }
        }
        if let Err(error) = self.log.persist(number, &changes) {
            let error = self.engine_error(EngineError::Log(error));
            if let Some(history) = self.log.history().filter(|_| error.is_full()) {
                history.report_full_disk();
            }
            return Err(error);
        }
        if let Some(history) = self.log.history() {
            history.confirm_synced(number);
        }
        let mut inner = self.inner();
        inner.contents = None;
        inner.stored_group = number;
        if let Some(mut chunk_store) = inner.chunk_store.take() {
            match chunk_store.fold_excess() {
                Ok(()) => {
                    chunk_store.add_changes(number, &changes, &group.chunks);
                    inner.chunk_store = Some(chunk_store);
                }
                // the engine is dropped, because it fails every call until it is reopened; the log
                // has the group
                Err(error) => inner.last_engine_error = Some(error.to_string()),
            }
        }
        Ok(())
    }

    /// Replaces pending records that were read from the log by decoded ones, and packs them. The
    /// log has only the bytes of a value; with the decoded value, the indexed fields are packed
    /// too.
    pub fn add_decoded(&self, records: &[Arc<Record>]) {
        if let Some(chunk_store) = &mut self.inner().chunk_store {
            chunk_store.add_decoded(records);
        }
    }

    /// Evicts all pages from the engine's cache. The pages that a start has read use a fifth of the
    /// memory of a large store.
    pub fn evict_pages(&self) {
        let outcome = self.inner().chunk_store.as_ref().map_or(Ok(()), |chunk_store| chunk_store.storage().evict_pages());
        if let Err(error) = outcome {
            tracing::warn!(%error, "cannot evict the pages in the engine's cache");
        }
    }

    /// Folds changes from the log into chunks, at the rate at which new changes arrive. Stops when
    /// the next group is due (`until`), but not before a time has passed that grows with the fill
    /// level of the log (up to 20 ms).
    ///
    /// # Errors
    /// [`StoreError::Engine`]. Nothing is lost: the log has the changes, and the next call reopens
    /// the engine.
    pub fn fold_due(&self, until: Instant) -> Result<(), StoreError> {
        self.with_chunk_store(|chunk_store| {
            chunk_store.fold_due(Instant::now(), until)?;
            chunk_store.storage().sweep_cache_if_due()
        })
    }

    /// Folds all changes from the log into chunks, for at most `time_max`. Afterwards the store has
    /// its minimum size, and the next start takes the least time. Returns whether everything is
    /// folded.
    ///
    /// # Errors
    /// As [`Store::fold_due`].
    pub fn fold_within(&self, time_max: Duration) -> Result<bool, StoreError> {
        let is_done = self.with_chunk_store(|chunk_store| chunk_store.fold_until(Instant::now() + time_max))?;
        if is_done {
            self.rotate_log();
            if let Some(history) = self.log.history() {
                history.request_seal();
            }
        }
        Ok(is_done)
    }

    /// Returns whether [`Store::fold_within`] has nothing to do.
    #[cfg(test)]
    #[must_use]
    pub fn is_fully_folded(&self) -> bool {
        self.inner().chunk_store.as_ref().is_none_or(ChunkStore::is_fully_folded)
    }

    fn with_chunk_store<T>(&self, work: impl FnOnce(&mut ChunkStore<Engine>) -> Result<T, EngineError>) -> Result<T, StoreError> {
        self.create_if_missing()?;
        let mut inner = self.inner();
        let outcome = inner.take_chunk_store(&self.directory, &*self.files).and_then(|mut chunk_store| {
            let outcome = work(&mut chunk_store)?;
            self.log.remove_folded_files(chunk_store.checkpoint_group());
            inner.chunk_store = Some(chunk_store);
            Ok(outcome)
        });
        // the engine is dropped, because it fails every call until it is reopened
        inner.last_engine_error = outcome.as_ref().err().map(ToString::to_string);
        outcome.map_err(|source| self.engine_error(source))
    }

    /// Creates the store for which the start had no space. If another process has created one in
    /// the meantime, it is not changed.
    fn create_if_missing(&self) -> Result<(), StoreError> {
        let mut inner = self.inner();
        if inner.is_created {
            return Ok(());
        }
        if inner.lock.is_none() {
            inner.lock = Some(DirectoryLock::acquire(self.data_directory(), Duration::ZERO)?);
        }
        let RecoveredStore { chunk_store, recovered_log, contents, .. } = recovery::open(self.data_directory(), &mut |_| ())?;
        // the waiting groups are already numbered from 1, so the store must be empty
        let is_used =
            chunk_store.group_number() > 0 || contents.record_count() > 0 || !contents.cursors.is_empty() || !contents.clusters.is_empty();
        if is_used {
            return Err(self.engine_error(EngineError::Replaced));
        }
        self.log.open(&recovered_log);
        (inner.stored_group, inner.chunk_store, inner.is_created) = (chunk_store.group_number(), Some(chunk_store), true);
        Ok(())
    }

    fn rotate_log(&self) {
        if let Err(error) = self.log.rotate_if_folded() {
            tracing::warn!(%error, "cannot start a new log: the next start reads more than necessary");
        }
    }

    /// Closes the store and releases the lock.
    ///
    /// # Errors
    /// [`StoreError::Engine`] if the last flush fails. All groups that were applied without an
    /// error are durable nevertheless.
    pub fn close(self) -> Result<(), StoreError> {
        let Some(mut chunk_store) = self.inner().chunk_store.take() else {
            return Ok(());
        };
        let outcome = chunk_store.fold_until(Instant::now() + FOLD_AT_CLOSE_MAX).and_then(|_| chunk_store.storage().sync());
        self.log.remove_folded_files(chunk_store.checkpoint_group());
        drop(chunk_store);
        if outcome.is_ok() {
            self.rotate_log();
        }
        if let Err(error) = outcome.as_ref().map_or(Ok(()), |()| Engine::write_snapshot(&self.directory)) {
            tracing::warn!(%error, "cannot write a snapshot of the engine: the next start takes longer");
        }
        outcome.map_err(|source| self.engine_error(source))
    }

    fn data_directory(&self) -> &Path {
        self.directory.parent().unwrap_or(&self.directory)
    }

    /// Returns the disk space of the engine's files and the log, in bytes.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn bytes_on_disk(&self) -> u64 {
        disk_usage::disk_usage_of(&self.directory) + disk_usage::disk_usage_of(&self.data_directory().join(log::files::LOG_DIRECTORY))
    }

    /// Locks the state. A panic leaves the state valid: at worst the engine is closed, and the next
    /// fold reopens it.
    fn inner(&self) -> MutexGuard<'_, OpenStoreState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn engine_error(&self, cause: EngineError) -> StoreError {
        StoreError::Engine { directory: self.directory.clone(), cause }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // closed before the lock is released
        self.inner().chunk_store = None;
    }
}

impl OpenStoreState {
    /// Moves out the open chunk store, or reopens it after an error. Never creates a store. Never
    /// returns a store that lost data, because its cursors would be ahead of its entries.
    fn take_chunk_store(&mut self, directory: &Path, files: &dyn LogFiles) -> Result<ChunkStore<Engine>, EngineError> {
        if let Some(chunk_store) = self.chunk_store.take() {
            return Ok(chunk_store);
        }
        if !Engine::exists(directory) {
            return Err(EngineError::Replaced);
        }
        let (chunk_store, damage) = recovery::reopen(directory, files, self.stored_group)?;
        if damage.is_whole() && chunk_store.group_number() == self.stored_group { Ok(chunk_store) } else { Err(EngineError::Replaced) }
    }
}
