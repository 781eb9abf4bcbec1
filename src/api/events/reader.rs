//! One open stream: pulls what it lacks whenever the socket takes more.
//!
//! A reader that is behind has a [`Subscription`] of its own; one that is current shares its bytes with all readers of the same filter
//! and holds nothing but a seat in their group.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use tokio::time::{Instant, Sleep};

use super::encode::Encoder;
use super::group::{GroupKey, Taken};
use super::hub::Member;
use super::meter::Meter;
use super::places::Place;
use crate::api::problem::{Code, Problem};
use crate::api::stall::STALL_MAX;
use crate::api::state::ApiState;
use crate::handle::{LookBounds, Subscription};

/// A bookmark at least this often (docs/api.md): well below the 60 s after which proxies drop a silent connection.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(15);

/// How long a stream that catches up waits before it looks whether there is room again.
const ROOM_INTERVAL: Duration = Duration::from_millis(100);

/// Where room is lacking, what a look gave must be taken within so long, which is 4 MiB and a large event at 0.8 Mbit/s. A socket that takes
/// nothing is closed after the same time ([`crate::api::stall`]); one that drips would keep its room for an hour.
const TAKEN_WITHIN: Duration = STALL_MAX;

/// The state of one open stream.
#[derive(Debug)]
pub(super) struct Reader {
    state: ApiState,
    stage: Stage,
    /// At most what one look at a snapshot gave.
    ready: Ready,
    /// Until the next bookmark. Kept between waits, so that a busy stream does not set a timer with every event.
    bookmark: Pin<Box<Sleep>>,
    /// Set while there is no room for what it lacks.
    room: Option<Pin<Box<Sleep>>>,
    /// When it looked last, while not all of that is taken.
    looked: Option<Instant>,
    meter: Meter,
    _place: Place,
}

/// Encoded and not taken yet.
#[derive(Debug, Default)]
struct Ready {
    chunks: VecDeque<Bytes>,
    /// How many bytes of this stream alone were handed to its connection last, which asks for more once its socket took most of them.
    handed: usize,
}

/// How a stream gets its events.
#[derive(Debug)]
enum Stage {
    /// By itself; boxed, because most streams do not need it most of the time.
    Alone(Box<(GroupKey, Subscription)>),
    /// With others.
    Sharing(Member),
    /// Not any more.
    Ended,
}

/// What one look gave.
enum Looked {
    /// Something to send, or another look is worth while at once.
    More,
    /// Another look, but others first: a long scan that matches nothing must not hold the thread.
    Yield,
    /// Nothing: the task will be woken.
    Nothing,
}

impl Ready {
    fn extend(&mut self, chunks: impl IntoIterator<Item = Bytes>, meter: &mut Meter) {
        self.chunks.extend(chunks.into_iter().inspect(|chunk| meter.waits(chunk.len())));
    }

    /// The next chunk for the connection. One that is shared with other streams takes no room of its own there.
    fn pop(&mut self, shared: bool, meter: &mut Meter) -> Option<Bytes> {
        let chunk = self.chunks.pop_front()?;
        if shared {
            meter.sent(chunk.len());
        } else {
            self.handed = chunk.len();
        }
        Some(chunk)
    }

    /// What waits will not be sent.
    fn forget(&mut self, meter: &mut Meter) {
        meter.forgotten(self.chunks.drain(..).map(|chunk| chunk.len()).sum());
    }

    /// The connection asks for more.
    fn taken(&mut self, meter: &mut Meter) {
        meter.sent(std::mem::take(&mut self.handed));
    }

    fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

impl Reader {
    pub(super) fn new(state: ApiState, key: GroupKey, subscription: Subscription, place: Place) -> Self {
        let bookmark = Box::pin(tokio::time::sleep(BOOKMARK_INTERVAL));
        let mut meter = state.meters.open(key.encoding, subscription.sent(), place.client());
        let mut ready = Ready::default();
        ready.extend(key.encoding.preamble(), &mut meter);
        let stage = Stage::Alone(Box::new((key, subscription)));
        Self { meter, state, stage, ready, bookmark, room: None, looked: None, _place: place }
    }

