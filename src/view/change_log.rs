//! A log of the changes of a chunk's rows: replaced by a record, or deleted.
//!
//! All versions of the mirror share a chunk's log, and each knows how much of it is its own: a change adds to the log and copies nothing.
//! Looking for a row reads the numbers of rows that changed, as a rule few, for a chunk is folded when about 65 have (`commit::folding`). Where
//! it is not, as while a whole cluster goes, most parts of the log say at once that they have not the row.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::model::{Record, Sequence};

/// How many changes a part of a log has room for: their rows are a cache line. A chunk that is folded in time has two or three parts, of 600 B.
const PART_LENGTH: usize = 32;

/// How many neighbouring rows share a bit of a filter: the some thousand rows of a chunk have 64 bits, and changes in key order set few of them.
const ROWS_PER_BIT: u16 = 16;

/// A change of a row: the record that replaces it; `None` where its key was deleted.
pub(super) type Change = Option<Arc<Record>>;

/// The newest part of a log, with those before it.
#[derive(Debug)]
pub(super) struct ChangeLog {
    /// Full in every version that knows this part.
    before: Option<Arc<ChangeLog>>,
    /// How many changes are in the parts before.
    skipped: u16,
    rows: [AtomicU16; PART_LENGTH],
    changes: [OnceLock<Change>; PART_LENGTH],
    /// The bits of the rows, and perhaps some more.
    touched: AtomicU64,
    /// Every sequence of this part's records is from one to the other.
    oldest: AtomicU64,
    newest: AtomicU64,
}

/// The bit of a row among those that a part, or a version, has met.
pub(super) fn bit(row: u16) -> u64 {
    1 << (row / ROWS_PER_BIT % 64)
}

impl Default for ChangeLog {
    fn default() -> Self {
        Self {
            before: None,
            skipped: 0,
            rows: [const { AtomicU16::new(0) }; PART_LENGTH],
            changes: [const { OnceLock::new() }; PART_LENGTH],
            touched: AtomicU64::new(0),
            oldest: AtomicU64::new(u64::MAX),
            newest: AtomicU64::new(0),
        }
    }
}

impl ChangeLog {
    /// A log of changes of different rows.
    pub(super) fn of(changes: impl IntoIterator<Item = (u16, Change)>) -> Self {
        let (mut log, mut length) = (Self::default(), 0);
        for (row, change) in changes {
            if let Err(change) = log.push(length, row, change) {
                log = Self::behind(Arc::new(log), length);
                // the new part is empty
                let _ = log.push(length, row, change);
            }
            length += 1;
        }
        log
    }

    /// A new part behind others, which are full.
    pub(super) fn behind(before: Arc<Self>, length: u16) -> Self {
        Self { before: Some(before), skipped: length, ..Self::default() }
    }

    /// Adds a change to the `length` that are there.
    ///
    /// # Errors
    /// Gives the change back where this part is full, or another version went on with it before.
    pub(super) fn push(&self, length: u16, row: u16, change: Change) -> Result<(), Change> {
        let at = usize::from(length - self.skipped);
        let Some(free) = self.changes.get(at) else { return Err(change) };
        let sequence = change.as_ref().map(|record| record.last_sequence.0);
        free.set(change)?;
        // a version that reads them was published after this
        self.rows[at].store(row, Ordering::Relaxed);
        self.touched.fetch_or(bit(row), Ordering::Relaxed);
        if let Some(sequence) = sequence {
            self.oldest.fetch_min(sequence, Ordering::Relaxed);
            self.newest.fetch_max(sequence, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether all of this part is in use by a version that knows `length` changes.
    pub(super) fn is_full(&self, length: u16) -> bool {
        usize::from(length - self.skipped) == PART_LENGTH
    }

    /// What a row became last, of so many changes.
    pub(super) fn latest(&self, length: u16, row: u16) -> Option<&Change> {
        let mut parts = self.parts(length).filter(|(part, _)| part.touched.load(Ordering::Relaxed) & bit(row) != 0);
        parts.find_map(|(part, used)| {
            let at = part.rows[..used].iter().rposition(|other| other.load(Ordering::Relaxed) == row)?;
            part.changes[at].get()
        })
    }

    /// What each row became last, of so many changes, by row.
    pub(super) fn by_row(&self, length: u16) -> Vec<(u16, &Change)> {
        let newest_first = self.parts(length).flat_map(|(part, used)| {
            let changes = part.rows[..used].iter().zip(&part.changes).rev();
            changes.filter_map(|(row, change)| Some((row.load(Ordering::Relaxed), change.get()?)))
        });
        let mut changes: Vec<(u16, &Change)> = newest_first.collect();
        // those of one row keep their order
        changes.sort_by_key(|(row, _)| *row);
        changes.dedup_by_key(|(row, _)| *row);
        changes
    }

    /// Whether a record may have a sequence between two. False is certain.
    pub(super) fn has_within(&self, above: Sequence, below: Sequence) -> bool {
        let mut parts = std::iter::successors(Some(self), |part| part.before.as_deref());
        parts.any(|part| part.newest.load(Ordering::Relaxed) > above.0 && part.oldest.load(Ordering::Relaxed) < below.0)
    }

    /// The parts, newest first, each with how many of its changes are among the first `length`.
    fn parts(&self, length: u16) -> impl Iterator<Item = (&Self, usize)> {
        let newest = (self, usize::from(length - self.skipped));
        std::iter::successors(Some(newest), |(part, _)| Some((part.before.as_deref()?, PART_LENGTH)))
    }
}
