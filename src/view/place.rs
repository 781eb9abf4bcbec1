//! The place of a record (overlay, delta or chunk), and the record there, decoded on use where it is packed.

use std::net::IpAddr;
use std::sync::Arc;

use super::View;
use super::base::PackedRow;
use super::index::Indices;
use super::scan::{Scan, number_of_host};
use super::side::Before;
use crate::model::{ClusterName, EntryKey, Kind, Object, Record, Scope, SourceStamp, Version};
use crate::pack::{Chunk, History, Meaning};
use crate::wire;

/// Values of so many bytes at most are announced as they are packed, and count as many as the longest of their chunk has: that of an ip entry of a
/// pod has some 350, that of a node 1,500, and the ring, which counts so much for each, has 4 KiB for each.
const PACKED_VALUE_MAX: usize = 2_048;

/// The place of a record.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// In the overlay: no chunk has a row of its key.
    Fresh(Arc<Record>),
    /// Beside a chunk: it stands for a row.
    Replaced(PackedRow, Arc<Record>),
    /// In a chunk.
    Packed(PackedRow),
}

impl Place {
    /// The record, where it is whole.
    pub(super) fn record(&self) -> Result<&Arc<Record>, &PackedRow> {
        match self {
            Self::Fresh(record) | Self::Replaced(_, record) => Ok(record),
            Self::Packed(at) => Err(at),
        }
    }

    /// The row of its key.
    pub(super) fn row(&self) -> Option<usize> {
        match self {
            Self::Fresh(_) => None,
            Self::Replaced(at, _) | Self::Packed(at) => Some(at.row),
        }
    }

    pub(super) fn key(&self) -> EntryKey {
        self.record().map_or_else(PackedRow::key, |record| record.key.clone())
    }

    pub(super) fn kind(&self) -> Kind {
        self.record().map_or_else(|at| at.chunk.scope(at.row).0, |record| record.key.kind)
    }

    pub(super) fn cluster(&self) -> &ClusterName {
        self.record().map_or_else(|at| at.chunk.scope(at.row).1, |record| &record.key.cluster)
    }

    pub(super) fn is_rejected(&self) -> bool {
        self.record().map_or_else(|at| at.chunk.is_rejected(at.row), |record| record.rejection.is_some())
    }

    /// What the indices know of it.
    pub(super) fn meaning(&self) -> Meaning {
        self.record().map_or_else(|at| Self::meaning_of_row(&at.chunk, at.row), |record| meaning_of(record))
    }

    /// The meaning of a row, decoded where the chunk does not note it.
    pub(super) fn meaning_of_row(chunk: &Chunk, row: usize) -> Meaning {
        match chunk.meaning(row) {
            Meaning::Unknown => meaning_of(&chunk.record(row)),
            known => known,
        }
    }

    /// Whether another meaning of its key looks the same to every index. Most changes do not touch what an entry stands for, so that is asked
    /// first.
    pub(super) fn means_the_same(&self, other: &Meaning) -> bool {
        match (self.record(), other) {
            (Err(at), Meaning::Ip { prefix, .. }) if let Some(before) = at.chunk.prefix(at.row) => before == *prefix,
            _ => Indices::same(&self.meaning(), other),
        }
    }

    /// Whether it is of a scope.
    pub(super) fn is_in(&self, scope: &Scope) -> bool {
        let (kind, cluster) = match self.record() {
            Ok(record) => (record.key.kind, &record.key.cluster),
            Err(at) => at.chunk.scope(at.row),
        };
        kind == scope.kind && *cluster == scope.cluster
    }

    pub(super) fn has_value(&self, value: &[u8]) -> bool {
        self.record().map_or_else(|at| at.chunk.has_value(at.row, value), |record| *record.value == *value)
    }

    /// How many bytes its name and value are.
    pub(super) fn raw_length(&self) -> usize {
        let length = |record: &Record| record.key.name.len() + record.value.len();
        self.record().map_or_else(|at| length(&at.chunk.record(at.row)), |record| length(record))
    }

    /// When it came, when it changed last, and how many times.
    pub(super) fn history(&self) -> History {
        self.record().map_or_else(
            |at| at.chunk.history(at.row),
            |record| History { created: record.create_sequence, last: record.last_sequence, version: record.version },
        )
    }

    /// The state that an announcement keeps of it as its old version. `key` is its key.
    pub(super) fn version(&self, key: &EntryKey) -> Version {
        match self.record() {
            Ok(record) => version_of(record),
            // what is large is unpacked now, as the ring has to know its bytes
            Err(at) => match at.chunk.value_length_max(at.row).filter(|length| *length <= PACKED_VALUE_MAX) {
                Some(length) => Version::packed(at.chunk.rows(), at.row, length, decoded),
                None => version_of(&at.chunk.record_of(at.row, key.clone())),
            },
        }
    }
}

/// A record as it is held beside the chunks: without its object where that is large. 32,768 records are not packed at most
/// (`commit::folding`), so that their objects take 256 MiB at most, whatever a source writes; a service with some forty backends has less.
const KEPT_OBJECT_BYTES_MAX: usize = 8 << 10;

