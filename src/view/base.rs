//! The packed part of the mirror: chunks in key order, and beside each what changed of its rows since it was built.
//!
//! A chunk never changes. Replaced and deleted rows are in a delta beside it (`side`), as are the listings that confirmed its rows and the
//! revisions and leases that equal bytes came with.

pub(super) mod decoding;
pub(super) mod delta;
pub(super) mod location;
pub(super) mod overlay;
pub(super) mod scan;
pub(super) mod stamps;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

use self::decoding::names;
use self::delta::{Change, ChunkDelta, ChunkDeltas, Row};
use self::location::{ChunkId, PackedRow, RecordLocation};
use self::stamps::Settled;
use super::collections::wide::WideMap;
use crate::model::{EntryKey, Scope, Sequence, SourceStamp};
use crate::pack::{Chunk, Meaning};

/// Chunks in key order.
#[derive(Debug, Clone, Default)]
pub(super) struct Base {
    /// By the lowest key of each.
    chunks: WideMap<EntryKey, (ChunkId, Chunk)>,
    sides: ChunkDeltas,
    /// Numbers of chunks that were taken out.
    free: Vec<ChunkId>,
}

impl Base {
    /// Adds a chunk with what is beside its rows: of those that are as they were packed what the source said, of each other what it became.
    pub(super) fn add_with(&mut self, chunk: Chunk, rows: &[Settled], changes: Vec<(usize, Change)>) {
        let id = self.add(chunk.clone());
        self.sides.add(id.0, &chunk, rows, changes);
    }

    /// Adds a chunk none of whose rows were confirmed. It must not overlap others.
    pub(super) fn add(&mut self, chunk: Chunk) -> ChunkId {
        let first = chunk.first_key();
        debug_assert!(self.chunk_of(&first).is_none_or(|(_, (_, below))| below.last_key() < first), "it overlaps the chunk below");
        debug_assert!(self.chunks.from(&first).next().is_none_or(|(above, _)| *above > chunk.last_key()), "it overlaps the chunk above");
        let id = self.free.pop().unwrap_or(ChunkId(self.chunks.len()));
        self.chunks.insert(first, (id, chunk));
        id
    }

    /// Takes a chunk out, with what is beside its rows.
    pub(super) fn remove(&mut self, first: &EntryKey) -> Option<(Chunk, ChunkDelta)> {
        let (id, chunk) = self.chunks.remove(first)?;
        self.free.push(id);
        Some((chunk, self.sides.remove(id.0)))
    }

    /// The row of a key, whatever became of it.
    pub(super) fn row_of(&self, key: &EntryKey) -> Option<PackedRow> {
        let (_, (id, chunk)) = self.chunk_of(key)?;
        let row = chunk.find(key).ok()?;
        Some(PackedRow { id: *id, chunk: chunk.clone(), row })
    }

    /// What is at a row: itself, or what stands for it; `None` where its key is gone.
    pub(super) fn place_at(&self, at: PackedRow) -> Option<RecordLocation> {
        match self.side(at.id).at(at.row) {
            Row::Packed => Some(RecordLocation::Packed(at)),
            Row::Replaced(record) => Some(RecordLocation::Replaced(at, Arc::clone(record))),
            Row::Gone => None,
        }
    }

    /// The delta beside a chunk.
    pub(super) fn side(&self, id: ChunkId) -> &ChunkDelta {
        self.sides.at(id.0)
    }

    /// The last listing that had a row.
    pub(super) fn generation(&self, at: &PackedRow) -> u64 {
        self.side(at.id).generation(at.row)
    }

    /// Revision and lease that a row came with last.
    pub(super) fn source(&self, at: &PackedRow) -> SourceStamp {
        self.side(at.id).source(at.row).unwrap_or_else(|| at.chunk.source(at.row))
    }

    /// Puts a record in place of a row, or takes away what is there.
    pub(super) fn put(&mut self, at: &PackedRow, change: Change) {
        self.sides.put(at.id.0, at.row, change);
    }

    /// Notes that a listing had a row.
    pub(super) fn confirm(&mut self, at: &PackedRow, generation: u64) {
        self.sides.confirm(at.id.0, at.row, generation, at.chunk.len());
    }

    /// Notes revision and lease that equal bytes of a row came with.
    pub(super) fn put_stamp(&mut self, at: &PackedRow, stamp: SourceStamp) {
        if self.source(at) != stamp {
            self.sides.put_source(at.id.0, at.row, stamp, at.chunk.len());
        }
    }

