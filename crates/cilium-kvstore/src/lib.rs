//! A client for Cilium's kvstore: one connection to one etcd process, what can be asked over it, and sessions that outlive it.
//!
//! A [`Connection`] only reads: lists in pages, watches, single keys. Every reply of a connection comes from the process that gave the first
//! one. A broken connection stays broken: a wiped etcd can come back with the same cluster id, so that a silent reconnect could not be noticed.
//! A [`Session`] opens the next connection, over the endpoints in turn, and writes: leases, locks, operations, users. Above a session there are
//! stores ([`store`]) and the allocator of identities ([`allocator`]).

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
    ChangedKeys, ClientOptions, Connection, Examination, Follow, Handshake, LeaseLife, Page, PagedList, ServerFacts, Watch, WatchMessage,
    examine,
};
pub use endpoint::Endpoint;
pub use error::{Disposition, KvstoreError};
pub use files::read_bounded;
pub use ids::{EtcdClusterId, LeaseId, Revision};
pub use session::{
    ClusterSize, Condition, DeleteWatcher, Deleted, EndpointStatus, EventKind, KeyValueEvent, KvLocker, Life, LockKey, LostKeys, Session,
    SessionOptions, SessionStatus, Watcher, Write, status_check_interval,
};
pub use tls::{CertificateFacts, CertificateFile, TlsRefusal};
pub use values::{Event, KeyValue, prefix_end};

/// The largest certificate or key file that is read: a bundle of all public CAs has about 250 kB.
const TLS_FILE_BYTES_MAX: u64 = 4 << 20;
