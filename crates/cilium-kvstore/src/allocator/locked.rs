//! Allocating and releasing a key in its turn: what is written into the store (`lockedAllocate`, `pkg/allocator/allocator.go`).
//!
//! Cilium believes its copy where that names a number for the key. Here it is a hint: the reference is written only if the store has the
//! number's entry with this key at that moment, and a number that other nodes use comes before one that is only left over. So a collector
//! may take any number at any time, and two nodes never find two numbers for a key.
//!
//! A copy may lag behind the store, as after a restart of an etcd, when all is listed anew, and a node whose lease just ended refers to nothing
//! for a moment although it uses its numbers. So a new number's entry is written first, and referred to only once the store has told of it, as it
//! tells of all entries in their order: then the copy has every number that the key had under an earlier lock, and if there is one the key keeps
//! that. A reference is never to a number that is not settled in this way, so whoever finds one may believe it. The copy can be deceived only where it
//! lags by a whole life of the number that was chosen, with this key: two rounds of a collector.

use tokio::time::timeout;

use super::backend::{Backend, BackendError, Id, Locker};
use super::key::AllocatorKey;
use super::serve::{AllocateError, Allocation, Released};
use super::shared::Shared;

/// How many free numbers are tried under one lock. That all of them are taken means that the range is nearly full and others allocate at
/// the same time: the attempts that follow wait first.
const CHOICES_MAX: usize = 16;

impl<B: Backend> Shared<B> {
    /// Allocates a key that is not in use here yet.
    pub(super) async fn allocate_in_turn(&self, key: &AllocatorKey) -> Result<Allocation, AllocateError> {
        let _turn = self.turn(key).lock().await;
        if let Some(id) = self.state().local.reuse(key) {
            return Ok(Allocation { id, is_new: false, first_use: false });
        }
        let lock = self.backend.lock(key).await?;
        let result = self.allocate_locked(key, &lock).await;
        lock.unlock().await;
        result
    }

    async fn allocate_locked(&self, key: &AllocatorKey, lock: &B::Lock) -> Result<Allocation, AllocateError> {
        let used = self.backend.get_if_locked(key, lock).await?;
        let left = || self.state().left_id(key);
        if let Some(id) = used.or_else(left)
            && self.refer(id, key, lock, used.is_some()).await?
        {
            return Ok(Allocation { id, is_new: false, first_use: true });
        }
        self.choose(key, lock).await
    }

    /// Refers to a number that is the key's by what is known. False: it is not any more, and nobody uses it.
    async fn refer(&self, id: Id, key: &AllocatorKey, lock: &B::Lock, used: bool) -> Result<bool, AllocateError> {
        if self.state().local.reserve(key, id).is_err() {
            return Err(AllocateError::Contested { id });
        }
        let referred = match self.backend.acquire_reference(id, key, lock).await {
            // those who use it have lost its entry: it is as well written by us
            Ok(false) if used => self.backend.allocate_id_if_locked(id, key, lock).await,
            referred => referred,
        };
        match referred {
            Ok(true) => self.verify(id, key),
            Ok(false) => self.unreserve(key),
            Err(_) => self.doubt(id, key),
        }
        match referred? {
            false if used => Err(AllocateError::Contested { id }),
            referred => Ok(referred),
        }
    }

    /// Gives a free number to a key that has none.
    async fn choose(&self, key: &AllocatorKey, lock: &B::Lock) -> Result<Allocation, AllocateError> {
        let mut taken = Vec::new();
        let result = loop {
            if taken.len() == CHOICES_MAX {
                break Err(AllocateError::Taken { tries: CHOICES_MAX });
            }
            let Some(chosen) = self.state().pool.lease(&mut rand::rng()) else {
                break Err(AllocateError::Exhausted { range: self.options.range });
            };
            let id = self.options.masked(chosen);
            if self.state().local.key(id).is_some() {
                taken.push(chosen);
                continue;
            }
            match self.backend.write_id_if_locked(id, key, lock).await {
                Ok(true) => {
                    self.state().pool.use_up(chosen);
                    break self.settle_on(id, key, lock).await;
                }
                Ok(false) => taken.push(chosen),
                Err(error) => {
                    self.state().pool.release(chosen);
                    break Err(error.into());
                }
            }
        };
        // only now: each choice was another one
        let mut state = self.state();
        taken.into_iter().for_each(|chosen| state.pool.release(chosen));
        result
    }

    /// Refers to a number whose entry was just written, or to one that the key had before as it turns out.
    async fn settle_on(&self, id: Id, key: &AllocatorKey, lock: &B::Lock) -> Result<Allocation, AllocateError> {
        let limit = self.options.operation_max;
        let earlier = timeout(limit, self.earlier_ids(id, key)).await.map_err(|_| AllocateError::Untold { id, limit })?;
        for first in earlier {
            if self.refer(first, key, lock, false).await? {
                tracing::debug!(%key, %id, %first, "a key that was about to get a number had one already");
                // nobody refers to it: else the collector takes it
                if let Err(error) = self.backend.delete_id_if_locked(id, key, lock).await {
                    tracing::debug!(%id, %error, "a number that nobody needs stays until it is collected");
                }
                return Ok(Allocation { id: first, is_new: false, first_use: true });
            }
        }
        if self.refer(id, key, lock, false).await? {
            Ok(Allocation { id, is_new: true, first_use: true })
        } else {
            // somebody deleted it
            Err(AllocateError::Taken { tries: 1 })
        }
    }

    /// Waits until the store has told of an entry; returns the numbers that its key had before.
    async fn earlier_ids(&self, id: Id, key: &AllocatorKey) -> Vec<Id> {
        loop {
            let mut told = std::pin::pin!(self.told.notified());
            told.as_mut().enable();
            if let Some(earlier) = self.state().earlier_ids(id, key) {
                return earlier;
            }
            told.await;
        }
    }

    /// The reference is in the store.
    fn verify(&self, id: Id, key: &AllocatorKey) {
        let mut state = self.state();
        state.local.verify(key);
        state.cache.insert_untold(id, key);
    }

    fn unreserve(&self, key: &AllocatorKey) {
        self.state().release(key, &self.options);
    }

    /// A write failed: it may have been done all the same, so that the reference is to be taken back if nobody uses the key.
    fn doubt(&self, id: Id, key: &AllocatorKey) {
        let mut state = self.state();
        state.release(key, &self.options);
        state.doubtful.insert(key.clone(), id);
    }

    /// Gives up one use of a key.
    pub(super) async fn release_in_turn(&self, key: &AllocatorKey) -> Result<Released, AllocateError> {
        let _turn = self.turn(key).lock().await;
        let given = self.state().release(key, &self.options).ok_or(AllocateError::NotInUse)?;
        if given.last_use
            && let Err(error) = self.backend.release(given.id, key).await
        {
            tracing::debug!(%key, id = %given.id, %error, "a reference to an identity could not be taken back yet");
            self.state().doubtful.insert(key.clone(), given.id);
        }
        Ok(Released { id: given.id, last_use: given.last_use })
    }

    /// Takes back a reference that may have been left in the store, unless the key is in use again.
    pub(super) async fn settle(&self, id: Id, key: &AllocatorKey) -> Result<(), BackendError> {
        let _turn = self.turn(key).lock().await;
        if self.state().local.id(key).is_none() {
            self.backend.release(id, key).await?;
        }
        self.state().doubtful.remove(key);
        Ok(())
    }
}
