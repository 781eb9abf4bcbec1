//! `meshkeep announce` and `meshkeep identity` with real etcds, and a second meshkeep that mirrors
//! the announced cluster.

mod files;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::eventually;
use crate::harness::meshkeep::{Home, Meshkeep};

const FILE: &str = "cluster: {name: vms, id: 77}
nodes:
- name: rack1-host7
  addresses: [{type: InternalIP, ip: 192.168.7.7}]
  podCIDRs: [192.168.7.16/28]
workloads:
- namespace: legacy
  name: billing-db
  labels: {app: billing-db}
  serviceAccount: billing
  ips: [192.168.7.20]
  node: rack1-host7
- namespace: legacy
  name: printer
  labels: {app: printer}
  ips: [192.168.9.1, 'fd00:9::1']
services:
- namespace: shop
  name: billing-db
  ports: [{name: pg, protocol: TCP, port: 5432}]
  frontends: [10.96.7.20]
  backends: {labels: {app: billing-db}}
";

/// Directory with an announcer's files and logs.
struct AnnounceSetup(TempDir);

impl AnnounceSetup {
    fn new(etcd: &Etcd) -> Self {
        let setup = Self(TempDir::new().unwrap());
        fs::write(setup.path("etcd.yaml"), etcd.client_file_yaml()).unwrap();
        setup.write(FILE);
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes the announcer's file atomically.
    fn write(&self, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path("vms.yaml")).unwrap();
    }

    fn command(&self, log: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
        command.arg("announce").arg("--to").arg(self.path("etcd.yaml")).args(arguments).arg(self.path("vms.yaml"));
        command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(self.path(log)).unwrap());
        command
    }

    fn announce(&self, log: &str) -> Announcer {
        Announcer(self.command(log, &[]).spawn().unwrap())
    }

    /// Returns the number of lines of a log that contain a text.
    fn count_log_lines(&self, log: &str, text: &str) -> usize {
        fs::read_to_string(self.path(log)).unwrap().lines().filter(|line| line.contains(text)).count()
    }

    async fn wait_for_log(&self, log: &str, text: &str) {
        eventually(text, async || (self.count_log_lines(log, text) > 0).then_some(())).await;
    }

    fn identity(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
        command.arg("identity").args(arguments).arg("--etcd").arg(self.path("etcd.yaml"));
        command.output().unwrap()
    }
}

/// A running announcer, killed when it is dropped.
struct Announcer(Child);

