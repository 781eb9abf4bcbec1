//! Folding: packs chunks again together with the changes since they were packed.
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
const KEPT_ROWS_MIN: usize = if cfg!(test) { 8 } else { RECORDS_TARGET / 2 };

/// Fewer rows than this between kept chunks are packed together with one of them, so that no small
/// chunks are left over.
const ROWS_BETWEEN_KEPT_MIN: usize = if cfg!(test) { 4 } else { RECORDS_TARGET / 4 };

type RecordWithFields = (Arc<Record>, IndexedFields);

/// Newest record by key, or `None` if the key was deleted.
type RecordChanges = BTreeMap<EntryKey, Option<RecordWithFields>>;

/// A part of the result, in key order.
enum FoldPart {
    /// A chunk that is kept as it is.
    KeptChunk(Chunk),
    /// Records to pack.
    Records(Vec<RecordWithFields>),
}

/// Packs chunks again with everything that changed since. `chunks` must be in key order. `newer`
/// are further chunks in any order of keys: each overrides `chunks` and the newer chunks before it.
/// `changes` override all chunks: the newest record of each key, or `None` if it was deleted. A
/// changed key may lie outside of the chunks.
#[must_use]
pub fn fold(chunks: &[Chunk], newer: &[Chunk], changes: &BTreeMap<EntryKey, Option<Arc<Record>>>) -> Vec<Chunk> {
    let (kept, newer) = split_kept(chunks, newer, changes);
    let changes = all_changes(&newer, changes);
    if kept.is_empty()
        && let [chunk] = chunks
        && let Some(edited) = edit(chunk, &edits(chunk, &changes))
    {
        return vec![edited];
    }
    let packed = |part: FoldPart| match part {
        FoldPart::KeptChunk(chunk) => vec![chunk],
        FoldPart::Records(rows) => build_with_fields(rows.iter().map(|(record, fields)| (&**record, fields.clone()))),
    };
    parts(kept, merged(chunks, changes)).into_iter().flat_map(packed).collect()
}

/// Splits the newer chunks into those that can be kept as they are, in key order, and the others.
fn split_kept(chunks: &[Chunk], newer: &[Chunk], changes: &BTreeMap<EntryKey, Option<Arc<Record>>>) -> (Vec<Chunk>, Vec<Chunk>) {
    let is_alone = |chunk: &Chunk, others: &[&[Chunk]]| {
        let (first, last) = (chunk.first_key(), chunk.last_key());
        let is_apart = |other: &Chunk| matches!((other.find(&first), other.find(&last)), (Err(start), Err(end)) if start == end);
        changes.range(&first..=&last).next().is_none() && others.iter().copied().flatten().all(is_apart)
    };
    let (mut kept, mut others) = (Vec::new(), Vec::new());
    for (index, chunk) in newer.iter().enumerate() {
        let is_kept = chunk.len() >= KEPT_ROWS_MIN && is_alone(chunk, &[chunks, &newer[..index], &newer[index + 1..]]);
        if is_kept { &mut kept } else { &mut others }.push(chunk.clone());
    }
    kept.sort_by_cached_key(Chunk::first_key);
    (kept, others)
}

pub(super) fn all_changes(newer: &[Chunk], changes: &BTreeMap<EntryKey, Option<Arc<Record>>>) -> RecordChanges {
    let with_fields = |record: &Arc<Record>| (Arc::clone(record), IndexedFields::from_record(record));
    let mut all: RecordChanges = changes.iter().map(|(key, change)| (key.clone(), change.as_ref().map(with_fields))).collect();
    for chunk in newer.iter().rev() {
        for row in 0..chunk.len() {
            if let Entry::Vacant(vacant) = all.entry(chunk.key(row)) {
                vacant.insert(Some(decode_row(chunk, row)));
            }
        }
    }
    all
}

fn decode_row(chunk: &Chunk, row: usize) -> RecordWithFields {
    (chunk.record(row).into(), chunk.indexed_fields(row))
}

/// Converts changes to edits of a chunk.
pub(super) fn edits<'a>(chunk: &Chunk, changes: &'a RecordChanges) -> Vec<RowEdit<'a>> {
    let edit = |(key, change): (&EntryKey, &'a Option<RecordWithFields>)| match (chunk.find(key), change) {
        (Ok(row), Some((record, fields))) => Some(RowEdit::Replace { row, record, fields: fields.clone() }),
        (Ok(row), None) => Some(RowEdit::Remove { row }),
        (Err(before), Some((record, fields))) => Some(RowEdit::Insert { before, record, fields: fields.clone() }),
        (Err(_), None) => None,
    };
    changes.iter().filter_map(edit).collect()
}

/// Decodes every row and applies the changes, in key order.
fn merged(chunks: &[Chunk], changes: RecordChanges) -> Vec<RecordWithFields> {
    let rows = chunks.iter().flat_map(|chunk| (0..chunk.len()).map(move |row| decode_row(chunk, row)));
    let mut merged: Vec<RecordWithFields> = rows.filter(|(record, _)| !changes.contains_key(&record.key)).collect();
    merged.extend(changes.into_values().flatten());
    merged.sort_by(|left, right| left.0.key.cmp(&right.0.key));
    merged
}

/// Puts the kept chunks between the records to pack. A chunk next to only a few records is packed
/// with them.
fn parts(kept: Vec<Chunk>, rows: Vec<RecordWithFields>) -> Vec<FoldPart> {
    let mut rows = rows.into_iter().peekable();
    let mut parts = Vec::new();
    for chunk in kept {
        let first = chunk.first_key();
        let mut rows_before = Vec::new();
        while let Some(row) = rows.next_if(|(record, _)| record.key < first) {
            rows_before.push(row);
        }
        push_part(&mut parts, FoldPart::Records(rows_before));
        push_part(&mut parts, FoldPart::KeptChunk(chunk));
    }
    push_part(&mut parts, FoldPart::Records(rows.collect()));
    parts
}

/// Appends a part, or joins it with the previous one if either has only a few records.
fn push_part(parts: &mut Vec<FoldPart>, next: FoldPart) {
    let are_few = |part: &FoldPart| matches!(part, FoldPart::Records(rows) if rows.len() < ROWS_BETWEEN_KEPT_MIN);
    if matches!(&next, FoldPart::Records(rows) if rows.is_empty()) {
        return;
    }
    match parts.pop_if(|last| are_few(last) || are_few(&next)) {
        None => parts.push(next),
        Some(last) => {
            let mut rows = last.into_rows();
            rows.extend(next.into_rows());
            parts.push(FoldPart::Records(rows));
        }
    }
}

impl FoldPart {
    fn into_rows(self) -> Vec<RecordWithFields> {
        match self {
            Self::KeptChunk(chunk) => (0..chunk.len()).map(|row| decode_row(&chunk, row)).collect(),
            Self::Records(rows) => rows,
        }
    }
}
