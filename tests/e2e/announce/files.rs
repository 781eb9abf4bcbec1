//! Files that change while they are announced: written in place, emptied or deleted. The tests
//! check what is withdrawn, when, and how it is reported.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::{AnnounceSetup, Announcer};
use crate::harness::etcd::Etcd;
use crate::harness::eventually;

/// Number of workloads in `rack.yaml`, the second file of the announcer.
const WORKLOADS: u32 = 20;

/// Time between two lines of a slow writer: long enough for each write to be noticed.
const LINE_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the second file with `count` workloads.
fn rack_yaml(count: u32) -> String {
    let workload = |number: u32| format!("- {{namespace: rack, name: w{number}, labels: {{app: rack}}, ips: [10.0.0.{number}]}}\n");
    "workloads:\n".to_owned() + &(1..=count).map(workload).collect::<String>()
}

/// A running announcer with two files.
struct AnnounceRun {
    etcd: Etcd,
    setup: AnnounceSetup,
    announcer: Announcer,
}

impl AnnounceRun {
    async fn start(flags: &[&str]) -> Self {
        let etcd = Etcd::start().await;
        let setup = AnnounceSetup::new(&etcd);
        fs::write(setup.path("rack.yaml"), rack_yaml(WORKLOADS)).unwrap();
        let metrics = format!("--metrics-file={}", setup.path("announce.prom").display());
        let rack_path = setup.path("rack.yaml").display().to_string();
        let announcer = Announcer(setup.command("log", &[flags, &[&metrics, &rack_path]].concat()).spawn().unwrap());
        setup.wait_for_log("log", "announced").await;
        Self { etcd, setup, announcer }
    }

    fn file(&self) -> PathBuf {
        self.setup.path("rack.yaml")
    }

    /// Returns the addresses of the second file with their create revisions. An address that was
    /// withdrawn and announced again has a new create revision.
    async fn addresses(&self) -> Vec<(String, i64)> {
        let options = etcd_client::GetOptions::new().with_prefix();
        let reply = self.etcd.client().await.get("cilium/state/ip/v1/default/10.0.0.", Some(options)).await.unwrap();
        reply.kvs().iter().map(|kv| (kv.key_str().unwrap().to_owned(), kv.create_revision())).collect()
    }

    async fn wait_for_withdrawal(&self) {
        eventually("no address of the second file", async || self.addresses().await.is_empty().then_some(())).await;
    }

    /// Waits until the metrics contain these lines.
    async fn wait_for_metrics(&self, lines: &[String]) {
        let path = self.setup.path("announce.prom");
        let has = || fs::read_to_string(&path).is_ok_and(|text| lines.iter().all(|wanted| text.lines().any(|line| line == wanted)));
        eventually(&format!("{lines:?}"), async || has().then_some(())).await;
    }

    fn held_workloads_line(&self, count: u32) -> String {
        format!("meshkeep_announce_held_workloads{{cluster=\"vms\",file=\"{}\"}} {count}", self.file().display())
    }

    fn hangup(&self) {
        let signal = format!("kill -HUP {}", self.announcer.0.id());
        assert!(Command::new("sh").args(["-c", &signal]).status().unwrap().success());
    }
}

/// Rewrites a file line by line. After each line it is valid YAML with one workload more.
#[tokio::test]
async fn rewriting_a_file_line_by_line_withdraws_nothing() {
    let run = AnnounceRun::start(&[]).await;
    let before = run.addresses().await;
    assert_eq!(before.len(), 20);
    let mut file = fs::File::create(run.file()).unwrap();
    for line in rack_yaml(WORKLOADS + 1).lines() {
        writeln!(file, "{line}").unwrap();
        tokio::time::sleep(LINE_INTERVAL).await;
        assert_eq!(run.addresses().await, before, "after {line}");
    }
    eventually("the new workload", async || (run.addresses().await.len() == 21).then_some(())).await;
    let after: Vec<_> = run.addresses().await.into_iter().filter(|address| before.contains(address)).collect();
    assert_eq!((after, run.setup.count_log_lines("log", "held back")), (before, 0));
}

#[tokio::test]
async fn an_emptied_file_withdraws_nothing_before_sighup() {
    let mut run = AnnounceRun::start(&[]).await;
    let before = run.addresses().await;
    fs::write(run.file(), "").unwrap();
    let message = format!("{}: would withdraw 20 of 20 workloads", run.file().display());
    run.setup.wait_for_log("log", &message).await;
    run.wait_for_metrics(&["meshkeep_announce_held_files{cluster=\"vms\"} 1".into(), run.held_workloads_line(20)]).await;
    // a change of another file is applied meanwhile
    run.setup.write(&super::FILE.replace("192.168.9.1", "192.168.9.1, 192.168.9.2"));
    eventually("the change of the other file", async || {
        let reply = run.etcd.client().await.get("cilium/state/ip/v1/default/192.168.9.2", None).await.unwrap();
        (reply.count() == 1).then_some(())
    })
    .await;
    assert_eq!((run.addresses().await, run.setup.count_log_lines("log", &message)), (before, 1));
    run.hangup();
    run.wait_for_withdrawal().await;
    run.wait_for_metrics(&["meshkeep_announce_held_files{cluster=\"vms\"} 0".into()]).await;
    run.announcer.terminate();
    assert_eq!(
        (run.announcer.wait_for_end().await, run.setup.count_log_lines("log", "stopped announcing cluster vms: its keys stay")),
        (0, 1)
    );
    assert_eq!(run.setup.count_log_lines("log", "some changes of the files were not applied"), 0);
}

#[tokio::test]
async fn a_deleted_file_is_withdrawn_after_the_hold_time() {
    let run = AnnounceRun::start(&["--hold-time=8s"]).await;
    let before = run.addresses().await;
    fs::remove_file(run.file()).unwrap();
    run.setup.wait_for_log("log", "would withdraw 20 of 20 workloads").await;
    assert_eq!(run.addresses().await, before);
    run.wait_for_withdrawal().await;
    run.setup.wait_for_log("log", "no change to the file is held back any more").await;
    // adding the workloads again is not a withdrawal
    fs::write(run.file(), rack_yaml(WORKLOADS)).unwrap();
    eventually("the file's addresses", async || (run.addresses().await.len() == 20).then_some(())).await;
}

/// The summary at the end names the held changes. With a maximum of 100 % no change is held back.
#[tokio::test]
async fn the_summary_lists_held_changes_and_100_percent_holds_none() {
    let mut run = AnnounceRun::start(&["--max-withdrawal=40%"]).await;
    fs::write(run.file(), rack_yaml(WORKLOADS / 2)).unwrap();
    run.setup.wait_for_log("log", "exceeds --max-withdrawal 40%").await;
    run.announcer.terminate();
    assert_eq!(run.announcer.wait_for_end().await, 0);
    let summary = "rack.yaml: would withdraw 10 of 20 workloads\" file_errors=0";
    assert_eq!((run.setup.count_log_lines("log", summary), run.addresses().await.len()), (1, 20));
    let run = AnnounceRun::start(&["--max-withdrawal=100%"]).await;
    fs::write(run.file(), "").unwrap();
    run.wait_for_withdrawal().await;
    assert_eq!(run.setup.count_log_lines("log", "held back"), 0);
}
