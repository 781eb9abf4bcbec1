//! What can go wrong between us and an etcd, and what to do about it.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tonic::Code;

use crate::{Endpoint, EtcdClusterId, Revision, TlsRefusal};

/// How much of a key is shown in a message: keys may be as large as a request.
const KEY_BYTES_SHOWN_MAX: usize = 256;

/// What the caller has to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Open a new connection, with back-off.
    Retry,
    /// The history asked for is not to be had: list anew. The connection is still good.
    Resync,
    /// The client file itself is wrong: nothing to retry until it changes.
    Fatal,
}

/// An error of the etcd client.
#[derive(Debug, thiserror::Error)]
pub enum KvstoreError {
    /// The endpoint in the client file is not one.
    #[error("endpoint {endpoint:?} cannot be used: {reason}")]
    InvalidEndpoint {
        /// The endpoint, which shows no credentials.
        endpoint: Endpoint,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A certificate or key cannot be used.
    #[error("{} cannot be used: {reason}", path.display())]
    UnusableFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it; never its content.
        reason: String,
    },
    /// The system has no CA certificates and the client file names none.
    #[error("this system has no CA certificates: set trusted-ca-file ({reason})")]
    NoSystemRoots {
        /// What the search for them said.
        reason: String,
    },
    /// No TCP connection.
    #[error("cannot connect to {authority}: {cause}")]
    Connect {
        /// The host and port.
        authority: String,
        /// The system's error.
        cause: io::Error,
    },
    /// No TLS connection.
    #[error("TLS with {authority} failed: {refusal}")]
    Tls {
        /// The host and port.
        authority: String,
        /// Why, such as an unknown issuer, and what to do.
        refusal: TlsRefusal,
    },
    /// Something took too long.
    #[error("{what} took longer than {limit:?}")]
    Timeout {
        /// What was being done.
        what: String,
        /// How long it might have taken.
        limit: Duration,
    },
    /// etcd refused the user or the password.
    #[error("etcd refuses the username or password of the client file: {message}")]
    Authentication {
        /// etcd's words.
        message: String,
    },
    /// The user may not read this.
    #[error("{what}: permission denied by etcd")]
    PermissionDenied {
        /// What was asked for.
        what: String,
    },
    /// A reply came from another etcd than the first one.
    #[error("etcd cluster id changed from {expected} to {found}")]
    ClusterIdChanged {
        /// The id of the first reply.
        expected: EtcdClusterId,
        /// The id of this one.
        found: EtcdClusterId,
    },
    /// A reply does not say which etcd it comes from.
    #[error("reply without header")]
    MissingHeader,
    /// The history that was asked for is compacted away.
    #[error("{what}: the revision is compacted{}", compacted_up_to(*compact_revision))]
    Compacted {
        /// What was asked for.
        what: String,
        /// The oldest revision that can still be had, where etcd says it.
        compact_revision: Option<Revision>,
    },
    /// The revision asked for has not happened yet: this is another history.
    #[error("{what}: the revision is in the future")]
    FutureRevision {
        /// What was asked for.
        what: String,
    },
    /// More keys than there are, by what the server itself says or by what Cilium writes: they would come without end.
    #[error("etcd sent what makes no sense: {reason}")]
    TooManyKeys {
        /// What has how many.
        reason: String,
    },
    /// A reply is older than one before it.
    #[error("{what}: etcd went back from revision {from} to {to}: it was restored from a snapshot, or several share one address")]
    WentBack {
        /// What was asked for.
        what: String,
        /// The revision of the reply before.
        from: Revision,
        /// That of this one.
        to: Revision,
    },
    /// A single reply that cannot be made smaller is over the limit.
    #[error("{what}: more than {bytes_max} bytes in one message")]
    TooLarge {
        /// What was asked for.
        what: String,
        /// The limit, in bytes.
        bytes_max: usize,
    },
    /// Changes that belong together are over the limit; a list gets there in pages.
    #[error("{what}: more than {bytes_max} bytes of changes that belong together")]
    BatchTooLarge {
        /// What was watched.
        what: String,
        /// The limit, in bytes.
        bytes_max: usize,
    },
    /// The server ended the watch.
    #[error("{what}: cancelled by etcd: {reason}")]
    WatchCancelled {
        /// What was watched.
        what: String,
        /// etcd's words.
        reason: String,
    },
    /// The watch stream ended without a word.
    #[error("{what}: the stream ended")]
    WatchEnded {
        /// What was watched.
        what: String,
    },
    /// etcd or the connection to it failed.
    #[error("{what}: {message} ({code:?})")]
    Rpc {
        /// What was asked for.
        what: String,
        /// The gRPC status.
        code: Code,
        /// Its message and causes.
        message: String,
    },
    /// The lock that an operation was under is not held any more.
    #[error("{what}: transaction did not succeed: lock lease expired")]
    LockLost {
        /// What was to be done under which lock.
        what: String,
    },
    /// There is no connection, and there was none for as long as a call may take.
    #[error("{what}: not connected to etcd{}", because(cause.as_ref()))]
    NotConnected {
        /// What was to be done.
        what: String,
        /// Why the last attempt to connect failed.
        cause: Option<String>,
    },
    /// The session was closed.
    #[error("{what}: the session with etcd is closed")]
    Closed {
        /// What was to be done.
        what: String,
    },
    /// A reply that no etcd gives.
    #[error("etcd sent what makes no sense: {reason}")]
    Malformed {
        /// What it is.
        reason: String,
    },
}

