//! Targets of Prometheus: their addresses and labels.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::{is_selected, too_many};
use crate::api::paging::list_request::PAGE_BYTES_MAX;
use crate::api::problem::Problem;
use crate::dto::objects::prometheus::TargetGroup;
use crate::handle::{GlobalBackend, Reading, ServiceEntry, ServiceMember};
use crate::model::{ClusterName, IpEntry, Record};

/// Maximum number of targets in an answer. Most have some 500 bytes, but the labels of an identity
/// can be longer, so [`PAGE_BYTES_MAX`] limits the size too.
const TARGETS_MAX: usize = 10_000;

/// Start of the name of every label. Prometheus drops labels with two underscores at the start
/// after relabelling.
const LABEL_PREFIX: &str = "__meta_meshkeep_";

/// Source of labels of Kubernetes in the labels of an identity.
const KUBERNETES_SOURCE: &str = "k8s:";

/// Ports to scrape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PortFilter {
    /// Every TCP port that is known.
    AllTcp,
    Number(u16),
    Name(String),
}

/// Targets as a JSON array: up to [`TARGETS_MAX`], in up to [`PAGE_BYTES_MAX`], the memory that is
/// reserved for an answer. Each target is serialized as soon as it is found.
#[derive(Debug)]
pub(super) struct TargetList {
    json: Vec<u8>,
    count: usize,
    /// Parameter that selects the targets. A refusal names it.
    parameter: &'static str,
}

/// A port of a pod or of a backend.
struct TargetPort<'a> {
    number: u16,
    name: &'a str,
    protocol: &'a str,
}

impl PortFilter {
    /// Parses the parameter `port`: a number or a name.
    pub(super) fn parse(text: Option<&str>) -> Result<Self, Problem> {
        let Some(text) = text else { return Ok(Self::AllTcp) };
        match text.parse::<u16>() {
            Ok(0) => Err(Problem::bad_parameter("port", "0 is not a port")),
            Ok(number) => Ok(Self::Number(number)),
            Err(_) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Err(Problem::bad_parameter("port", format!("{text} is not a port: the highest is 65535")))
            }
            Err(_) => Ok(Self::Name(text.to_owned())),
        }
    }

    /// Returns the ports to scrape, one of each number. Of several, the first TCP port is used.
    fn select<'a>(&self, ports: impl Iterator<Item = TargetPort<'a>>) -> Vec<TargetPort<'a>> {
        let mut ports: Vec<_> = ports.filter(|port| self.accepts(port)).collect();
        ports.sort_by_key(|port| (port.number, !port.is_tcp()));
        ports.dedup_by_key(|port| port.number);
        ports
    }

    fn accepts(&self, port: &TargetPort<'_>) -> bool {
        match self {
            Self::AllTcp => port.is_tcp(),
            Self::Number(number) => port.number == *number,
            Self::Name(name) => port.name == *name,
        }
    }
}

impl TargetPort<'_> {
    fn is_tcp(&self) -> bool {
        self.protocol.eq_ignore_ascii_case("tcp") || self.protocol.is_empty()
    }
}

impl TargetList {
    pub(super) fn new(parameter: &'static str) -> Self {
        Self { json: b"[".to_vec(), count: 0, parameter }
    }

    fn push(&mut self, ip: IpAddr, port: u16, labels: BTreeMap<String, String>) -> Result<(), Problem> {
        if self.count == TARGETS_MAX {
            return Err(too_many(self.parameter, "targets", TARGETS_MAX));
        }
        if self.count > 0 {
            self.json.push(b',');
        }
        let group = TargetGroup { targets: vec![SocketAddr::new(ip, port).to_string()], labels };
        serde_json::to_writer(&mut self.json, &group).map_err(|error| Problem::internal(format!("a target cannot be written: {error}")))?;
        self.count += 1;
        // the closing bracket is still missing
        if self.json.len() < PAGE_BYTES_MAX { Ok(()) } else { Err(too_many(self.parameter, "bytes of targets", PAGE_BYTES_MAX)) }
    }

