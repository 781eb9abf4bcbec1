//! A Bloom filter of the texts in the filtered fields of a chunk's ipcache entries.
//!
//! Most chunks do not contain the pod, namespace or node that a list is filtered by. The filter
//! says so with one access to memory. It is computed at its first use (`row_filter`) and is not
//! stored.

use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::fast::FixedState;

use super::form_choice::split_parts;

/// Number of fields: the host, the namespace and the pod.
pub(super) const FIELDS: usize = 3;

/// Index of the field with the addresses of hosts.
pub(super) const HOST: usize = 0;

/// Bits of a block. All bits of an element are in one block, which is one cache line.
const BLOCK_BITS: u64 = 512;

/// Elements for each block: about 10 bits each, so that 2 % of the absent elements seem present.
const BLOCK_ELEMENTS: usize = 50;

/// Number of bits that an element sets.
const PROBES: u32 = 4;

/// Number that is added to a field for the parts of its texts after the last `-`.
const TAIL: usize = FIELDS;

/// The filter of one chunk.
#[derive(Debug)]
pub(super) struct TextFilter {
    blocks: Box<[[u64; 8]]>,
    /// Fields of which other texts may be in the chunk.
    is_unknown: [bool; FIELDS],
}

/// An element of a filter, as a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TextElement(u64);

impl TextElement {
    /// Returns the element of a value of a field. A host that is not an address has none, because
    /// it passes no test.
    pub(super) fn of_value(field: usize, prefix: &[u8], text: &[u8]) -> Option<Self> {
        if field != HOST {
            return Some(Self::of_text(field, prefix, text));
        }
        let text = [prefix, text].concat();
        let ip: IpAddr = std::str::from_utf8(&text).ok()?.parse().ok()?;
        Some(Self::of_address(ip))
    }

    /// Returns the element of a host.
    pub(super) fn of_address(ip: IpAddr) -> Self {
        Self(FixedState::with_seed(HOST as u64).hash_one(ip.to_canonical()))
    }

    /// Returns the element of values that end with `-` and this text.
    pub(super) fn of_tail(field: usize, prefix: &[u8], text: &[u8]) -> Self {
        Self::of_text(field + TAIL, prefix, text)
    }

    fn of_text(field: usize, prefix: &[u8], text: &[u8]) -> Self {
        let state = FixedState::with_seed(field as u64);
        Self(if prefix.is_empty() { state.hash_one(text) } else { state.hash_one([prefix, text].concat().as_slice()) })
    }

    /// Returns the index of the block with the element.
    fn block(self, blocks: usize) -> usize {
        usize::try_from((u128::from(self.0) * blocks as u128) >> 64).unwrap_or(0)
    }

    /// Returns the bits of the element in its block.
    fn bits(self) -> impl Iterator<Item = usize> {
        (0..PROBES).map(move |probe| usize::try_from((self.0 >> (probe * 9)) % BLOCK_BITS).unwrap_or(0))
    }
}

impl TextFilter {
    /// Creates a filter that excludes nothing.
    pub(super) fn unknown() -> Self {
        Self { blocks: Box::default(), is_unknown: [true; FIELDS] }
    }

    /// Creates the filter of these elements. Fields may have other texts if they are unknown.
    pub(super) fn new(mut elements: Vec<TextElement>, is_unknown: [bool; FIELDS]) -> Self {
        elements.sort_unstable();
        elements.dedup();
        let mut blocks = vec![[0; 8]; elements.len() / BLOCK_ELEMENTS + 1];
        for element in elements {
            let block = element.block(blocks.len());
            for bit in element.bits() {
                blocks[block][bit / 64] |= 1 << (bit % 64);
            }
        }
        Self { blocks: blocks.into(), is_unknown }
    }

    /// Returns false if certainly no value of a field is this text.
    pub(super) fn may_have_text(&self, field: usize, text: &[u8]) -> bool {
        let tail = split_parts(text).map(|(_, tail)| TextElement::of_tail(field, &[], tail));
        let may_have = |element| self.may_have(element);
        self.is_unknown[field] || may_have(TextElement::of_text(field, &[], text)) || tail.is_some_and(may_have)
    }

    /// Returns false if certainly no host is this address.
    pub(super) fn may_have_host(&self, ip: IpAddr) -> bool {
        self.is_unknown[HOST] || self.may_have(TextElement::of_address(ip))
    }

    fn may_have(&self, element: TextElement) -> bool {
        let block = &self.blocks[element.block(self.blocks.len())];
        element.bits().all(|bit| block[bit / 64] & (1 << (bit % 64)) != 0)
    }
}
