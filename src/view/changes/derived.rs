//! Ipcache entries derived from nodes: an agent creates them from the addresses and pod CIDRs of a
//! remote node, and no `ip/v1` key has them.
//!
//! A derived entry is a record with its own sequence and tombstone, so lists, streams, replays and
//! the store need no special case. Its value has Cilium's form (`wire::derived_value`). It changes
//! in the same change set as its node, and is confirmed or held if its node is.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use ipnet::IpNet;

use super::apply::DecodedPut;
use crate::model::{DeleteReason, EntryKey, IDENTITY_REMOTE_NODE, IpEntry, Kind, Node, Object, ObjectPrefix, Record, SourceStamp};
use crate::view::{ChangeSet, View};
use crate::wire;

/// Version of the rules below. A store with another version gets new derived entries. Increase it
/// with every change of a rule.
pub const DERIVATION_VERSION: u64 = 2;

/// Reserved identities: `world`, `health`, `ingress`, and `world` of one address family
/// (`pkg/identity/numericidentity.go`).
const IDENTITY_WORLD: u32 = 2;
const IDENTITY_HEALTH: u32 = 4;
const IDENTITY_INGRESS: u32 = 8;
const IDENTITY_WORLD_IPV4: u32 = 9;
const IDENTITY_WORLD_IPV6: u32 = 10;

/// Types of node addresses (`pkg/node/addressing`).
const CILIUM_INTERNAL_IP: &str = "CiliumInternalIP";
const EXTERNAL_IP: &str = "ExternalIP";
const INTERNAL_IP: &str = "InternalIP";

/// Returns the entries that an agent adds to its ipcache for a remote node (Cilium's
/// `pkg/node/manager/manager.go`, `NodeUpdated`), in this order:
///
/// | field of the node | entry | identity | encryption key |
/// |---|---|---|---|
/// | each address | host | 6, remote-node | 0 (no encryption of nodes) |
/// | each pod CIDR (since 1.18) | CIDR | 2, world; 9 and 10 in a dual-stack node | the node's |
/// | health IPs | host | 4, health | the node's |
/// | ingress IPs | host | 8, ingress | the node's |
///
/// The host IP of all entries is the node's IP. If a prefix occurs twice, the first entry counts.
/// Agents can disable an address family, but do not publish that setting.
#[must_use]
pub fn derive_entries(node: &Node) -> Vec<IpEntry> {
    let is_dual_stack = node.pod_cidrs().any(|net| net.addr().is_ipv4()) && node.pod_cidrs().any(|net| net.addr().is_ipv6());
    let world = |net: IpNet| match (is_dual_stack, net) {
        (false, _) => IDENTITY_WORLD,
        (true, IpNet::V4(_)) => IDENTITY_WORLD_IPV4,
        (true, IpNet::V6(_)) => IDENTITY_WORLD_IPV6,
    };
    let key = node.encryption_key;
    let own = node.addresses.iter().map(|address| (ObjectPrefix::of_host(address.ip), IDENTITY_REMOTE_NODE, 0));
    let pods = node.pod_cidrs().map(|net| (ObjectPrefix { net: net.trunc(), host: false }, world(net), key));
    let health = node.health_ips.iter().map(|ip| (ObjectPrefix::of_host(*ip), IDENTITY_HEALTH, key));
    let ingress = node.ingress_ips.iter().map(|ip| (ObjectPrefix::of_host(*ip), IDENTITY_INGRESS, key));
    let host_ip = node_ip(node);
    let mut seen = BTreeSet::new();
    let first = own.chain(pods).chain(health).chain(ingress).filter(|(prefix, ..)| seen.insert(*prefix));
    let entry = |(prefix, identity, encryption_key)| IpEntry { host_ip, encryption_key, ..IpEntry::new(prefix, identity) };
    first.map(entry).collect()
}

