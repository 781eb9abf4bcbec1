//! Watch for deletions below a prefix. A process that keeps keys there uses it to notice deletions
//! by other processes.
//!
//! etcd filters out puts, so writes below the prefix cause no traffic here. A new connection
//! resumes the watch at the last position. If that is impossible, or deletions may have been
//! missed, the watcher sends [`DeleteEvent::Unknown`] and the receiver must compare its keys with
//! etcd.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Session, SessionState};
use crate::error::printable;
use crate::{Backoff, Connection, Disposition, EtcdClusterId, Event, KvstoreError, Revision, WatchMessage, prefix_end};

/// Wait after the first failed watch.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest wait between failed watches.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Number of consecutive failures at which a warning is logged.
const WARN_FROM: u32 = 5;

/// Event of a [`DeleteWatcher`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeleteEvent {
    /// A key was deleted; it may have been written again since.
    Key(Vec<u8>),
    /// Deletions are reported from now on. Earlier deletions may have been missed.
    Unknown,
}

/// Reports deletes until it is dropped.
pub struct DeleteWatcher {
    events: mpsc::Receiver<DeleteEvent>,
    _stop: DropGuard,
}

impl Session {
    /// Watches deletions below a prefix from now on, in the background. The first event is
    /// [`DeleteEvent::Unknown`]. At most `events_max` events are buffered; while the buffer is
    /// full, nothing more is read from etcd.
    #[must_use]
    pub fn watch_deletes(&self, prefix: &[u8], events_max: usize) -> DeleteWatcher {
        let (sender, events) = mpsc::channel(events_max.max(1));
        let stop = CancellationToken::new();
        let task = DeleteWatchTask { shared: Arc::clone(&self.shared), prefix: prefix.to_vec(), sender, reported_up_to: None };
        self.spawn(stop.clone(), task.run());
        DeleteWatcher { events, _stop: stop.drop_guard() }
    }
}

impl DeleteWatcher {
    /// Returns the next event; `None` once the session is closed.
    pub async fn next(&mut self) -> Option<DeleteEvent> {
        self.events.recv().await
    }
}

struct DeleteWatchTask {
    shared: Arc<SessionState>,
    prefix: Vec<u8>,
    sender: mpsc::Sender<DeleteEvent>,
    /// Etcd cluster and revision up to which all deletions were reported.
    reported_up_to: Option<(EtcdClusterId, Revision)>,
}

impl DeleteWatchTask {
    async fn run(mut self) {
        let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        loop {
            let Some(connection) = self.shared.wait_for_connection().await else { return };
            let error = match self.watch(&connection, &mut backoff).await {
                Ok(()) => return,
                Err(error) => error,
            };
            if error.disposition() == Disposition::Resync || matches!(error, KvstoreError::WentBack { .. }) {
                self.reported_up_to = None;
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
        let resume_after = self.reported_up_to.filter(|(cluster, _)| *cluster == id).map(|(_, revision)| revision);
        let after = match resume_after {
            Some(revision) => revision,
            None => connection.get(&self.prefix, None).await?.1,
        };
        let end = prefix_end(&self.prefix);
        let mut watch = connection.watch_deletes(&self.prefix, Some(&end), after).await?;
        self.reported_up_to = Some((id, after));
        backoff.reset();
        if resume_after.is_none() && self.sender.send(DeleteEvent::Unknown).await.is_err() {
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
            self.reported_up_to = Some((id, revision));
        }
    }
}
