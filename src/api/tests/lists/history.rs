//! Versions of entries: by key, address, identity, pod and cluster, and in pages.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::api::paging::list_request::PAGE_BYTES_MAX;
use crate::api::tests::fixture::{ApiFixture, TestResponse, cluster, identity, key, node, pod, put};
use crate::api::tests::lists::decoded::slice;
use crate::api::tests::lists::lines::{lines, next, open};
use crate::api::tests::lists::pages::{SHORT, walk};
use crate::commit::DecodedBudget;
use crate::dto::text::rfc3339;
use crate::model::*;

/// Key of the address that [`commands`] changes.
const KEY: &str = "cilium/cache/ip/v1/paris/10.1.2.40";

/// Number of current entries with the identity 70003.
const CURRENT_COUNT: usize = 25;

/// Returns the time that is this number of seconds after the start of the history.
pub(in crate::api::tests) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600 + seconds)
}

pub(in crate::api::tests) fn text(seconds: u64) -> String {
    rfc3339(at(seconds))
}

pub(in crate::api::tests) fn apply(change: Change) -> Command {
    let (Change::Put { key, .. } | Change::Delete { key } | Change::Hold { key }) = &change;
    Command::Apply { scope: Scope { cluster: key.cluster.clone(), kind: key.kind }, changes: vec![change], cursor: None }
}

/// Returns the commands of a first list of a cluster that took a second.
pub(in crate::api::tests) fn first_list(name: &str, seconds: u64) -> Vec<(SystemTime, Command)> {
    let scopes = Kind::ALL.map(|kind| Scope { cluster: cluster(name), kind });
    let begin = scopes.clone().map(|scope| (at(seconds), Command::BeginObservationGap { scope, last_contact: None }));
    let config = ClusterRecord { last_contact: Some(at(seconds)), ..ClusterRecord::default() };
    let store = (at(seconds), Command::StoreCluster { cluster: cluster(name), record: config });
    let address = NodeAddress { address_type: "InternalIP".to_owned(), ip: "172.18.1.2".parse().unwrap() };
    let first = Object::Node(Box::new(Node { name: "worker-1".to_owned(), addresses: vec![address], ..Node::default() }));
    let list = (at(seconds), apply(put(key(Kind::Node, name, "worker-1"), first, 1)));
    let end = scopes.map(|scope| (at(seconds + 1), Command::EndObservationGap(scope)));
    begin.into_iter().chain([store, list]).chain(end).collect()
}

/// Returns the commands of a mesh: the address 10.1.2.40 changes its identity twice, is deleted and
/// created again, an identity is deleted, and [`CURRENT_COUNT`] addresses exist until now.
pub(in crate::api::tests) fn commands() -> Vec<(SystemTime, Command)> {
    let address = |identity, revision| put(key(Kind::Ip, "paris", "10.1.2.40"), pod("10.1.2.40", identity, "172.18.1.2"), revision);
    let mut commands = first_list("paris", 0);
    commands.extend([
        (at(10), apply(put(key(Kind::Identity, "paris", "70001"), identity(70_001, "cart"), 10))),
        (at(20), apply(address(70_001, 20))),
        (at(30), apply(address(70_002, 30))),
        (at(40), apply(Change::Delete { key: key(Kind::Ip, "paris", "10.1.2.40") })),
        (at(50), apply(Change::Delete { key: key(Kind::Identity, "paris", "70001") })),
        (at(60), apply(address(70_003, 60))),
        (at(61), apply(put(key(Kind::Identity, "paris", "70003"), identity(70_003, "cart"), 61))),
    ]);
    for number in 1..CURRENT_COUNT {
        let ip = format!("10.1.3.{number}");
        let address = |identity, revision| put(key(Kind::Ip, "paris", &ip), pod(&ip, identity, "172.18.1.2"), revision);
        commands.extend([address(70_002, 70), address(70_003, 71)].map(|change| (at(70), apply(change))));
    }
    commands
}

/// Returns each version as `identity from-to ended`, in seconds since the start of the history.
fn versions(page: &Value) -> Vec<String> {
    let seconds = |time: &Value| {
        let time: jiff::Timestamp = time["changedAt"].as_str()?.parse().ok()?;
        Some(SystemTime::from(time).duration_since(at(0)).unwrap().as_secs())
    };
    let describe = |version: &Value| {
        let (identity, to) = (&version["object"]["identity"], seconds(&version["to"]).map_or("now".to_owned(), |to| to.to_string()));
        format!("{identity} {}-{to} {}", seconds(&version["from"]).unwrap(), version["ended"].as_str().unwrap_or("current"))
    };
    page["items"].as_array().unwrap_or_else(|| panic!("{page}")).iter().map(describe).collect()
}

