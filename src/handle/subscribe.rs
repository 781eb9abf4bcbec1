//! One subscriber of the change stream: a filter and a position, without a buffer.
//!
//! [`Subscription::encode_next`] compares the position with the newest snapshot and returns a
//! bounded part of what the subscriber is missing. A snapshot reads in key order, a replay in order
//! of sequence through the index, and live reading follows the ring. Between calls, the caller
//! waits for the signal of a new snapshot. This module does no IO, but spreads long work over
//! threads.

mod event_batch;
mod live;
mod patch;
mod resume_point;
mod start;

use std::sync::Arc;

use super::{Filter, Follower, NewestChanges, Reading};
use crate::commit::LatestChange;
use crate::feed::Announcement;
use crate::model::{DeleteReason, EntryKey, Kind, Object, Position, ReaderPosition, Record, ResetReason, Revision, Sequence, SyncMode};
use crate::view::{LiveKey, View};

pub use event_batch::{BatchLimits, EncodedByteCount};
use event_batch::{BatchProgress, EventBatch, EventEncoder};
pub use patch::BackendsPatch;
pub use resume_point::{CatchUpStage, ResumePoint};
pub use start::StreamStart;
use start::check_servable;

/// Maximum number of keys that one call reads. These are a few milliseconds of work, so a
/// subscriber with a narrow filter does not block a thread for long. Each call also visits the
/// recent changes and every chunk once, so that a smaller number would cost more per key.
pub(crate) const SCANNED_KEYS_MAX: usize = 8_192;

/// Number of keys that a replay reads for each change that it may return. A small limit then costs
/// little, and a narrow filter still makes progress.
const SCANNED_PER_CHANGE: usize = 8;

/// Reason why a subscriber must drop a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteCause {
    /// The key was deleted.
    Deleted(DeleteReason),
    /// The key exists, but its object no longer matches the filter.
    LeftFilter,
    /// The key was deleted or its object no longer matches. A replay sees only the newest state and
    /// cannot tell which.
    Unknown,
}

/// Event for a subscriber.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// Drop the copy; a snapshot follows.
    Reset(ResetReason),
    /// The key has this object.
    Upsert {
        /// The key that changed.
        key: EntryKey,
        /// The decoded value.
        object: Arc<Object>,
        /// Revision at the source.
        revision: Option<Revision>,
        /// Sequence of the change; 0 for an object of a snapshot that meshkeep made itself.
        sequence: Sequence,
        /// Position after the event. `None` inside a snapshot, which has none until it is complete.
        position: Option<ReaderPosition>,
    },
    /// Only the backends of a service have changed.
    Patch {
        /// The key that changed.
        key: EntryKey,
        /// The backends that were added, replaced and removed.
        patch: BackendsPatch,
        /// Revision at the source.
        revision: Option<Revision>,
        /// Sequence of the change.
        sequence: Sequence,
        /// Position after the event.
        position: Option<ReaderPosition>,
    },
    /// The key was deleted, or no longer matches.
    Delete {
        /// The key that changed.
        key: EntryKey,
        /// Reason why the key is no longer part of the subscriber's copy.
        reason: DeleteCause,
        /// Sequence of the change.
        sequence: Sequence,
        /// Position after the event. `None` inside a snapshot.
        position: Option<ReaderPosition>,
    },
    /// The subscriber has everything up to a position.
    Synced {
        /// The way in which the subscriber caught up.
        mode: SyncMode,
        /// Number of upserts and deletes that were sent to catch up.
        count: u64,
        /// Position up to which the copy is complete.
        position: Position,
    },
}

/// Current way of reading.
#[derive(Debug)]
enum ReadMode {
    /// In key order, with the next key to read.
    Scanning(Option<EntryKey>),
    /// In order of sequence through the index, up to the head.
    Replaying,
    /// Along the ring.
    Live,
}

