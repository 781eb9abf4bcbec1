//! Compaction: chunks and their deltas are packed into new chunks, off the writer's way in three steps. The writer makes a [`FoldJob`] from the present moment, anyone runs it,
//! and the writer takes the [`Folded`] result in, whatever changed meanwhile.

use std::iter::Peekable;
use std::sync::Arc;
use std::vec::IntoIter;

use super::restore::noted;
use crate::model::{EntryKey, Record, SourceStamp};
use crate::pack::{Chunk, Edit, Meaning, RECORDS_TARGET, build_noted, edit};
use crate::view::View;
use crate::view::base::decoding::{meaning_of, object_of};
use crate::view::base::delta::{ChunkDelta, Row};
use crate::view::base::location::RecordLocation;
use crate::view::base::stamps::Settled;

/// A chunk with fewer live records than this takes its neighbour in, so that deletes leave no crumbs.
const LIVE_RECORDS_MIN: usize = RECORDS_TARGET / 4;

/// A range of the mirror to be compacted, as a snapshot of one moment.
#[derive(Debug)]
pub struct FoldJob {
    view: View,
    /// The lowest keys of the chunks that are replaced.
    replaced: Vec<EntryKey>,
    /// From which key on; `None` is from the lowest.
    start: Option<EntryKey>,
    /// Up to which key; `None` is all.
    end: Option<EntryKey>,
}

/// Chunks that stand for others and for records that changed since those were made.
#[derive(Debug, Clone)]
pub struct Folded {
    /// The lowest keys of the chunks that are replaced.
    pub replaced: Vec<EntryKey>,
    /// What they, and all that changed between them, are now.
    pub chunks: Vec<Chunk>,
}

impl FoldJob {
    /// Packs: a millisecond of work for a chunk that is edited, some for one that is packed from its records.
    #[must_use]
    pub fn run(self) -> Folded {
        let chunks = self.edited().map_or_else(|| self.packed_anew(), |chunk| vec![chunk]);
        Folded { replaced: self.replaced, chunks }
    }

    /// The one chunk that is replaced, edited, if that can be done.
    pub(in crate::view) fn edited(&self) -> Option<Chunk> {
        let [first] = self.replaced.as_slice() else { return None };
        let (_, (id, chunk)) = self.view.base.chunk_of(first).filter(|(found, _)| *found == first)?;
        // what its rows mean is to be noted
        if chunk.has_unknown() {
            return None;
        }
        let start = self.start.clone().unwrap_or_else(EntryKey::lowest);
        let fresh: Vec<&Arc<Record>> = self.view.fresh_within(&start, self.end.as_ref()).collect();
        let side = self.view.base.side(*id);
        let mut edits: Vec<Edit<'_>> = side_edits(side, chunk).collect();
        for record in fresh {
            let before = chunk.find(&record.key).err()?;
            edits.push(Edit::Insert { before, record, meaning: noted_meaning(record) });
        }
        // what comes before one row stays in the order of its keys
        edits.sort_by_key(Edit::order);
        edit(chunk, &edits)
    }

    /// From a record of every row.
    pub(in crate::view) fn packed_anew(&self) -> Vec<Chunk> {
        let lowest = EntryKey::lowest();
        let places = self.view.places_from(self.start.as_ref().unwrap_or(&lowest));
        let places = places.take_while(|place| self.end.as_ref().is_none_or(|end| place.key() < *end));
        let records: Vec<(Arc<Record>, Meaning)> = places.map(|place| self.packed_form(&place)).collect();
        build_noted(records.iter().map(|(record, meaning)| (&**record, meaning.clone())))
    }

    /// A record as it is packed.
    fn packed_form(&self, place: &RecordLocation) -> (Arc<Record>, Meaning) {
        match place {
            RecordLocation::Fresh(record) | RecordLocation::Replaced(_, record) => (Arc::clone(record), noted_meaning(record)),
            RecordLocation::Packed(at) => (self.view.bare_record_at(at).into(), place.meaning()),
        }
    }
}

/// What is packed with a record: its object is not, because it is what its bytes mean, whatever was known of its cluster then. The fuzzer of
/// values (`tests/fuzz`) holds [`wire`](crate::wire) to that; else a record would come to mean something else here, and nobody would be told.
fn noted_meaning(record: &Record) -> Meaning {
    let is_known = || record.object.is_none() || object_of(record) == record.object;
    debug_assert!(is_known(), "the bytes of {} must give its object back", record.key);
    meaning_of(record)
}

/// The delta of a chunk as edits.
fn side_edits<'a>(side: &'a ChunkDelta, chunk: &Chunk) -> impl Iterator<Item = Edit<'a>> {
    let restamped = (0..chunk.len()).filter_map(move |row| Some((row, side.source(row)?)));
    let restamped = restamped.filter(|(row, _)| matches!(side.at(*row), Row::Packed));
    let changed = side.rows().map(|(row, change)| match change {
        Row::Replaced(record) => Edit::Replace { row, record, meaning: noted_meaning(record) },
        _ => Edit::Remove { row },
    });
    restamped.map(|(row, source)| Edit::Restamp { row, source }).chain(changed)
}

