//! Free numbers of a range. The range may have 2⁶⁴ numbers, so the pool stores the numbers that are
//! not free. A lease of a number exists only in the pool and has nothing to do with etcd's leases.
//! Same rules as Cilium's `pkg/idpool`. No IO.

use std::collections::{BTreeSet, HashSet};

use rand::Rng;

use super::backend::{Id, IdRange};

/// Number of random choices before the pool searches for the next free number. If half of the range
/// is taken, all choices fail once in 65,536 times. The taken numbers are scanned only in that
/// case, or if the range is nearly full.
const RANDOM_TRIES: u32 = 16;

/// Numbers of a range: free, leased (chosen here but not written yet) or used.
#[derive(Debug)]
pub(super) struct IdPool {
    range: IdRange,
    leased: HashSet<Id>,
    /// Used and leased numbers.
    taken: BTreeSet<Id>,
}

impl IdPool {
    /// Creates a pool in which the whole range is free.
    pub(super) fn new(range: IdRange) -> Self {
        Self { range, leased: HashSet::new(), taken: BTreeSet::new() }
    }

    /// Leases a random free number (Cilium: `LeaseAvailableID`). Two nodes are unlikely to choose
    /// the same random number.
    pub(super) fn lease_available(&mut self, random: &mut impl Rng) -> Option<Id> {
        let id = (0..RANDOM_TRIES).map(|_| self.random_number(random)).find(|id| !self.taken.contains(id)).or_else(|| {
            let start = self.random_number(random);
            self.first_free(start, self.range.max()).or_else(|| self.first_free(self.range.min(), start))
        })?;
        self.taken.insert(id);
        self.leased.insert(id);
        Some(id)
    }

    /// Frees a leased number; any other number keeps its state (Cilium: `Release`).
    pub(super) fn release_lease(&mut self, id: Id) {
        if self.leased.remove(&id) {
            self.taken.remove(&id);
        }
    }

    /// Marks a leased number as used, because it was written (Cilium: `Use`).
    pub(super) fn mark_lease_used(&mut self, id: Id) {
        self.leased.remove(&id);
    }

    /// Frees a number that was deleted from the store, unless it is leased here (Cilium: `Insert`).
    pub(super) fn free_deleted(&mut self, id: Id) {
        if !self.leased.contains(&id) {
            self.taken.remove(&id);
        }
    }

    /// Marks a number as used, because the store has it (Cilium: `Remove`).
    pub(super) fn mark_stored(&mut self, id: Id) {
        if self.range.contains(id) {
            self.leased.remove(&id);
            self.taken.insert(id);
        }
    }

    fn random_number(&self, random: &mut impl Rng) -> Id {
        Id::new(random.random_range(self.range.min().number()..=self.range.max().number())).unwrap_or(self.range.min())
    }

    /// Returns the first free number between two numbers, inclusive.
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
