//! The face of an allocator: allocating, looking up and releasing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::backend::{Backend, BackendError, Collected, CollectionRound, Id, IdRange, LockCollection, StaleIds, StaleLocks};
use super::key::AllocatorKey;
use super::options::{AllocatorOptions, InvalidOptions};
use super::remote::RemoteCache;
use super::shared::Shared;
use super::upkeep;
use crate::Backoff;

/// Gives numbers to keys, over a store that others use for the same.
pub struct Allocator<B: Backend> {
    shared: Arc<Shared<B>>,
}

impl<B: Backend> Clone for Allocator<B> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// A number that is a key's, with a use of it that must be released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// The number.
    pub id: Id,
    /// Whether the key had none before.
    pub is_new: bool,
    /// Whether nobody used it on this node before.
    pub first_use: bool,
}

/// What releasing a key led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// The number of the key.
    pub id: Id,
    /// Whether nobody uses it on this node any more.
    pub last_use: bool,
}

/// Why there is no number for a key, or none to release.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// The first list did not come in time.
    #[error("the identities of the store were not read within {0:?}")]
    NotListed(Duration),
    /// Every number is taken.
    #[error("no more available identities from {} to {}: all are used or wait for their collection", range.min(), range.max())]
    Exhausted {
        /// The range that is used up.
        range: IdRange,
    },
    /// The numbers that were chosen were taken by others meanwhile.
    #[error("{tries} free identities in a row were taken by other nodes")]
    Taken {
        /// How many were tried.
        tries: usize,
    },
    /// Other nodes use the key with a number that is not, or not any more, the key's.
    #[error("identity {id} is used for these labels, but stands for others")]
    Contested {
        /// The number.
        id: Id,
    },
    /// The store has an entry that was written and does not tell of it, so that nobody knows whether the key had another number before.
    #[error("the store did not tell of the new identity {id} within {limit:?}")]
    Untold {
        /// Its number.
        id: Id,
        /// How long was waited.
        limit: Duration,
    },
    /// The store does not do it.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// It took too long; the cause is that of the last attempt.
    #[error("no identity within {limit:?}{}", last.as_ref().map(|last| format!("; the last attempt: {last}")).unwrap_or_default())]
    Timeout {
        /// How long it might have taken.
        limit: Duration,
        /// Why the last attempt failed.
        last: Option<Box<Self>>,
    },
    /// The key is not in use on this node.
    #[error("these labels are not in use on this node")]
    NotInUse,
    /// The allocator ends.
    #[error("the allocator was stopped")]
    Stopped,
}

impl<B: Backend> Allocator<B> {
    /// Begins to follow the store.
    ///
    /// # Errors
    /// [`InvalidOptions`].
    pub fn start(backend: B, options: AllocatorOptions) -> Result<Self, InvalidOptions> {
        let allocator = Self::for_collection(backend, options)?;
        upkeep::start(&allocator.shared);
        Ok(allocator)
    }

    /// One that follows nothing, for [`Allocator::run_gc`] and [`Allocator::run_locks_gc`] alone (`NewAllocatorForGC`).
    ///
    /// # Errors
    /// [`InvalidOptions`].
    pub fn for_collection(backend: B, options: AllocatorOptions) -> Result<Self, InvalidOptions> {
        options.check()?;
        Ok(Self { shared: Arc::new(Shared::new(backend, options)) })
    }

    /// Waits until all numbers of the store were read.
    ///
    /// # Errors
    /// [`AllocateError::NotListed`] after that time.
    pub async fn wait_for_initial_sync(&self, limit: Duration) -> Result<(), AllocateError> {
        let mut listed = self.shared.listed.subscribe();
        let done = timeout(limit, listed.wait_for(|listed| *listed)).await;
        done.map(|_| ()).map_err(|_| AllocateError::NotListed(limit))
    }

    /// The number of a key; it gets one if it has none. Each success counts as one use, to be released. A caller that does not wait for the
    /// answer leaves nothing behind.
    ///
    /// # Errors
    /// [`AllocateError`], after [`AllocatorOptions::attempts_max`] attempts or [`AllocatorOptions::allocation_max`]; at once where there is
    /// no free number, as that changes by collection alone.
    pub async fn allocate(&self, key: &AllocatorKey) -> Result<Allocation, AllocateError> {
        let limit = self.shared.options.allocation_max;
        let deadline = Instant::now() + limit;
        self.wait_for_initial_sync(limit).await?;
        let mut backoff = Backoff::new(self.shared.options.backoff.saturating_mul(2), Duration::MAX);
        let (mut attempt, mut last) = (0, None);
        loop {
            attempt += 1;
            if self.shared.stop.is_cancelled() {
                return Err(AllocateError::Stopped);
            }
            if let Some(id) = self.shared.reuse(key) {
                return Ok(Allocation { id, is_new: false, first_use: false });
            }
            let wait = backoff.next_wait();
            let outcome = timeout_at(deadline, async {
                let result = self.attempt(key).await;
                if result.is_err() && attempt < self.shared.options.attempts_max {
                    sleep(if matches!(result, Err(AllocateError::Exhausted { .. })) { Duration::ZERO } else { wait }).await;
                }
                result
            });
            match outcome.await {
                Err(_) => return Err(AllocateError::Timeout { limit, last: last.map(Box::new) }),
                Ok(Ok(allocation)) => return Ok(allocation),
                Ok(Err(error @ AllocateError::Exhausted { .. })) => return Err(error),
                Ok(Err(error)) if attempt >= self.shared.options.attempts_max => return Err(error),
                Ok(Err(error)) => {
                    tracing::debug!(%key, attempt, %error, "an attempt to allocate an identity failed");
                    last = Some(error);
                }
            }
        }
    }

