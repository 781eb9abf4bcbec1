//! Lists as NDJSON: complete, from one snapshot, and built as the client reads them. A list that
//! was aborted never looks complete.

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::decoded::with_slices;
use super::pages::pods;
use crate::admission::ScanLimits;
use crate::api::ApiOptions;
use crate::api::paging::lines::ANSWER_MAX;
use crate::api::paging::list_builder::LINES_BYTES;
use crate::api::tests::fixture::{ApiFixture, HEAD, identity, key, pod, put};
use crate::api::tests::serving::sockets::{RunningServer, local, set_provider};
use crate::commit::DecodedBudget;
use crate::handle::SliceLimit;
use crate::model::{Change, Kind};

/// Slices of 10 rows, and pages of 50.
const SHORT: ScanLimits = ScanLimits { slice: SliceLimit::Rows(10), page: SliceLimit::Rows(50) };

/// Every list.
const LISTS: [&str; 12] = [
    "/v1/clusters",
    "/v1/nodes",
    "/v1/services",
    "/v1/global-services",
    "/v1/service-exports",
    "/v1/endpoint-slices",
    "/v1/identities",
    "/v1/identities/68352/ips",
    "/v1/ipcache",
    "/v1/entries",
    "/v1/rejected",
    "/v1/problems",
];

fn request(uri: &str) -> Request<Body> {
    Request::get(uri).header("accept", "application/x-ndjson").body(Body::empty()).unwrap()
}

pub(super) async fn open(fixture: &ApiFixture, uri: &str) -> Response<Body> {
    let response = fixture.router.clone().oneshot(request(uri)).await.unwrap();
    assert_eq!(response.status().as_u16(), 200, "{uri}");
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    response
}

/// The items and the last line.
fn read(bytes: &[u8]) -> (Vec<Value>, Value) {
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.ends_with('\n'), "{text}");
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.pop().unwrap();
    assert!(last["meta"]["position"].is_string() && lines.iter().all(|line| line.get("meta").is_none()), "{last}");
    (lines, last)
}

pub(super) async fn lines(fixture: &ApiFixture, uri: &str) -> (Vec<Value>, Value) {
    read(&open(fixture, uri).await.into_body().collect().await.unwrap().to_bytes())
}

pub(super) async fn next(body: &mut Body) -> Option<Vec<u8>> {
    Some(body.frame().await?.unwrap().into_data().unwrap().to_vec())
}

/// Removes the members that differ from one moment to the next.
pub(in crate::api::tests) fn without_age(mut value: Value) -> Value {
    match &mut value {
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_age(item.take())),
        Value::Object(members) => {
            members.retain(|name, _| !["oldestAgeSeconds", "ageSeconds", "phaseSeconds"].contains(&name.as_str()));
            members.values_mut().for_each(|member| *member = without_age(member.take()));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    value
}

#[tokio::test]
async fn ndjson_has_the_items_of_the_list_and_meta_last() {
    // slices of one row, so that each list needs many slices; with the default limits, a small list
    // ends within one slice
    let one = ScanLimits { slice: SliceLimit::Rows(1), page: SliceLimit::Rows(50) };
    for fixture in [ApiFixture::new(), ApiFixture::new().with_scan_limits(one)] {
        for list in LISTS {
            let page = fixture.json(list).await;
            assert!(page["nextPageToken"].is_null(), "{list}: {page}");
            let (items, last) = lines(&fixture, list).await;
            assert_eq!(without_age(items.into()), without_age(page["items"].clone()), "{list}");
            assert_eq!(without_age(last["meta"].clone()), without_age(page["meta"].clone()), "{list}");
            assert_eq!((&last["complete"], &last["nextPageToken"]), (&page["complete"], &Value::Null), "{list}");
        }
        let (found, last) = lines(&fixture, "/v1/nodes?cluster=paris&cluster=oslo&meta=none").await;
        assert_eq!((found.len(), last["warnings"].as_array().map(Vec::len)), (1, Some(1)));
        assert_eq!(last["meta"], json!({ "position": format!("v1.000000000000feed.{HEAD}") }));
    }
}

#[tokio::test]
async fn a_long_list_is_sent_without_pages_up_to_its_limit() {
    let fixture = ApiFixture::with_view(pods(5_000)).with_scan_limits(SHORT);
    let (items, last) = lines(&fixture, "/v1/ipcache").await;
    assert_eq!((items.len(), &last["nextPageToken"]), (5_000, &Value::Null));
    let (found, last) = lines(&fixture, "/v1/ipcache?limit=1234").await;
    assert_eq!(found, items[..1_234]);
    // the next page can be requested in either form
    let token = last["nextPageToken"].as_str().unwrap();
    assert_eq!(fixture.json(&format!("/v1/ipcache?limit=1&pageToken={token}")).await["items"], json!([items[1_234]]));
    let (rest, last) = lines(&fixture, &format!("/v1/ipcache?pageToken={token}")).await;
    assert_eq!((rest.as_slice(), &last["nextPageToken"]), (&items[1_234..], &Value::Null));
    // a page with few matches ends early, NDJSON does not
    assert_eq!(lines(&fixture, "/v1/ipcache?namespace=none").await.0, Vec::<Value>::new());
}

#[tokio::test]
async fn lines_are_made_on_demand_from_one_snapshot() {
    let fixture = ApiFixture::with_view(pods(5_000)).with_scan_limits(SHORT);
    let mut body = open(&fixture, "/v1/ipcache").await.into_body();
    let mut bytes = next(&mut body).await.unwrap();
    // the start of the list counts as a row of work, as in `WorkSlice::count_row`
    assert_eq!((bytes.iter().filter(|byte| **byte == b'\n').count(), fixture.scans.total_usage().rows), (10, 11));
    fixture.change(put(key(Kind::Ip, "paris", "10.1.24.199"), pod("10.1.24.199", 9, "172.18.1.2"), 8)).await;
    fixture.change(Change::Delete { key: key(Kind::Ip, "paris", "10.1.3.3") }).await;
    fixture.change(put(key(Kind::Ip, "paris", "10.1.3.222"), pod("10.1.3.222", 9, "172.18.1.2"), 8)).await;
    assert_eq!(fixture.scans.total_usage().rows, 11);
    while let Some(more) = next(&mut body).await {
        bytes.extend_from_slice(&more);
    }
    let (items, last) = read(&bytes);
    assert_eq!((items.len(), &last["meta"]["position"]), (5_000, &json!("v1.000000000000feed.5000")));
    assert!(items.iter().all(|item| item["identity"] != json!(9)));
    // a disconnect ends the list
    let before = fixture.scans.total_usage().rows;
    drop(open(&fixture, "/v1/ipcache").await);
    assert_eq!((fixture.scans.total_usage().rows - before, fixture.scans.admitted_count()), (11, 0));
}

#[tokio::test]
async fn lines_made_in_advance_are_bounded() {
    let fixture =
        ApiFixture::with_view(pods(5_000)).with_scan_limits(ScanLimits { slice: SliceLimit::Rows(1_000_000), page: SliceLimit::Rows(50) });
    let mut body = open(&fixture, "/v1/ipcache").await.into_body();
    let mut bytes = Vec::new();
    while let Some(more) = next(&mut body).await {
        assert!(more.len() < LINES_BYTES + 1_000, "{} B", more.len());
        bytes.extend_from_slice(&more);
    }
    assert!(bytes.len() > 2 * LINES_BYTES && read(&bytes).0.len() == 5_000, "{} B", bytes.len());
}

#[tokio::test]
async fn an_error_before_the_first_line_is_a_problem() {
    let fixture = ApiFixture::new();
    for (uri, status, code) in [
        ("/v1/nodes?limit=0", 400, "badParameter"),
        ("/v1/nodes?colour=red", 400, "badParameter"),
        ("/v1/entries?prefix=nonsense", 400, "badParameter"),
        ("/v1/nodes?maxAge=0", 503, "tooOld"),
    ] {
        let answer = fixture.send(request(uri)).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["code"]), (status, &json!(code)), "{uri}");
    }
}

