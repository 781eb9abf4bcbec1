//! The task of one remote cluster: connects, reads the cluster config, waits for canaries, mirrors
//! all kinds, and retries with back-off after a failure (docs/develop/protocol.md §3.3; Cilium's
//! `pkg/clustermesh/common/remote_cluster.go`).
//!
//! [`Mesh`](super::Mesh) runs a [`ClusterTask`] for each client file. The task keeps the resync
//! state of its kinds, which outlives connections.

mod connection;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use rand::seq::SliceRandom;
use tokio::sync::watch;
use tokio::time::sleep;

use self::connection::ClusterConnection;
use super::bounds::ClusterBounds;
use super::connection_error::ConnectionError;
use super::ids::ReservedClusterIds;
use super::resync::Resync;
use super::scope::{ClusterContext, KindState};
use super::timing::{FILES_INTERVAL, STABLE_CONNECTION};
use super::verification::VerificationState;
use crate::client_file::ClientFile;
use crate::commit::DecodedBudget;
use crate::instruments::VerificationRequests;
use crate::model::{ClusterId, ClusterName, ClusterRecord, Kind, MaxConnectedClusters, Phase, Scope};
use cilium_kvstore::{ClientOptions, Endpoint, EtcdConfig};

/// Settings that all clusters of a mesh share.
#[derive(Debug, Clone)]
pub struct MeshOptions {
    /// Id of the own cluster; 0 if it is not known.
    pub own_id: ClusterId,
    /// Name of the own cluster if it is mirrored too (`--local-etcd`). Its client file is not in
    /// the config directory.
    pub local: Option<ClusterName>,
    /// Clusters whose files are ignored (`--ignore-cluster`).
    pub ignored_clusters: Vec<ClusterName>,
    /// Clusters that are read although they have no cluster config (`--legacy-clusters`).
    pub legacy_clusters: Arc<BTreeSet<ClusterName>>,
    /// Maximum number of clusters in the mesh.
    pub max_connected_clusters: MaxConnectedClusters,
    /// Limits of each connection.
    pub client: ClientOptions,
    /// Maximum size of each cluster.
    pub bounds: ClusterBounds,
    /// Memory for large decoded values.
    pub decoded: DecodedBudget,
    /// Intervals and limits of each cluster's task.
    pub timing: super::Timing,
    /// Requests of clients to verify clusters.
    pub verification_requests: VerificationRequests,
}

/// Task of one remote cluster.
#[derive(Debug)]
pub(super) struct ClusterTask {
    pub(super) name: ClusterName,
    pub(super) options: MeshOptions,
    pub(super) ids: Arc<ReservedClusterIds>,
    /// Content of the cluster's client file, updated when the file changes.
    pub(super) content: watch::Receiver<Arc<[u8]>>,
    pub(super) context: ClusterContext,
}

/// Reason why a connection, or the attempt to open one, ended.
enum ConnectionEnd {
    Failed(ConnectionError),
    /// `--cache-ttl` has passed without a connection.
    CacheTtlExpired,
    /// The client file changed, or was deleted.
    FileChanged {
        file_exists: bool,
    },
}

/// Time for which a cluster has been unreachable.
#[derive(Debug)]
struct Outage {
    /// End of the last connection, or the start of the task.
    since: Instant,
    /// True if services, service exports and endpoint slices were removed (`--cache-ttl`).
    revoked: bool,
}

/// State of a cluster's task that outlives connections.
#[derive(Debug)]
pub(super) struct ClusterState {
    /// Record of the cluster that is stored or about to be stored.
    pub(super) record: ClusterRecord,
    /// State of each kind, in the order of [`Kind::ALL`].
    pub(super) kinds: [KindState; Kind::ALL.len()],
    pub(super) verification: VerificationState,
    /// Endpoints that were not tried since the last shuffle.
    untried_endpoints: Vec<Endpoint>,
}

