//! The layout at work: what the log has for chunks, and how it gets into them.
//!
//! Owns: which slot holds what, what of the log is not in the chunks yet, when that is folded into them, and the order of writes that makes
//! every moment safe. Receives: changes that are in the log and synced. Deliberately lacks: the log itself (`log`), how all of this is found again
//! (`slot_scan`), the engine (`slots`), and what keys and values mean (`load`).
//!
//! What is safe when:
//! - A chunk takes in only groups that are synced in the log, and says up to which one, so taking one in twice does no harm.
//! - Of chunks that overlap, the one with the higher stamp counts. So a split, a merge or a move is: write the new, sync, delete
//!   the old.
//! - The mark says up to which group all chunks have everything, a sync later than they do: there is no order between slots. The log lets go of
//!   a file only behind the sync that the mark was in.
//! - Each sync has the manifest of what was written before it (`manifest`).

mod contents;
mod restart;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fold_queue::FoldQueue;
use super::fold_rate::{FoldRate, LOG_FULL_BYTES, overtime};
use crate::model::Record;
use crate::store::encoding::change::{Key, Value};
use crate::store::encoding::codec;
use crate::store::encoding::group::Changes;
use crate::store::engine::slots::{Slot, SlotKind, Slots};
use crate::store::error::EngineError;
use crate::store::manifest::Manifest;
use crate::store::objects::object::{self, Head};
use crate::store::objects::packing::{self, Content, Packed};
use crate::store::objects::pending::{GROWING_MAX, Pending};
use crate::store::objects::slot_allocator::SlotAllocator;
use crate::store::objects::stored_range::StoredRange;

pub(in crate::store) use contents::Body;

/// What is written to chunks is synced when it has so many bytes: at 20,000 changes/s some ten times a second, each for some milliseconds.
const SYNC_BYTES: usize = if cfg!(test) { 4 << 10 } else { 1 << 20 };

/// The mark is written anew when so many bytes of the log are needed no longer, about one of its files.
const MARK_BYTES: u64 = if cfg!(test) { 1 << 10 } else { 4 << 20 };

/// No deadline.
const LONG: Duration = Duration::from_secs(3600);

/// Where the mark is.
const MARK: Slot = Slot { kind: SlotKind::Mark, number: 0 };

/// A group waits while the log has more than this, in bytes of keys and values, which bounds what a start reads of it: a quarter above full, so
/// that the first round of folds, which lets nothing go before it ends, ends without. With groups that waited as it was full three in a row
/// came 150 to 400 ms late.
pub(in crate::store) const LOG_RAW_BYTES_MAX: u64 = LOG_FULL_BYTES / 4 * 5;

/// What the log has that not all chunks have.
#[derive(Debug, Default)]
struct Unfolded {
    /// The last group of some, and how many bytes of keys and values these have, oldest first.
    groups: VecDeque<(u64, u64)>,
    raw_bytes: u64,
}

/// An open store.
#[derive(Debug)]
pub(in crate::store) struct ChunkStore<S> {
    slot_allocator: SlotAllocator<S>,
    chunks: BTreeMap<Key, StoredRange>,
    /// Chunks that the log has something for.
    fold_queue: FoldQueue,
    log: Unfolded,
    manifest: Manifest,
    /// The last group that was taken in.
    group_number: u64,
    /// The id of the log that goes with this store; 0 while something that was lost is not noted yet.
    id: u64,
    /// All chunks had everything up to this group when they were last synced,
    passed: u64,
    /// up to this one as the mark says,
    marked: u64,
    /// and up to this one as the mark says that is synced.
    folded: u64,
    /// How much of the log has become needless since the mark was written.
    retired_bytes: u64,
    /// What was written to chunks since the last sync.
    unsynced_bytes: usize,
    /// How many folds are due.
    fold_rate: FoldRate,
    /// How many records of the log wait to be packed until there are more.
    growing: usize,
    /// What was committed since folding was thought of, in bytes before compression.
    committed_bytes: u64,
}

