//! Objects of the Multi-Cluster Services API: service exports and endpoint slices.

use std::net::IpAddr;
use std::time::SystemTime;

use crate::model::LabelSet;

/// A service that one cluster exports to the cluster set, from Cilium's
/// `pkg/clustermesh/mcsapi/types/mcsapiservicespec.go`. If several clusters export one name and
/// disagree, the oldest export wins (KEP-1645).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceExport {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Kubernetes name.
    pub name: String,
    /// Creation time of the export, which decides between clusters that disagree.
    pub created: SystemTime,
    /// Ports, in the order of the source.
    pub ports: Vec<ExportPort>,
    /// `ClusterSetIP` or `Headless`.
    pub service_type: String,
    /// `ClientIP` or `None`; empty if not given.
    pub session_affinity: String,
    /// Seconds that a client stays with its backend; only for the affinity `ClientIP`, and if
    /// given.
    pub session_affinity_timeout_seconds: Option<u32>,
    /// `IPv4` and `IPv6`, in the order of the source; empty if not given.
    pub ip_families: Vec<String>,
    /// `Cluster` or `Local`; empty if not given.
    pub internal_traffic_policy: String,
    /// `PreferClose` or another policy; empty if not given.
    pub traffic_distribution: String,
    /// Labels of the export.
    pub labels: LabelSet,
    /// Annotations of the export.
    pub annotations: LabelSet,
}

/// A port of a service export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportPort {
    /// Name within the service; may be empty.
    pub name: String,
    /// `TCP`, `UDP`, `SCTP` …, as in the source.
    pub protocol: String,
    /// Application protocol, such as `http`; empty if not given.
    pub app_protocol: String,
    /// 0 to 65,535.
    pub port: u16,
}

/// A part of a service's endpoints, from Cilium's
/// `pkg/clustermesh/types/endpointslice/endpointslice.go`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndpointSlice {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Name of the slice. The label `kubernetes.io/service-name` names its service.
    pub name: String,
    /// Cluster id that the slice claims.
    pub cluster_id: u32,
    /// Labels of the slice.
    pub labels: LabelSet,
    /// Annotations of the slice.
    pub annotations: LabelSet,
    /// `IPv4` or `IPv6`: the family of all addresses of the slice.
    pub address_type: String,
    /// Endpoints, in the order of the source.
    pub endpoints: Vec<SliceEndpoint>,
    /// Ports of every endpoint, in the order of the source.
    pub ports: Vec<SlicePort>,
}

/// An endpoint of a slice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SliceEndpoint {
    /// Addresses, all of the slice's family.
    pub addresses: Vec<IpAddr>,
    /// Whether it accepts new connections; `None` means unknown, which counts as yes.
    pub ready: Option<bool>,
    /// Whether it can serve, even while it is terminating.
    pub serving: Option<bool>,
    /// Whether it is terminating.
    pub terminating: Option<bool>,
    /// Topology labels, which only old writers give; otherwise empty.
    pub topology: LabelSet,
    /// Node that hosts the endpoint; empty if not given.
    pub node_name: String,
    /// Zone of the endpoint; empty if not given.
    pub zone: String,
    /// Topology hints: zones that should use the endpoint.
    pub for_zones: Vec<String>,
}

/// A port of a slice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlicePort {
    /// Name within the service; may be empty.
    pub name: String,
    /// `TCP`, `UDP`, `SCTP` …; empty if not given.
    pub protocol: String,
    /// Port number as in the source, which agents use modulo 65,536; `None` means every port.
    pub port: Option<i32>,
}
