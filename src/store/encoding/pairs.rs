//! Keys and values in key order as one compressed byte string: the body of all of the log, and of chunks that hold no entries.
//!
//! Owns: these bytes (docs/develop/store.md, "Objects", has them one by one). Deliberately lacks: what the values mean.

use std::cell::RefCell;
use std::ops::Range;

use zstd::bulk::Decompressor;

use super::bytes::{Malformed, Reader, put_text, put_varint};
use crate::pack::common_length;

/// zstd's fastest ordinary level, as measured (docs/develop/measurements.md §1.1).
const COMPRESSION_LEVEL: i32 = 1;

/// More than this was never compressed as one, in bytes: a million keys that waited for a full disk are some 300 MB.
const RAW_BYTES_MAX: usize = 4 << 30;

/// Keys and values before they are compressed.
#[derive(Debug, Default)]
pub(in crate::store) struct PairsWriter {
    raw: Vec<u8>,
    previous: Vec<u8>,
}

impl PairsWriter {
    /// Adds a key, which must be above the one before.
    pub(in crate::store) fn add(&mut self, key: &[u8], value: Option<&[u8]>) {
        debug_assert!(self.previous.is_empty() || *key > *self.previous, "keys come in order");
        let common = common_length(key, &self.previous);
        put_varint(&mut self.raw, common as u64);
        put_text(&mut self.raw, &key[common..]);
        self.raw.push(u8::from(value.is_some()));
        if let Some(value) = value {
            put_text(&mut self.raw, value);
        }
        self.previous.clear();
        self.previous.extend_from_slice(key);
    }

    /// How long they are so far.
    pub(in crate::store) fn raw_bytes(&self) -> usize {
        self.raw.len()
    }

    /// The bytes to store.
    pub(in crate::store) fn finish(self) -> Vec<u8> {
        compress(&self.raw)
    }
}

/// Pairs that were read, in key order. A start reads 100,000 of them, so none has room of its own.
#[derive(Debug, Default)]
pub(in crate::store) struct Pairs {
    /// What was decompressed.
    raw: Vec<u8>,
    /// The keys, whole, one after another.
    keys: Vec<u8>,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    /// Where in `keys`.
    key: Range<usize>,
    /// Where in `raw`; `None` is gone.
    value: Option<Range<usize>>,
}

/// A key and its value; `None` is gone.
pub(in crate::store) type Pair<'a> = (&'a [u8], Option<&'a [u8]>);

impl Pairs {
    /// Several as one: of a key the last counts.
    pub(in crate::store) fn merged(mut all: Vec<Self>) -> Self {
        if all.len() == 1 {
            return all.pop().unwrap_or_default();
        }
        let mut merged = Self::default();
        for Self { raw, keys, rows } in all {
            let (key_start, value_start) = (merged.keys.len(), merged.raw.len());
            let moved = |range: Range<usize>, start: usize| range.start + start..range.end + start;
            let rows =
                rows.into_iter().map(|row| Row { key: moved(row.key, key_start), value: row.value.map(|value| moved(value, value_start)) });
            merged.rows.extend(rows);
            merged.keys.extend(keys);
            merged.raw.extend(raw);
        }
        // the last of each key first
        merged.rows.reverse();
        let keys = &merged.keys;
        merged.rows.sort_by(|left, right| keys[left.key.clone()].cmp(&keys[right.key.clone()]));
        merged.rows.dedup_by(|next, kept| keys[next.key.clone()] == keys[kept.key.clone()]);
        merged
    }

    /// All of them.
    pub(in crate::store) fn iter(&self) -> impl Iterator<Item = Pair<'_>> {
        self.at(0..self.rows.len())
    }

    /// The pairs whose keys are within a range.
    pub(in crate::store) fn within(&self, low: &[u8], high: Option<&[u8]>) -> impl Iterator<Item = Pair<'_>> + use<'_> {
        let place = |key: &[u8]| self.rows.partition_point(|row| self.keys[row.key.clone()] < *key);
        self.at(place(low)..high.map_or(self.rows.len(), place))
    }

    fn at(&self, rows: Range<usize>) -> impl Iterator<Item = Pair<'_>> {
        let rows = self.rows.get(rows).unwrap_or_default().iter();
        rows.map(|row| (&self.keys[row.key.clone()], row.value.clone().map(|value| &self.raw[value])))
    }
}

/// Reads all pairs back.
pub(in crate::store) fn read_pairs(stored: &[u8]) -> Result<Pairs, Malformed> {
    let raw = decompress(stored)?;
    let mut reader = Reader::over(&raw);
    let (mut keys, mut rows, mut previous) = (Vec::new(), Vec::new(), 0..0);
    while !reader.is_empty() {
        let common = usize::try_from(reader.varint()?).map_err(|_| Malformed::Truncated)?;
        if common > previous.len() {
            return Err(Malformed::Field("common part of two keys"));
        }
        let start = keys.len();
        keys.extend_from_within(previous.start..previous.start + common);
        keys.extend_from_slice(reader.bytes()?);
        previous = start..keys.len();
        let value = if reader.flags(1)? == 1 {
            let length = reader.bytes()?.len();
            let end = raw.len() - reader.left();
            Some(end - length..end)
        } else {
            None
        };
        rows.push(Row { key: previous.clone(), value });
    }
    Ok(Pairs { raw, keys, rows })
}

thread_local! {
    /// What zstd works with, some 100 KB: a start decompresses a thousand times.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// `varint length · zstd`.
pub(in crate::store) fn compress(raw: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_varint(&mut bytes, raw.len() as u64);
    let packed = zstd::bulk::compress(raw, COMPRESSION_LEVEL).expect("compression into memory must succeed");
    bytes.extend_from_slice(&packed);
    bytes
}

/// Reads back what [`compress`] wrote.
pub(in crate::store) fn decompress(stored: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut reader = Reader::over(stored);
    let length = usize::try_from(reader.varint()?).map_err(|_| Malformed::Truncated)?;
    if length > RAW_BYTES_MAX {
        return Err(Malformed::Field("length"));
    }
    let raw = DECOMPRESSOR.with_borrow_mut(|decompressor| match decompressor {
        Some(decompressor) => decompressor.decompress(reader.rest(), length),
        None => decompressor.insert(Decompressor::new()?).decompress(reader.rest(), length),
    });
    let raw = raw.map_err(|_| Malformed::Field("compressed bytes"))?;
    if raw.len() == length { Ok(raw) } else { Err(Malformed::Truncated) }
}
