//! A watch: the changes of a key or a range after a revision, complete revision by complete revision.

#[cfg(feature = "test-util")]
mod scripted;

use std::time::Duration;

use etcd_client::proto::{PbEvent, PbWatchResponse};
use etcd_client::{WatchFilterType, WatchOptions};
use tokio::time::{Instant, timeout};

use super::check_header;
use super::watch_stream::{CreateRequest, Subscription, WATCH_ID_OF_STREAM};
use crate::error::printable;
use crate::{Connection, EtcdClusterId, Event, KvstoreError, Revision};

#[cfg(feature = "test-util")]
pub use self::scripted::ScriptedWatch;

/// How many of the largest messages the changes of one revision, and one fragment besides, may fill: a lease or a range
/// ends with all its keys in a single revision (1,000,000 deletions of keys of 100 bytes take some 200 MB). Past that a
/// list is the better way.
const BATCH_MESSAGES_MAX: usize = 8;

/// The revision of an etcd in which nothing was ever put (`server/storage/mvcc/kvstore.go`).
const FIRST_REVISION: Revision = Revision(1);

/// A watch under way. Dropping it ends it at the server too.
pub struct Watch {
    subscription: Subscription,
    /// The answer to the creation, not yet handed out.
    created: Option<Revision>,
    assembly: Assembly,
}

/// Makes whole revisions of the responses of one watch. No IO.
struct Assembly {
    expected: EtcdClusterId,
    what: String,
    message_bytes_max: usize,
    /// Everything up to and including this revision was read before the watch. What comes of it all the same is dropped: the watch begins
    /// at it, and older etcds send old events besides (etcd #20221).
    read: Revision,
    /// The revision of the newest change that was handed out; that of the reading before any was.
    handed_out: Revision,
    /// The part that has come of a revision that is not complete yet. Never of more than one revision between calls.
    pending: Vec<Event>,
}

/// What a watch says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchMessage {
    /// The watch stands; always the first message.
    Created {
        /// etcd's newest revision at that moment. Not a position: what lies between it and the watch's start still comes.
        revision: Revision,
    },
    /// Changes, in order, whole revisions only.
    Events {
        /// The revision of the last of them: a later watch goes on after it. (The header's own revision may be ahead of changes
        /// not delivered yet.)
        revision: Revision,
        /// The changes.
        events: Vec<Event>,
    },
    /// Nothing new. The revision that etcd says with it goes nowhere: before 3.4.25 and 3.5.8 it may be ahead of events that still come
    /// (etcd #15220).
    Progress,
}

impl Connection {
    /// Watches what comes of a key, or of the range `[key, range_end)`, after a revision that was read, and waits until the watch stands.
    /// If the token has run out, logs in again, once.
    ///
    /// etcd is asked for that revision too, and what comes of it is dropped here: of a watch from the revision above, which by then is
    /// compacted and was a delete, etcd before 3.4.36 and 3.5.18 says nothing at all (etcd #18089, #19179). So it says that history is lost.
    /// A watch from a revision that is itself the compacted one is not refused, so that an etcd at rest is read once.
    ///
    /// # Errors
    /// [`KvstoreError`]. `Compacted` may also come as the first error of [`Watch::next`]. `WentBack` where the revision is in the future.
    pub async fn watch(&self, key: &[u8], range_end: Option<&[u8]>, after: Revision) -> Result<Watch, KvstoreError> {
        self.pace().await;
        self.watch_at_once(key, range_end, after).await
    }

    /// Watches the deletes of a key or range alone.
    ///
    /// # Errors
    /// As [`Connection::watch`].
    pub(crate) async fn watch_deletes(&self, key: &[u8], range_end: Option<&[u8]>, after: Revision) -> Result<Watch, KvstoreError> {
        self.pace().await;
        self.begin_watch(key, range_end, after, &[WatchFilterType::NoPut]).await
    }

    /// Watches a key or range without waiting for a turn, as locks do.
    pub(crate) async fn watch_at_once(&self, key: &[u8], range_end: Option<&[u8]>, after: Revision) -> Result<Watch, KvstoreError> {
        self.begin_watch(key, range_end, after, &[]).await
    }

    async fn begin_watch(
        &self,
        key: &[u8],
        range_end: Option<&[u8]>,
        after: Revision,
        filters: &[WatchFilterType],
    ) -> Result<Watch, KvstoreError> {
        let started = Instant::now();
        match self.try_watch(key, range_end, after, filters).await {
            Err(error) if self.has_user() && error.is_about_the_token() => {
                self.renew_token(started).await?;
                self.try_watch(key, range_end, after, filters).await
            }
            result => result,
        }
    }

