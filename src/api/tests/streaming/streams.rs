//! The change stream: events, their order, and the end.

use axum::body::{Body, BodyDataStream};
use axum::http::{Request, StatusCode};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::Duration;
use tower::ServiceExt;

use crate::api::tests::fixture::{ApiFixture, HEAD, cluster, identity, key, node, pod, put};
use crate::model::{Change, Command, DeleteReason, Kind, Phase};

/// One event as a client sees it: name, id and data without ages.
pub(in crate::api::tests) type ReceivedEvent = (String, Option<String>, Value);

pub(in crate::api::tests) struct StreamClient {
    body: BodyDataStream,
    text: String,
    has_begun: bool,
}

impl StreamClient {
    pub(in crate::api::tests) async fn open(fixture: &ApiFixture, uri: &str, headers: &[(&str, &str)]) -> Self {
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = fixture.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let names = ["cache-control", "x-accel-buffering"].map(|name| response.headers()[name].to_str().unwrap().to_owned());
        assert_eq!(names, ["no-cache, no-transform", "no"]);
        Self { body: response.into_body().into_data_stream(), text: String::new(), has_begun: false }
    }

    /// Returns the next block up to an empty line, or `None` at the end.
    pub(in crate::api::tests) async fn block(&mut self, separator: &str) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.text.split_once(separator) {
                let block = block.to_owned();
                self.text = rest.to_owned();
                return Some(block);
            }
            let chunk =
                tokio::time::timeout(Duration::from_secs(60), self.body.next()).await.expect("must receive a chunk within a minute")?;
            self.text.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
        }
    }

    async fn event(&mut self) -> Option<ReceivedEvent> {
        let block = self.block("\n\n").await?;
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).map(str::to_owned);
        // the first block has the field `retry`, and no other block has it
        assert_eq!(field("retry").as_deref(), (!std::mem::replace(&mut self.has_begun, true)).then_some("2000"), "{block}");
        let name = field("event").unwrap_or_else(|| panic!("a block without an event: {block:?}"));
        let mut data: Value = serde_json::from_str(&field("data").unwrap()).unwrap();
        assert_eq!(data["type"], json!(name));
        strip_ages(&mut data);
        Some((name, field("id"), data))
    }

    pub(in crate::api::tests) async fn until(&mut self, last: &str) -> Vec<ReceivedEvent> {
        let mut events = Vec::new();
        while let Some(event) = self.event().await {
            let done = event.0 == last;
            events.push(event);
            if done {
                break;
            }
        }
        events
    }

    /// Returns the remaining events until the stream ends.
    async fn rest(&mut self) -> Vec<ReceivedEvent> {
        self.until("no such event").await
    }
}

fn strip_ages(data: &mut Value) {
    for cluster in data.get_mut("clusters").and_then(Value::as_array_mut).into_iter().flatten() {
        cluster.as_object_mut().unwrap().remove("ageSeconds");
    }
}

fn clusters() -> Value {
    json!([
        { "cluster": "paris", "phase": "live", "lastContact": "2026-01-01T00:30:00Z" },
        { "cluster": "tokyo", "phase": "waitingForFiles", "lastContact": "2026-01-01T00:30:00Z" },
    ])
}

fn position(sequence: u64) -> String {
    format!("v1.000000000000feed.{sequence}")
}

fn names(events: &[ReceivedEvent]) -> Vec<&str> {
    events.iter().map(|(name, ..)| name.as_str()).collect()
}

