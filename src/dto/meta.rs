//! How old an answer is and where it comes from (docs/develop/invariants.md, 10), in a size that does not grow with the mesh.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Of a list.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListMeta {
    /// The position of the first page, with what a later page has seen since: go on from the last page's with `/v1/events?after=`.
    pub(crate) position: String,
    /// `live` if all sources are, `restored` if any is from the store and not confirmed yet, else `neverRead`; left out where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<Cow<'static, str>>,
    /// What its sources are together.
    #[serde(flatten)]
    pub(crate) sources: Sources,
}

/// The clusters that an answer used, together.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sources {
    /// The age of the oldest of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_age_seconds: Option<f64>,
    /// Number of clusters of which all that was used is live.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) live_sources: Option<usize>,
    /// Number of clusters that were used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_count: Option<usize>,
    /// Each kind of a cluster that is not live, or is older than 60 s; at most 20. With `meta=full` each that was used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) sources: Vec<Source>,
    /// How many more kinds of clusters are so; left out where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) more_sources: Option<usize>,
}

/// One kind of one cluster.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Source {
    /// The cluster.
    pub(crate) cluster: String,
    /// The kind: `node`, `service`, `identity`, `ipcache`, `serviceExport` or `endpointSlice`.
    pub(crate) kind: Cow<'static, str>,
    /// How current it is.
    #[serde(flatten)]
    pub(crate) age: SourceAge,
}

/// How current a source is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SourceAge {
    /// `live`: confirmed by the source since meshkeep started; `restored`: from the store, not confirmed yet; `neverRead`: nothing was ever read.
    pub(crate) origin: Cow<'static, str>,
    /// Where the cluster's connection is in its life; left out where the cluster is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<Cow<'static, str>>,
    /// When the source's etcd last answered; left out where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_contact: Option<String>,
    /// When the source's writer last put a heartbeat, which it does once a minute; left out where none came since meshkeep started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_heartbeat: Option<String>,
    /// How long ago the last contact was; how long ago the last heartbeat was, once that is more than two minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_seconds: Option<f64>,
    /// The source's revision: of the whole kind in a list, of the key's last put for a single thing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<i64>,
    /// `unknown` where the source is itself a copy, made by a KVStoreMesh, whose own age cannot be known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_age: Option<Cow<'static, str>>,
    /// `true` where the source has lost this, with its lease or its cluster config, and it is kept until the source is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stale: Option<bool>,
}

/// Of a single thing.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ItemMeta {
    /// The cluster that the answer comes from; left out where nothing was found or the answer is the same everywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<String>,
    /// `live`, `restored` or `neverRead`, as in a source; of an answer that no single cluster gave, as in a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<Cow<'static, str>>,
    /// Where the cluster's connection is in its life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<Cow<'static, str>>,
    /// When the source's etcd last answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_contact: Option<String>,
    /// When the source's writer last put a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_heartbeat: Option<String>,
    /// How long ago the last contact was; how long ago the last heartbeat was, once that is more than two minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_seconds: Option<f64>,
    /// The source's revision of the key's last put.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<i64>,
    /// `unknown` where the source is itself a copy, made by a KVStoreMesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_age: Option<Cow<'static, str>>,
    /// `true` where the source has lost this and it is kept until the source is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stale: Option<bool>,
    /// The position of the answer: the head before reading.
    pub(crate) position: String,
    /// What the sources of a joined answer are together.
    #[serde(flatten)]
    pub(crate) sources: Sources,
}
