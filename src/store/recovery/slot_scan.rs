//! Rebuilds the open store from its slots, after a crash at any moment and whatever the damage.
//!
//! For each key the chunk with the highest stamp is valid; a damaged one leaves its range empty.
//! Then each batch of the log is applied to the chunks that do not contain it. The result is a
//! [`ChunkStore`] and a [`DamageReport`]; `load` decides what the damage costs.
//!
//! The cursors are trusted only if all of this is true:
//!
//! - The log belongs to the store: the checkpoint has its id.
//! - The checkpoint is at least as new as every folded group in the log.
//! - No group is missing in the log from the first group that not all chunks contain to the last
//!   group that any chunk contains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::instruments::{LogLimiter, LogPermit};
use crate::pack;
use crate::store::chunks::chunk_store::{ChunkBody, ChunkStore};
use crate::store::encoding::block::KeyValueBlock;
use crate::store::encoding::checksum::DecodeError;
use crate::store::encoding::replaced::ReplacedLog;
use crate::store::encoding::stored_value::{KeyBytes, StoredValue};
use crate::store::engine::slots::{Slot, SlotKind, SlotStorage};
use crate::store::error::EngineError;
use crate::store::log::frames::LogContents;
use crate::store::log::recovered_log::{LogBatch, RecoveredLog};
use crate::store::manifest::{Manifest, ManifestEntry, ManifestObject};
use crate::store::objects::object::{self, ObjectHead, ObjectPart};
use crate::store::objects::packing::{self, RangeContent};
use crate::store::objects::stored_chunk::StoredChunk;
use crate::store::objects::summary::ChunkSummary;
use crate::store::threads::map_in_threads;

/// Recently logged damage. In a damaged store every slot may be damaged.
static DAMAGED: LogLimiter = LogLimiter::new();

/// Everything that early lookups need.
#[derive(Debug)]
pub(in crate::store) struct EarlyIndex {
    /// Entries of the manifest, by the lower bounds of their ranges.
    pub(in crate::store) entries: Arc<BTreeMap<KeyBytes, ManifestEntry>>,
    /// Changes in the log, oldest first. They are not merged, which would take most of the time
    /// until the first answer.
    pub(in crate::store) batches: Vec<LogBatch>,
}

/// Damage found by a scan.
#[derive(Debug, Default, PartialEq)]
pub(in crate::store) struct DamageReport {
    /// Number of slots and changes that could not be read.
    pub(in crate::store) damaged_count: u64,
    /// True if any key may be missing.
    pub(super) suspect_everywhere: bool,
    /// Reasons why the log and the chunks do not match, human-readable.
    pub(super) doubts: Vec<String>,
    pub(in crate::store) lost: Vec<(KeyBytes, Option<KeyBytes>)>,
    /// Content of the intact chunks, by lower bound. The report carries it so that the caller need
    /// not read the chunks again.
    pub(in crate::store) bodies: BTreeMap<KeyBytes, ChunkBody>,
    /// Replaced records in the log, which the report carries for the same reason.
    pub(in crate::store) replaced: ReplacedLog,
}

impl DamageReport {
    /// Returns whether nothing is missing.
    pub(in crate::store) fn is_whole(&self) -> bool {
        self.damaged_count == 0 && !self.suspect_everywhere && self.lost.is_empty() && self.doubts.is_empty()
    }
}

/// An object whose parts are being collected.
#[derive(Debug, Default)]
pub(in crate::store) struct ScannedObject {
    pub(in crate::store) head: ObjectHead,
    part_count: u64,
    parts: BTreeMap<u64, (Slot, Option<Vec<u8>>)>,
    /// Entries of a chunk in one slot, decoded by the thread that read it. They replace the body.
    unpacked: Option<Vec<pack::Chunk>>,
}

impl ScannedObject {
    pub(in crate::store) fn add_part(&mut self, slot: Slot, part: ObjectPart) {
        self.head = part.head;
        self.part_count = part.count;
        self.parts.insert(part.number, (slot, part.body));
    }

    fn content(&self, low: &[u8]) -> Result<RangeContent, DecodeError> {
        match &self.unpacked {
            Some(chunks) => Ok(RangeContent::entries(chunks.clone())),
            None => RangeContent::decode(low, &self.body()),
        }
    }

    fn take_content(&mut self) -> ChunkBody {
        match self.unpacked.take() {
            Some(chunks) => ChunkBody::Unpacked(chunks),
            None => ChunkBody::Stored(self.take_body()),
        }
    }

