//! Events of the change stream, and the answer of `/v1/changes`.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::objects::Backend;
use super::objects::last_change::LastChange;
use super::problem::ProblemDocument;
use super::status::ClusterAge;
use super::values::{EventReason, EventType, ResetReason, StreamedKind, SyncMode};
use crate::dto::streamed::StreamedObject;

/// One event of the stream. Its members depend on `type`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WatchEvent {
    /// `reset`, `upsert`, `patch`, `delete`, `cluster`, `synced`, `bookmark` or `error`.
    #[serde(rename = "type")]
    pub(crate) event_type: EventType,
    /// Only in `upsert`, `patch`, `delete` and `cluster`: kind of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<StreamedKind>,
    /// Only in `upsert`, `patch`, `delete` and `cluster`: the key in `cilium/cache` form. A cluster
    /// has the key of its cluster config, a finding has `problem/<type>/<cluster>/<subject>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Only in `upsert` and `cluster`: the whole object, as in the lists of its `kind`.
    #[serde(default, deserialize_with = "if_known", skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<StreamedObject>,
    /// Only in `patch`: changes to the backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backends: Option<BackendChanges>,
    /// Reason of a `delete`: `deleted`, `leftFilter`, `clusterRemoved` or `unknown`. Reason of a
    /// `reset`: `initial`, `expired`, `foreignEpoch`, `rolledBack` or `malformed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<EventReason>,
    /// Only in `synced`: `snapshot` or `replay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<SyncMode>,
    /// Only in `synced`: number of upserts and deletes that were sent for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
    /// Only in `synced` and `bookmark`: position up to which everything was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<String>,
    /// Only in `synced` and `bookmark`: age of each cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) clusters: Option<Vec<ClusterAge>>,
    /// Only in `upsert`, `patch`, `delete` and `cluster`: source of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<EventMeta>,
    /// Only in `error`: the problem. The stream ends after this event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<ProblemDocument>,
}

/// Changes to the backends of a service.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BackendChanges {
    /// New or changed backends; each replaces the one with the same address.
    pub(crate) upserted: Vec<Backend>,
    /// Addresses of the removed backends.
    pub(crate) removed: Vec<String>,
}

/// Source of an event.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventMeta {
    /// Name of the cluster; `-` for a finding about several clusters or none.
    pub(crate) cluster: String,
    /// etcd revision in the source. Left out if the object has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<i64>,
    /// Position after the event. Left out inside a snapshot, which has no position until `synced`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<String>,
    /// Only in `patch` and `delete`: time of the change. An `upsert` has it in its object.
    #[serde(flatten)]
    pub(crate) change: LastChange,
}

/// A part of the change stream.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Changes {
    /// The events in the order of the stream. The last one is `synced` unless `more` is true. An
    /// answer ends at `limit` or after 4 MiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required)]
    pub(crate) events: Vec<WatchEvent>,
    /// Position of the next answer: send it as `after=` with the same filters. Opaque. Inside a
    /// snapshot, only `/v1/changes` accepts it.
    pub(crate) next_position: String,
    /// `true` if more events are available: send the next request immediately.
    pub(crate) more: bool,
    /// The client must drop its copy before it applies the events, for this reason. The first event
    /// is a `reset` with the same reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reset: Option<ResetReason>,
}

/// Deserializes an object of a known kind. Objects of other kinds, which a newer server may send,
/// are skipped.
fn if_known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<StreamedObject>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum MaybeKnown {
        Known(Box<StreamedObject>),
        Unknown(IgnoredAny),
    }
    Ok(match MaybeKnown::deserialize(deserializer)? {
        MaybeKnown::Known(object) => Some(*object),
        MaybeKnown::Unknown(IgnoredAny) => None,
    })
}
