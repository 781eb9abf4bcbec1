//! ARCHITECTURE.md compared with the code: its table of rooms is [`ROOMS`], and the files that the
//! map and `docs/develop/path-of-a-change.md` name exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{ROOMS, TELEMETRY, expect_none};

/// Folders to which the paths on the pages are relative.
const ROOTS: [&str; 3] = ["", "src/", "crates/cilium-kvstore/src/"];

fn read_page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// Returns the rows of the table of rooms, each with the name and the rooms that it may import.
fn rooms_of(page: &str) -> Vec<(&str, BTreeSet<&str>)> {
    let table = page.split("\n## ").find(|part| part.starts_with("Rooms\n")).unwrap_or_default();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    rows.filter_map(|row| {
        let (name, rest) = row.split_once('`')?;
        let (_, imports) = rest.rsplit_once("| ")?;
        Some((name.trim_end_matches('/'), imports.split(", ").filter(|import| *import != "–").collect()))
    })
    .collect()
}

/// Returns the paths in backticks that end in `.rs` or `/`.
fn paths_of(page: &str) -> impl Iterator<Item = &str> {
    let quoted = page.split("```").step_by(2).flat_map(|text| text.split('`').skip(1).step_by(2));
    quoted.filter(|text| !text.contains(char::is_whitespace) && text.contains('/') && (text.ends_with(".rs") || text.ends_with('/')))
}

#[test]
fn the_map_lists_each_room_with_its_imports() {
    let page = read_page("ARCHITECTURE.md");
    let listed: BTreeSet<_> = rooms_of(&page).into_iter().collect();
    let allowed: BTreeSet<_> =
        ROOMS.iter().chain([&TELEMETRY]).map(|(room, imports)| (*room, imports.iter().copied().collect::<BTreeSet<_>>())).collect();
    assert_eq!(listed, allowed);
}

#[test]
fn the_files_that_the_map_names_exist() {
    let mut complaints = Vec::new();
    for name in ["ARCHITECTURE.md", concat!("docs/develop/path-of-a-change", ".md")] {
        let page = read_page(name);
        let exists = |path: &str| ROOTS.iter().any(|root| Path::new(env!("CARGO_MANIFEST_DIR")).join(root).join(path).exists());
        complaints.extend(paths_of(&page).filter(|path| !exists(path)).map(|path| format!("{name}: there is no {path}")));
    }
    expect_none(complaints);
}

#[test]
fn rows_and_paths_are_read_from_a_page() {
    let page = "# X\n\n## Rooms\n\n| room | what it does | may import |\n|---|---|---|\n| `a/` | `b` and `c/d.rs` | e, f |\n| `g` | h | – |\n\n## I\n";
    assert_eq!(rooms_of(page), [("a", BTreeSet::from(["e", "f"])), ("g", BTreeSet::new())]);
    assert_eq!(paths_of("`a/b.rs` and `c` and `d/`\n```\n`e/f.rs`\n```\n`g h/`").collect::<Vec<_>>(), ["a/b.rs", "d/"]);
}
