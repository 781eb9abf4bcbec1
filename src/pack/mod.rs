//! Chunks: about a thousand records in key order, packed into one compact byte string.
//!
//! The view keeps chunks in memory, and the store writes the same bytes, compressed. A [`Chunk`]
//! decodes any single record within microseconds. The bytes may come from disk, so reading a chunk
//! checks all of them. The module does no IO, decodes no Cilium values (`wire` does) and does not
//! compress.
//!
//! Most values are JSON of a few shapes. A value is cut into a template and the texts in its holes
//! (`template`), and each hole becomes a column (`column`). A value without a template is kept as
//! it is. Every value is restored byte for byte.
//!
//! # Layout of a chunk (version 1)
//!
//! `varint` is LEB128. `text` is a varint length and that many bytes. The modules `number_column`
//! and `column` describe `numbers` and `column`. A number in parentheses is a fixed length in
//! bytes, little-endian.
//!
//! 1. version (1): 1
//! 2. varint: number of records, 1 to 4,096
//! 3. (8): highest last sequence
//! 4. varint groups · groups × (kind (1), text cluster, varint records): the scopes, in key order.
//!    Kinds: 0 identity, 1 ip, 2 node, 3 service, 4 endpoint slice, 5 service export, 6 ip derived
//!    from a node
//! 5. column: names of the keys, in order within each group
//! 6. numbers × 6: last sequence; last sequence minus sequence of creation; version; mod revision;
//!    lease; low 16 bits of the value's CRC-32
//! 7. numbers: flags. 1 good value, 2 rejection, 4 without any usable value, 8 usable and with
//!    indexed fields, 16 held
//! 8. numbers: identity that an ipcache entry names, if the record has indexed fields
//! 9. numbers: template. 0 none, otherwise its number from 1
//! 10. column: indexed fields of a node, a list of 4 with four bytes or 6 with sixteen for each
//!     address; and of a service, export or slice, the global service that it contributes to
//! 11. varint templates · templates × (varint holes, (holes + 1) × text, holes × column): the
//!     literals around the holes, and the texts in the holes for the rows of the template
//! 12. column: the values without a template
//! 13. for each record with flag 1 or 2: text good value if flag 1; text reason, time first seen,
//!     time last seen if flag 2
//! 14. (4): CRC-32 of everything before
//!
//! A time is its distance from 1970: (1) 0, or 1 if it is before 1970 · varint seconds · varint
//! nanoseconds.

mod byte_reader;
mod chunk;
mod column;
mod edit;
mod encode;
mod find;
mod fold;
mod form_choice;
mod indexed_fields;
mod number_column;
mod row_filter;
mod sections;
mod splice;
mod template;
#[cfg(test)]
mod tests;
mod text_filter;

use crate::model::Record;

pub use byte_reader::DecodeError;
pub(crate) use byte_reader::{ByteReader, common_prefix_length, put_text, put_varint};
pub use chunk::{Chunk, RecordHistory};
pub use edit::{RowEdit, edit};
pub use fold::fold;
pub use indexed_fields::IndexedFields;
pub use row_filter::{FieldTest, RowField, RowFilter, TextTest};

/// Format version of chunks.
const FORMAT_VERSION: u8 = 1;

/// Length of the checksum in bytes.
const CHECKSUM_LENGTH: usize = 4;

/// Number of records in a full chunk. 1,024 is a good size on disk (docs/develop/measurements.md
/// §1), and editing such a chunk takes about 0.5 ms (§6).
pub const RECORDS_TARGET: usize = 1_024;

/// Maximum number of records in the last chunk of a build. Up to this number, the remaining records
/// become one chunk, so that no small chunk is left over.
const RECORDS_JOINED_MAX: usize = RECORDS_TARGET * 3 / 2;

/// Maximum number of records that a chunk may have when it is read. This version writes smaller
/// chunks ([`RECORDS_JOINED_MAX`]).
const RECORDS_MAX: usize = 4_096;

/// Maximum raw bytes of a full chunk. Packing shortens values to a third or less, so the chunk is
/// usually shorter than [`STORED_LENGTH_MAX`].
const RAW_LENGTH_TARGET: usize = 400_000;

