//! Queue of keys to write to etcd. It contains each key once, and retries a write until it
//! succeeds.
//!
//! The queue stores only keys. It looks up a key's value when it writes the key, so a key that
//! changes several times before that is written once. The queue has a limited size:
//! [`SyncQueue::add`] waits while it is full, and the search for keys of lost leases runs in
//! batches as capacity allows.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::printable;
use crate::{Backoff, KeyLifetime, KvstoreError, LostKeys, Session};

/// Maximum number of keys in the queue: 256 for each of 64 calls in flight, some 2 MB of keys.
const WAITING_MAX: usize = 16_384;
/// Number of keys per batch of the search for keys of lost leases. A batch takes a millisecond or
/// less.
const LOST_KEY_BATCH: usize = 1024;
/// Wait after the first failed write of a key (client-go's `DefaultControllerRateLimiter`).
const RETRY_MIN: Duration = Duration::from_millis(5);
/// Longest wait between writes of a key: all keys are written within a minute after etcd accepts
/// writes again. (Cilium's queue waits up to 1,000 s.)
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Desired content of etcd.
pub trait DesiredState: Send + Sync + 'static {
    /// Key in the caller's own form.
    type Key: Clone + Ord + Hash + Send + Sync;

    /// Returns the key in etcd.
    fn etcd_key(&self, key: &Self::Key) -> Vec<u8>;

    /// Returns the desired value of a key; `None` if the key must not exist.
    fn value(&self, key: &Self::Key) -> Option<Arc<[u8]>>;

    /// Returns at most `count` keys that may have a lease, for the search for keys of a lost lease.
    /// The keys follow `last` in a stable order; without `last`, the order's first keys are
    /// returned. An empty result means that there are no more keys.
    fn keys_after(&self, last: Option<&Self::Key>, count: usize) -> Vec<Self::Key>;
}

/// Counts of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Number of keys that wait or are being written.
    pub waiting: usize,
    /// Time since the oldest of these keys was added.
    pub longest_wait: Duration,
    /// Number of successful puts.
    pub written: u64,
    /// Number of successful deletes.
    pub deleted: u64,
    /// Number of failed attempts.
    pub failed: u64,
    /// Error of the last failed write; `None` if no key in the queue has a failed last write.
    pub failing: Option<String>,
    /// Last failed write and its time, even if writes succeed again.
    pub last_failure: Option<(String, SystemTime)>,
}

/// Queue of keys to write, in groups that can be awaited separately. Clones share it.
pub struct SyncQueue<W: DesiredState> {
    shared: Arc<QueueShared<W>>,
}

impl<W: DesiredState> Clone for SyncQueue<W> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

struct QueueShared<W: DesiredState> {
    session: Session,
    wanted: Arc<W>,
    lifetime: KeyLifetime,
    workers: usize,
    state: Mutex<QueueState<W::Key>>,
    /// Notified when a key to write is added, or lost leases whose keys must be searched for.
    work_added: Notify,
    /// Notified when a write of a key ends, when a search for keys of lost leases ends, and when
    /// the queue is cleared.
    key_finished: Notify,
}

struct QueueState<K> {
    items: HashMap<K, Item>,
    ready: VecDeque<K>,
    retries: BTreeSet<(Instant, K)>,
    /// Number of unwritten keys in each group.
    groups: HashMap<u32, usize>,
    /// Lost leases whose keys have not been searched for yet.
    lost: Vec<LostKeys>,
    scan: Option<LostKeyScan<K>>,
    /// Number of keys whose last attempt failed.
    failing: usize,
    last_failure: Option<(String, SystemTime)>,
    written: u64,
    deleted: u64,
    failed: u64,
}

impl<K> Default for QueueState<K> {
    fn default() -> Self {
        Self {
            items: HashMap::new(),
            ready: VecDeque::new(),
            retries: BTreeSet::new(),
            groups: HashMap::new(),
            lost: Vec::new(),
            scan: None,
            failing: 0,
            last_failure: None,
            written: 0,
            deleted: 0,
            failed: 0,
        }
    }
}

/// Scan of all keys for the keys of lost leases.
#[derive(Clone)]
struct LostKeyScan<K> {
    lost: Arc<[LostKeys]>,
    /// Last key of the previous batch.
    last: Option<K>,
}

struct Item {
    group: u32,
    since: Instant,
    backoff: Backoff,
    running: bool,
    /// Whether the key changed while it was being written.
    changed_meanwhile: bool,
}

enum Outcome {
    Put,
    Deleted,
}

impl<W: DesiredState> SyncQueue<W> {
    /// Group of the keys that lost their lease.
    pub const LOST: u32 = u32::MAX;

    /// Creates a queue that writes nothing until [`SyncQueue::run`].
    #[must_use]
    pub fn new(session: Session, wanted: Arc<W>, lifetime: KeyLifetime, workers: usize) -> Self {
        let (work_added, key_finished) = (Notify::new(), Notify::new());
        Self {
            shared: Arc::new(QueueShared {
                session,
                wanted,
                lifetime,
                workers: workers.max(1),
                state: Mutex::default(),
                work_added,
                key_finished,
            }),
        }
    }

