//! Subscribers that are suspended after every piece and resumed, as in `/v1/changes`, and
//! subscribers that accept patches.

use super::*;
use crate::model::{Backend, Port, Service};

/// A subscriber that keeps only its copy and its progress between two pieces.
struct PagingReader {
    filter: Filter,
    copy: BTreeMap<EntryKey, Arc<Object>>,
    start: StreamStart,
    resume_point: Option<ResumePoint>,
}

impl PagingReader {
    fn new(filter: Filter) -> Self {
        Self { filter, copy: BTreeMap::new(), start: StreamStart::Snapshot, resume_point: None }
    }

    /// Reads one piece. Returns whether the subscriber is current.
    fn poll(&mut self, reading: &Reading, limit: usize) -> bool {
        let mut subscription = match &self.resume_point {
            Some(resume_point) => Subscription::resume(self.filter.clone(), resume_point, reading),
            None => Subscription::new(self.filter.clone(), &self.start, reading),
        };
        let mut changes = 0;
        for item in subscription.next_up_to(reading, limit) {
            match item {
                StreamEvent::Reset(_) => self.copy.clear(),
                StreamEvent::Upsert { key, object, .. } => {
                    changes += 1;
                    self.copy.insert(key, object);
                }
                StreamEvent::Delete { key, .. } => {
                    changes += 1;
                    self.copy.remove(&key);
                }
                StreamEvent::Patch { .. } => panic!("the subscriber did not ask for patches"),
                StreamEvent::Synced { .. } => {}
            }
        }
        assert!(changes <= limit, "a piece must keep to its limit");
        self.resume_point = subscription.resume_point(reading);
        self.start = StreamStart::After(Some(subscription.position(reading).into()));
        subscription.is_current(reading)
    }
}

#[test]
fn a_copy_built_with_suspensions_becomes_equal_to_the_mirror() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut mirror = ChangingMirror::new(if seed % 3 == 0 { 4 } else { 1_000 });
        let mut pollers: Vec<PagingReader> = filters().into_iter().map(PagingReader::new).collect();
        for _ in 0..80 {
            for _ in 0..random.random_range(0..6) {
                random_change(&mut mirror, &mut random);
            }
            let reading = mirror.reading();
            for poller in &mut pollers {
                if poller.poll(&reading, random.random_range(1..6)) {
                    assert_eq!(poller.copy, mirror.mirrored_objects(&poller.filter), "seed {seed}, filter {:?}", poller.filter);
                }
            }
        }
        let reading = mirror.reading();
        for poller in &mut pollers {
            let current = (0..200).any(|_| poller.poll(&reading, 3));
            assert!(current, "the subscriber does not catch up");
            assert_eq!(poller.copy, mirror.mirrored_objects(&poller.filter), "seed {seed}, filter {:?}", poller.filter);
        }
    }
}

#[test]
fn a_resume_point_ahead_of_the_store_causes_a_reset() {
    let mut mirror = ChangingMirror::new(10);
    for id in 1..5 {
        mirror.put(0, id, "a");
    }
    let mut subscription = Subscription::new(Filter::default(), &StreamStart::Snapshot, &mirror.reading());
    let before = mirror.reading();
    // the source changes during the scan, and the crash that follows loses the change
    mirror.put(0, 1, "b");
    subscription.next_up_to(&mirror.reading(), 2);
    let resume_point = subscription.resume_point(&mirror.reading()).unwrap();
    let (sent, seen) = (before.position(), mirror.reading().position());
    assert_eq!(resume_point, ResumePoint { sent, seen, mode: SyncMode::Snapshot, stage: CatchUpStage::Scan(Some(key(0, 3))), count: 2 });
    assert_eq!(Subscription::check_resume_point(&resume_point, &Filter::default(), &mirror.reading()), Ok(()));
    assert_eq!(Subscription::check_resume_point(&resume_point, &Filter::default(), &before), Err(ResetReason::RolledBack));
    let items = Subscription::resume(Filter::default(), &resume_point, &before).next(&before);
    assert_eq!(items.first(), Some(&StreamEvent::Reset(ResetReason::RolledBack)));
}

fn backend(number: u8, port: u16) -> Backend {
    let ports = [Port { name: "http".to_owned(), protocol: "TCP".to_owned(), port }].into();
    Backend { ip: std::net::IpAddr::from([10, 0, 0, number]), ports, hostname: String::new(), zone: None }
}

fn service(app: &str, backends: Vec<Backend>) -> Service {
    let labels: LabelSet = [("app".to_owned(), app.to_owned())].into();
    Service { namespace: "shop".to_owned(), name: "cart".to_owned(), labels, backends, ..Service::default() }
}

fn cart() -> EntryKey {
    EntryKey::new(Kind::Service, cluster(0), "shop/cart")
}

fn put_service(mirror: &mut ChangingMirror, service: Service) {
    mirror.revision += 1;
    let source = SourceStamp { mod_revision: Revision(mirror.revision), ..SourceStamp::default() };
    let value = format!("{service:?}").into_bytes().into();
    let change = Change::Put { key: cart(), value, decoded: Ok(Arc::new(Object::Service(service))), source };
    let scope = Scope { cluster: cluster(0), kind: Kind::Service };
    mirror.apply(Command::Apply { scope, changes: vec![change], cursor: None });
}

