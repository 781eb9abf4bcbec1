//! Folding: packs chunks again with the changes since they were packed.
//!
//! A single chunk is edited in place if possible. New chunks that overlap nothing else are kept as
//! they are.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::{Chunk, IndexedFields, RECORDS_TARGET, RowEdit, build_with_fields, edit};
use crate::model::{EntryKey, Record};

/// Minimum number of records of a newer chunk that is kept as it is, if nothing else has a key in
/// its range. This is usual when a cluster is listed for the first time. Half of a full chunk; the
/// tests use small chunks.
const WHOLE_MIN: usize = if cfg!(test) { 8 } else { RECORDS_TARGET / 2 };

/// Fewer rows than this between kept chunks are packed together with one of them, so that no small
/// chunks are left over.
const BETWEEN_MIN: usize = if cfg!(test) { 4 } else { RECORDS_TARGET / 4 };

type MeantRecord = (Arc<Record>, IndexedFields);

/// Newest record by key, or `None` if the key was deleted.
type RecordChanges = BTreeMap<EntryKey, Option<MeantRecord>>;

/// A part of the result, in key order.
enum FoldPart {
    /// A chunk that is kept as it is.
    Whole(Chunk),
    /// Records to pack.
    Loose(Vec<MeantRecord>),
}

/// Packs chunks again with everything that changed since. `chunks` must be in key order. `newer`
/// are further chunks in any order of keys: each overrides `chunks` and the newer chunks before it.
/// `changes` override all chunks: the newest record of each key, or `None` if it was deleted. A
/// changed key may lie outside of the chunks.
#[must_use]
pub fn fold(chunks: &[Chunk], newer: &[Chunk], changes: &BTreeMap<EntryKey, Option<Arc<Record>>>) -> Vec<Chunk> {
    let (whole, newer) = whole_and_others(chunks, newer, changes);
    let changes = all_changes(&newer, changes);
    if whole.is_empty()
        && let [chunk] = chunks
        && let Some(edited) = edit(chunk, &edits(chunk, &changes))
    {
        return vec![edited];
    }
    let packed = |part: FoldPart| match part {
        FoldPart::Whole(chunk) => vec![chunk],
        FoldPart::Loose(rows) => build_with_fields(rows.iter().map(|(record, meaning)| (&**record, meaning.clone()))),
    };
    parts(whole, merged(chunks, changes)).into_iter().flat_map(packed).collect()
}

/// Splits the newer chunks into those that can be kept as they are, in key order, and the others.
fn whole_and_others(chunks: &[Chunk], newer: &[Chunk], changes: &BTreeMap<EntryKey, Option<Arc<Record>>>) -> (Vec<Chunk>, Vec<Chunk>) {
    let is_alone = |chunk: &Chunk, others: &[&[Chunk]]| {
        let (first, last) = (chunk.first_key(), chunk.last_key());
        let is_apart = |other: &Chunk| matches!((other.find(&first), other.find(&last)), (Err(before), Err(behind)) if before == behind);
        changes.range(&first..=&last).next().is_none() && others.iter().copied().flatten().all(is_apart)
    };
    let (mut whole, mut rest) = (Vec::new(), Vec::new());
    for (at, chunk) in newer.iter().enumerate() {
        let is_whole = chunk.len() >= WHOLE_MIN && is_alone(chunk, &[chunks, &newer[..at], &newer[at + 1..]]);
        if is_whole { &mut whole } else { &mut rest }.push(chunk.clone());
    }
    whole.sort_by_cached_key(Chunk::first_key);
    (whole, rest)
}

pub(super) fn all_changes(newer: &[Chunk], changes: &BTreeMap<EntryKey, Option<Arc<Record>>>) -> RecordChanges {
    let noted = |record: &Arc<Record>| (Arc::clone(record), IndexedFields::from_record(record));
    let mut all: RecordChanges = changes.iter().map(|(key, change)| (key.clone(), change.as_ref().map(noted))).collect();
    for chunk in newer.iter().rev() {
        for row in 0..chunk.len() {
            if let Entry::Vacant(place) = all.entry(chunk.key(row)) {
                place.insert(Some(row_of(chunk, row)));
            }
        }
    }
    all
}

fn row_of(chunk: &Chunk, row: usize) -> MeantRecord {
    (chunk.record(row).into(), chunk.meaning(row))
}

/// Converts changes to edits of a chunk.
pub(super) fn edits<'a>(chunk: &Chunk, changes: &'a RecordChanges) -> Vec<RowEdit<'a>> {
    let edit = |(key, change): (&EntryKey, &'a Option<MeantRecord>)| match (chunk.find(key), change) {
        (Ok(row), Some((record, meaning))) => Some(RowEdit::Replace { row, record, meaning: meaning.clone() }),
        (Ok(row), None) => Some(RowEdit::Remove { row }),
        (Err(before), Some((record, meaning))) => Some(RowEdit::Insert { before, record, meaning: meaning.clone() }),
        (Err(_), None) => None,
    };
    changes.iter().filter_map(edit).collect()
}

/// Decodes every row and applies the changes, in key order.
fn merged(chunks: &[Chunk], changes: RecordChanges) -> Vec<MeantRecord> {
    let rows = chunks.iter().flat_map(|chunk| (0..chunk.len()).map(move |row| row_of(chunk, row)));
    let mut merged: Vec<MeantRecord> = rows.filter(|(record, _)| !changes.contains_key(&record.key)).collect();
    merged.extend(changes.into_values().flatten());
    merged.sort_by(|left, right| left.0.key.cmp(&right.0.key));
    merged
}

/// Puts the kept chunks between the records to pack. A chunk next to only a few records is packed
/// with them.
fn parts(whole: Vec<Chunk>, rows: Vec<MeantRecord>) -> Vec<FoldPart> {
    let mut rows = rows.into_iter().peekable();
    let mut parts = Vec::new();
    for chunk in whole {
        let first = chunk.first_key();
        let mut below = Vec::new();
        while let Some(row) = rows.next_if(|(record, _)| record.key < first) {
            below.push(row);
        }
        push(&mut parts, FoldPart::Loose(below));
        push(&mut parts, FoldPart::Whole(chunk));
    }
    push(&mut parts, FoldPart::Loose(rows.collect()));
    parts
}

/// Appends a part, or joins it with the previous one if either has only a few records.
fn push(parts: &mut Vec<FoldPart>, next: FoldPart) {
    let are_few = |part: &FoldPart| matches!(part, FoldPart::Loose(rows) if rows.len() < BETWEEN_MIN);
    if matches!(&next, FoldPart::Loose(rows) if rows.is_empty()) {
        return;
    }
    match parts.pop_if(|last| are_few(last) || are_few(&next)) {
        None => parts.push(next),
        Some(last) => {
            let mut rows = last.into_rows();
            rows.extend(next.into_rows());
            parts.push(FoldPart::Loose(rows));
        }
    }
}

impl FoldPart {
    fn into_rows(self) -> Vec<MeantRecord> {
        match self {
            Self::Whole(chunk) => (0..chunk.len()).map(|row| row_of(&chunk, row)).collect(),
            Self::Loose(rows) => rows,
        }
    }
}
