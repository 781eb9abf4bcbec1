//! Findings in the change stream.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::streams::StreamClient;
use crate::api::tests::answering::problems::view;
use crate::api::tests::fixture::{ApiFixture, HEAD, identity, key, node, pod, put};
use crate::findings::{FindingPublisher, FindingSet};
use crate::handle::{FindingIndex, FindingIndexBuilder};
use crate::model::{Change, FindingKind, FindingObject, Kind, Phase, Severity};

/// Maximum time until an event arrives. It usually takes a second or two; the machine may be slow.
const PATIENCE: Duration = Duration::from_secs(60);

const UNREACHABLE: &str = "problem/clusterUnreachable/paris";
const DUPLICATE: &str = "problem/duplicateAddress/-/host/10.1.2.40";

/// A mesh in which paris cannot be reached, with published findings, and a stream of them.
async fn open_stream() -> (ApiFixture, StreamClient) {
    let fixture = ApiFixture::with_paris_status(|status| {
        (status.phase, status.failed_in, status.last_error) = (Phase::BackingOff, Some(Phase::Connecting), Some("refused".to_owned()));
    });
    let fixture = fixture.with_publisher();
    let client = StreamClient::open(&fixture, "/v1/events?kind=problem&snapshot=true", &[]).await;
    (fixture, client)
}

/// Reads the next events up to one of this name, which must arrive in time.
async fn next_event(client: &mut StreamClient, name: &str) -> Value {
    let events = tokio::time::timeout(PATIENCE, client.until(name)).await;
    let (_, _, data) = events.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {name}")).pop().expect("the stream must go on");
    data
}

/// Reads on until an event of this name has the key. Returns its data.
async fn next_finding(client: &mut StreamClient, name: &str, id: &str, current: &mut BTreeMap<String, Value>) -> Value {
    loop {
        let data = next_event(client, name).await;
        let key = data["key"].as_str().unwrap_or_default().to_owned();
        if data["type"] == "upsert" {
            current.insert(key.clone(), data["object"].clone());
        }
        if data["type"] == name && key == id {
            return data;
        }
    }
}

