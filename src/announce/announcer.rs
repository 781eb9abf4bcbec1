//! The announcer's main loop. A lock makes sure that one process at a time announces a cluster. Its
//! holder writes the heartbeat, deletes unused identities and runs passes. Each pass makes the etcd
//! equal to the plan.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::error::FileError;
use super::files::read_files;
use super::follow::{ChangeRules, FileFollower, FollowError, FollowReport, write_metrics};
use super::plan::{ClusterPlan, Resource};
use super::publish::{PlanPublisher, PublishError};
use super::retire::delete_cluster_keys;
use crate::client_file::{ClientFile, ClientFileError};
use crate::files::{SMALL_FILE_BYTES_MAX, read_argument};
use crate::model::{ClusterId, ClusterName, redacted_path};
use crate::wire::cluster_config::parse_cluster_config;
use crate::wire::keys::{cluster_config_key, synced_prefix, watched_prefix};
use crate::wire::time_text;
use cilium_kvstore::allocator::{Allocator, AllocatorOptions, CollectionLimits, EtcdBackend, StaleIds};
use cilium_kvstore::{ClientOptions, EtcdConfig, KeyLifetime, KvLocker, KvstoreError, Session, SessionOptions};

/// Prefix of the identities in a cluster's own etcd (docs/develop/protocol.md §1.2).
const IDENTITIES_PREFIX: &str = "cilium/state/identities/v1";

/// Time that a second announcer waits for the lock: 25 s until the lease of a dead holder expires,
/// and a margin.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Interval between heartbeats. Same as Cilium's; a reader gives up after two minutes without one.
const HEARTBEAT_INTERVAL: Duration = Duration::from_mins(1);

/// Maximum time that writing a heartbeat may take (`pkg/kvstore/heartbeat`).
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(25);

/// Interval between passes that nothing else triggered. A clustermesh-apiserver rewrites its
/// cluster config as often.
const PASS_INTERVAL: Duration = Duration::from_mins(5);

/// Wait after a change before the next pass, so that one pass covers several changes.
const DEBOUNCE_TIME: Duration = Duration::from_millis(50);

/// Wait after the first failed pass. After n failures in a row the wait is n times as long, up to
/// [`RETRY_MAX`].
const RETRY_STEP: Duration = Duration::from_secs(1);
/// Maximum wait after a failed pass, well below the two minutes after which readers give up.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Interval between collections of unused identities (`--identity-gc-interval`).
const COLLECTION_INTERVAL: Duration = Duration::from_mins(15);
/// Maximum number of identities deleted per minute (`--identity-gc-rate-limit`).
const COLLECTION_RATE: NonZeroU32 = match NonZeroU32::new(2_500) {
    Some(rate) => rate,
    None => NonZeroU32::MIN,
};

/// Maximum number of queued events per watched prefix: the size of a page of a list (`etcd.limit`,
/// 256).
const EVENTS_MAX: usize = 256;

/// Maximum requests per second to the etcd. Cilium's chart gives KVStoreMesh the same limits:
/// `etcd.qps`, and `etcd.bootstrapQps` during the start.
const REQUESTS_PER_SECOND_MAX: u32 = 100;
const BOOTSTRAP_REQUESTS_PER_SECOND_MAX: u32 = 10_000;

/// Options of `announce` and `retire_cluster`.
#[derive(Debug, Clone)]
pub struct AnnounceOptions {
    /// Path of the client file for the target etcd.
    pub to: PathBuf,
    /// Paths of the files that describe the cluster.
    pub files: Vec<PathBuf>,
    /// Time to live of the lease that the announced keys are attached to.
    pub lease_ttl: Duration,
    /// Rules that decide when a changed file is applied.
    pub rules: ChangeRules,
    /// Signal to apply all changes of the files immediately (SIGHUP).
    pub apply_now: Arc<Notify>,
    /// Path of the metrics file, if one is wanted.
    pub metrics_file: Option<PathBuf>,
}

