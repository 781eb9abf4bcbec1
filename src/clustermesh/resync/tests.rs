//! The state machine against a scripted source: an etcd made of a log, that can be compacted, wiped and reloaded, behind a
//! connection that breaks anywhere, with a store that loses its newest writes in a crash.

mod holds;

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::kvstore::LeaseLife;
use crate::model::{ClusterName, Kind, LeaseId, Record, Sequence};
use crate::view::View;

const CANARY: &[u8] = b"cilium/synced/paris/cilium/state/identities/v1";
const PREFIX: &str = "cilium/state/identities/v1/id/";
const CONFIG: &[u8] = b"cilium/cluster-config/paris";

/// The same as KVStoreMesh writes them.
const CACHED_CANARY: &[u8] = b"cilium/synced/paris/cilium/cache/identities/v1";
const CACHED_PREFIX: &str = "cilium/cache/identities/v1/paris/id/";

const MARGIN: Duration = Duration::from_secs(30);

/// The life of every lease here.
const LEASE_LIFE: Duration = Duration::from_secs(900);

/// The first identity of cluster 1.
const FIRST_IDENTITY: u32 = 1 << 16;

/// An etcd as a log.
#[derive(Clone)]
struct Etcd {
    id: u64,
    revision: i64,
    compacted: i64,
    keys: BTreeMap<Vec<u8>, KeyValue>,
    log: Vec<(i64, Event)>,
    /// Makes every canary different, as time does.
    canaries: u64,
    /// The lease that puts hang on.
    lease: i64,
    /// Leases that have expired.
    expired: BTreeSet<i64>,
    /// When the leases that nobody renews expire.
    deadlines: BTreeMap<i64, Duration>,
    /// The time.
    clock: Duration,
    /// Whose etcd it is: a KVStoreMesh's, or the cluster's own.
    cached: bool,
}

impl Etcd {
    fn new(id: u64) -> Self {
        Self {
            id,
            revision: 1,
            compacted: 0,
            keys: BTreeMap::new(),
            log: Vec::new(),
            canaries: 0,
            lease: 7,
            expired: BTreeSet::new(),
            deadlines: BTreeMap::new(),
            clock: Duration::ZERO,
            cached: false,
        }
    }

    /// Everything that hangs on a lease goes in one revision.
    fn expire(&mut self, lease: i64) {
        self.expired.insert(lease);
        let gone: Vec<Vec<u8>> = self.keys.values().filter(|put| put.lease.0 == lease).map(|put| put.key.clone()).collect();
        self.revision += 1;
        for key in gone {
            self.keys.remove(&key);
            self.log.push((self.revision, Event::Delete { key, mod_revision: Revision(self.revision) }));
        }
    }

    fn prefix(&self) -> &'static str {
        if self.cached { CACHED_PREFIX } else { PREFIX }
    }

    fn canary(&self) -> &'static [u8] {
        if self.cached { CACHED_CANARY } else { CANARY }
    }

    fn life(&self, lease: LeaseId) -> LeaseLife {
        if self.expired.contains(&lease.0) {
            return LeaseLife::Gone;
        }
        let remaining = self.deadlines.get(&lease.0).map_or(LEASE_LIFE, |deadline| deadline.saturating_sub(self.clock));
        LeaseLife::Alive { granted: LEASE_LIFE, remaining }
    }

    fn sign(&self, key: &[u8]) -> Sign {
        self.keys.get(key).map_or(Sign::Gone, |put| Sign::Standing {
            created: put.create_revision,
            lease: put.lease,
            life: self.life(put.lease),
        })
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.revision += 1;
        let revision = Revision(self.revision);
        let old = self.keys.get(key);
        let put = KeyValue {
            key: key.to_vec(),
            value: value.into(),
            create_revision: old.map_or(revision, |old| old.create_revision),
            mod_revision: revision,
            version: old.map_or(1, |old| old.version + 1),
            lease: LeaseId(self.lease),
        };
        self.keys.insert(key.to_vec(), put.clone());
        self.log.push((self.revision, Event::Put(put)));
    }

    fn delete(&mut self, key: &[u8]) {
        if self.keys.remove(key).is_some() {
            self.revision += 1;
            self.log.push((self.revision, Event::Delete { key: key.to_vec(), mod_revision: Revision(self.revision) }));
        }
    }

    fn announce(&mut self) {
        self.canaries += 1;
        let value = format!("2026-01-12T09:31:{:02}Z", self.canaries);
        self.put(self.canary(), value.as_bytes());
        self.put(CONFIG, b"{}");
    }

    /// Data directory deleted, same flags: same id, revision 1 again.
    fn wipe(&mut self) {
        let (canaries, cached) = (self.canaries, self.cached);
        *self = Self { canaries, cached, ..Self::new(self.id) };
    }

    fn at(&self, key: &[u8], revision: Revision) -> Result<Option<KeyValue>, HistoryLost> {
        if revision.0 < self.compacted || revision.0 > self.revision {
            return Err(HistoryLost);
        }
        let newest = self.log.iter().rev().find(|(at, event)| *at <= revision.0 && key_of(event) == key);
        Ok(newest.and_then(|(_, event)| match event {
            Event::Put(put) => Some(put.clone()),
            Event::Delete { .. } => None,
        }))
    }

    /// What exists below the watched prefix.
    fn truth(&self) -> BTreeMap<String, Vec<u8>> {
        let below = |(key, put): (&Vec<u8>, &KeyValue)| {
            Some((String::from_utf8_lossy(key).strip_prefix(self.prefix())?.to_owned(), put.value.to_vec()))
        };
        self.keys.iter().filter_map(below).collect()
    }
}

