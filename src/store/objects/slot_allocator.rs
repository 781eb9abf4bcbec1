//! Where objects are written: which slots there are, which of them are free, and the stamps that say which object is newer.
//!
//! Deliberately lacks: what the objects hold, and when a slot is needed no longer (`chunk_store`).

use std::collections::{BTreeMap, BTreeSet};

use super::object::{self, Head};
use crate::store::engine::slots::{Slot, SlotKind, Slots};
use crate::store::error::EngineError;

/// The slots of an open store.
#[derive(Debug)]
pub(in crate::store) struct SlotAllocator<S> {
    slots: S,
    free: BTreeSet<Slot>,
    next: BTreeMap<SlotKind, u32>,
    /// Free after the next sync.
    pub(in crate::store) soon: Vec<Slot>,
    /// The highest stamp that was used.
    stamp: u64,
}

impl<S: Slots> SlotAllocator<S> {
    /// Slots of which none was seen yet.
    pub(in crate::store) fn of(slots: S) -> Self {
        Self { slots, free: BTreeSet::new(), next: BTreeMap::new(), soon: Vec::new(), stamp: 0 }
    }

    /// The engine.
    pub(in crate::store) const fn slots(&self) -> &S {
        &self.slots
    }

    /// Notes that a slot is there: new ones are behind it.
    pub(in crate::store) fn saw_slot(&mut self, slot: Slot) {
        let next = self.next.entry(slot.kind).or_default();
        *next = (*next).max(slot.number + 1);
    }

    /// Notes that there is nothing in a slot.
    pub(in crate::store) fn saw_free(&mut self, slot: Slot) {
        self.free.insert(slot);
    }

    /// Whether there is nothing in a slot.
    pub(in crate::store) fn is_free(&self, slot: Slot) -> bool {
        self.free.contains(&slot)
    }

    /// Notes that an object has a stamp: new ones are higher.
    pub(in crate::store) fn saw_stamp(&mut self, stamp: u64) {
        self.stamp = self.stamp.max(stamp);
    }

    /// The stamp of the next object.
    pub(in crate::store) fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// Writes an object to slots that are free.
    pub(in crate::store) fn write(&mut self, kind: SlotKind, head: &Head, body: &[u8]) -> Result<Vec<Slot>, EngineError> {
        let slots: Vec<Slot> = (0..object::part_count(head, body)).map(|_| self.take(kind)).collect();
        self.put(&slots, head, body)?;
        Ok(slots)
    }

    /// Writes an object to these slots.
    pub(in crate::store) fn put(&self, slots: &[Slot], head: &Head, body: &[u8]) -> Result<(), EngineError> {
        let values = object::write_parts(head, body, slots);
        slots.iter().zip(values).try_for_each(|(slot, value)| self.slots.put(*slot, &value))
    }

    /// Empties a slot.
    pub(in crate::store) fn empty(&mut self, slot: Slot) -> Result<(), EngineError> {
        self.slots.delete(slot)?;
        self.free.insert(slot);
        Ok(())
    }

    fn take(&mut self, kind: SlotKind) -> Slot {
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
