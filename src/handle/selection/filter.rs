//! Filters for lists and streams. Each test uses only an object and its key.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::handle::{LabelSelector, SearchText};
use crate::model::{ClusterName, EntryKey, IdentityScope, IpEntry, Kind, Object};
use crate::view::{FieldTest, RowField, RowFilter, TextTest};

/// A filter whose tests must all pass. A test that does not apply to a kind, such as a pod for
/// nodes, excludes that kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Filter {
    /// Kinds that match; all if empty.
    pub kinds: Vec<Kind>,
    /// Clusters that match; all if empty.
    pub clusters: Vec<ClusterName>,
    /// Kubernetes namespace of services, service exports, endpoint slices and pods of ipcache
    /// entries.
    pub namespace: Option<String>,
    /// Name of nodes, services, service exports and endpoint slices.
    pub name: Option<String>,
    /// Labels of all kinds except for ipcache entries.
    pub labels: Option<LabelSelector>,
    /// Shared or unshared services.
    pub shared: Option<bool>,
    /// Address of a node.
    pub ip: Option<IpAddr>,
    /// Scope of an identity (docs/use/api/objects.md).
    pub scope: Option<IdentityScope>,
    /// CIDR that contains an ipcache entry.
    pub cidr: Option<IpNet>,
    /// Identity of an ipcache entry.
    pub identity: Option<u32>,
    /// Host addresses of the ipcache entries that match, each in its cluster. `None` matches any
    /// host.
    pub hosts: Option<Vec<(Option<ClusterName>, IpAddr)>>,
    /// Pod of an ipcache entry.
    pub pod: Option<String>,
    /// Text in a name, a pod, a label of an identity, or at the beginning of an address.
    pub search: Option<SearchText>,
}

