//! SIGTERM in the first moments of a start, and while the data directory or another file does not
//! respond.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::hanging::{HangMode, HangingDirectory};
use crate::harness::mesh::SMALL;
use crate::harness::meshkeep::Home;
use crate::harness::scene::Scene;
use crate::harness::{PATIENCE, eventually};

/// Maximum time of a shutdown: 4.7 s by design, and a margin for a machine that is busy with other
/// tests. `docker stop` waits as long.
const SHUTDOWN: Duration = Duration::from_secs(10);

/// Approximate time until a start serves. The signals arrive at random moments of it.
const START: Duration = Duration::from_millis(60);

/// Bit of SIGTERM in a signal mask (signal(7)).
const SIGTERM: u64 = 1 << 14;

/// A process of a command, ended when it is dropped.
struct Running(Child);

impl Running {
    fn start(arguments: &[String]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
        command.args(arguments).env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Waits until the program catches SIGTERM, which it does before it reads its arguments or any
    /// file. An earlier signal would kill the process before the program has started. A start takes
    /// long on a busy machine.
    fn wait_for_handler(&self) {
        let status = format!("/proc/{}/status", self.0.id());
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = fs::read_to_string(&status).unwrap();
            let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
            if u64::from_str_radix(caught.trim(), 16).unwrap() & SIGTERM != 0 {
                return;
            }
            assert!(Instant::now() < deadline, "the program does not catch SIGTERM");
            std::thread::yield_now();
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap(), signal).unwrap();
    }

