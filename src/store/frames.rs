//! What is in the files of the log, as docs/store.md has it byte by byte ("The log"), and which of it a start can use.
//!
//! Owns: their bytes, and the *run*: the frames that follow each other without a gap. Deliberately lacks: writing (`log`), and whether the chunks fit
//! the run (`recover`).
//!
//! A file goes on where those before it end. What it has itself counts more than what these have of the same groups: it was begun after an
//! error, and nobody knows what that left.

use std::sync::Arc;
use std::{io, mem};

use super::bytes::{Malformed, Reader, open, put_text, put_varint, seal};
use super::error::EngineError;
use super::files::{self, Files, Piece};
use super::group::Changes;
use super::pairs::{Pairs, PairsWriter, read_pairs};
use super::threads::in_threads;
use crate::model::Epoch;

/// The form of heads and frames.
const FORM: u8 = 3;

/// Stands in for the epoch where the head's checksum is made, since only the head tells it.
const HEAD_KEY: &[u8] = b"log";

/// One part of a frame has so many keys and values and the last of them, in bytes before compression: a frame of a million keys that waited for a
/// full disk is never in memory as a whole.
const PART_RAW_BYTES: usize = if cfg!(test) { 64 << 10 } else { 4 << 20 };

/// Frames are taken apart together until they have so many bytes: a start looks for each key in each of them.
const RUN_STORED_BYTES: usize = 64 << 10;

/// The beginning of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileHead {
    pub(super) id: u64,
    pub(super) epoch: Epoch,
    /// The number of the first group that it is for.
    pub(super) first: u64,
    pub(super) folded: u64,
}

/// Some groups.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Frame {
    first: u64,
    last: u64,
    folded: u64,
    /// The pairs of its parts, one after the other.
    parts: Vec<Vec<u8>>,
    /// Where it ends in the file.
    end: u64,
}

/// A file as far as it can be read.
#[derive(Debug)]
pub(super) struct FileRead {
    file: u64,
    /// `None` where not even that can be read.
    head: Option<(FileHead, u64)>,
    frames: Vec<Frame>,
    length: u64,
}

/// What a start finds of a log.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The id that the log and its store share.
    pub(super) id: u64,
    /// The first group that the files are for, 0 where there is none of this store.
    pub(super) first: u64,
    /// The last one that is there.
    pub(super) last: u64,
    /// The chunks had everything up to this group.
    pub(super) folded: u64,
    frames: Vec<Frame>,
    pub(super) pieces: Vec<Piece>,
    pub(super) next_file: u64,
    /// Files of others, and those behind the end.
    junk: Vec<u64>,
    /// Files that have more than what counts.
    torn: Vec<u64>,
}

/// What some groups did to keys.
#[derive(Debug, Clone)]
pub(super) struct LogRun {
    pub(super) first: u64,
    /// The last group in which any of it had happened: a chunk that has this group has the changes.
    pub(super) last: u64,
    /// The last change of each key, in key order.
    pub(super) pairs: Arc<Pairs>,
}

impl FileHead {
    pub(super) fn write(self) -> Vec<u8> {
        let mut out = vec![FORM];
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        put_varint(&mut out, self.first);
        put_varint(&mut out, self.folded);
        framed(&seal(HEAD_KEY, out))
    }

