//! The followers in examples/, run as a user would run them. Each must have the same entries as
//! `/v1/ipcache`, even after meshkeep was killed or lost its data.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use super::client::{Client, generated_clients, python};
use super::{COMPARE_INTERVAL, port_of, start_settled, url};
use crate::harness::PATIENCE;
use crate::harness::mesh::SMALL;
use crate::harness::meshkeep::Meshkeep;
use crate::harness::proxy::Proxy;
use crate::harness::scene::Scene;

/// Maximum length of an example in lines, so that it is short enough to read.
const LINES_MAX: usize = 40;

/// A running follower.
struct Example {
    name: &'static str,
    client: Client,
    /// File in the client's directory whose last line has the client's state.
    output: &'static str,
}

impl Example {
    fn start_printing(name: &'static str, mut command: Command, base: &str) -> Self {
        command.arg(base);
        Self { name, client: Client::start(|_| command), output: "output" }
    }

    fn start_writing(name: &'static str, mut command: Command, base: &str) -> Self {
        let client = Client::start(|directory| {
            command.arg(base).arg(directory.join("copy.json"));
            command
        });
        Self { name, client, output: "copy.json" }
    }

    /// Returns the entries of the newest complete copy, by key.
    fn entries(&self) -> Value {
        self.client.last_line_of(self.output).unwrap_or_default()["entries"].take()
    }

    /// Waits until a copy satisfies a condition. Panics with the last copy.
    async fn wait_for(&self, what: &str, is_reached: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let entries = self.entries();
            if is_reached(&entries) {
                return;
            }
            assert!(Instant::now() < deadline, "{}: {what}, but it has {entries:#}", self.name);
            tokio::time::sleep(COMPARE_INTERVAL).await;
        }
    }

    /// Waits until the faulty follower has the new entry and still has the deleted one.
    async fn wait_for_fault(&self, deleted: &str, added: &str) {
        let what = format!("it must have the new {added} and still have {deleted}");
        self.wait_for(&what, |entries| entries[added].is_object() && entries[deleted].is_object()).await;
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
fn start_all(base: &str) -> Vec<Example> {
    let clients = generated_clients();
    vec![
        Example::start_writing("shell", program(example("follow.sh"), None), base),
        Example::start_printing("Python", program(python(), Some(&example("follow.py"))), base),
        Example::start_printing("TypeScript", program("node", Some(&clients.join("typescript/out/follow.js"))), base),
        Example::start_printing("Go", program(clients.join("go/follow/follow"), None), base),
        Example::start_printing("Rust", program(clients.join("rust/debug/follow"), None), base),
    ]
}

/// Starts the Python follower with one line disabled, to check that the tests notice the error.
fn faulty_follower(directory: &Path, name: &'static str, line: &str, base: &str) -> Example {
    let text = fs::read_to_string(example("follow.py")).unwrap();
    assert!(text.contains(line), "{line}");
    let path = directory.join(name);
    fs::write(&path, text.replace(line, "pass")).unwrap();
    Example::start_printing(name, program(python(), Some(&path)), base)
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
async fn wait_until_all_agree(examples: &[Example], scene: &Scene, after: &str) {
    scene.wait_until_settled(after).await;
    let truth = truth(scene.meshkeep()).await;
    for example in examples {
        let what = format!("after {after} it must have {truth:#?}");
        example.wait_for(&what, |entries| entries.as_object().is_some_and(|entries| sorted(entries.values()) == truth)).await;
    }
}

/// Returns the number of resets that clients received, by reason. Excludes the initial reset of the
/// harness's own follower, which starts with a snapshot.
async fn resets(meshkeep: &Meshkeep) -> Vec<(String, u64)> {
    let metrics = meshkeep.text("/metrics").await;
    let counts = metrics.lines().filter_map(|line| line.strip_prefix("meshkeep_stream_resets_total{reason=\"")?.split_once("\"} "));
    let counts = counts.map(|(reason, count)| (reason.to_owned(), count.parse::<u64>().unwrap() - u64::from(reason == "initial")));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Deletes one entry, changes another and adds a third. Returns the deleted key and the new one.
async fn change_entries(scene: &mut Scene) -> (String, String) {
    let mut keys = None;
    scene.remotes[0]
        .change(|cluster| {
            let before = cluster.keys_of("ip/v1");
            cluster.delete(&before[0]);
            cluster.change(&before[1]);
            cluster.add_endpoints(1);
            let added = cluster.keys_of("ip/v1").into_iter().find(|key| !before.contains(key)).unwrap();
            keys = Some((before[0].clone(), added));
        })
        .await;
    keys.unwrap()
}

/// Starts meshkeep again and connects the proxy to it.
async fn restart_behind_proxy(proxy: &mut Proxy, scene: &mut Scene) {
    scene.start_meshkeep().await;
    proxy.retarget(port_of(scene.meshkeep().url()));
    proxy.restore().await;
}

#[tokio::test]
async fn every_example_survives_a_kill_and_the_loss_of_all_data() {
    let mut scene = start_settled(SMALL).await;
    let mut proxy = Proxy::to(port_of(scene.meshkeep().url())).await;
    let examples = start_all(&url(&proxy));
    let directory = tempfile::tempdir().unwrap();
    let deletes_nothing = faulty_follower(directory.path(), "deletes-nothing.py", "fresh.pop(event[\"key\"], None)", &url(&proxy));
    let forgets_nothing = faulty_follower(directory.path(), "forgets-nothing.py", "fresh, synced = {}, False", &url(&proxy));
    wait_until_all_agree(&examples, &scene, "the start").await;
    for faulty in [&deletes_nothing, &forgets_nothing] {
        // a faulty follower reports no error, only its state is wrong
        faulty.wait_for("it must have a state", |entries| entries.as_object().is_some_and(|entries| !entries.is_empty())).await;
    }

    let (deleted, added) = change_entries(&mut scene).await;
    wait_until_all_agree(&examples, &scene, "changes").await;
    deletes_nothing.wait_for_fault(&deleted, &added).await;
    drop(deletes_nothing);

    proxy.cut().await;
    scene.kill_meshkeep();
    change_entries(&mut scene).await;
    restart_behind_proxy(&mut proxy, &mut scene).await;
    wait_until_all_agree(&examples, &scene, "a kill").await;
    assert_eq!(resets(scene.meshkeep()).await, [], "all followers resume from their positions");

    proxy.cut().await;
    scene.stop_meshkeep().await;
    let (deleted, added) = change_entries(&mut scene).await;
    fs::remove_dir_all(scene.home.data_directory()).unwrap();
    restart_behind_proxy(&mut proxy, &mut scene).await;
    wait_until_all_agree(&examples, &scene, "the loss of all data").await;
    forgets_nothing.wait_for_fault(&deleted, &added).await;
    let expected = [("foreignEpoch".to_owned(), examples.len() as u64 + 1)];
    assert_eq!(resets(scene.meshkeep()).await, expected, "each follower gets one reset");
    change_entries(&mut scene).await;
    wait_until_all_agree(&examples, &scene, "changes after a reset").await;
}

#[test]
fn examples_are_short_and_listed_in_the_readme() {
    let readme = fs::read_to_string(example("README.md")).unwrap();
    for file in fs::read_dir(example("")).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        let lines = fs::read_to_string(file.path()).unwrap().lines().count();
        assert!(name == "README.md" || lines <= LINES_MAX, "{name} has {lines} lines");
        assert!(name == "README.md" || readme.contains(&format!("[{name}]({name})")), "the README does not name {name}");
    }
}
