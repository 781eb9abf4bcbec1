//! Ordered scan that merges the chunks with the overlay.
//!
//! It decodes no packed row. It searches a chunk only once for the position of the overlay's next
//! record.

use std::iter::Peekable;
use std::net::IpAddr;
use std::sync::Arc;

use super::ChunkMap;
use super::decoding::decode_object;
use super::delta::{ChunkDelta, RowState};
use super::location::{ChunkId, PackedRow, RecordLocation};
use super::overlay::OverlayRecords;
use crate::model::{EntryKey, Kind};
use crate::pack::Chunk;

/// Iterator over record locations in key order.
pub(in crate::view) struct RecordScan<'a> {
    chunk_map: &'a ChunkMap,
    chunks: Box<dyn Iterator<Item = &'a (ChunkId, Chunk)> + 'a>,
    current: Option<ChunkCursor<'a>>,
    /// Hashes of the hosts whose ipcache entries the caller wants; empty for all records. The scan
    /// yields one row of a chunk without such entries, so that the caller can pause there.
    hosts: Vec<u32>,
    overlay: Peekable<OverlayRecords<'a>>,
}

struct ChunkCursor<'a> {
    id: ChunkId,
    chunk: &'a Chunk,
    delta: &'a ChunkDelta,
    row: usize,
    /// Row before which the overlay's next record belongs.
    overlay_before: usize,
    /// Whether one unchanged row of the chunk is enough.
    yields_one_row: bool,
    has_yielded_row: bool,
}

impl<'a> RecordScan<'a> {
    /// Creates a scan from a key on. `hosts` are hashes of [`hash_host`]; empty for no filter.
    pub(super) fn new(chunk_map: &'a ChunkMap, overlay: OverlayRecords<'a>, start: &EntryKey, hosts: Vec<u32>) -> Self {
        let first = chunk_map.chunk_of(start).map(|(first, _)| first);
        let mut scan =
            Self { chunk_map, chunks: Box::new(chunk_map.chunks_from(first)), current: None, hosts, overlay: overlay.peekable() };
        scan.advance();
        if let Some(current) = scan.current.as_mut().filter(|_| first.is_some()) {
            current.row = current.chunk.find(start).unwrap_or_else(|row| row);
        }
        scan
    }

    /// Moves to the next chunk.
    fn advance(&mut self) {
        let current = |(id, chunk): &'a (ChunkId, Chunk)| {
            let delta = self.chunk_map.delta(*id);
            let yields_one_row = !self.hosts.is_empty() && !may_contain_hosts(chunk, &self.hosts);
            ChunkCursor { id: *id, chunk, delta, row: 0, overlay_before: 0, yields_one_row, has_yielded_row: false }
        };
        self.current = self.chunks.next().map(current);
        self.find_overlay_row();
    }

    /// Finds the position of the overlay's next record in the current chunk.
    fn find_overlay_row(&mut self) {
        if let Some(current) = &mut self.current {
            let next = self.overlay.peek().map(|(key, _)| current.chunk.find(key));
            current.overlay_before = next.map_or(usize::MAX, |found| found.unwrap_or_else(|row| row));
        }
    }
}

impl Iterator for RecordScan<'_> {
    type Item = RecordLocation;

    fn next(&mut self) -> Option<RecordLocation> {
        loop {
            let Some(current) = &mut self.current else {
                return self.overlay.next().map(|(_, record)| RecordLocation::Overlay(Arc::clone(record)));
            };
            if current.row >= current.chunk.len() {
                self.advance();
            } else if current.overlay_before <= current.row {
                let record = self.overlay.next().map(|(_, record)| RecordLocation::Overlay(Arc::clone(record)));
                self.find_overlay_row();
                return record;
            } else {
                let row = current.row;
                current.row += 1;
                let packed_row = || PackedRow { id: current.id, chunk: current.chunk.clone(), row };
                match current.delta.row_state(row) {
                    RowState::Packed if current.has_yielded_row => {}
                    RowState::Packed => {
                        current.has_yielded_row = current.yields_one_row;
                        return Some(RecordLocation::Packed(packed_row()));
                    }
                    RowState::Replaced(record) => return Some(RecordLocation::Replaced(packed_row(), Arc::clone(record))),
                    RowState::Deleted => {}
                }
            }
        }
    }
}

/// Returns a 32-bit hash of a host's address. Different hosts may have the same hash.
pub(in crate::view) fn hash_host(ip: IpAddr) -> u32 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits(),
        IpAddr::V6(ip) => {
            let octets = ip.octets();
            let (words, _) = octets.as_chunks::<4>();
            words.iter().fold(0, |all, word| all ^ u32::from_be_bytes(*word))
        }
    }
}

/// Returns whether a chunk may contain ipcache entries on one of these hosts. False is certain. The
/// first call for a chunk decodes all its rows, which takes about a millisecond.
fn may_contain_hosts(chunk: &Chunk, hosts: &[u32]) -> bool {
    let host = |row: usize| decode_object(&chunk.record(row))?.as_ip()?.host_ip.map(hash_host);
    let is_ip = |row: &usize| matches!(chunk.scope(*row).0, Kind::Ip | Kind::NodeIp);
    let host_hashes = chunk.derived_numbers(|chunk| (0..chunk.len()).filter(is_ip).filter_map(host).collect());
    hosts.iter().any(|host| host_hashes.binary_search(host).is_ok())
}
