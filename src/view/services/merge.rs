//! How the shares of several clusters become one service.
//!
//! The rules are those of `ClusterServiceToBackendParams` and of the writer behind it (Cilium's
//! `pkg/clustermesh/loadbalancer/service_merger.go`): the backends of a service are kept for each cluster, so an update replaces, and a delete
//! removes, all of one cluster and touches no other; the same address in two clusters is two backends.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::model::{Backend, BackendZone, ClusterName, EndpointSlice, Object, Record, Service, SliceEndpoint};

use super::MergedExports;

/// What stands where an ingress has no backend, and is none (`isIngressDummyEndpoint`, Cilium's
/// `pkg/loadbalancer/reflectors/endpoints/endpoints.go`).
const INGRESS_DUMMY: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(192, 192, 192, 192)), 9999);

/// The protocol of a slice's port that gives none (`k8s.io/api/discovery/v1`).
const DEFAULT_PROTOCOL: &str = "TCP";

/// A service as all clusters together have it.
#[derive(Debug, Clone, PartialEq)]
pub struct GlobalService {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Kubernetes name.
    pub name: String,
    /// One for each cluster that has backends to share, in order of names.
    pub shares: Vec<ServiceShare>,
    /// What clusters export under this name, where any does.
    pub exports: Option<MergedExports>,
}

/// What one cluster has of a service.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceShare {
    /// The cluster.
    pub cluster: ClusterName,
    /// Its record in `services/v1`, where it has one: where the backends come from.
    pub service: Option<Arc<Record>>,
    /// Its slices of the service, in order of names: where the backends come from without one.
    pub slices: Vec<Arc<Record>>,
    /// Ordered by address.
    pub backends: Vec<GlobalBackend>,
    /// The id that the cluster claims in what it shares.
    pub cluster_id: u32,
}

/// A backend of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalBackend {
    /// Its address.
    pub ip: IpAddr,
    /// Ordered by number and protocol, which are different for each.
    pub ports: Vec<BackendPort>,
    /// The hostname of a headless service's pod; empty if there is none.
    pub hostname: String,
    /// Where it runs, where known.
    pub zone: Option<BackendZone>,
    /// The node that hosts it, as a slice says; empty if none does.
    pub node_name: String,
    /// The slices that have it too, in order.
    pub slices: Vec<String>,
    /// Whether it takes connections.
    pub state: BackendState,
}

/// A port of a backend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendPort {
    /// 0 to 65,535.
    pub port: u16,
    /// `TCP`, `UDP`, `SCTP` …, as the source says.
    pub protocol: String,
    /// Its names within the service, in order; the empty one is none.
    pub names: Vec<String>,
}

/// Whether a backend takes connections, as an endpoint slice says (`Convert`, Cilium's
/// `pkg/loadbalancer/reflectors/endpoints/endpoints.go`). What `services/v1` alone has is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackendState {
    /// It does.
    Active,
    /// It is being ended, and takes new ones only where nothing else does.
    Terminating,
    /// It is being ended and takes none.
    TerminatingNotServing,
    /// It takes none for now.
    Maintenance,
}

impl BackendState {
    /// The state of a slice's endpoint. A condition that is not given counts as ready, serving and not terminating.
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

    /// Whether it counts as healthy where an affinity is decided (`SelectBackends`, Cilium's
    /// `pkg/clustermesh/loadbalancer/selectbackends.go`): active or terminating.
    #[must_use]
    pub const fn is_healthy(self) -> bool {
        match self {
            Self::Active | Self::Terminating => true,
            Self::TerminatingNotServing | Self::Maintenance => false,
        }
    }

    /// The name that the API uses.
    #[must_use]
    pub const fn api_name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Terminating => "terminating",
            Self::TerminatingNotServing => "terminatingNotServing",
            Self::Maintenance => "maintenance",
        }
    }
}

/// What one cluster brings, while records are sorted.
#[derive(Debug, Default)]
struct Shared {
    service: Option<Arc<Record>>,
    slices: Vec<Arc<Record>>,
}

impl GlobalService {
    /// Merges records that have a share in a service, by `<namespace>/<name>`; `None` where there are none.
    pub(super) fn merge(service: &str, records: &[Arc<Record>]) -> Option<Self> {
        let (namespace, name) = service.split_once('/')?;
        let (mut clusters, mut exports) = (BTreeMap::<ClusterName, Shared>::new(), Vec::new());
        for record in records {
            let cluster = &record.key.cluster;
            match record.object.as_deref() {
                Some(Object::Service(_)) => clusters.entry(cluster.clone()).or_default().service = Some(Arc::clone(record)),
                Some(Object::EndpointSlice(_)) => clusters.entry(cluster.clone()).or_default().slices.push(Arc::clone(record)),
                Some(Object::ServiceExport(_)) => exports.push(Arc::clone(record)),
                // nothing else has a share in one
                _ => {}
            }
        }
        let shares = clusters.into_iter().filter_map(|(cluster, one)| ServiceShare::new(cluster, one.service, one.slices));
        let shares: Vec<ServiceShare> = shares.collect();
        let exports = MergedExports::of(exports);
        let has_any = !shares.is_empty() || exports.is_some();
        has_any.then(|| Self { namespace: namespace.to_owned(), name: name.to_owned(), shares, exports })
    }
}

