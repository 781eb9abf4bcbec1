//! Blocks of a segment: about a thousand replaced versions, packed and compressed.
//!
//! Bytes before compression: (8) least sequence · width (1) · for each row (width) the sequence of
//! the change that replaced it minus the least · for each row (1) what the change was (0 update, 1
//! deletion, 2 removal of the cluster) · a chunk (`pack`) with the records in the same order.
//!
//! A stored part of a segment is `varint length · zstd` of that many bytes, and the CRC-32 of both.

use std::sync::Arc;

use super::row_key::RowKey;
use crate::model::{DeleteReason, Record, Sequence};
use crate::pack::{ByteReader, Chunk, DecodeError, IndexedFields, build_versions, put_varint};

/// Compression level of zstd. A part is written once and read rarely, so it is smaller than in the
/// store, whose level is 1.
const COMPRESSION_LEVEL: i32 = 3;

/// Maximum length of a part before compression, in bytes. A block has at most 400 KB of values, or
/// a single value of at most 1.5 MiB and its last good value.
const PART_BYTES_MAX: usize = 16 << 20;

const CHECKSUM_BYTES: usize = 4;

/// A version of a record that a change ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplacedVersion {
    /// The record, current from its `last_sequence` until the change.
    pub record: Arc<Record>,
    /// Sequence of the change.
    pub replaced_at: Sequence,
    /// Reason of the deletion; `None` if the change updated the record.
    pub deleted: Option<DeleteReason>,
}

impl ReplacedVersion {
    pub(in crate::history) fn row_key(&self) -> RowKey {
        RowKey::new(self.record.key.clone(), self.replaced_at)
    }

    /// Returns the approximate memory of the version.
    pub(in crate::history) fn byte_count(&self) -> usize {
        size_of::<RowKey>() + size_of::<Self>() + self.record.footprint()
    }
}

/// A decoded block.
#[derive(Debug)]
pub(in crate::history) struct VersionBlock {
    pub(super) sequences: Vec<Sequence>,
    deleted: Vec<Option<DeleteReason>>,
    pub(in crate::history) chunk: Chunk,
}

impl VersionBlock {
    pub(in crate::history) fn len(&self) -> usize {
        self.sequences.len()
    }

    pub(in crate::history) fn row_key(&self, row: usize) -> RowKey {
        RowKey::new(self.chunk.key(row), self.sequences[row])
    }

    pub(in crate::history) fn version(&self, row: usize) -> ReplacedVersion {
        ReplacedVersion { record: Arc::new(self.chunk.record(row)), replaced_at: self.sequences[row], deleted: self.deleted[row] }
    }
}

/// Encodes versions, which are in the order of their row keys, with the indexed fields of their
/// records.
pub(in crate::history) fn encode_block(rows: &[(ReplacedVersion, IndexedFields)]) -> Vec<u8> {
    let sequences = || rows.iter().map(|(version, _)| version.replaced_at.0);
    let (least, most) = (sequences().min().unwrap_or(0), sequences().max().unwrap_or(0));
    let width = 8 - (most - least).leading_zeros() as usize / 8;
    let mut out = least.to_le_bytes().to_vec();
    out.extend(u8::try_from(width));
    // one plane per byte: the upper bytes of neighbours are similar
    for byte in 0..width {
        out.extend(sequences().map(|sequence| (sequence - least).to_le_bytes()[byte]));
    }
    out.extend(rows.iter().map(|(version, _)| match version.deleted {
        None => 0,
        Some(DeleteReason::Deleted) => 1,
        Some(DeleteReason::ClusterRemoved) => 2,
    }));
    let records: Vec<_> = rows.iter().map(|(version, fields)| (&*version.record, fields.clone())).collect();
    out.extend_from_slice(build_versions(&records).stored());
    out
}

pub(in crate::history) fn decode_block(bytes: &[u8], row_count: usize) -> Result<VersionBlock, DecodeError> {
    let mut reader = ByteReader::new(bytes);
    let (least, width) = (reader.read_u64()?, usize::from(reader.byte()?));
    if width > 8 {
        return Err(DecodeError::Field("width"));
    }
    let rest = reader.rest();
    let (planes, rest) = rest.split_at_checked(width * row_count).ok_or(DecodeError::Truncated)?;
    let (reasons, chunk) = rest.split_at_checked(row_count).ok_or(DecodeError::Truncated)?;
    let sequence = |row: usize| {
        let bytes = (0..width).rev().map(|byte| u64::from(planes[byte * row_count + row]));
        Sequence(least.wrapping_add(bytes.fold(0, |number, byte| number << 8 | byte)))
    };
    let reason = |number: &u8| match number {
        0 => Ok(None),
        1 => Ok(Some(DeleteReason::Deleted)),
        2 => Ok(Some(DeleteReason::ClusterRemoved)),
        _ => Err(DecodeError::Field("reason")),
    };
    let deleted = reasons.iter().map(reason).collect::<Result<_, _>>()?;
    let chunk = Chunk::from_stored(chunk)?;
    if chunk.len() != row_count {
        return Err(DecodeError::Field("count of rows"));
    }
    Ok(VersionBlock { sequences: (0..row_count).map(sequence).collect(), deleted, chunk })
}

/// Compresses a part and adds its checksum.
pub(in crate::history) fn seal_part(raw: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    put_varint(&mut out, raw.len() as u64);
    out.extend_from_slice(&zstd::bulk::compress(raw, COMPRESSION_LEVEL)?);
    let checksum = crc32fast::hash(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    Ok(out)
}

/// Reverses [`seal_part`].
pub(in crate::history) fn open_part(stored: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let (checked, checksum) = stored.split_last_chunk::<CHECKSUM_BYTES>().ok_or(DecodeError::Truncated)?;
    if crc32fast::hash(checked).to_le_bytes() != *checksum {
        return Err(DecodeError::Checksum);
    }
    let mut reader = ByteReader::new(checked);
    let length = usize::try_from(reader.varint()?).map_err(|_| DecodeError::Truncated)?;
    if length > PART_BYTES_MAX {
        return Err(DecodeError::Field("length"));
    }
    let raw = zstd::bulk::decompress(reader.rest(), length).map_err(|_| DecodeError::Field("compressed bytes"))?;
    if raw.len() == length { Ok(raw) } else { Err(DecodeError::Truncated) }
}
