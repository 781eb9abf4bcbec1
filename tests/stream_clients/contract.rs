//! Bytes on the wire: the rules of the encodings that clients depend on.

use std::time::{Duration, Instant};

use reqwest::Response;
use serde_json::Value;

use super::nginx::Nginx;
use super::{port_of, start_settled};
use crate::harness::mesh::SMALL;
use crate::harness::meshkeep::http;
use crate::harness::stream::Follower;
use crate::harness::{PATIENCE, eventually};

/// Maximum additional delay of an event through nginx: far less than the seconds for which a
/// buffering proxy would keep it.
const PROXY_DELAY_MAX: Duration = Duration::from_secs(1);

async fn ask(url: &str, accept: &str) -> Response {
    let request = http().get(url).header("accept", accept).header("accept-encoding", "gzip, deflate, br, zstd");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200, "{url}");
    response
}

/// Reads up to and including the chunk that contains a text.
async fn text_up_to(response: &mut Response, expected: &str) -> String {
    let mut text = String::new();
    while !text.contains(expected) {
        let chunk = tokio::time::timeout(PATIENCE, response.chunk()).await.expect("must arrive in time").unwrap();
        text += str::from_utf8(&chunk.expect("must not end yet")).expect("must be ASCII");
    }
    text
}

/// Reads to the end of the stream.
async fn text(response: Response) -> String {
    let body = tokio::time::timeout(PATIENCE, response.bytes()).await.expect("must end in time").unwrap();
    String::from_utf8(body.into()).expect("must be plain text")
}

fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn streams_follow_the_rules_that_clients_depend_on() {
    let mut scene = start_settled(SMALL).await;
    let url = format!("{}/v1/events?snapshot=true", scene.meshkeep().url());
    let mut stream = ask(&url, "text/event-stream").await;
    let mut lines = ask(&url, "application/x-ndjson").await;
    for (response, content_type) in [(&stream, "text/event-stream"), (&lines, "application/x-ndjson")] {
        assert_eq!(header(response, "content-type"), Some(content_type));
        assert_eq!(header(response, "content-encoding"), None, "never compressed");
        assert_eq!(header(response, "cache-control"), Some("no-cache, no-transform"));
        assert_eq!(header(response, "x-accel-buffering"), Some("no"));
    }
    // wait for `synced`, because a change during the snapshot would be sent before it
    let (stream_start, lines_start) = (text_up_to(&mut stream, "\"synced\"").await, text_up_to(&mut lines, "\"synced\"").await);
    scene.remotes[0].change(|cluster| drop(super::insert_big_service(cluster))).await;
    scene.wait_until_settled("a big service").await;
    // a shutdown sends a last bookmark at once; otherwise the next one might take 15 s
    let ended = scene.meshkeep.take().unwrap().stop().await;
    assert!(ended.status.success(), "{}", ended.log);

    let stream = stream_start + &text(stream).await;
    assert!(stream.starts_with("retry: 2000\nevent: reset\n") && stream.ends_with("\n\n") && !stream.contains('\r'));
    let blocks = stream.trim_start_matches("retry: 2000\n").split_terminator("\n\n");
    let events: Vec<Value> = blocks.map(parse_block).collect();
    assert_eq!(events[0]["type"], "reset");
    assert_eq!(events.last().unwrap()["type"], "bookmark");
    let synced = events.iter().position(|event| event["type"] == "synced").unwrap();
    for event in &events[..synced] {
        assert_eq!(position(event), None, "no id before synced: {event}");
    }
    for event in &events[synced..] {
        assert!(position(event).is_some_and(|position| !position.is_empty()), "an id from synced on: {event}");
    }

    let lines = lines_start + &text(lines).await;
    assert!(lines.ends_with('\n') && !lines.contains('\r'));
    let same: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names = |events: &[Value]| events.iter().map(|event| event["type"].to_string()).collect::<Vec<_>>();
    assert_eq!(names(&same), names(&events), "NDJSON has the same events");
}

fn position(event: &Value) -> Option<&str> {
    event["position"].as_str().or_else(|| event["meta"]["position"].as_str())
}

/// Checks the form of a block and returns its data.
fn parse_block(block: &str) -> Value {
    let fields: Vec<(&str, &str)> = block.lines().map(|line| line.split_once(": ").unwrap_or_else(|| panic!("{line:?}"))).collect();
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    assert!([&["event", "id", "data"][..], &["event", "data"]].contains(&&names[..]), "one line of data, never an id alone: {block}");
    let (event, data) = (fields[0].1, fields[fields.len() - 1].1);
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["type"], event);
    let id = (names.len() == 3).then_some(fields[1].1);
    assert_ne!(id, Some(""), "an empty id would clear the id of the client: {block}");
    assert_eq!(id, position(&data));
    data
}

#[tokio::test]
async fn an_empty_last_event_id_starts_with_a_snapshot() {
    let scene = start_settled(SMALL).await;
    let url = format!("{}/v1/events?snapshot=true", scene.meshkeep().url());
    let follower = Follower::from_response(http().get(&url).header("last-event-id", "").send().await.unwrap());
    follower.wait_for_synced_after(0).await;
    let followed = follower.state();
    assert_eq!((followed.events[0].name.as_str(), followed.events[0].data["reason"].as_str()), ("reset", Some("initial")));
}

#[tokio::test]
async fn events_pass_nginx_without_delay() {
    let mut scene = start_settled(SMALL).await;
    let nginx = Nginx::in_front_of(port_of(scene.meshkeep().url())).await;
    let url = format!("http://127.0.0.1:{}/v1/events?snapshot=true", nginx.port());
    let started = Instant::now();
    let response = ask(&url, "text/event-stream").await;
    assert!(started.elapsed() < PROXY_DELAY_MAX, "the head must arrive at once: {:?}", started.elapsed());
    assert_eq!(header(&response, "content-encoding"), None, "not compressed by nginx either");
    let through = Follower::from_response(response);
    through.wait_for_synced_after(0).await;
    for service in scene.remotes[0].clusters[0].keys_of("services/v1").into_iter().take(3) {
        let (seen, seen_through) = (scene.event_count(), through.state().events.len());
        scene.remotes[0].change(|cluster| cluster.delete(&service)).await;
        scene.follower().wait("the delete", |followed| followed.events_named("delete", seen).next().map(|_| ())).await;
        let direct = Instant::now();
        eventually("the delete through nginx", || {
            std::future::ready(through.state().events_named("delete", seen_through).next().map(|_| ()))
        })
        .await;
        assert!(direct.elapsed() < PROXY_DELAY_MAX, "nginx delayed an event by {:?}", direct.elapsed());
    }
}
