//! Services: `…/services/v1/<cluster>/<namespace>/<name>`, from Cilium's
//! `pkg/clustermesh/store/store.go`.
//!
//! A service can have thousands of backends, and nearly all of them have the same ports. Backends
//! therefore share one list of ports (`RecentPortLists`), and equal text is parsed once
//! (`backend_reader`).

mod backend_reader;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::Context;
use super::address::parse_ip;
use super::go_json::{SortedMap, go_struct, parse};
use crate::model::{Backend, BackendZone, Frontend, Port, Service};

go_struct! {
    /// A service as one cluster exports it.
    struct ServiceJson {
        cluster: String = "cluster",
        namespace: String = "namespace",
        name: String = "name",
        frontends: SortedMap<PortsJson> = "frontends",
        backends: SortedMap<PortsJson> = "backends",
        hostnames: BTreeMap<String, String> = "hostnames",
        zones: BTreeMap<String, ZoneJson> = "zones",
        labels: BTreeMap<String, String> = "labels",
        selector: BTreeMap<String, String> = "selector",
        include_external: bool = "includeExternal",
        shared: bool = "shared",
        cluster_id: u32 = "clusterID",
    }
    /// A port, stored under its name. Go keeps a pointer to it, so `null` means no port.
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

/// Ports by name. The name may be empty.
type PortsJson = SortedMap<Option<PortJson>>;

/// Maximum number of recent lists of ports that the next list is compared with. During a rollout a
/// service has old and new lists, each with a few orders of the ports. If every backend has its own
/// list, more comparisons would only cost time.
const RECENT_LISTS_MAX: usize = 4;

/// An address of a service (a frontend or a backend) with its ports. `text` is the address as the
/// source writes it.
struct AddressPorts<'a> {
    text: Cow<'a, str>,
    ip: IpAddr,
    ports: Arc<[Port]>,
}

/// The most recent lists of ports, for sharing.
#[derive(Default)]
struct RecentPortLists<'a> {
    /// Lists, each with its JSON text, or `""` if the text is not known.
    recent: Vec<(&'a str, Arc<[Port]>)>,
}

impl<'a> RecentPortLists<'a> {
    /// Returns the recent list that equals `ports`, or adds `ports` as a new one.
    fn share(&mut self, text: &'a str, ports: Vec<Port>) -> Arc<[Port]> {
        if let Some((known, list)) = self.recent.iter_mut().find(|(_, list)| **list == *ports) {
            *known = text;
            return Arc::clone(list);
        }
        if self.recent.len() == RECENT_LISTS_MAX {
            self.recent.remove(0);
        }
        let ports: Arc<[Port]> = ports.into();
        self.recent.push((text, Arc::clone(&ports)));
        ports
    }

    /// Returns the list whose JSON is a prefix of `text`, and the rest of `text`.
    fn match_known<'b>(&self, text: &'b str) -> Option<(Arc<[Port]>, &'b str)> {
        // no JSON object is a proper prefix of another, so a text that begins with a known object's
        // JSON contains exactly that object there
        let match_and_rest = self.recent.iter().rev().find_map(|(known, ports)| Some((ports, text.strip_prefix(known)?)));
        match_and_rest.map(|(ports, rest)| (Arc::clone(ports), rest))
    }
}

/// Decodes and checks a service. `name` is the rest of its key, `<namespace>/<name>`.
pub(super) fn decode(name: &str, value: &[u8], context: &Context<'_>) -> Result<Service, String> {
    let (json, backends) = match backend_reader::read(value) {
        Some((json, backends)) => (json, Some(backends)),
        None => (parse("a service", value)?, None),
    };
    context.check_cluster("cluster", &json.cluster)?;
    Context::check_names(name, &json.namespace, &json.name)?;
    context.check_cluster_id("clusterID", json.cluster_id)?;
    json.into_service(backends)
}

impl ServiceJson {
    /// Converts to a service. `backends` replaces those of the JSON if they were read separately.
    fn into_service(mut self, backends: Option<Vec<AddressPorts<'_>>>) -> Result<Service, String> {
        let frontends = parse_frontends(std::mem::take(&mut self.frontends))?;
        let backends = match backends {
            Some(backends) => backends,
            None => parse_addresses("backends", std::mem::take(&mut self.backends))?,
        };
        Ok(Service {
            frontends,
            backends: self.join_backends(backends),
            namespace: self.namespace,
            name: self.name,
            cluster_id: self.cluster_id,
            labels: self.labels,
            selector: self.selector,
            shared: self.shared,
            include_external: self.include_external,
        })
    }

    /// Joins backends by address. Hostnames and zones belong to the backend with the same spelling
    /// of the address; Cilium does not check them further.
    fn join_backends(&mut self, mut addresses: Vec<AddressPorts<'_>>) -> Vec<Backend> {
        addresses.sort_by_key(|backend| backend.ip);
        let mut backends: Vec<Backend> = Vec::with_capacity(addresses.len());
        for AddressPorts { text, ip, ports } in addresses {
            let hostname = self.hostnames.remove(&*text).unwrap_or_default();
            let zone = self.zones.remove(&*text).map(ZoneJson::into_zone);
            match backends.last_mut().filter(|first| first.ip == ip) {
                Some(first) => {
                    merge_ports(&mut first.ports, &ports);
                    if first.hostname.is_empty() {
                        first.hostname = hostname;
                    }
                    first.zone = first.zone.take().or(zone);
                }
                None => backends.push(Backend { ip, ports, hostname, zone }),
            }
        }
        backends
    }
}

impl ZoneJson {
    fn into_zone(self) -> BackendZone {
        BackendZone { zone: self.zone, for_zones: self.for_zones.into_iter().map(|hint| hint.name).collect() }
    }
}

fn parse_frontends(json: SortedMap<PortsJson>) -> Result<Vec<Frontend>, String> {
    let mut addresses = parse_addresses("frontends", json)?;
    addresses.sort_by_key(|frontend| frontend.ip);
    let mut frontends: Vec<Frontend> = Vec::with_capacity(addresses.len());
    for AddressPorts { ip, ports, .. } in addresses {
        match frontends.last_mut().filter(|first| first.ip == ip) {
            Some(first) => merge_ports(&mut first.ports, &ports),
            None => frontends.push(Frontend { ip, ports }),
        }
    }
    Ok(frontends)
}

/// Parses the addresses of a field, in the field's order.
fn parse_addresses<'a>(field: &str, json: SortedMap<PortsJson>) -> Result<Vec<AddressPorts<'a>>, String> {
    let (mut addresses, mut lists) = (Vec::with_capacity(json.0.len()), RecentPortLists::default());
    for (text, ports) in json.0 {
        let ip = parse_ip(&text).map_err(|reason| format!("{field}: {reason}"))?;
        addresses.push(AddressPorts { text: Cow::Owned(text), ip, ports: lists.share("", to_ports(ports)) });
    }
    Ok(addresses)
}

fn to_ports(json: PortsJson) -> Vec<Port> {
    json.0.into_iter().filter_map(|(name, port)| port.map(|port| Port { name, protocol: port.protocol, port: port.port })).collect()
}

/// Merges the ports of two spellings of one address: agents see one backend with all of them.
fn merge_ports(ports: &mut Arc<[Port]>, more: &[Port]) {
    let mut all = [&**ports, more].concat();
    all.sort_by(|left, right| left.name.cmp(&right.name));
    all.dedup_by(|later, first| later.name == first.name);
    *ports = all.into();
}
