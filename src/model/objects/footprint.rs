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
            Self::Node(node) => size_of::<Node>() + node_bytes(node),
            Self::Service(service) => service_bytes(service),
            Self::Identity(Identity { labels, .. }) => labels.footprint(),
            Self::Ip(entry) => ip_bytes(entry),
            Self::ServiceExport(export) => size_of::<ServiceExport>() + export_bytes(export),
            Self::Finding(finding) => size_of::<FindingObject>() + finding.text_bytes(),
            // a slice is stored as its packed bytes, which its record counts already
            Self::EndpointSlice(_) | Self::Cluster(_) => 0,
        };
        size_of::<Self>() + inner
    }
}

fn labels_bytes(labels: &LabelSet) -> usize {
    labels.iter().map(|(name, value)| 2 * size_of::<String>() + name.len() + value.len()).sum()
}

fn texts_bytes(texts: &[String]) -> usize {
    texts.iter().map(|text| size_of::<String>() + text.len()).sum()
}

fn node_bytes(node: &Node) -> usize {
    let texts = node.name.len() + node.wireguard_public_key.len() + node.boot_id.len();
    let addresses: usize = node.addresses.iter().map(|address| size_of::<NodeAddress>() + address.address_type.len()).sum();
    let nets = (node.secondary_pod_cidrs.len() + node.health_ips.len() + node.ingress_ips.len()) * size_of::<ipnet::IpNet>();
    texts + addresses + nets + labels_bytes(&node.labels) + labels_bytes(&node.annotations)
}

fn ports_bytes(ports: &[Port]) -> usize {
    ports.iter().map(|port| size_of::<Port>() + port.name.len() + port.protocol.len()).sum()
}

fn service_bytes(service: &Service) -> usize {
    let backend_bytes = |backend: &Backend| {
        let zone = backend.zone.as_ref().map_or(0, |zone| zone.zone.len() + texts_bytes(&zone.for_zones));
        size_of::<Backend>() + ports_bytes(&backend.ports) + backend.hostname.len() + zone
    };
    let frontends: usize = service.frontends.iter().map(|frontend| size_of_val(frontend) + ports_bytes(&frontend.ports)).sum();
    let backends: usize = service.backends.iter().map(backend_bytes).sum();
    let texts = service.namespace.len() + service.name.len();
    texts + frontends + backends + labels_bytes(&service.labels) + labels_bytes(&service.selector)
}

fn ip_bytes(entry: &IpEntry) -> usize {
    let texts = [&entry.namespace, &entry.pod_name, &entry.pod_uid, &entry.service_account].map(String::len);
    let ports: usize = entry.named_ports.iter().map(|port| size_of::<NamedPort>() + port.name.len() + port.protocol.len()).sum();
    texts.iter().sum::<usize>() + ports
}

fn export_bytes(export: &ServiceExport) -> usize {
    let port_bytes = |port: &ExportPort| size_of::<ExportPort>() + port.name.len() + port.protocol.len() + port.app_protocol.len();
    let texts = export.namespace.len() + export.name.len() + export.service_type.len() + export.session_affinity.len();
    let policies = export.internal_traffic_policy.len() + export.traffic_distribution.len() + texts_bytes(&export.ip_families);
    let ports: usize = export.ports.iter().map(port_bytes).sum();
    texts + policies + ports + labels_bytes(&export.labels) + labels_bytes(&export.annotations)
}
