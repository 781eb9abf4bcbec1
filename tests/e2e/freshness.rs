//! Age and origin in answers, and the time until changes of files take effect.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use etcd_client::GetOptions;
use serde_json::Value;

use crate::harness::etcd::etcd_binaries;
use crate::harness::eventually;
use crate::harness::mesh::{Form, SMALL, put_leased, source_key};
use crate::harness::scene::Scene;
use crate::harness::truth::list;

/// Maximum time until a client file takes effect, as promised in the changelog.
const FILE_TAKES_EFFECT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn files_take_effect_within_two_seconds() {
    let scene = Scene::start(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let time_until = |name: &'static str, status: u16| {
        let scene = &scene;
        async move {
            let started = Instant::now();
            let answered = || async { (scene.meshkeep().send_get(&format!("/v1/clusters/{name}")).await.0 == status).then_some(()) };
            eventually("the file to take effect", answered).await;
            started.elapsed()
        }
    };
    scene.home.write_cluster("c09", "endpoints:\n- http://127.0.0.1:1\n");
    assert!(time_until("c09", 200).await < FILE_TAKES_EFFECT);
    scene.home.remove_cluster("c09");
    assert!(time_until("c09", 404).await < FILE_TAKES_EFFECT);
    // a changed file, detected by the endpoint that is tried
    scene.home.write_cluster("c01", "endpoints:\n- http://127.0.0.1:2\n");
    let started = Instant::now();
    scene.meshkeep().wait_for_field("c01", "endpoint", "127.0.0.1:2").await;
    assert!(started.elapsed() < FILE_TAKES_EFFECT);
    scene.home.write_cluster("c01", &scene.remotes[0].client_file());
    scene.wait_until_settled("the return of the earlier file").await;
}

#[tokio::test]
async fn restored_data_is_ready_but_neither_synced_nor_fresh() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let status = |path: &'static str| {
        let scene = &scene;
        async move { scene.meshkeep().send_get(path).await.0.as_u16() }
    };
    assert_eq!((status("/livez").await, status("/readyz").await, status("/readyz?synced").await), (200, 200, 200));
    assert_eq!(status("/v1/nodes?maxAge=30").await, 200);
    scene.kill_meshkeep();
    for remote in &mut scene.remotes {
        remote.proxy.cut().await;
    }
    scene.start_meshkeep().await;
    let status = |path: &'static str| {
        let scene = &scene;
        async move { scene.meshkeep().send_get(path).await.0.as_u16() }
    };
    assert_eq!((status("/livez").await, status("/readyz").await, status("/readyz?synced").await), (200, 200, 503));
    let too_old = || async { (status("/v1/nodes?maxAge=0").await == 503).then_some(()) };
    eventually("the data to be older than 0 s", too_old).await;
    let node = scene.meshkeep().get("/v1/nodes/c01/c01-worker-0").await;
    assert_eq!(node["meta"]["origin"], "restored", "{node}");
    assert!(node["meta"]["lastContact"].is_string() && node["meta"]["ageSeconds"].is_number(), "{node}");
    let (c01, c02) = (scene.meshkeep().cluster("c01").await, scene.meshkeep().cluster("c02").await);
    for cluster in [&c01, &c02] {
        let restored: u64 = cluster["resources"].as_array().unwrap().iter().map(|kind| kind["restored"].as_u64().unwrap()).sum();
        assert_eq!((restored, &cluster["origin"]), (43, &Value::from("restored")), "{cluster}");
    }
    for remote in &mut scene.remotes {
        remote.proxy.restore().await;
    }
    scene.wait_until_settled("the return of the remotes").await;
    let synced = || async { (scene.meshkeep().send_get("/readyz?synced").await.0 == 200).then_some(()) };
    eventually("readyz?synced", synced).await;
    let node = scene.meshkeep().get("/v1/nodes/c01/c01-worker-0").await;
    assert_eq!((&node["meta"]["origin"], &node["meta"]["phase"]), (&Value::from("live"), &Value::from("live")), "{node}");
}

