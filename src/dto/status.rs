//! JSON shapes of the state of the process and of each cluster.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::meta::ItemMeta;
use super::reflection::ReflectionStatus;
use super::values::{Kind, Origin, Phase, StoreState};

/// The process as a whole.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    /// The version of meshkeep.
    pub(crate) version: Cow<'static, str>,
    /// Time of this answer by meshkeep's clock.
    #[serde(default)]
    #[schema(required = true)]
    pub(crate) now: String,
    /// Seconds since meshkeep started.
    pub(crate) uptime_seconds: f64,
    /// `true` once the whole store is in memory. Until then, meshkeep answers lookups and requests
    /// for single objects; lists get 503.
    pub(crate) loaded: bool,
    /// The newest position. Left out while the store is loading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<String>,
    /// Numbers of mirrored objects. Left out while the store is loading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counts: Option<StatusCounts>,
    /// Number of clusters in each phase.
    pub(crate) clusters: BTreeMap<Cow<'static, str>, u64>,
    /// State of the config directory.
    pub(crate) directory: DirectoryStatus,
    /// State of the store.
    pub(crate) store: StoreStatus,
    /// State of the history of earlier versions. Left out with `--history off`, where meshkeep has
    /// no history, and while the store is loading, where the state is not known yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) history: Option<HistoryStatus>,
    /// Reason why the changed `token file`, `view token file` or `TLS certificate` cannot be used.
    /// The previous content stays in use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) stale_files: BTreeMap<Cow<'static, str>, String>,
    /// The dump that this process serves. Present only in `meshkeep load`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dump: Option<DumpStatus>,
    /// State of writing into another etcd. Present only in `meshkeep reflect`, once the store is
    /// loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reflection: Option<ReflectionStatus>,
}

/// The dump that `meshkeep load` serves.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DumpStatus {
    /// Path of the dump.
    pub(crate) path: String,
    /// Command or tool that wrote the dump, for example `etcdctl get --prefix -w json`.
    pub(crate) form: String,
    /// Time at which the dump was made.
    pub(crate) time: String,
    /// Source of `time`: `option` (`--time`), `bundle` (the bundle names it), `heartbeat` (the
    /// newest heartbeat in the dump), or `file` (the time of the last change of the file).
    pub(crate) time_from: String,
}

/// Numbers of mirrored objects.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusCounts {
    /// Number of mirrored keys, valid or rejected.
    pub(crate) entries: u64,
    /// Number of valid nodes.
    pub(crate) nodes: u64,
    /// Number of valid services.
    pub(crate) services: u64,
    /// Number of global services: names under which at least one cluster shares or exports a
    /// service.
    #[serde(default)]
    #[schema(required = true)]
    pub(crate) global_services: u64,
    /// Number of valid service exports.
    pub(crate) service_exports: u64,
    /// Number of valid endpoint slices.
    pub(crate) endpoint_slices: u64,
    /// Number of valid identities.
    pub(crate) identities: u64,
    /// Number of valid ipcache entries.
    pub(crate) ipcache: u64,
    /// Number of keys whose newest value was rejected.
    pub(crate) rejected: u64,
}

/// State of the config directory.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DirectoryStatus {
    /// Path given with `--clustermesh-config`.
    #[serde(default)]
    #[schema(required = true)]
    pub(crate) path: String,
    /// `true` if the last scan could read the directory.
    pub(crate) readable: bool,
    /// Reason why the directory cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Refused files and the reasons.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) invalid_files: BTreeMap<String, String>,
    /// Clusters whose files are ignored (`--ignore-cluster`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) ignored_clusters: Vec<String>,
    /// Reason why there is no remote cluster to mirror. The own cluster does not count. Left out if
    /// there is a remote cluster or `--allow-no-clusters` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) no_clusters: Option<String>,
}

/// State of the store.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoreStatus {
    /// `loading`. `healthy`. `lost`: storing works, but not all data from before the start is
    /// there. `failing`: meshkeep retries; new changes are only in memory or in the log. `stopped`:
    /// nothing is stored at the moment.
    pub(crate) state: StoreState,
    /// Error of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Losses of the store found at the start, as text. meshkeep reads the lost data from the
    /// remote clusters again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) losses: Vec<String>,
    /// Number of keys restored at the start.
    pub(crate) restored_entries: u64,
    /// Number of stored records that could not be read. meshkeep reads them from the source again.
    pub(crate) damaged_records: u64,
    /// Path to which meshkeep moved an unusable store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) set_aside_path: Option<String>,
    /// Reason why that store was unusable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) set_aside_reason: Option<String>,
}

