//! How full each queue on a change's way ever was, how long its steps take, and how many changes there were.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::model::{Announcement, Histogram, Scope};

/// Of how many kinds of clusters changes are counted: those of the largest mesh (511, each with 9 kinds, itself, what is derived from nodes and what looks wrong among them), and as many again that have gone. Above that all are counted from zero
/// again, as after a start.
const COUNTED_SCOPES_MAX: usize = 2 * 511 * 9;

/// How many changes a kind of a cluster had since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChangeCounts {
    /// Keys that came or changed.
    pub upserts: u64,
    /// Keys that went.
    pub deletes: u64,
}

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
    /// From when the first command of a batch came until readers see all of it.
    pub publish: Histogram,
    /// What applying a batch takes, from its commands to its snapshot.
    pub commit: Histogram,
    changes_counted: Mutex<BTreeMap<Scope, ChangeCounts>>,
    stored: OnceLock<Arc<Histogram>>,
    /// Whether the newest changes could not be written to the log at once.
    pub log_fails: AtomicBool,
}

impl QueueMarks {
    /// Counts what a batch announces.
    pub(super) fn count<'a>(&self, announcements: impl Iterator<Item = &'a Announcement>) {
        let mut all = self.changes_counted.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() > COUNTED_SCOPES_MAX {
            all.clear();
        }
        // what comes together is mostly of one kind of one cluster
        let mut run: Option<(Scope, ChangeCounts)> = None;
        let mut add = |run: Option<(Scope, ChangeCounts)>| {
            let Some((scope, more)) = run else { return };
            let counts = all.entry(scope).or_default();
            counts.upserts += more.upserts;
            counts.deletes += more.deletes;
        };
        for announcement in announcements {
            let key = &announcement.key;
            let goes_on = run.as_ref().is_some_and(|(scope, _)| scope.cluster == key.cluster && scope.kind == key.kind);
            if !goes_on {
                add(run.replace((Scope { cluster: key.cluster.clone(), kind: key.kind }, ChangeCounts::default())));
            }
            if let Some((_, counts)) = &mut run {
                *(if announcement.deleted.is_some() { &mut counts.deletes } else { &mut counts.upserts }) += 1;
            }
        }
        add(run);
    }

    /// How many changes each kind of each cluster had.
    #[must_use]
    pub fn changes_counted(&self) -> BTreeMap<Scope, ChangeCounts> {
        self.changes_counted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the histogram of how long changes take until they are stored.
    pub(super) fn stored_in(&self, times: Arc<Histogram>) {
        // there is one writer
        let _ = self.stored.set(times);
    }

    /// From when the first change of a group came until all of it is stored.
    #[must_use]
    pub fn stored(&self) -> Option<&Histogram> {
        self.stored.get().map(Arc::as_ref)
    }
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
