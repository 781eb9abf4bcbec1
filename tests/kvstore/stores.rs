//! Stores with real etcd servers: writing, following and sharing during all kinds of failures.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cilium_kvstore::store::{Observer, SharedStore, SharedStoreOptions, SyncStore, SyncStoreOptions, WatchStore};
use cilium_kvstore::{KeyLifetime, KeyValue, Session};

use super::session;
use crate::harness::etcd::Etcd;
use crate::harness::{PATIENCE, eventually};

/// Returns everything below a prefix, as `name=value`.
async fn below(session: &Session, prefix: &str) -> Vec<String> {
    let found = session.list_prefix(prefix.as_bytes()).await.unwrap();
    let text =
        |found: &KeyValue| format!("{}={}", String::from_utf8_lossy(&found.key[prefix.len()..]), String::from_utf8_lossy(&found.value));
    found.iter().map(text).collect()
}

fn sync_store(session: &Session) -> SyncStore {
    let options = SyncStoreOptions {
        prefix: b"cilium/state/nodes/v1".to_vec(),
        cluster: "paris".into(),
        synced_key: None,
        lifetime: KeyLifetime::Leased,
        workers: 4,
    };
    SyncStore::start(session, options)
}

const NODES: &str = "cilium/state/nodes/v1/";
const CANARY: &[u8] = b"cilium/synced/paris/cilium/state/nodes/v1";

#[tokio::test]
async fn a_sync_store_writes_keys_then_its_canary_and_restores_them() {
    let etcd = Etcd::start().await;
    let session = session(&etcd).await;
    let store = sync_store(&session);
    for i in 0..50 {
        store.upsert(format!("n{i:02}").as_bytes(), "x".as_bytes().to_vec());
        store.upsert(format!("n{i:02}").as_bytes(), format!("{i}").into_bytes());
    }
    store.delete(b"n49");
    store.delete(b"never-there");
    store.synced("2026-01-12T09:31:07Z".as_bytes().to_vec());
    tokio::time::timeout(PATIENCE, store.wait_until_synced()).await.unwrap();
    let canary = session.get(CANARY).await.unwrap().unwrap();
    let keys = session.list_prefix(NODES.as_bytes()).await.unwrap();
    assert_eq!(keys.len(), 49);
    assert!(keys.iter().all(|found| found.create_revision < canary.create_revision && found.lease.0 != 0), "{keys:?}");
    assert_eq!(below(&session, NODES).await[7], "n07=7");
    let before = etcd.put("elsewhere", "1").await;
    store.upsert(b"n07", "7".as_bytes().to_vec());
    store.upsert(b"late", "1".as_bytes().to_vec());
    eventually("a later key", async || session.get(b"cilium/state/nodes/v1/late").await.unwrap()).await;
    assert_eq!(etcd.put("elsewhere", "2").await, before + 2, "an unchanged value is not written again");
    // all keys are on one lease
    etcd.client().await.lease_revoke(canary.lease.0).await.unwrap();
    store.upsert(b"late", "2".as_bytes().to_vec());
    eventually("all keys exist again", async || {
        let all = session.list_prefix(b"cilium/s").await.unwrap();
        (all.len() == 51).then_some(())
    })
    .await;
}

/// A session outlives its stores. It must not call a dropped store for lost leases.
#[tokio::test]
async fn a_session_keeps_nothing_of_a_dropped_store() {
    let etcd = Etcd::start().await;
    let session = session(&etcd).await;
    let store = sync_store(&session);
    let value: Arc<[u8]> = b"1".as_slice().into();
    store.upsert(b"a", Arc::clone(&value));
    store.synced("now".as_bytes().to_vec());
    tokio::time::timeout(PATIENCE, store.wait_until_synced()).await.unwrap();
    drop(store);
    eventually("the value is dropped", async || (Arc::strong_count(&value) == 1).then_some(())).await;
    // the session must not search for a dropped store's keys either
    let lease = session.get(CANARY).await.unwrap().unwrap().lease;
    etcd.client().await.lease_revoke(lease.0).await.unwrap();
    let next = sync_store(&session);
    next.upsert(b"b", b"2".as_slice());
    eventually("the next store writes", async || session.get(b"cilium/state/nodes/v1/b").await.unwrap()).await;
}

#[tokio::test]
async fn a_sync_store_retries_until_it_has_permission() {
    let mut etcd = Etcd::start().await;
    etcd.enable_auth("meshkeep", "secret").await;
    etcd.restrict_to_remote("paris").await;
    let session = session(&etcd).await;
    let store = sync_store(&session);
    store.upsert(b"a", "1".as_bytes().to_vec());
    store.synced("now".as_bytes().to_vec());
    eventually("several writes failed", async || (store.counts().failed > 3).then_some(())).await;
    let permission = etcd_client::Permission::read_write("cilium/").with_prefix();
    etcd.client().await.role_grant_permission("mesh", permission).await.unwrap();
    tokio::time::timeout(PATIENCE, store.wait_until_synced()).await.unwrap();
    assert_eq!(below(&session, NODES).await, ["a=1"]);
}

/// Observer that records the current entries and the deletes.
#[derive(Default)]
struct ObserverState {
    entries: Mutex<BTreeMap<String, String>>,
    deletes: Mutex<Vec<String>>,
}

impl ObserverState {
    fn text(&self) -> String {
        self.entries.lock().unwrap().iter().map(|(name, value)| format!("{name}={value} ")).collect()
    }

