//! The verification of the mirror against its source: each error of a watch is found, reported with
//! its key and repaired, and a source that merely changes causes no report.

mod churn;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::command_line::run;
use super::reflect::contents::{expected, wait_for_contents};
use crate::harness::etcd::{Etcd, all_etcd_binaries, etcd_binaries};
use crate::harness::lossy_watch::{LossyWatches, WatchError};
use crate::harness::mesh::{EVERY_KIND, Form, MeshCluster, Shape, publish, put_leased, source_key};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::read_only::ReadOnlyServer;
use crate::harness::scene::{Remote, wait_until_served};
use crate::harness::truth::Truth;
use crate::harness::{eventually, eventually_within};

/// Flags with which a verification takes seconds instead of minutes.
const QUICK: [&str; 2] = ["--verify-interval=1500ms", "--progress-interval=300ms"];

/// Interval between two rounds in which all keys are compared.
const QUICK_ROUND: &str = "--verify-round=3s";

/// Minimum time for which a difference must exist before it is reported.
const DIFFERENCE_AGE_MIN: Duration = Duration::from_secs(5);

/// Maximum time until a difference is found: some rounds on a busy machine.
const FIND_TIME_MAX: Duration = Duration::from_secs(90);

/// A cluster whose watches can make errors, and a sidecar that mirrors it.
struct LossyCluster {
    etcd: Etcd,
    form: Form,
    cluster: MeshCluster,
    watches: LossyWatches,
    meshkeep: Meshkeep,
    _home: Home,
}

impl LossyCluster {
    async fn start(binary: &Path, form: Form, round: &str) -> Self {
        Self::start_with(MeshCluster::generate(1, EVERY_KIND), binary, form, &[round]).await
    }

    async fn start_with(cluster: MeshCluster, binary: &Path, form: Form, flags: &[&str]) -> Self {
        let etcd = Etcd::builder().binary(binary).start().await;
        publish(&etcd, form, std::slice::from_ref(&cluster), "2026-01-12T09:31:07Z").await;
        let watches = LossyWatches::start(&etcd).await;
        let mut home = Home::new().with_flags(&QUICK).with_flags(flags).with_flags(&["--heartbeat-silence=1h"]);
        home.write_cluster(&cluster.name, &watches.client_file());
        let meshkeep = home.start().await;
        let scene = Self { etcd, form, cluster, watches, meshkeep, _home: home };
        scene.meshkeep.wait_for_phase(&scene.cluster.name, "live").await;
        scene.wait_until_exact("the first list").await;
        scene
    }

    fn source_key(&self, key: &str) -> String {
        source_key(self.form, &self.cluster.name, key)
    }

    async fn wait_until_exact(&self, when: &str) {
        wait_until_served(&self.meshkeep, &Truth::from_clusters([&self.cluster]).expected(), when).await;
    }

    /// Changes a key at the source.
    async fn change(&mut self, key: &str) {
        self.cluster.change(key);
        put_leased(&self.etcd, [(self.source_key(key), self.cluster.entries[key].clone())]).await;
    }

    async fn delete(&mut self, key: &str) {
        self.cluster.delete(key);
        self.etcd.delete(self.source_key(key)).await;
    }

    /// Waits until the difference is reported with exactly these keys, and the mirror is repaired.
    async fn wait_until_repaired(&self, expected: &[String]) {
        eventually("the error of the watch", async || self.watches.error_was_made().then_some(())).await;
        // a finding about an earlier difference may still exist
        let names_all = |finding: &Value| expected.iter().all(|key| finding["detail"].as_str().is_some_and(|detail| detail.contains(key)));
        let reported = || async { diverged(&self.meshkeep).await.filter(names_all) };
        let finding = eventually_within(FIND_TIME_MAX, &format!("a report of {expected:?}"), reported).await;
        let age = self.watches.error_age_max();
        assert!(age >= DIFFERENCE_AGE_MIN, "a difference was reported after {age:?}");
        assert_eq!(finding["count"], expected.len(), "{finding}");
        assert_eq!(finding["severity"], "critical");
        self.wait_until_exact("the repair").await;
        self.meshkeep.wait_for_phase(&self.cluster.name, "live").await;
    }
}

