//! The `Watch` service: many watches over one stream, each with its own position in the order of
//! changes.
//!
//! A watch near the head gets each change from the feed, with the previous value. A watch that is
//! further behind gets the newest state of each changed key in order of sequence, and the deleted
//! keys. A watch that starts before the oldest known tombstone is cancelled as "compacted", so that
//! its client lists again.
//!
//! Every change has its own sequence, so a revision never has more than one event. Only the
//! position is stored for a slow client.

mod watcher;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::{PbWatchRequest, PbWatchRequestUnion, PbWatchResponse, PbWatchService};
use futures_util::StreamExt;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tonic::{Request, Response, Status, Streaming};

use super::errors;
use super::key_interval::KeyInterval;
use super::recent_changes::RecentChanges;
use super::responses::MessageStream;
use super::revisions::to_revision;
use super::state::{EtcdApi, client_of, header, newest_header};
use crate::admission::{BudgetExceeded, Client, MemoryBudget, MemoryPermit, Scanner};
use crate::handle::{Reading, WorkSlice};
use crate::model::Sequence;
use watcher::{CreateRefusal, WatchEvents, Watcher, event_bytes};

/// Capacity of the queue of answers: the answer that the client is reading, and the next one.
const RESPONSE_QUEUE_LENGTH_MAX: usize = 2;

/// Maximum number of watches per stream. An agent has at most six for each of 511 clusters.
const WATCHES_PER_STREAM_MAX: usize = 8_192;

/// Maximum bytes of `key` and `range_end` of a watch together. Same as etcd's limit for a request
/// (`--max-request-bytes`, 1.5 MiB).
const KEY_BYTES_MAX: usize = 3 << 19;

/// Interval between progress notifications for idle watches that asked for them. Same as the
/// heartbeat's.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);

/// Pause between two scans of a busy stream, multiplied by the number of open streams.
///
/// With a thousand streams, each scans 20 times a second. With a few streams, a scan starts almost
/// immediately.
const PAUSE_PER_STREAM: Duration = Duration::from_micros(50);

/// Maximum pause between two scans.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Watch id of an answer that is about no watch, or about all.
const NO_WATCH: i64 = -1;

/// An answer with the permit for its events. The permit is released when the client requests the
/// next answer.
type QueuedResponse = (Result<PbWatchResponse, Status>, Option<MemoryPermit>);

/// Queue of answers to the client.
type ResponseSender = mpsc::Sender<QueuedResponse>;

/// Error: the client disconnected.
struct Disconnected;

/// One stream of watches.
struct WatchStream {
    api: Arc<EtcdApi>,
    client: Client,
    scanner: Scanner,
    responses: ResponseSender,
    watchers: BTreeMap<i64, Watcher>,
    /// Sequence up to which every open watch has all events.
    lowest_sent: Sequence,
    next_id: i64,
    /// Set while a progress request for all watches is unanswered.
    progress_requested: bool,
}

/// Result of one step of a scan of the watches.
enum ScanOutcome {
    /// Events, or a compaction, for this watch.
    Events(i64, WatchEvents),
    /// The feed no longer has all changes after the position of this watch.
    Behind(i64),
    /// There are more watches to scan.
    Paused,
    /// All watches were scanned.
    Finished,
}

/// The `Watch` service.
#[derive(Debug)]
pub(super) struct WatchService(pub(super) Arc<EtcdApi>);

#[tonic::async_trait]
impl PbWatchService for WatchService {
    type WatchStream = MessageStream<PbWatchResponse>;

