//! Secondary indices: ipcache entries and nodes by address, identities by number, global services,
//! and rejected keys. They store addresses, numbers and names, but no records.

mod cluster_numbers;
pub(super) mod ipcache;
pub(super) mod node_index;
mod node_numbers;

use std::cell::LazyCell;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::OnceLock;

use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;
use smol_str::{SmolStr, format_smolstr};

use self::cluster_numbers::ClusterNumbers;
use self::ipcache::{HostEntries, IpIndex};
use self::node_index::{AddressKind, NodeAddresses, NodeIndex};
use self::node_numbers::NodeName;
use super::services::ServiceIndex;
use crate::model::{ClusterName, EntryKey, IdentityLabels, Kind, ObjectPrefix};
use crate::pack::IndexedFields;

/// Ipcache entries inside a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkEntries {
    /// Keys in order, if there are few.
    Keys(Vec<EntryKey>),
    /// Clusters of the entries, if there are many. May contain duplicates.
    Clusters(Vec<ClusterName>),
    /// The index cannot list the entries.
    Unknown,
}

/// All secondary indices. Cloning makes a snapshot in constant time.
#[derive(Debug, Clone, Default)]
pub(super) struct SecondaryIndices {
    /// Number of each cluster in the other indices.
    pub(super) clusters: ClusterNumbers,
    /// Usable ipcache entries by prefix.
    ipcache: IpIndex,
    /// Usable identities by number and cluster number. The labels are decoded on first use. The
    /// key's name is the number, except for `padded_identities`.
    identities: OrdMap<(u32, u32), OnceLock<IdentityLabels>>,
    /// Identities whose names have leading zeros, so that a cluster can have several with one
    /// number.
    padded_identities: OrdSet<(u32, EntryKey)>,
    /// Nodes by address.
    nodes: NodeIndex,
    pub(super) services: ServiceIndex,
    /// Keys whose newest bytes cannot be used.
    pub(super) rejected: OrdSet<EntryKey>,
    /// Number of usable records per kind.
    pub(super) object_counts: [u64; Kind::STORED.len()],
}

/// Change of the indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexUpdate {
    Add,
    Remove,
}

/// Adds an item to a set, or removes it.
fn update_set<T: Ord + Clone>(set: &mut OrdSet<T>, update: IndexUpdate, item: T) {
    match update {
        IndexUpdate::Add => drop(set.insert(item)),
        IndexUpdate::Remove => drop(set.remove(&item)),
    }
}

impl SecondaryIndices {
    /// Returns whether two values of one key have the same content in all indices.
    pub(super) fn are_indexed_alike(left: &IndexedFields, right: &IndexedFields) -> bool {
        match (left, right) {
            (IndexedFields::Ip { prefix, .. }, IndexedFields::Ip { prefix: other, .. }) => prefix == other,
            (left, right) => left == right,
        }
    }

    /// Adds a key with the indexed fields of its record, or removes it.
    pub(super) fn update(&mut self, update: IndexUpdate, key: &EntryKey, fields: &IndexedFields, rejected: bool) {
        let is_added = update == IndexUpdate::Add;
        let update_node = if is_added { NodeIndex::insert } else { NodeIndex::remove };
        if rejected {
            update_set(&mut self.rejected, update, key.clone());
        }
        let cluster = self.clusters.assign(&key.cluster);
        match fields {
            IndexedFields::Unknown | IndexedFields::Nothing => return,
            IndexedFields::Ip { prefix, .. } if key.kind == Kind::NodeIp => {
                if let Some(node) = key.derived_from() {
                    update_node(&mut self.nodes, AddressKind::Derived, *prefix, cluster, node);
                }
            }
            IndexedFields::Ip { prefix, .. } => self.ipcache.update(update, *prefix, key, cluster),
            IndexedFields::Identity(id) if key.name.starts_with('0') => update_set(&mut self.padded_identities, update, (*id, key.clone())),
            IndexedFields::Identity(id) if is_added => drop(self.identities.insert((*id, cluster), OnceLock::new())),
            IndexedFields::Identity(id) => drop(self.identities.remove(&(*id, cluster))),
            IndexedFields::Node { addresses } => {
                for ip in addresses {
                    update_node(&mut self.nodes, AddressKind::Listed, ObjectPrefix::of_host(*ip), cluster, &key.name);
                }
            }
            IndexedFields::Service(Some(service)) if is_added => self.services.add(key, service),
            IndexedFields::Service(Some(service)) => self.services.remove(key, service),
            IndexedFields::Service(None) => {}
        }
        let count = &mut self.object_counts[key.kind as usize];
        *count = if is_added { *count + 1 } else { *count - 1 };
    }

