//! Readers of one group: shared chunks, dropped chunks, and lagging readers.

use std::task::Waker;

use super::*;
use crate::api::tests::fixture::{ApiFixture, key, pod};
use crate::feed::Version;
use crate::handle::Announcement;
use crate::handle::Handle;
use crate::model::Kind;

struct GroupFixture {
    group: StreamGroup,
    groups_state: Arc<GroupsState>,
    handle: Handle,
    _fixture: ApiFixture,
}

impl GroupFixture {
    fn new() -> Self {
        let fixture = ApiFixture::new();
        let groups_state = Arc::new(GroupsState::default());
        groups_state.set_routed(Sequence(107));
        let key = GroupKey { filter: Filter { identity: Some(7), ..Filter::default() }, encoding: Encoding::NdJson, patch: false };
        Self { group: StreamGroup::new(key, Arc::clone(&groups_state)), groups_state, handle: fixture.handle.clone(), _fixture: fixture }
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

    /// Routes a change that the group's filter matches only if `identity` is 7.
    fn route(&self, sequence: u64, identity: u32) {
        self.group.push(&RoutedChange::single(&Self::change(sequence, identity, 9)));
        self.groups_state.set_routed(Sequence(sequence));
    }

    fn join(&self, position: u64) -> Option<GroupMembership> {
        self.group.join(Sequence(position), &self.handle.try_reading().unwrap())
    }

    fn read(&self, membership: &mut GroupMembership) -> GroupRead {
        self.group.read(membership, Waker::noop(), || self.handle.try_reading())
    }

    fn bytes(&self, membership: &mut GroupMembership) -> Bytes {
        match self.read(membership) {
            GroupRead::Bytes(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    fn retained(&self) -> usize {
        self.groups_state.retained.load(Ordering::Relaxed)
    }
}

fn sequences(bytes: &Bytes) -> Vec<u64> {
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["meta"]["position"].as_str().unwrap().to_owned();
    let text = std::str::from_utf8(bytes).unwrap();
    text.lines().map(|one| line(one).rsplit('.').next().unwrap().parse().unwrap()).collect()
}

#[tokio::test]
async fn readers_of_one_filter_share_bytes_until_all_have_them() {
    let fixture = GroupFixture::new();
    let (mut first, mut second) = (fixture.join(107).unwrap(), fixture.join(107).unwrap());
    for (sequence, identity) in [(108, 1), (109, 7), (110, 1), (111, 7), (112, 1)] {
        fixture.route(sequence, identity);
    }
    let bytes = fixture.bytes(&mut first);
    assert_eq!((sequences(&bytes), first.position), (vec![109, 111], Sequence(111)));
    assert_eq!(fixture.retained(), bytes.len());
    assert_eq!(fixture.bytes(&mut second).as_ptr(), bytes.as_ptr());
    assert_eq!(fixture.retained(), 0);
    assert_eq!((fixture.read(&mut first), first.position), (GroupRead::Pending, Sequence(112)));

    fixture.route(113, 7);
    fixture.bytes(&mut first);
    assert_ne!(fixture.retained(), 0);
    assert!(!fixture.group.leave(&second));
    assert_eq!(fixture.retained(), 0);
    assert!(fixture.group.leave(&first));
}

#[tokio::test]
async fn a_reader_joins_between_chunks_only() {
    let fixture = GroupFixture::new();
    let mut membership = fixture.join(107).unwrap();
    let mut late = fixture.join(107).unwrap();
    for sequence in [108, 110, 112] {
        fixture.route(sequence, 7);
    }
    assert_eq!(sequences(&fixture.bytes(&mut membership)), [108, 110, 112]);
    assert!(fixture.join(106).is_none() && fixture.join(108).is_none() && fixture.join(111).is_none());
    fixture.route(113, 1);
    fixture.route(114, 7);
    // a joining reader already has the changes that are pending when it joins
    let mut joined = fixture.join(114).unwrap();
    assert_eq!(fixture.read(&mut joined), GroupRead::Pending);
    fixture.route(115, 7);
    for reader in [&mut membership, &mut late] {
        while reader.position < Sequence(114) {
            fixture.bytes(reader);
        }
        assert_eq!(sequences(&fixture.bytes(reader)), [115]);
    }
    assert_ne!(fixture.retained(), 0);
    assert_eq!(sequences(&fixture.bytes(&mut joined)), [115]);
    assert_eq!(fixture.retained(), 0);
}

#[tokio::test]
async fn the_pending_changes_of_a_stalled_reader_are_dropped() {
    let fixture = GroupFixture::new();
    let mut stalled = fixture.join(107).unwrap();
    let last = 108 + PENDING_COUNT_MAX as u64;
    for sequence in 108..=last {
        fixture.route(sequence, 7);
    }
    assert_eq!(fixture.read(&mut stalled), GroupRead::Lagged);
    fixture.route(last + 1, 7);
    assert_eq!(fixture.group.buffer().pending.len(), 0);
    assert!(fixture.join(last - 1).is_none());
    let mut membership = fixture.join(last + 1).unwrap();
    fixture.route(last + 2, 7);
    assert_eq!(sequences(&fixture.bytes(&mut membership)), [last + 2]);
    assert_eq!(fixture.read(&mut stalled), GroupRead::Lagged);
    fixture.group.leave(&stalled);
    assert_eq!(fixture.retained(), 0);
}

#[tokio::test]
async fn chunks_end_at_64_kib() {
    let fixture = GroupFixture::new();
    let mut membership = fixture.join(107).unwrap();
    for sequence in 108..1_108 {
        fixture.route(sequence, 7);
    }
    let mut received = Vec::new();
    while let GroupRead::Bytes(bytes) = fixture.read(&mut membership) {
        assert!(bytes.len() < CHUNK_BYTES + 1_000);
        received.extend(sequences(&bytes));
    }
    assert_eq!(received, (108..1_108).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_change_routed_for_several_filter_terms_is_sent_once() {
    let fixture = GroupFixture::new();
    let mut membership = fixture.join(107).unwrap();
    fixture.route(108, 7);
    assert_eq!(sequences(&fixture.bytes(&mut membership)), [108]);
    fixture.route(108, 7);
    assert_eq!((fixture.read(&mut membership), membership.position), (GroupRead::Pending, Sequence(108)));
    fixture.route(109, 7);
    assert_eq!(sequences(&fixture.bytes(&mut membership)), [109]);
}

/// 400 changes of 300 keys: the first 100 keys change twice.
#[tokio::test]
async fn readers_cannot_join_inside_a_conflated_range() {
    let fixture = GroupFixture::new();
    let mut membership = fixture.join(107).unwrap();
    let changes: Vec<Arc<Announcement>> = (108..508).map(|sequence| GroupFixture::change(sequence, 7, (sequence - 108) % 300)).collect();
    let routed = crate::api::events::conflation::conflate(Sequence(107), changes.iter());
    assert_eq!(routed.len(), 300);
    for routed in &routed {
        fixture.group.push(routed);
    }
    fixture.groups_state.set_routed(Sequence(507));
    let first = fixture.bytes(&mut membership);
    let (middle, is_complete) = (membership.position, membership.is_complete);
    assert_eq!((sequences(&first)[0], is_complete), (208, false), "it does not fit into one chunk");
    assert!(
        String::from_utf8_lossy(&first).contains("v1.000000000000feed00000000000001fb.208"),
        "the position contains the end of the range"
    );
    for inside in [108, 207, middle.0, middle.0 + 1, 506] {
        assert!(fixture.join(inside).is_none(), "{inside}");
    }
    let mut received = sequences(&first);
    while membership.position < Sequence(507) {
        received.extend(sequences(&fixture.bytes(&mut membership)));
    }
    assert!(membership.is_complete);
    assert_eq!(received, (208..508).collect::<Vec<_>>());
    // a reader that already has the whole range may join
    assert!(fixture.join(507).is_some());
}

/// A group whose readers read nothing does not retain changes that the feed has dropped.
#[tokio::test]
async fn pending_changes_that_the_feed_dropped_are_discarded() {
    let fixture = GroupFixture::new();
    let mut membership = fixture.join(107).unwrap();
    (108..=112).for_each(|sequence| fixture.route(sequence, 7));
    assert!(!fixture.group.discard_if_behind(Sequence(107)));
    assert!(fixture.group.discard_if_behind(Sequence(108)));
    assert_eq!(fixture.read(&mut membership), GroupRead::Lagged);
}
