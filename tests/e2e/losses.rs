//! A source whose keys disappear because its writer died, with real leases in a real etcd
//! (docs/develop/invariants.md, 4): nothing is removed with them, but real deletions are applied.

use std::time::{Duration, Instant};

use etcd_client::{Client, DeleteOptions, GetOptions, PutOptions};
use tokio::task::JoinSet;

use crate::harness::etcd::Etcd;
use crate::harness::eventually;
use crate::harness::mesh::{
    BASES, EVERY_KIND, Form, MeshCluster, SMALL, Shape, config_value, publish, put_entries, put_heartbeat, source_key,
};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::scene::{assert_served, wait_until_served};
use crate::harness::stream::Follower;
use crate::harness::truth::Truth;

/// Time to live of a writer's leases in seconds: long enough for etcd's resolution of one second,
/// and a third of it is short enough for a test.
const LEASE_TTL_S: i64 = 6;

/// Duration of a hold once config and canary exist again: a third of the lease's TTL plus the
/// margin that the sidecar's flag sets.
const HOLD: Duration = Duration::from_secs(3);

const FLAGS: [&str; 3] = ["--hold-margin=1s", "--backoff-min=50ms", "--backoff-max=200ms"];

/// Maximum time until a real deletion is applied: no hold may delay one.
const DELETED_WITHIN: Duration = Duration::from_secs(1);

/// A KVStoreMesh as etcd sees it: keys on leases that it keeps alive until it dies.
struct Writer {
    client: Client,
    renewals: JoinSet<()>,
}

impl Writer {
    async fn new(etcd: &Etcd) -> Self {
        Self { client: etcd.client().await, renewals: JoinSet::new() }
    }

    /// Grants a lease and renews it every third of its TTL.
    async fn grant_lease(&mut self, ttl_s: i64) -> i64 {
        let id = self.client.lease_grant(ttl_s, None).await.unwrap().id();
        let (mut keeper, mut answers) = self.client.lease_keep_alive(id).await.unwrap();
        let third = Duration::from_secs_f64(f64::from(i32::try_from(ttl_s).unwrap()) / 3.0);
        self.renewals.spawn(async move {
            while keeper.keep_alive().await.is_ok() && answers.message().await.is_ok() {
                tokio::time::sleep(third).await;
            }
        });
        id
    }

    async fn put(&mut self, key: String, value: Vec<u8>, lease: i64) {
        self.client.put(key, value, Some(PutOptions::new().with_lease(lease))).await.unwrap();
    }

    async fn put_config(&mut self, cluster: &MeshCluster, form: Form, lease: i64) {
        self.put(format!("cilium/cluster-config/{}", cluster.name), config_value(form, cluster).into_bytes(), lease).await;
    }

    async fn put_canaries(&mut self, cluster: &MeshCluster, form: Form, lease: i64) {
        let below = if form == Form::State { "state" } else { "cache" };
        for base in BASES {
            let stamp = format!("{:?}", std::time::SystemTime::now()).into_bytes();
            self.put(format!("cilium/synced/{}/cilium/{below}/{base}", cluster.name), stamp, lease).await;
        }
    }

    /// Puts the entries, attached to the leases in turn.
    async fn put_entries(&mut self, cluster: &MeshCluster, leases: &[i64]) {
        for ((key, value), lease) in cluster.entries.iter().zip(leases.iter().cycle()) {
            self.put(key.clone(), value.clone(), *lease).await;
        }
    }

    /// Writes in the order of a KVStoreMesh that starts: config, entries, canaries.
    async fn put_everything(&mut self, cluster: &MeshCluster) {
        let lease = self.grant_lease(LEASE_TTL_S).await;
        self.put_config(cluster, Form::Cache, lease).await;
        self.put_entries(cluster, &[lease]).await;
        self.put_canaries(cluster, Form::Cache, lease).await;
    }
}

/// An etcd that a KVStoreMesh writes to, and the sidecar that mirrors it.
struct LossScene {
    etcd: Etcd,
    home: Home,
    meshkeep: Option<Meshkeep>,
    follower: Option<Follower>,
    seen: usize,
}

impl LossScene {
    async fn new(flags: &[&str]) -> Self {
        let etcd = Etcd::start().await;
        put_heartbeat(&etcd).await;
        let home = Home::new().with_flags(&FLAGS).with_flags(flags);
        home.write_cluster("c01", &etcd.client_file_yaml());
        Self { etcd, home, meshkeep: None, follower: None, seen: 0 }
    }

