//! Commands that query a running sidecar, as a person types them: their output and their exit
//! codes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::samples::in_state_form;
use crate::harness::certificates::Authority;
use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::eventually;
use crate::harness::mesh::{Form, MeshCluster, SMALL, Shape, publish};
use crate::harness::meshkeep::Home;

/// Returns a command of the binary, without environment variables that could change it.
pub(super) fn meshkeep(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
    command.args(arguments);
    for variable in ["SERVER", "TOKEN_FILE", "CA_FILE", "CLIENT_CERT", "CLIENT_KEY"] {
        command.env_remove(format!("MESHKEEP_{variable}"));
    }
    command
}

pub(super) fn run(server: &str, arguments: &[&str]) -> Output {
    meshkeep(&[arguments, &["--server", server]].concat()).output().unwrap()
}

/// Returns the exit code and the lines of standard output, with runs of blanks reduced to one.
fn exit_code_and_lines(output: &Output) -> (Option<i32>, Vec<String>) {
    let lines = String::from_utf8_lossy(&output.stdout).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    (output.status.code(), lines)
}

fn lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

pub(super) fn exit_code_and_error(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[tokio::test]
async fn get_prints_objects_in_every_form() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let server = running.url();
    // without the last column, the age
    let columns = |arguments: &[&str]| {
        let (code, printed) = exit_code_and_lines(&run(server, arguments));
        (code, printed.iter().filter_map(|line| line.rsplit_once(' ')).map(|(before, _)| before.to_owned()).collect::<Vec<_>>())
    };
    let carts =
        &["CLUSTER NAMESPACE NAME FRONTENDS BACKENDS SHARED", "paris shop cart 10.96.1.10 2 true", "tokyo shop cart 10.96.2.10 2 true"];
    assert_eq!(columns(&["get", "svc", "cart"]), (Some(0), lines(carts)));
    assert_eq!(columns(&["get", "services", "shop/cart", "--cluster", "tokyo"]), (Some(0), lines(&[carts[0], carts[2]])));
    assert_eq!(
        exit_code_and_lines(&run(server, &["get", "svc", "-n", "shop", "-o", "name", "--cluster", "paris"])).1,
        lines(&["service/paris/shop/cart", "service/paris/shop/db-headless"])
    );
    assert_eq!(
        exit_code_and_lines(&run(server, &["get", "identities", "-l", "app=cart", "-o", "name"])),
        (Some(0), lines(&["identity/65795", "identity/131331"]))
    );
    let whole = json_of(&run(server, &["get", "node", "paris/paris-worker-1", "-o", "json"]));
    assert_eq!((&whole["name"], &whole["meta"]["origin"]), (&json!("paris-worker-1"), &json!("live")));
    let listed = json_of(&run(server, &["get", "ipcache", "--filter", "identity=68352", "-o", "json"]));
    assert_eq!(listed["items"][0]["prefix"], "10.1.2.40/32", "{listed}");
    let yaml: serde_yaml_ng::Value = serde_yaml_ng::from_slice(&run(server, &["get", "clusters", "-o", "yaml"]).stdout).unwrap();
    assert_eq!(yaml["items"][1]["name"], "tokyo");
    let (code, status) = exit_code_and_lines(&run(server, &["status", "--wait", "--timeout", "20s"]));
    assert_eq!((code, status.last().map(|line| line.starts_with("tokyo 2 live"))), (Some(0), Some(true)), "{status:?}");
    assert_eq!(status[0], "2 of 2 live");
    let selected = |flags: &[&str]| exit_code_and_lines(&run(server, &[&["status", "-o", "name"], flags].concat()));
    assert_eq!(selected(&["--cluster", "tokyo"]), (Some(0), lines(&["cluster/tokyo"])));
    assert_eq!(selected(&["--phase", "live"]), (Some(0), lines(&["cluster/paris", "cluster/tokyo"])));
    assert_eq!(selected(&["--phase", "backingOff", "--phase", "sourceLost"]), (Some(0), Vec::new()));
    assert_eq!(selected(&["--phase", "nonsense"]).0, Some(2));
    let names = exit_code_and_lines(&run(server, &["status", "-o", "custom-columns=NAME:.name", "--no-headers"]));
    assert_eq!(names, (Some(0), lines(&["paris", "tokyo"])));
    let (_, by_id) = exit_code_and_lines(&run(server, &["status", "--no-headers", "--sort-by", ".clusterID"]));
    assert!(by_id.iter().all(|line| !line.starts_with("NAME")) && by_id.last().unwrap().starts_with("tokyo"), "{by_id:?}");
    let missing = exit_code_and_error(&run(server, &["status", "--cluster", "rome"]));
    assert_eq!(missing, (Some(1), "error: there is no cluster \"rome\": `meshkeep get clusters` lists all".to_owned()));
    assert_eq!(exit_code_and_lines(&run(server, &["healthcheck", "--synced"])), (Some(0), Vec::new()));
    assert_eq!(exit_code_and_lines(&run(server, &["problems"])), (Some(0), lines(&["no problems"])));
}

