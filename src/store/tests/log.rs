//! The log by itself: what it holds after a kill, a torn write, an error and a cut.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::memory::Disk;
use crate::store::encoding::change::{Key, Value};
use crate::store::encoding::group::Changes;
use crate::store::log::Log;
use crate::store::log::files::{Directory, Files};
use crate::store::log::frames::read_all;
use crate::store::log::run::Run;
use crate::store::log::synced_mark::SyncedMark;

pub(super) const ID: u64 = 77;

/// What group `number` does: puts a key of its own, and one that all have.
pub(super) fn changes(number: u64) -> Changes {
    let pair = |key: String, value: Vec<u8>| (Key::from(key.into_bytes()), Some(Value::Item(value.into())));
    [pair(format!("x{number:05}"), vec![7; 40]), pair("y".to_owned(), number.to_le_bytes().to_vec())].into()
}

pub(super) fn merged(numbers: std::ops::RangeInclusive<u64>) -> Changes {
    numbers.flat_map(changes).collect()
}

pub(super) fn begin(files: Arc<dyn Files>, first: u64) -> Log {
    let mut run = Run::begin(ID, first, &*files).unwrap();
    run.clean(&*files).unwrap();
    let log = Log::closed(files);
    log.open(&run);
    log
}

/// The groups that a start finds, and the state after them.
pub(super) fn found(files: &dyn Files) -> (u64, u64, BTreeMap<Vec<u8>, Vec<u8>>) {
    let run = Run::of(ID, 0, read_all(files).unwrap());
    let (runs, unreadable) = run.changes(0, u64::MAX).unwrap();
    assert_eq!(unreadable, 0);
    let pairs = runs.iter().flat_map(|run| run.pairs.iter().map(|(key, value)| (key.to_vec(), value.unwrap().to_vec())));
    (run.first, run.last, pairs.collect())
}

pub(super) fn state(upto: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    merged(1..=upto).into_iter().map(|(key, value)| (key.to_vec(), value.unwrap().body().to_vec())).collect()
}

pub(super) fn append(log: &Log, numbers: std::ops::RangeInclusive<u64>) {
    numbers.for_each(|number| assert_eq!(log.append_changes(&changes(number)), number));
}

#[test]
fn what_was_appended_is_there_before_it_is_synced() {
    let directory = tempfile::tempdir().unwrap();
    let files: Arc<dyn Files> = Arc::new(Directory::of(directory.path()));
    let log = begin(Arc::clone(&files), 1);
    append(&log, 1..=5);
    assert_eq!(found(&*files), (1, 5, state(5)));
    // and the next start goes on behind it
    let mut run = Run::of(ID, 0, read_all(&*files).unwrap());
    run.clean(&*files).unwrap();
    let next = Log::closed(Arc::clone(&files));
    next.open(&run);
    append(&next, 6..=7);
    assert_eq!(found(&*files), (1, 7, state(7)));
}

pub(super) fn log_files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory.join("log")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Cut off anywhere: it ends before that. Nothing of it was synced, so nothing is lost.
#[test]
fn a_torn_frame_ends_the_run_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let files: Arc<dyn Files> = Arc::new(Directory::of(directory.path()));
    append(&begin(Arc::clone(&files), 1), 1..=3);
    let path = log_files(directory.path()).pop().unwrap();
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        for noise in [0, 40] {
            fs::write(&path, [&whole[..length], &vec![3; noise]].concat()).unwrap();
            let (_, last, found) = found(&*files);
            assert!(last < 3 && found == state(last), "cut at {length}: {last}");
            assert_eq!(damage(&*files), Vec::<String>::new(), "cut at {length}");
        }
    }
}

pub(super) fn damage(files: &dyn Files) -> Vec<String> {
    Run::of(ID, 0, read_all(files).unwrap()).damage(u64::MAX)
}

/// Any bit of a log that was synced is another: at most one group is lost, the others count, and it is reported.
#[test]
fn a_damaged_frame_costs_itself_and_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    // for the mark of what is synced
    fs::create_dir(directory.path().join("store")).unwrap();
    let files: Arc<dyn Files> = Arc::new(Directory::of(directory.path()));
    let log = begin(Arc::clone(&files), 1);
    append(&log, 1..=4);
    log.persist(4, &merged(1..=4)).unwrap();
    assert_eq!(damage(&*files), Vec::<String>::new());
    let path = log_files(directory.path()).pop().unwrap();
    let whole = fs::read(&path).unwrap();
    // of the epoch nothing can be read without it
    let epoch = 10..18;
    for bit in (0..whole.len() * 8).filter(|bit| !epoch.contains(&(bit / 8))) {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, damaged).unwrap();
        let (_, _, found) = found(&*files);
        let lost: Vec<u64> = (1..=4).filter(|number| !found.contains_key(format!("x{number:05}").as_bytes())).collect();
        assert!(lost.len() <= 1, "bit {bit}: {lost:?}");
        let damage = damage(&*files);
        assert_eq!(damage.len(), 1, "bit {bit}: {damage:?}");
        let expected = lost.first().map(|number| format!("its log is damaged, and changes of group {number} are lost"));
        assert!(expected.is_none_or(|expected| damage[0] == expected), "bit {bit}: {damage:?}");
        assert!(found.iter().all(|(key, value)| *key == b"y" || state(4).get(key) == Some(value)), "bit {bit}: what was never written");
    }
}

