//! Watch on deletes below a prefix, for a process that keeps keys there and must notice if another
//! process deletes them.
//!
//! etcd sends only deletes, so that writes below the prefix cost nothing here. A new connection
//! resumes the watch at the last position. If that is impossible, or deletes may have been missed,
//! the watcher sends [`DeleteEvent::Unknown`] and the receiver compares the keys.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Session, SessionState};
use crate::error::printable;
use crate::{Backoff, Connection, Disposition, EtcdClusterId, Event, KvstoreError, Revision, WatchMessage, prefix_end};

/// Wait after the first failed watch.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest wait.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Number of consecutive failures at which a warning is logged.
const WARN_FROM: u32 = 5;

/// Event of a [`DeleteWatcher`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeleteEvent {
    /// A key was deleted; it may have been written again since.
    Key(Vec<u8>),
    /// Deletes are reported from now on. Earlier deletes may have been missed.
    Unknown,
}

/// Reports deletes until it is dropped.
pub struct DeleteWatcher {
    deleted: mpsc::Receiver<DeleteEvent>,
    _stop: DropGuard,
}

impl Session {
    /// Watches deletes below a prefix from now on, in the background. The first event is
    /// [`DeleteEvent::Unknown`]. At most `deleted_max` events are buffered; while the buffer is
    /// full, nothing more is read from etcd.
    #[must_use]
    pub fn watch_deletes(&self, prefix: &[u8], deleted_max: usize) -> DeleteWatcher {
        let (sender, deleted) = mpsc::channel(deleted_max.max(1));
        let stop = CancellationToken::new();
        let task = DeleteWatchTask { shared: Arc::clone(&self.shared), prefix: prefix.to_vec(), sender, at: None };
        self.spawn(stop.clone(), task.run());
        DeleteWatcher { deleted, _stop: stop.drop_guard() }
    }
}

impl DeleteWatcher {
    /// Returns the next event; `None` once the session is closed.
    pub async fn next(&mut self) -> Option<DeleteEvent> {
        self.deleted.recv().await
    }
}

struct DeleteWatchTask {
    shared: Arc<SessionState>,
    prefix: Vec<u8>,
    sender: mpsc::Sender<DeleteEvent>,
    /// Revision up to which everything was reported, and its etcd.
    at: Option<(EtcdClusterId, Revision)>,
}

impl DeleteWatchTask {
    async fn run(mut self) {
        let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        loop {
            let Some(connection) = self.shared.connection_at_last().await else { return };
            let error = match self.watch(&connection, &mut backoff).await {
                Ok(()) => return,
                Err(error) => error,
            };
            if error.disposition() == Disposition::Resync || matches!(error, KvstoreError::WentBack { .. }) {
                self.at = None;
            }
            let prefix = printable(&self.prefix);
            let wait = backoff.next_wait();
            if backoff.failures() == WARN_FROM {
                tracing::warn!(prefix, %error, hint = error.hint(), "cannot watch deletes; trying again");
            } else {
                tracing::debug!(prefix, %error, "the watch for deletes ended");
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Watches over one connection. Returns `Ok` if the receiver was dropped.
    async fn watch(&mut self, connection: &Connection, backoff: &mut Backoff) -> Result<(), KvstoreError> {
        let id = connection.etcd_cluster_id();
        let known = self.at.filter(|(known, _)| *known == id).map(|(_, revision)| revision);
        let after = match known {
            Some(revision) => revision,
            None => connection.get(&self.prefix, None).await?.1,
        };
        let end = prefix_end(&self.prefix);
        let mut watch = connection.watch_deletes(&self.prefix, Some(&end), after).await?;
        self.at = Some((id, after));
        backoff.reset();
        if known.is_none() && self.sender.send(DeleteEvent::Unknown).await.is_err() {
            return Ok(());
        }
        loop {
            let message = tokio::select! {
                message = watch.next() => message?,
                () = self.sender.closed() => return Ok(()),
            };
            let WatchMessage::Events { events, revision } = message else { continue };
            for event in events {
                if let Event::Delete { key, .. } = event
                    && self.sender.send(DeleteEvent::Key(key)).await.is_err()
                {
                    return Ok(());
                }
            }
            self.at = Some((id, revision));
        }
    }
}
