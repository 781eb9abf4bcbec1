//! One look of a subscription: what it tells, and how much more it may.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Item;
use crate::handle::spread::over_pieces;

/// What makes something of items, and counts the bytes of that.
pub(super) trait Tell<T>: Fn(&mut dyn Iterator<Item = Item>, &ByteCount) -> T + Sync {}

impl<T, F: Fn(&mut dyn Iterator<Item = Item>, &ByteCount) -> T + Sync> Tell<T> for F {}

/// How much one look may tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookBounds {
    /// How many upserts, patches and deletes at most; at least 1.
    pub changes: usize,
    /// It ends with the change that brings it to so many bytes: one change it has whatever its size.
    pub bytes: usize,
}

/// How many bytes were made of the items of a look. Whoever makes none counts none.
#[derive(Debug, Default)]
pub struct ByteCount(AtomicUsize);

/// What was told so far, in order.
#[derive(Debug)]
pub(super) struct Telling<T, F> {
    tell: F,
    told: Vec<T>,
    /// Said one by one, and not told yet.
    said: Vec<Item>,
    /// How many more upserts, patches and deletes there may be.
    room: usize,
    bytes_max: usize,
    bytes: ByteCount,
    /// Whether a change was told.
    began: bool,
}

/// What became of many sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    /// How many of them, from the first on, were looked at. Fewer than all where the bytes are used up.
    pub(super) looked_at: usize,
    /// How many changes were told.
    pub(super) count: u64,
}

impl ByteCount {
    /// Counts some bytes.
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

    /// How many more changes there may be; none once the bytes are used up.
    pub(super) fn room(&self) -> usize {
        if self.began && self.bytes.get() >= self.bytes_max { 0 } else { self.room }
    }

    /// Tells something that is no change.
    pub(super) fn say(&mut self, item: Item) {
        self.said.push(item);
    }

    /// Tells the changes that some of many are. What was made of them is dropped where it was made: that, the making and the telling are most
    /// of the work of a replay, and a few at a time stay in the processor's cache. Where several threads do that and the bytes are used up, what
    /// lies behind the first change that was left out is thrown away.
    pub(super) fn changes<S: Sync>(&mut self, sources: &[S], item: impl Fn(&S) -> Option<Item> + Sync) -> Progress {
        self.tell_said();
        let (bytes, bytes_max, began) = (&self.bytes, self.bytes_max, self.began);
        let pieces = over_pieces(sources, |piece| {
            let (mut looked_at, mut count) = (0, 0);
            // the first change of all is told in any case
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