/// The reason why `announce` or `retire_cluster` ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    /// The files contain errors, so nothing was announced.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Files(Vec<FileError>),
    /// The client file cannot be read.
    #[error("{} cannot be read: {reason}", redacted_path(path))]
    ClientFile {
        /// Path of the client file.
        path: PathBuf,
        /// Error text of the operating system.
        reason: String,
    },
    /// The client file is invalid.
    #[error("{}: {reason}", redacted_path(path))]
    Client {
        /// Path of the client file.
        path: PathBuf,
        /// Reason why the client file is invalid.
        reason: ClientFileError,
    },
    /// Another process announces the cluster.
    #[error(
        "cluster {cluster} is already announced by {holder}, which did not end within {LOCK_WAIT:?}: stop it, or announce another cluster"
    )]
    Announced {
        /// Name of the cluster.
        cluster: String,
        /// Host, process id and start time of the process that has the lock.
        holder: String,
    },
    /// The etcd already has a cluster config of this cluster with another id.
    #[error(
        "cluster {cluster} has id {existing_id} in that etcd, but the files have id {id}: retire it with files that have id {existing_id}, or announce it under another name"
    )]
    OtherId {
        /// Name of the cluster.
        cluster: ClusterName,
        /// Id in the etcd's cluster config.
        existing_id: ClusterId,
        /// Id in the files.
        id: ClusterId,
    },
    /// [`retire_cluster`] was interrupted before all keys were deleted.
    #[error("stopped before cluster {0} was retired: run the command again")]
    Interrupted(ClusterName),
    /// A request to the etcd failed.
    #[error(transparent)]
    Kvstore(#[from] KvstoreError),
    /// A background task panicked.
    #[error("cannot read the files: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl From<FollowError> for AnnounceError {
    fn from(error: FollowError) -> Self {
        match error {
            FollowError::Files(errors) => Self::Files(errors),
            FollowError::Task(error) => Self::Task(error),
        }
    }
}

struct Announcer {
    session: Session,
    plans: watch::Receiver<Arc<ClusterPlan>>,
}

