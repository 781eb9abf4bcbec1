//! The mirror as it is copied into another etcd: keys in order and stored values, without decoding.

use std::sync::Arc;

use super::Reading;
use crate::model::EntryKey;

impl Reading {
    /// Returns up to `count` keys of one kind of a cluster, from `start` on, sorted by name.
    #[must_use]
    pub fn keys_from(&self, start: &EntryKey, count: usize) -> Vec<EntryKey> {
        let keys = self.published.view.live_keys_from(start).map(|live| live.key());
        keys.take_while(|key| key.kind == start.kind && key.cluster == start.cluster).take(count).collect()
    }

    /// Returns the stored bytes of an entry.
    #[must_use]
    pub fn value(&self, key: &EntryKey) -> Option<Arc<[u8]>> {
        self.published.view.value(key)
    }
}
