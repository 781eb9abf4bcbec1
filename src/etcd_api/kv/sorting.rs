//! Sorts the keys of a range by something other than their bytes.
//!
//! Keys are inserted into a sorted map as they are read, so that no slice has to sort everything.
//! With a limit, the map never has more keys than the limit.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use smol_str::SmolStr;
use tokio::runtime::Handle as Runtime;

use crate::model::{RawRecord, Sequence};

/// Number of keys that can be dropped in less than a millisecond.
const QUICK_DROP_COUNT_MAX: usize = 4_096;

/// Sort criterion of a range. The variants are in the order of etcd's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SortTarget {
    Key,
    Version,
    Create,
    Modify,
    Value,
}

/// Sort direction. With `None`, etcd sorts in ascending order, except by key: keys are read in that
/// order anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SortOrder {
    None,
    Ascending,
    Descending,
}

#[derive(Debug)]
pub(super) struct SortedRecords {
    target: SortTarget,
    order: SortOrder,
    /// The number in the key is the order of insertion: it keeps equal keys in the order in which
    /// they were read.
    records: BTreeMap<(SortKey, usize), RawRecord>,
    inserted_count: usize,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SortKey {
    Ascending(SortValue),
    Descending(Reverse<SortValue>),
}

/// Value to sort by. All values of one list have the same variant.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SortValue {
    Key(SmolStr),
    Number(u64),
    Sequence(Sequence),
    Value(Arc<[u8]>),
}

impl SortedRecords {
    pub(super) fn new(target: SortTarget, order: SortOrder) -> Self {
        Self { target, order, records: BTreeMap::new(), inserted_count: 0 }
    }

    /// Inserts a record. If there are then more records than the limit, removes the last one and
    /// returns it.
    pub(super) fn insert(&mut self, record: RawRecord, limit: Option<usize>) -> Option<RawRecord> {
        let value = match self.target {
            SortTarget::Key => SortValue::Key(record.key.clone()),
            SortTarget::Version => SortValue::Number(record.version),
            SortTarget::Create => SortValue::Sequence(record.create_sequence),
            SortTarget::Modify => SortValue::Sequence(record.last_sequence),
            SortTarget::Value => SortValue::Value(Arc::clone(&record.value)),
        };
        let key = if self.order == SortOrder::Descending { SortKey::Descending(Reverse(value)) } else { SortKey::Ascending(value) };
        self.inserted_count += 1;
        self.records.insert((key, self.inserted_count), record);
        if limit.is_some_and(|limit| self.records.len() > limit) { self.records.pop_last().map(|(_, record)| record) } else { None }
    }

    pub(super) fn pop_first(&mut self) -> Option<RawRecord> {
        self.records.pop_first().map(|(_, record)| record)
    }
}

impl Drop for SortedRecords {
    fn drop(&mut self) {
        // if a client disconnects, this may run on an async thread
        if self.records.len() > QUICK_DROP_COUNT_MAX
            && let Ok(runtime) = Runtime::try_current()
        {
            let records = std::mem::take(&mut self.records);
            drop(runtime.spawn_blocking(move || drop(records)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, version: u64) -> RawRecord {
        RawRecord { key: key.into(), value: Arc::default(), create_sequence: Sequence(1), last_sequence: Sequence(2), version }
    }

    fn sorted(order: SortOrder, limit: Option<usize>) -> Vec<SmolStr> {
        let mut sorted = SortedRecords::new(SortTarget::Version, order);
        for (key, version) in [("a", 2), ("b", 1), ("c", 2), ("d", 3), ("e", 1)] {
            sorted.insert(record(key, version), limit);
            assert!(limit.is_none_or(|limit| sorted.records.len() <= limit), "more records than the limit");
        }
        std::iter::from_fn(|| sorted.pop_first()).map(|record| record.key).collect()
    }

    #[test]
    fn equal_keys_keep_their_order_in_both_directions() {
        assert_eq!(sorted(SortOrder::None, None), ["b", "e", "a", "c", "d"]);
        assert_eq!(sorted(SortOrder::Descending, None), ["d", "a", "c", "b", "e"]);
        assert_eq!(sorted(SortOrder::Descending, Some(2)), ["d", "a"]);
    }
}
