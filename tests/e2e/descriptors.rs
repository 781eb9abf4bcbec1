//! File descriptors: raised to the hard limit, and a reserve that HTTP never takes.

use tokio::net::TcpSocket;

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::SMALL;
use crate::harness::meshkeep::Home;
use crate::harness::scene::Scene;

#[tokio::test]
async fn the_soft_limit_is_raised_and_told() {
    let mut home = Home::new().behind_shell("ulimit -Sn 256; ulimit -Hn 3000");
    let meshkeep = home.start().await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", meshkeep.id())).unwrap();
    let files: Vec<&str> = limits.lines().find(|line| line.starts_with("Max open files")).unwrap().split_whitespace().collect();
    assert_eq!(files[3..5], ["3000", "3000"]);
    assert_eq!(meshkeep.log_lines_with(&["file descriptors", "limit=3000", "before=256"]), 1, "{}", meshkeep.log());
}

#[tokio::test]
async fn connections_never_take_what_a_cluster_needs() {
    let scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let file = std::fs::read_to_string(scene.home.config_directory().join("c01")).unwrap();
    scene.home.remove_cluster("c01");
    let mut home = Home::new().behind_shell("ulimit -n 400");
    let meshkeep = home.start().await;
    assert_eq!(meshkeep.log_lines_with(&["few file descriptors", "limit=400", "http=100"]), 1, "{}", meshkeep.log());
    let address: std::net::SocketAddr = meshkeep.url().trim_start_matches("http://").parse().unwrap();
    let mut held = Vec::new();
    for client in 1..=10 {
        for _ in 0..50 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(format!("127.0.1.{client}:0").parse().unwrap()).unwrap();
            held.push(socket.connect(address).await.unwrap());
        }
    }
    home.write_cluster("c01", &file);
    meshkeep.reaches("c01", "live").await;
    let open = std::fs::read_dir(format!("/proc/{}/fd", meshkeep.id())).unwrap().count();
    assert!(open < 200, "{open}");
    assert_eq!(meshkeep.log_lines_with(&["cannot accept"]), 0, "{}", meshkeep.log());
}
