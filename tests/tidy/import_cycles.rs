//! Import cycles between modules. Modules with the same parent must not import one another in a
//! cycle; submodules count as the module that contains them.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{SourceFile, read_sources};
use super::{SOURCES, expect_none, is_word};

/// Path of a module from the crate's root.
pub(super) type Module = Vec<String>;

/// Imports between modules with the same parent, each with one import as an example.
type Imports = BTreeMap<Module, BTreeMap<Module, String>>;

/// Imports that may close a cycle: a file, the end of the path, and the reason.
const ALLOWED: [(&str, &str, &str); 1] =
    [("src/dto/meta.rs", "EntryVersion", "the candidates in the `meta` of an answer are objects, which can have `meta`")];

#[test]
fn modules_with_one_parent_have_no_import_cycle() {
    let files: Vec<SourceFile> = SOURCES.into_iter().flat_map(read_sources).collect();
    let files: Vec<&SourceFile> = files.iter().filter(|file| !file.is_test() && !is_root(file)).collect();
    expect_none(import_cycles(&files));
}

/// Returns whether a file is the root of a library or of the program. The roots declare the rooms,
/// and another test compares the imports between rooms with `ROOMS`.
fn is_root(file: &SourceFile) -> bool {
    ["src/lib.rs", "src/main.rs", "crates/cilium-kvstore/src/lib.rs"].contains(&file.path.as_str())
}

/// Returns the imports that form cycles.
fn import_cycles(files: &[&SourceFile]) -> Vec<String> {
    let modules: BTreeSet<Module> = files.iter().map(|file| module_of(&file.path)).collect();
    let mut imports = Imports::new();
    for file in files {
        let from = module_of(&file.path);
        for path in paths(&file.code) {
            let is_allowed = |(allowed, end, _): &(&str, &str, &str)| file.path == *allowed && path.last().is_some_and(|last| last == end);
            if ALLOWED.iter().any(is_allowed) {
                continue;
            }
            let Some(to) = resolved(&from, &path, &modules) else { continue };
            let common = from.iter().zip(&to).take_while(|(from_part, to_part)| from_part == to_part).count();
            // the table of rooms checks imports between rooms, and a parent forms no cycle with its
            // submodules
            if common > 0 && common < from.len() && common < to.len() {
                let import = format!("{}: {}", file.path, path.join("::"));
                imports.entry(from[..=common].to_vec()).or_default().entry(to[..=common].to_vec()).or_insert(import);
            }
        }
    }
    // remove modules without imports, and modules that nothing imports: neither can be in a cycle
    loop {
        let sources: BTreeSet<Module> = imports.keys().cloned().collect();
        let targets: BTreeSet<Module> = imports.values().flat_map(BTreeMap::keys).cloned().collect();
        let before = imports.values().map(BTreeMap::len).sum::<usize>();
        imports.values_mut().for_each(|imported| imported.retain(|to, _| sources.contains(to)));
        imports.retain(|from, imported| targets.contains(from) && !imported.is_empty());
        if imports.values().map(BTreeMap::len).sum::<usize>() == before {
            break;
        }
    }
    imports.into_values().flat_map(BTreeMap::into_values).map(|import| format!("in a cycle of imports: {import}")).collect()
}

/// Returns the module of a file. In `crates/` it begins with the name of the crate.
pub(super) fn module_of(path: &str) -> Module {
    let in_crate = path.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/"));
    let (root, below) = in_crate.map_or((None, path.trim_start_matches("src/")), |(name, below)| (Some(name), below));
    let below = below.trim_end_matches(".rs").trim_end_matches("/mod");
    root.into_iter().chain(below.split('/')).map(str::to_owned).collect()
}

/// Returns the root of the crate that a module is in. The names of crates in `crates/` have a `-`,
/// which no module has.
pub(super) fn crate_root(module: &Module) -> Module {
    module.iter().take(1).filter(|name| name.contains('-')).cloned().collect()
}