    async fn try_watch(
        &self,
        key: &[u8],
        range_end: Option<&[u8]>,
        after: Revision,
        filters: &[WatchFilterType],
    ) -> Result<Watch, KvstoreError> {
        let mut options = WatchOptions::new().with_start_revision(start_revision(after).0).with_progress_notify().with_fragment();
        options = options.with_filters(filters);
        if let Some(end) = range_end {
            options = options.with_range(end);
        }
        let what = format!("watching {}", printable(key));
        let (limit, message_bytes_max) = (self.options().request_timeout, self.options().message_bytes_max);
        let too_long = || KvstoreError::Timeout { what: what.clone(), limit };
        let subscription = timeout(limit, Box::pin(self.subscribe(CreateRequest { key: key.to_vec(), options }))).await;
        let subscription = subscription.map_err(|_| too_long())?;
        let subscription = subscription.map_err(|e| KvstoreError::from_call(what.clone(), message_bytes_max, &e))?;
        let assembly = Assembly::new(self.etcd_cluster_id(), what.clone(), message_bytes_max, after);
        let mut watch = Watch { subscription, created: None, assembly };
        let first = watch.subscription.next_within(limit).await.map_err(|_| too_long())?;
        watch.begin(first)?;
        Ok(watch)
    }
}

impl Watch {
    /// The next message. May be dropped while waiting without losing anything.
    ///
    /// # Errors
    /// [`KvstoreError`]; the watch is of no use after any.
    pub async fn next(&mut self) -> Result<WatchMessage, KvstoreError> {
        if let Some(revision) = self.created.take() {
            return Ok(WatchMessage::Created { revision });
        }
        loop {
            let response = self.subscription.next().await.ok_or_else(|| self.ended())?;
            if let Some(message) = self.assembly.accept(response)? {
                return Ok(message);
            }
        }
    }

    /// How long the stream that this watch shares with the others of its connection has said nothing, not even how far it is, which it
    /// is asked in each [`ClientOptions::progress_interval`](crate::ClientOptions::progress_interval).
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.subscription.silence()
    }

    /// How long that stream has been listened to, in all: time in which a watch that was not read held it up does not count. What has to
    /// come within a time has to come within so much of this.
    #[must_use]
    pub fn listened(&self) -> Duration {
        self.subscription.listened()
    }

    /// How often that stream was held up for so long that changes may be lost on their way, whatever held it up (etcd #17529).
    #[must_use]
    pub fn stalls(&self) -> u64 {
        self.subscription.stalls()
    }

    /// Takes in the answer to the creation.
    fn begin(&mut self, first: Option<PbWatchResponse>) -> Result<(), KvstoreError> {
        let response = first.ok_or_else(|| self.ended())?;
        let revision = self.assembly.check(&response).inspect_err(|error| {
            if error.is_about_the_token() {
                self.subscription.retire_stream();
            }
        })?;
        if !response.created {
            return Err(KvstoreError::Malformed { reason: "a watch that begins without being created".into() });
        }
        if revision < self.assembly.read {
            return Err(KvstoreError::WentBack { what: self.assembly.what.clone(), from: self.assembly.read, to: revision });
        }
        self.created = Some(revision);
        Ok(())
    }

    /// Why there are no more responses.
    fn ended(&self) -> KvstoreError {
        let what = self.assembly.what.clone();
        let Some(error) = self.subscription.end() else { return KvstoreError::WatchEnded { what } };
        match KvstoreError::from_call(what, self.assembly.message_bytes_max, error) {
            // which watch's it was cannot be told: it was never read. It would come again; a list gets past it in pages
            KvstoreError::TooLarge { what, bytes_max } => KvstoreError::BatchTooLarge { what, bytes_max },
            error => error,
        }
    }
}

/// What etcd is asked for: the revision that was read, and never 0, which means from now on.
fn start_revision(after: Revision) -> Revision {
    after.max(FIRST_REVISION)
}

impl Assembly {
    fn new(expected: EtcdClusterId, what: String, message_bytes_max: usize, after: Revision) -> Self {
        Self { expected, what, message_bytes_max, read: after, handed_out: after, pending: Vec::new() }
    }

