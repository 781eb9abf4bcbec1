//! Conditional requests: an answer that the client already has is not sent again, and a changed
//! answer never gets 304.

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::json;

use super::global_services::{export, mesh, slice};
use crate::api::tests::fixture::{ApiFixture, TestResponse, cluster, identity, key, node, pod, put};
use crate::model::{Change, Command, Epoch, Kind, Phase, Revision, Scope, SourceStamp};

/// Paths whose answers depend only on the mirror.
const COUNTED: [&str; 19] = [
    "/v1/nodes",
    "/v1/nodes?cluster=tokyo&fields=name",
    "/v1/nodes/paris/paris-worker-1",
    "/v1/services",
    "/v1/services/paris/shop/cart",
    "/v1/global-services",
    "/v1/global-services/shop/cart",
    "/v1/service-exports",
    "/v1/endpoint-slices",
    "/v1/identities",
    "/v1/identities/68352",
    "/v1/identities/68352/ips",
    "/v1/ipcache",
    "/v1/ipcache/10.1.2.40",
    "/v1/ipcache/lookup?ip=10.1.2.40",
    "/v1/ipcache/lookup?ip=192.0.2.1",
    "/v1/entries",
    "/v1/entries/cilium/cache/identities/v1/tokyo/id/68352",
    "/v1/ipcache?limit=1&meta=full",
];

/// Paths whose answers depend on more than the mirror, and documents.
const OTHERS: [&str; 14] = [
    "/v1/status",
    "/v1/config",
    "/v1/clusters",
    "/v1/clusters/paris",
    "/v1/rejected",
    "/v1/problems",
    "/v1/explain/10.1.2.40",
    "/",
    "/problems/notFound",
    "/docs",
    "/docs/style.css",
    "/docs/script.js",
    "/openapi.json",
    "/openapi-3.0.json",
];

async fn request_with_tag(fixture: &ApiFixture, method: Method, uri: &str, tag: &str) -> TestResponse {
    let request = Request::builder().method(method).uri(uri).header("if-none-match", tag).header("accept-encoding", "gzip");
    fixture.send(request.body(Body::empty()).unwrap()).await
}

async fn tag(fixture: &ApiFixture, uri: &str) -> String {
    let answer = fixture.get(uri).await;
    assert_eq!(answer.status.as_u16(), 200, "{uri}");
    answer.header("etag").to_owned()
}

async fn tags(fixture: &ApiFixture) -> Vec<String> {
    let mut tags = Vec::new();
    for uri in COUNTED {
        tags.push(tag(fixture, uri).await);
    }
    tags
}

/// The answer also depends on the clock and on the history.
#[tokio::test]
async fn an_answer_about_an_earlier_time_has_no_tag() {
    let fixture = ApiFixture::new();
    fixture.add_history();
    for uri in ["/v1/ipcache/lookup?ip=10.1.2.40&at=1h", "/v1/ipcache/lookup?%61t=1h&ip=10.1.2.40"] {
        let answer = fixture.get(uri).await;
        assert_eq!((answer.status.as_u16(), answer.header("etag"), answer.header("cache-control")), (200, "", "no-cache"), "{uri}");
    }
    let now = "/v1/ipcache/lookup?ip=10.1.2.40";
    let tag = tag(&fixture, now).await;
    assert_eq!(request_with_tag(&fixture, Method::GET, now, &tag).await.status.as_u16(), 304);
    assert_eq!(request_with_tag(&fixture, Method::GET, &format!("{now}&at=1h"), "*").await.status.as_u16(), 200);
}

#[tokio::test]
async fn an_unchanged_answer_is_304_without_a_scan() {
    let fixture = ApiFixture::new();
    for uri in COUNTED.into_iter().chain(OTHERS) {
        let tag = tag(&fixture, uri).await;
        assert!(tag.starts_with("W/\"") && tag.ends_with('"') && tag.len() == 20, "{uri}: {tag:?}");
        let before = fixture.scans.total_usage().rows;
        for method in [Method::GET, Method::HEAD] {
            let again = request_with_tag(&fixture, method.clone(), uri, &format!("\"other\", {tag}")).await;
            assert_eq!((again.status.as_u16(), again.bytes.len(), again.header("etag")), (304, 0, &*tag), "{method} {uri}");
            let headers = ["cache-control", "vary", "content-type"].map(|name| again.header(name).to_owned());
            assert_eq!(headers, ["no-cache", "Accept, Accept-Encoding", ""], "{method} {uri}");
        }
        if COUNTED.contains(&uri) {
            assert_eq!(fixture.scans.total_usage().rows, before, "{uri}");
        }
        for method in [Method::GET, Method::HEAD] {
            let other = request_with_tag(&fixture, method.clone(), uri, "W/\"0123456789abcdef\"").await;
            assert_eq!((other.status.as_u16(), other.header("etag")), (200, &*tag), "{method} {uri}");
            assert_eq!((other.header("cache-control"), other.header("vary")), ("no-cache", "Accept, Accept-Encoding"), "{uri}");
        }
    }
}