/// Many damaged frames in a row cost no more than themselves, also where nothing says how long they were.
#[test]
fn damage_of_many_frames_ends_at_the_next_whole_one() {
    let disk = Disk::default();
    let log = begin(Arc::new(disk.clone()), 1);
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
        assert_eq!(damage(&damaged), ["its log is damaged, and changes of groups 4 to 9 are lost"]);
        let (_, last, found) = found(&damaged);
        assert_eq!((last, found.len()), (12, 7), "the frames before and behind count");
    }
}

/// What a start wants to know is which groups were there, whatever the file that had them.
#[test]
fn an_end_that_was_synced_and_files_that_cannot_be_read_are_damage() {
    let disk = Failing::default();
    let log = begin(Arc::new(disk.clone()), 1);
    append(&log, 1..=2);
    log.begin_epoch(crate::model::Epoch(8));
    append(&log, 3..=4);
    log.begin_epoch(crate::model::Epoch(9));
    append(&log, 5..=6);
    log.persist(6, &merged(1..=6)).unwrap();
    assert_eq!(damage(&disk), Vec::<String>::new());
    let numbers: Vec<u64> = disk.numbers().unwrap();
    let lost = |groups: &str| format!("its log is damaged, and changes of groups {groups} are lost");
    // all but the first, which is the one without frames and needed by none
    for (number, groups) in [(numbers[1], "1 to 2"), (numbers[2], "3 to 4"), (numbers[3], "5 to 6")] {
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::Other] {
            *disk.unreadable.lock().unwrap() = Some((number, kind));
            let reason = format!("file {number} of its log cannot be read ({})", io::Error::from(kind));
            let mut expected = vec![reason, lost(groups)];
            let mut found = damage(&disk);
            expected.sort();
            found.sort();
            assert_eq!(found, expected);
        }
        // what the process lacks says nothing of the file
        *disk.unreadable.lock().unwrap() = Some((number, io::ErrorKind::OutOfMemory));
        assert_eq!(read_all(&disk).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        *disk.unreadable.lock().unwrap() = None;
        // and where it is gone or empty
        for left in [None, Some(Vec::new())] {
            let without = disk.disk.clone_log();
            without.change_log(number, |_| left.clone());
            assert_eq!(damage(&without), [lost(groups)], "{number}");
        }
    }
    // the newest may have more than is known to be synced
    append(&log, 7..=7);
    log.begin_epoch(crate::model::Epoch(10));
    append(&log, 8..=8);
    let newest = disk.numbers().unwrap().pop().unwrap();
    *disk.unreadable.lock().unwrap() = Some((newest, io::ErrorKind::PermissionDenied));
    assert_eq!(damage(&disk).len(), 1, "{:?}", damage(&disk));
    *disk.unreadable.lock().unwrap() = None;
    // of an earlier version nobody knows what was synced
    let unknown = disk.disk.clone_log();
    unknown.forget_marks();
    assert_eq!(damage(&unknown), Vec::<String>::new());
    unknown.change_log(numbers[2], |_| None);
    assert_eq!(damage(&unknown), [lost("3 to 4")]);
}

/// The bytes of a file without frames.
pub(super) fn begin_length() -> usize {
    let disk = Disk::default();
    begin(Arc::new(disk.clone()), 1);
    disk.log().pop_last().unwrap().1.len()
}

#[test]
fn a_frame_of_another_start_or_store_is_not_taken_for_one_of_this() {
    let disks: Vec<Disk> = (0..2).map(|_| Disk::default()).collect();
    for disk in &disks {
        append(&begin(Arc::new(disk.clone()), 1), 1..=2);
    }
    let ((file, whole), (_, other)) = (disks[0].log().pop_last().unwrap(), disks[1].log().pop_last().unwrap());
    // the frames of the other behind those of this one: they have another epoch
    let head = begin_length();
    disks[0].change_log(file, |_| Some([&whole[..], &other[head..]].concat()));
    assert_eq!(found(&disks[0]).1, 2);
    let run = Run::of(ID + 1, 0, read_all(&disks[0]).unwrap());
    assert!(run.is_missing());
}

/// A disk whose next writes or syncs fail, and on which a sync can be held up.
#[derive(Debug, Clone, Default)]
struct Failing {
    disk: Disk,
    appends: Arc<AtomicBool>,
    syncs: Arc<AtomicBool>,
    cuts: Arc<AtomicBool>,
    sync_count: Arc<AtomicUsize>,
    /// A file that cannot be read, and why.
    unreadable: Arc<Mutex<Option<(u64, io::ErrorKind)>>>,
    /// Done while the next sync is under way.
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
}

