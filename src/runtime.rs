//! The composition root of a running sidecar. It first binds the addresses and opens the store,
//! because these can fail. Then it starts every task, and at the end stops them in order.
//!
//! This module owns every task. If one ends before the shutdown, the process ends with an error
//! that names the task. A shutdown stops the parts in the opposite direction of the data:
//! readiness, streams and listeners, mirrors, committer, store (docs/develop/invariants.md,
//! "Retries and shutdown").

mod descriptors;
mod early;
mod history;
mod load;
mod plan;
mod restore;
mod shutdown;
mod signals;
mod wiring;

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::api::{ApiOptions, BindError, BoundApi, etcd_service};
pub use crate::api::{DocumentVersion, openapi_json as openapi_document};
use crate::clustermesh::{DirectoryEvent, Mesh, watch_directory, watch_local_etcd};
use crate::commit::{
    Committer, DecodedBudget, PersistState, SnapshotReceiver, UnsyncedCounter, command_queue, folder, persister, snapshot_channel,
};
use crate::config::{Setting, Settings};
use crate::etcd_api;
use crate::handle::{ClusterStatuses, EarlyLookup, EarlyLookupReceiver, FindingSender, Handle, ProcessState, StoreReport};
use crate::history::{HistoryReader, HistoryWriter};
use crate::model::DirectoryState;
use crate::reflect::{self, ReflectOptions};
pub use crate::store::{Inspection, StoreError, inspect as inspect_store};
use crate::store::{OpenReport, Store};
use crate::telemetry::Log;

use self::history::RunningHistory;
pub use self::load::serve_dump;
use self::plan::{EpochSeed, StartPlan};
use self::restore::RestoredMirror;
pub use self::shutdown::SHUTDOWN_MAX;
use self::signals::ReloadTriggers;
pub use self::signals::{SignalRequest, Signals, StartSignals};
pub use self::wiring::client_options;

/// Maximum number of queued events of the config directory and the own cluster's file: one for each
/// cluster of the largest mesh (511) and the end of the scan.
const DIRECTORY_EVENTS_MAX: usize = 512;

/// Time that open requests have to finish after a shutdown begins. Streams end at once, and a
/// lookup takes microseconds.
const REQUEST_GRACE: Duration = Duration::from_secs(1);

/// Maximum time that the start waits for a reader of its addresses on standard output. A pipe holds
/// 64 KiB (pipe(7)), so only a full pipe delays the start.
const PRINT_WAIT_MAX: Duration = Duration::from_secs(1);

/// Time that opening the store may take before the server starts without it (503 `loading`).
/// Opening usually takes milliseconds, and with this wait an error of the data directory is the
/// first output. If another process holds the directory, it may need half a minute to end.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(1);

/// Error with which the process ends.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A task ended before the shutdown.
    #[error("the {0} ended unexpectedly: this is a bug, see the log")]
    TaskEnded(&'static str),
    /// The shutdown took too long, and not because of the data directory.
    #[error("the shutdown did not finish within {SHUTDOWN_MAX:?}: the next start reads unstored changes from the remote clusters again")]
    ShutdownOverdue,
    /// A second signal arrived during the shutdown.
    #[error("a second signal aborted the shutdown: the next start reads unstored changes from the remote clusters again")]
    Aborted,
}

/// Tasks and threads of a sidecar whose store is loaded.
struct RunningSidecar {
    tasks: JoinSet<&'static str>,
    committer: JoinHandle<()>,
    persister: JoinHandle<Store>,
    folder: JoinHandle<()>,
    history: Option<RunningHistory>,
    unsynced: UnsyncedCounter,
    stop_api: CancellationToken,
    stop_mirror: CancellationToken,
}

/// An open store, with the plan and the sender of early answers.
struct OpenedStore {
    store: Store,
    opened: OpenReport,
    early_plan: Option<StartPlan>,
    early: watch::Sender<Option<Arc<dyn EarlyLookup>>>,
}

/// The running server, and the channels that report the rest of the start to it.
struct StartedServer {
    tasks: JoinSet<&'static str>,
    handle: Handle,
    stop_api: CancellationToken,
    /// Cancelled when the server has ended.
    server_ended: CancellationToken,
    decoded: DecodedBudget,
    findings: FindingSender,
    loaded: watch::Sender<Option<SnapshotReceiver>>,
    cluster_statuses: watch::Sender<ClusterStatuses>,
    directory: watch::Sender<DirectoryState>,
    persistence: watch::Sender<PersistState>,
    store_report: watch::Sender<StoreReport>,
}

