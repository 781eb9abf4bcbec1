//! What goes wrong is said as a problem document that names the thing.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::json;

use super::fixture::{Answer, Fixture};

fn summary(answer: &Answer) -> (u16, String, String) {
    let body = answer.json();
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    assert_eq!(answer.header("content-type"), "application/problem+json", "{body}");
    assert_eq!(body["status"], answer.status.as_u16());
    assert_eq!(text("type"), format!("/problems/{}", text("code")));
    (answer.status.as_u16(), text("code"), text("detail"))
}

#[tokio::test]
async fn a_bad_parameter_is_named() {
    let fixture = Fixture::new();
    let cases = [
        (
            "/v1/nodes?colour=red",
            "colour: unknown query parameter `colour`, expected one of `labelSelector`, `name`, `ip`, `cluster`, `limit`, `pageToken`, `maxAge`, `neverRead`, `meta`",
        ),
        ("/v1/nodes?cluster=", "cluster: has no value: give it one or leave it out"),
        (
            "/v1/nodes?cluster=Paris",
            "cluster: \"Paris\" is not a valid cluster name: it must be 1 to 32 characters of a-z, 0-9 and '-', begin and end with a letter or digit",
        ),
        ("/v1/nodes?limit=0", "limit: 0 is not between 1 and 10000"),
        ("/v1/nodes?limit=10001", "limit: 10001 is not between 1 and 10000"),
        ("/v1/nodes?limit=many", "limit: invalid digit found in string"),
        ("/v1/nodes?limit=1&limit=2", "limit: may be given only once"),
        ("/v1/nodes?ip=10.0.0", "ip: \"10.0.0\" is not an IP address"),
        (
            "/v1/nodes?labelSelector=a%20b",
            "labelSelector: \"a b\" is not of a label selector: \"a b\" is not the name of a key: at most 63 letters, digits, -, _ and ., the first and last of them a letter or digit",
        ),
        ("/v1/nodes?pageToken=zzz", "pageToken: is not of this list (other filter, or meshkeep started anew): begin again without it"),
        ("/v1/services?shared=maybe", "shared: provided string was not `true` or `false`"),
        ("/v1/identities?scope=wide", "scope: \"wide\" is none of global, local, remoteNode and unknown"),
        ("/v1/identities/abc", "id: \"abc\" is not a numeric identity, 0 to 4294967295"),
        ("/v1/ipcache?cidr=10.0.0.0/33", "cidr: \"10.0.0.0/33\" is not an address or CIDR"),
        ("/v1/ipcache/10.0.0.0/33", "prefix: \"10.0.0.0/33\" is not an address or CIDR"),
        ("/v1/ipcache/lookup?ip=x", "ip: \"x\" is not an IP address"),
        ("/v1/ipcache/lookup", "missing field `ip`"),
        ("/v1/events?kind=pod", "kind: \"pod\" is none of node, service, identity, ipcache, serviceExport, endpointSlice and cluster"),
        ("/v1/events?node=paris-worker-1", "node: is not a host address: a stream cannot follow a node's name, give one of its addresses"),
        ("/v1/events?onExpired=cry", "onExpired: \"cry\" is neither reset nor fail"),
        ("/readyz?synched", "unknown query parameter `synched`"),
    ];
    for (uri, detail) in cases {
        assert_eq!(summary(&fixture.get(uri).await), (400, "badParameter".to_owned(), detail.to_owned()), "{uri}");
    }
}

#[tokio::test]
async fn unknown_paths_and_wrong_methods_are_problems() {
    let fixture = Fixture::new();
    let answer = fixture.get("/v1/nothing").await;
    assert_eq!(
        answer.json(),
        json!({
            "type": "/problems/unknownRoute",
            "title": "There is no such path",
            "status": 404,
            "detail": "there is no such path: / lists what there is, /openapi.json describes it",
            "instance": "/v1/nothing",
            "code": "unknownRoute",
        })
    );
    let answer = fixture.send(Request::delete("/v1/nodes").body(Body::empty()).unwrap()).await;
    assert_eq!((summary(&answer).1.as_str(), answer.header("allow")), ("methodNotAllowed", "GET,HEAD"));
    let answer = fixture.get("/v1/nodes/paris/%FF").await;
    assert_eq!(summary(&answer).1, "badRequest");
    let pick = Request::get("/v1/events").header("accept", "text/html").body(Body::empty()).unwrap();
    assert_eq!(summary(&fixture.send(pick).await).0, 406);
}

