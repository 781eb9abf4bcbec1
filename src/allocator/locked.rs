//! Allocating and releasing a key in its turn: what is written into the store (`lockedAllocate`, `pkg/allocator/allocator.go`).
//!
//! Cilium believes its copy where that names a number for the key. Here it is a hint: the reference is written only if the store has the
//! number's entry with this key at that moment, and a number that other nodes use comes before one that is only left over. So a collector
//! may take any number at any time, and two nodes never find two numbers for a key.
//!
//! A key that is used by a node whose references were just lost with its lease, and whose entry a copy has not heard of (after a restart of the
//! store it is listed anew), would get a second number. So free numbers are not tried in any order: where they are tried depends on the key alone,
//! and whoever finds a number taken looks whether it is the key's. What is left is a number that was freed between the two tries and stands
//! before it in that order.

use rand::SeedableRng;
use rand::rngs::StdRng;

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
        let left = || self.state().cache.id(key);
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
        let mut order = StdRng::seed_from_u64(place_of(key));
        let result = loop {
            if taken.len() == CHOICES_MAX {
                break Err(AllocateError::Taken { tries: CHOICES_MAX });
            }
            let Some(chosen) = self.state().pool.lease(&mut order) else {
                break Err(AllocateError::Exhausted { range: self.options.range });
            };
            let id = self.options.masked(chosen);
            if self.state().local.reserve(key, id).is_err() {
                taken.push(chosen);
                continue;
            }
            match self.backend.allocate_id_if_locked(id, key, lock).await {
                Ok(true) => {
                    self.state().pool.use_up(chosen);
                    self.verify(id, key);
                    break Ok(Allocation { id, is_new: true, first_use: true });
                }
                Ok(false) => {
                    self.unreserve(key);
                    match self.refer_if_it_is(id, key, lock).await {
                        Ok(false) => taken.push(chosen),
                        referred => {
                            self.state().pool.use_up(chosen);
                            break referred.map(|_| Allocation { id, is_new: false, first_use: true });
                        }
                    }
                }
                Err(error) => {
                    self.doubt(id, key);
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

    /// Refers to a number that is taken, if it is the key's: the copy may not have heard of it yet.
    async fn refer_if_it_is(&self, id: Id, key: &AllocatorKey, lock: &B::Lock) -> Result<bool, AllocateError> {
        Ok(self.backend.get_by_id(id).await?.as_ref() == Some(key) && self.refer(id, key, lock, false).await?)
    }

    /// The reference is in the store.
    fn verify(&self, id: Id, key: &AllocatorKey) {
        let mut state = self.state();
        state.local.verify(key);
        state.cache.insert(id, key);
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

/// Where the tries for a key begin, on every node (FNV-1a).
fn place_of(key: &AllocatorKey) -> u64 {
    key.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
