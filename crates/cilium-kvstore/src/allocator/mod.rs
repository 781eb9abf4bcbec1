//! Allocator of identities: nodes that share a store assign each set of labels one number, and each
//! number to one set of labels (Cilium's `pkg/allocator` and `pkg/kvstore/allocator`).
//!
//! An [`Allocator`] keeps a copy of all numbers, counts the uses on this node, and writes the
//! entries and references of used numbers again if the store loses them. It works over a
//! [`Backend`], for instance [`EtcdBackend`]. A number is allocated only under the lock of its
//! labels. A node writes a reference to a number only if the number's entry has these labels at
//! that moment. A collector can therefore not delete a number between its lookup and its use.
//!
//! ```
//! # mod etcd { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/etcd/mod.rs")); }
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = etcd::Etcd::start()?;
//! # let url = server.url();
//! use cilium_kvstore::allocator::{Allocator, AllocatorKey, AllocatorOptions, EtcdBackend, IdRange};
//! use cilium_kvstore::{EtcdConfig, Session, SessionOptions};
//! # use tokio_util::sync::CancellationToken;
//! # let session = Session::start(EtcdConfig::new(url), SessionOptions::default(), CancellationToken::new());
//!
//! let node = |name| EtcdBackend::new(session.clone(), "cilium/state/identities/v1", name);
//! let range = IdRange::new(256, 65_535).ok_or("not a valid range")?;
//! let options = AllocatorOptions { range, ..AllocatorOptions::default() };
//! let allocator = Allocator::start(node("10.0.0.1"), options)?;
//!
//! let labels = AllocatorKey::from_labels([("k8s:app", "cart"), ("k8s:env", "test")]);
//! let first = allocator.allocate(&labels).await?;
//! let second = allocator.allocate(&labels).await?;
//! assert!(first.is_new && !second.is_new && first.id == second.id);
//!
//! // two uses, so two releases; the number exists until a collector deletes it
//! assert!(!allocator.release(&labels).await?.last_use);
//! assert!(allocator.release(&labels).await?.last_use);
//! # allocator.delete().await;
//! # Ok(()) }
//! ```
//!
//! # Garbage collection
//! A round of the collector deletes the numbers that no node refers to now and that were already
//! unused in the previous round. Cilium's operator runs one round every 15 minutes.
//!
//! ```
//! # mod etcd { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/etcd/mod.rs")); }
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = etcd::Etcd::start()?;
//! # let url = server.url();
//! use std::num::NonZeroU32;
//!
//! use cilium_kvstore::allocator::{Allocator, AllocatorOptions, CollectionLimits, EtcdBackend, IdRange, StaleIds};
//! # use cilium_kvstore::{EtcdConfig, KeyLifetime, Session, SessionOptions};
//! # use tokio_util::sync::CancellationToken;
//! # let session = Session::start(EtcdConfig::new(url), SessionOptions::default(), CancellationToken::new());
//! # session.update(b"cilium/state/identities/v1/id/300", b"k8s:app=old;", KeyLifetime::Permanent).await?;
//!
//! let backend = EtcdBackend::new(session.clone(), "cilium/state/identities/v1", "operator");
//! let collector = Allocator::for_collection(backend, AllocatorOptions::default())?;
//! let limits = CollectionLimits { range: IdRange::ALL, deletes_per_minute: NonZeroU32::new(2_500).ok_or("zero")? };
//! let first = collector.run_gc(&StaleIds::new(), &limits).await?;
//! let second = collector.run_gc(&first.stale, &limits).await?;
//! assert_eq!((first.deleted.len(), second.deleted.len()), (0, 1));
//! # Ok(()) }
//! ```

mod allocation;
mod api;
mod backend;
mod background;
mod cache;
mod etcd;
mod event;
mod key;
mod local;
mod options;
mod pool;
mod remote;
mod shared;
mod state;
#[cfg(test)]
mod tests;

pub use api::{AllocateError, Allocation, Allocator, Release};
pub use backend::{
    Backend, BackendError, CollectionLimits, CollectionRound, Id, IdRange, LockCollection, Locker, Mutation, StaleIds, StaleLocks,
    UpdateOutcome,
};
pub use etcd::EtcdBackend;
pub use event::{AllocatorEvent, AllocatorEventKind};
pub use key::AllocatorKey;
pub use options::{AllocatorOptions, InvalidOptions, Validator};
pub use remote::RemoteCache;
