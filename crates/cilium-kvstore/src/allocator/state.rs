//! State of an allocator, and the effects of changes in the store on it. No IO.

use std::collections::{HashMap, HashSet};

use super::backend::{Id, Mutation};
use super::cache::Cache;
use super::event::{AllocatorEvent, AllocatorEventKind};
use super::key::AllocatorKey;
use super::local::{LocalKeys, LocalRelease};
use super::options::{AllocatorOptions, Validator};
use super::pool::IdPool;

#[derive(Debug)]
pub(super) struct AllocatorState {
    pub(super) cache: Cache,
    pub(super) local: LocalKeys,
    pub(super) pool: IdPool,
    /// References that the store may have although this node does not use their keys, because a
    /// response of the store was lost.
    pub(super) uncertain_references: HashMap<AllocatorKey, Id>,
    /// Numbers that are being written into the store again.
    pub(super) restoring: HashSet<Id>,
    /// Whether everything is being listed again. Until the list is complete, the copy may lack
    /// entries that are older than the entries that it has.
    is_relisting: bool,
}

/// Effects of a change in the store.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MutationEffects {
    pub(super) event: Option<AllocatorEvent>,
    /// Number in use on this node that was deleted from the store and must be written again.
    pub(super) restore: Option<(Id, AllocatorKey)>,
}

impl AllocatorState {
    pub(super) fn new(options: &AllocatorOptions) -> Self {
        let mut cache = Cache::default();
        cache.begin_list();
        let (local, pool) = (LocalKeys::default(), IdPool::new(options.range));
        Self { cache, local, pool, uncertain_references: HashMap::new(), restoring: HashSet::new(), is_relisting: false }
    }

    /// Returns the number of a key in the copy, if it is known to be the key's oldest number.
    pub(super) fn copied_id(&self, key: &AllocatorKey) -> Option<Id> {
        let first = self.cache.id(key).filter(|_| !self.is_relisting)?;
        self.cache.is_reported(first, key).then_some(first)
    }

    /// Returns the numbers that a key had before `id`; `None` until the store has reported `id`,
    /// and with it all earlier entries.
    pub(super) fn earlier_ids(&self, id: Id, key: &AllocatorKey) -> Option<Vec<Id>> {
        let is_reported = !self.is_relisting && self.cache.is_reported(id, key);
        is_reported.then(|| self.cache.ids(key).take_while(|earlier| *earlier != id).collect())
    }

    /// Applies a change of the store.
    pub(super) fn apply(&mut self, mutation: Mutation, options: &AllocatorOptions) -> MutationEffects {
        match mutation {
            Mutation::ListDone => {
                self.cache.finish_list();
                MutationEffects::default()
            }
            Mutation::Relisting => {
                self.is_relisting = true;
                MutationEffects::default()
            }
            Mutation::Relisted => {
                self.is_relisting = false;
                MutationEffects::default()
            }
            Mutation::Upsert(id, key, revision) => {
                if !accepts(options.validator.as_ref(), id, Some(&key)) {
                    return MutationEffects::default();
                }
                self.pool.mark_stored(options.unmasked(id));
                let kind =
                    if self.cache.insert(id, &key, revision).is_some() { AllocatorEventKind::Modify } else { AllocatorEventKind::Create };
                MutationEffects { event: Some(AllocatorEvent { kind, id, key }), restore: None }
            }
            Mutation::Delete(id) => self.delete(id, options),
        }
    }

    fn delete(&mut self, id: Id, options: &AllocatorOptions) -> MutationEffects {
        if !accepts(options.validator.as_ref(), id, None) {
            return MutationEffects::default();
        }
        let used = self.local.key(id);
        if let Some(key) = used.filter(|_| options.master_key_protection) {
            return MutationEffects { event: None, restore: Some((id, key.clone())) };
        }
        if used.is_none() {
            self.pool.free_deleted(options.unmasked(id));
        }
        let event = self.cache.remove(id).map(|key| AllocatorEvent { kind: AllocatorEventKind::Delete, id, key });
        MutationEffects { event, restore: None }
    }

    /// Releases one use of a key; `None` for a key that is not in use. If the number was deleted
    /// from the store while it was in use, the last release makes it free.
    pub(super) fn release(&mut self, key: &AllocatorKey, options: &AllocatorOptions) -> Option<LocalRelease> {
        let release = self.local.release(key)?;
        if release.last_use && self.cache.key(release.id).is_none() {
            self.pool.free_deleted(options.unmasked(release.id));
        }
        Some(release)
    }

    /// Removes a key whose number was assigned to another key. Returns the event if this node used
    /// the key with this number.
    pub(super) fn forget_lost(&mut self, id: Id, key: &AllocatorKey) -> Option<AllocatorEvent> {
        (self.local.id(key) == Some(id)).then(|| {
            self.local.forget(key);
            AllocatorEvent { kind: AllocatorEventKind::Lost, id, key: key.clone() }
        })
    }
}

/// Returns whether a number may enter the copy, and logs a refusal.
pub(super) fn accepts(validator: Option<&Validator>, id: Id, key: Option<&AllocatorKey>) -> bool {
    let refused = validator.and_then(|validator| validator.check(id, key).err());
    if let Some(reason) = &refused {
        tracing::warn!(id = id.number(), reason, "ignoring an identity of the store");
    }
    refused.is_none()
}
