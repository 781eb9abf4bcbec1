//! Tests of an allocator that follows the identities of remote clusters in addition to its own. It
//! reads them as an agent does: from a cluster's own etcd and from a KVStoreMesh's cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use cilium_kvstore::allocator::{AllocatorOptions, EtcdBackend, Id, RemoteCache, Validator};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Node, key, options, range, session};
use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::eventually;
use crate::harness::mesh::{Form, MeshCluster, SMALL, publish};
use crate::harness::meshkeep::Home;
use crate::harness::scene::Remote;

/// A copy of a remote cluster's identities that follows its etcd until it is dropped.
struct FollowedCluster {
    cache: Arc<RemoteCache>,
    tasks: JoinSet<()>,
}

async fn follow(node: &Node, remote: &Remote, base: &str) -> FollowedCluster {
    let cluster = &remote.clusters[0];
    let first = u64::from(cluster.id) << 16;
    let validator = Validator::remote(range(first, first + 0xffff), "k8s:io.cilium.k8s.policy.cluster", cluster.name.clone());
    let cache = Arc::new(node.allocator.watch_remote(AllocatorOptions { validator: Some(validator), ..AllocatorOptions::default() }));
    let backend = EtcdBackend::new(session(&remote.etcd).await, base, "reader");
    let mut tasks = JoinSet::new();
    let watching = Arc::clone(&cache);
    tasks.spawn(async move { watching.watch(&backend, CancellationToken::new()).await });
    FollowedCluster { cache, tasks }
}

/// Returns the numbers and labels of the clusters' identities, as published in their etcds.
fn published_identities<'a>(remotes: impl IntoIterator<Item = &'a Remote>) -> BTreeMap<u64, String> {
    let entries = remotes.into_iter().flat_map(|remote| &remote.clusters).flat_map(|cluster| &cluster.entries);
    let identities = entries.filter(|(key, _)| key.starts_with("cilium/cache/identities/"));
    identities.map(|(key, value)| (key.rsplit('/').next().unwrap().parse().unwrap(), String::from_utf8(value.clone()).unwrap())).collect()
}

/// Waits until the allocator has exactly these identities in addition to its own.
async fn wait_for_identities(node: &Node, own: Id, expected: &BTreeMap<u64, String>, after: &str) {
    eventually(after, async || {
        let mut found = BTreeMap::new();
        node.allocator.for_each(|id, key| drop(found.insert(id.number(), key.to_string())));
        found.remove(&own.number());
        (found == *expected).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_numbers_equal_their_sources_and_the_mirror() {
    let binary = &etcd_binaries()[0];
    let own = Etcd::start().await;
    let node = Node::start(&own, "10.0.0.1", options()).await;
    let own_id = node.allocator.allocate(&key("own")).await.unwrap().id;
    let mut direct = Remote::start(binary, Form::State, vec![MeshCluster::generate(2, SMALL)]).await;
    let mut cached = Remote::start(binary, Form::Cache, vec![MeshCluster::generate(3, SMALL)]).await;
    // numbers of the own cluster's range in another cluster's store are ignored
    direct.etcd.put("cilium/state/identities/v1/id/65999", "k8s:app=x;k8s:io.cilium.k8s.policy.cluster=c02;").await;
    let first = follow(&node, &direct, "cilium/state/identities/v1").await;
    let second = follow(&node, &cached, "cilium/cache/identities/v1/c03").await;
    wait_for_identities(&node, own_id, &published_identities([&direct, &cached]), "the start").await;

    for remote in [&mut direct, &mut cached] {
        remote
            .change(|cluster| {
                let keys = cluster.keys_of("identities/v1");
                cluster.change(&keys[0]);
                cluster.delete(&keys[1]);
            })
            .await;
    }
    wait_for_identities(&node, own_id, &published_identities([&direct, &cached]), "changes").await;
    direct.etcd.kill();
    wait_for_identities(&node, own_id, &published_identities([&direct, &cached]), "the loss of a source").await;
    direct.etcd.wipe();
    direct.etcd.restart().await;
    let deleted = direct.clusters[0].keys_of("identities/v1")[0].clone();
    direct.clusters[0].delete(&deleted);
    publish(&direct.etcd, direct.form, &direct.clusters, "2026-01-12T10:00:00Z").await;
    wait_for_identities(&node, own_id, &published_identities([&direct, &cached]), "a source that was wiped and published again").await;

    // the mirror copies the same sources independently, and the two copies must be equal
    let mut home = Home::new();
    for remote in [&direct, &cached] {
        home.write_cluster(&remote.clusters[0].name, &remote.client_file());
    }
    let meshkeep = home.start().await;
    for name in ["c02", "c03"] {
        meshkeep.wait_for_phase(name, "live").await;
    }
    let listed = meshkeep.get("/v1/identities").await;
    let mirrored: BTreeMap<u64, BTreeMap<String, String>> = listed["items"].as_array().unwrap().iter().map(parse_mirrored).collect();
    let mut copied = BTreeMap::new();
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    node.allocator.for_each(|id, key| drop(copied.insert(id.number(), key.labels().map(owned).collect::<BTreeMap<_, _>>())));
    copied.remove(&own_id.number());
    assert_eq!(mirrored, copied);
    meshkeep.stop().await;

    drop(second);
    wait_for_identities(&node, own_id, &published_identities([&direct]), "the copy of a cluster is dropped").await;
    assert_eq!(first.cache.count(), published_identities([&direct]).len());
    assert_eq!(first.tasks.len(), 1, "the other copy still follows its cluster");
    node.die().await;
}

/// Returns number and labels of an identity in the API's answer.
fn parse_mirrored(item: &serde_json::Value) -> (u64, BTreeMap<String, String>) {
    let labels = item["labels"].as_object().unwrap().iter();
    (item["id"].as_u64().unwrap(), labels.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect())
}
