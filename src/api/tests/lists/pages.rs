//! Pages end at their limit, at their size, or at the end of their scan time, and still lead to
//! every item.

use std::time::SystemTime;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::admission::ScanLimits;
use crate::api::paging::list_request::PAGE_BYTES_MAX;
use crate::api::tests::fixture::{ApiFixture, TestResponse, cluster, key, node, pod, put};
use crate::handle::SliceLimit;
use crate::model::{Change, Command, EntryKey, Kind, Scope, Sequence, SourceStamp};
use crate::view::View;

/// Slices of 10 rows, and pages of 50.
pub(in crate::api::tests) const SHORT: ScanLimits = ScanLimits { slice: SliceLimit::Rows(10), page: SliceLimit::Rows(50) };

fn apply(view: &mut View, kind: Kind, changes: Vec<Change>) {
    let scope = Scope { cluster: cluster("paris"), kind };
    view.apply(Command::Apply { scope, changes, cursor: None }, SystemTime::now());
}

/// Every page of a list, from the first on.
pub(in crate::api::tests) async fn walk(fixture: &ApiFixture, uri: &str) -> Vec<TestResponse> {
    let mut pages = vec![fixture.get(uri).await];
    while let Some(token) = pages.last().and_then(|page| page.json()["nextPageToken"].as_str().map(str::to_owned)) {
        assert!(pages.len() < 100, "{uri} does not end");
        pages.push(fixture.get(&format!("{uri}&pageToken={token}")).await);
    }
    pages
}

fn items(pages: &[TestResponse], member: &str) -> Vec<String> {
    let items = pages.iter().flat_map(|page| page.json()["items"].as_array().cloned().unwrap_or_default());
    items.map(|item| item[member].as_str().unwrap().to_owned()).collect()
}

pub(in crate::api::tests) fn pods(count: u32) -> View {
    let mut view = View::starting_at(Sequence(0));
    let ip = |number: u32| format!("10.1.{}.{}", number / 200, number % 200);
    let pod = |number| put(key(Kind::Ip, "paris", &ip(number)), pod(&ip(number), 70_000 + number, "172.18.1.2"), 7);
    apply(&mut view, Kind::Ip, (0..count).map(pod).collect());
    view
}

/// 420 pods of the namespace `shop`.
#[tokio::test]
async fn a_page_without_an_index_ends_after_its_time_limit() {
    let fixture = ApiFixture::with_view(pods(420)).with_scan_limits(SHORT);
    let pages = walk(&fixture, "/v1/ipcache?namespace=none&limit=1").await;
    assert_eq!((pages.len(), items(&pages, "prefix").len()), (9, 0));
    assert_eq!(fixture.scans.total_usage().rows, 420);
    // the page has the items that were found within its time, and may be partly filled
    let pages = walk(&fixture, "/v1/ipcache?namespace=shop&limit=500").await;
    let lengths: Vec<usize> = pages.iter().map(|page| page.json()["items"].as_array().unwrap().len()).collect();
    assert_eq!(lengths, [50, 50, 50, 50, 50, 50, 50, 50, 20]);
    let mut prefixes = items(&pages, "prefix");
    prefixes.dedup();
    assert_eq!(prefixes.len(), 420);
    // a full page has a next page only if there are more items
    assert_eq!(walk(&fixture, "/v1/ipcache?pod=cart-0&limit=42").await.len(), 10);
    for list in
        ["nodes?name=none", "services?name=none", "identities?scope=local", "entries?prefix=cilium/cache/nodes", "rejected?cluster=none"]
    {
        assert_eq!(items(&walk(&fixture, &format!("/v1/{list}")).await, "key"), [""; 0], "{list}");
    }
}

