//! The store after `kill -9` under churn, and after damage to its files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::{SMALL, Shape};
use crate::harness::meshkeep::{Home, http};
use crate::harness::scene::Scene;
use crate::harness::truth::served;

/// Enough objects for several pages of the engine.
const MEDIUM: Shape = Shape { nodes: 20, identities: 100, endpoints: 500, services: 20, exports: 0 };

#[tokio::test]
async fn repeated_kills_under_churn_always_lead_to_the_truth() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 1, MEDIUM).await;
    scene.wait_until_settled("the first loading").await;
    let mut random = StdRng::seed_from_u64(23);
    for round in 0..6 {
        // killed while changes arrive: some are stored, some are not
        for _ in 0..random.random_range(1..6) {
            for remote in &mut scene.remotes {
                remote
                    .change(|cluster| {
                        cluster.change_one_percent(&mut random);
                        cluster.delete_one_percent(&mut random);
                        cluster.add_endpoints(20);
                    })
                    .await;
            }
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..60))).await;
        scene.kill_meshkeep();
        if round % 2 == 0 {
            let remote = &mut scene.remotes[0];
            remote.change(|cluster| cluster.delete_one_percent(&mut random)).await;
        }
        scene.start_meshkeep().await;
        if round % 3 == 0 {
            // and again while it starts
            scene.kill_meshkeep();
            scene.start_meshkeep().await;
        }
        scene.wait_until_settled("a kill under churn").await;
    }
}

/// Returns every file below a directory, largest first.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { pending.push(path) } else { paths.push(path) }
        }
    }
    paths.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).unwrap().len()));
    paths
}

/// Damage to a store.
#[derive(Debug, Clone, Copy)]
enum Damage {
    /// Half of the largest file is cut off.
    Truncated,
    /// Every 16th block of 512 bytes of the largest file is zero.
    Zeroed,
    /// Some bits of every file are flipped.
    Flipped,
    /// Every file contains random bytes.
    Noise,
    /// The largest file is deleted.
    Missing,
}

impl Damage {
    fn inflict(self, store: &Path) {
        let files = files(store);
        let mut random = StdRng::seed_from_u64(5);
        let rewrite = |path: &PathBuf, change: &mut dyn FnMut(&mut Vec<u8>)| {
            let mut bytes = fs::read(path).unwrap();
            change(&mut bytes);
            fs::write(path, bytes).unwrap();
        };
        match self {
            Self::Truncated => rewrite(&files[0], &mut |bytes| bytes.truncate(bytes.len() / 2)),
            Self::Zeroed => rewrite(&files[0], &mut |bytes| bytes.chunks_mut(512).step_by(16).for_each(|block| block.fill(0))),
            Self::Flipped => files.iter().for_each(|file| {
                rewrite(file, &mut |bytes| {
                    for _ in 0..bytes.len().div_ceil(4096) {
                        let position = random.random_range(0..bytes.len());
                        bytes[position] ^= 1 << random.random_range(0..8);
                    }
                });
            }),
            Self::Noise => files.iter().for_each(|file| rewrite(file, &mut |bytes| random.fill(&mut bytes[..]))),
            Self::Missing => fs::remove_file(&files[0]).unwrap(),
        }
    }
}

#[tokio::test]
async fn a_damaged_store_never_serves_a_value_that_was_not_put() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 1, MEDIUM).await;
    // if only the damaged log had a deletion, the deleted key may exist again until the next list
    let mut gone = BTreeMap::new();
    let engine_damage =
        [Damage::Truncated, Damage::Zeroed, Damage::Flipped, Damage::Noise, Damage::Missing].map(|damage| ("store", damage));
    for (directory, damage) in engine_damage.into_iter().chain([("log", Damage::Truncated), ("log", Damage::Noise)]) {
        scene.wait_until_settled(&format!("the loading before {damage:?}")).await;
        scene.kill_meshkeep();
        for remote in &mut scene.remotes {
            remote.proxy.cut().await;
        }
        damage.inflict(&scene.home.data_directory().join(directory));
        scene.start_meshkeep().await;
        let truth = scene.truth().expected();
        let restored = served(scene.meshkeep()).await;
        for (key, value) in &restored.raw {
            let put = truth.raw.get(key).or_else(|| gone.get(key));
            assert_eq!(put, Some(value), "{damage:?}: {key} was never put like this");
        }
        assert!(!scene.meshkeep().log().contains("panicked at src/"), "{damage:?}");
        for remote in &mut scene.remotes {
            remote.proxy.restore().await;
        }
        // deleted meanwhile: a damaged store must not restore the key permanently
        let key = scene.remotes[0].clusters[0].keys_of("ip/v1")[0].clone();
        scene.remotes[0].change(|cluster| cluster.delete(&key)).await;
        scene.wait_until_settled(&format!("{damage:?}")).await;
        gone.extend(truth.raw.get(&key).map(|value| (key, value.clone())));
    }
}

