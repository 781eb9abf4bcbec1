//! What is to stand in the target, by its keys: the mirror's entries, and what is made here (cluster configs, canaries, the heartbeat).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::handle::{Handle, Reading};
use crate::kvstore::store::{SyncQueue, Wanted};
use crate::kvstore::{Life, Session, keys};
use crate::model::{ClusterName, EntryKey, Kind};

/// How many keys are looked at for one piece of a lost lease's keys: a millisecond or two.
const KEYS_AT_ONCE: usize = 4096;

/// The target, over terms.
pub(super) struct Target {
    pub(super) session: Session,
    pub(super) queue: SyncQueue,
    contents: Arc<Contents>,
}

/// What it is to hold.
struct Contents {
    handle: Handle,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    /// Configs, canaries, the heartbeat: their bytes.
    values: BTreeMap<Vec<u8>, Arc<[u8]>>,
    /// The clusters whose entries are reflected.
    clusters: BTreeSet<ClusterName>,
}

impl Target {
    pub(super) fn new(handle: Handle, session: Session, workers: usize) -> Self {
        let contents = Arc::new(Contents { handle, made: Mutex::default() });
        let queue = SyncQueue::new(session.clone(), Arc::clone(&contents) as Arc<dyn Wanted>, Life::Leased, workers);
        let lost = queue.clone();
        session.on_lease_lost(b"cilium/", move |keys| lost.add_lost(keys));
        Self { session, queue, contents }
    }

    /// The newest state of the mirror.
    pub(super) fn reading(&self) -> Option<Reading> {
        self.contents.handle.try_reading()
    }

    /// Whether the config directory could be read when it was last looked at: else an absent cluster means nothing.
    pub(super) fn directory_is_readable(&self) -> bool {
        self.contents.handle.directory().readable
    }

    /// A cluster's entries are reflected from now on, or not any more.
    pub(super) fn set_reflected(&self, cluster: &ClusterName, reflected: bool) {
        let mut made = self.contents.made();
        if reflected {
            made.clusters.insert(cluster.clone());
        } else {
            made.clusters.remove(cluster);
        }
    }

    /// What a key that is made here is to have; says whether that is new.
    pub(super) fn make(&self, key: &[u8], value: Arc<[u8]>) -> bool {
        let mut made = self.contents.made();
        made.values.insert(key.to_vec(), Arc::clone(&value)).as_deref() != Some(&*value)
    }

    /// What a key that is made here has.
    pub(super) fn made(&self, key: &[u8]) -> Option<Arc<[u8]>> {
        self.contents.made().values.get(key).cloned()
    }

    /// A key is made here no more.
    pub(super) fn unmake(&self, key: &[u8]) {
        self.contents.made().values.remove(key);
    }

    /// A term is over: somebody else may write, so nothing that waits is written.
    pub(super) fn forget(&self) {
        self.queue.clear();
        *self.contents.made() = Made::default();
    }
}

impl Contents {
    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wanted for Contents {
    fn value(&self, key: &[u8]) -> Option<Arc<[u8]>> {
        if !key.starts_with(keys::CACHE_PREFIX.as_bytes()) {
            return self.made().values.get(key).cloned();
        }
        let entry = EntryKey::from_cache_form(str::from_utf8(key).ok()?)?;
        // a mirror that was there once stays
        self.handle.try_reading()?.record(&entry).map(|record| Arc::clone(&record.value))
    }

    fn for_each_key(&self, take: &mut dyn FnMut(&[u8])) {
        let (own, clusters) = {
            let made = self.made();
            (made.values.keys().cloned().collect::<Vec<_>>(), made.clusters.clone())
        };
        own.iter().for_each(|key| take(key));
        let Some(reading) = self.handle.try_reading() else { return };
        for (cluster, kind) in clusters.iter().flat_map(|cluster| Kind::ALL.map(|kind| (cluster, kind))) {
            let mut start = Some(EntryKey::new(kind, cluster.clone(), ""));
            while let Some(from) = start.take() {
                let mut keys = reading.keys_from(&from, KEYS_AT_ONCE + 1);
                start = (keys.len() > KEYS_AT_ONCE).then(|| keys.pop()).flatten();
                keys.iter().for_each(|key| take(key.to_string().as_bytes()));
            }
        }
    }
}
