//! Tests of early answers: they are the same bytes as the answers once the store is loaded.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::*;
use crate::api::{ApiOptions, BoundApi};
use crate::commit::{first_reservation, snapshot_channel};
use crate::etcd_api::{self, EtcdOptions};
use crate::handle::{Handle, ProcessState};
use crate::model::{
    ClusterConfig, ClusterId, ClusterRecord, Cursor, EntryKey, Epoch, EpochSpan, EtcdClusterId, Kind, ListenAddress, Rejection, Revision,
    Scope, Sequence, SourceStamp,
};
use crate::runtime::plan::EpochSeed;
use crate::runtime::restore::restore;
use crate::runtime::wiring::StoreOpenOptions;
use crate::store::{Group, Store};
use crate::view::derive_entries;
use crate::wire::{self, Context};

const MAX: MaxConnectedClusters = MaxConnectedClusters::Clusters255;

fn retention() -> Retention {
    Retention { age_max: Duration::from_secs(3600), count_max: 1000 }
}

fn cluster(name: &str) -> ClusterName {
    ClusterName::parse(name).unwrap()
}

fn key(kind: Kind, cluster_name: &str, name: &str) -> EntryKey {
    EntryKey::new(kind, cluster(cluster_name), name)
}

fn record(key: EntryKey, sequence: u64, value: &str) -> Record {
    let context = Context { cluster: &key.cluster, cluster_id: ClusterId(0), max_connected_clusters: MAX };
    let object = wire::decode(&key, value.as_bytes(), &context).unwrap();
    Record {
        key,
        value: value.as_bytes().into(),
        good_value: None,
        object: Some(Arc::new(object)),
        rejection: None,
        source: SourceStamp { mod_revision: Revision(5), ..SourceStamp::default() },
        create_sequence: Sequence(sequence),
        last_sequence: Sequence(sequence),
        version: 1,
        generation: 0,
    }
}

