//! What a subscription that is live shares with others of the same filter: the announcements after a position, and what each means
//! to a filter. Whoever encodes for many readers at once (`api::events`) needs no subscription for it.

use std::sync::Arc;

use super::{BackendsPatch, Item, LOOKED_AT_MAX, LookBounds, Mode, Subscription, SyncMode, told};
use crate::handle::{Filter, Reading};
use crate::model::{Announcement, ReaderPosition, Sequence};

impl Reading {
    /// The announcements after a position, or `None` where the ring no longer holds all of them.
    pub(crate) fn announced_after(&self, position: Sequence) -> Option<impl Iterator<Item = &Arc<Announcement>>> {
        self.published().feed.ring_after(position)
    }
}

impl Reading {
    /// The position from which on the ring has all announcements.
    pub(crate) fn announced_from(&self) -> Sequence {
        let feed = &self.published().feed;
        Sequence(feed.head().0.saturating_sub(feed.ring_length() as u64))
    }
}

impl Item {
    /// What a live reader with this filter is told of a change, if anything.
    pub(crate) fn told(filter: &Filter, announcement: &Announcement, position: ReaderPosition) -> Option<Self> {
        told(filter, announcement, Some(position))
    }

    /// The patch that says the same as an upsert, where only the backends of a service changed that a reader with this filter holds.
    pub(crate) fn shortened(self, filter: &Filter, announcement: &Announcement) -> Self {
        match (self, announcement.old_object()) {
            (Self::Upsert { key, object, revision, position }, Some(old)) if filter.matches(&key, &old) => {
                match BackendsPatch::between(&old, &object) {
                    Some(patch) => Self::Patch { key, patch, revision, position },
                    None => Self::Upsert { key, object, revision, position },
                }
            }
            (item, _) => item,
        }
    }
}

impl Subscription {
    /// A reader that has everything up to `sent` and fell out of what is shared: it is in replay until the next `synced`.
    pub(crate) fn behind(filter: Filter, sent: Sequence) -> Self {
        let (mode, sync_mode) = (Mode::Replaying, SyncMode::Replay);
        Self { filter, mode, sent, sync_mode, count: 0, reset: None, owes_synced: true, patches: false, pace: LOOKED_AT_MAX }
    }

    /// Whether it sends patches: it was asked to, and the reader holds what they apply to.
    pub(crate) fn takes_patches(&self) -> bool {
        self.patches
    }

    /// Whether it lacks no more than so many changes along the ring, of so many bytes before and after.
    pub(crate) fn lacks_at_most(&self, bounds: LookBounds, reading: &Reading) -> bool {
        let lacked = reading.position().sequence.0.saturating_sub(self.sent.0);
        if !matches!(self.mode, Mode::Live) || usize::try_from(lacked).is_ok_and(|lacked| lacked > bounds.changes) {
            return false;
        }
        // where the ring has lost them, a look finds that out and no more
        reading.announced_after(self.sent).is_none_or(|lacked| lacked.map(|one| one.byte_count()).sum::<usize>() <= bounds.bytes)
    }

    /// Everything up to here was sent.
    pub(crate) fn sent(&self) -> Sequence {
        self.sent
    }
}
