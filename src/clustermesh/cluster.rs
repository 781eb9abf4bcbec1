//! The life of one remote cluster: connects, reads its cluster config, waits for canaries, mirrors
//! its kinds, and retries with back-off after a failure (docs/develop/protocol.md §3.3; Cilium's
//! `pkg/clustermesh/common/remote_cluster.go`).
//!
//! [`Mesh`](super::Mesh) runs a [`ClusterTask`] for each client file. The task keeps the resync
//! state of its kinds, which outlives connections.

mod attempt;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use rand::seq::SliceRandom;
use tokio::sync::watch;
use tokio::time::sleep;

use self::attempt::Attempt;
use super::bounds::ClusterBounds;
use super::failure::AttemptError;
use super::ids::ClusterIds;
use super::resync::Resync;
use super::scope::{KindMemory, Surroundings};
use super::timing::{FILES_INTERVAL, STABLE_CONNECTION};
use crate::client_file::ClientFile;
use crate::commit::DecodedBudget;
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
    /// Intervals and limits in the life of each cluster.
    pub timing: super::Timing,
}

/// Task of one remote cluster.
#[derive(Debug)]
pub(super) struct ClusterTask {
    pub(super) name: ClusterName,
    pub(super) options: MeshOptions,
    pub(super) ids: Arc<ClusterIds>,
    /// Content of the cluster's client file, updated when the file changes.
    pub(super) content: watch::Receiver<Arc<[u8]>>,
    pub(super) surroundings: Surroundings,
}

/// Reason why an attempt ended.
enum End {
    Failed(AttemptError),
    /// `--cache-ttl` has passed without a connection.
    AwayTooLong,
    /// The client file changed. It was deleted if `is_open` is false.
    FileChanged {
        is_open: bool,
    },
}

/// State of a cluster that cannot be read.
#[derive(Debug)]
struct Away {
    /// End of the last connection, or the start of the task.
    since: Instant,
    /// Services, service exports and endpoint slices were removed (`--cache-ttl`).
    revoked: bool,
}

/// State of a cluster's task that outlives connections.
#[derive(Debug)]
pub(super) struct Memory {
    /// Record of the cluster that is stored or about to be stored.
    pub(super) record: ClusterRecord,
    /// State of each kind, in the order of [`Kind::ALL`].
    pub(super) kinds: [KindMemory; Kind::ALL.len()],
    /// Endpoints that were not tried since the last shuffle.
    untried: Vec<Endpoint>,
}

impl ClusterTask {
    /// Runs until the task is dropped, the cluster's file is deleted or the committer ends.
    pub(super) async fn run(self) {
        let reporter = self.surroundings.reporter.clone();
        let commands = self.surroundings.commands.clone();
        tokio::select! {
            () = self.live() => {}
            // ends with the committer, which ends everything
            () = reporter.tell_phases(commands) => {}
        }
    }

    async fn live(self) {
        let mut file_changes = self.content.clone();
        let mut memory = self.remember();
        let mut backoff = self.options.timing.backoff();
        let limits = self.options.timing.silence_limits();
        self.surroundings.reporter.change(|status| {
            status.config.clone_from(&memory.record.config);
            status.writer.limits = limits;
        });
        let mut away = Away { since: Instant::now(), revoked: false };
        loop {
            let content = Arc::clone(&file_changes.borrow_and_update());
            let started = Instant::now();
            let end = tokio::select! {
                error = self.attempt(&content, &mut memory) => End::Failed(error),
                () = self.away_too_long(&away) => End::AwayTooLong,
                changed = file_changes.changed() => End::FileChanged { is_open: changed.is_ok() },
            };
            if self.surroundings.reporter.is_connected() {
                away = Away { since: Instant::now(), revoked: false };
            }
            self.surroundings.reporter.disconnected();
            let error = match end {
                End::Failed(AttemptError::Stopping) | End::FileChanged { is_open: false } => return,
                End::Failed(error) => error,
                End::AwayTooLong => {
                    away.revoked = true;
                    self.revoke(&mut memory).await;
                    continue;
                }
                End::FileChanged { is_open: true } => {
                    tracing::info!(cluster = %self.name, "the client file of cluster {} changed: reconnecting", self.name);
                    self.surroundings.reporter.forget_missing_config();
                    memory.untried.clear();
                    backoff.reset();
                    continue;
                }
            };
            if started.elapsed() > STABLE_CONNECTION || self.surroundings.reporter.was_live() {
                backoff.reset();
            }
            let mut wait = backoff.next_wait_with_jitter(rand::random());
            if error.is_too_much() {
                self.surroundings.reporter.too_large(&error);
                wait = self.options.timing.cluster.too_large_wait;
            }
            if error.is_going_back() {
                self.surroundings.reporter.went_back(&error);
            }
            if matches!(error, AttemptError::ConfigMissing) {
                // not a failure of the connection: retry soon, because the address may lead to
                // another etcd by then
                backoff.reset();
                wait = self.options.timing.cluster.backoff_min;
            } else {
                self.surroundings.reporter.failure(&error.to_string(), wait);
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = self.away_too_long(&away) => {
                    away.revoked = true;
                    self.revoke(&mut memory).await;
                }
                // a closed channel means that this task is about to be ended, which the next round
                // handles
                _ = file_changes.changed() => file_changes.mark_changed(),
            }
        }
    }

