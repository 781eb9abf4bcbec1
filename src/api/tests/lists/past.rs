//! Lists at an earlier time: they equal the lists that were answered at that time.

use std::time::SystemTime;

use axum::body::Body;
use axum::http::Request;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::history::{apply, at, commands, first_list, text};
use super::pages::walk;
use crate::admission::{Client, ScanLimits};
use crate::api::tests::fixture::{ApiFixture, cluster, identity, key, node, paris_status, pod, put};
use crate::handle::SliceLimit;
use crate::model::*;

/// Lists that are compared, with filters of each kind.
const LISTS: [&str; 15] = [
    "/v1/nodes?",
    "/v1/nodes?name=worker-1",
    "/v1/nodes?name=worker-2&cluster=paris",
    "/v1/identities?",
    "/v1/identities?labelSelector=app%3Dcart-1",
    "/v1/ipcache?",
    "/v1/ipcache?cluster=tokyo",
    "/v1/ipcache?cidr=10.1.2.0/29",
    "/v1/ipcache?identity=70001",
    "/v1/ipcache?node=worker-1",
    "/v1/ipcache?node=172.18.1.2",
    "/v1/ipcache?namespace=shop",
    "/v1/ipcache?namespace=shop&pod=cart-0",
    "/v1/services?",
    "/v1/endpoint-slices?",
];

/// Returns random changes of nodes, identities and addresses of two clusters, one a second.
fn random_commands(random: &mut StdRng, count: u64) -> Vec<(SystemTime, Command)> {
    let mut commands: Vec<_> = ["paris", "tokyo"].into_iter().flat_map(|name| first_list(name, 0)).collect();
    for seconds in 10..10 + count {
        let cluster = ["paris", "tokyo"][random.random_range(0..2)];
        let number = random.random_range(1..12_u32);
        let (ip, id, host) =
            (format!("10.1.2.{number}"), 70_000 + random.random_range(0..3), format!("172.18.1.{}", random.random_range(2..4)));
        let worker = format!("worker-{}", number % 3);
        let revision = i64::try_from(seconds).unwrap();
        let change = match random.random_range(0..10) {
            0 => Change::Delete { key: key(Kind::Ip, cluster, &ip) },
            1 => Change::Delete { key: key(Kind::Identity, cluster, &id.to_string()) },
            2 => Change::Delete { key: key(Kind::Node, cluster, &worker) },
            3 => put(key(Kind::Identity, cluster, &id.to_string()), identity(id, &format!("cart-{}", number % 3)), revision),
            4 => put(key(Kind::Node, cluster, &worker), node(&worker, &host, "a"), revision),
            _ => put(key(Kind::Ip, cluster, &ip), pod(&ip, id, &host), revision),
        };
        commands.push((at(seconds), apply(change)));
    }
    commands
}

/// Returns all items of a list, without the times of their changes, which an earlier answer could
/// know more exactly.
async fn items(fixture: &ApiFixture, uri: &str) -> Vec<Value> {
    let pages = walk(fixture, uri).await;
    let mut items: Vec<Value> =
        pages.iter().flat_map(|page| page.json()["items"].as_array().unwrap_or_else(|| panic!("{uri}: {}", page.json())).clone()).collect();
    for item in &mut items {
        for member in ["changedAt", "changedBetween", "firstSeenAt"] {
            item.as_object_mut().unwrap().remove(member);
        }
    }
    items
}

#[tokio::test]
async fn a_list_of_the_past_equals_the_list_at_that_time() {
    let seed = rand::rng().random();
    println!("seed {seed}");
    let commands = random_commands(&mut StdRng::seed_from_u64(seed), 120);
    let now = ApiFixture::with_history(commands.clone());
    for seconds in [12, 40, 70, 100, 128] {
        let until = commands.iter().filter(|(time, _)| *time <= at(seconds)).cloned();
        let then = ApiFixture::with_history(until);
        for list in LISTS {
            let expected = items(&then, list).await;
            for limit in ["", "&limit=3"] {
                let uri = format!("{list}&at={}{limit}", text(seconds));
                assert_eq!(items(&now, &uri).await, expected, "{uri}");
            }
        }
    }
}

