//! Looking at a store that no process uses: what is found, and that nothing is changed by it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::faults::damage::{copy_directory, flip_last_byte_of, group};
use super::{Loaded, load, open};
use crate::store::{StoreError, inspect};

fn stored() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    store.apply(&group()).unwrap();
    store.close().unwrap();
    directory
}

fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for file in fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { drop(found.insert(path.clone(), fs::read(&path).unwrap())) }
    }
    found
}

#[test]
fn a_whole_store_is_read_in_full_and_nothing_of_it_is_changed() {
    let directory = stored();
    let before = files(&directory.path().join("store"));
    let inspection = inspect(directory.path(), &|_| ()).unwrap();
    assert_eq!((inspection.layout, inspection.group_number, inspection.findings.as_slice()), (3, 1, &[][..]));
    let entries = inspection.shares.iter().find(|share| share.name == "chunks of entries").unwrap();
    assert_eq!(entries.keys, 400);
    let stored: u64 = inspection.shares.iter().map(|share| share.stored_bytes).sum();
    assert!(stored > 0 && stored <= inspection.disk_bytes, "{stored} of {} B", inspection.disk_bytes);
    assert!(files(&directory.path().join("store")) == before, "the files are as they were");
    assert_eq!(Loaded::from(inspection.loaded), load(directory.path()));
}

#[test]
fn damage_is_found_and_left_as_it_is() {
    let directory = stored();
    flip_last_byte_of(directory.path(), b"e");
    let before = files(&directory.path().join("store"));
    let inspection = inspect(directory.path(), &|_| ()).unwrap();
    assert_eq!(inspection.findings.len(), 2, "{:?}", inspection.findings);
    assert_eq!(inspection.findings[0], "1 slots are damaged");
    assert!(
        inspection.findings[1].starts_with("nothing can be read from \"e\" up to ecilium/cache/nodes/v1/paris/"),
        "{:?}",
        inspection.findings
    );
    assert!(files(&directory.path().join("store")) == before, "the files are as they were");
}

/// The engine takes a log whose end is gone for a shorter one; ours knows better.
#[test]
fn a_store_that_went_back_is_found() {
    let directory = stored();
    let older = tempfile::tempdir().unwrap();
    copy_directory(&directory.path().join("store"), &older.path().join("store"));
    let (store, _) = open(directory.path());
    store.apply(&group()).unwrap();
    store.close().unwrap();
    copy_directory(&directory.path().join("log"), &older.path().join("log"));
    let findings = |directory: &Path| inspect(directory, &|_| ()).unwrap().findings;
    assert_eq!(findings(older.path()), ["it went back from group 2 to 1: the newest groups are lost: meshkeep lists all clusters again"]);
    fs::remove_dir_all(older.path().join("log")).unwrap();
    assert_eq!(findings(older.path()), ["its log is missing, or belongs to another store: meshkeep lists all clusters again"]);
}

#[test]
fn a_store_that_cannot_be_looked_at_says_why() {
    let directory = stored();
    let store = open(directory.path()).0;
    assert!(matches!(inspect(directory.path(), &|_| ()), Err(StoreError::Locked { .. })));
    drop(store);
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(inspect(empty.path(), &|_| ()), Err(StoreError::Nothing { .. })));
}
