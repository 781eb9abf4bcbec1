//! One open stream: produces what it lacks whenever the socket accepts more.
//!
//! A reader that is behind has its own [`Subscription`] and scans in turns ([`super::looking`]). A
//! current one is only a member of a group and shares its bytes with all readers of the same
//! filter.

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

use super::encode::{Encoder, Encoding};
use super::group::{GroupKey, Taken};
use super::hub::Member;
use super::looking::{Alone, Looking, Outcome};
use super::meter::{Made, Meter};
use super::{SHORT, Streams};
use crate::admission::StreamPermit;
use crate::api::problem::{Code, Problem};
use crate::handle::{LookBounds, Subscription};
use crate::server::STALL_MAX;

/// Maximum interval between bookmarks (docs/use/api/streams.md): well below the 60 s after which
/// proxies drop a silent connection.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(15);

/// Interval at which a stream that catches up checks for free memory.
const ROOM_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum time to read the events of a scan while memory is short: 4 MiB and a large event at 0.8
/// Mbit/s.
///
/// A socket that accepts nothing is closed after the same time ([`crate::server::stall`]). A client
/// that reads very slowly would otherwise occupy its memory for an hour.
const TAKEN_WITHIN: Duration = STALL_MAX;

/// State of an open stream.
#[derive(Debug)]
pub(super) struct Reader {
    streams: Streams,
    encoding: Encoding,
    stage: Stage,
    /// Encoded events: at most those of one scan.
    ready: Ready,
    /// Timer of the next bookmark. It is reused, so that a busy stream does not create a timer per
    /// event.
    bookmark: Pin<Box<Sleep>>,
    /// Timer of the next check for free memory. Set while there is none.
    room: Option<Pin<Box<Sleep>>>,
    /// Time of the last scan. Set while not all of its events were read.
    looked: Option<Instant>,
    meter: Meter,
    _place: StreamPermit,
}

/// Encoded chunks that the connection has not received yet.
#[derive(Debug, Default)]
struct Ready {
    chunks: VecDeque<Bytes>,
    /// Bytes of the chunk that was passed to the connection last. It asks for more once its socket
    /// has accepted most of them; 0 for a shared chunk.
    handed: usize,
}

/// Source of a stream's events.
#[derive(Debug)]
enum Stage {
    /// Own subscription. Boxed, because most streams do not need it most of the time.
    Alone(Box<Alone>),
    /// Own subscription, in a scan that waits for its turn or runs.
    Looking(Looking),
    /// Group of readers.
    Sharing(Member),
    /// None: the stream has ended.
    Ended,
}

/// Result of one step of a stream.
enum Looked {
    /// There is something to send, or the next step can follow at once.
    More,
    /// The next step follows after other tasks: a long scan without matches must not block the
    /// thread.
    Yield,
    /// There is nothing to send. The task will be woken.
    Nothing,
}

impl Ready {
    fn extend(&mut self, chunks: impl IntoIterator<Item = Bytes>, meter: &mut Meter) {
        self.chunks.extend(chunks.into_iter().inspect(|chunk| meter.waits(chunk.len())));
    }

    /// Returns the next chunk for the connection. A shared chunk needs no memory of its own there.
    fn pop(&mut self, shared: bool, meter: &mut Meter) -> Option<Bytes> {
        let chunk = self.chunks.pop_front()?;
        if shared {
            meter.sent(chunk.len());
        } else {
            self.handed = chunk.len();
        }
        Some(chunk)
    }

    /// Drops the waiting chunks.
    fn forget(&mut self, meter: &mut Meter) {
        meter.forgotten(self.chunks.drain(..).map(|chunk| chunk.len()).sum());
    }

    /// Counts the last chunk as sent, because the connection asks for more.
    fn taken(&mut self, meter: &mut Meter) {
        meter.sent(mem::take(&mut self.handed));
    }

    fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

impl Reader {
    pub(super) fn new(streams: Streams, key: GroupKey, subscription: Subscription, place: StreamPermit) -> Self {
        let bookmark = Box::pin(tokio::time::sleep(BOOKMARK_INTERVAL));
        let mut meter = streams.meters.open(key.encoding, subscription.sent(), place.client());
        let (mut ready, encoding) = (Ready::default(), key.encoding);
        ready.extend(encoding.preamble(), &mut meter);
        let stage = Stage::Alone(Box::new(Alone { key, subscription }));
        Self { meter, streams, encoding, stage, ready, bookmark, room: None, looked: None, _place: place }
    }

    fn look(&mut self, context: &mut Context<'_>) -> Looked {
        let due = self.bookmark.as_mut().poll(context).is_ready();
        if self.streams.hub.is_ended() {
            return self.finish();
        }
        match &mut self.stage {
            Stage::Ended => Looked::Nothing,
            Stage::Alone(_) => self.look_alone(due, context),
            Stage::Looking(looking) => match looking.poll(context) {
                Poll::Ready((outcome, alone)) => self.looked(due, outcome, alone),
                Poll::Pending => Looked::Nothing,
            },
            Stage::Sharing(member) => match member.take(context.waker()) {
                Taken::Bytes(bytes) => {
                    self.ready.extend([bytes], &mut self.meter);
                    if due { self.bookmark() } else { Looked::More }
                }
                Taken::Nothing if due => self.bookmark(),
                Taken::Nothing => Looked::Nothing,
                Taken::Lost => {
                    let mut behind = Subscription::behind(member.key().filter.clone(), member.position());
                    if member.key().patch {
                        behind = behind.with_patches();
                    }
                    self.streams.meters.lost();
                    self.meter.at(Some(behind.sent()));
                    self.stage = Stage::Alone(Box::new(Alone { key: member.key().clone(), subscription: behind }));
                    Looked::More
                }
            },
        }
    }

