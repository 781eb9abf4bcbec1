//! Access to probes without authentication, and the header that every answer has.

use std::time::{Duration, Instant};

use reqwest::{Client, Response};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::sockets::{Certificates, local, set_provider};
use crate::api::tests::fixture::{ApiFixture, cluster, paris_status};
use crate::api::{ApiOptions, BoundApi};
use crate::model::{ClusterStatus, Command, Phase};

const TOKEN: &str = "sesame";

/// Every request that gets a detailed answer from a probe.
const PROBES: [&str; 6] =
    ["/readyz?synced", "/readyz?synced&verbose", "/readyz?verbose", "/healthz?verbose", "/livez?verbose", "/livez?verbose&exclude=ping"];

/// An API with an unreachable cluster, its address for probes, and its etcd API.
struct TestServers {
    main: String,
    health: String,
    etcd: String,
    client: Client,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _fixture: ApiFixture,
}

impl TestServers {
    async fn start(options: ApiOptions) -> Self {
        set_provider();
        let fixture = ApiFixture::new();
        let mut osaka = ClusterStatus::new(Instant::now());
        osaka.phase = Phase::BackingOff;
        osaka.last_error = Some("cannot connect to https://osaka.mesh:2379: connection refused".to_owned());
        fixture.publish_statuses([("paris", paris_status()), ("osaka", osaka)]);
        fixture.command(Command::Phase { cluster: cluster("osaka"), phase: Phase::BackingOff, cause: 0 }).await;
        let options = ApiOptions { health_listen: Some(local()), etcd_listen: Some(local()), ..options };
        let bound = BoundApi::bind(&[local()], &options).await.unwrap();
        let (main, health, etcd) = (bound.addresses()[0].clone(), bound.health_address().unwrap(), bound.etcd_address().unwrap());
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        tasks.spawn(bound.serve(fixture.handle.clone(), stop.clone(), Duration::from_secs(30)));
        let client = Client::builder().no_proxy().danger_accept_invalid_certs(true).build().unwrap();
        Self { main, health, etcd, client, stop, tasks, _fixture: fixture }
    }

    async fn ask(&self, url: &str, token: Option<&str>) -> (u16, String) {
        let request = self.client.get(url);
        let answer = token.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    async fn stopped(mut self) {
        self.stop.cancel();
        tokio::time::timeout(Duration::from_secs(5), self.tasks.join_next()).await.expect("must end in time");
    }
}

fn token_file(directory: &tempfile::TempDir) -> std::path::PathBuf {
    let path = directory.path().join("token");
    std::fs::write(&path, TOKEN).unwrap();
    path
}

#[tokio::test]
async fn an_anonymous_client_of_a_probe_gets_ok_or_not_ok() {
    let directory = tempfile::tempdir().unwrap();
    let servers = TestServers::start(ApiOptions { token_file: Some(token_file(&directory)), ..ApiOptions::default() }).await;
    for path in PROBES {
        let brief = if path.contains("synced") { (503, "not ok".to_owned()) } else { (200, "ok".to_owned()) };
        for (address, token) in
            [(&servers.main, None), (&servers.main, Some("open")), (&servers.health, None), (&servers.health, Some(TOKEN))]
        {
            assert_eq!(servers.ask(&format!("{address}{path}"), token).await, brief, "{address}{path} {token:?}");
        }
        let (status, reported) = servers.ask(&format!("{}{path}", servers.main), Some(TOKEN)).await;
        assert!(status == brief.0 && reported.lines().count() > 1, "{path}: {reported}");
    }
    let (_, reported) = servers.ask(&format!("{}/readyz?synced", servers.main), Some(TOKEN)).await;
    assert!(reported.contains("[-]cluster/osaka failed: backingOff: cannot connect to https://osaka.mesh:2379"), "{reported}");
    servers.stopped().await;
}

/// The handshake requests a client certificate; the address for probes has no TLS.
#[tokio::test]
async fn with_a_client_ca_the_health_address_gives_no_details() {
    let certificates = Certificates::new();
    let servers = TestServers::start(ApiOptions { tls: Some(certificates.files(true)), ..ApiOptions::default() }).await;
    assert_eq!(servers.ask(&format!("{}/readyz?synced&verbose", servers.health), None).await, (503, "not ok".to_owned()));
    servers.stopped().await;
}

#[tokio::test]
async fn without_a_token_local_clients_get_the_details_of_probes() {
    let servers = TestServers::start(ApiOptions::default()).await;
    for address in [&servers.main, &servers.health] {
        let (status, reported) = servers.ask(&format!("{address}/readyz?synced"), None).await;
        assert!(status == 503 && reported.contains("[-]cluster/osaka failed"), "{address}: {reported}");
        // a web page in a browser, with a host name that resolves to this address
        let rebound = servers.client.get(format!("{address}/readyz?synced")).header("host", "evil.example").send().await.unwrap();
        assert_eq!((rebound.status().as_u16(), rebound.text().await.unwrap()), (503, "not ok".to_owned()), "{address}");
    }
    servers.stopped().await;
}

#[tokio::test]
async fn every_answer_has_nosniff() {
    fn assert_typed(what: &str, answer: &Response) {
        let found = answer.headers().get("x-content-type-options").map(|value| value.to_str().unwrap());
        assert_eq!(found, Some("nosniff"), "{what}: {}", answer.status());
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = TestServers::start(ApiOptions { token_file: Some(token_file(&directory)), ..ApiOptions::default() }).await;
    let of_main = [
        "/v1/status",
        "/v1/nodes",
        "/v1/nodes/paris/nobody",
        "/v1/nodes?nodez=1",
        "/v1/events?snapshot=true",
        "/v1/changes",
        "/v1/log",
        "/v1/entries/cilium/cache/identities/v1/tokyo/id/68352",
        "/nowhere",
        "/",
        "/docs",
        "/docs/style.css",
        "/problems",
        "/openapi.json",
        "/metrics",
        "/livez",
        "/readyz?synced",
        "/assets/nothing",
    ];
    for path in of_main {
        for token in [TOKEN, "open"] {
            let answer = servers.client.get(format!("{}{path}", servers.main)).bearer_auth(token).send().await.unwrap();
            assert_typed(path, &answer);
        }
    }
    let lines = servers.client.get(format!("{}/v1/nodes", servers.main)).bearer_auth(TOKEN).header("accept", "application/x-ndjson");
    assert_typed("lines", &lines.send().await.unwrap());
    assert_typed("a method", &servers.client.delete(format!("{}/v1/nodes", servers.main)).bearer_auth(TOKEN).send().await.unwrap());
    assert_typed("a host", &servers.client.get(format!("{}/v1/nodes", servers.main)).header("host", "evil.example").send().await.unwrap());
    for path in ["/livez", "/readyz", "/healthz", "/metrics", "/v1/nodes", "/readyz?synced"] {
        assert_typed(path, &servers.client.get(format!("{}{path}", servers.health)).send().await.unwrap());
    }
    for path in ["/version", "/health", "/metrics", "/nowhere"] {
        assert_typed(path, &servers.client.get(format!("{}{path}", servers.etcd)).send().await.unwrap());
    }
    servers.stopped().await;
}
