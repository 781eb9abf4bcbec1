//! A persistent sorted multimap from addresses to the numbers of their holders, in pages: a change copies one page.

use std::ops::Range;
use std::sync::Arc;

use super::wide::WideMap;

/// A page that grows past this is split. A search counts the lower addresses, by blocks first: those of IPv4 are 8 cache lines, which
/// the processor fetches at once, where each step of a binary search would wait for the one before.
const PAGE_LENGTH_MAX: usize = 128;

/// How many addresses a search counts one by one: a cache line of those of IPv4.
const SEARCH_BLOCK: usize = 16;

/// How full pages are made of many entries at once: with room for a few more.
const PAGE_LENGTH_FILLED: usize = 112;

/// A page below this joins the one before it, if there is room.
const PAGE_LENGTH_MIN: usize = 32;

/// Entries of one length: an address, or a hash that stands for a name, and the number of the cluster or node that has it.
#[derive(Debug, Clone)]
pub(in crate::view) struct PagedSet<A: Ord> {
    /// By the first address of each. All entries of one address are in one page.
    pages: WideMap<A, Page<A>>,
    length: usize,
}

/// Entries in order, addresses and holders apart.
#[derive(Debug, Clone)]
struct Page<A> {
    addresses: Arc<[A]>,
    holders: Holders,
}

/// The holder of each address of a page.
#[derive(Debug, Clone)]
enum Holders {
    /// One holder has all addresses, as a rule: a cluster's addresses lie together. It takes no room, and a search need not wait for it.
    One(u32),
    /// By entry.
    Each(Arc<[u32]>),
}

impl Holders {
    /// Of one entry at least.
    fn of<A>(entries: &[(A, u32)]) -> Self {
        let (_, first) = &entries[0];
        if entries.iter().all(|(_, holder)| holder == first) {
            return Self::One(*first);
        }
        Self::Each(entries.iter().map(|(_, holder)| *holder).collect())
    }

    /// The holders of the entries of one address: where one has all, there is no second entry of an address.
    fn of_address(&self, entries: Range<usize>) -> &[u32] {
        match self {
            Self::One(_) if entries.is_empty() => &[],
            Self::One(holder) => std::slice::from_ref(holder),
            Self::Each(holders) => &holders[entries],
        }
    }

    fn iter(&self, count: usize) -> impl Iterator<Item = u32> {
        let (one, each) = match self {
            Self::One(holder) => (Some(*holder), &[][..]),
            Self::Each(holders) => (None, &holders[..]),
        };
        one.into_iter().flat_map(move |holder| std::iter::repeat_n(holder, count)).chain(each.iter().copied())
    }
}

impl<A: Ord> Default for PagedSet<A> {
    fn default() -> Self {
        Self { pages: WideMap::default(), length: 0 }
    }
}

impl<A: Copy + Ord> Page<A> {
    fn of(entries: &[(A, u32)]) -> Self {
        Self { addresses: entries.iter().map(|(address, _)| *address).collect(), holders: Holders::of(entries) }
    }

    fn len(&self) -> usize {
        self.addresses.len()
    }

    fn entries(&self) -> impl Iterator<Item = (A, u32)> {
        self.addresses.iter().copied().zip(self.holders.iter(self.len()))
    }

    /// Where the entries of an address begin.
    fn start(&self, address: A) -> usize {
        if self.len() > PAGE_LENGTH_MAX {
            // many clusters have one address
            return self.addresses.partition_point(|other| *other < address);
        }
        // the last of each block first: those are few, and wait for no other
        let blocks = self.addresses.chunks_exact(SEARCH_BLOCK);
        let skipped = blocks.filter(|block| block[SEARCH_BLOCK - 1] < address).count() * SEARCH_BLOCK;
        let block = self.addresses[skipped..].iter().take(SEARCH_BLOCK);
        skipped + block.filter(|other| **other < address).count()
    }

