//! What Prometheus scrapes.

use std::collections::BTreeMap;

use super::fixture::{Fixture, identity, key, put};
use super::streams::Client;
use crate::model::{Change, Kind};

async fn scrape(fixture: &Fixture) -> BTreeMap<String, String> {
    let answer = fixture.get("/metrics").await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "text/plain; version=0.0.4; charset=utf-8"));
    let text = String::from_utf8(answer.bytes).unwrap();
    let mut families = Vec::new();
    let mut samples = BTreeMap::new();
    for line in text.lines() {
        match line.strip_prefix("# TYPE ").map(|rest| rest.split_once(' ').unwrap()) {
            Some((family, kind)) => {
                assert!(family.starts_with("meshkeep_") && family.ends_with("_total") == (kind == "counter"), "{line}");
                families.push(family.to_owned());
            }
            None if line.starts_with("# HELP ") => {}
            None => {
                let (name, value) = line.rsplit_once(' ').unwrap();
                assert!(name.split('{').next() == families.last().map(String::as_str), "{line}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert_eq!(samples.insert(name.to_owned(), value.to_owned()), None, "{line}");
            }
        }
    }
    let distinct: std::collections::BTreeSet<&String> = families.iter().collect();
    assert_eq!(distinct.len(), families.len(), "a family must come once");
    samples
}

#[tokio::test]
async fn the_state_of_everything_is_scraped() {
    let fixture = Fixture::new();
    let samples = scrape(&fixture).await;
    for (name, value) in [
        ("meshkeep_loaded", "1"),
        ("meshkeep_clusters{phase=\"live\"}", "1"),
        ("meshkeep_clusters{phase=\"waitingForFiles\"}", "1"),
        ("meshkeep_clusters{phase=\"backingOff\"}", "0"),
        ("meshkeep_cluster_entries{target_cluster=\"paris\",kind=\"node\"}", "2"),
        ("meshkeep_cluster_restored_entries{target_cluster=\"tokyo\",kind=\"node\"}", "1"),
        ("meshkeep_cluster_confirmed{target_cluster=\"tokyo\",kind=\"node\"}", "0"),
        ("meshkeep_cluster_failures_total{target_cluster=\"paris\"}", "0"),
        ("meshkeep_objects{kind=\"ipcache\"}", "9"),
        ("meshkeep_rejected_entries", "1"),
        ("meshkeep_global_services", "1"),
        ("meshkeep_store_state{state=\"healthy\"}", "1"),
        ("meshkeep_store_state{state=\"failing\"}", "0"),
        ("meshkeep_store_restored_entries", "3"),
        ("meshkeep_feed_head_sequence", "113"),
        ("meshkeep_feed_tombstones", "0"),
        ("meshkeep_streams{encoding=\"sse\"}", "0"),
    ] {
        assert_eq!(samples.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(samples.contains_key("meshkeep_cluster_age_seconds{target_cluster=\"paris\",kind=\"ipcache\"}"));
    fixture.unload();
    assert_eq!(scrape(&fixture).await["meshkeep_loaded"], "0");
}

#[tokio::test]
async fn what_streams_do_is_counted() {
    let fixture = Fixture::new();
    let mut stream = Client::open(&fixture, "/v1/events?after=nonsense", &[]).await;
    stream.until("synced").await;
    let app = key(Kind::Identity, "paris", "70000");
    fixture.change(put(app.clone(), identity(70_000, "a"), 40)).await;
    fixture.change(Change::Delete { key: app }).await;
    stream.until("delete").await;
    fixture.get("/v1/changes?after=nonsense").await;
    let samples = scrape(&fixture).await;
    for (name, value) in [
        ("meshkeep_streams{encoding=\"sse\"}", "1"),
        ("meshkeep_streams{encoding=\"ndjson\"}", "0"),
        ("meshkeep_stream_resets_total{reason=\"malformed\"}", "2"),
        ("meshkeep_stream_resets_total{reason=\"expired\"}", "0"),
        ("meshkeep_stream_replays_total", "0"),
        ("meshkeep_stream_lag_changes", "0"),
        ("meshkeep_feed_tombstones", "1"),
        ("meshkeep_queue_high_water_mark{queue=\"commit\"}", "1"),
    ] {
        assert_eq!(samples.get(name).map(String::as_str), Some(value), "{name}");
    }
    let waited: u64 = samples["meshkeep_queue_high_water_mark{queue=\"stream_waiting_bytes\"}"].parse().unwrap();
    assert!(waited > 1_000, "{waited}");
    let sent: u64 = samples["meshkeep_stream_sent_bytes_total"].parse().unwrap();
    assert!(sent > 1_000, "{sent}");
    drop(stream);
    assert_eq!(scrape(&fixture).await["meshkeep_streams{encoding=\"sse\"}"], "0");
}
