//! How the row of a key is found: one, or many at once.

use std::cmp::Ordering;
use std::hint::black_box;
use std::ops::Range;

use super::Chunk;
use super::chunk::Packed;
use super::column::parse_ipv4;
use super::parts::Group;
use crate::model::{EntryKey, Kind};

/// Addresses in the order of their texts, some of whose rows may have the one that is looked for.
struct Block<'a> {
    addresses: &'a [[u8; 4]],
    rows: Range<usize>,
    wanted: [u8; 4],
}

impl Block<'_> {
    /// The row that has the address.
    fn find(&self) -> Option<usize> {
        let at = self.addresses.get(self.rows.clone())?.iter().position(|address| *address == self.wanted)?;
        Some(self.rows.start + at)
    }
}

impl Chunk {
    /// The row of a key, or the one that it would have. Rows count from 0 in key order.
    ///
    /// # Errors
    /// The row before which the key belongs, where it is not there.
    pub fn find(&self, key: &EntryKey) -> Result<usize, usize> {
        let packed = self.packed();
        let group = packed.group_of(key).map_err(|at| packed.groups.get(at).map_or(packed.count, |group| group.start))?;
        if let Some(row) = packed.block_of(group, key).and_then(|block| block.find()) {
            return Ok(row);
        }
        packed.find_name(group, key.name.as_bytes())
    }
}

impl Packed {
    /// The rows of a key's kind and cluster.
    fn group_of(&self, key: &EntryKey) -> Result<&Group, usize> {
        let order = |group: &Group| group.kind.cmp(&key.kind).then_with(|| group.cluster.cmp_in_keys(&key.cluster));
        self.groups.binary_search_by(order).map(|at| &self.groups[at])
    }

    /// The few rows of a group that may have an address, where all of the group have one and nothing else.
    fn block_of(&self, group: &Group, key: &EntryKey) -> Option<Block<'_>> {
        if key.kind != Kind::Ip {
            return None;
        }
        let rows = group.start..group.end;
        let addresses = self.names.ipv4_addresses(&self.bytes, self.count, rows.clone())?;
        let wanted = parse_ipv4(key.name.as_bytes())?.to_bits();
        Some(Block { addresses, rows: self.marks.block(addresses, rows, wanted), wanted: wanted.to_le_bytes() })
    }

    /// The same by any name.
    fn find_name(&self, group: &Group, wanted: &[u8]) -> Result<usize, usize> {
        let mut name = Vec::with_capacity(wanted.len() + 16);
        let (mut low, mut high) = (group.start, group.end);
        while low < high {
            let middle = low.midpoint(high);
            name.clear();
            self.append_name(middle, &mut name);
            match name.as_slice().cmp(wanted) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Reads of what a search looks at, whatever it looks for: a cache line of each.
    fn read_head(&self) -> usize {
        let groups = self.groups.first().map_or(0, |group| group.end);
        groups ^ self.count ^ self.names.exceptions_in(0..0).len() ^ usize::from(self.marks.are_known())
    }

    /// Reads of a row what its change looks at.
    fn read_row(&self, row: usize) -> u64 {
        let (numbers, bytes) = (&self.numbers, &self.bytes);
        numbers.digest.at(bytes, row) ^ numbers.last_sequence.at(bytes, row) ^ numbers.lifetime.at(bytes, row)
    }
}

/// The row of each key in its chunk; `None` where it is not there.
///
/// As [`Chunk::find`] has them, in steps, each for all of them before the next: what a step reads it reads for all at once, as no key waits for
/// another's memory. Found one by one, keys in many places wait for some ten reads, one after the other: a third of the time of a change.
/// What their changes look at is read, too.
#[must_use]
pub fn find_all<'a>(sought: &[(&'a Chunk, &EntryKey)]) -> Vec<Option<usize>> {
    black_box(sought.iter().fold(0, |sum, (chunk, _)| sum ^ chunk.packed().read_head()));
    let block = |packed: &'a Packed, key| packed.group_of(key).ok().and_then(|group| packed.block_of(group, key));
    let blocks: Vec<Option<Block<'a>>> = sought.iter().map(|(chunk, key)| block(chunk.packed(), key)).collect();
    let first = |block: &Block<'_>| block.addresses.get(block.rows.start).map_or(0, |address| address[0]);
    let last = |block: &Block<'_>| block.addresses.get(block.rows.end.saturating_sub(1)).map_or(0, |address| address[0]);
    black_box(blocks.iter().flatten().fold(0, |sum, block| sum ^ first(block) ^ last(block)));
    let row = |((chunk, key), block): (&(&Chunk, &EntryKey), &Option<Block<'_>>)| {
        block.as_ref().and_then(Block::find).or_else(|| chunk.find(key).ok())
    };
    let rows: Vec<Option<usize>> = sought.iter().zip(&blocks).map(row).collect();
    let found = sought.iter().zip(&rows).filter_map(|((chunk, _), row)| Some((chunk, (*row)?)));
    black_box(found.fold(0, |sum, (chunk, row)| sum ^ chunk.packed().read_row(row)));
    rows
}