    async fn wait_for(&self, expected: &str) {
        eventually(expected, async || (self.text() == expected).then_some(())).await;
    }
}

impl Observer for ObserverState {
    fn on_update(&self, name: &[u8], value: &Arc<[u8]>) {
        let (name, value) = (String::from_utf8_lossy(name).into_owned(), String::from_utf8_lossy(value).into_owned());
        self.entries.lock().unwrap().insert(name, value);
    }

    fn on_delete(&self, name: &[u8], _: &Arc<[u8]>) {
        let name = String::from_utf8_lossy(name).into_owned();
        self.entries.lock().unwrap().remove(&name);
        self.deletes.lock().unwrap().push(name);
    }
}

#[tokio::test]
async fn a_watch_store_keeps_entries_until_the_next_list_is_complete() {
    let etcd = Etcd::start().await;
    let observer = Arc::new(ObserverState::default());
    let refuse_bad = |_: &[u8], value: &[u8]| if value == b"bad" { Err("it is bad".to_owned()) } else { Ok(()) };
    let store = Arc::new(WatchStore::new(Arc::clone(&observer) as Arc<dyn Observer>, Some(Arc::new(refuse_bad))));
    etcd.put_many([("n/a", "1"), ("n/b", "1"), ("nx", "1")]).await;
    for round in 0..2 {
        let session = session(&etcd).await;
        let (watching, watch_session) = (Arc::clone(&store), session.clone());
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move { watching.watch(&watch_session, b"n").await });
        tokio::time::timeout(PATIENCE, store.wait_until_synced()).await.unwrap();
        if round == 0 {
            assert_eq!(observer.text(), "a=1 b=1 ");
            etcd.put_many([("n/a", "bad"), ("n/b", "2")]).await;
            observer.wait_for("a=1 b=2 ").await;
        } else {
            // the invalid value is stale after the new list, and keys that were deleted meanwhile
            // are removed
            observer.wait_for("c=1 ").await;
        }
        session.close().await;
        task.join_all().await;
        assert!(!store.is_synced());
        assert_eq!(store.len(), 2 - round);
        if round == 0 {
            etcd.delete("n/b").await;
            etcd.put("n/c", "1").await;
            assert_eq!(observer.text(), "a=1 b=2 ", "without a watch, the store keeps its entries");
        }
    }
    store.drain().await;
    assert_eq!(observer.text(), "");
    assert_eq!(*observer.deletes.lock().unwrap(), ["a", "b", "c"]);
}

#[tokio::test]
async fn shared_stores_see_all_keys_and_restore_their_own_keys() {
    let etcd = Etcd::start().await;
    let (first, second) = (session(&etcd).await, session(&etcd).await);
    let (first_observer, second_observer) = (Arc::new(ObserverState::default()), Arc::new(ObserverState::default()));
    let options = SharedStoreOptions { sync_interval: Duration::from_millis(300), ..SharedStoreOptions::new(b"cilium/state/nodes/v1") };
    let one = SharedStore::join(&first, options.clone(), Arc::clone(&first_observer) as Arc<dyn Observer>).await.unwrap();
    one.update_local_key_sync(b"paris/a", "1".as_bytes().to_vec()).await.unwrap();
    let other = SharedStore::join(&second, options, Arc::clone(&second_observer) as Arc<dyn Observer>).await.unwrap();
    other.update_local_key(b"paris/b", "1".as_bytes().to_vec());
    for observer in [&first_observer, &second_observer] {
        observer.wait_for("paris/a=1 paris/b=1 ").await;
    }
    // a key that another client deletes is restored at once; a key that another client changes, and
    // that then has no lease, is restored by the comparison
    etcd.delete("cilium/state/nodes/v1/paris/a").await;
    let key = b"cilium/state/nodes/v1/paris/a";
    let restored_key = async || second.get(key).await.unwrap().filter(|found| *found.value == *b"1" && found.lease.0 != 0);
    eventually("the deleted key is restored", restored_key).await;
    etcd.put("cilium/state/nodes/v1/paris/a", "stolen").await;
    eventually("the changed key is restored", restored_key).await;
    assert_eq!(one.shared_keys().len(), 2);
    one.release();
    assert_eq!(below(&second, NODES).await, ["paris/a=1", "paris/b=1"], "released keys stay until their lease expires");
    other.close().await.unwrap();
    assert_eq!(below(&second, NODES).await, ["paris/a=1"]);
}

#[tokio::test]
async fn adopted_leases_are_renewed_and_lost_leases_are_reported() {
    let etcd = Etcd::start().await;
    let (first, second) = (session(&etcd).await, session(&etcd).await);
    first.update(b"cilium/a", b"1", KeyLifetime::Leased).await.unwrap();
    let lease = first.lease_of(b"cilium/a").unwrap();
    first.close().await;
    let lost = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&lost);
    second.on_lease_lost(b"cilium/", move |keys| *counter.lock().unwrap() += usize::from(keys.contains(b"cilium/a")));
    second.adopt(b"cilium/a", lease);
    assert!(!second.update_if_different(b"cilium/a", b"1", KeyLifetime::Leased).await.unwrap(), "the key is attached to a renewed lease");
    let dead = cilium_kvstore::LeaseId(0x1234);
    second.adopt(b"cilium/a", dead);
    eventually("a lease that etcd does not have is reported as lost", async || (*lost.lock().unwrap() == 1).then_some(())).await;
    assert_eq!(second.lease_of(b"cilium/a"), None);
}
