//! The registry of remote clusters: runs one task for each cluster that has a client file.
//!
//! It handles the [`DirectoryEvent`]s, publishes the status of all clusters and of the directory,
//! and removes clusters whose file was deleted. A task that panics is restarted; other clusters are
//! not affected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::DirectoryEvent;
use super::bounds::SizeTracker;
use super::cluster::{ClusterTask, MeshOptions};
use super::concurrency::{ListLimiter, start_wait};
use super::ids::ReservedClusterIds;
use super::reporter::Reporter;
use super::scope::ClusterContext;
use crate::commit::{CommandSender, SnapshotReceiver};
use crate::instruments::ReminderSchedule;
use crate::model::{ClusterName, ClusterStatus, Command, DeleteReason, DirectoryState, Kind, Phase, Scope};

/// Status of every cluster, by name.
pub type StatusBoard = Arc<BTreeMap<ClusterName, watch::Receiver<ClusterStatus>>>;

/// Wait before a task that panicked is restarted: the longest wait of the back-off, because a panic
/// is a bug that probably repeats.
const PANIC_WAIT: Duration = Duration::from_secs(30);

/// Number of checks for broken clusters per reminder interval. The start and the end of a failure
/// are then noticed within a minute.
const CHECKS_PER_REMINDER: u32 = 10;

/// The registry of remote clusters.
#[derive(Debug)]
pub struct Mesh {
    options: MeshOptions,
    commands: CommandSender,
    mirror: SnapshotReceiver,
    board: watch::Sender<StatusBoard>,
    directory: watch::Sender<DirectoryState>,
    unpublished_state: Option<DirectoryState>,
    ids: Arc<ReservedClusterIds>,
    list_limiter: ListLimiter,
    clusters: BTreeMap<ClusterName, ClusterHandle>,
    tasks: JoinSet<()>,
}

/// A cluster with a client file, and its task.
#[derive(Debug)]
struct ClusterHandle {
    content: watch::Sender<Arc<[u8]>>,
    status: watch::Receiver<ClusterStatus>,
    reporter: Reporter,
    task: Id,
    abort: tokio::task::AbortHandle,
}

impl Mesh {
    /// Creates a registry without clusters. The ids of stored clusters are reserved.
    #[must_use]
    pub fn new(
        options: MeshOptions,
        commands: CommandSender,
        mirror: SnapshotReceiver,
        board: watch::Sender<StatusBoard>,
        directory: watch::Sender<DirectoryState>,
    ) -> Self {
        let view = &mirror.current().view;
        let stored = view.cluster_names().into_iter().filter_map(|name| Some((view.cluster(&name)?.config.as_ref()?.id, name.clone())));
        let ids = Arc::new(ReservedClusterIds::new(stored));
        let (list_limiter, clusters, tasks) = (ListLimiter::default(), BTreeMap::new(), JoinSet::new());
        Self { options, commands, mirror, board, directory, unpublished_state: None, ids, list_limiter, clusters, tasks }
    }

