//! Soak test of the change stream. Checkers rebuild the state from the stream alone, while
//! meshkeep, the etcds and the connections are killed, restarted and cut. Whenever the changes
//! pause, no object may be missing or left over. No event may be out of order.
//!
//! CI runs it until 200,000 changes were delivered, `scripts/soak` until `MESHKEEP_SOAK_EVENTS`.
//! `MESHKEEP_SOAK_SEED` repeats the order of actions and changes, but not their timing.

mod chaos;
mod checker;
mod churn;
mod compare;
mod decode;
mod spec;
mod state;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::chaos::{ACTIONS, Action, Sidecar, act};
use self::checker::{CheckerHandle, Signals, Target};
use self::churn::Sources;
use self::compare::{CatchUpMethod, Snapshot};
use self::spec::{Encoding, checkers};
use self::state::Tally;
use crate::harness::etcd::etcd_binaries;
use crate::harness::scene::wait_until_served;

/// True if a resume after a `kill -9` with an intact directory must work without a `reset`
/// (docs/develop/invariants.md, 6).
const RESUMES_AFTER_KILL: bool = true;

/// Number of changes delivered in CI.
const EVENTS_IN_CI: u64 = 200_000;

/// Number of changes during one action, in CI and in the long run.
const BURST_IN_CI: u64 = 700;
const BURST_IN_LONG_RUN: u64 = 6_000;

/// Number of actions between two comparisons.
const ACTIONS_BETWEEN_COMPARISONS: usize = 2;

/// Maximum duration of a run, so that a run that delivers nothing ends.
const RUN_MAX: Duration = Duration::from_secs(4 * 3600);

/// State of a run.
struct Soak {
    random: StdRng,
    sources: Sources,
    sidecar: Sidecar,
    checkers: Vec<CheckerHandle>,
    calm: watch::Sender<bool>,
    /// Tasks of the checkers. They are aborted when the run is dropped.
    _tasks: JoinSet<()>,
    actions: BTreeMap<Action, u32>,
    comparisons: u64,
    quiet_moments: u64,
    burst: u64,
    started: Instant,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkers_have_the_true_state_after_every_failure() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap_or_else(|e| panic!("{name}: {e}")));
    let seed = number("MESHKEEP_SOAK_SEED").unwrap_or_else(|| rand::random_range(0..1_000_000));
    let events = number("MESHKEEP_SOAK_EVENTS").unwrap_or(EVENTS_IN_CI);
    println!("MESHKEEP_SOAK_SEED={seed} MESHKEEP_SOAK_EVENTS={events}");
    let mut soak = Soak::start(seed, if events > EVENTS_IN_CI { BURST_IN_LONG_RUN } else { BURST_IN_CI }).await;
    soak.compare("the start", CatchUpMethod::Resume).await;
    loop {
        let mut actions = ACTIONS;
        actions.shuffle(&mut soak.random);
        for round in actions.chunks(ACTIONS_BETWEEN_COMPARISONS) {
            soak.round(round).await;
        }
        if soak.tally().changes() >= events {
            break;
        }
        assert!(soak.started.elapsed() < RUN_MAX, "too few events: {:?}", soak.tally());
    }
    // the last positions arrive only with bookmarks
    soak.compare("the end", CatchUpMethod::Bookmark).await;
    println!("{}", soak.report(seed));
    soak.expect_coverage();
}

impl Soak {
    async fn start(seed: u64, burst: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let sources = Sources::start(&etcd_binaries()[0], random.random()).await;
        let (target, target_receiver) = watch::channel(Target::default());
        let (calm, calm_receiver) = watch::channel(true);
        let (away, away_receiver) = watch::channel(0);
        let sidecar = Sidecar::start(&sources, target, away).await;
        let signals = Signals { target: target_receiver, calm: calm_receiver, away: away_receiver };
        let document = sidecar.meshkeep().get("/openapi.json").await;
        let mut tasks = JoinSet::new();
        let mut handles = Vec::new();
        for mut spec in checkers() {
            spec.form = supported(spec.form, &document);
            handles.push(CheckerHandle::start(spec, signals.clone(), random.random(), &mut tasks));
        }
        Self {
            random,
            sources,
            sidecar,
            checkers: handles,
            calm,
            _tasks: tasks,
            actions: BTreeMap::new(),
            comparisons: 0,
            quiet_moments: 0,
            burst,
            started: Instant::now(),
        }
    }

