//! High-water marks of the queues between remotes and store, the duration of the steps, and counts
//! of changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::feed::Announcement;
use crate::instruments::Histogram;
use crate::model::{Kind, Scope};

/// Maximum number of scopes whose changes are counted. The largest mesh has 511 clusters with 9
/// kinds each: the mirrored ones, [`Kind::NodeIp`](crate::model::Kind::NodeIp), `Cluster` and
/// `Problem`. The limit allows as many again for removed clusters. Above it all counts restart from
/// zero, as after a start.
const COUNTED_SCOPES_MAX: usize = 2 * 511 * 9;

/// Number of changes in a scope since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChangeCounts {
    /// Keys that were added or updated.
    pub upserts: u64,
    /// Keys that were deleted.
    pub deletes: u64,
}

/// Highest fill of a queue since the start.
#[derive(Debug, Default)]
pub struct HighWaterMark(AtomicUsize);

/// High-water marks, durations and counts of the steps between the config directory or the remotes
/// and the store.
#[derive(Debug, Default)]
pub struct PipelineMetrics {
    /// Commands in the committer's queue, of at most [`super::QUEUE_LENGTH_MAX`].
    pub commands: HighWaterMark,
    /// Bytes of the commands in the committer's queue, of at most [`super::QUEUE_BYTES_MAX`].
    pub command_bytes: HighWaterMark,
    /// Changes that wait for the store.
    pub changes: HighWaterMark,
    /// Bytes of the changes that wait for the store.
    pub change_bytes: HighWaterMark,
    /// Bytes of the feed's ring, including the objects that it keeps.
    pub ring_bytes: HighWaterMark,
    /// Events of the config directory that wait for the registry.
    pub directory_events: HighWaterMark,
    /// Times from the first command of a batch until the batch is published.
    pub publish: Histogram,
    /// Times from the start of applying a batch until the batch is published.
    pub commit: Histogram,
    changes_counted: Mutex<BTreeMap<Scope, ChangeCounts>>,
    stored: OnceLock<Arc<Histogram>>,
    /// True while the newest changes cannot be written to the log.
    pub log_fails: AtomicBool,
}

impl PipelineMetrics {
    /// Counts the announcements of a batch by scope.
    pub(super) fn count(&self, announcements: &[Announcement]) {
        let mut all = self.changes_counted.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() > COUNTED_SCOPES_MAX {
            all.clear();
        }
        // neighbouring announcements mostly have the same scope
        for run in announcements.chunk_by(|left, right| left.key.kind == right.key.kind && left.key.cluster == right.key.cluster) {
            let (key, deletes) = (&run[0].key, run.iter().filter(|announcement| announcement.deleted.is_some()).count());
            // notices are not changes of a mirrored object
            if key.kind != Kind::Notice {
                let counts = all.entry(Scope { cluster: key.cluster.clone(), kind: key.kind }).or_default();
                counts.deletes += deletes as u64;
                counts.upserts += (run.len() - deletes) as u64;
            }
        }
    }

    /// Returns the number of changes by scope.
    #[must_use]
    pub fn changes_counted(&self) -> BTreeMap<Scope, ChangeCounts> {
        self.changes_counted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the histogram of the times until changes are stored.
    pub(super) fn set_stored_times(&self, times: Arc<Histogram>) {
        // there is only one committer
        let _ = self.stored.set(times);
    }

    /// Returns the times from the first change of a group until the group is stored.
    #[must_use]
    pub fn stored_times(&self) -> Option<&Histogram> {
        self.stored.get().map(Arc::as_ref)
    }
}

impl HighWaterMark {
    /// Records the current fill of the queue.
    pub fn record(&self, length: usize) {
        self.0.fetch_max(length, Ordering::Relaxed);
    }

    /// Returns the highest fill so far.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
