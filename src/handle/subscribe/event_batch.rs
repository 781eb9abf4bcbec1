//! The output of one call of a subscription, and its limits.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::StreamEvent;
use crate::handle::parallel::map_pieces;

/// Encodes events and counts the encoded bytes.
pub(super) trait EventEncoder<T>: Fn(&mut dyn Iterator<Item = StreamEvent>, &EncodedByteCount) -> T + Sync {}

impl<T, F: Fn(&mut dyn Iterator<Item = StreamEvent>, &EncodedByteCount) -> T + Sync> EventEncoder<T> for F {}

/// Limits of one call of [`Subscription::encode_next`](super::Subscription::encode_next).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Maximum number of upserts, patches and deletes; at least 1.
    pub changes: usize,
    /// Number of bytes after which the call ends. The first change is sent whatever its size.
    pub bytes: usize,
}

/// Counter of the bytes that were encoded in one call. It stays zero for a caller that does not
/// encode.
#[derive(Debug, Default)]
pub struct EncodedByteCount(AtomicUsize);

/// Events of one call, encoded in order.
#[derive(Debug)]
pub(super) struct EventBatch<T, F> {
    encode: F,
    encoded: Vec<T>,
    /// Events other than changes that wait to be encoded.
    pending_events: Vec<StreamEvent>,
    /// Remaining number of upserts, patches and deletes.
    remaining_changes: usize,
    bytes_max: usize,
    bytes: EncodedByteCount,
    has_change: bool,
}

/// Number of items that one call has read, and of changes that it has encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchProgress {
    /// Number of items that were read, from the first one on. Less than all if the limit of bytes
    /// was reached.
    pub(super) scanned: usize,
    pub(super) count: u64,
}

impl EncodedByteCount {
    /// Adds to the number of encoded bytes.
    pub fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl<T: Send, F: EventEncoder<T>> EventBatch<T, F> {
    pub(super) fn new(bounds: BatchLimits, encode: F) -> Self {
        let BatchLimits { changes, bytes } = bounds;
        Self {
            encode,
            encoded: Vec::new(),
            pending_events: Vec::new(),
            remaining_changes: changes,
            bytes_max: bytes,
            bytes: EncodedByteCount::default(),
            has_change: false,
        }
    }

    /// Returns the remaining number of changes; zero once the limit of bytes is reached.
    pub(super) fn remaining(&self) -> usize {
        if self.has_change && self.bytes.get() >= self.bytes_max { 0 } else { self.remaining_changes }
    }

    /// Adds an event that is not a change.
    pub(super) fn push_event(&mut self, event: StreamEvent) {
        self.pending_events.push(event);
    }

    /// Encodes the changes that `event_of` returns for the items.
    ///
    /// Objects are dropped on the thread that decoded them. Decoding, encoding and dropping are
    /// most of the work of a replay, and a few objects at a time stay in the CPU's cache. If
    /// several threads reach the limit of bytes, everything after the first change that was left
    /// out is discarded.
    pub(super) fn encode_changes<S: Sync>(&mut self, items: &[S], event_of: impl Fn(&S) -> Option<StreamEvent> + Sync) -> BatchProgress {
        self.encode_pending();
        let (bytes, bytes_max, has_change) = (&self.bytes, self.bytes_max, self.has_change);
        let pieces = map_pieces(items, |piece| {
            let (mut scanned, mut count) = (0, 0);
            // the first change of the whole call is always encoded
            let may_wait = has_change || !std::ptr::eq(piece.as_ptr(), items.as_ptr());
            let mut rest = piece.iter();
            let mut events = std::iter::from_fn(|| {
                loop {
                    if (may_wait || count > 0) && bytes.get() >= bytes_max {
                        return None;
                    }
                    let item = rest.next()?;
                    scanned += 1;
                    if let Some(event) = event_of(item) {
                        count += 1;
                        return Some(event);
                    }
                }
            });
            let encoded = (self.encode)(&mut events, bytes);
            (piece.len(), scanned, count, encoded)
        });
        let mut progress = BatchProgress { scanned: 0, count: 0 };
        for (length, scanned, count, encoded) in pieces {
            progress.scanned += scanned;
            progress.count += count;
            self.encoded.push(encoded);
            if scanned < length {
                break;
            }
        }
        self.has_change |= progress.count > 0;
        self.remaining_changes = self.remaining_changes.saturating_sub(usize::try_from(progress.count).unwrap_or(usize::MAX));
        progress
    }

    fn encode_pending(&mut self) {
        if !self.pending_events.is_empty() {
            self.encoded.push((self.encode)(&mut self.pending_events.drain(..), &self.bytes));
        }
    }

    pub(super) fn finish(mut self) -> Vec<T> {
        self.encode_pending();
        self.encoded
    }
}
