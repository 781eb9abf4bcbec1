//! Entries by prefix, for exact and longest-prefix lookups over both families.
//!
//! As Cilium's ipcache does (`pkg/ipcache/ipcache.go`), a lookup probes the prefix lengths that exist, longest first; a host
//! entry comes before a CIDR of full length. An entry is an address and the number of its cluster: with the length they are its key again.
//! Where they are not (`10.1.2.3/24` stands for `10.1.2.0/24`), the key itself is kept, among the *odd* ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use imbl::OrdSet;
use ipnet::IpNet;

use crate::model::{EntryKey, ObjectPrefix};
use crate::view::collections::paged::PagedSet;

/// Ip entries by the prefix that they stand for.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct IpIndex {
    /// Those whose key is the prefix, each with the number of its cluster.
    pub(in crate::view) usual: Prefixes,
    /// The others, each with its key.
    pub(super) odd: OrdSet<(ObjectPrefix, EntryKey)>,
}

/// Prefixes, each with the numbers of those that have it: clusters or nodes.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct Prefixes {
    ipv4: Family<u32>,
    ipv6: Family<u128>,
}

/// Hosts, each with the number of its cluster or node.
#[derive(Debug, Default)]
pub(in crate::view) struct HostEntries {
    pub(in crate::view) ipv4: PagedSet<u32>,
    pub(in crate::view) ipv6: PagedSet<u128>,
}

/// One set for each prefix length that exists, hosts apart, most specific first.
type Family<A> = Arc<Vec<(Specificity, PagedSet<A>)>>;

/// A prefix length and whether it is of hosts, in order of precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Specificity {
    length: u8,
    host: bool,
}

/// An address as a number of its family.
trait Address: Copy + Ord {
    const BITS: u8;

    /// The address with only its first bits.
    fn network(self, length: u8) -> Self;

    fn to_ip(self) -> IpAddr;
}

impl Address for u32 {
    const BITS: u8 = 32;

    fn network(self, length: u8) -> Self {
        self & Self::MAX.checked_shl(u32::from(<Self as Address>::BITS - length)).unwrap_or(0)
    }

    fn to_ip(self) -> IpAddr {
        Ipv4Addr::from(self).into()
    }
}

impl Address for u128 {
    const BITS: u8 = 128;

    fn network(self, length: u8) -> Self {
        self & Self::MAX.checked_shl(u32::from(<Self as Address>::BITS - length)).unwrap_or(0)
    }

    fn to_ip(self) -> IpAddr {
        Ipv6Addr::from(self).into()
    }
}

impl Specificity {
    fn of(prefix: ObjectPrefix) -> Self {
        Self { length: prefix.net.prefix_len(), host: prefix.host }
    }

    const fn of_hosts(bits: u8) -> Self {
        Self { length: bits, host: true }
    }
}

fn sets_mut<A: Copy + Ord>(family: &mut Family<A>, rank: Specificity) -> &mut PagedSet<A> {
    let sets = Arc::make_mut(family);
    let at = sets.partition_point(|(other, _)| *other > rank);
    if sets.get(at).is_none_or(|(other, _)| *other != rank) {
        sets.insert(at, (rank, PagedSet::default()));
    }
    &mut sets[at].1
}

fn remove<A: Copy + Ord>(family: &mut Family<A>, rank: Specificity, entry: (A, u32)) -> bool {
    let set = sets_mut(family, rank);
    let removed = set.remove(&entry);
    if set.len() == 0 {
        Arc::make_mut(family).retain(|(other, _)| *other != rank);
    }
    removed
}

fn exact<A: Address>(family: &Family<A>, prefix: ObjectPrefix, address: A) -> &[u32] {
    let rank = Specificity::of(prefix);
    family.iter().find(|(other, _)| *other == rank).map_or(&[], |(_, set)| set.at(address))
}

fn longest<A: Address>(family: &Family<A>, address: A) -> Option<ObjectPrefix> {
    let (rank, _) = family.iter().find(|(rank, set)| !set.at(address.network(rank.length)).is_empty())?;
    let net = IpNet::new(address.network(rank.length).to_ip(), rank.length).ok()?;
    Some(ObjectPrefix { net, host: rank.host })
}

/// The addresses of hosts in order, as often as they have entries.
fn hosts<A: Address>(family: &Family<A>) -> impl Iterator<Item = A> {
    family.iter().filter(|(rank, _)| *rank == Specificity::of_hosts(A::BITS)).flat_map(|(_, set)| set.addresses())
}

/// The prefixes that have several entries, those of hosts together with other entries for addresses, in order.
fn several<A: Address>(family: &Family<A>, others: &Family<A>, found: &mut Vec<ObjectPrefix>) {
    let prefix =
        |rank: Specificity, address: A| Some(ObjectPrefix { net: IpNet::new(address.to_ip(), rank.length).ok()?, host: rank.host });
    let of_hosts = Specificity::of_hosts(A::BITS);
    found.extend(repeated(merged(hosts(family), hosts(others))).filter_map(|address| prefix(of_hosts, address)));
    for (rank, set) in family.iter().filter(|(rank, _)| *rank != of_hosts) {
        found.extend(repeated(set.addresses()).filter_map(|address| prefix(*rank, address)));
    }
}

