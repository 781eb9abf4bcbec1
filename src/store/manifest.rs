//! The manifest: the slots and a summary of each chunk. With it, lookups are answered before all
//! chunks are read.
//!
//! It consists of a *base* with all chunks, and of numbered *changes* to it; the newest entry of a
//! range is valid. docs/develop/store.md ("Objects") describes the encoding. Recovery reads every
//! chunk and does not need the manifest. If the manifest is missing or damaged, lookups wait until
//! everything is read.
//!
//! A chunk is listed in the sync that makes it durable. Only after that sync are the chunks that it
//! replaces and the folded groups of the log removed. So the listed chunks and the log together
//! always contain everything. A chunk that was rewritten after the last sync is in the same slots,
//! has the same range and a higher stamp, and all its changes are in its summary or in the log.

mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::bytes::Bytes;

use super::encoding::checksum::{ByteReader, DecodeError, put_text, put_varint};
use super::encoding::stored_value::KeyBytes;
use super::engine::slots::{Slot, SlotKind};
use super::objects::object::ObjectHead;
use super::objects::summary::ChunkSummary;
use crate::pack::common_prefix_length;

/// Length above which further changes go into a new object, in bytes. Most syncs rewrite the slot
/// of the last object.
const CHANGES_BYTES_MAX: usize = 4 << 10;

/// Maximum number of objects with changes. Each costs a start about 10 µs.
const CHANGES_COUNT_MAX: u64 = 128;

/// Length of changes below which the base is not rewritten, in bytes.
const CHANGES_KEPT_BYTES: usize = 64 << 10;

/// Above [`CHANGES_KEPT_BYTES`], the base is rewritten when the length of the changes reaches its
/// own length divided by this number: a quarter.
const CHANGES_SHARE: usize = 4;

/// Maximum number of slots of a chunk, the same as for all objects.
const SLOTS_MAX: u64 = 40_000;

/// Slots, range and summary of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ManifestEntry {
    pub(super) high: Option<KeyBytes>,
    pub(super) stamp: u64,
    pub(super) slots: Vec<Slot>,
    pub(super) summary: ChunkSummary,
}

/// Start of a chunk's range, with its entry.
type LowAndEntry = (KeyBytes, ManifestEntry);

#[derive(Debug, Default)]
pub(super) struct Manifest {
    /// Stamp of the base. `None` if no base is valid; the next sync then writes one.
    base: Option<u64>,
    base_bytes: usize,
    /// Slots of all valid objects.
    slots: Vec<Slot>,
    /// Entries of all objects except the open one, by the lower bounds of their ranges.
    entries: Arc<BTreeMap<KeyBytes, ManifestEntry>>,
    /// Lower bounds of the chunks that were written since the last sync.
    changed: BTreeSet<KeyBytes>,
    /// The last object with its entries, if the next changes are added to it.
    open_object: Option<(Slot, Vec<LowAndEntry>)>,
    /// Number of the last object.
    number: u64,
    /// Total length of the objects with changes, in bytes.
    changes_bytes: usize,
}

/// An object of the manifest, as read from its slots.
#[derive(Debug)]
pub(super) struct ManifestObject {
    pub(super) head: ObjectHead,
    /// `None` if damaged.
    pub(super) body: Option<Bytes>,
    pub(super) slots: Vec<Slot>,
    /// True if all parts are present.
    pub(super) is_complete: bool,
}

impl Manifest {
    /// Builds the manifest from its objects. Also returns the slots that are not needed.
    ///
    /// The result is empty if there is no base, or if anything is missing or damaged. `damaged` is
    /// true if a part was damaged so much that its object is unknown.
    pub(super) fn from_objects(mut objects: Vec<ManifestObject>, damaged: bool) -> (Self, Vec<Slot>) {
        // `first_group` is the stamp of an object's base, `last_group` the number of its changes
        objects.sort_by_key(|object| (object.head.first_group, object.head.last_group));
        let is_base = |object: &&ManifestObject| object.is_complete && object.head.first_group == object.head.stamp;
        let base = objects.iter().filter(is_base).map(|object| object.head.stamp).max();
        let (current, mut garbage): (Vec<ManifestObject>, Vec<ManifestObject>) =
            objects.into_iter().partition(|object| Some(object.head.first_group) == base);
        let mut manifest = Self { base, ..Self::default() };
        // an interrupted sync may leave the newest object incomplete; it is then ignored, because
        // chunks and groups are removed only after a sync
        let usable_count =
            current.iter().rposition(|object| object.is_complete).map_or(0, |last| last + 1).max(current.len().saturating_sub(1));
        let outcome = current.iter().take(usable_count).try_for_each(|object| manifest.add_object(object));
        if damaged || outcome.is_err() || base.is_some() && !manifest.covers_all_keys() {
            tracing::warn!("the manifest is damaged: lookups wait until the whole store is read");
            manifest = Self::default();
        }
        garbage.extend(current);
        let kept: BTreeSet<Slot> = manifest.slots.iter().copied().collect();
        let garbage = garbage.into_iter().flat_map(|object| object.slots).filter(|slot| !kept.contains(slot)).collect();
        (manifest, garbage)
    }

