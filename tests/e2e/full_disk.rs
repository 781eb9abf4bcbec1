//! Disks that are full or read-only from the start.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rand::SeedableRng;
use rand::distr::{Alphanumeric, SampleString};
use rand::rngs::StdRng;

use crate::harness::etcd::etcd_binaries;
use crate::harness::eventually;
use crate::harness::mesh::{SMALL, source_key};
use crate::harness::meshkeep::{Home, http};
use crate::harness::scene::{Remote, Scene, wait_until_served};

/// Maximum time until a finding is reported on a busy machine. Findings are computed every second.
const REPORT_TIME_MAX: Duration = Duration::from_secs(8);

/// A mounted file system, unmounted when it is dropped. The tests that use it must run as root.
struct MountedDisk(PathBuf);

impl MountedDisk {
    fn new(directory: PathBuf, options: &str) -> Self {
        fs::create_dir(&directory).unwrap();
        mount(&["-t", "tmpfs", "-o", options, "tmpfs"], &directory);
        Self(directory)
    }

    fn remount(&self, options: &str) {
        mount(&["-o", &format!("remount,{options}")], &self.0);
    }
}

fn mount(arguments: &[&str], directory: &PathBuf) {
    assert!(Command::new("mount").args(arguments).arg(directory).status().unwrap().success(), "tests with small disks need root");
}

