//! Store that several processes join. Each process owns some keys, keeps them in etcd, and sees the
//! keys of all processes (Cilium's `SharedStore`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Observer, Validate, name_below};
use crate::error::printable;
use crate::keys::join;
use crate::{EventKind, KeyLifetime, KeyValueEvent, KvstoreError, Session};

/// Capacity of the queue of events (Cilium's `watcherChanSize`).
const EVENTS_MAX: usize = 100;

/// Options of a [`SharedStore`].
#[derive(Clone)]
pub struct SharedStoreOptions {
    /// Prefix of all keys, which identifies the store.
    pub prefix: Vec<u8>,
    /// Interval at which own keys are compared with etcd. Default 1 min, as in early releases of
    /// Cilium (30 min in later ones).
    pub sync_interval: Duration,
    /// Maximum time of the first list: 3 min in Cilium.
    pub list_max: Duration,
    /// Check of the values of other processes.
    pub validate: Option<Validate>,
}

impl SharedStoreOptions {
    /// Returns the default options for a prefix.
    #[must_use]
    pub fn new(prefix: &[u8]) -> Self {
        Self { prefix: prefix.to_vec(), sync_interval: Duration::from_secs(60), list_max: Duration::from_secs(180), validate: None }
    }
}

/// Membership in a shared store. Dropping it leaves own keys to expire with their leases, as
/// [`SharedStore::release`] does; [`SharedStore::close`] deletes them.
pub struct SharedStore {
    inner: Arc<SharedStoreState>,
    stop: CancellationToken,
}

struct SharedStoreState {
    session: Session,
    options: SharedStoreOptions,
    observer: Arc<dyn Observer>,
    keys: Mutex<SharedKeys>,
    listed: watch::Sender<bool>,
}

#[derive(Default)]
struct SharedKeys {
    /// Own keys, with the values that they should have.
    local: BTreeMap<Vec<u8>, Arc<[u8]>>,
    /// Keys of all processes, as etcd reports them.
    shared: BTreeMap<Vec<u8>, Arc<[u8]>>,
}

impl SharedStore {
    /// Joins a store, and waits until all its keys have been reported.
    ///
    /// # Errors
    /// `Timeout` if the first list takes longer than `list_max`; `Closed` if the session ends
    /// first.
    pub async fn join(session: &Session, options: SharedStoreOptions, observer: Arc<dyn Observer>) -> Result<Self, KvstoreError> {
        let (limit, operation) = (options.list_max, format!("listing {}", printable(&options.prefix)));
        let inner =
            SharedStoreState { session: session.clone(), options, observer, keys: Mutex::default(), listed: watch::Sender::new(false) };
        let (inner, stop) = (Arc::new(inner), CancellationToken::new());
        let store = Self { inner: Arc::clone(&inner), stop: stop.clone() };
        let following = Arc::clone(&inner);
        session.spawn(stop.clone(), async move { following.follow().await });
        let keeping = Arc::clone(&inner);
        session.spawn(stop, async move { keeping.sync_periodically().await });
        let mut listed = inner.listed.subscribe();
        let waiting = async {
            tokio::select! {
                _ = listed.wait_for(|listed| *listed) => Ok(()),
                () = session.closed() => Err(KvstoreError::Closed { operation: operation.clone() }),
            }
        };
        timeout(limit, waiting).await.unwrap_or_else(|_| Err(KvstoreError::Timeout { operation: operation.clone(), limit }))?;
        Ok(store)
    }

    /// Makes a key an own key. It is written at the next comparison of own keys.
    pub fn update_local_key(&self, name: &[u8], value: impl Into<Arc<[u8]>>) {
        self.inner.keys().local.insert(name.to_vec(), value.into());
    }

    /// Writes a key, and makes it an own key if that succeeds.
    ///
    /// # Errors
    /// [`KvstoreError`]; the key then keeps its previous value, or is not an own key if it was not
    /// before.
    pub async fn update_local_key_sync(&self, name: &[u8], value: impl Into<Arc<[u8]>>) -> Result<(), KvstoreError> {
        let value = value.into();
        let previous = self.inner.keys().local.insert(name.to_vec(), Arc::clone(&value));
        self.inner.sync_key(name, &value).await.map(drop).inspect_err(|_| {
            let mut keys = self.inner.keys();
            match previous {
                Some(previous) => keys.local.insert(name.to_vec(), previous),
                None => keys.local.remove(name),
            };
        })
    }

