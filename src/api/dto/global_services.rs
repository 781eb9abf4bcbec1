//! Global services, as lists and single answers show them.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::exports::{ExportPort, ServiceExport};
use super::meta::{ItemMeta, SourceAge, origin_name};
use super::non_empty;
use super::objects::Frontend;
use crate::handle::{self, MergedExports, Origin, Reading, Selected, ServiceShare, SourceMeta};
use crate::model::{ClusterName, Kind};

/// A service as all clusters that share it have it together.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GlobalService {
    /// Kubernetes namespace.
    namespace: String,
    /// Kubernetes name.
    name: String,
    /// One for each cluster that shares it, in order of names.
    clusters: Vec<ServiceCluster>,
    /// The backends of all these clusters, by cluster and address; with `affinity=` only those that would be used. The same address in
    /// two clusters is two backends.
    backends: Vec<GlobalBackend>,
    /// What clusters export under this name (MCS), merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    exports: Option<GlobalExports>,
    /// Where the exports disagree, what Cilium reports first; the oldest export is right.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    conflicts: Vec<ExportConflict>,
    /// Only with `affinity=`: which backends would be used, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    selection: Option<BackendSelection>,
    /// Only with `affinity=`: the rule that decided, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// Only with a single service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// What one cluster has of a global service.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceCluster {
    /// The cluster.
    cluster: String,
    /// The id of that cluster; left out where it gives none.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    cluster_id: Option<u32>,
    /// Where its backends come from: `service`, or `endpointSlice` where it exports slices alone.
    source: &'static str,
    /// Whether it uses other clusters' backends.
    include_external: bool,
    /// How many backends it shares.
    backend_count: usize,
    /// The addresses that the service has in it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    frontends: Vec<Frontend>,
    /// Labels of its service.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    labels: BTreeMap<String, String>,
    /// How current what it shares is.
    #[serde(flatten)]
    age: SourceAge,
}

/// A backend of one cluster.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GlobalBackend {
    /// Its address.
    ip: String,
    /// Its cluster.
    cluster: String,
    /// `live` or `restored`, as its cluster's data is.
    origin: &'static str,
    /// `true` where its cluster's source has lost it and it is kept until the source is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    stale: Option<bool>,
    /// The hostname of a headless service's pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    /// Where it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    /// The zones that should use it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    hint_zones: Vec<String>,
    /// The node that hosts it, where an endpoint slice says.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<String>,
    /// Its ports, by number and protocol; agents know no backend without any.
    ports: Vec<GlobalPort>,
    /// Whether it takes connections, where an endpoint slice says: `active`, `terminating`, `terminatingNotServing` or `maintenance`;
    /// without a slice `active`.
    state: &'static str,
    /// The endpoint slices of its cluster that have it too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    endpoint_slices: Vec<String>,
}

/// A port of a backend: one for each number and protocol.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GlobalPort {
    /// Its name within the service; of several the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// All its names, in order, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    names: Vec<String>,
    /// `TCP`, `UDP`, `SCTP` …, as the source says.
    protocol: String,
    /// The number.
    port: u16,
}

/// What clusters export under one name, merged as Cilium's operator merges it: the oldest export is right.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GlobalExports {
    /// The clusters that export it, the one that is right first.
    clusters: Vec<String>,
    /// When the oldest export was created.
    export_creation_timestamp: String,
    /// `ClusterSetIP` or `Headless`.
    #[serde(rename = "type")]
    service_type: String,
    /// The ports of all exports, those of the oldest first; a port that conflicts with an older one is left out.
    ports: Vec<ExportPort>,
    /// `ClientIP` or `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_affinity: Option<String>,
    /// How long a client stays with its backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_affinity_timeout_seconds: Option<u32>,
    /// The IP families that the exports have in common.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    ip_families: Vec<String>,
    /// `Cluster` or `Local`.
    #[serde(skip_serializing_if = "Option::is_none")]
    internal_traffic_policy: Option<String>,
    /// `PreferClose` and the like.
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic_distribution: Option<String>,
    /// Labels of the export.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    labels: BTreeMap<String, String>,
    /// Annotations of the export.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    annotations: BTreeMap<String, String>,
}

/// Something that exports disagree about.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExportConflict {
    /// Cilium's reason, as in the condition `Conflict` of a `ServiceExport`: `PortConflict`, `TypeConflict` and so on.
    reason: &'static str,
    /// The clusters that disagree with older exports.
    clusters: Vec<String>,
    /// What holds.
    message: String,
}

/// Which backends the agents of a cluster would use.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BackendSelection {
    /// The cluster whose agents choose.
    from: String,
    /// The affinity: `none`, `local` or `remote`.
    affinity: &'static str,
    /// The rule that decided: `noLocalService`, `notGlobal`, `noAffinity`, `localActive`, `localInactive`,
    /// `localInactiveRemoteUnhealthy`, `remoteHealthy`, `remoteUnhealthy` or `noneHealthy`.
    rule: &'static str,
    /// Whether the cluster's own backends would be used.
    local: bool,
    /// Whether other clusters' backends would be used.
    remote: bool,
    /// `false` where the services of the cluster are not mirrored: its service is taken for global, and for one without backends.
    local_known: bool,
}

/// How backends are to be chosen.
#[derive(Debug, Clone)]
pub(crate) struct Chooser {
    pub(crate) from: ClusterName,
    pub(crate) affinity: handle::Affinity,
}