#[tokio::test]
async fn live_changes_follow_a_snapshot() {
    let fixture = ApiFixture::new();
    let uri = "/v1/events?snapshot=true&kind=node&labelSelector=zone%3Da";
    let mut client = StreamClient::open(&fixture, uri, &[]).await;
    let worker = key(Kind::Node, "paris", "paris-worker-1");
    let listed = fixture.json("/v1/nodes?labelSelector=zone%3Da").await["items"][0].clone();
    let upsert = |object: &Value, meta: Value| json!({ "type": "upsert", "kind": "node", "key": worker.to_string(), "object": object, "meta": meta });
    let synced = json!({ "type": "synced", "mode": "snapshot", "count": 1, "position": position(HEAD), "clusters": clusters() });
    let expected: Vec<ReceivedEvent> = vec![
        ("reset".to_owned(), None, json!({ "type": "reset", "reason": "initial" })),
        ("upsert".to_owned(), None, upsert(&listed, json!({ "cluster": "paris", "revision": 15 }))),
        ("synced".to_owned(), Some(position(HEAD)), synced),
    ];
    assert_eq!(client.until("synced").await, expected);

    fixture.change(put(worker.clone(), node("paris-worker-1", "172.18.1.9", "a"), 31)).await;
    let listed = fixture.json("/v1/nodes?labelSelector=zone%3Da").await["items"][0].clone();
    let meta = json!({ "cluster": "paris", "revision": 31, "position": position(HEAD + 1) });
    assert_eq!(client.event().await, Some(("upsert".to_owned(), Some(position(HEAD + 1)), upsert(&listed, meta))));

    let left = |reason: &str, sequence: u64| {
        let meta = json!({ "cluster": "paris", "position": position(sequence) });
        let data = json!({ "type": "delete", "kind": "node", "key": worker.to_string(), "reason": reason, "meta": meta });
        Some(("delete".to_owned(), Some(position(sequence)), data))
    };
    // the change of the address also changed four entries derived from the node: those of its
    // addresses, and those that have the address as their host
    fixture.change(put(worker.clone(), node("paris-worker-1", "172.18.1.9", "b"), 32)).await;
    let without_time = |event: Option<ReceivedEvent>| {
        let (name, id, mut data) = event?;
        data["meta"].as_object_mut()?.remove("changedAt")?;
        Some((name, id, data))
    };
    assert_eq!(without_time(client.event().await), left("leftFilter", HEAD + 6));
    fixture.change(put(key(Kind::Identity, "paris", "70000"), identity(70_000, "other"), 33)).await;
    fixture.change(put(worker.clone(), node("paris-worker-1", "172.18.1.9", "a"), 34)).await;
    assert_eq!(client.event().await.map(|event| (event.0, event.1)), Some(("upsert".to_owned(), Some(position(HEAD + 8)))));
    fixture.change(Change::Delete { key: worker.clone() }).await;
    assert_eq!(without_time(client.event().await), left("deleted", HEAD + 9));

    fixture.stop.cancel();
    let rest = client.rest().await;
    // the two entries that were deleted with the node do not match, so the position may be before
    // or after these changes
    let reached = (HEAD + 8..=HEAD + 10).map(position).find(|reached| rest[0].1.as_ref() == Some(reached));
    let bookmark = json!({ "type": "bookmark", "position": reached, "clusters": clusters() });
    assert_eq!(rest, [("bookmark".to_owned(), reached, bookmark)]);
}

#[tokio::test]
async fn a_stream_resumes_from_a_position_and_the_header_takes_precedence() {
    let fixture = ApiFixture::new();
    for number in 0..3_i64 {
        let address = format!("10.1.2.{number}");
        fixture.change(put(key(Kind::Ip, "paris", &address), pod(&address, 68_353, "172.18.1.2"), 40 + number)).await;
    }
    let uri = format!("/v1/events?snapshot=true&after={}", position(HEAD));
    let mut client = StreamClient::open(&fixture, &uri, &[("last-event-id", &position(HEAD + 1))]).await;
    let events = client.until("synced").await;
    let ids: Vec<Option<&str>> = events.iter().map(|event| event.1.as_deref()).collect();
    // the second position also contains the third sequence, because the client may already have its
    // state
    let (second, third) = (format!("v1.000000000000feed{:016x}.{}", HEAD + 3, HEAD + 2), position(HEAD + 3));
    assert_eq!(names(&events), ["upsert", "upsert", "synced"]);
    assert_eq!(ids, [Some(second.as_str()), Some(third.as_str()), Some(third.as_str())]);
    assert_eq!((&events[2].2["mode"], &events[2].2["count"]), (&json!("replay"), &json!(2)));
}

