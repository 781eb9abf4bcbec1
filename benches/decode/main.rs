//! What decoding and checking a value costs, as a ratio to `serde_json` reading the same bytes into a plain struct:
//! `cargo bench --bench decode`.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use meshkeep::model::{ClusterId, ClusterName, EntryKey, Kind, MaxConnectedClusters};
use meshkeep::wire::{self, Context};
use serde::Deserialize;

const IP: &str = r#"{"IP":"10.1.2.40","Mask":null,"HostIP":"172.18.1.2","ID":68352,"Key":7,"Metadata":"","K8sNamespace":"shop","K8sPodName":"db-0","K8sServiceAccount":"db","NamedPorts":[{"Name":"pg","Port":5432,"Protocol":"TCP"}]}"#;
const NODE: &str = r#"{"Name":"paris-worker-2","Cluster":"paris","IPAddresses":[{"Type":"InternalIP","IP":"172.18.1.2"},{"Type":"InternalIP","IP":"fc00:c111:1::2"},{"Type":"CiliumInternalIP","IP":"10.1.2.10"}],"IPv4AllocCIDR":{"IP":"10.1.2.0","Mask":"////AA=="},"IPv4SecondaryAllocCIDRs":[{"IP":"10.1.220.0","Mask":"///wAA=="}],"IPv6AllocCIDR":null,"IPv6SecondaryAllocCIDRs":null,"IPv4HealthIP":"10.1.2.134","IPv6HealthIP":"","IPv4IngressIP":"","IPv6IngressIP":"","ClusterID":1,"Source":"custom-resource","EncryptionKey":7,"Labels":{"kubernetes.io/hostname":"paris-worker-2"},"Annotations":null,"WireguardPubKey":"","BootID":"570d3fd1-93db-4862-ba99-6a3c2c10c312"}"#;

/// How many values one measurement decodes.
const VALUES: u32 = 500;
/// How often both are measured in turn; the quickest counts, since anything else that runs only slows down.
const ROUNDS: u32 = 1_000;

/// An ip pair without any meaning: every text a `String`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(dead_code, reason = "what is measured is the reading")]
struct PlainPair {
    #[serde(rename = "IP")]
    ip: String,
    mask: Option<String>,
    #[serde(rename = "HostIP")]
    host_ip: String,
    #[serde(rename = "ID")]
    id: u32,
    key: u8,
    metadata: String,
    #[serde(rename = "K8sNamespace", default)]
    namespace: String,
    #[serde(rename = "K8sPodName", default)]
    pod_name: String,
    #[serde(rename = "K8sServiceAccount", default)]
    service_account: String,
    #[serde(default)]
    named_ports: Vec<PlainPort>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(dead_code, reason = "what is measured is the reading")]
struct PlainPort {
    name: String,
    port: u16,
    protocol: String,
}

/// A node without any meaning.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(dead_code, reason = "what is measured is the reading")]
struct PlainNode {
    name: String,
    cluster: String,
    #[serde(rename = "IPAddresses")]
    addresses: Vec<PlainAddress>,
    #[serde(rename = "IPv4AllocCIDR")]
    ipv4: Option<PlainPrefix>,
    #[serde(rename = "IPv6AllocCIDR")]
    ipv6: Option<PlainPrefix>,
    #[serde(rename = "IPv4SecondaryAllocCIDRs")]
    secondary_ipv4: Option<Vec<PlainPrefix>>,
    #[serde(rename = "IPv6SecondaryAllocCIDRs")]
    secondary_ipv6: Option<Vec<PlainPrefix>>,
    #[serde(rename = "IPv4HealthIP")]
    health_ipv4: String,
    #[serde(rename = "IPv6HealthIP")]
    health_ipv6: String,
    #[serde(rename = "IPv4IngressIP")]
    ingress_ipv4: String,
    #[serde(rename = "IPv6IngressIP")]
    ingress_ipv6: String,
    #[serde(rename = "ClusterID")]
    cluster_id: u32,
    source: String,
    encryption_key: u8,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    wireguard_pub_key: String,
    #[serde(rename = "BootID")]
    boot_id: String,
}

#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "what is measured is the reading")]
struct PlainAddress {
    #[serde(rename = "Type")]
    kind: String,
    #[serde(rename = "IP")]
    ip: String,
}

#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "what is measured is the reading")]
struct PlainPrefix {
    #[serde(rename = "IP")]
    ip: String,
    #[serde(rename = "Mask")]
    mask: String,
}

/// The time for one value, in the quickest round.
fn quickest(rounds: &[Duration]) -> f64 {
    rounds.iter().min().map_or(0.0, |time| time.as_secs_f64() * 1e9 / f64::from(VALUES))
}

fn time(mut work: impl FnMut()) -> Duration {
    let started = Instant::now();
    (0..VALUES).for_each(|_| work());
    started.elapsed()
}

fn compare(what: &str, key: &EntryKey, value: &str, plain: impl Fn(&[u8])) {
    let context = Context { cluster: &key.cluster, cluster_id: ClusterId(1), max_connected_clusters: MaxConnectedClusters::Clusters255 };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(time(|| drop(black_box(wire::decode(black_box(key), black_box(value.as_bytes()), &context)))));
        theirs.push(time(|| plain(black_box(value.as_bytes()))));
    }
    let (ours, theirs) = (quickest(&ours), quickest(&theirs));
    println!("{what}: {ours:.0} ns, serde_json into a plain struct {theirs:.0} ns: {:.2} times (to reach: 1.5)", ours / theirs);
}

fn main() -> Result<(), meshkeep::model::InvalidClusterName> {
    let paris = ClusterName::parse("paris")?;
    let key = |kind, name: &str| EntryKey::new(kind, paris.clone(), name);
    compare("ip pair", &key(Kind::Ip, "10.1.2.40"), IP, |value| drop(black_box(serde_json::from_slice::<PlainPair>(value))));
    compare("node", &key(Kind::Node, "paris-worker-2"), NODE, |value| drop(black_box(serde_json::from_slice::<PlainNode>(value))));
    Ok(())
}