impl GlobalService {
    /// A service as a snapshot has it, with all backends or with those that would be used.
    pub(crate) fn new(reading: &Reading, service: &handle::GlobalService, chooser: Option<&Chooser>) -> Self {
        let selected = chooser.map(|chooser| (chooser, reading.select_backends(service, &chooser.from, chooser.affinity)));
        let shares = selected.as_ref().map_or(&service.shares, |(_, selected)| &selected.shares);
        Self {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            clusters: service.shares.iter().map(|share| ServiceCluster::new(reading, share)).collect(),
            backends: shares.iter().flat_map(|share| backends(reading, share)).collect(),
            exports: service.exports.as_ref().and_then(GlobalExports::new),
            conflicts: service.exports.iter().flat_map(|exports| &exports.conflicts).map(ExportConflict::from).collect(),
            selection: selected.as_ref().map(|(chooser, selected)| BackendSelection::new(chooser, selected)),
            reason: selected.as_ref().map(|(_, selected)| selected.selection.rule.text()),
            meta: None,
        }
    }
}

/// Where a service comes from: one for each cluster and kind that has a share in it.
pub(crate) fn sources(reading: &Reading, service: &handle::GlobalService) -> Vec<SourceMeta> {
    let of_services = service.shares.iter().filter(|share| share.service.is_some()).map(|share| (&share.cluster, Kind::Service));
    let of_slices = service.shares.iter().filter(|share| !share.slices.is_empty()).map(|share| (&share.cluster, Kind::EndpointSlice));
    let exports = service.exports.iter().flat_map(|exports| &exports.exports).map(|record| (&record.key.cluster, Kind::ServiceExport));
    of_services.chain(of_slices).chain(exports).map(|(cluster, kind)| reading.source(cluster, kind)).collect()
}

/// The age of one cluster's share: that of what its backends come from.
fn source_of(reading: &Reading, share: &ServiceShare) -> SourceMeta {
    let of_slices = || {
        let sources = share.slices.iter().map(|record| reading.source_of(record));
        // of several the one that is least certain speaks for all
        sources.min_by_key(|source| (source.origin, !source.held))
    };
    let of_service = share.service.as_ref().map(|record| reading.source_of(record));
    of_service.or_else(of_slices).unwrap_or_else(|| reading.source(&share.cluster, Kind::Service))
}

fn backends(reading: &Reading, share: &ServiceShare) -> Vec<GlobalBackend> {
    let source = source_of(reading, share);
    let origin = source.origin;
    share.backends.iter().map(|backend| GlobalBackend::new(share, backend, origin, source.held)).collect()
}

impl ServiceCluster {
    fn new(reading: &Reading, share: &ServiceShare) -> Self {
        let service = share.service();
        Self {
            cluster: share.cluster.to_string(),
            cluster_id: Some(share.cluster_id).filter(|id| *id != 0),
            source: if service.is_some() { Kind::Service.api_name() } else { Kind::EndpointSlice.api_name() },
            include_external: share.includes_external(),
            backend_count: share.backends.len(),
            frontends: service.map(|service| service.frontends.iter().map(Frontend::from).collect()).unwrap_or_default(),
            labels: service.map(|service| service.labels.clone()).unwrap_or_default(),
            age: SourceAge::from(&source_of(reading, share)),
        }
    }
}

impl GlobalBackend {
    fn new(share: &ServiceShare, backend: &handle::GlobalBackend, origin: Origin, held: bool) -> Self {
        let port = |port: &handle::BackendPort| GlobalPort {
            name: port.names.first().cloned(),
            names: if port.names.len() > 1 { port.names.clone() } else { Vec::new() },
            protocol: port.protocol.clone(),
            port: port.port,
        };
        Self {
            ip: backend.ip.to_string(),
            cluster: share.cluster.to_string(),
            origin: origin_name(origin),
            stale: held.then_some(true),
            hostname: non_empty(&backend.hostname),
            zone: backend.zone.as_ref().map(|zone| zone.zone.clone()),
            hint_zones: backend.zone.as_ref().map(|zone| zone.for_zones.clone()).unwrap_or_default(),
            node_name: non_empty(&backend.node_name),
            ports: backend.ports.iter().map(port).collect(),
            state: backend.state.api_name(),
            endpoint_slices: backend.slices.clone(),
        }
    }
}

impl GlobalExports {
    fn new(exports: &MergedExports) -> Option<Self> {
        let oldest = ServiceExport::of(exports.exports.first()?)?;
        Some(Self {
            clusters: exports.exports.iter().map(|record| record.key.cluster.to_string()).collect(),
            export_creation_timestamp: oldest.export_creation_timestamp,
            service_type: oldest.service_type,
            ports: exports.ports.iter().map(ExportPort::from).collect(),
            session_affinity: oldest.session_affinity,
            session_affinity_timeout_seconds: oldest.session_affinity_timeout_seconds,
            ip_families: exports.ip_families.clone(),
            internal_traffic_policy: oldest.internal_traffic_policy,
            traffic_distribution: oldest.traffic_distribution,
            labels: oldest.labels,
            annotations: oldest.annotations,
        })
    }
}

impl From<&handle::ExportConflict> for ExportConflict {
    fn from(conflict: &handle::ExportConflict) -> Self {
        let clusters = conflict.clusters.iter().map(ToString::to_string).collect();
        Self { reason: conflict.reason, clusters, message: conflict.message.clone() }
    }
}

impl BackendSelection {
    fn new(chooser: &Chooser, selected: &Selected) -> Self {
        Self {
            from: chooser.from.to_string(),
            affinity: chooser.affinity.api_name(),
            rule: selected.selection.rule.api_name(),
            local: selected.selection.local,
            remote: selected.selection.remote,
            local_known: selected.is_local_known,
        }
    }
}
