//! Damage costs a resync, never the start (docs/develop/invariants.md, 8).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::model::{Epoch, EpochSpan, Kind, Record, Sequence};
use crate::store::encoding::codec;
use crate::store::encoding::stored_value::StoredValue;
use crate::store::engine::Engine;
use crate::store::engine::slots::{Slot, SlotKind, SlotStorage};
use crate::store::objects::object::{self, ObjectPart};
use crate::store::tests::log::log_files;
use crate::store::tests::{UnpackedContents, cluster, cluster_record, cursor, key, load, open, read, record, scope};
use crate::store::{Group, OpenReport, inspect};

/// Returns 400 entries in two scopes, which fill three chunks, and the cursors of the scopes.
pub(in crate::store::tests) fn group() -> Group {
    let mut group = Group { sequence_reserved: Some(Sequence(500)), ..Group::default() };
    for seed in 0..400_u32 {
        let kind = if seed % 2 == 0 { Kind::Node } else { Kind::Service };
        let key = key(kind, "paris", &format!("{seed:03}"));
        group.records.insert(key.clone(), Some(Arc::new(record(key, seed.into(), 2000))));
    }
    group.cursors.insert(scope(Kind::Node, "paris"), Some(cursor(11)));
    group.cursors.insert(scope(Kind::Service, "paris"), Some(cursor(12)));
    group.clusters.insert(cluster("paris"), Some(cluster_record(7)));
    group.epochs = Some(vec![EpochSpan { epoch: Epoch(9), start: Sequence(1), accepted_up_to: None }]);
    group.derivation_version = Some(3);
    group
}

/// Returns the contents that a start loads from a store with only this group.
pub(super) fn expected_contents(group: &Group) -> UnpackedContents {
    UnpackedContents {
        records: group.records.values().flatten().map(|record| record.as_ref().clone()).collect(),
        cursors: group.cursors.iter().filter_map(|(scope, cursor)| Some((scope.clone(), cursor.clone()?))).collect(),
        clusters: group.clusters.iter().filter_map(|(name, record)| Some((name.clone(), record.clone()?))).collect(),
        sequence_reserved: group.sequence_reserved.unwrap(),
        epochs: group.epochs.clone().unwrap_or_default(),
        // dropped together with the epochs
        derivation_version: group.derivation_version.filter(|_| group.epochs.is_some()),
        ..UnpackedContents::default()
    }
}

/// Creates a store with [`group`] and closes it.
pub(in crate::store::tests) fn create_store_with_group() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (store, opened) = open(directory.path());
    assert_eq!(opened, OpenReport { set_aside: None, created: true, losses: Vec::new() });
    store.apply(&group()).unwrap();
    assert!(store.bytes_on_disk() > 0);
    store.close().unwrap();
    directory
}

/// Compares contents, with short messages for long values.
pub(super) fn check(found: &UnpackedContents, expected: &UnpackedContents) {
    let keys = |loaded: &UnpackedContents| loaded.records.iter().map(|record| record.key.to_string()).collect::<Vec<_>>();
    assert_eq!(keys(found), keys(expected));
    assert!(found.records == expected.records, "other records");
    let rest = |loaded: &UnpackedContents| UnpackedContents { records: Vec::new(), ..loaded.clone() };
    assert_eq!(rest(found), rest(expected));
}

/// Returns the content without cursors.
fn without_cursors() -> UnpackedContents {
    expected_contents(&Group { cursors: BTreeMap::new(), epochs: None, ..group() })
}

/// Returns the slots that have a value, with their parts.
pub(super) fn parts(directory: &Path) -> Vec<(Slot, ObjectPart)> {
    let engine = Engine::open(&directory.join("store")).unwrap();
    let slots = engine.list_slots().unwrap().into_iter();
    slots.filter_map(|slot| Some((slot, object::decode_part(slot, engine.get(slot).unwrap()?).unwrap()))).collect()
}

/// Returns the slot of the chunk whose range has this lower bound.
pub(in crate::store::tests) fn chunk_at(directory: &Path, low: &[u8]) -> (Slot, ObjectPart) {
    parts(directory).into_iter().find(|(slot, part)| slot.kind == SlotKind::Chunk && part.head.low == low).unwrap()
}

