//! A queue of keys that are to be written: each key once, its newest value, again until that succeeds.
//!
//! It knows keys alone. What a key is to have is asked when its turn comes, so that however often it changes meanwhile it is written once. Bounded:
//! [`SyncQueue::add`] waits while too many keys wait.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::kvstore::error::printable;
use crate::kvstore::{KvstoreError, Life, LostKeys, Session};

/// How many keys may wait: 256 for each of 64 calls in flight, some 2 MB of names.
const WAITING_MAX: usize = 16_384;
/// How many wanted keys are looked at in one go where leases were lost: a millisecond or two.
const LOOKED_AT: usize = 2_048;
/// The group of keys whose leases were lost: whatever waits for another one does not wait for them.
const RESTORED: u32 = u32::MAX;
/// The first wait of a key whose writing failed (client-go's `DefaultControllerRateLimiter`).
const RETRY_MIN: Duration = Duration::from_millis(5);
/// The longest: an etcd that takes writes again is right within a minute. (Cilium's queue waits up to 1,000 s.)
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What is to be in etcd.
pub trait Wanted: Send + Sync + 'static {
    /// What a key is to have; `None` where it is not to be there.
    fn value(&self, key: &[u8]) -> Option<Arc<[u8]>>;

    /// The keys behind one, from the first on where there is none, in the order in which they are to be written again where their leases were
    /// lost: so many at most. None is the end.
    fn keys_behind(&self, key: Option<&[u8]>, count: usize) -> Vec<Vec<u8>>;
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
    lost: Vec<LostKeys>,
    looking: Option<Looking>,
    failing: Option<String>,
    written: u64,
    errors: u64,
}

/// A look through all wanted keys, for those whose leases were lost.
struct Looking {
    lost: Vec<LostKeys>,
    /// The last key that was looked at.
    behind: Option<Vec<u8>>,
}

struct Item {
    group: u32,
    failures: u32,
    running: bool,
    /// It changed while it was being written.
    again: bool,
}

impl SyncQueue {
    /// A queue that writes nothing until [`SyncQueue::run`].
    #[must_use]
    pub fn new(session: Session, wanted: Arc<dyn Wanted>, life: Life, workers: usize) -> Self {
        let (more, less) = (Notify::new(), Notify::new());
        Self { shared: Arc::new(QueueShared { session, wanted, life, workers: workers.max(1), state: Mutex::default(), more, less }) }
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

    /// How many keys of a group are not written yet.
    #[must_use]
    pub fn pending(&self, group: u32) -> usize {
        self.shared.state().groups.get(&group).copied().unwrap_or_default()
    }

    /// Whether keys of lost leases are still to be written again.
    #[must_use]
    pub fn is_restoring(&self) -> bool {
        let state = self.shared.state();
        !state.lost.is_empty() || state.looking.is_some() || state.groups.contains_key(&RESTORED)
    }

    /// How many keys wait, how many writes succeeded, and how many failed.
    #[must_use]
    pub fn counts(&self) -> (usize, u64, u64) {
        let state = self.shared.state();
        (state.items.len(), state.written, state.errors)
    }

    /// Why writing fails at the moment.
    #[must_use]
    pub fn failing(&self) -> Option<String> {
        self.shared.state().failing.clone()
    }

    /// Forgets what is still to be written, also what was just being written: a caller that clears has dropped its [`SyncQueue::run`], or the key would
    /// count as being written for ever.
    pub fn clear(&self) {
        let mut state = self.shared.state();
        state.items.clear();
        state.ready.clear();
        state.later.clear();
        state.lost.clear();
        state.looking = None;
        state.groups.clear();
        drop(state);
        self.shared.less.notify_waiters();
    }

    /// Writes, so many keys at one time, for as long as it is polled.
    pub async fn run(&self) {
        let mut writing = FuturesUnordered::new();
        loop {
            let is_looking = self.look_for_lost();
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
                () = yield_now(), if is_looking => {}
            }
        }
    }

    async fn write(&self, key: Vec<u8>) -> (Vec<u8>, Result<(), KvstoreError>) {
        let session = &self.shared.session;
        let result = match self.shared.wanted.value(&key) {
            Some(value) => session.update(&key, &value, self.shared.life).await.map(drop),
            None => session.delete(&key).await.map(drop),
        };
        (key, result)
    }

