//! Tests of the store against a plain map, damage, power cuts and killed processes.

mod codec;
mod fake_disk;
mod faults;
mod fixture;
mod inspection;
mod lock;
mod log;
mod log_files;
mod model;
mod partial_store;
mod power_cuts;
mod replaced;
mod sync_order;
mod upgrade;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{OpenReport, Store};
use crate::model::{
    CanaryPoint, ClusterConfig, ClusterId, ClusterName, ClusterRecord, Cursor, DeletePoint, DeleteReason, EntryKey, EpochSpan,
    EtcdClusterId, Kind, LeaseId, ObservationGap, PutPoint, Record, Rejection, Revision, Scope, Sequence, SequenceRun, SourceStamp,
    Tombstone,
};

fn cluster(name: &str) -> ClusterName {
    ClusterName::parse(name).unwrap()
}

fn scope(kind: Kind, name: &str) -> Scope {
    Scope { cluster: cluster(name), kind }
}

fn key(kind: Kind, cluster_name: &str, name: &str) -> EntryKey {
    EntryKey::new(kind, cluster(cluster_name), name)
}

/// Returns a record whose fields all depend on `seed`. Every other one is rejected.
fn record(key: EntryKey, seed: u64, value_length: usize) -> Record {
    let byte = u8::try_from(seed % 251).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_000 + seed);
    let rejected = seed % 2 == 1;
    Record {
        key,
        value: Arc::from(vec![byte; value_length]),
        good_value: (seed % 4 == 1).then(|| Arc::from(&b"{\"good\":true}"[..])),
        object: None,
        rejection: rejected.then(|| Rejection { reason: "field `ip`: not an address".into(), first_seen: time, last_seen: time }),
        source: SourceStamp { mod_revision: Revision(i64::try_from(seed).unwrap()), lease: LeaseId(-5), held: false },
        create_sequence: Sequence(seed / 2),
        last_sequence: Sequence(seed),
        version: seed + 1,
        generation: 0,
    }
}

fn cursor(revision: i64) -> Cursor {
    Cursor {
        etcd_cluster_id: EtcdClusterId(0xcdf8_181e_3277_2ae3),
        revision: Revision(revision),
        cached: revision % 2 == 0,
        last_put: (revision % 3 != 0).then(|| PutPoint {
            source_key: b"cilium/state/nodes/v1/paris/a".to_vec(),
            revision: Revision(revision - 1),
            value_digest: [7; 32],
        }),
        last_delete: (revision % 5 != 0)
            .then(|| DeletePoint { source_key: b"cilium/state/nodes/v1/paris/b".to_vec(), revision: Revision(revision) }),
        canary: (revision % 7 != 0).then(|| CanaryPoint { revision: Revision(3), value: b"2026-01-01T00:00:00Z".to_vec() }),
    }
}

fn tombstone(kind: Kind, name: &str, seed: u64) -> Tombstone {
    let reason = if seed.is_multiple_of(2) { DeleteReason::ClusterRemoved } else { DeleteReason::Deleted };
    Tombstone { key: key(kind, "paris", name), reason, time: SystemTime::UNIX_EPOCH + Duration::from_micros(seed * 1_000_003) }
}

fn cluster_record(seed: u32) -> ClusterRecord {
    let config = ClusterConfig {
        id: ClusterId(seed),
        synced_canaries: seed.is_multiple_of(2),
        cached: seed.is_multiple_of(3),
        max_connected_clusters: 255,
        service_exports_enabled: [None, Some(false), Some(true)][seed as usize % 3],
        endpoint_slices_export_mode: (seed % 2 == 1).then(|| "endpointslices-only".to_owned()),
    };
    ClusterRecord {
        config: (!seed.is_multiple_of(5)).then_some(config),
        last_contact: (!seed.is_multiple_of(3)).then(|| SystemTime::UNIX_EPOCH + Duration::from_micros(u64::from(seed) * 1_000_003)),
        notices: Vec::new(),
    }
}

fn open(directory: &Path) -> (Store, OpenReport) {
    Store::open(directory, Duration::ZERO).unwrap()
}

/// The contents of a store with unpacked entries, for comparisons.
#[derive(Debug, Clone, PartialEq, Default)]
struct UnpackedContents {
    records: Vec<Record>,
    cursors: Vec<(Scope, Cursor)>,
    clusters: Vec<(ClusterName, ClusterRecord)>,
    tombstones: Vec<(Sequence, Tombstone)>,
    gaps: Vec<(Scope, Vec<ObservationGap>)>,
    times: Vec<SequenceRun>,
    floor: Sequence,
    epochs: Vec<EpochSpan>,
    covered_sequence: Sequence,
    derivation_version: Option<u64>,
    sequence_reserved: Sequence,
    damaged_count: u64,
}

impl From<super::StoreContents> for UnpackedContents {
    fn from(loaded: super::StoreContents) -> Self {
        let records = loaded.records();
        assert_eq!(loaded.record_count(), records.iter().filter(|record| record.key.kind.is_mirrored()).count() as u64);
        assert!(records.iter().all(|record| loaded.record(&record.key).as_deref() == Some(record)));
        let super::StoreContents {
            cursors,
            clusters,
            tombstones,
            gaps,
            times,
            floor,
            epochs,
            covered_sequence,
            derivation_version,
            sequence_reserved,
            damaged_count,
            ..
        } = loaded;
        Self {
            records,
            cursors,
            clusters,
            tombstones,
            gaps,
            times,
            floor,
            epochs,
            covered_sequence,
            derivation_version,
            sequence_reserved,
            damaged_count,
        }
    }
}

fn read(store: &Store) -> UnpackedContents {
    store.load().unwrap().into()
}

fn load(directory: &Path) -> UnpackedContents {
    read(&open(directory).0)
}
