//! Metrics for Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, UNIX_EPOCH};

use axum::body::Body;
use axum::http::Request;

use super::mesh_sizes::mesh_of;
use crate::api::tests::fixture::{ApiFixture, TestResponse, cluster, identity, key, mesh, paris_status, pod, put};
use crate::api::tests::lists::global_services;
use crate::api::tests::streaming::streams::StreamClient;
use crate::model::{Change, ClusterStatus, Command, Kind, Phase};

async fn scrape(fixture: &ApiFixture) -> BTreeMap<String, String> {
    let answer = fixture.get("/metrics").await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "text/plain; version=0.0.4; charset=utf-8"));
    let text = String::from_utf8(answer.bytes).unwrap();
    let (mut families, mut kinds) = (Vec::new(), Vec::new());
    let mut samples = BTreeMap::new();
    for line in text.lines() {
        match line.strip_prefix("# TYPE ").map(|rest| rest.split_once(' ').unwrap()) {
            Some((family, kind)) => {
                let is_ours = family.starts_with("meshkeep_") || family.starts_with("process_");
                assert!(is_ours && family.ends_with("_total") == (kind == "counter"), "{line}");
                families.push(family.to_owned());
                kinds.push(kind.to_owned());
            }
            None if line.starts_with("# HELP ") => {}
            None => {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let base = name.split('{').next().unwrap();
                let suffixes: &[&str] = if kinds.last().unwrap() == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(suffixes.iter().any(|suffix| base.strip_suffix(suffix) == families.last().map(String::as_str)), "{line}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert_eq!(samples.insert(name.to_owned(), value.to_owned()), None, "{line}");
            }
        }
    }
    let distinct: BTreeSet<&String> = families.iter().collect();
    assert_eq!(distinct.len(), families.len(), "a metric family is repeated");
    samples
}

#[tokio::test]
async fn metrics_cover_every_subsystem() {
    let fixture = ApiFixture::new().with_all_metrics();
    fixture.get("/v1/nodes/paris/none").await;
    assert!(scrape(&fixture).await.keys().all(|name| !name.starts_with("meshkeep_history_")));
    fixture.add_history();
    let samples = scrape(&fixture).await;
    for (name, value) in [
        ("meshkeep_loaded", "1"),
        ("meshkeep_clusters{phase=\"live\"}", "1"),
        ("meshkeep_clusters{phase=\"waitingForFiles\"}", "1"),
        ("meshkeep_clusters{phase=\"backingOff\"}", "0"),
        ("meshkeep_cluster_entries{target_cluster=\"paris\",kind=\"node\"}", "2"),
        ("meshkeep_cluster_restored_entries{target_cluster=\"tokyo\",kind=\"node\"}", "1"),
        ("meshkeep_cluster_confirmed{target_cluster=\"tokyo\",kind=\"node\"}", "0"),
        ("meshkeep_remote_cluster_failures{target_cluster=\"paris\"}", "0"),
        ("meshkeep_cluster_divergences_total{target_cluster=\"paris\",kind=\"node\"}", "0"),
        ("meshkeep_remote_cluster_readiness_status{target_cluster=\"paris\"}", "0"),
        ("meshkeep_cluster_phase{target_cluster=\"paris\",phase=\"live\"}", "1"),
        ("meshkeep_cluster_phase{target_cluster=\"paris\",phase=\"listing\"}", "0"),
        ("meshkeep_http_request_duration_seconds_count{route=\"/v1/nodes/{cluster}/{name}\",status=\"404\"}", "1"),
        ("meshkeep_objects{kind=\"ipcache\"}", "9"),
        ("meshkeep_rejected_entries", "1"),
        ("meshkeep_problems{kind=\"rejectedValues\",severity=\"warning\",target_cluster=\"paris\"}", "1"),
        ("meshkeep_problems{kind=\"storeUnwritable\",severity=\"critical\"}", "0"),
        ("meshkeep_global_services", "1"),
        ("meshkeep_store_state{state=\"healthy\"}", "1"),
        ("meshkeep_store_state{state=\"failing\"}", "0"),
        ("meshkeep_store_restored_entries", "3"),
        ("meshkeep_feed_head_sequence", "113"),
        ("meshkeep_feed_tombstones", "0"),
        ("meshkeep_streams{encoding=\"sse\"}", "0"),
        ("meshkeep_history_segments", "0"),
        ("meshkeep_history_versions", "0"),
        ("meshkeep_history_gaps", "0"),
        ("meshkeep_history_failing", "0"),
    ] {
        assert_eq!(samples.get(name).map(String::as_str), Some(value), "{name}");
    }
    let oldest: f64 = samples["meshkeep_history_oldest_timestamp_seconds"].parse().unwrap();
    let two_hours_ago = UNIX_EPOCH.elapsed().unwrap().as_secs_f64() - 7_200.0;
    assert!((0.0..600.0).contains(&(two_hours_ago - oldest)), "{oldest}");
    assert!(samples.contains_key("meshkeep_cluster_age_seconds{target_cluster=\"paris\",kind=\"ipcache\"}"));
    fixture.unload();
    assert_eq!(scrape(&fixture).await["meshkeep_loaded"], "0");
}

