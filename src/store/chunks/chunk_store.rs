//! The chunks of an open store, and the changes that wait to be folded into them.
//!
//! It decides which slot has which content, when changes are folded, and in which order slots are
//! written. The log syncs the changes first. `slot_scan` rebuilds a `ChunkStore` at a start.
//!
//! The state on disk is consistent at every moment:
//!
//! - A chunk contains only groups that are synced in the log, and records the last one. Adding a
//!   group twice is harmless.
//! - If chunks overlap, the one with the highest stamp is valid. A split, a join or a move writes
//!   the new chunks, syncs, and then deletes the old ones.
//! - The checkpoint has the group up to which all chunks contain everything. It is written one sync
//!   later than the chunks, because the engine does not keep the order of writes to different
//!   slots. A file of the log is removed only after the sync that includes the checkpoint.
//! - Each sync includes the manifest of everything that was written before (`manifest`).

mod contents;
mod restart;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fold_queue::FoldQueue;
use super::fold_rate::{FoldRate, LOG_FULL_BYTES, fold_time_max};
use crate::model::Record;
use crate::pack;
use crate::store::encoding::codec;
use crate::store::encoding::codec::is_log_only;
use crate::store::encoding::group::KeyChanges;
use crate::store::encoding::stored_value::{KeyBytes, StoredValue};
use crate::store::engine::slots::{Slot, SlotKind, SlotStorage};
use crate::store::error::EngineError;
use crate::store::manifest::Manifest;
use crate::store::objects::object::{self, ObjectHead};
use crate::store::objects::packing::{self, PackedChunk, RangeContent};
use crate::store::objects::slot_allocator::SlotAllocator;
use crate::store::objects::stored_chunk::{StoredChunk, StoredChunks};

pub(in crate::store) use contents::ChunkBody;

/// Number of bytes written to chunks after which they are synced. At 20,000 changes per second this
/// is about ten times per second, for some milliseconds each.
const SYNC_BYTES: usize = if cfg!(test) { 4 << 10 } else { 1 << 20 };

/// Number of obsolete bytes in the log after which the checkpoint is rewritten, about the size of
/// one log file.
const CHECKPOINT_BYTES: u64 = if cfg!(test) { 1 << 10 } else { 4 << 20 };

/// Time limit of one pass of [`ChunkStore::fold_all`], longer than any pass takes.
const FOLD_PASS_TIME_MAX: Duration = Duration::from_secs(3600);

const CHECKPOINT_SLOT: Slot = Slot { kind: SlotKind::Checkpoint, number: 0 };

/// Size of the unfolded groups above which a new group waits, in bytes of keys and values. It
/// limits what a start reads from the log.
///
/// The limit is a quarter above [`LOG_FULL_BYTES`], so that the first round of folds ends before
/// the log reaches the limit. A round makes no space in the log until it ends. When groups waited
/// at [`LOG_FULL_BYTES`], three in a row were 150 to 400 ms late.
pub(in crate::store) const LOG_RAW_BYTES_MAX: u64 = LOG_FULL_BYTES / 4 * 5;

/// Groups of the log that not all chunks contain.
#[derive(Debug, Default)]
struct UnfoldedGroups {
    /// One pair per addition, oldest first: its last group, and its bytes of keys and values.
    groups: VecDeque<(u64, u64)>,
    raw_bytes: u64,
}

#[derive(Debug)]
pub(in crate::store) struct ChunkStore<S> {
    slot_allocator: SlotAllocator<S>,
    /// Chunks by the lower bounds of their ranges.
    chunks: StoredChunks,
    /// Chunks with pending changes.
    fold_queue: FoldQueue,
    unfolded: UnfoldedGroups,
    manifest: Manifest,
    /// Last group that was added.
    group_number: u64,
    /// Id of the log of this store. 0 while a loss is not repaired yet.
    log_id: u64,
    /// Last group that all chunks contained at the last sync.
    synced_chunks_group: u64,
    /// Last group that all chunks contain according to the written checkpoint.
    written_checkpoint_group: u64,
    /// Last group that all chunks contain according to the synced checkpoint. The log may drop the
    /// groups up to it.
    checkpoint_group: u64,
    /// Bytes of the log that became obsolete since the checkpoint was written.
    obsolete_bytes: u64,
    /// Bytes written to chunks since the last sync.
    unsynced_bytes: usize,
    fold_rate: FoldRate,
    /// Bytes added since the last call of [`Self::fold_due`], before compression.
    committed_bytes: u64,
}

