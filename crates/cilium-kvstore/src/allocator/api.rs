//! Public API of an allocator: allocation, lookup and release.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::backend::{Backend, BackendError, CollectionLimits, CollectionRound, Id, IdRange, LockCollection, StaleIds, StaleLocks};
use super::background;
use super::key::AllocatorKey;
use super::options::{AllocatorOptions, InvalidOptions};
use super::remote::RemoteCache;
use super::shared::AllocatorShared;
use crate::Backoff;

/// Assigns numbers to keys, in a store that other nodes share.
pub struct Allocator<B: Backend> {
    shared: Arc<AllocatorShared<B>>,
}

impl<B: Backend> Clone for Allocator<B> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// Number of a key, with one use of it that must be released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Number of the key.
    pub id: Id,
    /// Whether the key had no number before.
    pub is_new: bool,
    /// Whether the key had no other use on this node.
    pub first_use: bool,
}

/// Result of releasing a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// Number of the key.
    pub id: Id,
    /// Whether the key has no more uses on this node.
    pub last_use: bool,
}

/// Error of an allocation or a release.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// The first list did not complete in time.
    #[error("the identities of the store were not read within {0:?}")]
    NotListed(Duration),
    /// All numbers are taken.
    #[error("no identity from {} to {} is free: all are in use or wait for their collection", range.min(), range.max())]
    Exhausted {
        /// Range without a free number.
        range: IdRange,
    },
    /// Other nodes took the chosen numbers in the meantime.
    #[error("other nodes allocated {tries} free identities in a row first")]
    Taken {
        /// Number of free numbers that were tried.
        tries: usize,
    },
    /// Other nodes use a number for the key, but the number belongs to another key, or no longer
    /// belongs to this one.
    #[error("identity {id} is in use for these labels, but belongs to other labels")]
    Contested {
        /// Number that the other nodes use.
        id: Id,
    },
    /// The store has accepted the new entry but has not reported it, so it is unknown whether the
    /// key had another number before.
    #[error("the new identity {id} did not appear in the store within {limit:?}")]
    Unconfirmed {
        /// Number of the entry.
        id: Id,
        /// Time limit that was exceeded.
        limit: Duration,
    },
    /// The store failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The allocation took too long. The message includes the error of the last attempt.
    #[error("no identity within {limit:?}{}", last.as_ref().map(|last| format!("; the last attempt: {last}")).unwrap_or_default())]
    Timeout {
        /// Time limit that was exceeded.
        limit: Duration,
        /// Error of the last attempt.
        last: Option<Box<Self>>,
    },
    /// The key is not in use on this node.
    #[error("these labels are not in use on this node")]
    NotInUse,
    /// The allocator was stopped.
    #[error("the allocator was stopped")]
    Stopped,
}

impl<B: Backend> Allocator<B> {
    /// Starts to follow the store.
    ///
    /// # Errors
    /// [`InvalidOptions`].
    pub fn start(backend: B, options: AllocatorOptions) -> Result<Self, InvalidOptions> {
        let allocator = Self::for_collection(backend, options)?;
        background::start(&allocator.shared);
        Ok(allocator)
    }

    /// Creates an allocator that does not follow the store, only for [`Allocator::run_gc`] and
    /// [`Allocator::run_locks_gc`] (`NewAllocatorForGC`).
    ///
    /// # Errors
    /// [`InvalidOptions`].
    pub fn for_collection(backend: B, options: AllocatorOptions) -> Result<Self, InvalidOptions> {
        options.check()?;
        Ok(Self { shared: Arc::new(AllocatorShared::new(backend, options)) })
    }

    /// Waits until all numbers of the store have been read.
    ///
    /// # Errors
    /// [`AllocateError::NotListed`] after `limit`.
    pub async fn wait_for_initial_sync(&self, limit: Duration) -> Result<(), AllocateError> {
        let mut listed = self.shared.listed.subscribe();
        let done = timeout(limit, listed.wait_for(|listed| *listed)).await;
        done.map(|_| ()).map_err(|_| AllocateError::NotListed(limit))
    }

    /// Returns the number of a key, and allocates a number if the key has none. Each success counts
    /// as one use, which must be released. If the caller drops the future, no use is counted.
    ///
    /// # Errors
    /// [`AllocateError`], after [`AllocatorOptions::attempts_max`] attempts or
    /// [`AllocatorOptions::allocation_max`]. Fails at once if no number is free, because only a
    /// collection can free one.
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

