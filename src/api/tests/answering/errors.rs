//! Errors are problem documents that name the wrong parameter or object.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::json;

use crate::api::etcd;
use crate::api::guard::Guard;
use crate::api::problem::ProblemCode;
use crate::api::query::words::join_names;
use crate::api::state::ApiState;
use crate::api::tests::fixture::{ApiFixture, TestResponse};

fn summary(answer: &TestResponse) -> (u16, String, String) {
    let body = answer.json();
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    assert_eq!(answer.header("content-type"), "application/problem+json", "{body}");
    assert_eq!(body["status"], answer.status.as_u16());
    assert_eq!(text("type"), format!("/problems/{}", text("code")));
    (answer.status.as_u16(), text("code"), text("detail"))
}

#[tokio::test]
async fn a_bad_parameter_is_named() {
    let fixture = ApiFixture::new();
    let cases = [
        (
            "/v1/nodes?colour=red",
            "colour: is not a parameter of this path: this path has labelSelector, name, ip, search, cluster, limit, fields, pageToken, at, maxAge, neverRead and meta",
        ),
        (
            "/v1/nodes?clusters=paris",
            "clusters: is not a parameter of this path, did you mean cluster? this path has labelSelector, name, ip, search, cluster, limit, fields, pageToken, at, maxAge, neverRead and meta",
        ),
        ("/v1/status?colour=red", "colour: is not a parameter of this path: this path has maxAge, neverRead and meta"),
        ("/v1/nodes?cluster=", "cluster: has no value: add one, or omit the parameter"),
        (
            "/v1/nodes?cluster=Paris",
            "cluster: \"Paris\" is not a valid cluster name: it must be 1 to 32 characters of a-z, 0-9 and '-', begin and end with a letter or digit",
        ),
        ("/v1/nodes?limit=0", "limit: 0 is not between 1 and 10000"),
        ("/v1/nodes?limit=10001", "limit: 10001 is not between 1 and 10000"),
        ("/v1/nodes?limit=many", "limit: \"many\" is not a whole number: use one, such as limit=500"),
        ("/v1/nodes?limit=1&limit=2", "limit: is repeated: use it once"),
        ("/v1/nodes?ip=10.0.0", "ip: \"10.0.0\" is not an IP address"),
        (
            "/v1/nodes?labelSelector=a%20b",
            "labelSelector: \"a b\" is not a valid requirement of a label selector: \"a b\" is not a valid key name: at most 63 letters, digits, -, _ and ., the first and last of them a letter or digit",
        ),
        (
            "/v1/nodes?pageToken=zzz",
            "pageToken: does not belong to this list (another filter, or meshkeep restarted): start again without it",
        ),
        ("/v1/nodes?maxAge=-1", "maxAge: \"-1\" is not a whole number: use one, such as maxAge=60"),
        ("/v1/nodes?limit=99999999999", "limit: 99999999999 is too large: use at most 10000, such as limit=500"),
        ("/v1/ipcache?identity=4294967296", "identity: 4294967296 is too large: use at most 4294967295, such as identity=131331"),
        ("/v1/changes?waitSeconds=a", "waitSeconds: \"a\" is not a whole number: use one, such as waitSeconds=30"),
        ("/v1/events?snapshot=yes", "snapshot: \"yes\" is not a boolean: use true or false, such as snapshot=true"),
        (
            "/v1/entries?prefix=cilium/state/",
            "prefix: no key starts with \"cilium/state/\": keys are in cache form, such as cilium/cache/nodes/v1/paris/",
        ),
        ("/v1/services?shared=maybe", "shared: \"maybe\" is not a boolean: use true or false, such as shared=true"),
        ("/v1/identities?scope=wide", "scope: \"wide\" is not one of global, local, remoteNode and unknown"),
        ("/v1/identities/abc", "id: \"abc\" is not a numeric identity from 0 to 4294967295"),
        ("/v1/ipcache?cidr=10.0.0.0/33", "cidr: \"10.0.0.0/33\" is not an address or CIDR"),
        ("/v1/ipcache/10.0.0.0/33", "prefix: \"10.0.0.0/33\" is not an address or CIDR"),
        ("/v1/ipcache/lookup?ip=x", "ip: \"x\" is not an IP address"),
        ("/v1/ipcache/lookup", "ip: is missing: add it, such as ip=10.1.2.40"),
        (
            "/v1/events?kind=pod",
            "kind: \"pod\" is not one of node, service, identity, ipcache, serviceExport, endpointSlice, cluster and problem",
        ),
        ("/v1/events?node=paris-worker-1", "node: is not a host address: a stream cannot follow a node's name, use one of its addresses"),
        ("/v1/events?onExpired=cry", "onExpired: \"cry\" is not supported: use reset or fail"),
        (
            "/v1/services?name=car*",
            "name: \"car*\" is a pattern (names have no '*'), but names must be exact: use the full name, or a label selector",
        ),
    ];
    for (uri, detail) in cases {
        assert_eq!(summary(&fixture.get(uri).await), (400, "badParameter".to_owned(), detail.to_owned()), "{uri}");
    }
}

