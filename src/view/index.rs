//! Secondary indices: entries and nodes by address, identities by number, shares of global services, rejected keys.

pub(super) mod ipcache;
pub(super) mod node_index;
mod node_names;
mod numbers;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::OnceLock;

use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;
use smol_str::SmolStr;

use self::ipcache::{HostEntries, IpIndex};
use self::node_index::{Bond, NodeAddresses, NodeIndex};
use self::node_names::NodeName;
use self::numbers::ClusterNumbers;
use super::services::ServiceIndex;
use crate::model::{ClusterName, EntryKey, IdentityLabels, Kind, ObjectPrefix};
use crate::pack::Meaning;

/// What lies inside a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Within {
    /// These keys, in order.
    Few(Vec<EntryKey>),
    /// More, all of them of these clusters, some of which may be named twice.
    Many(Vec<ClusterName>),
    /// No index says.
    Unknown,
}

/// What is found by something other than its key.
#[derive(Debug, Clone, Default)]
pub(super) struct Indices {
    /// The number of each cluster in all indices.
    pub(super) clusters: ClusterNumbers,
    /// Usable ip entries by prefix.
    ipcache: IpIndex,
    /// Usable identities: numeric id and cluster, with the labels, decoded on the first use. The id is the name in the key, but for the odd
    /// ones.
    identities: OrdMap<(u32, u32), OnceLock<IdentityLabels>>,
    /// Identities whose names have leading zeros, so that a cluster may have several of one number.
    odd_identities: OrdSet<(u32, EntryKey)>,
    /// Nodes by each of their addresses, and by those and the pod CIDRs that entries are derived for.
    nodes: NodeIndex,
    /// Who has a share in which global service.
    pub(super) services: ServiceIndex,
    /// Keys whose newest bytes could not be used.
    pub(super) rejected: OrdSet<EntryKey>,
    /// How many records of each kind have a meaning: the usable ones.
    pub(super) object_counts: [u64; Kind::STORED.len()],
}

impl Indices {
    /// Whether two meanings of one key look the same to every index.
    pub(super) fn same(left: &Meaning, right: &Meaning) -> bool {
        match (left, right) {
            (Meaning::Ip { prefix, .. }, Meaning::Ip { prefix: other, .. }) => prefix == other,
            (left, right) => left == right,
        }
    }

    /// Enters a key under all that it means.
    pub(super) fn add(&mut self, key: &EntryKey, meaning: &Meaning, rejected: bool) {
        if rejected {
            self.rejected.insert(key.clone());
        }
        let cluster = self.clusters.assign(&key.cluster);
        match meaning {
            Meaning::Unknown | Meaning::Nothing => return,
            Meaning::Ip { prefix, .. } if key.kind == Kind::NodeIp => {
                if let Some(node) = key.derived_from() {
                    self.nodes.insert(Bond::Derived, *prefix, cluster, node);
                }
            }
            Meaning::Ip { prefix, .. } => self.ipcache.insert(*prefix, key, cluster),
            Meaning::Identity(id) if key.name.starts_with('0') => drop(self.odd_identities.insert((*id, key.clone()))),
            Meaning::Identity(id) => drop(self.identities.insert((*id, cluster), OnceLock::new())),
            Meaning::Node { addresses } => {
                for ip in addresses {
                    self.nodes.insert(Bond::Own, ObjectPrefix::of_host(*ip), cluster, &key.name);
                }
            }
            Meaning::Service(Some(service)) => self.services.add(key, service),
            Meaning::Service(None) => {}
        }
        self.object_counts[key.kind as usize] += 1;
    }