/// Returns the module that a path in another module refers to.
pub(super) fn resolved(from: &Module, path: &[String], modules: &BTreeSet<Module>) -> Option<Module> {
    let mut module: Module = if path[0] == "crate" { crate_root(from) } else { from.clone() };
    for name in path {
        match name.as_str() {
            "crate" | "self" => {}
            "super" => drop(module.pop()),
            _ => {
                module.push(name.clone());
                if !modules.contains(&module) {
                    module.pop();
                    break;
                }
            }
        }
    }
    modules.contains(&module).then_some(module)
}

/// Returns the paths that begin with `crate`, `super` or `self`, one per element of a group.
pub(super) fn paths(code: &str) -> Vec<Vec<String>> {
    let starts = ["crate::", "super::", "self::"].into_iter().flat_map(|start| code.match_indices(start));
    let begins = |offset: usize| !code[..offset].ends_with(|before| is_word(before) || before == ':');
    starts.filter(|(offset, _)| begins(*offset)).flat_map(|(offset, _)| tree(&code[offset..]).0).collect()
}

/// Returns each path of the use tree at the start of a text, and the length of the tree.
fn tree(text: &str) -> (Vec<Vec<String>>, usize) {
    if let Some(group) = text.strip_prefix('{') {
        let (mut all, mut offset) = (Vec::new(), 0);
        while let Some(next) = group[offset..].chars().next().filter(|next| *next != '}') {
            let (paths, length) = tree(&group[offset..]);
            all.extend(paths);
            // a comma, a space or an asterisk
            offset += if length == 0 { next.len_utf8() } else { length };
        }
        return (all, offset + 2);
    }
    let name: String = text.chars().take_while(|character| is_word(*character)).collect();
    if name.is_empty() {
        return (Vec::new(), 0);
    }
    let Some(rest) = text[name.len()..].strip_prefix("::") else { return (vec![vec![name.clone()]], name.len()) };
    let (below, length) = tree(rest);
    let paths = below.into_iter().map(|path| [vec![name.clone()], path].concat());
    let paths = if length == 0 { vec![vec![name.clone()]] } else { paths.collect() };
    (paths, name.len() + 2 + length)
}

#[test]
fn import_cycles_of_every_form_are_detected() {
    let file = |path: &str, code: &str| SourceFile::new(path, code);
    let detected = |files: &[SourceFile]| import_cycles(&files.iter().collect::<Vec<_>>());
    let parent = file("src/a/mod.rs", "mod b;\nmod c;\nuse b::X;\nuse c::Y;");
    for (b, c, count) in [
        ("use super::c::Y;", "use super::b::X;", 2),
        ("use super::{c::{Y, Z}, d};", "fn f() { crate::a::b::x(); }", 2),
        ("use super::c;", "pub(in crate::a) fn f() -> super::Thing { super::g() }", 0),
        ("use super::Thing;", "use super::b::*;", 0),
    ] {
        let files = [&parent, &file("src/a/b.rs", b), &file("src/a/c.rs", c)].map(|file| SourceFile::new(&file.path, &file.text));
        assert_eq!(detected(&files).len(), count, "{b} {c}");
    }
    // submodules count as their module, and a module that imports a cycle is not part of it
    let below = [
        file("src/a/b.rs", "mod e;"),
        file("src/a/b/e.rs", "use super::super::c::Y;\nuse super::X;"),
        file("src/a/c.rs", "use super::d::W;"),
        file("src/a/d.rs", "use super::b::X;"),
        file("src/a/f.rs", "use super::b::X;"),
        file("src/g.rs", "use crate::a::b::X;"),
    ];
    assert_eq!(detected(&below).len(), 3, "{:?}", detected(&below));
    // `ROOMS` has no modules of the crates in crates/, so cycles between their top modules are
    // detected here
    let of_crate = [file("crates/x-y/src/a.rs", "use crate::b::X;"), file("crates/x-y/src/b.rs", "use crate::a::Y;")];
    assert_eq!(detected(&of_crate).len(), 2, "{:?}", detected(&of_crate));
}
