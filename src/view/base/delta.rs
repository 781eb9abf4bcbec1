//! The deltas of chunks: for each chunk the rows that were replaced or deleted since it was built, and the listings, revisions and leases of
//! other rows (`stamps`).
//!
//! All of it is in persistent maps: a change copies the few nodes on its way, and the versions of the mirror share the rest.

use std::sync::{Arc, LazyLock};

use imbl::OrdMap;

use super::decoding::kept;
use super::stamps::{Settled, Stamps};
use crate::model::{Record, Sequence, SourceStamp};
use crate::pack::Chunk;
use crate::view::collections::paged_vector::PagedVector;

/// A change of a row: the record that replaces it; `None` where its key was deleted.
pub(in crate::view) type Change = Option<Arc<Record>>;

/// What a row is now.
#[derive(Debug, Clone, Copy)]
pub(in crate::view) enum Row<'a> {
    /// As it was packed.
    Packed,
    /// A record stands for it.
    Replaced(&'a Arc<Record>),
    /// Its key is gone.
    Gone,
}

/// The delta of one chunk.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct ChunkDelta {
    /// The rows that are not as they were packed.
    changes: OrdMap<usize, Change>,
    /// How many of these are gone.
    gone_count: usize,
    /// The lowest and the highest sequence of the records that stand, or stood, for rows.
    sequences: Option<(Sequence, Sequence)>,
    /// How many new keys between the chunk's first and the next chunk's first came since.
    inserted_count: usize,
    stamps: Option<Arc<Stamps>>,
}

/// The deltas of all chunks, by number. Cloning makes a snapshot.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct ChunkDeltas {
    by_chunk: PagedVector<ChunkDelta>,
    /// How many records stand for rows.
    replacement_count: usize,
    /// How many rows are gone.
    gone_count: usize,
    /// How many rows have a revision and lease beside their chunk.
    stamped_count: usize,
}

impl<'a> From<Option<&'a Change>> for Row<'a> {
    fn from(change: Option<&'a Change>) -> Self {
        match change {
            None => Self::Packed,
            Some(None) => Self::Gone,
            Some(Some(record)) => Self::Replaced(record),
        }
    }
}

impl ChunkDelta {
    /// What a row is now.
    pub(in crate::view) fn at(&self, row: usize) -> Row<'_> {
        self.changes.get(&row).into()
    }

    /// Every row that is not as it was packed, in order.
    pub(in crate::view) fn rows(&self) -> impl Iterator<Item = (usize, Row<'_>)> {
        self.changes.iter().map(|(row, change)| (*row, Some(change).into()))
    }

    /// Every record that stands for a row, in order of row.
    pub(super) fn replacements(&self) -> impl Iterator<Item = (usize, &Arc<Record>)> {
        self.changes.iter().filter_map(|(row, change)| Some((*row, change.as_ref()?)))
    }

    /// Whether a record that stands for a row may have a sequence between two. False is certain.
    pub(super) fn has_replacements_within(&self, above: Sequence, below: Sequence) -> bool {
        self.sequences.is_some_and(|(lowest, highest)| highest > above && lowest < below)
    }

    /// How many rows are gone.
    pub(in crate::view) fn gone_count(&self) -> usize {
        self.gone_count
    }

    /// For how many rows a record stands.
    fn replacement_count(&self) -> usize {
        self.changes.len() - self.gone_count
    }

    /// Whether nothing is beside the chunk.
    pub(in crate::view) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.stamps.is_none()
    }

    /// The last listing that had a row.
    pub(in crate::view) fn generation(&self, row: usize) -> u64 {
        self.stamps.as_ref().map_or(0, |stamps| stamps.generation(row))
    }

    /// The revision and lease that equal bytes of a row came with.
    pub(in crate::view) fn source(&self, row: usize) -> Option<SourceStamp> {
        self.stamps.as_ref().and_then(|stamps| stamps.source(row))
    }

    /// How many rows have a revision and lease here.
    fn stamped_count(&self) -> usize {
        self.stamps.as_deref().map_or(0, Stamps::source_count)
    }

    /// How much folding the chunk would gain. A stamp takes a twentieth of a record's room.
    pub(super) fn dirt(&self) -> usize {
        self.changes.len() + self.inserted_count + self.stamped_count() / 20
    }

    /// Puts a record in place of a row, or takes the row away.
    fn put(&mut self, row: usize, change: Change) {
        if let Some(sequence) = change.as_ref().map(|record| record.last_sequence) {
            let (lowest, highest) = self.sequences.unwrap_or((sequence, sequence));
            self.sequences = Some((lowest.min(sequence), highest.max(sequence)));
        }
        self.gone_count += usize::from(change.is_none());
        let before = self.changes.insert(row, change);
        self.gone_count -= usize::from(matches!(before, Some(None)));
        if before.is_none() && self.stamps.as_ref().is_some_and(|stamps| stamps.is_behind(row)) {
            self.stamps_mut().drop_behind();
        }
    }

    fn stamps_mut(&mut self) -> &mut Stamps {
        Arc::make_mut(self.stamps.get_or_insert_default())
    }
}

