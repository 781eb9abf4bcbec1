//! Merges the services, endpoint slices and exports of several clusters into one global service.
//!
//! The rules are those of `ClusterServiceToBackendParams` and its caller (Cilium's
//! `pkg/clustermesh/loadbalancer/service_merger.go`): backends belong to a cluster. An update or
//! delete replaces all backends of one cluster and no others, and one address in two clusters is
//! two backends.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::model::{Backend, BackendState, BackendZone, ClusterName, EndpointSlice, Object, Record, Service, SliceEndpoint};

use super::MergedExports;

/// Backend of an ingress without backends, which Cilium ignores (`isIngressDummyEndpoint`,
/// `pkg/loadbalancer/reflectors/endpoints/endpoints.go`).
const INGRESS_DUMMY: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(192, 192, 192, 192)), 9999);

/// Protocol of a slice's port that has no protocol (`k8s.io/api/discovery/v1`).
const DEFAULT_PROTOCOL: &str = "TCP";

/// A service, merged from all clusters.
#[derive(Debug, Clone, PartialEq)]
pub struct GlobalService {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Kubernetes name.
    pub name: String,
    /// One member for each cluster that has the service or its endpoint slices, in order of names.
    pub members: Vec<ServiceMember>,
    /// Exports under this name, if there are any.
    pub exports: Option<MergedExports>,
}

/// One cluster's part of a global service: its service, its endpoint slices, and their backends.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceMember {
    /// Cluster that the part comes from.
    pub cluster: ClusterName,
    /// Record in `services/v1`, if there is one. The backends then come from it.
    pub service: Option<Arc<Record>>,
    /// Endpoint slices of the service, in order of names. The backends come from them if there is
    /// no record in `services/v1`.
    pub slices: Vec<Arc<Record>>,
    /// Backends, ordered by address.
    pub backends: Vec<GlobalBackend>,
    /// Cluster id that the shared objects claim.
    pub cluster_id: u32,
}

/// A backend of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalBackend {
    /// Address of the backend.
    pub ip: IpAddr,
    /// Ports without duplicates, ordered by number and protocol.
    pub ports: Vec<BackendPort>,
    /// Hostname of a headless service's pod; empty if there is none.
    pub hostname: String,
    /// Zone of the backend, if known.
    pub zone: Option<BackendZone>,
    /// Node that hosts the backend, from an endpoint slice; empty if unknown.
    pub node_name: String,
    /// Endpoint slices with this address, in order.
    pub slices: Vec<String>,
    /// State, which determines whether the backend accepts connections.
    pub state: BackendState,
}

/// A port of a backend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendPort {
    /// Port number, 0 to 65,535.
    pub port: u16,
    /// `TCP`, `UDP`, `SCTP` …, as in the source.
    pub protocol: String,
    /// Names within the service, in order. An empty name is left out.
    pub names: Vec<String>,
}

impl BackendState {
    /// Returns the state of a slice's endpoint (`Convert`, Cilium's
    /// `pkg/loadbalancer/reflectors/endpoints/endpoints.go`). Missing conditions mean ready,
    /// serving and not terminating. A backend without a slice is active.
    #[must_use]
    pub fn of(endpoint: &SliceEndpoint) -> Self {
        let is_terminating = endpoint.terminating.unwrap_or(false);
        if endpoint.ready.unwrap_or(true) {
            Self::Active
        } else if is_terminating && !endpoint.serving.unwrap_or(true) {
            Self::TerminatingNotServing
        } else if is_terminating {
            Self::Terminating
        } else {
            Self::Maintenance
        }
    }

    /// Returns whether the backend is healthy for an affinity, which means active or terminating
    /// (`SelectBackends`, Cilium's `pkg/clustermesh/loadbalancer/selectbackends.go`).
    #[must_use]
    pub const fn is_healthy(self) -> bool {
        matches!(self, Self::Active | Self::Terminating)
    }
}

/// Records of one cluster that contribute to the service.
#[derive(Debug, Default)]
struct ClusterRecords {
    service: Option<Arc<Record>>,
    slices: Vec<Arc<Record>>,
}

impl GlobalService {
    /// Merges the records that contribute to a service, by `<namespace>/<name>`; `None` if there
    /// are none.
    pub(super) fn merge(service: &str, records: &[Arc<Record>]) -> Option<Self> {
        let (namespace, name) = service.split_once('/')?;
        let (mut clusters, mut exports) = (BTreeMap::<ClusterName, ClusterRecords>::new(), Vec::new());
        for record in records {
            let cluster = &record.key.cluster;
            match record.object.as_deref() {
                Some(Object::Service(_)) => clusters.entry(cluster.clone()).or_default().service = Some(Arc::clone(record)),
                Some(Object::EndpointSlice(_)) => clusters.entry(cluster.clone()).or_default().slices.push(Arc::clone(record)),
                Some(Object::ServiceExport(_)) => exports.push(Arc::clone(record)),
                // no other kind contributes to a service
                _ => {}
            }
        }
        let members = clusters.into_iter().filter_map(|(cluster, one)| ServiceMember::new(cluster, one.service, one.slices));
        let members: Vec<ServiceMember> = members.collect();
        let exports = MergedExports::merge(exports);
        let has_any = !members.is_empty() || exports.is_some();
        has_any.then(|| Self { namespace: namespace.to_owned(), name: name.to_owned(), members, exports })
    }
}