#[tokio::test]
async fn find_prints_the_matches_of_all_kinds() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let server = running.url();
    let names = |text: &str| exit_code_and_lines(&run(server, &["find", text, "-o", "name"]));
    let workers = ["node/paris/paris-worker-1", "node/paris/paris-worker-2", "node/tokyo/tokyo-worker-1", "node/tokyo/tokyo-worker-2"];
    assert_eq!(names("WORKER"), (Some(0), lines(&workers)));
    assert_eq!(names("reserved:world-ipv4"), (Some(0), lines(&["identity/9"])));
    assert_eq!(names("10.1.2.4"), (Some(0), lines(&["ipcache/paris/10.1.2.40/32"])));
    let (code, found) = names("paris");
    assert_eq!((code, found.last().map(String::as_str)), (Some(0), Some("cluster/paris")), "{found:?}");
    let (code, tables) = exit_code_and_lines(&run(server, &["find", "shop/cart"]));
    let headings: Vec<&str> = tables.iter().filter_map(|line| line.strip_suffix(':')).collect();
    assert_eq!(code, Some(0));
    assert!(headings.starts_with(&["services", "global-services", "ipcache"]), "{tables:#?}");
    let by_kind = json_of(&run(server, &["find", "worker-1", "-o", "json"]));
    assert_eq!((by_kind["nodes"].as_array().map(Vec::len), &by_kind["services"]), (Some(2), &Value::Null), "{by_kind}");
    let limited = run(server, &["find", "worker", "--limit", "3", "-o", "name"]);
    assert_eq!(exit_code_and_lines(&limited), (Some(0), lines(&workers[..3])));
    let warning = "warning: more than 3 nodes match: type more of the text, or raise --limit";
    assert_eq!(exit_code_and_error(&limited), (Some(0), warning.to_owned()));
    assert_eq!(exit_code_and_error(&run(server, &["find", "worker", "--limit", "4"])), (Some(0), String::new()));
    let missing = "error: nothing in any mirrored cluster matches \"nobody\"";
    assert_eq!(exit_code_and_error(&run(server, &["find", "nobody"])), (Some(1), missing.to_owned()));
    assert_eq!(run(server, &["find", " "]).status.code(), Some(2));
}

#[tokio::test]
async fn addresses_are_looked_up_and_explained() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let server = running.url();
    let (code, table) = exit_code_and_lines(&run(server, &["lookup", "10.1.2.40"]));
    assert_eq!((code, table.len()), (Some(0), 2));
    assert!(table[1].starts_with("10.1.2.40 10.1.2.40/32 paris 68352 shop/db-0 paris-worker-2"), "{table:?}");
    let (code, several) = exit_code_and_lines(&run(server, &["lookup", "10.1.2.40", "192.0.2.1", "nonsense"]));
    assert_eq!(code, Some(1), "one has no entry, one is no address");
    assert!(several[2].starts_with("192.0.2.1 no entry") && several[3].starts_with("nonsense not an IP address"), "{several:?}");
    let (code, explanation) = exit_code_and_lines(&run(server, &["explain", "10.1.2.40"]));
    assert_eq!(code, Some(0));
    let assert_contains = |text: &str| assert!(explanation.iter().any(|line| line.contains(text)), "{text}: {explanation:#?}");
    for text in
        ["10.1.2.40 -> paris identity 68352 shop/db-0", "wins", "k8s:app=db", "paris/paris-worker-2 172.18.1.2", "paris/shop/db-headless"]
    {
        assert_contains(text);
    }
    let (code, miss) = exit_code_and_lines(&run(server, &["explain", "192.0.2.1"]));
    assert_eq!((code, miss), (Some(1), lines(&["192.0.2.1 -> no entry of any cluster covers it"])));
    let (code, near) = exit_code_and_lines(&run(server, &["explain", "10.1.2.41"]));
    assert!(near.iter().any(|line| line.contains("in pod CIDR 10.1.2.0/24 of node paris/")), "{code:?} {near:?}");
}

