//! Remotes with a malicious etcd. Each is disconnected with a reason or limited; memory stays
//! within its bound, and the cluster next to it stays correct and live. `scripts/attack remote`
//! runs the same with the limits of a real installation.

use std::time::Duration;

use crate::harness::etcd::Etcd;
use crate::harness::hostile::{HostileEtcd, Mode};
use crate::harness::mesh::{FULL, Form, MeshCluster, SMALL, publish, rewrite};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::truth::{Truth, object_difference, served_objects_of};
use crate::harness::{PATIENCE, eventually, eventually_within};

/// Limits and sizes of a run.
struct RunLimits {
    flags: [&'static str; 2],
    /// Flag of the limit that endless small keys reach first.
    first_bound: &'static str,
    /// Maximum resident memory at any time, in bytes.
    resident_max: u64,
    /// Number of keys in a page that should have three.
    page_keys: u64,
    /// Number of endpoint slices.
    slices: u64,
    /// Number of endpoints in a slice, each of which needs two bytes before compression.
    endpoints: u32,
    honest: crate::harness::mesh::Shape,
    /// Maximum time until meshkeep has read the hostile cluster or has stopped reading it.
    patience: Duration,
}

impl RunLimits {
    /// Returns the limits of a test, or those of the attack if `MESHKEEP_ATTACK_REMOTE` is set.
    fn from_environment() -> Self {
        if std::env::var_os("MESHKEEP_ATTACK_REMOTE").is_some() {
            return Self {
                flags: ["--cluster-max-keys=2000000", "--cluster-max-bytes=200MiB"],
                first_bound: "--cluster-max-bytes",
                resident_max: 1_500_000_000,
                page_keys: 200_000,
                slices: 1_000,
                // a value with more than 100,000 elements is refused (`wire/protobuf.rs`)
                endpoints: 99_000,
                honest: FULL,
                // for 2,000,000 keys that arrive one event at a time, or 50,000,000 endpoints that
                // a debug build decodes
                patience: Duration::from_secs(900),
            };
        }
        // twice the cluster's bytes, three messages of 32 MiB in transit, the budget for decoded
        // values, and the program itself
        let resident_max = (2 * 32 + 3 * 32 + 256 + 64) << 20;
        let flags = ["--cluster-max-keys=20000", "--cluster-max-bytes=32MiB"];
        Self {
            flags,
            first_bound: "--cluster-max-keys",
            resident_max,
            page_keys: 50_000,
            slices: 60,
            endpoints: 90_000,
            honest: SMALL,
            // a busy machine decodes 90,000 endpoints slowly
            patience: 4 * PATIENCE,
        }
    }
}

/// A hostile cluster `c02` next to an honest one.
struct Attack {
    mode: Mode,
    limits: RunLimits,
    etcd: Etcd,
    honest: MeshCluster,
    hostile: HostileEtcd,
    meshkeep: Meshkeep,
    home: Home,
}

impl Attack {
    /// Starts the honest cluster, and then the hostile one once the first is served.
    async fn start(mode: Mode, limits: RunLimits) -> Self {
        let (etcd, hostile) = tokio::join!(Etcd::start(), HostileEtcd::start(mode));
        let honest = MeshCluster::generate(1, limits.honest);
        publish(&etcd, Form::State, std::slice::from_ref(&honest), "2026-01-12T09:31:07Z").await;
        // the hostile etcd has no heartbeat, and decoding may take longer than the allowed silence
        let mut home =
            Home::new().with_flags(&limits.flags).with_flags(&["--backoff-min=50ms", "--too-large-wait=1h", "--heartbeat-silence=1h"]);
        home.write_cluster("c01", &etcd.client_file_yaml());
        let meshkeep = home.start().await;
        let attack = Self { mode, limits, etcd, honest, hostile, meshkeep, home };
        attack.wait_until_honest_cluster_exact().await;
        attack.home.write_cluster("c02", &attack.hostile.client_file());
        attack
    }

    async fn wait_until_honest_cluster_exact(&self) {
        let expected = Truth::from_clusters([&self.honest]).expected().objects;
        let is_exact =
            || async { object_difference("object", &expected, &served_objects_of(&self.meshkeep, "c01").await).is_none().then_some(()) };
        eventually("the honest cluster to be served exactly", is_exact).await;
        self.meshkeep.wait_for_phase("c01", "live").await;
    }

