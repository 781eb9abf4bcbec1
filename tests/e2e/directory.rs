//! The config directory: Secret mounts, files that are added and removed, and files that are not
//! client files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::{Form, MeshCluster, SMALL};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::scene::{Remote, Scene, assert_served, wait_until_served};
use crate::harness::truth::Truth;
use crate::harness::{PATIENCE, eventually};

/// Client file of an etcd that does not exist.
const UNREACHABLE: &str = "endpoints:\n- http://127.0.0.1:1\n";

/// Phase, time in the phase and failures of a cluster that a change elsewhere must not affect.
#[derive(Debug)]
struct ClusterSnapshot {
    phase: String,
    failures: u64,
    phase_seconds: f64,
}

impl ClusterSnapshot {
    async fn read(meshkeep: &Meshkeep, name: &str) -> Self {
        let cluster = meshkeep.cluster(name).await;
        let phase_seconds = cluster["phaseSeconds"].as_f64().unwrap_or_else(|| panic!("{cluster}"));
        Self { phase: cluster["phase"].as_str().unwrap().to_owned(), failures: cluster["failures"].as_u64().unwrap(), phase_seconds }
    }

    /// Checks that the directory has not affected the cluster since: it was not reconnected or
    /// removed, and has not left its phase. A connection that broke by itself is accepted, for
    /// instance on a machine that was suspended for longer than etcd's keep-alive timeout.
    async fn assert_undisturbed(&self, meshkeep: &Meshkeep, name: &str) {
        let now = Self::read(meshkeep, name).await;
        let cluster = format!("cluster={name}");
        for message in ["changed: reconnecting", "removed: removing its entries"] {
            assert_eq!(meshkeep.log_lines_with(&[message, &cluster]), 0, "{name}: {message}");
        }
        let same = now.phase == self.phase && now.phase_seconds >= self.phase_seconds;
        assert!(same || now.failures > self.failures, "{name} was disturbed: {self:?} then, {now:?} now\n{}", meshkeep.log());
    }
}

#[tokio::test]
async fn a_removed_file_removes_its_cluster_and_nothing_else() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 2, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let (first, third) = (ClusterSnapshot::read(scene.meshkeep(), "c01").await, ClusterSnapshot::read(scene.meshkeep(), "c03").await);
    let seen = scene.follower().state().events.len();
    scene.home.remove_cluster("c02");
    let removed = scene.remotes[1].clusters.remove(0);
    scene.wait_until_settled("the removal of a file").await;
    let deleted_keys: Vec<String> = {
        let followed = scene.follower().state();
        let deletes: Vec<_> = followed.events_named("delete", seen).collect();
        assert!(deletes.iter().all(|event| event.data["reason"] == "clusterRemoved"), "{deletes:?}");
        deletes.iter().map(|event| event.data["key"].as_str().unwrap().to_owned()).filter(|key| !key.contains("/cluster")).collect()
    };
    let mut deleted_entries: Vec<&String> = deleted_keys.iter().filter(|key| removed.entries.contains_key(*key)).collect();
    deleted_entries.sort();
    assert_eq!(deleted_entries, removed.entries.keys().collect::<Vec<_>>(), "one delete for each of its entries");
    assert_eq!(scene.meshkeep().send_get("/v1/clusters/c02").await.0, 404);
    first.assert_undisturbed(scene.meshkeep(), "c01").await;
    third.assert_undisturbed(scene.meshkeep(), "c03").await;

    scene.home.write_cluster("c02", &scene.remotes[1].client_file());
    scene.remotes[1].clusters.insert(0, removed);
    scene.wait_until_settled("the return of a file").await;
    first.assert_undisturbed(scene.meshkeep(), "c01").await;
    third.assert_undisturbed(scene.meshkeep(), "c03").await;
}

#[tokio::test]
async fn a_file_deleted_while_meshkeep_was_down_removes_its_cluster() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 2, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    scene.kill_meshkeep();
    scene.home.remove_cluster("c02");
    scene.remotes[1].clusters.remove(0);
    scene.start_meshkeep().await;
    scene.wait_until_settled("a start after a file was deleted").await;
}

