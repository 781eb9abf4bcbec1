//! `meshkeep demo`: a newcomer's first minute, without any server.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::etcd::unused_port;
use crate::harness::eventually;
use crate::harness::meshkeep::http;

/// A running demo, ended with the test.
struct Demo(std::process::Child);

impl Demo {
    /// Returns the directory of the sidecar's files.
    fn directory(&self) -> PathBuf {
        std::env::temp_dir().join(format!("meshkeep-demo-{}", self.0.id()))
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            terminate(&self.0);
            let _ = self.0.wait();
        }
    }
}

fn terminate(child: &std::process::Child) {
    let _ = Command::new("sh").args(["-c", &format!("kill -TERM {}", child.id())]).status();
}

async fn get(url: &str) -> Option<Value> {
    http().get(url).send().await.ok()?.json().await.ok()
}

#[tokio::test]
async fn demo_clusters_break_and_heal_and_lost_entries_are_held() {
    let (listen, control) = (format!("127.0.0.1:{}", unused_port()), format!("127.0.0.1:{}", unused_port()));
    let child = Command::new(env!("CARGO_BIN_EXE_meshkeep"))
        .args(["demo", "--pods=60", "--changes=5", "--listen", &listen, "--control", &control])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut demo = Demo(child);
    let phase = async |name: &str, wanted: &str| {
        eventually(&format!("{name} is {wanted}"), || async {
            let cluster = get(&format!("http://{listen}/v1/clusters/{name}")).await?;
            (cluster["phase"] == wanted).then_some(cluster)
        })
        .await
    };
    let order = async |name: &str, action: &str| {
        let url = format!("http://{control}/demo/clusters/{name}/{action}");
        assert_eq!(http().post(url).send().await.unwrap().status(), 202);
    };
    for name in ["paris", "tokyo", "oslo"] {
        phase(name, "live").await;
    }
    let explained = get(&format!("http://{listen}/v1/explain/10.1.0.10")).await.unwrap();
    assert!(explained.to_string().contains("cart"), "{explained}");
    let rejected = get(&format!("http://{listen}/v1/rejected")).await.unwrap();
    assert_eq!(rejected["items"], serde_json::json!([]));
    order("paris", "break").await;
    order("tokyo", "lose").await;
    phase("paris", "backingOff").await;
    phase("tokyo", "sourceLost").await;
    let nodes = get(&format!("http://{listen}/v1/nodes?cluster=tokyo")).await.unwrap();
    assert!(!nodes["items"].as_array().unwrap().is_empty(), "entries that the source lost are kept");
    order("paris", "heal").await;
    order("tokyo", "heal").await;
    phase("paris", "live").await;
    phase("tokyo", "live").await;
    assert_eq!(http().get(format!("http://{control}/demo/clusters/paris/heal")).send().await.unwrap().status(), 404);
    let of_a_web_page = http().post(format!("http://{control}/demo/clusters/paris/heal")).header("Origin", "http://rome.example");
    assert_eq!(of_a_web_page.send().await.unwrap().status(), 403);
    let unknown = http().post(format!("http://{control}/demo/clusters/rome/break")).send().await.unwrap();
    assert_eq!(
        (unknown.status().as_u16(), unknown.text().await.unwrap().as_str()),
        (404, "there is no cluster rome: the clusters are paris, tokyo, oslo\n")
    );
    // the sidecar has warned about the clusters, but not on the terminal of the demo
    let log = get(&format!("http://{listen}/v1/log")).await.unwrap();
    assert!(log["lines"].to_string().contains("paris"), "{log}");
    terminate(&demo.0);
    assert!(demo.0.wait().unwrap().success());
    assert_eq!(std::io::read_to_string(demo.0.stderr.take().unwrap()).unwrap(), "");
}

/// Starts a demo on free ports, and returns the address of its sidecar.
fn start_on_free_ports() -> (Demo, String) {
    let child = Command::new(env!("CARGO_BIN_EXE_meshkeep"))
        .args(["demo", "--pods=6", "--changes=0", "--listen=127.0.0.1:0", "--control=127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut demo = Demo(child);
    // the address of the page has its own line
    let mut lines = BufReader::new(demo.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let page = lines.find(|line| line.trim().starts_with("http://")).unwrap();
    (demo, page.trim().trim_start_matches("http://").trim_end_matches('/').to_owned())
}

/// A closed terminal ends the sidecar too, although the sidecar treats SIGHUP as a request to
/// reload its files.
#[tokio::test]
async fn a_demo_prints_its_ports_and_ends_with_its_terminal() {
    let (mut demo, address) = start_on_free_ports();
    let status = async || get(&format!("http://{address}/v1/status")).await;
    eventually("the sidecar answers", status).await;
    assert!(Command::new("sh").args(["-c", &format!("kill -HUP {}", demo.0.id())]).status().unwrap().success());
    assert!(demo.0.wait().unwrap().success());
    eventually("the sidecar is gone", async || TcpStream::connect(&address).is_err().then_some(())).await;
    assert!(!demo.directory().exists(), "the files of the sidecar are removed");
}

#[tokio::test]
async fn a_demo_that_is_killed_leaves_no_sidecar() {
    let (mut demo, address) = start_on_free_ports();
    let status = async || get(&format!("http://{address}/v1/status")).await;
    eventually("the sidecar answers", status).await;
    demo.0.kill().unwrap();
    demo.0.wait().unwrap();
    eventually("the sidecar is gone", async || TcpStream::connect(&address).is_err().then_some(())).await;
    // a killed process cannot remove its files
    let _ = std::fs::remove_dir_all(demo.directory());
}