    fn meshkeep(&self) -> &Meshkeep {
        self.meshkeep.as_ref().unwrap()
    }

    async fn start_meshkeep(&mut self) {
        let meshkeep = self.home.start().await;
        let follower = Follower::open(&meshkeep, "snapshot=true").await;
        eventually("the snapshot", || async { follower.state().events_named("synced", 0).next().map(drop) }).await;
        (self.follower, self.meshkeep) = (Some(follower), Some(meshkeep));
        self.count_from_here();
    }

    async fn stop_meshkeep(&mut self) {
        self.follower = None;
        self.meshkeep.take().unwrap().stop().await;
    }

    fn follower(&self) -> &Follower {
        self.follower.as_ref().unwrap()
    }

    /// Waits until everything of a cluster is served and live. Changes are counted from here on.
    async fn wait_until_settled(&mut self, cluster: &MeshCluster, after: &str) {
        wait_until_served(self.meshkeep(), &Truth::from_clusters([cluster]).expected(), after).await;
        self.meshkeep().wait_for_phase("c01", "live").await;
        self.count_from_here();
    }

    /// Starts to count changes.
    fn count_from_here(&mut self) {
        let seen = self.follower().state().events.len();
        self.seen = seen;
    }

    /// Checks that everything is served and that no change was announced.
    async fn assert_nothing_removed(&self, cluster: &MeshCluster, when: &str) {
        assert_served(self.meshkeep(), &Truth::from_clusters([cluster]).expected(), when).await;
        let reported = self.follower().state().changes_since(self.seen);
        assert!(reported.is_empty(), "{when}: {reported:?}");
    }

    /// Waits until the source has no keys below a prefix.
    async fn wait_until_lost(&self, prefix: &str) {
        self.wait_until_fewer_keys(1, prefix).await;
    }

    /// Waits until the source has fewer than `count` keys below a prefix.
    async fn wait_until_fewer_keys(&self, count: usize, prefix: &str) {
        let mut client = self.etcd.client().await;
        eventually("leases to expire", || {
            let options = Some(GetOptions::new().with_prefix().with_count_only());
            let mut client = client.clone();
            async move { (client.get(prefix, options).await.unwrap().count() < i64::try_from(count).unwrap()).then_some(()) }
        })
        .await;
        // the answer to this read arrives after the events of the expired leases
        client.get("cilium/.heartbeat", None).await.unwrap();
    }

    /// Returns the number of entries that are held although the source has lost their keys.
    async fn held(&self) -> u64 {
        let cluster = self.meshkeep().cluster("c01").await;
        cluster["resources"].as_array().unwrap().iter().filter_map(|kind| kind["held"].as_u64()).sum()
    }

    async fn wait_until_held(&self, count: usize) {
        let what = format!("{count} keys to be held");
        eventually(&what, || async { (self.held().await == count as u64).then_some(()) }).await;
    }
}

/// Waits longer than any hold lasts. Only waiting can show that nothing is removed.
async fn outlast_any_hold() {
    tokio::time::sleep(HOLD * 2).await;
}

/// State of meshkeep while a KVStoreMesh dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MeshkeepState {
    Up,
    Down,
    /// Down, and started again once the first lease has expired.
    RestartedMidway,
}

/// The death of a KVStoreMesh, and its successor.
#[derive(Debug, Clone, Copy)]
struct WriterDeath<'a> {
    /// Time to live of the leases, in seconds. The first lease has config and canaries.
    lease_ttls_s: &'a [i64],
    shape: Shape,
    meshkeep_state: MeshkeepState,
    /// Number of addresses that the successor does not put again.
    forgotten_count: usize,
}

