//! Options and commands that users of kubectl expect: templates, columns, sorted lists, completion,
//! the version, the log, raw entries and rejected values.

use super::command_line::{exit_code_and_error, meshkeep, run};
use super::samples::in_state_form;
use crate::harness::etcd::etcd_binaries;
use crate::harness::eventually;

fn output(server: &str, arguments: &[&str]) -> String {
    let output = run(server, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn lists_have_the_options_of_kubectl() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let server = running.url();
    let names = r#"jsonpath={range .items[*]}{.cluster}/{.name}{"\n"}{end}"#;
    assert_eq!(
        output(server, &["get", "nodes", "-o", names]),
        "paris/paris-worker-1\nparis/paris-worker-2\ntokyo/tokyo-worker-1\ntokyo/tokyo-worker-2\n"
    );
    assert_eq!(output(server, &["get", "node", "paris/paris-worker-1", "-o", "jsonpath={.addresses[0].ip}"]), "172.18.1.1");
    assert_eq!(output(server, &["lookup", "10.1.2.40", "-o", "jsonpath={.match.namespace}/{.match.podName}"]), "shop/db-0");
    let columns = ["get", "svc", "-A", "-n", "nowhere", "--cluster", "tokyo", "-o", "custom-columns=NAME:.name,PORT:.frontends[0].ip"];
    assert_eq!(output(server, &columns), "NAME         PORT\ncart         10.96.2.10\ndb-headless  <none>\n");
    let sorted = ["get", "identities", "--sort-by", "{.id}", "--no-headers", "-o", "custom-columns=ID:.id"];
    assert_eq!(output(server, &sorted), "65795\n68352\n131331\n133888\n");
    let table = output(server, &["get", "nodes", "--no-headers", "--sort-by=.name", "--cluster", "paris"]);
    assert!(table.starts_with("paris  paris-worker-1") && table.lines().count() == 2, "{table}");
    for (arguments, expected) in [
        (&["get", "nodes", "-o", "jsonpath={..name}"][..], "is not a supported path"),
        (&["get", "nodes", "-o", "xml"], "use one of table, wide, json, yaml, name, jsonpath=, custom-columns="),
        (&["get", "nodes", "--sort-by", ".nope"], "--sort-by: no item has a value at this path"),
        (&["get", "nodes", "-w", "-o", "jsonpath={.items}"], "-w prints events after the list"),
    ] {
        let (code, text) = exit_code_and_error(&run(server, arguments));
        assert!(code == Some(2) && text.contains(expected), "{arguments:?}: {text}");
    }
}

#[tokio::test]
async fn the_server_may_precede_the_command() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let before = meshkeep(&["--server", running.url(), "get", "node", "paris/paris-worker-1", "-o", "name"]).output().unwrap();
    assert_eq!((before.status.code(), String::from_utf8_lossy(&before.stdout).as_ref()), (Some(0), "node/paris/paris-worker-1\n"));
    let (code, text) = exit_code_and_error(&meshkeep(&["--server", running.url(), "serve", "--check-config"]).output().unwrap());
    assert!(code == Some(2) && text.contains("unexpected argument '--server'"), "{text}");
}

#[tokio::test]
async fn versions_logs_and_raw_values_have_commands() {
    let (etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let server = running.url();
    let version = output(server, &["version"]);
    let (client, theirs) = version.split_once('\n').unwrap();
    assert_eq!(client.strip_prefix("Client Version: "), theirs.trim().strip_prefix("Server Version: "), "{version}");
    assert_eq!(output(server, &["version", "--client"]), format!("{client}\n"));
    // without a sidecar, only the own version
    let lonely = run("http://127.0.0.1:1", &["version"]);
    assert_eq!((lonely.status.code(), String::from_utf8_lossy(&lonely.stdout).trim()), (Some(3), client));
    assert!(!output(server, &["log"]).is_empty());
    assert_eq!(output(server, &["logs", "--tail", "1"]).lines().count(), 1);
    let key = "cilium/cache/identities/v1/paris/id/68352";
    assert_eq!(output(server, &["entries", "cilium/cache/identities/v1/paris/", "-o", "name"]).lines().last(), Some(key));
    let value = "k8s:app=db;k8s:io.cilium.k8s.policy.cluster=paris;k8s:io.kubernetes.pod.namespace=shop;";
    assert_eq!(output(server, &["entries", key, "--value"]), value);
    let (code, text) = exit_code_and_error(&run(server, &["entries", "cilium/cache/nope", "--value"]));
    assert_eq!(
        (code, text.as_str()),
        (Some(1), "error: there is no key cilium/cache/nope: `meshkeep entries PREFIX` lists the keys below a prefix")
    );
    assert_eq!(exit_code_and_error(&run(server, &["rejected"])), (Some(0), "none found".to_owned()));
    etcds[0].put("cilium/state/nodes/v1/paris/broken", "no JSON").await;
    let rejected = eventually("the rejected value", || async {
        Some(output(server, &["rejected", "--cluster", "paris", "-o", "jsonpath={.items[*].key}"])).filter(|keys| !keys.is_empty())
    })
    .await;
    assert_eq!(rejected, "cilium/cache/nodes/v1/paris/broken");
    let table = output(server, &["rejected"]);
    assert!(table.contains("broken") && table.contains("nothing"), "{table}");
}

#[tokio::test]
async fn each_backend_has_the_rule_and_the_reason() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let server = running.url();
    let local = output(server, &["get", "global-services", "shop/cart", "--from", "paris", "--affinity", "local"]);
    let lines: Vec<String> = local.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines[0], "shop/cart as seen from paris with affinity local: 2 of 4 backends would be used");
    assert_eq!(lines[1], "localActive: the affinity is local and a local backend is active: only local backends are used");
    assert_eq!(lines[3], "CLUSTER BACKEND PORTS STATE USED REASON");
    assert!(lines[4].starts_with("paris 10.1.1.21 ") && lines[4].ends_with(" active yes localActive"), "{local}");
    assert!(lines[6].starts_with("tokyo 10.2.1.21 "), "{local}");
    assert!(lines[6].ends_with(" active no localActive: affinity local prefers backends of paris"), "{local}");
    let remote =
        output(server, &["get", "gsvc", "cart", "-n", "shop", "--from=paris", "--affinity=remote", "-o", "jsonpath={.backends[*].ip}"]);
    assert_eq!(remote, "10.2.1.21 10.2.2.21");
    // a list has the number of backends that would be used
    let list = output(server, &["get", "gsvc", "--from=paris", "--affinity=local", "-o", "jsonpath={.items[0].selection.rule}"]);
    assert_eq!(list, "localActive");
    for (arguments, expected) in [
        (&["get", "nodes", "--from", "paris"][..], "--from and --affinity are for global-services, not for nodes"),
        (&["get", "gsvc", "cart", "--from", "paris"], "need the namespace of cart: write NAMESPACE/cart"),
        (&["get", "gsvc", "shop/cart", "--from", "paris", "--cluster", "tokyo"], "a full name selects one object: omit cluster=tokyo"),
        (&["get", "gsvc", "shop/cart", "--affinity", "local"], "affinity: needs --from CLUSTER"),
        (&["get", "gsvc", "shop/cart", "--from", "rome"], "from: there is no cluster rome: `meshkeep get clusters` lists all clusters"),
    ] {
        let (code, text) = exit_code_and_error(&run(server, arguments));
        assert!(code == Some(2) && text.contains(expected), "{arguments:?}: {text}");
    }
}

