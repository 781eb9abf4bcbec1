//! A mesh of real etcds, a sidecar that mirrors it and a follower of its stream, for end-to-end
//! tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;

use super::PATIENCE;
use super::etcd::Etcd;
use super::mesh::{Form, MeshCluster, Shape, publish, rewrite};
use super::meshkeep::{Home, Meshkeep};
use super::proxy::Proxy;
use super::stream::Follower;
use super::truth::{Served, Truth, difference, object_difference, served};

/// Maximum time until the whole mesh is served, for a debug build on two cores that other tests
/// share.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(60);

/// Interval between comparisons of the served state with the expected state. Comparing the full
/// mesh costs the sidecar some hundred milliseconds.
const COMPARISON_INTERVAL: Duration = Duration::from_millis(150);

/// One etcd with its clusters, behind a proxy that can cut connections.
pub(crate) struct Remote {
    pub(crate) etcd: Etcd,
    pub(crate) form: Form,
    pub(crate) clusters: Vec<MeshCluster>,
    pub(crate) proxy: Proxy,
}

/// The etcds, the sidecar and the follower of a test.
pub(crate) struct Scene {
    pub(crate) remotes: Vec<Remote>,
    pub(crate) home: Home,
    pub(crate) meshkeep: Option<Meshkeep>,
    pub(crate) follower: Option<Follower>,
    pub(crate) random: StdRng,
    /// Number of canary values generated so far.
    stamp: u32,
}

impl Remote {
    /// Starts an empty etcd and publishes these clusters in it.
    pub(crate) async fn start(binary: &Path, form: Form, clusters: Vec<MeshCluster>) -> Self {
        let etcd = Etcd::builder().binary(binary).start().await;
        publish(&etcd, form, &clusters, "2026-01-12T09:31:07Z").await;
        let proxy = Proxy::to(etcd.port()).await;
        Self { etcd, form, clusters, proxy }
    }

    /// Returns the client file for the proxy.
    pub(crate) fn client_file(&self) -> String {
        self.etcd.client_file_yaml().replace(&format!(":{}", self.etcd.port()), &format!(":{}", self.proxy.port()))
    }

    /// Changes the clusters and updates the etcd.
    pub(crate) async fn change(&mut self, mut change: impl FnMut(&mut MeshCluster)) {
        for cluster in &mut self.clusters {
            let before = cluster.clone();
            change(cluster);
            rewrite(&self.etcd, self.form, &before, cluster).await;
        }
    }

    /// Moves an address to another pod of the namespace `moved`, or deletes its entry.
    pub(crate) async fn change_pod(&mut self, key: &str, pod: Option<&str>) {
        self.change(|cluster| match pod {
            None => cluster.delete(key),
            Some(pod) => {
                let value = cluster.entries.get_mut(key).unwrap();
                let mut entry: Value = serde_json::from_slice(value).unwrap();
                (entry["K8sPodName"], entry["K8sNamespace"]) = (pod.into(), "moved".into());
                *value = serde_json::to_vec(&entry).unwrap();
            }
        })
        .await;
    }
}

impl Scene {
    /// Starts one etcd for each direct cluster, one for all cached clusters, and a sidecar that
    /// mirrors them.
    pub(crate) async fn start(binary: &Path, direct: u32, cached: u32, shape: Shape) -> Self {
        let mut scene = Self::without_meshkeep(binary, direct, cached, shape).await;
        scene.start_meshkeep().await;
        scene
    }

    /// Starts only the etcds and writes the client files.
    pub(crate) async fn without_meshkeep(binary: &Path, direct: u32, cached: u32, shape: Shape) -> Self {
        let mut remotes = Vec::new();
        for id in 1..=direct {
            remotes.push(Remote::start(binary, Form::State, vec![MeshCluster::generate(id, shape)]).await);
        }
        if cached > 0 {
            let clusters = (direct + 1..=direct + cached).map(|id| MeshCluster::generate(id, shape)).collect();
            remotes.push(Remote::start(binary, Form::Cache, clusters).await);
        }
        let home = Home::new();
        for remote in &remotes {
            for cluster in &remote.clusters {
                home.write_cluster(&cluster.name, &remote.client_file());
            }
        }
        Self { remotes, home, meshkeep: None, follower: None, random: StdRng::seed_from_u64(17), stamp: 0 }
    }

