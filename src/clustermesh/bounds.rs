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
const LISTING_FACTOR: u64 = 2;

/// Divisor of the limits: one 64th of the keys and bytes may be put before the mirror is counted
/// again, so that a cluster near its limit is not counted at each change. After a start, one 64th
/// of the bytes may be put before the first count.
const UNCOUNTED_DIVISOR: u64 = 64;

/// Size of a cluster over all of its connections.
#[derive(Debug)]
pub(super) struct SizeTracker {
    bounds: ClusterBounds,
    state: Mutex<SizeState>,
}

#[derive(Debug, Default)]
struct SizeState {
    /// Size of each kind at the source, as an upper bound.
    source: [Size; Kind::ALL.len()],
    sync_states: [KindSyncState; Kind::ALL.len()],
    /// Revision of the source that each kind of the mirror reaches when the committer has applied
    /// all commands.
    expected: [Option<Revision>; Kind::ALL.len()],
    /// Size of the cluster in the mirror, as an upper bound. It includes keys that a list has not
    /// confirmed.
    mirrored: Size,
    /// Size of the cluster at the last count of the mirror. `None` before the first count.
    counted: Option<Size>,
    /// Size of the keys that were read since the last count.
    read_since_count: Size,
}

/// Progress of one kind over the current connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum KindSyncState {
    /// Deletes from the time without a connection are not known yet, so the size in the mirror says
    /// nothing about the source.
    #[default]
    Resuming,
    /// The kind's size is that of the pages that were read so far.
    Listing,
    /// The kind's size is that of its entries in the mirror.
    Synced,
}

/// Size that exceeds a limit, and the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SizeExceeded {
    size: Size,
    bounds: ClusterBounds,
}

impl std::error::Error for SizeExceeded {}

impl fmt::Display for SizeExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, bounds } = self;
        if size.keys > bounds.keys_max {
            write!(f, "it has at least {} keys, and the limit is {} (--cluster-max-keys)", size.keys, bounds.keys_max)?;
        } else {
            write!(
                f,
                "its keys and values have at least {} bytes, and the limit is {} (--cluster-max-bytes)",
                size.bytes, bounds.bytes_max
            )?;
        }
        f.write_str(": meshkeep keeps the last known state; find out what writes this much to its etcd, or raise the limit")
    }
}

impl SizeTracker {
    /// Creates the state of a cluster with this number of stored keys per kind. Their bytes are not
    /// known.
    pub(super) fn new(bounds: ClusterBounds, keys: [u64; Kind::ALL.len()]) -> Self {
        let source = keys.map(|keys| Size { keys, bytes: 0 });
        let mirrored = source.into_iter().sum();
        Self { bounds, state: Mutex::new(SizeState { source, mirrored, ..SizeState::default() }) }
    }

    /// Marks a kind as resuming over a new connection.
    pub(super) fn mark_resuming(&self, kind: Kind) {
        self.state().sync_states[kind.index()] = KindSyncState::Resuming;
    }

    /// Marks a kind as being listed, and restarts its count.
    pub(super) fn mark_listing(&self, kind: Kind) {
        let mut state = self.state();
        state.source[kind.index()] = Size::default();
        state.sync_states[kind.index()] = KindSyncState::Listing;
    }

    /// Marks a kind as synced: the mirror has, or is about to have, everything that the source has.
    pub(super) fn mark_synced(&self, kind: Kind) {
        self.state().sync_states[kind.index()] = KindSyncState::Synced;
    }

    /// Adds keys that were put while there was no connection, without checking the limits. They are
    /// few, and the limits are checked once the kind is synced.
    pub(super) fn add_unchecked(&self, kind: Kind, more: Size) {
        let mut state = self.state();
        state.source[kind.index()] = state.source[kind.index()] + more;
        state.mirrored = state.mirrored + more;
    }

    /// Sets the source revision that a kind reaches once the committer has applied all commands, or
    /// `None` when a list begins.
    pub(super) fn set_expected_revision(&self, kind: Kind, revision: Option<Revision>) {
        self.state().expected[kind.index()] = revision;
    }