    /// Waits until the hostile cluster is disconnected with this reason. `is_too_large` says
    /// whether a finding `clusterTooLarge` must report it.
    async fn wait_until_disconnected(&self, reason: &str, is_too_large: bool) {
        let backs_off = || async {
            let cluster = self.meshkeep.cluster("c02").await;
            (cluster["phase"] == "backingOff" && cluster["lastError"].as_str()?.contains(reason)).then_some(())
        };
        eventually_within(self.limits.patience, &format!("{:?} to be disconnected: {reason}", self.mode), backs_off).await;
        let problems = self.meshkeep.get("/v1/problems?kind=clusterTooLarge").await;
        let reported = problems["items"].as_array().unwrap().iter().any(|finding| {
            let detail = finding["detail"].as_str().unwrap();
            finding["id"] == "clusterTooLarge/c02" && detail.contains(reason)
        });
        assert_eq!(reported, is_too_large, "{problems}");
    }

    /// Checks that the honest cluster still changes, that nothing was restarted, and that memory
    /// stayed within its bound.
    async fn finish(mut self) {
        let before = self.honest.clone();
        self.honest.add_endpoints(5);
        rewrite(&self.etcd, Form::State, &before, &self.honest).await;
        self.wait_until_honest_cluster_exact().await;
        let peak = self.meshkeep.resident_peak();
        println!("{:?}: {} MB resident at most, {} answers asked for", self.mode, peak / 1_000_000, self.hostile.answers());
        assert!(peak <= self.limits.resident_max, "{:?}: {peak} bytes were resident", self.mode);
        assert_eq!(self.meshkeep.stop().await.status.code(), Some(0));
    }
}

/// Runs an attack that ends because the cluster is too large. The cluster is not tried again for an
/// hour, and keeps its entries.
async fn expect_too_large(mode: Mode, reason: &str) {
    let attack = Attack::start(mode, RunLimits::from_environment()).await;
    attack.wait_until_disconnected(reason, true).await;
    attack.finish().await;
}

#[tokio::test]
async fn an_endless_list_ends_at_the_count_that_the_server_claims() {
    expect_too_large(Mode::EndlessList, "keys of a list that has 10000 by the server's own count").await;
}

#[tokio::test]
async fn a_page_with_more_keys_than_claimed_is_refused() {
    let limits = RunLimits::from_environment();
    let (mode, reason) = (Mode::MoreThanCounted(limits.page_keys), format!("{} keys of a list that has 3 by", limits.page_keys));
    expect_too_large(mode, &reason).await;
}

#[tokio::test]
async fn a_list_that_claims_the_maximum_count_is_not_started() {
    expect_too_large(Mode::MaximumCount, "--cluster-max-keys").await;
}

#[tokio::test]
async fn large_values_are_read_up_to_the_limit_in_bytes() {
    expect_too_large(Mode::LargeValues, "--cluster-max-bytes").await;
}

#[tokio::test]
async fn too_many_heartbeats_canaries_or_configs_are_refused() {
    for mode in [Mode::Heartbeats, Mode::Canaries, Mode::Configs] {
        expect_too_large(mode, "where Cilium writes a few").await;
    }
}

#[tokio::test]
async fn an_endless_watch_ends_at_the_first_limit() {
    expect_too_large(Mode::EndlessWatch, RunLimits::from_environment().first_bound).await;
}

#[tokio::test]
async fn endless_heartbeats_end_their_watch() {
    expect_too_large(Mode::EndlessHeartbeats, "where Cilium writes a few").await;
}

/// A watch that sends nothing is detected although the heartbeat is not late yet and the connection
/// answers pings.
#[tokio::test]
async fn a_silent_watch_ends_its_connection() {
    let hostile = HostileEtcd::start(Mode::SilentWatch).await;
    let mut home = Home::new().with_flags(&["--watch-silence=1s"]);
    home.write_cluster("c02", &hostile.client_file());
    let meshkeep = home.start().await;
    meshkeep.wait_for_field("c02", "lastError", "the watch was silent for 1s").await;
    assert_eq!(meshkeep.stop().await.status.code(), Some(0));
}

/// A suspension of this length is a stall: `STALL_MIN` (`connection/watch_stream.rs` in
/// `cilium-kvstore`) and one second.
const STALL: Duration = Duration::from_secs(6);

/// After a stall everything is compared, because etcd before 3.4.31 and 3.5.13 may omit events then
/// (docs/develop/protocol.md, trap 32).
#[tokio::test]
async fn entries_are_listed_again_after_a_stalled_watch() {
    let hostile = HostileEtcd::start(Mode::Churn).await;
    let mut home = Home::new();
    home.write_cluster("c02", &hostile.client_file());
    let meshkeep = home.start().await;
    meshkeep.wait_for_phase("c02", "live").await;
    let before = hostile.lists();
    // repeated, because a suspension may happen while no response waits to be read
    for _ in 0..5 {
        meshkeep.signal("STOP");
        tokio::time::sleep(STALL).await;
        meshkeep.signal("CONT");
        let answers = hostile.answers();
        eventually("answers to be read again", || async { (hostile.answers() > answers + 100).then_some(()) }).await;
        if hostile.lists() > before {
            break;
        }
    }
    assert!(hostile.lists() > before, "nothing was compared");
    assert_eq!(meshkeep.stop().await.status.code(), Some(0));
}

#[tokio::test]
async fn an_etcd_whose_revision_decreases_is_tried_again() {
    let attack = Attack::start(Mode::DecreasingRevision, RunLimits::from_environment()).await;
    attack.wait_until_disconnected("went back from revision", false).await;
    let reported = attack.meshkeep.get("/v1/problems?kind=revisionWentBack").await;
    assert_eq!(reported["items"][0]["clusters"], serde_json::json!(["c02"]), "{reported}");
    assert!(reported["items"][0]["detail"].as_str().unwrap().contains("went back from revision"), "{reported}");
    attack.finish().await;
}

/// The largest possible revision is treated like any other: read, stored, and continued from after
/// a kill.
#[tokio::test]
async fn a_remote_at_the_maximum_revision_is_mirrored() {
    let mut attack = Attack::start(Mode::LastRevision, RunLimits::from_environment()).await;
    for start in ["the first", "the second"] {
        attack.meshkeep.wait_for_phase("c02", "live").await;
        let service = attack.meshkeep.get("/v1/services/c02/shop/s000000000").await;
        assert_eq!(service["meta"]["revision"], i64::MAX, "{start}: {service}");
        attack.meshkeep.kill();
        attack.meshkeep = attack.home.start().await;
    }
    attack.finish().await;
}

/// Endpoint slices that decode to gigabytes exceed no limit, so they are mirrored in encoded form.
/// A client that requests them gets them or an error with the reason. Only as many of their
/// addresses are indexed as the budget allows.
#[tokio::test]
async fn huge_endpoint_slices_use_their_encoded_size() {
    let limits = RunLimits::from_environment();
    let attack = Attack::start(Mode::Slices(limits.slices, limits.endpoints), limits).await;
    let is_live = || async { (attack.meshkeep.phase("c02").await == "live").then_some(()) };
    eventually_within(attack.limits.patience, "the slices to be read", is_live).await;
    for number in [0, 1] {
        let (status, answer) = attack.meshkeep.send_get(&format!("/v1/endpoint-slices/c02/shop/s{number:09}")).await;
        assert!(status == 200 || answer["code"] == "memoryLimitReached", "{status}: {}", answer["detail"]);
    }
    let asked = (0..6)
        .map(|number| attack.meshkeep.send_get(if number % 2 == 0 { "/v1/endpoint-slices?cluster=c02" } else { "/v1/explain/0.0.0.1" }));
    for (status, answer) in futures_util::future::join_all(asked).await {
        assert!(status == 200 || answer["code"] == "memoryLimitReached", "{status}: {}", answer["detail"]);
    }
    // once everything is indexed, the budget is exceeded
    let all_seen = || async { (attack.meshkeep.get("/v1/problems").await["complete"] == true).then_some(()) };
    eventually_within(attack.limits.patience, "everything to be indexed", all_seen).await;
    assert_eq!(attack.meshkeep.get("/v1/explain/0.0.0.1").await["complete"], false);
    attack.finish().await;
}
