//! A disk in memory that can lose everything a power cut may lose, at any write: the engine's slots, and the files of the log.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use rand::Rng;
use rand::rngs::StdRng;

use crate::store::engine::slots::{Slot, Slots, VALUE_BYTES_MAX};
use crate::store::error::EngineError;
use crate::store::log::files::Files;
use crate::store::log::synced_mark::SyncedMark;

#[derive(Debug, Default)]
struct State {
    synced: BTreeMap<Slot, Vec<u8>>,
    /// What was written since, in order; `None` empties.
    unsynced: Vec<(Slot, Option<Vec<u8>>)>,
    /// The files of the log.
    files: BTreeMap<u64, LogFile>,
    /// Those that were removed since the directory was synced.
    removed: BTreeMap<u64, LogFile>,
    /// The marks of what is synced, oldest first: any of them may be there after a power cut, for only the first is synced.
    marks: Vec<SyncedMark>,
    /// How many writes and syncs still succeed.
    left: Option<usize>,
}

/// A file of the log.
#[derive(Debug, Clone, Default)]
struct LogFile {
    bytes: Vec<u8>,
    synced: Vec<u8>,
    /// Whether the directory has it for sure.
    is_noted: bool,
}

/// A disk that outlives the stores that write to it.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk(Arc<Mutex<State>>);

impl Disk {
    pub(super) fn break_after(&self, left: Option<usize>) {
        self.0.lock().unwrap().left = left;
    }

    /// Loses of each slot's writes that were not synced some of the newest.
    pub(super) fn cut_power(&self, random: &mut StdRng) {
        let mut state = self.0.lock().unwrap();
        state.left = None;
        let unsynced = std::mem::take(&mut state.unsynced);
        let mut kept: BTreeMap<Slot, usize> = BTreeMap::new();
        for (slot, _) in &unsynced {
            *kept.entry(*slot).or_default() += 1;
        }
        // often all or nothing: a kill, and a disk that is lazy
        let fate = random.random_range(0..4);
        for count in kept.values_mut() {
            *count = match fate {
                0 => 0,
                1 => *count,
                _ => random.random_range(0..=*count),
            };
        }
        for (slot, value) in unsynced {
            let left = kept.get_mut(&slot).unwrap();
            if *left > 0 {
                *left -= 1;
                state.write(slot, value);
            }
        }
        // what was removed may be there again
        for (number, file) in std::mem::take(&mut state.removed) {
            if fate == 0 || fate > 1 && random.random() {
                state.files.insert(number, file);
            }
        }
        for file in state.files.values_mut() {
            file.lose(fate, random);
        }
        let marks = state.marks.len();
        state.marks.truncate(if fate == 1 { marks } else { random.random_range(marks.min(1)..=marks) });
        state.files.retain(|_, file| file.is_noted || fate == 1 || fate > 1 && random.random());
        state.files.values_mut().for_each(|file| file.is_noted = true);
    }

    /// Another disk with the same log and marks.
    pub(super) fn clone_log(&self) -> Self {
        let state = self.0.lock().unwrap();
        let (files, marks) = (state.files.clone(), state.marks.clone());
        Self(Arc::new(Mutex::new(State { files, marks, ..State::default() })))
    }

    /// As a store of an earlier version, which has no mark of what is synced.
    pub(super) fn forget_marks(&self) {
        self.0.lock().unwrap().marks.clear();
    }

    /// What is in the files of the log.
    pub(super) fn log(&self) -> BTreeMap<u64, Vec<u8>> {
        self.0.lock().unwrap().files.iter().map(|(number, file)| (*number, file.bytes.clone())).collect()
    }

    /// Changes a file of the log behind the store's back; `None` removes it.
    pub(super) fn change_log(&self, number: u64, change: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>) {
        let mut state = self.0.lock().unwrap();
        let file = state.files.remove(&number).unwrap_or_default();
        if let Some(bytes) = change(file.bytes) {
            state.files.insert(number, LogFile { synced: bytes.clone(), bytes, is_noted: true });
        }
    }

    /// Changes what is there behind the store's back.
    pub(super) fn change(&self, slot: Slot, change: impl FnOnce(Option<Vec<u8>>) -> Option<Vec<u8>>) {
        let mut state = self.0.lock().unwrap();
        let value = state.synced.remove(&slot);
        if let Some(value) = change(value) {
            state.synced.insert(slot, value);
        }
    }

    fn write(&self, slot: Slot, value: Option<Vec<u8>>) -> Result<(), EngineError> {
        let mut state = self.0.lock().unwrap();
        state.spend()?;
        state.unsynced.push((slot, value));
        Ok(())
    }
}

