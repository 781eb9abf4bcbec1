//! Ways to reach a remote: plain TCP, TLS, client certificates, user and password. Also client
//! files that appear late, and clusters of old releases.

use std::fs;
use std::time::{Duration, Instant};

use etcd_client::{AlarmAction, AlarmType};
use serde_json::json;

use crate::harness::certificates::Authority;
use crate::harness::etcd::{Etcd, EtcdBuilder, Tls, etcd_binaries};
use crate::harness::eventually;
use crate::harness::mesh::{Form, MeshCluster, SMALL, publish, put_config, put_entries, put_heartbeat, put_leased, rewrite, source_key};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::proxy::Proxy;
use crate::harness::read_only::ReadOnlyServer;
use crate::harness::scene::{assert_served, wait_until_served};
use crate::harness::truth::Truth;

/// Flags that shorten the waits before a cluster without a config is read, and before its
/// unconfirmed entries are pruned.
const QUICK_LEGACY: [&str; 3] = ["--legacy-clusters=c01", "--legacy-wait=1s", "--legacy-quiet=1s"];

/// Starts an etcd and publishes one cluster in it.
async fn start_filled(builder: EtcdBuilder) -> (Etcd, MeshCluster) {
    let etcd = builder.start().await;
    let cluster = MeshCluster::generate(1, SMALL);
    publish(&etcd, Form::State, std::slice::from_ref(&cluster), "2026-01-12T09:31:07Z").await;
    (etcd, cluster)
}

async fn mirror(etcd: &Etcd, cluster: &MeshCluster) -> (Home, Meshkeep) {
    let mut home = Home::new();
    home.write_cluster(&cluster.name, &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters([cluster]).expected(), "the first loading").await;
    meshkeep.wait_for_phase(&cluster.name, "live").await;
    (home, meshkeep)
}

#[tokio::test]
async fn a_remote_is_mirrored_over_tls_with_and_without_a_client_certificate() {
    for binary in etcd_binaries() {
        for tls in [Tls::Server, Tls::Mutual] {
            let (etcd, cluster) = start_filled(Etcd::builder().binary(&binary).tls(tls)).await;
            mirror(&etcd, &cluster).await;
        }
    }
}

#[tokio::test]
async fn changes_arrive_after_the_authentication_token_has_expired() {
    for binary in etcd_binaries() {
        let (mut etcd, mut cluster) = start_filled(Etcd::builder().binary(&binary).auth_token_ttl_s(5)).await;
        etcd.enable_auth("mesh", "mesh-password").await;
        let (_home, meshkeep) = mirror(&etcd, &cluster).await;
        let key = cluster.keys_of("nodes/v1")[0].clone();
        let started = Instant::now();
        let mut arrived_last = Duration::ZERO;
        // longer than two lifetimes of a token
        while arrived_last < Duration::from_secs(12) {
            cluster.change(&key);
            put_leased(&etcd, [(source_key(Form::State, &cluster.name, &key), cluster.entries[&key].clone())]).await;
            wait_until_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "a change under a token of 5 s").await;
            arrived_last = started.elapsed();
            // one change now and then, not as many as possible
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert!(!meshkeep.log().contains("mesh-password"), "a password in the log");
    }
}

#[tokio::test]
async fn a_wrong_password_is_an_error_that_does_not_reveal_it() {
    let (mut etcd, cluster) = start_filled(Etcd::builder()).await;
    etcd.enable_auth("mesh", "mesh-password").await;
    let mut home = Home::new();
    home.write_cluster(&cluster.name, &etcd.client_file_yaml().replace("mesh-password", "not-the-password"));
    let meshkeep = home.start().await;
    let state = meshkeep.wait_for_field(&cluster.name, "lastError", "authentication").await;
    assert!(!state.to_string().contains("not-the-password"), "{state}");
    assert!(!meshkeep.log().contains("not-the-password"), "a password in the log");
}

#[tokio::test]
async fn the_permissions_of_ciliums_role_remote_are_enough() {
    let (mut etcd, cluster) = start_filled(Etcd::builder()).await;
    etcd.put("cilium/state/frobs/v1/a", "1").await;
    etcd.put("cilium/cache/frobs/v1/a", "1").await;
    etcd.enable_auth("mesh", "mesh-password").await;
    etcd.restrict_to_remote(&cluster.name).await;
    let mut home = Home::new();
    home.write_cluster(&cluster.name, &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "loading as a remote").await;
    meshkeep.wait_for_phase(&cluster.name, "live").await;
    let state = meshkeep.wait_for_field(&cluster.name, "unknownPrefixes", "frobs").await;
    // prefixes that the user may not read are not counted, and that is no failure
    assert_eq!((&state["unknownKeys"], &state["failures"]), (&json!({ "cilium/state/frobs/v1/": 1 }), &json!(0)));
}

