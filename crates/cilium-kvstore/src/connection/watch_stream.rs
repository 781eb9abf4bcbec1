//! Stream that all watches of a connection share, as in etcd's own client (`clientv3/watch.go`). A
//! stream costs some 25 KB here (two buffers of tonic, three tasks) and several goroutines in etcd,
//! and a mesh has ten watches for each of up to 511 clusters.
//!
//! One task reads the stream. It creates the requested watches, cancels those that were dropped,
//! passes each response to its watch, and reports to all watches why the stream ended. No response
//! is lost, and at most one is buffered per watch. A watch that is not read therefore blocks the
//! other watches of its connection, and in the end etcd.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use etcd_client::proto::PbWatchResponse;
use etcd_client::{WatchClient, WatchOptions, WatchRequestSender, WatchResponseStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

/// Number of unanswered progress requests from which [`SharedStream::progress_is_unanswered`]
/// returns true. At the default interval, six requests take a minute. While watches are behind,
/// etcd answers only after they have caught up.
const UNANSWERED_MAX: u32 = 6;

/// Watch id of responses that concern no single watch (etcd's `clientv3.InvalidWatchID`): answers
/// to a progress request, and refusals to create a watch.
pub(crate) const WATCH_ID_OF_STREAM: i64 = -1;

/// Maximum number of buffered responses per watch: the next response waits while the previous one
/// is processed. Each may have up to `message_bytes_max` bytes.
const RESPONSES_WAITING_MAX: usize = 1;

/// Id of a stream's first watch. The client chooses the ids and never uses 0: etcd 3.5.1 refuses
/// the creation of a watch with the id 0 in the response, and afterwards sends nothing more to a
/// watch that has this id.
const FIRST_WATCH_ID: i64 = 1;

/// Minimum time for which a response must wait for its watch to count as a stall. While the stream
/// is not read, etcd fills its own buffers, and then delays events for the whole stream. If etcd
/// compacts the delayed events meanwhile, releases before 3.4.31 and 3.5.13 skip them silently
/// (etcd #17529). The buffers of etcd and of the connection absorb shorter delays. This value is an
/// estimate, not a measurement. With a compaction every 5 minutes, the shortest interval in etcd's
/// charts, one in sixty stalls of this length coincides with a compaction.
const STALL_MIN: Duration = Duration::from_secs(5);

/// Sender of the responses of one watch.
type ResponseSender = mpsc::Sender<Box<PbWatchResponse>>;

/// Request to create a watch.
#[derive(Clone)]
pub(crate) struct CreateRequest {
    pub(crate) key: Vec<u8>,
    pub(crate) options: WatchOptions,
}

/// One watch stream. It ends, also at the server, when the last watch on it is dropped.
pub(crate) struct SharedStream {
    shared: Arc<SharedStreamState>,
    /// Task that reads the stream. Dropping this aborts it.
    _reader: JoinSet<()>,
}

/// Receiver of one watch's responses on a shared stream. Dropping it ends the watch at the server.
pub(crate) struct Subscription {
    stream: Arc<SharedStream>,
    responses: mpsc::Receiver<Box<PbWatchResponse>>,
}

/// State that the watches of a stream share with the task that reads the stream.
#[derive(Default)]
struct SharedStreamState {
    state: Mutex<StreamState>,
    /// Wakes the reader for a new request or a dropped watch.
    reader_wakeup: Notify,
    /// Reason why the stream ended; `None` if etcd gave none.
    end: OnceLock<Option<etcd_client::Error>>,
}

#[derive(Default)]
struct StreamState {
    /// Whether no more watches are accepted, because the stream or its token has ended.
    closed: bool,
    requests: VecDeque<(CreateRequest, ResponseSender)>,
    /// Start of the current wait for a response; `None` while a response is delivered to its watch.
    listening_since: Option<Instant>,
    /// Total time of the earlier waits.
    listened: Duration,
    /// Start of the delivery of a response that its watch has not received yet.
    delivering_since: Option<Instant>,
    /// Number of deliveries that took [`STALL_MIN`] or longer.
    stalls: u64,
    /// Number of progress requests since the last answer.
    unanswered: u32,
}

impl SharedStream {
    /// Opens a stream with its first watch, because etcd sends nothing before a watch is requested.
    pub(crate) async fn open(
        mut client: WatchClient,
        first: CreateRequest,
        progress_interval: Duration,
    ) -> Result<(Arc<Self>, Subscription), etcd_client::Error> {
        let stream = client.watch(first.key, Some(first.options.with_watch_id(FIRST_WATCH_ID))).await?;
        let (requests, response_stream) = stream.split();
        let (sender, responses) = mpsc::channel(RESPONSES_WAITING_MAX);
        let shared = Arc::new(SharedStreamState::default());
        let next_watch_id = FIRST_WATCH_ID + 1;
        let reader = StreamReader { shared: Arc::clone(&shared), requests, creating: Some(sender), next_watch_id, watches: HashMap::new() };
        let mut task = JoinSet::new();
        task.spawn(reader.run(response_stream, progress_interval));
        let stream = Arc::new(Self { shared, _reader: task });
        Ok((Arc::clone(&stream), Subscription { stream, responses }))
    }

    /// Requests another watch; `None` if the stream is closed to new watches.
    pub(crate) fn subscribe(self: &Arc<Self>, request: &CreateRequest) -> Option<Subscription> {
        let (sender, responses) = mpsc::channel(RESPONSES_WAITING_MAX);
        let mut state = self.shared.state();
        if state.closed {
            return None;
        }
        state.requests.push_back((request.clone(), sender));
        drop(state);
        self.shared.reader_wakeup.notify_one();
        Some(Subscription { stream: Arc::clone(self), responses })
    }

    /// Returns whether at least [`UNANSWERED_MAX`] progress requests are unanswered, as behind a
    /// proxy that forwards only changes.
    pub(crate) fn progress_is_unanswered(&self) -> bool {
        self.shared.state().unanswered >= UNANSWERED_MAX
    }
}

impl Subscription {
    /// Returns the next response; `None` once the stream has ended. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<PbWatchResponse> {
        self.responses.recv().await.map(|response| *response)
    }

    /// Returns the next response, or an error after `limit` of listening time. Time in which an
    /// unread watch blocks the stream does not count.
    pub(crate) async fn next_within(&mut self, limit: Duration) -> Result<Option<PbWatchResponse>, Elapsed> {
        let started = self.listened();
        loop {
            let remaining = limit.saturating_sub(self.listened().saturating_sub(started));
            match timeout(remaining, self.next()).await {
                Err(_) if !remaining.is_zero() => {}
                result => return result,
            }
        }
    }

    /// Returns why the stream ended, if that is known.
    pub(crate) fn end(&self) -> Option<&etcd_client::Error> {
        self.stream.shared.end.get()?.as_ref()
    }

    /// Returns the time since the last response to any watch of the stream.
    pub(crate) fn silence(&self) -> Duration {
        self.stream.shared.state().listening_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns the total time for which the stream has been listened to.
    pub(crate) fn listened(&self) -> Duration {
        let state = self.stream.shared.state();
        state.listened + state.listening_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns the number of stalls. After each stall events may be missing, so the caller must
    /// compare its copy with etcd.
    pub(crate) fn stalls(&self) -> u64 {
        self.stream.shared.state().stalls
    }

    /// Makes the stream accept no more watches, because its token is no longer valid. Existing
    /// watches are not affected.
    pub(crate) fn retire_stream(&self) {
        self.stream.shared.state().closed = true;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // close first: the woken reader searches for closed receivers
        self.responses.close();
        self.stream.shared.reader_wakeup.notify_one();
    }
}

impl SharedStreamState {
    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_listening(&self, listening: bool) {
        let mut state = self.state();
        let before = state.listening_since.take();
        state.listened += before.map_or(Duration::ZERO, |since| since.elapsed());
        state.listening_since = listening.then(Instant::now);
        let delivery_start = state.delivering_since.take();
        state.stalls += u64::from(delivery_start.is_some_and(|since| since.elapsed() >= STALL_MIN));
        state.delivering_since = (!listening).then(Instant::now);
    }

    /// Returns the next requested watch whose receiver still exists.
    fn next_request(&self) -> Option<(CreateRequest, ResponseSender)> {
        let mut state = self.state();
        std::iter::from_fn(|| state.requests.pop_front()).find(|(_, sender)| !sender.is_closed())
    }
}

/// State of the task that reads and writes the stream. No other task does either.
struct StreamReader {
    shared: Arc<SharedStreamState>,
    requests: WatchRequestSender,
    /// Response sender of the watch that is being created. The next request is sent only after the
    /// response to this one, because a newer etcd that refuses a watch does not name the watch's id
    /// in its response.
    creating: Option<ResponseSender>,
    next_watch_id: i64,
    watches: HashMap<i64, ResponseSender>,
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closed = true;
        state.requests.clear();
    }
}

impl StreamReader {
    async fn run(mut self, mut responses: WatchResponseStream, progress_interval: Duration) {
        let mut progress = interval_at(Instant::now() + progress_interval, progress_interval);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.shared.set_listening(true);
        let end = loop {
            // sending a request fails only if the stream is ending, which the next read reports
            tokio::select! {
                response = responses.message() => match response {
                    Ok(Some(response)) => {
                        self.shared.set_listening(false);
                        self.deliver(response.0).await;
                        self.shared.set_listening(true);
                    }
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                },
                () = self.shared.reader_wakeup.notified() => {}
                _ = progress.tick() => {
                    drop(self.requests.request_progress().await);
                    let mut state = self.shared.state();
                    state.unanswered = state.unanswered.saturating_add(1);
                }
            }
            self.cancel_dropped().await;
            self.create_next().await;
        };
        // must be set before the watches see the end of their channels, which close when this
        // reader is dropped
        let _ = self.shared.end.set(end);
    }

    async fn deliver(&mut self, response: PbWatchResponse) {
        if response.created {
            let Some(sender) = self.creating.take() else { return };
            if !response.canceled {
                self.watches.insert(response.watch_id, sender.clone());
            }
            let _ = sender.send(Box::new(response)).await;
        } else if response.watch_id == WATCH_ID_OF_STREAM {
            self.shared.state().unanswered = 0;
            for sender in self.watches.values() {
                // no copy for a watch that has not received its previous response yet
                let _ = sender.try_send(Box::new(response.clone()));
            }
        } else if let Some(sender) = self.watches.get(&response.watch_id) {
            let _ = sender.send(Box::new(response)).await;
        }
    }

    /// Cancels dropped watches, even those that etcd has ended: etcd keeps a compacted watch until
    /// it is cancelled.
    async fn cancel_dropped(&mut self) {
        let dropped: Vec<i64> = self.watches.iter().filter(|(_, sender)| sender.is_closed()).map(|(watch_id, _)| *watch_id).collect();
        for watch_id in dropped {
            self.watches.remove(&watch_id);
            let _ = self.requests.cancel(watch_id).await;
        }
    }

    async fn create_next(&mut self) {
        if self.creating.is_some() {
            return;
        }
        if let Some((request, sender)) = self.shared.next_request() {
            self.creating = Some(sender);
            let _ = self.requests.watch(request.key, Some(request.options.with_watch_id(self.next_watch_id))).await;
            self.next_watch_id += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_delivery_is_a_stall_and_silence_is_not() {
        let shared = SharedStreamState::default();
        shared.set_listening(true);
        for (delivery, stalls) in [(STALL_MIN / 2, 0), (STALL_MIN / 2, 0), (STALL_MIN, 1), (STALL_MIN / 2, 1), (2 * STALL_MIN, 2)] {
            tokio::time::advance(10 * STALL_MIN).await;
            shared.set_listening(false);
            tokio::time::advance(delivery).await;
            shared.set_listening(true);
            assert_eq!(shared.state().stalls, stalls);
        }
    }
}
