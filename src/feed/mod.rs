//! The order of changes: a short ring of announcements for readers that keep up, tombstones for those that do not.
//!
//! Owns: the ring and the tombstones. Receives the announcements of the one writer. Emits what a reader at a position still lacks of
//! them. Like the views it is persistent: a clone is a snapshot. Deliberately lacks: IO, awaiting, and the keys that exist, which the view
//! has in order of sequence too (`View::live_after`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use imbl::{OrdMap, Vector};

use crate::model::{Announcement, EntryKey, Sequence, Tombstone};

/// How many announcements the ring holds. At 20,000 changes/s, the highest rate of the plan, this is 0.8 s: far more than the 50 ms
/// between two looks of a reader that keeps up; behind that a reader goes through the view. Each keeps two objects, some 0.7 KB.
pub const RING_LENGTH_MAX: usize = 16_384;

/// How far back positions may reach (api.md: `--tombstone-max-age`, `--tombstone-max-count`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Older tombstones go.
    pub age_max: Duration,
    /// With more tombstones than this the oldest go.
    pub count_max: usize,
}

/// How many tombstones went since the start because of each bound: the one that bites decides how far back positions reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrimmedCounts {
    /// Older than [`Retention::age_max`].
    pub by_age: u64,
    /// More than [`Retention::count_max`].
    pub by_count: u64,
}

/// What a change did to the tombstones: to be stored in the batch of the change.
#[derive(Debug, Default, PartialEq)]
pub struct TombstoneEffects {
    /// New ones (`Some`) and those that went (`None`).
    pub tombstones: BTreeMap<Sequence, Option<Tombstone>>,
    /// The floor, where trimming raised it.
    pub floor: Option<Sequence>,
}

/// The order of changes. Cloning makes a snapshot.
#[derive(Debug, Clone)]
pub struct Feed {
    ring: Vector<Arc<Announcement>>,
    tombstones: OrdMap<Sequence, Tombstone>,
    /// Where a key's tombstone is, so that it goes when the key comes back.
    tombstone_of: OrdMap<EntryKey, Sequence>,
    /// A position below this one may have missed a delete.
    floor: Sequence,
    head: Sequence,
    retention: Retention,
    trimmed: TrimmedCounts,
}

impl Feed {
    /// An empty order in which `start` is the position of everything that was there before.
    #[must_use]
    pub fn starting_at(start: Sequence, retention: Retention) -> Self {
        Self {
            ring: Vector::new(),
            tombstones: OrdMap::new(),
            tombstone_of: OrdMap::new(),
            floor: start,
            head: start,
            retention,
            trimmed: TrimmedCounts::default(),
        }
    }

    /// Takes in a tombstone that the store held.
    pub fn restore_tombstone(&mut self, sequence: Sequence, tombstone: Tombstone) {
        self.tombstone_of.insert(tombstone.key.clone(), sequence);
        self.tombstones.insert(sequence, tombstone);
    }

    /// Positions below this one may have missed a delete whose tombstone is gone.
    pub fn restore_floor(&mut self, floor: Sequence) {
        self.floor = floor;
    }

    /// Takes in one change. Sequences must grow.
    pub fn announce(&mut self, announcement: Announcement, now: SystemTime) -> TombstoneEffects {
        let mut effects = TombstoneEffects::default();
        assert!(announcement.sequence > self.head, "sequences must grow");
        self.head = announcement.sequence;
        let key = announcement.key.clone();
        if let Some(previous) = self.tombstone_of.remove(&key) {
            self.tombstones.remove(&previous);
            effects.tombstones.insert(previous, None);
        }
        if let Some(reason) = announcement.deleted {
            let tombstone = Tombstone { key: key.clone(), reason, time: now };
            self.tombstone_of.insert(key, self.head);
            self.tombstones.insert(self.head, tombstone.clone());
            effects.tombstones.insert(self.head, Some(tombstone));
        }
        self.ring.push_back(Arc::new(announcement));
        if self.ring.len() > RING_LENGTH_MAX {
            self.ring.pop_front();
        }
        self.trim(now, &mut effects);
        effects
    }

    /// Drops tombstones that are too old or too many, and raises the floor past them.
    fn trim(&mut self, now: SystemTime, effects: &mut TombstoneEffects) {
        while let Some((sequence, oldest)) = self.tombstones.get_min() {
            let age = now.duration_since(oldest.time).unwrap_or(Duration::ZERO);
            match (age > self.retention.age_max, self.tombstones.len() > self.retention.count_max) {
                (false, false) => return,
                (true, _) => self.trimmed.by_age += 1,
                (false, true) => self.trimmed.by_count += 1,
            }
            let (sequence, key) = (*sequence, oldest.key.clone());
            self.floor = sequence;
            effects.floor = Some(sequence);
            effects.tombstones.insert(sequence, None);
            self.tombstones.remove(&sequence);
            self.tombstone_of.remove(&key);
        }
    }

    /// The sequence of the newest change.
    #[must_use]
    pub fn head(&self) -> Sequence {
        self.head
    }

    /// The oldest position from which nothing is lost.
    #[must_use]
    pub fn floor(&self) -> Sequence {
        self.floor
    }

