//! Writes the manifest: a base with all entries, or an object with the changed entries.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{CHANGES_BYTES_MAX, CHANGES_COUNT_MAX, CHANGES_KEPT_BYTES, CHANGES_SHARE, LowAndEntry, Manifest, ManifestEntry};
use crate::store::encoding::stored_value::KeyBytes;
use crate::store::engine::slots::{SlotKind, SlotStorage};
use crate::store::error::EngineError;
use crate::store::objects::object::ObjectHead;
use crate::store::objects::slot_allocator::SlotAllocator;
use crate::store::objects::stored_chunk::{StoredChunk, StoredChunks};

impl ManifestEntry {
    fn new(chunk: &StoredChunk) -> Self {
        Self { high: chunk.high.clone(), stamp: chunk.stamp, slots: chunk.slots.clone(), summary: chunk.summary.clone() }
    }
}

impl Manifest {
    /// Writes the chunks that changed since the last sync. Call it before each sync.
    pub(in crate::store) fn write_to<S: SlotStorage>(
        &mut self,
        slot_allocator: &mut SlotAllocator<S>,
        chunks: &StoredChunks,
    ) -> Result<(), EngineError> {
        if !self.is_changed() {
            return Ok(());
        }
        let needs_base = self.number >= CHANGES_COUNT_MAX || self.changes_bytes > CHANGES_KEPT_BYTES.max(self.base_bytes / CHANGES_SHARE);
        match self.base.filter(|_| !needs_base) {
            Some(base) => self.write_changes(base, slot_allocator, chunks),
            None => self.write_base(slot_allocator, chunks),
        }
    }

    fn write_base<S: SlotStorage>(&mut self, slot_allocator: &mut SlotAllocator<S>, chunks: &StoredChunks) -> Result<(), EngineError> {
        let before = std::mem::take(self);
        let entries: Vec<LowAndEntry> = chunks.iter().map(|(low, chunk)| (low.clone(), ManifestEntry::new(chunk))).collect();
        let body = self.encode_entries(&entries);
        let stamp = slot_allocator.next_stamp();
        let head =
            ObjectHead { stamp, first_group: stamp, count: entries.len() as u64, raw_bytes: body.len() as u64, ..ObjectHead::default() };
        let slots = slot_allocator.write_new(SlotKind::Manifest, &head, &body)?;
        let entries = Arc::new(entries.into_iter().collect());
        *self = Self { base: Some(stamp), base_bytes: body.len(), slots, entries, ..Self::default() };
        slot_allocator.freed_after_sync.extend(before.slots);
        Ok(())
    }

    fn write_changes<S: SlotStorage>(
        &mut self,
        base: u64,
        slot_allocator: &mut SlotAllocator<S>,
        chunks: &StoredChunks,
    ) -> Result<(), EngineError> {
        let changed = std::mem::take(&mut self.changed);
        if let Some((slot, before)) = self.open_object.take() {
            let lows = before.iter().map(|(low, _)| low).chain(&changed).cloned().collect();
            let (entries, body) = self.changed_entries(&lows, chunks);
            if body.len() <= CHANGES_BYTES_MAX {
                let head = changes_head(slot_allocator.next_stamp(), base, self.number, &entries, &body);
                slot_allocator.write_to(&[slot], &head, &body)?;
                self.open_object = Some((slot, entries));
                return Ok(());
            }
            before.into_iter().for_each(|(low, entry)| self.set_entry(low, entry));
        }
        let (entries, body) = self.changed_entries(&changed, chunks);
        self.number += 1;
        self.changes_bytes += body.len().max(CHANGES_BYTES_MAX);
        let head = changes_head(slot_allocator.next_stamp(), base, self.number, &entries, &body);
        let slots = slot_allocator.write_new(SlotKind::Manifest, &head, &body)?;
        self.slots.extend(&slots);
        match slots.as_slice() {
            [slot] if body.len() < CHANGES_BYTES_MAX => self.open_object = Some((*slot, entries)),
            _ => entries.into_iter().for_each(|(low, entry)| self.set_entry(low, entry)),
        }
        Ok(())
    }

    /// Returns the entries of these chunks and their encoding. The range of a chunk that no longer
    /// exists is covered by the entry of another chunk.
    fn changed_entries(&self, lows: &BTreeSet<KeyBytes>, chunks: &StoredChunks) -> (Vec<LowAndEntry>, Vec<u8>) {
        let entries: Vec<LowAndEntry> = lows.iter().filter_map(|low| Some((low.clone(), ManifestEntry::new(chunks.get(low)?)))).collect();
        let body = self.encode_entries(&entries);
        (entries, body)
    }
}

fn changes_head(stamp: u64, base: u64, number: u64, entries: &[LowAndEntry], body: &[u8]) -> ObjectHead {
    let (count, raw_bytes) = (entries.len() as u64, body.len() as u64);
    ObjectHead { stamp, first_group: base, last_group: number, count, raw_bytes, ..ObjectHead::default() }
}