/// Flips a bit at this distance from the end.
fn flip(directory: &Path, slot: Slot, from_end: usize) {
    let engine = Engine::open(&directory.join("store")).unwrap();
    let mut value = engine.get(slot).unwrap().unwrap();
    let at = value.len() - from_end;
    value[at] ^= 1;
    engine.put(slot, &value).unwrap();
    engine.sync().unwrap();
}

/// Damages the chunk whose range has this lower bound: flips a bit of its tenth byte from the end.
pub(in crate::store::tests) fn flip_last_byte_of(directory: &Path, low: &[u8]) {
    let (slot, _) = chunk_at(directory, low);
    flip(directory, slot, 10);
}

/// The damaged chunk may have had the newest change of a key. Only a resync restores it, so the
/// cursor is dropped.
#[test]
fn a_damaged_chunk_costs_its_entries_and_the_cursors_of_their_scopes() {
    let directory = create_store_with_group();
    let (slot, part) = chunk_at(directory.path(), b"e");
    let high = part.head.high.unwrap();
    assert!(high.starts_with(b"ecilium/cache/nodes/v1/paris/"), "{}", high.escape_ascii());
    flip(directory.path(), slot, 10);
    let mut expected = group();
    expected.epochs = None;
    expected.records.retain(|key, _| codec::entry_key(key) >= high);
    assert!((50..400).contains(&expected.records.len()));
    expected.cursors.remove(&scope(Kind::Node, "paris"));
    check(&load(directory.path()), &UnpackedContents { damaged_count: 1, ..expected_contents(&expected) });
    // removed from the disk too
    check(&load(directory.path()), &expected_contents(&expected));
}

#[test]
fn a_chunk_of_unknown_range_costs_every_cursor() {
    let directory = create_store_with_group();
    let (slot, part) = chunk_at(directory.path(), b"e");
    flip(directory.path(), slot, part.body.unwrap().len() + 10);
    let mut expected = without_cursors();
    let high = part.head.high.unwrap();
    expected.records.retain(|record| codec::entry_key(&record.key) >= high);
    check(&load(directory.path()), &UnpackedContents { damaged_count: 1, ..expected.clone() });
    check(&load(directory.path()), &expected);
}

#[test]
fn damaged_cursors_cost_only_themselves() {
    let directory = create_store_with_group();
    flip(directory.path(), chunk_at(directory.path(), b"").0, 10);
    check(&load(directory.path()), &UnpackedContents { damaged_count: 1, ..without_cursors() });
    check(&load(directory.path()), &without_cursors());
}

/// Deletes an entry, and drops the store before the delete is folded. Returns the remaining
/// content.
fn delete_without_folding(directory: &Path) -> Group {
    let (store, _) = open(directory);
    let deleted = key(Kind::Node, "paris", "000");
    store.apply(&Group { records: BTreeMap::from([(deleted.clone(), None)]), ..Group::default() }).unwrap();
    let mut expected = group();
    expected.records.remove(&deleted);
    expected
}

/// The end was never acknowledged, so nothing is lost.
#[test]
fn a_torn_end_of_the_log_is_no_damage() {
    let directory = create_store_with_group();
    let expected = delete_without_folding(directory.path());
    let newest = log_files(directory.path()).pop().unwrap();
    let mut bytes = fs::read(&newest).unwrap();
    bytes.extend_from_slice(&[200, 1, 3, 9, 9]);
    fs::write(&newest, bytes).unwrap();
    let (store, opened) = open(directory.path());
    assert_eq!(opened.losses, Vec::<String>::new());
    check(&read(&store), &expected_contents(&expected));
}

