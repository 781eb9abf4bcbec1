//! A disconnect ends the client's work.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::sockets::{RunningServer, get, local};
use crate::api::ApiOptions;
use crate::api::tests::fixture::ApiFixture;
use crate::api::tests::lists::pages::pods;

/// Number of pods: scanning them takes far longer than a client needs to disconnect.
const PODS: u32 = 50_000;

pub(in crate::api::tests) async fn figure(url: &str, name: &str) -> u64 {
    let metrics = get(format!("{url}/metrics")).await.unwrap().text().await.unwrap();
    let figure = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    figure.trim().parse().unwrap()
}

/// Twenty clients over real sockets send long requests and disconnect.
#[tokio::test]
async fn scans_end_when_their_clients_disconnect() {
    let running = RunningServer::of(ApiFixture::with_view(pods(PODS)), &[local()], &ApiOptions::default()).await;
    let url = running.addresses[0].clone();
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
        client.write_all(b"GET /v1/ipcache?namespace=none HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        clients.push(client);
    }
    // the request for the metrics is one of the 21, and is answered between the others
    while figure(&url, "meshkeep_scans").await < 21 {}
    drop(clients);
    while figure(&url, "meshkeep_scans").await > 1 {}
    let rows = figure(&url, "meshkeep_scan_rows_total").await;
    assert!(rows < u64::from(PODS) * 20 / 2, "{rows} rows for clients that are gone");
    // no scan continues in the background: only the request for the metrics itself counts as a row
    let (before, after) = (figure(&url, "meshkeep_scan_rows_total").await, figure(&url, "meshkeep_scan_rows_total").await);
    assert_eq!(after, before + 1);
    running.stopped().await;
}
