//! JSON shapes of `meta`: sources and age of an answer (docs/develop/invariants.md, 10).
//!
//! Without `meta=full`, their size does not grow with the mesh.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::streamed::EntryVersion;
use super::values::{Kind, Origin, Phase, UnknownAge};

/// Sources and age of a list.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListMeta {
    /// Position of the first page; a later page adds what it has seen since. Follow the stream from
    /// the last page's position with `/v1/events?after=`.
    pub(crate) position: String,
    /// `live` if all sources are live, `restored` if any comes from the store and is not confirmed,
    /// `dump` if any comes from a dump, otherwise `neverRead`. Left out if there are no sources.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<Origin>,
    /// Only with `at=`: what is known about that time.
    #[serde(flatten)]
    pub(crate) past: PastMeta,
    /// Summary of the sources.
    #[serde(flatten)]
    pub(crate) sources: Sources,
}

/// The clusters that an answer used, together.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sources {
    /// Age of the oldest source in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_age_seconds: Option<f64>,
    /// Number of clusters whose used data is all live.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) live_sources: Option<usize>,
    /// Number of clusters that the answer used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_count: Option<usize>,
    /// Each kind of a cluster that is not live or is older than 60 s, at most 20. With `meta=full`,
    /// each kind of each cluster that the answer used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) sources: Vec<Source>,
    /// Number of further entries that `sources` would have. Left out if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) more_sources: Option<usize>,
}

/// One kind of one cluster.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Source {
    /// The cluster.
    pub(crate) cluster: String,
    /// Kind: `node`, `service`, `identity`, `ipcache`, `serviceExport` or `endpointSlice`.
    pub(crate) kind: Kind,
    /// Origin and age.
    #[serde(flatten)]
    pub(crate) age: SourceAge,
}

/// Age of a source.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SourceAge {
    /// `live`: the source confirmed the data since meshkeep started. `restored`: from the store,
    /// not confirmed yet. `neverRead`: no complete list was ever read. `dump`: from a dump that
    /// `meshkeep load` serves; `lastContact` is the time of the dump.
    pub(crate) origin: Origin,
    /// Phase of the connection to the cluster. Left out if the cluster is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<Phase>,
    /// Time at which the source's etcd last answered. Left out if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_contact: Option<String>,
    /// Time of the last heartbeat of the source's writer (one per minute). Left out if none has
    /// arrived since meshkeep started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_heartbeat: Option<String>,
    /// Seconds since the last contact or, if the last heartbeat is older than two minutes, since
    /// that heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_seconds: Option<f64>,
    /// etcd revision in the source: of the whole kind in a list, of the key's last put for a single
    /// object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<i64>,
    /// `unknown` if the source is itself a KVStoreMesh's copy: the age of the copy's own source
    /// cannot be known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_age: Option<UnknownAge>,
    /// `true` if the source lost the data together with its lease or its cluster config. meshkeep
    /// retains it until the source is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stale: Option<bool>,
}

/// Source and age of a single object.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ItemMeta {
    /// The cluster that the answer comes from. Left out if nothing matched, or if the answer is the
    /// same for every cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<String>,
    /// `live`, `restored`, `neverRead` or `dump`. If the answer joins several clusters, the same
    /// rule as for a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<Origin>,
    /// Phase of the connection to the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<Phase>,
    /// Time at which the source's etcd last answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_contact: Option<String>,
    /// Time of the last heartbeat of the source's writer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_heartbeat: Option<String>,
    /// Seconds since the last contact or, if the last heartbeat is older than two minutes, since
    /// that heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_seconds: Option<f64>,
    /// etcd revision of the last put of the key in the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<i64>,
    /// `unknown` if the source is itself a KVStoreMesh's copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_age: Option<UnknownAge>,
    /// `true` if the source lost this object. meshkeep retains it until the source is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stale: Option<bool>,
    /// Position of the answer: the newest position before meshkeep read the data.
    pub(crate) position: String,
    /// Only with `at=`: what is known about that time.
    #[serde(flatten)]
    pub(crate) past: PastMeta,
    /// Summary of the sources, if the answer joins several.
    #[serde(flatten)]
    pub(crate) sources: Sources,
}

/// Time of an answer about an earlier time (`at=`), and what is not known about that time. All
/// members are left out without `at=`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PastMeta {
    /// Only with `at=`: the time that the answer describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<String>,
    /// Only with `at=`: `false` if meshkeep did not observe everything at that time, or lost
    /// changes since then. The answer may then lack objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) complete: Option<bool>,
    /// Only with `at=`: what was not observed at that time, and for a list the periods since then
    /// whose changes are lost, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) gaps: Vec<UnknownPeriod>,
    /// Only with `at=` and for single objects and lookups, if meshkeep observed the answer's object
    /// before and after that time, but not which version was current: the versions that it may have
    /// had. A single object is the first one. A lookup or an explanation is about the first one,
    /// unless its `match` is null. A version that ended may have ended before that time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false, no_recursion)]
    pub(crate) candidates: Vec<EntryVersion>,
}

/// A period whose changes are not known, or not known exactly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
