//! Ipcache entries by prefix, for exact and longest-prefix lookups in both address families.
//!
//! As in Cilium's ipcache (`pkg/ipcache/ipcache.go`), a lookup probes the existing prefix lengths,
//! longest first, and a host precedes a CIDR of full length. An entry is an address and the number
//! of its cluster, from which its key is rebuilt. Keys that cannot be rebuilt, such as
//! `10.1.2.3/24` for `10.1.2.0/24`, are *noncanonical* and stored whole.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use imbl::OrdSet;
use ipnet::IpNet;

use super::{IndexUpdate, update_set};
use crate::model::{EntryKey, ObjectPrefix};
use crate::view::collections::paged_set::PagedSet;

/// Ipcache entries by prefix.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct IpIndex {
    /// Entries whose key is the prefix, with the numbers of their clusters.
    pub(in crate::view) canonical: PrefixIndex,
    /// Other entries, with their keys.
    pub(super) noncanonical: OrdSet<(ObjectPrefix, EntryKey)>,
}

/// Prefixes with the numbers of their owners, which are clusters or nodes.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct PrefixIndex {
    ipv4: PrefixSets<u32>,
    ipv6: PrefixSets<u128>,
}

/// Entries for single addresses (not CIDRs), with the numbers of their clusters or nodes.
#[derive(Debug, Default)]
pub(in crate::view) struct HostEntries {
    pub(in crate::view) ipv4: PagedSet<u32>,
    pub(in crate::view) ipv6: PagedSet<u128>,
}

/// One set per prefix length and for hosts, most specific first.
type PrefixSets<A> = Arc<Vec<(Specificity, PagedSet<A>)>>;

/// Prefix length and host flag. A lookup prefers the greater value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Specificity {
    length: u8,
    host: bool,
}

/// Address as an integer.
trait AddressBits: Copy + Ord {
    const BITS: u8;

    /// Returns the address with all bits after `length` cleared.
    fn network(self, length: u8) -> Self;

    fn to_ip(self) -> IpAddr;
}

impl AddressBits for u32 {
    const BITS: u8 = 32;

    fn network(self, length: u8) -> Self {
        self & Self::MAX.checked_shl(u32::from(<Self as AddressBits>::BITS - length)).unwrap_or(0)
    }

    fn to_ip(self) -> IpAddr {
        Ipv4Addr::from(self).into()
    }
}

impl AddressBits for u128 {
    const BITS: u8 = 128;

    fn network(self, length: u8) -> Self {
        self & Self::MAX.checked_shl(u32::from(<Self as AddressBits>::BITS - length)).unwrap_or(0)
    }

    fn to_ip(self) -> IpAddr {
        Ipv6Addr::from(self).into()
    }
}

impl Specificity {
    fn of_prefix(prefix: ObjectPrefix) -> Self {
        Self { length: prefix.net.prefix_len(), host: prefix.host }
    }

    const fn of_hosts(bits: u8) -> Self {
        Self { length: bits, host: true }
    }
}

fn set_mut<A: Copy + Ord>(family: &mut PrefixSets<A>, specificity: Specificity) -> &mut PagedSet<A> {
    let sets = Arc::make_mut(family);
    let index = sets.partition_point(|(other, _)| *other > specificity);
    if sets.get(index).is_none_or(|(other, _)| *other != specificity) {
        sets.insert(index, (specificity, PagedSet::default()));
    }
    &mut sets[index].1
}

fn remove<A: Copy + Ord>(family: &mut PrefixSets<A>, specificity: Specificity, entry: (A, u32)) -> bool {
    let set = set_mut(family, specificity);
    let removed = set.remove(&entry);
    if set.len() == 0 {
        Arc::make_mut(family).retain(|(other, _)| *other != specificity);
    }
    removed
}

fn exact<A: AddressBits>(family: &PrefixSets<A>, prefix: ObjectPrefix, address: A) -> &[u32] {
    let specificity = Specificity::of_prefix(prefix);
    family.iter().find(|(other, _)| *other == specificity).map_or(&[], |(_, set)| set.owners_of(address))
}

/// Iterates over the prefixes of at most `length` bits that cover an address and have an entry,
/// most specific first.
fn covering<A: AddressBits>(family: &PrefixSets<A>, address: A, length: u8) -> impl Iterator<Item = ObjectPrefix> {
    family.iter().filter(move |(specificity, _)| specificity.length <= length).filter_map(move |(specificity, set)| {
        let network = address.network(specificity.length);
        let net = if set.owners_of(network).is_empty() { None } else { IpNet::new(network.to_ip(), specificity.length).ok() };
        Some(ObjectPrefix { net: net?, host: specificity.host })
    })
}

