//! Measures how incoming values are processed. `decode` decodes and checks a value; its reference
//! is `serde_json`, which reads the same bytes into a plain struct. `service` changes one of 5,000
//! backends of a service, from the bytes of the source to the patch for a subscriber.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant, SystemTime};

use meshkeep::internals::handle::BackendsPatch;
use meshkeep::internals::model::{Change, EntryKey, Kind, LeaseId, Revision, Scope, Sequence, SourceStamp};
use meshkeep::internals::view::View;
use serde::Deserialize;

use super::data::{cluster, decode as decoded};
use super::figures::mean_us;

const IP: &str = r#"{"IP":"10.1.2.40","Mask":null,"HostIP":"172.18.1.2","ID":68352,"Key":7,"Metadata":"","K8sNamespace":"shop","K8sPodName":"db-0","K8sServiceAccount":"db","NamedPorts":[{"Name":"pg","Port":5432,"Protocol":"TCP"}]}"#;
const NODE: &str = r#"{"Name":"paris-worker-2","Cluster":"paris","IPAddresses":[{"Type":"InternalIP","IP":"172.18.1.2"},{"Type":"InternalIP","IP":"fc00:c111:1::2"},{"Type":"CiliumInternalIP","IP":"10.1.2.10"}],"IPv4AllocCIDR":{"IP":"10.1.2.0","Mask":"////AA=="},"IPv4SecondaryAllocCIDRs":[{"IP":"10.1.220.0","Mask":"///wAA=="}],"IPv6AllocCIDR":null,"IPv6SecondaryAllocCIDRs":null,"IPv4HealthIP":"10.1.2.134","IPv6HealthIP":"","IPv4IngressIP":"","IPv6IngressIP":"","ClusterID":1,"Source":"custom-resource","EncryptionKey":7,"Labels":{"kubernetes.io/hostname":"paris-worker-2"},"Annotations":null,"WireguardPubKey":"","BootID":"570d3fd1-93db-4862-ba99-6a3c2c10c312"}"#;

/// Number of values in one measurement.
const VALUES: usize = 500;
/// Number of alternating measurements. The fastest counts, because other load only slows them down.
const ROUNDS: usize = 1_000;

/// Number of backends of a large service: 650 KiB as Cilium writes the generated ones.
const BACKENDS: u16 = 5_000;

/// An ipcache entry as plain JSON: every text is a `String`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(dead_code, reason = "only the decoding is measured")]
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
#[allow(dead_code, reason = "only the decoding is measured")]
struct PlainPort {
    name: String,
    port: u16,
    protocol: String,
}

/// A node as plain JSON.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(dead_code, reason = "only the decoding is measured")]
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
#[allow(dead_code, reason = "only the decoding is measured")]
struct PlainAddress {
    #[serde(rename = "Type")]
    kind: String,
    #[serde(rename = "IP")]
    ip: String,
}

#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "only the decoding is measured")]
struct PlainPrefix {
    #[serde(rename = "IP")]
    ip: String,
    #[serde(rename = "Mask")]
    mask: String,
}

/// A service as plain JSON, with its backends.
#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "only the decoding is measured")]
struct PlainService {
    namespace: String,
    name: String,
    backends: BTreeMap<String, BTreeMap<String, PlainBackendPort>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(dead_code, reason = "only the decoding is measured")]
struct PlainBackendPort {
    protocol: String,
    port: u16,
}

fn time_values(work: impl Fn()) -> Duration {
    let began = Instant::now();
    (0..VALUES).for_each(|_| work());
    began.elapsed()
}

fn compare(what: &str, key: &EntryKey, value: &str, plain: impl Fn(&[u8])) {
    let (mut ours, mut theirs) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        ours = ours.min(time_values(|| drop(black_box(decoded(black_box(key), black_box(value.as_bytes()))))));
        theirs = theirs.min(time_values(|| plain(black_box(value.as_bytes()))));
    }
    let (ours, theirs) = (mean_us(ours, VALUES), mean_us(theirs, VALUES));
    println!("  {what}: decoded and checked in {ours:.3} us, by serde_json into a plain struct in {theirs:.3} us: {:.2}x", ours / theirs);
}

