//! Tests of every rejection, and of odd values that are accepted.

use crate::model::{ClusterId, EntryKey, Kind, MaxConnectedClusters, Object};
use crate::wire::{Context, decode, node_entry_count};

use super::{cluster, decode_paris, labels};

/// Rest of the key, value, the cluster's id, and the start of the expected error; empty if the
/// value is accepted.
type RefusalCase<'a> = (&'a str, &'a str, u32, &'a str);

#[track_caller]
fn check(kind: Kind, rows: &[RefusalCase<'_>]) {
    for (name, value, cluster_id, expected) in rows {
        let reason = decode_paris(kind, name, value.as_bytes(), *cluster_id).err().unwrap_or_default();
        assert!(reason.starts_with(expected) && reason.is_empty() == expected.is_empty(), "{name} {value}: {reason}");
    }
}

#[test]
fn invalid_nodes_are_refused() {
    check(
        Kind::Node,
        &[
            ("a", r#"{"Name":"a","Cluster":"paris","ClusterID":1}"#, 1, ""),
            ("a", r#"{"Name":"a","Cluster":"paris","ClusterID":9}"#, 0, ""),
            ("a", r#"{"Name":"a","Cluster":"paris","ClusterID":1,"NodeIdentity":6}"#, 1, ""),
            ("a", "", 1, "value is not the JSON of a node: EOF"),
            ("a", "null", 1, r#"Cluster is "", expected "paris""#),
            ("a", r#"{"Name":"a","Cluster":"tokyo","ClusterID":1}"#, 1, r#"Cluster is "tokyo", expected "paris""#),
            ("a", r#"{"Name":"","Cluster":"paris","ClusterID":1}"#, 1, "Name is empty"),
            ("a", r#"{"Name":"b","Cluster":"paris","ClusterID":1}"#, 1, r#"Name is "b", but the key has "a""#),
            (
                "a",
                r#"{"Name":"a","Cluster":"paris","ClusterID":2}"#,
                1,
                "ClusterID is 2, expected 1, the id in the cluster config of paris",
            ),
            ("a", r#"{"Name":"a","Cluster":"paris"}"#, 1, "ClusterID is 0, expected 1"),
            ("a", r#"{"EncryptionKey":256}"#, 1, "value is not the JSON of a node: EncryptionKey: invalid value"),
            ("a", r#"{"IPAddresses":[{"IP":"x"}]}"#, 1, r#"value is not the JSON of a node: IPAddresses: IP: "x" is not an IP address"#),
            ("a", r#"{"IPv4HealthIP":"x"}"#, 1, "value is not the JSON of a node: IPv4HealthIP: "),
            (
                "a",
                r#"{"IPv4AllocCIDR":{"IP":"10.0.0.0","Mask":"//8A/w=="}}"#,
                1,
                "value is not the JSON of a node: IPv4AllocCIDR: Mask is not canonical",
            ),
            ("a", r#"{"IPv6SecondaryAllocCIDRs":["x"]}"#, 1, "value is not the JSON of a node: IPv6SecondaryAllocCIDRs: "),
            ("a", r#"{"Labels":{"x":1}}"#, 1, "value is not the JSON of a node: Labels: invalid type"),
        ],
    );
}

/// Without the limit, a value with 32 MB of pod CIDRs would become a million and a half entries in
/// one step.
#[test]
fn addresses_and_pod_cidrs_of_a_node_are_limited() {
    let node = |nets: u32| {
        let nets: Vec<String> = (0..nets).map(|number| format!(r#""{}/32""#, std::net::Ipv4Addr::from(number))).collect();
        let nets = nets.join(",");
        let health = r#""IPAddresses":[{"IP":"10.0.0.1"},{"IP":""}],"IPv4HealthIP":"10.0.0.2""#;
        format!(r#"{{"Name":"a","Cluster":"paris","ClusterID":1,{health},"IPv4SecondaryAllocCIDRs":[{nets}]}}"#).into_bytes()
    };
    for (nets, expected) in [(3, 5), (99_998, 100_000), (99_999, 0)] {
        let (value, count) = (node(nets), node_entry_count(&node(nets)));
        assert_eq!(count, expected);
        match decode_paris(Kind::Node, "a", &value, 1) {
            Ok(object) => assert_eq!(object.as_node().unwrap().entry_count_max(), count),
            Err(reason) => {
                assert_eq!((count, reason.as_str()), (0, "100001 addresses and pod CIDRs are too many: a node may have at most 100000"))
            }
        }
    }
}

#[test]
fn invalid_services_are_refused() {
    check(
        Kind::Service,
        &[
            ("s/n", r#"{"cluster":"paris","namespace":"s","name":"n","clusterID":1}"#, 1, ""),
            ("s/n", r#"{"cluster":"paris","namespace":"s","name":"n"}"#, 0, ""),
            ("s/n", r#"{"cluster":"paris","namespace":"s","name":"n","clusterID":1,"zones":{"x":{}},"hostnames":{"y":""}}"#, 1, ""),
            ("s/n", "binary", 1, "value is not the JSON of a service: expected value"),
            ("s/n", r#"{"namespace":"s","name":"n","clusterID":1}"#, 1, r#"cluster is "", expected "paris""#),
            ("s/n", r#"{"cluster":"tokyo"}"#, 1, r#"cluster is "tokyo", expected "paris""#),
            ("s/n", r#"{"cluster":"paris","name":"n"}"#, 1, "namespace is empty"),
            ("s/n", r#"{"cluster":"paris","namespace":"s"}"#, 1, "name is empty"),
            ("s/n", r#"{"cluster":"paris","namespace":"s","name":"m"}"#, 1, r#"namespace and name are "s" and "m", but the key has "s/n""#),
            ("s/n/m", r#"{"cluster":"paris","namespace":"s","name":"n/m"}"#, 1, "namespace and name are"),
            ("s", r#"{"cluster":"paris","namespace":"s","name":"n"}"#, 1, "namespace and name are"),
            ("s/n", r#"{"cluster":"paris","namespace":"s","name":"n","clusterID":2}"#, 1, "clusterID is 2, expected 1"),
            (
                "s/n",
                r#"{"cluster":"paris","namespace":"s","name":"n","clusterID":1,"frontends":{"x":{}}}"#,
                1,
                r#"frontends: "x" is not an IP address"#,
            ),
            (
                "s/n",
                r#"{"cluster":"paris","namespace":"s","name":"n","clusterID":1,"backends":{"10.0.0.1/32":{}}}"#,
                1,
                r#"backends: "10.0.0.1/32" is not an IP address"#,
            ),
            (
                "s/n",
                r#"{"backends":{"10.0.0.1":{"p":{"Port":65536}}}}"#,
                1,
                "value is not the JSON of a service: backends: Port: invalid value",
            ),
        ],
    );
}

#[test]
fn invalid_identities_are_refused() {
    const GOOD: &str = "k8s:app=a;k8s:io.cilium.k8s.policy.cluster=paris;";
    check(
        Kind::Identity,
        &[
            ("65536", GOOD, 1, ""),
            ("131071", GOOD, 1, ""),
            ("131072", GOOD, 0, ""),
            ("65536", "k8s:app=a;", 0, ""),
            ("65535", GOOD, 1, "identity 65535 in the key is outside 65536 to 131071 of cluster paris"),
            ("131072", GOOD, 1, "identity 131072 in the key is outside"),
            ("255", GOOD, 0, "identity 255 in the key is reserved"),
            ("0", GOOD, 0, "identity 0 in the key is reserved, no cluster may allocate it"),
            ("", GOOD, 0, r#""" in the key is not an identity number"#),
            ("065536", GOOD, 1, ""),
            ("00000000000000000000000065536", GOOD, 1, ""),
            ("00", GOOD, 0, "identity 0 in the key is reserved, no cluster may allocate it"),
            ("04294967296", GOOD, 1, r#""04294967296" in the key is not"#),
            ("+65536", GOOD, 1, r#""+65536" in the key is not"#),
            ("4294967296", GOOD, 0, r#""4294967296" in the key is not"#),
            ("65536", "", 0, "labels are empty"),
            ("65536", ";;", 1, "labels are empty"),
            ("65536", "k8s:app=a;", 1, "label k8s:io.cilium.k8s.policy.cluster is missing"),
            ("65536", "x:io.cilium.k8s.policy.cluster=paris;", 1, "label k8s:io.cilium.k8s.policy.cluster is missing"),
            (
                "65536",
                "k8s:io.cilium.k8s.policy.cluster=tokyo;",
                0,
                r#"label k8s:io.cilium.k8s.policy.cluster is "tokyo", expected "paris""#,
            ),
        ],
    );
}

#[test]
fn labels_are_split_as_in_cilium() {
    for (text, expected) in [
        ("k8s:a=b=c:d;", ("k8s:a", "b=c:d")),
        ("k8s:a", ("k8s:a", "")),
        ("k8s:a=", ("k8s:a", "")),
        ("reserved:host;", ("reserved:host", "")),
        ("a=b;", ("unspec:a", "b")),
        (":a=b;", ("unspec:a", "b")),
        (";k8s:=x;k8s:x/y.z=1;", ("k8s:x/y.z", "1")),
        ("$host;", ("reserved:host", "")),
        ("$k8s:a=b;", ("reserved:k8s:a", "b")),
        ("reserved.host;", ("reserved:host", "")),
        ("k8s:reserved.host;", ("k8s:reserved.host", "")),
        ("reserved:=host;", ("reserved:host", "")),
        ("a=b:c;", ("a=b:c", "")),
        ("cidr:10.0.0.0/8;", ("cidr:10.0.0.0/8", "")),
        ("k8s:a= b ;", ("k8s:a", " b ")),
    ] {
        match decode_paris(Kind::Identity, "65536", text.as_bytes(), 0) {
            Ok(Object::Identity(identity)) => assert_eq!(identity.labels, labels(&[expected]).into(), "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn invalid_ip_entries_are_refused() {
    check(
        Kind::Ip,
        &[
            ("10.0.0.1", r#"{"IP":"10.0.0.1","ID":65536}"#, 1, ""),
            ("10.0.0.1", r#"{"IP":"::ffff:10.0.0.1","ID":131071}"#, 1, ""),
            ("10.0.0.1", r#"{"IP":"10.0.0.1","ID":255}"#, 1, ""),
            ("10.0.0.1", r#"{"IP":"10.0.0.1","ID":131072}"#, 0, ""),
            ("10.0.0.1/32", r#"{"IP":"10.0.0.1","Mask":"/////w==","ID":2}"#, 1, ""),
            ("::1", r#"{"IP":"0:0:0:0:0:0:0:1","ID":2}"#, 1, ""),
            ("10.0.0.1", "[]", 1, "value is not the JSON of an IP identity pair: invalid type"),
            ("10.0.0.1", r#"{"IP":"","ID":2}"#, 1, "IP is empty"),
            ("10.0.0.1", r#"{"ID":2}"#, 1, "IP is empty"),
            ("10.0.0.1", r#"{"IP":"10.0.0.2","ID":2}"#, 1, r#"IP and Mask give "10.0.0.2", but the key has "10.0.0.1""#),
            ("10.0.0.1", r#"{"IP":"10.0.0.1","Mask":"/////w==","ID":2}"#, 1, r#"IP and Mask give "10.0.0.1/32", but"#),
            ("10.0.0.1/32", r#"{"IP":"10.0.0.1","ID":2}"#, 1, r#"IP and Mask give "10.0.0.1", but"#),
            ("FD00::1", r#"{"IP":"fd00::1","ID":2}"#, 1, r#"IP and Mask give "fd00::1", but"#),
            ("10.0.0.0/120", r#"{"IP":"10.0.0.0","Mask":"////////////////////AA==","ID":2}"#, 1, "Mask is too long for IP 10.0.0.0"),
            ("10.0.0.1", r#"{"IP":"10.0.0.1","ID":256}"#, 1, "ID 256 is neither reserved nor in 65536 to 131071 of cluster paris"),
            ("10.0.0.1", r#"{"IP":"10.0.0.1","ID":131072}"#, 1, "ID 131072 is neither reserved nor in"),
            ("10.0.0.1", r#"{"IP":"10.0.0.1","ID":16777217}"#, 1, "ID 16777217 is neither reserved nor in"),
            ("10.0.0.1", r#"{"IP":"10.0.0.1","HostIP":"x"}"#, 1, r#"value is not the JSON of an IP identity pair: HostIP: "x" is not"#),
            ("10.0.0.1", r#"{"IP":"10.0.0.1","Key":-1}"#, 1, "value is not the JSON of an IP identity pair: Key: invalid value"),
        ],
    );
}

#[test]
fn identity_ranges_are_smaller_in_a_mesh_of_511_clusters() {
    let paris = cluster("paris");
    let context = Context { cluster: &paris, cluster_id: ClusterId(511), max_connected_clusters: MaxConnectedClusters::Clusters511 };
    let key = |id: u32| EntryKey::new(Kind::Identity, paris.clone(), id.to_string());
    let value = b"k8s:io.cilium.k8s.policy.cluster=paris;";
    for (id, good) in [((511 << 15) - 1, false), (511 << 15, true), ((1 << 24) - 1, true), (1 << 24, false)] {
        assert_eq!(decode(&key(id), value, &context).is_ok(), good, "{id}");
    }
}

#[test]
fn reasons_are_one_bounded_line() {
    let long = "x\\n\\u2028".repeat(100_000);
    for (kind, value) in [
        (Kind::Node, format!(r#"{{"Name":"{long}","Cluster":"paris"}}"#)),
        (Kind::Node, format!(r#"{{"ClusterID":"{long}"}}"#)),
        (Kind::Service, format!(r#"{{"cluster":"paris","namespace":"{long}","name":"{long}"}}"#)),
        (Kind::Identity, format!("k8s:io.cilium.k8s.policy.cluster={}", "\n".repeat(100_000))),
        (Kind::Ip, format!(r#"{{"IP":"{long}"}}"#)),
    ] {
        let reason = decode_paris(kind, "65536", value.as_bytes(), 0).unwrap_err();
        assert!(reason.chars().count() <= 301 && !reason.chars().any(char::is_control), "{reason}");
    }
}

#[test]
fn one_address_in_two_spellings_is_one_backend() {
    let json = r#"{"cluster":"paris","namespace":"s","name":"n","hostnames":{"10.0.0.1":"h"},"backends":{
        "::ffff:10.0.0.1":{"a":{"Protocol":"TCP","Port":1}},"10.0.0.1":{"b":{"Protocol":"TCP","Port":2},"c":null}}}"#;
    match decode_paris(Kind::Service, "s/n", json.as_bytes(), 0) {
        Ok(Object::Service(service)) => {
            let backends: Vec<_> = service.backends.iter().map(|b| (b.ip.to_string(), b.hostname.clone(), b.ports.len())).collect();
            assert_eq!(backends, [("10.0.0.1".to_owned(), "h".to_owned(), 2)]);
        }
        other => panic!("{other:?}"),
    }
}
