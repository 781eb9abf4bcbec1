//! The engine: sled 0.34.7. This file, its `ballast` and its `cache` alone know it.
//!
//! Owns: the engine's settings, how a slot becomes a tree, its flush and its panics. Receives: values as bytes. Emits: [`EngineError`], never a
//! panic and never a type of sled's. Deliberately lacks: what the bytes mean, locks between processes (`lock`) and repairs (`recovery`).

use std::any::Any;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ballast::{Ballast, Lengths};
use cache::Cache;

use self::slots::{Slot, Slots, VALUE_BYTES_MAX};
use super::error::EngineError;

mod ballast;
mod cache;
pub(super) mod format;
pub(super) mod slots;

/// Pages that sled keeps in memory, in bytes. Everything is in the views, so only writes touch pages (docs/develop/measurements.md §1.1).
const CACHE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// How often sled looks whether segments of its log can be emptied for reuse, which it does nowhere else; 20 ms are best at 20,000
/// changes/s, 500 at 1,000 (docs/develop/measurements.md §1.1).
const CLEANING_INTERVAL_MS: u64 = 100;

/// The key of a slot's value in the slot's tree.
const VALUE_KEY: &[u8] = b"v";

/// The key of what primes it.
const PRIME_KEY: &[u8] = b"p";

/// How many small writes *prime* a slot: the next one is the tenth link of the page, and sled then writes the page anew as a whole, which frees the old value at
/// once. With ten, the tenth itself would copy the old value (docs/develop/measurements.md §1.1).
const PRIME_COUNT: u8 = 9;

/// The tree that sled always has. It stores the number of the layout.
const DEFAULT_TREE: &[u8] = b"__sled__default";

/// sled's own default; larger segments brought nothing (docs/develop/measurements.md §1.1). It cannot change without a migration: sled refuses.
const SEGMENT_BYTES: usize = 512 * 1024;

/// How long to wait until the threads of a handle just dropped let go of the file. Not measured: generous against a slow disk, and well
/// below the 30 s that a start may wait for the lock.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// How long the close of a handle waits for its threads: a shutdown has 4.7 s for everything (docs/develop/invariants.md, "Retries and shutdown") and settling may have taken 1.5 s of them.
const CLOSING_WAIT: Duration = Duration::from_secs(1);

/// How often to look whether its threads have ended.
const BUSY_POLL: Duration = Duration::from_millis(5);

/// The file that sled writes everything but big pages to.
const LOG_FILE: &str = "db";

/// The beginning of the names of sled's snapshots, which it can do without (docs/develop/measurements.md §1.3, trap 6).
const SNAPSHOT_PREFIX: &str = "snap.";

/// An open engine: one tree for each slot.
#[derive(Debug)]
pub(super) struct Engine {
    /// There until it is dropped.
    map: Option<sled::Db>,
    log: File,
    /// From the first flush on.
    ballast: Mutex<Option<Ballast>>,
    lengths: Mutex<Lengths>,
    cache: Mutex<Cache>,
}

impl Engine {
    /// Whether there are files of an engine in the directory.
    pub(super) fn exists(directory: &Path) -> bool {
        directory.join(LOG_FILE).exists()
    }

    /// Opens or creates. Waits for a handle of this process that is still being dropped.
    pub(super) fn open(directory: &Path) -> Result<Self, EngineError> {
        Self::open_within(directory, BUSY_WAIT)
    }

    fn open_within(directory: &Path, wait: Duration) -> Result<Self, EngineError> {
        let deadline = Instant::now() + wait;
        loop {
            match Self::open_once(directory) {
                Err(EngineError::Busy(_)) if Instant::now() < deadline => std::thread::sleep(BUSY_POLL),
                outcome => return outcome,
            }
        }
    }

