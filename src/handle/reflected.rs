//! The mirror as it is copied into another etcd: keys in order and changes since a position,
//! without decoding.

use super::Reading;
use crate::commit::Changed;
use crate::model::{DeleteReason, EntryKey, Sequence};

/// Changed key, with the reason if it was deleted.
type ChangedKey = (EntryKey, Option<DeleteReason>);

impl Reading {
    /// Returns up to `count` keys of one kind of a cluster, from `start` on, sorted by name.
    #[must_use]
    pub fn keys_from(&self, start: &EntryKey, count: usize) -> Vec<EntryKey> {
        let keys = self.published().view.live_keys_from(start).map(|live| live.key());
        keys.take_while(|key| key.kind == start.kind && key.cluster == start.cluster).take(count).collect()
    }

    /// Returns the keys that changed after a position, each with its newest change, in order, and
    /// the position up to which they are complete. Reads `count` changes at most. `None` if deletes
    /// since the position may be missing.
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
