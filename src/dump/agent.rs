//! Tables of one agent, as `cilium-dbg` prints them with `-o json`. Pure.
//!
//! The parser recognises the command by the shape of the JSON. The shapes are those of Cilium 1.16
//! to 1.20, of which `tests/data/agent` has examples.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use super::DumpError;
use super::forms::{FormError, from_json, without_frame};
use crate::dto::text::from_text;

/// A table of an agent.
#[derive(Debug, PartialEq, Eq)]
pub enum AgentTable {
    /// The BPF map that the datapath reads: `cilium-dbg bpf ipcache list`.
    BpfIpcache(Vec<AgentEntry>),
    /// The ipcache in the agent's memory: `cilium-dbg ip list`.
    Ipcache(Vec<AgentEntry>),
    /// `cilium-dbg identity list`.
    Identities(Vec<AgentIdentity>),
    /// `cilium-dbg node list`.
    Nodes(Vec<AgentNode>),
}

/// An entry of an agent's ipcache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentEntry {
    /// Address or CIDR.
    pub prefix: IpNet,
    /// Numeric identity.
    pub identity: u32,
    /// Node that hosts the prefix, which is the tunnel endpoint in the BPF map. `None` for no node.
    pub host_ip: Option<IpAddr>,
    /// Encryption key; 0 if there is none.
    pub encryption_key: u8,
}

/// An identity that an agent knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentIdentity {
    /// Numeric identity.
    pub id: u32,
    /// Labels as `source:key=value`.
    pub labels: BTreeSet<String>,
}

/// A node that an agent knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentNode {
    /// Cluster and name as `cluster/name`. Nodes of the cluster `default` have only their name.
    pub full_name: String,
    /// All addresses except those of the health endpoint and of the ingress.
    pub addresses: BTreeSet<IpAddr>,
    /// First pod CIDR of each address family.
    pub pod_cidrs: BTreeSet<IpNet>,
    /// Addresses of the health endpoint.
    pub health_ips: BTreeSet<IpAddr>,
    /// Addresses of the ingress.
    pub ingress_ips: BTreeSet<IpAddr>,
}

impl AgentTable {
    /// Returns the command that prints the table.
    #[must_use]
    pub const fn command(&self) -> &'static str {
        match self {
            Self::BpfIpcache(_) => "cilium-dbg bpf ipcache list",
            Self::Ipcache(_) => "cilium-dbg ip list",
            Self::Identities(_) => "cilium-dbg identity list",
            Self::Nodes(_) => "cilium-dbg node list",
        }
    }
}

/// Parses a table of an agent. `path` is only for messages.
///
/// # Errors
/// [`DumpError`], which names the file, the reason and the cure.
pub fn parse_agent_table(path: &Path, bytes: &[u8]) -> Result<AgentTable, DumpError> {
    parse(without_frame(bytes)).map_err(|error| match error {
        FormError::Unrecognised => DumpError::UnrecognisedTable { path: path.to_owned() },
        FormError::Malformed(reason) => DumpError::Malformed { path: path.to_owned(), reason },
    })
}

fn parse(bytes: &[u8]) -> Result<AgentTable, FormError> {
    match bytes.first() {
        Some(b'{') => parse_bpf(bytes),
        Some(b'[') => parse_list(bytes),
        _ => Err(FormError::Unrecognised),
    }
}

/// Parses the map from prefixes to values (`Dump` in Cilium's `pkg/bpf/map_linux.go`).
fn parse_bpf(bytes: &[u8]) -> Result<AgentTable, FormError> {
    let map: BTreeMap<String, Value> = from_json(bytes)?;
    let mut entries = Vec::with_capacity(map.len());
    for (key, values) in map {
        // any other object has keys or values of another form
        let value = values.as_array().and_then(|values| values.first()).and_then(Value::as_str).filter(|value| value.contains("identity="));
        let value = value.ok_or(FormError::Unrecognised)?;
        let entry = parse_bpf_entry(&key, value);
        entries.push(entry.ok_or_else(|| FormError::Malformed(format!("{key:?} has the value {value:?}")))?);
    }
    Ok(AgentTable::BpfIpcache(entries))
}

/// Parses an entry of the BPF map: `String` of `Key` and `RemoteEndpointInfo` in Cilium's
/// `pkg/maps/ipcache`. In 1.16 a comma follows the tunnel endpoint.
fn parse_bpf_entry(key: &str, value: &str) -> Option<AgentEntry> {
    // the id of the cluster follows if prefixes of clusters may overlap (`PrefixCluster`)
    let prefix: IpNet = key.split('@').next()?.parse().ok()?;
    let fields: BTreeMap<&str, &str> = value.split_whitespace().filter_map(|field| field.trim_end_matches(',').split_once('=')).collect();
    Some(AgentEntry {
        prefix: prefix.trunc(),
        identity: fields.get("identity")?.parse().ok()?,
        host_ip: specified(fields.get("tunnelendpoint")?.parse().ok()?),
        encryption_key: fields.get("encryptkey")?.parse().ok()?,
    })
}

