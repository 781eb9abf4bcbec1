//! Nodes by address, and by the addresses and pod CIDRs that entries are derived for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::ipcache::{HostEntries, Prefixes};
use super::node_names::{NodeName, NodeNames};
use crate::model::ObjectPrefix;
use crate::view::collections::paged::PagedSet;

/// Nodes by addresses.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct NodeIndex {
    names: NodeNames,
    own: Prefixes,
    /// What entries are derived for: the pod CIDRs too.
    pub(in crate::view) derived: Prefixes,
}

/// What an address is to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::view) enum Bond {
    /// Its object lists it.
    Own,
    /// An entry of the ipcache is derived from it for that address, or that pod CIDR.
    Derived,
}

/// Addresses of nodes, to be indexed all at once.
#[derive(Debug, Default)]
pub(in crate::view) struct NodeAddresses {
    names: Vec<NodeName>,
    /// Each with the place of its name.
    ipv4: Vec<(u32, u32)>,
    ipv6: Vec<(u128, u32)>,
    pod_cidrs: Vec<(ObjectPrefix, u32)>,
}

impl NodeAddresses {
    /// Adds an address of a node, or a pod CIDR. As a rule those of one node follow each other, and share its name.
    pub(in crate::view) fn push(&mut self, prefix: ObjectPrefix, cluster: u32, node: &[u8]) {
        let name = self.name(cluster, node);
        match prefix.net.addr() {
            _ if !prefix.host => self.pod_cidrs.push((prefix, name)),
            IpAddr::V4(ip) => self.ipv4.push((ip.to_bits(), name)),
            IpAddr::V6(ip) => self.ipv6.push((ip.to_bits(), name)),
        }
    }