impl WriterDeath<'_> {
    async fn check(self) {
        let mut scene = LossScene::new(&[]).await;
        let mut cluster = MeshCluster::generate(1, self.shape);
        let all = Truth::from_clusters([&cluster]).expected();
        let mut writer = Writer::new(&scene.etcd).await;
        let mut leases = Vec::new();
        for ttl_s in self.lease_ttls_s {
            leases.push(writer.grant_lease(*ttl_s).await);
        }
        writer.put_config(&cluster, Form::Cache, leases[0]).await;
        writer.put_entries(&cluster, &leases[1..]).await;
        writer.put_canaries(&cluster, Form::Cache, leases[0]).await;
        scene.start_meshkeep().await;
        scene.wait_until_settled(&cluster, "the first loading").await;
        self.expire_leases(&mut scene, writer, &cluster).await;
        outlast_any_hold().await;
        assert_served(scene.meshkeep(), &all, "after the loss").await;
        let seen = scene.follower().state().events.len();
        let forgotten = cluster.keys_of("ip/v1")[..self.forgotten_count].to_vec();
        forgotten.iter().for_each(|key| cluster.delete(key));
        let mut successor = Writer::new(&scene.etcd).await;
        successor.put_everything(&cluster).await;
        wait_until_served(scene.meshkeep(), &Truth::from_clusters([&cluster]).expected(), "the return").await;
        scene.meshkeep().wait_for_phase("c01", "live").await;
        scene.wait_until_held(0).await;
        let reported = || async { (scene.follower().state().changes_since(seen).len() >= forgotten.len()).then_some(()) };
        eventually("the deletions to be reported", reported).await;
        let node = scene.meshkeep().get("/v1/nodes/c01/c01-worker-0").await;
        assert_eq!(node["meta"]["stale"], serde_json::Value::Null, "{node}");
        outlast_any_hold().await;
        assert_served(scene.meshkeep(), &Truth::from_clusters([&cluster]).expected(), "long after the return").await;
        let reported = scene.follower().state().changes_since(seen);
        assert_eq!(reported, forgotten.iter().map(|key| (key.clone(), 1)).collect(), "only the keys that were not put again");
    }

    /// Lets the leases expire, and checks that nothing is removed with them.
    async fn expire_leases(self, scene: &mut LossScene, mut writer: Writer, cluster: &MeshCluster) {
        let config_expires_first = self.lease_ttls_s.iter().skip(1).all(|ttl_s| *ttl_s > self.lease_ttls_s[0]);
        if self.meshkeep_state != MeshkeepState::Up {
            scene.stop_meshkeep().await;
        }
        writer.renewals.shutdown().await;
        if self.meshkeep_state == MeshkeepState::RestartedMidway {
            // the prefix covers the config, which may expire first, and the entries
            scene.wait_until_fewer_keys(cluster.entries.len() + 1, "cilium/c").await;
            scene.start_meshkeep().await;
        }
        scene.wait_until_lost("cilium/cache/").await;
        scene.wait_until_lost("cilium/cluster-config/").await;
        if self.meshkeep_state == MeshkeepState::Down {
            scene.start_meshkeep().await;
        }
        if self.meshkeep_state == MeshkeepState::Down || (self.meshkeep_state == MeshkeepState::RestartedMidway && config_expires_first) {
            // without a config nothing can be read
            scene.meshkeep().wait_for_phase("c01", "readingConfig").await;
            wait_until_served(scene.meshkeep(), &Truth::from_clusters([cluster]).expected(), "a start with a lost source").await;
            return;
        }
        scene.meshkeep().wait_for_phase("c01", "sourceLost").await;
        scene.wait_until_held(cluster.entries.len()).await;
        let node = scene.meshkeep().get("/v1/nodes/c01/c01-worker-0").await;
        assert_eq!((&node["meta"]["stale"], &node["meta"]["phase"]), (&true.into(), &"sourceLost".into()), "{node}");
        scene.assert_nothing_removed(cluster, "the loss").await;
    }
}

const THOUSAND: Shape = Shape { nodes: 4, identities: 10, endpoints: 975, services: 5, exports: 3 };

#[tokio::test]
async fn an_expired_lease_of_a_thousand_keys_removes_nothing() {
    for meshkeep_state in [MeshkeepState::Up, MeshkeepState::Down] {
        WriterDeath { lease_ttls_s: &[4, 2], shape: THOUSAND, meshkeep_state, forgotten_count: 0 }.check().await;
    }
}

#[tokio::test]
async fn leases_that_expire_before_config_and_canaries_remove_nothing() {
    for meshkeep_state in [MeshkeepState::Up, MeshkeepState::Down, MeshkeepState::RestartedMidway] {
        WriterDeath { lease_ttls_s: &[6, 2, 3, 4, 5], shape: EVERY_KIND, meshkeep_state, forgotten_count: 0 }.check().await;
    }
}

