//! Real clients of the change stream, as users have them: each must end with the true state,
//! whatever happens to its connection.

pub(crate) mod chromium;
pub(crate) mod client;
mod contract;
mod examples;
mod nginx;

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use self::chromium::Chromium;
use self::client::{Client, Following, installed, python, source};
use self::nginx::Nginx;
use crate::harness::certificates::Authority;
use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::{FULL, MeshCluster, SMALL, Shape};
use crate::harness::proxy::Proxy;
use crate::harness::scene::Scene;
use crate::harness::truth::{Objects, difference_of, reduce};
use crate::harness::{PATIENCE, eventually};

/// Budget that ends inside the first snapshot, which has about 20 KB: the proxy forwards at most 4
/// KiB at once.
const PART_OF_SNAPSHOT_BYTES: u64 = 6_000;

/// Budget that ends inside a snapshot of [`FULL`], about 200 KB, over TLS, which delivers nothing
/// before a record of 16 KiB is complete.
const PART_OF_SNAPSHOT_TLS_BYTES: u64 = 60_000;

/// Budget that ends inside the event of a service with a label of [`LABEL_CHARACTERS`], after the
/// first TLS record.
const PART_OF_EVENT_BYTES: u64 = 30_000;

/// Number of characters in the label, of two bytes each.
const LABEL_CHARACTERS: usize = 20_000;

/// Interval between reads of a client's state.
const COMPARING_EVERY: Duration = Duration::from_millis(100);

async fn settled(shape: Shape) -> Scene {
    let scene = Scene::start(&etcd_binaries()[0], 1, 0, shape).await;
    scene.settles("the first loading").await;
    scene
}

fn port_of(url: &str) -> u16 {
    url.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap()
}

/// Starts a proxy that forwards part of a snapshot and then nothing.
async fn thin_wire(target: u16, bytes: u64) -> Proxy {
    let wire = Proxy::to(target).await;
    wire.allow_bytes(bytes);
    wire
}

fn url(wire: &Proxy) -> String {
    format!("http://127.0.0.1:{}", wire.port())
}

/// Accepts connections again after a cut, and forwards everything.
async fn mend(wire: &mut Proxy) {
    wire.allow_bytes(u64::MAX);
    wire.restore().await;
}

/// Returns a client's objects, reduced like those of the harness's own follower.
fn objects(state: &Value) -> Objects {
    let held = state["objects"].as_object().into_iter().flatten();
    held.map(|(key, held)| {
        let (own_key, object) = reduce(held["kind"].as_str().unwrap(), &held["object"]);
        assert_eq!(*key, own_key);
        (own_key, object)
    })
    .collect()
}

/// Waits until a client has the true state, and returns its whole state.
async fn agrees(client: &impl Following, scene: &Scene, after: &str) -> Value {
    let truth = scene.truth().expected().objects;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let state = client.latest().await.unwrap_or_default();
        let Some(different) = difference_of("object of the client", &truth, &objects(&state)) else { return state };
        assert!(Instant::now() < deadline, "after {after} the client holds something else:\n{different}");
        tokio::time::sleep(COMPARING_EVERY).await;
    }
}

/// Adds a service whose label needs many reads and contains everything that could end a line or a
/// text too early.
fn insert_big_service(cluster: &mut MeshCluster) -> String {
    let key = format!("cilium/cache/services/v1/{}/big/service", cluster.name);
    let label = serde_json::to_string(&format!("\r\n\n\u{2028}\u{85}\"data: \u{1f578}{}", "ü".repeat(LABEL_CHARACTERS))).unwrap();
    let value = format!(
        r#"{{"cluster":"{}","namespace":"big","name":"service","frontends":{{}},"backends":{{}},"labels":{{"big":{label}}},"selector":{{}},"includeExternal":true,"shared":true,"clusterID":{}}}"#,
        cluster.name, cluster.id
    );
    cluster.entries.insert(key.clone(), value.into_bytes());
    key
}

/// Runs a client through a proxy of [`thin_wire`]: its first snapshot breaks off, and later an
/// event in the middle. The client must reach the true state each time, and the second time without
/// a reset.
async fn survives(scene: &mut Scene, client: &impl Following, wire: &mut Proxy) -> Value {
    eventually("the snapshot to stop half-way", || std::future::ready(wire.is_dry().then_some(()))).await;
    wire.cut().await;
    assert_eq!(client.latest().await, None, "half a snapshot is nothing");
    mend(wire).await;
    let started = agrees(client, scene, "a snapshot that broke off").await;

    let keys = scene.remotes[0].clusters[0].keys_of("services/v1");
    scene.remotes[0]
        .change(|cluster| {
            cluster.change(&keys[0]);
            cluster.delete(&keys[1]);
        })
        .await;
    agrees(client, scene, "a change and a delete").await;

    wire.allow_bytes(PART_OF_EVENT_BYTES);
    let mut big = String::new();
    scene.remotes[0].change(|cluster| big = insert_big_service(cluster)).await;
    eventually("an event to stop half-way", || std::future::ready(wire.is_dry().then_some(()))).await;
    wire.cut().await;
    let state = client.latest().await.unwrap();
    assert!(state["objects"].get(&big).is_none(), "half an event is nothing");
    scene.remotes[0].change(|cluster| cluster.delete(&keys[2])).await;
    mend(wire).await;
    let resumed = agrees(client, scene, "an event that broke off").await;
    assert_eq!(resumed["resets"], started["resets"], "it went on from its position");

    scene.remotes[0].change(|cluster| cluster.delete(&big)).await;
    let state = agrees(client, scene, "going on").await;
    assert_eq!(state["resets"], started["resets"]);
    state
}

