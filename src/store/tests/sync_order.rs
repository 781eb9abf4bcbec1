//! The order of writes, syncs, acknowledgements and removals.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::{cluster, cluster_record, open};
use crate::store::log::files::{LogDirectory, LogFiles};
use crate::store::log::synced_mark::SyncedMark;
use crate::store::{Group, Store, StoreError};

/// An operation on the log's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileOperation {
    Create(u64),
    Append(u64),
    Sync(u64),
    SyncDirectory,
    WriteSyncedMark(u64),
    Remove(u64),
}

/// Log files on the disk that record their operations, and whose syncs can fail.
#[derive(Debug)]
struct RecordingFiles {
    files: LogDirectory,
    operations: Mutex<Vec<FileOperation>>,
    syncs_fail: AtomicBool,
}

impl RecordingFiles {
    fn record(&self, operation: FileOperation) {
        self.operations.lock().unwrap().push(operation);
    }

    fn take_operations(&self) -> Vec<FileOperation> {
        std::mem::take(&mut self.operations.lock().unwrap())
    }

    fn sync_outcome(&self) -> io::Result<()> {
        if self.syncs_fail.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl LogFiles for RecordingFiles {
    fn list_numbers(&self) -> io::Result<Vec<u64>> {
        self.files.list_numbers()
    }

    fn read(&self, file: u64) -> io::Result<Vec<u8>> {
        self.files.read(file)
    }

    fn create(&self, file: u64) -> io::Result<()> {
        self.record(FileOperation::Create(file));
        self.files.create(file)
    }

    fn append(&self, file: u64, bytes: &[u8]) -> io::Result<()> {
        self.record(FileOperation::Append(file));
        self.files.append(file, bytes)
    }

    fn truncate(&self, file: u64, length: u64) -> io::Result<()> {
        self.files.truncate(file, length)
    }

    fn remove(&self, file: u64) -> io::Result<()> {
        self.record(FileOperation::Remove(file));
        self.files.remove(file)
    }

    fn sync(&self, file: u64) -> io::Result<()> {
        self.sync_outcome()?;
        self.record(FileOperation::Sync(file));
        self.files.sync(file)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.sync_outcome()?;
        self.record(FileOperation::SyncDirectory);
        self.files.sync_directory()
    }

    fn read_synced_mark(&self) -> Option<SyncedMark> {
        self.files.read_synced_mark()
    }

    fn write_synced_mark(&self, mark: SyncedMark) -> io::Result<()> {
        self.record(FileOperation::WriteSyncedMark(mark.group));
        self.files.write_synced_mark(mark)
    }
}

fn open_recording(directory: &Path) -> (Store, Arc<RecordingFiles>) {
    let (mut store, _) = open(directory);
    let recording = Arc::new(RecordingFiles {
        files: LogDirectory::in_data_directory(directory),
        operations: Mutex::default(),
        syncs_fail: AtomicBool::new(false),
    });
    Arc::get_mut(&mut store.log).unwrap().replace_files(Arc::clone(&recording) as Arc<dyn LogFiles>);
    (store, recording)
}

fn group(seed: u32) -> Group {
    Group { clusters: [(cluster("paris"), Some(cluster_record(seed)))].into(), ..Group::default() }
}

#[test]
fn a_group_is_acknowledged_after_its_file_and_directory_are_synced() {
    let directory = tempfile::tempdir().unwrap();
    let (store, recording) = open_recording(directory.path());
    store.apply(&group(1)).unwrap();
    let first = recording.take_operations();
    let [FileOperation::Create(file), .., FileOperation::Sync(synced), FileOperation::SyncDirectory, FileOperation::WriteSyncedMark(1)] =
        *first
    else {
        panic!("{first:?}")
    };
    assert_eq!(file, synced);
    // like the committer, which writes before any reader sees the changes
    let mut second = group(2);
    store.log().append(&mut second);
    assert_eq!(recording.take_operations(), [FileOperation::Append(file)]);
    store.apply(&second).unwrap();
    assert_eq!(
        recording.take_operations(),
        [FileOperation::Sync(file), FileOperation::WriteSyncedMark(2)],
        "the directory is already synced"
    );
}

#[test]
fn a_group_that_cannot_be_synced_is_neither_acknowledged_nor_stored() {
    let directory = tempfile::tempdir().unwrap();
    let (store, recording) = open_recording(directory.path());
    store.apply(&group(1)).unwrap();
    let stored_group = |store: &Store| {
        let inner = store.inner();
        (inner.stored_group, inner.chunk_store.as_ref().map(|chunk_store| chunk_store.group_number()))
    };
    let before = stored_group(&store);
    recording.syncs_fail.store(true, Ordering::Relaxed);
    assert!(matches!(store.apply(&group(2)), Err(StoreError::Engine { .. })));
    assert_eq!(stored_group(&store), before);
    recording.syncs_fail.store(false, Ordering::Relaxed);
    store.apply(&group(3)).unwrap();
    assert_eq!(stored_group(&store), (before.0 + 2, before.1.map(|number| number + 2)));
}

/// Before a file is removed, its groups must be durable in the chunks, and the next file must be
/// durable.
#[test]
fn a_log_file_is_removed_after_the_next_one_is_synced() {
    let directory = tempfile::tempdir().unwrap();
    let (store, recording) = open_recording(directory.path());
    store.apply(&group(1)).unwrap();
    store.fold_within(super::Duration::from_secs(60)).unwrap();
    let operations = recording.take_operations();
    let removals: Vec<usize> = (0..operations.len()).filter(|at| matches!(operations[*at], FileOperation::Remove(_))).collect();
    assert!(!removals.is_empty(), "a new log must begin: {operations:?}");
    for removed in removals {
        let created = operations[..removed].iter().rposition(|operations| matches!(operations, FileOperation::Create(_))).unwrap();
        let FileOperation::Create(next) = operations[created] else { unreachable!() };
        let between = &operations[created..removed];
        assert!(between.contains(&FileOperation::Sync(next)) && between.contains(&FileOperation::SyncDirectory), "{operations:?}");
    }
}
