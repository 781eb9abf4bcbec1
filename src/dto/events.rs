//! The change stream: its events, and parts of it in single answers.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::objects::Backend;
use super::problem::ProblemDocument;
use super::status::ClusterAge;
use super::streamed::StreamedObject;

/// One event of the stream. Which members are there depends on `type`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WatchEvent {
    /// `reset`, `upsert`, `patch`, `delete`, `cluster`, `synced`, `bookmark` or `error`.
    #[serde(rename = "type")]
    pub(crate) event_type: Cow<'static, str>,
    /// Of `upsert`, `patch`, `delete` and `cluster`: what the key is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<Cow<'static, str>>,
    /// Of `upsert`, `patch`, `delete` and `cluster`: the key in cache form, for a cluster that of its cluster config, for a problem
    /// `problem/<type>/<cluster>/<subject>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Of `upsert` and `cluster`: the whole object, as the lists of its kind show it. `kind` says which it is.
    #[serde(default, deserialize_with = "if_known", skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<StreamedObject>,
    /// Of `patch`: how the backends changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backends: Option<BackendChanges>,
    /// Of `delete`: `deleted`, `leftFilter`, `clusterRemoved` or `unknown`. Of `reset`: `initial`, `expired`, `foreignEpoch`,
    /// `rolledBack` or `malformed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<Cow<'static, str>>,
    /// Of `synced`: `snapshot` or `replay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<Cow<'static, str>>,
    /// Of `synced`: how many upserts and deletes that took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
    /// Of `synced` and `bookmark`: everything up to here was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<String>,
    /// Of `synced` and `bookmark`: how old each cluster is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) clusters: Option<Vec<ClusterAge>>,
    /// Of `upsert`, `patch`, `delete` and `cluster`: where it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<EventMeta>,
    /// Of `error`: what happened; the stream ends after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<ProblemDocument>,
}

/// How the backends of a service changed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BackendChanges {
    /// New or changed backends; each replaces the one with the same address.
    pub(crate) upserted: Vec<Backend>,
    /// The addresses of those that are gone.
    pub(crate) removed: Vec<String>,
}

/// Where an event comes from.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventMeta {
    /// The cluster; `-` for a problem of several or none.
    pub(crate) cluster: String,
    /// The source's revision, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<i64>,
    /// The position after the event; left out inside a snapshot, which has none until `synced`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<String>,
}

/// A part of the change stream.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Changes {
    /// What the stream would have sent, in order; the last one is `synced` unless `more` is true. Ends at `limit` or after 4 MiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required)]
    pub(crate) events: Vec<WatchEvent>,
    /// Where the next answer begins, as `after=`, with the same filters. Opaque; inside a snapshot only good here.
    pub(crate) next_position: String,
    /// There is more: ask again at once.
    pub(crate) more: bool,
    /// Why everything that you hold must be forgotten before the events are applied; the first event, a `reset`, says the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reset: Option<Cow<'static, str>>,
}

/// An object of a kind that this version knows. A newer server may tell of others, which its readers pass over.
fn if_known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<StreamedObject>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Told {
        Known(Box<StreamedObject>),
        Unknown(IgnoredAny),
    }
    Ok(match Told::deserialize(deserializer)? {
        Told::Known(object) => Some(*object),
        Told::Unknown(IgnoredAny) => None,
    })
}
