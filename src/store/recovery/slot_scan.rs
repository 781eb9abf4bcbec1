//! Finding the store again in its slots, whatever moment it was left at and whatever was damaged since.
//!
//! Owns: which objects count, and what damage is noticed. Emits: a [`ChunkStore`] store, and in [`DamageReport`] what is in doubt. Deliberately lacks:
//! what doubt costs (`load`), damage that the engine itself notices (`recovery`).
//!
//! Of each key the chunk with the highest stamp counts; a damaged one leaves its range empty. Then the log is applied, each run of groups
//! to the chunks that are not folded past it.
//!
//! The cursors are believed only if the log goes with the store (the mark has its id), the chunks have at least what the log says, and groups
//! follow each other without a gap from the first that not all chunks have to at least the last that any has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::instruments::{LogLimiter, LogPermit};
use crate::pack;
use crate::store::chunks::chunk_store::{Body, ChunkStore};
use crate::store::encoding::bytes::Malformed;
use crate::store::encoding::change::{Key, Value};
use crate::store::encoding::pairs::Pairs;
use crate::store::engine::slots::{Slot, SlotKind, Slots};
use crate::store::error::EngineError;
use crate::store::log::frames::LogRead;
use crate::store::log::run::{LogRun, Run};
use crate::store::manifest::{Entry, Manifest, Noted};
use crate::store::objects::object::{self, Head, Part};
use crate::store::objects::packing::{self, Content};
use crate::store::objects::pending::Pending;
use crate::store::objects::stored_range::StoredRange;
use crate::store::objects::summary::Summary;
use crate::store::threads::in_threads;

/// What is wrong with slots and was logged lately: of a damaged store it may be all of them.
static DAMAGED: LogLimiter = LogLimiter::new();

/// What lookups need of a store before all of it is read.
#[derive(Debug)]
pub(in crate::store) struct Early {
    /// Where the chunks are, by low.
    pub(in crate::store) entries: Arc<BTreeMap<Key, Entry>>,
    /// The log, oldest first: not put in one order, which would take most of the time until the first answer.
    pub(in crate::store) log: Vec<LogRun>,
}

/// What is in doubt.
#[derive(Debug, Default, PartialEq)]
pub(in crate::store) struct DamageReport {
    /// How many slots could not be read.
    pub(in crate::store) damaged_count: u64,
    /// Anything may be missing.
    pub(super) suspect_everywhere: bool,
    /// Why the log and the chunks do not go together, in words; nothing where they do.
    pub(super) doubts: Vec<String>,
    /// Ranges of which anything may be missing.
    pub(in crate::store) lost: Vec<(Key, Option<Key>)>,
    /// What whole chunks hold, by where they begin: they were read already.
    pub(in crate::store) bodies: BTreeMap<Key, Body>,
}

impl DamageReport {
    /// Whether all that was stored is there.
    pub(in crate::store) fn is_whole(&self) -> bool {
        self.damaged_count == 0 && !self.suspect_everywhere && self.lost.is_empty() && self.doubts.is_empty()
    }
}

/// An object as far as it was found.
#[derive(Debug, Default)]
pub(in crate::store) struct Object {
    pub(in crate::store) head: Head,
    part_count: u64,
    parts: BTreeMap<u64, (Slot, Option<Vec<u8>>)>,
    /// Entries, in place of the body of its only part: taken apart in the thread that read it.
    unpacked: Option<Vec<pack::Chunk>>,
}

impl Object {
    pub(in crate::store) fn take(&mut self, slot: Slot, part: Part) {
        self.head = part.head;
        self.part_count = part.count;
        self.parts.insert(part.number, (slot, part.body));
    }

    fn content(&self, low: &[u8]) -> Result<Content, Malformed> {
        match &self.unpacked {
            Some(chunks) => Ok(Content::entries(chunks.clone())),
            None => Content::read(low, &self.body()),
        }
    }

    fn take_content(&mut self) -> Body {
        match self.unpacked.take() {
            Some(chunks) => Body::Unpacked(chunks),
            None => Body::Stored(self.take_body()),
        }
    }

