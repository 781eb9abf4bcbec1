//! Output of `status`, `problems`, `lookup` and `get` in terminals of 80 and 160 columns, compared
//! with the files in tests/data/terminal. With `TERMINAL_WRITE=1` the tests write the files.
//!
//! A file has the output at each width, and at 80 columns once more with its colours.

pub(super) mod mesh;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use jiff::Timestamp;
use serde_json::{Value, json};

use self::mesh::{Mesh, MeshFailure, cluster, cluster_names};
use super::kinds::{CLUSTERS, KINDS};
use super::lookup::LookupResult as _;
use super::{problems, status};
use crate::cli::terminal::layout::TableStyle;
use crate::cli::terminal::output::Tabular;
use crate::dto::lookup::LookupItem;
use crate::model::without_colours;

/// Widths of the terminals. `kubectl exec -it` often has the first one.
const WIDTHS: [usize; 2] = [80, 160];

const CLUSTER_COUNTS: [usize; 2] = [3, 255];

/// Number of lines of an output that a file has at its start and at its end. The lines between
/// them are of the same form.
const LINES_KEPT: (usize, usize) = (24, 6);

/// Returns the whole mesh and its name in the files' names, for each failure and for none.
fn meshes() -> impl Iterator<Item = (String, Mesh)> {
    let failures = std::iter::once((None, "healthy")).chain(MeshFailure::ALL.map(|(failure, name)| (Some(failure), name)));
    failures.flat_map(|(failure, name)| {
        let counts = CLUSTER_COUNTS.into_iter().filter(move |count| failure != Some(MeshFailure::NoClusters) || *count == 3);
        counts.map(move |count| {
            let mesh = Mesh::generate(count, failure);
            (format!("{name}-{}", mesh.clusters.len()), mesh)
        })
    })
}

/// Compares a command's output with its file, or writes the file. Checks that no line is too wide
/// and that no word is broken.
fn assert_golden(name: &str, render: impl Fn(Option<usize>) -> String) {
    let mut golden = String::new();
    let piped = without_colours(&render(None)).into_owned();
    for width in WIDTHS {
        let coloured = render(Some(width));
        let text = without_colours(&coloured);
        assert_fits(&text, &piped, width, name);
        golden += &format!("== {width} columns\n{}", shorten(&text));
    }
    golden += &format!("== 80 columns, colours\n{}", shorten(&render(Some(80))).replace('\u{1b}', "ESC"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/terminal/{name}.txt"));
    if std::env::var_os("TERMINAL_WRITE").is_some() {
        fs::write(&path, &golden).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == expected, "{name}.txt does not match: run this test with TERMINAL_WRITE=1 and compare\n{golden}");
}

/// Leaves out the lines in the middle of a long text.
fn shorten(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (first, last) = LINES_KEPT;
    if lines.len() <= first + last + 1 {
        return text.to_owned();
    }
    let (start, rest) = lines.split_at(first);
    let (middle, end) = rest.split_at(rest.len() - last);
    format!("{}\n… {} lines …\n{}\n", start.join("\n"), middle.len(), end.join("\n"))
}

/// Checks that each line fits, unless it has one word only, and that each word of the output in a
/// pipe is there unbroken.
fn assert_fits(text: &str, piped: &str, width: usize, name: &str) {
    for line in text.lines() {
        let is_one_word = line.split_whitespace().count() <= 1;
        assert!(is_one_word || line.chars().count() <= width, "{name}: wider than {width}: {line}");
    }
    let words = |text: &str| text.split([' ', ',', '\n']).map(str::to_owned).collect::<BTreeSet<String>>();
    let (piped, shown) = (words(piped), words(text));
    // the heading of a column that is always below its object, or is empty below it, is not printed
    let is_heading = |word: &str| word.chars().all(|character| character.is_ascii_uppercase() || character == '-');
    let broken: Vec<&String> = piped.difference(&shown).filter(|word| !is_heading(word)).collect();
    assert!(broken.is_empty(), "{name} at {width}: broken or missing: {broken:?}");
}

#[test]
fn status_is_the_same_as_its_files() {
    for (name, mesh) in meshes() {
        assert_golden(&format!("status-{name}"), |width| status::render(&mesh, &[], width));
    }
    let mesh = Mesh::generate(255, Some(MeshFailure::BackingOff));
    assert_golden("status-all-255", |width| status::render(&mesh, &["--all"], width));
    assert_golden("status-paris-255", |width| status::render(&mesh, &["--phase", "backingOff"], width));
}

/// Seven clusters with different failures, and one whose data is too old: the worst come first.
#[test]
fn status_sorts_the_worst_first() {
    let mut mesh = Mesh::generate(255, None);
    for (index, (failure, _)) in MeshFailure::ALL.into_iter().enumerate() {
        let mut failed = cluster("paris", 30 * index + 10, Some(failure));
        failed["name"] = mesh.clusters[30 * index + 9]["name"].clone();
        mesh.clusters[30 * index + 9] = failed;
    }
    mesh.clusters[3]["ageSeconds"] = json!(1_200.0);
    mesh.clusters[4]["origin"] = json!("restored");
    for (index, phase) in ["listing", "connecting", "draining", "readingConfig", "waitingForFiles", "fromTheFuture"].into_iter().enumerate()
    {
        mesh.clusters[index + 11]["phase"] = json!(phase);
    }
    assert_golden("status-several-255", |width| status::render(&mesh, &[], width));
}

#[test]
fn problems_are_the_same_as_their_files() {
    for (name, mesh) in meshes().filter(|(_, mesh)| !mesh.findings.is_empty()) {
        let render = |width| problems::render(&mesh, TableStyle { wide: false, has_headings: true, width });
        assert_golden(&format!("problems-{name}"), render);
    }
    let mesh = Mesh::generate(3, Some(MeshFailure::SourceLost));
    assert_golden("problems-wide-3", |width| problems::render(&mesh, TableStyle { wide: true, has_headings: true, width }));
}

#[test]
fn get_clusters_is_the_same_as_its_files() {
    for (name, mesh) in meshes() {
        assert_golden(&format!("get-clusters-{name}"), |width| {
            CLUSTERS.table(&mesh.clusters, TableStyle { wide: false, has_headings: true, width }, Timestamp::now()).unwrap()
        });
    }
    let mesh = Mesh::generate(3, Some(MeshFailure::TlsRefused));
    assert_golden("get-clusters-wide-3", |width| {
        CLUSTERS.table(&mesh.clusters, TableStyle { wide: true, has_headings: true, width }, Timestamp::now()).unwrap()
    });
}

/// Returns the example of a kind in the OpenAPI document, once for each cluster. It was last
/// changed 3 days and 2 hours ago.
fn examples(schema: &str, cluster_count: usize) -> Vec<Value> {
    let examples: Value = serde_json::from_str(include_str!("../../../api/openapi/examples.json")).unwrap();
    let mut example = examples["schemas"][schema].clone();
    let age = jiff::SignedDuration::from_hours(3 * 24 + 2) + jiff::SignedDuration::from_mins(30);
    let time = (Timestamp::now() - age).to_string();
    set_changed_at(&mut example, &time);
    // each cluster of a global service has its own time
    let clusters = example.get_mut("clusters").and_then(Value::as_array_mut);
    clusters.into_iter().flatten().for_each(|cluster| cluster["changedAt"] = json!(time));
    let with_name = |name: &String| serde_json::from_str(&example.to_string().replace("paris", name).replace("tokyo", name)).unwrap();
    cluster_names(cluster_count).iter().map(with_name).collect()
}

/// Replaces the time of the last change in an object and in the objects in it: a fixed time would
/// have another age each day.
fn set_changed_at(value: &mut Value, time: &str) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if name == "changedAt" { *field = json!(time) } else { set_changed_at(field, time) }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| set_changed_at(item, time)),
        _ => {}
    }
}

