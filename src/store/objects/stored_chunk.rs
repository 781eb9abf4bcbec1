//! A chunk of an open store.

use std::collections::BTreeMap;

use super::object::ObjectHead;
use super::pending::PendingChanges;
use super::summary::ChunkSummary;
use crate::store::encoding::stored_value::KeyBytes;
use crate::store::engine::slots::Slot;

/// Chunks by the start of their range.
pub(in crate::store) type StoredChunks = BTreeMap<KeyBytes, StoredChunk>;

/// A chunk: its range of keys, its slots, and the changes that are not folded into it yet.
#[derive(Debug)]
pub(in crate::store) struct StoredChunk {
    /// End of the range; `None` for the last one.
    pub(in crate::store) high: Option<KeyBytes>,
    /// Slots of the chunk.
    pub(in crate::store) slots: Vec<Slot>,
    pub(in crate::store) stamp: u64,
    /// Last group whose changes are folded into the chunk.
    pub(in crate::store) last_group: u64,
    /// Number of keys in the chunk.
    pub(in crate::store) count: u64,
    /// Length of keys and values in the chunk, in bytes.
    pub(in crate::store) raw_bytes: u64,
    /// Summary of the chunk without its pending changes.
    pub(in crate::store) summary: ChunkSummary,
    pub(in crate::store) pending: PendingChanges,
    /// First group that the chunk does not contain.
    pub(in crate::store) dirty_since: Option<u64>,
}

impl StoredChunk {
    /// Describes an object that was written to `slots`.
    pub(in crate::store) fn new(head: &ObjectHead, high: Option<KeyBytes>, slots: Vec<Slot>, summary: ChunkSummary) -> Self {
        let ObjectHead { stamp, last_group, count, raw_bytes, .. } = *head;
        Self { high, slots, stamp, last_group, count, raw_bytes, summary, pending: PendingChanges::default(), dirty_since: None }
    }
}