impl ClusterTask {
    /// Runs until the task is dropped, the cluster's file is deleted or the committer ends.
    pub(super) async fn run(self) {
        let reporter = self.context.reporter.clone();
        let commands = self.context.commands.clone();
        tokio::select! {
            () = self.run_connections() => {}
            // ends only when the committer ends, and then the whole process ends
            () = reporter.publish_phases(commands) => {}
        }
    }

    async fn run_connections(self) {
        let mut file_changes = self.content.clone();
        let mut state = self.load_state();
        let mut backoff = self.options.timing.backoff();
        let limits = self.options.timing.silence_limits();
        self.context.reporter.change_status(|status| {
            status.config.clone_from(&state.record.config);
            status.writer.limits = limits;
        });
        let mut outage = Outage { since: Instant::now(), revoked: false };
        loop {
            let content = Arc::clone(&file_changes.borrow_and_update());
            let started = Instant::now();
            let end = tokio::select! {
                error = self.connect(&content, &mut state) => ConnectionEnd::Failed(error),
                () = self.cache_ttl_expired(&outage) => ConnectionEnd::CacheTtlExpired,
                changed = file_changes.changed() => ConnectionEnd::FileChanged { file_exists: changed.is_ok() },
            };
            if self.context.reporter.is_connected() {
                outage = Outage { since: Instant::now(), revoked: false };
            }
            self.context.reporter.reset_connection();
            let error = match end {
                ConnectionEnd::Failed(ConnectionError::Stopping) | ConnectionEnd::FileChanged { file_exists: false } => return,
                ConnectionEnd::Failed(error) => error,
                ConnectionEnd::CacheTtlExpired => {
                    outage.revoked = true;
                    self.revoke(&mut state).await;
                    continue;
                }
                ConnectionEnd::FileChanged { file_exists: true } => {
                    tracing::info!(cluster = %self.name, "the client file of cluster {} changed: reconnecting", self.name);
                    self.context.reporter.forget_missing_config();
                    state.untried_endpoints.clear();
                    backoff.reset();
                    continue;
                }
            };
            if started.elapsed() > STABLE_CONNECTION || self.context.reporter.was_live() {
                backoff.reset();
            }
            let mut wait = backoff.next_wait_with_jitter(rand::random());
            if error.exceeds_size() {
                self.context.reporter.set_too_large(&error);
                wait = self.options.timing.cluster.too_large_wait;
            }
            if error.is_revision_rollback() {
                self.context.reporter.record_rollback(&error);
            }
            if matches!(error, ConnectionError::ConfigMissing) {
                // not a failure of the connection: retry soon, because the address may lead to
                // another etcd by then
                backoff.reset();
                wait = self.options.timing.cluster.backoff_min;
            } else {
                self.context.reporter.record_failure(&error.to_string(), wait);
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = self.cache_ttl_expired(&outage) => {
                    outage.revoked = true;
                    self.revoke(&mut state).await;
                }
                // a closed channel means that this task is about to be aborted; the next iteration
                // handles that
                _ = file_changes.changed() => file_changes.mark_changed(),
            }
        }
    }

    /// Waits until the cluster has been unreachable for `--cache-ttl`.
    ///
    /// Never returns if no TTL is set, if the entries were already removed, or if the cluster is
    /// connected when the TTL has passed (Cilium's `ttlChecker`,
    /// `pkg/clustermesh/common/remote_cluster.go`).
    async fn cache_ttl_expired(&self, outage: &Outage) {
        let Some(ttl) = self.options.timing.cache_ttl.filter(|_| !outage.revoked) else { return std::future::pending().await };
        sleep(ttl.saturating_sub(outage.since.elapsed())).await;
        if self.context.reporter.is_connected() {
            std::future::pending().await
        }
    }

