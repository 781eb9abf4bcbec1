//! Packed chunks in key order, each with its delta.
//!
//! A chunk never changes. Its [`ChunkDelta`] has the rows that were replaced or deleted since it
//! was packed, and the confirmations of the other rows. [`RecordStore`](super::RecordStore) is the
//! only user.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

use super::confirmations::Confirmation;
use super::decoding::names_identity;
use super::delta::{ChunkDelta, ChunkDeltas, RowChange, RowState};
use super::location::{ChunkId, PackedRow, RecordLocation};
use crate::model::{EntryKey, Scope, Sequence, SourceStamp};
use crate::pack::{Chunk, IndexedFields};
use crate::view::collections::two_level_map::TwoLevelMap;

/// Chunks by their lowest keys.
#[derive(Debug, Clone, Default)]
pub(super) struct ChunkMap {
    chunks: TwoLevelMap<EntryKey, (ChunkId, Chunk)>,
    deltas: ChunkDeltas,
    /// Numbers of removed chunks, for reuse.
    free: Vec<ChunkId>,
}

impl ChunkMap {
    /// Adds a chunk with the confirmations of its unchanged rows and the changes of the others.
    pub(super) fn add_with(&mut self, chunk: Chunk, rows: &[Confirmation], changes: Vec<(usize, RowChange)>) {
        let id = self.add(chunk.clone());
        self.deltas.add(id.0, &chunk, rows, changes);
    }

    /// Adds a chunk whose rows no list has confirmed. It must not overlap other chunks.
    pub(super) fn add(&mut self, chunk: Chunk) -> ChunkId {
        let first = chunk.first_key();
        debug_assert!(self.chunk_of(&first).is_none_or(|(_, (_, below))| below.last_key() < first), "it overlaps the chunk below");
        debug_assert!(self.chunks.from(&first).next().is_none_or(|(above, _)| *above > chunk.last_key()), "it overlaps the chunk above");
        let id = self.free.pop().unwrap_or(ChunkId(self.chunks.len()));
        self.chunks.insert(first, (id, chunk));
        id
    }

    /// Removes a chunk and its delta.
    pub(super) fn remove(&mut self, first: &EntryKey) -> Option<(Chunk, ChunkDelta)> {
        let (id, chunk) = self.chunks.remove(first)?;
        self.free.push(id);
        Some((chunk, self.deltas.remove(id.0)))
    }

    /// Finds the row of a key, even if the row was replaced or deleted.
    pub(super) fn find_row(&self, key: &EntryKey) -> Option<PackedRow> {
        let (_, (id, chunk)) = self.chunk_of(key)?;
        let row = chunk.find(key).ok()?;
        Some(PackedRow { id: *id, chunk: chunk.clone(), row })
    }

    /// Returns the location of a row's current record; `None` if its key was deleted.
    pub(super) fn locate_row(&self, packed: PackedRow) -> Option<RecordLocation> {
        match self.delta(packed.id).row_state(packed.row) {
            RowState::Packed => Some(RecordLocation::Packed(packed)),
            RowState::Replaced(record) => Some(RecordLocation::Replaced(packed, Arc::clone(record))),
            RowState::Deleted => None,
        }
    }

    pub(super) fn delta(&self, id: ChunkId) -> &ChunkDelta {
        self.deltas.get(id.0)
    }

    /// Returns the number of the last list that contained a row; 0 if none did.
    pub(super) fn generation(&self, packed: &PackedRow) -> u64 {
        self.delta(packed.id).generation(packed.row)
    }

    /// Returns the newest revision and lease of a row.
    pub(super) fn source(&self, packed: &PackedRow) -> SourceStamp {
        self.delta(packed.id).source(packed.row).unwrap_or_else(|| packed.chunk.source(packed.row))
    }

    /// Replaces a row, or deletes it.
    pub(super) fn put(&mut self, packed: &PackedRow, change: RowChange) {
        self.deltas.put(packed.id.0, packed.row, change);
    }

    /// Records that the list `generation` contained a row.
    pub(super) fn confirm(&mut self, packed: &PackedRow, generation: u64) {
        self.deltas.confirm(packed.id.0, packed.row, generation, packed.chunk.len());
    }

    /// Records the revision and lease of a put of equal bytes.
    pub(super) fn restamp(&mut self, packed: &PackedRow, stamp: SourceStamp) {
        if self.source(packed) != stamp {
            self.deltas.put_source(packed.id.0, packed.row, stamp, packed.chunk.len());
        }
    }

    /// Counts a new key in the chunk whose range it belongs to.
    pub(super) fn count_insertion(&mut self, key: &EntryKey) {
        let lowest = || self.chunks.first().map(|(_, (id, _))| *id);
        let id = self.chunk_of(key).map(|(_, (id, _))| *id).or_else(lowest);
        if let Some(id) = id {
            self.deltas.count_insertion(id.0);
        }
    }