impl UnfoldedGroups {
    fn add(&mut self, last: u64, raw_bytes: u64) {
        self.groups.push_back((last, raw_bytes));
        self.raw_bytes += raw_bytes;
    }

    /// Removes the groups before `oldest`. Returns their bytes.
    fn remove_before(&mut self, oldest: u64) -> u64 {
        let before = self.raw_bytes;
        while let Some((_, raw_bytes)) = self.groups.front().copied().filter(|(last, _)| *last < oldest) {
            self.raw_bytes -= raw_bytes;
            self.groups.pop_front();
        }
        before - self.raw_bytes
    }
}

impl<S: SlotStorage> ChunkStore<S> {
    /// Creates a new store in an engine without slots. Its chunks cover all keys, so that a gap is
    /// always damage.
    pub(in crate::store) fn create(storage: Arc<S>) -> Result<Self, EngineError> {
        let mut chunk_store = Self::new(storage);
        for (index, low) in packing::RANGES.into_iter().enumerate() {
            let high = packing::RANGES.get(index + 1).map(|high| KeyBytes::from(*high));
            chunk_store.write_range(low.into(), high, 0, Vec::new(), packing::empty_chunks())?;
        }
        chunk_store.sync(false)?;
        Ok(chunk_store)
    }

    /// Returns a store without content, to be filled by recovery.
    pub(in crate::store) fn new(storage: Arc<S>) -> Self {
        Self {
            slot_allocator: SlotAllocator::new(storage),
            chunks: BTreeMap::new(),
            fold_queue: FoldQueue::default(),
            unfolded: UnfoldedGroups::default(),
            manifest: Manifest::default(),
            group_number: 0,
            log_id: 0,
            synced_chunks_group: 0,
            written_checkpoint_group: 0,
            checkpoint_group: 0,
            obsolete_bytes: 0,
            unsynced_bytes: 0,
            fold_rate: FoldRate::default(),
            committed_bytes: 0,
        }
    }

    pub(in crate::store) fn storage(&self) -> &S {
        self.slot_allocator.storage()
    }

    pub(in crate::store) const fn slot_allocator_mut(&mut self) -> &mut SlotAllocator<S> {
        &mut self.slot_allocator
    }

    /// Returns the last group that was added.
    pub(in crate::store) const fn group_number(&self) -> u64 {
        self.group_number
    }

    /// Returns the last group for which the log is no longer needed.
    pub(in crate::store) const fn checkpoint_group(&self) -> u64 {
        self.checkpoint_group
    }

    /// Returns the bytes of keys and values that are not in all chunks.
    pub(in crate::store) const fn log_raw_bytes(&self) -> u64 {
        self.unfolded.raw_bytes
    }

    /// Adds the changes of all groups up to `number`, with chunks that were packed from them. The
    /// changes are synced in the log.
    pub(in crate::store) fn add_changes(&mut self, number: u64, changes: &KeyChanges, packed: &[pack::Chunk]) {
        debug_assert!(number > self.group_number, "groups must come in order");
        let first = self.group_number + 1;
        let mut raw_bytes = 0;
        for (key, value) in changes.iter().filter(|(key, _)| !is_log_only(key)) {
            raw_bytes += (key.len() + value.as_ref().map_or(0, StoredValue::length)) as u64;
            self.add_pending(first, number, key, value.clone());
        }
        for chunk in packed {
            if let Some((_, stored)) = self.chunk_for_key(&codec::entry_key(&chunk.first_key())) {
                stored.pending.use_packed(chunk);
            }
        }
        self.pack_pending(changes);
        self.group_number = number;
        self.unfolded.add(number, raw_bytes);
        self.committed_bytes += raw_bytes;
    }

