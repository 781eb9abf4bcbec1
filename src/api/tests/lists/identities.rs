//! Identities by number, and filters by scope and labels.

use std::time::SystemTime;

use serde_json::{Value, json};

use crate::api::tests::fixture::{ApiFixture, cluster, identity, key, put};
use crate::model::*;
use crate::view::View;

/// A cluster `paris` of id 1 with identities of every scope, as a cluster without a cluster config
/// may have them.
fn mesh() -> ApiFixture {
    let mut view = View::starting_at(Sequence(0));
    for (id, app) in [(65_536_u32, "cart"), (0x0100_0001, "range"), (0x0200_0001, "node"), (0x0300_0001, "odd")] {
        let change = put(key(Kind::Identity, "paris", &id.to_string()), identity(id, app), i64::from(id));
        let scope = Scope { cluster: cluster("paris"), kind: Kind::Identity };
        view.apply(Command::Apply { scope, changes: vec![change], cursor: None }, SystemTime::now());
    }
    let config = ClusterConfig { id: ClusterId(1), ..ClusterConfig::default() };
    let record = ClusterRecord { config: Some(config), last_contact: None, ..ClusterRecord::default() };
    view.apply(Command::StoreCluster { cluster: cluster("paris"), record }, SystemTime::now());
    ApiFixture::with_view(view)
}

#[tokio::test]
async fn a_scope_selects_the_identities_with_its_bits() {
    let fixture = mesh();
    for (query, expected) in [
        ("?scope=global", vec![65_536]),
        ("?scope=local", vec![0x0100_0001]),
        ("?scope=remoteNode", vec![0x0200_0001]),
        ("?scope=unknown", vec![0x0300_0001]),
        ("?scope=global&label=app%3Drange", vec![]),
        ("?label=app%3Dcart", vec![65_536]),
        ("?labelSelector=k8s:app%20notin%20(cart,node)", vec![0x0100_0001, 0x0300_0001]),
    ] {
        let list = fixture.json(&format!("/v1/identities{query}")).await;
        let found: Vec<u64> = list["items"].as_array().unwrap().iter().map(|item| item["id"].as_u64().unwrap()).collect();
        assert_eq!(found, expected, "{query}");
    }
    assert_eq!(fixture.get("/v1/identities?scope=mesh").await.status.as_u16(), 400);
}

#[tokio::test]
async fn an_unused_identity_number_names_its_cluster() {
    let fixture = mesh();
    for (id, expected) in [
        (65_537_u32, "in the range of cluster paris (id 1)"),
        (131_072, "a cluster with id 2, which is unknown here"),
        (0x0100_0002, "only valid on one node"),
        (0x0200_0002, "a remote node"),
        (0x0300_0002, "of an unknown scope"),
        (300, "no cluster has an identity 300: "),
        (130, "no cluster has an identity 130: "),
    ] {
        let answer = fixture.get(&format!("/v1/identities/{id}")).await;
        let problem = answer.json();
        assert_eq!(answer.status.as_u16(), 404, "{id}");
        assert!(problem["detail"].as_str().unwrap().contains(expected), "{id}: {problem}");
    }
}

#[tokio::test]
async fn reserved_and_well_known_identities_are_found_without_a_cluster() {
    let fixture = mesh();
    let dns = json!({
        "k8s:k8s-app": "kube-dns",
        "k8s:io.cilium.k8s.policy.serviceaccount": "coredns",
        "k8s:io.kubernetes.pod.namespace": "kube-system",
    });
    for (id, name, labels) in [
        (1, "host", json!({ "reserved:host": "" })),
        (7, "kube-apiserver", json!({ "reserved:kube-apiserver": "", "reserved:remote-node": "" })),
        (104, "coredns", dns),
    ] {
        let mut found = fixture.json(&format!("/v1/identities/{id}")).await;
        found.as_object_mut().unwrap().remove("meta");
        let expected: Value = json!({ "id": id, "scope": "global", "reserved": name, "labels": labels, "others": [] });
        found.as_object_mut().unwrap().entry("others").or_insert_with(|| json!([]));
        assert_eq!(found, expected);
    }
}
