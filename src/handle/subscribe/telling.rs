//! The output of one call of a subscription, and its limits.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Item;
use crate::handle::spread::over_pieces;

/// Encodes events and counts the encoded bytes.
pub(super) trait Tell<T>: Fn(&mut dyn Iterator<Item = Item>, &ByteCount) -> T + Sync {}

impl<T, F: Fn(&mut dyn Iterator<Item = Item>, &ByteCount) -> T + Sync> Tell<T> for F {}

/// Limits of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookBounds {
    /// Maximum number of upserts, patches and deletes; at least 1.
    pub changes: usize,
    /// Number of bytes after which the call ends. The first change is sent whatever its size.
    pub bytes: usize,
}

/// Counter of the bytes that were encoded in one call. It stays zero for a caller that does not
/// encode.
#[derive(Debug, Default)]
pub struct ByteCount(AtomicUsize);

/// Encoded events so far, in order.
#[derive(Debug)]
pub(super) struct Telling<T, F> {
    tell: F,
    told: Vec<T>,
    /// Events other than changes that wait to be encoded.
    said: Vec<Item>,
    /// Remaining number of upserts, patches and deletes.
    room: usize,
    bytes_max: usize,
    bytes: ByteCount,
    /// True once a change was encoded.
    began: bool,
}

/// Progress with a list of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    /// Number of sources that were read, from the first one on. Less than all if the limit of bytes
    /// was reached.
    pub(super) looked_at: usize,
    /// Number of changes that were encoded.
    pub(super) count: u64,
}

impl ByteCount {
    /// Adds to the number of encoded bytes.
    pub fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl<T: Send, F: Tell<T>> Telling<T, F> {
    pub(super) fn new(bounds: LookBounds, tell: F) -> Self {
        let LookBounds { changes, bytes } = bounds;
        Self { tell, told: Vec::new(), said: Vec::new(), room: changes, bytes_max: bytes, bytes: ByteCount::default(), began: false }
    }

    /// Returns the remaining number of changes; zero once the limit of bytes is reached.
    pub(super) fn room(&self) -> usize {
        if self.began && self.bytes.get() >= self.bytes_max { 0 } else { self.room }
    }

    /// Adds an event that is not a change.
    pub(super) fn say(&mut self, item: Item) {
        self.said.push(item);
    }

    /// Encodes the changes that some of the sources are.
    ///
    /// The objects are dropped where they were decoded. Decoding, encoding and dropping are most of
    /// the work of a replay, and a few objects at a time stay in the CPU's cache. If several
    /// threads reach the limit of bytes, everything after the first change that was left out is
    /// discarded.
    pub(super) fn changes<S: Sync>(&mut self, sources: &[S], item: impl Fn(&S) -> Option<Item> + Sync) -> Progress {
        self.tell_said();
        let (bytes, bytes_max, began) = (&self.bytes, self.bytes_max, self.began);
        let pieces = over_pieces(sources, |piece| {
            let (mut looked_at, mut count) = (0, 0);
            // the first change of the whole call is always encoded
            let may_wait = began || !std::ptr::eq(piece.as_ptr(), sources.as_ptr());
            let mut items = piece.iter();
            let mut items = std::iter::from_fn(|| {
                loop {
                    if (may_wait || count > 0) && bytes.get() >= bytes_max {
                        return None;
                    }
                    let source = items.next()?;
                    looked_at += 1;
                    if let Some(item) = item(source) {
                        count += 1;
                        return Some(item);
                    }
                }
            });
            let told = (self.tell)(&mut items, bytes);
            (piece.len(), looked_at, count, told)
        });
        let mut progress = Progress { looked_at: 0, count: 0 };
        for (length, looked_at, count, told) in pieces {
            progress.looked_at += looked_at;
            progress.count += count;
            self.told.push(told);
            if looked_at < length {
                break;
            }
        }
        self.began |= progress.count > 0;
        self.room = self.room.saturating_sub(usize::try_from(progress.count).unwrap_or(usize::MAX));
        progress
    }

    fn tell_said(&mut self) {
        if !self.said.is_empty() {
            self.told.push((self.tell)(&mut self.said.drain(..), &self.bytes));
        }
    }

    pub(super) fn finish(mut self) -> Vec<T> {
        self.tell_said();
        self.told
    }
}