    fn look(&mut self, context: &mut Context<'_>) -> Looked {
        let due = self.bookmark.as_mut().poll(context).is_ready();
        if self.state.hub.is_ended() {
            return self.finish();
        }
        match &mut self.stage {
            Stage::Ended => Looked::Nothing,
            Stage::Alone(_) => self.look_alone(due, context),
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
                    self.state.meters.lost();
                    self.meter.at(Some(behind.sent()));
                    self.stage = Stage::Alone(Box::new((member.key().clone(), behind)));
                    Looked::More
                }
            },
        }
    }

    /// Looks at the newest snapshot once, and joins the others if nothing is lacking then.
    fn look_alone(&mut self, due: bool, context: &mut Context<'_>) -> Looked {
        let Some(bounds) = self.await_room(context) else { return Looked::Nothing };
        let Stage::Alone(alone) = &mut self.stage else { return Looked::More };
        let (key, subscription) = alone.as_mut();
        let Some(reading) = self.state.handle.try_reading() else { return self.fail() };
        let meters = &self.state.meters;
        let chunks = subscription.tell_up_to(&reading, bounds, |items, bytes| {
            meters.counted(items, |items| Encoder::encoded(key.encoding, items, bytes, &reading))
        });
        self.meter.at(Some(subscription.sent()));
        self.ready.extend(chunks.into_iter().flatten(), &mut self.meter);
        self.looked = Some(Instant::now());
        let member = if subscription.is_current(&reading) { self.state.hub.join(key, subscription.sent(), &reading) } else { None };
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

    /// How much a look may give; where there is no room, the task is woken when it is time to ask again.
    fn await_room(&mut self, context: &mut Context<'_>) -> Option<LookBounds> {
        loop {
            if let Some(bounds) = self.meter.look_bounds() {
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

    /// Ends it where it holds for too long what others, or others of its client, lack.
    fn check_pace(&mut self) {
        let is_late = self.looked.is_some_and(|looked| looked.elapsed() > TAKEN_WITHIN);
        if is_late && self.meter.look_bounds().is_none() {
            self.looked = None;
            self.ready.forget(&mut self.meter);
            self.end_with(Problem::new(
                Code::TooBusy,
                "there is no room for more that waits to be read, and this stream is read too slowly: connect again and read faster",
            ));
        }
    }

    /// Adds a bookmark, unless a gap is open: none comes before `synced`.
    fn bookmark(&mut self) -> Looked {
        let Some(reading) = self.state.handle.try_reading() else { return self.fail() };
        let (encoding, position) = match &self.stage {
            Stage::Alone(alone) => (alone.0.encoding, alone.1.bookmark(&reading)),
            Stage::Sharing(member) => (member.key().encoding, member.bookmark(&reading)),
            Stage::Ended => return Looked::Nothing,
        };
        if let Some(position) = position {
            self.bookmark.as_mut().reset(Instant::now() + BOOKMARK_INTERVAL);
            let mut encoder = Encoder::new(encoding);
            encoder.bookmark(position, &reading);
            self.ready.extend(encoder.finish(), &mut self.meter);
        }
        Looked::More
    }

    /// The planned end: a last bookmark, or where a gap is open, which allows none, a problem. Never silence.
    fn finish(&mut self) -> Looked {
        self.bookmark();
        if self.ready.is_empty() {
            return self.end_with(Problem::new(Code::Stopping, "meshkeep is shutting down: connect again in a moment"));
        }
        self.stage = Stage::Ended;
        Looked::More
    }

    fn fail(&mut self) -> Looked {
        self.end_with(Problem::new(Code::Loading, "the store is loading again: connect again in a moment"))
    }

    fn end_with(&mut self, problem: Problem) -> Looked {
        let encoding = match &self.stage {
            Stage::Alone(alone) => alone.0.encoding,
            Stage::Sharing(member) => member.key().encoding,
            Stage::Ended => return Looked::Nothing,
        };
        let mut encoder = Encoder::new(encoding);
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
mod tests {
    use futures_util::StreamExt;

    use super::*;
    use crate::api::events::encode::Encoding;
    use crate::api::events::places::Client;
    use crate::api::tests::fixture::{Fixture, key, pod, put};
    use crate::handle::{Filter, Start};
    use crate::model::{Backend, Kind, Object, Port, Sequence, Service};

    #[tokio::test]
    async fn a_look_gives_little_while_much_waits_for_other_streams() {
        let fixture = Fixture::new();
        for number in 0..1_000 {
            let name = format!("10.20.{}.{}", number / 250, number % 250);
            fixture.change(put(key(Kind::Ip, "paris", &name), pod(&name, 70_000, "172.18.1.2"), 5)).await;
        }
        let state = ApiState::new(fixture.handle.clone(), fixture.stop.clone());
        let reading = state.handle.try_reading().unwrap();
        for (waiting, range) in [(0, 1_000..2_000), (100 << 20, 250..350)] {
            let mut other = state.meters.open(Encoding::Sse, Sequence(1), client(1));
            other.waits(waiting);
            let group = GroupKey { filter: Filter::default(), encoding: Encoding::Sse, patch: false };
            let subscription = Subscription::new(Filter::default(), &Start::Snapshot, &reading);
            let mut reader = Reader::new(state.clone(), group, subscription, state.places.take(Client::Local).unwrap());
            let preamble = reader.next().await.unwrap().unwrap();
            let mut look = vec![reader.next().await.unwrap().unwrap()];
            assert_eq!(preamble, "retry: 2000\n");
            look.extend(reader.ready.chunks.iter().cloned());
            let text = String::from_utf8(look.concat()).unwrap();
            let count = text.matches("event: upsert").count();
            assert!(range.contains(&count), "{count} with {waiting} B waiting");
        }
    }

    fn client(last: u8) -> Client {
        Client::at(std::net::IpAddr::from([192, 0, 2, last]))
    }

    /// Forty services of 5,000 backends, 0.6 MB each.
    async fn large_services() -> (Fixture, ApiState) {
        let fixture = Fixture::new();
        for number in 0..40 {
            let backend = |number: u32| Backend {
                ip: std::net::Ipv4Addr::from(number).into(),
                ports: [Port { name: "http".to_owned(), protocol: "TCP".to_owned(), port: 80 }].into(),
                hostname: String::new(),
                zone: None,
            };
            let service = Service { backends: (0..5_000).map(backend).collect(), ..Service::default() };
            fixture.change(put(key(Kind::Service, "paris", &format!("shop/s{number}")), Object::Service(service), number)).await;
        }
        let state = ApiState::new(fixture.handle.clone(), fixture.stop.clone());
        (fixture, state)
    }

    /// Asks for everything.
    fn open(state: &ApiState, client: Client) -> Reader {
        let group = GroupKey { filter: Filter::default(), encoding: Encoding::NdJson, patch: false };
        let subscription = Subscription::new(Filter::default(), &Start::Snapshot, &state.handle.try_reading().unwrap());
        Reader::new(state.clone(), group, subscription, state.places.take(client).unwrap())
    }

    fn held(reader: &Reader) -> usize {
        reader.ready.handed + reader.ready.chunks.iter().map(Bytes::len).sum::<usize>()
    }

    /// Eight clients that ask for a snapshot of large services and read nothing, and one that comes when there is no room any more.
    #[tokio::test(start_paused = true)]
    async fn what_waits_for_readers_that_take_nothing_is_bounded_in_bytes() {
        let (_fixture, state) = large_services().await;
        let mut readers: Vec<Reader> = (1..=8).map(|last| open(&state, client(last))).collect();
        for reader in &mut readers {
            reader.next().await.unwrap().unwrap();
            // a look and its last event, of 0.6 MB
            assert!((3 << 20..5 << 20).contains(&held(reader)), "{} bytes", held(reader));
        }
        let all: usize = readers.iter().map(held).sum();
        assert_eq!(state.meters.queue_mark().1, all);
        // what the connection has in hand counts until it asks for more
        let mut other = state.meters.open(Encoding::Sse, Sequence(1), client(9));
        other.waits((256 << 20) - all);
        let mut late = open(&state, client(10));
        let first = tokio::time::timeout(Duration::from_secs(5), late.next()).await;
        assert!(first.is_err() && held(&late) == 0, "there is no room");
        drop(readers.pop());
        late.next().await.unwrap().unwrap();
        assert!(held(&late) < 1 << 20, "{} bytes where little room is left", held(&late));
    }

    /// A reader that takes an event now and then, and so never stands still for as long as a socket may.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_drips_gives_its_room_up_once_others_lack_it() {
        let (_fixture, state) = large_services().await;
        let mut dripping = open(&state, client(1));
        dripping.next().await.unwrap().unwrap();
        // as slowly as it likes, as long as there is room
        tokio::time::advance(TAKEN_WITHIN * 2).await;
        let chunk = dripping.next().await.unwrap().unwrap();
        assert!(!String::from_utf8_lossy(&chunk).contains(r#""error""#));
        let mut other = state.meters.open(Encoding::Sse, Sequence(1), client(2));
        other.waits((256 << 20) - held(&dripping));
        let mut late = open(&state, client(3));
        assert!(tokio::time::timeout(Duration::from_secs(5), late.next()).await.is_err(), "there is no room");
        let end = dripping.next().await.unwrap().unwrap();
        let end = std::str::from_utf8(&end).unwrap();
        assert!(end.starts_with(r#"{"type":"error""#) && end.contains("tooBusy"), "{} bytes", end.len());
        late.next().await.unwrap().unwrap();
        assert!(dripping.next().await.is_none());
        assert_eq!(held(&dripping), 0);
    }
}
