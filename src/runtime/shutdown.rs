//! The shutdown: stops the API, the mirror of the remote clusters, the committer, the packing
//! thread and the store, in this order, within the time that Kubernetes and systemd allow.
//!
//! It also ends in time if the data directory hangs (a network share without its server, a failing
//! disk). The log then says which changes were not synced.

use std::cell::Cell;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::signals::{ReloadTriggers, Signals};
use super::{REQUEST_GRACE, RunError, RunningSidecar};

/// Maximum time of the whole shutdown: the 5 s of docs/develop/invariants.md, "Retries and
/// shutdown", minus the time that the exit itself takes.
pub const SHUTDOWN_MAX: Duration = Duration::from_millis(4_700);

/// Stage of the shutdown in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutdownStage {
    Requests,
    Mirror,
    Committer,
    Packing,
    Sync,
    History,
    Close,
}

impl ShutdownStage {
    /// Returns the call to the data directory that delays this stage if it hangs. `None` if the
    /// stage makes no such call.
    fn disk_operation(self) -> Option<&'static str> {
        match self {
            Self::Requests | Self::Mirror | Self::Packing => None,
            Self::Committer => Some("writing the newest batch to the log"),
            Self::Sync => Some("syncing the newest changes"),
            Self::History => Some("writing the newest part of the history"),
            Self::Close => Some("closing the store"),
        }
    }
}

/// Returns the outcome of a step of the start, or `None` if a signal ended the start. The step then
/// gets up to [`REQUEST_GRACE`] to finish and undo its work.
pub(super) async fn run_until_stopped<T>(step: impl Future<Output = T>, signals: &mut Signals, reload: &ReloadTriggers) -> Option<T> {
    let mut step = pin!(step);
    tokio::select! {
        outcome = step.as_mut() => return Some(outcome),
        () = signals.end(reload) => {}
    }
    drop(timeout(REQUEST_GRACE, step).await);
    None
}

/// Logs that the process ends before its store was loaded.
pub(super) fn report_before_loaded(data_dir: &Path) {
    tracing::info!(
        data_dir = %data_dir.display(),
        "shutting down before the store was loaded: no change is lost; if the process does not end, it waits in a system call on the data directory"
    );
}

impl RunningSidecar {
    /// Stops everything within [`SHUTDOWN_MAX`], or at a second signal. A data directory that hangs
    /// is not an error.
    ///
    /// # Errors
    /// Returns [`RunError::ShutdownOverdue`] or [`RunError::Aborted`].
    pub(super) async fn end(&mut self, second_signal: impl Future<Output = ()>, data_dir: &Path) -> Result<(), RunError> {
        let (stage, unsynced) = (Cell::new(ShutdownStage::Requests), self.unsynced.clone());
        let outcome = tokio::select! {
            done = timeout(SHUTDOWN_MAX, self.shut_down(&stage)) => done.map_err(|_| RunError::ShutdownOverdue),
            () = second_signal => Err(RunError::Aborted),
        };
        let (Err(error), Some(operation)) = (&outcome, stage.get().disk_operation()) else { return outcome };
        let (data_dir, unsynced) = (data_dir.display(), unsynced.counts());
        let oldest_ms = unsynced.since.map(|since| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX));
        tracing::error!(
            %data_dir,
            unsynced_changes = unsynced.changes,
            oldest_ms,
            "ending while {operation} is not finished on the data directory: the next start reads unsynced changes from the remote clusters again"
        );
        tracing::error!(
            %data_dir,
            "if the process does not end now, it waits in an uninterruptible write to the data directory: no signal can end it before that write returns"
        );
        if matches!(error, RunError::Aborted) { outcome } else { Ok(()) }
    }

    async fn shut_down(&mut self, stage: &Cell<ShutdownStage>) {
        self.stop_api.cancel();
        // the first task to end is the server
        let server = timeout(2 * REQUEST_GRACE, self.tasks.join_next()).await;
        if server.is_err() {
            tracing::warn!("some requests did not finish in time");
        }
        stage.set(ShutdownStage::Mirror);
        self.stop_mirror.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            let task = ended.unwrap_or("task that panicked");
            tracing::debug!(task, "the {task} ended");
        }
        stage.set(ShutdownStage::Committer);
        if !self.committer.is_finished()
            && let Err(error) = (&mut self.committer).await
        {
            tracing::error!(%error, "the committer panicked");
        }
        stage.set(ShutdownStage::Packing);
        if let Err(error) = (&mut self.folder).await {
            tracing::error!(%error, "the packing thread panicked");
        }
        stage.set(ShutdownStage::Sync);
        let Ok(store) = (&mut self.persister).await else {
            tracing::error!(
                "the thread that writes the store panicked: the next start reads unstored changes from the remote clusters again"
            );
            return;
        };
        stage.set(ShutdownStage::History);
        if let Some(history) = self.history.take() {
            history.end().await;
        }
        stage.set(ShutdownStage::Close);
        match spawn_blocking(move || store.close()).await {
            Ok(Ok(())) => tracing::info!("the store is closed"),
            Ok(Err(error)) => tracing::error!(%error, "cannot close the store cleanly"),
            Err(error) => tracing::error!(%error, "closing the store panicked"),
        }
    }
}
