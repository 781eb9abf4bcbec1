//! Nodes by address, and by the prefixes of the ipcache entries that are derived from them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::ipcache::{HostEntries, PrefixIndex};
use super::node_numbers::{NodeName, NodeNumbers};
use crate::model::ObjectPrefix;
use crate::view::collections::paged_set::PagedSet;

/// Numbers of nodes by prefix.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct NodeIndex {
    names: NodeNumbers,
    listed: PrefixIndex,
    /// Prefixes of derived entries, including pod CIDRs.
    pub(in crate::view) derived: PrefixIndex,
}

/// Relation between an address and a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::view) enum AddressKind {
    /// The node's object lists the address.
    Listed,
    /// The address or pod CIDR has a derived ipcache entry.
    Derived,
}

/// Addresses of nodes, for bulk insertion.
#[derive(Debug, Default)]
pub(in crate::view) struct NodeAddresses {
    names: Vec<NodeName>,
    /// IPv4 addresses with indices into `names`.
    ipv4: Vec<(u32, u32)>,
    ipv6: Vec<(u128, u32)>,
    pod_cidrs: Vec<(ObjectPrefix, u32)>,
}

impl NodeAddresses {
    /// Adds an address or pod CIDR of a node. Consecutive calls for one node share its name.
    pub(in crate::view) fn push(&mut self, prefix: ObjectPrefix, cluster: u32, node: &[u8]) {
        let index = self.name_index(cluster, node);
        match prefix.net.addr() {
            _ if !prefix.host => self.pod_cidrs.push((prefix, index)),
            IpAddr::V4(ip) => self.ipv4.push((ip.to_bits(), index)),
            IpAddr::V6(ip) => self.ipv6.push((ip.to_bits(), index)),
        }
    }

    /// Returns the index of a name in `names`.
    fn name_index(&mut self, cluster: u32, node: &[u8]) -> u32 {
        if self.names.last().is_none_or(|last| last.cluster != cluster || last.node.as_bytes() != node) {
            self.names.push(NodeName { cluster, node: String::from_utf8_lossy(node).into() });
        }
        // there are fewer than 2^32 nodes
        u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX)
    }

    /// Sorts the addresses and removes duplicates.
    pub(in crate::view) fn sort(&mut self) {
        self.ipv4.sort_unstable();
        self.ipv4.dedup();
        self.ipv6.sort_unstable();
        self.ipv6.dedup();
        self.pod_cidrs.sort_unstable();
        self.pod_cidrs.dedup();
    }
}

impl NodeIndex {
    /// Adds an address or pod CIDR of a node. Adding it twice changes nothing.
    pub(in crate::view) fn insert(&mut self, kind: AddressKind, prefix: ObjectPrefix, cluster: u32, node: &str) {
        let number = self.names.assign(cluster, node);
        self.insert_number(kind, prefix, number);
    }

    fn insert_number(&mut self, kind: AddressKind, prefix: ObjectPrefix, number: u32) {
        if self.prefixes_mut(kind).insert(prefix, number) {
            self.names.add_use(number);
        }
    }

    /// Removes an address or pod CIDR of a node. Removing a missing one changes nothing.
    pub(in crate::view) fn remove(&mut self, kind: AddressKind, prefix: ObjectPrefix, cluster: u32, node: &str) {
        if let Some(number) = self.names.number(cluster, node)
            && self.prefixes_mut(kind).remove(prefix, number)
        {
            self.names.release(number);
        }
    }

