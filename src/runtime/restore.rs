//! From the store and the journal to the mirror: every record decoded again, nothing confirmed, and announced anew what the
//! process that ended had announced and not stored (design.md, invariant 6).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use crate::commit::{Published, Vouched, first_reservation, vouch};
use crate::feed::{Feed, Retention};
use crate::model::{
    ClusterId, ClusterName, DeleteReason, EntryKey, Epoch, EpochSpan, Kind, MaxConnectedClusters, Record, Rejection, Sequence, Tombstone,
};
use crate::store::{Group, Journal, Loaded, Store, StoreError, read_journals};
use crate::view::View;
use crate::wire::{self, Context};

/// What the store gave.
pub(super) struct Restored {
    pub(super) published: Published,
    pub(super) journal: Journal,
    /// No sequence above this one may be handed out before more are reserved.
    pub(super) reserved: Sequence,
    pub(super) restored_count: u64,
    pub(super) damaged_count: u64,
}

/// Loads everything, draws this start's epoch, reserves its first block of sequences and announces anew what must be.
pub(super) fn restore(store: &Store, max: MaxConnectedClusters, retention: Retention) -> Result<Restored, StoreError> {
    let mut loaded = store.load()?;
    let runs = read_journals(store.data_directory()).unwrap_or_else(|error| {
        tracing::warn!(%error, "the announce journal cannot be read: some streams begin anew");
        Vec::new()
    });
    let vouched = vouch(&loaded.epochs, loaded.covered, loaded.floor, &runs);
    let (restored_count, damaged_count) = (loaded.records.len() as u64, loaded.damaged_count);
    let (mut group, announced) = announce_anew(&mut loaded, &vouched);
    let clusters = known_clusters(&loaded);
    let head = Sequence(announced.0 + clusters.len() as u64);
    let epoch = Epoch(rand::random());
    let (journal, begun) = Journal::begin(store.data_directory(), epoch, head);
    report("begin the announce journal", begun);
    let mut epochs = vouched.epochs.clone();
    epochs.push(EpochSpan { epoch, began: head, vouched: None });
    let reserved = first_reservation(head);
    group.epochs = Some(epochs);
    group.covered = Some(head);
    group.sequence_reserved = Some(reserved);
    match store.apply(&group) {
        Ok(()) => report("remove the journals of earlier starts", journal.remove_earlier()),
        // a full disk stops persisting, not serving; positions of this start are not honoured by later ones, since the store does
        // not know it
        Err(error) => tracing::error!(%error, "cannot write to the store: serving what it holds, storing is tried again"),
    }
    let published = publish(loaded, Start { head, epoch, max, retention, clusters }, vouched);
    Ok(Restored { published, journal, reserved, restored_count, damaged_count })
}

/// What a start begins with.
struct Start {
    head: Sequence,
    epoch: Epoch,
    max: MaxConnectedClusters,
    retention: Retention,
    /// Their phases are announced anew, with the last sequences up to the head.
    clusters: BTreeSet<ClusterName>,
}

/// Every cluster that the store knows.
fn known_clusters(loaded: &Loaded) -> BTreeSet<ClusterName> {
    let mut known: BTreeSet<ClusterName> =
        loaded.clusters.iter().map(|(name, _)| name).chain(loaded.cursors.iter().map(|(scope, _)| &scope.cluster)).cloned().collect();
    for record in &loaded.records {
        if !known.contains(&record.key.cluster) {
            known.insert(record.key.cluster.clone());
        }
    }
    known
}

fn report(what: &str, outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::error!(%error, "cannot {what}");
    }
}

/// Gives every key that was announced and not stored a new sequence: its recovered value, or a tombstone. Returns what to store and
/// the newest sequence.
fn announce_anew(loaded: &mut Loaded, vouched: &Vouched) -> (Group, Sequence) {
    let mut group = Group::default();
    let mut head = loaded.sequence_reserved.max(vouched.newest);
    let now = SystemTime::now();
    let concerned = loaded.records.iter().enumerate().filter(|(_, record)| vouched.keys.contains(&record.key));
    let places: BTreeMap<EntryKey, usize> = concerned.map(|(at, record)| (record.key.clone(), at)).collect();
    loaded.tombstones.retain(|(sequence, tombstone)| {
        let replaced = vouched.keys.contains(&tombstone.key);
        if replaced {
            group.tombstones.insert(*sequence, None);
        }
        !replaced
    });
    let known = known_clusters(loaded);
    let is_known_cluster = |key: &EntryKey| key.kind == Kind::Cluster && known.contains(&key.cluster);
    for key in vouched.keys.iter().filter(|key| !is_known_cluster(key)) {
        head = head.next();
        if let Some(at) = places.get(key) {
            let record = &mut loaded.records[*at];
            record.last_sequence = head;
            group.records.insert(key.clone(), Some(Arc::new(record.clone())));
        } else {
            let tombstone = Tombstone { key: key.clone(), reason: DeleteReason::Deleted, time: now };
            group.tombstones.insert(head, Some(tombstone.clone()));
            loaded.tombstones.push((head, tombstone));
        }
    }
    (group, head)
}

fn publish(loaded: Loaded, start: Start, vouched: Vouched) -> Published {
    let mut view = View::starting_at(start.head);
    let mut feed = Feed::starting_at(start.head, start.retention);
    let ids: BTreeMap<ClusterName, ClusterId> =
        loaded.clusters.iter().filter_map(|(name, record)| Some((name.clone(), record.config.as_ref()?.id))).collect();
    for (name, record) in loaded.clusters {
        view.restore_cluster(name, record);
    }
    let mut sequence = Sequence(start.head.0 - start.clusters.len() as u64);
    for name in start.clusters {
        sequence = sequence.next();
        feed.restore_live(sequence, EntryKey::of_cluster(name.clone()));
        view.restore_phase(name, sequence);
    }
    for record in loaded.records {
        let cluster_id = ids.get(&record.key.cluster).copied().unwrap_or_default();
        feed.restore_live(record.last_sequence, record.key.clone());
        view.restore(decode(record, cluster_id, start.max));
    }
    for (scope, cursor) in loaded.cursors {
        view.restore_cursor(scope, cursor);
    }
    for (sequence, tombstone) in loaded.tombstones {
        feed.restore_tombstone(sequence, tombstone);
    }
    feed.restore_floor(loaded.floor);
    Published { view, feed, epoch: start.epoch, earlier: vouched.epochs.into() }
}

/// Gives a stored record its object back: from the newest bytes, or from the last usable ones where those were refused.
fn decode(mut record: Record, cluster_id: ClusterId, max: MaxConnectedClusters) -> Record {
    let cluster = record.key.cluster.clone();
    let context = Context { cluster: &cluster, cluster_id, max_connected_clusters: max };
    let usable = match (&record.rejection, &record.good_value) {
        (None, _) => Some(&record.value),
        (Some(_), good_value) => good_value.as_ref(),
    };
    match usable.map(|value| wire::decode(&record.key, value, &context)) {
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
