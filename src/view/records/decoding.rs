//! Decoding of records. A record keeps no large object, and a packed record keeps none at all; both
//! are decoded on use.

use std::sync::Arc;

use crate::model::{EntryKey, Kind, Object, Record};
use crate::pack::{Chunk, IndexedFields, build_with_fields};
use crate::wire;

/// Maximum size of an object that stays in memory with its unpacked record, in bytes. At most
/// 32,768 records are unpacked (`commit::folding`), so their objects use at most 256 MiB. A service
/// with 40 backends is smaller.
const RETAINED_OBJECT_BYTES_MAX: usize = 8 << 10;

/// Length of a value in bytes up to which its object is certainly smaller than that limit: the
/// shortest item of a list has 2 bytes and uses 24 in memory.
const SMALL_VALUE_LENGTH: usize = RETAINED_OBJECT_BYTES_MAX / 16;

/// Removes the object of a record if it is large.
pub(in crate::view) fn without_large_object(record: Arc<Record>) -> Arc<Record> {
    let length = record.value.len().max(record.good_value.as_ref().map_or(0, |value| value.len()));
    let is_large =
        length > SMALL_VALUE_LENGTH && record.object.as_ref().is_some_and(|object| object.footprint() > RETAINED_OBJECT_BYTES_MAX);
    if is_large { Arc::new(Record { object: None, ..Record::clone(&record) }) } else { record }
}

/// Decodes the object of a record that has none.
pub(in crate::view) fn with_object(record: &Arc<Record>) -> Arc<Record> {
    let object = if record.object.is_none() { decode_object(record) } else { None };
    object.map_or_else(|| Arc::clone(record), |object| Arc::new(Record { object: Some(object), ..Record::clone(record) }))
}

/// Returns the indexed fields of a record.
pub(in crate::view) fn indexed_fields_of(record: &Record) -> IndexedFields {
    match IndexedFields::from_record(record) {
        IndexedFields::Unknown => IndexedFields::from_record(&Record { object: decode_object(record), ..record.clone() }),
        known => known,
    }
}

/// Returns the indexed fields of a row. Decodes the row if the chunk does not store them.
pub(in crate::view) fn indexed_fields_of_row(chunk: &Chunk, row: usize) -> IndexedFields {
    match chunk.indexed_fields(row) {
        IndexedFields::Unknown => indexed_fields_of(&chunk.record(row)),
        known => known,
    }
}

/// Returns whether a record is an ipcache entry that names an identity.
pub(in crate::view) fn names_identity(record: &Record, identity: u32) -> bool {
    record.key.kind.listed_as() == Kind::Ip
        && matches!(indexed_fields_of(record), IndexedFields::Ip { identity: named, .. } if named == identity)
}

/// Decodes the last usable bytes of a record.
pub(in crate::view) fn decode_object(record: &Record) -> Option<Arc<Object>> {
    let usable = if record.rejection.is_none() { Some(&record.value) } else { record.good_value.as_ref() };
    decode_usable(&record.key, usable?)
}

/// Decodes usable bytes of a key.
pub(in crate::view) fn decode_usable(key: &EntryKey, usable: &Arc<[u8]>) -> Option<Arc<Object>> {
    wire::decode_accepted(key, usable).map(Arc::new)
}

/// Makes sure that the indexed fields of every record are stored, because lookups by identity need
/// them. Returns the chunk itself if it has all fields, which is usual. Otherwise packs its records
/// again, possibly into several chunks.
pub(in crate::view) fn with_indexed_fields(chunk: Chunk) -> Vec<Chunk> {
    if !chunk.has_unknown_fields() {
        return vec![chunk];
    }
    let records: Vec<_> = (0..chunk.len()).map(|row| (chunk.record(row), indexed_fields_of_row(&chunk, row))).collect();
    build_with_fields(records.iter().map(|(record, fields)| (record, fields.clone())))
}
