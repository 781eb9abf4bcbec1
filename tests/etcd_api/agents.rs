//! Reads that Cilium's agents make. meshkeep serves the keys that a KVStoreMesh would write, at
//! once after every start.

use std::collections::BTreeMap;

use etcd_client::{Client, Compare, CompareOp, Error, GetOptions, SortOrder, SortTarget, Txn, TxnOp, WatchOptions};

use super::watches::next_response;
use super::{MirroredCluster, client, etcd_api_url, list};
use crate::harness::eventually;
use crate::harness::meshkeep::{Home, http};
use crate::harness::scene::wait_until_served;
use crate::harness::truth::Truth;

/// Value, create revision, mod revision and version by key.
type Keys = BTreeMap<String, (Vec<u8>, i64, i64, i64)>;

async fn keys(client: &mut Client, prefix: &str) -> Keys {
    let listed = list(client, prefix).await;
    let kvs = listed.kvs().iter();
    kvs.map(|kv| (kv.key_str().unwrap().to_owned(), (kv.value().to_vec(), kv.create_revision(), kv.mod_revision(), kv.version()))).collect()
}

fn without_heartbeat(mut keys: Keys) -> Keys {
    keys.remove("cilium/.heartbeat").expect("must have a heartbeat");
    keys
}

fn status_of(error: Error) -> (tonic::Code, String) {
    let Error::GRpcStatus(status) = error else { panic!("{error}") };
    (status.code(), status.message().to_owned())
}

#[tokio::test]
async fn agents_read_the_keys_of_a_kvstoremesh_before_and_after_a_restart() {
    let MirroredCluster { mut remote, mut home, meshkeep, mut api } = MirroredCluster::start().await;
    eventually("all canaries", || {
        let mut api = api.clone();
        async move { (list(&mut api, "cilium/synced/c01/").await.kvs().len() == 6).then_some(()) }
    })
    .await;
    let all = without_heartbeat(keys(&mut api, "cilium/").await);
    let mirrored: BTreeMap<&String, &Vec<u8>> =
        all.iter().filter(|(key, _)| key.starts_with("cilium/cache/")).map(|(key, kv)| (key, &kv.0)).collect();
    assert_eq!(mirrored, remote.clusters[0].entries.iter().collect());
    let config = r#"{"id":1,"capabilities":{"syncedCanaries":true,"cached":true,"maxConnectedClusters":255,"serviceExportsEnabled":true,"endpointSlicesExportMode":"services-and-endpointslices"}}"#;
    assert_eq!(String::from_utf8_lossy(&all["cilium/cluster-config/c01"].0), config);
    assert!(all.contains_key("cilium/synced/c01/cilium/cache/identities/v1"));
    let header = list(&mut api, "cilium/cluster-config/").await.header().unwrap().clone();
    assert!(header.cluster_id() != 0 && header.revision() >= all.values().map(|kv| kv.2).max().unwrap());

    // restart with only the data on disk
    meshkeep.stop().await;
    remote.proxy.cut().await;
    let meshkeep = home.start().await;
    let mut api = client(&etcd_api_url(&home)).await;
    let after_restart = eventually("a heartbeat", || {
        let mut api = api.clone();
        async move { Some(keys(&mut api, "cilium/").await).filter(|keys| keys.contains_key("cilium/.heartbeat")) }
    })
    .await;
    assert_eq!(without_heartbeat(after_restart), all, "nothing has changed");
    let header_after = list(&mut api, "cilium/cluster-config/").await.header().unwrap().clone();
    assert_eq!(header_after.cluster_id(), header.cluster_id());
    assert!(header_after.revision() > header.revision());
    // a client that watched before continues without a list: only the heartbeat has changed
    let options = WatchOptions::new().with_prefix().with_start_revision(header.revision() + 1);
    let mut watch = api.watch("cilium/", Some(options)).await.unwrap();
    assert!(watch.message().await.unwrap().unwrap().created());
    let reported = watch.message().await.unwrap().unwrap();
    let reported: Vec<&str> = reported.events().iter().map(|event| event.kv().unwrap().key_str().unwrap()).collect();
    assert_eq!(reported, ["cilium/.heartbeat"]);
    // without its store, meshkeep begins a new history
    meshkeep.stop().await;
    std::fs::remove_dir_all(home.data_directory()).unwrap();
    let _meshkeep = home.start().await;
    let mut api = client(&etcd_api_url(&home)).await;
    let lost = list(&mut api, "cilium/cluster-config/").await;
    assert_ne!(lost.header().unwrap().cluster_id(), header.cluster_id());
    remote.change(|_| {}).await;
}

