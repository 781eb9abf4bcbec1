//! Reading the mirror.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::{ScopeState, View};
use crate::model::{ClusterName, ClusterRecord, EntryKey, IpEntry, Kind, LabelSet, Object, Record, Scope};

/// One ipcache entry that answers a lookup, with what it names.
#[derive(Debug, Clone, PartialEq)]
pub struct LookupMatch {
    /// The record of the entry.
    pub record: Arc<Record>,
    /// The labels of its identity, where that identity is known: of the same cluster if it is there.
    pub labels: Option<LabelSet>,
    /// The node that has the entry's host address, where one is known: of the same cluster if there is one.
    pub node_name: Option<String>,
}

impl View {
    /// The record of a key.
    #[must_use]
    pub fn record(&self, key: &EntryKey) -> Option<&Arc<Record>> {
        self.entries.get(key)
    }

    /// All records from a key on, that one included, in key order.
    pub fn records_from(&self, start: &EntryKey) -> impl Iterator<Item = &Arc<Record>> {
        self.entries.range(start.clone()..).map(|(_, record)| record)
    }

    /// All records of a scope, in key order.
    pub fn in_scope(&self, scope: &Scope) -> impl Iterator<Item = &Arc<Record>> {
        let start = EntryKey::new(scope.kind, scope.cluster.clone(), "");
        self.entries
            .range(start..)
            .map(|(_, record)| record)
            .take_while(move |record| record.key.kind == scope.kind && record.key.cluster == scope.cluster)
    }

    /// The keys whose newest bytes could not be used, from a key on.
    pub fn rejected_from(&self, start: &EntryKey) -> impl Iterator<Item = &Arc<Record>> {
        self.rejected.range(start.clone()..).filter_map(|key| self.entries.get(key))
    }

    /// How many keys could not be used.
    #[must_use]
    pub fn rejected_count(&self) -> usize {
        self.rejected.len()
    }

    /// The identities of that number, one for each cluster that has it.
    pub fn identities(&self, id: u32) -> impl Iterator<Item = &Arc<Record>> {
        self.identities.range((id, EntryKey::lowest())..).take_while(move |(at, _)| *at == id).filter_map(|(_, key)| self.entries.get(key))
    }

    /// The ip entries that name an identity, from a key on.
    pub fn ips_of_identity(&self, id: u32, start: &EntryKey) -> impl Iterator<Item = &Arc<Record>> {
        self.identity_ips.range((id, start.clone())..).take_while(move |(at, _)| *at == id).filter_map(|(_, key)| self.entries.get(key))
    }

    /// The nodes that have an address.
    pub fn nodes_at(&self, ip: IpAddr) -> impl Iterator<Item = &Arc<Record>> {
        self.node_addresses
            .range((ip, EntryKey::lowest())..)
            .take_while(move |(at, _)| *at == ip)
            .filter_map(|(_, key)| self.entries.get(key))
    }

    /// The ip entries for exactly this prefix, host entries first.
    pub fn ips_at(&self, net: IpNet) -> impl Iterator<Item = &Arc<Record>> {
        self.ipcache.exact(net).filter_map(|key| self.entries.get(key))
    }

    /// The entries for the longest prefix that covers an address. The first answers: where several clusters claim one prefix
    /// the newest sequence wins, as the last writer does in an agent (api.md, "lookup").
    #[must_use]
    pub fn lookup(&self, ip: IpAddr) -> Vec<LookupMatch> {
        let mut found: Vec<&Arc<Record>> = self.ipcache.longest_match(ip).into_iter().filter_map(|key| self.entries.get(key)).collect();
        found.sort_by_key(|record| std::cmp::Reverse(record.last_sequence));
        found.into_iter().filter_map(|record| self.join(record)).collect()
    }

    /// An ip entry with its identity's labels and its node's name.
    #[must_use]
    pub fn join(&self, record: &Arc<Record>) -> Option<LookupMatch> {
        let entry = ip_entry(record)?;
        let cluster = &record.key.cluster;
        let identity = prefer_cluster(self.identities(entry.identity), cluster);
        let labels = identity.and_then(|record| match record.object.as_deref() {
            Some(Object::Identity(identity)) => Some(identity.labels.clone()),
            _ => None,
        });
        let node = entry.host_ip.and_then(|ip| prefer_cluster(self.nodes_at(ip), cluster));
        Some(LookupMatch { record: Arc::clone(record), labels, node_name: node.map(|node| node.key.name.to_string()) })
    }

    /// The state of a scope.
    #[must_use]
    pub fn scope(&self, scope: &Scope) -> Option<&ScopeState> {
        self.scopes.get(scope)
    }

    /// What is remembered of a cluster.
    #[must_use]
    pub fn cluster(&self, cluster: &ClusterName) -> Option<&ClusterRecord> {
        self.clusters.get(cluster)
    }

    /// Every cluster that anything is known of, in order.
    #[must_use]
    pub fn cluster_names(&self) -> std::collections::BTreeSet<ClusterName> {
        let scopes = self.scopes.keys().map(|scope| &scope.cluster);
        self.clusters.keys().chain(self.phases.keys()).chain(scopes).cloned().collect()
    }

    /// How many keys are mirrored, usable or not.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// How many objects of a kind there are.
    #[must_use]
    pub fn object_count(&self, kind: Kind) -> u64 {
        self.object_counts[kind as usize]
    }

    /// Whether the source has confirmed a record since meshkeep started.
    #[must_use]
    pub fn is_confirmed(&self, record: &Record) -> bool {
        let scope = Scope { cluster: record.key.cluster.clone(), kind: record.key.kind };
        record.generation > 0 || self.scopes.get(&scope).is_some_and(|state| state.confirmed)
    }
}

/// The ip entry in a record, if it holds a usable one.
fn ip_entry(record: &Record) -> Option<&IpEntry> {
    match record.object.as_deref()? {
        Object::Ip(entry) => Some(entry),
        Object::Node(_)
        | Object::Service(_)
        | Object::Identity(_)
        | Object::ServiceExport(_)
        | Object::EndpointSlice(_)
        | Object::Cluster(_) => None,
    }
}

/// The record of the given cluster, else the first.
fn prefer_cluster<'a>(records: impl Iterator<Item = &'a Arc<Record>>, cluster: &ClusterName) -> Option<&'a Arc<Record>> {
    let mut first = None;
    for record in records {
        if record.key.cluster == *cluster {
            return Some(record);
        }
        first = first.or(Some(record));
    }
    first
}
