//! The etcd face against the clients of etcd, and against etcd itself.

mod agents;
mod conformance;
mod rights;
mod watches;

use etcd_client::{Client, ConnectOptions, GetOptions, GetResponse};

use crate::harness::meshkeep::{Home, Meshkeep};

/// The flag that switches it on.
const FLAG: &str = "--etcd-listen=127.0.0.1:0";

/// Where a sidecar that has just started serves it.
fn face_url(home: &Home) -> String {
    let output = home.output();
    let line = output.lines().find_map(|line| line.strip_prefix("listening on ")?.strip_suffix(" as an etcd"));
    line.unwrap_or_else(|| panic!("no etcd face in {output}")).to_owned()
}

async fn client(url: &str) -> Client {
    Client::connect([url], Some(ConnectOptions::new())).await.unwrap()
}

/// Everything below a prefix.
async fn list(client: &mut Client, prefix: &str) -> GetResponse {
    client.get(prefix, Some(GetOptions::new().with_prefix())).await.unwrap()
}

/// Starts it with the face, and waits until its clusters are live.
async fn start(home: &mut Home, clusters: &[&str]) -> (Meshkeep, Client) {
    let meshkeep = home.start().await;
    let client = client(&face_url(home)).await;
    for name in clusters {
        meshkeep.reaches(name, "live").await;
    }
    (meshkeep, client)
}