    fn summary(&self, low: &[u8]) -> Summary {
        match &self.unpacked {
            Some(chunks) => Summary::of(chunks),
            None => packing::summary_of(low, &self.body()),
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

    /// Takes the body away, without a copy where it is in one slot, as most are.
    fn take_body(&mut self) -> Vec<u8> {
        match (self.parts.len(), self.parts.values_mut().next()) {
            (1, Some((_, body))) => body.take().unwrap_or_default(),
            (_, _) => self.body(),
        }
    }
}

/// The end of a range, in order: `None` comes last.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Before(Key),
    Never,
}

impl End {
    fn new(high: Option<&[u8]>) -> Self {
        high.map_or(Self::Never, |high| Self::Before(high.into()))
    }

    fn high(&self) -> Option<Key> {
        match self {
            Self::Before(key) => Some(key.clone()),
            Self::Never => None,
        }
    }
}

/// A range and the stamp of the chunk that counts there; `None`: no chunk is known of.
type KeyRange = (Key, End, Option<u64>);

/// What the mark says.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::store) struct Mark {
    /// The chunks have everything up to this group.
    pub(in crate::store) group: u64,
    /// The id of the log that belongs to the store; 0 if a repair was broken off.
    pub(in crate::store) id: u64,
}

/// What a start has read so far.
#[derive(Debug)]
pub(in crate::store) struct SlotScan<S> {
    pub(in crate::store) chunk_store: ChunkStore<S>,
    /// Not read yet.
    chunk_slots: Vec<Slot>,
    chunks: BTreeMap<u64, Object>,
    pub(in crate::store) mark: Option<Mark>,
    /// What the log has, oldest first.
    pub(in crate::store) log: Vec<LogRun>,
    /// The last group that the log has.
    pub(in crate::store) last: u64,
    garbage: Vec<Slot>,
    pub(in crate::store) found: DamageReport,
}

/// Reads all slots, and what the log has up to a group. Fails where nothing at all is stored, since even an empty store has its ranges.
pub(in crate::store) fn recover<S: Slots>(slots: S, log: LogRead, upto: u64) -> Result<(ChunkStore<S>, DamageReport, Run), EngineError> {
    let mut reading = SlotScan::begin(slots)?;
    let run = reading.take_log(log, upto)?;
    let (chunk_store, found) = reading.finish()?;
    Ok((chunk_store, found, run))
}

/// A slot, and what is in it.
type ReadSlot = (Slot, Option<Result<Part, Malformed>>, Option<Vec<pack::Chunk>>);

/// Reads a slot. What is whole in it is taken apart at once, though a newer object may be in its place: as a rule none is.
fn read_slot<S: Slots>(slots: &S, slot: Slot) -> Result<ReadSlot, EngineError> {
    let Some(value) = slots.get(slot)? else { return Ok((slot, None, None)) };
    let mut part = object::read_part(slot, value);
    let mut unpacked = None;
    if let Ok(Part { head, count: 1, body: Some(body), .. }) = &mut part {
        if slot.kind == SlotKind::Chunk && packing::holds_entries(&head.low) {
            unpacked = packing::read_chunks(body).ok();
        }
        if unpacked.is_some() {
            *body = Vec::new();
        }
    }
    Ok((slot, Some(part), unpacked))
}