#[tokio::test]
async fn a_cidr_is_explained() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let explained = output(running.url(), &["explain", "10.1.2.0/24"]);
    assert!(explained.starts_with("10.1.2.0/24 -> paris"), "{explained}");
    assert!(
        explained.contains("inside\n") && explained.contains("`meshkeep get ipcache --filter cidr=10.1.2.0/24` lists them"),
        "{explained}"
    );
}

/// Returns the candidates for the last of these words. Checks that standard error, which is the
/// terminal of the shell, stays empty.
pub(super) fn complete(shell: &str, words: &[&str]) -> Vec<String> {
    let mut command = meshkeep(&[]);
    command.env("MESHKEEP_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
    let output = command.arg("--").args(words).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn completion_offers_values_and_names_of_clusters() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let server = running.url();
    let kinds = ["nodes", "services", "global-services", "identities", "ipcache", "service-exports", "endpoint-slices", "clusters"];
    let offered = complete("bash", &["meshkeep", "get", ""]);
    assert!(kinds.iter().all(|kind| offered.contains(&(*kind).to_owned())), "{offered:?}");
    assert_eq!(complete("bash", &["meshkeep", "get", "end"]), ["endpoint-slices"]);
    assert_eq!(complete("bash", &["meshkeep", "problems", "--severity", ""]), ["critical", "warning", "info"]);
    assert_eq!(complete("bash", &["meshkeep", "problems", "--kind", "clusterUnreac"]), ["clusterUnreachable"]);
    assert_eq!(complete("bash", &["meshkeep", "status", "--phase", "w"]), ["waitingForFiles", "waitingForCanary"]);
    assert_eq!(complete("bash", &["meshkeep", "watch", "--kind", "service"]), ["serviceExport", "service"]);
    assert_eq!(complete("bash", &["meshkeep", "get", "nodes", "-o", "j"]), ["json", "jsonpath="]);
    assert!(!complete("bash", &["meshkeep", "bundle", "--output", ""]).contains(&"json".to_owned()));
    assert_eq!(complete("bash", &["meshkeep", "rej"]), ["rejected"]);
    for words in [
        &["meshkeep", "get", "nodes", "--server", server, "--cluster", ""][..],
        &["meshkeep", "--server", server, "problems", "--cluster", ""],
        &["meshkeep", "get", "gsvc", &format!("--server={server}"), "--from", ""],
    ] {
        // a busy machine may need more than the second that a completion waits
        let names =
            eventually("the names of the clusters", || async { Some(complete("bash", words)).filter(|names| !names.is_empty()) }).await;
        assert_eq!(names, ["paris", "tokyo"], "{words:?}");
    }
    // without an answer there are no names, and no names of files
    assert_eq!(complete("bash", &["meshkeep", "get", "nodes", "--server", "http://127.0.0.1:1", "--cluster", ""]), Vec::<String>::new());
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = meshkeep(&["completion", shell]).output().unwrap();
        let script = String::from_utf8_lossy(&script.stdout).into_owned();
        assert!(script.contains("MESHKEEP_COMPLETE"), "{shell}: {script}");
    }
}

/// A server that accepts connections and never answers delays a completion only briefly.
#[test]
fn completion_does_not_wait_for_a_silent_server() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let start = std::time::Instant::now();
    assert_eq!(complete("bash", &["meshkeep", "get", "nodes", "--server", &server, "--cluster", ""]), Vec::<String>::new());
    // the answer to a query may take 30 s
    assert!(start.elapsed() < std::time::Duration::from_secs(10), "{:?}", start.elapsed());
}
