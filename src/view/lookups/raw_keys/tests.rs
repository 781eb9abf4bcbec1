//! Raw keys are listed in order, by prefix and in pages.

use std::collections::BTreeMap;
use std::time::SystemTime;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::model::{Change, ClusterConfig, ClusterId, ClusterRecord, Command, Cursor, EtcdClusterId, Revision, Scope, SourceStamp};

fn cluster(name: &str) -> ClusterName {
    ClusterName::parse(name).unwrap()
}

fn scope(name: &str, kind: Kind) -> Scope {
    Scope { cluster: cluster(name), kind }
}

fn cursor() -> Cursor {
    let (etcd_cluster_id, revision) = (EtcdClusterId(1), Revision(1));
    Cursor::new(etcd_cluster_id, revision, false)
}

fn set_cursor(name: &str) -> Command {
    Command::Apply { scope: scope(name, Kind::Node), changes: Vec::new(), cursor: Some(cursor()) }
}

fn apply(view: &mut View, command: Command) -> Vec<String> {
    let announced = view.apply(command, SystemTime::UNIX_EPOCH).announcements;
    announced.iter().map(|one| format!("{}{}", if one.deleted.is_some() { "-" } else { "" }, one.key)).collect()
}

fn put(view: &mut View, kind: Kind, name: &str, key: &str, value: &str) {
    let key = EntryKey::new(kind, cluster(name), key);
    let value: Arc<[u8]> = value.as_bytes().into();
    let change = Change::Put { key, value, decoded: Err("not decoded".into()), source: SourceStamp::default() };
    apply(view, Command::Apply { scope: scope(name, kind), changes: vec![change], cursor: None });
}

fn store_cluster(name: &str, config: ClusterConfig) -> Command {
    Command::StoreCluster { cluster: cluster(name), record: ClusterRecord { config: Some(config), ..ClusterRecord::default() } }
}

fn config(exports: Option<bool>) -> ClusterConfig {
    ClusterConfig { id: ClusterId(3), service_exports_enabled: exports, ..ClusterConfig::default() }
}

#[test]
fn notices_exist_from_the_first_heartbeat_on() {
    let mut view = View::starting_at(Sequence(10));
    assert!(apply(&mut view, store_cluster("paris", config(None))).is_empty());
    apply(&mut view, set_cursor("paris"));
    assert_eq!(
        apply(&mut view, Command::Heartbeat),
        ["cilium/cluster-config/paris", "cilium/synced/paris/cilium/cache/nodes/v1", "cilium/.heartbeat"]
            .map(|key| format!("notice/{key}"))
    );
    assert_eq!(apply(&mut view, Command::Heartbeat), ["notice/cilium/.heartbeat"]);
    let beat = view.raw_key("cilium/.heartbeat").unwrap().record();
    assert_eq!(
        (&*beat.value, beat.create_sequence, beat.last_sequence, beat.version),
        (&b"1970-01-01T00:00:00Z"[..], Sequence(13), Sequence(14), 2)
    );
    // another list does not delete the canary, and an equal config is not a change
    assert!(apply(&mut view, Command::BeginList(scope("paris", Kind::Node))).is_empty());
    assert!(apply(&mut view, set_cursor("paris")).is_empty());
    let change_set = view.apply(store_cluster("paris", config(Some(true))), SystemTime::UNIX_EPOCH);
    assert_eq!(change_set.announcements.len(), 1);
    let stored = change_set.clusters[&cluster("paris")].clone().unwrap();
    assert_eq!(
        stored.notices.iter().map(|notice| (&*notice.key, notice.version)).collect::<Vec<_>>(),
        [("cilium/cluster-config/paris", 2), ("cilium/synced/paris/cilium/cache/nodes/v1", 1)]
    );
    let mut restored = View::starting_at(Sequence(100));
    restored.restore_cluster(cluster("paris"), stored);
    assert_eq!(restored.raw_key_count(b"", None), 2);
    // the first heartbeat after a restart puts nothing else
    assert_eq!(apply(&mut restored, Command::Heartbeat), ["notice/cilium/.heartbeat"]);
    let removed = apply(&mut view, Command::Remove { cluster: cluster("paris"), reason: crate::model::DeleteReason::ClusterRemoved });
    assert_eq!(removed[..2], ["-notice/cilium/cluster-config/paris", "-notice/cilium/synced/paris/cilium/cache/nodes/v1"]);
}