/// Reads every file that the settings name for the HTTP server, without binding an address.
///
/// # Errors
/// Returns [`RunError::Bind`], which names the file.
pub async fn check(settings: &Settings) -> Result<(), RunError> {
    let options =
        ApiOptions { health_listen: None, etcd_listen: None, ..wiring::api_options(settings, &ReloadTriggers::default(), usize::MAX) };
    Ok(BoundApi::bind(&[], &options).await.map(drop)?)
}

/// Runs the sidecar until a signal arrives. With a target, it also reflects the mirror into another
/// etcd.
///
/// # Errors
/// Returns [`RunError`]. Everything that can fail is tried before the server starts, except for a
/// store that fails while it is read.
pub async fn run(
    settings: Settings,
    effective_settings: Vec<Setting>,
    mut signals: Signals,
    log: &Log,
    reflect: Option<ReflectOptions>,
) -> Result<(), RunError> {
    let reload = ReloadTriggers::default();
    let descriptors = descriptors::raise_limit(settings.max_connected_clusters);
    let started = Instant::now();
    let Some(bound) = shutdown::run_until_stopped(bind(&settings, &reload, descriptors), &mut signals, &reload).await.transpose()? else {
        return Ok(());
    };
    let (early_sender, early) = watch::channel(None);
    let (opening, data_dir) = (wiring::store_open_options(&settings), settings.data_dir.clone());
    let mut opening = spawn_blocking(move || opening.open(early_sender));
    let failed = |_| RunError::TaskEnded("opening of the store");
    // continue with early answers, with the opened store, or after a while; an opening that fails
    // drops its sender first, which disables the first branch
    let mut early_lookup = early.clone();
    let opened = tokio::select! {
        biased;
        Ok(()) = async { early_lookup.wait_for(Option::is_some).await.map(drop) } => None,
        opened = &mut opening => Some(opened.map_err(failed)??),
        () = tokio::time::sleep(OPEN_WAIT_MAX) => None,
        () = signals.end(&reload) => {
            shutdown::report_before_loaded(&data_dir);
            return Ok(());
        }
    };
    let addresses = addresses(&bound);
    let server = serve(&settings, effective_settings, bound, early, started, log);
    let (stop_api, server_ended) = (server.stop_api.clone(), server.server_ended.clone());
    print_addresses(addresses).await;
    let starting = async {
        let opened = match opened {
            Some(opened) => opened,
            None => opening.await.map_err(failed)??,
        };
        start(settings, &reload, server, opened, reflect).await
    };
    let mut starting = std::pin::pin!(starting);
    let started = tokio::select! {
        parts = starting.as_mut() => Some(parts),
        () = signals.end(&reload) => None,
    };
    let mut parts = match started {
        Some(Ok(parts)) => parts,
        ended => {
            if ended.is_none() {
                shutdown::report_before_loaded(&data_dir);
            }
            stop_api.cancel();
            // the server removes its unix sockets as it ends
            drop(tokio::time::timeout(2 * REQUEST_GRACE, server_ended.cancelled()).await);
            return ended.map_or(Ok(()), |failed| failed.map(drop));
        }
    };
    let ended = tokio::select! {
        () = signals.end(&reload) => None,
        Some(ended) = parts.tasks.join_next() => Some(ended.unwrap_or("task that panicked")),
        _ = &mut parts.committer => Some("committer"),
    };
    match ended {
        Some(name) => tracing::error!(task = name, "a task ended unexpectedly: shutting down"),
        None => tracing::info!("shutting down"),
    }
    parts.end(signals.end(&reload), &data_dir).await?;
    ended.map_or(Ok(()), |name| Err(RunError::TaskEnded(name)))
}

/// Binds the addresses in a task of its own. A file that blocks its reader (a token in a FIFO, a
/// share that hangs) must not delay signals.
async fn bind(settings: &Settings, reload: &ReloadTriggers, descriptors: usize) -> Result<BoundApi, RunError> {
    let (listen, options) = (settings.listen.clone(), wiring::api_options(settings, reload, descriptors));
    let mut binding = JoinSet::new();
    binding.spawn(async move { BoundApi::bind(&listen, &options).await });
    match binding.join_next().await {
        Some(Ok(bound)) => Ok(bound?),
        Some(Err(_)) | None => Err(RunError::TaskEnded("opening of the addresses")),
    }
}

