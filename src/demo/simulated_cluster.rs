//! One simulated cluster: a mirror that only the demo writes to, so that meshkeep's own etcd API
//! can serve it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rand::Rng;
use tokio::sync::watch;

use super::data::{self, SimulatedEntry};
use crate::commit::{MirrorSnapshot, SnapshotPublisher, snapshot_channel};
use crate::feed::{Feed, Retention};
use crate::handle::{Handle, ProcessState};
use crate::model::{
    Change, ClusterConfig, ClusterId, ClusterName, ClusterRecord, Command, Cursor, DeleteReason, EntryKey, Epoch, EtcdClusterId, Kind,
    Revision, Scope, Sequence, SourceStamp,
};
use crate::view::View;

/// Deletes are kept for an hour, which is as good as no compaction for a demo.
const RETENTION: Retention = Retention { age_max: Duration::from_secs(3_600), count_max: 100_000 };

/// Decoding error of all values: nothing in the demo decodes them.
const NOT_DECODED: &str = "not decoded";

/// A simulated cluster.
pub(super) struct SimulatedCluster {
    name: ClusterName,
    id: u32,
    pods: u32,
    handle: Handle,
    state: Mutex<SimulatedState>,
}

struct SimulatedState {
    published: MirrorSnapshot,
    publisher: SnapshotPublisher,
    version: u32,
    /// True if the cluster lost its data.
    is_lost: bool,
}

impl SimulatedCluster {
    pub(super) fn new(name: ClusterName, id: u32, pods: u32) -> Self {
        let start = Sequence(1);
        let feed = Feed::starting_at(start, RETENTION);
        let published = MirrorSnapshot { view: View::starting_at(start), feed, epoch: Epoch(rand::random()), earlier_runs: Arc::default() };
        let (publisher, subscriber) = snapshot_channel(published.clone());
        Self {
            name,
            id,
            pods,
            handle: Handle::new(ProcessState::without_clusters(watch::channel(Some(subscriber)).1)),
            state: Mutex::new(SimulatedState { published, publisher, version: 0, is_lost: false }),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Returns the handle from which the cluster is served.
    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    fn state(&self) -> MutexGuard<'_, SimulatedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the heartbeat, the config, all entries and the canaries.
    pub(super) fn fill(&self) {
        let config = ClusterConfig { id: ClusterId(self.id), max_connected_clusters: 255, ..ClusterConfig::default() };
        let record = ClusterRecord { config: Some(config), ..ClusterRecord::default() };
        let pods = (0..self.pods).map(|pod| data::pod(self.id, pod, 0));
        let entries = data::fixed_entries(self.name.as_str(), self.id, self.pods).into_iter().chain(pods);
        let mut commands = vec![Command::Heartbeat, Command::StoreCluster { cluster: self.name.clone(), record }];
        commands.extend(entries.map(|entry| self.put(entry)));
        commands.extend([Kind::Identity, Kind::Ip, Kind::Node, Kind::Service].map(|kind| self.mark_complete(kind)));
        let mut state = self.state();
        state.is_lost = false;
        state.apply(commands);
    }

    /// Deletes everything, as in an etcd whose KVStoreMesh was down for longer than its leases
    /// last.
    pub(super) fn lose(&self) {
        let mut state = self.state();
        state.is_lost = true;
        state.apply(vec![Command::Remove { cluster: self.name.clone(), reason: DeleteReason::Deleted }]);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state().is_lost
    }

    pub(super) fn write_heartbeat(&self) {
        self.state().apply(vec![Command::Heartbeat]);
    }

    /// Replaces a random pod with another pod that has the same address.
    pub(super) fn replace_random_pod(&self) {
        let mut state = self.state();
        if !state.is_lost && self.pods > 0 {
            state.version += 1;
            let entry = data::pod(self.id, rand::rng().random_range(0..self.pods), state.version);
            state.apply(vec![self.put(entry)]);
        }
    }

    fn scope(&self, kind: Kind) -> Scope {
        Scope { cluster: self.name.clone(), kind }
    }

    fn put(&self, (kind, name, value): SimulatedEntry) -> Command {
        let key = EntryKey::new(kind, self.name.clone(), name);
        let change = Change::Put { key, value: value.into(), decoded: Err(NOT_DECODED.into()), source: SourceStamp::default() };
        Command::Apply { scope: self.scope(kind), changes: vec![change], cursor: None }
    }

    fn mark_complete(&self, kind: Kind) -> Command {
        let (etcd_cluster_id, revision) = (EtcdClusterId(1), Revision(1));
        let cursor = Cursor::new(etcd_cluster_id, revision, true);
        Command::Apply { scope: self.scope(kind), changes: Vec::new(), cursor: Some(cursor) }
    }
}

impl SimulatedState {
    fn apply(&mut self, commands: Vec<Command>) {
        let now = SystemTime::now();
        for announcement in self.published.view.apply_all(commands, now).announcements {
            self.published.feed.announce(announcement, now);
        }
        self.publisher.publish(self.published.clone());
    }
}