    async fn watch(&self, request: Request<Streaming<PbWatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        let client = client_of(&request);
        let (permit, scanner) = (self.0.open_stream(client)?, self.0.options.scans.admit_stream(client));
        let signal = self.0.handle.signal().await.map_err(|_| errors::loading())?;
        let (responses, receiver) = mpsc::channel(RESPONSE_QUEUE_LENGTH_MAX);
        let api = Arc::clone(&self.0);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let open_guard = api.handle.etcd_counts().watch_streams.open();
            let stop = api.options.stop.clone();
            let (watchers, lowest_sent) = (BTreeMap::new(), Sequence(u64::MAX));
            let stream = WatchStream {
                api,
                client,
                scanner,
                responses: responses.clone(),
                watchers,
                lowest_sent,
                next_id: 0,
                progress_requested: false,
            };
            if stop.run_until_cancelled(stream.run(request.into_inner(), signal)).await.is_none() {
                // does not wait for a client that no longer reads
                drop(responses.try_send((Err(errors::stopping()), None)));
            }
            drop((open_guard, permit));
        });
        // the task ends with the stream; the memory of an answer is freed when the next one is
        // requested
        let next = |(mut receiver, task, sent): (mpsc::Receiver<QueuedResponse>, JoinSet<()>, Option<MemoryPermit>)| async move {
            drop(sent);
            let (response, event_permit) = receiver.recv().await?;
            Some((response, (receiver, task, event_permit)))
        };
        Ok(Response::new(Box::pin(futures_util::stream::unfold((receiver, task, None), next))))
    }
}

impl WatchStream {
    /// Runs until the client disconnects.
    async fn run(mut self, mut requests: Streaming<PbWatchRequest>, mut signal: watch::Receiver<Sequence>) {
        let mut progress = interval(PROGRESS_INTERVAL);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        progress.reset();
        let mut scan_at = Instant::now();
        loop {
            let is_current = self.is_current();
            tokio::select! {
                biased;
                request = requests.next() => match request {
                    Some(Ok(request)) => if self.handle_request(request).await.is_err() { return },
                    Some(Err(_)) | None => return,
                },
                _ = progress.tick() => if self.send_progress().await.is_err() { return },
                changed = signal.changed(), if is_current => if changed.is_err() { return },
                () = sleep_until(scan_at), if !is_current => {
                    match self.scan_watches().await {
                        Ok(true) => scan_at = Instant::now() + self.scan_pause(),
                        Ok(false) => {}
                        Err(Disconnected) => return,
                    }
                }
            }
            if self.progress_requested && self.is_current() && self.send_progress_for_all().await.is_err() {
                return;
            }
        }
    }

    /// Returns the pause before the next scan.
    fn scan_pause(&self) -> Duration {
        let streams = u32::try_from(self.api.handle.etcd_counts().watch_streams.get()).unwrap_or(u32::MAX);
        PAUSE_PER_STREAM.saturating_mul(streams).min(PAUSE_MAX)
    }

    /// Returns whether every watch has all events.
    fn is_current(&self) -> bool {
        let Some(reading) = self.api.handle.try_reading() else { return true };
        self.lowest_sent >= reading.position().sequence
    }

    async fn send(&self, response: PbWatchResponse) -> Result<(), Disconnected> {
        let bytes = response.events.iter().map(event_bytes).sum();
        // may wait until earlier answers are sent; that delays only this stream
        let permit = if bytes > 0 { Some(MemoryBudget::acquire(&self.api.event_budget, self.client, bytes).await) } else { None };
        self.responses.send((Ok(response), permit)).await.map_err(|_| Disconnected)
    }

    fn reading(&self) -> Result<Reading, Disconnected> {
        self.api.handle.try_reading().ok_or(Disconnected)
    }

    /// Builds an answer about a watch at the newest revision.
    fn response_about(&self, watch_id: i64) -> Result<PbWatchResponse, Disconnected> {
        let reading = self.reading()?;
        let header = Some(newest_header(&reading));
        Ok(PbWatchResponse { header, watch_id, ..PbWatchResponse::default() })
    }