impl Unfolded {
    /// Adds groups up to this one.
    fn keep(&mut self, last: u64, raw_bytes: u64) {
        self.groups.push_back((last, raw_bytes));
        self.raw_bytes += raw_bytes;
    }

    /// Lets go of groups below one. Returns how many bytes that are.
    fn retire(&mut self, oldest: u64) -> u64 {
        let before = self.raw_bytes;
        while let Some((_, raw_bytes)) = self.groups.front().copied().filter(|(last, _)| *last < oldest) {
            self.raw_bytes -= raw_bytes;
            self.groups.pop_front();
        }
        before - self.raw_bytes
    }

    /// How many bytes of keys and values there are.
    const fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }
}

impl<S: Slots> ChunkStore<S> {
    /// Begins a new store in an engine without any slot: the ranges are covered from the beginning, so that a gap is always damage.
    pub(in crate::store) fn begin(slots: S) -> Result<Self, EngineError> {
        let mut chunk_store = Self::bare(slots);
        for (at, low) in packing::RANGES.into_iter().enumerate() {
            let high = packing::RANGES.get(at + 1).map(|high| Key::from(*high));
            chunk_store.place(low.into(), high, 0, Vec::new(), packing::empty())?;
        }
        chunk_store.sync(false)?;
        Ok(chunk_store)
    }

    /// A store that nothing is known of yet.
    pub(in crate::store) fn bare(slots: S) -> Self {
        Self {
            slot_allocator: SlotAllocator::of(slots),
            chunks: BTreeMap::new(),
            fold_queue: FoldQueue::default(),
            log: Unfolded::default(),
            manifest: Manifest::default(),
            group_number: 0,
            id: 0,
            passed: 0,
            marked: 0,
            folded: 0,
            retired_bytes: 0,
            unsynced_bytes: 0,
            fold_rate: FoldRate::default(),
            growing: 0,
            committed_bytes: 0,
        }
    }

    /// Where it is stored.
    pub(in crate::store) const fn slots(&self) -> &S {
        self.slot_allocator.slots()
    }

    /// What it is stored in.
    pub(in crate::store) const fn slot_allocator(&mut self) -> &mut SlotAllocator<S> {
        &mut self.slot_allocator
    }

    /// The last group that was taken in.
    pub(in crate::store) const fn group_number(&self) -> u64 {
        self.group_number
    }

    /// The group up to which the log is needed no longer.
    pub(in crate::store) const fn folded(&self) -> u64 {
        self.folded
    }

    /// How many bytes of keys and values the log has that not all chunks have.
    pub(in crate::store) const fn log_raw_bytes(&self) -> u64 {
        self.log.raw_bytes()
    }

    /// Takes in what groups did, up to and including `number`: it is in the log and synced.
    pub(in crate::store) fn take_in(&mut self, number: u64, changes: &Changes) {
        debug_assert!(number > self.group_number, "groups must come in order");
        let first = self.group_number + 1;
        let mut raw_bytes = 0;
        for (key, value) in changes {
            raw_bytes += (key.len() + value.as_ref().map_or(0, Value::length)) as u64;
            self.note(first, number, key, value.clone());
        }
        self.pack_pending(changes);
        self.group_number = number;
        self.log.keep(number, raw_bytes);
        self.committed_bytes += raw_bytes;
    }

    /// Folds as long as the log is too long, whatever else is to be done.
    pub(in crate::store) fn make_room(&mut self) -> Result<(), EngineError> {
        while self.log.raw_bytes() > LOG_RAW_BYTES_MAX && self.fold_next()? {
            self.retire();
        }
        self.sync_if_due()
    }