    /// Returns the whole answer, and leaves nothing.
    pub(super) fn take_json(&mut self) -> Vec<u8> {
        self.json.push(b']');
        std::mem::take(&mut self.json)
    }
}

/// Adds the targets of a pod. Entries without a pod have none.
///
/// A pod publishes only its named ports. With the number of a port, every pod has this target.
pub(super) fn pod_targets(reading: &Reading, record: &Record, filter: &PortFilter, targets: &mut TargetList) -> Result<(), Problem> {
    let entry = record.object.as_deref().and_then(|object| object.as_ip());
    let Some(entry) = entry.filter(|entry| entry.prefix.host && !entry.pod_name.is_empty()) else { return Ok(()) };
    let ports = entry.named_ports.iter().map(|port| TargetPort { number: port.port, name: &port.name, protocol: &port.protocol });
    let mut ports = filter.select(ports);
    if let (PortFilter::Number(number), true) = (filter, ports.is_empty()) {
        ports.push(TargetPort { number: *number, name: "", protocol: "" });
    }
    let ip = entry.prefix.net.addr();
    for port in ports {
        let mut labels = port_labels(ip, &port);
        add_source_labels(&mut labels, reading, &record.key.cluster, reading.source_of(record).origin.api_name());
        add_pod_labels(&mut labels, reading, &record.key.cluster, entry);
        targets.push(ip, port.number, named(labels))?;
    }
    Ok(())
}

/// Adds the targets of the backends of a global service.
pub(super) fn service_targets(
    reading: &Reading,
    service: &ServiceEntry,
    clusters: &[ClusterName],
    filter: &PortFilter,
    targets: &mut TargetList,
) -> Result<(), Problem> {
    let service = match service {
        ServiceEntry::Merged(service, _) => service,
        ServiceEntry::TooLarge(large) => {
            let name = format!("{}/{}", large.namespace, large.name);
            return Err(Problem::bad_parameter(
                "service",
                format!("{name} is too large to be merged: /v1/global-services/{name} says why"),
            ));
        }
    };
    for member in service.members.iter().filter(|member| is_selected(clusters, &member.cluster)) {
        for backend in &member.backends {
            let ports = backend.ports.iter().flat_map(|port| {
                let names = port.names.iter().map(String::as_str).chain(port.names.is_empty().then_some(""));
                names.map(|name| TargetPort { number: port.port, name, protocol: &port.protocol })
            });
            for port in filter.select(ports) {
                let mut labels = backend_labels(reading, member, backend, &port);
                labels.insert("namespace".to_owned(), service.namespace.clone());
                labels.insert("service".to_owned(), service.name.clone());
                targets.push(backend.ip, port.number, named(labels))?;
            }
        }
    }
    Ok(())
}

fn backend_labels(reading: &Reading, member: &ServiceMember, backend: &GlobalBackend, port: &TargetPort<'_>) -> BTreeMap<String, String> {
    let mut labels = port_labels(backend.ip, port);
    let records = member.service.iter().chain(&member.slices);
    let origin = records.map(|record| reading.source_of(record).origin).max();
    add_source_labels(&mut labels, reading, &member.cluster, origin.map_or("", |origin| origin.api_name()));
    let pod = reading.ips_at(IpNet::from(backend.ip)).find(|record| record.key.cluster == member.cluster);
    if let Some(entry) = pod.as_ref().and_then(|record| record.object.as_deref()?.as_ip()) {
        add_pod_labels(&mut labels, reading, &member.cluster, entry);
    }
    labels.insert("state".to_owned(), backend.state.api_name().to_owned());
    if !backend.node_name.is_empty() {
        labels.insert("node".to_owned(), backend.node_name.clone());
    }
    if let Some(zone) = &backend.zone {
        labels.insert("zone".to_owned(), zone.zone.clone());
    }
    labels
}

