//! Early lookups return the same entries as lookups in the fully opened store, at whatever moment
//! the store was interrupted.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::faults::damage::{chunk_at, copy_directory, flip_last_byte_of, group};
use super::power_cuts::{FakeDisk, TestStore, reopen};
use super::{UnpackedContents, key, open, read, record};
use crate::model::{ClusterId, EntryKey, Kind, MaxConnectedClusters, Object, Record, RecordQuery, Sequence};
use crate::store::engine::Engine;
use crate::store::engine::slots::{Slot, SlotKind, SlotStorage};
use crate::store::log::frames::read_log;
use crate::store::recovery::partial_store::EarlyEntries;
use crate::store::recovery::slot_scan::{EarlyIndex, SlotScan};
use crate::store::{Group, PartialStore, Store};
use crate::wire::{self, Context};

const CLUSTERS: [&str; 3] = ["eu", "eu-west", "paris"];

type RecordMap = BTreeMap<EntryKey, Arc<Record>>;

/// Returns a usable record, or for one seed in ten a record that was never usable.
fn decoded_record(key: EntryKey, seed: u64, value: &str) -> Arc<Record> {
    let context = Context { cluster: &key.cluster, cluster_id: ClusterId(0), max_connected_clusters: MaxConnectedClusters::default() };
    // almost any bytes are valid labels
    let usable = key.kind == Kind::Identity || !seed.is_multiple_of(10);
    let value = if usable { value } else { "?" };
    let object = wire::decode(&key, value.as_bytes(), &context);
    assert_eq!(object.is_ok(), usable, "{key}: {object:?}");
    // `record` rejects odd seeds, and of these only `4n + 1` have a good value
    let base = record(key, if usable { seed * 2 } else { seed * 4 + 3 }, 0);
    Arc::new(Record { value: value.as_bytes().into(), object: object.ok().map(Arc::new), last_sequence: Sequence(seed), ..base })
}