/// Agents may read the same Secret, so the file stays.
#[tokio::test]
async fn an_ignored_cluster_is_neither_read_nor_served_from_the_store() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 2, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    scene.kill_meshkeep();
    scene.home = std::mem::replace(&mut scene.home, Home::new()).with_flags(&["--ignore-cluster=c02"]);
    scene.remotes[1].clusters.remove(0);
    scene.start_meshkeep().await;
    scene.wait_until_settled("a start that ignores a cluster").await;
    assert_eq!(scene.meshkeep().send_get("/v1/clusters/c02").await.0, 404);
    let status = scene.meshkeep().get("/v1/status").await;
    assert_eq!(status["directory"]["ignoredClusters"], serde_json::json!(["c02"]));
    assert_eq!(status["directory"]["invalidFiles"], serde_json::Value::Null);
    assert!(scene.home.config_directory().join("c02").exists());
}

#[tokio::test]
async fn a_directory_that_vanishes_removes_nothing() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let before = scene.truth().expected();
    let (directory, aside) = (scene.home.config_directory(), scene.home.config_directory().with_extension("aside"));
    fs::rename(&directory, &aside).unwrap();
    let named = directory.display().to_string();
    eventually("a log line that names the directory", || async { (scene.meshkeep().log_lines_with(&[&named]) > 0).then_some(()) }).await;
    assert_served(scene.meshkeep(), &before, "while the directory is gone").await;
    // also after a restart
    scene.kill_meshkeep();
    scene.start_meshkeep().await;
    eventually("a log line that names the directory", || async { (scene.meshkeep().log_lines_with(&[&named]) > 0).then_some(()) }).await;
    assert_served(scene.meshkeep(), &before, "after a start without the directory").await;
    fs::rename(&aside, &directory).unwrap();
    scene.wait_until_settled("the return of the directory").await;
}

/// Writes files as the kubelet does: `name -> ..data/name`, `..data -> ..<version>`.
fn write_secret(directory: &Path, version: &str, files: &[(&str, String)]) {
    let folder = directory.join(format!("..{version}"));
    fs::create_dir(&folder).unwrap();
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
        let link = directory.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new("..data").join(name), link).unwrap();
        }
    }
    symlink(format!("..{version}"), directory.join("..data_tmp")).unwrap();
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
}

#[tokio::test]
async fn a_secret_update_affects_only_clusters_with_new_bytes() {
    let binary = &etcd_binaries()[0];
    let first = Remote::start(binary, Form::State, vec![MeshCluster::generate(1, SMALL)]).await;
    let second = Remote::start(binary, Form::State, vec![MeshCluster::generate(2, SMALL)]).await;
    let mut moved = MeshCluster::generate(1, SMALL);
    for key in moved.keys_of("ip/v1").iter().step_by(2) {
        moved.change(key);
    }
    moved.delete(&moved.keys_of("services/v1")[0].clone());
    let elsewhere = Remote::start(binary, Form::State, vec![moved]).await;

    let mut home = Home::new();
    let directory = home.config_directory();
    let certificate = ("common-etcd-client-ca.crt", "-----BEGIN CERTIFICATE-----".to_owned());
    write_secret(&directory, "2026_01", &[("c01", first.client_file()), ("c02", second.client_file()), certificate.clone()]);
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters(first.clusters.iter().chain(&second.clusters)).expected(), "the first loading")
        .await;
    meshkeep.wait_for_phase("c02", "live").await;
    let snapshot = ClusterSnapshot::read(&meshkeep, "c02").await;

    write_secret(&directory, "2026_02", &[("c01", elsewhere.client_file()), ("c02", second.client_file()), certificate]);
    fs::remove_dir_all(directory.join("..2026_01")).unwrap();
    wait_until_served(
        &meshkeep,
        &Truth::from_clusters(elsewhere.clusters.iter().chain(&second.clusters)).expected(),
        "the swap of the Secret",
    )
    .await;
    snapshot.assert_undisturbed(&meshkeep, "c02").await;
}

