//! Earlier versions: looks up an address at times before and after its pod changes, and after it is
//! deleted. Repeats the lookups after a kill.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::SMALL;
use crate::harness::next_second;
use crate::harness::scene::Scene;

/// Returns the pod of an address at a time, and whether the answer is complete.
async fn pod_at(scene: &Scene, address: &str, time: Timestamp) -> (Value, Value) {
    let answer = scene.meshkeep().get(&format!("/v1/ipcache/lookup?ip={address}&at={time}")).await;
    assert_eq!(answer["meta"]["at"], time.to_string(), "{answer}");
    (answer["match"]["podName"].clone(), answer["meta"]["complete"].clone())
}

#[tokio::test]
async fn an_address_that_moves_is_known_at_every_moment() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.wait_until_settled("the first list").await;
    let key = scene.remotes[0].clusters[0].keys_of("ip").into_iter().find(|key| !key.contains(':')).unwrap();
    let address = key.rsplit('/').next().unwrap().to_owned();
    let first_pod = scene.meshkeep().get(&format!("/v1/ipcache/lookup?ip={address}")).await["match"]["podName"].clone();
    // the first list ends when its watches begin, shortly after the entries are complete
    next_second().await;
    let mut pods = vec![(next_second().await, first_pod.clone())];
    for pod in [Some("second"), None] {
        next_second().await;
        scene.remotes[0].change_pod(&key, pod).await;
        scene.wait_until_settled("a change").await;
        next_second().await;
        pods.push((next_second().await, json!(pod)));
    }
    for is_restarted in [false, true] {
        if is_restarted {
            // everything is in the log or in a segment
            scene.kill_meshkeep();
            scene.start_meshkeep().await;
            scene.wait_until_settled("a restart").await;
        }
        for (moment, expected) in &pods {
            let (pod, is_complete) = pod_at(&scene, &address, *moment).await;
            assert_eq!(&pod, expected, "{address} at {moment}");
            // after a kill, the time of the last contact may be up to 30 s older than the kill
            assert!(is_restarted || is_complete == true, "{address} at {moment}");
        }
        let history = scene.meshkeep().get(&format!("/v1/history?key={key}")).await;
        let versions: Vec<_> =
            history["items"].as_array().unwrap().iter().map(|version| (&version["object"]["podName"], &version["ended"])).collect();
        assert_eq!(versions, [(&json!("second"), &json!("deleted")), (&first_pod, &json!("updated"))], "{history}");
        let by_pod = scene.meshkeep().get("/v1/history?pod=moved/second").await;
        assert_eq!(by_pod["items"].as_array().unwrap().len(), 1, "{by_pod}");
        let by_ip = scene.meshkeep().get(&format!("/v1/history?ip={address}")).await;
        assert!(by_ip["items"].as_array().unwrap().iter().filter(|version| version["key"] == key.as_str()).count() == 2, "{by_ip}");
    }
}
