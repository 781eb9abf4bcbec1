//! Allocation and release of a key: the writes to the store, under the key's mutex and lock
//! (`lockedAllocate`, `pkg/allocator/allocator.go`).
//!
//! Cilium uses the number of a key that its copy of the store has. Here the copy is only a hint. A
//! reference is written only if the number's entry in the store has this key at that moment. A
//! number that other nodes use has priority over a number without references. A collector may
//! therefore delete any unused number at any time, and two nodes never use two numbers for one key.
//!
//! A copy may lag behind the store, for instance after a restart of an etcd, when everything is
//! listed again. A node whose lease just expired has no references for a moment, although it uses
//! its numbers. A new number's entry is therefore written first, and the reference to it only after
//! the store has reported the entry. The store reports all entries in order, so by then the copy
//! has every number that the key got under an earlier lock. If there is such a number, the key
//! keeps it.
//!
//! Every reference names a number that was confirmed in this way, so a reader may rely on any
//! reference. The copy can name a wrong number only if it lags behind by two rounds of a collector,
//! because an entry, once written, exists for at least that long.

use tokio::time::timeout;

use super::api::{AllocateError, Allocation, Release};
use super::backend::{Backend, BackendError, Id, Locker};
use super::key::AllocatorKey;
use super::shared::AllocatorShared;

/// Maximum number of free numbers that are tried under one lock. If other nodes have taken all of
/// them, the range is nearly full and other nodes allocate at the same time. The next attempt then
/// starts after a wait.
const FREE_TRIES_MAX: usize = 16;

impl<B: Backend> AllocatorShared<B> {
    /// Allocates a number for a key that this node usually does not use yet. If it already does,
    /// only adds a use.
    pub(super) async fn allocate_serialized(&self, key: &AllocatorKey) -> Result<Allocation, AllocateError> {
        let _guard = self.key_mutex(key).lock().await;
        if let Some(id) = self.state().local.reuse(key) {
            return Ok(Allocation { id, is_new: false, first_use: false });
        }
        let lock = self.backend.lock(key).await?;
        let result = self.allocate_locked(key, &lock).await;
        lock.unlock().await;
        result
    }

    async fn allocate_locked(&self, key: &AllocatorKey, lock: &B::Lock) -> Result<Allocation, AllocateError> {
        let used_id = self.backend.get_if_locked(key, lock).await?;
        let copied_id = || self.state().copied_id(key);
        if let Some(id) = used_id.or_else(copied_id)
            && self.write_reference(id, key, lock, used_id.is_some()).await?
        {
            return Ok(Allocation { id, is_new: false, first_use: true });
        }
        self.allocate_free(key, lock).await
    }

    /// Writes a reference to a number that the key probably has. Returns false if the number no
    /// longer belongs to the key and no node uses it.
    async fn write_reference(&self, id: Id, key: &AllocatorKey, lock: &B::Lock, used: bool) -> Result<bool, AllocateError> {
        if self.state().local.reserve(key, id).is_err() {
            return Err(AllocateError::Contested { id });
        }
        let written = match self.backend.acquire_reference(id, key, lock).await {
            // other nodes use the number, but its entry was lost, so we may write it
            Ok(false) if used => self.backend.allocate_id_if_locked(id, key, lock).await,
            written => written,
        };
        match written {
            Ok(true) => self.verify(id, key),
            Ok(false) => self.release_reserved(key),
            Err(_) => self.record_uncertain_reference(id, key),
        }
        match written? {
            false if used => Err(AllocateError::Contested { id }),
            written => Ok(written),
        }
    }

