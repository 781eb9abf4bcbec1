//! Commands that compare answers or show the past, with servers whose answers the test fixes.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::command_line::{exit_code_and_error, meshkeep, run};
use crate::harness::eventually;

/// A server that answers each request with a document. The document is chosen by the path with its
/// query.
struct ScriptedServer {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ScriptedServer {
    fn start(answer: impl Fn(&str) -> Value + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let (seen, answer) = (Arc::clone(&requests), Arc::new(answer));
        // the threads end with the test's process
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, seen, answer) = (stream.unwrap(), Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream.try_clone().unwrap().take(1 << 20));
                    let head: Vec<String> = reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                    let target = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
                    let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
                    // a connection with unread bytes is reset when it is closed
                    std::io::copy(&mut reader.take(length), &mut std::io::sink()).unwrap();
                    let body = answer(&target).to_string();
                    seen.lock().unwrap().push(target);
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                    // the client may close the connection early
                    let _ = stream.write_all((head + &body).as_bytes());
                });
            }
        });
        Self { url, requests }
    }
}

/// Returns a parameter of a request.
fn parameter<'a>(target: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = target.split_once('?')?;
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// Returns a list with one page.
fn list(items: &[Value]) -> Value {
    json!({ "items": items, "meta": {"position": "v1.a.1"} })
}

