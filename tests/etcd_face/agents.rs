//! What an agent reads: the keys of a KVStoreMesh, at once after every start.

use std::collections::BTreeMap;
use std::process::Command;

use etcd_client::{Client, Compare, CompareOp, Error, GetOptions, SortOrder, SortTarget, Txn, TxnOp, WatchOptions};

use super::{FLAG, client, face_url, list, start};
use crate::harness::etcd::etcd_binaries;
use crate::harness::eventually;
use crate::harness::mesh::{EVERY_KIND, Form, MeshCluster};
use crate::harness::meshkeep::{Home, http};
use crate::harness::scene::{Remote, settles};
use crate::harness::truth::Truth;

/// Keys with bytes, create revision, mod revision and version.
type Keys = BTreeMap<String, (Vec<u8>, i64, i64, i64)>;

async fn keys(client: &mut Client, prefix: &str) -> Keys {
    let listed = list(client, prefix).await;
    let kvs = listed.kvs().iter();
    kvs.map(|kv| (kv.key_str().unwrap().to_owned(), (kv.value().to_vec(), kv.create_revision(), kv.mod_revision(), kv.version()))).collect()
}

fn without_heartbeat(mut keys: Keys) -> Keys {
    keys.remove("cilium/.heartbeat").expect("must beat");
    keys
}

fn code(error: Error) -> (tonic::Code, String) {
    let Error::GRpcStatus(status) = error else { panic!("{error}") };
    (status.code(), status.message().to_owned())
}

#[tokio::test]
async fn agents_find_what_a_kvstoremesh_would_write_and_find_it_again_after_a_start() {
    let mut remote = Remote::start(&etcd_binaries()[0], Form::State, vec![MeshCluster::generate(1, EVERY_KIND)]).await;
    let mut home = Home::new().with_flags(&[FLAG]);
    home.write_cluster("c01", &remote.client_file());
    let (meshkeep, mut face) = start(&mut home, &["c01"]).await;
    settles(&meshkeep, &Truth::of(&remote.clusters).expected(), "the first loading").await;
    eventually("all canaries", || {
        let mut face = face.clone();
        async move { (list(&mut face, "cilium/synced/c01/").await.kvs().len() == 6).then_some(()) }
    })
    .await;
    let all = without_heartbeat(keys(&mut face, "cilium/").await);
    let mirrored: BTreeMap<&String, &Vec<u8>> =
        all.iter().filter(|(key, _)| key.starts_with("cilium/cache/")).map(|(key, kv)| (key, &kv.0)).collect();
    assert_eq!(mirrored, remote.clusters[0].entries.iter().collect());
    let config = r#"{"id":1,"capabilities":{"syncedCanaries":true,"cached":true,"maxConnectedClusters":255,"serviceExportsEnabled":true,"endpointSlicesExportMode":"services-and-endpointslices"}}"#;
    assert_eq!(String::from_utf8_lossy(&all["cilium/cluster-config/c01"].0), config);
    assert!(all.contains_key("cilium/synced/c01/cilium/cache/identities/v1"));
    let header = list(&mut face, "cilium/cluster-config/").await.header().unwrap().clone();
    assert!(header.cluster_id() != 0 && header.revision() >= all.values().map(|kv| kv.2).max().unwrap());

    // again, with nothing but the disk
    meshkeep.stop().await;
    remote.proxy.cut().await;
    let meshkeep = home.start().await;
    let mut face = client(&face_url(&home)).await;
    let again = eventually("a heartbeat", || {
        let mut face = face.clone();
        async move { Some(keys(&mut face, "cilium/").await).filter(|keys| keys.contains_key("cilium/.heartbeat")) }
    })
    .await;
    assert_eq!(without_heartbeat(again), all, "nothing has changed");
    let after = list(&mut face, "cilium/cluster-config/").await.header().unwrap().clone();
    assert_eq!(after.cluster_id(), header.cluster_id());
    assert!(after.revision() > header.revision());
    // and whoever watched before goes on without a list, as nothing but the heartbeat is told
    let options = WatchOptions::new().with_prefix().with_start_revision(header.revision() + 1);
    let mut watch = face.watch("cilium/", Some(options)).await.unwrap();
    assert!(watch.message().await.unwrap().unwrap().created());
    let told = watch.message().await.unwrap().unwrap();
    let told: Vec<&str> = told.events().iter().map(|event| event.kv().unwrap().key_str().unwrap()).collect();
    assert_eq!(told, ["cilium/.heartbeat"]);
    // a store that is lost is another history
    meshkeep.stop().await;
    std::fs::remove_dir_all(home.data_directory()).unwrap();
    let _meshkeep = home.start().await;
    let mut face = client(&face_url(&home)).await;
    let lost = list(&mut face, "cilium/cluster-config/").await;
    assert_ne!(lost.header().unwrap().cluster_id(), header.cluster_id());
    remote.change(|_| {}).await;
}

