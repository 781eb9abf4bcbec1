//! The layout at work: groups go to the log, and from there, later and many at once, to the chunks that hold the state.
//!
//! Owns: which slot holds what, what of the log is not in the chunks yet, when that is folded into them, and the order of writes that makes
//! every moment safe. Receives: groups of changes. Deliberately lacks: how all of this is found again (`recover`), the engine
//! (`slots`), and what keys and values mean (`load`).
//!
//! What is safe when:
//! - A group is one object, so it is there as a whole or not at all; it is acknowledged once it is synced.
//! - A chunk takes in only groups that are synced, and says up to which one, so a log object that is still there does no harm.
//! - Of chunks that overlap, the one with the higher stamp counts. So a split, a merge or a move is: write the new, sync, delete
//!   the old.
//! - A log object is deleted only after a sync that follows the fold of all that is in it.
//! - Each sync has the manifest of what was written before it (`manifest`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use super::change::{Key, Value};
use super::codec;
use super::dirty::Dirty;
use super::error::EngineError;
use super::manifest::{Entry, Manifest};
use super::object::{self, Head};
use super::pace::{LOG_FULL_BYTES, Pace, overtime};
use super::packing::{self, Content, Packed};
use super::pairs::PairsWriter;
use super::pending::{GROWING_MAX, Pending};
use super::slots::{Slot, SlotKind, Slots};
use super::summary::Summary;
use crate::model::Record;

/// Windows are merged into a segment when they reach this, in compressed bytes (docs/measurements.md §1.1).
const HOT_BYTES_MAX: usize = 40 << 10;

/// Or this many: more would make a start slower without need.
const HOT_COUNT_MAX: usize = 64;

/// A group waits while the log has more than this, in bytes of keys and values, which bounds what a start reads of it: a quarter above full, so
/// that the first round of folds, which lets nothing go before it ends, ends without. With groups that waited as it was full three in a row
/// came 150 to 400 ms late.
pub(super) const LOG_RAW_BYTES_MAX: u64 = LOG_FULL_BYTES / 4 * 5;

/// One range of keys.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Where the range ends, before this key; `None` is the end of all keys.
    pub(super) high: Option<Key>,
    /// Where it is stored.
    pub(super) slots: Vec<Slot>,
    pub(super) stamp: u64,
    /// The last group that is in it.
    pub(super) folded: u64,
    /// How many keys are in it.
    pub(super) count: u64,
    /// How long these and their values are, in bytes.
    pub(super) raw_bytes: u64,
    /// What is in it, in short, without what the log has.
    pub(super) summary: Summary,
    /// What the log has for it.
    pub(super) pending: Pending,
    /// The first group that is not in it.
    pub(super) dirty_since: Option<u64>,
}

/// One object of the log.
#[derive(Debug)]
pub(super) struct LogObject {
    pub(super) slots: Vec<Slot>,
    pub(super) first_group: u64,
    pub(super) last_group: u64,
    pub(super) raw_bytes: u64,
    pub(super) stored_bytes: usize,
}

/// The part of the log that is needed.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Merged groups, oldest first.
    pub(super) segments: Vec<LogObject>,
    /// Single groups behind them.
    pub(super) hot: Vec<LogObject>,
    /// What the single groups say together.
    pub(super) merged: BTreeMap<Key, Option<Value>>,
}

/// Which slots are free.
#[derive(Debug, Default)]
pub(super) struct FreeSlots {
    pub(super) free: BTreeSet<Slot>,
    pub(super) next: BTreeMap<SlotKind, u32>,
    /// Free after the next sync.
    pub(super) soon: Vec<Slot>,
}

/// An open store of layout 2.
#[derive(Debug)]
pub(super) struct Warm<S> {
    pub(super) slots: S,
    pub(super) chunks: BTreeMap<Key, Chunk>,
    /// Chunks that the log has something for.
    pub(super) dirty: Dirty,
    pub(super) log: Log,
    pub(super) room: FreeSlots,
    pub(super) manifest: Manifest,
    /// The highest stamp that was used.
    pub(super) stamp: u64,
    /// The last group that is stored.
    pub(super) group_number: u64,
    /// How many folds are due.
    pub(super) pace: Pace,
    /// How many records of the log wait to be packed until there are more.
    growing: usize,
    /// What was committed since folding was thought of, in bytes before compression.
    pub(super) committed_bytes: u64,
}