    fn open_once(directory: &Path) -> Result<Self, EngineError> {
        // each group is flushed by its writer; `mode` is left alone: sled 0.34.7 never reads it
        let config = sled::Config::new()
            .path(directory)
            .flush_every_ms(Some(CLEANING_INTERVAL_MS))
            .cache_capacity(CACHE_BYTES_MAX)
            .segment_size(SEGMENT_BYTES);
        let map = guarded(|| config.open())?;
        let log = File::options().read(true).write(true).open(directory.join(LOG_FILE))?;
        Ok(Self { map: Some(map), log, ballast: Mutex::default(), lengths: Mutex::default(), cache: Mutex::default() })
    }

    /// Opens and closes the engine of a directory, so that it opens faster the next time: sled notes where its pages are when it opens and never
    /// else, reads all of its log that is newer, and makes it durable anew.
    pub(super) fn note_pages(directory: &Path) -> Result<(), EngineError> {
        Self::open_within(directory, CLOSING_WAIT).map(drop)
    }

    /// Removes the snapshots, from which sled would start; without them it reads its whole log.
    pub(super) fn remove_snapshots(directory: &Path) -> io::Result<()> {
        for file in fs::read_dir(directory)? {
            let file = file?;
            if file.file_name().as_encoded_bytes().starts_with(SNAPSHOT_PREFIX.as_bytes()) {
                fs::remove_file(file.path())?;
            }
        }
        Ok(())
    }

    /// One value of the default tree.
    pub(super) fn get_plain(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(guarded(|| self.map().get(key))?.map(|value| value.to_vec()))
    }

    /// Whether the default tree has anything.
    pub(super) fn has_plain(&self) -> Result<bool, EngineError> {
        guarded(|| self.map().iter().next().transpose()).map(|first| first.is_some())
    }

    /// Writes a value to the default tree, without syncing.
    pub(super) fn put_plain(&self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        guarded(|| self.map().insert(key, value)).map(drop)
    }

    /// Makes sled let go of the pages that were read: all that a start reads would stay in memory otherwise.
    pub(super) fn forget_pages(&self) -> Result<(), EngineError> {
        lock(&self.cache).sweep(self.map(), Instant::now())
    }

    /// Keeps sled's cache small. To be called between groups, as it may take as long as storing one.
    pub(super) fn tend_cache(&self) -> Result<(), EngineError> {
        lock(&self.cache).tend(self.map(), Instant::now())
    }

    fn tend_ballast(&self, now: Instant) -> Result<(), EngineError> {
        let mut held = lock(&self.ballast);
        let ballast = match &mut *held {
            Some(ballast) => ballast,
            empty => empty.insert(Ballast::found(self.map(), &self.log, now)?),
        };
        ballast.tend(self.map(), &self.log, &lock(&self.lengths), now)
    }

    fn map(&self) -> &sled::Db {
        self.map.as_ref().expect("an engine must be open until it is dropped")
    }
}

impl Drop for Engine {
    /// A panic of sled's meanwhile is no more than logged, as there is nothing left to save.
    fn drop(&mut self) {
        let map = self.map.take();
        // its trees keep the files open, too
        let cache = std::mem::take(&mut *lock(&self.cache));
        if catch_unwind(AssertUnwindSafe(|| drop((cache, map)))).is_err() {
            tracing::warn!("the engine panicked while it was closed");
        }
    }
}

impl Slots for Engine {
    fn slots(&self) -> Result<Vec<Slot>, EngineError> {
        let names = guarded(|| Ok(self.map().tree_names()))?;
        let slot = |name: &sled::IVec| {
            let slot = std::str::from_utf8(name).ok().and_then(Slot::parse);
            if slot.is_none() && *name != DEFAULT_TREE && !ballast::is_ballast(name) && !cache::is_for_sweeping(name) {
                tracing::warn!(name = %name.escape_ascii(), "the store has a tree that this version does not write");
            }
            slot
        };
        Ok(names.iter().filter_map(slot).collect())
    }

    fn get(&self, slot: Slot) -> Result<Option<Vec<u8>>, EngineError> {
        let value = guarded(|| self.map().open_tree(slot.to_string())?.get(VALUE_KEY))?.map(|value| value.to_vec());
        lock(&self.lengths).read(slot, value.as_ref().map_or(0, Vec::len));
        Ok(value)
    }

