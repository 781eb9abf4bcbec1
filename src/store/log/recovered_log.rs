//! The recovered log: the frames that a start can use, and the groups that are missing between
//! them.
//!
//! A file continues where the previous ones end. Its frames override those of earlier files with
//! the same groups, because it was created after an error, and the end of the earlier file is then
//! undefined.
//!
//! A log that ends early is not damaged: a kill tears the last frame, and a power cut loses the
//! unsynced end. Groups that were synced, or that have readable frames after them in the same file,
//! did exist, so their absence is damage. The frames after them are still used.

use std::io;
use std::sync::Arc;

use super::files::{self, LogFileInfo, LogFiles};
use super::frames::{FileHead, LogContents, LogFileContents, LogFrame};
use crate::model::Epoch;
use crate::store::encoding::block::{KeyValueBlock, decode_block};
use crate::store::encoding::checksum::DecodeError;
use crate::store::error::EngineError;
use crate::store::threads::map_in_threads;

/// Minimum number of stored bytes of frames that are decoded together. Early lookups search every
/// batch, so fewer batches make them faster.
const BATCH_STORED_BYTES: usize = 64 << 10;

/// Maximum number of ranges in a message. A destroyed log may have thousands.
const RANGES_NAMED_MAX: usize = 8;

/// Maximum number of bits of the id that may differ in a damaged head. Ids are random, so those of
/// two logs differ in about 32 bits.
const DAMAGED_BITS_MAX: u32 = 8;

/// Usable content of the log.
#[derive(Debug, Default)]
pub(in crate::store) struct RecoveredLog {
    /// Id that the log and its store share.
    pub(in crate::store) id: u64,
    /// First group of the files. 0 if no file belongs to this store.
    pub(in crate::store) first_group: u64,
    /// Last group that is present.
    pub(in crate::store) last_group: u64,
    /// Highest group of a checkpoint that a head or a frame names.
    pub(in crate::store) checkpoint_group: u64,
    frames: Vec<LogFrame>,
    /// Ranges of groups that are missing at least partly.
    lost_groups: Vec<(u64, u64)>,
    /// Other damage, human-readable.
    damage: Vec<String>,
    pub(in crate::store) log_files: Vec<LogFileInfo>,
    pub(super) next_file: u64,
    /// Files of other stores, and files after the end.
    unused_files: Vec<u64>,
    /// Files with unusable bytes at their end.
    torn_files: Vec<u64>,
}

/// Changes of consecutive groups.
#[derive(Debug, Clone)]
pub(in crate::store) struct LogBatch {
    pub(in crate::store) first_group: u64,
    /// Last of the groups. A chunk that contains it has all the changes.
    pub(in crate::store) last_group: u64,
    /// Last change of each key, sorted by key.
    pub(in crate::store) block: Arc<KeyValueBlock>,
}