    /// Folds while the log is above its limit, without regard to other work.
    pub(in crate::store) fn fold_excess(&mut self) -> Result<(), EngineError> {
        while self.unfolded.raw_bytes > LOG_RAW_BYTES_MAX && self.fold_next()? {
            self.remove_folded();
        }
        self.sync_if_due()
    }

    /// Adds a change in the groups `first` to `last` to its chunk. Returns false if the chunk
    /// already contains it.
    pub(in crate::store) fn add_pending(&mut self, first: u64, last: u64, key: &KeyBytes, value: Option<StoredValue>) -> bool {
        let Some((low, chunk)) = self.chunks.range_mut::<[u8], _>((Bound::Unbounded, Bound::Included(&key[..]))).next_back() else {
            return false;
        };
        if last <= chunk.last_group {
            return false;
        }
        chunk.pending.insert(key.clone(), value);
        if chunk.dirty_since.is_none() {
            chunk.dirty_since = Some(first);
            self.fold_queue.insert(first, &chunk.slots, low);
        }
        true
    }

    /// Adds the decoded objects of records that came from the log, and packs all pending records.
    pub(in crate::store) fn add_decoded(&mut self, records: &[Arc<Record>]) {
        for record in records {
            if let Some((_, chunk)) = self.chunk_for_key(&codec::entry_key(&record.key)) {
                chunk.pending.add_decoded(record);
            }
        }
        self.chunks.values_mut().for_each(|chunk| chunk.pending.pack());
    }

    /// Packs the pending records of the changed chunks. Only for groups of the committer, whose
    /// records are decoded; records that a start reads from the log are not.
    fn pack_pending(&mut self, changes: &BTreeMap<KeyBytes, Option<StoredValue>>) {
        let mut next = changes.keys().next();
        while let Some(key) = next
            && let Some((_, chunk)) = self.chunk_for_key(key)
        {
            chunk.pending.pack();
            next = chunk.high.as_ref().and_then(|high| changes.range(high.clone()..).next()).map(|(key, _)| key);
        }
    }

    /// Returns the chunk that covers a key, and the lower bound of the chunk's range.
    fn chunk_for_key(&mut self, key: &[u8]) -> Option<(&KeyBytes, &mut StoredChunk)> {
        self.chunks.range_mut::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()
    }

    /// Syncs the engine and then empties the slots that are no longer needed. Writes the checkpoint
    /// first if enough of the log is obsolete, or if `force_checkpoint` is true.
    fn sync(&mut self, force_checkpoint: bool) -> Result<(), EngineError> {
        if self.synced_chunks_group > self.written_checkpoint_group && (force_checkpoint || self.obsolete_bytes >= CHECKPOINT_BYTES) {
            self.write_checkpoint(self.synced_chunks_group)?;
        }
        self.manifest.write_to(&mut self.slot_allocator, &self.chunks)?;
        let freed_slots = std::mem::take(&mut self.slot_allocator.freed_after_sync);
        self.storage().sync()?;
        self.checkpoint_group = self.written_checkpoint_group;
        self.synced_chunks_group = self.fold_queue.first_missing_group().map_or(self.group_number, |oldest| oldest - 1);
        self.unsynced_bytes = 0;
        for slot in freed_slots {
            self.slot_allocator.free(slot)?;
        }
        Ok(())
    }

    fn sync_if_due(&mut self) -> Result<(), EngineError> {
        if self.unsynced_bytes >= SYNC_BYTES { self.sync(false) } else { Ok(()) }
    }

    fn write_checkpoint(&mut self, checkpoint_group: u64) -> Result<(), EngineError> {
        let head = ObjectHead {
            stamp: self.slot_allocator.next_stamp(),
            first_group: checkpoint_group,
            last_group: checkpoint_group,
            ..ObjectHead::default()
        };
        self.slot_allocator.write_to(&[CHECKPOINT_SLOT], &head, &self.log_id.to_le_bytes())?;
        (self.written_checkpoint_group, self.obsolete_bytes) = (checkpoint_group, 0);
        Ok(())
    }

