//! What an allocator asks of a store: numbers with their keys, each node's references to them, and locks (`Backend`, `pkg/allocator`).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::num::{NonZeroU32, NonZeroU64};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::key::AllocatorKey;
use crate::{KvstoreError, LeaseId, Revision};

/// A number that is allocated; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(NonZeroU64);

impl Id {
    /// The lowest.
    pub const MIN: Self = Self(NonZeroU64::MIN);
    /// The highest.
    pub const MAX: Self = Self(NonZeroU64::MAX);

    /// A number that is not 0.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0.get()
    }

    /// Reads decimal digits, as `strconv.ParseUint` does.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if digits { Self::new(text.parse().ok()?) } else { None }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The numbers from one to another, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    min: Id,
    max: Id,
}

impl IdRange {
    /// Every number.
    pub const ALL: Self = Self { min: Id::MIN, max: Id::MAX };

    /// A range; `None` if it has not two numbers at least, as Cilium demands.
    #[must_use]
    pub fn new(min: u64, max: u64) -> Option<Self> {
        let (min, max) = (Id::new(min)?, Id::new(max)?);
        (min < max).then_some(Self { min, max })
    }

    /// The lowest number.
    #[must_use]
    pub const fn min(self) -> Id {
        self.min
    }

    /// The highest number.
    #[must_use]
    pub const fn max(self) -> Id {
        self.max
    }

    /// Whether a number is of the range.
    #[must_use]
    pub fn contains(self, id: Id) -> bool {
        (self.min..=self.max).contains(&id)
    }
}

/// What a store says to a copy of its numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mutation {
    /// The first list is complete; comes once.
    ListDone,
    /// Everything is listed anew: until that is over, what changes comes in any order.
    Relisting,
    /// The new list is over.
    Relisted,
    /// A number and its key are there, since a revision.
    Upsert(Id, AllocatorKey, Revision),
    /// A number has gone.
    Delete(Id),
}

/// What became of a node's claim to a number, looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restored {
    /// It was all there.
    Standing,
    /// The number's entry or the node's reference was missing, and is there again.
    Written,
    /// The number is another key's by now, or the key has another number: who used it must allocate anew.
    Lost,
}

/// Why a store does not do what it is asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The lock was lost meanwhile: nothing was done.
    #[error("the lock of the key was lost: its lease has expired")]
    LockLost,
    /// The store itself.
    #[error(transparent)]
    Kvstore(#[from] KvstoreError),
}

/// Unused numbers of a round of collection, with the revisions of their entries.
pub type StaleIds = HashMap<Id, Revision>;

/// Locks of a round, by key, with their revisions and leases.
pub type StaleLocks = BTreeMap<Vec<u8>, (Revision, LeaseId)>;

/// What a round of collection may do.
#[derive(Debug, Clone, Copy)]
pub struct Collected {
    /// Numbers outside of it are left alone.
    pub range: IdRange,
    /// How many entries may be deleted in a minute (`--identity-gc-rate-limit`, Cilium's operator: 2,500).
    pub deletes_per_minute: NonZeroU32,
}

/// What a round of collection did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CollectionRound {
    /// Unused now: the next round deletes those of them that stay so.
    pub stale: StaleIds,
    /// How many numbers of the range there are.
    pub alive: usize,
    /// Those that are not any more.
    pub deleted: Vec<Id>,
}

/// What a round over the locks did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LockCollection {
    /// Held now: the next round takes those of them that are held by the same holder still.
    pub held: StaleLocks,
    /// How many were taken from their holders.
    pub deleted: usize,
}

/// The lock of a key, which no other allocator over the same store has at the same time.
pub trait Locker: Send + Sync + 'static {
    /// Gives it back. A lock that is dropped instead is given back in its own time.
    fn unlock(self) -> impl Future<Output = ()> + Send;
}

/// A store of numbers.
pub trait Backend: Send + Sync + 'static {
    /// What holds the lock of a key.
    type Lock: Locker;

    /// Waits for the lock of a key.
    fn lock(&self, key: &AllocatorKey) -> impl Future<Output = Result<Self::Lock, BackendError>> + Send;

    /// The number of a key that any node uses.
    fn get(&self, key: &AllocatorKey) -> impl Future<Output = Result<Option<Id>, BackendError>> + Send;

    /// The number of a key that any node uses, asked while the lock of the key is held.
    fn get_if_locked(&self, key: &AllocatorKey, lock: &Self::Lock) -> impl Future<Output = Result<Option<Id>, BackendError>> + Send;

    /// The key of a number.
    fn get_by_id(&self, id: Id) -> impl Future<Output = Result<Option<AllocatorKey>, BackendError>> + Send;

    /// Gives a number that is nobody's to a key, to be referred to. False: the number is somebody's.
    fn write_id_if_locked(&self, id: Id, key: &AllocatorKey, lock: &Self::Lock) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// Gives a number that is nobody's to a key that has none, and refers to it from this node, at once or not at all. False: the number is
    /// somebody's.
    fn allocate_id_if_locked(
        &self,
        id: Id,
        key: &AllocatorKey,
        lock: &Self::Lock,
    ) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// Deletes a number's entry if it is this key's; who calls has seen to it that nobody refers to it.
    fn delete_id_if_locked(&self, id: Id, key: &AllocatorKey, lock: &Self::Lock) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// Refers from this node to a number, provided that it is this key's at that moment. False: it is not, or not any more.
    fn acquire_reference(&self, id: Id, key: &AllocatorKey, lock: &Self::Lock) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// Makes sure that a number and this node's reference to it are there, and writes what is missing.
    fn update_key(&self, id: Id, key: &AllocatorKey) -> impl Future<Output = Result<Restored, BackendError>> + Send;

    /// This node does not use the number of a key any more.
    fn release(&self, id: Id, key: &AllocatorKey) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// Returns when references of this node may have been lost, from now on.
    fn references_lost(&self) -> impl Future<Output = ()> + Send;

    /// Tells all numbers and what becomes of them, in that order but for lists, until `stop` is cancelled or nobody listens.
    fn list_and_watch(&self, mutations: mpsc::Sender<Mutation>, stop: CancellationToken) -> impl Future<Output = ()> + Send;

    /// One round of collection: deletes what was unused in the last round, has not been written since and is unused now.
    fn run_gc(&self, last_round: &StaleIds, what: &Collected) -> impl Future<Output = Result<CollectionRound, BackendError>> + Send;

    /// One round over the locks: takes those away that had the same holder in the last round.
    fn run_locks_gc(&self, last_round: &StaleLocks) -> impl Future<Output = Result<LockCollection, BackendError>> + Send;

    /// Deletes everything; for tests.
    fn delete_all_keys(&self) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// How the store is, for people.
    fn status(&self) -> impl Future<Output = String> + Send;
}
