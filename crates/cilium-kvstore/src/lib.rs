//! A client for Cilium's kvstore: the etcd in which Cilium's agents, operators and ClusterMesh keep
//! identities, nodes, services and IP addresses.
//!
//! It does what Cilium's Go packages `pkg/kvstore`, `pkg/kvstore/store`, `pkg/allocator` and
//! `pkg/kvstore/allocator` do, over the same keys, with the same locks, leases and defaults.
//!
//! | to do this | use |
//! |---|---|
//! | read and write keys, with leases, locks and transactions | [`Session`] |
//! | follow a prefix across reconnects | [`Session::list_and_watch`] |
//! | keep a prefix equal to a set of values, or follow a prefix | [`store`] |
//! | allocate identities and collect unused ones | [`allocator`] |
//! | read one etcd process exactly: pages, watches, revisions | [`Connection`] |
//! | find out why an etcd cannot be reached | [`examine`] |
//! | build Cilium's keys | [`keys`] |
//!
//! # A session
//! A [`Session`] connects in the background and reconnects after each failure. Leases, locks and
//! watches survive a reconnect.
//!
//! ```
//! # mod etcd { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/etcd/mod.rs")); }
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = etcd::Etcd::start()?;
//! # let url = server.url();
//! use cilium_kvstore::{EtcdConfig, KeyLifetime, Session, SessionOptions};
//! use tokio_util::sync::CancellationToken;
//!
//! let config = EtcdConfig::new(url);
//! let session = Session::start(config, SessionOptions::default(), CancellationToken::new());
//! session.connected().await?;
//!
//! // the key expires 15 minutes after this process has ended
//! let key = b"cilium/state/nodes/v1/paris/worker-1";
//! session.update(key, b"{}", KeyLifetime::Leased).await?;
//! assert!(!session.create_only(key, b"other", KeyLifetime::Leased).await?);
//! assert_eq!(session.list_prefix(b"cilium/state/nodes/v1/").await?.len(), 1);
//! session.close().await;
//! # Ok(()) }
//! ```
//!
//! # Locks
//! A lock is etcd's own mutex below a path, as Cilium uses it. An operation under a lock succeeds
//! only while the lock is held.
//!
//! ```
//! # mod etcd { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/etcd/mod.rs")); }
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = etcd::Etcd::start()?;
//! # let url = server.url();
//! use cilium_kvstore::{EtcdConfig, KeyLifetime, Session, SessionOptions};
//! # use tokio_util::sync::CancellationToken;
//! # let session = Session::start(EtcdConfig::new(url), SessionOptions::default(), CancellationToken::new());
//!
//! let lock = session.lock_path(b"cilium/state/example").await?;
//! session.update_if_locked(b"cilium/state/example", b"1", KeyLifetime::Permanent, &lock).await?;
//! lock.unlock().await?;
//! # Ok(()) }
//! ```
//!
//! # List and watch
//! The events begin with all keys of the prefix. When a watch ends, the session lists again and
//! reports keys that are missing from the new list as deleted.
//!
//! ```
//! # mod etcd { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/etcd/mod.rs")); }
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = etcd::Etcd::start()?;
//! # let url = server.url();
//! use cilium_kvstore::{EtcdConfig, EventKind, KeyLifetime, Session, SessionOptions};
//! # use tokio_util::sync::CancellationToken;
//! # let session = Session::start(EtcdConfig::new(url), SessionOptions::default(), CancellationToken::new());
//!
//! session.update(b"cilium/state/ip/v1/default/10.0.0.1", b"{}", KeyLifetime::Permanent).await?;
//! let mut watcher = session.list_and_watch(b"cilium/state/ip/v1/", 64);
//! let kinds = [watcher.next().await, watcher.next().await].map(|event| event.map(|event| event.kind));
//! assert_eq!(kinds, [Some(EventKind::Create), Some(EventKind::ListDone)]);
//! # Ok(()) }
//! ```
//!
//! # One connection
//! Every reply of a [`Connection`] comes from the process that sent the first reply. A broken
//! connection stays broken: a wiped etcd can return with the same cluster id, so a reader could not
//! notice a silent reconnect.
//!
//! ```
//! # mod etcd { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/etcd/mod.rs")); }
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = etcd::Etcd::start()?;
//! # let url = server.url();
//! use cilium_kvstore::{ClientOptions, Connection, EtcdConfig, WatchMessage, prefix_end};
//!
//! let config = EtcdConfig::new(url);
//! let connection = Connection::open(&config, &config.endpoints()[0], &ClientOptions::default()).await?;
//! let prefix = b"cilium/state/nodes/v1/";
//! let mut list = connection.list(prefix);
//! let mut revision = Default::default();
//! while let Some(page) = list.next_page().await? {
//!     println!("{} nodes at revision {}", page.key_values.len(), page.revision);
//!     revision = page.revision;
//! }
//! let mut watch = connection.watch(prefix, Some(&prefix_end(prefix)), revision).await?;
//! assert!(matches!(watch.next().await?, WatchMessage::Created { .. }));
//! # Ok(()) }
//! ```
//!
//! # What to do about an error
//! [`KvstoreError::disposition`] returns whether to retry, to list again or to wait for another
//! configuration. [`KvstoreError::hint`] returns advice for the operator.

pub mod allocator;
mod backoff;
mod config;
mod connection;
mod endpoint;
mod error;
mod files;
mod ids;
pub mod keys;
mod session;
pub mod store;
mod tls;
mod values;

pub use backoff::Backoff;
pub use config::{ClientCertificate, Credentials, EtcdConfig, HostAliases};
#[cfg(feature = "test-util")]
pub use connection::ScriptedWatch;
pub use connection::{
    ChangedKeys, ClientOptions, Connection, Examination, FollowedRange, Handshake, KeyRange, LeaseLife, Page, PagedList, ServerFacts,
    Watch, WatchMessage, examine,
};
pub use endpoint::Endpoint;
pub use error::{Disposition, KvstoreError};
pub use files::read_bounded;
pub use ids::{EtcdClusterId, LeaseId, Revision};
pub use session::{
    ClusterSize, Condition, DeleteEvent, DeleteWatcher, EndpointStatus, EventKind, KeyLifetime, KeyValueEvent, KvLocker, LockKey, LostKeys,
    Session, SessionOptions, SessionStatus, Watcher, Write, status_check_interval,
};
pub use tls::{CertificateFacts, CertificateFile, TlsRefusal};
pub use values::{Event, KeyValue, prefix_end};

/// Runs the example of the README as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Maximum size of a certificate or key file, in bytes. A bundle of all public CAs has about
/// 250 kB.
const TLS_FILE_BYTES_MAX: u64 = 4 << 20;
