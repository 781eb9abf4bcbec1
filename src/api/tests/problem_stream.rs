//! What looks wrong, in the change stream.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fixture::{Fixture, HEAD, identity, key, put};
use super::streams::Client;
use crate::model::{Change, Kind, Phase};

const UNREACHABLE: &str = "problem/clusterUnreachable/paris";
const DUPLICATE: &str = "problem/duplicateAddress/-/host/10.1.2.40";

/// A mesh in which paris cannot be reached, somebody looks, and a stream of what looks wrong.
async fn watched() -> (Fixture, Client) {
    let fixture = Fixture::of_paris(|status| {
        (status.phase, status.failed_in, status.last_error) = (Phase::BackingOff, Some(Phase::Connecting), Some("refused".to_owned()));
    });
    let fixture = fixture.looked_after();
    let client = Client::open(&fixture, "/v1/events?kind=problem&snapshot=true", &[]).await;
    (fixture, client)
}

/// Reads on until a key is told in an event of that name; returns its data.
async fn told(client: &mut Client, name: &str, wanted: &str, held: &mut BTreeMap<String, Value>) -> Value {
    loop {
        let (event, _, data) = client.until(name).await.pop().expect("the stream must go on");
        let key = data["key"].as_str().unwrap_or_default().to_owned();
        if event == "upsert" {
            held.insert(key.clone(), data["object"].clone());
        }
        if event == name && key == wanted {
            return data;
        }
    }
}

async fn changes(fixture: &Fixture, query: &str) -> Vec<Value> {
    let mut events = Vec::new();
    let mut start = query.to_owned();
    loop {
        let answer = fixture.json(&format!("/v1/changes?{start}")).await;
        let of_objects = answer["events"].as_array().unwrap_or_else(|| panic!("{answer}")).iter();
        events.extend(of_objects.filter(|event| event["kind"].is_string()).cloned());
        if answer["more"] == false {
            return events;
        }
        let filters: Vec<&str> = query.split('&').filter(|one| *one != "snapshot=true" && !one.starts_with("after=")).collect();
        start = format!("after={}&{}", answer["nextPosition"].as_str().unwrap(), filters.join("&"));
    }
}

fn keys(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["key"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn findings_come_change_and_go_as_events_of_their_own() {
    let (fixture, mut client) = watched().await;
    let mut held = BTreeMap::new();
    let came = told(&mut client, "upsert", UNREACHABLE, &mut held).await;
    assert_eq!((&came["kind"], &came["meta"]["cluster"]), (&json!("problem"), &json!("paris")));
    let listed = fixture.json("/v1/problems?kind=clusterUnreachable").await;
    assert_eq!(came["object"], listed["items"][0]);
    told(&mut client, "upsert", DUPLICATE, &mut held).await;
    // as many attempts as there are say nothing new
    let before = fixture.json("/v1/changes?kind=problem").await["nextPosition"].as_str().unwrap().to_owned();
    fixture.paris_is(|status| {
        (status.phase, status.failed_in, status.last_error) = (Phase::BackingOff, Some(Phase::Connecting), Some("no route".to_owned()));
        status.failure_count = 7;
    });
    let changed = told(&mut client, "upsert", UNREACHABLE, &mut held).await;
    assert_eq!(changed["object"]["detail"], "paris cannot be reached: no route");
    fixture.paris_is(|_| {});
    let gone = told(&mut client, "delete", UNREACHABLE, &mut held).await;
    assert_eq!((&gone["reason"], &gone["kind"]), (&json!("deleted"), &json!("problem")));
    let replayed = changes(&fixture, &format!("after={before}&kind=problem&cluster=paris")).await;
    assert_eq!((keys(&replayed), &replayed[0]["type"]), (vec![UNREACHABLE], &json!("delete")));
}

#[tokio::test]
async fn only_who_asks_is_told_and_gets_all_that_are_listed() {
    let (fixture, mut client) = watched().await;
    told(&mut client, "upsert", DUPLICATE, &mut BTreeMap::new()).await;
    let listed = fixture.json("/v1/problems").await;
    let mut ids: Vec<&str> = listed["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    for limit in [1, 2, 500] {
        let told = changes(&fixture, &format!("snapshot=true&kind=problem&limit={limit}")).await;
        let mut found: Vec<&str> = told.iter().map(|event| event["object"]["id"].as_str().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, ids, "{limit}");
    }
    let of_tokyo = changes(&fixture, "snapshot=true&kind=problem&cluster=tokyo").await;
    assert!(keys(&of_tokyo).contains(&DUPLICATE) && !keys(&of_tokyo).contains(&UNREACHABLE), "{of_tokyo:?}");
    for query in ["snapshot=true", "snapshot=true&cluster=paris", "after=v1.000000000000feed.99", "snapshot=true&kind=cluster"] {
        let told = changes(&fixture, query).await;
        assert!(!told.is_empty() && told.iter().all(|event| event["kind"] != "problem"), "{query}");
    }
    // beside others, in one stream
    let both = changes(&fixture, "snapshot=true&kind=problem&kind=cluster").await;
    assert_eq!(keys(&both)[..2], ["cilium/cluster-config/paris", "cilium/cluster-config/tokyo"]);
    assert_eq!(both.len(), 2 + ids.len());
    // a change of another kind is not held up by those of findings, and the other way round
    fixture.change(put(key(Kind::Identity, "paris", "70000"), identity(70_000, "a"), 90)).await;
    fixture.change(Change::Delete { key: key(Kind::Identity, "paris", "70000") }).await;
    assert_eq!(changes(&fixture, &format!("after=v1.000000000000feed.{HEAD}&kind=problem")).await.len(), ids.len());
}
