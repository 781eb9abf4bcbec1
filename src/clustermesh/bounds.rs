//! Limits on the keys and bytes that one cluster may have, all kinds together.
//!
//! Keys are counted as they are read: a list restarts the count of its kind, and each put adds to
//! it. A put that replaces a value also counts as an addition, so the count is an upper bound. When
//! it exceeds a limit, the mirror is counted exactly, which takes a second for a million keys.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::model::{Kind, Revision, ScopeSize, Size};

/// Maximum size of one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterBounds {
    /// Maximum number of keys.
    pub keys_max: u64,
    /// Maximum number of bytes of keys and values together.
    pub bytes_max: u64,
}

impl Default for ClusterBounds {
    /// About three times the keys and five times the bytes of a cluster of 5,000 nodes with 110
    /// pods each, the largest that Kubernetes supports. Such a cluster has 0.6 million keys and
    /// about 0.2 GiB.
    fn default() -> Self {
        Self { keys_max: 2_000_000, bytes_max: 1 << 30 }
    }
}

/// Factor by which the mirror may exceed the limits while a cluster is listed. Every key may have
/// been replaced by another one, and replaced keys are removed only when the list is complete.
const CROWDED_FACTOR: u64 = 2;

/// Fraction of the limits that may be put before the mirror is counted again, so that a cluster
/// near its limit is not counted at each change. The same fraction of the bytes may be put after a
/// start before the first count.
const UNCOUNTED_PART: u64 = 64;

/// Size of a cluster over all of its connections.
#[derive(Debug)]
pub(super) struct Holdings {
    bounds: ClusterBounds,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Size of each kind at the source, as an upper bound.
    source: [Size; Kind::ALL.len()],
    stages: [Stage; Kind::ALL.len()],
    /// Revision of the source that each kind of the mirror reaches when the committer has applied
    /// all commands.
    expected: [Option<Revision>; Kind::ALL.len()],
    /// Size of the cluster in the mirror, as an upper bound. It includes keys that a list has not
    /// confirmed.
    held: Size,
    /// Size of the cluster at the last count of the mirror. `None` before the first count.
    counted: Option<Size>,
    /// Size of what was read since the last count.
    since: Size,
}

/// Progress of a connection with one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    /// Deletes from the time without a connection are not known yet, so the size in the mirror says
    /// nothing about the source.
    #[default]
    Resuming,
    /// The size of the pages that were read so far counts.
    Listing,
    /// The size in the mirror counts.
    Settled,
}

/// Size that exceeds a limit, with the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Excess {
    found: Size,
    bounds: ClusterBounds,
}

impl std::error::Error for Excess {}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, bounds } = self;
        if found.keys > bounds.keys_max {
            write!(f, "it has at least {} keys, and the limit is {} (--cluster-max-keys)", found.keys, bounds.keys_max)?;
        } else {
            write!(
                f,
                "its keys and values have at least {} bytes, and the limit is {} (--cluster-max-bytes)",
                found.bytes, bounds.bytes_max
            )?;
        }
        f.write_str(": meshkeep keeps the last known state; find out what writes this much to its etcd, or raise the limit")
    }
}

impl Holdings {
    /// Creates the state of a cluster with this number of stored keys per kind. Their bytes are not
    /// known.
    pub(super) fn new(bounds: ClusterBounds, keys: [u64; Kind::ALL.len()]) -> Self {
        let source = keys.map(|keys| Size { keys, bytes: 0 });
        let held = source.into_iter().sum();
        Self { bounds, state: Mutex::new(State { source, held, ..State::default() }) }
    }

    /// Marks a kind as resuming over a new connection.
    pub(super) fn resume(&self, kind: Kind) {
        self.state().stages[kind.index()] = Stage::Resuming;
    }

    /// Marks a kind as being listed, and restarts its count.
    pub(super) fn list(&self, kind: Kind) {
        let mut state = self.state();
        state.source[kind.index()] = Size::default();
        state.stages[kind.index()] = Stage::Listing;
    }

