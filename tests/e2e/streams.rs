//! The change stream as a client sees it.

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::{Form, SMALL, put_leased, source_key};
use crate::harness::meshkeep::http;
use crate::harness::proxy::Proxy;
use crate::harness::scene::Scene;
use crate::harness::stream::Follower;
use crate::harness::truth::changes_between;

async fn settled_scene() -> Scene {
    let scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    scene
}

#[tokio::test]
async fn a_snapshot_begins_with_a_reset_and_ends_with_synced() {
    let scene = settled_scene().await;
    let follower = Follower::open(scene.meshkeep(), "snapshot=true").await;
    follower.wait_for_synced_after(0).await;
    let followed = follower.state();
    let first = &followed.events[0];
    assert_eq!((first.name.as_str(), &first.data["reason"]), ("reset", &json!("initial")));
    let synced = followed.events_named("synced", 0).next().unwrap();
    assert_eq!(synced.data["mode"], "snapshot", "{synced:?}");
    let objects = scene.truth().expected().objects;
    assert_eq!(followed.objects, objects);
    assert!(synced.data["count"].as_u64() >= Some(objects.len() as u64), "{synced:?}");
}

#[tokio::test]
async fn live_changes_and_deletes_follow_a_snapshot_one_event_each() {
    let mut scene = settled_scene().await;
    let follower = Follower::open(scene.meshkeep(), "snapshot=true").await;
    follower.wait_for_synced_after(0).await;
    let seen = follower.state().events.len();
    let before = scene.remotes[0].clusters[0].clone();
    let (changed, gone) = (before.keys_of("nodes/v1")[0].clone(), before.keys_of("services/v1")[0].clone());
    scene.remotes[0]
        .change(|cluster| {
            cluster.change(&changed);
            cluster.delete(&gone);
        })
        .await;
    follower.wait("a delete", |followed| followed.events_named("delete", seen).next().map(|_| ())).await;
    scene.wait_until_settled("a change and a delete").await;
    let followed = follower.state();
    assert_eq!(followed.changes_since(seen), [(changed.clone(), 1), (gone.clone(), 1)].into());
    let delete = followed.events_named("delete", seen).next().unwrap();
    assert_eq!((&delete.data["key"], &delete.data["reason"], &delete.data["kind"]), (&json!(gone), &json!("deleted"), &json!("service")));
}

#[tokio::test]
async fn a_stream_without_a_snapshot_has_only_later_changes() {
    let mut scene = settled_scene().await;
    let follower = Follower::open(scene.meshkeep(), "").await;
    let key = scene.remotes[0].clusters[0].keys_of("identities/v1")[0].clone();
    scene.remotes[0].change(|cluster| cluster.change(&key)).await;
    follower.wait("the change", |followed| followed.events_named("upsert", 0).next().map(|_| ())).await;
    let followed = follower.state();
    assert_eq!(followed.changes_since(0), [(key, 1)].into());
    assert_eq!(followed.events_named("reset", 0).count(), 0);
}

#[tokio::test]
async fn filters_by_cluster_and_kind_let_nothing_else_through() {
    let mut scene = settled_scene().await;
    let follower = Follower::open(scene.meshkeep(), "snapshot=true&cluster=c02&kind=node&kind=service").await;
    follower.wait_for_synced_after(0).await;
    let wanted = |scene: &Scene| {
        let mut objects = scene.truth().expected().objects;
        // entries derived from nodes belong to the kind ipcache
        let is_wanted = |key: &str| ["nodes", "services"].iter().any(|kind| key.starts_with(&format!("cilium/cache/{kind}/v1/c02/")));
        objects.retain(|key, _| is_wanted(key) && !key.contains('#'));
        objects
    };
    assert_eq!(follower.state().objects, wanted(&scene));
    let mut random = scene.random.clone();
    for remote in &mut scene.remotes {
        remote.change(|cluster| cluster.change_one_percent(&mut random)).await;
        remote.change(|cluster| cluster.delete_one_percent(&mut random)).await;
    }
    scene.wait_until_settled("changing 1 %").await;
    let expected = wanted(&scene);
    follower.wait("the filtered changes", |followed| (followed.objects == expected).then_some(())).await;
    for filter in ["kind=nonsense", "colour=red", "cluster=Not-A-Name"] {
        let (status, problem) = scene.meshkeep().send_get(&format!("/v1/events?{filter}")).await;
        assert_eq!(status, 400, "{filter}: {problem}");
    }
}

