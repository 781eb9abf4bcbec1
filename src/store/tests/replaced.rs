//! Replaced records in the log: the log keeps them until the history has them, and chunks never
//! contain them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{key, open, record};
use crate::model::{DeleteReason, Kind, ReplacedRecord, ReplacedRecordSink, ReplacedRecords, Sequence};
use crate::store::{Group, Store};

/// A history that only notes what it is told.
#[derive(Debug, Default)]
struct RecordingHistory {
    added: Mutex<Vec<(u64, ReplacedRecords)>>,
    synced: Mutex<u64>,
}

impl ReplacedRecordSink for RecordingHistory {
    fn add_replaced(&self, group: u64, replaced: &ReplacedRecords) {
        self.added.lock().unwrap().push((group, replaced.clone()));
    }

    fn confirm_synced(&self, group: u64) {
        *self.synced.lock().unwrap() = group;
    }

    fn request_seal(&self) {}

    fn report_full_disk(&self) {}
}

/// Returns a group with some replaced records after a sequence.
fn group(random: &mut StdRng, after: Sequence) -> Group {
    let last = Sequence(after.0 + random.random_range(1..9));
    let time = SystemTime::UNIX_EPOCH + Duration::from_micros(last.0 * 1_000_003);
    let mut replaced = ReplacedRecords { after, last, times: vec![(after.next(), time)], records: BTreeMap::new() };
    let mut group = Group { covered_sequence: Some(last), sequence_reserved: Some(last), ..Group::default() };
    for sequence in after.0 + 1..=last.0 {
        let key = key(Kind::STORED[random.random_range(0..2)], "paris", &random.random_range(0..20).to_string());
        let is_delete = random.random_ratio(1, 3);
        if random.random_ratio(3, 4) {
            let deleted = is_delete.then_some(DeleteReason::ClusterRemoved);
            let old = Arc::new(record(key.clone(), random.random_range(1..1_000), random.random_range(0..400)));
            replaced.records.insert(Sequence(sequence), ReplacedRecord { record: old, deleted });
        }
        group.records.insert(key.clone(), (!is_delete).then(|| Arc::new(record(key, sequence, 30))));
    }
    group.replaced = Some(replaced);
    group
}

/// Returns the union of ranges without gaps between them.
fn merged(ranges: impl IntoIterator<Item = ReplacedRecords>) -> Vec<ReplacedRecords> {
    let mut ranges = ranges.into_iter();
    let Some(mut all) = ranges.next() else { return Vec::new() };
    for mut newer in ranges {
        newer.merge_older(std::mem::take(&mut all));
        all = newer;
    }
    vec![all]
}

fn reopen(directory: &Path) -> (Store, Arc<RecordingHistory>) {
    let (store, opened) = open(directory);
    assert_eq!(opened.losses, Vec::<String>::new());
    let recovered = store.load().unwrap().replaced.decode_after(Sequence(0));
    let history = Arc::<RecordingHistory>::default();
    store.log().set_history(Arc::clone(&history) as Arc<dyn ReplacedRecordSink>, &recovered);
    (store, history)
}

fn added(history: &RecordingHistory) -> Vec<ReplacedRecords> {
    merged(history.added.lock().unwrap().iter().map(|(_, replaced)| replaced.clone()))
}

