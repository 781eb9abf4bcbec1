//! Tests of locks: one holder at a time across tasks and sessions, despite failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cilium_kvstore::{KeyLifetime, KvstoreError, Session, SessionOptions};
use tokio::task::JoinSet;

use super::{session, session_options, session_with};
use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::{PATIENCE, eventually};

/// Repeatedly locks a path, checks that no other task holds the lock, and increments a counter in
/// etcd.
async fn count_up(session: Session, holders: Arc<AtomicU32>, times: u32) {
    for _ in 0..times {
        let lock = session.lock_path(b"locks/counter").await.unwrap();
        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two tasks hold the lock");
        let value = session.get_if_locked(b"counter", &lock).await.unwrap().map_or(0, |found| found.value[0]);
        session.update_if_locked(b"counter", &[value + 1], KeyLifetime::Permanent, &lock).await.unwrap();
        holders.fetch_sub(1, Ordering::SeqCst);
        lock.unlock().await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_has_one_holder_across_tasks_and_sessions() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let holders = Arc::new(AtomicU32::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            let session = session(&etcd).await;
            for _ in 0..4 {
                tasks.spawn(count_up(session.clone(), Arc::clone(&holders), 5));
            }
        }
        tasks.join_all().await;
        let value = etcd.client().await.get("counter", None).await.unwrap().kvs()[0].value().to_vec();
        assert_eq!(value, [60]);
        let left = etcd.client().await.get("locks/", Some(etcd_client::GetOptions::new().with_prefix())).await.unwrap();
        assert_eq!(left.count(), 0);
    }
}

#[tokio::test]
async fn the_next_waiter_gets_the_lock_of_a_dead_holder() {
    let etcd = Etcd::start().await;
    let options = SessionOptions { lock_ttl: Duration::from_secs(2), ..session_options() };
    let first = session_with(&etcd, options.clone()).await;
    let second = session_with(&etcd, options).await;
    let held = first.lock_path(b"locks/a").await.unwrap();
    // as after a killed process, the lease is not renewed and nothing is deleted
    first.close().await;
    let next = tokio::time::timeout(PATIENCE, second.lock_path(b"locks/a")).await.unwrap().unwrap();
    assert_ne!(held.comparator(), next.comparator());
    second.update_if_locked(b"cilium/a", b"1", KeyLifetime::Permanent, &next).await.unwrap();
}

#[tokio::test]
async fn a_waiter_whose_lease_ends_does_not_get_the_lock() {
    let etcd = Etcd::start().await;
    let (one, other) = (session(&etcd).await, session(&etcd).await);
    let held = one.lock_path(b"locks/a").await.unwrap();
    let holder = held.comparator().key.clone();
    let revoke_lease = async {
        let lease = eventually("the key of the waiting session", || async {
            let below = etcd_client::GetOptions::new().with_prefix();
            let found = etcd.client().await.get("locks/a/", Some(below)).await.unwrap();
            found.kvs().iter().find(|key_value| key_value.key() != holder).map(etcd_client::KeyValue::lease)
        })
        .await;
        etcd.client().await.lease_revoke(lease).await.unwrap();
        held.unlock().await.unwrap();
    };
    let (waited, ()) = tokio::join!(other.lock_path(b"locks/a"), revoke_lease);
    let error = waited.map(drop).unwrap_err();
    assert!(matches!(error, KvstoreError::LockLost { .. }), "{error}");
}

#[tokio::test]
async fn a_lock_key_is_the_path_and_the_lease() {
    let etcd = Etcd::start().await;
    let session = session(&etcd).await;
    let lock = session.lock_path(b"cilium/state/identities/v1/locks/k8s:a=b;").await.unwrap();
    let found = etcd.client().await.get(lock.comparator().key.clone(), None).await.unwrap();
    let key = found.kvs()[0].key_str().unwrap();
    assert_eq!(key, format!("cilium/state/identities/v1/locks/k8s:a=b;/{:x}", found.kvs()[0].lease()));
    assert_eq!(found.kvs()[0].create_revision(), lock.comparator().create_revision.0);
    assert!(found.kvs()[0].value().is_empty());
    let ttl = etcd.client().await.lease_time_to_live(found.kvs()[0].lease(), None).await.unwrap();
    assert_eq!(ttl.granted_ttl(), 25);
    lock.unlock().await.unwrap();
}