/// What is held of a key in the range of the chunks that are replaced.
enum Held {
    Whole(Arc<Record>),
    /// A row of a chunk that is replaced, with what was beside the chunk.
    Packed {
        chunk: Chunk,
        row: usize,
        generation: u64,
        source: SourceStamp,
    },
}

/// All that is held in a range, in key order. A thousand rows are gone through on the writer's way, so nothing is copied of those that stay.
struct AllHeld {
    /// The chunks that are replaced, with what was beside them.
    chunks: Vec<(Chunk, ChunkDelta)>,
    /// The next row: of which chunk, and which.
    at: (usize, usize),
    /// Its key as bytes, which sort as keys do; only right if `is_row_known`.
    row_key: Vec<u8>,
    is_row_known: bool,
    /// What was above the chunks, each with its key.
    fresh: Peekable<IntoIter<(Vec<u8>, Arc<Record>)>>,
}

impl AllHeld {
    /// The key of the next.
    fn key(&mut self) -> Option<&[u8]> {
        self.find_row();
        let fresh = self.fresh.peek().map(|(key, _)| key.as_slice());
        let row = self.is_row_known.then_some(self.row_key.as_slice());
        // no key is in both
        match (row, fresh) {
            (Some(row), Some(fresh)) => Some(row.min(fresh)),
            (row, fresh) => row.or(fresh),
        }
    }

    /// Takes the next, if its key is one that is wanted.
    fn take_if(&mut self, is_wanted: impl Fn(&[u8]) -> bool) -> Option<Held> {
        if !is_wanted(self.key()?) {
            return None;
        }
        let is_row_next = self.is_row_known && self.fresh.peek().is_none_or(|(key, _)| self.row_key < *key);
        if !is_row_next {
            return self.fresh.next().map(|(_, record)| Held::Whole(record));
        }
        let (chunk, side) = &self.chunks[self.at.0];
        let row = self.at.1;
        self.at.1 += 1;
        self.is_row_known = false;
        if let Row::Replaced(record) = side.at(row) {
            return Some(Held::Whole(Arc::clone(record)));
        }
        let source = side.source(row).unwrap_or_else(|| chunk.source(row));
        Some(Held::Packed { chunk: chunk.clone(), row, generation: side.generation(row), source })
    }

    /// Goes to the next row that is held, itself or what stands for it.
    fn find_row(&mut self) {
        while !self.is_row_known
            && let Some((chunk, side)) = self.chunks.get(self.at.0)
        {
            let row = self.at.1;
            if row == chunk.len() {
                self.at = (self.at.0 + 1, 0);
            } else if matches!(side.at(row), Row::Gone) {
                self.at.1 += 1;
            } else {
                self.row_key.clear();
                chunk.append_key(row, &mut self.row_key);
                self.is_row_known = true;
            }
        }
    }
}

impl View {
    /// What folding gains most from now, so many jobs at most, each for a part of its own; none if nothing changed since all was packed.
    #[must_use]
    pub fn fold_jobs(&self, count: usize) -> Vec<FoldJob> {
        let Some(lowest) = self.base.lowest_first() else {
            let job = FoldJob { view: self.clone(), replaced: Vec::new(), start: None, end: None };
            return (self.unpacked_count() > 0).then_some(job).into_iter().collect();
        };
        let mut jobs: Vec<FoldJob> = Vec::new();
        for first in self.base.dirtiest(count) {
            let job = self.fold_job(first, lowest);
            // one may have taken its neighbour in
            if jobs.iter().all(|other| other.replaced.iter().all(|replaced| !job.replaced.contains(replaced))) {
                jobs.push(job);
            }
        }
        jobs
    }

    fn fold_job(&self, first: &EntryKey, lowest: &EntryKey) -> FoldJob {
        let mut replaced = vec![first.clone()];
        let mut end = self.base.next_first(first);
        let live = |first: &EntryKey| self.base.chunk_of(first).map_or(0, |(_, (id, chunk))| self.base.live_rows(*id, chunk));
        if let Some(next) = end.filter(|_| live(first) < LIVE_RECORDS_MIN) {
            replaced.push(next.clone());
            end = self.base.next_first(next);
        }
        let start = (first != lowest).then(|| first.clone());
        FoldJob { view: self.clone(), start, end: end.cloned(), replaced }
    }

    /// How many records are not packed: what folding is for.
    #[must_use]
    pub fn unpacked_count(&self) -> usize {
        self.overlay.len() + self.base.sides().replacement_count()
    }

    /// How many packed records are gone, and take room until their chunks are packed anew.
    #[must_use]
    pub fn gone_count(&self) -> usize {
        self.base.sides().gone_count()
    }

    /// How many packed records have a newer revision and lease beside them.
    #[must_use]
    pub fn restamped_count(&self) -> usize {
        self.base.sides().stamped_count()
    }

