//! The run: the frames of the log that a start can use, and which groups are missing between them.
//!
//! A file goes on where those before it end. What it has itself counts more than what these have of the same groups: it was begun after an
//! error, and nobody knows what that left.
//!
//! A run that ends early is no damage: a kill tears the last frame, and a power cut takes what was not synced. Groups that were synced, and groups
//! that have readable frames behind them in the same file, were there: their absence is damage. The frames behind them still count.

use std::io;
use std::sync::Arc;

use super::files::{self, Files, LogFileInfo};
use super::frames::{FileHead, FileRead, Frame, LogRead};
use crate::model::Epoch;
use crate::store::encoding::bytes::Malformed;
use crate::store::encoding::pairs::{Pairs, read_pairs};
use crate::store::error::EngineError;
use crate::store::threads::in_threads;

/// Minimum number of bytes of frames that are decoded together: a start searches each of them for every key.
const RUN_STORED_BYTES: usize = 64 << 10;

/// How many ranges of groups are named; of a wrecked log there may be thousands.
const RANGES_NAMED_MAX: usize = 8;

/// How many bits of the id may be others in a head that is damaged: ids are random, so two logs differ in some 32.
const DAMAGED_BITS_MAX: u32 = 8;

/// What a start finds of a log.
#[derive(Debug, Default)]
pub(in crate::store) struct Run {
    /// The id that the log and its store share.
    pub(in crate::store) id: u64,
    /// The first group that the files are for, 0 where there is none of this store.
    pub(in crate::store) first: u64,
    /// The last one that is there.
    pub(in crate::store) last: u64,
    /// The chunks had everything up to this group.
    pub(in crate::store) folded: u64,
    frames: Vec<Frame>,
    /// Ranges of groups that were in the log and are missing, or missing in part.
    lost: Vec<(u64, u64)>,
    /// What else is damaged, in words.
    damage: Vec<String>,
    pub(in crate::store) pieces: Vec<LogFileInfo>,
    pub(super) next_file: u64,
    /// Files of others, and those behind the end.
    junk: Vec<u64>,
    /// Files that have more than what counts.
    torn: Vec<u64>,
}

/// What some groups did to keys.
#[derive(Debug, Clone)]
pub(in crate::store) struct LogRun {
    pub(in crate::store) first: u64,
    /// The last group in which any of it had happened: a chunk that has this group has the changes.
    pub(in crate::store) last: u64,
    /// The last change of each key, in key order.
    pub(in crate::store) pairs: Arc<Pairs>,
}

impl Run {
    /// What of the files of a store can be used, whose chunks have everything up to group `folded`.
    pub(in crate::store) fn of(id: u64, folded: u64, log: LogRead) -> Self {
        let mut run = Self { id, ..Self::default() };
        let synced = log.synced.filter(|mark| mark.id == id).map(|mark| mark.group);
        let mut ended = false;
        // a file that cannot be read, until the one behind it shows what is missing
        let mut unread: Option<String> = None;
        for read in log.files {
            if let Some(error) = &read.error {
                unread = Some(format!("file {} of its log cannot be read ({error})", read.file));
            }
            let is_ours = |head: FileHead| {
                let bits = (head.id ^ id).count_ones();
                bits == 0 || read.is_head_damaged && bits <= DAMAGED_BITS_MAX
            };
            let Some((head, end)) = read.head.filter(|(head, _)| is_ours(*head)) else {
                run.junk.push(read.file);
                continue;
            };
            run.next_file = run.next_file.max(read.file + 1);
            if run.first > 0 && head.first > run.last + 1 && head.first <= folded + 1 {
                // files that were removed may be there again after a power cut, and others not
                run.junk.extend(run.pieces.drain(..).map(|piece| piece.file));
                (run.first, ended) = (0, false);
                run.frames.clear();
                run.lost.clear();
            }
            let unread = unread.take();
            if !ended && head.first > run.last.max(folded) + 1 {
                if run.first == 0 {
                    // `slot_scan` says which groups are missing at the beginning
                    run.damage.extend(unread);
                } else if unread.is_some() || synced.is_none_or(|synced| run.last < synced) {
                    run.miss(folded, head.first);
                    run.damage.extend(unread);
                } else {
                    // the end of the file before it was not synced, and went with a power cut
                    ended = true;
                }
            }
            if ended { run.junk.push(read.file) } else { run.take(read, head, end, folded) }
        }
        if let Some(synced) = synced.filter(|_| run.first > 0) {
            run.miss(folded, synced + 1);
        }
        run.damage.extend(unread);
        run
    }

