//! Stores of every version, kept under `migrations/`, still read back as what they held.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::faults::damage::copy_directory;
use super::{Loaded, cluster, cluster_record, cursor, key, load, open, record, scope, tombstone};
use crate::model::{Epoch, EpochSpan, Kind, Sequence};
use crate::store::Group;

/// Set to write the fixture of the present version anew, which only a new version may need.
const WRITE_FIXTURE: &str = "MESHKEEP_TEST_WRITE_STORE_FIXTURE";

fn fixture(layout: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(layout)
}

/// A data directory with a copy of the store that a version wrote, and what it had beside.
pub(super) fn copied(layout: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for part in ["store", "log"] {
        copy_directory(&fixture(layout).join(part), &directory.path().join(part));
    }
    directory
}

/// The kinds that version 1 began with.
const KINDS: [Kind; 4] = [Kind::Identity, Kind::Ip, Kind::Node, Kind::Service];

/// What the fixture stores: each of these kinds, every optional field present and absent.
pub(super) fn held() -> Loaded {
    let mut records = Vec::new();
    for kind in KINDS {
        for seed in 1..5_u64 {
            let length = usize::try_from(seed * 40).unwrap();
            records.push(record(key(kind, "paris", &format!("1{seed}/a")), seed, length));
        }
    }
    let cursors = KINDS.into_iter().zip([4, 105, 210, 211]).map(|(kind, revision)| (scope(kind, "paris"), cursor(revision)));
    Loaded {
        records,
        cursors: cursors.collect(),
        clusters: vec![(cluster("oslo"), cluster_record(5)), (cluster("paris"), cluster_record(7)), (cluster("rome"), cluster_record(6))],
        tombstones: vec![(Sequence(700), tombstone(Kind::Ip, "10.0.0.1", 3)), (Sequence(701), tombstone(Kind::Service, "shop/cart", 4))],
        floor: Sequence(650),
        epochs: vec![
            EpochSpan { epoch: Epoch(0xabc), began: Sequence(0), vouched: Some(Sequence(90)) },
            EpochSpan { epoch: Epoch(u64::MAX), began: Sequence(500), vouched: None },
        ],
        covered: Sequence(701),
        // from before there was anything derived
        derived: None,
        sequence_reserved: Sequence(1000),
        damaged_count: 0,
    }
}

fn write_fixture() {
    let held = held();
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    let group = Group {
        number: 0,
        records: held.records.into_iter().map(|record| (record.key.clone(), Some(Arc::new(record)))).collect(),
        cursors: held.cursors.into_iter().map(|(scope, cursor)| (scope, Some(cursor))).collect(),
        clusters: held.clusters.into_iter().map(|(name, record)| (name, Some(record))).collect::<BTreeMap<_, _>>(),
        tombstones: held.tombstones.into_iter().map(|(sequence, tombstone)| (sequence, Some(tombstone))).collect(),
        floor: Some(held.floor),
        epochs: Some(held.epochs),
        covered: Some(held.covered),
        derived: held.derived,
        sequence_reserved: Some(held.sequence_reserved),
    };
    store.apply(&group).unwrap();
    // not closed, which would give the file the length of whole segments
    assert!(store.settle(std::time::Duration::from_secs(60)).unwrap());
    drop(store);
    for part in ["store", "log"] {
        copy_directory(&directory.path().join(part), &fixture("0003-one-log").join(part));
    }
}

#[test]
fn a_store_of_layout_3_reads_back_whole() {
    if std::env::var_os(WRITE_FIXTURE).is_some() {
        write_fixture();
    }
    let directory = copied("0003-one-log");
    let (store, opened) = open(directory.path());
    assert_eq!((opened.set_aside, opened.created, opened.losses), (None, false, Vec::new()));
    drop(store);
    assert_eq!(load(directory.path()), held());
}
