//! One process at a time uses a data directory, and the error names it.

use std::fs;
use std::time::{Duration, Instant};

use super::open;
use crate::store::directory::lock::DirectoryLock;
use crate::store::{Store, StoreError};

#[test]
fn opening_a_locked_store_waits_and_then_names_the_holder() {
    let directory = tempfile::tempdir().unwrap();
    let _store = open(directory.path());
    let begin = Instant::now();
    let wait = Duration::from_millis(150);
    let error = Store::open(directory.path(), wait).unwrap_err();
    assert!(begin.elapsed() >= wait);
    let StoreError::Locked { directory: named, holder } = &error else { panic!("{error}") };
    assert_eq!(named, directory.path());
    assert!(holder.starts_with(&format!("pid {}: ", std::process::id())), "{holder}");
    assert!(error.to_string().contains(&directory.path().display().to_string()) && error.to_string().contains(holder), "{error}");
}

#[test]
fn opening_succeeds_when_the_holder_releases_the_lock() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| Store::open(directory.path(), Duration::from_secs(30)).map(|(_, opened)| opened.created));
        drop(store);
        assert!(!waiting.join().unwrap().unwrap());
    });
}

#[test]
fn the_lock_is_free_after_close_and_after_drop() {
    let directory = tempfile::tempdir().unwrap();
    open(directory.path()).0.close().unwrap();
    drop(open(directory.path()));
    let (_, opened) = open(directory.path());
    assert!(!opened.created);
}

/// A child process that is just being started shares all open files until it runs its own program.
/// A second handle simulates the child here.
#[test]
fn the_lock_is_free_while_a_starting_child_shares_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let lock = DirectoryLock::acquire(directory.path(), Duration::ZERO).unwrap();
    let _shared = lock.file.try_clone().unwrap();
    drop(lock);
    DirectoryLock::acquire(directory.path(), Duration::ZERO).unwrap();
}

#[test]
fn a_directory_that_cannot_be_created_is_named_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Store::open(&file.join("data"), Duration::ZERO).unwrap_err();
    let StoreError::NotWritable { directory: named, cause } = &error else { panic!("{error}") };
    assert_eq!(named, &file.join("data"));
    assert_eq!(error.to_string(), format!("the data directory {} cannot be written: {cause}", named.display()));
}

/// Even root cannot create files in `/proc`.
#[test]
fn an_unwritable_directory_is_named_with_the_reason() {
    let error = Store::open(std::path::Path::new("/proc/self/task"), Duration::ZERO).unwrap_err();
    assert!(matches!(error, StoreError::NotWritable { .. }), "{error}");
}