    /// Waits for the end. Returns the exit status and everything written to standard error.
    async fn wait_for_end(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end within {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let mut text = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (status, text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // a process that has already ended cannot be killed, which is fine
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the commands that run until they are stopped, with files in a directory.
fn commands(directory: &Path, etcd: &Etcd) -> [Vec<String>; 5] {
    let path = |name: &str| directory.join(name).display().to_string();
    fs::create_dir(directory.join("clustermesh")).unwrap();
    fs::write(path("etcd.yaml"), etcd.client_file_yaml()).unwrap();
    fs::write(path("vms.yaml"), "cluster: {name: vms, id: 77}\n").unwrap();
    let sidecar = ["--clustermesh-config", &path("clustermesh"), "--data-dir", &path("data"), "--listen", "127.0.0.1:0"];
    let command = |name: &str, arguments: &[&str]| [&[name], arguments].concat().iter().map(|part| (*part).to_owned()).collect();
    [
        command("serve", &sidecar),
        command("reflect", &[&sidecar[..], &["--to", &path("etcd.yaml")]].concat()),
        command("announce", &["--to", &path("etcd.yaml"), &path("vms.yaml")]),
        command("demo", &["--pods", "1", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"]),
        command("load", &["tests/data/dumps/kvstore-paris.txt", "--listen", "127.0.0.1:0"]),
    ]
}

#[tokio::test]
async fn sigterm_at_any_moment_of_a_start_ends_with_0() {
    let (directory, etcd) = (TempDir::new().unwrap(), Etcd::builder().start().await);
    let commands = commands(directory.path(), &etcd);
    let mut random = rand::rng();
    let mut wrong = Vec::new();
    for number in 0..60 {
        // the sidecar's start takes longest, so it gets three of seven attempts
        let command = &commands[[0, 0, 0, 1, 2, 3, 4][number % 7]];
        let running = Running::start(command);
        running.wait_for_handler();
        let moment = Duration::from_micros(random.random_range(0..u64::try_from(START.as_micros()).unwrap()));
        tokio::time::sleep(moment).await;
        running.signal(Signal::TERM);
        let (status, text) = running.wait_for_end().await;
        if status.code() != Some(0) {
            wrong.push(format!("{} {moment:?}: {status}, signal {:?}\n{text}", command[0], status.signal()));
        }
    }
    assert!(wrong.is_empty(), "{} of 60:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn a_start_that_hangs_in_a_read_ends_with_0() {
    if !HangingDirectory::is_possible() {
        return;
    }
    let (directory, etcd) = (TempDir::new().unwrap(), Etcd::builder().start().await);
    let [serve, reflect, announce, ..] = commands(directory.path(), &etcd);
    let hanging_at = directory.path().join("hanging");
    let hanging = HangingDirectory::create(&hanging_at).await;
    let file = |name: &str, text: &str| {
        fs::write(hanging_at.join(name), text).unwrap();
        hanging_at.join(name).display().to_string()
    };
    let (settings, token, to) = (file("settings", "log-level: info\n"), file("token", "secret\n"), file("to", &etcd.client_file_yaml()));
    let more = file("more.yaml", "cluster: {name: vms, id: 77}\n");
    let with = |command: &[String], extra: &[&str]| [command, &extra.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>()].concat();
    let mut reflect_elsewhere = reflect.clone();
    *reflect_elsewhere.last_mut().unwrap() = to;
    hanging.hang(HangMode::Killable).await;
    for command in [
        with(&serve, &["--config", &settings]),
        with(&serve, &["--token-file", &token]),
        with(&reflect, &["--config", &settings]),
        reflect_elsewhere,
        with(&announce, &[&more]),
    ] {
        let running = Running::start(&command);
        running.wait_for_handler();
        hanging.wait_for_hanging_call(HangMode::Killable).await;
        let signalled = Instant::now();
        running.signal(Signal::TERM);
        let (status, text) = running.wait_for_end().await;
        assert_eq!(status.code(), Some(0), "{command:?}: {status}\n{text}");
        assert!(signalled.elapsed() < SHUTDOWN, "{command:?}: {:?}", signalled.elapsed());
    }
    // a check that was interrupted must not report success
    let running = Running::start(&with(&serve, &["--check-config", "--token-file", &token]));
    running.wait_for_handler();
    hanging.wait_for_hanging_call(HangMode::Killable).await;
    running.signal(Signal::TERM);
    assert_eq!(running.wait_for_end().await.0.signal(), Some(15));
}

/// Starts a sidecar that mirrors a cluster into a directory that can hang.
async fn scene_with_hanging_directory() -> (Scene, HangingDirectory) {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let directory = HangingDirectory::create(&scene.home.data_directory()).await;
    scene.start_meshkeep().await;
    scene.wait_until_settled("the first loading").await;
    (scene, directory)
}

/// Makes a change, and waits until it is announced and a write to the directory hangs. The write
/// that hangs may be another one than that of the change.
async fn make_unsynced_change(scene: &mut Scene, directory: &HangingDirectory, hanging: HangMode) {
    let seen = scene.event_count();
    scene.remotes[0].change(|cluster| cluster.add_endpoints(1)).await;
    eventually("the event of the change", || async { (scene.event_count() > seen).then_some(()) }).await;
    directory.wait_for_hanging_call(hanging).await;
}

/// Asserts that the log of an ended process reports the changes that were not synced.
fn assert_reports_unsynced_changes(log: &str) {
    let last: Vec<&str> = log.lines().rev().take(2).collect();
    assert!(last[0].contains("it waits in an uninterruptible write to the data directory"), "{log}");
    assert!(last[1].contains("is not finished on the data directory"), "{log}");
    let count = last[1].split_once("unsynced_changes=").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u32>().ok());
    assert!(count.is_some_and(|count| count > 0), "{log}");
}

#[tokio::test]
async fn a_data_directory_that_hangs_does_not_delay_a_shutdown() {
    if !HangingDirectory::is_possible() {
        return;
    }
    let (mut scene, directory) = scene_with_hanging_directory().await;
    directory.hang(HangMode::Killable).await;
    make_unsynced_change(&mut scene, &directory, HangMode::Killable).await;
    scene.follower = None;
    let ended = scene.meshkeep.take().unwrap().stop().await;
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    assert!(ended.elapsed < SHUTDOWN, "{:?}:\n{}", ended.elapsed, ended.log);
    assert_reports_unsynced_changes(&ended.log);

    // changes that were not synced are read again
    directory.resume_calls(HangMode::Killable);
    scene.start_meshkeep().await;
    scene.wait_until_settled("a directory that hung").await;
}

#[tokio::test]
async fn a_process_blocked_in_a_write_logs_that_first() {
    if !HangingDirectory::is_possible() {
        return;
    }
    let (mut scene, directory) = scene_with_hanging_directory().await;
    directory.hang(HangMode::Uninterruptible).await;
    make_unsynced_change(&mut scene, &directory, HangMode::Uninterruptible).await;
    scene.follower = None;
    let meshkeep = scene.meshkeep.take().unwrap();
    let (id, signalled) = (meshkeep.id(), Instant::now());
    meshkeep.terminate();
    eventually("the end of all threads except the blocked one", || async {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        // the first thread has ended, but the process still exists
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')).then_some(())
    })
    .await;
    assert!(signalled.elapsed() < SHUTDOWN, "{:?}", signalled.elapsed());
    assert_reports_unsynced_changes(&meshkeep.log());
    directory.resume_calls(HangMode::Uninterruptible);
    let ended = meshkeep.wait_for_end().await;
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
}

#[tokio::test]
async fn a_start_with_a_hanging_data_directory_ends_with_0() {
    if !HangingDirectory::is_possible() {
        return;
    }
    let mut home = Home::new();
    let directory = HangingDirectory::create(&home.data_directory()).await;
    directory.hang(HangMode::Killable).await;
    let starting = home.start_until_signals().await;
    directory.wait_for_hanging_call(HangMode::Killable).await;
    let ended = starting.stop().await;
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    assert!(ended.elapsed < SHUTDOWN, "{:?}", ended.elapsed);
    assert!(ended.log.contains("shutting down before the store was loaded"), "{}", ended.log);
}
