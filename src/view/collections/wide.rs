//! A persistent sorted map: a B-tree of two levels, whose nodes are plain arrays with keys apart from values.
//!
//! For some thousand large things that are looked up often and exchanged seldom: the chunks of the mirror, the pages of an index. What a
//! search reads is keys alone, one beside the other, which stay in the processor's cache; in a tree that keeps keys beside their values each
//! step of a search waits for memory. A change copies the values of one group, if somebody else holds them; one that adds or removes a key
//! copies the group's keys and the list of groups too.

use std::sync::Arc;

/// A group that grows past this is split. With 112 addresses a page a million addresses are 170 groups, each 256 bytes of keys.
const GROUP_LENGTH_MAX: usize = 64;

/// A group below this joins the one before it, if both have room in one of three quarters.
const GROUP_LENGTH_MIN: usize = 16;

/// A sorted map.
#[derive(Debug, Clone)]
pub(in crate::view) struct WideMap<K, V> {
    /// The lowest key of each group.
    firsts: Arc<[K]>,
    groups: Arc<[Group<K, V>]>,
    length: usize,
}

/// Keys and their values, in order; never empty.
#[derive(Debug, Clone)]
struct Group<K, V> {
    keys: Arc<[K]>,
    values: Arc<[V]>,
}

impl<K, V> Default for WideMap<K, V> {
    fn default() -> Self {
        Self { firsts: Arc::new([]), groups: Arc::new([]), length: 0 }
    }
}

impl<K: Ord + Clone, V: Clone> Group<K, V> {
    fn of(entries: &[(K, V)]) -> Self {
        Self {
            keys: entries.iter().map(|(key, _)| key.clone()).collect(),
            values: entries.iter().map(|(_, value)| value.clone()).collect(),
        }
    }

    fn entries(&self) -> impl Iterator<Item = (K, V)> {
        self.keys.iter().cloned().zip(self.values.iter().cloned())
    }
}

impl<K: Ord + Clone, V: Clone> WideMap<K, V> {
    /// Makes a map of entries in order, none of them twice.
    pub(in crate::view) fn of_sorted(entries: &[(K, V)]) -> Self {
        let groups = entries.chunks(GROUP_LENGTH_MAX * 3 / 4).map(Group::of).collect();
        let mut map = Self { groups, length: entries.len(), ..Self::default() };
        map.index();
        map
    }

    /// How many entries there are.
    pub(in crate::view) fn len(&self) -> usize {
        self.length
    }

    /// The entry with the highest key up to this one.
    pub(in crate::view) fn floor(&self, key: &K) -> Option<(&K, &V)> {
        self.last_where(|other| other <= key)
    }

    /// The entry with the highest key that passes a test, which keys up to some do.
    pub(super) fn last_where(&self, test: impl Fn(&K) -> bool) -> Option<(&K, &V)> {
        let group = &self.groups[self.firsts.partition_point(&test).checked_sub(1)?];
        let at = group.keys.partition_point(&test) - 1;
        Some((&group.keys[at], &group.values[at]))
    }

    /// The entry with the lowest key.
    pub(in crate::view) fn first(&self) -> Option<(&K, &V)> {
        let group = self.groups.first()?;
        Some((&group.keys[0], &group.values[0]))
    }

    /// The entry with the highest key below this one.
    pub(in crate::view) fn below(&self, key: &K) -> Option<(&K, &V)> {
        self.last_where(|other| other < key)
    }

