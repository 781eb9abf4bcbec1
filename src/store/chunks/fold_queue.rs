//! Which chunks the log has something for, and which of them is folded next.
//!
//! They are folded in the order of their slots, round and round, so none waits longer than a round, as in the order of age. What lies in one
//! segment of sled's log is then written anew at about the same time, and in the order in which sled looks for what to move as half of a
//! segment is free (`pagecache/segment.rs`, `SegmentCleaner::pop`: the lowest page first, one with each write). It finds that to have moved by
//! itself; in the order of age three of four writes moved a chunk that was soon written anew.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::store::encoding::change::Key;
use crate::store::engine::slots::Slot;

/// The chunks that the log has something for, by where their ranges begin.
#[derive(Debug, Default)]
pub(in crate::store) struct FoldQueue {
    /// Each with the first group that is not in it.
    by_age: BTreeSet<(u64, Key)>,
    /// Each with its first slot.
    by_slot: BTreeSet<(Option<Slot>, Key)>,
    /// Up to which the present round has come.
    reached: (Option<Slot>, Key),
}

impl FoldQueue {
    /// Adds a chunk that was not there.
    pub(in crate::store) fn insert(&mut self, since: u64, slots: &[Slot], low: &Key) {
        self.by_age.insert((since, low.clone()));
        self.by_slot.insert((slots.first().copied(), low.clone()));
    }

    /// Removes a chunk.
    pub(in crate::store) fn remove(&mut self, since: u64, slots: &[Slot], low: &Key) {
        self.by_age.remove(&(since, low.clone()));
        self.by_slot.remove(&(slots.first().copied(), low.clone()));
    }

    pub(in crate::store) fn len(&self) -> usize {
        self.by_age.len()
    }

    pub(in crate::store) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// The first group that is not in all chunks.
    pub(in crate::store) fn oldest(&self) -> Option<u64> {
        self.by_age.first().map(|(since, _)| *since)
    }

    /// The chunk that is to be folded next, and goes on from there the next time.
    pub(in crate::store) fn next(&mut self) -> Option<Key> {
        let behind = (Bound::Excluded(&self.reached), Bound::Unbounded);
        let next = self.by_slot.range(behind).next().or_else(|| self.by_slot.first())?.clone();
        self.reached = next;
        Some(self.reached.1.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::engine::slots::SlotKind;

    #[test]
    fn chunks_take_turns_in_the_order_of_their_slots() {
        let (mut dirty, slot) = (FoldQueue::default(), |number| [Slot { kind: SlotKind::Chunk, number }]);
        let low = |name: &str| Key::from(name.as_bytes());
        for (since, number, name) in [(5, 2, "a"), (4, 0, "b"), (6, 9, "c"), (7, 1, "d")] {
            dirty.insert(since, &slot(number), &low(name));
        }
        let two: Vec<Option<Key>> = (0..2).map(|_| dirty.next()).collect();
        assert_eq!(two, [Some(low("b")), Some(low("d"))]);
        assert_eq!((dirty.len(), dirty.oldest()), (4, Some(4)));
        dirty.remove(4, &slot(0), &low("b"));
        dirty.remove(7, &slot(1), &low("d"));
        // dirty again, before the round is over
        dirty.insert(8, &slot(0), &low("b"));
        let four: Vec<Option<Key>> = (0..4).map(|_| dirty.next()).collect();
        assert_eq!(four, [Some(low("a")), Some(low("c")), Some(low("b")), Some(low("a"))]);
        assert_eq!((dirty.len(), dirty.oldest(), dirty.is_empty()), (3, Some(5), false));
        assert_eq!((FoldQueue::default().next(), FoldQueue::default().oldest()), (None, None));
    }
}
