//! Decoded values of keys: nodes, services, identities, ipcache entries and others.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use smol_str::SmolStr;

use crate::model::{EntryKey, FindingObject, IdentityLabels, PackedSlice, Phase, ServiceExport};

/// Labels or annotations by name.
pub type LabelSet = BTreeMap<String, String>;

/// Label with the name of the cluster that an identity belongs to (`PolicyLabelCluster` of
/// `pkg/k8s/apis/cilium.io`).
pub const CLUSTER_LABEL: &str = "k8s:io.cilium.k8s.policy.cluster";

/// Label with the namespace of an identity's pods (`PodNamespaceLabel` of
/// `pkg/k8s/apis/cilium.io`).
pub const NAMESPACE_LABEL: &str = "k8s:io.kubernetes.pod.namespace";

/// Label with the service account of an identity's pods (`PolicyLabelServiceAccount` of
/// `pkg/k8s/apis/cilium.io`).
pub const SERVICE_ACCOUNT_LABEL: &str = "k8s:io.cilium.k8s.policy.serviceaccount";

/// A decoded and validated value.
///
/// A mesh has a thousand entries per node, so large and rare values are boxed: unboxed they would
/// enlarge every entry by half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// From `nodes/v1`.
    Node(Box<Node>),
    /// From `services/v1`.
    Service(Service),
    /// From `identities/v1`.
    Identity(Identity),
    /// From `ip/v1`.
    Ip(IpEntry),
    /// From `serviceexports/v1`.
    ServiceExport(Box<ServiceExport>),
    /// From `endpointslices/v1`, in packed form.
    EndpointSlice(PackedSlice),
    /// Made by meshkeep: a cluster and its phase.
    Cluster(ClusterPhase),
    /// Made by meshkeep: a finding.
    Finding(Box<FindingObject>),
}

/// State of a cluster in the change stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClusterPhase {
    /// Phase of the cluster; `None` if the cluster is known from the store only.
    pub phase: Option<Phase>,
    /// Number that identifies the reason of the phase if the cluster waits after a failure or for
    /// files. A different number means a different reason; 0 means none.
    pub cause: u64,
}

impl ObjectPrefix {
    /// Returns the prefix of a host.
    #[must_use]
    pub fn of_host(ip: impl Into<IpAddr>) -> Self {
        Self { net: ip.into().into(), host: true }
    }

    /// Parses the form in keys. An address alone is a host; an address with a length is a CIDR,
    /// whose bits after the length are cleared.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.contains('/') {
            return Some(Self { net: text.parse::<IpNet>().ok()?.trunc(), host: false });
        }
        text.parse::<IpAddr>().ok().map(Self::of_host)
    }
}

impl fmt::Display for ObjectPrefix {
    /// Writes the form of Cilium's keys: a host is an address alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host { self.net.addr().fmt(f) } else { self.net.fmt(f) }
    }
}

impl Object {
    /// Returns the global service, as `<namespace>/<name>`, that the object of `key` is a part of.
    /// `None` for a service that is not shared (`NewSharedServicesObserver`, Cilium's
    /// `pkg/clustermesh/common/services.go`), and for a slice that names no service
    /// (`ParseEndpointSliceID`, `pkg/k8s/endpoints.go`).
    #[must_use]
    pub fn shared_service(&self, key: &EntryKey) -> Option<SmolStr> {
        match self {
            Self::Service(service) => service.shared.then(|| key.name.clone()),
            Self::ServiceExport(_) => Some(key.name.clone()),
            Self::EndpointSlice(slice) => slice.service().cloned(),
            Self::Node(_) | Self::Identity(_) | Self::Ip(_) | Self::Cluster(_) | Self::Finding(_) => None,
        }
    }

