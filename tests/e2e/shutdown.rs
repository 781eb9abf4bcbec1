//! SIGTERM with open streams and at every moment of a start, and SIGHUP, which ends nothing.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::harness::etcd::etcd_binaries;
use crate::harness::eventually;
use crate::harness::mesh::{SMALL, Shape};
use crate::harness::meshkeep::Home;
use crate::harness::scene::Scene;
use crate::harness::stream::Follower;

/// Maximum time of a shutdown (by design within 5 s).
const SHUTDOWN: Duration = Duration::from_secs(5);

#[tokio::test]
async fn sigterm_ends_every_stream_with_a_bookmark_and_the_process_with_0() {
    // enough for a snapshot that does not fit into any socket buffer
    let shape = Shape { endpoints: 4_000, ..SMALL };
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, shape).await;
    scene.wait_until_settled("the first loading").await;
    let mut followers = Vec::new();
    for _ in 0..20 {
        followers.push(Follower::open(scene.meshkeep(), "snapshot=true&kind=node").await);
    }
    for follower in &followers {
        follower.wait_for_synced_after(0).await;
    }
    // a client that requests everything and never reads
    let address = scene.meshkeep().url().trim_start_matches("http://").to_owned();
    let mut slow = TcpStream::connect(&address).await.unwrap();
    slow.write_all(format!("GET /v1/events?snapshot=true HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).await.unwrap();

    scene.follower = None;
    let ended = scene.meshkeep.take().unwrap().stop().await;
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    assert!(ended.elapsed < SHUTDOWN, "{:?}:\n{}", ended.elapsed, ended.log);
    for follower in &followers {
        follower.wait("the end of the stream", |followed| followed.ended.then_some(())).await;
        let followed = follower.state();
        assert_eq!(followed.events.last().unwrap().name, "bookmark");
    }
    drop(slow);

    // the next start has everything at once
    scene.remotes[0].proxy.cut().await;
    scene.start_meshkeep().await;
    crate::harness::scene::assert_served(scene.meshkeep(), &scene.truth().expected(), "right after a clean restart").await;
    scene.remotes[0].proxy.restore().await;
    scene.wait_until_settled("a clean restart").await;
}

#[tokio::test]
async fn sigterm_is_as_quick_while_remotes_do_not_answer() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    scene.home.write_cluster("silent", &format!("endpoints:\n- http://{}\n", silent.local_addr().unwrap()));
    scene.start_meshkeep().await;
    scene.wait_until_settled("loading with a silent remote").await;
    scene.follower = None;
    let ended = scene.meshkeep.take().unwrap().stop().await;
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
    assert!(ended.elapsed < SHUTDOWN, "{:?}:\n{}", ended.elapsed, ended.log);
}

#[tokio::test]
async fn sighup_reloads_files_and_does_not_end_the_process() {
    let mut home = Home::new();
    let starting = home.start_until_signals().await;
    starting.signal("HUP");
    eventually("SIGHUP to be handled during the start", || async { (starting.log_lines_with(&["SIGHUP"]) == 1).then_some(()) }).await;
    let ended = starting.stop().await;
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);

    let token = home.config_directory().with_file_name("token");
    std::fs::write(&token, "first").unwrap();
    let mut home = home.with_flags(&[&format!("--token-file={}", token.display()), "--config-rescan-interval=1h"]);
    let meshkeep = home.start().await;
    let ask = async |token: &str| {
        let request = crate::harness::meshkeep::http().get(format!("{}/v1/clusters", meshkeep.url())).bearer_auth(token);
        request.send().await.unwrap().status().as_u16()
    };
    eventually("the first token", || async { (ask("first").await == 200).then_some(()) }).await;
    std::fs::write(&token, "second").unwrap();
    meshkeep.signal("HUP");
    eventually("the second token", || async { (ask("second").await == 200).then_some(()) }).await;
    assert_eq!((ask("first").await, meshkeep.log_lines_with(&["SIGHUP"])), (401, 1));
    let ended = meshkeep.stop().await;
    assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
}