#[tokio::test]
async fn a_batch_that_cannot_be_read_is_a_problem() {
    let fixture = Fixture::new();
    let post = |kind: &str, body: String| Request::post("/v1/ipcache/lookup").header("content-type", kind).body(Body::from(body)).unwrap();
    let many = |count: usize| format!(r#"{{"ips":[{}]}}"#, vec![r#""10.0.0.1""#; count].join(","));
    let cases = [
        (post("text/plain", many(1)), 415, "unsupportedMediaType"),
        (post("application/json", "{".to_owned()), 400, "badRequest"),
        (post("application/json", r#"{"ip":[]}"#.to_owned()), 400, "badRequest"),
        (post("application/json", many(10_001)), 400, "badParameter"),
        (post("application/json", many(200_000)), 413, "tooLarge"),
    ];
    for (request, status, code) in cases {
        let (found_status, found_code, detail) = summary(&fixture.send(request).await);
        assert_eq!((found_status, found_code.as_str()), (status, code), "{detail}");
    }
    let answer = fixture.send(post("application/json", many(10_000))).await;
    assert_eq!((answer.status, answer.json()["items"].as_array().unwrap().len()), (StatusCode::OK, 10_000));
}

#[tokio::test]
async fn an_answer_older_than_asked_for_is_refused_with_its_age() {
    let fixture = Fixture::new();
    // tokyo was last heard of long ago, paris just now
    for fresh in
        ["/v1/nodes?maxAge=60&cluster=paris", "/v1/nodes/paris/paris-worker-1?maxAge=60", "/v1/ipcache/lookup?ip=10.1.200.1&maxAge=60"]
    {
        assert_eq!(fixture.get(fresh).await.status, StatusCode::OK, "{fresh}");
    }
    let old = [
        "/v1/status?maxAge=60",
        "/v1/clusters?maxAge=60",
        "/v1/nodes?maxAge=60",
        "/v1/nodes/tokyo/tokyo-worker-1?maxAge=60",
        "/v1/identities/68352?maxAge=60",
        "/v1/ipcache/lookup?ip=fd00::1&maxAge=60",
        "/v1/entries?maxAge=60",
        "/v1/rejected?maxAge=60",
        "/v1/events?maxAge=60",
    ];
    for uri in old {
        let answer = fixture.get(uri).await;
        assert_eq!((summary(&answer).0, summary(&answer).1.as_str()), (503, "tooOld"), "{uri}");
        // no services of tokyo were ever read: they have no age
        let is_never_read = summary(&answer).2.contains("of cluster tokyo was never read");
        assert!(is_never_read || answer.json()["ageSeconds"].as_f64().unwrap() > 60.0, "{uri}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_store_loads_lookups_say_so_and_status_answers() {
    let fixture = Fixture::new();
    fixture.unload();
    let answer = fixture.get("/v1/nodes").await;
    assert_eq!((summary(&answer).1.as_str(), answer.header("retry-after")), ("loading", "1"));
    assert_eq!(fixture.json("/v1/status").await["loaded"], json!(false));
    let ready = fixture.get("/readyz").await;
    assert_eq!(
        (ready.status.as_u16(), ready.json()),
        (503, json!("[-]store failed: still loading\n[+]storing ok\n[+]shutdown ok\nreadyz check failed\n"))
    );
    assert_eq!(fixture.get("/livez").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_handler_that_panics_is_a_problem() {
    let fixture = Fixture::new();
    let broken: axum::Router = axum::Router::new().route("/broken", axum::routing::get(broken));
    let router = broken
        .layer(tower_http::catch_panic::CatchPanicLayer::custom(crate::api::panicked))
        .layer(axum::middleware::from_fn(crate::api::problem::render));
    let mut fixture = fixture;
    fixture.router = router;
    assert_eq!(summary(&fixture.get("/broken").await).1, "internal");
}

async fn broken() -> &'static str {
    panic!("broken on purpose")
}
