//! Tests that all files of the page exist, match their types, and fetch nothing from elsewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::*;

/// Third-party files with their SHA-256 as published on npm: preact 10 and htm in one module
/// (`htm@3.1.1`, `preact/standalone.module.js`), and their licences (`htm@3.1.1` and
/// `preact@10.24.3`, `LICENSE`).
const VENDORED: [(&str, &str); 3] = [
    ("vendor/preact.js", "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7"),
    ("vendor/htm.LICENSE", "740725f7252e750af735d0028cc534970772f513331e9f68150fede8fb3ce00f"),
    ("vendor/preact.LICENSE", "1fe6958409c8c257a70c587a18b6f7f412b179b456630790d30b2ec9a8e4b7d4"),
];

fn text(name: &str) -> &'static str {
    ASSETS.iter().find(|asset| asset.name == name).unwrap_or_else(|| panic!("no {name}")).text
}

/// Returns our own files, including the page itself.
fn own_files() -> impl Iterator<Item = (&'static str, &'static str)> {
    let own = ASSETS.iter().filter(|asset| !asset.name.starts_with("vendor/"));
    own.map(|asset| (asset.name, asset.text)).chain([("index.html", TEMPLATE)])
}

#[test]
fn every_asset_is_in_the_binary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page/assets");
    let (mut found, mut open) = (BTreeSet::new(), vec![root.clone()]);
    while let Some(directory) = open.pop() {
        for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                open.push(path);
            } else {
                found.insert(path.strip_prefix(&root).unwrap().to_path_buf());
            }
        }
    }
    assert!(found.remove(Path::new("index.html")));
    assert_eq!(found, ASSETS.iter().map(|asset| PathBuf::from(asset.name)).collect());
}

#[test]
fn vendored_files_are_unchanged() {
    let vendored: BTreeSet<&str> = ASSETS.iter().map(|asset| asset.name).filter(|name| name.starts_with("vendor/")).collect();
    assert_eq!(vendored, VENDORED.iter().map(|(name, _)| *name).collect());
    for (name, hash) in VENDORED {
        let digest = Sha256::digest(text(name)).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(digest, hash, "{name}");
    }
}

/// Our files use nothing that would turn text of the mesh into markup or code, and name no other
/// host.
#[test]
fn own_files_create_no_markup_and_name_no_other_host() {
    for (name, text) in own_files() {
        for banned in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "new Function",
            "setAttribute(\"style",
            "style=",
            "//cdn",
            "@import",
            "url(",
        ] {
            assert!(!text.contains(banned), "{name} has {banned}");
        }
        let foreign: Vec<&str> = text.split("http").skip(1).filter(|rest| !rest.starts_with("://www.w3.org/2000/svg")).collect();
        assert_eq!(foreign.len(), 0, "{name}: http{}", foreign.first().unwrap_or(&""));
        assert!(!text.contains("document.cookie") && !text.contains("indexedDB"), "{name} stores data in the browser");
        assert!(text.lines().count() < 500, "{name} is too long");
    }
    // only the colour theme is stored beyond the page's lifetime
    let storage_users: Vec<&str> = own_files().filter(|(_, text)| text.contains("localStorage")).map(|(name, _)| name).collect();
    assert_eq!(storage_users, ["frame.js"]);
    // and the token of a read-only link until its window is closed
    let session_users: Vec<&str> = own_files().filter(|(_, text)| text.contains("sessionStorage")).map(|(name, _)| name).collect();
    assert_eq!(session_users, ["view_token.js"]);
}

/// Names and values come from remote clusters, whose writers choose every character.
#[test]
fn answers_are_escaped_and_text_direction_is_isolated() {
    for (name, text) in own_files().filter(|(name, _)| name.ends_with(".js")) {
        let expected = if name == "api.js" { 2 } else { 0 };
        assert_eq!(text.matches("JSON.parse(").count(), expected, "{name} reads an answer without parse()");
        assert!(!text.contains(".json()"), "{name} reads an answer without parse()");
    }
    assert!(text("style.css").contains("body * { unicode-bidi: isolate; }"));
    let preact_users: Vec<&str> = own_files().filter(|(_, text)| text.contains("vendor/preact.js")).map(|(name, _)| name).collect();
    assert_eq!(preact_users, ["html.js"], "only html.js isolates right-to-left text in the nodes that it creates");
}

#[test]
fn modules_import_only_existing_files() {
    for asset in ASSETS.iter().filter(|asset| asset.name.ends_with(".js") && !asset.name.starts_with("vendor/")) {
        let folder = Path::new(asset.name).parent().unwrap();
        for line in asset.text.lines().filter(|line| line.starts_with("import ")) {
            let imported = line.split('"').nth(1).unwrap();
            let mut path = folder.to_path_buf();
            for part in imported.split('/') {
                match part {
                    "." => {}
                    ".." => assert!(path.pop(), "{}: {imported}", asset.name),
                    part => path.push(part),
                }
            }
            assert!(ASSETS.iter().any(|other| Path::new(other.name) == path), "{}: {imported}", asset.name);
        }
    }
}

#[test]
fn the_address_of_an_asset_contains_the_version() {
    assert_eq!(version().len(), VERSION_LENGTH);
    assert_eq!(asset(&format!("{}/parts/mesh.js", version())).map(|asset| asset.name), Some("parts/mesh.js"));
    for path in ["", "main.js", "0123456789abcdef/main.js", &format!("{}main.js", version()), &format!("{}/nothing.js", version())] {
        assert_eq!(asset(path), None, "{path}");
    }
    for link in index().split("\"/assets/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(asset(link).is_some(), "{link}");
    }
    assert!(!index().contains('{'));
}