    /// The page with one more entry before the one at `at`, where there is room and no other kind of holders is needed: a cluster that is
    /// listed for the first time comes address by address, and each would make all pairs of its page anew.
    fn with(&self, at: usize, (address, holder): &(A, u32)) -> Option<Self> {
        if self.len() >= PAGE_LENGTH_MAX {
            return None;
        }
        let holders = match &self.holders {
            Holders::One(one) if one == holder => Holders::One(*one),
            Holders::One(_) => return None,
            Holders::Each(holders) => Holders::Each(inserted(holders, at, *holder)),
        };
        Some(Self { addresses: inserted(&self.addresses, at, *address), holders })
    }

    /// Where an entry is, or belongs.
    fn find(&self, (address, holder): &(A, u32)) -> Result<usize, usize> {
        let start = self.start(*address);
        let end = start + self.addresses[start..].iter().take_while(|other| *other == address).count();
        self.holders.of_address(start..end).binary_search(holder).map(|at| start + at).map_err(|at| start + at)
    }
}

/// Items with one more before the one at `at`.
fn inserted<T: Copy>(items: &[T], at: usize, item: T) -> Arc<[T]> {
    let mut all = Vec::with_capacity(items.len() + 1);
    all.extend_from_slice(&items[..at]);
    all.push(item);
    all.extend_from_slice(&items[at..]);
    all.into()
}

impl<A: Copy + Ord> PagedSet<A> {
    /// Makes a set of entries in order of address; `holder` maps the numbers of the entries to those of the set.
    pub(in crate::view) fn of_sorted(entries: &[(A, u32)], holder: impl Fn(u32) -> u32) -> Self {
        debug_assert!(entries.is_sorted_by_key(|(address, _)| *address), "entries come in order of address");
        let (mut pages, mut rest, mut length) = (Vec::with_capacity(entries.len() / PAGE_LENGTH_FILLED + 1), entries, 0);
        while !rest.is_empty() {
            let (page, tail) = rest.split_at(boundary(rest, PAGE_LENGTH_FILLED));
            let mut page: Vec<(A, u32)> = page.iter().map(|(address, number)| (*address, holder(*number))).collect();
            // all of one address are in one page, so that they are in order here is enough
            page.sort_unstable();
            page.dedup();
            length += page.len();
            pages.push((page[0].0, Page::of(&page)));
            rest = tail;
        }
        Self { pages: WideMap::of_sorted(&pages), length }
    }

    /// Takes in another set: quickly where one of them is small.
    pub(in crate::view) fn absorb(&mut self, mut other: Self) {
        if self.length < other.length {
            std::mem::swap(self, &mut other);
        }
        for (_, page) in other.pages.iter() {
            for entry in page.entries() {
                self.insert(entry);
            }
        }
    }

    /// How many entries there are.
    pub(in crate::view) fn len(&self) -> usize {
        self.length
    }

    /// Every address in order, as often as it has entries.
    pub(in crate::view) fn addresses(&self) -> impl Iterator<Item = A> {
        self.pages.iter().flat_map(|(_, page)| page.addresses.iter().copied())
    }

    /// The entries of addresses from one to another, both included, in order.
    pub(in crate::view) fn range(&self, first: A, last: A) -> impl Iterator<Item = (A, u32)> {
        let page = self.pages.floor(&first).map_or(first, |(page, _)| *page);
        let pages = self.pages.from(&page).take_while(move |(page, _)| **page <= last);
        let entries = pages.flat_map(|(_, page)| page.entries());
        entries.skip_while(move |(address, _)| *address < first).take_while(move |(address, _)| *address <= last)
    }

    /// The holders of an address, in order.
    pub(in crate::view) fn at(&self, address: A) -> &[u32] {
        let Some((_, page)) = self.pages.floor(&address) else { return &[] };
        let start = page.start(address);
        let length = page.addresses[start..].iter().take_while(|at| **at == address).count();
        page.holders.of_address(start..start + length)
    }

    /// Adds an entry; false where it was there.
    pub(in crate::view) fn insert(&mut self, entry: (A, u32)) -> bool {
        let found = self.pages.floor(&entry.0).or_else(|| self.pages.first());
        let Some((first, page)) = found.map(|(first, page)| (*first, page)) else {
            self.pages.insert(entry.0, Page::of(&[entry]));
            self.length += 1;
            return true;
        };
        let Err(at) = page.find(&entry) else { return false };
        if at > 0
            && let Some(page) = page.with(at, &entry)
        {
            self.length += 1;
            self.pages.insert(first, page);
            return true;
        }
        let mut grown = Vec::with_capacity(page.len() + 1);
        grown.extend(page.entries().take(at));
        grown.push(entry);
        grown.extend(page.entries().skip(at));
        self.length += 1;
        self.replace(first, &grown);
        true
    }

