//! Client files that are designed to block their reader: measures lookups meanwhile, and checks
//! that a cluster that is added then is mirrored.

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

/// Number of files of each form in the attack. A test uses one.
const COPIES: usize = 20;

/// Maximum time of 99 % of the lookups. A thread that parses one of these files without limits
/// would block for a minute.
const LOOKUP_MAX: Duration = Duration::from_millis(500);

/// Returns file contents, each with the words that its cluster's last error must contain.
fn texts() -> Vec<(&'static str, String, &'static str)> {
    let fill = |text: &str| text.repeat(900_000 / text.len());
    let laughs: String =
        ('b'..='j').zip('a'..).map(|(name, last)| format!("{name}: &{name} [{}]\n", vec![format!("*{last}"); 9].join(","))).collect();
    let directives: String = (0..60_000).map(|number| format!("%TAG !{number}! x\n")).collect();
    vec![
        ("lists", format!("endpoints: {}", fill("[")), "nested deeper than 32"),
        ("maps", format!("endpoints: {}", fill("{a: ")), "nested deeper than 32"),
        ("block", format!("endpoints:\n{}", fill("- ")), "nested deeper than 32"),
        ("keys", format!("# endpoints:\n{}", fill("? ")), "nested deeper than 32"),
        ("values", format!("endpoints: [{}]", fill("a,")), "more than 100000 values"),
        ("laughs", format!("a: &a [x,x,x,x,x,x,x,x,x]\n{laughs}endpoints: *j\n"), "more than 100000 values"),
        ("long", format!("a: &a {}\nendpoints: [{}]", "x".repeat(500_000), "*a,".repeat(1_000)), "more than 1048576 bytes"),
        ("directives", format!("{directives}---\nendpoints: [a]\n"), "more than 64 directives"),
        ("unended", "endpoints: [!,".to_owned(), "not YAML"),
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
    let (status, _) = meshkeep.ask("/v1/ipcache/lookup?ip=10.1.2.3").await;
    assert!(status == 200 || status == 404, "{status}");
    began.elapsed()
}

#[tokio::test]
async fn client_files_that_are_hard_to_read_stop_nothing() {
    let _measuring = super::MEASURING.lock().await;
    let wanted: Option<usize> = std::env::var("MESHKEEP_ATTACK_CLIENT_FILES").ok().map(|text| text.parse().unwrap());
    let (lookups, copies) = wanted.map_or((LOOKUPS, 1), |lookups| (lookups, COPIES));
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.settles("the first loading").await;
    // added again while the other files are being read
    scene.home.remove_cluster("c02");
    let removed = scene.remotes[1].clusters.remove(0);
    scene.settles("the removal of a file").await;

    put_endless_files(&scene.home.config_directory());
    for (name, text, _) in texts() {
        // the certificate file of this one never ends
        scene.home.write_cluster(
            "ca",
            &format!("endpoints: ['https://127.0.0.1:1']\ntrusted-ca-file: {}/fifo\n", scene.home.config_directory().display()),
        );
        for copy in 0..copies {
            scene.home.write_cluster(&format!("{name}{copy}"), &text);
        }
    }
    let mut took = Vec::with_capacity(lookups);
    for _ in 0..lookups {
        took.push(lookup(scene.meshkeep()).await);
    }
    took.sort();
    let at = |part: usize| took[(lookups * part / 100).min(lookups - 1)];
    println!(
        "{copies} of each of {} client files: {lookups} lookups: p50 {:?}, p99 {:?}, longest {:?}",
        texts().len(),
        at(50),
        at(99),
        took[lookups - 1]
    );
    assert!(at(99) < LOOKUP_MAX, "lookups took {:?}", at(99));

    scene.home.write_cluster("c02", &scene.remotes[1].client_file());
    scene.remotes[1].clusters.insert(0, removed);
    scene.settles("a cluster that is added meanwhile").await;
    for (name, _, words) in texts() {
        scene.meshkeep().says_of(&format!("{name}0"), "lastError", words).await;
    }
    scene.meshkeep().says_of("ca", "lastError", "not a regular file").await;
    let status = scene.meshkeep().get("/v1/status").await;
    let invalid = &status["directory"]["invalidFiles"];
    assert!(invalid["sparse"].as_str().is_some_and(|reason| reason.starts_with("larger than")), "{invalid}");

    // and after a start with these files
    scene.stop_meshkeep().await;
    scene.start_meshkeep().await;
    scene.settles("a start with them").await;
    let is_named = || async { (scene.meshkeep().cluster("lists0").await["failures"].as_u64() > Some(0)).then_some(()) };
    eventually("the files to be refused again", is_named).await;
    scene.stop_meshkeep().await;
}
