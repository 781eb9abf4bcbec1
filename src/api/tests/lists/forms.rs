//! Content negotiation: the form of each path, and the answer if none is accepted.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Value, json};

use crate::api::DocumentVersion;
use crate::api::documented_routes;
use crate::api::tests::fixture::{ApiFixture, TestResponse};

async fn accepting(fixture: &ApiFixture, method: Method, uri: &str, accept: &str) -> TestResponse {
    let request = Request::builder().method(method).uri(uri).header("accept", accept);
    fixture.send(request.header("content-type", "application/json").body(Body::from(r#"{"ips":["10.1.2.40"]}"#)).unwrap()).await
}

#[test]
fn the_document_names_the_offered_media_types() {
    let document: Value = serde_json::from_str(crate::api::openapi_json(DocumentVersion::V31)).unwrap();
    let routes = documented_routes().properties;
    let properties: BTreeMap<String, _> = routes.into_iter().map(|(path, properties)| (path.replace("{*", "{"), properties)).collect();
    for (path, item) in document["paths"].as_object().unwrap() {
        let content = item["get"]["responses"]["200"]["content"].as_object().unwrap();
        // one media type in the answer, because generators return a choice of types for several
        let lines = item["get"]["x-ndjson"]["mediaType"].as_str();
        let mut documented: Vec<&str> = content.keys().map(String::as_str).chain(lines).collect();
        // the metrics are the same in both forms
        documented.extend((path == "/metrics").then_some("application/openmetrics-text"));
        documented.dedup();
        let forms: Vec<&str> = properties[path].media_types.iter().map(|form| form.as_str()).collect();
        // probes are always answered
        assert_eq!(if forms.is_empty() { vec!["text/plain"] } else { forms }, documented, "{path}");
        assert_eq!(content.len(), 1, "{path}");
        assert_eq!(item["get"]["responses"]["406"].is_object(), path.starts_with("/v1"), "{path}");
    }
}

#[tokio::test]
async fn status_406_lists_the_offered_media_types() {
    let fixture = ApiFixture::new();
    let only = |form: &str| format!("this path answers in {form}: accept it, or send no Accept header");
    let list = "this path answers in application/json or application/x-ndjson: accept one of them".to_owned();
    for (uri, accept, detail) in [
        ("/v1/nodes", "text/html", list.clone()),
        ("/v1/identities/68352/ips", "application/json;q=0", list.clone()),
        ("/v1/problems", "application/x-ndjson;q=0.0, text/csv", list),
        ("/v1/nodes/paris/paris-worker-1", "application/x-ndjson", only("application/json")),
        ("/v1/ipcache/10.1.2.40", "application/x-ndjson", only("application/json")),
        ("/v1/ipcache/lookup?ip=10.1.2.40", "text/plain", only("application/json")),
        ("/v1/changes", "application/x-ndjson", only("application/json")),
        ("/v1/status", "text/html", only("application/json")),
        ("/v1/entries/cilium/cache/identities/v1/tokyo/id/68352", "application/json", only("application/octet-stream")),
        ("/openapi.json", "application/yaml", only("application/json")),
        ("/metrics", "application/json", "this path answers in text/plain or application/openmetrics-text: accept one of them".to_owned()),
        ("/", "application/json", only("text/html")),
        ("/docs", "application/json", only("text/html")),
        ("/docs/style.css", "text/html", only("text/css")),
        ("/docs/script.js", "text/css", only("text/javascript")),
        ("/problems/notFound", "application/json", only("text/html")),
        ("/v1/events", "application/json", "this path answers in text/event-stream or application/x-ndjson: accept one of them".to_owned()),
    ] {
        let answer = accepting(&fixture, Method::GET, uri, accept).await;
        let reported = (answer.status.as_u16(), answer.json()["code"].clone(), answer.json()["detail"].clone());
        assert_eq!(reported, (406, json!("notAcceptable"), json!(detail)), "{uri}");
        assert_eq!(answer.header("content-type"), "application/problem+json");
        assert_eq!(answer.header("vary"), "Accept, Accept-Encoding", "{uri}");
        let head = accepting(&fixture, Method::HEAD, uri, accept).await;
        assert_eq!((head.status.as_u16(), head.bytes.len()), (406, 0), "{uri}");
    }
    assert_eq!(accepting(&fixture, Method::POST, "/v1/ipcache/lookup", "text/csv").await.status.as_u16(), 406);
}

/// The method and the path are checked first, and a probe is never refused because of a header.
#[tokio::test]
async fn a_missing_path_gets_404_for_any_media_type() {
    let fixture = ApiFixture::new();
    for (method, uri, status) in [
        (Method::GET, "/v1/nothing", 404),
        (Method::DELETE, "/v1/nodes", 405),
        (Method::POST, "/v1/nodes", 405),
        (Method::GET, "/livez", 200),
        (Method::GET, "/readyz", 200),
        (Method::GET, "/healthz", 200),
    ] {
        assert_eq!(accepting(&fixture, method, uri, "text/csv").await.status.as_u16(), status, "{uri}");
    }
}

#[tokio::test]
async fn answers_have_a_vary_header_compressed_or_not() {
    let fixture = ApiFixture::new();
    for uri in ["/v1/nodes", "/v1/nodes/paris/paris-worker-1", "/v1/nodes/paris/nobody", "/openapi.json", "/", "/metrics"] {
        for encoding in ["identity", "gzip"] {
            let request = Request::get(uri).header("accept-encoding", encoding).body(Body::empty()).unwrap();
            let answer = fixture.send(request).await;
            let vary: Vec<_> = answer.headers.get_all("vary").iter().collect();
            assert_eq!(vary, ["Accept, Accept-Encoding"], "{uri}");
        }
    }
}
