//! What a key holds once it is understood: a node, a service, an identity or an ipcache entry.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use smol_str::SmolStr;

use crate::model::{EntryKey, IdentityLabels, PackedSlice, Phase, ServiceExport, ToldFinding};

/// Labels or annotations by name.
pub type LabelSet = BTreeMap<String, String>;

/// The label that says which cluster an identity belongs to (`PolicyLabelCluster` of `pkg/k8s/apis/cilium.io`).
pub const CLUSTER_LABEL: &str = "k8s:io.cilium.k8s.policy.cluster";

/// A decoded and validated value.
///
/// There are a thousand entries for each node, so what is large and rare is boxed: it would make each of them half as large again.
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
    /// From `endpointslices/v1`; as it came.
    EndpointSlice(PackedSlice),
    /// Made here: a cluster and where it is in its life.
    Cluster(ClusterPhase),
    /// Made here: something that looks wrong.
    Finding(Box<ToldFinding>),
}

/// What the change stream tells of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClusterPhase {
    /// Where it is; `None` where it is known from the store alone.
    pub phase: Option<Phase>,
    /// A number of why it is there, where it waits after a failure or for files: another one is another cause, and 0 is none.
    pub cause: u64,
}

impl ObjectPrefix {
    /// That of a host.
    #[must_use]
    pub fn of_host(ip: impl Into<IpAddr>) -> Self {
        Self { net: ip.into().into(), host: true }
    }

    /// Reads what keys have: an address is a host, one with a length a CIDR, of which the bits behind the length are cleared.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.contains('/') {
            return Some(Self { net: text.parse::<IpNet>().ok()?.trunc(), host: false });
        }
        text.parse::<IpAddr>().ok().map(Self::of_host)
    }
}

impl fmt::Display for ObjectPrefix {
    /// As Cilium's keys have it: a host is an address alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host { self.net.addr().fmt(f) } else { self.net.fmt(f) }
    }
}

impl Object {
    /// The global service, as `<namespace>/<name>`, that its key has a share in. A service that is not shared has none
    /// (`NewSharedServicesObserver`, Cilium's `pkg/clustermesh/common/services.go`), nor has a slice that names no service
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

    /// The kind of key that holds such an object.
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

    /// The node, if it is one.
    #[must_use]
    pub const fn as_node(&self) -> Option<&Node> {
        if let Self::Node(object) = self { Some(object) } else { None }
    }

    /// The service, if it is one.
    #[must_use]
    pub const fn as_service(&self) -> Option<&Service> {
        if let Self::Service(object) = self { Some(object) } else { None }
    }

    /// The identity, if it is one.
    #[must_use]
    pub const fn as_identity(&self) -> Option<&Identity> {
        if let Self::Identity(object) = self { Some(object) } else { None }
    }

    /// The ipcache entry, if it is one.
    #[must_use]
    pub const fn as_ip(&self) -> Option<&IpEntry> {
        if let Self::Ip(object) = self { Some(object) } else { None }
    }

    /// The service export, if it is one.
    #[must_use]
    pub const fn as_service_export(&self) -> Option<&ServiceExport> {
        if let Self::ServiceExport(object) = self { Some(object) } else { None }
    }

    /// The endpoint slice, if it is one.
    #[must_use]
    pub const fn as_endpoint_slice(&self) -> Option<&PackedSlice> {
        if let Self::EndpointSlice(object) = self { Some(object) } else { None }
    }

    /// The cluster, if it is one.
    #[must_use]
    pub const fn as_cluster(&self) -> Option<&ClusterPhase> {
        if let Self::Cluster(object) = self { Some(object) } else { None }
    }

    /// The finding, if it is one.
    #[must_use]
    pub fn as_finding(&self) -> Option<&ToldFinding> {
        if let Self::Finding(object) = self { Some(object) } else { None }
    }
}