    /// Returns whether the mirror has reached the expected revision of every synced kind, given the
    /// revision `reached` of each kind. Only then can the mirror be counted.
    pub(super) fn is_applied(&self, reached: impl Fn(Kind) -> Option<Revision>) -> bool {
        let state = self.state();
        let has_reached = |kind: &Kind| {
            let index = kind.index();
            state.sync_states[index] != KindSyncState::Synced
                || state.expected[index].is_none_or(|expected| reached(*kind) >= Some(expected))
        };
        Kind::ALL.iter().all(has_reached)
    }

    /// Adds the size of keys that were read. `keys_announced` is the number of keys that the source
    /// reports for the kind.
    ///
    /// # Errors
    /// [`SizeExceeded`] if the known size would exceed a limit. Nothing is added then, and the
    /// mirror has to be counted.
    pub(super) fn try_add(&self, kind: Kind, more: Size, keys_announced: u64) -> Result<(), SizeExceeded> {
        let mut state = self.state();
        let (index, bounds) = (kind.index(), self.bounds);
        let mut source = state.source;
        source[index] = source[index] + more;
        let announced = Size { keys: source[index].keys.max(keys_announced), ..source[index] };
        let exceeds_listing_limits = !bounds.allow_during_list(state.mirrored);
        let counts = |other: usize| other != index && (exceeds_listing_limits || state.sync_states[other] != KindSyncState::Resuming);
        let others: Size = source.iter().enumerate().filter(|(other, _)| counts(*other)).map(|(_, size)| *size).sum();
        let (size, read_since_count) = (others + announced, state.read_since_count + more);
        let uncounted_max =
            ClusterBounds { keys_max: bounds.keys_max / UNCOUNTED_DIVISOR, bytes_max: bounds.bytes_max / UNCOUNTED_DIVISOR };
        let is_allowed = match state.counted {
            Some(counted) => {
                bounds.allow(size) || (bounds.allow(counted) && uncounted_max.allow(read_since_count) && keys_announced <= bounds.keys_max)
            }
            None => ClusterBounds { bytes_max: uncounted_max.bytes_max, ..bounds }.allow(size),
        };
        if !is_allowed {
            return Err(SizeExceeded { size, bounds });
        }
        (state.source, state.read_since_count, state.mirrored) = (source, read_since_count, state.mirrored + more);
        Ok(())
    }

    /// Returns whether the known size in the mirror exceeds the limits that apply during a list.
    pub(super) fn exceeds_listing_limits(&self) -> bool {
        !self.bounds.allow_during_list(self.state().mirrored)
    }

    /// Replaces the sizes of synced kinds by a count of the mirror.
    pub(super) fn set_counted(&self, sizes: [ScopeSize; Kind::ALL.len()]) {
        let mut state = self.state();
        for kind in Kind::ALL {
            if state.sync_states[kind.index()] == KindSyncState::Synced {
                state.source[kind.index()] = sizes[kind.index()].confirmed;
            }
        }
        state.mirrored = sizes.iter().map(|size| size.all).sum();
        state.counted = Some(state.source.into_iter().sum());
        state.read_since_count = Size::default();
    }

    fn state(&self) -> MutexGuard<'_, SizeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClusterBounds {
    fn allow(self, size: Size) -> bool {
        size.keys <= self.keys_max && size.bytes <= self.bytes_max
    }

