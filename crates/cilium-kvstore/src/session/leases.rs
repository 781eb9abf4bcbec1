//! Leases: the lease of each key, the time to live of each lease, and the observers that are called
//! when a lease is lost (Cilium's `etcd_lease.go`).
//!
//! A session has two [`Leases`]: one for keys, and one for locks, whose leases have a short time to
//! live. Only hashes of keys are stored, so that a million keys use some 30 MB. An observer
//! therefore stores its own keys, and checks for each of them whether its lease was lost.

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

/// Wait after a failed attempt to renew a lease (etcd's client: `retryConnWait`).
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum concurrent renewals. With 8 of them and a round trip of 8 ms, a thousand leases (a
/// million keys) are renewed within a second.
const CONCURRENT_RENEWALS_MAX: usize = 8;

/// Value of [`KeyLease::observer_index`] for a key that matches no observer's prefix.
const NO_OBSERVER: u16 = u16::MAX;

/// Callback for lost leases.
type LeaseObserver = Arc<dyn Fn(&LostKeys) + Send + Sync>;

/// Keys whose lease was lost.
#[derive(Clone)]
pub struct LostKeys {
    hasher: RandomState,
    /// Sorted hashes of the keys.
    hashes: Arc<[u64]>,
}

impl LostKeys {
    #[cfg(test)]
    pub(crate) fn from_keys<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let hasher = RandomState::new();
        let mut hashes: Vec<u64> = keys.into_iter().map(|key| hasher.hash_one(key)).collect();
        hashes.sort_unstable();
        Self { hasher, hashes: hashes.into() }
    }

    /// Returns whether a key is in the set.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
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
    ttl: Duration,
    keys_per_lease_max: u32,
    hasher: RandomState,
    table: Mutex<LeaseTable>,
    /// Locked while a lease is granted, so that only one lease is requested at a time. The waiting
    /// tasks then choose a lease again.
    granting: tokio::sync::Mutex<()>,
    /// Notified when a lease was added, or when all leases must be renewed.
    changed: Notify,
}

#[derive(Default)]
struct LeaseTable {
    leases: BTreeMap<u32, TrackedLease>,
    /// Internal number of each lease.
    numbers: HashMap<LeaseId, u32>,
    /// Leases of keys, by the hash of the key.
    key_leases: HashMap<u64, KeyLease>,
    /// Prefixes and their observers. [`KeyLease::observer_index`] is an index in this list.
    observers: Vec<(Vec<u8>, Option<LeaseObserver>)>,
    next_number: u32,
    /// Lease for the next new key.
    current: Option<u32>,
}

#[derive(Clone, Copy)]
struct KeyLease {
    /// Internal number of the lease.
    lease: u32,
    /// Index in [`LeaseTable::observers`] of the longest prefix that matches the key.
    observer_index: u16,
}

struct TrackedLease {
    id: LeaseId,
    key_count: u32,
    renew_at: Instant,
    /// Time at which the lease counts as lost unless it is renewed before.
    lost_at: Instant,
    lost_token: CancellationToken,
}

impl Leases {
    pub(super) fn new(ttl: Duration, keys_per_lease_max: u32) -> Self {
        Self {
            ttl,
            keys_per_lease_max: keys_per_lease_max.max(1),
            hasher: RandomState::new(),
            table: Mutex::default(),
            granting: tokio::sync::Mutex::new(()),
            changed: Notify::new(),
        }
    }

    /// Returns the lease for a key: the lease that it already has, otherwise a lease with capacity,
    /// otherwise a new lease. From now on the key is counted among the lease's keys.
    pub(super) async fn lease_for(&self, connection: &Connection, key: &[u8]) -> Result<LeaseId, KvstoreError> {
        if let Some(lease) = self.choose(key) {
            return Ok(lease);
        }
        // stays locked during the call on purpose: a waiting task chooses again, and usually gets
        // the new lease
        let _granting = self.granting.lock().await;
        if let Some(lease) = self.choose(key) {
            return Ok(lease);
        }
        let requested_at = Instant::now();
        let id = connection.grant(self.ttl).await?;
        tracing::debug!(lease = format!("{:x}", id.0), ttl_s = self.ttl.as_secs_f64(), "granted a lease");
        self.table().add(id, requested_at, self.ttl);
        self.changed.notify_one();
        Ok(self.choose(key).unwrap_or(id))
    }

