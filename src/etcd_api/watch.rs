//! The `Watch` service: many watches over one stream, each with its own position in the order of
//! changes.
//!
//! A watch near the head gets each change from the feed, with the previous value. One that is
//! further behind gets the newest state of each changed key in order of sequence, and the deleted
//! keys. One from before the oldest known tombstone is cancelled as "compacted", so that its client
//! lists again.
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

use super::answers::Messages;
use super::face::{Face, client_of, header, header_at};
use super::refusal;
use super::revisions::revision;
use super::span::Span;
use super::window::Window;
use crate::admission::{Budget, Client, Held, NoRoom, Scanner};
use crate::handle::{Reading, Slice};
use crate::model::Sequence;
use watcher::{Refused, Told, Watcher, size_of_event};

/// Capacity of the queue of answers: one that the client reads, and the next.
const ANSWERS_WAITING_MAX: usize = 2;

/// Maximum number of watches per stream. An agent has at most six for each of 511 clusters.
const WATCHES_MAX: usize = 8_192;

/// Maximum bytes of `key` and `range_end` of a watch together. Same as etcd's limit for a request
/// (`--max-request-bytes`, 1.5 MiB).
const KEY_BYTES_MAX: usize = 3 << 19;

/// Interval between progress notifications for idle watches that asked for them. Same as the
/// heartbeat's.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);

/// Pause between two scans of a busy stream, multiplied by the number of open streams.
///
/// A thousand streams scan 20 times a second each, and a few scan almost at once.
const PAUSE_FOR_EACH: Duration = Duration::from_micros(50);

/// Maximum pause between two scans.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Watch id of an answer that is about no watch, or about all.
const NO_WATCH: i64 = -1;

/// An answer, and the memory of its events until the next one is requested.
type Answer = (Result<PbWatchResponse, Status>, Option<Held>);

/// Queue of answers to the client.
type Answers = mpsc::Sender<Answer>;

/// Error: the client disconnected.
struct Gone;

/// One stream of watches.
struct WatchStream {
    face: Arc<Face>,
    client: Client,
    scanner: Scanner,
    answers: Answers,
    watchers: BTreeMap<i64, Watcher>,
    /// Sequence up to which every open watch has all events.
    lowest: Sequence,
    next_id: i64,
    /// Set while a progress request for all watches is unanswered.
    owes_progress: bool,
}

/// Result of one step of a scan of the watches.
enum ScanOutcome {
    /// Events, or a compaction, for this watch.
    Told(i64, Told),
    /// This watch is behind the feed.
    Behind(i64),
    /// There are more watches to scan.
    Paused,
    /// All watches were scanned.
    Over,
}

/// The `Watch` service.
#[derive(Debug)]
pub(super) struct Watches(pub(super) Arc<Face>);

#[tonic::async_trait]
impl PbWatchService for Watches {
    type WatchStream = Messages<PbWatchResponse>;