    fn summary(&self, low: &[u8]) -> ChunkSummary {
        match &self.unpacked {
            Some(chunks) => ChunkSummary::from_chunks(chunks),
            None => packing::summarize(low, &self.body()),
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.parts.len() as u64 == self.part_count
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.parts.values().any(|(_, body)| body.is_none())
    }

    pub(in crate::store) fn slots(&self) -> Vec<Slot> {
        self.parts.values().map(|(slot, _)| *slot).collect()
    }

    pub(in crate::store) fn body(&self) -> Vec<u8> {
        self.parts.values().filter_map(|(_, body)| body.as_deref()).collect::<Vec<_>>().concat()
    }

    /// Moves the body out. Most bodies are in one slot and are not copied.
    fn take_body(&mut self) -> Vec<u8> {
        match (self.parts.len(), self.parts.values_mut().next()) {
            (1, Some((_, body))) => body.take().unwrap_or_default(),
            (_, _) => self.body(),
        }
    }
}

/// End of a range, in key order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum RangeEnd {
    Before(KeyBytes),
    Unbounded,
}

impl RangeEnd {
    fn new(high: Option<&[u8]>) -> Self {
        high.map_or(Self::Unbounded, |high| Self::Before(high.into()))
    }

    fn high(&self) -> Option<KeyBytes> {
        match self {
            Self::Before(key) => Some(key.clone()),
            Self::Unbounded => None,
        }
    }
}

/// A range, and the stamp of its valid chunk; `None` if there is no chunk.
type RangeOwner = (KeyBytes, RangeEnd, Option<u64>);

/// Content of the checkpoint.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::store) struct Checkpoint {
    /// Group up to which all chunks contain everything.
    pub(in crate::store) group: u64,
    /// Id of the log of this store. 0 if a repair was interrupted.
    pub(in crate::store) id: u64,
}

#[derive(Debug)]
pub(in crate::store) struct SlotScan<S> {
    pub(in crate::store) chunk_store: ChunkStore<S>,
    chunk_slots: Vec<Slot>,
    /// Chunks by their stamps. After [`Self::restore_chunks`] only the complete ones.
    chunks: BTreeMap<u64, ScannedObject>,
    pub(in crate::store) checkpoint: Option<Checkpoint>,
    pub(in crate::store) batches: Vec<LogBatch>,
    pub(in crate::store) last_group: u64,
    garbage: Vec<Slot>,
    pub(in crate::store) damage: DamageReport,
}

/// Reads all slots, and the log up to a group. Fails if there is no chunk at all, because even an
/// empty store has some.
pub(in crate::store) fn recover<S: SlotStorage>(
    storage: Arc<S>,
    log: LogContents,
    up_to: u64,
) -> Result<(ChunkStore<S>, DamageReport, RecoveredLog), EngineError> {
    let mut scan = SlotScan::start(storage)?;
    let recovered_log = scan.add_log(log, up_to)?;
    let (chunk_store, damage) = scan.finish()?;
    Ok((chunk_store, damage, recovered_log))
}

/// A slot, its part, and the decoded entries if it is a complete chunk of entries.
type SlotContents = (Slot, Option<Result<ObjectPart, DecodeError>>, Option<Vec<pack::Chunk>>);

/// Reads a slot. Decodes a complete chunk at once, although a newer one may replace it, which is
/// rare.
fn read_slot<S: SlotStorage>(storage: &S, slot: Slot) -> Result<SlotContents, EngineError> {
    let Some(value) = storage.get(slot)? else { return Ok((slot, None, None)) };
    let mut part = object::decode_part(slot, value);
    let mut unpacked = None;
    if let Ok(ObjectPart { head, count: 1, body: Some(body), .. }) = &mut part {
        if slot.kind == SlotKind::Chunk && packing::contains_entries(&head.low) {
            unpacked = packing::decode_chunks(body).ok();
        }
        if unpacked.is_some() {
            *body = Vec::new();
        }
    }
    Ok((slot, Some(part), unpacked))
}

