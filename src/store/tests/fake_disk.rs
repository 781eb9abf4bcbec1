//! A disk in memory, with slots and log files, that can fail at any write and lose unsynced data.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use rand::Rng;
use rand::rngs::StdRng;

use crate::store::engine::slots::{Slot, SlotStorage, VALUE_BYTES_MAX};
use crate::store::error::EngineError;
use crate::store::log::files::LogFiles;
use crate::store::log::synced_mark::SyncedMark;

#[derive(Debug, Default)]
struct FakeDiskState {
    synced: BTreeMap<Slot, Vec<u8>>,
    /// Later writes in order; `None` deletes.
    unsynced: Vec<(Slot, Option<Vec<u8>>)>,
    /// Files of the log.
    files: BTreeMap<u64, FakeLogFile>,
    /// Files that were removed since the last sync of the directory.
    removed: BTreeMap<u64, FakeLogFile>,
    /// Synced marks, oldest first. After a power cut any of them may be left, because only the
    /// first one is synced.
    marks: Vec<SyncedMark>,
    /// Number of writes and syncs until they fail.
    operations_left: Option<usize>,
}

/// Part of the unsynced data that a power cut loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    All,
    None,
    /// A random part.
    Some,
}

/// A file of the log.
#[derive(Debug, Clone, Default)]
struct FakeLogFile {
    bytes: Vec<u8>,
    synced: Vec<u8>,
    /// True if the directory was synced after the file was created.
    is_entry_synced: bool,
}

/// A disk that outlives the stores that write to it.
#[derive(Debug, Clone, Default)]
pub(super) struct FakeDisk(Arc<Mutex<FakeDiskState>>);

impl FakeDisk {
    pub(super) fn fail_after(&self, operations_left: Option<usize>) {
        self.0.lock().unwrap().operations_left = operations_left;
    }

    /// Loses some of the newest unsynced writes of each slot.
    pub(super) fn cut_power(&self, random: &mut StdRng) {
        let mut state = self.0.lock().unwrap();
        state.operations_left = None;
        let unsynced = std::mem::take(&mut state.unsynced);
        let mut kept_counts: BTreeMap<Slot, usize> = BTreeMap::new();
        for (slot, _) in &unsynced {
            *kept_counts.entry(*slot).or_default() += 1;
        }
        // often all or nothing, like a kill or a disk that delays all writes
        let loss = match random.random_range(0..4_u32) {
            0 => Loss::All,
            1 => Loss::None,
            _ => Loss::Some,
        };
        for count in kept_counts.values_mut() {
            *count = match loss {
                Loss::All => 0,
                Loss::None => *count,
                Loss::Some => random.random_range(0..=*count),
            };
        }
        for (slot, value) in unsynced {
            let writes_left = kept_counts.get_mut(&slot).unwrap();
            if *writes_left > 0 {
                *writes_left -= 1;
                state.write(slot, value);
            }
        }
        // a removed file may exist again
        for (number, file) in std::mem::take(&mut state.removed) {
            if loss == Loss::All || loss == Loss::Some && random.random() {
                state.files.insert(number, file);
            }
        }
        for file in state.files.values_mut() {
            file.lose_unsynced(loss, random);
        }
        let marks = state.marks.len();
        state.marks.truncate(if loss == Loss::None { marks } else { random.random_range(marks.min(1)..=marks) });
        state.files.retain(|_, file| file.is_entry_synced || loss == Loss::None || loss == Loss::Some && random.random());
        state.files.values_mut().for_each(|file| file.is_entry_synced = true);
    }

    /// Returns another disk with the same log and marks.
    pub(super) fn clone_log(&self) -> Self {
        let state = self.0.lock().unwrap();
        let (files, marks) = (state.files.clone(), state.marks.clone());
        Self(Arc::new(Mutex::new(FakeDiskState { files, marks, ..FakeDiskState::default() })))
    }

    /// Removes the synced marks, which earlier versions did not write.
    pub(super) fn remove_marks(&self) {
        self.0.lock().unwrap().marks.clear();
    }

    /// Returns the content of the log files.
    pub(super) fn log(&self) -> BTreeMap<u64, Vec<u8>> {
        self.0.lock().unwrap().files.iter().map(|(number, file)| (*number, file.bytes.clone())).collect()
    }

