//! Tests of the harness itself.

use std::collections::BTreeMap;

use etcd_client::GetOptions;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::mesh::{BASES, FULL, Form, MeshCluster, SMALL, source_key};
use crate::harness::proxy::Proxy;
use crate::harness::scene::Remote;
use crate::harness::truth::{Served, Truth, difference};

#[test]
fn a_generated_cluster_has_the_objects_of_its_shape() {
    for id in 1..=10 {
        let cluster = MeshCluster::generate(id, FULL);
        let counts = BASES.map(|base| cluster.keys_of(base).len());
        assert_eq!(counts, [0, 100, 250, 20, 0, 20]);
        // in addition to the keys there are entries derived from the 20 nodes: five per node (one
        // of them its pod CIDR), one more for every second node, and a second pod CIDR for two of
        // every three nodes
        assert_eq!(Truth::from_clusters([&cluster]).expected().objects.len(), 390 + 110 + 13);
    }
}

#[test]
fn missing_extra_and_different_objects_are_reported() {
    let mut cluster = MeshCluster::generate(1, SMALL);
    let expected = Truth::from_clusters([&cluster]).expected();
    assert_eq!(difference(&expected, &expected), None);
    let missing = difference(&expected, &Served::default()).unwrap();
    assert!(missing.contains("missing object"), "{missing}");
    let (changed, gone) = (cluster.keys_of("nodes/v1")[0].clone(), cluster.keys_of("services/v1")[0].clone());
    cluster.change(&changed);
    cluster.delete(&gone);
    let reported = difference(&Truth::from_clusters([&cluster]).expected(), &expected).unwrap();
    for line in [format!("left over object {gone}"), format!("different object {changed}"), format!("different raw entry {changed}")] {
        assert!(reported.contains(&line), "{line} in {reported}");
    }
}

async fn keys_below(etcd: &Etcd, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let reply = etcd.client().await.get(prefix, Some(GetOptions::new().with_prefix())).await.unwrap();
    reply.kvs().iter().map(|kv| (kv.key_str().unwrap().to_owned(), kv.value().to_vec())).collect()
}

#[tokio::test]
async fn published_and_changed_entries_are_in_etcd() {
    let mut random = StdRng::seed_from_u64(1);
    for (form, prefix) in [(Form::State, "cilium/state/"), (Form::Cache, "cilium/cache/")] {
        let mut remote = Remote::start(&etcd_binaries()[0], form, vec![MeshCluster::generate(3, SMALL)]).await;
        let expected = |remote: &Remote| -> BTreeMap<String, Vec<u8>> {
            let entries = remote.clusters[0].entries.iter();
            entries.map(|(key, value)| (source_key(form, "c03", key), value.clone())).collect()
        };
        assert_eq!(keys_below(&remote.etcd, prefix).await, expected(&remote));
        remote
            .change(|cluster| {
                cluster.change_one_percent(&mut random);
                cluster.delete_one_percent(&mut random);
                cluster.add_endpoints(2);
            })
            .await;
        assert_eq!(keys_below(&remote.etcd, prefix).await, expected(&remote));
        assert_eq!(remote.clusters[0].entries.len(), 4 + 10 + 24 + 5 - 4 + 2);
        let synced = keys_below(&remote.etcd, "cilium/synced/c03/").await;
        assert_eq!(synced.len(), BASES.len(), "{synced:?}");
    }
}

#[tokio::test]
async fn a_proxy_forwards_can_be_cut_restored_and_limited() {
    let etcd = Etcd::start().await;
    let mut proxy = Proxy::to(etcd.port()).await;
    let reaches = |port: u16| async move {
        let mut client = etcd_client::Client::connect([format!("http://127.0.0.1:{port}")], None).await.ok()?;
        let answer = tokio::time::timeout(std::time::Duration::from_millis(500), client.get("a", None)).await;
        answer.ok()?.ok().map(|_| ())
    };
    assert!(reaches(proxy.port()).await.is_some());
    proxy.cut().await;
    assert!(reaches(proxy.port()).await.is_none());
    proxy.restore().await;
    assert!(reaches(proxy.port()).await.is_some());
    proxy.allow_bytes(0);
    assert!(proxy.is_budget_spent());
    assert!(reaches(proxy.port()).await.is_none());
    proxy.allow_bytes(u64::MAX);
    assert!(reaches(proxy.port()).await.is_some());
}
