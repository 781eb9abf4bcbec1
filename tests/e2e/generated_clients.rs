//! Clients that are generated from the committed OpenAPI documents. The Python client reads every
//! list. The others do the same for some of them. All read a problem and an unchanged list, and
//! follow the stream with a resume.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::SMALL;
use crate::harness::scene::Scene;
use crate::harness::truth::Served;

/// Returns the standard output of a command that must succeed.
fn output(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// Returns the lines that the client should print for a list.
fn expected(truth: &Served, kind: &str) -> Vec<String> {
    let (base, fields): (_, &[&str]) = match kind {
        "nodes" => ("nodes/v1", &["cluster", "name"]),
        "services" => ("services/v1", &["cluster", "namespace", "name"]),
        "identities" => ("identities/v1", &["cluster", "id"]),
        "exports" => ("serviceexports/v1", &["cluster", "namespace", "name"]),
        "slices" => ("endpointslices/v1", &["cluster", "namespace", "name"]),
        _ => ("ip/v1", &["cluster", "prefix"]),
    };
    // keys of entries derived from nodes are below the nodes' keys
    let is_of_kind = |key: &str| if key.contains('#') { base == "ip/v1" } else { key.starts_with(&format!("cilium/cache/{base}/")) };
    let of_kind = truth.objects.iter().filter(|(key, _)| is_of_kind(key));
    let mut texts: Vec<String> = of_kind
        .map(|(_, object)| {
            let parts = fields.iter().map(|field| object[field].as_str().map_or_else(|| object[field].to_string(), str::to_owned));
            let host = if object["host"] == true { " host" } else { "" };
            parts.collect::<Vec<_>>().join("/") + host
        })
        .collect();
    texts.sort();
    texts
}

/// Returns the global services that the client should have read, each with the clusters that share
/// it.
fn expected_global(truth: &Served) -> Vec<String> {
    let mut services = std::collections::BTreeMap::<String, Vec<&str>>::new();
    for service in truth.objects.values().filter(|object| object["shared"] == true) {
        let text = |field: &str| service[field].as_str().unwrap();
        services.entry(format!("{}/{}", text("namespace"), text("name"))).or_default().push(text("cluster"));
    }
    services.into_iter().map(|(name, clusters)| format!("{name}={}", clusters.join(","))).collect()
}

/// Returns the changes that a client should have received: for each key the kind, and the fields of
/// the object that the client's program prints.
fn expected_changes(truth: &Served) -> Value {
    let describe = |(key, object): (&String, &Value)| {
        let text = |member: &str| object[member].as_str().unwrap();
        let kind = key.strip_prefix("cilium/cache/").and_then(|rest| rest.split('/').next()).unwrap_or("cluster-config");
        let described = match kind {
            "ip" => format!("ipcache {}", text("prefix")),
            "nodes" if key.contains('#') => format!("ipcache {}", text("prefix")),
            "nodes" => format!("node {}/{}", text("cluster"), text("name")),
            "services" => format!("service {}/{}/{}", text("cluster"), text("namespace"), text("name")),
            "identities" => "identity".to_owned(),
            "serviceexports" => "serviceExport".to_owned(),
            "endpointslices" => "endpointSlice".to_owned(),
            other => panic!("{other} of {key}"),
        };
        (key.clone(), Value::String(described))
    };
    Value::Object(truth.objects.iter().map(describe).collect())
}

fn sorted(read: &Value, kind: &str) -> Vec<String> {
    let mut texts: Vec<String> = read[kind].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect();
    texts.sort();
    texts
}

/// Returns the Python interpreter with the generated client and the tools.
fn python() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    PathBuf::from(output(&mut Command::new(root.join("scripts/python-client-setup"))).trim())
}

/// Returns everything that the client reads from a sidecar.
pub(super) fn read_all(url: &str) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = python();
    serde_json::from_str(&output(Command::new(python).arg(root.join("tests/clients/python/read_all.py")).arg(url))).unwrap()
}

