//! Access to announcements for code that encodes events once for many subscribers of the same
//! filter (`api::events`), without a subscription.

use super::{BackendsPatch, BatchLimits, ReadMode, StreamEvent, Subscription, event_of_change};
use crate::feed::Announcement;
use crate::handle::{Filter, Follower, Reading};
use crate::model::{ReaderPosition, Sequence};

impl Reading {
    /// Returns the position after which the ring has all announcements.
    pub(crate) fn announced_from(&self) -> Sequence {
        let feed = &self.published.feed;
        Sequence(feed.head().0.saturating_sub(feed.ring_length() as u64))
    }
}

impl StreamEvent {
    /// Returns the event of a change for a live subscriber with this filter, if any.
    pub(crate) fn of_change(filter: &Filter, announcement: &Announcement, position: ReaderPosition) -> Option<Self> {
        event_of_change(filter, announcement, Some(position))
    }

    /// Replaces an upsert by a patch, if only the backends of a service have changed and a
    /// subscriber with this filter has the old object.
    pub(crate) fn into_patch(self, filter: &Filter, announcement: &Announcement) -> Self {
        match (self, announcement.old_object()) {
            (Self::Upsert { key, object, revision, sequence, position }, Some(old)) if filter.matches(&key, &old) => {
                match BackendsPatch::between(&old, &object) {
                    Some(patch) => Self::Patch { key, patch, revision, sequence, position },
                    None => Self::Upsert { key, object, revision, sequence, position },
                }
            }
            (event, _) => event,
        }
    }
}

impl Subscription {
    /// Creates the subscription of a client that has everything up to `sent`, but was too slow for
    /// the shared events. It replays until the next `synced`.
    pub(crate) fn catching_up_from(filter: Filter, sent: Sequence) -> Self {
        Self { synced_pending: true, ..Self::with_mode(filter, ReadMode::Replaying, Follower::at(sent)) }
    }

    /// Returns whether the subscription sends patches: the subscriber accepts them, and has the
    /// objects that they apply to.
    pub(crate) fn sends_patches(&self) -> bool {
        self.patches
    }

    /// Returns whether a live subscriber is missing at most the given number of changes and bytes,
    /// counting old and new values.
    pub(crate) fn lacks_at_most(&self, bounds: BatchLimits, reading: &Reading) -> bool {
        let lacked = reading.position().sequence.0.saturating_sub(self.sent().0);
        if !matches!(self.mode, ReadMode::Live) || usize::try_from(lacked).is_ok_and(|lacked| lacked > bounds.changes) {
            return false;
        }
        // if the ring has lost them, the next call finds that out at little cost
        self.follower
            .each_change(reading)
            .is_none_or(|lacked| lacked.map(|announcement| announcement.byte_count()).sum::<usize>() <= bounds.bytes)
    }

    /// Returns the sequence up to which everything was sent.
    pub(crate) fn sent(&self) -> Sequence {
        self.follower.position()
    }
}
