//! Changes to packed chunks that have not been folded into them yet.
//!
//! A chunk is immutable. A lookup first asks the chunk's [`ChunkDelta`] whether the row was
//! replaced or deleted. The maps are persistent: a change copies only the path to the changed node,
//! and snapshots share the rest.

use std::sync::{Arc, LazyLock};

use imbl::OrdMap;

use super::confirmations::{Confirmation, Confirmations};
use super::decoding::without_large_object;
use crate::model::{Record, Sequence, SourceStamp};
use crate::pack::Chunk;
use crate::view::collections::paged_vector::PagedVector;

/// New record of a row, or `None` if its key was deleted.
pub(in crate::view) type RowChange = Option<Arc<Record>>;

/// Current state of one row of a chunk.
#[derive(Debug, Clone, Copy)]
pub(in crate::view) enum RowState<'a> {
    Packed,
    Replaced(&'a Arc<Record>),
    Deleted,
}

/// Changes to one chunk since it was packed.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct ChunkDelta {
    /// Replaced and deleted rows, by row number.
    changes: OrdMap<usize, RowChange>,
    pub(super) deleted_row_count: usize,
    /// Lowest and highest sequence of all records that have replaced a row, even if they were
    /// replaced again.
    sequences: Option<(Sequence, Sequence)>,
    /// Number of keys inserted between this chunk's lowest key and the next chunk's.
    inserted_count: usize,
    confirmations: Option<Arc<Confirmations>>,
}

/// Deltas by chunk number. Cloning makes a snapshot in constant time.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct ChunkDeltas {
    by_chunk: PagedVector<ChunkDelta>,
    /// Number of replaced rows in all chunks.
    pub(super) replacement_count: usize,
    /// Number of deleted rows in all chunks.
    pub(super) deleted_row_count: usize,
    /// Number of rows in all chunks with a newer revision and lease.
    pub(super) restamped_count: usize,
}

impl<'a> From<Option<&'a RowChange>> for RowState<'a> {
    fn from(change: Option<&'a RowChange>) -> Self {
        match change {
            None => Self::Packed,
            Some(None) => Self::Deleted,
            Some(Some(record)) => Self::Replaced(record),
        }
    }
}

impl ChunkDelta {
    pub(in crate::view) fn row_state(&self, row: usize) -> RowState<'_> {
        self.changes.get(&row).into()
    }

    /// Iterates over the replaced and deleted rows, in order.
    pub(in crate::view) fn changed_rows(&self) -> impl Iterator<Item = (usize, RowState<'_>)> {
        self.changes.iter().map(|(row, change)| (*row, Some(change).into()))
    }

    /// Iterates over the replaced rows, in order.
    pub(super) fn replacements(&self) -> impl Iterator<Item = (usize, &Arc<Record>)> {
        self.changes.iter().filter_map(|(row, change)| Some((*row, change.as_ref()?)))
    }

    /// Returns whether a replaced row may have a sequence between `after` and `before`. `false` is
    /// certain.
    pub(super) fn may_have_sequence_between(&self, after: Sequence, before: Sequence) -> bool {
        self.sequences.is_some_and(|(lowest, highest)| highest > after && lowest < before)
    }

    fn replacement_count(&self) -> usize {
        self.changes.len() - self.deleted_row_count
    }

    /// Returns whether the chunk has no changes and no confirmations.
    pub(in crate::view) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.confirmations.is_none()
    }

    /// Returns the number of the last list that contained a row; 0 if none did.
    pub(in crate::view) fn generation(&self, row: usize) -> u64 {
        self.confirmations.as_ref().map_or(0, |confirmations| confirmations.generation(row))
    }

    /// Returns the revision and lease of the newest put with equal bytes.
    pub(in crate::view) fn source(&self, row: usize) -> Option<SourceStamp> {
        self.confirmations.as_ref().and_then(|confirmations| confirmations.source(row))
    }

    /// Returns the number of rows with a newer revision and lease.
    fn restamped_count(&self) -> usize {
        self.confirmations.as_deref().map_or(0, Confirmations::source_count)
    }

    /// Returns the number of changes that folding would pack: replaced, deleted and inserted rows.
    /// A new revision and lease use a twentieth of the memory of a record and count accordingly.
    pub(super) fn dirty_rows(&self) -> usize {
        self.changes.len() + self.inserted_count + self.restamped_count() / 20
    }

    /// Replaces a row, or deletes it.
    fn put(&mut self, row: usize, change: RowChange) {
        if let Some(sequence) = change.as_ref().map(|record| record.last_sequence) {
            let (lowest, highest) = self.sequences.unwrap_or((sequence, sequence));
            self.sequences = Some((lowest.min(sequence), highest.max(sequence)));
        }
        self.deleted_row_count += usize::from(change.is_none());
        let before = self.changes.insert(row, change);
        self.deleted_row_count -= usize::from(matches!(before, Some(None)));
        if before.is_none() && self.confirmations.as_ref().is_some_and(|confirmations| confirmations.is_unconfirmed(row)) {
            self.confirmations_mut().forget_unconfirmed();
        }
    }

    fn confirmations_mut(&mut self) -> &mut Confirmations {
        Arc::make_mut(self.confirmations.get_or_insert_default())
    }
}

