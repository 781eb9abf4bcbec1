//! Filter terms: properties of changes by which matching filters are looked up.
//!
//! With a thousand different filters, comparing each change with each filter would take too long. A
//! filter lists terms of which a change must have at least one ([`Filter::terms`]), and
//! [`filter_terms_of`] lists those of a change. A filter that shares no term with a change cannot
//! match it. If it shares one, [`Filter::matches`] decides.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::feed::Announcement;
use crate::handle::Filter;
use crate::model::{ClusterName, EntryKey, Kind, Object};

/// Property of a change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum FilterTerm {
    /// Every change has this term.
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

    /// Returns the terms of the narrowest test that can be looked up. A change must have one of
    /// them to match.
    pub(crate) fn terms(&self) -> Vec<FilterTerm> {
        let full_length = |cidr: &&IpNet| cidr.prefix_len() == cidr.max_prefix_len();
        if let Some(pod) = &self.pod {
            vec![FilterTerm::Pod(pod.clone())]
        } else if let Some(prefix) = self.cidr.as_ref().filter(full_length) {
            vec![FilterTerm::Prefix(*prefix)]
        } else if let Some(identity) = self.identity {
            vec![FilterTerm::Identity(identity)]
        } else if let Some(hosts) = &self.hosts {
            let mut hosts: Vec<IpAddr> = hosts.iter().map(|(_, ip)| *ip).collect();
            hosts.sort_unstable();
            hosts.dedup();
            hosts.into_iter().map(FilterTerm::Host).collect()
        } else if let Some(name) = &self.name {
            vec![FilterTerm::Name(name.clone())]
        } else if let Some(namespace) = &self.namespace {
            vec![FilterTerm::Namespace(namespace.clone())]
        } else if !self.clusters.is_empty() {
            self.clusters.iter().cloned().map(FilterTerm::Cluster).collect()
        } else if !self.kinds.is_empty() {
            self.kinds.iter().copied().map(FilterTerm::Kind).collect()
        } else {
            vec![FilterTerm::Any]
        }
    }
}

/// Calls `visit` with every term of a change, from its old and its new object. A term may be
/// visited twice.
pub(crate) fn filter_terms_of(announcement: &Announcement, mut visit: impl FnMut(&FilterTerm)) {
    let key = &announcement.key;
    visit(&FilterTerm::Any);
    visit(&FilterTerm::Kind(key.kind.listed_as()));
    visit(&FilterTerm::Cluster(key.cluster.clone()));
    for object in announcement.old_object().into_iter().chain(announcement.new_object()) {
        terms_of_object(key, &object, &mut visit);
    }
}

/// Returns whether a change must be tested with every filter, whatever the terms of the filter:
/// [`Filter::may_match`] accepts a service key without a namespace.
pub(crate) fn may_match_any_filter(announcement: &Announcement) -> bool {
    announcement.key.kind.is_namespaced() && !announcement.key.name.contains('/')
}

fn terms_of_object(key: &EntryKey, object: &Object, visit: &mut impl FnMut(&FilterTerm)) {
    match object {
        Object::Node(_) => visit(&FilterTerm::Name(key.name.to_string())),
        Object::Service(_) | Object::ServiceExport(_) | Object::EndpointSlice(_) => {
            // by the key, as in `Filter::may_match`
            if let Some((namespace, name)) = key.name.split_once('/') {
                visit(&FilterTerm::Namespace(namespace.to_owned()));
                visit(&FilterTerm::Name(name.to_owned()));
            }
        }
        // the key of a finding about several clusters names none of them
        Object::Finding(finding) => {
            finding.clusters.iter().filter_map(|name| ClusterName::parse(name).ok()).for_each(|name| visit(&FilterTerm::Cluster(name)));
        }
        Object::Ip(entry) => {
            visit(&FilterTerm::Namespace(entry.namespace.clone()));
            visit(&FilterTerm::Pod(entry.pod_name.clone()));
            visit(&FilterTerm::Identity(entry.identity));
            visit(&FilterTerm::Prefix(entry.prefix.net));
            if let Some(host) = entry.host_ip {
                visit(&FilterTerm::Host(host));
            }
        }
        // listed explicitly, so that no new kind is forgotten: without its terms here, it would
        // never match the filters that are looked up by them
        Object::Identity(_) | Object::Cluster(_) => {}
    }
}

#[cfg(test)]
mod tests;
