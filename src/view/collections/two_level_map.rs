//! Persistent sorted map: a B-tree with two levels, whose nodes store keys and values in separate
//! arrays.
//!
//! It is designed for several thousand large values that are often looked up and rarely changed:
//! chunks, and pages of an index. A search reads only keys, which are contiguous and stay in the
//! processor's cache. A change copies the values of one node; an inserted or removed key also
//! copies the node's keys and the list of nodes.

use std::sync::Arc;

/// Maximum number of entries in a node. A million addresses, 112 per page, make 170 nodes with 256
/// bytes of keys each.
const NODE_LENGTH_MAX: usize = 64;

/// Minimum number of entries in a node. A smaller node is joined with the previous one if the
/// result is at most three quarters full.
const NODE_LENGTH_MIN: usize = 16;

#[derive(Debug, Clone)]
pub(in crate::view) struct TwoLevelMap<K, V> {
    /// Lowest key of each node.
    first_keys: Arc<[K]>,
    nodes: Arc<[MapNode<K, V>]>,
    length: usize,
}

/// Keys and their values, in order; never empty.
#[derive(Debug, Clone)]
struct MapNode<K, V> {
    keys: Arc<[K]>,
    values: Arc<[V]>,
}

impl<K, V> Default for TwoLevelMap<K, V> {
    fn default() -> Self {
        Self { first_keys: Arc::new([]), nodes: Arc::new([]), length: 0 }
    }
}

impl<K: Ord + Clone, V: Clone> MapNode<K, V> {
    fn from_entries(entries: &[(K, V)]) -> Self {
        Self {
            keys: entries.iter().map(|(key, _)| key.clone()).collect(),
            values: entries.iter().map(|(_, value)| value.clone()).collect(),
        }
    }

    fn entries(&self) -> impl Iterator<Item = (K, V)> {
        self.keys.iter().cloned().zip(self.values.iter().cloned())
    }
}

impl<K: Ord + Clone, V: Clone> TwoLevelMap<K, V> {
    /// Creates a map from sorted entries with unique keys.
    pub(in crate::view) fn from_sorted(entries: &[(K, V)]) -> Self {
        let nodes = entries.chunks(NODE_LENGTH_MAX * 3 / 4).map(MapNode::from_entries).collect();
        let mut map = Self { nodes, length: entries.len(), ..Self::default() };
        map.rebuild_first_keys();
        map
    }

    /// Returns the number of entries.
    pub(in crate::view) fn len(&self) -> usize {
        self.length
    }

    /// Returns the entry with the highest key that is at most `key`.
    pub(in crate::view) fn floor(&self, key: &K) -> Option<(&K, &V)> {
        self.last_matching(|other| other <= key)
    }

    /// Returns the entry with the highest key that passes a test. All keys up to some key must pass
    /// it, and no others.
    pub(super) fn last_matching(&self, test: impl Fn(&K) -> bool) -> Option<(&K, &V)> {
        let node = &self.nodes[self.first_keys.partition_point(&test).checked_sub(1)?];
        let index = node.keys.partition_point(&test) - 1;
        Some((&node.keys[index], &node.values[index]))
    }

    /// Returns the entry with the lowest key.
    pub(in crate::view) fn first(&self) -> Option<(&K, &V)> {
        let node = self.nodes.first()?;
        Some((&node.keys[0], &node.values[0]))
    }

    /// Returns the entry with the highest key below `key`.
    pub(in crate::view) fn below(&self, key: &K) -> Option<(&K, &V)> {
        self.last_matching(|other| other < key)
    }