impl ServiceShare {
    /// One cluster's share; `None` where it has neither a service nor a slice of it.
    pub(super) fn new(cluster: ClusterName, service: Option<Arc<Record>>, slices: Vec<Arc<Record>>) -> Option<Self> {
        let of_slices: Vec<EndpointSlice> = slices.iter().filter_map(|record| slice_in(record)).collect();
        let (cluster_id, backends) = match (service.as_deref().and_then(service_in), of_slices.first()) {
            (Some(service), _) => (service.cluster_id, backends_of_service(service, &of_slices)),
            (None, Some(slice)) => (slice.cluster_id, backends_of_slices(&of_slices)),
            (None, None) => return None,
        };
        Some(Self { cluster, service, slices, backends, cluster_id })
    }

    /// The service, where the cluster has one in `services/v1`.
    #[must_use]
    pub fn service(&self) -> Option<&Service> {
        self.service.as_deref().and_then(service_in)
    }

    /// Whether the cluster's agents use other clusters' backends. Slices of a service are only exported where it is global.
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

/// What a slice says of an address.
struct Sliced<'a> {
    slice: &'a EndpointSlice,
    endpoint: &'a SliceEndpoint,
}

/// Every address in some slices of one service.
fn by_address(slices: &[EndpointSlice]) -> BTreeMap<IpAddr, Vec<Sliced<'_>>> {
    let mut found = BTreeMap::<IpAddr, Vec<Sliced<'_>>>::new();
    for slice in slices {
        for endpoint in &slice.endpoints {
            for ip in &endpoint.addresses {
                found.entry(*ip).or_default().push(Sliced { slice, endpoint });
            }
        }
    }
    found
}

fn backends_of_service(service: &Service, slices: &[EndpointSlice]) -> Vec<GlobalBackend> {
    let sliced = by_address(slices);
    let backend = |backend: &Backend| {
        let sliced = sliced.get(&backend.ip).map_or(&[][..], Vec::as_slice);
        GlobalBackend {
            ports: merge_ports(backend.ports.iter().map(|port| (port.name.as_str(), port.protocol.as_str(), port.port))),
            hostname: backend.hostname.clone(),
            zone: backend.zone.clone(),
            ..bare_backend(backend.ip, sliced)
        }
    };
    service.backends.iter().map(backend).collect()
}

/// The backends of a cluster that exports slices alone (`endpointslices-only`; `ParseEndpointSliceV1`, Cilium's `pkg/k8s/endpoints.go`).
fn backends_of_slices(slices: &[EndpointSlice]) -> Vec<GlobalBackend> {
    let mut backends = Vec::new();
    for (ip, sliced) in by_address(slices) {
        let ports = sliced.iter().flat_map(|one| &one.slice.ports).filter_map(|port| {
            let protocol = if port.protocol.is_empty() { DEFAULT_PROTOCOL } else { &port.protocol };
            // `uint16(*port.Port)`
            let number = u16::try_from(port.port? & i32::from(u16::MAX)).ok()?;
            Some((port.name.as_str(), protocol, number)).filter(|(.., number)| (ip, *number) != INGRESS_DUMMY)
        });
        let zoned = sliced.iter().map(|one| one.endpoint).find(|endpoint| !endpoint.zone.is_empty());
        let zone = zoned.map(|endpoint| BackendZone { zone: endpoint.zone.clone(), for_zones: endpoint.for_zones.clone() });
        let backend = GlobalBackend { ports: merge_ports(ports), zone, ..bare_backend(ip, &sliced) };
        if !backend.ports.is_empty() {
            backends.push(backend);
        }
    }
    backends
}

/// What slices say of a backend beside its ports and its zone. Of several the one that takes connections is believed.
fn bare_backend(ip: IpAddr, sliced: &[Sliced<'_>]) -> GlobalBackend {
    let mut names: Vec<String> = sliced.iter().map(|one| one.slice.name.clone()).collect();
    names.sort_unstable();
    names.dedup();
    let node = sliced.iter().map(|one| &one.endpoint.node_name).find(|name| !name.is_empty());
    GlobalBackend {
        ip,
        ports: Vec::new(),
        hostname: String::new(),
        zone: None,
        node_name: node.cloned().unwrap_or_default(),
        slices: names,
        state: sliced.iter().map(|one| BackendState::of(one.endpoint)).min().unwrap_or(BackendState::Active),
    }
}

/// Ports of one number and protocol are one, with all their names in order.
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
