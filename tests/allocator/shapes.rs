//! Tests of the keys in etcd, their values and leases, and of the times at which keys are deleted.

use std::num::NonZeroU32;
use std::time::Duration;

use cilium_kvstore::allocator::{Allocator, AllocatorKey, AllocatorOptions, CollectionLimits, EtcdBackend, StaleIds};

use super::{BASE, Node, content, key, options, range, session};
use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::eventually;

const LABELS: &str = "k8s:app=a;k8s:io.cilium.k8s.policy.cluster=vms;";

fn entry(id: u64, labels: &str) -> (String, String, bool) {
    (format!("id/{id}"), labels.to_owned(), false)
}

fn reference(labels: &str, node: &str, id: u64) -> (String, String, bool) {
    (format!("value/{labels}/{node}"), id.to_string(), true)
}

#[tokio::test]
async fn entries_have_no_lease_and_references_have_one() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let (one, two) = (Node::start(&etcd, "10.0.0.1", options()).await, Node::start(&etcd, "10.0.0.2", options()).await);
        let id = one.allocator.allocate(&key("a")).await.unwrap().id;
        let second = two.allocator.allocate(&key("a")).await.unwrap();
        assert_eq!((second.id, second.is_new, second.first_use), (id, false, true));
        let number = id.number();
        let expected = [entry(number, LABELS), reference(LABELS, "10.0.0.1", number), reference(LABELS, "10.0.0.2", number)];
        assert_eq!(content(&etcd).await, expected);
        assert!(one.allocator.release(&key("a")).await.unwrap().last_use);
        assert_eq!(content(&etcd).await, [expected[0].clone(), expected[2].clone()]);
        assert_eq!(one.allocator.get_no_cache(&key("a")).await.unwrap(), Some(id));
        assert_eq!(one.allocator.get_by_id(id).await.unwrap(), Some(key("a")));
        // the node is killed and its lease expires: no reference to the entry is left, but the
        // entry stays until it is collected
        two.die().await;
        eventually("the reference is deleted", async || (content(&etcd).await == expected[..1]).then_some(())).await;
        assert_eq!(one.allocator.get_no_cache(&key("a")).await.unwrap(), None);
        assert_eq!(one.allocator.allocate(&key("a")).await.unwrap().id, id, "the remaining entry is used again");
        one.die().await;
    }
}

/// Keys have Cilium's form: repeated slashes are merged in keys but not in values. Labels that are
/// a prefix of other labels are different keys.
#[tokio::test]
async fn a_number_is_found_only_by_its_exact_labels() {
    let etcd = Etcd::start().await;
    let slashes = AllocatorKey::from_labels([("k8s:path", "a//b/")]);
    etcd.put(format!("{BASE}/id/70000"), "k8s:path=a//b/;").await;
    etcd.put(format!("{BASE}/value/k8s:path=a/b/;/10.0.0.9"), "70000").await;
    etcd.put(format!("{BASE}/value/k8s:app=a;/10.0.0.9/x"), "70001").await;
    etcd.put(format!("{BASE}/value/k8s:app=a;k8s:b=c;/10.0.0.9"), "70002").await;
    etcd.put(format!("{BASE}/id/x"), "k8s:app=z;").await;
    etcd.put(format!("{BASE}/id/70003"), "").await;
    let node = Node::start(&etcd, "10.0.0.1", options()).await;
    assert_eq!(node.allocator.get_no_cache(&slashes).await.unwrap().unwrap().number(), 70_000);
    assert_eq!(node.allocator.get_no_cache(&AllocatorKey::from_text("k8s:app=a;")).await.unwrap(), None);
    let allocation = node.allocator.allocate(&slashes).await.unwrap();
    assert_eq!((allocation.id.number(), allocation.is_new), (70_000, false));
    assert_eq!(node.allocator.count(), 1);
    node.die().await;
}

