//! Unpacked records of keys that have no row in any chunk, until they are folded.
//!
//! The records are in two persistent maps, by key and by sequence. The second map is for replays,
//! which would otherwise scan all records, some tens of thousands, for each batch of a few
//! thousand. The rare query for the ipcache entries of an identity scans all records.

use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::RangedIter;
use imbl::shared_ptr::DefaultSharedPtr;

use super::decoding::{names_identity, without_large_object};
use crate::model::{EntryKey, Record, Sequence};

/// Records by key and by sequence.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct Overlay {
    by_key: OrdMap<EntryKey, Arc<Record>>,
    by_sequence: OrdMap<Sequence, Arc<Record>>,
}

/// Records in key order, with their keys.
pub(in crate::view) type OverlayRecords<'a> = RangedIter<'a, EntryKey, Arc<Record>, DefaultSharedPtr>;

impl Overlay {
    pub(in crate::view) fn get(&self, key: &EntryKey) -> Option<&Arc<Record>> {
        self.by_key.get(key)
    }

    /// Inserts a record. Replaces the one with the same key.
    pub(in crate::view) fn insert(&mut self, record: Arc<Record>) {
        let record = without_large_object(record);
        let sequence = record.last_sequence;
        self.by_sequence.insert(sequence, Arc::clone(&record));
        if let Some(replaced) = self.by_key.insert(record.key.clone(), record)
            && replaced.last_sequence != sequence
        {
            self.by_sequence.remove(&replaced.last_sequence);
        }
    }

    pub(in crate::view) fn remove(&mut self, key: &EntryKey) -> Option<Arc<Record>> {
        let record = self.by_key.remove(key)?;
        self.by_sequence.remove(&record.last_sequence);
        Some(record)
    }

    /// Iterates over the records from a key on, in key order.
    pub(in crate::view) fn from(&self, start: &EntryKey) -> OverlayRecords<'_> {
        self.by_key.range(start.clone()..)
    }

    /// Returns the number of keys from `start` up to but not including `end`.
    pub(in crate::view) fn count_between(&self, start: &EntryKey, end: &EntryKey) -> usize {
        self.by_key.range(start.clone()..end.clone()).count()
    }

    /// Iterates over the records that changed between two sequences, in order of sequence.
    pub(in crate::view) fn changed_between(&self, after: Sequence, before: Sequence) -> impl Iterator<Item = (Sequence, &Arc<Record>)> {
        let range = (after.next() < before).then(|| self.by_sequence.range(after.next()..before));
        range.into_iter().flatten().map(|(sequence, record)| (*sequence, record))
    }

    /// Iterates over the ipcache entries that name an identity, from a key on, in key order.
    pub(in crate::view) fn ip_entries_of_identity(&self, identity: u32, start: &EntryKey) -> impl Iterator<Item = &Arc<Record>> {
        self.from(start).map(|(_, record)| record).filter(move |record| names_identity(record, identity))
    }

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
    fn changes_between_two_sequences_are_found() {
        for seed in 0..50 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut overlay, mut reference, mut sequence) = (Overlay::default(), BTreeMap::new(), 1);
            for _ in 0..200 {
                let name = random.random_range(0..20);
                sequence += random.random_range(1..4);
                if random.random_bool(0.5) {
                    overlay.insert(bare_record(name, sequence));
                    reference.insert(name, sequence);
                } else {
                    let removed = overlay.remove(&bare_record(name, 0).key).map(|record| record.last_sequence.0);
                    assert_eq!(removed, reference.remove(&name), "seed {seed}");
                }
                let (above, below) = (random.random_range(0..=sequence), random.random_range(0..=sequence + 1));
                let found: Vec<u64> = overlay.changed_between(Sequence(above), Sequence(below)).map(|(sequence, _)| sequence.0).collect();
                let mut expected: Vec<u64> = reference.values().copied().filter(|one| *one > above && *one < below).collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "seed {seed}: between {above} and {below}");
                assert_eq!(overlay.by_sequence.len(), overlay.len(), "seed {seed}: both maps have the same records");
            }
        }
    }
}
