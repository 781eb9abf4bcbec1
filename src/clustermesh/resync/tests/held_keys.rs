//! A source that loses its keys because its writer died, in scripted and in random sequences
//! (docs/develop/invariants.md, 4).

use super::*;

const LABELS: &[u8] = b"k8s:io.cilium.k8s.policy.cluster=paris;";

/// Lease of config and canary, and the first lease of the entries.
const WRITER_LEASE: i64 = 1;
const FIRST_LEASE: i64 = 10;

/// A KVStoreMesh's copy with nine identities, three on each of three leases, and the writer's keys
/// on another lease.
fn kvstoremesh_copy() -> (FakeEtcd, FakeMirror) {
    let mut etcd = FakeEtcd { cached: true, ..FakeEtcd::new(1) };
    for index in 0..9 {
        etcd.lease = FIRST_LEASE + i64::from(index) / 3;
        etcd.put(&key(index), LABELS);
    }
    etcd.lease = WRITER_LEASE;
    etcd.put_canary_and_config();
    let mut mirror = FakeMirror::new(true);
    mirror.run_to_end(&etcd);
    assert_eq!(mirror.served().len(), 9);
    (etcd, mirror)
}

fn key(index: u32) -> Vec<u8> {
    format!("{CACHED_PREFIX}{}", FIRST_IDENTITY + index).into_bytes()
}

/// Performs all requests without letting time pass.
fn run(mirror: &mut FakeMirror, etcd: &FakeEtcd) {
    if !mirror.connected {
        mirror.connect(etcd);
    }
    while mirror.advance(etcd) {}
}

/// Lets time pass in steps, and checks the writer's keys after each.
fn wait(mirror: &mut FakeMirror, etcd: &mut FakeEtcd, time: Duration) {
    for _ in 0..10 {
        etcd.clock += time / 10;
        run(mirror, etcd);
        mirror.check_holds(etcd);
        run(mirror, etcd);
    }
}

fn count_held_entries(mirror: &FakeMirror) -> usize {
    mirror.view.in_scope(&scope()).filter(|record| record.source.held).count()
}

/// Restarts the writer, which puts this number of keys on a new lease, between config and canary.
fn restart_writer(etcd: &mut FakeEtcd, count: u32) {
    etcd.lease = 20;
    etcd.put(CONFIG, b"{}");
    for index in 0..count {
        etcd.put(&key(index), LABELS);
    }
    etcd.put_canary_and_config();
}

#[test]
fn a_deleted_key_whose_lease_exists_is_not_held() {
    let (mut etcd, mut mirror) = kvstoremesh_copy();
    etcd.delete(&key(0));
    run(&mut mirror, &etcd);
    assert_eq!((mirror.served().len(), mirror.resync.held_count()), (8, 0));
}

/// Held keys may exist again or be deleted for good, so each connection holds only the keys that it
/// finds missing itself.
#[test]
fn a_new_connection_holds_nothing_before_it_compares() {
    let (mut etcd, mut mirror) = kvstoremesh_copy();
    etcd.expire(FIRST_LEASE);
    run(&mut mirror, &etcd);
    assert_eq!(mirror.resync.held_count(), 3);
    mirror.connect(&etcd);
    assert_eq!(mirror.resync.held_count(), 0);
    run(&mut mirror, &etcd);
    assert_eq!((mirror.resync.held_count(), mirror.served().len()), (3, 9));
}

#[test]
fn expired_keys_are_held_until_the_writer_is_back() {
    for order in [[10, 11, 12, WRITER_LEASE], [WRITER_LEASE, 10, 11, 12]] {
        let (mut etcd, mut mirror) = kvstoremesh_copy();
        for lease in order {
            etcd.expire(lease);
            wait(&mut mirror, &mut etcd, LEASE_TTL / 12);
        }
        wait(&mut mirror, &mut etcd, LEASE_TTL * 3);
        assert_eq!((mirror.served().len(), mirror.resync.held_count(), count_held_entries(&mirror)), (9, 9, 9));
        restart_writer(&mut etcd, 8);
        run(&mut mirror, &etcd);
        assert_eq!(
            (mirror.served().len(), mirror.resync.held_count(), count_held_entries(&mirror)),
            (9, 1, 1),
            "keys that were put again are no longer held"
        );
        wait(&mut mirror, &mut etcd, LEASE_TTL / 3);
        assert_eq!(mirror.served().len(), 9, "the writer must first live for a while");
        wait(&mut mirror, &mut etcd, MARGIN + Duration::from_secs(60));
        assert_eq!(mirror.served(), etcd.entries());
        assert!(mirror.resync.is_synced());
    }
}

