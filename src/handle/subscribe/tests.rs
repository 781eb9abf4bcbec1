//! Subscribers of a mirror with random changes. At every `synced`, and whenever a subscriber is
//! current, its copy must equal the matching part of the view.

mod following;
mod lost_tail;
mod small_batches;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::commit::MirrorSnapshot;
use crate::feed::{Feed, Retention};
use crate::handle::{SliceLimit, WorkSlice};
use crate::model::{
    Change, ClusterName, Command, DeleteReason, Epoch, EpochSpan, FindingKind, FindingObject, Identity, LabelSet, Phase, Scope, SourceStamp,
};
use crate::view::View;

impl Subscription {
    /// Returns the next part of what the subscriber is missing. If it is empty and
    /// [`Subscription::is_current`], wait for the signal.
    pub fn next(&mut self, reading: &Reading) -> Vec<StreamEvent> {
        self.next_up_to(reading, SCANNED_KEYS_MAX)
    }

    /// Returns the next part with at most this number of upserts, patches and deletes; at least 1.
    pub fn next_up_to(&mut self, reading: &Reading, change_count_max: usize) -> Vec<StreamEvent> {
        let bounds = BatchLimits { changes: change_count_max, bytes: usize::MAX };
        self.encode_next(reading, bounds, |items, _| items.collect::<Vec<StreamEvent>>()).into_iter().flatten().collect()
    }
}

/// A mirror that is changed by random commands.
struct ChangingMirror {
    published: MirrorSnapshot,
    revision: i64,
}

fn cluster(index: usize) -> ClusterName {
    ClusterName::parse(["paris", "tokyo"][index]).unwrap()
}

fn key(cluster_index: usize, id: u32) -> EntryKey {
    EntryKey::new(Kind::Identity, cluster(cluster_index), id.to_string())
}

fn identity(id: u32, app: &str) -> Arc<Object> {
    let labels: LabelSet = [("k8s:app".to_owned(), app.to_owned())].into();
    Arc::new(Object::Identity(Identity { id, labels: labels.into() }))
}

impl ChangingMirror {
    fn new(tombstone_count_max: usize) -> Self {
        let retention = Retention { age_max: Duration::from_secs(3600), count_max: tombstone_count_max };
        let start = Sequence(1_000);
        Self {
            published: MirrorSnapshot {
                view: View::starting_at(start),
                feed: Feed::starting_at(start, retention),
                epoch: Epoch(7),
                earlier_runs: Arc::default(),
            },
            revision: 1,
        }
    }

    fn apply(&mut self, command: Command) {
        let now = SystemTime::UNIX_EPOCH;
        for announcement in self.published.view.apply(command, now).announcements {
            self.published.feed.announce(announcement, now);
        }
    }

    fn put(&mut self, cluster_index: usize, id: u32, app: &str) {
        self.revision += 1;
        let source = SourceStamp { mod_revision: Revision(self.revision), ..SourceStamp::default() };
        let decoded = if app == "bad" { Err("not usable".into()) } else { Ok(identity(id, app)) };
        let change = Change::Put { key: key(cluster_index, id), value: app.as_bytes().into(), decoded, source };
        let scope = Scope { cluster: cluster(cluster_index), kind: Kind::Identity };
        self.apply(Command::Apply { scope, changes: vec![change], cursor: None });
    }

    fn delete(&mut self, cluster_index: usize, id: u32) {
        let scope = Scope { cluster: cluster(cluster_index), kind: Kind::Identity };
        self.apply(Command::Apply { scope, changes: vec![Change::Delete { key: key(cluster_index, id) }], cursor: None });
    }

    /// Sets a finding. A finding with subject 0 or 1 concerns that cluster. One with subject 2
    /// concerns both clusters if the count is 1, otherwise only cluster 1. A count of zero resolves
    /// the finding.
    fn set_finding(&mut self, subject: usize, count: u64) {
        let names = match subject {
            0 | 1 => vec![cluster(subject)],
            _ if count == 1 => vec![cluster(0), cluster(1)],
            _ => vec![cluster(1)],
        };
        let finding = FindingObject::new(FindingKind::HeldEntries, &subject.to_string(), &names, "");
        let finding = FindingObject { count: Some(count), ..finding };
        let key = if subject > 1 { EntryKey::of_problem("heldEntries", None, "2") } else { finding.stream_key() };
        self.apply(Command::Findings(vec![(key, (count > 0).then(|| Arc::new(Object::Finding(finding.into()))))]));
    }