    /// Takes one response; `None` while it is only a part of a message.
    fn accept(&mut self, response: PbWatchResponse) -> Result<Option<WatchMessage>, KvstoreError> {
        let header_revision = self.check(&response)?;
        if response.watch_id == WATCH_ID_OF_STREAM {
            return Ok(Some(WatchMessage::Progress));
        }
        let says_nothing = response.events.is_empty() && !response.fragment;
        if says_nothing && header_revision < self.handed_out {
            return Err(KvstoreError::WentBack { what: self.what.clone(), from: self.handed_out, to: header_revision });
        }
        self.append(response.events, header_revision)?;
        let complete = if response.fragment { self.take_complete_revisions() } else { std::mem::take(&mut self.pending) };
        if let Some(last) = complete.last() {
            let revision = last.mod_revision();
            self.handed_out = revision;
            return Ok(Some(WatchMessage::Events { revision, events: complete }));
        }
        Ok(says_nothing.then_some(WatchMessage::Progress))
    }

    /// Of a response in fragments, all but its newest revision so far: that one may go on in the next fragment.
    fn take_complete_revisions(&mut self) -> Vec<Event> {
        let newest = self.pending.last().map(Event::mod_revision);
        let unfinished = self.pending.iter().position(|event| Some(event.mod_revision()) == newest).unwrap_or(0);
        let rest = self.pending.split_off(unfinished);
        std::mem::replace(&mut self.pending, rest)
    }

    /// Of the headers only this much is certain: one is never older than its own events. Of a watch that is behind they go up and down
    /// (`moveVictims` in etcd's `watchable_store.go`).
    fn append(&mut self, events: Vec<PbEvent>, header_revision: Revision) -> Result<(), KvstoreError> {
        let bytes_max = self.message_bytes_max.saturating_mul(BATCH_MESSAGES_MAX);
        let mut bytes: usize = self.pending.iter().map(size).sum();
        for event in events {
            let event = Event::try_from(event)?;
            let revision = event.mod_revision();
            if revision <= self.read {
                continue;
            }
            if revision <= self.handed_out || self.pending.last().is_some_and(|last| revision < last.mod_revision()) {
                return Err(KvstoreError::Malformed { reason: format!("{}: an event of revision {revision} out of order", self.what) });
            }
            if revision > header_revision {
                let reason = format!("{}: an event of revision {revision} in a response of revision {header_revision}", self.what);
                return Err(KvstoreError::Malformed { reason });
            }
            bytes += size(&event);
            if bytes > bytes_max {
                return Err(KvstoreError::BatchTooLarge { what: self.what.clone(), bytes_max });
            }
            self.pending.push(event);
        }
        Ok(())
    }

    /// Checks where a response comes from and that it does not end the watch; returns the revision of its header. etcd
    /// gives no reason with a compaction, and no revision with anything else.
    fn check(&self, response: &PbWatchResponse) -> Result<Revision, KvstoreError> {
        let (_, revision) = check_header(Some(self.expected), response.header.as_ref())?;
        let what = || self.what.clone();
        if response.compact_revision != 0 {
            return Err(KvstoreError::Compacted { what: what(), compact_revision: Some(Revision(response.compact_revision)) });
        }
        if response.canceled {
            return Err(KvstoreError::WatchCancelled { what: what(), reason: response.cancel_reason.clone() });
        }
        Ok(revision)
    }
}

/// What an event costs in memory.
fn size(event: &Event) -> usize {
    let content = match event {
        Event::Put(key_value) => key_value.key.len() + key_value.value.len(),
        Event::Delete { key, .. } => key.len(),
    };
    size_of::<Event>() + content
}

#[cfg(test)]
mod tests {
    use etcd_client::proto::{PbKeyValue, PbResponseHeader};

    use super::*;
    use crate::Disposition;

    const CLUSTER: u64 = 0xabc;

    fn assembly() -> Assembly {
        assembly_after(1)
    }

    fn assembly_after(revision: i64) -> Assembly {
        Assembly::new(EtcdClusterId(CLUSTER), "watching".into(), 1000, Revision(revision))
    }

    fn response(header_revision: i64, deleted: &[(&str, i64)]) -> PbWatchResponse {
        let event = |(key, mod_revision): &(&str, i64)| PbEvent {
            r#type: 1,
            kv: Some(PbKeyValue { key: key.as_bytes().to_vec(), mod_revision: *mod_revision, ..Default::default() }),
            prev_kv: None,
        };
        PbWatchResponse {
            header: Some(PbResponseHeader { cluster_id: CLUSTER, revision: header_revision, ..Default::default() }),
            events: deleted.iter().map(event).collect(),
            ..Default::default()
        }
    }

    fn fragment(deleted: &[(&str, i64)]) -> PbWatchResponse {
        PbWatchResponse { fragment: true, ..response(9, deleted) }
    }

