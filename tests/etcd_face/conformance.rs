//! Conformance of the etcd face: random requests to a real etcd and to the face, which have the
//! same history. Every field of every answer must be equal, except ids, leases, and revisions,
//! which are compared by their meaning.
//!
//! The etcd gets the face's history by replaying the events of a watch, change by change.

use std::collections::BTreeMap;

use etcd_client::{
    Client, Compare, CompareOp, Error, EventType, GetOptions, GetResponse, KeyValue, SortOrder, SortTarget, Txn, WatchOptions, WatchStream,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::Mirrored;
use super::watches::message;
use crate::harness::etcd::{Etcd, etcd_binaries};

/// Number of requests of each kind.
const QUESTIONS: usize = 400;

/// The face, and an etcd with the same history.
struct Pair {
    face: Client,
    etcd: Client,
    copying: WatchStream,
    /// Revision of the etcd for each revision of the face.
    revisions: BTreeMap<i64, i64>,
    keys: Vec<Vec<u8>>,
}

/// Key, value, create revision, mod revision and version, as the etcd has them.
type Plain = (Vec<u8>, Vec<u8>, i64, i64, i64);

impl Pair {
    async fn new(mut face: Client, etcd: &Etcd) -> Self {
        // the face's revisions start at its first start; a watch from an earlier revision receives
        // that one as the compact revision
        let options = |revision| WatchOptions::new().with_all_keys().with_start_revision(revision);
        let mut before = face.watch("", Some(options(1))).await.unwrap();
        assert!(message(&mut before).await.created());
        let first = message(&mut before).await.compact_revision();
        let mut copying = face.watch("", Some(options(first))).await.unwrap();
        assert!(message(&mut copying).await.created());
        Self { face, etcd: etcd.client().await, copying, revisions: BTreeMap::new(), keys: Vec::new() }
    }

    /// Replays the face's changes in the etcd, up to the face's current revision.
    async fn copy(&mut self) {
        let head = self.face.get("none", None).await.unwrap().header().unwrap().revision();
        self.copying.request_progress().await.unwrap();
        loop {
            let reported = message(&mut self.copying).await;
            assert!(!reported.canceled(), "{reported:?}");
            for event in reported.events() {
                let kv = event.kv().unwrap();
                let header = match event.event_type() {
                    EventType::Put => self.etcd.put(kv.key(), kv.value(), None).await.unwrap().take_header(),
                    EventType::Delete => self.etcd.delete(kv.key(), None).await.unwrap().take_header(),
                };
                self.revisions.insert(kv.mod_revision(), header.unwrap().revision());
            }
            let upto = reported.header().unwrap().revision();
            if reported.watch_id() == -1 && upto >= head {
                break;
            }
            if reported.watch_id() == -1 {
                self.copying.request_progress().await.unwrap();
            }
        }
        let all = self.etcd.get("", Some(GetOptions::new().with_all_keys())).await.unwrap();
        self.keys = all.kvs().iter().map(|kv| kv.key().to_vec()).collect();
    }

    /// Returns whether the face wrote a heartbeat since the last copy, which it does once a minute.
    async fn has_beaten(&mut self) -> bool {
        let beat = self.face.get("cilium/.heartbeat", None).await.unwrap();
        !self.revisions.contains_key(&beat.kvs()[0].mod_revision())
    }

    fn of_etcd(&self, revision: i64) -> i64 {
        if revision == 0 { 0 } else { self.revisions[&revision] }
    }

    fn plain_of_face(&self, kv: &KeyValue) -> Plain {
        let (created, changed) = (self.of_etcd(kv.create_revision()), self.of_etcd(kv.mod_revision()));
        (kv.key().to_vec(), kv.value().to_vec(), created, changed, kv.version())
    }

    fn bound(&self, random: &mut StdRng) -> Vec<u8> {
        let mut key = self.keys[random.random_range(0..self.keys.len())].clone();
        match random.random_range(0..6) {
            0 => key.truncate(random.random_range(1..=key.len())),
            1 => key.push(0),
            2 => *key.last_mut().unwrap() += 1,
            3 => key = b"\0".to_vec(),
            _ => {}
        }
        key
    }

    /// Returns random options, once with revisions of the face and once with those of the etcd.
    fn options(&self, random: &mut StdRng) -> (Vec<u8>, [GetOptions; 2]) {
        let key = self.bound(random);
        let mut both = [GetOptions::new(), GetOptions::new()];
        let mut each = |change: &dyn Fn(GetOptions, bool) -> GetOptions| {
            both = [change(both[0].clone(), true), change(both[1].clone(), false)];
        };
        match random.random_range(0..8) {
            0 => {}
            1 => each(&|options, _| options.with_from_key()),
            2 => each(&|options, _| options.with_prefix()),
            _ => {
                let end = self.bound(random);
                each(&|options, _| options.with_range(end.clone()));
            }
        }
        if random.random_bool(0.4) {
            let limit = random.random_range(1..30);
            each(&|options, _| options.with_limit(limit));
        }
        match random.random_range(0..6) {
            0 => each(&|options, _| options.with_keys_only()),
            1 => each(&|options, _| options.with_count_only()),
            _ => {}
        }
        let revision = |random: &mut StdRng| {
            let (face, etcd) = self.revisions.iter().nth(random.random_range(0..self.revisions.len())).unwrap();
            (*face, *etcd)
        };
        let pick = |of_face: bool, (face, etcd): (i64, i64)| if of_face { face } else { etcd };
        if random.random_bool(0.3) {
            let at = revision(random);
            each(&|options, of_face| options.with_revision(pick(of_face, at)));
        }
        if random.random_bool(0.3) {
            let (filter, at) = (random.random_range(0..4), revision(random));
            each(&|options, of_face| match filter {
                0 => options.with_min_mod_revision(pick(of_face, at)),
                1 => options.with_max_mod_revision(pick(of_face, at)),
                2 => options.with_min_create_revision(pick(of_face, at)),
                _ => options.with_max_create_revision(pick(of_face, at)),
            });
        }
        if random.random_bool(0.3) {
            // etcd does not define the order of keys that are equal in the sorted field
            let target = [SortTarget::Key, SortTarget::Create, SortTarget::Mod][random.random_range(0..3)];
            let order = [SortOrder::None, SortOrder::Ascend, SortOrder::Descend][random.random_range(0..3)];
            each(&|options, _| options.with_sort(target, order));
        }
        (key, both)
    }

    fn same(&self, face: Result<GetResponse, Error>, etcd: Result<GetResponse, Error>, what: &str) {
        match (face, etcd) {
            (Ok(face), Ok(etcd)) => {
                let of_face: Vec<Plain> = face.kvs().iter().map(|kv| self.plain_of_face(kv)).collect();
                assert_eq!(of_face, plain_of_etcd(etcd.kvs()), "{what}");
                assert_eq!((face.count(), face.more()), (etcd.count(), etcd.more()), "{what}");
                let newest = self.revisions.last_key_value().unwrap();
                assert_eq!(
                    (*newest.1, true),
                    (etcd.header().unwrap().revision(), face.header().unwrap().revision() >= *newest.0),
                    "{what}"
                );
            }
            (Err(Error::GRpcStatus(face)), Err(Error::GRpcStatus(etcd))) => {
                assert_eq!((face.code(), face.message()), (etcd.code(), etcd.message()), "{what}");
            }
            (face, etcd) => panic!("{what}: {face:?} and {etcd:?}"),
        }
    }
}

fn plain_of_etcd(kvs: &[KeyValue]) -> Vec<Plain> {
    kvs.iter().map(|kv| (kv.key().to_vec(), kv.value().to_vec(), kv.create_revision(), kv.mod_revision(), kv.version())).collect()
}

/// Starts a face whose source changes, and an etcd with its history.
async fn pair(etcd: &Etcd) -> (Mirrored, Pair) {
    let mirrored = Mirrored::start().await;
    let mut pair = Pair::new(mirrored.face.clone(), etcd).await;
    pair.copy().await;
    (mirrored, pair)
}

async fn change(mirrored: &mut Mirrored, random: &mut StdRng) {
    let remote = &mut mirrored.remote;
    let (ips, nodes) = (remote.clusters[0].keys_of("ip/v1"), remote.clusters[0].keys_of("nodes/v1"));
    let first = random.random_range(0..ips.len() - 5);
    remote
        .change(|cluster| {
            cluster.delete(&ips[first]);
            ips[first + 1..first + 5].iter().for_each(|key| cluster.change(key));
            nodes.iter().take(2).for_each(|key| cluster.change(key));
            cluster.add_endpoints(1);
        })
        .await;
    mirrored.settles("a change").await;
}

/// Comparisons of every target and operator with what a key that does not exist has.
fn comparisons(key: &[u8]) -> Vec<Compare> {
    let operators = [CompareOp::Equal, CompareOp::Greater, CompareOp::Less, CompareOp::NotEqual];
    let each = operators.into_iter().flat_map(|operator| {
        [
            Compare::value(key, operator, ""),
            Compare::version(key, operator, 0),
            Compare::create_revision(key, operator, 0),
            Compare::mod_revision(key, operator, 0),
            Compare::lease(key, operator, 0),
        ]
    });
    each.flat_map(|compare| [compare.clone(), compare.with_prefix()]).collect()
}

#[tokio::test]
async fn comparisons_hold_where_those_of_an_etcd_do_also_with_keys_that_do_not_exist() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(&binary).start().await;
        let (_mirrored, mut pair) = pair(&etcd).await;
        let known = pair.keys.iter().find(|key| key.starts_with(b"cilium/cache/")).unwrap().clone();
        for compare in [comparisons(&known), comparisons(b"cilium/cache/nobody")].concat() {
            let transaction = || Txn::new().when([compare.clone()]);
            let face = pair.face.txn(transaction()).await.unwrap().succeeded();
            let etcd = pair.etcd.txn(transaction()).await.unwrap().succeeded();
            assert_eq!(face, etcd, "{compare:?}");
        }
    }
}

