//! The log alone, after kills, torn writes, errors and truncations.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::power_cuts::FakeDisk;
use crate::store::encoding::group::KeyChanges;
use crate::store::encoding::stored_value::{KeyBytes, StoredValue};
use crate::store::log::WriteAheadLog;
use crate::store::log::files::{LogDirectory, LogFiles};
use crate::store::log::frames::read_log;
use crate::store::log::recovered_log::RecoveredLog;
use crate::store::log::synced_mark::SyncedMark;

pub(super) const ID: u64 = 77;

/// Returns the changes of group `number`: a key of its own, and a key that all groups change.
pub(super) fn changes(number: u64) -> KeyChanges {
    let pair = |key: String, value: Vec<u8>| (KeyBytes::from(key.into_bytes()), Some(StoredValue::Item(value.into())));
    [pair(format!("x{number:05}"), vec![7; 40]), pair("y".to_owned(), number.to_le_bytes().to_vec())].into()
}

pub(super) fn merged(numbers: std::ops::RangeInclusive<u64>) -> KeyChanges {
    numbers.flat_map(changes).collect()
}

pub(super) fn create_log(files: Arc<dyn LogFiles>, first: u64) -> WriteAheadLog {
    let mut recovered = RecoveredLog::create(ID, first, &*files).unwrap();
    recovered.truncate_and_sync(&*files).unwrap();
    let log = WriteAheadLog::new_closed(files);
    log.open(&recovered);
    log
}

/// Returns the first and last group that a start recovers, and the state after them.
pub(super) fn read_back(files: &dyn LogFiles) -> (u64, u64, BTreeMap<Vec<u8>, Vec<u8>>) {
    let recovered = RecoveredLog::from_contents(ID, 0, read_log(files).unwrap());
    let (batches, unreadable) = recovered.decode_batches(0, u64::MAX).unwrap();
    assert_eq!(unreadable, 0);
    let pairs = batches.iter().flat_map(|batch| batch.block.iter().map(|(key, value)| (key.to_vec(), value.unwrap().to_vec())));
    (recovered.first_group, recovered.last_group, pairs.collect())
}

pub(super) fn state_after(up_to: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    merged(1..=up_to).into_iter().map(|(key, value)| (key.to_vec(), value.unwrap().body().to_vec())).collect()
}

pub(super) fn append(log: &WriteAheadLog, numbers: std::ops::RangeInclusive<u64>) {
    numbers.for_each(|number| assert_eq!(log.append_changes(&changes(number)), number));
}

#[test]
fn appended_groups_survive_a_kill_before_they_are_synced() {
    let directory = tempfile::tempdir().unwrap();
    let files: Arc<dyn LogFiles> = Arc::new(LogDirectory::in_data_directory(directory.path()));
    let log = create_log(Arc::clone(&files), 1);
    append(&log, 1..=5);
    assert_eq!(read_back(&*files), (1, 5, state_after(5)));
    // the next start continues after the last group
    let mut recovered = RecoveredLog::from_contents(ID, 0, read_log(&*files).unwrap());
    recovered.truncate_and_sync(&*files).unwrap();
    let next = WriteAheadLog::new_closed(Arc::clone(&files));
    next.open(&recovered);
    append(&next, 6..=7);
    assert_eq!(read_back(&*files), (1, 7, state_after(7)));
}

pub(super) fn log_files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory.join("log")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Wherever the log is cut, the frames before the cut are recovered. Nothing was synced, so no loss
/// is reported.
#[test]
fn a_torn_frame_ends_the_log_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let files: Arc<dyn LogFiles> = Arc::new(LogDirectory::in_data_directory(directory.path()));
    append(&create_log(Arc::clone(&files), 1), 1..=3);
    let path = log_files(directory.path()).pop().unwrap();
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        for noise in [0, 40] {
            fs::write(&path, [&whole[..length], &vec![3; noise]].concat()).unwrap();
            let (_, last, found) = read_back(&*files);
            assert!(last < 3 && found == state_after(last), "cut at {length}: {last}");
            assert_eq!(damage_messages(&*files), Vec::<String>::new(), "cut at {length}");
        }
    }
}

pub(super) fn damage_messages(files: &dyn LogFiles) -> Vec<String> {
    RecoveredLog::from_contents(ID, 0, read_log(files).unwrap()).damage_messages(u64::MAX)
}

