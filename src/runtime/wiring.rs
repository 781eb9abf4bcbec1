//! Conversions from the settings to the options of each module.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::signals::ReloadTriggers;
use super::{OpenedStore, early};
use crate::api::{ApiOptions, BoundApi};
use crate::clustermesh::{ClusterBounds, DirectoryOptions, LocalEtcd, MeshOptions, Timing};
use crate::commit::DecodedBudget;
use crate::config::{KvstoreOptions, Settings};
use crate::etcd_api::EtcdOptions;
use crate::feed::Retention;
use crate::handle::{ClientFileLocation, EarlyLookup, Measurement, StoreReport, VerificationRequests};
use crate::model::{ClusterName, MaxConnectedClusters, MetricsDetail};
use crate::server::{ConnectionLimits, TlsFiles};
use crate::store::{OpenReport, PartialStore, Store, StoreError, disk_usage_by_class as measure};
use cilium_kvstore::ClientOptions;

/// Time without changes before the config directory is read. The kubelet swaps a Secret within
/// milliseconds.
const DIRECTORY_DEBOUNCE: Duration = Duration::from_millis(100);

pub(super) fn api_options(settings: &Settings, reload: &ReloadTriggers, descriptors: usize) -> ApiOptions {
    let security = &settings.security;
    let limits = ConnectionLimits::default();
    let tls = security.tls_cert.clone().zip(security.tls_key.clone());
    ApiOptions {
        health_listen: settings.health_listen.clone(),
        etcd_listen: settings.etcd_listen.clone(),
        allowed_hosts: settings.allowed_hosts.clone(),
        token_file: security.token_file.clone(),
        view_token_file: security.view_token_file.clone(),
        cors_origins: security.cors_origins.clone(),
        frame_ancestors: security.frame_ancestors.clone(),
        tls: tls.map(|(certificate, key)| TlsFiles { certificate, key, client_ca: security.client_ca.clone() }),
        reread: Arc::clone(&reload.api),
        on_problem: settings.receivers.on_problem.clone().map(|url| (url, settings.receivers.on_problem_format)),
        all_metrics: settings.metrics_detail == MetricsDetail::Full,
        limits: ConnectionLimits { count_max: limits.count_max.min(descriptors), ..limits },
    }
}

/// Returns the options of the etcd server, if there is one.
pub(super) fn etcd_options(settings: &Settings, bound: &BoundApi, stop: CancellationToken) -> Option<EtcdOptions> {
    let url = bound.etcd_address()?;
    let restricted = settings.security.tls_cert.is_some() && settings.security.client_ca.is_some();
    Some(EtcdOptions { restricted, urls: vec![url], scans: bound.scans(), stop })
}

pub(super) fn directory_options(settings: &Settings, reload: &ReloadTriggers) -> DirectoryOptions {
    DirectoryOptions {
        path: settings.clustermesh_config.clone(),
        ignored_clusters: Arc::new(settings.clusters_without_file()),
        debounce: DIRECTORY_DEBOUNCE,
        rescan_interval: settings.timing.config_rescan_interval,
        remind_interval: settings.timing.cluster.remind_interval,
        rescan: Arc::clone(&reload.directory),
    }
}

/// Returns the own cluster's name and client file, if it is mirrored too.
pub(super) fn local_etcd(settings: &Settings) -> Option<LocalEtcd> {
    let (cluster, path) = settings.cluster_name.clone().zip(settings.local_etcd.clone())?;
    Some(LocalEtcd { cluster, path })
}

/// Returns the limits of an etcd client from `--kvstore-opt`.
#[must_use]
pub fn client_options(kvstore: &KvstoreOptions) -> ClientOptions {
    ClientOptions {
        keepalive_heartbeat: kvstore.keepalive_heartbeat,
        keepalive_timeout: kvstore.keepalive_timeout,
        page_limit: i64::from(kvstore.page_limit),
        requests_per_second_max: kvstore.qps,
        bootstrap_requests_per_second_max: kvstore.bootstrap_qps,
        requests_in_flight_max: usize::try_from(kvstore.max_inflight.unwrap_or(kvstore.qps)).unwrap_or(usize::MAX),
        ..ClientOptions::default()
    }
}

