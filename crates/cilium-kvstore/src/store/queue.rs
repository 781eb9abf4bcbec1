//! A queue of keys that are to be written: each key once, its newest value, again until that succeeds.
//!
//! It knows keys alone. What a key is to have is asked when its turn comes, so that however often it changes meanwhile it is written once. Bounded:
//! [`SyncQueue::add`] waits while too many keys wait, and the keys of lost leases are looked for piece by piece, as there is room for them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::printable;
use crate::{Backoff, KvstoreError, Life, LostKeys, Session};

/// How many keys may wait: 256 for each of 64 calls in flight, some 2 MB of names.
const WAITING_MAX: usize = 16_384;
/// How many keys are looked at in one piece for whether they were on a lost lease: a millisecond or less.
const LOOKED_AT_ONCE: usize = 1024;
/// The first wait of a key whose writing failed (client-go's `DefaultControllerRateLimiter`).
const RETRY_MIN: Duration = Duration::from_millis(5);
/// The longest: an etcd that takes writes again is right within a minute. (Cilium's queue waits up to 1,000 s.)
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What is to be in etcd.
pub trait Wanted: Send + Sync + 'static {
    /// What a key is to have; `None` where it is not to be there.
    fn value(&self, key: &[u8]) -> Option<Arc<[u8]>>;

    /// Keys that may hang on a lease, `count` at most, for those that were on a lost one: what follows the last one given in an order that stays, the
    /// first ones where none is given. Empty: there are no more.
    fn keys_behind(&self, last: Option<&[u8]>, count: usize) -> Vec<Vec<u8>>;
}

/// What became of keys so far, and what waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Keys that wait or are being written.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub longest_wait: Duration,
    /// Puts that succeeded.
    pub written: u64,
    /// Deletes that succeeded.
    pub deleted: u64,
    /// Tries that failed.
    pub failed: u64,
    /// Why writing fails at the moment.
    pub failing: Option<String>,
    /// The newest failure and when it was, also where writing succeeds again.
    pub last_failure: Option<(String, SystemTime)>,
}

/// Keys to be written, by groups of which each can be waited for. Clones share it.
#[derive(Clone)]
pub struct SyncQueue {
    shared: Arc<QueueShared>,
}

struct QueueShared {
    session: Session,
    wanted: Arc<dyn Wanted>,
    life: Life,
    workers: usize,
    state: Mutex<QueueState>,
    /// There is something to write.
    more: Notify,
    /// Something was written.
    less: Notify,
}

#[derive(Default)]
struct QueueState {
    items: HashMap<Vec<u8>, Item>,
    ready: VecDeque<Vec<u8>>,
    later: BTreeSet<(Instant, Vec<u8>)>,
    /// How many keys of each group are not written yet.
    groups: HashMap<u32, usize>,
    /// Lost leases whose keys are still to be looked for.
    lost: Vec<LostKeys>,
    looking: Option<Looking>,
    /// How many keys were tried in vain and not written since.
    failing: usize,
    last_failure: Option<(String, SystemTime)>,
    written: u64,
    deleted: u64,
    failed: u64,
}

/// A look over all keys for those of lost leases.
#[derive(Clone)]
struct Looking {
    lost: Arc<[LostKeys]>,
    /// The last key that was looked at.
    last: Option<Vec<u8>>,
}

struct Item {
    group: u32,
    since: Instant,
    backoff: Backoff,
    running: bool,
    /// It changed while it was being written.
    again: bool,
}

/// What came of writing a key.
enum Outcome {
    Put,
    Deleted,
}

impl SyncQueue {
    /// The group of keys that lost their lease.
    pub const LOST: u32 = u32::MAX;

    /// A queue that writes nothing until [`SyncQueue::run`].
    #[must_use]
    pub fn new(session: Session, wanted: Arc<dyn Wanted>, life: Life, workers: usize) -> Self {
        let (more, less) = (Notify::new(), Notify::new());
        Self { shared: Arc::new(QueueShared { session, wanted, life, workers: workers.max(1), state: Mutex::default(), more, less }) }
    }

    /// Sets the observer that is called when keys with this prefix lose their lease ([`Session::on_lease_lost`]), for as long as this queue is used: the
    /// session, which keeps the observer for its whole life, does not keep the queue with its keys and values.
    pub fn on_lease_lost(&self, prefix: &[u8], observer: impl Fn(&Self, &LostKeys) + Send + Sync + 'static) {
        let queue = Arc::downgrade(&self.shared);
        self.shared.session.on_lease_lost(prefix, move |lost| {
            if let Some(shared) = queue.upgrade() {
                observer(&Self { shared }, lost);
            }
        });
    }

    /// The session that it writes by.
    pub(super) fn session(&self) -> &Session {
        &self.shared.session
    }

    /// A key is to be as it is wanted; waits while too many do.
    pub async fn add(&self, key: &[u8], group: u32) {
        loop {
            let less = self.shared.less.notified();
            if self.shared.state().items.len() < WAITING_MAX {
                break;
            }
            less.await;
        }
        self.add_now(key, group);
    }

    /// Adds a key without waiting, for callers that bound what they add otherwise.
    pub fn add_now(&self, key: &[u8], group: u32) {
        if self.shared.state().add(key, group) {
            self.shared.more.notify_one();
        }
    }

