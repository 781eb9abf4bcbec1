//! Certificates and tokens that are replaced while the API serves.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::sockets::{Certificates, RunningServer, local};
use crate::api::ApiOptions;
use crate::server::TlsFiles;

/// Maximum time until a changed file is in use: the files are checked every second, and the machine
/// may be slow.
const PATIENCE: Duration = Duration::from_secs(20);

/// Polls until `ask` returns a value.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("never saw {what}"))
}

/// Replaces a file atomically.
fn replace(from: std::path::PathBuf, to: std::path::PathBuf) {
    let new = to.with_extension("new");
    std::fs::copy(from, &new).unwrap();
    std::fs::rename(new, to).unwrap();
}

/// The status, over a new connection of this client.
async fn status(client: &reqwest::Client, url: &str) -> Option<Value> {
    let answer = client.get(format!("{url}/v1/status")).send().await.ok()?;
    assert_eq!(answer.status().as_u16(), 200);
    answer.json().await.ok()
}

#[tokio::test]
async fn a_replaced_certificate_serves_new_connections_unless_it_is_invalid() {
    let (before, after) = (Certificates::new(), Certificates::new());
    let options = ApiOptions { tls: Some(before.files(false)), ..ApiOptions::default() };
    let running = RunningServer::start(&[local()], &options).await;
    let url = running.addresses[0].clone();
    let (mut old, new) = (before.client(false), after.client(false));
    assert_eq!(status(&old, &url).await.unwrap().get("staleFiles"), None);
    assert!(status(&new, &url).await.is_none());

    // only the key: it does not match the certificate
    replace(after.path("tls.key"), before.path("tls.key"));
    let reported = until("the mismatched key pair", async || {
        old = before.client(false);
        status(&old, &url).await.unwrap().get("staleFiles").cloned()
    })
    .await;
    let reason = reported["TLS certificate"].as_str().unwrap();
    assert!(reason.starts_with(&format!("cannot use {} for TLS: ", before.path("tls.crt").display())), "{reason}");
    let metrics = old.get(format!("{url}/metrics")).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("\nmeshkeep_stale_files{file=\"TLS certificate\"} 1\n"), "{metrics}");

    // now also the certificate, which matches the key
    replace(after.path("tls.crt"), before.path("tls.crt"));
    let reported = until("the new certificate", async || status(&new, &url).await).await;
    assert_eq!(reported.get("staleFiles"), None);
    assert!(status(&before.client(false), &url).await.is_none());
    // an open connection continues
    assert!(status(&old, &url).await.is_some());
    running.stopped().await;
}

/// Findings about the server's own certificate, each with its severity and the start of its text.
async fn reported_expiry(client: &reqwest::Client, url: &str) -> Vec<(String, String, String)> {
    let list: Value = client.get(format!("{url}/v1/problems?kind=certificateExpiring")).send().await.unwrap().json().await.unwrap();
    let text = |item: &Value, member: &str| item[member].as_str().unwrap().to_owned();
    list["items"].as_array().unwrap().iter().map(|item| (text(item, "id"), text(item, "severity"), text(item, "detail"))).collect()
}

#[tokio::test]
async fn a_certificate_that_expires_soon_is_a_finding() {
    const DAY: Duration = Duration::from_secs(86_400);
    for (left, severity, text) in [
        (DAY * 31, None, ""),
        (DAY * 30 - DAY / 2, Some("warning"), "in 29 days"),
        (DAY * 8 - DAY / 2, Some("warning"), "in 7 days"),
        (DAY * 7 - DAY / 2, Some("critical"), "in 6 days"),
        (DAY * 2 - DAY / 2, Some("critical"), "in a day"),
        (DAY / 2, Some("critical"), "within a day"),
    ] {
        let certificates = Certificates::ending_in(left);
        let options = ApiOptions { tls: Some(certificates.files(false)), ..ApiOptions::default() };
        let running = RunningServer::start(&[local()], &options).await;
        let (client, url) = (certificates.client(false), running.addresses[0].clone());
        let reported = reported_expiry(&client, &url).await;
        match severity {
            None => assert_eq!(reported, []),
            Some(severity) => {
                let [(id, reported_severity, detail)] = reported.as_slice() else { panic!("{left:?}: {reported:?}") };
                assert_eq!((id.as_str(), reported_severity.as_str()), ("certificateExpiring/TLS certificate", severity), "{left:?}");
                let said = detail.starts_with("the certificate of the API expires at 20") && detail.ends_with(text);
                assert!(said, "{left:?}: {detail}");
            }
        }
        if left < DAY {
            let after = Certificates::new();
            replace(after.path("tls.key"), certificates.path("tls.key"));
            replace(after.path("tls.crt"), certificates.path("tls.crt"));
            until("the new certificate", async || status(&after.client(false), &url).await).await;
            assert_eq!(reported_expiry(&after.client(false), &url).await, []);
        }
        running.stopped().await;
    }
}

#[tokio::test]
async fn a_replaced_client_ca_accepts_only_its_own_clients() {
    let (server, other) = (Certificates::new(), Certificates::new());
    let files = TlsFiles { client_ca: Some(server.path("clients.crt")), ..server.files(false) };
    std::fs::copy(server.path("ca.crt"), server.path("clients.crt")).unwrap();
    let reread = Arc::new(tokio::sync::Notify::new());
    let options = ApiOptions { tls: Some(files), reread: Arc::clone(&reread), ..ApiOptions::default() };
    let running = RunningServer::start(&[local()], &options).await;
    let url = running.addresses[0].clone();
    let theirs = server.client_of(&other);
    assert!(status(&server.client(true), &url).await.is_some());
    assert!(status(&theirs, &url).await.is_none());
    replace(other.path("ca.crt"), server.path("clients.crt"));
    reread.notify_one();
    until("the clients of the new authority", async || status(&theirs, &url).await).await;
    assert!(status(&server.client(true), &url).await.is_none());
    running.stopped().await;
}

#[tokio::test]
async fn a_changed_token_is_reloaded() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "first").unwrap();
    let running = RunningServer::start(&[local()], &ApiOptions { token_file: Some(token.clone()), ..ApiOptions::default() }).await;
    let url = format!("{}/v1/status", running.addresses[0]);
    super::sockets::set_provider();
    let client = reqwest::Client::new();
    let ask = async |token: &str| client.get(&url).bearer_auth(token).send().await.unwrap();
    std::fs::remove_file(&token).unwrap();
    let reported = until("the lost token", async || ask("first").await.json::<Value>().await.unwrap().get("staleFiles").cloned()).await;
    assert_eq!(reported["token file"], "No such file or directory");
    std::fs::write(&token, "second").unwrap();
    until("the second token", async || (ask("second").await.status().as_u16() == 200).then_some(())).await;
    assert_eq!(ask("first").await.status().as_u16(), 401);
    running.stopped().await;
}
