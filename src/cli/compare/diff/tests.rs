//! The rules of the comparison, with small tables.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::comparison::{Difference, MirrorFacts, NotCompared, Reason, TableComparison};
use super::identities::MirrorIdentity;
use super::ipcache::{MirrorEntries, MirrorEntry, MirrorNodeAddresses};
use super::{identities, ipcache, nodes};
use crate::dto::objects::Node;
use crate::dto::status::Cluster;
use crate::dump::agent::{AgentEntry, AgentIdentity, AgentNode};

const DUMP_TIME: &str = "2026-01-12T10:00:00Z";

fn from_json<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn cluster(name: &str, id: u32, phase: &str) -> Cluster {
    from_json(
        json!({"name": name, "clusterID": id, "phase": phase, "origin": "live", "configRetrieved": true, "resources": [], "failures": 0}),
    )
}

fn facts() -> MirrorFacts {
    MirrorFacts::new(vec![cluster("paris", 1, "live"), cluster("tokyo", 2, "backingOff")], DUMP_TIME.parse().unwrap())
}

fn node() -> Node {
    from_json(json!({"name": "worker", "cluster": "paris", "ipv4PodCIDR": "10.1.0.0/16", "encryptionKey": 3, "labels": {}, "addresses": [
        {"type": "InternalIP", "ip": "172.18.1.1"}, {"type": "InternalIP", "ip": "fc00::1"}, {"type": "CiliumInternalIP", "ip": "10.1.0.1"}]}))
}

fn agent_entry(prefix: &str, identity: u32, host_ip: Option<&str>, encryption_key: u8) -> AgentEntry {
    AgentEntry { prefix: prefix.parse().unwrap(), identity, host_ip: host_ip.map(|ip| ip.parse().unwrap()), encryption_key }
}

/// Returns an entry of paris. The source is `node` if the entry is derived from the node.
fn mirror_entry(prefix: &str, identity: u32, host_ip: Option<&str>, source: &str) -> Value {
    let host = prefix.ends_with("/32") || prefix.ends_with("/128");
    json!({"prefix": prefix, "host": host, "cluster": "paris", "identity": identity, "hostIP": host_ip, "source": source})
}

fn compare(agent: &[AgentEntry], mirror: Vec<Value>) -> TableComparison {
    let mut entries = MirrorEntries::new();
    for entry in mirror {
        let entry: MirrorEntry = from_json(entry);
        entries.entry(entry.prefix).or_default().push(entry);
    }
    ipcache::compare(agent, &entries, &MirrorNodeAddresses::new([&node()]), &facts())
}

/// Returns each difference as `object: field agent/meshkeep`, with the reason.
fn described(comparison: &TableComparison) -> Vec<(String, Option<Reason>)> {
    let describe = |difference: &Difference| {
        let fields: Vec<String> =
            difference.fields.iter().map(|field| format!(" {}={}/{}", field.field, field.agent, field.meshkeep)).collect();
        (format!("{} {}{}", difference.kind.name(), difference.object, fields.concat()), difference.reason)
    };
    comparison.differences.iter().map(describe).collect()
}