#[tokio::test]
async fn what_writes_is_refused_and_what_cannot_be_read_is_said_in_etcds_words() {
    let remote = Remote::start(&etcd_binaries()[0], Form::State, vec![MeshCluster::generate(1, EVERY_KIND)]).await;
    let mut home = Home::new().with_flags(&[FLAG]);
    home.write_cluster("c01", &remote.client_file());
    let (_meshkeep, mut face) = start(&mut home, &["c01"]).await;
    let denied = (tonic::Code::PermissionDenied, "etcdserver: permission denied".to_owned());
    assert_eq!(code(face.put("a", "b", None).await.unwrap_err()), denied);
    assert_eq!(code(face.delete("a", None).await.unwrap_err()), denied);
    assert_eq!(code(face.compact(1, None).await.unwrap_err()), denied);
    let put = Txn::new().and_then([TxnOp::put("a", "b", None)]);
    assert_eq!(code(face.txn(put).await.unwrap_err()), denied);
    let read = Txn::new()
        .when([Compare::version("cilium/cluster-config/c01", CompareOp::Greater, 0), Compare::version("none", CompareOp::Equal, 0)])
        .and_then([TxnOp::get("cilium/cluster-config/c01", None)]);
    let read = face.txn(read).await.unwrap();
    assert!(read.succeeded() && read.op_responses().len() == 1);
    let at = |revision: i64| Some(GetOptions::new().with_prefix().with_revision(revision));
    let head = list(&mut face, "cilium/cluster-config/").await.header().unwrap().revision();
    let future = (tonic::Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision".to_owned());
    assert_eq!(code(face.get("cilium/", at(head + 1_000_000)).await.unwrap_err()), future);
    assert_eq!(code(face.get("", None).await.unwrap_err()).1, "etcdserver: key is not provided");
    // leases are harmless
    let lease = face.lease_grant(900, None).await.unwrap();
    assert_eq!(lease.ttl(), 900);
    let (mut keeper, mut kept) = face.lease_keep_alive(lease.id()).await.unwrap();
    keeper.keep_alive().await.unwrap();
    assert!(kept.message().await.unwrap().unwrap().ttl() > 0);
    face.lease_revoke(lease.id()).await.unwrap();
    let status = face.status().await.unwrap();
    assert_eq!((status.version(), status.leader()), ("3.7.0", 1));
    assert_eq!(face.member_list().await.unwrap().members()[0].client_urls(), [face_url(&home)]);
    let sorted = GetOptions::new().with_prefix().with_sort(SortTarget::Mod, SortOrder::Descend).with_limit(1);
    let newest = face.get("cilium/", Some(sorted)).await.unwrap();
    assert!(newest.more() && newest.kvs().len() == 1);
    for (path, body) in [("/version", r#""etcdserver":"3.7.0""#), ("/health", r#""health":"true""#), ("/metrics", "meshkeep_")] {
        let text = http().get(format!("{}{path}", face_url(&home))).send().await.unwrap().text().await.unwrap();
        assert!(text.contains(body), "{path}: {text}");
    }
}

/// Pages of a list are read at its first moment, whatever changes meanwhile.
#[tokio::test]
async fn a_list_that_goes_on_is_of_one_moment() {
    let mut remote = Remote::start(&etcd_binaries()[0], Form::State, vec![MeshCluster::generate(1, EVERY_KIND)]).await;
    let mut home = Home::new().with_flags(&[FLAG]);
    home.write_cluster("c01", &remote.client_file());
    let (meshkeep, mut face) = start(&mut home, &["c01"]).await;
    settles(&meshkeep, &Truth::of(&remote.clusters).expected(), "the first loading").await;
    let before = keys(&mut face, "cilium/cache/").await;
    let page = |revision: i64| GetOptions::new().with_range("cilium/cache0").with_limit(7).with_revision(revision);
    let first = face.get("cilium/cache/", Some(page(0))).await.unwrap();
    assert_eq!((first.count(), first.more()), (i64::try_from(before.len()).unwrap(), true));
    let (revision, mut found) = (first.header().unwrap().revision(), first.kvs().to_vec());
    loop {
        let keys = remote.clusters[0].keys_of("ip/v1");
        remote
            .change(|cluster| {
                cluster.delete(&keys[0]);
                cluster.change(&keys[1]);
            })
            .await;
        settles(&meshkeep, &Truth::of(&remote.clusters).expected(), "a change").await;
        let start = [found.last().unwrap().key(), &[0]].concat();
        let next = face.get(start, Some(page(revision))).await.unwrap();
        assert!(next.header().unwrap().revision() > revision);
        assert_eq!(next.count() + i64::try_from(found.len()).unwrap(), first.count());
        found.extend(next.kvs().iter().cloned());
        if !next.more() {
            break;
        }
    }
    let found: Keys = found
        .iter()
        .map(|kv| (kv.key_str().unwrap().to_owned(), (kv.value().to_vec(), kv.create_revision(), kv.mod_revision(), kv.version())))
        .collect();
    assert_eq!(found, before);
}

#[tokio::test]
async fn a_meshkeep_mirrors_what_another_serves() {
    let mut remote = Remote::start(&etcd_binaries()[0], Form::State, vec![MeshCluster::generate(1, EVERY_KIND)]).await;
    let mut home = Home::new().with_flags(&[FLAG]);
    home.write_cluster("c01", &remote.client_file());
    let (first, _) = start(&mut home, &["c01"]).await;
    let mut second_home = Home::new();
    second_home.write_cluster("c01", &format!("endpoints:\n- {}\n", face_url(&home)));
    let second = second_home.start().await;
    second.reaches("c01", "live").await;
    for round in 0..3 {
        let keys = remote.clusters[0].keys_of("ip/v1");
        remote
            .change(|cluster| {
                cluster.delete(&keys[0]);
                keys[1..5].iter().for_each(|key| cluster.change(key));
                cluster.add_endpoints(3);
            })
            .await;
        let expected = Truth::of(&remote.clusters).expected();
        settles(&first, &expected, "a change").await;
        settles(&second, &expected, &format!("change {round} through another")).await;
    }
}

/// Versions of etcdctl that are at hand, as users have them.
#[tokio::test]
async fn etcdctl_reads_and_believes_that_it_is_an_etcd() {
    let tools = ["ETCD_BIN", "ETCD35_BIN", "ETCD37_BIN"].into_iter().filter_map(std::env::var_os);
    let tools: Vec<_> = tools.map(|etcd| std::path::PathBuf::from(etcd).with_file_name("etcdctl")).filter(|tool| tool.exists()).collect();
    if tools.is_empty() {
        return;
    }
    let remote = Remote::start(&etcd_binaries()[0], Form::State, vec![MeshCluster::generate(1, EVERY_KIND)]).await;
    let mut home = Home::new().with_flags(&[FLAG]);
    home.write_cluster("c01", &remote.client_file());
    let (_meshkeep, _) = start(&mut home, &["c01"]).await;
    for tool in tools {
        let run = |arguments: &[&str]| {
            let output = Command::new(&tool)
                .env("ETCDCTL_API", "3")
                .arg(format!("--endpoints={}", face_url(&home)))
                .args(arguments)
                .output()
                .unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (output.status.success(), text(&output.stdout), text(&output.stderr))
        };
        for (arguments, words) in [
            (&["get", "cilium/cluster-config/c01"][..], r#""cached":true"#),
            (&["get", "cilium/", "--prefix", "--keys-only", "--limit=5"], "cilium/.heartbeat"),
            (&["get", "cilium/cache/", "--prefix", "--count-only", "--write-out=fields"], "\"Count\""),
            (&["endpoint", "health"], "is healthy"),
            (&["endpoint", "status"], "3.7.0"),
            (&["member", "list"], "meshkeep"),
            (&["alarm", "list"], ""),
        ] {
            let (success, output, errors) = run(arguments);
            assert!(success && format!("{output}{errors}").contains(words), "{tool:?} {arguments:?}: {output}{errors}");
        }
        let (success, _, errors) = run(&["put", "a", "b"]);
        assert!(!success && errors.contains("permission denied"), "{errors}");
    }
}