    /// Runs these actions while the sources change, and then a comparison.
    async fn round(&mut self, actions: &[Action]) {
        self.calm.send_replace(false);
        for action in actions {
            self.sources.churn(self.burst).await;
            act(*action, &mut self.sources, &mut self.sidecar, &mut self.random, self.burst).await;
            *self.actions.entry(*action).or_default() += 1;
            self.expect_no_violation(&format!("{action:?}"));
        }
        self.compare(&format!("{actions:?}"), CatchUpMethod::Resume).await;
    }

    /// Waits until nothing changes. Compares the lists with the sources, and every checker with the
    /// lists.
    async fn compare(&mut self, after: &str, reaching: CatchUpMethod) {
        self.calm.send_replace(true);
        wait_until_served(self.sidecar.meshkeep(), &self.sources.truth().expected(), after).await;
        let names: Vec<String> = self.sources.client_files().into_iter().map(|(name, _)| name).collect();
        for name in names {
            self.sidecar.meshkeep().wait_for_phase(&name, "live").await;
        }
        let snapshot = Snapshot::read_when_quiet(self.sidecar.meshkeep().url()).await;
        let compared: Vec<Result<u64, String>> =
            futures_util::future::join_all(self.checkers.iter().map(|checker| snapshot.compare(checker, reaching))).await;
        self.expect_no_violation(after);
        for result in compared {
            self.comparisons += result.unwrap_or_else(|difference| panic!("after {after}: {difference}"));
        }
        self.quiet_moments += 1;
    }

    fn expect_no_violation(&self, after: &str) {
        let violations: Vec<String> = self.checkers.iter().flat_map(|checker| checker.shared.state().violations.clone()).collect();
        assert!(violations.is_empty(), "after {after} the stream broke its rules:\n{}", violations.join("\n"));
    }

    /// Checks that the intended events happened: a run without resets and resumes proves nothing.
    fn expect_coverage(&self) {
        let tally = self.tally();
        let resets = |reason: &str| tally.resets.get(reason).copied().unwrap_or(0);
        // resets after the store lost its tail, and after tombstones later than a position were
        // dropped
        assert!(resets("foreignEpoch") + resets("rolledBack") > 0 && resets("expired") > 0, "{:?}", tally.resets);
        assert!(tally.resumes > 0 && (!RESUMES_AFTER_KILL || tally.resumes_over_restarts > 0), "{tally:?}");
        assert!(
            self.checkers.len() >= 20
                && self.checkers.iter().filter(|checker| checker.spec.is_filtered()).count() * 2 >= self.checkers.len()
        );
    }

    fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        self.checkers.iter().for_each(|checker| sum.add(&checker.shared.state().tally));
        sum
    }

    fn report(&self, seed: u64) -> String {
        let Tally { live, replayed, snapshot, patches, connections, resumes, resumes_over_restarts, resets, idle, bookmarks } =
            self.tally();
        let forms = |form| self.checkers.iter().filter(|checker| checker.spec.form == form).count();
        format!(
            "soak: seed {seed}, {} s, {} checkers ({} SSE, {} NDJSON, {} patch, {} long poll; {} filtered)\n\
             written {}; delivered {} changes ({live} live, {replayed} in replays, {patches} of them patches; {idle} idle) and {snapshot} in snapshots\n\
             {connections} connections, {resumes} resumes ({resumes_over_restarts} over a restart), resets {resets:?}, {bookmarks} bookmarks\n\
             {} starts of meshkeep, actions {:?}\n\
             {} comparisons of one kind at {} quiet moments; nothing missing, left over or out of order",
            self.started.elapsed().as_secs(),
            self.checkers.len(),
            forms(Encoding::Sse),
            forms(Encoding::NdJson),
            forms(Encoding::Patch),
            forms(Encoding::Changes),
            self.checkers.iter().filter(|checker| checker.spec.is_filtered()).count(),
            self.sources.written,
            live + replayed,
            self.sidecar.starts,
            self.actions,
            self.comparisons,
            self.quiet_moments,
        )
    }
}

/// Returns the encoding, or server-sent events if this meshkeep does not support that encoding.
fn supported(form: Encoding, document: &serde_json::Value) -> Encoding {
    let paths = &document["paths"];
    let parameters = paths["/v1/events"]["get"]["parameters"].as_array();
    let has_patch = parameters.is_some_and(|parameters| parameters.iter().any(|parameter| parameter["name"] == "patch"));
    match form {
        Encoding::Changes if paths["/v1/changes"].is_null() => Encoding::Sse,
        Encoding::Patch if !has_patch => Encoding::Sse,
        form => form,
    }
}
