//! List and watch: all keys with a prefix, then every change, until the session is closed.
//!
//! After a watch ends, the watcher lists again and reports keys that are missing from the new list
//! as deleted. Its events therefore always lead to the current state.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Session, SessionState};
use crate::error::printable;
use crate::{Backoff, Connection, Event, KvstoreError, Revision, WatchMessage, prefix_end};

/// Wait after the first failed list (Cilium's `etcd.go`).
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest wait between failed lists.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// A watch that lasted this long resets the backoff. A shorter one does not, because an etcd may
/// answer lists but refuse watches, and then ends each watch at once.
const STABLE_WATCH: Duration = Duration::from_secs(10);
/// Number of consecutive failures at which a warning is logged.
const WARN_AT: u32 = 10;

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The key is new.
    Create,
    /// The key was put again. After a new list, the key may also be unchanged.
    Modify,
    /// The key was deleted.
    Delete,
    /// The first list is complete. Sent once, without a key.
    ListDone,
    /// A later list starts. Sent without a key, and again if a list is interrupted. Until
    /// [`EventKind::Relisted`], events are in the order of keys and not of revisions.
    Relisting,
    /// A later list is complete. Sent without a key.
    Relisted,
}

/// One event of a [`Watcher`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValueEvent {
    /// Kind of the event.
    pub kind: EventKind,
    /// Key that changed.
    pub key: Vec<u8>,
    /// Value of the key; empty if it was deleted.
    pub value: Arc<[u8]>,
    /// Revision of the change. For keys that are missing from a new list, and for the end of a
    /// list, the revision of the list.
    pub mod_revision: Revision,
}

/// Follows a prefix until it is dropped.
pub struct Watcher {
    events: mpsc::Receiver<KeyValueEvent>,
    _stop: DropGuard,
}

impl Session {
    /// Lists all keys with a prefix and watches them from there, in the background. At most
    /// `events_max` events are buffered; while the buffer is full, nothing more is read from etcd.
    /// The prefix is used as it is: append a `/` if `eu` must not match `eu-west`.
    #[must_use]
    pub fn list_and_watch(&self, prefix: &[u8], events_max: usize) -> Watcher {
        let (sender, events) = mpsc::channel(events_max.max(1));
        let stop = CancellationToken::new();
        let task = WatcherTask {
            shared: Arc::clone(&self.shared),
            prefix: prefix.to_vec(),
            sender,
            known_keys: HashMap::new(),
            generation: 0,
            is_listed: false,
        };
        self.spawn(stop.clone(), task.run());
        Watcher { events, _stop: stop.drop_guard() }
    }
}

impl Watcher {
    /// Returns the next event; `None` once the session is closed.
    pub async fn next(&mut self) -> Option<KeyValueEvent> {
        self.events.recv().await
    }
}

struct WatcherTask {
    shared: Arc<SessionState>,
    prefix: Vec<u8>,
    sender: mpsc::Sender<KeyValueEvent>,
    /// Known keys, each with the generation in which it was last seen.
    known_keys: HashMap<Vec<u8>, u64>,
    /// Number of the current list. Each list increments it.
    generation: u64,
    /// Whether the end of the first list was reported.
    is_listed: bool,
}

struct ReceiverDropped;

enum WatchEnd {
    ReceiverDropped,
    Failed(KvstoreError),
}

impl From<ReceiverDropped> for WatchEnd {
    fn from(_: ReceiverDropped) -> Self {
        Self::ReceiverDropped
    }
}

impl From<KvstoreError> for WatchEnd {
    fn from(error: KvstoreError) -> Self {
        Self::Failed(error)
    }
}

/// Counts a failed list, or a watch that ended after `watched`. Returns the wait before the next
/// list.
fn wait_after(backoff: &mut Backoff, watched: Duration) -> Duration {
    if watched >= STABLE_WATCH {
        backoff.reset();
    }
    backoff.next_wait()
}

impl WatcherTask {
    async fn run(mut self) {
        let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        loop {
            let Some(connection) = self.shared.wait_for_connection().await else { return };
            let (watched, error) = match self.list_then_watch(&connection).await {
                (_, WatchEnd::ReceiverDropped) => return,
                (watched, WatchEnd::Failed(error)) => (watched, error),
            };
            let wait = wait_after(&mut backoff, watched);
            self.log_failure(backoff.failures(), &error);
            tokio::time::sleep(wait).await;
        }
    }