impl<S: Slots> SlotScan<S> {
    /// Reads everything but the chunks and the log.
    pub(in crate::store) fn begin(slots: S) -> Result<Self, EngineError> {
        let mut chunk_store = ChunkStore::bare(slots);
        let (mut chunk_slots, mut others) = (Vec::new(), Vec::new());
        for slot in chunk_store.slots().slots()? {
            chunk_store.slot_allocator().saw_slot(slot);
            match slot.kind {
                SlotKind::Chunk => chunk_slots.push(slot),
                SlotKind::Mark | SlotKind::Manifest => others.push(slot),
            }
        }
        let (chunks, mark, log, garbage, found) = (BTreeMap::new(), None, Vec::new(), Vec::new(), DamageReport::default());
        let mut reading = Self { chunk_store, chunk_slots, chunks, mark, log, last: 0, garbage, found };
        let (mut manifest, mut manifest_damaged) = (BTreeMap::new(), false);
        for outcome in in_threads(&others, |slot| read_slot(reading.chunk_store.slots(), *slot))? {
            let (slot, part, _) = outcome?;
            let Some(part) = reading.take_part(slot, part, slot.kind != SlotKind::Manifest) else {
                manifest_damaged |= slot.kind == SlotKind::Manifest && !reading.chunk_store.slot_allocator().is_free(slot);
                continue;
            };
            if slot.kind == SlotKind::Manifest {
                manifest.entry(part.head.stamp).or_insert_with(Object::default).take(slot, part);
            } else {
                let id = part.body.as_deref().and_then(|body| body.try_into().ok()).map(u64::from_le_bytes);
                reading.mark = Some(Mark { group: part.head.last_group, id: id.unwrap_or(0) });
            }
        }
        reading.take_manifest(manifest, manifest_damaged);
        Ok(reading)
    }

    /// Takes in what the log has up to a group, and judges whether it goes with the store.
    pub(in crate::store) fn take_log(&mut self, log: LogRead, upto: u64) -> Result<Run, EngineError> {
        let (folded, id) = self.mark.map_or((0, 0), |mark| (mark.group, mark.id));
        let run = Run::of(id, folded, log);
        self.last = run.last.min(upto);
        self.chunk_store.marked(id, folded);
        let doubts = &mut self.found.doubts;
        if id == 0 {
            doubts.push("its mark is missing or damaged, or a repair was aborted".to_owned());
        } else if run.is_missing() {
            doubts.push("its log is missing, or belongs to another store".to_owned());
        } else if run.folded > folded {
            doubts.push(format!("it went back from group {} to {folded}: the newest groups are lost", run.folded));
        } else if run.first > folded + 1 {
            doubts.push(format!("its log starts with group {}: the groups from {} on are lost", run.first, folded + 1));
        } else if run.last < folded {
            doubts.push(format!("its log ends with group {}: the groups up to {folded} are lost", run.last));
        }
        doubts.extend(run.damage(upto));
        let (log, unreadable) = run.changes(folded, upto)?;
        self.found.damaged_count += unreadable;
        self.found.suspect_everywhere |= unreadable > 0;
        self.log = log;
        Ok(run)
    }

    /// Notes what is in a slot.
    fn take_part(&mut self, slot: Slot, part: Option<Result<Part, Malformed>>, counts: bool) -> Option<Part> {
        match part {
            None => self.chunk_store.slot_allocator().saw_free(slot),
            Some(Ok(part)) => {
                self.chunk_store.slot_allocator().saw_stamp(part.head.stamp);
                if part.body.is_none() && counts {
                    if let Some(LogPermit { more }) = DAMAGED.permit("damaged") {
                        tracing::warn!(%slot, more, "a slot of the store is damaged");
                    }
                    self.found.damaged_count += 1;
                }
                return Some(part);
            }
            Some(Err(error)) => {
                if let Some(LogPermit { more }) = DAMAGED.permit("unreadable") {
                    tracing::warn!(%slot, %error, more, "cannot read a slot of the store");
                }
                self.found.damaged_count += u64::from(counts);
                self.found.suspect_everywhere |= counts;
                self.garbage.push(slot);
            }
        }
        None
    }

    fn take_manifest(&mut self, objects: BTreeMap<u64, Object>, damaged: bool) {
        let noted = |mut object: Object| {
            let (complete, slots) = (object.is_complete(), object.slots());
            let body = if object.is_damaged() { None } else { Some(object.take_body().into()) };
            Noted { head: object.head, body, slots, complete }
        };
        let noted = objects.into_values().map(noted);
        let (manifest, garbage) = Manifest::read(noted.collect(), damaged);
        self.chunk_store.take_manifest(manifest);
        self.garbage.extend(garbage);
    }