#[tokio::test]
async fn rewriting_files_with_the_same_bytes_disturbs_nothing() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let snapshot = ClusterSnapshot::read(scene.meshkeep(), "c01").await;
    let file = scene.home.config_directory().join("c01");
    for mode in (0..60).map(|round| if round % 2 == 0 { 0o600 } else { 0o644 }) {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    }
    scene.home.write_cluster("c01", &scene.remotes[0].client_file());
    // a later file shows that the directory was scanned
    scene.home.write_cluster("c09", "endpoints:\n- http://127.0.0.1:1\n");
    let known = || async { (scene.meshkeep().send_get("/v1/clusters/c09").await.0 == 200).then_some(()) };
    eventually("the other file to be a cluster", known).await;
    snapshot.assert_undisturbed(scene.meshkeep(), "c01").await;
    scene.home.remove_cluster("c09");
    scene.remotes[0].change(|cluster| cluster.add_endpoints(1)).await;
    scene.wait_until_settled("many touches").await;
    snapshot.assert_undisturbed(scene.meshkeep(), "c01").await;
}

#[tokio::test]
async fn files_that_are_no_cluster_files_are_reported_and_do_no_harm() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.home.write_cluster("broken", "endpoints: [https://127.0.0.1:1\n  oops: {");
    scene.home.write_cluster("foo.yaml", &scene.remotes[0].client_file());
    scene.home.write_cluster("notes", "nothing of interest");
    scene.start_meshkeep().await;
    scene.wait_until_settled("loading with files that are no cluster files").await;
    // it is tried again, but reported once
    let tried_again = || async { (scene.meshkeep().cluster("broken").await["failures"].as_u64() >= Some(3)).then_some(()) };
    eventually("the broken file to be tried again", tried_again).await;
    for name in ["broken", "foo.yaml"] {
        assert_eq!(scene.meshkeep().log_lines_with(&["WARN", name]), 1, "one warning that names {name}");
    }
    scene.meshkeep().wait_for_field("broken", "lastError", "not YAML").await;
    assert_eq!(scene.meshkeep().log_lines_with(&["notes"]), 0);
    let status = scene.meshkeep().get("/v1/status").await;
    let refused: Vec<&String> = status["directory"]["invalidFiles"].as_object().unwrap().keys().collect();
    assert_eq!(refused, ["foo.yaml"], "{status}");
    assert_eq!(scene.meshkeep().phase("c01").await, "live");
    // with valid contents it is a cluster
    scene.home.write_cluster("broken", &scene.remotes[0].client_file());
    let known = || async { (scene.meshkeep().send_get("/v1/clusters/broken").await.0 == 200).then_some(()) };
    eventually("the mended file to be a cluster", known).await;
}

#[tokio::test]
async fn files_that_agents_accept_are_mirrored_and_others_reported() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let file = scene.remotes[0].client_file();
    scene.home.write_cluster("c01", &format!("\u{feff}endpoints: [nobody]\n{file}\ninsecure-transport:\tyes\n---\n]"));
    let directory = scene.home.config_directory();
    let utf16: Vec<u8> = "\u{feff}endpoints: [a]\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    fs::write(directory.join("utf16"), utf16).unwrap();
    fs::write(directory.join("json"), r#"{"endpoints": ["http://127.0.0.1:1"]}"#).unwrap();
    fs::write(directory.join("twice"), "ZW5kcG9pbnRzOiBbYV0K\n").unwrap();
    scene.start_meshkeep().await;
    scene.wait_until_settled("a file that agents accept").await;
    let invalid = scene.meshkeep().get("/v1/status").await["directory"]["invalidFiles"].clone();
    for (name, cause) in [("utf16", "it is UTF-16"), ("json", "it is JSON or YAML with its keys in quotes"), ("twice", "it is base64")] {
        assert!(invalid[name].as_str().is_some_and(|reason| reason.starts_with(cause)), "{name}: {invalid}");
    }
    scene.stop_meshkeep().await;
}