#[tokio::test]
async fn objects_of_all_six_kinds_are_counted() {
    for (view, expected) in [
        (global_services::mesh(), [("endpointSlice", "1"), ("serviceExport", "2"), ("service", "4"), ("node", "0")]),
        (mesh(), [("identity", "3"), ("ipcache", "9"), ("node", "2"), ("endpointSlice", "0")]),
    ] {
        let samples = scrape(&ApiFixture::with_view(view)).await;
        for (kind, count) in expected {
            assert_eq!(samples.get(&format!("meshkeep_objects{{kind=\"{kind}\"}}")).map(String::as_str), Some(count), "{kind}");
        }
        assert_eq!(samples.keys().filter(|name| name.starts_with("meshkeep_objects{")).count(), 6);
    }
}

#[tokio::test]
async fn stream_metrics_are_counted() {
    let fixture = ApiFixture::new().with_all_metrics();
    let mut stream = StreamClient::open(&fixture, "/v1/events", &[("last-event-id", "nonsense")]).await;
    stream.until("synced").await;
    let app = key(Kind::Identity, "paris", "70000");
    fixture.change(put(app.clone(), identity(70_000, "a"), 40)).await;
    fixture.change(put(app.clone(), identity(70_000, "b"), 41)).await;
    fixture.change(Change::Delete { key: app }).await;
    stream.until("delete").await;
    fixture.get("/v1/changes?after=v1.00000000deadbeef.1").await;
    let samples = scrape(&fixture).await;
    for (name, value) in [
        ("meshkeep_streams{encoding=\"sse\"}", "1"),
        ("meshkeep_streams{encoding=\"ndjson\"}", "0"),
        ("meshkeep_stream_resets_total{reason=\"malformed\"}", "1"),
        ("meshkeep_stream_resets_total{reason=\"foreignEpoch\"}", "1"),
        ("meshkeep_stream_resets_total{reason=\"expired\"}", "0"),
        ("meshkeep_stream_replays_total", "0"),
        ("meshkeep_stream_lag_changes", "0"),
        ("meshkeep_feed_tombstones", "1"),
        ("meshkeep_queue_high_water_mark{queue=\"commit\"}", "1"),
        ("meshkeep_cluster_changes_total{target_cluster=\"paris\",kind=\"identity\",change=\"upsert\"}", "2"),
        ("meshkeep_cluster_changes_total{target_cluster=\"paris\",kind=\"identity\",change=\"delete\"}", "1"),
    ] {
        assert_eq!(samples.get(name).map(String::as_str), Some(value), "{name}");
    }
    // the last of the three changes may be visible before it is counted
    let published: u64 = samples["meshkeep_publish_duration_seconds_count"].parse().unwrap();
    assert!(published >= 2, "{published}");
    let waited: u64 = samples["meshkeep_queue_high_water_mark{queue=\"stream_waiting_bytes\"}"].parse().unwrap();
    assert!(waited > 1_000, "{waited}");
    let sent: u64 = samples["meshkeep_stream_sent_bytes_total"].parse().unwrap();
    assert!(sent > 1_000, "{sent}");
    drop(stream);
    assert_eq!(scrape(&fixture).await["meshkeep_streams{encoding=\"sse\"}"], "0");
}

