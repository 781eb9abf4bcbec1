//! Style rules as tests: imports between rooms (the modules directly below `src/`), sizes, unused
//! files and banned texts. [`ROOMS`] equals the table of rooms in ARCHITECTURE.md.

mod deploy;
mod documents;
mod folders;
mod import_cycles;
mod kinds;
mod language;
mod map;
mod source;
mod traps;

use std::collections::BTreeSet;
use std::path::Path;

use self::source::{SourceFile, functions, read_sources, strip};

/// Rooms of the crate that each room may import. Test code may import more. `lib.rs` is no room,
/// because it lists all of them.
const ROOMS: [(&str, &[&str]); 31] = [
    ("main", &["cli"]),
    ("cli", &["announce", "client_file", "config", "demo", "doctor", "dto", "dump", "files", "model", "reflect", "runtime", "telemetry"]),
    ("doctor", &["client_file", "clustermesh", "model", "store", "wire"]),
    ("dump", &["dto", "model", "wire"]),
    ("config", &["files", "model", "yaml"]),
    ("demo", &["commit", "etcd_api", "feed", "handle", "model", "view"]),
    // the composition root
    (
        "runtime",
        &[
            "admission",
            "api",
            "clustermesh",
            "commit",
            "config",
            "dump",
            "etcd_api",
            "feed",
            "handle",
            "history",
            "model",
            "pack",
            "reflect",
            "server",
            "store",
            "telemetry",
            "view",
            "wire",
        ],
    ),
    ("model", &[]),
    ("instruments", &[]),
    ("pack", &["model"]),
    ("wire", &["model"]),
    ("client_file", &["model", "yaml"]),
    ("announce", &["client_file", "model", "wire", "file_watch", "files", "yaml"]),
    ("file_watch", &[]),
    ("files", &[]),
    ("yaml", &[]),
    ("clustermesh", &["client_file", "commit", "config", "file_watch", "files", "instruments", "model", "wire"]),
    ("commit", &["feed", "instruments", "model", "store", "view"]),
    ("store", &["instruments", "model", "pack"]),
    ("view", &["feed", "model", "pack", "wire"]),
    ("feed", &["model", "pack", "wire"]),
    ("handle", &["commit", "feed", "history", "instruments", "model", "view"]),
    ("history", &["instruments", "model", "pack", "wire"]),
    ("page", &[]),
    ("reflect", &["handle", "model", "wire"]),
    ("admission", &["handle"]),
    ("etcd_api", &["admission", "handle", "instruments", "model"]),
    ("dto", &["model"]),
    ("server", &["admission", "instruments", "model"]),
    ("findings", &["dto", "files", "handle", "model", "server"]),
    ("api", &["admission", "dto", "files", "findings", "handle", "instruments", "model", "page", "server"]),
];

/// Row of the room `telemetry`.
const TELEMETRY: (&str, &[&str]) = ("telemetry", &["config", "files", "handle", "instruments", "model"]);

/// Folders with code that ships.
const SOURCES: [&str; 2] = ["src", "crates/cilium-kvstore/src"];

/// Crates that only some modules import. The path below `src/` must begin with one of these.
const SOLE_IMPORTERS: [(&str, &[&str]); 14] = [
    ("axum", &["api", "server"]),
    ("utoipa", &["api", "dto"]),
    ("tower_http", &["api"]),
    ("sled", &["store/engine"]),
    ("notify", &["file_watch"]),
    ("zip", &["dump/unpack"]),
    ("opentelemetry", &["instruments/traces", "telemetry/otlp"]),
    ("opentelemetry_sdk", &["instruments/traces", "telemetry/otlp"]),
    ("opentelemetry_otlp", &["telemetry/otlp"]),
    ("tracing_opentelemetry", &["instruments/traces", "telemetry/otlp"]),
    ("libyaml_safer", &["yaml"]),
    // as a server: the client is `cilium-kvstore`
    ("etcd_client", &["etcd_api"]),
    ("tonic", &["etcd_api"]),
    // `model` re-exports its ids and the backoff, `files` its functions that read files
    ("cilium_kvstore", &["announce", "cli", "client_file", "clustermesh", "doctor", "files", "model", "reflect", "runtime"]),
];

