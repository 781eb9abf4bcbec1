//! Which objects a list or a stream is about. Every test looks at the object and its key alone.

use std::net::IpAddr;

use ipnet::IpNet;

use super::LabelSelector;
use crate::model::{ClusterName, EndpointSlice, EntryKey, IpEntry, Kind, Object, ServiceExport};

/// A filter: every test that is set must pass. A test that does not apply to a kind (a pod of a node) excludes that kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Filter {
    /// Any of these kinds; empty is all.
    pub kinds: Vec<Kind>,
    /// Any of these clusters; empty is all.
    pub clusters: Vec<ClusterName>,
    /// The Kubernetes namespace: of services, service exports and endpoint slices, and of the pod behind an ip entry.
    pub namespace: Option<String>,
    /// The name: of nodes, services, service exports and endpoint slices.
    pub name: Option<String>,
    /// Labels: of all but ip entries.
    pub labels: Option<LabelSelector>,
    /// Whether a service is shared.
    pub shared: Option<bool>,
    /// An address of a node.
    pub ip: Option<IpAddr>,
    /// The scope of an identity (api.md), as its name.
    pub scope: Option<IdentityScope>,
    /// A CIDR that an ip entry lies in.
    pub cidr: Option<IpNet>,
    /// The identity of an ip entry.
    pub identity: Option<u32>,
    /// Any of these host addresses of an ip entry, each of its cluster; `None` is no test.
    pub hosts: Option<Vec<(Option<ClusterName>, IpAddr)>>,
    /// The pod behind an ip entry.
    pub pod: Option<String>,
}

/// Where a numeric identity is valid (Cilium's `pkg/identity/numericidentity.go`, top 8 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IdentityScope {
    /// `0x00`: the whole mesh, reserved identities included.
    Global,
    /// `0x01`: one node, for CIDRs.
    Local,
    /// `0x02`: remote nodes.
    RemoteNode,
    /// Anything else.
    Unknown,
}

impl IdentityScope {
    /// The scope of a numeric identity.
    #[must_use]
    pub const fn of(id: u32) -> Self {
        match id >> 24 {
            0 => Self::Global,
            1 => Self::Local,
            2 => Self::RemoteNode,
            _ => Self::Unknown,
        }
    }

    /// The name that the API uses.
    #[must_use]
    pub const fn api_name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Local => "local",
            Self::RemoteNode => "remoteNode",
            Self::Unknown => "unknown",
        }
    }
}

impl Filter {
    /// The identity that ip entries must name, for an index to start from.
    #[must_use]
    pub fn identity(&self) -> Option<u32> {
        self.identity
    }

    /// Whether an object passes.
    #[must_use]
    pub fn matches(&self, key: &EntryKey, object: &Object) -> bool {
        if !self.may_match(key) {
            return false;
        }
        match object {
            Object::Node(node) => {
                self.namespace.is_none()
                    && self.is_not_about_services()
                    && self.is_not_about_ips()
                    && self.scope.is_none()
                    && self.labels.as_ref().is_none_or(|labels| labels.matches(&node.labels))
                    && self.ip.is_none_or(|ip| node.addresses.iter().any(|address| address.ip == ip))
            }
            Object::Service(service) => {
                self.is_not_about_ips()
                    && self.scope.is_none()
                    && self.ip.is_none()
                    && self.labels.as_ref().is_none_or(|labels| labels.matches(&service.labels))
                    && self.shared.is_none_or(|shared| shared == service.shared)
            }
            Object::ServiceExport(ServiceExport { labels, .. }) | Object::EndpointSlice(EndpointSlice { labels, .. }) => {
                self.is_not_about_ips()
                    && self.is_not_about_services()
                    && self.scope.is_none()
                    && self.ip.is_none()
                    && self.labels.as_ref().is_none_or(|selector| selector.matches(labels))
            }
            Object::Identity(identity) => {
                self.namespace.is_none()
                    && self.name.is_none()
                    && self.ip.is_none()
                    && self.is_not_about_services()
                    && self.is_not_about_ips()
                    && self.labels.as_ref().is_none_or(|labels| labels.matches_sourced(&identity.labels))
                    && self.scope.is_none_or(|scope| scope == IdentityScope::of(identity.id))
            }
            Object::Cluster(_) => {
                self.namespace.is_none()
                    && self.name.is_none()
                    && self.labels.is_none()
                    && self.ip.is_none()
                    && self.scope.is_none()
                    && self.is_not_about_services()
                    && self.is_not_about_ips()
            }
            Object::Ip(entry) => {
                self.name.is_none()
                    && self.labels.is_none()
                    && self.ip.is_none()
                    && self.scope.is_none()
                    && self.is_not_about_services()
                    && self.matches_ip(key, entry)
            }
        }
    }

    fn matches_ip(&self, key: &EntryKey, entry: &IpEntry) -> bool {
        let on_host = |hosts: &Vec<(Option<ClusterName>, IpAddr)>| {
            hosts.iter().any(|(cluster, ip)| entry.host_ip == Some(*ip) && cluster.as_ref().is_none_or(|cluster| *cluster == key.cluster))
        };
        self.cidr.is_none_or(|cidr| cidr.contains(&entry.prefix.net))
            && self.identity.is_none_or(|identity| identity == entry.identity)
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == entry.namespace)
            && self.pod.as_ref().is_none_or(|pod| *pod == entry.pod_name)
            && self.hosts.as_ref().is_none_or(on_host)
    }

    /// False where the parts of the key alone (kind, cluster, namespace, name) already exclude everything that it may hold.
    #[must_use]
    pub fn may_match(&self, key: &EntryKey) -> bool {
        let part = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|wanted| wanted == found);
        let by_name = match key.kind {
            Kind::Node => part(&self.name, &key.name),
            Kind::Service | Kind::ServiceExport | Kind::EndpointSlice => {
                key.name.split_once('/').is_none_or(|(namespace, name)| part(&self.namespace, namespace) && part(&self.name, name))
            }
            Kind::Identity | Kind::Ip | Kind::Cluster => true,
        };
        (self.kinds.is_empty() || self.kinds.contains(&key.kind))
            && (self.clusters.is_empty() || self.clusters.contains(&key.cluster))
            && by_name
    }

    fn is_not_about_services(&self) -> bool {
        self.shared.is_none()
    }

    fn is_not_about_ips(&self) -> bool {
        self.cidr.is_none() && self.identity.is_none() && self.hosts.is_none() && self.pod.is_none()
    }
}
