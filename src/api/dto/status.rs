//! What meshkeep says of itself and of each cluster.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use serde::Serialize;
use utoipa::ToSchema;

use super::meta::{ItemMeta, origin_name};
use super::reflection::ReflectionStatus;
use super::{rfc3339, seconds};
use crate::api::kept::KeptFiles;
use crate::handle::PersistState;
use crate::handle::{ClusterReading, Handle, Origin, Reading, ResourceReading};
use crate::model::{ClusterConfig, ClusterName, ClusterPhase, ClusterRecord, ClusterStatus, Phase};

/// The process as a whole.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    /// The version of meshkeep.
    version: &'static str,
    /// How long it has been running.
    uptime_seconds: f64,
    /// Whether everything of the store is in memory; until then only lookups and single things are answered, and lists answer 503.
    loaded: bool,
    /// The newest position; left out while loading.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<String>,
    /// How much is mirrored; left out while loading.
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<StatusCounts>,
    /// How many clusters are in each phase.
    clusters: BTreeMap<&'static str, u64>,
    /// The config directory.
    directory: DirectoryStatus,
    /// How storing goes.
    store: StoreStatus,
    /// `token file` or `TLS certificate`, where it has changed and cannot be used, and why: what was read before stays in force.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    stale_files: BTreeMap<&'static str, String>,
    /// How writing into another etcd goes; left out unless this is `meshkeep reflect`, and while it loads.
    #[serde(skip_serializing_if = "Option::is_none")]
    reflection: Option<ReflectionStatus>,
}

/// How much is mirrored.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusCounts {
    /// Mirrored keys, usable or not.
    entries: u64,
    /// Usable nodes.
    nodes: u64,
    /// Usable services.
    services: u64,
    /// Usable service exports.
    service_exports: u64,
    /// Usable endpoint slices.
    endpoint_slices: u64,
    /// Usable identities.
    identities: u64,
    /// Usable ipcache entries.
    ipcache: u64,
    /// Keys whose newest bytes could not be used.
    rejected: u64,
}

/// What the config directory says.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DirectoryStatus {
    /// Whether the last scan could read it.
    readable: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Files that were refused, and why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    invalid_files: BTreeMap<String, String>,
}

/// How storing goes.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoreStatus {
    /// `loading`, `healthy`, `recovered` (storing works, but what was stored before the start is not all there), `failing` (tried again;
    /// what comes meanwhile is in memory or in the log alone) or `stopped` (nothing is stored for now).
    state: &'static str,
    /// What the store said.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// What of the store was lost at the start, in words; it is read from the remote clusters again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    losses: Vec<String>,
    /// How many keys were restored at the start.
    restored_entries: u64,
    /// How many stored records could not be read and are fetched again.
    damaged_records: u64,
    /// Where a store that could not be used was put.
    #[serde(skip_serializing_if = "Option::is_none")]
    set_aside_path: Option<String>,
    /// Why it could not be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    set_aside_reason: Option<String>,
}

/// One cluster.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cluster {
    /// Its name.
    name: String,
    /// `true` for the own cluster, which is mirrored with `--local-etcd`; left out for the remote ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<bool>,
    /// Its id in the mesh, where known.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    cluster_id: Option<u32>,
    /// Where its connection is in its life: `waitingForFiles`, `connecting`, `readingConfig`, `waitingForCanary`, `listing`, `live`,
    /// `sourceLost`, `backingOff` or `draining`; left out where the stream tells that it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'static str>,
    /// How long it has been there.
    #[serde(skip_serializing_if = "Option::is_none")]
    phase_seconds: Option<f64>,
    /// `live`, or `restored` while anything of it is unconfirmed.
    origin: &'static str,
    /// When its source last said anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_contact: Option<String>,
    /// How long ago that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_seconds: Option<f64>,
    /// Whether its configuration was read over the present connection.
    config_retrieved: bool,
    /// The configuration in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<ClusterConfigStatus>,
    /// The id of the etcd behind it, in hexadecimal.
    #[serde(rename = "etcdClusterID", skip_serializing_if = "Option::is_none")]
    etcd_cluster_id: Option<String>,
    /// The endpoint of the present or last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    /// One for each kind.
    resources: Vec<Resource>,
    /// How many attempts have failed since meshkeep started.
    failures: u64,
    /// Why the last attempt failed, or what is being waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// When that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error_time: Option<String>,
    /// In how many seconds the next attempt starts, while backing off.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_retry_seconds: Option<f64>,
    /// When the first of its client certificate and its CA runs out.
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_expiry: Option<String>,
    /// Prefixes found in the source that this version does not know, in key order; at most 16 below each of `cilium/cache` and
    /// `cilium/state`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    unknown_prefixes: Vec<String>,
    /// How many keys are below each of them: they are not mirrored.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    unknown_keys: BTreeMap<String, u64>,
    /// Only with a single cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// What a cluster says about itself.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterConfigStatus {
    /// Its id; 0 if it gives none.
    id: u32,
    /// Whether it announces by canaries that a resource is complete.
    synced_canaries: bool,
    /// Whether its data is a copy, made by a KVStoreMesh.
    cached: bool,
    /// 255 or 511; left out where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_connected_clusters: Option<u32>,
    /// Left out: service exports not supported; false: supported but off.
    #[serde(skip_serializing_if = "Option::is_none")]
    service_exports_enabled: Option<bool>,
    /// `endpointslices-only` and the like.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint_slices_export_mode: Option<String>,
}

