//! Tests of the etcd API, and the in-memory mirror of one cluster that they use.

mod fairness;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::EtcdOptions;
use super::state::EtcdApi;
use crate::commit::{MirrorSnapshot, SnapshotPublisher, snapshot_channel};
use crate::feed::{Feed, Retention};
use crate::handle::{Handle, ProcessState, Reading};
use crate::model::{Change, ClusterName, Command, EntryKey, Epoch, Kind, Scope, Sequence, SourceStamp};
use crate::view::View;

pub(super) struct InMemoryMirror {
    published: MirrorSnapshot,
    publisher: SnapshotPublisher,
    handle: Handle,
}

impl InMemoryMirror {
    pub(super) fn new() -> Self {
        let start = Sequence(1);
        let feed = Feed::starting_at(start, Retention { age_max: Duration::from_secs(60), count_max: 100 });
        let published = MirrorSnapshot { view: View::starting_at(start), feed, epoch: Epoch(7), earlier_runs: Arc::default() };
        let (publisher, subscriber) = snapshot_channel(published.clone());
        let handle = Handle::new(ProcessState::without_clusters(watch::channel(Some(subscriber)).1));
        Self { published, publisher, handle }
    }

    /// Puts a value for an address of the cluster.
    pub(super) fn put(&mut self, name: &str, value: &[u8]) {
        let (cluster, now) = (ClusterName::parse("paris").unwrap(), SystemTime::now());
        let key = EntryKey::new(Kind::Ip, cluster.clone(), name);
        let change = Change::Put { key, value: value.into(), decoded: Err("not decoded".into()), source: SourceStamp::default() };
        let command = Command::Apply { scope: Scope { cluster, kind: Kind::Ip }, changes: vec![change], cursor: None };
        for announcement in self.published.view.apply_all(vec![command], now).announcements {
            self.published.feed.announce(announcement, now);
        }
        self.publisher.publish(self.published.clone());
    }

    pub(super) async fn reading(&self) -> Reading {
        self.handle.reading().await.unwrap()
    }
}
