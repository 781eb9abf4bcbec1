//! The stores in `migrations/` can still be read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::faults::damage::copy_directory;
use super::{UnpackedContents, cluster, cluster_record, cursor, key, load, open, record, scope, tombstone};
use crate::model::{Epoch, EpochSpan, Kind, Sequence};
use crate::store::Group;

/// If set, the fixture of the current layout is written again. Only a new layout needs this.
const WRITE_FIXTURE: &str = "MESHKEEP_TEST_WRITE_STORE_FIXTURE";

fn fixture(layout: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(layout)
}

/// Returns a data directory with a copy of a fixture.
pub(super) fn copy_fixture(layout: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for part in ["store", "log"] {
        copy_directory(&fixture(layout).join(part), &directory.path().join(part));
    }
    directory
}

/// Kinds that layout 1 had.
const KINDS: [Kind; 4] = [Kind::Identity, Kind::Ip, Kind::Node, Kind::Service];

/// Returns the content of the fixture: each kind, and each optional field present and absent.
pub(super) fn fixture_contents() -> UnpackedContents {
    let mut records = Vec::new();
    for kind in KINDS {
        for seed in 1..5_u64 {
            let length = usize::try_from(seed * 40).unwrap();
            records.push(record(key(kind, "paris", &format!("1{seed}/a")), seed, length));
        }
    }
    let cursors = KINDS.into_iter().zip([4, 105, 210, 211]).map(|(kind, revision)| (scope(kind, "paris"), cursor(revision)));
    UnpackedContents {
        records,
        cursors: cursors.collect(),
        clusters: vec![(cluster("oslo"), cluster_record(5)), (cluster("paris"), cluster_record(7)), (cluster("rome"), cluster_record(6))],
        tombstones: vec![(Sequence(700), tombstone(Kind::Ip, "10.0.0.1", 3)), (Sequence(701), tombstone(Kind::Service, "shop/cart", 4))],
        // the fixture is older than observation gaps and times
        gaps: Vec::new(),
        times: Vec::new(),
        floor: Sequence(650),
        epochs: vec![
            EpochSpan { epoch: Epoch(0xabc), start: Sequence(0), accepted_up_to: Some(Sequence(90)) },
            EpochSpan { epoch: Epoch(u64::MAX), start: Sequence(500), accepted_up_to: None },
        ],
        covered_sequence: Sequence(701),
        // the fixture is older than derived entries
        derivation_version: None,
        sequence_reserved: Sequence(1000),
        damaged_count: 0,
    }
}

fn write_fixture() {
    let fixture_contents = fixture_contents();
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    let group = Group {
        number: 0,
        records: fixture_contents.records.into_iter().map(|record| (record.key.clone(), Some(Arc::new(record)))).collect(),
        chunks: Vec::new(),
        cursors: fixture_contents.cursors.into_iter().map(|(scope, cursor)| (scope, Some(cursor))).collect(),
        clusters: fixture_contents.clusters.into_iter().map(|(name, record)| (name, Some(record))).collect::<BTreeMap<_, _>>(),
        tombstones: fixture_contents.tombstones.into_iter().map(|(sequence, tombstone)| (sequence, Some(tombstone))).collect(),
        gaps: BTreeMap::new(),
        times: BTreeMap::new(),
        floor: Some(fixture_contents.floor),
        epochs: Some(fixture_contents.epochs),
        covered_sequence: Some(fixture_contents.covered_sequence),
        derivation_version: fixture_contents.derivation_version,
        sequence_reserved: Some(fixture_contents.sequence_reserved),
        replaced: None,
    };
    store.apply(&group).unwrap();
    // not closed, because that would extend the file to whole segments
    assert!(store.fold_within(std::time::Duration::from_secs(60)).unwrap());
    drop(store);
    for part in ["store", "log"] {
        copy_directory(&directory.path().join(part), &fixture("0003-one-log").join(part));
    }
}

#[test]
fn a_store_of_layout_3_is_read_completely() {
    if std::env::var_os(WRITE_FIXTURE).is_some() {
        write_fixture();
    }
    let directory = copy_fixture("0003-one-log");
    let (store, opened) = open(directory.path());
    assert_eq!((opened.set_aside, opened.created, opened.losses), (None, false, Vec::new()));
    drop(store);
    assert_eq!(load(directory.path()), fixture_contents());
}
