//! Copy of all numbers of a store and their keys, which follows the store
//! (`pkg/allocator/cache.go`). No IO.

use std::collections::{BTreeSet, HashMap};

use super::backend::Id;
use super::key::AllocatorKey;
use crate::Revision;

/// Placeholder revision of entries that the store has not reported yet. Higher than any real
/// revision.
const UNREPORTED: Revision = Revision(i64::MAX);

/// Copy of a store. While a list is being read, its entries fill a second set. Lookups use the
/// first set until the list is complete. The second set then replaces the first.
#[derive(Debug, Default)]
pub(super) struct Cache {
    live: CacheEntries,
    /// Entries of the list that is being read.
    next: Option<CacheEntries>,
}

/// Numbers and keys, indexed in both directions.
#[derive(Debug, Default)]
struct CacheEntries {
    by_id: HashMap<Id, (AllocatorKey, Revision)>,
    /// A key may temporarily have several numbers: a node that died between its two writes left a
    /// number, which the collector deletes. The oldest of them counts as the number of the key.
    by_key: BTreeSet<(AllocatorKey, Revision, Id)>,
}

impl CacheEntries {
    fn insert(&mut self, id: Id, key: &AllocatorKey, revision: Revision) -> Option<AllocatorKey> {
        let previous = self.by_id.insert(id, (key.clone(), revision));
        if let Some((previous, since)) = previous.clone() {
            self.by_key.remove(&(previous, since, id));
        }
        self.by_key.insert((key.clone(), revision, id));
        previous.map(|(key, _)| key)
    }

    fn remove(&mut self, id: Id) -> Option<AllocatorKey> {
        let (key, revision) = self.by_id.remove(&id)?;
        self.by_key.remove(&(key.clone(), revision, id));
        Some(key)
    }
}

impl Cache {
    /// Starts a list. Lookups use the current entries until the list is complete.
    pub(super) fn begin_list(&mut self) {
        self.next = Some(CacheEntries::default());
    }

    /// Completes the list. Returns the entries that were removed because the list does not have
    /// them.
    pub(super) fn finish_list(&mut self) -> Vec<(Id, AllocatorKey)> {
        let Some(next) = self.next.take() else { return Vec::new() };
        let removed =
            self.live.by_id.iter().filter(|(id, _)| !next.by_id.contains_key(id)).map(|(id, (key, _))| (*id, key.clone())).collect();
        self.live = next;
        removed
    }

    /// Aborts the list. Returns the entries that were new in it.
    pub(super) fn abort_list(&mut self) -> Vec<(Id, AllocatorKey)> {
        let next = self.next.take().unwrap_or_default();
        next.by_id.into_iter().filter(|(id, _)| !self.live.by_id.contains_key(id)).map(|(id, (key, _))| (id, key)).collect()
    }

    /// Inserts a number and its key. Returns the key that the number had before.
    pub(super) fn insert(&mut self, id: Id, key: &AllocatorKey, revision: Revision) -> Option<AllocatorKey> {
        match &mut self.next {
            None => self.live.insert(id, key, revision),
            Some(next) => next.insert(id, key, revision).or_else(|| self.live.by_id.get(&id).map(|(key, _)| key.clone())),
        }
    }

    /// Inserts a number that the store has not reported yet. It sorts after all reported numbers of
    /// the key.
    pub(super) fn insert_unreported(&mut self, id: Id, key: &AllocatorKey) {
        if self.key(id) != Some(key) {
            self.insert(id, key, UNREPORTED);
        }
    }

    /// Returns whether the store has reported that a number belongs to a key.
    pub(super) fn is_reported(&self, id: Id, key: &AllocatorKey) -> bool {
        self.live.by_id.get(&id).is_some_and(|(known, revision)| known == key && *revision != UNREPORTED)
    }

    /// Removes a number. Returns its key.
    pub(super) fn remove(&mut self, id: Id) -> Option<AllocatorKey> {
        match &mut self.next {
            None => self.live.remove(id),
            Some(next) => next.remove(id),
        }
    }

    /// Returns the number of a key: the oldest if there are several.
    pub(super) fn id(&self, key: &AllocatorKey) -> Option<Id> {
        self.ids(key).next()
    }

    /// Iterates over the numbers of a key, oldest first.
    pub(super) fn ids(&self, key: &AllocatorKey) -> impl Iterator<Item = Id> {
        let all = (key.clone(), Revision(i64::MIN), Id::MIN)..=(key.clone(), UNREPORTED, Id::MAX);
        self.live.by_key.range(all).map(|(_, _, id)| *id)
    }

    /// Returns the key of a number.
    pub(super) fn key(&self, id: Id) -> Option<&AllocatorKey> {
        self.live.by_id.get(&id).map(|(key, _)| key)
    }

    /// Iterates over all numbers with their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Id, &AllocatorKey)> {
        self.live.by_id.iter().map(|(id, (key, _))| (*id, key))
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.live.by_id.len()
    }
}