/// A flipped bit in a synced log costs at most one group, and is reported.
#[test]
fn a_damaged_frame_costs_one_group_and_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    // for the synced mark
    fs::create_dir(directory.path().join("store")).unwrap();
    let files: Arc<dyn LogFiles> = Arc::new(LogDirectory::in_data_directory(directory.path()));
    let log = create_log(Arc::clone(&files), 1);
    append(&log, 1..=4);
    log.persist(4, &merged(1..=4)).unwrap();
    assert_eq!(damage_messages(&*files), Vec::<String>::new());
    let path = log_files(directory.path()).pop().unwrap();
    let whole = fs::read(&path).unwrap();
    // without the epoch, no frame can be read
    let epoch = 10..18;
    for bit in (0..whole.len() * 8).filter(|bit| !epoch.contains(&(bit / 8))) {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, damaged).unwrap();
        let (_, _, found) = read_back(&*files);
        let lost: Vec<u64> = (1..=4).filter(|number| !found.contains_key(format!("x{number:05}").as_bytes())).collect();
        assert!(lost.len() <= 1, "bit {bit}: {lost:?}");
        let damage = damage_messages(&*files);
        assert_eq!(damage.len(), 1, "bit {bit}: {damage:?}");
        let expected = lost.first().map(|number| format!("its log is damaged, and changes of group {number} are lost"));
        assert!(expected.is_none_or(|expected| damage[0] == expected), "bit {bit}: {damage:?}");
        assert!(
            found.iter().all(|(key, value)| *key == b"y" || state_after(4).get(key) == Some(value)),
            "bit {bit}: a value that was never written"
        );
    }
}

/// Damaged frames in a row cost only themselves, even if their lengths are unknown.
#[test]
fn frames_after_a_damaged_range_are_used() {
    let disk = FakeDisk::default();
    let log = create_log(Arc::new(disk.clone()), 1);
    append(&log, 1..=3);
    let from = disk.log().pop_last().unwrap().1.len();
    append(&log, 4..=9);
    let to = disk.log().pop_last().unwrap().1.len();
    append(&log, 10..=12);
    log.persist(12, &merged(1..=12)).unwrap();
    for noise in [0, 3, 0x7f, 0xff] {
        let damaged = disk.clone_log();
        let file = *damaged.log().keys().next_back().unwrap();
        damaged.change_log(file, |mut bytes| {
            bytes[from..to].fill(noise);
            Some(bytes)
        });
        assert_eq!(damage_messages(&damaged), ["its log is damaged, and changes of groups 4 to 9 are lost"]);
        let (_, last, found) = read_back(&damaged);
        assert_eq!((last, found.len()), (12, 7), "the frames before and after the damage are used");
    }
}

/// Synced groups are reported as lost, whatever happened to their file.
#[test]
fn lost_synced_groups_and_unreadable_files_are_reported() {
    let disk = FailingDisk::default();
    let log = create_log(Arc::new(disk.clone()), 1);
    append(&log, 1..=2);
    log.begin_epoch(crate::model::Epoch(8));
    append(&log, 3..=4);
    log.begin_epoch(crate::model::Epoch(9));
    append(&log, 5..=6);
    log.persist(6, &merged(1..=6)).unwrap();
    assert_eq!(damage_messages(&disk), Vec::<String>::new());
    let numbers: Vec<u64> = disk.list_numbers().unwrap();
    let lost = |groups: &str| format!("its log is damaged, and changes of groups {groups} are lost");
    // all files except the first one, which has no frames
    for (number, groups) in [(numbers[1], "1 to 2"), (numbers[2], "3 to 4"), (numbers[3], "5 to 6")] {
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::Other] {
            *disk.unreadable.lock().unwrap() = Some((number, kind));
            let reason = format!("file {number} of its log cannot be read ({})", io::Error::from(kind));
            let mut expected = vec![reason, lost(groups)];
            let mut found = damage_messages(&disk);
            expected.sort();
            found.sort();
            assert_eq!(found, expected);
        }
        // exhausted resources say nothing about the file
        *disk.unreadable.lock().unwrap() = Some((number, io::ErrorKind::OutOfMemory));
        assert_eq!(read_log(&disk).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        *disk.unreadable.lock().unwrap() = None;
        // a missing or an empty file
        for left in [None, Some(Vec::new())] {
            let without = disk.disk.clone_log();
            without.change_log(number, |_| left.clone());
            assert_eq!(damage_messages(&without), [lost(groups)], "{number}");
        }
    }
    // the newest file may have groups that are not known to be synced
    append(&log, 7..=7);
    log.begin_epoch(crate::model::Epoch(10));
    append(&log, 8..=8);
    let newest = disk.list_numbers().unwrap().pop().unwrap();
    *disk.unreadable.lock().unwrap() = Some((newest, io::ErrorKind::PermissionDenied));
    assert_eq!(damage_messages(&disk).len(), 1, "{:?}", damage_messages(&disk));
    *disk.unreadable.lock().unwrap() = None;
    // without a mark, the synced groups are unknown
    let unknown = disk.disk.clone_log();
    unknown.remove_marks();
    assert_eq!(damage_messages(&unknown), Vec::<String>::new());
    unknown.change_log(numbers[2], |_| None);
    assert_eq!(damage_messages(&unknown), [lost("3 to 4")]);
}