    /// Removes an entry; false where it was not there.
    pub(in crate::view) fn remove(&mut self, entry: &(A, u32)) -> bool {
        let Some((first, page)) = self.pages.floor(&entry.0).map(|(first, page)| (*first, page)) else { return false };
        let Ok(at) = page.find(entry) else { return false };
        let mut shrunk: Vec<(A, u32)> = page.entries().collect();
        shrunk.remove(at);
        self.length -= 1;
        self.replace(first, &shrunk);
        true
    }

    /// Puts entries in place of the page that begins with `first`: split where they are many, joined to the page before where few.
    fn replace(&mut self, first: A, entries: &[(A, u32)]) {
        let mut joined = Vec::new();
        let mut entries = entries;
        let kept = entries.first().is_some_and(|(address, _)| *address == first);
        if !kept {
            self.pages.remove(&first);
        }
        if entries.len() < PAGE_LENGTH_MIN {
            let before = self.pages.below(&first).map(|(key, page)| (*key, page.clone()));
            if let Some((key, page)) = before.filter(|(_, page)| page.len() + entries.len() < PAGE_LENGTH_FILLED) {
                joined.extend(page.entries());
                joined.extend_from_slice(entries);
                self.pages.remove(&first);
                self.pages.remove(&key);
                entries = &joined;
            }
        }
        while !entries.is_empty() {
            let length = if entries.len() > PAGE_LENGTH_MAX { boundary(entries, entries.len() / 2) } else { entries.len() };
            let (page, rest) = entries.split_at(length);
            self.pages.insert(page[0].0, Page::of(page));
            entries = rest;
        }
    }
}

/// The first place from `wanted` on where a page may end: not between two entries of one address.
fn boundary<A: Copy + Ord>(entries: &[(A, u32)], wanted: usize) -> usize {
    if wanted >= entries.len() {
        return entries.len();
    }
    let last = entries[wanted - 1].0;
    wanted + entries[wanted..].iter().take_while(|(address, _)| *address == last).count()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Few holders, so that pages come to be of one holder and of several, and an address has as many.
    #[test]
    fn a_set_is_that_of_the_standard_library_whoever_holds_what() {
        for seed in 0..20 {
            let mut random = StdRng::seed_from_u64(seed);
            let entry = |random: &mut StdRng, step: u32| {
                let address: u32 = random.random_range(0..600);
                (address, if (step / 400).is_multiple_of(2) { address / 200 } else { random.random_range(0..3) })
            };
            let mut truth: BTreeSet<(u32, u32)> = (0..random.random_range(0..600)).map(|_| entry(&mut random, 0)).collect();
            // in order of address alone, some twice, and in two parts
            let (some, others): (Vec<_>, Vec<_>) = truth.iter().rev().copied().partition(|_| random.random_bool(0.9));
            let made = |entries: Vec<(u32, u32)>| {
                let mut entries: Vec<(u32, u32)> = entries.into_iter().flat_map(|entry| [entry; 2]).collect();
                entries.sort_by_key(|(address, _)| *address);
                PagedSet::of_sorted(&entries, |holder| holder)
            };
            let mut set = made(some);
            set.absorb(made(others));
            for step in 0..2_000 {
                let entry = entry(&mut random, step);
                if random.random_bool(if step / 500 % 2 == 0 { 0.8 } else { 0.2 }) {
                    assert_eq!(set.insert(entry), truth.insert(entry), "seed {seed}, step {step}");
                } else {
                    assert_eq!(set.remove(&entry), truth.remove(&entry), "seed {seed}, step {step}");
                }
                let expected: Vec<u32> = truth.range((entry.0, 0)..=(entry.0, u32::MAX)).map(|(_, holder)| *holder).collect();
                assert_eq!((set.at(entry.0), set.len()), (&*expected, truth.len()), "seed {seed}, step {step}");
            }
        }
    }
}
