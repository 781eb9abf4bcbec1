//! `meshkeep kvstore …`, as an operator runs it with an etcd.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use crate::harness::etcd::{Etcd, Tls, unused_port};

/// Client file of the etcd that the commands use, in a directory of its own.
struct ClientFile {
    _directory: tempfile::TempDir,
    file: String,
}

impl ClientFile {
    fn new(yaml: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("etcd.yaml");
        std::fs::write(&path, yaml).unwrap();
        Self { file: path.to_str().unwrap().to_owned(), _directory: directory }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
        let (own, lock_command): (Vec<&&str>, Vec<&&str>) = match arguments.iter().position(|argument| *argument == "--") {
            Some(position) => (arguments[..position].iter().collect(), arguments[position..].iter().collect()),
            None => (arguments.iter().collect(), Vec::new()),
        };
        command.arg("kvstore").args(own).args(["--etcd", &self.file]).args(lock_command);
        command
    }

    async fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let mut command = self.command(arguments);
        let output: Output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }

    async fn run_ok(&self, arguments: &[&str]) -> String {
        let (code, output, errors) = self.run(arguments).await;
        assert_eq!((code, errors.as_str()), (0, ""), "{arguments:?}");
        output
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_set_read_listed_and_deleted() {
    let etcd = Etcd::builder().tls(Tls::Mutual).start().await;
    let target = ClientFile::new(&etcd.client_file_yaml());
    assert_eq!(target.run_ok(&["set", "--key", "cilium/a", "--value", "1"]).await, "");
    assert_eq!(target.run_ok(&["set", "--key", "cilium/b", "--value", "2", "--create-only"]).await, "");
    let (code, _, errors) = target.run(&["set", "--key", "cilium/b", "--value", "3", "--create-only"]).await;
    assert_eq!((code, errors.as_str()), (1, "error: key cilium/b already exists\n"));
    assert_eq!(target.run_ok(&["get", "cilium/a"]).await, "cilium/a => 1\n");
    assert_eq!(target.run_ok(&["get", "--recursive", "cilium/"]).await, "cilium/a => 1\ncilium/b => 2\n");
    assert_eq!(target.run_ok(&["list", "--keys-only"]).await, "cilium/a\ncilium/b\n");
    let found: serde_json::Value = serde_json::from_str(&target.run_ok(&["get", "cilium/b", "-o", "json"]).await).unwrap();
    assert_eq!((&found["key"], &found["value"], &found["version"]), (&"cilium/b".into(), &"2".into(), &1.into()));
    etcd.put("cilium/c", [0xff_u8, 0xfe]).await;
    let found: serde_json::Value = serde_json::from_str(&target.run_ok(&["list", "cilium/c", "-o", "json"]).await).unwrap();
    assert_eq!(found[0]["valueBase64"], "//4=");
    assert_eq!(target.run_ok(&["delete", "cilium/a"]).await, "1 deleted\n");
    assert_eq!(target.run_ok(&["delete", "cilium/a"]).await, "0 deleted\n");
    assert_eq!(target.run_ok(&["delete", "--recursive", "cilium/"]).await, "2 deleted\n");
    let (code, output, errors) = target.run(&["get", "cilium/a"]).await;
    assert_eq!((code, output.as_str(), errors.as_str()), (1, "", "error: there is no key cilium/a\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_follows_a_prefix() {
    let etcd = Etcd::start().await;
    etcd.put("n/a", "1").await;
    let target = ClientFile::new(&etcd.client_file_yaml());
    let mut child = target.command(&["watch", "n/"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "create n/a => 1");
    assert_eq!(lines.next().unwrap().unwrap(), "listed");
    etcd.put("n/a", "2").await;
    etcd.delete("n/a").await;
    assert_eq!(lines.next().unwrap().unwrap(), "modify n/a => 2");
    assert_eq!(lines.next().unwrap().unwrap(), "delete n/a");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_held_until_its_input_or_its_command_ends() {
    let etcd = Etcd::start().await;
    let target = ClientFile::new(&etcd.client_file_yaml());
    let mut holder = target.command(&["lock", "locks/a"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut key = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut key).unwrap();
    assert!(key.starts_with("locks/a/"), "{key}");
    let (code, _, errors) = target.run(&["lock", "locks/a", "--timeout", "300ms"]).await;
    assert_eq!((code, errors.as_str()), (1, "error: another process has the lock locks/a\n"));
    holder.stdin.take().unwrap().write_all(b"done\n").unwrap();
    assert!(holder.wait().unwrap().success());
    assert!(target.run_ok(&["lock", "locks/a", "--", "sh", "-c", "echo inside"]).await.contains("inside"));
    assert_eq!(target.run(&["lock", "locks/a", "--", "false"]).await.0, 1);
    let left = etcd.client().await.get("locks/", Some(etcd_client::GetOptions::new().with_prefix())).await.unwrap();
    assert_eq!(left.count(), 0);
}

/// Terminating `kvstore lock` ends the command that it runs, which must not continue without the
/// lock, and deletes the key, so that nobody waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_lock_command_ends_its_child_and_leaves_no_key() {
    let etcd = Etcd::start().await;
    let target = ClientFile::new(&etcd.client_file_yaml());
    let keys = async || {
        let options = etcd_client::GetOptions::new().with_prefix().with_count_only();
        etcd.client().await.get("locks/", Some(options)).await.unwrap().count()
    };
    let mut holder =
        target.command(&["lock", "locks/a", "--", "sh", "-c", "echo $$; exec sleep 1000"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let (key, pid) = (lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap());
    assert!(key.starts_with("locks/a/"), "{key}");
    assert_eq!((target.run(&["lock", "locks/a", "--timeout", "300ms"]).await.0, keys().await), (1, 1));
    let mut waiting = target.command(&["lock", "locks/a"]).spawn().unwrap();
    crate::harness::eventually("another process to wait", async || (keys().await == 2).then_some(())).await;
    for child in [&mut waiting, &mut holder] {
        assert!(Command::new("sh").args(["-c", &format!("kill -TERM {}", child.id())]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(1));
    }
    assert_eq!(keys().await, 0);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_calls_fail_with_their_exit_code() {
    let target = ClientFile::new("endpoints: []\n");
    let (code, _, errors) = target.run(&["get", "a"]).await;
    assert!(code == 2 && errors.contains("endpoints is missing or empty"), "{code} {errors}");
    let without_etcd = Command::new(env!("CARGO_BIN_EXE_meshkeep")).args(["kvstore", "get", "a"]).output().unwrap();
    assert_eq!(without_etcd.status.code(), Some(2));
    for arguments in [&["get", ""][..], &["delete", "--recursive", ""], &["set", "--key", "", "--value", "1"], &["lock", ""]] {
        assert_eq!(target.run(arguments).await.0, 2, "{arguments:?}");
    }
    let mut etcd = Etcd::start().await;
    etcd.enable_auth("meshkeep", "secret").await;
    etcd.restrict_to_remote("paris").await;
    let target = ClientFile::new(&etcd.client_file_yaml());
    let (code, _, errors) = target.run(&["set", "--key", "cilium/a", "--value", "1"]).await;
    assert!(code == 1 && errors.contains("permission denied by etcd\ngive the user of the client file a role"), "{code} {errors}");
    let address = format!("etcd.address=http://127.0.0.1:{}", unused_port());
    let refused = Command::new(env!("CARGO_BIN_EXE_meshkeep"))
        .args(["kvstore", "get", "a", "--kvstore-opt", &address, "--kvstore-lease-ttl", "1s"])
        .output()
        .unwrap();
    assert!(refused.status.code() == Some(2) && String::from_utf8_lossy(&refused.stderr).contains("from 25s to 24h"));
}