/// The age of a source behind a KVStoreMesh is unknown. The heartbeat there is that of the
/// KVStoreMesh's own etcd, which does not show that the source has died (docs/develop/protocol.md,
/// trap 15).
#[tokio::test]
async fn the_age_of_a_source_behind_a_kvstoremesh_is_unknown() {
    let scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    for (cluster, expected) in [("c01", Value::Null), ("c02", "unknown".into())] {
        let meta = scene.meshkeep().get(&format!("/v1/nodes/{cluster}/{cluster}-worker-0")).await["meta"].clone();
        assert_eq!((&meta["sourceAge"], &meta["phase"]), (&expected, &"live".into()), "{meta}");
        assert!(meta["ageSeconds"].as_f64().is_some_and(|age| age < 60.0), "{meta}");
        let sources = scene.meshkeep().get(&format!("/v1/nodes?cluster={cluster}&meta=full")).await["meta"]["sources"].clone();
        assert!(sources.as_array().unwrap().iter().all(|source| source["sourceAge"] == expected), "{sources}");
    }
}

/// Returns the source's revision of each key, as the source has it and as it is served.
async fn revisions(scene: &Scene) -> (BTreeMap<String, i64>, BTreeMap<String, i64>) {
    let remote = &scene.remotes[0];
    let mut client = remote.etcd.client().await;
    let reply = client.get("cilium/state/", Some(GetOptions::new().with_prefix().with_keys_only())).await.unwrap();
    let at_source = reply.kvs().iter().map(|kv| (kv.key_str().unwrap().to_owned(), kv.mod_revision())).collect();
    let entries = list(scene.meshkeep(), "/v1/entries?prefix=cilium/").await;
    let served = entries
        .iter()
        .map(|entry| (source_key(Form::State, "c01", entry["key"].as_str().unwrap()), entry["sourceRevision"].as_i64().unwrap()));
    (at_source, served.collect())
}

async fn wait_until_revisions_agree(scene: &Scene, when: &str) {
    eventually(when, || async {
        let (at_source, served) = revisions(scene).await;
        (at_source == served).then_some(())
    })
    .await;
}

#[tokio::test]
async fn source_revisions_follow_equal_puts_and_survive_a_restart() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    wait_until_revisions_agree(&scene, "revisions after the first loading").await;
    let cluster = scene.remotes[0].clusters[0].clone();
    let again = cluster.entries.iter().map(|(key, value)| (source_key(Form::State, "c01", key), value.clone()));
    put_leased(&scene.remotes[0].etcd, again).await;
    wait_until_revisions_agree(&scene, "revisions after equal puts").await;
    let key = cluster.keys_of("nodes/v1")[0].clone();
    scene.remotes[0].change(|cluster| cluster.change(&key)).await;
    scene.wait_until_settled("a change").await;
    let versions = |entries: Vec<Value>| -> Vec<(Value, Value, Value, Value)> {
        let fields =
            |entry: Value| (entry["key"].clone(), entry["version"].clone(), entry["createRevision"].clone(), entry["modRevision"].clone());
        entries.into_iter().map(fields).collect()
    };
    let before = versions(list(scene.meshkeep(), "/v1/entries").await);
    assert!(before.iter().all(|(entry_key, version, ..)| *version == if *entry_key == *key { 2 } else { 1 }), "{before:?}");
    // a change is stored a moment after it is served
    let stored = || async {
        let (at_source, _) = revisions(&scene).await;
        let resources = scene.meshkeep().cluster("c01").await["resources"].clone();
        let newest = at_source.values().max().copied();
        resources.as_array().unwrap().iter().any(|kind| kind["revision"].as_i64() >= newest).then_some(())
    };
    eventually("the change to be stored", stored).await;
    scene.follower = None;
    let ended = scene.meshkeep.take().unwrap().stop().await;
    assert_eq!(ended.status.code(), Some(0));
    scene.remotes[0].proxy.cut().await;
    scene.start_meshkeep().await;
    wait_until_revisions_agree(&scene, "revisions from the store").await;
    assert_eq!(versions(list(scene.meshkeep(), "/v1/entries").await), before);
}
