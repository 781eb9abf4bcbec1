//! Clusters whose id, name or endpoints change, and clusters that claim the same id.

use serde_json::{Value, json};

use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::eventually;
use crate::harness::mesh::{EVERY_KIND, Form, MeshCluster, SMALL, publish, put_config, rewrite};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::scene::{Remote, Scene, wait_until_served};
use crate::harness::stream::{Event, Follower};
use crate::harness::truth::Truth;

/// Waits for a finding of a kind.
async fn wait_for_finding(meshkeep: &Meshkeep, kind: &str) -> Value {
    let first_finding = || async { meshkeep.get(&format!("/v1/problems?kind={kind}")).await["items"].get(0).cloned() };
    eventually(&format!("a finding {kind}"), first_finding).await
}

async fn wait_until_no_finding(meshkeep: &Meshkeep, kind: &str) {
    let is_resolved = || async { meshkeep.get(&format!("/v1/problems?kind={kind}")).await["items"].get(0).is_none().then_some(()) };
    eventually(&format!("the end of {kind}"), is_resolved).await;
}

#[tokio::test]
async fn a_cluster_with_a_new_id_is_removed_and_read_again() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let seen = scene.event_count();
    let (before, after) = (scene.remotes[0].clusters[0].clone(), MeshCluster::generate_named("c01", 7, SMALL));
    rewrite(&scene.remotes[0].etcd, Form::State, &before, &after).await;
    put_config(&scene.remotes[0].etcd, Form::State, &after).await;
    scene.remotes[0].clusters[0] = after;
    scene.wait_until_settled("a change of the cluster's id").await;
    let followed = scene.follower().state();
    let removed =
        followed.events_named("delete", seen).filter(|event| event.data["key"] == "cilium/cache/nodes/v1/c01/c01-worker-0").count();
    assert_eq!(removed, 1, "the entries with the old id are removed");
    let is_of_cluster = |event: &&Event| event.data["key"].as_str().is_some_and(|key| key.contains("/v1/c01/"));
    let changes: Vec<&Event> = followed.events[seen..].iter().filter(is_of_cluster).collect();
    let is_node_upsert = |event: &&Event| event.name == "upsert" && event.data["key"] == "cilium/cache/nodes/v1/c01/c01-worker-0";
    let node = changes.iter().rposition(is_node_upsert).unwrap();
    assert!(
        changes[node..].iter().all(|event| event.name == "upsert"),
        "all old entries are removed before any entry with the new id is added"
    );
    assert!(!followed.changes_since(seen).keys().any(|key| key.contains("/c02")), "the other cluster was disturbed");
}