pub(crate) fn decode() {
    let paris = meshkeep::internals::model::ClusterName::parse("paris").expect("must be a name");
    let key = |kind, name: &str| EntryKey::new(kind, paris.clone(), name);
    compare("ip pair", &key(Kind::Ip, "10.1.2.40"), IP, |value| {
        drop(black_box(serde_json::from_slice::<PlainPair>(value).expect("must parse")));
    });
    compare("node", &key(Kind::Node, "paris-worker-2"), NODE, |value| {
        drop(black_box(serde_json::from_slice::<PlainNode>(value).expect("must parse")));
    });
}

fn large_service(changed_port: u16) -> String {
    let backend = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let port = if number == BACKENDS / 2 { changed_port } else { 8080 };
        format!(
            r#""10.8.{high}.{low}":{{"admin":{{"Protocol":"TCP","Port":9090}},"http":{{"Protocol":"TCP","Port":{port}}},"metrics":{{"Protocol":"TCP","Port":9102}}}}"#
        )
    };
    let mut backends: Vec<String> = (0..BACKENDS).map(backend).collect();
    // as Go writes a map: in the order of its keys as text, which is not that of the addresses
    backends.sort_unstable();
    format!(
        r#"{{"cluster":"cluster-1","namespace":"shop","name":"large","frontends":{{"10.200.0.1":{{"http":{{"Protocol":"TCP","Port":80}}}}}},"backends":{{{}}},"labels":{{}},"selector":{{"app":"large"}},"includeExternal":true,"shared":true,"clusterID":1}}"#,
        backends.join(",")
    )
}

/// Measures one changed backend of many: decoding the bytes, applying the change, and comparing the
/// two objects for the patch. The test `a_patch_of_one_backend_has_less_than_a_kibibyte`
/// (src/api/tests/streaming/changes.rs) checks the size of the patch.
pub(crate) fn service() {
    let key = EntryKey::new(Kind::Service, cluster(1), "shop/large");
    let scope = Scope { cluster: cluster(1), kind: Kind::Service };
    let mut view = View::starting_at(Sequence(1));
    let (mut decoding, mut applying, mut comparing, mut plain) = (Duration::MAX, Duration::MAX, Duration::MAX, Duration::MAX);
    let mut bytes = 0;
    for round in 0..200_u16 {
        let value = large_service(8_000 + round);
        bytes = value.len();
        let began = Instant::now();
        drop(black_box(serde_json::from_str::<PlainService>(&value).expect("must parse")));
        plain = plain.min(began.elapsed());
        let began = Instant::now();
        let object = decoded(&key, value.as_bytes());
        decoding = decoding.min(began.elapsed());
        let source = SourceStamp { mod_revision: Revision(i64::from(round)), lease: LeaseId(7), held: false };
        let put = Change::Put { key: key.clone(), value: value.into_bytes().into(), decoded: Ok(object), source };
        let began = Instant::now();
        let command = meshkeep::internals::model::Command::Apply { scope: scope.clone(), changes: vec![put], cursor: None };
        let effects = view.apply(command, SystemTime::UNIX_EPOCH);
        applying = applying.min(began.elapsed());
        let announcement = &effects.announcements[0];
        if let (Some(old), Some(new)) = (announcement.old_object(), announcement.new_object()) {
            let began = Instant::now();
            let patch = BackendsPatch::between(&old, &new).expect("only backends differ");
            comparing = comparing.min(began.elapsed());
            assert!(patch.upserted.len() == 1 && patch.removed.is_empty());
        }
    }
    // the fastest of each, because other load only slows them down
    let micros = |time: Duration| mean_us(time, 1);
    println!(
        "  a service of {BACKENDS} backends ({} KiB), one changed: decoded in {:.0} us (serde_json into a plain struct: {:.0} us), applied in {:.0} us, compared in {:.0} us: {:.0} us in all",
        bytes >> 10,
        micros(decoding),
        micros(plain),
        micros(applying),
        micros(comparing),
        micros(decoding + applying + comparing)
    );
}