/// Lists the addresses with their purposes.
fn addresses(bound: &BoundApi) -> Vec<String> {
    let health = bound.health_address().map(|address| format!("{address} for probes and metrics"));
    let etcd = bound.etcd_address().map(|address| format!("{address} as an etcd"));
    bound.addresses().into_iter().chain(health).chain(etcd).collect()
}

/// Prints the addresses to standard output in a single write, so that a script that sees one line
/// has all of them. A full disk, a closed pipe or a pipe without a reader must not prevent the
/// server from starting.
async fn print_addresses(addresses: Vec<String>) {
    let lines: String = addresses.iter().map(|address| format!("listening on {address}\n")).collect();
    let printing = spawn_blocking(move || drop(std::io::stdout().lock().write_all(lines.as_bytes())));
    let _ = tokio::time::timeout(PRINT_WAIT_MAX, printing).await;
}

/// Starts the server, which answers with what is available so far.
fn serve(
    settings: &Settings,
    effective_settings: Vec<Setting>,
    bound: BoundApi,
    early: EarlyLookupReceiver,
    started: Instant,
    log: &Log,
) -> StartedServer {
    let (loaded_sender, loaded) = watch::channel(None);
    let (cluster_statuses_sender, clusters) = watch::channel(ClusterStatuses::default());
    let (directory_sender, directory) = watch::channel(DirectoryState::default());
    let (persistence_sender, persistence) = watch::channel(PersistState::Healthy);
    let (report_sender, store) = watch::channel(StoreReport::default());
    let (own_cluster, max_connected_clusters) = (settings.cluster_name.clone(), settings.max_connected_clusters);
    let process = ProcessState {
        started,
        loaded,
        clusters,
        directory,
        own_cluster,
        max_connected_clusters,
        persistence,
        store,
        lost_lines: log.lost(),
    };
    let decoded = DecodedBudget::new(settings.memory.decoded_max_bytes);
    let findings = FindingSender::default();
    let handle = Handle::new(process)
        .with_finding_sender(findings.clone())
        .with_early_lookup(early)
        .with_decoded_budget(decoded.clone())
        .with_settings(effective_settings)
        .with_log(log.tail())
        .with_disk_bytes(wiring::disk_bytes(settings))
        .with_cluster_files(wiring::cluster_files(settings));
    let (mut tasks, stop_api, server_ended) = (JoinSet::new(), CancellationToken::new(), CancellationToken::new());
    let (stop, ended_guard, served) = (stop_api.clone(), server_ended.clone().drop_guard(), handle.clone());
    let etcd = wiring::etcd_options(settings, &bound, stop.clone());
    let has_etcd = etcd.is_some();
    let bound = match etcd {
        None => bound,
        Some(options) => bound.with_etcd(etcd_service(etcd_api::service(handle.clone(), options))),
    };
    tasks.spawn(async move {
        let heartbeats = async {
            if has_etcd {
                etcd_api::write_heartbeats(served.clone(), stop.clone()).await;
            }
        };
        tokio::join!(bound.serve(served.clone(), stop.clone(), REQUEST_GRACE), heartbeats);
        drop(ended_guard);
        "server"
    });
    StartedServer {
        tasks,
        handle,
        stop_api,
        server_ended,
        decoded,
        findings,
        loaded: loaded_sender,
        cluster_statuses: cluster_statuses_sender,
        directory: directory_sender,
        persistence: persistence_sender,
        store_report: report_sender,
    }
}

/// Store, restored mirror and opened history of a start.
type LoadedStore = (Store, RestoredMirror, Option<(HistoryWriter, HistoryReader)>);

/// Loads the store and opens the history, on a thread that may block.
async fn load_store(settings: &Settings, store: Store, early_plan: Option<StartPlan>) -> Result<LoadedStore, RunError> {
    let (max_connected_clusters, retention) = (settings.max_connected_clusters, wiring::retention(settings));
    let (history_settings, data_dir) = (settings.history.clone(), settings.data_dir.clone());
    let loading = spawn_blocking(move || {
        let fresh_seed = EpochSeed::draw(SystemTime::now());
        let history = history::open(&history_settings, &data_dir, &store);
        let reader = history.as_ref().map(|(_, reader)| reader);
        restore::restore(&store, max_connected_clusters, retention, early_plan, fresh_seed, reader)
            .map(|restored| (store, restored, history))
    });
    Ok(loading.await.map_err(|_| RunError::TaskEnded("loading of the store"))??)
}

