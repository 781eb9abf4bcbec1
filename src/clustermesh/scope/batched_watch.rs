//! Combines the messages of a watch into batches, because each batch with a delete costs a read of
//! the evidence ([`evidence`](super::evidence)), a round trip to the source.
//!
//! etcd sends one message per revision: a thousand deletes are a thousand messages. The evidence
//! must be newer than each delete for which it is used (docs/develop/invariants.md, 4). The caller
//! therefore reads it after a whole batch has arrived.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::unconstrained;
use tokio::time::{Instant, timeout_at};

use cilium_kvstore::{Event, KvstoreError, Revision, Watch, WatchMessage};

/// Time after a batch with a delete for which further deletes are collected. In a stream of deletes
/// it limits the reads of evidence to 500 per second. Same as the committer's interval between two
/// snapshots (`PUBLISH_INTERVAL_MIN`). A single delete is returned at once.
const COLLECT_TIME: Duration = Duration::from_millis(2);

/// Number of events above which a batch accepts no further message: a page of a list.
const BATCH_EVENTS_MAX: usize = 256;

/// Bytes of keys and values above which a batch accepts no further message. A single message may be
/// larger.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// A watch, or the script of a test.
pub(super) trait MessageSource {
    /// Returns the next message. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Result<WatchMessage, KvstoreError>> + Send;
}

impl MessageSource for Watch {
    fn next(&mut self) -> impl Future<Output = Result<WatchMessage, KvstoreError>> + Send {
        Self::next(self)
    }
}

/// A watch that returns the messages that are ready together as one message.
pub(super) struct BatchedWatch<S> {
    pub(super) watch: S,
    /// Events of the current batch, with its revision and the bytes of its keys and values.
    events: Vec<Event>,
    revision: Revision,
    bytes: usize,
    has_delete: bool,
    /// True if the last batch had a delete.
    returned_delete: bool,
    /// Time until which messages are collected if the batch has a delete.
    collect_until: Instant,
    /// Message or error that ended a batch.
    following: Option<Result<WatchMessage, KvstoreError>>,
}

impl<S: MessageSource> BatchedWatch<S> {
    pub(super) fn new(watch: S) -> Self {
        let collect_until = Instant::now();
        Self {
            watch,
            events: Vec::new(),
            revision: Revision(0),
            bytes: 0,
            has_delete: false,
            returned_delete: false,
            collect_until,
            following: None,
        }
    }

    /// Returns the next message. Several messages with events are returned as one. Cancel-safe.
    ///
    /// The next call must follow the read of the evidence for a batch with a delete.
    pub(super) async fn next(&mut self) -> Result<WatchMessage, KvstoreError> {
        if std::mem::take(&mut self.returned_delete) {
            self.collect_until = Instant::now() + COLLECT_TIME;
        }
        if self.events.is_empty() {
            let first = match self.following.take() {
                Some(following) => following,
                None => self.watch.next().await,
            };
            match first? {
                WatchMessage::Events { revision, events } => self.add(revision, events),
                message @ (WatchMessage::Created { .. } | WatchMessage::Progress { .. }) => return Ok(message),
            }
        }
        while self.following.is_none() && self.events.len() < BATCH_EVENTS_MAX && self.bytes < BATCH_BYTES_MAX {
            match self.next_ready().await {
                Some(Ok(WatchMessage::Events { revision, events })) => self.add(revision, events),
                Some(following) => self.following = Some(following),
                None => break,
            }
        }
        self.bytes = 0;
        self.returned_delete = std::mem::take(&mut self.has_delete);
        Ok(WatchMessage::Events { revision: self.revision, events: std::mem::take(&mut self.events) })
    }

    /// Returns a message that is ready, or arrives while messages are collected.
    async fn next_ready(&mut self) -> Option<Result<WatchMessage, KvstoreError>> {
        if self.has_delete && Instant::now() < self.collect_until {
            timeout_at(self.collect_until, self.watch.next()).await.ok()
        } else {
            // tokio's limit on the work of a task would end the batch early
            unconstrained(self.watch.next()).now_or_never()
        }
    }