#[tokio::test]
async fn a_position_that_cannot_be_served_leads_to_a_reset_or_410() {
    let fixture = ApiFixture::new();
    let cases = [("v1.00000000deadbeef.1".to_owned(), "foreignEpoch"), (position(1_000_000), "rolledBack"), (position(5), "expired")];
    for (after, reason) in cases {
        let mut client = StreamClient::open(&fixture, &format!("/v1/events?after={after}"), &[]).await;
        let events = client.until("synced").await;
        assert_eq!(events[0], ("reset".to_owned(), None, json!({ "type": "reset", "reason": reason })));
        let reported = |name: &str| events.iter().filter(|event| event.0 == name).count();
        assert_eq!((names(&events).last(), reported("upsert"), reported("cluster")), (Some(&"synced"), 15, 2));
        let refused = fixture.get(&format!("/v1/events?after={after}&onExpired=fail")).await;
        assert_eq!((refused.status, refused.json()["code"].clone()), (StatusCode::GONE, json!("expiredPosition")));
    }
}

#[tokio::test]
async fn a_malformed_position_gets_400_with_the_expected_format() {
    let fixture = ApiFixture::new();
    for after in ["nonsense", "v9.00000000deadbeef.1", "v1.deadbeef.1", "v1.+0000000deadbeef.1", "v1.00000000deadbeef.", "c1.x"] {
        for more in ["", "&onExpired=fail", "&onExpired=reset", "&snapshot=true"] {
            let refused = fixture.get(&format!("/v1/events?after={after}{more}")).await;
            assert_eq!((refused.status, refused.json()["code"].clone()), (StatusCode::BAD_REQUEST, json!("badParameter")), "{after}{more}");
            let detail = refused.json()["detail"].as_str().unwrap().to_owned();
            assert!(
                detail.contains("v1.<16 or 32 hexadecimal digits>.<number>") && detail.contains("like v1.00000000deadbeef.42"),
                "{detail}"
            );
        }
    }
}