    /// Scans the newest snapshot once: at once if the stream lacks little, otherwise when it is its
    /// turn.
    fn look_alone(&mut self, due: bool, context: &mut Context<'_>) -> Looked {
        let Some(bounds) = self.await_room(context) else { return Looked::Nothing };
        let Stage::Alone(mut alone) = mem::replace(&mut self.stage, Stage::Ended) else { return Looked::More };
        let (streams, room) = (&self.streams, self.meter.room());
        match streams.handle.try_reading() {
            Some(reading) if alone.subscription.lacks_at_most(SHORT, &reading) => {
                let bounds = LookBounds { bytes: SHORT.bytes.min(bounds.bytes), ..bounds };
                let outcome = alone.look(streams, room, bounds, &reading);
                self.looked(due, outcome, alone)
            }
            Some(_) => {
                self.stage = Stage::Looking(alone.look_in_turn(streams, room));
                Looked::More
            }
            None => self.looked(due, Outcome::NotLoaded, alone),
        }
    }

    /// Handles the result of a scan. Joins the group if the stream is now a member.
    fn looked(&mut self, due: bool, outcome: Outcome, alone: Box<Alone>) -> Looked {
        self.meter.at(Some(alone.subscription.sent()));
        self.stage = Stage::Alone(alone);
        match outcome {
            Outcome::Told(made, member) => self.told(due, made, member),
            Outcome::NoRoom => Looked::More,
            Outcome::NotLoaded => self.fail(),
        }
    }

    fn told(&mut self, due: bool, made: Made, member: Option<Member>) -> Looked {
        self.ready.chunks.extend(self.meter.takes(made));
        self.looked = Some(Instant::now());
        if let Some(member) = member {
            self.meter.at(None);
            self.stage = Stage::Sharing(member);
        }
        match (due, self.ready.is_empty()) {
            (true, _) => self.bookmark(),
            (false, true) => Looked::Yield,
            (false, false) => Looked::More,
        }
    }

    /// Returns the limits of a scan. Returns `None` without free memory; the task is then woken for
    /// the next check.
    fn await_room(&mut self, context: &mut Context<'_>) -> Option<LookBounds> {
        loop {
            if let Some(bounds) = self.meter.room().look_bounds() {
                self.room = None;
                return Some(bounds);
            }
            let room = self.room.get_or_insert_with(|| Box::pin(tokio::time::sleep(ROOM_INTERVAL)));
            if room.as_mut().poll(context).is_pending() {
                return None;
            }
            self.room = None;
        }
    }

    /// Ends the stream if it occupies memory for too long that others, or other streams of its
    /// client, need.
    fn check_pace(&mut self) {
        let is_late = self.looked.is_some_and(|looked| looked.elapsed() > TAKEN_WITHIN);
        if is_late && self.meter.room().look_bounds().is_none() {
            self.looked = None;
            self.ready.forget(&mut self.meter);
            self.end_with(Problem::new(
                Code::TooBusy,
                "this client reads the stream too slowly, and the memory for unread events is full: connect again and read faster",
            ));
        }
    }

    /// Adds a bookmark, unless a gap is open: there is none before `synced`.
    fn bookmark(&mut self) -> Looked {
        let Some(reading) = self.streams.handle.try_reading() else { return self.fail() };
        let position = match &self.stage {
            Stage::Alone(alone) => alone.subscription.bookmark(&reading),
            Stage::Sharing(member) => member.bookmark(&reading),
            Stage::Looking(_) => None,
            Stage::Ended => return Looked::Nothing,
        };
        if let Some(position) = position {
            self.bookmark.as_mut().reset(Instant::now() + BOOKMARK_INTERVAL);
            let mut encoder = Encoder::new(self.encoding);
            encoder.bookmark(position, &reading);
            self.ready.extend(encoder.finish(), &mut self.meter);
        }
        Looked::More
    }

    /// Ends the stream on shutdown with a last bookmark, or with an `error` event if a gap is open
    /// or a scan runs. It never ends silently.
    fn finish(&mut self) -> Looked {
        self.bookmark();
        if self.ready.is_empty() {
            return self.end_with(Problem::new(Code::Stopping, "meshkeep is shutting down: connect again in a few seconds"));
        }
        self.stage = Stage::Ended;
        Looked::More
    }

    fn fail(&mut self) -> Looked {
        self.end_with(Problem::new(Code::Loading, "the store is loading again: connect again in a few seconds"))
    }

    fn end_with(&mut self, problem: Problem) -> Looked {
        if matches!(self.stage, Stage::Ended) {
            return Looked::Nothing;
        }
        let mut encoder = Encoder::new(self.encoding);
        encoder.error(problem);
        self.ready.extend(encoder.finish(), &mut self.meter);
        self.stage = Stage::Ended;
        Looked::More
    }
}

impl Stream for Reader {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { ready, meter, .. } = &mut *self;
        ready.taken(meter);
        self.check_pace();
        loop {
            let Self { ready, meter, stage, .. } = &mut *self;
            if let Some(chunk) = ready.pop(matches!(stage, Stage::Sharing(_)), meter) {
                return Poll::Ready(Some(Ok(chunk)));
            }
            self.looked = None;
            if matches!(self.stage, Stage::Ended) {
                return Poll::Ready(None);
            }
            match self.look(context) {
                Looked::More => {}
                Looked::Yield => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Looked::Nothing => return Poll::Pending,
            }
        }
    }
}

#[cfg(test)]
mod tests;
