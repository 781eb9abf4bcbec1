//! Errors of the etcd client, and how a caller should react to them.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tonic::Code;

use crate::{Endpoint, EtcdClusterId, Revision, TlsRefusal};

/// Maximum number of bytes of a key in a message. Keys may be as large as a request.
const KEY_BYTES_SHOWN_MAX: usize = 256;

/// Reaction that an error requires from the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Open a new connection, with backoff.
    Retry,
    /// The requested history does not exist: list again. The connection is still usable.
    Resync,
    /// The client file itself is wrong: do not retry until it changes.
    Fatal,
}

/// An error of the etcd client.
#[derive(Debug, thiserror::Error)]
pub enum KvstoreError {
    /// The endpoint in the client file is invalid.
    #[error("endpoint {endpoint:?} cannot be used: {reason}")]
    InvalidEndpoint {
        /// The endpoint. Its text hides credentials.
        endpoint: Endpoint,
        /// Reason why the endpoint cannot be used.
        reason: &'static str,
    },
    /// A certificate or key cannot be used.
    #[error("{} cannot be used: {reason}", path.display())]
    UnusableFile {
        /// Path of the file.
        path: PathBuf,
        /// Reason why the file cannot be used. Never contains the file's content.
        reason: String,
    },
    /// The system has no CA certificates and the client file names none.
    #[error("this system has no CA certificates: set trusted-ca-file ({reason})")]
    NoSystemRoots {
        /// Error of the system's certificate search.
        reason: String,
    },
    /// The TCP connection failed.
    #[error("cannot connect to {authority}: {cause}")]
    Connect {
        /// Host and port of the endpoint.
        authority: String,
        /// Error of the system.
        cause: io::Error,
    },
    /// The TLS handshake failed.
    #[error("TLS with {authority} failed: {refusal}")]
    Tls {
        /// Host and port of the endpoint.
        authority: String,
        /// Reason of the failure, such as an unknown issuer, and advice.
        refusal: TlsRefusal,
    },
    /// An operation took too long.
    #[error("{operation} took longer than {limit:?}")]
    Timeout {
        /// Operation that took too long.
        operation: String,
        /// Time limit that was exceeded.
        limit: Duration,
    },
    /// etcd refused the user or the password.
    #[error("etcd rejects the username or password of the client file: {message}")]
    Authentication {
        /// Message of etcd.
        message: String,
    },
    /// The user has no permission for the request.
    #[error("{operation}: permission denied by etcd")]
    PermissionDenied {
        /// Description of the request.
        operation: String,
    },
    /// A reply came from a different etcd than the first reply.
    #[error("etcd cluster id changed from {expected} to {found}")]
    ClusterIdChanged {
        /// Cluster id of the first reply.
        expected: EtcdClusterId,
        /// Cluster id of this reply.
        found: EtcdClusterId,
    },
    /// A reply has no header with the etcd's id.
    #[error("reply without header")]
    MissingHeader,
    /// The requested revision was compacted.
    #[error("{operation}: the revision is compacted{}", compacted_up_to(*compact_revision))]
    Compacted {
        /// Description of the request.
        operation: String,
        /// Oldest revision that still exists, if etcd reports it.
        compact_revision: Option<Revision>,
    },
    /// The requested revision is in the future, so this etcd has a different history.
    #[error("{operation}: the revision is in the future")]
    FutureRevision {
        /// Description of the request.
        operation: String,
    },
    /// More keys than the server counted or than Cilium ever writes. Reading them might never end.
    #[error("etcd sent an invalid answer: {reason}")]
    TooManyKeys {
        /// Description of the range and its limit.
        reason: String,
    },
    /// A reply has an older revision than an earlier reply.
    #[error(
        "{operation}: etcd went back from revision {from} to {to}: it was restored from a snapshot, or several etcds share one address"
    )]
    WentBack {
        /// Description of the request.
        operation: String,
        /// Revision of the earlier reply.
        from: Revision,
        /// Revision of this reply.
        to: Revision,
    },
    /// A single reply is over the limit and cannot be split.
    #[error("{operation}: more than {bytes_max} bytes in one message")]
    TooLarge {
        /// Description of the request.
        operation: String,
        /// Limit in bytes.
        bytes_max: usize,
    },
    /// Changes of one revision are over the limit. A list can read the same keys in pages.
    #[error("{operation}: more than {bytes_max} bytes of changes in one revision")]
    BatchTooLarge {
        /// Description of the watch.
        operation: String,
        /// Limit in bytes.
        bytes_max: usize,
    },
    /// The server ended the watch.
    #[error("{operation}: cancelled by etcd: {reason}")]
    WatchCancelled {
        /// Description of the watch.
        operation: String,
        /// Reason that etcd gave.
        reason: String,
    },
    /// The watch stream ended without a reason.
    #[error("{operation}: the stream ended")]
    WatchEnded {
        /// Description of the watch.
        operation: String,
    },
    /// etcd or the connection to it failed.
    #[error("{operation}: {message} ({code:?})")]
    Rpc {
        /// Description of the request.
        operation: String,
        /// gRPC status code.
        code: Code,
        /// Message of the status, and of its causes.
        message: String,
    },
    /// The lock of an operation is no longer held.
    #[error("{operation}: transaction did not succeed: lock lease expired")]
    LockLost {
        /// Description of the operation and its lock.
        operation: String,
    },
    /// There was no connection for the whole time limit of a call.
    #[error("{operation}: not connected to etcd{}", because(cause.as_ref()))]
    NotConnected {
        /// Description of the operation.
        operation: String,
        /// Error of the last attempt to connect.
        cause: Option<String>,
    },
    /// The session was closed.
    #[error("{operation}: the session with etcd is closed")]
    Closed {
        /// Description of the operation.
        operation: String,
    },
    /// A reply that a correct etcd never sends.
    #[error("etcd sent an invalid answer: {reason}")]
    Malformed {
        /// Description of the error in the reply.
        reason: String,
    },
}