/// Returns every version of the pages, and checks that none is twice in them.
fn all_versions(pages: &[TestResponse]) -> Vec<Value> {
    let items: Vec<Value> = pages.iter().flat_map(|page| page.json()["items"].as_array().unwrap().clone()).collect();
    let distinct: BTreeSet<String> = items.iter().map(|item| format!("{} {} {}", item["key"], item["from"], item["object"])).collect();
    assert_eq!(distinct.len(), items.len(), "a version is in two pages");
    items
}

#[tokio::test]
async fn each_selection_has_its_versions_newest_first() {
    let fixture = ApiFixture::with_history(commands());
    let address = ["70003 60-now current", "70002 30-40 deleted", "70001 20-30 updated"];
    for (query, expected) in [
        (format!("key={KEY}"), &address[..]),
        ("ip=10.1.2.40".to_owned(), &address),
        ("identity=70001".to_owned(), &["null 10-50 deleted", "70001 20-30 updated"]),
    ] {
        let page = fixture.json(&format!("/v1/history?{query}")).await;
        assert_eq!(versions(&page), expected, "{page}");
        let rest = json!([page["complete"], page["gaps"], page["since"], page["nextPageToken"], page["position"]]);
        let position = fixture.json("/v1/nodes").await["meta"]["position"].clone();
        assert_eq!(rest, json!([true, null, text(0), null, position]), "{query}");
    }
    let of_pod = fixture.json("/v1/history?pod=shop/cart-0").await;
    assert_eq!(of_pod["items"].as_array().unwrap().len(), CURRENT_COUNT + 2 + CURRENT_COUNT - 1, "{of_pod}");
    let of_identity = fixture.json("/v1/history?identity=70003").await;
    assert_eq!(of_identity["items"].as_array().unwrap().len(), CURRENT_COUNT + 1, "the identity and its addresses");
    let of_node = fixture.json("/v1/history?node=paris/worker-1").await;
    let node = &of_node["items"][0];
    assert_eq!((&node["from"], &node["object"]["firstSeenAt"]), (&json!({"firstSeenAt": text(0)}), &json!(text(0))), "{of_node}");
    let ended = fixture.json("/v1/history?cluster=paris").await;
    assert_eq!(ended["items"].as_array().unwrap().len(), 3 + CURRENT_COUNT - 1, "{ended}");
}

/// After an hour, the mirror knows the times of older changes only to the minute.
#[tokio::test]
async fn an_object_has_the_exact_time_of_its_version() {
    let later = (at(9_000), apply(Change::Delete { key: key(Kind::Node, "paris", "worker-1") }));
    let fixture = ApiFixture::with_history(commands().into_iter().chain([later]));
    let now = fixture.json("/v1/ipcache/10.1.2.40").await;
    assert!(now["changedBetween"].is_array(), "{now}");
    let version = fixture.json(&format!("/v1/history?key={KEY}")).await["items"][0].clone();
    let past = fixture.json(&format!("/v1/ipcache/lookup?ip=10.1.2.40&at={}", text(70))).await["match"].clone();
    for object in [&version["from"], &version["object"], &past] {
        assert_eq!((&object["changedAt"], &object["changedBetween"]), (&json!(text(60)), &Value::Null), "{version} {past}");
    }
}

#[tokio::test]
async fn pages_lose_no_version_and_repeat_none() {
    for fixture in [ApiFixture::with_history(commands()), ApiFixture::with_history(commands()).with_scan_limits(SHORT)] {
        for query in [&*format!("key={KEY}"), "ip=10.1.2.40", "identity=70003", "identity=70002", "pod=shop/cart-0", "cluster=paris"] {
            let whole = all_versions(&walk(&fixture, &format!("/v1/history?{query}&limit=10000")).await);
            for limit in [1, 2, 7, CURRENT_COUNT, CURRENT_COUNT + 1] {
                let pages = walk(&fixture, &format!("/v1/history?{query}&limit={limit}")).await;
                assert_eq!(all_versions(&pages), whole, "{query} in pages of {limit}");
                assert!(pages.iter().all(|page| page.json()["complete"] == true), "{query} in pages of {limit}");
                let lengths: Vec<usize> = pages.iter().map(|page| page.json()["items"].as_array().unwrap().len()).collect();
                assert!(lengths.iter().all(|length| *length <= limit), "{query}: {lengths:?}");
            }
        }
    }
}