/// A pattern would be compared as a name and match nothing, which would look as if there were no
/// objects.
#[tokio::test]
async fn a_pattern_for_a_name_is_refused_by_every_list_and_stream() {
    let fixture = ApiFixture::new();
    let lists = [
        ("nodes", &["name"][..]),
        ("services", &["name", "namespace"]),
        ("global-services", &["name", "namespace"]),
        ("service-exports", &["name", "namespace"]),
        ("endpoint-slices", &["name", "namespace"]),
        ("ipcache", &["namespace", "pod", "node"]),
        ("events", &["name", "namespace", "pod"]),
        ("changes", &["name", "namespace", "pod"]),
    ];
    for (list, names) in lists {
        for name in names {
            let (status, code, detail) = summary(&fixture.get(&format!("/v1/{list}?{name}=car*")).await);
            assert_eq!((status, code.as_str()), (400, "badParameter"), "{list} {name}");
            assert!(detail.starts_with(&format!("{name}: ")) && detail.contains("names must be exact"), "{detail}");
        }
    }
}

#[tokio::test]
async fn an_unknown_path_gets_a_suggestion() {
    let fixture = ApiFixture::new();
    let answer = fixture.get("/v1/nothing").await;
    assert_eq!(
        answer.json(),
        json!({
            "type": "/problems/unknownRoute",
            "title": "There is no such path",
            "status": 404,
            "detail": "there is no such path: / lists all paths, /openapi.json describes them",
            "instance": "/v1/nothing",
            "code": "unknownRoute",
        })
    );
    let detail = "there is no such path, perhaps /v1/nodes?cluster=paris: / lists all paths, /openapi.json describes them";
    assert_eq!(summary(&fixture.get("/v1/nodes/paris").await), (404, "unknownRoute".to_owned(), detail.to_owned()));
}

#[tokio::test]
async fn wrong_methods_paths_and_media_types_are_problems() {
    let fixture = ApiFixture::new();
    let detail = "/v1/ipcache/lookup supports GET, HEAD and POST, not PUT";
    let put = fixture.send(Request::put("/v1/ipcache/lookup").body(Body::empty()).unwrap()).await;
    assert_eq!(summary(&put), (405, "methodNotAllowed".to_owned(), detail.to_owned()));
    let document: serde_json::Value = serde_json::from_str(crate::api::openapi_json(crate::api::DocumentVersion::V31)).unwrap();
    for path in document["paths"].as_object().unwrap().keys() {
        let path = path.replace("{id}", "5").replace("{ip}", "10.0.0.1").replace(['{', '}'], "");
        let answer = fixture.send(Request::delete(&path).body(Body::empty()).unwrap()).await;
        let allowed = join_names(&answer.header("allow").split(',').collect::<Vec<_>>());
        assert_eq!(summary(&answer), (405, "methodNotAllowed".to_owned(), format!("{path} supports {allowed}, not DELETE")));
    }
    let detail = "the path has an escape that is not UTF-8: write %C3%A9 for é, and %2F for a slash in a name";
    assert_eq!(summary(&fixture.get("/v1/nodes/paris/%FF").await), (400, "badRequest".to_owned(), detail.to_owned()));
    let pick = Request::get("/v1/events").header("accept", "text/html").body(Body::empty()).unwrap();
    let detail = "this path answers in text/event-stream or application/x-ndjson: accept one of them";
    assert_eq!(summary(&fixture.send(pick).await), (406, "notAcceptable".to_owned(), detail.to_owned()));
}

