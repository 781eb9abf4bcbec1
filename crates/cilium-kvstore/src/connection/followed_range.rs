//! Short ranges that a connection reads once and then watches until it ends: heartbeat, cluster
//! config, canaries.
//!
//! If etcd compacts the history that the watch needs, the range is read again and watched from
//! there, over the same connection. The caller receives the difference as ordinary changes. Ranges
//! of entries are not followed this way, because a resync reads them again.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::GetOptions;

use crate::error::printable;
use crate::{Connection, Disposition, Event, KeyValue, KvstoreError, Revision, Watch, WatchMessage};

/// Maximum number of keys in a short range. Cilium has one heartbeat, one config, and one canary
/// for each of its seven kinds of objects; releases sometimes add a kind.
const KEYS_MAX: i64 = 64;

/// Short range that is followed. Dropping it also ends the watch at the server.
pub struct FollowedRange {
    connection: Connection,
    key: Vec<u8>,
    range_end: Option<Vec<u8>>,
    /// Existing keys, each with the revision of its last put.
    revision_by_key: BTreeMap<Vec<u8>, Revision>,
    /// `None` after a compaction, until the range is read again.
    watch: Option<Watch>,
    /// Listening time of the stream when this watch started.
    listened_before_watch: Duration,
    /// Listening time of the earlier watches.
    listened: Duration,
}

/// Result of reading the range, and a watch on it.
struct RangeSnapshot {
    key_values: Vec<KeyValue>,
    revision: Revision,
    watch: Watch,
}

impl Connection {
    /// Reads a key, or the short range `[key, range_end)`, and watches it from there.
    ///
    /// # Errors
    /// [`KvstoreError`]; `TooManyKeys` if the range has more keys than Cilium ever writes there.
    pub async fn follow(&self, key: &[u8], range_end: Option<&[u8]>) -> Result<(Vec<KeyValue>, FollowedRange), KvstoreError> {
        let RangeSnapshot { key_values, watch, .. } = self.read_and_watch(key, range_end).await?;
        let follow = FollowedRange {
            connection: self.clone(),
            key: key.to_vec(),
            range_end: range_end.map(<[u8]>::to_vec),
            revision_by_key: revisions(&key_values),
            listened_before_watch: watch.listened(),
            watch: Some(watch),
            listened: Duration::ZERO,
        };
        Ok((key_values, follow))
    }

    /// Reads the range and starts a watch after the read. Starts again with the read if etcd
    /// compacts the history before the watch starts. The rate limit of lists and watches applies to
    /// each attempt.
    async fn read_and_watch(&self, key: &[u8], range_end: Option<&[u8]>) -> Result<RangeSnapshot, KvstoreError> {
        loop {
            let (key_values, revision) = self.read_short(key, range_end).await?;
            match self.watch(key, range_end, revision).await {
                Err(error) if error.disposition() == Disposition::Resync => {}
                watch => return Ok(RangeSnapshot { key_values, revision, watch: watch? }),
            }
        }
    }

    async fn read_short(&self, key: &[u8], range_end: Option<&[u8]>) -> Result<(Vec<KeyValue>, Revision), KvstoreError> {
        self.wait_for_rate_limit().await;
        let mut options = GetOptions::new().with_limit(KEYS_MAX);
        if let Some(end) = range_end {
            options = options.with_range(end);
        }
        let (reply, revision) = self.range(key, options).await?;
        if reply.more || reply.kvs.len() > usize::try_from(KEYS_MAX).unwrap_or(usize::MAX) {
            return Err(too_many(key));
        }
        Ok((reply.kvs.into_iter().map(KeyValue::from).collect(), revision))
    }
}

impl FollowedRange {
    /// Returns the next changes; empty if the server only reported its progress. Cancel-safe.
    ///
    /// # Errors
    /// [`KvstoreError`], except for compacted history.
    pub async fn next(&mut self) -> Result<Vec<Event>, KvstoreError> {
        let Some(watch) = &mut self.watch else { return self.reread().await };
        match watch.next().await {
            Ok(WatchMessage::Events { events, .. }) => {
                self.track(&events)?;
                Ok(events)
            }
            Ok(WatchMessage::Created { .. } | WatchMessage::Progress { .. }) => Ok(Vec::new()),
            Err(error) if error.disposition() == Disposition::Resync => {
                self.listened = self.listened();
                self.watch = None;
                self.reread().await
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the total time for which the range has been listened to: the sum of the listening
    /// times of its watches ([`Watch::listened`]).
    #[must_use]
    pub fn listened(&self) -> Duration {
        let listened_by_watch =
            self.watch.as_ref().map_or(Duration::ZERO, |watch| watch.listened().saturating_sub(self.listened_before_watch));
        self.listened + listened_by_watch
    }

    /// Reads and watches the range again. Returns the changes since the last watch. Repeated
    /// changes of a key are merged into one.
    async fn reread(&mut self) -> Result<Vec<Event>, KvstoreError> {
        let RangeSnapshot { key_values, revision, watch } = self.connection.read_and_watch(&self.key, self.range_end.as_deref()).await?;
        let current = revisions(&key_values);
        let deleted = self.revision_by_key.keys().filter(|key| !current.contains_key(*key));
        let mut events: Vec<Event> = deleted.map(|key| Event::Delete { key: key.clone(), mod_revision: revision }).collect();
        events.extend(key_values.into_iter().filter(|put| self.revision_by_key.get(&put.key) != Some(&put.mod_revision)).map(Event::Put));
        self.revision_by_key = current;
        self.listened_before_watch = watch.listened();
        self.watch = Some(watch);
        Ok(events)
    }

    fn track(&mut self, events: &[Event]) -> Result<(), KvstoreError> {
        for event in events {
            match event {
                Event::Put(put) => self.revision_by_key.insert(put.key.clone(), put.mod_revision),
                Event::Delete { key, .. } => self.revision_by_key.remove(key),
            };
        }
        if self.revision_by_key.len() > usize::try_from(KEYS_MAX).unwrap_or(usize::MAX) { Err(too_many(&self.key)) } else { Ok(()) }
    }
}

fn too_many(key: &[u8]) -> KvstoreError {
    let reason = format!("more than {KEYS_MAX} keys that begin with {}, where Cilium writes a few", printable(key));
    KvstoreError::TooManyKeys { reason }
}

fn revisions(key_values: &[KeyValue]) -> BTreeMap<Vec<u8>, Revision> {
    key_values.iter().map(|put| (put.key.clone(), put.mod_revision)).collect()
}
