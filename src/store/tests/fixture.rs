//! Stores of every version, kept under `migrations/`, still read back as what they held.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::damage::copy_directory;
use super::{Loaded, cluster, cluster_record, cursor, key, load, open, read, record, scope, tombstone};
use crate::model::{EntryKey, Epoch, EpochSpan, Kind, Record, Sequence};
use crate::store::codec;
use crate::store::engine::Engine;
use crate::store::slots::{SlotKind, Slots};
use crate::store::{Group, Journal, Store};

/// Set to write the fixture of the present version anew, which only a new version may need.
const WRITE_FIXTURE: &str = "MESHKEEP_TEST_WRITE_STORE_FIXTURE";

fn fixture(layout: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(layout).join("store")
}

/// A data directory with a copy of the store that a version wrote.
fn copied(layout: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    copy_directory(&fixture(layout), &directory.path().join("store"));
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

fn write_fixture() {
    let held = held();
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    let group = Group {
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
    store.close().unwrap();
    copy_directory(&directory.path().join("store"), &fixture("0002-packed"));
}

/// What the store holds that was killed: the same, and noise that made its windows a segment.
fn held_by_the_killed() -> Loaded {
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

/// A store that was killed: some groups in the chunks, some in a segment, two in windows, and announcements that were not stored.
fn write_killed_fixture() {
    let held = held_by_the_killed();
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    let records: Vec<_> = held.records.into_iter().map(|record| (record.key.clone(), Some(Arc::new(record)))).collect();
    let older = |(key, record): &(EntryKey, Option<Arc<Record>>)| {
        (
            key.clone(),
            record.as_ref().map(|record| {
                Arc::new(Record { value: b"older"[..].into(), good_value: None, rejection: None, version: 0, ..Record::clone(record) })
            }),
        )
    };
    let gone = key(Kind::Node, "paris", "gone");
    let first = Group {
        records: records.iter().map(older).chain([(gone.clone(), Some(Arc::new(record(gone.clone(), 2, 10))))]).collect(),
        cursors: held.cursors.iter().map(|(scope, _)| (scope.clone(), Some(cursor(1)))).collect(),
        sequence_reserved: Some(Sequence(900)),
        ..Group::default()
    };
    store.apply(&first).unwrap();
    assert!(store.settle(Duration::from_secs(60)).unwrap());
    store.apply(&Group { records: [(gone, None)].into(), ..Group::default() }).unwrap();
    store.apply(&Group { records: records[..10].iter().cloned().collect(), ..Group::default() }).unwrap();
    let group = Group {
        records: records[10..].iter().cloned().collect(),
        cursors: held.cursors.into_iter().map(|(scope, cursor)| (scope, Some(cursor))).collect(),
        clusters: held.clusters.into_iter().map(|(name, record)| (name, Some(record))).collect::<BTreeMap<_, _>>(),
        ..Group::default()
    };
    store.apply(&group).unwrap();
    let marks = Group {
        tombstones: held.tombstones.into_iter().map(|(sequence, tombstone)| (sequence, Some(tombstone))).collect(),
        floor: Some(held.floor),
        epochs: Some(held.epochs),
        covered: Some(held.covered),
        sequence_reserved: Some(held.sequence_reserved),
        ..Group::default()
    };
    store.apply(&marks).unwrap();
    let (mut journal, begun) = Journal::begin(directory.path(), Epoch(u64::MAX), Sequence(500));
    begun.unwrap();
    journal.append([(Sequence(702), Some(&key(Kind::Ip, "paris", "10.0.0.9")))].into_iter());
    drop(store);
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations/0002-packed/killed");
    copy_directory(&directory.path().join("store"), &kept.join("store"));
    copy_directory(&directory.path().join("journal"), &kept.join("journal"));
}

#[test]
fn a_killed_store_of_layout_2_reads_back_whole() {
    if std::env::var_os(WRITE_FIXTURE).is_some() {
        write_killed_fixture();
    }
    let directory = tempfile::tempdir().unwrap();
    copy_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations/0002-packed/killed"), directory.path());
    let engine = Engine::open(&directory.path().join("store")).unwrap();
    let slots = engine.slots().unwrap().into_iter().filter(|slot| engine.get(*slot).unwrap().is_some());
    let kinds: BTreeSet<SlotKind> = slots.map(|slot| slot.kind).collect();
    assert!([SlotKind::Segment, SlotKind::Hot].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    drop(engine);
    assert_eq!(load(directory.path()), held_by_the_killed());
}

#[test]
fn a_store_of_layout_2_reads_back_whole() {
    if std::env::var_os(WRITE_FIXTURE).is_some() {
        write_fixture();
    }
    let directory = copied("0002-packed");
    let (store, opened) = open(directory.path());
    assert_eq!((opened.set_aside, opened.created), (None, false));
    drop(store);
    assert_eq!(load(directory.path()), held());
}

/// What is in a data directory beside the lock and the room that is kept.
fn names(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "lock" && name != "reserve").collect();
    names.sort();
    names
}

#[test]
fn a_store_of_layout_1_is_upgraded_whole() {
    let directory = copied("0001-plain");
    let (store, opened) = open(directory.path());
    assert_eq!((opened.set_aside, opened.created), (None, false));
    assert_eq!(read(&store), held());
    drop(store);
    assert_eq!(load(directory.path()), held());
    assert_eq!(names(directory.path()), ["store"]);
    assert_eq!(std::fs::read_to_string(directory.path().join("store/format")).unwrap(), "meshkeep store format 2\n");
}

#[test]
fn an_upgrade_that_was_broken_off_anywhere_is_finished() {
    let upgraded = copied("0001-plain");
    drop(open(upgraded.path()));
    let new = upgraded.path().join("store");
    let part = |directory: &Path| std::fs::write(directory.join("store-upgrading"), "half").unwrap();
    // while the new store was written: only some of its files, or none, are there
    let writing = copied("0001-plain");
    std::fs::create_dir(writing.path().join("store-upgrading")).unwrap();
    std::fs::copy(new.join("db"), writing.path().join("store-upgrading/db")).unwrap();
    // after the atomic step, between the two renames, and before the old store was removed
    let (written, between, replaced) = (copied("0001-plain"), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy_directory(&new, &written.path().join("store-upgraded"));
    copy_directory(&fixture("0001-plain"), &between.path().join("store-replaced"));
    copy_directory(&new, &between.path().join("store-upgraded"));
    copy_directory(&fixture("0001-plain"), &replaced.path().join("store-replaced"));
    copy_directory(&new, &replaced.path().join("store"));
    for directory in [&writing, &written, &between, &replaced] {
        assert_eq!(load(directory.path()), held());
        assert_eq!(names(directory.path()), ["store"]);
    }
    // something else in its place is no reason to fail for ever: it is named
    part(written.path());
    assert!(Store::open(written.path(), std::time::Duration::ZERO).is_err());
}

/// A value of layout 1 that cannot be read may have been claimed by a cursor.
#[test]
fn damage_in_layout_1_costs_every_cursor() {
    let directory = copied("0001-plain");
    let engine = Engine::open(&directory.path().join("store")).unwrap();
    let damaged = codec::entry_key(&held().records[0].key);
    engine.put_plain(&damaged, b"?").unwrap();
    engine.sync().unwrap();
    drop(engine);
    let mut expected = Loaded { cursors: Vec::new(), epochs: Vec::new(), ..held() };
    expected.records.remove(0);
    assert_eq!(load(directory.path()), expected);
}
