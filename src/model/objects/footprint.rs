//! Memory use of decoded objects, for limits in bytes. An estimate: it ignores the allocator's
//! rounding and the inner nodes of maps, and counts shared ports once per backend. It is therefore
//! too high rather than too low for large objects.

use std::mem::size_of;

use crate::model::{
    Backend, ExportPort, FindingObject, Identity, IpEntry, LabelSet, NamedPort, Node, NodeAddress, Object, Port, Service, ServiceExport,
};

impl Object {
    /// Returns the approximate memory that the object uses, in bytes.
    #[must_use]
    pub fn footprint(&self) -> usize {
        let inner = match self {
            Self::Node(node) => size_of::<Node>() + of_node(node),
            Self::Service(service) => of_service(service),
            Self::Identity(Identity { labels, .. }) => labels.footprint(),
            Self::Ip(entry) => of_ip(entry),
            Self::ServiceExport(export) => size_of::<ServiceExport>() + of_export(export),
            Self::Finding(finding) => size_of::<FindingObject>() + finding.text_bytes(),
            // a slice is stored as its packed bytes, which its record counts already
            Self::EndpointSlice(_) | Self::Cluster(_) => 0,
        };
        size_of::<Self>() + inner
    }
}

fn of_labels(labels: &LabelSet) -> usize {
    labels.iter().map(|(name, value)| 2 * size_of::<String>() + name.len() + value.len()).sum()
}

fn of_texts(texts: &[String]) -> usize {
    texts.iter().map(|text| size_of::<String>() + text.len()).sum()
}

fn of_node(node: &Node) -> usize {
    let texts = node.name.len() + node.wireguard_public_key.len() + node.boot_id.len();
    let addresses: usize = node.addresses.iter().map(|address| size_of::<NodeAddress>() + address.address_type.len()).sum();
    let nets = (node.secondary_pod_cidrs.len() + node.health_ips.len() + node.ingress_ips.len()) * size_of::<ipnet::IpNet>();
    texts + addresses + nets + of_labels(&node.labels) + of_labels(&node.annotations)
}

fn of_ports(ports: &[Port]) -> usize {
    ports.iter().map(|port| size_of::<Port>() + port.name.len() + port.protocol.len()).sum()
}

fn of_service(service: &Service) -> usize {
    let of_backend = |backend: &Backend| {
        let zone = backend.zone.as_ref().map_or(0, |zone| zone.zone.len() + of_texts(&zone.for_zones));
        size_of::<Backend>() + of_ports(&backend.ports) + backend.hostname.len() + zone
    };
    let frontends: usize = service.frontends.iter().map(|frontend| size_of_val(frontend) + of_ports(&frontend.ports)).sum();
    let backends: usize = service.backends.iter().map(of_backend).sum();
    let texts = service.namespace.len() + service.name.len();
    texts + frontends + backends + of_labels(&service.labels) + of_labels(&service.selector)
}

fn of_ip(entry: &IpEntry) -> usize {
    let texts = [&entry.namespace, &entry.pod_name, &entry.pod_uid, &entry.service_account].map(String::len);
    let ports: usize = entry.named_ports.iter().map(|port| size_of::<NamedPort>() + port.name.len() + port.protocol.len()).sum();
    texts.iter().sum::<usize>() + ports
}

fn of_export(export: &ServiceExport) -> usize {
    let of_port = |port: &ExportPort| size_of::<ExportPort>() + port.name.len() + port.protocol.len() + port.app_protocol.len();
    let texts = export.namespace.len() + export.name.len() + export.service_type.len() + export.session_affinity.len();
    let policies = export.internal_traffic_policy.len() + export.traffic_distribution.len() + of_texts(&export.ip_families);
    let ports: usize = export.ports.iter().map(of_port).sum();
    texts + policies + ports + of_labels(&export.labels) + of_labels(&export.annotations)
}
