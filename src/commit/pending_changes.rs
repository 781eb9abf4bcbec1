//! Changes that wait for the store: groups merged into one, with the newest state of each key and
//! the total size.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem::{size_of, take};
use std::sync::Arc;
use std::time::SystemTime;

use crate::model::{EntryKey, Record, ReplacedRecords, Sequence};
use crate::store::Group;

/// Approximate memory of a cursor, a tombstone or another small part of a group.
const SMALL_BYTES: usize = 200;

/// Maximum bytes of replaced records that wait for the store. Above it they are dropped, and the
/// history has them only in memory until it is sealed. A group of a healthy store has less.
const REPLACED_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    group: Group,
    /// Bytes of the records in the group.
    record_bytes: usize,
    /// Bytes of the replaced records in the group.
    replaced_bytes: usize,
}

impl PendingChanges {
    /// Adds a group that is newer than the current changes.
    pub(super) fn add(&mut self, mut newer: Group) {
        let records = take(&mut newer.records);
        let mut all = take(&mut self.group.records);
        self.record_bytes += records.iter().map(|(key, record)| byte_count(key, record.as_ref())).sum::<usize>();
        if all.is_empty() {
            all = records;
        } else {
            for (key, record) in records {
                match all.entry(key) {
                    Entry::Vacant(vacant) => drop(vacant.insert(record)),
                    Entry::Occupied(mut occupied) => {
                        self.record_bytes -= byte_count(occupied.key(), occupied.get().as_ref());
                        occupied.insert(record);
                    }
                }
            }
        }
        self.replaced_bytes += newer.replaced.as_ref().map_or(0, replaced_byte_count);
        newer.merge_older(take(&mut self.group));
        newer.records = all;
        // they are not merged by key, so while the store fails they would fill the memory
        if self.replaced_bytes > REPLACED_BYTES_MAX {
            (newer.replaced, self.replaced_bytes) = (None, 0);
        }
        self.group = newer;
    }

    /// Puts back a group that is older than the current changes.
    pub(super) fn put_back(&mut self, mut older: Group) {
        let newer = take(&mut self.group);
        debug_assert_eq!(self.group.len(), 0, "the newer group was taken out");
        *self = Self::default();
        let records: BTreeMap<_, _> = take(&mut older.records);
        self.add(Group { records, ..older });
        self.add(newer);
    }

    pub(super) fn take_group(&mut self) -> Group {
        take(self).group
    }

    /// Returns the number of keys of the store that the changes write.
    pub(super) fn len(&self) -> usize {
        self.group.len()
    }

    /// Returns the approximate memory of the changes.
    pub(super) fn bytes(&self) -> usize {
        self.record_bytes + self.replaced_bytes + (self.group.len() - self.group.records.len()) * SMALL_BYTES
    }
}

/// Returns the approximate memory of replaced records.
fn replaced_byte_count(replaced: &ReplacedRecords) -> usize {
    let records = replaced.records.values().map(|replaced| byte_count(&replaced.record.key, Some(&replaced.record)));
    records.sum::<usize>() + replaced.times.len() * size_of::<(Sequence, SystemTime)>()
}

/// Returns the approximate memory of a changed key, with the object that its record keeps.
fn byte_count(key: &EntryKey, record: Option<&Arc<Record>>) -> usize {
    size_of::<EntryKey>() + key.name.len() + record.map_or(0, |record| record.footprint())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClusterName, Kind, SourceStamp};

    fn group(changes: &[(&str, Option<usize>)], sequence: u64) -> Group {
        let change = |(name, length): &(&str, Option<usize>)| {
            let key = EntryKey::new(Kind::Service, ClusterName::parse("paris").unwrap(), *name);
            let record = length.map(|length| {
                Arc::new(Record {
                    key: key.clone(),
                    value: vec![0; length].into(),
                    good_value: None,
                    object: None,
                    rejection: None,
                    source: SourceStamp::default(),
                    create_sequence: Sequence(1),
                    last_sequence: Sequence(sequence),
                    version: 1,
                    generation: 1,
                })
            });
            (key, record)
        };
        Group { records: changes.iter().map(change).collect(), covered_sequence: Some(Sequence(sequence)), ..Group::default() }
    }

    #[test]
    fn pending_changes_count_only_the_newest_record_of_each_key() {
        let mut pending = PendingChanges::default();
        pending.add(group(&[("a", Some(1 << 20)), ("b", Some(10))], 1));
        pending.add(group(&[("b", Some(20)), ("c", Some(30))], 2));
        pending.add(group(&[("a", None)], 3));
        let first = pending.take_group();
        let expected = [("a", None), ("b", Some(20)), ("c", Some(30))];
        assert_eq!(first.records.keys().collect::<Vec<_>>(), group(&expected, 1).records.keys().collect::<Vec<_>>());
        assert_eq!((pending.bytes(), pending.len()), (0, 0));
        pending.add(group(&[("c", Some(500))], 4));
        pending.put_back(first);
        let mut merged_once = PendingChanges::default();
        merged_once.add(group(&[("a", None), ("b", Some(20)), ("c", Some(500))], 4));
        assert_eq!(pending.bytes(), merged_once.bytes());
        let group = pending.take_group();
        let lengths: Vec<_> = group.records.values().map(|record| record.as_ref().map(|record| record.value.len())).collect();
        assert_eq!((lengths, group.covered_sequence), (vec![None, Some(20), Some(500)], Some(Sequence(4))));
    }
}
