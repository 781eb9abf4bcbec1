//! Tests of the protocol's traps that concern this module, by their numbers in
//! docs/develop/protocol.md §11.

use crate::model::{Identity, Kind, Node, Object, Service};
use crate::wire::cluster_config::parse_cluster_config;
use crate::wire::keys;

use super::{cluster, decode_paris, labels};

fn node(fields: &str) -> Result<Node, String> {
    match decode_paris(Kind::Node, "a", format!(r#"{{"Name":"a","Cluster":"paris",{fields}}}"#).as_bytes(), 0)? {
        Object::Node(node) => Ok(*node),
        other => panic!("{other:?}"),
    }
}

fn service(fields: &str) -> Service {
    let json = format!(r#"{{"cluster":"paris","namespace":"s","name":"n",{fields}}}"#);
    match decode_paris(Kind::Service, "s/n", json.as_bytes(), 0) {
        Ok(Object::Service(service)) => service,
        other => panic!("{other:?}"),
    }
}

fn named(name: &str) -> Node {
    Node { name: name.into(), ..Node::default() }
}

#[test]
fn trap_1_canaries_are_named_after_base_prefixes() {
    let paris = cluster("paris");
    for (kind, base) in [
        (Kind::Identity, "identities/v1"),
        (Kind::Ip, "ip/v1"),
        (Kind::Node, "nodes/v1"),
        (Kind::Service, "services/v1"),
        (Kind::ServiceExport, "serviceexports/v1"),
        (Kind::EndpointSlice, "endpointslices/v1"),
    ] {
        for (cached, root) in [(false, "state"), (true, "cache")] {
            let canary = format!("cilium/synced/paris/cilium/{root}/{base}");
            assert_eq!(keys::canary_key(kind, &paris, cached), canary);
            assert_eq!(keys::canary_kind(canary.as_bytes(), &paris, cached), Some(kind));
            assert_eq!(keys::canary_kind(canary.as_bytes(), &paris, !cached), None);
            assert_eq!(keys::canary_kind(canary.as_bytes(), &cluster("par"), cached), None);
        }
    }
    for other in ["identities/v1/id", "ip/v1/default", "noderegister/v1", "nodes/v1/", "nodes"] {
        assert_eq!(keys::canary_kind(format!("cilium/synced/paris/cilium/state/{other}").as_bytes(), &paris, false), None);
    }
}

#[test]
fn trap_2_cache_prefixes_move_the_cluster() {
    let paris = cluster("paris");
    for (kind, cached, prefix) in [
        (Kind::Identity, false, "cilium/state/identities/v1/id/"),
        (Kind::Identity, true, "cilium/cache/identities/v1/paris/id/"),
        (Kind::Ip, false, "cilium/state/ip/v1/default/"),
        (Kind::Ip, true, "cilium/cache/ip/v1/paris/"),
        (Kind::Node, false, "cilium/state/nodes/v1/paris/"),
        (Kind::Node, true, "cilium/cache/nodes/v1/paris/"),
        (Kind::Service, false, "cilium/state/services/v1/paris/"),
        (Kind::Service, true, "cilium/cache/services/v1/paris/"),
        (Kind::ServiceExport, false, "cilium/state/serviceexports/v1/paris/"),
        (Kind::ServiceExport, true, "cilium/cache/serviceexports/v1/paris/"),
        (Kind::EndpointSlice, false, "cilium/state/endpointslices/v1/paris/"),
        (Kind::EndpointSlice, true, "cilium/cache/endpointslices/v1/paris/"),
    ] {
        assert_eq!(keys::watched_prefix(kind, &paris, cached), prefix);
    }
}

#[test]
fn trap_3_only_the_connection_determines_the_cluster_of_a_key() {
    for (kind, key) in [(Kind::Ip, "cilium/state/ip/v1/default/10.0.0.1"), (Kind::Identity, "cilium/state/identities/v1/id/65536")] {
        let entry_key_of_cluster = |name: &str| keys::entry_key(kind, &cluster(name), false, key.as_bytes()).unwrap();
        assert_ne!(entry_key_of_cluster("paris"), entry_key_of_cluster("tokyo"));
        assert_eq!(keys::source_key(&entry_key_of_cluster("paris"), false), keys::source_key(&entry_key_of_cluster("tokyo"), false));
    }
}

#[test]
fn trap_4_canaries_in_a_copy_have_the_name_of_the_source_cluster() {
    let tokyo = cluster("tokyo");
    assert_eq!(keys::synced_prefix(&tokyo), "cilium/synced/tokyo/");
    assert_eq!(keys::canary_key(Kind::Node, &tokyo, true), "cilium/synced/tokyo/cilium/cache/nodes/v1");
}

#[test]
fn trap_7_value_keys_are_not_identities() {
    let key = b"cilium/cache/identities/v1/paris/value/k8s:app=a;/10.0.0.1";
    assert!(keys::entry_key(Kind::Identity, &cluster("paris"), true, key).is_err());
}

#[test]
fn trap_8_a_prefix_ends_in_a_slash() {
    for cached in [false, true] {
        let key = keys::watched_prefix(Kind::Node, &cluster("eu-west"), cached) + "a";
        assert!(keys::entry_key(Kind::Node, &cluster("eu"), cached, key.as_bytes()).is_err());
    }
}

#[test]
fn trap_9_a_prefix_in_a_key_keeps_its_slash() {
    let key = keys::entry_key(Kind::Ip, &cluster("paris"), false, b"cilium/state/ip/v1/default/10.1.200.0/24").unwrap();
    assert_eq!(&*key.name, "10.1.200.0/24");
}

#[test]
fn trap_10_null_absent_and_empty_are_the_same() {
    let nulls = r#""IPAddresses":null,"IPv4AllocCIDR":null,"IPv6SecondaryAllocCIDRs":null,"IPv4HealthIP":null,"ClusterID":null,
        "EncryptionKey":null,"Labels":null,"Annotations":null,"WireguardPubKey":null"#;
    let empty = r#""IPAddresses":[],"IPv4HealthIP":"","IPv4IngressIP":"","Labels":{},"BootID":"""#;
    let within = r#""IPAddresses":[null,{"Type":"InternalIP","IP":""}],"IPv4SecondaryAllocCIDRs":[null]"#;
    for fields in [nulls, empty, within, r#""Source":"local""#] {
        assert_eq!(node(fields), Ok(named("a")), "{fields}");
    }
    let ip = |fields: &str| decode_paris(Kind::Ip, "10.0.0.1", format!(r#"{{"IP":"10.0.0.1","ID":2{fields}}}"#).as_bytes(), 0);
    assert_eq!(ip(r#","Mask":null,"HostIP":null,"Key":null,"NamedPorts":null"#), ip(r#","HostIP":"","K8sNamespace":"""#));
    assert!(ip("").is_ok());
}

#[test]
fn trap_11_cidrs_have_two_forms_and_canonical_masks() {
    let object = r#""IPv4AllocCIDR":{"IP":"10.1.0.0","Mask":"//8AAA=="},"IPv6SecondaryAllocCIDRs":[{"IP":"fd00::","Mask":"//////////8AAAAAAAAAAA=="}]"#;
    let text = r#""IPv4AllocCIDR":"10.1.0.0/16","IPv6SecondaryAllocCIDRs":["fd00::/64"]"#;
    let expected =
        Node { ipv4_pod_cidr: Some("10.1.0.0/16".parse().unwrap()), secondary_pod_cidrs: vec!["fd00::/64".parse().unwrap()], ..named("a") };
    assert_eq!(node(object), Ok(expected.clone()));
    assert_eq!(node(text), Ok(expected));
    assert!(node(r#""IPv4AllocCIDR":{"IP":"10.1.0.0","Mask":"/wD/AA=="}"#).is_err());
    let pair = decode_paris(Kind::Ip, "10.1.0.0/16", br#"{"IP":"10.1.0.0","Mask":"/wD/AA==","ID":2}"#, 0);
    assert_eq!(pair, Err(r#"IP and Mask give "10.1.0.0/0", but the key has "10.1.0.0/16""#.into()));
}

#[test]
fn trap_12_disabled_service_exports_differ_from_absent_ones() {
    let enabled = |json: &str| parse_cluster_config(json.as_bytes()).unwrap().service_exports_enabled;
    assert_eq!(enabled(r#"{"id":1,"capabilities":{}}"#), None);
    assert_eq!(enabled(r#"{"id":1,"capabilities":{"serviceExportsEnabled":null}}"#), None);
    assert_eq!(enabled(r#"{"id":1,"capabilities":{"serviceExportsEnabled":false}}"#), Some(false));
}

#[test]
fn trap_13_values_need_not_be_text() {
    for kind in Kind::ALL {
        for bytes in [&b"\x28\xb5\x2f\xfd\xff"[..], b"\xff", b"\0", b"\"\xff"] {
            assert!(decode_paris(kind, "65536", bytes, 1).is_err());
        }
    }
    let shown = Object::Identity(Identity { id: 65536, labels: labels(&[("k8s:a", "\u{fffd}")]).into() });
    assert_eq!(decode_paris(Kind::Identity, "65536", b"k8s:a=\xff;", 0), Ok(shown));
}

#[test]
fn trap_21_reserved_ids_are_valid_only_in_ip_entries() {
    for (id, seen) in [(0, 0), (1, 6), (2, 2), (6, 6), (255, 255)] {
        match decode_paris(Kind::Ip, "10.0.0.1", format!(r#"{{"IP":"10.0.0.1","ID":{id}}}"#).as_bytes(), 1) {
            Ok(Object::Ip(entry)) => assert_eq!(entry.identity, seen),
            other => panic!("{other:?}"),
        }
        assert!(decode_paris(Kind::Identity, &id.to_string(), b"k8s:io.cilium.k8s.policy.cluster=paris;", 1).is_err());
    }
}

#[test]
fn trap_23_a_host_ip_need_not_be_known() {
    match decode_paris(Kind::Ip, "10.0.0.1", br#"{"IP":"10.0.0.1","HostIP":"::ffff:192.0.2.9","ID":2}"#, 1) {
        Ok(Object::Ip(entry)) => assert_eq!(entry.host_ip, Some("192.0.2.9".parse().unwrap())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn trap_24_the_order_of_labels_has_no_meaning() {
    let by_key = "k8s:a=1;cidr:b=2;k8s:c=3;";
    let by_text = "cidr:b=2;k8s:a=1;k8s:c=3;";
    let expected = Object::Identity(Identity { id: 65536, labels: labels(&[("k8s:a", "1"), ("cidr:b", "2"), ("k8s:c", "3")]).into() });
    for text in [by_key, by_text] {
        assert_eq!(decode_paris(Kind::Identity, "65536", text.as_bytes(), 0), Ok(expected.clone()));
    }
}

#[test]
fn trap_26_escapes_of_go_are_decoded() {
    let read = node(r#""Annotations":{"\u003ca\u003e":"\u0026\u2028"}"#).unwrap();
    assert_eq!(read.annotations, labels(&[("<a>", "&\u{2028}")]));
}

#[test]
fn trap_30_keys_that_differ_in_case_are_merged() {
    let merged = service(r#""labels":{"a":"1","b":"1"},"Labels":{"b":"2","B":"3"},"SHARED":true,"IncludeExternal":true"#);
    let expected = Service {
        namespace: "s".into(),
        name: "n".into(),
        labels: labels(&[("a", "1"), ("b", "2"), ("B", "3")]),
        shared: true,
        include_external: true,
        ..Service::default()
    };
    assert_eq!(merged, expected);
}