/// A synced delete is lost: all cursors are dropped, and the loss is reported.
#[test]
fn a_damaged_synced_end_of_the_log_costs_every_cursor() {
    let directory = create_store_with_group();
    let expected = delete_without_folding(directory.path());
    let whole = tempfile::tempdir().unwrap();
    copy_directory(directory.path(), whole.path());
    check(&load(whole.path()), &expected_contents(&expected));
    let newest = log_files(directory.path()).pop().unwrap();
    let bytes = fs::read(&newest).unwrap();
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [flipped, bytes[..bytes.len() - 1].to_vec(), Vec::new()] {
        let copy = tempfile::tempdir().unwrap();
        copy_directory(directory.path(), copy.path());
        fs::write(copy.path().join("log").join(newest.file_name().unwrap()), damaged).unwrap();
        let reported = inspect(copy.path(), &|_| ()).unwrap().losses;
        let (store, opened) = open(copy.path());
        assert_eq!(opened.losses, reported);
        assert_eq!(opened.losses.len(), 1, "{:?}", opened.losses);
        check(&read(&store), &without_cursors());
        drop(store);
        let (store, opened) = open(copy.path());
        assert_eq!(opened.losses, Vec::<String>::new());
        check(&read(&store), &without_cursors());
    }
}

/// Later frames are used; the changes of the damaged one are read from the source again.
#[test]
fn a_flipped_bit_in_the_log_costs_one_group_and_every_cursor() {
    let directory = create_store_with_group();
    let (store, _) = open(directory.path());
    let mut expected = group();
    let keys: Vec<_> = expected.records.keys().cloned().collect();
    for (number, key) in keys.iter().enumerate().take(30) {
        let newer = Record { version: 900 + number as u64, ..record(key.clone(), number as u64, 300) };
        expected.records.insert(key.clone(), Some(Arc::new(newer.clone())));
        store.apply(&Group { records: BTreeMap::from([(key.clone(), Some(Arc::new(newer)))]), ..Group::default() }).unwrap();
    }
    drop(store);
    let newest = log_files(directory.path()).pop().unwrap();
    let bytes = fs::read(&newest).unwrap();
    for share in [2, 5, 8] {
        let copy = tempfile::tempdir().unwrap();
        copy_directory(directory.path(), copy.path());
        let mut damaged = bytes.clone();
        damaged[bytes.len() * share / 10] ^= 4;
        fs::write(copy.path().join("log").join(newest.file_name().unwrap()), damaged).unwrap();
        let reported = inspect(copy.path(), &|_| ()).unwrap().losses;
        let (store, opened) = open(copy.path());
        assert_eq!(opened.losses, reported);
        assert!(opened.losses[0].starts_with("its log is damaged, and changes of group"), "{:?}", opened.losses);
        let found = read(&store);
        let all = expected_contents(&expected).records;
        let older = found.records.iter().zip(&all).filter(|(found, expected)| found != expected).count();
        assert_eq!((found.records.len(), older), (all.len(), 1));
        assert!(found.cursors.is_empty() && found.epochs.is_empty());
        // the log continues
        store.apply(&group()).unwrap();
        drop(store);
        let (store, opened) = open(copy.path());
        assert_eq!(opened.losses, Vec::<String>::new());
        check(&read(&store), &expected_contents(&group()));
    }
}

/// The chunks do not contain the unfolded groups, so only the synced mark shows that the groups
/// existed.
#[test]
fn an_older_log_with_a_newer_store_is_reported() {
    let directory = create_store_with_group();
    let older = tempfile::tempdir().unwrap();
    copy_directory(&directory.path().join("log"), older.path());
    drop(delete_without_folding(directory.path()));
    fs::remove_dir_all(directory.path().join("log")).unwrap();
    copy_directory(older.path(), &directory.path().join("log"));
    let (store, opened) = open(directory.path());
    assert_eq!(opened.losses, ["its log is damaged, and changes of group 2 are lost: meshkeep lists all clusters again"]);
    check(&read(&store), &without_cursors());
}

