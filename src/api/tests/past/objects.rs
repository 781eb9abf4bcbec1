//! Single objects at an earlier time, and the last version of an identity that is gone.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{at_time, candidates};
use crate::admission::Client;
use crate::api::tests::fixture::{ApiFixture, cluster, key, pod, put, service};
use crate::api::tests::lists::decoded::slice;
use crate::api::tests::lists::history::{apply, at, commands, first_list, text};
use crate::model::*;

/// Key of an address that changes in tests of imprecise times.
const ADDRESS: &str = "/v1/ipcache/10.1.4.1";

fn address(identity: u32) -> Command {
    apply(put(key(Kind::Ip, "paris", "10.1.4.1"), pod("10.1.4.1", identity, "172.18.1.2"), i64::from(identity)))
}

/// Returns a mesh in which an address changes from 70001 to 70002 between the seconds 100 and 200.
pub(super) fn mesh_with_outage() -> ApiFixture {
    let scope = Scope { cluster: cluster("paris"), kind: Kind::Ip };
    let changes = [
        (at(20), address(70_001)),
        (at(200), Command::BeginObservationGap { scope: scope.clone(), last_contact: Some(at(100)) }),
        (at(200), address(70_002)),
        (at(200), apply(put(key(Kind::Ip, "paris", "10.1.9.9"), pod("10.1.9.9", 70_009, "172.18.1.2"), 200))),
        (at(200), Command::EndObservationGap(scope)),
    ];
    ApiFixture::with_history(first_list("paris", 0).into_iter().chain(changes))
}

/// Returns a mesh whose clock is set back from second 110 to 105.
pub(super) fn mesh_with_clock_jump() -> ApiFixture {
    let changes = [(at(100), address(70_001)), (at(110), address(70_002)), (at(105), address(70_003)), (at(120), address(70_004))];
    ApiFixture::with_history(first_list("paris", 0).into_iter().chain(changes))
}

#[tokio::test]
async fn a_single_object_is_as_it_was() {
    let mut commands = commands();
    commands.push((at(80), apply(put(key(Kind::Service, "paris", "shop/cart"), service(), 80))));
    commands.push((at(80), apply(slice("paris", "a", 1, 80))));
    commands.push((at(90), apply(Change::Delete { key: key(Kind::Service, "paris", "shop/cart") })));
    commands.push((at(90), apply(Change::Delete { key: key(Kind::EndpointSlice, "paris", "shop/a") })));
    let fixture = ApiFixture::with_history(commands);
    let found = async |path: &str, seconds: u64, member: &str| {
        let answer = fixture.get(&at_time(path, seconds)).await;
        let object = answer.json();
        if answer.status == StatusCode::OK {
            let meta = &object["meta"];
            let expected = json!([text(seconds), true, null, null, "paris"]);
            assert_eq!(json!([meta["at"], meta["complete"], meta["gaps"], meta["candidates"], meta["cluster"]]), expected, "{object}");
        } else {
            let detail = format!("did not exist at {}: /v1/history?", text(seconds));
            assert!(object["detail"].as_str().unwrap().contains(&detail) && answer.status == StatusCode::NOT_FOUND, "{object}");
        }
        object[member].clone()
    };
    let (pod, identity) = ("/v1/ipcache/10.1.2.40", "/v1/identities/70001");
    for (path, member, expected) in [
        (pod, "identity", [(15, Value::Null), (25, json!(70_001)), (35, json!(70_002)), (45, Value::Null), (65, json!(70_003))].to_vec()),
        (identity, "id", vec![(5, Value::Null), (15, json!(70_001)), (55, Value::Null)]),
        ("/v1/nodes/paris/worker-1", "name", vec![(25, json!("worker-1"))]),
        ("/v1/services/paris/shop/cart", "name", vec![(75, Value::Null), (85, json!("cart")), (95, Value::Null)]),
        ("/v1/endpoint-slices/paris/shop/a", "namespace", vec![(75, Value::Null), (85, json!("shop")), (95, Value::Null)]),
        ("/v1/service-exports/paris/shop/cart", "name", vec![(85, Value::Null)]),
    ] {
        for (seconds, value) in expected {
            assert_eq!(found(path, seconds, member).await, value, "{path} {seconds}");
        }
    }
    assert_eq!(found(identity, 15, "labels").await["k8s:app"], "cart");
    assert_eq!(fixture.json(&at_time("/v1/identities/2", 15)).await["reserved"], "world");
}

