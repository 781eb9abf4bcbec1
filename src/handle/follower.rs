//! Position of a reader in the order of changes, and the changes that the reader lacks.
//!
//! Streams, watches of the etcd API, `reflect` and the builder of the finding index
//! (`finding_index/builder.rs`) follow the mirror in the same way. While the feed's ring reaches
//! back to the position, [`Follower::each_change`] returns every change. A reader that is further
//! behind gets the newest state of each changed key from [`Follower::newest_changes`]. If deletes
//! since its position may be missing, it gets [`Expired`] and has to start again.

use std::sync::Arc;

use super::Reading;
use crate::commit::LatestChange;
use crate::feed::Announcement;
use crate::model::Sequence;
use crate::view::LiveKey;

/// Reader that has everything up to a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Follower {
    position: Sequence,
}

/// Error: deletes since the position may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// Lowest position after which all deletes are known.
    pub lowest: Sequence,
}

/// Newest changes of the keys that changed after a position.
#[derive(Debug)]
pub struct NewestChanges {
    /// Newest change of each key, in order of sequence.
    pub changes: Vec<(Sequence, LatestChange<LiveKey>)>,
    /// Sequence up to which the changes are complete: the snapshot's head, or, if `count` cut the
    /// list short, the last change returned.
    pub up_to: Sequence,
}

impl Follower {
    /// Creates a follower that has everything up to a position.
    #[must_use]
    pub const fn at(position: Sequence) -> Self {
        Self { position }
    }

    /// Returns the sequence up to which the follower has everything.
    #[must_use]
    pub const fn position(self) -> Sequence {
        self.position
    }

    /// Returns whether the follower has everything in a snapshot.
    #[must_use]
    pub fn is_current(self, reading: &Reading) -> bool {
        self.position >= reading.position().sequence
    }

    /// Records that the follower has everything up to a later position.
    pub fn advance_to(&mut self, position: Sequence) {
        debug_assert!(position >= self.position, "a follower never reads a change twice");
        self.position = position;
    }

    /// Returns each change after the position, oldest first. `None` if the feed's ring no longer
    /// has all of them.
    #[must_use]
    pub fn each_change(self, reading: &Reading) -> Option<impl Iterator<Item = &Arc<Announcement>>> {
        reading.published.feed.ring_after(self.position)
    }

    /// Checks that the snapshot has all deletes since the position.
    ///
    /// # Errors
    /// [`Expired`] if deletes may be missing.
    pub fn check(self, reading: &Reading) -> Result<(), Expired> {
        let lowest = reading.published.feed.floor();
        if self.position < lowest { Err(Expired { lowest }) } else { Ok(()) }
    }

    /// Returns the newest change of each key that changed after the position, up to `count` of
    /// them.
    ///
    /// # Errors
    /// [`Expired`] if deletes since the position may be missing.
    pub fn newest_changes(self, reading: &Reading, count: usize) -> Result<NewestChanges, Expired> {
        self.check(reading)?;
        let published = &reading.published;
        // one more than is returned, to find out whether these are all
        let mut changes = published.changes_after(self.position, count.saturating_add(1));
        let are_all = changes.len() <= count;
        changes.truncate(count);
        let last = changes.last().map_or(self.position, |(sequence, _)| *sequence);
        Ok(NewestChanges { changes, up_to: if are_all { published.feed.head() } else { last } })
    }
}
