//! Folding: packs chunks and their changes into new chunks, in three steps.
//!
//! The committer makes a [`FoldJob`], which has a snapshot of the records. Another thread runs it.
//! The committer then applies the [`FoldResult`], in which changes since the snapshot stay
//! unpacked.

use std::iter::Peekable;
use std::sync::Arc;
use std::vec::IntoIter;

use super::RecordStore;
use super::confirmations::Confirmation;
use super::decoding::{decode_object, indexed_fields_of, with_indexed_fields};
use super::delta::{ChunkDelta, RowState};
use super::location::{ChunkId, RecordLocation};
use crate::model::{EntryKey, Record, SourceStamp};
use crate::pack::{Chunk, IndexedFields, RECORDS_TARGET, RowEdit, build_with_fields, edit};

/// Number of live records below which a chunk is folded together with the next one, so that deletes
/// do not leave many small chunks.
const LIVE_RECORDS_MIN: usize = RECORDS_TARGET / 4;

/// A range of keys to fold, with a snapshot of the records.
#[derive(Debug)]
pub struct FoldJob {
    records: RecordStore,
    /// Lowest keys of the chunks to replace.
    replaced: Vec<EntryKey>,
    /// Lowest key of the range; `None` for no lower bound.
    start: Option<EntryKey>,
    /// Key after the range; `None` for no upper bound.
    end: Option<EntryKey>,
}

/// New chunks, and the chunks that they replace.
#[derive(Debug, Clone)]
pub struct FoldResult {
    /// Lowest keys of the chunks to replace.
    pub replaced: Vec<EntryKey>,
    /// New chunks with the records of the whole range.
    pub chunks: Vec<Chunk>,
}

impl FoldJob {
    /// Packs the range. Takes about a millisecond if a chunk can be edited, and some milliseconds
    /// if it is packed from its records.
    #[must_use]
    pub fn run(self) -> FoldResult {
        let chunks = self.edit_chunk().map_or_else(|| self.repack(), |chunk| vec![chunk]);
        FoldResult { replaced: self.replaced, chunks }
    }

    /// Edits the chunk, if there is only one and its form allows it.
    pub(in crate::view) fn edit_chunk(&self) -> Option<Chunk> {
        let [first] = self.replaced.as_slice() else { return None };
        let (_, (id, chunk)) = self.records.chunks.chunk_of(first).filter(|(found, _)| *found == first)?;
        // the new chunk must store the indexed fields of every row
        if chunk.has_unknown_fields() {
            return None;
        }
        let start = self.start.clone().unwrap_or_else(EntryKey::lowest);
        let overlay: Vec<&Arc<Record>> = self.records.overlay_between(&start, self.end.as_ref()).collect();
        let delta = self.records.chunks.delta(*id);
        let mut edits: Vec<RowEdit<'_>> = delta_edits(delta, chunk).collect();
        for record in overlay {
            let before = chunk.find(&record.key).err()?;
            edits.push(RowEdit::Insert { before, record, fields: indexed_fields_to_pack(record) });
        }
        // the sort is stable: insertions before one row stay in key order
        edits.sort_by_key(RowEdit::order);
        edit(chunk, &edits)
    }

    /// Packs the range from its records.
    pub(in crate::view) fn repack(&self) -> Vec<Chunk> {
        let lowest = EntryKey::lowest();
        let locations = self.records.scan_from(self.start.as_ref().unwrap_or(&lowest));
        let locations = locations.take_while(|location| self.end.as_ref().is_none_or(|end| location.key() < *end));
        let records: Vec<(Arc<Record>, IndexedFields)> = locations.map(|location| self.record_to_pack(&location)).collect();
        build_with_fields(records.iter().map(|(record, fields)| (&**record, fields.clone())))
    }

    fn record_to_pack(&self, location: &RecordLocation) -> (Arc<Record>, IndexedFields) {
        match location {
            RecordLocation::Overlay(record) | RecordLocation::Replaced(_, record) => (Arc::clone(record), indexed_fields_to_pack(record)),
            RecordLocation::Packed(packed) => (self.records.bare_record_at(packed).into(), location.indexed_fields()),
        }
    }
}

