//! What meshkeep says of itself and of each cluster.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::meta::ItemMeta;
use super::reflection::ReflectionStatus;

/// The process as a whole.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    /// The version of meshkeep.
    pub(crate) version: Cow<'static, str>,
    /// The time of this answer, by meshkeep's clock.
    #[serde(default)]
    #[schema(required = true)]
    pub(crate) now: String,
    /// How long it has been running.
    pub(crate) uptime_seconds: f64,
    /// Whether everything of the store is in memory; until then only lookups and single things are answered, and lists answer 503.
    pub(crate) loaded: bool,
    /// The newest position; left out while loading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<String>,
    /// How much is mirrored; left out while loading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counts: Option<StatusCounts>,
    /// How many clusters are in each phase.
    pub(crate) clusters: BTreeMap<Cow<'static, str>, u64>,
    /// The config directory.
    pub(crate) directory: DirectoryStatus,
    /// How storing goes.
    pub(crate) store: StoreStatus,
    /// `token file` or `TLS certificate`, where it has changed and cannot be used, and why: what was read before stays in force.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) stale_files: BTreeMap<Cow<'static, str>, String>,
    /// How writing into another etcd goes; left out unless this is `meshkeep reflect`, and while it loads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reflection: Option<ReflectionStatus>,
}

/// How much is mirrored.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusCounts {
    /// Mirrored keys, usable or not.
    pub(crate) entries: u64,
    /// Usable nodes.
    pub(crate) nodes: u64,
    /// Usable services.
    pub(crate) services: u64,
    /// Global services: names that some cluster shares or exports a service under.
    #[serde(default)]
    #[schema(required = true)]
    pub(crate) global_services: u64,
    /// Usable service exports.
    pub(crate) service_exports: u64,
    /// Usable endpoint slices.
    pub(crate) endpoint_slices: u64,
    /// Usable identities.
    pub(crate) identities: u64,
    /// Usable ipcache entries.
    pub(crate) ipcache: u64,
    /// Keys whose newest bytes could not be used.
    pub(crate) rejected: u64,
}

/// What the config directory says.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DirectoryStatus {
    /// The directory of `--clustermesh-config`.
    #[serde(default)]
    #[schema(required = true)]
    pub(crate) path: String,
    /// Whether the last scan could read it.
    pub(crate) readable: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Files that were refused, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) invalid_files: BTreeMap<String, String>,
    /// Why there is no remote cluster to mirror; left out where there is one, and with `--allow-no-clusters`. The own cluster does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) no_clusters: Option<String>,
}

/// How storing goes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoreStatus {
    /// `loading`, `healthy`, `lost` (storing works, but what was stored before the start is not all there), `failing` (tried again;
    /// what comes meanwhile is in memory or in the log alone) or `stopped` (nothing is stored for now).
    pub(crate) state: Cow<'static, str>,
    /// What the store said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// What of the store was lost at the start, in words; it is read from the remote clusters again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) losses: Vec<String>,
    /// How many keys were restored at the start.
    pub(crate) restored_entries: u64,
    /// How many stored records could not be read and are fetched again.
    pub(crate) damaged_records: u64,
    /// Where a store that could not be used was put.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) set_aside_path: Option<String>,
    /// Why it could not be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) set_aside_reason: Option<String>,
}

/// One cluster.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cluster {
    /// Its name.
    pub(crate) name: String,
    /// `true` for the own cluster, which is mirrored with `--local-etcd`; left out for the remote ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) local: Option<bool>,
    /// Its id in the mesh, where known.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub(crate) cluster_id: Option<u32>,
    /// Where its connection is in its life: `waitingForFiles`, `connecting`, `readingConfig`, `waitingForCanary`, `listing`, `live`,
    /// `sourceLost`, `backingOff` or `draining`; left out where the stream tells that it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<Cow<'static, str>>,
    /// How long it has been there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase_seconds: Option<f64>,
    /// `live`, or `restored` while anything of it is unconfirmed.
    pub(crate) origin: Cow<'static, str>,
    /// When its etcd last answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_contact: Option<String>,
    /// When its writer last put a heartbeat, which it does once a minute; left out where none came since meshkeep started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_heartbeat: Option<String>,
    /// How old its data is: how long ago the last contact was, and once the last heartbeat is older than two minutes, how long ago that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_seconds: Option<f64>,
    /// Whether its configuration was read over the present connection.
    pub(crate) config_retrieved: bool,
    /// The configuration in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<ClusterConfigStatus>,
    /// The id of the etcd behind it, in hexadecimal.
    #[serde(rename = "etcdClusterID", skip_serializing_if = "Option::is_none")]
    pub(crate) etcd_cluster_id: Option<String>,
    /// The endpoint of the present or last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    /// One for each kind.
    pub(crate) resources: Vec<Resource>,
    /// How many attempts have failed since meshkeep started.
    pub(crate) failures: u64,
    /// Why the last attempt failed, or what is being waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
    /// When that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_error_time: Option<String>,
    /// In how many seconds the next attempt starts, while backing off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_retry_seconds: Option<f64>,
    /// When the first of its client certificate and its CA runs out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) certificate_expiry: Option<String>,
    /// Prefixes found in the source that this version does not know, in key order; at most 16 below each of `cilium/cache` and
    /// `cilium/state`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) unknown_prefixes: Vec<String>,
    /// How many keys are below each of them: they are not mirrored.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) unknown_keys: BTreeMap<String, u64>,
    /// Only with a single cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// What a cluster says about itself.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterConfigStatus {
    /// Its id; 0 if it gives none.
    pub(crate) id: u32,
    /// Whether it announces by canaries that a resource is complete.
    pub(crate) synced_canaries: bool,
    /// Whether its data is a copy, made by a KVStoreMesh.
    pub(crate) cached: bool,
    /// 255 or 511; left out where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_connected_clusters: Option<u32>,
    /// Left out: service exports not supported; false: supported but off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service_exports_enabled: Option<bool>,
    /// `endpointslices-only` and the like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint_slices_export_mode: Option<String>,
}

/// One kind of one cluster.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Resource {
    /// The kind.
    pub(crate) kind: Cow<'static, str>,
    /// Keys that are held.
    pub(crate) entries: u64,
    /// Of these, from the store and not confirmed yet.
    pub(crate) restored: u64,
    /// Of these, kept although the source has lost them; left out where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) held: Option<usize>,
    /// Complete and watched.
    pub(crate) synced: bool,
    /// How many keys the source said that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expected: Option<u64>,
    /// When the last change arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_event: Option<String>,
    /// `live`, `restored` or `neverRead`.
    pub(crate) origin: Cow<'static, str>,
    /// The source's revision that it is complete up to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<i64>,
}

/// The age of one cluster, as `synced` and `bookmark` events carry it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterAge {
    /// The cluster.
    pub(crate) cluster: String,
    /// Where its connection is in its life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<Cow<'static, str>>,
    /// How old its data is: how long ago the last contact was, and once the last heartbeat is older than two minutes, how long ago that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_seconds: Option<f64>,
    /// When its etcd last answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_contact: Option<String>,
    /// When its writer last put a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_heartbeat: Option<String>,
}
