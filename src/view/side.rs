//! What changed of a chunk's rows since it was built: which are gone or replaced, and by what; in which listing each was last confirmed;
//! the revision and lease that equal bytes came with.
//!
//! A change makes a new version of a side, as readers hold the old one. It copies a few hundred bytes of numbers; the records
//! themselves are in a log that all versions share.

use std::sync::{Arc, OnceLock};

use super::base::Settled;
use crate::model::{Record, Sequence, SourceStamp};
use crate::pack::Chunk;

/// How many records a new log has room for: a chunk is folded when about 65 of its rows have changed (`commit::folding`).
const LOG_LENGTH_MIN: usize = 32;

/// What changed of a chunk's rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Side {
    /// One bit a row: replaced or deleted.
    shadowed: Vec<u64>,
    shadowed_count: usize,
    replaced: Replaced,
    /// How many new keys between its first and the next chunk's first came since.
    inserted_count: usize,
    generations: Generations,
    /// The revision and lease of rows whose equal bytes came again; empty where none did.
    stamps: Arc<Vec<Option<SourceStamp>>>,
    stamped_count: usize,
}

/// The records that stand for rows of the chunk.
#[derive(Debug, Default)]
struct Replaced {
    /// In order: the row, and the place of its record in `log`.
    rows: Vec<(u16, u16)>,
    /// In the order in which they came. All versions of a side share it: one that is older knows nothing of what follows `length`.
    log: Arc<[OnceLock<Arc<Record>>]>,
    length: u16,
    /// Every sequence of them is from one to the other.
    oldest: Sequence,
    newest: Sequence,
}

/// In which listing each row was last confirmed.
#[derive(Debug, Clone, Default)]
struct Generations {
    /// Of every row, or the highest of those in `rows`.
    newest: u32,
    /// By row; empty where all have `newest`.
    rows: Arc<Vec<u32>>,
    /// How many rows that are not shadowed have another than `newest`.
    behind: usize,
}

impl Clone for Replaced {
    /// With room for one more, which is what a version is made for.
    fn clone(&self) -> Self {
        let mut rows = Vec::with_capacity(self.rows.len() + 1);
        rows.extend_from_slice(&self.rows);
        Self { rows, log: Arc::clone(&self.log), length: self.length, oldest: self.oldest, newest: self.newest }
    }
}

impl Replaced {
    fn get(&self, row: usize) -> Option<&Arc<Record>> {
        let at = self.find(row).ok()?;
        self.log.get(usize::from(self.rows[at].1))?.get()
    }

    fn find(&self, row: usize) -> Result<usize, usize> {
        self.rows.binary_search_by_key(&row, |(row, _)| usize::from(*row))
    }

    /// Puts a record in place of a row. Returns whether there was none before.
    fn put(&mut self, row: usize, record: Arc<Record>) -> bool {
        self.oldest = if self.rows.is_empty() { record.last_sequence } else { self.oldest.min(record.last_sequence) };
        self.newest = self.newest.max(record.last_sequence);
        let place = self.push(record);
        match self.find(row) {
            Ok(at) => {
                self.rows[at].1 = place;
                false
            }
            Err(at) => {
                self.rows.insert(at, (u16::try_from(row).unwrap_or(u16::MAX), place));
                true
            }
        }
    }

    fn push(&mut self, record: Arc<Record>) -> u16 {
        let free = self.log.get(usize::from(self.length));
        // full, or another copy of this version went on before
        if let Err(record) = match free {
            Some(free) => free.set(record),
            None => Err(record),
        } {
            self.renew();
            let _ = self.log[usize::from(self.length)].set(record);
        }
        self.length += 1;
        self.length - 1
    }

    /// Goes on in a log of its own that has what is still needed, and as much room again. A chunk has 4,096 rows at most.
    fn renew(&mut self) {
        let room = ((self.rows.len() + 1) * 2).max(LOG_LENGTH_MIN);
        let log: Arc<[OnceLock<Arc<Record>>]> = (0..room).map(|_| OnceLock::new()).collect();
        for (at, (_, place)) in self.rows.iter_mut().enumerate() {
            if let Some(record) = self.log.get(usize::from(*place)).and_then(OnceLock::get) {
                let _ = log[at].set(Arc::clone(record));
            }
            *place = u16::try_from(at).unwrap_or(u16::MAX);
        }
        self.length = u16::try_from(self.rows.len()).unwrap_or(u16::MAX);
        self.log = log;
    }

    fn remove(&mut self, row: usize) -> bool {
        let found = self.find(row);
        if let Ok(at) = found {
            self.rows.remove(at);
        }
        found.is_ok()
    }
}

impl Generations {
    fn at(&self, row: usize) -> u32 {
        self.rows.get(row).copied().unwrap_or(self.newest)
    }

    /// Sets that of a row that is not shadowed; `live` is how many such rows there are.
    fn set(&mut self, row: usize, generation: u32, rows: usize, live: usize) {
        let before = self.at(row);
        if before == generation {
            return;
        }
        if self.rows.is_empty() {
            self.rows = Arc::new(vec![self.newest; rows]);
        }
        Arc::make_mut(&mut self.rows)[row] = generation;
        if generation > self.newest {
            self.newest = generation;
            self.behind = live - 1;
        } else if generation == self.newest {
            self.behind -= 1;
        } else if before == self.newest {
            self.behind += 1;
        }
        self.settle();
    }