/// The mirror of one scope: state machine, view, and what the store would hold after a crash.
struct Mirror {
    resync: Resync,
    view: View,
    /// Snapshots as the store wrote them, newest last.
    stored: Vec<View>,
    request: Option<Request>,
    /// The pages still to come.
    pages: Vec<Page>,
    /// Up to which revision the open watch has delivered.
    watched: Option<i64>,
    connected: bool,
    canaries: bool,
    /// When the etcd's clock was at zero.
    begun: Instant,
}

fn key_of(event: &Event) -> &Vec<u8> {
    match event {
        Event::Put(put) => &put.key,
        Event::Delete { key, .. } => key,
    }
}

fn name_of(key: &[u8]) -> String {
    String::from_utf8_lossy(key).rsplit('/').next().unwrap().to_owned()
}

fn scope() -> Scope {
    Scope { cluster: ClusterName::parse("paris").unwrap(), kind: Kind::Identity }
}

impl Mirror {
    fn new(canaries: bool) -> Self {
        let view = View::starting_at(Sequence(0));
        Self {
            resync: Resync::new(scope(), None),
            stored: vec![view.clone()],
            view,
            request: None,
            pages: Vec::new(),
            watched: None,
            connected: false,
            canaries,
            begun: Instant::now(),
        }
    }

    fn feed(&mut self, input: Input) {
        let step = self.resync.step(input);
        for command in step.commands {
            self.view.apply(command, SystemTime::UNIX_EPOCH);
            self.stored.push(self.view.clone());
        }
        if step.request.is_some() {
            self.request = step.request;
            self.pages.clear();
            self.watched = None;
        }
    }

    fn connect(&mut self, etcd: &Etcd) {
        self.connected = true;
        self.feed(Input::Connected(Source {
            etcd_cluster_id: EtcdClusterId(etcd.id),
            cached: etcd.cached,
            canaries: self.canaries,
            cluster_id: ClusterId(1),
            max_connected_clusters: MaxConnectedClusters::Clusters255,
        }));
    }

    /// kill -9: the store has everything up to one of its last writes, and the process starts again from there.
    fn crash(&mut self, lost: usize) {
        let kept = self.stored.len() - lost.min(self.stored.len() - 1);
        self.stored.truncate(kept);
        let store = self.stored[kept - 1].clone();
        self.view = View::starting_at(Sequence(self.view.sequence().0 + 1_000));
        for record in store.in_scope(&scope()) {
            self.view.restore(Record { generation: 0, ..(*record).clone() });
        }
        let cursor = store.cursor(&scope()).cloned();
        if let Some(cursor) = &cursor {
            self.view.restore_cursor(scope(), cursor.clone());
        }
        self.resync = Resync::new(scope(), cursor);
        self.stored = vec![self.view.clone()];
        self.connected = false;
    }

