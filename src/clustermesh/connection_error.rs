//! Errors that end a connection to a cluster, or the attempt to open one.

use super::bounds::SizeExceeded;
use cilium_kvstore::KvstoreError;

/// Error that ended a connection, or the attempt to open one.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error(transparent)]
    Kvstore(#[from] KvstoreError),
    /// Any other error, with its text: of the client file, of the cluster config or of a watch.
    #[error("{0}")]
    Cluster(String),
    /// The cluster exceeds its limits of keys or bytes.
    #[error("{0}")]
    TooLarge(#[from] SizeExceeded),
    /// The etcd has no config of the cluster, or none that the user may read. This is already
    /// reported.
    #[error("its cluster config is missing")]
    ConfigMissing,
    #[error("meshkeep is stopping")]
    Stopping,
}

impl ConnectionError {
    /// Returns whether the cluster exceeds its size limits, or sends more keys than it announced.
    /// An early retry would only read the same amount again.
    pub(super) fn exceeds_size(&self) -> bool {
        matches!(self, Self::TooLarge(_) | Self::Kvstore(KvstoreError::TooManyKeys { .. }))
    }

    /// Returns whether the etcd's revision decreased during the connection.
    pub(super) fn is_revision_rollback(&self) -> bool {
        matches!(self, Self::Kvstore(KvstoreError::WentBack { .. }))
    }
}