#[tokio::test]
async fn leases_that_expire_after_config_and_canaries_remove_nothing() {
    for meshkeep_state in [MeshkeepState::Up, MeshkeepState::Down, MeshkeepState::RestartedMidway] {
        WriterDeath { lease_ttls_s: &[2, 3, 4, 5, 6], shape: EVERY_KIND, meshkeep_state, forgotten_count: 0 }.check().await;
    }
}

#[tokio::test]
async fn only_keys_that_a_successor_does_not_put_are_deleted() {
    for meshkeep_state in [MeshkeepState::Up, MeshkeepState::Down] {
        WriterDeath { lease_ttls_s: &[3, 2], shape: THOUSAND, meshkeep_state, forgotten_count: 10 }.check().await;
    }
}

#[tokio::test]
async fn a_drain_deletes_nothing_until_the_file_is_removed() {
    for meshkeep_down in [false, true] {
        let mut scene = LossScene::new(&[]).await;
        let cluster = MeshCluster::generate(1, EVERY_KIND);
        let mut writer = Writer::new(&scene.etcd).await;
        writer.put_everything(&cluster).await;
        scene.start_meshkeep().await;
        scene.wait_until_settled(&cluster, "the first loading").await;
        if meshkeep_down {
            scene.stop_meshkeep().await;
        }
        // pkg/clustermesh/kvstoremesh/remote_cluster.go: the config, the canaries, then each kind
        // by its prefix
        writer.client.delete("cilium/cluster-config/c01", None).await.unwrap();
        let prefix = || Some(DeleteOptions::new().with_prefix());
        writer.client.delete("cilium/synced/c01/", prefix()).await.unwrap();
        for base in BASES {
            writer.client.delete(format!("cilium/cache/{base}/c01/"), prefix()).await.unwrap();
        }
        if meshkeep_down {
            scene.start_meshkeep().await;
            scene.meshkeep().wait_for_phase("c01", "readingConfig").await;
        } else {
            scene.meshkeep().wait_for_phase("c01", "sourceLost").await;
            scene.wait_until_held(cluster.entries.len()).await;
            outlast_any_hold().await;
            scene.assert_nothing_removed(&cluster, "after a drain").await;
            // without a config nothing can be read: only the stored state counts now
            scene.stop_meshkeep().await;
            scene.start_meshkeep().await;
            scene.meshkeep().wait_for_phase("c01", "readingConfig").await;
            scene.wait_until_held(cluster.entries.len()).await;
        }
        assert_served(scene.meshkeep(), &Truth::from_clusters([&cluster]).expected(), "after a drain").await;
        scene.home.remove_cluster("c01");
        wait_until_served(scene.meshkeep(), &Truth::from_clusters([]).expected(), "the removal of its file").await;
    }
}

#[tokio::test]
async fn a_single_key_on_a_lease_of_its_own_is_held_and_then_deleted() {
    for meshkeep_down in [false, true] {
        let mut scene = LossScene::new(&[]).await;
        let mut cluster = MeshCluster::generate(1, EVERY_KIND);
        let mut writer = Writer::new(&scene.etcd).await;
        writer.put_everything(&cluster).await;
        let key = cluster.keys_of("nodes/v1")[0].clone();
        let own = writer.client.lease_grant(2, None).await.unwrap().id();
        writer.put(key.clone(), cluster.entries[&key].clone(), own).await;
        scene.start_meshkeep().await;
        scene.wait_until_settled(&cluster, "the first loading").await;
        if meshkeep_down {
            scene.stop_meshkeep().await;
        }
        scene.wait_until_lost(&key).await;
        if meshkeep_down {
            scene.start_meshkeep().await;
        }
        scene.wait_until_held(1).await;
        let since = Instant::now();
        scene.meshkeep().wait_for_phase("c01", "sourceLost").await;
        assert_served(scene.meshkeep(), &Truth::from_clusters([&cluster]).expected(), "while it is held").await;
        cluster.delete(&key);
        wait_until_served(scene.meshkeep(), &Truth::from_clusters([&cluster]).expected(), "the end of the hold").await;
        assert!(since.elapsed() > HOLD - Duration::from_secs(1), "held for {:?} only", since.elapsed());
        scene.meshkeep().wait_for_phase("c01", "live").await;
    }
}

