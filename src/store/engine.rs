//! The storage engine: sled 0.34.7, with one tree for each slot. Only this file and its folder know
//! sled.
//!
//! The engine does not interpret values. Errors and panics of sled become [`EngineError`].
//! `ballast` and `cache_sweeper` keep sled's log file and its page cache small.

use std::any::Any;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ballast::{Ballast, SlotLengths};
use cache_sweeper::CacheSweeper;

use self::slots::{Slot, SlotStorage, VALUE_BYTES_MAX};
use super::directory::foreign::SNAPSHOT_PREFIX;
use super::error::EngineError;

mod ballast;
mod cache_sweeper;
pub(super) mod layout;
pub(super) mod slots;

/// Capacity of sled's page cache, in bytes. The mirror is in memory, so only writes touch pages
/// (docs/develop/measurements.md §1.1).
const CACHE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Interval at which sled looks for segments of its log that it can empty and reuse. 20 ms is best
/// at 20,000 changes per second, 500 ms at 1,000 (docs/develop/measurements.md §1.1).
const CLEANING_INTERVAL_MS: u64 = 100;

/// Key of a slot's value in the slot's tree.
const VALUE_KEY: &[u8] = b"v";

/// Key of the small writes that prime a tree.
const PRIME_KEY: &[u8] = b"p";

/// Number of small writes that *prime* a tree. sled writes a whole page at its tenth fragment and
/// frees the old value at once. After nine small writes, the new value is the tenth fragment. With
/// ten, the tenth small write would already rewrite the page, and with it copy the old value
/// (docs/develop/measurements.md §1.1).
const PRIME_COUNT: u8 = 9;

/// sled's default tree. It stores the number of the layout.
const DEFAULT_TREE: &[u8] = b"__sled__default";

/// Size of a segment of sled's log, in bytes. This is sled's default; larger segments gained
/// nothing (docs/develop/measurements.md §1.1). sled refuses to open a store with another size.
const SEGMENT_BYTES: usize = 512 * 1024;

/// Maximum wait for the threads of a dropped handle to release the files. Not measured: long enough
/// for a slow disk, and well below the 30 s that a start may wait for the lock.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// Like [`BUSY_WAIT`], but while a store is closed. A shutdown has 4.7 s
/// (docs/develop/invariants.md, "Retries and shutdown"), of which folding may have used 1.5 s.
const CLOSING_WAIT: Duration = Duration::from_secs(1);

/// Interval between attempts to open the files.
const BUSY_POLL: Duration = Duration::from_millis(5);

/// File to which sled writes everything except large pages.
const ENGINE_FILE: &str = "db";

/// An open engine.
#[derive(Debug)]
pub(super) struct Engine {
    /// `None` only while the engine is dropped.
    db: Option<sled::Db>,
    file: File,
    /// `None` until the first flush.
    ballast: Mutex<Option<Ballast>>,
    lengths: Mutex<SlotLengths>,
    cache: Mutex<CacheSweeper>,
}

impl Engine {
    /// Returns whether a directory has files of an engine.
    pub(super) fn exists(directory: &Path) -> bool {
        directory.join(ENGINE_FILE).exists()
    }

    /// Opens or creates an engine. Waits for a handle of this process that is still being dropped.
    pub(super) fn open(directory: &Path) -> Result<Self, EngineError> {
        Self::open_with_timeout(directory, BUSY_WAIT)
    }

    fn open_with_timeout(directory: &Path, wait: Duration) -> Result<Self, EngineError> {
        let deadline = Instant::now() + wait;
        loop {
            match Self::try_open(directory) {
                Err(EngineError::Busy(_)) if Instant::now() < deadline => std::thread::sleep(BUSY_POLL),
                outcome => return outcome,
            }
        }
    }

    fn try_open(directory: &Path) -> Result<Self, EngineError> {
        // `flush_every_ms` only sets how often sled cleans its segments: the store syncs the engine
        // itself. `mode` is not set, because sled 0.34.7 never reads it.
        let config = sled::Config::new()
            .path(directory)
            .flush_every_ms(Some(CLEANING_INTERVAL_MS))
            .cache_capacity(CACHE_BYTES_MAX)
            .segment_size(SEGMENT_BYTES);
        let db = call_sled(|| config.open())?;
        let file = File::options().read(true).write(true).open(directory.join(ENGINE_FILE))?;
        Ok(Self { db: Some(db), file, ballast: Mutex::default(), lengths: Mutex::default(), cache: Mutex::default() })
    }