fn port_labels(ip: IpAddr, port: &TargetPort<'_>) -> BTreeMap<String, String> {
    let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    let labels = [("ip_family", family), ("port_name", port.name), ("port_protocol", port.protocol)];
    labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn add_source_labels(labels: &mut BTreeMap<String, String>, reading: &Reading, cluster: &ClusterName, origin: &str) {
    labels.insert("cluster".to_owned(), cluster.to_string());
    labels.insert("origin".to_owned(), origin.to_owned());
    labels.extend(reading.cluster_id(cluster).map(|id| ("cluster_id".to_owned(), id.0.to_string())));
}

fn add_pod_labels(labels: &mut BTreeMap<String, String>, reading: &Reading, cluster: &ClusterName, entry: &IpEntry) {
    let of_cluster = |record: &std::sync::Arc<Record>| record.key.cluster == *cluster;
    let node = entry.host_ip.and_then(|ip| reading.nodes_at(ip).find(of_cluster)).map(|node| node.key.name.to_string());
    let texts = [("namespace", &entry.namespace), ("pod", &entry.pod_name), ("service_account", &entry.service_account)];
    labels.extend(texts.into_iter().map(|(name, text)| (name.to_owned(), text.clone())));
    labels.extend(node.map(|node| ("node".to_owned(), node)));
    labels.insert("identity".to_owned(), entry.identity.to_string());
    let identity = reading.identities(entry.identity).find(of_cluster);
    let identity = identity.as_ref().and_then(|record| record.object.as_deref()?.as_identity());
    for (key, value) in identity.into_iter().flat_map(|identity| identity.labels.iter()) {
        if let Some(key) = key.strip_prefix(KUBERNETES_SOURCE) {
            labels.insert(format!("label_{}", label_name(key)), value.to_owned());
        }
    }
}

/// Adds the prefix to the names, and removes labels without a value.
fn named(labels: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let known = labels.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(name, value)| (format!("{LABEL_PREFIX}{name}"), value)).collect()
}

/// Returns a key as the name of a label: every other character is an underscore, as in Prometheus'
/// own service discoveries (`SanitizeLabelName` in its `util/strutil`).
fn label_name(key: &str) -> String {
    key.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_number_or_a_name() {
        let parse = |text| PortFilter::parse(text).map_err(|problem| format!("{problem:?}"));
        assert_eq!(parse(None), Ok(PortFilter::AllTcp));
        assert_eq!(parse(Some("8080")), Ok(PortFilter::Number(8080)));
        assert_eq!(parse(Some("http")), Ok(PortFilter::Name("http".to_owned())));
        assert!(parse(Some("0")).is_err() && parse(Some("65536")).is_err());
        let port = |number, name, protocol| TargetPort { number, name, protocol };
        assert!(PortFilter::AllTcp.accepts(&port(1, "", "TCP")) && !PortFilter::AllTcp.accepts(&port(1, "", "UDP")));
        assert!(PortFilter::Name("dns".to_owned()).accepts(&port(53, "dns", "UDP")));
        let ports = || [port(53, "dns", "UDP"), port(80, "http", "TCP"), port(53, "dns-tcp", "TCP"), port(80, "web", "TCP")].into_iter();
        let selected = |text| {
            let ports = parse(text).unwrap().select(ports());
            ports.iter().map(|port| (port.number, port.name)).collect::<Vec<_>>()
        };
        assert_eq!(selected(None), [(53, "dns-tcp"), (80, "http")]);
        assert_eq!(selected(Some("53")), [(53, "dns-tcp")]);
        assert_eq!(selected(Some("web")), [(80, "web")]);
    }

    #[test]
    fn label_names_are_those_of_prometheus() {
        assert_eq!(label_name("app.kubernetes.io/name"), "app_kubernetes_io_name");
        let labels = [("a", "1"), ("b", "")].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(named(labels), [("__meta_meshkeep_a".to_owned(), "1".to_owned())].into());
    }
}
