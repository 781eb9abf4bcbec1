//! A generated mesh and every event that can happen to one. After each step the served state and
//! the follower's state must equal the truth exactly.

use std::path::Path;

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::{FULL, SMALL, publish, put_canaries, put_config, put_entries, put_heartbeat};
use crate::harness::scene::{Scene, assert_served};

async fn change_and_delete_one_percent(scene: &mut Scene) {
    let mut random = scene.random.clone();
    for remote in &mut scene.remotes {
        remote.change(|cluster| cluster.change_one_percent(&mut random)).await;
    }
    scene.wait_until_settled("changing 1 %").await;
    for remote in &mut scene.remotes {
        remote.change(|cluster| cluster.delete_one_percent(&mut random)).await;
    }
    scene.wait_until_settled("deleting 1 %").await;
    scene.random = random;
}

/// Cuts the connection and compacts the history meanwhile, so that the watch cannot be resumed.
async fn compact_while_cut_off(scene: &mut Scene) {
    let seen = scene.event_count();
    let before = scene.truth().expected();
    let mut random = scene.random.clone();
    for remote in &mut scene.remotes {
        remote.proxy.cut().await;
        remote
            .change(|cluster| {
                cluster.change_one_percent(&mut random);
                cluster.delete_one_percent(&mut random);
                cluster.add_endpoints(3);
            })
            .await;
        let revision = remote.etcd.put("unrelated", "1").await;
        remote.etcd.compact(revision).await;
        remote.proxy.restore().await;
    }
    scene.random = random;
    scene.wait_until_settled("a compaction while cut off").await;
    scene.assert_only_real_changes_announced(seen, &before, "a compaction while cut off");
}

async fn restart_etcd(scene: &mut Scene) {
    let seen = scene.event_count();
    let before = scene.truth().expected();
    for remote in &mut scene.remotes {
        remote.etcd.restart().await;
    }
    scene.wait_until_settled("a restart of etcd").await;
    scene.assert_only_real_changes_announced(seen, &before, "a restart of etcd");
    let mut random = scene.random.clone();
    for remote in &mut scene.remotes {
        remote.change(|cluster| cluster.change_one_percent(&mut random)).await;
    }
    scene.random = random;
    scene.wait_until_settled("changing 1 % after a restart of etcd").await;
}

/// Wipes the etcd, starts it with the same flags (so with the same etcd cluster id) and fills it
/// with other contents.
async fn wipe_and_recreate_etcd(scene: &mut Scene) {
    let seen = scene.event_count();
    let before = scene.truth().expected();
    let stamp = scene.next_stamp();
    let mut random = scene.random.clone();
    for remote in &mut scene.remotes {
        remote.etcd.wipe();
        for cluster in &mut remote.clusters {
            cluster.change_one_percent(&mut random);
            cluster.delete_one_percent(&mut random);
            cluster.add_endpoints(2);
        }
        remote.etcd.restart().await;
        publish(&remote.etcd, remote.form, &remote.clusters, &stamp).await;
    }
    scene.random = random;
    scene.wait_until_settled("wiping and recreating etcd").await;
    scene.assert_only_real_changes_announced(seen, &before, "wiping and recreating etcd");
}

/// Wipes the etcd and fills it in the same order with one early key changed. Ids, revisions and the
/// number of keys are the same; only that value and the canaries differ. `wipe_and_recreate_etcd`
/// must have run before, so that the etcd's history has only one filling, as after this one.
async fn reload_in_the_same_order_with_one_early_key_changed(scene: &mut Scene) {
    let seen = scene.event_count();
    let before = scene.truth().expected();
    let stamp = scene.next_stamp();
    for remote in &mut scene.remotes {
        remote.proxy.cut().await;
        remote.etcd.wipe();
        let early = remote.clusters[0].keys_of("ip/v1")[0].clone();
        remote.clusters[0].change(&early);
        remote.etcd.restart().await;
        publish(&remote.etcd, remote.form, &remote.clusters, &stamp).await;
        remote.proxy.restore().await;
    }
    scene.wait_until_settled("a reload in the same order with one early key changed").await;
    scene.assert_only_real_changes_announced(seen, &before, "a reload in the same order with one early key changed");
}

/// Wipes the etcd and fills it in the same order with one early key changed, while the sidecar is
/// down.
async fn reload_in_the_same_order_while_killed(scene: &mut Scene) {
    let stamp = scene.next_stamp();
    scene.kill_meshkeep();
    for remote in &mut scene.remotes {
        remote.etcd.wipe();
        let early = remote.clusters[0].keys_of("identities/v1")[0].clone();
        remote.clusters[0].change(&early);
        remote.etcd.restart().await;
        publish(&remote.etcd, remote.form, &remote.clusters, &stamp).await;
    }
    scene.start_meshkeep().await;
    scene.wait_until_settled("a reload in the same order while no sidecar ran").await;
}