    fn add(&mut self, revision: Revision, events: Vec<Event>) {
        for event in &events {
            self.bytes += match event {
                Event::Put(put) => put.key.len() + put.value.len(),
                Event::Delete { key, .. } => key.len(),
            };
            self.has_delete |= matches!(event, Event::Delete { .. });
        }
        self.revision = revision;
        self.events.extend(events);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::time::sleep_until;

    use super::*;
    use cilium_kvstore::{KeyValue, LeaseId};

    /// Messages with the times at which they arrive, in ms. After the last one nothing arrives.
    struct Script {
        start: Instant,
        messages: VecDeque<(u64, Result<WatchMessage, KvstoreError>)>,
    }

    impl MessageSource for Script {
        async fn next(&mut self) -> Result<WatchMessage, KvstoreError> {
            let Some((arrival, _)) = self.messages.front() else { return std::future::pending().await };
            sleep_until(self.start + Duration::from_millis(*arrival)).await;
            self.messages.pop_front().unwrap().1
        }
    }

    fn put(revision: i64, bytes: usize) -> Event {
        Event::Put(KeyValue {
            key: format!("a{revision}").into_bytes(),
            value: vec![7; bytes].into(),
            create_revision: Revision(revision),
            mod_revision: Revision(revision),
            version: 1,
            lease: LeaseId(0),
        })
    }

    fn delete(revision: i64) -> Event {
        Event::Delete { key: format!("a{revision}").into_bytes(), mod_revision: Revision(revision) }
    }

    fn message(event: Event) -> Result<WatchMessage, KvstoreError> {
        Ok(WatchMessage::Events { revision: event.mod_revision(), events: vec![event] })
    }

    fn error() -> KvstoreError {
        KvstoreError::WatchEnded { operation: "watching".into() }
    }

    /// Returns what a caller sees until nothing more arrives: the time in ms, the revision, the
    /// revisions of the events; `None` for an error. The read of the evidence takes `read_time`.
    async fn batches(messages: Vec<(u64, Result<WatchMessage, KvstoreError>)>, read_time: u64) -> Vec<(u64, Option<(i64, Vec<i64>)>)> {
        let start = Instant::now();
        let mut watch = BatchedWatch::new(Script { start, messages: messages.into() });
        let mut seen = Vec::new();
        while let Ok(message) = timeout_at(start + Duration::from_secs(3600), watch.next()).await {
            let at = u64::try_from(start.elapsed().as_millis()).unwrap();
            let is_end = message.is_err();
            let batch = message.ok().map(|message| match message {
                WatchMessage::Events { revision, events } => {
                    (revision.0, events.iter().map(|event| event.mod_revision().0).collect::<Vec<_>>())
                }
                WatchMessage::Created { .. } | WatchMessage::Progress { .. } => (0, Vec::new()),
            });
            seen.push((at, batch));
            if is_end {
                break;
            }
            tokio::time::advance(Duration::from_millis(read_time)).await;
        }
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn ready_messages_are_one_batch_in_their_order() {
        let messages = (1..=200).map(|revision| (0, message(if revision % 2 == 0 { put(revision, 1) } else { delete(revision) })));
        assert_eq!(batches(messages.collect(), 0).await, [(0, Some((200, (1..=200).collect())))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_delete_is_returned_at_once() {
        let messages = [1, 10, 20].map(|at| (at, message(delete(i64::try_from(at).unwrap()))));
        let expected = [(1, Some((1, vec![1]))), (10, Some((10, vec![10]))), (20, Some((20, vec![20])))];
        assert_eq!(batches(messages.into(), 1).await, expected);
    }

    /// The evidence for a batch is read in 1 ms. Then the next batch is collected for 2 ms.
    #[tokio::test(start_paused = true)]
    async fn a_stream_of_deletes_is_collected_after_each_read_of_evidence() {
        let messages = (1..=9).map(|at| (at, message(delete(i64::try_from(at).unwrap()))));
        let expected = [(1, Some((1, vec![1]))), (4, Some((4, vec![2, 3, 4]))), (7, Some((7, vec![5, 6, 7]))), (10, Some((9, vec![8, 9])))];
        assert_eq!(batches(messages.collect(), 1).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn puts_do_not_wait_for_further_messages() {
        let messages = vec![(1, message(delete(1))), (2, message(put(2, 1))), (3, message(put(3, 1)))];
        assert_eq!(batches(messages, 0).await, [(1, Some((1, vec![1]))), (2, Some((2, vec![2]))), (3, Some((3, vec![3])))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_limited_in_events_and_in_bytes() {
        let counted = (1..=300).map(|revision| (0, message(delete(revision)))).collect();
        assert_eq!(batches(counted, 2).await, [(0, Some((256, (1..=256).collect()))), (4, Some((300, (257..=300).collect())))]);
        let large = (1..=3).map(|revision| (0, message(put(revision, BATCH_BYTES_MAX / 2)))).collect();
        assert_eq!(batches(large, 0).await, [(0, Some((2, vec![1, 2]))), (0, Some((3, vec![3])))]);
    }

    #[tokio::test(start_paused = true)]
    async fn progress_and_errors_follow_the_events_before_them() {
        let messages = vec![
            (0, message(delete(1))),
            (0, Ok(WatchMessage::Progress { revision: Revision(1) })),
            (0, message(delete(2))),
            (0, Err(error())),
        ];
        let expected = [(0, Some((1, vec![1]))), (0, Some((0, vec![]))), (0, Some((2, vec![2]))), (0, None)];
        assert_eq!(batches(messages, 3).await.into_iter().map(|(_, batch)| (0, batch)).collect::<Vec<_>>(), expected);
    }

    /// The caller waits for other things as well, and drops the future of `next` each time.
    #[tokio::test(start_paused = true)]
    async fn cancelling_loses_no_event() {
        let start = Instant::now();
        let messages = [1, 2, 3, 4].map(|at| (at, message(delete(i64::try_from(at).unwrap()))));
        let mut watch = BatchedWatch::new(Script { start, messages: messages.into() });
        let mut revisions = Vec::new();
        for _ in 0..100 {
            if let Ok(message) = tokio::time::timeout(Duration::from_millis(1), watch.next()).await {
                let WatchMessage::Events { events, .. } = message.unwrap() else { panic!("only events") };
                revisions.extend(events.iter().map(|event| event.mod_revision().0));
            }
        }
        assert_eq!(revisions, [1, 2, 3, 4]);
    }
}
