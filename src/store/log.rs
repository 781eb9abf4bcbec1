//! The write-ahead log: every group of changes in order, until the chunks contain it.
//!
//! The committer appends each group before any reader sees it, so the group survives a kill. The
//! storing thread syncs the log every 25 to 40 ms, and then the group survives a power cut. Only
//! synced groups are added to the chunks, because an entry and the cursor that covers it are in
//! different chunks. Otherwise a power cut could leave the chunk with the cursor, but lose the
//! group with the entry.
//!
//! A frame contains consecutive groups. If a write or sync fails, the file is truncated to its
//! synced length, and the groups after it are written later as one frame into a new file. `frames`
//! encodes them, `recovered_log` decides which of them a start uses.

pub(super) mod files;
pub(super) mod frames;
pub(super) mod recovered_log;
pub(super) mod synced_mark;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use self::files::{LogFileInfo, LogFiles};
use self::frames::FileHead;
use self::recovered_log::RecoveredLog;
use self::synced_mark::SyncedMark;
use super::encoding::group::{Group, KeyChanges};
use crate::instruments::{LogLimiter, LogPermit};
use crate::model::{Epoch, ReplacedRecordSink, ReplacedRecords};

/// Size above which the next group begins a new file, in bytes. Old files can then be removed. A
/// file is full after a few seconds at the highest planned rate.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Maximum size of all files while the engine accepts no changes, in bytes. It lasts some minutes
/// at the highest rate. Above it, nothing is written until the engine accepts changes again.
const TOTAL_BYTES_MAX: u64 = 256 << 20;

/// Recently logged failures to write the log.
static WRITE_FAILURES: LogLimiter = LogLimiter::new();

/// The log of an open store. The committer appends to it, and the storing thread does everything
/// else.
#[derive(Debug)]
pub struct WriteAheadLog {
    files: Arc<dyn LogFiles>,
    state: Mutex<LogState>,
    /// True if the newest group could not be written when it was appended.
    append_fails: AtomicBool,
    /// The history, if there is one.
    history: OnceLock<Arc<dyn ReplacedRecordSink>>,
}

#[derive(Debug, Default)]
struct LogState {
    /// Random id of this log. The checkpoint has the same one.
    log_id: u64,
    /// Epoch of this start, or a random one if none was set.
    epoch: Option<Epoch>,
    /// False until a store exists. Until then, groups only get their numbers.
    is_open: bool,
    /// Number of the newest group.
    newest_group: u64,
    /// Last group that is completely in the files.
    written_group: u64,
    /// Last group that survives a power cut.
    synced_group: u64,
    /// Group of the synced checkpoint: all chunks contain everything up to it.
    checkpoint_group: u64,
    /// Last group that the history does not need any more; `None` without a history.
    released_group: Option<u64>,
    /// Files, oldest first.
    log_files: Vec<LogFileInfo>,
    /// True if the next group can be appended to the newest file.
    can_append: bool,
    /// Number of truncations after errors.
    truncation_count: u64,
    /// True if the directory was synced after the newest file was created.
    is_directory_synced: bool,
    next_file: u64,
}

impl WriteAheadLog {
    /// Creates the log of a store that does not exist yet.
    pub(super) fn new_closed(files: Arc<dyn LogFiles>) -> Self {
        Self { files, state: Mutex::default(), append_fails: AtomicBool::new(false), history: OnceLock::new() }
    }

    /// Makes the log report replaced records to the history, first the recovered ones, and keep the
    /// groups that the history still needs.
    pub fn set_history(&self, history: Arc<dyn ReplacedRecordSink>, recovered: &[ReplacedRecords]) {
        let synced_group = {
            let mut state = self.state();
            state.released_group = Some(0);
            state.synced_group
        };
        if let Some((newest, earlier)) = recovered.split_last() {
            // after a seal of earlier ranges the log still needs the groups of the newest one
            earlier.iter().for_each(|replaced| history.add_replaced(0, replaced));
            history.add_replaced(synced_group, newest);
        }
        history.confirm_synced(synced_group);
        drop(self.history.set(history));
    }

    pub(super) fn history(&self) -> Option<&dyn ReplacedRecordSink> {
        self.history.get().map(|history| &**history)
    }

    /// Records that the history does not need the groups up to this one any more, and removes the
    /// files that nothing needs.
    pub fn release_groups(&self, group: u64) {
        let checkpoint_group = {
            let mut state = self.state();
            state.released_group = state.released_group.max(Some(group));
            state.checkpoint_group
        };
        self.remove_folded_files(checkpoint_group);
    }

    /// Replaces the files by others with the same content.
    #[cfg(test)]
    pub(super) fn replace_files(&mut self, files: Arc<dyn LogFiles>) {
        self.files = files;
    }