    /// Notes that the log has a change for a chunk, of one of these groups. False if the chunk has it.
    pub(in crate::store) fn note(&mut self, first: u64, last: u64, key: &Key, value: Option<Value>) -> bool {
        let Some((low, chunk)) = self.chunks.range_mut::<[u8], _>((Bound::Unbounded, Bound::Included(&key[..]))).next_back() else {
            return false;
        };
        if last <= chunk.folded {
            return false;
        }
        chunk.pending.insert(key.clone(), value);
        if chunk.dirty_since.is_none() {
            chunk.dirty_since = Some(first);
            self.fold_queue.insert(first, &chunk.slots, low);
        }
        true
    }

    /// Takes in what the log's records mean, which is packed with them: the log has just their bytes.
    pub(in crate::store) fn know(&mut self, records: &[Arc<Record>]) {
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
    fn chunk_of(&mut self, key: &[u8]) -> Option<(&Key, &mut StoredRange)> {
        self.chunks.range_mut::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()
    }

    /// Makes everything durable, and then room of what is no longer needed. Writes the mark where enough of the log has become needless,
    /// or if that is wanted.
    fn sync(&mut self, marks: bool) -> Result<(), EngineError> {
        if self.passed > self.marked && (marks || self.retired_bytes >= MARK_BYTES) {
            self.write_mark(self.passed)?;
        }
        self.manifest.write_to(&mut self.slot_allocator, &self.chunks)?;
        let soon = std::mem::take(&mut self.slot_allocator.soon);
        self.slots().sync()?;
        self.folded = self.marked;
        self.passed = self.fold_queue.oldest().map_or(self.group_number, |oldest| oldest - 1);
        self.unsynced_bytes = 0;
        for slot in soon {
            self.slot_allocator.empty(slot)?;
        }
        Ok(())
    }

    fn sync_if_due(&mut self) -> Result<(), EngineError> {
        if self.unsynced_bytes >= SYNC_BYTES { self.sync(false) } else { Ok(()) }
    }

    fn write_mark(&mut self, folded: u64) -> Result<(), EngineError> {
        let head = Head { stamp: self.slot_allocator.next_stamp(), first_group: folded, last_group: folded, ..Head::default() };
        self.slot_allocator.put(&[MARK], &head, &self.id.to_le_bytes())?;
        (self.marked, self.retired_bytes) = (folded, 0);
        Ok(())
    }

    /// Goes with this log from now on. With 0: with none, until something that was lost is noted.
    pub(in crate::store) fn adopt(&mut self, id: u64) -> Result<(), EngineError> {
        self.id = id;
        self.write_mark(self.marked)?;
        self.slots().sync()?;
        self.folded = self.marked;
        Ok(())
    }

    /// What a start has found: the log that goes with the store, and up to which group the chunks have everything.
    pub(in crate::store) fn marked(&mut self, id: u64, folded: u64) {
        (self.id, self.passed, self.marked, self.folded) = (id, folded, folded, folded);
    }

    /// Folds as much as is due for what was committed since the last call, as long as nothing else is to be done, and from now on for a time in
    /// any case, the longer the fuller the log is, so that folding keeps up.
    pub(in crate::store) fn tend(&mut self, now: Instant, until: Instant) -> Result<(), EngineError> {
        self.fold_rate.earn(std::mem::take(&mut self.committed_bytes), self.log.raw_bytes(), self.fold_queue.len());
        let until = until.max(now + overtime(self.log.raw_bytes()));
        while self.fold_rate.is_due() && Instant::now() < until && self.fold_next()? {
            self.fold_rate.folded();
        }
        self.retire();
        self.sync_if_due()
    }

    /// Folds everything, as far as there is time. Returns whether all is folded.
    pub(in crate::store) fn settle(&mut self, deadline: Instant) -> Result<bool, EngineError> {
        while Instant::now() < deadline && self.fold_next()? {}
        self.retire();
        if self.unsynced_bytes > 0 || !self.slot_allocator.soon.is_empty() || self.manifest.is_changed() {
            self.sync(false)?;
        }
        if self.fold_queue.is_empty() && self.folded < self.group_number {
            self.passed = self.group_number;
            self.sync(true)?;
        }
        Ok(self.is_settled())
    }

    /// Folds everything, however long that takes.
    pub(in crate::store) fn fold_all(&mut self) -> Result<(), EngineError> {
        while !self.settle(Instant::now() + LONG)? {}
        Ok(())
    }

    /// Whether anything is left to be folded.
    pub(in crate::store) fn is_settled(&self) -> bool {
        self.fold_queue.is_empty() && self.folded == self.group_number
    }

    /// Lets go of what is in the chunks.
    fn retire(&mut self) {
        self.retired_bytes += self.log.retire(self.fold_queue.oldest().unwrap_or(u64::MAX));
    }

    /// Folds what the log has for the chunk whose turn it is.
    fn fold_next(&mut self) -> Result<bool, EngineError> {
        let Some(mut low) = self.fold_queue.next() else { return Ok(false) };
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
        let few = |chunk: &StoredRange| chunk.count + chunk.pending.len() as u64 <= 2 * packing::COUNT_MIN;
        let small = |chunk: &StoredRange| few(chunk) && chunk.raw_bytes < 2 * packing::RAW_BYTES_MIN;
        packing::family(low) == packing::family(neighbour) && self.chunks.get(neighbour).is_some_and(small)
    }

    /// Takes a chunk out and reads it, with what the log has for it.
    fn take(&mut self, low: &Key) -> Result<(Content, StoredRange), EngineError> {
        let Some(mut chunk) = self.chunks.remove(low) else {
            return Err(EngineError::Damaged(format!("no chunk at {}", low.escape_ascii())));
        };
        if let Some(since) = chunk.dirty_since {
            self.fold_queue.remove(since, &chunk.slots, low);
        }
        let pending = std::mem::take(&mut chunk.pending);
        self.growing -= pending.growing();
        let content = self.read(low, &chunk, pending)?;
        Ok((content, chunk))
    }

    /// Writes what a range holds, up to and including group `folded`, in place of what is in the old slots.
    pub(in crate::store) fn place(
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
                stamp: self.slot_allocator.next_stamp(),
                first_group: folded,
                last_group: folded,
                count: piece.count,
                raw_bytes: piece.raw_bytes,
                low: lows[at].to_vec(),
                high: piece_high.as_ref().map(|high| high.to_vec()),
            };
            let slots = if single && old.len() == 1 && object::part_count(&head, &piece.body) == 1 {
                self.slot_allocator.put(&old, &head, &piece.body)?;
                old.clone()
            } else {
                self.slot_allocator.write(SlotKind::Chunk, &head, &piece.body)?
            };
            let chunk = StoredRange {
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
            self.unsynced_bytes += piece.body.len();
            self.chunks.insert(lows[at].clone(), chunk);
        }
        let kept: BTreeSet<Slot> = self.chunks.get(&low).map(|chunk| chunk.slots.iter().copied().collect()).unwrap_or_default();
        self.slot_allocator.soon.extend(old.into_iter().filter(|slot| !kept.contains(slot)));
        Ok(())
    }
}

#[cfg(test)]
impl<S: Slots> ChunkStore<S> {
    /// As if so much more had been committed.
    pub(in crate::store) fn commit_bytes(&mut self, bytes: u64) {
        self.committed_bytes = bytes;
    }

    /// Syncs, and then notes up to which group all chunks have everything.
    pub(in crate::store) fn mark(&mut self) -> Result<(), EngineError> {
        self.sync(false)?;
        self.sync(true)
    }

    /// How many chunks the log has something for, and the first group that is not in all of them.
    pub(in crate::store) fn fold_queue(&self) -> (usize, Option<u64>) {
        (self.fold_queue.len(), self.fold_queue.oldest())
    }

    /// Folds some chunks that are not due.
    pub(in crate::store) fn fold_some(&mut self, count: usize) -> Result<(), EngineError> {
        for _ in 0..count {
            self.fold_next()?;
        }
        self.retire();
        Ok(())
    }
}
