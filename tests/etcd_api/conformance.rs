//! Conformance of the etcd API: sends random requests to a real etcd and to meshkeep, which have
//! the same history. Every field of every answer must be equal, except ids and leases. Revisions
//! are translated before they are compared.
//!
//! The etcd gets meshkeep's history: the test replays the events of a watch in the etcd, one by
//! one.

use std::collections::BTreeMap;

use etcd_client::{
    Client, Compare, CompareOp, Error, EventType, GetOptions, GetResponse, KeyValue, SortOrder, SortTarget, Txn, WatchOptions, WatchStream,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::MirroredCluster;
use super::watches::next_response;
use crate::harness::etcd::{Etcd, etcd_binaries};

/// Number of range requests to each release of etcd.
const RANGE_REQUESTS: usize = 400;

/// The etcd API of a sidecar, and an etcd with the same history.
struct ServerPair {
    api: Client,
    etcd: Client,
    replayed_watch: WatchStream,
    /// Revision of the etcd for each revision of the etcd API.
    revisions: BTreeMap<i64, i64>,
    keys: Vec<Vec<u8>>,
}

/// Key, value, create revision, mod revision and version, as the etcd has them.
type ComparableKey = (Vec<u8>, Vec<u8>, i64, i64, i64);

impl ServerPair {
    async fn new(mut api: Client, etcd: &Etcd) -> Self {
        // the revisions of the etcd API begin with meshkeep's first start; a watch from an earlier
        // revision is refused with the first revision as its compact revision
        let options = |revision| WatchOptions::new().with_all_keys().with_start_revision(revision);
        let mut before = api.watch("", Some(options(1))).await.unwrap();
        assert!(next_response(&mut before).await.created());
        let first = next_response(&mut before).await.compact_revision();
        let mut replayed_watch = api.watch("", Some(options(first))).await.unwrap();
        assert!(next_response(&mut replayed_watch).await.created());
        Self { api, etcd: etcd.client().await, replayed_watch, revisions: BTreeMap::new(), keys: Vec::new() }
    }

    /// Replays the changes in the etcd, up to the current revision of the etcd API.
    async fn replay(&mut self) {
        let head = self.api.get("none", None).await.unwrap().header().unwrap().revision();
        self.replayed_watch.request_progress().await.unwrap();
        loop {
            let reported = next_response(&mut self.replayed_watch).await;
            assert!(!reported.canceled(), "{reported:?}");
            for event in reported.events() {
                let kv = event.kv().unwrap();
                let header = match event.event_type() {
                    EventType::Put => self.etcd.put(kv.key(), kv.value(), None).await.unwrap().take_header(),
                    EventType::Delete => self.etcd.delete(kv.key(), None).await.unwrap().take_header(),
                };
                self.revisions.insert(kv.mod_revision(), header.unwrap().revision());
            }
            let progress = reported.header().unwrap().revision();
            if reported.watch_id() == -1 && progress >= head {
                break;
            }
            if reported.watch_id() == -1 {
                self.replayed_watch.request_progress().await.unwrap();
            }
        }
        let all = self.etcd.get("", Some(GetOptions::new().with_all_keys())).await.unwrap();
        self.keys = all.kvs().iter().map(|kv| kv.key().to_vec()).collect();
    }

    /// Returns whether meshkeep has written a heartbeat since the last replay. It writes one per
    /// minute.
    async fn has_new_heartbeat(&mut self) -> bool {
        let heartbeat = self.api.get("cilium/.heartbeat", None).await.unwrap();
        !self.revisions.contains_key(&heartbeat.kvs()[0].mod_revision())
    }

    fn etcd_revision(&self, revision: i64) -> i64 {
        if revision == 0 { 0 } else { self.revisions[&revision] }
    }

    fn comparable_of_api(&self, kv: &KeyValue) -> ComparableKey {
        let (created, changed) = (self.etcd_revision(kv.create_revision()), self.etcd_revision(kv.mod_revision()));
        (kv.key().to_vec(), kv.value().to_vec(), created, changed, kv.version())
    }

    fn random_bound(&self, random: &mut StdRng) -> Vec<u8> {
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

    /// Returns a random key and options: once with revisions of the etcd API, and once with the
    /// same revisions of the etcd.
    fn random_options(&self, random: &mut StdRng) -> (Vec<u8>, [GetOptions; 2]) {
        let key = self.random_bound(random);
        let mut both = [GetOptions::new(), GetOptions::new()];
        let mut each = |change: &dyn Fn(GetOptions, bool) -> GetOptions| {
            both = [change(both[0].clone(), true), change(both[1].clone(), false)];
        };
        match random.random_range(0..8) {
            0 => {}
            1 => each(&|options, _| options.with_from_key()),
            2 => each(&|options, _| options.with_prefix()),
            _ => {
                let end = self.random_bound(random);
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
            let (api, etcd) = self.revisions.iter().nth(random.random_range(0..self.revisions.len())).unwrap();
            (*api, *etcd)
        };
        let pick = |of_api: bool, (api, etcd): (i64, i64)| if of_api { api } else { etcd };
        if random.random_bool(0.3) {
            let revisions = revision(random);
            each(&|options, of_api| options.with_revision(pick(of_api, revisions)));
        }
        if random.random_bool(0.3) {
            let (filter, revisions) = (random.random_range(0..4), revision(random));
            each(&|options, of_api| match filter {
                0 => options.with_min_mod_revision(pick(of_api, revisions)),
                1 => options.with_max_mod_revision(pick(of_api, revisions)),
                2 => options.with_min_create_revision(pick(of_api, revisions)),
                _ => options.with_max_create_revision(pick(of_api, revisions)),
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

    fn assert_same_answer(&self, api: Result<GetResponse, Error>, etcd: Result<GetResponse, Error>, what: &str) {
        match (api, etcd) {
            (Ok(api), Ok(etcd)) => {
                let of_api: Vec<ComparableKey> = api.kvs().iter().map(|kv| self.comparable_of_api(kv)).collect();
                assert_eq!(of_api, comparable_of_etcd(etcd.kvs()), "{what}");
                assert_eq!((api.count(), api.more()), (etcd.count(), etcd.more()), "{what}");
                let newest = self.revisions.last_key_value().unwrap();
                assert_eq!((*newest.1, true), (etcd.header().unwrap().revision(), api.header().unwrap().revision() >= *newest.0), "{what}");
            }
            (Err(Error::GRpcStatus(api)), Err(Error::GRpcStatus(etcd))) => {
                assert_eq!((api.code(), api.message()), (etcd.code(), etcd.message()), "{what}");
            }
            (api, etcd) => panic!("{what}: {api:?} and {etcd:?}"),
        }
    }
}

fn comparable_of_etcd(kvs: &[KeyValue]) -> Vec<ComparableKey> {
    kvs.iter().map(|kv| (kv.key().to_vec(), kv.value().to_vec(), kv.create_revision(), kv.mod_revision(), kv.version())).collect()
}

/// Starts a mirrored cluster, and replays its history in an etcd.
async fn start_pair(etcd: &Etcd) -> (MirroredCluster, ServerPair) {
    let mirrored = MirroredCluster::start().await;
    let mut pair = ServerPair::new(mirrored.api.clone(), etcd).await;
    pair.replay().await;
    (mirrored, pair)
}

async fn change(mirrored: &mut MirroredCluster, random: &mut StdRng) {
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
    mirrored.wait_until_served("a change").await;
}

/// Returns comparisons of a key with the values that a missing key has, for every target and
/// operator.
fn comparisons(key: &[u8]) -> Vec<Compare> {
    let operators = [CompareOp::Equal, CompareOp::Greater, CompareOp::Less, CompareOp::NotEqual];
    let compares = operators.into_iter().flat_map(|operator| {
        [
            Compare::value(key, operator, ""),
            Compare::version(key, operator, 0),
            Compare::create_revision(key, operator, 0),
            Compare::mod_revision(key, operator, 0),
            Compare::lease(key, operator, 0),
        ]
    });
    compares.flat_map(|compare| [compare.clone(), compare.with_prefix()]).collect()
}

#[tokio::test]
async fn comparisons_give_the_same_results_as_an_etcd() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(&binary).start().await;
        let (_mirrored, mut pair) = start_pair(&etcd).await;
        let known = pair.keys.iter().find(|key| key.starts_with(b"cilium/cache/")).unwrap().clone();
        for compare in [comparisons(&known), comparisons(b"cilium/cache/nobody")].concat() {
            let transaction = || Txn::new().when([compare.clone()]);
            let api = pair.api.txn(transaction()).await.unwrap().succeeded();
            let etcd = pair.etcd.txn(transaction()).await.unwrap().succeeded();
            assert_eq!(api, etcd, "{compare:?}");
        }
    }
}

#[tokio::test]
async fn range_answers_equal_those_of_an_etcd_with_the_same_keys() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(&binary).start().await;
        let (mut mirrored, mut pair) = start_pair(&etcd).await;
        let mut random = StdRng::seed_from_u64(29);
        for _ in 0..4 {
            change(&mut mirrored, &mut random).await;
            pair.replay().await;
            for _ in 0..RANGE_REQUESTS / 4 {
                let (key, [of_api, of_etcd]) = pair.random_options(&mut random);
                let what = format!("{} with {of_api:?}", key.escape_ascii());
                let (api, etcd) = (pair.api.get(key.clone(), Some(of_api)).await, pair.etcd.get(key, Some(of_etcd)).await);
                if pair.has_new_heartbeat().await {
                    pair.replay().await;
                } else {
                    pair.assert_same_answer(api, etcd, &what);
                }
            }
        }
    }
}

#[tokio::test]
async fn watches_report_the_same_events_as_an_etcd() {
    let etcd = Etcd::builder().binary(&etcd_binaries()[0]).start().await;
    let (mut mirrored, mut pair) = start_pair(&etcd).await;
    let mut random = StdRng::seed_from_u64(30);
    for _ in 0..3 {
        change(&mut mirrored, &mut random).await;
    }
    pair.replay().await;
    let events = |reported: &etcd_client::WatchResponse| reported.events().to_vec();
    for _ in 0..40 {
        let (from_api, from_etcd) = pair.revisions.iter().nth(random.random_range(0..pair.revisions.len())).unwrap();
        let (key, end) = (pair.random_bound(&mut random), pair.random_bound(&mut random));
        let options = |from: i64| WatchOptions::new().with_range(end.clone()).with_start_revision(from).with_prev_key();
        let (from_api, from_etcd) = (*from_api, *from_etcd);
        let mut of_api = pair.api.watch(key.clone(), Some(options(from_api))).await.unwrap();
        let mut of_etcd = pair.etcd.watch(key.clone(), Some(options(from_etcd))).await.unwrap();
        let what = format!("{} to {} from {from_etcd}", key.escape_ascii(), end.escape_ascii());
        let (api, etcd) = (next_response(&mut of_api).await, next_response(&mut of_etcd).await);
        assert_eq!((api.created(), api.canceled(), api.cancel_reason()), (etcd.created(), etcd.canceled(), etcd.cancel_reason()), "{what}");
        if api.canceled() {
            continue;
        }
        // the etcd's own history gives the number of expected events
        let is_in_range = |candidate: &[u8]| candidate >= key.as_slice() && candidate < end.as_slice();
        let mut expected = Vec::new();
        let mut full_watch = pair.etcd.watch("", Some(WatchOptions::new().with_all_keys().with_start_revision(from_etcd))).await.unwrap();
        let (last, mut last_seen) = (*pair.revisions.last_key_value().unwrap().1, 0);
        while last_seen < last {
            for event in events(&next_response(&mut full_watch).await) {
                last_seen = event.kv().unwrap().mod_revision();
                if is_in_range(event.kv().unwrap().key()) {
                    expected.push(event);
                }
            }
        }
        let (mut reported_api, mut reported_etcd) = (Vec::new(), Vec::new());
        while reported_api.len() < expected.len() {
            reported_api.extend(events(&next_response(&mut of_api).await));
        }
        while reported_etcd.len() < expected.len() {
            reported_etcd.extend(events(&next_response(&mut of_etcd).await));
        }
        // ignore later events, because meshkeep may have written a heartbeat since
        let of_api: Vec<_> = reported_api[..expected.len()]
            .iter()
            .map(|event| {
                (event.event_type(), event.kv().map(|kv| pair.comparable_of_api(kv)), event.prev_kv().map(|kv| pair.comparable_of_api(kv)))
            })
            .collect();
        let comparable = |kv: &KeyValue| comparable_of_etcd(std::slice::from_ref(kv)).remove(0);
        let of_etcd: Vec<_> =
            reported_etcd.iter().map(|event| (event.event_type(), event.kv().map(comparable), event.prev_kv().map(comparable))).collect();
        assert_eq!(of_api, of_etcd, "{what}");
    }
}
