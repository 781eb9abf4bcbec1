//! Store that follows a prefix across successive sessions (Cilium's `watchstore.go`). Known entries
//! stay until a new list is complete. Entries that are missing from the list are then reported as
//! deleted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::{Observer, Validate, name_below};
use crate::error::printable;
use crate::{EventKind, Session};

/// Capacity of the queue of events (Cilium's store: 64; more here, because lists are read in pages
/// of 256).
const EVENTS_MAX: usize = 256;

/// Local copy of all keys with a prefix.
pub struct WatchStore {
    observer: Arc<dyn Observer>,
    validate: Option<Validate>,
    entries: Mutex<BTreeMap<Vec<u8>, StoreEntry>>,
    synced: watch::Sender<bool>,
    /// Held while a watch runs: two concurrent watches would treat each other's keys as stale.
    watching: tokio::sync::Mutex<()>,
}

struct StoreEntry {
    value: Arc<[u8]>,
    stale: bool,
}

impl WatchStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new(observer: Arc<dyn Observer>, validate: Option<Validate>) -> Self {
        let (entries, watching) = (Mutex::default(), tokio::sync::Mutex::new(()));
        Self { observer, validate, entries, synced: watch::Sender::new(false), watching }
    }

    /// Follows `<prefix>/` until the session ends. The caller may drop the future at any time and
    /// call this again, with the same or another session. A second concurrent call waits for the
    /// first one.
    pub async fn watch(&self, session: &Session, prefix: &[u8]) {
        let _watching = self.watching.lock().await;
        let _unsynced = UnsyncedOnDrop(&self.synced);
        self.entries().values_mut().for_each(|entry| entry.stale = true);
        let prefix = [prefix, b"/"].concat();
        let mut watcher = session.list_and_watch(&prefix, EVENTS_MAX);
        while let Some(event) = watcher.next().await {
            let name = name_below(&prefix, &event.key);
            match event.kind {
                EventKind::Create | EventKind::Modify => self.update(name, event.value),
                EventKind::Delete => self.delete(name),
                EventKind::ListDone => {
                    self.prune();
                    self.synced.send_replace(true);
                }
                EventKind::Relisting | EventKind::Relisted => {}
            }
        }
    }

    /// Reports all entries as deleted and removes them. Waits for a running watch to end.
    pub async fn drain(&self) {
        let _watching = self.watching.lock().await;
        let all = std::mem::take(&mut *self.entries());
        for (name, entry) in all {
            self.observer.on_delete(&name, &entry.value);
        }
    }

    /// Returns whether the first list is complete and the prefix is being followed.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits until [`WatchStore::is_synced`] is true.
    pub async fn wait_until_synced(&self) {
        // cannot fail: the sender lives as long as this store
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Returns the number of known keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// Returns whether no key is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    /// Applies a put. An invalid value changes nothing. An old value then stays, but if it is from
    /// an earlier list, the end of the current list removes it as stale.
    fn update(&self, name: &[u8], value: Arc<[u8]>) {
        if let Some(reason) = self.validate.as_ref().and_then(|validate| validate(name, &value).err()) {
            tracing::warn!(name = printable(name), reason, "a value cannot be used");
            return;
        }
        self.entries().insert(name.to_vec(), StoreEntry { value: Arc::clone(&value), stale: false });
        self.observer.on_update(name, &value);
    }

    fn delete(&self, name: &[u8]) {
        let removed = self.entries().remove(name);
        match removed {
            Some(entry) => self.observer.on_delete(name, &entry.value),
            None => tracing::debug!(name = printable(name), "an unknown key was deleted"),
        }
    }

    fn prune(&self) {
        let mut entries = self.entries();
        let stale: Vec<Vec<u8>> = entries.iter().filter(|(_, entry)| entry.stale).map(|(name, _)| name.clone()).collect();
        let removed: Vec<(Vec<u8>, StoreEntry)> = stale.into_iter().filter_map(|name| entries.remove_entry(&name)).collect();
        drop(entries);
        for (name, entry) in removed {
            self.observer.on_delete(&name, &entry.value);
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, StoreEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks the store as not synced when a watch ends, however it ends.
struct UnsyncedOnDrop<'a>(&'a watch::Sender<bool>);

impl Drop for UnsyncedOnDrop<'_> {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}