    /// Performs a piece of the present request. False: there is nothing to do.
    fn advance(&mut self, etcd: &Etcd) -> bool {
        match self.request.clone() {
            None => return false,
            Some(Request::AwaitCanary) => match etcd.keys.get(etcd.canary()) {
                Some(canary) => self.feed(Input::Canary(canary.clone())),
                None => return false,
            },
            Some(Request::ReadTogether(keys)) => {
                let found = keys.iter().map(|key| etcd.keys.get(key).cloned()).collect();
                self.feed(Input::Together(found, Revision(etcd.revision)));
            }
            Some(Request::ReadAt(key, revision)) => self.feed(Input::At(etcd.at(&key, revision))),
            Some(Request::ListChanges(after)) => {
                let below = || etcd.keys.values().filter(|put| put.key.starts_with(etcd.prefix().as_bytes()));
                let puts: Vec<KeyValue> = below().filter(|put| put.mod_revision > after).cloned().collect();
                let new = puts.iter().filter(|put| !self.served().contains_key(&name_of(&put.key))).count();
                let held_count = (self.served().len() + new) as u64;
                let changed = ChangedKeys { revision: Revision(etcd.revision), total_count: below().count() as u64, puts };
                // more than four changes count as too many for one answer here
                let changed = (changed.puts.len() <= 4).then_some(changed);
                self.feed(Input::Changes { changed, held_count });
            }
            Some(Request::ListKeys(revision)) => {
                if revision.0 < etcd.compacted {
                    self.feed(Input::HistoryLost);
                    return true;
                }
                let keys: BTreeSet<&Vec<u8>> =
                    etcd.log.iter().filter(|(at, _)| *at <= revision.0).map(|(_, event)| key_of(event)).collect();
                let existing = keys
                    .into_iter()
                    .filter(|key| key.starts_with(etcd.prefix().as_bytes()) && matches!(etcd.at(key, revision), Ok(Some(_))));
                let listed = existing.cloned().collect();
                let held: Vec<EntryKey> = self.view.in_scope(&scope()).map(|record| record.key.clone()).collect();
                let signs = self.signs(etcd, &held);
                self.feed(Input::Keys { listed, held, signs });
            }
            Some(Request::List) => self.list(etcd),
            Some(Request::Compare) => {
                let generation = self.view.scope(&scope()).map_or(0, |state| state.generation);
                let scope = scope();
                let unconfirmed = self.view.in_scope(&scope).filter(|record| record.generation < generation);
                let keys: Vec<EntryKey> = unconfirmed.map(|record| record.key.clone()).collect();
                let signs = self.signs(etcd, &keys);
                self.feed(Input::Absent { keys, signs });
            }
            Some(Request::Watch(from)) => return self.watch(etcd, from.0),
        }
        true
    }

    /// What the source says for the deletion of some keys.
    fn signs(&self, etcd: &Etcd, keys: &[EntryKey]) -> Signs {
        let lost = |key: &&EntryKey| self.view.record(key).is_some_and(|record| etcd.life(record.source.lease) == LeaseLife::Gone);
        let lost = keys.iter().filter(lost).cloned().collect();
        let sign = |key| if self.canaries { etcd.sign(key) } else { Sign::NotExpected };
        Signs { config: sign(CONFIG), canary: sign(etcd.canary()), lost }
    }

    fn list(&mut self, etcd: &Etcd) {
        if self.pages.is_empty() {
            let puts: Vec<KeyValue> = etcd.keys.values().filter(|put| put.key.starts_with(etcd.prefix().as_bytes())).cloned().collect();
            let page = |key_values: &[KeyValue]| Page {
                revision: Revision(etcd.revision),
                key_values: key_values.to_vec(),
                total_count: puts.len() as u64,
            };
            self.pages = if puts.is_empty() { vec![page(&[])] } else { puts.chunks(3).map(page).rev().collect() };
        }
        let page = self.pages.pop().unwrap();
        let last = self.pages.is_empty();
        self.feed(Input::Page(page));
        if last {
            self.feed(Input::ListEnd);
        }
    }

