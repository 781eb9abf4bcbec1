//! `meshkeep load`: the samples as dumps of every form, served without an etcd, value for value.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::bundle::bundle;
use super::kubectl_habits::complete;
use super::samples::{entry_values, in_state_form};
use crate::harness::etcd::etcd_binaries;
use crate::harness::eventually;
use crate::harness::meshkeep::http;

/// A process that serves a dump, ended with the test.
struct Loaded {
    child: Child,
    url: String,
    /// First line of its output: the dump, its time, its form and its clusters.
    summary: String,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(dump: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
    command.arg("load").arg(dump).args(["--listen", "127.0.0.1:0"]).args(arguments).env_clear();
    command
}

fn load(dump: &Path, arguments: &[&str]) -> Loaded {
    let mut child = command(dump, arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let summary = lines.next().expect("must print the dump");
    let url = lines.next().expect("must print its address").strip_prefix("listening on ").unwrap().to_owned();
    Loaded { child, url, summary }
}

fn refused(dump: &Path) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command(dump, &[]).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dumps").join(name)
}

impl Loaded {
    async fn get(&self, path: &str) -> Value {
        let response = http().get(format!("{}{path}", self.url)).send().await.unwrap();
        assert!(response.headers().contains_key("meshkeep-dump"), "{path}");
        response.json().await.unwrap()
    }

    /// Returns the keys and values of all entries.
    async fn entries(&self) -> Vec<(String, Vec<u8>)> {
        let entries = self.get("/v1/entries").await;
        let entry = |entry: &Value| (entry["key"].as_str().unwrap().to_owned(), BASE64.decode(entry["value"].as_str().unwrap()).unwrap());
        entries["items"].as_array().unwrap().iter().map(entry).collect()
    }