    /// Finds the chunk whose range contains a key; `None` if the key is below all chunks.
    pub(super) fn chunk_of(&self, key: &EntryKey) -> Option<(&EntryKey, &(ChunkId, Chunk))> {
        self.chunks.floor(key)
    }

    /// Iterates over the chunks from the one with this lowest key on.
    pub(super) fn chunks_from<'a>(&'a self, first: Option<&EntryKey>) -> impl Iterator<Item = &'a (ChunkId, Chunk)> + use<'a> {
        let first = first.cloned().unwrap_or_else(EntryKey::lowest);
        self.chunks.from(&first).map(|(_, chunk)| chunk)
    }

    /// Returns the lowest key of the next chunk.
    pub(super) fn next_chunk_key(&self, first: &EntryKey) -> Option<&EntryKey> {
        let mut range = self.chunks.from(first);
        range.next().filter(|(found, _)| *found == first)?;
        range.next().map(|(next, _)| next)
    }

    /// Returns the lowest key of the first chunk.
    pub(super) fn first_chunk_key(&self) -> Option<&EntryKey> {
        self.chunks.first().map(|(first, _)| first)
    }

    /// Iterates over the lowest keys of the `count` chunks with the most changes.
    pub(super) fn most_changed_chunks(&self, count: usize) -> impl Iterator<Item = &EntryKey> {
        let change_counts = self.chunks.iter().map(|(first, (id, _))| (first, self.delta(*id).dirty_rows()));
        let mut dirty: Vec<_> = change_counts.filter(|(_, change_count)| *change_count > 0).collect();
        if count < dirty.len() {
            dirty.select_nth_unstable_by_key(count, |(_, change_count)| Reverse(*change_count));
        }
        dirty.into_iter().take(count).map(|(first, _)| first)
    }

    /// Returns the number of changes in chunks whose lowest keys are at least `start` and below
    /// `end`.
    pub(super) fn dirty_rows_between(&self, start: &EntryKey, end: Option<&EntryKey>) -> usize {
        let chunks = self.chunks.from(start).take_while(|(first, _)| end.is_none_or(|end| *first < end));
        chunks.map(|(_, (id, _))| self.delta(*id).dirty_rows()).sum()
    }

    /// Returns the number of rows whose keys were not deleted.
    pub(super) fn live_row_count(&self, id: ChunkId, chunk: &Chunk) -> usize {
        chunk.len() - self.delta(id).deleted_row_count
    }

    /// Returns at least the `count` records with the lowest sequences after a position, in no
    /// particular order. The result may contain further replaced rows.
    pub(super) fn changed_after(&self, position: Sequence, count: usize) -> Vec<(Sequence, RecordLocation)> {
        let newer = self.chunks.iter().map(|(_, chunk)| chunk).filter(|(_, chunk)| chunk.max_sequence() > position);
        let mut runs: Vec<_> = newer.map(|(id, chunk)| self.packed_after(position, *id, chunk).peekable()).collect();
        // next sequence of each chunk, the lowest first
        let mut heads: BinaryHeap<Reverse<(Sequence, usize)>> =
            runs.iter_mut().enumerate().filter_map(|(index, run)| Some(Reverse((run.peek()?.0, index)))).collect();
        let mut found = Vec::new();
        while found.len() < count
            && let Some(mut lowest) = heads.peek_mut()
        {
            let Reverse((_, index)) = *lowest;
            found.extend(runs[index].next().map(|(sequence, row)| (sequence, RecordLocation::Packed(row))));
            match runs[index].peek() {
                Some((next, _)) => *lowest = Reverse((*next, index)),
                None => drop(PeekMut::pop(lowest)),
            }
        }
        let last = found.last().filter(|_| found.len() >= count).map_or(Sequence(u64::MAX), |(last, _)| *last);
        for (id, chunk) in self.chunks.iter().map(|(_, chunk)| chunk) {
            let delta = self.delta(*id);
            if !delta.may_have_sequence_between(position, last) {
                continue;
            }
            let within = delta.replacements().filter(|(_, record)| record.last_sequence > position && record.last_sequence < last);
            let packed_row = |row| PackedRow { id: *id, chunk: chunk.clone(), row };
            found.extend(within.map(|(row, record)| (record.last_sequence, RecordLocation::Replaced(packed_row(row), Arc::clone(record)))));
        }
        found
    }

    /// Iterates over the unchanged rows of a chunk after a position, in order of sequence.
    fn packed_after<'a>(
        &'a self,
        position: Sequence,
        id: ChunkId,
        chunk: &'a Chunk,
    ) -> impl Iterator<Item = (Sequence, PackedRow)> + use<'a> {
        let delta = self.delta(id);
        let rows = chunk.rows_by_sequence();
        let start = rows.partition_point(|row| chunk.last_sequence(usize::from(*row)) <= position);
        let packed = rows[start..].iter().map(|row| usize::from(*row)).filter(move |row| matches!(delta.row_state(*row), RowState::Packed));
        packed.map(move |row| (chunk.last_sequence(row), PackedRow { id, chunk: chunk.clone(), row }))
    }

    /// Iterates over the ipcache entries that name an identity, from a key on, in key order.
    pub(super) fn ip_entries_of_identity(&self, identity: u32, start: &EntryKey) -> impl Iterator<Item = (EntryKey, RecordLocation)> {
        let first = self.chunk_of(start).map(|(first, _)| first);
        let start = start.clone();
        let locations = self.chunks_from(first).flat_map(move |(id, chunk)| self.ip_entries_in_chunk(identity, *id, chunk));
        locations.map(|location| (location.key(), location)).skip_while(move |(key, _)| *key < start)
    }

    /// Returns the ipcache entries of one chunk that name an identity, in key order.
    fn ip_entries_in_chunk(&self, identity: u32, id: ChunkId, chunk: &Chunk) -> Vec<RecordLocation> {
        let (delta, mut found) = (self.delta(id), Vec::new());
        let packed_row = |row| PackedRow { id, chunk: chunk.clone(), row };
        if chunk.may_name_identity(identity) {
            let named =
                (0..chunk.len()).filter(|row| chunk.identity(*row) == identity && matches!(delta.row_state(*row), RowState::Packed));
            let named = named.filter(|row| matches!(chunk.indexed_fields(*row), IndexedFields::Ip { .. }));
            found.extend(named.map(|row| RecordLocation::Packed(packed_row(row))));
        }
        let replacements = delta.replacements().filter(|(_, record)| names_identity(record, identity));
        let packed = found.len();
        found.extend(replacements.map(|(row, record)| RecordLocation::Replaced(packed_row(row), Arc::clone(record))));
        if packed < found.len() {
            found.sort_by_key(|location| location.row().unwrap_or_default());
        }
        found
    }

    /// Returns the number of held keys of a scope. Skips chunks that cannot contain any.
    pub(super) fn held_count(&self, scope: &Scope) -> usize {
        let start = EntryKey::new(scope.kind, scope.cluster.clone(), "");
        let first = self.chunk_of(&start).map(|(first, _)| first);
        let chunks = self.chunks_from(first).map(|(id, chunk)| (self.delta(*id), chunk, chunk.rows_of(scope.kind, &scope.cluster)));
        // the first chunk may end before the scope
        let chunks = chunks.enumerate().take_while(|(index, (_, _, rows))| *index == 0 || !rows.is_empty()).map(|(_, found)| found);
        let chunks = chunks.filter(|(delta, chunk, _)| !delta.is_empty() || chunk.may_have_held_rows());
        let held_rows = |(delta, chunk, rows): (&ChunkDelta, &Chunk, std::ops::Range<usize>)| {
            let is_held = |row: &usize| match delta.row_state(*row) {
                RowState::Packed => delta.source(*row).unwrap_or_else(|| chunk.source(*row)).held,
                RowState::Replaced(record) => record.source.held,
                RowState::Deleted => false,
            };
            rows.filter(is_held).count()
        };
        chunks.map(held_rows).sum()
    }

    /// Returns the number of keys from `start` up to but not including `end`.
    pub(super) fn count_between(&self, start: &EntryKey, end: &EntryKey) -> usize {
        let first = self.chunk_of(start).map(|(first, _)| first.clone()).unwrap_or_else(EntryKey::lowest);
        let mut chunks = self.chunks.from(&first).peekable();
        let mut count = 0;
        while let Some((first, (id, chunk))) = chunks.next().filter(|(first, _)| *first < end) {
            let row_of = |key: &EntryKey| chunk.find(key).unwrap_or_else(|row| row);
            let from = if first < start { row_of(start) } else { 0 };
            // all rows of a chunk are below the lowest key of the next
            let to = if chunks.peek().is_some_and(|(next, _)| *next <= end) { chunk.len() } else { row_of(end) };
            let delta = self.delta(*id);
            let is_deleted = |(row, now): &(usize, RowState<'_>)| matches!(now, RowState::Deleted) && (from..to).contains(row);
            let deleted =
                if (from, to) == (0, chunk.len()) { delta.deleted_row_count } else { delta.changed_rows().filter(is_deleted).count() };
            count += (to - from) - deleted;
        }
        count
    }

    pub(super) const fn deltas(&self) -> &ChunkDeltas {
        &self.deltas
    }
}