/// Returns the versions and the last line of a list as NDJSON.
async fn ndjson(fixture: &ApiFixture, uri: &str) -> (Vec<Value>, Value) {
    let (items, last) = lines(fixture, uri).await;
    assert!(last["complete"].is_boolean() && last["position"].is_null(), "{last}");
    (items, last)
}

#[tokio::test]
async fn ndjson_has_all_versions_and_the_gaps_in_the_last_line() {
    for fixture in [ApiFixture::with_history(commands()), ApiFixture::with_history(commands()).with_scan_limits(SHORT)] {
        for query in [&*format!("key={KEY}"), "ip=10.1.2.40", "identity=70003", "pod=shop/cart-0", "cluster=paris", "pod=shop/nobody"] {
            let uri = format!("/v1/history?{query}");
            let pages = walk(&fixture, &format!("{uri}&limit=10000")).await;
            let (items, last) = ndjson(&fixture, &uri).await;
            assert_eq!(items, all_versions(&pages), "{query}");
            let position = fixture.json("/v1/nodes").await["meta"]["position"].clone();
            assert_eq!(last, json!({"complete": true, "since": text(0), "meta": {"position": position}}), "{query}");
        }
        // `limit=` ends the list, and a page or another list can follow
        let whole = ndjson(&fixture, "/v1/history?identity=70003").await.0;
        for limit in [1, CURRENT_COUNT, CURRENT_COUNT + 1] {
            let uri = format!("/v1/history?identity=70003&limit={limit}");
            let (first, last) = ndjson(&fixture, &uri).await;
            assert_eq!(first, whole[..limit], "{limit}");
            let Some(token) = last["nextPageToken"].as_str() else {
                assert_eq!(limit, whole.len());
                continue;
            };
            let rest = ndjson(&fixture, &format!("/v1/history?identity=70003&pageToken={token}")).await.0;
            assert_eq!(rest, whole[limit..], "{limit}");
            assert_eq!(fixture.json(&format!("{uri}&pageToken={token}")).await["items"][0], whole[limit], "{limit}");
        }
    }
}

/// Many more versions than the buffer for lines holds.
#[tokio::test]
async fn ndjson_of_long_histories_has_each_version_once() {
    let version =
        |number: u32| put(key(Kind::Ip, "paris", "10.1.2.40"), pod("10.1.2.40", 70_000 + number, "172.18.1.2"), i64::from(number) + 2);
    let changes = (0..6_000).map(|number| (at(10 + u64::from(number)), apply(version(number))));
    let fixture = ApiFixture::with_history(first_list("paris", 0).into_iter().chain(changes));
    let (items, last) = ndjson(&fixture, &format!("/v1/history?key={KEY}")).await;
    let starts: Vec<&Value> = items.iter().map(|item| &item["from"]["changedAt"]).collect();
    let expected: Vec<Value> = (0..6_000).rev().map(|number| json!(text(10 + number))).collect();
    assert_eq!((starts.len(), last["complete"].as_bool()), (6_000, Some(true)), "{last}");
    assert!(starts.into_iter().eq(&expected), "a version is missing, twice or not in order");
}