/// Maximum lines of a file without its tests (CONTRIBUTING.md).
const FILE_LINES_MAX: usize = 500;

/// Maximum lines of a function, from its name to its closing brace (CONTRIBUTING.md).
const FUNCTION_LINES_MAX: usize = 70;

/// Texts that must not occur in code or comments, with the reason. Each is split in two, so that
/// this file does not contain it.
const BANNED: [(&[&str], &str); 7] = [
    (&["..", "/shared"], "the project refers to nothing outside of it"),
    (&["TO", "DO"], "do it, or open an issue"),
    (&["FIX", "ME"], "do it, or open an issue"),
    (&["dbg", "!("], "debug output does not belong in the repository"),
    (&["#[ig", "nore"], "a disabled test checks nothing"),
    (&["thread::", "sleep"], "wait for a condition with a deadline"),
    (&["todo", "!("], "unfinished code panics"),
];

/// Files that may contain banned texts, with the reason.
const EXCEPTIONS: [(&str, &str); 5] = [
    ("src/commit/mod.rs", "spaces snapshots; it waits for no condition, and changes meanwhile join the next snapshot"),
    ("src/store/engine.rs", "polls, with a deadline, for sled's own lock, which has no wait"),
    ("src/store/directory/lock.rs", "polls, with a deadline, for a file lock, which has no wait with a deadline"),
    ("src/store/tests/faults/crash.rs", "kills or cuts at a random moment; it waits for no condition"),
    ("src/store/tests/faults/power.rs", "kills or cuts at a random moment; it waits for no condition"),
];

fn allowed(room: &str) -> Option<&'static [&'static str]> {
    ROOMS.iter().chain([&TELEMETRY]).find(|(name, _)| *name == room).map(|(_, imports)| *imports)
}

/// Panics with all complaints.
fn expect_none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn each_room_imports_only_what_the_table_allows() {
    let mut complaints = Vec::new();
    for file in read_sources("src").iter().filter(|file| file.path != "src/lib.rs" && !file.is_test()) {
        let room = file.room();
        let Some(allowed) = allowed(room) else {
            complaints.push(format!("{}: room {room} is not in the table", file.path));
            continue;
        };
        let imported = imported_rooms(&file.code, if room == "main" { "meshkeep::" } else { "crate::" });
        let foreign = imported.iter().filter(|imported| *imported != room && !allowed.contains(&imported.as_str()));
        complaints.extend(foreign.map(|foreign| format!("{}: {room} must not import {foreign}", file.path)));
    }
    expect_none(complaints);
}

#[test]
fn some_crates_are_imported_only_by_named_rooms() {
    let mut complaints = Vec::new();
    for file in read_sources("src") {
        let below = file.path.trim_start_matches("src/");
        for (name, rooms) in SOLE_IMPORTERS {
            if uses_crate(&file.code, name) && !rooms.iter().any(|room| below.starts_with(room)) {
                complaints.push(format!("{}: only {} below src may use {name}", file.path, rooms.join(" and ")));
            }
        }
    }
    expect_none(complaints);
}

#[test]
fn files_and_functions_stay_small() {
    let mut complaints = Vec::new();
    for file in SOURCES.into_iter().flat_map(read_sources).filter(|file| !file.is_test()) {
        let lines = file.code.lines().count();
        if lines > FILE_LINES_MAX {
            complaints.push(format!("{}: {lines} lines without tests, more than {FILE_LINES_MAX}: split it", file.path));
        }
        let long = functions(&file.code).into_iter().filter(|function| function.lines > FUNCTION_LINES_MAX);
        complaints.extend(long.map(|function| {
            format!("{}:{}: fn {} has {} lines, more than {FUNCTION_LINES_MAX}", file.path, function.line, function.name, function.lines)
        }));
    }
    expect_none(complaints);
}

