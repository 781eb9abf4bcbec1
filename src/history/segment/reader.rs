//! Reads a segment with positioned reads: the fence when it is opened, then only the parts that a
//! query needs.

use std::fs::File;
use std::io;

use super::block::{ReplacedVersion, VersionBlock, decode_block, open_part};
use super::fence::{PartSpan, SegmentFence, TAIL_BYTES, decode_tail};
use super::row_key::RowKey;
use super::times::{Millis, TimePair, TimeRange, decode_pairs};
use crate::model::Sequence;
use crate::pack::{ByteReader, DecodeError, RECORDS_TARGET};

/// Maximum length of a stored part that is read at once, in bytes.
const PART_LENGTH_MAX: u64 = 64 << 20;

/// Error of a segment that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(in crate::history) enum SegmentError {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    /// The bytes are damaged.
    #[error("it is damaged: {0}")]
    Damaged(#[from] DecodeError),
}

/// Bytes of a segment.
pub(in crate::history) trait SegmentBytes {
    /// Returns the number of bytes.
    fn length(&self) -> io::Result<u64>;

    /// Fills a buffer with the bytes from a position on.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl SegmentBytes for File {
    fn length(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, offset)
    }
}

/// An open segment.
#[derive(Debug)]
pub(in crate::history) struct Segment<B = File> {
    pub(super) bytes: B,
    pub(in crate::history) fence: SegmentFence,
    /// Length of the file.
    pub(in crate::history) length: u64,
}

/// Index of a segment: where each block is.
#[derive(Debug)]
pub(in crate::history) struct SegmentIndex {
    pub(super) blocks: Vec<BlockEntry>,
    pub(super) time_blocks: Vec<TimeBlockEntry>,
}

#[derive(Debug)]
pub(super) struct BlockEntry {
    /// Key of the first row.
    pub(super) first: RowKey,
    row_count: usize,
    span: PartSpan,
}

#[derive(Debug)]
pub(super) struct TimeBlockEntry {
    pub(super) first: Sequence,
    pub(super) range: TimeRange,
    span: PartSpan,
}

impl<B: SegmentBytes> Segment<B> {
    /// Opens a segment: reads its tail and its fence.
    pub(in crate::history) fn open(bytes: B) -> Result<Self, SegmentError> {
        let length = bytes.length()?;
        let mut tail = [0; TAIL_BYTES];
        let tail_offset = length.checked_sub(TAIL_BYTES as u64).ok_or(DecodeError::Truncated)?;
        bytes.read_exact_at(&mut tail, tail_offset)?;
        let fence = SegmentFence::decode(&read_span(&bytes, decode_tail(&tail)?)?)?;
        Ok(Self { bytes, fence, length })
    }

    fn read_part(&self, span: PartSpan) -> Result<Vec<u8>, SegmentError> {
        Ok(open_part(&read_span(&self.bytes, span)?)?)
    }

    pub(in crate::history) fn read_index(&self) -> Result<SegmentIndex, SegmentError> {
        Ok(decode_index(&self.read_part(self.fence.index)?)?)
    }

    pub(super) fn read_block(&self, entry: &BlockEntry) -> Result<VersionBlock, SegmentError> {
        let block = decode_block(&self.read_part(entry.span)?, entry.row_count)?;
        if block.row_key(0) == entry.first { Ok(block) } else { Err(DecodeError::Field("first row of a block").into()) }
    }

    pub(super) fn read_pairs(&self, entry: &TimeBlockEntry) -> Result<Vec<TimePair>, SegmentError> {
        let pairs = decode_pairs(&self.read_part(entry.span)?)?;
        let is_expected = pairs.first().is_some_and(|(first, _)| *first == entry.first) && TimeRange::of_pairs(&pairs) == Some(entry.range);
        if is_expected { Ok(pairs) } else { Err(DecodeError::Field("block of times").into()) }
    }

    /// Returns all pairs of times.
    pub(in crate::history) fn all_pairs(&self) -> Result<Vec<TimePair>, SegmentError> {
        let index = self.read_index()?;
        let lists = index.time_blocks.iter().map(|entry| self.read_pairs(entry)).collect::<Result<Vec<_>, _>>()?;
        Ok(lists.concat())
    }

    /// Iterates over all rows in order. Keeps one block in memory.
    pub(in crate::history) fn rows(&self) -> Result<SegmentRows<'_, B>, SegmentError> {
        Ok(SegmentRows { segment: self, index: self.read_index()?, next_block: 0, block: None })
    }
}

/// Iterator over the rows of a segment.
#[derive(Debug)]
pub(in crate::history) struct SegmentRows<'a, B> {
    segment: &'a Segment<B>,
    index: SegmentIndex,
    next_block: usize,
    /// Current block, and its next row.
    block: Option<(VersionBlock, usize)>,
}

impl<B: SegmentBytes> Iterator for SegmentRows<'_, B> {
    type Item = Result<ReplacedVersion, SegmentError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((block, row)) = &mut self.block
                && *row < block.len()
            {
                *row += 1;
                return Some(Ok(block.version(*row - 1)));
            }
            let entry = self.index.blocks.get(self.next_block)?;
            self.next_block += 1;
            match self.segment.read_block(entry) {
                Ok(block) => self.block = Some((block, 0)),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

pub(super) fn read_span(bytes: &impl SegmentBytes, span: PartSpan) -> Result<Vec<u8>, SegmentError> {
    let length = usize::try_from(span.length).ok().filter(|_| span.length <= PART_LENGTH_MAX).ok_or(DecodeError::Field("length"))?;
    let mut buffer = vec![0; length];
    bytes.read_exact_at(&mut buffer, span.offset)?;
    Ok(buffer)
}

fn decode_index(bytes: &[u8]) -> Result<SegmentIndex, DecodeError> {
    let mut reader = ByteReader::new(bytes);
    let (mut blocks, mut time_blocks) = (Vec::new(), Vec::new());
    for _ in 0..reader.varint()? {
        let first = RowKey::decode(&mut ByteReader::new(reader.bytes()?))?;
        let row_count = usize::try_from(reader.varint()?).ok().filter(|count| (1..=RECORDS_TARGET).contains(count));
        let span = PartSpan { offset: reader.varint()?, length: reader.varint()? };
        blocks.push(BlockEntry { first, row_count: row_count.ok_or(DecodeError::Field("count of rows"))?, span });
    }
    for _ in 0..reader.varint()? {
        let first = Sequence(reader.varint()?);
        let range = TimeRange { earliest: Millis(reader.read_i64()?), latest: Millis(reader.read_i64()?) };
        time_blocks.push(TimeBlockEntry { first, range, span: PartSpan { offset: reader.varint()?, length: reader.varint()? } });
    }
    reader.finish()?;
    Ok(SegmentIndex { blocks, time_blocks })
}