    /// Marks a kind as settled: the mirror has, or is about to have, what the source has.
    pub(super) fn settle(&self, kind: Kind) {
        self.state().stages[kind.index()] = Stage::Settled;
    }

    /// Adds what was put while there was no connection, without checking the limits. These are few
    /// keys, and they are checked when the kind is settled.
    pub(super) fn add_unjudged(&self, kind: Kind, more: Size) {
        let mut state = self.state();
        state.source[kind.index()] = state.source[kind.index()] + more;
        state.held = state.held + more;
    }

    /// Sets the revision that the committer was asked to bring a kind to, or `None` when a list
    /// begins.
    pub(super) fn expect(&self, kind: Kind, revision: Option<Revision>) {
        self.state().expected[kind.index()] = revision;
    }

    /// Returns whether the mirror has reached the expected revision of every settled kind, given
    /// the revision `reached` of each kind. Only then can the mirror be counted.
    pub(super) fn is_settled(&self, reached: impl Fn(Kind) -> Option<Revision>) -> bool {
        let state = self.state();
        let is_settled = |kind: &Kind| {
            let at = kind.index();
            state.stages[at] != Stage::Settled || state.expected[at].is_none_or(|expected| reached(*kind) >= Some(expected))
        };
        Kind::ALL.iter().all(is_settled)
    }

    /// Adds what was read of a kind, for which the source announces `keys_said` keys.
    ///
    /// # Errors
    /// [`Excess`] if the known size would exceed a limit. Nothing is added then, and the mirror has
    /// to be counted.
    pub(super) fn add(&self, kind: Kind, more: Size, keys_said: u64) -> Result<(), Excess> {
        let mut state = self.state();
        let (at, bounds) = (kind.index(), self.bounds);
        let mut source = state.source;
        source[at] = source[at] + more;
        let said = Size { keys: source[at].keys.max(keys_said), ..source[at] };
        let is_crowded = bounds.is_crowded_by(state.held);
        let counts = |other: usize| other != at && (is_crowded || state.stages[other] != Stage::Resuming);
        let others: Size = source.iter().enumerate().filter(|(other, _)| counts(*other)).map(|(_, size)| *size).sum();
        let (found, since) = (others + said, state.since + more);
        let part = ClusterBounds { keys_max: bounds.keys_max / UNCOUNTED_PART, bytes_max: bounds.bytes_max / UNCOUNTED_PART };
        let may_be = match state.counted {
            Some(counted) => bounds.allow(found) || (bounds.allow(counted) && part.allow(since) && keys_said <= bounds.keys_max),
            None => ClusterBounds { bytes_max: part.bytes_max, ..bounds }.allow(found),
        };
        if !may_be {
            return Err(Excess { found, bounds });
        }
        (state.source, state.since, state.held) = (source, since, state.held + more);
        Ok(())
    }

    /// Returns whether the mirror has more of the cluster than is allowed during a list, as far as
    /// is known.
    pub(super) fn is_crowded(&self) -> bool {
        self.bounds.is_crowded_by(self.state().held)
    }