    /// Runs one attempt in its own task, so that it completes even if the caller stops waiting.
    async fn attempt(&self, key: &AllocatorKey) -> Result<Allocation, AllocateError> {
        let (reply, answer) = oneshot::channel();
        let (shared, key) = (Arc::clone(&self.shared), key.clone());
        self.shared.tasks.spawn(async move {
            let result = shared.allocate_serialized(&key).await;
            if let Err(Ok(_)) = reply.send(result) {
                let _ = shared.release_serialized(&key).await;
            }
        });
        answer.await.unwrap_or(Err(AllocateError::Stopped))
    }

    /// Releases one use of a key. The last release on this node deletes its reference from the
    /// store; the number stays until a collector deletes it.
    ///
    /// # Errors
    /// [`AllocateError::NotInUse`], and the errors of [`Allocator::wait_for_initial_sync`].
    pub async fn release(&self, key: &AllocatorKey) -> Result<Release, AllocateError> {
        self.wait_for_initial_sync(self.shared.options.allocation_max).await?;
        let (reply, answer) = oneshot::channel();
        let (shared, key) = (Arc::clone(&self.shared), key.clone());
        self.shared.tasks.spawn(async move {
            let _ = reply.send(shared.release_serialized(&key).await);
        });
        answer.await.unwrap_or(Err(AllocateError::Stopped))
    }

    /// Returns the number of a key: from the copy, or otherwise from the store.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn get(&self, key: &AllocatorKey) -> Result<Option<Id>, BackendError> {
        let cached = self.shared.state().cache.id(key);
        if cached.is_some() { Ok(cached) } else { self.get_no_cache(key).await }
    }

    /// Returns the number of a key from the store.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn get_no_cache(&self, key: &AllocatorKey) -> Result<Option<Id>, BackendError> {
        self.shared.backend.get(key).await
    }

    /// Locks a key, for [`Allocator::get_if_locked`].
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn lock(&self, key: &AllocatorKey) -> Result<B::Lock, BackendError> {
        self.shared.backend.lock(key).await
    }

    /// Returns the number of a key: from the copy, or otherwise from the store while the lock is
    /// held.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn get_if_locked(&self, key: &AllocatorKey, lock: &B::Lock) -> Result<Option<Id>, BackendError> {
        let cached = self.shared.state().cache.id(key);
        if cached.is_some() { Ok(cached) } else { self.shared.backend.get_if_locked(key, lock).await }
    }

    /// Returns the key of a number: from the copy, or otherwise from the store.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn get_by_id(&self, id: Id) -> Result<Option<AllocatorKey>, BackendError> {
        let cached = self.shared.state().cache.key(id).cloned();
        if cached.is_some() { Ok(cached) } else { self.shared.backend.get_by_id(id).await }
    }

    /// Calls `show` with every number of the own copy and of the copies of remote stores. The own
    /// copy is locked during the call.
    pub fn for_each(&self, mut show: impl FnMut(Id, &AllocatorKey)) {
        self.shared.state().cache.iter().for_each(|(id, key)| show(id, key));
        self.shared.remotes.for_each(&mut show);
    }

    /// Returns the number of entries in the own copy.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.state().cache.len()
    }

    /// Adds a copy of a remote store's numbers. [`Allocator::for_each`] includes it
    /// (`WatchRemoteKVStore`).
    #[must_use]
    pub fn watch_remote(&self, options: AllocatorOptions) -> RemoteCache {
        self.shared.remotes.add(options)
    }

    /// Runs one round of the collection of unused numbers.
    ///
    /// # Errors
    /// [`BackendError`]; the result of the last round remains valid.
    pub async fn run_gc(&self, last_round: &StaleIds, limits: &CollectionLimits) -> Result<CollectionRound, BackendError> {
        self.shared.backend.run_gc(last_round, limits).await
    }

    /// Runs one round of the collection of locks whose holders are stuck.
    ///
    /// # Errors
    /// [`BackendError`]; the result of the last round remains valid.
    pub async fn run_locks_gc(&self, last_round: &StaleLocks) -> Result<LockCollection, BackendError> {
        self.shared.backend.run_locks_gc(last_round).await
    }

    /// Deletes all numbers, references and locks of the store. For tests.
    ///
    /// # Errors
    /// [`BackendError`].
    pub async fn delete_all_keys(&self) -> Result<(), BackendError> {
        self.shared.backend.delete_all_keys().await
    }

    /// Checks now that the store has the entries and references of all numbers in use on this node,
    /// as the periodic check does. Returns false if the check failed.
    pub async fn check_all(&self) -> bool {
        background::check_all(&self.shared).await
    }

    /// Returns a human-readable status of the store.
    pub async fn status(&self) -> String {
        self.shared.backend.status().await
    }

    /// Signals the tasks to stop.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Stops the tasks and waits for them (`Delete`). The store keeps its content: references
    /// expire with their leases.
    pub async fn delete(&self) {
        self.stop();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}
