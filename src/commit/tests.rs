//! The committer with a store behind it.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, thread};

use super::*;
use crate::feed::Retention;
use crate::model::{
    Change, ClusterId, ClusterName, FindingKind, FindingObject, Kind, MaxConnectedClusters, Object, Revision, Scope, SourceStamp,
};
use crate::store::{Store, StoreError};
use crate::wire::{self, Context};

/// Stores nothing, so that the disk has only the log.
struct DiscardingStore;

impl Persistence for DiscardingStore {
    fn persist(&self, _: &Group) -> Result<(), StoreError> {
        Ok(())
    }
}

fn key(number: u32) -> EntryKey {
    EntryKey::new(Kind::Identity, ClusterName::parse("paris").unwrap(), number.to_string())
}

/// Puts an identity, or deletes it.
fn change(number: u32, puts: bool) -> Command {
    let key = key(number);
    let scope = Scope { cluster: key.cluster.clone(), kind: Kind::Identity };
    let value = format!("k8s:app=a{number};k8s:io.cilium.k8s.policy.cluster=paris;").into_bytes();
    let context = Context { cluster: &scope.cluster, cluster_id: ClusterId(0), max_connected_clusters: MaxConnectedClusters::default() };
    let decoded = wire::decode(&key, &value, &context).map(Arc::new).map_err(Arc::from);
    let source = SourceStamp { mod_revision: Revision(7), ..SourceStamp::default() };
    let change = if puts { Change::Put { key, value: value.into(), decoded, source } } else { Change::Delete { key } };
    Command::Apply { scope, changes: vec![change], cursor: None }
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let path = file.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy_directory(&path, &target) } else { fs::copy(&path, target).map(drop).unwrap() }
    }
}

/// Each announced change is in the log (docs/develop/invariants.md, 6). A change that is announced
/// and then lost in a crash would stay in a subscriber's copy for ever.
#[tokio::test]
async fn published_changes_are_already_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(directory.path(), Duration::ZERO).unwrap();
    let feed = Feed::starting_at(Sequence(0), Retention { count_max: 100, age_max: Duration::from_secs(3600) });
    let published = MirrorSnapshot { view: View::starting_at(Sequence(0)), feed, epoch: Epoch(7), earlier_runs: Arc::default() };
    let (publisher, subscriber) = snapshot_channel(published.clone());
    let (persist, _worker) = persister(DiscardingStore, watch::channel(PersistState::Healthy).0);
    let committer = Committer::new(published, publisher, persist, Sequence(1 << 40)).with_log(Arc::clone(store.log()));
    let (commands, queue) = command_queue();
    let committer_thread = thread::spawn(move || committer.run(queue));
    for number in 0..20 {
        let (id, puts) = if number % 6 == 3 { (100 + number, true) } else { (number / 2, number % 2 == 0) };
        commands.send(change(id, puts)).await.unwrap();
        let expected = subscriber.wait_for(|published| published.feed.head() > Sequence(u64::from(number))).await;
        // the state that a kill would leave behind
        let copy = tempfile::tempdir().unwrap();
        copy_directory(directory.path(), copy.path());
        let (copied_store, opened) = Store::open(copy.path(), Duration::ZERO).unwrap();
        assert!(opened.losses.is_empty(), "{:?}", opened.losses);
        let loaded = copied_store.load().unwrap();
        assert_eq!(loaded.covered_sequence, expected.feed.head());
        let stored_records: Vec<(EntryKey, Sequence)> =
            loaded.records().into_iter().map(|record| (record.key, record.last_sequence)).collect();
        let lowest = EntryKey::lowest();
        let published_records = expected.view.records_from(&lowest).map(|record| (record.key.clone(), record.last_sequence));
        assert_eq!(stored_records, published_records.collect::<Vec<_>>());
        let deleted: Vec<Sequence> = loaded.tombstones.iter().map(|(sequence, _)| *sequence).collect();
        assert_eq!(deleted, expected.feed.tombstones_after(Sequence(0)).map(|(sequence, _)| sequence).collect::<Vec<_>>());
    }
    drop(commands);
    committer_thread.join().unwrap();
}

/// Keeps the groups that it is asked to store.
#[derive(Clone, Default)]
struct RecordingStore(Arc<Mutex<Vec<Group>>>);

impl Persistence for RecordingStore {
    fn persist(&self, group: &Group) -> Result<(), StoreError> {
        self.0.lock().unwrap().push(group.clone());
        Ok(())
    }
}

