//! One open stream. It encodes the events that its client lacks whenever the socket accepts more
//! bytes.
//!
//! A stream that is behind has its own [`Subscription`] and scans snapshots ([`super::catch_up`]).
//! A current stream is only a member of a group and shares encoded bytes with all streams of the
//! same filter.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use tokio::time::{Instant, Sleep};

use super::catch_up::{CatchUp, CatchUpOutcome, PendingScan};
use super::change_router::GroupMember;
use super::encode::{Encoder, Encoding};
use super::group::{GroupKey, GroupRead};
use super::stream_metrics::{EncodedScan, StreamMeter};
use super::{SHORT, StreamContext};
use crate::admission::StreamPermit;
use crate::api::problem::{Problem, ProblemCode};
use crate::handle::{BatchLimits, Subscription};
use crate::server::WRITE_TIMEOUT;

/// Maximum interval between bookmarks (docs/use/api/streams.md): well below the 60 s after which
/// proxies drop a silent connection.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(15);

/// Interval at which a stream that catches up checks for free memory.
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum time to read the events of a scan while memory is short: 4 MiB and a large event at 0.8
/// Mbit/s.
///
/// A socket that accepts nothing is closed after the same time ([`crate::server::write_timeout`]).
/// A client that reads very slowly would otherwise occupy its memory for an hour.
const READ_TIME_MAX: Duration = WRITE_TIMEOUT;

/// State of an open stream.
#[derive(Debug)]
pub(super) struct EventStream {
    streams: StreamContext,
    encoding: Encoding,
    source: StreamSource,
    /// Encoded events: at most those of one scan.
    queue: SendQueue,
    /// Timer of the next bookmark. It is reused, so that a busy stream does not create a timer per
    /// event.
    bookmark: Pin<Box<Sleep>>,
    /// Timer of the next check for free memory. Set while no memory is free.
    memory_check: Option<Pin<Box<Sleep>>>,
    /// Time of the last scan. Set while not all of its events were read.
    last_scan: Option<Instant>,
    meter: StreamMeter,
    _permit: StreamPermit,
}

/// Encoded chunks that the connection has not received yet.
#[derive(Debug, Default)]
struct SendQueue {
    chunks: VecDeque<Bytes>,
    /// Bytes of the chunk that was last passed to the connection; 0 for a shared chunk. The
    /// connection asks for the next chunk once its socket has accepted most of these bytes.
    handed_bytes: usize,
}

/// Source of a stream's events.
#[derive(Debug)]
enum StreamSource {
    /// Own subscription. Boxed, because most streams do not need it most of the time.
    CatchingUp(Box<CatchUp>),
    /// Own subscription, in a scan that is queued or runs.
    Scanning(PendingScan),
    /// Group of readers.
    InGroup(GroupMember),
    Ended,
}

/// Result of one step of a stream.
enum StreamStep {
    /// There is something to send, or the next step can follow at once.
    More,
    /// Other tasks run before the next step: a long scan without matches must not block the thread.
    Yield,
    /// There is nothing to send. The task will be woken.
    Idle,
}

impl SendQueue {
    fn extend(&mut self, chunks: impl IntoIterator<Item = Bytes>, meter: &mut StreamMeter) {
        self.chunks.extend(chunks.into_iter().inspect(|chunk| meter.add_waiting(chunk.len())));
    }

    /// Returns the next chunk for the connection. A shared chunk counts as sent at once, because
    /// the connection needs no memory of its own for it.
    fn pop(&mut self, shared: bool, meter: &mut StreamMeter) -> Option<Bytes> {
        let chunk = self.chunks.pop_front()?;
        if shared {
            meter.mark_sent(chunk.len());
        } else {
            self.handed_bytes = chunk.len();
        }
        Some(chunk)
    }

    /// Drops the waiting chunks.
    fn clear(&mut self, meter: &mut StreamMeter) {
        meter.discard_waiting(self.chunks.drain(..).map(|chunk| chunk.len()).sum());
    }

    /// Counts the last chunk as sent. Called when the connection asks for more.
    fn mark_handed_sent(&mut self, meter: &mut StreamMeter) {
        meter.mark_sent(mem::take(&mut self.handed_bytes));
    }

    fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

impl EventStream {
    pub(super) fn new(streams: StreamContext, key: GroupKey, subscription: Subscription, permit: StreamPermit) -> Self {
        let bookmark = Box::pin(tokio::time::sleep(BOOKMARK_INTERVAL));
        let mut meter = streams.stream_metrics.open(key.encoding, subscription.sent(), permit.client());
        let (mut queue, encoding) = (SendQueue::default(), key.encoding);
        queue.extend(encoding.preamble(), &mut meter);
        let source = StreamSource::CatchingUp(Box::new(CatchUp { key, subscription }));
        Self { meter, streams, encoding, source, queue, bookmark, memory_check: None, last_scan: None, _permit: permit }
    }

    fn step(&mut self, context: &mut Context<'_>) -> StreamStep {
        let bookmark_due = self.bookmark.as_mut().poll(context).is_ready();
        if self.streams.change_router.is_ended() {
            return self.finish();
        }
        match &mut self.source {
            StreamSource::Ended => StreamStep::Idle,
            StreamSource::CatchingUp(_) => self.scan(bookmark_due, context),
            StreamSource::Scanning(scan) => match scan.poll(context) {
                Poll::Ready((outcome, catch_up)) => self.handle_outcome(bookmark_due, outcome, catch_up),
                Poll::Pending => StreamStep::Idle,
            },
            StreamSource::InGroup(member) => match member.read(context.waker()) {
                GroupRead::Bytes(bytes) => {
                    self.queue.extend([bytes], &mut self.meter);
                    if bookmark_due { self.bookmark() } else { StreamStep::More }
                }
                GroupRead::Pending if bookmark_due => self.bookmark(),
                GroupRead::Pending => StreamStep::Idle,
                GroupRead::Lagged => {
                    let mut behind = Subscription::catching_up_from(member.key().filter.clone(), member.position());
                    if member.key().patch {
                        behind = behind.with_patches();
                    }
                    self.streams.stream_metrics.count_lagged();
                    self.meter.set_position(Some(behind.sent()));
                    self.source = StreamSource::CatchingUp(Box::new(CatchUp { key: member.key().clone(), subscription: behind }));
                    StreamStep::More
                }
            },
        }
    }

    /// Scans the newest snapshot once: immediately if the stream lacks only a few changes,
    /// otherwise in a slice of its client.
    fn scan(&mut self, bookmark_due: bool, context: &mut Context<'_>) -> StreamStep {
        let Some(bounds) = self.poll_scan_bounds(context) else { return StreamStep::Idle };
        let StreamSource::CatchingUp(mut catch_up) = mem::replace(&mut self.source, StreamSource::Ended) else { return StreamStep::More };
        let (streams, backlog) = (&self.streams, self.meter.backlog());
        match streams.handle.try_reading() {
            Some(reading) if catch_up.subscription.lacks_at_most(SHORT, &reading) => {
                let bounds = BatchLimits { bytes: SHORT.bytes.min(bounds.bytes), ..bounds };
                let outcome = catch_up.scan(streams, backlog, bounds, &reading);
                self.handle_outcome(bookmark_due, outcome, catch_up)
            }
            Some(_) => {
                self.source = StreamSource::Scanning(catch_up.schedule_scan(streams, backlog));
                StreamStep::More
            }
            None => self.handle_outcome(bookmark_due, CatchUpOutcome::NotLoaded, catch_up),
        }
    }

    /// Handles the result of a scan. If the scan made the stream current, the stream continues as a
    /// member of its group.
    fn handle_outcome(&mut self, bookmark_due: bool, outcome: CatchUpOutcome, catch_up: Box<CatchUp>) -> StreamStep {
        self.meter.set_position(Some(catch_up.subscription.sent()));
        self.source = StreamSource::CatchingUp(catch_up);
        match outcome {
            CatchUpOutcome::Encoded(encoded, member) => self.send_scan(bookmark_due, encoded, member),
            CatchUpOutcome::NoMemory => StreamStep::More,
            CatchUpOutcome::NotLoaded => self.fail(),
        }
    }

