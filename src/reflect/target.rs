//! Desired contents of the target: the mirror's entries, and the keys that the reflector creates
//! itself (cluster configs, canaries, the heartbeat).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::handle::{Handle, Reading, Reflection};
use crate::model::{ClusterName, EntryKey, Kind};
use crate::wire::time_text;
use cilium_kvstore::store::{DesiredState, SyncQueue};
use cilium_kvstore::{KeyLifetime, LostKeys, Session, keys};

/// Queue group of the keys that the reflector creates itself. The groups of kinds follow.
pub(super) const CREATED_KEYS_GROUP: u32 = 0;

/// Key of the target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum TargetKey {
    /// Entry of the mirror.
    Entry(EntryKey),
    /// Key that the reflector creates itself, or a key that only the target has.
    Other(Vec<u8>),
}

/// The target etcd with its session and its write queue. It lives longer than a term.
pub(super) struct Target {
    pub(super) session: Session,
    pub(super) queue: SyncQueue<Contents>,
    contents: Arc<Contents>,
    /// Canaries whose leases were lost. Canaries do not use the queue's own recovery, because the
    /// queue writes keys in any order.
    lost_canaries: Arc<Mutex<Vec<LostKeys>>>,
    is_leader: AtomicBool,
    errors: Mutex<TargetErrors>,
}

/// Errors that prevent writing, except failures of single writes.
#[derive(Default)]
struct TargetErrors {
    current: Option<String>,
    last: Option<(String, SystemTime)>,
}

/// Desired contents, from which the queue reads the value of each key.
pub(super) struct Contents {
    handle: Handle,
    desired: Mutex<DesiredContents>,
}

#[derive(Default)]
struct DesiredContents {
    /// Values of configs, canaries and the heartbeat, by key.
    values: BTreeMap<Vec<u8>, Arc<[u8]>>,
    /// Clusters whose entries are reflected.
    clusters: BTreeSet<ClusterName>,
    /// Clusters with keys that this process wrote, in this term or an earlier one, and has not
    /// withdrawn yet. Their leases are renewed until the withdrawal is complete.
    written_clusters: BTreeSet<ClusterName>,
}

impl TargetKey {
    /// Parses a key of the target.
    pub(super) fn parse(key: &[u8]) -> Self {
        let entry = str::from_utf8(key).ok().and_then(EntryKey::from_cache_form).filter(|entry| entry.kind.is_mirrored());
        entry.map_or_else(|| Self::Other(key.to_vec()), Self::Entry)
    }
}

impl Target {
    pub(super) fn new(handle: Handle, session: Session, workers: usize) -> Self {
        let contents = Arc::new(Contents { handle, desired: Mutex::default() });
        let queue = SyncQueue::new(session.clone(), Arc::clone(&contents), KeyLifetime::Leased, workers);
        queue.on_lease_lost(b"cilium/", SyncQueue::add_lost_keys);
        let lost_canaries = Arc::<Mutex<Vec<LostKeys>>>::default();
        let lost = Arc::clone(&lost_canaries);
        let record_lost = move |keys: &LostKeys| lost.lock().unwrap_or_else(PoisonError::into_inner).push(keys.clone());
        session.on_lease_lost(keys::SYNCED_PREFIX.as_bytes(), record_lost);
        Self { session, queue, contents, lost_canaries, is_leader: AtomicBool::new(false), errors: Mutex::default() }
    }

    /// Returns the status for the API.
    pub(super) fn reflection(&self) -> Reflection {
        let counts = self.queue.counts();
        let errors = self.errors();
        let last_error = [counts.last_failure, errors.last.clone()].into_iter().flatten().max_by_key(|(_, time)| *time);
        Reflection {
            is_leader: self.is_leader.load(Ordering::Relaxed),
            clusters: self.contents.desired().clusters.len(),
            waiting: counts.waiting,
            lag: counts.longest_wait,
            written: counts.written,
            deleted: counts.deleted,
            failed: counts.failed,
            error: errors.current.clone().or(counts.failing),
            last_error,
        }
    }

    /// Records the current error, or `None` if writing works. Returns whether it differs from the
    /// last one.
    pub(super) fn record_error(&self, error: Option<String>) -> bool {
        let mut errors = self.errors();
        if let Some(error) = &error {
            errors.last = Some((error.clone(), SystemTime::now()));
        }
        let is_new = errors.current != error;
        errors.current = error;
        is_new
    }

    fn errors(&self) -> MutexGuard<'_, TargetErrors> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the start of a term.
    pub(super) fn begin_term(&self) {
        self.is_leader.store(true, Ordering::Relaxed);
        self.record_error(None);
    }