    /// Adds many sorted addresses at once. Fast if the index has none yet.
    pub(in crate::view) fn insert_all(&mut self, kind: AddressKind, addresses: NodeAddresses) {
        let NodeAddresses { names, ipv4, ipv6, pod_cidrs } = addresses;
        let numbers = self.names.assign_all(names);
        let number = |index: u32| numbers[index as usize];
        if !self.prefixes(kind).is_empty() {
            ipv4.into_iter().for_each(|(ip, index)| self.insert_number(kind, ObjectPrefix::of_host(Ipv4Addr::from(ip)), number(index)));
            ipv6.into_iter().for_each(|(ip, index)| self.insert_number(kind, ObjectPrefix::of_host(Ipv6Addr::from(ip)), number(index)));
            pod_cidrs.into_iter().for_each(|(prefix, index)| self.insert_number(kind, prefix, number(index)));
            return;
        }
        let mut uses = vec![0; self.names.len()];
        let host_indices = ipv4.iter().map(|(_, index)| *index).chain(ipv6.iter().map(|(_, index)| *index));
        host_indices.chain(pod_cidrs.iter().map(|(_, index)| *index)).for_each(|index| uses[number(index) as usize] += 1);
        self.names.add_uses(&uses);
        let prefixes = self.prefixes_mut(kind);
        prefixes.add_hosts(HostEntries { ipv4: PagedSet::from_sorted(&ipv4, number), ipv6: PagedSet::from_sorted(&ipv6, number) });
        prefixes.insert_all(pod_cidrs.into_iter().map(|(prefix, index)| (prefix, number(index))).collect());
    }

    /// Iterates over the nodes that have an address, or exactly this pod CIDR.
    pub(in crate::view) fn nodes_at(&self, kind: AddressKind, prefix: ObjectPrefix) -> impl Iterator<Item = &NodeName> {
        self.prefixes(kind).exact(prefix).iter().filter_map(|number| self.names.get(*number))
    }

    /// Iterates over the derived prefixes inside a network and their nodes, in no particular order.
    pub(super) fn derived_in(&self, net: IpNet) -> impl Iterator<Item = (ObjectPrefix, &NodeName)> {
        self.derived.prefixes_in(net).filter_map(|(prefix, number)| Some((prefix, self.names.get(number)?)))
    }

    const fn prefixes(&self, kind: AddressKind) -> &PrefixIndex {
        match kind {
            AddressKind::Listed => &self.listed,
            AddressKind::Derived => &self.derived,
        }
    }

