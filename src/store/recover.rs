//! Finding the store again in its slots, whatever moment it was left at and whatever was damaged since.
//!
//! Owns: which objects count, and what damage is noticed. Emits: a [`Warm`] store, and in [`Found`] what is in doubt. Deliberately lacks:
//! what doubt costs (`load`), damage that the engine itself notices (`recovery`).
//!
//! Of each key the chunk with the highest stamp counts; a damaged one leaves its range empty. Then the log is applied, each object
//! to the chunks that are not folded past it. From the newest object's floor on, no group may be missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::bytes::Malformed;
use super::change::Key;
use super::error::EngineError;
use super::manifest::{Entry, Manifest, Noted};
use super::object::{self, Head, Part};
use super::packing::{self, Content};
use super::pairs::{Pairs, read_pairs};
use super::pending::Pending;
use super::slots::{Slot, SlotKind, Slots};
use super::summary::Summary;
use super::tail::LogRead;
use super::threads::in_threads;
use super::unpack::Body;
use super::warm::{Chunk, Warm};
use crate::model::{Causes, Due};
use crate::pack;

/// What is wrong with slots and was logged lately: of a damaged store it may be all of them.
static DAMAGED: Causes = Causes::new();

/// What lookups need of a store before all of it is read.
#[derive(Debug)]
pub(super) struct Early {
    /// Where the chunks are, by low.
    pub(super) entries: Arc<BTreeMap<Key, Entry>>,
    /// The log, oldest first: not put in one order, which would take most of the time until the first answer.
    pub(super) log: Vec<LogRun>,
}

/// The changes of some groups.
#[derive(Debug)]
pub(super) struct LogRun {
    /// The last group in which any of them had happened: a chunk that has this group has the changes.
    pub(super) group: u64,
    /// The last of each key, in key order.
    pub(super) pairs: Arc<Pairs>,
}

/// What is in doubt.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Found {
    /// How many slots could not be read.
    pub(super) damaged_count: u64,
    /// Anything may be missing.
    pub(super) suspect_everywhere: bool,
    /// Ranges of which anything may be missing.
    pub(super) lost: Vec<(Key, Option<Key>)>,
    /// What whole chunks hold, by where they begin: they were read already.
    pub(super) bodies: BTreeMap<Key, Body>,
    /// The first group that may be missing or stand for nothing; what is stored next must stand for all from this one on.
    pub(super) void_from: Option<u64>,
}

impl Found {
    /// Whether all that was stored is there.
    pub(super) fn is_whole(&self) -> bool {
        self.damaged_count == 0 && !self.suspect_everywhere && self.lost.is_empty() && self.void_from.is_none()
    }
}

/// An object as far as it was found.
#[derive(Debug, Default)]
pub(super) struct Object {
    pub(super) head: Head,
    part_count: u64,
    parts: BTreeMap<u64, (Slot, Option<Vec<u8>>)>,
    /// The body, taken apart, in place of that of its only part.
    unpacked: Option<Unpacked>,
}

/// A body, taken apart in the thread that read it.
#[derive(Debug)]
enum Unpacked {
    /// Entries of a chunk.
    Entries(Vec<pack::Chunk>),
    /// Changes of the log, and how long they are as they are stored.
    Changes { pairs: Pairs, stored_bytes: usize },
}

impl Object {
    fn take(&mut self, slot: Slot, part: Part) {
        self.head = part.head;
        self.part_count = part.count;
        self.parts.insert(part.number, (slot, part.body));
    }

    fn content(&self, low: &[u8]) -> Result<Content, Malformed> {
        match &self.unpacked {
            Some(Unpacked::Entries(chunks)) => Ok(Content::entries(chunks.clone())),
            Some(Unpacked::Changes { .. }) | None => Content::read(low, &self.body()),
        }
    }

    fn take_content(&mut self) -> Body {
        match self.unpacked.take() {
            Some(Unpacked::Entries(chunks)) => Body::Unpacked(chunks),
            Some(Unpacked::Changes { .. }) | None => Body::Stored(self.take_body()),
        }
    }