/// A cluster changes its id while meshkeep is down, and another cluster has the new id. The old
/// entries are removed at the next start. The new ones follow once the id is free.
#[tokio::test]
async fn a_cluster_waits_until_its_new_id_is_free() {
    let mut scene = Scene::start(&etcd_binaries()[0], 2, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    scene.stop_meshkeep().await;
    let (before, after) = (scene.remotes[0].clusters[0].clone(), MeshCluster::generate_named("c01", 2, SMALL));
    rewrite(&scene.remotes[0].etcd, Form::State, &before, &after).await;
    put_config(&scene.remotes[0].etcd, Form::State, &after).await;
    scene.start_meshkeep().await;
    scene.meshkeep().wait_for_field("c01", "lastError", "already used by cluster c02").await;
    wait_until_served(scene.meshkeep(), &Truth::from_clusters(&scene.remotes[1].clusters).expected(), "an id that is in use").await;
    assert_eq!(wait_for_finding(scene.meshkeep(), "duplicateClusterID").await["clusters"], json!(["c01", "c02"]));
    scene.home.remove_cluster("c02");
    scene.remotes.remove(1);
    scene.remotes[0].clusters[0] = after;
    scene.wait_until_settled("the removal of the other cluster").await;
}

#[tokio::test]
async fn two_clusters_cannot_have_the_same_id() {
    let binary = &etcd_binaries()[0];
    let scene = Scene::start(binary, 1, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let twin = MeshCluster::generate_named("twin", 1, SMALL);
    let etcd = Etcd::builder().binary(binary).start().await;
    publish(&etcd, Form::State, std::slice::from_ref(&twin), "2026-01-12T09:31:07Z").await;
    scene.home.write_cluster("twin", &etcd.client_file_yaml());
    let state = scene.meshkeep().wait_for_field("twin", "lastError", "c01").await;
    assert!(state["lastError"].as_str().unwrap().contains('1'), "{state}");
    let found = wait_for_finding(scene.meshkeep(), "duplicateClusterID").await;
    assert_eq!((&found["id"], &found["clusters"]), (&json!("duplicateClusterID/1"), &json!(["c01", "twin"])), "{found}");
    scene.wait_until_settled("a second cluster of the same id").await;
    // once the first is removed, the second may have the id
    scene.home.remove_cluster("c01");
    wait_until_served(scene.meshkeep(), &Truth::from_clusters([&twin]).expected(), "the removal of the first").await;
    wait_until_no_finding(scene.meshkeep(), "duplicateClusterID").await;
}

/// Nothing is read from a remote with the own cluster's id, because its identity range belongs to
/// the own cluster.
#[tokio::test]
async fn a_remote_that_claims_the_own_clusters_id_is_refused_and_reported() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 2, 0, SMALL).await;
    scene.home = std::mem::replace(&mut scene.home, Home::new()).with_flags(&["--cluster-name=own", "--cluster-id=1"]);
    for remote in &scene.remotes {
        scene.home.write_cluster(&remote.clusters[0].name, &remote.client_file());
    }
    scene.start_meshkeep().await;
    let found = wait_for_finding(scene.meshkeep(), "clusterConfigRefused").await;
    assert_eq!(found["clusters"], json!(["c01"]));
    assert!(found["detail"].as_str().unwrap().contains("id is 1, which is the id of the own cluster"), "{found}");
    let refused = scene.meshkeep().get("/v1/rejected").await["items"].clone();
    assert_eq!((&refused[0]["key"], &refused[1]), (&json!("cilium/cluster-config/c01"), &Value::Null), "{refused}");
    wait_until_served(scene.meshkeep(), &Truth::from_clusters(&scene.remotes[1].clusters).expected(), "the refusal").await;
    let (before, after) = (scene.remotes[0].clusters[0].clone(), MeshCluster::generate_named("c01", 7, SMALL));
    rewrite(&scene.remotes[0].etcd, Form::State, &before, &after).await;
    put_config(&scene.remotes[0].etcd, Form::State, &after).await;
    scene.remotes[0].clusters[0] = after;
    scene.wait_until_settled("an id of its own").await;
    wait_until_no_finding(scene.meshkeep(), "clusterConfigRefused").await;
}

