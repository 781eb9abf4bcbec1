//! `--cluster-max-keys` and `--cluster-max-bytes`: a cluster that exceeds a limit is no longer
//! read, keeps its entries, is reported, and affects no other cluster. Once it is smaller it is
//! read again automatically.

use std::process::Command;

use serde_json::{Value, json};

use crate::harness::etcd::Etcd;
use crate::harness::eventually;
use crate::harness::mesh::{EVERY_KIND, Form, MeshCluster, SMALL, publish, put_leased, rewrite};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::scene::wait_until_served;
use crate::harness::slices::encode_large_slice;
use crate::harness::truth::Truth;

const STAMP: &str = "2026-01-12T09:31:07Z";

async fn finding(meshkeep: &Meshkeep) -> Option<Value> {
    let problems = meshkeep.get("/v1/problems?limit=1000").await;
    problems["items"].as_array().unwrap().iter().find(|finding| finding["kind"] == "clusterTooLarge").cloned()
}

/// Waits until the cluster is disconnected because of the limit that this flag sets.
async fn wait_until_disconnected(meshkeep: &Meshkeep, flag: &str) {
    let backs_off = || async {
        let cluster = meshkeep.cluster("c02").await;
        (cluster["phase"] == "backingOff" && cluster["lastError"].as_str()?.contains(flag)).then_some(())
    };
    eventually(&format!("the cluster to be disconnected for {flag}"), backs_off).await;
    let finding = finding(meshkeep).await.expect("must be reported");
    assert!(finding["id"] == "clusterTooLarge/c02" && finding["detail"].as_str().unwrap().contains(flag), "{finding}");
}

async fn wait_until_read_again(meshkeep: &Meshkeep) {
    meshkeep.wait_for_phase("c02", "live").await;
    assert_eq!(finding(meshkeep).await, None);
}

/// A small cluster has 43 keys, and about 35 more are derived from its nodes. Another cluster runs
/// next to it all the time.
#[tokio::test]
async fn a_cluster_with_too_many_keys_is_not_read_until_it_has_fewer() {
    let (honest_etcd, etcd) = tokio::join!(Etcd::start(), Etcd::start());
    let mut honest = MeshCluster::generate(1, SMALL);
    let before = MeshCluster::generate(2, SMALL);
    let mut grown = before.clone();
    grown.add_endpoints(30);
    publish(&honest_etcd, Form::State, std::slice::from_ref(&honest), STAMP).await;
    publish(&etcd, Form::State, std::slice::from_ref(&before), STAMP).await;
    let mut home = Home::new().with_flags(&["--cluster-max-keys=95", "--too-large-wait=500ms", "--backoff-min=50ms"]);
    home.write_cluster("c01", &honest_etcd.client_file_yaml());
    home.write_cluster("c02", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&honest, &before]).expected(), "the first loading").await;
    // the cluster exceeds the limit while it is watched
    rewrite(&etcd, Form::State, &before, &grown).await;
    wait_until_disconnected(&meshkeep, "--cluster-max-keys").await;
    let honest_before = {
        let before = honest.clone();
        honest.add_endpoints(3);
        before
    };
    rewrite(&honest_etcd, Form::State, &honest_before, &honest).await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&honest, &before]).expected(), "a change of the other cluster").await;
    rewrite(&etcd, Form::State, &grown, &before).await;
    wait_until_read_again(&meshkeep).await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&honest, &before]).expected(), "its return").await;
    // the cluster exceeds the limit while it is listed by a process without stored data
    rewrite(&etcd, Form::State, &before, &grown).await;
    meshkeep.stop().await;
    std::fs::remove_dir_all(home.data_directory()).unwrap();
    let meshkeep = home.start().await;
    wait_until_disconnected(&meshkeep, "--cluster-max-keys").await;
    rewrite(&etcd, Form::State, &grown, &before).await;
    wait_until_read_again(&meshkeep).await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&honest, &before]).expected(), "its first loading by another process").await;
}