    async fn watch(&self, request: Request<Streaming<PbWatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        let client = client_of(&request);
        let (place, scanner) = (self.0.stream(client)?, self.0.options.scans.enter_stream(client));
        let signal = self.0.handle.signal().await.map_err(|_| refusal::loading())?;
        let (answers, receiver) = mpsc::channel(ANSWERS_WAITING_MAX);
        let face = Arc::clone(&self.0);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let counted = face.handle.etcd_counts().watch_streams.open();
            let stop = face.options.stop.clone();
            let (watchers, lowest) = (BTreeMap::new(), Sequence(u64::MAX));
            let stream =
                WatchStream { face, client, scanner, answers: answers.clone(), watchers, lowest, next_id: 0, owes_progress: false };
            if stop.run_until_cancelled(stream.run(request.into_inner(), signal)).await.is_none() {
                // a client that no longer reads is not waited for
                drop(answers.try_send((Err(refusal::stopping()), None)));
            }
            drop((counted, place));
        });
        // the task ends with the stream; the memory of an answer is freed when the next one is
        // requested
        let next = |(mut receiver, task, sent): (mpsc::Receiver<Answer>, JoinSet<()>, Option<Held>)| async move {
            drop(sent);
            let (answer, held) = receiver.recv().await?;
            Some((answer, (receiver, task, held)))
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
        let mut look_from = Instant::now();
        loop {
            let is_current = self.is_current();
            tokio::select! {
                biased;
                request = requests.next() => match request {
                    Some(Ok(request)) => if self.take(request).await.is_err() { return },
                    Some(Err(_)) | None => return,
                },
                _ = progress.tick() => if self.tell_progress().await.is_err() { return },
                changed = signal.changed(), if is_current => if changed.is_err() { return },
                () = sleep_until(look_from), if !is_current => {
                    match self.look().await {
                        Ok(true) => look_from = Instant::now() + self.pause(),
                        Ok(false) => {}
                        Err(Gone) => return,
                    }
                }
            }
            if self.owes_progress && self.is_current() && self.tell_all_progress().await.is_err() {
                return;
            }
        }
    }

    /// Returns the pause before the next scan.
    fn pause(&self) -> Duration {
        let streams = u32::try_from(self.face.handle.etcd_counts().watch_streams.get()).unwrap_or(u32::MAX);
        PAUSE_FOR_EACH.saturating_mul(streams).min(PAUSE_MAX)
    }

    /// Returns whether every watch has all events.
    fn is_current(&self) -> bool {
        let Some(reading) = self.face.handle.try_reading() else { return true };
        self.lowest >= reading.position().sequence
    }

    async fn send(&self, answer: PbWatchResponse) -> Result<(), Gone> {
        let bytes = answer.events.iter().map(size_of_event).sum();
        // only this client waits for the budget of its unsent answers
        let held = if bytes > 0 { Some(Budget::wait(&self.face.told, self.client, bytes).await) } else { None };
        self.answers.send((Ok(answer), held)).await.map_err(|_| Gone)
    }

    fn reading(&self) -> Result<Reading, Gone> {
        self.face.handle.try_reading().ok_or(Gone)
    }

    /// Builds an answer about a watch at the newest revision.
    fn about(&self, watch_id: i64) -> Result<PbWatchResponse, Gone> {
        let reading = self.reading()?;
        let header = Some(header_at(&reading));
        Ok(PbWatchResponse { header, watch_id, ..PbWatchResponse::default() })
    }

    async fn take(&mut self, request: PbWatchRequest) -> Result<(), Gone> {
        let Some(request) = request.request_union else { return Ok(()) };
        match &request {
            PbWatchRequestUnion::CreateRequest(create) => {
                let reading = self.reading()?;
                let watcher = if self.watchers.len() >= WATCHES_MAX {
                    Err(Refused("this stream has as many watches as it may".to_owned()))
                } else {
                    self.room_for(create.key.len() + create.range_end.len()).and_then(|room| {
                        let open = self.face.handle.etcd_counts().watchers.open();
                        let may_read = |span: &Span| self.face.may_read(span).is_ok();
                        Watcher::new(&request, reading.position().sequence, (open, room), may_read)
                    })
                };
                self.create(create.watch_id, watcher).await
            }
            PbWatchRequestUnion::CancelRequest(cancel) => {
                if self.watchers.remove(&cancel.watch_id).is_some() {
                    self.send(PbWatchResponse { canceled: true, ..self.about(cancel.watch_id)? }).await?;
                }
                Ok(())
            }
            PbWatchRequestUnion::ProgressRequest(_) => {
                self.owes_progress = true;
                Ok(())
            }
        }
    }

    /// Reserves the memory of a watch: its keys, and a fixed size for its state.
    fn room_for(&self, key_bytes: usize) -> Result<Held, Refused> {
        if key_bytes > KEY_BYTES_MAX {
            return Err(Refused(format!(
                "etcdserver: request is too large: key and range_end of a watch have {key_bytes} bytes together, and may have {KEY_BYTES_MAX}"
            )));
        }
        Budget::take(&self.face.watched, self.client, key_bytes + size_of::<Watcher>()).map_err(|none| {
            Refused(
                match none {
                    NoRoom::OfClient => {
                        "etcdserver: too many requests: the keys of this client's watches have as many bytes as they may: cancel some"
                    }
                    NoRoom::InAll => {
                        "etcdserver: too many requests: the keys of all watches have as many bytes as they may: try again later"
                    }
                }
                .to_owned(),
            )
        })
    }

    async fn create(&mut self, wanted_id: i64, watcher: Result<Watcher, Refused>) -> Result<(), Gone> {
        let is_taken = wanted_id != 0 && self.watchers.contains_key(&wanted_id);
        let watcher = if is_taken { Err(Refused("mvcc: duplicate watch ID provided on the WatchStream".to_owned())) } else { watcher };
        match watcher {
            Ok(watcher) => {
                let id = if wanted_id == 0 { self.free_id() } else { wanted_id };
                self.send(PbWatchResponse { created: true, ..self.about(id)? }).await?;
                let reading = self.reading()?;
                let head = reading.position().sequence;
                // no client knows a revision above the newest one, unless from another copy of the
                // store
                match reading.raw_goes_on_from(watcher.sent()) {
                    Err(lowest) if watcher.sent() > head => self.send_compacted(id, &reading, lowest).await,
                    _ => {
                        self.lowest = self.lowest.min(watcher.sent());
                        self.watchers.insert(id, watcher);
                        Ok(())
                    }
                }
            }
            Err(Refused(cancel_reason)) => {
                self.send(PbWatchResponse { created: true, canceled: true, cancel_reason, ..self.about(NO_WATCH)? }).await
            }
        }
    }

    fn free_id(&mut self) -> i64 {
        while self.watchers.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    /// Sends each watch a part of the events that it lacks, in turns with the requests of other
    /// clients. Returns whether any watch got events.
    async fn look(&mut self) -> Result<bool, Gone> {
        let reading = self.reading()?;
        let head = reading.position().sequence;
        let (mut has_told, mut left) = (false, None);
        loop {
            let (watchers, window) = (&mut self.watchers, &self.face.window);
            let looked = self.scanner.here(|slice| look_at(watchers, &mut left, &reading, window, slice)).await;
            let (id, told) = match looked {
                ScanOutcome::Told(id, told) => (id, told),
                ScanOutcome::Behind(id) => {
                    let Some(behind) = self.watchers.remove(&id) else { continue };
                    let then = reading.clone();
                    // decoding takes some milliseconds
                    let replay = move |behind: &mut Watcher, slice: &mut Slice| {
                        slice.look();
                        behind.replay(&then)
                    };
                    let (told, behind) = self.scanner.slice(behind, replay).await;
                    self.watchers.insert(id, behind);
                    (id, told)
                }
                ScanOutcome::Paused => continue,
                ScanOutcome::Over => break,
            };
            match told {
                Told::Events(events) if events.is_empty() => {}
                Told::Events(events) => {
                    has_told = true;
                    let sent = self.watchers.get(&id).map_or(head, Watcher::sent);
                    let header = Some(header(&reading, revision(sent)));
                    self.send(PbWatchResponse { header, watch_id: id, events, ..PbWatchResponse::default() }).await?;
                }
                Told::Compacted(lowest) => {
                    self.watchers.remove(&id);
                    self.send_compacted(id, &reading, lowest).await?;
                }
            }
        }
        self.lowest = self.watchers.values().map(Watcher::sent).min().unwrap_or(Sequence(u64::MAX));
        Ok(has_told)
    }

    /// Cancels a watch that cannot resume from its position.
    async fn send_compacted(&self, watch_id: i64, reading: &Reading, lowest: Sequence) -> Result<(), Gone> {
        let header = Some(header_at(reading));
        let compact_revision = revision(lowest.next());
        self.face.handle.etcd_counts().add_compacted_watch();
        self.send(PbWatchResponse { header, watch_id, canceled: true, compact_revision, ..PbWatchResponse::default() }).await
    }

    /// Sends a progress notification for all watches. Called when every watch has all events.
    async fn tell_all_progress(&mut self) -> Result<(), Gone> {
        self.owes_progress = false;
        let reading = self.reading()?;
        let head = reading.position().sequence;
        // events of newer changes are not sent yet
        let sent = self.lowest.min(head);
        let header = Some(header(&reading, revision(sent)));
        self.send(PbWatchResponse { header, watch_id: NO_WATCH, ..PbWatchResponse::default() }).await
    }

    /// Sends a progress notification to each idle watch that asked for them.
    async fn tell_progress(&mut self) -> Result<(), Gone> {
        let reading = self.reading()?;
        let head = reading.position().sequence;
        let mut due: Vec<(i64, Sequence)> = Vec::new();
        for (id, watcher) in &mut self.watchers {
            if watcher.owes_progress() && watcher.is_current(head) {
                due.push((*id, watcher.sent().min(head)));
            }
        }
        for (watch_id, sent) in due {
            let header = Some(header(&reading, revision(sent)));
            self.send(PbWatchResponse { header, watch_id, ..PbWatchResponse::default() }).await?;
        }
        Ok(())
    }
}

/// Scans the watches that lack events, those that are `left` of them, until one gets events or the
/// slice is over.
fn look_at(
    watchers: &mut BTreeMap<i64, Watcher>,
    left: &mut Option<VecDeque<i64>>,
    reading: &Reading,
    window: &Window,
    slice: &mut Slice,
) -> ScanOutcome {
    let head = reading.position().sequence;
    let left = left.get_or_insert_with(|| {
        slice.look();
        watchers.iter().filter(|(_, watcher)| !watcher.is_current(head)).map(|(id, _)| *id).collect()
    });
    while !slice.is_over() {
        let Some(id) = left.pop_front() else { return ScanOutcome::Over };
        slice.look();
        let Some(watcher) = watchers.get_mut(&id) else { continue };
        match watcher.follow(reading, window) {
            Some(Told::Events(events)) if events.is_empty() => {}
            Some(told) => return ScanOutcome::Told(id, told),
            None => return ScanOutcome::Behind(id),
        }
    }
    ScanOutcome::Paused
}