#[tokio::test]
async fn a_cluster_that_was_never_read_has_a_phase_and_infinite_age() {
    let fixture = ApiFixture::new().with_all_metrics();
    // its etcd answered, but has no cluster config
    let osaka = ClusterStatus { phase: Phase::BackingOff, last_contact: Some(Instant::now()), ..ClusterStatus::new(Instant::now()) };
    fixture.publish_statuses([("paris", paris_status()), ("osaka", osaka)]);
    let mut signal = fixture.handle.signal().await.unwrap();
    signal.borrow_and_update();
    fixture.command(Command::Phase { cluster: cluster("osaka"), phase: Phase::BackingOff, cause: 0 }).await;
    signal.changed().await.unwrap();
    let samples = scrape(&fixture).await;
    for (name, value) in [
        ("meshkeep_cluster_phase{target_cluster=\"osaka\",phase=\"backingOff\"}", "1"),
        ("meshkeep_cluster_age_seconds{target_cluster=\"osaka\",kind=\"node\"}", "+Inf"),
        ("meshkeep_kvstore_initial_sync_completed{scope=\"nodes/v1\",source_cluster=\"osaka\",action=\"read\"}", "0"),
        ("meshkeep_remote_clusters", "2"),
    ] {
        assert_eq!(samples.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(samples.contains_key("meshkeep_cluster_phase_seconds{target_cluster=\"osaka\"}"));
    let resident: f64 = samples["process_resident_memory_bytes"].parse().unwrap();
    let started: f64 = samples["process_start_time_seconds"].parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!(resident > 1e6 && (0.0..3_600.0).contains(&(now - started)), "{resident} {}", now - started);
}

/// `Accept` of Prometheus 2.53.
const PROMETHEUS_ACCEPT: &str = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";

/// Returns the samples without their values. The bounds of buckets have the form of the plain text.
fn sample_names(text: &str) -> BTreeSet<String> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.rsplit_once(' ').unwrap().0.replace(".0\"}", "\"}")).collect()
}

