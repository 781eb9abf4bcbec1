//! Records of the mirror: packed chunks, and the changes that are not packed yet.
//!
//! Most records are rows of packed chunks (`chunk_map`) of about 40 bytes each, which are decoded
//! on use. Changes of packed rows are in the chunk's delta (`delta`), and records of new keys are
//! in the overlay (`overlay`), until folding packs both into new chunks (`folding`).

mod chunk_map;
mod confirmations;
pub(super) mod decoding;
mod delta;
pub(super) mod folding;
pub(super) mod location;
mod overlay;
pub(super) mod scan;

use std::sync::Arc;

use self::chunk_map::ChunkMap;
use self::decoding::{decode_object, with_object};
use self::location::{PackedRow, RecordLocation};
use self::overlay::Overlay;
use self::scan::RecordScan;
use crate::model::{EntryKey, Record, Scope, Sequence, SourceStamp};
use crate::pack::{Chunk, RowFilter};

/// The newest record of every key. Cloning makes a snapshot in constant time.
#[derive(Debug, Clone, Default)]
pub(super) struct RecordStore {
    chunks: ChunkMap,
    /// Records of keys that have no row in any chunk.
    overlay: Overlay,
}

impl RecordStore {
    /// Adds a chunk whose rows no list has confirmed. It must not overlap other chunks.
    pub(super) fn add_chunk(&mut self, chunk: Chunk) {
        self.chunks.add(chunk);
    }

    /// Finds the record of a key.
    pub(super) fn locate(&self, key: &EntryKey) -> Option<RecordLocation> {
        match self.chunks.find_row(key) {
            Some(packed) => self.chunks.locate_row(packed),
            None => self.overlay.get(key).map(|record| RecordLocation::Overlay(Arc::clone(record))),
        }
    }

    /// Inserts a record of a key that has none.
    pub(super) fn insert(&mut self, record: Arc<Record>) {
        match self.chunks.find_row(&record.key) {
            Some(packed) => self.chunks.put(&packed, Some(record)),
            None => {
                self.chunks.count_insertion(&record.key);
                self.overlay.insert(record);
            }
        }
    }

    /// Replaces the record at a location with another one of the same key.
    pub(super) fn replace(&mut self, location: &RecordLocation, record: Arc<Record>) {
        match location {
            RecordLocation::Overlay(_) => self.overlay.insert(record),
            RecordLocation::Replaced(packed, _) | RecordLocation::Packed(packed) => self.chunks.put(packed, Some(record)),
        }
    }

    /// Removes the record at the location of `key`.
    pub(super) fn remove(&mut self, location: &RecordLocation, key: &EntryKey) {
        match location {
            RecordLocation::Overlay(_) => drop(self.overlay.remove(key)),
            RecordLocation::Replaced(packed, _) | RecordLocation::Packed(packed) => self.chunks.put(packed, None),
        }
    }

    /// Records that the list `generation` confirmed a packed row, with this revision and lease.
    pub(super) fn confirm_row(&mut self, packed: &PackedRow, generation: u64, source: SourceStamp) {
        self.chunks.confirm(packed, generation);
        self.chunks.restamp(packed, source);
    }

    /// Returns the record at a location, with its object.
    pub(super) fn record_at(&self, location: &RecordLocation) -> Arc<Record> {
        match location.record() {
            Ok(record) => with_object(record),
            Err(packed) => self.decode_row(packed, packed.key()),
        }
    }

    /// Returns the record of a key, with its object. Unlike [`Self::record_at`], it need not decode
    /// the key.
    pub(super) fn record_of(&self, key: &EntryKey) -> Option<Arc<Record>> {
        let location = self.locate(key)?;
        Some(location.record().map_or_else(|packed| self.decode_row(packed, key.clone()), with_object))
    }

    fn decode_row(&self, packed: &PackedRow, key: EntryKey) -> Arc<Record> {
        let mut record = self.with_confirmation(packed, packed.chunk.record_with_key(packed.row, key));
        record.object = decode_object(&record);
        Arc::new(record)
    }

    /// Returns the record at a location, with its object, if its key passes a test.
    pub(super) fn record_at_if(&self, location: &RecordLocation, test: impl Fn(&EntryKey) -> bool) -> Option<Arc<Record>> {
        match location.record() {
            Ok(record) => test(&record.key).then(|| with_object(record)),
            Err(packed) => {
                let key = packed.key();
                test(&key).then(|| self.decode_row(packed, key))
            }
        }
    }

