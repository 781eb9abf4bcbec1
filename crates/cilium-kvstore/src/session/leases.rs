//! Leases: the lease of each key, the remaining life of each lease, and the observers that are
//! called when a lease is lost (Cilium's `etcd_lease.go`).
//!
//! A session has two instances: one for keys, and one for locks, whose leases are short. Only
//! hashes of keys are stored, so that a million keys use some 30 MB. An observer of lost leases
//! stores its own keys, and asks which of them were affected.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Connection, KvstoreError, LeaseId};

/// Interval between attempts to renew a lease (etcd's client: `retryConnWait`).
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum concurrent renewals. With 8, a thousand leases (a million keys) are renewed within a
/// second at a round trip of 8 ms.
const RENEWALS_AT_ONCE: usize = 8;

/// Scope of a key that matches no observer's prefix.
const NO_SCOPE: u16 = u16::MAX;

/// Callback for lost leases.
type Observer = Arc<dyn Fn(&LostKeys) + Send + Sync>;

/// Keys whose lease was lost.
#[derive(Clone)]
pub struct LostKeys {
    hasher: RandomState,
    /// Sorted hashes of the keys.
    hashes: Arc<[u64]>,
}

impl LostKeys {
    /// Creates the set of these keys.
    #[cfg(test)]
    pub(crate) fn of<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let hasher = RandomState::new();
        let mut hashes: Vec<u64> = keys.into_iter().map(|key| hasher.hash_one(key)).collect();
        hashes.sort_unstable();
        Self { hasher, hashes: hashes.into() }
    }

    /// Returns whether a key is in the set.
    #[must_use]
    pub fn had(&self, key: &[u8]) -> bool {
        self.hashes.binary_search(&self.hasher.hash_one(key)).is_ok()
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }
}

/// Leases for one purpose: keys or locks.
pub(super) struct Leases {
    life: Duration,
    keys_per_lease_max: u32,
    hasher: RandomState,
    book: Mutex<Book>,
    /// Held while a lease is granted, so that only one is requested at a time. The waiting tasks
    /// then choose again.
    granting: tokio::sync::Mutex<()>,
    /// Notified when a lease was added, or when all must be renewed.
    changed: Notify,
}

#[derive(Default)]
struct Book {
    leases: BTreeMap<u32, Held>,
    /// Internal number of each lease.
    numbers: HashMap<LeaseId, u32>,
    /// Leases of keys, by the hash of the key.
    keys: HashMap<u64, Place>,
    /// Prefixes and their observers. The index in this list is the scope.
    observers: Vec<(Vec<u8>, Option<Observer>)>,
    next_number: u32,
    /// Lease for the next new key.
    current: Option<u32>,
}

#[derive(Clone, Copy)]
struct Place {
    lease: u32,
    scope: u16,
}

struct Held {
    id: LeaseId,
    keys: u32,
    renew_at: Instant,
    lost_at: Instant,
    gone: CancellationToken,
}

impl Leases {
    pub(super) fn new(life: Duration, keys_per_lease_max: u32) -> Self {
        Self {
            life,
            keys_per_lease_max: keys_per_lease_max.max(1),
            hasher: RandomState::new(),
            book: Mutex::default(),
            granting: tokio::sync::Mutex::new(()),
            changed: Notify::new(),
        }
    }

    /// Returns the lease for a key: its existing one, otherwise one with capacity, otherwise a new
    /// one. The key is counted from now on.
    pub(super) async fn lease_for(&self, connection: &Connection, key: &[u8]) -> Result<LeaseId, KvstoreError> {
        if let Some(lease) = self.choose(key) {
            return Ok(lease);
        }
        // held across the call on purpose: a waiting task chooses again, and usually gets the lease
        // that was just granted
        let _granting = self.granting.lock().await;
        if let Some(lease) = self.choose(key) {
            return Ok(lease);
        }
        let asked_at = Instant::now();
        let id = connection.grant(self.life).await?;
        tracing::debug!(lease = format!("{:x}", id.0), life = ?self.life, "got a lease");
        self.book().add(id, asked_at, self.life);
        self.changed.notify_one();
        Ok(self.choose(key).unwrap_or(id))
    }