fn random_entry(random: &mut StdRng, seed: u64, width: u32) -> Arc<Record> {
    let cluster = CLUSTERS[random.random_range(0..3)];
    let (a, b) = (random.random_range(0..width), random.random_range(0..3_usize));
    match random.random_range(0..8) {
        0 => decoded_record(key(Kind::Identity, cluster, &format!("{}{}", ["", "0", "00"][b], 256 + a)), seed, "k8s:a=b;"),
        1 | 2 => {
            let addresses = format!(r#"{{"Type":"InternalIP","IP":"172.16.{b}.{a}"}},{{"Type":"InternalIP","IP":"fd00::{b}:{a}"}}"#);
            let value = format!(r#"{{"Name":"n{a}","Cluster":"{cluster}","IPAddresses":[{addresses}],"ClusterID":1}}"#);
            decoded_record(key(Kind::Node, cluster, &format!("n{a}")), seed, &value)
        }
        3 => {
            if a % 3 == 0 {
                let value = format!(r#"{{"IP":"10.0.{b}.0","Mask":"////AA==","HostIP":"","ID":2,"KeyBytes":0}}"#);
                return decoded_record(key(Kind::NodeIp, cluster, &format!("n{a}#10.0.{b}.0/24")), seed, &value);
            }
            let ip = format!("10.0.{b}.{a}");
            decoded_record(
                key(Kind::NodeIp, cluster, &format!("n{b}#{ip}")),
                seed,
                &format!(r#"{{"IP":"{ip}","HostIP":"","ID":6,"KeyBytes":0}}"#),
            )
        }
        4 => {
            let (name, mask) = [("10.0.0.0/8", "/wAAAA=="), ("10.0.0.0/24", "////AA=="), ("10.0.1.7/24", "////AA==")][b];
            let ip = name.split('/').next().unwrap();
            decoded_record(
                key(Kind::Ip, cluster, name),
                seed,
                &format!(r#"{{"IP":"{ip}","Mask":"{mask}","HostIP":"","ID":{a},"KeyBytes":0}}"#),
            )
        }
        other => {
            let ip: IpAddr = if other == 5 { format!("fd00::{b}:{a}") } else { format!("10.0.{b}.{a}") }.parse().unwrap();
            let ip = ip.to_string();
            let value = format!(r#"{{"IP":"{ip}","Mask":null,"HostIP":"172.16.{b}.{a}","ID":{a},"KeyBytes":0}}"#);
            decoded_record(key(Kind::Ip, cluster, &ip), seed, &value)
        }
    }
}

fn random_group(random: &mut StdRng, records: &mut RecordMap, sequence: &mut u64, width: u32) -> Group {
    let mut group = Group::default();
    for _ in 0..random.random_range(1..width * 2) {
        *sequence += 1;
        let record = random_entry(random, *sequence, width);
        let put = random.random_ratio(2, 3).then(|| Arc::clone(&record));
        group.records.insert(record.key.clone(), put);
    }
    for (key, record) in &group.records {
        match record {
            Some(record) => records.insert(key.clone(), Arc::clone(record)),
            None => records.remove(key),
        };
    }
    group.sequence_reserved = Some(Sequence(*sequence + 10));
    group
}

/// Returns whether a record matches a query.
fn matches_query(record: &Record, query: &RecordQuery) -> bool {
    let prefix = match record.object.as_deref() {
        Some(Object::Ip(entry)) => Some(entry.prefix),
        _ => None,
    };
    match query {
        RecordQuery::Covering(ip) => prefix.is_some_and(|prefix| prefix.net.contains(ip)),
        RecordQuery::Network(net) => prefix.is_some_and(|prefix| prefix.net == *net),
        RecordQuery::Identity(id) => matches!(record.object.as_deref(), Some(Object::Identity(identity)) if identity.id == *id),
        RecordQuery::NodeAt(ip) => {
            matches!(record.object.as_deref(), Some(Object::Node(node)) if node.addresses.iter().any(|address| address.ip == *ip))
        }
        RecordQuery::Key(key) => record.key == *key,
    }
}

fn all_queries(width: u32) -> Vec<RecordQuery> {
    let mut queries: Vec<RecordQuery> = (256..256 + width).map(RecordQuery::Identity).collect();
    for (a, b) in (0..width).flat_map(|a| (0..3_usize).map(move |b| (a, b))) {
        let ips: [IpAddr; 3] = [format!("10.0.{b}.{a}"), format!("fd00::{b}:{a}"), format!("172.16.{b}.{a}")].map(|ip| ip.parse().unwrap());
        queries.extend(ips.map(RecordQuery::Covering));
        queries.extend(ips.map(IpNet::from).map(RecordQuery::Network));
        queries.extend(ips.map(RecordQuery::NodeAt));
        queries.push(RecordQuery::Key(key(Kind::Node, CLUSTERS[b], &format!("n{a}"))));
        queries.push(RecordQuery::Key(key(Kind::Ip, CLUSTERS[b], &format!("10.0.{b}.{a}"))));
    }
    queries.extend(["10.0.0.0/8", "10.0.0.0/24", "10.0.1.0/24"].map(|net| RecordQuery::Network(net.parse().unwrap())));
    queries
}

/// Returns the entries that match a query, with their sequences.
fn matching_entries(found: &EarlyEntries, records: &RecordMap, query: &RecordQuery) -> BTreeMap<EntryKey, Sequence> {
    let packed = found.chunks.iter().flat_map(|chunk| chunk.records().collect::<Vec<_>>());
    let packed = packed.filter(|record| !found.changed.contains_key(&record.key));
    let all = packed.chain(found.changed.values().flatten().map(|record| Record::clone(record)));
    let model_record = |record: &Record| records.get(&record.key).cloned().unwrap_or_else(|| panic!("{} is not in the model", record.key));
    all.map(|record| (model_record(&record), record.last_sequence))
        .filter(|(model, _)| matches_query(model, query))
        .map(|(model, sequence)| (model.key.clone(), sequence))
        .collect()
}

fn check<S: SlotStorage>(early: &EarlyIndex, slots: &S, records: &RecordMap, width: u32) -> usize {
    let mut answered_count = 0;
    for query in all_queries(width) {
        // an interrupted write may have replaced a chunk, and then there is no answer
        let Some(found) = early.read(slots, std::slice::from_ref(&query)) else { continue };
        answered_count += 1;
        let expected = records.values().filter(|record| matches_query(record, &query));
        let expected: BTreeMap<EntryKey, Sequence> = expected.map(|record| (record.key.clone(), record.last_sequence)).collect();
        assert_eq!(matching_entries(&found, records, &query), expected, "{query:?}");
    }
    let clusters: BTreeSet<_> = records.keys().map(|key| key.cluster.clone()).collect();
    assert!(early.clusters().is_superset(&clusters));
    answered_count
}

/// Opens a store like a start and adds the decoded records.
fn reopen_with_objects(disk: &FakeDisk, records: &RecordMap, newer: &RecordMap) -> TestStore {
    let mut store = reopen(disk);
    for decoded in [records, newer] {
        store.chunk_store.add_decoded(&decoded.values().cloned().collect::<Vec<_>>());
    }
    store
}

/// Returns the number of answered queries and of all queries after power cuts.
fn run(random: &mut StdRng) -> (usize, usize) {
    let (mut answered_count, mut asked_count) = (0, 0);
    let disk = FakeDisk::default();
    let mut store = TestStore::create(&disk);
    let width = if random.random_ratio(1, 10) { 200 } else { 6 };
    let (mut records, mut sequence, mut acknowledged) = (RecordMap::new(), 0, false);
    for _ in 0..random.random_range(1..25) {
        if random.random_ratio(1, 3) {
            disk.fail_after(Some(random.random_range(0..40)));
        }
        let mut newer = records.clone();
        let group = random_group(random, &mut newer, &mut sequence, width);
        let outcome = store.fold_randomly(random).and_then(|()| {
            store.commit(&group)?;
            records.clone_from(&newer);
            acknowledged = true;
            store.fold_randomly(random)
        });
        if outcome.is_ok() && !random.random_ratio(1, 6) {
            disk.fail_after(None);
            continue;
        }
        drop(store);
        disk.cut_power(random);
        let mut scan = SlotScan::start(Arc::new(disk.clone())).unwrap();
        scan.add_log(read_log(&disk).unwrap(), u64::MAX).unwrap();
        let early = scan.early_index();
        // after the first group, the store has everything that early lookups need
        assert!(early.is_some() || !acknowledged, "no manifest");
        store = reopen_with_objects(&disk, &records, &newer);
        let loaded = crate::store::recovery::load::load_contents(&store.chunk_store, BTreeMap::new()).unwrap().contents;
        let found: Vec<Sequence> = loaded.records().iter().map(|record| record.last_sequence).collect();
        if !found.iter().copied().eq(records.values().map(|record| record.last_sequence)) {
            records = newer;
        }
        if let Some(early) = early {
            let width = if width > 6 { 12 } else { width };
            answered_count += check(&early, &disk, &records, width);
            asked_count += all_queries(width).len();
        }
    }
    (answered_count, asked_count)
}

#[test]
fn early_answers_after_any_power_cut_equal_later_ones() {
    if let Some(seed) = std::env::var("MESHKEEP_TEST_STORE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run(&mut StdRng::seed_from_u64(seed));
        return;
    }
    let (mut answered_count, mut asked_count) = (0, 0);
    for sequence in 0..super::power_cuts::sequence_count() / 10 {
        let seed = rand::rng().random();
        println!("sequence {sequence}: seed {seed}");
        let (answered, asked) = run(&mut StdRng::seed_from_u64(seed));
        answered_count += answered;
        asked_count += asked;
    }
    println!("{answered_count} of {asked_count} questions were answered early");
    assert!(answered_count > asked_count / 2, "{answered_count} of {asked_count}");
}

/// Opens a store. Returns the number of chunks that an early lookup of a key reads, if there is a
/// partial store and an answer.
fn open_and_look_up(directory: &Path) -> (Option<Option<usize>>, UnpackedContents) {
    let mut found = None;
    let mut offer = |partial: Option<PartialStore>| {
        let query = RecordQuery::Key(key(Kind::Node, "paris", "000"));
        found = partial.map(|partial| partial.read(&[query]).map(|found| found.chunks.len()));
    };
    let (store, opened) = Store::open_with_early_lookups(directory, Duration::ZERO, &mut offer).unwrap();
    assert_eq!(opened.set_aside, None);
    let loaded = read(&store);
    store.apply(&Group { sequence_reserved: Some(loaded.sequence_reserved.next()), ..Group::default() }).unwrap();
    store.close().unwrap();
    (found, UnpackedContents { sequence_reserved: Sequence(0), ..loaded })
}

fn manifest_slots(engine: &Engine) -> Vec<Slot> {
    let slots = engine.list_slots().unwrap().into_iter().filter(|slot| slot.kind == SlotKind::Manifest);
    slots.filter(|slot| engine.get(*slot).unwrap().is_some()).collect()
}

/// A start without a manifest has no early answers; everything else works.
#[test]
fn a_damaged_or_missing_manifest_is_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    store.apply(&group()).unwrap();
    store.close().unwrap();
    let (found, whole) = open_and_look_up(directory.path());
    assert_eq!(found, Some(Some(1)));
    // flips a bit of the body or of the head, or deletes the object
    for damage in 0..3 {
        let engine = Engine::open(&directory.path().join("store")).unwrap();
        let slots = manifest_slots(&engine);
        assert!(!slots.is_empty());
        for slot in slots {
            let mut value = engine.get(slot).unwrap().unwrap();
            let at = if damage == 0 { value.len() - 10 } else { 3 };
            value[at] ^= 1;
            if damage == 2 { engine.delete(slot).unwrap() } else { engine.put(slot, &value).unwrap() }
        }
        engine.sync().unwrap();
        drop(engine);
        assert_eq!(open_and_look_up(directory.path()), (None, whole.clone()), "damage {damage}");
        assert_eq!(open_and_look_up(directory.path()), (Some(Some(1)), whole.clone()), "after damage {damage}");
    }
}

/// A damaged chunk must not look like a missing key.
#[test]
fn a_damaged_chunk_gives_no_early_answer() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    store.apply(&group()).unwrap();
    store.close().unwrap();
    flip_last_byte_of(directory.path(), b"e");
    assert_eq!(open_and_look_up(directory.path()).0, Some(None));
}

/// After a lost write, the slot has an older chunk than the manifest lists.
#[test]
fn an_older_chunk_than_the_listed_one_gives_no_early_answer() {
    let directory = tempfile::tempdir().unwrap();
    let add = |group: &Group| {
        let (store, _) = open(directory.path());
        store.apply(group).unwrap();
        store.close().unwrap();
    };
    let engine = || Engine::open(&directory.path().join("store")).unwrap();
    add(&group());
    let (slot, _) = chunk_at(directory.path(), b"e");
    let older = engine().get(slot).unwrap().unwrap();
    let is_replaced = |seed: u64| {
        let first = key(Kind::Node, "paris", "000");
        let change = Some(Arc::new(record(first.clone(), seed, 100)));
        add(&Group { records: BTreeMap::from([(first, change)]), ..Group::default() });
        chunk_at(directory.path(), b"e").0 == slot && engine().get(slot).unwrap().unwrap() != older
    };
    assert!((1_000..1_032).any(is_replaced), "no newer chunk was written to slot {slot}");
    assert_eq!(open_and_look_up(directory.path()).0, Some(Some(1)));
    let engine = engine();
    engine.put(slot, &older).unwrap();
    engine.sync().unwrap();
    drop(engine);
    assert_eq!(open_and_look_up(directory.path()).0, Some(None));
}

/// Nothing can be trusted before everything is read.
#[test]
fn a_suspect_or_older_store_gives_no_early_answer() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    store.apply(&group()).unwrap();
    store.close().unwrap();
    let older = tempfile::tempdir().unwrap();
    copy_directory(&directory.path().join("store"), older.path());
    let (store, _) = open(directory.path());
    store.inner().chunk_store.as_mut().unwrap().set_log_id(0).unwrap();
    drop(store);
    assert_eq!(open_and_look_up(directory.path()).0, None);
    std::fs::remove_dir_all(directory.path().join("store")).unwrap();
    copy_directory(older.path(), &directory.path().join("store"));
    assert_eq!(open_and_look_up(directory.path()).0, None);
}

/// Returns the names of sled's snapshots. A new snapshot has a new name.
fn snapshots(directory: &Path) -> Vec<OsString> {
    let files = std::fs::read_dir(directory.join("store")).unwrap().map(|file| file.unwrap().file_name());
    files.filter(|name| name.as_encoded_bytes().starts_with(b"snap.")).collect()
}

/// Opening writes nothing if the last stop has written a snapshot.
#[test]
fn opening_after_a_clean_stop_writes_no_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    store.apply(&group()).unwrap();
    store.close().unwrap();
    let before = snapshots(directory.path());
    drop(Engine::open(&directory.path().join("store")).unwrap());
    assert_eq!((before.len(), snapshots(directory.path())), (1, before));
}