#[tokio::test]
async fn a_change_between_two_pages_hides_no_version() {
    let fixture = ApiFixture::with_history(commands());
    let whole = fixture.json("/v1/history?identity=70003").await;
    let first = fixture.json("/v1/history?identity=70003&limit=10").await;
    // the one is in the first page, as a current version, and the other is not
    for name in ["10.1.2.40", "10.1.3.9"] {
        fixture.delete_with_history(&key(Kind::Ip, "paris", name), at(100)).await;
    }
    let second = fixture.json(&format!("/v1/history?identity=70003&pageToken={}", first["nextPageToken"].as_str().unwrap())).await;
    let keys = |pages: &[&Value]| {
        let items = pages.iter().flat_map(|page| page["items"].as_array().unwrap());
        items.map(|item| item["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let found = keys(&[&first, &second]);
    assert_eq!(found.iter().collect::<BTreeSet<_>>(), keys(&[&whole]).iter().collect(), "{first} {second}");
    let ended = versions(&second).into_iter().filter(|version| version.contains("-100 deleted")).collect::<Vec<_>>();
    assert_eq!(
        (ended, second["complete"].as_bool()),
        (vec!["70003 70-100 deleted".to_owned(), "70003 60-100 deleted".to_owned()], Some(true))
    );
}

#[tokio::test]
async fn a_token_of_another_query_is_refused() {
    let fixture = ApiFixture::with_history(commands());
    let first = fixture.json("/v1/history?identity=70003&limit=2").await;
    let token = first["nextPageToken"].as_str().unwrap();
    assert_eq!(fixture.get(&format!("/v1/history?identity=70003&limit=9&pageToken={token}")).await.status, StatusCode::OK);
    let of_nodes = fixture.json("/v1/ipcache?limit=1").await["nextPageToken"].as_str().unwrap().to_owned();
    for query in [
        format!("identity=70002&pageToken={token}"),
        format!("pod=shop/cart-0&pageToken={token}"),
        format!("identity=70003&pageToken={of_nodes}"),
        "identity=70003&pageToken=7".to_owned(),
    ] {
        let answer = fixture.get(&format!("/v1/history?{query}")).await;
        let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
        assert!(answer.status == 400 && detail.starts_with("pageToken: does not belong to this list"), "{query}: {detail}");
    }
}

/// Ended and current versions of a MiB and more.
#[tokio::test]
async fn a_page_of_versions_has_at_most_four_mebibytes() {
    let labelled = |name: &str, seed: u64| {
        let object = node(name, "172.18.1.2", &seed.to_string().repeat(1 << 20));
        (at(10 + seed), apply(put(key(Kind::Node, "paris", name), object, i64::try_from(seed).unwrap())))
    };
    let fixture = ApiFixture::with_history(first_list("paris", 0).into_iter().chain((1..10).map(|seed| labelled("worker-2", seed))));
    let pages = walk(&fixture, "/v1/history?node=paris/worker-2").await;
    assert!(pages.iter().all(|page| page.bytes.len() < PAGE_BYTES_MAX + 1_000), "a page is too long");
    assert_eq!((pages.len(), all_versions(&pages).len()), (3, 9));
}

#[tokio::test]
async fn a_version_without_memory_is_refused_or_ends_the_page() {
    let large = |count, seconds| (at(seconds), apply(slice("paris", "a", count, i64::try_from(seconds).unwrap())));
    let commands = first_list("paris", 0).into_iter().chain([large(90_000, 10), large(1, 20)]);
    let fixture = ApiFixture::with_history(commands).with_decoded_budget(DecodedBudget::new(512 << 10));
    let uri = "/v1/history?key=cilium/cache/endpointslices/v1/paris/shop/a";
    let first = fixture.json(uri).await;
    assert_eq!(first["items"].as_array().unwrap().len(), 1, "{first}");
    let second = fixture.get(&format!("{uri}&pageToken={}", first["nextPageToken"].as_str().unwrap())).await;
    assert_eq!((second.status, second.json()["code"].as_str()), (StatusCode::SERVICE_UNAVAILABLE, Some("memoryLimitReached")));
}

/// The answer already has its status when the memory is missing: the connection is aborted, and the
/// last line is missing.
#[tokio::test]
async fn ndjson_without_memory_for_a_version_has_no_last_line() {
    let large = |count, seconds| (at(seconds), apply(slice("paris", "a", count, i64::try_from(seconds).unwrap())));
    let commands = first_list("paris", 0).into_iter().chain([large(90_000, 10), large(1, 20)]);
    let fixture = ApiFixture::with_history(commands).with_decoded_budget(DecodedBudget::new(512 << 10));
    let uri = "/v1/history?key=cilium/cache/endpointslices/v1/paris/shop/a";
    let mut body = open(&fixture, uri).await.into_body();
    let first: Value = serde_json::from_slice(&next(&mut body).await.unwrap()).unwrap();
    assert_eq!((&first["from"]["changedAt"], &first["meta"]), (&json!(text(20)), &Value::Null), "{first}");
    assert!(body.frame().await.unwrap().is_err() && body.frame().await.is_none());
}
