//! Answers to lookups by longest prefix.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::meta::{ItemMeta, ListMeta, SourceAge};
use super::objects::IpcacheEntry;
use super::streamed::EntryVersion;

/// A batch of lookups.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LookupRequest {
    /// The addresses, IPv4 or IPv6.
    #[schema(max_items = 10000)]
    pub(crate) ips: Vec<String>,
}

/// The answer to a lookup by longest prefix.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LookupAnswer {
    /// The requested address.
    pub(crate) ip: String,
    /// The entry that an agent would use. Null if no entry covers the address.
    #[serde(rename = "match")]
    #[schema(required = true)]
    pub(crate) found: Option<IpcacheEntry>,
    /// Other entries of the same prefix, newest first.
    pub(crate) others: Vec<IpcacheEntry>,
    /// Source and age of the answer.
    pub(crate) meta: ItemMeta,
}

/// One answer of a batch: a lookup's result or an error.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LookupItem {
    /// The text in the request.
    pub(crate) ip: String,
    /// The entry that an agent would use. Null if no entry covers the address; left out with an
    /// error.
    #[serde(rename = "match", default, deserialize_with = "present_or_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<IpcacheEntry>, required = false)]
    pub(crate) found: Option<Option<IpcacheEntry>>,
    /// Other entries of the same prefix, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) others: Vec<IpcacheEntry>,
    /// Age of the entry or, if no entry covers the address, of the oldest source. Left out with an
    /// error, with `at=` and with `meta=none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<SourceAge>,
    /// Only with `at=`: `false` if the answer may be wrong, as in the `meta` of a single lookup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) complete: Option<bool>,
    /// Only with `at=`: the versions that the entry may have had, as in the `meta` of a single
    /// lookup.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) candidates: Vec<EntryVersion>,
    /// Reason why the text is not an address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// Answers to a batch of lookups, in the order of the request.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LookupList {
    /// One answer for each address.
    pub(crate) items: Vec<LookupItem>,
    /// Sources and age of the answers.
    pub(crate) meta: ListMeta,
}

/// Deserializes a member that is present, even if it is null. Without the member, the field has its
/// default.
fn present_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<IpcacheEntry>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}
