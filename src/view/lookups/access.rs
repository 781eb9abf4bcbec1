//! Access to records by key, by place and in key order, decoded on use where they are packed.

use std::net::IpAddr;
use std::sync::Arc;

use crate::model::{EntryKey, Record, SourceStamp};
use crate::view::View;
use crate::view::base::decoding::{object_of, whole};
use crate::view::base::location::{PackedRow, RecordLocation};
use crate::view::base::scan::{Scan, number_of_host};

impl View {
    /// Where the record of a key is.
    pub(in crate::view) fn place(&self, key: &EntryKey) -> Option<RecordLocation> {
        match self.base.row_of(key) {
            Some(at) => self.base.place_at(at),
            None => self.overlay.get(key).map(|record| RecordLocation::Fresh(Arc::clone(record))),
        }
    }

    /// Puts a record where that of its key is, or was.
    pub(in crate::view) fn put_at(&mut self, place: &RecordLocation, record: Arc<Record>) {
        match place {
            RecordLocation::Fresh(_) => self.overlay.insert(record),
            RecordLocation::Replaced(at, _) | RecordLocation::Packed(at) => self.base.put(at, Some(record)),
        }
    }

    /// The record at a place, with its object.
    pub(in crate::view) fn record_at(&self, place: &RecordLocation) -> Arc<Record> {
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
    pub(super) fn record_where(&self, place: &RecordLocation, test: impl Fn(&EntryKey) -> bool) -> Option<Arc<Record>> {
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
    pub(in crate::view) fn bare_record_at(&self, at: &PackedRow) -> Record {
        self.settled(at, at.chunk.record(at.row))
    }

    /// A packed record with the generation and source stamp beside its row.
    fn settled(&self, at: &PackedRow, mut record: Record) -> Record {
        record.generation = self.base.generation(at);
        record.source = self.base.source(at);
        record
    }

    /// The last listing that had the record at a place.
    pub(in crate::view) fn generation_at(&self, place: &RecordLocation) -> u64 {
        place.record().map_or_else(|at| self.base.generation(at), |record| record.generation)
    }

    /// Revision and lease that the record at a place came with.
    pub(in crate::view) fn source_at(&self, place: &RecordLocation) -> SourceStamp {
        place.record().map_or_else(|at| self.base.source(at), |record| record.source)
    }

    /// Records from a key on, in key order, none decoded: all that may be ipcache entries on these hosts, and of each chunk without any of them one
    /// more, so that a scan can pause there. No host is no test.
    pub(super) fn places_on(&self, start: &EntryKey, hosts: &[IpAddr]) -> Scan<'_> {
        let hosts = hosts.iter().copied().map(number_of_host).collect();
        Scan::new(&self.base, self.overlay.from(start), start, hosts)
    }

    /// Every record from a key on, in key order, none decoded.
    pub(in crate::view) fn places_from(&self, start: &EntryKey) -> Scan<'_> {
        self.places_on(start, &[])
    }
}
