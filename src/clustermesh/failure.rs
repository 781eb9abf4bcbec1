//! Why a cluster's attempt ends, and what follows from it.

use super::bounds::Excess;
use crate::kvstore::KvstoreError;

/// Why a cluster's attempt ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    #[error(transparent)]
    Kvstore(#[from] KvstoreError),
    #[error("{0}")]
    Cluster(String),
    /// The cluster has more than it may have.
    #[error("{0}")]
    TooLarge(#[from] Excess),
    /// The etcd has no config of the cluster that the user may read, which is reported already.
    #[error("its cluster config is missing")]
    ConfigMissing,
    #[error("meshkeep is stopping")]
    Stopping,
}

impl AttemptError {
    /// Whether the cluster has more than it may have, or than it says itself: trying again soon only costs that much again.
    pub(super) fn is_too_much(&self) -> bool {
        matches!(self, Self::TooLarge(_) | Self::Kvstore(KvstoreError::TooManyKeys { .. }))
    }

    /// Whether the etcd was at an older revision than before.
    pub(super) fn is_going_back(&self) -> bool {
        matches!(self, Self::Kvstore(KvstoreError::WentBack { .. }))
    }
}
