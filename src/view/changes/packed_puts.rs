//! Puts of many new keys at once, as the first list of a kind has them.
//!
//! Their records are packed at once, and so are the entries that are derived from nodes. Otherwise
//! each record would be inserted into the overlay and packed later, and the store would pack it
//! once more (`just bench sync cold`).

use std::sync::Arc;
use std::time::SystemTime;

use super::apply::DecodedPut;
use super::derived::{derive_entries, derived_puts};
use crate::model::{Change, EntryKey, Kind, Record};
use crate::view::{ChangeSet, View, key_of};

/// Minimum number of puts that are packed at once. Each chunk has a fixed cost of about 1.5 KB.
const PACKED_PUTS_MIN: usize = 32;

impl View {
    /// Returns whether all changes are puts of new keys, in key order, and no other key is between
    /// them.
    pub(super) fn can_pack_puts(&self, changes: &[Change]) -> bool {
        let [first, .., last] = changes else { return false };
        changes.len() >= self.packed_puts_min.unwrap_or(PACKED_PUTS_MIN)
            && changes.iter().all(|change| matches!(change, Change::Put { .. }))
            && changes.is_sorted_by(|left, right| key_of(left) < key_of(right))
            && self.records.is_range_free(key_of(first), key_of(last))
    }

    /// Applies puts for which [`View::can_pack_puts`] is true.
    pub(super) fn put_packed(&mut self, changes: Vec<Change>, now: SystemTime, change_set: &mut ChangeSet) {
        let mut records: Vec<Arc<Record>> = Vec::with_capacity(changes.len());
        let mut derived = self.can_pack_derived(&changes).then(Vec::new);
        for change in changes {
            if let Change::Put { key, value, decoded, source } = change {
                let record = self.put_unstored(DecodedPut { key, value, decoded, source }, now, change_set);
                match &mut derived {
                    Some(derived) => derived.extend(derived_puts(&record).map(|put| self.put_unstored(put, now, change_set))),
                    None if record.key.kind == Kind::Node => self.update_derived(&record, now, change_set),
                    None => {}
                }
                records.push(record);
            }
        }
        change_set.chunks.extend(self.records.insert_packed(&records));
        let mut derived = derived.unwrap_or_default();
        if !derived.is_empty() {
            derived.sort_by(|left, right| left.key.cmp(&right.key));
            change_set.chunks.extend(self.records.insert_packed(&derived));
        }
    }

    /// Announces a new record and adds it to the indices. The caller stores it in the view.
    fn put_unstored(&mut self, put: DecodedPut, now: SystemTime, change_set: &mut ChangeSet) -> Arc<Record> {
        let record = self.announce_put(put, None, now, change_set);
        self.add_to_indices(&record);
        record
    }

    /// Returns whether the changes are puts of nodes whose derived entries can be packed: they do
    /// not exist, and no other key is between them.
    fn can_pack_derived(&self, changes: &[Change]) -> bool {
        let nodes = changes.iter().filter_map(|change| match change {
            Change::Put { key, decoded: Ok(object), .. } => Some((key, object.as_node()?)),
            _ => None,
        });
        let keys =
            || nodes.clone().flat_map(|(key, node)| derive_entries(node).into_iter().map(|entry| EntryKey::of_node_ip(key, entry.prefix)));
        let (Some((first, _)), Some((last, _)), Some(highest)) = (nodes.clone().next(), nodes.clone().next_back(), keys().max()) else {
            return false;
        };
        keys().count() >= self.packed_puts_min.unwrap_or(PACKED_PUTS_MIN)
            && self.records.is_range_free(&EntryKey::before_node_ips(first), &highest)
            && self.derived_keys(last).is_empty()
    }
}
