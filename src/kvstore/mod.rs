//! The etcd client: one connection to one server process, what can be asked over it, and sessions that outlive it.
//!
//! Owns: the etcd client file, TLS, tokens, the paged list, the watch, and the limits on all of them; and above connections the
//! [`Session`], which writes: leases, locks, operations, users. Receives: a [`ClientFile`] and one of its endpoints. Emits: keys as they came, with etcd's own revisions, and errors that say what
//! to do next ([`KvstoreError::disposition`]). Invariant: every reply of a [`Connection`] comes from the process that gave
//! the first one; a broken connection stays broken (a wiped etcd can come back with the same cluster id, so that a silent
//! reconnect could not be noticed; docs/develop/invariants.md, 2). A [`Connection`] deliberately lacks: reconnecting, back-off, choosing an
//! endpoint (a session does that), deciding that silence has lasted too long, and any meaning of keys and values.
//!
//! The only room that imports `etcd-client`.

mod client_fields;
mod client_file;
#[cfg(test)]
mod client_file_table;
mod client_keys;
mod connection;
mod dial;
mod endpoint;
mod error;
mod examine;
mod follow;
mod host_aliases;
pub mod keys;
mod lease;
mod limits;
mod paged_list;
mod session;
pub mod store;
mod tally;
mod tls;
mod values;
mod watch;
mod watch_stream;

pub use client_file::{ClientFile, ClientFileError, Slip};
pub(crate) use client_keys::meant_by;
pub use connection::Connection;
pub use endpoint::Endpoint;
pub use error::{Disposition, KvstoreError};
pub use examine::{Examination, Handshake, ServerFacts, examine};
pub use follow::Follow;
pub use lease::LeaseLife;
pub use limits::ClientOptions;
pub use paged_list::{ChangedKeys, Page, PagedList};
pub use session::{
    ClusterSize, Condition, DeleteWatcher, Deleted, EndpointStatus, EventKind, KeyValueEvent, KvLocker, Life, LockKey, LostKeys, Session,
    SessionOptions, SessionStatus, Watcher, Write, status_check_interval,
};
pub use tls::{CertificateFacts, CertificateFile, TlsRefusal};
pub use values::{Event, KeyValue, prefix_end};
#[cfg(test)]
pub(crate) use watch::ScriptedWatch;
pub use watch::{Watch, WatchMessage};

/// The largest certificate or key file that is read: a bundle of all public CAs has about 250 kB.
const TLS_FILE_BYTES_MAX: u64 = 4 << 20;
