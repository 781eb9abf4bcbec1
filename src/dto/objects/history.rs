//! JSON shapes of earlier versions of entries.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::last_change::LastChange;
use crate::dto::streamed::StreamedObject;
use crate::dto::values::{Kind, StreamedKind, VersionEnd};

/// A page of versions, newest first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VersionList {
    /// Versions, newest first; the current ones come first.
    pub(crate) items: Vec<EntryVersion>,
    /// `false` if there may be versions that the answer does not have: see `gaps`.
    pub(crate) complete: bool,
    /// Periods whose changes are not known, or not known exactly, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) gaps: Vec<UnknownPeriod>,
    /// Time of the oldest change that the history has. Left out if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    /// Send it as `pageToken=` to get older versions. Left out on the last page. A page ends after
    /// `limit` versions, 4 MiB or 5 s, so it can have fewer versions, even none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page_token: Option<String>,
    /// Position of the answer.
    pub(crate) position: String,
}

/// One version of an entry.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EntryVersion {
    /// Kind of the object.
    pub(crate) kind: StreamedKind,
    /// The key in `cilium/cache` form.
    pub(crate) key: String,
    /// The object, as in the lists of its `kind`. Left out if the value could not be decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<StreamedObject>,
    /// Start of the version.
    pub(crate) from: LastChange,
    /// End of the version. Left out for the current version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<LastChange>,
    /// End of the version: `updated`, `deleted` or `clusterRemoved`. Left out for the current
    /// version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<VersionEnd>,
}

/// A period whose changes are not known, or not known exactly.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UnknownPeriod {
    /// The cluster that meshkeep was not connected to. Left out if the history itself was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<String>,
    /// Kind that was not observed. Left out if the history itself was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<Kind>,
    /// Start of the period. Left out if nothing older is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    /// End of the period. Left out while it lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<String>,
}