    fn put(&self, slot: Slot, value: &[u8]) -> Result<(), EngineError> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(EngineError::Oversized { slot: slot.to_string(), length: value.len() });
        }
        lock(&self.lengths).write(slot, value.len());
        guarded(|| primed(self.map(), &slot.to_string())?.insert(VALUE_KEY, value)).map(drop)
    }

    fn delete(&self, slot: Slot) -> Result<(), EngineError> {
        lock(&self.lengths).write(slot, 0);
        guarded(|| primed(self.map(), &slot.to_string())?.remove(VALUE_KEY)).map(drop)
    }

    /// sled's flush is only `sync_file_range` (trap 1), hence an `fdatasync` of our own.
    fn sync(&self) -> Result<(), EngineError> {
        self.tend_ballast(Instant::now())?;
        guarded(|| self.map().flush())?;
        self.log.sync_data()?;
        Ok(())
    }
}

/// The tree of a name, so that its next write replaces what it holds.
fn primed(map: &sled::Db, name: &str) -> sled::Result<sled::Tree> {
    let tree = map.open_tree(name)?;
    for count in 0..PRIME_COUNT {
        tree.insert(PRIME_KEY, &[count])?;
    }
    Ok(tree)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a call of sled's and makes its errors and panics ours. What a panic leaves half done is never used again: the callers drop the
/// engine after every error.
fn guarded<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, EngineError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(outcome) => outcome.map_err(translate),
        Err(panic) => Err(EngineError::Panicked(panic_text(panic.as_ref()))),
    }
}

fn translate(error: sled::Error) -> EngineError {
    match error {
        sled::Error::Io(error) if error.to_string().starts_with("could not acquire lock") => EngineError::Busy(error.to_string()),
        sled::Error::Io(error) => EngineError::Io(error),
        error @ (sled::Error::CollectionNotFound(_)
        | sled::Error::Unsupported(_)
        | sled::Error::ReportableBug(_)
        | sled::Error::Corruption { .. }) => EngineError::Damaged(error.to_string()),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_engine_is_an_error() {
        let outcome = guarded(|| -> sled::Result<()> { panic!("assertion {}", 7) });
        assert_eq!(outcome.unwrap_err().to_string(), "the engine panicked: assertion 7");
    }

    /// A device has nothing to sync, and says so (EINVAL, fdatasync(2)): by then sled must have written everything.
    #[test]
    fn a_sync_ends_with_an_fdatasync_behind_the_flush() {
        let directory = tempfile::tempdir().unwrap();
        let mut engine = Engine::open(directory.path()).unwrap();
        engine.sync().unwrap();
        let value = *b"what is put between two syncs";
        engine.put(Slot { kind: super::slots::SlotKind::Chunk, number: 0 }, &value).unwrap();
        engine.log = File::open("/dev/null").unwrap();
        let EngineError::Io(error) = engine.sync().unwrap_err() else { panic!("no error of the kernel") };
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let written = fs::read(directory.path().join(LOG_FILE)).unwrap();
        assert!(memchr::memmem::find(&written, &value).is_some(), "it was synced before it was written");
    }

    #[test]
    fn a_value_that_sled_would_keep_in_a_file_of_its_own_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let engine = Engine::open(directory.path()).unwrap();
        let slot = Slot { kind: super::slots::SlotKind::Chunk, number: 0 };
        engine.put(slot, &vec![7; VALUE_BYTES_MAX]).unwrap();
        let refused = engine.put(slot, &vec![7; VALUE_BYTES_MAX + 1]);
        assert!(matches!(refused, Err(EngineError::Oversized { length, .. }) if length == VALUE_BYTES_MAX + 1));
    }

    #[test]
    fn a_full_disk_is_the_machines_fault_and_corruption_is_not() {
        let full = translate(sled::Error::Io(io::ErrorKind::StorageFull.into()));
        assert!(full.is_environment(), "{full}");
        let corrupt = translate(sled::Error::Corruption { at: None, bt: () });
        assert!(!corrupt.is_environment(), "{corrupt}");
    }
}