    /// Keys may have lost their lease: those of them that are wanted are written again.
    pub fn add_lost(&self, lost: &LostKeys) {
        self.shared.state().lost.push(lost.clone());
        self.shared.more.notify_one();
    }

    /// Waits until every key of a group that was added is written.
    pub async fn settled(&self, group: u32) {
        loop {
            let less = self.shared.less.notified();
            if self.pending(group) == 0 {
                return;
            }
            less.await;
        }
    }

    /// How many keys of a group are not written yet; of [`SyncQueue::LOST`] at least one while some may not have been found.
    #[must_use]
    pub fn pending(&self, group: u32) -> usize {
        let state = self.shared.state();
        let unfound = group == Self::LOST && (state.looking.is_some() || !state.lost.is_empty());
        state.groups.get(&group).copied().unwrap_or_default() + usize::from(unfound)
    }

    /// Whether keys of lost leases are still to be written again.
    #[must_use]
    pub fn is_restoring(&self) -> bool {
        self.pending(Self::LOST) > 0
    }

    /// How it goes.
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

    /// Forgets what is still to be written, also what was just being written: for a caller that has dropped its [`SyncQueue::run`] before.
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

    /// Writes, so many keys at one time, for as long as it is polled. What was being written when an earlier run was dropped is written anew.
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

    async fn write(&self, key: Vec<u8>) -> (Vec<u8>, Result<Outcome, KvstoreError>) {
        let session = &self.shared.session;
        let result = match self.shared.wanted.value(&key) {
            Some(value) => session.update(&key, &value, self.shared.life).await.map(|_| Outcome::Put),
            None => session.delete(&key).await.map(|_| Outcome::Deleted),
        };
        (key, result)
    }

    fn done(&self, key: &[u8], result: Result<Outcome, KvstoreError>) {
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
                    tracing::info!(key = printable(key), "writing to etcd succeeds again");
                }
            }
            Err(error) => {
                state.failed += 1;
                state.put_off(key, Instant::now());
                let text = error.to_string();
                if !failed_before {
                    tracing::warn!(error = text, hint = error.hint(), "writing to etcd fails: it is tried again until it succeeds");
                }
                state.last_failure = Some((text, SystemTime::now()));
            }
        }
        drop(state);
        self.shared.less.notify_waiters();
    }

    /// Looks at some keys for those of lost leases, if there is room for them; says whether more can be looked at now. Those are in a group of
    /// their own: whatever waits for another does not wait for them.
    fn look_for_lost(&self) -> bool {
        let Some(Looking { lost, last }) = self.shared.state().next_look() else { return false };
        let keys = self.shared.wanted.keys_behind(last.as_deref(), LOOKED_AT_ONCE);
        let mut state = self.shared.state();
        for key in keys.iter().filter(|key| lost.iter().any(|lost| lost.had(key))) {
            state.add(key, Self::LOST);
        }
        state.looking = keys.into_iter().next_back().map(|last| Looking { lost, last: Some(last) });
        let more = state.looking.is_some() || !state.lost.is_empty();
        drop(state);
        if !more {
            self.shared.less.notify_waiters();
        }
        more
    }
}

impl QueueShared {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Nothing is being written: what was, is to be written again.
    fn begin(&mut self) {
        for (key, item) in self.items.iter_mut().filter(|(_, item)| item.running) {
            (item.running, item.again) = (false, false);
            self.ready.push_back(key.clone());
        }
    }

    /// Lost leases whose keys are to be looked for now, and the key behind which; `None` where there are none, or no room for more keys.
    fn next_look(&mut self) -> Option<Looking> {
        if self.items.len() >= WAITING_MAX {
            return None;
        }
        if self.looking.is_none() && !self.lost.is_empty() {
            self.looking = Some(Looking { lost: std::mem::take(&mut self.lost).into(), last: None });
        }
        self.looking.clone()
    }

    /// Whether there is something new to write.
    fn add(&mut self, key: &[u8], group: u32) -> bool {
        if let Some(item) = self.items.get_mut(key) {
            item.again |= item.running;
            return false;
        }
        self.items.insert(
            key.to_vec(),
            Item { group, since: Instant::now(), backoff: Backoff::new(RETRY_MIN, RETRY_MAX), running: false, again: false },
        );
        self.ready.push_back(key.to_vec());
        *self.groups.entry(group).or_default() += 1;
        true
    }

    fn take(&mut self, now: Instant) -> Option<Vec<u8>> {
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

    fn succeeded(&mut self, key: &[u8]) {
        let Some(item) = self.items.get_mut(key) else { return };
        self.failing -= usize::from(item.backoff.failures() > 0);
        if item.again {
            item.backoff.reset();
            (item.running, item.again, item.since) = (false, false, Instant::now());
            self.ready.push_back(key.to_vec());
        } else if let Some(item) = self.items.remove(key)
            && let Some(count) = self.groups.get_mut(&item.group)
        {
            *count -= 1;
            if *count == 0 {
                self.groups.remove(&item.group);
            }
        }
    }

    fn put_off(&mut self, key: &[u8], now: Instant) {
        let Some(item) = self.items.get_mut(key) else { return };
        self.failing += usize::from(item.backoff.failures() == 0);
        let wait = item.backoff.next_wait();
        item.running = false;
        self.later.insert((now + wait, key.to_vec()));
    }
}

#[cfg(test)]
mod tests;
