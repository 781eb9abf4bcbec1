//! Blocks of keys and values, sorted by key. Each key omits the prefix that it shares with the
//! previous one, and the whole block is compressed.
//!
//! The log consists of blocks, and so do chunks without entries. docs/develop/store.md ("Objects")
//! describes the encoding.

use std::cell::RefCell;
use std::ops::Range;

use zstd::bulk::{Compressor, Decompressor};

use super::checksum::{ByteReader, DecodeError, put_text, put_varint};
use super::codec::is_log_only;
use crate::pack::common_prefix_length;

/// zstd's fastest ordinary level (docs/develop/measurements.md §1.1).
const COMPRESSION_LEVEL: i32 = 1;

/// Maximum length of an uncompressed block, in bytes. A million keys that wait while the disk is
/// full use about 300 MB.
const RAW_BYTES_MAX: usize = 4 << 30;

/// Encoder of one block.
#[derive(Debug, Default)]
pub(in crate::store) struct BlockWriter {
    raw: Vec<u8>,
    previous: Vec<u8>,
}

impl BlockWriter {
    /// Adds a key, which must be above the previous one. `None` is a deleted key.
    pub(in crate::store) fn add(&mut self, key: &[u8], value: Option<&[u8]>) {
        debug_assert!(self.previous.is_empty() || *key > *self.previous, "keys come in order");
        let common = common_prefix_length(key, &self.previous);
        put_varint(&mut self.raw, common as u64);
        put_text(&mut self.raw, &key[common..]);
        self.raw.push(u8::from(value.is_some()));
        if let Some(value) = value {
            put_text(&mut self.raw, value);
        }
        self.previous.clear();
        self.previous.extend_from_slice(key);
    }

    /// Returns the uncompressed length so far.
    pub(in crate::store) fn raw_bytes(&self) -> usize {
        self.raw.len()
    }

    /// Returns the compressed block.
    pub(in crate::store) fn finish(self) -> Vec<u8> {
        compress(&self.raw)
    }
}

/// A decoded block. A start reads 100,000 pairs, so they have no allocations of their own.
#[derive(Debug, Default, PartialEq)]
pub(in crate::store) struct KeyValueBlock {
    /// Decompressed bytes, which contain the values.
    raw: Vec<u8>,
    /// Complete keys, one after another.
    keys: Vec<u8>,
    pairs: Vec<PairRanges>,
    /// Pairs that only the log has: replaced records. They are not among `pairs`.
    log_only: Vec<PairRanges>,
}

#[derive(Debug, PartialEq)]
struct PairRanges {
    /// Position in `keys`.
    key: Range<usize>,
    /// Position in `raw`; `None` for a deleted key.
    value: Option<Range<usize>>,
}

/// A key and its value; `None` for a deleted key.
pub(in crate::store) type KeyValuePair<'a> = (&'a [u8], Option<&'a [u8]>);

impl KeyValueBlock {
    /// Merges blocks, oldest first. The last pair of each key is kept.
    pub(in crate::store) fn merge(mut blocks: Vec<Self>) -> Self {
        if blocks.len() == 1 {
            return blocks.pop().unwrap_or_default();
        }
        let mut merged = Self::default();
        for Self { raw, keys, pairs, log_only } in blocks {
            let (key_start, value_start) = (merged.keys.len(), merged.raw.len());
            let shift = |range: Range<usize>, start: usize| range.start + start..range.end + start;
            let shift_pair =
                |pair: PairRanges| PairRanges { key: shift(pair.key, key_start), value: pair.value.map(|value| shift(value, value_start)) };
            merged.pairs.extend(pairs.into_iter().map(shift_pair));
            merged.log_only.extend(log_only.into_iter().map(shift_pair));
            merged.keys.extend(keys);
            merged.raw.extend(raw);
        }
        // puts the last pair of each key first
        merged.pairs.reverse();
        let keys = &merged.keys;
        merged.pairs.sort_by(|left, right| keys[left.key.clone()].cmp(&keys[right.key.clone()]));
        merged.pairs.dedup_by(|next, kept| keys[next.key.clone()] == keys[kept.key.clone()]);
        merged
    }

