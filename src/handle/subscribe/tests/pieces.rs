//! Subscribers that are suspended after every piece and resumed, as in `/v1/changes`, and
//! subscribers that accept patches.

use super::*;
use crate::model::{Backend, Port, Service};

/// A subscriber that keeps only its copy and its progress between two pieces.
struct Poller {
    filter: Filter,
    held: BTreeMap<EntryKey, Arc<Object>>,
    start: Start,
    place: Option<Place>,
}

impl Poller {
    fn new(filter: Filter) -> Self {
        Self { filter, held: BTreeMap::new(), start: Start::Snapshot, place: None }
    }

    /// Reads one piece. Returns whether the subscriber is current.
    fn poll(&mut self, reading: &Reading, limit: usize) -> bool {
        let mut subscription = match &self.place {
            Some(place) => Subscription::resumed(self.filter.clone(), place, reading),
            None => Subscription::new(self.filter.clone(), &self.start, reading),
        };
        let mut changes = 0;
        for item in subscription.next_up_to(reading, limit) {
            match item {
                Item::Reset(_) => self.held.clear(),
                Item::Upsert { key, object, .. } => {
                    changes += 1;
                    self.held.insert(key, object);
                }
                Item::Delete { key, .. } => {
                    changes += 1;
                    self.held.remove(&key);
                }
                Item::Patch { .. } => panic!("a patch must be asked for"),
                Item::Synced { .. } => {}
            }
        }
        assert!(changes <= limit, "a piece must keep to its limit");
        self.place = subscription.place(reading);
        self.start = Start::After(Some(subscription.position(reading).into()));
        subscription.is_current(reading)
    }
}

#[test]
fn a_reader_that_is_put_down_after_every_piece_ends_with_the_truth() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut world = World::new(if seed % 3 == 0 { 4 } else { 1_000 });
        let mut pollers: Vec<Poller> = filters().into_iter().map(Poller::new).collect();
        for _ in 0..80 {
            for _ in 0..random.random_range(0..6) {
                random_change(&mut world, &mut random);
            }
            let reading = world.reading();
            for poller in &mut pollers {
                if poller.poll(&reading, random.random_range(1..6)) {
                    assert_eq!(poller.held, world.truth(&poller.filter), "seed {seed}, filter {:?}", poller.filter);
                }
            }
        }
        let reading = world.reading();
        for poller in &mut pollers {
            let current = (0..200).any(|_| poller.poll(&reading, 3));
            assert!(current, "a reader never gets current");
            assert_eq!(poller.held, world.truth(&poller.filter), "seed {seed}, filter {:?}", poller.filter);
        }
    }
}

#[test]
fn a_place_that_saw_more_than_there_is_now_is_reset() {
    let mut world = World::new(10);
    for id in 1..5 {
        world.put(0, id, "a");
    }
    let mut subscription = Subscription::new(Filter::default(), &Start::Snapshot, &world.reading());
    let before = world.reading();
    // the source changes during the scan, and the crash that follows loses the change
    world.put(0, 1, "b");
    subscription.next_up_to(&world.reading(), 2);
    let place = subscription.place(&world.reading()).unwrap();
    let (sent, seen) = (before.position(), world.reading().position());
    assert_eq!(place, Place { sent, seen, mode: SyncMode::Snapshot, stage: Stage::Scan(Some(key(0, 3))), count: 2 });
    assert_eq!(Subscription::check_place(&place, &Filter::default(), &world.reading()), Ok(()));
    assert_eq!(Subscription::check_place(&place, &Filter::default(), &before), Err(ResetReason::RolledBack));
    let items = Subscription::resumed(Filter::default(), &place, &before).next(&before);
    assert_eq!(items.first(), Some(&Item::Reset(ResetReason::RolledBack)));
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

fn put_service(world: &mut World, service: Service) {
    world.revision += 1;
    let source = SourceStamp { mod_revision: Revision(world.revision), ..SourceStamp::default() };
    let value = format!("{service:?}").into_bytes().into();
    let change = Change::Put { key: cart(), value, decoded: Ok(Arc::new(Object::Service(service))), source };
    let scope = Scope { cluster: cluster(0), kind: Kind::Service };
    world.apply(Command::Apply { scope, changes: vec![change], cursor: None });
}

fn told_of(items: &[Item]) -> Vec<&'static str> {
    let name = |item: &Item| match item {
        Item::Reset(_) => "reset",
        Item::Upsert { .. } => "upsert",
        Item::Patch { .. } => "patch",
        Item::Delete { .. } => "delete",
        Item::Synced { .. } => "synced",
    };
    items.iter().map(name).collect()
}

