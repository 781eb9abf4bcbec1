//! A store that is written: keys and values below a prefix, and a canary once all of them were (Cilium's `syncstore.go`).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{QueueCounts, SyncQueue, Wanted};
use crate::keys::{SYNCED_PREFIX, join};
use crate::{Life, Session};

/// The group of the keys that the canary waits for.
const INITIAL: u32 = 0;
/// The group of everything later, and of the canary.
const LATER: u32 = 1;

/// What a [`SyncStore`] writes, and how.
#[derive(Debug, Clone)]
pub struct SyncStoreOptions {
    /// What all keys begin with, without the `/` behind it.
    pub prefix: Vec<u8>,
    /// The cluster whose canary it is.
    pub cluster: String,
    /// What the canary names, where that is not the prefix.
    pub synced_key: Option<Vec<u8>>,
    /// Whether the keys hang on the session's leases, as Cilium's do.
    pub life: Life,
    /// How many keys are written at one time. Cilium: 1.
    pub workers: usize,
}

/// A store that is written in the background, until it is dropped or its session closed. What it wrote stays for as long as its leases.
pub struct SyncStore {
    options: SyncStoreOptions,
    values: Arc<Values>,
    queue: SyncQueue,
    asked_for_canary: AtomicBool,
    synced: watch::Receiver<bool>,
    canary: CanaryWriter,
    _stop: DropGuard,
}

/// What the writer of the canary needs.
struct CanaryWriter {
    session: Session,
    stop: CancellationToken,
    synced: watch::Sender<bool>,
}

#[derive(Default)]
struct Values {
    by_key: Mutex<BTreeMap<Vec<u8>, Arc<[u8]>>>,
}

impl Wanted for Values {
    fn value(&self, key: &[u8]) -> Option<Arc<[u8]>> {
        self.by_key().get(key).cloned()
    }

    fn keys_behind(&self, last: Option<&[u8]>, count: usize) -> Vec<Vec<u8>> {
        let begin = last.map_or(Bound::Unbounded, Bound::Excluded);
        let by_key = self.by_key();
        let keys = by_key.range::<[u8], _>((begin, Bound::Unbounded)).map(|(key, _)| key);
        keys.filter(|key| !key.starts_with(SYNCED_PREFIX.as_bytes())).take(count).cloned().collect()
    }
}

impl Values {
    fn by_key(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Arc<[u8]>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SyncStore {
    /// Begins to write.
    #[must_use]
    pub fn start(session: &Session, options: SyncStoreOptions) -> Self {
        let values = Arc::new(Values::default());
        let queue = SyncQueue::new(session.clone(), Arc::clone(&values) as Arc<dyn Wanted>, options.life, options.workers);
        let canary = canary_key(&options);
        let stop = CancellationToken::new();
        queue.on_lease_lost(&options.prefix, SyncQueue::add_lost);
        // a canary says that all is there, so it waits for what was lost with it
        let (told, ended) = (canary.clone(), stop.clone());
        queue.on_lease_lost(&canary, move |queue, _| {
            let (after, told) = (queue.clone(), told.clone());
            queue.session().spawn(ended.clone(), async move {
                after.settled(SyncQueue::LOST).await;
                after.add_now(&told, LATER);
            });
        });
        let running = queue.clone();
        session.spawn(stop.clone(), async move { running.run().await });
        let (sender, synced) = watch::channel(false);
        let canary = CanaryWriter { session: session.clone(), stop: stop.clone(), synced: sender };
        Self { options, values, queue, asked_for_canary: AtomicBool::new(false), synced, canary, _stop: stop.drop_guard() }
    }

    /// A key below the prefix is to have this value. The same value again is no news.
    pub fn upsert(&self, name: &[u8], value: impl Into<Arc<[u8]>>) {
        let (key, value) = (self.key(name), value.into());
        let mut values = self.values.by_key();
        if values.insert(key.clone(), Arc::clone(&value)).is_some_and(|old| old == value) {
            return;
        }
        drop(values);
        let group = if self.asked_for_canary.load(Ordering::SeqCst) { LATER } else { INITIAL };
        self.queue.add_now(&key, group);
    }

    /// A key below the prefix is not to be there; one that never was is no news.
    pub fn delete(&self, name: &[u8]) {
        let key = self.key(name);
        if self.values.by_key().remove(&key).is_some() {
            self.queue.add_now(&key, LATER);
        }
    }

    /// All there was to write at the start was told: the canary is written once that is. Only the first call counts.
    pub fn synced(&self, value: impl Into<Arc<[u8]>>) {
        if self.asked_for_canary.swap(true, Ordering::SeqCst) {
            return;
        }
        let (values, queue, key, value) = (Arc::clone(&self.values), self.queue.clone(), canary_key(&self.options), value.into());
        let told = self.canary.synced.clone();
        self.canary.session.spawn(self.canary.stop.clone(), async move {
            queue.settled(INITIAL).await;
            values.by_key().insert(key.clone(), value);
            queue.add_now(&key, INITIAL);
            queue.settled(INITIAL).await;
            told.send_replace(true);
        });
    }

    /// Waits until the canary is written.
    pub async fn wait_until_synced(&self) {
        let mut synced = self.synced.clone();
        // the sender lives as long as this store
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// How it goes.
    #[must_use]
    pub fn counts(&self) -> QueueCounts {
        self.queue.counts()
    }

    fn key(&self, name: &[u8]) -> Vec<u8> {
        join(&[&self.options.prefix, name])
    }
}

fn canary_key(options: &SyncStoreOptions) -> Vec<u8> {
    let of = options.synced_key.as_ref().unwrap_or(&options.prefix);
    join(&[SYNCED_PREFIX.as_bytes(), options.cluster.as_bytes(), of])
}