    /// Attaches a key to the lease of another session. This session renews the lease from now on.
    /// The first renewal follows at once and shows whether the lease still exists.
    pub(super) fn adopt(&self, key: &[u8], lease: LeaseId) {
        let hash = self.hasher.hash_one(key);
        let ttl = self.ttl;
        if self.table().adopt(hash, key, lease, ttl) {
            self.changed.notify_one();
        }
    }

    fn choose(&self, key: &[u8]) -> Option<LeaseId> {
        let hash = self.hasher.hash_one(key);
        self.table().choose(hash, key, self.keys_per_lease_max)
    }

    /// Returns the lease that a key is attached to.
    pub(super) fn lease_of(&self, key: &[u8]) -> Option<LeaseId> {
        let table = self.table();
        let key_lease = table.key_leases.get(&self.hasher.hash_one(key))?;
        table.leases.get(&key_lease.lease).map(|lease| lease.id)
    }

    /// Stops counting a key among its lease's keys.
    pub(super) fn release(&self, key: &[u8]) {
        let hash = self.hasher.hash_one(key);
        self.table().release(hash);
    }

    /// Returns whether any key has a lease.
    pub(super) fn is_in_use(&self) -> bool {
        !self.table().key_leases.is_empty()
    }

    /// Returns the number of leases.
    pub(super) fn count(&self) -> usize {
        self.table().leases.len()
    }

    /// Returns the ids of all leases.
    pub(super) fn ids(&self) -> Vec<LeaseId> {
        self.table().leases.values().map(|lease| lease.id).collect()
    }

    /// Returns a token that is cancelled once the lease is lost; already cancelled if the lease is
    /// unknown.
    pub(super) fn lost_token(&self, lease: LeaseId) -> CancellationToken {
        self.table().lease(lease).map_or_else(cancelled, |lease| lease.lost_token.clone())
    }

    /// Sets or removes the observer of a prefix. A key that already has a lease stays with the
    /// prefix that matched when it got the lease.
    pub(super) fn set_observer(&self, prefix: &[u8], observer: Option<LeaseObserver>) {
        let mut table = self.table();
        match table.observers.iter_mut().find(|(observed, _)| observed == prefix) {
            Some((_, current)) => *current = observer,
            None => table.observers.push((prefix.to_vec(), observer)),
        }
    }

    /// Handles leases that etcd no longer has. Scans all keys once for all these leases, because a
    /// wiped etcd loses all of them.
    pub(super) fn mark_lost(&self, leases: &[LeaseId]) {
        let mut table = self.table();
        let lost: BTreeSet<u32> = leases.iter().filter_map(|lease| table.numbers.get(lease).copied()).collect();
        if lost.is_empty() {
            return;
        }
        let affected = table.mark_lost(&lost, &self.hasher);
        drop(table);
        let first = leases.first().map(|lease| format!("{:x}", lease.0));
        tracing::warn!(count = lost.len(), first, "leases were lost; their keys will be written again");
        for (observer, lost) in affected {
            observer(&lost);
        }
    }

    /// Handles a change of the etcd's history: all leases are lost.
    pub(super) fn mark_all_lost(&self) {
        self.mark_lost(&self.ids());
    }

    /// Renews all leases at once, because the etcd of a new connection may no longer have them.
    pub(super) fn renew_all(&self) {
        let now = Instant::now();
        self.table().leases.values_mut().for_each(|lease| lease.renew_at = now);
        self.changed.notify_one();
    }

    /// Renews leases for as long as the future is polled: each lease after a third of its time to
    /// live. A failed renewal is repeated until the lease expires.
    pub(super) async fn renew_until_dropped(&self, connection: impl Fn() -> Option<Connection>) {
        loop {
            let next = self.table().leases.values().map(|lease| lease.renew_at.min(lease.lost_at)).min();
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
            let expired: Vec<LeaseId> = self.table().leases.values().filter(|lease| lease.lost_at <= now).map(|lease| lease.id).collect();
            self.mark_lost(&expired);
            self.renew_due(connection(), now).await;
        }
    }