impl Drop for MountedDisk {
    fn drop(&mut self) {
        // a failure cannot be handled here
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Starts on disks without any space, and with space for only the beginning of a store.
#[tokio::test]
async fn meshkeep_serves_from_memory_until_the_disk_has_space() {
    for size in ["4k", "64k", "1100k", "2m"] {
        let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
        let disk = MountedDisk::new(scene.home.data_directory(), &format!("size={size}"));
        scene.start_meshkeep().await;
        scene.wait_until_settled("loading on a full disk").await;
        let url = scene.meshkeep().url().to_owned();
        let text = async |path: &str| http().get(format!("{url}{path}")).send().await.unwrap().text().await.unwrap();
        let status = scene.meshkeep().get("/v1/status").await["store"].clone();
        if size != "2m" {
            assert_eq!(status["state"], "failing", "{size}: {status}");
            assert!(status["error"].to_string().contains("No space left on device"), "{size}: {status}");
            let ready = text("/readyz?verbose").await;
            assert!(ready.contains("[!]storing: failing, new changes are only in memory or in the log: "), "{size}: {ready}");
            assert!(ready.contains("readyz check passed"), "{size}: {ready}");
            assert!(text("/metrics").await.contains("meshkeep_store_state{state=\"failing\"} 1"), "{size}");
        }
        scene.remotes[0].change(|cluster| cluster.add_endpoints(1)).await;
        scene.wait_until_settled("a change on a full disk").await;
        disk.remount("size=64m");
        eventually("storing to begin", || async {
            (scene.meshkeep().get("/v1/status").await["store"]["state"] == "healthy").then_some(())
        })
        .await;
        scene.stop_meshkeep().await;
        // changes from before there was space are stored as well
        scene.remotes[0].proxy.cut().await;
        scene.start_meshkeep().await;
        let restored = scene.meshkeep().get("/v1/status").await["store"]["restoredEntries"].as_u64();
        assert_eq!(restored, Some(scene.remotes[0].clusters[0].entries.len() as u64), "{size}");
        scene.stop_meshkeep().await;
    }
}

/// A full disk leaves a gap in the log. The log continues once there is space again, and contains
/// the changes that arrived meanwhile.
#[tokio::test]
async fn a_disk_that_fills_up_leaves_a_reported_gap_in_the_log() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    // with a history, its oldest part would make space for the log
    scene.home = scene.home.with_flags(&["--history=off"]);
    let disk = MountedDisk::new(scene.home.data_directory(), "size=32m");
    scene.start_meshkeep().await;
    scene.wait_until_settled("the first loading").await;
    let reported = async |scene: &Scene| {
        let problems = scene.meshkeep().get("/v1/problems").await;
        problems["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(reported(&scene).await, Vec::<String>::new());
    let filler = fs::File::create(disk.0.join("filler")).unwrap();
    for attempt in 1.. {
        let filled = std::io::copy(&mut std::io::repeat(0), &mut &filler).unwrap_err();
        assert_eq!(filled.kind(), std::io::ErrorKind::StorageFull);
        // more than fits into the last page of the log, which the file system has already allocated
        scene.remotes[0].change(|cluster| cluster.add_endpoints(200)).await;
        let gap = eventually("the gap", || async { (reported(&scene).await == ["logGap", "storeUnwritable"]).then_some(()) });
        if tokio::time::timeout(REPORT_TIME_MAX, gap).await.is_ok() {
            break;
        }
        // a store that is opened again after an error removes files, and the log uses their space
        assert!(attempt < 5, "no gap in the log on a full disk: {:?}", reported(&scene).await);
    }
    scene.wait_until_settled("a change on a full disk").await;
    filler.set_len(0).unwrap();
    eventually("the end of the gap", || async { reported(&scene).await.is_empty().then_some(()) }).await;
    scene.stop_meshkeep().await;
}

/// Key of a service whose versions are long.
const LONG_KEY: &str = "cilium/cache/services/v1/c01/long/service";

/// Length of a version that cannot be compressed much. About ten of them fill the buffer of the
/// history, which makes a segment of 4 MB.
const LONG_LABEL: usize = 512 << 10;

async fn put_long_version(remote: &mut Remote, random: &mut StdRng) {
    let label = Alphanumeric.sample_string(random, LONG_LABEL);
    let value = format!(
        r#"{{"cluster":"c01","namespace":"long","name":"service","frontends":{{}},"backends":{{}},"labels":{{"long":"{label}"}},"selector":{{}},"includeExternal":true,"shared":true,"clusterID":1}}"#
    );
    remote.etcd.put(source_key(remote.form, "c01", LONG_KEY), value.clone()).await;
    remote.clusters[0].entries.insert(LONG_KEY.to_owned(), value.into_bytes());
}

/// On a full disk, the oldest part of the history is removed, and the log gets its space.
#[tokio::test]
async fn the_history_makes_space_for_the_log() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let disk = MountedDisk::new(scene.home.data_directory(), "size=192m");
    let (meshkeep, mut random) = (scene.home.start().await, StdRng::seed_from_u64(3));
    let history = async || meshkeep.get("/v1/status").await["history"].clone();
    meshkeep.wait_for_phase("c01", "live").await;
    while history().await["segments"].as_u64() < Some(4) {
        put_long_version(&mut scene.remotes[0], &mut random).await;
    }
    wait_until_served(&meshkeep, &scene.truth().expected(), "the versions before the disk is full").await;
    let before = history().await;
    let filled = std::io::copy(&mut std::io::repeat(0), &mut fs::File::create(disk.0.join("filler")).unwrap()).unwrap_err();
    assert_eq!(filled.kind(), std::io::ErrorKind::StorageFull);
    while meshkeep.log_lines_with(&["removed the oldest part of the history"]) == 0 {
        put_long_version(&mut scene.remotes[0], &mut random).await;
    }
    scene.remotes[0].change(|cluster| cluster.add_endpoints(5)).await;
    wait_until_served(&meshkeep, &scene.truth().expected(), "changes on a full disk").await;
    eventually("a healthy store on a full disk", || async {
        (meshkeep.get("/v1/status").await["store"]["state"] == "healthy").then_some(())
    })
    .await;
    let after = history().await;
    assert!(after["since"].as_str() > before["since"].as_str(), "the oldest part still exists: {before}, then {after}");
    // everything was stored, and the rest of the history is still there
    meshkeep.kill();
    scene.remotes[0].proxy.cut().await;
    let meshkeep = scene.home.start().await;
    wait_until_served(&meshkeep, &scene.truth().expected(), "a kill on a full disk").await;
    let versions = meshkeep.get(&format!("/v1/history?key={LONG_KEY}")).await;
    assert!(versions["items"].as_array().unwrap().len() > 1, "{}", versions["gaps"]);
}

#[tokio::test]
async fn a_read_only_data_directory_ends_the_start() {
    let mut home = Home::new();
    let disk = MountedDisk::new(home.data_directory(), "size=64m,ro");
    let assert_refused = async |home: &mut Home, reason: &str| {
        let ended = home.run_to_the_end().await;
        let (directory, output) = (home.data_directory().display().to_string(), home.output());
        assert_eq!(ended.status.code(), Some(1), "{}", ended.log);
        assert!(ended.log.contains(&format!("error: the data directory {directory} cannot be written: {reason}")), "{}", ended.log);
        assert!(!output.contains("listening on"), "{output}");
    };
    assert_refused(&mut home, "Read-only file system").await;
    // with a store in it
    disk.remount("rw");
    home.start().await.stop().await;
    disk.remount("ro");
    assert_refused(&mut home, "Read-only file system").await;
    drop(disk);
    fs::remove_dir(home.data_directory()).unwrap();
    fs::write(home.data_directory(), "a file").unwrap();
    assert_refused(&mut home, "").await;
}
