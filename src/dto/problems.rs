//! What looks wrong, and the whole story of an address.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::meta::{ItemMeta, ListMeta};
use super::objects::{IpcacheEntry, Node};

/// Something that looks wrong in the mesh.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    /// Its name: the same as long as it lasts.
    pub(crate) id: String,
    /// What kind of trouble it is.
    pub(crate) kind: Cow<'static, str>,
    /// How bad it is.
    pub(crate) severity: Cow<'static, str>,
    /// The cluster that it concerns, where it concerns exactly one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<String>,
    /// The clusters that it concerns; none where it concerns this process alone.
    pub(crate) clusters: Vec<String>,
    /// What is wrong.
    pub(crate) detail: String,
    /// What to do about it.
    pub(crate) advice: String,
    /// Since when, as far as this process knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    /// How many keys it concerns, or pod CIDRs, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
    /// One of the keys that it concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
}

/// A page of findings.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a shape for the document: a page is written item by item")]
pub(crate) struct FindingList {
    /// Whether everything across keys was looked at. While it is false, after a start or while very much changes, findings may be missing, or
    /// over already: ask again in a moment. What is listed of clusters as a whole is always complete.
    pub(crate) complete: bool,
    /// Findings about clusters as a whole, then those across keys, by id.
    pub(crate) items: Vec<Finding>,
    /// Asks for the next page as `pageToken=`; left out on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page_token: Option<String>,
    /// What of the request is probably a mistake: a filter that names a cluster that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) warnings: Vec<String>,
    /// Where the list comes from and how old it is.
    pub(crate) meta: ListMeta,
}

/// The whole story of an address.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    /// The address.
    pub(crate) ip: String,
    /// The entry that an agent would use; null where nothing covers the address.
    #[serde(rename = "match")]
    #[schema(required = true)]
    pub(crate) found: Option<IpcacheEntry>,
    /// Every entry of every cluster that covers the address, strongest first.
    pub(crate) entries: Vec<ExplainedEntry>,
    /// What may explain that the address has no entry of its own, or an old one; left out where there is nothing to explain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) hints: Vec<Hint>,
    /// The node that hosts it, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Node>,
    /// The services and endpoint slices that have the address behind them.
    pub(crate) services: Vec<BackedService>,
    /// What looks wrong about it.
    pub(crate) problems: Vec<Finding>,
    /// Whether `services` and `problems` are all that there are: false in the first moments after a start, while very much changes, or where a
    /// cluster has more addresses behind its services than there is room for (600,000).
    pub(crate) complete: bool,
    /// Where the answer comes from.
    pub(crate) meta: ItemMeta,
}

/// One entry that covers the address, and what becomes of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExplainedEntry {
    /// The entry.
    #[serde(flatten)]
    pub(crate) entry: IpcacheEntry,
    /// `wins`, `shadowed` (by a host entry for the same address), `lessSpecific` or `outranked` (by another entry of the same prefix).
    pub(crate) verdict: Cow<'static, str>,
    /// Why.
    pub(crate) reason: String,
    /// `live` or `restored`: whether its source has confirmed it since meshkeep started.
    pub(crate) origin: Cow<'static, str>,
}

/// Something that may explain why an address has no entry of its own, or an old one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Hint {
    /// `rejected`: a cluster announces the address, a range around it or the node, with a value that was rejected; `podCIDR`: the pod CIDR of a node that the address belongs to; `deleted`: an entry for exactly the address that was there; `neverRead` and `restored`:
    /// clusters whose addresses are not known, or not as they are now; `nearest`: an entry for an address nearby, where nothing covers this one.
    pub(crate) kind: Cow<'static, str>,
    /// It in words.
    pub(crate) detail: String,
    /// The clusters that it concerns, at most 20.
    pub(crate) clusters: Vec<String>,
    /// How many more clusters it concerns; left out where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) more_clusters: Option<usize>,
    /// The pod CIDR, or the prefix of the entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix: Option<String>,
    /// The node that has the pod CIDR, or had the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// The entry's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// When meshkeep saw it deleted, or rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time: Option<String>,
}

/// A service, or one of its endpoint slices, that has an address behind it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BackedService {
    /// `service` or `endpointSlice`.
    pub(crate) kind: Cow<'static, str>,
    /// The cluster that exports it.
    pub(crate) cluster: String,
    /// Kubernetes namespace.
    pub(crate) namespace: String,
    /// Kubernetes name.
    pub(crate) name: String,
}