impl Chunk {
    /// What the manifest says of it.
    pub(super) fn entry(&self) -> Entry {
        Entry { high: self.high.clone(), stamp: self.stamp, slots: self.slots.clone(), summary: self.summary.clone() }
    }
}

impl FreeSlots {
    fn take(&mut self, kind: SlotKind) -> Slot {
        let all = Slot { kind, number: 0 }..=Slot { kind, number: u32::MAX };
        if let Some(slot) = self.free.range(all).next().copied() {
            self.free.remove(&slot);
            return slot;
        }
        let next = self.next.entry(kind).or_default();
        let slot = Slot { kind, number: *next };
        *next += 1;
        slot
    }
}

impl Log {
    /// What is kept, in bytes before compression.
    pub(super) fn raw_bytes(&self) -> u64 {
        self.segments.iter().chain(&self.hot).map(|object| object.raw_bytes).sum()
    }

    /// The first group that is needed.
    fn floor(&self) -> Option<u64> {
        self.segments.iter().chain(&self.hot).map(|object| object.first_group).min()
    }

    fn hot_bytes(&self) -> usize {
        self.hot.iter().map(|object| object.stored_bytes).sum()
    }
}

impl<S: Slots> Warm<S> {
    /// Begins a new store in an engine without any slot: the ranges are covered from the beginning, so that a gap is always damage.
    pub(super) fn begin(slots: S) -> Result<Self, EngineError> {
        let mut warm = Self::bare(slots);
        for (at, low) in packing::RANGES.into_iter().enumerate() {
            let high = packing::RANGES.get(at + 1).map(|high| Key::from(*high));
            warm.place(low.into(), high, 0, Vec::new(), packing::empty())?;
        }
        warm.slots.sync()?;
        Ok(warm)
    }

    /// A store that nothing is known of yet.
    pub(super) fn bare(slots: S) -> Self {
        Self {
            slots,
            chunks: BTreeMap::new(),
            dirty: Dirty::default(),
            log: Log::default(),
            room: FreeSlots::default(),
            manifest: Manifest::default(),
            stamp: 0,
            group_number: 0,
            pace: Pace::default(),
            growing: 0,
            committed_bytes: 0,
        }
    }

    /// Stores a group: all of it or none; durable when this returns. After an error the engine must be dropped and everything read again.
    pub(super) fn commit(&mut self, changes: BTreeMap<Key, Option<Value>>) -> Result<(), EngineError> {
        let number = self.group_number + 1;
        self.store((number, number), changes, false)
    }

    /// The same for a group that repairs, and stands for others as well, which are lost or void: all from `first` on.
    pub(super) fn repair(&mut self, first: u64, number: u64, changes: BTreeMap<Key, Option<Value>>) -> Result<(), EngineError> {
        self.store((first, number), changes, true)
    }

    fn store(&mut self, groups: (u64, u64), changes: BTreeMap<Key, Option<Value>>, repairs: bool) -> Result<(), EngineError> {
        while self.log.raw_bytes() > LOG_RAW_BYTES_MAX && self.fold_next()? {
            self.retire();
        }
        let number = groups.1;
        let (body, raw_bytes) = write_window(&changes);
        for (key, value) in &changes {
            self.note(number, number, key, value.clone());
        }
        self.pack_pending(&changes);
        let full = self.log.hot_bytes() + body.len() > HOT_BYTES_MAX || self.log.hot.len() >= HOT_COUNT_MAX;
        if full || repairs {
            self.seal(groups, changes, (body, raw_bytes))?;
        } else {
            let count = changes.len() as u64;
            self.log.merged.extend(changes);
            let object = self.write_log(SlotKind::Hot, groups, count, (body, raw_bytes))?;
            self.log.hot.push(object);
        }
        self.group_number = number;
        self.committed_bytes += raw_bytes;
        // a window that is not needed costs little and is soon overwritten, unless it is damaged
        self.sync(|slot| slot.kind != SlotKind::Hot || repairs)
    }

