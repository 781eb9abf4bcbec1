//! `--cache-ttl`: a cluster that is unreachable for too long loses the entries that agents route
//! traffic by, and nothing else. A reachable cluster loses nothing.

use serde_json::Value;

use super::samples;
use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::eventually;
use crate::harness::mesh::{Form, MeshCluster, SMALL, publish, put_entries, put_heartbeat};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::scene::wait_until_served;
use crate::harness::truth::Truth;

/// Returns the cluster without the entries that expire.
fn without_services(cluster: &MeshCluster) -> MeshCluster {
    let mut without = cluster.clone();
    cluster.keys_of("services/v1").iter().for_each(|key| without.delete(key));
    without
}

async fn items(meshkeep: &Meshkeep, kind: &str) -> Value {
    meshkeep.get(&format!("/v1/{kind}?limit=1000")).await["items"].clone()
}

#[tokio::test]
async fn services_of_an_unreachable_cluster_expire_and_return() {
    let mut etcd = Etcd::start().await;
    let cluster = MeshCluster::generate(1, SMALL);
    publish(&etcd, Form::State, std::slice::from_ref(&cluster), "2026-01-12T09:31:07Z").await;
    let (all, without) = (Truth::from_clusters([&cluster]).expected(), Truth::from_clusters([&without_services(&cluster)]).expected());
    let mut home = Home::new().with_flags(&["--cache-ttl=2s", "--backoff-min=50ms", "--backoff-max=200ms"]);
    home.write_cluster("c01", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &all, "the first loading").await;
    etcd.stop().await;
    wait_until_served(&meshkeep, &without, "the expiry of its services").await;
    etcd.restart().await;
    wait_until_served(&meshkeep, &all, "its return").await;
    meshkeep.stop().await;
    etcd.stop().await;
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &without, "a start while the cluster is unreachable").await;
}

#[tokio::test]
async fn services_exports_and_slices_expire_and_other_kinds_stay() {
    let (mut etcds, _home, meshkeep) = samples::in_state_form(&etcd_binaries()[0], &["--cache-ttl=1s"]).await;
    let unaffected = ["nodes", "identities", "ipcache"];
    let (mut before, revoked) = (Vec::new(), ["services", "service-exports", "endpoint-slices"]);
    for kind in unaffected {
        before.push(items(&meshkeep, kind).await);
    }
    for kind in revoked {
        assert_ne!(items(&meshkeep, kind).await, Value::Array(Vec::new()), "{kind}");
    }
    for etcd in &mut etcds {
        etcd.stop().await;
    }
    for kind in revoked {
        let what = format!("the end of {kind}");
        eventually(&what, || async { (items(&meshkeep, kind).await == Value::Array(Vec::new())).then_some(()) }).await;
    }
    for (kind, before) in unaffected.into_iter().zip(before) {
        assert_eq!(items(&meshkeep, kind).await, before, "{kind}");
    }
}

/// A cluster without a config counts as connected, even before it is certain that it has no config.
#[tokio::test]
async fn a_reachable_legacy_cluster_loses_nothing() {
    let mut etcd = Etcd::start().await;
    let cluster = MeshCluster::generate(1, SMALL);
    put_heartbeat(&etcd).await;
    put_entries(&etcd, Form::State, &cluster).await;
    let mut home = Home::new().with_flags(&[
        "--legacy-clusters=c01",
        "--legacy-wait=2s",
        "--legacy-quiet=1s",
        "--cache-ttl=1s",
        "--backoff-min=50ms",
        "--backoff-max=200ms",
    ]);
    home.write_cluster("c01", &etcd.client_file_yaml());
    // without a config the cluster's id is unknown
    let truth = |cluster: &MeshCluster| {
        let mut truth = Truth::from_clusters([cluster]);
        truth.set_cluster_id("c01", 0);
        truth.expected()
    };
    let revoked = |meshkeep: &Meshkeep| meshkeep.log_lines_with(&["could not be read for --cache-ttl"]);
    for start in ["the first start", "a start with stored data"] {
        let meshkeep = home.start().await;
        meshkeep.wait_for_phase("c01", "live").await;
        let outlasts = || async { (meshkeep.cluster("c01").await["phaseSeconds"].as_f64() > Some(2.0)).then_some(()) };
        eventually("twice the time of --cache-ttl", outlasts).await;
        wait_until_served(&meshkeep, &truth(&cluster), start).await;
        assert_eq!(revoked(&meshkeep), 0, "{start}");
        meshkeep.stop().await;
    }
    let meshkeep = home.start().await;
    meshkeep.wait_for_phase("c01", "live").await;
    for _ in 0..2 {
        etcd.stop().await;
        wait_until_served(&meshkeep, &truth(&without_services(&cluster)), "the expiry of its services").await;
        etcd.restart().await;
        wait_until_served(&meshkeep, &truth(&cluster), "its return").await;
    }
}

/// A new file that names missing certificates ends the earlier connection.
#[tokio::test]
async fn a_cluster_with_an_unusable_file_counts_as_unreachable() {
    let etcd = Etcd::start().await;
    let cluster = MeshCluster::generate(1, SMALL);
    publish(&etcd, Form::State, std::slice::from_ref(&cluster), "2026-01-12T09:31:07Z").await;
    let mut home = Home::new().with_flags(&["--cache-ttl=1s"]);
    home.write_cluster("c01", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "the first loading").await;
    meshkeep.wait_for_phase("c01", "live").await;
    home.write_cluster("c01", "endpoints:\n- https://127.0.0.1:1\ntrusted-ca-file: /nowhere/ca.crt\n");
    meshkeep.wait_for_phase("c01", "waitingForFiles").await;
    let state = meshkeep.cluster("c01").await;
    assert!(state["resources"].as_array().unwrap().iter().all(|kind| kind["synced"] != true), "{state}");
    wait_until_served(&meshkeep, &Truth::from_clusters([&without_services(&cluster)]).expected(), "the expiry of its services").await;
}
