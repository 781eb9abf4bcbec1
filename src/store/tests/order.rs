//! The order in which a store writes, syncs, acknowledges and removes.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::{cluster, cluster_record, open};
use crate::store::log::files::{Directory, Files};
use crate::store::log::synced_mark::SyncedMark;
use crate::store::{Group, Store, StoreError};

/// What was asked of the log's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Create(u64),
    Append(u64),
    Sync(u64),
    SyncDirectory,
    NoteSynced(u64),
    Remove(u64),
}

/// The log's files on the disk, with what is asked of them, and a switch that makes syncs fail.
#[derive(Debug)]
struct Noting {
    files: Directory,
    asked: Mutex<Vec<Asked>>,
    syncs_fail: AtomicBool,
}

impl Noting {
    fn note(&self, asked: Asked) {
        self.asked.lock().unwrap().push(asked);
    }

    fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn sync_outcome(&self) -> io::Result<()> {
        if self.syncs_fail.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl Files for Noting {
    fn numbers(&self) -> io::Result<Vec<u64>> {
        self.files.numbers()
    }

    fn read(&self, file: u64) -> io::Result<Vec<u8>> {
        self.files.read(file)
    }

    fn create(&self, file: u64) -> io::Result<()> {
        self.note(Asked::Create(file));
        self.files.create(file)
    }

    fn append(&self, file: u64, bytes: &[u8]) -> io::Result<()> {
        self.note(Asked::Append(file));
        self.files.append(file, bytes)
    }

    fn cut(&self, file: u64, length: u64) -> io::Result<()> {
        self.files.cut(file, length)
    }

    fn remove(&self, file: u64) -> io::Result<()> {
        self.note(Asked::Remove(file));
        self.files.remove(file)
    }

    fn sync(&self, file: u64) -> io::Result<()> {
        self.sync_outcome()?;
        self.note(Asked::Sync(file));
        self.files.sync(file)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.sync_outcome()?;
        self.note(Asked::SyncDirectory);
        self.files.sync_directory()
    }

    fn synced(&self) -> Option<SyncedMark> {
        self.files.synced()
    }

    fn note_synced(&self, mark: SyncedMark) -> io::Result<()> {
        self.note(Asked::NoteSynced(mark.group));
        self.files.note_synced(mark)
    }
}

fn noting(directory: &Path) -> (Store, Arc<Noting>) {
    let (mut store, _) = open(directory);
    let noting = Arc::new(Noting { files: Directory::of(directory), asked: Mutex::default(), syncs_fail: AtomicBool::new(false) });
    Arc::get_mut(&mut store.log).unwrap().over(Arc::clone(&noting) as Arc<dyn Files>);
    (store, noting)
}

fn group(seed: u32) -> Group {
    Group { clusters: [(cluster("paris"), Some(cluster_record(seed)))].into(), ..Group::default() }
}

#[test]
fn a_group_is_acknowledged_behind_the_syncs_of_its_file_and_directory() {
    let directory = tempfile::tempdir().unwrap();
    let (store, noting) = noting(directory.path());
    store.apply(&group(1)).unwrap();
    let first = noting.take();
    let [Asked::Create(file), .., Asked::Sync(synced), Asked::SyncDirectory, Asked::NoteSynced(1)] = *first else { panic!("{first:?}") };
    assert_eq!(file, synced);
    // as the writer does it, which writes before anybody hears of it
    let mut second = group(2);
    store.log().append(&mut second);
    assert_eq!(noting.take(), [Asked::Append(file)]);
    store.apply(&second).unwrap();
    assert_eq!(noting.take(), [Asked::Sync(file), Asked::NoteSynced(2)], "the directory has it already");
}

#[test]
fn what_cannot_be_synced_is_neither_acknowledged_nor_taken_in() {
    let directory = tempfile::tempdir().unwrap();
    let (store, noting) = noting(directory.path());
    store.apply(&group(1)).unwrap();
    let taken_in = |store: &Store| {
        let inner = store.inner();
        (inner.taken_in, inner.chunk_store.as_ref().map(|chunk_store| chunk_store.group_number()))
    };
    let before = taken_in(&store);
    noting.syncs_fail.store(true, Ordering::Relaxed);
    assert!(matches!(store.apply(&group(2)), Err(StoreError::Engine { .. })));
    assert_eq!(taken_in(&store), before);
    noting.syncs_fail.store(false, Ordering::Relaxed);
    store.apply(&group(3)).unwrap();
    assert_eq!(taken_in(&store), (before.0 + 2, before.1.map(|number| number + 2)));
}

/// The chunks must have what a file has, durably, before it goes; and what comes after it must be in a file that is there for sure.
#[test]
fn a_file_of_the_log_is_removed_behind_the_sync_of_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let (store, noting) = noting(directory.path());
    store.apply(&group(1)).unwrap();
    store.settle(super::Duration::from_secs(60)).unwrap();
    let asked = noting.take();
    let removals: Vec<usize> = (0..asked.len()).filter(|at| matches!(asked[*at], Asked::Remove(_))).collect();
    assert!(!removals.is_empty(), "the log must begin anew: {asked:?}");
    for removed in removals {
        let created = asked[..removed].iter().rposition(|asked| matches!(asked, Asked::Create(_))).unwrap();
        let Asked::Create(next) = asked[created] else { unreachable!() };
        let between = &asked[created..removed];
        assert!(between.contains(&Asked::Sync(next)) && between.contains(&Asked::SyncDirectory), "{asked:?}");
    }
}
