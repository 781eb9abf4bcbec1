//! A chunk of an open store.

use super::pending::PendingChanges;
use super::summary::ChunkSummary;
use crate::store::encoding::stored_value::KeyBytes;
use crate::store::engine::slots::Slot;

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
