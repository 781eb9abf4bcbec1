//! Lookups of one and of many addresses at an earlier time.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

use super::objects::{mesh_with_clock_jump, mesh_with_outage};
use super::{at_time, candidates};
use crate::api::tests::fixture::{ApiFixture, TestResponse, key};
use crate::api::tests::lists::history::{apply, at, commands, text};
use crate::api::tests::lists::pages::SHORT;
use crate::model::{Change, Kind};

async fn batch(fixture: &ApiFixture, ips: &[&str], at: &str) -> TestResponse {
    let request = Request::post(format!("/v1/ipcache/lookup?at={at}")).header("content-type", "application/json");
    fixture.send(request.body(Body::from(json!({ "ips": ips }).to_string())).unwrap()).await
}

#[tokio::test]
async fn a_lookup_at_an_imprecise_time_has_the_candidates() {
    for (fixture, seconds, expected) in [(mesh_with_outage(), 150, [70_001, 70_002]), (mesh_with_clock_jump(), 107, [70_001, 70_003])] {
        let answer = fixture.json(&at_time("/v1/ipcache/lookup?ip=10.1.4.1", seconds)).await;
        assert_eq!((answer["match"]["identity"].as_u64(), candidates(&answer["meta"])), (Some(expected[0]), expected.to_vec()), "{answer}");
        assert_eq!(answer["meta"]["complete"], false);
    }
    let new = mesh_with_outage().json(&at_time("/v1/ipcache/lookup?ip=10.1.9.9", 150)).await;
    assert_eq!((&new["match"], candidates(&new["meta"])), (&Value::Null, vec![70_009]), "{new}");
}

#[tokio::test]
async fn a_batch_has_the_answers_of_single_lookups() {
    let ips = ["10.1.2.40", "10.1.3.9", "10.1.4.1", "10.1.9.9", "192.0.2.1"];
    for fixture in [
        ApiFixture::with_history(commands()),
        ApiFixture::with_history(commands()).with_scan_limits(SHORT),
        mesh_with_outage(),
        mesh_with_clock_jump(),
    ] {
        for seconds in [15, 25, 45, 65, 107, 150, 250] {
            let many = batch(&fixture, &ips, &text(seconds)).await.json();
            let mut is_complete = true;
            for (ip, item) in ips.iter().zip(many["items"].as_array().unwrap_or_else(|| panic!("{many}"))) {
                let single = fixture.json(&at_time(&format!("/v1/ipcache/lookup?ip={ip}"), seconds)).await;
                let meta = &single["meta"];
                let expected = json!([single["ip"], single["match"], meta["complete"], meta["candidates"]]);
                assert_eq!(json!([item["ip"], item["match"], item["complete"], item["candidates"]]), expected, "{seconds} {item}");
                is_complete &= meta["complete"] == true;
                assert_eq!(many["meta"]["gaps"], meta["gaps"], "{seconds} {ip}");
            }
            let meta = &many["meta"];
            assert_eq!((&meta["at"], &meta["complete"]), (&json!(text(seconds)), &json!(is_complete)), "{many}");
        }
    }
}

#[tokio::test]
async fn a_batch_refuses_a_wrong_time_and_a_wrong_address() {
    let fixture = ApiFixture::with_history(commands());
    for at in ["2025-12-31T23:59:59Z", "yesterday"] {
        assert_eq!(batch(&fixture, &["10.1.2.40"], at).await.status, StatusCode::BAD_REQUEST, "{at}");
    }
    let answer = batch(&fixture, &["x"], &text(25)).await.json();
    assert_eq!((answer["items"][0]["error"].is_string(), &answer["items"][0]["complete"]), (true, &Value::Null), "{answer}");
}

/// After an hour, the mirror knows the times of older changes only to the minute.
#[tokio::test]
async fn answers_have_the_exact_times_of_their_versions() {
    let later = (at(9_000), apply(Change::Delete { key: key(Kind::Node, "paris", "worker-1") }));
    let fixture = ApiFixture::with_history(commands().into_iter().chain([later]));
    assert!(fixture.json("/v1/ipcache/10.1.2.40").await["changedBetween"].is_array());
    let explanation = fixture.json(&at_time("/v1/explain/10.1.2.40", 70)).await;
    let entries = [
        fixture.json(&at_time("/v1/ipcache/lookup?ip=10.1.2.40", 70)).await["match"].clone(),
        fixture.json(&at_time("/v1/ipcache/10.1.2.40", 70)).await,
        batch(&fixture, &["10.1.2.40"], &text(70)).await.json()["items"][0]["match"].clone(),
        explanation["match"].clone(),
        explanation["entries"][0].clone(),
    ];
    for entry in entries {
        assert_eq!((&entry["changedAt"], &entry["changedBetween"]), (&json!(text(60)), &Value::Null), "{entry}");
    }
    let identity = fixture.json(&at_time("/v1/identities/70003", 70)).await;
    assert_eq!(identity["changedAt"], json!(text(61)), "{identity}");
}
