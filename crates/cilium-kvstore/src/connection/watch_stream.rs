//! The stream that the watches of one connection share, as in etcd's own client (`clientv3/watch.go`): a stream costs some 25 KB here (two
//! buffers of tonic's, three tasks) and several goroutines there, and a mesh has ten watches for each of up to 511 clusters.
//!
//! Owns: the stream and the task that reads it. Receives: watches to create and signs of those that were dropped. Emits: to each watch its
//! own responses, and to all of them why the stream ended. Invariant: nothing is lost, and no more than one response waits for each watch: one
//! that is not read holds up the others of its connection, and with them etcd.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use etcd_client::proto::PbWatchResponse;
use etcd_client::{WatchClient, WatchOptions, WatchRequestSender, WatchResponseStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

/// After so many questions for progress without an answer it is told: six take a minute, and etcd answers while its watches are behind only once they
/// have caught up.
const UNANSWERED_MAX: u32 = 6;

/// The watch id of what concerns no single watch (etcd's `clientv3.InvalidWatchID`): answers to a progress request, and refusals to create one.
pub(crate) const WATCH_ID_OF_STREAM: i64 = -1;

/// How many responses may wait for one watch: one, while the one before it is worked on. Each may be of `message_bytes_max`.
const RESPONSES_WAITING_MAX: usize = 1;

/// The id of a stream's first watch. Ids are ours, and never 0: an etcd that refuses a watch without an id (3.5.1) does so in the name of 0,
/// and then sends nothing more to the watch that it gave that id.
const FIRST_WATCH_ID: i64 = 1;

/// A response that waits so long to be taken is a stall. While the stream is not read etcd fills its own buffers, and then what it sends is late
/// for the whole stream: where that is compacted meanwhile, releases before 3.4.31 and 3.5.13 leave it out and say nothing (etcd #17529). Shorter
/// ones are in the buffers of etcd and of the connection: not measured, but a compaction each 5 minutes, the shortest that charts of etcd set, meets
/// a stall of this length once in sixty.
const STALL_MIN: Duration = Duration::from_secs(5);

/// Where the responses of one watch go.
type ResponseSender = mpsc::Sender<Box<PbWatchResponse>>;

/// A watch to create.
#[derive(Clone)]
pub(crate) struct CreateRequest {
    pub(crate) key: Vec<u8>,
    pub(crate) options: WatchOptions,
}

/// One watch stream. It ends, at the server too, with the last watch that holds it.
pub(crate) struct SharedStream {
    shared: Arc<StreamShared>,
    /// The one task that reads it; dropping this ends it.
    _reader: JoinSet<()>,
}

/// One watch's part of a stream. Dropping it ends the watch at the server.
pub(crate) struct Subscription {
    stream: Arc<SharedStream>,
    responses: mpsc::Receiver<Box<PbWatchResponse>>,
}

/// What the watches of a stream and its reader share.
#[derive(Default)]
struct StreamShared {
    state: Mutex<StreamState>,
    /// Something was left for the reader.
    notice: Notify,
    /// Why the stream ended; `None` if etcd gave no reason.
    end: OnceLock<Option<etcd_client::Error>>,
}

#[derive(Default)]
struct StreamState {
    /// Whether no more watches are taken: the stream has ended, or its token has.
    closed: bool,
    requests: VecDeque<(CreateRequest, ResponseSender)>,
    /// Since when the reader waits for a response; `None` while it hands one over.
    listening_since: Option<Instant>,
    /// How long it has waited for those before.
    listened: Duration,
    /// Since when a response waits to be taken.
    held_up_since: Option<Instant>,
    /// How often one waited for [`STALL_MIN`].
    stalls: u64,
    /// How many questions for progress were sent since one was answered.
    unanswered: u32,
}

impl SharedStream {
    /// Opens a stream with its first watch: etcd says nothing at all before one is asked for.
    pub(crate) async fn open(
        mut client: WatchClient,
        first: CreateRequest,
        progress_interval: Duration,
    ) -> Result<(Arc<Self>, Subscription), etcd_client::Error> {
        let stream = client.watch(first.key, Some(first.options.with_watch_id(FIRST_WATCH_ID))).await?;
        let (requests, response_stream) = stream.split();
        let (sender, responses) = mpsc::channel(RESPONSES_WAITING_MAX);
        let shared = Arc::new(StreamShared::default());
        let next_watch_id = FIRST_WATCH_ID + 1;
        let reader = Reader { shared: Arc::clone(&shared), requests, creating: Some(sender), next_watch_id, watches: HashMap::new() };
        let mut task = JoinSet::new();
        task.spawn(reader.run(response_stream, progress_interval));
        let stream = Arc::new(Self { shared, _reader: task });
        Ok((Arc::clone(&stream), Subscription { stream, responses }))
    }

    /// Asks for another watch; `None` if the stream takes no more.
    pub(crate) fn subscribe(self: &Arc<Self>, request: &CreateRequest) -> Option<Subscription> {
        let (sender, responses) = mpsc::channel(RESPONSES_WAITING_MAX);
        let mut state = self.shared.state();
        if state.closed {
            return None;
        }
        state.requests.push_back((request.clone(), sender));
        drop(state);
        self.shared.notice.notify_one();
        Some(Subscription { stream: Arc::clone(self), responses })
    }

    /// Whether many questions for progress were sent since one was answered, as behind a proxy that keeps what is no change.
    pub(crate) fn progress_is_unanswered(&self) -> bool {
        self.shared.state().unanswered >= UNANSWERED_MAX
    }
}

impl Subscription {
    /// The next response; `None` once the stream has ended. May be dropped while waiting without losing anything.
    pub(crate) async fn next(&mut self) -> Option<PbWatchResponse> {
        self.responses.recv().await.map(|response| *response)
    }

    /// The next response, unless the stream is listened to for so long without it. What watches that are not read hold up does not count.
    pub(crate) async fn next_within(&mut self, limit: Duration) -> Result<Option<PbWatchResponse>, Elapsed> {
        let begun = self.listened();
        loop {
            let left = limit.saturating_sub(self.listened().saturating_sub(begun));
            match timeout(left, self.next()).await {
                Err(_) if !left.is_zero() => {}
                done => return done,
            }
        }
    }

    /// Why the stream ended, where that is known.
    pub(crate) fn end(&self) -> Option<&etcd_client::Error> {
        self.stream.shared.end.get()?.as_ref()
    }

    /// How long the stream has been listened to without a word for any of its watches.
    pub(crate) fn silence(&self) -> Duration {
        self.stream.shared.state().listening_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// How long the stream has been listened to, in all.
    pub(crate) fn listened(&self) -> Duration {
        let state = self.stream.shared.state();
        state.listened + state.listening_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// How often a response of the stream was not taken for so long that others may be lost: what was read so far has to be compared.
    pub(crate) fn stalls(&self) -> u64 {
        self.stream.shared.state().stalls
    }

    /// Has the stream take no more watches: it was opened with a token that is no longer good, which does no harm to those that it has.
    pub(crate) fn retire_stream(&self) {
        self.stream.shared.state().closed = true;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // that it is closed is what the reader looks for
        self.responses.close();
        self.stream.shared.notice.notify_one();
    }
}

impl StreamShared {
    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listens(&self, listens: bool) {
        let mut state = self.state();
        let before = state.listening_since.take();
        state.listened += before.map_or(Duration::ZERO, |since| since.elapsed());
        state.listening_since = listens.then(Instant::now);
        let held_up = state.held_up_since.take();
        state.stalls += u64::from(held_up.is_some_and(|since| since.elapsed() >= STALL_MIN));
        state.held_up_since = (!listens).then(Instant::now);
    }

    /// The next watch to create that somebody still waits for.
    fn next_request(&self) -> Option<(CreateRequest, ResponseSender)> {
        let mut state = self.state();
        std::iter::from_fn(|| state.requests.pop_front()).find(|(_, sender)| !sender.is_closed())
    }
}

/// Reads the stream, and is the only one to write to it.
struct Reader {
    shared: Arc<StreamShared>,
    requests: WatchRequestSender,
    /// Who waits for the creation that was sent last. The next is sent after its answer, because newer etcds refuse without an id.
    creating: Option<ResponseSender>,
    next_watch_id: i64,
    watches: HashMap<i64, ResponseSender>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closed = true;
        state.requests.clear();
    }
}

impl Reader {
    async fn run(mut self, mut responses: WatchResponseStream, progress_interval: Duration) {
        let mut progress = interval_at(Instant::now() + progress_interval, progress_interval);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.shared.listens(true);
        let end = loop {
            // a request that cannot be sent only means that the stream is going: it will say so itself
            tokio::select! {
                response = responses.message() => match response {
                    Ok(Some(response)) => {
                        self.shared.listens(false);
                        self.hand_over(response.0).await;
                        self.shared.listens(true);
                    }
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                },
                () = self.shared.notice.notified() => {}
                _ = progress.tick() => {
                    drop(self.requests.request_progress().await);
                    let mut state = self.shared.state();
                    state.unanswered = state.unanswered.saturating_add(1);
                }
            }
            self.cancel_dropped().await;
            self.create_next().await;
        };
        // told before the watches see that there is nothing more, which they do when their senders go with this reader
        let _ = self.shared.end.set(end);
    }

    async fn hand_over(&mut self, response: PbWatchResponse) {
        if response.created {
            let Some(sender) = self.creating.take() else { return };
            if !response.canceled {
                self.watches.insert(response.watch_id, sender.clone());
            }
            let _ = sender.send(Box::new(response)).await;
        } else if response.watch_id == WATCH_ID_OF_STREAM {
            self.shared.state().unanswered = 0;
            for sender in self.watches.values() {
                // one that has not taken its last response is to hear of that first
                let _ = sender.try_send(Box::new(response.clone()));
            }
        } else if let Some(sender) = self.watches.get(&response.watch_id) {
            let _ = sender.send(Box::new(response)).await;
        }
    }

    /// Also those that etcd has ended: it keeps a place for one that was compacted away until it is cancelled.
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
    async fn a_response_that_is_not_taken_for_long_is_a_stall_and_silence_is_none() {
        let shared = StreamShared::default();
        shared.listens(true);
        for (held_up, stalls) in [(STALL_MIN / 2, 0), (STALL_MIN / 2, 0), (STALL_MIN, 1), (STALL_MIN / 2, 1), (2 * STALL_MIN, 2)] {
            tokio::time::advance(10 * STALL_MIN).await;
            shared.listens(false);
            tokio::time::advance(held_up).await;
            shared.listens(true);
            assert_eq!(shared.state().stalls, stalls);
        }
    }
}
