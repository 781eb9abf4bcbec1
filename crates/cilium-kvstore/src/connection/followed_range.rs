//! Short ranges that are read once and then watched for as long as the connection lasts: heartbeat,
//! cluster config, canaries.
//!
//! If etcd compacts the history that the watch needs, the range is read again and watched from
//! there, over the same connection. The caller receives the difference as ordinary changes. Ranges
//! of entries are not followed this way: the resync reads those again.

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
    known: BTreeMap<Vec<u8>, Revision>,
    /// `None` after a compaction, until the range is read again.
    watch: Option<Watch>,
    /// Listening time of the stream when this watch started.
    listened_before_watch: Duration,
    /// Listening time of the earlier watches.
    listened: Duration,
}

/// Result of reading the range, and a watch on it.
struct RangeSnapshot {
    found: Vec<KeyValue>,
    revision: Revision,
    watch: Watch,
}

impl Connection {
    /// Reads a key, or the short range `[key, range_end)`, and watches it from there.
    ///
    /// # Errors
    /// [`KvstoreError`]; `TooManyKeys` if the range has more keys than Cilium ever writes there.
    pub async fn follow(&self, key: &[u8], range_end: Option<&[u8]>) -> Result<(Vec<KeyValue>, FollowedRange), KvstoreError> {
        let RangeSnapshot { found, watch, .. } = self.read_and_watch(key, range_end).await?;
        let follow = FollowedRange {
            connection: self.clone(),
            key: key.to_vec(),
            range_end: range_end.map(<[u8]>::to_vec),
            known: revisions(&found),
            listened_before_watch: watch.listened(),
            watch: Some(watch),
            listened: Duration::ZERO,
        };
        Ok((found, follow))
    }

    /// Reads again as long as etcd compacts the history before the watch starts. Each attempt is
    /// paced like a list and a watch.
    async fn read_and_watch(&self, key: &[u8], range_end: Option<&[u8]>) -> Result<RangeSnapshot, KvstoreError> {
        loop {
            let (found, revision) = self.read_short(key, range_end).await?;
            match self.watch(key, range_end, revision).await {
                Err(error) if error.disposition() == Disposition::Resync => {}
                watch => return Ok(RangeSnapshot { found, revision, watch: watch? }),
            }
        }
    }

    async fn read_short(&self, key: &[u8], range_end: Option<&[u8]>) -> Result<(Vec<KeyValue>, Revision), KvstoreError> {
        self.pace().await;
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
            Ok(WatchMessage::Created { .. } | WatchMessage::Progress) => Ok(Vec::new()),
            Err(error) if error.disposition() == Disposition::Resync => {
                self.listened = self.listened();
                self.watch = None;
                self.reread().await
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the total time for which the range has been listened to: like [`Watch::listened`],
    /// summed over all its watches.
    #[must_use]
    pub fn listened(&self) -> Duration {
        let by_watch = self.watch.as_ref().map_or(Duration::ZERO, |watch| watch.listened().saturating_sub(self.listened_before_watch));
        self.listened + by_watch
    }

    /// Returns the changes since the last watch as its events would have reported them, except that
    /// repeated changes of a key are merged.
    async fn reread(&mut self) -> Result<Vec<Event>, KvstoreError> {
        let RangeSnapshot { found, revision, watch } = self.connection.read_and_watch(&self.key, self.range_end.as_deref()).await?;
        let now = revisions(&found);
        let gone = self.known.keys().filter(|key| !now.contains_key(*key));
        let mut events: Vec<Event> = gone.map(|key| Event::Delete { key: key.clone(), mod_revision: revision }).collect();
        events.extend(found.into_iter().filter(|put| self.known.get(&put.key) != Some(&put.mod_revision)).map(Event::Put));
        self.known = now;
        self.listened_before_watch = watch.listened();
        self.watch = Some(watch);
        Ok(events)
    }

    fn track(&mut self, events: &[Event]) -> Result<(), KvstoreError> {
        for event in events {
            match event {
                Event::Put(put) => self.known.insert(put.key.clone(), put.mod_revision),
                Event::Delete { key, .. } => self.known.remove(key),
            };
        }
        if self.known.len() > usize::try_from(KEYS_MAX).unwrap_or(usize::MAX) { Err(too_many(&self.key)) } else { Ok(()) }
    }
}

fn too_many(key: &[u8]) -> KvstoreError {
    let reason = format!("more than {KEYS_MAX} keys that begin with {}, where Cilium writes a few", printable(key));
    KvstoreError::TooManyKeys { reason }
}

fn revisions(found: &[KeyValue]) -> BTreeMap<Vec<u8>, Revision> {
    found.iter().map(|put| (put.key.clone(), put.mod_revision)).collect()
}
