//! Queries of the reference mirror, as [`View`](crate::view::View) answers them.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::ReferenceView;
use crate::model::*;
use crate::view::{LookupMatch, ScopeState};

impl ReferenceView {
    pub(in crate::view::tests) fn record(&self, key: &EntryKey) -> Option<&Arc<Record>> {
        self.entries.get(key)
    }

    pub(in crate::view::tests) fn records_from(&self, start: &EntryKey) -> impl Iterator<Item = &Arc<Record>> {
        self.entries.range(start.clone()..).map(|(_, record)| record)
    }

    pub(in crate::view::tests) fn in_scope(&self, scope: &Scope) -> impl Iterator<Item = &Arc<Record>> {
        let start = EntryKey::new(scope.kind, scope.cluster.clone(), "");
        self.entries
            .range(start..)
            .map(|(_, record)| record)
            .take_while(move |record| record.key.kind == scope.kind && record.key.cluster == scope.cluster)
    }

    pub(in crate::view::tests) fn rejected_from(&self, start: &EntryKey) -> impl Iterator<Item = &Arc<Record>> {
        self.rejected.range(start.clone()..).filter_map(|key| self.entries.get(key))
    }

    pub(in crate::view::tests) fn rejected_count(&self) -> usize {
        self.rejected.len()
    }

    pub(in crate::view::tests) fn identities(&self, id: u32) -> impl Iterator<Item = &Arc<Record>> {
        let of_number = move || {
            let keys = self.identities.range((id, EntryKey::lowest())..).take_while(move |(at, _)| *at == id);
            keys.filter_map(|(_, key)| self.entries.get(key))
        };
        // if a cluster has several keys, with leading zeros, the last written one counts
        let age = |record: &Record| (record.source.mod_revision, record.last_sequence);
        let is_newest =
            move |record: &&Arc<Record>| of_number().all(|other| other.key.cluster != record.key.cluster || age(other) <= age(record));
        of_number().filter(is_newest)
    }

    pub(in crate::view::tests) fn ips_of_identity(&self, id: u32, start: &EntryKey) -> impl Iterator<Item = &Arc<Record>> {
        self.identity_ips.range((id, start.clone())..).take_while(move |(at, _)| *at == id).filter_map(|(_, key)| self.entries.get(key))
    }

    pub(in crate::view::tests) fn nodes_at(&self, ip: IpAddr) -> impl Iterator<Item = &Arc<Record>> {
        self.node_addresses
            .range((ip, EntryKey::lowest())..)
            .take_while(move |(at, _)| *at == ip)
            .filter_map(|(_, key)| self.entries.get(key))
    }

    pub(in crate::view::tests) fn ips_at(&self, net: IpNet) -> impl Iterator<Item = &Arc<Record>> {
        self.ipcache.exact(net).filter_map(|key| self.entries.get(key))
    }

    pub(in crate::view::tests) fn covering(&self, net: IpNet) -> Vec<EntryKey> {
        self.ipcache.covering(net).flatten().cloned().collect()
    }

    /// Returns the entries for the longest prefix that covers an address. The newest sequence is
    /// first, because the last writer wins in an agent (docs/use/api/lookups-and-explain.md,
    /// "lookup").
    pub(in crate::view::tests) fn lookup(&self, ip: IpAddr) -> Vec<LookupMatch> {
        let mut found: Vec<&Arc<Record>> = self.ipcache.longest_match(ip).into_iter().filter_map(|key| self.entries.get(key)).collect();
        found.sort_by_key(|record| (record.key.kind == Kind::NodeIp, record.rejection.is_some(), std::cmp::Reverse(record.last_sequence)));
        found.into_iter().filter_map(|record| self.join_labels_and_node(record)).collect()
    }

    pub(in crate::view::tests) fn join_labels_and_node(&self, record: &Arc<Record>) -> Option<LookupMatch> {
        let entry = record.object.as_deref().and_then(Object::as_ip)?;
        let cluster = &record.key.cluster;
        let identity = prefer_cluster(self.identities(entry.identity), cluster);
        let labels = identity.and_then(|record| match record.object.as_deref() {
            Some(Object::Identity(identity)) => Some(identity.labels.clone()),
            _ => None,
        });
        if let Some((node, _)) = record.key.name.rsplit_once('#') {
            return Some(LookupMatch { record: Arc::clone(record), labels, node_name: Some(node.to_owned()) });
        }
        let node = entry.host_ip.and_then(|ip| prefer_cluster(self.nodes_at(ip), cluster));
        Some(LookupMatch { record: Arc::clone(record), labels, node_name: node.map(|node| node.key.name.to_string()) })
    }

    pub(in crate::view::tests) fn scope(&self, scope: &Scope) -> Option<ScopeState> {
        let number = |count: u64| u32::try_from(count).unwrap();
        self.scopes.get(scope).map(|state| ScopeState {
            confirmed: state.confirmed,
            generation: number(state.generation),
            entry_count: number(state.entry_count),
            restored_count: number(state.restored_count),
        })
    }

    pub(in crate::view::tests) fn cluster(&self, cluster: &ClusterName) -> Option<&ClusterRecord> {
        self.clusters.get(cluster)
    }

    pub(in crate::view::tests) fn cluster_names(&self) -> std::collections::BTreeSet<ClusterName> {
        self.clusters.keys().chain(self.phases.keys()).chain(self.scopes.keys().map(|scope| &scope.cluster)).cloned().collect()
    }

    pub(in crate::view::tests) fn entry_count(&self) -> usize {
        self.entries.keys().filter(|key| key.kind != Kind::NodeIp).count()
    }

    pub(in crate::view::tests) fn object_count(&self, kind: Kind) -> u64 {
        let derived = if kind == Kind::Ip { self.object_counts[Kind::NodeIp as usize] } else { 0 };
        self.object_counts[kind as usize] + derived
    }

    pub(in crate::view::tests) fn is_confirmed(&self, record: &Record) -> bool {
        if record.key.kind == Kind::NodeIp {
            return self.entries.get(&record.key.origin()).is_some_and(|node| self.is_confirmed(node));
        }
        let scope = Scope { cluster: record.key.cluster.clone(), kind: record.key.kind };
        record.generation > 0 || self.scopes.get(&scope).is_some_and(|state| state.confirmed)
    }
}

/// Returns the record of the given cluster, otherwise the first.
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