#[tokio::test]
async fn errors_say_what_to_do() {
    let (etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let server = running.url();
    let complaint_of = |arguments: &[&str]| exit_code_and_error(&run(server, arguments));
    assert_eq!(complaint_of(&["get", "svc", "nope"]), (Some(1), "error: there is no service \"nope\" in any mirrored cluster".to_owned()));
    // the API names its paths, and the command line its commands
    let expected = "error: cluster paris has no node nope: `meshkeep get nodes` lists all nodes";
    assert_eq!(complaint_of(&["get", "node", "paris/nope"]), (Some(1), expected.to_owned()));
    let (_, text) = complaint_of(&["get", "nodes", "--filter", "colour=red"]);
    assert!(text.starts_with("error: colour: is not a filter of this list: this list has labelSelector"), "{text}");
    for pattern in [&["get", "svc", "car*"][..], &["get", "svc", "paris/shop/car*"], &["get", "svc", "--filter", "name=car*"]] {
        let (code, text) = complaint_of(pattern);
        assert!(code == Some(2) && text.contains("names must be exact"), "{pattern:?}: {text}");
    }
    // reported before any connection: nothing listens on port 1
    for position in ["v9.00000000deadbeef.1", "nonsense"] {
        let (code, text) = exit_code_and_error(&run("http://127.0.0.1:1", &["watch", "--after", position]));
        assert!(code == Some(2) && text.contains("not a position of the form v1."), "{text}");
    }
    assert_eq!(exit_code_and_error(&run("http://127.0.0.1:1", &["watch", "--after", "v1.00000000deadbeef.1"])).0, Some(3));
    let (code, text) = complaint_of(&["get", "pods"]);
    assert!(code == Some(2) && text.contains("there is no kind \"pods\": use one of nodes, services"), "{text}");
    assert_eq!(complaint_of(&["get", "nodes", "-n", "shop"]), (Some(2), "error: nodes have no namespace".to_owned()));
    assert_eq!(complaint_of(&["get", "ipcache", "--filter", "colour=red"]).0, Some(2));
    // the operating system's reason as text, without error numbers and names of libraries
    let expected =
        "error: no meshkeep at 127.0.0.1:1 (connection refused): start one with `meshkeep serve`, or give another address with --server";
    assert_eq!(exit_code_and_error(&run("http://127.0.0.1:1", &["status"])), (Some(3), expected.to_owned()));
    let (code, text) = exit_code_and_error(&run(&format!("unix://{}", "/nowhere/socket"), &["status"]));
    assert!(code == Some(3) && text.starts_with("error: no meshkeep at unix:///nowhere/socket (no such file or directory): "), "{text}");
    let secure = server.replace("http://", "https://");
    assert_eq!(
        exit_code_and_error(&run(&secure, &["status"])),
        (Some(3), format!("error: {secure} does not use TLS: use http:// in --server"))
    );
    let etcd = etcds[0].url();
    let expected = format!("error: {etcd} answers 404 Not Found, and it is not a meshkeep: give another address with --server");
    assert_eq!(exit_code_and_error(&run(&etcd, &["status"])), (Some(3), expected));
    // an unknown name in a filter is reported in addition to the answer
    let expected = "warning: cluster: there is no cluster lisbon, `meshkeep get clusters` lists all clusters\nnone found";
    assert_eq!(exit_code_and_error(&run(server, &["get", "services", "--cluster", "lisbon"])), (Some(0), expected.to_owned()));
    assert_eq!(exit_code_and_error(&run(server, &["get", "services", "--cluster", "paris"])), (Some(0), String::new()));
    for wrong in ["127.0.0.1:9870", "unix://socket", "ftp://127.0.0.1"] {
        assert_eq!(exit_code_and_error(&run(wrong, &["status"])).0, Some(2), "{wrong}");
    }
}

/// Queries a sidecar over a unix socket, and over TLS with a token. It refuses queries without the
/// token, and the command refuses an untrusted authority.
#[tokio::test]
async fn commands_query_a_sidecar_over_its_socket_and_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (authority, other) = (Authority::new(directory.path(), "ca"), Authority::new(directory.path(), "other"));
    let pair = authority.server("server", &["127.0.0.1"]);
    let (token, socket) = (path("token"), format!("unix://{}", path("socket")));
    fs::write(&token, "open sesame\n").unwrap();
    let (certificate, key) = (pair.certificate.to_str().unwrap(), pair.key.to_str().unwrap());
    let tls = ["--tls-cert", certificate, "--tls-key", key, "--token-file", &token];
    let mut home =
        Home::new().with_only_flags(&[&tls[..], &["--allow-no-clusters", "--listen", "127.0.0.1:0", "--listen", &socket]].concat());
    let running = home.start().await;
    let (mine, others) = (authority.certificate().to_str().unwrap(), other.certificate().to_str().unwrap());
    for (server, flags) in [(socket.as_str(), vec![]), (running.url(), vec!["--ca-file", mine])] {
        // the config directory may not have been read yet
        let output = run(server, &[&["status", "--wait", "--timeout", "20s", "--token-file", &token], &flags[..]].concat());
        assert_eq!(output.status.code(), Some(0), "{server}: {output:?}");
        let (code, text) = exit_code_and_error(&run(server, &[&["status"], &flags[..]].concat()));
        assert!(code == Some(3) && text.contains("give the token with --token-file"), "{server}: {text}");
    }
    let (code, text) = exit_code_and_error(&run(running.url(), &["status", "--ca-file", others, "--token-file", &token]));
    assert!(code == Some(3) && text.contains("is not trusted: ") && text.contains("--ca-file"), "{text}");
    let plain = running.url().replace("https://", "http://");
    let (code, text) = exit_code_and_error(&run(&plain, &["status", "--token-file", &token]));
    assert!(code == Some(3) && text.ends_with("does not answer in HTTP: if it uses TLS, use https:// in --server"), "{text}");
    let (code, text) = exit_code_and_error(&run(running.url(), &["status", "--ca-file", &path("nowhere")]));
    assert!(code == Some(2) && text.contains("--ca-file"), "{text}");
}

