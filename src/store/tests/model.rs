//! Random groups and restarts, compared with plain maps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{UnpackedContents, cluster, cluster_record, cursor, key, load, open, read, record, scope, tombstone};
use crate::model::{
    ClusterName, ClusterRecord, Cursor, EntryKey, Epoch, EpochSpan, GapEnd, Kind, ObservationGap, Record, Scope, Sequence, SequenceRun,
    SourceStamp, Tombstone,
};
use crate::pack;
use crate::store::Group;

const CLUSTERS: [&str; 3] = ["eu", "eu-west", "paris"];

/// Expected content of the store.
#[derive(Clone, Default)]
pub(super) struct StoreModel {
    records: BTreeMap<EntryKey, Record>,
    cursors: BTreeMap<Scope, Cursor>,
    clusters: BTreeMap<ClusterName, ClusterRecord>,
    tombstones: BTreeMap<Sequence, Tombstone>,
    gaps: BTreeMap<Scope, Vec<ObservationGap>>,
    times: BTreeMap<Sequence, SequenceRun>,
    epochs: Vec<EpochSpan>,
    floor: Sequence,
    covered_sequence: Sequence,
    derivation_version: Option<u64>,
    reserved: Sequence,
    /// Last used sequence. Deletes do not free sequences.
    sequence: u64,
    /// True if more keys are deleted than added.
    pub(super) shrinking: bool,
}

impl StoreModel {
    pub(super) fn apply(&mut self, group: &Group) {
        apply_changes(&mut self.records, group.records.iter().map(|(key, record)| (key, record.as_deref())));
        apply_changes(&mut self.cursors, group.cursors.iter().map(|(key, cursor)| (key, cursor.as_ref())));
        apply_changes(&mut self.clusters, group.clusters.iter().map(|(key, record)| (key, record.as_ref())));
        apply_changes(&mut self.tombstones, group.tombstones.iter().map(|(key, tombstone)| (key, tombstone.as_ref())));
        let gaps = group.gaps.iter().map(|(scope, gaps)| (scope, gaps.as_ref().map(|gaps| gaps.to_vec())));
        apply_changes(&mut self.gaps, gaps.collect::<Vec<_>>().iter().map(|(scope, gaps)| (*scope, gaps.as_ref())));
        apply_changes(&mut self.times, group.times.iter().map(|(first, run)| (first, run.as_ref())));
        self.epochs = group.epochs.clone().unwrap_or_else(|| std::mem::take(&mut self.epochs));
        self.derivation_version = group.derivation_version.or(self.derivation_version);
        self.floor = self.floor.max(group.floor.unwrap_or_default());
        self.covered_sequence = self.covered_sequence.max(group.covered_sequence.unwrap_or_default());
        self.reserved = self.reserved.max(group.sequence_reserved.unwrap_or_default());
    }

    pub(super) fn loaded(&self) -> UnpackedContents {
        let mut cursors: Vec<_> = self.cursors.clone().into_iter().collect();
        cursors.sort_by_key(|(scope, _)| format!("{}/{}", scope.kind.base(), scope.cluster));
        let mut gaps: Vec<_> = self.gaps.clone().into_iter().collect();
        gaps.sort_by_key(|(scope, _)| format!("{}/{}", scope.kind.base(), scope.cluster));
        UnpackedContents {
            records: self.records.values().cloned().collect(),
            cursors,
            clusters: self.clusters.clone().into_iter().collect(),
            tombstones: self.tombstones.clone().into_iter().collect(),
            gaps,
            times: self.times.values().copied().collect(),
            floor: self.floor,
            epochs: self.epochs.clone(),
            covered_sequence: self.covered_sequence,
            derivation_version: self.derivation_version,
            sequence_reserved: self.reserved,
            damaged_count: 0,
        }
    }
}

fn apply_changes<'a, K: Ord + Clone + 'a, V: Clone + 'a>(map: &mut BTreeMap<K, V>, changes: impl Iterator<Item = (&'a K, Option<&'a V>)>) {
    for (key, value) in changes {
        match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
}

/// Returns an observation gap: a first list, a finished one, or one that still lasts.
fn gap(seed: u8, number: u64) -> ObservationGap {
    let time = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_micros(seconds * 1_000_003);
    ObservationGap {
        from: (!seed.is_multiple_of(3)).then(|| time(number)),
        first: Sequence(number * 10),
        end: (!seed.is_multiple_of(5)).then(|| GapEnd { time: time(number + 1), last: Sequence(number * 10 + u64::from(seed)) }),
    }
}

