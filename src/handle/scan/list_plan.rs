//! Plans of lists: the few runs of keys, or the few keys from an index, that can match a filter.
//!
//! `scan` reads them and tests each record against the filter.

use crate::handle::{Filter, Reading};
use crate::model::{ClusterName, EntryKey, Kind};
use crate::view::NetworkEntries;

/// Maximum number of keys from an index: about 5 ms of work and 1 MB. If there are more, a scan
/// finds enough matches quickly.
const INDEX_KEYS_MAX: usize = 10_000;

/// Keys to read for a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::handle) enum KeyPlan {
    /// Keys to read, in order. Some of them may not exist.
    Keys(Vec<EntryKey>),
    /// Runs of keys to read, in order.
    Runs(Vec<KeyRun>),
    /// Ipcache entries with this identity.
    Identity(u32),
}

/// Neighbouring keys of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::handle) struct KeyRun {
    kind: Kind,
    /// Cluster of the keys; `None` for all.
    cluster: Option<ClusterName>,
    prefix: String,
}

/// A planned list. It is valid only for the snapshot that planned it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPlan {
    pub(in crate::handle) filter: Filter,
    pub(super) keys: KeyPlan,
}

impl ListPlan {
    /// Returns the runs of keys. A plan of an index has none.
    pub(super) fn runs(&self) -> &[KeyRun] {
        if let KeyPlan::Runs(runs) = &self.keys { runs } else { &[] }
    }
}

impl KeyRun {
    /// Returns the lowest possible key of the run.
    pub(in crate::handle) fn start(&self) -> EntryKey {
        match &self.cluster {
            Some(cluster) => EntryKey::new(self.kind, cluster.clone(), self.prefix.as_str()),
            None => EntryKey::lowest_of(self.kind),
        }
    }

    pub(in crate::handle) fn contains(&self, key: &EntryKey) -> bool {
        key.kind == self.kind && self.cluster.as_ref().is_none_or(|cluster| key.cluster == *cluster) && key.name.starts_with(&self.prefix)
    }

    /// Returns the first key of the run that is not before `start`. `None` if the whole run lies
    /// before `start`.
    pub(in crate::handle) fn first_key_from(&self, start: Option<&EntryKey>) -> Option<EntryKey> {
        let own = self.start();
        match start {
            Some(start) if *start > own => self.contains(start).then(|| start.clone()),
            _ => Some(own),
        }
    }
}

impl Reading {
    /// Plans the list of the objects of a kind that match a filter.
    #[must_use]
    pub fn plan_list(&self, kind: Kind, filter: &Filter) -> ListPlan {
        let view = &self.published.view;
        let keys = match (kind, filter) {
            (Kind::Ip, Filter { identity: Some(id), .. }) => KeyPlan::Identity(*id),
            (Kind::Ip, Filter { cidr: Some(cidr), .. }) => match view.ips_within(*cidr, INDEX_KEYS_MAX) {
                NetworkEntries::Keys(keys) => KeyPlan::Keys(keys),
                NetworkEntries::Clusters(clusters) => self.plan_runs(kind, &accepted_by(clusters, filter), ""),
                NetworkEntries::Unknown => self.plan_runs(kind, &filter.clusters, ""),
            },
            (Kind::Ip, Filter { hosts: Some(hosts), .. }) => {
                let clusters: Option<Vec<ClusterName>> = hosts.iter().map(|(cluster, _)| cluster.clone()).collect();
                match clusters.map(|clusters| accepted_by(clusters, filter)) {
                    Some(clusters) if clusters.is_empty() => KeyPlan::Keys(Vec::new()),
                    Some(clusters) => self.plan_runs(kind, &clusters, ""),
                    None => self.plan_runs(kind, &filter.clusters, ""),
                }
            }
            (Kind::Node, Filter { ip: Some(ip), .. }) => KeyPlan::Keys(view.node_keys_at(*ip)),
            (Kind::Node, Filter { name: Some(name), .. }) => self.plan_keys(kind, filter, name),
            (kind, Filter { namespace: Some(namespace), name, .. }) if kind.is_namespaced() => match name {
                Some(name) => self.plan_keys(kind, filter, &format!("{namespace}/{name}")),
                None => self.plan_runs(kind, &self.clusters_or_all(&filter.clusters), &format!("{namespace}/")),
            },
            _ => self.plan_runs(kind, &filter.clusters, ""),
        };
        ListPlan { filter: filter.clone(), keys }
    }

    /// Plans the list of the raw entries whose cache-form keys begin with `prefix`.
    #[must_use]
    pub fn plan_entry_list(&self, prefix: &str, clusters: &[ClusterName]) -> ListPlan {
        let clusters = if prefix.is_empty() { clusters.to_vec() } else { self.clusters_or_all(clusters) };
        let run = |(kind, cluster): (Kind, ClusterName)| {
            let all = EntryKey::new(kind, cluster.clone(), "").to_string();
            let name = if all.starts_with(prefix) { Some("") } else { prefix.strip_prefix(&all) };
            name.map(|name| KeyRun { kind, cluster: Some(cluster), prefix: name.to_owned() })
        };
        let mut runs: Vec<KeyRun> = if clusters.is_empty() && prefix.is_empty() {
            Kind::ALL.map(|kind| KeyRun { kind, cluster: None, prefix: String::new() }).to_vec()
        } else {
            Kind::ALL.into_iter().flat_map(|kind| clusters.iter().map(move |cluster| (kind, cluster.clone()))).filter_map(run).collect()
        };
        runs.sort_by_cached_key(KeyRun::start);
        ListPlan { filter: Filter::default(), keys: KeyPlan::Runs(runs) }
    }

    /// Returns the given clusters, or all if there are none.
    fn clusters_or_all(&self, clusters: &[ClusterName]) -> Vec<ClusterName> {
        if clusters.is_empty() { self.cluster_names() } else { clusters.to_vec() }
    }

    /// Plans to read the key of one name in each cluster.
    fn plan_keys(&self, kind: Kind, filter: &Filter, name: &str) -> KeyPlan {
        let mut keys: Vec<EntryKey> =
            self.clusters_or_all(&filter.clusters).into_iter().map(|cluster| EntryKey::new(kind, cluster, name)).collect();
        keys.sort();
        keys.dedup();
        KeyPlan::Keys(keys)
    }

    /// Plans the runs of all stored kinds that are listed as `kind`, in these clusters. Without
    /// clusters, each run covers all clusters.
    #[expect(clippy::unused_self, reason = "the other planning methods need the reading")]
    fn plan_runs(&self, kind: Kind, clusters: &[ClusterName], prefix: &str) -> KeyPlan {
        let kinds = Kind::STORED.into_iter().filter(|stored| stored.listed_as() == kind);
        let run = |kind, cluster: Option<&ClusterName>| KeyRun { kind, cluster: cluster.cloned(), prefix: prefix.to_owned() };
        let mut runs: Vec<KeyRun> = if clusters.is_empty() {
            kinds.map(|kind| run(kind, None)).collect()
        } else {
            kinds.flat_map(|kind| clusters.iter().map(move |cluster| run(kind, Some(cluster)))).collect()
        };
        runs.sort_by_cached_key(KeyRun::start);
        runs.dedup();
        KeyPlan::Runs(runs)
    }
}

/// Returns the clusters that a filter accepts.
fn accepted_by(mut clusters: Vec<ClusterName>, filter: &Filter) -> Vec<ClusterName> {
    clusters.retain(|name| filter.clusters.is_empty() || filter.clusters.contains(name));
    clusters
}

#[cfg(test)]
mod tests;