    async fn renew_due(&self, connection: Option<Connection>, now: Instant) {
        let due: Vec<LeaseId> = self.table().leases.values().filter(|lease| lease.renew_at <= now).map(|lease| lease.id).collect();
        let Some(connection) = connection else {
            due.into_iter().for_each(|lease| self.retry_later(lease));
            return;
        };
        // a slow response must not delay the renewal of the other leases
        let limit = (self.ttl / 3).min(Duration::from_secs(10));
        let calls = due.into_iter().map(|lease| {
            let connection = connection.clone();
            async move {
                let requested_at = Instant::now();
                (lease, requested_at, connection.keep_alive(lease, limit).await)
            }
        });
        let mut answers = stream::iter(calls).buffer_unordered(CONCURRENT_RENEWALS_MAX);
        let mut lost = Vec::new();
        while let Some((lease, requested_at, answer)) = answers.next().await {
            match answer {
                Ok(true) => self.set_renewed(lease, requested_at),
                Ok(false) => lost.push(lease),
                Err(error) => {
                    tracing::debug!(lease = format!("{:x}", lease.0), %error, "cannot renew a lease");
                    self.retry_later(lease);
                }
            }
        }
        self.mark_lost(&lost);
    }

    fn set_renewed(&self, lease: LeaseId, requested_at: Instant) {
        if let Some(lease) = self.table().lease(lease) {
            (lease.renew_at, lease.lost_at) = (requested_at + self.ttl / 3, requested_at + self.ttl);
        }
    }

    fn retry_later(&self, lease: LeaseId) {
        if let Some(lease) = self.table().lease(lease) {
            lease.renew_at = Instant::now() + RETRY_INTERVAL;
        }
    }

    fn table(&self) -> MutexGuard<'_, LeaseTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaseTable {
    fn lease(&mut self, lease: LeaseId) -> Option<&mut TrackedLease> {
        let number = self.numbers.get(&lease)?;
        self.leases.get_mut(number)
    }

    fn add(&mut self, id: LeaseId, requested_at: Instant, ttl: Duration) {
        let number = self.next_number;
        self.next_number = self.next_number.wrapping_add(1);
        // a new lease is renewed after a third of its life
        let lease = TrackedLease {
            id,
            key_count: 0,
            renew_at: requested_at + ttl / 3,
            lost_at: requested_at + ttl,
            lost_token: CancellationToken::new(),
        };
        self.leases.insert(number, lease);
        self.numbers.insert(id, number);
        self.current = Some(number);
    }

    /// Attaches a key to a lease. Returns whether the lease was unknown before.
    fn adopt(&mut self, hash: u64, key: &[u8], id: LeaseId, ttl: Duration) -> bool {
        let known = self.numbers.get(&id).copied();
        let number = known.unwrap_or_else(|| {
            let current = self.current;
            let now = Instant::now();
            self.add(id, now, ttl);
            let number = self.next_number.wrapping_sub(1);
            if let Some(lease) = self.leases.get_mut(&number) {
                lease.renew_at = now;
            }
            self.current = current;
            number
        });
        self.release(hash);
        let observer_index = self.observer_index(key);
        self.key_leases.insert(hash, KeyLease { lease: number, observer_index });
        if let Some(lease) = self.leases.get_mut(&number) {
            lease.key_count += 1;
        }
        known.is_none()
    }

    fn choose(&mut self, hash: u64, key: &[u8], keys_per_lease_max: u32) -> Option<LeaseId> {
        if let Some(lease) = self.key_leases.get(&hash).and_then(|key_lease| self.leases.get(&key_lease.lease)) {
            return Some(lease.id);
        }
        let has_capacity = |number: &u32, table: &Self| table.leases.get(number).is_some_and(|lease| lease.key_count < keys_per_lease_max);
        let number = self.current.filter(|number| has_capacity(number, self));
        let number = number.or_else(|| self.leases.keys().copied().find(|number| has_capacity(number, self)))?;
        self.current = Some(number);
        let observer_index = self.observer_index(key);
        self.key_leases.insert(hash, KeyLease { lease: number, observer_index });
        self.leases.get_mut(&number).map(|lease| {
            lease.key_count += 1;
            lease.id
        })
    }

