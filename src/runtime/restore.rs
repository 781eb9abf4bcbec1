//! From the store and the journal to the mirror: chunks as they are, what changed since decoded again, nothing confirmed, and announced anew what the
//! process that ended had announced and not stored (docs/invariants.md, 6).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use super::plan::{Begun, Plan};
use crate::commit::{Published, first_reservation};
use crate::feed::{Feed, Retention};
use crate::model::{
    ClusterId, ClusterName, DeleteReason, EntryKey, Epoch, EpochSpan, MaxConnectedClusters, Record, Rejection, Sequence, Tombstone,
};
use crate::pack::Chunk;
use crate::store::{Group, Journal, JournalRun, Loaded, Store, StoreError, read_journals};
use crate::view::{DERIVATION, View};
use crate::wire::{self, Context};

/// How many nodes' entries are stored at once: some thousands of entries, as in the writer's groups.
const DERIVED_NODES_MAX: usize = 1_024;

/// What the store gave.
pub(super) struct Restored {
    pub(super) published: Published,
    pub(super) journal: Journal,
    /// No sequence above this one may be handed out before more are reserved.
    pub(super) reserved: Sequence,
    /// Records that the store has in its log, decoded.
    pub(super) known: Vec<Arc<Record>>,
    pub(super) restored_count: u64,
    pub(super) damaged_count: u64,
    /// What could not be stored yet, and why: a full disk stops storing, not serving.
    pub(super) owed: Option<(Group, StoreError)>,
}

/// Loads everything, draws this start's epoch, reserves its first block of sequences and announces anew what must be. Goes on from what early
/// answers were given by, if that was right.
pub(super) fn restore(
    store: &Store,
    max: MaxConnectedClusters,
    retention: Retention,
    begun: Option<Begun>,
) -> Result<Restored, StoreError> {
    let mut loaded = store.load()?;
    let (restored_count, damaged_count) = (loaded.record_count(), loaded.damaged_count);
    let decoder = Decoder::new(&loaded, max);
    decoder.decode_all(&mut loaded.changed);
    let known: Vec<Arc<Record>> = loaded.changed.values().flatten().cloned().collect();
    let (runs, begun) = match begun {
        Some(begun) => (begun.runs, Some((begun.plan, begun.epoch, begun.journal))),
        None => (runs(store.data_directory()), None),
    };
    let plan = Plan::new(&loaded, &runs, known_clusters(&loaded));
    let mut group = announce_anew(&mut loaded, &plan, &decoder);
    let (epoch, mut journal) = match begun.filter(|(begun, ..)| plan.goes_on(begun)) {
        Some((_, epoch, journal)) => (epoch, journal),
        None => begin_epoch(store.data_directory(), plan.head),
    };
    let mut epochs = plan.vouched.epochs.clone();
    epochs.push(EpochSpan { epoch, began: plan.head, vouched: None });
    let reserved = first_reservation(plan.head);
    group.epochs = Some(epochs);
    group.covered = Some(plan.head);
    group.sequence_reserved = Some(reserved);
    let owed = match store.apply(&group) {
        Ok(()) => {
            report("remove the journals of earlier starts", journal.remove_earlier());
            None
        }
        Err(error) => Some((group, error)),
    };
    let derived = loaded.derived == Some(DERIVATION);
    let mut published = publish(loaded, plan, epoch, retention);
    let reserved = if derived { reserved } else { derive_again(store, &mut published, &mut journal) };
    Ok(Restored { published, journal, reserved, known, restored_count, damaged_count, owed })
}

/// What the announce journals of earlier starts say.
pub(super) fn runs(data_directory: &Path) -> Vec<JournalRun> {
    read_journals(data_directory).unwrap_or_else(|error| {
        tracing::warn!(%error, "the announce journal cannot be read: some streams begin anew");
        Vec::new()
    })
}

/// Draws the epoch of a start, and begins its journal.
pub(super) fn begin_epoch(data_directory: &Path, head: Sequence) -> (Epoch, Journal) {
    let epoch = Epoch(rand::random());
    let (journal, begun) = Journal::begin(data_directory, epoch, head);
    report("begin the announce journal", begun);
    (epoch, journal)
}

/// Brings the entries derived from nodes up to date, where the store has none (of an earlier version), ones by other rules, or has lost some:
/// as changes like any others, noted in the journal and stored. Returns the end of the sequences that may be handed out then.
fn derive_again(store: &Store, published: &mut Published, journal: &mut Journal) -> Sequence {
    let keys = published.view.nodes_to_derive();
    if !keys.is_empty() {
        tracing::info!(nodes = keys.len(), "deriving ipcache entries from nodes");
    }
    let now = SystemTime::now();
    let mut pieces = keys.chunks(DERIVED_NODES_MAX).peekable();
    let mut stored = Ok(());
    loop {
        let piece = pieces.next().unwrap_or_default();
        let effects = published.view.derive_again(piece, now);
        let mut group = Group { records: effects.records.into_iter().collect(), ..Group::default() };
        journal.append(effects.announcements.iter().map(|announcement| (announcement.sequence, Some(&announcement.key))));
        for announcement in effects.announcements {
            let of_feed = published.feed.announce(announcement, now);
            group.tombstones.extend(of_feed.tombstones);
            group.floor = of_feed.floor.or(group.floor);
        }
        let reserved = first_reservation(published.feed.head());
        group.covered = Some(published.feed.head());
        group.sequence_reserved = Some(reserved);
        let last = pieces.peek().is_none();
        group.derived = last.then_some(DERIVATION);
        // without the mark, which comes last, everything is derived again at the next start
        stored = stored.and_then(|()| store.apply(&group));
        if last {
            report("store the entries derived from nodes", stored.map_err(io::Error::other));
            return reserved;
        }
    }
}

