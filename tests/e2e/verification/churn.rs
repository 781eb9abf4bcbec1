//! A mesh that changes without a pause causes no report of a difference, during eight kinds of
//! events: compactions, reconnects, changes of the leader, a lost KVStoreMesh, expired leases,
//! wiped and restarted etcds, and restarts of meshkeep.
//!
//! CI runs each event once. `MESHKEEP_VERIFICATION_SECONDS` runs random events for that time, and
//! `MESHKEEP_VERIFICATION_SEED` chooses another order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use etcd_client::{GetOptions, PutOptions};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};

use super::{FIND_TIME_MAX, QUICK, QUICK_ROUND, diverged, verified_times};
use crate::harness::etcd::{Etcd, EtcdMembers, etcd_binaries};
use crate::harness::mesh::{EVERY_KIND, Form, MeshCluster, publish, rewrite, source_key};
use crate::harness::scene::{Remote, Scene, wait_until_served};
use crate::harness::truth::Truth;
use crate::harness::{eventually, eventually_within, number_in_environment};

/// Number of members of the etcd whose leader changes.
const MEMBERS: usize = 3;

/// Number of changes of each cluster before and after each event.
const TURNS: u32 = 4;

/// Number of addresses above which a cluster deletes as many as it adds.
const ADDRESSES_MAX: usize = 60;

/// Number of addresses that a cluster adds at once.
const ADDRESSES_ADDED: u32 = 5;

/// Interval after which all keys are put on new leases, because nothing renews the leases of the
/// harness: a third of their time to live.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(300);

/// An event of the sources, of the connections to them, or of meshkeep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ChurnEvent {
    Compacted,
    Disconnected,
    LeaderKilled,
    KvstoreMeshLost,
    LeaseExpired,
    EtcdWiped,
    EtcdsRestarted,
    MeshkeepRestarted,
}

const EVENTS: [ChurnEvent; 8] = [
    ChurnEvent::Compacted,
    ChurnEvent::Disconnected,
    ChurnEvent::LeaderKilled,
    ChurnEvent::KvstoreMeshLost,
    ChurnEvent::LeaseExpired,
    ChurnEvent::EtcdWiped,
    ChurnEvent::EtcdsRestarted,
    ChurnEvent::MeshkeepRestarted,
];

/// The sources, and the sidecar that verifies its mirror of them.
struct ChurnMesh {
    /// `c01` in state form, `c02` and `c03` in cache form.
    scene: Scene,
    /// The etcd of `c04`, with several members.
    members: EtcdMembers,
    /// Index of a member that runs.
    running: usize,
    replicated: MeshCluster,
    /// The clusters as they were at the start.
    initial: BTreeMap<String, MeshCluster>,
    random: StdRng,
    turn: u32,
    renewed: Instant,
    /// Times of the verifications that were seen, by cluster and index of the kind.
    verified: BTreeMap<(String, usize), BTreeSet<String>>,
}

impl ChurnMesh {
    async fn start(seed: u64) -> Self {
        let binary = etcd_binaries().remove(0);
        let mut scene = Scene::without_meshkeep(&binary, 1, 2, EVERY_KIND).await;
        let members = Etcd::builder().binary(&binary).start_members(MEMBERS).await;
        members.wait_for_quorum().await;
        let replicated = MeshCluster::generate(4, EVERY_KIND);
        publish(&members.members[0], Form::State, std::slice::from_ref(&replicated), "2026-01-12T09:31:07Z").await;
        let endpoints: String = members.members.iter().map(|member| format!("- {}\n", member.url())).collect();
        scene.home.write_cluster(&replicated.name, &format!("endpoints:\n{endpoints}"));
        scene.home = scene.home.with_flags(&QUICK).with_flags(&[QUICK_ROUND, "--backoff-min=50ms", "--backoff-max=200ms"]);
        scene.home = scene.home.with_flags(&["--heartbeat-silence=2h"]);
        let clusters = scene.remotes.iter().flat_map(|remote| &remote.clusters).chain([&replicated]);
        let initial = clusters.map(|cluster| (cluster.name.clone(), cluster.clone())).collect();
        let (random, now) = (StdRng::seed_from_u64(seed), Instant::now());
        let verified = BTreeMap::new();
        let mut mesh = Self { scene, members, running: 0, replicated, initial, random, turn: 0, renewed: now, verified };
        mesh.start_meshkeep().await;
        mesh
    }

    /// Starts the sidecar. No follower of its stream collects the events of an hour.
    async fn start_meshkeep(&mut self) {
        self.scene.start_meshkeep().await;
        self.scene.follower = None;
    }

    fn names(&self) -> Vec<String> {
        self.initial.keys().cloned().collect()
    }