fn cluster(name: &str, id: u32) -> Value {
    json!({"name": name, "clusterID": id, "phase": "live", "origin": "live", "configRetrieved": true, "resources": [], "failures": 0})
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Number of keys of the servers of [`mirror`]: more than `verify --against` compares again at
/// once.
const KEY_COUNT: usize = 1_500;

/// Returns a server with [`KEY_COUNT`] keys in pages of 700. Lists have another value for the keys
/// of `changing`, which are equal when they are compared again.
fn mirror(version: &'static str, changing: std::ops::Range<usize>, differing: &'static [usize]) -> ScriptedServer {
    let entry = move |index: usize, is_list: bool| {
        let is_different = differing.contains(&index) || (is_list && changing.contains(&index));
        let value = if is_different { version } else { "equal" };
        json!({"key": format!("cilium/cache/ip/v1/paris/{index:05}"), "value": value, "createRevision": 1, "modRevision": 1, "version": 1,
            "sourceRevision": 7, "cluster": "paris"})
    };
    ScriptedServer::start(move |target| {
        if target.starts_with("/v1/clusters") {
            return list(&[cluster("paris", 1), cluster("tokyo", 2)]);
        }
        if let Some(key) = parameter(target, "prefix") {
            return list(&[entry(key[key.len() - 5..].parse().unwrap(), false)]);
        }
        if parameter(target, "cluster").is_some_and(|name| name != "paris") {
            return list(&[]);
        }
        // a page without items, and then pages of 700
        let Some(start) = parameter(target, "pageToken") else {
            return json!({"items": [], "nextPageToken": "0", "meta": {"position": "v1.a.1"}});
        };
        let start: usize = start.parse().unwrap();
        let end = KEY_COUNT.min(start + 700);
        let items: Vec<Value> = (start..end).map(|index| entry(index, true)).collect();
        let token = (end < KEY_COUNT).then(|| end.to_string());
        json!({"items": items, "nextPageToken": token, "meta": {"position": "v1.a.1"}})
    })
}

#[test]
fn mirrors_are_compared_to_their_end() {
    // while the lists are read, a thousand keys change
    let (here, there) = (mirror("a", 0..1_000, &[1_200]), mirror("b", 0..1_000, &[1_200]));
    let output = run(&here.url, &["verify", "--against", &there.url, "-o", "name"]);
    let text = stdout(&output);
    assert_eq!((output.status.code(), text.as_str()), (Some(1), "cilium/cache/ip/v1/paris/01200\n"), "{output:?}");
    let (here, there) = (mirror("a", 0..0, &[]), mirror("b", 0..0, &[]));
    let equal = run(&here.url, &["verify", "--against", &there.url]);
    assert_eq!(exit_code_and_error(&equal), (Some(0), "none found".to_owned()));
}

#[test]
fn a_comparison_that_stops_early_names_the_last_key() {
    const ALL: [usize; KEY_COUNT] = {
        let (mut all, mut index) = ([0; KEY_COUNT], 0);
        while index < KEY_COUNT {
            all[index] = index;
            index += 1;
        }
        all
    };
    let (here, there) = (mirror("a", 0..0, &ALL), mirror("b", 0..0, &ALL));
    let output = run(&here.url, &["verify", "--against", &there.url, "-o", "name"]);
    let (code, error) = exit_code_and_error(&output);
    assert_eq!((code, stdout(&output).lines().count()), (Some(1), 1_000));
    let expected = "stopped after 1000 differing keys: the keys after cilium/cache/ip/v1/paris/00999 were not compared";
    assert_eq!(error, expected);
}

#[test]
fn comparing_nothing_is_an_error() {
    let (here, there) = (mirror("a", 0..0, &[]), mirror("a", 0..0, &[]));
    let against = |cluster| exit_code_and_error(&run(&here.url, &["verify", cluster, "--against", &there.url]));
    let unknown = "error: neither the meshkeep of --server nor the meshkeep of --against has a cluster pariss: there are paris,tokyo";
    assert_eq!(against("pariss"), (Some(1), unknown.to_owned()));
    let empty = "error: nothing was compared: neither the meshkeep of --server nor the meshkeep of --against has an entry of tokyo";
    assert_eq!(against("tokyo"), (Some(1), empty.to_owned()));

    let empty = ScriptedServer::start(|_| list(&[]));
    let nothing = "error: nothing was compared: meshkeep mirrors no cluster";
    assert_eq!(exit_code_and_error(&run(&empty.url, &["verify"])), (Some(1), nothing.to_owned()));
    let no_kinds = ScriptedServer::start(
        |_| json!({"items": [{"cluster": "paris", "phase": "live", "requested": 1, "answered": 1, "values": false, "kinds": []}]}),
    );
    let (code, error) = exit_code_and_error(&run(&no_kinds.url, &["verify"]));
    assert!(code == Some(1) && error.contains("paris was not compared: it publishes no kind"), "{error}");

    let directory = tempfile::tempdir().unwrap();
    let table = directory.path().join("ipcache.json").display().to_string();
    fs::write(&table, json!({"0.0.0.0/0": ["identity=2 encryptkey=0 tunnelendpoint=0.0.0.0 flags=<none>"]}).to_string()).unwrap();
    assert_eq!(exit_code_and_error(&run(&empty.url, &["diff", "--agent", &table])), (Some(1), nothing.to_owned()));
    let clusters =
        ScriptedServer::start(|target| if target.starts_with("/v1/clusters") { list(&[cluster("paris", 1)]) } else { list(&[]) });
    let nothing = "error: nothing was compared: neither the table nor meshkeep has an object of paris";
    assert_eq!(exit_code_and_error(&run(&clusters.url, &["diff", "--agent", &table])), (Some(1), nothing.to_owned()));
}

/// Returns a server whose mirror has no entry, and that explains each address with these hints.
fn explaining(hints: Value) -> ScriptedServer {
    ScriptedServer::start(move |target| match target {
        _ if target.starts_with("/v1/clusters") => list(&[cluster("paris", 1)]),
        _ if target.starts_with("/v1/explain") => json!({"ip": "10.1.0.9", "match": null, "entries": [], "hints": hints, "services": [],
            "problems": [], "complete": true, "meta": {"position": "v1.a.1"}}),
        _ => list(&[]),
    })
}

/// Writes a table of the datapath with one pod of paris. Returns its directory and its path.
fn table_with_pod() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let table = directory.path().join("ipcache.json");
    fs::write(&table, json!({"10.1.0.9/32": ["identity=65537 encryptkey=0 tunnelendpoint=0.0.0.0 flags=<none>"]}).to_string()).unwrap();
    let path = table.display().to_string();
    (directory, path)
}