    /// Opens and closes the engine of a directory so that sled writes a snapshot, and the next
    /// start is faster.
    ///
    /// sled records where its pages are only when it opens. It then reads everything in its log
    /// that is newer than the last snapshot.
    pub(super) fn write_snapshot(directory: &Path) -> Result<(), EngineError> {
        Self::open_with_timeout(directory, CLOSING_WAIT).map(drop)
    }

    /// Removes sled's snapshots, so that sled reads its whole log when it opens.
    pub(super) fn remove_snapshots(directory: &Path) -> io::Result<()> {
        for file in fs::read_dir(directory)? {
            let file = file?;
            if file.file_name().as_encoded_bytes().starts_with(SNAPSHOT_PREFIX.as_bytes()) {
                fs::remove_file(file.path())?;
            }
        }
        Ok(())
    }

    /// Returns a value of the default tree.
    pub(super) fn get_from_default_tree(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(call_sled(|| self.db().get(key))?.map(|value| value.to_vec()))
    }

    /// Returns whether the default tree has any value.
    pub(super) fn has_values_in_default_tree(&self) -> Result<bool, EngineError> {
        call_sled(|| self.db().iter().next().transpose()).map(|first| first.is_some())
    }

    /// Writes a value to the default tree without a sync.
    pub(super) fn put_into_default_tree(&self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        call_sled(|| self.db().insert(key, value)).map(drop)
    }

    /// Evicts all pages from sled's cache. Otherwise everything that a start reads would stay
    /// there.
    pub(super) fn evict_pages(&self) -> Result<(), EngineError> {
        lock(&self.cache).sweep(self.db(), Instant::now())
    }

    /// Keeps sled's cache small. Call it between groups, because it may take as long as storing
    /// one.
    pub(super) fn sweep_cache_if_due(&self) -> Result<(), EngineError> {
        lock(&self.cache).sweep_if_due(self.db(), Instant::now())
    }

    fn adjust_ballast(&self, now: Instant) -> Result<(), EngineError> {
        let mut ballast = lock(&self.ballast);
        let ballast = match &mut *ballast {
            Some(ballast) => ballast,
            empty => empty.insert(Ballast::load(self.db(), &self.file, now)?),
        };
        ballast.adjust(self.db(), &self.file, &lock(&self.lengths), now)
    }

    fn db(&self) -> &sled::Db {
        self.db.as_ref().expect("an engine must be open until it is dropped")
    }
}

impl Drop for Engine {
    /// Only logs a panic of sled, because nothing is left to save.
    fn drop(&mut self) {
        let db = self.db.take();
        // the sweeper's trees keep the files open too
        let cache = std::mem::take(&mut *lock(&self.cache));
        if catch_unwind(AssertUnwindSafe(|| drop((cache, db)))).is_err() {
            tracing::warn!("the engine panicked while it was closed");
        }
    }
}

impl SlotStorage for Engine {
    fn list_slots(&self) -> Result<Vec<Slot>, EngineError> {
        let names = call_sled(|| Ok(self.db().tree_names()))?;
        let parse_slot = |name: &sled::IVec| {
            let slot = std::str::from_utf8(name).ok().and_then(Slot::parse);
            if slot.is_none() && *name != DEFAULT_TREE && !ballast::is_ballast(name) && !cache_sweeper::is_sweep_tree(name) {
                tracing::warn!(name = %name.escape_ascii(), "the store has a tree that this version does not write");
            }
            slot
        };
        Ok(names.iter().filter_map(parse_slot).collect())
    }

    fn get(&self, slot: Slot) -> Result<Option<Vec<u8>>, EngineError> {
        let value = call_sled(|| self.db().open_tree(slot.to_string())?.get(VALUE_KEY))?.map(|value| value.to_vec());
        lock(&self.lengths).record_read(slot, value.as_ref().map_or(0, Vec::len));
        Ok(value)
    }