/// Returns the length of a file without frames.
pub(super) fn empty_file_length() -> usize {
    let disk = FakeDisk::default();
    create_log(Arc::new(disk.clone()), 1);
    disk.log().pop_last().unwrap().1.len()
}

#[test]
fn frames_of_other_starts_and_stores_are_ignored() {
    let disks: Vec<FakeDisk> = (0..2).map(|_| FakeDisk::default()).collect();
    for disk in &disks {
        append(&create_log(Arc::new(disk.clone()), 1), 1..=2);
    }
    let ((file, whole), (_, other)) = (disks[0].log().pop_last().unwrap(), disks[1].log().pop_last().unwrap());
    // appends the frames of the other log, which have another epoch
    let head = empty_file_length();
    disks[0].change_log(file, |_| Some([&whole[..], &other[head..]].concat()));
    assert_eq!(read_back(&disks[0]).1, 2);
    let recovered = RecoveredLog::from_contents(ID + 1, 0, read_log(&disks[0]).unwrap());
    assert!(recovered.is_missing());
}

/// A disk whose next writes or syncs fail, and which can run code during a sync.
#[derive(Debug, Clone, Default)]
struct FailingDisk {
    disk: FakeDisk,
    appends_fail: Arc<AtomicBool>,
    syncs_fail: Arc<AtomicBool>,
    truncations_fail: Arc<AtomicBool>,
    sync_count: Arc<AtomicUsize>,
    /// A file that cannot be read, and the error.
    unreadable: Arc<Mutex<Option<(u64, io::ErrorKind)>>>,
    /// Code to run during the next sync.
    during_sync: Arc<Mutex<Option<DuringSync>>>,
}

struct DuringSync(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for DuringSync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DuringSync")
    }
}

