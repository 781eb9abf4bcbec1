//! The log: every group of changes, in the order in which they came, until the chunks have all of it.
//!
//! Owns: the numbers of groups, the files `log/<number>`, and when one is begun, synced, cut off and removed. A group is written plainly before
//! anybody hears of it, which survives a kill; each 25 to 40 ms what was written is synced, which survives a power cut. Only then the chunks take
//! it in, for entries and the cursors that claim them are in different chunks. Receives: groups from the one writer, and what they are together
//! from the thread that stores. Deliberately lacks: what a start believes (`slot_scan`), and what changes mean.
//!
//! A frame has the groups from one number to another, so what could not be written comes as one frame once that works. A write or sync that fails
//! ends the file: it is cut to what is synced, and another goes on from there. Reading and bytes are in `frames`.

pub(super) mod files;
pub(super) mod frames;
pub(super) mod run;
pub(super) mod synced_mark;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::files::{Files, LogFileInfo};
use self::frames::FileHead;
use self::run::Run;
use self::synced_mark::SyncedMark;
use super::encoding::group::{Changes, Group};
use crate::instruments::{LogLimiter, LogPermit};
use crate::model::Epoch;

/// A file that is larger is followed by another, so that it can go: a few seconds at the highest rate of the plan, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// While the engine takes nothing, the log grows to this, in bytes: what a disk has for it, and some minutes at the highest rate. Then nothing is
/// written until the engine takes changes again.
const TOTAL_BYTES_MAX: u64 = 256 << 20;

/// Why the log could not be written, as far as it was told lately.
static UNWRITTEN: LogLimiter = LogLimiter::new();

/// The log of an open store. Shared by the writer, which appends, and the thread that stores, which does everything else.
#[derive(Debug)]
pub struct Log {
    files: Arc<dyn Files>,
    state: Mutex<State>,
    /// Whether the newest group could not be written at once.
    failing: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    id: u64,
    /// Of the start; drawn here where none was said.
    epoch: Option<Epoch>,
    /// Whether there is a store that the log belongs to. Until then groups only get their numbers.
    open: bool,
    /// The number of the newest group.
    given: u64,
    /// Up to this group everything is in the files,
    written: u64,
    /// and up to this one it survives a power cut.
    synced: u64,
    /// Up to this one the chunks have it.
    folded: u64,
    /// Oldest first.
    pieces: Vec<LogFileInfo>,
    /// Whether the last of them takes more.
    is_writing: bool,
    /// How often something was cut off.
    cut_count: u64,
    /// Whether all files that were begun outlive a power cut.
    directory_synced: bool,
    next_file: u64,
}

impl Log {
    /// The log of a store that there is no room for yet.
    pub(super) fn closed(files: Arc<dyn Files>) -> Self {
        Self { files, state: Mutex::default(), failing: AtomicBool::new(false) }
    }

    /// Writes to other files from now on, which have what these have.
    #[cfg(test)]
    pub(super) fn over(&mut self, files: Arc<dyn Files>) {
        self.files = files;
    }

    /// Goes on behind what a start has found, which is synced.
    pub(super) fn open(&self, run: &Run) {
        let mut state = self.state();
        // groups that came while there was no store have their numbers
        state.given = state.given.max(run.last);
        (state.id, state.open, state.written, state.synced, state.folded) = (run.id, true, run.last, run.last, run.folded);
        (state.pieces, state.next_file, state.directory_synced) = (run.pieces.clone(), run.next_file, true);
        state.epoch.get_or_insert_with(|| Epoch(rand::random()));
        drop(state);
        self.note_synced(run.id, run.last);
    }

    /// Begins a start: what it writes is in files of its own.
    pub fn begin_epoch(&self, epoch: Epoch) {
        let mut state = self.state();
        state.epoch = Some(epoch);
        state.is_writing = false;
    }

    /// Gives a group its number and writes it, before anybody hears of it. Where that fails the group is written as soon as it can be, together with
    /// others; until then positions end before it.
    pub fn append(&self, group: &mut Group) {
        group.number = self.append_changes(&group.changes());
    }

    pub(super) fn append_changes(&self, changes: &Changes) -> u64 {
        let mut state = self.state();
        state.given += 1;
        let number = state.given;
        if state.open && state.written + 1 == number {
            self.told(self.write(&mut state, number, changes));
        } else {
            self.failing.store(true, Ordering::Relaxed);
        }
        number
    }

    /// Whether the newest group could not be written at once.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Makes everything up to a group survive a power cut. `changes` are at least those that were not synced before.
    pub(super) fn persist(&self, number: u64, changes: &Changes) -> io::Result<()> {
        loop {
            let mut state = self.state();
            if !state.open {
                return Err(io::Error::other("there is no store yet"));
            }
            if state.written < number {
                // what comes behind is written at once again, if nothing has come meanwhile
                let outcome = self.write(&mut state, number, changes);
                self.failing.store(outcome.is_err() || state.written < state.given, Ordering::Relaxed);
                outcome?;
            }
            drop(state);
            if self.sync()? {
                return Ok(());
            }
        }
    }