/// Returns an address, or `None` for 0.0.0.0 and `::`, which stand for no address.
fn specified(ip: IpAddr) -> Option<IpAddr> {
    Some(ip).filter(|ip| !ip.is_unspecified())
}

/// Members by which a list is recognised, one for each command.
#[derive(Deserialize)]
struct ListItem {
    cidr: Option<Value>,
    labels: Option<Value>,
    #[serde(rename = "primary-address")]
    primary_address: Option<Value>,
}

fn parse_list(bytes: &[u8]) -> Result<AgentTable, FormError> {
    let items: Vec<Value> = from_json(bytes)?;
    let first = items.first().ok_or_else(|| FormError::Malformed("the list is empty, so its kind is not known".to_owned()))?;
    let first = ListItem::deserialize(first).map_err(|_| FormError::Unrecognised)?;
    if first.cidr.is_some() {
        convert(items, from_ip).map(AgentTable::Ipcache)
    } else if first.labels.is_some() {
        convert(items, from_identity).map(AgentTable::Identities)
    } else if first.primary_address.is_some() {
        convert(items, from_node).map(AgentTable::Nodes)
    } else {
        Err(FormError::Unrecognised)
    }
}

fn convert<M: for<'de> Deserialize<'de>, T>(items: Vec<Value>, convert: fn(M) -> Result<T, String>) -> Result<Vec<T>, FormError> {
    let convert = |(index, item)| {
        let model = M::deserialize(item).map_err(|error: serde_json::Error| error.to_string());
        model.and_then(convert).map_err(|reason| FormError::Malformed(format!("item {}: {reason}", index + 1)))
    };
    items.into_iter().enumerate().map(convert).collect()
}

/// `IPListEntry` of Cilium's API.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IpModel {
    #[serde(deserialize_with = "from_text")]
    cidr: IpNet,
    identity: u32,
    #[serde(default, rename = "hostIP")]
    host_ip: String,
    #[serde(default)]
    encrypt_key: u8,
}

fn from_ip(model: IpModel) -> Result<AgentEntry, String> {
    let IpModel { cidr, identity, host_ip, encrypt_key: encryption_key } = model;
    let host_ip = if host_ip.is_empty() { None } else { specified(parse_address(&host_ip)?) };
    Ok(AgentEntry { prefix: cidr.trunc(), identity, host_ip, encryption_key })
}

/// `Identity` of Cilium's API.
#[derive(Deserialize)]
struct IdentityModel {
    #[serde(default)]
    id: u32,
    labels: BTreeSet<String>,
}

fn from_identity(model: IdentityModel) -> Result<AgentIdentity, String> {
    Ok(AgentIdentity { id: model.id, labels: model.labels })
}

/// `NodeElement` of Cilium's API.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct NodeModel {
    name: String,
    primary_address: Option<AddressingModel>,
    #[serde(default)]
    secondary_addresses: Vec<AddressModel>,
    health_endpoint_address: Option<AddressingModel>,
    ingress_address: Option<AddressingModel>,
}

/// `NodeAddressing` of Cilium's API.
#[derive(Default, Deserialize)]
struct AddressingModel {
    ipv4: Option<AddressModel>,
    ipv6: Option<AddressModel>,
}

/// `NodeAddressingElement` of Cilium's API.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct AddressModel {
    #[serde(default)]
    ip: String,
    #[serde(default)]
    alloc_range: String,
}

fn from_node(model: NodeModel) -> Result<AgentNode, String> {
    let primary = addresses(model.primary_address);
    let cidrs = primary.iter().map(|address| address.alloc_range.as_str()).filter(|text| !text.is_empty());
    let parse = |text: &str| text.parse::<IpNet>().map(|net| net.trunc()).map_err(|_| format!("{text:?} is not a CIDR"));
    let pod_cidrs = cidrs.map(parse).collect::<Result<_, String>>()?;
    Ok(AgentNode {
        pod_cidrs,
        addresses: ips(primary.iter().chain(&model.secondary_addresses))?,
        health_ips: ips(&addresses(model.health_endpoint_address))?,
        ingress_ips: ips(&addresses(model.ingress_address))?,
        full_name: model.name,
    })
}

fn addresses(model: Option<AddressingModel>) -> Vec<AddressModel> {
    let AddressingModel { ipv4, ipv6 } = model.unwrap_or_default();
    ipv4.into_iter().chain(ipv6).collect()
}

/// Returns the addresses that are set.
fn ips<'a>(models: impl IntoIterator<Item = &'a AddressModel>) -> Result<BTreeSet<IpAddr>, String> {
    models.into_iter().filter(|model| !model.ip.is_empty()).map(|model| parse_address(&model.ip)).collect()
}

