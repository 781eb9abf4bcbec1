//! How writing the mirror into another etcd goes (`meshkeep reflect`).

use serde::Serialize;
use utoipa::ToSchema;

use super::{rfc3339, seconds};
use crate::handle::Reflection;

/// How writing into another etcd goes.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReflectionStatus {
    /// Whether this meshkeep is the one that writes: of several into one etcd one is.
    leader: bool,
    /// How many clusters it writes; 0 where another one does.
    clusters: u64,
    /// How many keys wait to be written or deleted.
    waiting: u64,
    /// How long the first of them has waited; 0 where none does.
    lag_seconds: f64,
    /// How many puts succeeded since the start.
    written: u64,
    /// How many deletes did.
    deleted: u64,
    /// How many tries failed; each is repeated until it succeeds.
    failed: u64,
    /// Why the etcd cannot be locked, compared or written to at the moment; left out where it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The newest of such errors, also where it is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// When that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error_time: Option<String>,
}

impl From<Reflection> for ReflectionStatus {
    fn from(reflection: Reflection) -> Self {
        let (last_error, time) = reflection.last_error.unzip();
        Self {
            leader: reflection.is_leader,
            clusters: reflection.clusters as u64,
            waiting: reflection.waiting as u64,
            lag_seconds: seconds(reflection.lag),
            written: reflection.written,
            deleted: reflection.deleted,
            failed: reflection.failed,
            error: reflection.error,
            last_error,
            last_error_time: time.map(rfc3339),
        }
    }
}
