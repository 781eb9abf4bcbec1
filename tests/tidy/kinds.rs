//! Files that distinguish between kinds. The properties of a kind are in its row
//! (`src/model/key.rs`), and code iterates over all kinds. A new kind needs that row, a module in
//! each room that treats it specially, and changes in the files in [`ALLOWED`].

use std::collections::BTreeSet;

use super::expect_none;
use super::source::{SourceFile, read_sources};

/// Names of kinds in code, after `Kind::` or `Object::`.
const NAMES: [&str; 7] = ["EndpointSlice", "Identity", "Ip", "NodeIp", "Node", "ServiceExport", "Service"];

/// Minimum number of named kinds for a file to count as distinguishing kinds. Code that joins some
/// kinds (services with their slices and exports, addresses with nodes and identities) names three
/// at most.
const KINDS_MIN: usize = 4;

/// Files that distinguish kinds, each with the reason.
const ALLOWED: [(&str, &str); 22] = [
    ("src/announce/plan.rs", "the keys of a cluster that is announced from files"),
    ("src/api/dto/status.rs", "the counts, with the name of each"),
    ("src/api/dto/streamed.rs", "the object of an event"),
    ("src/api/routes/ipcache/explain.rs", "the kinds that explain an address"),
    ("src/api/routes/objects.rs", "the lists, with the documentation of each"),
    ("src/cli/queries/kinds.rs", "the rows of the command line, and the columns of clusters"),
    ("src/demo/data.rs", "the objects of the simulated clusters"),
    ("src/demo/simulated_cluster.rs", "the changes of the simulated clusters"),
    ("src/handle/selection/filter_terms.rs", "the properties that filters test"),
    ("src/handle/selection/filter.rs", "the kinds that each filter applies to"),
    ("src/history/segment/row_key.rs", "the order of the versions of each kind"),
    ("src/handle/selection/search_text.rs", "the texts that a search tests"),
    ("src/handle/finding_index/builder.rs", "the exports, whose conflicts are findings"),
    ("src/model/key.rs", "the rows"),
    ("src/pack/chunk.rs", "the fields of a row of each kind"),
    ("src/pack/indexed_fields.rs", "the fields that indices need, and the number of each kind in a chunk"),
    ("src/reflect/cluster.rs", "the order of a KVStoreMesh"),
    ("src/store/recovery/partial_store.rs", "the kinds whose keys in the log may answer a lookup"),
    ("src/view/lookups/references.rs", "references between keys"),
    ("src/view/index.rs", "the indices"),
    ("src/wire/cluster_config.rs", "the kinds that a cluster config declares as published"),
    ("src/wire/mod.rs", "the decoder of each kind"),
];

/// Returns the number of kinds that a file names.
fn named_kinds(file: &SourceFile) -> usize {
    let named = |name: &&&str| {
        ["Kind::", "Object::"].iter().any(|prefix| {
            let text = format!("{prefix}{name}");
            file.code
                .match_indices(&text)
                .any(|(start, _)| !file.code[start + text.len()..].starts_with(|next: char| next.is_alphanumeric()))
        })
    };
    NAMES.iter().filter(named).count()
}

#[test]
fn few_files_distinguish_kinds() {
    let files = read_sources("src");
    let distinguishing: BTreeSet<&str> =
        files.iter().filter(|file| !file.is_test() && named_kinds(file) >= KINDS_MIN).map(|file| file.path.as_str()).collect();
    let allowed: BTreeSet<&str> = ALLOWED.iter().map(|(path, _)| *path).collect();
    let more = distinguishing
        .difference(&allowed)
        .map(|path| format!("{path} distinguishes kinds: use the kind's row, or one of these files: {allowed:?}"));
    let fewer = allowed.difference(&distinguishing).map(|path| format!("{path} no longer distinguishes kinds: remove it from the list"));
    expect_none(more.chain(fewer).collect());
}

#[test]
fn a_kind_is_counted_by_its_whole_name() {
    let file = SourceFile::new("src/a.rs", "fn a() { (Kind::Node, Kind::NodeIp, Object::Service(x), Kind::ServiceExportOf) } // Kind::Ip");
    assert_eq!(named_kinds(&file), 3);
}
