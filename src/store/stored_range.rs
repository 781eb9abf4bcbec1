//! One range of keys, as an open store knows it.

use super::change::Key;
use super::pending::Pending;
use super::slots::Slot;
use super::summary::Summary;

/// One range of keys.
#[derive(Debug)]
pub(super) struct StoredRange {
    /// Where the range ends, before this key; `None` is the end of all keys.
    pub(super) high: Option<Key>,
    /// Where it is stored.
    pub(super) slots: Vec<Slot>,
    pub(super) stamp: u64,
    /// The last group that is in it.
    pub(super) folded: u64,
    /// How many keys are in it.
    pub(super) count: u64,
    /// How long these and their values are, in bytes.
    pub(super) raw_bytes: u64,
    /// What is in it, in short, without what the log has.
    pub(super) summary: Summary,
    /// What the log has for it.
    pub(super) pending: Pending,
    /// The first group that is not in it.
    pub(super) dirty_since: Option<u64>,
}