fn ip(cluster_name: &str, name: &str, sequence: u64, identity: u32, host: &str) -> Record {
    let (address, mask) = match name.split_once('/') {
        Some((address, _)) => (address, r#""//8AAA==""#),
        None => (name, "null"),
    };
    record(
        key(Kind::Ip, cluster_name, name),
        sequence,
        &format!(r#"{{"IP":"{address}","Mask":{mask},"HostIP":"{host}","ID":{identity},"Key":0,"K8sPodName":"pod-{sequence}"}}"#),
    )
}

/// Returns a node and the entries that are derived from it.
fn node(cluster_name: &str, name: &str, sequence: u64, address: &str) -> Vec<Record> {
    let value =
        format!(r#"{{"Name":"{name}","Cluster":"{cluster_name}","IPAddresses":[{{"Type":"InternalIP","IP":"{address}"}}],"ClusterID":0}}"#);
    let node = record(key(Kind::Node, cluster_name, name), sequence, &value);
    let Some(Object::Node(object)) = node.object.as_deref() else { panic!("{node:?}") };
    let derived = derive_entries(object).into_iter().enumerate().map(|(index, entry)| {
        let value = String::from_utf8(wire::derived_value(&entry)).unwrap();
        record(EntryKey::of_node_ip(&node.key, entry.prefix), sequence + 1 + index as u64, &value)
    });
    derived.chain([node.clone()]).collect()
}

fn group(records: Vec<Record>, covered: u64) -> Group {
    let records = records.into_iter().map(|record| (record.key.clone(), Some(Arc::new(record)))).collect();
    Group {
        records,
        covered_sequence: Some(Sequence(covered)),
        sequence_reserved: Some(first_reservation(Sequence(covered))),
        ..Group::default()
    }
}

/// Stores entries of three clusters in chunks, some newer ones in the log, and two that were
/// announced but not stored, as after a kill.
fn fill_store(directory: &Path) {
    let (store, _) = Store::open(directory, Duration::ZERO).unwrap();
    let filler =
        (0..6_000_u64).map(|number| ip("oslo", &format!("10.9.{}.{}", number / 250, number % 250), number + 100, 300, "172.18.0.1"));
    let mut records: Vec<Record> = filler.collect();
    records.extend(node("oslo", "a", 10, "172.18.0.1"));
    records.extend(node("paris", "b", 20, "172.18.0.2"));
    records.extend(node("paris", "six", 25, "fd00::2"));
    records.push(record(key(Kind::Identity, "oslo", "300"), 30, "k8s:app=web;"));
    records.push(record(key(Kind::Identity, "paris", "300"), 31, "k8s:app=cart;"));
    records.push(record(
        key(Kind::Service, "paris", "shop/cart"),
        32,
        r#"{"cluster":"paris","namespace":"shop","name":"cart","clusterID":0}"#,
    ));
    records.push(ip("paris", "10.1.0.0/16", 33, 2, ""));
    records.push(ip("paris", "10.9.0.7", 34, 300, "172.18.0.2"));
    records.push(ip("rome", "10.9.0.7", 50_000, 300, ""));
    records.push(ip("rome", "fd00:1::7", 36, 300, "fd00::2"));
    records.push(ip("rome", "10.7.0.1", 37, 4, ""));
    let now = SystemTime::UNIX_EPOCH;
    let rejection = Some(Rejection { reason: "not JSON".into(), first_seen: now, last_seen: now });
    let good = ip("rome", "10.7.0.9", 38, 300, "");
    records.push(Record { good_value: Some(Arc::clone(&good.value)), value: b"?"[..].into(), rejection, ..good });
    let mut group_of_all = group(records, 60_000);
    let config = ClusterConfig {
        id: ClusterId(0),
        synced_canaries: true,
        cached: false,
        max_connected_clusters: 255,
        service_exports_enabled: None,
        endpoint_slices_export_mode: None,
    };
    for (name, kind) in ["oslo", "paris", "rome"].into_iter().flat_map(|name| Kind::ALL.map(|kind| (name, kind))) {
        group_of_all
            .clusters
            .insert(cluster(name), Some(ClusterRecord { config: Some(config.clone()), last_contact: None, ..ClusterRecord::default() }));
        let cursor = Cursor::new(EtcdClusterId(1), Revision(9), false);
        group_of_all.cursors.insert(Scope { cluster: cluster(name), kind }, Some(cursor));
    }
    group_of_all.derivation_version = Some(DERIVATION_VERSION);
    group_of_all.epochs = Some(vec![EpochSpan { epoch: Epoch(7), start: Sequence(0), accepted_up_to: None }]);
    store.apply(&group_of_all).unwrap();
    assert!(store.fold_within(Duration::from_secs(60)).unwrap());
    // only in the log
    let mut newer = group(node("rome", "c", 60_001, "172.18.0.3"), 60_010);
    for record in [ip("rome", "10.8.8.8", 60_004, 301, "172.18.0.3"), record(key(Kind::Identity, "rome", "301"), 60_005, "k8s:app=new;")] {
        newer.records.insert(record.key.clone(), Some(Arc::new(record)));
    }
    newer.records.insert(key(Kind::Ip, "rome", "10.7.0.1"), None);
    newer.records.insert(key(Kind::Ip, "oslo", "10.9.1.1"), None);
    let changed = ip("oslo", "10.9.1.2", 60_006, 301, "172.18.0.2");
    newer.records.insert(changed.key.clone(), Some(Arc::new(changed)));
    store.apply(&newer).unwrap();
    // in the log, but not stored
    let announced = record(key(Kind::Identity, "rome", "302"), 60_012, "k8s:app=newest;");
    store.log().append(&mut group(vec![announced], 60_012));
}

const PATHS: [&str; 24] = [
    "/v1/ipcache/lookup?ip=10.9.0.7",
    "/v1/ipcache/lookup?ip=10.9.5.5",
    "/v1/ipcache/lookup?ip=10.9.1.1",
    "/v1/ipcache/lookup?ip=10.9.1.2",
    "/v1/ipcache/lookup?ip=10.1.2.3",
    "/v1/ipcache/lookup?ip=10.7.0.1",
    "/v1/ipcache/lookup?ip=10.7.0.9",
    "/v1/ipcache/lookup?ip=10.8.8.8",
    "/v1/ipcache/lookup?ip=10.200.0.1",
    "/v1/ipcache/lookup?ip=fd00:1::7",
    "/v1/ipcache/lookup?ip=fd00::2",
    "/v1/ipcache/lookup?ip=172.18.0.1",
    "/v1/ipcache/lookup?ip=172.18.0.3",
    "/v1/ipcache/lookup?ip=192.0.2.1",
    "/v1/ipcache/10.1.0.0/16",
    "/v1/ipcache/10.9.0.7",
    "/v1/ipcache/172.18.0.2",
    "/v1/ipcache/10.9.1.1",
    "/v1/identities/300",
    "/v1/identities/301",
    "/v1/identities/999",
    "/v1/nodes/paris/b",
    "/v1/services/paris/shop/cart",
    "/v1/entries/cilium/cache/ip/v1/rome/10.7.0.9",
];

fn ask(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    // differences are allowed in the time of day, the request id, and the tag, whose counters an
    // early start does not have yet
    let is_stable = |line: &&str| !["date:", "x-request-id:", "etag:"].iter().any(|head| line.to_ascii_lowercase().starts_with(head));
    answer.lines().filter(is_stable).collect::<Vec<_>>().join("\n")
}

async fn answers(address: String) -> Vec<(&'static str, String)> {
    let asked = move || PATHS.map(|path| (path, ask(&address, path))).to_vec();
    tokio::task::spawn_blocking(asked).await.unwrap()
}

/// One key each: in a chunk and changed since; only in the log; deleted; never stored.
const ETCD_KEYS: [&str; 4] = [
    "cilium/cache/ip/v1/oslo/10.9.1.2",
    "cilium/cache/ip/v1/rome/10.8.8.8",
    "cilium/cache/ip/v1/rome/10.7.0.1",
    "cilium/cache/nodes/v1/paris/nobody",
];

/// Reads the keys through the etcd API: whether each exists, and the bytes of the answer.
async fn read_etcd_keys(handle: &Handle) -> [(bool, Bytes); ETCD_KEYS.len()] {
    let mut answers = ETCD_KEYS.map(|_| (false, Bytes::new()));
    for (key, answer) in ETCD_KEYS.into_iter().zip(&mut answers) {
        // a `RangeRequest` with only its first field, in an uncompressed message after its length
        let request = [&[0x0a, u8::try_from(key.len()).unwrap()], key.as_bytes()].concat();
        let message = [&[0], &u32::try_from(request.len()).unwrap().to_be_bytes()[..], &request].concat();
        let request = http::Request::post("/etcdserverpb.KV/Range").header("content-type", "application/grpc");
        let request = request.body(Full::new(Bytes::from(message))).unwrap();
        let response = etcd_api::service(handle.clone(), EtcdOptions::default()).oneshot(request).await.unwrap();
        let body = response.into_body().collect().await.unwrap();
        let is_refused = body.trailers().is_none_or(|trailers| trailers["grpc-status"] != "0");
        assert!(!is_refused, "{key}: {:?}", body.trailers());
        let bytes = body.to_bytes();
        *answer = (memchr::memmem::find(&bytes, key.as_bytes()).is_some(), bytes);
    }
    answers
}

fn open_options(directory: &Path, unmirrored: &str) -> StoreOpenOptions {
    StoreOpenOptions {
        directory: directory.to_owned(),
        wait: Duration::ZERO,
        max_connected_clusters: MAX,
        retention: retention(),
        unmirrored: [cluster(unmirrored)].into(),
    }
}

/// Announced changes that were not stored are known before any position is given out.
#[test]
fn an_early_start_accepts_positions_announced_before_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    fill_store(directory.path());
    let opened = open_options(directory.path(), "lima").open(watch::channel(None).0).unwrap();
    let early_plan = opened.early_plan.expect("must begin early");
    assert_eq!(*early_plan.accepted_epochs(), [EpochSpan { epoch: Epoch(7), start: Sequence(0), accepted_up_to: Some(Sequence(60_012)) }]);
}

/// The store still has the entries of a cluster that this start ignores.
#[test]
fn a_store_with_an_unmirrored_cluster_is_not_answered_from_early() {
    let directory = tempfile::tempdir().unwrap();
    fill_store(directory.path());
    let (early, answers) = watch::channel(None);
    let opened = open_options(directory.path(), "rome").open(early).unwrap();
    assert!(opened.early_plan.is_none() && answers.borrow().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_answers_equal_those_of_the_loaded_store() {
    let directory = tempfile::tempdir().unwrap();
    fill_store(directory.path());
    let (early_sender, early) = watch::channel(None);
    let (loaded_sender, loaded) = watch::channel(None);
    let handle = Handle::new(ProcessState::without_clusters(loaded));
    let handle = handle.with_early_lookup(early);
    let bound = BoundApi::bind(&[ListenAddress::parse("127.0.0.1:0").unwrap()], &ApiOptions::default()).await.unwrap();
    let address = bound.addresses()[0].strip_prefix("http://").unwrap().to_owned();
    let stop = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(bound.serve(handle.clone(), stop.clone(), Duration::from_secs(1)));

    // loading blocks at its beginning until it is released
    let (release, released) = sync_channel::<()>(1);
    let path = directory.path().to_owned();
    let loading = tokio::task::spawn_blocking(move || {
        let mut early_plan = None;
        let mut offer = |partial: Option<PartialStore>| {
            let Some(partial) = partial else { return };
            let (mirror, start) = prepare(partial, MAX, retention(), &BTreeSet::new()).expect("must be answered early");
            early_plan = Some(start);
            early_sender.send_replace(Some(Arc::new(mirror) as Arc<dyn EarlyLookup>));
            released.recv().unwrap();
        };
        let (store, _) = Store::open_with_early_lookups(&path, Duration::ZERO, &mut offer).unwrap();
        let restored = restore(&store, MAX, retention(), early_plan, EpochSeed::draw(SystemTime::now()), None).unwrap();
        let (publisher, subscriber) = snapshot_channel(restored.published);
        loaded_sender.send_replace(Some(subscriber));
        (store, publisher, loaded_sender)
    });
    let before = answers(address.clone()).await;
    let keys_before = read_etcd_keys(&handle).await;
    release.send(()).unwrap();
    let _loaded_store = loading.await.unwrap();
    assert_eq!(keys_before, read_etcd_keys(&handle).await);
    assert_eq!(keys_before.each_ref().map(|(is_found, _)| *is_found), [true, true, false, false]);
    let after = answers(address).await;
    for ((path, before), (_, after)) in before.iter().zip(&after) {
        assert_eq!(before, after, "{path}");
    }
    let body_of = |path: &str| before.iter().find(|(asked, _)| *asked == path).map(|(_, answer)| answer.clone()).unwrap();
    assert!(body_of("/v1/ipcache/lookup?ip=10.8.8.8").contains("k8s:app") || body_of("/v1/ipcache/lookup?ip=10.8.8.8").contains("\"app\""));
    assert!(body_of("/v1/ipcache/lookup?ip=10.7.0.1").contains("\"match\":null"));
    assert!(body_of("/v1/ipcache/lookup?ip=10.9.0.7").contains("paris"));
    stop.cancel();
    while tasks.join_next().await.is_some() {}
}
