//! Queries of a segment: each reads a page of the filter, then the index, then the blocks that may
//! have the rows.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::block::{ReplacedVersion, VersionBlock};
use super::fence::PartSpan;
use super::filter::{CHECKSUM_BYTES, FilterElement, PAGE_BYTES};
use super::reader::{Segment, SegmentBytes, SegmentError, read_span};
use super::row_key::{AddressOrder, RowKey, Section};
use super::times::{Millis, TimePair};
use crate::model::{EntryKey, ObjectPrefix, Sequence};
use crate::pack::{Chunk, DecodeError};

impl<B: SegmentBytes> Segment<B> {
    /// Returns false if no row has this element.
    pub(in crate::history) fn may_have(&self, element: FilterElement) -> Result<bool, SegmentError> {
        let page = u64::from(element.page(self.fence.filter_pages));
        let span = PartSpan { offset: self.fence.filter_offset + page * PAGE_BYTES as u64, length: PAGE_BYTES as u64 };
        Ok(page_may_have(&read_span(&self.bytes, span)?, element)?)
    }

    /// Calls `visit` with each version of a key that changes after `after` replaced, oldest first,
    /// until it returns false.
    pub(in crate::history) fn visit_versions_of(
        &self,
        key: &EntryKey,
        after: Sequence,
        visit: &mut dyn FnMut(ReplacedVersion) -> bool,
    ) -> Result<(), SegmentError> {
        if !self.may_have(FilterElement::of_key(key))? {
            return Ok(());
        }
        self.visit_rows_from(&RowKey::new(key.clone(), after.next()), |row| row.key == *key, visit)
    }

    /// Calls `visit` with each version of all ipcache entries that cover an address, by prefix, key
    /// and sequence.
    pub(in crate::history) fn visit_versions_covering(
        &self,
        ip: IpAddr,
        visit: &mut dyn FnMut(ReplacedVersion),
    ) -> Result<(), SegmentError> {
        for prefix in covering_prefixes(ip, &self.fence.cidr_lengths) {
            if self.may_have(FilterElement::of_prefix(prefix))? {
                self.visit_rows_from(&RowKey::lowest_of_prefix(prefix), |row| row.is_of_prefix(prefix), &mut |version| {
                    visit(version);
                    true
                })?;
            }
        }
        Ok(())
    }

