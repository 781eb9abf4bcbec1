//! Objects: the content of slots (docs/develop/store.md, "Objects"). A chunk, the checkpoint and
//! each part of the manifest is one object, in one slot or several.
//!
//! The head has a checksum of its own, so it can be read even if the body is damaged. `packing`
//! encodes the bodies of chunks.

use crate::store::encoding::checksum::{ByteReader, CHECKSUM_LENGTH, DecodeError, append_checksum, put_text, put_varint, verify_checksum};
use crate::store::engine::slots::{Slot, SlotStorage, VALUE_BYTES_MAX};
use crate::store::error::EngineError;

/// Format version of all objects.
const FORMAT_VERSION: u8 = 2;

/// Maximum length of the checksums, the head's length and the head's numbers, in bytes. Rounded up.
const ENVELOPE_BYTES_MAX: usize = 128;

/// Value of an unused field of the head.
const UNUSED: u64 = 0;

/// Maximum number of parts: 40,000 slots are 5 GB.
const PARTS_MAX: u64 = 40_000;

/// Head of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::store) struct ObjectHead {
    /// Number of the write. Of two objects, the one with the higher stamp is newer.
    pub(in crate::store) stamp: u64,
    /// First group in the object. For a chunk, the same as `last_group`. For a part of the
    /// manifest, the stamp of its base.
    pub(in crate::store) first_group: u64,
    /// Last group in the object. A chunk contains all groups up to it, as far as they are in its
    /// range. For a part of the manifest, the number of the changes; 0 for the base.
    pub(in crate::store) last_group: u64,
    /// Number of keys.
    pub(in crate::store) count: u64,
    /// Length of keys and values before compression, in bytes.
    pub(in crate::store) raw_bytes: u64,
    /// First key of a chunk's range.
    pub(in crate::store) low: Vec<u8>,
    /// End of a chunk's range; `None` for the last one.
    pub(in crate::store) high: Option<Vec<u8>>,
}

/// Content of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct ObjectPart {
    /// Head of the object, the same in all parts.
    pub(in crate::store) head: ObjectHead,
    /// Index of the part.
    pub(in crate::store) number: u64,
    /// Number of parts.
    pub(in crate::store) count: u64,
    /// Part of the body; `None` if it is damaged.
    pub(in crate::store) body: Option<Vec<u8>>,
}

/// Returns the maximum length of the body in one part.
fn part_bytes_max(head: &ObjectHead) -> usize {
    let head_bytes = ENVELOPE_BYTES_MAX + head.low.len() + head.high.as_ref().map_or(0, Vec::len);
    VALUE_BYTES_MAX.saturating_sub(head_bytes).max(1)
}

/// Returns the number of slots that an object needs.
pub(in crate::store) fn part_count(head: &ObjectHead, body: &[u8]) -> usize {
    body.len().div_ceil(part_bytes_max(head)).max(1)
}

/// Encodes the values of an object's slots. There must be [`part_count`] slots.
pub(super) fn encode_parts(head: &ObjectHead, body: &[u8], slots: &[Slot]) -> Vec<Vec<u8>> {
    debug_assert_eq!(slots.len(), part_count(head, body), "each part has a slot");
    let length_max = part_bytes_max(head);
    let part_body = |number: usize| &body[(number * length_max).min(body.len())..((number + 1) * length_max).min(body.len())];
    slots.iter().enumerate().map(|(number, slot)| encode_part(head, number, slots.len(), part_body(number), *slot)).collect()
}

fn encode_part(head: &ObjectHead, number: usize, count: usize, body: &[u8], slot: Slot) -> Vec<u8> {
    let name = slot.to_string();
    let mut out = vec![FORMAT_VERSION];
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
    put_text(&mut value, &append_checksum(name.as_bytes(), out));
    value.extend_from_slice(body);
    append_checksum(name.as_bytes(), value)
}

/// Decodes the value of a slot. Fails if the head cannot be read.
pub(in crate::store) fn decode_part(slot: Slot, mut value: Vec<u8>) -> Result<ObjectPart, DecodeError> {
    let name = slot.to_string();
    let mut outer = ByteReader::new(&value);
    let checked_head = outer.bytes()?;
    let (head, number, count) = decode_head(verify_checksum(name.as_bytes(), checked_head)?)?;
    let start = value.len() - outer.rest().len();
    let end = value.len().saturating_sub(CHECKSUM_LENGTH);
    let whole = start <= end && verify_checksum(name.as_bytes(), &value).is_ok();
    let body = whole.then(|| {
        // moved inside the buffer, because a start reads tens of megabytes
        value.truncate(end);
        value.drain(..start);
        value
    });
    Ok(ObjectPart { head, number, count, body })
}

/// Reads the object in these slots. Fails unless the object is complete and `is_expected` accepts
/// its head.
pub(in crate::store) fn read<S: SlotStorage>(
    engine: &S,
    slots: &[Slot],
    is_expected: impl Fn(&ObjectHead) -> bool,
) -> Result<(ObjectHead, Vec<u8>), EngineError> {
    let (mut head, mut whole) = (ObjectHead::default(), Vec::new());
    for (number, slot) in slots.iter().enumerate() {
        let part = decode_part(*slot, engine.get(*slot)?.unwrap_or_default()).map_err(|error| damaged(slots, &error))?;
        let follows = number == 0 || part.head.stamp == head.stamp;
        let is_next = (part.number, part.count) == (number as u64, slots.len() as u64);
        let body = part.body.filter(|_| follows && is_next && is_expected(&part.head));
        let body = body.ok_or_else(|| damaged(slots, &"unexpected content"))?;
        if whole.is_empty() {
            whole = body
        } else {
            whole.extend_from_slice(&body)
        }
        head = part.head;
    }
    Ok((head, whole))
}

/// Returns an error with the names of the slots.
pub(in crate::store) fn damaged(slots: &[Slot], reason: &dyn std::fmt::Display) -> EngineError {
    let names: Vec<String> = slots.iter().map(ToString::to_string).collect();
    EngineError::Damaged(format!("slot {}: {reason}", names.join(", ")))
}

fn decode_head(bytes: &[u8]) -> Result<(ObjectHead, u64, u64), DecodeError> {
    let mut reader = ByteReader::with_version(bytes, FORMAT_VERSION)?;
    let stamp = reader.varint()?;
    let (number, count) = (reader.varint()?, reader.varint()?);
    if number >= count || count > PARTS_MAX {
        return Err(DecodeError::Field("parts"));
    }
    let (first_group, last_group, _unused) = (reader.varint()?, reader.varint()?, reader.varint()?);
    let mut head = ObjectHead {
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