impl RecoveredLog {
    /// Selects the usable frames of a store whose chunks contain everything up to
    /// `checkpoint_group`.
    pub(in crate::store) fn from_contents(id: u64, checkpoint_group: u64, log: LogContents) -> Self {
        let mut recovered = Self { id, ..Self::default() };
        let synced = log.synced.filter(|mark| mark.id == id).map(|mark| mark.group);
        let mut ended = false;
        // message about a file that cannot be read, until the next file shows which groups are
        // missing
        let mut unreadable_file: Option<String> = None;
        for contents in log.files {
            if let Some(error) = &contents.error {
                unreadable_file = Some(format!("file {} of its log cannot be read ({error})", contents.number));
            }
            let is_ours = |head: FileHead| {
                let bits = (head.id ^ id).count_ones();
                bits == 0 || contents.is_head_damaged && bits <= DAMAGED_BITS_MAX
            };
            let Some((head, end)) = contents.head.filter(|(head, _)| is_ours(*head)) else {
                recovered.unused_files.push(contents.number);
                continue;
            };
            recovered.next_file = recovered.next_file.max(contents.number + 1);
            if recovered.first_group > 0 && head.first_group > recovered.last_group + 1 && head.first_group <= checkpoint_group + 1 {
                // a power cut may restore removed files, but not all of them
                recovered.unused_files.extend(recovered.log_files.drain(..).map(|log_file| log_file.number));
                (recovered.first_group, ended) = (0, false);
                recovered.frames.clear();
                recovered.lost_groups.clear();
            }
            let unreadable_before = unreadable_file.take();
            if !ended && head.first_group > recovered.last_group.max(checkpoint_group) + 1 {
                if recovered.first_group == 0 {
                    // `slot_scan` reports groups that are missing at the beginning
                    recovered.damage.extend(unreadable_before);
                } else if unreadable_before.is_some() || synced.is_none_or(|synced| recovered.last_group < synced) {
                    recovered.record_lost_groups(checkpoint_group, head.first_group);
                    recovered.damage.extend(unreadable_before);
                } else {
                    // a power cut lost the unsynced end of the previous file
                    ended = true;
                }
            }
            if ended { recovered.unused_files.push(contents.number) } else { recovered.append_file(contents, head, end, checkpoint_group) }
        }
        if let Some(synced) = synced.filter(|_| recovered.first_group > 0) {
            recovered.record_lost_groups(checkpoint_group, synced + 1);
        }
        recovered.damage.extend(unreadable_file);
        recovered
    }

    /// Records that the groups before `next` are lost, except those that all chunks contain.
    fn record_lost_groups(&mut self, checkpoint_group: u64, next: u64) {
        let first = self.last_group.max(checkpoint_group) + 1;
        if first < next {
            self.lost_groups.push((first, next - 1));
        }
    }

    /// Appends the frames of a file, and records the groups that are missing between them.
    fn append_file(&mut self, contents: LogFileContents, head: FileHead, end: u64, checkpoint_group: u64) {
        if self.first_group == 0 {
            (self.first_group, self.last_group) = (head.first_group, head.first_group - 1);
        }
        self.last_group = self.last_group.max(head.first_group - 1);
        self.checkpoint_group = self.checkpoint_group.max(head.checkpoint_group);
        if contents.is_head_damaged {
            self.damage.push(format!("the head of file {} of its log is damaged", contents.number));
        }
        let mut end = end;
        for frame in contents.frames {
            while let Some(overridden) = self.frames.pop_if(|overridden| overridden.last_group >= frame.first_group) {
                self.last_group = overridden.first_group - 1;
            }
            self.record_lost_groups(checkpoint_group, frame.first_group);
            if frame.is_partial && frame.last_group > checkpoint_group {
                self.lost_groups.push((frame.first_group, frame.last_group));
            }
            self.last_group = frame.last_group;
            self.checkpoint_group = self.checkpoint_group.max(frame.checkpoint_group);
            end = frame.end;
            self.frames.push(frame);
        }
        if end < contents.length {
            self.torn_files.push(contents.number);
        }
        self.log_files.push(LogFileInfo {
            number: contents.number,
            first_group: head.first_group,
            last_group: self.last_group,
            bytes: end,
            synced_bytes: end,
        });
    }

    /// Returns whether no file belongs to this store.
    pub(in crate::store) const fn is_missing(&self) -> bool {
        self.first_group == 0
    }

