//! The own cluster's etcd, mirrored in addition to the remote ones.

use std::fs;

use serde_json::{Value, json};

use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::eventually;
use crate::harness::mesh::{Form, MeshCluster, SMALL, publish};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::scene::{Remote, wait_until_served};
use crate::harness::truth::Truth;

const STAMP: &str = "2026-01-12T09:31:07Z";

/// A remote cluster `c01`, the own cluster `home` with id 9, and a sidecar's home with flags for
/// both.
struct OwnClusterMesh {
    remote: Remote,
    own: Remote,
    home: Home,
}

impl OwnClusterMesh {
    async fn new(flags: &[&str]) -> Self {
        let binary = &etcd_binaries()[0];
        let remote = Remote::start(binary, Form::State, vec![MeshCluster::generate(1, SMALL)]).await;
        let own = Remote::start(binary, Form::State, vec![MeshCluster::generate_named("home", 9, SMALL)]).await;
        let home = Home::new();
        let file = format!("--local-etcd={}", home.local_etcd_file().display());
        let home = home.with_flags(&["--cluster-name=home", &file]).with_flags(flags);
        fs::write(home.local_etcd_file(), own.client_file()).unwrap();
        home.write_cluster("c01", &remote.client_file());
        // the own cluster's file in the directory is ignored, as always
        home.write_cluster("home", "endpoints:\n- http://127.0.0.1:1\n");
        Self { remote, own, home }
    }

    fn truth(&self) -> Truth {
        Truth::from_clusters(self.remote.clusters.iter().chain(&self.own.clusters))
    }
}

/// Returns the clusters whose backends a selection for `ns-0/svc-0` shows, and the rule that
/// decided.
async fn choice(meshkeep: &Meshkeep, query: &str) -> (Vec<String>, String) {
    let chosen = meshkeep.get(&format!("/v1/global-services/ns-0/svc-0?{query}")).await;
    let mut clusters: Vec<String> =
        chosen["backends"].as_array().unwrap().iter().map(|backend| backend["cluster"].as_str().unwrap().to_owned()).collect();
    clusters.dedup();
    (clusters, chosen["selection"]["rule"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn the_own_cluster_is_mirrored_alongside_remote_ones() {
    let mut mesh = OwnClusterMesh::new(&["--cluster-id=9"]).await;
    let meshkeep = mesh.home.start().await;
    wait_until_served(&meshkeep, &mesh.truth().expected(), "the first loading").await;
    for (name, local) in [("home", json!(true)), ("c01", Value::Null)] {
        meshkeep.wait_for_phase(name, "live").await;
        assert_eq!(meshkeep.get(&format!("/v1/clusters/{name}")).await["local"], local, "{name}");
    }
    // a pod of the own cluster is found
    let pods = meshkeep.get("/v1/ipcache?cluster=home&limit=1").await;
    let ip = pods["items"][0]["prefix"].as_str().unwrap().split('/').next().unwrap().to_owned();
    assert_eq!(meshkeep.get(&format!("/v1/ipcache/lookup?ip={ip}")).await["match"]["cluster"], json!("home"));
    // affinity needs a local cluster
    let both = ["c01".to_owned(), "home".to_owned()];
    for (query, clusters, rule) in [
        ("affinity=none", &both[..], "noAffinity"),
        ("affinity=local", &both[1..], "localActive"),
        ("affinity=remote", &both[..1], "remoteHealthy"),
        ("affinity=local&from=c01", &both[..1], "localActive"),
    ] {
        assert_eq!(choice(&meshkeep, query).await, (clusters.to_vec(), rule.to_owned()), "{query}");
    }
    let service = "cilium/cache/services/v1/home/ns-0/svc-0".to_owned();
    mesh.own.change(|cluster| cluster.delete(&service)).await;
    wait_until_served(&meshkeep, &mesh.truth().expected(), "the deletion of a service of the own cluster").await;
    assert_eq!(choice(&meshkeep, "affinity=local").await, (Vec::new(), "noLocalService".to_owned()));
}

#[tokio::test]
async fn the_own_clusters_file_may_change_and_be_removed() {
    let mut mesh = OwnClusterMesh::new(&[]).await;
    let file = mesh.home.local_etcd_file();
    fs::rename(&file, file.with_extension("later")).unwrap();
    let meshkeep = mesh.home.start().await;
    // the cluster is shown although its file does not exist
    meshkeep.wait_for_field("home", "lastError", "cannot use the client file").await;
    assert_eq!(meshkeep.send_get("/readyz?synced").await.0, 503);
    fs::rename(file.with_extension("later"), &file).unwrap();
    wait_until_served(&meshkeep, &mesh.truth().expected(), "the appearance of the file").await;
    // a removed or invalid file changes nothing
    fs::write(&file, "endpoint").unwrap();
    eventually("a warning", || async { (meshkeep.log_lines_with(&["local-etcd", "has no endpoints"]) == 1).then_some(()) }).await;
    fs::remove_file(&file).unwrap();
    eventually("a warning", || async { (meshkeep.log_lines_with(&["local-etcd", "does not exist"]) == 2).then_some(()) }).await;
    mesh.own.change(|cluster| cluster.add_endpoints(1)).await;
    wait_until_served(&meshkeep, &mesh.truth().expected(), "the removal of the file").await;
    // another etcd replaces it
    mesh.own.clusters[0].add_endpoints(3);
    let etcd = Etcd::builder().binary(&etcd_binaries()[0]).start().await;
    publish(&etcd, Form::State, &mesh.own.clusters, STAMP).await;
    fs::write(&file, etcd.client_file_yaml()).unwrap();
    wait_until_served(&meshkeep, &mesh.truth().expected(), "another etcd").await;
    meshkeep.stop().await;
    // with the flag the own cluster is served right after a restart; without the flag it is removed
    let meshkeep = mesh.home.start().await;
    wait_until_served(&meshkeep, &mesh.truth().expected(), "a restart").await;
    meshkeep.stop().await;
    mesh.home = mesh.home.with_only_flags(&["--listen=127.0.0.1:0", "--cluster-name=home"]);
    let meshkeep = mesh.home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters(&mesh.remote.clusters).expected(), "a start without --local-etcd").await;
}

#[tokio::test]
async fn only_the_own_cluster_may_have_the_own_id() {
    let mut mesh = OwnClusterMesh::new(&["--cluster-id=1"]).await;
    let meshkeep = mesh.home.start().await;
    meshkeep.wait_for_field("home", "lastError", "expected 1, the value of --cluster-id").await;
    meshkeep.wait_for_field("c01", "lastError", "which is the id of the own cluster").await;
}

#[tokio::test]
async fn the_own_cluster_needs_a_name() {
    let ended = Home::new().with_flags(&["--local-etcd=/etc/own"]).run_to_the_end().await;
    assert_eq!(ended.status.code(), Some(2), "{}", ended.log);
    assert!(ended.log.contains("--local-etcd needs --cluster-name"), "{}", ended.log);
}
