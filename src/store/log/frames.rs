//! What is in the files of the log, as docs/develop/store.md has it byte by byte ("The log").
//!
//! Owns: their bytes, and reading on behind damage: a frame that is damaged costs itself. Deliberately lacks: writing (`log`), and which frames a
//! start can use (`run`).

use std::{io, mem};

use super::files::Files;
use super::synced_mark::SyncedMark;
use crate::model::Epoch;
use crate::store::encoding::bytes::{CHECKSUM_LENGTH, Malformed, Reader, put_text, put_varint, seal, unseal};
use crate::store::encoding::group::Changes;
use crate::store::encoding::pairs::PairsWriter;
use crate::store::error::is_exhausted;

/// The form of heads and frames.
const FORM: u8 = 3;

/// Stands in for the epoch where the head's checksum is made, since only the head tells it.
const HEAD_KEY: &[u8] = b"log";

/// One part of a frame has so many keys and values and the last of them, in bytes before compression: a frame of a million keys that waited for a
/// full disk is never in memory as a whole.
const PART_RAW_BYTES: usize = if cfg!(test) { 64 << 10 } else { 4 << 20 };

/// How often the bytes of a file are checksummed, at most, in search of the next frame behind a damaged one. By chance that is a fraction of once;
/// values of an attacker could ask for a million times.
const SEARCH_MAX: usize = 16;

/// Where the id is in a file: behind the length of the head, which is one byte, and the form.
const ID_AT: usize = 2;
/// The beginning of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct FileHead {
    pub(in crate::store) id: u64,
    pub(in crate::store) epoch: Epoch,
    /// The number of the first group that it is for.
    pub(in crate::store) first: u64,
    pub(in crate::store) folded: u64,
}

/// Some groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct Frame {
    pub(in crate::store) first: u64,
    pub(in crate::store) last: u64,
    pub(in crate::store) folded: u64,
    /// The pairs of its parts, one after the other.
    pub(in crate::store) parts: Vec<Vec<u8>>,
    /// Where it ends in the file.
    pub(in crate::store) end: u64,
    /// Whether some of its parts are damaged.
    pub(super) is_partial: bool,
}

/// What is in the files of the log.
#[derive(Debug)]
pub(in crate::store) struct LogRead {
    /// In the order of their numbers, whatever store they are of.
    pub(in crate::store) files: Vec<FileRead>,
    /// What is known to have been synced.
    pub(in crate::store) synced: Option<SyncedMark>,
}

/// A file as far as it can be read.
#[derive(Debug)]
pub(in crate::store) struct FileRead {
    pub(in crate::store) file: u64,
    /// The head and where it ends. `None` where not even that can be read.
    pub(in crate::store) head: Option<(FileHead, u64)>,
    /// Whether the head does not match its checksum, and the frames show that its epoch is right.
    pub(super) is_head_damaged: bool,
    pub(in crate::store) frames: Vec<Frame>,
    pub(in crate::store) length: u64,
    /// Why nothing of the file can be read.
    pub(in crate::store) error: Option<io::Error>,
}

/// A frame, or a part of one.
struct Part<'a> {
    first: u64,
    last: u64,
    /// Whether more parts of the same frame follow.
    more: bool,
    folded: u64,
    pairs: &'a [u8],
    /// Where it ends in the file.
    end: usize,
}

impl FileHead {
    pub(in crate::store) fn write(self) -> Vec<u8> {
        let mut out = vec![FORM];
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        put_varint(&mut out, self.first);
        put_varint(&mut out, self.folded);
        framed(&seal(HEAD_KEY, out))
    }

    fn read(sealed: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::body(unseal(HEAD_KEY, sealed)?, FORM)?;
        let (id, epoch) = (reader.fixed()?, Epoch(reader.fixed()?));
        let (first, folded) = (reader.varint()?, reader.varint()?);
        reader.finish()?;
        if first == 0 { Err(Malformed::Field("first group")) } else { Ok(Self { id, epoch, first, folded }) }
    }
}

fn framed(sealed: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_text(&mut out, sealed);
    out
}

/// Writes a frame, part by part.
pub(in crate::store) fn write(
    epoch: Epoch,
    (first, last): (u64, u64),
    folded: u64,
    changes: &Changes,
    put: &mut dyn FnMut(Vec<u8>) -> io::Result<()>,
) -> io::Result<()> {
    let mut part = |pairs: PairsWriter, more: bool| {
        let mut out = vec![FORM];
        put_varint(&mut out, first);
        put_varint(&mut out, last);
        out.push(u8::from(more));
        put_varint(&mut out, folded);
        out.extend_from_slice(&pairs.finish());
        put(framed(&seal(&epoch.0.to_le_bytes(), out)))
    };
    let mut pairs = PairsWriter::default();
    for (key, value) in changes {
        if pairs.raw_bytes() > PART_RAW_BYTES {
            part(mem::take(&mut pairs), true)?;
        }
        pairs.add(key, value.as_ref().map(|value| value.body()).as_deref());
    }
    part(pairs, false)
}

/// Reads all files. Fails where the process is out of memory or of file descriptors, which says nothing of the files.
pub(in crate::store) fn read_all(files: &dyn Files) -> io::Result<LogRead> {
    // before the files: it may lie behind what is written meanwhile, never ahead of what is read
    let synced = files.synced();
    let mut read = Vec::new();
    for file in files.numbers()? {
        match files.read(file) {
            Ok(bytes) => read.push(read_file(file, &bytes)),
            // removed since
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_exhausted(&error) => return Err(error),
            Err(error) => {
                tracing::error!(file, %error, "cannot read a file of the log");
                read.push(FileRead { error: Some(error), ..read_file(file, &[]) });
            }
        }
    }
    Ok(LogRead { files: read, synced })
}

