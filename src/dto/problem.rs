//! JSON shape of errors: problem documents (RFC 9457).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::streamed::EntryVersion;
use super::values::ProblemCode;

/// A problem document (RFC 9457).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Problem)]
pub(crate) struct ProblemDocument {
    /// Stable type of the error: `/problems/` and the code.
    #[serde(rename = "type")]
    pub(crate) problem_type: String,
    /// Short description of the error type.
    pub(crate) title: Cow<'static, str>,
    /// The HTTP status.
    pub(crate) status: u16,
    /// Description of the error and what to do about it.
    pub(crate) detail: String,
    /// Path of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instance: Option<String>,
    /// Machine-readable type of the error.
    pub(crate) code: ProblemCode,
    /// Only with `tooOld`: age that the answer would have had, in seconds. Left out if it is
    /// unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_seconds: Option<f64>,
    /// Only with `notFound` for an identity: the last version of the identity, with the time at
    /// which it was deleted. Left out if the history does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_version: Option<Box<EntryVersion>>,
    /// Only with `--otlp-endpoint`: id of the trace of the request, which is in the log too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_id: Option<String>,
}