fn event_names(items: &[StreamEvent]) -> Vec<&'static str> {
    let name = |item: &StreamEvent| match item {
        StreamEvent::Reset(_) => "reset",
        StreamEvent::Upsert { .. } => "upsert",
        StreamEvent::Patch { .. } => "patch",
        StreamEvent::Delete { .. } => "delete",
        StreamEvent::Synced { .. } => "synced",
    };
    items.iter().map(name).collect()
}

#[test]
fn only_changed_backends_of_a_known_service_are_patched() {
    let mut mirror = ChangingMirror::new(10);
    put_service(&mut mirror, service("a", vec![backend(1, 80), backend(2, 80)]));
    let filter = Filter { labels: Some(super::super::super::LabelSelector::parse("app in (a,b)").unwrap()), ..Filter::default() };
    let mut patched = Subscription::new(filter.clone(), &StreamStart::Snapshot, &mirror.reading()).with_patches();
    let mut plain = Subscription::new(filter.clone(), &StreamStart::Snapshot, &mirror.reading());
    let mut without_objects = Subscription::new(filter, &StreamStart::Now, &mirror.reading()).with_patches();
    for reader in [&mut patched, &mut plain, &mut without_objects] {
        while !reader.is_current(&mirror.reading()) {
            reader.next(&mirror.reading());
        }
    }
    put_service(&mut mirror, service("a", vec![backend(2, 81), backend(3, 80)]));
    put_service(&mut mirror, service("b", vec![backend(2, 81)]));
    put_service(&mut mirror, service("c", vec![]));
    put_service(&mut mirror, service("b", vec![backend(2, 81)]));
    put_service(&mut mirror, service("b", vec![]));
    let head = mirror.reading().position();
    let items = patched.next(&mirror.reading());
    assert_eq!(event_names(&items), ["patch", "upsert", "delete", "upsert", "patch"]);
    let StreamEvent::Patch { patch, position, .. } = &items[0] else { panic!("must be a patch") };
    let expected = BackendsPatch { upserted: vec![backend(2, 81), backend(3, 80)], removed: vec![[10, 0, 0, 1].into()] };
    assert_eq!((patch, position.unwrap().position.sequence.0), (&expected, head.sequence.0 - 4));
    for mut other in [plain, without_objects] {
        assert_eq!(event_names(&other.next(&mirror.reading())), ["upsert", "upsert", "delete", "upsert", "upsert"]);
    }
}

#[test]
fn a_service_with_a_repeated_backend_address_is_never_patched() {
    let (one, two) = (service("a", vec![backend(1, 80)]), service("a", vec![backend(1, 80), backend(1, 81)]));
    assert_eq!(BackendsPatch::between(&Object::Service(one.clone()), &Object::Service(two.clone())), None);
    assert_eq!(BackendsPatch::between(&Object::Service(two), &Object::Service(one)), None);
}

/// Applies the events to the subscriber's copy of the service.
fn apply(items: Vec<StreamEvent>, copy: &mut Option<Service>) {
    for item in items {
        match item {
            StreamEvent::Reset(_) | StreamEvent::Delete { .. } => *copy = None,
            StreamEvent::Upsert { object, .. } => match &*object {
                Object::Service(service) => *copy = Some(service.clone()),
                other => panic!("unexpected {other:?}"),
            },
            StreamEvent::Patch { patch, .. } => {
                let backends = &mut copy.as_mut().expect("must have the service that is patched").backends;
                backends.retain(|backend| !patch.removed.contains(&backend.ip) && patch.upserted.iter().all(|new| new.ip != backend.ip));
                backends.extend(patch.upserted);
                backends.sort_by_key(|backend| backend.ip);
            }
            StreamEvent::Synced { .. } => {}
        }
    }
}

#[test]
fn patched_copies_become_equal_to_the_mirror() {
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut mirror = ChangingMirror::new(10);
        let mut subscription = Subscription::new(Filter::default(), &StreamStart::Snapshot, &mirror.reading()).with_patches();
        let mut copy = None;
        for _ in 0..60 {
            if random.random_ratio(1, 12) {
                let scope = Scope { cluster: cluster(0), kind: Kind::Service };
                mirror.apply(Command::Apply { scope, changes: vec![Change::Delete { key: cart() }], cursor: None });
            } else {
                let numbers = (0..6).filter(|_| random.random_bool(0.7)).collect::<Vec<u8>>();
                let backends = numbers.into_iter().map(|number| backend(number, 80 + u16::from(random.random_ratio(1, 5)))).collect();
                put_service(&mut mirror, service(if random.random_ratio(1, 4) { "b" } else { "a" }, backends));
            }
            if random.random_ratio(1, 6) {
                let start = subscription
                    .bookmark(&mirror.reading())
                    .map_or(StreamStart::Snapshot, |position| StreamStart::After(Some(position.into())));
                subscription = Subscription::new(Filter::default(), &start, &mirror.reading()).with_patches();
            }
            if random.random_bool(0.7) {
                apply(subscription.next(&mirror.reading()), &mut copy);
            }
        }
        while !subscription.is_current(&mirror.reading()) {
            apply(subscription.next(&mirror.reading()), &mut copy);
        }
        let mirrored_objects = mirror.reading().record(&cart()).and_then(|record| record.object.clone());
        assert_eq!(copy.map(|service| Arc::new(Object::Service(service))), mirrored_objects, "seed {seed}");
    }
}
