//! `meshkeep bundle` and `/v1/log`: the information that another person needs to diagnose a
//! problem.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::samples::in_state_form;
use crate::harness::etcd::etcd_binaries;
use crate::harness::meshkeep::Home;

/// Runs the command in a directory.
pub(super) fn bundle(server: &str, directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
    command.arg("bundle").args(["--server", server]).args(arguments).current_dir(directory).env_clear().output().unwrap()
}

/// Returns the files of a tar archive by name.
pub(super) fn files_of(tar: &[u8]) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(tar);
    let file = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
        let mut entry = entry.unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (entry.path().unwrap().display().to_string(), text)
    };
    archive.entries().unwrap().map(file).collect()
}

#[tokio::test]
async fn a_bundle_has_every_file_and_only_its_owner_may_read_it() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &["--log-level=debug"]).await;
    let directory = tempfile::tempdir().unwrap();
    let output = bundle(running.url(), directory.path(), &[]);
    assert!(output.status.success(), "{output:?}");
    let path = std::fs::read_dir(directory.path()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let files = files_of(&std::fs::read(&path).unwrap());
    let names: Vec<&str> = files.keys().map(|name| name.strip_prefix("meshkeep-bundle/").unwrap()).collect();
    let all = ["about", "clusters", "config", "problems", "rejected", "status"].map(|name| format!("{name}.json"));
    let texts = ["log", "metrics", "ready", "synced"].map(|name| format!("{name}.txt"));
    let mut expected: Vec<&str> = all.iter().chain(&texts).map(String::as_str).collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let summary = String::from_utf8(output.stdout).unwrap();
    assert!(summary.starts_with("meshkeep-bundle-2") && summary.contains(".tar: 10 files, "), "{summary}");
    let json = |name: &str| serde_json::from_str::<Value>(&files[&format!("meshkeep-bundle/{name}")]).unwrap();
    assert_eq!(json("clusters.json")["items"][0]["name"], "paris");
    assert_eq!(json("config.json")["items"][0]["name"], "config");
    assert!(files["meshkeep-bundle/metrics.txt"].contains("meshkeep_build_info"));
    assert!(files["meshkeep-bundle/synced.txt"].contains("ok"));
    // the log in the bundle is a prefix of the log that was written
    let log = &files["meshkeep-bundle/log.txt"];
    assert!(log.contains("store is loaded") && running.log().starts_with(log.as_str()), "{log}");
    assert_eq!(running.get("/v1/log").await["omitted"], json!(0));

    let out = bundle(running.url(), directory.path(), &["--output", "-"]);
    assert_eq!(files_of(&out.stdout).len(), 10);
    let nowhere = bundle(running.url(), directory.path(), &["--output", "/nowhere/x.tar"]);
    assert_eq!(nowhere.status.code(), Some(1), "{nowhere:?}");
    let unreachable = bundle("http://127.0.0.1:1", directory.path(), &["--output", "x.tar"]);
    assert_eq!((unreachable.status.code(), directory.path().join("x.tar").exists()), (Some(3), false), "{unreachable:?}");
}

/// A bundle of a process that could not load its store, because another process uses the data
/// directory.
#[tokio::test]
async fn a_bundle_before_the_store_is_loaded_has_its_errors() {
    let mut first = Home::new();
    let _holder = first.start().await;
    let data = format!("--data-dir={}", first.data_directory().display());
    let mut second = Home::new().with_flags(&[&data, "--store-lock-wait=60s"]);
    let waiting = second.start().await;
    let directory = tempfile::tempdir().unwrap();
    let output = bundle(waiting.url(), directory.path(), &["--output", "x.tar"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let files = files_of(&std::fs::read(directory.path().join("x.tar")).unwrap());
    assert!(files["meshkeep-bundle/errors.txt"].contains("clusters.json: the store is still loading"), "{files:?}");
    assert!(files.contains_key("meshkeep-bundle/metrics.txt") && files.contains_key("meshkeep-bundle/log.txt"), "{files:?}");
}