#[tokio::test]
async fn a_store_restored_from_an_older_copy_reaches_the_truth() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    scene.kill_meshkeep();
    let (store, copy) = (scene.home.data_directory(), scene.home.data_directory().with_extension("copy"));
    copy_directory(&store, &copy);
    scene.start_meshkeep().await;
    let mut random = scene.random.clone();
    for remote in &mut scene.remotes {
        remote
            .change(|cluster| {
                cluster.change_one_percent(&mut random);
                cluster.delete_one_percent(&mut random);
                cluster.add_endpoints(5);
            })
            .await;
    }
    scene.wait_until_settled("changes after the copy").await;
    scene.kill_meshkeep();
    fs::remove_dir_all(&store).unwrap();
    fs::rename(&copy, &store).unwrap();
    scene.start_meshkeep().await;
    scene.wait_until_settled("the return of an older copy").await;
}

/// Detects engine files that are older than the log. sled opens them without an error.
#[tokio::test]
async fn a_store_that_went_back_is_reported_and_not_healthy() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    assert_eq!(scene.meshkeep().get("/v1/status").await["store"]["state"], "healthy");
    scene.stop_meshkeep().await;
    let store = scene.home.data_directory().join("store");
    let copy = store.with_file_name("copy");
    copy_directory(&store, &copy);
    scene.start_meshkeep().await;
    scene.remotes[0].change(|cluster| cluster.add_endpoints(5)).await;
    scene.wait_until_settled("changes after the copy").await;
    scene.stop_meshkeep().await;
    fs::remove_dir_all(&store).unwrap();
    fs::rename(&copy, &store).unwrap();
    scene.start_meshkeep().await;
    scene.wait_until_settled("a store that went back").await;
    let status = scene.meshkeep().get("/v1/status").await["store"].clone();
    assert_eq!(status["state"], "lost", "{status}");
    assert!(status["losses"].to_string().contains("its chunks are older than its log"), "{status}");
    let text = async |path: &str| http().get(format!("{}{path}", scene.meshkeep().url())).send().await.unwrap().text().await.unwrap();
    let ready = text("/readyz?verbose").await;
    assert!(ready.contains("[!]storing: the store has lost data: ") && ready.contains("readyz check passed"), "{ready}");
    let metrics = text("/metrics").await;
    assert!(metrics.contains("meshkeep_store_state{state=\"lost\"} 1"), "{metrics}");
    assert!(metrics.contains("meshkeep_store_state{state=\"healthy\"} 0"), "{metrics}");
    // after another start everything is there
    scene.stop_meshkeep().await;
    scene.start_meshkeep().await;
    scene.wait_until_settled("the next start").await;
    assert_eq!(scene.meshkeep().get("/v1/status").await["store"]["state"], "healthy");
}

/// Checks the finding about the store's losses in the API, the metrics, the log and
/// `meshkeep status`.
async fn assert_losses_reported(scene: &Scene, words: &[&str]) {
    let meshkeep = scene.meshkeep();
    let status = meshkeep.get("/v1/status").await["store"].clone();
    assert_eq!(status["state"], "lost", "{status}");
    let problems = meshkeep.get("/v1/problems?kind=storeLosses").await["items"].clone();
    let detail = problems[0]["detail"].as_str().unwrap_or_default().to_owned();
    let output = Command::new(env!("CARGO_BIN_EXE_meshkeep")).args(["status", "--server", meshkeep.url()]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    for word in words {
        assert!(status["losses"].to_string().contains(word), "{word}: {status}");
        assert!(detail.contains(word), "{word}: {problems}");
        assert!(shown.lines().any(|line| line.starts_with("store lost: ") && line.contains(word)), "{word}: {shown}");
        assert!(meshkeep.log_lines_with(&["ERROR", word]) >= 1, "{word}: {}", meshkeep.log());
    }
    let metrics = meshkeep.text("/metrics").await;
    assert!(metrics.contains("meshkeep_problems{kind=\"storeLosses\",severity=\"warning\"} 1"), "{metrics}");
    assert!(metrics.contains("meshkeep_store_state{state=\"lost\"} 1") && !metrics.contains("meshkeep_store_losses 0"), "{metrics}");
}

#[tokio::test]
async fn a_store_set_aside_is_reported_with_its_path() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    scene.stop_meshkeep().await;
    fs::write(scene.home.data_directory().join("store/conf"), "segment_size: none").unwrap();
    scene.start_meshkeep().await;
    scene.wait_until_settled("the loss of the store").await;
    let path = scene.meshkeep().get("/v1/status").await["store"]["setAsidePath"].as_str().unwrap().to_owned();
    assert!(Path::new(&path).join("db").exists(), "{path}");
    assert_losses_reported(&scene, &[&path]).await;
    // after another start everything is there
    scene.stop_meshkeep().await;
    scene.start_meshkeep().await;
    scene.wait_until_settled("the next start").await;
    assert_eq!(scene.meshkeep().get("/v1/status").await["store"]["state"], "healthy");
    assert_eq!(scene.meshkeep().get("/v1/problems?kind=storeLosses").await["items"], serde_json::json!([]));
}

