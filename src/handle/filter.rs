//! Which objects a list or a stream is about. Every test looks at the object and its key alone.

use std::net::IpAddr;

use ipnet::IpNet;

use super::LabelSelector;
use crate::model::{ClusterName, EntryKey, IdentityScope, IpEntry, Kind, Object};

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
    /// The scope of an identity (docs/api.md), as its name.
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

impl Filter {
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
            Object::ServiceExport(export) => self.matches_export(|labels| labels.matches(&export.labels)),
            Object::EndpointSlice(slice) => self.matches_export(|labels| labels.matches(&slice.decoded().labels)),
            Object::Identity(identity) => {
                self.namespace.is_none()
                    && self.name.is_none()
                    && self.ip.is_none()
                    && self.is_not_about_services()
                    && self.is_not_about_ips()
                    && self.labels.as_ref().is_none_or(|labels| labels.matches_sourced(&identity.labels))
                    && self.scope.is_none_or(|scope| scope == IdentityScope::of(identity.id))
            }
            // its key is all that there is to ask for
            Object::Cluster(_) => true,
            Object::Finding(finding) => self.clusters.is_empty() || finding.clusters.iter().any(|name| self.names_cluster(name)),
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
            Kind::Identity | Kind::Ip | Kind::NodeIp => true,
            Kind::Cluster | Kind::Problem => self.is_only_about_clusters(),
            Kind::Notice => false,
        };
        let by_kind = if self.kinds.is_empty() {
            !matches!(key.kind, Kind::Problem | Kind::Notice)
        } else {
            self.kinds.contains(&key.kind.listed_as())
        };
        // of several clusters the object alone knows which
        by_kind && (self.clusters.is_empty() || key.cluster.is_none() || self.clusters.contains(&key.cluster)) && by_name
    }

    /// Whether what looks wrong is asked for, which is told only then.
    #[must_use]
    pub fn asks_for_problems(&self) -> bool {
        self.kinds.contains(&Kind::Problem)
    }

    fn names_cluster(&self, name: &str) -> bool {
        self.clusters.iter().any(|cluster| cluster.as_str() == name)
    }

    /// Nothing but kinds and clusters are asked for: a cluster has nothing else.
    fn is_only_about_clusters(&self) -> bool {
        self.namespace.is_none()
            && self.name.is_none()
            && self.labels.is_none()
            && self.ip.is_none()
            && self.scope.is_none()
            && self.is_not_about_services()
            && self.is_not_about_ips()
    }

    /// Whether an export or an endpoint slice passes, whose labels are asked last: those of a slice have to be decoded.
    fn matches_export(&self, has_labels: impl Fn(&LabelSelector) -> bool) -> bool {
        self.is_not_about_ips()
            && self.is_not_about_services()
            && self.scope.is_none()
            && self.ip.is_none()
            && self.labels.as_ref().is_none_or(has_labels)
    }

    fn is_not_about_services(&self) -> bool {
        self.shared.is_none()
    }

    fn is_not_about_ips(&self) -> bool {
        self.cidr.is_none() && self.identity.is_none() && self.hosts.is_none() && self.pod.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So that a cluster that went is not told to readers which were never told of it.
    #[test]
    fn a_cluster_s_key_says_whether_it_can_match() {
        let key = EntryKey::of_cluster(ClusterName::parse("paris").unwrap());
        let of = |namespace: Option<&str>, clusters: &[&str]| Filter {
            namespace: namespace.map(str::to_owned),
            clusters: clusters.iter().map(|name| ClusterName::parse(name).unwrap()).collect(),
            ..Filter::default()
        };
        let filters = [of(None, &[]), of(None, &["paris"]), of(None, &["tokyo"]), of(Some("shop"), &[])];
        assert_eq!(filters.map(|filter| filter.may_match(&key)), [true, true, false, false]);
    }
}
