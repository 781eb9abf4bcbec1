//! File descriptors: the soft limit is raised to the hard limit, and HTTP connections leave a
//! reserve for clusters.

use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::net::TcpSocket;

use crate::harness::etcd::etcd_binaries;
use crate::harness::eventually;
use crate::harness::mesh::SMALL;
use crate::harness::meshkeep::Home;
use crate::harness::scene::Scene;

#[tokio::test]
async fn the_soft_limit_is_raised_and_reported() {
    let mut home = Home::new().after_shell_commands("ulimit -Sn 256; ulimit -Hn 3000");
    let meshkeep = home.start().await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", meshkeep.id())).unwrap();
    let files: Vec<&str> = limits.lines().find(|line| line.starts_with("Max open files")).unwrap().split_whitespace().collect();
    assert_eq!(files[3..5], ["3000", "3000"]);
    assert_eq!(meshkeep.log_lines_with(&["the limit of file descriptors is 3000", "limit=3000", "before=256"]), 1, "{}", meshkeep.log());
}

#[tokio::test]
async fn http_connections_leave_descriptors_for_clusters() {
    let scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let file = std::fs::read_to_string(scene.home.config_directory().join("c01")).unwrap();
    scene.home.remove_cluster("c01");
    let mut home = Home::new().after_shell_commands("ulimit -n 400");
    let meshkeep = home.start().await;
    assert_eq!(meshkeep.log_lines_with(&["the limit of file descriptors is too low", "limit=400", "http=100"]), 1, "{}", meshkeep.log());
    let address: std::net::SocketAddr = meshkeep.url().trim_start_matches("http://").parse().unwrap();
    let mut connections = Vec::new();
    for client in 1..=10 {
        for _ in 0..50 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(format!("127.0.1.{client}:0").parse().unwrap()).unwrap();
            connections.push(socket.connect(address).await.unwrap());
        }
    }
    home.write_cluster("c01", &file);
    meshkeep.wait_for_phase("c01", "live").await;
    let open = std::fs::read_dir(format!("/proc/{}/fd", meshkeep.id())).unwrap().count();
    assert!(open < 200, "{open}");
    assert_eq!(meshkeep.log_lines_with(&["cannot accept"]), 0, "{}", meshkeep.log());
}

#[tokio::test]
async fn a_server_without_descriptors_pauses_and_logs_it_once() {
    /// Several times the pause between two attempts to accept (`serve.rs`).
    const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);
    let mut home = Home::new();
    let meshkeep = home.start().await;
    assert_eq!(meshkeep.send_get("/livez").await.0, 200);
    let process = Pid::from_raw(meshkeep.id().cast_signed());
    let limit = |current: u64| {
        prlimit(process, Resource::Nofile, Rlimit { current: Some(current), maximum: getrlimit(Resource::Nofile).maximum }).unwrap()
    };
    // the limit applies to descriptor numbers; those of standard input, output and log are in use
    let before = limit(3);
    // a new connection for each request, because an open one needs no descriptor
    let new_client = || reqwest::Client::builder().no_proxy().build().unwrap();
    let first = async { new_client().get(format!("{}/livez", meshkeep.url())).timeout(REQUEST_TIMEOUT).send().await };
    assert!(first.await.unwrap_err().is_timeout(), "nothing can be accepted");
    let reported = || meshkeep.log_lines_with(&["cannot accept connections", "Too many open files"]);
    eventually("a line of the log", || async { (reported() == 1).then_some(()) }).await;
    let ticks_before = ticks(meshkeep.id());
    let second = new_client().get(format!("{}/livez", meshkeep.url())).timeout(REQUEST_TIMEOUT).send().await;
    assert!(second.unwrap_err().is_timeout());
    // half a second of attempts without a pause would be 50 ticks
    let ticks = ticks(meshkeep.id()) - ticks_before;
    assert!(ticks < 25, "{ticks} hundredths of a second of the processor");
    prlimit(process, Resource::Nofile, before).unwrap();
    assert_eq!(meshkeep.send_get("/livez").await.0, 200);
    assert_eq!(reported(), 1, "{}", meshkeep.log());
}

/// Returns the processor time of a process, in hundredths of a second (`proc_pid_stat(5)`, utime
/// and stime).
fn ticks(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}
