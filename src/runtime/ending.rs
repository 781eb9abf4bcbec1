//! The end of a sidecar: everything stops against the way of the data, and within the time that Kubernetes and systemd give, also where the data
//! directory does not take a write (a network share without its server, a disk that hangs). Then the log says what was not synced.

use std::cell::Cell;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::signals::{Reread, Signals};
use super::{Parts, REQUEST_GRACE, RunError};

/// Shutdown as a whole (docs/develop/invariants.md, "Retries and shutdown": 5 s, less what the exit itself takes).
pub const SHUTDOWN_MAX: Duration = Duration::from_millis(4_700);

/// What a shutdown is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Requests,
    Mirror,
    Writer,
    Packing,
    Sync,
    Close,
}

impl Stage {
    /// What a call to the data directory that does not return keeps from ending; `None` for a stage that calls none.
    fn waiting_for_disk(self) -> Option<&'static str> {
        match self {
            Self::Requests | Self::Mirror | Self::Packing => None,
            Self::Writer => Some("writing the newest batch to the log"),
            Self::Sync => Some("syncing the newest changes"),
            Self::Close => Some("closing the store"),
        }
    }
}

/// The outcome of a step of the start; `None` if a signal ended the start. The step then has a moment to come to its end and to undo what it did.
pub(super) async fn unless_stopped<T>(step: impl Future<Output = T>, signals: &mut Signals, reread: &Reread) -> Option<T> {
    let mut step = pin!(step);
    tokio::select! {
        outcome = step.as_mut() => return Some(outcome),
        () = signals.end(reread) => {}
    }
    drop(timeout(REQUEST_GRACE, step).await);
    None
}

/// Logs that the process ends before the store was loaded.
pub(super) fn report_before_loaded(data_dir: &Path) {
    tracing::info!(
        data_dir = %data_dir.display(),
        "shutting down before the store was loaded: nothing was mirrored yet; if the process stays, the kernel holds it in a call to the data directory that has not returned"
    );
}

impl Parts {
    /// Ends everything within [`SHUTDOWN_MAX`], or as soon as a second signal comes. A data directory that hangs is no reason to fail.
    ///
    /// # Errors
    /// [`RunError::ShutdownOverdue`] and [`RunError::Aborted`].
    pub(super) async fn end(&mut self, second_signal: impl Future<Output = ()>, data_dir: &Path) -> Result<(), RunError> {
        let (stage, unsynced) = (Cell::new(Stage::Requests), self.unsynced.clone());
        let outcome = tokio::select! {
            done = timeout(SHUTDOWN_MAX, self.shut_down(&stage)) => done.map_err(|_| RunError::ShutdownOverdue),
            () = second_signal => Err(RunError::Aborted),
        };
        let (Err(error), Some(doing)) = (&outcome, stage.get().waiting_for_disk()) else { return outcome };
        let (data_dir, unsynced) = (data_dir.display(), unsynced.now());
        let oldest_ms = unsynced.since.map(|since| since.elapsed().as_millis());
        tracing::error!(
            %data_dir,
            unsynced_changes = unsynced.changes,
            oldest_ms,
            "ending while {doing}, which the data directory has not finished: what was not synced is read again at the next start"
        );
        tracing::error!(
            %data_dir,
            "if the process stays now, the kernel holds it in an uninterruptible write to the data directory: no signal ends it before that write returns"
        );
        if matches!(error, RunError::Aborted) { outcome } else { Ok(()) }
    }

    /// Ends everything, against the way of the data.
    async fn shut_down(&mut self, stage: &Cell<Stage>) {
        self.stop_api.cancel();
        // the server's task is the only one that ends now
        let server = timeout(2 * REQUEST_GRACE, self.tasks.join_next()).await;
        if server.is_err() {
            tracing::warn!("some requests were still open when their time was over");
        }
        stage.set(Stage::Mirror);
        self.stop_mirror.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            tracing::debug!(task = ended.unwrap_or("task that panicked"), "ended");
        }
        stage.set(Stage::Writer);
        if !self.writer.is_finished()
            && let Err(error) = (&mut self.writer).await
        {
            tracing::error!(%error, "the writer panicked");
        }
        stage.set(Stage::Packing);
        if let Err(error) = (&mut self.folder).await {
            tracing::error!(%error, "the thread that packs panicked");
        }
        stage.set(Stage::Sync);
        let Ok(store) = (&mut self.persister).await else {
            tracing::error!("storing panicked: what was not stored is read again at the next start");
            return;
        };
        stage.set(Stage::Close);
        match spawn_blocking(move || store.close()).await {
            Ok(Ok(())) => tracing::info!("store closed"),
            Ok(Err(error)) => tracing::error!(%error, "the store could not be closed cleanly"),
            Err(error) => tracing::error!(%error, "closing the store panicked"),
        }
    }
}