impl Announcer {
    fn terminate(&mut self) {
        let signal = format!("kill -TERM {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &signal]).status().unwrap().success());
    }

    /// Waits for the end and returns the exit code.
    async fn wait_for_end(&mut self) -> i32 {
        eventually("the announcer's end", || std::future::ready(self.0.try_wait().unwrap())).await.code().unwrap_or(-1)
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns every key below `cilium/` with its value, without locks and the announcer's own keys.
/// Values that are times become `<time>`.
async fn content(etcd: &Etcd) -> Vec<(String, String)> {
    let options = etcd_client::GetOptions::new().with_prefix();
    let reply = etcd.client().await.get("cilium/", Some(options)).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let all = reply.kvs().iter().map(|kv| (text(kv.key()), text(kv.value())));
    let without_time = |(key, value): (String, String)| {
        let has_time = key.starts_with("cilium/synced/") || key == "cilium/.heartbeat";
        if has_time { (key, "<time>".to_owned()) } else { (key, value) }
    };
    all.filter(|(key, _)| !key.starts_with("cilium/.announce/") && !key.starts_with("cilium/.initlock/")).map(without_time).collect()
}

/// Waits until an answer of the mirror satisfies a condition, and returns it.
async fn wait_for_answer(meshkeep: &Meshkeep, what: &str, path: &str, is_expected: impl Fn(&Value) -> bool) -> Value {
    eventually(what, async || {
        let (_, answer) = meshkeep.send_get(path).await;
        is_expected(&answer).then_some(answer)
    })
    .await
}

async fn mirror(etcd: &Etcd) -> (Home, Meshkeep) {
    let mut home = Home::new();
    home.write_cluster("vms", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    meshkeep.wait_for_phase("vms", "live").await;
    (home, meshkeep)
}

/// The mirror has the addresses, identities, node and global service of the files. Then the files
/// change.
#[tokio::test]
async fn the_mirror_follows_the_announced_files() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        // keys of other clusters stay, even below prefixes without a cluster name
        let foreign = [
            ("cilium/state/ip/v1/default/10.0.0.1", r#"{"IP":"10.0.0.1","Mask":null,"HostIP":"","ID":65800,"Key":0,"Metadata":""}"#),
            ("cilium/state/nodes/v1/vms-2/a", "{}"),
            ("cilium/state/identities/v1/id/65800", "k8s:app=x;"),
        ];
        etcd.put_many(foreign).await;
        // left over from an earlier announcer
        etcd.put("cilium/state/services/v1/vms/shop/old", "{}").await;
        let setup = AnnounceSetup::new(&etcd);
        let mut announcer = setup.announce("log");
        setup.wait_for_log("log", "announced").await;
        let (_home, meshkeep) = mirror(&etcd).await;
        let lookup = meshkeep.get("/v1/ipcache/lookup?ip=192.168.7.20").await;
        let billing = lookup["match"]["identity"].as_u64().unwrap();
        assert!((77 << 16..78 << 16).contains(&billing), "{lookup}");
        assert_eq!((&lookup["match"]["podName"], &lookup["match"]["hostIP"]), (&json!("billing-db"), &json!("192.168.7.7")), "{lookup}");
        let identity = meshkeep.get(&format!("/v1/identities/{billing}")).await.to_string();
        for label in ["billing-db", "vms", "legacy", "billing"] {
            assert!(identity.contains(&format!(":\"{label}\"")), "{label}: {identity}");
        }
        assert_eq!(meshkeep.get("/v1/ipcache/lookup?ip=fd00:9::1").await["match"]["podName"], "printer");
        assert_eq!(meshkeep.get("/v1/nodes/vms/rack1-host7").await["name"], "rack1-host7");
        let service = meshkeep.get("/v1/global-services/shop/billing-db").await.to_string();
        assert!(service.contains("192.168.7.20") && service.contains("5432"), "{service}");
        assert_eq!(meshkeep.send_get("/v1/services/vms/shop/old").await.0, 404);
        let before = content(&etcd).await;
        // a file with errors changes nothing and is reported once; then a correct one takes effect
        setup.write(&FILE.replace("app: printer", "app: printer, app: twice"));
        setup.wait_for_log("log", "vms.yaml:15: ").await;
        setup.write(
            &FILE
                .replace("192.168.9.1", "192.168.9.1, 192.168.9.2")
                .replace("cluster: {name: vms, id: 77}", "cluster: {name: vms, id: 78}"),
        );
        setup.wait_for_log("log", "another cluster").await;
        assert_eq!((content(&etcd).await, setup.count_log_lines("log", "vms.yaml:15: ")), (before, 1));
        setup.write(&FILE.replace("ips: [192.168.7.20]", "ips: [192.168.7.20, 192.168.7.21]").replace("app: printer", "app: scanner"));
        wait_for_answer(&meshkeep, "the new address", "/v1/ipcache/lookup?ip=192.168.7.21", |answer| {
            answer["match"]["identity"] == billing
        })
        .await;
        wait_for_answer(&meshkeep, "the new labels", "/v1/ipcache/lookup?ip=192.168.9.1", |answer| answer.to_string().contains("scanner"))
            .await;
        wait_for_answer(&meshkeep, "the new backend", "/v1/global-services/shop/billing-db", |answer| {
            answer.to_string().contains("192.168.7.21")
        })
        .await;
        for (key, value) in foreign {
            assert_eq!(etcd.client().await.get(key, None).await.unwrap().kvs()[0].value(), value.as_bytes(), "{key}");
        }
        announcer.terminate();
        assert_eq!(announcer.wait_for_end().await, 0);
    }
}

/// After a kill and a quick restart, readers have lost nothing. A wiped etcd is filled again.
/// Deletes and puts of other clients are undone.
#[tokio::test]
async fn announced_keys_survive_kills_wipes_and_other_writers() {
    let mut etcd = Etcd::start().await;
    let setup = AnnounceSetup::new(&etcd);
    let announcer = setup.announce("log-1");
    setup.wait_for_log("log-1", "announced").await;
    let before = content(&etcd).await;
    let keys_without_lease = async |etcd: &Etcd| {
        let options = etcd_client::GetOptions::new().with_prefix();
        let reply = etcd.client().await.get("cilium/", Some(options)).await.unwrap();
        let unleased = reply.kvs().iter().filter(|kv| kv.lease() == 0).map(|kv| kv.key_str().unwrap().to_owned());
        unleased.filter(|key| !key.starts_with("cilium/state/identities/v1/id/")).collect::<Vec<_>>()
    };
    assert_eq!(keys_without_lease(&etcd).await, Vec::<String>::new(), "all keys except the identities have leases");
    // after SIGKILL the lock must expire before another process may announce
    drop(announcer);
    let mut announcer = setup.announce("log-2");
    assert_eq!(content(&etcd).await, before);
    let options = etcd_client::GetOptions::new().with_prefix();
    let locks = etcd.client().await.get("cilium/.announce/lock/vms/", Some(options)).await.unwrap();
    // revoke the lease, which would expire after 25 s
    if let Some(first) = locks.kvs().iter().min_by_key(|lock| lock.create_revision()) {
        etcd.client().await.lease_revoke(first.lease()).await.unwrap();
    }
    setup.wait_for_log("log-2", "announced").await;
    assert_eq!(content(&etcd).await, before, "the identities keep their numbers too");
    etcd.delete("cilium/state/nodes/v1/vms/rack1-host7").await;
    etcd.put("cilium/state/services/v1/vms/shop/billing-db", "{}").await;
    etcd.put("cilium/state/services/v1/vms/shop/other", "{}").await;
    etcd.delete("cilium/synced/vms/cilium/state/ip/v1").await;
    etcd.delete("cilium/cluster-config/vms").await;
    eventually("the earlier contents", async || (content(&etcd).await == before).then_some(())).await;
    etcd.wipe();
    etcd.restart().await;
    eventually("the earlier contents in an empty etcd", async || (content(&etcd).await == before).then_some(())).await;
    announcer.terminate();
    assert_eq!(announcer.wait_for_end().await, 0);
    // --retire deletes everything, the config first; a process that is stopped earlier reports that
    etcd.put("cilium/state/nodes/v1/vms-2/a", "{}").await;
    let mut stopped = Announcer(setup.command("log-0", &["--retire", "--retire-grace", "1h"]).spawn().unwrap());
    setup.wait_for_log("log-0", "the config of cluster vms is deleted").await;
    stopped.terminate();
    assert_eq!(
        (stopped.wait_for_end().await, setup.count_log_lines("log-0", "stopped before cluster vms was retired: run the command again")),
        (1, 1)
    );
    etcd.put("cilium/cluster-config/vms", r#"{"id":77}"#).await;
    let mut retiring = Announcer(setup.command("log-3", &["--retire", "--retire-grace", "1s"]).spawn().unwrap());
    eventually("the end of the config", async || {
        let left = content(&etcd).await;
        (!left.iter().any(|(key, _)| key == "cilium/cluster-config/vms")).then(|| assert!(left.len() > 10))
    })
    .await;
    assert_eq!(retiring.wait_for_end().await, 0);
    let left: Vec<String> = content(&etcd).await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(left, ["cilium/.heartbeat", "cilium/state/nodes/v1/vms-2/a"]);
}

#[tokio::test]
async fn a_second_announcer_reports_the_first_and_exits() {
    let etcd = Etcd::start().await;
    let setup = AnnounceSetup::new(&etcd);
    let _first = setup.announce("log-1");
    setup.wait_for_log("log-1", "announced").await;
    let mut second = setup.announce("log-2");
    let started = std::time::Instant::now();
    let status = crate::harness::eventually_within(std::time::Duration::from_secs(60), "its end", || {
        std::future::ready(second.0.try_wait().unwrap())
    })
    .await;
    assert!(status.code() == Some(1) && started.elapsed().as_secs() >= 28, "{status} after {:?}", started.elapsed());
    assert_eq!(setup.count_log_lines("log-2", &format!("(process {},", _first.0.id())), 1);
    assert_eq!(setup.count_log_lines("log-1", "lost"), 0);
}

/// A reader that finds a canary in a refilled etcd must find all entries of the canary's kind,
/// regardless of the number of identities.
#[tokio::test]
async fn canaries_are_written_last_into_a_wiped_etcd() {
    let mut etcd = Etcd::start().await;
    let setup = AnnounceSetup::new(&etcd);
    let workload = |number: u32| format!("- {{namespace: a, name: w{number}, labels: {{app: w{number}}}, ips: [10.0.0.{number}]}}\n");
    setup.write(&("cluster: {name: vms, id: 77}\nworkloads:\n".to_owned() + &(1..=60).map(workload).collect::<String>()));
    let mut announcer = setup.announce("log");
    setup.wait_for_log("log", "announced").await;
    let before = content(&etcd).await;
    etcd.wipe();
    etcd.restart().await;
    eventually("the earlier contents in an empty etcd", async || (content(&etcd).await == before).then_some(())).await;
    let options = etcd_client::GetOptions::new().with_prefix();
    let reply = etcd.client().await.get("cilium/", Some(options)).await.unwrap();
    let created = |prefix: &str| {
        let all = reply.kvs().iter().filter(|kv| kv.key().starts_with(prefix.as_bytes())).map(etcd_client::KeyValue::create_revision);
        all.collect::<Vec<_>>()
    };
    for base in ["identities/v1", "ip/v1"] {
        let (entries, canary) = (created(&format!("cilium/state/{base}/")), created(&format!("cilium/synced/vms/cilium/state/{base}")));
        assert!(entries.len() >= 60 && entries.iter().max() < canary.first(), "{base}: {entries:?} and {canary:?}");
    }
    announcer.terminate();
    assert_eq!(announcer.wait_for_end().await, 0);
}

/// Another writer announces an address of the files with an identity of another cluster. The
/// announcer does not overwrite it, and announces it once the other writer has deleted it.
#[tokio::test]
async fn an_address_of_another_writer_is_not_overwritten() {
    let etcd = Etcd::start().await;
    let (key, theirs) = ("cilium/state/ip/v1/default/192.168.9.1", r#"{"IP":"192.168.9.1","Mask":null,"HostIP":"","ID":65800,"Key":0}"#);
    etcd.put(key, theirs).await;
    let setup = AnnounceSetup::new(&etcd);
    let mut announcer = setup.announce("log");
    setup.wait_for_log("log", "other writers already announce some addresses").await;
    setup.wait_for_log("log", "is announced cluster=vms").await;
    let value = async || etcd.client().await.get(key, None).await.unwrap().kvs().first().map(|kv| kv.value_str().unwrap().to_owned());
    assert_eq!(value().await.as_deref(), Some(theirs));
    etcd.delete(key).await;
    eventually("the address of the files", async || value().await).await;
    announcer.terminate();
    assert_eq!(announcer.wait_for_end().await, 0);
}

/// A cluster with the same name and another id belongs to another owner. Its nodes and services
/// must not be deleted.
#[tokio::test]
async fn a_cluster_with_another_id_is_left_alone() {
    let etcd = Etcd::start().await;
    etcd.put("cilium/cluster-config/vms", r#"{"id":7,"capabilities":{"syncedCanaries":true,"maxConnectedClusters":255}}"#).await;
    etcd.put("cilium/state/nodes/v1/vms/a", "{}").await;
    let setup = AnnounceSetup::new(&etcd);
    let before = content(&etcd).await;
    for (log, arguments) in [("log-1", &[][..]), ("log-2", &["--retire", "--retire-grace", "0"][..])] {
        let mut announcer = Announcer(setup.command(log, arguments).spawn().unwrap());
        assert_eq!(announcer.wait_for_end().await, 1);
        assert_eq!(
            setup.count_log_lines(log, "cluster vms has id 7 in that etcd, but the files have id 77: retire it with files that have id 7"),
            1
        );
        assert_eq!(content(&etcd).await, before);
    }
}

/// Missing permissions and exhausted identities are reported once, and everything is written as
/// soon as that is possible.
#[tokio::test]
async fn failed_writes_are_reported_once_and_repeated() {
    let mut etcd = Etcd::start().await;
    etcd.enable_auth("announcer", "secret").await;
    etcd.restrict_to_remote("vms").await;
    let setup = AnnounceSetup::new(&etcd);
    // in a mesh of 511 each cluster has half as many identities; all but one are taken
    setup.write(&FILE.replace("id: 77", "id: 77, maxConnectedClusters: 511"));
    let first = 77 << 15;
    etcd.put_many((first..first + (1 << 15) - 1).map(|id| (format!("cilium/state/identities/v1/id/{id}"), format!("k8s:taken={id};"))))
        .await;
    let mut announcer = setup.announce("log");
    setup.wait_for_log("log", "cannot acquire the lock of cluster vms: trying again").await;
    let mut client = etcd.client().await;
    client.role_grant_permission("mesh", etcd_client::Permission::read_write("cilium/").with_prefix()).await.unwrap();
    setup.wait_for_log("log", "1 sets of labels have no identity").await;
    let ips = async || content(&etcd).await.into_iter().filter(|(key, _)| key.starts_with("cilium/state/ip/")).count();
    eventually("the addresses of the other workloads", async || (ips().await > 0).then_some(())).await;
    assert!(content(&etcd).await.iter().any(|(key, _)| key == "cilium/cluster-config/vms"), "everything else is announced");
    etcd.delete(format!("cilium/state/identities/v1/id/{first}")).await;
    eventually("all addresses", async || (ips().await == 3).then_some(())).await;
    assert_eq!(
        (setup.count_log_lines("log", "cannot acquire the lock of cluster"), setup.count_log_lines("log", "have no identity")),
        (1, 1)
    );
    announcer.terminate();
    assert_eq!(announcer.wait_for_end().await, 0);
}

#[tokio::test]
async fn a_dry_run_needs_no_etcd_and_reports_errors_by_line() {
    let directory = TempDir::new().unwrap();
    let run = |text: &str| {
        fs::write(directory.path().join("vms.yaml"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
        command.args(["announce", "--dry-run"]).arg(directory.path().join("vms.yaml")).output().unwrap()
    };
    let output = run(FILE);
    let lines: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!((output.status.code(), lines.len()), (Some(0), 13), "{lines:#?}");
    assert_eq!(lines[0], "cilium/.heartbeat => <time>");
    let identity = "cilium/state/identities/v1/id/5046272 => k8s:app=billing-db;k8s:io.cilium.k8s.policy.cluster=vms;\
                    k8s:io.cilium.k8s.policy.serviceaccount=billing;k8s:io.kubernetes.pod.namespace=legacy;";
    assert!(lines.contains(&identity.to_owned()), "{lines:#?}");
    let config = r#"cilium/cluster-config/vms => {"id":77,"capabilities":{"syncedCanaries":true,"maxConnectedClusters":255}}"#;
    assert_eq!(lines[12], config);
    let output = run(&FILE.replace("ips:", "addresses:"));
    let reported = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && reported.contains("vms.yaml:11: workloads[0]: unknown field `addresses`"), "{reported}");
    let usage = Command::new(env!("CARGO_BIN_EXE_meshkeep")).args(["announce", "vms.yaml"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
}

/// A lease time is refused if the leases would expire before another process gets the lock: a kill
/// would then withdraw everything.
#[test]
fn leases_too_short_for_a_takeover_are_refused() {
    let sum = "30s is shorter than 60s: after a process is killed, its lock exists for 25s, and the next process waits up to 30s for it and needs up to 5s to start";
    for arguments in
        [&["announce", "--to=etcd.yaml", "--lease-ttl=30s", "vms.yaml"][..], &["reflect", "--to=etcd.yaml", "--to-lease-ttl=30s"]]
    {
        let refused = Command::new(env!("CARGO_BIN_EXE_meshkeep")).args(arguments).output().unwrap();
        let reported = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(2) && reported.contains(sum), "{arguments:?}: {reported}");
    }
}

#[tokio::test]
async fn identity_commands_allocate_find_release_and_collect() {
    let etcd = Etcd::start().await;
    let setup = AnnounceSetup::new(&etcd);
    let code_and_output = |output: &Output| (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let labels = ["k8s:app=a", "k8s:io.cilium.k8s.policy.cluster=vms"];
    let text = "k8s:app=a;k8s:io.cilium.k8s.policy.cluster=vms;";
    let allocated = setup.identity(&[&["allocate", "--cluster-id", "77"], &labels[..]].concat());
    let id = code_and_output(&allocated).1;
    assert!(allocated.status.success() && (77 << 16..78 << 16).contains(&id.parse::<u64>().unwrap()), "{allocated:?}");
    assert_eq!(code_and_output(&setup.identity(&[&["allocate", "--cluster-id", "77"], &labels[..]].concat())), (Some(0), id.clone()));
    assert_eq!(code_and_output(&setup.identity(&["get", &id])), (Some(0), text.to_owned()));
    assert_eq!(code_and_output(&setup.identity(&[&["get"], &labels[..]].concat())), (Some(0), id.clone()));
    assert_eq!(code_and_output(&setup.identity(&["list"])), (Some(0), format!("{id}\t{text}")));
    let listed: Value = serde_json::from_slice(&setup.identity(&["list", "-o", "json"]).stdout).unwrap();
    assert_eq!(listed[0]["labels"]["k8s:app"], "a", "{listed}");
    let first_gc = setup.identity(&["gc", "--cluster-id", "77", "--interval", "0"]);
    assert_eq!(code_and_output(&first_gc), (Some(0), "1 identities remain; deleted 0 identities and 0 locks".to_owned()));
    let other = setup.identity(&[&["release", "--node", "other"], &labels[..]].concat());
    assert!(other.status.code() == Some(1) && String::from_utf8_lossy(&other.stderr).contains("node other does not refer"), "{other:?}");
    assert_eq!(setup.identity(&[&["release"], &labels[..]].concat()).status.code(), Some(0));
    assert_eq!(setup.identity(&[&["release"], &labels[..]].concat()).status.code(), Some(1));
    let second_gc = setup.identity(&["gc", "--cluster-id", "77", "--interval", "0"]);
    assert_eq!(code_and_output(&second_gc).1, format!("deleted {id}\n0 identities remain; deleted 1 identities and 0 locks"));
    assert_eq!(setup.identity(&["get", &id]).status.code(), Some(1));
    // keys of a clustermesh-apiserver have no references to identities
    let lease = etcd.client().await.lease_grant(600, None).await.unwrap().id();
    let published = Some(etcd_client::PutOptions::new().with_lease(lease));
    etcd.client().await.put("cilium/state/identities/v1/id/5046300", text, published).await.unwrap();
    let last_gc = setup.identity(&["gc", "--cluster-id", "77", "--interval", "0"]);
    assert_eq!(code_and_output(&last_gc).1, "1 identities remain; deleted 0 identities and 0 locks");
    fs::write(setup.path("etcd.yaml"), "endpoints: [http://127.0.0.1:1]\n").unwrap();
    assert_eq!(setup.identity(&["list", "--timeout", "1s"]).status.code(), Some(3));
    // invalid arguments are reported before any connection to an etcd
    assert_eq!(setup.identity(&["get", "nonsense"]).status.code(), Some(2));
    assert_eq!(setup.identity(&["gc", "--cluster-id", "256", "--interval", "0"]).status.code(), Some(2));
}
