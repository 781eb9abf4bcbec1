//! A Bloom filter with one hash: it says quickly of most addresses that an index does not have them.
//!
//! A lookup asks two indices for an address: who announces it, and which node it was derived from. Few have the second, and a search that
//! finds nothing waits for memory as often as one that does. One bit, at the place that the address's hash names, answers before.
//!
//! All snapshots share the bits, as they are only ever set: one too many costs a search. What was taken out goes with the next filter.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many bits for each address: one of 16 that are not there passes, half a megabyte for 250,000.
const BITS_PER_ADDRESS: usize = 16;

/// A filter is replaced when it has so few bits for each address that was put in: one of 8 passes then.
const BITS_PER_ADDRESS_MIN: usize = 8;

/// What a filter has room for at least, so that the first few addresses do not each make a new one.
const ADDRESSES_MIN: usize = 64;

/// The golden ratio in 64 bits, the usual multiplier: what is low in a number moves the upper bits of the product.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// A set of addresses that may say of some others that it has them.
#[derive(Debug, Clone, Default)]
pub(super) struct BloomFilter {
    /// None, or a power of two of them.
    words: Arc<[AtomicU64]>,
    /// How many addresses were put in.
    count: usize,
}

impl BloomFilter {
    /// One with these addresses, of which there are about `count`, and room for as many more.
    pub(super) fn of(addresses: impl Iterator<Item = IpAddr>, count: usize) -> Self {
        let words = (count.max(ADDRESSES_MIN) * BITS_PER_ADDRESS / 64).next_power_of_two();
        let mut filter = Self { words: (0..words).map(|_| AtomicU64::new(0)).collect(), count: 0 };
        addresses.for_each(|ip| filter.insert(ip));
        filter
    }

    /// Whether another address needs a new filter.
    pub(super) fn is_full(&self) -> bool {
        self.count >= self.words.len() * 64 / BITS_PER_ADDRESS_MIN
    }

    /// Puts an address in. Must not be full.
    pub(super) fn insert(&mut self, ip: IpAddr) {
        let (word, bit) = self.place(ip);
        // whoever gets a snapshot with the address gets it behind this
        self.words[word].fetch_or(bit, Ordering::Relaxed);
        self.count += 1;
    }

    /// Whether an address may have been put in. False is certain.
    pub(super) fn may_hold(&self, ip: IpAddr) -> bool {
        let (word, bit) = self.place(ip);
        self.words.get(word).is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn place(&self, ip: IpAddr) -> (usize, u64) {
        let number = match ip {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            IpAddr::V6(ip) => {
                let [upper, lower] = halves(ip);
                mixed(upper) ^ lower
            }
        };
        let hash = mixed(number);
        let word = usize::try_from(hash >> 6).unwrap_or(0) & self.words.len().saturating_sub(1);
        (word, 1 << (hash & 63))
    }
}

/// A number whose every bit depends on all of another's: addresses that lie together are to be far apart.
fn mixed(number: u64) -> u64 {
    let product = (number ^ number >> 32).wrapping_mul(MULTIPLIER);
    (product ^ product >> 32).wrapping_mul(MULTIPLIER) >> 16
}

/// The network and the host part of an address, as a rule.
fn halves(ip: Ipv6Addr) -> [u64; 2] {
    let octets = ip.octets();
    let (eights, _) = octets.as_chunks::<8>();
    std::array::from_fn(|at| u64::from_be_bytes(eights[at]))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn addresses(count: u32) -> impl Iterator<Item = IpAddr> {
        (0..count).flat_map(|number| {
            let ipv6 = Ipv6Addr::from(0xfd00_0010_u128 << 96 | u128::from(number >> 4) << 64 | u128::from(number & 15));
            [Ipv4Addr::from(0x0a00_0000 + number).into(), ipv6.into()]
        })
    }

    #[test]
    fn what_was_put_in_passes_and_most_else_does_not() {
        for count in [0, 1, 40, 5_000, 60_000] {
            let mut filter = BloomFilter::of(addresses(count), 2 * count as usize);
            assert!(addresses(count).all(|ip| filter.may_hold(ip)), "{count}");
            let passing =
                |filter: &BloomFilter| addresses(2 * count + 1_000).skip(2 * count as usize).filter(|ip| filter.may_hold(*ip)).count();
            let others = 2 * (count + 1_000) as usize;
            assert!(passing(&filter) <= others / 8, "{count}: {} of {others}", passing(&filter));
            let copy = filter.clone();
            let added: Vec<IpAddr> = addresses(3 * count + 1_000).skip(2 * count as usize).take(2 * count as usize).collect();
            for ip in &added {
                assert!(!filter.is_full(), "{count}: room for as many more");
                filter.insert(*ip);
            }
            assert!(added.into_iter().chain(addresses(count)).all(|ip| filter.may_hold(ip) && copy.may_hold(ip)), "{count}");
        }
        assert!(!BloomFilter::default().may_hold(Ipv4Addr::LOCALHOST.into()));
        assert!(BloomFilter::default().is_full());
    }
}
