//! Conversion of global services, for lists and single answers.

use std::cmp::Reverse;

use super::meta::SourceCache;
use crate::dto::meta::SourceAge;
use crate::dto::objects::Frontend;
use crate::dto::objects::exports::{ExportPort, ServiceExport};
use crate::dto::objects::global_services::{
    BackendSelection, ExportConflict, GlobalBackend, GlobalExports, GlobalPort, GlobalService, ServiceCluster, TooLarge,
};
use crate::dto::objects::last_change::LastChange;
use crate::dto::text::non_empty;
use crate::dto::values::closed::BackendSource;
use crate::handle::{self, LargeService, MergedExports, Origin, Reading, SelectedBackends, ServiceEntry, ServiceMember, SourceMeta};
use crate::model::{ClusterName, Kind, Scope};

/// Cluster and affinity for which backends are selected.
#[derive(Debug, Clone)]
pub(crate) struct BackendSelector {
    pub(crate) from: ClusterName,
    pub(crate) affinity: handle::Affinity,
}

impl GlobalService {
    /// Converts a merged service, with all backends or with those that `selector` selects.
    pub(crate) fn new(
        reading: &Reading,
        service: &handle::GlobalService,
        selector: Option<&BackendSelector>,
        sources: &mut SourceCache,
    ) -> Self {
        let selected = selector.map(|selector| (selector, reading.select_backends(service, &selector.from, selector.affinity)));
        let members = selected.as_ref().map_or(&service.members, |(_, selected)| &selected.members);
        Self {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            clusters: service.members.iter().map(|member| ServiceCluster::new(reading, member, sources)).collect(),
            backends: members.iter().flat_map(|member| backends(reading, member, sources)).collect(),
            exports: service.exports.as_ref().and_then(GlobalExports::new),
            conflicts: service.exports.iter().flat_map(|exports| &exports.conflicts).map(ExportConflict::from).collect(),
            selection: selected.as_ref().map(|(selector, selected)| BackendSelection::new(selector, selected)),
            reason: selected.as_ref().map(|(_, selected)| selected.selection.rule.text().into()),
            too_large: None,
            meta: None,
        }
    }

    /// Converts a service, merged or too large to be merged.
    pub(crate) fn from_entry(
        reading: &Reading,
        entry: &ServiceEntry,
        selector: Option<&BackendSelector>,
        sources: &mut SourceCache,
    ) -> Self {
        match entry {
            ServiceEntry::Merged(service, _) => Self::new(reading, service, selector, sources),
            ServiceEntry::TooLarge(service) => Self::from(service),
        }
    }
}

impl From<&LargeService> for GlobalService {
    fn from(service: &LargeService) -> Self {
        let LargeService { cluster, key, bytes, bytes_max, exports, .. } = service;
        let reason = format!(
            "the decoded endpoint slices of all clusters need {bytes} bytes, most of them for {cluster}, and the limit for all decoded values is {bytes_max} (--decoded-max-bytes)"
        );
        let too_large = TooLarge { cluster: cluster.to_string(), key: key.to_string(), bytes: *bytes, bytes_max: *bytes_max, reason };
        Self {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            clusters: Vec::new(),
            backends: Vec::new(),
            exports: exports.as_ref().and_then(GlobalExports::new),
            conflicts: exports.iter().flat_map(|exports| &exports.conflicts).map(ExportConflict::from).collect(),
            selection: None,
            reason: None,
            too_large: Some(too_large),
            meta: None,
        }
    }
}

/// Returns the sources of a service: one for each cluster and kind that is part of it.
pub(crate) fn sources(reading: &Reading, entry: &ServiceEntry) -> Vec<SourceMeta> {
    let exports = entry.exports().into_iter().flat_map(|exports| &exports.exports);
    let exports = exports.map(|record| (&record.key.cluster, Kind::ServiceExport));
    let read = |(cluster, kind): (&ClusterName, Kind)| reading.source(cluster, kind);
    match entry {
        ServiceEntry::Merged(service, _) => {
            let of_services =
                service.members.iter().filter(|member| member.service.is_some()).map(|member| (&member.cluster, Kind::Service));
            let of_slices = service.members.iter().filter(|member| !member.slices.is_empty());
            let of_slices = of_slices.map(|member| (&member.cluster, Kind::EndpointSlice));
            of_services.chain(of_slices).chain(exports).map(read).collect()
        }
        ServiceEntry::TooLarge(service) => {
            service.clusters.iter().map(|cluster| (cluster, Kind::EndpointSlice)).chain(exports).map(read).collect()
        }
    }
}