    /// Returns the damage of the log up to a group, human-readable.
    pub(in crate::store) fn damage_messages(&self, up_to: u64) -> Vec<String> {
        let mut damage = self.damage.clone();
        let lost_groups: Vec<(u64, u64)> = self.lost_groups.iter().copied().filter(|(first, _)| *first <= up_to).collect();
        let named = lost_groups.iter().take(RANGES_NAMED_MAX).map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first} to {last}"),
        });
        let named: Vec<String> = named.collect();
        let unnamed = lost_groups.len() - named.len();
        let more = if unnamed > 0 { format!(" and {unnamed} more ranges") } else { String::new() };
        let word = if matches!(*lost_groups, [(first, last)] if first == last) { "group" } else { "groups" };
        if !lost_groups.is_empty() {
            damage.push(format!("its log is damaged, and changes of {word} {}{more} are lost", named.join(", ")));
        }
        damage
    }

    /// Removes the unused files, truncates the torn ones, and syncs all files that remain.
    pub(in crate::store) fn truncate_and_sync(&mut self, files: &dyn LogFiles) -> io::Result<()> {
        for file in self.unused_files.drain(..) {
            match files.remove(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Err(_) | Ok(()) => {}
            }
        }
        for log_file in &self.log_files {
            if self.torn_files.contains(&log_file.number) {
                files.truncate(log_file.number, log_file.bytes)?;
            }
            files.sync(log_file.number)?;
        }
        files.sync_directory()
    }

    /// Creates an empty log that replaces all existing files.
    pub(in crate::store) fn create(id: u64, first: u64, files: &dyn LogFiles) -> io::Result<Self> {
        let old = files.list_numbers()?;
        let file = files::create_next_file(files, old.last().map_or(1, |last| last + 1))?;
        let head = FileHead { id, epoch: Epoch(rand::random()), first_group: first, checkpoint_group: first - 1 };
        files.append(file, &head.encode())?;
        files.sync(file)?;
        files.sync_directory()?;
        let bytes = head.encode().len() as u64;
        let log_file = LogFileInfo { number: file, first_group: first, last_group: first - 1, bytes, synced_bytes: bytes };
        Ok(Self {
            id,
            first_group: first,
            last_group: first - 1,
            checkpoint_group: first - 1,
            log_files: vec![log_file],
            next_file: file + 1,
            unused_files: old,
            ..Self::default()
        })
    }

    /// Returns the number of frames and the bytes of all files.
    pub(in crate::store) fn size(&self) -> (u64, u64) {
        (self.frames.len() as u64, self.log_files.iter().map(|log_file| log_file.bytes).sum())
    }

    /// Decodes the groups after `checkpoint_group` up to `up_to`, oldest first. Also returns the
    /// number of batches that cannot be decoded.
    ///
    /// A batch ends at a gap. A chunk may contain the missing groups, and must then get only the
    /// groups after them, because those before would restore older values.
    pub(in crate::store) fn decode_batches(&self, checkpoint_group: u64, up_to: u64) -> Result<(Vec<LogBatch>, u64), EngineError> {
        let (mut batch_frames, mut bytes, mut next): (Vec<Vec<&LogFrame>>, usize, u64) = (Vec::new(), 0, 0);
        for frame in self.frames.iter().filter(|frame| frame.last_group > checkpoint_group && frame.last_group <= up_to) {
            if bytes >= BATCH_STORED_BYTES || frame.first_group != next {
                batch_frames.push(Vec::new());
                bytes = 0;
            }
            bytes += frame.parts.iter().map(Vec::len).sum::<usize>();
            next = frame.last_group + 1;
            batch_frames.last_mut().into_iter().for_each(|batch| batch.push(frame));
        }
        let batches = map_in_threads(&batch_frames, |frames| decode_batch(frames))?;
        let unreadable = batches.iter().filter(|batch| batch.is_err()).count() as u64;
        Ok((batches.into_iter().flatten().collect(), unreadable))
    }
}

fn decode_batch(frames: &[&LogFrame]) -> Result<LogBatch, DecodeError> {
    let blocks = frames.iter().flat_map(|frame| &frame.parts).map(|part| decode_block(part)).collect::<Result<Vec<_>, _>>()?;
    let (first_group, last_group) =
        (frames.first().map_or(0, |frame| frame.first_group), frames.last().map_or(0, |frame| frame.last_group));
    Ok(LogBatch { first_group, last_group, block: Arc::new(KeyValueBlock::merge(blocks)) })
}
