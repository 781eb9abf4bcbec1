//! Etcds without a cluster config for the name of the client file: another cluster's etcd, a
//! KVStoreMesh's, an old release's.

use std::time::{Duration, Instant};

use etcd_client::Permission;
use serde_json::{Value, json};

use crate::harness::etcd::{Etcd, Tls};
use crate::harness::eventually;
use crate::harness::mesh::{Form, MeshCluster, SMALL, publish, put_config, put_entries, put_heartbeat};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::scene::{assert_served, wait_until_served};
use crate::harness::truth::Truth;

/// Flags for waits that are short enough for tests.
const QUICK: [&str; 4] = ["--legacy-wait=1s", "--legacy-quiet=1s", "--backoff-min=50ms", "--backoff-max=100ms"];

const STAMP: &str = "2026-01-12T09:31:07Z";

fn cluster(name: &str, id: u32) -> MeshCluster {
    MeshCluster::generate_named(name, id, SMALL)
}

/// Starts a cluster's own etcd.
async fn etcd_of(cluster: &MeshCluster) -> Etcd {
    let etcd = Etcd::start().await;
    publish(&etcd, Form::State, std::slice::from_ref(cluster), STAMP).await;
    etcd
}

/// Starts a sidecar with one client file.
async fn start_sidecar(name: &str, file: &str) -> (Home, Meshkeep) {
    let mut home = Home::new().with_flags(&QUICK);
    home.write_cluster(name, file);
    let meshkeep = home.start().await;
    (home, meshkeep)
}

/// Waits until the finding about a cluster without a config contains a text.
async fn wait_for_finding(meshkeep: &Meshkeep, name: &str, text: &str) -> Value {
    eventually(&format!("a finding about {name} that says {text:?}"), || async {
        let found = meshkeep.get(&format!("/v1/problems?kind=clusterConfigMissing&cluster={name}")).await["items"][0].clone();
        found["detail"].as_str().is_some_and(|detail| detail.contains(text)).then_some(found)
    })
    .await
}

/// Waits until a cluster has been in `readingConfig` without interruption for 2.5 s: longer than
/// two connections last, and more than twice the time after which a legacy cluster is read.
async fn wait_until_long_without_config(meshkeep: &Meshkeep, name: &str) {
    let outlasts = || async {
        let found = meshkeep.cluster(name).await;
        (found["phase"] == "readingConfig" && found["phaseSeconds"].as_f64() > Some(2.5)).then_some(())
    };
    eventually("twice the time after which a legacy cluster is read", outlasts).await;
}

async fn assert_no_entries(meshkeep: &Meshkeep) {
    assert_eq!(meshkeep.get("/v1/status").await["counts"]["entries"], json!(0));
}

#[tokio::test]
async fn another_clusters_etcd_is_not_served_under_the_files_name() {
    let (paris, rome) = (cluster("paris", 1), cluster("rome", 2));
    let (wrong, right) = (etcd_of(&paris).await, etcd_of(&rome).await);
    let (home, meshkeep) = start_sidecar("rome", &wrong.client_file_yaml()).await;
    let found = wait_for_finding(&meshkeep, "rome", "this etcd belongs to cluster paris, not rome").await;
    assert_eq!((&found["severity"], &found["clusters"]), (&json!("critical"), &json!(["rome"])), "{found}");
    wait_until_long_without_config(&meshkeep, "rome").await;
    assert_no_entries(&meshkeep).await;
    let state = meshkeep.cluster("rome").await;
    assert_eq!((&state["lastError"], &state["failures"]), (&json!("this etcd belongs to cluster paris, not rome"), &json!(0)), "{state}");
    home.write_cluster("rome", &right.client_file_yaml());
    wait_until_served(&meshkeep, &Truth::from_clusters([&rome]).expected(), "the correction of the file").await;
    meshkeep.wait_for_phase("rome", "live").await;
    assert_eq!(meshkeep.get("/v1/problems?kind=clusterConfigMissing").await["items"], json!([]));
}

