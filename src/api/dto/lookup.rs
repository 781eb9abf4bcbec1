//! Answers to lookups by longest prefix.

use serde::Serialize;
use utoipa::ToSchema;

use super::meta::{ItemMeta, ListMeta};
use super::objects::IpcacheEntry;
use crate::handle::LookupMatch;

/// The answer to a lookup by longest prefix.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LookupAnswer {
    /// The address that was asked for.
    ip: String,
    /// The entry that an agent would use; null where nothing covers the address.
    #[serde(rename = "match")]
    #[schema(required = true)]
    found: Option<IpcacheEntry>,
    /// Entries of the same prefix that lost, newest first.
    others: Vec<IpcacheEntry>,
    /// Where the answer comes from.
    meta: ItemMeta,
}

/// One answer of a batch: what a lookup says, or an error.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LookupItem {
    /// The text that was asked for.
    pub(crate) ip: String,
    /// The entry that an agent would use; left out with an error, null where nothing covers the address.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<IpcacheEntry>, required = false)]
    pub(crate) found: Option<Option<IpcacheEntry>>,
    /// Entries of the same prefix that lost, newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) others: Vec<IpcacheEntry>,
    /// What is wrong with the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// The answers to a batch of lookups, in the order asked.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LookupList {
    /// One for each address.
    pub(crate) items: Vec<LookupItem>,
    /// Where the answers come from.
    pub(crate) meta: ListMeta,
}

impl LookupAnswer {
    pub(crate) fn new(ip: std::net::IpAddr, found: &[LookupMatch], meta: ItemMeta) -> Self {
        let mut entries = found.iter().filter_map(IpcacheEntry::joined);
        Self { ip: ip.to_string(), found: entries.next(), others: entries.collect(), meta }
    }
}

impl LookupItem {
    pub(crate) fn new(ip: &str, found: &[LookupMatch]) -> Self {
        let mut entries = found.iter().filter_map(IpcacheEntry::joined);
        Self { ip: ip.to_owned(), found: Some(entries.next()), others: entries.collect(), error: None }
    }

    pub(crate) fn failed(ip: &str) -> Self {
        let error = Some("not an IP address: write it like 10.1.2.40 or fd00::1".to_owned());
        Self { ip: ip.to_owned(), found: None, others: Vec::new(), error }
    }
}
