//! Restores the mirror from the store: chunks are used as they are, later changes are decoded, and
//! nothing counts as confirmed.
//!
//! Positions of the previous process remain valid, because everything that it announced is stored
//! (docs/develop/invariants.md, 6).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use super::plan::{EpochSeed, StartPlan};
use crate::commit::{MirrorSnapshot, first_reservation};
use crate::feed::{Feed, Retention, SequenceTimes};
use crate::history::HistoryReader;
use crate::model::{ClusterId, ClusterName, EntryKey, MaxConnectedClusters, Record, Rejection, ReplacedRecords, Sequence};
use crate::pack::Chunk;
use crate::store::{Group, Store, StoreContents, StoreError};
use crate::view::{DERIVATION_VERSION, View};
use crate::wire::{self, Context};

/// Maximum number of nodes whose derived entries are stored in one group: some thousands of
/// entries, as in the committer's groups.
const DERIVED_NODES_MAX: usize = 1_024;

/// A restored mirror, ready for the committer.
pub(super) struct RestoredMirror {
    pub(super) published: MirrorSnapshot,
    /// Last sequence that may be used before more are reserved.
    pub(super) reserved: Sequence,
    /// Decoded records that the store has in its log.
    pub(super) log_records: Vec<Arc<Record>>,
    pub(super) restored_count: u64,
    pub(super) damaged_count: u64,
    /// Groups that could not be stored yet, and the reason. A full disk stops storing, not serving.
    pub(super) unstored: Option<(Group, StoreError)>,
}

/// Loads the store and reserves the first block of sequences. Keeps the plan of the early answers
/// (`early_plan`) if the loaded store leads to the same plan. Otherwise makes a new plan from
/// `fresh_seed`.
pub(super) fn restore(
    store: &Store,
    max_connected_clusters: MaxConnectedClusters,
    retention: Retention,
    early_plan: Option<StartPlan>,
    fresh_seed: EpochSeed,
    history: Option<&HistoryReader>,
) -> Result<RestoredMirror, StoreError> {
    let mut loaded = store.load()?;
    let history_end = history.and_then(|history| restore_history(store, history, &mut loaded));
    let (restored_count, damaged_count) = (loaded.record_count(), loaded.damaged_count);
    let decoder = RecordDecoder::new(&loaded, max_connected_clusters);
    decoder.decode_all(&mut loaded.changed);
    let log_records: Vec<Arc<Record>> = loaded.changed.values().flatten().cloned().collect();
    let clusters = known_clusters(&loaded);
    let plan = early_plan.filter(|early_plan| StartPlan::new(&loaded, clusters.clone(), early_plan.seed).is_equivalent(early_plan));
    let plan = plan.unwrap_or_else(|| StartPlan::new(&loaded, clusters, fresh_seed));
    if plan.is_new_history && loaded.sequence_reserved > Sequence(0) {
        tracing::warn!(
            "the clock of this machine is behind the newest time in the store: clients of --etcd-listen get a new cluster id and list again at each start until the clock has caught up; correct the clock; if instead it was fast before, just wait"
        );
    }
    store.log().begin_epoch(plan.seed.epoch);
    let reserved = first_reservation(plan.head);
    let epochs = plan.stored_epochs();
    let replaced = history.map(|_| ReplacedRecords {
        // without the end of the history there is a gap; no entry changes with the sequence of the
        // head
        after: history_end.unwrap_or(Sequence(plan.head.0 - 1)),
        last: plan.head,
        times: vec![(plan.head, plan.seed.time)],
        records: BTreeMap::new(),
    });
    let group =
        Group { epochs: Some(epochs), covered_sequence: Some(plan.head), sequence_reserved: Some(reserved), replaced, ..Group::default() };
    let mut unstored = None;
    persist_group(store, group, &mut unstored);
    let derived = loaded.derivation_version == Some(DERIVATION_VERSION);
    let mut published = build_snapshot(loaded, &plan, retention);
    if history.is_some() {
        published.view.collect_replaced();
    }
    let reserved = if derived { reserved } else { rederive(store, &mut published, history.is_some(), &mut unstored) };
    Ok(RestoredMirror { published, reserved, log_records, restored_count, damaged_count, unstored })
}

/// Adds the replaced records that only the log has to the history. Returns the last sequence of the
/// history if the store continues it.
fn restore_history(store: &Store, history: &HistoryReader, loaded: &mut StoreContents) -> Option<Sequence> {
    let recovered = std::mem::take(&mut loaded.replaced).decode_after(history.last());
    store.log().set_history(Arc::new(history.clone()), &recovered);
    let end = history.last();
    // a restored backup may have a history that is newer than its store
    loaded.sequence_reserved = loaded.sequence_reserved.max(end);
    // after damage there are no epochs: entries may be missing
    (loaded.covered_sequence == end && !loaded.epochs.is_empty()).then_some(end)
}

/// Stores a group. After a failure, the group and all later ones are merged into `unstored`,
/// because the log must not have gaps.
fn persist_group(store: &Store, mut group: Group, unstored: &mut Option<(Group, StoreError)>) {
    store.log().append(&mut group);
    let outcome = match unstored.take() {
        Some((before, error)) => {
            group.merge_older(before);
            Err(error)
        }
        None => store.apply(&group),
    };
    if let Err(error) = outcome {
        *unstored = Some((group, error));
    }
}

