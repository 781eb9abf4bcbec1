//! Store that an allocator works over: numbers with their keys, each node's references to them, and
//! locks (`Backend`, `pkg/allocator`).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::num::{NonZeroU32, NonZeroU64};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::key::AllocatorKey;
use crate::{KvstoreError, LeaseId, Revision};

/// Allocated number. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(NonZeroU64);

impl Id {
    /// Lowest number.
    pub const MIN: Self = Self(NonZeroU64::MIN);
    /// Highest number.
    pub const MAX: Self = Self(NonZeroU64::MAX);

    /// Wraps a number; `None` for 0.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0.get()
    }

    /// Parses decimal digits, as `strconv.ParseUint` does.
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

/// Inclusive range of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    min: Id,
    max: Id,
}

impl IdRange {
    /// All numbers.
    pub const ALL: Self = Self { min: Id::MIN, max: Id::MAX };

    /// Creates a range; `None` if it has fewer than two numbers, which Cilium requires.
    #[must_use]
    pub fn new(min: u64, max: u64) -> Option<Self> {
        let (min, max) = (Id::new(min)?, Id::new(max)?);
        (min < max).then_some(Self { min, max })
    }

    /// Returns the lowest number.
    #[must_use]
    pub const fn min(self) -> Id {
        self.min
    }

    /// Returns the highest number.
    #[must_use]
    pub const fn max(self) -> Id {
        self.max
    }

    /// Returns whether a number is in the range.
    #[must_use]
    pub fn contains(self, id: Id) -> bool {
        (self.min..=self.max).contains(&id)
    }
}

/// Change of a store, to be applied to a copy of its numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mutation {
    /// The first list is complete. Sent once.
    ListDone,
    /// Everything is being listed again. Until [`Mutation::Relisted`], changes come in any order.
    Relisting,
    /// The new list is complete.
    Relisted,
    /// The number belongs to this key. Its entry was written at this revision.
    Upsert(Id, AllocatorKey, Revision),
    /// A number was deleted.
    Delete(Id),
}

/// Result of [`Backend::update_key`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// Entry and reference existed already.
    Unchanged,
    /// The number's entry or the node's reference was missing and was written again.
    Rewritten,
    /// The number belongs to another key now, or the key has another number. Users of the key must
    /// allocate again.
    Lost,
}

/// Error of a store.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The lock was lost meanwhile. Nothing was written.
    #[error("lost the lock of the key: its lease expired")]
    LockLost,
    /// Error of the kvstore.
    #[error(transparent)]
    Kvstore(#[from] KvstoreError),
}

/// Unused numbers in a round of collection, with the revisions of their entries.
pub type StaleIds = HashMap<Id, Revision>;

/// Locks in a round of lock collection: the keys in etcd, with their revisions and leases.
pub type StaleLocks = BTreeMap<Vec<u8>, (Revision, LeaseId)>;

/// Limits of a round of collection.
#[derive(Debug, Clone, Copy)]
pub struct CollectionLimits {
    /// Range of the numbers that may be collected.
    pub range: IdRange,
    /// Maximum deletions per minute (`--identity-gc-rate-limit`, Cilium's operator: 2,500).
    pub deletes_per_minute: NonZeroU32,
}

/// Result of a round of collection.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CollectionRound {
    /// Numbers that are unused now. The next round deletes those that are still unused.
    pub stale: StaleIds,
    /// Count of the numbers in the range that exist.
    pub alive: usize,
    /// Numbers that were deleted.
    pub deleted: Vec<Id>,
}

/// Result of a round of lock collection.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LockCollection {
    /// Locks that are held now. The next round deletes those that still have the same holder.
    pub held: StaleLocks,
    /// Number of locks that were deleted.
    pub deleted: usize,
}

/// Held lock of a key. Only one allocator of a store can hold it at a time.
pub trait Locker: Send + Sync + 'static {
    /// Releases the lock. A lock that is dropped without this call is released later, in the
    /// background.
    fn unlock(self) -> impl Future<Output = ()> + Send;
}

/// Store of numbers.
pub trait Backend: Send + Sync + 'static {
    /// Guard of a key's lock.
    type Lock: Locker;

    /// Waits for the lock of a key.
    fn lock(&self, key: &AllocatorKey) -> impl Future<Output = Result<Self::Lock, BackendError>> + Send;

    /// Returns the number of a key, if any node uses it.
    fn get(&self, key: &AllocatorKey) -> impl Future<Output = Result<Option<Id>, BackendError>> + Send;

    /// Returns the number of a key, if any node uses it. The lock of the key must be held.
    fn get_if_locked(&self, key: &AllocatorKey, lock: &Self::Lock) -> impl Future<Output = Result<Option<Id>, BackendError>> + Send;

    /// Returns the key of a number.
    fn get_by_id(&self, id: Id) -> impl Future<Output = Result<Option<AllocatorKey>, BackendError>> + Send;

    /// Writes the entry of a free number for a key, so that a reference can be written. Returns
    /// false if the number is taken.
    fn write_id_if_locked(&self, id: Id, key: &AllocatorKey, lock: &Self::Lock) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// Writes, in one transaction, the entry of a free number for a key without a number, and this
    /// node's reference to it. Returns false if the number is taken.
    fn allocate_id_if_locked(
        &self,
        id: Id,
        key: &AllocatorKey,
        lock: &Self::Lock,
    ) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// Deletes a number's entry if it belongs to this key. The caller has made sure that no node
    /// refers to it.
    fn delete_id_if_locked(&self, id: Id, key: &AllocatorKey, lock: &Self::Lock) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// Writes this node's reference to a number, if the number belongs to this key at that moment.
    /// Returns false if it does not.
    fn acquire_reference(&self, id: Id, key: &AllocatorKey, lock: &Self::Lock) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// Checks that a number's entry and this node's reference to it exist, and writes them if they
    /// are missing.
    fn update_key(&self, id: Id, key: &AllocatorKey) -> impl Future<Output = Result<UpdateOutcome, BackendError>> + Send;

    /// Deletes this node's reference to the number of a key.
    fn release(&self, id: Id, key: &AllocatorKey) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// Returns a future that completes once references of this node may have been lost. It counts
    /// losses from this call on, not only from its first poll.
    fn references_lost(&self) -> impl Future<Output = ()> + Send;

    /// Sends all numbers and then their changes until `stop` is cancelled or the receiver is
    /// dropped. The changes are in the order of their revisions, except during a list.
    fn list_and_watch(&self, mutations: mpsc::Sender<Mutation>, stop: CancellationToken) -> impl Future<Output = ()> + Send;

    /// Runs one round of collection: deletes the numbers that were unused in the last round, have
    /// not been written since, and are unused now.
    fn run_gc(
        &self,
        last_round: &StaleIds,
        limits: &CollectionLimits,
    ) -> impl Future<Output = Result<CollectionRound, BackendError>> + Send;

    /// Runs one round of lock collection: deletes the locks that had the same holder in the last
    /// round.
    fn run_locks_gc(&self, last_round: &StaleLocks) -> impl Future<Output = Result<LockCollection, BackendError>> + Send;

    /// Deletes everything. For tests.
    fn delete_all_keys(&self) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// Returns a human-readable status of the store.
    fn status(&self) -> impl Future<Output = String> + Send;
}