    /// Takes a key out of all that it meant.
    pub(super) fn remove(&mut self, key: &EntryKey, meaning: &Meaning, rejected: bool) {
        if rejected {
            self.rejected.remove(key);
        }
        let cluster = self.clusters.assign(&key.cluster);
        match meaning {
            Meaning::Unknown | Meaning::Nothing => return,
            Meaning::Ip { prefix, .. } if key.kind == Kind::NodeIp => {
                if let Some(node) = key.derived_from() {
                    self.nodes.remove(Bond::Derived, *prefix, cluster, node);
                }
            }
            Meaning::Ip { prefix, .. } => self.ipcache.remove(*prefix, key, cluster),
            Meaning::Identity(id) if key.name.starts_with('0') => drop(self.odd_identities.remove(&(*id, key.clone()))),
            Meaning::Identity(id) => drop(self.identities.remove(&(*id, cluster))),
            Meaning::Node { addresses } => {
                for ip in addresses {
                    self.nodes.remove(Bond::Own, ObjectPrefix::of_host(*ip), cluster, &key.name);
                }
            }
            Meaning::Service(Some(service)) => self.services.remove(key, service),
            Meaning::Service(None) => {}
        }
        self.object_counts[key.kind as usize] -= 1;
    }

    /// Takes in so many host entries at once whose keys are the addresses.
    pub(super) fn take_hosts(&mut self, count: usize, hosts: HostEntries) {
        self.object_counts[Kind::Ip as usize] += count as u64;
        self.ipcache.usual.take_hosts(hosts);
    }

    /// Takes in so many entries derived from nodes at once, with their addresses in order.
    pub(super) fn take_node_ips(&mut self, count: usize, addresses: NodeAddresses) {
        self.object_counts[Kind::NodeIp as usize] += count as u64;
        self.nodes.take(Bond::Derived, addresses);
    }

    /// Takes in so many usable nodes at once, with their addresses in order.
    pub(super) fn take_nodes(&mut self, count: usize, addresses: NodeAddresses) {
        self.object_counts[Kind::Node as usize] += count as u64;
        self.nodes.take(Bond::Own, addresses);
    }

    /// Forgets the labels of an identity, which has got others.
    pub(super) fn forget_labels(&mut self, id: u32, cluster: &ClusterName) {
        let number = self.clusters.assign(cluster);
        if let Some(labels) = self.identities.get_mut(&(id, number)) {
            *labels = OnceLock::new();
        }
    }

    /// The keys of the identities of a number, in order: several of a cluster only where zeros lead.
    pub(super) fn identities(&self, id: u32) -> Vec<EntryKey> {
        let clusters = self.identities.range((id, 0)..=(id, u32::MAX)).filter_map(|((_, cluster), _)| self.clusters.name(*cluster));
        let name = SmolStr::from(id.to_string());
        let mut keys: Vec<EntryKey> = clusters.map(|cluster| EntryKey::new(Kind::Identity, cluster.clone(), name.clone())).collect();
        let odd = self.odd_identities.range((id, EntryKey::lowest())..).take_while(|(other, _)| *other == id);
        keys.extend(odd.map(|(_, key)| key.clone()));
        keys.sort();
        keys
    }

    /// The place for the labels of a number's identity in a cluster, where no other key of that cluster means the number.
    pub(super) fn labels(&self, id: u32, cluster: &ClusterName) -> Option<&OnceLock<IdentityLabels>> {
        let number = self.clusters.number(cluster)?;
        if self.odd_identities.is_empty() { self.identities.get(&(id, number)) } else { None }
    }

    /// The name of the node that has an address: of a cluster if there is one, the first in order of its keys.
    pub(super) fn node_at(&self, ip: IpAddr, cluster: &ClusterName) -> Option<&SmolStr> {
        let names =
            self.nodes.at(Bond::Own, ObjectPrefix::of_host(ip)).filter_map(|name| Some((self.clusters.name(name.cluster)?, &name.node)));
        let first = names.min_by(|(one, node), (other, other_node)| {
            let is_other = |name: &ClusterName| name != cluster;
            is_other(one).cmp(&is_other(other)).then_with(|| one.cmp_in_keys(other)).then_with(|| node.cmp(other_node))
        });
        first.map(|(_, node)| node)
    }

