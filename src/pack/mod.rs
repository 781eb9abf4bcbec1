//! About a thousand records in key order as one compact byte string: the form in which the mirror is held in memory and stored.
//!
//! Owns: which bytes stand for which records. Receives: records in key order, or bytes that may have been damaged in any way.
//! Emits: [`Chunk`]s that give back any record, whole and alone, within microseconds; nothing is decoded that nobody asked for. Deliberately
//! lacks: IO, the decoding of values (`wire`), and compression: the packed form is what stays in memory, and the store
//! compresses it.
//!
//! Values are JSON of a few shapes, so they are cut into templates and columns (`template`, `column`); one that has no template is kept
//! as it is. Whatever the bytes, they come back exactly.
//!
//! # A chunk, byte by byte (form 1)
//!
//! `varint` is LEB128, `text` a varint length and that many bytes, `numbers` and `column` are described in `number` and `column`; a number
//! in parentheses is a fixed length in bytes, little-endian.
//!
//! | field | what |
//! |---|---|
//! | form (1) | 1 |
//! | varint | records, 1 to 4,096 |
//! | (8) | the highest last sequence |
//! | varint groups · groups × (kind (1), text cluster, varint records) | the scopes, in key order; kinds 0 identity, 1 ip, 2 node, 3 service, 4 endpoint slice, 5 service export, 6 ip derived from a node |
//! | column | the keys' names, in order within each group |
//! | numbers × 6 | last sequence; the same less the sequence of creation; version; mod revision; lease; the low 16 bits of the value's CRC-32 |
//! | numbers | flags: 1 good value, 2 rejection, 4 without any usable value, 8 usable and noted for the indices, 16 held: the source has lost the key |
//! | numbers | the identity that an ip entry names, where noted |
//! | numbers | the template: 0 none, else its place |
//! | column | where noted, a node's addresses: 4 and four bytes, or 6 and sixteen, each; of a service, export or slice the global service that it has a share in |
//! | varint templates · templates × (varint holes, (holes + 1) × text, holes × column) | what stands between the holes, and what fills them in the rows of the template |
//! | column | the values without a template |
//! | for each record with flag 1 or 2 | flag 1: text good value; flag 2: text reason, time first seen, time last seen |
//! | (4) | CRC-32 of all before |
//!
//! A time is (1) 0 or 1 for before 1970 · varint seconds · varint nanoseconds.

mod bytes;
mod choose;
mod chunk;
mod column;
mod edit;
mod encode;
mod find;
mod fold;
mod meaning;
mod number;
mod parts;
mod rows;
mod splice;
mod template;
#[cfg(test)]
mod tests;

use crate::model::Record;

pub use bytes::Malformed;
pub(crate) use bytes::{Reader, common_length, put_text, put_varint};
pub use chunk::{Chunk, History};
pub use edit::Edit;
pub use fold::fold;
pub use meaning::Meaning;

/// The form that this version writes and reads.
const FORM: u8 = 1;

/// The bytes of a checksum.
const CHECKSUM_LENGTH: usize = 4;

/// Records of a chunk: docs/develop/measurements.md §1 found 1,024 good for the disk, and such a chunk is edited within some 0.5 ms (§6).
pub const RECORDS_TARGET: usize = 1_024;

/// Records that a last chunk takes in so that no small chunk stays behind.
const RECORDS_JOINED_MAX: usize = RECORDS_TARGET * 3 / 2;

/// Records that a chunk may have when it is read: above what is written.
const RECORDS_MAX: usize = 4_096;

/// Raw bytes of a chunk of large values: packed they are a third at most, as a rule less than [`STORED_LENGTH_MAX`].
const RAW_LENGTH_TARGET: usize = 400_000;

/// Raw bytes up to which a last chunk takes in what is left over: else one that has come to be a little longer would leave a crumb behind, which joins
/// its neighbour with the next change, and so on. Where the two are too long when packed, they are halved.
const RAW_LENGTH_JOINED_MAX: usize = RAW_LENGTH_TARGET * 3 / 2;

