//! The filter of a segment: a Bloom filter in pages, which shows whether the segment may have a
//! value.
//!
//! A "no" is certain; a value that the segment does not have gets a "yes" about once in a hundred
//! times. All bits of an element are in one page, so that a query reads and checks a single page.
//!
//! A page has [`PAGE_BYTES`] bytes: the bits, then the CRC-32 of the bits. The page of an element
//! is `high × pages / 2^32`, where high is the upper half of its hash, and its bits are `(low + i ×
//! step) mod bits` for i from 0 to 6, where low is the lower half, and step is the lower half of
//! the mixed hash, made odd.

use crate::model::{EntryKey, ObjectPrefix};

/// Length of a page: one block of usual file systems.
pub(in crate::history) const PAGE_BYTES: usize = 4_096;

pub(super) const CHECKSUM_BYTES: usize = 4;
const PAGE_BITS: u64 = (PAGE_BYTES - CHECKSUM_BYTES) as u64 * 8;

/// Bits of the filter for each element.
const BITS_PER_ELEMENT: usize = 10;

/// Number of bits that an element sets: `10 × ln 2`.
const PROBES: u64 = 7;

/// A value that a segment may have, as a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::history) struct FilterElement(u64);

impl FilterElement {
    /// Returns the element of a key. The keys of ipcache entries count as their prefixes.
    pub(in crate::history) fn of_key(key: &EntryKey) -> Self {
        match super::row_key::prefix_of(key) {
            Some(prefix) => Self::of_prefix(prefix),
            None => Self::of_parts(0, &[&[key.kind as u8], key.cluster.as_str().as_bytes(), key.name.as_bytes()]),
        }
    }

    /// Returns the element of an ipcache entry with this prefix, in any cluster.
    pub(in crate::history) fn of_prefix(prefix: ObjectPrefix) -> Self {
        Self::of_parts(1, &[prefix.to_string().as_bytes()])
    }

    /// Returns the element of an identity: its own records and the ipcache entries that name it.
    pub(in crate::history) fn of_identity(identity: u32) -> Self {
        Self::of_parts(2, &[&identity.to_le_bytes()])
    }

    /// Returns the element of the ipcache entries of a pod.
    pub(in crate::history) fn of_pod(namespace: &str, name: &str) -> Self {
        Self::of_parts(3, &[namespace.as_bytes(), name.as_bytes()])
    }

    /// Hashes parts with their lengths, eight bytes at a time.
    fn of_parts(tag: u64, parts: &[&[u8]]) -> Self {
        let mut hash = mix(tag);
        for part in parts {
            hash = mix(hash ^ part.len() as u64);
            for word in part.chunks(8) {
                let mut bytes = [0; 8];
                bytes[..word.len()].copy_from_slice(word);
                hash = mix(hash ^ u64::from_le_bytes(bytes));
            }
        }
        Self(hash)
    }

    /// Returns the page of the element in a filter of this many pages.
    pub(in crate::history) fn page(self, page_count: u32) -> u32 {
        u32::try_from(((self.0 >> 32) * u64::from(page_count)) >> 32).unwrap_or(0)
    }

    /// Returns the bits of the element in its page.
    pub(super) fn bits(self) -> impl Iterator<Item = usize> {
        let (low, step) = (self.0 & 0xffff_ffff, mix(self.0) & 0xffff_ffff | 1);
        (0..PROBES).map(move |probe| usize::try_from((low + probe * step) % PAGE_BITS).unwrap_or(0))
    }
}

/// The splitmix64 function.
fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Returns the pages of a filter with these elements, which are sorted and distinct.
pub(in crate::history) fn build_filter(elements: &[FilterElement]) -> Vec<u8> {
    let page_count = (elements.len() * BITS_PER_ELEMENT).div_ceil(usize::try_from(PAGE_BITS).unwrap_or(1)).max(1);
    let mut pages = vec![0; page_count * PAGE_BYTES];
    for element in elements {
        let page = element.page(u32::try_from(page_count).unwrap_or(u32::MAX)) as usize;
        for bit in element.bits() {
            pages[page * PAGE_BYTES + bit / 8] |= 1 << (bit % 8);
        }
    }
    for page in pages.chunks_mut(PAGE_BYTES) {
        let (bits, checksum) = page.split_at_mut(PAGE_BYTES - CHECKSUM_BYTES);
        checksum.copy_from_slice(&crc32fast::hash(bits).to_le_bytes());
    }
    pages
}
