//! Service exports and endpoint slices, as lists, single answers and streams show them.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::meta::ItemMeta;
use super::{non_empty, rfc3339};
use crate::model::{self, EntryKey, Record};

/// A service that one cluster exports to the cluster set (MCS).
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceExport {
    /// The cluster that exports it.
    cluster: String,
    /// Kubernetes namespace.
    namespace: String,
    /// Kubernetes name.
    name: String,
    /// When the export was created: of clusters that disagree the oldest is right.
    pub(super) export_creation_timestamp: String,
    /// `ClusterSetIP` or `Headless`.
    #[serde(rename = "type")]
    pub(super) service_type: String,
    /// Its ports, in the order of the source.
    ports: Vec<ExportPort>,
    /// `ClientIP` or `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session_affinity: Option<String>,
    /// How long a client stays with its backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session_affinity_timeout_seconds: Option<u32>,
    /// `IPv4` and `IPv6`, in the order of the source.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    ip_families: Vec<String>,
    /// `Cluster` or `Local`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) internal_traffic_policy: Option<String>,
    /// `PreferClose` and the like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) traffic_distribution: Option<String>,
    /// Labels of the export.
    pub(super) labels: BTreeMap<String, String>,
    /// Annotations of the export.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(super) annotations: BTreeMap<String, String>,
    /// Only with a single export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// A port of a service export.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExportPort {
    /// Its name within the service; may be empty.
    name: String,
    /// `TCP`, `UDP`, `SCTP` …, as the source says.
    protocol: String,
    /// The application's protocol, such as `http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    app_protocol: Option<String>,
    /// The number.
    port: u16,
}

/// A part of a service's endpoints, as one cluster exports it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndpointSlice {
    /// The cluster that exports it.
    cluster: String,
    /// The id of that cluster; left out where it gives none.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    cluster_id: Option<u32>,
    /// Kubernetes namespace.
    namespace: String,
    /// The slice's name; its service is the label `kubernetes.io/service-name`.
    name: String,
    /// `IPv4` or `IPv6`.
    address_type: String,
    /// Its endpoints, in the order of the source.
    endpoints: Vec<SliceEndpoint>,
    /// The ports of every endpoint.
    ports: Vec<SlicePort>,
    /// Labels of the slice.
    labels: BTreeMap<String, String>,
    /// Annotations of the slice.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    annotations: BTreeMap<String, String>,
    /// Only with a single slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// An endpoint of a slice.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SliceEndpoint {
    /// Its addresses.
    addresses: Vec<String>,
    /// Whether it takes new connections; left out where that is unknown, which counts as yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<bool>,
    /// Whether it takes connections, also while it is being ended; left out where that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    serving: Option<bool>,
    /// Whether it is being ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    terminating: Option<bool>,
    /// The node that hosts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<String>,
    /// Where it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    /// The zones that should use it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    for_zones: Vec<String>,
    /// Where it runs, as old writers say it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    deprecated_topology: BTreeMap<String, String>,
}

/// A port of a slice.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SlicePort {
    /// Its name within the service; may be empty.
    name: String,
    /// `TCP`, `UDP`, `SCTP` …
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    /// The number as the source has it, also where no port has it; left out where it is every port.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<i32>,
}

impl ServiceExport {
    pub(super) fn new(key: &EntryKey, export: &model::ServiceExport) -> Self {
        Self {
            cluster: key.cluster.to_string(),
            namespace: export.namespace.clone(),
            name: export.name.clone(),
            export_creation_timestamp: rfc3339(export.created),
            service_type: export.service_type.clone(),
            ports: export.ports.iter().map(ExportPort::from).collect(),
            session_affinity: non_empty(&export.session_affinity),
            session_affinity_timeout_seconds: export.session_affinity_timeout_seconds,
            ip_families: export.ip_families.clone(),
            internal_traffic_policy: non_empty(&export.internal_traffic_policy),
            traffic_distribution: non_empty(&export.traffic_distribution),
            labels: export.labels.clone(),
            annotations: export.annotations.clone(),
            meta: None,
        }
    }

    /// The export in a record, if it holds a usable one.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        Some(Self::new(&record.key, record.object.as_deref()?.as_service_export()?))
    }
}

impl From<&model::ExportPort> for ExportPort {
    fn from(port: &model::ExportPort) -> Self {
        Self { name: port.name.clone(), protocol: port.protocol.clone(), app_protocol: non_empty(&port.app_protocol), port: port.port }
    }
}

impl EndpointSlice {
    pub(super) fn new(key: &EntryKey, slice: &model::EndpointSlice) -> Self {
        let port = |port: &model::SlicePort| SlicePort { name: port.name.clone(), protocol: non_empty(&port.protocol), port: port.port };
        Self {
            cluster: key.cluster.to_string(),
            cluster_id: Some(slice.cluster_id).filter(|id| *id != 0),
            namespace: slice.namespace.clone(),
            name: slice.name.clone(),
            address_type: slice.address_type.clone(),
            endpoints: slice.endpoints.iter().map(SliceEndpoint::from).collect(),
            ports: slice.ports.iter().map(port).collect(),
            labels: slice.labels.clone(),
            annotations: slice.annotations.clone(),
            meta: None,
        }
    }

    /// The slice in a record, if it holds a usable one.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        Some(Self::new(&record.key, &record.object.as_deref()?.as_endpoint_slice()?.decoded()))
    }
}

impl From<&model::SliceEndpoint> for SliceEndpoint {
    fn from(endpoint: &model::SliceEndpoint) -> Self {
        Self {
            addresses: endpoint.addresses.iter().map(ToString::to_string).collect(),
            ready: endpoint.ready,
            serving: endpoint.serving,
            terminating: endpoint.terminating,
            node_name: non_empty(&endpoint.node_name),
            zone: non_empty(&endpoint.zone),
            for_zones: endpoint.for_zones.clone(),
            deprecated_topology: endpoint.topology.clone(),
        }
    }
}
