//! Service exports and endpoint slices, as lists, single answers and streams show them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dto::meta::ItemMeta;
use crate::dto::objects::last_change::LastChange;
use crate::dto::values::TrafficPolicy;

/// A service that one cluster exports to the cluster set (MCS).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceExport {
    /// The cluster that exports the object.
    pub(crate) cluster: String,
    /// Kubernetes namespace.
    pub(crate) namespace: String,
    /// Kubernetes name.
    pub(crate) name: String,
    /// Creation time of the export. On a conflict, the oldest export takes precedence.
    pub(crate) export_creation_timestamp: String,
    /// `ClusterSetIP` or `Headless`.
    #[serde(rename = "type")]
    pub(crate) service_type: String,
    /// Ports, in the order of the source.
    pub(crate) ports: Vec<ExportPort>,
    /// `ClientIP` or `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_affinity: Option<String>,
    /// Seconds that a client keeps its backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_affinity_timeout_seconds: Option<u32>,
    /// `IPv4` and `IPv6`, in the order of the source.
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
    pub(crate) labels: BTreeMap<String, String>,
    /// Annotations of the export.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) annotations: BTreeMap<String, String>,
    /// Time of the last change.
    #[serde(flatten)]
    pub(crate) change: LastChange,
    /// Present only if a single export was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// A port of a service export.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExportPort {
    /// Name of the port within the service; may be empty.
    pub(crate) name: String,
    /// Protocol as the source has it: `TCP`, `UDP`, `SCTP` and others.
    pub(crate) protocol: String,
    /// Application protocol, for example `http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) app_protocol: Option<String>,
    /// Port number.
    pub(crate) port: u16,
}

/// A part of a service's endpoints, as one cluster exports it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndpointSlice {
    /// The cluster that exports the object.
    pub(crate) cluster: String,
    /// Id of that cluster. Left out if its config has none.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub(crate) cluster_id: Option<u32>,
    /// Kubernetes namespace.
    pub(crate) namespace: String,
    /// Name of the slice. The label `kubernetes.io/service-name` has the name of the service.
    pub(crate) name: String,
    /// `IPv4` or `IPv6`.
    pub(crate) address_type: String,
    /// Endpoints, in the order of the source.
    pub(crate) endpoints: Vec<SliceEndpoint>,
    /// The ports of every endpoint.
    pub(crate) ports: Vec<SlicePort>,
    /// Labels of the slice.
    pub(crate) labels: BTreeMap<String, String>,
    /// Annotations of the slice.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) annotations: BTreeMap<String, String>,
    /// Time of the last change.
    #[serde(flatten)]
    pub(crate) change: LastChange,
    /// Present only if a single slice was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// An endpoint of a slice.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SliceEndpoint {
    /// Addresses of the endpoint.
    pub(crate) addresses: Vec<String>,
    /// `true` if the endpoint accepts new connections. Left out if unknown, which counts as `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<bool>,
    /// `true` if the endpoint accepts connections, even while it is terminating. Left out if
    /// unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) serving: Option<bool>,
    /// `true` if the endpoint is terminating.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) terminating: Option<bool>,
    /// Name of the node that hosts the endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_name: Option<String>,
    /// Zone that it runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    /// Zones whose clients should use this backend (topology hints).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) for_zones: Vec<String>,
    /// Topology of the endpoint, as older writers publish it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) deprecated_topology: BTreeMap<String, String>,
}

/// A port of a slice.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SlicePort {
    /// Name of the port within the service; may be empty.
    pub(crate) name: String,
    /// Protocol: `TCP`, `UDP`, `SCTP` and others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) protocol: Option<String>,
    /// Port number as the source has it, even if it is not a valid port. Left out for all ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<i32>,
}