    const fn prefixes_mut(&mut self, kind: AddressKind) -> &mut PrefixIndex {
        match kind {
            AddressKind::Listed => &mut self.listed,
            AddressKind::Derived => &mut self.derived,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type AddressEntry = (AddressKind, IpAddr, u32, String);

    fn insert(index: &mut NodeIndex, (kind, ip, cluster, node): &AddressEntry) {
        index.insert(*kind, ObjectPrefix::of_host(*ip), *cluster, node);
    }

    fn remove(index: &mut NodeIndex, (kind, ip, cluster, node): &AddressEntry) {
        index.remove(*kind, ObjectPrefix::of_host(*ip), *cluster, node);
    }

    fn insert_in_bulk(index: &mut NodeIndex, entries: &[AddressEntry]) {
        for kind in [AddressKind::Listed, AddressKind::Derived] {
            let mut addresses = NodeAddresses::default();
            for (_, ip, cluster, node) in entries.iter().filter(|entry| entry.0 == kind) {
                addresses.push(ObjectPrefix::of_host(*ip), *cluster, node.as_bytes());
            }
            addresses.sort();
            index.insert_all(kind, addresses);
        }
    }

    fn nodes(index: &NodeIndex, kind: AddressKind, ip: &str) -> Vec<String> {
        let mut nodes: Vec<String> =
            index.nodes_at(kind, ObjectPrefix::parse(ip).unwrap()).map(|name| format!("{}/{}", name.cluster, name.node)).collect();
        nodes.sort();
        nodes
    }

    #[test]
    fn nodes_are_found_however_they_were_inserted() {
        let listed = [("fd00::1", 2, "b"), ("10.0.0.1", 2, "b"), ("10.0.0.1", 1, "a"), ("10.0.0.1", 1, "a"), ("10.0.0.1", 1, "c")];
        let derived = [("10.0.0.1", 1, "c"), ("10.0.0.2", 1, "c"), ("10.0.0.1", 2, "b"), ("10.0.0.2", 1, "d")];
        let with_kind = |kind| move |(ip, cluster, node): (&str, u32, &str)| (kind, ip.parse().unwrap(), cluster, node.to_owned());
        let entries: Vec<AddressEntry> =
            listed.map(with_kind(AddressKind::Listed)).into_iter().chain(derived.map(with_kind(AddressKind::Derived))).collect();
        let (mut at_once, mut in_parts, mut singly) = (NodeIndex::default(), NodeIndex::default(), NodeIndex::default());
        insert_in_bulk(&mut at_once, &entries);
        insert_in_bulk(&mut in_parts, &entries[2..]);
        insert_in_bulk(&mut in_parts, &entries);
        entries.iter().for_each(|entry| insert(&mut singly, entry));
        for index in [&mut at_once, &mut in_parts, &mut singly] {
            assert_eq!(nodes(index, AddressKind::Listed, "10.0.0.1"), ["1/a", "1/c", "2/b"]);
            assert_eq!(nodes(index, AddressKind::Listed, "fd00::1"), ["2/b"]);
            assert_eq!(nodes(index, AddressKind::Listed, "::ffff:10.0.0.1"), [""; 0]);
            assert_eq!((nodes(index, AddressKind::Listed, "10.0.0.2"), nodes(index, AddressKind::Derived, "fd00::1")), (vec![], vec![]));
            assert_eq!(nodes(index, AddressKind::Derived, "10.0.0.1"), ["1/c", "2/b"]);
            assert_eq!(nodes(index, AddressKind::Derived, "10.0.0.2"), ["1/c", "1/d"]);
            // duplicates count once, and a node keeps its number until its last address is removed
            for entry in [&entries[4], &entries[4], &entries[6]] {
                remove(index, entry);
            }
            assert_eq!(nodes(index, AddressKind::Listed, "10.0.0.1"), ["1/a", "2/b"]);
            assert_eq!(
                (nodes(index, AddressKind::Derived, "10.0.0.2"), index.names.number(1, "c").is_some()),
                (vec!["1/d".to_owned()], true)
            );
            entries.iter().for_each(|entry| remove(index, entry));
            let remaining =
                ["a", "b", "c", "d"].iter().filter(|node| (1..3).any(|cluster| index.names.number(cluster, node).is_some())).count();
            assert_eq!((remaining, index.listed.is_empty(), index.derived.is_empty()), (0, true, true));
        }
    }

    /// Uses several pages. A snapshot must not change.
    #[test]
    fn an_index_of_many_pages_finds_all_nodes() {
        let entry = |number: u32| {
            let ip = match number % 2 {
                0 => IpAddr::from(Ipv4Addr::from(10 << 24 | number)),
                _ => IpAddr::from(Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(number))),
            };
            (AddressKind::Listed, ip, number % 3, format!("n{number}"))
        };
        let (mut index, mut copy) = (NodeIndex::default(), NodeIndex::default());
        for number in 0..2_000 {
            if number == 700 {
                copy = index.clone();
            }
            insert(&mut index, &entry(number));
            if number % 5 == 4 {
                remove(&mut index, &entry(number - 3));
            }
        }
        for number in 0..2_000 {
            let is_removed = |up_to: u32| number % 5 == 1 && number + 3 < up_to;
            let found = |index: &NodeIndex| {
                let names = index.nodes_at(AddressKind::Listed, ObjectPrefix::of_host(entry(number).1));
                names.map(|name| (name.cluster, name.node.to_string())).collect::<Vec<_>>()
            };
            let expected = |exists: bool| if exists { vec![(number % 3, format!("n{number}"))] } else { vec![] };
            assert_eq!(found(&index), expected(!is_removed(2_000)), "{number}");
            assert_eq!(found(&copy), expected(number < 700 && !is_removed(700)), "{number} of the copy");
        }
    }
}
