//! Writes a segment: rows come in order, and everything about them follows at the end.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::Arc;

use super::block::{ReplacedVersion, encode_block, seal_part};
use super::fence::{PartSpan, SegmentFence};
use super::filter::{FilterElement, PAGE_BYTES, build_filter};
use super::row_key::{RowKey, prefix_of};
use super::times::{TimePair, TimeRange, encode_pairs};
use crate::model::{Kind, Object, Record, Sequence};
use crate::pack::{IndexedFields, RECORDS_TARGET, put_text, put_varint};
use crate::wire;

/// Maximum bytes of values in a block, as in the chunks of the store.
const BLOCK_BYTES_MAX: usize = 400_000;

/// Maximum number of pairs in a block of times.
pub(in crate::history) const PAIRS_MAX: usize = 4_096;

/// Text at the beginning of each segment, for people who look at the file.
const HEAD: &[u8] = b"meshkeep history 1\n";

/// Writer of one segment.
#[derive(Debug)]
pub(in crate::history) struct SegmentWriter<W> {
    out: W,
    position: u64,
    rows: Vec<(ReplacedVersion, IndexedFields)>,
    /// Bytes of the values in `rows`.
    row_bytes: usize,
    row_count: u64,
    /// Encoded entries of the index, and their number.
    blocks: (Vec<u8>, u64),
    elements: Vec<FilterElement>,
    cidr_lengths: BTreeSet<(bool, u8)>,
    /// Key of the previous row.
    previous: Option<RowKey>,
}

impl<W: Write> SegmentWriter<W> {
    pub(in crate::history) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(HEAD)?;
        Ok(Self {
            out,
            position: HEAD.len() as u64,
            rows: Vec::new(),
            row_bytes: 0,
            row_count: 0,
            blocks: (Vec::new(), 0),
            elements: Vec::new(),
            cidr_lengths: BTreeSet::new(),
            previous: None,
        })
    }

    /// Adds a row, which must be above the previous one.
    pub(in crate::history) fn push(&mut self, row_key: RowKey, version: ReplacedVersion) -> io::Result<()> {
        assert!(self.previous.as_ref().is_none_or(|previous| *previous < row_key), "rows must be in order");
        let record = &version.record;
        let bytes = record.key.name.len() + record.value.len() + record.good_value.as_ref().map_or(0, |value| value.len());
        if self.rows.len() == RECORDS_TARGET || self.row_bytes + bytes > BLOCK_BYTES_MAX && !self.rows.is_empty() {
            self.write_block()?;
        }
        let fields = self.add_elements(record);
        self.row_bytes += bytes;
        self.rows.push((version, fields));
        self.row_count += 1;
        self.previous = Some(row_key);
        Ok(())
    }

    /// Adds the values of a record to the filter. Returns the record's indexed fields.
    fn add_elements(&mut self, record: &Record) -> IndexedFields {
        self.elements.push(FilterElement::of_key(&record.key));
        if let Some(prefix) = prefix_of(&record.key).filter(|prefix| !prefix.host) {
            self.cidr_lengths.insert((prefix.net.addr().is_ipv6(), prefix.net.prefix_len()));
        }
        if record.key.kind == Kind::Identity
            && let Ok(number) = record.key.name.parse()
        {
            self.elements.push(FilterElement::of_identity(number));
        }
        let Some(object) = decode_object(record) else {
            return if record.rejection.is_some() && record.good_value.is_none() { IndexedFields::Nothing } else { IndexedFields::Unknown };
        };
        if let Object::Ip(entry) = &*object {
            self.elements.push(FilterElement::of_identity(entry.identity));
            if !entry.pod_name.is_empty() {
                self.elements.push(FilterElement::of_pod(&entry.namespace, &entry.pod_name));
            }
        }
        IndexedFields::from_record(&Record { object: Some(object), ..record.clone() })
    }

    fn write_block(&mut self) -> io::Result<()> {
        let rows = std::mem::take(&mut self.rows);
        let Some((first, _)) = rows.first() else { return Ok(()) };
        let (mut key, count) = (Vec::new(), rows.len());
        first.row_key().encode(&mut key);
        let span = self.write_part(&seal_part(&encode_block(&rows))?)?;
        let (index, block_count) = &mut self.blocks;
        put_text(index, &key);
        [count as u64, span.offset, span.length].into_iter().for_each(|number| put_varint(index, number));
        *block_count += 1;
        self.row_bytes = 0;
        Ok(())
    }

    fn write_part(&mut self, bytes: &[u8]) -> io::Result<PartSpan> {
        self.out.write_all(bytes)?;
        let span = PartSpan { offset: self.position, length: bytes.len() as u64 };
        self.position += span.length;
        Ok(span)
    }

    /// Writes the rest of a segment that covers the changes after `after` up to `last`, with the
    /// times of all changes in the range. Returns the writer and the fence.
    pub(in crate::history) fn finish(mut self, after: Sequence, last: Sequence, pairs: &[TimePair]) -> io::Result<(W, SegmentFence)> {
        self.write_block()?;
        let (blocks, block_count) = std::mem::take(&mut self.blocks);
        let mut index = Vec::new();
        put_varint(&mut index, block_count);
        index.extend_from_slice(&blocks);
        put_varint(&mut index, pairs.chunks(PAIRS_MAX).len() as u64);
        for pairs in pairs.chunks(PAIRS_MAX) {
            let span = self.write_part(&seal_part(&encode_pairs(pairs))?)?;
            let Some((range, (first, _))) = TimeRange::of_pairs(pairs).zip(pairs.first()) else { continue };
            put_varint(&mut index, first.0);
            index.extend_from_slice(&range.earliest.0.to_le_bytes());
            index.extend_from_slice(&range.latest.0.to_le_bytes());
            [span.offset, span.length].into_iter().for_each(|number| put_varint(&mut index, number));
        }
        self.elements.sort_unstable();
        self.elements.dedup();
        let elements = std::mem::take(&mut self.elements);
        let filter = self.write_part(&build_filter(&elements))?;
        let index = self.write_part(&seal_part(&index)?)?;
        let fence = SegmentFence {
            after,
            last,
            row_count: self.row_count,
            times: TimeRange::of_pairs(pairs),
            filter_offset: filter.offset,
            filter_pages: u32::try_from(filter.length / PAGE_BYTES as u64).unwrap_or(u32::MAX),
            index,
            cidr_lengths: self.cidr_lengths,
        };
        self.out.write_all(&fence.encode(self.position))?;
        Ok((self.out, fence))
    }
}

/// Returns the object of a record, decoded from its last usable value if the record does not have
/// it.
pub(in crate::history) fn decode_object(record: &Record) -> Option<Arc<Object>> {
    if let Some(object) = &record.object {
        return Some(Arc::clone(object));
    }
    let usable = if record.rejection.is_none() { Some(&record.value) } else { record.good_value.as_ref() };
    wire::decode_accepted(&record.key, usable?).map(Arc::new)
}

/// Returns a record with its object, decoded if the record does not have it.
#[must_use]
pub fn with_object(record: &Arc<Record>) -> Arc<Record> {
    match decode_object(record) {
        Some(object) if record.object.is_none() => Arc::new(Record { object: Some(object), ..Record::clone(record) }),
        _ => Arc::clone(record),
    }
}