    /// Changes each cluster several times.
    async fn change(&mut self) {
        for _ in 0..TURNS {
            self.turn += 1;
            let Self { scene, members, running, replicated, initial, random, turn, .. } = self;
            for remote in &mut scene.remotes {
                remote.change(|cluster| change_cluster(cluster, &initial[&cluster.name], *turn, random)).await;
            }
            let before = replicated.clone();
            change_cluster(replicated, &initial[&before.name], *turn, random);
            rewrite(&members.members[*running], Form::State, &before, replicated).await;
        }
    }

    /// Puts all keys of all clusters again, on new leases, if this is due.
    async fn renew(&mut self) {
        if self.renewed.elapsed() < RENEWAL_INTERVAL {
            return;
        }
        let stamp = self.scene.next_stamp();
        for remote in &self.scene.remotes {
            publish(&remote.etcd, remote.form, &remote.clusters, &stamp).await;
        }
        publish(&self.members.members[self.running], Form::State, std::slice::from_ref(&self.replicated), &stamp).await;
        self.renewed = Instant::now();
    }

    async fn run(&mut self, event: ChurnEvent) {
        self.change().await;
        match event {
            ChurnEvent::Compacted => self.compact().await,
            ChurnEvent::Disconnected => self.disconnect().await,
            ChurnEvent::LeaderKilled => self.kill_leader().await,
            ChurnEvent::KvstoreMeshLost => self.lose_kvstore_mesh().await,
            ChurnEvent::LeaseExpired => self.expire_lease().await,
            ChurnEvent::EtcdWiped => self.wipe_etcd().await,
            ChurnEvent::EtcdsRestarted => {
                for remote in &mut self.scene.remotes {
                    remote.etcd.restart().await;
                }
                self.members.restart().await;
            }
            ChurnEvent::MeshkeepRestarted => {
                self.scene.stop_meshkeep().await;
                self.change().await;
                self.start_meshkeep().await;
            }
        }
        self.change().await;
        self.renew().await;
        self.check(&format!("{event:?}")).await;
    }

    async fn compact(&mut self) {
        for etcd in self.scene.remotes.iter().map(|remote| &remote.etcd).chain([&self.members.members[self.running]]) {
            let revision = etcd.put("compaction", "").await;
            etcd.compact(revision).await;
        }
    }

    /// Cuts the connections, and compacts the history of one source meanwhile.
    async fn disconnect(&mut self) {
        for remote in &mut self.scene.remotes {
            remote.proxy.cut().await;
        }
        self.change().await;
        let revision = self.scene.remotes[0].etcd.put("compaction", "").await;
        self.scene.remotes[0].etcd.compact(revision).await;
        for remote in &mut self.scene.remotes {
            remote.proxy.restore().await;
        }
    }

    async fn kill_leader(&mut self) {
        let leader = self.members.wait_for_leader().await;
        self.members.members[leader].kill();
        self.running = (leader + 1) % MEMBERS;
        self.members.wait_for_quorum().await;
        self.change().await;
        self.members.members[leader].restart().await;
        self.members.wait_for_quorum().await;
    }

    /// Revokes all leases of the etcd in cache form, as if its KVStoreMesh had died. A new one
    /// writes everything again.
    async fn lose_kvstore_mesh(&mut self) {
        // a delete that is read only after the loss counts as lost, too
        self.wait_until_served("the changes before the loss").await;
        let mut client = self.scene.remotes[1].etcd.client().await;
        for lease in client.leases().await.unwrap().leases() {
            client.lease_revoke(lease.id()).await.unwrap();
        }
        for cluster in &self.scene.remotes[1].clusters {
            self.scene.meshkeep().wait_for_phase(&cluster.name, "sourceLost").await;
        }
        // the counts are compared while the entries are held
        self.wait_for_round(&["c01", "c04"]).await;
        let stamp = self.scene.next_stamp();
        let remote = &self.scene.remotes[1];
        publish(&remote.etcd, remote.form, &remote.clusters, &stamp).await;
    }

    /// Adds addresses on a lease that expires.
    async fn expire_lease(&mut self) {
        let Remote { etcd, form, clusters, .. } = &self.scene.remotes[0];
        let mut with_more = clusters[0].clone();
        with_more.add_endpoints(ADDRESSES_ADDED);
        let mut client = etcd.client().await;
        let lease = client.lease_grant(1, None).await.unwrap().id();
        let is_new = |key: &String| !clusters[0].entries.contains_key(key);
        let added: Vec<_> = with_more.entries.into_iter().filter(|(key, _)| is_new(key)).collect();
        for (key, value) in &added {
            client.put(source_key(*form, &clusters[0].name, key), value.clone(), Some(PutOptions::new().with_lease(lease))).await.unwrap();
        }
        let last = source_key(*form, &clusters[0].name, &added[added.len() - 1].0);
        let expired = async || {
            let found = etcd.client().await.get(last.as_str(), Some(GetOptions::new().with_count_only())).await.unwrap();
            (found.count() == 0).then_some(())
        };
        eventually("the lease to expire", expired).await;
    }