#[test]
fn values_that_agents_set_by_their_configuration_are_no_differences() {
    let (host, other) = (Some("172.18.1.1"), Some("fc00::1"));
    let (router, internal, cidr, health) = ("10.1.0.1/32", "172.18.1.1/32", "10.1.0.0/16", "10.1.0.9/32");
    for (agent, mirror, is_equal) in [
        // without node encryption and the host firewall, only the router has a tunnel endpoint
        (agent_entry(internal, 6, None, 0), mirror_entry(internal, 6, host, "node"), true),
        (agent_entry(internal, 6, host, 3), mirror_entry(internal, 6, host, "node"), true),
        (agent_entry(internal, 6, host, 4), mirror_entry(internal, 6, host, "node"), false),
        (agent_entry(router, 6, None, 0), mirror_entry(router, 6, host, "node"), false),
        (agent_entry(router, 6, other, 0), mirror_entry(router, 6, host, "node"), true),
        (agent_entry(router, 6, Some("172.18.1.2"), 0), mirror_entry(router, 6, host, "node"), false),
        // identities of nodes and of the world
        (agent_entry(router, 7, host, 0), mirror_entry(router, 6, host, "node"), true),
        (agent_entry(router, 0x0200_0001, host, 0), mirror_entry(router, 6, host, "node"), true),
        (agent_entry(router, 1, host, 0), mirror_entry(router, 6, host, "node"), true),
        (agent_entry(router, 65_537, host, 0), mirror_entry(router, 6, host, "node"), false),
        (agent_entry(cidr, 9, host, 0), mirror_entry(cidr, 2, host, "node"), true),
        (agent_entry(cidr, 0x0100_0001, host, 0), mirror_entry(cidr, 9, host, "node"), true),
        (agent_entry(cidr, 6, host, 0), mirror_entry(cidr, 2, host, "node"), false),
        // WireGuard
        (agent_entry(health, 4, host, 255), mirror_entry(health, 4, host, "node"), true),
        (agent_entry(health, 4, host, 1), mirror_entry(health, 4, host, "node"), false),
        // pods
        (agent_entry(health, 65_537, host, 0), mirror_entry(health, 65_537, host, "clustermesh"), true),
        (agent_entry(health, 65_537, host, 255), mirror_entry(health, 65_537, host, "clustermesh"), false),
        (agent_entry(health, 65_537, None, 0), mirror_entry(health, 65_537, host, "clustermesh"), false),
        (agent_entry(health, 65_537, None, 0), mirror_entry(health, 65_537, other, "clustermesh"), true),
        (agent_entry(health, 65_538, host, 0), mirror_entry(health, 65_537, host, "clustermesh"), false),
    ] {
        let comparison = compare(std::slice::from_ref(&agent), vec![mirror.clone()]);
        assert_eq!(comparison.differences.is_empty(), is_equal, "{agent:?} and {mirror}: {comparison:?}");
        assert_eq!(comparison.compared, 1);
    }
}

/// The agent runs on a mirrored node: its own entries have no tunnel endpoint.
#[test]
fn entries_of_the_own_node_have_no_tunnel_endpoint() {
    let pod = || mirror_entry("10.1.0.9/32", 65_537, Some("172.18.1.1"), "clustermesh");
    let own = || mirror_entry("172.18.1.1/32", 6, Some("172.18.1.1"), "node");
    let agent = [agent_entry("10.1.0.9/32", 65_537, None, 0), agent_entry("172.18.1.1/32", 1, None, 0)];
    assert_eq!(compare(&agent, vec![pod(), own()]), TableComparison { compared: 2, ..TableComparison::default() });
}