#[tokio::test]
async fn keys_of_cancelled_waits_and_dropped_locks_are_deleted() {
    let etcd = Etcd::start().await;
    let (one, other) = (session(&etcd).await, session(&etcd).await);
    let held = one.lock_path(b"locks/a").await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(300), other.lock_path(b"locks/a")).await;
    assert!(waiting.is_err());
    let count = async || {
        let options = etcd_client::GetOptions::new().with_prefix().with_count_only();
        etcd.client().await.get("locks/", Some(options)).await.unwrap().count()
    };
    eventually("the waiter's key is deleted", async || (count().await == 1).then_some(())).await;
    drop(held);
    eventually("the dropped lock's key is deleted", async || (count().await == 0).then_some(())).await;
    other.lock_path(b"locks/a").await.unwrap().unlock().await.unwrap();
    one.lock_path(b"locks/a").await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_user_without_permission_can_lock_after_it_is_granted() {
    let mut etcd = Etcd::start().await;
    etcd.enable_auth("meshkeep", "secret").await;
    etcd.restrict_to_remote("paris").await;
    let session = session(&etcd).await;
    for _ in 0..3 {
        let outcome = tokio::time::timeout(PATIENCE / 3, session.lock_path_without_limit(b"cilium/a")).await;
        let error = outcome.expect("locking a free path must fail without waiting").err().unwrap();
        assert!(matches!(error, KvstoreError::PermissionDenied { .. }), "{error}");
    }
    let permission = etcd_client::Permission::read_write("cilium/").with_prefix();
    etcd.client().await.role_grant_permission("mesh", permission).await.unwrap();
    session.lock_path_without_limit(b"cilium/a").await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_lock_is_lost_when_its_lease_is_lost() {
    let etcd = Etcd::start().await;
    let session = session(&etcd).await;
    let lock = session.lock_path_without_limit(b"cilium/kvstoremesh-lock").await.unwrap();
    let lease = etcd.client().await.get(lock.comparator().key.clone(), None).await.unwrap().kvs()[0].lease();
    etcd.client().await.lease_revoke(lease).await.unwrap();
    let error = session.update_if_locked(b"cilium/a", b"1", KeyLifetime::Permanent, &lock).await.unwrap_err();
    assert!(matches!(error, KvstoreError::LockLost { .. }), "{error}");
    // the next renewal detects it, after a third of 25 s
    tokio::time::timeout(PATIENCE, lock.lost()).await.unwrap();
    // the path can then be locked again
    drop(lock);
    session.lock_path(b"cilium/kvstoremesh-lock").await.unwrap().unlock().await.unwrap();
}

/// Dropping a lock must not release the next one. Both have the same key, because a session's locks
/// share one lease: the key must be deleted before the next lock creates it.
#[tokio::test]
async fn dropping_a_lock_does_not_release_the_next_lock() {
    let etcd = Etcd::start().await;
    let session = session(&etcd).await;
    for round in 0..40_u8 {
        drop(session.lock_path(b"locks/a").await.unwrap());
        let next = session.lock_path(b"locks/a").await.unwrap();
        // keys of dropped locks are deleted in order: once this path can be locked again, the first
        // key's deletion is complete
        drop(session.lock_path(b"locks/b").await.unwrap());
        session.lock_path(b"locks/b").await.unwrap().unlock().await.unwrap();
        session.update_if_locked(b"cilium/a", &[round], KeyLifetime::Permanent, &next).await.expect("the lock must still be held");
        next.unlock().await.unwrap();
    }
}