    /// Lists and then watches. Returns how long the watch lasted, and why it ended.
    async fn list_then_watch(&mut self, connection: &Connection) -> (Duration, WatchEnd) {
        let revision = match self.list(connection).await {
            Ok(revision) => revision,
            Err(end) => return (Duration::ZERO, end),
        };
        let watch_started = Instant::now();
        let Err(end) = self.watch(connection, revision).await;
        (watch_started.elapsed(), end)
    }

    fn log_failure(&self, failures: u32, error: &KvstoreError) {
        let prefix = printable(&self.prefix);
        if failures == WARN_AT {
            tracing::warn!(prefix, %error, attempts = WARN_AT, hint = error.hint(), "a list or its watch keeps failing");
        } else {
            tracing::debug!(prefix, %error, "a list or its watch failed; listing again");
        }
    }

    async fn list(&mut self, connection: &Connection) -> Result<Revision, WatchEnd> {
        self.generation += 1;
        if self.is_listed {
            self.send(list_event(EventKind::Relisting, Revision(0))).await?;
        }
        let mut list = connection.list(&self.prefix);
        let mut revision = Revision(0);
        while let Some(page) = list.next_page().await? {
            revision = page.revision;
            for key_value in page.key_values {
                let is_known = self.known_keys.insert(key_value.key.clone(), self.generation).is_some();
                let kind = if is_known { EventKind::Modify } else { EventKind::Create };
                self.send(KeyValueEvent { kind, key: key_value.key, value: key_value.value, mod_revision: key_value.mod_revision }).await?;
            }
        }
        let generation = self.generation;
        let vanished: Vec<Vec<u8>> = self.known_keys.iter().filter(|(_, seen)| **seen != generation).map(|(key, _)| key.clone()).collect();
        for key in vanished {
            self.known_keys.remove(&key);
            self.send(delete_event(key, revision)).await?;
        }
        let kind = if self.is_listed { EventKind::Relisted } else { EventKind::ListDone };
        self.is_listed = true;
        self.send(list_event(kind, revision)).await?;
        Ok(revision)
    }

    /// Forwards the changes after a list. The watch starts at the list's own revision: a watch from
    /// the next revision would receive nothing if that revision was a delete and is compacted
    /// (`Connection::watch`).
    async fn watch(&mut self, connection: &Connection, after: Revision) -> Result<Infallible, WatchEnd> {
        let mut watch = connection.watch(&self.prefix, Some(&prefix_end(&self.prefix)), after).await?;
        loop {
            let message = tokio::select! {
                message = watch.next() => message?,
                () = self.sender.closed() => return Err(WatchEnd::ReceiverDropped),
            };
            let WatchMessage::Events { events, .. } = message else { continue };
            for event in events {
                self.forward(event).await?;
            }
        }
    }

    async fn forward(&mut self, event: Event) -> Result<(), ReceiverDropped> {
        match event {
            Event::Put(put) => {
                let kind = if put.create_revision == put.mod_revision { EventKind::Create } else { EventKind::Modify };
                self.known_keys.insert(put.key.clone(), self.generation);
                self.send(KeyValueEvent { kind, key: put.key, value: put.value, mod_revision: put.mod_revision }).await
            }
            Event::Delete { key, mod_revision } => {
                self.known_keys.remove(&key);
                self.send(delete_event(key, mod_revision)).await
            }
        }
    }

    async fn send(&self, event: KeyValueEvent) -> Result<(), ReceiverDropped> {
        self.sender.send(event).await.map_err(|_| ReceiverDropped)
    }
}

fn list_event(kind: EventKind, mod_revision: Revision) -> KeyValueEvent {
    KeyValueEvent { kind, key: Vec::new(), value: Arc::default(), mod_revision }
}

fn delete_event(key: Vec<u8>, mod_revision: Revision) -> KeyValueEvent {
    KeyValueEvent { kind: EventKind::Delete, key, value: Arc::default(), mod_revision }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_watches_are_retried_with_backoff() {
        let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        let waits: Vec<u128> = (0..12).map(|_| wait_after(&mut backoff, Duration::from_millis(5)).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 60_000, 60_000]);
        assert_eq!(wait_after(&mut backoff, Duration::from_secs(3_600)).as_millis(), 100);
    }
}