/// Compares random ranges with a sorted map, over packed and unpacked records.
#[test]
fn byte_ranges_equal_those_of_a_sorted_map() {
    let mut random = StdRng::seed_from_u64(29);
    let mut view = View::starting_at(Sequence(1));
    let names = ["eu", "eu-west", "paris"];
    for name in names {
        apply(&mut view, store_cluster(name, config(Some(true))));
    }
    apply(&mut view, Command::Heartbeat);
    let mut expected: BTreeMap<String, String> = BTreeMap::new();
    for step in 0..400 {
        let (kind, name) = (Kind::ALL[random.random_range(0..6)], names[random.random_range(0..3)]);
        let key = format!("{}-{}", ["a", "a/b", "é"][random.random_range(0..3)], random.random_range(0..30));
        let (value, whole) = (format!("value {step}"), EntryKey::new(kind, cluster(name), key.as_str()).to_string());
        if random.random_ratio(1, 4) {
            let changes = vec![Change::Delete { key: EntryKey::new(kind, cluster(name), key.as_str()) }];
            apply(&mut view, Command::Apply { scope: scope(name, kind), changes, cursor: None });
            expected.remove(&whole);
        } else {
            put(&mut view, kind, name, &key, &value);
            expected.insert(whole, value);
        }
        // packs the records so far into chunks
        if step == 200 {
            let records: Vec<_> = view.records_from(&EntryKey::lowest()).map(|record| crate::model::Record::clone(&record)).collect();
            let chunks = crate::pack::build_with_fields(records.iter().map(|record| (record, crate::pack::IndexedFields::Nothing)));
            let mut packed = View::starting_at(view.sequence());
            names.iter().for_each(|name| packed.restore_cluster(cluster(name), view.cluster(&cluster(name)).unwrap().clone()));
            packed.restore_chunks(chunks);
            apply(&mut packed, Command::Heartbeat);
            view = packed;
        }
    }
    for notice in view.notices_from("") {
        expected.insert(notice.key.to_string(), String::from_utf8(notice.value.to_vec()).unwrap());
    }
    assert_eq!(expected.len(), view.raw_keys_from(b"").count());
    let all: Vec<Vec<u8>> = expected.keys().map(|key| key.clone().into_bytes()).collect();
    let mut bound = || {
        let mut bytes = all[random.random_range(0..all.len())].clone();
        match random.random_range(0..6) {
            0 => bytes.truncate(random.random_range(0..bytes.len())),
            1 => bytes.push(0),
            2 => bytes.push(0xff),
            3 => bytes.truncate(random.random_range(0..bytes.len()).max(1)),
            _ => {}
        }
        if random.random_ratio(1, 4)
            && let Some(last) = bytes.last_mut()
        {
            *last = last.saturating_add(1);
        }
        bytes
    };
    for _ in 0..3_000 {
        let (start, end) = (bound(), bound());
        let within = |key: &str| key.as_bytes() >= start.as_slice() && key.as_bytes() < end.as_slice();
        let wanted: Vec<(String, String)> = expected.iter().filter(|(key, _)| within(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        let record = |location: RawKey<'_>| {
            let record = location.record();
            (record.key.to_string(), String::from_utf8(record.value.to_vec()).unwrap())
        };
        let found: Vec<(String, String)> =
            view.raw_keys_from(&start).take_while(|location| location.key().as_bytes() < end.as_slice()).map(record).collect();
        assert_eq!(found, wanted, "from {} to {}", start.escape_ascii(), end.escape_ascii());
        assert_eq!(view.raw_key_count(&start, Some(&end)), wanted.len(), "from {} to {}", start.escape_ascii(), end.escape_ascii());
    }
    assert_eq!(view.raw_key_count(b"", None), expected.len());
}
