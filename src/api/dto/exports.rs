//! Conversion of service exports and endpoint slices, for lists, single answers and streams.

use crate::dto::objects::exports::{EndpointSlice, ExportPort, ServiceExport, SliceEndpoint, SlicePort};
use crate::dto::objects::last_change::LastChange;
use crate::dto::text::{non_empty, rfc3339};
use crate::handle::Reading;
use crate::model::{self, EntryKey, Record};

impl ServiceExport {
    pub(super) fn new(key: &EntryKey, export: &model::ServiceExport, change: LastChange) -> Self {
        Self {
            cluster: key.cluster.to_string(),
            namespace: export.namespace.clone(),
            name: export.name.clone(),
            export_creation_timestamp: rfc3339(export.created),
            service_type: export.service_type.clone(),
            ports: export.ports.iter().map(ExportPort::from).collect(),
            session_affinity: non_empty(&export.session_affinity),
            session_affinity_timeout_seconds: export.session_affinity_timeout_seconds,
            ip_families: export.ip_families.clone(),
            internal_traffic_policy: non_empty(&export.internal_traffic_policy).map(Into::into),
            traffic_distribution: non_empty(&export.traffic_distribution),
            labels: export.labels.clone(),
            annotations: export.annotations.clone(),
            change,
            meta: None,
        }
    }

    /// Converts the export of a record. `None` if the record has no valid object.
    pub(crate) fn from_record(record: &Record, reading: &Reading) -> Option<Self> {
        Some(Self::new(&record.key, record.object.as_deref()?.as_service_export()?, LastChange::of_record(reading, record)))
    }
}

impl From<&model::ExportPort> for ExportPort {
    fn from(port: &model::ExportPort) -> Self {
        Self { name: port.name.clone(), protocol: port.protocol.clone(), app_protocol: non_empty(&port.app_protocol), port: port.port }
    }
}

impl EndpointSlice {
    pub(super) fn new(key: &EntryKey, slice: &model::EndpointSlice, change: LastChange) -> Self {
        let port = |port: &model::SlicePort| SlicePort { name: port.name.clone(), protocol: non_empty(&port.protocol), port: port.port };
        Self {
            cluster: key.cluster.to_string(),
            cluster_id: Some(slice.cluster_id).filter(|id| *id != 0),
            namespace: slice.namespace.clone(),
            name: slice.name.clone(),
            address_type: slice.address_type.clone(),
            endpoints: slice.endpoints.iter().map(SliceEndpoint::from).collect(),
            ports: slice.ports.iter().map(port).collect(),
            labels: slice.labels.clone(),
            annotations: slice.annotations.clone(),
            change,
            meta: None,
        }
    }

    /// Converts the slice of a record. `None` if the record has no valid object.
    pub(crate) fn from_record(record: &Record, reading: &Reading) -> Option<Self> {
        Some(Self::new(&record.key, &record.object.as_deref()?.as_endpoint_slice()?.decoded(), LastChange::of_record(reading, record)))
    }
}

impl From<&model::SliceEndpoint> for SliceEndpoint {
    fn from(endpoint: &model::SliceEndpoint) -> Self {
        Self {
            addresses: endpoint.addresses.iter().map(ToString::to_string).collect(),
            ready: endpoint.ready,
            serving: endpoint.serving,
            terminating: endpoint.terminating,
            node_name: non_empty(&endpoint.node_name),
            zone: non_empty(&endpoint.zone),
            for_zones: endpoint.for_zones.clone(),
            deprecated_topology: endpoint.topology.clone(),
        }
    }
}
