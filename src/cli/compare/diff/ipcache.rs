//! Comparison of an agent's ipcache with the mirror's entries.
//!
//! Agents fill in some values by their own configuration, which they do not publish. Such values
//! are no differences; the functions below name each rule and its place in Cilium's source.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use super::comparison::{Difference, DifferenceKind, FieldDifference, MirrorFacts, NotCompared, Reason, TableComparison};
use crate::dto::objects::Node;
use crate::dto::objects::last_change::LastChange;
use crate::dto::text::from_text;
use crate::dump::agent::AgentEntry;
use crate::model::{ALLOCATED_IDENTITY_MIN, IDENTITY_REMOTE_NODE, IdentityScope};

/// Reserved identities (Cilium's `pkg/identity/numericidentity.go`): `host`, `kube-apiserver`, the
/// identities of the world, and those of a node's own endpoints, `health` and `ingress`.
const IDENTITY_HOST: u32 = 1;
const IDENTITY_KUBE_APISERVER: u32 = 7;
const IDENTITIES_WORLD: [u32; 3] = [2, 9, 10];
const IDENTITIES_NODE_ENDPOINT: [u32; 2] = [4, 8];

/// Encryption key of everything that WireGuard encrypts (`StaticEncryptKey` in Cilium's
/// `pkg/wireguard/types`).
const WIREGUARD_KEY: u8 = 255;

/// Type of the address of a node's router (Cilium's `pkg/node/addressing`).
const CILIUM_INTERNAL_IP: &str = "CiliumInternalIP";

/// An entry of `/v1/ipcache`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MirrorEntry {
    #[serde(deserialize_with = "from_text")]
    pub(super) prefix: IpNet,
    host: bool,
    pub(super) cluster: String,
    identity: u32,
    #[serde(rename = "hostIP")]
    host_ip: Option<IpAddr>,
    #[serde(default)]
    encryption_key: u8,
    source: EntrySource,
    #[serde(flatten)]
    change: LastChange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum EntrySource {
    Node,
    #[serde(other)]
    Announced,
}

/// The mirror's entries by prefix. Of several entries for a prefix, the first one is the one that
/// agents use.
pub(super) type MirrorEntries = BTreeMap<IpNet, Vec<MirrorEntry>>;

