//! JSON shape of the state of writing into another etcd (`meshkeep reflect`).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// State of writing into another etcd (`meshkeep reflect`).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReflectionStatus {
    /// `true` if this instance is the leader. Only the leader writes.
    pub(crate) leader: bool,
    /// Number of clusters that it writes; 0 while another instance is the leader.
    pub(crate) clusters: u64,
    /// Number of keys that wait to be written or deleted.
    pub(crate) waiting: u64,
    /// Seconds that the oldest waiting key has waited; 0 if none waits.
    pub(crate) lag_seconds: f64,
    /// Number of puts that succeeded since the start.
    pub(crate) written: u64,
    /// Number of deletes that succeeded since the start.
    pub(crate) deleted: u64,
    /// Number of failed writes. Each is repeated until it succeeds.
    pub(crate) failed: u64,
    /// Reason why the etcd currently cannot be locked, compared or written to. Left out if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The newest error, even if it is resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
    /// Time of the last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error_time: Option<String>,
}