#[tokio::test]
async fn meshkeep_waits_for_a_missing_certificate_and_names_it() {
    let (etcd, cluster) = start_filled(Etcd::builder().tls(Tls::Mutual)).await;
    let late = etcd.directory().join("late.crt");
    let yaml = etcd.client_file_yaml().replace(&etcd.client_pair().certificate.display().to_string(), &late.display().to_string());
    let mut home = Home::new();
    home.write_cluster(&cluster.name, &yaml);
    let meshkeep = home.start().await;
    meshkeep.wait_for_phase(&cluster.name, "waitingForFiles").await;
    meshkeep.wait_for_field(&cluster.name, "lastError", "late.crt").await;
    fs::copy(&etcd.client_pair().certificate, &late).unwrap();
    wait_until_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "the arrival of the certificate").await;
    meshkeep.wait_for_phase(&cluster.name, "live").await;
}

/// Rotated certificates are used from the next connection on, although the client file stays the
/// same (docs/develop/protocol.md, trap 17).
#[tokio::test]
async fn rotated_certificates_are_used_from_the_next_connection_on() {
    let (mut etcd, mut cluster) = start_filled(Etcd::builder().tls(Tls::Mutual)).await;
    let own = etcd.authority().client("sidecar");
    let mut home = Home::new();
    home.write_cluster(&cluster.name, &etcd.client_file_yaml().replace("client-meshkeep", "client-sidecar"));
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "the first loading").await;
    meshkeep.wait_for_phase(&cluster.name, "live").await;
    let other = Authority::new(&etcd.directory().join("stranger"), "ca").client_until("sidecar", 2050);
    fs::copy(&other.certificate, &own.certificate).unwrap();
    fs::copy(&other.key, &own.key).unwrap();
    cluster.add_endpoints(3);
    put_entries(&etcd, Form::State, &cluster).await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "a rotation").await;
    let state = meshkeep.cluster(&cluster.name).await;
    assert_eq!((&state["phase"], &state["failures"]), (&json!("live"), &json!(0)), "{state}");
    etcd.stop().await;
    etcd.restart().await;
    meshkeep.wait_for_field(&cluster.name, "certificateExpiry", "2050-01-01").await;
    assert_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "while the certificate is another authority's").await;
    etcd.authority().client("sidecar");
    meshkeep.wait_for_phase(&cluster.name, "live").await;
    meshkeep.wait_for_field(&cluster.name, "certificateExpiry", "2100-01-01").await;
    assert_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "the right certificate").await;
}

/// Returns the expected state of a cluster without a cluster config, whose id is unknown.
fn legacy_truth(cluster: &MeshCluster) -> Truth {
    let mut truth = Truth::from_clusters([cluster]);
    truth.set_cluster_id(&cluster.name, 0);
    truth
}

#[tokio::test]
async fn a_cluster_that_never_had_a_config_is_read_without_one_after_a_wait() {
    let etcd = Etcd::start().await;
    let cluster = MeshCluster::generate(1, SMALL);
    put_heartbeat(&etcd).await;
    put_entries(&etcd, Form::State, &cluster).await;
    let mut home = Home::new().with_flags(&QUICK_LEGACY);
    home.write_cluster(&cluster.name, &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &legacy_truth(&cluster).expected(), "the wait for a config").await;
    meshkeep.wait_for_phase(&cluster.name, "live").await;
}

