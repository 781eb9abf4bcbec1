//! State of `meshkeep reflect`: status and metrics, and a finding only if something is wrong.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::api::tests::fixture::ApiFixture;
use crate::handle::Reflection;

async fn problems(fixture: &ApiFixture) -> Vec<Value> {
    let items = fixture.get("/v1/problems?kind=targetUnwritable").await.json()["items"].clone();
    serde_json::from_value(items).unwrap()
}

#[tokio::test]
async fn the_status_of_reflection_is_reported() {
    let fixture = ApiFixture::new();
    let status = async || fixture.get("/v1/status").await.json()["reflection"].clone();
    assert_eq!(status().await, Value::Null, "serve does not reflect");
    let now = Arc::new(Mutex::new(Reflection::default()));
    let reported = Arc::clone(&now);
    fixture.handle.set_reflection_source(move || reported.lock().unwrap().clone());
    let nothing = json!({"leader": false, "clusters": 0, "waiting": 0, "lagSeconds": 0.0, "written": 0, "deleted": 0, "failed": 0});
    assert_eq!((status().await, problems(&fixture).await), (nothing, Vec::new()));
    let last_error = Some(("etcdserver: mvcc: database space exceeded".to_owned(), SystemTime::UNIX_EPOCH));
    *now.lock().unwrap() = Reflection {
        is_leader: true,
        clusters: 2,
        waiting: 5,
        lag: Duration::from_millis(1500),
        written: 7,
        deleted: 3,
        failed: 9,
        error: last_error.as_ref().map(|(error, _)| error.clone()),
        last_error,
    };
    let full = status().await;
    assert_eq!((&full["leader"], &full["lagSeconds"], &full["lastErrorTime"]), (&json!(true), &json!(1.5), &json!("1970-01-01T00:00:00Z")));
    let found = problems(&fixture).await;
    assert_eq!((found.len(), &found[0]["severity"]), (1, &json!("critical")));
    assert!(found[0]["detail"].as_str().unwrap().contains("database space exceeded"), "{found:?}");
    let metrics = String::from_utf8(fixture.get("/metrics").await.bytes).unwrap();
    for line in [
        "meshkeep_reflect_leader 1",
        "meshkeep_reflect_waiting_keys 5",
        "meshkeep_reflect_lag_seconds 1.5",
        "meshkeep_reflect_keys_total{outcome=\"deleted\"} 3",
        "meshkeep_reflect_failing 1",
        "meshkeep_problems{kind=\"targetUnwritable\",severity=\"critical\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}");
    }
    now.lock().unwrap().error = None;
    assert_eq!((problems(&fixture).await, status().await["lastError"].is_string()), (Vec::new(), true));
}
