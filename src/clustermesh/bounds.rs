//! How much one cluster may have us hold: keys and raw bytes, of all kinds together.
//!
//! What a cluster has is counted as it is read: a list counts its kind anew, and each put adds to it. What a put replaces is not looked up,
//! so the count is an upper one; where that is too much, the mirror is counted, which is exact and takes a second for a million keys.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::model::{Kind, Revision, ScopeSize, Size};

/// What one cluster may have at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterBounds {
    /// Keys.
    pub keys_max: u64,
    /// Bytes of keys and values.
    pub bytes_max: u64,
}

impl Default for ClusterBounds {
    /// Three times the keys and five times the bytes of a cluster of 5,000 nodes with 110 pods each, the most that Kubernetes is made for: it
    /// has 0.6 million keys and some 0.2 GiB.
    fn default() -> Self {
        Self { keys_max: 2_000_000, bytes_max: 1 << 30 }
    }
}

/// How much of a cluster may be held while it is listed, as a multiple of the bounds: all that it has may have been replaced by as much, and
/// what was replaced goes when the list is complete.
const CROWDED_FACTOR: u64 = 2;

/// Which part of the bounds may be put until the mirror is counted again, so that a cluster near its bound is not counted for each change;
/// and which part of the bytes may come after a start until it is counted first.
const UNCOUNTED_PART: u64 = 64;

/// What a cluster has, over all of its connections.
#[derive(Debug)]
pub(super) struct Holdings {
    bounds: ClusterBounds,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By kind: what it has at the source, at most.
    source: [Size; Kind::ALL.len()],
    stages: [Stage; Kind::ALL.len()],
    /// Up to which revision of the source the mirror will have each kind, once the writer has done all that was asked of it.
    expected: [Option<Revision>; Kind::ALL.len()],
    /// All that the mirror holds of the cluster, also what a list has not confirmed; at most.
    held: Size,
    /// What the cluster had when the mirror was counted last; `None` before the first time.
    counted: Option<Size>,
    /// What came since.
    since: Size,
}

/// How far a connection is with a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    /// It is not known yet what was deleted while there was none, so what is held says nothing of what the source has.
    #[default]
    Resuming,
    /// What was listed so far counts.
    Listing,
    /// What the mirror holds counts.
    Settled,
}

/// What was found to be too much.
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
            write!(f, "it has at least {} keys and may have {} (--cluster-max-keys)", found.keys, bounds.keys_max)?;
        } else {
            write!(f, "it has at least {} bytes of keys and values and may have {} (--cluster-max-bytes)", found.bytes, bounds.bytes_max)?;
        }
        f.write_str(": what is held of it stays as it is; see what writes so much to its etcd, or allow more")
    }
}

impl Holdings {
    /// Of a cluster of which so many keys of each kind are held, whose bytes nobody has counted.
    pub(super) fn new(bounds: ClusterBounds, keys: [u64; Kind::ALL.len()]) -> Self {
        let source = keys.map(|keys| Size { keys, bytes: 0 });
        let held = source.into_iter().sum();
        Self { bounds, state: Mutex::new(State { source, held, ..State::default() }) }
    }

    /// A connection begins with a kind.
    pub(super) fn resume(&self, kind: Kind) {
        self.state().stages[kind.place()] = Stage::Resuming;
    }

    /// A list of a kind begins.
    pub(super) fn list(&self, kind: Kind) {
        let mut state = self.state();
        state.source[kind.place()] = Size::default();
        state.stages[kind.place()] = Stage::Listing;
    }

    /// The mirror has, or is about to have, what the source has of a kind.
    pub(super) fn settle(&self, kind: Kind) {
        self.state().stages[kind.place()] = Stage::Settled;
    }

    /// Counts what was put while there was no connection: few keys, which are judged when the kind is settled.
    pub(super) fn add_unjudged(&self, kind: Kind, more: Size) {
        let mut state = self.state();
        state.source[kind.place()] = state.source[kind.place()] + more;
        state.held = state.held + more;
    }

    /// The writer was asked for all of a kind up to a revision, or was told that a list begins.
    pub(super) fn expect(&self, kind: Kind, revision: Option<Revision>) {
        self.state().expected[kind.place()] = revision;
    }

    /// Whether the mirror has all that the writer was asked for of the kinds that are settled, where each goes up to such a revision: only then
    /// can it be counted.
    pub(super) fn is_settled(&self, reached: impl Fn(Kind) -> Option<Revision>) -> bool {
        let state = self.state();
        let is_settled = |kind: &Kind| {
            let at = kind.place();
            state.stages[at] != Stage::Settled || state.expected[at].is_none_or(|expected| reached(*kind) >= Some(expected))
        };
        Kind::ALL.iter().all(is_settled)
    }

    /// Counts what was read of a kind, of which the source says that it has so many keys. Fails, and counts nothing, where that would be
    /// too much as far as is known: the mirror has to be counted then.
    pub(super) fn add(&self, kind: Kind, more: Size, keys_said: u64) -> Result<(), Excess> {
        let mut state = self.state();
        let (at, bounds) = (kind.place(), self.bounds);
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

    /// Whether more of the cluster is held than may be while it is listed, as far as is known.
    pub(super) fn is_crowded(&self) -> bool {
        self.bounds.is_crowded_by(self.state().held)
    }

    /// Takes in what the mirror was found to hold of each kind.
    pub(super) fn counted(&self, sizes: [ScopeSize; Kind::ALL.len()]) {
        let mut state = self.state();
        for kind in Kind::ALL {
            if state.stages[kind.place()] == Stage::Settled {
                state.source[kind.place()] = sizes[kind.place()].confirmed;
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
        sizes[Kind::Ip.place()] = ScopeSize { confirmed, all };
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
        // the source's own word is enough: nothing of it has to be read
        assert!(holdings.add(Kind::Ip, size(10, 0), 501).unwrap_err().to_string().contains("at least 641 keys and may have 640"));
        assert_eq!(holdings.add(Kind::Ip, size(10, 0), 500), Ok(()));
    }

    /// Otherwise a cluster could not come back that has fewer keys of one kind and more of another.
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
        // a 64th may come beside what was counted, then it is counted again: it may have replaced something
        assert!(holdings.add(Kind::Ip, size(1, 1), 0).is_err());
        holdings.counted(held(size(2, 6_400), size(2, 6_400)));
        assert_eq!(holdings.add(Kind::Ip, size(1, 100), 0), Ok(()));
        holdings.counted(held(size(2, 6_401), size(2, 6_401)));
        assert!(holdings.add(Kind::Ip, size(0, 0), 0).unwrap_err().to_string().contains("6401 bytes of keys and values and may have 6400"));
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