    fn reading(&self) -> Reading {
        Reading::new(Arc::new(self.published.clone()), super::super::ClusterStatuses::default())
    }

    fn mirrored_objects(&self, filter: &Filter) -> BTreeMap<EntryKey, Arc<Object>> {
        let mut records = Vec::new();
        let reading = self.reading();
        reading.scan(&reading.plan_list(Kind::Identity, filter), None, &mut WorkSlice::begin(SliceLimit::Rows(u64::MAX)), |record| {
            records.extend(record.object.clone().map(|object| (record.key.clone(), object)));
            true
        });
        let own_objects = self.published.view.own_objects_from(&EntryKey::lowest_of(Kind::Cluster));
        let own_objects =
            own_objects.filter(|(key, object)| filter.matches(key, object)).map(|(key, object)| (key.clone(), Arc::clone(object)));
        records.into_iter().chain(own_objects).collect()
    }
}

/// A subscriber that builds its copy from the stream alone and reconnects from its last id.
struct TestSubscriber {
    filter: Filter,
    subscription: Subscription,
    copy: BTreeMap<EntryKey, Arc<Object>>,
    last_id: Option<ReaderPosition>,
    resets: Vec<ResetReason>,
}

impl TestSubscriber {
    fn new(filter: Filter, reading: &Reading) -> Self {
        let subscription = Subscription::new(filter.clone(), &StreamStart::Snapshot, reading);
        Self { filter, subscription, copy: BTreeMap::new(), last_id: None, resets: Vec::new() }
    }

    fn reconnect(&mut self, reading: &Reading) {
        let start = self.last_id.map_or(StreamStart::Snapshot, |position| StreamStart::After(Some(position)));
        self.subscription = Subscription::new(self.filter.clone(), &start, reading);
    }

    /// Reads the next piece. Returns whether the subscriber is current.
    fn read_piece(&mut self, reading: &Reading) -> bool {
        for item in self.subscription.next(reading) {
            self.apply(item);
        }
        self.subscription.is_current(reading)
    }

    fn apply(&mut self, item: StreamEvent) {
        match item {
            StreamEvent::Reset(reason) => {
                self.copy.clear();
                self.last_id = None;
                self.resets.push(reason);
            }
            StreamEvent::Upsert { key, object, position, .. } => {
                assert!(self.filter.matches(&key, &object), "an upsert must pass the filter");
                self.copy.insert(key, object);
                self.advance(position);
            }
            StreamEvent::Delete { key, position, .. } => {
                self.copy.remove(&key);
                self.advance(position);
            }
            StreamEvent::Patch { .. } => panic!("the subscriber did not ask for patches"),
            StreamEvent::Synced { position, .. } => self.advance(Some(position.into())),
        }
    }

    fn advance(&mut self, position: Option<ReaderPosition>) {
        if let Some(ReaderPosition { position, .. }) = position {
            let same_epoch = self.last_id.map(|last| last.position).filter(|last| last.epoch == position.epoch);
            assert!(same_epoch.is_none_or(|last| last.sequence <= position.sequence), "positions must not go back");
        }
        if position.is_some() {
            self.last_id = position;
        }
    }

    fn catch_up(&mut self, reading: &Reading) {
        for _ in 0..1_000 {
            if self.read_piece(reading) {
                return;
            }
        }
        panic!("the subscriber does not catch up");
    }
}

fn filters() -> Vec<Filter> {
    let selector = |text| Some(super::super::LabelSelector::parse(text).unwrap());
    vec![
        Filter::default(),
        Filter { clusters: vec![cluster(1)], ..Filter::default() },
        Filter { kinds: vec![Kind::Cluster], ..Filter::default() },
        Filter { labels: selector("app=a"), ..Filter::default() },
        Filter { kinds: vec![Kind::Problem], ..Filter::default() },
        Filter { kinds: vec![Kind::Identity, Kind::Problem], clusters: vec![cluster(0)], ..Filter::default() },
        Filter { labels: selector("app!=a"), clusters: vec![cluster(0)], ..Filter::default() },
    ]
}

