//! How full each queue on a change's way ever was.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The highest fill of a queue since the start.
#[derive(Debug, Default)]
pub struct HighWaterMark(AtomicUsize);

/// The queues between the config directory, the remotes and the store.
#[derive(Debug, Default)]
pub struct QueueMarks {
    /// Commands for the writer, of [`super::QUEUE_LENGTH_MAX`].
    pub commands: HighWaterMark,
    /// Their bytes, of [`super::QUEUE_BYTES_MAX`].
    pub command_bytes: HighWaterMark,
    /// Changes that wait for the store.
    pub changes: HighWaterMark,
    /// Their bytes.
    pub change_bytes: HighWaterMark,
    /// Bytes of the feed's ring, with the objects that it keeps.
    pub ring_bytes: HighWaterMark,
    /// Events of the config directory for the registry.
    pub directory_events: HighWaterMark,
}

impl HighWaterMark {
    /// The queue holds so many now.
    pub fn note(&self, length: usize) {
        self.0.fetch_max(length, Ordering::Relaxed);
    }

    /// The most that it ever held.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