#[tokio::test]
async fn a_misspelt_key_is_reported_until_it_is_corrected() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let file = scene.remotes[0].client_file();
    let reported = async |scene: &Scene| {
        let problems = scene.meshkeep().get("/v1/problems?kind=clusterFileMisspelt").await;
        problems["items"].as_array().unwrap().iter().map(|item| item["detail"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(reported(&scene).await, Vec::<String>::new());
    scene.home.write_cluster("c01", &format!("{file}\ntrusted_ca_file: /nowhere/ca.crt\n"));
    let expected = "the client file of c01 has a key that is not used: it contains \"trusted_ca_file\" where \"trusted-ca-file\" is meant, which etcd's client ignores";
    eventually("the misspelt key", || async { (reported(&scene).await == [expected]).then_some(()) }).await;
    scene.wait_until_settled("a file with a key that is ignored").await;
    assert_eq!(scene.meshkeep().log_lines_with(&["probably wrong", "trusted_ca_file", "c01"]), 1);
    scene.home.write_cluster("c01", &file);
    eventually("the end of the finding", || async { reported(&scene).await.is_empty().then_some(()) }).await;
    scene.kill_meshkeep();
}

/// The directory counts as read only when every cluster in it is known. Otherwise a probe,
/// `status --wait` or a benchmark would treat a mesh without any known cluster as synced.
#[tokio::test]
async fn the_directory_counts_as_read_once_every_cluster_is_known() {
    const CLUSTERS: usize = 100;
    let mut home = Home::new();
    let local_etcd_flag = format!("--local-etcd={}", home.local_etcd_file().display());
    home = home.with_flags(&["--cluster-name=home", &local_etcd_flag]);
    fs::write(home.local_etcd_file(), UNREACHABLE).unwrap();
    for number in 0..CLUSTERS {
        home.write_cluster(&format!("c{number}"), UNREACHABLE);
    }
    let meshkeep = home.start().await;
    let started = Instant::now();
    let reported = loop {
        let reported = meshkeep.text("/readyz?synced&verbose").await;
        if reported.contains("[+]directory ok") {
            break reported;
        }
        assert!(started.elapsed() < PATIENCE, "{reported}");
    };
    assert_eq!(reported.lines().filter(|line| line.contains("]cluster/")).count(), CLUSTERS + 1, "{reported}");
    meshkeep.stop().await;
}

#[tokio::test]
async fn commands_fail_without_clusters_unless_that_is_allowed() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_meshkeep")).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for (flags, code) in [(&["--no-clusters-wait=0s"][..], Some(1)), (&["--no-clusters-wait=0s", "--allow-no-clusters"], Some(0))] {
        let mut home = Home::new().with_flags(flags);
        let meshkeep = home.start().await;
        let (server, directory) = (meshkeep.url(), home.config_directory().display().to_string());
        let is_read = || async { (meshkeep.get("/v1/status").await["directory"]["readable"] == true).then_some(()) };
        eventually("the directory to be read", is_read).await;
        let waited = run(&["status", "--wait", "--timeout", "1s", "--server", server]);
        assert_eq!((waited.0, waited.1.contains(&directory)), (code, code == Some(1)), "{}", waited.1);
        assert_eq!(run(&["healthcheck", "--synced", "--server", server]).0, code);
        assert_eq!(run(&["healthcheck", "--server", server]).0, Some(0));
        let (problems_code, problems) = run(&["problems", "--server", server]);
        assert_eq!((problems_code, problems.contains(&directory)), (code, code == Some(1)), "{problems}");
        let data = home.data_directory().display().to_string();
        let allowed = if code == Some(0) { &["--allow-no-clusters"][..] } else { &[] };
        let doctor = run(&[&["doctor", "--clustermesh-config", &directory, "--data-dir", &data], allowed].concat());
        assert!(doctor.0 == code && doctor.1.contains("it contains no client file"), "{doctor:?}");
    }
}
