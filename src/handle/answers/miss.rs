//! Explains why an address or a CIDR has no entry of its own: the ranges that contain it, its
//! earlier entries, and the clusters that are not completely known.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::handle::{LookupMatch, REJECTED_COUNTED_MAX, Reading};
use crate::model::{ClusterName, EntryKey, Kind, ObjectPrefix, Record, Tombstone};
use crate::view::NetworkEntries;

/// Shortest prefixes (IPv4 and IPv6) around an address that are searched for neighbours. The pod
/// network of a cluster is seldom larger.
const NEAR_IPV4: u8 = 16;
const NEAR_IPV6: u8 = 48;

/// Maximum number of entries around an address from which the nearest are chosen. If the smallest
/// non-empty range has more, they say little about the address.
const NEAR_COUNT_MAX: usize = 64;

/// Maximum number of nearest entries in the answer: one on each side, and one more.
const NEAREST_COUNT: usize = 3;

/// Possible reasons why an address has no entry of its own.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MissExplanation {
    /// Pod CIDRs that contain the address, longest first, with the keys of their nodes. Empty for a
    /// CIDR.
    pub pod_cidrs: Vec<(IpNet, EntryKey)>,
    /// Tombstones of entries for exactly this address, newest first.
    pub deleted: Vec<Tombstone>,
    /// Clusters from which nothing was ever read.
    pub never_read: Vec<ClusterName>,
    /// Clusters with restored entries or nodes that are not all confirmed.
    pub restored: Vec<ClusterName>,
    /// Clusters with nodes that never had a usable value, if nothing covers the address. Each has
    /// the number of these nodes (up to [`REJECTED_COUNTED_MAX`]) and the first of them. The
    /// addresses and pod CIDRs of these nodes are not known.
    pub rejected_nodes: Vec<(usize, Arc<Record>)>,
    /// Nearest entries, if nothing covers the address. Empty for a CIDR.
    pub nearest: Vec<(ObjectPrefix, Arc<Record>)>,
}

impl Reading {
    /// Returns possible reasons why a network has no entry of its own, or `None` if it has one.
    /// `covering` has the entries that cover it, strongest first.
    #[must_use]
    pub fn explain_miss<'a>(&self, net: IpNet, covering: impl Iterator<Item = &'a LookupMatch>) -> Option<MissExplanation> {
        let is_host = net.prefix_len() == net.max_prefix_len();
        let mut miss = MissExplanation::default();
        let mut is_covered = false;
        for entry in covering {
            let Some(prefix) = prefix_of(&entry.record) else { continue };
            let is_pod_cidr = entry.record.key.is_fallback();
            if prefix.net.prefix_len() == net.prefix_len() && !(is_host && is_pod_cidr) {
                return None;
            }
            is_covered = true;
            if is_host && is_pod_cidr {
                miss.pod_cidrs.push((prefix.net, entry.record.key.origin()));
            }
        }
        miss.deleted = self.published.feed.tombstones_at(net).into_iter().cloned().collect();
        let summary = self.summary();
        (miss.never_read, miss.restored) = (summary.never_read.clone(), summary.restored.clone());
        if !is_covered {
            miss.rejected_nodes =
                self.clusters_with_rejected(&[Kind::Node]).iter().filter_map(|cluster| self.rejected_nodes_of(cluster)).collect();
            miss.nearest = if is_host { self.nearest_to(net.addr()) } else { Vec::new() };
        }
        Some(miss)
    }

    /// Returns the number of a cluster's nodes without a usable value, and the first of them.
    fn rejected_nodes_of(&self, cluster: &ClusterName) -> Option<(usize, Arc<Record>)> {
        let view = &self.published.view;
        let start = EntryKey::new(Kind::Node, cluster.clone(), "");
        let keys = view.rejected_from(&start).take_while(|key| key.kind == Kind::Node && key.cluster == *cluster);
        let mut records = keys.take(REJECTED_COUNTED_MAX).filter_map(|key| view.record(key)).filter(|record| record.object.is_none());
        let first = records.next()?;
        Some((1 + records.count(), first))
    }

    /// Returns the entries nearest to `ip`, from the smallest network around it that has any.
    fn nearest_to(&self, ip: IpAddr) -> Vec<(ObjectPrefix, Arc<Record>)> {
        let view = &self.published.view;
        let shortest = if ip.is_ipv4() { NEAR_IPV4 } else { NEAR_IPV6 };
        let nets = (shortest..IpNet::from(ip).prefix_len()).rev().filter_map(|length| Some(IpNet::new(ip, length).ok()?.trunc()));
        let within = nets.map(|net| view.ips_within(net, NEAR_COUNT_MAX));
        let keys = within.filter(|within| !matches!(within, NetworkEntries::Keys(keys) if keys.is_empty())).map(|within| match within {
            NetworkEntries::Keys(keys) => keys,
            NetworkEntries::Clusters(_) | NetworkEntries::Unknown => Vec::new(),
        });
        let records = keys.take(1).flatten().filter_map(|key| view.record(&key));
        let mut nearest: Vec<(ObjectPrefix, Arc<Record>)> = records.filter_map(|record| Some((prefix_of(&record)?, record))).collect();
        nearest.sort_by_key(|(prefix, _)| (distance(prefix.net.addr(), ip), Reverse(prefix.net.prefix_len())));
        nearest.truncate(NEAREST_COUNT);
        nearest
    }
}

fn prefix_of(record: &Record) -> Option<ObjectPrefix> {
    Some(record.object.as_deref()?.as_ip()?.prefix)
}

/// Returns the distance between two addresses of one family.
fn distance(one: IpAddr, other: IpAddr) -> u128 {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => u32::from(one).abs_diff(other.into()).into(),
        (IpAddr::V6(one), IpAddr::V6(other)) => u128::from(one).abs_diff(other.into()),
        _ => u128::MAX,
    }
}
