//! The bodies of chunks: all keys of a range with their values.
//!
//! A body of entries consists of packed chunks of [`crate::pack`], usually one, each compressed. A
//! body of other keys is a block. A range without keys has an empty body.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::pending::PendingChanges;
use super::summary::ChunkSummary;
use crate::model::{EntryKey, Record};
use crate::pack::{self, Chunk, common_prefix_length};
use crate::store::encoding::block::{BlockWriter, compress, decode_block, decompress};
use crate::store::encoding::checksum::{ByteReader, DecodeError, put_text};
use crate::store::encoding::codec;
use crate::store::encoding::stored_value::{KeyBytes, StoredValue};

/// Maximum number of keys in a chunk without entries. There may be a million tombstones of about 45
/// bytes, which compress to a third.
const ITEM_COUNT_MAX: usize = 4_096;

/// Maximum bytes of keys and values in a chunk without entries. The chunk fits in one slot if it
/// compresses to a third.
const ITEM_RAW_BYTES_MAX: u64 = 384 << 10;

/// Number of keys below which a chunk is joined with its neighbour: a quarter of the number that
/// [`crate::pack`] aims at.
pub(in crate::store) const KEYS_MIN: u64 = 256;

/// Bytes before compression above which a chunk is not joined, even if it has fewer than
/// [`KEYS_MIN`] keys. 1,024 packed entries are about 40 kB.
pub(in crate::store) const RAW_BYTES_MIN: u64 = 32 << 10;

/// Maximum length of the key that separates two chunks, in bytes. If the shortest possible
/// separator is longer, the chunks are stored as one, so that the heads of objects stay small.
const SEPARATOR_BYTES_MAX: usize = 8 << 10;

/// Lower bounds of the ranges of a new store: keys below the entries, the entries, and keys above
/// the entries. No chunk covers more than one of these ranges.
pub(in crate::store) const RANGES: [&[u8]; 3] = [b"", &[codec::ENTRY_TAG], &[codec::ENTRY_TAG + 1]];

/// Keys and values of a range.
#[derive(Debug)]
pub(in crate::store) enum RangeContent {
    /// Packed entries and newer changes.
    Entries {
        /// Sorted by key.
        chunks: Vec<Chunk>,
        /// Newer entries. Each chunk overrides the previous ones.
        newer: Vec<Chunk>,
        /// Newest changes; `None` deletes.
        changed: BTreeMap<EntryKey, Option<Arc<Record>>>,
    },
    /// Other keys.
    Items(BTreeMap<KeyBytes, Arc<[u8]>>),
}

/// A chunk that is ready to be written.
#[derive(Debug)]
pub(in crate::store) struct PackedChunk {
    /// First key; empty if there is none.
    pub(in crate::store) lowest: Vec<u8>,
    /// Last key.
    pub(in crate::store) highest: Vec<u8>,
    /// Number of keys.
    pub(in crate::store) count: u64,
    /// Length of keys and values, or of packed entries, before compression, in bytes.
    pub(in crate::store) raw_bytes: u64,
    pub(in crate::store) body: Vec<u8>,
    pub(in crate::store) summary: ChunkSummary,
}

/// Returns the index in [`RANGES`] of the range that contains a key.
pub(in crate::store) fn range_index(key: &[u8]) -> usize {
    RANGES.iter().rposition(|low| *low <= key).unwrap_or_default()
}

pub(in crate::store) fn contains_entries(low: &[u8]) -> bool {
    low.first() == Some(&codec::ENTRY_TAG)
}

/// Decodes a value from the log.
pub(in crate::store) fn decode_value(key: &[u8], body: &[u8]) -> Result<StoredValue, DecodeError> {
    if !contains_entries(key) {
        return Ok(StoredValue::Item(body.into()));
    }
    codec::decode_record(entry_key(key)?, body).map(|record| StoredValue::Record(Arc::new(record)))
}

fn entry_key(key: &[u8]) -> Result<EntryKey, DecodeError> {
    codec::decode_entry_key(key).ok_or(DecodeError::Field("key"))
}