impl LogFile {
    /// Loses of what was not synced some or all, or has noise in its place.
    fn lose(&mut self, fate: u32, random: &mut StdRng) {
        let unsynced = self.bytes.len().saturating_sub(self.synced.len());
        if fate == 0 || !self.bytes.starts_with(&self.synced) {
            self.bytes = self.synced.clone();
        } else if fate > 1 && unsynced > 0 {
            let kept = self.synced.len() + random.random_range(0..=unsynced);
            if random.random() { self.bytes.truncate(kept) } else { random.fill(&mut self.bytes[kept..]) }
        }
        self.synced = self.bytes.clone();
    }
}

impl Files for Disk {
    fn numbers(&self) -> io::Result<Vec<u64>> {
        Ok(self.0.lock().unwrap().files.keys().copied().collect())
    }

    fn read(&self, file: u64) -> io::Result<Vec<u8>> {
        let state = self.0.lock().unwrap();
        state.files.get(&file).map(|file| file.bytes.clone()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn create(&self, file: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.spend_io()?;
        if state.files.contains_key(&file) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.files.insert(file, LogFile::default());
        Ok(())
    }

    /// Where there is no room, part of it is there.
    fn append(&self, file: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let outcome = state.spend_io();
        let written = if outcome.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        state.files.get_mut(&file).unwrap().bytes.extend_from_slice(written);
        outcome
    }

    fn cut(&self, file: u64, length: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.spend_io()?;
        let file = state.files.get_mut(&file).unwrap();
        file.bytes.truncate(usize::try_from(length).unwrap());
        Ok(())
    }

    fn remove(&self, file: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.spend_io()?;
        let removed = state.files.remove(&file).unwrap();
        if removed.is_noted {
            state.removed.insert(file, removed);
        }
        Ok(())
    }

    fn sync(&self, file: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.spend_io()?;
        let Some(file) = state.files.get_mut(&file) else { return Err(io::ErrorKind::NotFound.into()) };
        file.synced.clone_from(&file.bytes);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.spend_io()?;
        state.removed.clear();
        state.files.values_mut().for_each(|file| file.is_noted = true);
        Ok(())
    }

    fn synced(&self) -> Option<SyncedMark> {
        self.0.lock().unwrap().marks.last().copied()
    }

    fn note_synced(&self, mark: SyncedMark) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        if state.marks.last().is_some_and(|last| last.id != mark.id) {
            // the first one of a process is synced
            state.marks.clear();
        }
        state.marks.push(mark);
        Ok(())
    }
}

impl State {
    fn spend_io(&mut self) -> io::Result<()> {
        self.spend().map_err(|_| io::ErrorKind::StorageFull.into())
    }

    fn spend(&mut self) -> Result<(), EngineError> {
        if self.left == Some(0) {
            return Err(EngineError::Io(io::ErrorKind::StorageFull.into()));
        }
        self.left = self.left.map(|left| left - 1);
        Ok(())
    }

    fn write(&mut self, slot: Slot, value: Option<Vec<u8>>) {
        match value {
            Some(value) => self.synced.insert(slot, value),
            None => self.synced.remove(&slot),
        };
    }
}

impl Slots for Disk {
    fn slots(&self) -> Result<Vec<Slot>, EngineError> {
        let state = self.0.lock().unwrap();
        Ok(state.synced.keys().copied().chain(state.unsynced.iter().map(|(slot, _)| *slot)).collect())
    }

    fn get(&self, slot: Slot) -> Result<Option<Vec<u8>>, EngineError> {
        let state = self.0.lock().unwrap();
        let newest = state.unsynced.iter().rev().find(|(written, _)| *written == slot);
        Ok(newest.map_or_else(|| state.synced.get(&slot).cloned(), |(_, value)| value.clone()))
    }

    fn put(&self, slot: Slot, value: &[u8]) -> Result<(), EngineError> {
        assert!(value.len() <= VALUE_BYTES_MAX, "{slot}: {} bytes", value.len());
        self.write(slot, Some(value.to_vec()))
    }

    fn delete(&self, slot: Slot) -> Result<(), EngineError> {
        self.write(slot, None)
    }

    fn sync(&self) -> Result<(), EngineError> {
        let mut state = self.0.lock().unwrap();
        state.spend()?;
        for (slot, value) in std::mem::take(&mut state.unsynced) {
            state.write(slot, value);
        }
        Ok(())
    }
}
