//! The fence of a segment, which stays in memory, and the tail of the file, which locates it.
//!
//! The last 16 bytes of a segment are its tail: (8) position of the fence · (4) its length · (4)
//! CRC-32 of the text `history 1` and the 12 bytes. The fence ends with a CRC-32 too. Its fields
//! are `varint`s: sequence before the range · last sequence · rows · 0, or 1 and (8) earliest and
//! (8) latest time in milliseconds since 1970 · position and pages of the filter · position and
//! length of the index · count of CIDR lengths · each as length × 2, + 1 for IPv6.

use std::collections::BTreeSet;

use super::times::{Millis, TimeRange};
use crate::model::Sequence;
use crate::pack::{ByteReader, DecodeError, put_varint};

/// Length of the tail.
pub(in crate::history) const TAIL_BYTES: usize = 16;

/// Text in the checksum of the tail: the format of segments and its version.
const FORMAT: &[u8] = b"history 1";

/// Maximum length of a fence. It has at most 162 CIDR lengths.
const FENCE_BYTES_MAX: u32 = 1_024;

const CHECKSUM_BYTES: usize = 4;

/// Bytes of a part in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::history) struct PartSpan {
    pub(in crate::history) offset: u64,
    pub(in crate::history) length: u64,
}

/// What a reader needs to know about a segment before it reads anything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::history) struct SegmentFence {
    /// Sequence before the range of the segment.
    pub(in crate::history) after: Sequence,
    /// Last sequence of the range.
    pub(in crate::history) last: Sequence,
    pub(in crate::history) row_count: u64,
    /// Times of the changes in the range; `None` if there are none.
    pub(in crate::history) times: Option<TimeRange>,
    pub(in crate::history) filter_offset: u64,
    pub(in crate::history) filter_pages: u32,
    pub(in crate::history) index: PartSpan,
    /// Lengths of the CIDRs of ipcache entries, each with true for IPv6.
    pub(in crate::history) cidr_lengths: BTreeSet<(bool, u8)>,
}

impl SegmentFence {
    /// Returns the fence and the tail as the end of a file, at this position.
    pub(in crate::history) fn encode(&self, position: u64) -> Vec<u8> {
        let mut out = Vec::new();
        [self.after.0, self.last.0, self.row_count].into_iter().for_each(|number| put_varint(&mut out, number));
        out.push(u8::from(self.times.is_some()));
        if let Some(TimeRange { earliest, latest }) = self.times {
            out.extend_from_slice(&earliest.0.to_le_bytes());
            out.extend_from_slice(&latest.0.to_le_bytes());
        }
        let spans = [self.filter_offset, self.filter_pages.into(), self.index.offset, self.index.length];
        spans.into_iter().for_each(|number| put_varint(&mut out, number));
        put_varint(&mut out, self.cidr_lengths.len() as u64);
        for (is_ipv6, length) in &self.cidr_lengths {
            put_varint(&mut out, u64::from(*length) << 1 | u64::from(*is_ipv6));
        }
        let checksum = crc32fast::hash(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        let length = u32::try_from(out.len()).unwrap_or(u32::MAX);
        let mut tail = position.to_le_bytes().to_vec();
        tail.extend_from_slice(&length.to_le_bytes());
        let checksum = tail_checksum(&tail);
        out.extend_from_slice(&tail);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    pub(in crate::history) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (checked, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(DecodeError::Truncated)?;
        if crc32fast::hash(checked).to_le_bytes() != *checksum {
            return Err(DecodeError::Checksum);
        }
        let mut reader = ByteReader::new(checked);
        let (after, last, row_count) = (Sequence(reader.varint()?), Sequence(reader.varint()?), reader.varint()?);
        let times = match reader.flags(1)? {
            0 => None,
            _ => Some(TimeRange { earliest: Millis(reader.read_i64()?), latest: Millis(reader.read_i64()?) }),
        };
        let (filter_offset, filter_pages) = (reader.varint()?, reader.varint()?);
        let filter_pages = u32::try_from(filter_pages).map_err(|_| DecodeError::Field("pages of the filter"))?;
        let index = PartSpan { offset: reader.varint()?, length: reader.varint()? };
        let mut cidr_lengths = BTreeSet::new();
        for _ in 0..reader.varint()? {
            let number = reader.varint()?;
            let length = u8::try_from(number >> 1).map_err(|_| DecodeError::Field("length of a CIDR"))?;
            cidr_lengths.insert((number & 1 == 1, length));
        }
        reader.finish()?;
        Ok(Self { after, last, row_count, times, filter_offset, filter_pages, index, cidr_lengths })
    }
}

/// Returns the span of the fence that a tail names.
pub(in crate::history) fn decode_tail(tail: &[u8; TAIL_BYTES]) -> Result<PartSpan, DecodeError> {
    let (checked, checksum) = tail.split_last_chunk::<CHECKSUM_BYTES>().ok_or(DecodeError::Truncated)?;
    if tail_checksum(checked).to_le_bytes() != *checksum {
        return Err(DecodeError::Checksum);
    }
    let mut reader = ByteReader::new(checked);
    let (offset, length) = (reader.read_u64()?, u32::from_le_bytes(reader.array()?));
    if length > FENCE_BYTES_MAX { Err(DecodeError::Field("length of the fence")) } else { Ok(PartSpan { offset, length: length.into() }) }
}

fn tail_checksum(tail: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(FORMAT);
    hasher.update(tail);
    hasher.finalize()
}