#[tokio::test]
async fn an_object_that_changed_unobserved_has_both_versions() {
    let fixture = mesh_with_outage();
    for (seconds, identity, expected) in [(50, 70_001, vec![]), (150, 70_001, vec![70_001, 70_002]), (250, 70_002, vec![])] {
        let answer = fixture.json(&at_time(ADDRESS, seconds)).await;
        let meta = &answer["meta"];
        assert_eq!((answer["identity"].as_u64(), candidates(meta)), (Some(identity), expected.clone()), "{answer}");
        let gaps = if expected.is_empty() {
            Value::Null
        } else {
            json!([{"cluster": "paris", "kind": "ipcache", "from": text(100), "to": text(200)}])
        };
        assert_eq!((&meta["complete"], &meta["gaps"]), (&json!(expected.is_empty()), &gaps), "{answer}");
    }
    let between = json!({"changedBetween": [text(100), text(200)]});
    let candidates_of = fixture.json(&at_time(ADDRESS, 150)).await["meta"]["candidates"].clone();
    assert_eq!((&candidates_of[0]["to"], &candidates_of[1]["from"]), (&between, &between), "{candidates_of}");
    // an object that may not have existed yet
    let new = fixture.json(&at_time("/v1/ipcache/10.1.9.9", 150)).await;
    assert_eq!((new["identity"].as_u64(), candidates(&new["meta"])), (Some(70_009), vec![70_009]), "{new}");
    let unknown = fixture.json(&at_time("/v1/ipcache/10.1.9.8", 150)).await;
    let detail = format!("it is not known whether an entry 10.1.9.8/32 existed at {}", text(150));
    assert!(unknown["detail"].as_str().unwrap().starts_with(&detail), "{unknown}");
}

#[tokio::test]
async fn a_time_that_occurred_twice_has_both_versions() {
    let fixture = mesh_with_clock_jump();
    for (seconds, identity, expected) in [(102, 70_001, vec![]), (107, 70_001, vec![70_001, 70_003]), (125, 70_004, vec![])] {
        let answer = fixture.json(&at_time(ADDRESS, seconds)).await;
        assert_eq!((answer["identity"].as_u64(), candidates(&answer["meta"])), (Some(identity), expected.clone()), "{answer}");
        assert_eq!(answer["meta"]["complete"], expected.is_empty(), "{answer}");
    }
}

#[tokio::test]
async fn an_identity_that_is_gone_has_its_last_version() {
    let fixture = ApiFixture::with_history(commands());
    let gone = fixture.get("/v1/identities/70001").await;
    let (status, problem) = (gone.status, gone.json());
    let last = &problem["lastVersion"];
    let version =
        json!([last["kind"], last["object"]["cluster"], last["object"]["labels"]["k8s:app"], last["from"], last["to"], last["ended"]]);
    let expected = json!(["identity", "paris", "cart", {"changedAt": text(10)}, {"changedAt": text(50)}, "deleted"]);
    assert_eq!((status, version), (StatusCode::NOT_FOUND, expected), "{problem}");
    for never in ["/v1/identities/70009", "/v1/identities/70001?cluster=tokyo"] {
        let problem = fixture.json(never).await;
        assert_eq!((&problem["status"], &problem["lastVersion"]), (&json!(404), &Value::Null), "{problem}");
    }
    let scanners: Vec<_> = std::iter::from_fn(|| fixture.scans.admit(Client::Local).ok()).collect();
    let while_busy = fixture.json("/v1/identities/70001").await;
    assert_eq!((&while_busy["status"], &while_busy["lastVersion"]), (&json!(404), &Value::Null), "{while_busy}");
    drop(scanners);
    // a mesh without a history
    assert_eq!(ApiFixture::new().get("/v1/identities/70001").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn other_routes_refuse_a_time() {
    let fixture = ApiFixture::with_history(commands());
    for path in [
        "/v1/status",
        "/v1/clusters",
        "/v1/clusters/paris",
        "/v1/entries/cilium/cache/nodes/v1/paris/worker-1",
        "/v1/global-services",
        "/v1/global-services/shop/cart",
        "/v1/problems",
        "/v1/rejected",
        "/v1/impact?cluster=paris",
        "/v1/history?ip=10.1.2.40",
        "/v1/events",
        "/v1/changes",
    ] {
        let answer = fixture.get(&at_time(path, 15)).await;
        let detail = answer.json()["detail"].to_string();
        assert!(answer.status == StatusCode::BAD_REQUEST && detail.starts_with("\"at: "), "{path} {detail}");
    }
    let aged = fixture.get(&at_time("/v1/nodes/paris/worker-1?maxAge=60", 15)).await;
    assert_eq!(
        (aged.status, aged.json()["detail"].as_str()),
        (StatusCode::BAD_REQUEST, Some("maxAge: is only for the newest data: omit maxAge or at"))
    );
}
