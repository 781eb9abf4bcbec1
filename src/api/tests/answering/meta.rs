//! The size of `meta` does not grow with the mesh, and clusters that were never read are marked.

use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::api::tests::fixture::{ApiFixture, cluster, identity, key, node, pod, put};
use crate::model::{ClusterRecord, Command, Kind, Phase, Scope, Sequence};
use crate::view::View;

/// Maximum number of remote clusters, with long names.
const CLUSTER_COUNT: u32 = 255;

fn name(number: u32) -> String {
    format!("production-europe-west-{number:03}")
}

/// A mesh whose clusters are live and were contacted just now.
fn live_mesh() -> View {
    let mut view = View::starting_at(Sequence(0));
    for number in 0..CLUSTER_COUNT {
        let name = name(number);
        let (address, host) = (format!("10.{number}.2.40"), format!("172.18.{number}.2"));
        let id = 65_536 * number + 30_000;
        let worker = format!("worker-{number:03}");
        for (kind, change) in [
            (Kind::Identity, put(key(Kind::Identity, &name, &id.to_string()), identity(id, "cart"), 7)),
            (Kind::Node, put(key(Kind::Node, &name, &worker), node(&worker, &host, "a"), 7)),
            (Kind::Ip, put(key(Kind::Ip, &name, &address), pod(&address, id, &host), 7)),
        ] {
            let scope = Scope { cluster: cluster(&name), kind };
            view.apply(Command::Apply { scope, changes: vec![change], cursor: None }, SystemTime::now());
        }
        for kind in Kind::ALL {
            view.apply(Command::Confirm(Scope { cluster: cluster(&name), kind }), SystemTime::now());
        }
        set_last_contact(&mut view, &name, Duration::ZERO);
        view.apply(Command::Phase { cluster: cluster(&name), phase: Phase::Live, cause: 0 }, SystemTime::now());
    }
    view
}

fn set_last_contact(view: &mut View, name: &str, ago: Duration) {
    let record = ClusterRecord { config: None, last_contact: Some(SystemTime::now() - ago), ..ClusterRecord::default() };
    view.apply(Command::StoreCluster { cluster: cluster(name), record }, SystemTime::now());
}

#[tokio::test]
async fn a_lookup_in_the_largest_mesh_has_less_than_1536_bytes() {
    let fixture = ApiFixture::with_view(live_mesh());
    for (ip, found) in [("10.7.2.40", true), ("192.0.2.1", false)] {
        let answer = fixture.get(&format!("/v1/ipcache/lookup?ip={ip}")).await;
        assert_eq!(answer.json()["match"].is_object(), found, "{ip}");
        assert!(answer.bytes.len() < 1_536, "{ip}: {} B", answer.bytes.len());
    }
    for list in ["/v1/nodes?limit=1", "/v1/clusters?limit=1", "/v1/rejected", "/v1/problems?kind=none"] {
        let meta = fixture.json(list).await["meta"].to_string();
        assert!(meta.len() < 256, "{list}: {meta}");
    }
}

fn without_age(mut meta: Value) -> Value {
    assert!(meta["oldestAgeSeconds"].take().is_number(), "{meta}");
    meta["oldestAgeSeconds"] = json!("…");
    meta
}

#[tokio::test]
async fn a_summary_names_old_sources_and_counts_the_others() {
    let mut view = live_mesh();
    let fixture = ApiFixture::with_view(view.clone());
    let position = "v1.000000000000feed.1785";
    let all = json!({ "position": position, "origin": "live", "oldestAgeSeconds": "…", "liveSources": 255, "sourceCount": 255 });
    assert_eq!(without_age(fixture.json("/v1/nodes?limit=1").await["meta"].clone()), all);
    assert_eq!(fixture.json("/v1/nodes?limit=1&meta=none").await["meta"], json!({ "position": position }));
    let full = fixture.json("/v1/nodes?limit=1&meta=full").await["meta"].clone();
    assert_eq!(full["sources"].as_array().unwrap().len(), 255);
    // 23 have been quiet for more than a minute, and the nodes of one were never read
    for number in 100..123 {
        set_last_contact(&mut view, &name(number), Duration::from_secs(61));
    }
    set_last_contact(&mut view, "never", Duration::ZERO);
    let fixture = ApiFixture::with_view(view);
    let meta = fixture.json("/v1/nodes?limit=1").await["meta"].clone();
    let named: Vec<&str> = meta["sources"].as_array().unwrap().iter().map(|source| source["cluster"].as_str().unwrap()).collect();
    assert_eq!((named.len(), named[0], &meta["moreSources"]), (20, "never", &json!(4)));
    assert_eq!((&meta["sources"][0]["origin"], &meta["sources"][1]["origin"]), (&json!("neverRead"), &json!("live")));
    assert_eq!((&meta["origin"], &meta["liveSources"], &meta["sourceCount"]), (&json!("neverRead"), &json!(255), &json!(256)));
    assert!(meta["oldestAgeSeconds"].as_f64().unwrap() > 61.0);
}

