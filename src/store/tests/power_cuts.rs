//! Power cuts at any write, on a disk in memory.
//!
//! After a power cut, the disk has only what [`SlotStorage`] guarantees: the synced writes, and a
//! random number of the oldest unsynced writes of each slot. A log file keeps a random part of its
//! unsynced end, perhaps as noise, and new files may be missing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::UnpackedContents;
pub(super) use super::fake_disk::FakeDisk;
use super::model::{StoreModel, random_group};
use crate::store::chunks::chunk_store::{ChunkStore, LOG_RAW_BYTES_MAX};
use crate::store::chunks::fold_rate::LOG_FULL_BYTES;
use crate::store::encoding::group::Group;
use crate::store::engine::slots::{SlotKind, SlotStorage};
use crate::store::error::EngineError;
use crate::store::log::WriteAheadLog;
use crate::store::log::frames::read_log;
use crate::store::objects::object;
use crate::store::recovery::load::{create_log, load_and_repair, load_contents};
use crate::store::recovery::slot_scan::recover;

/// A store on a fake disk.
#[derive(Debug)]
pub(super) struct TestStore {
    pub(super) chunk_store: ChunkStore<FakeDisk>,
    pub(super) log: WriteAheadLog,
}

impl TestStore {
    pub(super) fn create(disk: &FakeDisk) -> Self {
        let mut chunk_store = ChunkStore::create(Arc::new(disk.clone())).unwrap();
        let recovered = create_log(&mut chunk_store, &BTreeMap::new(), disk).unwrap();
        let log = WriteAheadLog::new_closed(Arc::new(disk.clone()));
        log.open(&recovered);
        Self { chunk_store, log }
    }

    /// Opens the store like a start. Also returns its losses.
    pub(super) fn open(disk: &FakeDisk) -> Result<(Self, UnpackedContents, Vec<String>), EngineError> {
        let (mut chunk_store, damage, recovered) = recover(Arc::new(disk.clone()), read_log(disk)?, u64::MAX)?;
        let (loaded, losses, recovered) = load_and_repair(&mut chunk_store, damage, recovered, disk)?;
        let log = WriteAheadLog::new_closed(Arc::new(disk.clone()));
        log.open(&recovered);
        assert_eq!(recovered.last_group, chunk_store.group_number());
        Ok((Self { chunk_store, log }, loaded.into(), losses))
    }

    /// Stores a group like the committer and the storing thread.
    pub(super) fn commit(&mut self, group: &Group) -> Result<(), EngineError> {
        let mut group = group.clone();
        self.log.append(&mut group);
        self.persist(&group)
    }

    fn persist(&mut self, group: &Group) -> Result<(), EngineError> {
        let changes = group.changes();
        self.log.persist(group.number, &changes).map_err(EngineError::Log)?;
        self.chunk_store.fold_excess()?;
        self.chunk_store.add_changes(group.number, &changes, &group.chunks);
        Ok(())
    }

    /// Folds at random like [`fold_randomly`], and removes the folded files of the log.
    pub(super) fn fold_randomly(&mut self, random: &mut StdRng) -> Result<(), EngineError> {
        let outcome = fold_randomly(&mut self.chunk_store, random);
        if outcome.is_ok() {
            self.log.remove_folded_files(self.chunk_store.checkpoint_group());
            if random.random_ratio(1, 10) && self.chunk_store.is_fully_folded() {
                self.log.rotate_if_folded().map_err(EngineError::Log)?;
            }
        }
        outcome
    }
}

/// Opens a store that must be intact.
pub(super) fn reopen(disk: &FakeDisk) -> TestStore {
    let (store, _, losses) = TestStore::open(disk).unwrap();
    assert!(losses.is_empty(), "{losses:?}");
    store
}

fn contents_of(chunk_store: &ChunkStore<FakeDisk>) -> UnpackedContents {
    load_contents(chunk_store, BTreeMap::new()).unwrap().contents.into()
}

/// Describes the difference by names, because whole values would fill pages.
fn difference(found: &UnpackedContents, expected: &UnpackedContents) -> String {
    let names = |loaded: &UnpackedContents| {
        loaded.records.iter().map(|record| (record.key.to_string(), record.version)).collect::<BTreeMap<_, _>>()
    };
    let (found_names, expected_names) = (names(found), names(expected));
    let unexpected: Vec<_> = found_names.iter().filter(|(name, version)| expected_names.get(*name) != Some(version)).collect();
    let missing: Vec<_> = expected_names.iter().filter(|(name, version)| found_names.get(*name) != Some(version)).collect();
    let rest = |loaded: &UnpackedContents| UnpackedContents { records: Vec::new(), ..loaded.clone() };
    let (found, expected) = (rest(found), rest(expected));
    let rest = if found == expected { String::new() } else { format!("{found:#?}\n{expected:#?}") };
    format!("unexpected {unexpected:?}\nmissing {missing:?}\n{rest}")
}