impl Filter {
    /// Returns for each test whether it is set, and the kinds that it applies to.
    fn tests(&self) -> [(bool, &'static [Kind]); 11] {
        use Kind::{EndpointSlice, Identity, Ip, Node, Service, ServiceExport};
        [
            (self.namespace.is_some(), &[EndpointSlice, Ip, ServiceExport, Service]),
            (self.name.is_some(), &[EndpointSlice, Node, ServiceExport, Service]),
            (self.labels.is_some(), &[EndpointSlice, Identity, Node, ServiceExport, Service]),
            (self.shared.is_some(), &[Service]),
            (self.ip.is_some(), &[Node]),
            (self.scope.is_some(), &[Identity]),
            (self.cidr.is_some(), &[Ip]),
            (self.identity.is_some(), &[Ip]),
            (self.hosts.is_some(), &[Ip]),
            (self.pod.is_some(), &[Ip]),
            (self.search.is_some(), &[EndpointSlice, Identity, Ip, Node, ServiceExport, Service]),
        ]
    }

    /// Returns whether objects of a kind can match: the kind is wanted, and each test that is set
    /// applies to it. Findings match only if their kind is named, and notices never.
    fn may_match_kind(&self, kind: Kind) -> bool {
        let kind = kind.listed_as();
        let is_wanted = if self.kinds.is_empty() { kind != Kind::Problem } else { self.kinds.contains(&kind) };
        kind != Kind::Notice && is_wanted && self.tests().iter().all(|(is_set, kinds)| !is_set || kinds.contains(&kind))
    }

    /// Returns whether an object matches.
    #[must_use]
    pub fn matches(&self, key: &EntryKey, object: &Object) -> bool {
        if !self.may_match(key) || self.search.as_ref().is_some_and(|search| !search.matches(key, object)) {
            return false;
        }
        let labels = |matches: &dyn Fn(&LabelSelector) -> bool| self.labels.as_ref().is_none_or(matches);
        match object {
            Object::Node(node) => {
                labels(&|labels| labels.matches(&node.labels))
                    && self.ip.is_none_or(|ip| node.addresses.iter().any(|address| address.ip == ip))
            }
            Object::Service(service) => {
                labels(&|labels| labels.matches(&service.labels)) && self.shared.is_none_or(|shared| shared == service.shared)
            }
            Object::ServiceExport(export) => labels(&|labels| labels.matches(&export.labels)),
            Object::EndpointSlice(slice) => labels(&|labels| labels.matches(&slice.decoded().labels)),
            Object::Identity(identity) => {
                labels(&|labels| labels.matches_sourced(&identity.labels))
                    && self.scope.is_none_or(|scope| scope == IdentityScope::of(identity.id))
            }
            Object::Ip(entry) => self.matches_ip(key, entry),
            // a cluster has only its key to compare
            Object::Cluster(_) => true,
            Object::Finding(finding) => self.clusters.is_empty() || finding.clusters.iter().any(|name| self.names_cluster(name)),
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

    /// Returns a filter for packed rows that accepts every row with a matching object. `None` if it
    /// would accept all rows.
    pub(in crate::handle) fn row_filter(&self) -> Option<RowFilter> {
        let is_usable = |text: &String| !text.is_empty() && !text.contains(char::REPLACEMENT_CHARACTER);
        let equals = |field: RowField, text: &Option<String>| {
            let text = text.clone().filter(is_usable)?;
            Some(FieldTest { fields: vec![field], test: TextTest::Equals(vec![text]) })
        };
        let ip = || {
            let hosts = self.hosts.as_ref().map(|hosts| hosts.iter().map(|(_, ip)| *ip).collect());
            let host = hosts.map(|hosts| FieldTest { fields: vec![RowField::HostIp], test: TextTest::IsAddress(hosts) });
            let tests = [equals(RowField::Pod, &self.pod), equals(RowField::Namespace, &self.namespace), host];
            tests.into_iter().flatten().collect::<Vec<_>>()
        };
        let labels = |has_sources: bool| self.labels.as_ref().map_or_else(Vec::new, |labels| labels.row_tests(has_sources));
        let tests = |kind: Kind| {
            let fields = if kind == Kind::Ip { ip() } else { labels(kind == Kind::Identity) };
            fields.into_iter().chain(self.search.iter().flat_map(|search| search.row_tests(kind))).collect()
        };
        let kinds = Kind::STREAMED.into_iter().filter(|kind| self.may_match_kind(*kind));
        let tests = kinds.map(|kind| (kind, tests(kind))).collect();
        let is_set = !self.kinds.is_empty() || self.tests().iter().any(|(is_set, _)| *is_set);
        is_set.then_some(RowFilter(tests))
    }

    /// Returns false if the parts of the key (kind, cluster, namespace, name) exclude every object.
    #[must_use]
    pub fn may_match(&self, key: &EntryKey) -> bool {
        let part = |wanted: &Option<String>, actual: &str| wanted.as_ref().is_none_or(|wanted| wanted == actual);
        let by_name = || match key.kind {
            Kind::Node => part(&self.name, &key.name),
            kind if kind.is_namespaced() => {
                key.name.split_once('/').is_none_or(|(namespace, name)| part(&self.namespace, namespace) && part(&self.name, name))
            }
            _ => true,
        };
        // the key of a finding about several clusters does not name them, but its object does
        let by_cluster = self.clusters.is_empty() || key.cluster.is_none() || self.clusters.contains(&key.cluster);
        by_cluster && self.may_match_kind(key.kind) && by_name() && self.search.as_ref().is_none_or(|search| search.may_match(key))
    }

    /// Returns whether the filter names the kind of findings. Otherwise, no finding matches.
    #[must_use]
    pub fn asks_for_problems(&self) -> bool {
        self.kinds.contains(&Kind::Problem)
    }

    fn names_cluster(&self, name: &str) -> bool {
        self.clusters.iter().any(|cluster| cluster.as_str() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a removed cluster would be reported to subscribers that have never seen it.
    #[test]
    fn the_key_of_a_cluster_decides_if_it_can_match() {
        let key = EntryKey::of_cluster(ClusterName::parse("paris").unwrap());
        let filter_for = |namespace: Option<&str>, clusters: &[&str]| Filter {
            namespace: namespace.map(str::to_owned),
            clusters: clusters.iter().map(|name| ClusterName::parse(name).unwrap()).collect(),
            ..Filter::default()
        };
        let filters = [filter_for(None, &[]), filter_for(None, &["paris"]), filter_for(None, &["tokyo"]), filter_for(Some("shop"), &[])];
        assert_eq!(filters.map(|filter| filter.may_match(&key)), [true, true, false, false]);
    }

    /// A test that does not apply to a kind excludes it, including deletes of its keys.
    #[test]
    fn a_filter_matches_only_the_kinds_that_its_tests_apply_to() {
        use Kind::{Cluster, EndpointSlice, Identity, Ip, Node, NodeIp, Notice, Problem, Service, ServiceExport};
        let about = |filter: Filter| {
            let kinds = [EndpointSlice, Identity, Ip, NodeIp, Node, ServiceExport, Service, Cluster, Problem, Notice];
            kinds.into_iter().filter(|kind| filter.may_match_kind(*kind)).collect::<Vec<_>>()
        };
        let all = [EndpointSlice, Identity, Ip, NodeIp, Node, ServiceExport, Service, Cluster];
        assert_eq!(about(Filter::default()), all);
        assert_eq!(about(Filter { kinds: vec![Problem, Ip], ..Filter::default() }), [Ip, NodeIp, Problem]);
        let name = || Some("shop".to_owned());
        assert_eq!(about(Filter { name: name(), ..Filter::default() }), [EndpointSlice, Node, ServiceExport, Service]);
        assert_eq!(about(Filter { namespace: name(), ..Filter::default() }), [EndpointSlice, Ip, NodeIp, ServiceExport, Service]);
        assert_eq!(about(Filter { shared: Some(true), ..Filter::default() }), [Service]);
        assert_eq!(about(Filter { pod: name(), name: name(), ..Filter::default() }), []);
    }
}