/// A node, from Cilium's `pkg/node/types/node.go`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// Its name within the cluster.
    pub name: String,
    /// The id that the node claims for its cluster.
    pub cluster_id: u32,
    /// Addresses in the order of the source.
    pub addresses: Vec<NodeAddress>,
    /// The first IPv4 range that its pods get addresses from.
    pub ipv4_pod_cidr: Option<IpNet>,
    /// The first IPv6 range that its pods get addresses from.
    pub ipv6_pod_cidr: Option<IpNet>,
    /// Further ranges, IPv4 first.
    pub secondary_pod_cidrs: Vec<IpNet>,
    /// Addresses of its health endpoint.
    pub health_ips: Vec<IpAddr>,
    /// Addresses of its ingress.
    pub ingress_ips: Vec<IpAddr>,
    /// IPsec key index; 0 is none.
    pub encryption_key: u8,
    /// Its WireGuard public key; empty if there is none.
    pub wireguard_public_key: String,
    /// Kubernetes labels of the node.
    pub labels: LabelSet,
    /// Kubernetes annotations of the node.
    pub annotations: LabelSet,
    /// Changes with every boot; empty if not given.
    pub boot_id: String,
}

impl Node {
    /// The ranges that its pods get addresses from, the first ones first, without bits behind their lengths.
    pub fn pod_cidrs(&self) -> impl Iterator<Item = IpNet> {
        self.ipv4_pod_cidr.iter().chain(&self.ipv6_pod_cidr).chain(&self.secondary_pod_cidrs).map(IpNet::trunc)
    }

    /// How many ipcache entries are made of it at most, one for each of its addresses and pod CIDRs: fewer where some are the same.
    #[must_use]
    pub fn entry_count_max(&self) -> usize {
        self.addresses.len() + self.pod_cidrs().count() + self.health_ips.len() + self.ingress_ips.len()
    }
}

/// One address of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `CiliumInternalIP` and others, as the source says.
    pub address_type: String,
    /// The address, IPv4-mapped ones unmapped.
    pub ip: IpAddr,
}

/// A service as one cluster exports it, from Cilium's `pkg/clustermesh/store/store.go`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Kubernetes name.
    pub name: String,
    /// The id that the service claims for its cluster.
    pub cluster_id: u32,
    /// Its own addresses, ordered by address.
    pub frontends: Vec<Frontend>,
    /// The pods behind it, ordered by address.
    pub backends: Vec<Backend>,
    /// Kubernetes labels.
    pub labels: LabelSet,
    /// The selector that picks its pods.
    pub selector: LabelSet,
    /// Whether other clusters may use its backends.
    pub shared: bool,
    /// Whether it uses other clusters' backends.
    pub include_external: bool,
}

/// An address that a service listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    /// The address.
    pub ip: IpAddr,
    /// Ports, ordered by name.
    pub ports: Arc<[Port]>,
}

/// A pod behind a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// The pod's address.
    pub ip: IpAddr,
    /// Ports, ordered by name. Equal ones of a service are shared: it has thousands of backends and a handful of lists.
    pub ports: Arc<[Port]>,
    /// The hostname of a headless service's pod; empty if there is none.
    pub hostname: String,
    /// Where it runs, where known.
    pub zone: Option<BackendZone>,
}

/// The zone of a backend and the zones that it is hinted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendZone {
    /// Where the backend runs.
    pub zone: String,
    /// Topology hints: the zones that should use it.
    pub for_zones: Vec<String>,
}

/// A named port; the name may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its name within the service.
    pub name: String,
    /// `TCP`, `UDP`, `SCTP` …, as the source says.
    pub protocol: String,
    /// 0 to 65,535.
    pub port: u16,
}

/// A numeric identity and its labels, from Cilium's `pkg/identity`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The numeric identity.
    pub id: u32,
    /// `source:key` (for instance `k8s:app`) to value.
    pub labels: IdentityLabels,
}

/// An address or prefix and what is behind it, from Cilium's `pkg/identity/identity.go` (`IPIdentityPair`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpEntry {
    /// The address or prefix.
    pub prefix: ObjectPrefix,
    /// The identity, after the rewrite of a remote's host (1) to remote-node (6).
    pub identity: u32,
    /// The node that hosts it, where known.
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
    /// Ports that have names, in the order of the source.
    pub named_ports: Vec<NamedPort>,
}

impl IpEntry {
    /// An entry of which nothing else is known.
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

/// What an ipcache entry stands for: a host and a CIDR of full length are two different entries (docs/develop/protocol.md §4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectPrefix {
    /// The prefix; for a host one of full length.
    pub net: IpNet,
    /// True for a host entry, false for a CIDR, also one of full length.
    pub host: bool,
}

/// A port of a pod that has a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPort {
    /// The name in the pod's specification.
    pub name: String,
    /// 0 to 65,535.
    pub port: u16,
    /// `TCP`, `UDP`, `SCTP` …, as the source says.
    pub protocol: String,
}