/// Name of a change, its command, and the paths whose answers change.
type CachingCase<'a> = (&'a str, Command, &'a dyn Fn(&str) -> bool);

/// Puts, deletes, held entries, revisions, origins and phases: each changes the tags of its own
/// answers only.
#[tokio::test]
async fn a_tag_changes_exactly_when_its_answer_changes() {
    let fixture = ApiFixture::new();
    let paris = |kind| Scope { cluster: cluster("paris"), kind };
    let apply = |change| Command::Apply { scope: paris(Kind::Node), changes: vec![change], cursor: None };
    let worker =
        |zone: &str, revision| put(key(Kind::Node, "paris", "paris-worker-1"), node("paris-worker-1", "172.18.1.2", zone), revision);
    let of_nodes =
        |uri: &str| (uri.starts_with("/v1/nodes") && !uri.contains("tokyo")) || uri.starts_with("/v1/ipcache") || uri.ends_with("/ips");
    let of_identities = |uri: &str| (uri.starts_with("/v1/identities") && !uri.ends_with("/ips")) || uri.contains("/lookup");
    let of_paris = |uri: &str| !uri.contains("cluster=tokyo");
    let cases: Vec<CachingCase<'_>> = vec![
        ("a put", apply(worker("b", 30)), &of_nodes),
        ("the same again", apply(worker("b", 30)), &|_| false),
        ("equal bytes with another revision", apply(stamped(worker("b", 30), 31)), &of_nodes),
        ("held", apply(Change::Hold { key: key(Kind::Node, "paris", "paris-worker-1") }), &of_nodes),
        (
            "an identity",
            Command::Apply {
                scope: paris(Kind::Identity),
                changes: vec![put(key(Kind::Identity, "paris", "68352"), identity(68_352, "new"), 32)],
                cursor: None,
            },
            &of_identities,
        ),
        (
            "a delete",
            Command::Apply {
                scope: paris(Kind::Identity),
                changes: vec![Change::Delete { key: key(Kind::Identity, "paris", "68353") }],
                cursor: None,
            },
            &of_identities,
        ),
        ("confirmed once more", Command::Confirm(paris(Kind::Node)), &|_| false),
        ("another phase", Command::Phase { cluster: cluster("paris"), phase: Phase::SourceLost, cause: 0 }, &of_paris),
        ("the same phase", Command::Phase { cluster: cluster("paris"), phase: Phase::SourceLost, cause: 0 }, &|_| false),
        ("another origin", Command::Confirm(Scope { cluster: cluster("tokyo"), kind: Kind::Identity }), &of_identities),
    ];
    let mut before = tags(&fixture).await;
    for (number, (name, command, expected)) in cases.into_iter().enumerate() {
        fixture.command(command).await;
        // a second change, of a kind that few answers contain, shows that the first change is
        // visible
        fixture.change(mark(number)).await;
        let after = tags(&fixture).await;
        for ((uri, before), after) in COUNTED.iter().zip(&before).zip(&after) {
            if ["/v1/service-exports", "/v1/global-services", "/v1/entries"].iter().any(|shown| uri.starts_with(shown)) {
                continue;
            }
            assert_eq!(before != after, expected(uri), "{name}: {uri}");
        }
        before = after;
    }
}

#[tokio::test]
async fn a_tag_depends_on_the_kinds_that_the_answer_contains() {
    const URIS: [&str; 6] = [
        "/v1/service-exports",
        "/v1/service-exports/paris/shop/cart",
        "/v1/endpoint-slices",
        "/v1/endpoint-slices/paris/shop/cart-x",
        "/v1/global-services",
        "/v1/global-services/shop/cart",
    ];
    let fixture = ApiFixture::with_view(mesh());
    for (path, change) in [
        ("/v1/service-exports", put(key(Kind::ServiceExport, "paris", "shop/cart"), export(20, "ClusterSetIP"), 90)),
        ("/v1/endpoint-slices", put(key(Kind::EndpointSlice, "paris", "shop/cart-x"), slice(), 91)),
    ] {
        let mut before = Vec::new();
        for uri in URIS {
            before.push(tag(&fixture, uri).await);
        }
        fixture.change(change).await;
        for (uri, before) in URIS.iter().zip(before) {
            let is_affected = uri.starts_with(path) || uri.starts_with("/v1/global-services");
            assert_eq!(tag(&fixture, uri).await != before, is_affected, "{path}: {uri}");
        }
    }
}

