//! Global services, as lists and single answers show them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::exports::ExportPort;
use crate::dto::meta::{ItemMeta, SourceAge};
use crate::dto::objects::Frontend;
use crate::dto::objects::last_change::LastChange;
use crate::dto::values::{Affinity, BackendSource, BackendState, ConflictReason, Origin, SelectionRule, TrafficPolicy};

/// A service, merged from all clusters that share it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GlobalService {
    /// Kubernetes namespace.
    pub(crate) namespace: String,
    /// Kubernetes name.
    pub(crate) name: String,
    /// Clusters that share the service, in order of name. Empty if `tooLarge` is present.
    pub(crate) clusters: Vec<ServiceCluster>,
    /// Backends of all these clusters, in order of cluster and address; with `affinity=`, only
    /// those that would be used. The same address in two clusters is two backends.
    pub(crate) backends: Vec<GlobalBackend>,
    /// The merged service exports (MCS) of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exports: Option<GlobalExports>,
    /// Conflicts between the exports. The conflict that Cilium reports is first. The oldest export
    /// takes precedence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) conflicts: Vec<ExportConflict>,
    /// Backends that would be used, and the rule. Present only with `affinity=`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) selection: Option<BackendSelection>,
    /// The rule that decided, as text. Present only with `affinity=`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<Cow<'static, str>>,
    /// Present only if the endpoint slices of the service need more memory than
    /// `--decoded-max-bytes`. The answer then has no clusters and no backends. `fields=` does not
    /// remove this member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) too_large: Option<TooLarge>,
    /// Present only if a single service was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// Reason why an item has no content.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TooLarge {
    /// The cluster whose values need the most memory.
    pub(crate) cluster: String,
    /// Key of the first of that cluster's values.
    pub(crate) key: String,
    /// Memory that the values of all clusters need once they are decoded, in bytes.
    pub(crate) bytes: u64,
    /// Maximum memory for them in bytes (`--decoded-max-bytes`).
    pub(crate) bytes_max: u64,
    /// The reason as text.
    pub(crate) reason: String,
}

/// One cluster's part of a global service.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceCluster {
    /// The cluster.
    pub(crate) cluster: String,
    /// Id of that cluster. Left out if its config has none.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub(crate) cluster_id: Option<u32>,
    /// Object that the backends come from: `service`, or `endpointSlice` if the cluster exports
    /// only slices.
    pub(crate) source: BackendSource,
    /// `true` if the service uses backends of other clusters.
    pub(crate) include_external: bool,
    /// Number of backends that the cluster shares.
    pub(crate) backend_count: usize,
    /// Addresses of the service in this cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) frontends: Vec<Frontend>,
    /// Labels of the service in this cluster.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) labels: BTreeMap<String, String>,
    /// Time of the last change of the cluster's service, or of its endpoint slices.
    #[serde(flatten)]
    pub(crate) change: LastChange,
    /// Origin and age of the cluster's part.
    #[serde(flatten)]
    pub(crate) age: SourceAge,
}

/// A backend of one cluster.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GlobalBackend {
    /// Address of the backend.
    pub(crate) ip: String,
    /// Cluster of the backend.
    pub(crate) cluster: String,
    /// `live` or `restored`: origin of the cluster's data.
    pub(crate) origin: Origin,
    /// `true` if the source lost the backend. meshkeep retains it until the source is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stale: Option<bool>,
    /// Hostname of the pod, for headless services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<String>,
    /// Zone that it runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    /// Zones whose clients should use this backend (topology hints).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) hint_zones: Vec<String>,
    /// Name of the node that hosts it, if an endpoint slice has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_name: Option<String>,
    /// Ports in order of number and protocol. Agents ignore a backend without ports.
    pub(crate) ports: Vec<GlobalPort>,
    /// State from an endpoint slice: `active`, `terminating`, `terminatingNotServing` or
    /// `maintenance`. Without a slice, `active`.
    pub(crate) state: BackendState,
    /// Endpoint slices of the same cluster that also have this backend.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) endpoint_slices: Vec<String>,
}

/// A port of a backend. Number and protocol identify it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GlobalPort {
    /// Name of the port within the service. The first one if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// All names of the port, in order. Left out unless there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) names: Vec<String>,
    /// Protocol as the source has it: `TCP`, `UDP`, `SCTP` and others.
    pub(crate) protocol: String,
    /// Port number.
    pub(crate) port: u16,
}

/// The exports of one name, merged as Cilium's operator merges them: on a conflict, the oldest
/// export takes precedence.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GlobalExports {
    /// The clusters that export the service, the one that takes precedence first.
    pub(crate) clusters: Vec<String>,
    /// Creation time of the oldest export.
    pub(crate) export_creation_timestamp: String,
    /// `ClusterSetIP` or `Headless`.
    #[serde(rename = "type")]
    pub(crate) service_type: String,
    /// Ports of all exports, those of the oldest first. A port that conflicts with an older export
    /// is left out.
    pub(crate) ports: Vec<ExportPort>,
    /// `ClientIP` or `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_affinity: Option<String>,
    /// Seconds that a client keeps its backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_affinity_timeout_seconds: Option<u32>,
    /// IP families that all exports have in common.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) ip_families: Vec<String>,
    /// `Cluster` or `Local`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) internal_traffic_policy: Option<TrafficPolicy>,
    /// Traffic distribution, for example `PreferClose`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) traffic_distribution: Option<String>,
    /// Labels of the export.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) labels: BTreeMap<String, String>,
    /// Annotations of the export.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) annotations: BTreeMap<String, String>,
}

/// A conflict between exports of the same name.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExportConflict {
    /// Cilium's reason, as in the `Conflict` condition of a `ServiceExport`: `PortConflict`,
    /// `TypeConflict` and so on.
    pub(crate) reason: ConflictReason,
    /// Clusters whose exports conflict with older exports.
    pub(crate) clusters: Vec<String>,
    /// The conflict and its result, as text.
    pub(crate) message: String,
}

/// Backends that the agents of one cluster would use.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BackendSelection {
    /// The cluster whose agents select the backends.
    pub(crate) from: String,
    /// The affinity: `none`, `local` or `remote`.
    pub(crate) affinity: Affinity,
    /// The rule that decided: `noLocalService`, `notGlobal`, `noAffinity`, `localActive`,
    /// `localInactive`, `localInactiveRemoteUnhealthy`, `remoteHealthy`, `remoteUnhealthy` or
    /// `noneHealthy`.
    pub(crate) rule: SelectionRule,
    /// `true` if the agents would use backends in their own cluster.
    pub(crate) local: bool,
    /// `true` if the agents would use backends in other clusters.
    pub(crate) remote: bool,
    /// `false` if the services of this cluster are not mirrored. meshkeep then assumes that its
    /// service is global and has no backends.
    pub(crate) local_known: bool,
}
