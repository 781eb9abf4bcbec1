//! An ordered scan that merges base and overlay. Of a packed row nothing is decoded on the way: where the next record of the overlay belongs is
//! found once, by row number.

use std::iter::Peekable;
use std::net::IpAddr;
use std::sync::Arc;

use super::Base;
use super::decoding::object_of;
use super::delta::{ChunkDelta, Row};
use super::location::{ChunkId, PackedRow, RecordLocation};
use super::overlay::Fresh;
use crate::model::{EntryKey, Kind};
use crate::pack::Chunk;

/// Places in key order.
pub(in crate::view) struct Scan<'a> {
    base: &'a Base,
    chunks: Box<dyn Iterator<Item = &'a (ChunkId, Chunk)> + 'a>,
    current: Option<Current<'a>>,
    /// Hosts whose entries are wanted: of a chunk without any of them one row is yielded, so that a scan can pause there. Empty is no test.
    hosts: Vec<u32>,
    fresh: Peekable<Fresh<'a>>,
}

struct Current<'a> {
    id: ChunkId,
    chunk: &'a Chunk,
    side: &'a ChunkDelta,
    row: usize,
    /// The row before which the next record of the overlay belongs.
    fresh_before: usize,
    /// Of the rows that are as they were packed one is enough.
    passes: bool,
    /// That row was yielded.
    is_passed: bool,
}

impl<'a> Scan<'a> {
    /// All records from a key on, or the entries on some hosts, given by number ([`number_of_host`]); no host is no test.
    pub(in crate::view) fn new(base: &'a Base, fresh: Fresh<'a>, start: &EntryKey, hosts: Vec<u32>) -> Self {
        let first = base.chunk_of(start).map(|(first, _)| first);
        let mut scan = Self { base, chunks: Box::new(base.chunks_from(first)), current: None, hosts, fresh: fresh.peekable() };
        scan.advance();
        if let Some(current) = scan.current.as_mut().filter(|_| first.is_some()) {
            current.row = current.chunk.find(start).unwrap_or_else(|row| row);
        }
        scan
    }

    /// Goes on with the next chunk.
    fn advance(&mut self) {
        let current = |(id, chunk): &'a (ChunkId, Chunk)| {
            let side = self.base.side(*id);
            let passes = !self.hosts.is_empty() && !has_any(chunk, &self.hosts);
            Current { id: *id, chunk, side, row: 0, fresh_before: 0, passes, is_passed: false }
        };
        self.current = self.chunks.next().map(current);
        self.find_fresh();
    }

    /// Finds where the next record of the overlay belongs.
    fn find_fresh(&mut self) {
        if let Some(current) = &mut self.current {
            let next = self.fresh.peek().map(|(key, _)| current.chunk.find(key));
            current.fresh_before = next.map_or(usize::MAX, |found| found.unwrap_or_else(|row| row));
        }
    }
}

impl Iterator for Scan<'_> {
    type Item = RecordLocation;

    fn next(&mut self) -> Option<RecordLocation> {
        loop {
            let Some(current) = &mut self.current else {
                return self.fresh.next().map(|(_, record)| RecordLocation::Fresh(Arc::clone(record)));
            };
            if current.row >= current.chunk.len() {
                self.advance();
            } else if current.fresh_before <= current.row {
                let record = self.fresh.next().map(|(_, record)| RecordLocation::Fresh(Arc::clone(record)));
                self.find_fresh();
                return record;
            } else {
                let row = current.row;
                current.row += 1;
                let at = || PackedRow { id: current.id, chunk: current.chunk.clone(), row };
                match current.side.at(row) {
                    Row::Packed if current.is_passed => {}
                    Row::Packed => {
                        current.is_passed = current.passes;
                        return Some(RecordLocation::Packed(at()));
                    }
                    Row::Replaced(record) => return Some(RecordLocation::Replaced(at(), Arc::clone(record))),
                    Row::Gone => {}
                }
            }
        }
    }
}

/// A number that stands for a host's address: others may have the same.
pub(in crate::view) fn number_of_host(ip: IpAddr) -> u32 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits(),
        IpAddr::V6(ip) => {
            let octets = ip.octets();
            let (words, _) = octets.as_chunks::<4>();
            words.iter().fold(0, |all, word| all ^ u32::from_be_bytes(*word))
        }
    }
}

/// Whether an entry of the ipcache among the rows of a chunk may be on one of these hosts. False is certain. The first question decodes them all,
/// some millisecond.
fn has_any(chunk: &Chunk, hosts: &[u32]) -> bool {
    let host = |row: usize| object_of(&chunk.record(row))?.as_ip()?.host_ip.map(number_of_host);
    let is_ip = |row: &usize| matches!(chunk.scope(*row).0, Kind::Ip | Kind::NodeIp);
    let noted = chunk.noted(|chunk| (0..chunk.len()).filter(is_ip).filter_map(host).collect());
    hosts.iter().any(|host| noted.binary_search(host).is_ok())
}