/// Reads on until all listed findings were published, even if that takes several scans. Returns the
/// ids.
async fn next_findings(fixture: &ApiFixture, client: &mut StreamClient, current: &mut BTreeMap<String, Value>) -> Vec<String> {
    let listed = fixture.json("/v1/problems").await;
    let mut ids: Vec<String> = listed["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
    ids.sort_unstable();
    loop {
        let reported: BTreeSet<&str> = current.values().filter_map(|object| object["id"].as_str()).collect();
        if ids.iter().all(|id| reported.contains(id.as_str())) {
            return ids;
        }
        let data = next_event(client, "upsert").await;
        current.insert(data["key"].as_str().unwrap().to_owned(), data["object"].clone());
    }
}

async fn changes(fixture: &ApiFixture, query: &str) -> Vec<Value> {
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
async fn findings_are_sent_as_upserts_and_deletes() {
    let (fixture, mut client) = open_stream().await;
    let mut current = BTreeMap::new();
    let came = next_finding(&mut client, "upsert", UNREACHABLE, &mut current).await;
    assert_eq!((&came["kind"], &came["meta"]["cluster"]), (&json!("problem"), &json!("paris")));
    let listed = fixture.json("/v1/problems?kind=clusterUnreachable").await;
    assert_eq!(came["object"], listed["items"][0]);
    next_finding(&mut client, "upsert", DUPLICATE, &mut current).await;
    next_findings(&fixture, &mut client, &mut current).await;
    // more failed attempts with another error update the same finding
    let before = fixture.json("/v1/changes?kind=problem").await["nextPosition"].as_str().unwrap().to_owned();
    fixture.set_paris_status(|status| {
        (status.phase, status.failed_in, status.last_error) = (Phase::BackingOff, Some(Phase::Connecting), Some("no route".to_owned()));
        status.failure_count = 7;
    });
    let changed = next_finding(&mut client, "upsert", UNREACHABLE, &mut current).await;
    assert_eq!(changed["object"]["detail"], "paris cannot be reached: no route");
    fixture.set_paris_status(|_| {});
    let gone = next_finding(&mut client, "delete", UNREACHABLE, &mut current).await;
    assert_eq!((&gone["reason"], &gone["kind"]), (&json!("deleted"), &json!("problem")));
    let replayed = changes(&fixture, &format!("after={before}&kind=problem&cluster=paris")).await;
    assert_eq!((keys(&replayed), &replayed[0]["type"]), (vec![UNREACHABLE], &json!("delete")));
}

/// Without any change, regular checks notice findings that only the passing of time causes.
#[tokio::test]
async fn findings_that_depend_on_time_are_sent_without_a_change() {
    const REPORTED_BEFORE: Duration = Duration::from_secs(30 * 86_400);
    const SOON: Duration = Duration::from_millis(1_500);
    let (stuck_since, soon) = (Instant::now().checked_sub(Duration::from_secs(60)).unwrap() + SOON, SystemTime::now() + SOON);
    // there is no other finding, so no event triggers a check
    let fixture = ApiFixture::with_view(view(&[]));
    fixture.set_paris_status(|status| {
        status.certificate_expiry = Some(soon + REPORTED_BEFORE);
        (status.phase, status.phase_since) = (Phase::WaitingForCanary, stuck_since);
    });
    let fixture = fixture.with_publisher();
    let mut client = StreamClient::open(&fixture, "/v1/events?kind=problem&snapshot=true", &[]).await;
    let mut current = BTreeMap::new();
    let expiring = next_finding(&mut client, "upsert", "problem/certificateExpiring/paris", &mut current).await;
    assert!(SystemTime::now() >= soon, "the finding was sent too early");
    assert!(expiring["object"]["detail"].as_str().unwrap().ends_with("in 29 days"), "{expiring}");
    if !current.contains_key("problem/clusterStuck/paris") {
        next_finding(&mut client, "upsert", "problem/clusterStuck/paris", &mut current).await;
    }
}

/// The finding index of a mesh with this number of addresses whose host is not a node.
fn dangling(count: u8) -> (ApiFixture, FindingIndex) {
    let behind = |number: u8| {
        let ip = format!("10.1.2.{number}");
        put(key(Kind::Ip, "paris", &ip), pod(&ip, 2, &format!("172.18.1.{number}")), 1)
    };
    let fixture = ApiFixture::with_view(view(&(0..count).map(behind).collect::<Vec<_>>()));
    let mut builder = FindingIndexBuilder::new(fixture.handle.try_reading().unwrap());
    loop {
        builder = match builder.advance() {
            ControlFlow::Break(index) => return (fixture, index),
            ControlFlow::Continue(builder) => builder,
        };
    }
}

#[tokio::test]
async fn findings_across_keys_are_sent_after_a_second() {
    let (fixture, index) = dangling(1);
    let reading = fixture.handle.try_reading().unwrap();
    let since = index.findings_from(None).next().and_then(|finding| index.detected_at(finding)).unwrap();
    for (age, count) in [(0, 0), (999, 0), (1_000, 1)] {
        let found = FindingSet::collect(Vec::new(), Some(&index), &reading, since + Duration::from_millis(age));
        assert_eq!((FindingPublisher::default().changes(found).len(), age), (count, age));
    }
}

/// Traffic reaches an address whose host is a node of any cluster.
#[tokio::test]
async fn a_host_that_is_a_node_of_another_cluster_is_no_finding() {
    let (fixture, index) = dangling(1);
    let later = SystemTime::now() + Duration::from_secs(2);
    let count = || {
        let reading = fixture.handle.try_reading().unwrap();
        FindingPublisher::default().changes(FindingSet::collect(Vec::new(), Some(&index), &reading, later)).len()
    };
    assert_eq!(count(), 1);
    fixture.change(put(key(Kind::Node, "tokyo", "worker-9"), node("worker-9", "172.18.1.0", "a"), 2)).await;
    assert_eq!(count(), 0);
}

#[tokio::test]
async fn a_finding_is_sent_again_if_anything_but_its_time_changes() {
    let fixture = ApiFixture::with_view(view(&[]));
    let reading = fixture.handle.try_reading().unwrap();
    let before = FindingObject::new(FindingKind::StaleFile, "x", ["paris"], "detail");
    type FindingEdit = fn(&mut FindingObject);
    let changes: [(&str, FindingEdit); 6] = [
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
        let mut change_count = |finding| publisher.changes(FindingSet::collect(vec![finding], None, &reading, SystemTime::now())).len();
        assert_eq!((change_count(before.clone()), change_count(after)), (1, usize::from(member != "since")), "{member}");
    }
}

#[tokio::test]
async fn findings_that_do_not_fit_are_counted() {
    let (fixture, index) = dangling(5);
    let (reading, later) = (fixture.handle.try_reading().unwrap(), SystemTime::now() + Duration::from_secs(2));
    let cluster_findings = |count: usize| {
        (0..count).map(|number| FindingObject::new(FindingKind::StaleFile, &number.to_string(), ["paris"], "")).collect::<Vec<_>>()
    };
    for (count, has_index, left_out) in
        [(8_187, true, 0), (8_190, true, 3), (8_192, true, 5), (8_192, false, 0), (8_200, false, 8), (8_200, true, 13)]
    {
        let found = FindingSet::collect(cluster_findings(count), has_index.then_some(&index), &reading, later);
        assert_eq!(found.omitted_count, left_out, "{count} {has_index}");
    }
}

/// Findings that do not fit are reported by a finding of their own.
#[tokio::test]
async fn a_stream_reports_that_findings_were_left_out() {
    const COUNT: u32 = 8_200;
    let behind = |number: u32| {
        let [high, low] = [number / 250, number % 250];
        let ip = format!("10.{}.{high}.{low}", high % 2);
        put(key(Kind::Ip, "paris", &ip), pod(&ip, 2, &format!("172.18.{high}.{low}")), 1)
    };
    let fixture = ApiFixture::with_view(view(&(0..COUNT).map(behind).collect::<Vec<_>>())).with_publisher();
    let mut client = StreamClient::open(&fixture, "/v1/events?kind=problem&snapshot=true", &[]).await;
    let came = next_finding(&mut client, "upsert", "problem/findingsOmitted/-", &mut BTreeMap::new()).await;
    let count = came["object"]["count"].as_u64().unwrap();
    // `findingsOmitted` is one of the published findings too
    assert!((u64::from(COUNT) - 8_192..=u64::from(COUNT) - 8_190).contains(&count), "{came}");
}

#[tokio::test]
async fn only_clients_that_ask_for_findings_get_them() {
    let (fixture, mut client) = open_stream().await;
    let mut everybody = StreamClient::open(&fixture, "/v1/events", &[]).await;
    let ids = next_findings(&fixture, &mut client, &mut BTreeMap::new()).await;
    let metrics = String::from_utf8(fixture.get("/metrics").await.bytes).unwrap();
    for kind in ["clusterUnreachable", "duplicateAddress", "rejectedValues"] {
        let count = ids.iter().filter(|id| id.starts_with(kind)).count();
        let lines = metrics.lines().filter(|line| line.starts_with(&format!("meshkeep_problems{{kind=\"{kind}\"")));
        let reported: usize = lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()).sum();
        assert!(count > 0 && reported == count, "{kind}: {reported}, not {count}");
    }
    for limit in [1, 2, 500] {
        let reported = changes(&fixture, &format!("snapshot=true&kind=problem&limit={limit}")).await;
        let mut found: Vec<&str> = reported.iter().map(|event| event["object"]["id"].as_str().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, ids, "{limit}");
    }
    let of_tokyo = changes(&fixture, "snapshot=true&kind=problem&cluster=tokyo").await;
    assert!(keys(&of_tokyo).contains(&DUPLICATE) && !keys(&of_tokyo).contains(&UNREACHABLE), "{of_tokyo:?}");
    for query in ["snapshot=true", "snapshot=true&cluster=paris", "after=v1.000000000000feed.99", "snapshot=true&kind=cluster"] {
        let reported = changes(&fixture, query).await;
        assert!(!reported.is_empty() && reported.iter().all(|event| event["kind"] != "problem"), "{query}");
    }
    // only findings were published after this position, and this request does not ask for them
    assert_eq!(changes(&fixture, &format!("after=v1.000000000000feed.{HEAD}")).await, Vec::<Value>::new());
    // findings and clusters in one stream
    let both = changes(&fixture, "snapshot=true&kind=problem&kind=cluster").await;
    assert_eq!(keys(&both)[..2], ["cilium/cluster-config/paris", "cilium/cluster-config/tokyo"]);
    assert_eq!(both.len(), 2 + ids.len());
    // changes of other kinds and of findings do not delay each other
    fixture.change(put(key(Kind::Identity, "paris", "70000"), identity(70_000, "a"), 90)).await;
    let live = everybody.until("upsert").await;
    let kinds: Vec<&Value> = live.iter().map(|(_, _, data)| &data["kind"]).filter(|kind| kind.is_string()).collect();
    assert_eq!(kinds, ["identity"], "an unfiltered stream gets no findings: {live:?}");
    fixture.change(Change::Delete { key: key(Kind::Identity, "paris", "70000") }).await;
    assert_eq!(changes(&fixture, &format!("after=v1.000000000000feed.{HEAD}&kind=problem")).await.len(), ids.len());
}
