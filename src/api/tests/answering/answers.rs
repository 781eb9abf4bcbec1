//! Every route's whole answer, compared with `answers.json`.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::api::tests::fixture::ApiFixture;

/// Members that differ from run to run.
const VOLATILE: [&str; 8] = ["now", "since", "ageSeconds", "oldestAgeSeconds", "phaseSeconds", "uptimeSeconds", "firstSeen", "lastSeen"];

const URIS: &[&str] = &[
    "/v1/status",
    "/v1/clusters",
    "/v1/clusters/paris",
    "/v1/clusters/nowhere",
    "/v1/nodes",
    "/v1/nodes?cluster=tokyo&cluster=paris&labelSelector=zone%20in%20(b,c)",
    "/v1/nodes?cluster=elsewhere",
    "/v1/nodes?ip=172.18.1.2&cluster=paris",
    "/v1/nodes/paris/paris-worker-1",
    "/v1/nodes/paris/paris-worker-2",
    "/v1/services",
    "/v1/services?namespace=shop&name=cart&shared=true&labelSelector=app%3Dcart",
    "/v1/services?shared=false",
    "/v1/services/paris/shop/cart",
    "/v1/services/paris/shop/till",
    "/v1/identities",
    "/v1/identities?label=k8s:app%3Dtill&label=k8s:io.kubernetes.pod.namespace%3Dshop&scope=global",
    "/v1/identities/68352",
    "/v1/identities/68352?cluster=tokyo",
    "/v1/identities/2",
    "/v1/identities/77",
    "/v1/identities/68352/ips",
    "/v1/ipcache",
    "/v1/ipcache?node=paris-worker-1",
    "/v1/ipcache?node=172.18.2.2",
    "/v1/ipcache?cidr=10.1.200.0/24",
    "/v1/ipcache?pod=cart-0&namespace=shop&identity=68352&cluster=paris",
    "/v1/ipcache/10.1.2.40",
    "/v1/ipcache/10.1.200.0/24",
    "/v1/ipcache/10.1.200.0%2F24",
    "/v1/ipcache/10.1.201.0/24",
    "/v1/ipcache?identity=4",
    "/v1/ipcache?cidr=172.18.0.0/16&cluster=tokyo",
    "/v1/ipcache/172.18.1.2",
    "/v1/ipcache/10.1.2.134/32",
    "/v1/ipcache/lookup?ip=10.1.2.134",
    "/v1/identities/6/ips",
    "/v1/ipcache/lookup?ip=10.1.2.40",
    "/v1/ipcache/lookup?ip=10.1.200.7",
    "/v1/ipcache/lookup?ip=fd00::1",
    "/v1/explain/10.1.2.40",
    "/v1/explain/fd00::1",
    "/v1/problems",
    "/v1/problems?kind=overlappingPodCIDR&cluster=tokyo",
    "/v1/entries?prefix=cilium/cache/nodes/v1/paris/",
    "/v1/entries?cluster=tokyo",
    "/v1/entries/cilium/cache/nodes/v1/paris/paris-worker-2",
    "/v1/entries/cilium/cache/nodes/v1/paris/paris-worker-1%23172.18.1.2",
    "/v1/entries/cilium%2Fcache%2Fnodes%2Fv1%2Fparis%2Fnobody",
    "/v1/rejected",
    "/livez",
    "/readyz",
    "/readyz?verbose",
    "/readyz?synced&verbose",
    "/healthz",
];

fn mask(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::Object(members) => {
            for (name, member) in members {
                if VOLATILE.contains(&name.as_str()) {
                    *member = json!("…");
                }
                mask(member);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test]
async fn every_route_gives_the_recorded_answer() {
    let fixture = ApiFixture::new();
    let mut found = BTreeMap::new();
    for uri in URIS {
        let answer = fixture.get(uri).await;
        let mut body = answer.json();
        mask(&mut body);
        found.insert(*uri, json!({ "status": answer.status.as_u16(), "type": answer.header("content-type"), "body": body }));
    }
    let batch = Request::post("/v1/ipcache/lookup").header("content-type", "application/json");
    let answer = fixture.send(batch.body(Body::from(r#"{"ips":["10.1.200.9","nonsense","fd00::1"]}"#)).unwrap()).await;
    let mut body = answer.json();
    mask(&mut body);
    found.insert("POST /v1/ipcache/lookup", json!({ "status": answer.status.as_u16(), "body": body }));
    let found = serde_json::to_value(found).unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/api/tests/answering/answers.json");
    let expected: Value = std::fs::read_to_string(path).map_or(Value::Null, |text| serde_json::from_str(&text).unwrap());
    if found != expected {
        let actual_path = std::env::temp_dir().join("meshkeep-answers.json");
        std::fs::write(&actual_path, serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
        panic!("the answers differ: compare {path} with {}", actual_path.display());
    }
}

#[tokio::test]
async fn head_is_like_get_without_a_body() {
    let fixture = ApiFixture::new();
    for uri in ["/v1/nodes", "/v1/nodes/paris/nobody", "/livez", "/openapi.json"] {
        let head = fixture.send(Request::head(uri).body(Body::empty()).unwrap()).await;
        let get = fixture.get(uri).await;
        assert_eq!((head.status, head.header("content-type"), head.bytes.len()), (get.status, get.header("content-type"), 0), "{uri}");
    }
}

#[tokio::test]
async fn json_is_compressed_and_raw_bytes_have_their_source() {
    let fixture = ApiFixture::new();
    for encoding in ["gzip", "zstd"] {
        let request = Request::get("/v1/ipcache").header("accept-encoding", encoding).body(Body::empty()).unwrap();
        assert_eq!(fixture.send(request).await.header("content-encoding"), encoding);
    }
    for form in ["text/event-stream", "application/x-ndjson"] {
        let request = Request::get("/v1/events").header("accept-encoding", "gzip, zstd").header("accept", form);
        let response = fixture.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!((response.headers()["content-type"].to_str().unwrap(), response.headers().get("content-encoding")), (form, None));
    }
    let answer = fixture.get("/v1/entries/cilium/cache/identities/v1/tokyo/id/68352").await;
    assert_eq!(answer.bytes, b"restored");
    let headers = ["content-type", "meshkeep-origin", "meshkeep-position"].map(|name| answer.header(name));
    assert_eq!(headers, ["application/octet-stream", "restored", "v1.000000000000feed.113"]);
}
