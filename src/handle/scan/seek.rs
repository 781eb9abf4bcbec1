//! Plans of lists: the few runs of keys, or the few keys from an index, that can match a filter.
//!
//! `scan` reads them and tests each record against the filter.

use crate::handle::{Filter, Reading};
use crate::model::{ClusterName, EntryKey, Kind};
use crate::view::NetworkEntries;

/// Maximum number of keys from an index: about 5 ms of work and 1 MB. If there are more, a scan
/// finds enough matches quickly.
const KEYS_MAX: usize = 10_000;

/// Keys to read for a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::handle) enum Plan {
    /// Keys to read, in order. Some of them may not exist.
    Keys(Vec<EntryKey>),
    /// Runs of keys to read, in order.
    Runs(Vec<Run>),
    /// Ipcache entries with this identity.
    Identity(u32),
}

/// Neighbouring keys of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::handle) struct Run {
    kind: Kind,
    /// Cluster of the keys; `None` for all.
    cluster: Option<ClusterName>,
    /// Prefix of the names.
    prefix: String,
}

/// A planned list. It belongs to the reading that planned it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seek {
    pub(in crate::handle) filter: Filter,
    pub(super) plan: Plan,
}

impl Run {
    /// Returns the lowest possible key of the run.
    pub(in crate::handle) fn start(&self) -> EntryKey {
        match &self.cluster {
            Some(cluster) => EntryKey::new(self.kind, cluster.clone(), self.prefix.as_str()),
            None => EntryKey::lowest_of(self.kind),
        }
    }

    pub(in crate::handle) fn holds(&self, key: &EntryKey) -> bool {
        key.kind == self.kind && self.cluster.as_ref().is_none_or(|cluster| key.cluster == *cluster) && key.name.starts_with(&self.prefix)
    }

    /// Returns the first key of the run that is not before `start`. `None` if the whole run is.
    pub(in crate::handle) fn from(&self, start: Option<&EntryKey>) -> Option<EntryKey> {
        let own = self.start();
        match start {
            Some(start) if *start > own => self.holds(start).then(|| start.clone()),
            _ => Some(own),
        }
    }
}

impl Reading {
    /// Plans the list of the objects of a kind that match a filter.
    #[must_use]
    pub fn seek(&self, kind: Kind, filter: &Filter) -> Seek {
        let view = &self.published().view;
        let plan = match (kind, filter) {
            (Kind::Ip, Filter { identity: Some(id), .. }) => Plan::Identity(*id),
            (Kind::Ip, Filter { cidr: Some(cidr), .. }) => match view.ips_within(*cidr, KEYS_MAX) {
                NetworkEntries::Keys(keys) => Plan::Keys(keys),
                NetworkEntries::Clusters(clusters) => self.runs(kind, &common(clusters, filter), ""),
                NetworkEntries::Unknown => self.runs(kind, &filter.clusters, ""),
            },
            (Kind::Ip, Filter { hosts: Some(hosts), .. }) => {
                let clusters: Option<Vec<ClusterName>> = hosts.iter().map(|(cluster, _)| cluster.clone()).collect();
                match clusters.map(|clusters| common(clusters, filter)) {
                    Some(none) if none.is_empty() => Plan::Keys(Vec::new()),
                    Some(clusters) => self.runs(kind, &clusters, ""),
                    None => self.runs(kind, &filter.clusters, ""),
                }
            }
            (Kind::Node, Filter { ip: Some(ip), .. }) => Plan::Keys(view.node_keys_at(*ip)),
            (Kind::Node, Filter { name: Some(name), .. }) => self.keys(kind, filter, name),
            (kind, Filter { namespace: Some(namespace), name, .. }) if kind.is_namespaced() => match name {
                Some(name) => self.keys(kind, filter, &format!("{namespace}/{name}")),
                None => self.runs(kind, &self.wanted(&filter.clusters), &format!("{namespace}/")),
            },
            _ => self.runs(kind, &filter.clusters, ""),
        };
        Seek { filter: filter.clone(), plan }
    }

    /// Plans the list of the raw entries whose cache-form keys begin with `prefix`.
    #[must_use]
    pub fn seek_entries(&self, prefix: &str, clusters: &[ClusterName]) -> Seek {
        let wanted = if prefix.is_empty() { clusters.to_vec() } else { self.wanted(clusters) };
        let run = |(kind, cluster): (Kind, ClusterName)| {
            let all = EntryKey::new(kind, cluster.clone(), "").to_string();
            let name = if all.starts_with(prefix) { Some("") } else { prefix.strip_prefix(&all) };
            name.map(|name| Run { kind, cluster: Some(cluster), prefix: name.to_owned() })
        };
        let mut runs: Vec<Run> = if wanted.is_empty() && prefix.is_empty() {
            Kind::ALL.map(|kind| Run { kind, cluster: None, prefix: String::new() }).to_vec()
        } else {
            Kind::ALL.into_iter().flat_map(|kind| wanted.iter().map(move |cluster| (kind, cluster.clone()))).filter_map(run).collect()
        };
        runs.sort_by_cached_key(Run::start);
        Seek { filter: Filter::default(), plan: Plan::Runs(runs) }
    }

    /// Returns the given clusters, or all if there are none.
    fn wanted(&self, clusters: &[ClusterName]) -> Vec<ClusterName> {
        if clusters.is_empty() { self.cluster_names() } else { clusters.to_vec() }
    }

    /// Plans to read the key of one name in each cluster.
    fn keys(&self, kind: Kind, filter: &Filter, name: &str) -> Plan {
        let mut keys: Vec<EntryKey> = self.wanted(&filter.clusters).into_iter().map(|cluster| EntryKey::new(kind, cluster, name)).collect();
        keys.sort();
        keys.dedup();
        Plan::Keys(keys)
    }

    /// Plans the runs of a kind, as lists name it, in these clusters. Without clusters it is one
    /// run over all.
    #[expect(clippy::unused_self, reason = "its siblings ask the reading")]
    fn runs(&self, kind: Kind, clusters: &[ClusterName], prefix: &str) -> Plan {
        let kinds = Kind::STORED.into_iter().filter(|stored| stored.listed_as() == kind);
        let of = |kind, cluster: Option<&ClusterName>| Run { kind, cluster: cluster.cloned(), prefix: prefix.to_owned() };
        let mut runs: Vec<Run> = if clusters.is_empty() {
            kinds.map(|kind| of(kind, None)).collect()
        } else {
            kinds.flat_map(|kind| clusters.iter().map(move |cluster| of(kind, Some(cluster)))).collect()
        };
        runs.sort_by_cached_key(Run::start);
        runs.dedup();
        Plan::Runs(runs)
    }
}

/// Returns those of the clusters that a filter accepts.
fn common(mut clusters: Vec<ClusterName>, filter: &Filter) -> Vec<ClusterName> {
    clusters.retain(|name| filter.clusters.is_empty() || filter.clusters.contains(name));
    clusters
}

#[cfg(test)]
mod tests;
