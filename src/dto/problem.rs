//! What an answer says that is none.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A problem document (RFC 9457).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Problem)]
pub(crate) struct ProblemDocument {
    /// Stable for each kind of trouble: `/problems/` and the code.
    #[serde(rename = "type")]
    pub(crate) problem_type: String,
    /// The kind of trouble in words.
    pub(crate) title: Cow<'static, str>,
    /// The HTTP status.
    pub(crate) status: u16,
    /// What happened and what to do about it.
    pub(crate) detail: String,
    /// The path that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instance: Option<String>,
    /// The kind of trouble for programs.
    pub(crate) code: Cow<'static, str>,
    /// With `tooOld`: how old the answer would have been; left out where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_seconds: Option<f64>,
}
