//! What a chunk's body holds: all keys of a range with their values, packed.
//!
//! Owns: how many keys a chunk has, and the two sorts of bodies. Entries: chunks of [`crate::pack`], as a rule one, each compressed, as `bytes`.
//! Everything else, which is little and small: `pairs`. Nothing at all has an empty body. Deliberately lacks: where bodies are
//! stored (`object`, `chunk_store`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::pending::Pending;
use super::summary::Summary;
use crate::model::{EntryKey, Record};
use crate::pack::{self, Chunk, common_length};
use crate::store::encoding::bytes::{Malformed, Reader, put_text};
use crate::store::encoding::change::{Key, Value};
use crate::store::encoding::codec;
use crate::store::encoding::pairs::{PairsWriter, compress, decompress, read_pairs};

/// A chunk of small things has at most so many keys: tombstones, which can be a million, are some 45 bytes each and compress to a third.
const ITEM_COUNT_MAX: usize = 4_096;

/// The most bytes of keys and values of such a chunk, so that it stays in one slot when compressed to a third.
const ITEM_RAW_BYTES_MAX: u64 = 384 << 10;

/// A chunk of fewer keys is joined with its neighbour, a quarter of what [`crate::pack`] aims at,
pub(in crate::store) const COUNT_MIN: u64 = 256;

/// unless they and their values are longer than this before compression: 1,024 packed entries are some 40 kB, in bytes.
pub(in crate::store) const RAW_BYTES_MIN: u64 = 32 << 10;

/// Where one chunk ends and the next begins is told by as much of a key as it takes; if that is more than this, they are kept as one, so
/// that the heads of objects stay small, in bytes.
const SEPARATOR_BYTES_MAX: usize = 8 << 10;

/// The ranges that a new store begins with, by where they begin: what sorts below entries, the entries, and what sorts above. No chunk
/// ever spans two of them.
pub(in crate::store) const RANGES: [&[u8]; 3] = [b"", &[codec::ENTRY], &[codec::ENTRY + 1]];

/// Keys and values in a range, in key order.
#[derive(Debug)]
pub(in crate::store) enum Content {
    /// Entries, as they are packed, and what changed since.
    Entries {
        /// In key order.
        chunks: Vec<Chunk>,
        /// Each counts more than those before it.
        newer: Vec<Chunk>,
        /// Counts more than all of them; `None` is gone.
        changed: BTreeMap<EntryKey, Option<Arc<Record>>>,
    },
    /// Anything else.
    Items(BTreeMap<Key, Arc<[u8]>>),
}

/// What a chunk holds, packed: one object to be written.
#[derive(Debug)]
pub(in crate::store) struct Packed {
    /// The lowest of the keys; empty if there is none.
    pub(in crate::store) lowest: Vec<u8>,
    /// The highest of them.
    pub(in crate::store) highest: Vec<u8>,
    /// How many there are.
    pub(in crate::store) count: u64,
    /// The length of keys and values, packed where they are entries, before compression, in bytes.
    pub(in crate::store) raw_bytes: u64,
    /// The body to store.
    pub(in crate::store) body: Vec<u8>,
    /// What is in it, in short.
    pub(in crate::store) summary: Summary,
}

/// Which of [`RANGES`] a key is in.
pub(in crate::store) fn family(key: &[u8]) -> usize {
    RANGES.iter().rposition(|low| *low <= key).unwrap_or_default()
}

pub(in crate::store) fn holds_entries(low: &[u8]) -> bool {
    low.first() == Some(&codec::ENTRY)
}

/// Reads a changed value of the log back.
pub(in crate::store) fn read_value(key: &[u8], body: &[u8]) -> Result<Value, Malformed> {
    if !holds_entries(key) {
        return Ok(Value::Item(body.into()));
    }
    codec::read_record(entry_key(key)?, body).map(|record| Value::Record(Arc::new(record)))
}