    /// Runs a command of the command line against this process.
    fn query(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_meshkeep")).args(arguments).args(["--server", &self.url]).env_clear().output().unwrap()
    }
}

#[tokio::test]
async fn a_fixture_of_each_form_is_served_value_for_value() {
    let sysdump_lacks = |key: &str| key.contains("/serviceexports/") || key.contains("/endpointslices/");
    for (name, form, clusters, revisions) in [
        ("kvstore-paris.txt", "cilium-dbg kvstore get --recursive", &["paris"][..], false),
        ("kvstore-tokyo.txt", "cilium-dbg kvstore get --recursive", &["tokyo"], false),
        ("kvstore-kvstoremesh.json", "cilium-dbg kvstore get --recursive -o json", &["paris", "tokyo"], true),
        ("etcdctl-tokyo.json", "etcdctl get --prefix -w json", &["tokyo"], true),
        ("etcdctl-kvstoremesh.json", "etcdctl get --prefix -w json", &["paris", "tokyo"], true),
        ("cilium-sysdump-20260112-093215.zip", "cilium sysdump", &["paris"], true),
    ] {
        let loaded = load(&fixture(name), &[]);
        let mut expected = entry_values();
        expected.retain(|key, _| clusters.iter().any(|cluster| key.contains(&format!("/v1/{cluster}/"))));
        if form == "cilium sysdump" {
            expected.retain(|key, _| !sysdump_lacks(key));
        }
        assert_eq!(loaded.entries().await, expected.into_iter().collect::<Vec<_>>(), "{name}");
        let entries = loaded.get("/v1/entries").await;
        let has_revision = |entry: &Value| entry.as_object().unwrap()["sourceRevision"].is_i64();
        assert!(entries["items"].as_array().unwrap().iter().all(|entry| has_revision(entry) == revisions), "{name}: {entries}");
        assert_eq!(loaded.get("/v1/rejected").await["items"], json!([]), "{name}");
        assert_eq!(loaded.get("/v1/status").await["dump"]["form"], form, "{name}");
        assert!(loaded.summary.contains(form) && loaded.summary.ends_with(&clusters.join(", ")), "{}", loaded.summary);
    }
}

#[tokio::test]
async fn everything_that_is_served_says_that_it_is_a_dump_and_from_when() {
    const TIME: &str = "2026-01-12T09:31:07Z";
    let loaded = load(&fixture("kvstore-paris.txt"), &[]);
    assert_eq!(
        loaded.summary,
        format!("dump of {TIME} (its newest heartbeat), made by cilium-dbg kvstore get --recursive: 11 keys of paris")
    );
    let status = loaded.get("/v1/status").await;
    let path = fixture("kvstore-paris.txt").display().to_string();
    assert_eq!(status["dump"], json!({"path": path, "form": "cilium-dbg kvstore get --recursive", "time": TIME, "timeFrom": "heartbeat"}));
    let lookup = loaded.get("/v1/ipcache/lookup?ip=10.1.1.21").await;
    assert_eq!((&lookup["match"]["cluster"], &lookup["match"]["identity"]), (&json!("paris"), &json!(65_795)));
    assert_eq!(
        (&lookup["meta"]["origin"], &lookup["meta"]["lastContact"], &lookup["meta"]["revision"]),
        (&json!("dump"), &json!(TIME), &Value::Null)
    );
    for path in ["/v1/nodes", "/v1/services", "/v1/identities", "/v1/ipcache", "/v1/entries", "/v1/explain/10.1.1.21", "/v1/clusters"] {
        let answer = loaded.get(path).await;
        assert_eq!(answer["meta"]["origin"], "dump", "{path}: {answer}");
    }
    let cluster = loaded.get("/v1/clusters/paris").await;
    assert_eq!((&cluster["origin"], &cluster["lastContact"], &cluster["clusterID"]), (&json!("dump"), &json!(TIME), &json!(1)));
    assert_eq!(loaded.get("/v1/problems").await["items"].as_array().map(Vec::len), Some(0));
    for path in ["/", "/metrics", "/v1/entries/cilium/cache/ip/v1/paris/10.1.1.21", "/v1/events?snapshot=true", "/v1/nowhere"] {
        let response = http().get(format!("{}{path}", loaded.url)).send().await.unwrap();
        assert_eq!(response.headers()["meshkeep-dump"], TIME, "{path}");
    }
    let explained = loaded.query(&["explain", "10.1.1.21"]);
    let (out, note) = (String::from_utf8(explained.stdout).unwrap(), String::from_utf8(explained.stderr).unwrap());
    assert!(out.starts_with("10.1.1.21 -> paris  identity 65795") && out.contains("(dump, "), "{out}");
    assert_eq!(note, format!("from a dump of {TIME}, not from the clusters\n"));
    assert!(loaded.query(&["lookup", "10.1.1.21"]).status.success());
    // a completion has no note
    let words = ["meshkeep", "get", "nodes", "--server", loaded.url.as_str(), "--cluster", ""];
    let names = eventually("the names of the clusters", || async { Some(complete("bash", &words)).filter(|names| !names.is_empty()) });
    assert_eq!(names.await, ["paris"]);
    let answer = loaded.query(&["status", "--wait"]);
    assert!(answer.status.success(), "a dump has nothing to wait for");
    let status = String::from_utf8(answer.stdout).unwrap();
    assert!(status.contains(&format!("serves the dump {path} of {TIME}, made by cilium-dbg kvstore get --recursive")), "{status}");
    assert!(status.lines().last().unwrap().starts_with("paris  1   dump "), "{status}");
    let given = load(&fixture("kvstore-paris.txt"), &["--time", "2026-02-02T00:00:00Z"]);
    assert_eq!(given.get("/v1/status").await["dump"]["timeFrom"], "option");
}

#[tokio::test]
async fn what_a_meshkeep_prints_is_loaded_again() {
    let (_etcds, home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let lines = http().get(format!("{}/v1/entries", running.url())).header("accept", "application/x-ndjson").send().await.unwrap();
    std::fs::write(file("entries.ndjson"), lines.bytes().await.unwrap()).unwrap();
    assert!(bundle(running.url(), directory.path(), &["--output", "without.tar"]).status.success());
    assert!(bundle(running.url(), directory.path(), &["--output", "with.tar", "--entries"]).status.success());
    let clusters = running.get("/v1/clusters").await;
    running.stop().await;
    let export =
        Command::new(env!("CARGO_BIN_EXE_meshkeep")).args(["store", "export", "--data-dir"]).arg(home.data_directory()).output().unwrap();
    assert!(export.status.success(), "{export:?}");
    std::fs::write(file("export.ndjson"), export.stdout).unwrap();
    let expected: Vec<_> = entry_values().into_iter().collect();
    for (name, form) in
        [("entries.ndjson", "/v1/entries"), ("export.ndjson", "meshkeep store export"), ("with.tar", "meshkeep bundle --entries")]
    {
        let loaded = load(&file(name), &[]);
        assert_eq!(loaded.entries().await, expected, "{name}");
        assert_eq!(loaded.get("/v1/status").await["dump"]["form"], form);
        if name == "with.tar" {
            let cluster = loaded.get("/v1/clusters/tokyo").await;
            let before = &clusters["items"][1];
            assert_eq!((&cluster["clusterID"], &cluster["config"]), (&before["clusterID"], &before["config"]));
        }
    }
    let (code, error) = refused(&file("without.tar"));
    assert_eq!(code, Some(1));
    assert!(error.ends_with("is a bundle without entries: make one with `meshkeep bundle --entries`\n"), "{error}");
}

#[test]
fn load_listens_only_on_this_machine() {
    let Output { status, stderr, .. } = command(&fixture("kvstore-paris.txt"), &["--listen", "0.0.0.0:0"]).output().unwrap();
    let error = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{error}");
    assert!(error.contains("other machines can reach --listen 0.0.0.0:0"), "{error}");
}