#[test]
fn expired_keys_are_held_while_meshkeep_is_down() {
    let (mut etcd, mut mirror) = kvstoremesh_copy();
    mirror.connected = false;
    for lease in [10, 11, 12, WRITER_LEASE] {
        etcd.expire(lease);
    }
    mirror.crash(0);
    run(&mut mirror, &etcd);
    assert_eq!(mirror.request, Some(Request::AwaitCanary));
    assert_eq!(mirror.served().len(), 9);
    mirror.connected = false;
    restart_writer(&mut etcd, 8);
    mirror.crash(0);
    run(&mut mirror, &etcd);
    assert_eq!((mirror.served().len(), mirror.resync.held_count()), (9, 1));
    // etcd may have been restarted: a third of a TTL proves nothing unless the lease is renewed
    etcd.deadlines.insert(20, etcd.clock + LEASE_TTL);
    wait(&mut mirror, &mut etcd, LEASE_TTL / 2);
    assert_eq!(mirror.served().len(), 9);
    etcd.deadlines.clear();
    wait(&mut mirror, &mut etcd, Duration::from_secs(60));
    assert_eq!(mirror.served(), etcd.entries());
}

#[test]
fn a_held_key_is_removed_after_a_third_of_the_ttl() {
    let (mut etcd, mut mirror) = mirror_with_one_held_key();
    assert_eq!((mirror.served().len(), mirror.resync.held_count()), (9, 1));
    wait(&mut mirror, &mut etcd, LEASE_TTL / 3 + MARGIN * 3);
    assert_eq!(mirror.served(), etcd.entries());
}

/// Returns a mirror that holds one key, whose lease has expired, after the first check of the
/// writer's keys.
fn mirror_with_one_held_key() -> (FakeEtcd, FakeMirror) {
    let (mut etcd, mut mirror) = kvstoremesh_copy();
    etcd.lease = 30;
    etcd.put(&key(0), LABELS);
    run(&mut mirror, &etcd);
    etcd.expire(30);
    run(&mut mirror, &etcd);
    mirror.check_holds(&etcd);
    (etcd, mirror)
}

/// Lets time pass, and checks the writer's keys once at the end.
fn check_holds_after(mirror: &mut FakeMirror, etcd: &mut FakeEtcd, time: Duration) -> usize {
    etcd.clock += time;
    mirror.check_holds(etcd);
    run(mirror, etcd);
    mirror.served().len()
}

/// The margin covers delayed keepalives and imprecise clocks: a third of a TTL alone ends no hold.
#[test]
fn a_hold_ends_after_a_third_of_the_ttl_and_the_margin() {
    let (mut etcd, mut mirror) = mirror_with_one_held_key();
    assert_eq!(check_holds_after(&mut mirror, &mut etcd, LEASE_TTL / 3), 9);
    assert_eq!(check_holds_after(&mut mirror, &mut etcd, MARGIN - Duration::from_secs(1)), 9);
    assert_eq!(check_holds_after(&mut mirror, &mut etcd, Duration::from_secs(1)), 8);
}

/// The writer died and another one started between two checks. The keys belong to the new writer,
/// so the wait starts again.
#[test]
fn recreated_writer_keys_restart_the_wait() {
    let (mut etcd, mut mirror) = mirror_with_one_held_key();
    etcd.delete(CONFIG);
    etcd.put_canary_and_config();
    run(&mut mirror, &etcd);
    assert_eq!(check_holds_after(&mut mirror, &mut etcd, LEASE_TTL / 3 + MARGIN), 9);
    assert_eq!(check_holds_after(&mut mirror, &mut etcd, LEASE_TTL / 3 + MARGIN), 8);
}

