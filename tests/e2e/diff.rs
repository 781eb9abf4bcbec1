//! `meshkeep diff`: tables of an agent of every version of Cilium, compared with the sample mesh.
//!
//! The agent runs in a third cluster, berlin, which meshkeep does not mirror. Each table has three
//! differences (tests/data/agent/README.md).

use std::fs;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use super::command_line::{exit_code_and_error, meshkeep, run};
use super::samples::in_state_form;
use crate::harness::etcd::etcd_binaries;

const VERSIONS: [&str; 5] = ["1.16", "1.17", "1.18", "1.19", "1.20"];

fn table(version: &str, form: &str) -> String {
    let name = format!("tests/data/agent/{version}-{form}.json");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name).display().to_string()
}

/// Returns the exit code and the JSON of a comparison.
fn diff(server: &str, table: &str) -> (Option<i32>, Value) {
    let output = run(server, &["diff", "--agent", table, "-o", "json"]);
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}")))
}

/// Returns kind, object and cluster of each difference, and its values.
fn differences(report: &Value) -> Vec<Value> {
    let describe = |difference: &Value| {
        let values =
            difference["fields"].as_array().into_iter().flatten().map(|field| json!([field["field"], field["agent"], field["meshkeep"]]));
        json!([difference["kind"], difference["object"], difference["cluster"], values.collect::<Vec<_>>()])
    };
    report["differences"].as_array().unwrap().iter().map(describe).collect()
}

fn not_compared(report: &Value) -> Vec<Value> {
    report["notCompared"].as_array().unwrap().iter().map(|one| json!([one["reason"], one["count"]])).collect()
}

#[tokio::test]
async fn tables_of_every_version_have_exactly_the_known_differences() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    for version in VERSIONS {
        let has_pod_cidrs = !matches!(version, "1.16" | "1.17");
        for (form, command) in [("bpf-ipcache", "cilium-dbg bpf ipcache list"), ("ip", "cilium-dbg ip list")] {
            let (code, report) = diff(running.url(), &table(version, form));
            assert_eq!((code, &report["table"]), (Some(1), &json!(command)), "{version}");
            let expected = [
                json!(["missing", "10.1.2.40/32", "paris", []]),
                json!(["different", "10.2.1.21/32", "tokyo", [["tunnelEndpoint", "172.18.2.2", "172.18.2.1"]]]),
                json!(["additional", "10.2.1.99/32", "tokyo", []]),
            ];
            let mut found = differences(&report);
            found.sort_by_key(|difference| difference[1].to_string());
            assert_eq!(found, expected, "{version} {form}");
            let mut skipped = vec![json!(["otherCluster", 2]), json!(["reservedIdentity", 11]), json!(["localIdentity", 1])];
            skipped.extend((!has_pod_cidrs).then(|| json!(["podCIDR", 10])));
            assert_eq!(not_compared(&report), skipped, "{version} {form}");
            let pod_cidrs = if has_pod_cidrs { 10 } else { 0 };
            assert_eq!(report["compared"], json!(34 + pod_cidrs), "{version} {form}");
        }
        let (code, report) = diff(running.url(), &table(version, "identity"));
        let expected = [
            json!(["different", "68352", "paris", [["labels", "k8s:app=database", "k8s:app=db"]]]),
            json!(["additional", "65900", "paris", []]),
            json!(["missing", "133888", "tokyo", []]),
        ];
        assert_eq!((code, differences(&report)), (Some(1), expected.to_vec()), "{version}");
        let (code, report) = diff(running.url(), &table(version, "node"));
        let expected = [
            json!(["different", "tokyo/tokyo-worker-1", "tokyo", [["healthIPs", "10.2.1.135", "10.2.1.134"]]]),
            json!(["additional", "tokyo/tokyo-worker-3", "tokyo", []]),
            json!(["missing", "paris/paris-worker-2", "paris", []]),
        ];
        assert_eq!((code, differences(&report)), (Some(1), expected.to_vec()), "{version}");
        assert_eq!(not_compared(&report), [json!(["otherCluster", 2])], "{version}");
    }
}

#[tokio::test]
async fn a_table_is_read_from_standard_input_and_an_equal_one_has_exit_code_0() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let mut map: Value = serde_json::from_str(&fs::read_to_string(table("1.20", "bpf-ipcache")).unwrap()).unwrap();
    let entries = map.as_object_mut().unwrap();
    entries.remove("10.2.1.99/32");
    let value =
        |identity: u32, key: u8, host: &str| json!([format!("identity={identity} encryptkey={key} tunnelendpoint={host} flags=hastunnel")]);
    entries.insert("10.1.2.40/32".to_owned(), value(68_352, 7, "172.18.1.2"));
    entries.insert("10.2.1.21/32".to_owned(), value(131_331, 0, "172.18.2.1"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("equal.json");
    fs::write(&path, map.to_string()).unwrap();
    let mut command = meshkeep(&["diff", "--agent", "-", "--server", running.url()]);
    let output = command.stdin(Stdio::from(fs::File::open(path).unwrap())).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let expected = "no differences in 43 objects of cilium-dbg bpf ipcache list\n\nnot compared:\n  2 of clusters that meshkeep does not mirror, such as the agent's own\n  11 with reserved identities, of no mirrored node\n  1 with identities of the agent's own policies\n";
    assert_eq!((output.status.code(), text.as_str()), (Some(0), expected), "{output:?}");
}

#[tokio::test]
async fn unusable_tables_and_servers_have_other_exit_codes_than_differences() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("table").display().to_string();
    fs::write(&path, "IP   IDENTITY   SOURCE\n").unwrap();
    let (code, error) = exit_code_and_error(&run("http://127.0.0.1:1", &["diff", "--agent", &path]));
    assert_eq!(code, Some(2));
    assert!(error.starts_with(&format!("error: {path} is not a table of an agent: give the output of `cilium-dbg")), "{error}");
    let (code, error) = exit_code_and_error(&run("http://127.0.0.1:1", &["diff", "--agent", "/nowhere"]));
    assert_eq!((code, error.as_str()), (Some(2), "error: cannot read --agent /nowhere: No such file or directory"));
    assert_eq!(run("http://127.0.0.1:1", &["diff", "--agent", &table("1.20", "ip")]).status.code(), Some(3));
}