/// Returns the number of sequences to try. `just soak` sets a higher one.
pub(super) fn sequence_count() -> u64 {
    std::env::var("MESHKEEP_TEST_STORE_SEQUENCES").ok().and_then(|count| count.parse().ok()).unwrap_or(150)
}

#[test]
fn acknowledged_groups_survive_any_power_cut() {
    if let Some(seed) = std::env::var("MESHKEEP_TEST_STORE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return run(&mut StdRng::seed_from_u64(seed));
    }
    for sequence in 0..sequence_count() {
        let seed = rand::rng().random();
        println!("sequence {sequence}: seed {seed}");
        run(&mut StdRng::seed_from_u64(seed));
    }
}

/// Appends and stores groups, alone or together. After a power cut, the store may also have the
/// first ones of the groups that were appended and not stored.
fn run(random: &mut StdRng) {
    let disk = FakeDisk::default();
    let mut store = TestStore::create(&disk);
    // with many different keys, chunks are split and joined
    let width = if random.random_ratio(1, 10) { 600 } else { 6 };
    let mut stored = StoreModel::default();
    // appended groups that are not stored, each with the model that includes it
    let mut waiting: Vec<(Group, StoreModel)> = Vec::new();
    for _ in 0..random.random_range(1..25) {
        if random.random_ratio(1, 3) {
            disk.fail_after(Some(random.random_range(0..40)));
        }
        let mut newer = waiting.last().map_or(&stored, |(_, newer)| newer).clone();
        newer.shrinking = random.random_ratio(1, 3);
        let mut group = random_group(random, &mut newer, width);
        newer.apply(&group);
        store.log.append(&mut group);
        waiting.push((group, newer));
        if random.random_ratio(1, 3) {
            continue;
        }
        let count = random.random_range(1..=waiting.len());
        let outcome = store.fold_randomly(random).and_then(|()| {
            let mut together = Group::default();
            for (group, _) in &waiting[..count] {
                let mut newer = group.clone();
                newer.merge_older(together);
                together = newer;
            }
            let persisted = store.log.persist(together.number, &together.changes()).map_err(EngineError::Log);
            persisted?;
            stored = waiting[count - 1].1.clone();
            waiting.drain(..count);
            store.chunk_store.fold_excess()?;
            store.chunk_store.add_changes(together.number, &together.changes(), &together.chunks);
            store.fold_randomly(random)
        });
        if matches!(outcome, Err(EngineError::Log(_))) {
            // the next round tries again
            disk.fail_after(None);
            continue;
        }
        if outcome.is_ok() && !random.random_ratio(1, 6) {
            disk.fail_after(None);
            continue;
        }
        drop(store);
        disk.cut_power(random);
        (store, stored) = reopen_after_cut(&disk, &stored, &waiting);
        waiting.clear();
        if random.random_ratio(1, 4) {
            // a second power cut directly after the first one
            drop(store);
            disk.cut_power(random);
            store = reopen(&disk);
        }
    }
    drop(store);
    disk.cut_power(random);
    let (mut store, stored) = reopen_after_cut(&disk, &stored, &waiting);
    assert!(store.chunk_store.fold_all().is_ok());
    drop(store);
    disk.cut_power(random);
    assert!(contents_of(&reopen(&disk).chunk_store) == stored.loaded());
}

/// Opens the store after a power cut. The store has all stored groups, and may have the first ones
/// of the groups that were appended later.
fn reopen_after_cut(disk: &FakeDisk, stored: &StoreModel, waiting: &[(Group, StoreModel)]) -> (TestStore, StoreModel) {
    let store = reopen(disk);
    let found = contents_of(&store.chunk_store);
    let mut candidates = std::iter::once(stored).chain(waiting.iter().map(|(_, newer)| newer));
    let model = candidates.find(|model| model.loaded() == found);
    let model = model.unwrap_or_else(|| {
        panic!("the content matches neither the stored nor the appended groups: {}", difference(&found, &stored.loaded()))
    });
    (store, model.clone())
}

/// Folds up to twice: everything, what is due, or a few chunks.
pub(super) fn fold_randomly(chunk_store: &mut ChunkStore<FakeDisk>, random: &mut StdRng) -> Result<(), EngineError> {
    for _ in 0..random.random_range(0..3) {
        match random.random_range(0..6) {
            0 => chunk_store.fold_all()?,
            // independent of the clock, so that a seed repeats the sequence
            1 => chunk_store.fold_due(Instant::now(), Instant::now() + LONG)?,
            _ => chunk_store.fold_some(random.random_range(0..3))?,
        }
    }
    Ok(())
}

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// Returns a disk with three groups that are only in the log.
fn three_groups() -> (FakeDisk, StoreModel) {
    let (disk, mut model) = (FakeDisk::default(), StoreModel::default());
    let mut store = TestStore::create(&disk);
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..3 {
        let group = random_group(&mut random, &mut model, 6);
        model.apply(&group);
        store.commit(&group).unwrap();
    }
    (disk, model)
}

