//! A copy of all numbers of a store and their keys, which follows it (`pkg/allocator/cache.go`). Pure.

use std::collections::{BTreeSet, HashMap};

use super::backend::Id;
use super::key::AllocatorKey;
use crate::Revision;

/// The revision of what the store has not told of.
const UNTOLD: Revision = Revision(i64::MAX);

/// The copy. While a list is read it fills beside the one that answers, and takes its place when the list is complete.
#[derive(Debug, Default)]
pub(super) struct Cache {
    live: Entries,
    /// While a list is read.
    next: Option<Entries>,
}

/// Numbers and keys, in both directions.
#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<Id, (AllocatorKey, Revision)>,
    /// A key may have several numbers for a while: a node that died between its two writes left one, which the collector takes. The key's is
    /// the one that was there first.
    by_key: BTreeSet<(AllocatorKey, Revision, Id)>,
}

impl Entries {
    fn insert(&mut self, id: Id, key: &AllocatorKey, revision: Revision) -> Option<AllocatorKey> {
        let former = self.by_id.insert(id, (key.clone(), revision));
        if let Some((former, since)) = former.clone() {
            self.by_key.remove(&(former, since, id));
        }
        self.by_key.insert((key.clone(), revision, id));
        former.map(|(key, _)| key)
    }

    fn remove(&mut self, id: Id) -> Option<AllocatorKey> {
        let (key, revision) = self.by_id.remove(&id)?;
        self.by_key.remove(&(key.clone(), revision, id));
        Some(key)
    }
}

impl Cache {
    /// A list begins: what stands keeps answering until it is complete.
    pub(super) fn begin_list(&mut self) {
        self.next = Some(Entries::default());
    }

    /// The list is complete; returns what it did not have any more.
    pub(super) fn finish_list(&mut self) -> Vec<(Id, AllocatorKey)> {
        let Some(next) = self.next.take() else { return Vec::new() };
        let gone = self.live.by_id.iter().filter(|(id, _)| !next.by_id.contains_key(id)).map(|(id, (key, _))| (*id, key.clone())).collect();
        self.live = next;
        gone
    }

    /// The list ended before it was complete; returns what it had brought and did not stand before.
    pub(super) fn abort_list(&mut self) -> Vec<(Id, AllocatorKey)> {
        let next = self.next.take().unwrap_or_default();
        next.by_id.into_iter().filter(|(id, _)| !self.live.by_id.contains_key(id)).map(|(id, (key, _))| (id, key)).collect()
    }

    /// A number and its key were seen; returns the key that it had before.
    pub(super) fn insert(&mut self, id: Id, key: &AllocatorKey, revision: Revision) -> Option<AllocatorKey> {
        match &mut self.next {
            None => self.live.insert(id, key, revision),
            Some(next) => next.insert(id, key, revision).or_else(|| self.live.by_id.get(&id).map(|(key, _)| key.clone())),
        }
    }

    /// A number is a key's although the store has not told of it yet: it stands behind all of which it has.
    pub(super) fn insert_untold(&mut self, id: Id, key: &AllocatorKey) {
        if self.key(id) != Some(key) {
            self.insert(id, key, UNTOLD);
        }
    }

    /// Whether the store has told that a number is a key's.
    pub(super) fn is_told(&self, id: Id, key: &AllocatorKey) -> bool {
        self.live.by_id.get(&id).is_some_and(|(known, revision)| known == key && *revision != UNTOLD)
    }

    /// A number has gone; returns its key.
    pub(super) fn remove(&mut self, id: Id) -> Option<AllocatorKey> {
        match &mut self.next {
            None => self.live.remove(id),
            Some(next) => next.remove(id),
        }
    }

    /// The number of a key, the first if there are several.
    pub(super) fn id(&self, key: &AllocatorKey) -> Option<Id> {
        self.ids(key).next()
    }

    /// The numbers of a key, in the order in which they came.
    pub(super) fn ids(&self, key: &AllocatorKey) -> impl Iterator<Item = Id> {
        let all = (key.clone(), Revision(i64::MIN), Id::MIN)..=(key.clone(), UNTOLD, Id::MAX);
        self.live.by_key.range(all).map(|(_, _, id)| *id)
    }

    /// The key of a number.
    pub(super) fn key(&self, id: Id) -> Option<&AllocatorKey> {
        self.live.by_id.get(&id).map(|(key, _)| key)
    }

    /// Every number with its key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Id, &AllocatorKey)> {
        self.live.by_id.iter().map(|(id, (key, _))| (*id, key))
    }

    /// How many numbers there are.
    pub(super) fn len(&self) -> usize {
        self.live.by_id.len()
    }
}