/// Returns the finding about a difference, if there is one.
async fn diverged(meshkeep: &Meshkeep) -> Option<Value> {
    let problems = meshkeep.get("/v1/problems?kind=mirrorDiverged").await;
    problems["items"].as_array().unwrap().first().cloned()
}

/// Returns the `verifiedAt` of each kind of a cluster, in the order of the answer.
async fn verified_times(meshkeep: &Meshkeep, cluster: &str) -> Vec<Option<String>> {
    let resources = meshkeep.cluster(cluster).await["resources"].as_array().unwrap().clone();
    resources.iter().map(|resource| resource["verifiedAt"].as_str().map(str::to_owned)).collect()
}

/// Returns the state of a kind.
async fn resource(scene: &LossyCluster, kind: &str) -> Value {
    let resources = scene.meshkeep.cluster(&scene.cluster.name).await["resources"].as_array().unwrap().clone();
    resources.into_iter().find(|resource| resource["kind"] == kind).unwrap()
}

/// Returns the time at which the keys of a kind were last counted.
async fn counted_at(scene: &LossyCluster, kind: &str) -> Option<String> {
    resource(scene, kind).await["countedAt"].as_str().map(str::to_owned)
}

/// Waits until every kind was verified twice more.
async fn wait_for_two_rounds(meshkeep: &Meshkeep, cluster: &str) {
    for _ in 0..2 {
        let before = verified_times(meshkeep, cluster).await;
        let advanced = || async {
            let now = verified_times(meshkeep, cluster).await;
            now.iter().zip(&before).all(|(now, before)| now.is_some() && now != before).then_some(())
        };
        eventually_within(FIND_TIME_MAX, "a round of the verification", advanced).await;
    }
}

#[tokio::test]
async fn lost_puts_and_deletes_are_found_by_the_count() {
    for binary in all_etcd_binaries() {
        // a round that is far away: only the counts are compared
        let mut scene = LossyCluster::start(&binary, Form::State, "--verify-round=1h").await;
        wait_for_first_round(&scene).await;
        let keys = scene.cluster.keys_of("identities/v1");
        let (lost, deleted) = (keys[0].clone(), keys[1].clone());
        // a new key whose put is lost
        let value = scene.cluster.entries[&lost].clone();
        scene.delete(&lost).await;
        scene.wait_until_exact("a delete").await;
        scene.watches.make_error(WatchError::Lose(vec![scene.source_key(&lost)]));
        scene.cluster.entries.insert(lost.clone(), value.clone());
        put_leased(&scene.etcd, [(scene.source_key(&lost), value)]).await;
        scene.wait_until_repaired(&[scene.source_key(&lost)]).await;
        // a delete that is lost
        scene.watches.make_error(WatchError::Lose(vec![scene.source_key(&deleted)]));
        scene.delete(&deleted).await;
        scene.wait_until_repaired(&[scene.source_key(&deleted)]).await;
    }
}

/// Waits until every kind was verified once.
async fn wait_for_first_round(scene: &LossyCluster) {
    let complete = || async { verified_times(&scene.meshkeep, &scene.cluster.name).await.iter().all(Option::is_some).then_some(()) };
    eventually_within(FIND_TIME_MAX, "the first round of the verification", complete).await;
}

#[tokio::test]
async fn lost_updates_and_confused_keys_are_found_by_the_keys() {
    for (binary, form) in all_etcd_binaries().into_iter().zip([Form::State, Form::Cache].into_iter().cycle()) {
        let mut scene = LossyCluster::start(&binary, form, QUICK_ROUND).await;
        let key = scene.cluster.keys_of("nodes/v1")[0].clone();
        scene.watches.make_error(WatchError::Lose(vec![scene.source_key(&key)]));
        scene.change(&key).await;
        scene.wait_until_repaired(&[scene.source_key(&key)]).await;

        let mut scene = LossyCluster::start(&binary, form, QUICK_ROUND).await;
        let keys = scene.cluster.keys_of("services/v1");
        let (first, second) = (keys[0].clone(), keys[1].clone());
        scene.watches.make_error(WatchError::Confuse(scene.source_key(&first), scene.source_key(&second)));
        scene.change(&first).await;
        scene.change(&second).await;
        scene.wait_until_repaired(&[scene.source_key(&first)]).await;
    }
}

