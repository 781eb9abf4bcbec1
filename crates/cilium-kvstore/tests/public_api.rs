//! Tests of the features of Cilium's `pkg/kvstore` and `pkg/allocator`, through the public API and
//! with a real etcd.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod etcd;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cilium_kvstore::allocator::{
    Allocator, AllocatorEventKind, AllocatorKey, AllocatorOptions, CollectionLimits, EtcdBackend, IdRange, StaleIds, Validator,
};
use cilium_kvstore::store::{Observer, SharedStore, SharedStoreOptions};
use cilium_kvstore::{ClientOptions, Endpoint, EtcdConfig, KeyLifetime, Session, SessionOptions, examine, keys, status_check_interval};
use etcd::Etcd;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Time limit for operations that a healthy etcd completes within milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

const IDENTITIES: &str = "cilium/state/identities/v1";

async fn session(etcd: &Etcd, options: SessionOptions) -> Session {
    let session = Session::start(EtcdConfig::new(etcd.url()), options, CancellationToken::new());
    tokio::time::timeout(PATIENCE, session.connected()).await.unwrap().unwrap();
    session
}

fn labels(app: &str) -> AllocatorKey {
    AllocatorKey::from_labels([("k8s:app", app)])
}

fn range(min: u64, max: u64) -> IdRange {
    IdRange::new(min, max).unwrap()
}

#[test]
fn keys_are_named_as_cilium_names_them() {
    let prefixes = [keys::STATE_PREFIX, keys::CACHE_PREFIX, keys::CLUSTER_CONFIG_PREFIX, keys::SYNCED_PREFIX, keys::HEARTBEAT_PATH];
    assert!(prefixes.iter().all(|prefix| prefix.starts_with(keys::BASE_PREFIX)));
    assert_eq!(keys::HEARTBEAT_WRITE_INTERVAL, Duration::from_secs(60));
    assert_eq!(keys::state_to_cache("cilium/state/nodes/v1"), "cilium/cache/nodes/v1");
    assert_eq!(keys::state_to_cache("cilium/synced"), "cilium/synced");
    assert_eq!(keys::scope_of("cilium/state/nodes/v1/paris/worker-1"), "nodes/v1");
    assert_eq!(keys::join(&[b"cilium/state/", b"nodes/v1"]), b"cilium/state/nodes/v1");
}

#[test]
fn the_status_check_interval_grows_with_the_cluster() {
    let seconds = |nodes, all_healthy| status_check_interval(nodes, all_healthy).as_secs();
    assert_eq!([1, 4, 32, 512, 8192].map(|nodes| seconds(nodes, true)), [20, 48, 104, 187, 270]);
    assert_eq!([1, 4, 32, 512, 8192].map(|nodes| seconds(nodes, false)), [3, 8, 17, 31, 45]);
}

#[tokio::test]
async fn each_step_of_an_examination_has_a_result() {
    let etcd = Etcd::start().unwrap();
    let examination = examine(&EtcdConfig::new(etcd.url()), &Endpoint::new(etcd.url()), PATIENCE).await.unwrap();
    assert_eq!(examination.host, "127.0.0.1");
    assert!(examination.connected.unwrap().is_ok() && examination.handshake.is_none());
    assert!(examination.server.unwrap().unwrap().version.starts_with("3."));
}

#[tokio::test]
async fn an_observer_is_called_for_lost_leases_until_it_is_removed() {
    let etcd = Etcd::start().unwrap();
    let session = session(&etcd, SessionOptions::default()).await;
    let (calls, removed_calls) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (sender, mut lost) = mpsc::channel(1);
    session.on_lease_lost(b"a/", {
        let calls = Arc::clone(&removed_calls);
        move |_| {
            calls.fetch_add(1, Ordering::SeqCst);
        }
    });
    session.on_lease_lost(b"b/", {
        let calls = Arc::clone(&calls);
        move |keys| {
            calls.fetch_add(1, Ordering::SeqCst);
            let _ = sender.try_send((keys.len(), keys.contains(b"b/1"), keys.contains(b"a/1")));
        }
    });
    session.remove_lease_observer(b"a/");
    for key in [b"a/1", b"b/1"] {
        session.update(key, b"x", KeyLifetime::Leased).await.unwrap();
    }
    let lease = session.lease_of(b"b/1").unwrap();
    let mut client = etcd_client::Client::connect([etcd.url()], None).await.unwrap();
    client.lease_revoke(lease.0).await.unwrap();
    // the put shows that etcd no longer has the lease; the next put gets another lease
    assert!(session.update(b"b/1", b"y", KeyLifetime::Leased).await.is_err());
    assert_eq!(tokio::time::timeout(PATIENCE, lost.recv()).await.unwrap(), Some((1, true, false)));
    session.update(b"b/1", b"x", KeyLifetime::Leased).await.unwrap();
    assert_ne!(session.lease_of(b"b/1"), Some(lease));
    assert_eq!((calls.load(Ordering::SeqCst), removed_calls.load(Ordering::SeqCst)), (1, 0));
}