#[tokio::test]
async fn a_missing_config_is_reported_with_the_etcds_clusters() {
    let etcd = Etcd::start().await;
    publish(&etcd, Form::Cache, &[cluster("paris", 1), cluster("oslo", 3)], STAMP).await;
    let (_home, meshkeep) = start_sidecar("rome", &etcd.client_file_yaml()).await;
    wait_for_finding(&meshkeep, "rome", "this etcd has no config of rome, only of oslo, paris").await;
    wait_until_long_without_config(&meshkeep, "rome").await;
    assert_no_entries(&meshkeep).await;
    let rome = cluster("rome", 2);
    publish(&etcd, Form::Cache, std::slice::from_ref(&rome), STAMP).await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&rome]).expected(), "the config of rome").await;
    meshkeep.wait_for_phase("rome", "live").await;
    let state = meshkeep.cluster("rome").await;
    assert_eq!((&state["failures"], &state["lastError"]), (&json!(0), &json!(null)), "{state}");
}

/// The role `remote` may read only one config and the keys below `cilium/state/`. The role `local`
/// may list all configs.
#[tokio::test]
async fn ciliums_users_and_roles_are_enough_to_name_the_cluster() {
    let etcd = Etcd::builder().tls(Tls::Mutual).start().await;
    let paris = cluster("paris", 1);
    publish(&etcd, Form::State, std::slice::from_ref(&paris), STAMP).await;
    publish(&etcd, Form::Cache, &[cluster("oslo", 3)], STAMP).await;
    etcd.enable_cilium_users("paris").await;
    let mut home = Home::new().with_flags(&QUICK);
    home.write_cluster("rome", &etcd.client_file_of("remote"));
    home.write_cluster("bonn", &etcd.client_file_of("local-paris"));
    home.write_cluster("paris", &etcd.client_file_of("remote"));
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&paris]).expected(), "loading as a remote").await;
    wait_for_finding(&meshkeep, "rome", "this etcd belongs to cluster paris, not rome (permission denied on cilium/cluster-config/rome)")
        .await;
    wait_for_finding(&meshkeep, "bonn", "this etcd has no config of bonn, only of oslo, paris").await;
    for name in ["rome", "bonn"] {
        wait_until_long_without_config(&meshkeep, name).await;
    }
    assert_served(&meshkeep, &Truth::from_clusters([&paris]).expected(), "with two clusters that do not exist").await;
}

#[tokio::test]
async fn a_config_is_read_as_soon_as_permission_is_granted() {
    let paris = cluster("paris", 1);
    let mut etcd = etcd_of(&paris).await;
    etcd.enable_auth("mesh", "mesh-password").await;
    etcd.restrict_to_remote("rome").await;
    let (_home, meshkeep) = start_sidecar("paris", &etcd.client_file_yaml()).await;
    let found = wait_for_finding(&meshkeep, "paris", "permission denied on cilium/cluster-config/paris").await;
    assert_eq!(found["severity"], "critical", "{found}");
    wait_until_long_without_config(&meshkeep, "paris").await;
    assert_no_entries(&meshkeep).await;
    let mut client = etcd.client().await;
    for granted in [Permission::read("cilium/cluster-config/paris"), Permission::read("cilium/synced/paris/").with_prefix()] {
        client.role_grant_permission("mesh", granted).await.unwrap();
    }
    wait_until_served(&meshkeep, &Truth::from_clusters([&paris]).expected(), "the right to read the config").await;
}