    fn add_object(&mut self, object: &ManifestObject) -> Result<(), DecodeError> {
        let is_base = self.slots.is_empty();
        let number = if is_base { 0 } else { self.number + 1 };
        let is_next = object.is_complete && object.head.last_group == number;
        let body = object.body.as_ref().filter(|_| is_next).ok_or(DecodeError::Truncated)?;
        self.decode_entries(body)?;
        self.number = number;
        self.slots.extend(&object.slots);
        if is_base {
            self.base_bytes = body.len();
        } else {
            self.changes_bytes += body.len();
        }
        Ok(())
    }

    fn decode_entries(&mut self, body: &Bytes) -> Result<(), DecodeError> {
        let mut reader = ByteReader::new(body);
        let mut low = Vec::new();
        while !reader.is_empty() {
            decode_suffix(&mut reader, &mut low)?;
            let high = if reader.flags(1)? == 1 {
                let mut high = low.clone();
                decode_suffix(&mut reader, &mut high)?;
                Some(KeyBytes::from(high))
            } else {
                None
            };
            let stamp = reader.varint()?;
            let count = reader.varint()?;
            if count > SLOTS_MAX {
                return Err(DecodeError::Field("slots"));
            }
            let number = |_| reader.varint().and_then(|number| u32::try_from(number).map_err(|_| DecodeError::Field("slot")));
            let slots = (0..count).map(number).map(|number| Ok(Slot { kind: SlotKind::Chunk, number: number? }));
            let slots = slots.collect::<Result<_, DecodeError>>()?;
            let low = KeyBytes::from(low.as_slice());
            let summary = if reader.flags(1)? == 1 {
                ChunkSummary::decode(body.slice_ref(reader.bytes()?))?
            } else {
                let before = self.entries.get(&low).filter(|before| before.high == high);
                before.ok_or(DecodeError::Field("summary"))?.summary.clone()
            };
            self.set_entry(low, ManifestEntry { high, stamp, slots, summary });
        }
        Ok(())
    }

    /// Sets the entry of a range and removes all entries that overlap it.
    fn set_entry(&mut self, low: KeyBytes, entry: ManifestEntry) {
        let before = self.entries.range(..low.clone()).next_back();
        let before = before.filter(|(_, before)| before.high.as_ref().is_none_or(|high| *high > low)).map(|(low, _)| low.clone());
        let within = self.entries.range(low.clone()..).map(|(low, _)| low);
        let within = within.take_while(|low| entry.high.as_ref().is_none_or(|high| *low < high)).cloned();
        let replaced: Vec<KeyBytes> = before.into_iter().chain(within).collect();
        let entries = Arc::make_mut(&mut self.entries);
        for low in replaced {
            entries.remove(&low);
        }
        entries.insert(low, entry);
    }

    /// Returns whether each key is in exactly one chunk.
    fn covers_all_keys(&self) -> bool {
        let mut end = Some(KeyBytes::from(&b""[..]));
        let follows = |(low, entry): (&KeyBytes, &ManifestEntry)| {
            end.as_ref() == Some(low) && {
                end.clone_from(&entry.high);
                true
            }
        };
        self.entries.iter().all(follows) && end.is_none()
    }

    /// Returns whether the manifest lists all chunks.
    pub(super) fn is_valid(&self) -> bool {
        self.base.is_some()
    }

    /// Returns the entries, by the lower bounds of their ranges.
    pub(super) fn entries(&self) -> &Arc<BTreeMap<KeyBytes, ManifestEntry>> {
        &self.entries
    }

    /// Records that a chunk was written or differs from its entry.
    pub(super) fn mark_changed(&mut self, low: KeyBytes) {
        self.changed.insert(low);
    }

    /// Returns whether the next sync writes anything.
    pub(super) fn is_changed(&self) -> bool {
        self.base.is_none() || !self.changed.is_empty()
    }

