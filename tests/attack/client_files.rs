//! Client files that are designed to block the process that parses them. The test measures lookups
//! while meshkeep reads such files, and checks that it mirrors a cluster that is added at that
//! time.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::etcd::etcd_binaries;
use crate::harness::eventually;
use crate::harness::mesh::SMALL;
use crate::harness::meshkeep::Meshkeep;
use crate::harness::scene::Scene;

/// Number of measured lookups, unless `MESHKEEP_ATTACK_CLIENT_FILES` sets it.
const LOOKUPS: usize = 200;

/// Number of copies of each hostile file at full size. A test uses one copy.
const COPIES: usize = 20;

/// Upper bound on the 99th percentile of the lookup times. A thread that parses one of these files
/// without limits would block for a minute.
const LOOKUP_MAX: Duration = Duration::from_millis(500);

/// Returns the name and content of each hostile file, and a text that the `lastError` of its
/// cluster must contain.
fn hostile_files() -> Vec<(&'static str, String, &'static str)> {
    let repeat_to_900_kb = |text: &str| text.repeat(900_000 / text.len());
    // nested aliases that expand to 9^10 values ("billion laughs")
    let laughs: String =
        ('b'..='j').zip('a'..).map(|(name, last)| format!("{name}: &{name} [{}]\n", vec![format!("*{last}"); 9].join(","))).collect();
    let directives: String = (0..60_000).map(|number| format!("%TAG !{number}! x\n")).collect();
    vec![
        ("lists", format!("endpoints: {}", repeat_to_900_kb("[")), "nested deeper than 32"),
        ("maps", format!("endpoints: {}", repeat_to_900_kb("{a: ")), "nested deeper than 32"),
        ("block", format!("endpoints:\n{}", repeat_to_900_kb("- ")), "nested deeper than 32"),
        ("keys", format!("# endpoints:\n{}", repeat_to_900_kb("? ")), "nested deeper than 32"),
        ("values", format!("endpoints: [{}]", repeat_to_900_kb("a,")), "more than 100000 values"),
        ("laughs", format!("a: &a [x,x,x,x,x,x,x,x,x]\n{laughs}endpoints: *j\n"), "more than 100000 values"),
        ("long", format!("a: &a {}\nendpoints: [{}]", "x".repeat(500_000), "*a,".repeat(1_000)), "more than 1048576 bytes"),
        ("directives", format!("{directives}---\nendpoints: [a]\n"), "more than 64 directives"),
        ("unterminated", "endpoints: [!,".to_owned(), "not YAML"),
    ]
}

/// Creates files that can be opened but never read to an end.
fn put_endless_files(directory: &Path) {
    assert!(Command::new("mkfifo").arg(directory.join("fifo")).status().unwrap().success());
    symlink("/dev/zero", directory.join("zero")).unwrap();
    std::fs::File::create(directory.join("sparse")).unwrap().set_len(1 << 40).unwrap();
}

async fn lookup(meshkeep: &Meshkeep) -> Duration {
    let began = Instant::now();
    let (status, _) = meshkeep.send_get("/v1/ipcache/lookup?ip=10.1.2.3").await;
    assert!(status == 200 || status == 404, "{status}");
    began.elapsed()
}

#[tokio::test]
async fn hostile_client_files_block_neither_lookups_nor_clusters() {
    let _measuring = super::MEASUREMENT_LOCK.lock().await;
    let lookups_at_full_size: Option<usize> = std::env::var("MESHKEEP_ATTACK_CLIENT_FILES").ok().map(|text| text.parse().unwrap());
    let (lookups, copies) = lookups_at_full_size.map_or((LOOKUPS, 1), |lookups| (lookups, COPIES));
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    // add the cluster again while meshkeep reads the hostile files
    scene.home.remove_cluster("c02");
    let removed = scene.remotes[1].clusters.remove(0);
    scene.wait_until_settled("the removal of a file").await;

    put_endless_files(&scene.home.config_directory());
    for (name, text, _) in hostile_files() {
        // reading the CA file of this cluster would never end
        scene.home.write_cluster(
            "ca",
            &format!("endpoints: ['https://127.0.0.1:1']\ntrusted-ca-file: {}/fifo\n", scene.home.config_directory().display()),
        );
        for copy in 0..copies {
            scene.home.write_cluster(&format!("{name}{copy}"), &text);
        }
    }
    let mut times = Vec::with_capacity(lookups);
    for _ in 0..lookups {
        times.push(lookup(scene.meshkeep()).await);
    }
    times.sort();
    let percentile = |part: usize| times[(lookups * part / 100).min(lookups - 1)];
    println!(
        "{copies} of each of {} client files: {lookups} lookups: p50 {:?}, p99 {:?}, longest {:?}",
        hostile_files().len(),
        percentile(50),
        percentile(99),
        times[lookups - 1]
    );
    assert!(percentile(99) < LOOKUP_MAX, "lookups took {:?}", percentile(99));

    scene.home.write_cluster("c02", &scene.remotes[1].client_file());
    scene.remotes[1].clusters.insert(0, removed);
    scene.wait_until_settled("adding a cluster while the files are read").await;
    for (name, _, error) in hostile_files() {
        scene.meshkeep().wait_for_field(&format!("{name}0"), "lastError", error).await;
    }
    scene.meshkeep().wait_for_field("ca", "lastError", "not a regular file").await;
    let status = scene.meshkeep().get("/v1/status").await;
    let invalid = &status["directory"]["invalidFiles"];
    assert!(invalid["sparse"].as_str().is_some_and(|reason| reason.starts_with("larger than")), "{invalid}");

    // the same after a restart with these files
    scene.stop_meshkeep().await;
    scene.start_meshkeep().await;
    scene.wait_until_settled("a restart with these files").await;
    let is_refused = || async { (scene.meshkeep().cluster("lists0").await["failures"].as_u64() > Some(0)).then_some(()) };
    eventually("the files to be refused again", is_refused).await;
    scene.stop_meshkeep().await;
}
