//! Merged service exports: `mergePorts`, `intersectIPFamilies`, `checkConflictExport` and
//! `orderSvcExportByPriority` (Cilium's `pkg/clustermesh/mcsapi/serviceimport_controller.go`).

use super::*;

type TextList = &'static [&'static str];

/// Returns an export created at `created` seconds after 1970. Ports have the form
/// `name=protocol/port` or `name=protocol/port/application`.
fn export(created: u64, ports: &[&str]) -> ServiceExport {
    let port = |text: &&str| {
        let (name, rest) = text.split_once('=').unwrap();
        let mut parts = rest.split('/');
        let (protocol, port) = (parts.next().unwrap().to_owned(), parts.next().unwrap().parse().unwrap());
        ExportPort { name: name.to_owned(), protocol, app_protocol: parts.next().unwrap_or_default().to_owned(), port }
    };
    ServiceExport {
        namespace: "shop".to_owned(),
        name: "cart".to_owned(),
        created: SystemTime::UNIX_EPOCH + Duration::from_secs(created),
        ports: ports.iter().map(port).collect(),
        service_type: "ClusterSetIP".to_owned(),
        session_affinity: "None".to_owned(),
        session_affinity_timeout_seconds: None,
        ip_families: Vec::new(),
        internal_traffic_policy: String::new(),
        traffic_distribution: String::new(),
        labels: LabelSet::new(),
        annotations: LabelSet::new(),
    }
}

fn put(cluster: &'static str, export: ServiceExport) -> SourceEvent {
    Put(Kind::ServiceExport, cluster, "shop/cart", Arc::new(Object::ServiceExport(export.into())))
}

fn merged(events: &[SourceEvent]) -> MergedExports {
    view_after(events).global_service("shop/cart").unwrap().exports.unwrap()
}

fn ports(exports: &MergedExports) -> Vec<String> {
    let port = |port: &ExportPort| format!("{}={}/{} {}", port.name, port.protocol, port.port, port.app_protocol).trim_end().to_owned();
    exports.ports.iter().map(port).collect()
}