    fn watch(&mut self, etcd: &Etcd, from: i64) -> bool {
        if from <= etcd.compacted {
            self.feed(Input::HistoryLost);
            return true;
        }
        let watched = self.watched.unwrap_or(from - 1);
        let relevant = |event: &Event| key_of(event).starts_with(etcd.prefix().as_bytes());
        let next = etcd.log.iter().find(|(at, event)| *at > watched && relevant(event)).map(|(revision, _)| *revision);
        match next {
            Some(revision) => {
                self.watched = Some(revision);
                let of_revision = etcd.log.iter().filter(|(at, event)| *at == revision && relevant(event));
                let events: Vec<Event> = of_revision.map(|(_, event)| event.clone()).collect();
                let keys: Vec<EntryKey> =
                    events.iter().map(|event| EntryKey::new(Kind::Identity, scope().cluster, name_of(key_of(event)))).collect();
                let signs = self.signs(etcd, &keys);
                self.feed(Input::Events { events, revision: Revision(revision), signs });
                true
            }
            None => {
                self.watched = Some(etcd.revision.max(watched));
                false
            }
        }
    }

    /// Lets the signs stand for a while; true if that ended the holds.
    fn outlives(&mut self, etcd: &Etcd, time: Duration) -> bool {
        self.keep_vigil(etcd);
        self.begun += time;
        self.keep_vigil(etcd);
        !matches!(self.request, Some(Request::Watch(_)))
    }

    fn keep_vigil(&mut self, etcd: &Etcd) {
        let signs = self.signs(etcd, &[]);
        self.feed(Input::Vigil { signs, now: self.begun + etcd.clock, margin: MARGIN });
    }

    fn served(&self) -> BTreeMap<String, Vec<u8>> {
        self.view.in_scope(&scope()).map(|record| (record.key.name.to_string(), record.value.to_vec())).collect()
    }

    /// Runs until nothing is left to do.
    fn settle(&mut self, etcd: &Etcd) {
        if !self.connected {
            self.connect(etcd);
        }
        for _ in 0..10_000 {
            if !self.advance(etcd) {
                if self.resync.owes_prune() {
                    self.feed(Input::Quiet);
                    continue;
                }
                if self.resync.held_count() > 0 && self.outlives(etcd, LEASE_LIFE + MARGIN) {
                    continue;
                }
                return;
            }
        }
        panic!("the mirror never comes to rest");
    }
}

fn value(random: &mut StdRng) -> Vec<u8> {
    if random.random_ratio(1, 20) {
        return b"neither labels nor anything else".to_vec();
    }
    format!("k8s:io.cilium.k8s.policy.cluster=paris;k8s:v={};", random.random_range(0..5)).into_bytes()
}

fn source_key(random: &mut StdRng) -> Vec<u8> {
    format!("{PREFIX}{}", FIRST_IDENTITY + random.random_range(0..12_u32)).into_bytes()
}

/// The same keys in the same order after a wipe, the first of them changed: the hardest reload to notice.
fn reload(etcd: &mut Etcd, before: &[(i64, Event)], random: &mut StdRng) {
    etcd.wipe();
    for (index, (_, event)) in before.iter().enumerate() {
        match event {
            Event::Put(put) if put.key == CANARY => etcd.announce(),
            Event::Put(put) if index == 0 => etcd.put(&put.key, &value(random)),
            Event::Put(put) => etcd.put(&put.key, &put.value),
            Event::Delete { key, .. } => etcd.delete(key),
        }
    }
}

fn random_life(seed: u64, canaries: bool) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut etcd = Etcd::new(1);
    let mut mirror = Mirror::new(canaries);
    let mut snapshot = etcd.clone();
    for _ in 0..random.random_range(20..120) {
        match random.random_range(0..26) {
            0..=7 => {
                let (key, value) = (source_key(&mut random), value(&mut random));
                etcd.put(&key, &value);
            }
            8..=10 => etcd.delete(&source_key(&mut random)),
            11 => etcd.compacted = etcd.revision,
            12 => etcd.announce(),
            13 => mirror.connected = false,
            14 => mirror.crash(random.random_range(0..6)),
            15 => {
                let log = etcd.log.clone();
                mirror.connected = false;
                reload(&mut etcd, &log, &mut random);
            }
            16 => {
                mirror.connected = false;
                if random.random() {
                    etcd.wipe();
                } else {
                    etcd = Etcd { canaries: etcd.canaries, cached: etcd.cached, ..Etcd::new(etcd.id + 1) };
                }
            }
            17 => snapshot = etcd.clone(),
            18 => {
                mirror.connected = false;
                etcd = snapshot.clone();
            }
            _ => {
                if !mirror.connected {
                    mirror.connect(&etcd);
                }
                for _ in 0..random.random_range(1..6) {
                    mirror.advance(&etcd);
                }
            }
        }
    }
    etcd.announce();
    mirror.settle(&etcd);
    assert!(mirror.resync.is_synced(), "seed {seed}, canaries {canaries}: not synced in the end");
    assert_eq!(mirror.served(), etcd.truth(), "seed {seed}, canaries {canaries}");
    let state = mirror.view.scope(&scope()).cloned().unwrap_or_default();
    assert_eq!(
        (state.confirmed, state.restored_count, usize::try_from(state.entry_count).unwrap()),
        (true, 0, etcd.truth().len()),
        "seed {seed}"
    );
}