/// Updates the entries derived from nodes if the store has none (written by an earlier version),
/// has entries that were derived by other rules, or has lost some. The updates are ordinary
/// changes. Returns the last reserved sequence.
fn rederive(store: &Store, published: &mut MirrorSnapshot, has_history: bool, unstored: &mut Option<(Group, StoreError)>) -> Sequence {
    let keys = published.view.keys_to_rederive();
    if !keys.is_empty() {
        tracing::info!(nodes = keys.len(), "deriving ipcache entries from nodes");
    }
    let now = SystemTime::now();
    let mut pieces = keys.chunks(DERIVED_NODES_MAX).peekable();
    loop {
        let piece = pieces.next().unwrap_or_default();
        let after = published.feed.head();
        let change_set = published.view.rederive(piece, now);
        let mut group = Group { records: change_set.records.into_iter().collect(), ..Group::default() };
        for announcement in change_set.announcements {
            let effects = published.feed.announce(announcement, now);
            group.tombstones.extend(effects.tombstones);
            group.floor = effects.floor.or(group.floor);
            group.times.extend(effects.times);
        }
        let head = published.feed.head();
        let reserved = first_reservation(head);
        if has_history && head > after {
            group.replaced = Some(ReplacedRecords { after, last: head, times: vec![(after.next(), now)], records: change_set.replaced });
        }
        group.covered_sequence = Some(head);
        group.sequence_reserved = Some(reserved);
        let last = pieces.peek().is_none();
        // the mark comes last: without it, the next start derives everything again
        group.derivation_version = last.then_some(DERIVATION_VERSION);
        persist_group(store, group, unstored);
        if last {
            return reserved;
        }
    }
}

/// Returns every cluster of which the store has entries, a cursor or a record.
fn known_clusters(loaded: &StoreContents) -> BTreeSet<ClusterName> {
    let mut known: BTreeSet<ClusterName> =
        loaded.clusters.iter().map(|(name, _)| name).chain(loaded.cursors.iter().map(|(scope, _)| &scope.cluster)).cloned().collect();
    let is_live = |chunk: &Chunk, row: usize| loaded.changed.get(&chunk.key(row)).is_none_or(Option::is_some);
    for chunk in &loaded.chunks {
        for (rows, cluster) in chunk.scopes() {
            if !known.contains(cluster) && rows.into_iter().any(|row| is_live(chunk, row)) {
                known.insert(cluster.clone());
            }
        }
    }
    for (key, _) in loaded.changed.iter().filter(|(_, record)| record.is_some()) {
        if !known.contains(&key.cluster) {
            known.insert(key.cluster.clone());
        }
    }
    known
}

fn build_snapshot(loaded: StoreContents, plan: &StartPlan, retention: Retention) -> MirrorSnapshot {
    let mut view = plan.view(&loaded);
    view.restore_chunks(loaded.chunks);
    restore_changed(&mut view, loaded.changed);
    let mut feed = Feed::starting_at(plan.head, retention);
    for (sequence, tombstone) in loaded.tombstones {
        feed.restore_tombstone(sequence, tombstone);
    }
    feed.restore_floor(loaded.floor);
    feed.restore_times(SequenceTimes::from_runs(loaded.times));
    MirrorSnapshot { view, feed, epoch: plan.seed.epoch, earlier_runs: plan.accepted_epochs() }
}

/// Applies the changes since the chunks were packed.
pub(super) fn restore_changed(view: &mut View, changed: BTreeMap<EntryKey, Option<Arc<Record>>>) {
    for (key, record) in changed {
        match record {
            Some(record) => view.restore(record),
            None => view.restore_deleted(&key),
        }
    }
}

/// Decodes the objects of stored records.
#[derive(Debug)]
pub(super) struct RecordDecoder {
    ids: BTreeMap<ClusterName, ClusterId>,
    max_connected_clusters: MaxConnectedClusters,
}

impl RecordDecoder {
    pub(super) fn new(loaded: &StoreContents, max_connected_clusters: MaxConnectedClusters) -> Self {
        let ids = loaded.clusters.iter().filter_map(|(name, record)| Some((name.clone(), record.config.as_ref()?.id)));
        Self { ids: ids.collect(), max_connected_clusters }
    }

    /// Decodes all records without an object, in two threads: after a kill there are some 80,000.
    pub(super) fn decode_all(&self, changed: &mut BTreeMap<EntryKey, Option<Arc<Record>>>) {
        let mut records: Vec<&mut Arc<Record>> = changed.values_mut().flatten().collect();
        let half = records.len() / 2;
        let (left, right) = records.split_at_mut(half);
        let decode = |records: &mut [&mut Arc<Record>]| {
            for record in records {
                **record = self.decode(Record::clone(record));
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| decode(left));
            decode(right);
        });
    }

    fn decode(&self, record: Record) -> Arc<Record> {
        let cluster_id = self.ids.get(&record.key.cluster).copied().unwrap_or_default();
        Arc::new(if record.object.is_some() { record } else { decode(record, cluster_id, self.max_connected_clusters) })
    }
}

/// Decodes a stored record's newest value, or the last usable one if the newest was rejected.
fn decode(mut record: Record, cluster_id: ClusterId, max_connected_clusters: MaxConnectedClusters) -> Record {
    let cluster = record.key.cluster.clone();
    let context = Context { cluster: &cluster, cluster_id, max_connected_clusters };
    let usable = match (&record.rejection, &record.good_value) {
        (None, _) => Some(&record.value),
        (Some(_), good_value) => good_value.as_ref(),
    };
    match usable.map(|value| wire::decode_shared(&record.key, value, &context)) {
        Some(Ok(object)) => record.object = Some(Arc::new(object)),
        Some(Err(reason)) if record.rejection.is_none() => {
            // an older version accepted this value
            let now = SystemTime::now();
            record.rejection = Some(Rejection { reason: reason.into(), first_seen: now, last_seen: now });
        }
        Some(Err(_)) | None => {}
    }
    record
}

#[cfg(test)]
mod tests;
