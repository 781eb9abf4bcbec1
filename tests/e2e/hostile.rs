//! Remotes with a malicious etcd. Each is disconnected with a reason or limited; memory stays
//! within its bound, and the cluster next to it stays correct and live. `scripts/attack remote`
//! runs the same with the limits of a real installation.

use std::time::Duration;

use crate::harness::etcd::Etcd;
use crate::harness::hostile::{Hostile, Mode};
use crate::harness::mesh::{FULL, Form, MeshCluster, SMALL, publish, rewrite};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::truth::{Truth, difference_of, served_of};
use crate::harness::{PATIENCE, eventually, eventually_within};

/// Limits and sizes of a run.
struct Size {
    flags: [&'static str; 2],
    /// The limit that small keys without end reach first.
    first_bound: &'static str,
    /// Maximum resident memory at any time, in bytes.
    resident_max: u64,
    /// Number of keys in a page that should have three.
    page_keys: u64,
    /// Number of endpoint slices, and number of endpoints in each, which need two bytes each before
    /// compression.
    slices: u64,
    endpoints: u32,
    honest: crate::harness::mesh::Shape,
    /// Maximum time until the hostile cluster was read as far as it is read at all.
    patience: Duration,
}

impl Size {
    /// Returns the size of a test, or that of the attack if `MESHKEEP_ATTACK_REMOTE` is set.
    fn chosen() -> Self {
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
            patience: PATIENCE,
        }
    }
}

/// A hostile cluster `c02` next to an honest one.
struct Attack {
    mode: Mode,
    size: Size,
    etcd: Etcd,
    honest: MeshCluster,
    hostile: Hostile,
    meshkeep: Meshkeep,
    home: Home,
}

impl Attack {
    /// Starts the honest cluster, and then the hostile one once the first is served.
    async fn begin(mode: Mode, size: Size) -> Self {
        let (etcd, hostile) = tokio::join!(Etcd::start(), Hostile::start(mode));
        let honest = MeshCluster::generate(1, size.honest);
        publish(&etcd, Form::State, std::slice::from_ref(&honest), "2026-01-12T09:31:07Z").await;
        // the hostile etcd has no heartbeat, and decoding may take longer than the allowed silence
        let mut home =
            Home::new().with_flags(&size.flags).with_flags(&["--backoff-min=50ms", "--too-large-wait=1h", "--heartbeat-silence=1h"]);
        home.write_cluster("c01", &etcd.client_file_yaml());
        let meshkeep = home.start().await;
        let attack = Self { mode, size, etcd, honest, hostile, meshkeep, home };
        attack.honest_one_is_exact().await;
        attack.home.write_cluster("c02", &attack.hostile.client_file());
        attack
    }

    async fn honest_one_is_exact(&self) {
        let expected = Truth::of([&self.honest]).expected().objects;
        let is_exact = || async { difference_of("object", &expected, &served_of(&self.meshkeep, "c01").await).is_none().then_some(()) };
        eventually("the honest cluster to be served exactly", is_exact).await;
        self.meshkeep.reaches("c01", "live").await;
    }

    /// Waits until the hostile cluster is disconnected for a reason. `is_too_much` says that it
    /// must be in the phase for clusters that are too large.
    async fn is_left_alone(&self, reason: &str, is_too_much: bool) {
        let backs_off = || async {
            let cluster = self.meshkeep.cluster("c02").await;
            (cluster["phase"] == "backingOff" && cluster["lastError"].as_str()?.contains(reason)).then_some(())
        };
        eventually_within(self.size.patience, &format!("{:?} to be left alone: {reason}", self.mode), backs_off).await;
        let problems = self.meshkeep.get("/v1/problems?kind=clusterTooLarge").await;
        let reported = problems["items"].as_array().unwrap().iter().any(|finding| {
            let detail = finding["detail"].as_str().unwrap();
            finding["id"] == "clusterTooLarge/c02" && detail.contains(reason)
        });
        assert_eq!(reported, is_too_much, "{problems}");
    }

    /// Checks that the honest cluster still changes, that nothing was restarted, and that memory
    /// stayed within its bound.
    async fn ends(mut self) {
        let before = self.honest.clone();
        self.honest.add_endpoints(5);
        rewrite(&self.etcd, Form::State, &before, &self.honest).await;
        self.honest_one_is_exact().await;
        let peak = self.meshkeep.resident_peak();
        println!("{:?}: {} MB resident at most, {} answers asked for", self.mode, peak / 1_000_000, self.hostile.answers());
        assert!(peak <= self.size.resident_max, "{:?}: {peak} bytes were resident", self.mode);
        assert_eq!(self.meshkeep.stop().await.status.code(), Some(0));
    }
}

/// A cluster that is too large is not tried again for an hour in this test, and keeps its entries.
async fn is_too_much(mode: Mode, reason: &str) {
    let attack = Attack::begin(mode, Size::chosen()).await;
    attack.is_left_alone(reason, true).await;
    attack.ends().await;
}

#[tokio::test]
async fn a_list_that_never_ends_is_given_up_at_the_server_s_own_count() {
    is_too_much(Mode::EndlessList, "keys of a list that has 10000 by the server's own count").await;
}

#[tokio::test]
async fn a_page_of_more_keys_than_were_counted_is_refused() {
    let size = Size::chosen();
    let (mode, reason) = (Mode::MoreThanCounted(size.page_keys), format!("{} keys of a list that has 3 by", size.page_keys));
    is_too_much(mode, &reason).await;
}

#[tokio::test]
async fn a_list_of_all_keys_that_there_can_be_is_not_begun() {
    is_too_much(Mode::CountWithoutEnd, "--cluster-max-keys").await;
}