fn entry_key(key: &[u8]) -> Result<EntryKey, Malformed> {
    codec::entry_of(key).ok_or(Malformed::Field("key"))
}

/// The body of a range that holds nothing.
pub(in crate::store) fn empty() -> Vec<Packed> {
    vec![Packed { lowest: Vec::new(), highest: Vec::new(), count: 0, raw_bytes: 0, body: Vec::new(), summary: Summary::empty() }]
}

impl Content {
    /// Entries, as they are packed.
    pub(in crate::store) const fn entries(chunks: Vec<Chunk>) -> Self {
        Self::Entries { chunks, newer: Vec::new(), changed: BTreeMap::new() }
    }

    /// Reads the body of a range that begins at `low`.
    pub(in crate::store) fn read(low: &[u8], body: &[u8]) -> Result<Self, Malformed> {
        if holds_entries(low) {
            return Ok(Self::entries(read_chunks(body)?));
        }
        if body.is_empty() {
            return Ok(Self::Items(BTreeMap::new()));
        }
        let pairs = read_pairs(body)?;
        let items = pairs.iter().map(|(key, value)| Ok((key.into(), value.ok_or(Malformed::Field("value"))?.into())));
        items.collect::<Result<_, _>>().map(Self::Items)
    }

    /// How many keys there are, about.
    pub(in crate::store) fn len(&self) -> usize {
        match self {
            Self::Entries { chunks, newer, changed } => chunks.iter().chain(newer).map(Chunk::len).sum::<usize>() + changed.len(),
            Self::Items(items) => items.len(),
        }
    }

    /// Adds what changed.
    pub(in crate::store) fn apply(&mut self, pending: Pending) -> Result<(), Malformed> {
        let (packed, changes) = pending.into_parts();
        match self {
            Self::Entries { newer, .. } => newer.extend(packed),
            Self::Items(_) if packed.is_empty() => {}
            Self::Items(_) => return Err(Malformed::Field("value")),
        }
        for (key, value) in changes {
            match (&mut *self, value) {
                (Self::Items(items), Some(Value::Item(body))) => drop(items.insert(key, body)),
                (Self::Items(items), None) => drop(items.remove(&key)),
                (Self::Entries { changed, .. }, Some(Value::Record(record))) => drop(changed.insert(record.key.clone(), Some(record))),
                (Self::Entries { changed, .. }, None) => drop(changed.insert(entry_key(&key)?, None)),
                (Self::Items(_), Some(Value::Record(_))) | (Self::Entries { .. }, Some(Value::Item(_))) => {
                    return Err(Malformed::Field("value"));
                }
            }
        }
        Ok(())
    }

    /// Adds the content of the range that follows.
    pub(in crate::store) fn append(&mut self, above: Self) {
        match (self, above) {
            (Self::Entries { chunks, newer, changed }, Self::Entries { chunks: more, newer: newer_more, changed: mut changed_more }) => {
                chunks.extend(more);
                newer.extend(newer_more);
                changed.append(&mut changed_more);
            }
            (Self::Items(items), Self::Items(mut more)) => items.append(&mut more),
            (Self::Entries { .. }, Self::Items(_)) | (Self::Items(_), Self::Entries { .. }) => {
                debug_assert!(false, "no range spans entries and other things");
            }
        }
    }

    /// Keeps only some keys.
    pub(in crate::store) fn retain(&mut self, keep: impl Fn(&[u8]) -> bool) {
        match self {
            Self::Entries { chunks, newer, changed } => {
                let keys = chunks.iter().chain(newer.iter()).flat_map(|chunk| (0..chunk.len()).map(|row| chunk.key(row)));
                let dropped = keys.filter(|key| !keep(&codec::entry_key(key)));
                changed.extend(dropped.map(|key| (key, None)));
            }
            Self::Items(items) => items.retain(|key, _| keep(key)),
        }
    }