    /// Counts a row out that is shadowed from now on.
    fn drop_row(&mut self, row: usize) {
        if self.at(row) != self.newest {
            self.behind -= 1;
            self.settle();
        }
    }

    fn settle(&mut self) {
        if self.behind == 0 {
            self.rows = Arc::default();
        }
    }
}

impl Side {
    /// What is beside the rows of a new chunk.
    pub(super) fn of(chunk: &Chunk, rows: &[Settled]) -> Self {
        let mut side = Self::default();
        let generations: Vec<u32> =
            rows.iter().map(|row| row.map_or(0, |(generation, _)| u32::try_from(generation).unwrap_or(u32::MAX))).collect();
        let live = || generations.iter().zip(rows).filter(|(_, row)| row.is_some()).map(|(generation, _)| *generation);
        side.generations.newest = live().max().unwrap_or(0);
        side.generations.behind = live().filter(|generation| *generation != side.generations.newest).count();
        if side.generations.behind > 0 {
            side.generations.rows = Arc::new(generations);
        }
        for (row, settled) in rows.iter().enumerate() {
            match settled {
                None => side.shadow_row(row, rows.len()),
                Some((_, source)) if *source != chunk.source(row) => side.put_stamp(row, *source, rows.len()),
                Some(_) => {}
            }
        }
        side
    }

    /// Puts a record in place of a row. Returns whether nothing stood for it before.
    pub(super) fn replace(&mut self, row: usize, record: Arc<Record>, rows: usize) -> bool {
        self.shadow_once(row, rows);
        self.replaced.put(row, record)
    }

    /// Takes a row, and what stands for it, away. Returns whether something stood for it.
    pub(super) fn shadow(&mut self, row: usize, rows: usize) -> bool {
        self.shadow_once(row, rows);
        self.replaced.remove(row)
    }

    /// The record that stands for a row.
    pub(super) fn replacement(&self, row: usize) -> Option<&Arc<Record>> {
        self.replaced.get(row)
    }

    /// Every record that stands for a row, by row.
    pub(super) fn replacements(&self) -> impl Iterator<Item = (usize, &Arc<Record>)> {
        let rows = self.replaced.rows.iter();
        rows.filter_map(|(row, place)| Some((usize::from(*row), self.replaced.log.get(usize::from(*place))?.get()?)))
    }

    pub(super) fn replacement_count(&self) -> usize {
        self.replaced.rows.len()
    }

    /// Whether a replacement may have a sequence between two. False is certain.
    pub(super) fn has_replacements_within(&self, above: Sequence, below: Sequence) -> bool {
        self.replacement_count() > 0 && self.replaced.newest > above && self.replaced.oldest < below
    }

    pub(super) fn shadowed_count(&self) -> usize {
        self.shadowed_count
    }

    pub(super) fn stamped_count(&self) -> usize {
        self.stamped_count
    }

    pub(super) fn count_insert(&mut self) {
        self.inserted_count += 1;
    }

    pub(super) fn differs(&self) -> bool {
        self.generations.newest > 0 || self.shadowed_count > 0 || self.stamped_count > 0
    }

    pub(super) fn is_shadowed(&self, row: usize) -> bool {
        self.shadowed.get(row / 64).is_some_and(|bits| bits >> (row % 64) & 1 == 1)
    }

    pub(super) fn generation(&self, row: usize) -> u64 {
        u64::from(self.generations.at(row))
    }

    pub(super) fn stamp(&self, row: usize) -> Option<SourceStamp> {
        self.stamps.get(row).copied().flatten()
    }

    /// How much folding the chunk would gain. A stamp takes a twentieth of a record's room.
    pub(super) fn dirt(&self) -> usize {
        self.shadowed_count + self.inserted_count + self.stamped_count / 20
    }

    fn shadow_once(&mut self, row: usize, rows: usize) {
        if !self.is_shadowed(row) {
            self.generations.drop_row(row);
            self.shadow_row(row, rows);
        }
    }

    fn shadow_row(&mut self, row: usize, rows: usize) {
        if self.shadowed.is_empty() {
            self.shadowed = vec![0; rows.div_ceil(64)];
        }
        self.shadowed[row / 64] |= 1 << (row % 64);
        self.shadowed_count += 1;
    }

    pub(super) fn confirm(&mut self, row: usize, generation: u64, rows: usize) {
        let generation = u32::try_from(generation).unwrap_or(u32::MAX);
        self.generations.set(row, generation, rows, rows - self.shadowed_count);
    }

    pub(super) fn put_stamp(&mut self, row: usize, stamp: SourceStamp, rows: usize) {
        if self.stamps.is_empty() {
            self.stamps = Arc::new(vec![None; rows]);
        }
        self.stamped_count += usize::from(self.stamps[row].is_none());
        Arc::make_mut(&mut self.stamps)[row] = Some(stamp);
    }
}
