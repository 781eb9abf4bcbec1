//! Readers of one group: shared chunks, dropped chunks, and lost readers.

use std::task::Waker;

use super::*;
use crate::api::tests::fixture::{Fixture, key, pod};
use crate::feed::Version;
use crate::handle::Announcement;
use crate::handle::Handle;
use crate::model::Kind;

struct Trial {
    group: Group,
    common: Arc<Common>,
    handle: Handle,
    _fixture: Fixture,
}

impl Trial {
    fn new() -> Self {
        let fixture = Fixture::new();
        let common = Arc::new(Common::default());
        common.set_routed(Sequence(107));
        let key = GroupKey { filter: Filter { identity: Some(7), ..Filter::default() }, encoding: Encoding::NdJson, patch: false };
        Self { group: Group::new(key, Arc::clone(&common)), common, handle: fixture.handle.clone(), _fixture: fixture }
    }

    fn change(sequence: u64, identity: u32, pod_number: u64) -> Arc<Announcement> {
        let name = format!("10.1.{}.{}", pod_number / 250, pod_number % 250);
        let object = Some(Arc::new(pod(&name, identity, "172.18.1.2")));
        let (sequence, key) = (Sequence(sequence), key(Kind::Ip, "paris", &name));
        Arc::new(Announcement {
            sequence,
            key,
            old: None,
            new: object.map(Version::of_own_object),
            revision: None,
            replaces: None,
            deleted: None,
        })
    }

    /// Routes a change that matches only with identity 7.
    fn route(&self, sequence: u64, identity: u32) {
        self.group.push(&Routed::alone(&Self::change(sequence, identity, 9)));
        self.common.set_routed(Sequence(sequence));
    }

    fn join(&self, position: u64) -> Option<Membership> {
        self.group.join(Sequence(position), &self.handle.try_reading().unwrap())
    }

    fn take(&self, seat: &mut Membership) -> Taken {
        self.group.take(seat, Waker::noop(), || self.handle.try_reading())
    }