/// Random groups, folds, releases and kills. The log always has what was not released, and a start
/// reads the same state as without a history.
#[test]
fn replaced_records_survive_until_the_history_has_them() {
    for _ in 0..30 {
        let seed = rand::rng().random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let directory = tempfile::tempdir().unwrap();
        let (mut store, mut history) = reopen(directory.path());
        let (mut all, mut expected_records, mut head): (Vec<(u64, ReplacedRecords)>, BTreeMap<_, _>, _) =
            (Vec::new(), BTreeMap::new(), Sequence(0));
        let mut released = 0;
        for _ in 0..40 {
            let mut next = group(&mut random, head);
            head = next.covered_sequence.unwrap();
            store.log().append(&mut next);
            let mut merged_count = 1;
            all.push((next.number, next.replaced.clone().unwrap()));
            for (key, record) in &next.records {
                expected_records.insert(key.clone(), record.clone());
            }
            if random.random_ratio(1, 3) {
                let mut newer = group(&mut random, head);
                head = newer.covered_sequence.unwrap();
                store.log().append(&mut newer);
                all.push((newer.number, newer.replaced.clone().unwrap()));
                expected_records.extend(newer.records.clone());
                newer.merge_older(next);
                next = newer;
                merged_count = 2;
            }
            store.apply(&next).unwrap();
            assert_eq!(
                (*history.synced.lock().unwrap(), next.replaced.as_ref().map(|replaced| replaced.times.len())),
                (next.number, Some(merged_count))
            );
            if random.random_ratio(1, 4) {
                assert!(store.fold_within(Duration::from_secs(60)).unwrap());
            }
            if random.random_ratio(1, 6) {
                released = all[random.random_range(0..all.len())].0.max(released);
                store.log().release_groups(released);
            }
            if random.random_ratio(1, 6) {
                if random.random() {
                    store.close().unwrap();
                } else {
                    drop(store);
                }
                (store, history) = reopen(directory.path());
                let [recovered] = added(&history).try_into().unwrap_or_else(|none: Vec<_>| {
                    assert!(none.is_empty() && released == all.last().unwrap().0, "only released groups may be missing");
                    [ReplacedRecords::new(head, head)]
                });
                let needed = merged(all.iter().filter(|(number, _)| *number > released).map(|(_, replaced)| replaced.clone()));
                if let [needed] = &*needed {
                    let mut known = recovered.clone();
                    known.remove_up_to(needed.after);
                    assert_eq!((known.after, known.last, &known.records), (needed.after, needed.last, &needed.records));
                    assert!(needed.times.iter().all(|pair| recovered.times.contains(pair)));
                }
                released = 0;
                all = vec![(all.last().map_or(0, |(number, _)| *number), recovered)];
                let stored: BTreeMap<_, _> =
                    store.load().unwrap().records().into_iter().map(|record| (record.key.clone(), record)).collect();
                let expected = expected_records.iter().filter_map(|(key, record)| Some((key.clone(), (**record.as_ref()?).clone())));
                assert_eq!(stored, expected.collect::<BTreeMap<_, _>>());
            }
        }
    }
}

/// A range is not used if one of its records is missing: the history then has a gap instead of a
/// wrong answer.
#[test]
fn a_range_without_one_of_its_records_is_not_used() {
    let mut random = StdRng::seed_from_u64(7);
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = reopen(directory.path());
    let mut ranges = Vec::new();
    for number in 0..3 {
        let mut next = group(&mut random, Sequence(number * 100));
        let replaced = next.replaced.clone().unwrap();
        if number == 1 {
            // the range counts one record more than it has
            let records = replaced.records.keys().next().copied();
            let missing = records.and_then(|first| next.replaced.as_mut()?.records.remove(&first));
            assert!(missing.is_some());
            let mut changes = Group { replaced: Some(replaced.clone()), ..Group::default() }.changes();
            let first = *replaced.records.keys().next().unwrap();
            changes.remove(&[&b"h"[..], &first.0.to_be_bytes()].concat()[..]);
            store.log().append_changes(&changes);
        } else {
            store.log().append(&mut next);
            ranges.push(replaced);
        }
    }
    drop(store);
    let contents = open(directory.path()).0.load().unwrap();
    assert_eq!(contents.replaced.decode_after(Sequence(0)), ranges);
    let mut later = ranges[1].clone();
    later.remove_up_to(Sequence(201));
    assert_eq!(contents.replaced.decode_after(Sequence(201)), if later.last > Sequence(201) { vec![later] } else { Vec::new() });
}
