//! The size of folders, and the order of the parts of `src/api/`.

use std::collections::BTreeMap;

use super::expect_none;
use super::import_cycles::{module_of, paths, resolved};
use super::source::{SourceFile, read_sources};

/// Maximum number of source files in one folder.
const FOLDER_FILES_MAX: usize = 16;

/// The parts of `src/api/`, lowest first: each imports only parts that come before it.
const API_PARTS: [&str; 17] = [
    "problem",
    "request_times",
    "dto",
    "render",
    "openapi",
    "query",
    "paging",
    "events",
    "state",
    "guard",
    "routes",
    "path_suggestions",
    "etcd",
    "router",
    "options",
    "bind_error",
    "bound_api",
];

/// Allowed imports against the order of [`API_PARTS`], at most five: the part that imports, the
/// part that is imported, and the reason.
const API_EXCEPTIONS: [(&str, &str, &str); 1] =
    [("openapi", "mod", "the document is collected from the routes, and `fields=` is checked with its schema of a list")];

#[test]
fn folders_have_few_source_files() {
    let mut counts = BTreeMap::<String, usize>::new();
    for file in read_sources("src") {
        let (folder, _) = file.path.rsplit_once('/').unwrap();
        *counts.entry(folder.to_owned()).or_default() += 1;
    }
    let large = counts.iter().filter(|(_, count)| **count > FOLDER_FILES_MAX);
    let large = large.map(|(folder, count)| format!("{folder}: {count} source files, more than {FOLDER_FILES_MAX}: divide it"));
    expect_none(large.collect());
}

/// Returns the imports between parts of `src/api/`: the part that imports, the part that is
/// imported, and one such import as an example.
fn imports_of_api(files: &[&SourceFile]) -> BTreeMap<(String, String), String> {
    let modules = files.iter().map(|file| module_of(&file.path)).collect();
    let mut imports = BTreeMap::new();
    for file in files.iter().filter(|file| file.path != "src/api/mod.rs") {
        let from = module_of(&file.path);
        for path in paths(&file.code) {
            let Some(to) = resolved(&from, &path, &modules).filter(|to| to[0] == "api") else { continue };
            // items of `src/api/mod.rs` are above all parts
            let part = to.get(1).map_or("mod", String::as_str);
            if part != from[1] {
                imports.entry((from[1].clone(), part.to_owned())).or_insert(format!("{}: {}", file.path, path.join("::")));
            }
        }
    }
    imports
}

#[test]
fn parts_of_api_import_only_lower_parts() {
    let files = read_sources("src/api");
    let files: Vec<&SourceFile> = files.iter().filter(|file| !file.is_test()).collect();
    let imports = imports_of_api(&files);
    let position = |part: &str| API_PARTS.iter().position(|known| *known == part).unwrap_or(API_PARTS.len());
    let is_excepted = |from: &str, to: &str| API_EXCEPTIONS.iter().any(|(one, other, _)| (*one, *other) == (from, to));
    let unknown =
        files.iter().map(|file| module_of(&file.path)).filter(|module| module.len() > 1 && position(&module[1]) == API_PARTS.len());
    let unknown = unknown.map(|module| format!("src/api/{} is not in the list of parts", module[1]));
    let upward = imports.iter().filter(|((from, to), _)| position(from) <= position(to) && !is_excepted(from, to));
    let upward = upward.map(|((from, to), import)| format!("{from} must not import {to}: {import}"));
    let stale = API_EXCEPTIONS.iter().filter(|(from, to, _)| !imports.contains_key(&((*from).to_owned(), (*to).to_owned())));
    let stale = stale.map(|(from, to, _)| format!("{from} does not import {to}: remove the exception"));
    expect_none(unknown.chain(upward).chain(stale).collect());
    assert!(API_EXCEPTIONS.len() <= 5, "at most five imports against the order");
}