    /// Attaches a key to a lease of another session, which is renewed from now on like our own. The
    /// first renewal follows at once and shows whether the lease still exists.
    pub(super) fn adopt(&self, key: &[u8], lease: LeaseId) {
        let hash = self.hasher.hash_one(key);
        let life = self.life;
        if self.book().adopt(hash, key, lease, life) {
            self.changed.notify_one();
        }
    }

    fn choose(&self, key: &[u8]) -> Option<LeaseId> {
        let hash = self.hasher.hash_one(key);
        self.book().choose(hash, key, self.keys_per_lease_max)
    }

    /// Returns the lease that a key is attached to.
    pub(super) fn lease_of(&self, key: &[u8]) -> Option<LeaseId> {
        let book = self.book();
        let place = book.keys.get(&self.hasher.hash_one(key))?;
        book.leases.get(&place.lease).map(|held| held.id)
    }

    /// Stops counting a key.
    pub(super) fn release(&self, key: &[u8]) {
        let hash = self.hasher.hash_one(key);
        self.book().release(hash);
    }

    /// Returns whether any key is counted.
    pub(super) fn is_in_use(&self) -> bool {
        !self.book().keys.is_empty()
    }

    /// Returns the number of leases.
    pub(super) fn count(&self) -> usize {
        self.book().leases.len()
    }

    /// Returns all leases, to be revoked.
    pub(super) fn ids(&self) -> Vec<LeaseId> {
        self.book().leases.values().map(|held| held.id).collect()
    }

    /// Returns a token that is cancelled once the lease is lost; already cancelled if the lease is
    /// unknown.
    pub(super) fn gone(&self, lease: LeaseId) -> CancellationToken {
        self.book().held(lease).map_or_else(cancelled, |held| held.gone.clone())
    }

    /// Sets or removes the observer of a prefix. Keys that are counted already keep their
    /// observer's scope.
    pub(super) fn observe(&self, prefix: &[u8], observer: Option<Observer>) {
        let mut book = self.book();
        match book.observers.iter_mut().find(|(known, _)| known == prefix) {
            Some((_, place)) => *place = observer,
            None => book.observers.push((prefix.to_vec(), observer)),
        }
    }

    /// Handles leases that etcd no longer has. Scans all keys only once for all leases, because a
    /// wiped etcd loses all of them.
    pub(super) fn lose(&self, leases: &[LeaseId]) {
        let mut book = self.book();
        let lost: BTreeSet<u32> = leases.iter().filter_map(|lease| book.numbers.get(lease).copied()).collect();
        if lost.is_empty() {
            return;
        }
        let told = book.lose(&lost, &self.hasher);
        drop(book);
        let first = leases.first().map(|lease| format!("{:x}", lease.0));
        tracing::warn!(count = lost.len(), first, "leases were lost: their writers write the keys again");
        for (observer, lost) in told {
            observer(&lost);
        }
    }

    /// Handles a change of the etcd's history: all leases are lost.
    pub(super) fn lose_all(&self) {
        self.lose(&self.ids());
    }

    /// Renews all leases at once, because this etcd may no longer have them.
    pub(super) fn renew_all(&self) {
        let now = Instant::now();
        self.book().leases.values_mut().for_each(|held| held.renew_at = now);
        self.changed.notify_one();
    }

