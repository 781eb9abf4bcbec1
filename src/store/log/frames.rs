//! Encodes and decodes the files of the log (docs/develop/store.md, "The log").
//!
//! Reading continues after damage, so a damaged frame costs only itself. `recovered_log` decides
//! which frames a start uses.

use std::{io, mem};

use super::files::LogFiles;
use super::synced_mark::SyncedMark;
use crate::model::Epoch;
use crate::store::encoding::block::BlockWriter;
use crate::store::encoding::checksum::{ByteReader, CHECKSUM_LENGTH, DecodeError, append_checksum, put_text, put_varint, verify_checksum};
use crate::store::encoding::group::KeyChanges;
use crate::store::error::is_exhausted;

/// Format version of heads and frames.
const FORMAT_VERSION: u8 = 3;

/// Key of the checksum of a head. The key of a frame's checksum is the epoch, which is stored only
/// in the head.
const HEAD_KEY: &[u8] = b"log";

/// Size above which a frame continues in another part, in bytes before compression. A frame of a
/// million keys, which may have to wait while the disk is full, is then never in memory as a whole.
const PART_RAW_BYTES: usize = if cfg!(test) { 64 << 10 } else { 4 << 20 };

/// Limit on the bytes that are checksummed during the search for the next frame, as a multiple of
/// the file's length. With random damage the multiple stays below one. Without the limit, crafted
/// values could make it a million.
const SEARCH_MAX: usize = 16;

/// Position of the id in a file, after the head's length (one byte) and the format version.
const ID_AT: usize = 2;

/// Head of a log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct FileHead {
    pub(in crate::store) id: u64,
    pub(in crate::store) epoch: Epoch,
    /// First group of the file.
    pub(in crate::store) first_group: u64,
    /// Group of the synced checkpoint when the head was written.
    pub(in crate::store) checkpoint_group: u64,
}

/// A frame: consecutive groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct LogFrame {
    pub(in crate::store) first_group: u64,
    pub(in crate::store) last_group: u64,
    /// Group of the synced checkpoint when the frame was written.
    pub(in crate::store) checkpoint_group: u64,
    /// Encoded block of each part.
    pub(in crate::store) parts: Vec<Vec<u8>>,
    /// End of the frame in the file.
    pub(in crate::store) end: u64,
    /// True if parts of the frame are damaged.
    pub(super) is_partial: bool,
}

/// Content of all files of the log.
#[derive(Debug)]
pub(in crate::store) struct LogContents {
    /// Files in the order of their numbers, including those of other stores.
    pub(in crate::store) files: Vec<LogFileContents>,
    /// Last group that is known to be synced.
    pub(in crate::store) synced: Option<SyncedMark>,
}

/// Readable content of a file.
#[derive(Debug)]
pub(in crate::store) struct LogFileContents {
    pub(in crate::store) number: u64,
    /// The head and its end. `None` if it cannot be read.
    pub(in crate::store) head: Option<(FileHead, u64)>,
    /// True if the head does not match its checksum, but frames match its epoch.
    pub(super) is_head_damaged: bool,
    pub(in crate::store) frames: Vec<LogFrame>,
    pub(in crate::store) length: u64,
    /// Reason why the file cannot be read.
    pub(in crate::store) error: Option<io::Error>,
}

/// A part of a frame.
struct FramePart<'a> {
    first_group: u64,
    last_group: u64,
    /// True if the frame continues in the next part.
    is_continued: bool,
    checkpoint_group: u64,
    block: &'a [u8],
    /// End of the part in the file.
    end: usize,
}

impl FileHead {
    pub(in crate::store) fn encode(self) -> Vec<u8> {
        let mut out = vec![FORMAT_VERSION];
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        put_varint(&mut out, self.first_group);
        put_varint(&mut out, self.checkpoint_group);
        with_length(&append_checksum(HEAD_KEY, out))
    }