    /// Iterates over the entries from a key on, in order.
    pub(in crate::view) fn from(&self, key: &K) -> impl Iterator<Item = (&K, &V)> + use<'_, K, V> {
        let node = self.first_keys.partition_point(|first| first <= key).saturating_sub(1);
        let skipped = self.nodes.get(node).map_or(0, |node| node.keys.partition_point(|other| other < key));
        self.nodes[node..].iter().flat_map(|node| node.keys.iter().zip(node.values.iter())).skip(skipped)
    }

    /// Iterates over all entries, in order.
    pub(in crate::view) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.nodes.iter().flat_map(|node| node.keys.iter().zip(node.values.iter()))
    }

    /// Inserts a value. Replaces the one with the same key.
    pub(in crate::view) fn insert(&mut self, key: K, value: V) {
        let Some(node_index) = self.first_keys.partition_point(|first| *first <= key).checked_sub(1).or((self.length > 0).then_some(0))
        else {
            *self = Self::from_sorted(&[(key, value)]);
            return;
        };
        match self.nodes[node_index].keys.binary_search(&key) {
            Ok(index) => Arc::make_mut(&mut Arc::make_mut(&mut self.nodes)[node_index].values)[index] = value,
            Err(index) => {
                let mut entries: Vec<(K, V)> = self.nodes[node_index].entries().collect();
                entries.insert(index, (key, value));
                self.length += 1;
                let half = if entries.len() > NODE_LENGTH_MAX { entries.len() / 2 } else { entries.len() };
                let (lower, upper) = entries.split_at(half);
                self.splice(node_index..node_index + 1, &[lower, upper]);
            }
        }
    }

    /// Removes the entry of a key.
    pub(in crate::view) fn remove(&mut self, key: &K) -> Option<V> {
        let node_index = self.first_keys.partition_point(|first| first <= key).checked_sub(1)?;
        let index = self.nodes[node_index].keys.binary_search(key).ok()?;
        let mut entries: Vec<(K, V)> = self.nodes[node_index].entries().collect();
        let (_, removed) = entries.remove(index);
        self.length -= 1;
        let before = node_index.checked_sub(1).map(|before| &self.nodes[before]);
        let joined =
            before.filter(|before| entries.len() < NODE_LENGTH_MIN && before.keys.len() + entries.len() <= NODE_LENGTH_MAX * 3 / 4);
        match joined {
            Some(before) => {
                let all: Vec<(K, V)> = before.entries().chain(entries).collect();
                self.splice(node_index - 1..node_index + 1, &[&all]);
            }
            None => self.splice(node_index..node_index + 1, &[&entries]),
        }
        Some(removed)
    }

    /// Replaces nodes. Skips those without entries.
    fn splice(&mut self, range: std::ops::Range<usize>, nodes: &[&[(K, V)]]) {
        let new_nodes = nodes.iter().filter(|entries| !entries.is_empty()).map(|entries| MapNode::from_entries(entries));
        if range.len() == 1 && nodes.iter().filter(|entries| !entries.is_empty()).count() == 1 {
            for node in new_nodes {
                if node.keys[0] != self.first_keys[range.start] {
                    Arc::make_mut(&mut self.first_keys)[range.start] = node.keys[0].clone();
                }
                Arc::make_mut(&mut self.nodes)[range.start] = node;
            }
            return;
        }
        let (before, after) = (&self.nodes[..range.start], &self.nodes[range.end..]);
        self.nodes = before.iter().cloned().chain(new_nodes).chain(after.iter().cloned()).collect();
        self.rebuild_first_keys();
    }

    fn rebuild_first_keys(&mut self) {
        self.first_keys = self.nodes.iter().map(|node| node.keys[0].clone()).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn assert_same(map: &TwoLevelMap<u32, u32>, truth: &BTreeMap<u32, u32>, key: u32, context: &str) {
        let pair = |(key, value): (&u32, &u32)| (*key, *value);
        assert_eq!(map.floor(&key).map(pair), truth.range(..=key).next_back().map(pair), "{context}");
        assert_eq!(map.below(&key).map(pair), truth.range(..key).next_back().map(pair), "{context}");
        assert_eq!(map.first().map(pair), truth.first_key_value().map(pair), "{context}");
        assert_eq!(map.from(&key).map(pair).collect::<Vec<_>>(), truth.range(key..).map(pair).collect::<Vec<_>>(), "{context}");
        assert_eq!((map.iter().map(pair).collect::<Vec<_>>(), map.len()), (truth.iter().map(pair).collect(), truth.len()), "{context}");
    }

    /// Takes snapshots, which must not change.
    #[test]
    fn a_two_level_map_equals_a_btree_map() {
        for seed in 0..20 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut truth: BTreeMap<u32, u32> = (0..random.random_range(0..400)).map(|key| (key * 3, key)).collect();
            let entries: Vec<(u32, u32)> = truth.iter().map(|(key, value)| (*key, *value)).collect();
            let mut map = TwoLevelMap::from_sorted(&entries);
            let (mut copy, mut copied) = (map.clone(), truth.clone());
            for step in 0..2_000_u32 {
                let key = random.random_range(0..1_200);
                // alternates between mostly insertions and mostly removals
                if random.random_bool(if step / 500 % 2 == 0 { 0.8 } else { 0.1 }) {
                    map.insert(key, step);
                    truth.insert(key, step);
                } else {
                    assert_eq!(map.remove(&key), truth.remove(&key), "seed {seed}, step {step}");
                }
                if step % 50 == 0 {
                    assert_same(&map, &truth, random.random_range(0..1_210), &format!("seed {seed}, step {step}"));
                    assert_same(&copy, &copied, key, &format!("seed {seed}, step {step}, the copy"));
                    (copy, copied) = (map.clone(), truth.clone());
                }
            }
            for key in 0..1_200 {
                assert_eq!(map.remove(&key), truth.remove(&key), "seed {seed}");
            }
            assert_same(&map, &truth, 7, &format!("seed {seed}, empty"));
        }
    }
}