    /// Sets the id of the log and syncs it with the checkpoint. 0 means that a loss is not repaired
    /// yet.
    pub(in crate::store) fn set_log_id(&mut self, log_id: u64) -> Result<(), EngineError> {
        self.log_id = log_id;
        self.write_checkpoint(self.written_checkpoint_group)?;
        self.storage().sync()?;
        self.checkpoint_group = self.written_checkpoint_group;
        Ok(())
    }

    /// Sets the log id and the group of the checkpoint that a start has read.
    pub(in crate::store) fn set_checkpoint(&mut self, log_id: u64, checkpoint_group: u64) {
        (self.log_id, self.synced_chunks_group, self.written_checkpoint_group, self.checkpoint_group) =
            (log_id, checkpoint_group, checkpoint_group, checkpoint_group);
    }

    /// Folds as many chunks as the bytes added since the last call require. Stops at `until`, but
    /// not before a time has passed that grows with the size of the log, so that folding keeps up
    /// with the changes.
    pub(in crate::store) fn fold_due(&mut self, now: Instant, until: Instant) -> Result<(), EngineError> {
        self.fold_rate.add_committed(std::mem::take(&mut self.committed_bytes), self.unfolded.raw_bytes, self.fold_queue.len());
        let until = until.max(now + fold_time_max(self.unfolded.raw_bytes));
        while self.fold_rate.is_due() && Instant::now() < until && self.fold_next()? {
            self.fold_rate.count_fold();
        }
        self.remove_folded();
        self.sync_if_due()
    }

    /// Folds until the deadline. Returns whether everything is folded.
    pub(in crate::store) fn fold_until(&mut self, deadline: Instant) -> Result<bool, EngineError> {
        while Instant::now() < deadline && self.fold_next()? {}
        self.remove_folded();
        if self.unsynced_bytes > 0 || !self.slot_allocator.freed_after_sync.is_empty() || self.manifest.is_changed() {
            self.sync(false)?;
        }
        if self.fold_queue.is_empty() && self.checkpoint_group < self.group_number {
            self.synced_chunks_group = self.group_number;
            self.sync(true)?;
        }
        Ok(self.is_fully_folded())
    }

    /// Folds everything, however long it takes.
    pub(in crate::store) fn fold_all(&mut self) -> Result<(), EngineError> {
        while !self.fold_until(Instant::now() + FOLD_PASS_TIME_MAX)? {}
        Ok(())
    }

    /// Returns whether nothing is left to fold.
    pub(in crate::store) fn is_fully_folded(&self) -> bool {
        self.fold_queue.is_empty() && self.checkpoint_group == self.group_number
    }

    /// Removes the unfolded groups that all chunks contain now.
    fn remove_folded(&mut self) {
        self.obsolete_bytes += self.unfolded.remove_before(self.fold_queue.first_missing_group().unwrap_or(u64::MAX));
    }

    /// Folds the next chunk. Returns false if there is none.
    fn fold_next(&mut self) -> Result<bool, EngineError> {
        let Some(mut low) = self.fold_queue.next() else { return Ok(false) };
        let (mut content, chunk) = self.remove_and_read(&low)?;
        let (mut high, mut slots) = (chunk.high, chunk.slots);
        if (content.len() as u64) < packing::KEYS_MIN && chunk.raw_bytes < packing::RAW_BYTES_MIN {
            if let Some(right) = high.clone().filter(|right| self.can_join(&low, right)) {
                let (right_content, neighbour) = self.remove_and_read(&right)?;
                content.append(right_content);
                slots.extend(neighbour.slots);
                high = neighbour.high;
            } else if let Some(left) = self.chunks.range(..low.clone()).next_back().map(|(left, _)| left.clone())
                && self.can_join(&low, &left)
            {
                let (left_content, neighbour) = self.remove_and_read(&left)?;
                let own_content = std::mem::replace(&mut content, left_content);
                content.append(own_content);
                slots.extend(neighbour.slots);
                low = left;
            }
        }
        self.write_range(low, high, self.group_number, slots, content.pack())?;
        Ok(true)
    }

