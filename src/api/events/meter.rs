//! Metrics of streams: gauges that each stream updates, and counters since the start.
//!
//! A stream has one slot here. The slot has a position only while the stream reads without a group;
//! groups know how far their readers are behind.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::encode::{Encoding, reset_reason};
use crate::admission::Client;
use crate::handle::{Item, LOOKED_AT_MAX, LookBounds, ResetReason};
use crate::model::Sequence;

/// Maximum bytes that wait for streams without a group, all together, at which scans may still be
/// long.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Maximum bytes of a long scan, without its last event: about 9,000 events of the benchmarks,
/// which have 450 bytes.
const LOOK_BYTES_MAX: usize = 4 << 20;

/// Maximum bytes of a scan while more than [`WAITING_BYTES_MAX`] wait: two chunks, or one larger
/// event.
///
/// In the worst case, 10,000 streams (the maximum) that stall while they catch up retain 1.3 GB of
/// usual events.
const BYTES_WHERE_MANY_WAIT: usize = 128 << 10;

/// Number of waiting bytes from which on no stream that catches up scans.
///
/// Scans resume when sockets accept bytes or stalled ones are closed ([`crate::server::stall`]).
/// Without this limit, large events would need more memory: 15 GB if each of 10,000 streams had one
/// of 1.5 MiB, etcd's limit for a value.
const WAITING_BYTES_STOP: usize = 256 << 20;

/// Value of a slot whose stream is in a group.
const SHARING: u64 = u64::MAX;

/// All reset reasons. Their counters exist from the start.
const RESET_REASONS: [ResetReason; 5] =
    [ResetReason::Initial, ResetReason::Expired, ResetReason::ForeignEpoch, ResetReason::RolledBack, ResetReason::Malformed];

/// Counters over all streams. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamMeters {
    shared: Arc<MeterState>,
}

#[derive(Debug, Default)]
struct MeterState {
    slots: Mutex<Slots>,
    resets: [AtomicU64; RESET_REASONS.len()],
    lost: AtomicU64,
    events: AtomicU64,
    bytes: AtomicU64,
    /// Bytes that wait for streams without a group.
    waiting: AtomicUsize,
    waiting_mark: AtomicUsize,
    /// Bytes that wait for the streams of each client.
    by_client: Mutex<HashMap<Client, Arc<AtomicUsize>>>,
}

#[derive(Debug, Default)]
struct Slots {
    next: u64,
    by_number: HashMap<u64, Slot>,
}

#[derive(Debug)]
struct Slot {
    encoding: Encoding,
    position: Arc<AtomicU64>,
}

/// Slot of one stream. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct Meter {
    meters: StreamMeters,
    number: u64,
    position: Arc<AtomicU64>,
    room: Room,
    /// Bytes that wait for the stream's socket.
    waiting: usize,
}

/// Share of a client's streams in the memory for waiting bytes.
#[derive(Debug, Clone)]
pub(super) struct Room {
    meters: StreamMeters,
    client: Client,
    /// Bytes that wait for all streams of the client.
    of_client: Arc<AtomicUsize>,
}

/// Encoded events of a scan that the stream has not received yet. They count as waiting even if the
/// stream never receives them.
#[derive(Debug)]
pub(super) struct Made {
    room: Room,
    chunks: Vec<Bytes>,
}

/// Current values of the counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamCounts {
    pub(crate) sse: u64,
    pub(crate) ndjson: u64,
    /// Number of resets by reason.
    pub(crate) resets: Vec<(&'static str, u64)>,
    /// Number of times that a live stream fell so far behind that it had to replay.
    pub(crate) lost: u64,
    /// Number of events encoded for streams without a group.
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    /// Lowest position of the streams without a group.
    pub(crate) oldest: Option<Sequence>,
}

impl StreamMeters {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn by_client(&self) -> MutexGuard<'_, HashMap<Client, Arc<AtomicUsize>>> {
        self.shared.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new stream of a client.
    pub(super) fn open(&self, encoding: Encoding, position: Sequence, client: Client) -> Meter {
        let of_client = Arc::clone(self.by_client().entry(client).or_default());
        let position = Arc::new(AtomicU64::new(position.0));
        let mut slots = self.slots();
        let number = slots.next;
        slots.next += 1;
        slots.by_number.insert(number, Slot { encoding, position: Arc::clone(&position) });
        Meter { meters: self.clone(), number, position, room: Room { meters: self.clone(), client, of_client }, waiting: 0 }
    }