fn random_change(mirror: &mut ChangingMirror, random: &mut StdRng) {
    let (cluster_index, id) = (random.random_range(0..2), random.random_range(1..30));
    match random.random_range(0..10) {
        0..=5 => mirror.put(cluster_index, id, ["a", "b", "c", "bad"][random.random_range(0..4)]),
        6..=8 => mirror.delete(cluster_index, id),
        _ if random.random_ratio(1, 2) => mirror.set_finding(random.random_range(0..3), random.random_range(0..3)),
        _ if random.random_ratio(1, 10) => {
            mirror.apply(Command::Remove { cluster: cluster(cluster_index), reason: DeleteReason::ClusterRemoved });
        }
        _ => {
            let phase = Phase::ALL[random.random_range(0..3)];
            mirror.apply(Command::Phase { cluster: cluster(cluster_index), phase, cause: 0 });
        }
    }
}

#[test]
fn every_copy_becomes_equal_to_the_mirror() {
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut mirror = ChangingMirror::new(if seed % 3 == 0 { 2 } else { 1_000 });
        let mut readers: Vec<TestSubscriber> = filters().into_iter().map(|filter| TestSubscriber::new(filter, &mirror.reading())).collect();
        for _ in 0..60 {
            for _ in 0..random.random_range(0..8) {
                random_change(&mut mirror, &mut random);
            }
            let reading = mirror.reading();
            for reader in &mut readers {
                match random.random_range(0..6) {
                    0 => reader.reconnect(&reading),
                    1 => {}
                    2 => {
                        reader.read_piece(&reading);
                    }
                    _ => reader.catch_up(&reading),
                }
            }
        }
        let reading = mirror.reading();
        for reader in &mut readers {
            reader.catch_up(&reading);
            assert_eq!(reader.copy, mirror.mirrored_objects(&reader.filter), "seed {seed}, filter {:?}", reader.filter);
        }
    }
}

#[test]
fn an_unservable_position_causes_a_reset_with_its_reason() {
    let mut mirror = ChangingMirror::new(1);
    for id in 1..5 {
        mirror.put(0, id, "a");
    }
    let early = mirror.reading().position();
    for id in 1..4 {
        mirror.delete(0, id);
    }
    let head = mirror.reading().position();
    let cases = [
        ("nonsense".to_owned(), ResetReason::Malformed),
        (Position { epoch: Epoch(8), ..head }.to_string(), ResetReason::ForeignEpoch),
        (Position { sequence: head.sequence.next(), ..head }.to_string(), ResetReason::RolledBack),
        (early.to_string(), ResetReason::Expired),
    ];
    for (text, reason) in cases {
        let items = Subscription::new(Filter::default(), &StreamStart::After(text.parse().ok()), &mirror.reading()).next(&mirror.reading());
        assert_eq!(items.first(), Some(&StreamEvent::Reset(reason)), "{text}");
        assert_eq!(
            Subscription::check_start(&StreamStart::After(text.parse().ok()), &Filter::default(), &mirror.reading()),
            Err(reason),
            "{text}"
        );
    }
    // a start computes its findings again, and cannot report those that were resolved before
    let span = EpochSpan { epoch: Epoch(6), start: Sequence(0), accepted_up_to: Some(head.sequence) };
    mirror.published.earlier_runs = [span].into();
    let earlier = StreamStart::After(Some(Position { epoch: Epoch(6), ..head }.into()));
    let problems = Filter { kinds: vec![Kind::Node, Kind::Problem], ..Filter::default() };
    assert_eq!(Subscription::check_start(&earlier, &problems, &mirror.reading()), Err(ResetReason::ForeignEpoch));
    assert_eq!(Subscription::check_start(&earlier, &Filter::default(), &mirror.reading()), Ok(()));
    let items = Subscription::new(Filter::default(), &StreamStart::After(Some(head.into())), &mirror.reading()).next(&mirror.reading());
    assert_eq!(items, [StreamEvent::Synced { mode: SyncMode::Replay, count: 0, position: head }]);
}

#[test]
fn entering_and_leaving_a_filter_are_an_upsert_and_a_delete() {
    let mut mirror = ChangingMirror::new(10);
    let filter = filters().remove(3);
    let mut subscription = Subscription::new(filter, &StreamStart::Now, &mirror.reading());
    subscription.next(&mirror.reading());
    mirror.put(0, 1, "b");
    mirror.put(0, 1, "a");
    mirror.put(0, 1, "bad");
    mirror.put(0, 1, "b");
    mirror.put(0, 1, "a");
    mirror.delete(0, 1);
    let reported: Vec<(Option<DeleteCause>, u64)> = subscription
        .next(&mirror.reading())
        .iter()
        .map(|item| match item {
            StreamEvent::Upsert { position: Some(position), .. } => (None, position.position.sequence.0),
            StreamEvent::Delete { reason, position: Some(position), .. } => (Some(*reason), position.position.sequence.0),
            other => panic!("unexpected {other:?}"),
        })
        .collect();
    let (left, deleted) = (Some(DeleteCause::LeftFilter), Some(DeleteCause::Deleted(DeleteReason::Deleted)));
    assert_eq!(reported, [(None, 1_002), (left, 1_004), (None, 1_005), (deleted, 1_006)]);
}

