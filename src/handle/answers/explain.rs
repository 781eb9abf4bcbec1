//! Explains a lookup: the entry for an address or a CIDR that an agent would use, and why it does
//! not use the others.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;

use crate::handle::{LookupMatch, Reading};
use crate::model::{ClusterName, EntryKey, Kind, ObjectPrefix, Record};
use crate::view::{NetworkEntries, RankReason};

/// Role of an entry that covers an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryRole {
    /// An agent uses the entry, for this reason.
    Used(UseReason),
    /// The entry is a CIDR of full length, and a host entry takes precedence.
    Shadowed,
    /// This longer prefix covers the address.
    LessSpecific(IpNet),
    /// This cluster has the same prefix, and its entry takes precedence for this reason.
    Outranked(ClusterName, RankReason),
}

/// Reason why an agent uses an entry that covers an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UseReason {
    /// No other entry covers the address.
    Only,
    /// The entry has the longest prefix, and no other cluster has this prefix.
    MostSpecific,
    /// The entry is a host entry, and there is also a CIDR of full length.
    Host,
    /// The entry is the strongest for its prefix. The next one belongs to this cluster, and is
    /// weaker for this reason.
    Stronger(ClusterName, RankReason),
}

impl Reading {
    /// Returns the keys of every entry of every cluster that covers a whole network. Decodes
    /// nothing.
    #[must_use]
    pub fn covering(&self, net: IpNet) -> Vec<EntryKey> {
        self.published.view.covering(net)
    }

    /// Returns the entries with these keys, which cover one network, strongest first, with their
    /// roles. [`EntryRank`](crate::view::EntryRank) orders the entries for one prefix.
    #[must_use]
    pub fn explain(&self, covering: &[EntryKey]) -> Vec<(LookupMatch, EntryRole)> {
        let view = &self.published.view;
        let matches = covering
            .iter()
            .filter_map(|key| view.record(key))
            .filter_map(|record| Some((record.object.as_deref()?.as_ip()?.prefix, view.join_labels_and_node(&record)?)));
        self.assign_roles(matches.collect())
    }

    /// Returns entries that cover one network, strongest first, with their roles.
    pub(super) fn assign_roles(&self, mut matches: Vec<(ObjectPrefix, LookupMatch)>) -> Vec<(LookupMatch, EntryRole)> {
        // longest prefix first, host entries first
        matches.sort_by_key(|(prefix, entry)| (Reverse(prefix.net.prefix_len()), !prefix.host, self.rank(&entry.record)));
        // the order of an agent's lookup: the host entry, then the longest prefix (`LookupByIP`,
        // `pkg/ipcache/ipcache.go`)
        let winner = matches.first().map(|(prefix, _)| *prefix);
        let use_reason = self.use_reason(&matches);
        let mut strongest: Option<(ObjectPrefix, Arc<Record>)> = None;
        let roles = matches.into_iter().map(|(prefix, entry)| {
            let stronger = strongest.as_ref().filter(|(other, _)| *other == prefix).map(|(_, record)| Arc::clone(record));
            if stronger.is_none() {
                strongest = Some((prefix, Arc::clone(&entry.record)));
            }
            let role = match (stronger, winner) {
                (Some(stronger), _) => {
                    let weakness = self.rank(&entry.record).reason_below(&self.rank(&stronger));
                    EntryRole::Outranked(stronger.key.cluster.clone(), weakness)
                }
                (None, Some(winner)) if winner != prefix && winner.net == prefix.net => EntryRole::Shadowed,
                (None, Some(winner)) if winner != prefix => EntryRole::LessSpecific(winner.net),
                (None, _) => EntryRole::Used(use_reason.clone()),
            };
            (entry, role)
        });
        roles.collect()
    }