fn read_file(file: u64, bytes: &[u8]) -> FileRead {
    let mut rest = Reader::over(bytes);
    let head = rest.bytes().and_then(FileHead::read).ok().map(|head| (head, bytes.len() - rest.left()));
    let is_head_damaged = head.is_none();
    let mut read = FileRead { file, head: None, is_head_damaged, frames: Vec::new(), length: bytes.len() as u64, error: None };
    let Some((head, end)) = head.or_else(|| head_of_damaged(bytes)) else { return read };
    read.frames = read_frames(head, bytes, end);
    if !is_head_damaged {
        read.head = Some((head, end as u64));
    } else if let Some(frame) = read.frames.first() {
        // an epoch is random, so what matches it is no chance
        read.head = Some((FileHead { first: frame.first, ..head }, end as u64));
    }
    read
}

/// What a head says that does not match its checksum, and where the epoch ends, which stands in for the end of the head.
fn head_of_damaged(bytes: &[u8]) -> Option<(FileHead, usize)> {
    let mut reader = Reader::over(bytes.get(ID_AT..)?);
    let (id, epoch) = (reader.fixed().ok()?, Epoch(reader.fixed().ok()?));
    Some((FileHead { id, epoch, first: 0, folded: 0 }, bytes.len() - reader.left()))
}

/// Reads the frames from a position on, also those behind damage.
fn read_frames(head: FileHead, bytes: &[u8], from: usize) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    let (mut at, mut budget) = (from, bytes.len().saturating_mul(SEARCH_MAX));
    // the parts that were read of a frame that is not complete yet
    let mut open: Option<Frame> = None;
    loop {
        let (part, is_behind_damage) = match part_at(head.epoch, bytes, at) {
            Ok(part) => (part, false),
            Err(_) => {
                let lowest = open.as_ref().or(frames.last()).map_or(0, |frame| frame.first);
                let Some(part) = next_part(head.epoch, bytes, at, lowest, &mut budget) else { return frames };
                (part, true)
            }
        };
        at = part.end;
        let incomplete = open.take_if(|open| (open.first, open.last) != (part.first, part.last));
        let has_lost_its_end = incomplete.is_some();
        frames.extend(incomplete.map(|incomplete| Frame { is_partial: true, ..incomplete }));
        let expected = frames.last().map_or(head.first, |frame| frame.last + 1);
        // where no group is missing, what is damaged is a part of this frame
        let is_partial = is_behind_damage && !has_lost_its_end && (open.is_some() || part.first == expected);
        let Part { first, last, folded, .. } = part;
        let frame = open.get_or_insert(Frame { first, last, folded, parts: Vec::new(), end: 0, is_partial: false });
        frame.parts.push(part.pairs.to_vec());
        (frame.end, frame.is_partial) = (part.end as u64, frame.is_partial || is_partial);
        if !part.more {
            frames.extend(open.take());
        }
    }
}

/// Finds the next frame behind a damaged one: where that one says that it ends, or else wherever there is one.
fn next_part<'a>(epoch: Epoch, bytes: &'a [u8], damaged: usize, lowest: u64, budget: &mut usize) -> Option<Part<'a>> {
    if let Ok((_, end)) = sealed_at(bytes, damaged)
        && let Ok(part) = part_at(epoch, bytes, end)
    {
        return Some(part);
    }
    for at in damaged + 1..bytes.len() {
        let Ok((sealed, _)) = sealed_at(bytes, at) else { continue };
        let body = sealed.split_last_chunk::<CHECKSUM_LENGTH>().map_or(&[][..], |(body, _)| body);
        // before the checksum, which takes long
        if !read_body(body).is_ok_and(|part| part.first >= lowest) {
            continue;
        }
        *budget = budget.checked_sub(sealed.len())?;
        if let Ok(part) = part_at(epoch, bytes, at) {
            return Some(part);
        }
    }
    None
}

/// The sealed bytes that begin at a position with their length, and where they end.
fn sealed_at(bytes: &[u8], at: usize) -> Result<(&[u8], usize), Malformed> {
    let mut rest = Reader::over(bytes.get(at..).ok_or(Malformed::Truncated)?);
    let sealed = rest.bytes()?;
    Ok((sealed, bytes.len() - rest.left()))
}

fn part_at(epoch: Epoch, bytes: &[u8], at: usize) -> Result<Part<'_>, Malformed> {
    let (sealed, end) = sealed_at(bytes, at)?;
    Ok(Part { end, ..read_body(unseal(&epoch.0.to_le_bytes(), sealed)?)? })
}

/// Reads what a part says, without its checksum.
fn read_body(body: &[u8]) -> Result<Part<'_>, Malformed> {
    let mut reader = Reader::body(body, FORM)?;
    let (first, last, more, folded) = (reader.varint()?, reader.varint()?, reader.flags(1)? == 1, reader.varint()?);
    if first == 0 || last < first || last == u64::MAX {
        return Err(Malformed::Field("groups"));
    }
    Ok(Part { first, last, more, folded, pairs: reader.rest(), end: 0 })
}
