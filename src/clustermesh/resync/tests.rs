//! The state machine against a scripted source. The source is an etcd made of a log that can be
//! compacted, wiped and reloaded. The connection breaks at any point, and the store loses its
//! newest writes in a crash.

mod etcd;
mod holds;
mod mirror;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::SystemTime;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use self::etcd::{Bugs, Etcd};
use self::mirror::Mirror;
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
const LEASE_LIFE: Duration = Duration::from_secs(900);

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

/// Returns whether a key below the watched prefix is an entry, which it is if it is UTF-8.
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

/// Everything is read, and before the watch exists the next revision is a delete that is compacted
/// away: the worst case.
fn delete_before_the_watch_stands(mirror: &mut Mirror, etcd: &mut Etcd, random: &mut StdRng) {
    if !mirror.connected {
        mirror.connect(etcd);
    }
    while !matches!(mirror.request, Some(Request::Watch(_))) && mirror.advance(etcd) {}
    if mirror.watch.is_none() {
        etcd.delete(&source_key(random));
        etcd.compacted = etcd.revision;
    }
}

fn random_life(seed: u64, canaries: bool) {
    let mut random = StdRng::seed_from_u64(seed);
    let bugs = Bugs {
        silent_at_a_compacted_delete: random.random(),
        old_events: random.random(),
        progress_ahead: random.random(),
        starved: random.random(),
    };
    let mut etcd = Etcd { bugs, ..Etcd::new(1) };
    let mut mirror = Mirror::new(canaries);
    let mut snapshot = etcd.clone();
    for _ in 0..random.random_range(20..120) {
        match random.random_range(0..27) {
            26 => delete_before_the_watch_stands(&mut mirror, &mut etcd, &mut random),
            0..=7 => {
                let (key, value) = (source_key(&mut random), value(&mut random));
                etcd.put(&key, &value);
            }
            8..=10 => etcd.delete(&source_key(&mut random)),
            11 => etcd.compacted = random.random_range(etcd.compacted..=etcd.revision),
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
                    etcd = Etcd { canaries: etcd.canaries, cached: etcd.cached, bugs, ..Etcd::new(etcd.id + 1) };
                }
            }
            17 => snapshot = etcd.clone(),
            18 => {
                mirror.connected = false;
                // time does not go back: no later canary equals an earlier one
                etcd = Etcd { canaries: etcd.canaries, ..snapshot.clone() };
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
    assert_eq!(mirror.refused(), etcd.no_entries(), "seed {seed}, canaries {canaries}");
    let state = mirror.view.scope(&scope()).unwrap_or_default();
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

/// A source with three identities, and a mirror that has read them.
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
fn a_history_that_is_at_its_last_revision_is_read_watched_and_resumed() {
    // three identities, then the last three possible revisions: canary, config, and a put that is
    // watched
    let (mut etcd, mut mirror) = (Etcd { revision: i64::MAX - 6, ..Etcd::new(1) }, Mirror::new(true));
    let key = |index: u32| format!("{PREFIX}{}", FIRST_IDENTITY + index).into_bytes();
    for index in 0..3 {
        etcd.put(&key(index), b"k8s:io.cilium.k8s.policy.cluster=paris;");
    }
    etcd.announce();
    mirror.settle(&etcd);
    etcd.put(&key(0), b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=last;");
    assert_eq!(etcd.revision, i64::MAX);
    mirror.settle(&etcd);
    assert_eq!(mirror.served(), etcd.truth());
    for lost in [0, 1, 9] {
        mirror.crash(lost);
        mirror.settle(&etcd);
        assert_eq!(mirror.served(), etcd.truth());
    }
    etcd.compacted = i64::MAX;
    mirror.connected = false;
    mirror.settle(&etcd);
    assert!(mirror.resync.is_synced() && mirror.served() == etcd.truth());
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
        [Request::AwaitCanary, Request::ReadTogether(canary_and_newest), Request::ListChanges(Revision(4)), Request::Watch(Revision(6))];
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

/// An agent swaps its cache of a remote's identities when the new list is complete
/// (docs/develop/protocol.md §3.6). Here the listed entries are served at once, and the missing
/// ones until the list is complete. Entries of an interrupted list stay, because they existed.
#[test]
fn of_a_list_of_identities_what_comes_is_served_and_what_is_missing_goes_only_at_its_end() {
    let (mut etcd, mut mirror) = settled(true);
    let put = |etcd: &mut Etcd, number: u32| {
        etcd.put(format!("{PREFIX}{}", FIRST_IDENTITY + number).as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=2;");
    };
    let ids = |mirror: &Mirror| -> Vec<u32> { mirror.served().keys().map(|id| id.parse::<u32>().unwrap() - FIRST_IDENTITY).collect() };
    assert_eq!(ids(&mirror), [0, 1, 2]);
    // another etcd with other identities, in two pages
    etcd.wipe();
    etcd.id += 1;
    (1..6).for_each(|number| put(&mut etcd, number));
    etcd.announce();
    let begin = |mirror: &mut Mirror, etcd: &Etcd| {
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
    mirror.settle(&etcd);
    assert_eq!(ids(&mirror), [1, 2, 4, 5, 7]);
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

/// The file of the cluster now leads to a KVStoreMesh, and the old keys may still exist in the same
/// etcd.
#[test]
fn another_form_of_keys_is_another_history() {
    let (mut etcd, mut mirror) = settled(false);
    etcd.cached = true;
    for index in 0..2 {
        etcd.put(format!("{CACHED_PREFIX}{}", FIRST_IDENTITY + index).as_bytes(), b"k8s:io.cilium.k8s.policy.cluster=paris;");
    }
    mirror.crash(0);
    mirror.connect(&etcd);
    while mirror.advance(&etcd) {}
    assert_eq!((mirror.served().len(), mirror.resync.owes_prune()), (3, true));
    mirror.settle(&etcd);
    assert_eq!(mirror.served(), etcd.truth());
}

/// The etcd is still being filled when the connection breaks or the process ends.
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
        // once it is settled, this is the stored history
        mirror.connect(&etcd);
        while mirror.advance(&etcd) {}
        assert!(!mirror.resync.owes_prune());
    }
}

/// A snapshot of etcd that was restored with the same flags has the same id and canary, and a
/// history that differs from some revision on.
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

/// In the restored history the key of the newest put was put again after our revision. Only its
/// value at our revision tells the two apart, and a list of later changes misses the other put at
/// that revision.
#[test]
fn a_snapshot_whose_history_put_the_same_key_later_is_noticed_by_its_value_then() {
    let (mut etcd, mut mirror) = settled(true);
    let (key, other) = (format!("{PREFIX}{FIRST_IDENTITY}").into_bytes(), format!("{PREFIX}{}", FIRST_IDENTITY + 1).into_bytes());
    let snapshot = etcd.clone();
    etcd.put(&key, b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=1;");
    mirror.settle(&etcd);
    etcd = snapshot;
    etcd.put(&other, b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=2;");
    etcd.put(&key, b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=1;");
    mirror.crash(0);
    mirror.settle(&etcd);
    assert_eq!(mirror.served(), etcd.truth());
}

#[test]
fn a_put_that_was_watched_is_what_a_resume_asks_for_and_reads_behind() {
    let (mut etcd, mut mirror) = settled(true);
    let key = format!("{PREFIX}{FIRST_IDENTITY}").into_bytes();
    etcd.put(&key, b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:v=1;");
    mirror.settle(&etcd);
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
fn events_from_before_take_no_revision_back() {
    let (etcd, mut mirror) = settled(true);
    let (before, revision) = (mirror.served(), mirror.resync.cursor().unwrap().revision);
    let signs = mirror.signs(&etcd, &[]);
    mirror.feed(Input::Events { events: Vec::new(), revision: Revision(2), signs });
    assert_eq!((mirror.served(), mirror.resync.cursor().unwrap().revision), (before, revision));
}

/// The snapshot has the newest stored put but not the revision that was read, so only the revision
/// shows the difference.
#[test]
fn a_snapshot_restored_behind_the_newest_put_is_noticed_by_its_revision() {
    let (mut etcd, _) = settled(false);
    let snapshot = etcd.clone();
    etcd.put(b"cilium/state/nodes/v1/paris/a", b"another prefix");
    etcd.put(b"cilium/state/nodes/v1/paris/b", b"another prefix");
    let mut mirror = Mirror::new(false);
    mirror.settle(&etcd);
    etcd = snapshot;
    etcd.delete(format!("{PREFIX}{FIRST_IDENTITY}").as_bytes());
    mirror.crash(0);
    mirror.connect(&etcd);
    while mirror.advance(&etcd) {}
    assert_eq!((mirror.served().len(), mirror.resync.owes_prune()), (3, true), "another history removes nothing at once");
    mirror.settle(&etcd);
    assert_eq!(mirror.served(), etcd.truth());
}

/// Restores a snapshot from before the newest delete, and deletes another key, so that the counts
/// are equal again.
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
