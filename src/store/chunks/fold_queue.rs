//! The order in which chunks with pending changes are folded.
//!
//! Chunks are folded round after round in the order of their slots, so no chunk waits longer than
//! one round. Chunks that are neighbours in sled's log are then rewritten at about the same time,
//! and in the order in which sled moves pages out of segments that are half free
//! (`pagecache/segment.rs`, `SegmentCleaner::pop`). sled then finds that they have moved already.
//! When chunks were folded by age, three of four writes of sled moved a chunk that was rewritten
//! soon afterwards.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::store::encoding::stored_value::KeyBytes;
use crate::store::engine::slots::Slot;

/// Chunks with pending changes. Each chunk is identified by the lower bound of its range.
#[derive(Debug, Default)]
pub(in crate::store) struct FoldQueue {
    /// Each chunk with the first group that it does not contain.
    by_age: BTreeSet<(u64, KeyBytes)>,
    /// Each chunk with its first slot.
    by_slot: BTreeSet<(Option<Slot>, KeyBytes)>,
    /// Chunk that [`Self::next`] returned last.
    last_returned: (Option<Slot>, KeyBytes),
}

impl FoldQueue {
    pub(in crate::store) fn insert(&mut self, since: u64, slots: &[Slot], low: &KeyBytes) {
        self.by_age.insert((since, low.clone()));
        self.by_slot.insert((slots.first().copied(), low.clone()));
    }

    pub(in crate::store) fn remove(&mut self, since: u64, slots: &[Slot], low: &KeyBytes) {
        self.by_age.remove(&(since, low.clone()));
        self.by_slot.remove(&(slots.first().copied(), low.clone()));
    }

    pub(in crate::store) fn len(&self) -> usize {
        self.by_age.len()
    }

    pub(in crate::store) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// Returns the first group that is not in all chunks.
    pub(in crate::store) fn first_missing_group(&self) -> Option<u64> {
        self.by_age.first().map(|(since, _)| *since)
    }

    /// Returns the next chunk and advances the round.
    pub(in crate::store) fn next(&mut self) -> Option<KeyBytes> {
        let after = (Bound::Excluded(&self.last_returned), Bound::Unbounded);
        let next = self.by_slot.range(after).next().or_else(|| self.by_slot.first())?.clone();
        self.last_returned = next;
        Some(self.last_returned.1.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::engine::slots::SlotKind;

    #[test]
    fn chunks_are_folded_in_the_order_of_their_slots() {
        let (mut queue, slot) = (FoldQueue::default(), |number| [Slot { kind: SlotKind::Chunk, number }]);
        let low = |name: &str| KeyBytes::from(name.as_bytes());
        for (since, number, name) in [(5, 2, "a"), (4, 0, "b"), (6, 9, "c"), (7, 1, "d")] {
            queue.insert(since, &slot(number), &low(name));
        }
        let two: Vec<Option<KeyBytes>> = (0..2).map(|_| queue.next()).collect();
        assert_eq!(two, [Some(low("b")), Some(low("d"))]);
        assert_eq!((queue.len(), queue.first_missing_group()), (4, Some(4)));
        queue.remove(4, &slot(0), &low("b"));
        queue.remove(7, &slot(1), &low("d"));
        // changed again before the round ends
        queue.insert(8, &slot(0), &low("b"));
        let four: Vec<Option<KeyBytes>> = (0..4).map(|_| queue.next()).collect();
        assert_eq!(four, [Some(low("a")), Some(low("c")), Some(low("b")), Some(low("a"))]);
        assert_eq!((queue.len(), queue.first_missing_group(), queue.is_empty()), (3, Some(5), false));
        assert_eq!((FoldQueue::default().next(), FoldQueue::default().first_missing_group()), (None, None));
    }
}
