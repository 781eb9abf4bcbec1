//! What an allocator and its tasks share: the store, what is held of it, and whose turn it is.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::backend::Id;
use super::key::AllocatorKey;
use super::options::AllocatorOptions;
use super::remote::Remotes;
use super::state::State;

/// How many turns there are: one for each key would grow without bound, and keys that share one wait for each other for no reason. With 16
/// tasks at work the chance that a task waits in vain is 15 in 256.
const TURNS: usize = 256;

/// What an allocator and its tasks share.
pub(super) struct Shared<B> {
    pub(super) backend: B,
    pub(super) options: AllocatorOptions,
    state: Mutex<State>,
    /// Who writes for a key waits for its turn: locks of the store are of the whole process, and giving up a key must not meet taking it.
    turns: Vec<tokio::sync::Mutex<()>>,
    hasher: RandomState,
    /// Whether the first list is complete.
    pub(super) listed: watch::Sender<bool>,
    /// Told of each change of the copy.
    pub(super) told: Notify,
    pub(super) remotes: Remotes,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
}

impl<B> Shared<B> {
    pub(super) fn new(backend: B, options: AllocatorOptions) -> Self {
        Self {
            state: Mutex::new(State::new(&options)),
            backend,
            options,
            turns: (0..TURNS).map(|_| tokio::sync::Mutex::new(())).collect(),
            hasher: RandomState::new(),
            listed: watch::Sender::new(false),
            told: Notify::new(),
            remotes: Remotes::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose turn it is with a key.
    pub(super) fn turn(&self, key: &AllocatorKey) -> &tokio::sync::Mutex<()> {
        let hash = usize::try_from(self.hasher.hash_one(key) % TURNS as u64).unwrap_or_default();
        &self.turns[hash]
    }

    /// One more use of a key that is in use here.
    pub(super) fn reuse(&self, key: &AllocatorKey) -> Option<Id> {
        let mut state = self.state();
        let id = state.local.reuse(key)?;
        state.cache.insert_untold(id, key);
        Some(id)
    }
}
