//! Files that distinguish between kinds. Properties of a kind are in its row (`src/model/key.rs`),
//! and code iterates over all kinds. A new kind needs that row, a module in each room that treats
//! it specially, and changes in the files of this list.

use std::collections::BTreeSet;

use super::expect_none;
use super::source::{SourceFile, read_sources};

/// Names of kinds in code, after `Kind::` or `Object::`.
const NAMES: [&str; 7] = ["EndpointSlice", "Identity", "Ip", "NodeIp", "Node", "ServiceExport", "Service"];

/// Number of kinds from which on a file counts as distinguishing kinds. Code that joins some kinds
/// (services with their slices and exports, addresses with nodes and identities) names three at
/// most.
const KINDS_MIN: usize = 4;

/// Files that distinguish kinds, each with the reason.
const ALLOWED: [(&str, &str); 20] = [
    ("src/announce/plan.rs", "which keys a cluster from files has"),
    ("src/api/dto/status.rs", "the counts, each with its name"),
    ("src/api/dto/streamed.rs", "an event's object"),
    ("src/api/routes/ipcache/explain.rs", "what an address is asked of"),
    ("src/api/routes/objects.rs", "the lists, each with its documentation"),
    ("src/api/render/tag_basis.rs", "which kinds an answer is made of"),
    ("src/demo/data.rs", "what the simulated clusters have"),
    ("src/demo/simulated_cluster.rs", "how that changes"),
    ("src/handle/selection/filter_terms.rs", "what of an object filters ask for"),
    ("src/handle/selection/filter.rs", "which filters are about which kinds"),
    ("src/handle/finding_index/builder.rs", "the exports, whose conflicts are findings"),
    ("src/model/key.rs", "the rows"),
    ("src/pack/chunk.rs", "what a row means by its kind"),
    ("src/pack/indexed_fields.rs", "what of an object indices need, and the number of a kind in a chunk"),
    ("src/reflect/cluster.rs", "the order of a KVStoreMesh"),
    ("src/store/recovery/partial_store.rs", "where the log names what is asked for"),
    ("src/view/lookups/references.rs", "references between keys"),
    ("src/view/index.rs", "the indices"),
    ("src/wire/cluster_config.rs", "what a cluster config says is published"),
    ("src/wire/mod.rs", "which decoder reads it"),
];

/// Returns the number of kinds that a file names.
fn kinds_in_a_row(file: &SourceFile) -> usize {
    let named = |name: &&&str| {
        ["Kind::", "Object::"].iter().any(|of| {
            let text = format!("{of}{name}");
            file.code.match_indices(&text).any(|(at, _)| !file.code[at + text.len()..].starts_with(|next: char| next.is_alphanumeric()))
        })
    };
    NAMES.iter().filter(named).count()
}

#[test]
fn kinds_are_kinds_in_a_row_in_few_places() {
    let files = read_sources("src");
    let found: BTreeSet<&str> =
        files.iter().filter(|file| !file.is_test() && kinds_in_a_row(file) >= KINDS_MIN).map(|file| file.path.as_str()).collect();
    let allowed: BTreeSet<&str> = ALLOWED.iter().map(|(path, _)| *path).collect();
    let more = found
        .difference(&allowed)
        .map(|path| format!("{path} distinguishes kinds: say it in the kind's row, or in one of these: {allowed:?}"));
    let fewer = allowed.difference(&found).map(|path| format!("{path} distinguishes no kinds any more: take it off the list"));
    expect_none(more.chain(fewer).collect());
}

#[test]
fn a_kind_is_counted_by_its_whole_name() {
    let file = SourceFile::new("src/a.rs", "fn a() { (Kind::Node, Kind::NodeIp, Object::Service(x), Kind::ServiceExportOf) } // Kind::Ip");
    assert_eq!(kinds_in_a_row(&file), 3);
}
