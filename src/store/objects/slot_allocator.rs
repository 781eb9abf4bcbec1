//! Allocates slots and stamps for objects, and writes objects to slots.
//!
//! `chunk_store` decides when a slot is no longer needed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::object::{self, ObjectHead};
use crate::store::engine::slots::{Slot, SlotKind, SlotStorage};
use crate::store::error::EngineError;

/// The slots of an open store.
#[derive(Debug)]
pub(in crate::store) struct SlotAllocator<S> {
    storage: Arc<S>,
    free: BTreeSet<Slot>,
    next: BTreeMap<SlotKind, u32>,
    /// Slots that become free after the next sync.
    pub(in crate::store) freed_after_sync: Vec<Slot>,
    /// Highest stamp in use.
    stamp: u64,
}

impl<S: SlotStorage> SlotAllocator<S> {
    /// Creates an allocator that knows no slot yet.
    pub(in crate::store) fn new(storage: Arc<S>) -> Self {
        Self { storage, free: BTreeSet::new(), next: BTreeMap::new(), freed_after_sync: Vec::new(), stamp: 0 }
    }

    pub(in crate::store) fn storage(&self) -> &S {
        &self.storage
    }

    /// Registers a slot that exists. New slots get higher numbers.
    pub(in crate::store) fn register_slot(&mut self, slot: Slot) {
        let next = self.next.entry(slot.kind).or_default();
        *next = (*next).max(slot.number + 1);
    }

    /// Registers a slot without a value.
    pub(in crate::store) fn register_free_slot(&mut self, slot: Slot) {
        self.free.insert(slot);
    }

    /// Returns whether a slot has no value.
    pub(in crate::store) fn is_free(&self, slot: Slot) -> bool {
        self.free.contains(&slot)
    }

    /// Registers the stamp of an object. New stamps are higher.
    pub(in crate::store) fn register_stamp(&mut self, stamp: u64) {
        self.stamp = self.stamp.max(stamp);
    }

    /// Returns the stamp for the next object.
    pub(in crate::store) fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// Writes an object to free slots, which it returns.
    pub(in crate::store) fn write_new(&mut self, kind: SlotKind, head: &ObjectHead, body: &[u8]) -> Result<Vec<Slot>, EngineError> {
        let slots: Vec<Slot> = (0..object::part_count(head, body)).map(|_| self.allocate(kind)).collect();
        self.write_to(&slots, head, body)?;
        Ok(slots)
    }

    /// Writes an object to the given slots.
    pub(in crate::store) fn write_to(&self, slots: &[Slot], head: &ObjectHead, body: &[u8]) -> Result<(), EngineError> {
        let values = object::encode_parts(head, body, slots);
        slots.iter().zip(values).try_for_each(|(slot, value)| self.storage.put(*slot, &value))
    }

    /// Deletes the value of a slot and frees it.
    pub(in crate::store) fn free(&mut self, slot: Slot) -> Result<(), EngineError> {
        self.storage.delete(slot)?;
        self.free.insert(slot);
        Ok(())
    }

    fn allocate(&mut self, kind: SlotKind) -> Slot {
        let all = Slot { kind, number: 0 }..=Slot { kind, number: u32::MAX };
        if let Some(slot) = self.free.range(all).next().copied() {
            self.free.remove(&slot);
            return slot;
        }
        let next = self.next.entry(kind).or_default();
        let slot = Slot { kind, number: *next };
        *next += 1;
        slot
    }
}
