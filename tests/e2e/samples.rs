//! The 77 sample keys of docs/develop/protocol.md in state and in cache form, and everything that
//! is served for them.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::generated_clients::read_all;
use crate::harness::etcd::{Etcd, all_etcd_binaries, etcd_binaries};
use crate::harness::eventually;
use crate::harness::mesh::put_leased;
use crate::harness::meshkeep::{Home, Meshkeep, http};
use crate::harness::scene::{assert_served, wait_until_served};
use crate::harness::truth::Truth;

const SAMPLES: &str = include_str!("../data/samples.jsonl");

const CLUSTERS: [(&str, u32); 2] = [("paris", 1), ("tokyo", 2)];

/// A sample: the etcd that it belongs to, its key and its bytes.
struct Sample {
    etcd: String,
    key: String,
    value: Vec<u8>,
}

fn samples() -> Vec<Sample> {
    let read = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        let value = if line["encoding"] == "base64" { BASE64.decode(text("value")).unwrap() } else { text("value").into_bytes() };
        Sample { etcd: text("etcd"), key: text("key"), value }
    };
    let samples: Vec<Sample> = SAMPLES.lines().map(read).collect();
    assert_eq!(samples.len(), 77);
    samples
}

async fn load(binary: &Path, name: &str) -> Etcd {
    let etcd = Etcd::builder().binary(binary).start().await;
    let own = samples().into_iter().filter(|sample| sample.etcd == name);
    put_leased(&etcd, own.map(|sample| (sample.key, sample.value))).await;
    etcd
}

/// Returns the samples of all kinds in cache form. Their values are byte for byte those in state
/// form.
fn truth() -> Truth {
    let mut truth = Truth::default();
    for (name, id) in CLUSTERS {
        truth.set_cluster_id(name, id);
    }
    for (key, value) in entry_values() {
        truth.put(&key, value);
    }
    assert_eq!(truth.len(), 1 + 4 + 8 + 4 + 1 + 4);
    truth
}

/// Returns the keys of all samples in cache form, with their values.
pub(super) fn entry_values() -> BTreeMap<String, Vec<u8>> {
    let kinds = ["endpointslices", "identities", "ip", "nodes", "serviceexports", "services"];
    let is_entry = |key: &str| kinds.iter().any(|kind| key.starts_with(&format!("cilium/cache/{kind}/v1/")));
    samples().into_iter().filter(|sample| is_entry(&sample.key)).map(|sample| (sample.key, sample.value)).collect()
}

/// Mirrors both clusters from their own etcds.
pub(super) async fn in_state_form(binary: &Path, flags: &[&str]) -> (Vec<Etcd>, Home, Meshkeep) {
    let mut home = Home::new().with_flags(flags);
    let mut etcds = Vec::new();
    for (name, _) in CLUSTERS {
        let etcd = load(binary, &format!("{name}-etcd")).await;
        home.write_cluster(name, &etcd.client_file_yaml());
        etcds.push(etcd);
    }
    let meshkeep = home.start().await;
    wait_until_settled(&meshkeep).await;
    (etcds, home, meshkeep)
}

async fn wait_until_settled(meshkeep: &Meshkeep) {
    let expected = truth().expected();
    wait_until_served(meshkeep, &expected, "loading the samples").await;
    for (name, _) in CLUSTERS {
        meshkeep.wait_for_phase(name, "live").await;
    }
    assert_served(meshkeep, &expected, "once both clusters are live").await;
}

#[tokio::test]
async fn the_samples_in_state_form_are_served_value_for_value() {
    for binary in all_etcd_binaries() {
        let (_etcds, _home, meshkeep) = in_state_form(&binary, &[]).await;
        assert_eq!(meshkeep.get("/v1/rejected").await["items"], json!([]));
    }
}

#[tokio::test]
async fn the_samples_in_cache_form_are_served_value_for_value() {
    for binary in all_etcd_binaries() {
        let etcd = load(&binary, "local-kvstoremesh-etcd").await;
        let mut home = Home::new();
        for (name, _) in CLUSTERS {
            home.write_cluster(name, &etcd.client_file_yaml());
        }
        let meshkeep = home.start().await;
        wait_until_settled(&meshkeep).await;
        assert_eq!(meshkeep.get("/v1/rejected").await["items"], json!([]));
    }
}

async fn lookup(meshkeep: &Meshkeep, ip: &str) -> Value {
    let answer = meshkeep.get(&format!("/v1/ipcache/lookup?ip={ip}")).await;
    assert_eq!(answer["ip"], *ip);
    answer["match"].clone()
}

