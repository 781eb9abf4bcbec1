//! Methods with which a start fills a [`ChunkStore`] (`slot_scan`).

use super::ChunkStore;
use crate::store::encoding::stored_value::KeyBytes;
use crate::store::engine::slots::{Slot, SlotStorage};
use crate::store::manifest::Manifest;
use crate::store::objects::stored_chunk::StoredChunk;

impl<S: SlotStorage> ChunkStore<S> {
    pub(in crate::store) const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub(in crate::store) fn set_manifest(&mut self, manifest: Manifest) {
        self.manifest = manifest;
    }

    /// Inserts a chunk as it is stored. `is_in_manifest` is true if the manifest has an equal
    /// entry.
    pub(in crate::store) fn insert_chunk(&mut self, low: KeyBytes, chunk: StoredChunk, is_in_manifest: bool) {
        if !is_in_manifest {
            self.manifest.mark_changed(low.clone());
        }
        self.chunks.insert(low, chunk);
    }

    /// Adds the size of groups whose changes were added with [`ChunkStore::add_pending`].
    pub(in crate::store) fn add_unfolded(&mut self, last: u64, raw_bytes: u64) {
        self.unfolded.add(last, raw_bytes);
    }

    /// Finishes recovery: the store contains all groups up to `group_number`, and the `garbage`
    /// slots can be emptied after the next sync.
    pub(in crate::store) fn finish_recovery(&mut self, group_number: u64, mut garbage: Vec<Slot>) {
        self.remove_folded();
        self.group_number = group_number;
        self.slot_allocator.freed_after_sync.append(&mut garbage);
    }
}