    /// Counts a key that came to live between the rows of a chunk.
    pub(super) fn count_insert(&mut self, key: &EntryKey) {
        let lowest = || self.chunks.first().map(|(_, (id, _))| *id);
        let id = self.chunk_of(key).map(|(_, (id, _))| *id).or_else(lowest);
        if let Some(id) = id {
            self.sides.count_insert(id.0);
        }
    }

    /// The chunk that a key belongs to, if it is not below all.
    pub(super) fn chunk_of(&self, key: &EntryKey) -> Option<(&EntryKey, &(ChunkId, Chunk))> {
        self.chunks.floor(key)
    }

    /// Chunks from a first key on, in key order.
    pub(super) fn chunks_from<'a>(&'a self, first: Option<&EntryKey>) -> impl Iterator<Item = &'a (ChunkId, Chunk)> + use<'a> {
        let first = first.cloned().unwrap_or_else(EntryKey::lowest);
        self.chunks.from(&first).map(|(_, chunk)| chunk)
    }

    /// The first key of the chunk behind the one that begins with `first`.
    pub(super) fn next_first(&self, first: &EntryKey) -> Option<&EntryKey> {
        let mut range = self.chunks.from(first);
        range.next().filter(|(found, _)| *found == first)?;
        range.next().map(|(next, _)| next)
    }

    /// The first key of the lowest chunk.
    pub(super) fn lowest_first(&self) -> Option<&EntryKey> {
        self.chunks.first().map(|(first, _)| first)
    }

    /// The chunks that folding gains most from, so many at most, by their first keys.
    pub(super) fn dirtiest(&self, count: usize) -> impl Iterator<Item = &EntryKey> {
        let dirts = self.chunks.iter().map(|(first, (id, _))| (first, self.side(*id).dirt()));
        let mut dirty: Vec<_> = dirts.filter(|(_, dirt)| *dirt > 0).collect();
        if count < dirty.len() {
            dirty.select_nth_unstable_by_key(count, |(_, dirt)| Reverse(*dirt));
        }
        dirty.into_iter().take(count).map(|(first, _)| first)
    }

    /// How much folding the chunks that begin from one key on and below another would gain.
    pub(super) fn dirt_within(&self, start: &EntryKey, end: Option<&EntryKey>) -> usize {
        let chunks = self.chunks.from(start).take_while(|(first, _)| end.is_none_or(|end| *first < end));
        chunks.map(|(_, (id, _))| self.side(*id).dirt()).sum()
    }

    /// How many of the rows of a chunk are held, as they are or replaced.
    pub(super) fn live_rows(&self, id: ChunkId, chunk: &Chunk) -> usize {
        chunk.len() - self.side(id).gone_count()
    }

    /// What has the lowest sequences above one, `count` of the rows at most and some of what stands for rows, in no particular order.
    pub(super) fn live_after(&self, position: Sequence, count: usize) -> Vec<(Sequence, RecordLocation)> {
        let newer = self.chunks.iter().map(|(_, chunk)| chunk).filter(|(_, chunk)| chunk.max_sequence() > position);
        let mut runs: Vec<_> = newer.map(|(id, chunk)| self.packed_after(position, *id, chunk).peekable()).collect();
        // the next sequence of each chunk, the lowest on top
        let mut heads: BinaryHeap<Reverse<(Sequence, usize)>> =
            runs.iter_mut().enumerate().filter_map(|(at, run)| Some(Reverse((run.peek()?.0, at)))).collect();
        let mut found = Vec::new();
        while found.len() < count
            && let Some(mut lowest) = heads.peek_mut()
        {
            let Reverse((_, at)) = *lowest;
            found.extend(runs[at].next().map(|(sequence, row)| (sequence, RecordLocation::Packed(row))));
            match runs[at].peek() {
                Some((next, _)) => *lowest = Reverse((*next, at)),
                None => drop(PeekMut::pop(lowest)),
            }
        }
        let last = found.last().filter(|_| found.len() >= count).map_or(Sequence(u64::MAX), |(last, _)| *last);
        for (id, chunk) in self.chunks.iter().map(|(_, chunk)| chunk) {
            let side = self.side(*id);
            if !side.has_replacements_within(position, last) {
                continue;
            }
            let within = side.replacements().filter(|(_, record)| record.last_sequence > position && record.last_sequence < last);
            let at = |row| PackedRow { id: *id, chunk: chunk.clone(), row };
            found.extend(within.map(|(row, record)| (record.last_sequence, RecordLocation::Replaced(at(row), Arc::clone(record)))));
        }
        found
    }

    /// The rows of a chunk that are as they were packed and above a position, in order of sequence.
    fn packed_after<'a>(
        &'a self,
        position: Sequence,
        id: ChunkId,
        chunk: &'a Chunk,
    ) -> impl Iterator<Item = (Sequence, PackedRow)> + use<'a> {
        let side = self.side(id);
        let rows = chunk.by_sequence();
        let start = rows.partition_point(|row| chunk.last_sequence(usize::from(*row)) <= position);
        let packed = rows[start..].iter().map(|row| usize::from(*row)).filter(move |row| matches!(side.at(*row), Row::Packed));
        packed.map(move |row| (chunk.last_sequence(row), PackedRow { id, chunk: chunk.clone(), row }))
    }

    /// The ip entries of rows that name an identity, from a key on, in key order.
    pub(super) fn naming(&self, identity: u32, start: &EntryKey) -> impl Iterator<Item = (EntryKey, RecordLocation)> {
        let first = self.chunk_of(start).map(|(first, _)| first);
        let start = start.clone();
        let places = self.chunks_from(first).flat_map(move |(id, chunk)| self.naming_in(identity, *id, chunk));
        places.map(|place| (place.key(), place)).skip_while(move |(key, _)| *key < start)
    }

    /// The ip entries of one chunk that name an identity, in key order.
    fn naming_in(&self, identity: u32, id: ChunkId, chunk: &Chunk) -> Vec<RecordLocation> {
        let (side, mut found) = (self.side(id), Vec::new());
        let at = |row| PackedRow { id, chunk: chunk.clone(), row };
        if chunk.may_name_identity(identity) {
            let named = (0..chunk.len()).filter(|row| chunk.identity(*row) == identity && matches!(side.at(*row), Row::Packed));
            let named = named.filter(|row| matches!(chunk.meaning(*row), Meaning::Ip { .. }));
            found.extend(named.map(|row| RecordLocation::Packed(at(row))));
        }
        let replacements = side.replacements().filter(|(_, record)| names(record, identity));
        let packed = found.len();
        found.extend(replacements.map(|(row, record)| RecordLocation::Replaced(at(row), Arc::clone(record))));
        if packed < found.len() {
            found.sort_by_key(|place| place.row().unwrap_or_default());
        }
        found
    }

    /// How many keys of a kind of a cluster the source has lost, of those of rows; chunks that cannot have any are not looked at.
    pub(super) fn held_count(&self, scope: &Scope) -> usize {
        let start = EntryKey::new(scope.kind, scope.cluster.clone(), "");
        let first = self.chunk_of(&start).map(|(first, _)| first);
        let chunks = self.chunks_from(first).map(|(id, chunk)| (self.side(*id), chunk, chunk.rows_of(scope.kind, &scope.cluster)));
        // the first may have keys before these alone
        let chunks = chunks.enumerate().take_while(|(at, (_, _, rows))| *at == 0 || !rows.is_empty()).map(|(_, found)| found);
        let chunks = chunks.filter(|(side, chunk, _)| !side.is_empty() || chunk.may_be_held());
        let held = |(side, chunk, rows): (&ChunkDelta, &Chunk, std::ops::Range<usize>)| {
            let is_held = |row: &usize| match side.at(*row) {
                Row::Packed => side.source(*row).unwrap_or_else(|| chunk.source(*row)).held,
                Row::Replaced(record) => record.source.held,
                Row::Gone => false,
            };
            rows.filter(is_held).count()
        };
        chunks.map(held).sum()
    }

    /// How many keys of rows there are from a key on and below another.
    pub(super) fn count_within(&self, start: &EntryKey, end: &EntryKey) -> usize {
        let first = self.chunk_of(start).map(|(first, _)| first.clone()).unwrap_or_else(EntryKey::lowest);
        let mut chunks = self.chunks.from(&first).peekable();
        let mut count = 0;
        while let Some((first, (id, chunk))) = chunks.next().filter(|(first, _)| *first < end) {
            let place = |key: &EntryKey| chunk.find(key).unwrap_or_else(|row| row);
            let from = if first < start { place(start) } else { 0 };
            // all rows of a chunk are below the first of the next
            let to = if chunks.peek().is_some_and(|(next, _)| *next <= end) { chunk.len() } else { place(end) };
            let side = self.side(*id);
            let is_gone = |(row, now): &(usize, Row<'_>)| matches!(now, Row::Gone) && (from..to).contains(row);
            let gone = if (from, to) == (0, chunk.len()) { side.gone_count() } else { side.rows().filter(is_gone).count() };
            count += (to - from) - gone;
        }
        count
    }

    /// What is beside all chunks.
    pub(super) const fn sides(&self) -> &ChunkDeltas {
        &self.sides
    }
}