    /// Merges the single groups and a new one into a segment.
    fn seal(&mut self, groups: (u64, u64), changes: BTreeMap<Key, Option<Value>>, alone: (Vec<u8>, u64)) -> Result<(), EngineError> {
        let (first, number) = groups;
        let hot = std::mem::take(&mut self.log.hot);
        let first = hot.first().map_or(first, |object| object.first_group.min(first));
        let mut merged = std::mem::take(&mut self.log.merged);
        let (count, window) = if merged.is_empty() {
            (changes.len(), alone)
        } else {
            merged.extend(changes);
            (merged.len(), write_window(&merged))
        };
        let segment = self.write_log(SlotKind::Segment, (first, number), count as u64, window)?;
        self.log.segments.push(segment);
        self.room.soon.extend(hot.into_iter().flat_map(|object| object.slots));
        Ok(())
    }

    fn write_log(&mut self, kind: SlotKind, groups: (u64, u64), count: u64, window: (Vec<u8>, u64)) -> Result<LogObject, EngineError> {
        let (body, raw_bytes) = window;
        let (first_group, last_group) = groups;
        // what is sealed is in this object, so its own first group counts
        let floor = self.log.floor().unwrap_or(first_group).min(first_group);
        let head = Head { stamp: self.next_stamp(), first_group, last_group, floor, count, raw_bytes, low: Vec::new(), high: None };
        let slots = self.write(kind, &head, &body)?;
        Ok(LogObject { slots, first_group, last_group, raw_bytes, stored_bytes: body.len() })
    }

    /// Notes that the log has a change for a chunk, in an object that begins with group `first`.
    pub(super) fn note(&mut self, first: u64, last: u64, key: &Key, value: Option<Value>) -> bool {
        let Some((low, chunk)) = self.chunks.range_mut::<[u8], _>((Bound::Unbounded, Bound::Included(&key[..]))).next_back() else {
            return false;
        };
        if last <= chunk.folded {
            return false;
        }
        chunk.pending.insert(key.clone(), value);
        if chunk.dirty_since.is_none() {
            chunk.dirty_since = Some(first);
            self.dirty.insert(first, &chunk.slots, low);
        }
        true
    }

    /// Takes in what the log's records mean, which is packed with them: the log has just their bytes.
    pub(super) fn know(&mut self, records: &[Arc<Record>]) {
        for record in records {
            if let Some((_, chunk)) = self.chunk_of(&codec::entry_key(&record.key)) {
                chunk.pending.know(record);
            }
        }
        self.chunks.values_mut().for_each(|chunk| chunk.pending.pack(0));
    }

    /// Packs what the log has for the chunks of changes: what these mean is known, unlike that of what a start reads.
    fn pack_pending(&mut self, changes: &BTreeMap<Key, Option<Value>>) {
        let (mut next, mut growing) = (changes.keys().next(), self.growing);
        while let Some(key) = next
            && let Some((_, chunk)) = self.chunk_of(key)
        {
            growing -= chunk.pending.growing();
            chunk.pending.pack(GROWING_MAX.saturating_sub(growing));
            growing += chunk.pending.growing();
            next = chunk.high.as_ref().and_then(|high| changes.range(high.clone()..).next()).map(|(key, _)| key);
        }
        self.growing = growing;
        debug_assert_eq!(growing, self.chunks.values().map(|chunk| chunk.pending.growing()).sum::<usize>(), "all must be counted");
    }

    /// The chunk that a key belongs to, and where it begins.
    fn chunk_of(&mut self, key: &[u8]) -> Option<(&Key, &mut Chunk)> {
        self.chunks.range_mut::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()
    }

    /// Makes everything durable, and then room of what is no longer needed.
    fn sync(&mut self, empties: impl Fn(Slot) -> bool) -> Result<(), EngineError> {
        self.write_manifest()?;
        let soon = std::mem::take(&mut self.room.soon);
        self.slots.sync()?;
        for slot in soon {
            if empties(slot) {
                self.slots.delete(slot)?;
            }
            self.room.free.insert(slot);
        }
        Ok(())
    }

