//! A group: changes that are stored together.
//!
//! Owns: what a group holds and how two become one. Emits: the writes for the engine. Deliberately lacks: when to store it (the writer knows).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::codec;
use super::engine::Write;
use crate::model::{ClusterName, ClusterRecord, Cursor, EntryKey, EpochSpan, Record, Scope, Sequence, Tombstone};

/// Changes that become durable as one: entries and the cursors that claim them (design.md, invariant 1). `None` deletes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Group {
    /// Entries by key.
    pub records: BTreeMap<EntryKey, Option<Arc<Record>>>,
    /// How far scopes are mirrored.
    pub cursors: BTreeMap<Scope, Option<Cursor>>,
    /// What clusters say about themselves.
    pub clusters: BTreeMap<ClusterName, Option<ClusterRecord>>,
    /// What is left of keys that went, by the sequence at which they did.
    pub tombstones: BTreeMap<Sequence, Option<Tombstone>>,
    /// The sequence below which tombstones are gone.
    pub floor: Option<Sequence>,
    /// The starts that positions may come from, oldest first.
    pub epochs: Option<Vec<EpochSpan>>,
    /// The newest sequence that the group covers, with all before it.
    pub covered: Option<Sequence>,
    /// The new end of the reserved sequences: all up to and including this one may be handed out.
    pub sequence_reserved: Option<Sequence>,
}

impl Group {
    /// Whether there is nothing to store.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys of the store it writes.
    #[must_use]
    pub fn len(&self) -> usize {
        let marks = [self.sequence_reserved, self.floor, self.covered].iter().flatten().count() + usize::from(self.epochs.is_some());
        self.records.len() + self.cursors.len() + self.clusters.len() + self.tombstones.len() + marks
    }

    /// Takes in a group from before this one. Where both change the same thing, this one stands.
    pub fn merge_older(&mut self, older: Self) {
        merge_missing(&mut self.records, older.records);
        merge_missing(&mut self.cursors, older.cursors);
        merge_missing(&mut self.clusters, older.clusters);
        merge_missing(&mut self.tombstones, older.tombstones);
        self.floor = self.floor.max(older.floor);
        self.covered = self.covered.max(older.covered);
        self.epochs = self.epochs.take().or(older.epochs);
        self.sequence_reserved = self.sequence_reserved.max(older.sequence_reserved);
    }

    /// The writes that store the group under its number.
    pub(super) fn writes(&self, number: u64) -> Vec<Write> {
        let mut writes = Vec::with_capacity(self.len() + 1);
        for (key, record) in &self.records {
            let stored_key = codec::entry_key(key);
            let value = record.as_ref().map(|record| codec::write_record(&stored_key, record));
            writes.push((stored_key, value));
        }
        for (scope, cursor) in &self.cursors {
            let stored_key = codec::cursor_key(scope);
            let value = cursor.as_ref().map(|cursor| codec::write_cursor(&stored_key, cursor));
            writes.push((stored_key, value));
        }
        for (cluster, record) in &self.clusters {
            let stored_key = codec::cluster_key(cluster);
            let value = record.as_ref().map(|record| codec::write_cluster(&stored_key, record));
            writes.push((stored_key, value));
        }
        for (sequence, tombstone) in &self.tombstones {
            let stored_key = codec::tombstone_key(*sequence);
            let value = tombstone.as_ref().map(|tombstone| codec::write_tombstone(&stored_key, tombstone));
            writes.push((stored_key, value));
        }
        if let Some(epochs) = &self.epochs {
            writes.push((codec::EPOCHS_KEY.to_vec(), Some(codec::write_epochs(epochs))));
        }
        let marks = [(codec::SEQUENCE_KEY, self.sequence_reserved), (codec::FLOOR_KEY, self.floor), (codec::COVERED_KEY, self.covered)];
        for (key, sequence) in marks {
            if let Some(sequence) = sequence {
                writes.push((key.to_vec(), Some(codec::write_number(key, sequence.0))));
            }
        }
        writes.push((codec::GROUP_KEY.to_vec(), Some(codec::write_number(codec::GROUP_KEY, number))));
        writes
    }
}

fn merge_missing<K: Ord, V>(newer: &mut BTreeMap<K, V>, older: BTreeMap<K, V>) {
    if newer.is_empty() {
        *newer = older;
        return;
    }
    for (key, value) in older {
        if let Entry::Vacant(vacant) = newer.entry(key) {
            vacant.insert(value);
        }
    }
}
