//! Findings in the change stream.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::streams::Client;
use crate::api::tests::answering::problems::view;
use crate::api::tests::fixture::{Fixture, HEAD, identity, key, pod, put};
use crate::findings::{FindingPublisher, FindingSet, finding};
use crate::handle::{Look, Survey};
use crate::model::{Change, FindingObject, Kind, Phase, Severity};

/// Maximum time for an event: a second or two, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

const UNREACHABLE: &str = "problem/clusterUnreachable/paris";
const DUPLICATE: &str = "problem/duplicateAddress/-/host/10.1.2.40";

/// A mesh in which paris cannot be reached, with published findings, and a stream of them.
async fn watched() -> (Fixture, Client) {
    let fixture = Fixture::of_paris(|status| {
        (status.phase, status.failed_in, status.last_error) = (Phase::BackingOff, Some(Phase::Connecting), Some("refused".to_owned()));
    });
    let fixture = fixture.looked_after();
    let client = Client::open(&fixture, "/v1/events?kind=problem&snapshot=true", &[]).await;
    (fixture, client)
}

/// Reads the next events up to one of this name, which must arrive in time.
async fn until(client: &mut Client, name: &str) -> Value {
    let events = tokio::time::timeout(PATIENCE, client.until(name)).await;
    let (_, _, data) = events.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {name}")).pop().expect("the stream must go on");
    data
}

/// Reads on until an event of this name has the key. Returns its data.
async fn told(client: &mut Client, name: &str, wanted: &str, held: &mut BTreeMap<String, Value>) -> Value {
    loop {
        let data = until(client, name).await;
        let key = data["key"].as_str().unwrap_or_default().to_owned();
        if data["type"] == "upsert" {
            held.insert(key.clone(), data["object"].clone());
        }
        if data["type"] == name && key == wanted {
            return data;
        }
    }
}

