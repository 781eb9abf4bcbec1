//! Tests of the state machine with a scripted source. The source is an etcd made of a log that can
//! be compacted, wiped and reloaded. The connection breaks at any point, and the store loses its
//! newest writes in a crash.

mod etcd;
mod held_keys;
mod mirror;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::SystemTime;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use self::etcd::{EtcdBugs, FakeEtcd};
use self::mirror::FakeMirror;
use super::*;
use crate::model::{ClusterName, Kind, LeaseId, Record, Sequence};
use crate::view::View;
use cilium_kvstore::{LeaseLife, ScriptedWatch, WatchMessage};

const CANARY: &[u8] = b"cilium/synced/paris/cilium/state/identities/v1";
const PREFIX: &str = "cilium/state/identities/v1/id/";
const CONFIG: &[u8] = b"cilium/cluster-config/paris";

/// Canary and prefix as a KVStoreMesh writes them.
const CACHED_CANARY: &[u8] = b"cilium/synced/paris/cilium/cache/identities/v1";
const CACHED_PREFIX: &str = "cilium/cache/identities/v1/paris/id/";

const MARGIN: Duration = Duration::from_secs(30);

/// TTL of every lease in these tests.
const LEASE_TTL: Duration = Duration::from_secs(900);

/// First identity of cluster 1.
const FIRST_IDENTITY: u32 = 1 << 16;

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

fn value(random: &mut StdRng) -> Vec<u8> {
    if random.random_ratio(1, 20) {
        return b"neither labels nor anything else".to_vec();
    }
    format!("k8s:io.cilium.k8s.policy.cluster=paris;k8s:v={};", random.random_range(0..5)).into_bytes()
}

/// Returns whether a key below the watched prefix is an entry: a key that is UTF-8.
fn is_entry(key: &[u8]) -> bool {
    str::from_utf8(key).is_ok()
}

fn source_key(random: &mut StdRng) -> Vec<u8> {
    if random.random_ratio(1, 15) {
        return [PREFIX.as_bytes(), &[0xff, random.random_range(0..3)]].concat();
    }
    format!("{PREFIX}{}", FIRST_IDENTITY + random.random_range(0..12_u32)).into_bytes()
}

/// Wipes an etcd and puts its keys again in their order, with the first one changed: the reload
/// that is hardest to notice.
fn reload(etcd: &mut FakeEtcd, before: &[(i64, Event)], random: &mut StdRng) {
    etcd.wipe();
    for (index, (_, event)) in before.iter().enumerate() {
        match event {
            Event::Put(put) if put.key == CANARY => etcd.put_canary_and_config(),
            Event::Put(put) if index == 0 => etcd.put(&put.key, &value(random)),
            Event::Put(put) => etcd.put(&put.key, &put.value),
            Event::Delete { key, .. } => etcd.delete(key),
        }
    }
}

/// Lets the mirror read everything, then deletes a key and compacts the delete before the watch
/// starts: the worst case.
fn delete_before_the_watch_starts(mirror: &mut FakeMirror, etcd: &mut FakeEtcd, random: &mut StdRng) {
    if !mirror.connected {
        mirror.connect(etcd);
    }
    while !matches!(mirror.request, Some(Request::Watch(_))) && mirror.advance(etcd) {}
    if mirror.watch.is_none() {
        etcd.delete(&source_key(random));
        etcd.compacted = etcd.revision;
    }
}

