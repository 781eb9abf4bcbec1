//! Expected ipcache entries that are derived from nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::{Objects, address, items, parse, prefix, without_unset};

/// Returns the ipcache entries that an agent derives from a node (Cilium's
/// `pkg/node/manager/manager.go`, `NodeUpdated`). Their keys are the node's key, `#` and the
/// address.
pub(super) fn derived_entries(key: &str, value: &[u8]) -> Objects {
    let Some((cluster, name)) = key.strip_prefix("cilium/cache/nodes/v1/").and_then(|rest| rest.split_once('/')) else {
        return Objects::new();
    };
    let node = parse(key, value);
    let addresses: Vec<(&str, IpAddr)> =
        items(&node["IPAddresses"]).filter_map(|item| Some((item["Type"].as_str()?, address(&item["IP"])?))).collect();
    let field = |name: &str| address(&node[name]);
    // IPv4 before IPv6, then InternalIP before ExternalIP; every node that the tests compare has an
    // address of these types
    let first_of_type =
        |wanted: &str, ipv4: bool| addresses.iter().find(|(address_type, ip)| *address_type == wanted && ip.is_ipv4() == ipv4);
    let preferred = [("InternalIP", true), ("ExternalIP", true), ("InternalIP", false), ("ExternalIP", false)];
    let host_ip = preferred.into_iter().find_map(|(wanted, ipv4)| first_of_type(wanted, ipv4)).map(|(_, ip)| ip.to_string());
    // prefix, the part of the key after `#`, identity and encryption key
    let mut entries: Vec<(String, String, u32, Value)> = Vec::new();
    let host = |ip: IpAddr| (format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 }), ip.to_string());
    let mut add =
        |(prefix, key_suffix): (String, String), identity: u32, key: &Value| entries.push((prefix, key_suffix, identity, key.clone()));
    addresses.iter().for_each(|(_, ip)| add(host(*ip), 6, &json!(0)));
    let pods = pod_cidrs(&node);
    let families: BTreeSet<bool> = pods.iter().map(|net| net.contains(':')).collect();
    for net in pods {
        // numbers of the reserved identities world, world-ipv4 and world-ipv6: 2, 9 and 10
        let world = if families.len() == 1 { 2 } else { 9 + u32::from(net.contains(':')) };
        add((net.clone(), net), world, &node["EncryptionKey"]);
    }
    for (fields, identity) in [(["IPv4HealthIP", "IPv6HealthIP"], 4), (["IPv4IngressIP", "IPv6IngressIP"], 8)] {
        fields.into_iter().filter_map(field).for_each(|ip| add(host(ip), identity, &node["EncryptionKey"]));
    }
    let mut objects = Objects::new();
    // inserted in reverse, so that the first entry of a prefix wins
    for (prefix, key_suffix, identity, encryption_key) in entries.into_iter().rev() {
        let object = json!({
            "host": !key_suffix.contains('/'),
            "prefix": prefix,
            "cluster": cluster,
            "identity": identity,
            "hostIP": host_ip,
            "encryptionKey": encryption_key,
            "source": "node",
            "nodeName": name,
        });
        objects.insert(format!("{key}#{key_suffix}"), without_unset(object));
    }
    objects
}

fn pod_cidrs(node: &Value) -> Vec<String> {
    let first = ["IPv4AllocCIDR", "IPv6AllocCIDR"].into_iter().filter_map(|field| prefix(&node[field]));
    first
        .chain(["IPv4SecondaryAllocCIDRs", "IPv6SecondaryAllocCIDRs"].into_iter().flat_map(|field| items(&node[field]).filter_map(prefix)))
        .collect()
}