    /// Packs it, in at least one piece.
    pub(in crate::store) fn pack(&self) -> Vec<Packed> {
        let pieces = match self {
            Self::Entries { chunks, newer, changed } => pack_chunks(&pack::fold(chunks, newer, changed)),
            Self::Items(items) => pack_items(items),
        };
        if pieces.is_empty() { empty() } else { pieces }
    }
}

/// The chunks in a body.
pub(in crate::store) fn read_chunks(body: &[u8]) -> Result<Vec<Chunk>, Malformed> {
    let mut reader = Reader::over(body);
    let mut chunks = Vec::new();
    while !reader.is_empty() {
        let bytes = decompress(reader.bytes()?)?;
        chunks.push(Chunk::from_stored(bytes).map_err(|_| Malformed::Field("chunk"))?);
    }
    Ok(chunks)
}

/// The summary of the body of a range that begins at `low`.
pub(in crate::store) fn summary_of(low: &[u8], body: &[u8]) -> Summary {
    if !holds_entries(low) {
        return Summary::empty();
    }
    read_chunks(body).map_or_else(|_| Summary::unknown(), |chunks| Summary::of(&chunks))
}

fn pack_chunks(chunks: &[Chunk]) -> Vec<Packed> {
    let (mut pieces, mut first): (Vec<Packed>, usize) = (Vec::new(), 0);
    for (at, chunk) in chunks.iter().enumerate() {
        let mut body = Vec::new();
        put_text(&mut body, &compress(chunk.stored()));
        let piece = Packed {
            lowest: codec::entry_key(&chunk.first_key()),
            highest: codec::entry_key(&chunk.last_key()),
            count: chunk.len() as u64,
            raw_bytes: chunk.stored().len() as u64,
            body,
            summary: Summary::of(std::slice::from_ref(chunk)),
        };
        match pieces.last_mut() {
            Some(before) if common_length(&before.highest, &piece.lowest) > SEPARATOR_BYTES_MAX => {
                before.summary = Summary::of(&chunks[first..=at]);
                before.highest = piece.highest;
                before.count += piece.count;
                before.raw_bytes += piece.raw_bytes;
                before.body.extend_from_slice(&piece.body);
            }
            Some(_) | None => {
                first = at;
                pieces.push(piece);
            }
        }
    }
    pieces
}

fn pack_items(items: &BTreeMap<Key, Arc<[u8]>>) -> Vec<Packed> {
    let (mut pieces, mut piece) = (Vec::new(), ItemsWriter::default());
    for (key, body) in items {
        let length = (key.len() + body.len()) as u64;
        if piece.count >= ITEM_COUNT_MAX || (piece.count > 0 && piece.raw_bytes + length > ITEM_RAW_BYTES_MAX) {
            pieces.push(std::mem::take(&mut piece).finish());
        }
        piece.writer.add(key, Some(body));
        piece.lowest.get_or_insert_with(|| key.to_vec());
        piece.highest = key.to_vec();
        piece.count += 1;
        piece.raw_bytes += length;
    }
    if piece.count > 0 {
        pieces.push(piece.finish());
    }
    pieces
}

#[derive(Default)]
struct ItemsWriter {
    writer: PairsWriter,
    lowest: Option<Vec<u8>>,
    highest: Vec<u8>,
    count: usize,
    raw_bytes: u64,
}

impl ItemsWriter {
    fn finish(self) -> Packed {
        let (lowest, count) = (self.lowest.unwrap_or_default(), self.count as u64);
        Packed { lowest, highest: self.highest, count, raw_bytes: self.raw_bytes, body: self.writer.finish(), summary: Summary::empty() }
    }
}

/// Where the ranges of pieces begin: the first where the whole begins, the others at the shortest key above the piece before.
pub(in crate::store) fn separators(low: &Key, packed: &[Packed]) -> Vec<Key> {
    let between = |pair: &[Packed]| {
        let above = &pair[1].lowest;
        Key::from(&above[..=common_length(&pair[0].highest, above).min(above.len() - 1)])
    };
    std::iter::once(low.clone()).chain(packed.windows(2).map(between)).collect()
}