    /// Folds as much as is due for what was committed since the last call, as long as nothing else is to be done, and from now on for a time in
    /// any case, the longer the fuller the log is, so that folding keeps up.
    pub(super) fn tend(&mut self, now: Instant, until: Instant) -> Result<(), EngineError> {
        self.pace.earn(std::mem::take(&mut self.committed_bytes), self.log.raw_bytes(), self.dirty.len());
        let until = until.max(now + overtime(self.log.raw_bytes()));
        while self.pace.is_due() && Instant::now() < until && self.fold_next()? {
            self.pace.folded();
        }
        self.retire();
        Ok(())
    }

    /// Folds everything, as far as there is time. Returns whether all is folded.
    pub(super) fn settle(&mut self, deadline: Instant) -> Result<bool, EngineError> {
        while Instant::now() < deadline && self.fold_next()? {}
        self.retire();
        if self.room.soon.is_empty() && !self.manifest.is_changed() {
            return Ok(self.dirty.is_empty());
        }
        self.mark()?;
        self.sync(|_| true)?;
        Ok(self.dirty.is_empty())
    }

    /// Whether anything is left to be folded.
    pub(super) fn is_settled(&self) -> bool {
        self.dirty.is_empty()
    }

    /// Notes which groups are needed no longer, for when no new group will tell.
    fn mark(&mut self) -> Result<(), EngineError> {
        let number = self.group_number;
        let floor = self.log.floor().unwrap_or(number + 1);
        let head = Head { stamp: self.next_stamp(), first_group: number, last_group: number, floor, ..Head::default() };
        let slot = Slot { kind: SlotKind::Mark, number: 0 };
        self.put(&[slot], &head, &[])
    }

    /// Lets go of what is in the chunks.
    fn retire(&mut self) {
        let oldest = self.dirty.oldest().unwrap_or(u64::MAX);
        let needed = self.log.segments.iter().position(|segment| segment.last_group >= oldest).unwrap_or(self.log.segments.len());
        let retired: Vec<LogObject> = self.log.segments.drain(..needed).collect();
        self.room.soon.extend(retired.into_iter().flat_map(|object| object.slots));
        if oldest == u64::MAX {
            self.log.merged.clear();
            self.room.soon.extend(std::mem::take(&mut self.log.hot).into_iter().flat_map(|object| object.slots));
        }
    }

    /// Folds what the log has for the chunk whose turn it is. Only to be called when all groups are durable.
    fn fold_next(&mut self) -> Result<bool, EngineError> {
        let Some(mut low) = self.dirty.next() else { return Ok(false) };
        let (mut content, chunk) = self.take(&low)?;
        let (mut high, mut slots) = (chunk.high, chunk.slots);
        if (content.len() as u64) < packing::COUNT_MIN && chunk.raw_bytes < packing::RAW_BYTES_MIN {
            if let Some(right) = high.clone().filter(|right| self.is_small_neighbour(&low, right)) {
                let (more, neighbour) = self.take(&right)?;
                content.append(more);
                slots.extend(neighbour.slots);
                high = neighbour.high;
            } else if let Some(left) = self.chunks.range(..low.clone()).next_back().map(|(left, _)| left.clone())
                && self.is_small_neighbour(&low, &left)
            {
                let (below, neighbour) = self.take(&left)?;
                let above = std::mem::replace(&mut content, below);
                content.append(above);
                slots.extend(neighbour.slots);
                low = left;
            }
        }
        self.place(low, high, self.group_number, slots, content.pack())?;
        Ok(true)
    }

    fn is_small_neighbour(&self, low: &Key, neighbour: &Key) -> bool {
        let few = |chunk: &Chunk| chunk.count + chunk.pending.len() as u64 <= 2 * packing::COUNT_MIN;
        let small = |chunk: &Chunk| few(chunk) && chunk.raw_bytes < 2 * packing::RAW_BYTES_MIN;
        packing::family(low) == packing::family(neighbour) && self.chunks.get(neighbour).is_some_and(small)
    }

