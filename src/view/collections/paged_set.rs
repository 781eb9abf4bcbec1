//! Persistent sorted multimap from addresses to the numbers of their owners. Entries are stored in
//! pages, and a change copies one page.

use std::ops::Range;
use std::sync::Arc;

use super::two_level_map::TwoLevelMap;

/// Maximum number of entries in a page. A search compares one address per block first: the IPv4
/// addresses of a page fill 8 cache lines, which the processor loads at once, whereas each step of
/// a binary search would wait for the previous one.
const PAGE_LENGTH_MAX: usize = 128;

/// Number of addresses that a search compares one by one: a cache line of IPv4 addresses.
const SEARCH_BLOCK: usize = 16;

/// Number of entries of a page after bulk insertion, which leaves space for more.
const PAGE_LENGTH_FILLED: usize = 112;

/// Minimum number of entries in a page. A smaller page is joined with the previous one if both fit.
const PAGE_LENGTH_MIN: usize = 32;

/// Pairs of an address, or a hash, and the number of the cluster or node that owns it.
#[derive(Debug, Clone)]
pub(in crate::view) struct PagedSet<A: Ord> {
    /// Pages by their first addresses. All entries of one address are in one page.
    pages: TwoLevelMap<A, AddressPage<A>>,
    length: usize,
}

/// Sorted entries, with addresses and owners in separate arrays.
#[derive(Debug, Clone)]
struct AddressPage<A> {
    addresses: Arc<[A]>,
    owners: PageOwners,
}

/// Owners of the entries of a page.
#[derive(Debug, Clone)]
enum PageOwners {
    /// One owner for all entries, which is usual because the addresses of a cluster are neighbours.
    Single(u32),
    /// One owner per entry.
    PerAddress(Arc<[u32]>),
}

impl PageOwners {
    /// Creates the owners of a page from its entries, which must not be empty.
    fn from_entries<A>(entries: &[(A, u32)]) -> Self {
        let (_, first) = &entries[0];
        if entries.iter().all(|(_, owner)| owner == first) {
            return Self::Single(*first);
        }
        Self::PerAddress(entries.iter().map(|(_, owner)| *owner).collect())
    }

    /// Returns the owners of one address, given the indices of its entries. With a single owner, an
    /// address has only one entry.
    fn owners_at(&self, entries: Range<usize>) -> &[u32] {
        match self {
            Self::Single(_) if entries.is_empty() => &[],
            Self::Single(owner) => std::slice::from_ref(owner),
            Self::PerAddress(owners) => &owners[entries],
        }
    }

    fn iter(&self, count: usize) -> impl Iterator<Item = u32> {
        let (one, each) = match self {
            Self::Single(owner) => (Some(*owner), &[][..]),
            Self::PerAddress(owners) => (None, &owners[..]),
        };
        one.into_iter().flat_map(move |owner| std::iter::repeat_n(owner, count)).chain(each.iter().copied())
    }
}

impl<A: Ord> Default for PagedSet<A> {
    fn default() -> Self {
        Self { pages: TwoLevelMap::default(), length: 0 }
    }
}

impl<A: Copy + Ord> AddressPage<A> {
    fn from_entries(entries: &[(A, u32)]) -> Self {
        Self { addresses: entries.iter().map(|(address, _)| *address).collect(), owners: PageOwners::from_entries(entries) }
    }

    fn len(&self) -> usize {
        self.addresses.len()
    }

    fn entries(&self) -> impl Iterator<Item = (A, u32)> {
        self.addresses.iter().copied().zip(self.owners.iter(self.len()))
    }

    /// Returns the index of the first entry of an address.
    fn start(&self, address: A) -> usize {
        if self.len() > PAGE_LENGTH_MAX {
            // one address of very many clusters
            return self.addresses.partition_point(|other| *other < address);
        }
        // the last address of each block first, because these loads do not depend on each other
        let blocks = self.addresses.chunks_exact(SEARCH_BLOCK);
        let skipped = blocks.filter(|block| block[SEARCH_BLOCK - 1] < address).count() * SEARCH_BLOCK;
        let block = self.addresses[skipped..].iter().take(SEARCH_BLOCK);
        skipped + block.filter(|other| **other < address).count()
    }

