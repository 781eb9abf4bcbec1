//! One reader of the change stream: a filter and a position, no buffer.
//!
//! [`Subscription::next`] looks at the newest snapshot and says what the reader lacks, a bounded piece at a time. A snapshot, a
//! replay and live reading are three ways to close the same gap: key order, sequence order through the index, and the ring.
//! Pure but for the threads that share a long look: the caller waits for the signal of new snapshots in between.

mod live;
mod patch;
mod place;
mod telling;

use std::sync::Arc;

use super::{Filter, Reading};
use crate::commit::Changed;
use crate::model::{Announcement, DeleteReason, EntryKey, Kind, Object, Position, ReaderPosition, Record, Revision, Sequence};
use crate::view::{Live, View};

pub use patch::BackendsPatch;
pub use place::{Place, Stage};
pub use telling::{ByteCount, LookBounds};
use telling::{Progress, Tell, Telling};

/// How many keys one call looks at: some milliseconds of work, so that a reader with a narrow filter holds no thread for long. Each call also
/// looks at what is new in the mirror and at every chunk once, which fewer keys would have to bear.
pub(crate) const LOOKED_AT_MAX: usize = 8_192;

/// A replay looks at so many keys for each change that it may tell, so that a short piece costs little and a narrow filter gets on.
const LOOKED_AT_FOR_EACH: usize = 8;

/// Where a stream begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// With what happens from now on.
    Now,
    /// With everything that matches, then live.
    Snapshot,
    /// After a position; `None` is a text that is none, which leads to a reset.
    After(Option<ReaderPosition>),
}

/// Why a reader is to drop a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// The key is gone.
    Gone(DeleteReason),
    /// The key is there, and its object no longer passes the filter.
    LeftFilter,
    /// It is not known which of these, as in a replay, which sees the newest state alone.
    Unknown,
}

/// Why a reader must forget what it holds (docs/use/api/streams.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetReason {
    /// It asked for a snapshot.
    Initial,
    /// Deletes after its position are no longer known.
    Expired,
    /// Its position is from another start of meshkeep.
    ForeignEpoch,
    /// Its position claims more than there is.
    RolledBack,
    /// Its position cannot be read.
    Malformed,
}

/// What closed a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// A full snapshot.
    Snapshot,
    /// The changes since a position.
    Replay,
}

/// One thing to tell a reader.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// Forget everything; a snapshot follows.
    Reset(ResetReason),
    /// The key has this object.
    Upsert {
        /// The key.
        key: EntryKey,
        /// The object.
        object: Arc<Object>,
        /// The source's revision.
        revision: Option<Revision>,
        /// The position after it; `None` inside a snapshot, which has none until it is complete.
        position: Option<ReaderPosition>,
    },
    /// Only the backends of the service that the key had changed.
    Patch {
        /// The key.
        key: EntryKey,
        /// How.
        patch: BackendsPatch,
        /// The source's revision.
        revision: Option<Revision>,
        /// The position after it.
        position: Option<ReaderPosition>,
    },
    /// The key is gone, or no longer matches.
    Delete {
        /// The key.
        key: EntryKey,
        /// Why.
        reason: Departure,
        /// The position after it; `None` inside a snapshot.
        position: Option<ReaderPosition>,
    },
    /// Everything up to here was sent.
    Synced {
        /// How.
        mode: SyncMode,
        /// How many upserts and deletes that took.
        count: u64,
        /// Up to where.
        position: Position,
    },
}

/// A reader's place.
#[derive(Debug)]
enum Mode {
    /// In key order; the next key to look at.
    Scanning(Option<EntryKey>),
    /// In order of sequence through the index, up to the head.
    Replaying,
    /// Along the ring.
    Live,
}