    /// Calls `visit` with the version of each row from a key on while a test is true, until it
    /// returns false.
    fn visit_rows_from(
        &self,
        from: &RowKey,
        test: impl Fn(&RowKey) -> bool,
        visit: &mut dyn FnMut(ReplacedVersion) -> bool,
    ) -> Result<(), SegmentError> {
        let index = self.read_index()?;
        let start = index.blocks.partition_point(|entry| entry.first <= *from).saturating_sub(1);
        for entry in &index.blocks[start..] {
            let block = self.read_block(entry)?;
            for row in block.position(from)..block.len() {
                if !test(&block.row_key(row)) || !visit(block.version(row)) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Calls `visit` with the version of each row that `select` returns for its chunk.
    pub(in crate::history) fn visit_selected_versions(
        &self,
        select: impl Fn(&Chunk) -> Vec<usize>,
        visit: &mut dyn FnMut(ReplacedVersion),
    ) -> Result<(), SegmentError> {
        for entry in &self.read_index()?.blocks {
            let block = self.read_block(entry)?;
            select(&block.chunk).into_iter().for_each(|row| visit(block.version(row)));
        }
        Ok(())
    }

    /// Returns the sequence of the first change whose time, or that of an earlier change, is later
    /// than `time`. `latest_before` is the latest time before this segment.
    pub(in crate::history) fn first_sequence_after(
        &self,
        latest_before: Option<Millis>,
        time: Millis,
    ) -> Result<Option<Sequence>, SegmentError> {
        if self.fence.times.is_none_or(|range| range.latest <= time) && latest_before.is_none_or(|latest| latest <= time) {
            return Ok(None);
        }
        let index = self.read_index()?;
        let entry = index.time_blocks.iter().find(|entry| latest_before.is_some_and(|latest| latest > time) || entry.range.latest > time);
        let Some(entry) = entry else { return Ok(None) };
        let pairs = self.read_pairs(entry)?;
        Ok(first_pair_after(&pairs, latest_before, time).and_then(|at| pairs.get(at)).map(|(sequence, _)| *sequence))
    }

    /// Returns the sequence after the last change whose time is not later than `time`: the first of
    /// the following pair, or the one after the segment.
    pub(in crate::history) fn sequence_after_last_before(&self, time: Millis) -> Result<Option<Sequence>, SegmentError> {
        if self.fence.times.is_none_or(|range| range.earliest > time) {
            return Ok(None);
        }
        let index = self.read_index()?;
        let mut next = self.fence.last.next();
        for entry in index.time_blocks.iter().rev() {
            if entry.range.earliest > time {
                next = entry.first;
                continue;
            }
            let pairs = self.read_pairs(entry)?;
            let found = pairs.iter().rposition(|(_, label)| *label <= time);
            return Ok(found.map(|at| pairs.get(at + 1).map_or(next, |(sequence, _)| *sequence)));
        }
        Ok(None)
    }

    /// Returns the time of a change in the range of the segment.
    pub(in crate::history) fn time_of(&self, sequence: Sequence) -> Result<Option<Millis>, SegmentError> {
        let index = self.read_index()?;
        let Some(at) = index.time_blocks.partition_point(|entry| entry.first <= sequence).checked_sub(1) else { return Ok(None) };
        let pairs = self.read_pairs(&index.time_blocks[at])?;
        let before = pairs.partition_point(|(first, _)| *first <= sequence);
        Ok(before.checked_sub(1).and_then(|at| pairs.get(at)).map(|(_, time)| *time))
    }
}

impl VersionBlock {
    /// Returns the first row that is not below a key.
    pub(in crate::history) fn position(&self, key: &RowKey) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.row_key(middle) < *key { low = middle + 1 } else { high = middle }
        }
        low
    }
}

impl RowKey {
    /// Returns a key that sorts before every row of the prefix.
    pub(in crate::history) fn lowest_of_prefix(prefix: ObjectPrefix) -> Self {
        Self {
            section: if prefix.host { Section::Hosts } else { Section::Cidrs },
            address: Some(AddressOrder::new(prefix.net)),
            key: EntryKey::lowest(),
            sequence: Sequence(0),
        }
    }

    /// Returns whether the row belongs to an ipcache entry of exactly this prefix.
    pub(in crate::history) fn is_of_prefix(&self, prefix: ObjectPrefix) -> bool {
        self.section == (if prefix.host { Section::Hosts } else { Section::Cidrs }) && self.address == Some(AddressOrder::new(prefix.net))
    }
}

/// Returns whether a page may have an element that belongs to it.
pub(in crate::history) fn page_may_have(page: &[u8], element: FilterElement) -> Result<bool, DecodeError> {
    let (bits, checksum) = page.split_last_chunk::<CHECKSUM_BYTES>().ok_or(DecodeError::Truncated)?;
    if bits.len() != PAGE_BYTES - CHECKSUM_BYTES {
        return Err(DecodeError::Truncated);
    }
    if crc32fast::hash(bits).to_le_bytes() != *checksum {
        return Err(DecodeError::Checksum);
    }
    Ok(element.bits().all(|bit| bits[bit / 8] & 1 << (bit % 8) != 0))
}

/// Returns the index of the first pair whose time, or an earlier pair's time, is later than `time`.
/// `latest_before` is the latest time before these pairs.
pub(in crate::history) fn first_pair_after(pairs: &[TimePair], latest_before: Option<Millis>, time: Millis) -> Option<usize> {
    if latest_before.is_some_and(|latest| latest > time) {
        return (!pairs.is_empty()).then_some(0);
    }
    pairs.iter().position(|(_, label)| *label > time)
}

/// Returns the host entry of an address, and the CIDRs of these lengths that cover it.
pub(in crate::history) fn covering_prefixes(ip: IpAddr, cidr_lengths: &BTreeSet<(bool, u8)>) -> Vec<ObjectPrefix> {
    let lengths = cidr_lengths.iter().filter(|(is_ipv6, _)| *is_ipv6 == ip.is_ipv6());
    let cidrs = lengths.filter_map(|(_, length)| Some(ObjectPrefix { net: IpNet::new(ip, *length).ok()?.trunc(), host: false }));
    std::iter::once(ObjectPrefix { net: IpNet::from(ip), host: true }).chain(cidrs).collect()
}
