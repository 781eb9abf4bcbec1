//! What makes a cluster the same cluster, or another: its id, its name, its endpoints.

use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::eventually;
use crate::harness::mesh::{Form, MeshCluster, SMALL, publish, put_config, rewrite};
use crate::harness::meshkeep::Home;
use crate::harness::scene::{Scene, settles};
use crate::harness::stream::Follower;
use crate::harness::truth::Truth;

#[tokio::test]
async fn a_cluster_whose_id_changes_is_removed_and_read_anew() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.settles("the first loading").await;
    let seen = scene.seen();
    let (before, after) = (scene.remotes[0].clusters[0].clone(), MeshCluster::generate_named("c01", 7, SMALL));
    rewrite(&scene.remotes[0].etcd, Form::State, &before, &after).await;
    put_config(&scene.remotes[0].etcd, Form::State, &after).await;
    scene.remotes[0].clusters[0] = after;
    scene.settles("a change of the cluster's id").await;
    let followed = scene.follower().now();
    let removed = followed.named("delete", seen).filter(|event| event.data["key"] == "cilium/cache/nodes/v1/c01/c01-worker-0").count();
    assert_eq!(removed, 1, "what was held under the old id goes first");
    assert!(!followed.changes_since(seen).keys().any(|key| key.contains("/c02")), "the other cluster was disturbed");
}

#[tokio::test]
async fn two_clusters_cannot_have_one_id() {
    let binary = &etcd_binaries()[0];
    let scene = Scene::start(binary, 1, 0, SMALL).await;
    scene.settles("the first loading").await;
    let twin = MeshCluster::generate_named("twin", 1, SMALL);
    let etcd = Etcd::builder().binary(binary).start().await;
    publish(&etcd, Form::State, std::slice::from_ref(&twin), "2026-01-12T09:31:07Z").await;
    scene.home.write_cluster("twin", &etcd.client_file_yaml());
    let state = scene.meshkeep().says_of("twin", "lastError", "c01").await;
    assert!(state["lastError"].as_str().unwrap().contains('1'), "{state}");
    scene.settles("a second cluster of the same id").await;
    // once the first is gone the second may have it
    scene.home.remove_cluster("c01");
    settles(scene.meshkeep(), &Truth::of([&twin]).expected(), "the removal of the first").await;
}

#[tokio::test]
async fn the_own_clusters_file_is_ignored() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.home = std::mem::replace(&mut scene.home, Home::new()).with_flags(&["--cluster-name=c01", "--cluster-id=1"]);
    scene.remotes.remove(0);
    scene.start_meshkeep().await;
    scene.settles("loading beside the own cluster's file").await;
    assert_eq!(scene.meshkeep().ask("/v1/clusters/c01").await.0, 404);
}

#[tokio::test]
async fn a_dead_endpoint_is_passed_over() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let file = scene.remotes[0].client_file();
    scene.home.write_cluster("c01", &file.replace("endpoints:\n", "endpoints:\n- http://127.0.0.1:1\n- http://127.0.0.1:2\n"));
    scene.start_meshkeep().await;
    scene.settles("loading past dead endpoints").await;
}

/// Replicas of a clustermesh-apiserver: each has an etcd of its own, with a cluster id and revisions of its own.
#[tokio::test]
async fn a_replica_takes_over_and_only_real_changes_are_told() {
    let mut replicas = Vec::new();
    let mut cluster = MeshCluster::generate(1, SMALL);
    for token in ["replica-a", "replica-b"] {
        let etcd = Etcd::builder().cluster_token(token).start().await;
        publish(&etcd, Form::State, std::slice::from_ref(&cluster), token).await;
        replicas.push(etcd);
    }
    let mut home = Home::new();
    home.write_cluster("c01", &format!("endpoints:\n- {}\n- {}\n", replicas[0].url(), replicas[1].url()));
    let meshkeep = home.start().await;
    settles(&meshkeep, &Truth::of([&cluster]).expected(), "the first loading").await;
    meshkeep.reaches("c01", "live").await;
    let follower = Follower::open(&meshkeep, "").await;
    for round in 0..2 {
        let endpoint = meshkeep.cluster("c01").await["endpoint"].as_str().unwrap().to_owned();
        let at = usize::from(replicas[1].url() == endpoint);
        let seen = follower.now().events.len();
        let before = cluster.clone();
        let (changed, gone) = (cluster.keys_of("nodes/v1")[round].clone(), cluster.keys_of("ip/v1")[round].clone());
        cluster.change(&changed);
        cluster.delete(&gone);
        replicas[at].stop().await;
        rewrite(&replicas[1 - at], Form::State, &before, &cluster).await;
        settles(&meshkeep, &Truth::of([&cluster]).expected(), "the loss of a replica").await;
        meshkeep.reaches("c01", "live").await;
        let told = || async { (follower.now().changes_since(seen).len() >= 2).then_some(()) };
        eventually("the changes to be told", told).await;
        assert_eq!(follower.now().changes_since(seen), [(changed, 1), (gone, 1)].into());
        replicas[at].restart().await;
        rewrite(&replicas[at], Form::State, &before, &cluster).await;
    }
}