#[tokio::test]
async fn numbers_in_use_are_restored_after_a_wipe_or_a_loss() {
    let mut etcd = Etcd::start().await;
    let node = Node::start(&etcd, "10.0.0.1", AllocatorOptions { sync_interval: None, ..options() }).await;
    let id = node.allocator.allocate(&key("a")).await.unwrap().id.number();
    let expected = [entry(id, LABELS), reference(LABELS, "10.0.0.1", id)];
    etcd.delete(format!("{BASE}/id/{id}")).await;
    eventually("the entry is restored", async || (content(&etcd).await == expected).then_some(())).await;
    let lease = node.session.lease_of(format!("{BASE}/value/{LABELS}/10.0.0.1").as_bytes()).unwrap();
    etcd.client().await.lease_revoke(lease.0).await.unwrap();
    eventually("the reference is restored", async || (content(&etcd).await == expected).then_some(())).await;
    etcd.wipe();
    etcd.restart().await;
    eventually("entry and reference are restored", async || (content(&etcd).await == expected).then_some(())).await;
    node.die().await;
}

#[tokio::test]
async fn only_numbers_unused_for_two_rounds_are_collected() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let node = Node::start(&etcd, "10.0.0.1", options()).await;
        let used = node.allocator.allocate(&key("a")).await.unwrap().id.number();
        // entries: same labels as the used one; written again between the rounds; another
        // cluster's; used after the first round; never used
        for (id, labels) in
            [(70_001, LABELS), (70_002, "k8s:app=b;"), (200_000, "k8s:app=c;"), (70_003, "k8s:app=d;"), (70_004, "k8s:app=e;")]
        {
            if id != used {
                etcd.put(format!("{BASE}/id/{id}"), labels).await;
            }
        }
        eventually("the copy has all entries", async || (node.allocator.count() == 6).then_some(())).await;
        let operator = EtcdBackend::new(session(&etcd).await, BASE, "operator");
        let operator = Allocator::for_collection(operator, AllocatorOptions::default()).unwrap();
        let limits = CollectionLimits { range: range(65_536, 131_071), deletes_per_minute: NonZeroU32::new(2_500).unwrap() };
        let first = operator.run_gc(&StaleIds::new(), &limits).await.unwrap();
        assert_eq!((first.alive, first.stale.len(), first.deleted.len()), (5, 4, 0));
        etcd.put(format!("{BASE}/id/70002"), "k8s:app=b;").await;
        let allocation = node.allocator.allocate(&AllocatorKey::from_text("k8s:app=d;")).await.unwrap();
        assert_eq!(allocation.id.number(), 70_003);
        let second = operator.run_gc(&first.stale, &limits).await.unwrap();
        assert_eq!((second.alive, second.stale.len(), second.deleted.len()), (3, 0, 2));
        let left: Vec<_> = content(&etcd).await.into_iter().filter(|(key, ..)| key.starts_with("id/")).map(|(key, ..)| key).collect();
        let mut expected = vec!["id/200000".to_owned(), "id/70002".into(), "id/70003".into(), format!("id/{used}")];
        expected.sort();
        assert_eq!(left, expected);
        node.die().await;
    }
}

#[tokio::test]
async fn a_full_range_is_an_error_until_a_number_is_collected() {
    let etcd = Etcd::start().await;
    let node = Node::start(&etcd, "10.0.0.1", AllocatorOptions { range: range(300, 301), ..options() }).await;
    for name in ["a", "b"] {
        node.allocator.allocate(&key(name)).await.unwrap();
    }
    let error = node.allocator.allocate(&key("c")).await.unwrap_err();
    assert!(error.to_string().starts_with("no identity from 300 to 301 is free"), "{error}");
    let freed = node.allocator.release(&key("a")).await.unwrap().id;
    let limits = CollectionLimits { range: range(300, 301), deletes_per_minute: NonZeroU32::MIN };
    let first = node.allocator.run_gc(&StaleIds::new(), &limits).await.unwrap();
    node.allocator.run_gc(&first.stale, &limits).await.unwrap();
    let allocation = eventually("the collected number is free", async || node.allocator.allocate(&key("c")).await.ok()).await;
    assert_eq!((allocation.id, allocation.is_new), (freed, true));
    assert!(node.allocator.status().await.starts_with("etcd: "));
    assert!(node.allocator.release(&key("b")).await.unwrap().last_use);
    node.allocator.release(&key("c")).await.unwrap();
    node.allocator.delete_all_keys().await.unwrap();
    eventually("the copy is empty", async || (node.allocator.count() == 0).then_some(())).await;
    node.die().await;
    assert!(tokio::time::timeout(Duration::from_secs(1), node.allocator.allocate(&key("d"))).await.unwrap().is_err());
}