    pub(in crate::store) fn iter(&self) -> impl Iterator<Item = KeyValuePair<'_>> {
        self.pairs_in(0..self.pairs.len())
    }

    /// Iterates over the pairs that only the log has, in order within each merged block.
    pub(in crate::store) fn log_only(&self) -> impl Iterator<Item = KeyValuePair<'_>> {
        self.log_only.iter().map(|pair| (&self.keys[pair.key.clone()], pair.value.clone().map(|value| &self.raw[value])))
    }

    /// Returns the pairs with keys from `low` on and below `high`.
    pub(in crate::store) fn within(&self, low: &[u8], high: Option<&[u8]>) -> impl Iterator<Item = KeyValuePair<'_>> + use<'_> {
        let position = |key: &[u8]| self.pairs.partition_point(|pair| self.keys[pair.key.clone()] < *key);
        self.pairs_in(position(low)..high.map_or(self.pairs.len(), position))
    }

    fn pairs_in(&self, pairs: Range<usize>) -> impl Iterator<Item = KeyValuePair<'_>> {
        let pairs = self.pairs.get(pairs).unwrap_or_default().iter();
        pairs.map(|pair| (&self.keys[pair.key.clone()], pair.value.clone().map(|value| &self.raw[value])))
    }
}

pub(in crate::store) fn decode_block(stored: &[u8]) -> Result<KeyValueBlock, DecodeError> {
    let raw = decompress(stored)?;
    let mut reader = ByteReader::new(&raw);
    let (mut keys, mut pairs, mut log_only, mut previous) = (Vec::new(), Vec::new(), Vec::new(), 0..0);
    while !reader.is_empty() {
        let common = usize::try_from(reader.varint()?).map_err(|_| DecodeError::Truncated)?;
        if common > previous.len() {
            return Err(DecodeError::Field("common part of two keys"));
        }
        let start = keys.len();
        keys.extend_from_within(previous.start..previous.start + common);
        keys.extend_from_slice(reader.bytes()?);
        previous = start..keys.len();
        let value = if reader.flags(1)? == 1 {
            let length = reader.bytes()?.len();
            let end = raw.len() - reader.remaining_length();
            Some(end - length..end)
        } else {
            None
        };
        let destination = if is_log_only(&keys[previous.clone()]) { &mut log_only } else { &mut pairs };
        destination.push(PairRanges { key: previous.clone(), value });
    }
    Ok(KeyValueBlock { raw, keys, pairs, log_only })
}

thread_local! {
    /// Working memory of zstd. The committer compresses a block for each batch of changes.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };

    /// Working memory of zstd, about 100 KB. A start decompresses a thousand blocks.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Compresses bytes into `varint length · zstd`.
pub(in crate::store) fn compress(raw: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_varint(&mut bytes, raw.len() as u64);
    let packed = COMPRESSOR.with_borrow_mut(|compressor| match compressor {
        Some(compressor) => compressor.compress(raw),
        None => compressor.insert(Compressor::new(COMPRESSION_LEVEL)?).compress(raw),
    });
    let packed = packed.expect("compression into memory must succeed");
    bytes.extend_from_slice(&packed);
    bytes
}

/// Reverses [`compress`].
pub(in crate::store) fn decompress(stored: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut reader = ByteReader::new(stored);
    let length = usize::try_from(reader.varint()?).map_err(|_| DecodeError::Truncated)?;
    if length > RAW_BYTES_MAX {
        return Err(DecodeError::Field("length"));
    }
    let raw = DECOMPRESSOR.with_borrow_mut(|decompressor| match decompressor {
        Some(decompressor) => decompressor.decompress(reader.rest(), length),
        None => decompressor.insert(Decompressor::new()?).decompress(reader.rest(), length),
    });
    let raw = raw.map_err(|_| DecodeError::Field("compressed bytes"))?;
    if raw.len() == length { Ok(raw) } else { Err(DecodeError::Truncated) }
}