/// Two runs in order as one.
fn merged<A: Ord>(one: impl Iterator<Item = A>, other: impl Iterator<Item = A>) -> impl Iterator<Item = A> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(first), Some(second)) if first > second => other.next(),
        (None, _) => other.next(),
        (Some(_), _) => one.next(),
    })
}

/// What comes twice or more, each once.
fn repeated<A: Copy + Ord>(run: impl Iterator<Item = A>) -> impl Iterator<Item = A> {
    let (mut last, mut told) = (None, None);
    run.filter(move |item| {
        let is_again = last.replace(*item) == Some(*item) && told != Some(*item);
        if is_again {
            told = Some(*item);
        }
        is_again
    })
}

impl HostEntries {
    /// Of many in any order.
    pub(in crate::view) fn of(mut ipv4: Vec<(u32, u32)>, mut ipv6: Vec<(u128, u32)>) -> Self {
        ipv4.sort_unstable_by_key(|(address, _)| *address);
        ipv6.sort_unstable_by_key(|(address, _)| *address);
        Self { ipv4: PagedSet::of_sorted(&ipv4, |cluster| cluster), ipv6: PagedSet::of_sorted(&ipv6, |cluster| cluster) }
    }
}

impl IpIndex {
    /// Adds the entry of a key; `cluster` is the number of its cluster. Adding it twice changes nothing.
    pub(in crate::view) fn insert(&mut self, prefix: ObjectPrefix, key: &EntryKey, cluster: u32) {
        if *prefix.to_string() != *key.name {
            self.odd.insert((prefix, key.clone()));
            return;
        }
        self.usual.insert(prefix, cluster);
    }

    /// Removes the entry of a key. Removing one that is not there changes nothing.
    pub(in crate::view) fn remove(&mut self, prefix: ObjectPrefix, key: &EntryKey, cluster: u32) {
        if *prefix.to_string() != *key.name {
            self.odd.remove(&(prefix, key.clone()));
            return;
        }
        self.usual.remove(prefix, cluster);
    }

    /// The keys of the odd entries for exactly this prefix.
    pub(super) fn odd_of(&self, prefix: ObjectPrefix) -> impl Iterator<Item = &EntryKey> {
        self.odd.range((prefix, EntryKey::lowest())..).take_while(move |(at, _)| *at == prefix).map(|(_, key)| key)
    }

    /// The prefixes that have several entries together with other entries for hosts, in order of address; odd ones may have one.
    pub(in crate::view) fn prefixes_of_several(&self, others: &Prefixes) -> Vec<ObjectPrefix> {
        let mut found: Vec<ObjectPrefix> = self.odd.iter().map(|(prefix, _)| *prefix).collect();
        several(&self.usual.ipv4, &others.ipv4, &mut found);
        several(&self.usual.ipv6, &others.ipv6, &mut found);
        found
    }

    /// The longest prefix that covers the address and has any entry: hosts alone if there are any. Allocates nothing unless there are odd
    /// entries.
    pub(in crate::view) fn longest_match(&self, ip: IpAddr) -> Option<ObjectPrefix> {
        let usual = self.usual.longest(ip);
        if self.odd.is_empty() {
            return usual;
        }
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        let prefixes = (0..=bits).rev().filter_map(|length| IpNet::new(ip, length).ok());
        let mut prefixes = prefixes.flat_map(|net| [true, false].map(|host| ObjectPrefix { net: net.trunc(), host }));
        prefixes.find(|prefix| usual == Some(*prefix) || self.odd_of(*prefix).next().is_some())
    }
}

impl Prefixes {
    /// Adds one; false where it was there.
    pub(in crate::view) fn insert(&mut self, prefix: ObjectPrefix, holder: u32) -> bool {
        let rank = Specificity::of(prefix);
        match prefix.net.addr() {
            IpAddr::V4(ip) => sets_mut(&mut self.ipv4, rank).insert((ip.to_bits(), holder)),
            IpAddr::V6(ip) => sets_mut(&mut self.ipv6, rank).insert((ip.to_bits(), holder)),
        }
    }

    /// Removes one; false where it was not there.
    pub(in crate::view) fn remove(&mut self, prefix: ObjectPrefix, holder: u32) -> bool {
        let rank = Specificity::of(prefix);
        match prefix.net.addr() {
            IpAddr::V4(ip) => remove(&mut self.ipv4, rank, (ip.to_bits(), holder)),
            IpAddr::V6(ip) => remove(&mut self.ipv6, rank, (ip.to_bits(), holder)),
        }
    }