    fn summary(&self, low: &[u8]) -> Summary {
        match &self.unpacked {
            Some(Unpacked::Entries(chunks)) => Summary::of(chunks),
            Some(Unpacked::Changes { .. }) | None => Summary::of_body(low, &self.body()),
        }
    }

    /// The changes of an object of the log that was not taken apart. `None` where it is damaged or was never finished.
    fn changes(&self) -> Option<Pairs> {
        if self.is_complete() && !self.is_damaged() { read_pairs(&self.body()).ok() } else { None }
    }

    /// Lets go of the body. Returns how long it was.
    fn drop_body(&mut self) -> usize {
        self.parts.values_mut().filter_map(|(_, body)| body.as_mut()).map(|body| std::mem::take(body).len()).sum()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.parts.len() as u64 == self.part_count
    }

    fn is_damaged(&self) -> bool {
        self.parts.values().any(|(_, body)| body.is_none())
    }

    pub(super) fn slots(&self) -> Vec<Slot> {
        self.parts.values().map(|(slot, _)| *slot).collect()
    }

    fn body(&self) -> Vec<u8> {
        self.parts.values().filter_map(|(_, body)| body.as_deref()).collect::<Vec<_>>().concat()
    }

    /// The same, taken away: not copied where it is in one slot, as most are.
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
type Piece = (Key, End, Option<u64>);

/// What a start has read so far.
#[derive(Debug)]
pub(super) struct Reading<S> {
    pub(super) warm: Warm<S>,
    /// Not read yet.
    chunk_slots: Vec<Slot>,
    chunks: BTreeMap<u64, Object>,
    /// By last group.
    pub(super) log: Vec<LogRead>,
    pub(super) floor: u64,
    pub(super) group_number: u64,
    pub(super) garbage: Vec<Slot>,
    pub(super) found: Found,
}

/// Reads all slots. Fails where nothing at all is stored, since even an empty store has its ranges.
pub(super) fn recover<S: Slots>(slots: S) -> Result<(Warm<S>, Found), EngineError> {
    Reading::begin(slots)?.finish()
}

/// A slot, and what is in it.
type ReadSlot = (Slot, Option<Result<Part, Malformed>>, Option<Unpacked>);

/// Reads a slot. What is whole in it is taken apart at once, though a newer object may be in its place: as a rule none is.
fn read_slot<S: Slots>(slots: &S, slot: Slot) -> Result<ReadSlot, EngineError> {
    let Some(value) = slots.get(slot)? else { return Ok((slot, None, None)) };
    let mut part = object::read_part(slot, value);
    let mut unpacked = None;
    if let Ok(Part { head, count: 1, body: Some(body), .. }) = &mut part {
        unpacked = match slot.kind {
            SlotKind::Chunk if packing::holds_entries(&head.low) => packing::read_chunks(body).ok().map(Unpacked::Entries),
            SlotKind::Segment | SlotKind::Hot => read_pairs(body).ok().map(|pairs| Unpacked::Changes { pairs, stored_bytes: body.len() }),
            SlotKind::Chunk | SlotKind::Mark | SlotKind::Manifest => None,
        };
        if unpacked.is_some() {
            *body = Vec::new();
        }
    }
    Ok((slot, Some(part), unpacked))
}

impl<S: Slots> Reading<S> {
    /// Reads everything but the chunks.
    pub(super) fn begin(slots: S) -> Result<Self, EngineError> {
        let mut warm = Warm::bare(slots);
        let (mut chunk_slots, mut others) = (Vec::new(), Vec::new());
        for slot in warm.slots.slots()? {
            let next = warm.room.next.entry(slot.kind).or_default();
            *next = (*next).max(slot.number + 1);
            if slot.kind == SlotKind::Chunk { chunk_slots.push(slot) } else { others.push(slot) }
        }
        let (floor, group_number, garbage, found) = (0, 0, Vec::new(), Found::default());
        let mut reading = Self { warm, chunk_slots, chunks: BTreeMap::new(), log: Vec::new(), floor, group_number, garbage, found };
        let (mut log, mut manifest, mut manifest_damaged) = (BTreeMap::new(), BTreeMap::new(), false);
        for outcome in in_threads(&others, |slot| read_slot(&reading.warm.slots, *slot))? {
            let (slot, part, unpacked) = outcome?;
            let Some(part) = reading.take_part(slot, part, slot.kind != SlotKind::Manifest) else {
                manifest_damaged |= slot.kind == SlotKind::Manifest && !reading.warm.room.free.contains(&slot);
                continue;
            };
            match slot.kind {
                SlotKind::Manifest => manifest.entry(part.head.stamp).or_insert_with(Object::default).take(slot, part),
                SlotKind::Mark => {
                    reading.floor = reading.floor.max(part.head.floor);
                    reading.group_number = reading.group_number.max(part.head.last_group);
                }
                kind @ (SlotKind::Chunk | SlotKind::Segment | SlotKind::Hot) => {
                    let object: &mut Object = log.entry((kind, part.head.stamp)).or_default();
                    object.unpacked = unpacked;
                    object.take(slot, part);
                }
            }
        }
        reading.take_manifest(manifest, manifest_damaged);
        reading.take_log(log)?;
        Ok(reading)
    }