/// An `EventSource` gives up for good after any status other than 200.
#[tokio::test]
async fn a_malformed_last_event_id_is_a_reset() {
    let fixture = ApiFixture::new();
    for id in ["nonsense", "v9.00000000deadbeef.1"] {
        for uri in ["/v1/events", "/v1/events?snapshot=true", &format!("/v1/events?after={}", position(HEAD))] {
            let mut client = StreamClient::open(&fixture, uri, &[("last-event-id", id)]).await;
            let events = client.until("synced").await;
            assert_eq!(events[0], ("reset".to_owned(), None, json!({ "type": "reset", "reason": "malformed" })), "{uri} {id}");
        }
        let wrong = Request::get("/v1/events?after=nonsense").header("last-event-id", id).body(Body::empty()).unwrap();
        assert_eq!(fixture.send(wrong).await.status, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn a_client_that_applies_the_stream_has_the_state_of_the_lists() {
    let fixture = ApiFixture::new();
    let mut client = StreamClient::open(&fixture, "/v1/events?snapshot=true", &[("accept", "application/x-ndjson")]).await;
    let mut copy = std::collections::BTreeMap::new();
    loop {
        let event: Value = serde_json::from_str(&client.block("\n").await.unwrap()).unwrap();
        match event["type"].as_str().unwrap() {
            "reset" => copy.clear(),
            "upsert" => drop(copy.insert(event["key"].as_str().unwrap().to_owned(), event["object"].clone())),
            "cluster" => drop(copy.insert(event["key"].as_str().unwrap().to_owned(), name_and_phase(&event["object"]))),
            "synced" => break,
            other => panic!("{other}"),
        }
    }
    let mut listed = Vec::new();
    for list in ["identities", "ipcache", "nodes", "services"] {
        listed.extend(fixture.json(&format!("/v1/{list}")).await["items"].as_array().unwrap().clone());
    }
    listed.extend(fixture.json("/v1/clusters").await["items"].as_array().unwrap().iter().map(name_and_phase));
    // lists have entries derived from nodes in the ipcache, but their keys are among the nodes
    let sorted = |mut objects: Vec<Value>| {
        objects.sort_by_key(ToString::to_string);
        objects
    };
    assert_eq!(sorted(copy.into_values().collect()), sorted(listed));
}

/// Members that a cluster has both in the stream and in its list (docs/use/api/streams.md). The
/// other members in the stream are current, and may be newer than the event.
pub(in crate::api::tests) fn name_and_phase(cluster: &Value) -> Value {
    json!([cluster["name"], cluster.get("phase")])
}

#[tokio::test]
async fn phases_are_events_and_a_removed_cluster_is_deleted() {
    let fixture = ApiFixture::new();
    let mut client = StreamClient::open(&fixture, "/v1/events?snapshot=true&kind=cluster", &[]).await;
    let events = client.until("synced").await;
    let reported: Vec<Value> = events.iter().filter(|event| event.0 == "cluster").map(|event| name_and_phase(&event.2["object"])).collect();
    assert_eq!(reported, [json!(["paris", "live"]), json!(["tokyo", "waitingForFiles"])]);
    assert_eq!((&events[0].0, &events.last().unwrap().2["count"]), (&"reset".to_owned(), &json!(2)));
    fixture.command(Command::Phase { cluster: cluster("paris"), phase: Phase::BackingOff, cause: 0 }).await;
    let (name, id, data) = client.event().await.unwrap();
    assert_eq!((name.as_str(), id), ("cluster", Some(position(HEAD + 1))));
    assert_eq!((&data["kind"], &data["key"]), (&json!("cluster"), &json!("cilium/cluster-config/paris")));
    assert_eq!((&data["object"]["phase"], &data["object"]["clusterID"]), (&json!("backingOff"), &json!(1)));
    assert_eq!(fixture.json("/v1/clusters/paris").await["phase"], json!("backingOff"), "the list agrees with the stream");
    fixture.command(Command::Phase { cluster: cluster("paris"), phase: Phase::BackingOff, cause: 0 }).await;
    fixture.command(Command::Remove { cluster: cluster("paris"), reason: DeleteReason::ClusterRemoved }).await;
    let (name, _, data) = client.event().await.unwrap();
    assert_eq!((name.as_str(), &data["reason"], &data["key"]), ("delete", &json!("clusterRemoved"), &json!("cilium/cluster-config/paris")));
    let mut late = StreamClient::open(&fixture, &format!("/v1/events?kind=cluster&after={}", position(HEAD)), &[]).await;
    let missed = late.until("synced").await;
    assert_eq!(names(&missed), ["delete", "synced"]);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_stream_sends_a_bookmark_every_15_seconds() {
    let fixture = ApiFixture::new();
    let began = tokio::time::Instant::now();
    let mut client = StreamClient::open(&fixture, "/v1/events", &[]).await;
    client.until("synced").await;
    for round in 1..4 {
        assert_eq!(client.event().await.map(|event| (event.0, event.1)), Some(("bookmark".to_owned(), Some(position(HEAD)))));
        assert_eq!(began.elapsed().as_secs(), 15 * round);
    }
}

#[tokio::test]
async fn streams_above_the_limit_get_429_with_retry_after() {
    let fixture = ApiFixture::new();
    let state = crate::api::state::ApiState::new(fixture.handle.clone(), fixture.stop.clone());
    let limiter = state.stream_limiter.clone();
    let mut taken: Vec<_> = std::iter::from_fn(|| limiter.try_acquire(crate::admission::Client::Local).ok()).collect();
    assert_eq!(taken.len(), 1_000);
    taken.pop();
    let guard = crate::api::guard::Guard::new(crate::api::guard::AllowedHosts::new(&[], &[]), None);
    let mut fixture = fixture;
    fixture.router = crate::api::router::router(state, guard);
    let open = StreamClient::open(&fixture, "/v1/events", &[]).await;
    let refused = fixture.get("/v1/events").await;
    assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (429, "1"));
    drop(open);
    StreamClient::open(&fixture, "/v1/events", &[]).await;
    drop(taken);
}

#[tokio::test]
async fn a_stream_that_ends_early_sends_the_reason() {
    let fixture = ApiFixture::new();
    let mut open = StreamClient::open(&fixture, "/v1/events?snapshot=true", &[]).await;
    fixture.stop.cancel();
    let events = open.rest().await;
    let problem = &events.last().unwrap().2["problem"];
    assert_eq!((names(&events), &problem["code"]), (vec!["error"], &json!("stopping")));

    let fixture = ApiFixture::new();
    let mut open = StreamClient::open(&fixture, "/v1/events?snapshot=true", &[]).await;
    fixture.unload();
    let events = open.rest().await;
    let problem = &events.last().unwrap().2["problem"];
    assert_eq!((names(&events), &problem["code"], &problem["status"]), (vec!["error"], &json!("loading"), &json!(503)));
}