/// Returns the only chunk of a range without keys.
pub(in crate::store) fn empty_chunks() -> Vec<PackedChunk> {
    vec![PackedChunk { lowest: Vec::new(), highest: Vec::new(), count: 0, raw_bytes: 0, body: Vec::new(), summary: ChunkSummary::empty() }]
}

impl RangeContent {
    /// Returns the content of packed chunks without changes.
    pub(in crate::store) const fn entries(chunks: Vec<Chunk>) -> Self {
        Self::Entries { chunks, newer: Vec::new(), changed: BTreeMap::new() }
    }

    /// Decodes the body of a range that begins at `low`.
    pub(in crate::store) fn decode(low: &[u8], body: &[u8]) -> Result<Self, DecodeError> {
        if contains_entries(low) {
            return Ok(Self::entries(decode_chunks(body)?));
        }
        if body.is_empty() {
            return Ok(Self::Items(BTreeMap::new()));
        }
        let pairs = decode_block(body)?;
        let items = pairs.iter().map(|(key, value)| Ok((key.into(), value.ok_or(DecodeError::Field("value"))?.into())));
        items.collect::<Result<_, _>>().map(Self::Items)
    }

    /// Returns the number of keys. Too high if several changes have the same key.
    pub(in crate::store) fn len(&self) -> usize {
        match self {
            Self::Entries { chunks, newer, changed } => chunks.iter().chain(newer).map(Chunk::len).sum::<usize>() + changed.len(),
            Self::Items(items) => items.len(),
        }
    }

    /// Applies newer changes.
    pub(in crate::store) fn apply(&mut self, pending: PendingChanges) -> Result<(), DecodeError> {
        let (packed, changes) = pending.into_parts();
        match self {
            Self::Entries { newer, .. } => newer.extend(packed),
            Self::Items(_) if packed.is_empty() => {}
            Self::Items(_) => return Err(DecodeError::Field("value")),
        }
        for (key, value) in changes {
            match (&mut *self, value) {
                (Self::Items(items), Some(StoredValue::Item(body))) => drop(items.insert(key, body)),
                (Self::Items(items), None) => drop(items.remove(&key)),
                (Self::Entries { changed, .. }, Some(StoredValue::Record(record))) => {
                    drop(changed.insert(record.key.clone(), Some(record)))
                }
                (Self::Entries { changed, .. }, None) => drop(changed.insert(entry_key(&key)?, None)),
                (Self::Items(_), Some(StoredValue::Record(_)))
                | (Self::Entries { .. }, Some(StoredValue::Item(_)))
                | (_, Some(StoredValue::Replaced(_))) => {
                    return Err(DecodeError::Field("value"));
                }
            }
        }
        Ok(())
    }

    /// Appends the content of the next range.
    pub(in crate::store) fn append(&mut self, next: Self) {
        match (self, next) {
            (
                Self::Entries { chunks, newer, changed },
                Self::Entries { chunks: next_chunks, newer: next_newer, changed: mut next_changed },
            ) => {
                chunks.extend(next_chunks);
                newer.extend(next_newer);
                changed.append(&mut next_changed);
            }
            (Self::Items(items), Self::Items(mut next_items)) => items.append(&mut next_items),
            (Self::Entries { .. }, Self::Items(_)) | (Self::Items(_), Self::Entries { .. }) => {
                debug_assert!(false, "a range must have entries or items, not both");
            }
        }
    }

    /// Removes the keys for which `keep` is false.
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

    /// Packs the content into at least one chunk.
    pub(in crate::store) fn pack(&self) -> Vec<PackedChunk> {
        let packed = match self {
            Self::Entries { chunks, newer, changed } => pack_chunks(&pack::fold(chunks, newer, changed)),
            Self::Items(items) => pack_items(items),
        };
        if packed.is_empty() { empty_chunks() } else { packed }
    }
}