async fn get_accepting(fixture: &ApiFixture, accept: &str) -> TestResponse {
    fixture.send(Request::get("/metrics").header("accept", accept).body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn openmetrics_has_the_same_samples_with_units_and_an_end() {
    let fixture = ApiFixture::new().with_all_metrics();
    // its duration is a sample of the next answers
    fixture.get("/metrics").await;
    let plain = String::from_utf8(fixture.get("/metrics").await.bytes).unwrap();
    let answer = get_accepting(&fixture, PROMETHEUS_ACCEPT).await;
    assert_eq!(answer.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let open = String::from_utf8(answer.bytes).unwrap();
    assert!(open.ends_with("\n# EOF\n") && open.matches("# EOF").count() == 1 && !plain.contains("# EOF"));
    assert_eq!(sample_names(&open), sample_names(&plain));
    assert!(open.contains("_bucket{le=\"1.0\"}") && plain.contains("_bucket{le=\"1\"}"), "{open}");
    let (mut family, mut kind) = ("", "");
    for line in open.lines() {
        match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["#", "TYPE", name, of] => (family, kind) = (name, of),
            ["#", "UNIT", name, unit] => assert!(name == family && name.ends_with(&format!("_{unit}")), "{line}"),
            ["#", ..] => {}
            _ => {
                let suffixes: &[&str] = match kind {
                    "counter" => &["_total"],
                    "histogram" => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                let name = line.split(['{', ' ']).next().unwrap();
                assert!(suffixes.iter().any(|suffix| name.strip_suffix(suffix) == Some(family)), "{kind} {family}: {line}");
            }
        }
    }
    for (name, unit) in [("process_resident_memory_bytes", "bytes"), ("meshkeep_scan_seconds", "seconds")] {
        assert!(open.contains(&format!("# UNIT {name} {unit}\n")), "{name}");
    }
    let preferring = async |accept: &str| get_accepting(&fixture, accept).await.header("content-type").to_owned();
    assert!(preferring("text/plain, application/openmetrics-text;q=0.9").await.starts_with("text/plain"));
    assert!(preferring("*/*").await.starts_with("text/plain"));
}

#[tokio::test]
async fn the_metrics_page_lists_exactly_the_exposed_metrics() {
    let page = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operate/metrics.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let reported: BTreeMap<&str, &str> =
        rows.filter(|(_, rest)| rest.matches(" | ").count() >= 2).map(|(name, rest)| (name, rest.split(' ').next().unwrap())).collect();
    let fixture = ApiFixture::new().with_all_metrics();
    fixture.handle.set_reflection_source(crate::handle::Reflection::default);
    fixture.add_history();
    let text = String::from_utf8(fixture.get("/metrics").await.bytes).unwrap();
    let found: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    assert_eq!(reported, found, "docs/operate/metrics.md differs from /metrics");
}

fn read_file(path: &str) -> String {
    std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Returns the names of metrics in a text.
fn metric_names(text: &str) -> BTreeSet<String> {
    let is_part = |character: char| character.is_ascii_lowercase() || character == '_';
    let words = text.split(|character| !is_part(character));
    let names = words.filter(|word| word.starts_with("meshkeep_") || word.starts_with("process_"));
    names.map(|name| ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name).to_owned()).collect()
}

/// The default has one value for each cluster where all metrics have one for each kind.
#[tokio::test]
async fn the_default_metrics_of_a_cluster_combine_those_of_its_kinds() {
    let (default, full) = (ApiFixture::new(), ApiFixture::new().with_all_metrics());
    let address = key(Kind::Ip, "paris", "10.1.2.41");
    for fixture in [&default, &full] {
        fixture.change(put(address.clone(), pod("10.1.2.41", 68_353, "172.18.1.2"), 40)).await;
        fixture.change(Change::Delete { key: address.clone() }).await;
        fixture.change(put(key(Kind::Identity, "paris", "70000"), identity(70_000, "a"), 41)).await;
    }
    let (default, full) = (scrape(&default).await, scrape(&full).await);
    for (name, cluster) in [
        ("meshkeep_cluster_entries", "paris"),
        ("meshkeep_cluster_restored_entries", "tokyo"),
        ("meshkeep_cluster_held_entries", "paris"),
        ("meshkeep_cluster_changes_total", "paris"),
    ] {
        let of_cluster = format!("{name}{{target_cluster=\"{cluster}\"");
        let sum: f64 = full
            .range(of_cluster.clone()..)
            .take_while(|(name, _)| name.starts_with(&of_cluster))
            .map(|(_, value)| value.parse::<f64>().unwrap())
            .sum();
        assert_eq!(default[&(of_cluster + "}")].parse::<f64>().unwrap(), sum, "{name}");
    }
    assert!(default["meshkeep_cluster_age_seconds{target_cluster=\"paris\"}"].parse::<f64>().unwrap() < 600.0);
    let phases: Vec<_> = default.iter().filter(|(name, _)| name.starts_with("meshkeep_cluster_phase{target_cluster=\"tokyo\"")).collect();
    let phase = |phase: &str| format!("meshkeep_cluster_phase{{target_cluster=\"tokyo\",phase=\"{phase}\"}}");
    let expected = [(phase("live"), "0".to_owned()), (phase("sourceLost"), "0".to_owned()), (phase("waitingForFiles"), "1".to_owned())];
    assert_eq!(phases, expected.iter().map(|(name, value)| (name, value)).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_default_metrics_are_enough_for_alerts_and_dashboard_and_small_with_255_clusters() {
    let fixture = mesh_of(255);
    let bytes = fixture.get("/metrics").await.bytes;
    assert!(bytes.len() <= 300_000, "{} bytes", bytes.len());
    let text = String::from_utf8(bytes).unwrap();
    let exposed: BTreeSet<String> =
        text.lines().filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split_once(' ')?.0.to_owned())).collect();
    let alerts: String = read_file("deploy/prometheus/alerts.yaml")
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n");
    for used in [metric_names(&alerts), metric_names(&read_file("deploy/prometheus/dashboard.json"))] {
        assert!(used.len() > 15, "{used:?}");
        assert_eq!(used.difference(&exposed).collect::<Vec<_>>(), Vec::<&String>::new());
    }
    assert_eq!(text.matches("meshkeep_cluster_entries{").count(), 255);
    let full = fixture.with_all_metrics().get("/metrics").await.bytes;
    assert!(full.len() > 3 * text.len(), "{} bytes", full.len());
}
