//! Targets for Prometheus: backends of services and pods.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::admission::ScanLimits;
use crate::api::tests::fixture::{ApiFixture, cluster, identity, key, node, put};
use crate::handle::SliceLimit;
use crate::model::*;
use crate::view::View;

fn pod(ip: &str, name: &str, identity: u32, ports: &[(&str, u16, &str)]) -> Object {
    let named_port =
        |(name, port, protocol): &(&str, u16, &str)| NamedPort { name: (*name).to_owned(), port: *port, protocol: (*protocol).to_owned() };
    let entry = IpEntry::new(ObjectPrefix::of_host(ip.parse::<std::net::IpAddr>().unwrap()), identity);
    Object::Ip(IpEntry {
        host_ip: "172.18.1.1".parse().ok(),
        namespace: "shop".to_owned(),
        pod_name: name.to_owned(),
        named_ports: ports.iter().map(named_port).collect(),
        ..entry
    })
}

/// `shop/cart` in paris, whose backend is the pod `cart-0`, and `shop/cart` in tokyo, whose backend
/// is no known pod.
fn mesh() -> View {
    let service = |cluster_id: u32, ip: &str| {
        let port = |name: &str, number: u16, protocol: &str| Port { name: name.to_owned(), protocol: protocol.to_owned(), port: number };
        let ports = [port("dns", 53, "UDP"), port("http", 80, "TCP"), port("web", 80, "TCP")].into();
        Object::Service(Service {
            namespace: "shop".to_owned(),
            name: "cart".to_owned(),
            cluster_id,
            backends: vec![Backend { ip: ip.parse().unwrap(), ports, hostname: String::new(), zone: None }],
            shared: true,
            ..Service::default()
        })
    };
    let puts = [
        put(key(Kind::Node, "paris", "worker-1"), node("worker-1", "172.18.1.1", "a"), 1),
        put(key(Kind::Identity, "paris", "65793"), identity(65_793, "cart"), 2),
        put(
            key(Kind::Ip, "paris", "10.1.0.1"),
            pod("10.1.0.1", "cart-0", 65_793, &[("http", 80, "TCP"), ("dns", 53, "UDP"), ("web", 80, "TCP")]),
            3,
        ),
        put(key(Kind::Ip, "paris", "fd00::1"), pod("fd00::1", "cart-0", 65_793, &[]), 4),
        // the same number with other labels
        put(key(Kind::Identity, "tokyo", "65793"), identity(65_793, "web"), 8),
        put(key(Kind::Ip, "tokyo", "10.2.0.3"), pod("10.2.0.3", "web-0", 65_793, &[]), 9),
        put(key(Kind::Ip, "tokyo", "10.2.0.2"), pod("10.2.0.2", "db-0", 131_329, &[("pg", 5432, "TCP")]), 5),
        put(key(Kind::Service, "paris", "shop/cart"), service(1, "10.1.0.1"), 6),
        put(key(Kind::Service, "tokyo", "shop/cart"), service(2, "10.2.0.1"), 7),
    ];
    let mut view = View::starting_at(Sequence(0));
    for change in puts {
        let Change::Put { key, .. } = &change else { continue };
        let scope = Scope { cluster: key.cluster.clone(), kind: key.kind };
        view.apply(Command::Apply { scope, changes: vec![change], cursor: None }, SystemTime::now());
    }
    for (name, kind) in ["paris", "tokyo"].into_iter().flat_map(|name| Kind::ALL.map(|kind| (name, kind))) {
        view.apply(Command::Confirm(Scope { cluster: cluster(name), kind }), SystemTime::now());
    }
    view
}

/// Returns the targets in order.
async fn targets(fixture: &ApiFixture, query: &str) -> Vec<String> {
    let found = fixture.json(&format!("/v1/prometheus/sd?{query}")).await;
    let groups = found.as_array().unwrap_or_else(|| panic!("{query}: {found}"));
    let mut targets: Vec<String> = groups.iter().map(|group| group["targets"][0].as_str().unwrap().to_owned()).collect();
    targets.sort();
    targets
}