impl KvstoreError {
    /// Returns the reaction that the error requires. Unusable files and refused users are retried,
    /// because both can be repaired without a new client file.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::InvalidEndpoint { .. } => Disposition::Fatal,
            Self::Compacted { .. } | Self::FutureRevision { .. } | Self::BatchTooLarge { .. } => Disposition::Resync,
            Self::UnusableFile { .. }
            | Self::NoSystemRoots { .. }
            | Self::Connect { .. }
            | Self::Tls { .. }
            | Self::Timeout { .. }
            | Self::Authentication { .. }
            | Self::PermissionDenied { .. }
            | Self::ClusterIdChanged { .. }
            | Self::MissingHeader
            | Self::WentBack { .. }
            | Self::TooManyKeys { .. }
            | Self::TooLarge { .. }
            | Self::WatchCancelled { .. }
            | Self::WatchEnded { .. }
            | Self::Rpc { .. }
            | Self::LockLost { .. }
            | Self::NotConnected { .. }
            | Self::Closed { .. }
            | Self::Malformed { .. } => Disposition::Retry,
        }
    }

    /// Returns advice for the operator, if there is any beyond the error itself. (The hint for
    /// timeouts is the one of Cilium's `Hint`.)
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Timeout { .. } => Some("etcd client timeout exceeded: check whether etcd is overloaded, has no leader, or is far away"),
            Self::PermissionDenied { .. } => {
                Some("give the user of the client file a role that allows this (etcdctl role grant-permission)")
            }
            Self::NotConnected { .. } => Some("check the endpoints of the client file, and that etcd runs there"),
            Self::LockLost { .. } => Some("the lease of the lock expired, or another client deleted the lock: start again"),
            Self::Rpc { message, .. } if message.contains("database space exceeded") => Some(
                "etcd is full: compact and defragment it, or raise --quota-backend-bytes, then disarm the alarm (etcdctl alarm disarm)",
            ),
            Self::Rpc { message, .. } if message.contains("requested lease not found") => {
                Some("etcd no longer has the lease: the next attempt gets another one")
            }
            Self::Rpc { message, .. } if message.contains("no leader") => Some("a majority of etcd's members is not reachable"),
            _ => None,
        }
    }

    /// Returns whether the lease of a put no longer exists.
    pub(crate) fn is_lease_not_found(&self) -> bool {
        matches!(self, Self::Rpc { code: Code::NotFound, message, .. } if message.contains("lease not found"))
    }

    /// Returns whether a new token might solve the error.
    pub(crate) fn is_token_error(&self) -> bool {
        // etcd cancels a watch with an old token with "invalid auth token", older releases (3.5.1)
        // with "permission denied"
        let cancelled =
            matches!(self, Self::WatchCancelled { reason, .. } if reason.contains("auth") || reason.contains("permission denied"));
        cancelled || matches!(self, Self::PermissionDenied { .. } | Self::Rpc { code: Code::Unauthenticated, .. })
    }

    /// Returns whether the server does not implement the call.
    pub(crate) fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Rpc { code: Code::Unimplemented, .. })
    }

    /// Returns whether the server does not implement the call, or does not permit it to this user.
    pub(crate) fn is_unimplemented_or_denied(&self) -> bool {
        self.is_unimplemented() || matches!(self, Self::PermissionDenied { .. })
    }

    /// Returns whether etcd refused the call, or could not execute it.
    pub(crate) fn is_failed_call(&self) -> bool {
        matches!(self, Self::Rpc { .. } | Self::PermissionDenied { .. })
    }

    /// Converts an error of the client crate. The messages are etcd's
    /// (`api/v3rpc/rpctypes/error.go`) and tonic's.
    pub(crate) fn from_call(operation: String, bytes_max: usize, error: &etcd_client::Error) -> Self {
        let etcd_client::Error::GRpcStatus(status) = error else {
            return Self::Rpc { operation, code: Code::Unknown, message: error.to_string() };
        };
        let message = status.message();
        match status.code() {
            Code::OutOfRange if message.contains("has been compacted") => Self::Compacted { operation, compact_revision: None },
            Code::OutOfRange if message.contains("future revision") => Self::FutureRevision { operation },
            Code::OutOfRange if message.contains("message length too large") => Self::TooLarge { operation, bytes_max },
            Code::ResourceExhausted if message.contains("larger than max") => Self::TooLarge { operation, bytes_max },
            Code::PermissionDenied => Self::PermissionDenied { operation },
            code => Self::Rpc { operation, code, message: with_causes(message, status) },
        }
    }
}

/// Joins an error's message with those of its causes, each once.
pub(crate) fn with_causes(message: &str, error: &dyn Error) -> String {
    let mut text = message.to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

/// Returns a key as text for messages, truncated if long.
pub(crate) fn printable(key: &[u8]) -> String {
    let shown = &key[..key.len().min(KEY_BYTES_SHOWN_MAX)];
    let dots = if shown.len() < key.len() { "…" } else { "" };
    format!("{:?}{dots}", String::from_utf8_lossy(shown))
}

fn because(cause: Option<&String>) -> String {
    cause.map(|cause| format!(" ({cause})")).unwrap_or_default()
}

fn compacted_up_to(revision: Option<Revision>) -> String {
    revision.map(|revision| format!(" up to {revision}")).unwrap_or_default()
}
