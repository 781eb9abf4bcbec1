//! The mirror in memory, as indices that answer every lookup.
//!
//! Owns: the newest [`Record`] of every key, the ipcache index, the reverse indices and the state of every scope. Receives
//! [`crate::model::Command`]s from the one writer and says in [`Effects`] what changed. Deliberately lacks: IO, awaiting, locks. The maps are
//! persistent: a clone costs a few pointers and is a snapshot that no later change touches, so readers never wait for the
//! writer (ARCHITECTURE.md).
//!
//! Most records are packed in chunks (`base`), some 40 B each, and decoded when somebody asks for them. What changes stands beside its chunk
//! (`side`), and what is new above them all (`overlay`), whole, until it is folded into new chunks (`fold`). The indices hold addresses, numbers and names, no records.

mod base;
mod changes;
mod collections;
mod index;
mod lookups;
mod scopes;
mod services;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;

use self::base::Base;
use self::base::location::RecordLocation;
use self::base::overlay::Overlay;
use self::index::Indices;
use self::scopes::Scopes;
use crate::model::{Announcement, Change, ClusterName, ClusterRecord, Cursor, EntryKey, Record, Scope, Sequence};
use crate::pack::Meaning;

pub use changes::derived::DERIVATION;
#[cfg(any(test, feature = "internals"))]
pub use changes::derived::entries_of;
pub use changes::fold::{FoldJob, Folded};
pub use index::Within;
pub use lookups::gist::Gist;
pub use lookups::lookup::{Live, LookupMatch};
pub use lookups::rank::{Rank, Weakness};
pub use lookups::raw::RawPlace;
pub use scopes::ScopeState;
pub use services::{
    Affinity, BackendPort, CONFLICT_REASONS, ExportConflict, GlobalBackend, GlobalService, LocalService, MergedExports, Selection,
    SelectionRule, ServiceShare, select,
};

/// The mirror in memory. Cloning makes a snapshot.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Most records, packed.
    base: Base,
    /// Records of keys that no chunk has a row of.
    overlay: Overlay,
    indices: Indices,
    scopes: Scopes,
    clusters: OrdMap<ClusterName, ClusterRecord>,
    made: changes::own_objects::OwnObjects,
    notices: changes::notices::Notices,
    entry_count: usize,
    sequence: Sequence,
}

/// What one command did, or several: what to announce and what to store. Everything in it belongs into one atomic batch.
#[derive(Debug, Default, PartialEq)]
pub struct Effects {
    /// In order of sequence.
    pub announcements: Vec<Announcement>,
    /// Keys to be stored anew (`Some`) or removed (`None`), silent updates included, in the order in which that happened: of a key that is
    /// named twice the last counts.
    pub records: Vec<(EntryKey, Option<Arc<Record>>)>,
    /// Cursors to be stored or cleared.
    pub cursors: BTreeMap<Scope, Option<Cursor>>,
    /// Cluster records to be stored or removed.
    pub clusters: BTreeMap<ClusterName, Option<ClusterRecord>>,
}

impl View {
    /// An empty mirror whose first change gets the sequence after `sequence`.
    #[must_use]
    pub fn starting_at(sequence: Sequence) -> Self {
        Self { sequence, ..Self::default() }
    }

    /// The sequence of the newest change.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// Holds a record of a key that nothing is held of.
    fn hold(&mut self, record: Arc<Record>) {
        self.entry_count += usize::from(record.key.kind.is_mirrored());
        self.indices.add(&record.key, &Meaning::of(&record), record.rejection.is_some());
        match self.base.row_of(&record.key) {
            Some(at) => self.base.put(&at, Some(record)),
            None => {
                self.base.count_insert(&record.key);
                self.overlay.insert(record);
            }
        }
    }

    /// Holds a record in place of another one of its key. An index is touched only where it would see a difference: as a rule none does.
    fn exchange(&mut self, place: &RecordLocation, record: Arc<Record>) {
        let after = Meaning::of(&record);
        let (was_rejected, is_rejected) = (place.is_rejected(), record.rejection.is_some());
        if was_rejected != is_rejected || !place.means_the_same(&after) {
            self.indices.remove(&record.key, &place.meaning(), was_rejected);
            self.indices.add(&record.key, &after, is_rejected);
        } else if let Meaning::Identity(id) = after {
            self.indices.forget_labels(id, &record.key.cluster);
        }
        self.put_at(place, record);
    }

    /// Lets go of a record; its scope still counts it.
    fn release(&mut self, place: &RecordLocation, key: &EntryKey) {
        self.entry_count -= usize::from(key.kind.is_mirrored());
        self.indices.remove(key, &place.meaning(), place.is_rejected());
        match place {
            RecordLocation::Fresh(_) => drop(self.overlay.remove(key)),
            RecordLocation::Replaced(at, _) | RecordLocation::Packed(at) => self.base.put(at, None),
        }
    }
}

/// The scope that a key belongs to.
fn scope_of(key: &EntryKey) -> Scope {
    Scope { cluster: key.cluster.clone(), kind: key.kind }
}

/// The key of a change.
fn key_of(change: &Change) -> &EntryKey {
    match change {
        Change::Put { key, .. } | Change::Delete { key } | Change::Hold { key } => key,
    }
}