/// Every cluster that the store knows.
fn known_clusters(loaded: &Loaded) -> BTreeSet<ClusterName> {
    let mut known: BTreeSet<ClusterName> =
        loaded.clusters.iter().map(|(name, _)| name).chain(loaded.cursors.iter().map(|(scope, _)| &scope.cluster)).cloned().collect();
    let is_live = |chunk: &Chunk, row: usize| loaded.changed.get(&chunk.key(row)).is_none_or(Option::is_some);
    for chunk in &loaded.chunks {
        for (rows, cluster) in chunk.clusters() {
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

fn report(what: &str, outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::error!(%error, "cannot {what}");
    }
}

/// Gives every key that was announced and not stored its new sequence: its recovered value, or a tombstone. Returns what to store.
fn announce_anew(loaded: &mut Loaded, plan: &Plan, decoder: &Decoder) -> Group {
    let mut group = Group::default();
    let now = SystemTime::now();
    loaded.tombstones.retain(|(sequence, tombstone)| {
        let replaced = plan.vouched.keys.contains(&tombstone.key);
        if replaced {
            group.tombstones.insert(*sequence, None);
        }
        !replaced
    });
    for (key, sequence) in &plan.announced {
        if let Some(record) = loaded.record(key) {
            let record = decoder.decode(Record { last_sequence: *sequence, ..Arc::unwrap_or_clone(record) });
            loaded.changed.insert(key.clone(), Some(Arc::clone(&record)));
            group.records.insert(key.clone(), Some(record));
        } else {
            let tombstone = Tombstone { key: key.clone(), reason: DeleteReason::Deleted, time: now };
            group.tombstones.insert(*sequence, Some(tombstone.clone()));
            loaded.tombstones.push((*sequence, tombstone));
        }
    }
    group
}

fn publish(loaded: Loaded, plan: Plan, epoch: Epoch, retention: Retention) -> Published {
    let mut view = plan.view(&loaded);
    view.restore_chunks(loaded.chunks);
    restore_changed(&mut view, loaded.changed);
    let mut feed = Feed::starting_at(plan.head, retention);
    for (sequence, tombstone) in loaded.tombstones {
        feed.restore_tombstone(sequence, tombstone);
    }
    feed.restore_floor(loaded.floor);
    Published { view, feed, epoch, earlier: plan.vouched.epochs.into() }
}

/// Takes in what changed since the chunks.
pub(super) fn restore_changed(view: &mut View, changed: BTreeMap<EntryKey, Option<Arc<Record>>>) {
    for (key, record) in changed {
        match record {
            Some(record) => view.restore(record),
            None => view.restore_deleted(&key),
        }
    }
}

/// Gives stored records their objects back.
#[derive(Debug)]
pub(super) struct Decoder {
    ids: BTreeMap<ClusterName, ClusterId>,
    max: MaxConnectedClusters,
}

impl Decoder {
    pub(super) fn new(loaded: &Loaded, max: MaxConnectedClusters) -> Self {
        let ids = loaded.clusters.iter().filter_map(|(name, record)| Some((name.clone(), record.config.as_ref()?.id)));
        Self { ids: ids.collect(), max }
    }

    /// Decodes all that are not yet, in two threads: after a kill there are some 80,000.
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

    /// Decodes one that is not yet.
    fn decode(&self, record: Record) -> Arc<Record> {
        let cluster_id = self.ids.get(&record.key.cluster).copied().unwrap_or_default();
        Arc::new(if record.object.is_some() { record } else { decode(record, cluster_id, self.max) })
    }
}

/// Gives a stored record its object back: from the newest bytes, or from the last usable ones where those were refused.
fn decode(mut record: Record, cluster_id: ClusterId, max: MaxConnectedClusters) -> Record {
    let cluster = record.key.cluster.clone();
    let context = Context { cluster: &cluster, cluster_id, max_connected_clusters: max };
    let usable = match (&record.rejection, &record.good_value) {
        (None, _) => Some(&record.value),
        (Some(_), good_value) => good_value.as_ref(),
    };
    match usable.map(|value| wire::decode_held(&record.key, value, &context)) {
        Some(Ok(object)) => record.object = Some(Arc::new(object)),
        Some(Err(reason)) if record.rejection.is_none() => {
            // an older version found these bytes usable
            let now = SystemTime::now();
            record.rejection = Some(Rejection { reason: reason.into(), first_seen: now, last_seen: now });
        }
        Some(Err(_)) | None => {}
    }
    record
}

#[cfg(test)]
mod tests;