impl ChunkDeltas {
    /// What is beside the chunk of a number.
    pub(in crate::view) fn at(&self, chunk: usize) -> &ChunkDelta {
        static NOTHING: LazyLock<ChunkDelta> = LazyLock::new(ChunkDelta::default);
        self.by_chunk.get(chunk).unwrap_or(&NOTHING)
    }

    /// Notes what is beside a new chunk: of the rows that are as they were packed what the source said, of each other what it became.
    pub(in crate::view) fn add(&mut self, number: usize, chunk: &Chunk, rows: &[Settled], changes: Vec<(usize, Change)>) {
        for (row, change) in changes {
            self.put(number, row, change);
        }
        if let Some(stamps) = Stamps::of(chunk, rows) {
            self.stamped_count += stamps.source_count();
            self.by_chunk.change(number).stamps = Some(Arc::new(stamps));
        }
    }

    /// Takes what is beside a chunk away.
    pub(in crate::view) fn remove(&mut self, number: usize) -> ChunkDelta {
        let side = std::mem::take(self.by_chunk.change(number));
        self.replacement_count -= side.replacement_count();
        self.gone_count -= side.gone_count;
        self.stamped_count -= side.stamped_count();
        side
    }

    /// Puts a record in place of a row, or takes the row away, whatever became of it before.
    pub(in crate::view) fn put(&mut self, chunk: usize, row: usize, change: Change) {
        let side = self.by_chunk.change(chunk);
        self.replacement_count -= side.replacement_count();
        self.gone_count -= side.gone_count;
        side.put(row, change.map(kept));
        self.replacement_count += side.replacement_count();
        self.gone_count += side.gone_count;
    }

    /// Notes the listing that confirms a row of a chunk of so many.
    pub(in crate::view) fn confirm(&mut self, chunk: usize, row: usize, generation: u64, rows: usize) {
        if self.at(chunk).generation(row) != generation {
            let side = self.by_chunk.change(chunk);
            let live = rows - side.changes.len();
            side.stamps_mut().confirm(row, generation, rows, live);
        }
    }

    /// Notes the revision and lease that equal bytes of a row came with.
    pub(super) fn put_source(&mut self, chunk: usize, row: usize, source: SourceStamp, rows: usize) {
        let side = self.by_chunk.change(chunk);
        self.stamped_count += usize::from(side.source(row).is_none());
        side.stamps_mut().put_source(row, source, rows);
    }

    /// Counts a key that came to live between the rows of a chunk.
    pub(in crate::view) fn count_insert(&mut self, chunk: usize) {
        self.by_chunk.change(chunk).inserted_count += 1;
    }

    /// How many rows have a revision and lease beside their chunk.
    pub(in crate::view) fn stamped_count(&self) -> usize {
        self.stamped_count
    }

    /// How many rows are gone.
    pub(in crate::view) fn gone_count(&self) -> usize {
        self.gone_count
    }

