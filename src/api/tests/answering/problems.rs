//! Findings that appear and are resolved with the changes that cause them.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::api::tests::fixture::{ApiFixture, cluster, identity, key, node, pod, put};
use crate::commit::PersistState;
use crate::handle::{ClientFileLocation, FindingIndexBuilder};
use crate::history::{HistoryOptions, history};
use crate::model::{
    Backend, Change, ClusterStatus, Command, Cursor, DirectoryState, EtcdClusterId, Heartbeat, IpEntry, Kind, MissingConfig,
    MissingConfigState, Node, Object, ObjectPrefix, Phase, Revision, RevisionRollback, Scope, Sequence, Service,
};
use crate::view::View;

pub(super) fn cidr(net: &str, identity: u32, host: &str) -> Object {
    let Object::Ip(entry) = pod("10.0.0.1", identity, host) else { panic!("a pod is an ip entry") };
    let prefix = ObjectPrefix { net: net.parse().unwrap(), host: false };
    Object::Ip(IpEntry { prefix, namespace: String::new(), pod_name: String::new(), ..entry })
}

pub(super) fn service(backend: &str) -> Object {
    let backend = Backend { ip: backend.parse().unwrap(), ports: [].into(), hostname: String::new(), zone: None };
    Object::Service(Service { namespace: "shop".into(), name: "cart".into(), cluster_id: 1, backends: vec![backend], ..Service::default() })
}

/// Two clusters of which every kind was read.
pub(super) fn mesh(puts: Vec<Change>) -> ApiFixture {
    ApiFixture::with_view(view(&puts))
}

pub(in crate::api::tests) fn view(puts: &[Change]) -> View {
    let mut view = View::starting_at(Sequence(0));
    for name in ["paris", "tokyo"] {
        for kind in Kind::ALL {
            let scope = Scope { cluster: cluster(name), kind };
            let (etcd_cluster_id, revision) = (EtcdClusterId(1), Revision(9));
            let cursor = Cursor::new(etcd_cluster_id, revision, true);
            let is_of = |change: &&Change| matches!(change, Change::Put { key, .. } if key.cluster == cluster(name) && key.kind == kind);
            let changes = puts.iter().filter(is_of).cloned().collect();
            view.apply(Command::Apply { scope, changes, cursor: Some(cursor) }, SystemTime::UNIX_EPOCH);
        }
    }
    view
}

