//! Encoders that produce the same bytes as Cilium's writers: Go's `encoding/json`, with the fields
//! in the order of its structs (docs/develop/protocol.md §2).

use std::collections::BTreeMap;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use serde::Serialize;

use crate::model::{ClusterConfig, ClusterName, IpEntry, LabelSet, NamedPort, Node, Port, Service};

/// `Source` of a node, as a clustermesh-apiserver sets it. Readers overwrite it (`pkg/node/store`).
const SOURCE: &str = "custom-resource";

#[derive(Serialize)]
struct PrefixJson {
    #[serde(rename = "IP")]
    ip: String,
    #[serde(rename = "Mask")]
    mask: String,
}

impl PrefixJson {
    fn from_net(net: &IpNet) -> Self {
        Self { ip: net.addr().to_string(), mask: mask(net) }
    }

    fn from_nets<'a>(nets: impl Iterator<Item = &'a IpNet>) -> Option<Vec<Self>> {
        let list: Vec<Self> = nets.map(Self::from_net).collect();
        (!list.is_empty()).then_some(list)
    }
}

/// Encodes a mask in base64, as Go encodes bytes.
fn mask(net: &IpNet) -> String {
    match net {
        IpNet::V4(net) => STANDARD.encode(net.netmask().octets()),
        IpNet::V6(net) => STANDARD.encode(net.netmask().octets()),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct NodeJson<'a> {
    name: &'a str,
    cluster: &'a str,
    #[serde(rename = "IPAddresses")]
    addresses: Vec<AddressJson<'a>>,
    #[serde(rename = "IPv4AllocCIDR")]
    ipv4_pod_cidr: Option<PrefixJson>,
    #[serde(rename = "IPv4SecondaryAllocCIDRs")]
    ipv4_secondary: Option<Vec<PrefixJson>>,
    #[serde(rename = "IPv6AllocCIDR")]
    ipv6_pod_cidr: Option<PrefixJson>,
    #[serde(rename = "IPv6SecondaryAllocCIDRs")]
    ipv6_secondary: Option<Vec<PrefixJson>>,
    #[serde(rename = "IPv4HealthIP")]
    ipv4_health: String,
    #[serde(rename = "IPv6HealthIP")]
    ipv6_health: String,
    #[serde(rename = "IPv4IngressIP")]
    ipv4_ingress: String,
    #[serde(rename = "IPv6IngressIP")]
    ipv6_ingress: String,
    #[serde(rename = "ClusterID")]
    cluster_id: u32,
    source: &'a str,
    encryption_key: u8,
    labels: Option<&'a LabelSet>,
    annotations: Option<&'a LabelSet>,
    #[serde(rename = "WireguardPubKey")]
    wireguard_public_key: &'a str,
    #[serde(rename = "BootID")]
    boot_id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct AddressJson<'a> {
    #[serde(rename = "Type")]
    address_type: &'a str,
    #[serde(rename = "IP")]
    ip: IpAddr,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceJson<'a> {
    cluster: &'a str,
    namespace: &'a str,
    name: &'a str,
    frontends: BTreeMap<String, PortsJson<'a>>,
    backends: BTreeMap<String, PortsJson<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    hostnames: BTreeMap<String, &'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    zones: BTreeMap<String, ZoneJson<'a>>,
    labels: Option<&'a LabelSet>,
    selector: Option<&'a LabelSet>,
    include_external: bool,
    shared: bool,
    #[serde(rename = "clusterID")]
    cluster_id: u32,
}

type PortsJson<'a> = BTreeMap<&'a str, PortJson<'a>>;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct PortJson<'a> {
    protocol: &'a str,
    port: u16,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ZoneJson<'a> {
    zone: &'a str,
    for_zones: Vec<ForZoneJson<'a>>,
}

#[derive(Serialize)]
struct ForZoneJson<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct PairJson<'a> {
    #[serde(rename = "IP")]
    ip: IpAddr,
    #[serde(rename = "Mask")]
    mask: Option<String>,
    #[serde(rename = "HostIP")]
    host_ip: String,
    #[serde(rename = "ID")]
    identity: u32,
    #[serde(rename = "Key")]
    encryption_key: u8,
    #[serde(rename = "Metadata")]
    metadata: &'a str,
    #[serde(rename = "K8sNamespace", skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    #[serde(rename = "K8sPodName", skip_serializing_if = "str::is_empty")]
    pod_name: &'a str,
    #[serde(rename = "K8sPodUID", skip_serializing_if = "str::is_empty")]
    pod_uid: &'a str,
    #[serde(rename = "K8sServiceAccount", skip_serializing_if = "str::is_empty")]
    service_account: &'a str,
    #[serde(rename = "NamedPorts", skip_serializing_if = "Vec::is_empty")]
    named_ports: Vec<NamedPortJson<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct NamedPortJson<'a> {
    name: &'a str,
    port: u16,
    protocol: &'a str,
}

impl<'a> NamedPortJson<'a> {
    fn from_port(port: &'a NamedPort) -> Self {
        Self { name: &port.name, port: port.port, protocol: &port.protocol }
    }
}

#[derive(Serialize)]
struct ConfigJson<'a> {
    #[serde(skip_serializing_if = "is_zero")]
    id: u32,
    capabilities: CapabilitiesJson<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CapabilitiesJson<'a> {
    #[serde(skip_serializing_if = "is_false")]
    synced_canaries: bool,
    #[serde(skip_serializing_if = "is_false")]
    cached: bool,
    #[serde(skip_serializing_if = "is_zero")]
    max_connected_clusters: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_exports_enabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint_slices_export_mode: Option<&'a str>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Encodes a node as its cluster announces it.
