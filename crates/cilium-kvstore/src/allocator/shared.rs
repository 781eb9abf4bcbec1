//! State that an allocator and its tasks share: the store, the copy of it, and the per-key mutexes.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::backend::Id;
use super::key::AllocatorKey;
use super::options::AllocatorOptions;
use super::remote::RemoteCopies;
use super::state::AllocatorState;

/// Number of mutexes for keys. One mutex per key would grow without bound. Keys that share a mutex
/// sometimes wait for each other needlessly. With 16 active tasks, the probability of that is 15 in
/// 256.
const KEY_MUTEXES: usize = 256;

pub(super) struct AllocatorShared<B> {
    pub(super) backend: B,
    pub(super) options: AllocatorOptions,
    state: Mutex<AllocatorState>,
    /// Mutexes that serialize the writes for a key. The store's locks belong to the whole process,
    /// so they cannot keep a release of a key from overlapping with an allocation of the same key.
    key_mutexes: Vec<tokio::sync::Mutex<()>>,
    hasher: RandomState,
    /// Whether the first list is complete.
    pub(super) listed: watch::Sender<bool>,
    /// Notified after each change of the copy.
    pub(super) changed: Notify,
    pub(super) remotes: RemoteCopies,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
}

impl<B> AllocatorShared<B> {
    pub(super) fn new(backend: B, options: AllocatorOptions) -> Self {
        Self {
            state: Mutex::new(AllocatorState::new(&options)),
            backend,
            options,
            key_mutexes: (0..KEY_MUTEXES).map(|_| tokio::sync::Mutex::new(())).collect(),
            hasher: RandomState::new(),
            listed: watch::Sender::new(false),
            changed: Notify::new(),
            remotes: RemoteCopies::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, AllocatorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the mutex of a key.
    pub(super) fn key_mutex(&self, key: &AllocatorKey) -> &tokio::sync::Mutex<()> {
        let index = usize::try_from(self.hasher.hash_one(key) % KEY_MUTEXES as u64).unwrap_or_default();
        &self.key_mutexes[index]
    }

    /// Adds a use of a key that is already in use on this node. Returns its number.
    pub(super) fn reuse(&self, key: &AllocatorKey) -> Option<Id> {
        let mut state = self.state();
        let id = state.local.reuse(key)?;
        state.cache.insert_unreported(id, key);
        Some(id)
    }
}