    /// Sets the observer that is called when keys with this prefix lose their lease
    /// ([`Session::on_lease_lost`]). The session keeps the observer until the session ends, but
    /// keeps only a weak reference to this queue with its keys and values.
    pub fn on_lease_lost(&self, prefix: &[u8], observer: impl Fn(&Self, &LostKeys) + Send + Sync + 'static) {
        let queue = Arc::downgrade(&self.shared);
        self.shared.session.on_lease_lost(prefix, move |lost| {
            if let Some(shared) = queue.upgrade() {
                observer(&Self { shared }, lost);
            }
        });
    }

    /// Returns the session that the queue writes with.
    pub(super) fn session(&self) -> &Session {
        &self.shared.session
    }

    /// Adds a key to write. Waits while the queue is full.
    pub async fn add(&self, key: W::Key, group: u32) {
        loop {
            let key_finished = self.shared.key_finished.notified();
            if self.shared.state().items.len() < WAITING_MAX {
                break;
            }
            key_finished.await;
        }
        self.add_now(key, group);
    }

    /// Adds a key without waiting, for callers with their own limit.
    pub fn add_now(&self, key: W::Key, group: u32) {
        if self.shared.state().add(key, group) {
            self.shared.work_added.notify_one();
        }
    }

    /// Schedules a search for the keys that lost their lease, to write them again.
    pub fn add_lost_keys(&self, lost: &LostKeys) {
        self.shared.state().lost.push(lost.clone());
        self.shared.work_added.notify_one();
    }

    /// Waits until all added keys of a group are written.
    pub async fn wait_until_written(&self, group: u32) {
        loop {
            let key_finished = self.shared.key_finished.notified();
            if self.pending(group) == 0 {
                return;
            }
            key_finished.await;
        }
    }

    /// Returns the number of unwritten keys in a group. For [`SyncQueue::LOST`] it is at least one
    /// until the search for the keys of lost leases is complete.
    #[must_use]
    pub fn pending(&self, group: u32) -> usize {
        let state = self.shared.state();
        let is_scanning = group == Self::LOST && (state.scan.is_some() || !state.lost.is_empty());
        state.groups.get(&group).copied().unwrap_or_default() + usize::from(is_scanning)
    }

    /// Returns whether keys of lost leases must still be written again.
    #[must_use]
    pub fn is_restoring(&self) -> bool {
        self.pending(Self::LOST) > 0
    }

    /// Returns the current counts.
    #[must_use]
    pub fn counts(&self) -> QueueCounts {
        let state = self.shared.state();
        QueueCounts {
            waiting: state.items.len(),
            longest_wait: state.items.values().map(|item| item.since).min().map_or(Duration::ZERO, |since| since.elapsed()),
            written: state.written,
            deleted: state.deleted,
            failed: state.failed,
            failing: state.last_failure.as_ref().filter(|_| state.failing > 0).map(|(error, _)| error.clone()),
            last_failure: state.last_failure.clone(),
        }
    }

    /// Removes all keys, including keys that were being written. The caller must drop the future of
    /// [`SyncQueue::run`] first.
    pub fn clear(&self) {
        let mut state = self.shared.state();
        state.items.clear();
        state.ready.clear();
        state.retries.clear();
        state.lost.clear();
        state.scan = None;
        state.groups.clear();
        state.failing = 0;
        drop(state);
        self.shared.key_finished.notify_waiters();
    }