    fn encode_entries(&self, entries: &[LowAndEntry]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut previous: &[u8] = &[];
        for (low, entry) in entries {
            encode_suffix(&mut out, previous, low);
            out.push(u8::from(entry.high.is_some()));
            if let Some(high) = &entry.high {
                encode_suffix(&mut out, low, high);
            }
            put_varint(&mut out, entry.stamp);
            put_varint(&mut out, entry.slots.len() as u64);
            entry.slots.iter().for_each(|slot| put_varint(&mut out, slot.number.into()));
            let before = self.entries.get(low).filter(|before| before.high == entry.high);
            let same = before.is_some_and(|before| before.summary == entry.summary);
            out.push(u8::from(!same));
            if !same {
                put_text(&mut out, entry.summary.bytes());
            }
            previous = low;
        }
        out
    }
}

/// Appends a key as the length of the prefix that it shares with another key, and the rest.
fn encode_suffix(out: &mut Vec<u8>, before: &[u8], text: &[u8]) {
    let common = common_prefix_length(text, before);
    put_varint(out, common as u64);
    put_text(out, &text[common..]);
}

/// Decodes a key into `text`, which contains the previous key.
fn decode_suffix(reader: &mut ByteReader<'_>, text: &mut Vec<u8>) -> Result<(), DecodeError> {
    let common = usize::try_from(reader.varint()?).map_err(|_| DecodeError::Truncated)?;
    if common > text.len() {
        return Err(DecodeError::Field("common part of two keys"));
    }
    text.truncate(common);
    text.extend_from_slice(reader.bytes()?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a base with these ranges, each in its own slot.
    fn base_of(ranges: &[(&str, Option<&str>)]) -> ManifestObject {
        let entries: Vec<LowAndEntry> = ranges
            .iter()
            .zip(0..)
            .map(|((low, high), number)| {
                let slots = vec![Slot { kind: SlotKind::Chunk, number }];
                (
                    KeyBytes::from(low.as_bytes()),
                    ManifestEntry { high: high.map(|high| high.as_bytes().into()), stamp: 1, slots, summary: ChunkSummary::empty() },
                )
            })
            .collect();
        let head = ObjectHead { stamp: 9, first_group: 9, ..ObjectHead::default() };
        let slots = vec![Slot { kind: SlotKind::Manifest, number: 0 }];
        ManifestObject { head, body: Some(Manifest::default().encode_entries(&entries).into()), slots, is_complete: true }
    }

    /// Returns an object without changes to that base.
    fn changes_of(number: u64) -> ManifestObject {
        let head = ObjectHead { stamp: 9 + number, first_group: 9, last_group: number, ..ObjectHead::default() };
        let slots = vec![Slot { kind: SlotKind::Manifest, number: u32::try_from(number).unwrap() }];
        ManifestObject { head, body: Some(Bytes::new()), slots, is_complete: true }
    }

    /// No other object has the entries of the missing one.
    #[test]
    fn manifest_changes_with_a_gap_are_not_used() {
        let is_used = |numbers: &[u64]| {
            let objects = [base_of(&[("", None)])].into_iter().chain(numbers.iter().map(|number| changes_of(*number))).collect();
            Manifest::from_objects(objects, false).0.is_valid()
        };
        assert!(is_used(&[1, 2, 3]));
        assert!(!is_used(&[1, 3]), "the second object is missing");
        assert!(!is_used(&[2, 3]), "the first object is missing");
    }

    /// A part whose head is damaged may belong to a valid object.
    #[test]
    fn a_manifest_with_a_damaged_part_is_not_used() {
        let is_used = |damaged| Manifest::from_objects(vec![base_of(&[("", None)])], damaged).0.is_valid();
        assert!(is_used(false));
        assert!(!is_used(true));
    }

    #[test]
    fn a_manifest_that_lacks_a_range_is_not_used() {
        let is_used = |ranges: &[(&str, Option<&str>)]| Manifest::from_objects(vec![base_of(ranges)], false).0.is_valid();
        assert!(is_used(&[("", Some("e")), ("e", None)]));
        assert!(!is_used(&[("", Some("e")), ("f", None)]), "a gap");
        assert!(!is_used(&[("a", Some("e")), ("e", None)]), "the beginning is missing");
        assert!(!is_used(&[("", Some("e")), ("e", Some("f"))]), "the end is missing");
        assert!(!is_used(&[]), "there is no range");
    }
}