/// One reader of the change stream.
#[derive(Debug)]
pub struct Subscription {
    filter: Filter,
    mode: Mode,
    /// Everything up to here was sent; while scanning, the position that was the head before the scan.
    sent: Sequence,
    sync_mode: SyncMode,
    count: u64,
    /// Said before anything else.
    reset: Option<ResetReason>,
    /// Whether a gap is open whose closing must be told.
    owes_synced: bool,
    /// Whether the reader takes patches.
    patches: bool,
    /// How many sources are told at once at most: few after a look that ended at its bytes, so that little is made for nothing.
    pace: usize,
}

impl Subscription {
    /// A reader that begins at `start`, as seen by `reading`.
    #[must_use]
    pub fn new(filter: Filter, start: &Start, reading: &Reading) -> Self {
        let head = reading.position();
        let mut subscription = Self::at_head(filter, reading);
        match start {
            Start::Now => subscription.owes_synced = true,
            Start::Snapshot => subscription.restart(ResetReason::Initial, head.sequence),
            Start::After(position) => match check(*position, &subscription.filter, reading) {
                Ok(position) => {
                    subscription.sent = position;
                    subscription.mode = Mode::Replaying;
                    subscription.owes_synced = true;
                }
                Err(reason) => subscription.restart(reason, head.sequence),
            },
        }
        subscription
    }