    fn bytes(&self, seat: &mut Membership) -> Bytes {
        match self.take(seat) {
            Taken::Bytes(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    fn retained(&self) -> usize {
        self.common.retained.load(Ordering::Relaxed)
    }
}

fn sequences(bytes: &Bytes) -> Vec<u64> {
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["meta"]["position"].as_str().unwrap().to_owned();
    let text = std::str::from_utf8(bytes).unwrap();
    text.lines().map(|one| line(one).rsplit('.').next().unwrap().parse().unwrap()).collect()
}

#[tokio::test]
async fn readers_of_one_filter_get_the_same_bytes_and_what_all_took_is_let_go() {
    let trial = Trial::new();
    let (mut first, mut second) = (trial.join(107).unwrap(), trial.join(107).unwrap());
    for (sequence, identity) in [(108, 1), (109, 7), (110, 1), (111, 7), (112, 1)] {
        trial.route(sequence, identity);
    }
    let bytes = trial.bytes(&mut first);
    assert_eq!((sequences(&bytes), first.position), (vec![109, 111], Sequence(111)));
    assert_eq!(trial.retained(), bytes.len());
    assert_eq!(trial.bytes(&mut second).as_ptr(), bytes.as_ptr());
    assert_eq!(trial.retained(), 0);
    assert_eq!((trial.take(&mut first), first.position), (Taken::Nothing, Sequence(112)));

    trial.route(113, 7);
    trial.bytes(&mut first);
    assert_ne!(trial.retained(), 0);
    assert!(!trial.group.leave(&second));
    assert_eq!(trial.retained(), 0);
    assert!(trial.group.leave(&first));
}

#[tokio::test]
async fn a_reader_joins_between_chunks_only() {
    let trial = Trial::new();
    let mut seat = trial.join(107).unwrap();
    let mut late = trial.join(107).unwrap();
    for sequence in [108, 110, 112] {
        trial.route(sequence, 7);
    }
    assert_eq!(sequences(&trial.bytes(&mut seat)), [108, 110, 112]);
    assert!(trial.join(106).is_none() && trial.join(108).is_none() && trial.join(111).is_none());
    trial.route(113, 1);
    trial.route(114, 7);
    // changes that are pending when a reader joins are not for it
    let mut joined = trial.join(114).unwrap();
    assert_eq!(trial.take(&mut joined), Taken::Nothing);
    trial.route(115, 7);
    for reader in [&mut seat, &mut late] {
        while reader.position < Sequence(114) {
            trial.bytes(reader);
        }
        assert_eq!(sequences(&trial.bytes(reader)), [115]);
    }
    assert_ne!(trial.retained(), 0);
    assert_eq!(sequences(&trial.bytes(&mut joined)), [115]);
    assert_eq!(trial.retained(), 0);
}

#[tokio::test]
async fn readers_that_stand_still_are_lost_and_nothing_is_kept_for_them() {
    let trial = Trial::new();
    let mut still = trial.join(107).unwrap();
    let last = 108 + PENDING_COUNT_MAX as u64;
    for sequence in 108..=last {
        trial.route(sequence, 7);
    }
    assert_eq!(trial.take(&mut still), Taken::Lost);
    trial.route(last + 1, 7);
    assert_eq!(trial.group.ring().pending.len(), 0);
    assert!(trial.join(last - 1).is_none());
    let mut seat = trial.join(last + 1).unwrap();
    trial.route(last + 2, 7);
    assert_eq!(sequences(&trial.bytes(&mut seat)), [last + 2]);
    assert_eq!(trial.take(&mut still), Taken::Lost);
    trial.group.leave(&still);
    assert_eq!(trial.retained(), 0);
}

#[tokio::test]
async fn chunks_end_at_64_kib() {
    let trial = Trial::new();
    let mut seat = trial.join(107).unwrap();
    for sequence in 108..1_108 {
        trial.route(sequence, 7);
    }
    let mut told = Vec::new();
    while let Taken::Bytes(bytes) = trial.take(&mut seat) {
        assert!(bytes.len() < CHUNK_BYTES + 1_000);
        told.extend(sequences(&bytes));
    }
    assert_eq!(told, (108..1_108).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_change_that_is_routed_once_for_each_of_its_facets_is_told_once_although_a_reader_took_it_in_between() {
    let trial = Trial::new();
    let mut seat = trial.join(107).unwrap();
    trial.route(108, 7);
    assert_eq!(sequences(&trial.bytes(&mut seat)), [108]);
    trial.route(108, 7);
    assert_eq!((trial.take(&mut seat), seat.position), (Taken::Nothing, Sequence(108)));
    trial.route(109, 7);
    assert_eq!(sequences(&trial.bytes(&mut seat)), [109]);
}

/// Changes up to 400, each of its own key, except that the first hundred have later ones.
#[tokio::test]
async fn nobody_joins_inside_a_wave_and_no_bookmark_falls_into_it() {
    let trial = Trial::new();
    let mut seat = trial.join(107).unwrap();
    let changes: Vec<Arc<Announcement>> = (108..508).map(|sequence| Trial::change(sequence, 7, (sequence - 108) % 300)).collect();
    let routed = crate::api::events::wave::conflate(Sequence(107), changes.iter());
    assert_eq!(routed.len(), 300);
    for routed in &routed {
        trial.group.push(routed);
    }
    trial.common.set_routed(Sequence(507));
    let first = trial.bytes(&mut seat);
    let (middle, settled) = (seat.position, seat.settled);
    assert_eq!((sequences(&first)[0], settled), (208, false), "it does not go into one piece");
    assert!(String::from_utf8_lossy(&first).contains("v1.000000000000feed00000000000001fb.208"), "the position says what was seen");
    for inside in [108, 207, middle.0, middle.0 + 1, 506] {
        assert!(trial.join(inside).is_none(), "{inside}");
    }
    let mut told = sequences(&first);
    while seat.position < Sequence(507) {
        told.extend(sequences(&trial.bytes(&mut seat)));
    }
    assert!(seat.settled);
    assert_eq!(told, (208..508).collect::<Vec<_>>());
    // a reader that has everything before may join, and gets nothing twice
    assert!(trial.join(507).is_some());
}

/// A group whose readers read nothing retains nothing that the feed has dropped.
#[tokio::test]
async fn what_waits_longer_than_the_ring_has_it_is_given_up() {
    let trial = Trial::new();
    let mut seat = trial.join(107).unwrap();
    (108..=112).for_each(|sequence| trial.route(sequence, 7));
    assert!(!trial.group.keep_up(Sequence(107)));
    assert!(trial.group.keep_up(Sequence(108)));
    assert_eq!(trial.take(&mut seat), Taken::Lost);
}