/// The limit counts the bytes of existing keys, not of all puts: a thousand puts of one key count
/// as one key.
#[tokio::test]
async fn existing_bytes_count_towards_the_limit_and_puts_do_not() {
    let etcd = Etcd::start().await;
    let before = MeshCluster::generate(2, SMALL);
    publish(&etcd, Form::State, std::slice::from_ref(&before), STAMP).await;
    let mut home = Home::new().with_flags(&["--cluster-max-bytes=256KiB", "--too-large-wait=500ms", "--backoff-min=50ms"]);
    home.write_cluster("c02", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&before]).expected(), "the first loading").await;
    let service = |number: usize, bytes: usize| {
        let key = format!("cilium/state/services/v1/c02/shop/big-{number}");
        let value = format!(
            r#"{{"cluster":"c02","clusterID":2,"namespace":"shop","name":"big-{number}","labels":{{"x":"{}"}}}}"#,
            "x".repeat(bytes)
        );
        (key, value.into_bytes())
    };
    let is_served = |number: usize, bytes: usize| {
        let meshkeep = &meshkeep;
        let path = format!("/v1/services/c02/shop/big-{number}");
        let length = move |object: &Value| object["labels"]["x"].as_str().map(str::len) == Some(bytes);
        eventually("the service", move || {
            let path = path.clone();
            async move { length(&meshkeep.send_get(&path).await.1).then_some(()) }
        })
    };
    // 2 MB of puts to one key with a value of 20 KB
    for round in 0..100 {
        put_leased(&etcd, [service(0, 20_000 + round)]).await;
    }
    is_served(0, 20_099).await;
    assert_eq!((meshkeep.phase("c02").await, finding(&meshkeep).await), ("live".into(), None));
    put_leased(&etcd, (1..11).map(|number| service(number, 30_000))).await;
    wait_until_disconnected(&meshkeep, "--cluster-max-bytes").await;
    put_leased(&etcd, (1..11).map(|number| service(number, 3_000))).await;
    wait_until_read_again(&meshkeep).await;
    is_served(10, 3_000).await;
}

