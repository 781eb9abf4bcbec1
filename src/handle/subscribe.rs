//! One subscriber of the change stream: a filter and a position, without a buffer.
//!
//! [`Subscription::tell_up_to`] compares the position with the newest snapshot and returns a
//! bounded part of what the subscriber is missing. A snapshot reads in key order, a replay in order
//! of sequence through the index, and live reading follows the ring. Pure, except that long work is
//! spread over threads. Between calls, the caller waits for the signal of a new snapshot.

mod live;
mod patch;
mod place;
mod telling;

use std::sync::Arc;

use super::{Filter, Follower, NewestChanges, Reading};
use crate::commit::Changed;
use crate::feed::Announcement;
use crate::model::{DeleteReason, EntryKey, Kind, Object, Position, ReaderPosition, Record, Revision, Sequence};
use crate::view::{LiveKey, View};

pub use patch::BackendsPatch;
pub use place::{Place, Stage};
pub use telling::{ByteCount, LookBounds};
use telling::{Progress, Tell, Telling};

/// Maximum number of keys that one call reads. These are a few milliseconds of work, so a
/// subscriber with a narrow filter does not block a thread for long. Each call also visits the
/// recent changes and every chunk once, so that a smaller number would cost more per key.
pub(crate) const LOOKED_AT_MAX: usize = 8_192;

/// Number of keys that a replay reads for each change that it may return. A small limit then costs
/// little, and a narrow filter still makes progress.
const LOOKED_AT_FOR_EACH: usize = 8;

/// Start of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// Only changes from now on.
    Now,
    /// A snapshot of everything that matches, then live changes.
    Snapshot,
    /// The changes after a position. `None` if the client sent a position that cannot be parsed;
    /// the stream then starts with a reset.
    After(Option<ReaderPosition>),
}

/// Reason why a subscriber must drop a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// The key was deleted.
    Gone(DeleteReason),
    /// The key exists, and its object no longer matches the filter.
    LeftFilter,
    /// The key was deleted or its object no longer matches. A replay sees only the newest state and
    /// cannot tell which.
    Unknown,
}

/// Reason why a subscriber must drop its copy (docs/use/api/streams.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetReason {
    /// The subscriber asked for a snapshot.
    Initial,
    /// Deletes after the subscriber's position are no longer known.
    Expired,
    /// The subscriber's position is from an unknown run of meshkeep.
    ForeignEpoch,
    /// The subscriber's position is ahead of the changes that exist.
    RolledBack,
    /// The subscriber's position cannot be parsed.
    Malformed,
}

/// Way in which a subscriber caught up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// A full snapshot.
    Snapshot,
    /// The changes since a position.
    Replay,
}

