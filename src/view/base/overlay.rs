//! Records of keys that no chunk has: whole, with their objects, until they are folded into chunks.
//!
//! Two ordered maps of pointers, by key and by sequence: the second is only for readers that replay, which would else look at some tens of
//! thousands of records for each few thousand that they tell. What is asked seldom, the ip entries of an identity, looks at all of them.

use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::RangedIter;
use imbl::shared_ptr::DefaultSharedPtr;

use super::decoding::{kept, names};
use crate::model::{EntryKey, Record, Sequence};

/// Records that stand above the base.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct Overlay {
    by_key: OrdMap<EntryKey, Arc<Record>>,
    by_sequence: OrdMap<Sequence, Arc<Record>>,
}

/// Records in key order, each with its key.
pub(in crate::view) type Fresh<'a> = RangedIter<'a, EntryKey, Arc<Record>, DefaultSharedPtr>;

impl Overlay {
    /// The record of a key.
    pub(in crate::view) fn get(&self, key: &EntryKey) -> Option<&Arc<Record>> {
        self.by_key.get(key)
    }

    /// Puts a record in place of the one of its key, if there is one.
    pub(in crate::view) fn insert(&mut self, record: Arc<Record>) {
        let record = kept(record);
        let sequence = record.last_sequence;
        self.by_sequence.insert(sequence, Arc::clone(&record));
        if let Some(replaced) = self.by_key.insert(record.key.clone(), record)
            && replaced.last_sequence != sequence
        {
            self.by_sequence.remove(&replaced.last_sequence);
        }
    }

    /// Takes the record of a key out.
    pub(in crate::view) fn remove(&mut self, key: &EntryKey) -> Option<Arc<Record>> {
        let record = self.by_key.remove(key)?;
        self.by_sequence.remove(&record.last_sequence);
        Some(record)
    }

    /// Records from a key on, in key order, each with its key.
    pub(in crate::view) fn from(&self, start: &EntryKey) -> Fresh<'_> {
        self.by_key.range(start.clone()..)
    }

    /// How many there are from a key on and below another.
    pub(in crate::view) fn count_within(&self, start: &EntryKey, end: &EntryKey) -> usize {
        self.by_key.range(start.clone()..end.clone()).count()
    }

    /// Records that changed between two sequences, in order.
    pub(in crate::view) fn within(&self, above: Sequence, below: Sequence) -> impl Iterator<Item = (Sequence, &Arc<Record>)> {
        let range = (above.next() < below).then(|| self.by_sequence.range(above.next()..below));
        range.into_iter().flatten().map(|(sequence, record)| (*sequence, record))
    }

    /// The ip entries that name an identity, from a key on, in key order.
    pub(in crate::view) fn of_identity(&self, identity: u32, start: &EntryKey) -> impl Iterator<Item = &Arc<Record>> {
        self.from(start).map(|(_, record)| record).filter(move |record| names(record, identity))
    }

    /// How many records there are.
    pub(in crate::view) fn len(&self) -> usize {
        self.by_key.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::view::tests::bare_record;

    #[test]
    fn what_changed_between_two_sequences_is_found_whatever_came_and_went() {
        for seed in 0..50 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut overlay, mut naive, mut sequence) = (Overlay::default(), BTreeMap::new(), 1);
            for _ in 0..200 {
                let name = random.random_range(0..20);
                sequence += random.random_range(1..4);
                if random.random_bool(0.5) {
                    overlay.insert(bare_record(name, sequence));
                    naive.insert(name, sequence);
                } else {
                    let removed = overlay.remove(&bare_record(name, 0).key).map(|record| record.last_sequence.0);
                    assert_eq!(removed, naive.remove(&name), "seed {seed}");
                }
                let (above, below) = (random.random_range(0..=sequence), random.random_range(0..=sequence + 1));
                let found: Vec<u64> = overlay.within(Sequence(above), Sequence(below)).map(|(sequence, _)| sequence.0).collect();
                let mut expected: Vec<u64> = naive.values().copied().filter(|one| *one > above && *one < below).collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "seed {seed}: between {above} and {below}");
                assert_eq!(overlay.by_sequence.len(), overlay.len(), "seed {seed}: nothing stays behind");
            }
        }
    }
}