#[tokio::test]
async fn backends_have_the_labels_of_their_pods() {
    let fixture = ApiFixture::with_view(mesh());
    let found = fixture.json("/v1/prometheus/sd?service=shop/cart&port=web").await;
    let of_paris = json!({
        "__meta_meshkeep_cluster": "paris", "__meta_meshkeep_namespace": "shop", "__meta_meshkeep_service": "cart",
        "__meta_meshkeep_pod": "cart-0", "__meta_meshkeep_node": "worker-1", "__meta_meshkeep_identity": "65793",
        "__meta_meshkeep_label_app": "cart", "__meta_meshkeep_port_name": "web", "__meta_meshkeep_port_protocol": "TCP",
        "__meta_meshkeep_ip_family": "IPv4", "__meta_meshkeep_state": "active", "__meta_meshkeep_origin": "live",
    });
    let mut labels = found[0]["labels"].clone();
    // the fixture's identities have more labels
    labels.as_object_mut().unwrap().retain(|name, _| !name.starts_with("__meta_meshkeep_label_") || name == "__meta_meshkeep_label_app");
    assert_eq!((&found[0]["targets"], labels), (&json!(["10.1.0.1:80"]), of_paris));
    let of_tokyo = json!({
        "__meta_meshkeep_cluster": "tokyo", "__meta_meshkeep_namespace": "shop", "__meta_meshkeep_service": "cart",
        "__meta_meshkeep_port_name": "web", "__meta_meshkeep_port_protocol": "TCP", "__meta_meshkeep_ip_family": "IPv4",
        "__meta_meshkeep_state": "active", "__meta_meshkeep_origin": "live",
    });
    assert_eq!(found[1], json!({"targets": ["10.2.0.1:80"], "labels": of_tokyo}));
    assert_eq!(found.as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn targets_are_selected_by_service_namespace_labels_cluster_and_port() {
    let slices = ScanLimits { slice: SliceLimit::Rows(1), page: SliceLimit::Rows(1_000) };
    let (fixture, sliced) = (ApiFixture::with_view(mesh()), ApiFixture::with_view(mesh()).with_scan_limits(slices));
    for (query, expected) in [
        ("service=shop/cart", &["10.1.0.1:80", "10.2.0.1:80"][..]),
        ("service=shop/cart&port=53", &["10.1.0.1:53", "10.2.0.1:53"]),
        ("service=shop/cart&cluster=tokyo", &["10.2.0.1:80"]),
        ("namespace=shop", &["10.1.0.1:80", "10.2.0.2:5432"]),
        ("namespace=shop&port=dns", &["10.1.0.1:53"]),
        ("namespace=shop&port=9100", &["10.1.0.1:9100", "10.2.0.2:9100", "10.2.0.3:9100", "[fd00::1]:9100"]),
        ("namespace=shop&cluster=paris", &["10.1.0.1:80"]),
        ("namespace=mail", &[]),
        ("labelSelector=app%3Dcart&port=80", &["10.1.0.1:80", "[fd00::1]:80"]),
        ("labelSelector=app%3Dcart&namespace=mail&port=80", &[]),
        ("labelSelector=app%3Dcart&namespace=no%20name&port=80", &[]),
        ("labelSelector=app%3Dcart&namespace=shop&port=80", &["10.1.0.1:80", "[fd00::1]:80"]),
    ] {
        assert_eq!(targets(&fixture, query).await, expected, "{query}");
        assert_eq!(targets(&sliced, query).await, expected, "{query}, in slices");
    }
}

/// `shop/cart` in paris, and this number of pods, its backends. Their targets have 33 kB each if
/// `is_long`, and otherwise 400 bytes, because only Kubernetes labels are part of a target.
fn mesh_with_pods(count: u32, is_long: bool) -> View {
    let mut view = View::starting_at(Sequence(0));
    let mut put_all = |kind, objects: Vec<(String, Object)>| {
        let changes = objects.into_iter().map(|(name, object)| put(key(kind, "paris", &name), object, 1)).collect();
        view.apply(Command::Apply { scope: Scope { cluster: cluster("paris"), kind }, changes, cursor: None }, SystemTime::now());
    };
    let ips = (0..count).map(|number| std::net::Ipv4Addr::from(0x0a01_0000 + number));
    let label = if is_long { ("k8s:app".to_owned(), "x".repeat(32 << 10)) } else { ("vm:app".to_owned(), "cart".to_owned()) };
    let labels = LabelSet::from([label]).into();
    put_all(Kind::Identity, vec![("65793".to_owned(), Object::Identity(Identity { id: 65_793, labels }))]);
    put_all(Kind::Ip, ips.clone().map(|ip| (ip.to_string(), pod(&ip.to_string(), "cart", 65_793, &[("http", 80, "TCP")]))).collect());
    let port = Port { name: "http".to_owned(), protocol: "TCP".to_owned(), port: 80 };
    let backends = ips.map(|ip| Backend { ip: ip.into(), ports: [port.clone()].into(), hostname: String::new(), zone: None });
    let service =
        Service { namespace: "shop".to_owned(), name: "cart".to_owned(), backends: backends.collect(), shared: true, ..Service::default() };
    put_all(Kind::Service, vec![("shop/cart".to_owned(), Object::Service(service))]);
    for kind in Kind::ALL {
        view.apply(Command::Confirm(Scope { cluster: cluster("paris"), kind }), SystemTime::now());
    }
    view
}

#[tokio::test]
async fn every_form_of_the_query_has_a_limit() {
    const QUERIES: [(&str, &str, &str); 3] = [
        ("service=shop/cart", "service", "cluster or port"),
        ("namespace=shop", "namespace", "namespace, labelSelector, cluster or port"),
        ("labelSelector=app", "labelSelector", "namespace, labelSelector, cluster or port"),
    ];
    // an answer with 130 targets has more than 4 MiB
    for (count, is_long, limit) in
        [(10_000, false, None), (10_001, false, Some("10000 targets")), (120, true, None), (130, true, Some("4194304 bytes of targets"))]
    {
        // on a busy machine, this takes longer than a page may
        let limits = ScanLimits { page: SliceLimit::Time(Duration::from_mins(10)), ..ScanLimits::default() };
        let fixture = ApiFixture::with_view(mesh_with_pods(count, is_long)).with_scan_limits(limits);
        for (query, parameter, fewer) in QUERIES {
            let answer = fixture.get(&format!("/v1/prometheus/sd?{query}&maxAge=600")).await;
            let found: Value = answer.json();
            match limit {
                None => assert_eq!(found.as_array().map(Vec::len), Some(count as usize), "{query}"),
                Some(limit) => {
                    let expected = format!("{parameter}: selects more than {limit}: select fewer with {fewer}");
                    assert_eq!((answer.status.as_u16(), &found["detail"]), (400, &json!(expected)), "{query}");
                }
            }
        }
    }
}

#[tokio::test]
async fn max_age_is_about_the_clusters_of_the_query() {
    // paris was contacted just now, and tokyo has no client file
    let fixture = ApiFixture::with_view(mesh());
    for query in ["service=shop/cart&port=http", "namespace=shop&port=80", "labelSelector=app&port=80"] {
        for (clusters, expected) in [("&cluster=paris", 200), ("&cluster=tokyo", 503), ("&cluster=paris&cluster=tokyo", 503), ("", 503)] {
            let answer = fixture.get(&format!("/v1/prometheus/sd?{query}&maxAge=600{clusters}")).await;
            assert_eq!(answer.status.as_u16(), expected, "{query}{clusters}: {}", answer.json());
        }
        assert!(!targets(&fixture, &format!("{query}&maxAge=600&cluster=paris")).await.is_empty(), "{query}");
    }
}

#[tokio::test]
async fn wrong_requests_are_refused() {
    let fixture = ApiFixture::with_view(mesh());
    for (query, status, detail) in [
        ("", 400, "service: is missing: give service=NAMESPACE/NAME, or namespace= or labelSelector= for pods"),
        ("?service=shop/cart&namespace=shop", 400, "service: selects a service, and namespace and labelSelector select pods"),
        ("?service=shop/none", 404, "no cluster shares or exports a service shop/none"),
        ("?service=shop/cart&port=0", 400, "port: 0 is not a port"),
        ("?namespace=sh*", 400, "namespace: "),
        ("?labelSelector=!!", 400, "labelSelector: "),
        ("?namespace=shop&neverRead=ignore", 400, "neverRead: only works together with maxAge"),
    ] {
        let answer = fixture.get(&format!("/v1/prometheus/sd{query}")).await;
        let found: Value = answer.json();
        let is_expected = answer.status == status && found["detail"].as_str().unwrap_or_default().starts_with(detail);
        assert!(is_expected, "{query}: {found}");
    }
}