#[tokio::test]
async fn every_answer_is_that_of_an_etcd_which_holds_the_same() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(&binary).start().await;
        let (mut mirrored, mut pair) = pair(&etcd).await;
        let mut random = StdRng::seed_from_u64(29);
        for _ in 0..4 {
            change(&mut mirrored, &mut random).await;
            pair.copy().await;
            for _ in 0..QUESTIONS / 4 {
                let (key, [of_face, of_etcd]) = pair.options(&mut random);
                let what = format!("{} with {of_face:?}", key.escape_ascii());
                let (face, etcd) = (pair.face.get(key.clone(), Some(of_face)).await, pair.etcd.get(key, Some(of_etcd)).await);
                if pair.has_beaten().await {
                    pair.copy().await;
                } else {
                    pair.same(face, etcd, &what);
                }
            }
        }
    }
}

#[tokio::test]
async fn watches_tell_what_those_of_an_etcd_tell() {
    let etcd = Etcd::builder().binary(&etcd_binaries()[0]).start().await;
    let (mut mirrored, mut pair) = pair(&etcd).await;
    let mut random = StdRng::seed_from_u64(30);
    for _ in 0..3 {
        change(&mut mirrored, &mut random).await;
    }
    pair.copy().await;
    let events = |reported: &etcd_client::WatchResponse| reported.events().to_vec();
    for _ in 0..40 {
        let (from_face, from_etcd) = pair.revisions.iter().nth(random.random_range(0..pair.revisions.len())).unwrap();
        let (key, end) = (pair.bound(&mut random), pair.bound(&mut random));
        let options = |from: i64| WatchOptions::new().with_range(end.clone()).with_start_revision(from).with_prev_key();
        let (from_face, from_etcd) = (*from_face, *from_etcd);
        let mut of_face = pair.face.watch(key.clone(), Some(options(from_face))).await.unwrap();
        let mut of_etcd = pair.etcd.watch(key.clone(), Some(options(from_etcd))).await.unwrap();
        let what = format!("{} to {} from {from_etcd}", key.escape_ascii(), end.escape_ascii());
        let (face, etcd) = (message(&mut of_face).await, message(&mut of_etcd).await);
        assert_eq!(
            (face.created(), face.canceled(), face.cancel_reason()),
            (etcd.created(), etcd.canceled(), etcd.cancel_reason()),
            "{what}"
        );
        if face.canceled() {
            continue;
        }
        // the etcd's own history gives the number of expected events
        let holds = |key_: &[u8]| key_ >= key.as_slice() && key_ < end.as_slice();
        let mut expected = Vec::new();
        let mut all = pair.etcd.watch("", Some(WatchOptions::new().with_all_keys().with_start_revision(from_etcd))).await.unwrap();
        let (last, mut seen) = (*pair.revisions.last_key_value().unwrap().1, 0);
        while seen < last {
            for event in events(&message(&mut all).await) {
                seen = event.kv().unwrap().mod_revision();
                if holds(event.kv().unwrap().key()) {
                    expected.push(event);
                }
            }
        }
        let (mut reported_face, mut reported_etcd) = (Vec::new(), Vec::new());
        while reported_face.len() < expected.len() {
            reported_face.extend(events(&message(&mut of_face).await));
        }
        while reported_etcd.len() < expected.len() {
            reported_etcd.extend(events(&message(&mut of_etcd).await));
        }
        // ignore later events: the face may have written a heartbeat since
        let of_face: Vec<_> = reported_face[..expected.len()]
            .iter()
            .map(|event| {
                (event.event_type(), event.kv().map(|kv| pair.plain_of_face(kv)), event.prev_kv().map(|kv| pair.plain_of_face(kv)))
            })
            .collect();
        let plain = |kv: &KeyValue| plain_of_etcd(std::slice::from_ref(kv)).remove(0);
        let of_etcd: Vec<_> =
            reported_etcd.iter().map(|event| (event.event_type(), event.kv().map(plain), event.prev_kv().map(plain))).collect();
        assert_eq!(of_face, of_etcd, "{what}");
    }
}