    /// Takes in many hosts at once.
    pub(in crate::view) fn take_hosts(&mut self, hosts: HostEntries) {
        fill(&mut self.ipv4, Specificity::of_hosts(32), hosts.ipv4);
        fill(&mut self.ipv6, Specificity::of_hosts(128), hosts.ipv6);
    }

    /// Takes in many at once: quickly where there are few.
    pub(in crate::view) fn take(&mut self, mut entries: Vec<(ObjectPrefix, u32)>) {
        // the addresses of a length in order, those of IPv4 first
        entries.sort_unstable_by_key(|(prefix, _)| (Specificity::of(*prefix), prefix.net.addr()));
        for of_length in entries.chunk_by(|(left, _), (right, _)| Specificity::of(*left) == Specificity::of(*right)) {
            let rank = Specificity::of(of_length[0].0);
            let (mut ipv4, mut ipv6) = (Vec::new(), Vec::new());
            for (prefix, holder) in of_length {
                match prefix.net.addr() {
                    IpAddr::V4(ip) => ipv4.push((ip.to_bits(), *holder)),
                    IpAddr::V6(ip) => ipv6.push((ip.to_bits(), *holder)),
                }
            }
            fill(&mut self.ipv4, rank, PagedSet::of_sorted(&ipv4, |holder| holder));
            fill(&mut self.ipv6, rank, PagedSet::of_sorted(&ipv6, |holder| holder));
        }
    }

    /// Whether there is no entry.
    pub(in crate::view) fn is_empty(&self) -> bool {
        self.ipv4.is_empty() && self.ipv6.is_empty()
    }

    /// The holders of exactly this prefix.
    pub(in crate::view) fn exact(&self, prefix: ObjectPrefix) -> &[u32] {
        match prefix.net.addr() {
            IpAddr::V4(ip) => exact(&self.ipv4, prefix, ip.to_bits()),
            IpAddr::V6(ip) => exact(&self.ipv6, prefix, ip.to_bits()),
        }
    }

    /// The prefixes inside a network, each with its holder, in no particular order.
    pub(in crate::view) fn within(&self, net: IpNet) -> Box<dyn Iterator<Item = (ObjectPrefix, u32)> + '_> {
        match net.trunc() {
            IpNet::V4(net) => Box::new(within(&self.ipv4, net.prefix_len(), (net.network().to_bits(), net.broadcast().to_bits()))),
            IpNet::V6(net) => Box::new(within(&self.ipv6, net.prefix_len(), (net.network().to_bits(), net.broadcast().to_bits()))),
        }
    }

    /// The longest prefix that covers an address. Allocates nothing.
    pub(in crate::view) fn longest(&self, ip: IpAddr) -> Option<ObjectPrefix> {
        match ip {
            IpAddr::V4(ip) => longest(&self.ipv4, ip.to_bits()),
            IpAddr::V6(ip) => longest(&self.ipv6, ip.to_bits()),
        }
    }
}

fn within<A: Address>(family: &Family<A>, length: u8, (first, last): (A, A)) -> impl Iterator<Item = (ObjectPrefix, u32)> {
    let inside = family.iter().filter(move |(rank, _)| rank.length >= length);
    inside.flat_map(move |(rank, set)| {
        set.range(first, last).filter_map(|(address, holder)| {
            let net = IpNet::new(address.to_ip(), rank.length).ok()?;
            Some((ObjectPrefix { net, host: rank.host }, holder))
        })
    })
}

fn fill<A: Copy + Ord>(family: &mut Family<A>, rank: Specificity, entries: PagedSet<A>) {
    if entries.len() > 0 {
        sets_mut(family, rank).absorb(entries);
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
    fn the_longest_prefix_wins_and_a_host_beats_a_cidr_of_full_length() {
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
            index.insert(*prefix, &key(name), 0);
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
        assert_eq!(index.odd_of(cidr("10.1.2.4/30")).collect::<Vec<_>>(), [&key("10.1.2.6/30")]);
        index.remove(host("10.1.2.3"), &key("10.1.2.3"), 0);
        assert_eq!(found(&index, "10.1.2.3"), Some(cidr("10.1.2.3/32")));
        for (prefix, name) in &entries {
            index.remove(*prefix, &key(name), 0);
        }
        assert_eq!(found(&index, "10.1.2.3"), None);
        assert!(index.usual.is_empty() && index.odd.is_empty());
    }

    #[test]
    fn the_same_prefix_in_several_clusters_is_kept_apart() {
        let mut index = IpIndex::default();
        for cluster in [1, 2, 2] {
            index.insert(host("10.0.0.1"), &key("10.0.0.1"), cluster);
        }
        let clusters = |index: &IpIndex| index.usual.exact(host("10.0.0.1")).to_vec();
        assert_eq!(clusters(&index), [1, 2]);
        index.remove(host("10.0.0.1"), &key("10.0.0.1"), 2);
        assert_eq!(clusters(&index), [1]);
    }
}
