//! How old an answer is and where it comes from (docs/invariants.md, 10).

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::{rfc3339, seconds};
use crate::api::problem::Problem;
use crate::handle::{Origin, Reading, SourceMeta};
use crate::model::{Position, Record};

/// Of a list.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListMeta {
    /// The position of the first page, with what a later page has seen since: go on from the last page's with `/v1/events?after=`.
    pub(crate) position: String,
    /// One for each cluster and kind that the answer used.
    pub(crate) sources: Vec<Source>,
}

/// One kind of one cluster.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Source {
    /// The cluster.
    cluster: String,
    /// The kind: `node`, `service`, `identity`, `ipcache`, `serviceExport` or `endpointSlice`.
    kind: &'static str,
    /// How current it is.
    #[serde(flatten)]
    age: SourceAge,
}

/// How current a source is.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SourceAge {
    /// `live`: confirmed by the source since meshkeep started; `restored`: from the store, not confirmed yet.
    origin: &'static str,
    /// Where the cluster's connection is in its life; left out where the cluster is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'static str>,
    /// When the source last said anything; left out where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_contact: Option<String>,
    /// How long ago that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_seconds: Option<f64>,
    /// The source's revision: of the whole kind in a list, of the key's last put for a single thing.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<i64>,
    /// `unknown` where the source is itself a copy, made by a KVStoreMesh, whose own age cannot be known.
    #[serde(skip_serializing_if = "Option::is_none")]
    source_age: Option<&'static str>,
    /// `true` where the source has lost this, with its lease or its cluster config, and it is kept until the source is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    stale: Option<bool>,
}

/// Of a single thing.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ItemMeta {
    /// The cluster that the answer comes from; left out where nothing was found or the answer is the same everywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    /// `live` or `restored`, as in a source.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'static str>,
    /// Where the cluster's connection is in its life.
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'static str>,
    /// When the source last said anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_contact: Option<String>,
    /// How long ago that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_seconds: Option<f64>,
    /// The source's revision of the key's last put.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<i64>,
    /// `unknown` where the source is itself a copy, made by a KVStoreMesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    source_age: Option<&'static str>,
    /// `true` where the source has lost this and it is kept until the source is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    stale: Option<bool>,
    /// The position of the answer: the head before reading.
    position: String,
    /// One for each cluster and kind that a joined answer used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    sources: Vec<Source>,
}

impl From<&SourceMeta> for Source {
    fn from(source: &SourceMeta) -> Self {
        Self { cluster: source.cluster.to_string(), kind: source.kind.api_name(), age: source.into() }
    }
}

impl From<&SourceMeta> for SourceAge {
    fn from(source: &SourceMeta) -> Self {
        Self {
            origin: origin_name(source.origin),
            phase: source.phase.map(crate::model::Phase::api_name),
            last_contact: source.last_contact.map(rfc3339),
            age_seconds: source.age.map(seconds),
            revision: source.revision.map(|revision| revision.0),
            source_age: source.cached.then_some("unknown"),
            stale: source.held.then_some(true),
        }
    }
}

impl ItemMeta {
    /// Of an answer that no single cluster gave.
    pub(crate) fn nowhere(position: Position, sources: &[SourceMeta]) -> Self {
        Self {
            cluster: None,
            origin: None,
            phase: None,
            last_contact: None,
            age_seconds: None,
            revision: None,
            source_age: None,
            stale: None,
            position: position.to_string(),
            sources: sources.iter().map(Source::from).collect(),
        }
    }

    /// Of an answer that one source gave, and others had a share in.
    pub(crate) fn of(source: &SourceMeta, position: Position, others: &[SourceMeta]) -> Self {
        let age = SourceAge::from(source);
        Self {
            cluster: Some(source.cluster.to_string()),
            origin: Some(age.origin),
            phase: age.phase,
            last_contact: age.last_contact,
            age_seconds: age.age_seconds,
            revision: age.revision,
            source_age: age.source_age,
            stale: age.stale,
            ..Self::nowhere(position, others)
        }
    }

    /// Of one record; refused where it is older than the request allows.
    pub(crate) fn of_record(reading: &Reading, record: &Record, max_age: Option<u64>) -> Result<Self, Problem> {
        let source = reading.source_of(record);
        check_age(max_age, std::slice::from_ref(&source))?;
        Ok(Self::of(&source, reading.position(), &[]))
    }
}

/// The name that the API uses.
pub(crate) const fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Restored => "restored",
        Origin::Live => "live",
    }
}

/// Refuses an answer whose oldest source is older than `max_age` seconds. An age that is not known is too old.
pub(crate) fn check_age(max_age: Option<u64>, sources: &[SourceMeta]) -> Result<(), Problem> {
    let Some(max_age) = max_age else { return Ok(()) };
    let oldest = sources.iter().max_by_key(|source| source.age.unwrap_or(Duration::MAX));
    let Some(oldest) = oldest.filter(|source| source.age.is_none_or(|age| age > Duration::from_secs(max_age))) else { return Ok(()) };
    let age = oldest.age.map(seconds);
    let known = age.map_or("of unknown age".to_owned(), |age| format!("{age} s old"));
    let detail =
        format!("the {} data of cluster {} is {known}, maxAge allows {max_age} s: ask later or allow more", oldest.kind, oldest.cluster);
    Err(Problem::too_old(detail, age))
}