/// Reads on until everything that is listed was published, however many scans that takes. Returns
/// the ids.
async fn all_told(fixture: &Fixture, client: &mut Client, held: &mut BTreeMap<String, Value>) -> Vec<String> {
    let listed = fixture.json("/v1/problems").await;
    let mut ids: Vec<String> = listed["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
    ids.sort_unstable();
    loop {
        let told: BTreeSet<&str> = held.values().filter_map(|object| object["id"].as_str()).collect();
        if ids.iter().all(|id| told.contains(id.as_str())) {
            return ids;
        }
        let data = until(client, "upsert").await;
        held.insert(data["key"].as_str().unwrap().to_owned(), data["object"].clone());
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
    all_told(&fixture, &mut client, &mut held).await;
    // more failed attempts publish nothing new
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

/// Without any change: a finding that only the clock causes is found by regular checks.
#[tokio::test]
async fn what_time_makes_is_told_without_any_change() {
    const TOLD_BEFORE: Duration = Duration::from_secs(30 * 86_400);
    const SOON: Duration = Duration::from_millis(1_500);
    let (stuck_since, soon) = (Instant::now().checked_sub(Duration::from_secs(60)).unwrap() + SOON, SystemTime::now() + SOON);
    // there is no other finding, so no event triggers a check
    let fixture = Fixture::of(view(&[]));
    fixture.paris_is(|status| {
        status.certificate_expiry = Some(soon + TOLD_BEFORE);
        (status.phase, status.phase_since) = (Phase::WaitingForCanary, stuck_since);
    });
    let fixture = fixture.looked_after();
    let mut client = Client::open(&fixture, "/v1/events?kind=problem&snapshot=true", &[]).await;
    let mut held = BTreeMap::new();
    let expiring = told(&mut client, "upsert", "problem/certificateExpiring/paris", &mut held).await;
    assert!(SystemTime::now() >= soon, "it was not so when the stream began");
    assert!(expiring["object"]["detail"].as_str().unwrap().ends_with("in 29 days"), "{expiring}");
    if !held.contains_key("problem/clusterStuck/paris") {
        told(&mut client, "upsert", "problem/clusterStuck/paris", &mut held).await;
    }
}

/// A survey of a mesh in which this number of addresses have hosts that no node has.
fn dangling(count: u8) -> (Fixture, Survey) {
    let behind = |number: u8| {
        let ip = format!("10.1.2.{number}");
        put(key(Kind::Ip, "paris", &ip), pod(&ip, 2, &format!("172.18.1.{number}")), 1)
    };
    let fixture = Fixture::of(view(&(0..count).map(behind).collect::<Vec<_>>()));
    let mut look = Look::at(fixture.handle.try_reading().unwrap());
    loop {
        look = match look.advance() {
            ControlFlow::Break(survey) => return (fixture, survey),
            ControlFlow::Continue(look) => look,
        };
    }
}

#[tokio::test]
async fn what_shows_across_keys_is_told_once_it_has_lasted() {
    let (fixture, survey) = dangling(1);
    let reading = fixture.handle.try_reading().unwrap();
    let since = survey.findings_from(None).next().and_then(|finding| survey.since(finding)).unwrap();
    for (age, count) in [(0, 0), (999, 0), (1_000, 1)] {
        let found = FindingSet::of(Vec::new(), Some(&survey), &reading, since + Duration::from_millis(age));
        assert_eq!((FindingPublisher::default().changes(found).len(), age), (count, age));
    }
}

#[tokio::test]
async fn a_finding_that_says_anything_else_is_told_anew_but_not_for_its_time() {
    let fixture = Fixture::of(view(&[]));
    let reading = fixture.handle.try_reading().unwrap();
    let before = finding("staleFile", "x", ["paris"], "detail", "advice");
    type Edit = fn(&mut FindingObject);
    let changes: [(&str, Edit); 6] = [
        ("since", |finding| finding.since = Some("2026-01-01T00:00:00Z".to_owned())),
        ("severity", |finding| finding.severity = Severity::Critical),
        ("detail", |finding| finding.detail = "another".to_owned()),
        ("advice", |finding| finding.advice = "another".to_owned()),
        ("count", |finding| finding.count = Some(2)),
        ("key", |finding| finding.key = Some("another".to_owned())),
    ];
    for (member, change) in changes {
        let (mut publisher, mut after) = (FindingPublisher::default(), before.clone());
        change(&mut after);
        let mut told = |finding| publisher.changes(FindingSet::of(vec![finding], None, &reading, SystemTime::now())).len();
        assert_eq!((told(before.clone()), told(after)), (1, usize::from(member != "since")), "{member}");
    }
}

#[tokio::test]
async fn how_many_there_is_no_room_for_is_counted() {
    let (fixture, survey) = dangling(5);
    let (reading, later) = (fixture.handle.try_reading().unwrap(), SystemTime::now() + Duration::from_secs(2));
    let standing = |count: usize| (0..count).map(|number| finding("staleFile", &number.to_string(), ["paris"], "", "")).collect::<Vec<_>>();
    for (count, surveyed, left_out) in
        [(8_187, true, 0), (8_190, true, 3), (8_192, true, 5), (8_192, false, 0), (8_200, false, 8), (8_200, true, 13)]
    {
        let found = FindingSet::of(standing(count), surveyed.then_some(&survey), &reading, later);
        assert_eq!(found.left_out, left_out, "{count} {surveyed}");
    }
}

/// Findings that do not fit are reported by a finding of their own.
#[tokio::test]
async fn a_stream_that_has_no_room_for_all_says_so() {
    const COUNT: u32 = 8_200;
    let behind = |number: u32| {
        let [high, low] = [number / 250, number % 250];
        let ip = format!("10.{}.{high}.{low}", high % 2);
        put(key(Kind::Ip, "paris", &ip), pod(&ip, 2, &format!("172.18.{high}.{low}")), 1)
    };
    let fixture = Fixture::of(view(&(0..COUNT).map(behind).collect::<Vec<_>>())).looked_after();
    let mut client = Client::open(&fixture, "/v1/events?kind=problem&snapshot=true", &[]).await;
    let came = told(&mut client, "upsert", "problem/findingsOmitted/-", &mut BTreeMap::new()).await;
    let count = came["object"]["count"].as_u64().unwrap();
    // that finding itself counts too
    assert!((u64::from(COUNT) - 8_192..=u64::from(COUNT) - 8_190).contains(&count), "{came}");
}

#[tokio::test]
async fn only_who_asks_is_told_and_gets_all_that_are_listed() {
    let (fixture, mut client) = watched().await;
    let mut everybody = Client::open(&fixture, "/v1/events", &[]).await;
    let ids = all_told(&fixture, &mut client, &mut BTreeMap::new()).await;
    let metrics = String::from_utf8(fixture.get("/metrics").await.bytes).unwrap();
    for kind in ["clusterUnreachable", "duplicateAddress", "rejectedValues"] {
        let count = ids.iter().filter(|id| id.starts_with(kind)).count();
        let told = metrics.lines().find(|line| line.starts_with(&format!("meshkeep_problems{{kind=\"{kind}\""))).unwrap();
        assert!(count > 0 && told.ends_with(&format!(" {count}")), "{kind}: {told}, not {count}");
    }
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
    // all of them came after this position, and nothing else did
    assert_eq!(changes(&fixture, &format!("after=v1.000000000000feed.{HEAD}")).await, Vec::<Value>::new());
    // together with others, in one stream
    let both = changes(&fixture, "snapshot=true&kind=problem&kind=cluster").await;
    assert_eq!(keys(&both)[..2], ["cilium/cluster-config/paris", "cilium/cluster-config/tokyo"]);
    assert_eq!(both.len(), 2 + ids.len());
    // changes of other kinds and of findings do not delay each other
    fixture.change(put(key(Kind::Identity, "paris", "70000"), identity(70_000, "a"), 90)).await;
    let live = everybody.until("upsert").await;
    let kinds: Vec<&Value> = live.iter().map(|(_, _, data)| &data["kind"]).filter(|kind| kind.is_string()).collect();
    assert_eq!(kinds, ["identity"], "an unfiltered stream lives through all findings and is told of none: {live:?}");
    fixture.change(Change::Delete { key: key(Kind::Identity, "paris", "70000") }).await;
    assert_eq!(changes(&fixture, &format!("after=v1.000000000000feed.{HEAD}&kind=problem")).await.len(), ids.len());
}