#[tokio::test]
async fn the_generated_python_client_reads_every_list() {
    let scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let read = read_all(scene.meshkeep().url());
    let truth = scene.truth().expected();
    for kind in ["nodes", "services", "identities", "ipcache"] {
        assert_eq!(sorted(&read, kind), expected(&truth, kind), "{kind}");
    }
    assert_eq!(sorted(&read, "global"), expected_global(&truth));
    assert_eq!(read["changes"], expected_changes(&truth));
    assert_eq!(sorted(&read, "entries"), truth.raw.keys().cloned().collect::<Vec<_>>());
    assert_eq!((&read["unchanged"], &read["stream"]), (&json!(304), &json!(["snapshot", "replay"])));
    assert_eq!((sorted(&read, "clusters"), sorted(&read, "rejected")), (scene.names(), Vec::new()));
}

#[tokio::test]
async fn clients_generated_for_other_languages_list_look_up_and_follow() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let clients = output(&mut Command::new(root.join("scripts/generated-clients-setup")));
    let clients = Path::new(clients.trim());
    let scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let truth = scene.truth().expected();
    let node = |program: &str| {
        let mut node = Command::new("node");
        node.arg(clients.join("typescript/out").join(program));
        node
    };
    let programs = [
        ("TypeScript", node("read_all.js")),
        ("TypeScript, hey-api", node("read_all_hey_api.js")),
        ("Go", Command::new(clients.join("go/read_all"))),
        ("Rust", Command::new(clients.join("rust/debug/read-all"))),
    ];
    for (language, mut program) in programs {
        let read: Value = serde_json::from_str(&output(program.arg(scene.meshkeep().url()))).unwrap();
        for kind in ["nodes", "services"] {
            assert_eq!(sorted(&read, kind), expected(&truth, kind), "{language}: {kind}");
        }
        assert_eq!(read["changes"], expected_changes(&truth), "{language}");
        // each node's first address has a derived entry, which the batch lookup finds
        let clusters = |texts: Vec<String>| texts.iter().map(|text| text.split('/').next().unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(clusters(sorted(&read, "batch")), clusters(expected(&truth, "nodes")), "{language}");
        assert_eq!((&read["lookup"], &read["problem"]), (&read["batch"][0], &json!("notFound")), "{language}");
        assert_eq!((&read["unchanged"], &read["stream"]), (&json!(304), &json!(["snapshot", "replay"])), "{language}");
    }
}

/// Removes the `fields=` parameter: with it, items lack members that their schema requires.
fn without_fields(document: &str) -> Value {
    let mut document: Value = serde_json::from_str(document).unwrap();
    for item in document["paths"].as_object_mut().unwrap().values_mut() {
        let operations = item.as_object_mut().unwrap().values_mut();
        for parameters in operations.filter_map(|operation| operation.get_mut("parameters")?.as_array_mut()) {
            parameters.retain(|parameter| parameter["name"] != "fields");
        }
    }
    document
}

/// Sends valid and invalid requests to every operation except the endless stream.
#[tokio::test]
async fn schemathesis_finds_nothing() {
    // scripts/nightly runs more examples
    let examples = std::env::var("SCHEMATHESIS_EXAMPLES").unwrap_or_else(|_| "8".to_owned());
    let scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.wait_until_settled("the first loading").await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = tempfile::tempdir().unwrap();
    let document = directory.path().join("openapi.json");
    let committed = fs::read_to_string(root.join("openapi/openapi.json")).unwrap();
    fs::write(&document, without_fields(&committed).to_string()).unwrap();
    let mut schemathesis = Command::new(python().with_file_name("schemathesis"));
    let schemathesis = schemathesis.arg("--config-file").arg(root.join("tests/clients/python/schemathesis.toml"));
    let schemathesis = schemathesis.arg("run").arg(document).args(["--url", scene.meshkeep().url(), "--max-examples", &examples]);
    let answer = schemathesis.args(["--exclude-path", "/v1/events", "--no-color"]).output().unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stdout));
}