impl ChunkDeltas {
    pub(in crate::view) fn get(&self, chunk: usize) -> &ChunkDelta {
        static NOTHING: LazyLock<ChunkDelta> = LazyLock::new(ChunkDelta::default);
        self.by_chunk.get(chunk).unwrap_or(&NOTHING)
    }

    /// Adds the delta of a new chunk: confirmations of its unchanged rows, and changes of the
    /// others.
    pub(in crate::view) fn add(&mut self, number: usize, chunk: &Chunk, rows: &[Confirmation], changes: Vec<(usize, RowChange)>) {
        for (row, change) in changes {
            self.put(number, row, change);
        }
        if let Some(confirmations) = Confirmations::from_rows(chunk, rows) {
            self.restamped_count += confirmations.source_count();
            self.by_chunk.get_mut(number).confirmations = Some(Arc::new(confirmations));
        }
    }

    /// Removes the delta of a chunk.
    pub(in crate::view) fn remove(&mut self, number: usize) -> ChunkDelta {
        let delta = std::mem::take(self.by_chunk.get_mut(number));
        self.replacement_count -= delta.replacement_count();
        self.deleted_row_count -= delta.deleted_row_count;
        self.restamped_count -= delta.restamped_count();
        delta
    }

    /// Replaces a row of a chunk, or deletes it.
    pub(in crate::view) fn put(&mut self, chunk: usize, row: usize, change: RowChange) {
        let delta = self.by_chunk.get_mut(chunk);
        self.replacement_count -= delta.replacement_count();
        self.deleted_row_count -= delta.deleted_row_count;
        delta.put(row, change.map(without_large_object));
        self.replacement_count += delta.replacement_count();
        self.deleted_row_count += delta.deleted_row_count;
    }

    /// Records that the list `generation` contained a row of a chunk with `rows` rows.
    pub(in crate::view) fn confirm(&mut self, chunk: usize, row: usize, generation: u64, rows: usize) {
        if self.get(chunk).generation(row) != generation {
            let delta = self.by_chunk.get_mut(chunk);
            let unchanged = rows - delta.changes.len();
            delta.confirmations_mut().confirm(row, generation, rows, unchanged);
        }
    }

    /// Records the revision and lease of a put with equal bytes.
    pub(super) fn put_source(&mut self, chunk: usize, row: usize, source: SourceStamp, rows: usize) {
        let delta = self.by_chunk.get_mut(chunk);
        self.restamped_count += usize::from(delta.source(row).is_none());
        delta.confirmations_mut().put_source(row, source, rows);
    }