    /// Continues after the groups that a start has recovered, which are synced.
    pub(super) fn open(&self, recovered: &RecoveredLog) {
        let mut state = self.state();
        // groups that were appended before the store existed already have numbers
        state.newest_group = state.newest_group.max(recovered.last_group);
        (state.log_id, state.is_open, state.written_group, state.synced_group, state.checkpoint_group) =
            (recovered.id, true, recovered.last_group, recovered.last_group, recovered.checkpoint_group);
        (state.log_files, state.next_file, state.is_directory_synced) = (recovered.log_files.clone(), recovered.next_file, true);
        state.epoch.get_or_insert_with(|| Epoch(rand::random()));
        drop(state);
        self.write_synced_mark(recovered.id, recovered.last_group);
    }

    /// Sets the epoch of this start. The next group begins a new file, because each file belongs to
    /// one epoch.
    pub fn begin_epoch(&self, epoch: Epoch) {
        let mut state = self.state();
        state.epoch = Some(epoch);
        state.can_append = false;
    }

    /// Numbers a group and writes it, before any reader sees its changes. If the write fails, the
    /// group is written later together with others. If the process is killed before that, clients
    /// cannot resume from positions in this group or later ones.
    pub fn append(&self, group: &mut Group) {
        group.number = self.append_changes(&group.changes());
        if let (Some(history), Some(replaced)) = (self.history(), &group.replaced) {
            history.add_replaced(group.number, replaced);
        }
    }

    pub(super) fn append_changes(&self, changes: &KeyChanges) -> u64 {
        let mut state = self.state();
        state.newest_group += 1;
        let number = state.newest_group;
        if state.is_open && state.written_group + 1 == number {
            self.report_outcome(self.write_groups(&mut state, number, changes));
        } else {
            self.append_fails.store(true, Ordering::Relaxed);
        }
        number
    }

