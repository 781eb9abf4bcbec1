//! JSON shapes of findings and of the explanation of an address.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::meta::{ItemMeta, ListMeta};
use super::objects::{IpcacheEntry, Node};
use super::values::{BackendSource, FindingKind, HintKind, Origin, Severity, Verdict, closed};
use crate::model::FindingObject;

/// Something that looks wrong in the mesh.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    /// Id of the finding. It stays the same for as long as the finding lasts.
    pub(crate) id: String,
    /// Kind of the finding.
    pub(crate) kind: FindingKind,
    /// Severity of the finding.
    pub(crate) severity: Severity,
    /// The affected cluster. Left out unless the finding affects exactly one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<String>,
    /// Affected clusters. Empty if the finding is about meshkeep itself.
    pub(crate) clusters: Vec<String>,
    /// Description of the problem.
    pub(crate) detail: String,
    /// Recommended action.
    pub(crate) advice: String,
    /// Time at which this process first saw the finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    /// Number of affected keys or pod CIDRs, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
    /// One of the affected keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
}

impl From<FindingObject> for Finding {
    fn from(finding: FindingObject) -> Self {
        let FindingObject { id, kind, severity, clusters, detail, advice, since, count, key } = finding;
        let cluster = match clusters.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        };
        Self { id, kind: kind.into(), severity: severity.into(), cluster, clusters, detail, advice, since, count, key }
    }
}

impl From<&FindingObject> for Finding {
    fn from(finding: &FindingObject) -> Self {
        finding.clone().into()
    }
}

/// A page of findings.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a shape for the document: a page is written item by item")]
pub(crate) struct FindingList {
    /// `true` if all findings across keys are known. While it is `false`, shortly after a start or
    /// during bursts of changes, such findings may be missing or outdated: send the request again.
    /// Findings about whole clusters are always complete.
    pub(crate) complete: bool,
    /// Findings about whole clusters, then findings across keys, each in order of id.
    pub(crate) items: Vec<Finding>,
    /// Send it as `pageToken=` to get the next page. Left out on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page_token: Option<String>,
    /// Probable mistakes in the request: a filter names a cluster that meshkeep does not know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) warnings: Vec<String>,
    /// Sources and age of the list.
    pub(crate) meta: ListMeta,
}

/// Explanation of an address or of a CIDR.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    /// The address, or the CIDR.
    pub(crate) ip: String,
    /// The entry that an agent would use; for a CIDR, the entry for all its addresses that have no
    /// more specific one. Null if no entry covers the address or the whole CIDR.
    #[serde(rename = "match")]
    #[schema(required = true)]
    pub(crate) found: Option<IpcacheEntry>,
    /// All entries of all clusters that cover the address, in order of precedence.
    pub(crate) entries: Vec<ExplainedEntry>,
    /// Possible reasons why the address has no entry of its own, or an outdated one. Left out if
    /// there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) hints: Vec<Hint>,
    /// The node that hosts the address, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Node>,
    /// Services and endpoint slices that have the address as a backend. Left out with `at=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) services: Option<Vec<BackedService>>,
    /// Findings about the address. Left out with `at=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) problems: Option<Vec<Finding>>,
    /// `true` if `services` and `problems` are complete. `false` shortly after a start, during
    /// bursts of changes, or if a cluster has more than 600,000 backend addresses. Left out with
    /// `at=`: see `complete` in `meta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) complete: Option<bool>,
    /// Source and age of the answer.
    pub(crate) meta: ItemMeta,
}

/// One entry that covers the address, with its verdict.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExplainedEntry {
    /// The entry.
    #[serde(flatten)]
    pub(crate) entry: IpcacheEntry,
    /// Verdict: `wins`, `shadowed` (by a host entry for the same address), `lessSpecific` or
    /// `outranked` (by another entry of the same prefix).
    pub(crate) verdict: Verdict,
    /// Reason of the verdict, as text.
    pub(crate) reason: String,
    /// `live` if the source has confirmed the entry since meshkeep started, otherwise `restored`.
    /// Left out with `at=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<Origin>,
}

/// A possible reason why an address has no entry of its own, or an outdated one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Hint {
    /// `rejected`: meshkeep rejected the value that a cluster announces for the address, for a
    /// range around it or for the node. `inside`: entries inside the CIDR, which take precedence
    /// for their addresses. `podCIDR`: the address is in the pod CIDR of a node. `deleted`: an
    /// entry for exactly this address was deleted. `neverRead`, `restored`: clusters whose
    /// addresses are not known, or not confirmed. `nearest`: an entry for a nearby address, if none
    /// covers this one.
    pub(crate) kind: HintKind,
    /// The reason as text.
    pub(crate) detail: String,
    /// Affected clusters, at most 20.
    pub(crate) clusters: Vec<String>,
    /// Number of further affected clusters. Left out if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) more_clusters: Option<usize>,
    /// Pod CIDR, or prefix of the entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix: Option<String>,
    /// Name of the node that has the pod CIDR, or had the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// Key of the entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Time at which meshkeep saw the delete, or rejected the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time: Option<String>,
}

impl Hint {
    /// Creates a hint with only the required members, and no clusters.
    pub(crate) fn new(kind: closed::HintKind, detail: String) -> Self {
        let (more_clusters, prefix, node, key, time) = (None, None, None, None, None);
        Self { kind: kind.into(), detail, clusters: Vec::new(), more_clusters, prefix, node, key, time }
    }
}

/// A service or endpoint slice that has the address as a backend.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BackedService {
    /// `service` or `endpointSlice`.
    pub(crate) kind: BackendSource,
    /// The cluster that exports the object.
    pub(crate) cluster: String,
    /// Kubernetes namespace.
    pub(crate) namespace: String,
    /// Kubernetes name.
    pub(crate) name: String,
}