#[tokio::test]
async fn the_bootstrap_phase_has_its_own_rate_limit() {
    let etcd = Etcd::start().unwrap();
    let client = ClientOptions { requests_per_second_max: 5, bootstrap_requests_per_second_max: Some(10_000), ..ClientOptions::default() };
    let session = session(&etcd, SessionOptions { client, quorum_check: false, ..SessionOptions::default() }).await;
    let started_at = Instant::now();
    for _ in 0..100 {
        session.get(b"a").await.unwrap();
    }
    // it would take 20 s at 5 per second
    assert!(started_at.elapsed() < Duration::from_secs(15), "{:?}", started_at.elapsed());
    session.end_bootstrap();
    let started_at = Instant::now();
    for _ in 0..10 {
        session.get(b"a").await.unwrap();
    }
    // the burst allows five at once, the other five wait for 5 per second
    assert!(started_at.elapsed() > Duration::from_millis(900), "{:?}", started_at.elapsed());
}

#[tokio::test]
async fn status_checks_can_be_disabled() {
    let etcd = Etcd::start().unwrap();
    let session = session(&etcd, SessionOptions { quorum_check: false, endpoint_check: false, ..SessionOptions::default() }).await;
    session.update(b"a", b"1", KeyLifetime::Permanent).await.unwrap();
    let status = session.status();
    assert!(status.connected && status.endpoints.is_empty() && status.quorum_error.is_none(), "{status}");
}

#[tokio::test]
async fn a_lock_that_is_not_stale_is_not_collected() {
    let etcd = Etcd::start().unwrap();
    let session = session(&etcd, SessionOptions::default()).await;
    let lock = session.lock_path(b"locks/a").await.unwrap();
    assert_eq!(session.run_locks_gc(), 0);
    assert_eq!(lock.path(), b"locks/a");
    session.update_if_locked(b"a", b"1", KeyLifetime::Permanent, &lock).await.unwrap();
    lock.unlock().await.unwrap();
}

/// Records the names and values of a store.
#[derive(Default)]
struct Names(Mutex<BTreeMap<Vec<u8>, Vec<u8>>>, tokio::sync::Notify);

impl Names {
    async fn wait_until_empty(&self) {
        loop {
            let changed = self.1.notified();
            if self.0.lock().unwrap().is_empty() {
                return;
            }
            changed.await;
        }
    }
}

impl Observer for Names {
    fn on_update(&self, name: &[u8], value: &Arc<[u8]>) {
        self.0.lock().unwrap().insert(name.to_vec(), value.to_vec());
        self.1.notify_one();
    }

    fn on_delete(&self, name: &[u8], _: &Arc<[u8]>) {
        self.0.lock().unwrap().remove(name);
        self.1.notify_one();
    }
}

#[tokio::test]
async fn a_deleted_local_key_is_removed_from_every_shared_store() {
    let etcd = Etcd::start().unwrap();
    let [first, second] = [session(&etcd, SessionOptions::default()).await, session(&etcd, SessionOptions::default()).await];
    let names = Arc::new(Names::default());
    let owner = SharedStore::join(&first, SharedStoreOptions::new(b"shared"), Arc::new(Names::default())).await.unwrap();
    owner.update_local_key_sync(b"one", *b"1").await.unwrap();
    let other = SharedStore::join(&second, SharedStoreOptions::new(b"shared"), Arc::clone(&names) as Arc<dyn Observer>).await.unwrap();
    assert_eq!(other.shared_keys().len(), 1);
    owner.delete_local_key(b"one").await.unwrap();
    tokio::time::timeout(PATIENCE, names.wait_until_empty()).await.unwrap();
    assert_eq!(first.get(b"shared/one").await.unwrap(), None);
}

