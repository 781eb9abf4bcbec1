//! ipcache entries that are derived from nodes: looked up, filtered, followed, and sent to a client
//! that was disconnected.
//!
//! Every scenario of the other modules compares them too: the harness derives them from the nodes'
//! bytes on its own (`truth::derived`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::{MeshCluster, SMALL};
use crate::harness::scene::Scene;
use crate::harness::stream::{Follower, FollowerState};
use crate::harness::truth::{changes_between, list, reduce};

const NODE: &str = "cilium/cache/nodes/v1/c01/c01-worker-0";

/// Returns whether an object matches a filter.
type ObjectFilter = fn(&Value) -> bool;

async fn settled_scene() -> Scene {
    let scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    scene
}

/// Changes members of a node's value.
fn rewrite_node(cluster: &mut MeshCluster, change: impl Fn(&mut Value)) {
    if let Some(value) = cluster.entries.get_mut(NODE) {
        let mut node = serde_json::from_slice(value).unwrap();
        change(&mut node);
        *value = serde_json::to_vec(&node).unwrap();
    }
}

/// Removes two addresses from a node of the first cluster: its ingress address and its router's.
fn lose_two_addresses(cluster: &mut MeshCluster) {
    rewrite_node(cluster, |node| {
        node["IPv4IngressIP"] = json!("");
        node["IPAddresses"].as_array_mut().unwrap().retain(|address| address["Type"] != "CiliumInternalIP");
    });
}

async fn position(scene: &Scene) -> String {
    scene.meshkeep().get("/v1/nodes?limit=1").await["meta"]["position"].as_str().unwrap().to_owned()
}

/// Returns the deletes that a follower has received, with their reasons.
fn deletes(followed: &FollowerState) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    followed.events_named("delete", 0).map(|event| (text(&event.data["key"]), text(&event.data["reason"]))).collect()
}

#[tokio::test]
async fn a_lookup_finds_every_address_of_a_node() {
    let scene = settled_scene().await;
    let nodes = list(scene.meshkeep(), "/v1/nodes").await;
    assert_eq!(nodes.len(), 8);
    for node in &nodes {
        let node_addresses = node["addresses"].as_array().unwrap().iter().map(|address| (&address["ip"], 6, "reserved:remote-node"));
        let ips = |field: &str| node[field].as_array().cloned().unwrap_or_default();
        let (health, ingress) = (ips("healthIPs"), ips("ingressIPs"));
        let health = health.iter().map(|ip| (ip, 4, "reserved:health"));
        let ingress = ingress.iter().map(|ip| (ip, 8, "reserved:ingress"));
        for (ip, identity, label) in node_addresses.chain(health).chain(ingress) {
            let answer = scene.meshkeep().get(&format!("/v1/ipcache/lookup?ip={}", ip.as_str().unwrap())).await;
            let entry = &answer["match"];
            assert_eq!(
                (&entry["source"], &entry["identity"], &entry["nodeName"]),
                (&json!("node"), &json!(identity), &node["name"]),
                "{answer}"
            );
            assert_eq!(
                (&entry["cluster"], &entry["host"], &entry["labels"][label]),
                (&node["cluster"], &json!(true), &json!("")),
                "{answer}"
            );
            assert_eq!((&entry["hostIP"], &answer["meta"]["origin"]), (&node["addresses"][0]["ip"], &json!("live")), "{answer}");
        }
    }
    // the raw API has only mirrored keys
    assert!(scene.truth().expected().objects.contains_key(&format!("{NODE}#172.18.1.1")));
    assert_eq!(scene.meshkeep().send_get(&format!("/v1/entries/{NODE}%23172.18.1.1")).await.0, 404);
}