impl ServiceMember {
    /// Creates one cluster's member; `None` if it has neither the service nor a slice of it.
    pub(super) fn new(cluster: ClusterName, service: Option<Arc<Record>>, slices: Vec<Arc<Record>>) -> Option<Self> {
        let decoded_slices: Vec<EndpointSlice> = slices.iter().filter_map(|record| slice_in(record)).collect();
        let (cluster_id, backends) = match (service.as_deref().and_then(service_in), decoded_slices.first()) {
            (Some(service), _) => (service.cluster_id, backends_of_service(service, &decoded_slices)),
            (None, Some(slice)) => (slice.cluster_id, backends_of_slices(&decoded_slices)),
            (None, None) => return None,
        };
        Some(Self { cluster, service, slices, backends, cluster_id })
    }

    /// Returns the service, if the cluster has one in `services/v1`.
    #[must_use]
    pub fn service(&self) -> Option<&Service> {
        self.service.as_deref().and_then(service_in)
    }

    /// Returns whether the cluster's agents use backends of other clusters. Slices are exported
    /// only if the service is global.
    #[must_use]
    pub fn includes_external(&self) -> bool {
        self.service().is_none_or(|service| service.include_external)
    }
}

fn service_in(record: &Record) -> Option<&Service> {
    record.object.as_deref()?.as_service()
}

fn slice_in(record: &Record) -> Option<EndpointSlice> {
    Some(record.object.as_deref()?.as_endpoint_slice()?.decoded())
}

/// Endpoint that has a given address, with its slice.
struct SliceAddress<'a> {
    slice: &'a EndpointSlice,
    endpoint: &'a SliceEndpoint,
}

/// Groups the endpoints of slices by address.
fn by_address(slices: &[EndpointSlice]) -> BTreeMap<IpAddr, Vec<SliceAddress<'_>>> {
    let mut found = BTreeMap::<IpAddr, Vec<SliceAddress<'_>>>::new();
    for slice in slices {
        for endpoint in &slice.endpoints {
            for ip in &endpoint.addresses {
                found.entry(*ip).or_default().push(SliceAddress { slice, endpoint });
            }
        }
    }
    found
}

fn backends_of_service(service: &Service, slices: &[EndpointSlice]) -> Vec<GlobalBackend> {
    let by_ip = by_address(slices);
    let backend = |backend: &Backend| {
        let endpoints = by_ip.get(&backend.ip).map_or(&[][..], Vec::as_slice);
        GlobalBackend {
            ports: merge_ports(backend.ports.iter().map(|port| (port.name.as_str(), port.protocol.as_str(), port.port))),
            hostname: backend.hostname.clone(),
            zone: backend.zone.clone(),
            ..bare_backend(backend.ip, endpoints)
        }
    };
    service.backends.iter().map(backend).collect()
}

/// Returns the backends of a cluster that exports only slices (`endpointslices-only`;
/// `ParseEndpointSliceV1`, Cilium's `pkg/k8s/endpoints.go`).
fn backends_of_slices(slices: &[EndpointSlice]) -> Vec<GlobalBackend> {
    let mut backends = Vec::new();
    for (ip, endpoints) in by_address(slices) {
        let ports = endpoints.iter().flat_map(|one| &one.slice.ports).filter_map(|port| {
            let protocol = if port.protocol.is_empty() { DEFAULT_PROTOCOL } else { &port.protocol };
            // `uint16(*port.Port)`
            let number = u16::try_from(port.port? & i32::from(u16::MAX)).ok()?;
            Some((port.name.as_str(), protocol, number)).filter(|(.., number)| (ip, *number) != INGRESS_DUMMY)
        });
        let zoned = endpoints.iter().map(|one| one.endpoint).find(|endpoint| !endpoint.zone.is_empty());
        let zone = zoned.map(|endpoint| BackendZone { zone: endpoint.zone.clone(), for_zones: endpoint.for_zones.clone() });
        let backend = GlobalBackend { ports: merge_ports(ports), zone, ..bare_backend(ip, &endpoints) };
        if !backend.ports.is_empty() {
            backends.push(backend);
        }
    }
    backends
}

/// Creates a backend with all fields except ports, zone and hostname. If slices disagree about its
/// state, the healthiest one counts.
fn bare_backend(ip: IpAddr, endpoints: &[SliceAddress<'_>]) -> GlobalBackend {
    let mut names: Vec<String> = endpoints.iter().map(|one| one.slice.name.clone()).collect();
    names.sort_unstable();
    names.dedup();
    let node = endpoints.iter().map(|one| &one.endpoint.node_name).find(|name| !name.is_empty());
    GlobalBackend {
        ip,
        ports: Vec::new(),
        hostname: String::new(),
        zone: None,
        node_name: node.cloned().unwrap_or_default(),
        slices: names,
        state: endpoints.iter().map(|one| BackendState::of(one.endpoint)).min().unwrap_or(BackendState::Active),
    }
}

/// Joins ports with the same number and protocol. Their names are sorted.
fn merge_ports<'a>(ports: impl Iterator<Item = (&'a str, &'a str, u16)>) -> Vec<BackendPort> {
    let mut merged = BTreeMap::<(u16, &str), Vec<String>>::new();
    for (name, protocol, port) in ports {
        let names = merged.entry((port, protocol)).or_default();
        if !name.is_empty() && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    let port = |((port, protocol), mut names): ((u16, &str), Vec<String>)| {
        names.sort_unstable();
        BackendPort { port, protocol: protocol.to_owned(), names }
    };
    merged.into_iter().map(port).collect()
}