    /// The keys of the nodes that have an address, in order.
    pub(super) fn nodes_at(&self, ip: IpAddr) -> Vec<EntryKey> {
        let mut keys: Vec<EntryKey> = self.nodes.at(Bond::Own, ObjectPrefix::of_host(ip)).filter_map(|name| self.node_key(name)).collect();
        keys.sort();
        keys
    }

    fn node_key(&self, name: &NodeName) -> Option<EntryKey> {
        Some(EntryKey::new(Kind::Node, self.clusters.name(name.cluster)?.clone(), name.node.clone()))
    }

    /// The longest prefix that covers an address and has an entry.
    pub(super) fn longest_match(&self, ip: IpAddr) -> Option<ObjectPrefix> {
        let announced = self.ipcache.longest_match(ip);
        if announced.is_some_and(|prefix| prefix.host) {
            return announced;
        }
        announced.into_iter().chain(self.nodes.derived.longest(ip)).max_by_key(|prefix| (prefix.net.prefix_len(), prefix.host))
    }

    /// The keys of the entries for exactly a prefix, in order.
    pub(super) fn ips_of(&self, prefix: ObjectPrefix) -> Vec<EntryKey> {
        let name = SmolStr::from(prefix.to_string());
        let clusters = self.ipcache.usual.exact(prefix).iter().filter_map(|cluster| self.clusters.name(*cluster));
        let mut keys: Vec<EntryKey> = clusters.map(|cluster| EntryKey::new(Kind::Ip, cluster.clone(), name.clone())).collect();
        keys.extend(self.ipcache.odd_of(prefix).cloned());
        let nodes = self.nodes.at(Bond::Derived, prefix);
        keys.extend(nodes.filter_map(|node| Some(EntryKey::of_node_ip(&self.node_key(node)?, prefix))));
        keys.sort();
        keys
    }

    /// The keys of the entries that lie inside a network, if there are so many at most.
    pub(super) fn ips_within(&self, net: IpNet, count_max: usize) -> Within {
        if self.ipcache.odd.len() > count_max {
            return Within::Unknown;
        }
        let (mut keys, mut numbers, mut last) = (Vec::new(), BTreeSet::new(), None);
        let mut add = |cluster: u32, key: &dyn Fn(&ClusterName) -> EntryKey| {
            if last != Some(cluster) {
                numbers.insert(cluster);
                last = Some(cluster);
            }
            if keys.len() <= count_max {
                keys.extend(self.clusters.name(cluster).map(key));
            }
        };
        for (prefix, cluster) in self.ipcache.usual.within(net) {
            add(cluster, &|name| EntryKey::new(Kind::Ip, name.clone(), prefix.to_string()));
        }
        for (prefix, node) in self.nodes.derived_within(net) {
            add(node.cluster, &|name| EntryKey::of_node_ip(&EntryKey::new(Kind::Node, name.clone(), node.node.clone()), prefix));
        }
        let odd: Vec<&EntryKey> = self.ipcache.odd.iter().filter(|(prefix, _)| net.contains(&prefix.net)).map(|(_, key)| key).collect();
        keys.extend(odd.iter().map(|key| (*key).clone()));
        if keys.len() > count_max {
            let names = numbers.into_iter().filter_map(|number| self.clusters.name(number).cloned());
            return Within::Many(names.chain(odd.into_iter().map(|key| key.cluster.clone())).collect());
        }
        keys.sort();
        keys.dedup();
        Within::Few(keys)
    }

    /// The prefixes that have several entries, and perhaps others.
    pub(super) fn prefixes_of_several(&self) -> Vec<ObjectPrefix> {
        self.ipcache.prefixes_of_several(&self.nodes.derived)
    }

    /// The keys of the entries for exactly a network, host entries first.
    pub(super) fn ips_at(&self, net: IpNet) -> Vec<EntryKey> {
        [true, false].into_iter().flat_map(|host| self.ips_of(ObjectPrefix { net, host })).collect()
    }
}
