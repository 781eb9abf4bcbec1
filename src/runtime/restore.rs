//! From the store to the mirror: every record decoded again, nothing announced, nothing confirmed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use crate::commit::{Published, first_reservation};
use crate::feed::{Feed, Retention};
use crate::model::{ClusterId, ClusterName, Epoch, MaxConnectedClusters, Record, Rejection, Sequence};
use crate::store::{Group, Store, StoreError};
use crate::view::View;
use crate::wire::{self, Context};

/// What the store gave.
pub(super) struct Restored {
    pub(super) published: Published,
    /// No sequence above this one may be handed out before more are reserved.
    pub(super) reserved: Sequence,
    pub(super) restored_count: u64,
    pub(super) damaged_count: u64,
}

/// Loads everything, draws this start's epoch and reserves its first block of sequences.
pub(super) fn restore(store: &Store, max: MaxConnectedClusters, retention: Retention) -> Result<Restored, StoreError> {
    let loaded = store.load()?;
    let mut view = View::starting_at(loaded.sequence_reserved);
    let ids: BTreeMap<ClusterName, ClusterId> =
        loaded.clusters.iter().filter_map(|(name, record)| Some((name.clone(), record.config.as_ref()?.id))).collect();
    for (name, record) in loaded.clusters {
        view.restore_cluster(name, record);
    }
    let restored_count = loaded.records.len() as u64;
    for record in loaded.records {
        let cluster_id = ids.get(&record.key.cluster).copied().unwrap_or_default();
        view.restore(decode(record, cluster_id, max));
    }
    for (scope, cursor) in loaded.cursors {
        view.restore_cursor(scope, cursor);
    }
    let reserved = first_reservation(loaded.sequence_reserved);
    if let Err(error) = store.apply(&Group { sequence_reserved: Some(reserved), ..Group::default() }) {
        // a full disk stops persisting, not serving; positions stay unambiguous, because every start has an epoch of its own
        tracing::error!(%error, "cannot write to the store: serving what it holds, storing is tried again");
    }
    let feed = Feed::starting_at(loaded.sequence_reserved, retention);
    let published = Published { view, feed, epoch: Epoch(rand::random()) };
    Ok(Restored { published, reserved, restored_count, damaged_count: loaded.damaged_count })
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
