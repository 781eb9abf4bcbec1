//! The life of one remote cluster: connect, read its cluster config, wait for canaries, mirror its kinds, and start over with
//! back-off when anything fails (docs/develop/protocol.md §3.3; Cilium's `pkg/clustermesh/common/remote_cluster.go`).
//!
//! Owns: the resync machines of its kinds, which outlive connections. Receives the content of its file. Emits commands to the
//! one writer and its status. Nothing here touches another cluster.

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
use super::timing::STABLE_CONNECTION;
use crate::commit::DecodedBudget;
use crate::kvstore::{ClientFile, ClientOptions, Endpoint};
use crate::model::{ClusterId, ClusterName, ClusterRecord, Kind, MaxConnectedClusters, Phase, Scope};

/// What every cluster of a mesh has in common.
#[derive(Debug, Clone)]
pub struct MeshOptions {
    /// The own cluster's id; 0 is "not known".
    pub own_id: ClusterId,
    /// The own cluster, where it is mirrored too (`--local-etcd`): the config directory says nothing of it.
    pub local: Option<ClusterName>,
    /// The clusters that are read although they have no cluster config (`--legacy-clusters`).
    pub legacy_clusters: Arc<BTreeSet<ClusterName>>,
    /// How many clusters the mesh can have.
    pub max_connected_clusters: MaxConnectedClusters,
    /// Bounds of each connection.
    pub client: ClientOptions,
    /// What each cluster may have.
    pub bounds: ClusterBounds,
    /// The room for large values that are decoded.
    pub decoded: DecodedBudget,
    /// Times of each cluster's life.
    pub timing: super::Timing,
}

/// The task of one remote cluster.
#[derive(Debug)]
pub(super) struct ClusterTask {
    pub(super) name: ClusterName,
    pub(super) options: MeshOptions,
    pub(super) ids: Arc<ClusterIds>,
    /// The bytes of its file, and each new version of them.
    pub(super) content: watch::Receiver<Arc<[u8]>>,
    pub(super) surroundings: Surroundings,
}

/// Why an attempt is over.
enum End {
    Failed(AttemptError),
    /// It is time to give up what depends on the cluster.
    AwayTooLong,
    /// Its file has other bytes now, or is gone.
    FileChanged {
        is_open: bool,
    },
}

/// A cluster that cannot be read.
#[derive(Debug)]
struct Away {
    /// Since when, or since the start.
    since: Instant,
    /// What depends on it was given up (`--cache-ttl`).
    revoked: bool,
}

/// What a cluster's task remembers between connections.
#[derive(Debug)]
pub(super) struct Memory {
    /// What is stored of the cluster, or on its way there.
    pub(super) record: ClusterRecord,
    /// One for each kind, in the order of [`Kind::ALL`].
    pub(super) kinds: [KindMemory; Kind::ALL.len()],
    /// The endpoints that were not tried since the last shuffle.
    untried: Vec<Endpoint>,
}

impl ClusterTask {
    /// Runs until it is dropped, or its file or the writer is gone.
    pub(super) async fn run(self) {
        let reporter = self.surroundings.reporter.clone();
        let commands = self.surroundings.commands.clone();
        tokio::select! {
            () = self.live() => {}
            // ends with the writer, which ends everything
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
                    tracing::info!(cluster = %self.name, "the cluster's file changed: connecting anew");
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
                wait = self.options.timing.too_large_wait;
            }
            if error.is_going_back() {
                self.surroundings.reporter.went_back(&error);
            }
            if matches!(error, AttemptError::ConfigMissing) {
                // no failure of the connection: the next one follows soon, in case the address leads to another etcd by then
                backoff.reset();
                wait = self.options.timing.backoff_min;
            } else {
                self.surroundings.reporter.failure(&error.to_string(), wait);
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = self.away_too_long(&away) => {
                    away.revoked = true;
                    self.revoke(&mut memory).await;
                }
                // a closed channel means that this task is about to be ended: the next round sees it
                _ = file_changes.changed() => file_changes.mark_changed(),
            }
        }
    }

    /// Waits until the cluster could not be read for as long as `--cache-ttl` says; for ever where it says nothing, where that has
    /// been seen to, and once it is connected (Cilium's `ttlChecker`, `pkg/clustermesh/common/remote_cluster.go`).
    async fn away_too_long(&self, away: &Away) {
        let Some(ttl) = self.options.timing.cache_ttl.filter(|_| !away.revoked) else { return std::future::pending().await };
        sleep(ttl.saturating_sub(away.since.elapsed())).await;
        if self.surroundings.reporter.is_connected() {
            std::future::pending().await
        }
    }

    /// Gives up what agents send traffic by.
    async fn revoke(&self, memory: &mut Memory) {
        tracing::warn!(cluster = %self.name, "the cluster is away for longer than --cache-ttl: its services, service exports and endpoint slices are removed");
        self.surroundings.reporter.change(|status| status.revocation_count += 1);
        for (kind, memory) in Kind::ALL.into_iter().zip(&mut memory.kinds) {
            if kind.is_revocable() {
                memory.revoke(&Scope { cluster: self.name.clone(), kind });
                self.surroundings.reporter.holds(kind, 0);
                // a writer that is gone means that the process is about to end
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

    /// One connection, from its files to the error that ends it.
    async fn attempt(&self, content: &Arc<[u8]>, memory: &mut Memory) -> AttemptError {
        let bytes = Arc::clone(content);
        let file = match tokio::task::spawn_blocking(move || ClientFile::parse(&bytes)).await {
            Ok(file) => file,
            Err(error) => return AttemptError::Cluster(format!("the file of cluster {} could not be read: {error}", self.name)),
        };
        let slips = file.as_ref().ok().and_then(ClientFile::slips);
        self.surroundings.reporter.file_is(file.as_ref().err().map(ToString::to_string), slips);
        let file = match file {
            Ok(file) => file,
            Err(error) => return AttemptError::Cluster(format!("the file of cluster {} cannot be used: {error}", self.name)),
        };
        self.await_files(&file).await;
        self.surroundings.reporter.connecting();
        let endpoint = match memory.next_endpoint(&file) {
            Some(endpoint) => endpoint,
            None => return AttemptError::Cluster(format!("the file of cluster {} names no endpoint", self.name)),
        };
        let attempt = Attempt { task: self, file: &file, endpoint: &endpoint };
        match attempt.run(memory).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    /// Waits for the certificates and keys that the file names (§3.2), naming the ones that are missing.
    async fn await_files(&self, file: &ClientFile) {
        loop {
            let missing = file.missing_files();
            if missing.is_empty() {
                return;
            }
            let names: Vec<String> = missing.iter().map(|path| path.display().to_string()).collect();
            self.surroundings.reporter.waiting(Phase::WaitingForFiles, &format!("waiting for {}", names.join(", ")));
            sleep(self.options.timing.files_interval).await;
        }
    }
}

impl Memory {
    /// One endpoint for each connection, each once before any is tried again, in random order: replicas are etcds of their own.
    fn next_endpoint(&mut self, file: &ClientFile) -> Option<Endpoint> {
        if self.untried.is_empty() {
            self.untried = file.endpoints().to_vec();
            self.untried.shuffle(&mut rand::rng());
        }
        self.untried.pop()
    }

    /// Forgets everything that is held, because it was drained.
    pub(super) fn forget(&mut self) {
        for kind in &mut self.kinds {
            kind.forget();
        }
    }
}
