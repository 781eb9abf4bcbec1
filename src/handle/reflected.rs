//! The mirror as it is copied into another etcd: keys in order, and what changed since, without decoding anything.

use super::Reading;
use crate::commit::Changed;
use crate::model::{DeleteReason, EntryKey, Sequence};

/// A key that changed, and why it left if it did.
type ChangedKey = (EntryKey, Option<DeleteReason>);

impl Reading {
    /// The keys of one mirrored kind of one cluster from a key on, that one included, in the order of their names: so many at most.
    #[must_use]
    pub fn keys_from(&self, start: &EntryKey, count: usize) -> Vec<EntryKey> {
        let keys = self.published().view.live_from(start).map(|live| live.key());
        keys.take_while(|key| key.kind == start.kind && key.cluster == start.cluster).take(count).collect()
    }

    /// What changed after a position, each key with its newest change alone, in order, `count` looked at at most, and the position up to which that is
    /// all. `None` where deletes since then may be forgotten.
    #[must_use]
    pub fn changed_after(&self, position: Sequence, count: usize) -> Option<(Vec<ChangedKey>, Sequence)> {
        let published = self.published();
        if position < published.feed.floor() {
            return None;
        }
        let changes = published.changes_after(position, count);
        let head = published.feed.head();
        let up_to = if changes.len() < count { head } else { changes.last().map_or(head, |(sequence, _)| *sequence) };
        let keys = changes.into_iter().map(|(_, changed)| match changed {
            Changed::Live(key) => (key, None),
            Changed::Gone(key, reason) => (key, Some(reason)),
        });
        Some((keys.collect(), up_to))
    }
}