    /// Entries from a key on, that one included, in order.
    pub(in crate::view) fn from(&self, key: &K) -> impl Iterator<Item = (&K, &V)> + use<'_, K, V> {
        let group = self.firsts.partition_point(|first| first <= key).saturating_sub(1);
        let skipped = self.groups.get(group).map_or(0, |group| group.keys.partition_point(|other| other < key));
        self.groups[group..].iter().flat_map(|group| group.keys.iter().zip(group.values.iter())).skip(skipped)
    }

    /// Every entry, in order.
    pub(in crate::view) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.groups.iter().flat_map(|group| group.keys.iter().zip(group.values.iter()))
    }

    /// Puts a value in place of the one of its key, if there is one.
    pub(in crate::view) fn insert(&mut self, key: K, value: V) {
        let Some(at) = self.firsts.partition_point(|first| *first <= key).checked_sub(1).or((self.length > 0).then_some(0)) else {
            *self = Self::of_sorted(&[(key, value)]);
            return;
        };
        match self.groups[at].keys.binary_search(&key) {
            Ok(place) => Arc::make_mut(&mut Arc::make_mut(&mut self.groups)[at].values)[place] = value,
            Err(place) => {
                let mut entries: Vec<(K, V)> = self.groups[at].entries().collect();
                entries.insert(place, (key, value));
                self.length += 1;
                let half = if entries.len() > GROUP_LENGTH_MAX { entries.len() / 2 } else { entries.len() };
                let (lower, upper) = entries.split_at(half);
                self.splice(at..at + 1, &[lower, upper]);
            }
        }
    }

    /// Removes the entry of a key.
    pub(in crate::view) fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.firsts.partition_point(|first| first <= key).checked_sub(1)?;
        let place = self.groups[at].keys.binary_search(key).ok()?;
        let mut entries: Vec<(K, V)> = self.groups[at].entries().collect();
        let (_, removed) = entries.remove(place);
        self.length -= 1;
        let before = at.checked_sub(1).map(|before| &self.groups[before]);
        let joined =
            before.filter(|before| entries.len() < GROUP_LENGTH_MIN && before.keys.len() + entries.len() <= GROUP_LENGTH_MAX * 3 / 4);
        match joined {
            Some(before) => {
                let all: Vec<(K, V)> = before.entries().chain(entries).collect();
                self.splice(at - 1..at + 1, &[&all]);
            }
            None => self.splice(at..at + 1, &[&entries]),
        }
        Some(removed)
    }

    /// Puts groups in place of others; those without entries are left out.
    fn splice(&mut self, range: std::ops::Range<usize>, groups: &[&[(K, V)]]) {
        let made = groups.iter().filter(|entries| !entries.is_empty()).map(|entries| Group::of(entries));
        if range.len() == 1 && groups.iter().filter(|entries| !entries.is_empty()).count() == 1 {
            for group in made {
                if group.keys[0] != self.firsts[range.start] {
                    Arc::make_mut(&mut self.firsts)[range.start] = group.keys[0].clone();
                }
                Arc::make_mut(&mut self.groups)[range.start] = group;
            }
            return;
        }
        let (before, after) = (&self.groups[..range.start], &self.groups[range.end..]);
        self.groups = before.iter().cloned().chain(made).chain(after.iter().cloned()).collect();
        self.index();
    }

    fn index(&mut self) {
        self.firsts = self.groups.iter().map(|group| group.keys[0].clone()).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn assert_same(map: &WideMap<u32, u32>, truth: &BTreeMap<u32, u32>, key: u32, what: &str) {
        let pair = |(key, value): (&u32, &u32)| (*key, *value);
        assert_eq!(map.floor(&key).map(pair), truth.range(..=key).next_back().map(pair), "{what}");
        assert_eq!(map.below(&key).map(pair), truth.range(..key).next_back().map(pair), "{what}");
        assert_eq!(map.first().map(pair), truth.first_key_value().map(pair), "{what}");
        assert_eq!(map.from(&key).map(pair).collect::<Vec<_>>(), truth.range(key..).map(pair).collect::<Vec<_>>(), "{what}");
        assert_eq!((map.iter().map(pair).collect::<Vec<_>>(), map.len()), (truth.iter().map(pair).collect(), truth.len()), "{what}");
    }

    /// Growing, shrinking, and copies that stay as they were.
    #[test]
    fn a_map_is_that_of_the_standard_library() {
        for seed in 0..20 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut truth: BTreeMap<u32, u32> = (0..random.random_range(0..400)).map(|key| (key * 3, key)).collect();
            let entries: Vec<(u32, u32)> = truth.iter().map(|(key, value)| (*key, *value)).collect();
            let mut map = WideMap::of_sorted(&entries);
            let (mut copy, mut copied) = (map.clone(), truth.clone());
            for step in 0..2_000_u32 {
                let key = random.random_range(0..1_200);
                // by turns more is added and more is taken away
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
