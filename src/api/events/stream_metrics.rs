//! Metrics of streams: gauges that each stream updates, and counters since the start.
//!
//! A stream has one slot here. The slot has a position only while the stream reads without a group;
//! groups know how far their readers are behind.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::encode::Encoding;
use crate::admission::Client;
use crate::handle::{BatchLimits, ResetReason, SCANNED_KEYS_MAX, StreamEvent};
use crate::model::Sequence;

/// Maximum bytes that may wait for all streams without a group together while long scans are
/// allowed.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Maximum bytes of a long scan, without its last event: about 9,000 events of the benchmarks,
/// which have 450 bytes.
const SCAN_BYTES_MAX: usize = 4 << 20;

/// Maximum bytes of a scan, without its last event, while more than [`WAITING_BYTES_MAX`] wait: two
/// chunks ([`CHUNK_BYTES`](super::encode::CHUNK_BYTES)).
///
/// 1,536 such scans fit between [`WAITING_BYTES_MAX`] and [`WAITING_BYTES_STOP`], where all scans
/// stop.
const SHORT_SCAN_BYTES_MAX: usize = 128 << 10;

/// Streams that catch up do not scan while at least this number of bytes waits
/// (docs/use/api/streams.md).
///
/// Scans resume when sockets accept bytes or stalled ones are closed
/// ([`crate::server::write_timeout`]). Without this limit, large events would need more memory: 15
/// GB if each of 10,000 streams had one of 1.5 MiB, etcd's limit for a value.
const WAITING_BYTES_STOP: usize = 256 << 20;

/// Value of a slot whose stream is in a group.
const IN_GROUP: u64 = u64::MAX;

/// Counters over all streams. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamMetrics {
    shared: Arc<StreamMetricsState>,
}

#[derive(Debug, Default)]
struct StreamMetricsState {
    slots: Mutex<StreamSlots>,
    /// By reason, in the order of [`ResetReason::ALL`].
    resets: [AtomicU64; ResetReason::ALL.len()],
    lagged: AtomicU64,
    events: AtomicU64,
    bytes: AtomicU64,
    /// Bytes that wait for streams without a group.
    waiting: AtomicUsize,
    waiting_mark: AtomicUsize,
    /// Bytes that wait for the streams of each client.
    by_client: Mutex<HashMap<Client, Arc<AtomicUsize>>>,
}

#[derive(Debug, Default)]
struct StreamSlots {
    next: u64,
    by_number: HashMap<u64, StreamSlot>,
}

#[derive(Debug)]
struct StreamSlot {
    encoding: Encoding,
    position: Arc<AtomicU64>,
}

/// Metrics of one stream. Dropping them frees the stream's slot.
#[derive(Debug)]
pub(super) struct StreamMeter {
    metrics: StreamMetrics,
    number: u64,
    position: Arc<AtomicU64>,
    backlog: ClientBacklog,
    /// Bytes that wait for the stream's socket.
    waiting: usize,
}

/// Memory that the streams of one client use for waiting bytes.
#[derive(Debug, Clone)]
pub(super) struct ClientBacklog {
    metrics: StreamMetrics,
    client: Client,
    /// Bytes that wait for all streams of the client.
    client_bytes: Arc<AtomicUsize>,
}

/// Encoded events of a scan that the stream has not received yet. They already count as waiting. If
/// they are dropped because the stream was closed, they are subtracted again.
#[derive(Debug)]
pub(super) struct EncodedScan {
    backlog: ClientBacklog,
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
    pub(crate) lagged: u64,
    /// Number of events encoded for streams without a group.
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    /// Lowest position of the streams without a group.
    pub(crate) oldest: Option<Sequence>,
}

impl StreamMetrics {
    fn slots(&self) -> MutexGuard<'_, StreamSlots> {
        self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn by_client(&self) -> MutexGuard<'_, HashMap<Client, Arc<AtomicUsize>>> {
        self.shared.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new stream of a client.
    pub(super) fn open(&self, encoding: Encoding, position: Sequence, client: Client) -> StreamMeter {
        let client_bytes = Arc::clone(self.by_client().entry(client).or_default());
        let position = Arc::new(AtomicU64::new(position.0));
        let mut slots = self.slots();
        let number = slots.next;
        slots.next += 1;
        slots.by_number.insert(number, StreamSlot { encoding, position: Arc::clone(&position) });
        StreamMeter {
            metrics: self.clone(),
            number,
            position,
            backlog: ClientBacklog { metrics: self.clone(), client, client_bytes },
            waiting: 0,
        }
    }

