//! Long requests do not delay quick ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};

use super::disconnect::figure;
use super::sockets::{RunningServer, get, local};
use crate::admission::Client;
use crate::api::ApiOptions;
use crate::api::tests::fixture::{ApiFixture, identity, key, put};
use crate::api::tests::lists::pages::pods;
use crate::model::Kind;

/// Number of pods: scanning all of them takes a hundred times as long as a quick answer.
const PODS: u32 = 50_000;

/// Requests that scan all pods and match none.
const WORST: [&str; 2] = ["/v1/ipcache?namespace=none&limit=1", "/v1/changes?snapshot=true&namespace=none"];

#[tokio::test]
async fn only_long_requests_count_as_usage() {
    let fixture = ApiFixture::new();
    for uri in ["/v1/changes?snapshot=true", "/v1/problems", "/v1/explain/10.1.2.3", "/v1/ipcache"] {
        let before = fixture.scans.total_usage().time;
        assert_eq!(fixture.get(uri).await.status.as_u16(), 200, "{uri}");
        assert!(fixture.scans.total_usage().time > before, "{uri}");
    }
    let before = fixture.scans.total_usage().time;
    for uri in ["/livez", "/v1/ipcache/lookup?ip=10.1.2.3", "/v1/changes", "/v1/status"] {
        assert_eq!(fixture.get(uri).await.status.as_u16(), 200, "{uri}");
    }
    assert_eq!(fixture.scans.total_usage().time, before);
}

/// The requests of a fixture come from the clients of a unix socket.
#[tokio::test]
async fn a_lookup_is_answered_while_all_slots_for_long_requests_are_in_use() {
    let fixture = ApiFixture::new();
    fixture.add_history();
    let scanners: Vec<_> = std::iter::from_fn(|| fixture.scans.admit(Client::Local).ok()).collect();
    let lookup = "/v1/ipcache/lookup?ip=10.1.2.40";
    assert_eq!(fixture.get(lookup).await.status.as_u16(), 200);
    for long in [format!("{lookup}&at=1m"), "/v1/ipcache".to_owned()] {
        assert_eq!(fixture.get(&long).await.status.as_u16(), 429, "{long}");
    }
    drop(scanners);
    assert_eq!(fixture.get("/v1/ipcache").await.status.as_u16(), 200);
}

#[tokio::test]
async fn a_waiting_long_poll_occupies_no_slot() {
    let fixture = ApiFixture::new();
    let next = fixture.json("/v1/changes?snapshot=true").await["nextPosition"].as_str().unwrap().to_owned();
    let before = fixture.scans.total_usage().time;
    let uri = format!("/v1/changes?after={next}&waitSeconds=60");
    let mut waiting = std::pin::pin!(fixture.json(&uri));
    let is_released = async {
        while fixture.scans.total_usage().time == before || fixture.scans.admitted_count() > 0 {
            yield_now().await;
        }
    };
    tokio::select! {
        answer = waiting.as_mut() => panic!("nothing has changed: {answer}"),
        left = tokio::time::timeout(Duration::from_secs(10), is_released) => left.expect("the slot must be released"),
    }
    let before = fixture.scans.total_usage().time;
    let change = fixture.change(put(key(Kind::Identity, "paris", "70000"), identity(70_000, "late"), 200));
    let (answer, ()) = tokio::join!(waiting, change);
    assert_eq!(answer["events"][0]["type"], "upsert", "{answer}");
    assert_eq!(fixture.scans.total_usage().time, before, "one change is sent without a slice");
}

/// Twenty clients over real sockets send the slowest requests, each on its own connection.
#[tokio::test]
async fn probes_and_lookups_do_not_wait_for_scans() {
    let running = RunningServer::of(ApiFixture::with_view(pods(PODS)), &[local()], &ApiOptions::default()).await;
    let url = running.addresses[0].clone();
    let (mut clients, finished) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for uri in WORST.into_iter().cycle().take(20) {
        let (uri, finished) = (format!("{url}{uri}"), Arc::clone(&finished));
        clients.spawn(async move {
            let answer = get(uri).await.unwrap().text().await.unwrap();
            finished.fetch_add(1, Ordering::Relaxed);
            answer
        });
    }
    // the request for the metrics is one of the 21
    while figure(&url, "meshkeep_scans").await < 21 {
        assert_eq!(finished.load(Ordering::Relaxed), 0, "a scan ended before the probes");
    }
    for number in 0..50 {
        assert_eq!(get(format!("{url}/livez")).await.unwrap().status().as_u16(), 200);
        let found = get(format!("{url}/v1/ipcache/lookup?ip=10.1.7.{number}")).await.unwrap().text().await.unwrap();
        assert!(found.contains("\"shop\""), "{found}");
    }
    assert_eq!(finished.load(Ordering::Relaxed), 0, "a scan ended before the probes");
    clients.shutdown().await;
    running.stopped().await;
}