    fn read(sealed: &[u8]) -> Result<Self, Malformed> {
        let mut reader = open(HEAD_KEY, sealed, FORM)?;
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
pub(super) fn write(
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

/// Reads all files, in order, whatever store they are of.
pub(super) fn read_all(files: &dyn Files) -> io::Result<Vec<FileRead>> {
    let read = |file| {
        let bytes = files.read(file).unwrap_or_else(|error| {
            tracing::warn!(file, %error, "a file of the log cannot be read");
            Vec::new()
        });
        read_file(file, &bytes)
    };
    Ok(files.numbers()?.into_iter().map(read).collect())
}

fn read_file(file: u64, bytes: &[u8]) -> FileRead {
    let length = bytes.len() as u64;
    let mut rest = Reader::over(bytes);
    let head = rest.bytes().and_then(FileHead::read).ok();
    let at = |rest: &Reader<'_>| length - rest.left() as u64;
    let mut read = FileRead { file, head: head.map(|head| (head, at(&rest))), frames: Vec::new(), length };
    let Some(head) = head else { return read };
    let mut parts = Vec::new();
    while let Ok((first, last, more, folded, pairs)) = rest.bytes().and_then(|sealed| read_part(head.epoch, sealed)) {
        parts.push(pairs);
        if !more {
            let parts = mem::take(&mut parts);
            read.frames.push(Frame { first, last, folded, parts, end: at(&rest) });
        }
    }
    read
}

fn read_part(epoch: Epoch, sealed: &[u8]) -> Result<(u64, u64, bool, u64, Vec<u8>), Malformed> {
    let mut reader = open(&epoch.0.to_le_bytes(), sealed, FORM)?;
    let (first, last, more, folded) = (reader.varint()?, reader.varint()?, reader.flags(1)? == 1, reader.varint()?);
    if first == 0 || last < first { Err(Malformed::Field("groups")) } else { Ok((first, last, more, folded, reader.rest().to_vec())) }
}

impl Run {
    /// What of the files of a store can be used, whose chunks have everything up to group `folded`.
    pub(super) fn of(id: u64, folded: u64, files: Vec<FileRead>) -> Self {
        let mut run = Self { id, ..Self::default() };
        let mut ended = false;
        for read in files {
            let Some((head, end)) = read.head.filter(|(head, _)| head.id == id) else {
                run.junk.push(read.file);
                continue;
            };
            run.next_file = run.next_file.max(read.file + 1);
            if run.first > 0 && head.first > run.last + 1 && head.first <= folded + 1 {
                // files that were removed may be there again after a power cut, and others not
                run.junk.extend(run.pieces.drain(..).map(|piece| piece.file));
                (run.first, ended) = (0, false);
                run.frames.clear();
            }
            ended |= run.first > 0 && head.first > run.last + 1;
            if ended {
                run.junk.push(read.file);
            } else {
                ended = run.take(read, head, end);
            }
        }
        run
    }

    /// Takes a file that goes on from there. Returns whether there is a gap in it.
    fn take(&mut self, read: FileRead, head: FileHead, end: u64) -> bool {
        if self.first == 0 {
            (self.first, self.last) = (head.first, head.first - 1);
        }
        self.folded = self.folded.max(head.folded);
        let (mut end, mut gap) = (end, false);
        for frame in read.frames {
            while let Some(before) = self.frames.pop_if(|before| before.last >= frame.first) {
                self.last = before.first - 1;
            }
            gap = frame.first != self.last + 1;
            if gap {
                break;
            }
            self.last = frame.last;
            self.folded = self.folded.max(frame.folded);
            end = frame.end;
            self.frames.push(frame);
        }
        if end < read.length {
            self.torn.push(read.file);
        }
        self.pieces.push(Piece { file: read.file, first: head.first, last: self.last, bytes: end, synced_bytes: end });
        gap
    }

    /// Whether there is nothing of this store.
    pub(super) const fn is_missing(&self) -> bool {
        self.first == 0
    }

    /// Removes what does not count, and makes the rest outlive a power cut.
    pub(super) fn clean(&mut self, files: &dyn Files) -> io::Result<()> {
        for file in self.junk.drain(..) {
            match files.remove(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Err(_) | Ok(()) => {}
            }
        }
        for piece in &self.pieces {
            if self.torn.contains(&piece.file) {
                files.cut(piece.file, piece.bytes)?;
            }
            files.sync(piece.file)?;
        }
        files.sync_directory()
    }

    /// Begins a log anew, in place of everything that is there.
    pub(super) fn begin(id: u64, first: u64, files: &dyn Files) -> io::Result<Self> {
        let old = files.numbers()?;
        let file = files::create_next(files, old.last().map_or(1, |last| last + 1))?;
        let head = FileHead { id, epoch: Epoch(rand::random()), first, folded: first - 1 };
        files.append(file, &head.write())?;
        files.sync(file)?;
        files.sync_directory()?;
        let bytes = head.write().len() as u64;
        let piece = Piece { file, first, last: first - 1, bytes, synced_bytes: bytes };
        Ok(Self { id, first, last: first - 1, folded: first - 1, pieces: vec![piece], next_file: file + 1, junk: old, ..Self::default() })
    }

    /// How many frames there are, and how many bytes they take.
    pub(super) fn size(&self) -> (u64, u64) {
        (self.frames.len() as u64, self.pieces.iter().map(|piece| piece.bytes).sum())
    }

    /// What the groups above one and up to another did, oldest first, and how many frames cannot be read.
    pub(super) fn changes(&self, above: u64, upto: u64) -> Result<(Vec<LogRun>, u64), EngineError> {
        let (mut together, mut bytes): (Vec<Vec<&Frame>>, usize) = (Vec::new(), RUN_STORED_BYTES);
        for frame in self.frames.iter().filter(|frame| frame.last > above && frame.last <= upto) {
            if bytes >= RUN_STORED_BYTES {
                together.push(Vec::new());
                bytes = 0;
            }
            bytes += frame.parts.iter().map(Vec::len).sum::<usize>();
            together.last_mut().into_iter().for_each(|run| run.push(frame));
        }
        let read = in_threads(&together, |frames| read_run(frames))?;
        let unreadable = read.iter().filter(|run| run.is_err()).count() as u64;
        Ok((read.into_iter().flatten().collect(), unreadable))
    }
}

fn read_run(frames: &[&Frame]) -> Result<LogRun, Malformed> {
    let pairs = frames.iter().flat_map(|frame| &frame.parts).map(|part| read_pairs(part)).collect::<Result<Vec<_>, _>>()?;
    let (first, last) = (frames.first().map_or(0, |frame| frame.first), frames.last().map_or(0, |frame| frame.last));
    Ok(LogRun { first, last, pairs: Arc::new(Pairs::merged(pairs)) })
}