/// Returns source and age of one cluster's backends.
fn source_of(reading: &Reading, member: &ServiceMember, sources: &mut SourceCache) -> (SourceMeta, SourceAge) {
    if let Some(record) = &member.service {
        return sources.source_of(reading, record);
    }
    let of_slices = member.slices.iter().map(|record| sources.source_of(reading, record));
    // of several slices, the one with the least certain state decides
    let of_slices = of_slices.min_by_key(|(source, _)| Reverse((source.origin, source.held)));
    let scope = || Scope { cluster: member.cluster.clone(), kind: Kind::Service };
    of_slices.unwrap_or_else(|| sources.source(reading, scope()).clone())
}

/// Returns the time of the last change of a cluster's service or, without one, of its slices.
fn last_change(reading: &Reading, member: &ServiceMember) -> LastChange {
    let newest = member.service.iter().chain(&member.slices).max_by_key(|record| record.last_sequence);
    newest.map(|record| LastChange::of_record(reading, record)).unwrap_or_default()
}

fn backends(reading: &Reading, member: &ServiceMember, sources: &mut SourceCache) -> Vec<GlobalBackend> {
    let (source, _) = source_of(reading, member, sources);
    let origin = source.origin;
    member.backends.iter().map(|backend| GlobalBackend::new(member, backend, origin, source.held)).collect()
}

impl ServiceCluster {
    fn new(reading: &Reading, member: &ServiceMember, sources: &mut SourceCache) -> Self {
        let service = member.service();
        Self {
            cluster: member.cluster.to_string(),
            cluster_id: Some(member.cluster_id).filter(|id| *id != 0),
            source: if service.is_some() { BackendSource::Service } else { BackendSource::EndpointSlice }.into(),
            include_external: member.includes_external(),
            backend_count: member.backends.len(),
            frontends: service.map(|service| service.frontends.iter().map(Frontend::from).collect()).unwrap_or_default(),
            labels: service.map(|service| service.labels.clone()).unwrap_or_default(),
            change: last_change(reading, member),
            age: source_of(reading, member, sources).1,
        }
    }
}

impl GlobalBackend {
    fn new(member: &ServiceMember, backend: &handle::GlobalBackend, origin: Origin, held: bool) -> Self {
        let port = |port: &handle::BackendPort| GlobalPort {
            name: port.names.first().cloned(),
            names: if port.names.len() > 1 { port.names.clone() } else { Vec::new() },
            protocol: port.protocol.clone(),
            port: port.port,
        };
        Self {
            ip: backend.ip.to_string(),
            cluster: member.cluster.to_string(),
            origin: origin.into(),
            stale: held.then_some(true),
            hostname: non_empty(&backend.hostname),
            zone: backend.zone.as_ref().map(|zone| zone.zone.clone()),
            hint_zones: backend.zone.as_ref().map(|zone| zone.for_zones.clone()).unwrap_or_default(),
            node_name: non_empty(&backend.node_name),
            ports: backend.ports.iter().map(port).collect(),
            state: backend.state.into(),
            endpoint_slices: backend.slices.clone(),
        }
    }
}

impl GlobalExports {
    fn new(exports: &MergedExports) -> Option<Self> {
        let record = exports.exports.first()?;
        let oldest = ServiceExport::new(&record.key, record.object.as_deref()?.as_service_export()?, LastChange::default());
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
        Self { reason: conflict.reason.into(), clusters, message: conflict.message.clone() }
    }
}

impl BackendSelection {
    fn new(selector: &BackendSelector, selected: &SelectedBackends) -> Self {
        Self {
            from: selector.from.to_string(),
            affinity: selector.affinity.into(),
            rule: selected.selection.rule.into(),
            local: selected.selection.local,
            remote: selected.selection.remote,
            local_known: selected.is_local_known,
        }
    }
}
