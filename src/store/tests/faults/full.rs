//! A log of which the engine takes nothing, and a store that finds room late.

use std::fs;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::model::{Kind, Record};
use crate::store::error::{EngineError, StoreError};
use crate::store::tests::fixture::copied;
use crate::store::tests::{key, load, open, record};
use crate::store::{Group, Store};

/// What one group adds to the log, in bytes.
const GROUP_BYTES: usize = 4 << 20;

/// A group that puts the same key anew, with bytes that no compression makes shorter.
fn group(random: &mut StdRng) -> Group {
    let mut value = vec![0; GROUP_BYTES];
    random.fill(&mut value[..]);
    let key = key(Kind::Node, "paris", "a");
    let record = Record { value: value.into(), ..record(key.clone(), 2, 0) };
    Group { records: [(key, Some(Arc::new(record)))].into(), ..Group::default() }
}

/// The log goes on for 256 MiB while the engine fails, then nothing more is stored and that is told; the first group after the engine is back makes room.
#[test]
fn a_log_that_the_engine_takes_nothing_of_ends_at_its_bound_and_goes_on_with_the_engine() {
    let (directory, mut random) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(1));
    let (store, _) = open(directory.path());
    store.apply(&group(&mut random)).unwrap();
    // an engine that has failed, and that cannot be opened
    store.inner().chunk_store = None;
    let (engine, away) = (directory.path().join("store"), directory.path().join("away"));
    fs::rename(&engine, &away).unwrap();
    let refused = (1..100).map(|count| (count, store.apply(&group(&mut random)))).find(|(_, outcome)| outcome.is_err());
    let Some((count, Err(StoreError::LogFull { .. }))) = refused else { panic!("{refused:?}") };
    // with the one before the engine went
    assert_eq!(count + 1, (256 << 20) / GROUP_BYTES);
    fs::rename(&away, &engine).unwrap();
    let last = group(&mut random);
    store.apply(&last).unwrap();
    drop(store);
    let records: Vec<Record> = last.records.into_values().flatten().map(|record| record.as_ref().clone()).collect();
    assert!(load(directory.path()).records == records, "the last group is what a start finds");
}

/// A start found no room for a store; when there is some, another process has put one there.
#[test]
fn a_store_that_is_there_when_there_is_room_at_last_is_not_written_to() {
    let directory = copied("0003-one-log");
    let before = load(directory.path());
    let (store, _) = Store::without_room(directory.path(), None);
    let refused = store.apply(&group(&mut StdRng::seed_from_u64(1)));
    assert!(matches!(refused, Err(StoreError::Engine { cause: EngineError::Replaced, .. })), "{refused:?}");
    drop(store);
    assert_eq!(load(directory.path()), before);
}