    /// Whether a position can be served to a reader with this filter without a reset.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check_position(position: Option<ReaderPosition>, filter: &Filter, reading: &Reading) -> Result<(), ResetReason> {
        check(position, filter, reading).map(|_| ())
    }

    /// The reader, told of changed backends of a service by patches. Before the first [`Subscription::next`]. A reader that begins
    /// with what happens from now on holds nothing that a patch could apply to, and gets none.
    #[must_use]
    pub fn with_patches(mut self) -> Self {
        self.patches = !matches!(self.mode, Mode::Live);
        self
    }

    fn at_head(filter: Filter, reading: &Reading) -> Self {
        let sent = reading.position().sequence;
        let (mode, sync_mode) = (Mode::Live, SyncMode::Replay);
        Self { filter, mode, sent, sync_mode, count: 0, reset: None, owes_synced: false, patches: false, pace: LOOKED_AT_MAX }
    }

    fn restart(&mut self, reason: ResetReason, head: Sequence) {
        self.reset = Some(reason);
        self.mode = Mode::Scanning(None);
        self.sync_mode = SyncMode::Snapshot;
        self.sent = head;
        self.count = 0;
        self.owes_synced = true;
    }

    /// Whether the reader has everything up to the head of `reading`, and was told so.
    #[must_use]
    pub fn is_current(&self, reading: &Reading) -> bool {
        matches!(self.mode, Mode::Live) && !self.owes_synced && self.reset.is_none() && self.sent == reading.position().sequence
    }

    /// The position that a bookmark may carry: only when nothing is owed.
    #[must_use]
    pub fn bookmark(&self, reading: &Reading) -> Option<Position> {
        let settled = matches!(self.mode, Mode::Live) && !self.owes_synced && self.reset.is_none();
        settled.then(|| self.position(reading))
    }

    /// Everything up to here was sent; inside a snapshot the position that it began with.
    #[must_use]
    pub fn position(&self, reading: &Reading) -> Position {
        Position { epoch: reading.position().epoch, sequence: self.sent }
    }

    /// The next piece of what the reader lacks. Empty and [`Subscription::is_current`]: wait for the signal.
    #[cfg(test)]
    pub fn next(&mut self, reading: &Reading) -> Vec<Item> {
        self.next_up_to(reading, LOOKED_AT_MAX)
    }

    /// The next piece, with so many upserts, patches and deletes at most; at least 1.
    #[cfg(test)]
    pub fn next_up_to(&mut self, reading: &Reading, change_count_max: usize) -> Vec<Item> {
        let bounds = LookBounds { changes: change_count_max, bytes: usize::MAX };
        self.tell_up_to(reading, bounds, |items, _| items.collect::<Vec<Item>>()).into_iter().flatten().collect()
    }

    /// Tells of what changed, up to bounds, to a caller that makes something of the items and says how many bytes that is. They are given to `tell` in pieces, which several
    /// threads may have at once, and each of which it must take to its end; what came of each is returned, in order.
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
        let mut keys = view.live_from(&start);
        let mut looked_at = 0;
        let mut left = None;
        while looked_at < LOOKED_AT_MAX && telling.room() > 0 && left.is_none() {
            // no more than there is room for, should all of them match
            let piece: Vec<Live> = keys.by_ref().take(telling.room().min(LOOKED_AT_MAX - looked_at).min(self.pace)).collect();
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

    fn scanned(&self, live: &Live, view: &View) -> Option<Item> {
        let record = view.record_passing(live, |key| self.filter.may_match(key))?;
        let object = matching(&self.filter, &record)?;
        Some(Item::Upsert { key: record.key.clone(), object, revision: Some(record.source.mod_revision), position: None })
    }

    /// The clusters themselves, behind all that they hold, and behind them what looks wrong, where that is asked for.
    fn scan_made<T: Send>(&mut self, reading: &Reading, start: &EntryKey, telling: &mut Telling<T, impl Tell<T>>) {
        let view = &reading.published().view;
        let findings = self.filter.asks_for_problems();
        let mut made = view.made_from(start).take_while(|(key, _)| findings || key.kind == Kind::Cluster);
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

    /// Newest state per key, in order of sequence. Ends at the head; what changes meanwhile moves up in the index and is met there.
    fn replay<T: Send>(&mut self, reading: &Reading, telling: &mut Telling<T, impl Tell<T>>) {
        let published = reading.published();
        if published.feed.floor() > self.sent {
            self.restart(ResetReason::Expired, published.feed.head());
            self.reset.take().into_iter().for_each(|reason| telling.say(Item::Reset(reason)));
            return;
        }
        let looked_at = LOOKED_AT_MAX.min(telling.room().saturating_mul(LOOKED_AT_FOR_EACH));
        // one more than is looked at, to know whether it is the end
        let mut changes = published.lacked_after(self.sent, looked_at + 1);
        let all = changes.len() <= looked_at;
        changes.truncate(looked_at);
        let (mut last, mut rest) = (self.sent, changes.as_slice());
        loop {
            // no more than there is room for, should all of them match
            let (piece, _) = rest.split_at(rest.len().min(telling.room()).min(self.pace));
            if piece.is_empty() {
                break;
            }
            let progress = telling.changes(piece, |change| self.replayed(change, reading));
            self.count += progress.count;
            self.went_on(progress, piece.len());
            let (looked_at, behind) = rest.split_at(progress.looked_at);
            rest = behind;
            last = looked_at.last().map_or(last, |(sequence, _)| *sequence);
        }
        let finished = all && rest.is_empty();
        self.sent = if finished { published.feed.head() } else { last };
        if finished {
            self.settle(reading, telling);
        }
    }

    fn replayed(&self, (sequence, changed): &(Sequence, Changed<Live>), reading: &Reading) -> Option<Item> {
        let position = self.position_at(reading, *sequence);
        match changed {
            Changed::Gone(key, reason) => {
                self.filter.may_match(key).then(|| Item::Delete { key: key.clone(), reason: Departure::Gone(*reason), position })
            }
            Changed::Live(live) if live.kind() >= Kind::Cluster => self.replayed_made(live.key(), position, reading),
            Changed::Live(live) => {
                let record = reading.published().view.record_passing(live, |key| self.filter.may_match(key))?;
                let (key, revision) = (record.key.clone(), Some(record.source.mod_revision));
                match matching(&self.filter, &record) {
                    Some(object) => Some(Item::Upsert { key, object, revision, position }),
                    None => Some(Item::Delete { key, reason: Departure::Unknown, position }),
                }
            }
        }
    }

    /// A cluster as it is, or a finding, which may concern other clusters than before.
    fn replayed_made(&self, key: EntryKey, position: Option<ReaderPosition>, reading: &Reading) -> Option<Item> {
        let object = reading.published().view.made_here(&key)?;
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
        let published = reading.published();
        let Some(announcements) = published.feed.ring_after(self.sent) else {
            self.mode = Mode::Replaying;
            self.sync_mode = SyncMode::Replay;
            self.owes_synced = true;
            self.count = 0;
            return;
        };
        let announcements: Vec<&Arc<Announcement>> = announcements.take(LOOKED_AT_MAX).collect();
        let mut rest = announcements.as_slice();
        loop {
            let (piece, _) = rest.split_at(rest.len().min(telling.room()).min(self.pace));
            if piece.is_empty() {
                break;
            }
            let progress = telling.changes(piece, |announcement| self.followed(announcement, reading));
            self.went_on(progress, piece.len());
            let (looked_at, behind) = rest.split_at(progress.looked_at);
            rest = behind;
            self.sent = looked_at.last().map_or(self.sent, |announcement| announcement.sequence);
        }
    }

    fn followed(&self, announcement: &Announcement, reading: &Reading) -> Option<Item> {
        let position = Position { sequence: announcement.sequence, ..reading.position() };
        let item = told(&self.filter, announcement, Some(position.into()))?;
        Some(if self.patches { item.shortened(&self.filter, announcement) } else { item })
    }

    /// Sets how many sources are told next, by what became of so many.
    fn went_on(&mut self, progress: Progress, source_count: usize) {
        let enough = if progress.looked_at < source_count { progress.looked_at } else { self.pace };
        self.pace = enough.saturating_mul(2).clamp(1, LOOKED_AT_MAX);
    }

    /// Tells that the gap is closed.
    fn settle<T: Send>(&mut self, reading: &Reading, telling: &mut Telling<T, impl Tell<T>>) {
        let position = self.position(reading);
        telling.say(Item::Synced { mode: self.sync_mode, count: self.count, position });
        self.mode = Mode::Live;
        self.owes_synced = false;
        self.sync_mode = SyncMode::Replay;
        self.count = 0;
    }

    /// Inside a snapshot nothing has a position, so that a broken connection repeats the snapshot; inside a replay it says what was seen.
    fn position_at(&self, reading: &Reading, sequence: Sequence) -> Option<ReaderPosition> {
        let head = reading.position();
        let position = Position { sequence, ..head };
        let seen = (sequence < head.sequence).then_some(head.sequence);
        (self.sync_mode == SyncMode::Replay).then_some(ReaderPosition { position, seen })
    }
}

/// Whether a position can be served: of a start that is known, neither it nor what was seen above what is vouched for, not below the
/// floor of the tombstones.
fn check(position: Option<ReaderPosition>, filter: &Filter, reading: &Reading) -> Result<Sequence, ResetReason> {
    let ReaderPosition { position, seen } = position.ok_or(ResetReason::Malformed)?;
    if let Some(seen) = seen {
        servable(Position { sequence: seen, ..position }, filter, reading)?;
    }
    servable(position, filter, reading)
}

/// From which sequence on a position that was read can be served.
fn servable(position: Position, filter: &Filter, reading: &Reading) -> Result<Sequence, ResetReason> {
    let head = reading.position();
    let newest = if position.epoch == head.epoch {
        head.sequence
    } else if filter.asks_for_problems() {
        // what was found before this start and is not found again is not known to be over
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

/// What a live reader is told of one change: entering and leaving the filter are an upsert and a delete.
fn told(filter: &Filter, announcement: &Announcement, position: Option<ReaderPosition>) -> Option<Item> {
    let key = &announcement.key;
    if !filter.may_match(key) {
        return None;
    }
    let passes = |object: &Arc<Object>| filter.matches(key, object);
    let old = announcement.old_object().filter(passes);
    let new = announcement.new_object().filter(passes);
    match (old, new) {
        // new bytes that could not be used, or bytes that differ but mean the same: nothing that a reader holds has changed
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