    async fn handle_request(&mut self, request: PbWatchRequest) -> Result<(), Disconnected> {
        let Some(request) = request.request_union else { return Ok(()) };
        match &request {
            PbWatchRequestUnion::CreateRequest(create) => {
                let reading = self.reading()?;
                let watcher = if self.watchers.len() >= WATCHES_PER_STREAM_MAX {
                    Err(CreateRefusal(format!("this stream has the maximum of {WATCHES_PER_STREAM_MAX} watches: open another stream")))
                } else {
                    self.reserve_memory(create.key.len() + create.range_end.len()).and_then(|memory| {
                        let open = self.api.handle.etcd_counts().watchers.open();
                        let may_read = |interval: &KeyInterval| self.api.check_read_permission(interval).is_ok();
                        Watcher::new(&request, reading.position().sequence, (open, memory), may_read)
                    })
                };
                self.create_watch(create.watch_id, watcher).await
            }
            PbWatchRequestUnion::CancelRequest(cancel) => {
                if self.watchers.remove(&cancel.watch_id).is_some() {
                    self.send(PbWatchResponse { canceled: true, ..self.response_about(cancel.watch_id)? }).await?;
                }
                Ok(())
            }
            PbWatchRequestUnion::ProgressRequest(_) => {
                self.progress_requested = true;
                Ok(())
            }
        }
    }

    /// Reserves the memory of a watch: its keys, and a fixed size for its state.
    fn reserve_memory(&self, key_bytes: usize) -> Result<MemoryPermit, CreateRefusal> {
        if key_bytes > KEY_BYTES_MAX {
            return Err(CreateRefusal(format!(
                "etcdserver: request is too large: key and range_end of a watch have {key_bytes} bytes, and the limit is {KEY_BYTES_MAX}"
            )));
        }
        MemoryBudget::try_acquire(&self.api.watch_budget, self.client, key_bytes + size_of::<Watcher>()).map_err(|exceeded| {
            CreateRefusal(
                match exceeded {
                    BudgetExceeded::PerClient => {
                        "etcdserver: too many requests: the keys of this client's watches reach the limit: cancel some"
                    }
                    BudgetExceeded::Total => "etcdserver: too many requests: the keys of all watches reach the limit: try again later",
                }
                .to_owned(),
            )
        })
    }

    async fn create_watch(&mut self, requested_id: i64, watcher: Result<Watcher, CreateRefusal>) -> Result<(), Disconnected> {
        let is_duplicate = requested_id != 0 && self.watchers.contains_key(&requested_id);
        let watcher =
            if is_duplicate { Err(CreateRefusal("mvcc: duplicate watch ID provided on the WatchStream".to_owned())) } else { watcher };
        match watcher {
            Ok(watcher) => {
                let id = if requested_id == 0 { self.next_free_id() } else { requested_id };
                self.send(PbWatchResponse { created: true, ..self.response_about(id)? }).await?;
                let reading = self.reading()?;
                if let Err(lowest) = reading.check_raw_position(watcher.sent_up_to()) {
                    return self.send_compacted(id, &reading, lowest).await;
                }
                self.lowest_sent = self.lowest_sent.min(watcher.sent_up_to());
                self.watchers.insert(id, watcher);
                Ok(())
            }
            Err(CreateRefusal(cancel_reason)) => {
                self.send(PbWatchResponse { created: true, canceled: true, cancel_reason, ..self.response_about(NO_WATCH)? }).await
            }
        }
    }