#[test]
fn only_due_chunks_are_folded() {
    let (now, later) = (Instant::now(), Instant::now() + LONG);
    let dirty_after = |used_permille: u64, committed_megabytes: u64, (began, until): (Instant, Instant)| {
        let (disk, model) = three_groups();
        let mut chunk_store = reopen(&disk).chunk_store;
        // as if the log had this many more bytes
        chunk_store.add_unfolded(u64::MAX, LOG_FULL_BYTES * used_permille / 1000);
        chunk_store.set_committed_bytes(committed_megabytes << 20);
        chunk_store.fold_due(began, until).unwrap();
        assert!(contents_of(&chunk_store) == model.loaded());
        chunk_store.dirty_chunks().0
    };
    let left = [(600, 64), (900, 0), (900, 4), (900, 64)].map(|(permille, megabytes)| dirty_after(permille, megabytes, (now, later)));
    assert_eq!(left, [3, 3, 2, 0]);
    assert_eq!(dirty_after(900, 64, (now - LONG, now)), 3, "the next group is due, and the minimum time for folding is over");
    assert_eq!(dirty_after(900, 64, (later, now)), 0, "the next group is due, and the minimum time is not over");
}

/// The log removes only the groups below the checkpoint.
#[test]
fn the_checkpoint_excludes_groups_that_a_chunk_lacks() {
    let (disk, model) = three_groups();
    let mut store = reopen(&disk);
    store.chunk_store.fold_some(1).unwrap();
    store.chunk_store.sync_with_checkpoint().unwrap();
    let (dirty, oldest) = store.chunk_store.dirty_chunks();
    assert!(
        dirty > 0 && oldest.is_some_and(|oldest| store.chunk_store.checkpoint_group() < oldest),
        "{oldest:?} is missing, folded up to {}",
        store.chunk_store.checkpoint_group()
    );
    store.log.remove_folded_files(store.chunk_store.checkpoint_group());
    drop(store);
    assert!(contents_of(&reopen(&disk).chunk_store) == model.loaded());
}

/// The log has a maximum size at any write rate.
#[test]
fn a_group_waits_while_the_log_exceeds_its_limit() {
    for (raw_bytes, is_folded) in [(LOG_RAW_BYTES_MAX + 1, true), (LOG_RAW_BYTES_MAX / 2, false)] {
        let (disk, mut model) = three_groups();
        let mut store = reopen(&disk);
        store.chunk_store.add_unfolded(u64::MAX, raw_bytes);
        let group = random_group(&mut StdRng::seed_from_u64(2), &mut model, 1);
        model.apply(&group);
        store.commit(&group).unwrap();
        assert!(contents_of(&store.chunk_store) == model.loaded());
        assert_eq!(store.chunk_store.dirty_chunks().1.is_none_or(|since| since > 3), is_folded, "{raw_bytes}");
    }
}

#[test]
fn a_lost_chunk_is_reported() {
    let (disk, _) = three_groups();
    reopen(&disk).chunk_store.fold_all().unwrap();
    for slot in disk.list_slots().unwrap() {
        let low = disk.get(slot).unwrap().map(|value| object::decode_part(slot, value).unwrap().head.low);
        if slot.kind == SlotKind::Chunk && low.as_deref() == Some(b"e") {
            disk.change(slot, |_| None);
        }
    }
    let (_, damage, _) = recover(Arc::new(disk.clone()), read_log(&disk).unwrap(), u64::MAX).unwrap();
    let [(low, _)] = damage.lost.as_slice() else { panic!("{damage:?}") };
    assert_eq!(**low, *b"e");
    drop(damage);
    // the recovery above did not repair the store
    let (_, loaded, losses) = TestStore::open(&disk).unwrap();
    assert!(loaded.cursors.is_empty() && !losses.is_empty(), "{losses:?}");
    let (_, loaded, losses) = TestStore::open(&disk).unwrap();
    assert!(loaded.cursors.is_empty() && losses.is_empty(), "{losses:?}");
}

/// After a kill, the end of the log is only in the kernel. A start syncs it before it is folded.
#[test]
fn groups_that_a_kill_left_unsynced_are_synced_before_folding() {
    for seed in 0..20 {
        let (disk, mut model) = three_groups();
        let store = reopen(&disk);
        let mut group = random_group(&mut StdRng::seed_from_u64(9), &mut model, 6);
        model.apply(&group);
        store.log.append(&mut group);
        drop(store);
        let mut store = reopen(&disk);
        store.chunk_store.fold_all().unwrap();
        drop(store);
        disk.cut_power(&mut StdRng::seed_from_u64(seed));
        assert!(contents_of(&reopen(&disk).chunk_store) == model.loaded());
    }
}