/// Announces the cluster until `stop` is cancelled. The announced keys stay until their leases
/// expire, so a restart within that time withdraws nothing.
///
/// # Errors
/// [`AnnounceError`]. A failed request to the etcd does not end the announcer: it logs the failure
/// and tries again.
pub async fn announce(options: &AnnounceOptions, stop: CancellationToken) -> Result<(), AnnounceError> {
    let starting = FileFollower::start(&options.files, options.rules, Arc::clone(&options.apply_now));
    let Some(follower) = stop.run_until_cancelled(starting).await else { return Ok(()) };
    let follower = follower?;
    let (plans, reports) = (follower.plans(), follower.reports());
    let session = open(options).await?;
    let announcer = Announcer { session: session.clone(), plans: plans.clone() };
    let metrics = async {
        match &options.metrics_file {
            Some(path) => write_metrics(path.clone(), plans.clone(), reports.clone()).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = follower.follow() => ended.map_err(AnnounceError::from),
        ended = metrics => ended.map_err(AnnounceError::from),
        ended = announcer.run(&stop) => ended,
    };
    summarize(&plans.borrow(), &reports.borrow());
    session.close().await;
    ended
}

/// Logs what was announced when the announcer ends, and which changes were still held back.
fn summarize(plan: &ClusterPlan, report: &FollowReport) {
    let (cluster, nodes, workloads, services) = (&plan.cluster, plan.nodes.len(), plan.workloads.len(), plan.services.len());
    if report.held_back.is_empty() && report.errors.is_empty() {
        tracing::info!(%cluster, nodes, workloads, services, "stopped announcing cluster {cluster}: its keys stay until their leases expire");
        return;
    }
    let held_back: Vec<String> = report.held_back.iter().map(ToString::to_string).collect();
    tracing::warn!(
        %cluster, nodes, workloads, services, held = held_back.join("; "), file_errors = report.errors.len(),
        "stopped announcing cluster {cluster}: its keys stay until their leases expire; some changes of the files were not applied, and the next start applies them"
    );
}

/// Retires an announced cluster in the order that KVStoreMesh uses: the cluster config, after
/// `grace` the canaries, then all other keys.
///
/// # Errors
/// [`AnnounceError`].
pub async fn retire_cluster(options: &AnnounceOptions, grace: Duration, stop: CancellationToken) -> Result<(), AnnounceError> {
    let files = options.files.clone();
    // reading large files blocks for a while
    let plan = spawn_blocking(move || read_files(&files)).await?.map_err(AnnounceError::Files)?;
    let (plan, session) = (Arc::new(plan), open(options).await?);
    let (_sender, plans) = watch::channel(Arc::clone(&plan));
    let announcer = Announcer { session: session.clone(), plans };
    let work = async {
        let lock = announcer.lock().await?;
        let deleted = delete_cluster_keys(&session, &plan, grace).await;
        let _ = lock.unlock().await;
        Ok(deleted?)
    };
    let ended = stop.run_until_cancelled(work).await.unwrap_or_else(|| Err(AnnounceError::Interrupted(plan.cluster.clone())));
    session.close().await;
    ended
}

fn read_client_file(path: &Path) -> Result<EtcdConfig, AnnounceError> {
    let content = read_argument(path, SMALL_FILE_BYTES_MAX)
        .map_err(|error| AnnounceError::ClientFile { path: path.to_owned(), reason: error.to_string() })?;
    let parsed = ClientFile::parse(&content);
    parsed.map(|file| file.config).map_err(|reason| AnnounceError::Client { path: path.to_owned(), reason })
}

async fn open(options: &AnnounceOptions) -> Result<Session, AnnounceError> {
    let (to, lease_ttl) = (options.to.clone(), options.lease_ttl);
    let file = spawn_blocking(move || read_client_file(&to)).await??;
    let client = ClientOptions {
        requests_per_second_max: REQUESTS_PER_SECOND_MAX,
        bootstrap_requests_per_second_max: Some(BOOTSTRAP_REQUESTS_PER_SECOND_MAX),
        ..ClientOptions::default()
    };
    Ok(Session::start(file, SessionOptions { client, lease_ttl, ..SessionOptions::default() }, CancellationToken::new()))
}

impl Announcer {
    /// Announces until `stop` is cancelled.
    async fn run(&self, stop: &CancellationToken) -> Result<(), AnnounceError> {
        let Some(lock) = stop.run_until_cancelled(self.lock()).await else { return Ok(()) };
        let lock = lock?;
        let plan = Arc::clone(&self.plans.borrow());
        let (sender, mut events) = mpsc::channel(EVENTS_MAX);
        let backend = EtcdBackend::new(self.session.clone(), IDENTITIES_PREFIX, &format!("announce-{}", plan.cluster));
        let options =
            AllocatorOptions { range: plan.range(), master_key_protection: true, events: Some(sender), ..AllocatorOptions::default() };
        let allocator = Allocator::start(backend, options).unwrap_or_else(|error| unreachable!("no mask is set: {error}"));
        let publisher = PlanPublisher::new(self.session.clone(), allocator.clone());
        let lost_identities = async {
            while let Some(event) = events.recv().await {
                publisher.forget_identity(&event);
            }
        };
        let ended = tokio::select! {
            () = lost_identities => Ok(()),
            ended = self.announce_with_lock(lock, &publisher, &allocator, &plan, stop) => ended,
        };
        allocator.delete().await;
        ended
    }

    /// Announces while this process has the lock, and acquires the lock again if it is lost.
    /// Identities keep their numbers in between.
    async fn announce_with_lock(
        &self,
        mut lock: KvLocker,
        publisher: &PlanPublisher,
        allocator: &Allocator<EtcdBackend>,
        plan: &ClusterPlan,
        stop: &CancellationToken,
    ) -> Result<(), AnnounceError> {
        loop {
            tokio::select! {
                () = lock.lost() => tracing::warn!("the lock of cluster {} was lost with its lease: acquiring it again", plan.cluster),
                () = self.run_locked_tasks(publisher, allocator, plan) => {}
                () = stop.cancelled() => {
                    // so that the next announcer does not have to wait for the lease
                    let _ = lock.unlock().await;
                    return Ok(());
                }
            }
            drop(lock);
            match stop.run_until_cancelled(self.lock()).await {
                Some(acquired_lock) => lock = acquired_lock?,
                None => return Ok(()),
            }
        }
    }

    /// Waits for the cluster's lock. Waits for an unreachable etcd without limit, but returns
    /// [`AnnounceError::Announced`] if another process keeps the lock for longer than
    /// [`LOCK_WAIT`].
    async fn lock(&self) -> Result<KvLocker, AnnounceError> {
        let cluster = self.plans.borrow().cluster.clone();
        let (lock_key, holder_key) = (format!("cilium/.announce/lock/{cluster}"), format!("cilium/.announce/holder/{cluster}"));
        let mut failures = 0;
        loop {
            self.session.connected().await?;
            let failed = match timeout(LOCK_WAIT, self.session.lock_path_without_limit(lock_key.as_bytes())).await {
                Ok(Ok(lock)) => match self.claim(&lock, &holder_key).await {
                    Ok(()) => return Ok(lock),
                    Err(AnnounceError::Kvstore(error)) => error,
                    Err(error) => return Err(error),
                },
                Ok(Err(error)) => error,
                Err(_) => match self.session.get(holder_key.as_bytes()).await {
                    Ok(key_value) => {
                        let holder = key_value.map_or_else(
                            || "an unknown process".into(),
                            |key_value| String::from_utf8_lossy(&key_value.value).into_owned(),
                        );
                        return Err(AnnounceError::Announced { cluster: cluster.as_str().into(), holder });
                    }
                    Err(error) => error,
                },
            };
            if matches!(failed, KvstoreError::Closed { .. }) {
                return Err(failed.into());
            }
            failures += 1;
            if failures == 1 {
                tracing::warn!(error = %failed, "cannot acquire the lock of cluster {cluster}: trying again");
            }
            sleep(retry_after(failures)).await;
        }
    }

    /// Writes this process's name to the holder key. Returns [`AnnounceError::OtherId`] if the etcd
    /// has a cluster config with another id: then another cluster uses the name, and its keys must
    /// not change.
    async fn claim(&self, lock: &KvLocker, holder_key: &str) -> Result<(), AnnounceError> {
        let (cluster, id) = (self.plans.borrow().cluster.clone(), self.plans.borrow().id);
        let config = self.session.get(cluster_config_key(&cluster).as_bytes()).await?;
        let existing_id = config.and_then(|config| parse_cluster_config(&config.value).ok()).map(|config| config.id);
        if let Some(existing_id) = existing_id.filter(|existing_id| *existing_id != id) {
            return Err(AnnounceError::OtherId { cluster, existing_id, id });
        }
        self.session.update_if_locked(holder_key.as_bytes(), process_name().as_bytes(), KeyLifetime::Leased, lock).await?;
        Ok(())
    }

    /// Runs the tasks that need the lock.
    async fn run_locked_tasks(&self, publisher: &PlanPublisher, allocator: &Allocator<EtcdBackend>, plan: &ClusterPlan) {
        tokio::join!(
            self.watch(publisher, plan, Some(Resource::Nodes)),
            self.watch(publisher, plan, Some(Resource::Ips)),
            self.watch(publisher, plan, Some(Resource::Services)),
            self.watch(publisher, plan, None),
            self.watch_config(publisher, plan),
            self.run_passes(publisher),
            self.write_heartbeats(publisher),
            self.collect_identities(allocator, plan)
        );
    }

    /// Runs a pass after each change of the plan or of the etcd, and one every [`PASS_INTERVAL`].
    async fn run_passes(&self, publisher: &PlanPublisher) {
        let mut plans = self.plans.clone();
        let (mut failures, mut announced, mut last_error) = (0, false, String::new());
        loop {
            let plan = Arc::clone(&plans.borrow_and_update());
            match publisher.pass(&plan).await {
                Ok(()) => {
                    if failures > 0 || !announced {
                        tracing::info!(cluster = %plan.cluster, id = plan.id.0, "cluster {} is announced", plan.cluster);
                    }
                    self.session.end_bootstrap();
                    (failures, announced, last_error) = (0, true, String::new());
                }
                Err(error) => {
                    failures += 1;
                    let text = error.to_string();
                    if text != last_error {
                        match &error {
                            PublishError::Kvstore(_) => {
                                tracing::error!(%error, "cannot write cluster {} into the etcd: trying again", plan.cluster)
                            }
                            PublishError::Identities { .. } | PublishError::IdentitiesGone => {
                                tracing::error!(%error, "part of cluster {} is not announced: trying again", plan.cluster)
                            }
                        }
                        last_error = text;
                    }
                }
            }
            let wait = if failures > 0 { retry_after(failures) } else { PASS_INTERVAL };
            tokio::select! {
                changed = plans.changed() => if changed.is_err() { return },
                () = publisher.pass_requested.notified(), if failures == 0 => {}
                () = self.session.disconnected(), if failures == 0 => {}
                () = sleep(wait) => {}
            }
            sleep(DEBOUNCE_TIME).await;
        }
    }

    async fn write_heartbeats(&self, publisher: &PlanPublisher) {
        let mut ticks = interval(HEARTBEAT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match timeout(HEARTBEAT_TIMEOUT, publisher.write_heartbeat()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "cannot write the heartbeat: clients disconnect after two minutes without one"),
                Err(_) => tracing::warn!("the heartbeat was not written in time: clients disconnect after two minutes without one"),
            }
        }
    }

    /// Watches the keys of a resource, or the canaries for `None`, for changes that other clients
    /// make.
    async fn watch(&self, publisher: &PlanPublisher, plan: &ClusterPlan, resource: Option<Resource>) {
        let prefix =
            resource.map_or_else(|| synced_prefix(&plan.cluster), |resource| watched_prefix(resource.kind(), &plan.cluster, false));
        let mut watcher = self.session.list_and_watch(prefix.as_bytes(), EVENTS_MAX);
        while let Some(event) = watcher.next().await {
            publisher.compare_event(plan, resource, &event);
        }
    }

    async fn watch_config(&self, publisher: &PlanPublisher, plan: &ClusterPlan) {
        let key = cluster_config_key(&plan.cluster);
        let mut watcher = self.session.list_and_watch(key.as_bytes(), EVENTS_MAX);
        while let Some(event) = watcher.next().await {
            // the watched prefix also matches clusters whose names start with this one
            if event.key == key.as_bytes() {
                publisher.compare_event(plan, None, &event);
            }
        }
    }

    async fn collect_identities(&self, allocator: &Allocator<EtcdBackend>, plan: &ClusterPlan) {
        let limits = CollectionLimits { range: plan.range(), deletes_per_minute: COLLECTION_RATE };
        let mut ticks = interval(COLLECTION_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stale = StaleIds::new();
        loop {
            ticks.tick().await;
            match allocator.run_gc(&stale, &limits).await {
                Ok(round) => {
                    if !round.deleted.is_empty() {
                        tracing::info!(deleted = round.deleted.len(), alive = round.alive, "deleted unused identities");
                    }
                    stale = round.stale;
                }
                Err(error) => tracing::warn!(%error, "cannot delete unused identities: the next round tries again"),
            }
        }
    }
}

fn retry_after(failures: u32) -> Duration {
    RETRY_STEP.saturating_mul(failures).min(RETRY_MAX)
}

/// Returns the name of this process for the holder key: host, process id and start time.
fn process_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.is_empty() { "a host without a name" } else { host };
    format!("{host} (process {}, since {})", std::process::id(), time_text(SystemTime::now()))
}
