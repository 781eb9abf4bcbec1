//! Periods in which changes were not observed: in lists of versions and in lookups at a time.

use serde_json::{Value, json};

use super::history::{apply, at, commands, first_list, text};
use super::lines::lines;
use crate::api::tests::fixture::{ApiFixture, cluster, key, pod, put};
use crate::model::*;

/// Key of a pod that never existed.
const UNKNOWN: &str = "/v1/history?pod=shop/nobody";

fn gap(name: &str, kind: &str, period: (Option<u64>, Option<u64>)) -> Value {
    let mut gap = json!({"cluster": name, "kind": kind});
    for (member, seconds) in [("from", period.0), ("to", period.1)] {
        if let Some(seconds) = seconds {
            gap[member] = text(seconds).into();
        }
    }
    gap
}

/// Returns `complete` and the gaps of an answer.
fn coverage(answer: &Value) -> (bool, Vec<Value>) {
    (answer["complete"].as_bool().unwrap_or_else(|| panic!("{answer}")), answer["gaps"].as_array().cloned().unwrap_or_default())
}

/// Returns an outage of the ipcache entries of paris, with a change that was found afterwards.
fn outage(from: u64, to: u64) -> [(std::time::SystemTime, Command); 3] {
    let scope = Scope { cluster: cluster("paris"), kind: Kind::Ip };
    let change = apply(put(key(Kind::Ip, "paris", "10.1.9.9"), pod("10.1.9.9", 70_009, "172.18.1.2"), i64::try_from(to).unwrap()));
    [
        (at(to), Command::BeginObservationGap { scope: scope.clone(), last_contact: Some(at(from)) }),
        (at(to), change),
        (at(to), Command::EndObservationGap(scope)),
    ]
}

/// Makes the ipcache entries of paris not followed, since a contact.
fn end_connection(fixture: &ApiFixture, last_contact: u64) {
    fixture.set_paris_status(|status| status.resource_mut(Kind::Ip).set_synced(false, Some(at(last_contact))));
}

#[tokio::test]
async fn an_answer_without_versions_has_the_gaps_of_its_selection() {
    let fixture = ApiFixture::with_history(commands().into_iter().chain(outage(100, 200)));
    let expected = (false, vec![gap("paris", "ipcache", (Some(100), Some(200)))]);
    for query in [UNKNOWN, "/v1/history?ip=192.0.2.1", "/v1/history?identity=9", "/v1/history?key=cilium/cache/ip/v1/paris/192.0.2.1"] {
        assert_eq!(coverage(&fixture.json(query).await), expected, "{query}");
    }
    // the gap does not concern other kinds
    assert_eq!(coverage(&fixture.json("/v1/history?node=paris/worker-1").await), (true, vec![]));
    let of_unknown_cluster = fixture.json("/v1/history?node=lyon/worker-1").await;
    assert_eq!(coverage(&of_unknown_cluster), (false, vec![gap("lyon", "node", (None, None))]));
}

#[tokio::test]
async fn a_gap_before_the_oldest_version_belongs_to_the_last_page() {
    let mut commands = commands();
    commands.extend(outage(100, 200));
    let later = |ip| (at(300), apply(put(key(Kind::Ip, "paris", ip), pod(ip, 70_004, "172.18.1.2"), 300)));
    commands.extend([later("10.1.2.40"), later("10.1.9.10")]);
    let fixture = ApiFixture::with_history(commands);
    let outage = vec![gap("paris", "ipcache", (Some(100), Some(200)))];
    let uri = "/v1/history?ip=10.1.2.40&limit=1";
    let first = fixture.json(uri).await;
    assert_eq!((first["items"][0]["object"]["identity"].as_u64(), coverage(&first)), (Some(70_004), (true, vec![])), "{first}");
    let next = fixture.json(&format!("{uri}&pageToken={}", first["nextPageToken"].as_str().unwrap())).await;
    assert_eq!(coverage(&next), (false, outage.clone()), "{next}");
    // on the last page, also those that are older than every version
    let of_new = fixture.json("/v1/history?key=cilium/cache/ip/v1/paris/10.1.9.10").await;
    assert_eq!((of_new["items"].as_array().unwrap().len(), coverage(&of_new)), (1, (false, outage)), "{of_new}");
}

