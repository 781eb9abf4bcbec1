//! Errors that end a connection attempt to a cluster.

use super::bounds::Excess;
use cilium_kvstore::KvstoreError;

/// Error that ended a connection attempt.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    #[error(transparent)]
    Kvstore(#[from] KvstoreError),
    #[error("{0}")]
    Cluster(String),
    /// The cluster has more keys or bytes than it may have.
    #[error("{0}")]
    TooLarge(#[from] Excess),
    /// The etcd has no config of the cluster that the user may read. This is already reported.
    #[error("its cluster config is missing")]
    ConfigMissing,
    #[error("meshkeep is stopping")]
    Stopping,
}

impl AttemptError {
    /// Returns whether the cluster has more than it may have, or sends more keys than it has
    /// announced. A retry soon would only cost the same amount again.
    pub(super) fn is_too_much(&self) -> bool {
        matches!(self, Self::TooLarge(_) | Self::Kvstore(KvstoreError::TooManyKeys { .. }))
    }

    /// Returns whether the etcd was at an older revision than before.
    pub(super) fn is_going_back(&self) -> bool {
        matches!(self, Self::Kvstore(KvstoreError::WentBack { .. }))
    }
}
