//! Times of changes: of a first list, of a change that was seen, and of one that happened while
//! meshkeep was not running.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::SMALL;
use crate::harness::next_second;
use crate::harness::scene::Scene;

const SEEN: &str = "cilium/cache/nodes/v1/c01/c01-worker-0";
const MISSED: &str = "cilium/cache/nodes/v1/c01/c01-worker-1";
const UNCHANGED: &str = "cilium/cache/nodes/v1/c01/c01-worker-2";

/// Members of an object that have the time of its last change.
async fn change_of(scene: &Scene, key: &str) -> Value {
    let name = key.rsplit('/').next().unwrap();
    let node = scene.meshkeep().get(&format!("/v1/nodes/c01/{name}")).await;
    let members = ["changedAt", "changedBetween", "firstSeenAt"].map(|member| (member, node[member].clone()));
    members.into_iter().filter(|(_, value)| !value.is_null()).map(|(member, value)| (member.to_owned(), value)).collect()
}

async fn change_node(scene: &mut Scene, key: &str) {
    for remote in &mut scene.remotes {
        remote
            .change(|cluster| {
                if cluster.entries.contains_key(key) {
                    cluster.change(key)
                }
            })
            .await;
    }
}

/// Returns the keys of the events since a time, except those of clusters.
async fn changed_since(scene: &Scene, since: &str) -> Vec<String> {
    let answer = scene.meshkeep().get(&format!("/v1/changes?since={since}&kind=node")).await;
    assert_eq!(answer["reset"], Value::Null, "{answer}");
    let events = answer["events"].as_array().unwrap().iter().filter(|event| event["type"] != "synced");
    let mut keys: Vec<String> = events.map(|event| event["key"].as_str().unwrap().to_owned()).collect();
    keys.sort();
    keys
}

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_change_has_the_time_at_which_it_was_seen_or_may_have_happened() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.wait_until_settled("the first list").await;
    let first_seen = change_of(&scene, UNCHANGED).await;
    let listed_at = time(&first_seen["firstSeenAt"]);
    assert_eq!(first_seen, json!({"firstSeenAt": first_seen["firstSeenAt"]}));

    let before_change = next_second().await;
    change_node(&mut scene, SEEN).await;
    scene.wait_until_settled("a change").await;
    let seen = change_of(&scene, SEEN).await;
    assert_eq!(seen, json!({"changedAt": seen["changedAt"]}));
    assert!(listed_at < time(&seen["changedAt"]) && before_change <= time(&seen["changedAt"]), "{seen}");
    assert_eq!(changed_since(&scene, &before_change.to_string()).await, [SEEN]);
    // the mirror is younger than that
    let answer = scene.meshkeep().get("/v1/changes?since=1h&kind=node").await;
    assert_eq!(answer["reset"], "expired", "{answer}");

    scene.kill_meshkeep();
    let down_at = next_second().await;
    change_node(&mut scene, MISSED).await;
    let changed_at = Timestamp::now();
    next_second().await;
    scene.start_meshkeep().await;
    scene.wait_until_settled("a restart").await;
    let missed = change_of(&scene, MISSED).await;
    let [from, to] = [0, 1].map(|index| time(&missed["changedBetween"][index]));
    assert!(from <= down_at && changed_at <= to && missed.as_object().unwrap().len() == 1, "{missed}");
    assert_eq!([change_of(&scene, SEEN).await, change_of(&scene, UNCHANGED).await], [seen, first_seen], "times survive a restart");
    assert_eq!(changed_since(&scene, &before_change.to_string()).await, [SEEN, MISSED]);
    assert_eq!(changed_since(&scene, &down_at.to_string()).await, [MISSED]);
}