    /// Notes what is in a slot.
    fn take_part(&mut self, slot: Slot, part: Option<Result<Part, Malformed>>, counts: bool) -> Option<Part> {
        match part {
            None => drop(self.warm.room.free.insert(slot)),
            Some(Ok(part)) => {
                self.warm.stamp = self.warm.stamp.max(part.head.stamp);
                if part.body.is_none() && counts {
                    if let Some(Due { more }) = DAMAGED.due("damaged") {
                        tracing::warn!(%slot, more, "a slot of the store is damaged");
                    }
                    self.found.damaged_count += 1;
                }
                return Some(part);
            }
            Some(Err(error)) => {
                if let Some(Due { more }) = DAMAGED.due("unreadable") {
                    tracing::warn!(%slot, %error, more, "a slot of the store cannot be read");
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
        self.warm.manifest = manifest;
        self.garbage.extend(garbage);
    }

    fn take_log(&mut self, objects: BTreeMap<(SlotKind, u64), Object>) -> Result<(), EngineError> {
        // those of several slots, as a list that was being read leaves
        let whole: Vec<&Object> = objects.values().filter(|object| object.unpacked.is_none()).collect();
        let mut apart = in_threads(&whole, |object| object.changes())?.into_iter();
        for ((kind, _), mut object) in objects {
            let (pairs, stored_bytes) = match object.unpacked.take() {
                Some(Unpacked::Changes { pairs, stored_bytes }) => (Some(pairs), stored_bytes),
                Some(Unpacked::Entries(_)) | None => (apart.next().flatten(), object.drop_body()),
            };
            if pairs.is_some() {
                self.floor = self.floor.max(object.head.floor);
                self.group_number = self.group_number.max(object.head.last_group);
            }
            self.log.push(LogRead { kind, object, stored_bytes, pairs: pairs.map(Arc::new) });
        }
        self.log.sort_by_key(|read| (read.groups().1, std::cmp::Reverse(read.groups().0)));
        Ok(())
    }

    /// What lookups need, where the manifest and the log are whole, and reach up to a group.
    pub(super) fn early(&self, group_number: u64) -> Option<Early> {
        let whole = self.found.is_whole() && self.lost_group().is_none() && self.group_number >= group_number;
        if !whole || !self.warm.manifest.is_valid() {
            return None;
        }
        let run = |read: &LogRead| Some(LogRun { group: read.groups().1, pairs: Arc::clone(read.pairs.as_ref()?) });
        let log = self.log.iter().filter_map(run).collect();
        Some(Early { entries: Arc::clone(self.warm.manifest.entries()), log })
    }

    /// Reads the chunks, too, and finds which of everything count.
    pub(super) fn finish(mut self) -> Result<(Warm<S>, Found), EngineError> {
        for outcome in in_threads(&self.chunk_slots, |slot| read_slot(&self.warm.slots, *slot))? {
            let (slot, part, unpacked) = outcome?;
            let Some(part) = self.take_part(slot, part, true) else { continue };
            let object = self.chunks.entry(part.head.stamp).or_default();
            object.unpacked = unpacked;
            object.take(slot, part);
        }
        if self.chunks.is_empty() {
            return Err(EngineError::Damaged("its content is gone".to_owned()));
        }
        self.restore_chunks()?;
        self.restore_log()?;
        self.warm.group_number = self.group_number;
        self.warm.room.soon.append(&mut self.garbage);
        Ok((self.warm, self.found))
    }

    fn restore_chunks(&mut self) -> Result<(), EngineError> {
        // writes that were not finished, or deletes
        let (complete, partial) = std::mem::take(&mut self.chunks).into_iter().partition(|(_, object)| object.is_complete());
        self.chunks = complete;
        self.garbage.extend(partial.values().flat_map(Object::slots));
        self.group_number = self.chunks.values().map(|object| object.head.last_group).max().unwrap_or_default().max(self.group_number);
        let (mut kept, mut whole) = (BTreeSet::new(), Vec::new());
        for (low, end, stamp) in self.pieces() {
            let object = stamp.and_then(|stamp| self.chunks.get(&stamp));
            match object {
                Some(object) if !object.is_damaged() && *low == *object.head.low && end == End::new(object.head.high.as_deref()) => {
                    kept.insert(object.head.stamp);
                    whole.push((low, end.high(), object.head.stamp));
                }
                Some(object) if !object.is_damaged() => cut(&mut self.warm, object, low, &end)?,
                Some(_) | None => {
                    self.found.lost.push((low.clone(), end.high()));
                    let folded = object.map_or(0, |object| object.head.last_group);
                    self.warm.place(low, end.high(), folded, Vec::new(), packing::empty())?;
                }
            }
        }
        self.keep(whole)?;
        let dead = self.chunks.iter().filter(|(stamp, _)| !kept.contains(*stamp));
        self.garbage.extend(dead.flat_map(|(_, object)| object.slots()));
        Ok(())
    }

    /// Takes in chunks that count as they are. What the manifest does not say of one is made anew.
    fn keep(&mut self, whole: Vec<(Key, Option<Key>, u64)>) -> Result<(), EngineError> {
        let noted = self.warm.manifest.entries();
        let summaries = in_threads(&whole, |(low, high, stamp)| {
            let object = self.chunks.get(stamp)?;
            let entry = noted.get(low).filter(|entry| entry.stamp == *stamp && entry.high == *high && entry.slots == object.slots());
            Some(entry.map_or_else(|| Err(object.summary(low)), |entry| Ok(entry.summary.clone())))
        })?;
        for ((low, high, stamp), summary) in whole.into_iter().zip(summaries) {
            let (Some(object), Some(summary)) = (self.chunks.get_mut(&stamp), summary) else { continue };
            if summary.is_err() {
                self.warm.manifest.change(low.clone());
            }
            let summary = summary.unwrap_or_else(|made| made);
            self.warm.chunks.insert(low.clone(), chunk(object, high, summary));
            self.found.bodies.insert(low, object.take_content());
        }
        Ok(())
    }

    /// All keys, by the chunk that counts for them.
    fn pieces(&self) -> Vec<Piece> {
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

fn chunk(object: &Object, high: Option<Key>, summary: Summary) -> Chunk {
    Chunk {
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
fn cut<S: Slots>(warm: &mut Warm<S>, object: &Object, low: Key, end: &End) -> Result<(), EngineError> {
    let mut content = object.content(&low).map_err(|error| EngineError::Damaged(error.to_string()))?;
    content.retain(|key| *key >= *low && End::Before(key.into()) < *end);
    warm.place(low, end.high(), object.head.last_group, Vec::new(), content.pack())
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