/// In a mesh of 511, cluster ids have nine bits and the identity numbers below them 15.
#[tokio::test]
async fn a_mesh_of_511_accepts_ids_above_255_and_no_other_size() {
    let mut clusters: Vec<MeshCluster> = [(511, "low", 2), (511, "high", 300), (511, "last", 511)]
        .map(|(max, name, id)| MeshCluster::generate_in_mesh_of(max, name, id, EVERY_KIND))
        .into();
    let small = MeshCluster::generate_named("small", 7, SMALL);
    let remote = Remote::start(&etcd_binaries()[0], Form::Cache, [clusters.clone(), vec![small.clone()]].concat()).await;
    let mut home = Home::new().with_flags(&["--max-connected-clusters=511", "--cluster-name=own", "--cluster-id=1"]);
    for cluster in clusters.iter().chain([&small]) {
        home.write_cluster(&cluster.name, &remote.client_file());
    }
    for start in ["the first loading", "a restart"] {
        let meshkeep = home.start().await;
        wait_until_served(&meshkeep, &Truth::from_clusters(&clusters).expected(), start).await;
        for cluster in &clusters {
            meshkeep.wait_for_phase(&cluster.name, "live").await;
        }
        let found = wait_for_finding(&meshkeep, "clusterConfigRefused").await;
        assert!(found["detail"].as_str().unwrap().contains("maxConnectedClusters is 255, expected 511"), "{found}");
        let identity = (300 << 15) + 256;
        let reported = meshkeep.get(&format!("/v1/identities/{identity}")).await;
        assert_eq!((&reported["cluster"], &reported["clusterID"]), (&json!("high"), &json!(300)), "{reported}");
        meshkeep.stop().await;
    }
    // an identity of the next cluster's range; with the 16 bits that a mesh of 255 has for
    // identities, both ranges would be one
    let meshkeep = home.start().await;
    let (key, id) = ("cilium/cache/ip/v1/high/10.44.9.9", (301 << 15) + 256);
    let value = format!(r#"{{"IP":"10.44.9.9","HostIP":"","ID":{id},"Key":0,"Metadata":""}}"#);
    remote.etcd.put(key, value).await;
    let refused = || async {
        let items = meshkeep.get("/v1/rejected?cluster=high").await["items"].clone();
        items.as_array().unwrap().iter().any(|item| item["key"] == key).then_some(())
    };
    eventually("an identity out of range to be refused", refused).await;
    assert_eq!(wait_for_finding(&meshkeep, "identityOutOfRange").await["clusters"], json!(["high"]));
    remote.etcd.delete(key).await;
    let deleted = clusters[1].keys_of("nodes/v1")[0].clone();
    clusters[1].delete(&deleted);
    remote.etcd.delete(deleted).await;
    wait_until_served(&meshkeep, &Truth::from_clusters(&clusters).expected(), "deletions").await;
}

/// A config that cannot be decoded changes nothing, and is reported until there is a valid one.
#[tokio::test]
async fn an_unreadable_config_is_reported_and_changes_nothing() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    scene.remotes[0].etcd.put("cilium/cluster-config/c01", "{\"id\":\"one\"}").await;
    wait_for_finding(scene.meshkeep(), "clusterConfigRefused").await;
    let refused = scene.meshkeep().get("/v1/rejected").await["items"][0].clone();
    assert_eq!((&refused["kind"], &refused["servesEarlierValue"]), (&json!("cluster"), &json!(true)), "{refused}");
    let key = scene.remotes[0].clusters[0].keys_of("nodes/v1")[0].clone();
    scene.remotes[0].change(|cluster| cluster.change(&key)).await;
    scene.wait_until_settled("a change meanwhile").await;
    put_config(&scene.remotes[0].etcd, Form::State, &scene.remotes[0].clusters[0]).await;
    wait_until_no_finding(scene.meshkeep(), "clusterConfigRefused").await;
    assert_eq!(scene.meshkeep().get("/v1/rejected").await["items"], json!([]));
    scene.wait_until_settled("the return of the valid config").await;
}

