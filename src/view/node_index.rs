//! Which nodes have an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smol_str::SmolStr;

use super::bloom_filter::BloomFilter;
use super::paged::PagedSet;

/// Nodes by addresses: their own, or those that entries are derived for.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeIndex {
    ipv4: PagedSet<u32, NodeName>,
    ipv6: PagedSet<u128, NodeName>,
    /// What either of them may have.
    filter: BloomFilter,
}

/// The number of a node's cluster, and its name, which all its addresses share where it is longer than 23 bytes, as memory is what an index costs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeName {
    pub(super) cluster: u32,
    pub(super) node: SmolStr,
}

/// Addresses of nodes, to be indexed all at once.
#[derive(Debug, Default)]
pub(super) struct NodeAddresses {
    names: Vec<NodeName>,
    /// Each with the place of its name.
    ipv4: Vec<(u32, u32)>,
    ipv6: Vec<(u128, u32)>,
}

impl NodeAddresses {
    /// Adds an address of a node. As a rule those of one node follow each other, and share its name.
    pub(super) fn push(&mut self, ip: IpAddr, cluster: u32, node: &[u8]) {
        if self.names.last().is_none_or(|last| last.cluster != cluster || last.node.as_bytes() != node) {
            self.names.push(NodeName { cluster, node: String::from_utf8_lossy(node).into() });
        }
        // there are fewer than 2^32 nodes
        let name = u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX);
        match ip {
            IpAddr::V4(ip) => self.ipv4.push((ip.to_bits(), name)),
            IpAddr::V6(ip) => self.ipv6.push((ip.to_bits(), name)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ipv4.len() + self.ipv6.len()
    }
}

impl NodeIndex {
    /// Adds an address of a node. Adding it twice changes nothing.
    pub(super) fn insert(&mut self, ip: IpAddr, node: NodeName) {
        if self.filter.is_full() {
            self.renew_filter();
        }
        self.filter.insert(ip);
        match ip {
            IpAddr::V4(ip) => self.ipv4.insert((ip.to_bits(), node)),
            IpAddr::V6(ip) => self.ipv6.insert((ip.to_bits(), node)),
        };
    }

    /// Makes an index of many at once.
    pub(super) fn of(addresses: NodeAddresses) -> Self {
        let NodeAddresses { names, mut ipv4, mut ipv6 } = addresses;
        ipv4.sort_unstable_by_key(|(address, _)| *address);
        ipv6.sort_unstable_by_key(|(address, _)| *address);
        let name = |place: u32| names[place as usize].clone();
        let (ipv4, ipv6) = (PagedSet::of_sorted(&ipv4, name), PagedSet::of_sorted(&ipv6, name));
        let mut index = Self { ipv4, ipv6, filter: BloomFilter::default() };
        index.renew_filter();
        index
    }

    /// Takes in another index: quickly where one of them is small.
    pub(super) fn absorb(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
            return;
        }
        self.ipv4.absorb(other.ipv4);
        self.ipv6.absorb(other.ipv6);
        self.renew_filter();
    }

    fn is_empty(&self) -> bool {
        self.ipv4.len() + self.ipv6.len() == 0
    }

    fn renew_filter(&mut self) {
        let ipv4 = self.ipv4.addresses().map(|ip| Ipv4Addr::from(ip).into());
        let ipv6 = self.ipv6.addresses().map(|ip| Ipv6Addr::from(ip).into());
        self.filter = BloomFilter::of(ipv4.chain(ipv6), self.ipv4.len() + self.ipv6.len());
    }

    /// Removes an address of a node. Removing one that is not there changes nothing.
    pub(super) fn remove(&mut self, ip: IpAddr, node: NodeName) {
        match ip {
            IpAddr::V4(ip) => self.ipv4.remove(&(ip.to_bits(), node)),
            IpAddr::V6(ip) => self.ipv6.remove(&(ip.to_bits(), node)),
        };
    }

    /// The nodes that have an address.
    pub(super) fn at(&self, ip: IpAddr) -> &[NodeName] {
        match ip {
            ip if !self.filter.may_hold(ip) => &[],
            IpAddr::V4(ip) => self.ipv4.at(ip.to_bits()),
            IpAddr::V6(ip) => self.ipv6.at(ip.to_bits()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ip: &str, cluster: u32, node: &str) -> (IpAddr, NodeName) {
        (ip.parse().unwrap(), NodeName { cluster, node: node.into() })
    }

    fn nodes(index: &NodeIndex, ip: &str) -> Vec<String> {
        index.at(ip.parse().unwrap()).iter().map(|name| format!("{}/{}", name.cluster, name.node)).collect()
    }

    #[test]
    fn nodes_are_found_by_either_family_however_they_came() {
        let entries = || {
            vec![
                entry("fd00::1", 2, "b"),
                entry("10.0.0.1", 2, "b"),
                entry("10.0.0.1", 1, "a"),
                entry("10.0.0.1", 1, "a"),
                entry("10.0.0.1", 1, "c"),
            ]
        };
        let index_of = |entries: Vec<(IpAddr, NodeName)>| {
            let mut addresses = NodeAddresses::default();
            entries.iter().for_each(|(ip, name)| addresses.push(*ip, name.cluster, name.node.as_bytes()));
            NodeIndex::of(addresses)
        };
        let (at_once, mut twice, mut singly) = (index_of(entries()), index_of(entries()), NodeIndex::default());
        twice.absorb(index_of(entries()));
        entries().into_iter().for_each(|(ip, name)| singly.insert(ip, name));
        for index in [&at_once, &twice, &singly] {
            assert_eq!(nodes(index, "10.0.0.1"), ["1/a", "1/c", "2/b"]);
            assert_eq!(nodes(index, "fd00::1"), ["2/b"]);
            assert_eq!(nodes(index, "::ffff:10.0.0.1"), [""; 0]);
        }
        let (ip, name) = entry("10.0.0.1", 1, "c");
        singly.remove(ip, name.clone());
        singly.remove(ip, name);
        assert_eq!(nodes(&singly, "10.0.0.1"), ["1/a", "2/b"]);
    }

    /// More than a first filter has room for, several times; a copy from before has what it had.
    #[test]
    fn an_index_that_grows_finds_all_that_it_has() {
        let ip = |number: u32| match number % 2 {
            0 => IpAddr::from(Ipv4Addr::from(10 << 24 | number)),
            _ => IpAddr::from(Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(number))),
        };
        let name = |number: u32| NodeName { cluster: number % 3, node: format!("n{number}").into() };
        let (mut index, mut copy) = (NodeIndex::default(), NodeIndex::default());
        for number in 0..2_000 {
            if number == 700 {
                copy = index.clone();
            }
            index.insert(ip(number), name(number));
            if number % 5 == 4 {
                index.remove(ip(number - 3), name(number - 3));
            }
        }
        for number in 0..2_000 {
            let is_removed = |upto: u32| number % 5 == 1 && number + 3 < upto;
            assert_eq!(index.at(ip(number)).len(), usize::from(!is_removed(2_000)), "{number}");
            assert_eq!(copy.at(ip(number)).len(), usize::from(number < 700 && !is_removed(700)), "{number} of the copy");
        }
    }
}
