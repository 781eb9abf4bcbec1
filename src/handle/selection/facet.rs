//! Facets: properties of changes by which interested filters are looked up.
//!
//! With a thousand different filters, each change must not be compared with each filter. A filter
//! names facets of which a change must have at least one ([`Filter::facets`]), and [`facets_of`]
//! lists those of a change. A filter that shares no facet with a change cannot match it. If it
//! shares one, [`Filter::matches`] decides.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::feed::Announcement;
use crate::handle::Filter;
use crate::model::{ClusterName, EntryKey, Kind, Object};

/// Property of a change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Facet {
    /// Every change has this facet.
    Any,
    /// Kind of the change, as in lists.
    Kind(Kind),
    /// Cluster of the change.
    Cluster(ClusterName),
    /// Namespace of a service, or of the pod of an ipcache entry.
    Namespace(String),
    /// Name of a node or service.
    Name(String),
    /// Name of the pod of an ipcache entry.
    Pod(String),
    /// Identity of an ipcache entry.
    Identity(u32),
    /// Host of an ipcache entry.
    Host(IpAddr),
    /// Prefix of an ipcache entry.
    Prefix(IpNet),
}

impl Filter {
    /// Returns the filter in canonical form, so that `kind=a&kind=b` equals `kind=b&kind=a`.
    #[must_use]
    pub(crate) fn canonical(mut self) -> Self {
        self.kinds.sort_unstable();
        self.kinds.dedup();
        self.clusters.sort_unstable();
        self.clusters.dedup();
        self
    }

    /// Returns the facets of the narrowest test that can be looked up. A change must have one of
    /// them to match.
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

/// Calls `visit` with every facet of a change, from its old and its new object. A facet may come
/// twice.
pub(crate) fn facets_of(announcement: &Announcement, mut visit: impl FnMut(&Facet)) {
    let key = &announcement.key;
    visit(&Facet::Any);
    visit(&Facet::Kind(key.kind.listed_as()));
    visit(&Facet::Cluster(key.cluster.clone()));
    for object in announcement.old_object().into_iter().chain(announcement.new_object()) {
        facets_of_object(key, &object, &mut visit);
    }
}

/// Returns whether a change may match any filter, whatever its facets: [`Filter::may_match`]
/// accepts a service key without a namespace.
pub(crate) fn concerns_all(announcement: &Announcement) -> bool {
    announcement.key.kind.is_namespaced() && !announcement.key.name.contains('/')
}

fn facets_of_object(key: &EntryKey, object: &Object, visit: &mut impl FnMut(&Facet)) {
    match object {
        Object::Node(_) => visit(&Facet::Name(key.name.to_string())),
        Object::Service(_) | Object::ServiceExport(_) | Object::EndpointSlice(_) => {
            // by the key, as in `Filter::may_match`
            if let Some((namespace, name)) = key.name.split_once('/') {
                visit(&Facet::Namespace(namespace.to_owned()));
                visit(&Facet::Name(name.to_owned()));
            }
        }
        // the key of a finding about several clusters names none of them
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
        // listed explicitly: a kind without facets here never matches a filter that looks up one of
        // them
        Object::Identity(_) | Object::Cluster(_) => {}
    }
}

#[cfg(test)]
mod tests;