pub(super) fn random_group(random: &mut StdRng, model: &mut StoreModel, name_count: u32) -> Group {
    let mut group = Group::default();
    for _ in 0..random.random_range(0..name_count * 3) {
        let kind = Kind::STORED[random.random_range(0..Kind::STORED.len())];
        let key = key(
            kind,
            CLUSTERS[random.random_range(0..3)],
            &format!("{}{}", random.random_range(0..name_count), if kind == Kind::NodeIp { "#10.0.0.1" } else { "" }),
        );
        let length = if random.random_ratio(1, 50 * name_count) { 300_000 } else { random.random_range(0..300) };
        model.sequence += 1;
        let put =
            random.random_ratio(if model.shrinking { 1 } else { 3 }, 4).then(|| Arc::new(record(key.clone(), model.sequence, length)));
        group.records.insert(key, put);
    }
    // like a list, which adds many keys of one scope
    if random.random_ratio(1, 3) {
        let (kind, cluster) = (Kind::STORED[random.random_range(0..3)], CLUSTERS[random.random_range(0..3)]);
        let first = random.random_range(10..50);
        let mut listed = Vec::new();
        for number in first..first + random.random_range(1..12) {
            let key = key(kind, cluster, &format!("l{number}"));
            model.sequence += 1;
            let sequence = Sequence(model.sequence);
            let new = Record { create_sequence: sequence, last_sequence: sequence, ..record(key.clone(), model.sequence, 20) };
            listed.push(new.clone());
            group.records.insert(key, Some(Arc::new(new)));
        }
        if random.random() {
            group.chunks = pack::build(&listed);
        }
        // a newer revision of equal bytes, which the chunk does not have
        if random.random_ratio(1, 4) {
            let source = SourceStamp { held: true, ..listed[0].source };
            group.records.insert(listed[0].key.clone(), Some(Arc::new(Record { source, ..listed[0].clone() })));
        }
    }
    for _ in 0..random.random_range(0..4) {
        let sequence = Sequence(random.random_range(1..40));
        group.tombstones.insert(sequence, random.random_ratio(3, 4).then(|| tombstone(Kind::Ip, "10.0.0.1", sequence.0)));
    }
    for _ in 0..random.random_range(0..3) {
        let scope = scope(Kind::ALL[random.random_range(0..Kind::ALL.len())], CLUSTERS[random.random_range(0..3)]);
        let gaps = (1..random.random_range(1..4)).map(|number| gap(random.random(), number)).collect();
        group.gaps.insert(scope, random.random_ratio(3, 4).then_some(gaps));
        let first = Sequence(random.random_range(1..40));
        let from = SystemTime::UNIX_EPOCH + Duration::from_secs(random.random_range(0..1_000));
        let run = SequenceRun { first, from, to: from + Duration::from_secs(1) };
        group.times.insert(first, random.random_ratio(3, 4).then_some(run));
    }
    if random.random_ratio(1, 4) {
        let accepted_up_to = random.random::<bool>().then_some(Sequence(model.sequence));
        group.epochs = Some(vec![EpochSpan { epoch: Epoch(random.random()), start: Sequence(model.sequence), accepted_up_to }]);
        group.floor = Some(Sequence(model.sequence / 2).max(model.floor));
        group.covered_sequence = Some(Sequence(model.sequence));
        group.derivation_version = random.random::<bool>().then(|| random.random());
    }
    for _ in 0..random.random_range(0..3) {
        let scope = scope(Kind::ALL[random.random_range(0..Kind::ALL.len())], CLUSTERS[random.random_range(0..3)]);
        let revision = random.random_range(0..1000);
        group.cursors.insert(scope, random.random_ratio(3, 4).then(|| cursor(revision)));
    }
    if random.random_ratio(1, 4) {
        let seed = random.random_range(0..100);
        group.clusters.insert(cluster(CLUSTERS[random.random_range(0..3)]), random.random_ratio(3, 4).then(|| cluster_record(seed)));
    }
    group.sequence_reserved = Some(Sequence(model.sequence + 10));
    group
}

#[test]
fn random_groups_are_loaded_as_written() {
    for sequence in 0..60 {
        let seed = rand::rng().random();
        println!("sequence {sequence}: seed {seed}");
        run(&mut StdRng::seed_from_u64(seed));
    }
}

fn run(random: &mut StdRng) {
    let directory = tempfile::tempdir().unwrap();
    let mut model = StoreModel::default();
    let mut store = Some(open(directory.path()).0);
    for _ in 0..8 {
        let mut group = random_group(random, &mut model, 6);
        model.apply(&group);
        if random.random_ratio(1, 4) {
            let mut newer = random_group(random, &mut model, 6);
            model.apply(&newer);
            newer.merge_older(group);
            group = newer;
        }
        let open_store = store.take().unwrap();
        open_store.apply(&group).unwrap();
        store = Some(match random.random_range(0..4) {
            0 => {
                open_store.close().unwrap();
                open(directory.path()).0
            }
            1 => {
                drop(open_store);
                open(directory.path()).0
            }
            _ => open_store,
        });
        if random.random_ratio(1, 3) {
            assert_eq!(store.as_ref().map(read).unwrap(), model.loaded());
        }
    }
    drop(store);
    assert_eq!(load(directory.path()), model.loaded());
}

#[test]
fn the_newer_group_overrides_the_older_one() {
    let (a, b) = (key(Kind::Node, "eu", "a"), key(Kind::Node, "eu", "b"));
    let newer_record = Arc::new(record(a.clone(), 2, 1));
    let older_record = Arc::new(record(b.clone(), 1, 1));
    let mut newer = Group {
        records: BTreeMap::from([(a.clone(), Some(newer_record.clone()))]),
        cursors: BTreeMap::from([(scope(Kind::Node, "eu"), None)]),
        sequence_reserved: Some(Sequence(5)),
        ..Group::default()
    };
    newer.merge_older(Group {
        records: BTreeMap::from([(a.clone(), None), (b.clone(), Some(older_record.clone()))]),
        cursors: BTreeMap::from([(scope(Kind::Node, "eu"), Some(cursor(1)))]),
        sequence_reserved: Some(Sequence(3)),
        ..Group::default()
    });
    let merged = Group {
        records: BTreeMap::from([(a, Some(newer_record)), (b, Some(older_record))]),
        cursors: BTreeMap::from([(scope(Kind::Node, "eu"), None)]),
        sequence_reserved: Some(Sequence(5)),
        ..Group::default()
    };
    assert_eq!(newer, merged);
    assert_eq!(newer.len(), 4);
    assert!(Group::default().is_empty());
}