    /// Returns the kind of key that has such an object.
    #[cfg(test)]
    #[must_use]
    pub const fn kind(&self) -> crate::model::Kind {
        use crate::model::Kind;
        match self {
            Self::Node(_) => Kind::Node,
            Self::Service(_) => Kind::Service,
            Self::Identity(_) => Kind::Identity,
            Self::Ip(_) => Kind::Ip,
            Self::ServiceExport(_) => Kind::ServiceExport,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
            Self::Cluster(_) => Kind::Cluster,
            Self::Finding(_) => Kind::Problem,
        }
    }

    /// Returns the node, if the object is one.
    #[must_use]
    pub const fn as_node(&self) -> Option<&Node> {
        if let Self::Node(object) = self { Some(object) } else { None }
    }

    /// Returns the service, if the object is one.
    #[must_use]
    pub const fn as_service(&self) -> Option<&Service> {
        if let Self::Service(object) = self { Some(object) } else { None }
    }

    /// Returns the identity, if the object is one.
    #[must_use]
    pub const fn as_identity(&self) -> Option<&Identity> {
        if let Self::Identity(object) = self { Some(object) } else { None }
    }

    /// Returns the ipcache entry, if the object is one.
    #[must_use]
    pub const fn as_ip(&self) -> Option<&IpEntry> {
        if let Self::Ip(object) = self { Some(object) } else { None }
    }

    /// Returns the service export, if the object is one.
    #[must_use]
    pub const fn as_service_export(&self) -> Option<&ServiceExport> {
        if let Self::ServiceExport(object) = self { Some(object) } else { None }
    }

    /// Returns the endpoint slice, if the object is one.
    #[must_use]
    pub const fn as_endpoint_slice(&self) -> Option<&PackedSlice> {
        if let Self::EndpointSlice(object) = self { Some(object) } else { None }
    }

    /// Returns the cluster's state, if the object is a cluster.
    #[must_use]
    pub const fn as_cluster(&self) -> Option<&ClusterPhase> {
        if let Self::Cluster(object) = self { Some(object) } else { None }
    }

    /// Returns the finding, if the object is one.
    #[must_use]
    pub fn as_finding(&self) -> Option<&FindingObject> {
        if let Self::Finding(object) = self { Some(object) } else { None }
    }
}

/// A node, from Cilium's `pkg/node/types/node.go`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// Name within the cluster.
    pub name: String,
    /// Cluster id that the node claims.
    pub cluster_id: u32,
    /// Addresses in the order of the source.
    pub addresses: Vec<NodeAddress>,
    /// First IPv4 pod CIDR.
    pub ipv4_pod_cidr: Option<IpNet>,
    /// First IPv6 pod CIDR.
    pub ipv6_pod_cidr: Option<IpNet>,
    /// Further pod CIDRs, IPv4 first.
    pub secondary_pod_cidrs: Vec<IpNet>,
    /// Addresses of the node's health endpoint.
    pub health_ips: Vec<IpAddr>,
    /// Addresses of the node's ingress.
    pub ingress_ips: Vec<IpAddr>,
    /// IPsec key index; 0 is none.
    pub encryption_key: u8,
    /// WireGuard public key; empty if there is none.
    pub wireguard_public_key: String,
    /// Kubernetes labels of the node.
    pub labels: LabelSet,
    /// Kubernetes annotations of the node.
    pub annotations: LabelSet,
    /// Id of the current boot; empty if not given.
    pub boot_id: String,
}

impl Node {
    /// Returns all pod CIDRs, the first of each family first, with the bits after their lengths
    /// cleared.
    pub fn pod_cidrs(&self) -> impl Iterator<Item = IpNet> {
        self.ipv4_pod_cidr.iter().chain(&self.ipv6_pod_cidr).chain(&self.secondary_pod_cidrs).map(IpNet::trunc)
    }

    /// Returns the maximum number of ipcache entries that are derived from the node: one for each
    /// address and pod CIDR. Duplicates reduce the number.
    #[must_use]
    pub fn entry_count_max(&self) -> usize {
        self.addresses.len() + self.pod_cidrs().count() + self.health_ips.len() + self.ingress_ips.len()
    }
}

