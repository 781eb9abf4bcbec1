//! One reader of the change stream: a filter and a position, no buffer.
//!
//! [`Subscription::next`] looks at the newest snapshot and says what the reader lacks, a bounded piece at a time. A snapshot, a
//! replay and live reading are three ways to close the same gap: key order, sequence order through the index, and the ring.
//! Pure: whoever calls waits for the signal of new snapshots in between.

mod live;
mod patch;
mod place;

use std::sync::Arc;

use super::{Filter, Reading};
use crate::commit::Changed;
use crate::model::{Announcement, EntryKey, Kind, Object, Position, ReaderPosition, Record, Revision, Sequence};
use crate::view::Live;

pub use patch::BackendsPatch;
pub use place::{Place, Stage};

/// How many keys one call looks at: some milliseconds of work, so that a reader with a narrow filter holds no thread for long.
const SCANNED_KEYS_MAX: usize = 4_096;

/// A replay looks at so many keys for each change that it may tell, so that a short piece costs little and a narrow filter gets on.
const LOOKED_AT_FOR_EACH: usize = 8;

/// Where a stream begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// With what happens from now on.
    Now,
    /// With everything that matches, then live.
    Snapshot,
    /// After a position, as text.
    After(String),
}

/// Why a reader must forget what it holds (api.md).
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
        /// `deleted`, `leftFilter`, `clusterRemoved` or `unknown`.
        reason: &'static str,
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
            Start::After(text) => match check(text, reading) {
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

    /// Whether a position can be served without a reset.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check_position(text: &str, reading: &Reading) -> Result<(), ResetReason> {
        check(text, reading).map(|_| ())
    }

    /// The same reader, told of changed backends of a service by patches. Before the first [`Subscription::next`]. A reader that begins
    /// with what happens from now on holds nothing that a patch could apply to, and gets none.
    #[must_use]
    pub fn with_patches(mut self) -> Self {
        self.patches = !matches!(self.mode, Mode::Live);
        self
    }

    fn at_head(filter: Filter, reading: &Reading) -> Self {
        let sent = reading.position().sequence;
        let (mode, sync_mode) = (Mode::Live, SyncMode::Replay);
        Self { filter, mode, sent, sync_mode, count: 0, reset: None, owes_synced: false, patches: false }
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
    pub fn next(&mut self, reading: &Reading) -> Vec<Item> {
        self.next_up_to(reading, SCANNED_KEYS_MAX)
    }

    /// The same with so many upserts, patches and deletes at most; at least 1.
    pub fn next_up_to(&mut self, reading: &Reading, change_count_max: usize) -> Vec<Item> {
        let mut items = Vec::new();
        if let Some(reason) = self.reset.take() {
            items.push(Item::Reset(reason));
        }
        match self.mode {
            Mode::Scanning(_) => self.scan(reading, change_count_max, &mut items),
            Mode::Replaying => self.replay(reading, change_count_max, &mut items),
            Mode::Live => self.follow(reading, change_count_max, &mut items),
        }
        items
    }

    fn scan(&mut self, reading: &Reading, change_count_max: usize, items: &mut Vec<Item>) {
        let Mode::Scanning(next) = &mut self.mode else { return };
        let lowest = EntryKey::lowest_of(self.filter.kinds.iter().min().copied().unwrap_or(Kind::STREAMED[0]));
        let start = next.take().unwrap_or(lowest);
        if start.kind == Kind::Cluster {
            return self.scan_clusters(reading, &start, change_count_max, items);
        }
        let view = &reading.published().view;
        let mut keys = view.live_from(&start);
        let full = items.len() + change_count_max;
        for live in keys.by_ref().take(SCANNED_KEYS_MAX) {
            let Some(record) = view.record_passing(&live, |key| self.filter.may_match(key)) else { continue };
            if let Some(object) = matching(&self.filter, &record) {
                self.count += 1;
                items.push(Item::Upsert { key: record.key.clone(), object, revision: Some(record.source.mod_revision), position: None });
            }
            if items.len() >= full {
                break;
            }
        }
        match keys.next() {
            Some(live) => self.mode = Mode::Scanning(Some(live.key())),
            None => self.scan_clusters(reading, &EntryKey::lowest_of(Kind::Cluster), full - items.len(), items),
        }
    }

    /// The clusters themselves, behind all that they hold.
    fn scan_clusters(&mut self, reading: &Reading, start: &EntryKey, change_count_max: usize, items: &mut Vec<Item>) {
        let mut clusters = reading.published().view.clusters_from(start).filter(|(key, object)| self.filter.matches(key, object));
        for (key, object) in clusters.by_ref().take(change_count_max) {
            self.count += 1;
            items.push(Item::Upsert { key, object: Arc::clone(object), revision: None, position: None });
        }
        self.mode = clusters.next().map_or(Mode::Replaying, |(key, _)| Mode::Scanning(Some(key)));
    }

    /// Newest state per key, in order of sequence. Ends at the head; what changes meanwhile moves up in the index and is met there.
    fn replay(&mut self, reading: &Reading, change_count_max: usize, items: &mut Vec<Item>) {
        let published = reading.published();
        if published.feed.floor() > self.sent {
            self.restart(ResetReason::Expired, published.feed.head());
            items.extend(self.reset.take().map(Item::Reset));
            return;
        }
        let looked_at = SCANNED_KEYS_MAX.min(change_count_max.saturating_mul(LOOKED_AT_FOR_EACH));
        // one more than is looked at, to know whether it is the end
        let mut changes = published.lacked_after(self.sent, looked_at + 1).into_iter();
        let mut last = self.sent;
        for (sequence, changed) in changes.by_ref().take(looked_at) {
            last = sequence;
            let position = self.position_at(reading, sequence);
            let item = self.replayed(changed, position, reading);
            self.count += u64::from(item.is_some());
            items.extend(item);
            if items.len() >= change_count_max {
                break;
            }
        }
        let finished = changes.next().is_none();
        self.sent = if finished { published.feed.head() } else { last };
        if finished {
            self.settle(reading, items);
        }
    }

    fn replayed(&self, changed: Changed<Live>, position: Option<ReaderPosition>, reading: &Reading) -> Option<Item> {
        match changed {
            Changed::Gone(key, reason) => self.filter.may_match(&key).then(|| Item::Delete { key, reason: reason.api_name(), position }),
            Changed::Live(live) if live.kind() == Kind::Cluster => {
                let (view, key) = (&reading.published().view, live.key());
                let object = view.cluster_object(&key.cluster).filter(|object| self.filter.matches(&key, object))?;
                Some(Item::Upsert { key, object: Arc::clone(object), revision: None, position })
            }
            Changed::Live(live) => {
                let record = reading.published().view.record_passing(&live, |key| self.filter.may_match(key))?;
                let (key, revision) = (record.key.clone(), Some(record.source.mod_revision));
                match matching(&self.filter, &record) {
                    Some(object) => Some(Item::Upsert { key, object, revision, position }),
                    None => Some(Item::Delete { key, reason: "unknown", position }),
                }
            }
        }
    }

    fn follow(&mut self, reading: &Reading, change_count_max: usize, items: &mut Vec<Item>) {
        if self.owes_synced {
            self.settle(reading, items);
        }
        let published = reading.published();
        let Some(announcements) = published.feed.ring_after(self.sent) else {
            self.mode = Mode::Replaying;
            self.sync_mode = SyncMode::Replay;
            self.owes_synced = true;
            self.count = 0;
            return;
        };
        let full = items.len() + change_count_max;
        for announcement in announcements.take(SCANNED_KEYS_MAX) {
            self.sent = announcement.sequence;
            let position = Some(self.position(reading).into());
            let item = told(&self.filter, announcement, position);
            items.extend(item.map(|item| if self.patches { item.shortened(&self.filter, announcement) } else { item }));
            if items.len() >= full {
                break;
            }
        }
    }

    /// Tells that the gap is closed.
    fn settle(&mut self, reading: &Reading, items: &mut Vec<Item>) {
        let position = self.position(reading);
        items.push(Item::Synced { mode: self.sync_mode, count: self.count, position });
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
fn check(text: &str, reading: &Reading) -> Result<Sequence, ResetReason> {
    let ReaderPosition { position, seen } = text.parse().map_err(|_| ResetReason::Malformed)?;
    if let Some(seen) = seen {
        servable(Position { sequence: seen, ..position }, reading)?;
    }
    servable(position, reading)
}

/// The same of a position that was read.
fn servable(position: Position, reading: &Reading) -> Result<Sequence, ResetReason> {
    let head = reading.position();
    let newest = if position.epoch == head.epoch {
        head.sequence
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
    let passes = |object: &&Arc<Object>| filter.matches(key, object);
    let old = announcement.old.get().filter(passes);
    let new = announcement.new.as_ref().filter(passes);
    match (old, new) {
        // new bytes that could not be used, or bytes that differ but mean the same: nothing that a reader holds has changed
        (Some(old), Some(new)) if old == new => None,
        (_, Some(object)) => Some(Item::Upsert { key: key.clone(), object: Arc::clone(object), revision: announcement.revision, position }),
        (Some(_), None) => {
            let reason = announcement.deleted.map_or("leftFilter", |reason| reason.api_name());
            Some(Item::Delete { key: key.clone(), reason, position })
        }
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests;