    /// The place of a name.
    fn name(&mut self, cluster: u32, node: &[u8]) -> u32 {
        if self.names.last().is_none_or(|last| last.cluster != cluster || last.node.as_bytes() != node) {
            self.names.push(NodeName { cluster, node: String::from_utf8_lossy(node).into() });
        }
        // there are fewer than 2^32 nodes
        u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX)
    }

    /// Puts them in order, each once.
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
    /// Adds an address of a node, or a pod CIDR. Adding it twice changes nothing.
    pub(in crate::view) fn insert(&mut self, bond: Bond, prefix: ObjectPrefix, cluster: u32, node: &str) {
        let number = self.names.assign(cluster, node);
        self.insert_number(bond, prefix, number);
    }

    fn insert_number(&mut self, bond: Bond, prefix: ObjectPrefix, number: u32) {
        if self.prefixes_mut(bond).insert(prefix, number) {
            self.names.use_once(number);
        }
    }

    /// Removes one. Removing what is not there changes nothing.
    pub(in crate::view) fn remove(&mut self, bond: Bond, prefix: ObjectPrefix, cluster: u32, node: &str) {
        if let Some(number) = self.names.number(cluster, node)
            && self.prefixes_mut(bond).remove(prefix, number)
        {
            self.names.release(number);
        }
    }

    /// Adds many, in order: quickly if there are none yet.
    pub(in crate::view) fn take(&mut self, bond: Bond, addresses: NodeAddresses) {
        let NodeAddresses { names, ipv4, ipv6, pod_cidrs } = addresses;
        let numbers = self.names.assign_all(names);
        let number = |place: u32| numbers[place as usize];
        if !self.prefixes(bond).is_empty() {
            ipv4.into_iter().for_each(|(ip, place)| self.insert_number(bond, ObjectPrefix::of_host(Ipv4Addr::from(ip)), number(place)));
            ipv6.into_iter().for_each(|(ip, place)| self.insert_number(bond, ObjectPrefix::of_host(Ipv6Addr::from(ip)), number(place)));
            pod_cidrs.into_iter().for_each(|(prefix, place)| self.insert_number(bond, prefix, number(place)));
            return;
        }
        let mut uses = vec![0; self.names.len()];
        let places = ipv4.iter().map(|(_, place)| *place).chain(ipv6.iter().map(|(_, place)| *place));
        places.chain(pod_cidrs.iter().map(|(_, place)| *place)).for_each(|place| uses[number(place) as usize] += 1);
        self.names.use_all(&uses);
        let prefixes = self.prefixes_mut(bond);
        prefixes.take_hosts(HostEntries { ipv4: PagedSet::of_sorted(&ipv4, number), ipv6: PagedSet::of_sorted(&ipv6, number) });
        prefixes.take(pod_cidrs.into_iter().map(|(prefix, place)| (prefix, number(place))).collect());
    }

    /// The nodes that have an address, or exactly this pod CIDR.
    pub(in crate::view) fn at(&self, bond: Bond, prefix: ObjectPrefix) -> impl Iterator<Item = &NodeName> {
        self.prefixes(bond).exact(prefix).iter().filter_map(|number| self.names.get(*number))
    }

    /// What entries are derived for inside a network, each with its node, in no particular order.
    pub(super) fn derived_within(&self, net: IpNet) -> impl Iterator<Item = (ObjectPrefix, &NodeName)> {
        self.derived.within(net).filter_map(|(prefix, number)| Some((prefix, self.names.get(number)?)))
    }

    const fn prefixes(&self, bond: Bond) -> &Prefixes {
        match bond {
            Bond::Own => &self.own,
            Bond::Derived => &self.derived,
        }
    }

    const fn prefixes_mut(&mut self, bond: Bond) -> &mut Prefixes {
        match bond {
            Bond::Own => &mut self.own,
            Bond::Derived => &mut self.derived,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Entry = (Bond, IpAddr, u32, String);

    fn insert(index: &mut NodeIndex, (bond, ip, cluster, node): &Entry) {
        index.insert(*bond, ObjectPrefix::of_host(*ip), *cluster, node);
    }

    fn remove(index: &mut NodeIndex, (bond, ip, cluster, node): &Entry) {
        index.remove(*bond, ObjectPrefix::of_host(*ip), *cluster, node);
    }

    fn take(index: &mut NodeIndex, entries: &[Entry]) {
        for bond in [Bond::Own, Bond::Derived] {
            let mut addresses = NodeAddresses::default();
            for (_, ip, cluster, node) in entries.iter().filter(|entry| entry.0 == bond) {
                addresses.push(ObjectPrefix::of_host(*ip), *cluster, node.as_bytes());
            }
            addresses.sort();
            index.take(bond, addresses);
        }
    }

    fn nodes(index: &NodeIndex, bond: Bond, ip: &str) -> Vec<String> {
        let mut nodes: Vec<String> =
            index.at(bond, ObjectPrefix::parse(ip).unwrap()).map(|name| format!("{}/{}", name.cluster, name.node)).collect();
        nodes.sort();
        nodes
    }

    #[test]
    fn nodes_are_found_by_either_family_however_they_came() {
        let own = [("fd00::1", 2, "b"), ("10.0.0.1", 2, "b"), ("10.0.0.1", 1, "a"), ("10.0.0.1", 1, "a"), ("10.0.0.1", 1, "c")];
        let derived = [("10.0.0.1", 1, "c"), ("10.0.0.2", 1, "c"), ("10.0.0.1", 2, "b"), ("10.0.0.2", 1, "d")];
        let of = |bond| move |(ip, cluster, node): (&str, u32, &str)| (bond, ip.parse().unwrap(), cluster, node.to_owned());
        let entries: Vec<Entry> = own.map(of(Bond::Own)).into_iter().chain(derived.map(of(Bond::Derived))).collect();
        let (mut at_once, mut in_parts, mut singly) = (NodeIndex::default(), NodeIndex::default(), NodeIndex::default());
        take(&mut at_once, &entries);
        take(&mut in_parts, &entries[2..]);
        take(&mut in_parts, &entries);
        entries.iter().for_each(|entry| insert(&mut singly, entry));
        for index in [&mut at_once, &mut in_parts, &mut singly] {
            assert_eq!(nodes(index, Bond::Own, "10.0.0.1"), ["1/a", "1/c", "2/b"]);
            assert_eq!(nodes(index, Bond::Own, "fd00::1"), ["2/b"]);
            assert_eq!(nodes(index, Bond::Own, "::ffff:10.0.0.1"), [""; 0]);
            assert_eq!((nodes(index, Bond::Own, "10.0.0.2"), nodes(index, Bond::Derived, "fd00::1")), (vec![], vec![]));
            assert_eq!(nodes(index, Bond::Derived, "10.0.0.1"), ["1/c", "2/b"]);
            assert_eq!(nodes(index, Bond::Derived, "10.0.0.2"), ["1/c", "1/d"]);
            // once however often it came, and each node's name until its last address goes
            for entry in [&entries[4], &entries[4], &entries[6]] {
                remove(index, entry);
            }
            assert_eq!(nodes(index, Bond::Own, "10.0.0.1"), ["1/a", "2/b"]);
            assert_eq!((nodes(index, Bond::Derived, "10.0.0.2"), index.names.number(1, "c").is_some()), (vec!["1/d".to_owned()], true));
            entries.iter().for_each(|entry| remove(index, entry));
            let left = ["a", "b", "c", "d"].iter().filter(|node| (1..3).any(|cluster| index.names.number(cluster, node).is_some())).count();
            assert_eq!((left, index.own.is_empty(), index.derived.is_empty()), (0, true, true));
        }
    }

    /// Far more than a page has; a copy from before has what it had.
    #[test]
    fn an_index_that_grows_finds_all_that_it_has() {
        let entry = |number: u32| {
            let ip = match number % 2 {
                0 => IpAddr::from(Ipv4Addr::from(10 << 24 | number)),
                _ => IpAddr::from(Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(number))),
            };
            (Bond::Own, ip, number % 3, format!("n{number}"))
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
            let is_removed = |upto: u32| number % 5 == 1 && number + 3 < upto;
            let found = |index: &NodeIndex| {
                let names = index.at(Bond::Own, ObjectPrefix::of_host(entry(number).1));
                names.map(|name| (name.cluster, name.node.to_string())).collect::<Vec<_>>()
            };
            let expected = |is_there: bool| if is_there { vec![(number % 3, format!("n{number}"))] } else { vec![] };
            assert_eq!(found(&index), expected(!is_removed(2_000)), "{number}");
            assert_eq!(found(&copy), expected(number < 700 && !is_removed(700)), "{number} of the copy");
        }
    }
}
