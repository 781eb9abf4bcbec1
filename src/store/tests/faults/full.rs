//! A log that reaches its size limit while the engine fails, and a store that is created late.

use std::fs;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::model::{Kind, Record};
use crate::store::error::{EngineError, StoreError};
use crate::store::tests::fixture::copy_fixture;
use crate::store::tests::{key, load, open, record};
use crate::store::{Group, Store};

/// Bytes that each group adds to the log.
const GROUP_BYTES: usize = 4 << 20;

/// Returns a group that puts the same key again, with bytes that cannot be compressed.
fn group(random: &mut StdRng) -> Group {
    let mut value = vec![0; GROUP_BYTES];
    random.fill(&mut value[..]);
    let key = key(Kind::Node, "paris", "a");
    let record = Record { value: value.into(), ..record(key.clone(), 2, 0) };
    Group { records: [(key, Some(Arc::new(record)))].into(), ..Group::default() }
}

/// While the engine fails, the log grows to 256 MiB; then groups are refused. The first group after
/// the engine works again makes space.
#[test]
fn the_log_grows_to_its_limit_while_the_engine_fails() {
    let (directory, mut random) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(1));
    let (store, _) = open(directory.path());
    store.apply(&group(&mut random)).unwrap();
    // an engine that failed and cannot be reopened
    store.inner().chunk_store = None;
    let (engine, away) = (directory.path().join("store"), directory.path().join("away"));
    fs::rename(&engine, &away).unwrap();
    let refused = (1..100).map(|count| (count, store.apply(&group(&mut random)))).find(|(_, outcome)| outcome.is_err());
    let Some((count, Err(StoreError::LogFull { .. }))) = refused else { panic!("{refused:?}") };
    // including the group before the failure
    assert_eq!(count + 1, (256 << 20) / GROUP_BYTES);
    fs::rename(&away, &engine).unwrap();
    let last = group(&mut random);
    store.apply(&last).unwrap();
    drop(store);
    let records: Vec<Record> = last.records.into_values().flatten().map(|record| record.as_ref().clone()).collect();
    assert!(load(directory.path()).records == records, "a start does not find the last group");
}

/// A start had no space for a store, and another process has created one in the meantime.
#[test]
fn a_store_that_another_process_has_created_is_not_written() {
    let directory = copy_fixture("0003-one-log");
    let before = load(directory.path());
    let (store, _) = Store::new_without_space(directory.path(), None);
    let refused = store.apply(&group(&mut StdRng::seed_from_u64(1)));
    assert!(matches!(refused, Err(StoreError::Engine { cause: EngineError::Replaced, .. })), "{refused:?}");
    drop(store);
    assert_eq!(load(directory.path()), before);
}