/// A late delete of a held key must not remove a new entry with the same key.
#[test]
fn a_late_delete_of_a_held_key_does_not_remove_its_replacement() {
    let (mut etcd, mut mirror) = kvstoremesh_copy();
    etcd.expire(FIRST_LEASE);
    run(&mut mirror, &etcd);
    assert_eq!(count_held_entries(&mirror), 3);
    // two of the three held keys are put again, one unchanged and one with another value; when the
    // hold ends, only the third key is removed
    etcd.lease = FIRST_LEASE + 1;
    etcd.put(&key(0), LABELS);
    etcd.put(&key(1), b"k8s:io.cilium.k8s.policy.cluster=paris;k8s:pod=replacement;");
    wait(&mut mirror, &mut etcd, LEASE_TTL + MARGIN);
    assert_eq!((mirror.served(), count_held_entries(&mirror)), (etcd.entries(), 0));
    assert_eq!(mirror.served().len(), 8);
    // the same if a delete and a put of the key follow each other directly
    etcd.delete(&key(1));
    etcd.put(&key(1), LABELS);
    run(&mut mirror, &etcd);
    assert_eq!(mirror.served(), etcd.entries());
}

#[test]
fn an_expired_lease_in_a_direct_peer_deletes_its_keys() {
    let (mut etcd, mut mirror) = synced_mirror(true);
    etcd.expire(7);
    etcd.lease = 8;
    etcd.put_canary_and_config();
    run(&mut mirror, &etcd);
    assert_eq!(mirror.served().len(), 0);
    let (mut etcd, mut mirror) = synced_mirror(true);
    etcd.expire(7);
    run(&mut mirror, &etcd);
    assert_eq!(mirror.served().len(), 3, "the keys are held if the config or the canary expired with them");
}

#[test]
fn held_keys_are_revoked_after_the_cache_ttl() {
    let (mut etcd, mut mirror) = kvstoremesh_copy();
    etcd.expire(10);
    run(&mut mirror, &etcd);
    mirror.feed(Input::Revoke);
    assert_eq!((mirror.served(), mirror.resync.held_count()), (etcd.entries(), 0));
}

#[test]
fn a_new_etcd_removes_keys_only_with_a_fresh_canary() {
    for (left, expected) in [(LEASE_TTL, 3), (LEASE_TTL / 3, 9)] {
        let (mut etcd, mut mirror) = kvstoremesh_copy();
        etcd = FakeEtcd { cached: true, canaries: etcd.canaries, clock: etcd.clock, ..FakeEtcd::new(2) };
        etcd.deadlines.insert(20, etcd.clock + left);
        restart_writer(&mut etcd, 3);
        mirror.connected = false;
        run(&mut mirror, &etcd);
        assert_eq!(mirror.served().len(), expected);
    }
}

#[test]
fn a_new_etcd_removes_keys_after_an_interrupted_list() {
    // interrupted after this number of answers: in the middle of the list, at its end, and while
    // its unconfirmed entries are deleted or held
    for (answers, crashes) in [(1, false), (1, true), (2, false), (2, true), (3, true)] {
        let (mut etcd, mut mirror) = kvstoremesh_copy();
        etcd = FakeEtcd { cached: true, canaries: etcd.canaries, clock: etcd.clock, ..FakeEtcd::new(2) };
        // it has none of the leases of the stored keys
        [10, 11, 12, WRITER_LEASE].into_iter().for_each(|lease| etcd.expire(lease));
        restart_writer(&mut etcd, 7);
        mirror.connect(&etcd);
        while mirror.request != Some(Request::List) {
            assert!(mirror.advance(&etcd));
        }
        for _ in 0..answers {
            mirror.advance(&etcd);
        }
        mirror.connected = false;
        if crashes {
            mirror.crash(0);
        }
        run(&mut mirror, &etcd);
        assert_eq!(mirror.served(), etcd.entries(), "after {answers} answers, the process ended: {crashes}");
    }
}