/// Maximum raw bytes of the last chunk of a build. Without this margin, a chunk that has grown a
/// little would split off a tiny one, which would join its neighbour at the next change, and so on.
/// A chunk that is too long when packed is halved.
const RAW_LENGTH_JOINED_MAX: usize = RAW_LENGTH_TARGET * 3 / 2;

/// Upper bound on the length of a chunk in bytes. sled's limit for a page is 131,052 B
/// (docs/develop/measurements.md §1.3); the difference is for the bytes that the store adds. Only a
/// chunk with a single record can be longer ([`Chunk::is_oversize`]).
pub const STORED_LENGTH_MAX: usize = 120_000;

/// Returns a 16-bit checksum of a value. It detects most changed values without reading the
/// columns, which are spread over the chunk in separate cache lines.
fn digest(value: &[u8]) -> u64 {
    u64::from(crc32fast::hash(value) & 0xffff)
}

/// Maximum number of templates in a chunk. With more, the template number of a row could need two
/// bytes.
const TEMPLATES_MAX: usize = 255;

/// Bits of a record's flags.
mod flag {
    pub(super) const GOOD_VALUE: u64 = 1;
    pub(super) const REJECTION: u64 = 2;
    /// Mask of the bits for the record's [`super::IndexedFields`]: unknown, nothing or usable.
    pub(super) const INDEXED_FIELDS_MASK: u64 = 12;
    pub(super) const UNKNOWN: u64 = 0;
    pub(super) const NOTHING: u64 = 4;
    pub(super) const USABLE: u64 = 8;
    pub(super) const HELD: u64 = 16;
}

/// Packs records, which must be in key order and have distinct keys. Each chunk has about
/// [`RECORDS_TARGET`] records and is shorter than [`STORED_LENGTH_MAX`], except a chunk with a
/// single longer record.
///
/// The indexed fields of a record come from its object ([`IndexedFields::from_record`]). Without an
/// object they are unknown, and the reader of the chunk has to decode the value.
/// [`build_with_fields`] and [`fold()`] keep known fields.
pub fn build<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Chunk> {
    build_with_fields(records.into_iter().map(|record| (record, IndexedFields::from_record(record))))
}

/// Packs records as [`build`] does, with the given indexed fields of each record.
pub fn build_with_fields<'a>(records: impl IntoIterator<Item = (&'a Record, IndexedFields)>) -> Vec<Chunk> {
    let records: Vec<(&Record, IndexedFields)> = records.into_iter().collect();
    debug_assert!(records.windows(2).all(|pair| pair[0].0.key < pair[1].0.key), "records must be in key order");
    let (mut chunks, mut rest) = (Vec::new(), records.as_slice());
    while !rest.is_empty() {
        let (next, tail) = rest.split_at(next_chunk_length(rest));
        pack(next, &mut chunks);
        rest = tail;
    }
    chunks
}

/// Packs versions of records in the order of the caller, which may contain a key more than once.
/// Only the methods that accept a row are useful for such a chunk. At most [`RECORDS_TARGET`]
/// versions.
#[must_use]
pub fn build_versions(versions: &[(&Record, IndexedFields)]) -> Chunk {
    debug_assert!((1..=RECORDS_TARGET).contains(&versions.len()), "a chunk of versions has a bounded length");
    Chunk::from_stored(encode::encode(versions)).expect("an encoded chunk must be readable")
}

/// Returns the number of records for the next chunk.
fn next_chunk_length(records: &[(&Record, IndexedFields)]) -> usize {
    let length = |(record, _): &(&Record, IndexedFields)| {
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

/// Packs records into one chunk. Halves them until each chunk is short enough.
fn pack(records: &[(&Record, IndexedFields)], chunks: &mut Vec<Chunk>) {
    let bytes = encode::encode(records);
    if bytes.len() >= STORED_LENGTH_MAX && records.len() > 1 {
        let (left, right) = records.split_at(records.len() / 2);
        pack(left, chunks);
        pack(right, chunks);
        return;
    }
    chunks.push(Chunk::from_stored(bytes).expect("an encoded chunk must be readable"));
}