pub(super) fn ids(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn findings_appear_and_disappear_with_their_cause() {
    let fixture = mesh(vec![
        put(key(Kind::Ip, "paris", "10.1.2.40"), pod("10.1.2.40", 68_352, "172.18.1.2"), 1),
        put(key(Kind::Ip, "paris", "10.1.2.41"), pod("10.1.2.41", 68_352, "172.18.1.2"), 1),
        put(key(Kind::Ip, "tokyo", "10.1.2.40"), pod("10.1.2.40", 2, "172.18.2.2"), 1),
        put(key(Kind::Node, "tokyo", "worker"), node("worker", "172.18.2.2", "a"), 1),
    ]);
    let all = fixture.json("/v1/problems").await;
    let expected = ["danglingHostIP/paris/172.18.1.2", "danglingIdentity/paris/68352", "duplicateAddress/host/10.1.2.40"];
    assert_eq!(ids(&all), expected);
    let dangling = &all["items"][1];
    assert_eq!(
        (&dangling["kind"], &dangling["clusters"], &dangling["count"], &dangling["key"]),
        (&json!("danglingIdentity"), &json!(["paris"]), &json!(2), &json!("cilium/cache/ip/v1/paris/10.1.2.40"))
    );
    // a finding about several clusters has no `cluster`
    assert_eq!((&dangling["cluster"], all["items"][2].get("cluster")), (&json!("paris"), None));
    assert_eq!(ids(&fixture.json("/v1/problems?cluster=tokyo").await), ["duplicateAddress/host/10.1.2.40"]);
    assert_eq!(ids(&fixture.json("/v1/problems?kind=danglingHostIP").await), ["danglingHostIP/paris/172.18.1.2"]);
    let mut found = Vec::new();
    let mut uri = "/v1/problems?limit=1".to_owned();
    loop {
        let page = fixture.json(&uri).await;
        found.extend(ids(&page).iter().map(|id| (*id).to_owned()));
        let Some(token) = page["nextPageToken"].as_str() else { break };
        uri = format!("/v1/problems?limit=1&pageToken={token}");
    }
    assert_eq!(found, expected);

    fixture.change(put(key(Kind::Identity, "paris", "68352"), identity(68_352, "cart"), 2)).await;
    assert_eq!(ids(&fixture.json("/v1/problems").await), ["danglingHostIP/paris/172.18.1.2", "duplicateAddress/host/10.1.2.40"]);
    fixture.change(put(key(Kind::Node, "paris", "worker"), node("worker", "172.18.1.2", "a"), 2)).await;
    fixture.change(Change::Delete { key: key(Kind::Ip, "tokyo", "10.1.2.40") }).await;
    let overlap = fixture.json("/v1/problems").await;
    assert_eq!(ids(&overlap), ["duplicateAddress/host/10.1.2.134", "overlappingPodCIDR/paris", "overlappingPodCIDR/tokyo"]);
    assert_eq!((&overlap["items"][1]["clusters"], &overlap["items"][2]["count"]), (&json!(["paris", "tokyo"]), &json!(1)));
    assert_eq!(ids(&fixture.json("/v1/problems?kind=overlappingPodCIDR&cluster=tokyo").await).len(), 2);
}

/// A host may be a node of any cluster, because there are tunnels to the nodes of all clusters.
#[tokio::test]
async fn a_host_that_is_a_node_of_another_cluster_is_not_dangling() {
    let host = |name: &str| put(key(Kind::Node, "tokyo", name), node(name, "172.18.2.2", "a"), 1);
    let entry = put(key(Kind::Ip, "paris", "10.9.2.40"), pod("10.9.2.40", 2, "172.18.2.2"), 1);
    let fixture = mesh(vec![host("worker"), entry]);
    assert_eq!(ids(&fixture.json("/v1/problems").await), Vec::<&str>::new());
    assert_eq!(fixture.json("/v1/explain/10.9.2.40").await["node"]["cluster"], "tokyo");
    fixture.change(Change::Delete { key: key(Kind::Node, "tokyo", "worker") }).await;
    let dangling = fixture.json("/v1/problems").await;
    assert_eq!(ids(&dangling), ["danglingHostIP/paris/172.18.2.2"]);
    let detail = "paris has addresses on host 172.18.2.2, which is not a node of any cluster: traffic to them has no tunnel";
    assert_eq!(dangling["items"][0]["detail"], detail);
    fixture.change(host("other")).await;
    assert_eq!(ids(&fixture.json("/v1/problems").await), Vec::<&str>::new());
}

/// The host may be a node of the cluster that was not read yet. If reading takes longer than usual,
/// the cluster has its own finding, and other findings are reported again.
#[tokio::test]
async fn no_host_is_dangling_until_the_nodes_of_all_clusters_were_read() {
    let fixture = mesh(vec![put(key(Kind::Ip, "paris", "10.9.2.40"), pod("10.9.2.40", 2, "172.18.2.2"), 1)]);
    fixture.command(Command::Phase { cluster: cluster("osaka"), phase: Phase::Listing, cause: 0 }).await;
    // the writer applies commands in order: once this one is visible, so is the phase
    fixture.change(put(key(Kind::Ip, "paris", "10.9.2.41"), pod("10.9.2.41", 2, "172.18.2.2"), 2)).await;
    let osaka = |phase: Phase, seconds: u64| {
        let mut status = ClusterStatus::new(Instant::now());
        (status.phase, status.phase_since) = (phase, Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap());
        [("osaka", status)]
    };
    for (phase, seconds, expected) in [
        (Phase::Listing, 500, None),
        (Phase::Listing, 601, Some("danglingHostIP/paris/172.18.2.2")),
        (Phase::ReadingConfig, 59, None),
        (Phase::ReadingConfig, 61, Some("danglingHostIP/paris/172.18.2.2")),
        (Phase::BackingOff, 0, Some("danglingHostIP/paris/172.18.2.2")),
    ] {
        fixture.publish_statuses(osaka(phase, seconds));
        let found = fixture.json("/v1/problems?kind=danglingHostIP").await;
        assert_eq!(ids(&found).first(), expected.as_ref(), "{phase:?} {seconds}");
        let says = |finding: &Value| finding["detail"].as_str().unwrap().contains("(the nodes of osaka were never read)");
        assert!(found["items"].as_array().unwrap().iter().all(says), "{found}");
    }
}

/// No answer says that there are no findings before the finding index is built. Known findings stay
/// while it is updated.
#[tokio::test(start_paused = true)]
async fn an_answer_says_whether_the_finding_index_is_complete() {
    let pod_of = |name: &str, host: &str| put(key(Kind::Ip, name, "10.1.2.40"), pod("10.1.2.40", 2, host), 1);
    let (fixture, sender) = mesh(vec![pod_of("paris", "172.18.1.2"), pod_of("tokyo", "172.18.2.2")]).with_finding_index();
    let answer = fixture.json("/v1/problems").await;
    assert_eq!((&answer["complete"], ids(&answer).len()), (&json!(false), 0));
    let story = fixture.json("/v1/explain/10.1.2.40").await;
    assert_eq!((&story["complete"], &story["match"]["cluster"]), (&json!(false), &json!("tokyo")));

    let mut builder = FindingIndexBuilder::new(fixture.handle.try_reading().unwrap());
    let index = loop {
        builder = match builder.advance() {
            ControlFlow::Break(index) => break index,
            ControlFlow::Continue(builder) => builder,
        };
    };
    sender.send_replace(Some(index));
    let answer = fixture.json("/v1/problems").await;
    let found = ["danglingHostIP/paris/172.18.1.2", "danglingHostIP/tokyo/172.18.2.2", "duplicateAddress/host/10.1.2.40"];
    assert_eq!((&answer["complete"], ids(&answer)), (&json!(true), found.to_vec()));
    // a finding that was resolved before the index was updated is not reported
    fixture.change(Change::Delete { key: key(Kind::Ip, "tokyo", "10.1.2.40") }).await;
    let answer = fixture.json("/v1/problems").await;
    assert_eq!((&answer["complete"], ids(&answer)), (&json!(false), found[..2].to_vec()));
}

#[tokio::test]
async fn a_revision_that_went_back_is_a_finding_for_an_hour() {
    for (minutes, expected) in [(59, &["revisionWentBack/paris"][..]), (60, &[])] {
        let last = Instant::now().checked_sub(Duration::from_secs(minutes * 60)).unwrap();
        let fixture = ApiFixture::with_paris_status(|status| {
            status.revision_rollback = Some(RevisionRollback { error: "went back".to_owned(), last, count: 3 })
        });
        let reported = fixture.json("/v1/problems?kind=revisionWentBack").await;
        assert_eq!(ids(&reported), expected, "{reported}");
    }
}

/// Some Cilium versions announced the same pod CIDRs on every node (cilium/cilium#46179). That is
/// one finding, with advice.
#[tokio::test]
async fn overlapping_pod_cidrs_of_many_nodes_are_one_finding() {
    let cidrs: Vec<ipnet::IpNet> = (0..=255).map(|second| format!("10.{second}.0.0/16").parse().unwrap()).collect();
    let worker = |number: u8| {
        let Object::Node(made) = node(&format!("worker-{number}"), &format!("172.18.1.{number}"), "a") else { panic!("a node is a node") };
        let node = Node { ipv4_pod_cidr: None, health_ips: Vec::new(), secondary_pod_cidrs: cidrs.clone(), ..*made };
        put(key(Kind::Node, "paris", &node.name.clone()), Object::Node(Box::new(node)), 1)
    };
    let fixture = mesh((0..40).map(worker).collect());
    let found = fixture.json("/v1/problems").await;
    assert_eq!(ids(&found), ["overlappingNodePodCIDR/paris"]);
    let finding = &found["items"][0];
    assert_eq!((&finding["clusters"], &finding["count"]), (&json!(["paris"]), &json!(256)));
    let detail = finding["detail"].as_str().unwrap();
    assert!(detail.starts_with("pod CIDRs of paris are shared by several of its nodes, or overlap: 10.0.0.0/16 (40 nodes), "), "{detail}");
    assert!(detail.contains(" and 251 more; ") && finding["advice"].as_str().unwrap().contains("cilium/cilium#46179"), "{finding}");
}

/// The findings of a fixture, each with its severity.
async fn found(fixture: &ApiFixture) -> Vec<(String, String)> {
    let list = fixture.json("/v1/problems").await;
    let items = list["items"].as_array().unwrap();
    // no word in braces of the table of kinds may be left
    let has_advice = |item: &Value| item["advice"].as_str().is_some_and(|advice| !advice.is_empty() && !advice.contains('{'));
    assert!(items.iter().all(|item| has_advice(item) && item["since"].is_string()), "{list}");
    items.iter().map(|item| (item["id"].as_str().unwrap().to_owned(), item["severity"].as_str().unwrap().to_owned())).collect()
}

#[tokio::test]
async fn findings_about_clusters_and_the_process_have_a_severity() {
    let days = |days: u64| Some(SystemTime::now() + Duration::from_secs(days * 86_400));
    let failed = |status: &mut ClusterStatus, phase, failed_in| {
        (status.phase, status.failed_in, status.last_error) = (phase, Some(failed_in), Some("connection refused".to_owned()));
    };
    let minutes_ago = Instant::now().checked_sub(Duration::from_secs(180)).unwrap();
    type FindingCase = (Box<dyn Fn(&mut ClusterStatus)>, &'static [(&'static str, &'static str)]);
    let cases: Vec<FindingCase> = vec![
        (Box::new(|_| {}), &[]),
        (Box::new(move |status| failed(status, Phase::BackingOff, Phase::Connecting)), &[("clusterUnreachable/paris", "critical")]),
        (Box::new(move |status| failed(status, Phase::Connecting, Phase::Connecting)), &[("clusterUnreachable/paris", "critical")]),
        (Box::new(move |status| failed(status, Phase::Listing, Phase::Connecting)), &[]),
        (Box::new(move |status| failed(status, Phase::Connecting, Phase::Listing)), &[("clusterUnreadable/paris", "critical")]),
        (Box::new(|status| status.phase = Phase::WaitingForCanary), &[]),
        (
            Box::new(move |status| (status.phase, status.phase_since) = (Phase::WaitingForCanary, minutes_ago)),
            &[("clusterStuck/paris", "warning")],
        ),
        (Box::new(move |status| (status.phase, status.phase_since) = (Phase::Listing, minutes_ago)), &[]),
        (Box::new(|status| status.file_error = Some("not YAML".to_owned())), &[("clusterFileInvalid/paris", "critical")]),
        (Box::new(|status| status.file_warnings = Some("it says \"cert-fil\"".to_owned())), &[("clusterFileMisspelt/paris", "warning")]),
        (Box::new(move |status| status.certificate_expiry = days(31)), &[]),
        (Box::new(move |status| status.certificate_expiry = days(29)), &[("certificateExpiring/paris", "warning")]),
        (Box::new(move |status| status.certificate_expiry = days(6)), &[("certificateExpiring/paris", "critical")]),
        (Box::new(move |status| status.certificate_expiry = days(0)), &[("certificateExpiring/paris", "critical")]),
        (Box::new(|status| status.progress_unanswered = true), &[("progressUnanswered/paris", "info")]),
    ];
    let fixture = mesh(Vec::new());
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        fixture.set_paris_status(change);
        let found = found(&fixture).await;
        let found: Vec<(&str, &str)> = found.iter().map(|(id, severity)| (id.as_str(), severity.as_str())).collect();
        assert_eq!(found, expected, "case {number}");
    }
    fixture.set_paris_status(|_| {});
    let invalid = [("lisbon".to_owned(), "it is empty".to_owned())].into();
    fixture.directory.send_replace(DirectoryState { readable: false, error: Some("denied".to_owned()), invalid });
    fixture.persistence.send_replace(PersistState::Failing { error: "no space left on device".to_owned() });
    let bad = put(key(Kind::Ip, "tokyo", "10.1.2.40"), pod("10.1.2.40", 2, "172.18.2.2"), 1);
    let Change::Put { key, source, .. } = bad else { panic!("a put is a put") };
    fixture.change(Change::Put { key, source, value: b"{".as_slice().into(), decoded: Err("not JSON".into()) }).await;
    let all: Vec<String> = found(&fixture).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(all, ["clusterFileInvalid/lisbon", "directoryUnreadable", "rejectedValues/tokyo", "storeUnwritable"]);
    assert_eq!(ids(&fixture.json("/v1/problems?severity=warning").await), ["rejectedValues/tokyo"]);
    assert_eq!(ids(&fixture.json("/v1/problems?severity=critical&cluster=lisbon").await), ["clusterFileInvalid/lisbon"]);
    for wrong in ["kind=nonsense", "severity=bad"] {
        assert_eq!(fixture.get(&format!("/v1/problems?{wrong}")).await.status.as_u16(), 400, "{wrong}");
    }
}

#[tokio::test]
async fn a_cluster_that_waits_for_a_canary_names_its_kind() {
    let fixture = mesh(Vec::new());
    let reason = "waiting for the canary cilium/synced/paris/cilium/state/ip/v1 (ipcache)";
    let minutes_ago = Instant::now().checked_sub(Duration::from_secs(180)).unwrap();
    for failed_in in [None, Some(Phase::Listing)] {
        fixture.set_paris_status(|status| {
            (status.phase, status.phase_since, status.failed_in) = (Phase::WaitingForCanary, minutes_ago, failed_in);
            status.last_error = Some(reason.to_owned());
        });
        let detail = fixture.json("/v1/problems").await["items"][0]["detail"].clone();
        assert!(detail.as_str().unwrap().contains(reason), "{detail}");
        assert_eq!(fixture.json("/v1/clusters/paris").await["lastError"], reason);
    }
}

#[tokio::test]
async fn a_missing_cluster_config_is_a_finding() {
    let fixture = mesh(Vec::new());
    let reported = async |seconds: u64, had_config: bool, denied: bool, others: &[&str]| {
        let others = others.iter().map(|other| cluster(other)).collect();
        let since = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        let missing = MissingConfig { denied, others, ..MissingConfig::default() };
        fixture.set_paris_status(|status| {
            // the last connection failed, which must not change the finding
            (status.phase, status.failed_in, status.config_deleted) = (Phase::BackingOff, Some(Phase::ReadingConfig), had_config);
            status.missing_config = Some(MissingConfigState { since, missing });
        });
        found(&fixture).await
    };
    let missing = [("clusterConfigMissing/paris".to_owned(), "critical".to_owned())];
    let lost = [("clusterConfigLost/paris".to_owned(), "warning".to_owned())];
    assert_eq!(reported(0, false, false, &["rome"]).await, missing);
    assert_eq!(reported(0, false, true, &[]).await, missing);
    assert_eq!(reported(0, false, false, &[]).await, []);
    assert_eq!(reported(61, false, false, &[]).await, missing);
    assert_eq!(reported(0, true, false, &["rome"]).await, lost);
    assert_eq!(reported(61, true, false, &["rome"]).await, missing);
    let finding = fixture.json("/v1/problems").await["items"][0].clone();
    assert_eq!(finding["detail"], "paris is not read: this etcd belongs to cluster rome, not paris; meshkeep keeps the last known state");
}

#[tokio::test]
async fn no_cluster_is_critical_after_a_minute_and_names_the_directory() {
    let files = |wait| ClientFileLocation { directory: "/etc/clustermesh".into(), wait, ..ClientFileLocation::default() };
    let (patient, fixture) = (mesh(Vec::new()), mesh(Vec::new()));
    let patient = patient.with_cluster_files(files(Duration::from_secs(60)));
    let fixture = fixture.with_cluster_files(files(Duration::ZERO));
    for fixture in [&patient, &fixture] {
        fixture.publish_statuses([]);
    }
    assert_eq!(found(&patient).await, []);
    assert_eq!(patient.json("/v1/status").await["directory"]["noClusters"], "/etc/clustermesh has no client file of a cluster");
    assert_eq!(found(&fixture).await, [("noClusters".to_owned(), "critical".to_owned())]);
    let finding = fixture.json("/v1/problems?kind=noClusters").await["items"][0].clone();
    assert_eq!(finding["detail"], "there is no remote cluster to mirror: /etc/clustermesh has no client file of a cluster");
    fixture.directory.send_replace(DirectoryState {
        readable: false,
        error: Some("No such file or directory".to_owned()),
        ..DirectoryState::default()
    });
    let finding = fixture.json("/v1/problems?kind=noClusters").await["items"][0].clone();
    assert_eq!(finding["detail"], "there is no remote cluster to mirror: /etc/clustermesh cannot be read: No such file or directory");
    // a cluster whose file cannot be used does not count, one with a usable file does
    fixture.directory.send_replace(DirectoryState { readable: true, ..DirectoryState::default() });
    fixture.set_paris_status(|status| status.file_error = Some("not YAML".to_owned()));
    let ids = |found: Vec<(String, String)>| found.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(found(&fixture).await), ["clusterFileInvalid/paris", "noClusters"]);
    fixture.set_paris_status(|_| {});
    assert_eq!(found(&fixture).await, []);
}

