//! How the row of a key is found: one, or many at once.

use std::cmp::Ordering;
use std::hint::black_box;
use std::ops::Range;

use super::Chunk;
use super::chunk::Packed;
use super::column::parse_ipv4;
use super::parts::Group;
use crate::model::{EntryKey, Kind};

/// A search for a key that got to the rows of its kind and cluster.
struct Search<'a> {
    packed: &'a Packed,
    group: &'a Group,
    /// Where all rows of the group have an address and nothing else: the few that may have the one of the key.
    block: Option<Block<'a>>,
}

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

    /// Reads of each cache line of the rows. What comes back means nothing.
    fn read_ahead(&self) -> u8 {
        let ends = [self.rows.start, self.rows.end.saturating_sub(1)];
        ends.into_iter().filter_map(|row| self.addresses.get(row)).fold(0, |sum, address| sum ^ address[0])
    }
}

impl<'a> Search<'a> {
    /// An error where no row has the key's kind and cluster: the row before which it belongs.
    fn begin(chunk: &'a Chunk, key: &EntryKey) -> Result<Self, usize> {
        let packed = chunk.packed();
        let order = |group: &Group| group.kind.cmp(&key.kind).then_with(|| group.cluster.cmp_in_keys(&key.cluster));
        let group = packed.groups.binary_search_by(order).map(|at| &packed.groups[at]);
        let group = group.map_err(|at| packed.groups.get(at).map_or(packed.count, |group| group.start))?;
        let block = if key.kind == Kind::Ip { packed.block_of(group, key.name.as_bytes()) } else { None };
        Ok(Self { packed, group, block })
    }

    /// The row, or the one before which the key belongs.
    fn finish(&self, key: &EntryKey) -> Result<usize, usize> {
        if let Some(row) = self.block.as_ref().and_then(Block::find) {
            return Ok(row);
        }
        let mut name = Vec::with_capacity(key.name.len() + 16);
        let (mut low, mut high) = (self.group.start, self.group.end);
        while low < high {
            let middle = low.midpoint(high);
            name.clear();
            self.packed.append_name(middle, &mut name);
            match name.as_slice().cmp(key.name.as_bytes()) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }
}

impl Chunk {
    /// The row of a key, or the one that it would have. Rows count from 0 in key order.
    ///
    /// # Errors
    /// The row before which the key belongs, where it is not there.
    pub fn find(&self, key: &EntryKey) -> Result<usize, usize> {
        Search::begin(self, key)?.finish(key)
    }
}

impl Packed {
    /// The few rows of a group that may have an address, where all of the group have one and nothing else.
    fn block_of(&self, group: &Group, name: &[u8]) -> Option<Block<'_>> {
        let rows = group.start..group.end;
        let addresses = self.names.ipv4_addresses(&self.bytes, self.count, rows.clone())?;
        let wanted = parse_ipv4(name)?.to_bits();
        Some(Block { addresses, rows: self.marks.block(addresses, rows, wanted), wanted: wanted.to_le_bytes() })
    }

    /// Reads of what a search looks at first, whatever it looks for: a cache line of each. What comes back means nothing.
    fn read_ahead(&self) -> usize {
        let groups = self.groups.first().map_or(0, |group| group.end);
        groups ^ self.count ^ self.names.exceptions_in(0..0).len() ^ self.marks.read_ahead()
    }

    /// Reads of a row what its change looks at. What comes back means nothing.
    fn read_row_ahead(&self, row: usize) -> u64 {
        let (numbers, bytes) = (&self.numbers, &self.bytes);
        numbers.digest.at(bytes, row) ^ numbers.last_sequence.at(bytes, row) ^ numbers.lifetime.at(bytes, row)
    }
}

/// The row of each key in its chunk; `None` where it is not there.
///
/// As [`Chunk::find`] has them, in steps, each for all of them before the next: what a step reads it reads for all at once, as no key waits for
/// another's memory. Found one by one, keys in many places wait for some ten reads, one after the other: a third of the time of a change.
/// What their changes look at is read, too. Without `black_box` reading ahead would be left out, as nothing is made of it.
#[must_use]
pub fn find_all(sought: &[(&Chunk, &EntryKey)]) -> Vec<Option<usize>> {
    black_box(sought.iter().fold(0, |sum, (chunk, _)| sum ^ chunk.packed().read_ahead()));
    let searches: Vec<Option<Search<'_>>> = sought.iter().map(|(chunk, key)| Search::begin(chunk, key).ok()).collect();
    let blocks = searches.iter().flatten().filter_map(|search| search.block.as_ref());
    black_box(blocks.fold(0, |sum, block| sum ^ block.read_ahead()));
    let ends = searches.iter().zip(sought).map(|(search, (_, key))| search.as_ref()?.finish(key).ok());
    let rows: Vec<Option<usize>> = ends.collect();
    let found = sought.iter().zip(&rows).filter_map(|((chunk, _), row)| Some((chunk, (*row)?)));
    black_box(found.fold(0, |sum, (chunk, row)| sum ^ chunk.packed().read_row_ahead(row)));
    rows
}