/// A sequence of writers. Each dies, and its leases expire in any order within the last third of
/// their TTL.
fn run_random_losses(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut etcd, mut mirror) = kvstoremesh_copy();
    let mut next_lease = 100;
    let mut leases = vec![WRITER_LEASE, FIRST_LEASE, FIRST_LEASE + 1, FIRST_LEASE + 2];
    for _ in 0..random.random_range(1..4) {
        write_at_random(&mut etcd, &mut mirror, &leases, &mut random);
        // keys of an earlier writer that this one did not put again may be removed
        let own = etcd.keys.values().filter(|put| leases.contains(&put.lease.0) && put.key.starts_with(CACHED_PREFIX.as_bytes()));
        let kept: BTreeSet<String> = own.map(|put| name_of(&put.key)).collect();
        let assert_kept = |mirror: &FakeMirror, when: &str| {
            let missing: Vec<&String> = kept.iter().filter(|name| !mirror.served().contains_key(*name)).collect();
            assert!(missing.is_empty(), "seed {seed}, {when}: {missing:?} were removed although only the source had lost them");
        };
        for lease in &leases {
            etcd.deadlines.insert(*lease, etcd.clock + LEASE_TTL * random.random_range(67..100) / 100);
        }
        for _ in 0..random.random_range(0..60) {
            pass_time(&mut etcd, &mut mirror, &mut random);
            assert_kept(&mirror, "while nobody writes");
        }
        leases = (0..3).map(|index| next_lease + index).collect();
        next_lease += 3;
        etcd.lease = leases[0];
        etcd.put(CONFIG, b"{}");
        for index in 0..14 {
            if random.random_ratio(3, 4) {
                etcd.lease = leases[random.random_range(0..3)];
                etcd.put(&key(index), LABELS);
            }
            for _ in 0..random.random_range(0..3) {
                step(&mut mirror, &etcd, &mut random);
                assert_kept(&mirror, "while the next writer starts");
            }
        }
        etcd.lease = leases[0];
        etcd.put_canary_and_config();
    }
    etcd.clock += LEASE_TTL * 3;
    expire_due(&mut etcd);
    mirror.run_to_end(&etcd);
    assert_eq!((mirror.served(), mirror.resync.held_count()), (etcd.entries(), 0), "seed {seed}");
    assert_eq!(count_held_entries(&mirror), 0, "seed {seed}");
}

/// Random writes of a living writer. The mirror has read all of them in the end.
fn write_at_random(etcd: &mut FakeEtcd, mirror: &mut FakeMirror, leases: &[i64], random: &mut StdRng) {
    for _ in 0..random.random_range(0..20) {
        let name = key(random.random_range(0..14));
        if random.random_ratio(1, 3) {
            etcd.delete(&name);
        } else {
            etcd.lease = leases[random.random_range(0..leases.len())];
            etcd.put(&name, &value(random));
        }
        step(mirror, etcd, random);
    }
    run(mirror, etcd);
}

/// Lets some time pass while nothing is written.
fn pass_time(etcd: &mut FakeEtcd, mirror: &mut FakeMirror, random: &mut StdRng) {
    etcd.clock += LEASE_TTL / random.random_range(15..60);
    expire_due(etcd);
    if random.random_ratio(1, 30) {
        // a restart of etcd resets the remaining time of every lease
        mirror.connected = false;
        for deadline in etcd.deadlines.values_mut() {
            *deadline = etcd.clock + LEASE_TTL;
        }
    }
    if random.random_ratio(1, 10) {
        etcd.compacted = etcd.revision;
    }
    for _ in 0..random.random_range(0..8) {
        step(mirror, etcd, random);
    }
}

fn step(mirror: &mut FakeMirror, etcd: &FakeEtcd, random: &mut StdRng) {
    match random.random_range(0..40) {
        0 => mirror.connected = false,
        // `crash(0)` loses no stored writes, because a key that both the source and the store have
        // lost cannot be kept
        1 => mirror.crash(0),
        _ if !mirror.connected => mirror.connect(etcd),
        2..6 => {
            if matches!(mirror.request, Some(Request::Watch(_))) {
                run(mirror, etcd);
                mirror.check_holds(etcd);
            }
        }
        _ => {
            mirror.advance(etcd);
        }
    }
}

fn expire_due(etcd: &mut FakeEtcd) {
    let due: Vec<i64> = etcd.deadlines.iter().filter(|(_, deadline)| **deadline <= etcd.clock).map(|(lease, _)| *lease).collect();
    for lease in due {
        etcd.deadlines.remove(&lease);
        etcd.expire(lease);
    }
}

#[test]
fn random_losses_of_a_source_remove_no_keys() {
    for seed in 0..400 {
        run_random_losses(seed);
    }
}

/// A verification found a difference: everything is listed again, but never while keys are held.
#[test]
fn a_difference_leads_to_a_list_unless_keys_are_held() {
    let (mut etcd, mut mirror) = kvstoremesh_copy();
    mirror.feed(Input::Diverged);
    assert_eq!(mirror.request, Some(Request::List));
    run(&mut mirror, &etcd);
    assert_eq!((mirror.served(), mirror.resync.is_synced()), (etcd.entries(), true));
    etcd.expire(FIRST_LEASE);
    run(&mut mirror, &etcd);
    let watch = mirror.request.clone();
    mirror.feed(Input::Diverged);
    assert_eq!((mirror.request.clone(), mirror.resync.held_count(), mirror.served().len()), (watch, 3, 9));
}