/// A value that is no longer than this has no object that is larger than that: the shortest item of a list has 2 bytes and takes 24.
const SMALL_VALUE_LENGTH: usize = KEPT_OBJECT_BYTES_MAX / 16;

/// The record as it is held: without its object if that is large, which is then decoded again for each reader.
pub(super) fn kept(record: Arc<Record>) -> Arc<Record> {
    let length = record.value.len().max(record.good_value.as_ref().map_or(0, |value| value.len()));
    let is_large = length > SMALL_VALUE_LENGTH && record.object.as_ref().is_some_and(|object| object.footprint() > KEPT_OBJECT_BYTES_MAX);
    if is_large { Arc::new(Record { object: None, ..Record::clone(&record) }) } else { record }
}

/// The record with its object.
pub(super) fn whole(record: &Arc<Record>) -> Arc<Record> {
    let object = if record.object.is_none() { object_of(record) } else { None };
    object.map_or_else(|| Arc::clone(record), |object| Arc::new(Record { object: Some(object), ..Record::clone(record) }))
}

/// What the indices know of a record, whether it is held with its object or not.
pub(super) fn meaning_of(record: &Record) -> Meaning {
    match Meaning::of(record) {
        Meaning::Unknown => Meaning::of(&Record { object: object_of(record), ..record.clone() }),
        known => known,
    }
}

/// Whether a record is an ip entry that names an identity.
pub(super) fn names(record: &Record, identity: u32) -> bool {
    record.key.kind.listed_as() == Kind::Ip && matches!(meaning_of(record), Meaning::Ip { identity: named, .. } if named == identity)
}

/// What a packed record means, from its last usable bytes.
pub(super) fn object_of(record: &Record) -> Option<Arc<Object>> {
    let usable = if record.rejection.is_none() { Some(&record.value) } else { record.good_value.as_ref() };
    decoded(&record.key, usable?)
}

/// What usable bytes of a key mean.
fn decoded(key: &EntryKey, usable: &Arc<[u8]>) -> Option<Arc<Object>> {
    wire::decode_accepted(key, usable).map(Arc::new)
}

/// A record as a version in an announcement.
pub(super) fn version_of(record: &Record) -> Version {
    Version::of(record, decoded)
}

impl View {
    /// Where the record of a key is.
    pub(super) fn place(&self, key: &EntryKey) -> Option<Place> {
        match self.base.row_of(key) {
            Some(at) => self.base.place_at(at),
            None => self.overlay.get(key).map(|record| Place::Fresh(Arc::clone(record))),
        }
    }

    /// Puts a record where that of its key is, or was.
    pub(super) fn put_at(&mut self, place: &Place, record: Arc<Record>) {
        match place {
            Place::Fresh(_) => self.overlay.insert(record),
            Place::Replaced(at, _) => self.base.put(Before::Replaced, at, Some(record)),
            Place::Packed(at) => self.base.put(Before::Packed, at, Some(record)),
        }
    }

    /// The record at a place, with its object.
    pub(super) fn record_at(&self, place: &Place) -> Arc<Record> {
        match place.record() {
            Ok(record) => whole(record),
            Err(at) => {
                let mut record = self.bare_record_at(at);
                record.object = object_of(&record);
                Arc::new(record)
            }
        }
    }

    /// The record at a place, with its object, if its key passes a test.
    pub(super) fn record_where(&self, place: &Place, test: impl Fn(&EntryKey) -> bool) -> Option<Arc<Record>> {
        match place.record() {
            Ok(record) => test(&record.key).then(|| whole(record)),
            Err(at) => {
                let key = at.key();
                test(&key).then(|| {
                    let mut record = self.settled(at, at.chunk.record_of(at.row, key));
                    record.object = object_of(&record);
                    Arc::new(record)
                })
            }
        }
    }

    /// The record in a row, without its object.
    pub(super) fn bare_record_at(&self, at: &PackedRow) -> Record {
        self.settled(at, at.chunk.record(at.row))
    }

    /// A packed record with the generation and source stamp beside its row.
    fn settled(&self, at: &PackedRow, mut record: Record) -> Record {
        record.generation = self.base.generation(at);
        record.source = self.base.source(at);
        record
    }

    pub(super) fn generation_at(&self, place: &Place) -> u64 {
        place.record().map_or_else(|at| self.base.generation(at), |record| record.generation)
    }

    pub(super) fn source_at(&self, place: &Place) -> SourceStamp {
        place.record().map_or_else(|at| self.base.source(at), |record| record.source)
    }

    /// Records from a key on, in key order, none decoded: all that may be ipcache entries on these hosts, and of each chunk without any of them one
    /// more, so that a scan can pause there. No host is no test.
    pub(super) fn places_on(&self, start: &EntryKey, hosts: &[IpAddr]) -> Scan<'_> {
        let hosts = hosts.iter().copied().map(number_of_host).collect();
        Scan::on(&self.base, self.overlay.from(start), start, hosts)
    }

    /// Every record from a key on, in key order, none decoded.
    pub(super) fn places_from(&self, start: &EntryKey) -> Scan<'_> {
        Scan::new(&self.base, self.overlay.from(start), start)
    }
}
