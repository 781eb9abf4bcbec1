//! The log and the layout over a disk in memory that can lose everything a power cut may lose, at any write.
//!
//! The engine promises no more than [`Slots`] says: of what was not synced, each slot keeps as many of its writes as chance will have. The files of
//! the log keep as much of their unsynced end as chance will have, perhaps as noise, and the directory may forget those that are new.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::Loaded;
pub(super) use super::double::Disk;
use super::model::{Model, random_group};
use crate::store::chunks::chunk_store::{ChunkStore, LOG_RAW_BYTES_MAX};
use crate::store::chunks::fold_rate::LOG_FULL_BYTES;
use crate::store::encoding::group::Group;
use crate::store::engine::slots::{SlotKind, Slots};
use crate::store::error::EngineError;
use crate::store::log::Log;
use crate::store::log::frames::read_all;
use crate::store::objects::object;
use crate::store::recovery::load::{begin_log, load_and_repair, read};
use crate::store::recovery::slot_scan::recover;

/// A store over such a disk.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) chunk_store: ChunkStore<Disk>,
    pub(super) log: Log,
}

impl Rig {
    pub(super) fn begin(disk: &Disk) -> Self {
        let mut chunk_store = ChunkStore::begin(disk.clone()).unwrap();
        let run = begin_log(&mut chunk_store, &BTreeMap::new(), disk).unwrap();
        let log = Log::closed(Arc::new(disk.clone()));
        log.open(&run);
        Self { chunk_store, log }
    }

    /// As a start does it. Says what is lost, too.
    pub(super) fn open(disk: &Disk) -> Result<(Self, Loaded, Vec<String>), EngineError> {
        let (mut chunk_store, found, run) = recover(disk.clone(), read_all(disk)?, u64::MAX)?;
        let (loaded, losses, run) = load_and_repair(&mut chunk_store, found, run, disk)?;
        let log = Log::closed(Arc::new(disk.clone()));
        log.open(&run);
        assert_eq!(run.last, chunk_store.group_number());
        Ok((Self { chunk_store, log }, loaded.into(), losses))
    }

    /// As the writer and the thread that stores do it; what was stored goes on if the engine fails.
    pub(super) fn commit(&mut self, group: &Group) -> Result<(), EngineError> {
        let mut group = group.clone();
        self.log.append(&mut group);
        self.persist(&group)
    }

    fn persist(&mut self, group: &Group) -> Result<(), EngineError> {
        let changes = group.changes();
        self.log.persist(group.number, &changes).map_err(EngineError::Log)?;
        self.chunk_store.make_room()?;
        self.chunk_store.take_in(group.number, &changes);
        Ok(())
    }

    pub(super) fn work(&mut self, random: &mut StdRng) -> Result<(), EngineError> {
        let outcome = work(&mut self.chunk_store, random);
        if outcome.is_ok() {
            self.log.cut(self.chunk_store.folded());
            if random.random_ratio(1, 10) && self.chunk_store.is_settled() {
                self.log.trim().map_err(EngineError::Log)?;
            }
        }
        outcome
    }
}

/// Opens what must be whole.
pub(super) fn reopen(disk: &Disk) -> Rig {
    let (rig, _, losses) = Rig::open(disk).unwrap();
    assert!(losses.is_empty(), "{losses:?}");
    rig
}