    /// Wipes one etcd and fills it with other contents. The ids of the etcd stay the same.
    async fn wipe_etcd(&mut self) {
        let (stamp, index) = (self.scene.next_stamp(), [0, 1].choose(&mut self.random).copied().unwrap_or_default());
        let remote = &mut self.scene.remotes[index];
        remote.etcd.wipe();
        for cluster in &mut remote.clusters {
            cluster.delete_one_percent(&mut self.random);
            cluster.change_one_percent(&mut self.random);
        }
        remote.etcd.restart().await;
        publish(&remote.etcd, remote.form, &remote.clusters, &stamp).await;
    }

    async fn wait_until_served(&self, after: &str) {
        let clusters = self.scene.remotes.iter().flat_map(|remote| &remote.clusters).chain([&self.replicated]);
        wait_until_served(self.scene.meshkeep(), &Truth::from_clusters(clusters).expected(), after).await;
    }

    /// Waits until the mirror is right and every kind was verified again. No difference may have
    /// been reported until then.
    async fn check(&mut self, event: &str) {
        self.wait_until_served(event).await;
        for name in self.names() {
            self.scene.meshkeep().wait_for_phase(&name, "live").await;
        }
        let names = self.names();
        self.wait_for_round(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let meshkeep = self.scene.meshkeep();
        let reported = (diverged(meshkeep).await, meshkeep.log_lines_with(&["differs from its source"]));
        assert_eq!(reported, (None, 0), "a difference is reported after {event}");
    }

    /// Waits until every kind of these clusters was verified once more.
    async fn wait_for_round(&mut self, names: &[&str]) {
        for name in names {
            let before = verified_times(self.scene.meshkeep(), name).await;
            let advanced = || async {
                let now = verified_times(self.scene.meshkeep(), name).await;
                now.iter().zip(&before).all(|(now, before)| now.is_some() && now != before).then_some(now)
            };
            let after = eventually_within(FIND_TIME_MAX, &format!("a round of the verification of {name}"), advanced).await;
            for (kind, time) in before.into_iter().enumerate().chain(after.into_iter().enumerate()) {
                self.verified.entry(((*name).to_owned(), kind)).or_default().extend(time);
            }
        }
    }

    /// Returns how often every kind of every cluster was verified, at least.
    fn round_count(&self) -> usize {
        self.verified.values().map(BTreeSet::len).min().unwrap_or_default()
    }
}

/// Changes some values, and deletes some keys or creates earlier ones again.
fn change_cluster(cluster: &mut MeshCluster, initial: &MeshCluster, turn: u32, random: &mut StdRng) {
    cluster.change_one_percent(random);
    if turn.is_multiple_of(2) {
        cluster.delete_one_percent(random);
    } else {
        cluster.restore_missing(initial);
    }
    cluster.add_endpoints(ADDRESSES_ADDED);
    let addresses = cluster.keys_of("ip/v1");
    let surplus = addresses.len().saturating_sub(ADDRESSES_MAX);
    addresses.choose_multiple(random, surplus).for_each(|key| cluster.delete(key));
}

#[tokio::test]
async fn a_changing_mesh_causes_no_report() {
    let seed = number_in_environment("MESHKEEP_VERIFICATION_SEED").unwrap_or(17);
    let run_time = number_in_environment("MESHKEEP_VERIFICATION_SECONDS").map(Duration::from_secs);
    let mut mesh = ChurnMesh::start(seed).await;
    mesh.check("the start").await;
    let started = Instant::now();
    let mut done: BTreeMap<ChurnEvent, u32> = BTreeMap::new();
    while done.is_empty() || run_time.is_some_and(|run_time| started.elapsed() < run_time) {
        let mut events = EVENTS;
        events.shuffle(&mut mesh.random);
        for event in events {
            let since = Instant::now();
            mesh.run(event).await;
            *done.entry(event).or_default() += 1;
            println!("{event:?}: {:.1} s", since.elapsed().as_secs_f64());
        }
    }
    let (events, rounds) = (done.values().sum::<u32>(), mesh.round_count());
    assert!(rounds > events as usize, "{rounds} rounds in {events} events");
    println!(
        "verification, seed {seed}: {events} events in {:.0} s: {done:?}; {} changes of each of 4 clusters, at least {rounds} rounds, 0 differences",
        started.elapsed().as_secs_f64(),
        mesh.turn,
    );
}