    /// Returns the record of a packed row, without its object.
    pub(super) fn bare_record_at(&self, packed: &PackedRow) -> Record {
        self.with_confirmation(packed, packed.chunk.record(packed.row))
    }

    fn with_confirmation(&self, packed: &PackedRow, mut record: Record) -> Record {
        record.generation = self.chunks.generation(packed);
        record.source = self.chunks.source(packed);
        record
    }

    /// Returns the number of the last list that contained the record at a location; 0 if none did.
    pub(super) fn generation_at(&self, location: &RecordLocation) -> u64 {
        location.record().map_or_else(|packed| self.chunks.generation(packed), |record| record.generation)
    }

    /// Returns the newest revision and lease of the record at a location.
    pub(super) fn source_at(&self, location: &RecordLocation) -> SourceStamp {
        location.record().map_or_else(|packed| self.chunks.source(packed), |record| record.source)
    }

    /// Iterates over the records from a key on that may match a filter, in key order, without
    /// decoding.
    pub(super) fn scan_matching<'a>(&'a self, start: &EntryKey, filter: Option<&'a RowFilter>) -> RecordScan<'a> {
        RecordScan::new(&self.chunks, self.overlay.from(start), start, filter)
    }

    /// Iterates over the records from a key on, in key order, without decoding.
    pub(super) fn scan_from(&self, start: &EntryKey) -> RecordScan<'_> {
        self.scan_matching(start, None)
    }

    /// Iterates over the records of a scope, in key order, without decoding.
    pub(super) fn scan_scope(&self, scope: &Scope) -> impl Iterator<Item = RecordLocation> {
        let start = EntryKey::new(scope.kind, scope.cluster.clone(), "");
        self.scan_from(&start).take_while(move |location| location.is_in_scope(scope))
    }

    /// Returns at least the `count` records with the lowest sequences after a position, in no
    /// particular order. The result has every record that changed between the position and the
    /// highest sequence in it.
    pub(super) fn changed_after(&self, position: Sequence, count: usize) -> Vec<(Sequence, RecordLocation)> {
        let mut found = self.chunks.changed_after(position, count);
        let last = found.get(..count).and_then(|found| found.iter().map(|(sequence, _)| *sequence).max()).unwrap_or(Sequence(u64::MAX));
        let overlay = self.overlay.changed_between(position, last);
        found.extend(overlay.map(|(sequence, record)| (sequence, RecordLocation::Overlay(Arc::clone(record)))));
        found
    }

    /// Iterates over the ipcache entries that name an identity, from a key on, in key order.
    pub(super) fn ip_entries_of_identity(&self, identity: u32, start: &EntryKey) -> impl Iterator<Item = Arc<Record>> {
        let mut packed = self.chunks.ip_entries_of_identity(identity, start).peekable();
        let mut overlay = self.overlay.ip_entries_of_identity(identity, start).peekable();
        std::iter::from_fn(move || {
            let is_packed_first = match (packed.peek(), overlay.peek()) {
                (Some((key, _)), Some(record)) => *key < record.key,
                (Some(_), None) => true,
                (None, _) => false,
            };
            if is_packed_first {
                packed.next().map(|(_, location)| self.record_at(&location))
            } else {
                overlay.next().map(|record| self.record_at(&RecordLocation::Overlay(Arc::clone(record))))
            }
        })
    }

    /// Returns the number of held keys of a scope.
    pub(super) fn held_count(&self, scope: &Scope) -> usize {
        let start = EntryKey::new(scope.kind, scope.cluster.clone(), "");
        let overlay = self.overlay.from(&start).map(|(_, record)| record);
        let overlay = overlay.take_while(|record| record.key.kind == scope.kind && record.key.cluster == scope.cluster);
        self.chunks.held_count(scope) + overlay.filter(|record| record.source.held).count()
    }

    /// Returns the number of keys from `start` up to but not including `end`.
    pub(super) fn count_between(&self, start: &EntryKey, end: &EntryKey) -> usize {
        self.chunks.count_between(start, end) + self.overlay.count_between(start, end)
    }
}
