//! A group: changes that are stored together.
//!
//! Owns: what a group holds and how two become one. Emits: the changes of stored keys. Deliberately lacks: when to store it (the writer knows).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::change::{Key, Value};
use super::codec;
use crate::model::{ClusterName, ClusterRecord, Cursor, EntryKey, EpochSpan, Record, Scope, Sequence, Tombstone};

/// What groups do to stored keys; `None` deletes.
pub(in crate::store) type Changes = BTreeMap<Key, Option<Value>>;

/// Changes that become durable as one: entries and the cursors that claim them (docs/develop/invariants.md, 1). `None` deletes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Group {
    /// The number of the newest of the groups that it is made of, which the log gives; 0 where it has none yet.
    pub number: u64,
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
    /// The rules by which all entries derived from nodes are made, with this group and those before.
    pub derived: Option<u64>,
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
        let marks = [self.sequence_reserved, self.floor, self.covered].iter().flatten().count();
        let marks = marks + usize::from(self.epochs.is_some()) + usize::from(self.derived.is_some());
        self.records.len() + self.cursors.len() + self.clusters.len() + self.tombstones.len() + marks
    }

    /// Takes in a group from before this one. Where both change the same thing, this one stands.
    pub fn merge_older(&mut self, older: Self) {
        self.number = self.number.max(older.number);
        merge_missing(&mut self.records, older.records);
        merge_missing(&mut self.cursors, older.cursors);
        merge_missing(&mut self.clusters, older.clusters);
        merge_missing(&mut self.tombstones, older.tombstones);
        self.floor = self.floor.max(older.floor);
        self.covered = self.covered.max(older.covered);
        self.epochs = self.epochs.take().or(older.epochs);
        self.derived = self.derived.or(older.derived);
        self.sequence_reserved = self.sequence_reserved.max(older.sequence_reserved);
    }

    /// What the group does to stored keys.
    pub(in crate::store) fn changes(&self) -> Changes {
        let item = |body: Vec<u8>| Value::Item(body.into());
        let mut changes = Changes::new();
        let records = self.records.iter().map(|(key, record)| (codec::entry_key(key), record.clone().map(Value::Record)));
        let cursors =
            self.cursors.iter().map(|(scope, cursor)| (codec::cursor_key(scope), cursor.as_ref().map(codec::write_cursor).map(item)));
        let clusters = self
            .clusters
            .iter()
            .map(|(cluster, record)| (codec::cluster_key(cluster), record.as_ref().map(codec::write_cluster).map(item)));
        let tombstones = self
            .tombstones
            .iter()
            .map(|(sequence, tombstone)| (codec::tombstone_key(*sequence), tombstone.as_ref().map(codec::write_tombstone).map(item)));
        for (key, value) in records.chain(cursors).chain(clusters).chain(tombstones) {
            changes.insert(key.into(), value);
        }
        if let Some(epochs) = &self.epochs {
            changes.insert(codec::EPOCHS_KEY.into(), Some(item(codec::write_epochs(epochs))));
        }
        let sequences = [(codec::SEQUENCE_KEY, self.sequence_reserved), (codec::FLOOR_KEY, self.floor), (codec::COVERED_KEY, self.covered)];
        let marks = sequences.map(|(key, sequence)| (key, sequence.map(|sequence| sequence.0)));
        for (key, number) in marks.into_iter().chain([(codec::DERIVED_KEY, self.derived)]) {
            if let Some(number) = number {
                changes.insert(key.into(), Some(item(codec::write_number(number))));
            }
        }
        changes
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