#[tokio::test]
async fn a_lookup_returns_the_longest_prefix_with_identity_labels() {
    let (_etcds, _home, meshkeep) = in_state_form(&etcd_binaries()[0], &[]).await;
    let cart = json!({
        "k8s:app": "cart",
        "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": "shop",
        "k8s:io.cilium.k8s.policy.cluster": "paris",
        "k8s:io.cilium.k8s.policy.serviceaccount": "default",
        "k8s:io.kubernetes.pod.namespace": "shop",
    });
    for (ip, prefix) in [("10.1.1.21", "10.1.1.21/32"), ("fd00:10:1:1::d643", "fd00:10:1:1::d643/128")] {
        let found = lookup(&meshkeep, ip).await;
        assert_eq!((&found["prefix"], &found["host"], &found["cluster"]), (&json!(prefix), &json!(true), &json!("paris")), "{found}");
        assert_eq!((&found["identity"], &found["labels"], &found["nodeName"]), (&json!(65795), &cart, &json!("paris-worker-1")), "{found}");
    }
    let in_range = lookup(&meshkeep, "10.1.200.7").await;
    assert_eq!((&in_range["prefix"], &in_range["identity"]), (&json!("10.1.200.0/24"), &json!(2)), "{in_range}");
    assert_ne!(in_range["host"], json!(true), "{in_range}");
    // an IPv6 address in another notation
    let unusual = meshkeep.get("/v1/ipcache/lookup?ip=FD00:10:1:1:0:0:0:D643").await;
    assert_eq!(unusual["match"]["prefix"], "fd00:10:1:1::d643/128", "{unusual}");
    assert_eq!(lookup(&meshkeep, "192.0.2.1").await, Value::Null);
    assert_eq!(meshkeep.send_get("/v1/ipcache/lookup?ip=nonsense").await.0, 400);
}

#[tokio::test]
async fn a_remotes_host_is_a_remote_node() {
    let (_etcds, _home, meshkeep) = in_state_form(&etcd_binaries()[0], &[]).await;
    let found = lookup(&meshkeep, "172.18.2.9").await;
    assert_eq!((&found["identity"], &found["cluster"]), (&json!(6), &json!("tokyo")), "{found}");
}

#[tokio::test]
async fn single_objects_are_found_and_missing_ones_are_404() {
    let (_etcds, _home, meshkeep) = in_state_form(&etcd_binaries()[0], &[]).await;
    for (path, field, value) in [
        ("/v1/nodes/paris/paris-worker-1", "bootID", json!("570d3fd1-93db-4862-ba99-6a3c2c10c311")),
        ("/v1/services/tokyo/shop/cart", "clusterID", json!(2)),
        ("/v1/identities/68352", "cluster", json!("paris")),
        ("/v1/service-exports/paris/shop/cart", "sessionAffinityTimeoutSeconds", json!(42)),
        ("/v1/endpoint-slices/tokyo/shop/cart-kvlm2", "addressType", json!("IPv4")),
        ("/v1/clusters/tokyo", "phase", json!("live")),
    ] {
        let found = meshkeep.get(path).await;
        // several clusters may have an identity with the same number
        let found = if found["items"].is_array() { found["items"][0].clone() } else { found };
        assert_eq!(found[field], value, "{path}: {found}");
    }
    for sample in samples().into_iter().filter(|sample| sample.key.starts_with("cilium/cache/ip/v1/")) {
        let url = format!("{}/v1/entries/{}", meshkeep.url(), sample.key);
        assert_eq!(http().get(&url).send().await.unwrap().bytes().await.unwrap(), sample.value, "{url}");
    }
    for path in ["/v1/ipcache/10.1.200.0/24", "/v1/ipcache/10.1.200.0%2F24"] {
        assert!(meshkeep.get(path).await.to_string().contains("\"10.1.200.0/24\""), "{path}");
    }
    for path in [
        "/v1/nodes/paris/none",
        "/v1/nodes/none/paris-worker-1",
        "/v1/services/paris/shop/none",
        "/v1/service-exports/tokyo/shop/cart",
        "/v1/endpoint-slices/paris/shop/none",
        "/v1/identities/99999",
        "/v1/clusters/none",
        "/v1/ipcache/10.1.200.1",
        "/v1/entries/cilium/cache/nodes/v1/paris/none",
        "/v1/none",
    ] {
        let (status, problem) = meshkeep.send_get(path).await;
        assert_eq!(status, 404, "{path}: {problem}");
        assert!(problem["type"].is_string() && problem["detail"].is_string(), "{path}: {problem}");
    }
    assert_eq!(meshkeep.send_get("/v1/nodes?colour=red").await.0, 400);
}

