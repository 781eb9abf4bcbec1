//! What a cluster exports beside its global services: multi-cluster service exports and endpoint slices.

use std::net::IpAddr;
use std::time::SystemTime;

use crate::model::LabelSet;

/// A service that one cluster exports to the cluster set, from Cilium's `pkg/clustermesh/mcsapi/types/mcsapiservicespec.go`. Of several
/// clusters that export one name and disagree, the oldest export is right (KEP-1645).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceExport {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Kubernetes name.
    pub name: String,
    /// When the export was created: what decides between clusters that disagree.
    pub created: SystemTime,
    /// Its ports, in the order of the source.
    pub ports: Vec<ExportPort>,
    /// `ClusterSetIP` or `Headless`.
    pub service_type: String,
    /// `ClientIP` or `None`; empty if not given.
    pub session_affinity: String,
    /// How long a client stays with its backend, where the affinity is `ClientIP` and it is given.
    pub session_affinity_timeout_seconds: Option<u32>,
    /// `IPv4` and `IPv6`, in the order of the source; empty if not given.
    pub ip_families: Vec<String>,
    /// `Cluster` or `Local`; empty if not given.
    pub internal_traffic_policy: String,
    /// `PreferClose` and the like; empty if not given.
    pub traffic_distribution: String,
    /// Labels of the export.
    pub labels: LabelSet,
    /// Annotations of the export.
    pub annotations: LabelSet,
}

/// A port of a service export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportPort {
    /// Its name within the service; may be empty.
    pub name: String,
    /// `TCP`, `UDP`, `SCTP` …, as the source says.
    pub protocol: String,
    /// The application's protocol, such as `http`; empty if not given.
    pub app_protocol: String,
    /// 0 to 65,535.
    pub port: u16,
}

/// A part of a service's endpoints, from Cilium's `pkg/clustermesh/types/endpointslice/endpointslice.go`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndpointSlice {
    /// Kubernetes namespace.
    pub namespace: String,
    /// The slice's name; its service is the label `kubernetes.io/service-name`.
    pub name: String,
    /// The id that the slice claims for its cluster.
    pub cluster_id: u32,
    /// Labels of the slice.
    pub labels: LabelSet,
    /// Annotations of the slice.
    pub annotations: LabelSet,
    /// `IPv4` or `IPv6`: the family of every address in it.
    pub address_type: String,
    /// Its endpoints, in the order of the source.
    pub endpoints: Vec<SliceEndpoint>,
    /// The ports of every endpoint, in the order of the source.
    pub ports: Vec<SlicePort>,
}

/// An endpoint of a slice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SliceEndpoint {
    /// Its addresses, all of the slice's family.
    pub addresses: Vec<IpAddr>,
    /// Whether it takes new connections; `None` is unknown, which counts as yes.
    pub ready: Option<bool>,
    /// Whether it can serve, also while it is being ended.
    pub serving: Option<bool>,
    /// Whether it is being ended.
    pub terminating: Option<bool>,
    /// Where it runs, as old writers say it; empty with new ones.
    pub topology: LabelSet,
    /// The node that hosts it; empty if not given.
    pub node_name: String,
    /// Where it runs; empty if not given.
    pub zone: String,
    /// Topology hints: the zones that should use it.
    pub for_zones: Vec<String>,
}

/// A port of a slice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlicePort {
    /// Its name within the service; may be empty.
    pub name: String,
    /// `TCP`, `UDP`, `SCTP` …; empty if not given.
    pub protocol: String,
    /// As the source has it, which agents take modulo 65,536; `None` is every port.
    pub port: Option<i32>,
}