#[tokio::test]
async fn values_of_the_largest_size_are_read_up_to_the_bound_in_bytes() {
    is_too_much(Mode::LargeValues, "--cluster-max-bytes").await;
}

#[tokio::test]
async fn heartbeats_canaries_and_configs_are_few_or_none_is_believed() {
    for mode in [Mode::Heartbeats, Mode::Canaries, Mode::Configs] {
        is_too_much(mode, "where Cilium writes a few").await;
    }
}

#[tokio::test]
async fn a_watch_that_never_ends_is_ended_at_the_first_bound_of_its_cluster() {
    is_too_much(Mode::EndlessWatch, Size::chosen().first_bound).await;
}

#[tokio::test]
async fn heartbeats_without_end_end_the_watch_of_them() {
    is_too_much(Mode::EndlessHeartbeats, "where Cilium writes a few").await;
}

/// A watch that sends nothing is detected although the heartbeat is not late yet and the connection
/// answers pings.
#[tokio::test]
async fn a_watch_that_is_silent_for_ever_ends_its_connection() {
    let hostile = Hostile::start(Mode::SilentWatch).await;
    let mut home = Home::new().with_flags(&["--watch-silence=1s"]);
    home.write_cluster("c02", &hostile.client_file());
    let meshkeep = home.start().await;
    meshkeep.says_of("c02", "lastError", "the watch was silent for 1s").await;
    assert_eq!(meshkeep.stop().await.status.code(), Some(0));
}

/// A suspension of this length is a stall: `STALL_MIN` (`connection/watch_stream.rs` in
/// `cilium-kvstore`) and one second.
const STALL: Duration = Duration::from_secs(6);

/// After a stall everything is compared, because etcd before 3.4.31 and 3.5.13 may omit events then
/// (docs/develop/protocol.md, trap 32).
#[tokio::test]
async fn what_is_held_is_compared_after_a_watch_was_held_up() {
    let hostile = Hostile::start(Mode::Churn).await;
    let mut home = Home::new();
    home.write_cluster("c02", &hostile.client_file());
    let meshkeep = home.start().await;
    meshkeep.reaches("c02", "live").await;
    let before = hostile.lists();
    // a suspension may happen while no response waits to be read
    for _ in 0..5 {
        meshkeep.signal("STOP");
        tokio::time::sleep(STALL).await;
        meshkeep.signal("CONT");
        let answers = hostile.answers();
        eventually("answers to be taken again", || async { (hostile.answers() > answers + 100).then_some(()) }).await;
        if hostile.lists() > before {
            break;
        }
    }
    assert!(hostile.lists() > before, "nothing was compared");
    assert_eq!(meshkeep.stop().await.status.code(), Some(0));
}

#[tokio::test]
async fn an_etcd_that_goes_back_is_left_and_tried_again() {
    let attack = Attack::begin(Mode::GoesBack, Size::chosen()).await;
    attack.is_left_alone("went back from revision", false).await;
    let reported = attack.meshkeep.get("/v1/problems?kind=revisionWentBack").await;
    assert_eq!(reported["items"][0]["clusters"], serde_json::json!(["c02"]), "{reported}");
    assert!(reported["items"][0]["detail"].as_str().unwrap().contains("went back from revision"), "{reported}");
    attack.ends().await;
}

/// The largest possible revision is treated like any other: read, stored, and continued from after
/// a kill.
#[tokio::test]
async fn a_remote_at_the_last_revision_that_there_is_is_mirrored() {
    let mut attack = Attack::begin(Mode::LastRevision, Size::chosen()).await;
    for start in ["the first", "the second"] {
        attack.meshkeep.reaches("c02", "live").await;
        let service = attack.meshkeep.get("/v1/services/c02/shop/s000000000").await;
        assert_eq!(service["meta"]["revision"], i64::MAX, "{start}: {service}");
        attack.meshkeep.kill();
        attack.meshkeep = attack.home.start().await;
    }
    attack.ends().await;
}

/// Endpoint slices that decode to gigabytes exceed no limit, so they are mirrored in encoded form.
/// A client that requests them gets them or an error with the reason. Only as many of their
/// addresses are indexed as the budget allows.
#[tokio::test]
async fn endpoint_slices_that_decode_to_gigabytes_take_what_they_are_in_etcd() {
    let size = Size::chosen();
    let attack = Attack::begin(Mode::Slices(size.slices, size.endpoints), size).await;
    let is_live = || async { (attack.meshkeep.phase("c02").await == "live").then_some(()) };
    eventually_within(attack.size.patience, "the slices to be read", is_live).await;
    for number in [0, 1] {
        let (status, answer) = attack.meshkeep.ask(&format!("/v1/endpoint-slices/c02/shop/s{number:09}")).await;
        assert!(status == 200 || answer["code"] == "memoryLimitReached", "{status}: {}", answer["detail"]);
    }
    let asked =
        (0..6).map(|number| attack.meshkeep.ask(if number % 2 == 0 { "/v1/endpoint-slices?cluster=c02" } else { "/v1/explain/0.0.0.1" }));
    for (status, answer) in futures_util::future::join_all(asked).await {
        assert!(status == 200 || answer["code"] == "memoryLimitReached", "{status}: {}", answer["detail"]);
    }
    // once everything is indexed, the budget is exceeded
    let all_seen = || async { (attack.meshkeep.get("/v1/problems").await["complete"] == true).then_some(()) };
    eventually_within(attack.size.patience, "everything to be looked at", all_seen).await;
    assert_eq!(attack.meshkeep.get("/v1/explain/0.0.0.1").await["complete"], false);
    attack.ends().await;
}