    /// Adds `count` entries for single addresses, whose keys are their addresses.
    pub(super) fn add_hosts(&mut self, count: usize, hosts: HostEntries) {
        self.object_counts[Kind::Ip as usize] += count as u64;
        self.ipcache.canonical.add_hosts(hosts);
    }

    /// Adds `count` derived entries with their sorted addresses.
    pub(super) fn add_node_ips(&mut self, count: usize, addresses: NodeAddresses) {
        self.object_counts[Kind::NodeIp as usize] += count as u64;
        self.nodes.insert_all(AddressKind::Derived, addresses);
    }

    /// Adds `count` usable nodes with their sorted addresses.
    pub(super) fn add_nodes(&mut self, count: usize, addresses: NodeAddresses) {
        self.object_counts[Kind::Node as usize] += count as u64;
        self.nodes.insert_all(AddressKind::Listed, addresses);
    }

    /// Removes the decoded labels of an identity whose value changed.
    pub(super) fn forget_labels(&mut self, id: u32, cluster: &ClusterName) {
        let number = self.clusters.assign(cluster);
        if let Some(labels) = self.identities.get_mut(&(id, number)) {
            *labels = OnceLock::new();
        }
    }

    /// Returns the keys of the identities with a number, in order. A cluster has several only if
    /// some of their names have leading zeros.
    pub(super) fn identities(&self, id: u32) -> Vec<EntryKey> {
        let clusters = self.identities.range((id, 0)..=(id, u32::MAX)).filter_map(|((_, cluster), _)| self.clusters.name(*cluster));
        let name = SmolStr::from(id.to_string());
        let mut keys: Vec<EntryKey> = clusters.map(|cluster| EntryKey::new(Kind::Identity, cluster.clone(), name.clone())).collect();
        let padded = self.padded_identities.range((id, EntryKey::lowest())..).take_while(|(other, _)| *other == id);
        keys.extend(padded.map(|(_, key)| key.clone()));
        keys.sort();
        keys
    }

    /// Returns the slot for the decoded labels of a cluster's identity. Returns `None` if the
    /// cluster may have several keys with the number.
    pub(super) fn labels(&self, id: u32, cluster: &ClusterName) -> Option<&OnceLock<IdentityLabels>> {
        let number = self.clusters.number(cluster)?;
        if self.padded_identities.is_empty() { self.identities.get(&(id, number)) } else { None }
    }

    /// Returns the name of the node that has an address: one of `cluster` if possible, otherwise
    /// the first in key order.
    pub(super) fn node_at(&self, ip: IpAddr, cluster: &ClusterName) -> Option<&SmolStr> {
        let names = self
            .nodes
            .nodes_at(AddressKind::Listed, ObjectPrefix::of_host(ip))
            .filter_map(|name| Some((self.clusters.name(name.cluster)?, &name.node)));
        let first = names.min_by(|(one, node), (other, other_node)| {
            let is_other = |name: &ClusterName| name != cluster;
            is_other(one).cmp(&is_other(other)).then_with(|| one.cmp_in_keys(other)).then_with(|| node.cmp(other_node))
        });
        first.map(|(_, node)| node)
    }

    /// Returns the keys of the nodes that have an address, in order.
    pub(super) fn nodes_at(&self, ip: IpAddr) -> Vec<EntryKey> {
        let mut keys: Vec<EntryKey> =
            self.nodes.nodes_at(AddressKind::Listed, ObjectPrefix::of_host(ip)).filter_map(|name| self.node_key(name)).collect();
        keys.sort();
        keys
    }