    /// Counts a reset.
    pub(super) fn reset(&self, reason: ResetReason) {
        if let Some(counter) = self.shared.resets.get(reason as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a live stream that has to replay.
    pub(super) fn count_lagged(&self) {
        self.shared.lagged.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the items, and the resets among them, that are encoded for one stream.
    pub(super) fn count_items<T>(
        &self,
        items: impl Iterator<Item = StreamEvent>,
        encode: impl FnOnce(&mut dyn Iterator<Item = StreamEvent>) -> T,
    ) -> T {
        let mut count = 0;
        let encoded = encode(&mut items.inspect(|item| {
            count += 1;
            if let StreamEvent::Reset(reason) = item {
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
        let count_encoding = |encoding| slots.by_number.values().filter(|slot| slot.encoding == encoding).count() as u64;
        let positions = slots.by_number.values().map(|slot| slot.position.load(Ordering::Relaxed));
        let resets = ResetReason::ALL.into_iter().zip(&self.shared.resets);
        StreamCounts {
            sse: count_encoding(Encoding::Sse),
            ndjson: count_encoding(Encoding::NdJson),
            resets: resets.map(|(reason, count)| (reason.api_name(), count.load(Ordering::Relaxed))).collect(),
            lagged: self.shared.lagged.load(Ordering::Relaxed),
            events: self.shared.events.load(Ordering::Relaxed),
            bytes: self.shared.bytes.load(Ordering::Relaxed),
            oldest: positions.filter(|position| *position != IN_GROUP).min().map(Sequence),
        }
    }
}

impl StreamMeter {
    /// Sets the position of the stream; `None` while it is in a group.
    pub(super) fn set_position(&self, position: Option<Sequence>) {
        self.position.store(position.map_or(IN_GROUP, |position| position.0), Ordering::Relaxed);
    }

    /// Returns the backlog of the stream's client.
    pub(super) const fn backlog(&self) -> &ClientBacklog {
        &self.backlog
    }

    /// Moves the encoded events of a scan to the stream.
    pub(super) fn receive(&mut self, mut scan: EncodedScan) -> Vec<Bytes> {
        let chunks = std::mem::take(&mut scan.chunks);
        self.waiting += length(&chunks);
        chunks
    }

    /// Adds bytes that wait for the socket.
    pub(super) fn add_waiting(&mut self, byte_count: usize) {
        self.waiting += byte_count;
        self.backlog.add(byte_count);
    }

    /// Subtracts bytes that the socket accepted, and counts them as sent.
    pub(super) fn mark_sent(&mut self, byte_count: usize) {
        self.discard_waiting(byte_count);
        self.metrics.shared.bytes.fetch_add(byte_count as u64, Ordering::Relaxed);
    }

    /// Subtracts waiting bytes that will not be sent.
    pub(super) fn discard_waiting(&mut self, byte_count: usize) {
        self.waiting -= byte_count;
        self.backlog.remove(byte_count);
    }
}

impl ClientBacklog {
    /// Returns the limits of a scan; `None` if there is no free memory.
    ///
    /// A client can have as many bytes as are free, as with other answers (`admission/budget.rs`):
    /// a single client gets half of the memory, two clients get a third each, and some memory is
    /// always left for a new client.
    pub(super) fn scan_bounds(&self) -> Option<BatchLimits> {
        let waiting = self.metrics.shared.waiting.load(Ordering::Relaxed);
        let (free, own) = (WAITING_BYTES_STOP.saturating_sub(waiting), self.client_bytes.load(Ordering::Relaxed));
        let bytes = if waiting > WAITING_BYTES_MAX { SHORT_SCAN_BYTES_MAX } else { SCAN_BYTES_MAX };
        (own < free).then_some(BatchLimits { changes: SCANNED_KEYS_MAX, bytes })
    }

    /// Charges the encoded events of a scan to the client. They count as waiting from now on.
    pub(super) fn charge(&self, chunks: Vec<Bytes>) -> EncodedScan {
        self.add(length(&chunks));
        EncodedScan { backlog: self.clone(), chunks }
    }

    pub(super) const fn client(&self) -> Client {
        self.client
    }

    fn add(&self, byte_count: usize) {
        let shared = &self.metrics.shared;
        self.client_bytes.fetch_add(byte_count, Ordering::Relaxed);
        let waiting = shared.waiting.fetch_add(byte_count, Ordering::Relaxed) + byte_count;
        shared.waiting_mark.fetch_max(waiting, Ordering::Relaxed);
    }

    fn remove(&self, byte_count: usize) {
        self.client_bytes.fetch_sub(byte_count, Ordering::Relaxed);
        self.metrics.shared.waiting.fetch_sub(byte_count, Ordering::Relaxed);
    }
}

fn length(chunks: &[Bytes]) -> usize {
    chunks.iter().map(Bytes::len).sum()
}

impl Drop for EncodedScan {
    fn drop(&mut self) {
        self.backlog.remove(length(&self.chunks));
    }
}

impl Drop for ClientBacklog {
    fn drop(&mut self) {
        let mut by_client = self.metrics.by_client();
        drop(std::mem::take(&mut self.client_bytes));
        // a new stream clones the counter from the map under this lock, so a count of 1 is final
        if by_client.get(&self.client).is_some_and(|client_bytes| Arc::strong_count(client_bytes) == 1) {
            by_client.remove(&self.client);
        }
    }
}

impl Drop for StreamMeter {
    fn drop(&mut self) {
        self.discard_waiting(self.waiting);
        self.metrics.slots().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> Client {
        Client::from_ip(std::net::IpAddr::from([192, 0, 2, last]))
    }

    fn scan_bytes(meter: &StreamMeter) -> Option<usize> {
        meter.backlog().scan_bounds().map(|bounds| bounds.bytes)
    }

    #[test]
    fn scans_are_short_while_many_bytes_wait() {
        let metrics = StreamMetrics::default();
        let [mut one, mut other, third] = [1, 2, 3].map(|last| metrics.open(Encoding::Sse, Sequence(1), client(last)));
        one.add_waiting(WAITING_BYTES_MAX);
        assert_eq!(scan_bytes(&third), Some(SCAN_BYTES_MAX));
        other.add_waiting(100);
        assert_eq!(scan_bytes(&third), Some(SHORT_SCAN_BYTES_MAX));
        other.mark_sent(100);
        assert_eq!(scan_bytes(&third), Some(SCAN_BYTES_MAX));
        other.add_waiting(WAITING_BYTES_STOP - WAITING_BYTES_MAX);
        assert_eq!(scan_bytes(&third), None);
        drop(one);
        assert_eq!(scan_bytes(&third), Some(SHORT_SCAN_BYTES_MAX));
        assert_eq!(metrics.queue_mark(), ("stream_waiting_bytes", WAITING_BYTES_STOP));
        assert_eq!(metrics.counts().bytes, 100);
    }

    #[test]
    fn encoded_scans_count_as_waiting_until_they_are_received_or_dropped() {
        let metrics = StreamMetrics::default();
        let mut stream = metrics.open(Encoding::Sse, Sequence(1), client(1));
        let (waiting, charge) = (
            || metrics.shared.waiting.load(Ordering::Relaxed),
            |backlog: &ClientBacklog| backlog.charge(vec![Bytes::from_static(b"12345")]),
        );
        let [first, second] = [charge(stream.backlog()), charge(stream.backlog())];
        assert_eq!(waiting(), 10);
        assert_eq!((stream.receive(first).concat(), waiting()), (b"12345".to_vec(), 10));
        drop(stream);
        assert_eq!((waiting(), metrics.by_client().len()), (5, 1));
        drop(second);
        assert_eq!((waiting(), metrics.by_client().len()), (0, 0));
    }

    #[test]
    fn a_single_client_gets_half_of_the_memory_and_leaves_some_free() {
        let metrics = StreamMetrics::default();
        let mut streams = Vec::new();
        // each client has many streams and reads nothing
        for last in 1..=20 {
            let mut count = 0;
            loop {
                let mut stream = metrics.open(Encoding::Sse, Sequence(1), client(last));
                let Some(bounds) = stream.backlog().scan_bounds() else { break };
                stream.add_waiting(bounds.bytes);
                count += bounds.bytes;
                streams.push(stream);
            }
            let share = WAITING_BYTES_STOP >> last;
            assert!(last > 8 || count.abs_diff(share) <= SHORT_SCAN_BYTES_MAX, "{count} bytes for client {last}");
            assert!(last > 8 || count > 0, "no bytes for client {last}");
        }
        assert!(metrics.shared.waiting.load(Ordering::Relaxed) <= WAITING_BYTES_STOP);
        drop(streams);
        assert_eq!((metrics.shared.waiting.load(Ordering::Relaxed), metrics.by_client().len()), (0, 0));
    }
}