    /// Returns the reason why the first entry precedes the next one. `matches` is sorted, strongest
    /// first.
    fn use_reason(&self, matches: &[(ObjectPrefix, LookupMatch)]) -> UseReason {
        let [(prefix, first), (other, next), ..] = matches else { return UseReason::Only };
        if prefix == other {
            let weakness = self.rank(&next.record).reason_below(&self.rank(&first.record));
            UseReason::Stronger(next.record.key.cluster.clone(), weakness)
        } else if prefix.net == other.net {
            UseReason::Host
        } else {
            UseReason::MostSpecific
        }
    }

    /// Returns the keys of the ipcache entries inside a network, without entries for exactly this
    /// network. If there are more than `count_max`, returns only the clusters that have some.
    #[must_use]
    pub fn entries_inside(&self, net: IpNet, count_max: usize) -> NetworkEntries {
        let view = &self.published.view;
        let is_inside = |key: &EntryKey| {
            let prefix = view.record(key).and_then(|record| Some(record.object.as_deref()?.as_ip()?.prefix));
            prefix.is_some_and(|prefix| prefix.net != net)
        };
        match view.ips_within(net, count_max) {
            NetworkEntries::Keys(keys) => NetworkEntries::Keys(keys.into_iter().filter(is_inside).collect()),
            many => many,
        }
    }

    /// Returns the nodes with this address.
    pub fn nodes_at(&self, ip: IpAddr) -> impl Iterator<Item = std::sync::Arc<Record>> {
        self.published.view.nodes_at(ip)
    }

    /// Returns whether a node of any cluster has this address.
    #[must_use]
    pub fn has_any_node_at(&self, ip: IpAddr) -> bool {
        self.published.view.has_any_node_at(ip)
    }

    /// Returns the ipcache entries for a network and for the ranges around it whose newest value
    /// was rejected. They are sorted by cluster, the most specific first.
    #[must_use]
    pub fn rejected_at(&self, net: IpNet) -> Vec<Arc<Record>> {
        let view = &self.published.view;
        if view.rejected_count() == 0 {
            return Vec::new();
        }
        let lengths = (0..=net.prefix_len()).rev();
        let nets = lengths.filter_map(|length| Some(IpNet::new(net.addr(), length).ok()?.trunc().to_string()));
        let host = (net.prefix_len() == net.max_prefix_len()).then(|| net.addr().to_string());
        let names: Vec<String> = host.into_iter().chain(nets).collect();
        let mut matches = Vec::new();
        for cluster in self.cluster_names() {
            let start = EntryKey::new(Kind::Ip, cluster.clone(), "");
            // most clusters have none
            if view.rejected_from(&start).next().is_none_or(|key| key.kind != Kind::Ip || key.cluster != cluster) {
                continue;
            }
            let keys = names.iter().map(|name| EntryKey::new(Kind::Ip, cluster.clone(), name.as_str()));
            matches.extend(keys.filter(|key| view.is_rejected(key)).filter_map(|key| view.record(&key)));
        }
        matches
    }

    /// Returns whether a cluster announces an identity.
    #[must_use]
    pub fn has_identity(&self, id: u32, cluster: &ClusterName) -> bool {
        self.published.view.has_identity(id, cluster)
    }

    /// Returns the clusters that have an entry for exactly this prefix.
    #[must_use]
    pub fn clusters_at(&self, prefix: ObjectPrefix) -> std::collections::BTreeSet<ClusterName> {
        self.published.view.clusters_at(prefix)
    }

    /// Returns the identity in a rejected entry that is outside the cluster's range, with that
    /// range.
    #[must_use]
    pub fn identity_out_of_range(&self, key: &EntryKey) -> Option<(u32, RangeInclusive<u32>)> {
        self.published.view.identity_out_of_range(key, self.max_connected_clusters)
    }

    /// Returns the key of an ipcache entry of a cluster that refers to an identity.
    #[must_use]
    pub fn ip_of_identity(&self, id: u32, cluster: &ClusterName) -> Option<EntryKey> {
        let start = EntryKey::new(Kind::Ip, cluster.clone(), "");
        self.published.view.ips_of_identity(id, &start).next().map(|record| record.key.clone()).filter(|key| key.cluster == *cluster)
    }
}