    /// Renews the leases for as long as it is polled: each after a third of its life. Failed
    /// renewals are repeated until the lease has expired.
    pub(super) async fn keep(&self, connection: impl Fn() -> Option<Connection>) {
        loop {
            let next = self.book().leases.values().map(|held| held.renew_at.min(held.lost_at)).min();
            let wait = async {
                match next {
                    Some(time) => tokio::time::sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.changed.notified() => continue,
            }
            let now = Instant::now();
            let over: Vec<LeaseId> = self.book().leases.values().filter(|held| held.lost_at <= now).map(|held| held.id).collect();
            self.lose(&over);
            self.renew_due(connection(), now).await;
        }
    }

    async fn renew_due(&self, connection: Option<Connection>, now: Instant) {
        let due: Vec<LeaseId> = self.book().leases.values().filter(|held| held.renew_at <= now).map(|held| held.id).collect();
        let Some(connection) = connection else {
            due.into_iter().for_each(|lease| self.retry(lease));
            return;
        };
        // a response that takes longer must not delay the other renewals
        let limit = (self.life / 3).min(Duration::from_secs(10));
        let calls = due.into_iter().map(|lease| {
            let connection = connection.clone();
            async move {
                let asked_at = Instant::now();
                (lease, asked_at, connection.keep_alive(lease, limit).await)
            }
        });
        let mut answers = stream::iter(calls).buffer_unordered(RENEWALS_AT_ONCE);
        let mut lost = Vec::new();
        while let Some((lease, asked_at, answer)) = answers.next().await {
            match answer {
                Ok(true) => self.renewed(lease, asked_at),
                Ok(false) => lost.push(lease),
                Err(error) => {
                    tracing::debug!(lease = format!("{:x}", lease.0), %error, "cannot renew a lease");
                    self.retry(lease);
                }
            }
        }
        self.lose(&lost);
    }

    fn renewed(&self, lease: LeaseId, asked_at: Instant) {
        if let Some(held) = self.book().held(lease) {
            (held.renew_at, held.lost_at) = (asked_at + self.life / 3, asked_at + self.life);
        }
    }

    fn retry(&self, lease: LeaseId) {
        if let Some(held) = self.book().held(lease) {
            held.renew_at = Instant::now() + RETRY_INTERVAL;
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn held(&mut self, lease: LeaseId) -> Option<&mut Held> {
        let number = self.numbers.get(&lease)?;
        self.leases.get_mut(number)
    }

    fn add(&mut self, id: LeaseId, asked_at: Instant, life: Duration) {
        let number = self.next_number;
        self.next_number = self.next_number.wrapping_add(1);
        // a new lease is renewed after a third of its life
        let held = Held { id, keys: 0, renew_at: asked_at + life / 3, lost_at: asked_at + life, gone: CancellationToken::new() };
        self.leases.insert(number, held);
        self.numbers.insert(id, number);
        self.current = Some(number);
    }

    /// Attaches a key to a lease. Returns whether the lease is new here.
    fn adopt(&mut self, hash: u64, key: &[u8], id: LeaseId, life: Duration) -> bool {
        let known = self.numbers.get(&id).copied();
        let number = known.unwrap_or_else(|| {
            let current = self.current;
            let now = Instant::now();
            self.add(id, now, life);
            let number = self.next_number.wrapping_sub(1);
            if let Some(held) = self.leases.get_mut(&number) {
                held.renew_at = now;
            }
            self.current = current;
            number
        });
        self.release(hash);
        let scope = self.scope(key);
        self.keys.insert(hash, Place { lease: number, scope });
        if let Some(held) = self.leases.get_mut(&number) {
            held.keys += 1;
        }
        known.is_none()
    }

    fn choose(&mut self, hash: u64, key: &[u8], keys_per_lease_max: u32) -> Option<LeaseId> {
        if let Some(held) = self.keys.get(&hash).and_then(|place| self.leases.get(&place.lease)) {
            return Some(held.id);
        }
        let has_room = |number: &u32, book: &Self| book.leases.get(number).is_some_and(|held| held.keys < keys_per_lease_max);
        let number = self.current.filter(|number| has_room(number, self));
        let number = number.or_else(|| self.leases.keys().copied().find(|number| has_room(number, self)))?;
        self.current = Some(number);
        let scope = self.scope(key);
        self.keys.insert(hash, Place { lease: number, scope });
        self.leases.get_mut(&number).map(|held| {
            held.keys += 1;
            held.id
        })
    }

    /// Returns the index of the longest observed prefix of a key.
    fn scope(&self, key: &[u8]) -> u16 {
        let matching = self.observers.iter().enumerate().filter(|(_, (prefix, _))| key.starts_with(prefix));
        let longest = matching.max_by_key(|(_, (prefix, _))| prefix.len());
        longest.and_then(|(place, _)| u16::try_from(place).ok()).unwrap_or(NO_SCOPE)
    }

    fn release(&mut self, hash: u64) {
        if let Some(place) = self.keys.remove(&hash)
            && let Some(held) = self.leases.get_mut(&place.lease)
        {
            held.keys -= 1;
        }
    }

    /// Removes leases and their keys. Returns the observers to call, each with its lost keys.
    fn lose(&mut self, leases: &BTreeSet<u32>, hasher: &RandomState) -> Vec<(Observer, LostKeys)> {
        for number in leases {
            if let Some(held) = self.leases.remove(number) {
                self.numbers.remove(&held.id);
                held.gone.cancel();
            }
        }
        let mut by_scope: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
        self.keys.retain(|hash, place| {
            let lost = leases.contains(&place.lease);
            if lost {
                by_scope.entry(place.scope).or_default().push(*hash);
            }
            !lost
        });
        let told = by_scope.into_iter().filter_map(|(scope, mut hashes)| {
            let (_, observer) = self.observers.get(usize::from(scope))?;
            hashes.sort_unstable();
            Some((observer.clone()?, LostKeys { hasher: hasher.clone(), hashes: hashes.into() }))
        });
        told.collect()
    }
}

fn cancelled() -> CancellationToken {
    let token = CancellationToken::new();
    token.cancel();
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(leases: &Leases, key: &str) -> Option<i64> {
        leases.choose(key.as_bytes()).map(|lease| lease.0)
    }

    fn grant(leases: &Leases, id: i64) {
        leases.book().add(LeaseId(id), Instant::now(), leases.life);
    }

    #[tokio::test]
    async fn a_key_keeps_its_lease_and_new_ones_fill_the_current_one_then_any_with_room() {
        let leases = Leases::new(Duration::from_secs(60), 2);
        assert_eq!(choose(&leases, "a"), None, "there is none to be had");
        grant(&leases, 1);
        assert_eq!((choose(&leases, "a"), choose(&leases, "b")), (Some(1), Some(1)));
        assert_eq!(choose(&leases, "c"), None, "full");
        grant(&leases, 2);
        assert_eq!((choose(&leases, "c"), choose(&leases, "a"), choose(&leases, "d")), (Some(2), Some(1), Some(2)));
        leases.release(b"a");
        leases.release(b"a");
        assert_eq!((choose(&leases, "e"), choose(&leases, "f")), (Some(1), None), "one has room for one");
        assert_eq!(leases.lease_of(b"e"), Some(LeaseId(1)));
        assert_eq!(leases.lease_of(b"a"), None);
    }

    #[tokio::test]
    async fn of_a_lost_lease_each_observer_hears_of_the_keys_below_its_prefix() {
        let leases = Leases::new(Duration::from_secs(60), 100);
        type Heard = Vec<(&'static str, usize, bool, bool)>;
        let heard: Arc<Mutex<Heard>> = Arc::default();
        for prefix in ["n/", "n/x/", "s/"] {
            let heard = Arc::clone(&heard);
            let note = move |lost: &LostKeys| heard.lock().unwrap().push((prefix, lost.len(), lost.had(b"n/a"), lost.had(b"n/x/a")));
            leases.observe(prefix.as_bytes(), Some(Arc::new(note)));
        }
        grant(&leases, 1);
        for key in ["n/a", "n/b", "n/x/a", "elsewhere"] {
            choose(&leases, key);
        }
        let gone = leases.gone(LeaseId(1));
        leases.observe(b"s/", None);
        leases.lose(&[LeaseId(1)]);
        leases.lose(&[LeaseId(1)]);
        assert_eq!(*heard.lock().unwrap(), [("n/", 2, true, false), ("n/x/", 1, false, true)]);
        assert!(gone.is_cancelled() && !leases.is_in_use());
        assert_eq!(choose(&leases, "n/a"), None, "a lost lease is not chosen");
    }
}
