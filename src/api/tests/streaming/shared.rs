//! Many concurrent readers with few filters, and a writer that does not wait for them. In the end,
//! each reader has the state that the lists return.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures_util::StreamExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant};
use tower::ServiceExt;

use crate::api::tests::fixture::{ApiFixture, identity, key, node, pod, put};
use crate::model::{Change, Kind};

/// Filters of the readers, and the list with the same content.
const FILTERS: [(&str, &str); 6] = [
    ("kind=ipcache", "/v1/ipcache?limit=10000"),
    ("kind=ipcache&identity=2", "/v1/ipcache?limit=10000&identity=2"),
    ("kind=ipcache&cidr=10.7.0.0/28", "/v1/ipcache?limit=10000&cidr=10.7.0.0/28"),
    ("kind=node&labelSelector=zone%3Da", "/v1/nodes?labelSelector=zone%3Da"),
    ("kind=identity&cluster=paris", "/v1/identities?limit=10000&cluster=paris"),
    ("kind=ipcache&node=172.18.1.2", "/v1/ipcache?limit=10000&node=172.18.1.2"),
];

type StreamCopy = Arc<Mutex<BTreeMap<String, Value>>>;

/// Reads one stream after the other, and applies their events to `state`. Each stream is closed
/// after some events, and the next stream continues from the last position.
async fn read(router: Router, query: &str, state: StreamCopy, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut position: Option<String> = None;
    loop {
        let mut request = Request::get(format!("/v1/events?snapshot=true&{query}")).header("accept", "application/x-ndjson");
        if let Some(position) = &position {
            request = request.header("last-event-id", position);
        }
        let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let mut body = response.into_body().into_data_stream();
        let mut left: u32 = random.random_range(1..400);
        let mut previous = 0;
        while left > 0
            && let Some(chunk) = body.next().await
        {
            for line in std::str::from_utf8(&chunk.unwrap()).unwrap().lines() {
                let event: Value = serde_json::from_str(line).unwrap();
                let own = event["position"].as_str().or_else(|| event["meta"]["position"].as_str());
                if let Some(own) = own {
                    let sequence: u64 = own.rsplit('.').next().unwrap().parse().unwrap();
                    assert!(sequence >= previous, "{sequence} after {previous}: {line}");
                    previous = sequence;
                    position = Some(own.to_owned());
                }
                apply(&state, &event);
                left = left.saturating_sub(1);
            }
            if random.random_bool(0.2) {
                tokio::task::yield_now().await;
            }
        }
    }
}

fn apply(state: &StreamCopy, event: &Value) {
    let mut state = state.lock().unwrap();
    let key = event["key"].as_str().unwrap_or_default().to_owned();
    match event["type"].as_str().unwrap() {
        "reset" => state.clear(),
        "upsert" => drop(state.insert(key, event["object"].clone())),
        "delete" => drop(state.remove(&key)),
        "synced" | "bookmark" => {}
        other => panic!("{other}"),
    }
}

fn random_change(random: &mut StdRng, revision: i64) -> Change {
    let number: u32 = random.random_range(0..40);
    let pick = |random: &mut StdRng| if random.random() { "172.18.1.2" } else { "172.18.1.3" };
    let zone = if random.random() { "a" } else { "b" };
    let (key, object) = match random.random_range(0..4) {
        0 => (key(Kind::Node, "paris", &format!("n{number}")), node(&format!("n{number}"), pick(random), zone)),
        1 => (key(Kind::Identity, "paris", &number.to_string()), identity(number, zone)),
        _ => {
            let address = format!("10.7.0.{number}");
            (key(Kind::Ip, "paris", &address), pod(&address, random.random_range(1..4), pick(random)))
        }
    };
    if random.random_bool(0.3) { Change::Delete { key } } else { put(key, object, revision) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_a_group_end_with_the_state_of_the_mirror() {
    check_final_state(&ApiFixture::new(), 0).await;
}

/// With too many readers, changes are merged by key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_conflated_changes_end_with_the_state_of_the_mirror() {
    // usually 21 to 822 of 4,000 changes were merged, but none in a run in which many other tests
    // used the CPUs
    check_final_state(&ApiFixture::new().with_conflation(), 20).await;
}

/// Number of changes that conflation left out.
async fn merged_count(fixture: &ApiFixture) -> u64 {
    let metrics = String::from_utf8(fixture.get("/metrics").await.bytes).unwrap();
    let merged = metrics.lines().find_map(|line| line.strip_prefix("meshkeep_stream_merged_changes_total "));
    merged.unwrap().parse().unwrap()
}

/// Writes 4,000 changes, and more until `merged_min` were merged.
///
/// A reader that joins brings every group up to date change by change, so the scheduler decides how
/// many changes are left for conflation.
/// Removes the time of an object's last change. A reader is not told the time of changes that end
/// with the object that it has.
fn remove_change_time(object: &mut Value) {
    object.as_object_mut().unwrap().remove("changedAt");
}

async fn check_final_state(fixture: &ApiFixture, merged_min: u64) {
    let mut readers = JoinSet::new();
    let mut state: Vec<StreamCopy> = Vec::new();
    for number in 0..36_u64 {
        let one = StreamCopy::default();
        state.push(Arc::clone(&one));
        let query = FILTERS[usize::try_from(number).unwrap() % FILTERS.len()].0;
        readers.spawn(read(fixture.router.clone(), query, one, number));
    }
    let mut random = StdRng::seed_from_u64(8);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut revision = 100;
    while revision < 4_100 || merged_count(fixture).await < merged_min {
        assert!(Instant::now() < deadline, "too few changes were merged");
        for _ in 0..500 {
            fixture.send_change(random_change(&mut random, revision)).await;
            revision += 1;
            if random.random_bool(0.02) {
                tokio::task::yield_now().await;
            }
        }
    }
    // the lists are final once they show the last change
    fixture.send_change(put(key(Kind::Identity, "paris", "99999"), identity(99_999, "last"), revision)).await;
    let mut signal = fixture.handle.signal().await.unwrap();
    while fixture.get("/v1/identities/99999").await.status != StatusCode::OK {
        signal.changed().await.unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    for (number, one) in state.iter().enumerate() {
        let mut listed = fixture.json(FILTERS[number % FILTERS.len()].1).await["items"].as_array().unwrap().clone();
        listed.iter_mut().for_each(remove_change_time);
        loop {
            let mut values: Vec<Value> = one.lock().unwrap().values().cloned().collect();
            values.iter_mut().for_each(remove_change_time);
            if values == listed {
                break;
            }
            assert!(Instant::now() < deadline, "reader {number} has {} objects, the list has {}", values.len(), listed.len());
            assert!(readers.try_join_next().is_none(), "a reader ended");
            tokio::task::yield_now().await;
        }
    }
}
