//! Base and overlay as one ordered run. Of a packed row nothing is decoded on the way: where the next record of the overlay belongs is
//! found once, by row number.

use std::iter::Peekable;
use std::sync::Arc;

use super::base::{Base, ChunkId, PackedRow};
use super::change_log::Change;
use super::overlay::Fresh;
use super::place::Place;
use super::side::{Changes, Row};
use crate::model::EntryKey;
use crate::pack::Chunk;

/// Places in key order.
pub(super) struct Scan<'a> {
    base: &'a Base,
    chunks: Box<dyn Iterator<Item = &'a (ChunkId, Chunk)> + 'a>,
    current: Option<Current<'a>>,
    fresh: Peekable<Fresh<'a>>,
}

struct Current<'a> {
    id: ChunkId,
    chunk: &'a Chunk,
    changes: Changes<&'a Change>,
    row: usize,
    /// The row before which the next record of the overlay belongs.
    fresh_before: usize,
}

impl<'a> Scan<'a> {
    pub(super) fn new(base: &'a Base, fresh: Fresh<'a>, start: &EntryKey) -> Self {
        let first = base.chunk_of(start).map(|(first, _)| first);
        let mut scan = Self { base, chunks: Box::new(base.chunks_from(first)), current: None, fresh: fresh.peekable() };
        scan.advance();
        if let Some(current) = scan.current.as_mut().filter(|_| first.is_some()) {
            current.row = current.chunk.find(start).unwrap_or_else(|row| row);
        }
        scan
    }

    /// Goes on with the next chunk.
    fn advance(&mut self) {
        let current = |(id, chunk): &'a (ChunkId, Chunk)| {
            let changes = self.base.side(*id).changes();
            Current { id: *id, chunk, changes, row: 0, fresh_before: 0 }
        };
        self.current = self.chunks.next().map(current);
        self.find_fresh();
    }

    /// Finds where the next record of the overlay belongs.
    fn find_fresh(&mut self) {
        if let Some(current) = &mut self.current {
            let next = self.fresh.peek().map(|next| current.chunk.find(&next.0.key));
            current.fresh_before = next.map_or(usize::MAX, |found| found.unwrap_or_else(|row| row));
        }
    }
}

impl Iterator for Scan<'_> {
    type Item = Place;

    fn next(&mut self) -> Option<Place> {
        loop {
            let Some(current) = &mut self.current else {
                return self.fresh.next().map(|next| Place::Fresh(Arc::clone(&next.0)));
            };
            if current.row >= current.chunk.len() {
                self.advance();
            } else if current.fresh_before <= current.row {
                let record = self.fresh.next().map(|next| Place::Fresh(Arc::clone(&next.0)));
                self.find_fresh();
                return record;
            } else {
                let row = current.row;
                current.row += 1;
                let at = || PackedRow { id: current.id, chunk: current.chunk.clone(), row };
                match current.changes.at(row) {
                    Row::Packed => return Some(Place::Packed(at())),
                    Row::Replaced(record) => return Some(Place::Replaced(at(), Arc::clone(record))),
                    Row::Gone => {}
                }
            }
        }
    }
}
