//! Store that writes keys and values below a prefix, and a canary once all of them are written
//! (Cilium's `syncstore.go`).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{DesiredState, QueueCounts, SyncQueue};
use crate::keys::{SYNCED_PREFIX, join};
use crate::{KeyLifetime, Session};

/// Group of the keys that the canary waits for, and of the first write of the canary.
const INITIAL: u32 = 0;
/// Group of all later keys, and of a canary that is written again after its lease was lost.
const LATER: u32 = 1;

/// Options of a [`SyncStore`].
#[derive(Debug, Clone)]
pub struct SyncStoreOptions {
    /// Prefix of all keys, without the trailing `/`.
    pub prefix: Vec<u8>,
    /// Cluster that the canary belongs to.
    pub cluster: String,
    /// Prefix that the canary names, if it differs from `prefix`.
    pub synced_key: Option<Vec<u8>>,
    /// Lifetime of the keys. Cilium's are leased.
    pub lifetime: KeyLifetime,
    /// Number of concurrent writes. Cilium: 1.
    pub workers: usize,
}

/// Store that is written in the background until it is dropped or its session is closed. Its keys
/// then stay until their leases expire.
pub struct SyncStore {
    options: SyncStoreOptions,
    values: Arc<Values>,
    queue: SyncQueue<Values>,
    canary_requested: AtomicBool,
    synced: watch::Receiver<bool>,
    canary: CanaryWriter,
    _stop: DropGuard,
}

/// State for writing the canary.
struct CanaryWriter {
    session: Session,
    stop: CancellationToken,
    synced: watch::Sender<bool>,
}

#[derive(Default)]
struct Values {
    by_key: Mutex<BTreeMap<Vec<u8>, Arc<[u8]>>>,
}

impl DesiredState for Values {
    type Key = Vec<u8>;

    fn etcd_key(&self, key: &Vec<u8>) -> Vec<u8> {
        key.clone()
    }

    fn value(&self, key: &Vec<u8>) -> Option<Arc<[u8]>> {
        self.by_key().get(key).cloned()
    }

    fn keys_after(&self, last: Option<&Vec<u8>>, count: usize) -> Vec<Vec<u8>> {
        let begin = last.map_or(Bound::Unbounded, Bound::Excluded);
        let by_key = self.by_key();
        let keys = by_key.range::<Vec<u8>, _>((begin, Bound::Unbounded)).map(|(key, _)| key);
        keys.filter(|key| !key.starts_with(SYNCED_PREFIX.as_bytes())).take(count).cloned().collect()
    }
}

impl Values {
    fn by_key(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Arc<[u8]>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SyncStore {
    /// Starts to write.
    #[must_use]
    pub fn start(session: &Session, options: SyncStoreOptions) -> Self {
        let values = Arc::new(Values::default());
        let queue = SyncQueue::new(session.clone(), Arc::clone(&values), options.lifetime, options.workers);
        let canary = canary_key(&options);
        let stop = CancellationToken::new();
        queue.on_lease_lost(&options.prefix, SyncQueue::add_lost_keys);
        // a canary states that all keys exist, so it waits until the keys that were lost with it
        // are written
        let (canary_key, stopped) = (canary.clone(), stop.clone());
        queue.on_lease_lost(&canary, move |queue, _| {
            let (after, canary_key) = (queue.clone(), canary_key.clone());
            queue.session().spawn(stopped.clone(), async move {
                after.wait_until_written(SyncQueue::<Values>::LOST).await;
                after.add_now(canary_key, LATER);
            });
        });
        let running = queue.clone();
        session.spawn(stop.clone(), async move { running.run().await });
        let (sender, synced) = watch::channel(false);
        let canary = CanaryWriter { session: session.clone(), stop: stop.clone(), synced: sender };
        Self { options, values, queue, canary_requested: AtomicBool::new(false), synced, canary, _stop: stop.drop_guard() }
    }

    /// Sets the desired value of a key below the prefix. Setting an equal value has no effect.
    pub fn upsert(&self, name: &[u8], value: impl Into<Arc<[u8]>>) {
        let (key, value) = (self.key(name), value.into());
        let mut values = self.values.by_key();
        if values.insert(key.clone(), Arc::clone(&value)).is_some_and(|old| old == value) {
            return;
        }
        drop(values);
        let group = if self.canary_requested.load(Ordering::SeqCst) { LATER } else { INITIAL };
        self.queue.add_now(key, group);
    }

    /// Removes a key below the prefix. Has no effect on an unknown key.
    pub fn delete(&self, name: &[u8]) {
        let key = self.key(name);
        if self.values.by_key().remove(&key).is_some() {
            self.queue.add_now(key, LATER);
        }
    }

    /// Declares the initial set complete. The canary is written once all keys of the set are
    /// written. Only the first call has an effect.
    pub fn synced(&self, value: impl Into<Arc<[u8]>>) {
        if self.canary_requested.swap(true, Ordering::SeqCst) {
            return;
        }
        let (values, queue, key, value) = (Arc::clone(&self.values), self.queue.clone(), canary_key(&self.options), value.into());
        let is_synced = self.canary.synced.clone();
        self.canary.session.spawn(self.canary.stop.clone(), async move {
            queue.wait_until_written(INITIAL).await;
            values.by_key().insert(key.clone(), value);
            queue.add_now(key, INITIAL);
            queue.wait_until_written(INITIAL).await;
            is_synced.send_replace(true);
        });
    }

    /// Waits until the canary is written.
    pub async fn wait_until_synced(&self) {
        let mut synced = self.synced.clone();
        // cannot fail: the sender lives as long as this store
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Returns the counts of the queue.
    #[must_use]
    pub fn counts(&self) -> QueueCounts {
        self.queue.counts()
    }

    fn key(&self, name: &[u8]) -> Vec<u8> {
        join(&[&self.options.prefix, name])
    }
}

fn canary_key(options: &SyncStoreOptions) -> Vec<u8> {
    let synced_prefix = options.synced_key.as_ref().unwrap_or(&options.prefix);
    join(&[SYNCED_PREFIX.as_bytes(), options.cluster.as_bytes(), synced_prefix])
}