#[tokio::test]
async fn an_invalid_batch_is_a_problem() {
    let fixture = ApiFixture::new();
    let post = |kind: &str, body: String| Request::post("/v1/ipcache/lookup").header("content-type", kind).body(Body::from(body)).unwrap();
    let many = |count: usize| format!(r#"{{"ips":[{}]}}"#, vec![r#""10.0.0.1""#; count].join(","));
    let another = r#"the body is not the expected JSON: send a body such as {"ips":["10.1.2.40","fd00::1"]}, with the member ips (a list of strings) and no other"#;
    let unmarked = r#"the content type must be application/json: send Content-Type: application/json and a body such as {"ips":["10.1.2.40","fd00::1"]}"#;
    let cases = [
        (post("text/plain", many(1)), 415, "unsupportedMediaType", unmarked),
        (
            post("application/json", "{".to_owned()),
            400,
            "badRequest",
            r#"the body is not JSON: send a body such as {"ips":["10.1.2.40","fd00::1"]}"#,
        ),
        (post("application/json", r#"{"ip":[]}"#.to_owned()), 400, "badRequest", another),
        (post("application/json", r#"{"ips":[7]}"#.to_owned()), 400, "badRequest", another),
        (
            post("application/json", many(10_001)),
            400,
            "badParameter",
            "ips: 10001 addresses are too many: send at most 10000 in one request",
        ),
        (post("application/json", many(200_000)), 413, "tooLarge", "a body may have at most 1048576 bytes: send several requests"),
    ];
    for (request, status, code, detail) in cases {
        assert_eq!(summary(&fixture.send(request).await), (status, code.to_owned(), detail.to_owned()));
    }
    let answer = fixture.send(post("application/json", many(10_000))).await;
    assert_eq!((answer.status, answer.json()["items"].as_array().unwrap().len()), (StatusCode::OK, 10_000));
}

#[tokio::test]
async fn a_filter_with_an_unknown_name_gets_a_warning() {
    let fixture = ApiFixture::new();
    for (uri, warning) in [
        ("/v1/nodes?cluster=elsewhere", "cluster: there is no cluster elsewhere, /v1/clusters lists all clusters"),
        ("/v1/problems?cluster=elsewhere", "cluster: there is no cluster elsewhere, /v1/clusters lists all clusters"),
        ("/v1/ipcache?node=nobody", "node: there is no node of that name, /v1/nodes lists all nodes"),
    ] {
        assert_eq!(fixture.json(uri).await["warnings"], json!([warning]), "{uri}");
    }
    for uri in ["/v1/nodes?cluster=paris", "/v1/ipcache?node=192.0.2.1", "/v1/ipcache?node=paris-worker-1"] {
        assert_eq!(fixture.json(uri).await["warnings"], json!(null), "{uri}");
    }
}

#[tokio::test]
async fn each_problem_type_has_a_page() {
    let fixture = ApiFixture::new();
    let index = String::from_utf8(fixture.get("/problems").await.bytes).unwrap();
    for code in ProblemCode::ALL {
        let page = fixture.get(&format!("/problems/{}", code.api_name())).await;
        assert_eq!((page.status, page.header("content-type")), (StatusCode::OK, "text/html; charset=utf-8"));
        let text = String::from_utf8(page.bytes).unwrap();
        assert!(text.contains(&format!("<h1>{}</h1>\n<p><code>{}</code>, HTTP status", code.title(), code.api_name())), "{text}");
        assert!(index.contains(&format!("<a href=\"/problems/{}\">", code.api_name())), "{index}");
    }
    let detail = "there is no problem of that name, perhaps /problems/tooOld: /problems lists all";
    assert_eq!(summary(&fixture.get("/problems/toOld").await), (404, "notFound".to_owned(), detail.to_owned()));
}

#[tokio::test]
async fn an_answer_older_than_max_age_is_refused_with_its_age() {
    let fixture = ApiFixture::new();
    // tokyo was last contacted long ago, paris just now
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
async fn lookups_get_503_while_the_store_loads() {
    let fixture = ApiFixture::new();
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
async fn the_health_of_the_etcd_api_says_why_it_is_not_healthy() {
    let mut fixture = ApiFixture::new();
    let state = ApiState::new(fixture.handle.clone(), fixture.stop.clone());
    fixture.router = etcd::router(state, Guard::open_to_all(), None);
    let answer = fixture.get("/health").await;
    assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({ "health": "true", "reason": "" })));
    fixture.unload();
    let answer = fixture.get("/health").await;
    assert_eq!((answer.status.as_u16(), answer.json()), (503, json!({ "health": "false", "reason": "the store is still loading" })));
    fixture.stop.cancel();
    let answer = fixture.get("/health").await;
    assert_eq!((answer.status.as_u16(), answer.json()), (503, json!({ "health": "false", "reason": "shutting down" })));
}

#[tokio::test]
async fn a_panic_of_a_handler_is_a_problem() {
    let fixture = ApiFixture::new();
    let broken: axum::Router = axum::Router::new().route("/broken", axum::routing::get(broken));
    let router = broken
        .layer(tower_http::catch_panic::CatchPanicLayer::custom(crate::api::router::handle_panic))
        .layer(axum::middleware::from_fn(crate::api::render::errors::render));
    let mut fixture = fixture;
    fixture.router = router;
    assert_eq!(summary(&fixture.get("/broken").await).1, "internal");
}

async fn broken() -> &'static str {
    panic!("broken on purpose")
}
