//! Findings in the change stream.

use serde_json::Value;

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::SMALL;
use crate::harness::meshkeep::http;
use crate::harness::scene::Scene;
use crate::harness::stream::{Follower, FollowerState};

const UNREACHABLE: &str = "problem/clusterUnreachable/c01";

/// Opens a stream that continues from a position.
async fn resume(scene: &Scene, query: &str, position: &str) -> Follower {
    let request = http().get(format!("{}/v1/events?{query}", scene.meshkeep().url()));
    Follower::from_response(request.header("last-event-id", position).send().await.unwrap())
}

/// Returns the `upsert` and `delete` events about the unreachable cluster, from an index on.
fn reported(followed: &FollowerState, from: usize) -> Vec<&str> {
    followed.events[from..].iter().filter(|event| event.data["key"] == UNREACHABLE).map(|event| event.name.as_str()).collect()
}

async fn wait_until_reported(follower: &Follower, name: &str) -> Value {
    let what = format!("{name} of the cluster that cannot be reached");
    follower
        .wait(&what, |followed| {
            let newest = followed.events.iter().rfind(|event| event.data["key"] == UNREACHABLE)?;
            (newest.name == name).then(|| newest.data.clone())
        })
        .await
}

#[tokio::test]
async fn findings_are_streamed_over_a_recovery_and_a_kill() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let follower = Follower::open(scene.meshkeep(), "kind=problem&snapshot=true").await;
    follower.wait_for_synced_after(0).await;
    let healthy = follower.state().position.clone().unwrap();
    assert_eq!(reported(&follower.state(), 0), Vec::<&str>::new());

    scene.remotes[0].proxy.cut().await;
    let appeared = wait_until_reported(&follower, "upsert").await;
    let listed = scene.meshkeep().get("/v1/problems?kind=clusterUnreachable").await;
    assert_eq!((&appeared["object"]["id"], &appeared["object"]["since"]), (&listed["items"][0]["id"], &listed["items"][0]["since"]));
    let broken = follower.state().position.clone().unwrap();
    let again = resume(&scene, "kind=problem", &healthy).await;
    again.wait_for_synced_after(0).await;
    assert_eq!(again.state().objects.get(UNREACHABLE), follower.state().objects.get(UNREACHABLE));

    scene.remotes[0].proxy.restore().await;
    wait_until_reported(&follower, "delete").await;
    scene.wait_until_settled("the return").await;
    // a follower that was disconnected meanwhile, or never connected, ends with the same state
    for position in [&healthy, &broken] {
        let again = resume(&scene, "kind=problem", position).await;
        again.wait_for_synced_after(0).await;
        assert_eq!(reported(&again.state(), 0), ["delete"]);
        assert_eq!(again.state().events_named("reset", 0).count(), 0);
    }

    scene.remotes[0].proxy.cut().await;
    wait_until_reported(&follower, "upsert").await;
    let position = follower.state().position.clone().unwrap();
    let other = Follower::open(scene.meshkeep(), "kind=problem&cluster=c02&snapshot=true").await;
    other.wait_for_synced_after(0).await;
    assert_eq!(reported(&other.state(), 0), Vec::<&str>::new());
    // an unfiltered stream from the first position on, which replays everything
    let replay = resume(&scene, "", &healthy).await;
    replay.wait_for_synced_after(0).await;
    for followed in [scene.follower().state(), replay.state()] {
        assert!(followed.events.iter().all(|event| event.data["kind"] != "problem"), "{:?}", followed.events);
    }

    scene.kill_meshkeep();
    scene.start_meshkeep().await;
    let again = resume(&scene, "kind=problem", &position).await;
    wait_until_reported(&again, "upsert").await;
    let reasons: Vec<Value> = again.state().events_named("reset", 0).map(|reset| reset.data["reason"].clone()).collect();
    assert_eq!(reasons, ["foreignEpoch"]);
    // the position still works for followers of other kinds
    let others = resume(&scene, "kind=node", &position).await;
    others.wait_for_synced_after(0).await;
    assert_eq!(others.state().events_named("reset", 0).count(), 0);
}
