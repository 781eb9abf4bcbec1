//! Records and the objects that they mean: a record is held without its object where that is large, and a packed one is decoded on use.

use std::sync::Arc;

use crate::model::{EntryKey, Kind, Object, Record, Version};
use crate::pack::Meaning;
use crate::wire;

/// A record as it is held beside the chunks: without its object where that is large. 32,768 records are not packed at most
/// (`commit::folding`), so that their objects take 256 MiB at most, whatever a source writes; a service with some forty backends has less.
const KEPT_OBJECT_BYTES_MAX: usize = 8 << 10;

/// A value that is no longer than this has no object that is larger than that: the shortest item of a list has 2 bytes and takes 24.
const SMALL_VALUE_LENGTH: usize = KEPT_OBJECT_BYTES_MAX / 16;

/// The record as it is held: without its object if that is large, which is then decoded again for each reader.
pub(in crate::view) fn kept(record: Arc<Record>) -> Arc<Record> {
    let length = record.value.len().max(record.good_value.as_ref().map_or(0, |value| value.len()));
    let is_large = length > SMALL_VALUE_LENGTH && record.object.as_ref().is_some_and(|object| object.footprint() > KEPT_OBJECT_BYTES_MAX);
    if is_large { Arc::new(Record { object: None, ..Record::clone(&record) }) } else { record }
}

/// The record with its object.
pub(in crate::view) fn whole(record: &Arc<Record>) -> Arc<Record> {
    let object = if record.object.is_none() { object_of(record) } else { None };
    object.map_or_else(|| Arc::clone(record), |object| Arc::new(Record { object: Some(object), ..Record::clone(record) }))
}

/// What the indices know of a record, whether it is held with its object or not.
pub(in crate::view) fn meaning_of(record: &Record) -> Meaning {
    match Meaning::of(record) {
        Meaning::Unknown => Meaning::of(&Record { object: object_of(record), ..record.clone() }),
        known => known,
    }
}

/// Whether a record is an ip entry that names an identity.
pub(in crate::view) fn names(record: &Record, identity: u32) -> bool {
    record.key.kind.listed_as() == Kind::Ip && matches!(meaning_of(record), Meaning::Ip { identity: named, .. } if named == identity)
}

/// What a packed record means, from its last usable bytes.
pub(in crate::view) fn object_of(record: &Record) -> Option<Arc<Object>> {
    let usable = if record.rejection.is_none() { Some(&record.value) } else { record.good_value.as_ref() };
    decoded(&record.key, usable?)
}

/// What usable bytes of a key mean.
pub(in crate::view) fn decoded(key: &EntryKey, usable: &Arc<[u8]>) -> Option<Arc<Object>> {
    wire::decode_accepted(key, usable).map(Arc::new)
}

/// A record as a version in an announcement.
pub(in crate::view) fn version_of(record: &Record) -> Version {
    Version::of(record, decoded)
}