fn loaded(chunk_store: &ChunkStore<Disk>) -> Loaded {
    read(chunk_store, BTreeMap::new()).unwrap().loaded.into()
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
    std::env::var("MESHKEEP_TEST_STORE_SEQUENCES").ok().and_then(|count| count.parse().ok()).unwrap_or(150)
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

/// Groups are appended and stored as they come, or some together; what was appended and not stored may be there after a cut, from the first on.
fn run(random: &mut StdRng) {
    let disk = Disk::default();
    let mut rig = Rig::begin(&disk);
    // wide ones split and join their chunks
    let width = if random.random_ratio(1, 10) { 600 } else { 6 };
    let mut stored = Model::default();
    // what was appended and not stored: the group, and what the store holds with it
    let mut waiting: Vec<(Group, Model)> = Vec::new();
    for _ in 0..random.random_range(1..25) {
        if random.random_ratio(1, 3) {
            disk.break_after(Some(random.random_range(0..40)));
        }
        let mut newer = waiting.last().map_or(&stored, |(_, newer)| newer).clone();
        newer.shrinking = random.random_ratio(1, 3);
        let mut group = random_group(random, &mut newer, width);
        newer.take(&group);
        rig.log.append(&mut group);
        waiting.push((group, newer));
        if random.random_ratio(1, 3) {
            continue;
        }
        let count = random.random_range(1..=waiting.len());
        let outcome = rig.work(random).and_then(|()| {
            let mut together = Group::default();
            for (group, _) in &waiting[..count] {
                let mut newer = group.clone();
                newer.merge_older(together);
                together = newer;
            }
            let persisted = rig.log.persist(together.number, &together.changes()).map_err(EngineError::Log);
            persisted?;
            stored = waiting[count - 1].1.clone();
            waiting.drain(..count);
            rig.chunk_store.make_room()?;
            rig.chunk_store.take_in(together.number, &together.changes());
            rig.work(random)
        });
        if matches!(outcome, Err(EngineError::Log(_))) {
            // it is tried again
            disk.break_after(None);
            continue;
        }
        if outcome.is_ok() && !random.random_ratio(1, 6) {
            disk.break_after(None);
            continue;
        }
        drop(rig);
        disk.cut_power(random);
        (rig, stored) = recovered(&disk, &stored, &waiting);
        waiting.clear();
        if random.random_ratio(1, 4) {
            // cut off again at once
            drop(rig);
            disk.cut_power(random);
            rig = reopen(&disk);
        }
    }
    drop(rig);
    disk.cut_power(random);
    let (mut rig, stored) = recovered(&disk, &stored, &waiting);
    assert!(rig.chunk_store.fold_all().is_ok());
    drop(rig);
    disk.cut_power(random);
    assert!(loaded(&reopen(&disk).chunk_store) == stored.loaded());
}

/// Opens what a power cut has left: all that was stored, and of what was appended since whole groups, from the first on.
fn recovered(disk: &Disk, stored: &Model, waiting: &[(Group, Model)]) -> (Rig, Model) {
    let rig = reopen(disk);
    let found = loaded(&rig.chunk_store);
    let mut candidates = std::iter::once(stored).chain(waiting.iter().map(|(_, newer)| newer));
    let model = candidates.find(|model| model.loaded() == found);
    let model = model.unwrap_or_else(|| panic!("neither what was stored nor what was appended: {}", difference(&found, &stored.loaded())));
    (rig, model.clone())
}

pub(super) fn work(chunk_store: &mut ChunkStore<Disk>, random: &mut StdRng) -> Result<(), EngineError> {
    for _ in 0..random.random_range(0..3) {
        match random.random_range(0..6) {
            0 => chunk_store.fold_all()?,
            // whatever the clock says, or the seed would not repeat it
            1 => chunk_store.tend(Instant::now(), Instant::now() + LONG)?,
            _ => chunk_store.fold_some(random.random_range(0..3))?,
        }
    }
    Ok(())
}

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

/// Three groups that are in the log alone.
fn three_groups() -> (Disk, Model) {
    let (disk, mut model) = (Disk::default(), Model::default());
    let mut rig = Rig::begin(&disk);
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..3 {
        let group = random_group(&mut random, &mut model, 6);
        model.take(&group);
        rig.commit(&group).unwrap();
    }
    (disk, model)
}

#[test]
fn what_is_due_is_folded_and_no_more() {
    let (now, later) = (Instant::now(), Instant::now() + LONG);
    let dirty_after = |used_permille: u64, committed_megabytes: u64, (began, until): (Instant, Instant)| {
        let (disk, model) = three_groups();
        let mut chunk_store = reopen(&disk).chunk_store;
        // as if the log had so much that others need
        chunk_store.keep_log(u64::MAX, LOG_FULL_BYTES * used_permille / 1000);
        chunk_store.commit_bytes(committed_megabytes << 20);
        chunk_store.tend(began, until).unwrap();
        assert!(loaded(&chunk_store) == model.loaded());
        chunk_store.fold_queue().0
    };
    let left = [(600, 64), (900, 0), (900, 4), (900, 64)].map(|(permille, megabytes)| dirty_after(permille, megabytes, (now, later)));
    assert_eq!(left, [3, 3, 2, 0]);
    assert_eq!(dirty_after(900, 64, (now - LONG, now)), 3, "the next group is due, and the time that folding has in any case is over");
    assert_eq!(dirty_after(900, 64, (later, now)), 0, "the next group is due, and that time is not over");
}

/// The log lets go of what the mark says, and a start reads none of it.
#[test]
fn the_mark_is_below_what_only_some_chunks_have() {
    let (disk, model) = three_groups();
    let mut rig = reopen(&disk);
    rig.chunk_store.fold_some(1).unwrap();
    rig.chunk_store.mark().unwrap();
    let (dirty, oldest) = rig.chunk_store.fold_queue();
    assert!(
        dirty > 0 && oldest.is_some_and(|oldest| rig.chunk_store.folded() < oldest),
        "{oldest:?} is missing, folded up to {}",
        rig.chunk_store.folded()
    );
    rig.log.cut(rig.chunk_store.folded());
    drop(rig);
    assert!(loaded(&reopen(&disk).chunk_store) == model.loaded());
}

/// The bound of what a start reads, and of memory, holds whatever the rate.
#[test]
fn a_group_waits_where_the_log_has_outgrown_all_measure() {
    for (raw_bytes, is_folded) in [(LOG_RAW_BYTES_MAX + 1, true), (LOG_RAW_BYTES_MAX / 2, false)] {
        let (disk, mut model) = three_groups();
        let mut rig = reopen(&disk);
        rig.chunk_store.keep_log(u64::MAX, raw_bytes);
        let group = random_group(&mut StdRng::seed_from_u64(2), &mut model, 1);
        model.take(&group);
        rig.commit(&group).unwrap();
        assert!(loaded(&rig.chunk_store) == model.loaded());
        assert_eq!(rig.chunk_store.fold_queue().1.is_none_or(|since| since > 3), is_folded, "{raw_bytes}");
    }
}

#[test]
fn a_lost_chunk_is_noticed() {
    let (disk, _) = three_groups();
    reopen(&disk).chunk_store.fold_all().unwrap();
    for slot in disk.slots().unwrap() {
        let low = disk.get(slot).unwrap().map(|value| object::read_part(slot, value).unwrap().head.low);
        if slot.kind == SlotKind::Chunk && low.as_deref() == Some(b"e") {
            disk.change(slot, |_| None);
        }
    }
    let (_, found, _) = recover(disk.clone(), read_all(&disk).unwrap(), u64::MAX).unwrap();
    let [(low, _)] = found.lost.as_slice() else { panic!("{found:?}") };
    assert_eq!(**low, *b"e");
    drop(found);
    // a start that was broken off there has not made it good
    let (_, loaded, losses) = Rig::open(&disk).unwrap();
    assert!(loaded.cursors.is_empty() && !losses.is_empty(), "{losses:?}");
    let (_, loaded, losses) = Rig::open(&disk).unwrap();
    assert!(loaded.cursors.is_empty() && losses.is_empty(), "{losses:?}");
}

/// After a kill the end of the log is in the kernel alone: a start makes it durable before it gets into chunks.
#[test]
fn what_a_kill_left_unsynced_is_synced_before_it_is_folded() {
    for seed in 0..20 {
        let (disk, mut model) = three_groups();
        let rig = reopen(&disk);
        let mut group = random_group(&mut StdRng::seed_from_u64(9), &mut model, 6);
        model.take(&group);
        rig.log.append(&mut group);
        drop(rig);
        let mut rig = reopen(&disk);
        rig.chunk_store.fold_all().unwrap();
        drop(rig);
        disk.cut_power(&mut StdRng::seed_from_u64(seed));
        assert!(loaded(&reopen(&disk).chunk_store) == model.loaded());
    }
}
