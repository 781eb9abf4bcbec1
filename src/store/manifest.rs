//! The manifest: where each chunk is and what it holds in short, so that lookups are answered before the chunks are read.
//!
//! Owns: its bytes (docs/develop/store.md, "Objects"), which of its objects count, and when it is written. Deliberately lacks: answers (`partial_store`); the layout does not rely on it
//! (`slot_scan` reads every chunk), so without one, or with a damaged one, a start merely answers nothing before it has read everything.
//!
//! It is a *base*, which has every chunk, and *changes* to it, numbered from 1 on; of a key the newest of them counts. A range's chunk is noted
//! in the sync that makes it durable, and only behind that sync anything that it replaces goes: the chunks before, the log that was folded into
//! it. So whatever a sync leaves, chunks that the manifest names and the log have everything: one that was written since is in the same slots,
//! for the same range, with a higher stamp, and holds nothing that is neither summarized nor in the log; or the one before it is still there.

mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::bytes::Bytes;

use super::encoding::bytes::{Malformed, Reader, put_text, put_varint};
use super::encoding::change::Key;
use super::engine::slots::{Slot, SlotKind};
use super::objects::object::Head;
use super::objects::summary::Summary;
use crate::pack::common_length;

/// Changes are written into one slot again until they are longer than this, in bytes: it is written with most syncs.
const CHANGES_BYTES_MAX: usize = 4 << 10;

/// The most slots of changes: each takes a start some 10 µs.
const CHANGES_COUNT_MAX: u64 = 128;

/// Changes below this length are never a reason to write the base anew, in bytes;
const CHANGES_KEPT_BYTES: usize = 64 << 10;

/// above it they are where they reach this part of the base: it is then written a quarter as often as what changes in it.
const CHANGES_SHARE: usize = 4;

/// A chunk holds at most so many slots, as objects do.
const SLOTS_MAX: u64 = 40_000;

/// What is noted of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) high: Option<Key>,
    pub(super) stamp: u64,
    pub(super) slots: Vec<Slot>,
    pub(super) summary: Summary,
}

/// The manifest of an open store.
#[derive(Debug, Default)]
pub(super) struct Manifest {
    /// The stamp of the base; `None` where none counts, so that the next sync writes one.
    base: Option<u64>,
    base_bytes: usize,
    /// All that is in use.
    slots: Vec<Slot>,
    /// What all objects but the open one say, by low.
    noted: Arc<BTreeMap<Key, Entry>>,
    /// Chunks that were written since the last sync, by low.
    changed: BTreeSet<Key>,
    /// The last object, if it is to be written again, and what it says.
    open: Option<(Slot, Vec<(Key, Entry)>)>,
    /// The number of the last object.
    number: u64,
    /// How long the objects of changes are.
    changes_bytes: usize,
}

/// An object as it was read.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) head: Head,
    /// `None` where it is damaged.
    pub(super) body: Option<Bytes>,
    pub(super) slots: Vec<Slot>,
    /// Whether all its parts are there.
    pub(super) complete: bool,
}

impl Manifest {
    /// Puts together what objects say. Returns the slots that nothing needs, too. Without a base, or where anything is missing or damaged,
    /// nothing counts; `damaged` says that it is.
    pub(super) fn read(mut objects: Vec<Noted>, damaged: bool) -> (Self, Vec<Slot>) {
        objects.sort_by_key(|object| (object.head.first_group, object.head.last_group));
        let is_base = |object: &&Noted| object.complete && object.head.first_group == object.head.stamp;
        let base = objects.iter().filter(is_base).map(|object| object.head.stamp).max();
        let (counting, mut garbage): (Vec<Noted>, Vec<Noted>) =
            objects.into_iter().partition(|object| Some(object.head.first_group) == base);
        let mut manifest = Self { base, ..Self::default() };
        // the newest may be of a sync that did not end: nothing that it replaces is gone
        let finished = counting.iter().rposition(|object| object.complete).map_or(0, |last| last + 1).max(counting.len().saturating_sub(1));
        let outcome = counting.iter().take(finished).try_for_each(|object| manifest.take(object));
        if damaged || outcome.is_err() || base.is_some() && !manifest.is_tiled() {
            tracing::warn!("the manifest is damaged: lookups wait until the whole store is read");
            manifest = Self::default();
        }
        garbage.extend(counting);
        let kept: BTreeSet<Slot> = manifest.slots.iter().copied().collect();
        let garbage = garbage.into_iter().flat_map(|object| object.slots).filter(|slot| !kept.contains(slot)).collect();
        (manifest, garbage)
    }