    /// What lookups need, where the manifest and the log are whole.
    pub(in crate::store) fn early(&self) -> Option<Early> {
        if !self.found.is_whole() || !self.chunk_store.manifest().is_valid() {
            return None;
        }
        Some(Early { entries: Arc::clone(self.chunk_store.manifest().entries()), log: self.log.clone() })
    }

    /// Reads the chunks, too, and finds which of everything count.
    pub(in crate::store) fn finish(mut self) -> Result<(ChunkStore<S>, DamageReport), EngineError> {
        for outcome in in_threads(&self.chunk_slots, |slot| read_slot(self.chunk_store.slots(), *slot))? {
            let (slot, part, unpacked) = outcome?;
            let Some(part) = self.take_part(slot, part, true) else { continue };
            let object = self.chunks.entry(part.head.stamp).or_default();
            object.unpacked = unpacked;
            object.take(slot, part);
        }
        if self.chunks.is_empty() {
            return Err(EngineError::Damaged("it is empty".to_owned()));
        }
        let highest = self.restore_chunks()?;
        if self.last < highest && self.found.doubts.is_empty() {
            self.found.doubts.push(format!("its log ends with group {}: the groups up to {highest} are lost", self.last));
        }
        self.restore_log()?;
        let folded = self.mark.map_or(0, |mark| mark.group);
        self.chunk_store.restored(highest.max(self.last).max(folded), self.garbage);
        Ok((self.chunk_store, self.found))
    }

    /// Applies what the log has.
    fn restore_log(&mut self) -> Result<(), EngineError> {
        let log = std::mem::take(&mut self.log);
        let values = in_threads(&log, |run| read_values(&run.pairs))?;
        for (run, (values, damaged_count)) in log.into_iter().zip(values) {
            self.found.damaged_count += damaged_count;
            self.found.suspect_everywhere |= damaged_count > 0;
            let mut raw_bytes = 0;
            for (key, value) in values {
                raw_bytes += (key.len() + value.as_ref().map_or(0, Value::length)) as u64;
                self.chunk_store.note(run.first, run.last, &key, value);
            }
            self.chunk_store.keep_log(run.last, raw_bytes);
        }
        Ok(())
    }

    /// Finds which chunks count. Returns the last group that any of them has.
    fn restore_chunks(&mut self) -> Result<u64, EngineError> {
        // writes that were not finished, or deletes
        let (complete, partial) = std::mem::take(&mut self.chunks).into_iter().partition(|(_, object)| object.is_complete());
        self.chunks = complete;
        self.garbage.extend(partial.values().flat_map(Object::slots));
        let highest = self.chunks.values().map(|object| object.head.last_group).max().unwrap_or_default();
        let (mut kept, mut whole) = (BTreeSet::new(), Vec::new());
        for (low, end, stamp) in self.pieces() {
            let object = stamp.and_then(|stamp| self.chunks.get(&stamp));
            match object {
                Some(object) if !object.is_damaged() && *low == *object.head.low && end == End::new(object.head.high.as_deref()) => {
                    kept.insert(object.head.stamp);
                    whole.push((low, end.high(), object.head.stamp));
                }
                Some(object) if !object.is_damaged() => cut(&mut self.chunk_store, object, low, &end)?,
                Some(_) | None => {
                    // from now on it looks as if nothing had been there
                    if self.found.lost.is_empty() {
                        self.chunk_store.adopt(0)?;
                    }
                    self.found.lost.push((low.clone(), end.high()));
                    let folded = object.map_or(0, |object| object.head.last_group);
                    self.chunk_store.place(low, end.high(), folded, Vec::new(), packing::empty())?;
                }
            }
        }
        self.keep(whole)?;
        let dead = self.chunks.iter().filter(|(stamp, _)| !kept.contains(*stamp));
        self.garbage.extend(dead.flat_map(|(_, object)| object.slots()));
        Ok(highest)
    }