    /// Takes a chunk out and reads it, with what the log has for it.
    fn take(&mut self, low: &Key) -> Result<(Content, Chunk), EngineError> {
        let Some(mut chunk) = self.chunks.remove(low) else {
            return Err(EngineError::Damaged(format!("no chunk at {}", low.escape_ascii())));
        };
        if let Some(since) = chunk.dirty_since {
            self.dirty.remove(since, &chunk.slots, low);
        }
        let pending = std::mem::take(&mut chunk.pending);
        self.growing -= pending.growing();
        let content = self.read(low, &chunk, pending)?;
        Ok((content, chunk))
    }

    /// Writes what a range holds, up to and including group `folded`, in place of what is in the old slots.
    pub(super) fn place(
        &mut self,
        low: Key,
        high: Option<Key>,
        folded: u64,
        old: Vec<Slot>,
        packed: Vec<Packed>,
    ) -> Result<(), EngineError> {
        let lows = packing::separators(&low, &packed);
        let single = packed.len() == 1;
        for (at, piece) in packed.into_iter().enumerate() {
            let piece_high = lows.get(at + 1).cloned().or_else(|| high.clone());
            let head = Head {
                stamp: self.next_stamp(),
                first_group: folded,
                last_group: folded,
                floor: 0,
                count: piece.count,
                raw_bytes: piece.raw_bytes,
                low: lows[at].to_vec(),
                high: piece_high.as_ref().map(|high| high.to_vec()),
            };
            let slots = if single && old.len() == 1 && object::part_count(&head, &piece.body) == 1 {
                self.put(&old, &head, &piece.body)?;
                old.clone()
            } else {
                self.write(SlotKind::Chunk, &head, &piece.body)?
            };
            let chunk = Chunk {
                high: piece_high,
                slots,
                stamp: head.stamp,
                folded,
                count: piece.count,
                raw_bytes: piece.raw_bytes,
                summary: piece.summary,
                pending: Pending::default(),
                dirty_since: None,
            };
            self.manifest.change(lows[at].clone());
            self.chunks.insert(lows[at].clone(), chunk);
        }
        let kept: BTreeSet<Slot> = self.chunks.get(&low).map(|chunk| chunk.slots.iter().copied().collect()).unwrap_or_default();
        self.room.soon.extend(old.into_iter().filter(|slot| !kept.contains(slot)));
        Ok(())
    }

    /// Writes an object to slots that are free.
    pub(super) fn write(&mut self, kind: SlotKind, head: &Head, body: &[u8]) -> Result<Vec<Slot>, EngineError> {
        let slots: Vec<Slot> = (0..object::part_count(head, body)).map(|_| self.room.take(kind)).collect();
        self.put(&slots, head, body)?;
        Ok(slots)
    }

    pub(super) fn put(&self, slots: &[Slot], head: &Head, body: &[u8]) -> Result<(), EngineError> {
        let values = object::write_parts(head, body, slots);
        slots.iter().zip(values).try_for_each(|(slot, value)| self.slots.put(*slot, &value))
    }

    pub(super) fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }
}

/// The body of a log object, and its length before compression.
fn write_window(changes: &BTreeMap<Key, Option<Value>>) -> (Vec<u8>, u64) {
    let mut writer = PairsWriter::default();
    let mut raw_bytes = 0;
    for (key, value) in changes {
        let body = value.as_ref().map(Value::body);
        raw_bytes += (key.len() + body.as_ref().map_or(0, |body| body.len())) as u64;
        writer.add(key, body.as_deref());
    }
    (writer.finish(), raw_bytes)
}

#[cfg(test)]
impl<S: Slots> Warm<S> {
    /// Folds some chunks that are not due.
    pub(super) fn fold_some(&mut self, count: usize) -> Result<(), EngineError> {
        for _ in 0..count {
            self.fold_next()?;
        }
        self.retire();
        Ok(())
    }

    /// Folds everything.
    pub(super) fn fold_all(&mut self) -> Result<(), EngineError> {
        self.settle(Instant::now() + std::time::Duration::from_secs(600)).map(|settled| assert!(settled))
    }
}