#[test]
fn any_life_ends_with_the_truth() {
    for seed in 0..3_000 {
        random_life(seed, seed % 4 != 0);
    }
}

/// A source with three identities, and a mirror that has them.
fn settled(canaries: bool) -> (Etcd, Mirror) {
    let mut etcd = Etcd::new(1);
    for index in 0..3 {
        etcd.put(format!("{PREFIX}{}", FIRST_IDENTITY + index).as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;");
    }
    etcd.announce();
    let mut mirror = Mirror::new(canaries);
    mirror.settle(&etcd);
    assert_eq!(mirror.served(), etcd.truth());
    (etcd, mirror)
}

#[test]
fn the_same_history_is_resumed_by_reading_what_changed_behind_the_newest_put() {
    let (etcd, mut mirror) = settled(true);
    mirror.crash(0);
    mirror.connect(&etcd);
    let mut requests = Vec::new();
    for _ in 0..4 {
        requests.push(mirror.request.clone());
        mirror.advance(&etcd);
    }
    let canary_and_newest = vec![CANARY.to_vec(), format!("{PREFIX}{}", FIRST_IDENTITY + 2).into_bytes()];
    let expected =
        [Request::AwaitCanary, Request::ReadTogether(canary_and_newest), Request::ListChanges(Revision(4)), Request::Watch(Revision(7))];
    assert_eq!(requests, expected.map(Some));
    assert!(mirror.resync.is_synced());
}

#[test]
fn a_source_that_is_still_empty_prunes_nothing() {
    let (mut etcd, mut mirror) = settled(true);
    let before = mirror.served();
    etcd.wipe();
    mirror.crash(0);
    mirror.settle(&etcd);
    assert_eq!(mirror.request, Some(Request::AwaitCanary));
    assert_eq!(mirror.served(), before);
}

#[test]
fn a_reload_in_the_same_order_with_one_early_key_changed_is_noticed_by_its_canary() {
    let (mut etcd, mut mirror) = settled(true);
    etcd.wipe();
    etcd.put(format!("{PREFIX}{FIRST_IDENTITY}").as_bytes(), b"k8s:changed=1;k8s:io.cilium.k8s.policy.cluster=paris;");
    for index in 1..3 {
        etcd.put(format!("{PREFIX}{}", FIRST_IDENTITY + index).as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;");
    }
    etcd.announce();
    mirror.crash(0);
    mirror.settle(&etcd);
    assert_eq!(mirror.served(), etcd.truth());
}

#[test]
fn an_interrupted_list_keeps_the_old_keys_until_a_whole_one_is_in() {
    let (mut etcd, mut mirror) = settled(true);
    for index in 3..9 {
        etcd.put(format!("{PREFIX}{}", FIRST_IDENTITY + index).as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;");
    }
    etcd.delete(format!("{PREFIX}{}", FIRST_IDENTITY + 1).as_bytes());
    etcd.compacted = etcd.revision;
    mirror.crash(0);
    mirror.connect(&etcd);
    while mirror.request != Some(Request::List) {
        assert!(mirror.advance(&etcd));
    }
    mirror.advance(&etcd);
    assert_eq!(mirror.view.cursor(&scope()), None, "no cursor while a list runs");
    assert!(mirror.served().contains_key(&(FIRST_IDENTITY + 1).to_string()), "an interrupted list prunes nothing");
    mirror.connected = false;
    mirror.settle(&etcd);
    assert_eq!(mirror.served(), etcd.truth());
}

#[test]
fn without_canaries_a_changed_history_prunes_only_after_a_quiet_time() {
    let (mut etcd, mut mirror) = settled(false);
    etcd.wipe();
    etcd.put(format!("{PREFIX}{FIRST_IDENTITY}").as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=2;");
    mirror.crash(0);
    mirror.connect(&etcd);
    while mirror.advance(&etcd) {}
    assert!(mirror.resync.owes_prune());
    assert_eq!(mirror.served().len(), 3);
    mirror.feed(Input::Quiet);
    mirror.settle(&etcd);
    assert_eq!(mirror.served(), etcd.truth());
}

/// The etcd is still being filled when the connection breaks, or the process ends.
#[test]
fn an_interrupted_quiet_time_prunes_nothing_and_begins_anew() {
    for crashes in [false, true] {
        let (mut etcd, mut mirror) = settled(false);
        etcd.wipe();
        let put = |etcd: &mut Etcd, number: u32| {
            etcd.put(format!("{PREFIX}{}", FIRST_IDENTITY + number).as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=2;");
        };
        put(&mut etcd, 0);
        mirror.connect(&etcd);
        while mirror.advance(&etcd) {}
        put(&mut etcd, 1);
        while mirror.advance(&etcd) {}
        if crashes {
            mirror.crash(0);
        }
        mirror.connect(&etcd);
        while mirror.advance(&etcd) {}
        assert_eq!((mirror.served().len(), mirror.resync.owes_prune()), (3, true), "the process ended: {crashes}");
        mirror.feed(Input::Quiet);
        mirror.settle(&etcd);
        assert_eq!(mirror.served(), etcd.truth());
        // settled once, the history is the stored one
        mirror.connect(&etcd);
        while mirror.advance(&etcd) {}
        assert!(!mirror.resync.owes_prune());
    }
}

/// A snapshot of etcd restored with the same flags: same id, same canary, a history that parts from ours somewhere.
#[test]
fn a_snapshot_restored_before_the_newest_put_is_noticed_by_its_bytes() {
    let (mut etcd, mut mirror) = settled(true);
    let snapshot = etcd.clone();
    let key = format!("{PREFIX}{FIRST_IDENTITY}").into_bytes();
    etcd.put(&key, b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=1;");
    mirror.settle(&etcd);
    etcd = snapshot;
    etcd.put(&key, b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=2;");
    mirror.crash(0);
    mirror.settle(&etcd);
    assert_eq!(mirror.served(), etcd.truth());
}

/// Restores a snapshot from before our newest delete, and deletes another key: the counts are equal again.
fn delete_another_key_in_a_restored_snapshot() -> (Etcd, Mirror) {
    let (mut etcd, mut mirror) = settled(true);
    let snapshot = etcd.clone();
    etcd.delete(format!("{PREFIX}{FIRST_IDENTITY}").as_bytes());
    mirror.settle(&etcd);
    etcd = snapshot;
    etcd.delete(format!("{PREFIX}{}", FIRST_IDENTITY + 1).as_bytes());
    etcd.put(b"cilium/state/nodes/v1/paris/a", b"another prefix");
    mirror.crash(0);
    (etcd, mirror)
}

#[test]
fn a_snapshot_restored_before_the_newest_delete_is_noticed_by_the_key_that_is_back() {
    let (etcd, mut mirror) = delete_another_key_in_a_restored_snapshot();
    mirror.settle(&etcd);
    assert_eq!(mirror.served(), etcd.truth());
}

#[test]
fn where_the_delete_can_no_longer_be_asked_for_the_keys_are_compared() {
    let (mut etcd, mut mirror) = delete_another_key_in_a_restored_snapshot();
    etcd.compacted = etcd.revision;
    mirror.settle(&etcd);
    assert_eq!(mirror.served(), etcd.truth());
}

#[test]
fn a_snapshot_restored_between_the_newest_put_and_the_list_hides_nothing() {
    let (mut etcd, _) = settled(true);
    let snapshot = etcd.clone();
    etcd.put(b"cilium/state/nodes/v1/paris/a", b"another prefix");
    etcd.put(b"cilium/state/nodes/v1/paris/b", b"another prefix");
    let mut mirror = Mirror::new(true);
    mirror.settle(&etcd);
    etcd = snapshot;
    etcd.put(format!("{PREFIX}{}", FIRST_IDENTITY + 9).as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;");
    etcd.put(b"cilium/state/nodes/v1/paris/a", b"another prefix");
    mirror.crash(0);
    mirror.settle(&etcd);
    assert_eq!(mirror.served(), etcd.truth());
}