    /// One attempt, in a task of its own: it ends in order also if nobody waits for it any more.
    async fn attempt(&self, key: &AllocatorKey) -> Result<Allocation, AllocateError> {
        let (reply, answer) = oneshot::channel();
        let (shared, key) = (Arc::clone(&self.shared), key.clone());
        self.shared.tasks.spawn(async move {
            let result = shared.allocate_in_turn(&key).await;
            if let Err(Ok(_)) = reply.send(result) {
                let _ = shared.release_in_turn(&key).await;
            }
        });
        answer.await.unwrap_or(Err(AllocateError::Stopped))
    }

    /// Gives up one use of a key. With the last one on this node its reference goes from the store; the number stays until the collector
    /// takes it.
    ///
    /// # Errors
    /// [`AllocateError::NotInUse`], and what keeps the list from being complete.
    pub async fn release(&self, key: &AllocatorKey) -> Result<Released, AllocateError> {
        self.wait_for_initial_sync(self.shared.options.allocation_max).await?;
        let (reply, answer) = oneshot::channel();
        let (shared, key) = (Arc::clone(&self.shared), key.clone());
        self.shared.tasks.spawn(async move {
            let _ = reply.send(shared.release_in_turn(&key).await);
        });
        answer.await.unwrap_or(Err(AllocateError::Stopped))
    }

    /// The number of a key, by the copy or else by the store.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn get(&self, key: &AllocatorKey) -> Result<Option<Id>, BackendError> {
        let known = self.shared.state().cache.id(key);
        if known.is_some() { Ok(known) } else { self.get_no_cache(key).await }
    }

    /// The number of a key by the store.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn get_no_cache(&self, key: &AllocatorKey) -> Result<Option<Id>, BackendError> {
        self.shared.backend.get(key).await
    }

    /// The lock of a key, for [`Allocator::get_if_locked`].
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn lock(&self, key: &AllocatorKey) -> Result<B::Lock, BackendError> {
        self.shared.backend.lock(key).await
    }

    /// The number of a key, by the copy or else by the store while the lock is held.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn get_if_locked(&self, key: &AllocatorKey, lock: &B::Lock) -> Result<Option<Id>, BackendError> {
        let known = self.shared.state().cache.id(key);
        if known.is_some() { Ok(known) } else { self.shared.backend.get_if_locked(key, lock).await }
    }

    /// The key of a number, by the copy or else by the store.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn get_by_id(&self, id: Id) -> Result<Option<AllocatorKey>, BackendError> {
        let known = self.shared.state().cache.key(id).cloned();
        if known.is_some() { Ok(known) } else { self.shared.backend.get_by_id(id).await }
    }

    /// Shows every number of the copy and of those of remote stores. The copy waits meanwhile.
    pub fn for_each(&self, mut show: impl FnMut(Id, &AllocatorKey)) {
        self.shared.state().cache.iter().for_each(|(id, key)| show(id, key));
        self.shared.remotes.for_each(&mut show);
    }

    /// How many numbers the own copy has.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.state().cache.len()
    }

    /// A place for the numbers of a remote store, which from now on are found here too (`WatchRemoteKVStore`).
    #[must_use]
    pub fn watch_remote(&self, options: AllocatorOptions) -> RemoteCache {
        self.shared.remotes.add(options)
    }

    /// One round of the collection of numbers that nobody uses.
    ///
    /// # Errors
    /// [`BackendError`]: what the last round found still holds.
    pub async fn run_gc(&self, last_round: &StaleIds, what: &Collected) -> Result<CollectionRound, BackendError> {
        self.shared.backend.run_gc(last_round, what).await
    }

    /// One round of the collection of locks whose holders are stuck.
    ///
    /// # Errors
    /// [`BackendError`]: what the last round found still holds.
    pub async fn run_locks_gc(&self, last_round: &StaleLocks) -> Result<LockCollection, BackendError> {
        self.shared.backend.run_locks_gc(last_round).await
    }

    /// Deletes all numbers, references and locks of the store; for tests.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn delete_all_keys(&self) -> Result<(), BackendError> {
        self.shared.backend.delete_all_keys().await
    }

    /// Makes sure now that all that is used here is in the store, as happens from time to time; false if that cannot be said.
    pub async fn look_at_all(&self) -> bool {
        upkeep::look_at_all(&self.shared).await
    }

    /// How the store is, for people.
    pub async fn status(&self) -> String {
        self.shared.backend.status().await
    }

    /// Has its tasks end soon.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Ends its tasks (`Delete`). What is in the store stays: references end with their leases.
    pub async fn delete(&self) {
        self.stop();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}
