//! Keys in use on this node, each with its number and its number of uses
//! (`pkg/allocator/localkeys.go`). No IO.

use std::collections::HashMap;

use super::backend::Id;
use super::key::AllocatorKey;

#[derive(Debug, Default)]
pub(super) struct LocalKeys {
    by_key: HashMap<AllocatorKey, LocalKey>,
    by_id: HashMap<Id, AllocatorKey>,
}

#[derive(Debug)]
struct LocalKey {
    id: Id,
    use_count: u64,
    /// True if the store is known to have this node's reference. Until then the number is reserved
    /// for the key, but other tasks must not use it yet.
    verified: bool,
}

/// Reason why a key cannot be used with a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Conflict {
    /// This node uses the key with this other number.
    OtherId(Id),
    /// This node uses the number for another key.
    OtherKey,
}

/// Result of releasing a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LocalRelease {
    pub(super) id: Id,
    pub(super) last_use: bool,
}

impl LocalKeys {
    /// Adds a use of a key. Returns the key's number; `None` if the key is not in use, or if the
    /// store is not known to have this node's reference.
    pub(super) fn reuse(&mut self, key: &AllocatorKey) -> Option<Id> {
        let local = self.by_key.get_mut(key).filter(|local| local.verified)?;
        local.use_count += 1;
        Some(local.id)
    }

    /// Adds a use of a key whose reference is about to be written.
    pub(super) fn reserve(&mut self, key: &AllocatorKey, id: Id) -> Result<(), Conflict> {
        if let Some(local) = self.by_key.get_mut(key) {
            if local.id != id {
                return Err(Conflict::OtherId(local.id));
            }
            local.use_count += 1;
            return Ok(());
        }
        if self.by_id.contains_key(&id) {
            return Err(Conflict::OtherKey);
        }
        self.by_id.insert(id, key.clone());
        self.by_key.insert(key.clone(), LocalKey { id, use_count: 1, verified: false });
        Ok(())
    }

    /// Records that the reference of a reserved key was written.
    pub(super) fn verify(&mut self, key: &AllocatorKey) {
        let local = self.by_key.get_mut(key);
        assert!(local.is_some(), "a key is verified only while it is reserved");
        if let Some(local) = local {
            local.verified = true;
        }
    }

    /// Releases one use; `None` for a key that is not in use.
    pub(super) fn release(&mut self, key: &AllocatorKey) -> Option<LocalRelease> {
        let local = self.by_key.get_mut(key)?;
        local.use_count -= 1;
        let release = LocalRelease { id: local.id, last_use: local.use_count == 0 };
        if release.last_use {
            self.forget(key);
        }
        Some(release)
    }

    /// Removes a key with all its uses.
    pub(super) fn forget(&mut self, key: &AllocatorKey) {
        if let Some(local) = self.by_key.remove(key) {
            self.by_id.remove(&local.id);
        }
    }

    /// Returns the number of a key in use.
    pub(super) fn id(&self, key: &AllocatorKey) -> Option<Id> {
        self.by_key.get(key).map(|local| local.id)
    }

    /// Returns the key that uses a number.
    pub(super) fn key(&self, id: Id) -> Option<&AllocatorKey> {
        self.by_id.get(&id)
    }

    /// Returns the numbers and keys whose references the store has.
    pub(super) fn verified(&self) -> Vec<(Id, AllocatorKey)> {
        let keys = self.by_key.iter().filter(|(_, local)| local.verified);
        keys.map(|(key, local)| (local.id, key.clone())).collect()
    }
}
