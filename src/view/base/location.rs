//! The place of a record: overlay, delta or chunk.

use std::sync::Arc;

use super::decoding::{decoded, meaning_of, version_of};
use crate::model::{ClusterName, EntryKey, Kind, Record, Scope, Version};
use crate::pack::{Chunk, History, Meaning};
use crate::view::index::Indices;

/// Values of so many bytes at most are announced as they are packed, and count as many as the longest of their chunk has: that of an ip entry of a
/// pod has some 350, that of a node 1,500, and the ring, which counts so much for each, has 4 KiB for each.
const PACKED_VALUE_MAX: usize = 2_048;

/// Names a chunk of the base, until it is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::view) struct ChunkId(pub(in crate::view) usize);

/// One row of a chunk.
#[derive(Debug, Clone)]
pub(in crate::view) struct PackedRow {
    pub(in crate::view) id: ChunkId,
    pub(in crate::view) chunk: Chunk,
    pub(in crate::view) row: usize,
}

/// The place of a record.
#[derive(Debug, Clone)]
pub(in crate::view) enum RecordLocation {
    /// In the overlay: no chunk has a row of its key.
    Fresh(Arc<Record>),
    /// Beside a chunk: it stands for a row.
    Replaced(PackedRow, Arc<Record>),
    /// In a chunk.
    Packed(PackedRow),
}

impl PackedRow {
    /// The key of the row.
    pub(in crate::view) fn key(&self) -> EntryKey {
        self.chunk.key(self.row)
    }
}

impl RecordLocation {
    /// The record, where it is whole.
    pub(in crate::view) fn record(&self) -> Result<&Arc<Record>, &PackedRow> {
        match self {
            Self::Fresh(record) | Self::Replaced(_, record) => Ok(record),
            Self::Packed(at) => Err(at),
        }
    }

    /// The row of its key.
    pub(in crate::view) fn row(&self) -> Option<usize> {
        match self {
            Self::Fresh(_) => None,
            Self::Replaced(at, _) | Self::Packed(at) => Some(at.row),
        }
    }

    /// Its key.
    pub(in crate::view) fn key(&self) -> EntryKey {
        self.record().map_or_else(PackedRow::key, |record| record.key.clone())
    }

    /// The kind of its key.
    pub(in crate::view) fn kind(&self) -> Kind {
        self.record().map_or_else(|at| at.chunk.scope(at.row).0, |record| record.key.kind)
    }

    /// The cluster of its key.
    pub(in crate::view) fn cluster(&self) -> &ClusterName {
        self.record().map_or_else(|at| at.chunk.scope(at.row).1, |record| &record.key.cluster)
    }

    /// Whether its newest bytes cannot be used.
    pub(in crate::view) fn is_rejected(&self) -> bool {
        self.record().map_or_else(|at| at.chunk.is_rejected(at.row), |record| record.rejection.is_some())
    }

    /// What the indices know of it.
    pub(in crate::view) fn meaning(&self) -> Meaning {
        self.record().map_or_else(|at| Self::meaning_of_row(&at.chunk, at.row), |record| meaning_of(record))
    }

    /// The meaning of a row, decoded where the chunk does not note it.
    pub(in crate::view) fn meaning_of_row(chunk: &Chunk, row: usize) -> Meaning {
        match chunk.meaning(row) {
            Meaning::Unknown => meaning_of(&chunk.record(row)),
            known => known,
        }
    }

    /// Whether another meaning of its key looks the same to every index. Most changes do not touch what an entry stands for, so that is asked
    /// first.
    pub(in crate::view) fn means_the_same(&self, other: &Meaning) -> bool {
        if let (Err(at), Meaning::Ip { prefix, .. }) = (self.record(), other)
            && let Some(before) = at.chunk.prefix(at.row)
        {
            return before == *prefix;
        }
        Indices::same(&self.meaning(), other)
    }

    /// Whether it is of a scope.
    pub(in crate::view) fn is_in(&self, scope: &Scope) -> bool {
        let (kind, cluster) = match self.record() {
            Ok(record) => (record.key.kind, &record.key.cluster),
            Err(at) => at.chunk.scope(at.row),
        };
        kind == scope.kind && *cluster == scope.cluster
    }

    /// Whether its bytes are these.
    pub(in crate::view) fn has_value(&self, value: &[u8]) -> bool {
        self.record().map_or_else(|at| at.chunk.has_value(at.row, value), |record| *record.value == *value)
    }

    /// How many bytes its name and value are.
    pub(in crate::view) fn raw_length(&self) -> usize {
        let length = |record: &Record| record.key.name.len() + record.value.len();
        self.record().map_or_else(|at| length(&at.chunk.record(at.row)), |record| length(record))
    }

    /// When it came, when it changed last, and how many times.
    pub(in crate::view) fn history(&self) -> History {
        self.record().map_or_else(
            |at| at.chunk.history(at.row),
            |record| History { created: record.create_sequence, last: record.last_sequence, version: record.version },
        )
    }

    /// The state that an announcement keeps of it as its old version. `key` is its key.
    pub(in crate::view) fn version(&self, key: &EntryKey) -> Version {
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
