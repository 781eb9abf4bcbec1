//! The etcd clients that users have: etcdctl of every available release, etcd's Go client, and a
//! Python client.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::{FLAG, MirroredCluster, list};
use crate::harness::etcd::{etcd_binaries, unused_port};
use crate::harness::eventually;
use crate::harness::mesh::MeshCluster;
use crate::stream_clients::client::{Client, StreamFollower, etcd_clients, python, source};

/// Environment variable with additional programs that follow a prefix. Their arguments and output
/// are those of the programs in this repository. `scripts/nightly` sets it to programs that take
/// long to build.
const MORE_CLIENTS: &str = "ETCD_FACE_CLIENTS";

/// Number of the event type `DELETE` in etcd's JSON.
const DELETE: u64 = 1;

/// Returns the etcdctl next to each etcd.
fn etcdctls() -> Vec<PathBuf> {
    etcd_clients();
    etcd_binaries().into_iter().map(|etcd| etcd.with_file_name("etcdctl")).collect()
}

fn etcdctl(tool: &Path, url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(tool);
    command.env("ETCDCTL_API", "3").arg(format!("--endpoints={url}")).args(arguments);
    command
}

/// Runs a tool. Returns whether it succeeded, and its output.
fn run_etcdctl(tool: &Path, url: &str, arguments: &[&str]) -> (bool, String) {
    let output = etcdctl(tool, url, arguments).output().unwrap_or_else(|error| panic!("{tool:?} (see scripts/test): {error}"));
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// Returns keys and values below a prefix in base64, as in etcd's JSON.
fn encoded_entries(cluster: &MeshCluster, prefix: &str) -> BTreeMap<String, String> {
    let below = cluster.entries.iter().filter(|(key, _)| key.starts_with(prefix));
    below.map(|(key, value)| (BASE64.encode(key), BASE64.encode(value))).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Applies the events that `etcdctl watch --prev-kv` has written so far.
fn apply(entries: &mut BTreeMap<String, String>, output: &str) {
    // the last line may be incomplete
    let complete = &output[..output.rfind('\n').map_or(0, |end| end + 1)];
    for line in complete.lines() {
        let reported: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for event in reported["Events"].as_array().into_iter().flatten() {
            let (key, value) = (text(&event["kv"]["key"]), text(&event["kv"]["value"]));
            let is_delete = event["type"] == DELETE;
            let before = if is_delete { entries.remove(&key) } else { entries.insert(key, value) };
            assert_eq!(event.get("prev_kv").map(|kv| text(&kv["value"])), before, "{line}");
        }
    }
}

/// Adds, changes and deletes some keys.
fn change(cluster: &mut MeshCluster) {
    let keys = cluster.keys_of("ip/v1");
    cluster.delete(&keys[0]);
    keys[1..4].iter().for_each(|key| cluster.change(key));
    cluster.add_endpoints(2);
}

#[tokio::test]
async fn etcdctl_reads_and_accepts_meshkeep_as_an_etcd() {
    let mirrored = MirroredCluster::start().await;
    let (url, cluster) = (mirrored.url(), &mirrored.remote.clusters[0]);
    let ips = encoded_entries(cluster, "cilium/cache/ip/");
    for tool in etcdctls() {
        let (_, help) = run_etcdctl(&tool, &url, &["get", "--help"]);
        for (arguments, expected) in [
            (&["get", "cilium/cluster-config/c01"][..], r#""cached":true"#),
            (&["get", "cilium/", "--prefix", "--keys-only", "--limit=5"], "cilium/.heartbeat"),
            (&["get", "cilium/cache/ip/", "--prefix", "--count-only", "--write-out=fields"], &format!("\"Count\" : {}", ips.len())),
            (&["get", "cilium/cache/ip/", "--prefix", "--sort-by=modify", "--order=descend", "--limit=1", "-w=json"], r#""more":true"#),
            (&["endpoint", "health"], "is healthy"),
            (&["endpoint", "status"], "3.7.0"),
            (&["member", "list"], "meshkeep"),
            (&["alarm", "list"], ""),
        ] {
            // etcdctl 3.4 has no `--count-only`
            if arguments.contains(&"--count-only") && !help.contains("--count-only") {
                continue;
            }
            // etcdctl 3.4 sends the whole URL in place of host and port when it requests a status,
            // which is refused as malformed (docs/operate/etcd.md)
            let url = if arguments[0] == "endpoint" { url.trim_start_matches("http://") } else { &url };
            let (succeeded, output) = run_etcdctl(&tool, url, arguments);
            assert!(succeeded && output.contains(expected), "{tool:?} {arguments:?}: {output}");
        }
        let (succeeded, output) = run_etcdctl(&tool, &url, &["get", "cilium/cache/ip/", "--prefix", "-w=json"]);
        // warnings follow the one line of the answer
        let listed: Value = serde_json::from_str(output.lines().next().unwrap_or_default()).unwrap();
        let kvs = listed["kvs"].as_array().unwrap().iter().map(|kv| (text(&kv["key"]), text(&kv["value"])));
        assert_eq!((succeeded, kvs.collect()), (true, ips.clone()), "{tool:?}");
        for refused in [&["put", "a", "b"][..], &["del", "a"], &["compact", "1"]] {
            let (succeeded, output) = run_etcdctl(&tool, &url, refused);
            assert!(!succeeded && output.contains("permission denied"), "{tool:?} {refused:?}: {output}");
        }
    }
}

#[tokio::test]
async fn etcdctl_watches_earlier_and_later_changes() {
    let mut mirrored = MirroredCluster::start().await;
    let (url, before) = (mirrored.url(), encoded_entries(&mirrored.remote.clusters[0], "cilium/cache/ip/"));
    let first = list(&mut mirrored.api, "cilium/cache/ip/").await.header().unwrap().revision();
    let from = format!("--rev={}", first + 1);
    let arguments = ["watch", "cilium/cache/ip/", "--prefix", "--prev-kv", "-w=json", &from];
    let start_watches = || etcdctls().into_iter().map(|tool| Client::start(|_| etcdctl(&tool, &url, &arguments)));
    let mut watches: Vec<Client> = start_watches().collect();
    mirrored.remote.change(change).await;
    mirrored.wait_until_served("a change").await;
    watches.extend(start_watches());
    let now = encoded_entries(&mirrored.remote.clusters[0], "cilium/cache/ip/");
    for watch in &watches {
        eventually("all events", || async {
            let mut entries = before.clone();
            apply(&mut entries, &watch.read("output"));
            (entries == now).then_some(())
        })
        .await;
    }
}

/// Starts the Go client, the Python client and the programs in [`MORE_CLIENTS`].
fn followers(url: &str) -> Vec<Client> {
    let mut script = Command::new(python());
    // the package's generated code is older than protobuf 4
    script.env("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python").arg(source("python/follow_etcd.py"));
    let mut commands = vec![Command::new(etcd_clients().join("go-etcd")), script];
    let more = std::env::var(MORE_CLIENTS).unwrap_or_default();
    commands.extend(more.split_whitespace().map(Command::new));
    let followed = commands.into_iter().map(|mut command| {
        command.args([url, "cilium/cache/"]);
        Client::start(|_| command)
    });
    followed.collect()
}

#[tokio::test]
async fn clients_of_other_languages_stay_in_sync_over_kills() {
    let flag = FLAG.replace(":0", &format!(":{}", unused_port()));
    let mut mirrored = MirroredCluster::with_flags(&[&flag]).await;
    let followers = followers(&mirrored.url());
    let agree = async |mirrored: &MirroredCluster, what: &str| {
        let entries = mirrored.remote.clusters[0].entries.iter();
        let entries: BTreeMap<&String, String> = entries.map(|(key, value)| (key, BASE64.encode(value))).collect();
        for follower in &followers {
            eventually(what, || async { follower.latest().await.filter(|state| state["keys"] == json!(entries)) }).await;
        }
    };
    agree(&mirrored, "a list").await;
    for _ in 0..3 {
        mirrored.remote.change(change).await;
        mirrored.wait_until_served("a change").await;
    }
    agree(&mirrored, "changes, live").await;
    for follower in &followers[..2] {
        let state = follower.latest().await.unwrap();
        assert!(state["previous"].as_u64().unwrap() >= 3 * 4, "each change and delete comes with the previous value");
    }
    let mut mirrored = mirrored.restart_after_kill(change).await;
    agree(&mirrored, "changes while meshkeep was down").await;
    mirrored.remote.change(change).await;
    mirrored.wait_until_served("a change").await;
    agree(&mirrored, "changes after a kill").await;
    for follower in &followers {
        assert_eq!(follower.latest().await.unwrap()["lists"], 1, "no client had to list again");
    }
}