#[test]
fn events_inside_a_snapshot_have_no_position() {
    let mut mirror = ChangingMirror::new(10);
    mirror.put(0, 1, "a");
    let mut subscription = Subscription::new(Filter::default(), &StreamStart::Snapshot, &mirror.reading());
    let mut items = subscription.next(&mirror.reading());
    assert_eq!(subscription.bookmark(&mirror.reading()), None);
    mirror.put(0, 2, "a");
    mirror.delete(0, 1);
    items.extend(subscription.next(&mirror.reading()));
    let head = mirror.reading().position();
    let sequence = |number: u64| Sequence(1_000 + number);
    let upsert = |id: u32, change: i64| StreamEvent::Upsert {
        key: key(0, id),
        object: identity(id, "a"),
        revision: Some(Revision(change)),
        sequence: sequence(change.unsigned_abs() - 1),
        position: None,
    };
    let (reason, sequence) = (DeleteCause::Deleted(DeleteReason::Deleted), sequence(3));
    let delete = StreamEvent::Delete { key: key(0, 1), reason, sequence, position: None };
    let synced = StreamEvent::Synced { mode: SyncMode::Snapshot, count: 3, position: head };
    assert_eq!(items, [StreamEvent::Reset(ResetReason::Initial), upsert(1, 2), upsert(2, 3), delete, synced]);
    assert_eq!(subscription.bookmark(&mirror.reading()), Some(head));
}

/// Enough changes for several threads and for more than one call.
#[test]
fn changes_have_the_same_order_in_one_call_and_one_by_one() {
    let mut mirror = ChangingMirror::new(1_000);
    let count = u32::try_from(SCANNED_KEYS_MAX * 3 / 2).unwrap();
    for id in 0..count {
        mirror.put(id as usize % 2, id, if id % 3 == 0 { "a" } else { "b" });
    }
    let start = StreamStart::After(Some(mirror.reading().position().into()));
    for id in (0..count).filter(|id| id % 5 > 0) {
        let cluster_index = id as usize % 2;
        if id % 50 == 1 { mirror.delete(cluster_index, id) } else { mirror.put(cluster_index, id, "c") }
    }
    let reading = mirror.reading();
    for (start, filter) in
        [StreamStart::Snapshot, start].into_iter().flat_map(|start| filters().into_iter().map(move |filter| (start.clone(), filter)))
    {
        let all = |change_count_max| {
            let mut reader = Subscription::new(filter.clone(), &start, &reading);
            let mut items = Vec::new();
            while !reader.is_current(&reading) {
                items.extend(reader.next_up_to(&reading, change_count_max));
            }
            items
        };
        // no thread is started for so few changes
        let one_by_one = all(100);
        assert!(filter != Filter::default() || one_by_one.len() > SCANNED_KEYS_MAX, "{start:?}");
        assert_eq!(all(SCANNED_KEYS_MAX), one_by_one, "{start:?}, {filter:?}");
        // a call ends with the event that reaches its limit of bytes, on each thread that encodes
        let mut reader = Subscription::new(filter.clone(), &start, &reading);
        let (mut items, mut bytes, mut calls) = (Vec::new(), 1, 0);
        while !reader.is_current(&reading) {
            let bounds = BatchLimits { changes: SCANNED_KEYS_MAX, bytes };
            let reported =
                reader.encode_next(&reading, bounds, |items, count| items.inspect(|_| count.add(10)).collect::<Vec<StreamEvent>>());
            let reported: Vec<StreamEvent> = reported.into_iter().flatten().collect();
            assert!(reported.len() <= bytes / 10 + 6, "{} items for {bytes} bytes", reported.len());
            items.extend(reported);
            (bytes, calls) = ([1, 5_000, 30_000][calls % 3], calls + 1);
        }
        assert_eq!(items, one_by_one, "{start:?}, {filter:?}");
    }
}
