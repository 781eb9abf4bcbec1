//! The followers of examples/, run as a user would run them. Each must have the same entries as
//! `/v1/ipcache`, whatever happens to meshkeep.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use super::client::{Client, generated_clients, python};
use super::{COMPARING_EVERY, port_of, settled, url};
use crate::harness::PATIENCE;
use crate::harness::mesh::SMALL;
use crate::harness::meshkeep::Meshkeep;
use crate::harness::proxy::Proxy;
use crate::harness::scene::Scene;

/// Maximum length of an example in lines. Nobody reads longer ones.
const LINES_MAX: usize = 40;

/// A running follower.
struct Example {
    name: &'static str,
    client: Client,
    /// File in its own directory whose last line has its state.
    output: &'static str,
}

impl Example {
    fn prints(name: &'static str, mut command: Command, base: &str) -> Self {
        command.arg(base);
        Self { name, client: Client::start(|_| command), output: "output" }
    }

    fn writes(name: &'static str, mut command: Command, base: &str) -> Self {
        let client = Client::start(|directory| {
            command.arg(base).arg(directory.join("copy.json"));
            command
        });
        Self { name, client, output: "copy.json" }
    }

    /// Returns the entries of its newest complete copy, by key.
    fn entries(&self) -> Value {
        self.client.last_line_of(self.output).unwrap_or_default()["entries"].take()
    }

    /// Waits until a copy satisfies a condition. Panics with the last copy.
    async fn comes_to(&self, what: &str, fits: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let entries = self.entries();
            if fits(&entries) {
                return;
            }
            assert!(Instant::now() < deadline, "{}: {what}, but it holds {entries:#}", self.name);
            tokio::time::sleep(COMPARING_EVERY).await;
        }
    }

    /// Waits until the faulty follower has the new entry and still has the deleted one.
    async fn is_caught(&self, gone: &str, new: &str) {
        let what = format!("it must see that {new} is new and keep {gone}");
        self.comes_to(&what, |held| held[new].is_object() && held[gone].is_object()).await;
    }
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// Returns the command of a program with its first argument.
fn program(name: impl AsRef<Path>, script: Option<&Path>) -> Command {
    let mut command = Command::new(name.as_ref());
    command.args(script);
    command
}

/// Starts all followers with the address of a meshkeep.
fn all(base: &str) -> Vec<Example> {
    let clients = generated_clients();
    vec![
        Example::writes("shell", program(example("follow.sh"), None), base),
        Example::prints("Python", program(python(), Some(&example("follow.py"))), base),
        Example::prints("TypeScript", program("node", Some(&clients.join("typescript/out/follow.js"))), base),
        Example::prints("Go", program(clients.join("go/follow/follow"), None), base),
        Example::prints("Rust", program(clients.join("rust/debug/follow"), None), base),
    ]
}

/// Starts the Python follower with one line disabled, to check that the tests notice the error.
fn without(directory: &Path, name: &'static str, line: &str, base: &str) -> Example {
    let text = fs::read_to_string(example("follow.py")).unwrap();
    assert!(text.contains(line), "{line}");
    let path = directory.join(name);
    fs::write(&path, text.replace(line, "pass")).unwrap();
    Example::prints(name, program(python(), Some(&path)), base)
}

/// Returns the entries of `/v1/ipcache`, in order.
async fn truth(meshkeep: &Meshkeep) -> Vec<String> {
    let answer = meshkeep.get("/v1/ipcache?limit=10000").await;
    assert_eq!(answer.get("nextPageToken"), None);
    sorted(answer["items"].as_array().unwrap())
}

fn sorted<'a>(items: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    let mut texts: Vec<String> = items.into_iter().map(Value::to_string).collect();
    texts.sort();
    texts
}

/// Waits until each follower has the entries of the list.
async fn all_hold_the_truth(examples: &[Example], scene: &Scene, after: &str) {
    scene.settles(after).await;
    let truth = truth(scene.meshkeep()).await;
    for example in examples {
        let what = format!("after {after} it must hold {truth:#?}");
        example.comes_to(&what, |entries| entries.as_object().is_some_and(|entries| sorted(entries.values()) == truth)).await;
    }
}