fn conflicts(exports: &MergedExports) -> Vec<String> {
    let conflict =
        |one: &ExportConflict| format!("{} of {}", one.reason, one.clusters.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
    exports.conflicts.iter().map(conflict).collect()
}

#[test]
fn the_oldest_export_wins_then_the_first_cluster_name() {
    let order =
        |events: &[SourceEvent]| -> Vec<String> { merged(events).exports.iter().map(|record| record.key.cluster.to_string()).collect() };
    assert_eq!(order(&[put("paris", export(20, &[])), put("tokyo", export(10, &[]))]), ["tokyo", "paris"]);
    assert_eq!(order(&[put("tokyo", export(10, &[])), put("paris", export(10, &[]))]), ["paris", "tokyo"]);
    let renewed = [put("paris", export(10, &[])), put("tokyo", export(20, &[])), put("paris", export(30, &[]))];
    assert_eq!(order(&renewed), ["tokyo", "paris"], "an export that was created again is younger");
    let deleted = [put("paris", export(10, &[])), put("tokyo", export(20, &[])), Delete(Kind::ServiceExport, "paris", "shop/cart")];
    assert_eq!(order(&deleted), ["tokyo"]);
}

#[test]
fn ports_are_joined_and_the_older_port_wins() {
    type PortsCase = (&'static str, TextList, TextList, TextList, TextList);
    let cases: [PortsCase; 8] = [
        ("the same", &["http=TCP/80"], &["http=TCP/80"], &["http=TCP/80"], &[]),
        (
            "another one is added",
            &["http=TCP/80"],
            &["http=TCP/80", "dns=UDP/53"],
            &["http=TCP/80", "dns=UDP/53"],
            &["PortConflict of paris"],
        ),
        ("one fewer", &["http=TCP/80", "dns=UDP/53"], &["dns=UDP/53"], &["http=TCP/80", "dns=UDP/53"], &["PortConflict of tokyo"]),
        (
            "another order",
            &["http=TCP/80", "dns=UDP/53"],
            &["dns=UDP/53", "http=TCP/80"],
            &["http=TCP/80", "dns=UDP/53"],
            &["PortConflict of tokyo"],
        ),
        ("one name, two numbers", &["http=TCP/80"], &["http=TCP/81"], &["http=TCP/80"], &["PortConflict of tokyo"]),
        ("one name, two protocols", &["dns=TCP/53"], &["dns=UDP/53"], &["dns=TCP/53"], &["PortConflict of tokyo"]),
        ("one number, two names", &["http=TCP/80"], &["web=TCP/80"], &["http=TCP/80"], &["PortConflict of tokyo"]),
        ("two applications", &["http=TCP/80/http"], &["http=TCP/80/h2c"], &["http=TCP/80 http"], &["PortConflict of tokyo"]),
    ];
    for (name, older, younger, expected, expected_conflicts) in cases {
        let exports = merged(&[put("tokyo", export(20, younger)), put("paris", export(10, older))]);
        assert_eq!((ports(&exports), conflicts(&exports)), (texts(expected), texts(expected_conflicts)), "{name}");
    }
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn ip_families_are_intersected() {
    let cases: [(&'static [TextList], TextList, TextList); 7] = [
        (&[&["IPv4"], &["IPv4"]], &["IPv4"], &[]),
        (&[&["IPv4", "IPv6"], &["IPv6"]], &["IPv6"], &[]),
        (&[&["IPv6", "IPv4"], &["IPv4", "IPv6"]], &["IPv6", "IPv4"], &[]),
        (&[&["IPv4"], &["IPv6"]], &["IPv4"], &["IPFamilyConflict of c1"]),
        (&[&["IPv4"], &["IPv6"], &["IPv6"]], &["IPv4"], &["IPFamilyConflict of c1,c2"]),
        (&[&[], &["IPv6"]], &["IPv6"], &[]),
        (&[&[], &[]], &[], &[]),
    ];
    for (families, expected, expected_conflicts) in cases {
        let events: Vec<SourceEvent> = families
            .iter()
            .zip(["c0", "c1", "c2"])
            .zip(0..)
            .map(|((families, cluster), created)| put(cluster, ServiceExport { ip_families: texts(families), ..export(created, &[]) }))
            .collect();
        let exports = merged(&events);
        assert_eq!((exports.ip_families.clone(), conflicts(&exports)), (texts(expected), texts(expected_conflicts)), "{families:?}");
    }
}

#[test]
fn other_fields_are_compared_with_the_oldest_export() {
    let label = || LabelSet::from([("a".to_owned(), "b".to_owned())]);
    let old = || export(10, &[]);
    let new = || export(20, &[]);
    let cases: [(&str, ServiceExport, ServiceExport, &[&str]); 12] = [
        ("the same", old(), new(), &[]),
        ("type", old(), ServiceExport { service_type: "Headless".to_owned(), ..new() }, &["TypeConflict of tokyo"]),
        ("affinity", old(), ServiceExport { session_affinity: "ClientIP".to_owned(), ..new() }, &["SessionAffinityConflict of tokyo"]),
        (
            "timeout",
            old(),
            ServiceExport { session_affinity_timeout_seconds: Some(42), ..new() },
            &["SessionAffinityConfigConflict of tokyo"],
        ),
        (
            "no timeout",
            ServiceExport { session_affinity_timeout_seconds: Some(42), ..old() },
            new(),
            &["SessionAffinityConfigConflict of tokyo"],
        ),
        ("annotations", old(), ServiceExport { annotations: label(), ..new() }, &["AnnotationsConflict of tokyo"]),
        ("labels", ServiceExport { labels: label(), ..old() }, new(), &["LabelsConflict of tokyo"]),
        (
            "policy",
            old(),
            ServiceExport { internal_traffic_policy: "Local".to_owned(), ..new() },
            &["InternalTrafficPolicyConflict of tokyo"],
        ),
        ("the default policy", old(), ServiceExport { internal_traffic_policy: "Cluster".to_owned(), ..new() }, &[]),
        (
            "distribution",
            old(),
            ServiceExport { traffic_distribution: "PreferClose".to_owned(), ..new() },
            &["TrafficDistributionConflict of tokyo"],
        ),
        (
            "in Cilium's order",
            old(),
            ServiceExport {
                labels: label(),
                service_type: "Headless".to_owned(),
                ip_families: texts(&["IPv4"]),
                ..export(20, &["http=TCP/80"])
            },
            &["PortConflict of paris", "TypeConflict of tokyo", "LabelsConflict of tokyo"],
        ),
        ("two exports of the same age", old(), ServiceExport { labels: label(), ..old() }, &["LabelsConflict of tokyo"]),
    ];
    for (name, older, younger, expected) in cases {
        let exports = merged(&[put("tokyo", younger), put("paris", older)]);
        assert_eq!(conflicts(&exports), expected, "{name}");
        assert_eq!(exports.oldest().map(|export| export.created), Some(old().created), "{name}");
    }
}

#[test]
fn an_export_is_a_service_without_backends() {
    let view = view_after(&[put("paris", export(10, &[])), service_put("tokyo", cart(&["10.2.0.1 http=TCP/80"]))]);
    let service = view.global_service("shop/cart").unwrap();
    assert_eq!((describe_backends(&service.members), service.exports.is_some()), (texts(&["tokyo 10.2.0.1 80/TCP(http)"]), true));
    let view = view_after(&[put("paris", export(10, &[]))]);
    assert_eq!((names(&view), view.global_service_count()), (texts(&["shop/cart"]), 1));
}