fn run_random_sequence(seed: u64, canaries: bool) {
    let mut random = StdRng::seed_from_u64(seed);
    let bugs = EtcdBugs {
        omits_compacted_deletes: random.random(),
        old_events: random.random(),
        progress_ahead: random.random(),
        skips_compacted_events: random.random(),
    };
    let mut etcd = FakeEtcd { bugs, ..FakeEtcd::new(1) };
    let mut mirror = FakeMirror::new(canaries);
    let mut snapshot = etcd.clone();
    for _ in 0..random.random_range(20..120) {
        match random.random_range(0..27) {
            26 => delete_before_the_watch_starts(&mut mirror, &mut etcd, &mut random),
            0..=7 => {
                let (key, value) = (source_key(&mut random), value(&mut random));
                etcd.put(&key, &value);
            }
            8..=10 => etcd.delete(&source_key(&mut random)),
            11 => etcd.compacted = random.random_range(etcd.compacted..=etcd.revision),
            12 => etcd.put_canary_and_config(),
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
                    etcd = FakeEtcd { canaries: etcd.canaries, cached: etcd.cached, bugs, ..FakeEtcd::new(etcd.id + 1) };
                }
            }
            17 => snapshot = etcd.clone(),
            18 => {
                mirror.connected = false;
                // time does not go back: no later canary equals an earlier one
                etcd = FakeEtcd { canaries: etcd.canaries, ..snapshot.clone() };
            }
            19 => {
                mirror.lags = random.random();
                if !mirror.lags {
                    mirror.drain_queue();
                }
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
    etcd.put_canary_and_config();
    mirror.run_to_end(&etcd);
    assert!(mirror.resync.is_synced(), "seed {seed}, canaries {canaries}: not synced in the end");
    assert_eq!(mirror.served(), etcd.entries(), "seed {seed}, canaries {canaries}");
    assert_eq!(mirror.unreadable_keys(), etcd.other_keys(), "seed {seed}, canaries {canaries}");
    let state = mirror.view.scope(&scope()).unwrap_or_default();
    assert_eq!(
        (state.confirmed, state.restored_count, usize::try_from(state.entry_count).unwrap()),
        (true, 0, etcd.entries().len()),
        "seed {seed}"
    );
}

#[test]
fn the_mirror_equals_the_source_after_random_sequences() {
    for seed in 0..3_000 {
        run_random_sequence(seed, seed % 4 != 0);
    }
}

/// A source with three identities, and a mirror that has read them.
fn synced_mirror(canaries: bool) -> (FakeEtcd, FakeMirror) {
    let mut etcd = FakeEtcd::new(1);
    for index in 0..3 {
        etcd.put(format!("{PREFIX}{}", FIRST_IDENTITY + index).as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;");
    }
    etcd.put_canary_and_config();
    let mut mirror = FakeMirror::new(canaries);
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.served(), etcd.entries());
    (etcd, mirror)
}

#[test]
fn a_history_at_the_highest_revision_is_read_and_resumed() {
    // three identities, then the last three possible revisions: canary, config, and a put that is
    // watched
    let (mut etcd, mut mirror) = (FakeEtcd { revision: i64::MAX - 6, ..FakeEtcd::new(1) }, FakeMirror::new(true));
    let key = |index: u32| format!("{PREFIX}{}", FIRST_IDENTITY + index).into_bytes();
    for index in 0..3 {
        etcd.put(&key(index), b"k8s:io.cilium.k8s.policy.cluster=paris;");
    }
    etcd.put_canary_and_config();
    mirror.run_to_end(&etcd);
    etcd.put(&key(0), b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=last;");
    assert_eq!(etcd.revision, i64::MAX);
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.served(), etcd.entries());
    for lost in [0, 1, 9] {
        mirror.crash(lost);
        mirror.run_to_end(&etcd);
        assert_eq!(mirror.served(), etcd.entries());
    }
    etcd.compacted = i64::MAX;
    mirror.connected = false;
    mirror.run_to_end(&etcd);
    assert!(mirror.resync.is_synced() && mirror.served() == etcd.entries());
}

#[test]
fn the_same_history_is_resumed_after_the_newest_put() {
    let (etcd, mut mirror) = synced_mirror(true);
    mirror.crash(0);
    mirror.connect(&etcd);
    let mut requests = Vec::new();
    for _ in 0..4 {
        requests.push(mirror.request.clone());
        mirror.advance(&etcd);
    }
    let canary_and_newest = vec![CANARY.to_vec(), format!("{PREFIX}{}", FIRST_IDENTITY + 2).into_bytes()];
    let expected =
        [Request::AwaitCanary, Request::ReadTogether(canary_and_newest), Request::ListChanges(Revision(4)), Request::Watch(Revision(6))];
    assert_eq!(requests, expected.map(Some));
    assert!(mirror.resync.is_synced());
}

#[test]
fn a_source_without_a_canary_removes_nothing() {
    let (mut etcd, mut mirror) = synced_mirror(true);
    let before = mirror.served();
    etcd.wipe();
    mirror.crash(0);
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.request, Some(Request::AwaitCanary));
    assert_eq!(mirror.served(), before);
}

#[test]
fn a_new_canary_reveals_a_reload_with_one_changed_key() {
    let (mut etcd, mut mirror) = synced_mirror(true);
    etcd.wipe();
    etcd.put(format!("{PREFIX}{FIRST_IDENTITY}").as_bytes(), b"k8s:changed=1;k8s:io.cilium.k8s.policy.cluster=paris;");
    for index in 1..3 {
        etcd.put(format!("{PREFIX}{}", FIRST_IDENTITY + index).as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;");
    }
    etcd.put_canary_and_config();
    mirror.crash(0);
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.served(), etcd.entries());
}

#[test]
fn an_interrupted_list_removes_no_keys() {
    let (mut etcd, mut mirror) = synced_mirror(true);
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
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.served(), etcd.entries());
}