impl<S: SlotStorage> SlotScan<S> {
    /// Reads the checkpoint and the manifest.
    pub(in crate::store) fn start(storage: Arc<S>) -> Result<Self, EngineError> {
        let mut chunk_store = ChunkStore::new(storage);
        let (mut chunk_slots, mut others) = (Vec::new(), Vec::new());
        for slot in chunk_store.storage().list_slots()? {
            chunk_store.slot_allocator_mut().register_slot(slot);
            match slot.kind {
                SlotKind::Chunk => chunk_slots.push(slot),
                SlotKind::Checkpoint | SlotKind::Manifest => others.push(slot),
            }
        }
        let (chunks, checkpoint, batches, garbage, damage) = (BTreeMap::new(), None, Vec::new(), Vec::new(), DamageReport::default());
        let mut scan = Self { chunk_store, chunk_slots, chunks, checkpoint, batches, last_group: 0, garbage, damage };
        let (mut manifest, mut manifest_damaged) = (BTreeMap::new(), false);
        for outcome in map_in_threads(&others, |slot| read_slot(scan.chunk_store.storage(), *slot))? {
            let (slot, part, _) = outcome?;
            let Some(part) = scan.add_part(slot, part, slot.kind != SlotKind::Manifest) else {
                manifest_damaged |= slot.kind == SlotKind::Manifest && !scan.chunk_store.slot_allocator_mut().is_free(slot);
                continue;
            };
            if slot.kind == SlotKind::Manifest {
                manifest.entry(part.head.stamp).or_insert_with(ScannedObject::default).add_part(slot, part);
            } else {
                let id = part.body.as_deref().and_then(|body| body.try_into().ok()).map(u64::from_le_bytes);
                scan.checkpoint = Some(Checkpoint { group: part.head.last_group, id: id.unwrap_or(0) });
            }
        }
        scan.build_manifest(manifest, manifest_damaged);
        Ok(scan)
    }

    /// Adds the log up to a group, and compares it with the checkpoint.
    pub(in crate::store) fn add_log(&mut self, log: LogContents, up_to: u64) -> Result<RecoveredLog, EngineError> {
        let (checkpoint_group, id) = self.checkpoint.map_or((0, 0), |checkpoint| (checkpoint.group, checkpoint.id));
        let recovered_log = RecoveredLog::from_contents(id, checkpoint_group, log);
        self.last_group = recovered_log.last_group.min(up_to);
        self.chunk_store.set_checkpoint(id, checkpoint_group);
        let doubts = &mut self.damage.doubts;
        if id == 0 {
            doubts.push("its checkpoint is missing or damaged, or a repair was interrupted".to_owned());
        } else if recovered_log.is_missing() {
            doubts.push("its log is missing, or belongs to another store".to_owned());
        } else if recovered_log.checkpoint_group > checkpoint_group {
            doubts.push(format!(
                "its chunks are older than its log (group {checkpoint_group} instead of {}): the newest groups are lost",
                recovered_log.checkpoint_group
            ));
        } else if recovered_log.first_group > checkpoint_group + 1 {
            doubts.push(format!(
                "its log starts with group {}: the groups from {} on are lost",
                recovered_log.first_group,
                checkpoint_group + 1
            ));
        } else if recovered_log.last_group < checkpoint_group {
            doubts.push(format!("its log ends with group {}: the groups up to {checkpoint_group} are lost", recovered_log.last_group));
        }
        doubts.extend(recovered_log.damage_messages(up_to));
        let (batches, unreadable) = recovered_log.decode_batches(checkpoint_group, up_to)?;
        self.damage.damaged_count += unreadable;
        self.damage.suspect_everywhere |= unreadable > 0;
        self.batches = batches;
        Ok(recovered_log)
    }

    /// Records the content of a slot. Damage is counted only if `counts_damage` is true.
    fn add_part(&mut self, slot: Slot, part: Option<Result<ObjectPart, DecodeError>>, counts_damage: bool) -> Option<ObjectPart> {
        match part {
            None => self.chunk_store.slot_allocator_mut().register_free_slot(slot),
            Some(Ok(part)) => {
                self.chunk_store.slot_allocator_mut().register_stamp(part.head.stamp);
                if part.body.is_none() && counts_damage {
                    if let Some(LogPermit { more }) = DAMAGED.permit("damaged") {
                        tracing::warn!(%slot, more, "a slot of the store is damaged");
                    }
                    self.damage.damaged_count += 1;
                }
                return Some(part);
            }
            Some(Err(error)) => {
                if let Some(LogPermit { more }) = DAMAGED.permit("unreadable") {
                    tracing::warn!(%slot, %error, more, "cannot read a slot of the store");
                }
                self.damage.damaged_count += u64::from(counts_damage);
                self.damage.suspect_everywhere |= counts_damage;
                self.garbage.push(slot);
            }
        }
        None
    }

    fn build_manifest(&mut self, objects: BTreeMap<u64, ScannedObject>, damaged: bool) {
        let manifest_object = |mut object: ScannedObject| {
            let (is_complete, slots) = (object.is_complete(), object.slots());
            let body = if object.is_damaged() { None } else { Some(object.take_body().into()) };
            ManifestObject { head: object.head, body, slots, is_complete }
        };
        let manifest_objects = objects.into_values().map(manifest_object);
        let (manifest, garbage) = Manifest::from_objects(manifest_objects.collect(), damaged);
        self.chunk_store.set_manifest(manifest);
        self.garbage.extend(garbage);
    }

