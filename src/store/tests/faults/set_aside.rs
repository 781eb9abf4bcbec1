//! Stores that are set aside: damaged ones, and those of other versions.

use std::fs;
use std::path::PathBuf;

use super::damage::{check, check_after_damage, create_store_with_group, expected_contents, files, group, parts};
use crate::store::encoding::codec;
use crate::store::engine::Engine;
use crate::store::engine::slots::SlotStorage;
use crate::store::tests::{UnpackedContents, load, open, read};

#[test]
fn only_the_newest_damaged_stores_are_kept() {
    let directory = create_store_with_group();
    let old: Vec<PathBuf> = (1..=5).map(|seconds| directory.path().join(format!("set-aside-damaged-{seconds}"))).collect();
    let newer = directory.path().join("set-aside-newer-version-1");
    for path in old.iter().chain([&newer]) {
        fs::create_dir(path).unwrap();
    }
    fs::write(directory.path().join("store/conf"), "segment_size: none").unwrap();
    assert!(check_after_damage(directory.path()));
    assert_eq!(old.iter().map(|path| path.exists()).collect::<Vec<_>>(), [false, false, false, true, true]);
    assert!(newer.exists());
}

#[test]
fn a_store_of_a_newer_version_is_set_aside_intact() {
    let directory = create_store_with_group();
    fs::write(directory.path().join("store/format"), "meshkeep store format 4\n").unwrap();
    let before = files(&directory.path().join("store"));
    let (store, opened) = open(directory.path());
    let set_aside = opened.set_aside.unwrap();
    assert_eq!(set_aside.reason, "it has layout 4 of a newer version; this version reads layouts up to 3");
    assert!(set_aside.path.file_name().unwrap().to_str().unwrap().starts_with("set-aside-newer-version-"));
    let mut kept = files(&set_aside.path);
    kept.retain(|path, _| !path.starts_with("log"));
    assert_eq!(kept, before);
    assert_eq!(read(&store), UnpackedContents::default());
}

#[test]
fn a_newer_layout_is_recognized_without_the_format_file() {
    let directory = create_store_with_group();
    let engine = Engine::open(&directory.path().join("store")).unwrap();
    engine.put_into_default_tree(codec::LAYOUT_KEY, &codec::encode_layout(4)).unwrap();
    engine.sync().unwrap();
    drop(engine);
    fs::remove_file(directory.path().join("store/format")).unwrap();
    let before = parts(directory.path()).len();
    let set_aside = open(directory.path()).1.set_aside.unwrap();
    let engine = Engine::open(&set_aside.path).unwrap();
    let kept = engine.list_slots().unwrap().into_iter().filter(|slot| engine.get(*slot).unwrap().is_some());
    assert_eq!(kept.count(), before);
}

#[test]
fn a_lost_format_file_is_written_again() {
    let directory = create_store_with_group();
    fs::remove_file(directory.path().join("store/format")).unwrap();
    check(&load(directory.path()), &expected_contents(&group()));
    assert_eq!(fs::read_to_string(directory.path().join("store/format")).unwrap(), "meshkeep store format 3\n");
}