    /// Returns whether the newest group could not be written when it was appended.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.append_fails.load(Ordering::Relaxed)
    }

    /// Makes all groups up to `number` survive a power cut. `changes` contains at least all changes
    /// that were not synced before.
    pub(super) fn persist(&self, number: u64, changes: &KeyChanges) -> io::Result<()> {
        loop {
            let mut state = self.state();
            if !state.is_open {
                return Err(io::Error::other("there is no store yet"));
            }
            if state.written_group < number {
                // `append` can write again, unless more groups arrived in the meantime
                let outcome = self.write_groups(&mut state, number, changes);
                self.append_fails.store(outcome.is_err() || state.written_group < state.newest_group, Ordering::Relaxed);
                outcome?;
            }
            drop(state);
            if self.sync()? {
                return Ok(());
            }
        }
    }

    /// Syncs the written groups without the lock, so that the committer can continue. Returns false
    /// if the committer had an error during the sync and truncated a file.
    fn sync(&self) -> io::Result<bool> {
        let (written_group, truncation_count, unsynced, is_directory_synced) = {
            let state = self.state();
            let unsynced: Vec<LogFileInfo> =
                state.log_files.iter().filter(|log_file| log_file.bytes > log_file.synced_bytes).copied().collect();
            (state.written_group, state.truncation_count, unsynced, state.is_directory_synced)
        };
        let outcome = unsynced.iter().try_for_each(|log_file| self.files.sync(log_file.number));
        let outcome = if is_directory_synced { outcome } else { outcome.and_then(|()| self.files.sync_directory()) };
        let mut state = self.state();
        let log_id = state.log_id;
        if state.truncation_count != truncation_count {
            // the truncated file may be one of the synced ones
            return Ok(false);
        }
        if let Err(error) = outcome {
            self.abandon_file(&mut state);
            return Err(error);
        }
        for log_file in unsynced {
            if let Some(current) = state.log_files.iter_mut().find(|current| current.number == log_file.number) {
                current.synced_bytes = log_file.bytes;
            }
        }
        state.synced_group = written_group;
        // a file that was created during the sync is not synced yet
        let is_synced = |log_file: &LogFileInfo| log_file.synced_bytes > 0;
        state.is_directory_synced = state.log_files.iter().all(is_synced);
        drop(state);
        self.write_synced_mark(log_id, written_group);
        Ok(true)
    }

    /// Records the last synced group, so that the next start notices if it is missing.
    fn write_synced_mark(&self, log_id: u64, group: u64) {
        if let Err(error) = self.files.write_synced_mark(SyncedMark { id: log_id, group })
            && let Some(LogPermit { more }) = WRITE_FAILURES.permit("synced")
        {
            tracing::warn!(%error, more, "cannot record how far the log is synced: if its end is damaged, the next start treats that as an unfinished write and reports no loss");
        }
    }

    /// Returns whether the log has reached its size limit.
    pub(super) fn is_full(&self) -> bool {
        self.state().bytes() > TOTAL_BYTES_MAX
    }

    /// Records that the chunks contain all groups up to `checkpoint_group`, and removes the files
    /// that have no later ones, unless the history needs them.
    pub(super) fn remove_folded_files(&self, checkpoint_group: u64) {
        let mut state = self.state();
        state.checkpoint_group = state.checkpoint_group.max(checkpoint_group);
        let obsolete_group = state.released_group.map_or(checkpoint_group, |released| released.min(checkpoint_group));
        while let [oldest, next, ..] = state.log_files.as_slice()
            && oldest.last_group <= obsolete_group
            && next.synced_bytes > 0
        {
            if let Err(error) = self.files.remove(oldest.number) {
                tracing::warn!(file = oldest.number, %error, "cannot remove an old file of the log");
            }
            state.log_files.remove(0);
        }
    }

    /// Begins a new file if the chunks contain everything, so that all other files can be removed.
    pub(super) fn rotate_if_folded(&self) -> io::Result<()> {
        let mut state = self.state();
        let checkpoint_group = state.checkpoint_group;
        if !state.is_open || state.written_group != checkpoint_group || state.synced_group != checkpoint_group {
            return Ok(());
        }
        if state.log_files.last().is_none_or(|log_file| log_file.last_group >= log_file.first_group) {
            self.create_file(&mut state)?;
        }
        drop(state);
        self.sync()?;
        self.remove_folded_files(checkpoint_group);
        Ok(())
    }

    /// Writes the groups from the first missing one up to `last`.
    fn write_groups(&self, state: &mut LogState, last: u64, changes: &KeyChanges) -> io::Result<()> {
        if state.bytes() > TOTAL_BYTES_MAX {
            return Err(io::Error::other(format!("the engine has not accepted {} MiB of the log", TOTAL_BYTES_MAX >> 20)));
        }
        let outcome = self.try_write_groups(state, last, changes);
        if outcome.is_err() {
            self.abandon_file(state);
        }
        outcome
    }

    fn try_write_groups(&self, state: &mut LogState, last: u64, changes: &KeyChanges) -> io::Result<()> {
        let is_full = state.log_files.last().is_none_or(|log_file| log_file.bytes > FILE_BYTES_MAX);
        if !state.can_append || is_full {
            self.create_file(state)?;
        }
        let (first, checkpoint_group, epoch) = (state.written_group + 1, state.checkpoint_group, state.epoch.unwrap_or(Epoch(0)));
        let Some(log_file) = state.log_files.last_mut() else { return Err(io::ErrorKind::NotFound.into()) };
        frames::write_frame(epoch, (first, last), checkpoint_group, changes, &mut |bytes| {
            self.files.append(log_file.number, &bytes)?;
            log_file.bytes += bytes.len() as u64;
            Ok(())
        })?;
        log_file.last_group = last;
        state.written_group = last;
        Ok(())
    }

    fn create_file(&self, state: &mut LogState) -> io::Result<()> {
        let first = state.written_group + 1;
        let (id, epoch, checkpoint_group) = (state.log_id, state.epoch.unwrap_or(Epoch(0)), state.checkpoint_group);
        let head = FileHead { id, epoch, first_group: first, checkpoint_group }.encode();
        let file = files::create_next_file(&*self.files, state.next_file)?;
        state.next_file = file + 1;
        if let Err(error) = self.files.append(file, &head) {
            // otherwise each attempt on a full disk would leave an empty file
            drop(self.files.remove(file));
            return Err(error);
        }
        state.is_directory_synced = false;
        state.can_append = true;
        let bytes = head.len() as u64;
        state.log_files.push(LogFileInfo { number: file, first_group: first, last_group: first - 1, bytes, synced_bytes: 0 });
        Ok(())
    }

    /// Abandons the current file after an error. Only its synced part is known to be on the disk.
    fn abandon_file(&self, state: &mut LogState) {
        state.can_append = false;
        state.truncation_count += 1;
        state.written_group = state.synced_group;
        let synced_group = state.synced_group;
        state.log_files.retain_mut(|log_file| {
            // if this fails too, the frames of the next file override the rest of this one
            if log_file.synced_bytes == 0 && self.files.remove(log_file.number).is_ok() {
                return false;
            }
            if log_file.bytes > log_file.synced_bytes {
                drop(self.files.truncate(log_file.number, log_file.synced_bytes));
                (log_file.bytes, log_file.last_group) = (log_file.synced_bytes, log_file.last_group.min(synced_group));
            }
            true
        });
    }

    fn report_outcome(&self, outcome: io::Result<()>) {
        self.append_fails.store(outcome.is_err(), Ordering::Relaxed);
        if let Err(error) = outcome
            && let Some(LogPermit { more }) = WRITE_FAILURES.permit(&error.to_string())
        {
            tracing::error!(%error, more, "cannot write the log: if the process is killed now, clients that have read the newest changes get a reset and must list again");
        }
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogState {
    fn bytes(&self) -> u64 {
        self.log_files.iter().map(|log_file| log_file.bytes).sum()
    }
}