/// The chunks may be ahead of the log or behind it.
#[test]
fn a_log_that_does_not_match_the_store_costs_every_cursor() {
    let (older, other) = (create_store_with_group(), create_store_with_group());
    let without = |directory: &Path| fs::remove_dir_all(directory.join("log")).unwrap();
    let with_log_of = |directory: &Path, other: &Path| {
        without(directory);
        copy_directory(&other.join("log"), &directory.join("log"));
    };
    let with_store_of = |directory: &Path, other: &Path| {
        fs::remove_dir_all(directory.join("store")).unwrap();
        copy_directory(&other.join("store"), &directory.join("store"));
    };
    // some groups later, all folded
    let newer = || {
        let directory = tempfile::tempdir().unwrap();
        copy_directory(older.path(), directory.path());
        let (store, _) = open(directory.path());
        store.apply(&group()).unwrap();
        store.apply(&group()).unwrap();
        store.close().unwrap();
        directory
    };
    type DamageFn<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, DamageFn<'_>); 4] = [
        ("its log is missing, or belongs to another store", &without),
        ("its log is missing, or belongs to another store", &|directory| with_log_of(directory, other.path())),
        ("its log ends with group 1: the groups up to 3 are lost", &|directory| with_log_of(directory, older.path())),
        ("its chunks are older than its log (group 1 instead of 3): the newest groups are lost", &|directory| {
            with_store_of(directory, older.path())
        }),
    ];
    for (reason, damage) in cases {
        let directory = newer();
        damage(directory.path());
        let (store, opened) = open(directory.path());
        assert_eq!(opened.losses, [format!("{reason}: meshkeep lists all clusters again")]);
        check(&read(&store), &without_cursors());
        drop(store);
        let (store, opened) = open(directory.path());
        assert!(opened.losses.is_empty(), "{:?}", opened.losses);
        check(&read(&store), &without_cursors());
        // the store works again
        store.apply(&group()).unwrap();
        drop(store);
        check(&load(directory.path()), &expected_contents(&group()));
    }
}

/// One file in the middle is missing.
#[test]
fn a_gap_in_the_log_below_folded_groups_costs_every_cursor() {
    let directory = create_store_with_group();
    drop(delete_without_folding(directory.path()));
    drop(delete_without_folding(directory.path()));
    let (store, _) = open(directory.path());
    store.apply(&Group { sequence_reserved: Some(Sequence(501)), ..Group::default() }).unwrap();
    store.inner().chunk_store.as_mut().unwrap().fold_some(1).unwrap();
    store.inner().chunk_store.as_mut().unwrap().storage().sync().unwrap();
    drop(store);
    let files = log_files(directory.path());
    fs::remove_file(&files[files.len() - 2]).unwrap();
    let (store, opened) = open(directory.path());
    assert!(opened.losses.iter().any(|loss| loss.contains("are lost")), "{:?}", opened.losses);
    assert!(read(&store).cursors.is_empty() && read(&store).epochs.is_empty());
}

#[test]
fn an_unknown_key_costs_every_cursor() {
    let directory = create_store_with_group();
    let (store, _) = open(directory.path());
    let foreign = BTreeMap::from([(b"xyz".as_slice().into(), Some(StoredValue::Item(b"?".as_slice().into())))]);
    let number = store.log().append_changes(&foreign);
    store.log().persist(number, &foreign).unwrap();
    drop(store);
    check(&load(directory.path()), &UnpackedContents { damaged_count: 1, ..without_cursors() });
    check(&load(directory.path()), &without_cursors());
}

#[test]
fn a_lost_reserved_sequence_falls_back_to_the_records() {
    let directory = create_store_with_group();
    flip(directory.path(), chunk_at(directory.path(), b"f").0, 10);
    let expected = expected_contents(&Group { epochs: None, ..group() });
    let expected = UnpackedContents { sequence_reserved: Sequence(399), clusters: Vec::new(), ..expected };
    check(&load(directory.path()), &UnpackedContents { damaged_count: 1, ..expected });
}

/// The id 0 marks a store whose repair was interrupted and whose loss is no longer visible.
#[test]
fn a_store_with_an_interrupted_repair_has_no_cursors() {
    let directory = create_store_with_group();
    let (store, _) = open(directory.path());
    store.inner().chunk_store.as_mut().unwrap().set_log_id(0).unwrap();
    drop(store);
    check(&load(directory.path()), &without_cursors());
    check(&load(directory.path()), &without_cursors());
}

