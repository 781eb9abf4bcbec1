//! Which addresses an index certainly lacks, in so few bytes that they stay in the processor's cache.
//!
//! Most addresses that are looked up are of pods, which no node has; finding that out in the index itself means waiting for memory. One bit is
//! kept for each of a million hashes. Bits are never cleared: an address that went costs a look into the index, no more.

use std::sync::Arc;

/// How many bits there are, as a power of two: 128 KB. With a quarter of a million addresses a fifth of all others are looked up in vain.
const BITS: u32 = 20;

/// How many words a page has, 4 KB: a change copies one page, if somebody else holds it, and the pointers to all 32.
const PAGE_WORDS: usize = 512;

/// How many pages there are.
const PAGES: usize = (1 << BITS) / 64 / PAGE_WORDS;

/// Two multipliers that together let each bit of a number bear on all of its hash (MurmurHash3, `fmix64`). One alone keeps the distances of
/// addresses that lie in rows, as those of nodes do, and then twice as many others are looked up in vain.
const MIXERS: [u64; 2] = [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53];

/// A set of addresses that may claim to have others, too. Cloning makes a snapshot.
#[derive(Debug, Clone, Default)]
pub(super) struct Sieve {
    /// None while nothing was added.
    pages: Arc<Vec<Arc<[u64; PAGE_WORDS]>>>,
}

/// Where the bit of an address is.
struct Place {
    page: usize,
    word: usize,
    bit: u64,
}

impl Place {
    /// `address` as a number of either family.
    fn of(address: u128) -> Self {
        // an address of IPv6 may differ in either half
        let [high, low] = [address >> 64, address & u128::from(u64::MAX)].map(|half| u64::try_from(half).unwrap_or(0));
        let mixed = MIXERS.iter().fold(high.rotate_left(32) ^ low, |hash, mixer| (hash ^ hash >> 33).wrapping_mul(*mixer));
        let hash = usize::try_from(mixed >> (u64::BITS - BITS)).unwrap_or(0);
        Self { page: hash / 64 / PAGE_WORDS, word: hash / 64 % PAGE_WORDS, bit: 1 << (hash % 64) }
    }
}

impl Sieve {
    pub(super) fn add(&mut self, address: u128) {
        if self.may_have(address) {
            return;
        }
        let Place { page, word, bit } = Place::of(address);
        let pages = Arc::make_mut(&mut self.pages);
        if pages.is_empty() {
            pages.resize_with(PAGES, || Arc::new([0; PAGE_WORDS]));
        }
        Arc::make_mut(&mut pages[page])[word] |= bit;
    }

    /// False is certain.
    pub(super) fn may_have(&self, address: u128) -> bool {
        let Place { page, word, bit } = Place::of(address);
        self.pages.get(page).is_some_and(|page| page[word] & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    /// A quarter of a million addresses as nodes have them, of both families, and as many that lie beside them.
    #[test]
    fn what_was_added_is_never_denied_and_few_others_are_claimed() {
        let mut sieve = Sieve::default();
        assert!(!sieve.may_have(0));
        let ipv4 = |number: u32, last: u8| u128::from(Ipv4Addr::from((10 << 24) + (number << 8) + u32::from(last)).to_bits());
        let ipv6 = |number: u32, last: u16| {
            let [_, _, high, low] = number.to_be_bytes();
            Ipv6Addr::new(0xfd00, 0x10, u16::from(high), u16::from(low), 0, 0, 0, last).to_bits()
        };
        let before = sieve.clone();
        let added = |number| [ipv4(number, 1), ipv4(number, 134), ipv4(number, 7), ipv6(number, 0xe2d6), ipv6(number, 0xd812)];
        (0..50_000).flat_map(added).for_each(|address| sieve.add(address));
        assert!((0..50_000).flat_map(added).all(|address| sieve.may_have(address)));
        let others = (0..50_000).flat_map(|number| [ipv4(number, 2), ipv6(number, 2)]).filter(|address| sieve.may_have(*address)).count();
        assert!((10_000..30_000).contains(&others), "{others} of 100,000: a fifth is what chance gives");
        assert!(!before.may_have(ipv4(0, 1)), "a snapshot stays as it was");
    }
}
