//! Services: `…/services/v1/<cluster>/<namespace>/<name>`, from Cilium's `pkg/clustermesh/store/store.go`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Context;
use super::address::parse_ip;
use super::go_json::{Entries, go_struct, parse};
use crate::model::{Backend, BackendZone, Frontend, Port, Service};

go_struct! {
    /// A service as one cluster exports it.
    struct ServiceJson {
        cluster: String = "cluster",
        namespace: String = "namespace",
        name: String = "name",
        frontends: Entries<PortsJson> = "frontends",
        backends: Entries<PortsJson> = "backends",
        hostnames: BTreeMap<String, String> = "hostnames",
        zones: BTreeMap<String, ZoneJson> = "zones",
        labels: BTreeMap<String, String> = "labels",
        selector: BTreeMap<String, String> = "selector",
        include_external: bool = "includeExternal",
        shared: bool = "shared",
        cluster_id: u32 = "clusterID",
    }
    /// The port behind a name; Go keeps a pointer to it, so `null` is no port.
    struct PortJson {
        protocol: String = "Protocol",
        port: u16 = "Port",
    }
    /// The zone of a backend.
    struct ZoneJson {
        zone: String = "zone",
        for_zones: Vec<ForZoneJson> = "forZones",
    }
    /// One topology hint.
    struct ForZoneJson {
        name: String = "name",
    }
}

/// Ports by name; the name may be empty.
type PortsJson = Entries<Option<PortJson>>;

/// Reads and checks a service; `name` is what its key calls it, namespace and all.
pub(super) fn decode(name: &str, value: &[u8], context: &Context<'_>) -> Result<Service, String> {
    let json: ServiceJson = parse("a service", value)?;
    context.check_cluster("cluster", &json.cluster)?;
    Context::check_names(name, &json.namespace, &json.name)?;
    context.check_cluster_id("clusterID", json.cluster_id)?;
    json.into_service()
}

impl ServiceJson {
    fn into_service(mut self) -> Result<Service, String> {
        Ok(Service {
            frontends: frontends(std::mem::take(&mut self.frontends))?,
            backends: self.take_backends()?,
            namespace: self.namespace,
            name: self.name,
            cluster_id: self.cluster_id,
            labels: self.labels,
            selector: self.selector,
            shared: self.shared,
            include_external: self.include_external,
        })
    }

    /// The backends by address. Hostnames and zones belong to the backend that is spelt as they are; Cilium checks no more of them.
    fn take_backends(&mut self) -> Result<Vec<Backend>, String> {
        let mut backends = Vec::with_capacity(self.backends.0.len());
        for (text, ports) in std::mem::take(&mut self.backends.0) {
            backends.push(Backend {
                ip: address_of("backends", &text)?,
                ports: ports_of(ports),
                hostname: self.hostnames.remove(&text).unwrap_or_default(),
                zone: self.zones.remove(&text).map(ZoneJson::into_zone),
            });
        }
        backends.sort_by_key(|backend| backend.ip);
        backends.dedup_by(|later, first| {
            let same = later.ip == first.ip;
            if same {
                merge_ports(&mut first.ports, std::mem::take(&mut later.ports));
                if first.hostname.is_empty() {
                    first.hostname = std::mem::take(&mut later.hostname);
                }
                first.zone = first.zone.take().or_else(|| later.zone.take());
            }
            same
        });
        Ok(backends)
    }
}

impl ZoneJson {
    fn into_zone(self) -> BackendZone {
        BackendZone { zone: self.zone, for_zones: self.for_zones.into_iter().map(|hint| hint.name).collect() }
    }
}

fn frontends(json: Entries<PortsJson>) -> Result<Vec<Frontend>, String> {
    let mut frontends = Vec::with_capacity(json.0.len());
    for (text, ports) in json.0 {
        frontends.push(Frontend { ip: address_of("frontends", &text)?, ports: ports_of(ports) });
    }
    frontends.sort_by_key(|frontend| frontend.ip);
    frontends.dedup_by(|later, first| {
        let same = later.ip == first.ip;
        if same {
            merge_ports(&mut first.ports, std::mem::take(&mut later.ports));
        }
        same
    });
    Ok(frontends)
}

fn address_of(field: &str, text: &str) -> Result<IpAddr, String> {
    parse_ip(text).map_err(|reason| format!("{field}: {reason}"))
}

fn ports_of(json: PortsJson) -> Vec<Port> {
    json.0.into_iter().filter_map(|(name, port)| port.map(|port| Port { name, protocol: port.protocol, port: port.port })).collect()
}

/// Joins the ports of one address in two spellings: agents see one backend with all of them.
fn merge_ports(ports: &mut Vec<Port>, more: Vec<Port>) {
    ports.extend(more);
    ports.sort_by(|left, right| left.name.cmp(&right.name));
    ports.dedup_by(|later, first| later.name == first.name);
}