/// Interrupts the stream of a client that connects through a proxy directly to a sidecar. In the
/// end the lists have the same state.
async fn client_survives(command: impl FnOnce(&str, &std::path::Path) -> Command) -> Client {
    installed();
    let mut scene = settled(SMALL).await;
    let mut wire = thin_wire(port_of(scene.meshkeep().url()), PART_OF_SNAPSHOT_BYTES).await;
    let client = Client::start(|directory| command(&url(&wire), directory));
    survives(&mut scene, &client, &mut wire).await;
    scene.settles("all that").await;
    client
}

fn follow_sse(base: &str, options: &[&str]) -> Command {
    let mut command = Command::new(source("shell/follow-sse"));
    command.arg(base).args(options);
    command
}

#[tokio::test]
async fn curl_follows_server_sent_events() {
    client_survives(|base, _| follow_sse(base, &[])).await;
}

#[tokio::test]
async fn curl_follows_over_http2_without_tls() {
    let client = client_survives(|base, directory| {
        let headers = directory.join("headers");
        follow_sse(base, &["--http2-prior-knowledge", "--dump-header", headers.to_str().unwrap()])
    })
    .await;
    assert_eq!(client.read("headers").lines().next().map(str::trim), Some("HTTP/2 200"));
}

#[tokio::test]
async fn curl_and_jq_follow_ndjson() {
    client_survives(|base, directory| {
        let mut command = Command::new(source("shell/follow-ndjson"));
        command.arg(base).arg(directory.join("events"));
        command
    })
    .await;
}

#[tokio::test]
async fn pythons_httpx_follows_server_sent_events() {
    let python = python();
    client_survives(|base, _| {
        let mut command = Command::new(python);
        command.arg(source("python/follow.py")).arg(base);
        command
    })
    .await;
}

#[tokio::test]
async fn gos_standard_library_follows_server_sent_events() {
    client_survives(|base, _| {
        let mut command = Command::new(installed().join("go-follow"));
        command.arg(base);
        command
    })
    .await;
}

#[tokio::test]
async fn the_npm_package_eventsource_follows_by_itself() {
    let client = client_survives(|base, _| {
        let mut command = Command::new("node");
        command.arg(source("eventsource/node.js")).arg(base).arg(installed());
        command
    })
    .await;
    assert_eq!(client.latest().await.unwrap()["closed"], 0, "it came back by itself, each time");
}

#[tokio::test]
async fn go_and_curl_agree_on_http2_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ca");
    let pair = authority.server("server", &["localhost", "127.0.0.1"]);
    let mut scene = settled(FULL).await;
    let (certificate, key) = (format!("--tls-cert={}", pair.certificate.display()), format!("--tls-key={}", pair.key.display()));
    scene.home = scene.home.with_flags(&[&certificate, &key]);
    // again, without the follower and with everything in the store: the harness's own client does
    // not trust this authority
    scene.follower = None;
    scene.meshkeep.take().unwrap().stop().await;
    let meshkeep = scene.home.start().await;
    let mut wire = thin_wire(port_of(meshkeep.url()), PART_OF_SNAPSHOT_TLS_BYTES).await;
    let base = format!("https://localhost:{}", wire.port());
    let ca = authority.certificate().to_str().unwrap();
    let go = Client::start(|_| {
        let mut command = Command::new(installed().join("go-follow"));
        command.arg(&base).arg(ca);
        command
    });
    let state = survives(&mut scene, &go, &mut wire).await;
    assert_eq!(state["protocol"], "HTTP/2.0");
    let curl =
        Client::start(|directory| follow_sse(&base, &["--cacert", ca, "--dump-header", directory.join("headers").to_str().unwrap()]));
    agrees(&curl, &scene, "its start").await;
    assert_eq!(curl.read("headers").lines().next().map(str::trim), Some("HTTP/2 200"));
}

#[tokio::test]
async fn curl_follows_through_nginx_when_the_wire_behind_it_breaks() {
    let mut scene = settled(SMALL).await;
    let mut wire = thin_wire(port_of(scene.meshkeep().url()), PART_OF_SNAPSHOT_BYTES).await;
    let nginx = Nginx::before(wire.port()).await;
    let client = Client::start(|_| follow_sse(&format!("http://127.0.0.1:{}", nginx.port()), &[]));
    survives(&mut scene, &client, &mut wire).await;
    scene.settles("all that").await;
}

#[tokio::test]
async fn chromiums_eventsource_follows_through_nginx_and_outlives_a_restart_of_the_sidecar() {
    let mut scene = settled(SMALL).await;
    let mut behind = Proxy::to(port_of(scene.meshkeep().url())).await;
    let nginx = Nginx::before(behind.port()).await;
    let mut before = Proxy::to(nginx.port()).await;
    let chromium = Chromium::open(&format!("{}/page.html", url(&before))).await;
    before.allow_bytes(PART_OF_SNAPSHOT_BYTES);
    chromium.run("window.start()").await;
    let state = survives(&mut scene, &chromium, &mut before).await;
    assert_eq!(state["closed"], 0, "it came back by itself, each time");
    scene.settles("all that").await;

    // nginx answers while the sidecar is down, and that ends an EventSource: the page has to open
    // another one
    behind.cut().await;
    scene.kill_meshkeep();
    eventually("the EventSource to close", || async {
        (chromium.run("return window.state.closed").await.as_u64() > Some(0)).then_some(())
    })
    .await;
    let service = scene.remotes[0].clusters[0].keys_of("services/v1")[0].clone();
    scene.remotes[0].change(|cluster| cluster.delete(&service)).await;
    scene.start_meshkeep().await;
    behind.retarget(port_of(scene.meshkeep().url()));
    behind.restore().await;
    agrees(&chromium, &scene, "a restart of the sidecar").await;
}