/// Loads the store, then starts mirroring.
async fn start(
    settings: Settings,
    reload: &ReloadTriggers,
    server: StartedServer,
    opened: OpenedStore,
    reflect: Option<ReflectOptions>,
) -> Result<RunningSidecar, RunError> {
    let StartedServer {
        mut tasks,
        handle,
        stop_api,
        server_ended: _,
        decoded,
        findings,
        loaded,
        cluster_statuses,
        directory,
        persistence,
        store_report,
    } = server;
    let stop_mirror = CancellationToken::new();
    let OpenedStore { store, opened, early_plan, early } = opened;
    wiring::log_losses(&opened);
    store_report.send_replace(wiring::store_report(&opened));
    let (store, restored, history) = load_store(&settings, store, early_plan).await?;
    store_report.send_modify(|report| {
        report.damaged_count = restored.damaged_count;
        report.restored_count = restored.restored_count;
    });
    let took_ms = u64::try_from(handle.uptime().as_millis()).unwrap_or(u64::MAX);
    tracing::info!(entries = restored.restored_count, took_ms, "the store is loaded: {} entries", restored.restored_count);
    let (publisher, mirror) = snapshot_channel(restored.published.clone());
    let log = Arc::clone(store.log());
    let (persist, worker) = persister(store, persistence);
    let worker = worker.with_unstored(restored.unstored);
    let (commands, queue) = command_queue();
    findings.connect(commands.downgrade());
    let committer = Committer::new(restored.published, publisher, persist, restored.reserved).with_log(log);
    let (fold, fold_worker) = folder();
    let committer = committer.with_folder(fold, tokio::runtime::Handle::current());
    let committer = if history.is_some() { committer.with_replaced_records() } else { committer };
    let history = history.map(|(writer, reader)| {
        handle.set_history(reader.clone());
        RunningHistory::start(writer, reader)
    });
    let folder = spawn_blocking(move || fold_worker.run());
    let committer = spawn_blocking(move || committer.run(queue));
    let log_records = restored.log_records;
    let unsynced = worker.unsynced();
    let prepare_store = move |store: &Store| {
        store.add_decoded(&log_records);
        store.evict_pages();
    };
    let persister = spawn_blocking(move || worker.with_store(prepare_store).run());
    loaded.send_replace(Some(mirror.clone()));
    early.send_replace(None);
    let directory_events = spawn_file_watchers(&mut tasks, &settings, reload, &stop_mirror);
    let mesh_options = wiring::mesh_options(&settings, decoded, handle.verification_requests().clone());
    let mesh = Mesh::new(mesh_options, commands, mirror, cluster_statuses, directory);
    let stop = stop_mirror.clone();
    tasks.spawn(async move {
        mesh.run(directory_events, stop).await;
        "registry of clusters"
    });
    if let Some(options) = reflect {
        spawn_reflector(&mut tasks, handle, options, stop_mirror.clone());
    }
    Ok(RunningSidecar { tasks, committer, persister, folder, history, unsynced, stop_api, stop_mirror })
}

/// Starts the tasks that watch the config directory and the own cluster's file until mirroring
/// stops. Returns the receiver of their events.
fn spawn_file_watchers(
    tasks: &mut JoinSet<&'static str>,
    settings: &Settings,
    reload: &ReloadTriggers,
    stop_mirror: &CancellationToken,
) -> mpsc::Receiver<DirectoryEvent> {
    let (events, directory_events) = mpsc::channel(DIRECTORY_EVENTS_MAX);
    let options = wiring::directory_options(settings, reload);
    let (stop, own_events) = (stop_mirror.clone(), events.clone());
    tasks.spawn(async move {
        watch_directory(options, events, stop).await;
        "watcher of the config directory"
    });
    if let Some(local) = wiring::local_etcd(settings) {
        let stop = stop_mirror.clone();
        tasks.spawn(async move {
            watch_local_etcd(local, own_events, stop).await;
            "watcher of the own cluster's file"
        });
    }
    directory_events
}

/// Starts the task that writes the mirror into another etcd until mirroring stops.
fn spawn_reflector(tasks: &mut JoinSet<&'static str>, handle: Handle, options: ReflectOptions, stop: CancellationToken) {
    tasks.spawn(async move {
        reflect::run(handle, options, stop).await;
        "reflector"
    });
}