/// Wipes the etcd and fills it after a while: nothing may be removed before the canaries exist
/// again.
async fn recreate_etcd_empty_for_a_while(scene: &mut Scene) {
    let seen = scene.event_count();
    let before = scene.truth().expected();
    for remote in &mut scene.remotes {
        remote.etcd.wipe();
        remote.etcd.restart().await;
    }
    for name in scene.names() {
        scene.meshkeep().wait_for_phase(&name, "readingConfig").await;
    }
    assert_served(scene.meshkeep(), &before, "while etcd is empty").await;
    for remote in &scene.remotes {
        put_heartbeat(&remote.etcd).await;
        for cluster in &remote.clusters {
            put_config(&remote.etcd, remote.form, cluster).await;
        }
    }
    for name in scene.names() {
        scene.meshkeep().wait_for_phase(&name, "waitingForCanary").await;
    }
    assert_served(scene.meshkeep(), &before, "while etcd has configs but no canaries").await;
    let stamp = scene.next_stamp();
    let mut random = scene.random.clone();
    for remote in &mut scene.remotes {
        for cluster in &mut remote.clusters {
            cluster.change_one_percent(&mut random);
            cluster.delete_one_percent(&mut random);
            put_entries(&remote.etcd, remote.form, cluster).await;
        }
    }
    assert_served(scene.meshkeep(), &before, "while etcd has entries but no canaries").await;
    for remote in &scene.remotes {
        for cluster in &remote.clusters {
            put_canaries(&remote.etcd, remote.form, cluster, &stamp).await;
        }
    }
    scene.random = random;
    scene.wait_until_settled("etcd being empty for a while").await;
    scene.assert_only_real_changes_announced(seen, &before, "etcd being empty for a while");
}

/// Kills the sidecar and starts it while no remote is reachable. The remotes come back with changes
/// made meanwhile.
async fn kill_and_start_with_all_remotes_down(scene: &mut Scene) {
    let before = scene.truth().expected();
    for remote in &mut scene.remotes {
        remote.proxy.cut().await;
    }
    scene.kill_meshkeep();
    scene.start_meshkeep().await;
    assert_served(scene.meshkeep(), &before, "right after the start with all remotes down").await;
    scene.follower().wait_for_synced_after(0).await;
    scene.wait_until_follower_agrees(&before, "the start with all remotes down").await;
    assert_eq!(scene.meshkeep().send_get("/readyz").await.0, 200);
    assert_eq!(origins(scene).await, ["restored"]);
    let mut random = scene.random.clone();
    for remote in &mut scene.remotes {
        remote
            .change(|cluster| {
                cluster.change_one_percent(&mut random);
                cluster.delete_one_percent(&mut random);
                cluster.add_endpoints(4);
            })
            .await;
        remote.proxy.restore().await;
    }
    scene.random = random;
    scene.wait_until_settled("the return of the remotes").await;
    assert_eq!(origins(scene).await, ["live"]);
}

/// Returns the distinct origins in the list of nodes.
async fn origins(scene: &Scene) -> Vec<String> {
    let list = scene.meshkeep().get("/v1/nodes?limit=1&meta=full").await;
    let sources = list["meta"]["sources"].as_array().unwrap_or_else(|| panic!("no sources in {list}"));
    let mut origins: Vec<String> = sources.iter().map(|source| source["origin"].as_str().unwrap_or_default().to_owned()).collect();
    origins.sort();
    origins.dedup();
    origins
}

#[tokio::test]
async fn a_mesh_is_mirrored_through_every_event() {
    let mut scene = Scene::start(&etcd_binaries()[0], 5, 5, FULL).await;
    scene.wait_until_settled("the first loading").await;
    let counts = scene.meshkeep().get("/v1/status").await["counts"].clone();
    assert_eq!((counts["nodes"].as_u64(), counts["identities"].as_u64()), (Some(200), Some(1000)), "{counts}");
    // in addition to the mirrored entries: five per node (one of them its pod CIDR), one more for
    // every second node (its ingress address, or a second health address), and a second pod CIDR
    // for 13 of the 20 nodes of each cluster
    assert_eq!((counts["ipcache"].as_u64(), counts["services"].as_u64()), (Some(2500 + 200 * 5 + 100 + 130), Some(200)), "{counts}");
    assert_eq!(counts["entries"].as_u64(), Some(3900), "derived entries are not mirrored keys: {counts}");
    change_and_delete_one_percent(&mut scene).await;
    compact_while_cut_off(&mut scene).await;
    restart_etcd(&mut scene).await;
    wipe_and_recreate_etcd(&mut scene).await;
    reload_in_the_same_order_with_one_early_key_changed(&mut scene).await;
    reload_in_the_same_order_while_killed(&mut scene).await;
    recreate_etcd_empty_for_a_while(&mut scene).await;
    kill_and_start_with_all_remotes_down(&mut scene).await;
}

async fn small_scene(binary: &Path) -> Scene {
    let scene = Scene::start(binary, 1, 2, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    scene
}

#[tokio::test]
async fn changes_and_deletes_are_mirrored() {
    for binary in etcd_binaries() {
        change_and_delete_one_percent(&mut small_scene(&binary).await).await;
    }
}

#[tokio::test]
async fn a_compaction_while_disconnected_leads_to_the_truth() {
    for binary in etcd_binaries() {
        compact_while_cut_off(&mut small_scene(&binary).await).await;
    }
}

#[tokio::test]
async fn a_restart_of_etcd_leads_to_the_truth() {
    for binary in etcd_binaries() {
        restart_etcd(&mut small_scene(&binary).await).await;
    }
}

#[tokio::test]
async fn a_wiped_etcd_that_looks_the_same_is_not_mistaken_for_the_old_one() {
    for binary in etcd_binaries() {
        let mut scene = small_scene(&binary).await;
        wipe_and_recreate_etcd(&mut scene).await;
        reload_in_the_same_order_with_one_early_key_changed(&mut scene).await;
        reload_in_the_same_order_while_killed(&mut scene).await;
    }
}

#[tokio::test]
async fn a_wiped_etcd_prunes_nothing_until_it_is_filled() {
    for binary in etcd_binaries() {
        recreate_etcd_empty_for_a_while(&mut small_scene(&binary).await).await;
    }
}

#[tokio::test]
async fn a_killed_sidecar_serves_at_once_without_remotes_and_catches_up_later() {
    for binary in etcd_binaries() {
        kill_and_start_with_all_remotes_down(&mut small_scene(&binary).await).await;
    }
}