/// A cluster with an invalid config is not read. `--legacy-clusters` does not apply to it, because
/// it has a config.
#[tokio::test]
async fn a_cluster_with_an_invalid_config_is_not_read() {
    let etcd = Etcd::start().await;
    let cluster = MeshCluster::generate(1, SMALL);
    put_heartbeat(&etcd).await;
    put_entries(&etcd, Form::State, &cluster).await;
    etcd.put("cilium/cluster-config/c01", "{").await;
    let mut home = Home::new().with_flags(&QUICK_LEGACY);
    home.write_cluster(&cluster.name, &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    meshkeep.wait_for_field(&cluster.name, "lastError", "cilium/cluster-config/c01 could not be used for 1s").await;
    assert_eq!(meshkeep.get("/v1/status").await["counts"]["entries"], json!(0));
    let refused = meshkeep.get("/v1/rejected").await["items"][0].clone();
    assert_eq!((&refused["key"], &refused["kind"]), (&json!("cilium/cluster-config/c01"), &json!("cluster")), "{refused}");
    assert_eq!((&refused["value"], &refused["servesEarlierValue"]), (&json!("ew=="), &json!(false)), "{refused}");
    etcd.delete("cilium/cluster-config/c01").await;
    wait_until_served(&meshkeep, &legacy_truth(&cluster).expected(), "the deletion of the config").await;
    assert_eq!(meshkeep.get("/v1/rejected").await["items"], json!([]));
}

#[tokio::test]
async fn a_wiped_legacy_cluster_is_pruned_after_a_quiet_time() {
    let mut etcd = Etcd::start().await;
    let mut cluster = MeshCluster::generate(1, SMALL);
    put_heartbeat(&etcd).await;
    put_entries(&etcd, Form::State, &cluster).await;
    let mut home = Home::new().with_flags(&QUICK_LEGACY);
    home.write_cluster(&cluster.name, &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &legacy_truth(&cluster).expected(), "the wait for a config").await;
    let gone = cluster.keys_of("ip/v1");
    etcd.wipe();
    etcd.restart().await;
    for key in gone.iter().step_by(3) {
        cluster.delete(key);
    }
    put_entries(&etcd, Form::State, &cluster).await;
    put_heartbeat(&etcd).await;
    wait_until_served(&meshkeep, &legacy_truth(&cluster).expected(), "the wiping of a legacy cluster").await;
}

#[tokio::test]
async fn a_cluster_that_lost_its_config_is_not_read_without_one() {
    let (etcd, mut cluster) = start_filled(Etcd::builder()).await;
    let mut home = Home::new().with_flags(&QUICK_LEGACY);
    home.write_cluster(&cluster.name, &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    let before = Truth::from_clusters([&cluster]).expected();
    wait_until_served(&meshkeep, &before, "the first loading").await;
    meshkeep.wait_for_phase(&cluster.name, "live").await;
    meshkeep.kill();
    etcd.delete(format!("cilium/cluster-config/{}", cluster.name)).await;
    let key = cluster.keys_of("services/v1")[0].clone();
    etcd.delete(source_key(Form::State, &cluster.name, &key)).await;
    cluster.delete(&key);
    let meshkeep = home.start().await;
    meshkeep.wait_for_phase(&cluster.name, "readingConfig").await;
    // longer than a legacy cluster would have to wait
    let in_phase = Instant::now();
    while in_phase.elapsed() < Duration::from_secs(3) {
        let phase = meshkeep.phase(&cluster.name).await;
        assert!(["readingConfig", "backingOff", "connecting"].contains(&phase.as_str()), "{phase}");
        assert_served(&meshkeep, &before, "without the config that it had").await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    meshkeep.wait_for_field(&cluster.name, "lastError", &format!("cilium/cluster-config/{}", cluster.name)).await;
    put_config(&etcd, Form::State, &cluster).await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "the return of the config").await;
}

#[tokio::test]
async fn an_invalid_config_is_refused_and_nothing_is_read() {
    let etcd = Etcd::start().await;
    let cluster = MeshCluster::generate(1, SMALL);
    publish(&etcd, Form::State, std::slice::from_ref(&cluster), "2026-01-12T09:31:07Z").await;
    let key = format!("cilium/cluster-config/{}", cluster.name);
    etcd.put(key.as_str(), r#"{"id":256,"capabilities":{"syncedCanaries":true}}"#).await;
    let mut home = Home::new();
    home.write_cluster(&cluster.name, &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    meshkeep.wait_for_field(&cluster.name, "lastError", "256").await;
    assert_eq!(meshkeep.get("/v1/status").await["counts"]["entries"], json!(0));
    put_config(&etcd, Form::State, &cluster).await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "the correction of the config").await;
}

#[tokio::test]
async fn a_missing_canary_is_reported_with_its_key_and_kind() {
    let (etcd, cluster) = start_filled(Etcd::builder()).await;
    let canary = format!("cilium/synced/{}/cilium/state/services/v1", cluster.name);
    etcd.delete(canary.as_str()).await;
    let mut home = Home::new();
    home.write_cluster(&cluster.name, &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    meshkeep.wait_for_phase(&cluster.name, "waitingForCanary").await;
    meshkeep.wait_for_field(&cluster.name, "lastError", &format!("{canary} (service)")).await;
    etcd.put(canary.as_str(), "2026-01-12T09:31:07Z").await;
    meshkeep.wait_for_phase(&cluster.name, "live").await;
    assert_eq!(meshkeep.cluster(&cluster.name).await["lastError"], json!(null));
}

/// Cilium's documentation mentions three missed heartbeats. Its code, and therefore meshkeep, gives
/// up after the first.
#[tokio::test]
async fn the_first_missed_heartbeat_ends_only_the_connection() {
    let (etcd, cluster) = start_filled(Etcd::builder()).await;
    let mut home = Home::new().with_flags(&["--heartbeat-silence=3s"]);
    home.write_cluster(&cluster.name, &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    let expected = Truth::from_clusters([&cluster]).expected();
    wait_until_served(&meshkeep, &expected, "the first loading").await;
    meshkeep.wait_for_field(&cluster.name, "lastError", "no heartbeat for 3s").await;
    assert_served(&meshkeep, &expected, "without a heartbeat").await;
}

/// A missing heartbeat stays reported across reconnects. The etcd answers all the time, and each
/// new connection finds the old heartbeat.
#[tokio::test]
async fn a_missing_heartbeat_is_reported_over_reconnects() {
    let (etcd, cluster) = start_filled(Etcd::builder()).await;
    let name = cluster.name.as_str();
    let mut home =
        Home::new().with_flags(&["--heartbeat-silence=2s", "--heartbeat-silence-critical=6s", "--backoff-min=50ms", "--backoff-max=100ms"]);
    home.write_cluster(name, &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    let finding = async || meshkeep.get("/v1/problems?kind=writerSilent").await["items"][0].clone();
    let severity = |wanted: &'static str| async move {
        let finding = finding().await;
        (finding["severity"] == wanted).then_some(finding)
    };
    eventually("the warning", || severity("warning")).await;
    etcd.client().await.alarm(AlarmAction::Activate, AlarmType::Nospace, None).await.unwrap();
    let critical = eventually("the critical finding", || async {
        severity("critical").await.filter(|finding| finding["detail"].as_str().unwrap().contains("NOSPACE"))
    })
    .await;
    assert!(critical["advice"].as_str().unwrap().contains("alarm disarm"), "{critical}");
    let found = meshkeep.cluster(name).await;
    assert!(found["failures"].as_u64() >= Some(1) && found["ageSeconds"].as_f64() >= Some(6.0), "{found}");
    etcd.client().await.alarm(AlarmAction::Deactivate, AlarmType::Nospace, None).await.unwrap();
    let is_over = || async {
        put_heartbeat(&etcd).await;
        let found = meshkeep.cluster(name).await;
        (finding().await.is_null() && found["lastHeartbeat"].is_string() && found["ageSeconds"].as_f64() < Some(2.0)).then_some(())
    };
    eventually("the end of the finding", is_over).await;
}

/// The proxy first withholds the answers to progress requests, and then forwards them.
#[tokio::test]
async fn withheld_progress_answers_are_reported_until_they_arrive() {
    let (etcd, cluster) = start_filled(Etcd::builder().binary(&etcd_binaries()[0])).await;
    let proxy = Proxy::withholding_progress(etcd.port()).await;
    let mut home = Home::new().with_flags(&["--progress-interval=100ms"]);
    home.write_cluster(&cluster.name, &etcd.client_file_yaml().replace(&format!(":{}", etcd.port()), &format!(":{}", proxy.port())));
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "the first loading").await;
    let reported = async || {
        let problems = meshkeep.get("/v1/problems?kind=progressUnanswered").await;
        problems["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    eventually("the finding", || async { (reported().await == ["progressUnanswered/c01"]).then_some(()) }).await;
    proxy.forward_progress();
    eventually("the end of the finding", || async { reported().await.is_empty().then_some(()) }).await;
    meshkeep.wait_for_phase(&cluster.name, "live").await;
}

/// Servers that only offer `Range` and `Watch` are enough, as they are for Cilium's readers
/// (docs/develop/protocol.md §9.1). Before each delete, meshkeep checks that cluster config and
/// canary exist. For a KVStoreMesh it also checks leases and, over a second connection, that the
/// history is the stored one.
#[tokio::test]
async fn deletes_of_a_server_with_only_range_and_watch_are_applied() {
    for (form, refusal) in [(Form::State, tonic::Code::Unimplemented), (Form::Cache, tonic::Code::PermissionDenied)] {
        let etcd = Etcd::start().await;
        let mut cluster = MeshCluster::generate(1, SMALL);
        publish(&etcd, form, std::slice::from_ref(&cluster), "2026-01-12T09:31:07Z").await;
        let server = ReadOnlyServer::start(&etcd, refusal).await;
        let mut home = Home::new();
        home.write_cluster(&cluster.name, &server.client_file());
        for start in ["the first start", "a second start"] {
            let meshkeep = home.start().await;
            meshkeep.wait_for_phase(&cluster.name, "live").await;
            let before = cluster.clone();
            cluster.delete(&cluster.keys_of("ip/v1")[0]);
            rewrite(&etcd, form, &before, &cluster).await;
            wait_until_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), start).await;
            let state = meshkeep.cluster(&cluster.name).await;
            assert_eq!((&state["phase"], &state["failures"]), (&json!("live"), &json!(0)), "{refusal:?}, {start}: {state}");
            meshkeep.stop().await;
        }
    }
}