#[tokio::test]
async fn equal_bytes_with_a_new_lease_cause_no_event() {
    let mut scene = settled_scene().await;
    let follower = Follower::open(scene.meshkeep(), "").await;
    let cluster = scene.remotes[0].clusters[0].clone();
    put_leased(&scene.remotes[0].etcd, cluster.entries.iter().map(|(key, value)| (source_key(Form::State, "c01", key), value.clone())))
        .await;
    // a real change after them shows that they were processed
    let key = cluster.keys_of("nodes/v1")[1].clone();
    scene.remotes[0].change(|cluster| cluster.change(&key)).await;
    follower.wait("the change after them", |followed| followed.events_named("upsert", 0).next().map(|_| ())).await;
    // each kind has its own watch: wait until each has shown a change
    let others: Vec<String> = ["ip/v1", "identities/v1", "services/v1"].iter().map(|base| cluster.keys_of(base)[0].clone()).collect();
    scene.remotes[0].change(|cluster| others.iter().for_each(|key| cluster.change(key))).await;
    follower.wait("a change of each kind", |followed| (followed.events_named("upsert", 0).count() >= 4).then_some(())).await;
    let mut expected: Vec<String> = others;
    expected.push(key);
    expected.sort();
    assert_eq!(
        follower.state().changes_since(0).into_iter().collect::<Vec<_>>(),
        expected.into_iter().map(|key| (key, 1)).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_position_survives_a_kill_and_a_foreign_one_is_a_reset() {
    let mut scene = settled_scene().await;
    let position = scene.meshkeep().get("/v1/nodes?limit=1").await["meta"]["position"].as_str().unwrap().to_owned();
    let before = scene.truth().expected().objects;
    let mut random = scene.random.clone();
    scene.remotes[0].change(|cluster| cluster.change_one_percent(&mut random)).await;
    scene.remotes[1].change(|cluster| cluster.delete_one_percent(&mut random)).await;
    scene.wait_until_settled("changing and deleting 1 %").await;
    // one key of each of four kinds changed and one deleted, and the entries derived from nodes
    let expected = changes_between(&before, &scene.truth().expected().objects);
    assert!(expected.0 >= 4 && expected.1 >= 4, "{expected:?}");

    let follower = Follower::open(scene.meshkeep(), &format!("after={position}")).await;
    follower.wait_for_synced_after(0).await;
    {
        let followed = follower.state();
        assert_eq!(followed.events_named("reset", 0).count(), 0, "{:?}", followed.events);
        assert_eq!(
            (followed.events_named("upsert", 0).count(), followed.events_named("delete", 0).count()),
            expected,
            "{:?}",
            followed.events
        );
        assert_eq!(followed.events_named("synced", 0).next().unwrap().data["mode"], "replay");
    }
    let events = format!("{}/v1/events", scene.meshkeep().url());
    let response = http().get(&events).header("accept", "text/event-stream").header("last-event-id", "nonsense").send().await.unwrap();
    let malformed = Follower::from_response(response);
    malformed.wait_for_synced_after(0).await;
    assert_eq!(malformed.state().events[0].data["reason"], "malformed");
    assert_eq!(http().get(format!("{events}?after=nonsense")).send().await.unwrap().status(), 400);

    scene.kill_meshkeep();
    scene.start_meshkeep().await;
    let resumed = Follower::open(scene.meshkeep(), &format!("after={position}")).await;
    resumed.wait_for_synced_after(0).await;
    {
        let followed = resumed.state();
        assert_eq!(followed.events_named("reset", 0).count(), 0, "{:?}", followed.events);
        assert_eq!(
            (followed.events_named("upsert", 0).count(), followed.events_named("delete", 0).count()),
            expected,
            "{:?}",
            followed.events
        );
    }
    let foreign = Follower::open(scene.meshkeep(), "after=v1.0123456789abcdef.7").await;
    foreign.wait_for_synced_after(0).await;
    let truth = scene.truth().expected().objects;
    let followed = foreign.state();
    assert_eq!((followed.events[0].name.as_str(), &followed.events[0].data["reason"]), ("reset", &json!("foreignEpoch")));
    assert_eq!(followed.objects, truth);
}

#[tokio::test]
async fn a_reader_that_falls_behind_reaches_the_truth() {
    let mut scene = settled_scene().await;
    let port = scene.meshkeep().url().rsplit(':').next().unwrap().parse().unwrap();
    let proxy = Proxy::to(port).await;
    let slow = Follower::open_at(&format!("http://127.0.0.1:{}", proxy.port()), "snapshot=true").await;
    slow.wait_for_synced_after(0).await;
    proxy.allow_bytes(0);
    // 12 MB of changes, more than all buffers on the way can hold; most keys change many times
    for round in 0..40 {
        let mut random = StdRng::seed_from_u64(round);
        let remote = &mut scene.remotes[0];
        remote
            .change(|cluster| {
                for key in cluster.keys_of("ip/v1").into_iter().chain(cluster.keys_of("services/v1")) {
                    cluster.change(&key);
                }
                cluster.delete_one_percent(&mut random);
                cluster.add_endpoints(20);
            })
            .await;
    }
    scene.wait_until_settled("many changes").await;
    let truth = scene.truth().expected().objects;
    assert_ne!(slow.state().objects, truth, "the slow reader was meant to be behind");
    proxy.allow_bytes(u64::MAX);
    slow.wait("the slow reader to hold the truth", |followed| (followed.objects == truth).then_some(())).await;
}

/// Returns the phases of a cluster that a follower received since an index, with `deleted` for its
/// removal.
fn phases_of(follower: &Follower, cluster: &str, from: usize) -> Vec<String> {
    let key = format!("cilium/cluster-config/{cluster}");
    let followed = follower.state();
    let about = followed.events[from..].iter().filter(|event| event.data["key"] == *key);
    about
        .map(|event| match event.name.as_str() {
            "cluster" => event.data["object"]["phase"].as_str().unwrap_or("unknown").to_owned(),
            name => format!("{name}: {}", event.data["reason"].as_str().unwrap_or_default()),
        })
        .collect()
}

#[tokio::test]
async fn cluster_events_cover_an_outage_a_crash_and_a_removal() {
    let mut scene = settled_scene().await;
    let follower = Follower::open(scene.meshkeep(), "snapshot=true").await;
    follower.wait_for_synced_after(0).await;
    assert_eq!((phases_of(&follower, "c01", 0), phases_of(&follower, "c02", 0)), (vec!["live".to_owned()], vec!["live".to_owned()]));
    let seen = follower.state().events.len();
    let changes = |follower: &Follower| follower.state().changes_since(seen);
    scene.remotes[0].proxy.cut().await;
    follower
        .wait("the outage", |followed| {
            followed.events_named("cluster", seen).any(|event| event.data["object"]["phase"] == "backingOff").then_some(())
        })
        .await;
    scene.remotes[0].proxy.restore().await;
    follower
        .wait("the return", |followed| {
            followed.events_named("cluster", seen).any(|event| event.data["object"]["phase"] == "live").then_some(())
        })
        .await;
    assert_eq!(changes(&follower), [].into(), "an outage changes no object");
    assert_eq!(phases_of(&follower, "c02", seen), Vec::<String>::new(), "an outage does not affect another cluster");

    let position = follower.state().position.clone().unwrap();
    scene.kill_meshkeep();
    scene.home.remove_cluster("c02");
    scene.start_meshkeep().await;
    let again = Follower::open(scene.meshkeep(), &format!("after={position}")).await;
    let is_removal = |event: &crate::harness::stream::Event| event.data["key"] == "cilium/cluster-config/c02" && event.name == "delete";
    again.wait("the removed cluster", |followed| followed.events.iter().any(is_removal).then_some(())).await;
    again
        .wait("the one that stayed", |followed| {
            followed.events_named("cluster", 0).any(|event| event.data["object"]["phase"] == "live").then_some(())
        })
        .await;
    assert_eq!(again.state().events_named("reset", 0).count(), 0, "positions survive a kill");
    let reported = phases_of(&again, "c02", 0);
    assert_eq!(reported.last().map(String::as_str), Some("delete: clusterRemoved"), "{reported:?}");
    assert_eq!(again.state().events_named("upsert", 0).count(), 0, "c01 did not change");
}