/// Checks that the store can be read completely or without cursors, or is set aside, and that it
/// accepts groups again. Returns whether it was set aside.
pub(super) fn check_after_damage(directory: &Path) -> bool {
    let (store, opened) = open(directory);
    let found = read(&store);
    if let Some(set_aside) = &opened.set_aside {
        assert_eq!(found, UnpackedContents::default());
        assert!(set_aside.path.starts_with(directory) && set_aside.path.join("db").exists(), "{set_aside:?}");
        assert!(opened.created);
    } else {
        assert!(found == expected_contents(&group()) || found.cursors.is_empty(), "there are cursors, but not all entries that they cover");
        assert!(found.sequence_reserved == Sequence(500) || found.epochs.is_empty(), "{}", found.sequence_reserved);
    }
    for record in found.records {
        store.apply(&Group { records: BTreeMap::from([(record.key, None)]), ..Group::default() }).unwrap();
    }
    store.apply(&group()).unwrap();
    store.close().unwrap();
    assert!(load(directory) == expected_contents(&group()), "the groups that were stored after the damage are missing");
    opened.set_aside.is_some()
}

#[test]
fn a_damaged_file_of_the_engine_is_set_aside() {
    let directory = create_store_with_group();
    fs::write(directory.path().join("store/conf"), "segment_size: none").unwrap();
    assert!(check_after_damage(directory.path()));
}

#[test]
fn a_truncated_engine_is_set_aside() {
    let directory = create_store_with_group();
    for name in ["store/db", "store/conf"] {
        fs::write(directory.path().join(name), "").unwrap();
    }
    Engine::remove_snapshots(&directory.path().join("store")).unwrap();
    assert!(check_after_damage(directory.path()));
}

#[test]
fn a_file_named_like_the_engines_directory_is_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("store"), "").unwrap();
    let (store, opened) = open(directory.path());
    assert!(opened.set_aside.is_some_and(|set_aside| set_aside.path.is_file()));
    store.apply(&group()).unwrap();
}

/// Returns a store with the same content as [`stored`], in a log that was written and reused many
/// times.
fn stored_in_many_groups() -> tempfile::TempDir {
    let directory = create_store_with_group();
    let (store, _) = open(directory.path());
    for number in 1..40 {
        let mut rewritten = Group::default();
        for record in group().records.into_values().flatten().skip(number % 7).step_by(20) {
            let delete = number % 5 == 0;
            let newer = Record { version: record.version + 1, ..record.as_ref().clone() };
            rewritten.records.insert(newer.key.clone(), (!delete).then(|| Arc::new(newer)));
        }
        rewritten.cursors = BTreeMap::from([(scope(Kind::Node, "paris"), Some(cursor(1000 + i64::try_from(number).unwrap())))]);
        store.apply(&rewritten).unwrap();
    }
    store.apply(&group()).unwrap();
    store.close().unwrap();
    directory
}

#[test]
fn garbage_in_the_engines_log_never_prevents_a_start() {
    let original = stored_in_many_groups();
    for round in 0..20 {
        let seed = rand::rng().random();
        println!("round {round}: seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let directory = tempfile::tempdir().unwrap();
        copy_directory(&original.path().join("store"), &directory.path().join("store"));
        let log = directory.path().join("store/db");
        let mut bytes = fs::read(&log).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        let position = random.random_range(0..used);
        if random.random_ratio(1, 2) {
            bytes.truncate(position);
        } else {
            let end = (position + 4096).min(bytes.len());
            random.fill(&mut bytes[position..end]);
        }
        fs::write(&log, bytes).unwrap();
        check_after_damage(directory.path());
    }
}

/// Returns all files below a directory with their content.
pub(super) fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for file in fs::read_dir(directory).unwrap() {
        let file = file.unwrap();
        let name = PathBuf::from(file.file_name());
        if file.file_type().unwrap().is_dir() {
            found.extend(files(&file.path()).into_iter().map(|(path, bytes)| (name.join(path), bytes)));
        } else {
            found.insert(name, fs::read(file.path()).unwrap());
        }
    }
    found
}

pub(in crate::store::tests) fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for (path, bytes) in files(from) {
        fs::create_dir_all(to.join(&path).parent().unwrap()).unwrap();
        fs::write(to.join(path), bytes).unwrap();
    }
}