/// State of the history: the earlier versions of entries.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryStatus {
    /// Time of the oldest change in the history, in RFC 3339. Left out while the history has no
    /// change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    /// Size of the history on disk, in bytes.
    pub(crate) bytes: u64,
    /// Number of segments, the files of the history.
    pub(crate) segments: u64,
    /// Number of earlier versions in the segments.
    pub(crate) versions: u64,
    /// Time that a history of `--history-max-bytes` covers, in seconds, if changes keep the mean
    /// rate of those in the segments. `--history-max-age` may limit the history to less. Left out
    /// while the segments cover less than an hour, because the rate is not known yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reach_seconds: Option<f64>,
    /// Number of periods within the history whose changes are not known; 0 if there is none.
    pub(crate) gaps: u64,
    /// Segments that cannot be read, with the reason, as text. Answers about their periods are
    /// incomplete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) damaged_segments: Vec<String>,
    /// Reason why the newest part of the history could not be written, as text. Left out while
    /// meshkeep can write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// One cluster.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cluster {
    /// Name of the cluster.
    pub(crate) name: String,
    /// `true` for the own cluster, which is mirrored with `--local-etcd`. Left out for remote
    /// clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) local: Option<bool>,
    /// Id of the cluster in the mesh. Left out if unknown.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub(crate) cluster_id: Option<u32>,
    /// Phase of the connection: `waitingForFiles`, `connecting`, `readingConfig`,
    /// `waitingForCanary`, `listing`, `live`, `sourceLost`, `backingOff` or `draining`. Left out in
    /// the stream's event for a removed cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<Phase>,
    /// Seconds since the cluster entered this phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase_seconds: Option<f64>,
    /// `live`, or `restored` while any of the cluster's data is unconfirmed. `dump`: from a dump.
    pub(crate) origin: Origin,
    /// Time at which the cluster's etcd last answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_contact: Option<String>,
    /// Time of the writer's last heartbeat (one per minute). Left out if none has arrived since
    /// meshkeep started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_heartbeat: Option<String>,
    /// Age of the data in seconds: the time since the last contact or, if the last heartbeat is
    /// older than two minutes, the time since that heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_seconds: Option<f64>,
    /// `true` if the cluster config was read over the current connection.
    pub(crate) config_retrieved: bool,
    /// The cluster config in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<ClusterConfigStatus>,
    /// Id of the cluster's etcd, in hexadecimal.
    #[serde(rename = "etcdClusterID", skip_serializing_if = "Option::is_none")]
    pub(crate) etcd_cluster_id: Option<String>,
    /// Endpoint of the current or last connection attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    /// State of each kind.
    pub(crate) resources: Vec<Resource>,
    /// Number of failed connection attempts since meshkeep started.
    pub(crate) failures: u64,
    /// Reason why the last attempt failed, or what the cluster is waiting for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
    /// Time of the last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error_time: Option<String>,
    /// Seconds until the next attempt, while the phase is `backingOff`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_retry_seconds: Option<f64>,
    /// Time at which the client certificate or its CA expires, whichever is first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) certificate_expiry: Option<String>,
    /// Prefixes in the source that this version does not know, in key order; at most 16 each below
    /// `cilium/cache` and `cilium/state`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) unknown_prefixes: Vec<String>,
    /// Number of keys below each unknown prefix. They are not mirrored.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) unknown_keys: BTreeMap<String, u64>,
    /// Present only if a single cluster was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// The cluster config that a cluster publishes about itself.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterConfigStatus {
    /// Id of the cluster; 0 if the config has none.
    pub(crate) id: u32,
    /// `true` if the cluster writes a canary for each kind that is complete.
    pub(crate) synced_canaries: bool,
    /// `true` if the data is a KVStoreMesh's copy.
    pub(crate) cached: bool,
    /// 255 or 511. Left out if the config does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_connected_clusters: Option<u32>,
    /// `false`: the cluster supports service exports but they are off. Left out if it does not
    /// support them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service_exports_enabled: Option<bool>,
    /// Export mode of endpoint slices, for example `endpointslices-only`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint_slices_export_mode: Option<String>,
}

/// One kind of one cluster.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Resource {
    /// The kind.
    pub(crate) kind: Kind,
    /// Number of mirrored keys.
    pub(crate) entries: u64,
    /// Number of these keys that come from the store and are not confirmed yet.
    pub(crate) restored: u64,
    /// Number of these keys that meshkeep retains although the source lost them. Left out if there
    /// are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) held: Option<usize>,
    /// `true` if the list is complete and changes are watched.
    pub(crate) synced: bool,
    /// Number of keys that the source reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expected: Option<u64>,
    /// Time at which the last change arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_event: Option<String>,
    /// `live`, `restored`, `neverRead` or `dump`.
    pub(crate) origin: Origin,
    /// Revision of the source up to which this kind is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<i64>,
    /// Time at which the newest comparison of all keys with the source ended without a difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verified_at: Option<String>,
    /// Revision of the source at the start of that comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verified_revision: Option<i64>,
    /// Number of keys in that comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keys_compared: Option<u64>,
    /// Time at which the number of keys was last equal to the source's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counted_at: Option<String>,
}

/// Age of one cluster's data in `synced` and `bookmark` events.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterAge {
    /// The cluster.
    pub(crate) cluster: String,
    /// Phase of the connection to the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<Phase>,
    /// Age of the data in seconds: the time since the last contact or, if the last heartbeat is
    /// older than two minutes, the time since that heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_seconds: Option<f64>,
    /// Time at which the cluster's etcd last answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_contact: Option<String>,
    /// Time of the writer's last heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_heartbeat: Option<String>,
}

/// Results of the newest requested verification of each cluster.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VerificationList {
    /// The clusters, by name.
    pub(crate) items: Vec<ClusterVerification>,
}

/// Result of the newest requested verification of one cluster.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterVerification {
    /// Name of the cluster.
    pub(crate) cluster: String,
    /// Phase of the cluster. Only a connected cluster is verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<Phase>,
    /// Number of requests so far.
    pub(crate) requested: u64,
    /// Number of requests that the result answers; 0 if there is no result.
    pub(crate) answered: u64,
    /// Time at which the verification ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended_at: Option<String>,
    /// `true` if values were compared as well as revisions.
    pub(crate) values: bool,
    /// Result of each kind.
    pub(crate) kinds: Vec<KindVerification>,
}

/// Result of one kind in a requested verification.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KindVerification {
    /// The kind.
    pub(crate) kind: Kind,
    /// `false` if the kind could not be compared, because it is not watched or is being listed.
    pub(crate) compared: bool,
    /// Number of keys that were compared.
    pub(crate) keys_compared: u64,
    /// Revision of the source at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<i64>,
    /// Number of keys that differ.
    pub(crate) differing_count: u64,
    /// Keys of the source that differ, at most 16.
    pub(crate) differing: Vec<String>,
}
