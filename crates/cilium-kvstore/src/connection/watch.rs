//! Watches of a key or a range: changes after a revision, grouped by complete revisions.

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

/// Maximum size of the changes of one revision plus one fragment, in multiples of the largest
/// message. When a lease expires or a range is deleted, all its keys are deleted in a single
/// revision (1,000,000 deletions of keys of 100 bytes use some 200 MB). Above this limit, a list is
/// the better choice.
const BATCH_MESSAGES_MAX: usize = 8;

/// Revision of an etcd that has never had a put (`server/storage/mvcc/kvstore.go`).
const FIRST_REVISION: Revision = Revision(1);

/// Watch in progress. Dropping it also cancels it at the server.
pub struct Watch {
    subscription: Subscription,
    /// Revision of the response that created the watch, until [`Watch::next`] returns it.
    created: Option<Revision>,
    assembler: RevisionAssembler,
}

/// Combines the responses of one watch into complete revisions. No IO.
struct RevisionAssembler {
    etcd_cluster_id: EtcdClusterId,
    operation: String,
    message_bytes_max: usize,
    /// Revision of the read before the watch. Events up to and including it are dropped: the watch
    /// starts at it, and older etcds send additional old events (etcd #20221).
    read_revision: Revision,
    /// Revision of the newest event that was returned; initially `read_revision`.
    returned_revision: Revision,
    /// Events of a revision that is not complete yet. Between calls, all of them have the same
    /// revision.
    pending: Vec<Event>,
}

/// Message of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchMessage {
    /// The watch was created. Always the first message.
    Created {
        /// etcd's newest revision at that moment. Not a position: events between the watch's start
        /// and this revision are still to come.
        revision: Revision,
    },
    /// Ordered events of complete revisions.
    Events {
        /// Revision of the last event, after which a later watch continues. (The revision in the
        /// header may be ahead of events that were not delivered yet.)
        revision: Revision,
        /// Events in order.
        events: Vec<Event>,
    },
    /// Progress without events.
    Progress {
        /// Revision up to which etcd has sent all events. Not a position: before 3.4.25 and 3.5.8
        /// it may be ahead of events that are still to come (etcd #15220).
        revision: Revision,
    },
}

impl Connection {
    /// Watches a key, or the range `[key, range_end)`, after a revision that was read, and waits
    /// until the watch is created. If the token has expired, logs in again once.
    ///
    /// The request starts at the read revision itself, and the events of that revision are dropped
    /// here. If a watch started one revision later, and that revision was a delete and is
    /// compacted, etcd before 3.4.36 and 3.5.18 would send nothing at all (etcd #18089, #19179).
    /// With the earlier start, etcd reports the compaction. etcd accepts a watch that starts
    /// exactly at the compacted revision, so a compaction of an idle etcd causes no second read.
    ///
    /// # Errors
    /// [`KvstoreError`]. `Compacted` may also be the first error of [`Watch::next`]. `WentBack` if
    /// the revision is in the future.
    pub async fn watch(&self, key: &[u8], range_end: Option<&[u8]>, after: Revision) -> Result<Watch, KvstoreError> {
        self.wait_for_rate_limit().await;
        self.watch_unlimited(key, range_end, after).await
    }

    /// Watches only the deletions of a key or range.
    ///
    /// # Errors
    /// Those of [`Connection::watch`].
    pub(crate) async fn watch_deletes(&self, key: &[u8], range_end: Option<&[u8]>, after: Revision) -> Result<Watch, KvstoreError> {
        self.wait_for_rate_limit().await;
        self.watch_with_token_retry(key, range_end, after, &[WatchFilterType::NoPut]).await
    }

    /// Watches a key or range without waiting for the rate limit. For locks.
    pub(crate) async fn watch_unlimited(&self, key: &[u8], range_end: Option<&[u8]>, after: Revision) -> Result<Watch, KvstoreError> {
        self.watch_with_token_retry(key, range_end, after, &[]).await
    }