#[tokio::test]
async fn a_silent_writer_is_a_finding_and_makes_its_data_old() {
    let fixture = mesh(Vec::new());
    let beat = |revision| Heartbeat { etcd_cluster_id: EtcdClusterId(0xabc), revision: Revision(revision), written: None };
    let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
    let silent_for = |seconds, errors: &'static [&'static str]| {
        fixture.set_paris_status(move |status| {
            status.writer.record_connection(Some(beat(7)), ago(seconds + 30));
            status.writer.record_heartbeat(beat(8), ago(seconds));
            // the connection is renewed, and its etcd has the same heartbeat
            status.writer.record_connection(Some(beat(8)), ago(1));
            status.writer.etcd_errors = errors.iter().map(|error| (*error).to_owned()).collect();
        });
    };
    let reported = |severity: &str| vec![("writerSilent/paris".to_owned(), severity.to_owned())];
    silent_for(119, &[]);
    assert_eq!(found(&fixture).await, []);
    let age = async || fixture.json("/v1/clusters/paris").await["ageSeconds"].as_f64().unwrap();
    assert!(age().await < 60.0);
    silent_for(121, &[]);
    assert_eq!((found(&fixture).await, age().await >= 121.0), (reported("warning"), true));
    assert_eq!(fixture.get("/v1/nodes?cluster=paris&maxAge=100").await.status.as_u16(), 503);
    let meta = fixture.json("/v1/nodes?cluster=paris").await["meta"].clone();
    assert_eq!((meta["sources"][0]["cluster"].as_str(), meta["sources"][0]["lastHeartbeat"].is_string()), (Some("paris"), true), "{meta}");
    silent_for(601, &["NOSPACE"]);
    assert_eq!(found(&fixture).await, reported("critical"));
    let finding = fixture.json("/v1/problems?kind=writerSilent").await["items"][0].clone();
    let says = |member: &str, text: &str| assert!(finding[member].as_str().unwrap().contains(text), "{finding}");
    says("detail", "the etcd reports NOSPACE");
    says("advice", "etcdctl alarm disarm");
}

