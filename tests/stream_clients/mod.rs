//! Clients of the change stream that users have, such as curl and `EventSource`. Each must reach
//! the true state, even if its connection is interrupted.

pub(crate) mod chromium;
pub(crate) mod client;
mod contract;
mod examples;
mod nginx;

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use self::chromium::Chromium;
use self::client::{Client, StreamFollower, install_tools, python, source};
use self::nginx::Nginx;
use crate::harness::certificates::Authority;
use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::{FULL, MeshCluster, SMALL, Shape};
use crate::harness::proxy::Proxy;
use crate::harness::scene::Scene;
use crate::harness::truth::{Objects, object_difference, reduce};
use crate::harness::{PATIENCE, eventually};

/// Number of bytes after which a proxy stops inside the first snapshot. The snapshot has about 20
/// KB, and the proxy forwards at most 4 KiB at once.
const PART_OF_SNAPSHOT_BYTES: u64 = 6_000;

/// Number of bytes after which a proxy stops inside a snapshot of [`FULL`] over TLS. The snapshot
/// has about 200 KB, and TLS delivers nothing before a record of 16 KiB is complete.
const PART_OF_SNAPSHOT_TLS_BYTES: u64 = 60_000;

/// Number of bytes after which a proxy stops inside the event of a service that has a label of
/// [`LABEL_CHARACTERS`] characters. The first TLS record ends before that.
const PART_OF_EVENT_BYTES: u64 = 30_000;

/// Number of characters in the label, of two bytes each.
const LABEL_CHARACTERS: usize = 20_000;

/// Interval between reads of a client's state.
const COMPARE_INTERVAL: Duration = Duration::from_millis(100);

async fn start_settled(shape: Shape) -> Scene {
    let scene = Scene::start(&etcd_binaries()[0], 1, 0, shape).await;
    scene.wait_until_settled("the first loading").await;
    scene
}

fn port_of(url: &str) -> u16 {
    url.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap()
}

/// Starts a proxy that forwards `bytes` bytes of the answers and then nothing.
async fn limited_proxy(target: u16, bytes: u64) -> Proxy {
    let proxy = Proxy::to(target).await;
    proxy.allow_bytes(bytes);
    proxy
}

fn url(proxy: &Proxy) -> String {
    format!("http://127.0.0.1:{}", proxy.port())
}

/// Makes a proxy accept connections again after a cut, and forward everything.
async fn restore(proxy: &mut Proxy) {
    proxy.allow_bytes(u64::MAX);
    proxy.restore().await;
}

/// Returns a client's objects, reduced like those of the harness's own follower.
fn objects(state: &Value) -> Objects {
    let received = state["objects"].as_object().into_iter().flatten();
    received
        .map(|(key, received)| {
            let (key_of_object, object) = reduce(received["kind"].as_str().unwrap(), &received["object"]);
            assert_eq!(*key, key_of_object);
            (key_of_object, object)
        })
        .collect()
}

/// Waits until a client has the true state, and returns its whole state.
async fn wait_for_true_state(client: &impl StreamFollower, scene: &Scene, after: &str) -> Value {
    let truth = scene.truth().expected().objects;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let state = client.latest().await.unwrap_or_default();
        let Some(difference) = object_difference("object of the client", &truth, &objects(&state)) else { return state };
        assert!(Instant::now() < deadline, "after {after} the client has another state:\n{difference}");
        tokio::time::sleep(COMPARE_INTERVAL).await;
    }
}

/// Adds a service whose label needs many reads, and contains everything that could end a line or a
/// string too early. Returns its key.
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

/// Interrupts a client's connection through a proxy of [`limited_proxy`] twice: inside its first
/// snapshot, and later inside an event. The client must reach the true state each time, and the
/// second time without a reset.
async fn interrupt_twice(scene: &mut Scene, client: &impl StreamFollower, proxy: &mut Proxy) -> Value {
    eventually("the snapshot to stop half-way", || std::future::ready(proxy.is_budget_spent().then_some(()))).await;
    proxy.cut().await;
    assert_eq!(client.latest().await, None, "an incomplete snapshot is no state");
    restore(proxy).await;
    let started = wait_for_true_state(client, scene, "an interrupted snapshot").await;

    let keys = scene.remotes[0].clusters[0].keys_of("services/v1");
    scene.remotes[0]
        .change(|cluster| {
            cluster.change(&keys[0]);
            cluster.delete(&keys[1]);
        })
        .await;
    wait_for_true_state(client, scene, "a change and a delete").await;

    proxy.allow_bytes(PART_OF_EVENT_BYTES);
    let mut big = String::new();
    scene.remotes[0].change(|cluster| big = insert_big_service(cluster)).await;
    eventually("an event to stop half-way", || std::future::ready(proxy.is_budget_spent().then_some(()))).await;
    proxy.cut().await;
    let state = client.latest().await.unwrap();
    assert!(state["objects"].get(&big).is_none(), "an incomplete event must not be applied");
    scene.remotes[0].change(|cluster| cluster.delete(&keys[2])).await;
    restore(proxy).await;
    let resumed = wait_for_true_state(client, scene, "an interrupted event").await;
    assert_eq!(resumed["resets"], started["resets"], "the client resumed from its position");

    scene.remotes[0].change(|cluster| cluster.delete(&big)).await;
    let state = wait_for_true_state(client, scene, "a later delete").await;
    assert_eq!(state["resets"], started["resets"]);
    state
}

/// Interrupts the stream of a client that connects to a sidecar through a proxy. In the end, the
/// lists must have the same state.
async fn check_client(command: impl FnOnce(&str, &std::path::Path) -> Command) -> Client {
    install_tools();
    let mut scene = start_settled(SMALL).await;
    let mut proxy = limited_proxy(port_of(scene.meshkeep().url()), PART_OF_SNAPSHOT_BYTES).await;
    let client = Client::start(|directory| command(&url(&proxy), directory));
    interrupt_twice(&mut scene, &client, &mut proxy).await;
    scene.wait_until_settled("all interruptions").await;
    client
}