    /// Removes the entries that agents use to route traffic: services, service exports and endpoint
    /// slices.
    async fn revoke(&self, state: &mut ClusterState) {
        tracing::warn!(
            cluster = %self.name,
            "cluster {} could not be read for --cache-ttl: removing its services, service exports and endpoint slices",
            self.name
        );
        self.context.reporter.change_status(|status| status.revocation_count += 1);
        for (kind, state) in Kind::ALL.into_iter().zip(&mut state.kinds) {
            if kind.is_revocable() {
                state.revoke(&Scope { cluster: self.name.clone(), kind });
                self.context.reporter.set_held_count(kind, 0);
                // an error means that the committer has ended, and the process ends with it
                let _ = state.deliver(&self.context.commands).await;
            }
        }
    }

    fn load_state(&self) -> ClusterState {
        let published = self.context.mirror.current();
        let scope = |kind| Scope { cluster: self.name.clone(), kind };
        for kind in Kind::ALL {
            self.context.reporter.set_held_count(kind, published.view.held_count(&scope(kind)));
        }
        let record = published.view.cluster(&self.name).cloned().unwrap_or_default();
        let kind_state = |kind| {
            let cursor = published.view.cursor(&scope(kind)).cloned();
            let observed_until = record.last_contact.filter(|_| cursor.is_some());
            KindState::new(Resync::new(scope(kind), cursor), observed_until)
        };
        let verification = VerificationState::new(&self.options.timing.cluster);
        ClusterState { kinds: Kind::ALL.map(kind_state), verification, record, untried_endpoints: Vec::new() }
    }

    /// Runs one connection, from reading the client file to the error that ends it.
    async fn connect(&self, content: &Arc<[u8]>, state: &mut ClusterState) -> ConnectionError {
        let bytes = Arc::clone(content);
        let file = match tokio::task::spawn_blocking(move || ClientFile::parse(&bytes)).await {
            Ok(file) => file,
            Err(error) => return ConnectionError::Cluster(format!("cannot read the client file of cluster {}: {error}", self.name)),
        };
        let warnings = file.as_ref().ok().and_then(ClientFile::warnings);
        self.context.reporter.set_file_state(file.as_ref().err().map(ToString::to_string), warnings);
        let file = match file {
            Ok(file) => file.config,
            Err(error) => return ConnectionError::Cluster(format!("cannot use the client file of cluster {}: {error}", self.name)),
        };
        self.wait_for_files(&file).await;
        self.context.reporter.enter_connecting();
        let endpoint = match state.next_endpoint(&file) {
            Some(endpoint) => endpoint,
            None => return ConnectionError::Cluster(format!("the client file of cluster {} has no endpoint", self.name)),
        };
        let connection = ClusterConnection { task: self, file: &file, endpoint: &endpoint };
        match connection.run(state).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    /// Waits for the certificates and keys that the file names (docs/develop/protocol.md §3.2), and
    /// reports the missing ones.
    async fn wait_for_files(&self, file: &EtcdConfig) {
        loop {
            let missing = file.missing_files();
            if missing.is_empty() {
                return;
            }
            let names: Vec<String> = missing.iter().map(|path| path.display().to_string()).collect();
            self.context.reporter.enter_waiting(Phase::WaitingForFiles, &format!("waiting for {}", names.join(", ")));
            sleep(FILES_INTERVAL).await;
        }
    }
}

impl ClusterState {
    /// Returns the next endpoint in random order. Every endpoint is tried once before any is tried
    /// again. Replicas are separate etcds, so each connection uses exactly one endpoint.
    fn next_endpoint(&mut self, file: &EtcdConfig) -> Option<Endpoint> {
        if self.untried_endpoints.is_empty() {
            self.untried_endpoints = file.endpoints().to_vec();
            self.untried_endpoints.shuffle(&mut rand::rng());
        }
        self.untried_endpoints.pop()
    }

    /// Resets the state of all kinds after the cluster was removed from the mirror.
    pub(super) fn forget(&mut self) {
        for kind in &mut self.kinds {
            kind.forget();
        }
    }
}