    /// Counts a reset.
    pub(super) fn reset(&self, reason: ResetReason) {
        let number = RESET_REASONS.iter().position(|one| *one == reason);
        if let Some(counter) = number.and_then(|number| self.shared.resets.get(number)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a live stream that has to replay.
    pub(super) fn lost(&self) {
        self.shared.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the items, and the resets among them, that are encoded for one stream.
    pub(super) fn counted<T>(&self, items: impl Iterator<Item = Item>, encode: impl FnOnce(&mut dyn Iterator<Item = Item>) -> T) -> T {
        let mut count = 0;
        let encoded = encode(&mut items.inspect(|item| {
            count += 1;
            if let Item::Reset(reason) = item {
                self.reset(*reason);
            }
        }));
        self.shared.events.fetch_add(count, Ordering::Relaxed);
        encoded
    }

    /// Returns the high-water mark of the bytes that wait for streams without a group.
    pub(crate) fn queue_mark(&self) -> (&'static str, usize) {
        ("stream_waiting_bytes", self.shared.waiting_mark.load(Ordering::Relaxed))
    }

    /// Returns the current values of the counters.
    pub(crate) fn counts(&self) -> StreamCounts {
        let slots = self.slots();
        let of = |encoding| slots.by_number.values().filter(|slot| slot.encoding == encoding).count() as u64;
        let positions = slots.by_number.values().map(|slot| slot.position.load(Ordering::Relaxed));
        let resets = RESET_REASONS.iter().zip(&self.shared.resets);
        StreamCounts {
            sse: of(Encoding::Sse),
            ndjson: of(Encoding::NdJson),
            resets: resets.map(|(reason, count)| (reset_reason(*reason), count.load(Ordering::Relaxed))).collect(),
            lost: self.shared.lost.load(Ordering::Relaxed),
            events: self.shared.events.load(Ordering::Relaxed),
            bytes: self.shared.bytes.load(Ordering::Relaxed),
            oldest: positions.filter(|position| *position != SHARING).min().map(Sequence),
        }
    }
}

impl Meter {
    /// Sets the position of the stream; `None` while it is in a group.
    pub(super) fn at(&self, position: Option<Sequence>) {
        self.position.store(position.map_or(SHARING, |position| position.0), Ordering::Relaxed);
    }

    /// Returns the share of the stream's client.
    pub(super) const fn room(&self) -> &Room {
        &self.room
    }

    /// Passes the encoded events of a scan to the stream.
    pub(super) fn takes(&mut self, mut made: Made) -> Vec<Bytes> {
        let chunks = std::mem::take(&mut made.chunks);
        self.waiting += length(&chunks);
        chunks
    }

    /// Adds bytes that wait for the socket.
    pub(super) fn waits(&mut self, byte_count: usize) {
        self.waiting += byte_count;
        self.room.add(byte_count);
    }

    /// Subtracts bytes that the socket accepted, and counts them as sent.
    pub(super) fn sent(&mut self, byte_count: usize) {
        self.forgotten(byte_count);
        self.meters.shared.bytes.fetch_add(byte_count as u64, Ordering::Relaxed);
    }

    /// Subtracts waiting bytes that will not be sent.
    pub(super) fn forgotten(&mut self, byte_count: usize) {
        self.waiting -= byte_count;
        self.room.remove(byte_count);
    }
}

impl Room {
    /// Returns the limits of a scan; `None` if there is no free memory.
    ///
    /// A client can have as many bytes as are free, as with other answers (`admission/budget.rs`):
    /// a single client gets half of all, two get a third each, and a new client always finds some.
    pub(super) fn look_bounds(&self) -> Option<LookBounds> {
        let waiting = self.meters.shared.waiting.load(Ordering::Relaxed);
        let (free, own) = (WAITING_BYTES_STOP.saturating_sub(waiting), self.of_client.load(Ordering::Relaxed));
        let bytes = if waiting > WAITING_BYTES_MAX { BYTES_WHERE_MANY_WAIT } else { LOOK_BYTES_MAX };
        (own < free).then_some(LookBounds { changes: LOOKED_AT_MAX, bytes })
    }

    /// Charges the encoded events of a scan, which wait from now on.
    pub(super) fn made(&self, chunks: Vec<Bytes>) -> Made {
        self.add(length(&chunks));
        Made { room: self.clone(), chunks }
    }

    /// Returns the client.
    pub(super) const fn client(&self) -> Client {
        self.client
    }

    fn add(&self, byte_count: usize) {
        let shared = &self.meters.shared;
        self.of_client.fetch_add(byte_count, Ordering::Relaxed);
        let waiting = shared.waiting.fetch_add(byte_count, Ordering::Relaxed) + byte_count;
        shared.waiting_mark.fetch_max(waiting, Ordering::Relaxed);
    }

    fn remove(&self, byte_count: usize) {
        self.of_client.fetch_sub(byte_count, Ordering::Relaxed);
        self.meters.shared.waiting.fetch_sub(byte_count, Ordering::Relaxed);
    }
}

fn length(chunks: &[Bytes]) -> usize {
    chunks.iter().map(Bytes::len).sum()
}

impl Drop for Made {
    fn drop(&mut self) {
        self.room.remove(length(&self.chunks));
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut by_client = self.meters.by_client();
        drop(std::mem::take(&mut self.of_client));
        // a stream that is opened next gets its counter from the map
        if by_client.get(&self.client).is_some_and(|of_client| Arc::strong_count(of_client) == 1) {
            by_client.remove(&self.client);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.forgotten(self.waiting);
        self.meters.slots().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> Client {
        Client::at(std::net::IpAddr::from([192, 0, 2, last]))
    }

    fn bytes_of_a_look(meter: &Meter) -> Option<usize> {
        meter.room().look_bounds().map(|bounds| bounds.bytes)
    }

    #[test]
    fn looks_are_short_while_much_waits_and_long_again_when_it_was_taken_or_given_up() {
        let meters = StreamMeters::default();
        let [mut one, mut other, third] = [1, 2, 3].map(|last| meters.open(Encoding::Sse, Sequence(1), client(last)));
        one.waits(WAITING_BYTES_MAX);
        assert_eq!(bytes_of_a_look(&third), Some(LOOK_BYTES_MAX));
        other.waits(100);
        assert_eq!(bytes_of_a_look(&third), Some(BYTES_WHERE_MANY_WAIT));
        other.sent(100);
        assert_eq!(bytes_of_a_look(&third), Some(LOOK_BYTES_MAX));
        other.waits(WAITING_BYTES_STOP - WAITING_BYTES_MAX);
        assert_eq!(bytes_of_a_look(&third), None);
        drop(one);
        assert_eq!(bytes_of_a_look(&third), Some(BYTES_WHERE_MANY_WAIT));
        assert_eq!(meters.queue_mark(), ("stream_waiting_bytes", WAITING_BYTES_STOP));
        assert_eq!(meters.counts().bytes, 100);
    }

    #[test]
    fn what_is_made_takes_room_at_once_and_until_it_is_taken_or_nobody_comes_for_it() {
        let meters = StreamMeters::default();
        let mut stream = meters.open(Encoding::Sse, Sequence(1), client(1));
        let (waiting, made) =
            (|| meters.shared.waiting.load(Ordering::Relaxed), |room: &Room| room.made(vec![Bytes::from_static(b"12345")]));
        let [first, second] = [made(stream.room()), made(stream.room())];
        assert_eq!(waiting(), 10);
        assert_eq!((stream.takes(first).concat(), waiting()), (b"12345".to_vec(), 10));
        drop(stream);
        assert_eq!((waiting(), meters.by_client().len()), (5, 1));
        drop(second);
        assert_eq!((waiting(), meters.by_client().len()), (0, 0));
    }

    #[test]
    fn a_client_alone_gets_half_of_the_room_and_whoever_comes_finds_some() {
        let meters = StreamMeters::default();
        let mut streams = Vec::new();
        // each client has many streams and reads nothing
        for last in 1..=20 {
            let mut count = 0;
            loop {
                let mut stream = meters.open(Encoding::Sse, Sequence(1), client(last));
                let Some(bounds) = stream.room().look_bounds() else { break };
                stream.waits(bounds.bytes);
                count += bounds.bytes;
                streams.push(stream);
            }
            let share = WAITING_BYTES_STOP >> last;
            assert!(last > 8 || count.abs_diff(share) <= BYTES_WHERE_MANY_WAIT, "{count} bytes for client {last}");
            assert!(last > 8 || count > 0, "no room for client {last}");
        }
        assert!(meters.shared.waiting.load(Ordering::Relaxed) <= WAITING_BYTES_STOP);
        drop(streams);
        assert_eq!((meters.shared.waiting.load(Ordering::Relaxed), meters.by_client().len()), (0, 0));
    }
}