    /// Replaces the sizes of settled kinds by a count of the mirror.
    pub(super) fn counted(&self, sizes: [ScopeSize; Kind::ALL.len()]) {
        let mut state = self.state();
        for kind in Kind::ALL {
            if state.stages[kind.index()] == Stage::Settled {
                state.source[kind.index()] = sizes[kind.index()].confirmed;
            }
        }
        state.held = sizes.iter().map(|size| size.all).sum();
        state.counted = Some(state.source.into_iter().sum());
        state.since = Size::default();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClusterBounds {
    fn allow(self, size: Size) -> bool {
        size.keys <= self.keys_max && size.bytes <= self.bytes_max
    }

    fn is_crowded_by(self, held: Size) -> bool {
        let Self { keys_max, bytes_max } = self;
        !Self { keys_max: keys_max.saturating_mul(CROWDED_FACTOR), bytes_max: bytes_max.saturating_mul(CROWDED_FACTOR) }.allow(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: ClusterBounds = ClusterBounds { keys_max: 640, bytes_max: 6_400 };

    fn size(keys: u64, bytes: u64) -> Size {
        Size { keys, bytes }
    }

    fn held(confirmed: Size, all: Size) -> [ScopeSize; Kind::ALL.len()] {
        let mut sizes = [ScopeSize::default(); Kind::ALL.len()];
        sizes[Kind::Ip.index()] = ScopeSize { confirmed, all };
        sizes
    }

    #[test]
    fn all_kinds_count_together_and_a_list_counts_its_kind_anew() {
        let holdings = Holdings::new(BOUNDS, Kind::ALL.map(|kind| if kind == Kind::Ip { 500 } else { 0 }));
        Kind::ALL.into_iter().for_each(|kind| holdings.settle(kind));
        assert_eq!(holdings.add(Kind::Node, size(140, 0), 0), Ok(()));
        assert!(holdings.add(Kind::Node, size(1, 0), 0).is_err());
        holdings.list(Kind::Ip);
        assert_eq!(holdings.add(Kind::Ip, size(10, 0), 500), Ok(()));
        // the number that the source announces is enough: its keys need not be read
        assert!(holdings.add(Kind::Ip, size(10, 0), 501).unwrap_err().to_string().contains("at least 641 keys, and the limit is 640"));
        assert_eq!(holdings.add(Kind::Ip, size(10, 0), 500), Ok(()));
    }

    /// Otherwise a cluster with fewer keys of one kind and more of another could not be resumed.
    #[test]
    fn a_kind_of_which_it_is_not_known_what_was_deleted_is_judged_once_that_is_known() {
        let holdings = Holdings::new(BOUNDS, Kind::ALL.map(|kind| if kind == Kind::Ip { 600 } else { 0 }));
        holdings.list(Kind::Node);
        assert_eq!(holdings.add(Kind::Node, size(100, 0), 100), Ok(()));
        holdings.settle(Kind::Ip);
        assert!(holdings.add(Kind::Ip, size(0, 0), 0).is_err());
        holdings.counted(held(size(500, 0), size(500, 0)));
        assert_eq!(holdings.add(Kind::Ip, size(0, 0), 0), Ok(()));
    }

    #[test]
    fn bytes_that_nobody_counted_are_counted_before_they_may_be_too_many() {
        let holdings = Holdings::new(BOUNDS, [0; Kind::ALL.len()]);
        holdings.settle(Kind::Ip);
        assert_eq!(holdings.add(Kind::Ip, size(1, 100), 0), Ok(()));
        assert!(holdings.add(Kind::Ip, size(1, 1), 0).is_err());
        holdings.counted(held(size(2, 6_300), size(2, 6_300)));
        assert_eq!(holdings.add(Kind::Ip, size(1, 100), 0), Ok(()));
        // a 64th may be added to the count, then the mirror is counted again: the puts may have
        // replaced something
        assert!(holdings.add(Kind::Ip, size(1, 1), 0).is_err());
        holdings.counted(held(size(2, 6_400), size(2, 6_400)));
        assert_eq!(holdings.add(Kind::Ip, size(1, 100), 0), Ok(()));
        holdings.counted(held(size(2, 6_401), size(2, 6_401)));
        assert!(
            holdings
                .add(Kind::Ip, size(0, 0), 0)
                .unwrap_err()
                .to_string()
                .contains("keys and values have at least 6401 bytes, and the limit is 6400")
        );
    }

    #[test]
    fn what_lists_left_behind_is_counted_beside_what_the_source_has() {
        let holdings = Holdings::new(BOUNDS, [0; Kind::ALL.len()]);
        holdings.settle(Kind::Ip);
        holdings.counted(held(size(100, 6_000), size(1_280, 12_800)));
        assert_eq!((holdings.is_crowded(), holdings.add(Kind::Ip, size(1, 100), 0)), (false, Ok(())));
        assert!(holdings.is_crowded());
    }
}