    fn take(&mut self, object: &Noted) -> Result<(), Malformed> {
        let is_base = self.slots.is_empty();
        let number = if is_base { 0 } else { self.number + 1 };
        let counts = object.complete && object.head.last_group == number;
        let body = object.body.as_ref().filter(|_| counts).ok_or(Malformed::Truncated)?;
        self.read_entries(body)?;
        self.number = number;
        self.slots.extend(&object.slots);
        if is_base {
            self.base_bytes = body.len();
        } else {
            self.changes_bytes += body.len();
        }
        Ok(())
    }

    fn read_entries(&mut self, body: &Bytes) -> Result<(), Malformed> {
        let mut reader = Reader::over(body);
        let mut low = Vec::new();
        while !reader.is_empty() {
            read_continued(&mut reader, &mut low)?;
            let high = if reader.flags(1)? == 1 {
                let mut high = low.clone();
                read_continued(&mut reader, &mut high)?;
                Some(Key::from(high))
            } else {
                None
            };
            let stamp = reader.varint()?;
            let count = reader.varint()?;
            if count > SLOTS_MAX {
                return Err(Malformed::Field("slots"));
            }
            let number = |_| reader.varint().and_then(|number| u32::try_from(number).map_err(|_| Malformed::Field("slot")));
            let slots = (0..count).map(number).map(|number| Ok(Slot { kind: SlotKind::Chunk, number: number? }));
            let slots = slots.collect::<Result<_, Malformed>>()?;
            let low = Key::from(low.as_slice());
            let summary = if reader.flags(1)? == 1 {
                Summary::read(body.slice_ref(reader.bytes()?))?
            } else {
                let before = self.noted.get(&low).filter(|before| before.high == high);
                before.ok_or(Malformed::Field("summary"))?.summary.clone()
            };
            self.note(low, Entry { high, stamp, slots, summary });
        }
        Ok(())
    }

    /// Takes in what is noted of a chunk, in place of all that overlaps it.
    fn note(&mut self, low: Key, entry: Entry) {
        let before = self.noted.range(..low.clone()).next_back();
        let before = before.filter(|(_, before)| before.high.as_ref().is_none_or(|high| *high > low)).map(|(low, _)| low.clone());
        let within = self.noted.range(low.clone()..).map(|(low, _)| low);
        let within = within.take_while(|low| entry.high.as_ref().is_none_or(|high| *low < high)).cloned();
        let replaced: Vec<Key> = before.into_iter().chain(within).collect();
        let noted = Arc::make_mut(&mut self.noted);
        for low in replaced {
            noted.remove(&low);
        }
        noted.insert(low, entry);
    }

    /// Whether every key is in just one chunk.
    fn is_tiled(&self) -> bool {
        let mut end = Some(Key::from(&b""[..]));
        let follows = |(low, entry): (&Key, &Entry)| {
            end.as_ref() == Some(low) && {
                end.clone_from(&entry.high);
                true
            }
        };
        self.noted.iter().all(follows) && end.is_none()
    }

    /// Whether it says where everything is.
    pub(super) fn is_valid(&self) -> bool {
        self.base.is_some()
    }

    /// What is noted of chunks, by low.
    pub(super) fn entries(&self) -> &Arc<BTreeMap<Key, Entry>> {
        &self.noted
    }

    /// Marks that a chunk was written, or differs from what is noted.
    pub(super) fn change(&mut self, low: Key) {
        self.changed.insert(low);
    }

    /// Whether the next sync writes anything.
    pub(super) fn is_changed(&self) -> bool {
        self.base.is_none() || !self.changed.is_empty()
    }

