//! Two clusters in one etcd: their numbers come from separate ranges, and operations on one cluster
//! never affect the other.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use cilium_kvstore::allocator::{Allocator, AllocatorKey, AllocatorOptions, CollectionLimits, EtcdBackend, Id, IdRange, StaleIds};
use tokio::task::JoinSet;

use super::uses::UseModel;
use super::{BASE, Node, content, options, range, session};
use crate::harness::etcd::Etcd;

const CLUSTERS: [&str; 2] = ["berlin", "paris"];

/// Number of keys per cluster, and number of tasks per cluster. Two of the tasks allocate each key.
const KEYS: usize = 40;
const TASKS: usize = 8;

fn range_of(cluster: usize) -> IdRange {
    let first = (cluster as u64 + 1) << 16;
    range(first, first + 0xffff)
}

/// Returns labels that differ between the clusters only in the cluster's own label.
fn key(cluster: usize, number: usize) -> AllocatorKey {
    AllocatorKey::from_labels([("k8s:app", format!("app-{number}").as_str()), ("k8s:io.cilium.k8s.policy.cluster", CLUSTERS[cluster])])
}

/// Returns the numbers of a cluster's range that have an entry.
async fn numbers(etcd: &Etcd, cluster: usize) -> Vec<Id> {
    let all = content(etcd).await;
    let ids = all.iter().filter_map(|(name, ..)| Id::parse(name.strip_prefix("id/")?));
    ids.filter(|id| range_of(cluster).contains(*id)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clusters_in_one_etcd_do_not_affect_each_other() {
    let etcd = Etcd::start().await;
    let uses: [Arc<Mutex<UseModel>>; 2] = Default::default();
    let mut nodes = Vec::new();
    let mut workers = JoinSet::new();
    for (cluster, uses) in uses.iter().enumerate() {
        let node = Node::start(&etcd, "10.0.0.1", AllocatorOptions { range: range_of(cluster), ..options() }).await;
        for task in 0..TASKS {
            let (allocator, uses) = (node.allocator.clone(), Arc::clone(uses));
            workers.spawn(async move {
                for number in (task % (TASKS / 2)..KEYS).step_by(TASKS / 2) {
                    let key = key(cluster, number);
                    let id = allocator.allocate(&key).await.unwrap().id;
                    assert!(range_of(cluster).contains(id), "{id} for {key}");
                    uses.lock().unwrap().begin(&key, id);
                }
            });
        }
        nodes.push(node);
    }
    workers.join_all().await;
    let before = [numbers(&etcd, 0).await, numbers(&etcd, 1).await];
    assert_eq!(before.each_ref().map(Vec::len), [KEYS, KEYS]);

    // one cluster's node ends, and its unused identities are collected; the other cluster keeps all
    // of its identities, used or not
    nodes.remove(0).die().await;
    let unused = key(1, 0);
    for _ in 0..2 {
        nodes[0].allocator.release(&unused).await.unwrap();
    }
    let references = async |cluster: usize| {
        let label = format!("policy.cluster={};/", CLUSTERS[cluster]);
        content(&etcd).await.iter().filter(|(name, ..)| name.starts_with("value/") && name.contains(&label)).count()
    };
    crate::harness::eventually("the references of the ended node are deleted", async || (references(0).await == 0).then_some(())).await;
    assert_eq!(references(1).await, KEYS - 1);
    let operator =
        Allocator::for_collection(EtcdBackend::new(session(&etcd).await, BASE, "operator"), AllocatorOptions::default()).unwrap();
    let limits = CollectionLimits { range: range_of(0), deletes_per_minute: NonZeroU32::MAX };
    let first = operator.run_gc(&StaleIds::new(), &limits).await.unwrap();
    assert_eq!((first.alive, first.stale.len()), (KEYS, KEYS), "a round covers only the cluster's own range");
    let second = operator.run_gc(&first.stale, &limits).await.unwrap();
    assert_eq!(second.deleted, before[0]);
    assert_eq!([numbers(&etcd, 0).await, numbers(&etcd, 1).await], [Vec::new(), before[1].clone()]);
    nodes[0].die().await;
}
