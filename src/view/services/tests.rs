//! Cases of source events with the expected services, exports and selections. Each test names the
//! Cilium file of its rule.

mod exports;
mod random;
mod selection;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use super::*;
use crate::model::*;
use crate::wire::tests::slice_object;

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

#[derive(Debug, Clone)]
enum SourceEvent {
    Put(Kind, &'static str, &'static str, Arc<Object>),
    Bad(Kind, &'static str, &'static str),
    Delete(Kind, &'static str, &'static str),
    RemoveCluster(&'static str),
}

use SourceEvent::{Bad, Delete, Put, RemoveCluster};

fn cluster(name: &str) -> ClusterName {
    ClusterName::parse(name).unwrap()
}

fn view_after(events: &[SourceEvent]) -> View {
    let mut view = View::default();
    for (revision, event) in events.iter().enumerate() {
        let revision = i64::try_from(revision).unwrap();
        view.apply(command(event, revision), SystemTime::UNIX_EPOCH);
    }
    view
}

fn command(event: &SourceEvent, revision: i64) -> Command {
    let source = SourceStamp { mod_revision: Revision(revision), lease: LeaseId(0), held: false };
    let value = revision.to_string().into_bytes().into();
    let change = match event.clone() {
        Put(kind, cluster_name, name, object) => {
            Change::Put { key: EntryKey::new(kind, cluster(cluster_name), name), value, decoded: Ok(object), source }
        }
        Bad(kind, cluster_name, name) => {
            Change::Put { key: EntryKey::new(kind, cluster(cluster_name), name), value, decoded: Err("bad".into()), source }
        }
        Delete(kind, cluster_name, name) => Change::Delete { key: EntryKey::new(kind, cluster(cluster_name), name) },
        RemoveCluster(cluster_name) => return Command::Remove { cluster: cluster(cluster_name), reason: DeleteReason::ClusterRemoved },
    };
    let key = super::super::key_of(&change).clone();
    Command::Apply { scope: Scope { cluster: key.cluster, kind: key.kind }, changes: vec![change], cursor: None }
}

/// Returns the service `shop/cart` with backends in the form `address name=protocol/port,…`.
fn cart(backends: &[&str]) -> Service {
    Service {
        namespace: "shop".to_owned(),
        name: "cart".to_owned(),
        cluster_id: 1,
        backends: backends.iter().map(|text| backend(text)).collect(),
        shared: true,
        include_external: true,
        ..Service::default()
    }
}

fn backend(text: &str) -> Backend {
    let (ip, ports) = text.split_once(' ').unwrap_or((text, ""));
    let port = |text: &str| {
        let (name, rest) = text.split_once('=').unwrap();
        let (protocol, port) = rest.split_once('/').unwrap();
        Port { name: name.to_owned(), protocol: protocol.to_owned(), port: port.parse().unwrap() }
    };
    let ports = ports.split(',').filter(|text| !text.is_empty()).map(port).collect();
    Backend { ip: ip.parse().unwrap(), ports, hostname: String::new(), zone: None }
}

/// Returns a slice of `shop/cart` with the port `http`, 8080, and endpoints in the form `address
/// condition`.
fn slice(name: &str, endpoints: &[&str]) -> EndpointSlice {
    EndpointSlice {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        cluster_id: 1,
        labels: LabelSet::from([(SERVICE_NAME_LABEL.to_owned(), "cart".to_owned())]),
        address_type: "IPv4".to_owned(),
        endpoints: endpoints.iter().map(|text| endpoint(text)).collect(),
        ports: vec![SlicePort { name: "http".to_owned(), protocol: "TCP".to_owned(), port: Some(8080) }],
        ..EndpointSlice::default()
    }
}

fn endpoint(text: &str) -> SliceEndpoint {
    let (ip, condition) = text.split_once(' ').unwrap_or((text, ""));
    let (ready, serving, terminating) = match condition {
        "" => (None, None, None),
        "ready" => (Some(true), Some(true), Some(false)),
        "ready terminating" => (Some(true), Some(true), Some(true)),
        "terminating" => (Some(false), Some(true), Some(true)),
        "terminating, rest unknown" => (Some(false), None, Some(true)),
        "terminating, not serving" => (Some(false), Some(false), Some(true)),
        "not ready" => (Some(false), Some(false), Some(false)),
        other => panic!("{other}"),
    };
    SliceEndpoint { addresses: vec![ip.parse().unwrap()], ready, serving, terminating, ..SliceEndpoint::default() }
}

fn service_put(cluster: &'static str, service: Service) -> SourceEvent {
    Put(Kind::Service, cluster, "shop/cart", Arc::new(Object::Service(service)))
}

fn slice_put(cluster: &'static str, name: &'static str, slice: EndpointSlice) -> SourceEvent {
    Put(Kind::EndpointSlice, cluster, name, Arc::new(slice_object(&slice)))
}

/// Formats each backend as `cluster address port/protocol(names) …`.
fn describe_backends(members: &[ServiceMember]) -> Vec<String> {
    let mut lines = Vec::new();
    for member in members {
        for backend in &member.backends {
            let mut line = format!("{} {}", member.cluster, backend.ip);
            for port in &backend.ports {
                write!(line, " {}/{}({})", port.port, port.protocol, port.names.join(",")).unwrap();
            }
            if let Some(zone) = &backend.zone {
                write!(line, " zone {} for {}", zone.zone, zone.for_zones.join(",")).unwrap();
            }
            if !backend.node_name.is_empty() {
                write!(line, " on {}", backend.node_name).unwrap();
            }
            if !backend.slices.is_empty() {
                write!(line, " in {}", backend.slices.join(",")).unwrap();
            }
            if backend.state != BackendState::Active {
                write!(line, " {}", backend.state.api_name()).unwrap();
            }
            lines.push(line);
        }
    }
    lines
}

fn backends(view: &View) -> Vec<String> {
    view.global_service("shop/cart").map(|service| describe_backends(&service.members)).unwrap_or_default()
}

fn names(view: &View) -> Vec<String> {
    view.global_service_names("").map(ToString::to_string).collect()
}

/// `MergeExternalServiceUpdate` and `MergeExternalServiceDelete` (Cilium's
/// `pkg/clustermesh/loadbalancer/service_merger.go`): an update or delete replaces all backends of
/// one cluster.
#[test]
fn a_clusters_backends_are_replaced_and_removed_as_a_whole() {
    let paris = |ips: &[&str]| service_put("paris", cart(ips));
    let tokyo = |ips: &[&str]| service_put("tokyo", cart(ips));
    let (one, two) = ("10.1.0.1 http=TCP/80", "10.1.0.2 http=TCP/80");
    let delete = |cluster| Delete(Kind::Service, cluster, "shop/cart");
    let cases: [(&str, Vec<SourceEvent>, &[&str]); 9] = [
        ("one cluster", vec![paris(&[one])], &["paris 10.1.0.1 80/TCP(http)"]),
        ("two clusters", vec![paris(&[one]), tokyo(&[two])], &["paris 10.1.0.1 80/TCP(http)", "tokyo 10.1.0.2 80/TCP(http)"]),
        (
            "replaced, not added to",
            vec![paris(&[one]), tokyo(&[one]), paris(&[two])],
            &["paris 10.1.0.2 80/TCP(http)", "tokyo 10.1.0.1 80/TCP(http)"],
        ),
        (
            "the same address in two clusters is two backends",
            vec![paris(&[one]), tokyo(&[one])],
            &["paris 10.1.0.1 80/TCP(http)", "tokyo 10.1.0.1 80/TCP(http)"],
        ),
        ("one cluster's delete leaves the other's", vec![paris(&[one]), tokyo(&[two]), delete("paris")], &["tokyo 10.1.0.2 80/TCP(http)"]),
        ("the last delete leaves nothing", vec![paris(&[one]), delete("paris")], &[]),
        ("a removed cluster", vec![paris(&[one]), tokyo(&[two]), RemoveCluster("tokyo")], &["paris 10.1.0.1 80/TCP(http)"]),
        (
            "a bad value keeps the last good one",
            vec![paris(&[one]), Bad(Kind::Service, "paris", "shop/cart")],
            &["paris 10.1.0.1 80/TCP(http)"],
        ),
        ("no backends, but the service is there", vec![paris(&[])], &[]),
    ];
    for (name, events, expected) in cases {
        let view = view_after(&events);
        assert_eq!(backends(&view), expected, "{name}");
        let is_gone = name == "the last delete leaves nothing";
        assert_eq!((names(&view).is_empty(), view.global_service_count()), (is_gone, u64::from(!is_gone)), "{name}");
    }
}

/// `NewSharedServicesObserver` (Cilium's `pkg/clustermesh/common/services.go`): a service that is
/// not shared is left out, and one that stops being shared is deleted.
#[test]
fn only_shared_services_are_global() {
    let shared = |shared| Service { shared, ..cart(&["10.1.0.1 http=TCP/80"]) };
    let cases: [(&str, Vec<SourceEvent>, bool); 4] = [
        ("never shared", vec![service_put("paris", shared(false))], false),
        ("shared", vec![service_put("paris", shared(true))], true),
        ("no longer shared", vec![service_put("paris", shared(true)), service_put("paris", shared(false))], false),
        ("shared again", vec![service_put("paris", shared(false)), service_put("paris", shared(true))], true),
    ];
    for (name, events, expected) in cases {
        let view = view_after(&events);
        assert_eq!((view.global_service("shop/cart").is_some(), view.global_service_count() == 1), (expected, expected), "{name}");
        assert!(view.local_member(&cluster("paris"), "shop/cart").is_some(), "{name}: the agents of its cluster use it anyway");
    }
}

/// `ClusterServiceToBackendParams` (Cilium's `pkg/clustermesh/loadbalancer/service_merger.go`):
/// ports with the same protocol and number are one port with all names, sorted and without the
/// empty one.
#[test]
fn ports_with_the_same_number_are_merged() {
    let zone = BackendZone { zone: "a".to_owned(), for_zones: vec!["a".to_owned(), "b".to_owned()] };
    let zoned = Backend { zone: Some(zone), ..backend("10.1.0.1 http=TCP/80") };
    let cases: [(&str, Service, &str); 5] = [
        ("two names", cart(&["10.1.0.1 web=TCP/80,http=TCP/80"]), "paris 10.1.0.1 80/TCP(http,web)"),
        ("two protocols", cart(&["10.1.0.1 dns=UDP/53,dns-tcp=TCP/53"]), "paris 10.1.0.1 53/TCP(dns-tcp) 53/UDP(dns)"),
        ("a port without a name", cart(&["10.1.0.1 =TCP/80"]), "paris 10.1.0.1 80/TCP()"),
        ("with and without a name", cart(&["10.1.0.1 =TCP/80,http=TCP/80"]), "paris 10.1.0.1 80/TCP(http)"),
        ("a zone", Service { backends: vec![zoned], ..cart(&[]) }, "paris 10.1.0.1 80/TCP(http) zone a for a,b"),
    ];
    for (name, service, expected) in cases {
        assert_eq!(backends(&view_after(&[service_put("paris", service)])), [expected], "{name}");
    }
}

/// `ParseEndpointSliceV1` (Cilium's `pkg/k8s/endpoints.go`) and `Convert`
/// (`pkg/loadbalancer/reflectors/endpoints/endpoints.go`): with a service, slices only add nodes
/// and states; without one, they define the backends.
#[test]
fn slices_complement_or_replace_services() {
    let service = || service_put("paris", cart(&["10.1.0.1 web=TCP/80"]));
    let unnamed = EndpointSlice { labels: LabelSet::new(), ..slice("cart-a", &["10.1.0.1"]) };
    let on_node = SliceEndpoint { node_name: "worker-1".to_owned(), zone: "a".to_owned(), ..endpoint("10.1.0.1") };
    let any_port = vec![SlicePort { name: String::new(), protocol: "TCP".to_owned(), port: None }];
    let dummy = vec![SlicePort { name: String::new(), protocol: String::new(), port: Some(9999) }];
    let cases: [(&str, Vec<SourceEvent>, &[&str]); 11] = [
        (
            "with a service",
            vec![service(), slice_put("paris", "shop/cart-a", slice("cart-a", &["10.1.0.1", "10.1.0.9"]))],
            &["paris 10.1.0.1 80/TCP(web) in cart-a"],
        ),
        (
            "in two slices",
            vec![
                slice_put("paris", "shop/cart-b", slice("cart-b", &["10.1.0.1"])),
                service(),
                slice_put("paris", "shop/cart-a", slice("cart-a", &["10.1.0.1"])),
            ],
            &["paris 10.1.0.1 80/TCP(web) in cart-a,cart-b"],
        ),
        (
            "a slice of another cluster adds no backend to this one",
            vec![service(), slice_put("tokyo", "shop/cart-a", slice("cart-a", &["10.2.0.1"]))],
            &["paris 10.1.0.1 80/TCP(web)", "tokyo 10.2.0.1 8080/TCP(http) in cart-a"],
        ),
        (
            "alone",
            vec![slice_put("paris", "shop/cart-a", slice("cart-a", &["10.1.0.2", "10.1.0.1"]))],
            &["paris 10.1.0.1 8080/TCP(http) in cart-a", "paris 10.1.0.2 8080/TCP(http) in cart-a"],
        ),
        (
            "with node and zone",
            vec![slice_put("paris", "shop/cart-a", EndpointSlice { endpoints: vec![on_node], ..slice("cart-a", &[]) })],
            &["paris 10.1.0.1 8080/TCP(http) zone a for  on worker-1 in cart-a"],
        ),
        (
            "the service is deleted, its slice is not",
            vec![service(), slice_put("paris", "shop/cart-a", slice("cart-a", &["10.1.0.1"])), Delete(Kind::Service, "paris", "shop/cart")],
            &["paris 10.1.0.1 8080/TCP(http) in cart-a"],
        ),
        (
            "the slice is deleted",
            vec![
                service(),
                slice_put("paris", "shop/cart-a", slice("cart-a", &["10.1.0.1"])),
                Delete(Kind::EndpointSlice, "paris", "shop/cart-a"),
            ],
            &["paris 10.1.0.1 80/TCP(web)"],
        ),
        (
            "a slice that loses its service",
            vec![slice_put("paris", "shop/cart-a", slice("cart-a", &["10.1.0.1"])), slice_put("paris", "shop/cart-a", unnamed.clone())],
            &[],
        ),
        ("a slice of no service", vec![slice_put("paris", "shop/cart-a", unnamed)], &[]),
        (
            "a port without a number is ignored",
            vec![slice_put("paris", "shop/cart-a", EndpointSlice { ports: any_port, ..slice("cart-a", &["10.1.0.1"]) })],
            &[],
        ),
        (
            "the dummy endpoint of an ingress is ignored",
            vec![slice_put("paris", "shop/cart-a", EndpointSlice { ports: dummy, ..slice("cart-a", &["192.192.192.192", "10.1.0.1"]) })],
            &["paris 10.1.0.1 9999/TCP() in cart-a"],
        ),
    ];
    for (name, events, expected) in cases {
        assert_eq!(backends(&view_after(&events)), expected, "{name}");
    }
}

/// `Convert`, Cilium's `pkg/loadbalancer/reflectors/endpoints/endpoints.go`: missing conditions
/// mean ready and serving.
#[test]
fn conditions_determine_the_state_of_a_backend() {
    let cases = [
        ("", BackendState::Active, true),
        ("ready", BackendState::Active, true),
        ("ready terminating", BackendState::Active, true),
        ("terminating", BackendState::Terminating, true),
        ("terminating, rest unknown", BackendState::Terminating, true),
        ("terminating, not serving", BackendState::TerminatingNotServing, false),
        ("not ready", BackendState::Maintenance, false),
    ];
    for (condition, expected, is_healthy) in cases {
        let state = BackendState::of(&endpoint(&format!("10.1.0.1 {condition}")));
        assert_eq!((state, state.is_healthy()), (expected, is_healthy), "{condition}");
    }
}