/// Returns the number of items in a list.
async fn count(meshkeep: &Meshkeep, path: &str) -> usize {
    meshkeep.get(path).await["items"].as_array().unwrap().len()
}

#[tokio::test]
async fn exports_and_slices_are_filtered_and_follow_the_config() {
    let (etcds, _home, meshkeep) = in_state_form(&etcd_binaries()[0], &[]).await;
    for (query, exports, slices) in [
        ("", 1, 1),
        ("?namespace=shop", 1, 1),
        ("?namespace=other", 0, 0),
        ("?name=cart", 1, 0),
        ("?labelSelector=tier%3Dweb", 1, 0),
        ("?labelSelector=kubernetes.io/service-name%3Dcart", 0, 1),
        ("?cluster=paris", 1, 0),
        ("?cluster=tokyo", 0, 1),
    ] {
        let found = (
            count(&meshkeep, &format!("/v1/service-exports{query}")).await,
            count(&meshkeep, &format!("/v1/endpoint-slices{query}")).await,
        );
        assert_eq!(found, (exports, slices), "{query}");
    }
    assert_eq!(meshkeep.send_get("/v1/service-exports?shared=true").await.0, 400);
    let read = read_all(meshkeep.url());
    assert_eq!((&read["exports"], &read["slices"]), (&json!(["paris/shop/cart"]), &json!(["tokyo/shop/cart-kvlm2"])));
    let (paris, tokyo) = (&etcds[0], &etcds[1]);
    let cart = meshkeep.get("/v1/global-services/shop/cart").await;
    let describe = |backend: &Value| format!("{} {} {}", backend["cluster"], backend["ip"], backend["endpointSlices"]).replace('"', "");
    let backends: Vec<String> = cart["backends"].as_array().unwrap().iter().map(describe).collect();
    assert_eq!(backends, ["paris 10.1.1.21 null", "paris 10.1.2.21 null", "tokyo 10.2.1.21 [cart-kvlm2]", "tokyo 10.2.2.21 [cart-kvlm2]",]);
    assert_eq!((&cart["exports"]["clusters"], &cart["conflicts"]), (&json!(["paris"]), &Value::Null));
    // an invalid slice does not replace the valid one
    let slice = "cilium/state/endpointslices/v1/tokyo/shop/cart-kvlm2";
    tokyo.put(slice, &b"\x28\xb5\x2f\xfd"[..]).await;
    eventually("the slice to be rejected", || async { (count(&meshkeep, "/v1/rejected").await == 1).then_some(()) }).await;
    assert_eq!(count(&meshkeep, "/v1/endpoint-slices").await, 1);
    tokyo.delete(slice).await;
    eventually("the slice to be removed", || async { (count(&meshkeep, "/v1/endpoint-slices").await == 0).then_some(()) }).await;
    // paris disables its exports
    paris.put("cilium/cluster-config/paris", r#"{"id":1,"capabilities":{"syncedCanaries":true,"maxConnectedClusters":255}}"#).await;
    eventually("the exports to be removed", || async { (count(&meshkeep, "/v1/service-exports").await == 0).then_some(()) }).await;
    meshkeep.wait_for_phase("paris", "live").await;
    // enabled again, and its canary still exists
    let config = r#"{"id":1,"capabilities":{"syncedCanaries":true,"maxConnectedClusters":255,"serviceExportsEnabled":true}}"#;
    paris.put("cilium/cluster-config/paris", config).await;
    eventually("the exports to be added", || async { (count(&meshkeep, "/v1/service-exports").await == 1).then_some(()) }).await;
    meshkeep.wait_for_phase("paris", "live").await;
    // tokyo says "off" and does not have to write the canary, so nothing waits for it
    tokyo.delete("cilium/synced/tokyo/cilium/state/serviceexports/v1").await;
    let config =
        r#"{"id":2,"capabilities":{"syncedCanaries":true,"serviceExportsEnabled":false,"endpointSlicesExportMode":"endpointslices-only"}}"#;
    tokyo.put("cilium/cluster-config/tokyo", config).await;
    eventually("the services to be removed", || async { (count(&meshkeep, "/v1/services?cluster=tokyo").await == 0).then_some(()) }).await;
    meshkeep.wait_for_phase("tokyo", "live").await;
}