    fn put(&self, slot: Slot, value: &[u8]) -> Result<(), EngineError> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(EngineError::Oversized { slot: slot.to_string(), length: value.len() });
        }
        lock(&self.lengths).record_write(slot, value.len());
        call_sled(|| open_primed_tree(self.db(), &slot.to_string())?.insert(VALUE_KEY, value)).map(drop)
    }

    fn delete(&self, slot: Slot) -> Result<(), EngineError> {
        lock(&self.lengths).record_write(slot, 0);
        call_sled(|| open_primed_tree(self.db(), &slot.to_string())?.remove(VALUE_KEY)).map(drop)
    }

    /// Makes all writes durable. sled's flush is only `sync_file_range`
    /// (docs/develop/measurements.md §1.3, trap 1), so an `fdatasync` follows.
    fn sync(&self) -> Result<(), EngineError> {
        self.adjust_ballast(Instant::now())?;
        call_sled(|| self.db().flush())?;
        self.file.sync_data()?;
        Ok(())
    }
}

/// Opens a tree and primes it, so that its next write replaces the old value.
fn open_primed_tree(db: &sled::Db, name: &str) -> sled::Result<sled::Tree> {
    let tree = db.open_tree(name)?;
    for count in 0..PRIME_COUNT {
        tree.insert(PRIME_KEY, &[count])?;
    }
    Ok(tree)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls sled and converts its errors and panics.
///
/// A panic may leave sled in a broken state, so the callers drop the engine after each error.
fn call_sled<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, EngineError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(outcome) => outcome.map_err(engine_error),
        Err(panic) => Err(EngineError::Panicked(panic_message(panic.as_ref()))),
    }
}

fn engine_error(error: sled::Error) -> EngineError {
    match error {
        sled::Error::Io(error) if error.to_string().starts_with("could not acquire lock") => EngineError::Busy(error.to_string()),
        sled::Error::Io(error) => EngineError::Io(error),
        error @ (sled::Error::CollectionNotFound(_)
        | sled::Error::Unsupported(_)
        | sled::Error::ReportableBug(_)
        | sled::Error::Corruption { .. }) => EngineError::Damaged(error.to_string()),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_engine_is_an_error() {
        let outcome = call_sled(|| -> sled::Result<()> { panic!("assertion {}", 7) });
        assert_eq!(outcome.unwrap_err().to_string(), "the engine panicked: assertion 7");
    }

    /// `fdatasync` of a device fails with EINVAL (fdatasync(2)). By then sled must have written
    /// everything.
    #[test]
    fn a_sync_ends_with_an_fdatasync_after_the_flush() {
        let directory = tempfile::tempdir().unwrap();
        let mut engine = Engine::open(directory.path()).unwrap();
        engine.sync().unwrap();
        let value = *b"what is put between two syncs";
        engine.put(Slot { kind: super::slots::SlotKind::Chunk, number: 0 }, &value).unwrap();
        engine.file = File::open("/dev/null").unwrap();
        let EngineError::Io(error) = engine.sync().unwrap_err() else { panic!("the kernel returned no error") };
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let written = fs::read(directory.path().join(ENGINE_FILE)).unwrap();
        assert!(memchr::memmem::find(&written, &value).is_some(), "it was synced before it was written");
    }

    #[test]
    fn a_value_that_sled_would_store_as_a_blob_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let engine = Engine::open(directory.path()).unwrap();
        let slot = Slot { kind: super::slots::SlotKind::Chunk, number: 0 };
        engine.put(slot, &vec![7; VALUE_BYTES_MAX]).unwrap();
        let refused = engine.put(slot, &vec![7; VALUE_BYTES_MAX + 1]);
        assert!(matches!(refused, Err(EngineError::Oversized { length, .. }) if length == VALUE_BYTES_MAX + 1));
    }

    #[test]
    fn corruption_counts_as_damage_and_a_full_disk_does_not() {
        let full = engine_error(sled::Error::Io(io::ErrorKind::StorageFull.into()));
        assert!(!full.is_damage(), "{full}");
        let corrupt = engine_error(sled::Error::Corruption { at: None, bt: () });
        assert!(corrupt.is_damage(), "{corrupt}");
    }
}
