//! Probes like those of Kubernetes' own components.

use std::time::{Duration, Instant};

use crate::api::tests::fixture::{ApiFixture, cluster, mesh, paris_status};
use crate::handle::ClientFileLocation;
use crate::model::{ClusterStatus, Command, DirectoryState, Phase};

/// Two clusters with client files; the second cannot be reached.
async fn probes_with_an_unreachable_cluster() -> ApiFixture {
    let fixture = ApiFixture::new();
    let mut osaka = ClusterStatus::new(Instant::now());
    osaka.phase = Phase::BackingOff;
    osaka.last_error = Some("cannot connect to https://osaka.mesh:2379:\nconnection refused".to_owned());
    osaka.next_retry = Some(Instant::now() + Duration::from_secs(30));
    fixture.publish_statuses([("paris", paris_status()), ("osaka", osaka)]);
    fixture.command(Command::Phase { cluster: cluster("osaka"), phase: Phase::BackingOff, cause: 0 }).await;
    fixture
}

async fn ask(fixture: &ApiFixture, uri: &str) -> (u16, String) {
    let answer = fixture.get(uri).await;
    (answer.status.as_u16(), String::from_utf8(answer.bytes).unwrap())
}

#[tokio::test]
async fn unknown_parameters_are_ignored() {
    let fixture = ApiFixture::new();
    for uri in ["/livez?timeout=5s", "/readyz?synched", "/healthz?synced=&a=1&a=2", "/livez?%FF=%FF&=&&"] {
        assert_eq!(ask(&fixture, uri).await, (200, "ok".to_owned()), "{uri}");
    }
}

#[tokio::test]
async fn a_failed_check_has_the_last_error() {
    let fixture = probes_with_an_unreachable_cluster().await;
    let all = "[+]store ok\n[+]storing ok\n[+]shutdown ok\n[+]directory ok\n[+]clusters ok\n\
               [-]cluster/osaka failed: backingOff: cannot connect to https://osaka.mesh:2379: connection refused\n\
               [+]cluster/paris ok\nreadyz check failed\n";
    assert_eq!(ask(&fixture, "/readyz?synced&verbose").await, (503, all.to_owned()));
    assert_eq!(ask(&fixture, "/readyz").await, (200, "ok".to_owned()));
}

/// A cluster whose client file is invalid and that is not read makes the mesh not synced. A cluster
/// that is still read with its previous file counts as synced.
#[tokio::test]
async fn an_invalid_client_file_makes_its_cluster_not_synced() {
    let fixture = ApiFixture::new();
    fixture.publish_statuses([("paris", paris_status())]);
    let invalid = ["lisbon", "paris"].map(|file| (file.to_owned(), "denied:\nby whom".to_owned())).into();
    fixture.directory.send_replace(DirectoryState { readable: true, error: None, invalid });
    let (status, reported) = ask(&fixture, "/readyz?synced").await;
    assert!(
        status == 503 && reported.contains("[-]cluster/lisbon failed: its file cannot be used: denied: by whom\n[+]cluster/paris ok\n"),
        "{reported}"
    );
    assert_eq!(ask(&fixture, "/readyz?synced&exclude=cluster/lisbon").await, (200, "ok".to_owned()));
}

#[tokio::test]
async fn an_excluded_check_does_not_count() {
    let fixture = probes_with_an_unreachable_cluster().await;
    assert_eq!(ask(&fixture, "/readyz?synced&exclude=cluster/osaka").await, (200, "ok".to_owned()));
    let all = "[+]store ok\n[+]storing excluded: ok\n[+]shutdown ok\n[+]directory ok\n[+]clusters ok\n[+]cluster/osaka excluded: ok\n[+]cluster/paris ok\n\
               warn: there are no checks with some of the excluded names\nreadyz check passed\n";
    let uri = "/readyz?synced&verbose&exclude=cluster%2Fosaka&exclude=storing&exclude=cluster/kyoto";
    assert_eq!(ask(&fixture, uri).await, (200, all.to_owned()));
    let (status, reported) = ask(&fixture, "/readyz?synced&exclude=cluster/paris").await;
    assert!(status == 503 && reported.contains("[+]cluster/paris excluded: ok\n") && reported.contains("[-]cluster/osaka"), "{reported}");
    assert_eq!(ask(&fixture, "/livez?exclude=ping&verbose").await.1, "[+]ping excluded: ok\nlivez check passed\n");
}

#[tokio::test]
async fn without_clusters_only_the_synced_probe_fails() {
    let files = ClientFileLocation { directory: "/etc/clustermesh".into(), ..ClientFileLocation::default() };
    let fixture = ApiFixture::with_own_cluster(mesh(), Some(cluster("paris"))).with_cluster_files(files.clone());
    // the own cluster, from --local-etcd, is not a remote cluster
    for reported in [vec![], vec![("paris", paris_status())]] {
        fixture.publish_statuses(reported);
        let (status, report) = ask(&fixture, "/readyz?synced").await;
        let reason = "[-]clusters failed: /etc/clustermesh has no client file of a cluster except that of paris, which is the own cluster and is not mirrored\n";
        assert!(status == 503 && report.contains(reason), "{report}");
        for probe in ["/readyz", "/livez"] {
            assert_eq!(ask(&fixture, probe).await, (200, "ok".to_owned()));
        }
    }
    // nor is one that --ignore-cluster leaves out
    let ignoring = ApiFixture::new().with_cluster_files(ClientFileLocation { ignored_clusters: vec![cluster("oslo")], ..files.clone() });
    ignoring.publish_statuses([]);
    let report = ask(&ignoring, "/readyz?synced").await.1;
    assert!(report.contains("/etc/clustermesh has no client file of a cluster; --ignore-cluster leaves out oslo\n"), "{report}");
    let status = ignoring.json("/v1/status").await;
    assert_eq!(status["directory"]["ignoredClusters"], serde_json::json!(["oslo"]));
    let invalid = [("lisbon".to_owned(), "it is empty".to_owned())].into();
    fixture.directory.send_replace(DirectoryState { readable: true, error: None, invalid });
    let report = ask(&fixture, "/readyz?synced").await.1;
    assert!(
        report.contains("[-]clusters failed: the only client file in /etc/clustermesh, lisbon, cannot be used: it is empty\n"),
        "{report}"
    );
    fixture.directory.send_replace(DirectoryState {
        readable: false,
        error: Some("No such file or directory".to_owned()),
        ..DirectoryState::default()
    });
    let report = ask(&fixture, "/readyz?synced").await.1;
    assert!(report.contains("[-]clusters failed: /etc/clustermesh cannot be read: No such file or directory\n"), "{report}");
    let fixture = ApiFixture::new().with_cluster_files(ClientFileLocation { allow_no_clusters: true, ..files });
    fixture.publish_statuses([]);
    assert_eq!(ask(&fixture, "/readyz?synced").await.0, 200);
}