    fn decode(checked: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = ByteReader::with_version(verify_checksum(HEAD_KEY, checked)?, FORMAT_VERSION)?;
        let (id, epoch) = (reader.read_u64()?, Epoch(reader.read_u64()?));
        let (first_group, checkpoint_group) = (reader.varint()?, reader.varint()?);
        reader.finish()?;
        if first_group == 0 { Err(DecodeError::Field("first group")) } else { Ok(Self { id, epoch, first_group, checkpoint_group }) }
    }
}

fn with_length(checked: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_text(&mut out, checked);
    out
}

/// Writes a frame, part by part.
pub(in crate::store) fn write_frame(
    epoch: Epoch,
    (first, last): (u64, u64),
    checkpoint_group: u64,
    changes: &KeyChanges,
    put: &mut dyn FnMut(Vec<u8>) -> io::Result<()>,
) -> io::Result<()> {
    let mut part = |block: BlockWriter, is_continued: bool| {
        let mut out = vec![FORMAT_VERSION];
        put_varint(&mut out, first);
        put_varint(&mut out, last);
        out.push(u8::from(is_continued));
        put_varint(&mut out, checkpoint_group);
        out.extend_from_slice(&block.finish());
        put(with_length(&append_checksum(&epoch.0.to_le_bytes(), out)))
    };
    let mut block = BlockWriter::default();
    for (key, value) in changes {
        if block.raw_bytes() > PART_RAW_BYTES {
            part(mem::take(&mut block), true)?;
        }
        block.add(key, value.as_ref().map(|value| value.body()).as_deref());
    }
    part(block, false)
}

/// Reads all files.
///
/// # Errors
/// Only if the process has no memory or file descriptors left, which says nothing about the files.
pub(in crate::store) fn read_log(files: &dyn LogFiles) -> io::Result<LogContents> {
    // the mark is read before the files, so it may be older than they are, but never newer
    let synced = files.read_synced_mark();
    let mut contents = Vec::new();
    for file in files.list_numbers()? {
        match files.read(file) {
            Ok(bytes) => contents.push(decode_file(file, &bytes)),
            // removed in the meantime
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_exhausted(&error) => return Err(error),
            Err(error) => {
                tracing::error!(file, %error, "cannot read a file of the log");
                contents.push(LogFileContents { error: Some(error), ..decode_file(file, &[]) });
            }
        }
    }
    Ok(LogContents { files: contents, synced })
}

fn decode_file(file: u64, bytes: &[u8]) -> LogFileContents {
    let mut rest = ByteReader::new(bytes);
    let head = rest.bytes().and_then(FileHead::decode).ok().map(|head| (head, bytes.len() - rest.remaining_length()));
    let is_head_damaged = head.is_none();
    let mut contents =
        LogFileContents { number: file, head: None, is_head_damaged, frames: Vec::new(), length: bytes.len() as u64, error: None };
    let Some((head, end)) = head.or_else(|| decode_damaged_head(bytes)) else { return contents };
    contents.frames = decode_frames(head, bytes, end);
    if !is_head_damaged {
        contents.head = Some((head, end as u64));
    } else if let Some(frame) = contents.frames.first() {
        // an epoch is random, so frames do not match it by chance
        contents.head = Some((FileHead { first_group: frame.first_group, ..head }, end as u64));
    }
    contents
}

/// Decodes a head without its checksum. Returns the end of the epoch as the end of the head.
fn decode_damaged_head(bytes: &[u8]) -> Option<(FileHead, usize)> {
    let mut reader = ByteReader::new(bytes.get(ID_AT..)?);
    let (id, epoch) = (reader.read_u64().ok()?, Epoch(reader.read_u64().ok()?));
    Some((FileHead { id, epoch, first_group: 0, checkpoint_group: 0 }, bytes.len() - reader.remaining_length()))
}

