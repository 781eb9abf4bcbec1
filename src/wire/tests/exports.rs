//! Tests of service exports in every historic form, and of endpoint slices, the only binary value.

use super::{decode_paris, labels};
use crate::model::{EndpointSlice, Kind, Object, ServiceExport, SliceEndpoint, SlicePort};

const TIMESTAMP: &str = r#""exportCreationTimestamp":"2026-01-01T00:00:00Z","type":"ClusterSetIP","sessionAffinity":"None""#;

fn export(fields: &str) -> Result<ServiceExport, String> {
    let json = format!(r#"{{"cluster":"paris","name":"n","namespace":"s"{fields}}}"#);
    match decode_paris(Kind::ServiceExport, "s/n", json.as_bytes(), 1)? {
        Object::ServiceExport(export) => Ok(*export),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_newest_export_is_read_in_full() {
    let read = export(&format!(
        r#",{TIMESTAMP},"ports":[{{"name":"a","protocol":"UDP","appProtocol":"http","port":53}}],"ipFamilies":["IPv6","IPv4"],
            "internalTrafficPolicy":"Local","trafficDistribution":"PreferClose","sessionAffinityConfig":{{"clientIP":null}}"#
    ))
    .unwrap();
    let families: Vec<&str> = read.ip_families.iter().map(String::as_str).collect();
    assert_eq!((families, &*read.internal_traffic_policy, &*read.traffic_distribution), (vec!["IPv6", "IPv4"], "Local", "PreferClose"));
    assert_eq!((&*read.ports[0].app_protocol, read.session_affinity_timeout_seconds), ("http", None));
}

#[test]
fn capitalised_labels_of_older_releases_are_accepted() {
    for fields in [r#""Labels":{"a":"1"},"Annotations":{"b":"2"}"#, r#""labels":{"a":"1"},"annotations":{"b":"2"}"#] {
        let read = export(&format!(",{TIMESTAMP},{fields}")).unwrap();
        assert_eq!((read.labels, read.annotations), (labels(&[("a", "1")]), labels(&[("b", "2")])));
    }
    assert!(export(&format!(",{TIMESTAMP},\"ports\":null,\"labels\":null,\"sessionAffinityConfig\":null,\"ipFamilies\":null")).is_ok());
}

#[test]
fn invalid_exports_are_refused() {
    for (fields, reason) in [
        ("", "exportCreationTimestamp is missing"),
        (r#","exportCreationTimestamp":null"#, "exportCreationTimestamp is missing"),
        (r#","exportCreationTimestamp":"0001-01-01T00:00:00Z""#, "exportCreationTimestamp is missing"),
        (
            r#","exportCreationTimestamp":"soon""#,
            "value is not the JSON of a service export: exportCreationTimestamp: \"soon\" is not a time",
        ),
        (r#","exportCreationTimestamp":"2026-01-01T00:00:00Z","type":"NodePort""#, r#"type is "NodePort", expected one of"#),
        (
            r#","exportCreationTimestamp":"2026-01-01T00:00:00Z","type":"Headless","sessionAffinity":"Cookie""#,
            r#"sessionAffinity is "Cookie", expected one of"#,
        ),
        (r#","namespace":"""#, "namespace is empty"),
        (r#","name":"m""#, r#"namespace and name are "s" and "m", but the key has "s/n""#),
        (r#","cluster":"tokyo""#, r#"cluster is "tokyo", expected "paris""#),
    ] {
        let refused = export(fields).unwrap_err();
        assert!(refused.starts_with(reason), "{refused}");
    }
    // headless exports of newer releases have no affinity
    assert!(export(r#","exportCreationTimestamp":"2026-01-01T00:00:00Z","type":"Headless","sessionAffinity":"""#).is_ok());
}

/// Encodes a length-delimited protobuf field.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length > 0x7f {
        bytes.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    bytes.push(u8::try_from(length).unwrap());
    bytes.extend_from_slice(content);
    bytes
}

fn varint(number: u8, value: u8) -> Vec<u8> {
    assert!(value < 0x80);
    vec![number << 3, value]
}

fn packed(message: &[u8]) -> Vec<u8> {
    zstd::encode_all(message, 3).unwrap()
}

fn slice(message: &[u8]) -> Result<EndpointSlice, String> {
    match decode_paris(Kind::EndpointSlice, "s/n-1", &packed(message), 1)? {
        Object::EndpointSlice(slice) => Ok(slice.decoded()),
        other => panic!("{other:?}"),
    }
}

/// Encodes the fields that every slice needs.
fn named(address_type: &str) -> Vec<u8> {
    [field(1, b"paris"), varint(2, 1), field(3, b"s"), field(4, b"n-1"), field(7, address_type.as_bytes())].concat()
}

fn endpoint(address: &str) -> Vec<u8> {
    field(8, &field(1, address.as_bytes()))
}

#[test]
fn a_slice_is_read_in_full() {
    let entry = |key: &str, value: &str| [field(1, key.as_bytes()), field(2, value.as_bytes())].concat();
    let conditions = [varint(1, 1), varint(2, 0), varint(3, 1)].concat();
    let hints = [field(1, &field(1, b"zone-b")), field(1, &field(1, b"zone-c"))].concat();
    let endpoint = [
        field(1, b"10.0.0.1"),
        field(2, &conditions),
        field(5, &entry("topology.kubernetes.io/region", "r")),
        field(6, b"worker"),
        field(7, b"zone-a"),
        field(8, &hints),
    ]
    .concat();
    let port = [field(1, b"http"), field(2, b"TCP"), varint(3, 80)].concat();
    // unknown fields are skipped, whatever their type
    let unknown = [varint(15, 1), field(14, b"x"), vec![13 << 3 | 5, 0, 0, 0, 0]].concat();
    let message = [
        field(8, &endpoint),
        named("IPv4"),
        field(5, &entry("kubernetes.io/service-name", "n")),
        field(6, &entry("a", "")),
        field(9, &port),
        field(9, &[]),
        unknown,
    ];
    let expected = EndpointSlice {
        namespace: "s".into(),
        name: "n-1".into(),
        cluster_id: 1,
        labels: labels(&[("kubernetes.io/service-name", "n")]),
        annotations: labels(&[("a", "")]),
        address_type: "IPv4".into(),
        endpoints: vec![SliceEndpoint {
            addresses: vec!["10.0.0.1".parse().unwrap()],
            ready: Some(true),
            serving: Some(false),
            terminating: Some(true),
            topology: labels(&[("topology.kubernetes.io/region", "r")]),
            node_name: "worker".into(),
            zone: "zone-a".into(),
            for_zones: vec!["zone-b".into(), "zone-c".into()],
        }],
        ports: vec![SlicePort { name: "http".into(), protocol: "TCP".into(), port: Some(80) }, SlicePort::default()],
    };
    assert_eq!(slice(&message.concat()), Ok(expected));
}

/// The rules are those of `ClusterEndpointSlice.validate` and Go's generated code.
#[test]
fn a_slice_may_have_mapped_addresses_invalid_ports_and_groups() {
    let plain = |address_type: &str| EndpointSlice {
        namespace: "s".into(),
        name: "n-1".into(),
        cluster_id: 1,
        address_type: address_type.into(),
        ..EndpointSlice::default()
    };
    let mapped = SliceEndpoint { addresses: vec!["::ffff:1.2.3.4".parse().unwrap()], ..SliceEndpoint::default() };
    let expected = EndpointSlice { endpoints: vec![mapped], ..plain("IPv6") };
    assert_eq!(slice(&[named("IPv6"), endpoint("::ffff:1.2.3.4")].concat()), Ok(expected));
    let refused = slice(&[named("IPv4"), endpoint("::ffff:1.2.3.4")].concat()).unwrap_err();
    assert_eq!(refused, "endpoints: ::ffff:1.2.3.4 is not an address of the slice's family, IPv4");
    assert!(slice(&[named("IPv6"), endpoint("fe80::1%eth0")].concat()).is_err());
    let port = |number: i32, bytes: &[u8]| {
        let expected = EndpointSlice { ports: vec![SlicePort { port: Some(number), ..SlicePort::default() }], ..plain("IPv4") };
        assert_eq!(slice(&[named("IPv4"), field(9, &[&[3 << 3][..], bytes].concat())].concat()), Ok(expected), "{number}");
    };
    port(65_535, b"\xff\xff\x03");
    port(65_536, b"\x80\x80\x04");
    port(-1, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
    port(i32::MIN, b"\x80\x80\x80\x80\xf8\xff\xff\xff\xff\x01");
    // unknown groups, with a group inside, are skipped at the top and in an endpoint; a known field
    // must not be a group
    let group = [vec![15 << 3 | 3], field(1, b"x"), vec![2 << 3 | 3, 2 << 3 | 4, 15 << 3 | 4]].concat();
    let with_groups = [group.clone(), named("IPv4"), field(8, &group), group].concat();
    assert_eq!(slice(&with_groups), Ok(EndpointSlice { endpoints: vec![SliceEndpoint::default()], ..plain("IPv4") }));
    assert_eq!(slice(&[named("IPv4"), vec![8 << 3 | 3, 8 << 3 | 4]].concat()).unwrap_err(), "endpoints has the wrong wire type");
}

#[test]
fn invalid_slices_are_refused() {
    let refused = |message: &[u8]| slice(message).unwrap_err();
    let ipv4 = || field(7, b"IPv4");
    assert_eq!(refused(&[ipv4(), field(1, b"tokyo")].concat()), r#"cluster is "tokyo", expected "paris""#);
    assert_eq!(refused(&[ipv4(), field(1, b"paris"), field(3, b"s")].concat()), "name is empty");
    let other = [ipv4(), field(1, b"paris"), field(3, b"s"), field(4, b"n-2")].concat();
    assert_eq!(refused(&other), r#"namespace and name are "s" and "n-2", but the key has "s/n-1""#);
    assert_eq!(refused(&[named("IPv4"), varint(2, 9)].concat()), "clusterID is 9, expected 1, the id in the cluster config of paris");
    assert_eq!(refused(&named("FQDN")), r#"addressType is "FQDN", expected IPv4 or IPv6"#);
    let wrong_family = [named("IPv4"), endpoint("fd00::1")].concat();
    assert_eq!(refused(&wrong_family), "endpoints: fd00::1 is not an address of the slice's family, IPv4");
    assert_eq!(refused(&[named("IPv6"), endpoint("x")].concat()), r#"endpoints: "x" is not an IP address"#);
    assert_eq!(refused(&[named("IPv4"), varint(8, 1)].concat()), "endpoints has the wrong wire type");
    assert_eq!(refused(&[named("IPv4"), vec![0x42, 0x09]].concat()), "the protobuf message is incomplete");
}

#[test]
fn values_that_are_not_complete_zstd_frames_are_refused() {
    let frame = packed(&named("IPv4"));
    let refused = |bytes: &[u8]| decode_paris(Kind::EndpointSlice, "s/n-1", bytes, 1).unwrap_err();
    for bytes in [&b""[..], b"{}", &frame[..frame.len() - 1], &[&frame[..], b"x"].concat()] {
        let reason = refused(bytes);
        assert!(reason.starts_with("value is"), "{reason}");
    }
    // Go's decoder also reads consecutive frames
    let halves = [packed(&named("IPv4")[..7]), packed(&named("IPv4")[7..])].concat();
    assert!(decode_paris(Kind::EndpointSlice, "s/n-1", &halves, 1).is_ok());
}

#[test]
fn decompression_bombs_are_refused() {
    let refused = |message: &[u8]| decode_paris(Kind::EndpointSlice, "s/n-1", &packed(message), 1).unwrap_err();
    // 64 MiB in a few kilobytes
    assert_eq!(refused(&vec![0; 64 << 20]), "value has more than 16777216 bytes when decompressed");
    // millions of empty endpoints
    assert_eq!(refused(&b"\x42\x00".repeat(1 << 20)), "more than 100000 elements");
    // a frame that asks for a window of 2 GiB
    assert!(decode_paris(Kind::EndpointSlice, "s/n-1", &[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0, 0], 1).is_err());
}