#[test]
fn only_changed_backends_of_a_service_that_the_reader_holds_are_patched() {
    let mut world = World::new(10);
    put_service(&mut world, service("a", vec![backend(1, 80), backend(2, 80)]));
    let filter = Filter { labels: Some(super::super::super::LabelSelector::parse("app in (a,b)").unwrap()), ..Filter::default() };
    let mut patched = Subscription::new(filter.clone(), &Start::Snapshot, &world.reading()).with_patches();
    let mut plain = Subscription::new(filter.clone(), &Start::Snapshot, &world.reading());
    let mut holds_nothing = Subscription::new(filter, &Start::Now, &world.reading()).with_patches();
    for reader in [&mut patched, &mut plain, &mut holds_nothing] {
        while !reader.is_current(&world.reading()) {
            reader.next(&world.reading());
        }
    }
    put_service(&mut world, service("a", vec![backend(2, 81), backend(3, 80)]));
    put_service(&mut world, service("b", vec![backend(2, 81)]));
    put_service(&mut world, service("c", vec![]));
    put_service(&mut world, service("b", vec![backend(2, 81)]));
    put_service(&mut world, service("b", vec![]));
    let head = world.reading().position();
    let items = patched.next(&world.reading());
    assert_eq!(told_of(&items), ["patch", "upsert", "delete", "upsert", "patch"]);
    let Item::Patch { patch, position, .. } = &items[0] else { panic!("must be a patch") };
    let expected = BackendsPatch { upserted: vec![backend(2, 81), backend(3, 80)], removed: vec![[10, 0, 0, 1].into()] };
    assert_eq!((patch, position.unwrap().position.sequence.0), (&expected, head.sequence.0 - 4));
    for mut other in [plain, holds_nothing] {
        assert_eq!(told_of(&other.next(&world.reading())), ["upsert", "upsert", "delete", "upsert", "upsert"]);
    }
}

#[test]
fn a_backend_address_that_is_there_twice_is_never_patched() {
    let (one, two) = (service("a", vec![backend(1, 80)]), service("a", vec![backend(1, 80), backend(1, 81)]));
    assert_eq!(BackendsPatch::between(&Object::Service(one.clone()), &Object::Service(two.clone())), None);
    assert_eq!(BackendsPatch::between(&Object::Service(two), &Object::Service(one)), None);
}

/// Applies the events to the subscriber's copy of the service.
fn apply(items: Vec<Item>, held: &mut Option<Service>) {
    for item in items {
        match item {
            Item::Reset(_) | Item::Delete { .. } => *held = None,
            Item::Upsert { object, .. } => match &*object {
                Object::Service(service) => *held = Some(service.clone()),
                other => panic!("unexpected {other:?}"),
            },
            Item::Patch { patch, .. } => {
                let backends = &mut held.as_mut().expect("must hold what is patched").backends;
                backends.retain(|one| !patch.removed.contains(&one.ip) && patch.upserted.iter().all(|new| new.ip != one.ip));
                backends.extend(patch.upserted);
                backends.sort_by_key(|one| one.ip);
            }
            Item::Synced { .. } => {}
        }
    }
}

#[test]
fn whoever_applies_patches_holds_the_truth() {
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut world = World::new(10);
        let mut subscription = Subscription::new(Filter::default(), &Start::Snapshot, &world.reading()).with_patches();
        let mut held = None;
        for _ in 0..60 {
            if random.random_ratio(1, 12) {
                let scope = Scope { cluster: cluster(0), kind: Kind::Service };
                world.apply(Command::Apply { scope, changes: vec![Change::Delete { key: cart() }], cursor: None });
            } else {
                let numbers = (0..6).filter(|_| random.random_bool(0.7)).collect::<Vec<u8>>();
                let backends = numbers.into_iter().map(|number| backend(number, 80 + u16::from(random.random_ratio(1, 5)))).collect();
                put_service(&mut world, service(if random.random_ratio(1, 4) { "b" } else { "a" }, backends));
            }
            if random.random_ratio(1, 6) {
                let start = subscription.bookmark(&world.reading()).map_or(Start::Snapshot, |position| Start::After(Some(position.into())));
                subscription = Subscription::new(Filter::default(), &start, &world.reading()).with_patches();
            }
            if random.random_bool(0.7) {
                apply(subscription.next(&world.reading()), &mut held);
            }
        }
        while !subscription.is_current(&world.reading()) {
            apply(subscription.next(&world.reading()), &mut held);
        }
        let truth = world.reading().record(&cart()).and_then(|record| record.object.clone());
        assert_eq!(held.map(|service| Arc::new(Object::Service(service))), truth, "seed {seed}");
    }
}