/// Nodes of a MiB and more, one of them above all limits.
#[tokio::test]
async fn a_page_has_at_most_four_mebibytes_and_at_least_one_item() {
    let mut view = View::starting_at(Sequence(0));
    let size = |number: usize| if number == 5 { PAGE_BYTES_MAX + 7 } else { (1 << 20) + 300 * number };
    let name = |number: usize| format!("worker-{number:02}");
    let labelled = |number| node(&name(number), "10.0.0.1", &"z".repeat(size(number)));
    apply(&mut view, Kind::Node, (0..12).map(|number| put(key(Kind::Node, "paris", &name(number)), labelled(number), 7)).collect());
    let value = |number: usize| vec![7; size(number) / 4 * 3];
    let bad = |number| Change::Put {
        key: EntryKey::new(Kind::Service, cluster("paris"), format!("shop/{}", name(number))),
        value: value(number).into(),
        decoded: Err("not JSON".into()),
        source: SourceStamp::default(),
    };
    apply(&mut view, Kind::Service, (0..12).map(bad).collect());
    let fixture = ApiFixture::with_view(view);
    let names: Vec<String> = (0..12).map(name).collect();
    for (uri, member, prefix) in [
        ("/v1/nodes?limit=10000", "name", ""),
        ("/v1/rejected?limit=10000", "key", "cilium/cache/services/v1/paris/shop/"),
        ("/v1/entries?prefix=cilium/cache/services", "key", "cilium/cache/services/v1/paris/shop/"),
    ] {
        let pages = walk(&fixture, uri).await;
        let expected: Vec<String> = names.iter().map(|name| format!("{prefix}{name}")).collect();
        assert_eq!(items(&pages, member), expected, "{uri}");
        for page in &pages {
            let count = page.json()["items"].as_array().unwrap().len();
            assert!(count == 1 || page.bytes.len() < PAGE_BYTES_MAX + 1_000, "{uri}: {count} items in {} B", page.bytes.len());
        }
        let lengths: Vec<usize> = pages.iter().map(|page| page.json()["items"].as_array().unwrap().len()).collect();
        assert_eq!(lengths, [3, 2, 1, 3, 3], "{uri}");
    }
}

fn batch(ips: &[String]) -> Request<Body> {
    let body = Body::from(json!({ "ips": ips }).to_string());
    Request::post("/v1/ipcache/lookup").header("content-type", "application/json").body(body).unwrap()
}

/// A batch of 10,000 addresses whose answer the client reads chunk by chunk.
#[tokio::test]
async fn a_batch_is_made_on_demand_from_one_snapshot() {
    let fixture = ApiFixture::with_view(pods(420)).with_scan_limits(ScanLimits::default());
    let ips: Vec<String> = (0..10_000).map(|number| format!("10.1.{}.{}", number % 3, number % 200)).collect();
    let response = fixture.router.clone().oneshot(batch(&ips)).await.unwrap();
    let mut body = response.into_body();
    let mut bytes = body.frame().await.unwrap().unwrap().into_data().unwrap().to_vec();
    assert!(bytes.len() < 128 << 10 && fixture.scans.total_usage().rows < 1_000, "{} B", bytes.len());
    // changed meanwhile: not visible in this batch
    fixture.change(put(key(Kind::Ip, "paris", "10.1.0.0"), pod("10.1.0.0", 9, "172.18.1.2"), 8)).await;
    while let Some(frame) = body.frame().await {
        bytes.extend_from_slice(frame.unwrap().data_ref().unwrap());
    }
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    let found: Vec<&str> = answer["items"].as_array().unwrap().iter().map(|item| item["ip"].as_str().unwrap()).collect();
    assert_eq!(found, ips);
    assert!(answer["items"].as_array().unwrap().iter().all(|item| item["match"]["identity"] != json!(9)));
    assert_eq!(answer["meta"]["position"], json!("v1.000000000000feed.420"));
    // a chunk that is not read is not computed
    let before = fixture.scans.total_usage().rows;
    let response = fixture.router.clone().oneshot(batch(&ips)).await.unwrap();
    drop(response);
    assert_eq!((fixture.scans.total_usage().rows - before, fixture.scans.admitted_count()), (0, 0));
}