/// One address of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `CiliumInternalIP` or another type, as in the source.
    pub address_type: String,
    /// The address. IPv4-mapped addresses are unmapped.
    pub ip: IpAddr,
}

/// A global service as one cluster announces it (Cilium's `pkg/clustermesh/store/store.go`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Kubernetes name.
    pub name: String,
    /// Cluster id that the service claims.
    pub cluster_id: u32,
    /// Cluster IPs and other frontend addresses, ordered by address.
    pub frontends: Vec<Frontend>,
    /// Pods that serve it, ordered by address.
    pub backends: Vec<Backend>,
    /// Kubernetes labels.
    pub labels: LabelSet,
    /// Selector of the service's pods.
    pub selector: LabelSet,
    /// Whether other clusters may use its backends.
    pub shared: bool,
    /// Whether the service uses backends of other clusters.
    pub include_external: bool,
}

/// An address that a service listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    /// Address of the frontend.
    pub ip: IpAddr,
    /// Ports, ordered by name.
    pub ports: Arc<[Port]>,
}

/// A pod that serves a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// The pod's address.
    pub ip: IpAddr,
    /// Ports, ordered by name. Equal lists of a service are shared: it may have thousands of
    /// backends but only a handful of different lists.
    pub ports: Arc<[Port]>,
    /// Hostname of a headless service's pod; empty if there is none.
    pub hostname: String,
    /// Zone of the backend, if known.
    pub zone: Option<BackendZone>,
}

/// Zone of a backend and its topology hints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendZone {
    /// Zone in which the backend runs.
    pub zone: String,
    /// Topology hints: zones that should use the backend.
    pub for_zones: Vec<String>,
}

/// Named port; the name may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Name within the service.
    pub name: String,
    /// `TCP`, `UDP`, `SCTP` …, as in the source.
    pub protocol: String,
    /// 0 to 65,535.
    pub port: u16,
}

/// A numeric identity and its labels, from Cilium's `pkg/identity`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Number of the identity.
    pub id: u32,
    /// Map from `source:key` (for instance `k8s:app`) to value.
    pub labels: IdentityLabels,
}

/// An address or prefix and its identity, from Cilium's `pkg/identity/identity.go`
/// (`IPIdentityPair`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpEntry {
    /// Address or prefix of the entry.
    pub prefix: ObjectPrefix,
    /// Identity, after the rewrite of a remote's host (1) to remote-node (6).
    pub identity: u32,
    /// Address of the node that hosts it, if known.
    pub host_ip: Option<IpAddr>,
    /// IPsec key index; 0 is none.
    pub encryption_key: u8,
    /// Kubernetes namespace; empty if there is none.
    pub namespace: String,
    /// Kubernetes pod; empty if there is none.
    pub pod_name: String,
    /// The pod's UID; empty if not given.
    pub pod_uid: String,
    /// The pod's service account; empty if not given.
    pub service_account: String,
    /// Named ports, in the order of the source.
    pub named_ports: Vec<NamedPort>,
}

impl IpEntry {
    /// Creates an entry with only a prefix and an identity.
    #[must_use]
    pub const fn new(prefix: ObjectPrefix, identity: u32) -> Self {
        Self {
            prefix,
            identity,
            host_ip: None,
            encryption_key: 0,
            namespace: String::new(),
            pod_name: String::new(),
            pod_uid: String::new(),
            service_account: String::new(),
            named_ports: Vec::new(),
        }
    }
}

/// Address or CIDR of an ipcache entry. A host and a CIDR of full length are two different entries
/// (docs/develop/protocol.md §4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectPrefix {
    /// The prefix, of full length for a host.
    pub net: IpNet,
    /// True for a host entry, false for a CIDR, even one of full length.
    pub host: bool,
}

/// Named port of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPort {
    /// Name in the pod's specification.
    pub name: String,
    /// 0 to 65,535.
    pub port: u16,
    /// `TCP`, `UDP`, `SCTP` …, as in the source.
    pub protocol: String,
}
