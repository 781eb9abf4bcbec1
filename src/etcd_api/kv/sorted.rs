//! Sorts the keys of a range by another order than their own.
//!
//! Keys are inserted into a sorted map as they are read, so that no slice has to sort everything.
//! With a limit, only that number of keys is kept.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use smol_str::SmolStr;
use tokio::runtime::Handle as Runtime;

use crate::model::{RawRecord, Sequence};

/// Number of keys that can be dropped in less than a millisecond.
const FEW: usize = 4_096;

/// Sort criterion of a range. The order is that of etcd's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Key,
    Version,
    Create,
    Modify,
    Value,
}

/// Sort direction. With `None`, etcd sorts in ascending order if it sorts at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    None,
    Ascending,
    Descending,
}

/// Sorted keys.
#[derive(Debug)]
pub(super) struct Sorted {
    target: Target,
    order: Order,
    /// The number in the key is the order of insertion: it keeps equal keys in the order in which
    /// they were read.
    found: BTreeMap<(SortKey, usize), RawRecord>,
    came: usize,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SortKey {
    Upwards(Rank),
    Downwards(Reverse<Rank>),
}

/// Value to sort by. All ranks of one list have the same variant.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Key(SmolStr),
    Number(u64),
    Sequence(Sequence),
    Value(Arc<[u8]>),
}

impl Sorted {
    pub(super) fn new(target: Target, order: Order) -> Self {
        Self { target, order, found: BTreeMap::new(), came: 0 }
    }

    /// Inserts a key. Returns the last one if there are now more than the limit.
    pub(super) fn insert(&mut self, record: RawRecord, limit: Option<usize>) -> Option<RawRecord> {
        let rank = match self.target {
            Target::Key => Rank::Key(record.key.clone()),
            Target::Version => Rank::Number(record.version),
            Target::Create => Rank::Sequence(record.create_sequence),
            Target::Modify => Rank::Sequence(record.last_sequence),
            Target::Value => Rank::Value(Arc::clone(&record.value)),
        };
        let place = if self.order == Order::Descending { SortKey::Downwards(Reverse(rank)) } else { SortKey::Upwards(rank) };
        self.came += 1;
        self.found.insert((place, self.came), record);
        if limit.is_some_and(|limit| self.found.len() > limit) { self.found.pop_last().map(|(_, record)| record) } else { None }
    }

    /// Removes and returns the first key.
    pub(super) fn next(&mut self) -> Option<RawRecord> {
        self.found.pop_first().map(|(_, record)| record)
    }
}

impl Drop for Sorted {
    fn drop(&mut self) {
        // if a client disconnects, this may run on an async thread
        if self.found.len() > FEW
            && let Ok(runtime) = Runtime::try_current()
        {
            let found = std::mem::take(&mut self.found);
            drop(runtime.spawn_blocking(move || drop(found)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, version: u64) -> RawRecord {
        RawRecord { key: key.into(), value: Arc::default(), create_sequence: Sequence(1), last_sequence: Sequence(2), version }
    }

    fn sorted(order: Order, limit: Option<usize>) -> Vec<SmolStr> {
        let mut sorted = Sorted::new(Target::Version, order);
        for (key, version) in [("a", 2), ("b", 1), ("c", 2), ("d", 3), ("e", 1)] {
            sorted.insert(record(key, version), limit);
            assert!(limit.is_none_or(|limit| sorted.found.len() <= limit), "no more are kept than are wanted");
        }
        std::iter::from_fn(|| sorted.next()).map(|record| record.key).collect()
    }

    #[test]
    fn what_is_equal_keeps_its_order_in_both_directions() {
        assert_eq!(sorted(Order::None, None), ["b", "e", "a", "c", "d"]);
        assert_eq!(sorted(Order::Descending, None), ["d", "a", "c", "b", "e"]);
        assert_eq!(sorted(Order::Descending, Some(2)), ["d", "a"]);
    }
}