/// Two clusters with the same id are found at the same start, and the new one connects first. The
/// id belongs to the cluster whose data is stored.
#[tokio::test]
async fn a_stored_cluster_keeps_its_id_when_a_new_one_claims_it() {
    let binary = &etcd_binaries()[0];
    let mut scene = Scene::start(binary, 1, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    scene.stop_meshkeep().await;
    let twin = MeshCluster::generate_named("a-twin", 1, SMALL);
    let etcd = Etcd::builder().binary(binary).start().await;
    publish(&etcd, Form::State, std::slice::from_ref(&twin), "2026-01-12T09:31:07Z").await;
    scene.home.write_cluster("a-twin", &etcd.client_file_yaml());
    scene.remotes[0].proxy.cut().await;
    scene.start_meshkeep().await;
    scene.meshkeep().wait_for_field("a-twin", "lastError", "already used by cluster c01").await;
    scene.remotes[0].proxy.restore().await;
    scene.wait_until_settled("the return of the stored cluster").await;
}

/// A cluster config is deleted. Its contents and the cluster's data stay, also after a restart.
#[tokio::test]
async fn a_deleted_config_stays_in_force_and_is_reported() {
    let mut scene = Scene::start(&etcd_binaries()[0], 0, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let before = scene.meshkeep().cluster("c01").await["config"].clone();
    assert_eq!((&before["id"], &before["cached"]), (&1.into(), &true.into()), "{before}");
    scene.remotes[0].etcd.delete("cilium/cluster-config/c01").await;
    let reported = scene.meshkeep().wait_for_field("c01", "lastError", "its cluster config was deleted").await;
    assert_eq!(reported["config"], before, "{reported}");
    // the committer publishes the phase, so it follows a moment later
    scene.meshkeep().wait_for_phase("c01", "sourceLost").await;
    let found = wait_for_finding(scene.meshkeep(), "clusterConfigLost").await;
    assert_eq!(found["clusters"], json!(["c01"]), "{found}");
    wait_for_finding(scene.meshkeep(), "sourceLost").await;
    scene.stop_meshkeep().await;
    scene.start_meshkeep().await;
    let reported = scene.meshkeep().wait_for_field("c01", "lastError", "cilium/cluster-config/c01 does not exist").await;
    assert_eq!(reported["config"], before, "{reported}");
    wait_for_finding(scene.meshkeep(), "clusterConfigLost").await;
    // a new connection does not forget it either
    scene.home.write_cluster("c01", &format!("{}# again\n", scene.remotes[0].client_file()));
    scene.meshkeep().wait_for_field("c01", "lastError", "cilium/cluster-config/c01 does not exist").await;
    wait_for_finding(scene.meshkeep(), "clusterConfigLost").await;
    put_config(&scene.remotes[0].etcd, Form::Cache, &scene.remotes[0].clusters[0]).await;
    scene.wait_until_settled("the return of the config").await;
    wait_until_no_finding(scene.meshkeep(), "clusterConfigLost").await;
}

#[tokio::test]
async fn the_own_clusters_file_is_ignored() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.home = std::mem::replace(&mut scene.home, Home::new()).with_flags(&["--cluster-name=c01", "--cluster-id=1"]);
    scene.remotes.remove(0);
    scene.start_meshkeep().await;
    scene.wait_until_settled("loading with the own cluster's file").await;
    assert_eq!(scene.meshkeep().send_get("/v1/clusters/c01").await.0, 404);
}

#[tokio::test]
async fn a_dead_endpoint_is_skipped() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let file = scene.remotes[0].client_file();
    scene.home.write_cluster("c01", &file.replace("endpoints:\n", "endpoints:\n- http://127.0.0.1:1\n- http://127.0.0.1:2\n"));
    scene.start_meshkeep().await;
    scene.wait_until_settled("loading past dead endpoints").await;
}

/// Replicas of a clustermesh-apiserver: each has its own etcd with its own cluster id and
/// revisions.
#[tokio::test]
async fn a_replica_takes_over_and_only_real_changes_are_reported() {
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
    wait_until_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "the first loading").await;
    meshkeep.wait_for_phase("c01", "live").await;
    let follower = Follower::open(&meshkeep, "").await;
    for round in 0..2 {
        let endpoint = meshkeep.cluster("c01").await["endpoint"].as_str().unwrap().to_owned();
        let current = usize::from(replicas[1].url() == endpoint);
        let seen = follower.state().events.len();
        let before = cluster.clone();
        let (changed, deleted) = (cluster.keys_of("nodes/v1")[round].clone(), cluster.keys_of("ip/v1")[round].clone());
        cluster.change(&changed);
        cluster.delete(&deleted);
        replicas[current].stop().await;
        rewrite(&replicas[1 - current], Form::State, &before, &cluster).await;
        wait_until_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "the loss of a replica").await;
        meshkeep.wait_for_phase("c01", "live").await;
        let reported = || async { (follower.state().changes_since(seen).len() >= 2).then_some(()) };
        eventually("the changes to be reported", reported).await;
        assert_eq!(follower.state().changes_since(seen), [(changed, 1), (deleted, 1)].into());
        replicas[current].restart().await;
        rewrite(&replicas[current], Form::State, &before, &cluster).await;
    }
}