    /// Starts the sidecar and follows its stream from a snapshot.
    pub(crate) async fn start_meshkeep(&mut self) {
        let meshkeep = self.home.start().await;
        self.follower = Some(Follower::open(&meshkeep, "snapshot=true").await);
        self.meshkeep = Some(meshkeep);
    }

    /// Kills the sidecar with SIGKILL.
    pub(crate) fn kill_meshkeep(&mut self) {
        self.follower = None;
        self.meshkeep.take().expect("must be running").kill();
    }

    /// Stops the sidecar with SIGTERM, after which everything that it served is stored. SIGKILL may
    /// lose the last group.
    pub(crate) async fn stop_meshkeep(&mut self) {
        self.follower = None;
        self.meshkeep.take().expect("must be running").stop().await;
    }

    pub(crate) fn meshkeep(&self) -> &Meshkeep {
        self.meshkeep.as_ref().expect("must be running")
    }

    pub(crate) fn follower(&self) -> &Follower {
        self.follower.as_ref().expect("must be running")
    }

    /// Returns the names of all clusters.
    pub(crate) fn names(&self) -> Vec<String> {
        self.remotes.iter().flat_map(|remote| &remote.clusters).map(|cluster| cluster.name.clone()).collect()
    }

    /// Returns the state that should be served.
    pub(crate) fn truth(&self) -> Truth {
        Truth::from_clusters(self.remotes.iter().flat_map(|remote| &remote.clusters))
    }

    /// Returns a canary value that no etcd has seen yet.
    pub(crate) fn next_stamp(&mut self) -> String {
        self.stamp += 1;
        format!("2026-01-12T10:{:02}:00Z", self.stamp)
    }

    /// Waits until every cluster is live, and until the served state and the follower's state are
    /// both equal to the truth.
    pub(crate) async fn wait_until_settled(&self, after: &str) {
        let truth = self.truth().expected();
        wait_until_served(self.meshkeep(), &truth, after).await;
        for name in self.names() {
            self.meshkeep().wait_for_phase(&name, "live").await;
        }
        // once all clusters are live, nothing may be removed any more
        assert_served(self.meshkeep(), &truth, after).await;
        self.wait_until_follower_agrees(&truth, after).await;
    }

    /// Checks that the follower's events since an index are exactly the difference to an earlier
    /// truth, one event per key (docs/develop/invariants.md, 5). Only valid after the scene has
    /// settled.
    pub(crate) fn assert_only_real_changes_announced(&self, seen: usize, before: &Served, during: &str) {
        let after = self.truth().expected();
        let keys: BTreeSet<&String> = before.objects.keys().chain(after.objects.keys()).collect();
        let changed = keys.into_iter().filter(|key| before.objects.get(*key) != after.objects.get(*key));
        let expected: BTreeMap<String, usize> = changed.map(|key| (key.clone(), 1)).collect();
        assert_eq!(self.follower().state().changes_since(seen), expected, "{during}: announced on the left, really changed on the right");
    }

    /// Returns the number of events that the follower has received.
    pub(crate) fn event_count(&self) -> usize {
        self.follower().state().events.len()
    }

    /// Waits until the follower's state is exactly the truth.
    pub(crate) async fn wait_until_follower_agrees(&self, truth: &Served, after: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let different = object_difference("object of the stream", &truth.objects, &self.follower().state().objects);
            let Some(different) = different else { return };
            assert!(Instant::now() < deadline, "after {after} the stream's follower holds something else:\n{different}");
            tokio::time::sleep(COMPARISON_INTERVAL).await;
        }
    }
}

/// Waits until the served state is the truth.
pub(crate) async fn wait_until_served(meshkeep: &Meshkeep, truth: &Served, after: &str) {
    let deadline = Instant::now() + SETTLE_TIME_MAX;
    loop {
        let Some(different) = difference(truth, &served(meshkeep).await) else { return };
        assert!(Instant::now() < deadline, "after {after} something else is served:\n{different}");
        tokio::time::sleep(COMPARISON_INTERVAL).await;
    }
}

/// Checks that the served state is the truth now.
pub(crate) async fn assert_served(meshkeep: &Meshkeep, truth: &Served, when: &str) {
    if let Some(different) = difference(truth, &served(meshkeep).await) {
        panic!("{when}: something else is served:\n{different}");
    }
}