#[test]
fn every_file_is_reachable_through_mod() {
    let mut complaints = Vec::new();
    for (root, entries) in [
        ("src", vec!["src/lib.rs", "src/main.rs"]),
        ("crates/cilium-kvstore/src", vec!["crates/cilium-kvstore/src/lib.rs"]),
        ("tests", vec!["tests/main.rs", "tests/clients/rust/src/main.rs"]),
    ] {
        let files = read_sources(root);
        let mut reached = BTreeSet::new();
        let mut unvisited: Vec<String> = entries.into_iter().map(str::to_owned).collect();
        while let Some(path) = unvisited.pop() {
            if let Some(file) = files.iter().find(|file| file.path == path)
                && reached.insert(path)
            {
                unvisited.extend(file.children());
            }
        }
        complaints.extend(
            files.iter().filter(|file| !reached.contains(&file.path)).map(|file| format!("{}: no `mod` line leads here", file.path)),
        );
    }
    expect_none(complaints);
}

#[test]
fn no_file_contains_a_banned_text() {
    let mut complaints = Vec::new();
    let excepted = |file: &SourceFile| EXCEPTIONS.iter().any(|(path, _)| *path == file.path);
    for file in ["src", "crates", "tests"].into_iter().flat_map(read_sources).filter(|file| !excepted(file)) {
        for (number, line) in file.text.lines().enumerate() {
            let matches = BANNED.iter().filter(|(parts, _)| line.contains(&parts.concat()));
            complaints.extend(matches.map(|(parts, why)| format!("{}:{}: {}: {why}", file.path, number + 1, parts.concat())));
        }
    }
    expect_none(complaints);
}

/// Returns the arguments of each log line in code whose string literals are removed.
fn log_arguments(code: &str) -> impl Iterator<Item = &str> {
    let macros = ["error", "warn", "info", "debug", "trace"].map(|level| format!("tracing::{level}!("));
    macros.into_iter().flat_map(move |name| {
        let starts: Vec<usize> = code.match_indices(&name).map(|(start, _)| start + name.len()).collect();
        starts.into_iter().map(move |start| {
            let mut depth = 1;
            let end = code[start..].find(|c| {
                depth += i32::from(c == '(') - i32::from(c == ')');
                depth == 0
            });
            &code[start..start + end.unwrap_or_default()]
        })
    })
}

/// Returns an error in the types of a log line's fields. In the JSON form, numbers must be JSON
/// numbers, and texts must be readable for people who do not know Rust.
fn log_type_error(arguments: &str) -> Option<&'static str> {
    let has_debug_form = arguments.split(',').any(|field| field.trim().starts_with('?') || field.contains("= ?"));
    let is_wide = |unit: &str| arguments.contains(unit) && !arguments.contains("u64::try_from(");
    if has_debug_form {
        Some("`?` logs the Debug form as a text: log a number, such as `wait_s = wait.as_secs_f64()`, or a text with `%`")
    } else if [".as_millis()", ".as_micros()", ".as_nanos()"].into_iter().any(is_wide) {
        Some("a u128 is logged as a text: convert it to u64")
    } else {
        None
    }
}

#[test]
fn log_fields_have_the_types_of_their_values() {
    let mut complaints = Vec::new();
    for file in SOURCES.into_iter().flat_map(read_sources).filter(|file| !file.is_test()) {
        let errors = log_arguments(&file.code).filter_map(|arguments| Some((arguments, log_type_error(arguments)?)));
        complaints.extend(errors.map(|(arguments, error)| format!("{}: {error}: {}", file.path, arguments.trim())));
    }
    expect_none(complaints);
    let code = strip(
        "fn f() { tracing::info!(took = ?wait(1), \"(\"); tracing::warn!(ms = wait.as_millis(), \"x\"); tracing::info!(%id, ms = 1); }",
    );
    let errors: Vec<bool> = log_arguments(&code).map(|arguments| log_type_error(arguments).is_some()).collect();
    assert_eq!(errors, [true, true, false], "warnings first");
}

/// Beginnings of docs that can only be understood with the item above or the value below.
const DEPENDENT_BEGINNINGS: [&str; 6] = ["The same ", "So many ", "So much ", "So long ", "So few ", "So often "];