#[tokio::test]
async fn sources_are_counted_by_cluster_not_by_kind() {
    let meta = ApiFixture::new().json("/v1/clusters").await["meta"].clone();
    assert_eq!((&meta["liveSources"], &meta["sourceCount"]), (&json!(1), &json!(2)), "{meta}");
    let meta = ApiFixture::new().json("/v1/ipcache/lookup?ip=10.1.200.7&meta=full").await["meta"].clone();
    assert_eq!((meta["sources"].as_array().unwrap().len(), &meta["sourceCount"]), (3, &json!(1)), "{meta}");
}

#[tokio::test]
async fn a_single_object_has_the_requested_level_of_detail() {
    let fixture = ApiFixture::new();
    let bare = json!({ "position": "v1.000000000000feed.113" });
    for uri in [
        "/v1/clusters/paris",
        "/v1/nodes/paris/paris-worker-1",
        "/v1/services/paris/shop/cart",
        "/v1/global-services/shop/cart",
        "/v1/identities/68352",
        "/v1/identities/2",
        "/v1/ipcache/10.1.2.40",
        "/v1/ipcache/lookup?ip=10.1.2.40",
        "/v1/ipcache/lookup?ip=fd00::1",
        "/v1/explain/10.1.2.40",
    ] {
        let mark = if uri.contains('?') { '&' } else { '?' };
        assert_eq!(fixture.json(&format!("{uri}{mark}meta=none")).await["meta"], bare, "{uri}");
    }
    let full = fixture.json("/v1/ipcache/lookup?ip=10.1.200.7&meta=full").await["meta"]["sources"].clone();
    let kinds: Vec<&str> = full.as_array().unwrap().iter().map(|source| source["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ipcache", "identity", "node"]);
}

async fn batch(fixture: &ApiFixture, query: &str) -> Vec<Value> {
    let request = Request::post(format!("/v1/ipcache/lookup{query}")).header("content-type", "application/json");
    let body = Body::from(r#"{"ips":["10.7.2.40","10.8.2.40","192.0.2.1","nonsense"]}"#);
    let answer = fixture.send(request.body(body).unwrap()).await.json();
    answer["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn each_item_of_a_batch_has_its_age() {
    let mut view = live_mesh();
    set_last_contact(&mut view, &name(8), Duration::from_secs(300));
    let fixture = ApiFixture::with_view(view);
    let items = batch(&fixture, "").await;
    let age = |item: &Value| item["meta"]["ageSeconds"].as_f64().unwrap();
    assert!(age(&items[0]) < 200.0 && age(&items[1]) >= 300.0 && age(&items[2]) >= 300.0, "{items:?}");
    let single = fixture.json("/v1/ipcache/lookup?ip=10.8.2.40").await;
    for member in ["origin", "phase", "lastContact", "revision"] {
        assert_eq!(items[1]["meta"][member], single["meta"][member], "{member}");
    }
    assert_eq!((&items[2]["match"], &items[2]["meta"]["origin"]), (&Value::Null, &json!("live")));
    assert_eq!((items[3].get("meta"), items[3]["error"].is_string()), (None, true));
    assert!(batch(&fixture, "?meta=none").await.iter().all(|item| item.get("meta").is_none()));
}

#[tokio::test]
async fn a_source_that_was_never_read_is_too_old_unless_ignored() {
    let mut view = live_mesh();
    view.apply(Command::Phase { cluster: cluster("never"), phase: Phase::Connecting, cause: 0 }, SystemTime::now());
    // the cluster is connected, but none of its kinds was read yet
    set_last_contact(&mut view, "never", Duration::ZERO);
    let fixture = ApiFixture::with_view(view);
    for uri in ["/v1/nodes?maxAge=600", "/v1/ipcache/lookup?ip=192.0.2.1&maxAge=600", "/v1/events?maxAge=600"] {
        let answer = fixture.get(uri).await;
        let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
        let reported = "data of cluster never was never read: try again later, or omit such clusters with neverRead=ignore";
        assert!(answer.status.as_u16() == 503 && detail.ends_with(reported), "{uri}: {detail}");
    }
    for uri in ["/v1/nodes?maxAge=600&neverRead=ignore", "/v1/ipcache/lookup?ip=192.0.2.1&maxAge=600&neverRead=ignore"] {
        assert_eq!(fixture.get(uri).await.status.as_u16(), 200, "{uri}");
    }
    for (uri, detail) in [
        ("/v1/nodes?neverRead=ignore", "neverRead: only works together with maxAge: add maxAge=SECONDS"),
        ("/v1/nodes?maxAge=1&neverRead=no", "neverRead: \"no\" is not supported: the only value is ignore"),
        ("/v1/nodes?meta=all", "meta: \"all\" is not supported: use full or none"),
    ] {
        assert_eq!(fixture.json(uri).await["detail"], json!(detail), "{uri}");
    }
}