/// One subscriber of the change stream.
#[derive(Debug)]
pub struct Subscription {
    filter: Filter,
    mode: ReadMode,
    /// Position up to which everything was sent. During a snapshot, the head at its start.
    follower: Follower,
    sync_mode: SyncMode,
    count: u64,
    /// Reset to send before anything else.
    reset: Option<ResetReason>,
    /// True if a `Synced` event is due when the subscriber has caught up.
    synced_pending: bool,
    /// True if the subscriber accepts patches.
    patches: bool,
    /// Maximum number of changes in the next piece. It is small after a piece that ended at the
    /// limit of bytes, so that few events are built without being sent.
    quota: usize,
}

impl Subscription {
    /// Creates a subscriber that begins at `start`, given the newest `reading`.
    #[must_use]
    pub fn new(filter: Filter, start: &StreamStart, reading: &Reading) -> Self {
        let head = reading.position();
        let mut subscription = Self::at_head(filter, reading);
        match start {
            StreamStart::Now => subscription.synced_pending = true,
            StreamStart::Snapshot => subscription.restart(ResetReason::Initial, head.sequence),
            StreamStart::After(_) | StreamStart::Since(_) => match start.resume_position(&subscription.filter, reading) {
                Ok(position) => {
                    subscription.follower = Follower::at(position);
                    subscription.mode = ReadMode::Replaying;
                    subscription.synced_pending = true;
                }
                Err(reason) => subscription.restart(reason, head.sequence),
            },
        }
        subscription
    }

    /// Checks that a subscriber with this filter can begin at `start` without a reset, unless it
    /// asks for a snapshot.
    ///
    /// # Errors
    /// The reason why a reset is needed.
    pub fn check_start(start: &StreamStart, filter: &Filter, reading: &Reading) -> Result<(), ResetReason> {
        start.resume_position(filter, reading).map(|_| ())
    }

    /// Lets the subscriber receive changes of backends as patches. Has no effect if the stream
    /// starts with [`StreamStart::Now`], because the subscriber then has no object to patch. Must
    /// be called before the first [`Subscription::encode_next`].
    #[must_use]
    pub fn with_patches(mut self) -> Self {
        self.patches = !matches!(self.mode, ReadMode::Live);
        self
    }

    fn at_head(filter: Filter, reading: &Reading) -> Self {
        Self::with_mode(filter, ReadMode::Live, Follower::at(reading.position().sequence))
    }

    fn with_mode(filter: Filter, mode: ReadMode, follower: Follower) -> Self {
        let sync_mode = SyncMode::Replay;
        Self { filter, mode, follower, sync_mode, count: 0, reset: None, synced_pending: false, patches: false, quota: SCANNED_KEYS_MAX }
    }

    fn restart(&mut self, reason: ResetReason, head: Sequence) {
        self.reset = Some(reason);
        self.mode = ReadMode::Scanning(None);
        self.sync_mode = SyncMode::Snapshot;
        self.follower = Follower::at(head);
        self.count = 0;
        self.synced_pending = true;
    }

    /// Returns whether everything up to the head of `reading` was sent, including `Synced`.
    #[must_use]
    pub fn is_current(&self, reading: &Reading) -> bool {
        self.bookmark(reading).is_some() && self.follower.is_current(reading)
    }

    /// Returns the position for a bookmark. `None` unless the subscriber has caught up.
    #[must_use]
    pub fn bookmark(&self, reading: &Reading) -> Option<Position> {
        let is_caught_up = matches!(self.mode, ReadMode::Live) && !self.synced_pending && self.reset.is_none();
        is_caught_up.then(|| self.position(reading))
    }

    /// Returns the position up to which everything was sent. During a snapshot, its start.
    #[must_use]
    pub fn position(&self, reading: &Reading) -> Position {
        Position { epoch: reading.position().epoch, sequence: self.follower.position() }
    }

