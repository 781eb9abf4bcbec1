//! Texts from an etcd that contain characters on which a terminal acts. Commands that read an etcd
//! escape them in tables, JSON and errors.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::etcd::Etcd;
use crate::harness::eventually;
use crate::harness::hostile::{HOSTILE_TEXT, HostileEtcd, Mode, is_safe_to_display};

/// Rest of the hostile text's first escape sequence after its ESC character. It is harmless without
/// ESC, and shows that the text was printed.
const SHOWN: &str = "[31m";

/// A directory with a client file.
struct EscapeSetup(TempDir);

impl EscapeSetup {
    fn new(client_file: &str) -> Self {
        let setup = Self(TempDir::new().unwrap());
        fs::create_dir(setup.path("clustermesh")).unwrap();
        fs::write(setup.path("clustermesh/paris"), client_file).unwrap();
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the path of the client file as an argument.
    fn file(&self) -> String {
        self.path("clustermesh/paris").display().to_string()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
        command.env_clear().args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs a command, and checks that its output and errors contain no escape sequences.
    async fn run(&self, arguments: &[&str]) -> (Output, String) {
        let mut command = self.command(arguments);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        for part in [&output.stdout, &output.stderr] {
            assert_safe_to_display(arguments, part);
        }
        let text = String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned();
        (output, text)
    }

    /// Runs a command that shows a hostile text, and checks that no control character reaches its
    /// output.
    async fn run_checked(&self, arguments: &[&str]) -> Output {
        let (output, text) = self.run(arguments).await;
        assert!(text.contains(SHOWN), "{arguments:?} does not show the text: {text}");
        output
    }

    /// Returns the JSON that a command prints.
    async fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run_checked(arguments).await;
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output:?}"))
    }
}