/// One kind of one cluster.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Resource {
    /// The kind.
    kind: &'static str,
    /// Keys that are held.
    entries: u64,
    /// Of these, from the store and not confirmed yet.
    restored: u64,
    /// Of these, kept although the source has lost them; left out where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<usize>,
    /// Complete and watched.
    synced: bool,
    /// How many keys the source said that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<u64>,
    /// When the last change arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_event: Option<String>,
    /// `live`, `restored` or `neverRead`.
    origin: &'static str,
    /// The source's revision that it is complete up to.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<i64>,
}

/// The age of one cluster, as `synced` and `bookmark` events carry it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterAge {
    /// The cluster.
    cluster: String,
    /// Where its connection is in its life.
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'static str>,
    /// How long ago its source last said anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_seconds: Option<f64>,
    /// When that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_contact: Option<String>,
}

impl Status {
    /// The state of the process; `reading` is `None` while the store loads.
    pub(crate) fn new(handle: &Handle, reading: Option<&Reading>, files: &KeptFiles) -> Self {
        let mut clusters = BTreeMap::new();
        for phase in reading.into_iter().flat_map(readings).filter_map(|cluster| cluster.phase) {
            *clusters.entry(phase.api_name()).or_insert(0) += 1;
        }
        let directory = handle.directory();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: seconds(handle.uptime()),
            loaded: reading.is_some(),
            position: reading.map(|reading| reading.position().to_string()),
            counts: reading.map(StatusCounts::new),
            clusters,
            directory: DirectoryStatus { readable: directory.readable, error: directory.error, invalid_files: directory.invalid },
            store: StoreStatus::new(handle),
            stale_files: files.states().filter_map(|(name, failure)| Some((name, failure?))).collect(),
            reflection: handle.reflection().map(ReflectionStatus::from),
        }
    }
}

impl StatusCounts {
    fn new(reading: &Reading) -> Self {
        let counts = reading.counts();
        Self {
            entries: counts.entries,
            nodes: counts.nodes,
            services: counts.services,
            service_exports: counts.service_exports,
            endpoint_slices: counts.endpoint_slices,
            identities: counts.identities,
            ipcache: counts.ipcache,
            rejected: counts.rejected,
        }
    }
}

impl StoreStatus {
    fn new(handle: &Handle) -> Self {
        let (state, error) = store_state(handle);
        let report = handle.store();
        let (set_aside_path, set_aside_reason) = report.set_aside.clone().unzip();
        let (restored_entries, damaged_records) = (report.restored_count, report.damaged_count);
        Self { state, error, losses: report.losses, restored_entries, damaged_records, set_aside_path, set_aside_reason }
    }
}

/// How storing goes, and what the store said of it. Nothing that has lost something is called healthy.
pub(crate) fn store_state(handle: &Handle) -> (&'static str, Option<String>) {
    match handle.persistence() {
        PersistState::Failing { error } => ("failing", Some(error)),
        PersistState::Stopped { error } => ("stopped", Some(error)),
        PersistState::Healthy if !handle.is_loaded() => ("loading", None),
        PersistState::Healthy if !handle.store().losses.is_empty() => ("recovered", None),
        PersistState::Healthy => ("healthy", None),
    }
}

impl Cluster {
    /// A cluster as the change stream tells of it: the phase is that of the event, everything else is the newest.
    pub(crate) fn told(name: &ClusterName, told: ClusterPhase, reading: &Reading) -> Self {
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
        Self::from(&ClusterReading { phase: told.phase, ..newest })
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
        let origin = Origin::of_all(cluster.resources.iter().map(|resource| resource.source.origin));
        Self {
            name: cluster.name.to_string(),
            local: cluster.is_local.then_some(true),
            cluster_id: config.map(|config| config.id.0).filter(|id| *id != 0),
            phase: cluster.phase.map(Phase::api_name),
            phase_seconds: status.map(|status| seconds(now.saturating_duration_since(status.phase_since))),
            origin: origin_name(origin.unwrap_or(Origin::NeverRead)),
            last_contact: age.last_contact,
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

/// What the sources of one cluster have in common.
#[derive(Debug, Default)]
struct SourceFacts {
    last_contact: Option<String>,
    age_seconds: Option<f64>,
}

impl From<&ResourceReading> for SourceFacts {
    fn from(resource: &ResourceReading) -> Self {
        Self { last_contact: resource.source.last_contact.map(rfc3339), age_seconds: resource.source.age.map(seconds) }
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
        let told = status.map(|status| status.resource(resource.kind));
        Self {
            kind: resource.kind.api_name(),
            entries: resource.entry_count,
            restored: resource.restored_count,
            held: told.map(|told| told.held_count).filter(|count| *count > 0),
            synced: told.is_some_and(|told| told.synced),
            expected: told.and_then(|told| told.expected_count),
            last_event: told.and_then(|told| told.last_event_time).map(rfc3339),
            origin: origin_name(resource.source.origin),
            revision: resource.source.revision.map(|revision| revision.0),
        }
    }
}

impl From<&ClusterReading> for ClusterAge {
    fn from(cluster: &ClusterReading) -> Self {
        let facts = cluster.resources.first().map(SourceFacts::from).unwrap_or_default();
        Self {
            cluster: cluster.name.to_string(),
            phase: cluster.phase.map(Phase::api_name),
            age_seconds: facts.age_seconds,
            last_contact: facts.last_contact,
        }
    }
}

/// Every cluster as a whole, in order.
pub(crate) fn readings(reading: &Reading) -> impl Iterator<Item = ClusterReading> {
    reading.cluster_names().into_iter().filter_map(|name| reading.cluster(&name))
}
