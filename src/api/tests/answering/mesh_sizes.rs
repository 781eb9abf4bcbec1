//! Answers that cover all clusters are right in a mesh of three and of 255 clusters.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use axum::http::Request;
use serde_json::{Value, json};

use crate::api::dto::meta::MetaOptions;
use crate::api::tests::fixture::{ApiFixture, cluster, key, node, paris_status, put};
use crate::dto::meta::ListMeta;
use crate::model::{ClusterStatus, Command, Cursor, EtcdClusterId, Kind, Node, NodeAddress, Object, Phase, Revision, Scope, Sequence};
use crate::view::View;

fn names(count: usize) -> Vec<&'static str> {
    // the statuses of a fixture have static names
    (0..count).map(|number| &*format!("production-eu-west-{number:03}").leak()).collect()
}

/// A mesh of live clusters with one node each.
pub(in crate::api) fn mesh_of(count: usize) -> ApiFixture {
    let mut view = View::starting_at(Sequence(0));
    for (number, name) in names(count).into_iter().enumerate() {
        let (now, of) = (SystemTime::now(), cluster(name));
        view.apply(Command::Phase { cluster: of.clone(), phase: Phase::Live, cause: 0 }, now);
        for kind in Kind::ALL {
            let scope = Scope { cluster: of.clone(), kind };
            let address = NodeAddress { address_type: "InternalIP".to_owned(), ip: [172, 18, u8::try_from(number).unwrap(), 2].into() };
            let worker = Node { name: "worker".to_owned(), addresses: vec![address], ..Node::default() };
            let changes = (kind == Kind::Node).then(|| put(key(kind, name, "worker"), Object::Node(Box::new(worker)), 7));
            let cursor = Cursor::new(EtcdClusterId(1), Revision(9), false);
            view.apply(Command::Apply { scope: scope.clone(), changes: changes.into_iter().collect(), cursor: Some(cursor) }, now);
            view.apply(Command::Confirm(scope), now);
        }
    }
    let fixture = ApiFixture::with_view(view);
    fixture.publish_statuses(names(count).into_iter().map(|name| (name, live_status())));
    fixture
}

fn live_status() -> ClusterStatus {
    let certificate_expiry = SystemTime::now().checked_add(Duration::from_secs(90 * 86_400));
    ClusterStatus { certificate_expiry, claimed_id: None, config: None, ..paris_status() }
}

/// Sends a command and waits until its phase is visible.
async fn apply(fixture: &ApiFixture, command: Command) {
    let mut signal = fixture.handle.signal().await.unwrap();
    signal.borrow_and_update();
    fixture.command(command).await;
    signal.changed().await.unwrap();
}

/// Removes the members that say when an answer was made.
fn stable(mut meta: Value) -> Value {
    let members = meta.as_object_mut().unwrap();
    members.retain(|name, _| !["position", "oldestAgeSeconds"].contains(&name.as_str()));
    meta
}

#[tokio::test]
async fn answers_about_all_clusters_are_right_at_any_number_of_clusters() {
    for count in [3, 255] {
        let fixture = mesh_of(count);
        let summary = json!({"origin": "live", "liveSources": count, "sourceCount": count});
        let status = fixture.json("/v1/status").await;
        assert_eq!((&status["clusters"], &status["counts"]["nodes"]), (&json!({"live": count}), &json!(count)));
        assert_eq!(fixture.get("/readyz?synced").await.bytes, b"ok");
        let problems = fixture.json("/v1/problems").await;
        assert_eq!((&problems["items"], stable(problems["meta"].clone())), (&json!([]), summary.clone()));
        for uri in ["/v1/nodes?limit=1", "/v1/ipcache?limit=1", "/v1/ipcache/lookup?ip=192.0.2.1", "/v1/explain/192.0.2.1"] {
            assert_eq!(stable(fixture.json(uri).await["meta"].clone()), summary, "{uri}");
        }
        // one cluster fails, and its nodes are read again
        let name = names(count)[1];
        apply(&fixture, Command::Phase { cluster: cluster(name), phase: Phase::BackingOff, cause: 1 }).await;
        let status = fixture.json("/v1/status").await;
        assert_eq!(status["clusters"], json!({"live": count - 1, "backingOff": 1}));
        let report = String::from_utf8(fixture.get("/readyz?synced").await.bytes).unwrap();
        assert!(report.contains(&format!("[-]cluster/{name} failed: backingOff")), "{report}");
        assert_eq!(report.matches("[+]cluster/").count(), count - 1);
        assert_eq!(fixture.get(&format!("/readyz?synced&exclude=cluster/{name}")).await.bytes, b"ok");
        let lookup = fixture.json("/v1/ipcache/lookup?ip=192.0.2.1").await;
        assert_eq!(stable(lookup["meta"].clone()), summary);
        // a cluster that was never read
        apply(&fixture, Command::Phase { cluster: cluster("oslo"), phase: Phase::Connecting, cause: 0 }).await;
        let hints = fixture.json("/v1/explain/192.0.2.1").await["hints"].clone();
        assert_eq!(hints[0]["clusters"], json!(["oslo"]));
        let meta = fixture.json("/v1/nodes?limit=1").await["meta"].clone();
        assert_eq!((&meta["origin"], &meta["liveSources"], &meta["sourceCount"]), (&json!("neverRead"), &json!(count), &json!(count + 1)));
        assert_eq!((&meta["sources"][0]["cluster"], &meta["sources"][1]), (&json!("oslo"), &Value::Null));
    }
}

