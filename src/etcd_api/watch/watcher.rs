//! One watch: its filters and its position in the changes.

use etcd_client::proto::{PbEvent, PbKeyValue, PbWatchRequestUnion};
use smol_str::SmolStr;

use super::super::key_interval::KeyInterval;
use super::super::recent_changes::RecentChanges;
use super::super::revisions::{to_revision, to_sequence};
use crate::admission::MemoryPermit;
use crate::handle::{Announcement, Expired, Follower, NewestChanges, RawChange, Reading};
use crate::instruments::OpenGuard;
use crate::model::{RawRecord, Sequence};

/// Size in bytes at which an answer is complete; the event that reaches it is included.
///
/// An event has at most 1.5 MiB, so an answer stays below the 2 MiB that clients accept by default
/// and needs no fragments.
const RESPONSE_EVENT_BYTES_MAX: usize = 256 << 10;

/// Maximum number of changes per scan: decoding them takes some milliseconds.
const SCANNED_CHANGES_MAX: usize = 1_024;

/// Types of events.
const PUT: i32 = 0;
const DELETE: i32 = 1;

/// Filters of a watch request.
const FILTER_NOPUT: i32 = 0;
const FILTER_NODELETE: i32 = 1;

/// One watch.
#[derive(Debug)]
pub(super) struct Watcher {
    interval: KeyInterval,
    without_puts: bool,
    without_deletes: bool,
    prev_kv: bool,
    progress_notify: bool,
    /// Set if the watch got events since the last progress tick.
    had_events: bool,
    /// Position up to which all events were sent.
    follower: Follower,
    _open: (OpenGuard, MemoryPermit),
}

/// Reason why a watch was refused.
pub(super) struct CreateRefusal(pub(super) String);

