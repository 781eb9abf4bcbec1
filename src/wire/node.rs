//! Nodes: `…/nodes/v1/<cluster>/<node>`, from Cilium's `pkg/node/types/node.go` and the checks of
//! `pkg/node/store/store.go`.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::address::{GoIp, GoPrefix};
use super::go_json::{go_struct, parse};
use super::{Context, quoted};
use crate::model::{Node, NodeAddress};

/// Maximum number of ipcache entries per node. Each pod of a node can have a CIDR of its own, and
/// the largest nodes have about 1,000 pods. The limit is a hundred times that, as for the elements
/// of other values (`protobuf`). A value of etcd's 1.5 MiB could have about 110,000. All entries of
/// a node change in one step. At about 0.6 KB each, 100,000 entries need 60 MB.
const ENTRIES_MAX: usize = 100_000;

go_struct! {
    /// A node. `Source` is the writer's view, which readers overwrite, but it must be a string.
    struct NodeJson {
        name: String = "Name",
        cluster: String = "Cluster",
        addresses: Vec<NodeAddressJson> = "IPAddresses",
        ipv4_pod_cidr: GoPrefix = "IPv4AllocCIDR",
        ipv4_secondary_pod_cidrs: Vec<GoPrefix> = "IPv4SecondaryAllocCIDRs",
        ipv6_pod_cidr: GoPrefix = "IPv6AllocCIDR",
        ipv6_secondary_pod_cidrs: Vec<GoPrefix> = "IPv6SecondaryAllocCIDRs",
        ipv4_health_ip: GoIp = "IPv4HealthIP",
        ipv6_health_ip: GoIp = "IPv6HealthIP",
        ipv4_ingress_ip: GoIp = "IPv4IngressIP",
        ipv6_ingress_ip: GoIp = "IPv6IngressIP",
        cluster_id: u32 = "ClusterID",
        source: String = "Source",
        encryption_key: u8 = "EncryptionKey",
        labels: BTreeMap<String, String> = "Labels",
        annotations: BTreeMap<String, String> = "Annotations",
        wireguard_public_key: String = "WireguardPubKey",
        boot_id: String = "BootID",
    }
    /// The fields of a node from which ipcache entries are derived.
    struct EntriesJson {
        addresses: Vec<NodeAddressJson> = "IPAddresses",
        ipv4_pod_cidr: GoPrefix = "IPv4AllocCIDR",
        ipv4_secondary_pod_cidrs: Vec<GoPrefix> = "IPv4SecondaryAllocCIDRs",
        ipv6_pod_cidr: GoPrefix = "IPv6AllocCIDR",
        ipv6_secondary_pod_cidrs: Vec<GoPrefix> = "IPv6SecondaryAllocCIDRs",
        ipv4_health_ip: GoIp = "IPv4HealthIP",
        ipv6_health_ip: GoIp = "IPv6HealthIP",
        ipv4_ingress_ip: GoIp = "IPv4IngressIP",
        ipv6_ingress_ip: GoIp = "IPv6IngressIP",
    }
    /// The pod CIDRs of a node.
    struct PodCidrsJson {
        ipv4: GoPrefix = "IPv4AllocCIDR",
        ipv4_secondary: Vec<GoPrefix> = "IPv4SecondaryAllocCIDRs",
        ipv6: GoPrefix = "IPv6AllocCIDR",
        ipv6_secondary: Vec<GoPrefix> = "IPv6SecondaryAllocCIDRs",
    }
    /// One address of a node.
    struct NodeAddressJson {
        address_type: String = "Type",
        ip: GoIp = "IP",
    }
}

/// Decodes and checks a node. `name` is the last part of its key.
pub(super) fn decode(name: &str, value: &[u8], context: &Context<'_>) -> Result<Node, String> {
    let json: NodeJson = parse("a node", value)?;
    context.check_cluster("Cluster", &json.cluster)?;
    if json.name.is_empty() {
        return Err("Name is empty".into());
    }
    if json.name != name {
        return Err(format!("Name is {}, but the key has {}", quoted(&json.name), quoted(name)));
    }
    context.check_cluster_id("ClusterID", json.cluster_id)?;
    let node = json.into_node();
    let entries = node.entry_count_max();
    if entries > ENTRIES_MAX {
        return Err(format!("{entries} addresses and pod CIDRs are too many: a node may have at most {ENTRIES_MAX}"));
    }
    Ok(node)
}

/// Returns an upper bound on the ipcache entries of a value: 0 if the JSON is invalid or [`decode`]
/// rejects their number.
pub(super) fn entry_count(value: &[u8]) -> usize {
    let Ok(json) = parse::<EntriesJson>("a node", value) else { return 0 };
    let addresses = json.addresses.iter().filter(|one| one.ip.0.is_some()).count();
    let secondary = json.ipv4_secondary_pod_cidrs.iter().chain(&json.ipv6_secondary_pod_cidrs);
    let nets = secondary.chain([&json.ipv4_pod_cidr, &json.ipv6_pod_cidr]).filter(|one| one.0.is_some()).count();
    let others = [json.ipv4_health_ip, json.ipv6_health_ip, json.ipv4_ingress_ip, json.ipv6_ingress_ip];
    let count = addresses + nets + others.iter().filter(|one| one.0.is_some()).count();
    if count > ENTRIES_MAX { 0 } else { count }
}

/// Returns the pod CIDRs of a value that was accepted.
pub(super) fn pod_cidrs(value: &[u8]) -> Vec<IpNet> {
    let Ok(json) = parse::<PodCidrsJson>("a node", value) else { return Vec::new() };
    let all = [json.ipv4, json.ipv6].into_iter().chain(json.ipv4_secondary).chain(json.ipv6_secondary);
    all.filter_map(|prefix| prefix.0).collect()
}

impl NodeJson {
    fn into_node(self) -> Node {
        // Go keeps an address without an IP as nil, which nothing uses
        let addresses = self.addresses.into_iter().filter_map(|json| Some(NodeAddress { ip: json.ip.0?, address_type: json.address_type }));
        let secondary = self.ipv4_secondary_pod_cidrs.into_iter().chain(self.ipv6_secondary_pod_cidrs);
        Node {
            name: self.name,
            cluster_id: self.cluster_id,
            // a boxed slice first: `collect` alone would keep the larger allocation of the JSON's
            // list
            addresses: addresses.collect::<Box<[NodeAddress]>>().into_vec(),
            ipv4_pod_cidr: self.ipv4_pod_cidr.0,
            ipv6_pod_cidr: self.ipv6_pod_cidr.0,
            secondary_pod_cidrs: secondary.filter_map(|prefix| prefix.0).collect(),
            health_ips: [self.ipv4_health_ip, self.ipv6_health_ip].into_iter().filter_map(|address| address.0).collect(),
            ingress_ips: [self.ipv4_ingress_ip, self.ipv6_ingress_ip].into_iter().filter_map(|address| address.0).collect(),
            encryption_key: self.encryption_key,
            wireguard_public_key: self.wireguard_public_key,
            labels: self.labels,
            annotations: self.annotations,
            boot_id: self.boot_id,
        }
    }
}