#[must_use]
pub fn node_value(node: &Node, cluster: &ClusterName) -> Vec<u8> {
    let secondary = |ipv4: bool| PrefixJson::from_nets(node.secondary_pod_cidrs.iter().filter(|net| net.addr().is_ipv4() == ipv4));
    let first = |ips: &[IpAddr], ipv4: bool| ips.iter().find(|ip| ip.is_ipv4() == ipv4).map(IpAddr::to_string).unwrap_or_default();
    let json = NodeJson {
        name: &node.name,
        cluster: cluster.as_str(),
        addresses: node.addresses.iter().map(|address| AddressJson { address_type: &address.address_type, ip: address.ip }).collect(),
        ipv4_pod_cidr: node.ipv4_pod_cidr.as_ref().map(PrefixJson::from_net),
        ipv4_secondary: secondary(true),
        ipv6_pod_cidr: node.ipv6_pod_cidr.as_ref().map(PrefixJson::from_net),
        ipv6_secondary: secondary(false),
        ipv4_health: first(&node.health_ips, true),
        ipv6_health: first(&node.health_ips, false),
        ipv4_ingress: first(&node.ingress_ips, true),
        ipv6_ingress: first(&node.ingress_ips, false),
        cluster_id: node.cluster_id,
        source: SOURCE,
        encryption_key: node.encryption_key,
        labels: non_empty(&node.labels),
        annotations: non_empty(&node.annotations),
        wireguard_public_key: &node.wireguard_public_key,
        boot_id: &node.boot_id,
    };
    go_json(&json)
}

/// Encodes a service as its cluster announces it.
#[must_use]
pub fn service_value(service: &Service, cluster: &ClusterName) -> Vec<u8> {
    let zones = service.backends.iter().filter_map(|backend| {
        let zone = backend.zone.as_ref()?;
        let for_zones = zone.for_zones.iter().map(|name| ForZoneJson { name }).collect();
        Some((backend.ip.to_string(), ZoneJson { zone: &zone.zone, for_zones }))
    });
    let named = service.backends.iter().filter(|backend| !backend.hostname.is_empty());
    let json = ServiceJson {
        cluster: cluster.as_str(),
        namespace: &service.namespace,
        name: &service.name,
        frontends: service.frontends.iter().map(|frontend| (frontend.ip.to_string(), ports(&frontend.ports))).collect(),
        backends: service.backends.iter().map(|backend| (backend.ip.to_string(), ports(&backend.ports))).collect(),
        hostnames: named.map(|backend| (backend.ip.to_string(), backend.hostname.as_str())).collect(),
        zones: zones.collect(),
        labels: non_empty(&service.labels),
        selector: non_empty(&service.selector),
        include_external: service.include_external,
        shared: service.shared,
        cluster_id: service.cluster_id,
    };
    go_json(&json)
}

fn ports(ports: &[Port]) -> PortsJson<'_> {
    ports.iter().map(|port| (port.name.as_str(), PortJson { protocol: &port.protocol, port: port.port })).collect()
}

/// Encodes an address or prefix with its identity.
#[must_use]
pub fn ip_value(entry: &IpEntry) -> Vec<u8> {
    let json = PairJson {
        ip: entry.prefix.net.addr(),
        mask: (!entry.prefix.host).then(|| mask(&entry.prefix.net)),
        host_ip: entry.host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
        identity: entry.identity,
        encryption_key: entry.encryption_key,
        metadata: "",
        namespace: &entry.namespace,
        pod_name: &entry.pod_name,
        pod_uid: &entry.pod_uid,
        service_account: &entry.service_account,
        named_ports: entry.named_ports.iter().map(NamedPortJson::from_port).collect(),
    };
    go_json(&json)
}

/// Encodes a cluster config.
#[must_use]
pub fn cluster_config_value(config: &ClusterConfig) -> Vec<u8> {
    let capabilities = CapabilitiesJson {
        synced_canaries: config.synced_canaries,
        cached: config.cached,
        max_connected_clusters: config.max_connected_clusters,
        service_exports_enabled: config.service_exports_enabled,
        endpoint_slices_export_mode: config.endpoint_slices_export_mode.as_deref(),
    };
    go_json(&ConfigJson { id: config.id.0, capabilities })
}

/// Encodes a cluster config as a KVStoreMesh writes it for a cluster that it copies
/// (`pkg/clustermesh/kvstoremesh/remote_cluster.go`): cached, and with canaries.
#[must_use]
pub fn cached_cluster_config_value(config: &ClusterConfig) -> Vec<u8> {
    cluster_config_value(&ClusterConfig { synced_canaries: true, cached: true, ..config.clone() })
}

/// Returns `None` for an empty map, which is `nil` in Go.
fn non_empty(labels: &LabelSet) -> Option<&LabelSet> {
    (!labels.is_empty()).then_some(labels)
}

/// Encodes JSON with Go's escapes. The characters can be replaced anywhere in the text, because
/// they occur only within JSON's strings.
fn go_json(value: &impl Serialize) -> Vec<u8> {
    let text = serde_json::to_string(value).unwrap_or_else(|error| unreachable!("texts, numbers and lists are JSON: {error}"));
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text.into_bytes();
    }
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    for character in text.chars() {
        match character {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            other => out.push(other),
        }
    }
    out.into_bytes()
}
