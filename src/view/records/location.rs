//! Location of a record: in the overlay, in the delta of a chunk, or packed in a chunk.

use std::sync::Arc;

use super::decoding::{indexed_fields_of, indexed_fields_of_row};
use crate::feed::Version;
use crate::model::{ClusterName, EntryKey, Kind, Record, Scope};
use crate::pack::{Chunk, IndexedFields, RecordHistory};
use crate::view::index::SecondaryIndices;

/// Maximum length of a value that an announcement keeps packed, in bytes. The ring of announcements
/// charges a packed value with the length of the longest value in its chunk, so that length must be
/// well below the ring's 4 KiB per announcement. An ipcache entry of a pod has about 350 bytes, a
/// node 1,500.
const PACKED_VALUE_MAX: usize = 2_048;

/// Number of a chunk. A new chunk may get the number of a removed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::view) struct ChunkId(pub(in crate::view) usize);

#[derive(Debug, Clone)]
pub(in crate::view) struct PackedRow {
    pub(in crate::view) id: ChunkId,
    pub(in crate::view) chunk: Chunk,
    pub(in crate::view) row: usize,
}

/// Location of a record, with the record itself unless it is packed.
#[derive(Debug, Clone)]
pub(in crate::view) enum RecordLocation {
    /// In the overlay: no chunk has a row of the key.
    Overlay(Arc<Record>),
    /// In the delta of a chunk: the record replaces a row.
    Replaced(PackedRow, Arc<Record>),
    Packed(PackedRow),
}

impl PackedRow {
    pub(in crate::view) fn key(&self) -> EntryKey {
        self.chunk.key(self.row)
    }
}

impl RecordLocation {
    /// Returns the record if it is not packed. `Err` is no failure: it has the row of a packed
    /// record.
    pub(in crate::view) fn record(&self) -> Result<&Arc<Record>, &PackedRow> {
        match self {
            Self::Overlay(record) | Self::Replaced(_, record) => Ok(record),
            Self::Packed(packed) => Err(packed),
        }
    }

    /// Returns the row number of the key, if a chunk has the key.
    pub(in crate::view) fn row(&self) -> Option<usize> {
        match self {
            Self::Overlay(_) => None,
            Self::Replaced(packed, _) | Self::Packed(packed) => Some(packed.row),
        }
    }

    pub(in crate::view) fn key(&self) -> EntryKey {
        self.record().map_or_else(PackedRow::key, |record| record.key.clone())
    }

    pub(in crate::view) fn kind(&self) -> Kind {
        self.record().map_or_else(|packed| packed.chunk.scope(packed.row).0, |record| record.key.kind)
    }

    pub(in crate::view) fn cluster(&self) -> &ClusterName {
        self.record().map_or_else(|packed| packed.chunk.scope(packed.row).1, |record| &record.key.cluster)
    }

    /// Returns whether the newest bytes cannot be used.
    pub(in crate::view) fn is_rejected(&self) -> bool {
        self.record().map_or_else(|packed| packed.chunk.is_rejected(packed.row), |record| record.rejection.is_some())
    }

    /// Returns the indexed fields.
    pub(in crate::view) fn indexed_fields(&self) -> IndexedFields {
        self.record().map_or_else(|packed| indexed_fields_of_row(&packed.chunk, packed.row), |record| indexed_fields_of(record))
    }

    /// Returns whether every index would contain the same for these indexed fields. Usually the
    /// prefix of an ipcache entry stays, so that is compared first.
    pub(in crate::view) fn is_indexed_alike(&self, other: &IndexedFields) -> bool {
        if let (Err(packed), IndexedFields::Ip { prefix, .. }) = (self.record(), other)
            && let Some(before) = packed.chunk.prefix(packed.row)
        {
            return before == *prefix;
        }
        SecondaryIndices::are_indexed_alike(&self.indexed_fields(), other)
    }

    pub(in crate::view) fn is_in_scope(&self, scope: &Scope) -> bool {
        let (kind, cluster) = match self.record() {
            Ok(record) => (record.key.kind, &record.key.cluster),
            Err(packed) => packed.chunk.scope(packed.row),
        };
        kind == scope.kind && *cluster == scope.cluster
    }

    pub(in crate::view) fn has_value(&self, value: &[u8]) -> bool {
        self.record().map_or_else(|packed| packed.chunk.has_value(packed.row, value), |record| *record.value == *value)
    }

    /// Returns the length of the name and the value, in bytes.
    pub(in crate::view) fn byte_count(&self) -> usize {
        let length = |record: &Record| record.key.name.len() + record.value.len();
        self.record().map_or_else(|packed| length(&packed.chunk.record(packed.row)), |record| length(record))
    }

    /// Returns the sequences of the creation and of the last change, and the number of changes.
    pub(in crate::view) fn history(&self) -> RecordHistory {
        self.record().map_or_else(
            |packed| packed.chunk.history(packed.row),
            |record| RecordHistory { created: record.create_sequence, last: record.last_sequence, version: record.version },
        )
    }

    /// Returns the record as the old version in an announcement. `key` is the record's key.
    pub(in crate::view) fn version(&self, key: &EntryKey) -> Version {
        match self.record() {
            Ok(record) => Version::from_record(record),
            // large values are unpacked now, because the ring must know their size
            Err(packed) => match packed.chunk.value_length_max(packed.row).filter(|length| *length <= PACKED_VALUE_MAX) {
                Some(length) => Version::from_packed(packed.chunk.clone(), packed.row, length),
                None => Version::from_record(&packed.chunk.record_with_key(packed.row, key.clone())),
            },
        }
    }
}
