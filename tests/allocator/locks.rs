//! Tests of the allocator's locks of keys: a lock is released although its holder dies or hangs.

use std::time::{Duration, Instant};

use cilium_kvstore::allocator::{AllocatorOptions, Backend, BackendError, EtcdBackend, Id, Locker, StaleLocks};

use super::{BASE, Node, content, key, options};
use crate::harness::etcd::Etcd;

#[tokio::test]
async fn the_next_waiter_gets_the_lock_of_a_dead_holder() {
    let etcd = Etcd::start().await;
    let (one, two) = (Node::start(&etcd, "10.0.0.1", options()).await, Node::start(&etcd, "10.0.0.2", options()).await);
    let lock = one.allocator.lock(&key("a")).await.unwrap();
    let held = content(&etcd).await;
    let path = "locks/k8s:app=a;k8s:io.cilium.k8s.policy.cluster=vms;/";
    assert!(held.len() == 1 && held[0].0.starts_with(path) && held[0].2, "{held:?}");
    let begin = Instant::now();
    one.die().await;
    let allocation = two.allocator.allocate(&key("a")).await.unwrap();
    assert!(
        allocation.is_new && begin.elapsed() > Duration::from_secs(1),
        "the lock was not kept until the lease expired: {:?}",
        begin.elapsed()
    );
    drop(lock);
    two.die().await;
}

/// The holder hangs, but its lease stays alive. A round of the collector records the lock, and the
/// next round deletes it.
#[tokio::test]
async fn a_stuck_holder_loses_its_lock_in_the_second_round() {
    let etcd = Etcd::start().await;
    let (one, two) = (Node::start(&etcd, "10.0.0.1", options()).await, Node::start(&etcd, "10.0.0.2", options()).await);
    let stuck = one.allocator.lock(&key("a")).await.unwrap();
    assert_eq!(one.allocator.get_if_locked(&key("a"), &stuck).await.unwrap(), None);
    let mut waiting = tokio::task::JoinSet::new();
    let allocator = two.allocator.clone();
    waiting.spawn(async move { allocator.allocate(&key("a")).await.unwrap() });
    let first = crate::harness::eventually("both locks exist", async || {
        let round = two.allocator.run_locks_gc(&StaleLocks::new()).await.unwrap();
        (round.held.len() == 2).then_some(round)
    })
    .await;
    assert_eq!(first.deleted, 0);
    let second = two.allocator.run_locks_gc(&first.held).await.unwrap();
    assert_eq!((second.deleted, second.held.len()), (1, 1), "the waiter's lock must stay");
    assert!(waiting.join_next().await.unwrap().unwrap().is_new);
    // later operations of the former holder have no effect
    let error = one.allocator.get_if_locked(&key("b"), &stuck).await.unwrap_err();
    assert_eq!(error.to_string(), "lost the lock of the key: its lease expired");
    Locker::unlock(stuck).await;
    one.die().await;
    two.die().await;
}

/// A write can be refused because an entry exists or because the lock is lost. The two cases have
/// different results.
#[tokio::test]
async fn writes_under_a_lost_lock_fail_with_lock_lost() {
    let etcd = Etcd::start().await;
    let session = super::session(&etcd).await;
    let backend = EtcdBackend::new(session.clone(), BASE, "10.0.0.1");
    let (existing, free) = (Id::new(70_000).unwrap(), Id::new(70_001).unwrap());
    etcd.put(format!("{BASE}/id/{existing}"), key("other").as_str()).await;
    let lock = backend.lock(&key("a")).await.unwrap();
    assert!(!backend.write_id_if_locked(existing, &key("a"), &lock).await.unwrap());
    assert!(!backend.acquire_reference(existing, &key("a"), &lock).await.unwrap());
    etcd.delete(lock.comparator().key.clone()).await;
    let writes = [
        backend.write_id_if_locked(free, &key("a"), &lock).await,
        backend.allocate_id_if_locked(free, &key("a"), &lock).await,
        backend.acquire_reference(existing, &key("other"), &lock).await,
    ];
    assert!(writes.iter().all(|written| matches!(written, Err(BackendError::LockLost))), "{writes:?}");
    let left: Vec<String> = content(&etcd).await.into_iter().map(|(key, ..)| key).collect();
    assert_eq!(left, [format!("id/{existing}")]);
    session.close().await;
}

/// Trap 28: the collector's lock of a number differs from the lock for allocating its key, so that
/// neither waits for the other.
#[tokio::test]
async fn trap_28_a_collectors_lock_does_not_block_allocation() {
    let etcd = Etcd::start().await;
    let node = Node::start(&etcd, "10.0.0.1", AllocatorOptions { allocation_max: Duration::from_secs(5), ..options() }).await;
    etcd.put(format!("{BASE}/id/70000"), key("a").as_str()).await;
    let collector = super::session(&etcd).await;
    let collector_lock = collector.lock_path(format!("{BASE}/locks/id/70000").as_bytes()).await.unwrap();
    assert_eq!(node.allocator.allocate(&key("a")).await.unwrap().id.number(), 70_000);
    collector_lock.unlock().await.unwrap();
    collector.close().await;
    node.die().await;
}
