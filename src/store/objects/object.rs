//! Objects: what slots hold, as docs/develop/store.md has them byte by byte ("Objects"). A chunk, the mark or a part of the manifest is one object,
//! in as many slots as its length takes.
//!
//! Owns: the bytes around an object's body, among them two checksums, so that what it is about is known even if the body is damaged.
//! Deliberately lacks: the bodies (`pairs`, `packing`), and which object counts (`slot_scan`).

use crate::store::encoding::bytes::{CHECKSUM_LENGTH, Malformed, Reader, put_text, put_varint, seal, unseal};
use crate::store::engine::slots::{Slot, Slots, VALUE_BYTES_MAX};
use crate::store::error::EngineError;

/// The form of everything in a slot.
const FORM: u8 = 2;

/// The bytes of the checksum at the end and, generously, of the head's length and its numbers.
const ENVELOPE_BYTES_MAX: usize = 128;

/// A field of the head that has no meaning any more.
const UNUSED: u64 = 0;

/// An object with more parts was never written: 40,000 slots are 5 GB.
const PARTS_MAX: u64 = 40_000;

/// What an object is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::store) struct Head {
    /// Its number: of two objects the one with the higher stamp was written later.
    pub(in crate::store) stamp: u64,
    /// The first group that is in it. For a chunk the same as `last_group`.
    pub(in crate::store) first_group: u64,
    /// The last group that is in it. Of a chunk: all groups up to this one are in it, as far as they touch its range.
    pub(in crate::store) last_group: u64,
    /// How many keys it has.
    pub(in crate::store) count: u64,
    /// The length of its keys and values before they were packed, in bytes.
    pub(in crate::store) raw_bytes: u64,
    /// Of a chunk: where its range of keys begins.
    pub(in crate::store) low: Vec<u8>,
    /// Of a chunk: where its range ends, before this key; `None` is the end of all keys.
    pub(in crate::store) high: Option<Vec<u8>>,
}

/// One slot's share of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct Part {
    /// What the object is about.
    pub(in crate::store) head: Head,
    /// Which part this is, counting from 0.
    pub(in crate::store) number: u64,
    /// How many there are.
    pub(in crate::store) count: u64,
    /// Its share of the body; `None` where it is damaged.
    pub(in crate::store) body: Option<Vec<u8>>,
}

/// How long the body in one part may be.
fn part_bytes_max(head: &Head) -> usize {
    let head_bytes = ENVELOPE_BYTES_MAX + head.low.len() + head.high.as_ref().map_or(0, Vec::len);
    VALUE_BYTES_MAX.saturating_sub(head_bytes).max(1)
}

/// How many slots an object takes.
pub(in crate::store) fn part_count(head: &Head, body: &[u8]) -> usize {
    body.len().div_ceil(part_bytes_max(head)).max(1)
}

/// The values of an object's slots, of which there must be [`part_count`].
pub(super) fn write_parts(head: &Head, body: &[u8], slots: &[Slot]) -> Vec<Vec<u8>> {
    debug_assert_eq!(slots.len(), part_count(head, body), "each part has a slot");
    let length_max = part_bytes_max(head);
    let share = |number: usize| &body[(number * length_max).min(body.len())..((number + 1) * length_max).min(body.len())];
    slots.iter().enumerate().map(|(number, slot)| write_part(head, number, slots.len(), share(number), *slot)).collect()
}

fn write_part(head: &Head, number: usize, count: usize, body: &[u8], slot: Slot) -> Vec<u8> {
    let name = slot.to_string();
    let mut out = vec![FORM];
    put_varint(&mut out, head.stamp);
    put_varint(&mut out, number as u64);
    put_varint(&mut out, count as u64);
    put_varint(&mut out, head.first_group);
    put_varint(&mut out, head.last_group);
    put_varint(&mut out, UNUSED);
    put_varint(&mut out, head.count);
    put_varint(&mut out, head.raw_bytes);
    put_text(&mut out, &head.low);
    out.push(u8::from(head.high.is_some()));
    if let Some(high) = &head.high {
        put_text(&mut out, high);
    }
    let mut value = Vec::new();
    put_text(&mut value, &seal(name.as_bytes(), out));
    value.extend_from_slice(body);
    seal(name.as_bytes(), value)
}

/// Reads a slot's value. An error where not even its head can be read.
pub(in crate::store) fn read_part(slot: Slot, mut value: Vec<u8>) -> Result<Part, Malformed> {
    let name = slot.to_string();
    let mut outer = Reader::over(&value);
    let sealed_head = outer.bytes()?;
    let (head, number, count) = read_head(unseal(name.as_bytes(), sealed_head)?)?;
    let start = value.len() - outer.rest().len();
    let end = value.len().saturating_sub(CHECKSUM_LENGTH);
    let whole = start <= end && unseal(name.as_bytes(), &value).is_ok();
    let body = whole.then(|| {
        // moved within what was read: a start reads tens of megabytes
        value.truncate(end);
        value.drain(..start);
        value
    });
    Ok(Part { head, number, count, body })
}

/// Reads the object that is in some slots, if it is whole and the one that is meant.
pub(in crate::store) fn read<S: Slots>(
    engine: &S,
    slots: &[Slot],
    is_meant: impl Fn(&Head) -> bool,
) -> Result<(Head, Vec<u8>), EngineError> {
    let (mut head, mut whole) = (Head::default(), Vec::new());
    for (number, slot) in slots.iter().enumerate() {
        let part = read_part(*slot, engine.get(*slot)?.unwrap_or_default()).map_err(|error| damaged(slots, &error))?;
        let follows = number == 0 || part.head.stamp == head.stamp;
        let is_next = (part.number, part.count) == (number as u64, slots.len() as u64);
        let share = part.body.filter(|_| follows && is_next && is_meant(&part.head));
        let share = share.ok_or_else(|| damaged(slots, &"not what was written"))?;
        if whole.is_empty() {
            whole = share
        } else {
            whole.extend_from_slice(&share)
        }
        head = part.head;
    }
    Ok((head, whole))
}

/// What is in slots cannot be read.
pub(in crate::store) fn damaged(slots: &[Slot], reason: &dyn std::fmt::Display) -> EngineError {
    let names: Vec<String> = slots.iter().map(ToString::to_string).collect();
    EngineError::Damaged(format!("slot {}: {reason}", names.join(", ")))
}

fn read_head(bytes: &[u8]) -> Result<(Head, u64, u64), Malformed> {
    let mut reader = Reader::body(bytes, FORM)?;
    let stamp = reader.varint()?;
    let (number, count) = (reader.varint()?, reader.varint()?);
    if number >= count || count > PARTS_MAX {
        return Err(Malformed::Field("parts"));
    }
    let (first_group, last_group, _unused) = (reader.varint()?, reader.varint()?, reader.varint()?);
    let mut head = Head {
        stamp,
        first_group,
        last_group,
        count: reader.varint()?,
        raw_bytes: reader.varint()?,
        low: reader.bytes()?.to_vec(),
        high: None,
    };
    if reader.flags(1)? == 1 {
        head.high = Some(reader.bytes()?.to_vec());
    }
    reader.finish()?;
    Ok((head, number, count))
}