    /// Runs until `stop` is cancelled or the directory's watcher ends. All cluster tasks have ended
    /// when it returns.
    pub async fn run(mut self, mut events: mpsc::Receiver<DirectoryEvent>, stop: CancellationToken) {
        let remind_interval = self.options.timing.cluster.remind_interval;
        let mut reminders = ReminderSchedule::new(remind_interval);
        let mut check = interval((remind_interval / CHECKS_PER_REMINDER).max(Duration::from_millis(1)));
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.remove_ignored().await;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                event = events.recv() => match event {
                    Some(event) => {
                        self.mirror.marks().directory_events.record(events.len() + 1);
                        self.handle_event(event).await;
                        self.publish_directory();
                    }
                    None => break,
                },
                Some(ended) = self.tasks.join_next_with_id() => self.restart_ended_task(ended),
                _ = check.tick() => self.remind(&mut reminders),
            }
        }
        self.tasks.shutdown().await;
    }

    /// Removes the entries that an earlier start stored of clusters that are ignored now. The scans
    /// of the directory would remove them too, but only once the directory is readable.
    async fn remove_ignored(&mut self) {
        let stored = self.mirror.current().view.cluster_names();
        for cluster in self.options.ignored_clusters.clone() {
            if stored.contains(&cluster) && self.options.local.as_ref() != Some(&cluster) {
                self.remove(&cluster).await;
            }
        }
    }

    /// Logs every cluster that is still not live, at the reminder interval.
    fn remind(&self, reminders: &mut ReminderSchedule<ClusterName>) {
        let is_broken = |handle: &ClusterHandle| handle.status.borrow().phase != Phase::Live;
        let broken = self.clusters.iter().filter(|(_, handle)| is_broken(handle)).map(|(cluster, _)| cluster.clone());
        for (cluster, broken_for) in reminders.due(broken, Instant::now()) {
            let Some(status) = self.clusters.get(&cluster).map(|handle| handle.status.borrow().clone()) else { continue };
            let (phase, error, minutes) = (status.phase.api_name(), status.last_error.as_deref(), broken_for.as_secs() / 60);
            tracing::warn!(%cluster, phase, error, minutes, failures = status.failure_count, "cluster {cluster} is still not live: meshkeep serves its last known state");
        }
    }

    async fn handle_event(&mut self, event: DirectoryEvent) {
        match event {
            DirectoryEvent::Upserted { cluster, path, content, .. } => match self.clusters.get(&cluster) {
                Some(handle) => {
                    handle.content.send_replace(content);
                }
                None => {
                    tracing::info!(%cluster, path = %path.display(), "cluster {cluster} added");
                    self.start(cluster, content, start_wait(self.clusters.len() + 1, rand::random()));
                }
            },
            DirectoryEvent::Removed { cluster } => self.remove(&cluster).await,
            DirectoryEvent::FirstScan { present } => {
                let known_clusters = self.mirror.current().view.cluster_names();
                let is_removed = |cluster: &ClusterName| !present.contains(cluster) && self.options.local.as_ref() != Some(cluster);
                let removed: Vec<ClusterName> = known_clusters.into_iter().filter(is_removed).collect();
                for cluster in removed {
                    self.remove(&cluster).await;
                }
            }
            DirectoryEvent::StateChanged(state) => self.unpublished_state = Some(state),
        }
    }

    /// Publishes the state of the directory once the status of every cluster is published,
    /// including that of the own cluster. Once the directory is readable, clients treat a cluster
    /// without a published status as one without a file.
    fn publish_directory(&mut self) {
        if self.options.local.as_ref().is_none_or(|own| self.clusters.contains_key(own))
            && let Some(state) = self.unpublished_state.take()
        {
            self.directory.send_replace(state);
        }
    }

    fn start(&mut self, cluster: ClusterName, content: Arc<[u8]>, wait: Duration) {
        let (reporter, status) = Reporter::new(cluster.clone());
        let (content_sender, content) = watch::channel(content);
        let view = &self.mirror.current().view;
        let count = |kind| view.scope(&Scope { cluster: cluster.clone(), kind }).map_or(0, |state| u64::from(state.entry_count));
        let key_counts = Kind::ALL.map(|kind| if kind == Kind::Node { count(kind) + count(Kind::NodeIp) } else { count(kind) });
        let context = ClusterContext {
            size_tracker: SizeTracker::new(self.options.bounds, key_counts),
            decoded: self.options.decoded.clone(),
            commands: self.commands.clone(),
            mirror: self.mirror.clone(),
            reporter: reporter.clone(),
            timing: self.options.timing.clone(),
            list_limiter: self.list_limiter.clone(),
            verification_requests: self.options.verification_requests.clone(),
        };
        let task = ClusterTask { name: cluster.clone(), options: self.options.clone(), ids: Arc::clone(&self.ids), content, context };
        let abort = self.tasks.spawn(async move {
            tokio::time::sleep(wait).await;
            task.run().await;
        });
        self.clusters.insert(cluster, ClusterHandle { content: content_sender, status, reporter, task: abort.id(), abort });
        self.publish_board();
    }

    /// Ends a cluster's task and then removes the cluster from the mirror. The order matters: the
    /// task must not send anything after the removal.
    async fn remove(&mut self, cluster: &ClusterName) {
        tracing::info!(%cluster, "cluster {cluster} removed: removing its entries");
        if let Some(handle) = self.clusters.remove(cluster) {
            handle.reporter.enter_phase(Phase::Draining);
            handle.abort.abort();
            while let Some(ended) = self.tasks.join_next_with_id().await {
                let id = task_id(&ended);
                self.restart_ended_task(ended);
                if id == handle.task {
                    break;
                }
            }
        }
        self.ids.release(cluster);
        self.options.verification_requests.forget(cluster.as_str());
        let removal = Command::Remove { cluster: cluster.clone(), reason: DeleteReason::ClusterRemoved };
        if self.commands.send(removal).await.is_err() {
            tracing::error!(%cluster, "meshkeep is stopping: the entries of cluster {cluster} are removed at the next start");
        }
        self.publish_board();
    }

    /// Restarts a task that ended by itself.
    fn restart_ended_task(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = task_id(&ended);
        let Some(cluster) = self.clusters.iter().find(|(_, handle)| handle.task == id).map(|(cluster, _)| cluster.clone()) else { return };
        let Some(handle) = self.clusters.remove(&cluster) else { return };
        tracing::error!(%cluster, retry_in_s = PANIC_WAIT.as_secs(), "the task of cluster {cluster} panicked: restarting it (please report this)");
        let content = Arc::clone(&handle.content.borrow());
        self.start(cluster.clone(), content, PANIC_WAIT);
        if let Some(handle) = self.clusters.get(&cluster) {
            handle.reporter.record_failure("the task of the cluster panicked: see the log", PANIC_WAIT);
            debug_assert!(handle.status.borrow().next_retry > Some(Instant::now()), "a restarted task waits");
        }
    }

    fn publish_board(&self) {
        let board = self.clusters.iter().map(|(cluster, handle)| (cluster.clone(), handle.status.clone())).collect();
        self.board.send_replace(Arc::new(board));
    }
}

fn task_id(ended: &Result<(Id, ()), JoinError>) -> Id {
    match ended {
        Ok((id, ())) => *id,
        Err(error) => error.id(),
    }
}