/// An address in a node's pod CIDR gets the CIDR's entry even if no pod has an entry for it, as in
/// an agent since 1.18.
#[tokio::test]
async fn an_address_without_an_entry_gets_the_one_of_its_pod_cidr() {
    let mut scene = settled_scene().await;
    let member = |object: &Value, name: &str| object[name].clone();
    let lookup = "/v1/ipcache/lookup?ip=10.1.2.250";
    let cidr_entry = scene.meshkeep().get(lookup).await["match"].clone();
    let shown =
        ["prefix", "host", "cluster", "identity", "hostIP", "nodeName", "source", "encryptionKey"].map(|field| member(&cidr_entry, field));
    let expected = [
        json!("10.1.2.0/24"),
        json!(false),
        json!("c01"),
        // world-ipv4, because the node has pod CIDRs of both families
        json!(9),
        json!("172.18.1.3"),
        json!("c01-worker-2"),
        json!("node"),
        json!(2),
    ];
    assert_eq!(shown, expected, "{cidr_entry}");
    assert_eq!(cidr_entry["labels"], json!({"reserved:world-ipv4": ""}));
    assert_eq!(scene.meshkeep().get("/v1/ipcache/10.1.2.0%2F24").await["nodeName"], "c01-worker-2");
    let verdicts = |explanation: &Value| {
        let entries = explanation["entries"].as_array().unwrap().iter();
        entries.map(|entry| (entry["prefix"].clone(), entry["source"].clone(), entry["verdict"].clone())).collect::<Vec<_>>()
    };
    let derived = (json!("10.1.2.0/24"), json!("node"), json!("wins"));
    assert_eq!(verdicts(&scene.meshkeep().get("/v1/explain/10.1.2.250").await), [derived]);
    // the address gets an entry of its own, which is then deleted; finally, the node is deleted
    // while meshkeep is down
    let follower = Follower::open(scene.meshkeep(), "snapshot=true&kind=ipcache&cluster=c01&cidr=10.1.2.0/24&identity=9").await;
    follower.wait_for_synced_after(0).await;
    let key = "cilium/cache/nodes/v1/c01/c01-worker-2#10.1.2.0/24".to_owned();
    assert_eq!(follower.state().objects.keys().collect::<Vec<_>>(), [&key]);
    let pod =
        ("cilium/cache/ip/v1/c01/10.1.2.250", r#"{"IP":"10.1.2.250","Mask":null,"HostIP":"172.18.1.3","ID":65792,"Key":0,"Metadata":""}"#);
    scene.remotes[0].change(|cluster| drop(cluster.entries.insert(pod.0.to_owned(), pod.1.into()))).await;
    scene.wait_until_settled("an entry of the pod's own").await;
    assert_eq!(scene.meshkeep().get(lookup).await["match"]["source"], "clustermesh");
    scene.remotes[0].change(|cluster| drop(cluster.entries.remove(pod.0))).await;
    scene.wait_until_settled("no entry of the pod's own").await;
    assert_eq!(scene.meshkeep().get(lookup).await["match"], cidr_entry);
    scene.stop_meshkeep().await;
    scene.remotes[0].change(|cluster| cluster.delete("cilium/cache/nodes/v1/c01/c01-worker-2")).await;
    scene.start_meshkeep().await;
    scene.wait_until_settled("reading that the node was deleted").await;
    assert_eq!(scene.meshkeep().get(lookup).await["match"], Value::Null);
}

#[tokio::test]
async fn ipcache_filters_apply_to_mirrored_and_derived_entries() {
    let scene = settled_scene().await;
    let truth = scene.truth().expected().objects;
    let ipcache = truth.iter().filter(|(key, _)| key.starts_with("cilium/cache/ip/v1/") || key.contains('#'));
    let ipcache: BTreeMap<&String, &Value> = ipcache.collect();
    let cases: [(&str, ObjectFilter); 10] = [
        ("cluster=c02", |object| object["cluster"] == "c02"),
        ("identity=6", |object| object["identity"] == 6),
        ("identity=4&cluster=c01", |object| object["identity"] == 4 && object["cluster"] == "c01"),
        ("identity=2&cluster=c01", |object| object["identity"] == 2 && object["cluster"] == "c01"),
        ("identity=10", |object| object["identity"] == 10),
        ("cidr=10.1.0.0/16", |object| object["prefix"].as_str().unwrap().starts_with("10.1.")),
        ("cidr=172.18.1.0/24", |object| object["prefix"].as_str().unwrap().starts_with("172.18.1.")),
        ("node=c01-worker-1", |object| object["hostIP"] == "172.18.1.2"),
        ("node=172.18.2.1", |object| object["hostIP"] == "172.18.2.1"),
        ("namespace=ns-1", |object| object["namespace"] == "ns-1"),
    ];
    for (filter, passes) in cases {
        let expected: Vec<&String> = ipcache.iter().filter(|(_, object)| passes(object)).map(|(key, _)| *key).collect();
        assert!(!expected.is_empty() || filter.starts_with("namespace"), "{filter}");
        let listed = list(scene.meshkeep(), &format!("/v1/ipcache?{filter}")).await;
        let mut keys: Vec<String> = listed.iter().map(|object| reduce("ipcache", object).0).collect();
        keys.sort();
        assert_eq!(keys.iter().collect::<Vec<_>>(), expected, "{filter}");
        if !filter.contains("worker") {
            let follower = Follower::open(scene.meshkeep(), &format!("snapshot=true&kind=ipcache&{filter}")).await;
            follower.wait_for_synced_after(0).await;
            assert_eq!(follower.state().objects.keys().collect::<Vec<_>>(), expected, "{filter}");
        }
    }
    // with small pages, the list continues from mirrored to derived entries on a later page
    let mut paged = Vec::new();
    let mut token = String::new();
    loop {
        let page = scene.meshkeep().get(&format!("/v1/ipcache?limit=7{token}")).await;
        paged.extend(page["items"].as_array().unwrap().iter().map(|object| reduce("ipcache", object).0));
        let Some(next) = page["nextPageToken"].as_str() else { break };
        token = format!("&pageToken={next}");
    }
    paged.sort();
    assert_eq!(paged.iter().collect::<Vec<_>>(), ipcache.into_keys().collect::<Vec<_>>());
}

#[tokio::test]
async fn an_entry_with_another_identity_leaves_and_reenters_a_filter() {
    let mut scene = settled_scene().await;
    let follower = Follower::open(scene.meshkeep(), "snapshot=true&kind=ipcache&cluster=c01&identity=8").await;
    follower.wait_for_synced_after(0).await;
    let key = format!("{NODE}#10.1.0.77");
    assert_eq!(follower.state().objects.keys().collect::<Vec<_>>(), [&key]);
    // the ingress address becomes one of the node's own addresses too, which takes precedence
    let add_own_address = |cluster: &mut MeshCluster| {
        rewrite_node(cluster, |node| node["IPAddresses"].as_array_mut().unwrap().push(json!({"Type": "Hostname", "IP": "10.1.0.77"})));
    };
    scene.remotes[0].change(add_own_address).await;
    let has_left = |followed: &FollowerState| followed.objects.is_empty().then_some(());
    follower.wait("the entry to leave", has_left).await;
    assert_eq!(deletes(&follower.state()), [(key.clone(), "leftFilter".to_owned())].into());
    scene.wait_until_settled("an address in two fields").await;
    scene.remotes[0].change(|cluster| rewrite_node(cluster, |node| drop(node["IPAddresses"].as_array_mut().unwrap().pop()))).await;
    follower.wait("the entry to come back", |followed| followed.objects.contains_key(&key).then_some(())).await;
    scene.wait_until_settled("the node as it was").await;
}

#[tokio::test]
async fn a_resuming_client_gets_the_deletes_of_derived_entries() {
    for restart in ["none", "stop", "kill"] {
        let mut scene = settled_scene().await;
        let (before, position) = (scene.truth().expected().objects, position(&scene).await);
        scene.remotes[0].change(lose_two_addresses).await;
        scene.wait_until_settled("losing two addresses").await;
        match restart {
            "stop" => scene.stop_meshkeep().await,
            "kill" => scene.kill_meshkeep(),
            _ => {}
        }
        if restart != "none" {
            scene.start_meshkeep().await;
        }
        let follower = Follower::open(scene.meshkeep(), &format!("after={position}")).await;
        follower.wait_for_synced_after(0).await;
        let expected: BTreeMap<String, String> = ["10.1.0.10", "10.1.0.77"].map(|ip| (format!("{NODE}#{ip}"), "deleted".to_owned())).into();
        if restart == "kill" {
            // a kill may lose the last group: then the source sends it again, after the replay
            follower.wait("the deletes", |followed| (deletes(followed) == expected).then_some(())).await;
        }
        assert_eq!(deletes(&follower.state()), expected, "{restart}");
        assert_eq!(follower.state().events_named("reset", 0).count(), 0, "{restart}");
        if restart != "kill" {
            let followed = follower.state();
            let counts = (followed.events_named("upsert", 0).count(), followed.events_named("delete", 0).count());
            assert_eq!(counts, changes_between(&before, &scene.truth().expected().objects), "{restart}");
        }
        scene.wait_until_settled(restart).await;
    }
}

/// The node changes while meshkeep is down. Its derived entries follow when the source is read
/// again, and the changes are announced.
#[tokio::test]
async fn derived_entries_lost_while_meshkeep_was_down_are_deleted() {
    let mut scene = settled_scene().await;
    let (before, position) = (scene.truth().expected().objects, position(&scene).await);
    scene.stop_meshkeep().await;
    scene.remotes[0].change(lose_two_addresses).await;
    scene.remotes[1].change(|cluster| cluster.delete("cilium/cache/nodes/v1/c02/c02-worker-3")).await;
    scene.start_meshkeep().await;
    let follower = Follower::open(scene.meshkeep(), &format!("after={position}")).await;
    scene.wait_until_settled("reading the nodes again").await;
    let after = scene.truth().expected().objects;
    let deleted: Vec<&String> = before.keys().filter(|key| !after.contains_key(*key)).collect();
    assert_eq!(deleted.len(), 2 + 1 + 6);
    follower.wait("the deletes", |followed| (deletes(followed).len() == deleted.len()).then_some(())).await;
    assert_eq!(deletes(&follower.state()).keys().collect::<Vec<_>>(), deleted);
}
