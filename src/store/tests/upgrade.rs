//! Upgrades from older layouts: each step is run once, and again if it was interrupted.

use std::fs;
use std::path::Path;

use super::fixture::{copy_fixture, fixture_contents};
use super::{UnpackedContents, load, open, read};
use crate::store::encoding::codec;
use crate::store::engine::Engine;
use crate::store::engine::layout::{LAYOUT, read_layout, write_layout};
use crate::store::engine::slots::SlotStorage as _;
use crate::store::error::EngineError;
use crate::store::inspect;
use crate::store::recovery::upgrade::{Upgrade, upgrade_from};

const OLDER: u64 = LAYOUT - 1;

/// Returns a store of the current layout with the number of the previous one.
fn create_older_store() -> tempfile::TempDir {
    let directory = copy_fixture("0003-one-log");
    let engine = Engine::open(&directory.path().join("store")).unwrap();
    write_layout(&engine, OLDER).unwrap();
    drop(engine);
    fs::write(directory.path().join("store/format"), format!("meshkeep store format {OLDER}\n")).unwrap();
    directory
}

fn run_upgrade(directory: &Path, upgrades: &[Upgrade]) -> (Result<bool, EngineError>, u64) {
    let engine = Engine::open(&directory.join("store")).unwrap();
    let outcome = upgrade_from(OLDER, &engine, upgrades);
    let number = read_layout(&engine).unwrap().unwrap();
    (outcome, number)
}

#[test]
fn an_upgraded_store_is_read_completely() {
    let directory = create_older_store();
    let (outcome, number) = run_upgrade(directory.path(), &[(OLDER, |_| Ok(()))]);
    assert_eq!((outcome.unwrap(), number), (true, LAYOUT));
    let (store, opened) = open(directory.path());
    assert_eq!((opened.set_aside, opened.created, opened.losses), (None, false, Vec::new()));
    drop(store);
    assert_eq!(load(directory.path()), fixture_contents());
    assert_eq!(fs::read_to_string(directory.path().join("store/format")).unwrap(), "meshkeep store format 3\n");
}

/// The number of the layout is written last.
#[test]
fn a_step_that_fails_is_run_again_by_the_next_start() {
    let directory = create_older_store();
    let failing: Upgrade = (OLDER, |_| Err(EngineError::Damaged("it was interrupted".to_owned())));
    let (outcome, number) = run_upgrade(directory.path(), &[failing]);
    assert!(outcome.is_err());
    assert_eq!(number, OLDER);
    let (outcome, number) = run_upgrade(directory.path(), &[(OLDER, |engine| engine.sync())]);
    assert_eq!((outcome.unwrap(), number), (true, LAYOUT));
}

#[test]
fn an_older_store_without_a_step_is_set_aside_intact() {
    let directory = create_older_store();
    assert!(inspect(directory.path(), &|_| ()).unwrap_err().to_string().contains("it has layout 2"));
    assert_eq!(run_upgrade(directory.path(), &[]).1, OLDER);
    let (store, opened) = open(directory.path());
    let set_aside = opened.set_aside.unwrap();
    assert_eq!(set_aside.reason, "it has layout 2 of an older version, which this version cannot read");
    assert!(set_aside.path.file_name().unwrap().to_str().unwrap().starts_with("set-aside-older-version-"));
    assert!(opened.created && set_aside.path.join("log").exists());
    assert_eq!(read(&store), UnpackedContents::default());
    // with the correct number of the layout, the whole content can be read
    let engine = Engine::open(&set_aside.path).unwrap();
    engine.put_into_default_tree(codec::LAYOUT_KEY, &codec::encode_layout(LAYOUT)).unwrap();
    engine.sync().unwrap();
    drop(engine);
    let kept = tempfile::tempdir().unwrap();
    fs::rename(set_aside.path.join("log"), kept.path().join("log")).unwrap();
    fs::rename(&set_aside.path, kept.path().join("store")).unwrap();
    fs::write(kept.path().join("store/format"), "meshkeep store format 3\n").unwrap();
    assert_eq!(load(kept.path()), fixture_contents());
}