/// A first snapshot that keeps at most one tombstone.
fn empty_snapshot() -> MirrorSnapshot {
    let feed = Feed::starting_at(Sequence(0), Retention { count_max: 1, age_max: Duration::from_secs(3600) });
    MirrorSnapshot { view: View::starting_at(Sequence(0)), feed, epoch: Epoch(7), earlier_runs: Arc::default() }
}

/// Adds a finding, or resolves it.
fn finding(is_current: bool) -> Command {
    let finding = FindingObject::new(FindingKind::HeldEntries, "paris", ["paris"], "");
    let key = finding.stream_key();
    Command::Findings(vec![(key, is_current.then(|| Arc::new(Object::Finding(finding.into()))))])
}

/// The stored groups contain the entries, the tombstones, the floor raised by a dropped tombstone,
/// and each block of sequences before it is used. They contain no findings, because each start
/// computes those again.
#[tokio::test]
async fn committed_changes_are_passed_on_to_be_stored() {
    let (publisher, _subscriber) = snapshot_channel(empty_snapshot());
    let recorded = RecordingStore::default();
    let (persist, worker) = persister(recorded.clone(), watch::channel(PersistState::Healthy).0);
    let committer = Committer::new(empty_snapshot(), publisher, persist, Sequence(10));
    let (commands, queue) = command_queue();
    for command in [change(1, true), change(2, true), change(3, true), change(1, false), change(2, false), finding(true), finding(false)] {
        commands.send(command).await.unwrap();
    }
    drop(commands);
    let committer_thread = thread::spawn(move || committer.run(queue));
    worker.run();
    committer_thread.join().unwrap();
    let mut stored = Group::default();
    for mut newer in std::mem::take(&mut *recorded.0.lock().unwrap()) {
        newer.merge_older(stored);
        stored = newer;
    }
    let records: Vec<(EntryKey, bool)> = stored.records.into_iter().map(|(key, record)| (key, record.is_some())).collect();
    assert_eq!(records, [(key(1), false), (key(2), false), (key(3), true)]);
    // the second tombstone displaced the first one, and the finding's tombstone displaced the
    // second; no finding is stored
    assert!(stored.tombstones.values().all(Option::is_none), "{:?}", stored.tombstones);
    assert_eq!((stored.floor, stored.sequence_reserved), (Some(Sequence(5)), Some(Sequence(10 + RESERVED_BLOCK))));
}

/// Commands that wait together cost one write of the log, one snapshot and one signal.
#[tokio::test]
async fn waiting_commands_are_committed_together() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(directory.path(), Duration::ZERO).unwrap();
    let (publisher, subscriber) = snapshot_channel(empty_snapshot());
    let recorded = RecordingStore::default();
    let (persist, worker) = persister(recorded.clone(), watch::channel(PersistState::Healthy).0);
    let committer = Committer::new(empty_snapshot(), publisher, persist, Sequence(1 << 40)).with_log(Arc::clone(store.log()));
    let (commands, queue) = command_queue();
    for number in 0..30 {
        commands.send(change(number, true)).await.unwrap();
    }
    drop(commands);
    let committer_thread = thread::spawn(move || committer.run(queue));
    worker.run();
    committer_thread.join().unwrap();
    let groups: Vec<(u64, usize)> = recorded.0.lock().unwrap().iter().map(|group| (group.number, group.records.len())).collect();
    assert_eq!((groups, *subscriber.count.borrow(), *subscriber.head.borrow()), (vec![(1, 30)], 1, Sequence(30)));
}

/// A failing log is reported, because changes that are announced meanwhile would be lost in a
/// crash.
#[tokio::test]
async fn a_log_that_cannot_be_written_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(directory.path(), Duration::ZERO).unwrap();
    // a file exists in place of the log's directory
    fs::remove_dir_all(directory.path().join("log")).unwrap();
    fs::write(directory.path().join("log"), b"").unwrap();
    let (publisher, subscriber) = snapshot_channel(empty_snapshot());
    let (persist, _worker) = persister(DiscardingStore, watch::channel(PersistState::Healthy).0);
    let committer = Committer::new(empty_snapshot(), publisher, persist, Sequence(1 << 40)).with_log(Arc::clone(store.log()));
    let (commands, queue) = command_queue();
    let committer_thread = thread::spawn(move || committer.run(queue));
    commands.send(change(1, true)).await.unwrap();
    subscriber.wait_for(|published| published.feed.head() > Sequence(0)).await;
    assert!(subscriber.marks().log_fails.load(Ordering::Relaxed));
    drop(commands);
    committer_thread.join().unwrap();
}
