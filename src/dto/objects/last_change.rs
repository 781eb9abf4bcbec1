//! JSON shape of the time of an object's last change.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Time of an object's last change, as exactly as meshkeep observed it. At most one of the members
/// is present; none if the time is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LastChange {
    /// Time at which meshkeep learned of the last change, to the second. Changes of the lease, and
    /// puts of equal bytes, do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) changed_at: Option<String>,
    /// Present instead of `changedAt` if the exact time is not known: the last change happened
    /// between these two times. meshkeep was not connected, or the change is older than an hour and
    /// its second is no longer recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) changed_between: Option<[String; 2]>,
    /// Present instead of `changedAt` if the object was in the first list of its cluster: the time
    /// of that list. The last change happened at or before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) first_seen_at: Option<String>,
}
