//! Service exports and endpoint slices, as lists, single answers and streams show them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::meta::ItemMeta;

/// A service that one cluster exports to the cluster set (MCS).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceExport {
    /// The cluster that exports it.
    pub(crate) cluster: String,
    /// Kubernetes namespace.
    pub(crate) namespace: String,
    /// Kubernetes name.
    pub(crate) name: String,
    /// When the export was created: of clusters that disagree the oldest is right.
    pub(crate) export_creation_timestamp: String,
    /// `ClusterSetIP` or `Headless`.
    #[serde(rename = "type")]
    pub(crate) service_type: String,
    /// Its ports, in the order of the source.
    pub(crate) ports: Vec<ExportPort>,
    /// `ClientIP` or `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_affinity: Option<String>,
    /// How long a client stays with its backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_affinity_timeout_seconds: Option<u32>,
    /// `IPv4` and `IPv6`, in the order of the source.
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
    pub(crate) labels: BTreeMap<String, String>,
    /// Annotations of the export.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) annotations: BTreeMap<String, String>,
    /// Only with a single export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// A port of a service export.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExportPort {
    /// Its name within the service; may be empty.
    pub(crate) name: String,
    /// `TCP`, `UDP`, `SCTP` …, as the source says.
    pub(crate) protocol: String,
    /// The application's protocol, such as `http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) app_protocol: Option<String>,
    /// The number.
    pub(crate) port: u16,
}

/// A part of a service's endpoints, as one cluster exports it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndpointSlice {
    /// The cluster that exports it.
    pub(crate) cluster: String,
    /// The id of that cluster; left out where it gives none.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub(crate) cluster_id: Option<u32>,
    /// Kubernetes namespace.
    pub(crate) namespace: String,
    /// The slice's name; its service is the label `kubernetes.io/service-name`.
    pub(crate) name: String,
    /// `IPv4` or `IPv6`.
    pub(crate) address_type: String,
    /// Its endpoints, in the order of the source.
    pub(crate) endpoints: Vec<SliceEndpoint>,
    /// The ports of every endpoint.
    pub(crate) ports: Vec<SlicePort>,
    /// Labels of the slice.
    pub(crate) labels: BTreeMap<String, String>,
    /// Annotations of the slice.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) annotations: BTreeMap<String, String>,
    /// Only with a single slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// An endpoint of a slice.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SliceEndpoint {
    /// Its addresses.
    pub(crate) addresses: Vec<String>,
    /// Whether it takes new connections; left out where that is unknown, which counts as yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<bool>,
    /// Whether it takes connections, also while it is being ended; left out where that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) serving: Option<bool>,
    /// Whether it is being ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) terminating: Option<bool>,
    /// The node that hosts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_name: Option<String>,
    /// Where it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    /// The zones that should use it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) for_zones: Vec<String>,
    /// Where it runs, as old writers say it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) deprecated_topology: BTreeMap<String, String>,
}

/// A port of a slice.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SlicePort {
    /// Its name within the service; may be empty.
    pub(crate) name: String,
    /// `TCP`, `UDP`, `SCTP` …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) protocol: Option<String>,
    /// The number as the source has it, also where no port has it; left out where it is every port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<i32>,
}