#[test]
fn doc_comments_do_not_depend_on_the_item_above() {
    let mut complaints = Vec::new();
    for file in ["src", "crates", "tests", "benches"].into_iter().flat_map(read_sources) {
        let mut before = "";
        for (number, line) in file.text.lines().map(str::trim_start).enumerate() {
            let doc = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! ")).filter(|_| !before.starts_with(&line[..3]));
            if doc.is_some_and(|doc| DEPENDENT_BEGINNINGS.iter().any(|beginning| doc.starts_with(beginning))) {
                complaints.push(format!("{}:{}: name the thing itself: {line}", file.path, number + 1));
            }
            before = line;
        }
    }
    expect_none(complaints);
}

#[test]
fn the_checks_detect_violations() {
    let code = strip("use crate::{model::Node, wire};\nfn f() { crate::store::open(); let s = \"crate::api\"; } // crate::feed\n");
    let rooms: Vec<_> = imported_rooms(&code, "crate::").into_iter().collect();
    assert_eq!(rooms, ["model", "store", "wire"]);
    assert!(uses_crate("use sled::Db;", "sled") && uses_crate("let x: ::sled::Db;", "sled"));
    assert!(!uses_crate("use crate::store::sled::Db;", "sled") && !uses_crate("let sled = 1;", "sled"));
    let code = strip("fn a() {\n}\n\nimpl X {\n    fn b<T>(x: char) -> bool\n    {\n        x == '{' || \"}{\" == r#\"\"{\"#\n    }\n}\n");
    let spans: Vec<_> = functions(&code).into_iter().map(|function| (function.name, function.line, function.lines)).collect();
    assert_eq!(spans, [("a".to_owned(), 1, 2), ("b".to_owned(), 5, 4)]);
    let code = strip("trait X {\n    fn a(x: &[u8]) -> bool;\n\n    fn b(x: [u8; 2]) {\n    }\n}\n");
    assert_eq!(functions(&code).into_iter().map(|function| (function.name, function.lines)).collect::<Vec<_>>(), [("b".to_owned(), 2)]);
    let file = SourceFile::new("src/a/b.rs", "mod c;\npub(crate) mod d;\nmod e {}\n#[cfg(test)]\nmod tests {\n fn x() {}\n}\n");
    assert_eq!(file.children(), ["src/a/b/c.rs", "src/a/b/c/mod.rs", "src/a/b/d.rs", "src/a/b/d/mod.rs"]);
    assert_eq!(file.code.lines().count(), 3, "the tests are not counted");
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs").exists());
}

/// Returns the rooms that code names after `root`, usually `crate::`: `crate::x`, and each of
/// `crate::{x::…, y}`.
fn imported_rooms(code: &str, root: &str) -> BTreeSet<String> {
    let mut rooms = BTreeSet::new();
    for (start, _) in code.match_indices(root) {
        let rest = code[start + root.len()..].trim_start();
        match rest.strip_prefix('{') {
            Some(group) => rooms.extend(top_level_names(group)),
            None => rooms.extend(leading_name(rest)),
        }
    }
    rooms
}

/// Returns the first names of a `{a::b, c::{d, e}}` group. The text starts after the brace.
fn top_level_names(group: &str) -> Vec<String> {
    let (mut names, mut depth, mut start) = (Vec::new(), 0_u32, true);
    for (offset, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = true,
            _ if start && !character.is_whitespace() => {
                names.extend(leading_name(&group[offset..]));
                start = false;
            }
            _ => {}
        }
    }
    names
}

/// Returns the name at the start of a text if it is a module's. Types at the root of the crate
/// start with a capital letter, and the root has no functions.
fn leading_name(text: &str) -> Option<String> {
    let name: String = text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    name.starts_with(|c: char| c.is_ascii_lowercase()).then_some(name)
}

/// Returns whether code contains a path that begins with the crate `name`.
fn uses_crate(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        let before = before.strip_suffix("::").filter(|before| !before.ends_with(is_word)).unwrap_or(before);
        let starts_path = !before.ends_with(is_word) && !before.ends_with(':');
        starts_path && (after.starts_with("::") || before.ends_with("use ") && after.starts_with([';', ' ']))
    })
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}
