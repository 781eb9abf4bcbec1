//! Which keys a list has to look at, from what its filter says of them: a few runs of keys, or a few keys that an index names.
//!
//! Owns: where a scan can begin and end. Deliberately lacks: whether what is there passes the filter, which is asked of each record anyway.

use super::{Filter, Reading};
use crate::model::{ClusterName, EntryKey, Kind};
use crate::view::Within;

/// How many keys an index may name: some 5 ms of work and 1 MB. Of more a scan finds enough quickly.
const KEYS_MAX: usize = 10_000;

/// What to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    /// These keys at most, in order.
    Keys(Vec<EntryKey>),
    /// These runs, in order.
    Runs(Vec<Run>),
    /// The ip entries that name this identity.
    Identity(u32),
}

/// Keys of one kind that lie together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    kind: Kind,
    /// Of one cluster; `None` is all.
    cluster: Option<ClusterName>,
    /// What their names begin with.
    prefix: String,
}

/// A list to be scanned. It belongs to the reading that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seek {
    pub(super) filter: Filter,
    pub(super) plan: Plan,
}

impl Run {
    /// The key that it begins with, whether that is there or not.
    pub(super) fn start(&self) -> EntryKey {
        match &self.cluster {
            Some(cluster) => EntryKey::new(self.kind, cluster.clone(), self.prefix.as_str()),
            None => EntryKey::lowest_of(self.kind),
        }
    }

    pub(super) fn holds(&self, key: &EntryKey) -> bool {
        key.kind == self.kind && self.cluster.as_ref().is_none_or(|cluster| key.cluster == *cluster) && key.name.starts_with(&self.prefix)
    }

    /// The first key to look at of those from `start` on; `None` where all of them are before.
    pub(super) fn from(&self, start: Option<&EntryKey>) -> Option<EntryKey> {
        let own = self.start();
        match start {
            Some(start) if *start > own => self.holds(start).then(|| start.clone()),
            _ => Some(own),
        }
    }
}

impl Reading {
    /// What has to be looked at for the objects of a kind that pass a filter.
    #[must_use]
    pub fn seek(&self, kind: Kind, filter: &Filter) -> Seek {
        let view = &self.published().view;
        let plan = match (kind, filter) {
            (Kind::Ip, Filter { identity: Some(id), .. }) => Plan::Identity(*id),
            (Kind::Ip, Filter { cidr: Some(cidr), .. }) => match view.ips_within(*cidr, KEYS_MAX) {
                Within::Few(keys) => Plan::Keys(keys),
                Within::Many(clusters) => self.runs(kind, &common(clusters, filter), ""),
                Within::Unknown => self.runs(kind, &filter.clusters, ""),
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

    /// What has to be looked at for the raw entries whose cache-form keys begin with `prefix`.
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

    /// The clusters that are asked for, or all.
    fn wanted(&self, clusters: &[ClusterName]) -> Vec<ClusterName> {
        if clusters.is_empty() { self.cluster_names() } else { clusters.to_vec() }
    }

    /// The key of one name in each cluster.
    fn keys(&self, kind: Kind, filter: &Filter, name: &str) -> Plan {
        let mut keys: Vec<EntryKey> = self.wanted(&filter.clusters).into_iter().map(|cluster| EntryKey::new(kind, cluster, name)).collect();
        keys.sort();
        keys.dedup();
        Plan::Keys(keys)
    }

    /// The runs of a kind, as lists know it, in these clusters; of none it is one run of all.
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

/// Those of some clusters that a filter asks for.
fn common(mut clusters: Vec<ClusterName>, filter: &Filter) -> Vec<ClusterName> {
    clusters.retain(|name| filter.clusters.is_empty() || filter.clusters.contains(name));
    clusters
}

#[cfg(test)]
mod tests;