#[tokio::test]
async fn keys_that_a_restarted_kvstoremesh_does_not_put_are_deleted() {
    for meshkeep_down in [false, true] {
        let mut scene = LossScene::new(&[]).await;
        let mut cluster = MeshCluster::generate(1, THOUSAND);
        let mut writer = Writer::new(&scene.etcd).await;
        writer.put_everything(&cluster).await;
        scene.start_meshkeep().await;
        scene.wait_until_settled(&cluster, "the first loading").await;
        if meshkeep_down {
            scene.stop_meshkeep().await;
        }
        let forgotten = cluster.keys_of("ip/v1")[..10].to_vec();
        forgotten.iter().for_each(|key| cluster.delete(key));
        // a new process: it has new leases, and the old ones expire later
        let mut successor = Writer::new(&scene.etcd).await;
        successor.put_everything(&cluster).await;
        writer.renewals.shutdown().await;
        scene.wait_until_lost(&forgotten[9]).await;
        if meshkeep_down {
            scene.start_meshkeep().await;
        }
        wait_until_served(scene.meshkeep(), &Truth::from_clusters([&cluster]).expected(), "the restart of the KVStoreMesh").await;
        scene.meshkeep().wait_for_phase("c01", "live").await;
        if !meshkeep_down {
            let reported = scene.follower().state().changes_since(scene.seen);
            assert_eq!(reported, forgotten.iter().map(|key| (key.clone(), 1)).collect(), "only the ten keys");
        }
    }
}

#[tokio::test]
async fn keys_of_a_dead_agent_of_a_direct_peer_are_deleted_at_once() {
    for meshkeep_down in [false, true] {
        let mut scene = LossScene::new(&[]).await;
        let mut cluster = MeshCluster::generate(1, EVERY_KIND);
        publish(&scene.etcd, Form::State, std::slice::from_ref(&cluster), "2026-01-12T09:31:07Z").await;
        let mut agent = Writer::new(&scene.etcd).await;
        let own = agent.client.lease_grant(2, None).await.unwrap().id();
        let keys = [cluster.keys_of("nodes/v1")[0].clone(), cluster.keys_of("ip/v1")[0].clone()];
        for key in &keys {
            agent.put(source_key(Form::State, "c01", key), cluster.entries[key].clone(), own).await;
        }
        scene.start_meshkeep().await;
        scene.wait_until_settled(&cluster, "the first loading").await;
        if meshkeep_down {
            scene.stop_meshkeep().await;
        }
        scene.wait_until_lost(&source_key(Form::State, "c01", &keys[0])).await;
        let since = Instant::now();
        if meshkeep_down {
            scene.start_meshkeep().await;
        }
        keys.iter().for_each(|key| cluster.delete(key));
        wait_until_served(scene.meshkeep(), &Truth::from_clusters([&cluster]).expected(), "the death of an agent").await;
        assert!(meshkeep_down || since.elapsed() < DELETED_WITHIN, "{:?}", since.elapsed());
        scene.meshkeep().wait_for_phase("c01", "live").await;
    }
}

#[tokio::test]
async fn a_real_deletion_is_applied_within_a_second() {
    for form in [Form::State, Form::Cache] {
        let mut scene = LossScene::new(&[]).await;
        let cluster = MeshCluster::generate(1, EVERY_KIND);
        publish(&scene.etcd, form, std::slice::from_ref(&cluster), "2026-01-12T09:31:07Z").await;
        scene.start_meshkeep().await;
        scene.wait_until_settled(&cluster, "the first loading").await;
        for base in BASES {
            let key = cluster.keys_of(base)[0].clone();
            scene.etcd.delete(source_key(form, "c01", &key)).await;
            let since = Instant::now();
            let follower = scene.follower();
            eventually("the deletion", || async { follower.state().changes_since(scene.seen).contains_key(&key).then_some(()) }).await;
            assert!(since.elapsed() < DELETED_WITHIN, "{key} after {:?}", since.elapsed());
        }
    }
}

