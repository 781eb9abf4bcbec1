//! What is deleted below a prefix, by whomever: for who keeps keys there and would not hear of it otherwise.
//!
//! etcd is asked for deletes alone, so that what is written there costs nothing here. Over changing connections the watch goes on where it was. Where
//! it cannot, or something may have been missed, that is told too: who is told so compares.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Session, SessionState};
use crate::error::printable;
use crate::{Backoff, Connection, Disposition, EtcdClusterId, Event, KvstoreError, Revision, WatchMessage, prefix_end};

/// The first wait after a watch that failed.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// The longest.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// After so many failures in a row it is told once.
const WARN_FROM: u32 = 5;

/// What is known of deletes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// A key was deleted; it may have been written again since.
    Key(Vec<u8>),
    /// From now on deletes are told; of what was deleted before nothing is known.
    Unknown,
}

/// Tells of deletes. Dropping it ends that.
pub struct DeleteWatcher {
    deleted: mpsc::Receiver<Deleted>,
    _stop: DropGuard,
}

impl Session {
    /// Watches what is deleted below a prefix from now on, in the background; [`Deleted::Unknown`] comes first. As many as given wait to be read; more
    /// are not read from etcd meanwhile.
    #[must_use]
    pub fn watch_deletes(&self, prefix: &[u8], deleted_max: usize) -> DeleteWatcher {
        let (sender, deleted) = mpsc::channel(deleted_max.max(1));
        let stop = CancellationToken::new();
        let watching = Watching { shared: Arc::clone(&self.shared), prefix: prefix.to_vec(), sender, at: None };
        self.spawn(stop.clone(), watching.run());
        DeleteWatcher { deleted, _stop: stop.drop_guard() }
    }
}

impl DeleteWatcher {
    /// The next; `None` once the session is closed.
    pub async fn next(&mut self) -> Option<Deleted> {
        self.deleted.recv().await
    }
}

struct Watching {
    shared: Arc<SessionState>,
    prefix: Vec<u8>,
    sender: mpsc::Sender<Deleted>,
    /// Up to where everything was told, of which etcd.
    at: Option<(EtcdClusterId, Revision)>,
}

impl Watching {
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
                tracing::warn!(prefix, %error, hint = error.hint(), "deletes cannot be watched; trying again");
            } else {
                tracing::debug!(prefix, %error, "the watch for deletes ended");
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Watches over one connection. No error: nobody wants to know any more.
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
        if known.is_none() && self.sender.send(Deleted::Unknown).await.is_err() {
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
                    && self.sender.send(Deleted::Key(key)).await.is_err()
                {
                    return Ok(());
                }
            }
            self.at = Some((id, revision));
        }
    }
}