#[tokio::test]
async fn the_last_line_of_ndjson_has_the_gaps() {
    let fixture = ApiFixture::with_history(commands().into_iter().chain(outage(100, 200)));
    let outage = (false, vec![gap("paris", "ipcache", (Some(100), Some(200)))]);
    for query in [UNKNOWN, "/v1/history?ip=10.1.2.40"] {
        assert_eq!(coverage(&lines(&fixture, query).await.1), outage, "{query}");
    }
    end_connection(&fixture, 400);
    let (_, last) = lines(&fixture, UNKNOWN).await;
    assert_eq!(coverage(&last).1[0], gap("paris", "ipcache", (Some(400), None)), "{last}");
}

#[tokio::test]
async fn an_outage_in_progress_is_a_gap_without_end() {
    let fixture = ApiFixture::with_history(commands());
    let lookup = async |seconds: u64| {
        let answer = fixture.json(&format!("/v1/ipcache/lookup?ip=10.1.2.40&at={}", text(seconds))).await;
        coverage(&answer["meta"])
    };
    assert_eq!((lookup(450).await, coverage(&fixture.json(UNKNOWN).await)), ((true, vec![]), (true, vec![])));
    end_connection(&fixture, 400);
    let outage = (false, vec![gap("paris", "ipcache", (Some(400), None))]);
    assert_eq!((lookup(399).await, lookup(450).await), ((true, vec![]), outage.clone()));
    assert_eq!(coverage(&fixture.json(UNKNOWN).await), outage);
    let node = fixture.json("/v1/history?node=paris/worker-1").await;
    assert_eq!(coverage(&node), (true, vec![]), "nodes are still followed");
    // without a client file nothing is followed, since the last contact
    fixture.publish_statuses([]);
    let (is_complete, gaps) = coverage(&fixture.json("/v1/history?node=paris/worker-1").await);
    assert!(!is_complete && gaps.len() == 1 && gaps[0]["to"].is_null(), "{gaps:?}");
}

#[tokio::test]
async fn a_cluster_is_not_observed_before_its_first_list() {
    let mut commands = commands();
    commands.extend(first_list("tokyo", 500));
    commands.push((at(502), Command::Phase { cluster: cluster("oslo"), phase: Phase::Connecting, cause: 0 }));
    let fixture = ApiFixture::with_history(commands);
    let status = crate::api::tests::fixture::paris_status;
    fixture.publish_statuses([("paris", status()), ("tokyo", status()), ("oslo", status())]);
    let lookup = async |seconds: u64| fixture.json(&format!("/v1/ipcache/lookup?ip=10.1.2.40&at={}", text(seconds))).await;
    let answer = lookup(450).await;
    let before = ["ipcache", "node"].map(|kind| gap("tokyo", kind, (None, Some(501))));
    assert_eq!((answer["match"]["identity"].as_u64(), coverage(&answer["meta"])), (Some(70_003), (false, before.to_vec())), "{answer}");
    assert_eq!(coverage(&lookup(501).await["meta"]), (true, vec![]));
    // the versions since the first list are known
    assert_eq!(coverage(&fixture.json(UNKNOWN).await), (true, vec![]));
    // a cluster that was never read
    let connecting = ClusterStatus::new(std::time::Instant::now());
    fixture.publish_statuses([("paris", status()), ("tokyo", status()), ("oslo", connecting)]);
    let never_read = ["ipcache", "node"].map(|kind| gap("oslo", kind, (None, None)));
    assert_eq!(coverage(&lookup(501).await["meta"]), (false, never_read.to_vec()));
    assert_eq!(coverage(&fixture.json(UNKNOWN).await), (false, never_read[..1].to_vec()));
}

#[tokio::test]
async fn a_time_before_the_history_is_refused() {
    let fixture = ApiFixture::with_history(commands());
    let answer = fixture.get("/v1/ipcache/lookup?ip=10.1.2.40&at=2025-12-31T23:59:59Z").await;
    let detail = format!("at: the history begins at {}: choose a later time", text(0));
    assert_eq!((answer.status.as_u16(), answer.json()["detail"].clone()), (400, json!(detail)));
    for (seconds, identity) in [(15, None), (25, Some(70_001)), (35, Some(70_002)), (45, None), (65, Some(70_003))] {
        let answer = fixture.json(&format!("/v1/ipcache/lookup?ip=10.1.2.40&at={}", text(seconds))).await;
        assert_eq!((answer["match"]["identity"].as_u64(), &answer["meta"]["at"]), (identity, &json!(text(seconds))), "{answer}");
    }
    let labels = fixture.json(&format!("/v1/ipcache/lookup?ip=10.1.2.40&at={}", text(25))).await["match"]["labels"].clone();
    assert_eq!(labels["k8s:app"], "cart", "labels of an identity that was deleted later");
}