    /// Returns the index for early lookups, if the manifest and the log are intact.
    pub(in crate::store) fn early_index(&self) -> Option<EarlyIndex> {
        if !self.damage.is_whole() || !self.chunk_store.manifest().is_valid() {
            return None;
        }
        Some(EarlyIndex { entries: Arc::clone(self.chunk_store.manifest().entries()), batches: self.batches.clone() })
    }

    /// Reads the chunks and selects the valid ones.
    pub(in crate::store) fn finish(mut self) -> Result<(ChunkStore<S>, DamageReport), EngineError> {
        for outcome in map_in_threads(&self.chunk_slots, |slot| read_slot(self.chunk_store.storage(), *slot))? {
            let (slot, part, unpacked) = outcome?;
            let Some(part) = self.add_part(slot, part, true) else { continue };
            let object = self.chunks.entry(part.head.stamp).or_default();
            object.unpacked = unpacked;
            object.add_part(slot, part);
        }
        if self.chunks.is_empty() {
            return Err(EngineError::Damaged("it is empty".to_owned()));
        }
        let highest = self.restore_chunks()?;
        if self.last_group < highest && self.damage.doubts.is_empty() {
            self.damage.doubts.push(format!("its log ends with group {}: the groups up to {highest} are lost", self.last_group));
        }
        self.restore_log()?;
        let checkpoint_group = self.checkpoint.map_or(0, |checkpoint| checkpoint.group);
        self.chunk_store.finish_recovery(highest.max(self.last_group).max(checkpoint_group), self.garbage);
        Ok((self.chunk_store, self.damage))
    }

    /// Applies the log to the chunks.
    fn restore_log(&mut self) -> Result<(), EngineError> {
        let batches = std::mem::take(&mut self.batches);
        let values = map_in_threads(&batches, |batch| decode_values(&batch.block))?;
        for (batch, (values, damaged_count)) in batches.into_iter().zip(values) {
            self.damage.damaged_count += damaged_count;
            self.damage.suspect_everywhere |= damaged_count > 0;
            self.damage.replaced.push(batch.block);
            let mut raw_bytes = 0;
            for (key, value) in values {
                raw_bytes += (key.len() + value.as_ref().map_or(0, StoredValue::length)) as u64;
                self.chunk_store.add_pending(batch.first_group, batch.last_group, &key, value);
            }
            self.chunk_store.add_unfolded(batch.last_group, raw_bytes);
        }
        Ok(())
    }

    /// Selects the valid chunks. Returns the last group that any of them contains.
    fn restore_chunks(&mut self) -> Result<u64, EngineError> {
        // an interrupted write or delete leaves an incomplete object
        let (complete, partial) = std::mem::take(&mut self.chunks).into_iter().partition(|(_, object)| object.is_complete());
        self.chunks = complete;
        self.garbage.extend(partial.values().flat_map(ScannedObject::slots));
        let highest = self.chunks.values().map(|object| object.head.last_group).max().unwrap_or_default();
        let (mut kept_stamps, mut intact_chunks) = (BTreeSet::new(), Vec::new());
        for (low, end, stamp) in self.newest_chunks() {
            let object = stamp.and_then(|stamp| self.chunks.get(&stamp));
            match object {
                Some(object) if !object.is_damaged() && *low == *object.head.low && end == RangeEnd::new(object.head.high.as_deref()) => {
                    kept_stamps.insert(object.head.stamp);
                    intact_chunks.push((low, end.high(), object.head.stamp));
                }
                Some(object) if !object.is_damaged() => write_remainder(&mut self.chunk_store, object, low, &end)?,
                Some(_) | None => {
                    // the write below replaces the damaged chunk by an empty one; until the repair
                    // ends, the id 0 records that something was lost
                    if self.damage.lost.is_empty() {
                        self.chunk_store.set_log_id(0)?;
                    }
                    self.damage.lost.push((low.clone(), end.high()));
                    let last_group = object.map_or(0, |object| object.head.last_group);
                    self.chunk_store.write_range(low, end.high(), last_group, Vec::new(), packing::empty_chunks())?;
                }
            }
        }
        self.keep_chunks(intact_chunks)?;
        let replaced = self.chunks.iter().filter(|(stamp, _)| !kept_stamps.contains(*stamp));
        self.garbage.extend(replaced.flat_map(|(_, object)| object.slots()));
        Ok(highest)
    }