    /// Changes a log file without the store; `None` removes it.
    pub(super) fn change_log(&self, number: u64, change: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>) {
        let mut state = self.0.lock().unwrap();
        let file = state.files.remove(&number).unwrap_or_default();
        if let Some(bytes) = change(file.bytes) {
            state.files.insert(number, FakeLogFile { synced: bytes.clone(), bytes, is_entry_synced: true });
        }
    }

    /// Changes a slot without the store.
    pub(super) fn change(&self, slot: Slot, change: impl FnOnce(Option<Vec<u8>>) -> Option<Vec<u8>>) {
        let mut state = self.0.lock().unwrap();
        let value = state.synced.remove(&slot);
        if let Some(value) = change(value) {
            state.synced.insert(slot, value);
        }
    }

    fn write(&self, slot: Slot, value: Option<Vec<u8>>) -> Result<(), EngineError> {
        let mut state = self.0.lock().unwrap();
        state.count_operation()?;
        state.unsynced.push((slot, value));
        Ok(())
    }
}

impl FakeLogFile {
    /// Loses a part of the unsynced bytes, or replaces them by noise.
    fn lose_unsynced(&mut self, loss: Loss, random: &mut StdRng) {
        let unsynced = self.bytes.len().saturating_sub(self.synced.len());
        if loss == Loss::All || !self.bytes.starts_with(&self.synced) {
            self.bytes = self.synced.clone();
        } else if loss == Loss::Some && unsynced > 0 {
            let kept_length = self.synced.len() + random.random_range(0..=unsynced);
            if random.random() { self.bytes.truncate(kept_length) } else { random.fill(&mut self.bytes[kept_length..]) }
        }
        self.synced = self.bytes.clone();
    }
}

impl LogFiles for FakeDisk {
    fn list_numbers(&self) -> io::Result<Vec<u64>> {
        Ok(self.0.lock().unwrap().files.keys().copied().collect())
    }

    fn read(&self, file: u64) -> io::Result<Vec<u8>> {
        let state = self.0.lock().unwrap();
        state.files.get(&file).map(|file| file.bytes.clone()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn create(&self, file: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.count_file_operation()?;
        if state.files.contains_key(&file) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.files.insert(file, FakeLogFile::default());
        Ok(())
    }

    /// Appends half of the bytes if it fails.
    fn append(&self, file: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let outcome = state.count_file_operation();
        let written = if outcome.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        state.files.get_mut(&file).unwrap().bytes.extend_from_slice(written);
        outcome
    }

    fn truncate(&self, file: u64, length: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.count_file_operation()?;
        let file = state.files.get_mut(&file).unwrap();
        file.bytes.truncate(usize::try_from(length).unwrap());
        Ok(())
    }

    fn remove(&self, file: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.count_file_operation()?;
        let removed = state.files.remove(&file).unwrap();
        if removed.is_entry_synced {
            state.removed.insert(file, removed);
        }
        Ok(())
    }

    fn sync(&self, file: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.count_file_operation()?;
        let Some(file) = state.files.get_mut(&file) else { return Err(io::ErrorKind::NotFound.into()) };
        file.synced.clone_from(&file.bytes);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.count_file_operation()?;
        state.removed.clear();
        state.files.values_mut().for_each(|file| file.is_entry_synced = true);
        Ok(())
    }

    fn read_synced_mark(&self) -> Option<SyncedMark> {
        self.0.lock().unwrap().marks.last().copied()
    }

    fn write_synced_mark(&self, mark: SyncedMark) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        if state.marks.last().is_some_and(|last| last.id != mark.id) {
            // the first mark of a process is synced
            state.marks.clear();
        }
        state.marks.push(mark);
        Ok(())
    }
}

impl FakeDiskState {
    fn count_file_operation(&mut self) -> io::Result<()> {
        self.count_operation().map_err(|_| io::ErrorKind::StorageFull.into())
    }

    fn count_operation(&mut self) -> Result<(), EngineError> {
        if self.operations_left == Some(0) {
            return Err(EngineError::Io(io::ErrorKind::StorageFull.into()));
        }
        self.operations_left = self.operations_left.map(|count| count - 1);
        Ok(())
    }

    fn write(&mut self, slot: Slot, value: Option<Vec<u8>>) {
        match value {
            Some(value) => self.synced.insert(slot, value),
            None => self.synced.remove(&slot),
        };
    }
}

impl SlotStorage for FakeDisk {
    fn list_slots(&self) -> Result<Vec<Slot>, EngineError> {
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
        state.count_operation()?;
        for (slot, value) in std::mem::take(&mut state.unsynced) {
            state.write(slot, value);
        }
        Ok(())
    }
}