    fn write(&self, entries: &[(Key, Entry)]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut previous: &[u8] = &[];
        for (low, entry) in entries {
            write_continued(&mut out, previous, low);
            out.push(u8::from(entry.high.is_some()));
            if let Some(high) = &entry.high {
                write_continued(&mut out, low, high);
            }
            put_varint(&mut out, entry.stamp);
            put_varint(&mut out, entry.slots.len() as u64);
            entry.slots.iter().for_each(|slot| put_varint(&mut out, slot.number.into()));
            let before = self.noted.get(low).filter(|before| before.high == entry.high);
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

/// Appends a text that begins as another does.
fn write_continued(out: &mut Vec<u8>, before: &[u8], text: &[u8]) {
    let common = common_length(text, before);
    put_varint(out, common as u64);
    put_text(out, &text[common..]);
}

/// Reads one back in place of the one before.
fn read_continued(reader: &mut Reader<'_>, text: &mut Vec<u8>) -> Result<(), Malformed> {
    let common = usize::try_from(reader.varint()?).map_err(|_| Malformed::Truncated)?;
    if common > text.len() {
        return Err(Malformed::Field("common part of two keys"));
    }
    text.truncate(common);
    text.extend_from_slice(reader.bytes()?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A base that has these ranges, each in a slot of its own.
    fn base_of(ranges: &[(&str, Option<&str>)]) -> Noted {
        let entries: Vec<(Key, Entry)> = ranges
            .iter()
            .zip(0..)
            .map(|((low, high), number)| {
                let slots = vec![Slot { kind: SlotKind::Chunk, number }];
                (
                    Key::from(low.as_bytes()),
                    Entry { high: high.map(|high| high.as_bytes().into()), stamp: 1, slots, summary: Summary::empty() },
                )
            })
            .collect();
        let head = Head { stamp: 9, first_group: 9, ..Head::default() };
        let slots = vec![Slot { kind: SlotKind::Manifest, number: 0 }];
        Noted { head, body: Some(Manifest::default().write(&entries).into()), slots, complete: true }
    }

    /// Changes to that base that change nothing, with a number.
    fn changes_of(number: u64) -> Noted {
        let head = Head { stamp: 9 + number, first_group: 9, last_group: number, ..Head::default() };
        let slots = vec![Slot { kind: SlotKind::Manifest, number: u32::try_from(number).unwrap() }];
        Noted { head, body: Some(Bytes::new()), slots, complete: true }
    }

    /// What only the missing one says of a chunk is nowhere else.
    #[test]
    fn changes_of_which_one_is_missing_are_not_believed() {
        let is_believed = |numbers: &[u64]| {
            let objects = [base_of(&[("", None)])].into_iter().chain(numbers.iter().map(|number| changes_of(*number))).collect();
            Manifest::read(objects, false).0.is_valid()
        };
        assert!(is_believed(&[1, 2, 3]));
        assert!(!is_believed(&[1, 3]), "the second");
        assert!(!is_believed(&[2, 3]), "the first");
    }

    /// A part that cannot even be told from others may be of an object that counts.
    #[test]
    fn a_manifest_with_a_part_that_is_damaged_is_not_believed() {
        let is_believed = |damaged| Manifest::read(vec![base_of(&[("", None)])], damaged).0.is_valid();
        assert!(is_believed(false));
        assert!(!is_believed(true));
    }

    #[test]
    fn ranges_that_leave_a_key_out_are_not_believed() {
        let is_believed = |ranges: &[(&str, Option<&str>)]| Manifest::read(vec![base_of(ranges)], false).0.is_valid();
        assert!(is_believed(&[("", Some("e")), ("e", None)]));
        assert!(!is_believed(&[("", Some("e")), ("f", None)]), "a gap");
        assert!(!is_believed(&[("a", Some("e")), ("e", None)]), "the beginning is missing");
        assert!(!is_believed(&[("", Some("e")), ("e", Some("f"))]), "the end is missing");
        assert!(!is_believed(&[]), "nothing");
    }
}