#[tokio::test]
async fn watches_that_stay_behind_are_found() {
    for binary in all_etcd_binaries() {
        let mut scene = LossyCluster::start(&binary, Form::State, QUICK_ROUND).await;
        let key = scene.cluster.keys_of("nodes/v1")[0].clone();
        // a cluster is live before its watches exist: the change shows that this one exists
        scene.change(&key).await;
        scene.wait_until_exact("a change").await;
        scene.watches.make_error(WatchError::Freeze);
        scene.change(&key).await;
        scene.wait_until_repaired(&[scene.source_key(&key)]).await;
    }
}

/// A cluster with more entries of a kind than a range has.
fn large_cluster() -> MeshCluster {
    MeshCluster::generate(1, Shape { endpoints: 1_500, ..EVERY_KIND })
}

#[tokio::test]
async fn every_range_of_a_kind_is_compared() {
    let binary = etcd_binaries().remove(0);
    let mut scene = LossyCluster::start_with(large_cluster(), &binary, Form::State, &[QUICK_ROUND]).await;
    let key = scene.cluster.keys_of("ip/v1").pop().unwrap();
    scene.watches.make_error(WatchError::Lose(vec![scene.source_key(&key)]));
    scene.change(&key).await;
    scene.wait_until_repaired(&[scene.source_key(&key)]).await;
    wait_for_two_rounds(&scene.meshkeep, &scene.cluster.name).await;
    assert_eq!(resource(&scene, "ipcache").await["keysCompared"], scene.cluster.keys_of("ip/v1").len());
}

/// A difference of the counts is reported as soon as it is found: the list that follows repairs all
/// ranges.
#[tokio::test]
async fn a_count_reports_the_first_range_that_differs() {
    let binary = etcd_binaries().remove(0);
    let mut scene = LossyCluster::start_with(large_cluster(), &binary, Form::State, &["--verify-round=1h"]).await;
    wait_for_first_round(&scene).await;
    let keys = scene.cluster.keys_of("ip/v1");
    let lost = [keys[0].clone(), keys[keys.len() - 1].clone()];
    scene.watches.make_error(WatchError::Lose(lost.iter().map(|key| scene.source_key(key)).collect()));
    for key in &lost {
        scene.delete(key).await;
    }
    scene.wait_until_repaired(&[scene.source_key(&lost[0])]).await;
}

/// Values with the right revision are compared only once a day: here in each round, one kind after
/// the other.
#[tokio::test]
async fn wrong_values_are_found_by_the_rounds_with_values() {
    let binary = etcd_binaries().remove(0);
    let mut scene =
        LossyCluster::start_with(large_cluster(), &binary, Form::Cache, &["--verify-round=1s", "--verify-values-interval=1ms"]).await;
    let mut falsified = Vec::new();
    for base in ["nodes/v1", "ip/v1"] {
        let key = scene.cluster.keys_of(base).pop().unwrap();
        falsified.push(scene.source_key(&key));
        scene.watches.make_error(WatchError::Falsify(scene.source_key(&key)));
        scene.change(&key).await;
        // the finding about the first kind still exists
        scene.wait_until_repaired(&falsified).await;
    }
}

#[tokio::test]
async fn a_kind_that_cannot_be_read_does_not_stop_the_others() {
    let binary = etcd_binaries().remove(0);
    let mut scene = LossyCluster::start(&binary, Form::State, QUICK_ROUND).await;
    wait_for_first_round(&scene).await;
    // the kinds are counted in this order
    let key = scene.cluster.keys_of("identities/v1")[0].clone();
    scene.watches.refuse_reads(Some("identities/v1"));
    scene.watches.make_error(WatchError::Lose(vec![scene.source_key(&key)]));
    scene.delete(&key).await;
    eventually("the lost delete", async || scene.watches.error_was_made().then_some(())).await;
    let identities = counted_at(&scene, "identity").await;
    for _ in 0..2 {
        for kind in ["ipcache", "node", "service"] {
            let before = counted_at(&scene, kind).await;
            let counted = || async { (counted_at(&scene, kind).await != before).then_some(()) };
            eventually_within(FIND_TIME_MAX, &format!("a count of {kind}"), counted).await;
        }
    }
    assert_eq!(counted_at(&scene, "identity").await, identities);
    // the rounds of the other kinds go on, too: only they find a lost update
    let node = scene.cluster.keys_of("nodes/v1")[0].clone();
    scene.watches.make_error(WatchError::Lose(vec![scene.source_key(&node)]));
    scene.change(&node).await;
    let reported =
        async || diverged(&scene.meshkeep).await.filter(|finding| finding["detail"].to_string().contains(&scene.source_key(&node)));
    eventually_within(FIND_TIME_MAX, "a report of the lost update", reported).await;
    scene.watches.refuse_reads(None);
    scene.wait_until_repaired(&[scene.source_key(&node), scene.source_key(&key)]).await;
}