/// Runs `meshkeep store verify` with the data directory of an ended process.
fn verify(scene: &Scene) -> (Option<i32>, String) {
    let directory = scene.home.data_directory();
    let output = Command::new(env!("CARGO_BIN_EXE_meshkeep")).args(["store", "verify", "--data-dir"]).arg(directory).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn a_flipped_bit_in_the_log_costs_one_frame_and_is_reported() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    for _ in 0..20 {
        scene.remotes[0].change(|cluster| cluster.add_endpoints(1)).await;
        scene.wait_until_settled("a change").await;
    }
    let truth = scene.truth().expected();
    scene.kill_meshkeep();
    assert_eq!(verify(&scene).0, Some(0));
    let newest = newest_log_file(&scene);
    let mut bytes = fs::read(&newest).unwrap();
    let middle = bytes.len() * 3 / 4;
    bytes[middle] ^= 4;
    fs::write(&newest, bytes).unwrap();
    let (code, complaint) = verify(&scene);
    assert!(code == Some(1) && complaint.contains("its log is damaged, and changes of group"), "{complaint}");
    scene.remotes[0].proxy.cut().await;
    scene.start_meshkeep().await;
    let restored = served(scene.meshkeep()).await;
    assert!(restored.raw.iter().all(|(key, value)| truth.raw.get(key) == Some(value)), "a restored value was never put");
    let missing: Vec<&String> = truth.raw.keys().filter(|key| !restored.raw.contains_key(*key)).collect();
    assert!(missing.len() <= 3, "{missing:?}");
    assert_losses_reported(&scene, &["its log is damaged, and changes of group"]).await;
    let sources = scene.meshkeep().get("/v1/nodes").await["meta"]["sources"].clone();
    assert!(!sources.to_string().contains("\"live\""), "nothing is confirmed: {sources}");
    scene.remotes[0].proxy.restore().await;
    scene.wait_until_settled("the list after the damage").await;
    scene.stop_meshkeep().await;
    assert_eq!(verify(&scene).0, Some(0));
    scene.start_meshkeep().await;
    assert_eq!(scene.meshkeep().get("/v1/status").await["store"]["losses"], serde_json::Value::Null);
}

fn newest_log_file(scene: &Scene) -> PathBuf {
    let number = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().parse::<u64>().unwrap();
    files(&scene.home.data_directory().join("log")).into_iter().max_by_key(number).unwrap()
}

/// Shell commands that start the binary without root's capability to read every file.
const WITHOUT_ROOTS_RIGHTS: &str = r#"[ "$(id -u)" != 0 ] || exec setpriv --bounding-set=-dac_override,-dac_read_search "$0" "$@""#;

/// `EACCES` for the newest file of the log is a loss, unlike the incomplete end that a kill leaves.
#[tokio::test]
async fn a_log_file_that_may_not_be_read_is_reported_as_a_loss() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let home = std::mem::replace(&mut scene.home, Home::new());
    scene.home = home.after_shell_commands(WITHOUT_ROOTS_RIGHTS);
    scene.start_meshkeep().await;
    scene.wait_until_settled("the first loading").await;
    scene.remotes[0].change(|cluster| cluster.add_endpoints(1)).await;
    scene.wait_until_settled("a change").await;
    scene.kill_meshkeep();
    let newest = newest_log_file(&scene);
    fs::set_permissions(&newest, fs::Permissions::from_mode(0o000)).unwrap();
    scene.start_meshkeep().await;
    let name = newest.file_name().unwrap().to_str().unwrap();
    assert_losses_reported(&scene, &[&format!("file {name} of its log cannot be read")]).await;
    scene.wait_until_settled("the list after the loss").await;
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_directory(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}
