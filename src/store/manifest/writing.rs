//! When the manifest is written, and how much of it: all of it as a base, or what changed since.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{CHANGES_BYTES_MAX, CHANGES_COUNT_MAX, CHANGES_KEPT_BYTES, CHANGES_SHARE, Entry, Manifest};
use crate::store::encoding::change::Key;
use crate::store::engine::slots::{SlotKind, Slots};
use crate::store::error::EngineError;
use crate::store::objects::object::Head;
use crate::store::objects::slot_allocator::SlotAllocator;
use crate::store::objects::stored_range::StoredRange;

impl Entry {
    fn of(chunk: &StoredRange) -> Self {
        Self { high: chunk.high.clone(), stamp: chunk.stamp, slots: chunk.slots.clone(), summary: chunk.summary.clone() }
    }
}

impl Manifest {
    /// Notes where chunks are that were written since the last sync. To be called in front of each sync.
    pub(in crate::store) fn write_to<S: Slots>(
        &mut self,
        slot_allocator: &mut SlotAllocator<S>,
        chunks: &BTreeMap<Key, StoredRange>,
    ) -> Result<(), EngineError> {
        if !self.is_changed() {
            return Ok(());
        }
        let full = self.number >= CHANGES_COUNT_MAX || self.changes_bytes > CHANGES_KEPT_BYTES.max(self.base_bytes / CHANGES_SHARE);
        match self.base.filter(|_| !full) {
            Some(base) => self.write_changes(base, slot_allocator, chunks),
            None => self.write_base(slot_allocator, chunks),
        }
    }

    fn write_base<S: Slots>(
        &mut self,
        slot_allocator: &mut SlotAllocator<S>,
        chunks: &BTreeMap<Key, StoredRange>,
    ) -> Result<(), EngineError> {
        let before = std::mem::take(self);
        let entries: Vec<(Key, Entry)> = chunks.iter().map(|(low, chunk)| (low.clone(), Entry::of(chunk))).collect();
        let body = self.write(&entries);
        let stamp = slot_allocator.next_stamp();
        let head = Head { stamp, first_group: stamp, count: entries.len() as u64, raw_bytes: body.len() as u64, ..Head::default() };
        let slots = slot_allocator.write(SlotKind::Manifest, &head, &body)?;
        let noted = Arc::new(entries.into_iter().collect());
        *self = Self { base: Some(stamp), base_bytes: body.len(), slots, noted, ..Self::default() };
        slot_allocator.soon.extend(before.slots);
        Ok(())
    }

    fn write_changes<S: Slots>(
        &mut self,
        base: u64,
        slot_allocator: &mut SlotAllocator<S>,
        chunks: &BTreeMap<Key, StoredRange>,
    ) -> Result<(), EngineError> {
        let changed = std::mem::take(&mut self.changed);
        if let Some((slot, before)) = self.open.take() {
            let lows = before.iter().map(|(low, _)| low).chain(&changed).cloned().collect();
            let (entries, body) = self.changes(&lows, chunks);
            if body.len() <= CHANGES_BYTES_MAX {
                let head = changes_head(slot_allocator.next_stamp(), base, self.number, &entries, &body);
                slot_allocator.put(&[slot], &head, &body)?;
                self.open = Some((slot, entries));
                return Ok(());
            }
            before.into_iter().for_each(|(low, entry)| self.note(low, entry));
        }
        let (entries, body) = self.changes(&changed, chunks);
        self.number += 1;
        self.changes_bytes += body.len().max(CHANGES_BYTES_MAX);
        let head = changes_head(slot_allocator.next_stamp(), base, self.number, &entries, &body);
        let slots = slot_allocator.write(SlotKind::Manifest, &head, &body)?;
        self.slots.extend(&slots);
        match slots.as_slice() {
            [slot] if body.len() < CHANGES_BYTES_MAX => self.open = Some((*slot, entries)),
            _ => entries.into_iter().for_each(|(low, entry)| self.note(low, entry)),
        }
        Ok(())
    }

    /// What there is to note of chunks; of one that is gone, which is within others, nothing.
    fn changes(&self, lows: &BTreeSet<Key>, chunks: &BTreeMap<Key, StoredRange>) -> (Vec<(Key, Entry)>, Vec<u8>) {
        let entries: Vec<(Key, Entry)> = lows.iter().filter_map(|low| Some((low.clone(), Entry::of(chunks.get(low)?)))).collect();
        let body = self.write(&entries);
        (entries, body)
    }
}

fn changes_head(stamp: u64, base: u64, number: u64, entries: &[(Key, Entry)], body: &[u8]) -> Head {
    let (count, raw_bytes) = (entries.len() as u64, body.len() as u64);
    Head { stamp, first_group: base, last_group: number, count, raw_bytes, ..Head::default() }
}