/// A chunk is shorter than this, so that it fits below sled's limit of 131,052 B for a page with room for what the store adds
/// (docs/develop/measurements.md §1.3). Only a single record that is longer makes a longer chunk ([`Chunk::is_oversize`]).
pub const STORED_LENGTH_MAX: usize = 120_000;

/// A 16-bit checksum of a value, by which a changed one is told from an equal one without a look at its columns: those are spread over the
/// chunk, each in another cache line.
fn digest(value: &[u8]) -> u64 {
    u64::from(crc32fast::hash(value) & 0xffff)
}

/// More templates than this are not worth their index.
const TEMPLATES_MAX: usize = 255;

/// Bits of a record's flags.
mod flag {
    pub(super) const GOOD_VALUE: u64 = 1;
    pub(super) const REJECTION: u64 = 2;
    /// The bits that hold how far a record's meaning is noted.
    pub(super) const MEANING: u64 = 12;
    pub(super) const UNKNOWN: u64 = 0;
    pub(super) const NOTHING: u64 = 4;
    pub(super) const USABLE: u64 = 8;
    pub(super) const HELD: u64 = 16;
}

/// Packs records, which must be in key order without repetition. Each chunk has about [`RECORDS_TARGET`] of them and is shorter than
/// [`STORED_LENGTH_MAX`], unless it is a single longer record.
///
/// What [`Chunk::meaning`] says of a record is taken from its object; of one without an object the meaning stays unknown, and the
/// reader of the chunk has to decode the value. [`build_noted`] and [`fold`] keep what was noted.
pub fn build<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Chunk> {
    build_noted(records.into_iter().map(|record| (record, Meaning::of(record))))
}

/// Packs records as [`build`] does, with a meaning for each that need not come from its object.
pub fn build_noted<'a>(records: impl IntoIterator<Item = (&'a Record, Meaning)>) -> Vec<Chunk> {
    let records: Vec<(&Record, Meaning)> = records.into_iter().collect();
    debug_assert!(records.windows(2).all(|pair| pair[0].0.key < pair[1].0.key), "records must be in key order");
    let (mut chunks, mut rest) = (Vec::new(), records.as_slice());
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(piece_length(rest));
        pack(piece, &mut chunks);
        rest = tail;
    }
    chunks
}

/// A chunk with some edits, made without a record of every row. They must be sorted by [`Edit::order`], what comes before one row by key,
/// and there may be one for each key. `None` where the chunk should be packed from its records: where too much of it changes, where it would
/// become too large, and one time in sixteen, so that it stays about as short as packed from its records.
#[must_use]
pub fn edit(chunk: &Chunk, edits: &[Edit<'_>]) -> Option<Chunk> {
    edit::edited(chunk, edits)
}

/// How many records the next chunk takes.
fn piece_length(records: &[(&Record, Meaning)]) -> usize {
    let length = |(record, _): &(&Record, Meaning)| {
        record.key.name.len() + record.value.len() + record.good_value.as_ref().map_or(0, |value| value.len())
    };
    if records.len() <= RECORDS_JOINED_MAX && records.iter().map(length).sum::<usize>() <= RAW_LENGTH_JOINED_MAX {
        return records.len();
    }
    let mut raw = 0;
    let fitting = records.iter().take(RECORDS_TARGET).take_while(|record| {
        raw += length(record);
        raw <= RAW_LENGTH_TARGET
    });
    fitting.count().max(1)
}

/// Packs records into one chunk, or into as many as it takes to keep each short enough.
fn pack(records: &[(&Record, Meaning)], chunks: &mut Vec<Chunk>) {
    let bytes = encode::encode(records);
    if bytes.len() >= STORED_LENGTH_MAX && records.len() > 1 {
        let (left, right) = records.split_at(records.len() / 2);
        pack(left, chunks);
        pack(right, chunks);
        return;
    }
    chunks.push(Chunk::from_stored(bytes).expect("what was just written must read back"));
}