#[test]
fn differences_do_not_control_the_terminal() {
    let (_directory, table) = table_with_pod();
    let server = explaining(json!([{"kind": "deleted", "detail": "\u{1b}[35mgone\u{7}\nFAKE", "clusters": ["paris"]}]));
    let mut command = meshkeep(&["diff", "--agent", &table, "--server", &server.url]);
    let text = stdout(&command.env("CLICOLOR_FORCE", "1").output().unwrap());
    assert!(text.contains(r"\u001b[35mgone\u0007 FAKE"), "{text:?}");
}

#[test]
fn only_hints_about_the_same_entry_are_reasons() {
    let (_directory, table) = table_with_pod();
    let rejected = |prefix: &str, cluster: &str| json!({"kind": "rejected", "detail": "bad", "clusters": [cluster], "prefix": prefix});
    let node = json!({"kind": "rejected", "detail": "node", "clusters": ["paris"], "node": "worker"});
    let deleted = |cluster: &str| json!({"kind": "deleted", "detail": "gone", "clusters": [cluster]});
    for (hints, expected) in [
        (json!([node, rejected("10.1.0.0/16", "paris"), rejected("10.1.0.9/32", "tokyo"), deleted("tokyo")]), json!([null, null])),
        (json!([node, deleted("paris")]), json!(["deleted", "gone"])),
        (json!([rejected("10.1.0.9/32", "paris"), deleted("paris")]), json!(["rejected", "bad"])),
    ] {
        let server = explaining(hints);
        let output = run(&server.url, &["diff", "--agent", &table, "-o", "json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let difference = &report["differences"][0];
        assert_eq!(json!([difference["reason"], difference["detail"]]), expected, "{output:?}");
    }
}

#[test]
fn history_reads_all_pages_and_names_what_is_missing() {
    let version = |pod: &str, time: &str| json!({"kind": "ipcache", "key": "cilium/cache/ip/v1/paris/10.1.0.9", "from": {"changedAt": time}, "pod": pod});
    let gap = json!({"cluster": "paris", "kind": "ipcache", "from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z"});
    let answer_gap = gap.clone();
    let server = ScriptedServer::start(move |target| match parameter(target, "pageToken") {
        None => json!({"items": [version("a", "2026-01-03T00:00:00Z")], "complete": true, "nextPageToken": "3", "position": "v1.a.1"}),
        Some("3") => json!({"items": [], "complete": false, "gaps": [answer_gap], "nextPageToken": "2", "position": "v1.a.1"}),
        _ => json!({"items": [version("b", "2026-01-02T00:00:00Z")], "complete": false, "gaps": [answer_gap], "nextPageToken": "1",
            "position": "v1.a.1"}),
    });
    let output = run(&server.url, &["history", "10.1.0.9", "--limit", "2", "-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pods: Vec<&Value> = answer["items"].as_array().unwrap().iter().map(|version| &version["pod"]).collect();
    assert_eq!(pods, ["a", "b"], "{answer}");
    assert_eq!((&answer["complete"], &answer["gaps"]), (&json!(false), &json!([gap])), "{answer}");
    assert_eq!(answer["nextPageToken"], "1", "{answer}");
    let limits: Vec<String> =
        server.requests.lock().unwrap().iter().map(|request| parameter(request, "limit").unwrap().to_owned()).collect();
    assert_eq!(limits, ["2", "1", "1"]);
    for format in ["table", "name", "jsonpath={.items[*].pod}"] {
        let output = run(&server.url, &["history", "10.1.0.9", "--limit", "2", "-o", format]);
        let notes = "note: the ipcache data of cluster paris was not observed from 2026-01-01T00:00:00Z to 2026-01-01T01:00:00Z\nthere are older versions: raise --limit to see them";
        assert_eq!(exit_code_and_error(&output), (Some(0), notes.to_owned()), "{format}");
        let lines = stdout(&output);
        assert!(if format.starts_with("jsonpath") { lines == "a b" } else { lines.lines().count() >= 2 }, "{lines}");
    }
}

#[test]
fn a_lookup_of_the_past_says_what_is_not_known() {
    let entry =
        |cluster: &str| json!({"prefix": "10.1.0.9/32", "cluster": cluster, "identity": 65_537, "host": true, "source": "clustermesh"});
    let gap = json!({"cluster": "tokyo", "kind": "ipcache", "from": "2026-01-01T00:00:00Z"});
    let server = ScriptedServer::start(move |_| {
        json!({"ip": "10.1.0.9", "match": entry("paris"), "others": [entry("tokyo")],
            "meta": {"position": "v1.a.1", "at": "2026-01-01T00:30:00Z", "complete": false, "gaps": [gap]}})
    });
    let output = run(&server.url, &["lookup", "10.1.0.9", "--at", "2026-01-01T00:30:00Z"]);
    let notes = "note: the answer may be wrong, because meshkeep did not observe everything at that time, or lost changes since then\n\
                 note: the ipcache data of cluster tokyo was not observed from 2026-01-01T00:00:00Z to now\n\
                 note: tokyo had an entry for 10.1.0.9/32 too";
    assert_eq!(exit_code_and_error(&output), (Some(0), notes.to_owned()));
    let output = run(&server.url, &["lookup", "10.1.0.9", "--at", "2026-01-01T00:30:00Z", "-o", "json"]);
    assert_eq!(exit_code_and_error(&output), (Some(0), String::new()));
}

#[test]
fn a_list_of_the_past_is_read_whole_and_names_what_is_not_known() {
    let identity = |id: u32, time: &str| json!({"id": id, "cluster": "paris", "scope": "global", "labels": {"a": "b"}, "changedAt": time});
    let gap = json!({"cluster": "paris", "kind": "identity", "from": "2026-01-01T00:00:00Z"});
    let answer_gap = gap.clone();
    let server = ScriptedServer::start(move |target| {
        let meta =
            |complete: bool, gaps: Value| json!({"position": "v1.a.1", "at": "2026-01-01T00:30:00Z", "complete": complete, "gaps": gaps});
        match parameter(target, "pageToken") {
            None => json!({"items": [identity(70_001, "2026-01-01T00:20:00Z")], "nextPageToken": "2", "meta": meta(true, json!([]))}),
            Some(_) => json!({"items": [identity(70_002, "2026-01-01T00:29:30Z")], "meta": meta(false, json!([answer_gap]))}),
        }
    });
    let notes = "note: the answer may be wrong, because meshkeep did not observe everything at that time, or lost changes since then\n\
                 note: the identity data of cluster paris was not observed from 2026-01-01T00:00:00Z to now";
    for (format, expected) in [
        ("table", "ID     CLUSTER  LABELS  AGE\n70001  paris    a=b     10m\n70002  paris    a=b     30s\n"),
        ("name", "identity/70001\nidentity/70002\n"),
        ("jsonpath={.items[*].id} {.meta.complete}", "70001 70002 false"),
        ("custom-columns=A:.id", "A\n70001\n70002\n"),
    ] {
        let output = run(&server.url, &["get", "identities", "--at", "10m", "--cluster", "paris", "-o", format]);
        assert_eq!((exit_code_and_error(&output), stdout(&output).as_str()), ((Some(0), notes.to_owned()), expected), "{format}");
    }
    let output = run(&server.url, &["get", "identities", "--at", "10m", "-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((answer["items"].as_array().unwrap().len(), exit_code_and_error(&output)), (2, (Some(0), String::new())));
    assert_eq!(answer["meta"], json!({"at": "2026-01-01T00:30:00Z", "complete": false, "gaps": [gap]}));
    let requests = server.requests.lock().unwrap();
    let parameters = |name| requests.iter().map(|request| parameter(request, name)).collect::<Vec<_>>();
    assert!(parameters("at").iter().all(|at| *at == Some("10m")), "{requests:?}");
    assert_eq!(parameters("cluster")[..2], [Some("paris"); 2]);
    for kind in ["clusters", "global-services"] {
        let (code, error) = exit_code_and_error(&run(&server.url, &["get", kind, "--at", "10m"]));
        let expected = format!(
            "error: --at does not support {kind}: use it with nodes, services, identities, ipcache, service-exports, endpoint-slices"
        );
        assert_eq!((code, error), (Some(2), expected));
    }
}

#[test]
fn a_lookup_of_many_addresses_resolves_its_time_once_and_names_all_gaps() {
    let gap = |cluster: &str| json!({"cluster": cluster, "kind": "ipcache", "from": "2026-01-01T00:00:00Z"});
    let server = ScriptedServer::start(move |target| {
        let is_first = parameter(target, "at") == Some("10m");
        let gaps = if is_first { vec![gap("paris"), gap("rome")] } else { vec![gap("paris"), gap("tokyo")] };
        json!({"items": [], "meta": {"position": "v1.a.1", "at": "2026-01-01T00:30:00.125Z", "complete": !is_first, "gaps": gaps}})
    });
    let ips: Vec<String> = (0..20_001).map(|number| format!("10.1.{}.{}", number / 256, number % 256)).collect();
    let arguments: Vec<&str> = ["lookup", "--at", "10m"].into_iter().chain(ips.iter().map(String::as_str)).collect();
    let output = run(&server.url, &arguments);
    let not_observed =
        |cluster: &str| format!("\nnote: the ipcache data of cluster {cluster} was not observed from 2026-01-01T00:00:00Z to now");
    let notes =
        "none found\nnote: the answer may be wrong, because meshkeep did not observe everything at that time, or lost changes since then"
            .to_owned();
    let notes = notes + &["paris", "rome", "tokyo"].map(not_observed).concat();
    assert_eq!(exit_code_and_error(&output), (Some(0), notes));
    let times: Vec<String> = server.requests.lock().unwrap().iter().map(|request| parameter(request, "at").unwrap().to_owned()).collect();
    let resolved = "2026-01-01T00%3A30%3A00.125Z";
    assert_eq!(times, ["10m", resolved, resolved]);
    let arguments: Vec<&str> = arguments.into_iter().chain(["-o", "json"]).collect();
    let output = run(&server.url, &arguments);
    let expected = json!({"at": "2026-01-01T00:30:00.125Z", "complete": false, "gaps": [gap("paris"), gap("rome"), gap("tokyo")]});
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap()["meta"], expected);
}

#[test]
fn verify_waits_for_a_limited_time() {
    let server = ScriptedServer::start(|_| {
        let cluster = |name: &str, answered: u32| {
            let kind = json!({"kind": "node", "compared": true, "keysCompared": 2, "differingCount": 0, "differing": []});
            json!({"cluster": name, "phase": "live", "requested": 1, "answered": answered, "values": false, "kinds": [kind]})
        };
        json!({"items": [cluster("paris", 0), cluster("tokyo", 1)]})
    });
    let output = run(&server.url, &["verify", "--timeout", "400ms", "-o", "name"]);
    let late = "paris was not compared in time: meshkeep continues, so wait longer with --timeout";
    assert_eq!((exit_code_and_error(&output), stdout(&output)), ((Some(1), late.to_owned()), "tokyo/node\n".to_owned()));
}

#[tokio::test]
async fn the_start_of_a_stream_does_not_move_with_each_attempt() {
    // a stream that ends at once
    let server = ScriptedServer::start(|_| json!({"type": "heartbeat"}));
    let mut command = meshkeep(&["watch", "--since", "10m", "--server", &server.url]);
    let mut watch = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let starts = || -> BTreeSet<u64> {
        let requests = server.requests.lock().unwrap();
        requests.iter().map(|request| parameter(request, "since").unwrap().trim_end_matches('s').parse().unwrap_or_default()).collect()
    };
    let starts = eventually("an attempt a second later", async || Some(starts()).filter(|starts| starts.len() >= 2)).await;
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert!(starts.iter().all(|seconds| (600..660).contains(seconds)), "{starts:?}");
}

#[test]
fn messages_name_the_option_that_the_user_gave() {
    let here = ScriptedServer::start(|_| list(&[]));
    for address in ["nowhere", "unix://relative", "http://127.0.0.1:1"] {
        let (_, error) = exit_code_and_error(&run(&here.url, &["verify", "--against", address]));
        assert!(error.contains("--against") && !error.contains("--server"), "{error}");
    }
}