#[test]
fn every_kind_is_the_same_as_its_files() {
    let schemas = ["Node", "Service", "GlobalService", "Identity", "IpcacheEntry", "ServiceExport", "EndpointSlice"];
    let kinds: Vec<_> = KINDS.iter().filter(|kind| kind.names[0] != "clusters").collect();
    assert_eq!(kinds.len(), schemas.len());
    for count in CLUSTER_COUNTS {
        for (kind, schema) in kinds.iter().zip(schemas) {
            let items = examples(schema, count);
            assert_golden(&format!("get-{}-{count}", kind.names[0]), |width| {
                kind.shape.table(&items, TableStyle { wide: false, has_headings: true, width }, Timestamp::now()).unwrap()
            });
        }
    }
    let nodes = examples("Node", 3);
    assert_golden("get-nodes-wide-3", |width| {
        kinds[0].shape.table(&nodes, TableStyle { wide: true, has_headings: true, width }, Timestamp::now()).unwrap()
    });
}

/// Lookups do not depend on the phase of a cluster, only on the age of its data.
#[test]
fn lookups_are_the_same_as_their_files() {
    for (name, mesh) in meshes() {
        let mut items = examples("LookupItem", mesh.clusters.len().max(1));
        for (item, cluster) in items.iter_mut().zip(&mesh.clusters) {
            item["meta"]["ageSeconds"] = cluster["ageSeconds"].clone();
        }
        if mesh.clusters.is_empty() {
            items = vec![json!({"ip": "10.2.1.21", "match": null})];
        }
        items.push(json!({"ip": "192.0.2.1", "match": null}));
        assert_golden(&format!("lookup-{name}"), |width| {
            LookupItem::SHAPE.table(&items, TableStyle { wide: false, has_headings: true, width }, Timestamp::now()).unwrap()
        });
    }
    let mut items = examples("LookupItem", 2);
    items[0]["ip"] = json!("fd00:10:1:1:f816:3eff:fe21:67cf");
    items[0]["match"]["prefix"] = json!("fd00:10:1:1:f816:3eff:fe21:67cf/128");
    items.push(json!({"ip": "nonsense", "error": "not an IP address: write it like 10.1.2.40 or fd00::1"}));
    assert_golden("lookup-ipv6-2", |width| {
        LookupItem::SHAPE.table(&items, TableStyle { wide: false, has_headings: true, width }, Timestamp::now()).unwrap()
    });
}