fn assert_safe_to_display(what: &[&str], bytes: &[u8]) {
    let text = str::from_utf8(bytes).unwrap_or_else(|error| panic!("{what:?}: {error}"));
    assert!(is_safe_to_display(text), "{what:?} prints characters that a terminal acts on: {text:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_values_of_an_etcd_are_escaped_by_kvstore() {
    let etcd = Etcd::start().await;
    let key = format!("n/{HOSTILE_TEXT}");
    etcd.put(key.as_str(), HOSTILE_TEXT).await;
    etcd.put("n/raw", [0x1b_u8, 0x9b, 0xff]).await;
    let setup = EscapeSetup::new(&etcd.client_file_yaml());
    let file = setup.file();
    for arguments in [&["get", key.as_str()][..], &["get", "--recursive", "n/"], &["list", "n/"], &["list", "--keys-only", "n/"]] {
        setup.run_checked(&[&["kvstore"], arguments, &["--etcd", &file]].concat()).await;
    }
    let found = setup.json(&["kvstore", "get", &key, "-o", "json", "--etcd", &file]).await;
    assert_eq!((found["key"].as_str(), found["value"].as_str()), (Some(&*key), Some(HOSTILE_TEXT)));
    let found = setup.json(&["kvstore", "list", "n/", "-o", "json", "--etcd", &file]).await;
    assert_eq!((found[0]["key"].as_str(), found[1]["valueBase64"].as_str()), (Some(&*key), Some("G5v/")));
    let keys = setup.json(&["kvstore", "list", "n/", "--keys-only", "-o", "json", "--etcd", &file]).await;
    assert_eq!(keys[0].as_str(), Some(&*key));
    // also in errors, and in the output of a watch
    setup.run_checked(&["kvstore", "get", &format!("other/{HOSTILE_TEXT}"), "--etcd", &file]).await;
    let mut watch = setup.command(&["kvstore", "watch", "n/", "--etcd", &file]).stdout(Stdio::piped()).spawn().unwrap();
    let line = BufReader::new(watch.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_safe_to_display(&["kvstore", "watch"], line.as_bytes());
    assert!(line.contains(SHOWN), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_of_an_etcd_are_escaped_by_identity() {
    let etcd = Etcd::start().await;
    // a semicolon ends a label
    let value = HOSTILE_TEXT.replace(';', ",");
    let label = format!("k8s:app={value};");
    etcd.put("cilium/state/identities/v1/id/70000", label.as_str()).await;
    etcd.put(format!("cilium/state/identities/v1/id/{HOSTILE_TEXT}"), "k8s:a=b;").await;
    let setup = EscapeSetup::new(&etcd.client_file_yaml());
    let file = setup.file();
    setup.run_checked(&["identity", "list", "--etcd", &file]).await;
    setup.run_checked(&["identity", "get", "70000", "--etcd", &file]).await;
    let found = setup.json(&["identity", "list", "-o", "json", "--etcd", &file]).await;
    assert_eq!(found[0]["labels"]["k8s:app"].as_str(), Some(&*value), "{found}");
    setup.run_checked(&["identity", "release", &format!("k8s:b={value}"), "--etcd", &file]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_of_a_remote_are_escaped_by_doctor() {
    let etcd = Etcd::start().await;
    let config = serde_json::json!({ "id": 1, "capabilities": { "syncedCanaries": HOSTILE_TEXT } }).to_string();
    etcd.put("cilium/cluster-config/paris", config).await;
    etcd.put("cilium/.heartbeat", HOSTILE_TEXT).await;
    let setup = EscapeSetup::new(&etcd.client_file_yaml());
    let (directory, data) = (setup.path("clustermesh").display().to_string(), setup.path("data").display().to_string());
    let arguments = ["doctor", "--clustermesh-config", &directory, "--data-dir", &data, "--timeout", "2s"];
    setup.run_checked(&arguments).await;
    setup.json(&[&arguments[..], &["-o", "json"]].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_text_of_a_remote_is_escaped() {
    let hostile = HostileEtcd::start(Mode::ErrorText).await;
    let setup = EscapeSetup::new(&hostile.client_file());
    let file = setup.file();
    let asking = [&["kvstore", "get", "n"][..], &["kvstore", "list", "n", "-o", "json"], &["identity", "list", "--timeout", "2s"]];
    let asking = asking.map(|arguments| [arguments, &["--etcd", &file]].concat());
    // in parallel, because each command waits for the etcd for a while
    futures_util::future::join_all(asking.iter().map(|arguments| setup.run(arguments))).await;
    let (directory, data) = (setup.path("clustermesh").display().to_string(), setup.path("data").display().to_string());
    for form in ["text", "json"] {
        setup.run(&["doctor", "--clustermesh-config", &directory, "--data-dir", &data, "--timeout", "2s", "-o", form]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_of_an_etcd_are_escaped_in_the_log_of_announce() {
    let etcd = Etcd::start().await;
    etcd.put("cilium/state/identities/v1/id/70000", format!("k8s:app={HOSTILE_TEXT};")).await;
    etcd.put(format!("cilium/state/identities/v1/id/{HOSTILE_TEXT}"), "k8s:a=b;").await;
    etcd.put(format!("cilium/state/nodes/v1/vms/{HOSTILE_TEXT}"), HOSTILE_TEXT).await;
    let setup = EscapeSetup::new(&etcd.client_file_yaml());
    let machines = setup.path("vms.yaml");
    let workload = "workloads:\n- {namespace: legacy, name: db, labels: {app: db}, ips: [192.168.7.20]}\n";
    fs::write(&machines, format!("cluster: {{name: vms, id: 77}}\n{workload}")).unwrap();
    for form in ["text", "json"] {
        let log = setup.path(form);
        let mut command = setup.command(&["announce", "--to", &setup.file(), "--log-level", "debug", "--log-format", form]);
        let mut announcer = command.arg(&machines).stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        let log_text = || fs::read_to_string(&log).unwrap_or_default();
        let is_reported =
            || async { (log_text().contains("ignoring a key that is not an identity") && log_text().contains("announced")).then_some(()) };
        eventually("the announcer to read the etcd", is_reported).await;
        announcer.kill().unwrap();
        announcer.wait().unwrap();
        assert_safe_to_display(&["announce", form], log_text().as_bytes());
        assert!(log_text().contains(SHOWN), "{}", log_text());
    }
    // errors about a file quote the file
    fs::write(
        &machines,
        format!(
            "cluster: {{name: vms, id: 77}}\nnodes:\n- {{name: \"{}\", addresses: [{{type: InternalIP, ip: 192.168.7.7}}]}}\n",
            "a\\e[31m\\x7f\\u202e"
        ),
    )
    .unwrap();
    setup.run_checked(&["announce", "--dry-run", &machines.display().to_string()]).await;
}