    /// Notes that the groups from the end of the run to the one before `next` are lost, but for those that all chunks have.
    fn miss(&mut self, folded: u64, next: u64) {
        let first = self.last.max(folded) + 1;
        if first < next {
            self.lost.push((first, next - 1));
        }
    }

    /// Takes a file that goes on from there, over gaps.
    fn take(&mut self, read: FileRead, head: FileHead, end: u64, folded: u64) {
        if self.first == 0 {
            (self.first, self.last) = (head.first, head.first - 1);
        }
        self.last = self.last.max(head.first - 1);
        self.folded = self.folded.max(head.folded);
        if read.is_head_damaged {
            self.damage.push(format!("the head of file {} of its log is damaged", read.file));
        }
        let mut end = end;
        for frame in read.frames {
            while let Some(before) = self.frames.pop_if(|before| before.last >= frame.first) {
                self.last = before.first - 1;
            }
            self.miss(folded, frame.first);
            if frame.is_partial && frame.last > folded {
                self.lost.push((frame.first, frame.last));
            }
            self.last = frame.last;
            self.folded = self.folded.max(frame.folded);
            end = frame.end;
            self.frames.push(frame);
        }
        if end < read.length {
            self.torn.push(read.file);
        }
        self.pieces.push(LogFileInfo { file: read.file, first: head.first, last: self.last, bytes: end, synced_bytes: end });
    }

    /// Whether there is nothing of this store.
    pub(in crate::store) const fn is_missing(&self) -> bool {
        self.first == 0
    }

    /// What is damaged of the log up to a group, in words.
    pub(in crate::store) fn damage(&self, upto: u64) -> Vec<String> {
        let mut damage = self.damage.clone();
        let lost: Vec<(u64, u64)> = self.lost.iter().copied().filter(|(first, _)| *first <= upto).collect();
        let named = lost.iter().take(RANGES_NAMED_MAX).map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first} to {last}"),
        });
        let named: Vec<String> = named.collect();
        let unnamed = lost.len() - named.len();
        let more = if unnamed > 0 { format!(" and {unnamed} more ranges") } else { String::new() };
        let word = if matches!(*lost, [(first, last)] if first == last) { "group" } else { "groups" };
        if !lost.is_empty() {
            damage.push(format!("its log is damaged, and changes of {word} {}{more} are lost", named.join(", ")));
        }
        damage
    }

    /// Removes what does not count, and makes the rest outlive a power cut.
    pub(in crate::store) fn clean(&mut self, files: &dyn Files) -> io::Result<()> {
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

    /// Starts an empty log that replaces everything that exists.
    pub(in crate::store) fn begin(id: u64, first: u64, files: &dyn Files) -> io::Result<Self> {
        let old = files.numbers()?;
        let file = files::create_next(files, old.last().map_or(1, |last| last + 1))?;
        let head = FileHead { id, epoch: Epoch(rand::random()), first, folded: first - 1 };
        files.append(file, &head.write())?;
        files.sync(file)?;
        files.sync_directory()?;
        let bytes = head.write().len() as u64;
        let piece = LogFileInfo { file, first, last: first - 1, bytes, synced_bytes: bytes };
        Ok(Self { id, first, last: first - 1, folded: first - 1, pieces: vec![piece], next_file: file + 1, junk: old, ..Self::default() })
    }

    /// How many frames there are, and how many bytes they take.
    pub(in crate::store) fn size(&self) -> (u64, u64) {
        (self.frames.len() as u64, self.pieces.iter().map(|piece| piece.bytes).sum())
    }

    /// What the groups above one and up to another did, oldest first, and how many frames cannot be read. Frames with a gap between them are
    /// not taken together: a chunk may have what is missing there.
    pub(in crate::store) fn changes(&self, above: u64, upto: u64) -> Result<(Vec<LogRun>, u64), EngineError> {
        let (mut together, mut bytes, mut next): (Vec<Vec<&Frame>>, usize, u64) = (Vec::new(), 0, 0);
        for frame in self.frames.iter().filter(|frame| frame.last > above && frame.last <= upto) {
            if bytes >= RUN_STORED_BYTES || frame.first != next {
                together.push(Vec::new());
                bytes = 0;
            }
            bytes += frame.parts.iter().map(Vec::len).sum::<usize>();
            next = frame.last + 1;
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
