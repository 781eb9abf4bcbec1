//! The writer with a store behind it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, thread};

use super::*;
use crate::feed::Retention;
use crate::model::{Change, ClusterId, ClusterName, Kind, MaxConnectedClusters, Revision, Scope, SourceStamp};
use crate::store::{Store, StoreError};
use crate::wire::{self, Context};

/// Stores nothing: what is on disk is what the log had before anybody heard of it.
struct Nowhere;

impl Persistence for Nowhere {
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

/// The case to beat (docs/invariants.md, 6): what was announced, and lost in a crash, stays with a reader for ever.
#[tokio::test]
async fn what_readers_see_is_in_the_log_already() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(directory.path(), Duration::ZERO).unwrap();
    let feed = Feed::starting_at(Sequence(0), Retention { count_max: 100, age_max: Duration::from_secs(3600) });
    let published = Published { view: View::starting_at(Sequence(0)), feed, epoch: Epoch(7), earlier: Arc::default() };
    let (publisher, subscriber) = publication(published.clone());
    let (persist, _worker) = persister(Nowhere, watch::channel(PersistState::Healthy).0);
    let committer = Committer::new(published, publisher, persist, Sequence(1 << 40)).with_log(Arc::clone(store.log()));
    let (commands, queue) = command_queue();
    let writer = thread::spawn(move || committer.run(queue));
    for number in 0..20 {
        let (id, puts) = if number % 6 == 3 { (100 + number, true) } else { (number / 2, number % 2 == 0) };
        commands.send(change(id, puts)).await.unwrap();
        let expected = subscriber.wait_for(|published| published.feed.head() > Sequence(u64::from(number))).await;
        // as a kill would leave it
        let copy = tempfile::tempdir().unwrap();
        copy_directory(directory.path(), copy.path());
        let (killed, opened) = Store::open(copy.path(), Duration::ZERO).unwrap();
        assert!(opened.losses.is_empty(), "{:?}", opened.losses);
        let loaded = killed.load().unwrap();
        assert_eq!(loaded.covered, expected.feed.head());
        let found: Vec<(EntryKey, Sequence)> = loaded.records().into_iter().map(|record| (record.key, record.last_sequence)).collect();
        let lowest = EntryKey::lowest();
        let told = expected.view.records_from(&lowest).map(|record| (record.key.clone(), record.last_sequence));
        assert_eq!(found, told.collect::<Vec<_>>());
        let gone: Vec<Sequence> = loaded.tombstones.iter().map(|(sequence, _)| *sequence).collect();
        assert_eq!(gone, expected.feed.gone_after(Sequence(0)).map(|(sequence, _)| sequence).collect::<Vec<_>>());
    }
    drop(commands);
    writer.join().unwrap();
}
