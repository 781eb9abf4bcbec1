//! `fields=`: the selected members, in both formats.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use super::lines::without_age;
use crate::api::tests::fixture::ApiFixture;

async fn detail(fixture: &ApiFixture, uri: &str) -> String {
    let answer = fixture.get(uri).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["code"]), (400, &json!("badParameter")), "{uri}");
    answer.json()["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_list_has_only_the_selected_fields() {
    let fixture = ApiFixture::new();
    for (uri, expected) in [
        (
            "/v1/nodes?cluster=paris&fields=name,labels.zone,addresses.ip",
            json!([{ "name": "paris-worker-1", "addresses": [{ "ip": "172.18.1.2" }], "labels": { "zone": "a" } }]),
        ),
        ("/v1/nodes?cluster=paris&fields=labels.none", json!([{ "labels": {} }])),
        (
            "/v1/services?fields=backends.ports.port,frontends.ip",
            json!([{ "frontends": [{ "ip": "172.20.0.9" }], "backends": [{ "ports": [{ "port": 80 }] }] }]),
        ),
        ("/v1/identities?cluster=tokyo&fields=id,labels.k8s:app", json!([{ "id": 68352, "labels": { "k8s:app": "cart" } }])),
        ("/v1/identities/68352/ips?cluster=tokyo&fields=prefix", json!([{ "prefix": "10.1.2.40/32" }])),
    ] {
        let page = fixture.json(uri).await;
        assert_eq!(page["items"], expected, "{uri}");
        assert!(page["meta"]["position"].is_string());
        let request = Request::get(uri).header("accept", "application/x-ndjson").body(Body::empty()).unwrap();
        let text = String::from_utf8(fixture.send(request).await.bytes).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (last, items) = lines.split_last().unwrap();
        assert_eq!((&json!(items), last["meta"]["position"].is_string()), (&expected, true), "{uri}");
    }
}

/// Every member of an item is a field of its list.
#[tokio::test]
async fn every_field_of_every_list_can_be_selected() {
    let fixture = ApiFixture::new();
    for list in [
        "clusters",
        "nodes",
        "services",
        "global-services",
        "identities",
        "identities/68352/ips",
        "ipcache",
        "entries",
        "rejected",
        "problems",
    ] {
        let whole = fixture.json(&format!("/v1/{list}?limit=1")).await["items"][0].clone();
        let Some(members) = whole.as_object() else {
            assert_eq!(list, "problems", "the mesh of the fixture has some of each");
            continue;
        };
        let names: Vec<&str> = members.keys().map(String::as_str).collect();
        let found = fixture.json(&format!("/v1/{list}?limit=1&fields={}", names.join(","))).await["items"][0].clone();
        assert_eq!(without_age(found), without_age(whole), "{list}");
    }
}

#[tokio::test]
async fn an_unknown_field_is_refused_with_the_nearest_name() {
    let fixture = ApiFixture::new();
    let reported = detail(&fixture, "/v1/identities?fields=id,lables").await;
    assert!(
        reported.starts_with(
            "fields: these items have no field \"lables\", did you mean labels? They have changedAt, changedBetween, cluster, "
        ),
        "{reported}"
    );
    let reported = detail(&fixture, "/v1/services?fields=backends.colour").await;
    assert!(reported.starts_with("fields: these items have no field \"colour\": they have hintZones, "), "{reported}");
    let reported = detail(&fixture, "/v1/nodes?fields=name.first").await;
    assert_eq!(reported, "fields: the field has no member \"first\"");
    assert!(detail(&fixture, "/v1/nodes?fields=name,").await.starts_with("fields: these items have no field \"\""));
    assert_eq!(detail(&fixture, "/v1/nodes?fields=name&fields=labels").await, "fields: is repeated: use it once");
    assert!(detail(&fixture, "/v1/nodes/paris/paris-worker-1?fields=name").await.starts_with("fields: is not a parameter of this path"));
}

#[tokio::test]
async fn pages_are_the_same_with_and_without_fields() {
    let fixture = ApiFixture::new();
    let token = fixture.json("/v1/ipcache?limit=1&fields=prefix").await["nextPageToken"].as_str().unwrap().to_owned();
    let page = fixture.json(&format!("/v1/ipcache?limit=1&pageToken={token}")).await;
    assert_eq!(page["items"], json!([fixture.json("/v1/ipcache").await["items"][1]]));
}
