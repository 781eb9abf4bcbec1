//! When the manifest is written, and how much of it: all of it as a base, or what changed since.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{CHANGES_BYTES_MAX, CHANGES_COUNT_MAX, CHANGES_KEPT_BYTES, CHANGES_SHARE, Entry, Manifest};
use crate::store::change::Key;
use crate::store::error::EngineError;
use crate::store::object::Head;
use crate::store::slots::{Slot, SlotKind};

/// The chunks that a manifest is of, and the slots that it is written to.
pub(in crate::store) trait Chunks {
    /// What there is to note of all chunks, by low.
    fn entries(&self) -> Vec<(Key, Entry)>;

    /// What there is to note of a chunk; `None` of one that is gone, which is within others.
    fn entry(&self, low: &Key) -> Option<Entry>;

    /// Writes an object to slots that are free.
    fn write(&mut self, kind: SlotKind, head: &Head, body: &[u8]) -> Result<Vec<Slot>, EngineError>;

    /// Writes an object to these slots.
    fn put(&self, slots: &[Slot], head: &Head, body: &[u8]) -> Result<(), EngineError>;

    /// The stamp of the next object.
    fn next_stamp(&mut self) -> u64;

    /// Empties slots after the next sync.
    fn free_soon(&mut self, slots: Vec<Slot>);
}

impl Manifest {
    /// Notes where chunks are that were written since the last sync. To be called in front of each sync.
    pub(in crate::store) fn write_to(&mut self, chunks: &mut impl Chunks) -> Result<(), EngineError> {
        if !self.is_changed() {
            return Ok(());
        }
        let full = self.number >= CHANGES_COUNT_MAX || self.changes_bytes > CHANGES_KEPT_BYTES.max(self.base_bytes / CHANGES_SHARE);
        match self.base.filter(|_| !full) {
            Some(base) => self.write_changes(base, chunks),
            None => self.write_base(chunks),
        }
    }

    fn write_base(&mut self, chunks: &mut impl Chunks) -> Result<(), EngineError> {
        let before = std::mem::take(self);
        let entries = chunks.entries();
        let body = self.write(&entries);
        let stamp = chunks.next_stamp();
        let head = Head { stamp, first_group: stamp, count: entries.len() as u64, raw_bytes: body.len() as u64, ..Head::default() };
        let slots = chunks.write(SlotKind::Manifest, &head, &body)?;
        let noted = Arc::new(entries.into_iter().collect());
        *self = Self { base: Some(stamp), base_bytes: body.len(), slots, noted, ..Self::default() };
        chunks.free_soon(before.slots);
        Ok(())
    }

    fn write_changes(&mut self, base: u64, chunks: &mut impl Chunks) -> Result<(), EngineError> {
        let changed = std::mem::take(&mut self.changed);
        if let Some((slot, before)) = self.open.take() {
            let lows = before.iter().map(|(low, _)| low).chain(&changed).cloned().collect();
            let (entries, body) = self.changes(&lows, chunks);
            if body.len() <= CHANGES_BYTES_MAX {
                let head = changes_head(chunks.next_stamp(), base, self.number, &entries, &body);
                chunks.put(&[slot], &head, &body)?;
                self.open = Some((slot, entries));
                return Ok(());
            }
            before.into_iter().for_each(|(low, entry)| self.note(low, entry));
        }
        let (entries, body) = self.changes(&changed, chunks);
        self.number += 1;
        self.changes_bytes += body.len().max(CHANGES_BYTES_MAX);
        let head = changes_head(chunks.next_stamp(), base, self.number, &entries, &body);
        let slots = chunks.write(SlotKind::Manifest, &head, &body)?;
        self.slots.extend(&slots);
        match slots.as_slice() {
            [slot] if body.len() < CHANGES_BYTES_MAX => self.open = Some((*slot, entries)),
            _ => entries.into_iter().for_each(|(low, entry)| self.note(low, entry)),
        }
        Ok(())
    }

    /// What there is to note of chunks.
    fn changes(&self, lows: &BTreeSet<Key>, chunks: &impl Chunks) -> (Vec<(Key, Entry)>, Vec<u8>) {
        let entries: Vec<(Key, Entry)> = lows.iter().filter_map(|low| Some((low.clone(), chunks.entry(low)?))).collect();
        let body = self.write(&entries);
        (entries, body)
    }
}

fn changes_head(stamp: u64, base: u64, number: u64, entries: &[(Key, Entry)], body: &[u8]) -> Head {
    let (count, raw_bytes) = (entries.len() as u64, body.len() as u64);
    Head { stamp, first_group: base, last_group: number, count, raw_bytes, ..Head::default() }
}