    /// Returns the index of the observer with the longest prefix that matches a key.
    fn observer_index(&self, key: &[u8]) -> u16 {
        let matching = self.observers.iter().enumerate().filter(|(_, (prefix, _))| key.starts_with(prefix));
        let longest = matching.max_by_key(|(_, (prefix, _))| prefix.len());
        longest.and_then(|(index, _)| u16::try_from(index).ok()).unwrap_or(NO_OBSERVER)
    }

    fn release(&mut self, hash: u64) {
        if let Some(key_lease) = self.key_leases.remove(&hash)
            && let Some(lease) = self.leases.get_mut(&key_lease.lease)
        {
            lease.key_count -= 1;
        }
    }

    /// Removes leases and their keys. Returns the observers to call, each with its lost keys.
    fn mark_lost(&mut self, leases: &BTreeSet<u32>, hasher: &RandomState) -> Vec<(LeaseObserver, LostKeys)> {
        for number in leases {
            if let Some(lease) = self.leases.remove(number) {
                self.numbers.remove(&lease.id);
                lease.lost_token.cancel();
            }
        }
        let mut by_observer: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
        self.key_leases.retain(|hash, key_lease| {
            let lost = leases.contains(&key_lease.lease);
            if lost {
                by_observer.entry(key_lease.observer_index).or_default().push(*hash);
            }
            !lost
        });
        let affected = by_observer.into_iter().filter_map(|(index, mut hashes)| {
            let (_, observer) = self.observers.get(usize::from(index))?;
            hashes.sort_unstable();
            Some((observer.clone()?, LostKeys { hasher: hasher.clone(), hashes: hashes.into() }))
        });
        affected.collect()
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
        leases.table().add(LeaseId(id), Instant::now(), leases.ttl);
    }

    #[tokio::test]
    async fn keys_keep_their_lease_and_new_keys_use_the_current_lease() {
        let leases = Leases::new(Duration::from_secs(60), 2);
        assert_eq!(choose(&leases, "a"), None, "no lease has been granted");
        grant(&leases, 1);
        assert_eq!((choose(&leases, "a"), choose(&leases, "b")), (Some(1), Some(1)));
        assert_eq!(choose(&leases, "c"), None, "the lease is full");
        grant(&leases, 2);
        assert_eq!((choose(&leases, "c"), choose(&leases, "a"), choose(&leases, "d")), (Some(2), Some(1), Some(2)));
        leases.release(b"a");
        leases.release(b"a");
        assert_eq!((choose(&leases, "e"), choose(&leases, "f")), (Some(1), None), "one lease has capacity for one key");
        assert_eq!(leases.lease_of(b"e"), Some(LeaseId(1)));
        assert_eq!(leases.lease_of(b"a"), None);
    }

    #[tokio::test]
    async fn observers_get_the_lost_keys_below_their_prefix() {
        let leases = Leases::new(Duration::from_secs(60), 100);
        type LossReports = Vec<(&'static str, usize, bool, bool)>;
        let reports: Arc<Mutex<LossReports>> = Arc::default();
        for prefix in ["n/", "n/x/", "s/"] {
            let reports = Arc::clone(&reports);
            let record_loss =
                move |lost: &LostKeys| reports.lock().unwrap().push((prefix, lost.len(), lost.contains(b"n/a"), lost.contains(b"n/x/a")));
            leases.set_observer(prefix.as_bytes(), Some(Arc::new(record_loss)));
        }
        grant(&leases, 1);
        for key in ["n/a", "n/b", "n/x/a", "elsewhere"] {
            choose(&leases, key);
        }
        let lost_token = leases.lost_token(LeaseId(1));
        leases.set_observer(b"s/", None);
        leases.mark_lost(&[LeaseId(1)]);
        leases.mark_lost(&[LeaseId(1)]);
        assert_eq!(*reports.lock().unwrap(), [("n/", 2, true, false), ("n/x/", 1, false, true)]);
        assert!(lost_token.is_cancelled() && !leases.is_in_use());
        assert_eq!(choose(&leases, "n/a"), None, "a lost lease is not chosen");
    }
}
