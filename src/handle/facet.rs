//! What a change must have before a filter can be interested in it, as something to look up by.
//!
//! With a thousand different filters a change must not be held against each. A filter names the facets of which one must be there
//! ([`Filter::facets`]); a change has some ([`facets_of`]). Filters that share none with a change have nothing to be told of it. A facet
//! only excludes: [`Filter::matches`] decides.

use std::net::IpAddr;

use ipnet::IpNet;

use super::Filter;
use crate::model::{Announcement, ClusterName, EntryKey, Kind, Object};

/// One thing that a change can have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Facet {
    /// Every change has it.
    Any,
    /// It is of this kind, as lists know it.
    Kind(Kind),
    /// It is of this cluster.
    Cluster(ClusterName),
    /// A service or the pod of an ip entry is in this namespace.
    Namespace(String),
    /// A node or service has this name.
    Name(String),
    /// An ip entry is of the pod of this name.
    Pod(String),
    /// An ip entry has this identity.
    Identity(u32),
    /// An ip entry is behind this host.
    Host(IpAddr),
    /// An ip entry has exactly this prefix.
    Prefix(IpNet),
}

impl Filter {
    /// The filter in its one canonical form: what `kind=a&kind=b` and `kind=b&kind=a` have in common.
    #[must_use]
    pub(crate) fn canonical(mut self) -> Self {
        self.kinds.sort_unstable();
        self.kinds.dedup();
        self.clusters.sort_unstable();
        self.clusters.dedup();
        self
    }

    /// The facets of which a change must have one to be of interest: of the narrowest test that can be looked up.
    pub(crate) fn facets(&self) -> Vec<Facet> {
        let full_length = |cidr: &&IpNet| cidr.prefix_len() == cidr.max_prefix_len();
        if let Some(pod) = &self.pod {
            vec![Facet::Pod(pod.clone())]
        } else if let Some(prefix) = self.cidr.as_ref().filter(full_length) {
            vec![Facet::Prefix(*prefix)]
        } else if let Some(identity) = self.identity {
            vec![Facet::Identity(identity)]
        } else if let Some(hosts) = &self.hosts {
            let mut hosts: Vec<IpAddr> = hosts.iter().map(|(_, ip)| *ip).collect();
            hosts.sort_unstable();
            hosts.dedup();
            hosts.into_iter().map(Facet::Host).collect()
        } else if let Some(name) = &self.name {
            vec![Facet::Name(name.clone())]
        } else if let Some(namespace) = &self.namespace {
            vec![Facet::Namespace(namespace.clone())]
        } else if !self.clusters.is_empty() {
            self.clusters.iter().cloned().map(Facet::Cluster).collect()
        } else if !self.kinds.is_empty() {
            self.kinds.iter().copied().map(Facet::Kind).collect()
        } else {
            vec![Facet::Any]
        }
    }
}

/// Every facet of a change, of what the key held before and holds now. One may come twice.
pub(crate) fn facets_of(announcement: &Announcement, mut visit: impl FnMut(&Facet)) {
    let key = &announcement.key;
    visit(&Facet::Any);
    visit(&Facet::Kind(key.kind.listed_as()));
    visit(&Facet::Cluster(key.cluster.clone()));
    for object in announcement.old_object().into_iter().chain(announcement.new_object()) {
        facets_of_object(key, &object, &mut visit);
    }
}

/// Whether a change may interest any filter, whatever its facets: [`Filter::may_match`] lets a service pass whose key has no namespace.
pub(crate) fn concerns_all(announcement: &Announcement) -> bool {
    announcement.key.kind.is_namespaced() && !announcement.key.name.contains('/')
}

fn facets_of_object(key: &EntryKey, object: &Object, visit: &mut impl FnMut(&Facet)) {
    match object {
        Object::Node(_) => visit(&Facet::Name(key.name.to_string())),
        Object::Service(_) | Object::ServiceExport(_) | Object::EndpointSlice(_) => {
            // as in Filter::may_match, by the key
            if let Some((namespace, name)) = key.name.split_once('/') {
                visit(&Facet::Namespace(namespace.to_owned()));
                visit(&Facet::Name(name.to_owned()));
            }
        }
        // its key names no cluster where there are several
        Object::Finding(finding) => {
            finding.clusters.iter().filter_map(|name| ClusterName::parse(name).ok()).for_each(|name| visit(&Facet::Cluster(name)));
        }
        Object::Ip(entry) => {
            visit(&Facet::Namespace(entry.namespace.clone()));
            visit(&Facet::Pod(entry.pod_name.clone()));
            visit(&Facet::Identity(entry.identity));
            visit(&Facet::Prefix(entry.prefix.net));
            if let Some(host) = entry.host_ip {
                visit(&Facet::Host(host));
            }
        }
        // named one by one: what has no facet here is told to no filter that asks for one
        Object::Identity(_) | Object::Cluster(_) => {}
    }
}

#[cfg(test)]
mod tests;