/// Iterates over all possible prefixes that cover a network, most specific first.
fn possible_prefixes(net: IpNet) -> impl Iterator<Item = ObjectPrefix> {
    let nets = (0..=net.prefix_len()).rev().filter_map(move |length| Some(IpNet::new(net.addr(), length).ok()?.trunc()));
    nets.flat_map(|net| [true, false].map(|host| ObjectPrefix { net, host }))
}

/// Iterates over the addresses of hosts in order, once per entry.
fn hosts<A: AddressBits>(family: &PrefixSets<A>) -> impl Iterator<Item = A> {
    family.iter().filter(|(specificity, _)| *specificity == Specificity::of_hosts(A::BITS)).flat_map(|(_, set)| set.addresses())
}

/// Adds the prefixes with more than one entry to `found`, in order. The host entries of `family`
/// and `others` count together.
fn add_duplicates<A: AddressBits>(family: &PrefixSets<A>, others: &PrefixSets<A>, found: &mut Vec<ObjectPrefix>) {
    let prefix = |specificity: Specificity, address: A| {
        Some(ObjectPrefix { net: IpNet::new(address.to_ip(), specificity.length).ok()?, host: specificity.host })
    };
    let of_hosts = Specificity::of_hosts(A::BITS);
    found.extend(duplicates(merge_sorted(hosts(family), hosts(others))).filter_map(|address| prefix(of_hosts, address)));
    for (specificity, set) in family.iter().filter(|(specificity, _)| *specificity != of_hosts) {
        found.extend(duplicates(set.addresses()).filter_map(|address| prefix(*specificity, address)));
    }
}

/// Merges two sorted iterators.
fn merge_sorted<A: Ord>(one: impl Iterator<Item = A>, other: impl Iterator<Item = A>) -> impl Iterator<Item = A> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(first), Some(second)) if first > second => other.next(),
        (None, _) => other.next(),
        (Some(_), _) => one.next(),
    })
}

/// Iterates over the items that occur more than once.
fn duplicates<A: Copy + Ord>(items: impl Iterator<Item = A>) -> impl Iterator<Item = A> {
    let (mut last, mut reported) = (None, None);
    items.filter(move |item| {
        let is_again = last.replace(*item) == Some(*item) && reported != Some(*item);
        if is_again {
            reported = Some(*item);
        }
        is_again
    })
}

impl HostEntries {
    /// Creates host entries from pairs of address and number, in any order.
    pub(in crate::view) fn from_unsorted(mut ipv4: Vec<(u32, u32)>, mut ipv6: Vec<(u128, u32)>) -> Self {
        ipv4.sort_unstable_by_key(|(address, _)| *address);
        ipv6.sort_unstable_by_key(|(address, _)| *address);
        Self { ipv4: PagedSet::from_sorted(&ipv4, |cluster| cluster), ipv6: PagedSet::from_sorted(&ipv6, |cluster| cluster) }
    }
}

impl IpIndex {
    /// Adds the entry of a key, or removes it. `cluster` is the number of its cluster. Adding it
    /// twice and removing a missing entry change nothing.
    pub(in crate::view) fn update(&mut self, update: IndexUpdate, prefix: ObjectPrefix, key: &EntryKey, cluster: u32) {
        match update {
            _ if *prefix.to_string() != *key.name => update_set(&mut self.noncanonical, update, (prefix, key.clone())),
            IndexUpdate::Add => drop(self.canonical.insert(prefix, cluster)),
            IndexUpdate::Remove => drop(self.canonical.remove(prefix, cluster)),
        }
    }

    /// Iterates over the keys of the noncanonical entries for exactly this prefix.
    pub(super) fn noncanonical_at(&self, prefix: ObjectPrefix) -> impl Iterator<Item = &EntryKey> {
        self.noncanonical.range((prefix, EntryKey::lowest())..).take_while(move |(other, _)| *other == prefix).map(|(_, key)| key)
    }

    /// Returns the prefixes with more than one entry, in order. Host entries here and in `derived`
    /// count together. All prefixes of noncanonical entries are included.
    pub(in crate::view) fn duplicate_prefixes(&self, derived: &PrefixIndex) -> Vec<ObjectPrefix> {
        let mut found: Vec<ObjectPrefix> = self.noncanonical.iter().map(|(prefix, _)| *prefix).collect();
        add_duplicates(&self.canonical.ipv4, &derived.ipv4, &mut found);
        add_duplicates(&self.canonical.ipv6, &derived.ipv6, &mut found);
        found
    }

    /// Returns the longest prefix that covers the address and has an entry. Allocates memory only
    /// if there are noncanonical entries.
    pub(in crate::view) fn longest_match(&self, ip: IpAddr) -> Option<ObjectPrefix> {
        let canonical = self.canonical.longest_match(ip);
        if self.noncanonical.is_empty() {
            return canonical;
        }
        let mut prefixes = possible_prefixes(IpNet::from(ip));
        prefixes.find(|prefix| canonical == Some(*prefix) || self.noncanonical_at(*prefix).next().is_some())
    }