struct Meanwhile(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Failing {
    fn outcome(&self, fails: &AtomicBool) -> io::Result<()> {
        if fails.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl Files for Failing {
    fn numbers(&self) -> io::Result<Vec<u64>> {
        self.disk.numbers()
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
        let outcome = self.outcome(&self.appends);
        self.disk.append(file, if outcome.is_ok() { bytes } else { &bytes[..bytes.len() / 2] })?;
        outcome
    }

    fn cut(&self, file: u64, length: u64) -> io::Result<()> {
        self.outcome(&self.cuts)?;
        self.disk.cut(file, length)
    }

    fn remove(&self, file: u64) -> io::Result<()> {
        self.disk.remove(file)
    }

    fn sync(&self, file: u64) -> io::Result<()> {
        self.sync_count.fetch_add(1, Ordering::Relaxed);
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(Meanwhile(work)) = meanwhile {
            work();
        }
        self.outcome(&self.syncs)?;
        self.disk.sync(file)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.disk.sync_directory()
    }

    fn synced(&self) -> Option<SyncedMark> {
        self.disk.synced()
    }

    fn note_synced(&self, mark: SyncedMark) -> io::Result<()> {
        self.disk.note_synced(mark)
    }
}

/// Whatever fails, and whether the cut works then: what comes later is written whole, once, and nothing is missing.
#[test]
fn after_an_error_everything_above_what_is_synced_goes_into_another_file() {
    for (fails_at_sync, cut_fails) in [(false, false), (false, true), (true, false), (true, true)] {
        let disk = Failing::default();
        let log = begin(Arc::new(disk.clone()), 1);
        append(&log, 1..=2);
        log.persist(2, &merged(1..=2)).unwrap();
        append(&log, 3..=4);
        disk.cuts.store(cut_fails, Ordering::Relaxed);
        let fault = if fails_at_sync { &disk.syncs } else { &disk.appends };
        fault.store(true, Ordering::Relaxed);
        append(&log, 5..=5);
        assert!(fails_at_sync || log.is_failing());
        assert!(log.persist(5, &merged(3..=5)).is_err());
        append(&log, 6..=6);
        assert!(log.is_failing());
        if !cut_fails {
            assert_eq!(found(&disk), (1, 2, state(2)), "positions end at what is synced");
        }
        fault.store(false, Ordering::Relaxed);
        // one comes while what waits is written: it goes with the next
        log.persist(6, &merged(3..=6)).unwrap();
        append(&log, 7..=7);
        assert!(!log.is_failing());
        assert_eq!(found(&disk), (1, 7, state(7)));
        // the old file may have anything behind what was synced
        log.persist(7, &changes(7)).unwrap();
        let mut random = <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(1);
        disk.disk.cut_power(&mut random);
        assert_eq!(found(&disk), (1, 7, state(7)));
    }
}

/// Groups that got their numbers while nothing could be written are not passed by later ones.
#[test]
fn no_frame_is_written_before_those_in_front_of_it() {
    let disk = Failing::default();
    let log = begin(Arc::new(disk.clone()), 1);
    disk.appends.store(true, Ordering::Relaxed);
    append(&log, 1..=3);
    disk.appends.store(false, Ordering::Relaxed);
    append(&log, 4..=4);
    assert_eq!(found(&disk).1, 0);
    // the thread that stores has taken two of them so far
    log.persist(2, &merged(1..=2)).unwrap();
    append(&log, 5..=5);
    assert_eq!(found(&disk), (1, 2, state(2)));
    assert!(log.is_failing());
    log.persist(5, &merged(3..=5)).unwrap();
    append(&log, 6..=6);
    assert_eq!(found(&disk), (1, 6, state(6)));
}

/// The writer goes on while a sync is under way: an error that it meets then must not count as synced.
#[test]
fn what_is_cut_off_during_a_sync_is_not_taken_for_synced() {
    let disk = Failing::default();
    let log = Arc::new(begin(Arc::new(disk.clone()), 1));
    append(&log, 1..=2);
    let (of_writer, faults) = (Arc::clone(&log), Arc::clone(&disk.appends));
    *disk.meanwhile.lock().unwrap() = Some(Meanwhile(Box::new(move || {
        faults.store(true, Ordering::Relaxed);
        append(&of_writer, 3..=3);
        faults.store(false, Ordering::Relaxed);
    })));
    log.persist(2, &merged(1..=2)).unwrap();
    disk.disk.cut_power(&mut <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(3));
    let (_, last, found) = found(&disk);
    assert!(last >= 2 && found == state(last), "{last}");
}

#[test]
fn what_is_persisted_is_synced_with_its_directory() {
    let disk = Failing::default();
    let log = begin(Arc::new(disk.clone()), 1);
    append(&log, 1..=1);
    let before = disk.sync_count.load(Ordering::Relaxed);
    log.persist(1, &changes(1)).unwrap();
    assert!(disk.sync_count.load(Ordering::Relaxed) > before);
    for seed in 0..20 {
        disk.disk.cut_power(&mut <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(seed));
        assert_eq!(found(&disk), (1, 1, state(1)));
    }
}