    /// Counts a new key in the range of a chunk.
    pub(in crate::view) fn count_insertion(&mut self, chunk: usize) {
        self.by_chunk.get_mut(chunk).inserted_count += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::view::tests::bare_record;

    /// For each chunk and row, the sequence of the record that replaced the row, or `None` if it
    /// was deleted.
    type ExpectedRows = BTreeMap<(usize, usize), Option<u64>>;

    fn sequence_of(row: RowState<'_>) -> Option<Option<u64>> {
        match row {
            RowState::Packed => None,
            RowState::Deleted => Some(None),
            RowState::Replaced(record) => Some(Some(record.last_sequence.0)),
        }
    }

    fn assert_same(deltas: &ChunkDeltas, expected_rows: &ExpectedRows, context: &str) {
        for chunk in 0..3 {
            let delta = deltas.get(chunk);
            let expected: Vec<(usize, Option<u64>)> =
                expected_rows.iter().filter(|((number, _), _)| *number == chunk).map(|((_, row), change)| (*row, *change)).collect();
            let found: Vec<(usize, Option<u64>)> = delta.changed_rows().filter_map(|(row, now)| Some((row, sequence_of(now)?))).collect();
            assert_eq!(found, expected, "{context}, chunk {chunk}");
            let replaced: Vec<u64> = expected.iter().filter_map(|(_, change)| *change).collect();
            assert_eq!(
                (delta.dirty_rows(), delta.deleted_row_count),
                (expected.len(), expected.len() - replaced.len()),
                "{context}, chunk {chunk}"
            );
            for row in 0..300 {
                let expected = expected_rows.get(&(chunk, row)).copied();
                assert_eq!(sequence_of(delta.row_state(row)), expected, "{context}, chunk {chunk}, row {row}");
            }
            for sequence in replaced {
                assert!(delta.may_have_sequence_between(Sequence(sequence - 1), Sequence(sequence + 1)), "{context}, chunk {chunk}");
            }
        }
        let replaced = expected_rows.values().flatten().count();
        assert_eq!((deltas.replacement_count, deltas.deleted_row_count), (replaced, expected_rows.len() - replaced), "{context}");
    }

    /// Covers snapshots that stay, snapshots that change on their own, many rows that change once,
    /// and few rows that change often.
    #[test]
    fn snapshots_are_independent() {
        for seed in 0..20 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut deltas, mut expected_rows, mut snapshots) = (ChunkDeltas::default(), ExpectedRows::new(), Vec::new());
            for step in 1..1_500 {
                let (chunk, row) = (random.random_range(0..3), random.random_range(0..if step % 500 < 250 { 300 } else { 20 }));
                if random.random_bool(0.7) {
                    deltas.put(chunk, row, Some(bare_record(7, step)));
                    expected_rows.insert((chunk, row), Some(step));
                } else {
                    deltas.put(chunk, row, None);
                    expected_rows.insert((chunk, row), None);
                }
                match random.random_range(0..60) {
                    0..4 => snapshots.push((deltas.clone(), expected_rows.clone())),
                    4 => {
                        (deltas, expected_rows) =
                            snapshots.get(random.random_range(0..=snapshots.len())).cloned().unwrap_or((deltas, expected_rows))
                    }
                    _ => {}
                }
            }
            snapshots.push((deltas, expected_rows));
            for (version, (deltas, expected_rows)) in snapshots.iter().enumerate() {
                assert_same(deltas, expected_rows, &format!("seed {seed}, version {version}"));
            }
        }
    }

    #[test]
    fn generations_are_kept_per_row_until_all_rows_agree() {
        let mut deltas = ChunkDeltas::default();
        let is_compact = |deltas: &ChunkDeltas| deltas.get(0).confirmations.as_deref().is_some_and(Confirmations::is_compact);
        (0..2).for_each(|row| deltas.confirm(0, row, 7, 3));
        assert!(!is_compact(&deltas));
        deltas.put(0, 2, None);
        assert!(is_compact(&deltas));
        assert_eq!((deltas.get(0).generation(0), deltas.get(0).generation(1)), (7, 7));
    }

    #[test]
    fn repeated_changes_of_a_row_use_constant_memory() {
        let mut deltas = ChunkDeltas::default();
        for (row, sequence) in [0, 1, 2].into_iter().cycle().zip(0..100_000) {
            deltas.put(0, row, Some(bare_record(7, sequence)));
        }
        let delta = deltas.get(0);
        assert_eq!(delta.changes.len(), 3);
        assert_same(&deltas, &[((0, 0), Some(99_999)), ((0, 1), Some(99_997)), ((0, 2), Some(99_998))].into(), "at the end");
    }
}