/// A peer that moves from its own etcd to a KVStoreMesh, and back.
#[tokio::test]
async fn a_move_to_a_kvstoremesh_and_back_reports_only_changes() {
    let binary = &etcd_binaries()[0];
    let mut scene = Scene::start(binary, 1, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let mut moved = scene.remotes[0].clusters[0].clone();
    moved.change(&moved.keys_of("services/v1")[0].clone());
    moved.delete(&moved.keys_of("identities/v1")[0].clone());
    let copy = Remote::start(binary, Form::Cache, vec![moved]).await;
    let (seen, before) = (scene.event_count(), scene.truth().expected());
    scene.home.write_cluster("c01", &copy.client_file());
    let direct = std::mem::replace(&mut scene.remotes, vec![copy]);
    scene.wait_until_settled("the move to a KVStoreMesh").await;
    scene.assert_only_real_changes_announced(seen, &before, "the move to a KVStoreMesh");
    let (seen, before) = (scene.event_count(), scene.truth().expected());
    scene.home.write_cluster("c01", &direct[0].client_file());
    scene.remotes = direct;
    scene.wait_until_settled("the move back").await;
    scene.assert_only_real_changes_announced(seen, &before, "the move back");
}

#[tokio::test]
async fn clusters_with_a_common_name_prefix_are_independent() {
    let binary = &etcd_binaries()[0];
    let names = ["eu", "eu-west", "eu0", "e"];
    let clusters = (1..).zip(names).map(|(id, name)| MeshCluster::generate_named(name, id, SMALL)).collect();
    let remote = Remote::start(binary, Form::Cache, clusters).await;
    let mut scene = Scene::without_meshkeep(binary, 0, 0, SMALL).await;
    for name in names {
        scene.home.write_cluster(name, &remote.client_file());
    }
    scene.remotes.push(remote);
    scene.start_meshkeep().await;
    scene.wait_until_settled("the first loading").await;
    let mut random = scene.random.clone();
    scene.remotes[0].change(|cluster| cluster.delete_one_percent(&mut random)).await;
    scene.wait_until_settled("deleting 1 %").await;
    scene.home.remove_cluster("eu");
    scene.remotes[0].clusters.remove(0);
    scene.wait_until_settled("the removal of the cluster eu").await;
}

#[tokio::test]
async fn a_lookup_returns_the_newest_claim_and_lists_the_others() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let claim = |id: u32| format!(r#"{{"IP":"10.250.0.1","HostIP":"","ID":{},"Key":0,"Metadata":""}}"#, id << 16 | 256).into_bytes();
    for index in [1, 0, 1] {
        let remote = &mut scene.remotes[index];
        let before = remote.clusters[0].clone();
        let (id, name) = (before.id, before.name.clone());
        let key = format!("cilium/cache/ip/v1/{name}/10.250.0.1");
        remote.clusters[0].entries.remove(&key);
        rewrite(&remote.etcd, remote.form, &before, &remote.clusters[0]).await;
        // wait until the deletion is served: a deletion and a new claim in one batch of a watch
        // would be no change
        scene.wait_until_settled("the end of a claim").await;
        let remote = &mut scene.remotes[index];
        let without = remote.clusters[0].clone();
        remote.clusters[0].entries.insert(key, claim(id));
        rewrite(&remote.etcd, remote.form, &without, &remote.clusters[0]).await;
        scene.wait_until_settled("a claim of an address").await;
        let answer = || async {
            let found = scene.meshkeep().get("/v1/ipcache/lookup?ip=10.250.0.1").await;
            (found["match"]["cluster"] == *name).then_some(found)
        };
        let found = eventually("the newest claim to win", answer).await;
        let others = scene.truth().expected().raw.keys().filter(|key| key.ends_with("/10.250.0.1")).count() - 1;
        assert_eq!(found["others"].as_array().map_or(0, Vec::len), others, "{found}");
    }
}

/// Every answer contains a phase, from the first answer on, even if only the store was read.
#[tokio::test]
async fn a_cluster_has_a_phase_from_the_first_answer_on() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    scene.stop_meshkeep().await;
    // without its directory no cluster has a file, but none is removed
    let (directory, aside) = (scene.home.config_directory(), scene.home.config_directory().with_extension("aside"));
    std::fs::rename(&directory, &aside).unwrap();
    scene.start_meshkeep().await;
    for path in ["/v1/clusters", "/v1/clusters/c01", "/v1/clusters/c02"] {
        let answer = scene.meshkeep().get(path).await;
        let clusters = answer["items"].as_array().cloned().unwrap_or_else(|| vec![answer.clone()]);
        assert!(!clusters.is_empty(), "{answer}");
        for cluster in clusters {
            assert_eq!(cluster["phase"], "waitingForFiles", "{path}: {cluster}");
        }
    }
    std::fs::rename(&aside, &directory).unwrap();
    scene.wait_until_settled("the return of the directory").await;
}
