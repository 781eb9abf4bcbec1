//! All that an allocator holds, and what a change of the store does to it. Pure.

use std::collections::{HashMap, HashSet};

use super::backend::{Id, Mutation};
use super::cache::Cache;
use super::event::{Event, EventKind};
use super::key::AllocatorKey;
use super::local::{Given, LocalKeys};
use super::options::{AllocatorOptions, Validator};
use super::pool::IdPool;

/// What an allocator holds.
#[derive(Debug)]
pub(super) struct State {
    pub(super) cache: Cache,
    pub(super) local: LocalKeys,
    pub(super) pool: IdPool,
    /// References that may stand in the store although nobody here uses the key, because an answer of the store did not come.
    pub(super) doubtful: HashMap<AllocatorKey, Id>,
    /// Numbers that are being written into the store again.
    pub(super) restoring: HashSet<Id>,
    /// Everything is being listed anew: of what was written before an entry that is told of, some may not be told of yet.
    is_relisting: bool,
}

/// What a change of the store leads to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Applied {
    pub(super) event: Option<Event>,
    /// In use here and gone from the store: to be written again.
    pub(super) restore: Option<(Id, AllocatorKey)>,
}

impl State {
    pub(super) fn new(options: &AllocatorOptions) -> Self {
        let mut cache = Cache::default();
        cache.begin_list();
        let (local, pool) = (LocalKeys::default(), IdPool::new(options.range));
        Self { cache, local, pool, doubtful: HashMap::new(), restoring: HashSet::new(), is_relisting: false }
    }

    /// The number that a key has in the store by the copy, where that is sure to be the one that was there first.
    pub(super) fn left_id(&self, key: &AllocatorKey) -> Option<Id> {
        let first = self.cache.id(key).filter(|_| !self.is_relisting)?;
        self.cache.is_told(first, key).then_some(first)
    }

    /// The numbers of a key that were there before this one of it, once the store has told of this, and so of all that were written before.
    pub(super) fn earlier_ids(&self, id: Id, key: &AllocatorKey) -> Option<Vec<Id>> {
        let is_told = !self.is_relisting && self.cache.is_told(id, key);
        is_told.then(|| self.cache.ids(key).take_while(|earlier| *earlier != id).collect())
    }

    /// Follows the store.
    pub(super) fn apply(&mut self, mutation: Mutation, options: &AllocatorOptions) -> Applied {
        match mutation {
            Mutation::ListDone => {
                self.cache.finish_list();
                Applied::default()
            }
            Mutation::Relisting => {
                self.is_relisting = true;
                Applied::default()
            }
            Mutation::Relisted => {
                self.is_relisting = false;
                Applied::default()
            }
            Mutation::Upsert(id, key, revision) => {
                if !accepts(options.validator.as_ref(), id, Some(&key)) {
                    return Applied::default();
                }
                self.pool.remove(options.unmasked(id));
                let kind = if self.cache.insert(id, &key, revision).is_some() { EventKind::Modify } else { EventKind::Create };
                Applied { event: Some(Event { kind, id, key }), restore: None }
            }
            Mutation::Delete(id) => self.delete(id, options),
        }
    }

    fn delete(&mut self, id: Id, options: &AllocatorOptions) -> Applied {
        if !accepts(options.validator.as_ref(), id, None) {
            return Applied::default();
        }
        let used = self.local.key(id);
        if let Some(key) = used.filter(|_| options.master_key_protection) {
            return Applied { event: None, restore: Some((id, key.clone())) };
        }
        if used.is_none() {
            self.pool.insert(options.unmasked(id));
        }
        let event = self.cache.remove(id).map(|key| Event { kind: EventKind::Delete, id, key });
        Applied { event, restore: None }
    }

    /// Gives up one use of a key; `None` for one that is not in use. A number that went from the store while it was used is free after that.
    pub(super) fn release(&mut self, key: &AllocatorKey, options: &AllocatorOptions) -> Option<Given> {
        let given = self.local.release(key)?;
        if given.last_use && self.cache.key(given.id).is_none() {
            self.pool.insert(options.unmasked(given.id));
        }
        Some(given)
    }

    /// A key's number was lost to somebody else; says so if it was in use here with this number.
    pub(super) fn lose(&mut self, id: Id, key: &AllocatorKey) -> Option<Event> {
        (self.local.id(key) == Some(id)).then(|| {
            self.local.forget(key);
            Event { kind: EventKind::Lost, id, key: key.clone() }
        })
    }
}

/// Whether a number may enter the copy; says so where not.
pub(super) fn accepts(validator: Option<&Validator>, id: Id, key: Option<&AllocatorKey>) -> bool {
    let refused = validator.and_then(|validator| validator.check(id, key).err());
    if let Some(reason) = &refused {
        tracing::warn!(%id, reason, "an identity of the store is not taken");
    }
    refused.is_none()
}