impl FailingDisk {
    fn outcome(&self, fails: &AtomicBool) -> io::Result<()> {
        if fails.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl LogFiles for FailingDisk {
    fn list_numbers(&self) -> io::Result<Vec<u64>> {
        self.disk.list_numbers()
    }

    fn read(&self, file: u64) -> io::Result<Vec<u8>> {
        match *self.unreadable.lock().unwrap() {
            Some((number, kind)) if number == file => Err(kind.into()),
            _ => self.disk.read(file),
        }
    }

    fn create(&self, file: u64) -> io::Result<()> {
        self.disk.create(file)
    }

    fn append(&self, file: u64, bytes: &[u8]) -> io::Result<()> {
        let outcome = self.outcome(&self.appends_fail);
        self.disk.append(file, if outcome.is_ok() { bytes } else { &bytes[..bytes.len() / 2] })?;
        outcome
    }

    fn truncate(&self, file: u64, length: u64) -> io::Result<()> {
        self.outcome(&self.truncations_fail)?;
        self.disk.truncate(file, length)
    }

    fn remove(&self, file: u64) -> io::Result<()> {
        self.disk.remove(file)
    }

    fn sync(&self, file: u64) -> io::Result<()> {
        self.sync_count.fetch_add(1, Ordering::Relaxed);
        let during_sync = self.during_sync.lock().unwrap().take();
        if let Some(DuringSync(work)) = during_sync {
            work();
        }
        self.outcome(&self.syncs_fail)?;
        self.disk.sync(file)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.disk.sync_directory()
    }

    fn read_synced_mark(&self) -> Option<SyncedMark> {
        self.disk.read_synced_mark()
    }

    fn write_synced_mark(&self, mark: SyncedMark) -> io::Result<()> {
        self.disk.write_synced_mark(mark)
    }
}

/// After an error, with or without a working truncation, all later groups are written once and
/// nothing is missing.
#[test]
fn after_an_error_all_unsynced_groups_are_written_to_another_file() {
    for (fails_at_sync, truncation_fails) in [(false, false), (false, true), (true, false), (true, true)] {
        let disk = FailingDisk::default();
        let log = create_log(Arc::new(disk.clone()), 1);
        append(&log, 1..=2);
        log.persist(2, &merged(1..=2)).unwrap();
        append(&log, 3..=4);
        disk.truncations_fail.store(truncation_fails, Ordering::Relaxed);
        let fault = if fails_at_sync { &disk.syncs_fail } else { &disk.appends_fail };
        fault.store(true, Ordering::Relaxed);
        append(&log, 5..=5);
        assert!(fails_at_sync || log.is_failing());
        assert!(log.persist(5, &merged(3..=5)).is_err());
        append(&log, 6..=6);
        assert!(log.is_failing());
        if !truncation_fails {
            assert_eq!(read_back(&disk), (1, 2, state_after(2)), "only the synced groups are recovered");
        }
        fault.store(false, Ordering::Relaxed);
        // the next group can be appended again
        log.persist(6, &merged(3..=6)).unwrap();
        append(&log, 7..=7);
        assert!(!log.is_failing());
        assert_eq!(read_back(&disk), (1, 7, state_after(7)));
        // the old file may have any bytes after its synced part
        log.persist(7, &changes(7)).unwrap();
        let mut random = <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(1);
        disk.disk.cut_power(&mut random);
        assert_eq!(read_back(&disk), (1, 7, state_after(7)));
    }
}

/// Groups that could not be written are not overtaken by later ones.
#[test]
fn frames_are_written_in_order() {
    let disk = FailingDisk::default();
    let log = create_log(Arc::new(disk.clone()), 1);
    disk.appends_fail.store(true, Ordering::Relaxed);
    append(&log, 1..=3);
    disk.appends_fail.store(false, Ordering::Relaxed);
    append(&log, 4..=4);
    assert_eq!(read_back(&disk).1, 0);
    // the storing thread has only the first two groups so far
    log.persist(2, &merged(1..=2)).unwrap();
    append(&log, 5..=5);
    assert_eq!(read_back(&disk), (1, 2, state_after(2)));
    assert!(log.is_failing());
    log.persist(5, &merged(3..=5)).unwrap();
    append(&log, 6..=6);
    assert_eq!(read_back(&disk), (1, 6, state_after(6)));
}

/// The committer continues during a sync. Groups that it fails to write in that time must not count
/// as synced.
#[test]
fn groups_truncated_during_a_sync_do_not_count_as_synced() {
    let disk = FailingDisk::default();
    let log = Arc::new(create_log(Arc::new(disk.clone()), 1));
    append(&log, 1..=2);
    let (committer_log, append_fault) = (Arc::clone(&log), Arc::clone(&disk.appends_fail));
    *disk.during_sync.lock().unwrap() = Some(DuringSync(Box::new(move || {
        append_fault.store(true, Ordering::Relaxed);
        append(&committer_log, 3..=3);
        append_fault.store(false, Ordering::Relaxed);
    })));
    log.persist(2, &merged(1..=2)).unwrap();
    disk.disk.cut_power(&mut <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(3));
    let (_, last, found) = read_back(&disk);
    assert!(last >= 2 && found == state_after(last), "{last}");
}

#[test]
fn persisted_groups_are_synced_with_their_directory() {
    let disk = FailingDisk::default();
    let log = create_log(Arc::new(disk.clone()), 1);
    append(&log, 1..=1);
    let before = disk.sync_count.load(Ordering::Relaxed);
    log.persist(1, &changes(1)).unwrap();
    assert!(disk.sync_count.load(Ordering::Relaxed) > before);
    for seed in 0..20 {
        disk.disk.cut_power(&mut <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(seed));
        assert_eq!(read_back(&disk), (1, 1, state_after(1)));
    }
}
