//! One range of keys, as an open store knows it.

use super::pending::Pending;
use super::summary::Summary;
use crate::store::encoding::change::Key;
use crate::store::engine::slots::Slot;

/// One range of keys.
#[derive(Debug)]
pub(in crate::store) struct StoredRange {
    /// Where the range ends, before this key; `None` is the end of all keys.
    pub(in crate::store) high: Option<Key>,
    /// Where it is stored.
    pub(in crate::store) slots: Vec<Slot>,
    pub(in crate::store) stamp: u64,
    /// The last group that is in it.
    pub(in crate::store) folded: u64,
    /// How many keys are in it.
    pub(in crate::store) count: u64,
    /// How long these and their values are, in bytes.
    pub(in crate::store) raw_bytes: u64,
    /// What is in it, in short, without what the log has.
    pub(in crate::store) summary: Summary,
    /// What the log has for it.
    pub(in crate::store) pending: Pending,
    /// The first group that is not in it.
    pub(in crate::store) dirty_since: Option<u64>,
}