/// Returns the number of resets that clients received, by reason. Excludes that of the harness's
/// own follower, which starts with a snapshot.
async fn resets(meshkeep: &Meshkeep) -> Vec<(String, u64)> {
    let metrics = meshkeep.text("/metrics").await;
    let counts = metrics.lines().filter_map(|line| line.strip_prefix("meshkeep_stream_resets_total{reason=\"")?.split_once("\"} "));
    let counts = counts.map(|(reason, count)| (reason.to_owned(), count.parse::<u64>().unwrap() - u64::from(reason == "initial")));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Deletes one entry, changes another and adds a third. Returns the deleted key and the new one.
async fn change_entries(scene: &mut Scene) -> (String, String) {
    let mut reported = None;
    scene.remotes[0]
        .change(|cluster| {
            let before = cluster.keys_of("ip/v1");
            cluster.delete(&before[0]);
            cluster.change(&before[1]);
            cluster.add_endpoints(1);
            let new = cluster.keys_of("ip/v1").into_iter().find(|key| !before.contains(key)).unwrap();
            reported = Some((before[0].clone(), new));
        })
        .await;
    reported.unwrap()
}

/// Starts meshkeep again and connects the proxy to it.
async fn start_behind(wire: &mut Proxy, scene: &mut Scene) {
    scene.start_meshkeep().await;
    wire.retarget(port_of(scene.meshkeep().url()));
    wire.restore().await;
}

#[tokio::test]
async fn every_example_follows_over_a_kill_and_the_loss_of_all_data() {
    let mut scene = settled(SMALL).await;
    let mut wire = Proxy::to(port_of(scene.meshkeep().url())).await;
    let examples = all(&url(&wire));
    let directory = tempfile::tempdir().unwrap();
    let deletes_nothing = without(directory.path(), "deletes-nothing.py", "fresh.pop(event[\"key\"], None)", &url(&wire));
    let forgets_nothing = without(directory.path(), "forgets-nothing.py", "fresh, synced = {}, False", &url(&wire));
    all_hold_the_truth(&examples, &scene, "the start").await;
    for wrong in [&deletes_nothing, &forgets_nothing] {
        // the error shows only in its state
        wrong.comes_to("it must begin", |held| held.as_object().is_some_and(|held| !held.is_empty())).await;
    }

    let (gone, new) = change_entries(&mut scene).await;
    all_hold_the_truth(&examples, &scene, "changes").await;
    deletes_nothing.is_caught(&gone, &new).await;
    drop(deletes_nothing);

    wire.cut().await;
    scene.kill_meshkeep();
    change_entries(&mut scene).await;
    start_behind(&mut wire, &mut scene).await;
    all_hold_the_truth(&examples, &scene, "a kill").await;
    assert_eq!(resets(scene.meshkeep()).await, [], "they go on from their positions");

    wire.cut().await;
    scene.stop_meshkeep().await;
    let (gone, new) = change_entries(&mut scene).await;
    fs::remove_dir_all(scene.home.data_directory()).unwrap();
    start_behind(&mut wire, &mut scene).await;
    all_hold_the_truth(&examples, &scene, "the loss of all data").await;
    forgets_nothing.is_caught(&gone, &new).await;
    let expected = [("foreignEpoch".to_owned(), examples.len() as u64 + 1)];
    assert_eq!(resets(scene.meshkeep()).await, expected, "each is reported once");
    change_entries(&mut scene).await;
    all_hold_the_truth(&examples, &scene, "changes behind a reset").await;
}

#[test]
fn no_example_is_too_long_to_be_read() {
    let readme = fs::read_to_string(example("README.md")).unwrap();
    for file in fs::read_dir(example("")).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        let lines = fs::read_to_string(file.path()).unwrap().lines().count();
        assert!(name == "README.md" || lines <= LINES_MAX, "{name} has {lines} lines");
        assert!(name == "README.md" || readme.contains(&format!("[{name}]({name})")), "the README does not name {name}");
    }
}