    /// Waits until the cluster was unreachable for `--cache-ttl`.
    ///
    /// Never returns if no TTL is set, if its entries were already removed, or if the cluster is
    /// connected by then (Cilium's `ttlChecker`, `pkg/clustermesh/common/remote_cluster.go`).
    async fn away_too_long(&self, away: &Away) {
        let Some(ttl) = self.options.timing.cache_ttl.filter(|_| !away.revoked) else { return std::future::pending().await };
        sleep(ttl.saturating_sub(away.since.elapsed())).await;
        if self.surroundings.reporter.is_connected() {
            std::future::pending().await
        }
    }

    /// Removes the kinds that agents route traffic by.
    async fn revoke(&self, memory: &mut Memory) {
        tracing::warn!(
            cluster = %self.name,
            "cluster {} could not be read for --cache-ttl: removing its services, service exports and endpoint slices",
            self.name
        );
        self.surroundings.reporter.change(|status| status.revocation_count += 1);
        for (kind, memory) in Kind::ALL.into_iter().zip(&mut memory.kinds) {
            if kind.is_revocable() {
                memory.revoke(&Scope { cluster: self.name.clone(), kind });
                self.surroundings.reporter.holds(kind, 0);
                // an error means that the committer has ended, and the process ends with it
                let _ = memory.deliver(&self.surroundings.commands).await;
            }
        }
    }

    fn remember(&self) -> Memory {
        let published = self.surroundings.mirror.current();
        let scope = |kind| Scope { cluster: self.name.clone(), kind };
        for kind in Kind::ALL {
            self.surroundings.reporter.holds(kind, published.view.held_count(&scope(kind)));
        }
        Memory {
            record: published.view.cluster(&self.name).cloned().unwrap_or_default(),
            kinds: Kind::ALL.map(|kind| KindMemory::new(Resync::new(scope(kind), published.view.cursor(&scope(kind)).cloned()))),
            untried: Vec::new(),
        }
    }

    /// Runs one connection, from reading the client file to the error that ends it.
    async fn attempt(&self, content: &Arc<[u8]>, memory: &mut Memory) -> AttemptError {
        let bytes = Arc::clone(content);
        let file = match tokio::task::spawn_blocking(move || ClientFile::parse(&bytes)).await {
            Ok(file) => file,
            Err(error) => return AttemptError::Cluster(format!("cannot read the client file of cluster {}: {error}", self.name)),
        };
        let warnings = file.as_ref().ok().and_then(ClientFile::warnings);
        self.surroundings.reporter.file_is(file.as_ref().err().map(ToString::to_string), warnings);
        let file = match file {
            Ok(file) => file.config,
            Err(error) => return AttemptError::Cluster(format!("cannot use the client file of cluster {}: {error}", self.name)),
        };
        self.await_files(&file).await;
        self.surroundings.reporter.connecting();
        let endpoint = match memory.next_endpoint(&file) {
            Some(endpoint) => endpoint,
            None => return AttemptError::Cluster(format!("the client file of cluster {} has no endpoint", self.name)),
        };
        let attempt = Attempt { task: self, file: &file, endpoint: &endpoint };
        match attempt.run(memory).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    /// Waits for the certificates and keys that the file names (docs/develop/protocol.md §3.2), and
    /// reports the missing ones.
    async fn await_files(&self, file: &EtcdConfig) {
        loop {
            let missing = file.missing_files();
            if missing.is_empty() {
                return;
            }
            let names: Vec<String> = missing.iter().map(|path| path.display().to_string()).collect();
            self.surroundings.reporter.waiting(Phase::WaitingForFiles, &format!("waiting for {}", names.join(", ")));
            sleep(FILES_INTERVAL).await;
        }
    }
}

impl Memory {
    /// Returns the next endpoint in random order; no endpoint comes twice before all were tried.
    /// Replicas are separate etcds, so each connection uses exactly one.
    fn next_endpoint(&mut self, file: &EtcdConfig) -> Option<Endpoint> {
        if self.untried.is_empty() {
            self.untried = file.endpoints().to_vec();
            self.untried.shuffle(&mut rand::rng());
        }
        self.untried.pop()
    }

    /// Resets the state of all kinds after the cluster was removed from the mirror.
    pub(super) fn forget(&mut self) {
        for kind in &mut self.kinds {
            kind.forget();
        }
    }
}