    /// Syncs what is written; false where the writer met an error meanwhile, so that some of it is cut off. Without the lock: the writer goes on.
    fn sync(&self) -> io::Result<bool> {
        let (written, cut_count, unsynced, directory_synced) = {
            let state = self.state();
            let unsynced: Vec<LogFileInfo> = state.pieces.iter().filter(|piece| piece.bytes > piece.synced_bytes).copied().collect();
            (state.written, state.cut_count, unsynced, state.directory_synced)
        };
        let outcome = unsynced.iter().try_for_each(|piece| self.files.sync(piece.file));
        let outcome = if directory_synced { outcome } else { outcome.and_then(|()| self.files.sync_directory()) };
        let mut state = self.state();
        let id = state.id;
        if state.cut_count != cut_count {
            // perhaps it was one of these that is gone
            return Ok(false);
        }
        if let Err(error) = outcome {
            self.end(&mut state);
            return Err(error);
        }
        for piece in unsynced {
            if let Some(kept) = state.pieces.iter_mut().find(|kept| kept.file == piece.file) {
                kept.synced_bytes = piece.bytes;
            }
        }
        state.synced = written;
        // a file that was begun meanwhile is not in what was synced
        let is_old = |piece: &LogFileInfo| piece.synced_bytes > 0;
        state.directory_synced = state.pieces.iter().all(is_old);
        drop(state);
        self.note_synced(id, written);
        Ok(true)
    }

    /// Notes up to which group everything is on the disk, so that a start notices what is missing of it.
    fn note_synced(&self, id: u64, group: u64) {
        if let Err(error) = self.files.note_synced(SyncedMark { id, group })
            && let Some(LogPermit { more }) = UNWRITTEN.permit("synced")
        {
            tracing::warn!(%error, more, "cannot record how far the log is synced: if its end is damaged, the next start treats it as torn");
        }
    }

    /// Whether the engine has taken nothing for so long that nothing more is written.
    pub(super) fn is_full(&self) -> bool {
        self.state().bytes() > TOTAL_BYTES_MAX
    }

    /// Notes up to which group the chunks have everything, and lets go of the files that have nothing else.
    pub(super) fn cut(&self, folded: u64) {
        let mut state = self.state();
        state.folded = state.folded.max(folded);
        while let [oldest, next, ..] = state.pieces.as_slice()
            && oldest.last <= folded
            && next.synced_bytes > 0
        {
            if let Err(error) = self.files.remove(oldest.file) {
                tracing::warn!(file = oldest.file, %error, "cannot remove an old file of the log");
            }
            state.pieces.remove(0);
        }
    }

    /// Begins a file where the chunks have all that the others have, so that these can go.
    pub(super) fn trim(&self) -> io::Result<()> {
        let mut state = self.state();
        let folded = state.folded;
        if !state.open || state.written != folded || state.synced != folded {
            return Ok(());
        }
        if state.pieces.last().is_none_or(|piece| piece.last >= piece.first) {
            self.begin_file(&mut state)?;
        }
        drop(state);
        self.sync()?;
        self.cut(folded);
        Ok(())
    }

    /// Writes the groups from the first that is missing to `last`.
    fn write(&self, state: &mut State, last: u64, changes: &Changes) -> io::Result<()> {
        if state.bytes() > TOTAL_BYTES_MAX {
            return Err(io::Error::other(format!("the engine has not accepted {} MiB of the log", TOTAL_BYTES_MAX >> 20)));
        }
        let outcome = self.try_write(state, last, changes);
        if outcome.is_err() {
            self.end(state);
        }
        outcome
    }

    fn try_write(&self, state: &mut State, last: u64, changes: &Changes) -> io::Result<()> {
        let is_full = state.pieces.last().is_none_or(|piece| piece.bytes > FILE_BYTES_MAX);
        if !state.is_writing || is_full {
            self.begin_file(state)?;
        }
        let (first, folded, epoch) = (state.written + 1, state.folded, state.epoch.unwrap_or(Epoch(0)));
        let Some(piece) = state.pieces.last_mut() else { return Err(io::ErrorKind::NotFound.into()) };
        frames::write(epoch, (first, last), folded, changes, &mut |bytes| {
            self.files.append(piece.file, &bytes)?;
            piece.bytes += bytes.len() as u64;
            Ok(())
        })?;
        piece.last = last;
        state.written = last;
        Ok(())
    }

    fn begin_file(&self, state: &mut State) -> io::Result<()> {
        let first = state.written + 1;
        let head = FileHead { id: state.id, epoch: state.epoch.unwrap_or(Epoch(0)), first, folded: state.folded }.write();
        let file = files::create_next(&*self.files, state.next_file)?;
        state.next_file = file + 1;
        if let Err(error) = self.files.append(file, &head) {
            // or a full disk would fill with empty files, one for each try
            drop(self.files.remove(file));
            return Err(error);
        }
        state.directory_synced = false;
        state.is_writing = true;
        state.pieces.push(LogFileInfo { file, first, last: first - 1, bytes: head.len() as u64, synced_bytes: 0 });
        Ok(())
    }

    /// Ends the file after an error: nobody knows what of it is on the disk, but for what was synced before.
    fn end(&self, state: &mut State) {
        state.is_writing = false;
        state.cut_count += 1;
        state.written = state.synced;
        let synced = state.synced;
        state.pieces.retain_mut(|piece| {
            // where that fails, too, the file that follows counts more than what is left of this one
            if piece.synced_bytes == 0 && self.files.remove(piece.file).is_ok() {
                return false;
            }
            if piece.bytes > piece.synced_bytes {
                drop(self.files.cut(piece.file, piece.synced_bytes));
                (piece.bytes, piece.last) = (piece.synced_bytes, piece.last.min(synced));
            }
            true
        });
    }

    fn told(&self, outcome: io::Result<()>) {
        self.failing.store(outcome.is_err(), Ordering::Relaxed);
        if let Err(error) = outcome
            && let Some(LogPermit { more }) = UNWRITTEN.permit(&error.to_string())
        {
            tracing::error!(%error, more, "cannot write the log: if the process is killed now, some streams get a reset");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }
}
