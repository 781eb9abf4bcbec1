//! One watch: its filters, and its position.

use etcd_client::proto::{PbEvent, PbKeyValue, PbWatchRequestUnion};
use smol_str::SmolStr;

use super::super::revisions::{revision, sequence};
use super::super::span::Span;
use super::super::window::Window;
use crate::admission::Held;
use crate::handle::{RawChange, Reading};
use crate::model::{Announcement, OpenOne, RawRecord, Sequence};

/// Size in bytes at which an answer is complete; the event that reaches it is included.
///
/// An event has at most 1.5 MiB, so an answer stays below the 2 MiB that clients accept by default
/// and needs no fragments.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// Maximum number of changes per scan: decoding them takes some milliseconds.
const LOOKED_AT_MAX: usize = 1_024;

/// Types of events.
const PUT: i32 = 0;
const DELETE: i32 = 1;

/// Filters of a watch request.
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
    /// Set if the watch got events since the last progress tick.
    was_told: bool,
    /// Sequence up to which all events were sent. Above the head if the watch starts in the future.
    sent: Sequence,
    _open: (OpenOne, Held),
}

/// Reason why a watch was refused.
pub(super) struct Refused(pub(super) String);

/// Result of a scan of one watch.
pub(super) enum Told {
    /// The next events; can be empty.
    Events(Vec<PbEvent>),
    /// Not all deletes after the watch's position are known any more. They are known after this
    /// sequence.
    Compacted(Sequence),
}

impl Watcher {
    /// Creates the watch for a create request.
    ///
    /// # Errors
    /// Returns the reason that is sent as `cancel_reason`.
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
        // a watch from a revision has all events before it
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

    /// Returns the sequence up to which all events were sent.
    pub(super) const fn sent(&self) -> Sequence {
        self.sent
    }

    pub(super) fn is_current(&self, head: Sequence) -> bool {
        self.sent >= head
    }

    /// Returns whether a progress notification is due: the watch asked for them and got no events
    /// since the last call.
    pub(super) const fn owes_progress(&mut self) -> bool {
        let was_told = std::mem::replace(&mut self.was_told, false);
        self.progress_notify && !was_told
    }

    /// Returns the next events from the feed, with previous values. `None` if the feed does not
    /// reach back to the watch's position.
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

    /// Returns the next events from the newest state of each changed key.
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

/// Converts a record to etcd's form.
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

/// Builds the `kv` of a delete event: key and revision.
fn deleted(key: &SmolStr, at: Sequence) -> PbKeyValue {
    PbKeyValue { key: key.as_bytes().to_vec(), mod_revision: revision(at), ..PbKeyValue::default() }
}

/// Returns the bytes of an event in memory.
pub(super) fn size_of_event(event: &PbEvent) -> usize {
    let of = |pair: &Option<PbKeyValue>| pair.as_ref().map_or(0, |pair| pair.key.len() + pair.value.len());
    size_of::<PbEvent>() + of(&event.kv) + of(&event.prev_kv)
}