/// An answer that is not read must not retain its snapshot forever.
#[tokio::test]
async fn a_list_that_is_not_read_in_time_is_aborted() {
    let fixture = ApiFixture::with_view(pods(5_000)).with_scan_limits(SHORT);
    let mut body = open(&fixture, "/v1/ipcache").await.into_body();
    next(&mut body).await.unwrap();
    tokio::time::pause();
    tokio::time::advance(ANSWER_MAX).await;
    assert!(body.frame().await.unwrap().is_err());
    assert!(body.frame().await.is_none());
}

/// Over a real connection: the client notices the abort, and has no last line.
#[tokio::test]
async fn an_aborted_list_does_not_look_complete() {
    set_provider();
    let fixture =
        ApiFixture::with_view(with_slices(&[("a", 1), ("b", 90_000), ("c", 1)])).with_decoded_budget(DecodedBudget::new(512 << 10));
    let running = RunningServer::of(fixture, &[local()], &ApiOptions::default()).await;
    let url = format!("{}/v1/endpoint-slices", running.addresses[0]);
    let client = reqwest::Client::new();
    // the server may abort the connection before the client has read the head; the client then has
    // no answer that it could mistake for a complete list
    let Ok(mut response) = client.get(url).header("accept", "application/x-ndjson").send().await else { return running.stopped().await };
    assert_eq!(response.status().as_u16(), 200);
    let (mut text, mut outcome) = (String::new(), response.chunk().await);
    while let Ok(Some(chunk)) = outcome {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        outcome = response.chunk().await;
    }
    assert!(outcome.is_err(), "ended as if it were whole: {text}");
    assert_eq!((text.lines().count(), text.contains("\"meta\"")), (1, false), "{text}");
    running.stopped().await;
}

/// Characters that some clients treat as line ends (`api::paging::one_line`) are escaped.
#[tokio::test]
async fn a_line_has_no_unicode_line_ends() {
    let fixture = ApiFixture::new();
    fixture.change(put(key(Kind::Identity, "paris", "70001"), identity(70_001, "a\u{2028}b\u{85}c"), 8)).await;
    let bytes = open(&fixture, "/v1/identities").await.into_body().collect().await.unwrap().to_bytes();
    let text = std::str::from_utf8(&bytes).unwrap();
    assert!(text.contains("a\\u2028b\\u0085c") && !text.contains(['\u{2028}', '\u{85}']));
    assert_eq!(read(&bytes).0.len(), 4);
}
