//! Foreign entries in the data directory do not stop a start, and are never followed, overwritten
//! or waited for.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, Mode, mkfifoat};

use super::damage::{create_store_with_group, group};
use crate::store::directory::foreign::open_file;
use crate::store::tests::{UnpackedContents, load, open, read};
use crate::store::{Store, StoreError, inspect};

fn fifo(path: &Path) {
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).unwrap();
}

/// A file outside the data directory, which must not change.
struct OutsideFile {
    directory: tempfile::TempDir,
    text: Vec<u8>,
}

impl OutsideFile {
    fn new(text: &[u8]) -> Self {
        let outside = Self { directory: tempfile::tempdir().unwrap(), text: text.to_vec() };
        fs::write(outside.directory.path().join("file"), text).unwrap();
        outside
    }

    /// Replaces an entry by a link to the file.
    fn link_at(&self, path: &Path) {
        drop(fs::remove_file(path));
        symlink(self.directory.path().join("file"), path).unwrap();
    }

    fn assert_untouched(&self) {
        let names: Vec<_> = fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["file"]);
        assert!(fs::read(self.directory.path().join("file")).unwrap() == self.text, "something was written through the link");
    }
}

#[test]
fn other_files_in_the_log_directory_are_ignored() {
    let directory = create_store_with_group();
    let log = directory.path().join("log");
    let newest: u64 = fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).max().unwrap();
    for name in ["09", "+9", "18446744073709551615", "18446744073709551616", "1000000000000000", "x", "-1", " 9"] {
        fs::write(log.join(name), "not a log").unwrap();
    }
    let outside = OutsideFile::new(b"not a log");
    // with the numbers of the next files, and far above them
    fs::create_dir(log.join((newest + 1).to_string())).unwrap();
    outside.link_at(&log.join((newest + 2).to_string()));
    fifo(&log.join((newest + 3).to_string()));
    fs::create_dir(log.join("999999999999999")).unwrap();
    let names = |directory: &Path| {
        let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name.parse() != Ok(newest));
        names.sort();
        names
    };
    let before = names(&log);
    let inspection = inspect(directory.path(), &|_| ()).unwrap();
    assert!(inspection.losses.is_empty(), "{:?}", inspection.losses);
    let (store, opened) = open(directory.path());
    assert_eq!((opened.set_aside, opened.losses), (None, Vec::new()));
    assert_eq!(read(&store).records.len(), 400);
    store.apply(&group()).unwrap();
    drop(store);
    let after = names(&log);
    assert!(before.iter().all(|name| after.contains(name)), "{before:?}, then {after:?}");
    assert!(after.contains(&(newest + 4).to_string()), "the log continues with the first number that is not used: {after:?}");
    assert_eq!(load(directory.path()).records.len(), 400);
    outside.assert_untouched();
}

/// After a foreign file with the highest possible number, the log must still find numbers for new
/// files.
#[test]
fn a_file_with_the_highest_number_does_not_end_the_log() {
    let directory = create_store_with_group();
    fs::write(directory.path().join("log/999999999999999"), "noise").unwrap();
    for _ in 0..2 {
        let (store, opened) = open(directory.path());
        assert!(opened.losses.is_empty(), "{:?}", opened.losses);
        store.apply(&group()).unwrap();
        drop(store);
        fs::write(directory.path().join("log/999999999999999"), "noise").unwrap();
    }
    // the same for a new log
    fs::remove_dir_all(directory.path().join("log")).unwrap();
    fs::create_dir(directory.path().join("log")).unwrap();
    fs::write(directory.path().join("log/999999999999999"), "noise").unwrap();
    drop(open(directory.path()));
    let (_, opened) = open(directory.path());
    assert!(opened.losses.is_empty(), "{:?}", opened.losses);
}

#[test]
fn a_foreign_lock_file_is_refused_and_named() {
    let outside = OutsideFile::new(b"of somebody else");
    type PlaceEntry<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, PlaceEntry<'_>); 3] = [
        ("a symbolic link", &|path| outside.link_at(path)),
        ("a FIFO", &|path| fifo(path)),
        ("a directory", &|path| fs::create_dir(path).unwrap()),
    ];
    for (found, put) in cases {
        let directory = create_store_with_group();
        let lock = directory.path().join("lock");
        fs::remove_file(&lock).unwrap();
        put(&lock);
        for error in [
            Store::open(directory.path(), crate::store::tests::Duration::ZERO).unwrap_err(),
            inspect(directory.path(), &|_| ()).unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
            let expected = format!("{} is {found}, which meshkeep does not follow or overwrite: remove it", lock.display());
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
        outside.assert_untouched();
    }
}

#[test]
fn foreign_links_and_fifos_are_set_aside_and_never_followed() {
    for name in
        ["store/db", "store/conf", "store/format", "store/synced", "store/snap.0000000000000001", "store", "log", "probe", "reserve"]
    {
        for is_link in [true, false] {
            let directory = create_store_with_group();
            let path = directory.path().join(name);
            // empty if the entry is a directory or does not exist
            let whole = fs::read(&path).unwrap_or_default();
            let outside = OutsideFile::new(&whole);
            if path.is_dir() {
                fs::rename(&path, directory.path().join("was")).unwrap();
            }
            if is_link {
                outside.link_at(&path);
            } else {
                drop(fs::remove_file(&path));
                fifo(&path);
            }
            let inspected = inspect(directory.path(), &|_| ());
            let is_noticed = !["probe", "reserve"].contains(&name);
            assert_eq!(inspected.is_ok_and(|inspection| inspection.losses.is_empty()), !is_noticed, "{name}");
            let (store, opened) = open(directory.path());
            outside.assert_untouched();
            let loses_all = name.starts_with("store");
            assert_eq!(opened.set_aside.is_some(), loses_all, "{name}");
            if let Some(set_aside) = opened.set_aside {
                let found = if is_link { "a symbolic link" } else { "a FIFO" };
                assert_eq!(set_aside.reason, format!("{} is {found}, which meshkeep does not write there", path.display()));
            }
            assert_eq!(opened.losses.is_empty(), name != "log", "{name}: {:?}", opened.losses);
            assert_eq!(read(&store).records.len(), if loses_all { 0 } else { 400 }, "{name}");
            // the store works
            store.apply(&group()).unwrap();
            drop(store);
            let (store, opened) = open(directory.path());
            assert_eq!((opened.set_aside, opened.losses), (None, Vec::new()), "{name}");
            assert_ne!(read(&store), UnpackedContents::default());
            outside.assert_untouched();
        }
    }
}

#[test]
fn a_file_is_not_opened_through_a_link() {
    let (directory, outside) = (tempfile::tempdir().unwrap(), OutsideFile::new(b"kept"));
    let (file, link) = (directory.path().join("file"), directory.path().join("link"));
    fs::write(&file, b"own").unwrap();
    outside.link_at(&link);
    let mut options = fs::OpenOptions::new();
    options.read(true);
    assert!(open_file(&file, &options).is_ok() && open_file(&link, &options).is_err());
}
