//! Counters of calls to the etcd API that meshkeep serves, for `/metrics`.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Outcome of a range, of the start of a range stream, or of a transaction of ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeOutcome {
    /// Answered, with or without keys.
    Answered,
    /// The revision was compacted.
    Compacted,
    /// The revision is in the future.
    Future,
    /// The client has no permission to read all of the range.
    Denied,
    /// The request is invalid in any etcd.
    Invalid,
    /// The memory budget for answers in flight is used up.
    Throttled,
    /// The store is still loading, or the process is stopping.
    Unavailable,
    /// An internal error, or the client disconnected.
    Failed,
}

/// Number of open streams or watches. Clones are cheap and share the count.
#[derive(Debug, Clone, Default)]
pub struct OpenCount(Arc<AtomicUsize>);

/// Guard that counts one open stream or watch until it is dropped.
#[derive(Debug)]
pub struct OpenGuard(OpenCount);

/// All counters of the etcd API.
#[derive(Debug, Default)]
pub struct EtcdCounts {
    /// Open watch streams.
    pub watch_streams: OpenCount,
    /// Open watches. A stream has any number of them.
    pub watchers: OpenCount,
    compacted_watches: AtomicU64,
    ranges: [AtomicU64; RangeOutcome::ALL.len()],
}

impl RangeOutcome {
    /// All outcomes.
    pub const ALL: [Self; 8] =
        [Self::Answered, Self::Compacted, Self::Future, Self::Denied, Self::Invalid, Self::Throttled, Self::Unavailable, Self::Failed];

    /// Returns the label value in `/metrics`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Compacted => "compacted",
            Self::Future => "future",
            Self::Denied => "denied",
            Self::Invalid => "invalid",
            Self::Throttled => "throttled",
            Self::Unavailable => "unavailable",
            Self::Failed => "failed",
        }
    }
}

impl OpenCount {
    /// Counts one stream or watch as open until the guard is dropped.
    #[must_use]
    pub fn open(&self) -> OpenGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        OpenGuard(self.clone())
    }

    /// Returns the number of open streams or watches.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl EtcdCounts {
    /// Counts a range.
    pub fn add_range(&self, outcome: RangeOutcome) {
        self.ranges[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a watch that was cancelled because its revision was compacted.
    pub fn add_compacted_watch(&self) {
        self.compacted_watches.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of ranges per outcome.
    #[must_use]
    pub fn ranges(&self) -> [(RangeOutcome, u64); RangeOutcome::ALL.len()] {
        array::from_fn(|index| (RangeOutcome::ALL[index], self.ranges[index].load(Ordering::Relaxed)))
    }

    /// Returns the number of watches that were cancelled because their revision was compacted.
    #[must_use]
    pub fn compacted_watches(&self) -> u64 {
        self.compacted_watches.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_and_open_guards_are_counted() {
        let counts = EtcdCounts::default();
        for (index, outcome) in RangeOutcome::ALL.into_iter().enumerate() {
            (0..=index).for_each(|_| counts.add_range(outcome));
        }
        assert_eq!(counts.ranges().map(|(_, count)| count), [1, 2, 3, 4, 5, 6, 7, 8]);
        let (one, other) = (counts.watchers.open(), counts.watchers.open());
        drop(one);
        assert_eq!((counts.watchers.get(), counts.watch_streams.get()), (1, 0));
        drop(other);
        assert_eq!(counts.watchers.get(), 0);
    }
}