/// The `meta` of a list equals the one that is built from the sources of all clusters.
#[tokio::test]
async fn the_summary_of_the_sources_equals_that_of_all_sources() {
    let fixture = mesh_of(40);
    let statuses = names(30).into_iter().enumerate().map(|(number, name)| {
        let mut status = live_status();
        // old, never contacted, or recent
        status.last_contact = match number % 3 {
            0 => Instant::now().checked_sub(Duration::from_secs(100 + number as u64)),
            1 => None,
            _ => Some(Instant::now()),
        };
        (name, status)
    });
    fixture.publish_statuses(statuses);
    apply(&fixture, Command::Phase { cluster: cluster("oslo"), phase: Phase::Connecting, cause: 0 }).await;
    let all = names(40);
    for number in [3, 5, 12] {
        apply(&fixture, Command::Remove { cluster: cluster(all[number]), reason: crate::model::DeleteReason::Deleted }).await;
    }
    let reading = fixture.handle.reading().await.unwrap();
    for (detail, kinds) in [(None, &Kind::ALL[..]), (None, &[Kind::Node]), (Some("full"), &Kind::ALL), (Some("none"), &Kind::ALL)] {
        let detail = detail.map(|detail| serde_json::from_value(json!(detail)).unwrap());
        let options = MetaOptions::parse(None, None, detail).unwrap();
        for wanted in [1, 7, 41] {
            let is_wanted = |name: &crate::model::ClusterName| reading.cluster_names().iter().position(|one| one == name).unwrap() < wanted;
            let clusters = reading.cluster_names().into_iter().filter(is_wanted);
            let sources: Vec<_> = clusters.flat_map(|name| kinds.iter().map(move |kind| (name.clone(), *kind))).collect();
            let sources: Vec<_> = sources.iter().map(|(name, kind)| reading.source(name, *kind)).collect();
            let found = ListMeta::of_clusters(&reading, "v1".to_owned(), kinds, is_wanted, options).unwrap();
            let expected = ListMeta::new("v1".to_owned(), &sources, options);
            assert_eq!(serde_json::to_value(found).unwrap(), serde_json::to_value(expected).unwrap());
        }
    }
}

async fn tags(fixture: &ApiFixture, uris: &[&str]) -> BTreeMap<String, String> {
    let mut tags = BTreeMap::new();
    for uri in uris {
        for media_type in ["application/json", "application/x-ndjson"] {
            let request = Request::get(*uri).header("accept", media_type).body(axum::body::Body::empty()).unwrap();
            let answer = fixture.send(request).await;
            if answer.status.as_u16() == 200 {
                tags.insert(format!("{uri} {media_type}"), answer.header("etag").to_owned());
            }
        }
    }
    tags
}

/// A change of the mirror, a status, a finding or the process changes the tags of the answers that
/// show it, and nothing else does.
#[tokio::test]
async fn tags_of_answers_about_the_mesh_change_with_their_content() {
    const URIS: [&str; 7] =
        ["/v1/status", "/v1/config", "/v1/clusters", "/v1/clusters/paris", "/v1/rejected", "/v1/problems", "/v1/explain/10.1.2.40"];
    let fixture = ApiFixture::new();
    fixture.publish_statuses([("paris", paris_status())]);
    let mut before = tags(&fixture, &URIS).await;
    assert_eq!(tags(&fixture, &URIS).await, before);
    assert!(before.values().all(|tag| tag.len() == 20), "{before:?}");
    let changed = |before: &BTreeMap<String, String>, after: &BTreeMap<String, String>| -> Vec<String> {
        let mut uris: Vec<String> =
            before.iter().filter(|(uri, tag)| after[*uri] != **tag).map(|(uri, _)| uri.split(' ').next().unwrap().to_owned()).collect();
        uris.dedup();
        uris
    };
    // a status without and with a finding
    fixture.set_paris_status(|status| status.failure_count = 3);
    let after = tags(&fixture, &URIS).await;
    assert_eq!(changed(&before, &after), ["/v1/clusters", "/v1/clusters/paris", "/v1/rejected"]);
    before = after;
    fixture.set_paris_status(|status| status.progress_unanswered = true);
    let after = tags(&fixture, &URIS).await;
    assert_eq!(changed(&before, &after), ["/v1/clusters", "/v1/clusters/paris", "/v1/problems", "/v1/rejected"]);
    before = after;
    // the store
    fixture.persistence.send_replace(crate::commit::PersistState::Failing { error: "disk full".to_owned() });
    let after = tags(&fixture, &URIS).await;
    assert_eq!(changed(&before, &after), ["/v1/problems", "/v1/status"]);
    before = after;
    // the mirror
    fixture.change(put(key(Kind::Node, "paris", "paris-worker-7"), node("paris-worker-7", "172.18.1.7", "a"), 50)).await;
    // the index of findings follows the mirror
    fixture.json("/v1/problems").await;
    let after = tags(&fixture, &URIS).await;
    assert_eq!(
        after.iter().filter(|(uri, tag)| before[*uri] == **tag).map(|(uri, _)| uri.as_str()).collect::<Vec<_>>(),
        ["/v1/config application/json"]
    );
}
