//! Confirmations of a chunk's unchanged rows: the last listing that had each, and the revision and lease that equal bytes came with.

use std::sync::Arc;

use crate::model::SourceStamp;
use crate::pack::Chunk;

/// The generation and source of a row that is as it was packed; `None` of one that is not.
pub(in crate::view) type Settled = Option<(u64, SourceStamp)>;

/// What the source said of the rows since the chunk was built.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct Stamps {
    generations: Generations,
    /// The revision and lease of rows whose equal bytes came again; empty where none did.
    sources: Arc<Vec<Option<SourceStamp>>>,
    source_count: usize,
}

/// In which listing each row was last confirmed.
#[derive(Debug, Clone, Default)]
struct Generations {
    /// Of every row, or the highest of those in `rows`.
    newest: u32,
    /// By row; empty where all have `newest`.
    rows: Arc<Vec<u32>>,
    /// How many rows that are as they were packed have another than `newest`.
    behind: usize,
}

impl Generations {
    fn at(&self, row: usize) -> u32 {
        self.rows.get(row).copied().unwrap_or(self.newest)
    }

    /// Sets that of a row that is as it was packed; `live` is how many such rows there are.
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

    fn settle(&mut self) {
        if self.behind == 0 {
            self.rows = Arc::default();
        }
    }
}

impl Stamps {
    /// The stamps of a new chunk; `None` where no row was confirmed or restamped.
    pub(in crate::view) fn of(chunk: &Chunk, rows: &[Settled]) -> Option<Self> {
        let mut stamps = Self::default();
        let generations: Vec<u32> =
            rows.iter().map(|row| row.map_or(0, |(generation, _)| u32::try_from(generation).unwrap_or(u32::MAX))).collect();
        let live = || generations.iter().zip(rows).filter(|(_, row)| row.is_some()).map(|(generation, _)| *generation);
        stamps.generations.newest = live().max().unwrap_or(0);
        stamps.generations.behind = live().filter(|generation| *generation != stamps.generations.newest).count();
        if stamps.generations.behind > 0 {
            stamps.generations.rows = Arc::new(generations);
        }
        for (row, settled) in rows.iter().enumerate() {
            if let Some((_, source)) = settled.filter(|(_, source)| *source != chunk.source(row)) {
                stamps.put_source(row, source, rows.len());
            }
        }
        (stamps.generations.newest > 0 || stamps.source_count > 0).then_some(stamps)
    }

    /// The last listing that had a row.
    pub(in crate::view) fn generation(&self, row: usize) -> u64 {
        u64::from(self.generations.at(row))
    }

    /// Revision and lease that equal bytes of a row came with.
    pub(in crate::view) fn source(&self, row: usize) -> Option<SourceStamp> {
        self.sources.get(row).copied().flatten()
    }

    /// How many rows have a revision and lease here.
    pub(super) fn source_count(&self) -> usize {
        self.source_count
    }

    /// Notes the listing that confirms a row; `live` of all `rows` are as they were packed.
    pub(in crate::view) fn confirm(&mut self, row: usize, generation: u64, rows: usize, live: usize) {
        self.generations.set(row, u32::try_from(generation).unwrap_or(u32::MAX), rows, live);
    }

    /// Notes revision and lease that equal bytes of a row came with; the chunk has so many rows.
    pub(super) fn put_source(&mut self, row: usize, stamp: SourceStamp, rows: usize) {
        if self.sources.is_empty() {
            self.sources = Arc::new(vec![None; rows]);
        }
        self.source_count += usize::from(self.sources[row].is_none());
        Arc::make_mut(&mut self.sources)[row] = Some(stamp);
    }

    /// Whether a row counts as one that the newest listing did not confirm.
    pub(super) fn is_behind(&self, row: usize) -> bool {
        self.generations.at(row) != self.generations.newest
    }

    /// Whether nothing is kept of single rows' listings.
    #[cfg(test)]
    pub(super) fn is_settled(&self) -> bool {
        self.generations.rows.is_empty()
    }

    /// Counts a row out that [`Stamps::is_behind`]: from now on it is not as it was packed.
    pub(super) fn drop_behind(&mut self) {
        self.generations.behind -= 1;
        self.generations.settle();
    }
}
