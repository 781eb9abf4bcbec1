//! The engine: sled 0.34.7, and the only file that knows it.
//!
//! Owns: the engine's settings, its batches, its flush and its panics. Receives: keys and values as bytes. Emits: [`EngineError`], never a
//! panic and never a type of sled's. Deliberately lacks: what the bytes mean, locks between processes (`lock`) and repairs (`recovery`).

use std::any::Any;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::EngineError;

/// Pages that sled keeps in memory, in bytes. Everything is in the views, so only writes touch pages: at the 305 raw bytes an entry of
/// measurements.md §1.1, 64 MiB hold some 200,000 entries; "The warm store" lowers it to 4 MB (measurements.md §1.1).
const CACHE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// sled's own default; larger segments brought nothing (measurements.md §1.1). It cannot change without a migration: sled refuses.
const SEGMENT_BYTES: usize = 512 * 1024;

/// How long to wait until the threads of a handle just dropped let go of the file. Not measured: generous against a slow disk, and well
/// below the 30 s that a start may wait for the lock.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// How often to look whether they did.
const BUSY_POLL: Duration = Duration::from_millis(5);

/// The file that sled writes everything but big pages to.
const LOG_FILE: &str = "db";

/// The beginning of the names of sled's snapshots, which it can do without (measurements.md §1.3, trap 6).
const SNAPSHOT_PREFIX: &str = "snap.";

/// One write: a key, and its value or `None` to delete it.
pub(super) type Write = (Vec<u8>, Option<Vec<u8>>);

/// An open engine with one ordered map of bytes to bytes.
#[derive(Debug)]
pub(super) struct Engine {
    map: sled::Db,
    log: File,
}

impl Engine {
    /// Whether there are files of an engine in the directory.
    pub(super) fn exists(directory: &Path) -> bool {
        directory.join(LOG_FILE).exists()
    }

    /// Opens or creates. Waits for a handle of this process that is still being dropped.
    pub(super) fn open(directory: &Path) -> Result<Self, EngineError> {
        let deadline = Instant::now() + BUSY_WAIT;
        loop {
            match Self::open_once(directory) {
                Err(EngineError::Busy(_)) if Instant::now() < deadline => std::thread::sleep(BUSY_POLL),
                outcome => return outcome,
            }
        }
    }

    fn open_once(directory: &Path) -> Result<Self, EngineError> {
        // No background flush: each group is flushed by its writer. `mode` is left alone: sled 0.34.7 never reads it.
        let config = sled::Config::new().path(directory).flush_every_ms(None).cache_capacity(CACHE_BYTES_MAX).segment_size(SEGMENT_BYTES);
        let map = guarded(|| config.open())?;
        let log = File::options().read(true).write(true).open(directory.join(LOG_FILE))?;
        Ok(Self { map, log })
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

    /// One value.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(guarded(|| self.map.get(key))?.map(|value| value.to_vec()))
    }

    /// Every key that begins with `prefix` and its value, in the order of the keys.
    pub(super) fn scan(&self, prefix: &[u8], mut visit: impl FnMut(&[u8], &[u8])) -> Result<(), EngineError> {
        guarded(|| {
            for pair in self.map.scan_prefix(prefix) {
                let (key, value) = pair?;
                visit(&key, &value);
            }
            Ok(())
        })
    }

    /// Applies all the writes or, if the process is killed, none. After an *error* some of them may show: the caller must open anew and
    /// write them again. Survives a kill; only [`Self::sync`] makes it survive a power cut.
    pub(super) fn apply(&self, writes: Vec<Write>) -> Result<(), EngineError> {
        let mut batch = sled::Batch::default();
        for (key, value) in writes {
            match value {
                Some(value) => batch.insert(key, value),
                None => batch.remove(key),
            }
        }
        guarded(|| self.map.apply_batch(batch))
    }

    /// Makes everything applied durable. sled's flush is only `sync_file_range` (trap 1), hence an `fdatasync` of our own. A page above
    /// a quarter of a segment goes to a file of its own that sled never syncs (trap 2): those survive a kill, not yet a power cut.
    pub(super) fn sync(&self) -> Result<(), EngineError> {
        guarded(|| self.map.flush())?;
        self.log.sync_data()?;
        Ok(())
    }

    /// Drops the engine; a panic of sled's while it does so is no more than logged, as there is nothing left to save.
    pub(super) fn discard(self) {
        if catch_unwind(AssertUnwindSafe(|| drop(self))).is_err() {
            tracing::warn!("the engine panicked while it was closed");
        }
    }
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

    #[test]
    fn a_full_disk_is_the_machines_fault_and_corruption_is_not() {
        let full = translate(sled::Error::Io(io::ErrorKind::StorageFull.into()));
        assert!(full.is_environment(), "{full}");
        let corrupt = translate(sled::Error::Corruption { at: None, bt: () });
        assert!(!corrupt.is_environment(), "{corrupt}");
    }
}