    /// Returns the page with one more entry at `index`, or `None` if the page is full or needs
    /// another form of owners. It must be cheap, because the first list of a cluster inserts its
    /// addresses one by one.
    fn with_entry(&self, index: usize, (address, owner): &(A, u32)) -> Option<Self> {
        if self.len() >= PAGE_LENGTH_MAX {
            return None;
        }
        let owners = match &self.owners {
            PageOwners::Single(one) if one == owner => PageOwners::Single(*one),
            PageOwners::Single(_) => return None,
            PageOwners::PerAddress(owners) => PageOwners::PerAddress(copy_with_item(owners, index, *owner)),
        };
        Some(Self { addresses: copy_with_item(&self.addresses, index, *address), owners })
    }

    /// Returns the index of an entry, or as error the index at which to insert it.
    fn find(&self, (address, owner): &(A, u32)) -> Result<usize, usize> {
        let start = self.start(*address);
        let end = start + self.addresses[start..].iter().take_while(|other| *other == address).count();
        self.owners.owners_at(start..end).binary_search(owner).map(|offset| start + offset).map_err(|offset| start + offset)
    }
}

/// Returns a copy of `items` with one more item at `index`.
fn copy_with_item<T: Copy>(items: &[T], index: usize, item: T) -> Arc<[T]> {
    let mut all = Vec::with_capacity(items.len() + 1);
    all.extend_from_slice(&items[..index]);
    all.push(item);
    all.extend_from_slice(&items[index..]);
    all.into()
}

impl<A: Copy + Ord> PagedSet<A> {
    /// Creates a set from entries sorted by address. Each entry `(address, n)` gets the owner
    /// `owner(n)`.
    pub(in crate::view) fn from_sorted(entries: &[(A, u32)], owner: impl Fn(u32) -> u32) -> Self {
        debug_assert!(entries.is_sorted_by_key(|(address, _)| *address), "entries must be sorted by address");
        let (mut pages, mut rest, mut length) = (Vec::with_capacity(entries.len() / PAGE_LENGTH_FILLED + 1), entries, 0);
        while !rest.is_empty() {
            let (page, tail) = rest.split_at(boundary(rest, PAGE_LENGTH_FILLED));
            let mut page: Vec<(A, u32)> = page.iter().map(|(address, number)| (*address, owner(*number))).collect();
            // this sorts each address's owners, because all its entries are in one page
            page.sort_unstable();
            page.dedup();
            length += page.len();
            pages.push((page[0].0, AddressPage::from_entries(&page)));
            rest = tail;
        }
        Self { pages: TwoLevelMap::from_sorted(&pages), length }
    }

    /// Merges another set into this one. Fast if one of them is small.
    pub(in crate::view) fn merge(&mut self, mut other: Self) {
        if self.length < other.length {
            std::mem::swap(self, &mut other);
        }
        for (_, page) in other.pages.iter() {
            for entry in page.entries() {
                self.insert(entry);
            }
        }
    }

    /// Returns the number of entries.
    pub(in crate::view) fn len(&self) -> usize {
        self.length
    }

    /// Iterates over the addresses in order, once per entry.
    pub(in crate::view) fn addresses(&self) -> impl Iterator<Item = A> {
        self.pages.iter().flat_map(|(_, page)| page.addresses.iter().copied())
    }

    /// Iterates over the entries from one address to another, both included, in order.
    pub(in crate::view) fn range(&self, first: A, last: A) -> impl Iterator<Item = (A, u32)> {
        let page = self.pages.floor(&first).map_or(first, |(page, _)| *page);
        let pages = self.pages.from(&page).take_while(move |(page, _)| **page <= last);
        let entries = pages.flat_map(|(_, page)| page.entries());
        entries.skip_while(move |(address, _)| *address < first).take_while(move |(address, _)| *address <= last)
    }