/// While the watches are late, nothing is judged.
#[tokio::test]
async fn late_watches_cause_no_report() {
    let binary = etcd_binaries().remove(0);
    let mut scene = LossyCluster::start(&binary, Form::State, QUICK_ROUND).await;
    wait_for_first_round(&scene).await;
    let keys = [scene.cluster.keys_of("nodes/v1")[0].clone(), scene.cluster.keys_of("identities/v1")[0].clone()];
    scene.watches.set_paused(true);
    scene.change(&keys[0]).await;
    scene.delete(&keys[1]).await;
    let before = scene.watches.transaction_count();
    let compared = || async { (scene.watches.transaction_count() > before + 3).then_some(()) };
    eventually_within(FIND_TIME_MAX, "comparisons with late watches", compared).await;
    assert_eq!(diverged(&scene.meshkeep).await, None, "{}", scene.meshkeep.log());
    let counted = counted_at(&scene, "identity").await;
    let before = scene.watches.transaction_count();
    let compared = || async { (scene.watches.transaction_count() > before + 1).then_some(()) };
    eventually_within(FIND_TIME_MAX, "a comparison with late watches", compared).await;
    assert_eq!(counted_at(&scene, "identity").await, counted, "the counts could not be compared");
    scene.watches.set_paused(false);
    scene.wait_until_exact("the late changes").await;
    wait_for_two_rounds(&scene.meshkeep, &scene.cluster.name).await;
    assert_eq!(diverged(&scene.meshkeep).await, None, "{}", scene.meshkeep.log());
}

#[tokio::test]
async fn a_source_without_transactions_is_verified() {
    for refusal in [tonic::Code::Unimplemented, tonic::Code::PermissionDenied] {
        let etcd = Etcd::start().await;
        let cluster = MeshCluster::generate(1, EVERY_KIND);
        publish(&etcd, Form::State, std::slice::from_ref(&cluster), "2026-01-12T09:31:07Z").await;
        let server = ReadOnlyServer::start(&etcd, refusal).await;
        let mut home = Home::new().with_flags(&QUICK).with_flags(&[QUICK_ROUND]);
        home.write_cluster(&cluster.name, &server.client_file());
        let meshkeep = home.start().await;
        meshkeep.wait_for_phase(&cluster.name, "live").await;
        wait_for_two_rounds(&meshkeep, &cluster.name).await;
        let counted = || async {
            let resources = meshkeep.cluster(&cluster.name).await["resources"].as_array()?.clone();
            resources.iter().all(|resource| resource["countedAt"].is_string()).then_some(())
        };
        eventually("the counts of all kinds", counted).await;
        assert_eq!(diverged(&meshkeep).await, None);
    }
}

/// The command compares at once, also the values, and two meshkeeps with each other. It blocks its
/// thread, and the server in front of the etcd needs another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_compares_at_once() {
    let binary = etcd_binaries().remove(0);
    // a lost update is found only by the command, once the first round is over
    let mut scene = LossyCluster::start(&binary, Form::State, "--verify-round=1h").await;
    wait_for_first_round(&scene).await;
    let mut home = Home::new();
    home.write_cluster(&scene.cluster.name, &scene.etcd.client_file_yaml());
    let other = home.start().await;
    other.wait_for_phase(&scene.cluster.name, "live").await;
    // right after the start, when the watches may not exist yet
    let complete = run(other.url(), &["verify", "c01", "--values", "--no-headers"]);
    assert_eq!(complete.status.code(), Some(0), "{complete:?}");
    let rows = String::from_utf8(complete.stdout).unwrap();
    assert!(rows.lines().count() == 6 && rows.lines().all(|row| row.contains(" equal ")), "{rows}");
    let same = run(scene.meshkeep.url(), &["verify", "--against", other.url()]);
    assert_eq!((same.status.code(), String::from_utf8_lossy(&same.stderr).as_ref()), (Some(0), "none found\n"));

    let key = scene.cluster.keys_of("nodes/v1")[0].clone();
    scene.watches.make_error(WatchError::Lose(vec![scene.source_key(&key)]));
    scene.change(&key).await;
    eventually("the lost update", async || scene.watches.error_was_made().then_some(())).await;
    let unlike = run(scene.meshkeep.url(), &["verify", "--against", other.url(), "-o", "name"]);
    assert_eq!((unlike.status.code(), String::from_utf8_lossy(&unlike.stdout).trim_end()), (Some(1), key.as_str()));
    let differing = run(scene.meshkeep.url(), &["verify"]);
    let text = String::from_utf8(differing.stdout).unwrap();
    assert!(differing.status.code() == Some(1) && text.contains("1 differ"), "{text}");
    scene.wait_until_exact("the repair").await;
    let unknown = run(scene.meshkeep.url(), &["verify", "nowhere"]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
}

