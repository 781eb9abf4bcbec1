//! One look of a subscription: what it tells, and how much more it may.

use super::Item;
use crate::handle::spread::over_pieces;

/// What makes something of items.
pub(super) trait Tell<T>: Fn(&mut dyn Iterator<Item = Item>) -> T + Sync {}

impl<T, F: Fn(&mut dyn Iterator<Item = Item>) -> T + Sync> Tell<T> for F {}

/// What was told so far, in order.
#[derive(Debug)]
pub(super) struct Telling<T, F> {
    tell: F,
    told: Vec<T>,
    /// Said one by one, and not told yet.
    said: Vec<Item>,
    /// How many more upserts, patches and deletes there may be.
    room: usize,
}

impl<T: Send, F: Tell<T>> Telling<T, F> {
    pub(super) fn new(room: usize, tell: F) -> Self {
        Self { tell, told: Vec::new(), said: Vec::new(), room }
    }

    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Tells something that is no change.
    pub(super) fn say(&mut self, item: Item) {
        self.said.push(item);
    }

    /// Tells a change.
    pub(super) fn change(&mut self, item: Item) {
        self.room = self.room.saturating_sub(1);
        self.said.push(item);
    }

    /// Tells the changes that some of many are, and says how many. What was made of them is dropped where it was made: that, the making and
    /// the telling are most of the work of a replay, and a few at a time stay in the processor's cache.
    pub(super) fn changes<S: Sync>(&mut self, sources: &[S], item: impl Fn(&S) -> Option<Item> + Sync) -> u64 {
        self.tell_said();
        let pieces = over_pieces(sources, |piece| {
            let mut count = 0;
            let told = (self.tell)(&mut piece.iter().filter_map(&item).inspect(|_| count += 1));
            (count, told)
        });
        let mut count = 0;
        for (piece_count, told) in pieces {
            count += piece_count;
            self.told.push(told);
        }
        self.room = self.room.saturating_sub(count);
        count as u64
    }

    fn tell_said(&mut self) {
        if !self.said.is_empty() {
            self.told.push((self.tell)(&mut self.said.drain(..)));
        }
    }

    pub(super) fn finish(mut self) -> Vec<T> {
        self.tell_said();
        self.told
    }
}
