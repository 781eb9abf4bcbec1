//! An address for probes and metrics only.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::sockets::{Certificates, local, set_provider};
use crate::api::tests::fixture::ApiFixture;
use crate::api::{ApiOptions, BoundApi};
use crate::model::ListenAddress;
use crate::server::ConnectionLimits;

/// Sends a request like the kubelet, Prometheus or a web page in a browser.
async fn ask(url: &str, path: &str, host: Option<&str>) -> (u16, String) {
    set_provider();
    let request = reqwest::Client::new().get(format!("{url}{path}")).timeout(Duration::from_secs(10));
    let answer = host.into_iter().fold(request, |request, host| request.header("host", host)).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn the_health_address_serves_only_probes_and_metrics() {
    let certificates = Certificates::new();
    let token_file = certificates.path("token");
    std::fs::write(&token_file, "sesame\n").unwrap();
    let options = ApiOptions {
        health_listen: ListenAddress::parse("0.0.0.0:0").ok(),
        token_file: Some(token_file),
        tls: Some(certificates.files(true)),
        // the API itself has no slot left
        limits: ConnectionLimits { count_max: 0, ..ConnectionLimits::default() },
        ..ApiOptions::default()
    };
    let fixture = ApiFixture::new();
    let bound = BoundApi::bind(&[local()], &options).await.unwrap();
    let url = bound.health_address().unwrap().replace("0.0.0.0", "127.0.0.1");
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    tasks.spawn(bound.serve(fixture.handle.clone(), stop.clone(), Duration::from_secs(30)));
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(ask(&url, path, Some("10.0.0.7:9879")).await, (200, "ok".to_owned()), "{path}");
    }
    let (status, text) = ask(&url, "/metrics", Some("meshkeep.kube-system.svc:9879")).await;
    assert!(status == 200 && text.contains("meshkeep_loaded 1"), "{text}");
    for path in ["/v1/nodes", "/v1/config", "/openapi.json", "/", "/v1/events"] {
        let (status, text) = ask(&url, path, None).await;
        assert!(status == 404 && text.contains("this is the address of --health-listen, which only serves /livez"), "{path}: {text}");
    }
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(5), tasks.join_next()).await.expect("must end in time");
}

#[tokio::test]
async fn metrics_on_a_loopback_address_check_the_host() {
    let options = ApiOptions { health_listen: Some(local()), ..ApiOptions::default() };
    let bound = BoundApi::bind(&[], &options).await.unwrap();
    let url = bound.health_address().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(bound.serve(ApiFixture::new().handle, CancellationToken::new(), Duration::from_secs(30)));
    assert_eq!(ask(&url, "/metrics", Some("evil.example")).await.0, 421);
    assert_eq!(ask(&url, "/metrics", None).await.0, 200);
    assert_eq!(ask(&url, "/livez", Some("evil.example")).await.0, 200);
}
