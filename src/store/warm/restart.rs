//! What a start finds of a store, put together bit by bit (`recover`).

use super::{Chunk, Warm};
use crate::store::change::Key;
use crate::store::manifest::Manifest;
use crate::store::slots::{Slot, Slots};

impl<S: Slots> Warm<S> {
    /// Notes that a slot is there: new ones are behind it.
    pub(in crate::store) fn saw_slot(&mut self, slot: Slot) {
        let next = self.room.next.entry(slot.kind).or_default();
        *next = (*next).max(slot.number + 1);
    }

    /// Notes that there is nothing in a slot.
    pub(in crate::store) fn saw_free(&mut self, slot: Slot) {
        self.room.free.insert(slot);
    }

    /// Whether nothing was found in a slot.
    pub(in crate::store) fn is_free(&self, slot: Slot) -> bool {
        self.room.free.contains(&slot)
    }

    /// Notes that an object has a stamp: new ones are higher.
    pub(in crate::store) fn saw_stamp(&mut self, stamp: u64) {
        self.stamp = self.stamp.max(stamp);
    }

    /// What the manifest says.
    pub(in crate::store) const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Takes over what the manifest says.
    pub(in crate::store) fn take_manifest(&mut self, manifest: Manifest) {
        self.manifest = manifest;
    }

    /// Takes in a chunk as it is stored; `is_noted` says whether the manifest says the same of it.
    pub(in crate::store) fn take_chunk(&mut self, low: Key, chunk: Chunk, is_noted: bool) {
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
        self.room.soon.append(&mut garbage);
    }
}