    fn done(&self, key: &[u8], result: Result<(), KvstoreError>) {
        let mut state = self.shared.state();
        match result {
            Ok(()) => {
                state.written += 1;
                state.succeeded(key);
                if state.failing.take().is_some() {
                    tracing::info!(key = printable(key), "writing to etcd succeeds again");
                }
            }
            Err(error) => {
                state.errors += 1;
                state.failed(key, Instant::now());
                let text = error.to_string();
                if state.failing.is_none() {
                    tracing::warn!(error = text, hint = error.hint(), "writing to etcd fails: it is tried again until it succeeds");
                }
                state.failing = Some(text);
            }
        }
        drop(state);
        self.shared.less.notify_waiters();
    }

    /// Goes on looking for the keys of lost leases, as long as there is room for them; whether it is to be called again at once.
    fn look_for_lost(&self) -> bool {
        let Some((behind, lost)) = self.shared.state().next_look() else { return false };
        let keys = self.shared.wanted.keys_behind(behind.as_deref(), LOOKED_AT);
        let found: Vec<&Vec<u8>> = keys.iter().filter(|key| lost.iter().any(|lost| lost.had(key))).collect();
        let mut state = self.shared.state();
        for key in found {
            state.add(key, RESTORED);
        }
        state.looking = keys.last().map(|last| Looking { lost, behind: Some(last.clone()) });
        drop(state);
        self.shared.less.notify_waiters();
        true
    }
}

impl QueueShared {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Whether there is something new to write.
    fn add(&mut self, key: &[u8], group: u32) -> bool {
        if let Some(item) = self.items.get_mut(key) {
            item.again |= item.running;
            return false;
        }
        self.items.insert(key.to_vec(), Item { group, failures: 0, running: false, again: false });
        self.ready.push_back(key.to_vec());
        *self.groups.entry(group).or_default() += 1;
        true
    }

    /// From where to look for keys of which lost leases, where that is to be done and there is room for what is found.
    fn next_look(&mut self) -> Option<(Option<Vec<u8>>, Vec<LostKeys>)> {
        if self.items.len() >= WAITING_MAX {
            return None;
        }
        // what is lost meanwhile is looked for from the beginning again
        if self.looking.is_none() && !self.lost.is_empty() {
            self.looking = Some(Looking { lost: std::mem::take(&mut self.lost), behind: None });
        }
        self.looking.as_ref().map(|looking| (looking.behind.clone(), looking.lost.clone()))
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
        if item.again {
            (item.running, item.again, item.failures) = (false, false, 0);
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

    fn failed(&mut self, key: &[u8], now: Instant) {
        let Some(item) = self.items.get_mut(key) else { return };
        let wait = RETRY_MIN.saturating_mul(2_u32.saturating_pow(item.failures.min(20))).min(RETRY_MAX);
        item.failures = item.failures.saturating_add(1);
        item.running = false;
        self.later.insert((now + wait, key.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_waits_once_is_written_again_if_it_changed_meanwhile_and_counts_until_it_succeeded() {
        let mut state = QueueState::default();
        let now = Instant::now();
        assert!(state.add(b"a", 1));
        assert!(!state.add(b"a", 1), "it waits already");
        assert!(state.add(b"b", 1));
        assert_eq!(state.take(now).as_deref(), Some(&b"a"[..]));
        assert!(!state.add(b"a", 1), "it changed while it was written");
        state.succeeded(b"a");
        assert_eq!(state.groups.get(&1), Some(&2));
        assert_eq!(state.take(now).as_deref(), Some(&b"b"[..]));
        state.failed(b"b", now);
        assert_eq!(state.take(now).as_deref(), Some(&b"a"[..]));
        state.succeeded(b"a");
        assert_eq!(state.groups.get(&1), Some(&1));
        assert_eq!(state.take(now), None, "b waits before it is tried again");
        assert_eq!(state.take(now + RETRY_MIN).as_deref(), Some(&b"b"[..]));
        state.failed(b"b", now);
        assert_eq!(state.later.first().unwrap().0, now + 2 * RETRY_MIN);
        for _ in 0..40 {
            state.later.clear();
            state.failed(b"b", now);
        }
        assert_eq!(state.later.first().unwrap().0, now + RETRY_MAX);
        state.succeeded(b"b");
        assert!(state.groups.is_empty() && state.items.is_empty());
    }
}
