//! An inspection finds the content and the damage of a store and changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::faults::damage::{copy_directory, create_store_with_group, flip_last_byte_of, group};
use super::{UnpackedContents, load, open};
use crate::store::{StoreError, inspect};

fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut contents = BTreeMap::new();
    for file in fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() { contents.extend(files(&path)) } else { drop(contents.insert(path.clone(), fs::read(&path).unwrap())) }
    }
    contents
}

#[test]
fn an_inspection_reads_everything_and_changes_nothing() {
    let directory = create_store_with_group();
    let before = files(&directory.path().join("store"));
    let inspection = inspect(directory.path(), &|_| ()).unwrap();
    assert_eq!((inspection.layout, inspection.group_number, inspection.losses.as_slice()), (3, 1, &[][..]));
    let entries = inspection.usage.iter().find(|usage| usage.name == "chunks of entries").unwrap();
    assert_eq!(entries.keys, 400);
    let stored: u64 = inspection.usage.iter().map(|usage| usage.stored_bytes).sum();
    assert!(stored > 0 && stored <= inspection.disk_bytes, "{stored} of {} B", inspection.disk_bytes);
    assert!(files(&directory.path().join("store")) == before, "the files are as they were");
    assert_eq!(UnpackedContents::from(inspection.contents), load(directory.path()));
}

#[test]
fn an_inspection_reports_damage_and_does_not_repair_it() {
    let directory = create_store_with_group();
    flip_last_byte_of(directory.path(), b"e");
    let before = files(&directory.path().join("store"));
    let inspection = inspect(directory.path(), &|_| ()).unwrap();
    assert_eq!(inspection.losses.len(), 2, "{:?}", inspection.losses);
    assert_eq!(inspection.losses[0], "1 slots are damaged");
    assert!(
        inspection.losses[1].starts_with("nothing can be read from \"e\" up to ecilium/cache/nodes/v1/paris/"),
        "{:?}",
        inspection.losses
    );
    assert!(files(&directory.path().join("store")) == before, "the files are as they were");
}

/// sled does not notice that it lost the end of its own log, but the store's log shows it.
#[test]
fn a_store_older_than_its_log_is_reported() {
    let directory = create_store_with_group();
    let older = tempfile::tempdir().unwrap();
    copy_directory(&directory.path().join("store"), &older.path().join("store"));
    let (store, _) = open(directory.path());
    store.apply(&group()).unwrap();
    store.close().unwrap();
    copy_directory(&directory.path().join("log"), &older.path().join("log"));
    let findings = |directory: &Path| inspect(directory, &|_| ()).unwrap().losses;
    assert_eq!(
        findings(older.path()),
        ["its chunks are older than its log (group 1 instead of 2): the newest groups are lost: meshkeep lists all clusters again"]
    );
    fs::remove_dir_all(older.path().join("log")).unwrap();
    assert_eq!(findings(older.path()), ["its log is missing, or belongs to another store: meshkeep lists all clusters again"]);
}

#[test]
fn an_inspection_that_fails_names_the_reason() {
    let directory = create_store_with_group();
    let store = open(directory.path()).0;
    assert!(matches!(inspect(directory.path(), &|_| ()), Err(StoreError::Locked { .. })));
    drop(store);
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(inspect(empty.path(), &|_| ()), Err(StoreError::NoStore { .. })));
}