    /// Inserts chunks that are valid as they are. Summarizes those whose manifest entry differs.
    fn keep_chunks(&mut self, intact_chunks: Vec<(KeyBytes, Option<KeyBytes>, u64)>) -> Result<(), EngineError> {
        let manifest_entries = Arc::clone(self.chunk_store.manifest().entries());
        let summaries = map_in_threads(&intact_chunks, |(low, high, stamp)| {
            let object = self.chunks.get(stamp)?;
            let entry =
                manifest_entries.get(low).filter(|entry| entry.stamp == *stamp && entry.high == *high && entry.slots == object.slots());
            Some(entry.map_or_else(|| Err(object.summary(low)), |entry| Ok(entry.summary.clone())))
        })?;
        for ((low, high, stamp), summary) in intact_chunks.into_iter().zip(summaries) {
            let (Some(object), Some(summary)) = (self.chunks.get_mut(&stamp), summary) else { continue };
            let is_in_manifest = summary.is_ok();
            let summary = summary.unwrap_or_else(|computed| computed);
            let chunk = StoredChunk::new(&object.head, high, object.slots(), summary);
            self.chunk_store.insert_chunk(low.clone(), chunk, is_in_manifest);
            self.damage.bodies.insert(low, object.take_content());
        }
        Ok(())
    }

    /// Assigns all keys to their valid chunks.
    fn newest_chunks(&self) -> Vec<RangeOwner> {
        let mut covered: BTreeMap<KeyBytes, (RangeEnd, Option<u64>)> = BTreeMap::new();
        for (stamp, object) in self.chunks.iter().rev() {
            let (low, end) = (KeyBytes::from(object.head.low.as_slice()), RangeEnd::new(object.head.high.as_deref()));
            for (low, end) in uncovered(&covered, low, end) {
                covered.insert(low, (end, Some(*stamp)));
            }
        }
        // each range separately, because no chunk covers two
        for (at, low) in packing::RANGES.into_iter().enumerate() {
            for (low, end) in uncovered(&covered, low.into(), RangeEnd::new(packing::RANGES.get(at + 1).copied())) {
                covered.insert(low, (end, None));
            }
        }
        covered.into_iter().map(|(low, (end, stamp))| (low, end, stamp)).collect()
    }
}

/// Writes the rest of a partly replaced chunk as a chunk of its own. This happens after an
/// interrupted split or join.
fn write_remainder<S: SlotStorage>(
    chunk_store: &mut ChunkStore<S>,
    object: &ScannedObject,
    low: KeyBytes,
    end: &RangeEnd,
) -> Result<(), EngineError> {
    let mut content = object.content(&low).map_err(|error| EngineError::Damaged(error.to_string()))?;
    content.retain(|key| *key >= *low && RangeEnd::Before(key.into()) < *end);
    chunk_store.write_range(low, end.high(), object.head.last_group, Vec::new(), content.pack())
}

/// Returns the parts of a range that are not covered yet.
fn uncovered(covered: &BTreeMap<KeyBytes, (RangeEnd, Option<u64>)>, low: KeyBytes, end: RangeEnd) -> Vec<(KeyBytes, RangeEnd)> {
    let mut gaps = Vec::new();
    let mut from = RangeEnd::Before(low.clone());
    let before = covered.range(..low.clone()).next_back();
    for (covered_low, (covered_end, _)) in before.into_iter().chain(covered.range(low..)) {
        let covered_low = RangeEnd::Before(covered_low.clone());
        if covered_low >= end {
            break;
        }
        if from < covered_low
            && let Some(from) = from.high()
        {
            gaps.push((from, covered_low));
        }
        from = from.max(covered_end.clone());
    }
    if from < end
        && let Some(from) = from.high()
    {
        gaps.push((from, end));
    }
    gaps
}

/// Decodes the values of a block. Also returns the number of values that cannot be decoded.
fn decode_values(pairs: &KeyValueBlock) -> (Vec<(KeyBytes, Option<StoredValue>)>, u64) {
    let mut damaged_count = 0;
    let read = pairs.iter().filter_map(|(key, body)| match body.map(|body| packing::decode_value(key, body)).transpose() {
        Ok(value) => Some((key.into(), value)),
        Err(_) => {
            if let Some(LogPermit { more }) = DAMAGED.permit("change") {
                tracing::warn!(key = %key.escape_ascii(), more, "cannot read a change in the log");
            }
            damaged_count += 1;
            None
        }
    });
    (read.collect(), damaged_count)
}