    /// Writes keys for as long as the future is polled, in parallel up to the number of workers.
    /// Writes that were interrupted when an earlier run was dropped are repeated.
    pub async fn run(&self) {
        self.shared.state().requeue_running();
        let mut writing = FuturesUnordered::new();
        loop {
            let scan_continues = self.scan_for_lost_keys();
            while writing.len() < self.shared.workers
                && let Some(key) = self.shared.state().next_due(Instant::now())
            {
                writing.push(self.write(key));
            }
            let next_retry = self.shared.state().retries.first().map(|(time, _)| *time);
            let due = async {
                match next_retry {
                    Some(time) => tokio::time::sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            let idle = writing.is_empty();
            tokio::select! {
                Some((key, result)) = writing.next(), if !idle => self.record_result(&key, result),
                () = self.shared.work_added.notified() => {}
                () = due, if writing.len() < self.shared.workers => {}
                () = tokio::task::yield_now(), if scan_continues => {}
            }
        }
    }

    async fn write(&self, key: W::Key) -> (W::Key, Result<Outcome, KvstoreError>) {
        let QueueShared { session, wanted, .. } = &*self.shared;
        let etcd_key = wanted.etcd_key(&key);
        let result = match wanted.value(&key) {
            Some(value) => session.update(&etcd_key, &value, self.shared.lifetime).await.map(|_| Outcome::Put),
            None => session.delete(&etcd_key).await.map(|_| Outcome::Deleted),
        };
        (key, result)
    }

    fn record_result(&self, key: &W::Key, result: Result<Outcome, KvstoreError>) {
        let mut state = self.shared.state();
        let failed_before = state.failing > 0;
        match result {
            Ok(outcome) => {
                match outcome {
                    Outcome::Put => state.written += 1,
                    Outcome::Deleted => state.deleted += 1,
                }
                state.succeeded(key);
                if failed_before && state.failing == 0 {
                    tracing::info!(key = printable(&self.shared.wanted.etcd_key(key)), "writing to etcd works again");
                }
            }
            Err(error) => {
                state.failed += 1;
                state.reschedule(key, Instant::now());
                let text = error.to_string();
                if !failed_before {
                    tracing::warn!(error = text, hint = error.hint(), "cannot write to etcd: trying again until it succeeds");
                }
                state.last_failure = Some((text, SystemTime::now()));
            }
        }
        drop(state);
        self.shared.key_finished.notify_waiters();
    }

    /// Scans one batch of keys for the keys of lost leases, if the queue has capacity. Returns
    /// whether another batch can be scanned now. The keys that it adds get their own group, so that
    /// waiters of other groups do not wait for them.
    fn scan_for_lost_keys(&self) -> bool {
        let Some(LostKeyScan { lost, last }) = self.shared.state().next_scan() else { return false };
        let keys = self.shared.wanted.keys_after(last.as_ref(), LOST_KEY_BATCH);
        let mut state = self.shared.state();
        for key in &keys {
            let etcd_key = self.shared.wanted.etcd_key(key);
            if lost.iter().any(|lost| lost.contains(&etcd_key)) {
                state.add(key.clone(), Self::LOST);
            }
        }
        state.scan = keys.into_iter().next_back().map(|last| LostKeyScan { lost, last: Some(last) });
        let continues = state.scan.is_some() || !state.lost.is_empty();
        drop(state);
        if !continues {
            self.shared.key_finished.notify_waiters();
        }
        continues
    }
}

impl<W: DesiredState> QueueShared<W> {
    fn state(&self) -> MutexGuard<'_, QueueState<W::Key>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Ord + Hash> QueueState<K> {
    /// Puts the keys that an earlier run was writing back into the list of ready keys.
    fn requeue_running(&mut self) {
        for (key, item) in self.items.iter_mut().filter(|(_, item)| item.running) {
            (item.running, item.changed_meanwhile) = (false, false);
            self.ready.push_back(key.clone());
        }
    }

    /// Returns the scan to continue; `None` if there are no lost leases to search for, or if the
    /// queue is full.
    fn next_scan(&mut self) -> Option<LostKeyScan<K>> {
        if self.items.len() >= WAITING_MAX {
            return None;
        }
        if self.scan.is_none() && !self.lost.is_empty() {
            self.scan = Some(LostKeyScan { lost: std::mem::take(&mut self.lost).into(), last: None });
        }
        self.scan.clone()
    }

    /// Adds a key. Returns whether the key is new in the queue.
    fn add(&mut self, key: K, group: u32) -> bool {
        if let Some(item) = self.items.get_mut(&key) {
            item.changed_meanwhile |= item.running;
            return false;
        }
        self.items.insert(
            key.clone(),
            Item { group, since: Instant::now(), backoff: Backoff::new(RETRY_MIN, RETRY_MAX), running: false, changed_meanwhile: false },
        );
        self.ready.push_back(key);
        *self.groups.entry(group).or_default() += 1;
        true
    }

    fn next_due(&mut self, now: Instant) -> Option<K> {
        let key = match self.ready.pop_front() {
            Some(key) => key,
            None if self.retries.first().is_some_and(|(time, _)| *time <= now) => self.retries.pop_first()?.1,
            None => return None,
        };
        if let Some(item) = self.items.get_mut(&key) {
            (item.running, item.changed_meanwhile) = (true, false);
        }
        Some(key)
    }

    fn succeeded(&mut self, key: &K) {
        let Some(item) = self.items.get_mut(key) else { return };
        self.failing -= usize::from(item.backoff.failures() > 0);
        if item.changed_meanwhile {
            item.backoff.reset();
            (item.running, item.changed_meanwhile, item.since) = (false, false, Instant::now());
            self.ready.push_back(key.clone());
        } else if let Some(item) = self.items.remove(key)
            && let Some(count) = self.groups.get_mut(&item.group)
        {
            *count -= 1;
            if *count == 0 {
                self.groups.remove(&item.group);
            }
        }
    }

    fn reschedule(&mut self, key: &K, now: Instant) {
        let Some(item) = self.items.get_mut(key) else { return };
        self.failing += usize::from(item.backoff.failures() == 0);
        let wait = item.backoff.next_wait();
        item.running = false;
        self.retries.insert((now + wait, key.clone()));
    }
}

#[cfg(test)]
mod tests;
