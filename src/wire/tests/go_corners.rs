//! Tests of values that Cilium never writes but Go's readers accept or reject: the results are
//! those of Cilium 1.20.2.

use std::time::{Duration, SystemTime};

use super::{decode_paris, labels};
use crate::model::{Identity, IpEntry, Kind, Node, Object, ObjectPrefix, Service, ServiceExport};

fn decoded(kind: Kind, name: &str, value: &str) -> Result<Object, String> {
    decode_paris(kind, name, value.as_bytes(), 0)
}

fn node() -> Node {
    Node { name: "a".into(), ..Node::default() }
}

fn pair() -> IpEntry {
    IpEntry::new(ObjectPrefix::parse("10.0.0.1").unwrap(), 7)
}

#[test]
fn field_names_match_without_regard_to_case() {
    let named = |name: &str| Ok(Object::Node(Box::new(Node { boot_id: name.into(), ..node() })));
    for (json, expected) in [
        (r#"{"Name":"a","Cluster":"paris","BootID":"1"}"#, named("1")),
        (r#"{"NAME":"a","cluſter":"paris","bootid":"1"}"#, named("1")),
        (r#"{"NAME":"a","CLUſTER":"paris","BöotID":"1"}"#, named("")),
    ] {
        assert_eq!(decoded(Kind::Node, "a", json), expected, "{json}");
    }
    let backed = |json: &str| decoded(Kind::Service, "s/n", &json.replace('K', "\u{212a}"));
    let plain = backed(r#"{"cluster":"paris","namespace":"s","name":"n","backends":{"10.0.0.1":{"a":{"Port":1}}},"shared":true}"#);
    assert!(matches!(&plain, Ok(Object::Service(Service { backends, shared: true, .. })) if backends.len() == 1), "{plain:?}");
    for json in [
        r#"{"cluſter":"paris","nameſpace":"s","name":"n","bacKendſ":{"10.0.0.1":{"a":{"Port":1}}},"ſhared":true}"#,
        r#"{"CLUSTER":"paris","namespace":"s","name":"n","shared":true,"BACKENDS":{"10.0.0.1":{"a":{"PORT":1}}}}"#,
        // a repeated key is read into the existing value
        r#"{"CLUSTER":"paris","namespace":"s","name":"n","shared":true,"bacKends":{"10.0.0.1":{"a":{"Port":1}}},"backends":{}}"#,
    ] {
        assert_eq!(backed(json), plain, "{json}");
    }
}

#[test]
fn lone_surrogates_become_the_replacement_character() {
    let with = |boot_id: &str| Ok(Object::Node(Box::new(Node { boot_id: boot_id.into(), ..node() })));
    for (escaped, expected) in [
        (r"\ud800", "\u{fffd}"),
        (r"\udc00x", "\u{fffd}x"),
        (r"\ud800\ud800", "\u{fffd}\u{fffd}"),
        (r"\ud83d\ude00", "\u{1f600}"),
        (r"\ud800\u0041", "\u{fffd}A"),
        (r"\ud800\n\udc00", "\u{fffd}\n\u{fffd}"),
        (r"\\ud800", r"\ud800"),
        (r"\uD83D\ud83d\uDE00", "\u{fffd}\u{1f600}"),
    ] {
        let json = format!(r#"{{"Name":"a","Cluster":"paris","BootID":"{escaped}","other":["{escaped}"]}}"#);
        assert_eq!(decoded(Kind::Node, "a", &json), with(expected), "{escaped}");
    }
    for escaped in [r"\ud80", r"\ud8zz", r"\ud800\u", r"\ud800\x"] {
        let json = format!(r#"{{"Name":"a","Cluster":"paris","BootID":"{escaped}"}}"#);
        assert!(decoded(Kind::Node, "a", &json).is_err(), "{escaped}");
    }
    let service = r#"{"cluster":"paris","namespace":"s","name":"n","backends":{"10.0.0.1":{"\udfff":{"Port":1}}},"x":"\ud800"}"#;
    let Ok(Object::Service(Service { backends, .. })) = decoded(Kind::Service, "s/n", service) else { panic!("must be a service") };
    assert_eq!((backends.len(), &*backends[0].ports[0].name), (1, "\u{fffd}"));
}

#[test]
fn known_fields_of_a_wrong_type_are_refused_even_if_unused() {
    let node = |json: &str| decoded(Kind::Node, "a", &format!(r#"{{"Name":"a","Cluster":"paris",{json}}}"#));
    let ip = |json: &str| decoded(Kind::Ip, "10.0.0.1", &format!(r#"{{"IP":"10.0.0.1","ID":7,{json}}}"#));
    let expected = Object::Node(Box::new(Node { name: "a".into(), ..Node::default() }));
    for json in [r#""Source":null"#, r#""Source":"anything""#, r#""NodeIdentity":"x""#] {
        assert_eq!(node(json).as_ref(), Ok(&expected), "{json}");
    }
    for json in [r#""Metadata":null"#, r#""Metadata":"anything""#, r#""Other":[1]"#] {
        assert_eq!(ip(json), Ok(Object::Ip(pair())), "{json}");
    }
    for (refused, reason) in [
        (node(r#""Source":5"#), "value is not the JSON of a node: Source: invalid type: integer `5`, expected a string"),
        (node(r#""source":{}"#), "value is not the JSON of a node: Source: invalid type: map, expected a string"),
        (ip(r#""Metadata":[1]"#), "value is not the JSON of an IP identity pair: Metadata: invalid type: sequence, expected a string"),
        (
            ip(r#""METADATA":true"#),
            "value is not the JSON of an IP identity pair: Metadata: invalid type: boolean `true`, expected a string",
        ),
    ] {
        let error = refused.unwrap_err();
        assert!(error.starts_with(reason), "{error}");
    }
}

#[test]
fn identities_may_have_leading_zeros_and_labels_with_invalid_utf8() {
    let expected = Object::Identity(Identity { id: 65_536, labels: labels(&[("k8s:a", "\u{fffd}b\u{fffd}")]).into() });
    for number in ["65536", "065536", "00000000000000065536"] {
        assert_eq!(decode_paris(Kind::Identity, number, b"k8s:a=\xffb\xc3;", 0), Ok(expected.clone()), "{number}");
    }
    for number in ["+65536", "-65536", "65536 ", "6553x", "0x10000", "65_536", "", "99999999999"] {
        assert!(decode_paris(Kind::Identity, number, b"k8s:a=b;", 0).is_err(), "{number}");
    }
}

#[test]
fn unknown_traffic_policies_of_an_export_are_refused() {
    let export = |fields: &str| {
        let known = r#""exportCreationTimestamp":"2026-01-01T5:00:00,25Z","type":"Headless","sessionAffinity":"None""#;
        decoded(Kind::ServiceExport, "s/n", &format!(r#"{{"cluster":"paris","name":"n","namespace":"s",{known}{fields}}}"#))
    };
    let expected = |policy: &str, distribution: &str| {
        Ok(Object::ServiceExport(Box::new(ServiceExport {
            namespace: "s".into(),
            name: "n".into(),
            created: SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_243_600_250),
            ports: vec![],
            service_type: "Headless".into(),
            session_affinity: "None".into(),
            session_affinity_timeout_seconds: None,
            ip_families: vec![],
            internal_traffic_policy: policy.into(),
            traffic_distribution: distribution.into(),
            labels: labels(&[]),
            annotations: labels(&[]),
        })))
    };
    for (fields, policy, distribution) in [
        ("", "", ""),
        (r#","internalTrafficPolicy":null,"trafficDistribution":null"#, "", ""),
        (r#","internalTrafficPolicy":"Cluster","trafficDistribution":"PreferClose""#, "Cluster", "PreferClose"),
        (r#","internalTrafficPolicy":"Local","trafficDistribution":"PreferSameZone""#, "Local", "PreferSameZone"),
        (r#","trafficDistribution":"PreferSameNode""#, "", "PreferSameNode"),
    ] {
        assert_eq!(export(fields), expected(policy, distribution), "{fields}");
    }
    for (fields, reason) in [
        (r#","internalTrafficPolicy":"local""#, r#"internalTrafficPolicy is "local", expected one of ["Cluster", "Local"]"#),
        (r#","internalTrafficPolicy":"""#, r#"internalTrafficPolicy is "", expected one of ["Cluster", "Local"]"#),
        (
            r#","trafficDistribution":"Any""#,
            r#"trafficDistribution is "Any", expected one of ["PreferClose", "PreferSameZone", "PreferSameNode"]"#,
        ),
        (
            r#","trafficDistribution":"""#,
            r#"trafficDistribution is "", expected one of ["PreferClose", "PreferSameZone", "PreferSameNode"]"#,
        ),
    ] {
        assert_eq!(export(fields), Err(reason.to_owned()), "{fields}");
    }
}