#[tokio::test]
async fn writes_and_invalid_reads_get_the_errors_of_an_etcd() {
    let mirrored = MirroredCluster::start().await;
    let mut api = mirrored.api.clone();
    let denied = (tonic::Code::PermissionDenied, "etcdserver: permission denied".to_owned());
    assert_eq!(status_of(api.put("a", "b", None).await.unwrap_err()), denied);
    assert_eq!(status_of(api.delete("a", None).await.unwrap_err()), denied);
    assert_eq!(status_of(api.compact(1, None).await.unwrap_err()), denied);
    let put = Txn::new().and_then([TxnOp::put("a", "b", None)]);
    assert_eq!(status_of(api.txn(put).await.unwrap_err()), denied);
    let read = Txn::new()
        .when([Compare::version("cilium/cluster-config/c01", CompareOp::Greater, 0), Compare::version("none", CompareOp::Equal, 0)])
        .and_then([TxnOp::get("cilium/cluster-config/c01", None)]);
    let read = api.txn(read).await.unwrap();
    assert!(read.succeeded() && read.op_responses().len() == 1);
    let at_revision = |revision: i64| Some(GetOptions::new().with_prefix().with_revision(revision));
    let head = list(&mut api, "cilium/cluster-config/").await.header().unwrap().revision();
    let future = (tonic::Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision".to_owned());
    assert_eq!(status_of(api.get("cilium/", at_revision(head + 1_000_000)).await.unwrap_err()), future);
    assert_eq!(status_of(api.get("", None).await.unwrap_err()).1, "etcdserver: key is not provided");
    // a lease has no effect, but is granted
    let lease = api.lease_grant(900, None).await.unwrap();
    assert_eq!(lease.ttl(), 900);
    let (mut keeper, mut renewals) = api.lease_keep_alive(lease.id()).await.unwrap();
    keeper.keep_alive().await.unwrap();
    assert!(renewals.message().await.unwrap().unwrap().ttl() > 0);
    api.lease_revoke(lease.id()).await.unwrap();
    let status = api.status().await.unwrap();
    assert_eq!((status.version(), status.leader()), ("3.7.0", 1));
    assert_eq!(api.member_list().await.unwrap().members()[0].client_urls(), [mirrored.url()]);
    let sorted = GetOptions::new().with_prefix().with_sort(SortTarget::Mod, SortOrder::Descend).with_limit(1);
    let newest = api.get("cilium/", Some(sorted)).await.unwrap();
    assert!(newest.more() && newest.kvs().len() == 1);
    for (path, body) in [("/version", r#""etcdserver":"3.7.0""#), ("/health", r#""health":"true""#), ("/metrics", "meshkeep_")] {
        let text = http().get(format!("{}{path}", mirrored.url())).send().await.unwrap().text().await.unwrap();
        assert!(text.contains(body), "{path}: {text}");
    }
}

/// All pages of a list are read at the revision of the first page, regardless of later changes.
#[tokio::test]
async fn all_pages_of_a_list_have_the_revision_of_the_first() {
    let MirroredCluster { mut remote, home: _home, meshkeep, mut api } = MirroredCluster::start().await;
    let before = keys(&mut api, "cilium/cache/").await;
    let page = |revision: i64| GetOptions::new().with_range("cilium/cache0").with_limit(7).with_revision(revision);
    let first = api.get("cilium/cache/", Some(page(0))).await.unwrap();
    assert_eq!((first.count(), first.more()), (i64::try_from(before.len()).unwrap(), true));
    let (revision, mut received) = (first.header().unwrap().revision(), first.kvs().to_vec());
    loop {
        let keys = remote.clusters[0].keys_of("ip/v1");
        remote
            .change(|cluster| {
                cluster.delete(&keys[0]);
                cluster.change(&keys[1]);
            })
            .await;
        wait_until_served(&meshkeep, &Truth::from_clusters(&remote.clusters).expected(), "a change").await;
        let start = [received.last().unwrap().key(), &[0]].concat();
        let next = api.get(start, Some(page(revision))).await.unwrap();
        assert!(next.header().unwrap().revision() > revision);
        assert_eq!(next.count() + i64::try_from(received.len()).unwrap(), first.count());
        received.extend(next.kvs().iter().cloned());
        if !next.more() {
            break;
        }
    }
    let received: Keys = received
        .iter()
        .map(|kv| (kv.key_str().unwrap().to_owned(), (kv.value().to_vec(), kv.create_revision(), kv.mod_revision(), kv.version())))
        .collect();
    assert_eq!(received, before);
}

#[tokio::test]
async fn metrics_count_ranges_and_open_watches() {
    let mut mirrored = MirroredCluster::start().await;
    let api = &mut mirrored.api;
    let (at_revision, prefix) =
        (|revision: i64| Some(GetOptions::new().with_prefix().with_revision(revision)), GetOptions::new().with_prefix());
    for _ in 0..3 {
        api.get("cilium/cache/", Some(prefix.clone())).await.unwrap();
    }
    let mut stream = api.kv_client().get_stream("cilium/cache/", Some(prefix)).await.unwrap();
    while stream.message().await.unwrap().is_some() {}
    api.txn(Txn::new().and_then([TxnOp::get("a", None)])).await.unwrap();
    status_of(api.get("cilium/", at_revision(i64::MAX)).await.unwrap_err());
    status_of(api.get("", None).await.unwrap_err());
    let mut watch = api.watch("cilium/", None).await.unwrap();
    assert!(next_response(&mut watch).await.created());
    watch.watch("cilium/cache/", None).await.unwrap();
    assert!(next_response(&mut watch).await.created());
    let metrics = mirrored.meshkeep.text("/metrics").await;
    for sample in [
        "ranges_total{outcome=\"answered\"} 5",
        "ranges_total{outcome=\"future\"} 1",
        "ranges_total{outcome=\"invalid\"} 1",
        "ranges_total{outcome=\"compacted\"} 0",
        "watch_streams 1",
        "watchers 2",
        "watches_compacted_total 0",
    ] {
        assert!(metrics.contains(&format!("\nmeshkeep_etcd_{sample}\n")), "{sample} in {metrics}");
    }
    watch.cancel(0).await.unwrap();
    assert!(next_response(&mut watch).await.canceled());
    assert!(mirrored.meshkeep.text("/metrics").await.contains("\nmeshkeep_etcd_watchers 1\n"));
    drop(watch);
    eventually("no watch", || async {
        let metrics = mirrored.meshkeep.text("/metrics").await;
        (metrics.contains("\nmeshkeep_etcd_watchers 0\n") && metrics.contains("\nmeshkeep_etcd_watch_streams 0\n")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn meshkeep_mirrors_the_etcd_api_of_another_meshkeep() {
    let mut first = MirroredCluster::start().await;
    let mut second_home = Home::new();
    second_home.write_cluster("c01", &format!("endpoints:\n- {}\n", first.url()));
    let second = second_home.start().await;
    second.wait_for_phase("c01", "live").await;
    for round in 0..3 {
        let keys = first.remote.clusters[0].keys_of("ip/v1");
        first
            .remote
            .change(|cluster| {
                cluster.delete(&keys[0]);
                keys[1..5].iter().for_each(|key| cluster.change(key));
                cluster.add_endpoints(3);
            })
            .await;
        first.wait_until_served("a change").await;
        wait_until_served(&second, &Truth::from_clusters(&first.remote.clusters).expected(), &format!("change {round} through another"))
            .await;
    }
}

/// The revision of a list in progress stays readable even if the remembered changes no longer reach
/// back to it.
#[tokio::test]
async fn a_list_stays_readable_beyond_the_remembered_changes() {
    // some of the added addresses are equal, but more than `RING_LENGTH_MAX` (16,384) different
    // ones remain
    const ADDED: u32 = 18_000;
    let MirroredCluster { mut remote, home: _home, meshkeep: _meshkeep, mut api } = MirroredCluster::start().await;
    let before = keys(&mut api, "cilium/cache/").await;
    let page = |revision: i64| GetOptions::new().with_range("cilium/cache0").with_revision(revision);
    let first = api.get("cilium/cache/", Some(page(0).with_limit(7))).await.unwrap();
    let revision = first.header().unwrap().revision();
    remote.change(|cluster| cluster.add_endpoints(ADDED)).await;
    let all = i64::try_from(remote.clusters[0].entries.len()).unwrap();
    assert!(all > 17_000);
    eventually("all entries", || {
        let mut api = api.clone();
        async move { (api.get("cilium/cache/", Some(page(0).with_count_only())).await.unwrap().count() == all).then_some(()) }
    })
    .await;
    let remaining = api.get([first.kvs().last().unwrap().key(), &[0]].concat(), Some(page(revision).with_limit(1_000))).await.unwrap();
    let received = first.kvs().iter().chain(remaining.kvs()).map(|kv| (kv.key_str().unwrap().to_owned(), kv.mod_revision()));
    assert_eq!(received.collect::<BTreeMap<_, _>>(), before.iter().map(|(key, kv)| (key.clone(), kv.2)).collect());
    // a revision that no list in progress uses is compacted
    let unknown = status_of(api.get("cilium/cache/", Some(page(revision - 1))).await.unwrap_err());
    assert_eq!(unknown, (tonic::Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted".to_owned()));
}
