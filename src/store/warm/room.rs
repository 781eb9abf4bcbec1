//! Where objects are written: which slots are free, and what the manifest is written to.

use std::collections::{BTreeMap, BTreeSet};

use super::{Chunk, Warm};
use crate::store::change::Key;
use crate::store::error::EngineError;
use crate::store::manifest::{Chunks, Entry};
use crate::store::object::{self, Head};
use crate::store::slots::{Slot, SlotKind, Slots};

/// Which slots are free.
#[derive(Debug, Default)]
pub(super) struct FreeSlots {
    pub(super) free: BTreeSet<Slot>,
    pub(super) next: BTreeMap<SlotKind, u32>,
    /// Free after the next sync.
    pub(super) soon: Vec<Slot>,
}

impl FreeSlots {
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

impl<S: Slots> Chunks for Warm<S> {
    fn entries(&self) -> Vec<(Key, Entry)> {
        self.chunks.iter().map(|(low, chunk)| (low.clone(), chunk.entry())).collect()
    }

    fn entry(&self, low: &Key) -> Option<Entry> {
        self.chunks.get(low).map(Chunk::entry)
    }

    fn write(&mut self, kind: SlotKind, head: &Head, body: &[u8]) -> Result<Vec<Slot>, EngineError> {
        let slots: Vec<Slot> = (0..object::part_count(head, body)).map(|_| self.room.take(kind)).collect();
        self.put(&slots, head, body)?;
        Ok(slots)
    }

    fn put(&self, slots: &[Slot], head: &Head, body: &[u8]) -> Result<(), EngineError> {
        let values = object::write_parts(head, body, slots);
        slots.iter().zip(values).try_for_each(|(slot, value)| self.slots.put(*slot, &value))
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    fn free_soon(&mut self, slots: Vec<Slot>) {
        self.room.soon.extend(slots);
    }
}