/// Addresses and pod CIDRs of the mirrored nodes.
#[derive(Debug, Default)]
pub(super) struct MirrorNodeAddresses {
    owners: BTreeMap<IpAddr, NodeOwner>,
    pod_cidrs: Vec<(IpNet, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeOwner {
    cluster: String,
    node: String,
    encryption_key: u8,
    is_router: bool,
}

impl MirrorNodeAddresses {
    pub(super) fn new<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Self {
        let mut addresses = Self::default();
        for node in nodes {
            for address in &node.addresses {
                let Ok(ip) = address.ip.parse() else { continue };
                let is_router = address.address_type == CILIUM_INTERNAL_IP;
                let (cluster, encryption_key) = (node.cluster.clone(), node.encryption_key);
                addresses.owners.insert(ip, NodeOwner { cluster, node: node.name.clone(), encryption_key, is_router });
            }
            let cidrs = node.ipv4_pod_cidr.iter().chain(&node.ipv6_pod_cidr).chain(&node.secondary_pod_cidrs);
            addresses.pod_cidrs.extend(cidrs.filter_map(|cidr| Some((cidr.parse().ok()?, node.cluster.clone()))));
        }
        addresses
    }

    fn has_same_node(&self, one: IpAddr, other: IpAddr) -> bool {
        let node = |ip| self.owners.get(&ip).map(|owner| (&owner.cluster, &owner.node));
        node(one).is_some() && node(one) == node(other)
    }

    /// Returns the mirrored cluster to whose node an entry belongs, by its host and its address.
    fn cluster_of(&self, entry: &AgentEntry) -> Option<&str> {
        let by_host = entry.host_ip.and_then(|ip| self.owners.get(&ip)).map(|owner| owner.cluster.as_str());
        let by_cidr = || self.pod_cidrs.iter().find(|(cidr, _)| cidr.contains(&entry.prefix)).map(|(_, cluster)| cluster.as_str());
        by_host.or_else(by_cidr)
    }
}

/// Compares the entries of an agent with those of the mirror.
pub(super) fn compare(agent: &[AgentEntry], mirror: &MirrorEntries, nodes: &MirrorNodeAddresses, facts: &MirrorFacts) -> TableComparison {
    let agent: BTreeMap<IpNet, &AgentEntry> = agent.iter().map(|entry| (entry.prefix, entry)).collect();
    let own_addresses = agent.values().filter(|entry| entry.identity == IDENTITY_HOST).map(|entry| entry.prefix.addr()).collect();
    let rules = AgentRules { own_addresses, nodes };
    let mut comparison = TableComparison::default();
    for (prefix, entry) in &agent {
        match mirror.get(prefix) {
            Some(candidates) => compare_entry(&mut comparison, entry, candidates, &rules, facts),
            None => add_additional(&mut comparison, entry, nodes, facts),
        }
    }
    let missing = missing_entries(&mut comparison, &agent, mirror, facts);
    let shared = mirror.iter().filter(|(prefix, _)| agent.contains_key(*prefix));
    let clusters_of_agent = shared.flat_map(|(_, entries)| entries).map(|entry| entry.cluster.as_str()).collect();
    comparison.add_missing(missing, &clusters_of_agent);
    comparison
}

fn compare_entry(
    comparison: &mut TableComparison,
    entry: &AgentEntry,
    candidates: &[MirrorEntry],
    rules: &AgentRules<'_>,
    facts: &MirrorFacts,
) {
    let Some((used, others)) = candidates.split_first() else { return };
    comparison.compared += 1;
    let fields = rules.differing_fields(entry, used);
    if fields.is_empty() {
        return;
    }
    let other = others.iter().find(|other| rules.differing_fields(entry, other).is_empty());
    let reason = match other {
        Some(other) => Some((
            Reason::SeveralClusters,
            format!(
                "the agent uses the entry of {}: several clusters have this prefix, and that of {} takes precedence",
                other.cluster, used.cluster
            ),
        )),
        None => facts.reason_of_old_value(&used.cluster, &used.change),
    };
    let difference = Difference::new(DifferenceKind::Different, entry.prefix, Some(&used.cluster)).because(reason);
    comparison.differences.push(Difference { fields, ..difference });
}

/// Adds an entry that the mirror does not have, unless the mirror cannot have it.
fn add_additional(comparison: &mut TableComparison, entry: &AgentEntry, nodes: &MirrorNodeAddresses, facts: &MirrorFacts) {
    let id = entry.identity;
    let is_of_node = matches!(id, IDENTITY_REMOTE_NODE | IDENTITY_KUBE_APISERVER)
        || IdentityScope::of(id) == IdentityScope::RemoteNode
        || IDENTITIES_WORLD.contains(&id)
        || IDENTITIES_NODE_ENDPOINT.contains(&id);
    let cluster = match IdentityScope::of(id) {
        IdentityScope::Local => return comparison.skip(NotCompared::LocalIdentity),
        _ if is_of_node => nodes.cluster_of(entry).ok_or(NotCompared::ReservedIdentity),
        _ if id < ALLOCATED_IDENTITY_MIN => Err(NotCompared::ReservedIdentity),
        _ => facts.cluster_of_identity(id).ok_or(NotCompared::OtherCluster),
    };
    match cluster {
        Ok(cluster) => {
            comparison.compared += 1;
            let reason = facts.old_data(cluster);
            comparison.differences.push(Difference::new(DifferenceKind::Additional, entry.prefix, Some(cluster)).because(reason));
        }
        Err(reason) => comparison.skip(reason),
    }
}

/// Returns the entries that the agent lacks, except those that it cannot have.
fn missing_entries(
    comparison: &mut TableComparison,
    agent: &BTreeMap<IpNet, &AgentEntry>,
    mirror: &MirrorEntries,
    facts: &MirrorFacts,
) -> Vec<Difference> {
    let is_used = |ipv4: bool| agent.keys().any(|prefix| prefix.addr().is_ipv4() == ipv4 && prefix.prefix_len() > 0);
    let (uses_ipv4, uses_ipv6) = (is_used(true), is_used(false));
    let is_pod_cidr = |entry: &MirrorEntry| entry.source == EntrySource::Node && !entry.host;
    let has_pod_cidrs = mirror.values().flatten().any(|entry| is_pod_cidr(entry) && agent.contains_key(&entry.prefix));
    let mut missing = Vec::new();
    for (prefix, entry) in mirror.iter().filter_map(|(prefix, entries)| Some((prefix, entries.first()?))) {
        if agent.contains_key(prefix) {
            continue;
        }
        let uses_family = if prefix.addr().is_ipv4() { uses_ipv4 } else { uses_ipv6 };
        if !uses_family && (uses_ipv4 || uses_ipv6) {
            comparison.skip(NotCompared::AddressFamily);
        } else if is_pod_cidr(entry) && !has_pod_cidrs {
            comparison.skip(NotCompared::PodCidr);
        } else {
            comparison.compared += 1;
            let reason = facts.reason_of_old_value(&entry.cluster, &entry.change);
            missing.push(Difference::new(DifferenceKind::Missing, prefix, Some(&entry.cluster)).because(reason));
        }
    }
    missing
}

/// Rules by which an agent's values may differ from the mirror's.
struct AgentRules<'a> {
    /// Addresses of the agent's own node.
    own_addresses: BTreeSet<IpAddr>,
    nodes: &'a MirrorNodeAddresses,
}

impl AgentRules<'_> {
    fn differing_fields(&self, agent: &AgentEntry, mirror: &MirrorEntry) -> Vec<FieldDifference> {
        let text = |ip: Option<IpAddr>| ip.map(|ip| ip.to_string()).unwrap_or_default();
        let identity =
            if self.accepts_identity(agent, mirror) { None } else { FieldDifference::new("identity", agent.identity, mirror.identity) };
        let host = if self.accepts_host(agent.host_ip, mirror) {
            None
        } else {
            FieldDifference::new("tunnelEndpoint", text(agent.host_ip), text(mirror.host_ip))
        };
        let key = if self.accepts_key(agent.encryption_key, mirror) {
            None
        } else {
            FieldDifference::new("encryptionKey", agent.encryption_key, mirror.encryption_key)
        };
        [identity, host, key].into_iter().flatten().collect()
    }

