//! An etcd that is compacted all the time, as some operators' etcds are.

use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::{SMALL, put_canaries, put_heartbeat};
use crate::harness::scene::Scene;

/// Interval between compactions. etcd needs about 100 ms until it counts a new watch as up to date.
/// Many watches therefore meet a compaction before that.
const INTERVAL: Duration = Duration::from_millis(250);

/// Puts an unrelated key and compacts the history up to it, again and again.
async fn compact_for_ever(etcd: etcd_client::Client) {
    let (mut puts, mut compactions) = (etcd.kv_client(), etcd.kv_client());
    loop {
        let revision = puts.put("unrelated", "1", None).await.unwrap().header().unwrap().revision();
        compactions.compact(revision, None).await.unwrap();
        tokio::time::sleep(INTERVAL).await;
    }
}

#[tokio::test]
async fn constant_compaction_costs_no_connection_and_no_change() {
    for binary in etcd_binaries() {
        let mut scene = Scene::without_meshkeep(&binary, 1, 1, SMALL).await;
        let mut compacting = JoinSet::new();
        for remote in &scene.remotes {
            compacting.spawn(compact_for_ever(remote.etcd.client().await));
        }
        scene.start_meshkeep().await;
        scene.wait_until_settled("a start").await;
        let mut random = scene.random.clone();
        let stamp = scene.next_stamp();
        for remote in &mut scene.remotes {
            put_heartbeat(&remote.etcd).await;
            for cluster in &remote.clusters {
                put_canaries(&remote.etcd, remote.form, cluster, &stamp).await;
            }
            remote
                .change(|cluster| {
                    cluster.change_one_percent(&mut random);
                    cluster.delete_one_percent(&mut random);
                    cluster.add_endpoints(3);
                })
                .await;
        }
        scene.wait_until_settled("changes").await;
        for name in scene.names() {
            // a compaction between a list and its watch causes another list, and is no failure
            scene.meshkeep().wait_for_phase(&name, "live").await;
            let state = scene.meshkeep().cluster(&name).await;
            assert_eq!(state["failures"], json!(0), "{state}");
        }
    }
}
