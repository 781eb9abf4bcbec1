//! Identities: numbers for sets of labels, given out by many nodes over one store so that each set has one number and each number one set
//! (Cilium's `pkg/allocator` and `pkg/kvstore/allocator`).
//!
//! Owns: the pool of free numbers, what this node uses and how often, a copy of all numbers that follows the store, and the tasks that keep
//! the store right. Receives: a [`Backend`], the store, of which [`EtcdBackend`] is the one over etcd. Emits: numbers, and [`Event`]s of
//! those that come and go. Invariants: a number is given to a set of labels only under the lock of that set, and a node refers
//! to it only while its entry names these labels; so a number cannot be collected between being found and being used. The pure part
//! (`pool`, `local`, `cache`, `state`) does no IO and knows no time. Deliberately lacks: what labels mean.

mod backend;
mod cache;
mod etcd;
mod event;
mod key;
mod local;
mod locked;
mod options;
mod pool;
mod remote;
mod serve;
mod shared;
mod state;
#[cfg(test)]
mod tests;
mod upkeep;

pub use backend::{
    Backend, BackendError, Collected, CollectionRound, Id, IdRange, LockCollection, Locker, Mutation, Restored, StaleIds, StaleLocks,
};
pub use etcd::EtcdBackend;
pub use event::{Event, EventKind};
pub use key::AllocatorKey;
pub use options::{AllocatorOptions, InvalidOptions, Validator};
pub use remote::RemoteCache;
pub use serve::{AllocateError, Allocation, Allocator, Released};
