//! A short range that is read and then watched for as long as its connection lasts: heartbeat, cluster config, canaries.
//!
//! Where etcd compacts the history that its watch needs, it is read anew and watched from there, over the same connection: a caller that follows it
//! hears of what changed meanwhile as of any change. Deliberately lacks: ranges of entries, whose reading anew is a matter of the resync.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::GetOptions;

use crate::error::printable;
use crate::{Connection, Disposition, Event, KeyValue, KvstoreError, Revision, Watch, WatchMessage};

/// How many keys a short range may have: Cilium has one heartbeat and one config, and a canary for each of its seven kinds of objects, to
/// which releases add one now and then.
const KEYS_MAX: i64 = 64;

/// A short range, followed. Dropping it ends the watch at the server too.
pub struct Follow {
    connection: Connection,
    key: Vec<u8>,
    range_end: Option<Vec<u8>>,
    /// Which keys there are, each with the revision of its last put.
    known: BTreeMap<Vec<u8>, Revision>,
    /// `None` after a compaction, until the range is read anew.
    watch: Option<Watch>,
    /// How long the stream had been listened to when this watch began.
    listened_before_watch: Duration,
    /// How long it was listened to for the watches before.
    listened: Duration,
}

/// The range as it was read, and a watch on it.
struct Reading {
    found: Vec<KeyValue>,
    revision: Revision,
    watch: Watch,
}

impl Connection {
    /// Reads a key, or the range `[key, range_end)`, of few keys, and watches it from there.
    ///
    /// # Errors
    /// [`KvstoreError`]; `TooManyKeys` if there are more keys than Cilium ever writes there.
    pub async fn follow(&self, key: &[u8], range_end: Option<&[u8]>) -> Result<(Vec<KeyValue>, Follow), KvstoreError> {
        let Reading { found, watch, .. } = self.read_and_watch(key, range_end).await?;
        let follow = Follow {
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

    /// Reads again for as long as etcd compacts in between, which takes a turn of a list and one of a watch each time.
    async fn read_and_watch(&self, key: &[u8], range_end: Option<&[u8]>) -> Result<Reading, KvstoreError> {
        loop {
            let (found, revision) = self.read_short(key, range_end).await?;
            match self.watch(key, range_end, revision).await {
                Err(error) if error.disposition() == Disposition::Resync => {}
                watch => return Ok(Reading { found, revision, watch: watch? }),
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

impl Follow {
    /// The next changes; none if the server only said that it is there. May be dropped while waiting without losing anything.
    ///
    /// # Errors
    /// [`KvstoreError`], but for lost history.
    pub async fn next(&mut self) -> Result<Vec<Event>, KvstoreError> {
        let Some(watch) = &mut self.watch else { return self.read_anew().await };
        match watch.next().await {
            Ok(WatchMessage::Events { events, .. }) => {
                self.learn(&events)?;
                Ok(events)
            }
            Ok(WatchMessage::Created { .. } | WatchMessage::Progress) => Ok(Vec::new()),
            Err(error) if error.disposition() == Disposition::Resync => {
                self.listened = self.listened();
                self.watch = None;
                self.read_anew().await
            }
            Err(error) => Err(error),
        }
    }

    /// How long the range has been listened to, in all: like [`Watch::listened`], over all of its watches.
    #[must_use]
    pub fn listened(&self) -> Duration {
        let by_watch = self.watch.as_ref().map_or(Duration::ZERO, |watch| watch.listened().saturating_sub(self.listened_before_watch));
        self.listened + by_watch
    }

    /// What changed since the last watch, as its events would have told it but for what changed twice.
    async fn read_anew(&mut self) -> Result<Vec<Event>, KvstoreError> {
        let Reading { found, revision, watch } = self.connection.read_and_watch(&self.key, self.range_end.as_deref()).await?;
        let now = revisions(&found);
        let gone = self.known.keys().filter(|key| !now.contains_key(*key));
        let mut events: Vec<Event> = gone.map(|key| Event::Delete { key: key.clone(), mod_revision: revision }).collect();
        events.extend(found.into_iter().filter(|put| self.known.get(&put.key) != Some(&put.mod_revision)).map(Event::Put));
        self.known = now;
        self.listened_before_watch = watch.listened();
        self.watch = Some(watch);
        Ok(events)
    }

    fn learn(&mut self, events: &[Event]) -> Result<(), KvstoreError> {
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