/// An agent swaps its cache of a remote's identities when the new list is complete
/// (docs/develop/protocol.md §3.6). Here the listed entries are served at once, and the missing
/// ones until the list is complete. Entries of an interrupted list stay, because they existed.
#[test]
fn a_list_serves_entries_at_once_and_removes_them_at_its_end() {
    let (mut etcd, mut mirror) = synced_mirror(true);
    let put = |etcd: &mut FakeEtcd, number: u32| {
        etcd.put(format!("{PREFIX}{}", FIRST_IDENTITY + number).as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=2;");
    };
    let ids = |mirror: &FakeMirror| -> Vec<u32> { mirror.served().keys().map(|id| id.parse::<u32>().unwrap() - FIRST_IDENTITY).collect() };
    assert_eq!(ids(&mirror), [0, 1, 2]);
    // another etcd with other identities, in two pages
    etcd.wipe();
    etcd.id += 1;
    (1..6).for_each(|number| put(&mut etcd, number));
    etcd.put_canary_and_config();
    let begin = |mirror: &mut FakeMirror, etcd: &FakeEtcd| {
        mirror.connect(etcd);
        while mirror.request != Some(Request::List) {
            assert!(mirror.advance(etcd));
        }
        mirror.advance(etcd);
    };
    begin(&mut mirror, &etcd);
    assert_eq!(ids(&mirror), [0, 1, 2, 3]);
    mirror.connected = false;
    etcd.delete(format!("{PREFIX}{}", FIRST_IDENTITY + 3).as_bytes());
    put(&mut etcd, 7);
    begin(&mut mirror, &etcd);
    assert_eq!(ids(&mirror), [0, 1, 2, 3, 4]);
    mirror.run_to_end(&etcd);
    assert_eq!(ids(&mirror), [1, 2, 4, 5, 7]);
}

#[test]
fn another_history_without_canaries_needs_a_quiet_time() {
    let (mut etcd, mut mirror) = synced_mirror(false);
    etcd.wipe();
    etcd.put(format!("{PREFIX}{FIRST_IDENTITY}").as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=2;");
    mirror.crash(0);
    mirror.connect(&etcd);
    while mirror.advance(&etcd) {}
    assert!(mirror.resync.has_pending_prune());
    assert_eq!(mirror.served().len(), 3);
    mirror.feed(Input::QuietTimeOver);
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.served(), etcd.entries());
}

/// The file of the cluster now leads to a KVStoreMesh, and the old keys may still exist in the same
/// etcd.
#[test]
fn another_form_of_keys_is_another_history() {
    let (mut etcd, mut mirror) = synced_mirror(false);
    etcd.cached = true;
    for index in 0..2 {
        etcd.put(format!("{CACHED_PREFIX}{}", FIRST_IDENTITY + index).as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;");
    }
    mirror.crash(0);
    mirror.connect(&etcd);
    while mirror.advance(&etcd) {}
    assert_eq!((mirror.served().len(), mirror.resync.has_pending_prune()), (3, true));
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.served(), etcd.entries());
}

/// The etcd is still being filled when the connection breaks or the process ends.
#[test]
fn an_interrupted_quiet_time_prunes_nothing_and_restarts() {
    for crashes in [false, true] {
        let (mut etcd, mut mirror) = synced_mirror(false);
        etcd.wipe();
        let put = |etcd: &mut FakeEtcd, number: u32| {
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
        assert_eq!((mirror.served().len(), mirror.resync.has_pending_prune()), (3, true), "the process ended: {crashes}");
        mirror.feed(Input::QuietTimeOver);
        mirror.run_to_end(&etcd);
        assert_eq!(mirror.served(), etcd.entries());
        // from then on, this is the stored history
        mirror.connect(&etcd);
        while mirror.advance(&etcd) {}
        assert!(!mirror.resync.has_pending_prune());
    }
}

/// A snapshot of etcd that was restored with the same flags has the same id and canary, and a
/// history that differs from some revision on.
#[test]
fn the_value_of_the_newest_put_reveals_a_restored_snapshot() {
    let (mut etcd, mut mirror) = synced_mirror(true);
    let snapshot = etcd.clone();
    let key = format!("{PREFIX}{FIRST_IDENTITY}").into_bytes();
    etcd.put(&key, b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=1;");
    mirror.run_to_end(&etcd);
    etcd = snapshot;
    etcd.put(&key, b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=2;");
    mirror.crash(0);
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.served(), etcd.entries());
}

/// In the restored history the key of the newest put was put again after the stored revision. Only
/// its value at the stored revision distinguishes the two histories, and a list of later changes
/// misses the put of the other key at that revision.
#[test]
fn the_old_value_of_a_key_reveals_a_restored_snapshot() {
    let (mut etcd, mut mirror) = synced_mirror(true);
    let (key, other) = (format!("{PREFIX}{FIRST_IDENTITY}").into_bytes(), format!("{PREFIX}{}", FIRST_IDENTITY + 1).into_bytes());
    let snapshot = etcd.clone();
    etcd.put(&key, b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=1;");
    mirror.run_to_end(&etcd);
    etcd = snapshot;
    etcd.put(&other, b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=2;");
    etcd.put(&key, b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=1;");
    mirror.crash(0);
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.served(), etcd.entries());
}

#[test]
fn a_resume_starts_at_the_newest_watched_put() {
    let (mut etcd, mut mirror) = synced_mirror(true);
    let key = format!("{PREFIX}{FIRST_IDENTITY}").into_bytes();
    etcd.put(&key, b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=1;");
    mirror.run_to_end(&etcd);
    mirror.crash(0);
    mirror.connect(&etcd);
    let mut requests = Vec::new();
    while !matches!(mirror.request, Some(Request::Watch(_))) && mirror.advance(&etcd) {
        requests.extend(mirror.request.clone());
    }
    let (put, now) = (Revision(etcd.revision), Revision(etcd.revision));
    assert_eq!(requests, [Request::ReadTogether(vec![CANARY.to_vec(), key]), Request::ListChanges(put), Request::Watch(now)]);
}

/// Old etcds send a new watch events from before its start (etcd #20221). These must not move the
/// cursor back.
#[test]
fn old_events_do_not_decrease_the_revision() {
    let (etcd, mut mirror) = synced_mirror(true);
    let (before, revision) = (mirror.served(), mirror.resync.cursor().unwrap().revision);
    let evidence = mirror.evidence(&etcd, &[]);
    mirror.feed(Input::Events { events: Vec::new(), revision: Revision(2), evidence });
    assert_eq!((mirror.served(), mirror.resync.cursor().unwrap().revision), (before, revision));
}

/// The snapshot has the newest stored put but not the revision that was read, so only the revision
/// shows the difference.
#[test]
fn a_lower_revision_reveals_a_restored_snapshot() {
    let (mut etcd, _) = synced_mirror(false);
    let snapshot = etcd.clone();
    etcd.put(b"cilium/state/nodes/v1/paris/a", b"another prefix");
    etcd.put(b"cilium/state/nodes/v1/paris/b", b"another prefix");
    let mut mirror = FakeMirror::new(false);
    mirror.run_to_end(&etcd);
    etcd = snapshot;
    etcd.delete(format!("{PREFIX}{FIRST_IDENTITY}").as_bytes());
    mirror.crash(0);
    mirror.connect(&etcd);
    while mirror.advance(&etcd) {}
    assert_eq!((mirror.served().len(), mirror.resync.has_pending_prune()), (3, true), "another history removes nothing at once");
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.served(), etcd.entries());
}

/// Restores a snapshot from before the newest delete, and deletes another key, so that the counts
/// are equal again.
fn delete_another_key_in_a_restored_snapshot() -> (FakeEtcd, FakeMirror) {
    let (mut etcd, mut mirror) = synced_mirror(true);
    let snapshot = etcd.clone();
    etcd.delete(format!("{PREFIX}{FIRST_IDENTITY}").as_bytes());
    mirror.run_to_end(&etcd);
    etcd = snapshot;
    etcd.delete(format!("{PREFIX}{}", FIRST_IDENTITY + 1).as_bytes());
    etcd.put(b"cilium/state/nodes/v1/paris/a", b"another prefix");
    mirror.crash(0);
    (etcd, mirror)
}

#[test]
fn the_deleted_key_reveals_a_restored_snapshot() {
    let (etcd, mut mirror) = delete_another_key_in_a_restored_snapshot();
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.served(), etcd.entries());
}

#[test]
fn a_compacted_delete_leads_to_a_comparison_of_keys() {
    let (mut etcd, mut mirror) = delete_another_key_in_a_restored_snapshot();
    etcd.compacted = etcd.revision;
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.served(), etcd.entries());
}

#[test]
fn a_snapshot_restored_before_a_list_hides_no_change() {
    let (mut etcd, _) = synced_mirror(true);
    let snapshot = etcd.clone();
    etcd.put(b"cilium/state/nodes/v1/paris/a", b"another prefix");
    etcd.put(b"cilium/state/nodes/v1/paris/b", b"another prefix");
    let mut mirror = FakeMirror::new(true);
    mirror.run_to_end(&etcd);
    etcd = snapshot;
    etcd.put(format!("{PREFIX}{}", FIRST_IDENTITY + 9).as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;");
    etcd.put(b"cilium/state/nodes/v1/paris/a", b"another prefix");
    mirror.crash(0);
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.served(), etcd.entries());
}
