//! `meshkeep store verify|inspect|export`, as an operator runs it with the store of an ended
//! process.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn run(command: &str, directory: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_meshkeep")).args(["store", command, "--data-dir"]).arg(directory).output().unwrap()
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Returns a data directory with the small store of layout 3: 16 entries.
fn data_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for part in ["store", "log"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations/0003-one-log").join(part);
        let to = directory.path().join(part);
        fs::create_dir(&to).unwrap();
        for file in fs::read_dir(from).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    directory
}

#[test]
fn an_intact_store_is_verified_inspected_and_exported() {
    let directory = data_directory();
    let verified = run("verify", directory.path());
    assert_eq!((verified.status.code(), lines(&verified)), (Some(0), vec!["intact: 16 entries, up to group 1".to_owned()]));
    let shown = run("inspect", directory.path());
    assert_eq!(shown.status.code(), Some(0));
    assert!(lines(&shown).iter().any(|line| line.starts_with("chunks of entries")), "{:?}", lines(&shown));
    let exported = run("export", directory.path());
    let keys: Vec<String> = lines(&exported)
        .iter()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["key"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(keys.len(), 16);
    assert!(keys.is_sorted() && keys[0].starts_with("cilium/cache/"), "{keys:?}");
}

#[test]
fn verify_fails_for_a_damaged_and_for_a_missing_store() {
    let directory = data_directory();
    let database = directory.path().join("store/db");
    let whole = fs::read(&database).unwrap();
    fs::write(&database, &whole[..whole.len() / 2]).unwrap();
    let verified = run("verify", directory.path());
    assert_eq!((verified.status.code(), lines(&verified)), (Some(1), Vec::new()));
    let error = String::from_utf8_lossy(&verified.stderr);
    assert!(error.contains("meshkeep lists all clusters again"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(run("verify", empty.path()).status.code(), Some(1));
}