    fn send_scan(&mut self, bookmark_due: bool, encoded: EncodedScan, member: Option<GroupMember>) -> StreamStep {
        self.queue.chunks.extend(self.meter.receive(encoded));
        self.last_scan = Some(Instant::now());
        if let Some(member) = member {
            self.meter.set_position(None);
            self.source = StreamSource::InGroup(member);
        }
        match (bookmark_due, self.queue.is_empty()) {
            (true, _) => self.bookmark(),
            (false, true) => StreamStep::Yield,
            (false, false) => StreamStep::More,
        }
    }

    /// Returns the limits of a scan, or `None` if no memory is free. The task is then woken for the
    /// next check.
    fn poll_scan_bounds(&mut self, context: &mut Context<'_>) -> Option<BatchLimits> {
        loop {
            if let Some(bounds) = self.meter.backlog().scan_bounds() {
                self.memory_check = None;
                return Some(bounds);
            }
            let timer = self.memory_check.get_or_insert_with(|| Box::pin(tokio::time::sleep(MEMORY_CHECK_INTERVAL)));
            if timer.as_mut().poll(context).is_pending() {
                return None;
            }
            self.memory_check = None;
        }
    }

    /// Ends the stream if its client has not read the events of the last scan for too long while no
    /// memory is free for other streams.
    fn check_read_rate(&mut self) {
        let is_late = self.last_scan.is_some_and(|time| time.elapsed() > READ_TIME_MAX);
        if is_late && self.meter.backlog().scan_bounds().is_none() {
            self.last_scan = None;
            self.queue.clear(&mut self.meter);
            self.end_with(Problem::new(
                ProblemCode::TooBusy,
                "this client reads the stream too slowly, and the memory for unread events is full: connect again and read faster",
            ));
        }
    }

    /// Adds a bookmark, unless the stream is still catching up: no bookmark is sent before
    /// `synced`.
    fn bookmark(&mut self) -> StreamStep {
        let Some(reading) = self.streams.handle.try_reading() else { return self.fail() };
        let position = match &self.source {
            StreamSource::CatchingUp(catch_up) => catch_up.subscription.bookmark(&reading),
            StreamSource::InGroup(member) => member.bookmark(&reading),
            StreamSource::Scanning(_) => None,
            StreamSource::Ended => return StreamStep::Idle,
        };
        if let Some(position) = position {
            self.bookmark.as_mut().reset(Instant::now() + BOOKMARK_INTERVAL);
            let mut encoder = Encoder::new(self.encoding);
            encoder.bookmark(position, &reading);
            self.queue.extend(encoder.finish(), &mut self.meter);
        }
        StreamStep::More
    }

    /// Ends the stream on shutdown with a last bookmark, or with an `error` event if the stream is
    /// still catching up. It never ends silently.
    fn finish(&mut self) -> StreamStep {
        self.bookmark();
        if self.queue.is_empty() {
            return self.end_with(Problem::new(ProblemCode::Stopping, "meshkeep is shutting down: connect again in a few seconds"));
        }
        self.source = StreamSource::Ended;
        StreamStep::More
    }

    fn fail(&mut self) -> StreamStep {
        self.end_with(Problem::new(ProblemCode::Loading, "the store is loading again: connect again in a few seconds"))
    }

    fn end_with(&mut self, problem: Problem) -> StreamStep {
        if matches!(self.source, StreamSource::Ended) {
            return StreamStep::Idle;
        }
        let mut encoder = Encoder::new(self.encoding);
        encoder.error(problem);
        self.queue.extend(encoder.finish(), &mut self.meter);
        self.source = StreamSource::Ended;
        StreamStep::More
    }
}

impl Stream for EventStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { queue, meter, .. } = &mut *self;
        queue.mark_handed_sent(meter);
        self.check_read_rate();
        loop {
            let Self { queue, meter, source, .. } = &mut *self;
            if let Some(chunk) = queue.pop(matches!(source, StreamSource::InGroup(_)), meter) {
                return Poll::Ready(Some(Ok(chunk)));
            }
            self.last_scan = None;
            if matches!(self.source, StreamSource::Ended) {
                return Poll::Ready(None);
            }
            match self.step(context) {
                StreamStep::More => {}
                StreamStep::Yield => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                StreamStep::Idle => return Poll::Pending,
            }
        }
    }
}

#[cfg(test)]
mod tests;
