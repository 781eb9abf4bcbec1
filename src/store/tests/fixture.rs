//! Stores of every version, kept under `migrations/`, still read back as what they held.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::faults::damage::copy_directory;
use super::{Loaded, cluster, cluster_record, cursor, key, load, open, read, record, scope, tombstone};
use crate::model::{Epoch, EpochSpan, Kind, Record, Sequence};
use crate::store::Group;

/// Set to write the fixture of the present version anew, which only a new version may need.
const WRITE_FIXTURE: &str = "MESHKEEP_TEST_WRITE_STORE_FIXTURE";

fn fixture(layout: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(layout)
}

/// A data directory with a copy of the store that a version wrote, and what it had beside.
pub(super) fn copied(layout: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for part in ["store", "log", "journal"].into_iter().filter(|part| fixture(layout).join(part).exists()) {
        copy_directory(&fixture(layout).join(part), &directory.path().join(part));
    }
    directory
}

/// The kinds that version 1 began with.
const KINDS: [Kind; 4] = [Kind::Identity, Kind::Ip, Kind::Node, Kind::Service];

/// What the fixture holds: each of these kinds, every optional field present and absent.
fn held() -> Loaded {
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

/// What the store holds that was killed: the same, and noise that made its windows a segment.
pub(super) fn held_by_the_killed() -> Loaded {
    let mut held = held();
    let mut noise = 1_u64;
    let mut next = || {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        noise.to_be_bytes()[0]
    };
    let value: Vec<u8> = (0..44_000).map(|_| next()).collect();
    held.records.insert(4, Record { value: value.into(), ..record(key(Kind::Identity, "paris", "15/a"), 5, 0) });
    held
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

/// Everything but the positions of before.
pub(super) fn without_positions(held: Loaded) -> Loaded {
    Loaded { epochs: Vec::new(), ..held }
}

#[test]
fn a_store_of_layout_2_is_upgraded_whole() {
    for (layout, held) in [("0002-packed", held()), ("0002-packed/killed", held_by_the_killed())] {
        let directory = copied(layout);
        let (store, opened) = open(directory.path());
        assert_eq!((opened.set_aside, opened.created, opened.losses), (None, false, Vec::new()));
        assert_eq!(read(&store), without_positions(held.clone()));
        drop(store);
        assert_eq!(load(directory.path()), without_positions(held));
        assert_eq!(names(directory.path()), ["log", "store"]);
        assert_eq!(names(&directory.path().join("store")).iter().filter(|name| **name == "witness").count(), 0);
        assert_eq!(std::fs::read_to_string(directory.path().join("store/format")).unwrap(), "meshkeep store format 3\n");
    }
}

#[test]
fn a_store_of_layout_1_is_set_aside_and_told() {
    let directory = copied("0001-plain");
    let (store, opened) = open(directory.path());
    let set_aside = opened.set_aside.unwrap();
    assert_eq!(set_aside.reason, "it has format 1, which no release wrote and this version does not read");
    assert!(set_aside.path.join("db").exists() && opened.created);
    assert_eq!(read(&store), Loaded::default());
}

/// What is in a data directory beside the lock and the room that is kept.
fn names(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "lock" && name != "reserve").collect();
    names.sort();
    names
}
