//! How writing the mirror into another etcd goes (`meshkeep reflect`).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How writing into another etcd goes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReflectionStatus {
    /// Whether this meshkeep is the one that writes: of several into one etcd one is.
    pub(crate) leader: bool,
    /// How many clusters it writes; 0 where another one does.
    pub(crate) clusters: u64,
    /// How many keys wait to be written or deleted.
    pub(crate) waiting: u64,
    /// How long the first of them has waited; 0 where none does.
    pub(crate) lag_seconds: f64,
    /// How many puts succeeded since the start.
    pub(crate) written: u64,
    /// How many deletes did.
    pub(crate) deleted: u64,
    /// How many tries failed; each is repeated until it succeeds.
    pub(crate) failed: u64,
    /// Why the etcd cannot be locked, compared or written to at the moment; left out where it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The newest of such errors, also where it is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
    /// When that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error_time: Option<String>,
}
