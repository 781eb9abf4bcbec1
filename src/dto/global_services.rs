//! Global services, as lists and single answers show them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::exports::ExportPort;
use super::meta::{ItemMeta, SourceAge};
use super::objects::Frontend;

/// Value of `conflict=` that matches conflicts of every reason.
pub(crate) const ANY_CONFLICT: &str = "any";

/// A service as all clusters that share it have it together.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GlobalService {
    /// Kubernetes namespace.
    pub(crate) namespace: String,
    /// Kubernetes name.
    pub(crate) name: String,
    /// One for each cluster that shares it, in order of names; none where it is `tooLarge`.
    pub(crate) clusters: Vec<ServiceCluster>,
    /// The backends of all these clusters, by cluster and address; with `affinity=` only those that would be used. The same address in
    /// two clusters is two backends.
    pub(crate) backends: Vec<GlobalBackend>,
    /// What clusters export under this name (MCS), merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exports: Option<GlobalExports>,
    /// Where the exports disagree, what Cilium reports first; the oldest export is right.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) conflicts: Vec<ExportConflict>,
    /// Only with `affinity=`: which backends would be used, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) selection: Option<BackendSelection>,
    /// Only with `affinity=`: the rule that decided, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<Cow<'static, str>>,
    /// Only where the endpoint slices of the service take more memory than meshkeep may use: the service exists, and its clusters and backends are not
    /// in this answer. Also with `fields=`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) too_large: Option<TooLarge>,
    /// Only with a single service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// Why an item is returned without its content.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TooLarge {
    /// The cluster whose values take the most.
    pub(crate) cluster: String,
    /// The first of these values.
    pub(crate) key: String,
    /// What the values of all clusters take once they are decoded, in bytes.
    pub(crate) bytes: u64,
    /// What they may take (`--decoded-max-bytes`).
    pub(crate) bytes_max: u64,
    /// The reason as text.
    pub(crate) reason: String,
}

/// What one cluster has of a global service.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceCluster {
    /// The cluster.
    pub(crate) cluster: String,
    /// The id of that cluster; left out where it gives none.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub(crate) cluster_id: Option<u32>,
    /// Where its backends come from: `service`, or `endpointSlice` where it exports slices alone.
    pub(crate) source: Cow<'static, str>,
    /// Whether it uses other clusters' backends.
    pub(crate) include_external: bool,
    /// How many backends it shares.
    pub(crate) backend_count: usize,
    /// The addresses that the service has in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) frontends: Vec<Frontend>,
    /// Labels of its service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) labels: BTreeMap<String, String>,
    /// How current what it shares is.
    #[serde(flatten)]
    pub(crate) age: SourceAge,
}

/// A backend of one cluster.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GlobalBackend {
    /// Its address.
    pub(crate) ip: String,
    /// Its cluster.
    pub(crate) cluster: String,
    /// `live` or `restored`, as its cluster's data is.
    pub(crate) origin: Cow<'static, str>,
    /// `true` where its cluster's source has lost it and it is kept until the source is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stale: Option<bool>,
    /// The hostname of a headless service's pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<String>,
    /// Where it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    /// The zones that should use it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) hint_zones: Vec<String>,
    /// The node that hosts it, where an endpoint slice says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_name: Option<String>,
    /// Its ports, by number and protocol; agents know no backend without any.
    pub(crate) ports: Vec<GlobalPort>,
    /// Whether it takes connections, where an endpoint slice says: `active`, `terminating`, `terminatingNotServing` or `maintenance`;
    /// without a slice `active`.
    pub(crate) state: Cow<'static, str>,
    /// The endpoint slices of its cluster that have it too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) endpoint_slices: Vec<String>,
}

/// A port of a backend: one for each number and protocol.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GlobalPort {
    /// Its name within the service; of several the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// All its names, in order, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) names: Vec<String>,
    /// `TCP`, `UDP`, `SCTP` …, as the source says.
    pub(crate) protocol: String,
    /// The number.
    pub(crate) port: u16,
}

/// What clusters export under one name, merged as Cilium's operator merges it: the oldest export is right.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GlobalExports {
    /// The clusters that export it, the one that is right first.
    pub(crate) clusters: Vec<String>,
    /// When the oldest export was created.
    pub(crate) export_creation_timestamp: String,
    /// `ClusterSetIP` or `Headless`.
    #[serde(rename = "type")]
    pub(crate) service_type: String,
    /// The ports of all exports, those of the oldest first; a port that conflicts with an older one is left out.
    pub(crate) ports: Vec<ExportPort>,
    /// `ClientIP` or `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_affinity: Option<String>,
    /// How long a client stays with its backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_affinity_timeout_seconds: Option<u32>,
    /// The IP families that the exports have in common.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) ip_families: Vec<String>,
    /// `Cluster` or `Local`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) internal_traffic_policy: Option<String>,
    /// `PreferClose` and the like.
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

/// Something that exports disagree about.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExportConflict {
    /// Cilium's reason, as in the condition `Conflict` of a `ServiceExport`: `PortConflict`, `TypeConflict` and so on.
    pub(crate) reason: Cow<'static, str>,
    /// The clusters that disagree with older exports.
    pub(crate) clusters: Vec<String>,
    /// What holds.
    pub(crate) message: String,
}

/// Which backends the agents of a cluster would use.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BackendSelection {
    /// The cluster whose agents choose.
    pub(crate) from: String,
    /// The affinity: `none`, `local` or `remote`.
    pub(crate) affinity: Cow<'static, str>,
    /// The rule that decided: `noLocalService`, `notGlobal`, `noAffinity`, `localActive`, `localInactive`,
    /// `localInactiveRemoteUnhealthy`, `remoteHealthy`, `remoteUnhealthy` or `noneHealthy`.
    pub(crate) rule: Cow<'static, str>,
    /// Whether the cluster's own backends would be used.
    pub(crate) local: bool,
    /// Whether other clusters' backends would be used.
    pub(crate) remote: bool,
    /// `false` where the services of the cluster are not mirrored: its service is taken for global, and for one without backends.
    pub(crate) local_known: bool,
}