#[test]
fn missing_and_additional_entries_have_reasons() {
    let host = Some("172.18.1.1");
    let changed = |prefix: &str, time: &str| {
        let mut entry = mirror_entry(prefix, 65_537, host, "clustermesh");
        entry["changedAt"] = json!(time);
        entry
    };
    let mut of_tokyo = mirror_entry("10.2.0.1/32", 131_073, None, "clustermesh");
    of_tokyo["cluster"] = json!("tokyo");
    let mirror = vec![
        changed("10.1.0.1/32", "2026-01-12T09:59:58Z"),
        changed("10.1.0.2/32", "2026-01-12T10:00:30Z"),
        changed("10.1.0.3/32", "2026-01-12T09:00:00Z"),
        mirror_entry("10.1.0.4/32", 65_537, host, "clustermesh"),
        of_tokyo,
    ];
    let agent = [
        agent_entry("10.1.0.4/32", 65_537, host, 0),
        agent_entry("10.1.0.5/32", 65_538, host, 0),
        agent_entry("10.2.0.2/32", 131_074, None, 0),
        agent_entry("10.1.0.9/32", 4, None, 0),
        // a node with an API server
        agent_entry("172.18.1.9/32", 7, Some("172.18.1.1"), 0),
        // not compared
        agent_entry("10.3.0.1/32", 196_609, None, 0),
        agent_entry("10.3.0.2/32", 6, Some("172.18.3.1"), 0),
        agent_entry("0.0.0.0/0", 2, None, 0),
        agent_entry("192.0.2.0/24", 0x0100_0001, None, 0),
    ];
    let comparison = compare(&agent, mirror);
    let expected = [
        ("missing *", Some(Reason::AgentNotConnected)),
        ("additional 10.1.0.5/32", None),
        ("additional 10.1.0.9/32", None),
        ("additional 10.2.0.2/32", Some(Reason::MeshkeepNotConnected)),
        ("additional 172.18.1.9/32", None),
        ("missing 10.1.0.1/32", Some(Reason::ChangedRecently)),
        ("missing 10.1.0.2/32", Some(Reason::ChangedRecently)),
        ("missing 10.1.0.3/32", None),
    ];
    assert_eq!(described(&comparison), expected.map(|(text, reason)| (text.to_owned(), reason)));
    assert_eq!((comparison.compared, comparison.differences[0].count), (9, Some(1)));
    let detail = "meshkeep is not up to date with tokyo (backingOff): its own data may be old";
    assert_eq!(comparison.differences[3].detail.as_deref(), Some(detail));
    let not_compared = [(NotCompared::OtherCluster, 1), (NotCompared::ReservedIdentity, 2), (NotCompared::LocalIdentity, 1)];
    assert_eq!(comparison.not_compared, BTreeMap::from(not_compared));
}

/// The latest possible time of a change decides, but not the time of a first list.
#[test]
fn a_change_is_recent_if_it_may_be() {
    let reason = |change: Value| {
        let detail = facts().reason_of_old_value("paris", &from_json(change));
        detail.map(|(reason, detail)| {
            assert_eq!(reason, Reason::ChangedRecently);
            detail
        })
    };
    let between = |from: &str, to: &str| json!({"changedBetween": [format!("2026-01-12T{from}Z"), format!("2026-01-12T{to}Z")]});
    let expected = "it changed between 2026-01-12T08:00:00Z and 2026-01-12T09:59:30Z, and the agent was asked at 2026-01-12T10:00:00Z";
    assert_eq!(reason(between("08:00:00", "09:59:30")).as_deref(), Some(expected));
    assert!(reason(between("08:00:00", "10:30:00")).is_some());
    assert_eq!(reason(between("08:00:00", "09:30:00")), None);
    assert_eq!(reason(json!({"changedAt": "2026-01-12T09:59:58Z"})).as_deref(), Some("it changed 2 s before the agent was asked"));
    assert_eq!(reason(json!({"firstSeenAt": "2026-01-12T09:59:58Z"})), None);
    assert_eq!(reason(json!({})), None);
}

#[test]
fn address_families_and_pod_cidrs_that_no_entry_of_the_agent_has_are_not_compared() {
    let host = Some("172.18.1.1");
    let mirror = || {
        vec![
            mirror_entry("10.1.0.4/32", 65_537, host, "clustermesh"),
            mirror_entry("fd00::4/128", 65_537, host, "clustermesh"),
            mirror_entry("10.1.0.0/16", 2, host, "node"),
        ]
    };
    let pod = agent_entry("10.1.0.4/32", 65_537, host, 0);
    let not_compared = BTreeMap::from([(NotCompared::AddressFamily, 1), (NotCompared::PodCidr, 1)]);
    let comparison = compare(std::slice::from_ref(&pod), mirror());
    assert_eq!(comparison, TableComparison { compared: 1, differences: Vec::new(), not_compared });
    let comparison = compare(&[pod, agent_entry("fd00::5/128", 65_537, host, 0), agent_entry("10.1.0.0/16", 2, host, 0)], mirror());
    let expected = ["additional fd00::5/128", "missing fd00::4/128"];
    assert_eq!(described(&comparison), expected.map(|text| (text.to_owned(), None)));
}