    /// Returns the owners of an address, in order.
    pub(in crate::view) fn owners_of(&self, address: A) -> &[u32] {
        let Some((_, page)) = self.pages.floor(&address) else { return &[] };
        let start = page.start(address);
        let length = page.addresses[start..].iter().take_while(|other| **other == address).count();
        page.owners.owners_at(start..start + length)
    }

    /// Adds an entry. Returns false if it exists already.
    pub(in crate::view) fn insert(&mut self, entry: (A, u32)) -> bool {
        let found = self.pages.floor(&entry.0).or_else(|| self.pages.first());
        let Some((first, page)) = found.map(|(first, page)| (*first, page)) else {
            self.pages.insert(entry.0, AddressPage::from_entries(&[entry]));
            self.length += 1;
            return true;
        };
        let Err(index) = page.find(&entry) else { return false };
        if index > 0
            && let Some(page) = page.with_entry(index, &entry)
        {
            self.length += 1;
            self.pages.insert(first, page);
            return true;
        }
        let mut grown = Vec::with_capacity(page.len() + 1);
        grown.extend(page.entries().take(index));
        grown.push(entry);
        grown.extend(page.entries().skip(index));
        self.length += 1;
        self.replace(first, &grown);
        true
    }

    /// Removes an entry. Returns false if it does not exist.
    pub(in crate::view) fn remove(&mut self, entry: &(A, u32)) -> bool {
        let Some((first, page)) = self.pages.floor(&entry.0).map(|(first, page)| (*first, page)) else { return false };
        let Ok(index) = page.find(entry) else { return false };
        let mut shrunk: Vec<(A, u32)> = page.entries().collect();
        shrunk.remove(index);
        self.length -= 1;
        self.replace(first, &shrunk);
        true
    }

    /// Replaces the entries of the page that begins with `first`. Splits a large page, and joins a
    /// small one with the previous page.
    fn replace(&mut self, first: A, entries: &[(A, u32)]) {
        let mut joined = Vec::new();
        let mut entries = entries;
        let keeps_first = entries.first().is_some_and(|(address, _)| *address == first);
        if !keeps_first {
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
            self.pages.insert(page[0].0, AddressPage::from_entries(page));
            entries = rest;
        }
    }
}

/// Returns the first index from `wanted` on at which a page may end: not between two entries of one
/// address.
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

    /// Uses few owners, so that some pages have one owner and others several.
    #[test]
    fn a_paged_set_equals_a_btree_set() {
        for seed in 0..20 {
            let mut random = StdRng::seed_from_u64(seed);
            let entry = |random: &mut StdRng, step: u32| {
                let address: u32 = random.random_range(0..600);
                (address, if (step / 400).is_multiple_of(2) { address / 200 } else { random.random_range(0..3) })
            };
            let mut truth: BTreeSet<(u32, u32)> = (0..random.random_range(0..600)).map(|_| entry(&mut random, 0)).collect();
            // sorted by address only, with duplicates, and in two parts
            let (some, others): (Vec<_>, Vec<_>) = truth.iter().rev().copied().partition(|_| random.random_bool(0.9));
            let build = |entries: Vec<(u32, u32)>| {
                let mut entries: Vec<(u32, u32)> = entries.into_iter().flat_map(|entry| [entry; 2]).collect();
                entries.sort_by_key(|(address, _)| *address);
                PagedSet::from_sorted(&entries, |owner| owner)
            };
            let mut set = build(some);
            set.merge(build(others));
            for step in 0..2_000 {
                let entry = entry(&mut random, step);
                if random.random_bool(if step / 500 % 2 == 0 { 0.8 } else { 0.2 }) {
                    assert_eq!(set.insert(entry), truth.insert(entry), "seed {seed}, step {step}");
                } else {
                    assert_eq!(set.remove(&entry), truth.remove(&entry), "seed {seed}, step {step}");
                }
                let expected: Vec<u32> = truth.range((entry.0, 0)..=(entry.0, u32::MAX)).map(|(_, owner)| *owner).collect();
                assert_eq!((set.owners_of(entry.0), set.len()), (&*expected, truth.len()), "seed {seed}, step {step}");
            }
        }
    }
}
