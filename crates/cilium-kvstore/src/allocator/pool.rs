//! The numbers that are free, of a range that may have 2⁶⁴ of them: so what is taken is held, and not what is free. Pure.

use std::collections::{BTreeSet, HashSet};

use rand::Rng;

use super::backend::{Id, IdRange};

/// How many random numbers are tried before the next free one is looked for. With half of the range taken all of them are in vain once in
/// 65,536 times; only then, or where the range is nearly full, what is taken is walked.
const RANDOM_TRIES: u32 = 16;

/// The numbers of a range: free, leased (chosen by somebody here who has not written it yet) or used.
#[derive(Debug)]
pub(super) struct IdPool {
    range: IdRange,
    leased: HashSet<Id>,
    /// Leased ones too.
    taken: BTreeSet<Id>,
}

impl IdPool {
    /// All of the range is free.
    pub(super) fn new(range: IdRange) -> Self {
        Self { range, leased: HashSet::new(), taken: BTreeSet::new() }
    }

    /// Chooses a free number at random, so that nodes seldom choose the same, and leases it.
    pub(super) fn lease(&mut self, random: &mut impl Rng) -> Option<Id> {
        let id = (0..RANDOM_TRIES).map(|_| self.random(random)).find(|id| !self.taken.contains(id)).or_else(|| {
            let start = self.random(random);
            self.first_free(start, self.range.max()).or_else(|| self.first_free(self.range.min(), start))
        })?;
        self.taken.insert(id);
        self.leased.insert(id);
        Some(id)
    }

    /// A leased number is free again; any other stays as it is.
    pub(super) fn release(&mut self, id: Id) {
        if self.leased.remove(&id) {
            self.taken.remove(&id);
        }
    }

    /// A leased number was written: it is used.
    pub(super) fn use_up(&mut self, id: Id) {
        self.leased.remove(&id);
    }

    /// A number has gone from the store: it is free unless it is leased here.
    pub(super) fn insert(&mut self, id: Id) {
        if !self.leased.contains(&id) {
            self.taken.remove(&id);
        }
    }

    /// A number was seen in the store: it is used.
    pub(super) fn remove(&mut self, id: Id) {
        if self.range.contains(id) {
            self.leased.remove(&id);
            self.taken.insert(id);
        }
    }

    fn random(&self, random: &mut impl Rng) -> Id {
        Id::new(random.random_range(self.range.min().number()..=self.range.max().number())).unwrap_or(self.range.min())
    }

    /// The first free number from one to another, both included.
    fn first_free(&self, from: Id, to: Id) -> Option<Id> {
        let mut candidate = from;
        for taken in self.taken.range(from..=to) {
            if *taken != candidate {
                return Some(candidate);
            }
            candidate = Id::new(candidate.number().checked_add(1)?)?;
        }
        (candidate <= to).then_some(candidate)
    }
}