/// Returns the indexed fields to pack with a record. The object itself is not packed, so the
/// record's bytes must decode to the same object later, no matter what meshkeep then knows of the
/// cluster. Otherwise an object would change without an announcement. `tests/fuzz` checks
/// [`wire`](crate::wire) for this.
fn indexed_fields_to_pack(record: &Record) -> IndexedFields {
    let is_known = || record.object.is_none() || decode_object(record) == record.object;
    debug_assert!(is_known(), "the bytes of {} must decode to its object", record.key);
    indexed_fields_of(record)
}

fn delta_edits<'a>(delta: &'a ChunkDelta, chunk: &Chunk) -> impl Iterator<Item = RowEdit<'a>> {
    let restamped = (0..chunk.len()).filter_map(move |row| Some((row, delta.source(row)?)));
    let restamped = restamped.filter(|(row, _)| matches!(delta.row_state(*row), RowState::Packed));
    let changed = delta.changed_rows().map(|(row, change)| match change {
        RowState::Replaced(record) => RowEdit::Replace { row, record, fields: indexed_fields_to_pack(record) },
        _ => RowEdit::Remove { row },
    });
    restamped.map(|(row, source)| RowEdit::Restamp { row, source }).chain(changed)
}

/// Newest record of a key in the folded range.
enum CurrentRecord {
    Unpacked(Arc<Record>),
    /// A row of a replaced chunk, with its confirmation.
    Packed {
        chunk: Chunk,
        row: usize,
        generation: u64,
        source: SourceStamp,
    },
}

/// All records of the folded range, in key order. The committer iterates over about a thousand
/// rows, so unchanged rows are not copied.
struct CurrentRecords {
    /// Replaced chunks with their deltas.
    chunks: Vec<(Chunk, ChunkDelta)>,
    /// Index of the chunk of the next row, and the row's number.
    position: (usize, usize),
    /// Key of the next row, as bytes that sort like keys. Valid only if `is_row_known`.
    row_key: Vec<u8>,
    is_row_known: bool,
    /// Records of the overlay with their keys as bytes.
    overlay: Peekable<IntoIter<(Vec<u8>, Arc<Record>)>>,
}

impl CurrentRecords {
    /// Returns the key of the next record.
    fn key(&mut self) -> Option<&[u8]> {
        self.find_row();
        let overlay = self.overlay.peek().map(|(key, _)| key.as_slice());
        let row = self.is_row_known.then_some(self.row_key.as_slice());
        // no key is in both
        match (row, overlay) {
            (Some(row), Some(overlay)) => Some(row.min(overlay)),
            (row, overlay) => row.or(overlay),
        }
    }

    /// Returns the next record if its key passes a test.
    fn next_if(&mut self, is_wanted: impl Fn(&[u8]) -> bool) -> Option<CurrentRecord> {
        if !is_wanted(self.key()?) {
            return None;
        }
        let is_row_next = self.is_row_known && self.overlay.peek().is_none_or(|(key, _)| self.row_key < *key);
        if !is_row_next {
            return self.overlay.next().map(|(_, record)| CurrentRecord::Unpacked(record));
        }
        let (chunk, delta) = &self.chunks[self.position.0];
        let row = self.position.1;
        self.position.1 += 1;
        self.is_row_known = false;
        if let RowState::Replaced(record) = delta.row_state(row) {
            return Some(CurrentRecord::Unpacked(Arc::clone(record)));
        }
        let source = delta.source(row).unwrap_or_else(|| chunk.source(row));
        Some(CurrentRecord::Packed { chunk: chunk.clone(), row, generation: delta.generation(row), source })
    }

    /// Advances to the next row that was not deleted.
    fn find_row(&mut self) {
        while !self.is_row_known
            && let Some((chunk, delta)) = self.chunks.get(self.position.0)
        {
            let row = self.position.1;
            if row == chunk.len() {
                self.position = (self.position.0 + 1, 0);
            } else if matches!(delta.row_state(row), RowState::Deleted) {
                self.position.1 += 1;
            } else {
                self.row_key.clear();
                chunk.append_key(row, &mut self.row_key);
                self.is_row_known = true;
            }
        }
    }
}

impl RecordStore {
    /// Returns up to `count` jobs with disjoint ranges, for the chunks with the most changes.
    #[must_use]
    pub(in crate::view) fn fold_jobs(&self, count: usize) -> Vec<FoldJob> {
        let Some(lowest) = self.chunks.first_chunk_key() else {
            let job = FoldJob { records: self.clone(), replaced: Vec::new(), start: None, end: None };
            return (self.unpacked_count() > 0).then_some(job).into_iter().collect();
        };
        let mut jobs: Vec<FoldJob> = Vec::new();
        for first in self.chunks.most_changed_chunks(count) {
            let job = self.fold_job(first, lowest);
            // a job may include the next chunk
            if jobs.iter().all(|other| other.replaced.iter().all(|replaced| !job.replaced.contains(replaced))) {
                jobs.push(job);
            }
        }
        jobs
    }