    /// How many records stand for rows.
    pub(in crate::view) fn replacement_count(&self) -> usize {
        self.replacement_count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::view::tests::bare_record;

    /// By chunk and row: the sequence of what stands for it, if anything does.
    type Naive = BTreeMap<(usize, usize), Option<u64>>;

    fn sequence_of(row: Row<'_>) -> Option<Option<u64>> {
        match row {
            Row::Packed => None,
            Row::Gone => Some(None),
            Row::Replaced(record) => Some(Some(record.last_sequence.0)),
        }
    }

    fn assert_same(sides: &ChunkDeltas, naive: &Naive, what: &str) {
        for chunk in 0..3 {
            let side = sides.at(chunk);
            let expected: Vec<(usize, Option<u64>)> =
                naive.iter().filter(|((at, _), _)| *at == chunk).map(|((_, row), change)| (*row, *change)).collect();
            let found: Vec<(usize, Option<u64>)> = side.rows().filter_map(|(row, now)| Some((row, sequence_of(now)?))).collect();
            assert_eq!(found, expected, "{what}, chunk {chunk}");
            let replaced: Vec<u64> = expected.iter().filter_map(|(_, change)| *change).collect();
            assert_eq!((side.dirt(), side.gone_count()), (expected.len(), expected.len() - replaced.len()), "{what}, chunk {chunk}");
            for row in 0..300 {
                let expected = naive.get(&(chunk, row)).copied();
                assert_eq!(sequence_of(side.at(row)), expected, "{what}, chunk {chunk}, row {row}");
            }
            for sequence in replaced {
                assert!(side.has_replacements_within(Sequence(sequence - 1), Sequence(sequence + 1)), "{what}, chunk {chunk}");
            }
        }
        let replaced = naive.values().flatten().count();
        assert_eq!((sides.replacement_count(), sides.gone_count()), (replaced, naive.len() - replaced), "{what}");
    }

    /// Copies that stay as they are, and copies of which each goes on by itself; many rows that change once, and few that change often.
    #[test]
    fn every_version_knows_what_became_of_the_rows_and_nothing_of_what_others_did() {
        for seed in 0..20 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut sides, mut naive, mut kept) = (ChunkDeltas::default(), Naive::new(), Vec::new());
            for step in 1..1_500 {
                let (chunk, row) = (random.random_range(0..3), random.random_range(0..if step % 500 < 250 { 300 } else { 20 }));
                if random.random_bool(0.7) {
                    sides.put(chunk, row, Some(bare_record(7, step)));
                    naive.insert((chunk, row), Some(step));
                } else {
                    sides.put(chunk, row, None);
                    naive.insert((chunk, row), None);
                }
                match random.random_range(0..60) {
                    0..4 => kept.push((sides.clone(), naive.clone())),
                    4 => (sides, naive) = kept.get(random.random_range(0..=kept.len())).cloned().unwrap_or((sides, naive)),
                    _ => {}
                }
            }
            kept.push((sides, naive));
            for (at, (sides, naive)) in kept.iter().enumerate() {
                assert_same(sides, naive, &format!("seed {seed}, version {at}"));
            }
        }
    }

    #[test]
    fn listings_are_kept_by_row_until_each_row_was_confirmed_or_changed() {
        let mut sides = ChunkDeltas::default();
        let settled = |sides: &ChunkDeltas| sides.at(0).stamps.as_deref().is_some_and(Stamps::is_settled);
        (0..2).for_each(|row| sides.confirm(0, row, 7, 3));
        assert!(!settled(&sides));
        sides.put(0, 2, None);
        assert!(settled(&sides));
        assert_eq!((sides.at(0).generation(0), sides.at(0).generation(1)), (7, 7));
    }

    #[test]
    fn a_row_that_changes_all_the_time_takes_no_more_room_for_that() {
        let mut sides = ChunkDeltas::default();
        for (row, sequence) in [0, 1, 2].into_iter().cycle().zip(0..100_000) {
            sides.put(0, row, Some(bare_record(7, sequence)));
        }
        let side = sides.at(0);
        assert_eq!(side.changes.len(), 3);
        assert_same(&sides, &[((0, 0), Some(99_999)), ((0, 1), Some(99_997)), ((0, 2), Some(99_998))].into(), "at the end");
    }
}