pub(super) fn mesh_options(settings: &Settings, decoded: DecodedBudget, verification_requests: VerificationRequests) -> MeshOptions {
    MeshOptions {
        own_id: settings.cluster_id,
        local: local_etcd(settings).map(|local| local.cluster),
        ignored_clusters: settings.ignore_cluster.clone(),
        legacy_clusters: Arc::new(settings.legacy_clusters.iter().cloned().collect()),
        max_connected_clusters: settings.max_connected_clusters,
        client: ClientOptions { progress_interval: settings.timing.progress_interval, ..client_options(&settings.kvstore()) },
        decoded,
        bounds: ClusterBounds { keys_max: settings.memory.cluster_max_keys, bytes_max: settings.memory.cluster_max_bytes },
        timing: Timing { cluster: settings.timing.cluster.clone(), cache_ttl: Some(settings.cache_ttl).filter(|ttl| !ttl.is_zero()) },
        verification_requests,
    }
}

pub(super) fn retention(settings: &Settings) -> Retention {
    Retention { age_max: settings.tombstone_max_age, count_max: usize::try_from(settings.tombstone_max_count).unwrap_or(usize::MAX) }
}

/// Logs what was lost when the store was opened, and the location of a store that was set aside.
pub(super) fn log_losses(opened: &OpenReport) {
    if let Some(set_aside) = &opened.set_aside {
        let (path, reason) = (set_aside.path.display(), &set_aside.reason);
        tracing::error!(%path, reason, "the store cannot be used: it was set aside, and meshkeep reads everything from the remote clusters again");
    }
    for loss in &opened.losses {
        tracing::error!(loss, "the store has lost data, which meshkeep reads from the remote clusters again");
    }
}

pub(super) fn store_report(opened: &OpenReport) -> StoreReport {
    let set_aside = opened.set_aside.as_ref().map(|set_aside| (set_aside.path.display().to_string(), set_aside.reason.clone()));
    let set_aside_text = set_aside.iter().map(|(path, reason)| format!("all of it was set aside in {path}: {reason}"));
    let losses = set_aside_text.chain(opened.losses.iter().cloned()).collect();
    StoreReport { set_aside, losses, ..StoreReport::default() }
}

/// Returns the location of the client files, and whether there must be any.
pub(super) fn cluster_files(settings: &Settings) -> ClientFileLocation {
    ClientFileLocation {
        directory: settings.clustermesh_config.clone(),
        allow_no_clusters: settings.allow_no_clusters,
        wait: settings.timing.no_clusters_wait,
        ignored_clusters: settings.ignore_cluster.clone(),
    }
}

pub(super) fn disk_bytes(settings: &Settings) -> Measurement<Vec<(&'static str, u64)>> {
    let directory = settings.data_dir.clone();
    Measurement::new(move || measure(&directory))
}

pub(super) struct StoreOpenOptions {
    pub(super) directory: PathBuf,
    pub(super) wait: Duration,
    pub(super) max_connected_clusters: MaxConnectedClusters,
    pub(super) retention: Retention,
    /// Clusters that are not mirrored, although an earlier start may have stored them.
    pub(super) unmirrored: BTreeSet<ClusterName>,
}

pub(super) fn store_open_options(settings: &Settings) -> StoreOpenOptions {
    StoreOpenOptions {
        directory: settings.data_dir.clone(),
        wait: settings.timing.store_lock_wait,
        max_connected_clusters: settings.max_connected_clusters,
        retention: retention(settings),
        unmirrored: unmirrored_clusters(settings),
    }
}

/// Returns the clusters whose client files are ignored, except for the own cluster if it is
/// mirrored from `--local-etcd`.
fn unmirrored_clusters(settings: &Settings) -> BTreeSet<ClusterName> {
    let mut clusters = settings.clusters_without_file();
    if let Some(local) = local_etcd(settings) {
        clusters.remove(&local.cluster);
    }
    clusters
}

impl StoreOpenOptions {
    /// Opens the store. As soon as queries can be answered early, sends the source of the answers
    /// to `early`.
    pub(super) fn open(self, early: watch::Sender<Option<Arc<dyn EarlyLookup>>>) -> Result<OpenedStore, StoreError> {
        let Self { directory, wait, max_connected_clusters, retention, unmirrored } = self;
        let mut early_plan = None;
        let mut offer = |partial: Option<PartialStore>| {
            let (mirror, plan) =
                partial.and_then(|partial| early::prepare(partial, max_connected_clusters, retention, &unmirrored)).unzip();
            early_plan = plan;
            early.send_replace(mirror.map(|mirror| Arc::new(mirror) as Arc<dyn EarlyLookup>));
        };
        let (store, opened) = Store::open_with_early_lookups(&directory, wait, &mut offer)?;
        Ok(OpenedStore { store, opened, early_plan, early })
    }
}
