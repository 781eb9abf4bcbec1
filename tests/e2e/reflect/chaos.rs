//! Two meshkeeps reflect three clusters into an etcd of three members during 14 kinds of events.
//! After each event the target is compared key by key, and its own history shows whether anything
//! went wrong in between.
//!
//! CI runs each event once. `MESHKEEP_REFLECT_CHAOS_SECONDS` runs random events for that time, and
//! `MESHKEEP_REFLECT_CHAOS_SEED` repeats an earlier order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions};
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use super::contents::{contents, expected, wait_for_contents};
use super::events::{CHAOS_EVENTS, ChaosEvent};
use super::history::{AllowedDeviations, Mark, SourceContents, events_since};
use crate::harness::etcd::{Etcd, EtcdMembers, etcd_binaries};
use crate::harness::mesh::{EVERY_KIND, Form, MeshCluster, SMALL};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::proxy::Proxy;
use crate::harness::scene::Remote;
use crate::harness::{eventually, number_in_environment};

/// Number of members of the target.
const MEMBERS: usize = 3;

/// User name and password of the writers.
const USER: (&str, &str) = ("meshkeep", "secret");

/// Short lifetimes, so that no wait is long. The audit finds changes by other clients.
const FLAGS: [&str; 6] =
    ["--to-lock-ttl=2s", "--to-lease-ttl=25s", "--to-audit-interval=1s", "--drain-grace=1s", "--backoff-min=100ms", "--backoff-max=1s"];

/// One of the two writers, with its own proxy to each member of the target.
pub(super) struct Writer {
    pub(super) home: Home,
    pub(super) wires: Vec<Proxy>,
    pub(super) meshkeep: Option<Meshkeep>,
}

/// The target, the sources and the writers.
pub(super) struct ChaosMesh {
    pub(super) target: EtcdMembers,
    pub(super) writers: Vec<Writer>,
    /// The first source has one cluster in state form, the second three in cache form.
    pub(super) sources: Vec<Remote>,
    /// Names of the clusters that have a client file.
    pub(super) present: BTreeSet<String>,
    pub(super) random: StdRng,
    pub(super) truth: SourceContents,
    /// Keys written by other clients that must stay.
    pub(super) foreign: BTreeMap<String, String>,
    mark: Mark,
    stamp: u32,
}

impl ChaosMesh {
    async fn start(seed: u64) -> Self {
        let binary = &etcd_binaries()[0];
        let builder = Etcd::builder().binary(binary).flag("--bcrypt-cost=4");
        let mut target = builder.start_members(MEMBERS).await;
        target.enable_auth(USER.0, USER.1).await;
        let cached = [2, 3, 4].map(|id| MeshCluster::generate(id, SMALL)).to_vec();
        let sources = vec![
            Remote::start(binary, Form::State, vec![MeshCluster::generate(1, EVERY_KIND)]).await,
            Remote::start(binary, Form::Cache, cached).await,
        ];
        let mut mesh = Self {
            target,
            writers: Vec::new(),
            sources,
            present: ["c01", "c02", "c03"].map(str::to_owned).into(),
            random: StdRng::seed_from_u64(seed),
            truth: SourceContents::default(),
            foreign: BTreeMap::new(),
            mark: Mark::default(),
            stamp: 0,
        };
        for _ in 0..2 {
            let wires = join_all(mesh.target.members.iter().map(|member| Proxy::to(member.port()))).await;
            let endpoints: String = wires.iter().map(|wire| format!("- http://127.0.0.1:{}\n", wire.port())).collect();
            let file = format!("endpoints:\n{endpoints}username: {}\npassword: {}\n", USER.0, USER.1);
            let home = Home::new().with_reflect_to(&file).with_flags(&FLAGS);
            for name in &mesh.present {
                home.write_cluster(name, &mesh.file_of(name));
            }
            let mut writer = Writer { home, wires, meshkeep: None };
            writer.start().await;
            mesh.writers.push(writer);
        }
        mesh.record_contents();
        mesh.wait_for_contents("the start").await;
        mesh
    }

    /// Returns the client file of a cluster.
    pub(super) fn file_of(&self, name: &str) -> String {
        let has = |source: &&Remote| source.clusters.iter().any(|cluster| cluster.name == name);
        self.sources.iter().find(has).unwrap().client_file()
    }

    fn clusters(&self) -> impl Iterator<Item = &MeshCluster> {
        self.sources.iter().flat_map(|source| &source.clusters).filter(|cluster| self.present.contains(&cluster.name))
    }

    /// Records the sources' current contents as valid.
    pub(super) fn record_contents(&mut self) {
        let mut truth = std::mem::take(&mut self.truth);
        truth.record_contents(self.clusters());
        self.truth = truth;
    }

    /// Changes every cluster. Deletes keys only if `deletes` is set.
    pub(super) async fn change(&mut self, deletes: bool) {
        let mut random = StdRng::seed_from_u64(self.random.random());
        // recorded first, because the change may be visible before this function ends
        for source in &mut self.sources {
            let mut after = source.clusters.clone();
            for cluster in &mut after {
                cluster.change_one_percent(&mut random);
                cluster.add_endpoints(2);
                if deletes {
                    let keys = cluster.keys_of("ip/v1");
                    keys.choose_multiple(&mut random, 2).for_each(|key| cluster.delete(key));
                }
            }
            let before = std::mem::replace(&mut source.clusters, after);
            for (before, after) in before.iter().zip(&source.clusters) {
                self.truth.record_contents_of(after);
                crate::harness::mesh::rewrite(&source.etcd, source.form, before, after).await;
            }
        }
    }