    /// Returns the canaries that lost their leases since the last call.
    pub(super) fn take_lost_canaries(&self) -> Vec<LostKeys> {
        std::mem::take(&mut *self.lost_canaries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the newest state of the mirror.
    pub(super) fn reading(&self) -> Option<Reading> {
        self.contents.handle.try_reading()
    }

    /// Returns whether the config directory was readable at the last scan. If it was not, an absent
    /// client file does not mean that the cluster was removed.
    pub(super) fn directory_is_readable(&self) -> bool {
        self.contents.handle.directory().readable
    }

    /// Starts or stops the reflection of a cluster's entries.
    pub(super) fn set_reflected(&self, cluster: &ClusterName, reflected: bool) {
        let mut desired = self.contents.desired();
        if reflected {
            desired.clusters.insert(cluster.clone());
            desired.written_clusters.insert(cluster.clone());
        } else {
            desired.clusters.remove(cluster);
        }
    }

    /// Returns the clusters with keys that this process wrote and has not withdrawn yet.
    pub(super) fn written_clusters(&self) -> BTreeSet<ClusterName> {
        self.contents.desired().written_clusters.clone()
    }

    /// Records that no keys of a cluster are left in the target.
    pub(super) fn set_withdrawn(&self, cluster: &ClusterName) {
        self.contents.desired().written_clusters.remove(cluster);
    }

    /// Sets the desired value of a created key. Returns whether it changed.
    pub(super) fn set_created_key(&self, key: &[u8], value: Arc<[u8]>) -> bool {
        let mut desired = self.contents.desired();
        desired.values.insert(key.to_vec(), Arc::clone(&value)).as_deref() != Some(&*value)
    }

    /// Sets the desired value of a created key and queues it if it changed.
    pub(super) fn write(&self, key: &[u8], value: Arc<[u8]>) {
        if self.set_created_key(key, value) {
            self.queue.add_now(TargetKey::Other(key.to_vec()), CREATED_KEYS_GROUP);
        }
    }

    /// Sets a canary or the heartbeat to the current time and queues it.
    pub(super) fn write_time(&self, key: &[u8]) {
        self.write(key, time_text(SystemTime::now()).into_bytes().into());
    }

    /// Returns the desired value of a created key.
    pub(super) fn created_value(&self, key: &[u8]) -> Option<Arc<[u8]>> {
        self.contents.desired().values.get(key).cloned()
    }

    /// Returns whether the target must have a key.
    pub(super) fn wants(&self, key: &TargetKey) -> bool {
        let is_not_reflected = matches!(key, TargetKey::Entry(entry) if !self.contents.desired().clusters.contains(&entry.cluster));
        !is_not_reflected && self.contents.value(key).is_some()
    }

    /// Removes a created key from the desired contents.
    pub(super) fn remove_created_key(&self, key: &[u8]) {
        self.contents.desired().values.remove(key);
    }

    /// Ends a term. Queued writes are dropped, because another process may write now.
    pub(super) fn end_term(&self) {
        self.is_leader.store(false, Ordering::Relaxed);
        self.queue.clear();
        let mut desired = self.contents.desired();
        *desired = DesiredContents { written_clusters: std::mem::take(&mut desired.written_clusters), ..DesiredContents::default() };
    }
}

impl Contents {
    fn desired(&self) -> MutexGuard<'_, DesiredContents> {
        self.desired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries_after(&self, last: Option<&EntryKey>, count: usize) -> Vec<TargetKey> {
        let Some(reading) = self.handle.try_reading() else { return Vec::new() };
        let clusters = self.desired().clusters.clone();
        let kind_index = |kind: Kind| Kind::ALL.iter().position(|other| *other == kind);
        let is_passed =
            |cluster: &ClusterName, kind| last.is_some_and(|last| (cluster, kind_index(kind)) < (&last.cluster, kind_index(last.kind)));
        let mut entries: Vec<TargetKey> = Vec::new();
        for (cluster, kind) in clusters.iter().flat_map(|cluster| Kind::ALL.map(|kind| (cluster, kind))) {
            if is_passed(cluster, kind) {
                continue;
            }
            let last = last.filter(|last| last.cluster == *cluster && last.kind == kind);
            let from = last.cloned().unwrap_or_else(|| EntryKey::new(kind, cluster.clone(), ""));
            // the first key of the list is `last` itself
            let keys = reading.keys_from(&from, count - entries.len() + 1);
            let keys = keys.into_iter().filter(|key| Some(key) != last).take(count - entries.len());
            entries.extend(keys.map(TargetKey::Entry));
            if entries.len() == count {
                break;
            }
        }
        entries
    }
}

impl DesiredState for Contents {
    type Key = TargetKey;

    fn etcd_key(&self, key: &TargetKey) -> Vec<u8> {
        match key {
            TargetKey::Entry(key) => key.to_string().into_bytes(),
            TargetKey::Other(key) => key.clone(),
        }
    }

    fn value(&self, key: &TargetKey) -> Option<Arc<[u8]>> {
        match key {
            // a loaded mirror stays loaded, so `None` always means that the entry does not exist
            TargetKey::Entry(key) => self.handle.try_reading()?.value(key),
            TargetKey::Other(key) => self.desired().values.get(key).cloned(),
        }
    }

    /// Returns entries first, because a reader reads the entries once it finds the cluster config.
    fn keys_after(&self, last: Option<&TargetKey>, count: usize) -> Vec<TargetKey> {
        let (entry, created) = match last {
            Some(TargetKey::Other(created)) => (None, Bound::Excluded(created)),
            Some(TargetKey::Entry(entry)) => (Some(entry), Bound::Unbounded),
            None => (None, Bound::Unbounded),
        };
        if created == Bound::Unbounded {
            let entries = self.entries_after(entry, count);
            if !entries.is_empty() {
                return entries;
            }
        }
        self.desired()
            .values
            .range::<Vec<u8>, _>((created, Bound::Unbounded))
            .take(count)
            .map(|(key, _)| TargetKey::Other(key.clone()))
            .collect()
    }
}