#[test]
fn the_entry_of_another_cluster_is_recognised() {
    let mut other = mirror_entry("10.1.0.4/32", 131_073, Some("172.18.2.1"), "clustermesh");
    other["cluster"] = json!("tokyo");
    let mirror = vec![mirror_entry("10.1.0.4/32", 65_537, Some("172.18.1.1"), "clustermesh"), other];
    let comparison = compare(&[agent_entry("10.1.0.4/32", 131_073, Some("172.18.2.1"), 0)], mirror);
    let text = "different 10.1.0.4/32 identity=131073/65537 tunnelEndpoint=172.18.2.1/172.18.1.1";
    assert_eq!(described(&comparison), [(text.to_owned(), Some(Reason::SeveralClusters))]);
    let detail = "the agent uses the entry of tokyo: several clusters have this prefix, and that of paris takes precedence";
    assert_eq!(comparison.differences[0].detail.as_deref(), Some(detail));
}

#[test]
fn identities_are_compared_by_labels() {
    let identity = |id: u32, labels: &[&str]| AgentIdentity { id, labels: labels.iter().map(|label| (*label).to_owned()).collect() };
    let mirror: Vec<MirrorIdentity> = from_json(json!([
        {"id": 65_537, "cluster": "paris", "labels": {"k8s:app": "cart", "k8s:empty": ""}},
        {"id": 65_538, "cluster": "paris", "labels": {"k8s:app": "db"}},
        {"id": 65_539, "cluster": "paris", "labels": {}},
        {"id": 131_073, "cluster": "tokyo", "labels": {}},
        {"id": 2, "labels": {}},
    ]));
    let agent = [
        identity(65_537, &["k8s:app=cart", "k8s:empty"]),
        identity(65_538, &["k8s:app=web"]),
        identity(65_540, &[]),
        identity(2, &["reserved:world"]),
        identity(0x0100_0001, &["cidr:192.0.2.0/24"]),
        identity(196_609, &[]),
    ];
    let comparison = identities::compare(&agent, &mirror, &facts());
    let expected = [
        ("missing *", Some(Reason::AgentNotConnected)),
        ("different 65538 labels=k8s:app=web/k8s:app=db", None),
        ("additional 65540", None),
        ("missing 65539", None),
    ];
    assert_eq!(described(&comparison), expected.map(|(text, reason)| (text.to_owned(), reason)));
    let not_compared = [(NotCompared::OtherCluster, 1), (NotCompared::ReservedIdentity, 1), (NotCompared::LocalIdentity, 1)];
    assert_eq!((comparison.compared, comparison.not_compared), (5, BTreeMap::from(not_compared)));
}

#[test]
fn nodes_are_compared_by_addresses_and_pod_cidrs() {
    let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let equal = AgentNode {
        full_name: "paris/worker".to_owned(),
        addresses: ips(&["172.18.1.1", "fc00::1", "10.1.0.1"]),
        pod_cidrs: ["10.1.0.0/16".parse().unwrap()].into(),
        ..AgentNode::default()
    };
    let other = |name: &str| AgentNode { full_name: name.to_owned(), ..AgentNode::default() };
    let comparison = nodes::compare(&[equal.clone(), other("paris/old"), other("berlin/a"), other("b")], &[node()], &facts());
    assert_eq!(described(&comparison), [("additional paris/old".to_owned(), None)]);
    assert_eq!((comparison.compared, comparison.not_compared), (2, BTreeMap::from([(NotCompared::OtherCluster, 2)])));
    let moved = AgentNode { addresses: ips(&["172.18.1.9", "fc00::1", "10.1.0.1"]), health_ips: ips(&["10.1.0.9"]), ..equal };
    let comparison = nodes::compare(&[moved], &[node()], &facts());
    let text = "different paris/worker addresses=172.18.1.9/172.18.1.1 healthIPs=10.1.0.9/";
    assert_eq!(described(&comparison), [(text.to_owned(), None)]);
}
