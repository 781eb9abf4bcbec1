//! Files that are written in place, emptied and deleted while they are announced: withdrawals,
//! their times, and the reports about them.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::{AnnounceSetup, Announcer};
use crate::harness::etcd::Etcd;
use crate::harness::eventually;

/// Number of workloads in the second file.
const WORKLOADS: u32 = 20;

/// Time between two lines of a slow writer: long enough for each write to be noticed.
const LINE_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the second file with `count` workloads.
fn rack(count: u32) -> String {
    let workload = |number: u32| format!("- {{namespace: rack, name: w{number}, labels: {{app: rack}}, ips: [10.0.0.{number}]}}\n");
    "workloads:\n".to_owned() + &(1..=count).map(workload).collect::<String>()
}

/// An announcer with two files, and its reports.
struct Rack {
    etcd: Etcd,
    place: AnnounceSetup,
    announcer: Announcer,
}

impl Rack {
    async fn start(flags: &[&str]) -> Self {
        let etcd = Etcd::start().await;
        let place = AnnounceSetup::new(&etcd);
        fs::write(place.path("rack.yaml"), rack(WORKLOADS)).unwrap();
        let metrics = format!("--metrics-file={}", place.path("announce.prom").display());
        let rack = place.path("rack.yaml").display().to_string();
        let announcer = Announcer(place.command("log", &[flags, &[&metrics, &rack]].concat()).spawn().unwrap());
        place.says("log", "announced").await;
        Self { etcd, place, announcer }
    }

    fn file(&self) -> PathBuf {
        self.place.path("rack.yaml")
    }

    /// Returns the addresses of the second file with their create revisions. An address that was
    /// withdrawn and came back has a new one.
    async fn addresses(&self) -> Vec<(String, i64)> {
        let options = etcd_client::GetOptions::new().with_prefix();
        let reply = self.etcd.client().await.get("cilium/state/ip/v1/default/10.0.0.", Some(options)).await.unwrap();
        reply.kvs().iter().map(|found| (found.key_str().unwrap().to_owned(), found.create_revision())).collect()
    }

    async fn is_withdrawn(&self) {
        eventually("no address of the second file", async || self.addresses().await.is_empty().then_some(())).await;
    }

    /// Waits until the metrics contain these lines.
    async fn measures(&self, lines: &[String]) {
        let path = self.place.path("announce.prom");
        let has = || fs::read_to_string(&path).is_ok_and(|text| lines.iter().all(|wanted| text.lines().any(|line| line == wanted)));
        eventually(&format!("{lines:?}"), async || has().then_some(())).await;
    }

    fn held_workloads(&self, count: u32) -> String {
        format!("meshkeep_announce_held_workloads{{cluster=\"vms\",file=\"{}\"}} {count}", self.file().display())
    }

    fn hangup(&self) {
        let signal = format!("kill -HUP {}", self.announcer.0.id());
        assert!(Command::new("sh").args(["-c", &signal]).status().unwrap().success());
    }
}

/// Rewrites a file line by line. After each line it is valid YAML with one workload more.
#[tokio::test]
async fn a_file_that_is_rewritten_in_place_line_by_line_withdraws_nothing() {
    let rack_file = Rack::start(&[]).await;
    let before = rack_file.addresses().await;
    assert_eq!(before.len(), 20);
    let mut file = fs::File::create(rack_file.file()).unwrap();
    for line in rack(WORKLOADS + 1).lines() {
        writeln!(file, "{line}").unwrap();
        tokio::time::sleep(LINE_INTERVAL).await;
        assert_eq!(rack_file.addresses().await, before, "after {line}");
    }
    eventually("the new workload", async || (rack_file.addresses().await.len() == 21).then_some(())).await;
    let after: Vec<_> = rack_file.addresses().await.into_iter().filter(|address| before.contains(address)).collect();
    assert_eq!((after, rack_file.place.said("log", "held back")), (before, 0));
}

#[tokio::test]
async fn an_emptied_file_withdraws_nothing_before_sighup_says_so() {
    let mut rack_file = Rack::start(&[]).await;
    let before = rack_file.addresses().await;
    fs::write(rack_file.file(), "").unwrap();
    let held = format!("{}: would withdraw 20 of 20 workloads", rack_file.file().display());
    rack_file.place.says("log", &held).await;
    rack_file.measures(&["meshkeep_announce_held_files{cluster=\"vms\"} 1".into(), rack_file.held_workloads(20)]).await;
    // a change of another file is applied meanwhile
    rack_file.place.write(&super::FILE.replace("192.168.9.1", "192.168.9.1, 192.168.9.2"));
    eventually("the change of the other file", async || {
        let found = rack_file.etcd.client().await.get("cilium/state/ip/v1/default/192.168.9.2", None).await.unwrap();
        (found.count() == 1).then_some(())
    })
    .await;
    assert_eq!((rack_file.addresses().await, rack_file.place.said("log", &held)), (before, 1));
    rack_file.hangup();
    rack_file.is_withdrawn().await;
    rack_file.measures(&["meshkeep_announce_held_files{cluster=\"vms\"} 0".into()]).await;
    rack_file.announcer.terminate();
    assert_eq!((rack_file.announcer.end().await, rack_file.place.said("log", "stopped announcing cluster vms: its keys stay")), (0, 1));
    assert_eq!(rack_file.place.said("log", "some changes of the files were not applied"), 0);
}

#[tokio::test]
async fn a_deleted_file_is_withdrawn_once_its_time_is_over() {
    let rack_file = Rack::start(&["--hold-time=8s"]).await;
    let before = rack_file.addresses().await;
    fs::remove_file(rack_file.file()).unwrap();
    rack_file.place.says("log", "would withdraw 20 of 20 workloads").await;
    assert_eq!(rack_file.addresses().await, before);
    rack_file.is_withdrawn().await;
    rack_file.place.says("log", "no change to the file is held back any more").await;
    // adding as many workloads again is no withdrawal
    fs::write(rack_file.file(), rack(WORKLOADS)).unwrap();
    eventually("the file's addresses", async || (rack_file.addresses().await.len() == 20).then_some(())).await;
}

/// The summary at the end names the held changes. With a maximum of 100 % no change is held back.
#[tokio::test]
async fn an_end_names_what_is_held_back_and_the_whole_may_be_withdrawn_where_that_is_allowed() {
    let mut rack_file = Rack::start(&["--max-withdrawal=40%"]).await;
    fs::write(rack_file.file(), rack(WORKLOADS / 2)).unwrap();
    rack_file.place.says("log", "exceeds --max-withdrawal 40%").await;
    rack_file.announcer.terminate();
    assert_eq!(rack_file.announcer.end().await, 0);
    let summary = "rack.yaml: would withdraw 10 of 20 workloads\" file_errors=0";
    assert_eq!((rack_file.place.said("log", summary), rack_file.addresses().await.len()), (1, 20));
    let rack_file = Rack::start(&["--max-withdrawal=100%"]).await;
    fs::write(rack_file.file(), "").unwrap();
    rack_file.is_withdrawn().await;
    assert_eq!(rack_file.place.said("log", "held back"), 0);
}