    async fn watch_with_token_retry(
        &self,
        key: &[u8],
        range_end: Option<&[u8]>,
        after: Revision,
        filters: &[WatchFilterType],
    ) -> Result<Watch, KvstoreError> {
        let started = Instant::now();
        match self.try_watch(key, range_end, after, filters).await {
            Err(error) if self.has_user() && error.is_token_error() => {
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
        let operation = format!("watching {}", printable(key));
        let (limit, message_bytes_max) = (self.options().request_timeout, self.options().message_bytes_max);
        let too_long = || KvstoreError::Timeout { operation: operation.clone(), limit };
        let subscription = timeout(limit, Box::pin(self.subscribe(CreateRequest { key: key.to_vec(), options }))).await;
        let subscription = subscription.map_err(|_| too_long())?;
        let subscription = subscription.map_err(|e| KvstoreError::from_call(operation.clone(), message_bytes_max, &e))?;
        let assembler = RevisionAssembler::new(self.etcd_cluster_id(), operation.clone(), message_bytes_max, after);
        let mut watch = Watch { subscription, created: None, assembler };
        let first = watch.subscription.next_within(limit).await.map_err(|_| too_long())?;
        watch.accept_creation(first)?;
        Ok(watch)
    }
}

impl Watch {
    /// Returns the next message. Cancel-safe.
    ///
    /// # Errors
    /// [`KvstoreError`]; the watch is unusable after any error.
    pub async fn next(&mut self) -> Result<WatchMessage, KvstoreError> {
        if let Some(revision) = self.created.take() {
            return Ok(WatchMessage::Created { revision });
        }
        loop {
            let response = self.subscription.next().await.ok_or_else(|| self.end_error())?;
            if let Some(message) = self.assembler.accept(response)? {
                return Ok(message);
            }
        }
    }

    /// Returns the time since the connection's watch stream last sent a response. All watches of a
    /// connection share this stream. etcd is asked for progress at each
    /// [`ClientOptions::progress_interval`](crate::ClientOptions::progress_interval), so a healthy
    /// stream is never silent for long.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.subscription.silence()
    }

    /// Returns the total time for which the connection's watch stream has been listened to. Time in
    /// which an unread watch blocked the stream does not count. Use this as the clock for timeouts
    /// of expected events.
    #[must_use]
    pub fn listened(&self) -> Duration {
        self.subscription.listened()
    }

    /// Returns how often the connection's watch stream was blocked for so long that etcd may have
    /// lost changes (etcd #17529). The cause of the block does not matter.
    #[must_use]
    pub fn stalls(&self) -> u64 {
        self.subscription.stalls()
    }

    /// Processes the response that creates the watch.
    fn accept_creation(&mut self, first: Option<PbWatchResponse>) -> Result<(), KvstoreError> {
        let response = first.ok_or_else(|| self.end_error())?;
        let revision = self.assembler.check(&response).inspect_err(|error| {
            if error.is_token_error() {
                self.subscription.retire_stream();
            }
        })?;
        if !response.created {
            return Err(KvstoreError::Malformed { reason: "a watch that sends events before it is created".into() });
        }
        if revision < self.assembler.read_revision {
            return Err(KvstoreError::WentBack {
                operation: self.assembler.operation.clone(),
                from: self.assembler.read_revision,
                to: revision,
            });
        }
        self.created = Some(revision);
        Ok(())
    }

    /// Returns the error with which the stream ended.
    fn end_error(&self) -> KvstoreError {
        let operation = self.assembler.operation.clone();
        let Some(error) = self.subscription.end() else { return KvstoreError::WatchEnded { operation } };
        match KvstoreError::from_call(operation, self.assembler.message_bytes_max, error) {
            // tonic did not read the message, so it is unknown which watch it was for. etcd would
            // send it again; a list avoids this, because it reads in pages.
            KvstoreError::TooLarge { operation, bytes_max } => KvstoreError::BatchTooLarge { operation, bytes_max },
            error => error,
        }
    }
}

/// Returns the start revision of the request: the revision that was read, but at least 1, because 0
/// means "from now on".
fn start_revision(after: Revision) -> Revision {
    after.max(FIRST_REVISION)
}

impl RevisionAssembler {
    fn new(etcd_cluster_id: EtcdClusterId, operation: String, message_bytes_max: usize, after: Revision) -> Self {
        Self { etcd_cluster_id, operation, message_bytes_max, read_revision: after, returned_revision: after, pending: Vec::new() }
    }

