//! Upgrades from older layouts: each step is run once, and again if it was broken off.

use std::fs;
use std::path::Path;

use super::fixture::{copied, held};
use super::{Loaded, load, open, read};
use crate::store::encoding::codec;
use crate::store::engine::Engine;
use crate::store::engine::format::{FORMAT, read_mark, write_number};
use crate::store::engine::slots::Slots as _;
use crate::store::error::EngineError;
use crate::store::inspect;
use crate::store::recovery::upgrade::{Upgrade, upgrade_from};

const OLDER: u64 = FORMAT - 1;

/// A store of today's layout with the number of the layout before it.
fn older() -> tempfile::TempDir {
    let directory = copied("0003-one-log");
    let engine = Engine::open(&directory.path().join("store")).unwrap();
    write_number(&engine, OLDER).unwrap();
    drop(engine);
    fs::write(directory.path().join("store/format"), format!("meshkeep store format {OLDER}\n")).unwrap();
    directory
}

fn upgraded(directory: &Path, upgrades: &[Upgrade]) -> (Result<bool, EngineError>, u64) {
    let engine = Engine::open(&directory.join("store")).unwrap();
    let outcome = upgrade_from(OLDER, &engine, upgrades);
    let number = read_mark(&engine).unwrap().unwrap();
    (outcome, number)
}

#[test]
fn an_upgraded_store_reads_back_whole() {
    let directory = older();
    let (outcome, number) = upgraded(directory.path(), &[(OLDER, |_| Ok(()))]);
    assert_eq!((outcome.unwrap(), number), (true, FORMAT));
    let (store, opened) = open(directory.path());
    assert_eq!((opened.set_aside, opened.created, opened.losses), (None, false, Vec::new()));
    drop(store);
    assert_eq!(load(directory.path()), held());
    assert_eq!(fs::read_to_string(directory.path().join("store/format")).unwrap(), "meshkeep store format 3\n");
}

/// The number of the layout changes last.
#[test]
fn a_step_that_fails_is_run_again_by_the_next_start() {
    let directory = older();
    let failing: Upgrade = (OLDER, |_| Err(EngineError::Damaged("it was broken off".to_owned())));
    let (outcome, number) = upgraded(directory.path(), &[failing]);
    assert!(outcome.is_err());
    assert_eq!(number, OLDER);
    let (outcome, number) = upgraded(directory.path(), &[(OLDER, |engine| engine.sync())]);
    assert_eq!((outcome.unwrap(), number), (true, FORMAT));
}

#[test]
fn an_older_store_without_a_step_is_set_aside_intact() {
    let directory = older();
    assert!(inspect(directory.path(), &|_| ()).unwrap_err().to_string().contains("it has layout 2"));
    assert_eq!(upgraded(directory.path(), &[]).1, OLDER);
    let (store, opened) = open(directory.path());
    let set_aside = opened.set_aside.unwrap();
    assert_eq!(set_aside.reason, "it has format 2 of an older version, which this version cannot read");
    assert!(set_aside.path.file_name().unwrap().to_str().unwrap().starts_with("set-aside-older-version-"));
    assert!(opened.created && set_aside.path.join("log").exists());
    assert_eq!(read(&store), Loaded::default());
    // with its number put right, everything is still there
    let engine = Engine::open(&set_aside.path).unwrap();
    engine.put_plain(codec::FORMAT_KEY, &codec::write_format(FORMAT)).unwrap();
    engine.sync().unwrap();
    drop(engine);
    let kept = tempfile::tempdir().unwrap();
    fs::rename(set_aside.path.join("log"), kept.path().join("log")).unwrap();
    fs::rename(&set_aside.path, kept.path().join("store")).unwrap();
    fs::write(kept.path().join("store/format"), "meshkeep store format 3\n").unwrap();
    assert_eq!(load(kept.path()), held());
}
