//! A group: changes that are stored together, atomically.
//!
//! The committer fills groups, and the log numbers them. Groups that wait for the store are merged.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::stored_value::{KeyBytes, StoredValue};
use super::{change_times, codec, replaced};
use crate::model::{
    ClusterName, ClusterRecord, Cursor, EntryKey, EpochSpan, ObservationGap, Record, ReplacedRecords, Scope, Sequence, SequenceRun,
    Tombstone,
};
use crate::pack::Chunk;

/// Changes of stored keys; `None` deletes.
pub(in crate::store) type KeyChanges = BTreeMap<KeyBytes, Option<StoredValue>>;

/// Changes that become durable together: entries and the cursors that cover them
/// (docs/develop/invariants.md, 1). `None` deletes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Group {
    /// Number from the log, the highest one if groups were merged. 0 if the log has not numbered it
    /// yet.
    pub number: u64,
    /// Entries.
    pub records: BTreeMap<EntryKey, Option<Arc<Record>>>,
    /// Chunks that were packed from some of the records, so that the store need not pack them
    /// again. They are ignored if newer records replace theirs.
    pub chunks: Vec<Chunk>,
    /// Cursors of scopes.
    pub cursors: BTreeMap<Scope, Option<Cursor>>,
    /// Records of clusters.
    pub clusters: BTreeMap<ClusterName, Option<ClusterRecord>>,
    /// Tombstones, by the sequence of the delete.
    pub tombstones: BTreeMap<Sequence, Option<Tombstone>>,
    /// Observation gaps of scopes, oldest first.
    pub gaps: BTreeMap<Scope, Option<Arc<[ObservationGap]>>>,
    /// Runs of sequences with their times, by their first sequence.
    pub times: BTreeMap<Sequence, Option<SequenceRun>>,
    /// Sequence below which tombstones were dropped.
    pub floor: Option<Sequence>,
    /// Epochs whose positions may be valid, oldest first.
    pub epochs: Option<Vec<EpochSpan>>,
    /// Newest sequence up to which everything is in this group or earlier ones.
    pub covered_sequence: Option<Sequence>,
    /// Version of the rules by which all derived entries are made, including those of earlier
    /// groups.
    pub derivation_version: Option<u64>,
    /// Highest reserved sequence. Sequences up to it may be used.
    pub sequence_reserved: Option<Sequence>,
    /// Records that the changes of the group replaced, for the history. Only the log contains them.
    pub replaced: Option<ReplacedRecords>,
}

impl Group {
    /// Returns whether the group has no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of stored keys that the group changes. Replaced records do not count.
    #[must_use]
    pub fn len(&self) -> usize {
        // keys of which a store has one each
        let sequence_count = [self.sequence_reserved, self.floor, self.covered_sequence].iter().flatten().count();
        let single_key_count = sequence_count + usize::from(self.epochs.is_some()) + usize::from(self.derivation_version.is_some());
        let observation_count = self.gaps.len() + self.times.len();
        self.records.len() + self.cursors.len() + self.clusters.len() + self.tombstones.len() + observation_count + single_key_count
    }

    /// Adds an older group. If both change the same key, the change of this group is kept.
    pub fn merge_older(&mut self, older: Self) {
        self.number = self.number.max(older.number);
        merge_missing(&mut self.records, older.records);
        self.chunks.splice(0..0, older.chunks);
        merge_missing(&mut self.cursors, older.cursors);
        merge_missing(&mut self.clusters, older.clusters);
        merge_missing(&mut self.tombstones, older.tombstones);
        merge_missing(&mut self.gaps, older.gaps);
        merge_missing(&mut self.times, older.times);
        self.floor = self.floor.max(older.floor);
        self.covered_sequence = self.covered_sequence.max(older.covered_sequence);
        self.epochs = self.epochs.take().or(older.epochs);
        self.derivation_version = self.derivation_version.or(older.derivation_version);
        self.sequence_reserved = self.sequence_reserved.max(older.sequence_reserved);
        match (&mut self.replaced, older.replaced) {
            (Some(newer), Some(older)) => newer.merge_older(older),
            (newer @ None, older) => *newer = older,
            (Some(_), None) => {}
        }
    }

    /// Returns the changes of stored keys.
    pub(in crate::store) fn changes(&self) -> KeyChanges {
        let item = |body: Vec<u8>| StoredValue::Item(body.into());
        let mut changes = KeyChanges::new();
        let records = self.records.iter().map(|(key, record)| (codec::entry_key(key), record.clone().map(StoredValue::Record)));
        let cursors =
            self.cursors.iter().map(|(scope, cursor)| (codec::cursor_key(scope), cursor.as_ref().map(codec::encode_cursor).map(item)));
        let clusters = self
            .clusters
            .iter()
            .map(|(cluster, record)| (codec::cluster_key(cluster), record.as_ref().map(codec::encode_cluster).map(item)));
        let tombstones = self
            .tombstones
            .iter()
            .map(|(sequence, tombstone)| (codec::tombstone_key(*sequence), tombstone.as_ref().map(codec::encode_tombstone).map(item)));
        let gaps = self.gaps.iter().map(|(scope, gaps)| (codec::gaps_key(scope), gaps.as_deref().map(change_times::encode_gaps).map(item)));
        let times = self.times.iter().map(|(first, run)| (codec::run_key(*first), run.as_ref().map(change_times::encode_run).map(item)));
        for (key, value) in records.chain(cursors).chain(clusters).chain(tombstones).chain(gaps).chain(times) {
            changes.insert(key.into(), value);
        }
        if let Some(epochs) = &self.epochs {
            changes.insert(codec::EPOCHS_KEY.into(), Some(item(codec::encode_epochs(epochs))));
        }
        let sequences =
            [(codec::SEQUENCE_KEY, self.sequence_reserved), (codec::FLOOR_KEY, self.floor), (codec::COVERED_KEY, self.covered_sequence)];
        let numbers = sequences.map(|(key, sequence)| (key, sequence.map(|sequence| sequence.0)));
        for (key, number) in numbers.into_iter().chain([(codec::DERIVED_KEY, self.derivation_version)]) {
            if let Some(number) = number {
                changes.insert(key.into(), Some(item(codec::encode_number(number))));
            }
        }
        changes.extend(self.replaced.iter().flat_map(replaced::log_values));
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
