//! Explanations of an address at an earlier time.

use serde_json::{Value, json};

use super::objects::mesh_with_outage;
use super::{at_time, candidates};
use crate::api::tests::fixture::{ApiFixture, key, pod, put};
use crate::api::tests::lists::history::{apply, at, commands, text};
use crate::model::{IpEntry, Kind, Object, ObjectPrefix};

#[tokio::test]
async fn an_explanation_has_the_entries_and_the_node_of_the_time() {
    let range = Object::Ip(IpEntry {
        prefix: ObjectPrefix { net: "10.1.2.0/24".parse().unwrap(), host: false },
        ..pod("10.1.2.1", 2, "172.18.1.2").as_ip().unwrap().clone()
    });
    let range = (at(5), apply(put(key(Kind::Ip, "paris", "10.1.2.0/24"), range, 5)));
    // the list of the cluster comes first
    let mut commands = commands();
    commands.insert(commands.iter().position(|(time, _)| *time > at(5)).unwrap(), range);
    let fixture = ApiFixture::with_history(commands);
    let answer = fixture.json(&at_time("/v1/explain/10.1.2.40", 25)).await;
    let entries: Vec<Value> =
        answer["entries"].as_array().unwrap().iter().map(|entry| json!([entry["prefix"], entry["verdict"], entry["origin"]])).collect();
    assert_eq!(entries, [json!(["10.1.2.40/32", "wins", null]), json!(["10.1.2.0/24", "lessSpecific", null])], "{answer}");
    let found = &answer["match"];
    let expected = json!([70_001, "cart", "worker-1", "worker-1"]);
    assert_eq!(json!([found["identity"], found["labels"]["k8s:app"], found["nodeName"], answer["node"]["name"]]), expected, "{answer}");
    let meta = &answer["meta"];
    assert_eq!(json!([meta["at"], meta["complete"], meta["cluster"]]), json!([text(25), true, "paris"]));
    for unknown in ["services", "problems", "complete", "hints"] {
        assert_eq!(answer[unknown], Value::Null, "{unknown}");
    }
    let range = fixture.json(&at_time("/v1/explain/10.1.2.0%2F24", 45)).await;
    assert_eq!((&range["match"]["prefix"], range["entries"].as_array().unwrap().len()), (&json!("10.1.2.0/24"), 1), "{range}");
}

#[tokio::test]
async fn an_explanation_at_an_imprecise_time_has_the_candidates() {
    let answer = mesh_with_outage().json(&at_time("/v1/explain/10.1.4.1", 150)).await;
    assert_eq!((&answer["meta"]["complete"], candidates(&answer["meta"])), (&json!(false), vec![70_001, 70_002]), "{answer}");
}