    fn can_join(&self, low: &KeyBytes, neighbour: &KeyBytes) -> bool {
        let has_few_keys = |chunk: &StoredChunk| chunk.count + chunk.pending.len() as u64 <= 2 * packing::KEYS_MIN;
        let is_small = |chunk: &StoredChunk| has_few_keys(chunk) && chunk.raw_bytes < 2 * packing::RAW_BYTES_MIN;
        packing::range_index(low) == packing::range_index(neighbour) && self.chunks.get(neighbour).is_some_and(is_small)
    }

    /// Removes a chunk and reads it with its pending changes.
    fn remove_and_read(&mut self, low: &KeyBytes) -> Result<(RangeContent, StoredChunk), EngineError> {
        let Some(mut chunk) = self.chunks.remove(low) else {
            return Err(EngineError::Damaged(format!("no chunk at {}", low.escape_ascii())));
        };
        if let Some(since) = chunk.dirty_since {
            self.fold_queue.remove(since, &chunk.slots, low);
        }
        let pending = std::mem::take(&mut chunk.pending);
        let content = self.read(low, &chunk, pending)?;
        Ok((content, chunk))
    }

    /// Writes the content of a range, which includes all groups up to `last_group`, and replaces
    /// the chunks in `old_slots`.
    pub(in crate::store) fn write_range(
        &mut self,
        low: KeyBytes,
        high: Option<KeyBytes>,
        last_group: u64,
        old_slots: Vec<Slot>,
        packed: Vec<PackedChunk>,
    ) -> Result<(), EngineError> {
        let lows = packing::separators(&low, &packed);
        let is_single = packed.len() == 1;
        for (index, packed_chunk) in packed.into_iter().enumerate() {
            let chunk_high = lows.get(index + 1).cloned().or_else(|| high.clone());
            let head = ObjectHead {
                stamp: self.slot_allocator.next_stamp(),
                first_group: last_group,
                last_group,
                count: packed_chunk.count,
                raw_bytes: packed_chunk.raw_bytes,
                low: lows[index].to_vec(),
                high: chunk_high.as_ref().map(|high| high.to_vec()),
            };
            let slots = if is_single && old_slots.len() == 1 && object::part_count(&head, &packed_chunk.body) == 1 {
                self.slot_allocator.write_to(&old_slots, &head, &packed_chunk.body)?;
                old_slots.clone()
            } else {
                self.slot_allocator.write_new(SlotKind::Chunk, &head, &packed_chunk.body)?
            };
            let chunk = StoredChunk::new(&head, chunk_high, slots, packed_chunk.summary);
            self.manifest.mark_changed(lows[index].clone());
            self.unsynced_bytes += packed_chunk.body.len();
            self.chunks.insert(lows[index].clone(), chunk);
        }
        let reused_slots: BTreeSet<Slot> = self.chunks.get(&low).map(|chunk| chunk.slots.iter().copied().collect()).unwrap_or_default();
        self.slot_allocator.freed_after_sync.extend(old_slots.into_iter().filter(|slot| !reused_slots.contains(slot)));
        Ok(())
    }
}

#[cfg(test)]
impl<S: SlotStorage> ChunkStore<S> {
    /// Sets the number of added bytes.
    pub(in crate::store) fn set_committed_bytes(&mut self, bytes: u64) {
        self.committed_bytes = bytes;
    }

    /// Syncs twice, so that the checkpoint includes the first sync.
    pub(in crate::store) fn sync_with_checkpoint(&mut self) -> Result<(), EngineError> {
        self.sync(false)?;
        self.sync(true)
    }

    /// Returns the number of chunks with pending changes, and the first group that is not in all
    /// chunks.
    pub(in crate::store) fn dirty_chunks(&self) -> (usize, Option<u64>) {
        (self.fold_queue.len(), self.fold_queue.first_missing_group())
    }

    /// Folds up to `count` chunks, even if no fold is due.
    pub(in crate::store) fn fold_some(&mut self, count: usize) -> Result<(), EngineError> {
        for _ in 0..count {
            self.fold_next()?;
        }
        self.remove_folded();
        Ok(())
    }
}