    /// Returns whether an agent may have this identity for an entry.
    ///
    /// Agents turn `host` into `remote-node` (`OnUpdate`, `pkg/ipcache/kvstore.go`). With labels or
    /// CIDRs of nodes in policies, a node has an identity of the scope of remote nodes, and a node
    /// with an API server is `kube-apiserver` (`nodeIdentityLabels`, `pkg/node/manager`). Which
    /// identity of the world a pod CIDR has depends on the agent's address families
    /// (`worldLabelForPrefix`), and a policy may give it a local identity.
    fn accepts_identity(&self, agent: &AgentEntry, mirror: &MirrorEntry) -> bool {
        let (id, expected) = (agent.identity, mirror.identity);
        let is_node = matches!(expected, IDENTITY_HOST | IDENTITY_REMOTE_NODE);
        let is_node_identity = matches!(id, IDENTITY_REMOTE_NODE | IDENTITY_KUBE_APISERVER)
            || IdentityScope::of(id) == IdentityScope::RemoteNode
            || (id == IDENTITY_HOST && self.own_addresses.contains(&agent.prefix.addr()));
        let is_world = IDENTITIES_WORLD.contains(&expected) && !mirror.host;
        let is_world_identity = IDENTITIES_WORLD.contains(&id) || IdentityScope::of(id) == IdentityScope::Local;
        id == expected || (is_node && is_node_identity) || (is_world && is_world_identity)
    }

    /// Returns whether an agent may have this host or tunnel endpoint for an entry.
    ///
    /// Addresses of nodes have one only if they are of the type `CiliumInternalIP`, or with node
    /// encryption or the host firewall (`nodeAddressHasTunnelIP`, `pkg/node/manager`). The datapath
    /// has none for entries of its own node, and none of the other address family
    /// (`pkg/datapath/ipcache/listener.go`). Agents can prefer the IPv6 address of a node.
    fn accepts_host(&self, host_ip: Option<IpAddr>, mirror: &MirrorEntry) -> bool {
        match (host_ip, mirror.host_ip) {
            (None, None) => true,
            (None, Some(expected)) => {
                let is_router = self.nodes.owners.get(&mirror.prefix.addr()).is_some_and(|owner| owner.is_router);
                let is_node = matches!(mirror.identity, IDENTITY_HOST | IDENTITY_REMOTE_NODE);
                expected.is_ipv6() || self.own_addresses.contains(&expected) || (is_node && !is_router)
            }
            (Some(_), None) => false,
            (Some(ip), Some(expected)) => ip == expected || self.nodes.has_same_node(ip, expected),
        }
    }

    /// Returns whether an agent may have this encryption key for an entry.
    ///
    /// Addresses of nodes have their node's key with node encryption (`nodeAddressHasEncryptKey`,
    /// `pkg/node/manager`). With WireGuard, everything of a node has a fixed key.
    fn accepts_key(&self, key: u8, mirror: &MirrorEntry) -> bool {
        let is_node = mirror.identity == IDENTITY_REMOTE_NODE;
        let node_key = self.nodes.owners.get(&mirror.prefix.addr()).map(|owner| owner.encryption_key);
        let is_derived = mirror.source == EntrySource::Node;
        key == mirror.encryption_key || (is_derived && key == WIREGUARD_KEY) || (is_node && (key == 0 || Some(key) == node_key))
    }
}
