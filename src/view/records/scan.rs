//! Ordered scan that merges the chunks with the overlay.
//!
//! It decodes no packed row. It searches a chunk only once for the position of the overlay's next
//! record.

use std::iter::Peekable;
use std::sync::Arc;

use super::ChunkMap;
use super::delta::{ChunkDelta, RowState};
use super::location::{ChunkId, PackedRow, RecordLocation};
use super::overlay::OverlayRecords;
use crate::model::EntryKey;
use crate::pack::{Chunk, RowFilter};

/// Iterator over record locations in key order.
pub(in crate::view) struct RecordScan<'a> {
    chunk_map: &'a ChunkMap,
    chunks: Box<dyn Iterator<Item = &'a (ChunkId, Chunk)> + 'a>,
    current: Option<ChunkCursor<'a>>,
    /// Filter of packed rows; `None` for all rows.
    filter: Option<&'a RowFilter>,
    overlay: Peekable<OverlayRecords<'a>>,
}

struct ChunkCursor<'a> {
    id: ChunkId,
    chunk: &'a Chunk,
    delta: &'a ChunkDelta,
    row: usize,
    /// Row before which the overlay's next record belongs.
    overlay_before: usize,
    /// Rows that may match the filter, and changed rows; `None` for all rows.
    rows: Option<Vec<usize>>,
    /// Whether the scan has yet to report that it skips the chunk.
    reports_skip: bool,
}

/// Result of one step of a scan.
pub(in crate::view) enum ScanStep {
    /// A record that may match the filter.
    Record(RecordLocation),
    /// No row of the chunk with this lowest key can match.
    SkippedChunk(EntryKey),
}

impl ChunkCursor<'_> {
    /// Returns the first row to visit that is not before `self.row`.
    fn next_row(&self) -> usize {
        let Some(rows) = &self.rows else { return self.row };
        rows.get(rows.partition_point(|row| *row < self.row)).copied().unwrap_or(self.chunk.len())
    }
}

impl<'a> RecordScan<'a> {
    /// Creates a scan from a key on.
    pub(super) fn new(chunk_map: &'a ChunkMap, overlay: OverlayRecords<'a>, start: &EntryKey, filter: Option<&'a RowFilter>) -> Self {
        let first = chunk_map.chunk_of(start).map(|(first, _)| first);
        let mut scan =
            Self { chunk_map, chunks: Box::new(chunk_map.chunks_from(first)), current: None, filter, overlay: overlay.peekable() };
        scan.advance();
        if let Some(current) = &mut scan.current {
            // the caller may have paused at this chunk
            current.reports_skip = false;
            if first.is_some() {
                current.row = current.chunk.find(start).unwrap_or_else(|row| row);
            }
        }
        scan
    }

    /// Moves to the next chunk.
    fn advance(&mut self) {
        self.current = self.chunks.next().map(|(id, chunk)| {
            let delta = self.chunk_map.delta(*id);
            let rows = self.filter.map(|filter| {
                let mut rows = if chunk.may_have_match(filter) { chunk.rows_matching(filter) } else { Vec::new() };
                rows.extend(delta.changed_rows().map(|(row, _)| row));
                rows.sort_unstable();
                rows.dedup();
                rows
            });
            let reports_skip = rows.as_ref().is_some_and(Vec::is_empty);
            ChunkCursor { id: *id, chunk, delta, row: 0, overlay_before: 0, rows, reports_skip }
        });
        self.find_overlay_row();
    }

    /// Finds the position of the overlay's next record in the current chunk.
    fn find_overlay_row(&mut self) {
        if let Some(current) = &mut self.current {
            let next = self.overlay.peek().map(|(key, _)| current.chunk.find(key));
            current.overlay_before = next.map_or(usize::MAX, |found| found.unwrap_or_else(|row| row));
        }
    }

    /// Returns the next record that may match the filter, or the next chunk that has none, so that
    /// a long scan returns to its caller regularly.
    pub(in crate::view) fn step(&mut self) -> Option<ScanStep> {
        loop {
            let Some(current) = &mut self.current else {
                return self.overlay.next().map(|(_, record)| ScanStep::Record(RecordLocation::Overlay(Arc::clone(record))));
            };
            if current.reports_skip && current.overlay_before > 0 {
                current.reports_skip = false;
                return Some(ScanStep::SkippedChunk(current.chunk.first_key()));
            }
            current.row = current.next_row();
            if current.overlay_before <= current.row && current.overlay_before < current.chunk.len() {
                let record = self.overlay.next().map(|(_, record)| ScanStep::Record(RecordLocation::Overlay(Arc::clone(record))));
                self.find_overlay_row();
                return record;
            }
            if current.row >= current.chunk.len() {
                self.advance();
                continue;
            }
            let row = current.row;
            current.row += 1;
            let packed_row = || PackedRow { id: current.id, chunk: current.chunk.clone(), row };
            match current.delta.row_state(row) {
                RowState::Packed => return Some(ScanStep::Record(RecordLocation::Packed(packed_row()))),
                RowState::Replaced(record) => return Some(ScanStep::Record(RecordLocation::Replaced(packed_row(), Arc::clone(record)))),
                RowState::Deleted => {}
            }
        }
    }
}

impl Iterator for RecordScan<'_> {
    type Item = RecordLocation;

    fn next(&mut self) -> Option<RecordLocation> {
        loop {
            if let ScanStep::Record(location) = self.step()? {
                return Some(location);
            }
        }
    }
}