    fn fold_job(&self, first: &EntryKey, lowest: &EntryKey) -> FoldJob {
        let mut replaced = vec![first.clone()];
        let mut end = self.chunks.next_chunk_key(first);
        let live_rows = |first: &EntryKey| self.chunks.chunk_of(first).map_or(0, |(_, (id, chunk))| self.chunks.live_row_count(*id, chunk));
        if let Some(next) = end.filter(|_| live_rows(first) < LIVE_RECORDS_MIN) {
            replaced.push(next.clone());
            end = self.chunks.next_chunk_key(next);
        }
        let start = (first != lowest).then(|| first.clone());
        FoldJob { records: self.clone(), start, end: end.cloned(), replaced }
    }

    #[must_use]
    pub(in crate::view) fn unpacked_count(&self) -> usize {
        self.overlay.len() + self.chunks.deltas().replacement_count
    }

    #[must_use]
    pub(in crate::view) fn deleted_row_count(&self) -> usize {
        self.chunks.deltas().deleted_row_count
    }

    #[must_use]
    pub(in crate::view) fn restamped_row_count(&self) -> usize {
        self.chunks.deltas().restamped_count
    }

    #[cfg(any(test, feature = "internals"))]
    pub(in crate::view) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.chunks_from(None).map(|(_, chunk)| chunk)
    }

    /// Returns whether no record and no chunk has a key from `first` to `last`.
    pub(in crate::view) fn is_range_free(&self, first: &EntryKey, last: &EntryKey) -> bool {
        let is_below = |chunk: &Chunk| chunk.last_key() < *first;
        self.chunks.chunk_of(last).is_none_or(|(_, (_, chunk))| is_below(chunk))
            && self.overlay.from(first).next().is_none_or(|(key, _)| key > last)
    }

    /// Packs records of new keys, which must be in key order and in a free range. Returns the
    /// chunks.
    pub(in crate::view) fn insert_packed(&mut self, records: &[Arc<Record>]) -> Vec<Chunk> {
        let generation = records.first().map_or(0, |record| record.generation);
        let chunks = build_with_fields(records.iter().map(|record| (&**record, indexed_fields_to_pack(record))));
        for chunk in &chunks {
            let rows: Vec<Confirmation> = (0..chunk.len()).map(|row| Some((generation, chunk.source(row)))).collect();
            let first = chunk.first_key();
            self.chunks.add_with(chunk.clone(), &rows, Vec::new());
            // the keys above the new chunk were in the range of the chunk below it
            let start = if self.chunks.first_chunk_key() == Some(&first) { EntryKey::lowest() } else { first.clone() };
            self.count_insertions(&start, self.chunks.next_chunk_key(&first).cloned().as_ref());
        }
        chunks
    }

    /// Counts the keys of the overlay in the range of a new chunk.
    fn count_insertions(&mut self, start: &EntryKey, end: Option<&EntryKey>) {
        let inserted: Vec<EntryKey> = self.overlay_between(start, end).map(|record| record.key.clone()).collect();
        inserted.iter().for_each(|key| self.chunks.count_insertion(key));
    }

    /// Returns whether chunks were added in the range of a fold since its job was made. Its result
    /// would overlap them.
    fn is_outdated(&self, folded: &FoldResult, start: &EntryKey, end: Option<&EntryKey>) -> bool {
        let (first, last) = (folded.chunks.first(), folded.chunks.last());
        let is_inside = |chunk: &(ChunkId, Chunk)| folded.replaced.contains(&chunk.1.first_key());
        let mut chunks = self.chunks.chunks_from(Some(start)).take_while(|(_, chunk)| end.is_none_or(|end| chunk.first_key() < *end));
        first.is_some_and(|chunk| chunk.first_key() < *start)
            || last.is_some_and(|chunk| end.is_some_and(|end| chunk.last_key() >= *end))
            || !chunks.all(is_inside)
    }

    /// Replaces chunks by folded ones; see [`View::fold`](crate::view::View::fold).
    pub(in crate::view) fn fold(&mut self, folded: FoldResult) -> bool {
        // keys below all chunks are folded into the first one
        let first = folded.replaced.first().filter(|first| Some(*first) != self.chunks.first_chunk_key());
        let start = first.cloned().unwrap_or_else(EntryKey::lowest);
        let end = folded.replaced.last().and_then(|last| self.chunks.next_chunk_key(last)).cloned();
        if self.is_outdated(&folded, &start, end.as_ref()) {
            return true;
        }
        let before = (self.unpacked_count(), self.chunks.dirty_rows_between(&start, end.as_ref()));
        let mut current = self.remove_range(&folded.replaced, &start, end.as_ref());
        for chunk in folded.chunks.into_iter().flat_map(with_indexed_fields) {
            self.insert_folded_chunk(chunk, &mut current);
        }
        while let Some(remaining) = current.next_if(|_| true) {
            self.insert_into_overlay(remaining);
        }
        self.count_insertions(&start, end.as_ref());
        self.unpacked_count() < before.0 || self.chunks.dirty_rows_between(&start, end.as_ref()) < before.1
    }

    fn overlay_between(&self, start: &EntryKey, end: Option<&EntryKey>) -> impl Iterator<Item = &Arc<Record>> {
        self.overlay.from(start).map(|(_, record)| record).take_while(move |record| end.is_none_or(|end| record.key < *end))
    }

    /// Removes the chunks to replace, and the overlay's records in their range.
    fn remove_range(&mut self, firsts: &[EntryKey], start: &EntryKey, end: Option<&EntryKey>) -> CurrentRecords {
        let overlay: Vec<Arc<Record>> = self.overlay_between(start, end).cloned().collect();
        for record in &overlay {
            self.overlay.remove(&record.key);
        }
        let overlay: Vec<(Vec<u8>, Arc<Record>)> = overlay.into_iter().map(|record| (sortable_key(&record.key), record)).collect();
        CurrentRecords {
            chunks: firsts.iter().filter_map(|first| self.chunks.remove(first)).collect(),
            position: (0, 0),
            row_key: Vec::with_capacity(48),
            is_row_known: false,
            overlay: overlay.into_iter().peekable(),
        }
    }

    /// Adds a new chunk. Rows that are the newest records of their keys keep their confirmations;
    /// newer records become changes of their rows.
    fn insert_folded_chunk(&mut self, chunk: Chunk, current: &mut CurrentRecords) {
        let (mut rows, mut key) = (Vec::with_capacity(chunk.len()), Vec::with_capacity(48));
        let mut changes = Vec::new();
        for row in 0..chunk.len() {
            key.clear();
            chunk.append_key(row, &mut key);
            while let Some(lower) = current.next_if(|current| current < key.as_slice()) {
                self.insert_into_overlay(lower);
            }
            let found = current.next_if(|current| current == key.as_slice());
            let confirmation = found.as_ref().and_then(|current| current.confirmation_in(&chunk, row));
            if confirmation.is_none() {
                changes.push((row, found.map(CurrentRecord::record)));
            }
            rows.push(confirmation);
        }
        self.chunks.add_with(chunk, &rows, changes);
    }

    fn insert_into_overlay(&mut self, current: CurrentRecord) {
        self.overlay.insert(current.record());
    }
}

/// Returns bytes that sort like keys, as [`Chunk::append_key`] writes them.
fn sortable_key(key: &EntryKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(48);
    bytes.push(key.kind as u8);
    bytes.extend_from_slice(key.cluster.as_str().as_bytes());
    bytes.push(b'/');
    bytes.extend_from_slice(key.name.as_bytes());
    bytes
}

impl CurrentRecord {
    /// Returns the confirmation of a new row if it is this record; `None` if this record is newer.
    fn confirmation_in(&self, chunk: &Chunk, row: usize) -> Confirmation {
        let sequence = chunk.last_sequence(row);
        match self {
            Self::Unpacked(record) => (record.last_sequence == sequence).then_some((record.generation, record.source)),
            Self::Packed { chunk, row, generation, source } => (chunk.last_sequence(*row) == sequence).then_some((*generation, *source)),
        }
    }

    fn record(self) -> Arc<Record> {
        match self {
            Self::Unpacked(record) => record,
            Self::Packed { chunk, row, generation, source } => {
                let mut record = chunk.record(row);
                record.generation = generation;
                record.source = source;
                record.object = decode_object(&record);
                record.into()
            }
        }
    }
}
