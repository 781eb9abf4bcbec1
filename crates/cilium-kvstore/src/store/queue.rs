//! Queue of keys to write: holds each key once, and retries it until the write succeeds.
//!
//! The queue stores only keys. It asks for a key's value when it writes the key, so a key that
//! changes several times meanwhile is written once. Its size is limited: [`SyncQueue::add`] waits
//! while the queue is full, and the keys of lost leases are searched in batches as capacity allows.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::printable;
use crate::{Backoff, KvstoreError, Life, LostKeys, Session};

/// Maximum number of waiting keys: 256 for each of 64 calls in flight, some 2 MB of names.
const WAITING_MAX: usize = 16_384;
/// Number of keys per batch of the search for keys of lost leases: a millisecond or less.
const LOOKED_AT_ONCE: usize = 1024;
/// Wait after the first failed write of a key (client-go's `DefaultControllerRateLimiter`).
const RETRY_MIN: Duration = Duration::from_millis(5);
/// Longest wait: the target is complete within a minute after it accepts writes again. (Cilium's
/// queue waits up to 1,000 s.)
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Desired content of etcd.
pub trait Wanted: Send + Sync + 'static {
    /// Key in the form in which the caller finds the value.
    type Key: Clone + Ord + Hash + Send + Sync;

    /// Returns the key in etcd.
    fn etcd_key(&self, key: &Self::Key) -> Vec<u8>;

    /// Returns the desired value of a key; `None` if the key must not exist.
    fn value(&self, key: &Self::Key) -> Option<Arc<[u8]>>;

    /// Returns at most `count` keys that may have a lease, for the search for keys of a lost one.
    /// The keys follow `last` in a stable order; without `last` they are the first ones. An empty
    /// result means that there are no more.
    fn keys_behind(&self, last: Option<&Self::Key>, count: usize) -> Vec<Self::Key>;
}

/// Counts of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Number of keys that wait or are being written.
    pub waiting: usize,
    /// Waiting time of the oldest of them.
    pub longest_wait: Duration,
    /// Number of successful puts.
    pub written: u64,
    /// Number of successful deletes.
    pub deleted: u64,
    /// Number of failed attempts.
    pub failed: u64,
    /// Reason of the failure, while keys are failing.
    pub failing: Option<String>,
    /// Newest failure and its time, even if writes succeed again.
    pub last_failure: Option<(String, SystemTime)>,
}

/// Queue of keys to write, in groups that can be awaited separately. Clones share it.
pub struct SyncQueue<W: Wanted> {
    shared: Arc<QueueShared<W>>,
}

impl<W: Wanted> Clone for SyncQueue<W> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

struct QueueShared<W: Wanted> {
    session: Session,
    wanted: Arc<W>,
    life: Life,
    workers: usize,
    state: Mutex<QueueState<W::Key>>,
    /// Notified when there is a key to write.
    more: Notify,
    /// Notified when a key was written.
    less: Notify,
}

struct QueueState<K> {
    items: HashMap<K, Item>,
    ready: VecDeque<K>,
    later: BTreeSet<(Instant, K)>,
    /// Number of unwritten keys in each group.
    groups: HashMap<u32, usize>,
    /// Lost leases whose keys have not been searched yet.
    lost: Vec<LostKeys>,
    looking: Option<LostKeyScan<K>>,
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
            later: BTreeSet::new(),
            groups: HashMap::new(),
            lost: Vec::new(),
            looking: None,
            failing: 0,
            last_failure: None,
            written: 0,
            deleted: 0,
            failed: 0,
        }
    }
}

/// Scan over all keys for those of lost leases.
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
    again: bool,
}

enum Outcome {
    Put,
    Deleted,
}

impl<W: Wanted> SyncQueue<W> {
    /// Group of the keys that lost their lease.
    pub const LOST: u32 = u32::MAX;

    /// Creates a queue that writes nothing until [`SyncQueue::run`].
    #[must_use]
    pub fn new(session: Session, wanted: Arc<W>, life: Life, workers: usize) -> Self {
        let (more, less) = (Notify::new(), Notify::new());
        Self { shared: Arc::new(QueueShared { session, wanted, life, workers: workers.max(1), state: Mutex::default(), more, less }) }
    }