#[tokio::test]
async fn a_history_that_lost_something_is_a_finding() {
    let options = HistoryOptions { age_max: Duration::from_secs(3_600), bytes_max: 1 << 20 };
    let findings_of = async |directory: &Path| {
        let fixture = mesh(Vec::new());
        let (_writer, reader) = history(directory, options, |_| ());
        fixture.handle.set_history(reader);
        fixture.json("/v1/problems").await["items"].clone()
    };
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("history")).unwrap();
    assert_eq!(findings_of(directory.path()).await, json!([]));

    fs::write(directory.path().join("history/1-10"), "no segment").unwrap();
    let findings = findings_of(directory.path()).await;
    assert_eq!((findings[0]["kind"].as_str(), &findings[0]["count"]), (Some("historyLosses"), &json!(1)), "{findings}");
    let detail = findings[0]["detail"].as_str().unwrap();
    assert!(detail.starts_with("meshkeep cannot read 1 segment of the history: ") && detail.contains("history/1-10: "), "{findings}");

    fs::remove_dir_all(directory.path().join("history")).unwrap();
    fs::write(directory.path().join("history"), "no directory").unwrap();
    let findings = findings_of(directory.path()).await;
    assert_eq!(findings[0]["kind"], "historyUnwritable", "{findings}");
    assert!(findings[0]["detail"].as_str().unwrap().starts_with("the history is not written: cannot read "), "{findings}");
}