    /// Processes one response; `None` if the response completes no message.
    fn accept(&mut self, response: PbWatchResponse) -> Result<Option<WatchMessage>, KvstoreError> {
        let header_revision = self.check(&response)?;
        if response.watch_id == WATCH_ID_OF_STREAM {
            // a revision whose fragments are still to come is not delivered
            let revision = if self.pending.is_empty() { header_revision } else { self.returned_revision };
            return Ok(Some(WatchMessage::Progress { revision }));
        }
        let is_progress = response.events.is_empty() && !response.fragment;
        if is_progress && header_revision < self.returned_revision {
            return Err(KvstoreError::WentBack { operation: self.operation.clone(), from: self.returned_revision, to: header_revision });
        }
        self.append(response.events, header_revision)?;
        let complete = if response.fragment { self.take_complete_revisions() } else { std::mem::take(&mut self.pending) };
        if let Some(last) = complete.last() {
            let revision = last.mod_revision();
            self.returned_revision = revision;
            return Ok(Some(WatchMessage::Events { revision, events: complete }));
        }
        Ok(is_progress.then_some(WatchMessage::Progress { revision: header_revision }))
    }

    /// Removes the pending events of a fragmented response and returns them, except the events of
    /// the newest revision, which may continue in the next fragment.
    fn take_complete_revisions(&mut self) -> Vec<Event> {
        let newest = self.pending.last().map(Event::mod_revision);
        let newest_start = self.pending.iter().position(|event| Some(event.mod_revision()) == newest).unwrap_or(0);
        let incomplete = self.pending.split_off(newest_start);
        std::mem::replace(&mut self.pending, incomplete)
    }

    /// Appends events. The revision of a header is never lower than the revisions of its own
    /// events. Nothing else about it is certain: for a watch that is behind, the header revisions
    /// go up and down (`moveVictims` in etcd's `watchable_store.go`).
    fn append(&mut self, events: Vec<PbEvent>, header_revision: Revision) -> Result<(), KvstoreError> {
        let bytes_max = self.message_bytes_max.saturating_mul(BATCH_MESSAGES_MAX);
        let mut bytes: usize = self.pending.iter().map(size).sum();
        for event in events {
            let event = Event::try_from(event)?;
            let revision = event.mod_revision();
            if revision <= self.read_revision {
                continue;
            }
            if revision <= self.returned_revision || self.pending.last().is_some_and(|last| revision < last.mod_revision()) {
                return Err(KvstoreError::Malformed {
                    reason: format!("{}: an event of revision {revision} out of order", self.operation),
                });
            }
            if revision > header_revision {
                let reason = format!("{}: an event of revision {revision} in a response of revision {header_revision}", self.operation);
                return Err(KvstoreError::Malformed { reason });
            }
            bytes += size(&event);
            if bytes > bytes_max {
                return Err(KvstoreError::BatchTooLarge { operation: self.operation.clone(), bytes_max });
            }
            self.pending.push(event);
        }
        Ok(())
    }

    /// Checks that a response comes from the same etcd, and whether it ends the watch. Returns the
    /// revision of its header. etcd gives no reason if it ends the watch because of a compaction,
    /// and no revision if it ends the watch for another reason.
    fn check(&self, response: &PbWatchResponse) -> Result<Revision, KvstoreError> {
        let (_, revision) = check_header(Some(self.etcd_cluster_id), response.header.as_ref())?;
        let operation = || self.operation.clone();
        if response.compact_revision != 0 {
            return Err(KvstoreError::Compacted { operation: operation(), compact_revision: Some(Revision(response.compact_revision)) });
        }
        if response.canceled {
            return Err(KvstoreError::WatchCancelled { operation: operation(), reason: response.cancel_reason.clone() });
        }
        Ok(revision)
    }
}

/// Returns the memory that an event uses, in bytes.
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

    fn assembler() -> RevisionAssembler {
        assembler_after(1)
    }

