//! The history of a running sidecar: opens it, and owns its thread.

use std::path::Path;
use std::sync::Arc;

use tokio::task::{JoinHandle, spawn_blocking};

use crate::config::{HistoryMode, HistorySettings};
use crate::history::{HistoryOptions, HistoryReader, HistoryWriter, history};
use crate::store::Store;

/// The thread that writes the history, and a reader that stops it.
pub(super) struct RunningHistory {
    reader: HistoryReader,
    thread: JoinHandle<()>,
}

/// Opens the history next to a store. `None` with `--history off`.
pub(super) fn open(settings: &HistorySettings, data_dir: &Path, store: &Store) -> Option<(HistoryWriter, HistoryReader)> {
    if settings.mode == HistoryMode::Off {
        return None;
    }
    let options = HistoryOptions { age_max: settings.age_max, bytes_max: settings.bytes_max };
    // the log has the history as its receiver, so the history must not keep the log
    let log = Arc::downgrade(store.log());
    let release_groups = move |group| {
        if let Some(log) = log.upgrade() {
            log.release_groups(group);
        }
    };
    Some(history(data_dir, options, release_groups))
}

impl RunningHistory {
    pub(super) fn start(writer: HistoryWriter, reader: HistoryReader) -> Self {
        Self { reader, thread: spawn_blocking(move || writer.run()) }
    }

    /// Seals what is synced, and ends the thread.
    pub(super) async fn end(self) {
        self.reader.stop();
        if let Err(error) = self.thread.await {
            tracing::error!(%error, "the thread that writes the history panicked");
        }
    }
}
