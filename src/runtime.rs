//! The composition root: builds everything that can fail first, then runs it, then ends it in order.
//!
//! Every task is owned here. One that ends before it was told to ends the process, with an error that names it. Shutdown goes
//! against the way of the data: not ready, streams and listeners, mirrors, writer, store (style.md §5).

mod restore;
mod wiring;

use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;

pub use crate::api::openapi_json as openapi_document;
use crate::api::{BindError, Bound};
use crate::clustermesh::{Mesh, watch_directory};
use crate::commit::{Committer, PersistState, QUEUE_LENGTH_MAX, persister, publication};
use crate::config::Settings;
use crate::handle::{About, ClusterBoard, Handle};
use crate::model::DirectoryState;
use crate::store::{Opened, Store, StoreError};

/// How many directory events may wait for the registry: one for each cluster of the largest mesh (511) and the scan's end.
const DIRECTORY_EVENTS_MAX: usize = 512;

/// How long open requests may take once shutdown has begun. Streams end at once; a lookup takes microseconds.
const REQUEST_GRACE: Duration = Duration::from_secs(1);

/// Shutdown as a whole (api.md, issue "The main job": 5 s, less what the exit itself takes).
const SHUTDOWN_MAX: Duration = Duration::from_millis(4_700);

/// Why the process ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Signals cannot be received.
    #[error("cannot receive signals: {0}")]
    Signals(std::io::Error),
    /// A task ended that must not.
    #[error("the {0} ended unexpectedly: this is a bug, see the log")]
    TaskEnded(&'static str),
    /// Shutdown did not finish in time.
    #[error("shutdown did not finish within {SHUTDOWN_MAX:?}: what was not stored is read again at the next start")]
    ShutdownOverdue,
    /// A second signal came during shutdown.
    #[error("a second signal ended the shutdown: what was not stored is read again at the next start")]
    Aborted,
}

/// The signals that end the process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// The running parts.
struct Parts {
    tasks: JoinSet<&'static str>,
    writer: JoinHandle<()>,
    persister: JoinHandle<Store>,
    stop_api: CancellationToken,
    stop_mirror: CancellationToken,
}

/// Runs the sidecar until a signal comes.
///
/// # Errors
/// [`RunError`]; what could not be built is named before anything is served.
pub async fn run(settings: Settings) -> Result<(), RunError> {
    let mut signals = Signals::new().map_err(RunError::Signals)?;
    let started = Instant::now();
    let bound = Bound::bind(&settings.listen, &wiring::api_options(&settings)).await?;
    let (directory, wait) = (settings.data_dir.clone(), settings.timing.store_lock_wait);
    let (store, opened) = tokio::select! {
        opened = spawn_blocking(move || Store::open(&directory, wait)) => opened.map_err(|_| RunError::TaskEnded("opening of the store"))??,
        () = signals.next() => return Ok(()),
    };
    for address in bound.addresses() {
        println!("listening on {address}");
    }
    let mut parts = tokio::select! {
        parts = start(settings, bound, store, opened, started) => parts?,
        // nothing was mirrored yet, so there is nothing to store
        () = signals.next() => return Ok(()),
    };
    let ended = tokio::select! {
        () = signals.next() => None,
        Some(ended) = parts.tasks.join_next() => Some(ended.unwrap_or("task that panicked")),
        _ = &mut parts.writer => Some("writer"),
    };
    match ended {
        Some(name) => tracing::error!(task = name, "a task ended unexpectedly: shutting down"),
        None => tracing::info!("shutting down"),
    }
    tokio::select! {
        done = tokio::time::timeout(SHUTDOWN_MAX, parts.shut_down()) => done.map_err(|_| RunError::ShutdownOverdue)?,
        () = signals.next() => return Err(RunError::Aborted),
    }
    ended.map_or(Ok(()), |name| Err(RunError::TaskEnded(name)))
}

/// Serves at once, loads the store, then mirrors.
async fn start(settings: Settings, bound: Bound, store: Store, opened: Opened, started: Instant) -> Result<Parts, RunError> {
    let (stop_api, stop_mirror) = (CancellationToken::new(), CancellationToken::new());
    let (loaded_sender, loaded) = watch::channel(None);
    let (board_sender, clusters) = watch::channel(ClusterBoard::default());
    let (directory_sender, directory) = watch::channel(DirectoryState::default());
    let (persistence_sender, persistence) = watch::channel(PersistState::Healthy);
    let (report_sender, store_report) = watch::channel(wiring::store_report(&opened));
    let handle = Handle::new(About { started, loaded, clusters, directory, persistence, store: store_report });
    let mut tasks = JoinSet::new();
    let stop = stop_api.clone();
    tasks.spawn(async move {
        bound.serve(handle, stop, REQUEST_GRACE).await;
        "server"
    });

    let retention = wiring::retention(&settings);
    let max_connected_clusters = settings.max_connected_clusters;
    let (store, restored) =
        spawn_blocking(move || restore::restore(&store, max_connected_clusters, retention).map(|restored| (store, restored)))
            .await
            .map_err(|_| RunError::TaskEnded("loading of the store"))??;
    report_sender.send_modify(|report| {
        report.damaged_count = restored.damaged_count;
        report.restored_count = restored.restored_count;
    });
    tracing::info!(entries = restored.restored_count, took_ms = started.elapsed().as_millis(), "store loaded");
    let (publisher, mirror) = publication(restored.published.clone());
    let (persist, worker) = persister(store, persistence_sender);
    let (commands, queue) = mpsc::channel(QUEUE_LENGTH_MAX);
    let committer = Committer::new(restored.published, publisher, persist, restored.reserved).with_journal(restored.journal);
    let writer = spawn_blocking(move || committer.run(queue));
    let persister = spawn_blocking(move || worker.run());
    loaded_sender.send_replace(Some(mirror.clone()));

    let (events, directory_events) = mpsc::channel(DIRECTORY_EVENTS_MAX);
    let options = wiring::directory_options(&settings);
    let stop = stop_mirror.clone();
    tasks.spawn(async move {
        watch_directory(options, events, directory_sender, stop).await;
        "watcher of the config directory"
    });
    let mesh = Mesh::new(wiring::mesh_options(&settings), commands, mirror, board_sender);
    let stop = stop_mirror.clone();
    tasks.spawn(async move {
        mesh.run(directory_events, stop).await;
        "registry of clusters"
    });
    Ok(Parts { tasks, writer, persister, stop_api, stop_mirror })
}

impl Parts {
    /// Ends everything, against the way of the data.
    async fn shut_down(&mut self) {
        self.stop_api.cancel();
        // the server's task is the only one that ends now
        let server = tokio::time::timeout(2 * REQUEST_GRACE, self.tasks.join_next()).await;
        if server.is_err() {
            tracing::warn!("some requests were still open when their time was over");
        }
        self.stop_mirror.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            tracing::debug!(task = ended.unwrap_or("task that panicked"), "ended");
        }
        if !self.writer.is_finished()
            && let Err(error) = (&mut self.writer).await
        {
            tracing::error!(%error, "the writer panicked");
        }
        let Ok(store) = (&mut self.persister).await else {
            tracing::error!("storing panicked: what was not stored is read again at the next start");
            return;
        };
        match spawn_blocking(move || store.close()).await {
            Ok(Ok(())) => tracing::info!("store closed"),
            Ok(Err(error)) => tracing::error!(%error, "the store could not be closed cleanly"),
            Err(error) => tracing::error!(%error, "closing the store panicked"),
        }
    }
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