#[tokio::test]
async fn an_allocator_lists_its_numbers_and_masks_new_numbers() {
    let etcd = Etcd::start().unwrap();
    let session = session(&etcd, SessionOptions::default()).await;
    let (sender, mut events) = mpsc::channel(16);
    let options = AllocatorOptions {
        range: range(256, 511),
        prefix_mask: 1 << 16,
        master_key_protection: true,
        sync_interval: None,
        events: Some(sender),
        ..AllocatorOptions::default()
    };
    let allocator = Allocator::start(EtcdBackend::new(session.clone(), IDENTITIES, "10.0.0.1"), options).unwrap();
    allocator.wait_for_initial_sync(PATIENCE).await.unwrap();
    assert_eq!(allocator.get(&labels("cart")).await.unwrap(), None);
    let id = allocator.allocate(&labels("cart")).await.unwrap().id;
    assert!((65_536 + 256..=65_536 + 511).contains(&id.number()), "{id}");
    let event = tokio::time::timeout(PATIENCE, events.recv()).await.unwrap().unwrap();
    assert_eq!((event.kind, event.id, event.key), (AllocatorEventKind::Create, id, labels("cart")));
    assert_eq!(allocator.get(&labels("cart")).await.unwrap(), Some(id));
    assert_eq!(allocator.get_no_cache(&labels("cart")).await.unwrap(), Some(id));
    assert_eq!(allocator.get_by_id(id).await.unwrap(), Some(labels("cart")));
    let mut known = Vec::new();
    allocator.for_each(|id, key| known.push((id, key.clone())));
    assert_eq!(known, [(id, labels("cart"))]);

    // a number in use is written again after it was deleted from etcd
    session.delete(format!("{IDENTITIES}/id/{id}").as_bytes()).await.unwrap();
    let written_again = async {
        let mut watcher = session.list_and_watch(format!("{IDENTITIES}/id/").as_bytes(), 16);
        while let Some(event) = watcher.next().await {
            if !event.value.is_empty() {
                return event.key;
            }
        }
        Vec::new()
    };
    let key = tokio::time::timeout(PATIENCE, written_again).await.unwrap();
    assert_eq!(key, format!("{IDENTITIES}/id/{id}").into_bytes());
    allocator.delete_all_keys().await.unwrap();
    allocator.delete().await;
}

#[tokio::test]
async fn a_remote_cache_has_the_numbers_that_its_validator_accepts() {
    let (own, remote) = (Etcd::start().unwrap(), Etcd::start().unwrap());
    let (here, there) = (session(&own, SessionOptions::default()).await, session(&remote, SessionOptions::default()).await);
    for (id, text) in [(70_000, "k8s:cluster=paris;"), (70_001, "k8s:cluster=rome;"), (300, "k8s:cluster=paris;")] {
        there.update(format!("{IDENTITIES}/id/{id}").as_bytes(), text.as_bytes(), KeyLifetime::Permanent).await.unwrap();
    }
    let allocator = Allocator::start(EtcdBackend::new(here, IDENTITIES, "10.0.0.1"), AllocatorOptions::default()).unwrap();
    let (sender, mut events) = mpsc::channel(16);
    let validator = Validator::remote(range(65_536, 131_071), "k8s:cluster", "paris".into());
    let options = AllocatorOptions { validator: Some(validator), events: Some(sender), ..AllocatorOptions::default() };
    let cache = allocator.watch_remote(options);
    let backend = EtcdBackend::new(there.clone(), IDENTITIES, "10.0.0.1");
    let changes = async {
        assert_eq!(events.recv().await.unwrap().id.number(), 70_000);
        // a number that is written after the list was read is reported after the end of the list
        there.update(format!("{IDENTITIES}/id/70002").as_bytes(), b"k8s:cluster=paris;", KeyLifetime::Permanent).await.unwrap();
        assert_eq!(events.recv().await.unwrap().id.number(), 70_002);
    };
    tokio::select! {
        () = cache.watch(&backend, CancellationToken::new()) => panic!("the watch ended"),
        changes = tokio::time::timeout(PATIENCE, changes) => changes.unwrap(),
    }
    let mut known = Vec::new();
    allocator.for_each(|id, _| known.push(id.number()));
    known.sort_unstable();
    assert_eq!(known, [70_000, 70_002]);
    drop(cache);
    allocator.for_each(|id, _| panic!("{id} belongs to a cache that was dropped"));
}

#[tokio::test]
async fn only_unused_numbers_are_collected_in_the_second_round() {
    let etcd = Etcd::start().unwrap();
    let session = session(&etcd, SessionOptions::default()).await;
    let node = Allocator::start(EtcdBackend::new(session.clone(), IDENTITIES, "10.0.0.1"), AllocatorOptions::default()).unwrap();
    node.allocate(&labels("used")).await.unwrap();
    let unused = node.allocate(&labels("unused")).await.unwrap().id;
    assert!(node.release(&labels("unused")).await.unwrap().last_use);
    let operator = Allocator::for_collection(EtcdBackend::new(session, IDENTITIES, "operator"), AllocatorOptions::default()).unwrap();
    let limits = CollectionLimits { range: IdRange::ALL, deletes_per_minute: 100_u32.try_into().unwrap() };
    let first = operator.run_gc(&StaleIds::new(), &limits).await.unwrap();
    let second = operator.run_gc(&first.stale, &limits).await.unwrap();
    assert_eq!((first.alive, first.deleted.len()), (2, 0));
    assert_eq!((second.alive, second.deleted), (1, vec![unused]));
}