/// A rejected service export.
fn mark(number: usize) -> Change {
    let key = key(Kind::ServiceExport, "tokyo", &format!("shop/{number}"));
    Change::Put { key, value: b"{".as_slice().into(), decoded: Err("not JSON".into()), source: SourceStamp::default() }
}

fn stamped(change: Change, revision: i64) -> Change {
    let Change::Put { key, value, decoded, mut source } = change else { unreachable!("only puts have a revision") };
    source.mod_revision = Revision(revision);
    Change::Put { key, value, decoded, source }
}

#[tokio::test]
async fn another_media_type_query_or_start_has_another_tag() {
    let fixture = ApiFixture::new();
    let lines = Request::get("/v1/nodes").header("accept", "application/x-ndjson").body(Body::empty()).unwrap();
    let lines_tag = fixture.send(lines).await.header("etag").to_owned();
    let mut tags = vec![lines_tag];
    for uri in ["/v1/nodes", "/v1/nodes?limit=1", "/v1/nodes?fields=name", "/v1/nodes?cluster=paris", "/v1/nodes?meta=full"] {
        tags.push(tag(&fixture, uri).await);
    }
    tags.sort_unstable();
    tags.dedup();
    assert_eq!(tags.len(), 6);
    // ages are not part of the tag, but a new cluster is
    let clusters = tag(&fixture, "/v1/clusters").await;
    fixture.change(put(key(Kind::Identity, "oslo", "5"), identity(5, "x"), 1)).await;
    assert_ne!(tag(&fixture, "/v1/clusters").await, clusters);
}

/// After a restart, the same counter can stand for different content.
#[tokio::test]
async fn another_start_has_another_tag() {
    let (before, after) = (ApiFixture::of_start(Epoch(1)), ApiFixture::of_start(Epoch(2)));
    for uri in COUNTED {
        assert_ne!(tag(&before, uri).await, tag(&after, uri).await, "{uri}");
    }
}

#[tokio::test]
async fn old_or_missing_data_is_never_304() {
    let fixture = ApiFixture::new();
    for uri in ["/v1/nodes?maxAge=1000000000", "/v1/ipcache/lookup?ip=10.1.2.40&maxAge=1000000000"] {
        let tag = tag(&fixture, uri).await;
        assert_eq!(request_with_tag(&fixture, Method::GET, uri, &tag).await.status.as_u16(), 304);
    }
    let old = "/v1/nodes?maxAge=0";
    assert_eq!(request_with_tag(&fixture, Method::GET, old, "*").await.status.as_u16(), 503);
    assert_eq!(request_with_tag(&fixture, Method::GET, "/v1/nodes/paris/nobody", "*").await.status.as_u16(), 404);
    assert_eq!(request_with_tag(&fixture, Method::GET, "/v1/nodes", "*").await.status.as_u16(), 304);
    // the tag does not cover the age, so `maxAge` must be checked first
    let tag = tag(&fixture, "/v1/nodes").await;
    assert_eq!(request_with_tag(&fixture, Method::GET, old, &tag).await.status.as_u16(), 503);
    assert_eq!(request_with_tag(&fixture, Method::GET, "/v1/nodes?colour=red", &tag).await.status.as_u16(), 400);
}

#[tokio::test]
async fn answers_about_the_current_moment_have_no_tag() {
    let fixture = ApiFixture::new();
    for uri in ["/metrics", "/livez", "/v1/changes?snapshot=true", "/v1/nodes/paris/nobody", "/v1/nothing"] {
        assert_eq!(fixture.get(uri).await.header("etag"), "", "{uri}");
    }
    fixture.unload();
    let loading = request_with_tag(&fixture, Method::GET, "/v1/nodes/paris/paris-worker-1", "*").await;
    assert_eq!((loading.status.as_u16(), loading.header("etag")), (503, ""));
    assert_eq!(fixture.json("/v1/status").await["loaded"], json!(false));
}

/// A restored entry that the source confirms for the first time.
#[tokio::test]
async fn a_confirmed_record_has_another_tag() {
    let fixture = ApiFixture::new();
    let uri = "/v1/ipcache?cluster=tokyo";
    let before = tag(&fixture, uri).await;
    let address = || key(Kind::Ip, "tokyo", "10.1.2.40");
    fixture.change(put(address(), pod("10.1.2.40", 68_352, "172.18.2.2"), 6)).await;
    assert_ne!(tag(&fixture, uri).await, before);
}