/// Returns the address at which other nodes reach a node: the peer of tunnels
/// (`pkg/node/types/node.go`, `GetNodeIP`). IPv4 unless the node has only IPv6. Clusters can prefer
/// IPv6 for tunnels, but do not publish that setting.
fn node_ip(node: &Node) -> Option<IpAddr> {
    [true, false].into_iter().find_map(|ipv4| {
        let addresses = || node.addresses.iter().filter(move |address| address.ip.is_ipv4() == ipv4);
        let of_type = |wanted: &'static str| addresses().filter(move |address| address.address_type == wanted);
        let internal = of_type(INTERNAL_IP).next();
        let other = || addresses().find(|address| address.address_type != CILIUM_INTERNAL_IP);
        internal.or_else(|| of_type(EXTERNAL_IP).next_back()).or_else(other).map(|address| address.ip)
    })
}

/// Returns the puts of the entries derived from a node. Other records have none.
pub(super) fn derived_puts(node: &Record) -> impl Iterator<Item = DecodedPut> {
    let entries = node.object.as_deref().and_then(Object::as_node).map(derive_entries).unwrap_or_default();
    let source = SourceStamp { mod_revision: node.source.mod_revision, ..SourceStamp::default() };
    let to_put = move |entry: IpEntry| DecodedPut {
        key: EntryKey::of_node_ip(&node.key, entry.prefix),
        value: wire::derived_value(&entry).into(),
        decoded: Ok(Arc::new(Object::Ip(entry))),
        source,
    };
    entries.into_iter().map(to_put)
}

impl View {
    /// Updates the entries derived from a node. Adds new ones before it deletes old ones, as an
    /// agent does, so that the node always has an address.
    pub(in crate::view) fn update_derived(&mut self, node: &Record, now: SystemTime, change_set: &mut ChangeSet) {
        let mut outdated: BTreeSet<EntryKey> = self.derived_keys(&node.key).into_iter().collect();
        for put in derived_puts(node) {
            outdated.remove(&put.key);
            let old = self.records.locate(&put.key);
            if old.as_ref().is_none_or(|old| !old.has_value(&put.value)) {
                self.put_changed(put, old, now, change_set);
            }
        }
        for key in outdated {
            self.delete(&key, DeleteReason::Deleted, change_set);
        }
    }

    /// Returns the keys of a node's derived entries, in order.
    pub(in crate::view) fn derived_keys(&self, node: &EntryKey) -> Vec<EntryKey> {
        let start = EntryKey::before_node_ips(node);
        let keys = self.records.scan_from(&start).map(|location| location.key());
        let has_prefix = |key: &EntryKey| key.kind == Kind::NodeIp && key.cluster == start.cluster && key.name.starts_with(&*start.name);
        // the name of another node may continue with the separator
        let of_node = |key: &EntryKey| key.derived_from() == Some(&*node.name);
        keys.take_while(has_prefix).filter(of_node).collect()
    }

    /// Updates the derived entries of nodes, for a restored store in which some are missing or
    /// outdated. For the key of a derived entry, it updates the entries of the node, or deletes the
    /// entry if the node does not exist.
    pub fn rederive<'a>(&mut self, keys: impl IntoIterator<Item = &'a EntryKey>, now: SystemTime) -> ChangeSet {
        let mut change_set = ChangeSet::default();
        for key in keys {
            match self.record(&key.origin()) {
                Some(node) => self.update_derived(&node, now, &mut change_set),
                None => self.delete(key, DeleteReason::Deleted, &mut change_set),
            }
        }
        change_set
    }

    /// Returns the keys of all nodes, and of derived entries whose nodes do not exist.
    #[must_use]
    pub fn keys_to_rederive(&self) -> Vec<EntryKey> {
        let keys = self.records.scan_from(&EntryKey::lowest_of(Kind::NodeIp)).map(|location| location.key());
        let keys = keys.take_while(|key| key.kind <= Kind::Node);
        keys.filter(|key| key.kind == Kind::Node || !self.contains(&key.origin())).collect()
    }
}