    fn node_key(&self, name: &NodeName) -> Option<EntryKey> {
        Some(EntryKey::new(Kind::Node, self.clusters.name(name.cluster)?.clone(), name.node.clone()))
    }

    /// Returns the longest prefix that covers an address and has an entry.
    pub(super) fn longest_match(&self, ip: IpAddr) -> Option<ObjectPrefix> {
        let announced = self.ipcache.longest_match(ip);
        if announced.is_some_and(|prefix| prefix.host) {
            return announced;
        }
        announced.into_iter().chain(self.nodes.derived.longest_match(ip)).max_by_key(|prefix| (prefix.net.prefix_len(), prefix.host))
    }

    /// Returns the keys of the entries for exactly this prefix, in order.
    pub(super) fn ip_keys_at(&self, prefix: ObjectPrefix) -> Vec<EntryKey> {
        let name = LazyCell::new(|| format_smolstr!("{prefix}"));
        let clusters = self.ipcache.canonical.exact(prefix).iter().filter_map(|cluster| self.clusters.name(*cluster));
        let mut keys: Vec<EntryKey> = clusters.map(|cluster| EntryKey::new(Kind::Ip, cluster.clone(), SmolStr::clone(&name))).collect();
        keys.extend(self.ipcache.noncanonical_at(prefix).cloned());
        let nodes = self.nodes.nodes_at(AddressKind::Derived, prefix);
        keys.extend(nodes.filter_map(|node| Some(EntryKey::of_node_ip(&self.node_key(node)?, prefix))));
        keys.sort();
        keys
    }

    /// Returns the keys of the entries whose prefixes cover a whole network, most specific first.
    pub(super) fn covering(&self, net: IpNet) -> Vec<EntryKey> {
        let mut prefixes = self.ipcache.covering(net);
        prefixes.extend(self.nodes.derived.covering(net));
        prefixes.sort_unstable_by_key(|prefix| Reverse((prefix.net.prefix_len(), prefix.host)));
        prefixes.dedup();
        prefixes.into_iter().flat_map(|prefix| self.ip_keys_at(prefix)).collect()
    }

    /// Returns the keys of the entries inside a network if there are at most `count_max`.
    pub(super) fn ips_within(&self, net: IpNet, count_max: usize) -> NetworkEntries {
        if self.ipcache.noncanonical.len() > count_max {
            return NetworkEntries::Unknown;
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
        for (prefix, cluster) in self.ipcache.canonical.prefixes_in(net) {
            add(cluster, &|name| EntryKey::new(Kind::Ip, name.clone(), prefix.to_string()));
        }
        for (prefix, node) in self.nodes.derived_in(net) {
            add(node.cluster, &|name| EntryKey::of_node_ip(&EntryKey::new(Kind::Node, name.clone(), node.node.clone()), prefix));
        }
        let noncanonical: Vec<&EntryKey> =
            self.ipcache.noncanonical.iter().filter(|(prefix, _)| net.contains(&prefix.net)).map(|(_, key)| key).collect();
        keys.extend(noncanonical.iter().map(|key| (*key).clone()));
        if keys.len() > count_max {
            let names = numbers.into_iter().filter_map(|number| self.clusters.name(number).cloned());
            return NetworkEntries::Clusters(names.chain(noncanonical.into_iter().map(|key| key.cluster.clone())).collect());
        }
        keys.sort();
        keys.dedup();
        NetworkEntries::Keys(keys)
    }

    /// Returns all prefixes with more than one entry. The result may also contain prefixes with one
    /// entry.
    pub(super) fn duplicate_prefixes(&self) -> Vec<ObjectPrefix> {
        self.ipcache.duplicate_prefixes(&self.nodes.derived)
    }

    /// Returns the keys of the entries for exactly this network, hosts first.
    pub(super) fn ips_at(&self, net: IpNet) -> Vec<EntryKey> {
        [true, false].into_iter().flat_map(|host| self.ip_keys_at(ObjectPrefix { net, host })).collect()
    }
}