    /// Returns whether a size in the mirror is within the limits that apply during a list.
    fn allow_during_list(self, mirrored: Size) -> bool {
        let Self { keys_max, bytes_max } = self;
        Self { keys_max: keys_max.saturating_mul(LISTING_FACTOR), bytes_max: bytes_max.saturating_mul(LISTING_FACTOR) }.allow(mirrored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: ClusterBounds = ClusterBounds { keys_max: 640, bytes_max: 6_400 };

    fn size(keys: u64, bytes: u64) -> Size {
        Size { keys, bytes }
    }

    fn counted_sizes(confirmed: Size, all: Size) -> [ScopeSize; Kind::ALL.len()] {
        let mut sizes = [ScopeSize::default(); Kind::ALL.len()];
        sizes[Kind::Ip.index()] = ScopeSize { confirmed, all };
        sizes
    }

    #[test]
    fn the_limits_apply_to_the_sum_of_all_kinds() {
        let size_tracker = SizeTracker::new(BOUNDS, Kind::ALL.map(|kind| if kind == Kind::Ip { 500 } else { 0 }));
        Kind::ALL.into_iter().for_each(|kind| size_tracker.mark_synced(kind));
        assert_eq!(size_tracker.try_add(Kind::Node, size(140, 0), 0), Ok(()));
        assert!(size_tracker.try_add(Kind::Node, size(1, 0), 0).is_err());
        size_tracker.mark_listing(Kind::Ip);
        assert_eq!(size_tracker.try_add(Kind::Ip, size(10, 0), 500), Ok(()));
        // the announced number of keys exceeds the limit: the keys need not be read
        assert!(
            size_tracker.try_add(Kind::Ip, size(10, 0), 501).unwrap_err().to_string().contains("at least 641 keys, and the limit is 640")
        );
        assert_eq!(size_tracker.try_add(Kind::Ip, size(10, 0), 500), Ok(()));
    }

    /// Otherwise a cluster with fewer keys of one kind and more of another could not be resumed.
    #[test]
    fn a_resuming_kind_is_checked_once_it_is_synced() {
        let size_tracker = SizeTracker::new(BOUNDS, Kind::ALL.map(|kind| if kind == Kind::Ip { 600 } else { 0 }));
        size_tracker.mark_listing(Kind::Node);
        assert_eq!(size_tracker.try_add(Kind::Node, size(100, 0), 100), Ok(()));
        size_tracker.mark_synced(Kind::Ip);
        assert!(size_tracker.try_add(Kind::Ip, size(0, 0), 0).is_err());
        size_tracker.set_counted(counted_sizes(size(500, 0), size(500, 0)));
        assert_eq!(size_tracker.try_add(Kind::Ip, size(0, 0), 0), Ok(()));
    }

    #[test]
    fn uncounted_bytes_force_a_count() {
        let size_tracker = SizeTracker::new(BOUNDS, [0; Kind::ALL.len()]);
        size_tracker.mark_synced(Kind::Ip);
        assert_eq!(size_tracker.try_add(Kind::Ip, size(1, 100), 0), Ok(()));
        assert!(size_tracker.try_add(Kind::Ip, size(1, 1), 0).is_err());
        size_tracker.set_counted(counted_sizes(size(2, 6_300), size(2, 6_300)));
        assert_eq!(size_tracker.try_add(Kind::Ip, size(1, 100), 0), Ok(()));
        // one 64th of the limit may be added to the count. Then the mirror is counted again,
        // because the puts may have replaced values
        assert!(size_tracker.try_add(Kind::Ip, size(1, 1), 0).is_err());
        size_tracker.set_counted(counted_sizes(size(2, 6_400), size(2, 6_400)));
        assert_eq!(size_tracker.try_add(Kind::Ip, size(1, 100), 0), Ok(()));
        size_tracker.set_counted(counted_sizes(size(2, 6_401), size(2, 6_401)));
        assert!(
            size_tracker
                .try_add(Kind::Ip, size(0, 0), 0)
                .unwrap_err()
                .to_string()
                .contains("keys and values have at least 6401 bytes, and the limit is 6400")
        );
    }

    #[test]
    fn unconfirmed_keys_count_for_the_limits_of_a_list() {
        let size_tracker = SizeTracker::new(BOUNDS, [0; Kind::ALL.len()]);
        size_tracker.mark_synced(Kind::Ip);
        size_tracker.set_counted(counted_sizes(size(100, 6_000), size(1_280, 12_800)));
        assert_eq!((size_tracker.exceeds_listing_limits(), size_tracker.try_add(Kind::Ip, size(1, 100), 0)), (false, Ok(())));
        assert!(size_tracker.exceeds_listing_limits());
    }
}
