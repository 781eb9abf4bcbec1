//! Fills a store with generated clusters, as mirroring them would, without an etcd.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshkeep::internals::commit::first_reservation;
use meshkeep::internals::model::{
    ClusterConfig, ClusterId, ClusterRecord, Cursor, Epoch, EpochSpan, EtcdClusterId, Kind, Record, Revision, Scope, Sequence,
};
use meshkeep::internals::store::{Group, Store};
use meshkeep::internals::view::DERIVATION_VERSION;

use super::{Outcome, data};

/// Fills a new store below the directory and prints its size.
pub(crate) fn fill(directory: &Path, clusters: u32) -> Outcome<()> {
    fill_with(directory, clusters, None, |record| record)
}

/// Fills a new store below the directory and prints its size. `change` changes each record. `head`
/// is the last sequence that the store covers, if it is not that of the last record.
pub(crate) fn fill_with(directory: &Path, clusters: u32, head: Option<Sequence>, mut change: impl FnMut(Record) -> Record) -> Outcome<()> {
    let (store, _) = Store::open(directory, Duration::ZERO)?;
    let (mut count, mut raw, mut sequence) = (0_u64, 0_u64, 0_u64);
    for number in 1..=clusters {
        let mut group = Group::default();
        let kinds = [Kind::Identity, Kind::Ip, Kind::Node, Kind::Service];
        for kind in kinds {
            for record in data::records(kind, number) {
                for record in data::derived(&record).into_iter().chain([record]) {
                    sequence += 1;
                    let record = change(Record { create_sequence: Sequence(sequence), last_sequence: Sequence(sequence), ..record });
                    raw += (record.value.len() + record.key.to_string().len()) as u64;
                    group.records.insert(record.key.clone(), Some(Arc::new(record)));
                }
            }
            group.cursors.insert(Scope { cluster: data::cluster(number), kind }, Some(cursor(3_000_000)));
        }
        count += group.records.len() as u64;
        let config = ClusterConfig {
            id: ClusterId(number),
            synced_canaries: true,
            cached: false,
            max_connected_clusters: 255,
            service_exports_enabled: None,
            endpoint_slices_export_mode: None,
        };
        group
            .clusters
            .insert(data::cluster(number), Some(ClusterRecord { config: Some(config), last_contact: None, ..ClusterRecord::default() }));
        let covered = head.unwrap_or(Sequence(sequence));
        group.covered_sequence = Some(covered);
        group.epochs = head.map(|_| vec![EpochSpan { epoch: Epoch(0xc0de), start: Sequence(0), accepted_up_to: None }]);
        group.derivation_version = Some(DERIVATION_VERSION);
        group.sequence_reserved = Some(first_reservation(covered));
        store.apply(&group)?;
        store.fold_due(Instant::now())?;
    }
    store.fold_within(Duration::from_secs(600))?;
    let disk = store.bytes_on_disk();
    println!("{count} records, {} MB raw, {} MB on disk", raw >> 20, disk >> 20);
    store.close()?;
    Ok(())
}

pub(crate) fn cursor(revision: i64) -> Cursor {
    let (etcd_cluster_id, revision) = (EtcdClusterId(7), Revision(revision));
    Cursor::new(etcd_cluster_id, revision, false)
}