    /// Takes in chunks that count as they are. What the manifest does not say of one is made anew.
    fn keep(&mut self, whole: Vec<(Key, Option<Key>, u64)>) -> Result<(), EngineError> {
        let noted = Arc::clone(self.chunk_store.manifest().entries());
        let summaries = in_threads(&whole, |(low, high, stamp)| {
            let object = self.chunks.get(stamp)?;
            let entry = noted.get(low).filter(|entry| entry.stamp == *stamp && entry.high == *high && entry.slots == object.slots());
            Some(entry.map_or_else(|| Err(object.summary(low)), |entry| Ok(entry.summary.clone())))
        })?;
        for ((low, high, stamp), summary) in whole.into_iter().zip(summaries) {
            let (Some(object), Some(summary)) = (self.chunks.get_mut(&stamp), summary) else { continue };
            let is_noted = summary.is_ok();
            let summary = summary.unwrap_or_else(|made| made);
            self.chunk_store.take_chunk(low.clone(), chunk(object, high, summary), is_noted);
            self.found.bodies.insert(low, object.take_content());
        }
        Ok(())
    }

    /// All keys, by the chunk that counts for them.
    fn pieces(&self) -> Vec<KeyRange> {
        let mut taken: BTreeMap<Key, (End, Option<u64>)> = BTreeMap::new();
        for (stamp, object) in self.chunks.iter().rev() {
            let (low, end) = (Key::from(object.head.low.as_slice()), End::new(object.head.high.as_deref()));
            for (low, end) in untaken(&taken, low, end) {
                taken.insert(low, (end, Some(*stamp)));
            }
        }
        // each range on its own, for no chunk spans two
        for (at, low) in packing::RANGES.into_iter().enumerate() {
            for (low, end) in untaken(&taken, low.into(), End::new(packing::RANGES.get(at + 1).copied())) {
                taken.insert(low, (end, None));
            }
        }
        taken.into_iter().map(|(low, (end, stamp))| (low, end, stamp)).collect()
    }
}

fn chunk(object: &Object, high: Option<Key>, summary: Summary) -> StoredRange {
    StoredRange {
        high,
        slots: object.slots(),
        stamp: object.head.stamp,
        folded: object.head.last_group,
        count: object.head.count,
        raw_bytes: object.head.raw_bytes,
        summary,
        pending: Pending::default(),
        dirty_since: None,
    }
}

/// Writes the part of a chunk that still counts as a chunk of its own: a split or a merge was broken off.
fn cut<S: Slots>(chunk_store: &mut ChunkStore<S>, object: &Object, low: Key, end: &End) -> Result<(), EngineError> {
    let mut content = object.content(&low).map_err(|error| EngineError::Damaged(error.to_string()))?;
    content.retain(|key| *key >= *low && End::Before(key.into()) < *end);
    chunk_store.place(low, end.high(), object.head.last_group, Vec::new(), content.pack())
}

/// What of a range is in none of those that are taken.
fn untaken(taken: &BTreeMap<Key, (End, Option<u64>)>, low: Key, end: End) -> Vec<(Key, End)> {
    let mut free = Vec::new();
    let mut from = End::Before(low.clone());
    let before = taken.range(..low.clone()).next_back();
    for (taken_low, (taken_end, _)) in before.into_iter().chain(taken.range(low..)) {
        let taken_low = End::Before(taken_low.clone());
        if taken_low >= end {
            break;
        }
        if from < taken_low
            && let Some(from) = from.high()
        {
            free.push((from, taken_low));
        }
        from = from.max(taken_end.clone());
    }
    if from < end
        && let Some(from) = from.high()
    {
        free.push((from, end));
    }
    free
}

/// The values of some of the log, and how many cannot be read.
fn read_values(pairs: &Pairs) -> (Vec<(Key, Option<Value>)>, u64) {
    let mut damaged_count = 0;
    let read = pairs.iter().filter_map(|(key, body)| match body.map(|body| packing::read_value(key, body)).transpose() {
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