    fn assembler_after(revision: i64) -> RevisionAssembler {
        RevisionAssembler::new(EtcdClusterId(CLUSTER), "watching".into(), 1000, Revision(revision))
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
    fn a_fragmented_revision_is_returned_once_it_is_complete() {
        let mut assembler = assembler();
        assert_eq!(assembler.accept(fragment(&[("a", 2), ("b", 3)])).unwrap(), events(&[("a", 2)]));
        assert_eq!(assembler.accept(fragment(&[("c", 3)])).unwrap(), None);
        let progress = PbWatchResponse { watch_id: WATCH_ID_OF_STREAM, ..response(9, &[]) };
        assert_eq!(assembler.accept(progress).unwrap(), Some(WatchMessage::Progress { revision: Revision(2) }));
        assert_eq!(assembler.accept(response(9, &[("d", 3), ("e", 4)])).unwrap(), events(&[("b", 3), ("c", 3), ("d", 3), ("e", 4)]));
        assert_eq!(assembler.accept(response(9, &[])).unwrap(), Some(WatchMessage::Progress { revision: Revision(9) }));
    }

    /// The watch starts at the revision that was read, and etcd before 3.4.38 and 3.5.22 sends old
    /// events to a watch that starts at a future revision.
    #[test]
    fn events_up_to_the_read_revision_are_dropped() {
        let mut assembler = assembler_after(5);
        assert_eq!(assembler.accept(response(5, &[("a", 5)])).unwrap(), None);
        assert_eq!(assembler.accept(response(9, &[("a", 4), ("b", 5), ("c", 6)])).unwrap(), events(&[("c", 6)]));
        assert_eq!(assembler.accept(response(9, &[("a", 3)])).unwrap(), None);
        // etcd before 3.4.25 and 3.5.8 sends a progress notification ahead of the events that it
        // covers
        for watch_id in [0, WATCH_ID_OF_STREAM] {
            let ahead = PbWatchResponse { watch_id, ..response(30, &[]) };
            assert_eq!(assembler.accept(ahead).unwrap(), Some(WatchMessage::Progress { revision: Revision(30) }));
        }
        assert_eq!(assembler.accept(response(30, &[("d", 7)])).unwrap(), events(&[("d", 7)]));
    }

    #[test]
    fn every_response_must_come_from_the_same_etcd() {
        let with_header = |header| PbWatchResponse { header, ..response(2, &[("a", 2)]) };
        let message = |response| assembler().accept(response).unwrap_err().to_string();
        let other = PbResponseHeader { cluster_id: 0xdef, ..Default::default() };
        assert_eq!(message(with_header(Some(other))), "etcd cluster id changed from abc to def");
        assert_eq!(message(with_header(None)), "reply without header");
    }

    #[test]
    fn each_error_of_a_watch_has_a_disposition() {
        let outcome = |response: PbWatchResponse| {
            let error = assembler().accept(response).unwrap_err();
            (error.to_string(), error.disposition())
        };
        let compacted = PbWatchResponse { canceled: true, compact_revision: 7, ..response(9, &[]) };
        assert_eq!(outcome(compacted), ("watching: the revision is compacted up to 7".into(), Disposition::Resync));
        let expired = PbWatchResponse { canceled: true, cancel_reason: "etcdserver: invalid auth token".into(), ..response(9, &[]) };
        assert_eq!(outcome(expired), ("watching: cancelled by etcd: etcdserver: invalid auth token".into(), Disposition::Retry));
        let event_error = "etcd sent an invalid answer: watching: an event of revision";
        assert_eq!(outcome(response(9, &[("a", 3), ("b", 2)])), (format!("{event_error} 2 out of order"), Disposition::Retry));
        let newer = "etcd sent an invalid answer: watching: an event of revision 10 in a response of revision 9";
        assert_eq!(outcome(response(9, &[("a", 10)])), (newer.into(), Disposition::Retry));
        let (text, disposition) = outcome(response(0, &[]));
        assert!(text.starts_with("watching: etcd went back from revision 1 to 0: "), "{text}");
        assert_eq!(disposition, Disposition::Retry);
        let large = "x".repeat(8000);
        let message = "watching: more than 8000 bytes of changes in one revision".to_owned();
        assert_eq!(outcome(fragment(&[(&large, 2)])), (message, Disposition::Resync));
    }
}
