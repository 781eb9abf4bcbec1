//! When the manifest is written, and how much of it: all of it as a base, or what changed since.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::change::Key;
use super::super::error::EngineError;
use super::super::object::Head;
use super::super::slots::{SlotKind, Slots};
use super::super::warm::Warm;
use super::{CHANGES_BYTES_MAX, CHANGES_COUNT_MAX, CHANGES_KEPT_BYTES, CHANGES_SHARE, Entry, Manifest};

impl<S: Slots> Warm<S> {
    /// Notes where chunks are that were written since the last sync. To be called in front of each sync.
    pub(in crate::store) fn write_manifest(&mut self) -> Result<(), EngineError> {
        let manifest = &self.manifest;
        if !manifest.is_changed() {
            return Ok(());
        }
        let full =
            manifest.number >= CHANGES_COUNT_MAX || manifest.changes_bytes > CHANGES_KEPT_BYTES.max(manifest.base_bytes / CHANGES_SHARE);
        match manifest.base.filter(|_| !full) {
            Some(base) => self.write_changes(base),
            None => self.write_base(),
        }
    }

    fn write_base(&mut self) -> Result<(), EngineError> {
        let before = std::mem::take(&mut self.manifest);
        let entries: Vec<(Key, Entry)> = self.chunks.iter().map(|(low, chunk)| (low.clone(), chunk.entry())).collect();
        let body = self.manifest.write(&entries);
        let stamp = self.next_stamp();
        let head = Head { stamp, first_group: stamp, count: entries.len() as u64, raw_bytes: body.len() as u64, ..Head::default() };
        let slots = self.write(SlotKind::Manifest, &head, &body)?;
        self.manifest = Manifest { base: Some(stamp), base_bytes: body.len(), slots, ..Manifest::default() };
        self.manifest.noted = Arc::new(entries.into_iter().collect());
        self.room.soon.extend(before.slots);
        Ok(())
    }

    fn write_changes(&mut self, base: u64) -> Result<(), EngineError> {
        let changed = std::mem::take(&mut self.manifest.changed);
        if let Some((slot, before)) = self.manifest.open.take() {
            let lows = before.iter().map(|(low, _)| low).chain(&changed).cloned().collect();
            let (entries, body) = self.changes(&lows);
            if body.len() <= CHANGES_BYTES_MAX {
                let number = self.manifest.number;
                self.put(&[slot], &self.manifest_head(base, number, &entries, &body), &body)?;
                self.manifest.open = Some((slot, entries));
                return Ok(());
            }
            before.into_iter().for_each(|(low, entry)| self.manifest.note(low, entry));
        }
        let (entries, body) = self.changes(&changed);
        self.stamp += 1;
        self.manifest.number += 1;
        self.manifest.changes_bytes += body.len().max(CHANGES_BYTES_MAX);
        let head = self.manifest_head(base, self.manifest.number, &entries, &body);
        let slots = self.write(SlotKind::Manifest, &head, &body)?;
        self.manifest.slots.extend(&slots);
        match slots.as_slice() {
            [slot] if body.len() < CHANGES_BYTES_MAX => self.manifest.open = Some((*slot, entries)),
            _ => entries.into_iter().for_each(|(low, entry)| self.manifest.note(low, entry)),
        }
        Ok(())
    }

    /// What there is to note of chunks. Those that are gone are left out: they are within others.
    fn changes(&self, lows: &BTreeSet<Key>) -> (Vec<(Key, Entry)>, Vec<u8>) {
        let entries: Vec<(Key, Entry)> = lows.iter().filter_map(|low| Some((low.clone(), self.chunks.get(low)?.entry()))).collect();
        let body = self.manifest.write(&entries);
        (entries, body)
    }

    fn manifest_head(&self, base: u64, number: u64, entries: &[(Key, Entry)], body: &[u8]) -> Head {
        let (count, raw_bytes) = (entries.len() as u64, body.len() as u64);
        Head { stamp: self.stamp, first_group: base, last_group: number, count, raw_bytes, ..Head::default() }
    }
}