    /// Passes the next events, up to `bounds`, to `encode`, which encodes them and counts bytes.
    ///
    /// `encode` gets the events in pieces, possibly on several threads at once, and must consume
    /// each piece to its end. Returns the results of the pieces in order.
    pub fn encode_next<T: Send>(
        &mut self,
        reading: &Reading,
        bounds: BatchLimits,
        encode: impl Fn(&mut dyn Iterator<Item = StreamEvent>, &EncodedByteCount) -> T + Sync,
    ) -> Vec<T> {
        let mut batch = EventBatch::new(bounds, encode);
        if let Some(reason) = self.reset.take() {
            batch.push_event(StreamEvent::Reset(reason));
        }
        match self.mode {
            ReadMode::Scanning(_) => self.scan(reading, &mut batch),
            ReadMode::Replaying => self.replay(reading, &mut batch),
            ReadMode::Live => self.follow(reading, &mut batch),
        }
        batch.finish()
    }

    fn scan<T: Send>(&mut self, reading: &Reading, batch: &mut EventBatch<T, impl EventEncoder<T>>) {
        let ReadMode::Scanning(next) = &mut self.mode else { return };
        let lowest = EntryKey::lowest_of(self.filter.kinds.iter().min().copied().unwrap_or(Kind::STREAMED[0]));
        let start = next.take().unwrap_or(lowest);
        if start.kind >= Kind::Cluster {
            return self.scan_own_objects(reading, &start, batch);
        }
        let view = &reading.published.view;
        let rows = self.filter.row_filter();
        let mut keys = view.live_keys_matching(&start, rows.as_ref());
        match self.encode_items(&mut keys, SCANNED_KEYS_MAX, batch, |subscription, live| subscription.event_of_entry(live, view)) {
            Some(live) => self.mode = ReadMode::Scanning(Some(live.key())),
            None => self.scan_own_objects(reading, &EntryKey::lowest_of(Kind::Cluster), batch),
        }
    }

    fn event_of_entry(&self, live: &LiveKey, view: &View) -> Option<StreamEvent> {
        let record = view.record_if(live, |key| self.filter.may_match(key))?;
        let object = matching_object(&self.filter, &record)?;
        let (key, revision, sequence) = (record.key.clone(), Some(record.source.mod_revision), record.last_sequence);
        Some(StreamEvent::Upsert { key, object, revision, sequence, position: None })
    }

    /// Reads the objects that meshkeep makes itself, after all entries: the clusters, and then the
    /// findings if the filter names them.
    fn scan_own_objects<T: Send>(&mut self, reading: &Reading, start: &EntryKey, batch: &mut EventBatch<T, impl EventEncoder<T>>) {
        let view = &reading.published.view;
        let findings = self.filter.asks_for_problems();
        let mut own_objects = view.own_objects_from(start).take_while(|(key, _)| findings || key.kind == Kind::Cluster);
        let next = self.encode_items(&mut own_objects, usize::MAX, batch, |subscription, (key, object)| {
            subscription.filter.matches(key, object).then(|| StreamEvent::Upsert {
                key: EntryKey::clone(key),
                object: Arc::clone(object),
                revision: None,
                sequence: Sequence(0),
                position: None,
            })
        });
        self.mode = next.map_or(ReadMode::Replaying, |(key, _)| ReadMode::Scanning(Some(key.clone())));
    }

    /// Encodes items until the batch is full or `count_max` of them were read. Returns the first
    /// item that was not read.
    fn encode_items<S: Sync, T: Send>(
        &mut self,
        items: &mut impl Iterator<Item = S>,
        mut count_max: usize,
        batch: &mut EventBatch<T, impl EventEncoder<T>>,
        event_of: impl Fn(&Self, &S) -> Option<StreamEvent> + Sync,
    ) -> Option<S> {
        while count_max > 0 && batch.remaining() > 0 {
            // at most what the limits allow, in case each item has an event
            let piece: Vec<S> = items.by_ref().take(batch.remaining().min(count_max).min(self.quota)).collect();
            if piece.is_empty() {
                return None;
            }
            count_max -= piece.len();
            let read_count = self.encode_changes(&piece, batch, &event_of);
            if read_count < piece.len() {
                return piece.into_iter().nth(read_count);
            }
        }
        items.next()
    }

