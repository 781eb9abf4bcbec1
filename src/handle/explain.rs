//! Which of the entries that cover an address an agent would use, and what becomes of the others.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;

use super::{LookupMatch, Reading};
use crate::model::{ClusterName, EntryKey, Kind, ObjectPrefix, Record};
use crate::view::Weakness;

/// What becomes of an entry that covers an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// An agent uses it, for this reason.
    Wins(Merit),
    /// It is a CIDR of full length, and a host entry stands before it.
    Shadowed,
    /// A longer prefix covers the address: this one.
    LessSpecific(IpNet),
    /// This cluster has the same prefix, and this is why it stands before.
    Outranked(ClusterName, Weakness),
}

/// Why an agent uses an entry that covers an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merit {
    /// No other one covers the address.
    Only,
    /// Its prefix is the longest, and no other cluster has it.
    MostSpecific,
    /// It is a host entry, and a CIDR of full length stands behind it.
    Host,
    /// Of those for its prefix it is the strongest: the next one is this cluster's, and weaker for this.
    Stronger(ClusterName, Weakness),
}

impl Reading {
    /// Every entry of every cluster that covers an address, strongest first ([`Rank`](crate::view::Rank) says which of several for one prefix), and what becomes
    /// of each.
    #[must_use]
    pub fn explain(&self, ip: IpAddr) -> Vec<(LookupMatch, Verdict)> {
        let view = &self.published().view;
        let mut found: Vec<(ObjectPrefix, LookupMatch)> = view
            .covering(ip)
            .filter_map(|key| view.record(&key))
            .filter_map(|record| Some((record.object.as_deref()?.as_ip()?.prefix, view.join(&record)?)))
            .collect();
        // longest first, hosts first
        found.sort_by_key(|(prefix, found)| (Reverse(prefix.net.prefix_len()), !prefix.host, self.rank(&found.record)));
        // as an agent looks up: the host, else the longest prefix (`LookupByIP`, `pkg/ipcache/ipcache.go`)
        let winner = found.first().map(|(prefix, _)| *prefix);
        let merit = self.merit(&found);
        let mut strongest: Option<(ObjectPrefix, Arc<Record>)> = None;
        let verdicts = found.into_iter().map(|(prefix, found)| {
            let stronger = strongest.as_ref().filter(|(at, _)| *at == prefix).map(|(_, record)| Arc::clone(record));
            if stronger.is_none() {
                strongest = Some((prefix, Arc::clone(&found.record)));
            }
            let verdict = match (stronger, winner) {
                (Some(stronger), _) => {
                    let weakness = self.rank(&found.record).weakness(&self.rank(&stronger));
                    Verdict::Outranked(stronger.key.cluster.clone(), weakness)
                }
                (None, Some(winner)) if winner != prefix && winner.net == prefix.net => Verdict::Shadowed,
                (None, Some(winner)) if winner != prefix => Verdict::LessSpecific(winner.net),
                (None, _) => Verdict::Wins(merit.clone()),
            };
            (found, verdict)
        });
        verdicts.collect()
    }

    /// Why the first of what covers an address, strongest first, stands before the next one.
    fn merit(&self, found: &[(ObjectPrefix, LookupMatch)]) -> Merit {
        let [(prefix, first), (other, next), ..] = found else { return Merit::Only };
        if prefix == other {
            let weakness = self.rank(&next.record).weakness(&self.rank(&first.record));
            Merit::Stronger(next.record.key.cluster.clone(), weakness)
        } else if prefix.net == other.net {
            Merit::Host
        } else {
            Merit::MostSpecific
        }
    }

    /// The nodes that have an address.
    pub fn nodes_at(&self, ip: IpAddr) -> impl Iterator<Item = std::sync::Arc<Record>> {
        self.published().view.nodes_at(ip)
    }

    /// Whether a node of any cluster has an address.
    #[must_use]
    pub fn has_any_node_at(&self, ip: IpAddr) -> bool {
        self.published().view.has_any_node_at(ip)
    }

    /// The ip entries for an address, and for ranges around it, whose newest bytes were rejected: of each cluster, the most specific first.
    #[must_use]
    pub fn rejected_at(&self, ip: IpAddr) -> Vec<Arc<Record>> {
        let view = &self.published().view;
        let lengths = (0..=IpNet::from(ip).prefix_len()).rev();
        let nets = lengths.filter_map(|length| Some(IpNet::new(ip, length).ok()?.trunc().to_string()));
        let names: Vec<String> = std::iter::once(ip.to_string()).chain(nets).collect();
        let mut found = Vec::new();
        for cluster in self.cluster_names() {
            let start = EntryKey::new(Kind::Ip, cluster.clone(), "");
            // as a rule a cluster has none
            if view.rejected_from(&start).next().is_none_or(|key| key.kind != Kind::Ip || key.cluster != cluster) {
                continue;
            }
            let keys = names.iter().map(|name| EntryKey::new(Kind::Ip, cluster.clone(), name.as_str()));
            found.extend(keys.filter(|key| view.is_rejected(key)).filter_map(|key| view.record(&key)));
        }
        found
    }

    /// Whether a cluster announces an identity.
    #[must_use]
    pub fn has_identity(&self, id: u32, cluster: &ClusterName) -> bool {
        self.published().view.has_identity(id, cluster)
    }

    /// The clusters that have an entry for exactly a prefix.
    #[must_use]
    pub fn clusters_at(&self, prefix: ObjectPrefix) -> std::collections::BTreeSet<ClusterName> {
        self.published().view.clusters_at(prefix)
    }

    /// The identity that a refused key names though its cluster may not have it, and those that the cluster may have.
    #[must_use]
    pub fn identity_out_of_range(&self, key: &EntryKey) -> Option<(u32, RangeInclusive<u32>)> {
        self.published().view.identity_out_of_range(key, self.max_connected_clusters())
    }

    /// An ip entry of a cluster that names an identity.
    #[must_use]
    pub fn ip_of_identity(&self, id: u32, cluster: &ClusterName) -> Option<EntryKey> {
        let start = EntryKey::new(Kind::Ip, cluster.clone(), "");
        self.published().view.ips_of_identity(id, &start).next().map(|record| record.key.clone()).filter(|key| key.cluster == *cluster)
    }
}
