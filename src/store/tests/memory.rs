//! The layout over an engine in memory that can lose everything a power cut may lose, at any write.
//!
//! The engine promises no more than [`Slots`] says: of what was not synced, each slot keeps as many of its writes as chance will have.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::Loaded;
use super::model::{Model, random_group};
use crate::store::error::EngineError;
use crate::store::load::read;
use crate::store::object;
use crate::store::pace::LOG_FULL_BYTES;
use crate::store::recover::{Found, recover};
use crate::store::slots::{Slot, SlotKind, Slots, VALUE_BYTES_MAX};
use crate::store::warm::{LOG_RAW_BYTES_MAX, LogObject, Warm};

#[derive(Debug, Default)]
struct State {
    synced: BTreeMap<Slot, Vec<u8>>,
    /// What was written since, in order; `None` empties.
    unsynced: Vec<(Slot, Option<Vec<u8>>)>,
    /// How many writes and syncs still succeed.
    left: Option<usize>,
}

/// A disk that outlives those who write to it.
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

impl State {
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

pub(super) fn reopen(disk: &Disk) -> Warm<Disk> {
    let (warm, found) = recover(disk.clone()).unwrap();
    assert!(found.is_whole(), "{found:?}");
    warm
}

fn loaded(warm: &Warm<Disk>) -> Loaded {
    read(warm, std::collections::BTreeMap::new()).unwrap().loaded.into()
}

/// What differs, by name, for whole values would be pages.
fn difference(found: &Loaded, expected: &Loaded) -> String {
    let names = |loaded: &Loaded| loaded.records.iter().map(|record| (record.key.to_string(), record.version)).collect::<BTreeMap<_, _>>();
    let (found_names, expected_names) = (names(found), names(expected));
    let more: Vec<_> = found_names.iter().filter(|(name, version)| expected_names.get(*name) != Some(version)).collect();
    let less: Vec<_> = expected_names.iter().filter(|(name, version)| found_names.get(*name) != Some(version)).collect();
    let rest = |loaded: &Loaded| Loaded { records: Vec::new(), ..loaded.clone() };
    let (found, expected) = (rest(found), rest(expected));
    let rest = if found == expected { String::new() } else { format!("{found:#?}\n{expected:#?}") };
    format!("more {more:?}\nless {less:?}\n{rest}")
}

/// How many sequences are tried; `just soak` asks for more.
pub(super) fn sequence_count() -> u64 {
    std::env::var("MESHKEEP_TEST_STORE_SEQUENCES").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

#[test]
fn what_is_recovered_after_any_power_cut_is_what_was_acknowledged() {
    if let Some(seed) = std::env::var("MESHKEEP_TEST_STORE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return run(&mut StdRng::seed_from_u64(seed));
    }
    for sequence in 0..sequence_count() {
        let seed = rand::rng().random();
        println!("sequence {sequence}: seed {seed}");
        run(&mut StdRng::seed_from_u64(seed));
    }
}

fn run(random: &mut StdRng) {
    let disk = Disk::default();
    let mut warm = Warm::begin(disk.clone()).unwrap();
    // wide ones split and join their chunks
    let width = if random.random_ratio(1, 10) { 600 } else { 6 };
    let mut model = Model::default();
    for _ in 0..random.random_range(1..25) {
        if random.random_ratio(1, 3) {
            disk.break_after(Some(random.random_range(0..40)));
        }
        model.shrinking = random.random_ratio(1, 3);
        let mut newer = model.clone();
        let group = random_group(random, &mut newer, width);
        newer.take(&group);
        let outcome = work(&mut warm, random).and_then(|()| {
            warm.commit(group.changes()).inspect(|()| model = newer.clone())?;
            work(&mut warm, random)
        });
        if outcome.is_ok() && !random.random_ratio(1, 6) {
            disk.break_after(None);
            continue;
        }
        drop(warm);
        disk.cut_power(random);
        warm = reopen(&disk);
        let found = loaded(&warm);
        if found != model.loaded() {
            // not acknowledged, and there all the same: then the whole of it
            assert!(outcome.is_err(), "not what was acknowledged: {}", difference(&found, &model.loaded()));
            assert!(found == newer.loaded(), "neither what was acknowledged nor what was to be: {}", difference(&found, &newer.loaded()));
            model = newer;
        }
        if random.random_ratio(1, 4) {
            // cut off again at once
            drop(warm);
            disk.cut_power(random);
            warm = reopen(&disk);
        }
    }
    assert!(loaded(&warm) == model.loaded());
    assert!(warm.fold_all().is_ok());
    drop(warm);
    disk.cut_power(random);
    assert!(loaded(&reopen(&disk)) == model.loaded());
}

pub(super) fn work(warm: &mut Warm<Disk>, random: &mut StdRng) -> Result<(), EngineError> {
    for _ in 0..random.random_range(0..3) {
        match random.random_range(0..6) {
            0 => warm.fold_all()?,
            // whatever the clock says, or the seed would not repeat it
            1 => warm.tend(Instant::now(), Instant::now() + LONG)?,
            _ => warm.fold_some(random.random_range(0..3))?,
        }
    }
    Ok(())
}

/// So long no test takes.
const LONG: Duration = Duration::from_secs(600);

/// Three groups in windows of their own.
fn three_windows() -> (Disk, Model) {
    let (disk, mut model) = (Disk::default(), Model::default());
    let mut warm = Warm::begin(disk.clone()).unwrap();
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..3 {
        let group = random_group(&mut random, &mut model, 6);
        model.take(&group);
        warm.commit(group.changes()).unwrap();
    }
    (disk, model)
}

/// One chunk was folded past a group that is between two that others need: its window must not be given away.
#[test]
fn a_window_that_nothing_needs_stays_while_an_older_one_is_needed() {
    run(&mut StdRng::seed_from_u64(5_181_468_674_062_657_400));
}

#[test]
fn what_is_due_is_folded_and_no_more() {
    let (now, later) = (Instant::now(), Instant::now() + LONG);
    let dirty_after = |used_permille: u64, committed_megabytes: u64, (began, until): (Instant, Instant)| {
        let (disk, model) = three_windows();
        let mut warm = reopen(&disk);
        // as if the log had so much that others need
        let (first_group, last_group, raw_bytes) = (u64::MAX, u64::MAX, LOG_FULL_BYTES * used_permille / 1000);
        warm.log.segments.push(LogObject { slots: Vec::new(), first_group, last_group, raw_bytes, stored_bytes: 0 });
        warm.committed_bytes = committed_megabytes << 20;
        warm.tend(began, until).unwrap();
        assert!(loaded(&warm) == model.loaded());
        warm.dirty.len()
    };
    let left = [(600, 64), (900, 0), (900, 4), (900, 64)].map(|(permille, megabytes)| dirty_after(permille, megabytes, (now, later)));
    assert_eq!(left, [3, 3, 2, 0]);
    assert_eq!(dirty_after(900, 64, (now - LONG, now)), 3, "the next group is due, and the time that folding has in any case is over");
    assert_eq!(dirty_after(900, 64, (later, now)), 0, "the next group is due, and that time is not over");
}

/// The bound of what a start reads, and of memory, holds whatever the pace.
#[test]
fn a_group_waits_where_the_log_has_outgrown_all_measure() {
    for (raw_bytes, is_folded) in [(LOG_RAW_BYTES_MAX + 1, true), (LOG_RAW_BYTES_MAX / 2, false)] {
        let (disk, mut model) = three_windows();
        let mut warm = reopen(&disk);
        let (first_group, last_group) = (u64::MAX, u64::MAX);
        warm.log.segments.push(LogObject { slots: Vec::new(), first_group, last_group, raw_bytes, stored_bytes: 0 });
        let group = random_group(&mut StdRng::seed_from_u64(2), &mut model, 1);
        model.take(&group);
        warm.commit(group.changes()).unwrap();
        assert!(loaded(&warm) == model.loaded());
        assert_eq!(warm.dirty.oldest().is_none_or(|since| since > 3), is_folded, "{raw_bytes}");
    }
}

#[test]
fn a_lost_window_is_noticed_and_only_once() {
    let (disk, _) = three_windows();
    disk.change(Slot { kind: SlotKind::Hot, number: 1 }, |value| value.and(None));
    let (mut warm, found) = recover(disk.clone()).unwrap();
    let bodies = found.bodies.clone();
    assert_eq!(found, Found { suspect_everywhere: true, void_from: Some(1), bodies, ..Found::default() });
    warm.repair(1, 4, BTreeMap::new()).unwrap();
    drop(warm);
    reopen(&disk);
}

#[test]
fn a_lost_chunk_is_noticed() {
    let (disk, _) = three_windows();
    recover(disk.clone()).unwrap().0.fold_all().unwrap();
    for slot in disk.slots().unwrap() {
        let low = disk.get(slot).unwrap().map(|value| object::read_part(slot, value).unwrap().head.low);
        if slot.kind == SlotKind::Chunk && low.as_deref() == Some(b"e") {
            disk.change(slot, |_| None);
        }
    }
    let (_, found) = recover(disk.clone()).unwrap();
    let [(low, _)] = found.lost.as_slice() else { panic!("{found:?}") };
    assert_eq!(**low, *b"e");
}

/// What was damaged after it had been replaced does no harm.
#[test]
fn damage_to_what_is_no_longer_needed_costs_nothing() {
    let (disk, model) = three_windows();
    let mut warm = reopen(&disk);
    warm.repair(4, 4, BTreeMap::new()).unwrap();
    drop(warm);
    let stale = Slot { kind: SlotKind::Hot, number: 9 };
    let value =
        object::write_parts(&object::Head { stamp: 1, first_group: 2, last_group: 2, floor: 1, ..Default::default() }, b"x", &[stale]);
    disk.change(stale, |_| value.first().cloned());
    let (warm, found) = recover(disk).unwrap();
    assert!(!found.suspect_everywhere, "{found:?}");
    assert!(loaded(&warm) == model.loaded());
}
