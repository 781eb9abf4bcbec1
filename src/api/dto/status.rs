//! Conversion of the state of meshkeep and of each cluster.

use std::time::{Instant, SystemTime};

use crate::dto::reflection::ReflectionStatus;
use crate::dto::status::{
    Cluster, ClusterAge, ClusterConfigStatus, DirectoryStatus, DumpStatus, HistoryStatus, Resource, Status, StatusCounts, StoreStatus,
};
use crate::dto::text::{rfc3339, seconds};
use crate::dto::values::closed::StoreState;
use crate::handle::{self, PersistState};
use crate::handle::{ClusterReading, Handle, Origin, Reading, ResourceReading};
use crate::model::{ClusterConfig, ClusterName, ClusterPhase, ClusterRecord, ClusterStatus, DumpSource, Kind};
use crate::server::ReloadableFiles;

impl Status {
    /// Builds the state of the process. `reading` is `None` while the store loads.
    pub(crate) fn new(handle: &Handle, reading: Option<&Reading>, files: &ReloadableFiles) -> Self {
        let phases = reading.map(Reading::phase_counts).unwrap_or_default();
        let clusters = phases.into_iter().map(|(phase, count)| (phase.api_name().into(), count)).collect();
        let directory = handle.directory();
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            now: rfc3339(SystemTime::now()),
            uptime_seconds: seconds(handle.uptime()),
            loaded: reading.is_some(),
            position: reading.map(|reading| reading.position().to_string()),
            counts: reading.map(StatusCounts::new),
            clusters,
            directory: DirectoryStatus {
                path: handle.cluster_files().directory.display().to_string(),
                readable: directory.readable,
                error: directory.error,
                invalid_files: directory.invalid,
                ignored_clusters: handle.cluster_files().ignored_clusters.iter().map(ToString::to_string).collect(),
                no_clusters: handle.missing_clusters().map(|none| none.reason),
            },
            store: StoreStatus::new(handle),
            history: handle.history_status().map(HistoryStatus::from),
            stale_files: files.states().filter_map(|(name, failure)| Some((name.into(), failure?))).collect(),
            dump: handle.dump().map(DumpStatus::from),
            reflection: handle.reflection().map(ReflectionStatus::from),
        }
    }
}

impl From<&DumpSource> for DumpStatus {
    fn from(dump: &DumpSource) -> Self {
        Self { path: dump.path.clone(), form: dump.form.into(), time: rfc3339(dump.time), time_from: dump.time_from.to_string() }
    }
}

impl StatusCounts {
    fn new(reading: &Reading) -> Self {
        Self {
            entries: reading.entry_count(),
            nodes: reading.object_count(Kind::Node),
            services: reading.object_count(Kind::Service),
            global_services: reading.global_service_count(),
            service_exports: reading.object_count(Kind::ServiceExport),
            endpoint_slices: reading.object_count(Kind::EndpointSlice),
            identities: reading.object_count(Kind::Identity),
            ipcache: reading.object_count(Kind::Ip),
            rejected: reading.rejected_count(),
        }
    }
}

impl From<handle::HistoryStatus> for HistoryStatus {
    fn from(status: handle::HistoryStatus) -> Self {
        Self {
            since: status.since.map(rfc3339),
            bytes: status.bytes,
            segments: status.segment_count as u64,
            versions: status.version_count,
            reach_seconds: status.reach.map(seconds),
            gaps: status.gap_count as u64,
            damaged_segments: status.damaged,
            error: status.failure,
        }
    }
}

impl StoreStatus {
    fn new(handle: &Handle) -> Self {
        let (state, error) = store_state(handle);
        let report = handle.store_report();
        let (set_aside_path, set_aside_reason) = report.set_aside.clone().unzip();
        let (restored_entries, damaged_records) = (report.restored_count, report.damaged_count);
        Self { state: state.into(), error, losses: report.losses, restored_entries, damaged_records, set_aside_path, set_aside_reason }
    }
}

/// Returns the state of the store, and its error. A store that has lost something is never called
/// healthy.
pub(crate) fn store_state(handle: &Handle) -> (StoreState, Option<String>) {
    match handle.persistence() {
        PersistState::Failing { error } => (StoreState::Failing, Some(error)),
        PersistState::Stopped { error } => (StoreState::Stopped, Some(error)),
        PersistState::Healthy if !handle.is_loaded() => (StoreState::Loading, None),
        PersistState::Healthy if !handle.store_report().losses.is_empty() => (StoreState::Lost, None),
        PersistState::Healthy => (StoreState::Healthy, None),
    }
}

impl Cluster {
    /// Converts a cluster for the change stream: the phase is that of the event, everything else is
    /// current.
    pub(crate) fn with_phase(name: &ClusterName, phase: ClusterPhase, reading: &Reading) -> Self {
        let is_local = reading.own_cluster() == Some(name);
        let gone = || ClusterReading {
            name: name.clone(),
            is_local,
            phase: None,
            status: None,
            record: ClusterRecord::default(),
            resources: Vec::new(),
        };
        let newest = reading.cluster(name).unwrap_or_else(gone);
        Self::from(&ClusterReading { phase: phase.phase, ..newest })
    }
}