#[tokio::test]
async fn a_list_of_the_past_says_its_time_and_what_it_does_not_know() {
    let mut commands = random_commands(&mut StdRng::seed_from_u64(1), 20);
    let scope = Scope { cluster: cluster("paris"), kind: Kind::Ip };
    commands.push((at(200), Command::BeginObservationGap { scope: scope.clone(), last_contact: Some(at(100)) }));
    commands.push((at(200), Command::EndObservationGap(scope)));
    let fixture = ApiFixture::with_history(commands);
    fixture.publish_statuses([("paris", paris_status()), ("tokyo", paris_status())]);
    let meta = async |uri: &str| fixture.json(uri).await["meta"].clone();
    let observed = meta(&format!("/v1/ipcache?at={}", text(50))).await;
    assert_eq!([&observed["at"], &observed["complete"], &observed["gaps"]], [&json!(text(50)), &json!(true), &Value::Null], "{observed}");
    let gap = json!([{"cluster": "paris", "kind": "ipcache", "from": text(100), "to": text(200)}]);
    let not_observed = meta(&format!("/v1/ipcache?at={}", text(150))).await;
    assert_eq!([&not_observed["complete"], &not_observed["gaps"]], [&json!(false), &gap], "{not_observed}");
    for other in ["/v1/ipcache?cluster=tokyo", "/v1/identities?cluster=paris"] {
        assert_eq!(meta(&format!("{other}&at={}", text(150))).await["complete"], true, "{other}");
    }
    let current = meta("/v1/ipcache").await;
    assert_eq!([&current["at"], &current["complete"]], [&Value::Null, &Value::Null], "{current}");
}

#[tokio::test]
async fn a_list_of_the_past_needs_a_history_and_a_time_in_it() {
    let without = ApiFixture::new();
    assert_eq!(without.get("/v1/nodes?at=10m").await.status, 404);
    let fixture = ApiFixture::with_history(random_commands(&mut StdRng::seed_from_u64(1), 20));
    for (at, detail) in [
        ("yesterday", "at: \"yesterday\" is not a time: "),
        ("2025-12-31T23:59:59Z", "at: the history begins at "),
        ("2999-01-01T00:00:00Z", "at: \"2999-01-01T00:00:00Z\" is in the future"),
    ] {
        let answer = fixture.get(&format!("/v1/nodes?at={at}")).await;
        assert_eq!(answer.status, 400, "{at}");
        assert!(answer.json()["detail"].as_str().unwrap().starts_with(detail), "{}", answer.json());
    }
    let of_now = fixture.get("/v1/global-services?at=10m").await;
    assert_eq!(of_now.status, 400, "{}", of_now.json());
    let of_age = fixture.get("/v1/nodes?at=10m&maxAge=5").await;
    assert_eq!(of_age.json()["detail"], "maxAge: is only for the newest data: omit maxAge or at");
    // the time of the first page, also for the next ones
    let page = fixture.json("/v1/ipcache?at=0s&limit=1").await;
    let next = fixture.json(&format!("/v1/ipcache?at=0s&limit=1&pageToken={}", page["nextPageToken"].as_str().unwrap())).await;
    assert_eq!(next["meta"]["at"], page["meta"]["at"]);
    let other = fixture.get(&format!("/v1/ipcache?at=1s&limit=1&pageToken={}", page["nextPageToken"].as_str().unwrap())).await;
    assert_eq!(other.status, 400);
}

/// The history of a list is read after its snapshot of the mirror, so it may have later changes.
#[tokio::test]
async fn a_list_of_the_past_ignores_changes_after_its_snapshot() {
    let fixture = ApiFixture::with_history(commands());
    let uri = format!("/v1/ipcache?at={}", text(75));
    let expected = items(&fixture, &uri).await;
    fixture.delete_in_history(&key(Kind::Ip, "paris", "10.1.2.40"), at(80));
    assert_eq!(items(&fixture, &uri).await, expected);
    assert_eq!(fixture.json(&uri).await["meta"]["complete"], true);
}