/// Decodes the packed chunks in a body.
pub(in crate::store) fn decode_chunks(body: &[u8]) -> Result<Vec<Chunk>, DecodeError> {
    let mut reader = ByteReader::new(body);
    let mut chunks = Vec::new();
    while !reader.is_empty() {
        let bytes = decompress(reader.bytes()?)?;
        chunks.push(Chunk::from_stored(bytes).map_err(|_| DecodeError::Field("chunk"))?);
    }
    Ok(chunks)
}

/// Returns the summary of the body of a range that begins at `low`.
pub(in crate::store) fn summarize(low: &[u8], body: &[u8]) -> ChunkSummary {
    if !contains_entries(low) {
        return ChunkSummary::empty();
    }
    decode_chunks(body).map_or_else(|_| ChunkSummary::unknown(), |chunks| ChunkSummary::from_chunks(&chunks))
}

fn pack_chunks(chunks: &[Chunk]) -> Vec<PackedChunk> {
    let (mut packed, mut first): (Vec<PackedChunk>, usize) = (Vec::new(), 0);
    for (index, chunk) in chunks.iter().enumerate() {
        let mut body = Vec::new();
        put_text(&mut body, &compress(chunk.stored()));
        let packed_chunk = PackedChunk {
            lowest: codec::entry_key(&chunk.first_key()),
            highest: codec::entry_key(&chunk.last_key()),
            count: chunk.len() as u64,
            raw_bytes: chunk.stored().len() as u64,
            body,
            summary: ChunkSummary::from_chunks(std::slice::from_ref(chunk)),
        };
        match packed.last_mut() {
            Some(before) if common_prefix_length(&before.highest, &packed_chunk.lowest) > SEPARATOR_BYTES_MAX => {
                before.summary = ChunkSummary::from_chunks(&chunks[first..=index]);
                before.highest = packed_chunk.highest;
                before.count += packed_chunk.count;
                before.raw_bytes += packed_chunk.raw_bytes;
                before.body.extend_from_slice(&packed_chunk.body);
            }
            Some(_) | None => {
                first = index;
                packed.push(packed_chunk);
            }
        }
    }
    packed
}

fn pack_items(items: &BTreeMap<KeyBytes, Arc<[u8]>>) -> Vec<PackedChunk> {
    let (mut packed, mut items_writer) = (Vec::new(), ItemsWriter::default());
    for (key, body) in items {
        let length = (key.len() + body.len()) as u64;
        if items_writer.count >= ITEM_COUNT_MAX || (items_writer.count > 0 && items_writer.raw_bytes + length > ITEM_RAW_BYTES_MAX) {
            packed.push(std::mem::take(&mut items_writer).finish());
        }
        items_writer.writer.add(key, Some(body));
        items_writer.lowest.get_or_insert_with(|| key.to_vec());
        items_writer.highest = key.to_vec();
        items_writer.count += 1;
        items_writer.raw_bytes += length;
    }
    if items_writer.count > 0 {
        packed.push(items_writer.finish());
    }
    packed
}

#[derive(Default)]
struct ItemsWriter {
    writer: BlockWriter,
    lowest: Option<Vec<u8>>,
    highest: Vec<u8>,
    count: usize,
    raw_bytes: u64,
}

impl ItemsWriter {
    fn finish(self) -> PackedChunk {
        let (lowest, count) = (self.lowest.unwrap_or_default(), self.count as u64);
        PackedChunk {
            lowest,
            highest: self.highest,
            count,
            raw_bytes: self.raw_bytes,
            body: self.writer.finish(),
            summary: ChunkSummary::empty(),
        }
    }
}

/// Returns the lower bounds of packed chunks: `low` for the first one, and for each further chunk
/// the shortest prefix of its first key that is above the last key of the chunk before it.
pub(in crate::store) fn separators(low: &KeyBytes, packed: &[PackedChunk]) -> Vec<KeyBytes> {
    let between = |pair: &[PackedChunk]| {
        let above = &pair[1].lowest;
        KeyBytes::from(&above[..=common_prefix_length(&pair[0].highest, above).min(above.len() - 1)])
    };
    std::iter::once(low.clone()).chain(packed.windows(2).map(between)).collect()
}
