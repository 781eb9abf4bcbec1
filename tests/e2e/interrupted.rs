//! `kill -9` in the middle of a list: the first list, and one from which keys have disappeared.

use crate::harness::etcd::etcd_binaries;
use crate::harness::eventually;
use crate::harness::mesh::Shape;
use crate::harness::scene::Scene;
use crate::harness::truth::served;

/// One cluster with enough entries for many pages.
const LARGE: Shape = Shape { nodes: 5, identities: 50, endpoints: 2_000, services: 5, exports: 0 };

/// Bytes for everything before the entries (headers, the heartbeat, the config, canaries) and for
/// some of the entries.
const FIRST_BYTES: u64 = 120_000;

async fn scene_with_small_pages() -> Scene {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, LARGE).await;
    scene.home = scene.home.with_flags(&["--kvstore-opt=etcd.limit=10"]);
    scene
}

async fn entry_count(scene: &Scene) -> u64 {
    scene.meshkeep().get("/v1/status").await["counts"]["entries"].as_u64().unwrap()
}

#[tokio::test]
async fn a_kill_during_the_first_list_leads_to_the_truth() {
    let mut scene = scene_with_small_pages().await;
    let total = scene.truth().len() as u64;
    scene.remotes[0].proxy.allow_bytes(FIRST_BYTES);
    scene.start_meshkeep().await;
    eventually("a part of the list to be served", || async {
        (scene.remotes[0].proxy.is_budget_spent() && (1..total).contains(&entry_count(&scene).await)).then_some(())
    })
    .await;
    scene.kill_meshkeep();
    scene.remotes[0].proxy.allow_bytes(u64::MAX);
    scene.start_meshkeep().await;
    scene.wait_until_settled("a kill in the middle of the first list").await;
}

#[tokio::test]
async fn a_kill_during_a_later_list_removes_no_entry() {
    let mut scene = scene_with_small_pages().await;
    scene.start_meshkeep().await;
    scene.wait_until_settled("the first loading").await;
    scene.kill_meshkeep();
    let before = scene.truth().expected();
    // every third endpoint is deleted and another one changed, and there is no history to follow
    let remote = &mut scene.remotes[0];
    remote
        .change(|cluster| {
            for (index, key) in cluster.keys_of("ip/v1").iter().enumerate() {
                match index % 3 {
                    0 => cluster.delete(key),
                    1 => cluster.change(key),
                    _ => {}
                }
            }
        })
        .await;
    let stamp = "2026-02-02T02:02:02Z";
    crate::harness::mesh::put_canaries(&remote.etcd, remote.form, &remote.clusters[0], stamp).await;
    let revision = remote.etcd.put("unrelated", "1").await;
    remote.etcd.compact(revision).await;
    remote.proxy.allow_bytes(FIRST_BYTES);
    let after = scene.truth().expected();
    scene.start_meshkeep().await;
    let changed = eventually("a part of the second list to be served", || async {
        let now = served(scene.meshkeep()).await;
        let new = now.raw.iter().filter(|(key, value)| before.raw.get(*key) != Some(*value)).count();
        (scene.remotes[0].proxy.is_budget_spent() && new > 0).then_some(now)
    })
    .await;
    assert_ne!(changed.raw, after.raw, "the list was meant to be cut short");
    let lost: Vec<&String> = before.raw.keys().filter(|key| !changed.raw.contains_key(*key)).collect();
    assert_eq!(lost, Vec::<&String>::new(), "nothing may be removed before the list is complete");
    scene.kill_meshkeep();
    // start once more without a source: the entries that the list delivered and those that it did
    // not reach all exist
    scene.remotes[0].proxy.cut().await;
    scene.start_meshkeep().await;
    let restored = served(scene.meshkeep()).await;
    let lost: Vec<&String> = before.raw.keys().filter(|key| !restored.raw.contains_key(*key)).collect();
    assert_eq!(lost, Vec::<&String>::new(), "an interrupted list may lose nothing, even after a kill -9");
    scene.remotes[0].proxy.allow_bytes(u64::MAX);
    scene.remotes[0].proxy.restore().await;
    scene.wait_until_settled("a kill in the middle of a later list").await;
}