    /// Returns the prefixes that cover a whole network and have an entry, in no particular order. A
    /// prefix may occur twice.
    pub(super) fn covering(&self, net: IpNet) -> Vec<ObjectPrefix> {
        let mut found = self.canonical.covering(net);
        if !self.noncanonical.is_empty() {
            found.extend(possible_prefixes(net).filter(|prefix| self.noncanonical_at(*prefix).next().is_some()));
        }
        found
    }
}

impl PrefixIndex {
    /// Adds an owner of a prefix. Returns false if it exists already.
    pub(in crate::view) fn insert(&mut self, prefix: ObjectPrefix, owner: u32) -> bool {
        let specificity = Specificity::of_prefix(prefix);
        match prefix.net.addr() {
            IpAddr::V4(ip) => set_mut(&mut self.ipv4, specificity).insert((ip.to_bits(), owner)),
            IpAddr::V6(ip) => set_mut(&mut self.ipv6, specificity).insert((ip.to_bits(), owner)),
        }
    }

    /// Removes an owner of a prefix. Returns false if it does not exist.
    pub(in crate::view) fn remove(&mut self, prefix: ObjectPrefix, owner: u32) -> bool {
        let specificity = Specificity::of_prefix(prefix);
        match prefix.net.addr() {
            IpAddr::V4(ip) => remove(&mut self.ipv4, specificity, (ip.to_bits(), owner)),
            IpAddr::V6(ip) => remove(&mut self.ipv6, specificity, (ip.to_bits(), owner)),
        }
    }

    /// Adds many entries for single addresses at once.
    pub(in crate::view) fn add_hosts(&mut self, hosts: HostEntries) {
        merge_set(&mut self.ipv4, Specificity::of_hosts(32), hosts.ipv4);
        merge_set(&mut self.ipv6, Specificity::of_hosts(128), hosts.ipv6);
    }

    /// Adds many prefixes at once.
    pub(in crate::view) fn insert_all(&mut self, mut entries: Vec<(ObjectPrefix, u32)>) {
        // this sorts the addresses of each length, IPv4 first
        entries.sort_unstable_by_key(|(prefix, _)| (Specificity::of_prefix(*prefix), prefix.net.addr()));
        for same_length in entries.chunk_by(|(left, _), (right, _)| Specificity::of_prefix(*left) == Specificity::of_prefix(*right)) {
            let specificity = Specificity::of_prefix(same_length[0].0);
            let (mut ipv4, mut ipv6) = (Vec::new(), Vec::new());
            for (prefix, owner) in same_length {
                match prefix.net.addr() {
                    IpAddr::V4(ip) => ipv4.push((ip.to_bits(), *owner)),
                    IpAddr::V6(ip) => ipv6.push((ip.to_bits(), *owner)),
                }
            }
            merge_set(&mut self.ipv4, specificity, PagedSet::from_sorted(&ipv4, |owner| owner));
            merge_set(&mut self.ipv6, specificity, PagedSet::from_sorted(&ipv6, |owner| owner));
        }
    }

    /// Returns whether there are no entries.
    pub(in crate::view) fn is_empty(&self) -> bool {
        self.ipv4.is_empty() && self.ipv6.is_empty()
    }

    /// Returns the owners of exactly this prefix.
    pub(in crate::view) fn exact(&self, prefix: ObjectPrefix) -> &[u32] {
        match prefix.net.addr() {
            IpAddr::V4(ip) => exact(&self.ipv4, prefix, ip.to_bits()),
            IpAddr::V6(ip) => exact(&self.ipv6, prefix, ip.to_bits()),
        }
    }

    /// Iterates over the prefixes inside a network and their owners, in no particular order.
    pub(in crate::view) fn prefixes_in(&self, net: IpNet) -> Box<dyn Iterator<Item = (ObjectPrefix, u32)> + '_> {
        match net.trunc() {
            IpNet::V4(net) => Box::new(prefixes_in(&self.ipv4, net.prefix_len(), (net.network().to_bits(), net.broadcast().to_bits()))),
            IpNet::V6(net) => Box::new(prefixes_in(&self.ipv6, net.prefix_len(), (net.network().to_bits(), net.broadcast().to_bits()))),
        }
    }

    /// Returns the longest prefix that covers an address. Allocates no memory.
    pub(in crate::view) fn longest_match(&self, ip: IpAddr) -> Option<ObjectPrefix> {
        match ip {
            IpAddr::V4(ip) => covering(&self.ipv4, ip.to_bits(), 32).next(),
            IpAddr::V6(ip) => covering(&self.ipv6, ip.to_bits(), 128).next(),
        }
    }

    /// Returns the prefixes that cover a whole network, most specific first.
    pub(super) fn covering(&self, net: IpNet) -> Vec<ObjectPrefix> {
        match net.addr() {
            IpAddr::V4(ip) => covering(&self.ipv4, ip.to_bits(), net.prefix_len()).collect(),
            IpAddr::V6(ip) => covering(&self.ipv6, ip.to_bits(), net.prefix_len()).collect(),
        }
    }
}