/// The history may have a change that is not published yet. All pages of a list are about the time
/// before it.
#[tokio::test]
async fn all_pages_of_a_list_of_the_past_are_about_one_moment() {
    let fixture = ApiFixture::with_history(commands());
    let uri = format!("/v1/ipcache?at={}", text(90));
    let expected = items(&fixture, &uri).await;
    let last = expected.iter().rfind(|item| item["podName"].is_string()).unwrap();
    let (cluster, prefix) = (last["cluster"].as_str().unwrap(), last["prefix"].as_str().unwrap());
    let last = key(Kind::Ip, cluster, prefix.split('/').next().unwrap());
    fixture.delete_in_history(&last, at(80));
    let page = fixture.json(&format!("{uri}&limit=1")).await;
    let mut paged = page["items"].as_array().unwrap().clone();
    fixture.change(Change::Delete { key: last }).await;
    let next = fixture.json(&format!("{uri}&limit=100&pageToken={}", page["nextPageToken"].as_str().unwrap())).await;
    paged.extend(next["items"].as_array().unwrap().clone());
    let prefixes = |items: &[Value]| items.iter().map(|item| item["prefix"].clone()).collect::<Vec<_>>();
    assert_eq!(prefixes(&paged), prefixes(&expected));
}

/// With more ended versions than a list keeps at a time, it reads the history several times.
#[tokio::test]
async fn a_page_ends_where_its_time_ends_while_the_history_is_read_again() {
    let commands = random_commands(&mut StdRng::seed_from_u64(2), 120);
    let uri = format!("/v1/ipcache?at={}", text(60));
    let expected = items(&ApiFixture::with_history(commands.clone()), &uri).await;
    assert!(expected.len() > 8, "{} entries", expected.len());
    for rows in 3..60 {
        let limits = ScanLimits { slice: SliceLimit::Rows(1), page: SliceLimit::Rows(rows) };
        let fixture = ApiFixture::with_history(commands.clone()).with_scan_limits(limits);
        assert_eq!(items(&fixture, &uri).await, expected, "{rows} rows");
    }
    let limits = ScanLimits { slice: SliceLimit::Rows(1), page: SliceLimit::Rows(1) };
    let refused = ApiFixture::with_history(commands).with_scan_limits(limits).get(&uri).await;
    assert_eq!((refused.status.as_u16(), refused.json()["code"].as_str()), (400, Some("badParameter")), "{}", refused.json());
}

/// Each list keeps up to 16 MiB of versions, and a client may stop reading one.
#[tokio::test(start_paused = true)]
async fn the_memory_of_all_lists_of_the_past_is_bounded() {
    let fixture = ApiFixture::with_history(commands());
    let uri = format!("/v1/ipcache?at={}", text(75));
    assert_eq!(fixture.get(&uri).await.status, 200);
    let scanner = fixture.scans.admit(Client::Local).unwrap();
    let mut permits = Vec::new();
    while let Some(permit) = scanner.acquire_past_list_memory().await {
        permits.push(permit);
    }
    assert_eq!(permits.len(), 8, "half of 256 MiB");
    for accept in ["application/json", "application/x-ndjson"] {
        let request = Request::get(&uri).header("accept", accept).body(Body::empty()).unwrap();
        let refused = fixture.send(request).await;
        assert_eq!((refused.status.as_u16(), refused.header("retry-after").is_empty()), (429, false), "{accept}");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.starts_with("too many lists of an earlier time are in progress: "), "{detail}");
    }
    assert_eq!(fixture.get("/v1/ipcache").await.status, 200, "a list of the current objects");
    drop(permits.pop());
    assert_eq!(fixture.get(&uri).await.status, 200);
}
