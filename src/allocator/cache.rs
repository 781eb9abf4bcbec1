//! A copy of all numbers of a store and their keys, which follows it (`pkg/allocator/cache.go`). Pure.

use std::collections::{BTreeSet, HashMap};

use super::backend::Id;
use super::key::AllocatorKey;

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
    by_id: HashMap<Id, AllocatorKey>,
    /// A key may have two numbers for a while: a node that died between its two writes left one, which the collector takes.
    by_key: BTreeSet<(AllocatorKey, Id)>,
}

impl Entries {
    fn insert(&mut self, id: Id, key: &AllocatorKey) -> Option<AllocatorKey> {
        let former = self.by_id.insert(id, key.clone());
        if let Some(former) = former.clone().filter(|former| former != key) {
            self.by_key.remove(&(former, id));
        }
        self.by_key.insert((key.clone(), id));
        former
    }

    fn remove(&mut self, id: Id) -> Option<AllocatorKey> {
        let key = self.by_id.remove(&id)?;
        self.by_key.remove(&(key.clone(), id));
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
        let gone = self.live.by_id.iter().filter(|(id, _)| !next.by_id.contains_key(id)).map(|(id, key)| (*id, key.clone())).collect();
        self.live = next;
        gone
    }

    /// The list ended before it was complete; returns what it had brought and did not stand before.
    pub(super) fn abort_list(&mut self) -> Vec<(Id, AllocatorKey)> {
        let next = self.next.take().unwrap_or_default();
        next.by_id.into_iter().filter(|(id, _)| !self.live.by_id.contains_key(id)).collect()
    }

    /// A number and its key were seen; returns the key that it had before.
    pub(super) fn insert(&mut self, id: Id, key: &AllocatorKey) -> Option<AllocatorKey> {
        match &mut self.next {
            None => self.live.insert(id, key),
            Some(next) => next.insert(id, key).or_else(|| self.live.by_id.get(&id).cloned()),
        }
    }

    /// A number has gone; returns its key.
    pub(super) fn remove(&mut self, id: Id) -> Option<AllocatorKey> {
        match &mut self.next {
            None => self.live.remove(id),
            Some(next) => next.remove(id),
        }
    }

    /// The number of a key, the lowest if there are several.
    pub(super) fn id(&self, key: &AllocatorKey) -> Option<Id> {
        let all = (key.clone(), Id::MIN)..=(key.clone(), Id::MAX);
        self.live.by_key.range(all).next().map(|(_, id)| *id)
    }

    /// The key of a number.
    pub(super) fn key(&self, id: Id) -> Option<&AllocatorKey> {
        self.live.by_id.get(&id)
    }

    /// Every number with its key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Id, &AllocatorKey)> {
        self.live.by_id.iter().map(|(id, key)| (*id, key))
    }

    /// How many numbers there are.
    pub(super) fn len(&self) -> usize {
        self.live.by_id.len()
    }
}