impl From<&ClusterReading> for Cluster {
    fn from(cluster: &ClusterReading) -> Self {
        let now = Instant::now();
        let status = cluster.status.as_ref();
        let time = |time: fn(&ClusterStatus) -> Option<SystemTime>| status.and_then(time).map(rfc3339);
        let config = status.and_then(|status| status.config.as_ref()).or(cluster.record.config.as_ref());
        let age = cluster.resources.first().map(SourceFacts::from).unwrap_or_default();
        let unknown = || status.into_iter().flat_map(|status| &status.unknown_prefixes);
        let origin = Origin::combine(cluster.resources.iter().map(|resource| resource.source.origin));
        Self {
            name: cluster.name.to_string(),
            local: cluster.is_local.then_some(true),
            cluster_id: config.map(|config| config.id.0).filter(|id| *id != 0),
            phase: cluster.phase.map(Into::into),
            phase_seconds: status.map(|status| seconds(now.saturating_duration_since(status.phase_since))),
            origin: origin.unwrap_or(Origin::NeverRead).into(),
            last_contact: age.last_contact,
            last_heartbeat: age.last_heartbeat,
            age_seconds: age.age_seconds,
            config_retrieved: status.is_some_and(|status| status.config_retrieved),
            config: config.map(ClusterConfigStatus::from),
            etcd_cluster_id: status.and_then(|status| status.etcd_cluster_id).map(|id| id.to_string()),
            endpoint: status.and_then(|status| status.endpoint.clone()),
            resources: cluster.resources.iter().map(|resource| Resource::new(resource, status)).collect(),
            failures: status.map_or(0, |status| status.failure_count),
            last_error: status.and_then(|status| status.last_error.clone()),
            last_error_time: time(|status| status.last_error_time),
            next_retry_seconds: status.and_then(|status| status.next_retry).map(|at| seconds(at.saturating_duration_since(now))),
            certificate_expiry: time(|status| status.certificate_expiry),
            unknown_prefixes: unknown().map(|one| one.prefix.clone()).collect(),
            unknown_keys: unknown().map(|one| (one.prefix.clone(), one.key_count)).collect(),
            meta: None,
        }
    }
}

/// Properties that all sources of one cluster share.
#[derive(Debug, Default)]
struct SourceFacts {
    last_contact: Option<String>,
    last_heartbeat: Option<String>,
    age_seconds: Option<f64>,
}

impl From<&ResourceReading> for SourceFacts {
    fn from(resource: &ResourceReading) -> Self {
        let source = &resource.source;
        Self {
            last_contact: source.last_contact.map(rfc3339),
            last_heartbeat: source.last_heartbeat.map(rfc3339),
            age_seconds: source.age.map(seconds),
        }
    }
}

impl From<&ClusterConfig> for ClusterConfigStatus {
    fn from(config: &ClusterConfig) -> Self {
        Self {
            id: config.id.0,
            synced_canaries: config.synced_canaries,
            cached: config.cached,
            max_connected_clusters: Some(config.max_connected_clusters).filter(|number| *number != 0),
            service_exports_enabled: config.service_exports_enabled,
            endpoint_slices_export_mode: config.endpoint_slices_export_mode.clone(),
        }
    }
}

impl Resource {
    fn new(resource: &ResourceReading, status: Option<&ClusterStatus>) -> Self {
        let known = status.map(|status| status.resource(resource.kind));
        let verification = known.map(|known| &known.verification);
        Self {
            kind: resource.kind.into(),
            entries: resource.entry_count,
            restored: resource.restored_count,
            held: known.map(|known| known.held_count).filter(|count| *count > 0),
            synced: known.is_some_and(|known| known.synced),
            expected: known.and_then(|known| known.expected_count),
            last_event: known.and_then(|known| known.last_event_time).map(rfc3339),
            origin: resource.source.origin.into(),
            revision: resource.source.revision.map(|revision| revision.0),
            verified_at: verification.and_then(|one| one.verified_at).map(rfc3339),
            verified_revision: verification.and_then(|one| one.verified_revision).map(|revision| revision.0),
            keys_compared: verification.filter(|one| one.verified_at.is_some()).map(|one| one.keys_compared),
            counted_at: verification.and_then(|one| one.counted_at).map(rfc3339),
        }
    }
}

impl From<&ClusterReading> for ClusterAge {
    fn from(cluster: &ClusterReading) -> Self {
        let facts = cluster.resources.first().map(SourceFacts::from).unwrap_or_default();
        Self {
            cluster: cluster.name.to_string(),
            phase: cluster.phase.map(Into::into),
            age_seconds: facts.age_seconds,
            last_contact: facts.last_contact,
            last_heartbeat: facts.last_heartbeat,
        }
    }
}

/// Returns the reading of every cluster, in order.
pub(crate) fn readings(reading: &Reading) -> impl Iterator<Item = ClusterReading> {
    reading.cluster_names().into_iter().filter_map(|name| reading.cluster(&name))
}