    fn next_free_id(&mut self) -> i64 {
        while self.watchers.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    /// Sends each watch a part of the events that it lacks, taking turns with the requests of other
    /// clients. Returns whether any watch got events.
    async fn scan_watches(&mut self) -> Result<bool, Disconnected> {
        let reading = self.reading()?;
        let head = reading.position().sequence;
        let (mut has_sent, mut remaining) = (false, None);
        loop {
            let (watchers, recent) = (&mut self.watchers, &self.api.recent_changes);
            let outcome = self.scanner.run_inline(|slice| scan_slice(watchers, &mut remaining, &reading, recent, slice)).await;
            let (id, events) = match outcome {
                ScanOutcome::Events(id, events) => (id, events),
                ScanOutcome::Behind(id) => {
                    let Some(watcher) = self.watchers.remove(&id) else { continue };
                    let snapshot = reading.clone();
                    // decoding takes some milliseconds, so it runs on a blocking thread
                    let replay = move |watcher: &mut Watcher, slice: &mut WorkSlice| {
                        slice.count_row();
                        watcher.events_from_view(&snapshot)
                    };
                    let (events, watcher) = self.scanner.run_slice(watcher, replay).await;
                    self.watchers.insert(id, watcher);
                    (id, events)
                }
                ScanOutcome::Paused => continue,
                ScanOutcome::Finished => break,
            };
            match events {
                WatchEvents::Ready(events) if events.is_empty() => {}
                WatchEvents::Ready(events) => {
                    has_sent = true;
                    let sent = self.watchers.get(&id).map_or(head, Watcher::sent_up_to);
                    let header = Some(header(&reading, to_revision(sent)));
                    self.send(PbWatchResponse { header, watch_id: id, events, ..PbWatchResponse::default() }).await?;
                }
                WatchEvents::Compacted(lowest) => {
                    self.watchers.remove(&id);
                    self.send_compacted(id, &reading, lowest).await?;
                }
            }
        }
        self.lowest_sent = self.watchers.values().map(Watcher::sent_up_to).min().unwrap_or(Sequence(u64::MAX));
        Ok(has_sent)
    }

    /// Cancels a watch that cannot resume from its position.
    async fn send_compacted(&self, watch_id: i64, reading: &Reading, lowest: Sequence) -> Result<(), Disconnected> {
        let header = Some(newest_header(reading));
        let compact_revision = to_revision(lowest.next());
        self.api.handle.etcd_counts().add_compacted_watch();
        self.send(PbWatchResponse { header, watch_id, canceled: true, compact_revision, ..PbWatchResponse::default() }).await
    }

    /// Sends a progress notification for all watches. Called when every watch has all events.
    async fn send_progress_for_all(&mut self) -> Result<(), Disconnected> {
        self.progress_requested = false;
        let reading = self.reading()?;
        let head = reading.position().sequence;
        // the head may be newer than the last change whose events were sent
        let sent = self.lowest_sent.min(head);
        let header = Some(header(&reading, to_revision(sent)));
        self.send(PbWatchResponse { header, watch_id: NO_WATCH, ..PbWatchResponse::default() }).await
    }

    /// Sends a progress notification to each idle watch that requested progress notifications.
    async fn send_progress(&mut self) -> Result<(), Disconnected> {
        let reading = self.reading()?;
        let head = reading.position().sequence;
        let mut due: Vec<(i64, Sequence)> = Vec::new();
        for (id, watcher) in &mut self.watchers {
            if watcher.is_progress_due() && watcher.is_current(&reading) {
                due.push((*id, watcher.sent_up_to().min(head)));
            }
        }
        for (watch_id, sent) in due {
            let header = Some(header(&reading, to_revision(sent)));
            self.send(PbWatchResponse { header, watch_id, ..PbWatchResponse::default() }).await?;
        }
        Ok(())
    }
}

/// Scans watches that lack events until one gets events or the slice is over. `remaining` has the
/// ids of the watches that are still to be scanned, or `None` before the first slice.
fn scan_slice(
    watchers: &mut BTreeMap<i64, Watcher>,
    remaining: &mut Option<VecDeque<i64>>,
    reading: &Reading,
    recent: &RecentChanges,
    slice: &mut WorkSlice,
) -> ScanOutcome {
    let remaining = remaining.get_or_insert_with(|| {
        slice.count_row();
        watchers.iter().filter(|(_, watcher)| !watcher.is_current(reading)).map(|(id, _)| *id).collect()
    });
    while !slice.is_over() {
        let Some(id) = remaining.pop_front() else { return ScanOutcome::Finished };
        slice.count_row();
        let Some(watcher) = watchers.get_mut(&id) else { continue };
        match watcher.events_from_feed(reading, recent) {
            Some(WatchEvents::Ready(events)) if events.is_empty() => {}
            Some(events) => return ScanOutcome::Events(id, events),
            None => return ScanOutcome::Behind(id),
        }
    }
    ScanOutcome::Paused
}