    /// Returns a canary value that no etcd has seen yet.
    pub(super) fn next_stamp(&mut self) -> String {
        self.stamp += 1;
        format!("2026-02-{:02}T{:02}:{:02}:00Z", 1 + self.stamp / 1440 % 28, self.stamp / 60 % 24, self.stamp % 60)
    }

    pub(super) async fn client(&self) -> Client {
        self.target.client().await
    }

    fn expected(&self) -> BTreeMap<String, String> {
        let mut all = expected(self.clusters());
        all.extend(self.foreign.clone());
        all
    }

    pub(super) async fn wait_for_contents(&self, after: &str) {
        wait_for_contents(&self.client().await, &self.expected(), after).await;
    }

    pub(super) async fn contents(&self) -> BTreeMap<String, String> {
        contents(&self.client().await).await
    }

    /// Sets the target up again after a wipe: users and history were lost with the data.
    pub(super) async fn set_up_wiped_target(&mut self) {
        self.target.restart().await;
        self.target.enable_auth(USER.0, USER.1).await;
        self.foreign.clear();
        self.mark = Mark::default();
    }

    /// Starts a new history at the current revision.
    pub(super) async fn start_history(&mut self) {
        let reply = self.client().await.get("cilium/cache/", Some(GetOptions::new().with_prefix())).await.unwrap();
        let entries = reply.kvs().iter().map(|kv| (kv.key_str().unwrap().to_owned(), kv.value().to_vec())).collect();
        self.mark = Mark { revision: reply.header().unwrap().revision(), entries };
    }

    /// Checks the history up to now.
    pub(super) async fn check(&mut self, before: &BTreeSet<String>, allowed: &AllowedDeviations, during: &str) {
        let events = events_since(self.client().await, self.mark.revision).await;
        let after: BTreeSet<String> = self.keys();
        let lasting = before.intersection(&after).cloned().collect();
        self.truth.check(std::mem::take(&mut self.mark), &events, &lasting, allowed, during);
    }

    /// Returns the keys of all expected entries.
    pub(super) fn keys(&self) -> BTreeSet<String> {
        self.clusters().flat_map(|cluster| cluster.entries.keys().cloned()).collect()
    }

    /// Waits until exactly one writer reports itself as leader, and returns its index.
    pub(super) async fn wait_for_leader(&self) -> usize {
        let find = async || {
            let mut leaders = Vec::new();
            for (number, writer) in self.writers.iter().enumerate() {
                if let Some(meshkeep) = &writer.meshkeep
                    && meshkeep.send_get("/v1/status").await.1["reflection"]["leader"] == true
                {
                    leaders.push(number);
                }
            }
            <[usize; 1]>::try_from(leaders).ok().map(|[leader]| leader)
        };
        eventually("exactly one leader", find).await
    }

    /// Waits until one writer leads and none reports a problem.
    async fn wait_until_recovered(&self, after: &str) {
        self.wait_for_leader().await;
        for meshkeep in self.writers.iter().filter_map(|writer| writer.meshkeep.as_ref()) {
            eventually(&format!("no problem after {after}"), async || (problems(meshkeep).await == 0).then_some(())).await;
        }
    }

    async fn run_act(&mut self, act: ChaosEvent) {
        let (name, before) = (format!("{act:?}"), self.keys());
        self.start_history().await;
        let allowed = act.run(self).await;
        self.record_contents();
        self.wait_for_contents(&name).await;
        self.check(&before, &allowed, &name).await;
        self.wait_until_recovered(&name).await;
    }
}

impl Writer {
    pub(super) async fn start(&mut self) {
        self.meshkeep = Some(self.home.start().await);
    }

    pub(super) fn running(&self) -> &Meshkeep {
        self.meshkeep.as_ref().expect("must be running")
    }

    pub(super) fn kill(&mut self) {
        self.meshkeep.take().expect("must be running").kill();
    }

    pub(super) async fn cut(&mut self) {
        for wire in &mut self.wires {
            wire.cut().await;
        }
    }

    pub(super) async fn restore(&mut self) {
        for wire in &mut self.wires {
            wire.restore().await;
        }
    }
}

/// Returns the number of findings about a target that cannot be written.
pub(super) async fn problems(meshkeep: &Meshkeep) -> usize {
    meshkeep.get("/v1/problems?kind=targetUnwritable").await["items"].as_array().unwrap().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_target_is_right_during_and_after_every_event() {
    let seed = number_in_environment("MESHKEEP_REFLECT_CHAOS_SEED").unwrap_or(28);
    let run_time = number_in_environment("MESHKEEP_REFLECT_CHAOS_SECONDS").map(Duration::from_secs);
    let started = Instant::now();
    let mut mesh = ChaosMesh::start(seed).await;
    let mut done: BTreeMap<ChaosEvent, u32> = BTreeMap::new();
    while done.is_empty() || run_time.is_some_and(|run_time| started.elapsed() < run_time) {
        let mut round = CHAOS_EVENTS;
        round.shuffle(&mut mesh.random);
        for act in round {
            let since = Instant::now();
            mesh.run_act(act).await;
            *done.entry(act).or_default() += 1;
            println!("{act:?}: {:.1} s", since.elapsed().as_secs_f64());
        }
    }
    println!("reflect, seed {seed}: {} acts in {:.0} s: {done:?}", done.values().sum::<u32>(), started.elapsed().as_secs_f64());
    for writer in &mut mesh.writers {
        let ended = writer.meshkeep.take().unwrap().stop().await;
        assert!(ended.status.success(), "{}", ended.log);
    }
}