/// Decodes the frames from a position on, including those after damage.
fn decode_frames(head: FileHead, bytes: &[u8], from: usize) -> Vec<LogFrame> {
    let mut frames: Vec<LogFrame> = Vec::new();
    let (mut position, mut budget) = (from, bytes.len().saturating_mul(SEARCH_MAX));
    // frame whose last part was not decoded yet
    let mut unfinished: Option<LogFrame> = None;
    loop {
        let (part, is_after_damage) = match decode_part_at(head.epoch, bytes, position) {
            Ok(part) => (part, false),
            Err(_) => {
                let first_group_min = unfinished.as_ref().or(frames.last()).map_or(0, |frame| frame.first_group);
                let Some(part) = find_next_part(head.epoch, bytes, position, first_group_min, &mut budget) else { return frames };
                (part, true)
            }
        };
        position = part.end;
        let incomplete = unfinished.take_if(|frame| (frame.first_group, frame.last_group) != (part.first_group, part.last_group));
        let has_lost_its_end = incomplete.is_some();
        frames.extend(incomplete.map(|incomplete| LogFrame { is_partial: true, ..incomplete }));
        let expected = frames.last().map_or(head.first_group, |frame| frame.last_group + 1);
        // if no group is missing before this part, the damaged bytes were an earlier part of its
        // frame
        let is_partial = is_after_damage && !has_lost_its_end && (unfinished.is_some() || part.first_group == expected);
        let FramePart { first_group, last_group, checkpoint_group, .. } = part;
        let frame =
            unfinished.get_or_insert(LogFrame { first_group, last_group, checkpoint_group, parts: Vec::new(), end: 0, is_partial: false });
        frame.parts.push(part.block.to_vec());
        (frame.end, frame.is_partial) = (part.end as u64, frame.is_partial || is_partial);
        if !part.is_continued {
            frames.extend(unfinished.take());
        }
    }
}

/// Returns the next intact part after a damaged one. Tries the position at which the damaged part
/// ends according to its length, and then searches for the first position with an intact part.
fn find_next_part<'a>(epoch: Epoch, bytes: &'a [u8], damaged_at: usize, first_group_min: u64, budget: &mut usize) -> Option<FramePart<'a>> {
    if let Ok((_, end)) = checked_bytes_at(bytes, damaged_at)
        && let Ok(part) = decode_part_at(epoch, bytes, end)
    {
        return Some(part);
    }
    for position in damaged_at + 1..bytes.len() {
        let Ok((checked, _)) = checked_bytes_at(bytes, position) else { continue };
        let body = checked.split_last_chunk::<CHECKSUM_LENGTH>().map_or(&[][..], |(body, _)| body);
        // the fields are checked first, because the checksum takes long
        if !decode_part_body(body).is_ok_and(|part| part.first_group >= first_group_min) {
            continue;
        }
        *budget = budget.checked_sub(checked.len())?;
        if let Ok(part) = decode_part_at(epoch, bytes, position) {
            return Some(part);
        }
    }
    None
}

/// Returns the checksummed bytes whose length is stored at `position`, and the position of their
/// end.
fn checked_bytes_at(bytes: &[u8], position: usize) -> Result<(&[u8], usize), DecodeError> {
    let mut rest = ByteReader::new(bytes.get(position..).ok_or(DecodeError::Truncated)?);
    let checked = rest.bytes()?;
    Ok((checked, bytes.len() - rest.remaining_length()))
}

fn decode_part_at(epoch: Epoch, bytes: &[u8], position: usize) -> Result<FramePart<'_>, DecodeError> {
    let (checked, end) = checked_bytes_at(bytes, position)?;
    Ok(FramePart { end, ..decode_part_body(verify_checksum(&epoch.0.to_le_bytes(), checked)?)? })
}

/// Decodes a part without its checksum.
fn decode_part_body(body: &[u8]) -> Result<FramePart<'_>, DecodeError> {
    let mut reader = ByteReader::with_version(body, FORMAT_VERSION)?;
    let (first_group, last_group, is_continued, checkpoint_group) =
        (reader.varint()?, reader.varint()?, reader.flags(1)? == 1, reader.varint()?);
    if first_group == 0 || last_group < first_group || last_group == u64::MAX {
        return Err(DecodeError::Field("groups"));
    }
    Ok(FramePart { first_group, last_group, is_continued, checkpoint_group, block: reader.rest(), end: 0 })
}
