//! The storing half with stores that fail, are slow or report their calls.
use std::path::Path;
use std::sync::mpsc;

use super::*;
use crate::model::{ClusterName, ClusterRecord, EntryKey, Kind, Record, Sequence, SourceStamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreCall {
    Persist,
    TrimMemory,
}

struct ReportingStore(mpsc::SyncSender<StoreCall>);

impl Persistence for ReportingStore {
    fn persist(&self, _: &Group) -> Result<(), StoreError> {
        let _ = self.0.try_send(StoreCall::Persist);
        Ok(())
    }

    fn trim_memory(&self) {
        let _ = self.0.try_send(StoreCall::TrimMemory);
    }
}

#[test]
fn an_idle_store_trims_its_memory() {
    // memory is trimmed each second, for a minute after the start and for a minute after the group
    let (calls, received) = mpsc::sync_channel(128);
    let (persister, worker) = persister(ReportingStore(calls), watch::channel(PersistState::Healthy).0);
    let worker = std::thread::spawn(move || worker.run());
    assert_eq!(received.recv(), Ok(StoreCall::TrimMemory));
    persister.push(group(1));
    while received.recv().unwrap() != StoreCall::Persist {}
    assert_eq!(received.recv(), Ok(StoreCall::TrimMemory));
    persister.finish();
    worker.join().unwrap();
}

/// A group of this number of changes.
fn group(count: usize) -> Group {
    let clusters = (0..count).map(|number| (ClusterName::parse(&format!("c{number}")).unwrap(), Some(ClusterRecord::default())));
    Group { clusters: clusters.collect(), ..Group::default() }
}

#[test]
fn few_changes_wait_longer_and_a_failed_group_waits_a_second() {
    let left = |waiting: &PersistQueue, waited_ms| waiting.time_left(Duration::from_millis(waited_ms)).map(|left| left.as_millis());
    let times_left = |count, failing| {
        let mut waiting = PersistQueue { failing, ..PersistQueue::default() };
        waiting.pending.add(group(count));
        [0, 24, 25, 39, 40, 1_000].map(|waited_ms| left(&waiting, waited_ms))
    };
    assert_eq!(times_left(CALM_CHANGES_MAX - 1, false), [Some(25), Some(1), Some(15), Some(1), None, None]);
    assert_eq!(times_left(CALM_CHANGES_MAX, false), [Some(25), Some(1), None, None, None, None]);
    assert_eq!(times_left(CALM_CHANGES_MAX, true), [Some(1_000), Some(976), Some(975), Some(961), Some(960), None]);
}

/// A change of one key with this number of bytes.
fn large_change(number: u64, length: usize) -> Group {
    let key = EntryKey::new(Kind::Service, ClusterName::parse("paris").unwrap(), format!("shop/{number}"));
    let record = Record {
        key: key.clone(),
        value: vec![0; length].into(),
        good_value: None,
        object: None,
        rejection: None,
        source: SourceStamp::default(),
        create_sequence: Sequence(1),
        last_sequence: Sequence(number),
        version: 1,
        generation: 1,
    };
    Group { records: [(key, Some(Arc::new(record)))].into(), covered_sequence: Some(Sequence(number)), ..Group::default() }
}

/// Waits for the result of each attempt from the test, and reports the size of the group.
struct ScriptedStore(mpsc::Receiver<Result<(), StoreError>>, mpsc::SyncSender<usize>);

impl Persistence for ScriptedStore {
    fn persist(&self, group: &Group) -> Result<(), StoreError> {
        let _ = self.1.send(group.records.values().flatten().map(|record| record.value.len()).sum());
        self.0.recv().unwrap_or(Ok(()))
    }
}

fn disk_full() -> StoreError {
    StoreError::NotWritable { directory: "/".into(), cause: std::io::ErrorKind::StorageFull.into() }
}

/// Returns whether a thread sleeps, by the field after its name in `/proc/…/stat` (proc(5)).
fn sleeps(thread: &Path) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(thread).join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

#[test]
fn the_committer_waits_while_a_slow_store_is_too_far_behind() {
    let many = Group { tombstones: (0..=WAITING_CHANGES_MAX as u64).map(|number| (Sequence(number), None)).collect(), ..Group::default() };
    for (oversized_group, bytes) in [(many, 0), (large_change(1, WAITING_BYTES_MAX + 1), WAITING_BYTES_MAX + 1)] {
        let ((outcomes, received), (calls, attempts)) = (mpsc::sync_channel(1), mpsc::sync_channel(1));
        let (persister, worker) = persister(ScriptedStore(received, calls), watch::channel(PersistState::Healthy).0);
        let worker = std::thread::spawn(move || worker.run());
        persister.push(large_change(0, 1));
        assert_eq!(attempts.recv(), Ok(1));
        // the store does not answer; one more group is accepted, whatever its size
        persister.push(oversized_group);
        let (threads, thread) = mpsc::sync_channel(1);
        let committer = std::thread::spawn(move || {
            threads.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
            persister.push(large_change(2, 3));
        });
        let thread = thread.recv().unwrap();
        // the thread has nothing else to wait for
        while !sleeps(&thread) {
            assert!(!committer.is_finished(), "the committer does not wait");
            std::thread::yield_now();
        }
        for stored in [bytes, 3] {
            outcomes.send(Ok(())).unwrap();
            assert_eq!(attempts.recv(), Ok(stored), "a change after the oversized group is stored in a later group");
        }
        outcomes.send(Ok(())).unwrap();
        committer.join().unwrap();
        worker.join().unwrap();
    }
}

#[test]
fn storing_stops_when_a_failing_store_is_too_many_bytes_behind() {
    let ((outcomes, received), (calls, attempts)) = (mpsc::sync_channel(1), mpsc::sync_channel(1));
    let (state, states) = watch::channel(PersistState::Healthy);
    let (persister, worker) = persister(ScriptedStore(received, calls), state);
    let worker = std::thread::spawn(move || worker.run());
    persister.push(large_change(0, 1));
    attempts.recv().unwrap();
    outcomes.send(Err(disk_full())).unwrap();
    // the next attempt comes after a second, or when too much waits
    let value: Arc<[u8]> = vec![0; 64 << 20].into();
    let mut number = 0;
    let mut highest = 0;
    while !matches!(*states.borrow(), PersistState::Stopped { .. }) {
        number += 1;
        let mut group = large_change(number, 1);
        for record in group.records.values_mut().flatten() {
            // all records share one value, so that the test needs little memory
            *record = Arc::new(Record { value: Arc::clone(&value), ..Record::clone(record) });
        }
        highest = highest.max(persister.push(group).1);
        if attempts.try_recv().is_ok() {
            outcomes.send(Err(disk_full())).unwrap();
        }
        assert!(number < 1_000_000, "storing has not stopped although {highest} bytes wait");
        std::thread::yield_now();
    }
    assert!(highest > WAITING_BYTES_WHILE_FAILING_MAX);
    assert_eq!(persister.push(large_change(1, 1)), (0, 0));
    drop(persister);
    worker.join().unwrap();
}

/// Creates a queue of changes that use few bytes.
fn queue_of_small_changes(count: usize) -> PersistQueue {
    let mut waiting = PersistQueue::default();
    waiting.pending.add(Group { tombstones: (0..count as u64).map(|number| (Sequence(number), None)).collect(), ..Group::default() });
    waiting
}

#[test]
fn waiting_changes_are_bounded_in_number() {
    assert!(!queue_of_small_changes(WAITING_CHANGES_MAX).is_full() && queue_of_small_changes(WAITING_CHANGES_MAX + 1).is_full());
    assert!(
        !queue_of_small_changes(WAITING_WHILE_FAILING_MAX).exceeds_failing_limit()
            && queue_of_small_changes(WAITING_WHILE_FAILING_MAX + 1).exceeds_failing_limit()
    );
}

#[test]
fn waiting_changes_are_bounded_in_bytes() {
    let queue_of_bytes = |length| {
        let mut waiting = PersistQueue::default();
        waiting.pending.add(large_change(1, length));
        waiting
    };
    assert!(!queue_of_bytes(WAITING_BYTES_MAX / 2).is_full() && queue_of_bytes(WAITING_BYTES_MAX + 1).is_full());
}

#[test]
fn a_full_log_is_reported_as_stopped_until_the_engine_accepts_changes() {
    let (state, states) = watch::channel(PersistState::Healthy);
    let (persister, worker) = persister(ReportingStore(mpsc::sync_channel(1).0), state);
    let full = StoreError::LogFull { directory: "/".into(), cause: "no space left".to_owned() };
    worker.record_failure(group(1), &full);
    assert_eq!(*states.borrow(), PersistState::Stopped { error: full.to_string() });
    assert_eq!(persister.push(group(2)), (2, 2 * 200), "new changes are kept and tried again");
    worker.record_failure(group(1), &disk_full());
    assert_eq!(*states.borrow(), PersistState::Failing { error: disk_full().to_string() });
    worker.publish_outcome(Ok(()));
    assert_eq!(*states.borrow(), PersistState::Healthy);
}

#[test]
fn unstored_changes_wait_together_with_new_ones() {
    let (persister, worker) = persister(ReportingStore(mpsc::sync_channel(1).0), watch::channel(PersistState::Healthy).0);
    worker.record_failure(group(3), &disk_full());
    assert_eq!(persister.push(group(1)), (3, 3 * 200));
}

/// Fails to be maintained, and is tidy after two calls of `tidy`.
#[derive(Default)]
struct UntidyStore(Mutex<Vec<&'static str>>);

impl Persistence for UntidyStore {
    fn persist(&self, _: &Group) -> Result<(), StoreError> {
        self.0.lock().unwrap().push("persist");
        Ok(())
    }

    fn maintain(&self, _: Instant) -> Result<(), StoreError> {
        self.0.lock().unwrap().push("maintain");
        Err(disk_full())
    }

    fn tidy(&self) -> Result<bool, StoreError> {
        let mut calls = self.0.lock().unwrap();
        calls.push("tidy");
        Ok(calls.iter().filter(|call| **call == "tidy").count() < 2)
    }
}

#[test]
fn the_store_is_maintained_after_a_group_and_failures_are_reported() {
    let (state, states) = watch::channel(PersistState::Healthy);
    let (persister, worker) = persister(UntidyStore::default(), state);
    persister.push(group(1));
    persister.finish();
    assert_eq!(*worker.run().0.lock().unwrap(), ["persist", "maintain"]);
    assert_eq!(*states.borrow(), PersistState::Failing { error: disk_full().to_string() });
}

#[test]
fn an_idle_store_is_tidied_until_done_or_until_a_group_comes() {
    let (persister, worker) = persister(UntidyStore::default(), watch::channel(PersistState::Healthy).0);
    assert!(!worker.tidy());
    assert_eq!(*worker.persistence.0.lock().unwrap(), ["tidy", "tidy"]);
    persister.push(group(1));
    assert!(worker.tidy(), "tidying is left for later");
    assert_eq!(worker.persistence.0.lock().unwrap().len(), 2);
}

/// Keeps the log messages.
#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_store_that_fails_repeatedly_is_logged_once_per_cause_and_minute() {
    let (_persister, worker) = persister(ReportingStore(mpsc::sync_channel(1).0), watch::channel(PersistState::Healthy).0);
    let (buffer, error) = (LogBuffer::default(), disk_full());
    let log = buffer.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || log.clone()).finish();
    tracing::subscriber::with_default(subscriber, || {
        for _ in 0..1_000 {
            worker.record_failure(group(1), &error);
            worker.record_success();
        }
    });
    let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
    let lines = |words: &str| text.lines().filter(|line| line.contains(words)).count();
    assert_eq!((lines("cannot write the store"), lines("can be written again")), (1, 1), "{text}");
}