/// A meshkeep is killed and restarted during a watch: the watcher reports it and continues by
/// itself.
#[tokio::test]
async fn a_watch_continues_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let socket = format!("unix://{}", directory.path().join("socket").display());
    let (etcds, mut home, running) = in_state_form(&etcd_binaries()[0], &["--listen", &socket]).await;
    let mut watcher =
        meshkeep(&["watch", "--kind", "service", "--server", &socket]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watcher.stdout.take().unwrap()).lines().map(Result::unwrap);
    // a watch does not show earlier changes, so it must follow before the first one
    eventually("the watcher to follow", || async {
        running.text("/metrics").await.contains("meshkeep_streams{encoding=\"ndjson\"} 1").then_some(())
    })
    .await;
    let key = "cilium/state/services/v1/paris/shop/cart";
    let value = etcds[0].client().await.get(key, None).await.unwrap().kvs()[0].value().to_vec();
    etcds[0].delete(key).await;
    let mut next = || lines.next().unwrap().split_once(' ').unwrap().1.to_owned();
    assert_eq!(next(), "paris - service shop/cart deleted");
    running.kill();
    let _running = home.start().await;
    etcds[0].put(key, value).await;
    assert_eq!(next(), "paris + service shop/cart");
    watcher.kill().unwrap();
    let errors = std::io::read_to_string(watcher.stderr.take().unwrap()).unwrap();
    watcher.wait().unwrap();
    assert!(errors.contains("trying again in") && errors.contains("connected again: continuing after the last event"), "{errors}");
}

#[test]
fn the_manual_contains_every_command() {
    let page = meshkeep(&["man"]).output().unwrap();
    let page = String::from_utf8_lossy(&page.stdout);
    for command in
        ["serve", "status", "get", "find", "lookup", "explain", "watch", "problems", "healthcheck", "store", "openapi", "completion"]
    {
        assert!(page.contains(command), "{command}");
    }
}

/// A command requests 10,000 items at a time.
#[tokio::test]
async fn a_list_of_more_than_one_page_is_printed_whole() {
    let etcd = Etcd::start().await;
    let shape = Shape { endpoints: 11_000, ..SMALL };
    publish(&etcd, Form::State, &[MeshCluster::generate(1, shape)], "2026-01-12T09:31:07Z").await;
    let mut home = Home::new();
    home.write_cluster("c01", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    assert!(run(meshkeep.url(), &["status", "--wait"]).status.success());
    let count = meshkeep.get("/v1/status").await["counts"]["ipcache"].as_u64().unwrap();
    assert!(count > 10_000);
    let output = run(meshkeep.url(), &["get", "ipcache", "-o", "name"]);
    let names = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), names.lines().count() as u64), (Some(0), count));
}
