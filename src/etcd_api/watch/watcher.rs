//! One watch: what it asks for, and how far it was told.

use etcd_client::proto::{PbEvent, PbKeyValue, PbWatchRequestUnion};
use smol_str::SmolStr;

use super::super::revisions::{revision, sequence};
use super::super::span::Span;
use super::super::window::Window;
use crate::admission::Held;
use crate::handle::{RawChange, Reading};
use crate::model::{Announcement, OpenOne, RawRecord, Sequence};

/// An answer ends with the event that brings it to so many bytes: the half of what clients take at most unless told otherwise (2 MiB), as
/// one event has 1.5 MiB at most. So none has to be sent in fragments.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// How many changes a look goes through at most: some milliseconds of unpacking.
const LOOKED_AT_MAX: usize = 1_024;

/// The types of events.
const PUT: i32 = 0;
const DELETE: i32 = 1;

/// The filters.
const NO_PUT: i32 = 0;
const NO_DELETE: i32 = 1;

/// One watch.
#[derive(Debug)]
pub(super) struct Watcher {
    span: Span,
    without_puts: bool,
    without_deletes: bool,
    prev_kv: bool,
    progress_notify: bool,
    /// It was told something since it was last asked for progress.
    was_told: bool,
    /// Everything up to here was told; above the head where it begins later.
    sent: Sequence,
    _open: (OpenOne, Held),
}

/// Why there is no watch.
pub(super) struct Refused(pub(super) String);

/// What a look found.
pub(super) enum Told {
    /// Events, or none.
    Events(Vec<PbEvent>),
    /// It is not known any more what was deleted; from above this position on it is.
    Compacted(Sequence),
}

impl Watcher {
    /// The watch that a request to create one asks for.
    pub(super) fn new(
        request: &PbWatchRequestUnion,
        head: Sequence,
        open: (OpenOne, Held),
        may_read: impl Fn(&Span) -> bool,
    ) -> Result<Self, Refused> {
        let PbWatchRequestUnion::CreateRequest(create) = request else { return Err(Refused("no watch is asked for".to_owned())) };
        if create.start_revision < 0 {
            return Err(Refused("etcdserver: mvcc: required revision has been compacted".to_owned()));
        }
        let span = Span::new(if create.key.is_empty() { &[0] } else { &create.key }, &create.range_end);
        if !may_read(&span) {
            return Err(Refused("rpc error: code = PermissionDenied desc = etcdserver: permission denied".to_owned()));
        }
        if span.is_empty() {
            return Err(Refused("mvcc: watcher range is empty".to_owned()));
        }
        // a watch from a revision has everything before it
        let sent = if create.start_revision > 0 { sequence(create.start_revision - 1) } else { head };
        Ok(Self {
            span,
            without_puts: create.filters.contains(&NO_PUT),
            without_deletes: create.filters.contains(&NO_DELETE),
            prev_kv: create.prev_kv,
            progress_notify: create.progress_notify,
            was_told: false,
            sent,
            _open: open,
        })
    }

    /// Everything up to here was told.
    pub(super) const fn sent(&self) -> Sequence {
        self.sent
    }

    pub(super) fn is_current(&self, head: Sequence) -> bool {
        self.sent >= head
    }

    /// Whether it is to be told how far it is: it asked for that and was told nothing since the last time.
    pub(super) const fn owes_progress(&mut self) -> bool {
        let was_told = std::mem::replace(&mut self.was_told, false);
        self.progress_notify && !was_told
    }

    /// A piece of what it lacks, along the newest changes; `None` where they do not reach back to it.
    pub(super) fn follow(&mut self, reading: &Reading, window: &Window) -> Option<Told> {
        let (mut events, mut bytes, mut looked_at) = (Vec::new(), 0, 0);
        while !self.is_current(reading.position().sequence) && looked_at < LOOKED_AT_MAX {
            let Some(part) = window.after(reading, self.sent) else {
                return (!events.is_empty()).then_some(Told::Events(events));
            };
            for told in part.after(self.sent) {
                self.sent = told.announcement.sequence;
                looked_at += 1;
                if let Some(event) = self.event(&told.key, &told.announcement) {
                    bytes += size_of_event(&event);
                    events.push(event);
                }
                if bytes >= ANSWER_BYTES_MAX {
                    break;
                }
            }
            if bytes >= ANSWER_BYTES_MAX {
                break;
            }
            self.sent = self.sent.max(part.upto);
        }
        self.was_told |= !events.is_empty();
        Some(Told::Events(events))
    }

    fn event(&self, key: &SmolStr, announcement: &Announcement) -> Option<PbEvent> {
        let is_delete = announcement.deleted.is_some();
        let is_unwanted = if is_delete { self.without_deletes } else { self.without_puts };
        if is_unwanted || !self.span.holds(key.as_bytes()) {
            return None;
        }
        let prev_kv = if self.prev_kv { announcement.raw_old(key).as_ref().map(key_value) } else { None };
        let kv = if is_delete { deleted(key, announcement.sequence) } else { key_value(&announcement.raw_new(key)?) };
        Some(PbEvent { r#type: if is_delete { DELETE } else { PUT }, kv: Some(kv), prev_kv })
    }

    /// A piece of what it lacks, by the newest state of each key that changed.
    pub(super) fn replay(&mut self, reading: &Reading) -> Told {
        if let Err(lowest) = reading.raw_goes_on_from(self.sent) {
            return Told::Compacted(lowest);
        }
        let changes = reading.raw_changes_after(self.sent, LOOKED_AT_MAX);
        let is_all = changes.len() < LOOKED_AT_MAX;
        let (mut events, mut bytes) = (Vec::new(), 0);
        for (sequence, change) in changes {
            if bytes >= ANSWER_BYTES_MAX {
                self.was_told = true;
                return Told::Events(events);
            }
            self.sent = sequence;
            let event = match change {
                RawChange::Put(record) if !self.without_puts && self.span.holds(record.key.as_bytes()) => {
                    PbEvent { r#type: PUT, kv: Some(key_value(&record)), prev_kv: None }
                }
                RawChange::Delete(key) if !self.without_deletes && self.span.holds(key.as_bytes()) => {
                    PbEvent { r#type: DELETE, kv: Some(deleted(&key, sequence)), prev_kv: None }
                }
                _ => continue,
            };
            bytes += size_of_event(&event);
            events.push(event);
        }
        if is_all {
            self.sent = self.sent.max(reading.position().sequence);
        }
        self.was_told |= !events.is_empty();
        Told::Events(events)
    }
}

/// A key as etcd writes it.
fn key_value(record: &RawRecord) -> PbKeyValue {
    PbKeyValue {
        key: record.key.as_bytes().to_vec(),
        create_revision: revision(record.create_sequence),
        mod_revision: revision(record.last_sequence),
        version: i64::try_from(record.version).unwrap_or(i64::MAX),
        value: record.value.to_vec(),
        lease: 0,
    }
}

/// What an event has of a key that is gone.
fn deleted(key: &SmolStr, at: Sequence) -> PbKeyValue {
    PbKeyValue { key: key.as_bytes().to_vec(), mod_revision: revision(at), ..PbKeyValue::default() }
}

/// How much an event takes.
pub(super) fn size_of_event(event: &PbEvent) -> usize {
    let of = |pair: &Option<PbKeyValue>| pair.as_ref().map_or(0, |pair| pair.key.len() + pair.value.len());
    size_of::<PbEvent>() + of(&event.kv) + of(&event.prev_kv)
}
