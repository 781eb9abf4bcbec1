//! The change stream in single answers, and patches.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::time::Duration;

use super::streams::name_and_phase;
use crate::api::tests::fixture::{ApiFixture, HEAD, cluster, identity, key, node, pod, put};
use crate::model::{Backend, Change, Kind, Object, Port, Service};

fn types(answer: &Value) -> Vec<&str> {
    answer["events"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect()
}

fn position(sequence: u64) -> String {
    format!("v1.000000000000feed.{sequence}")
}

/// A client that builds its state from single answers only.
#[derive(Default)]
struct ChangesClient {
    state: BTreeMap<String, Value>,
    position: Option<String>,
}

impl ChangesClient {
    /// Sends one request. Returns true if the client is up to date.
    async fn ask(&mut self, fixture: &ApiFixture, parameters: &str) -> bool {
        let start = self.position.as_ref().map_or("snapshot=true".to_owned(), |position| format!("after={position}"));
        let answer = fixture.json(&format!("/v1/changes?{start}&{parameters}")).await;
        if answer.get("reset").is_some() {
            assert_eq!(types(&answer)[0], "reset");
        }
        let events = answer["events"].as_array().unwrap_or_else(|| panic!("{answer}"));
        for event in events {
            match event["type"].as_str().unwrap() {
                "reset" => self.state.clear(),
                "upsert" => drop(self.state.insert(event["key"].as_str().unwrap().to_owned(), event["object"].clone())),
                "cluster" => drop(self.state.insert(event["key"].as_str().unwrap().to_owned(), name_and_phase(&event["object"]))),
                "delete" => drop(self.state.remove(event["key"].as_str().unwrap())),
                "synced" => assert_eq!(event["position"], answer["nextPosition"]),
                other => panic!("{other}"),
            }
        }
        let more = answer["more"].as_bool().unwrap();
        assert_eq!(more, types(&answer).last() != Some(&"synced"));
        self.position = Some(answer["nextPosition"].as_str().unwrap().to_owned());
        !more
    }
}

async fn listed(fixture: &ApiFixture, filter: &str) -> Vec<Value> {
    let mut listed = Vec::new();
    for list in ["identities", "ipcache", "nodes", "services"] {
        listed.extend(fixture.json(&format!("/v1/{list}?{filter}")).await["items"].as_array().unwrap().clone());
    }
    listed.extend(fixture.json(&format!("/v1/clusters?{filter}")).await["items"].as_array().unwrap().iter().map(name_and_phase));
    listed
}

#[tokio::test]
async fn a_long_polling_client_gets_the_state_of_the_lists() {
    for seed in 0..6 {
        let mut random = StdRng::seed_from_u64(seed);
        let fixture = ApiFixture::new();
        let filters = ["limit=2", "limit=1&cluster=paris", "limit=3"];
        let mut clients: Vec<ChangesClient> = filters.iter().map(|_| ChangesClient::default()).collect();
        for revision in 100..180 {
            let number = random.random_range(0..8_u8);
            let address = format!("10.9.2.{number}");
            let change = match random.random_range(0..4) {
                0 => Change::Delete { key: key(Kind::Ip, "paris", &address) },
                1 => put(
                    key(Kind::Identity, "paris", &(70_000 + u32::from(number)).to_string()),
                    identity(70_000 + u32::from(number), "a"),
                    revision,
                ),
                _ => put(key(Kind::Ip, "paris", &address), pod(&address, 68_353, "172.18.1.2"), revision),
            };
            let uri = format!("/v1/entries?prefix=cilium/cache/ip/v1/paris/{address}");
            if !matches!(change, Change::Delete { .. }) || fixture.json(&uri).await["items"] != json!([]) {
                fixture.change(change).await;
            }
            for (client, filter) in clients.iter_mut().zip(filters) {
                client.ask(&fixture, filter).await;
            }
        }
        for (client, filter) in clients.iter_mut().zip(filters) {
            while !client.ask(&fixture, filter).await {}
            let cluster = if filter.contains("paris") { "cluster=paris" } else { "" };
            let sorted = |mut objects: Vec<Value>| {
                objects.sort_by_key(ToString::to_string);
                objects
            };
            let state = client.state.values().cloned().collect();
            assert_eq!(sorted(state), sorted(listed(&fixture, cluster).await), "seed {seed}, {filter}");
        }
    }
}

#[tokio::test]
async fn an_answer_starts_a_snapshot_and_resumes_from_any_position() {
    let fixture = ApiFixture::new();
    let first = fixture.json("/v1/changes?snapshot=true&kind=node&limit=1").await;
    assert_eq!((types(&first), &first["more"], &first["reset"]), (vec!["reset", "upsert"], &json!(true), &json!("initial")));
    let place = first["nextPosition"].as_str().unwrap().to_owned();
    let second = fixture.json(&format!("/v1/changes?after={place}&kind=node")).await;
    assert_eq!((types(&second), &second["more"], second.get("reset")), (vec!["upsert", "synced"], &json!(false), None));
    assert_eq!((&second["events"][1]["mode"], &second["events"][1]["count"]), (&json!("snapshot"), &json!(2)));
    assert_eq!(second["nextPosition"], json!(position(HEAD)));
    fixture.change(put(key(Kind::Node, "paris", "paris-worker-9"), node("paris-worker-9", "172.18.1.9", "a"), 40)).await;
    let third = fixture.json(&format!("/v1/changes?after={}", position(HEAD))).await;
    // the node and the three entries derived from it
    let expected = vec!["upsert", "upsert", "upsert", "upsert", "synced"];
    assert_eq!((types(&third), &third["nextPosition"]), (expected, &json!(position(HEAD + 4))));
    assert_eq!((&third["events"][4]["mode"], &third["events"][4]["count"]), (&json!("replay"), &json!(4)));
    let now = fixture.json("/v1/changes").await;
    assert_eq!((types(&now), &now["nextPosition"]), (vec!["synced"], &json!(position(HEAD + 4))));

    let other = fixture.get(&format!("/v1/changes?after={place}&kind=service")).await;
    assert_eq!((other.status.as_u16(), other.json()["code"].clone()), (400, json!("badParameter")));
    for (query, status) in [("waitSeconds=61", 400), ("limit=0", 400), ("limit=10001", 400), ("patch=true", 400)] {
        assert_eq!(fixture.get(&format!("/v1/changes?{query}")).await.status.as_u16(), status, "{query}");
    }
    for (after, reason) in [("v1.00000000deadbeef.1", "foreignEpoch"), (&*position(1_000), "rolledBack")] {
        let answer = fixture.json(&format!("/v1/changes?after={after}")).await;
        assert_eq!((types(&answer)[0], &answer["reset"]), ("reset", &json!(reason)), "{after}");
        assert_eq!(fixture.get(&format!("/v1/changes?onExpired=fail&after={after}")).await.status.as_u16(), 410, "{after}");
    }
    for after in ["x", "v9.00000000deadbeef.1", "c1.x"] {
        for more in ["", "&onExpired=fail", "&snapshot=true"] {
            let refused = fixture.get(&format!("/v1/changes?after={after}{more}")).await;
            assert_eq!((refused.status.as_u16(), &refused.json()["code"]), (400, &json!("badParameter")), "{after}{more}");
        }
    }
    // the continuation of a snapshot is not a position of the stream
    let stream = fixture.get(&format!("/v1/events?onExpired=fail&after={place}")).await;
    assert_eq!(stream.status.as_u16(), 400);
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_events_is_sent_at_the_end_of_the_wait() {
    let fixture = ApiFixture::new();
    let began = tokio::time::Instant::now();
    let idle = fixture.json(&format!("/v1/changes?after={}&waitSeconds=60&kind=node", position(HEAD))).await;
    assert_eq!((types(&idle), began.elapsed().as_secs()), (vec!["synced"], 60));
    assert_eq!(idle["nextPosition"], json!(position(HEAD)));

    let stop = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        fixture.stop.cancel();
    };
    let began = tokio::time::Instant::now();
    let uri = format!("/v1/changes?after={}&waitSeconds=60", position(HEAD));
    let (answer, ()) = tokio::join!(fixture.json(&uri), stop);
    assert_eq!((types(&answer), began.elapsed().as_secs()), (vec!["synced"], 5));
}

#[tokio::test]
async fn an_answer_waits_for_a_matching_event() {
    let fixture = ApiFixture::new();
    let began = std::time::Instant::now();
    let uri = format!("/v1/changes?after={}&waitSeconds=60&kind=node", position(HEAD));
    let change = async {
        fixture.change(put(key(Kind::Identity, "paris", "70000"), identity(70_000, "other"), 39)).await;
        fixture.change(put(key(Kind::Node, "paris", "paris-worker-9"), node("paris-worker-9", "172.18.1.9", "a"), 40)).await;
    };
    let (answer, ()) = tokio::join!(fixture.json(&uri), change);
    assert_eq!((types(&answer), &answer["nextPosition"]), (vec!["upsert", "synced"], &json!(position(HEAD + 5))));
    assert!(began.elapsed() < Duration::from_secs(30), "must not wait to the end");
}

fn large_service(changed: u16) -> Object {
    let backend = |number: u16| Backend {
        ip: std::net::IpAddr::from([10, 8, number.to_be_bytes()[0], number.to_be_bytes()[1]]),
        ports: [Port { name: "http".to_owned(), protocol: "TCP".to_owned(), port: if number == 2_500 { changed } else { 80 } }].into(),
        hostname: String::new(),
        zone: None,
    };
    let backends = (0..5_000).map(backend).collect();
    Object::Service(Service { namespace: "shop".to_owned(), name: "large".to_owned(), backends, ..Service::default() })
}

#[tokio::test]
async fn a_patch_of_one_backend_has_less_than_a_kibibyte() {
    let fixture = ApiFixture::new();
    let large = key(Kind::Service, "paris", "shop/large");
    fixture.change(put(large.clone(), large_service(80), 50)).await;
    let uri = format!("/v1/events?patch=true&after={}", position(HEAD + 1));
    let mut client = super::streams::StreamClient::open(&fixture, &uri, &[]).await;
    client.until("synced").await;
    fixture.change(put(large.clone(), large_service(81), 51)).await;
    let event = client.block("\n\n").await.unwrap();
    assert!(event.len() < 1_024, "{} bytes", event.len());
    let mut data: Value = serde_json::from_str(event.split_once("data: ").unwrap().1).unwrap();
    assert!(data["meta"].as_object_mut().unwrap().remove("changedAt").is_some(), "{data}");
    let backend = json!({ "ip": "10.8.9.196", "ports": [{ "name": "http", "protocol": "TCP", "port": 81 }] });
    let expected = json!({
        "type": "patch",
        "kind": "service",
        "key": large.to_string(),
        "backends": { "upserted": [backend], "removed": [] },
        "meta": { "cluster": cluster("paris").to_string(), "revision": 51, "position": position(HEAD + 2) },
    });
    assert_eq!(data, expected);
    assert!(event.starts_with(&format!("event: patch\nid: {}\n", position(HEAD + 2))), "{event}");
}

/// A service with this number of backends, about 130 bytes each once encoded.
fn service_of(name: &str, backends: u32) -> Change {
    let port = Port { name: "http".to_owned(), protocol: "TCP".to_owned(), port: 80 };
    let backend = |number: u32| Backend {
        ip: std::net::Ipv4Addr::from(0x0a00_0000 + number).into(),
        ports: [port.clone()].into(),
        hostname: String::new(),
        zone: None,
    };
    let service = Service {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        backends: (0..backends).map(backend).collect(),
        ..Service::default()
    };
    put(key(Kind::Service, "paris", &format!("shop/{name}")), Object::Service(service), i64::from(backends))
}

#[tokio::test]
async fn an_answer_has_at_most_four_mebibytes_and_at_least_one_event() {
    let fixture = ApiFixture::new();
    for number in 0..8 {
        fixture.change(service_of(&format!("large{number}"), 10_000)).await;
    }
    // an event as large as a whole answer, which is sent before the others
    fixture.change(service_of("large", 55_000)).await;
    for (start, kinds) in [("snapshot=true".to_owned(), "kind=service"), (format!("after={}", position(HEAD)), "")] {
        let (mut position, mut names, mut answers) = (start, Vec::new(), 0);
        loop {
            let answer = fixture.get(&format!("/v1/changes?{position}&{kinds}&limit=1000")).await;
            let json = answer.json();
            let large: Vec<String> = json["events"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|event| Some(event["key"].as_str()?.rsplit('/').next()?.to_owned()))
                .filter(|name| name.starts_with("large"))
                .collect();
            // the limit for all events but the last, plus the size of the last event
            let most = if large.iter().any(|name| name == "large") { 9 << 20 } else { 6 << 20 };
            assert!(answer.bytes.len() < most, "{} bytes with {large:?}", answer.bytes.len());
            answers += 1;
            names.extend(large);
            if json["more"] != true {
                break;
            }
            position = format!("after={}", json["nextPosition"].as_str().unwrap());
        }
        names.sort();
        names.dedup();
        assert_eq!((names.len(), answers >= 2), (9, true), "{names:?} in {answers} answers");
    }
}