    /// Reads the newest state of each changed key in order of sequence, up to the head. A key that
    /// changes meanwhile moves up in the index and is read there.
    fn replay<T: Send>(&mut self, reading: &Reading, batch: &mut EventBatch<T, impl EventEncoder<T>>) {
        let scanned = SCANNED_KEYS_MAX.min(batch.remaining().saturating_mul(SCANNED_PER_CHANGE));
        let Ok(NewestChanges { changes, up_to }) = self.follower.newest_changes(reading, scanned) else {
            self.restart(ResetReason::Expired, reading.position().sequence);
            self.reset.take().into_iter().for_each(|reason| batch.push_event(StreamEvent::Reset(reason)));
            return;
        };
        let read_count = self.encode_changes(&changes, batch, |subscription, change| subscription.event_of_latest_change(change, reading));
        let last = read_count.checked_sub(1).map_or(self.follower.position(), |last| changes[last].0);
        self.follower.advance_to(if read_count == changes.len() { up_to } else { last });
        if self.follower.is_current(reading) {
            self.finish_catching_up(reading, batch);
        }
    }

    fn event_of_latest_change(&self, (sequence, changed): &(Sequence, LatestChange<LiveKey>), reading: &Reading) -> Option<StreamEvent> {
        let position = self.position_at(reading, *sequence);
        match changed {
            LatestChange::Deleted(key, reason) => self.filter.may_match(key).then(|| StreamEvent::Delete {
                key: key.clone(),
                reason: DeleteCause::Deleted(*reason),
                sequence: *sequence,
                position,
            }),
            LatestChange::Live(live) if live.kind() >= Kind::Cluster => self.event_of_own_object(live.key(), *sequence, position, reading),
            LatestChange::Live(live) => {
                let record = reading.published.view.record_if(live, |key| self.filter.may_match(key))?;
                let (key, revision) = (record.key.clone(), Some(record.source.mod_revision));
                match matching_object(&self.filter, &record) {
                    Some(object) => Some(StreamEvent::Upsert { key, object, revision, sequence: *sequence, position }),
                    None => Some(StreamEvent::Delete { key, reason: DeleteCause::Unknown, sequence: *sequence, position }),
                }
            }
        }
    }

    /// Returns the event for a cluster or a finding. The clusters of a finding may have changed, so
    /// it may no longer match.
    fn event_of_own_object(
        &self,
        key: EntryKey,
        sequence: Sequence,
        position: Option<ReaderPosition>,
        reading: &Reading,
    ) -> Option<StreamEvent> {
        let object = reading.published.view.own_object(&key)?;
        if self.filter.matches(&key, object) {
            return Some(StreamEvent::Upsert { key, object: Arc::clone(object), revision: None, sequence, position });
        }
        let may_be_in_copy = key.kind == Kind::Problem && self.filter.may_match(&key);
        may_be_in_copy.then_some(StreamEvent::Delete { key, reason: DeleteCause::Unknown, sequence, position })
    }

    fn follow<T: Send>(&mut self, reading: &Reading, batch: &mut EventBatch<T, impl EventEncoder<T>>) {
        if self.synced_pending {
            self.finish_catching_up(reading, batch);
        }
        let Some(announcements) = self.follower.each_change(reading) else {
            self.mode = ReadMode::Replaying;
            self.sync_mode = SyncMode::Replay;
            self.synced_pending = true;
            self.count = 0;
            return;
        };
        let announcements: Vec<&Arc<Announcement>> = announcements.take(SCANNED_KEYS_MAX).collect();
        let read_count = self
            .encode_changes(&announcements, batch, |subscription, announcement| subscription.event_of_announcement(announcement, reading));
        if let Some(last) = announcements[..read_count].last() {
            self.follower.advance_to(last.sequence);
        }
    }