    /// Which bound took tombstones away.
    #[must_use]
    pub fn trimmed(&self) -> TrimmedCounts {
        self.trimmed
    }

    /// How many announcements the ring holds now.
    #[must_use]
    pub fn ring_length(&self) -> usize {
        self.ring.len()
    }

    /// How many tombstones are kept.
    #[must_use]
    pub fn tombstone_count(&self) -> usize {
        self.tombstones.len()
    }

    /// When the oldest of them was laid.
    #[must_use]
    pub fn oldest_tombstone(&self) -> Option<SystemTime> {
        self.tombstones.get_min().map(|(_, oldest)| oldest.time)
    }

    /// The announcements after a position, or `None` where the ring no longer holds all of them.
    #[must_use]
    pub fn ring_after(&self, position: Sequence) -> Option<impl Iterator<Item = &Arc<Announcement>>> {
        let is_whole = self.head.0.saturating_sub(position.0) <= self.ring.len() as u64;
        is_whole.then(|| self.recent_after(position))
    }

    /// What the ring holds of the announcements after a position.
    pub fn recent_after(&self, position: Sequence) -> impl Iterator<Item = &Arc<Announcement>> {
        let start = self.ring.len().saturating_sub(usize::try_from(self.head.0.saturating_sub(position.0)).unwrap_or(usize::MAX));
        self.ring.focus().narrow(start..).into_iter()
    }

    /// The tombstones after a position, in order of sequence.
    pub fn gone_after(&self, position: Sequence) -> impl Iterator<Item = (Sequence, &Tombstone)> {
        self.tombstones.range(position.next()..).map(|(sequence, tombstone)| (*sequence, tombstone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClusterName, DeleteReason, Former, Kind};

    fn key(name: &str) -> EntryKey {
        EntryKey::new(Kind::Ip, ClusterName::parse("paris").unwrap(), name)
    }

    fn change(sequence: u64, name: &str, replaces: Option<u64>, deleted: bool) -> Announcement {
        Announcement {
            sequence: Sequence(sequence),
            key: key(name),
            old: Former::default(),
            new: None,
            revision: None,
            replaces: replaces.map(Sequence),
            deleted: deleted.then_some(DeleteReason::Deleted),
        }
    }

    fn feed(count_max: usize) -> Feed {
        Feed::starting_at(Sequence(100), Retention { age_max: Duration::from_secs(60), count_max })
    }

    fn gone(feed: &Feed, after: u64) -> Vec<(u64, String)> {
        feed.gone_after(Sequence(after)).map(|(sequence, tombstone)| (sequence.0, tombstone.key.name.to_string())).collect()
    }

    #[test]
    fn a_tombstone_goes_when_its_key_comes_back() {
        let now = SystemTime::UNIX_EPOCH;
        let mut feed = feed(10);
        feed.announce(change(101, "a", None, false), now);
        feed.announce(change(102, "b", None, false), now);
        feed.announce(change(103, "a", Some(101), true), now);
        feed.announce(change(104, "b", Some(102), true), now);
        assert_eq!(gone(&feed, 100), [(103, "a".to_owned()), (104, "b".to_owned())]);
        assert_eq!(gone(&feed, 103), [(104, "b".to_owned())]);
        feed.announce(change(105, "b", None, false), now);
        assert_eq!(gone(&feed, 100), [(103, "a".to_owned())]);
        assert_eq!(feed.tombstone_count(), 1);
        assert_eq!(feed.floor(), Sequence(100));
    }

    #[test]
    fn tombstones_past_their_count_or_age_raise_the_floor() {
        let start = SystemTime::UNIX_EPOCH;
        let mut feed = feed(1);
        feed.announce(change(101, "a", None, true), start);
        feed.announce(change(102, "b", None, true), start);
        assert_eq!((feed.floor(), feed.tombstone_count()), (Sequence(101), 1));
        feed.trim(start + Duration::from_secs(61), &mut TombstoneEffects::default());
        assert_eq!((feed.floor(), feed.tombstone_count()), (Sequence(102), 0));
        assert_eq!(feed.trimmed(), TrimmedCounts { by_age: 1, by_count: 1 });
    }

    #[test]
    fn the_ring_answers_only_while_it_holds_everything() {
        let now = SystemTime::UNIX_EPOCH;
        let mut feed = feed(10);
        let total = RING_LENGTH_MAX as u64 + 5;
        for sequence in 101..=100 + total {
            feed.announce(change(sequence, "a", (sequence > 101).then(|| sequence - 1), false), now);
        }
        let oldest = 100 + total - RING_LENGTH_MAX as u64;
        let first = feed.ring_after(Sequence(oldest)).unwrap().next().unwrap();
        assert_eq!(first.sequence, Sequence(oldest + 1));
        assert!(feed.ring_after(Sequence(oldest - 1)).is_none());
        assert_eq!(feed.ring_after(feed.head()).unwrap().count(), 0);
        let recent = |after: u64| feed.recent_after(Sequence(after)).map(|announcement| announcement.sequence.0).collect::<Vec<_>>();
        assert_eq!(recent(0), (oldest + 1..=100 + total).collect::<Vec<_>>());
        assert_eq!((recent(98 + total), recent(100 + total)), (vec![99 + total, 100 + total], vec![]));
    }
}
