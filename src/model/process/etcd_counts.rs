//! What is counted of the calls of an etcd's clients: by the face that answers them, for `/metrics`.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What became of a range, a stream of ranges when it began, or a transaction of ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeOutcome {
    /// Keys, or that there are none.
    Answered,
    /// The revision is not known any more.
    Compacted,
    /// The revision is not there yet.
    Future,
    /// Who asks may not read all of it.
    Denied,
    /// No etcd answers such a question.
    Invalid,
    /// Answers that are being sent take all the room that there is.
    Crowded,
    /// The store is still loading, or the process stops.
    Unavailable,
    /// A fault, or a client that is gone.
    Failed,
}

/// How many of something are open. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct OpenCount(Arc<AtomicUsize>);

/// One that is open, counted until it is dropped.
#[derive(Debug)]
pub struct OpenOne(OpenCount);

/// All counts of an etcd face.
#[derive(Debug, Default)]
pub struct EtcdCounts {
    /// Streams of watches.
    pub watch_streams: OpenCount,
    /// Watches, of which a stream has any number.
    pub watchers: OpenCount,
    compacted_watches: AtomicU64,
    ranges: [AtomicU64; RangeOutcome::ALL.len()],
}

impl RangeOutcome {
    /// Each outcome.
    pub const ALL: [Self; 8] =
        [Self::Answered, Self::Compacted, Self::Future, Self::Denied, Self::Invalid, Self::Crowded, Self::Unavailable, Self::Failed];

    /// The name in `/metrics`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Compacted => "compacted",
            Self::Future => "future",
            Self::Denied => "denied",
            Self::Invalid => "invalid",
            Self::Crowded => "crowded",
            Self::Unavailable => "unavailable",
            Self::Failed => "failed",
        }
    }
}

impl OpenCount {
    /// Counts one more.
    #[must_use]
    pub fn open(&self) -> OpenOne {
        self.0.fetch_add(1, Ordering::Relaxed);
        OpenOne(self.clone())
    }

    /// How many there are.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for OpenOne {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl EtcdCounts {
    /// Counts a range.
    pub fn add_range(&self, outcome: RangeOutcome) {
        self.ranges[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a watch that was cancelled as compacted.
    pub fn add_compacted_watch(&self) {
        self.compacted_watches.fetch_add(1, Ordering::Relaxed);
    }

    /// How many ranges had each outcome.
    #[must_use]
    pub fn ranges(&self) -> [(RangeOutcome, u64); RangeOutcome::ALL.len()] {
        array::from_fn(|at| (RangeOutcome::ALL[at], self.ranges[at].load(Ordering::Relaxed)))
    }

    /// How many watches were cancelled as compacted.
    #[must_use]
    pub fn compacted_watches(&self) -> u64 {
        self.compacted_watches.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_counted_apart_and_what_is_open_until_it_is_dropped() {
        let counts = EtcdCounts::default();
        for (at, outcome) in RangeOutcome::ALL.into_iter().enumerate() {
            (0..=at).for_each(|_| counts.add_range(outcome));
        }
        assert_eq!(counts.ranges().map(|(_, count)| count), [1, 2, 3, 4, 5, 6, 7, 8]);
        let (one, other) = (counts.watchers.open(), counts.watchers.open());
        drop(one);
        assert_eq!((counts.watchers.get(), counts.watch_streams.get()), (1, 0));
        drop(other);
        assert_eq!(counts.watchers.get(), 0);
    }
}
