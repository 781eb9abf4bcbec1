//! The mirror in memory: records, indices over them, and the state of every scope.
//!
//! The committer applies [`Command`](crate::model::Command)s, each batch of which yields a
//! [`ChangeSet`] to announce and to store. All parts are persistent collections: a clone of the
//! [`View`] is a snapshot in constant time, so readers never wait for the committer.
//!
//! The methods of [`View`] are grouped by topic: `changes` has the commands and what follows from
//! them, `lookups` has the queries, and `services` merges global services.

mod changes;
mod collections;
mod index;
mod lookups;
mod records;
mod scopes;
mod services;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;

use self::changes::notices::Notices;
use self::changes::observation_gaps::ObservationGaps;
use self::changes::own_objects::OwnObjects;
use self::index::{IndexUpdate, SecondaryIndices};
use self::records::RecordStore;
use self::records::location::RecordLocation;
use self::scopes::Scopes;
use crate::feed::Announcement;
use crate::model::{Change, ClusterName, ClusterRecord, Cursor, EntryKey, ObservationGap, Record, ReplacedRecord, Scope, Sequence};
use crate::pack::{Chunk, IndexedFields};

pub use crate::pack::{FieldTest, RowField, RowFilter, TextTest};
pub use changes::derived::DERIVATION_VERSION;
#[cfg(any(test, feature = "internals"))]
pub use changes::derived::derive_entries;
pub use index::NetworkEntries;
pub use lookups::entry_rank::{EntryRank, RankReason};
pub use lookups::lookup::{LiveKey, LookupMatch};
pub use lookups::raw_keys::RawKey;
pub use lookups::references::RecordReferences;
pub use records::folding::{FoldJob, FoldResult};
pub use scopes::ScopeState;
pub use services::{
    BackendPort, ExportConflict, GlobalBackend, GlobalService, LocalService, MergedExports, Selection, ServiceMember, select_backends,
};

/// The mirror in memory. Cloning makes a snapshot in constant time.
#[derive(Debug, Clone, Default)]
pub struct View {
    records: RecordStore,
    indices: SecondaryIndices,
    scopes: Scopes,
    clusters: OrdMap<ClusterName, ClusterRecord>,
    own_objects: OwnObjects,
    observation_gaps: ObservationGaps,
    notices: Notices,
    /// Minimum number of puts that are packed at once, if it is not the usual one.
    packed_puts_min: Option<usize>,
    /// True if change sets contain the records that their changes replace.
    collects_replaced: bool,
    /// Number of mirrored keys, without derived entries.
    entry_count: usize,
    /// Sequence of the newest change.
    sequence: Sequence,
}

/// Result of one or more commands: changes to announce and to store. All of it belongs in one
/// atomic group.
#[derive(Debug, Default, PartialEq)]
pub struct ChangeSet {
    /// Announcements, in order of sequence.
    pub announcements: Vec<Announcement>,
    /// New records by key, or `None` for a removed key, in the order of the changes. Includes
    /// changes that are not announced. If a key occurs twice, its last record counts.
    pub records: Vec<(EntryKey, Option<Arc<Record>>)>,
    /// Chunks that were packed from some of the records.
    pub chunks: Vec<Chunk>,
    /// New cursors by scope, or `None` for a cleared cursor.
    pub cursors: BTreeMap<Scope, Option<Cursor>>,
    /// New cluster records by cluster, or `None` for a removed one.
    pub clusters: BTreeMap<ClusterName, Option<ClusterRecord>>,
    /// New observation gaps by scope, or `None` for a removed scope.
    pub gaps: BTreeMap<Scope, Option<Arc<[ObservationGap]>>>,
    /// Records that the changes replaced, by sequence. Empty unless the view collects them.
    pub replaced: BTreeMap<Sequence, ReplacedRecord>,
}

impl View {
    /// Creates an empty mirror whose first change gets the sequence after `sequence`.
    #[must_use]
    pub fn starting_at(sequence: Sequence) -> Self {
        Self { sequence, ..Self::default() }
    }

    /// Makes change sets contain the records that they replace.
    pub const fn collect_replaced(&mut self) {
        self.collects_replaced = true;
    }

    /// Sets the minimum number of puts that are packed at once. Low in tests, which have few keys.
    #[cfg(test)]
    #[must_use]
    pub fn with_packed_puts_min(self, count: usize) -> Self {
        Self { packed_puts_min: Some(count), ..self }
    }

    /// Returns the sequence of the newest change.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// Replaces the record at a location. Updates the indices only if their content changes, which
    /// is rare.
    fn replace_record(&mut self, location: &RecordLocation, record: Arc<Record>) {
        let after = IndexedFields::from_record(&record);
        let (was_rejected, is_rejected) = (location.is_rejected(), record.rejection.is_some());
        if was_rejected != is_rejected || !location.is_indexed_alike(&after) {
            self.indices.update(IndexUpdate::Remove, &record.key, &location.indexed_fields(), was_rejected);
            self.indices.update(IndexUpdate::Add, &record.key, &after, is_rejected);
        } else if let IndexedFields::Identity(id) = after {
            self.indices.forget_labels(id, &record.key.cluster);
        }
        self.records.replace(location, record);
    }

    /// Removes a record. The caller updates the counts of its scope.
    fn remove_record(&mut self, location: &RecordLocation, key: &EntryKey) {
        self.entry_count -= usize::from(key.kind.is_mirrored());
        self.indices.update(IndexUpdate::Remove, key, &location.indexed_fields(), location.is_rejected());
        self.records.remove(location, key);
    }

    /// Returns up to `count` jobs that fold the chunks with the most changes. None of their ranges
    /// overlap. Empty if everything is packed.
    #[must_use]
    pub fn fold_jobs(&self, count: usize) -> Vec<FoldJob> {
        self.records.fold_jobs(count)
    }

    /// Replaces chunks with folded ones. Changes since the job was made stay in effect, and every
    /// query returns the same as before. If chunks were added in their range meanwhile, nothing
    /// changes. Returns false if another fold would not help either: the number of unpacked changes
    /// did not decrease.
    pub fn fold(&mut self, folded: FoldResult) -> bool {
        self.records.fold(folded)
    }

    /// Returns the number of records that are not packed.
    #[must_use]
    pub fn unpacked_count(&self) -> usize {
        self.records.unpacked_count()
    }

    /// Returns the number of packed rows whose keys were deleted. They use memory until their
    /// chunks are folded.
    #[must_use]
    pub fn deleted_row_count(&self) -> usize {
        self.records.deleted_row_count()
    }

    /// Returns the number of packed rows with a newer revision and lease in their chunk's delta.
    #[must_use]
    pub fn restamped_row_count(&self) -> usize {
        self.records.restamped_row_count()
    }

    /// Returns the number of chunks, and their total size in bytes.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn packed_size(&self) -> (usize, usize) {
        self.chunks().fold((0, 0), |(count, length), chunk| (count + 1, length + chunk.stored().len()))
    }

    /// Iterates over the chunks, in key order.
    #[cfg(any(test, feature = "internals"))]
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.records.chunks()
    }
}

fn scope_of(key: &EntryKey) -> Scope {
    Scope { cluster: key.cluster.clone(), kind: key.kind }
}

fn key_of(change: &Change) -> &EntryKey {
    match change {
        Change::Put { key, .. } | Change::Delete { key } | Change::Hold { key } => key,
    }
}
