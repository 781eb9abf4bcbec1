//! What a start finds of a store, put together bit by bit (`slot_scan`).

use super::ChunkStore;
use crate::store::encoding::change::Key;
use crate::store::engine::slots::{Slot, Slots};
use crate::store::manifest::Manifest;
use crate::store::objects::stored_range::StoredRange;

impl<S: Slots> ChunkStore<S> {
    /// What the manifest says.
    pub(in crate::store) const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Takes over what the manifest says.
    pub(in crate::store) fn take_manifest(&mut self, manifest: Manifest) {
        self.manifest = manifest;
    }

    /// Takes in a chunk as it is stored; `is_noted` says whether the manifest says the same of it.
    pub(in crate::store) fn take_chunk(&mut self, low: Key, chunk: StoredRange, is_noted: bool) {
        if !is_noted {
            self.manifest.change(low.clone());
        }
        self.chunks.insert(low, chunk);
    }

    /// Notes how long changes of the log are that were noted, up to a group.
    pub(in crate::store) fn keep_log(&mut self, last: u64, raw_bytes: u64) {
        self.log.keep(last, raw_bytes);
    }

    /// Everything is there up to a group; some slots are free after the next sync.
    pub(in crate::store) fn restored(&mut self, group_number: u64, mut garbage: Vec<Slot>) {
        self.retire();
        self.group_number = group_number;
        self.slot_allocator.soon.append(&mut garbage);
    }
}