/// The command compares the mirror with the etcd that `meshkeep reflect` writes into.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_compares_with_a_reflected_etcd() {
    let binary = etcd_binaries().remove(0);
    let target = Etcd::builder().binary(&binary).start().await;
    let remote = Remote::start(&binary, Form::State, vec![MeshCluster::generate(1, EVERY_KIND)]).await;
    let mut home = Home::new().with_reflect_to(&target.client_file_yaml());
    home.write_cluster("c01", &remote.client_file());
    let reflecting = home.start().await;
    wait_for_contents(&target.client().await, &expected(&remote.clusters), "the copy").await;
    let file = home.local_etcd_file();
    std::fs::write(&file, target.client_file_yaml()).unwrap();
    let verify = |meshkeep: &Meshkeep, more: &[&str]| {
        let output = run(meshkeep.url(), &[&["verify", "--against-etcd", file.to_str().unwrap()], more].concat());
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(verify(&reflecting, &[]), (Some(0), String::new(), "none found\n".to_owned()));

    // without the reflector, which would repair the copy
    reflecting.stop().await;
    let mut home = Home::new();
    home.write_cluster("c01", &remote.client_file());
    let mirroring = home.start().await;
    mirroring.wait_for_phase("c01", "live").await;
    let (mut client, nodes) = (target.client().await, remote.clusters[0].keys_of("nodes/v1"));
    let cached = |key: &str| source_key(Form::Cache, "c01", key);
    client.delete(cached(&nodes[0]), None).await.unwrap();
    client.put(cached(&nodes[1]), "{}", None).await.unwrap();
    client.put("cilium/cache/nodes/v1/c01/zz-unknown", "{}", None).await.unwrap();
    client.put("cilium/cluster-config/c02", "{}", None).await.unwrap();
    client.put("cilium/cache/nodes/v1/c02/n1", "{}", None).await.unwrap();
    let mut rows: Vec<(String, &str)> = vec![
        (cached(&nodes[0]), "only in the meshkeep of --server"),
        (cached(&nodes[1]), "the value"),
        ("cilium/cache/nodes/v1/c01/zz-unknown".into(), "only in the etcd of --against-etcd"),
    ];
    let expected = |rows: &[(String, &str)]| {
        let rows = rows.iter().map(|(key, difference)| serde_json::json!({"key": key, "difference": difference}));
        serde_json::json!({"items": rows.collect::<Vec<_>>()})
    };
    let (code, output, _) = verify(&mirroring, &["c01", "-o", "json"]);
    let items = |output: &str| serde_json::from_str::<Value>(output).unwrap()["items"].clone();
    assert_eq!((code, items(&output)), (Some(1), expected(&rows)["items"].clone()));
    rows.push(("cilium/cache/nodes/v1/c02/n1".into(), "only in the etcd of --against-etcd"));
    let (code, output, _) = verify(&mirroring, &["-o", "json"]);
    assert_eq!((code, items(&output)), (Some(1), expected(&rows)["items"].clone()));
    let (code, _, error) = verify(&mirroring, &["nowhere"]);
    assert!(
        code == Some(1)
            && error.contains("neither the meshkeep of --server nor the etcd of --against-etcd has a cluster nowhere: there are c01,c02"),
        "{error}"
    );
}
