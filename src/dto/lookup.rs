//! Answers to lookups by longest prefix.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::meta::{ItemMeta, ListMeta, SourceAge};
use super::objects::IpcacheEntry;

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
    /// The address that was asked for.
    pub(crate) ip: String,
    /// The entry that an agent would use; null where nothing covers the address.
    #[serde(rename = "match")]
    #[schema(required = true)]
    pub(crate) found: Option<IpcacheEntry>,
    /// Entries of the same prefix that lost, newest first.
    pub(crate) others: Vec<IpcacheEntry>,
    /// Where the answer comes from.
    pub(crate) meta: ItemMeta,
}

/// One answer of a batch: what a lookup says, or an error.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LookupItem {
    /// The text that was asked for.
    pub(crate) ip: String,
    /// The entry that an agent would use; left out with an error, null where nothing covers the address.
    #[serde(rename = "match", default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<IpcacheEntry>, required = false)]
    pub(crate) found: Option<Option<IpcacheEntry>>,
    /// Entries of the same prefix that lost, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) others: Vec<IpcacheEntry>,
    /// How old the answer is: that of the entry, or where nothing covers the address that of the oldest source; left out with an error, and
    /// with `meta=none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<SourceAge>,
    /// What is wrong with the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// The answers to a batch of lookups, in the order asked.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LookupList {
    /// One for each address.
    pub(crate) items: Vec<LookupItem>,
    /// Where the answers come from.
    pub(crate) meta: ListMeta,
}

/// A member that is there, null or not: one that is left out is the default.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<IpcacheEntry>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}