#[tokio::test]
async fn sighup_reads_the_config_directory_at_once() {
    // the file with the name of a thread (proc_pid_comm(5)) can be written, but its metadata never
    // change: a check of metadata does not notice the new contents
    let (path_sender, path_receiver) = std::sync::mpsc::sync_channel(1);
    let (stop_sender, stop_receiver) = std::sync::mpsc::sync_channel::<()>(1);
    let thread = std::thread::Builder::new().name("nothing".into()).spawn(move || {
        path_sender.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
        let _ = stop_receiver.recv();
    });
    let comm = std::path::Path::new("/proc").join(path_receiver.recv().unwrap()).join("comm");
    let mut home = Home::new().with_flags(&["--config-rescan-interval=1h"]);
    std::os::unix::fs::symlink(&comm, home.config_directory().join("c01")).unwrap();
    let meshkeep = home.start().await;
    eventually("the first scan", || async { (meshkeep.log_lines_with(&["watching the config directory"]) == 1).then_some(()) }).await;
    std::fs::write(&comm, "endpoints: x").unwrap();
    assert_eq!(meshkeep.phase("c01").await, "");
    meshkeep.signal("HUP");
    eventually("the cluster", || async { (!meshkeep.phase("c01").await.is_empty()).then_some(()) }).await;
    drop(stop_sender);
    thread.unwrap().join().unwrap();
}

/// Creates a sidecar that listens only on a unix socket. Returns it and the socket's path.
fn home_with_socket() -> (Home, std::path::PathBuf) {
    let home = Home::new();
    let socket = home.config_directory().with_file_name("meshkeep.sock");
    (home.with_only_flags(&[&format!("--listen=unix://{}", socket.display())]), socket)
}

#[tokio::test]
async fn sigterm_at_the_beginning_of_a_start_ends_with_0() {
    for _ in 0..20 {
        let (mut home, socket) = home_with_socket();
        let ended = home.start_until_signals().await.stop().await;
        assert_eq!((ended.status.code(), socket.exists()), (Some(0), false), "{}", ended.log);
    }
}

#[tokio::test]
async fn sigterm_as_soon_as_it_listens_ends_with_0_and_removes_the_socket() {
    for _ in 0..20 {
        let (mut home, socket) = home_with_socket();
        let ended = home.start().await.stop().await;
        assert_eq!((ended.status.code(), socket.exists()), (Some(0), false), "{}", ended.log);
    }
}

#[tokio::test]
async fn sigterm_while_the_store_is_locked_ends_with_0_and_removes_the_socket() {
    let mut holder = Home::new();
    let holder_process = holder.start().await;
    let (home, socket) = home_with_socket();
    let mut home = home.with_flags(&[&format!("--data-dir={}", holder.data_directory().display())]);
    let waiting = home.start_until_signals().await;
    eventually("the socket", || async { socket.exists().then_some(()) }).await;
    let ended = waiting.stop().await;
    assert_eq!((ended.status.code(), socket.exists()), (Some(0), false), "{}", ended.log);
    assert!(ended.elapsed < SHUTDOWN, "{:?}", ended.elapsed);
    assert_eq!(holder_process.stop().await.status.code(), Some(0));
}

#[tokio::test]
async fn sigterm_while_the_store_loads_ends_with_0_and_removes_the_socket() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    scene.follower = None;
    scene.stop_meshkeep().await;
    // the engine locks its file too, and waits some seconds for the lock: loading takes until then
    let engine = std::fs::File::open(scene.home.data_directory().join("store/db")).unwrap();
    engine.lock().unwrap();
    let (home, socket) = home_with_socket();
    let mut home = home.with_flags(&[&format!("--data-dir={}", scene.home.data_directory().display())]);
    let loading = home.start_until_signals().await;
    eventually("the socket", || async { socket.exists().then_some(()) }).await;
    assert_eq!(loading.log_lines_with(&["store is loaded"]), 0, "{}", loading.log());
    let ended = loading.stop().await;
    assert_eq!((ended.status.code(), socket.exists()), (Some(0), false), "{}", ended.log);
    assert!(ended.elapsed < SHUTDOWN, "{:?}", ended.elapsed);
    drop(engine);
}