    /// Allocates a free number for a key without a number.
    async fn allocate_free(&self, key: &AllocatorKey, lock: &B::Lock) -> Result<Allocation, AllocateError> {
        let mut taken = Vec::new();
        let result = loop {
            if taken.len() == FREE_TRIES_MAX {
                break Err(AllocateError::Taken { tries: FREE_TRIES_MAX });
            }
            let Some(chosen) = self.state().pool.lease_available(&mut rand::rng()) else {
                break Err(AllocateError::Exhausted { range: self.options.range });
            };
            let id = self.options.masked(chosen);
            if self.state().local.key(id).is_some() {
                taken.push(chosen);
                continue;
            }
            match self.backend.write_id_if_locked(id, key, lock).await {
                Ok(true) => {
                    self.state().pool.mark_lease_used(chosen);
                    break self.confirm_number(id, key, lock).await;
                }
                Ok(false) => taken.push(chosen),
                Err(error) => {
                    self.state().pool.release_lease(chosen);
                    break Err(error.into());
                }
            }
        };
        // released only now, so that the pool did not return the same number twice
        let mut state = self.state();
        taken.into_iter().for_each(|chosen| state.pool.release_lease(chosen));
        result
    }

    /// Writes a reference to the number whose entry was just written. If the key already has an
    /// older number, refers to the older number instead and deletes the new entry.
    async fn confirm_number(&self, id: Id, key: &AllocatorKey, lock: &B::Lock) -> Result<Allocation, AllocateError> {
        let limit = self.options.operation_max;
        let earlier_ids = timeout(limit, self.earlier_ids(id, key)).await.map_err(|_| AllocateError::Unconfirmed { id, limit })?;
        for earlier_id in earlier_ids {
            if self.write_reference(earlier_id, key, lock, false).await? {
                tracing::debug!(%key, id = id.number(), first = earlier_id.number(), "the key has an earlier number: using it instead of the new one");
                // if this fails, a collector deletes the entry later, because nothing refers to it
                if let Err(error) = self.backend.delete_id_if_locked(id, key, lock).await {
                    tracing::debug!(id = id.number(), %error, "cannot delete an unused identity: it stays until it is collected");
                }
                return Ok(Allocation { id: earlier_id, is_new: false, first_use: true });
            }
        }
        if self.write_reference(id, key, lock, false).await? {
            Ok(Allocation { id, is_new: true, first_use: true })
        } else {
            // another process deleted the entry
            Err(AllocateError::Taken { tries: 1 })
        }
    }

    /// Waits until the store has reported the new entry `id`. Returns the numbers that the key
    /// already had when the entry was written.
    async fn earlier_ids(&self, id: Id, key: &AllocatorKey) -> Vec<Id> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(earlier) = self.state().earlier_ids(id, key) {
                return earlier;
            }
            changed.await;
        }
    }

    /// Records that the store has the reference.
    fn verify(&self, id: Id, key: &AllocatorKey) {
        let mut state = self.state();
        state.local.verify(key);
        state.cache.insert_unreported(id, key);
    }

    fn release_reserved(&self, key: &AllocatorKey) {
        self.state().release(key, &self.options);
    }

    /// Records a failed write. The store may have executed it, so the reference must be deleted if
    /// the key is unused.
    fn record_uncertain_reference(&self, id: Id, key: &AllocatorKey) {
        let mut state = self.state();
        state.release(key, &self.options);
        state.uncertain_references.insert(key.clone(), id);
    }

    /// Releases one use of a key.
    pub(super) async fn release_serialized(&self, key: &AllocatorKey) -> Result<Release, AllocateError> {
        let _guard = self.key_mutex(key).lock().await;
        let release = self.state().release(key, &self.options).ok_or(AllocateError::NotInUse)?;
        if release.last_use
            && let Err(error) = self.backend.release(release.id, key).await
        {
            tracing::debug!(%key, id = release.id.number(), %error, "cannot remove a reference to an identity yet");
            self.state().uncertain_references.insert(key.clone(), release.id);
        }
        Ok(Release { id: release.id, last_use: release.last_use })
    }

    /// Deletes a reference that the store may still have, unless the key is in use again.
    pub(super) async fn delete_uncertain_reference(&self, id: Id, key: &AllocatorKey) -> Result<(), BackendError> {
        let _guard = self.key_mutex(key).lock().await;
        if self.state().local.id(key).is_none() {
            self.backend.release(id, key).await?;
        }
        self.state().uncertain_references.remove(key);
        Ok(())
    }
}
