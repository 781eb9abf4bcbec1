//! Mirrored keys with their bytes, and rejected values.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::values::StreamedKind;

/// One mirrored key with the newest bytes, usable or not.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    /// The key in `cilium/cache` form, even if the source uses `cilium/state`.
    pub(crate) key: String,
    /// The stored bytes, unmodified, in base64.
    pub(crate) value: String,
    /// meshkeep's sequence of the change that added the key.
    pub(crate) create_revision: u64,
    /// meshkeep's sequence of the last change of the key.
    pub(crate) mod_revision: u64,
    /// Number of changes since the key was added; starts at 1.
    pub(crate) version: u64,
    /// The source's etcd revision of the last put. `null` if the entry comes from a dump without
    /// revisions.
    pub(crate) source_revision: Option<i64>,
    /// The cluster that the entry comes from.
    pub(crate) cluster: String,
}

/// A key whose newest value was rejected.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rejected {
    /// The key in `cilium/cache` form, or the source's key if it is not an entry.
    pub(crate) key: String,
    /// Kind of the key; `cluster` for a cluster config.
    pub(crate) kind: StreamedKind,
    /// The cluster that the entry comes from.
    pub(crate) cluster: String,
    /// Reason as text; it names the field.
    pub(crate) reason: String,
    /// Time of the first rejected value since the last valid one.
    pub(crate) first_seen: String,
    /// Time at which the newest value arrived.
    pub(crate) last_seen: String,
    /// The value, unmodified, in base64. Only the first 4,096 bytes of a cluster config or of a key
    /// that is not an entry.
    pub(crate) value: String,
    /// `true` if an earlier, valid value is still served.
    pub(crate) serves_earlier_value: bool,
}