/// Event for a subscriber.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
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
        /// Position after the event.
        position: Option<ReaderPosition>,
    },
    /// The key was deleted, or no longer matches.
    Delete {
        /// The key that changed.
        key: EntryKey,
        /// Why the key is no longer part of the copy.
        reason: Departure,
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
enum Mode {
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
    mode: Mode,
    /// Has everything that was sent. During a snapshot, everything up to the head at its start.
    follower: Follower,
    sync_mode: SyncMode,
    count: u64,
    /// Reset to send before anything else.
    reset: Option<ResetReason>,
    /// True if a `Synced` event is due when the subscriber has caught up.
    owes_synced: bool,
    /// True if the subscriber accepts patches.
    patches: bool,
    /// Maximum number of changes in the next piece. Small after a call that ended at its limit of
    /// bytes, so that little is built in vain.
    pace: usize,
}

impl Subscription {
    /// Creates a subscriber that begins at `start`, given the newest `reading`.
    #[must_use]
    pub fn new(filter: Filter, start: &Start, reading: &Reading) -> Self {
        let head = reading.position();
        let mut subscription = Self::at_head(filter, reading);
        match start {
            Start::Now => subscription.owes_synced = true,
            Start::Snapshot => subscription.restart(ResetReason::Initial, head.sequence),
            Start::After(position) => match check(*position, &subscription.filter, reading) {
                Ok(position) => {
                    subscription.follower = Follower::at(position);
                    subscription.mode = Mode::Replaying;
                    subscription.owes_synced = true;
                }
                Err(reason) => subscription.restart(reason, head.sequence),
            },
        }
        subscription
    }

    /// Checks that a subscriber with this filter can continue from a position without a reset.
    ///
    /// # Errors
    /// The reason why a reset is needed.
    pub fn check_position(position: Option<ReaderPosition>, filter: &Filter, reading: &Reading) -> Result<(), ResetReason> {
        check(position, filter, reading).map(|_| ())
    }

    /// Lets the subscriber receive changes of backends as patches. Has no effect for one that
    /// begins with the changes from now on, because it has no object to patch. Must be called
    /// before the first [`Subscription::tell_up_to`].
    #[must_use]
    pub fn with_patches(mut self) -> Self {
        self.patches = !matches!(self.mode, Mode::Live);
        self
    }

    fn at_head(filter: Filter, reading: &Reading) -> Self {
        Self::reading_on(filter, Mode::Live, Follower::at(reading.position().sequence))
    }

    fn reading_on(filter: Filter, mode: Mode, follower: Follower) -> Self {
        let sync_mode = SyncMode::Replay;
        Self { filter, mode, follower, sync_mode, count: 0, reset: None, owes_synced: false, patches: false, pace: LOOKED_AT_MAX }
    }

    fn restart(&mut self, reason: ResetReason, head: Sequence) {
        self.reset = Some(reason);
        self.mode = Mode::Scanning(None);
        self.sync_mode = SyncMode::Snapshot;
        self.follower = Follower::at(head);
        self.count = 0;
        self.owes_synced = true;
    }

    /// Returns whether everything up to the head of `reading` was sent, including `Synced`.
    #[must_use]
    pub fn is_current(&self, reading: &Reading) -> bool {
        self.bookmark(reading).is_some() && self.follower.is_current(reading)
    }

    /// Returns the position for a bookmark. `None` unless the subscriber has caught up.
    #[must_use]
    pub fn bookmark(&self, reading: &Reading) -> Option<Position> {
        let settled = matches!(self.mode, Mode::Live) && !self.owes_synced && self.reset.is_none();
        settled.then(|| self.position(reading))
    }

    /// Returns the position up to which everything was sent, or that of a snapshot's start.
    #[must_use]
    pub fn position(&self, reading: &Reading) -> Position {
        Position { epoch: reading.position().epoch, sequence: self.follower.position() }
    }

    /// Passes the next events, up to `bounds`, to `tell`, which encodes them and counts bytes.
    ///
    /// `tell` gets the events in pieces, possibly on several threads at once, and must consume each
    /// piece to its end. Returns the results of the pieces in order.
    pub fn tell_up_to<T: Send>(
        &mut self,
        reading: &Reading,
        bounds: LookBounds,
        tell: impl Fn(&mut dyn Iterator<Item = Item>, &ByteCount) -> T + Sync,
    ) -> Vec<T> {
        let mut telling = Telling::new(bounds, tell);
        if let Some(reason) = self.reset.take() {
            telling.say(Item::Reset(reason));
        }
        match self.mode {
            Mode::Scanning(_) => self.scan(reading, &mut telling),
            Mode::Replaying => self.replay(reading, &mut telling),
            Mode::Live => self.follow(reading, &mut telling),
        }
        telling.finish()
    }

    fn scan<T: Send>(&mut self, reading: &Reading, telling: &mut Telling<T, impl Tell<T>>) {
        let Mode::Scanning(next) = &mut self.mode else { return };
        let lowest = EntryKey::lowest_of(self.filter.kinds.iter().min().copied().unwrap_or(Kind::STREAMED[0]));
        let start = next.take().unwrap_or(lowest);
        if start.kind >= Kind::Cluster {
            return self.scan_made(reading, &start, telling);
        }
        let view = &reading.published().view;
        let mut keys = view.live_keys_from(&start);
        let mut looked_at = 0;
        let mut left = None;
        while looked_at < LOOKED_AT_MAX && telling.room() > 0 && left.is_none() {
            // at most what the bounds allow, in case all keys match
            let piece: Vec<LiveKey> = keys.by_ref().take(telling.room().min(LOOKED_AT_MAX - looked_at).min(self.pace)).collect();
            if piece.is_empty() {
                break;
            }
            looked_at += piece.len();
            let progress = telling.changes(&piece, |live| self.scanned(live, view));
            self.count += progress.count;
            self.went_on(progress, piece.len());
            left = piece.into_iter().nth(progress.looked_at);
        }
        match left.or_else(|| keys.next()) {
            Some(live) => self.mode = Mode::Scanning(Some(live.key())),
            None => self.scan_made(reading, &EntryKey::lowest_of(Kind::Cluster), telling),
        }
    }

    fn scanned(&self, live: &LiveKey, view: &View) -> Option<Item> {
        let record = view.record_if(live, |key| self.filter.may_match(key))?;
        let object = matching(&self.filter, &record)?;
        Some(Item::Upsert { key: record.key.clone(), object, revision: Some(record.source.mod_revision), position: None })
    }

    /// Reads the clusters after all entries, and then the findings if the filter names them.
    fn scan_made<T: Send>(&mut self, reading: &Reading, start: &EntryKey, telling: &mut Telling<T, impl Tell<T>>) {
        let view = &reading.published().view;
        let findings = self.filter.asks_for_problems();
        let mut made = view.own_objects_from(start).take_while(|(key, _)| findings || key.kind == Kind::Cluster);
        let mut left = None;
        while telling.room() > 0 && left.is_none() {
            let piece: Vec<(&EntryKey, &Arc<Object>)> = made.by_ref().take(telling.room().min(self.pace)).collect();
            if piece.is_empty() {
                break;
            }
            let progress = telling.changes(&piece, |(key, object)| {
                let upsert = || Item::Upsert { key: EntryKey::clone(key), object: Arc::clone(object), revision: None, position: None };
                self.filter.matches(key, object).then(upsert)
            });
            self.count += progress.count;
            self.went_on(progress, piece.len());
            left = piece.into_iter().nth(progress.looked_at);
        }
        self.mode = left.or_else(|| made.next()).map_or(Mode::Replaying, |(key, _)| Mode::Scanning(Some(key.clone())));
    }

    /// Reads the newest state of each changed key in order of sequence, up to the head. A key that
    /// changes meanwhile moves up in the index and is read there.
    fn replay<T: Send>(&mut self, reading: &Reading, telling: &mut Telling<T, impl Tell<T>>) {
        let looked_at = LOOKED_AT_MAX.min(telling.room().saturating_mul(LOOKED_AT_FOR_EACH));
        let Ok(NewestChanges { changes, up_to }) = self.follower.newest_changes(reading, looked_at) else {
            self.restart(ResetReason::Expired, reading.position().sequence);
            self.reset.take().into_iter().for_each(|reason| telling.say(Item::Reset(reason)));
            return;
        };
        let passed = self.pass_on(&changes, telling, |subscription, change| subscription.replayed(change, reading));
        let last = passed.checked_sub(1).map_or(self.follower.position(), |last| changes[last].0);
        self.follower.advance_to(if passed == changes.len() { up_to } else { last });
        if self.follower.is_current(reading) {
            self.settle(reading, telling);
        }
    }

    fn replayed(&self, (sequence, changed): &(Sequence, Changed<LiveKey>), reading: &Reading) -> Option<Item> {
        let position = self.position_at(reading, *sequence);
        match changed {
            Changed::Gone(key, reason) => {
                self.filter.may_match(key).then(|| Item::Delete { key: key.clone(), reason: Departure::Gone(*reason), position })
            }
            Changed::Live(live) if live.kind() >= Kind::Cluster => self.replayed_made(live.key(), position, reading),
            Changed::Live(live) => {
                let record = reading.published().view.record_if(live, |key| self.filter.may_match(key))?;
                let (key, revision) = (record.key.clone(), Some(record.source.mod_revision));
                match matching(&self.filter, &record) {
                    Some(object) => Some(Item::Upsert { key, object, revision, position }),
                    None => Some(Item::Delete { key, reason: Departure::Unknown, position }),
                }
            }
        }
    }

    /// Returns the event for a cluster, or for a finding, whose clusters may have changed.
    fn replayed_made(&self, key: EntryKey, position: Option<ReaderPosition>, reading: &Reading) -> Option<Item> {
        let object = reading.published().view.own_object(&key)?;
        if self.filter.matches(&key, object) {
            return Some(Item::Upsert { key, object: Arc::clone(object), revision: None, position });
        }
        let may_be_held = key.kind == Kind::Problem && self.filter.may_match(&key);
        may_be_held.then_some(Item::Delete { key, reason: Departure::Unknown, position })
    }

    fn follow<T: Send>(&mut self, reading: &Reading, telling: &mut Telling<T, impl Tell<T>>) {
        if self.owes_synced {
            self.settle(reading, telling);
        }
        let Some(announcements) = self.follower.each_change(reading) else {
            self.mode = Mode::Replaying;
            self.sync_mode = SyncMode::Replay;
            self.owes_synced = true;
            self.count = 0;
            return;
        };
        let announcements: Vec<&Arc<Announcement>> = announcements.take(LOOKED_AT_MAX).collect();
        let passed = self.pass_on(&announcements, telling, |subscription, announcement| subscription.followed(announcement, reading));
        if let Some(last) = announcements[..passed].last() {
            self.follower.advance_to(last.sequence);
        }
    }

    /// Passes changes on in pieces until the bounds are reached. Returns the number of changes that
    /// were read.
    fn pass_on<S: Sync, T: Send>(
        &mut self,
        changes: &[S],
        telling: &mut Telling<T, impl Tell<T>>,
        item: impl Fn(&Self, &S) -> Option<Item> + Sync,
    ) -> usize {
        let mut rest = changes;
        loop {
            // at most what the bounds allow, in case all of them match
            let piece = &rest[..rest.len().min(telling.room()).min(self.pace)];
            if piece.is_empty() {
                return changes.len() - rest.len();
            }
            let progress = telling.changes(piece, |change| item(self, change));
            self.count += progress.count;
            self.went_on(progress, piece.len());
            rest = &rest[progress.looked_at..];
        }
    }

    fn followed(&self, announcement: &Announcement, reading: &Reading) -> Option<Item> {
        let position = Position { sequence: announcement.sequence, ..reading.position() };
        let item = told(&self.filter, announcement, Some(position.into()))?;
        Some(if self.patches { item.shortened(&self.filter, announcement) } else { item })
    }

    /// Sets the size of the next piece, depending on how much of the last one fitted.
    fn went_on(&mut self, progress: Progress, source_count: usize) {
        let enough = if progress.looked_at < source_count { progress.looked_at } else { self.pace };
        self.pace = enough.saturating_mul(2).clamp(1, LOOKED_AT_MAX);
    }

    /// Sends the `Synced` event and continues live.
    fn settle<T: Send>(&mut self, reading: &Reading, telling: &mut Telling<T, impl Tell<T>>) {
        let position = self.position(reading);
        telling.say(Item::Synced { mode: self.sync_mode, count: self.count, position });
        self.mode = Mode::Live;
        self.owes_synced = false;
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

/// Checks that a position of a known run can be served. Neither the position nor the head that was
/// seen may be above the recovered sequences or below the floor of the tombstones.
fn check(position: Option<ReaderPosition>, filter: &Filter, reading: &Reading) -> Result<Sequence, ResetReason> {
    let ReaderPosition { position, seen } = position.ok_or(ResetReason::Malformed)?;
    if let Some(seen) = seen {
        servable(Position { sequence: seen, ..position }, filter, reading)?;
    }
    servable(position, filter, reading)
}

/// Returns the sequence after which a position is continued.
fn servable(position: Position, filter: &Filter, reading: &Reading) -> Result<Sequence, ResetReason> {
    let head = reading.position();
    let newest = if position.epoch == head.epoch {
        head.sequence
    } else if filter.asks_for_problems() {
        // it is not known whether findings of an earlier run are resolved
        return Err(ResetReason::ForeignEpoch);
    } else {
        let earlier = reading.published().earlier.iter().find(|span| span.epoch == position.epoch);
        earlier.and_then(|span| span.vouched).ok_or(ResetReason::ForeignEpoch)?
    };
    if position.sequence > newest {
        return Err(ResetReason::RolledBack);
    }
    if position.sequence < reading.published().feed.floor() {
        return Err(ResetReason::Expired);
    }
    Ok(position.sequence)
}

fn matching(filter: &Filter, record: &Record) -> Option<Arc<Object>> {
    record.object.as_ref().filter(|object| filter.matches(&record.key, object)).cloned()
}

/// Returns the event of one change for a live subscriber. Entering the filter is an upsert, and
/// leaving it is a delete.
fn told(filter: &Filter, announcement: &Announcement, position: Option<ReaderPosition>) -> Option<Item> {
    let key = &announcement.key;
    if !filter.may_match(key) {
        return None;
    }
    let passes = |object: &Arc<Object>| filter.matches(key, object);
    let old = announcement.old_object().filter(passes);
    let new = announcement.new_object().filter(passes);
    match (old, new) {
        // a rejected value, or other bytes with the same meaning: the object has not changed
        (Some(old), Some(new)) if old == new => None,
        (_, Some(object)) => Some(Item::Upsert { key: key.clone(), object, revision: announcement.revision, position }),
        (Some(_), None) => {
            let reason = announcement.deleted.map_or(Departure::LeftFilter, Departure::Gone);
            Some(Item::Delete { key: key.clone(), reason, position })
        }
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests;