    fn events(deleted: &[(&str, i64)]) -> Option<WatchMessage> {
        let event = |(key, revision): &(&str, i64)| Event::Delete { key: key.as_bytes().to_vec(), mod_revision: Revision(*revision) };
        let events: Vec<Event> = deleted.iter().map(event).collect();
        events.last().map(Event::mod_revision).map(|revision| WatchMessage::Events { revision, events })
    }

    #[test]
    fn a_revision_cut_into_fragments_is_handed_out_once_it_is_whole() {
        let mut assembly = assembly();
        assert_eq!(assembly.accept(fragment(&[("a", 2), ("b", 3)])).unwrap(), events(&[("a", 2)]));
        assert_eq!(assembly.accept(fragment(&[("c", 3)])).unwrap(), None);
        let requested = PbWatchResponse { watch_id: WATCH_ID_OF_STREAM, ..response(9, &[]) };
        assert_eq!(assembly.accept(requested).unwrap(), Some(WatchMessage::Progress));
        assert_eq!(assembly.accept(response(9, &[("d", 3), ("e", 4)])).unwrap(), events(&[("b", 3), ("c", 3), ("d", 3), ("e", 4)]));
        assert_eq!(assembly.accept(response(9, &[])).unwrap(), Some(WatchMessage::Progress));
    }

    /// The watch begins at the revision that was read, and etcd before 3.4.38 and 3.5.22 sends old events to one from the future.
    #[test]
    fn what_was_read_before_is_dropped_and_progress_moves_nothing() {
        let mut assembly = assembly_after(5);
        assert_eq!(assembly.accept(response(5, &[("a", 5)])).unwrap(), None);
        assert_eq!(assembly.accept(response(9, &[("a", 4), ("b", 5), ("c", 6)])).unwrap(), events(&[("c", 6)]));
        assert_eq!(assembly.accept(response(9, &[("a", 3)])).unwrap(), None);
        // etcd before 3.4.25 and 3.5.8: a notification ahead of the events that it is about
        for watch_id in [0, WATCH_ID_OF_STREAM] {
            let ahead = PbWatchResponse { watch_id, ..response(30, &[]) };
            assert_eq!(assembly.accept(ahead).unwrap(), Some(WatchMessage::Progress));
        }
        assert_eq!(assembly.accept(response(30, &[("d", 7)])).unwrap(), events(&[("d", 7)]));
    }

    #[test]
    fn every_response_must_be_of_the_same_etcd() {
        let of = |header| PbWatchResponse { header, ..response(2, &[("a", 2)]) };
        let message = |response| assembly().accept(response).unwrap_err().to_string();
        let other = PbResponseHeader { cluster_id: 0xdef, ..Default::default() };
        assert_eq!(message(of(Some(other))), "etcd cluster id changed from abc to def");
        assert_eq!(message(of(None)), "reply without header");
    }

    #[test]
    fn what_ends_a_watch_says_what_to_do_next() {
        let outcome = |response: PbWatchResponse| {
            let error = assembly().accept(response).unwrap_err();
            (error.to_string(), error.disposition())
        };
        let compacted = PbWatchResponse { canceled: true, compact_revision: 7, ..response(9, &[]) };
        assert_eq!(outcome(compacted), ("watching: the revision is compacted up to 7".into(), Disposition::Resync));
        let expired = PbWatchResponse { canceled: true, cancel_reason: "etcdserver: invalid auth token".into(), ..response(9, &[]) };
        assert_eq!(outcome(expired), ("watching: cancelled by etcd: etcdserver: invalid auth token".into(), Disposition::Retry));
        let backwards = "etcd sent what makes no sense: watching: an event of revision";
        assert_eq!(outcome(response(9, &[("a", 3), ("b", 2)])), (format!("{backwards} 2 out of order"), Disposition::Retry));
        let newer = "etcd sent what makes no sense: watching: an event of revision 10 in a response of revision 9";
        assert_eq!(outcome(response(9, &[("a", 10)])), (newer.into(), Disposition::Retry));
        let (text, disposition) = outcome(response(0, &[]));
        assert!(text.starts_with("watching: etcd went back from revision 1 to 0: "), "{text}");
        assert_eq!(disposition, Disposition::Retry);
        let large = "x".repeat(8000);
        let message = "watching: more than 8000 bytes of changes that belong together".to_owned();
        assert_eq!(outcome(fragment(&[(&large, 2)])), (message, Disposition::Resync));
    }
}
