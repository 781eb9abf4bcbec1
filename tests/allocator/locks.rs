//! Locks of keys whose holders die or hang.

use std::time::{Duration, Instant};

use cilium_kvstore::allocator::{AllocatorOptions, Backend, BackendError, EtcdBackend, Id, Locker, StaleLocks};

use super::{BASE, Node, content, key, options};
use crate::harness::etcd::Etcd;

#[tokio::test]
async fn a_holder_that_dies_is_superseded_when_its_lease_ends() {
    let etcd = Etcd::start().await;
    let (one, two) = (Node::start(&etcd, "10.0.0.1", options()).await, Node::start(&etcd, "10.0.0.2", options()).await);
    let lock = one.allocator.lock(&key("a")).await.unwrap();
    let held = content(&etcd).await;
    let path = "locks/k8s:app=a;k8s:io.cilium.k8s.policy.cluster=vms;/";
    assert!(held.len() == 1 && held[0].0.starts_with(path) && held[0].2, "{held:?}");
    let begin = Instant::now();
    one.die().await;
    let allocation = two.allocator.allocate(&key("a")).await.unwrap();
    assert!(allocation.is_new && begin.elapsed() > Duration::from_secs(1), "the lock was not held: {:?}", begin.elapsed());
    drop(lock);
    two.die().await;
}

/// The holder's lease stays alive, but the holder hangs. A round of the collector remembers the
/// lock, and the next round deletes it.
#[tokio::test]
async fn a_holder_that_is_stuck_loses_its_lock_in_the_second_round() {
    let etcd = Etcd::start().await;
    let (one, two) = (Node::start(&etcd, "10.0.0.1", options()).await, Node::start(&etcd, "10.0.0.2", options()).await);
    let stuck = one.allocator.lock(&key("a")).await.unwrap();
    assert_eq!(one.allocator.get_if_locked(&key("a"), &stuck).await.unwrap(), None);
    let mut waiting = tokio::task::JoinSet::new();
    let allocator = two.allocator.clone();
    waiting.spawn(async move { allocator.allocate(&key("a")).await.unwrap() });
    let first = crate::harness::eventually("both", async || {
        let round = two.allocator.run_locks_gc(&StaleLocks::new()).await.unwrap();
        (round.held.len() == 2).then_some(round)
    })
    .await;
    assert_eq!(first.deleted, 0);
    let second = two.allocator.run_locks_gc(&first.held).await.unwrap();
    assert_eq!((second.deleted, second.held.len()), (1, 1), "who waits is not taken for the holder");
    assert!(waiting.join_next().await.unwrap().unwrap().is_new);
    // later operations of the former holder have no effect
    let error = one.allocator.get_if_locked(&key("b"), &stuck).await.unwrap_err();
    assert_eq!(error.to_string(), "lost the lock of the key: its lease expired");
    Locker::unlock(stuck).await;
    one.die().await;
    two.die().await;
}

/// An entry that stands and a lock that is lost both keep a write from happening: they are reported
/// apart.
#[tokio::test]
async fn what_is_written_under_a_lost_lock_fails_as_that() {
    let etcd = Etcd::start().await;
    let session = super::session(&etcd).await;
    let backend = EtcdBackend::new(session.clone(), BASE, "10.0.0.1");
    let (standing, free) = (Id::new(70_000).unwrap(), Id::new(70_001).unwrap());
    etcd.put(format!("{BASE}/id/{standing}"), key("other").as_str()).await;
    let lock = backend.lock(&key("a")).await.unwrap();
    assert!(!backend.write_id_if_locked(standing, &key("a"), &lock).await.unwrap());
    assert!(!backend.acquire_reference(standing, &key("a"), &lock).await.unwrap());
    etcd.delete(lock.comparator().key.clone()).await;
    let writes = [
        backend.write_id_if_locked(free, &key("a"), &lock).await,
        backend.allocate_id_if_locked(free, &key("a"), &lock).await,
        backend.acquire_reference(standing, &key("other"), &lock).await,
    ];
    assert!(writes.iter().all(|written| matches!(written, Err(BackendError::LockLost))), "{writes:?}");
    let left: Vec<String> = content(&etcd).await.into_iter().map(|(key, ..)| key).collect();
    assert_eq!(left, [format!("id/{standing}")]);
    session.close().await;
}

/// Trap 28: the collector's lock of a number differs from the lock for allocating its key, so that
/// neither waits for the other.
#[tokio::test]
async fn trap_28_a_collector_s_lock_does_not_keep_anybody_from_allocating() {
    let etcd = Etcd::start().await;
    let node = Node::start(&etcd, "10.0.0.1", AllocatorOptions { allocation_max: Duration::from_secs(5), ..options() }).await;
    etcd.put(format!("{BASE}/id/70000"), key("a").as_str()).await;
    let collector = super::session(&etcd).await;
    let held = collector.lock_path(format!("{BASE}/locks/id/70000").as_bytes()).await.unwrap();
    assert_eq!(node.allocator.allocate(&key("a")).await.unwrap().id.number(), 70_000);
    held.unlock().await.unwrap();
    collector.close().await;
    node.die().await;
}