/// Derived entries count like mirrored ones: two keys with 400 pod CIDRs each count as more than
/// 800 keys. They are added during a watch, then found by a list.
#[tokio::test]
async fn the_pod_cidrs_of_nodes_count_as_keys() {
    let etcd = Etcd::start().await;
    let before = MeshCluster::generate(2, SMALL);
    publish(&etcd, Form::State, std::slice::from_ref(&before), STAMP).await;
    let mut home = Home::new().with_flags(&["--cluster-max-keys=600", "--too-large-wait=500ms", "--backoff-min=50ms"]);
    home.write_cluster("c02", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&before]).expected(), "the first loading").await;
    let node = |name: &str, third: u32, nets: u32| {
        let nets: Vec<String> = (0..nets).map(|number| format!(r#""10.99.{}.{}/32""#, third + number / 200, number % 200)).collect();
        let nets = nets.join(",");
        let value = format!(r#"{{"Name":"{name}","Cluster":"c02","ClusterID":2,"IPv4SecondaryAllocCIDRs":[{nets}]}}"#);
        (format!("cilium/state/nodes/v1/c02/{name}"), value.into_bytes())
    };
    let count = || async { meshkeep.get("/v1/ipcache?cluster=c02&cidr=10.99.0.0/16&limit=1000").await["items"].as_array().unwrap().len() };
    put_leased(&etcd, [node("one", 0, 400)]).await;
    eventually("the first to be served", || async { (count().await == 400).then_some(()) }).await;
    // repeated puts do not add up
    for _ in 0..5 {
        put_leased(&etcd, [node("one", 2, 400)]).await;
        put_leased(&etcd, [node("one", 0, 400)]).await;
    }
    put_leased(&etcd, [node("two", 4, 3)]).await;
    eventually("the second to be served", || async { (count().await == 403).then_some(()) }).await;
    assert_eq!(finding(&meshkeep).await, None);
    put_leased(&etcd, [node("two", 4, 400)]).await;
    wait_until_disconnected(&meshkeep, "--cluster-max-keys").await;
    assert_eq!(count().await, 403);
    put_leased(&etcd, [node("two", 4, 3)]).await;
    wait_until_read_again(&meshkeep).await;
    put_leased(&etcd, [node("two", 4, 400)]).await;
    wait_until_disconnected(&meshkeep, "--cluster-max-keys").await;
    meshkeep.stop().await;
    std::fs::remove_dir_all(home.data_directory()).unwrap();
    let meshkeep = home.start().await;
    wait_until_disconnected(&meshkeep, "--cluster-max-keys").await;
}

/// A service that is too large to decode stays in lists, which mark it as too large. Its four keys
/// of some KB each decompress to 60 MiB, for which 300 MiB are reserved: more than
/// `--decoded-max-bytes`.
#[tokio::test]
async fn a_service_too_large_to_decode_removes_nothing_from_a_list() {
    let (honest_etcd, etcd) = tokio::join!(Etcd::start(), Etcd::start());
    let (honest, hostile) = (MeshCluster::generate(1, EVERY_KIND), MeshCluster::generate(2, EVERY_KIND));
    publish(&honest_etcd, Form::State, std::slice::from_ref(&honest), STAMP).await;
    publish(&etcd, Form::State, std::slice::from_ref(&hostile), STAMP).await;
    let mut home = Home::new();
    home.write_cluster("c01", &honest_etcd.client_file_yaml());
    home.write_cluster("c02", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&honest, &hostile]).expected(), "the first loading").await;
    let names = |list: &Value| -> Vec<String> {
        let name = |item: &Value| format!("{}/{}", item["namespace"].as_str().unwrap(), item["name"].as_str().unwrap());
        list["items"].as_array().unwrap().iter().map(name).collect()
    };
    let before = meshkeep.get("/v1/global-services?limit=1000").await;
    let shared = before["items"].as_array().unwrap().iter().find(|item| item["clusters"].as_array().unwrap().len() == 2).unwrap().clone();
    let (namespace, service) = (shared["namespace"].as_str().unwrap(), shared["name"].as_str().unwrap());
    put_leased(
        &etcd,
        (0..4).map(|number| {
            let name = format!("{service}-large-{number}");
            let value = encode_large_slice(service, "c02", 2, namespace, &name, 15 << 20);
            (format!("cilium/state/endpointslices/v1/c02/{namespace}/{name}"), value)
        }),
    )
    .await;
    let path = format!("/v1/global-services/{namespace}/{service}");
    let large = eventually("the service to be too large", || async {
        let item = meshkeep.get(&path).await;
        item["tooLarge"].is_object().then_some(item)
    })
    .await;
    let key = format!("cilium/cache/endpointslices/v1/c02/{namespace}/{service}-large-0");
    assert!(large["tooLarge"]["cluster"] == "c02" && large["tooLarge"]["key"].as_str().unwrap() <= key.as_str(), "{large}");
    // the list still has all of its items, as a whole or page by page
    let after = meshkeep.get("/v1/global-services?limit=1000").await;
    assert_eq!(names(&after), names(&before));
    for (item, before) in after["items"].as_array().unwrap().iter().zip(before["items"].as_array().unwrap()) {
        let is_large = item["name"] == service && item["namespace"] == namespace;
        assert!(item["tooLarge"].is_object() == is_large && (is_large || item["backends"] == before["backends"]), "{item}");
    }
    let finding = eventually("the finding", || async {
        let found = meshkeep.get("/v1/problems?kind=serviceTooLarge").await;
        found["items"].get(0).cloned()
    })
    .await;
    assert!(finding["clusters"] == json!(["c02"]) && finding["key"] == large["tooLarge"]["key"], "{finding}");
    // the command line reports it too
    let url = meshkeep.url().to_owned();
    let table = tokio::task::spawn_blocking(move || {
        let output = Command::new(env!("CARGO_BIN_EXE_meshkeep")).args(["get", "global-services", "--server", &url]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    let table = table.await.unwrap();
    assert!(table.lines().any(|line| line.contains(service) && line.contains("too large: 300 MiB")), "{table}");
    // resolved once the slices are deleted
    for number in 0..4 {
        etcd.delete(format!("cilium/state/endpointslices/v1/c02/{namespace}/{service}-large-{number}")).await;
    }
    let is_whole = || async { (meshkeep.get(&path).await["backends"] == shared["backends"]).then_some(()) };
    eventually("the service to be whole again", is_whole).await;
}
