//! A sorted set of addresses and who holds each, in pages: small, quick to search, and persistent, so that a change copies one page.

use std::sync::Arc;

use imbl::OrdMap;

/// A page that grows past this is split. A search counts the lower addresses of the whole page: those of IPv4 are 8 cache lines, which
/// the processor fetches at once, where each step of a binary search would wait for the one before.
const PAGE_LENGTH_MAX: usize = 128;

/// How full pages are made of many entries at once: with room for a few more.
const PAGE_LENGTH_FILLED: usize = 112;

/// A page below this joins the one before it, if there is room.
const PAGE_LENGTH_MIN: usize = 32;

/// Entries of one length: an address and the number of a cluster that has it.
#[derive(Debug, Clone)]
pub(super) struct PagedSet<A: Ord> {
    /// By the first address of each. All entries of one address are in one page.
    pages: OrdMap<A, Page<A>>,
    length: usize,
}

/// Entries in order, addresses and numbers apart.
#[derive(Debug, Clone)]
struct Page<A> {
    addresses: Arc<[A]>,
    clusters: Arc<[u32]>,
}

impl<A: Ord> Default for PagedSet<A> {
    fn default() -> Self {
        Self { pages: OrdMap::new(), length: 0 }
    }
}

impl<A: Copy + Ord> Page<A> {
    fn of(entries: &[(A, u32)]) -> Self {
        Self {
            addresses: entries.iter().map(|(address, _)| *address).collect(),
            clusters: entries.iter().map(|(_, number)| *number).collect(),
        }
    }

    fn len(&self) -> usize {
        self.addresses.len()
    }

    fn entries(&self) -> impl Iterator<Item = (A, u32)> {
        self.addresses.iter().copied().zip(self.clusters.iter().copied())
    }

    /// Where the entries of an address begin.
    fn start(&self, address: A) -> usize {
        if self.len() > PAGE_LENGTH_MAX {
            // many clusters have one address
            return self.addresses.partition_point(|other| *other < address);
        }
        self.addresses.iter().filter(|other| **other < address).count()
    }

    /// Where an entry is, or belongs.
    fn find(&self, (address, cluster): (A, u32)) -> Result<usize, usize> {
        let start = self.start(address);
        let end = start + self.addresses[start..].iter().take_while(|other| **other == address).count();
        self.clusters[start..end].binary_search(&cluster).map(|at| start + at).map_err(|at| start + at)
    }
}

impl<A: Copy + Ord> PagedSet<A> {
    /// Makes a set of sorted entries without repetition.
    pub(super) fn of_sorted(entries: &[(A, u32)]) -> Self {
        let mut set = Self { pages: OrdMap::new(), length: entries.len() };
        let mut rest = entries;
        while !rest.is_empty() {
            let (page, tail) = rest.split_at(boundary(rest, PAGE_LENGTH_FILLED));
            set.pages.insert(page[0].0, Page::of(page));
            rest = tail;
        }
        set
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// The numbers of the clusters that have an address, in order.
    pub(super) fn at(&self, address: A) -> &[u32] {
        let Some((_, page)) = self.pages.get_prev(&address) else { return &[] };
        let start = page.start(address);
        let length = page.addresses[start..].iter().take_while(|at| **at == address).count();
        &page.clusters[start..start + length]
    }

    /// Adds an entry; false where it was there.
    pub(super) fn insert(&mut self, entry: (A, u32)) -> bool {
        let found = self.pages.get_prev(&entry.0).or_else(|| self.pages.get_min().map(|(first, page)| (first, page)));
        let Some((first, page)) = found.map(|(first, page)| (*first, page)) else {
            self.pages.insert(entry.0, Page::of(&[entry]));
            self.length += 1;
            return true;
        };
        let Err(at) = page.find(entry) else { return false };
        let mut grown = Vec::with_capacity(page.len() + 1);
        grown.extend(page.entries().take(at));
        grown.push(entry);
        grown.extend(page.entries().skip(at));
        self.length += 1;
        self.replace(first, &grown);
        true
    }

    /// Removes an entry; false where it was not there.
    pub(super) fn remove(&mut self, entry: (A, u32)) -> bool {
        let Some((first, page)) = self.pages.get_prev(&entry.0).map(|(first, page)| (*first, page)) else { return false };
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
            let before = self.pages.range(..first).next_back().map(|(key, page)| (*key, page.clone()));
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