/// Result of a scan of one watch.
pub(super) enum WatchEvents {
    /// The next events; can be empty.
    Ready(Vec<PbEvent>),
    /// The watch's position is too old: some deletes after it are no longer known. Contains the
    /// lowest sequence after which all deletes are known.
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
        open: (OpenGuard, MemoryPermit),
        may_read: impl Fn(&KeyInterval) -> bool,
    ) -> Result<Self, CreateRefusal> {
        let PbWatchRequestUnion::CreateRequest(create) = request else {
            return Err(CreateRefusal("the request contains no watch".to_owned()));
        };
        if create.start_revision < 0 {
            return Err(CreateRefusal("etcdserver: mvcc: required revision has been compacted".to_owned()));
        }
        let interval = KeyInterval::new(if create.key.is_empty() { &[0] } else { &create.key }, &create.range_end);
        if !may_read(&interval) {
            return Err(CreateRefusal("rpc error: code = PermissionDenied desc = etcdserver: permission denied".to_owned()));
        }
        if interval.is_empty() {
            return Err(CreateRefusal("mvcc: watcher range is empty".to_owned()));
        }
        // a watch that starts at a revision needs no earlier events: they count as sent
        let sent = if create.start_revision > 0 { to_sequence(create.start_revision - 1) } else { head };
        Ok(Self {
            interval,
            without_puts: create.filters.contains(&FILTER_NOPUT),
            without_deletes: create.filters.contains(&FILTER_NODELETE),
            prev_kv: create.prev_kv,
            progress_notify: create.progress_notify,
            had_events: false,
            follower: Follower::at(sent),
            _open: open,
        })
    }

    /// Returns the sequence up to which all events were sent.
    pub(super) const fn sent_up_to(&self) -> Sequence {
        self.follower.position()
    }

    pub(super) fn is_current(&self, reading: &Reading) -> bool {
        self.follower.is_current(reading)
    }

    /// Returns whether a progress notification is due: the watch asked for them and got no events
    /// since the last call.
    pub(super) const fn is_progress_due(&mut self) -> bool {
        let had_events = std::mem::replace(&mut self.had_events, false);
        self.progress_notify && !had_events
    }

    /// Returns the next events from the feed, with previous values. `None` if the feed does not
    /// reach back to the watch's position.
    pub(super) fn events_from_feed(&mut self, reading: &Reading, recent: &RecentChanges) -> Option<WatchEvents> {
        let (mut events, mut bytes, mut scanned) = (Vec::new(), 0, 0);
        while !self.is_current(reading) && scanned < SCANNED_CHANGES_MAX {
            let Some(batch) = recent.batch_after(reading, self.follower) else {
                return (!events.is_empty()).then_some(WatchEvents::Ready(events));
            };
            for change in batch.after(self.sent_up_to()) {
                self.follower.advance_to(change.announcement.sequence);
                scanned += 1;
                if let Some(event) = self.event(&change.key, &change.announcement) {
                    bytes += event_bytes(&event);
                    events.push(event);
                }
                if bytes >= RESPONSE_EVENT_BYTES_MAX {
                    break;
                }
            }
            if bytes >= RESPONSE_EVENT_BYTES_MAX {
                break;
            }
            self.follower.advance_to(batch.up_to);
        }
        self.had_events |= !events.is_empty();
        Some(WatchEvents::Ready(events))
    }

    fn event(&self, key: &SmolStr, announcement: &Announcement) -> Option<PbEvent> {
        let is_delete = announcement.deleted.is_some();
        let is_unwanted = if is_delete { self.without_deletes } else { self.without_puts };
        if is_unwanted || !self.interval.contains(key.as_bytes()) {
            return None;
        }
        let prev_kv = if self.prev_kv { announcement.raw_old_value(key).as_ref().map(to_key_value) } else { None };
        let kv = if is_delete { deleted_key_value(key, announcement.sequence) } else { to_key_value(&announcement.raw_new_value(key)?) };
        Some(PbEvent { r#type: if is_delete { DELETE } else { PUT }, kv: Some(kv), prev_kv })
    }

    /// Returns the next events from the newest state of each changed key.
    pub(super) fn events_from_view(&mut self, reading: &Reading) -> WatchEvents {
        let NewestChanges { changes, up_to } = match self.follower.newest_changes(reading, SCANNED_CHANGES_MAX) {
            Ok(newest) => newest,
            Err(Expired { lowest }) => return WatchEvents::Compacted(lowest),
        };
        let (mut events, mut bytes) = (Vec::new(), 0);
        for (sequence, change) in changes {
            if bytes >= RESPONSE_EVENT_BYTES_MAX {
                self.had_events = true;
                return WatchEvents::Ready(events);
            }
            self.follower.advance_to(sequence);
            let event = match reading.raw_change(&change) {
                RawChange::Put(record) if !self.without_puts && self.interval.contains(record.key.as_bytes()) => {
                    PbEvent { r#type: PUT, kv: Some(to_key_value(&record)), prev_kv: None }
                }
                RawChange::Delete(key) if !self.without_deletes && self.interval.contains(key.as_bytes()) => {
                    PbEvent { r#type: DELETE, kv: Some(deleted_key_value(&key, sequence)), prev_kv: None }
                }
                _ => continue,
            };
            bytes += event_bytes(&event);
            events.push(event);
        }
        self.follower.advance_to(up_to);
        self.had_events |= !events.is_empty();
        WatchEvents::Ready(events)
    }
}

/// Converts a record to etcd's form.
fn to_key_value(record: &RawRecord) -> PbKeyValue {
    PbKeyValue {
        key: record.key.as_bytes().to_vec(),
        create_revision: to_revision(record.create_sequence),
        mod_revision: to_revision(record.last_sequence),
        version: i64::try_from(record.version).unwrap_or(i64::MAX),
        value: record.value.to_vec(),
        lease: 0,
    }
}

/// Builds the `kv` of a delete event: key and revision.
fn deleted_key_value(key: &SmolStr, sequence: Sequence) -> PbKeyValue {
    PbKeyValue { key: key.as_bytes().to_vec(), mod_revision: to_revision(sequence), ..PbKeyValue::default() }
}

/// Returns the bytes of an event in memory.
pub(super) fn event_bytes(event: &PbEvent) -> usize {
    let key_value_bytes = |pair: &Option<PbKeyValue>| pair.as_ref().map_or(0, |pair| pair.key.len() + pair.value.len());
    size_of::<PbEvent>() + key_value_bytes(&event.kv) + key_value_bytes(&event.prev_kv)
}