    /// How many chunks hold the packed records, and how many bytes they are.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn packed_size(&self) -> (usize, usize) {
        self.chunks().fold((0, 0), |(count, length), chunk| (count + 1, length + chunk.stored().len()))
    }

    /// The chunks that hold the packed records, in key order.
    #[cfg(any(test, feature = "internals"))]
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.base.chunks_from(None).map(|(_, chunk)| chunk)
    }

    /// Takes folded chunks in: what they hold and is still so is no longer held beside them, what changed meanwhile stays. Nothing that is
    /// served changes, whatever the chunks hold. Returns whether less is held beside the chunks than before.
    pub fn fold(&mut self, folded: Folded) -> bool {
        // what is below all chunks is folded into the lowest one
        let first = folded.replaced.first().filter(|first| Some(*first) != self.base.lowest_first());
        let start = first.cloned().unwrap_or_else(EntryKey::lowest);
        let end = folded.replaced.last().and_then(|last| self.base.next_first(last)).cloned();
        let before = (self.unpacked_count(), self.base.dirt_within(&start, end.as_ref()));
        let mut held = self.take_held(&folded.replaced, &start, end.as_ref());
        for chunk in folded.chunks.into_iter().flat_map(noted) {
            self.settle(chunk, &mut held);
        }
        while let Some(left) = held.take_if(|_| true) {
            self.hold_fresh(left);
        }
        let inserted: Vec<EntryKey> = self.fresh_within(&start, end.as_ref()).map(|record| record.key.clone()).collect();
        inserted.iter().for_each(|key| self.base.count_insert(key));
        self.unpacked_count() < before.0 || self.base.dirt_within(&start, end.as_ref()) < before.1
    }

    fn fresh_within(&self, start: &EntryKey, end: Option<&EntryKey>) -> impl Iterator<Item = &Arc<Record>> {
        self.overlay.from(start).map(|(_, record)| record).take_while(move |record| end.is_none_or(|end| record.key < *end))
    }

    /// Takes out the chunks that are replaced, with what is beside and above them: all that is held there, in key order.
    fn take_held(&mut self, firsts: &[EntryKey], start: &EntryKey, end: Option<&EntryKey>) -> AllHeld {
        let fresh: Vec<Arc<Record>> = self.fresh_within(start, end).cloned().collect();
        for record in &fresh {
            self.overlay.remove(&record.key);
        }
        let fresh: Vec<(Vec<u8>, Arc<Record>)> = fresh.into_iter().map(|record| (sort_key(&record.key), record)).collect();
        AllHeld {
            chunks: firsts.iter().filter_map(|first| self.base.remove(first)).collect(),
            at: (0, 0),
            row_key: Vec::with_capacity(48),
            is_row_known: false,
            fresh: fresh.into_iter().peekable(),
        }
    }

    /// Adds a new chunk: of what is held, says which of its rows are live, and puts in place of the others what is newer.
    fn settle(&mut self, chunk: Chunk, held: &mut AllHeld) {
        let (mut rows, mut key) = (Vec::with_capacity(chunk.len()), Vec::with_capacity(48));
        let mut changes = Vec::new();
        for row in 0..chunk.len() {
            key.clear();
            chunk.append_key(row, &mut key);
            while let Some(passed) = held.take_if(|held| held < key.as_slice()) {
                self.hold_fresh(passed);
            }
            let found = held.take_if(|held| held == key.as_slice());
            let live = found.as_ref().and_then(|held| held.is_in(&chunk, row));
            if live.is_none() {
                changes.push((row, found.map(Held::record)));
            }
            rows.push(live);
        }
        self.base.add_with(chunk, &rows, changes);
    }

    /// Puts a record into the overlay: no new chunk has a row of its key.
    fn hold_fresh(&mut self, held: Held) {
        self.overlay.insert(held.record());
    }
}

/// The bytes that sort as keys do, as [`Chunk::append_key`] writes them.
fn sort_key(key: &EntryKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(48);
    bytes.push(key.kind as u8);
    bytes.extend_from_slice(key.cluster.as_str().as_bytes());
    bytes.push(b'/');
    bytes.extend_from_slice(key.name.as_bytes());
    bytes
}

impl Held {
    /// The generation and source of a new row, if that is what is held.
    fn is_in(&self, chunk: &Chunk, row: usize) -> Settled {
        let sequence = chunk.last_sequence(row);
        match self {
            Self::Whole(record) => {
                let same = record.last_sequence == sequence && record.source == chunk.source(row);
                same.then_some((record.generation, record.source))
            }
            Self::Packed { chunk, row, generation, source } => (chunk.last_sequence(*row) == sequence).then_some((*generation, *source)),
        }
    }

    fn record(self) -> Arc<Record> {
        match self {
            Self::Whole(record) => record,
            Self::Packed { chunk, row, generation, source } => {
                let mut record = chunk.record(row);
                record.generation = generation;
                record.source = source;
                record.object = object_of(&record);
                record.into()
            }
        }
    }
}