    /// Gives up a key and deletes it.
    ///
    /// # Errors
    /// [`KvstoreError`]; the key then expires with its lease.
    pub async fn delete_local_key(&self, name: &[u8]) -> Result<(), KvstoreError> {
        self.inner.keys().local.remove(name);
        self.inner.session.delete(&self.inner.key(name)).await.map(drop)
    }

    /// Returns the keys of all processes, by their names below the prefix.
    #[must_use]
    pub fn shared_keys(&self) -> BTreeMap<Vec<u8>, Arc<[u8]>> {
        self.inner.keys().shared.clone()
    }

    /// Leaves the store. Own keys stay until their leases expire.
    pub fn release(self) {
        self.stop.cancel();
    }

    /// Leaves the store and deletes own keys.
    ///
    /// # Errors
    /// [`KvstoreError`] of the first key that could not be deleted. The other keys are deleted.
    pub async fn close(self) -> Result<(), KvstoreError> {
        self.stop.cancel();
        let local = std::mem::take(&mut self.inner.keys().local);
        let mut result = Ok(());
        for (name, value) in local {
            let deleted = self.inner.session.delete(&self.inner.key(&name)).await;
            self.inner.observer.on_delete(&name, &value);
            result = result.and(deleted.map(drop));
        }
        result
    }
}

impl Drop for SharedStore {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl SharedStoreState {
    async fn follow(&self) {
        let prefix = [&*self.options.prefix, b"/"].concat();
        let mut watcher = self.session.list_and_watch(&prefix, EVENTS_MAX);
        while let Some(event) = watcher.next().await {
            let name = name_below(&prefix, &event.key).to_vec();
            self.apply(event, name).await;
        }
    }

    async fn apply(&self, event: KeyValueEvent, name: Vec<u8>) {
        match event.kind {
            EventKind::ListDone => {
                self.listed.send_replace(true);
            }
            EventKind::Relisting | EventKind::Relisted => {}
            EventKind::Create | EventKind::Modify => {
                if let Some(reason) = self.options.validate.as_ref().and_then(|validate| validate(&name, &event.value).err()) {
                    tracing::warn!(key = printable(&event.key), reason, "a shared key cannot be used");
                    return;
                }
                self.keys().shared.insert(name.clone(), Arc::clone(&event.value));
                self.observer.on_update(&name, &event.value);
            }
            EventKind::Delete => {
                let local = self.keys().local.get(&name).cloned();
                if let Some(value) = local {
                    tracing::warn!(key = printable(&event.key), "another client deleted an own key: writing it again");
                    if let Err(error) = self.sync_key(&name, &value).await {
                        tracing::warn!(key = printable(&event.key), %error, "cannot write the key: the next comparison of own keys writes it");
                    }
                    return;
                }
                let removed = self.keys().shared.remove(&name);
                if let Some(value) = removed {
                    self.observer.on_delete(&name, &value);
                }
            }
        }
    }

    /// Compares own keys with etcd at the interval, and writes the keys that differ.
    async fn sync_periodically(&self) {
        loop {
            tokio::time::sleep(self.options.sync_interval).await;
            let local = self.keys().local.clone();
            for (name, value) in local {
                // the key may have been deleted or changed since the copy was made
                if self.keys().local.get(&name) != Some(&value) {
                    continue;
                }
                if let Err(error) = self.sync_key(&name, &value).await {
                    tracing::warn!(name = printable(&name), %error, hint = error.hint(), "cannot compare an own key");
                    break;
                }
            }
        }
    }

    async fn sync_key(&self, name: &[u8], value: &[u8]) -> Result<bool, KvstoreError> {
        self.session.update_if_different(&self.key(name), value, KeyLifetime::Leased).await
    }

    fn key(&self, name: &[u8]) -> Vec<u8> {
        join(&[&self.options.prefix, name])
    }

    fn keys(&self) -> MutexGuard<'_, SharedKeys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