fn prefixes_in<A: AddressBits>(family: &PrefixSets<A>, length: u8, (first, last): (A, A)) -> impl Iterator<Item = (ObjectPrefix, u32)> {
    let inside = family.iter().filter(move |(specificity, _)| specificity.length >= length);
    inside.flat_map(move |(specificity, set)| {
        set.range(first, last).filter_map(|(address, owner)| {
            let net = IpNet::new(address.to_ip(), specificity.length).ok()?;
            Some((ObjectPrefix { net, host: specificity.host }, owner))
        })
    })
}

fn merge_set<A: Copy + Ord>(family: &mut PrefixSets<A>, specificity: Specificity, entries: PagedSet<A>) {
    if entries.len() > 0 {
        set_mut(family, specificity).merge(entries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClusterName, Kind};

    fn key(name: &str) -> EntryKey {
        EntryKey::new(Kind::Ip, ClusterName::parse("paris").unwrap(), name)
    }

    fn cidr(text: &str) -> ObjectPrefix {
        ObjectPrefix { net: text.parse().unwrap(), host: false }
    }

    fn host(text: &str) -> ObjectPrefix {
        ObjectPrefix { net: IpNet::from(text.parse::<IpAddr>().unwrap()), host: true }
    }

    #[test]
    fn the_longest_prefix_wins_and_hosts_precede_cidrs() {
        let mut index = IpIndex::default();
        let entries = [
            (cidr("0.0.0.0/0"), "0.0.0.0/0"),
            (cidr("10.1.0.0/16"), "10.1.0.0/16"),
            (cidr("10.1.2.0/24"), "10.1.2.0/24"),
            (cidr("10.1.2.3/32"), "10.1.2.3/32"),
            (host("10.1.2.3"), "10.1.2.3"),
            (cidr("fd00::/8"), "fd00::/8"),
            (host("fd00::1"), "fd00::1"),
            (cidr("10.1.2.4/30"), "10.1.2.6/30"),
        ];
        for (prefix, name) in &entries {
            index.update(IndexUpdate::Add, *prefix, &key(name), 0);
        }
        let found = |index: &IpIndex, ip: &str| index.longest_match(ip.parse().unwrap());
        assert_eq!(found(&index, "10.1.2.3"), Some(host("10.1.2.3")));
        assert_eq!(found(&index, "10.1.2.9"), Some(cidr("10.1.2.0/24")));
        assert_eq!(found(&index, "10.1.2.5"), Some(cidr("10.1.2.4/30")));
        assert_eq!(found(&index, "10.1.3.4"), Some(cidr("10.1.0.0/16")));
        assert_eq!(found(&index, "192.0.2.1"), Some(cidr("0.0.0.0/0")));
        assert_eq!(found(&index, "fd00::1"), Some(host("fd00::1")));
        assert_eq!(found(&index, "fd00::2"), Some(cidr("fd00::/8")));
        assert_eq!(found(&index, "2001:db8::1"), None);
        assert_eq!(index.noncanonical_at(cidr("10.1.2.4/30")).collect::<Vec<_>>(), [&key("10.1.2.6/30")]);
        index.update(IndexUpdate::Remove, host("10.1.2.3"), &key("10.1.2.3"), 0);
        assert_eq!(found(&index, "10.1.2.3"), Some(cidr("10.1.2.3/32")));
        for (prefix, name) in &entries {
            index.update(IndexUpdate::Remove, *prefix, &key(name), 0);
        }
        assert_eq!(found(&index, "10.1.2.3"), None);
        assert!(index.canonical.is_empty() && index.noncanonical.is_empty());
    }

    #[test]
    fn each_cluster_has_its_own_entry_for_a_prefix() {
        let mut index = IpIndex::default();
        for cluster in [1, 2, 2] {
            index.update(IndexUpdate::Add, host("10.0.0.1"), &key("10.0.0.1"), cluster);
        }
        let clusters = |index: &IpIndex| index.canonical.exact(host("10.0.0.1")).to_vec();
        assert_eq!(clusters(&index), [1, 2]);
        index.update(IndexUpdate::Remove, host("10.0.0.1"), &key("10.0.0.1"), 2);
        assert_eq!(clusters(&index), [1]);
    }
}