fn follow_sse(base: &str, options: &[&str]) -> Command {
    let mut command = Command::new(source("shell/follow-sse"));
    command.arg(base).args(options);
    command
}

#[tokio::test]
async fn curl_follows_server_sent_events() {
    check_client(|base, _| follow_sse(base, &[])).await;
}

#[tokio::test]
async fn curl_follows_over_http2_without_tls() {
    let client = check_client(|base, directory| {
        let headers = directory.join("headers");
        follow_sse(base, &["--http2-prior-knowledge", "--dump-header", headers.to_str().unwrap()])
    })
    .await;
    assert_eq!(client.read("headers").lines().next().map(str::trim), Some("HTTP/2 200"));
}

#[tokio::test]
async fn curl_and_jq_follow_ndjson() {
    check_client(|base, directory| {
        let mut command = Command::new(source("shell/follow-ndjson"));
        command.arg(base).arg(directory.join("events"));
        command
    })
    .await;
}

#[tokio::test]
async fn pythons_httpx_follows_server_sent_events() {
    let python = python();
    check_client(|base, _| {
        let mut command = Command::new(python);
        command.arg(source("python/follow.py")).arg(base);
        command
    })
    .await;
}

#[tokio::test]
async fn gos_standard_library_follows_server_sent_events() {
    check_client(|base, _| {
        let mut command = Command::new(install_tools().join("go-follow"));
        command.arg(base);
        command
    })
    .await;
}

#[tokio::test]
async fn the_npm_package_eventsource_reconnects_by_itself() {
    let client = check_client(|base, _| {
        let mut command = Command::new("node");
        command.arg(source("eventsource/node.js")).arg(base).arg(install_tools());
        command
    })
    .await;
    assert_eq!(client.latest().await.unwrap()["closed"], 0, "it reconnected by itself each time");
}

#[tokio::test]
async fn go_and_curl_use_http2_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ca");
    let pair = authority.server("server", &["localhost", "127.0.0.1"]);
    let mut scene = start_settled(FULL).await;
    let (certificate, key) = (format!("--tls-cert={}", pair.certificate.display()), format!("--tls-key={}", pair.key.display()));
    scene.home = scene.home.with_flags(&[&certificate, &key]);
    // restart with TLS, and without the harness's own follower, which does not trust this
    // authority; everything is in the store
    scene.follower = None;
    scene.meshkeep.take().unwrap().stop().await;
    let meshkeep = scene.home.start().await;
    let mut proxy = limited_proxy(port_of(meshkeep.url()), PART_OF_SNAPSHOT_TLS_BYTES).await;
    let base = format!("https://localhost:{}", proxy.port());
    let ca = authority.certificate().to_str().unwrap();
    let go = Client::start(|_| {
        let mut command = Command::new(install_tools().join("go-follow"));
        command.arg(&base).arg(ca);
        command
    });
    let state = interrupt_twice(&mut scene, &go, &mut proxy).await;
    assert_eq!(state["protocol"], "HTTP/2.0");
    let curl =
        Client::start(|directory| follow_sse(&base, &["--cacert", ca, "--dump-header", directory.join("headers").to_str().unwrap()]));
    wait_for_true_state(&curl, &scene, "its start").await;
    assert_eq!(curl.read("headers").lines().next().map(str::trim), Some("HTTP/2 200"));
}

#[tokio::test]
async fn curl_follows_through_nginx_when_its_upstream_is_cut() {
    let mut scene = start_settled(SMALL).await;
    let mut proxy = limited_proxy(port_of(scene.meshkeep().url()), PART_OF_SNAPSHOT_BYTES).await;
    let nginx = Nginx::in_front_of(proxy.port()).await;
    let client = Client::start(|_| follow_sse(&format!("http://127.0.0.1:{}", nginx.port()), &[]));
    interrupt_twice(&mut scene, &client, &mut proxy).await;
    scene.wait_until_settled("all interruptions").await;
}

#[tokio::test]
async fn chromiums_eventsource_behind_nginx_survives_a_restart() {
    let mut scene = start_settled(SMALL).await;
    let mut upstream_proxy = Proxy::to(port_of(scene.meshkeep().url())).await;
    let nginx = Nginx::in_front_of(upstream_proxy.port()).await;
    let mut client_proxy = Proxy::to(nginx.port()).await;
    let chromium = Chromium::open(&format!("{}/page.html", url(&client_proxy))).await;
    client_proxy.allow_bytes(PART_OF_SNAPSHOT_BYTES);
    chromium.run("window.start()").await;
    let state = interrupt_twice(&mut scene, &chromium, &mut client_proxy).await;
    assert_eq!(state["closed"], 0, "it reconnected by itself each time");
    scene.wait_until_settled("all interruptions").await;

    // nginx answers while the sidecar is down, and that ends an EventSource: the page has to open
    // another one
    upstream_proxy.cut().await;
    scene.kill_meshkeep();
    eventually("the EventSource to close", || async {
        (chromium.run("return window.state.closed").await.as_u64() > Some(0)).then_some(())
    })
    .await;
    let service = scene.remotes[0].clusters[0].keys_of("services/v1")[0].clone();
    scene.remotes[0].change(|cluster| cluster.delete(&service)).await;
    scene.start_meshkeep().await;
    upstream_proxy.retarget(port_of(scene.meshkeep().url()));
    upstream_proxy.restore().await;
    wait_for_true_state(&chromium, &scene, "a restart of the sidecar").await;
}
