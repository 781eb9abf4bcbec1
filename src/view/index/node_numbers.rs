//! Interned node names: indices refer to a node by a small number.
//!
//! A node has about nine addresses in the indices, including derived ones, so names would use most
//! of the memory. Unlike cluster numbers, node numbers are reused.

use std::hash::{BuildHasher, RandomState};

use imbl::Vector;
use smol_str::SmolStr;

use crate::view::collections::paged_set::PagedSet;

/// Number of a node's cluster, and the node's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::view) struct NodeName {
    pub(in crate::view) cluster: u32,
    pub(in crate::view) node: SmolStr,
}

/// Numbers of nodes that have addresses.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct NodeNumbers {
    names: Vector<NodeName>,
    /// Number of addresses of each node. A separate vector, because it changes with each address
    /// and a change copies neighbouring values.
    uses: Vector<u32>,
    /// Numbers by the hash of the name.
    numbers: PagedSet<u32>,
    free: Vector<u32>,
    /// Random seed of this process, so that no cluster can choose names that collide.
    hasher: RandomState,
}

impl NodeNumbers {
    /// Returns the name of the node with a number.
    pub(in crate::view) fn get(&self, number: u32) -> Option<&NodeName> {
        self.names.get(number as usize)
    }

    /// Returns the number of a node, if it has an address.
    pub(in crate::view) fn number(&self, cluster: u32, node: &str) -> Option<u32> {
        let mut found = self.numbers.owners_of(self.hash(cluster, node)).iter().copied();
        found.find(|number| self.has_name(*number, cluster, node))
    }

    /// Returns the number of a node. Assigns one if necessary; the caller must then add an address.
    pub(in crate::view) fn assign(&mut self, cluster: u32, node: &str) -> u32 {
        if let Some(number) = self.number(cluster, node) {
            return number;
        }
        let number = self.free.pop_back().unwrap_or_else(|| {
            self.names.push_back(NodeName::default());
            self.uses.push_back(0);
            // there are fewer than 2^32 nodes
            u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX)
        });
        self.names[number as usize] = NodeName { cluster, node: node.into() };
        self.numbers.insert((self.hash(cluster, node), number));
        number
    }

    /// Returns the numbers of many nodes. The caller must add an address for each.
    pub(super) fn assign_all(&mut self, names: Vec<NodeName>) -> Vec<u32> {
        if self.names.is_empty()
            && let Some(numbers) = self.numbers_of(&names)
        {
            self.uses = names.iter().map(|_| 0).collect();
            self.names = names.into();
            self.numbers = numbers;
            return (0..).take(self.names.len()).collect();
        }
        let mut next = 0;
        let assigned = names.into_iter().map(|NodeName { cluster, node }| {
            // derived entries are usually in the order of their nodes
            let number = if self.has_name(next, cluster, &node) { next } else { self.assign(cluster, &node) };
            next = number.wrapping_add(1);
            number
        });
        assigned.collect()
    }

    /// Counts an address of a node.
    pub(super) fn add_use(&mut self, number: u32) {
        if let Some(uses) = self.uses.get_mut(number as usize) {
            *uses += 1;
        }
    }

    /// Counts new addresses of all nodes. `uses` has how many there are, by node number.
    pub(super) fn add_uses(&mut self, uses: &[u32]) {
        self.uses = self.uses.iter().zip(uses.iter().chain(std::iter::repeat(&0))).map(|(before, more)| before + more).collect();
    }

    /// Removes an address of a node from the count. The last one frees the number.
    pub(in crate::view) fn release(&mut self, number: u32) {
        let Some(uses) = self.uses.get_mut(number as usize) else { return };
        *uses -= 1;
        if *uses == 0 {
            let NodeName { cluster, node } = std::mem::take(&mut self.names[number as usize]);
            self.numbers.remove(&(self.hash(cluster, &node), number));
            self.free.push_back(number);
        }
    }

    /// Returns how many numbers exist, assigned and free.
    pub(in crate::view) fn len(&self) -> usize {
        self.names.len()
    }

    fn has_name(&self, number: u32, cluster: u32, node: &str) -> bool {
        self.get(number).is_some_and(|name| name.cluster == cluster && name.node == node)
    }

    fn hash(&self, cluster: u32, node: &str) -> u32 {
        // the upper half is enough, because names with the same hash are compared (`has_name`)
        (self.hasher.hash_one((cluster, node)) >> 32) as u32
    }

    /// Indexes names by hash, with their positions as numbers. `None` if there are duplicates.
    fn numbers_of(&self, names: &[NodeName]) -> Option<PagedSet<u32>> {
        let mut hashed: Vec<(u32, u32)> = names.iter().map(|name| self.hash(name.cluster, &name.node)).zip(0..).collect();
        hashed.sort_unstable();
        let has_duplicate = |entries: &[(u32, u32)]| {
            let name = |(_, index): &(u32, u32)| &names[*index as usize];
            entries.iter().enumerate().any(|(index, one)| entries[..index].iter().any(|other| name(other) == name(one)))
        };
        let same_hash = |one: &(u32, u32), other: &(u32, u32)| one.0 == other.0;
        let unique = !hashed.chunk_by(same_hash).any(has_duplicate);
        unique.then(|| PagedSet::from_sorted(&hashed, |index| index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(cluster: u32, node: &str) -> NodeName {
        NodeName { cluster, node: node.into() }
    }

    #[test]
    fn a_number_is_reused_once_its_node_has_no_address() {
        let mut names = NodeNumbers::default();
        let [first, second] = [(1, "a"), (2, "a")].map(|(cluster, node)| {
            let number = names.assign(cluster, node);
            names.add_use(number);
            number
        });
        assert_eq!((first, second, names.assign(1, "a")), (0, 1, 0));
        names.add_use(first);
        names.release(first);
        assert_eq!((names.number(1, "a"), names.number(3, "a")), (Some(0), None));
        let copy = names.clone();
        names.release(first);
        assert_eq!((names.number(1, "a"), names.assign(3, "b"), names.len()), (None, 0, 2));
        assert_eq!((copy.number(1, "a"), copy.get(0), names.get(0)), (Some(0), Some(&name(1, "a")), Some(&name(3, "b"))));
    }

    #[test]
    fn bulk_assignment_equals_single_assignment() {
        let node_names = || (0..500).map(|number| name(number % 3, &format!("node-{}", number / 3))).collect::<Vec<_>>();
        let mut names = NodeNumbers::default();
        assert_eq!(names.assign_all(node_names()), (0..500).collect::<Vec<_>>());
        for (one, number) in node_names().iter().zip(0..) {
            assert_eq!(names.number(one.cluster, &one.node), Some(number));
        }
        let others = vec![name(0, "node-9"), name(9, "new"), name(1, "node-9"), name(2, "node-9"), name(9, "new")];
        assert_eq!(names.assign_all(others), [27, 500, 28, 29, 500]);
        let mut twice = NodeNumbers::default();
        assert_eq!(twice.assign_all(node_names().into_iter().chain(node_names()).collect()), (0..500).chain(0..500).collect::<Vec<_>>());
    }
}