#[tokio::test]
async fn a_cluster_without_a_config_is_read_if_a_setting_names_it() {
    let etcd = Etcd::start().await;
    let paris = cluster("paris", 1);
    put_heartbeat(&etcd).await;
    put_entries(&etcd, Form::State, &paris).await;
    let mut home = Home::new().with_flags(&QUICK);
    home.write_cluster("paris", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    meshkeep.wait_for_field("paris", "lastError", "although this etcd has nodes of paris").await;
    wait_until_long_without_config(&meshkeep, "paris").await;
    assert_no_entries(&meshkeep).await;
    meshkeep.stop().await;
    let mut home = home.with_flags(&["--legacy-clusters=oslo,paris"]);
    let meshkeep = home.start().await;
    meshkeep.wait_for_phase("paris", "live").await;
    let mut truth = Truth::from_clusters([&paris]);
    truth.set_cluster_id("paris", 0);
    wait_until_served(&meshkeep, &truth.expected(), "the wait for a config").await;
}

/// Returns whether the mirror still has an address of paris that an earlier start stored under
/// rome.
async fn stored_as_rome(meshkeep: &Meshkeep) -> bool {
    meshkeep.get("/v1/ipcache?cluster=rome&limit=1").await["items"] != json!([])
}

#[tokio::test]
async fn entries_under_a_wrong_name_are_removed_after_the_whole_wait() {
    const WAIT: Duration = Duration::from_secs(8);
    let paris = cluster("paris", 1);
    let etcd = etcd_of(&paris).await;
    let mut earlier = Home::new().with_flags(&QUICK).with_flags(&["--legacy-clusters=rome"]);
    earlier.write_cluster("rome", &etcd.client_file_yaml());
    let meshkeep = earlier.start().await;
    meshkeep.wait_for_phase("rome", "live").await;
    assert!(stored_as_rome(&meshkeep).await);
    meshkeep.stop().await;
    let data_directory = format!("--data-dir={}", earlier.data_directory().display());
    let mut home = Home::new().with_flags(&[&data_directory, "--legacy-wait=8s"]);
    home.write_cluster("rome", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    wait_for_finding(&meshkeep, "rome", "this etcd belongs to cluster paris, not rome").await;
    tokio::time::sleep(WAIT / 4).await;
    // an interruption: the wait starts again
    etcd.delete("cilium/cluster-config/paris").await;
    put_config(&etcd, Form::State, &paris).await;
    let written = Instant::now();
    assert!(stored_as_rome(&meshkeep).await, "it was removed before the wait was over");
    eventually("the removal", || async { (!stored_as_rome(&meshkeep).await).then_some(()) }).await;
    assert!(written.elapsed() >= WAIT, "removed {:?} after the config was written", written.elapsed());
    assert_eq!(meshkeep.phase("rome").await, "readingConfig");
    meshkeep.stop().await;
    let meshkeep = home.start().await;
    wait_for_finding(&meshkeep, "rome", "this etcd belongs to cluster paris, not rome").await;
    assert_no_entries(&meshkeep).await;
}

/// A restarted KVStoreMesh writes the configs of its clusters one after another.
#[tokio::test]
async fn entries_stay_while_only_another_clusters_config_is_back() {
    let mut etcd = Etcd::start().await;
    let (paris, rome) = (cluster("paris", 1), cluster("rome", 2));
    publish(&etcd, Form::Cache, &[paris.clone(), rome.clone()], STAMP).await;
    let (mut home, meshkeep) = start_sidecar("rome", &etcd.client_file_yaml()).await;
    let expected = Truth::from_clusters([&rome]).expected();
    wait_until_served(&meshkeep, &expected, "the first loading").await;
    meshkeep.wait_for_phase("rome", "live").await;
    etcd.wipe();
    etcd.restart().await;
    publish(&etcd, Form::Cache, std::slice::from_ref(&paris), STAMP).await;
    meshkeep.wait_for_field("rome", "lastError", "this etcd belongs to cluster paris, not rome").await;
    wait_until_long_without_config(&meshkeep, "rome").await;
    assert_served(&meshkeep, &expected, "while the etcd has only paris's config").await;
    meshkeep.kill();
    let meshkeep = home.start().await;
    wait_until_long_without_config(&meshkeep, "rome").await;
    assert_served(&meshkeep, &expected, "after a restart, while the etcd has only paris's config").await;
    publish(&etcd, Form::Cache, std::slice::from_ref(&rome), STAMP).await;
    meshkeep.wait_for_phase("rome", "live").await;
    assert_served(&meshkeep, &expected, "the return of rome's config").await;
}