    /// Sets the observer that is called when keys with this prefix lose their lease
    /// ([`Session::on_lease_lost`]). The session keeps the observer for its whole life, but only a
    /// weak reference to this queue with its keys and values.
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
            let less = self.shared.less.notified();
            if self.shared.state().items.len() < WAITING_MAX {
                break;
            }
            less.await;
        }
        self.add_now(key, group);
    }

    /// Adds a key without waiting, for callers with their own limit.
    pub fn add_now(&self, key: W::Key, group: u32) {
        if self.shared.state().add(key, group) {
            self.shared.more.notify_one();
        }
    }

    /// Schedules a search for the keys that lost their lease, to write them again.
    pub fn add_lost(&self, lost: &LostKeys) {
        self.shared.state().lost.push(lost.clone());
        self.shared.more.notify_one();
    }

    /// Waits until all added keys of a group are written.
    pub async fn settled(&self, group: u32) {
        loop {
            let less = self.shared.less.notified();
            if self.pending(group) == 0 {
                return;
            }
            less.await;
        }
    }

    /// Returns the number of unwritten keys in a group. For [`SyncQueue::LOST`] it is at least one
    /// until all affected keys were found.
    #[must_use]
    pub fn pending(&self, group: u32) -> usize {
        let state = self.shared.state();
        let unfound = group == Self::LOST && (state.looking.is_some() || !state.lost.is_empty());
        state.groups.get(&group).copied().unwrap_or_default() + usize::from(unfound)
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

    /// Removes all keys, including those that were being written. The caller must have dropped the
    /// future of [`SyncQueue::run`] before.
    pub fn clear(&self) {
        let mut state = self.shared.state();
        state.items.clear();
        state.ready.clear();
        state.later.clear();
        state.lost.clear();
        state.looking = None;
        state.groups.clear();
        state.failing = 0;
        drop(state);
        self.shared.less.notify_waiters();
    }

    /// Writes keys for as long as it is polled, up to the number of workers at a time. Keys whose
    /// write was interrupted when an earlier run was dropped are written again.
    pub async fn run(&self) {
        self.shared.state().begin();
        let mut writing = FuturesUnordered::new();
        loop {
            let looking = self.look_for_lost();
            while writing.len() < self.shared.workers
                && let Some(key) = self.shared.state().take(Instant::now())
            {
                writing.push(self.write(key));
            }
            let next = self.shared.state().later.first().map(|(time, _)| *time);
            let due = async {
                match next {
                    Some(time) => tokio::time::sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            let idle = writing.is_empty();
            tokio::select! {
                Some((key, result)) = writing.next(), if !idle => self.done(&key, result),
                () = self.shared.more.notified() => {}
                () = due, if writing.len() < self.shared.workers => {}
                () = tokio::task::yield_now(), if looking => {}
            }
        }
    }

    async fn write(&self, key: W::Key) -> (W::Key, Result<Outcome, KvstoreError>) {
        let QueueShared { session, wanted, .. } = &*self.shared;
        let etcd_key = wanted.etcd_key(&key);
        let result = match wanted.value(&key) {
            Some(value) => session.update(&etcd_key, &value, self.shared.life).await.map(|_| Outcome::Put),
            None => session.delete(&etcd_key).await.map(|_| Outcome::Deleted),
        };
        (key, result)
    }

    fn done(&self, key: &W::Key, result: Result<Outcome, KvstoreError>) {
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
                state.put_off(key, Instant::now());
                let text = error.to_string();
                if !failed_before {
                    tracing::warn!(error = text, hint = error.hint(), "cannot write to etcd: trying again until it succeeds");
                }
                state.last_failure = Some((text, SystemTime::now()));
            }
        }
        drop(state);
        self.shared.less.notify_waiters();
    }

    /// Scans one batch of keys for those of lost leases, if the queue has capacity. Returns whether
    /// more can be scanned now. The keys get a group of their own, so that waiters of other groups
    /// do not wait for them.
    fn look_for_lost(&self) -> bool {
        let Some(LostKeyScan { lost, last }) = self.shared.state().next_look() else { return false };
        let keys = self.shared.wanted.keys_behind(last.as_ref(), LOOKED_AT_ONCE);
        let mut state = self.shared.state();
        for key in &keys {
            let etcd_key = self.shared.wanted.etcd_key(key);
            if lost.iter().any(|lost| lost.contains(&etcd_key)) {
                state.add(key.clone(), Self::LOST);
            }
        }
        state.looking = keys.into_iter().next_back().map(|last| LostKeyScan { lost, last: Some(last) });
        let more = state.looking.is_some() || !state.lost.is_empty();
        drop(state);
        if !more {
            self.shared.less.notify_waiters();
        }
        more
    }
}

impl<W: Wanted> QueueShared<W> {
    fn state(&self) -> MutexGuard<'_, QueueState<W::Key>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Ord + Hash> QueueState<K> {
    /// Reschedules the keys that an earlier run was writing.
    fn begin(&mut self) {
        for (key, item) in self.items.iter_mut().filter(|(_, item)| item.running) {
            (item.running, item.again) = (false, false);
            self.ready.push_back(key.clone());
        }
    }

    /// Returns the lost leases to search for and the last scanned key; `None` if there are none, or
    /// if the queue is full.
    fn next_look(&mut self) -> Option<LostKeyScan<K>> {
        if self.items.len() >= WAITING_MAX {
            return None;
        }
        if self.looking.is_none() && !self.lost.is_empty() {
            self.looking = Some(LostKeyScan { lost: std::mem::take(&mut self.lost).into(), last: None });
        }
        self.looking.clone()
    }

    /// Adds a key. Returns whether there is something new to write.
    fn add(&mut self, key: K, group: u32) -> bool {
        if let Some(item) = self.items.get_mut(&key) {
            item.again |= item.running;
            return false;
        }
        self.items.insert(
            key.clone(),
            Item { group, since: Instant::now(), backoff: Backoff::new(RETRY_MIN, RETRY_MAX), running: false, again: false },
        );
        self.ready.push_back(key);
        *self.groups.entry(group).or_default() += 1;
        true
    }

    fn take(&mut self, now: Instant) -> Option<K> {
        let key = match self.ready.pop_front() {
            Some(key) => key,
            None if self.later.first().is_some_and(|(time, _)| *time <= now) => self.later.pop_first()?.1,
            None => return None,
        };
        if let Some(item) = self.items.get_mut(&key) {
            (item.running, item.again) = (true, false);
        }
        Some(key)
    }

    fn succeeded(&mut self, key: &K) {
        let Some(item) = self.items.get_mut(key) else { return };
        self.failing -= usize::from(item.backoff.failures() > 0);
        if item.again {
            item.backoff.reset();
            (item.running, item.again, item.since) = (false, false, Instant::now());
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

    fn put_off(&mut self, key: &K, now: Instant) {
        let Some(item) = self.items.get_mut(key) else { return };
        self.failing += usize::from(item.backoff.failures() == 0);
        let wait = item.backoff.next_wait();
        item.running = false;
        self.later.insert((now + wait, key.clone()));
    }
}

#[cfg(test)]
mod tests;