    /// Encodes changes in pieces until the bounds are reached. Returns the number of changes that
    /// were read.
    fn encode_changes<S: Sync, T: Send>(
        &mut self,
        changes: &[S],
        batch: &mut EventBatch<T, impl EventEncoder<T>>,
        event_of: impl Fn(&Self, &S) -> Option<StreamEvent> + Sync,
    ) -> usize {
        let mut rest = changes;
        loop {
            // at most what the bounds allow, in case all of them match
            let piece = &rest[..rest.len().min(batch.remaining()).min(self.quota)];
            if piece.is_empty() {
                return changes.len() - rest.len();
            }
            let progress = batch.encode_changes(piece, |change| event_of(self, change));
            self.count += progress.count;
            self.adjust_quota(progress, piece.len());
            rest = &rest[progress.scanned..];
        }
    }

    fn event_of_announcement(&self, announcement: &Announcement, reading: &Reading) -> Option<StreamEvent> {
        let position = Position { sequence: announcement.sequence, ..reading.position() };
        let event = event_of_change(&self.filter, announcement, Some(position.into()))?;
        Some(if self.patches { event.into_patch(&self.filter, announcement) } else { event })
    }

    /// Sets the size of the next piece, depending on how much of the last one fitted.
    fn adjust_quota(&mut self, progress: BatchProgress, source_count: usize) {
        let enough = if progress.scanned < source_count { progress.scanned } else { self.quota };
        self.quota = enough.saturating_mul(2).clamp(1, SCANNED_KEYS_MAX);
    }

    /// Sends the `Synced` event and continues live.
    fn finish_catching_up<T: Send>(&mut self, reading: &Reading, batch: &mut EventBatch<T, impl EventEncoder<T>>) {
        let position = self.position(reading);
        batch.push_event(StreamEvent::Synced { mode: self.sync_mode, count: self.count, position });
        self.mode = ReadMode::Live;
        self.synced_pending = false;
        self.sync_mode = SyncMode::Replay;
        self.count = 0;
    }

    /// Returns the position of an event. Inside a snapshot there is none, so that a broken
    /// connection repeats the snapshot. Inside a replay it includes the head that was seen.
    fn position_at(&self, reading: &Reading, sequence: Sequence) -> Option<ReaderPosition> {
        let head = reading.position();
        let position = Position { sequence, ..head };
        let seen = (sequence < head.sequence).then_some(head.sequence);
        (self.sync_mode == SyncMode::Replay).then_some(ReaderPosition { position, seen })
    }
}

fn matching_object(filter: &Filter, record: &Record) -> Option<Arc<Object>> {
    record.object.as_ref().filter(|object| filter.matches(&record.key, object)).cloned()
}

/// Returns the event of one change for a live subscriber. Entering the filter is an upsert, and
/// leaving it is a delete.
fn event_of_change(filter: &Filter, announcement: &Announcement, position: Option<ReaderPosition>) -> Option<StreamEvent> {
    let (key, sequence) = (&announcement.key, announcement.sequence);
    if !filter.may_match(key) {
        return None;
    }
    let passes = |object: &Arc<Object>| filter.matches(key, object);
    let old = announcement.old_object().filter(passes);
    let new = announcement.new_object().filter(passes);
    match (old, new) {
        // a rejected value, or other bytes with the same meaning: the object has not changed
        (Some(old), Some(new)) if old == new => None,
        (_, Some(object)) => Some(StreamEvent::Upsert { key: key.clone(), object, revision: announcement.revision, sequence, position }),
        (Some(_), None) => {
            let reason = announcement.deleted.map_or(DeleteCause::LeftFilter, DeleteCause::Deleted);
            Some(StreamEvent::Delete { key: key.clone(), reason, sequence, position })
        }
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests;
