//! Confirmations of a chunk's unchanged rows: the last list that contained each row, and the
//! revision and lease of puts with equal bytes.
//!
//! Once a list has confirmed all rows, one number is enough for the whole chunk.

use std::sync::Arc;

use crate::model::SourceStamp;
use crate::pack::Chunk;

/// Generation and source of an unchanged row; `None` for a changed one.
pub(in crate::view) type Confirmation = Option<(u64, SourceStamp)>;

/// Confirmations of a chunk's rows since the chunk was packed.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct Confirmations {
    generations: RowGenerations,
    /// Newer revision and lease by row; empty if no row has one.
    sources: Arc<Vec<Option<SourceStamp>>>,
    source_count: usize,
}

/// Number of the last list that contained each row.
#[derive(Debug, Clone, Default)]
struct RowGenerations {
    /// Highest generation of all rows.
    newest: u32,
    /// Generation by row; empty if all unchanged rows have `newest`.
    rows: Arc<Vec<u32>>,
    /// Number of unchanged rows with a lower generation than `newest`.
    unconfirmed: usize,
}

impl RowGenerations {
    fn get(&self, row: usize) -> u32 {
        self.rows.get(row).copied().unwrap_or(self.newest)
    }

    /// Sets the generation of an unchanged row. The chunk has `rows` rows, of which `unchanged` are
    /// unchanged.
    fn set(&mut self, row: usize, generation: u32, rows: usize, unchanged: usize) {
        let before = self.get(row);
        if before == generation {
            return;
        }
        if self.rows.is_empty() {
            self.rows = Arc::new(vec![self.newest; rows]);
        }
        Arc::make_mut(&mut self.rows)[row] = generation;
        if generation > self.newest {
            self.newest = generation;
            self.unconfirmed = unchanged - 1;
        } else if generation == self.newest {
            self.unconfirmed -= 1;
        } else if before == self.newest {
            self.unconfirmed += 1;
        }
        self.compact();
    }

    fn compact(&mut self) {
        if self.unconfirmed == 0 {
            self.rows = Arc::default();
        }
    }
}

impl Confirmations {
    /// Creates the confirmations of a new chunk; `None` if no row was confirmed or restamped.
    pub(in crate::view) fn from_rows(chunk: &Chunk, rows: &[Confirmation]) -> Option<Self> {
        let mut confirmations = Self::default();
        let generations: Vec<u32> =
            rows.iter().map(|row| row.map_or(0, |(generation, _)| u32::try_from(generation).unwrap_or(u32::MAX))).collect();
        let live = || generations.iter().zip(rows).filter(|(_, row)| row.is_some()).map(|(generation, _)| *generation);
        confirmations.generations.newest = live().max().unwrap_or(0);
        confirmations.generations.unconfirmed = live().filter(|generation| *generation != confirmations.generations.newest).count();
        if confirmations.generations.unconfirmed > 0 {
            confirmations.generations.rows = Arc::new(generations);
        }
        for (row, confirmation) in rows.iter().enumerate() {
            if let Some((_, source)) = confirmation.filter(|(_, source)| *source != chunk.source(row)) {
                confirmations.put_source(row, source, rows.len());
            }
        }
        (confirmations.generations.newest > 0 || confirmations.source_count > 0).then_some(confirmations)
    }

    /// Returns the number of the last list that contained a row; 0 if none did.
    pub(in crate::view) fn generation(&self, row: usize) -> u64 {
        u64::from(self.generations.get(row))
    }

    /// Returns the revision and lease of the newest put with equal bytes.
    pub(in crate::view) fn source(&self, row: usize) -> Option<SourceStamp> {
        self.sources.get(row).copied().flatten()
    }

    /// Returns the number of rows with a newer revision and lease.
    pub(super) fn source_count(&self) -> usize {
        self.source_count
    }

    /// Records that the list `generation` contained a row. The chunk has `rows` rows, of which
    /// `unchanged` are unchanged.
    pub(in crate::view) fn confirm(&mut self, row: usize, generation: u64, rows: usize, unchanged: usize) {
        self.generations.set(row, u32::try_from(generation).unwrap_or(u32::MAX), rows, unchanged);
    }

    /// Records the revision and lease of a put with equal bytes. The chunk has `rows` rows.
    pub(super) fn put_source(&mut self, row: usize, stamp: SourceStamp, rows: usize) {
        if self.sources.is_empty() {
            self.sources = Arc::new(vec![None; rows]);
        }
        self.source_count += usize::from(self.sources[row].is_none());
        Arc::make_mut(&mut self.sources)[row] = Some(stamp);
    }

    /// Returns whether the newest list did not contain a row.
    pub(super) fn is_unconfirmed(&self, row: usize) -> bool {
        self.generations.get(row) != self.generations.newest
    }

    /// Returns whether one generation applies to all rows.
    #[cfg(test)]
    pub(super) fn is_compact(&self) -> bool {
        self.generations.rows.is_empty()
    }

    /// Subtracts a row from the number of unconfirmed rows, because it was replaced or deleted.
    pub(super) fn forget_unconfirmed(&mut self) {
        self.generations.unconfirmed -= 1;
        self.generations.compact();
    }
}