fn parse_address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is not an address"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const VERSIONS: [&str; 5] = ["1.16", "1.17", "1.18", "1.19", "1.20"];

    fn parse_text(text: &str) -> Result<AgentTable, String> {
        parse_agent_table(Path::new("table"), text.as_bytes()).map_err(|error| error.to_string())
    }

    fn fixture(version: &str, form: &str) -> String {
        let name = format!("tests/data/agent/{version}-{form}.json");
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn both_forms_of_the_ipcache_are_the_same_in_every_version() {
        for version in VERSIONS {
            let Ok(AgentTable::BpfIpcache(bpf)) = parse_text(&fixture(version, "bpf-ipcache")) else { panic!("{version}") };
            let Ok(AgentTable::Ipcache(ip)) = parse_text(&fixture(version, "ip")) else { panic!("{version}") };
            let by_prefix = |entries: &[AgentEntry]| entries.iter().map(|entry| (entry.prefix, entry.clone())).collect::<BTreeMap<_, _>>();
            let (bpf, mut ip) = (by_prefix(&bpf), by_prefix(&ip));
            let pod = AgentEntry { prefix: net("10.2.1.99/32"), identity: 131_331, host_ip: "172.18.2.1".parse().ok(), encryption_key: 0 };
            assert_eq!(ip[&pod.prefix], pod);
            assert_eq!(ip[&net("10.1.2.134/32")].encryption_key, 7);
            // the datapath has no tunnel to the agent's own node
            for entry in ip.values_mut() {
                entry.host_ip = entry.host_ip.filter(|host| host.to_string() != "172.18.3.1");
            }
            assert_eq!(bpf, ip, "{version}");
        }
    }

    #[test]
    fn identities_and_nodes_are_parsed_in_every_version() {
        for version in VERSIONS {
            let Ok(AgentTable::Identities(identities)) = parse_text(&fixture(version, "identity")) else { panic!("{version}") };
            let labels = ["k8s:app=database", "k8s:io.cilium.k8s.policy.cluster=paris", "k8s:io.kubernetes.pod.namespace=shop"];
            let expected = AgentIdentity { id: 68_352, labels: labels.map(str::to_owned).into() };
            assert_eq!(identities.iter().find(|identity| identity.id == 68_352), Some(&expected), "{version}");
            let Ok(AgentTable::Nodes(nodes)) = parse_text(&fixture(version, "node")) else { panic!("{version}") };
            let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<BTreeSet<IpAddr>>();
            let expected = AgentNode {
                full_name: "paris/paris-worker-1".to_owned(),
                addresses: ips(&["172.18.1.1", "fc00:c111:1::1", "10.1.1.10", "fd00:10:1:1::e2d6"]),
                pod_cidrs: [net("10.1.1.0/24"), net("fd00:10:1:1::/64")].into(),
                health_ips: ips(&["10.1.1.134", "fd00:10:1:1::d812"]),
                ingress_ips: ips(&["10.1.1.77"]),
            };
            assert_eq!(nodes.iter().find(|node| node.full_name == expected.full_name), Some(&expected), "{version}");
        }
    }

    #[test]
    fn a_table_in_a_file_of_bugtool_and_with_a_cluster_id_is_parsed() {
        let text = "# cilium-dbg bpf ipcache list -o json\n\n```\n{\"10.0.0.0/8@3\":[\"identity=2 encryptkey=0 tunnelendpoint=:: flags=<none>\"]}\n```\n";
        let entry = AgentEntry { prefix: net("10.0.0.0/8"), identity: 2, host_ip: None, encryption_key: 0 };
        assert_eq!(parse_text(text).unwrap(), AgentTable::BpfIpcache(vec![entry]));
        assert_eq!(parse_text("{}").unwrap(), AgentTable::BpfIpcache(Vec::new()));
    }

    #[test]
    fn other_files_are_refused() {
        for (text, reason) in [
            ("", "is not a table of an agent: give the output of"),
            ("IP PREFIX/ADDRESS   IDENTITY\n", "is not a table of an agent: give the output of"),
            ("{\"cilium/.heartbeat\":{\"Data\":\"\"}}", "is not a table of an agent: give the output of"),
            ("[1]", "is not a table of an agent: give the output of"),
            ("[{\"name\":\"a\"}]", "is not a table of an agent: give the output of"),
            ("[]", "cannot be parsed: the list is empty, so its kind is not known"),
            ("{\"a\":", "cannot be parsed: EOF while parsing"),
            ("{\"a/32\":[\"identity=1\"]}", "cannot be parsed: \"a/32\" has the value \"identity=1\""),
            ("[{\"cidr\":\"10.0.0.1\",\"identity\":1}]", "cannot be parsed: item 1: "),
            ("[{\"cidr\":\"10.0.0.1/32\",\"identity\":1,\"hostIP\":\"a\"}]", "cannot be parsed: item 1: \"a\" is not an address"),
        ] {
            let refused = parse_text(text).unwrap_err();
            assert!(refused.starts_with("table ") && refused.contains(reason), "{text:?}: {refused}");
        }
    }
}