impl KvstoreError {
    /// What to do about it. Files and users that do not work are retried: they can be mended without a new client file.
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

    /// What whoever runs this can do about it, where more can be said than what failed (Cilium's `Hint` has the first of these).
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Timeout { .. } => Some("etcd client timeout exceeded: is etcd overloaded, without a leader, or far away?"),
            Self::PermissionDenied { .. } => {
                Some("the user of the client file needs a role that may do this (etcdctl role grant-permission)")
            }
            Self::NotConnected { .. } => Some("see the endpoints of the client file, and that etcd runs there"),
            Self::LockLost { .. } => Some("the lock was held for longer than its lease lived, or somebody took it away: begin anew"),
            Self::Rpc { message, .. } if message.contains("database space exceeded") => Some(
                "etcd is full: compact and defragment it, or raise --quota-backend-bytes, then disarm the alarm (etcdctl alarm disarm)",
            ),
            Self::Rpc { message, .. } if message.contains("requested lease not found") => {
                Some("the lease ended at etcd: the next try gets another one")
            }
            Self::Rpc { message, .. } if message.contains("no leader") => Some("a majority of etcd's members is not there"),
            _ => None,
        }
    }

    /// Whether the lease that a put named is gone.
    pub(crate) fn is_about_a_lost_lease(&self) -> bool {
        matches!(self, Self::Rpc { code: Code::NotFound, message, .. } if message.contains("lease not found"))
    }

    /// Whether a new token might help.
    pub(crate) fn is_about_the_token(&self) -> bool {
        // a watch with an old token is cancelled for "invalid auth token", by older etcds (3.5.1) for "permission denied"
        let cancelled =
            matches!(self, Self::WatchCancelled { reason, .. } if reason.contains("auth") || reason.contains("permission denied"));
        cancelled || matches!(self, Self::PermissionDenied { .. } | Self::Rpc { code: Code::Unauthenticated, .. })
    }

    /// Whether the server does not know the call.
    pub(crate) fn is_about_a_missing_call(&self) -> bool {
        matches!(self, Self::Rpc { code: Code::Unimplemented, .. })
    }

    /// Whether the server does not offer the call, or not to this user.
    pub(crate) fn is_about_a_refused_call(&self) -> bool {
        self.is_about_a_missing_call() || matches!(self, Self::PermissionDenied { .. })
    }

    /// Whether etcd refused the call, or could not carry it out.
    pub(crate) fn is_a_failed_call(&self) -> bool {
        matches!(self, Self::Rpc { .. } | Self::PermissionDenied { .. })
    }

    /// Reads an error of the client crate. The messages are etcd's (`api/v3rpc/rpctypes/error.go`) and tonic's.
    pub(crate) fn from_call(what: String, bytes_max: usize, error: &etcd_client::Error) -> Self {
        let etcd_client::Error::GRpcStatus(status) = error else {
            return Self::Rpc { what, code: Code::Unknown, message: error.to_string() };
        };
        let message = status.message();
        match status.code() {
            Code::OutOfRange if message.contains("has been compacted") => Self::Compacted { what, compact_revision: None },
            Code::OutOfRange if message.contains("future revision") => Self::FutureRevision { what },
            Code::OutOfRange if message.contains("message length too large") => Self::TooLarge { what, bytes_max },
            Code::ResourceExhausted if message.contains("larger than max") => Self::TooLarge { what, bytes_max },
            Code::PermissionDenied => Self::PermissionDenied { what },
            code => Self::Rpc { what, code, message: with_causes(message, status) },
        }
    }
}

/// An error's message followed by those of its causes, each once.
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

/// A key as text for messages, cut if long.
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