/// For any peer, deletes are not applied while its config or the kind's canary is missing.
#[tokio::test]
async fn deletes_are_held_while_config_or_canaries_are_missing() {
    for lost in ["cilium/cluster-config/c01", "cilium/synced/c01/cilium/state/nodes/v1"] {
        let mut scene = LossScene::new(&[]).await;
        let mut cluster = MeshCluster::generate(1, EVERY_KIND);
        publish(&scene.etcd, Form::State, std::slice::from_ref(&cluster), "2026-01-12T09:31:07Z").await;
        scene.start_meshkeep().await;
        scene.wait_until_settled(&cluster, "the first loading").await;
        scene.etcd.delete(lost).await;
        scene.meshkeep().wait_for_phase("c01", "sourceLost").await;
        let key = cluster.keys_of("nodes/v1")[0].clone();
        scene.etcd.delete(source_key(Form::State, "c01", &key)).await;
        scene.wait_until_held(1).await;
        cluster.add_endpoints(3);
        let mut at_source = cluster.clone();
        at_source.delete(&key);
        put_entries(&scene.etcd, Form::State, &at_source).await;
        wait_until_served(scene.meshkeep(), &Truth::from_clusters([&cluster]).expected(), "other changes").await;
        // config and canary must exist for a third of a lease's TTL, which is a few seconds here
        let mut writer = Writer::new(&scene.etcd).await;
        let lease = writer.grant_lease(LEASE_TTL_S).await;
        writer.put_config(&cluster, Form::State, lease).await;
        writer.put_canaries(&cluster, Form::State, lease).await;
        wait_until_served(scene.meshkeep(), &Truth::from_clusters([&at_source]).expected(), "the return of config and canary").await;
        scene.meshkeep().wait_for_phase("c01", "live").await;
    }
}

/// A hold continues over reconnects: each connection finds the same keys lost, but does not start
/// their hold again.
#[tokio::test]
async fn reconnects_do_not_extend_a_hold() {
    let mut scene = LossScene::new(&["--cache-ttl=3s"]).await;
    let cluster = MeshCluster::generate(1, EVERY_KIND);
    let mut writer = Writer::new(&scene.etcd).await;
    let (long_lease, short_lease) = (writer.grant_lease(LEASE_TTL_S).await, writer.client.lease_grant(2, None).await.unwrap().id());
    writer.put_config(&cluster, Form::Cache, long_lease).await;
    writer.put_entries(&cluster, &[short_lease]).await;
    writer.put_canaries(&cluster, Form::Cache, long_lease).await;
    scene.start_meshkeep().await;
    scene.wait_until_settled(&cluster, "the first loading").await;
    // config and canaries expire with their writer, so only `--cache-ttl` ends the hold
    writer.renewals.shutdown().await;
    scene.wait_until_lost("cilium/cache/").await;
    scene.wait_until_held(cluster.entries.len()).await;
    let (mut rounds, started) = (0, Instant::now());
    while scene.meshkeep().get("/v1/services").await["items"] != serde_json::json!([]) {
        rounds += 1;
        assert!(started.elapsed() < HOLD * 5, "the time of the hold begins again with each connection");
        scene.home.write_cluster("c01", &format!("{}# {rounds}\n", scene.etcd.client_file_yaml()));
        let again = || async { (scene.meshkeep().log_lines_with(&["changed: reconnecting"]) >= rounds).then_some(()) };
        eventually("a new connection", again).await;
        scene.meshkeep().wait_for_phase("c01", "sourceLost").await;
    }
}

#[tokio::test]
async fn a_cluster_becomes_live_without_a_kind_that_it_dropped() {
    let mut scene = LossScene::new(&[]).await;
    let cluster = MeshCluster::generate(1, SMALL);
    let mut writer = Writer::new(&scene.etcd).await;
    writer.put_everything(&cluster).await;
    let services = cluster.keys_of("services/v1");
    let own = writer.client.lease_grant(2, None).await.unwrap().id();
    for key in &services {
        writer.put(key.clone(), cluster.entries[key].clone(), own).await;
    }
    scene.start_meshkeep().await;
    scene.wait_until_settled(&cluster, "the first loading").await;
    scene.wait_until_held(services.len()).await;
    scene.stop_meshkeep().await;
    let config = r#"{"id":1,"capabilities":{"syncedCanaries":true,"cached":true,"maxConnectedClusters":255,"endpointSlicesExportMode":"endpointslices-only"}}"#;
    let lease = writer.grant_lease(LEASE_TTL_S).await;
    writer.put("cilium/cluster-config/c01".to_owned(), config.into(), lease).await;
    writer.put("cilium/synced/c01/cilium/cache/endpointslices/v1".to_owned(), b"now".to_vec(), lease).await;
    scene.start_meshkeep().await;
    scene.meshkeep().wait_for_phase("c01", "live").await;
    scene.wait_until_held(0).await;
}
