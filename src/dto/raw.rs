//! Keys and bytes as they are mirrored, and those that could not be used.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One mirrored key with the newest bytes, usable or not.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    /// The key in cache form, whatever form the source uses.
    pub(crate) key: String,
    /// The bytes exactly as they came, in base64.
    pub(crate) value: String,
    /// Our sequence when the key appeared.
    pub(crate) create_revision: u64,
    /// Our sequence of its last change.
    pub(crate) mod_revision: u64,
    /// How many times it changed since it appeared, starting with 1.
    pub(crate) version: u64,
    /// The source's revision of its last put.
    pub(crate) source_revision: i64,
    /// The cluster that it comes from.
    pub(crate) cluster: String,
}

/// One key whose newest bytes could not be used.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rejected {
    /// The key in cache form; that of the source where it is no entry.
    pub(crate) key: String,
    /// The kind of the key; `cluster` for a cluster config.
    pub(crate) kind: Cow<'static, str>,
    /// The cluster that it comes from.
    pub(crate) cluster: String,
    /// What is wrong, in words that name the field.
    pub(crate) reason: String,
    /// When the key first became unusable, without a good value in between.
    pub(crate) first_seen: String,
    /// When the newest bytes came.
    pub(crate) last_seen: String,
    /// The bytes exactly as they came, in base64; of a cluster config, or where the key is no entry, the first 4,096.
    pub(crate) value: String,
    /// Whether an earlier, usable value is still served.
    pub(crate) serves_earlier_value: bool,
}
