//! ipcache entries that are made here from nodes: what an agent knows of a remote node's own addresses and pod CIDRs, which no `ip/v1` key says.
//!
//! An entry has a record, a sequence and a tombstone of its own, so that lists, streams, replays and the store treat it like any other. Its
//! value is a pair as Cilium writes it (`wire::derived_value`). It changes with its node, in the same effects, and has no scope: whether it is
//! confirmed or held is asked of its node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use ipnet::IpNet;

use super::apply::Put;
use crate::model::{DeleteReason, EntryKey, IDENTITY_REMOTE_NODE, IpEntry, Kind, Node, Object, ObjectPrefix, Record, SourceStamp};
use crate::view::{Effects, View};
use crate::wire;

/// The number of the rules below. A store whose entries were made by others gets new ones: count it up with every change of a rule.
pub const DERIVATION: u64 = 2;

/// `world`, `health`, `ingress`, and `world` of one family (`pkg/identity/numericidentity.go`).
const IDENTITY_WORLD: u32 = 2;
const IDENTITY_HEALTH: u32 = 4;
const IDENTITY_INGRESS: u32 = 8;
const IDENTITY_WORLD_IPV4: u32 = 9;
const IDENTITY_WORLD_IPV6: u32 = 10;

/// The types of node addresses that a rule names (`pkg/node/addressing`).
const CILIUM_INTERNAL_IP: &str = "CiliumInternalIP";
const EXTERNAL_IP: &str = "ExternalIP";
const INTERNAL_IP: &str = "InternalIP";

/// What an agent puts into its ipcache for a remote node (Cilium's `pkg/node/manager/manager.go`, `NodeUpdated`), in that order:
///
/// | of the node | entry | identity | host IP | encryption key |
/// |---|---|---|---|---|
/// | each of its addresses | host | 6, remote-node | the node's IP | 0 (without the encryption of nodes) |
/// | each pod CIDR (since 1.18) | CIDR | 2, world, or 9 and 10 where it has those of both families | the node's IP | the node's |
/// | health IPs | host | 4, health | the node's IP | the node's |
/// | ingress IPs | host | 8, ingress | the node's IP | the node's |
///
/// A prefix that is listed twice has the meaning that comes first. Which families an agent has is its own setting, which is not published.
#[must_use]
pub fn entries_of(node: &Node) -> Vec<IpEntry> {
    let has_both = node.pod_cidrs().any(|net| net.addr().is_ipv4()) && node.pod_cidrs().any(|net| net.addr().is_ipv6());
    let world = |net: IpNet| match (has_both, net) {
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

/// The address at which others reach a node: the peer of tunnels (`pkg/node/types/node.go`, `GetNodeIP`). Of IPv4, unless it has IPv6
/// alone: which of them tunnels use is a setting of each cluster that is not published.
fn node_ip(node: &Node) -> Option<IpAddr> {
    [true, false].into_iter().find_map(|ipv4| {
        let addresses = || node.addresses.iter().filter(move |address| address.ip.is_ipv4() == ipv4);
        let of_type = |wanted: &'static str| addresses().filter(move |address| address.address_type == wanted);
        let internal = of_type(INTERNAL_IP).next();
        let other = || addresses().find(|address| address.address_type != CILIUM_INTERNAL_IP);
        internal.or_else(|| of_type(EXTERNAL_IP).next_back()).or_else(other).map(|address| address.ip)
    })
}

impl View {
    /// Brings the entries of a node up to date with its last usable value: new ones first, as an agent does, so that no address is unknown
    /// in between.
    pub(in crate::view) fn derive(&mut self, node: &Record, now: SystemTime, effects: &mut Effects) {
        let entries = node.object.as_deref().and_then(Object::as_node).map(entries_of).unwrap_or_default();
        let mut left: BTreeSet<EntryKey> = self.derived_from(&node.key).into_iter().collect();
        for entry in entries {
            let key = EntryKey::of_node_ip(&node.key, entry.prefix);
            left.remove(&key);
            let (value, source) =
                (wire::derived_value(&entry), SourceStamp { mod_revision: node.source.mod_revision, ..SourceStamp::default() });
            let old = self.place(&key);
            if old.as_ref().is_none_or(|old| !old.has_value(&value)) {
                let put = Put { key, value: value.into(), decoded: Ok(Arc::new(Object::Ip(entry))), source };
                self.put_changed(put, old, now, effects);
            }
        }
        for key in left {
            self.delete(&key, DeleteReason::Deleted, effects);
        }
    }

    /// The keys of the entries that are held of a node, in order.
    pub(in crate::view) fn derived_from(&self, node: &EntryKey) -> Vec<EntryKey> {
        let start = EntryKey::before_node_ips(node);
        let keys = self.places_from(&start).map(|place| place.key());
        let begins = |key: &EntryKey| key.kind == Kind::NodeIp && key.cluster == start.cluster && key.name.starts_with(&*start.name);
        // another node's name may go on with the mark
        let of_node = |key: &EntryKey| key.derived_from() == Some(&*node.name);
        keys.take_while(begins).filter(of_node).collect()
    }

    /// Brings the entries of some nodes up to date: where the store that was restored had none, or lost some. Keys of derived entries stand
    /// for their nodes, so that those without one go.
    pub fn derive_again<'a>(&mut self, keys: impl IntoIterator<Item = &'a EntryKey>, now: SystemTime) -> Effects {
        let mut effects = Effects::default();
        for key in keys {
            match self.record(&key.origin()) {
                Some(node) => self.derive(&node, now, &mut effects),
                None => self.delete(key, DeleteReason::Deleted, &mut effects),
            }
        }
        effects
    }

    /// The keys of all nodes, and of the derived entries whose node is not held.
    #[must_use]
    pub fn nodes_to_derive(&self) -> Vec<EntryKey> {
        let keys = self.places_from(&EntryKey::lowest_of(Kind::NodeIp)).map(|place| place.key());
        let keys = keys.take_while(|key| key.kind <= Kind::Node);
        keys.filter(|key| key.kind == Kind::Node || !self.contains(&key.origin())).collect()
    }
}
