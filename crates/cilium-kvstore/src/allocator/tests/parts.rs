//! Tests of the pool, the local keys and the copy, and of the effects of store changes on them.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{id, key, range};
use crate::Revision;
use crate::allocator::backend::{Id, IdRange, Mutation};
use crate::allocator::cache::Cache;
use crate::allocator::event::{AllocatorEvent, AllocatorEventKind};
use crate::allocator::key::AllocatorKey;
use crate::allocator::local::{Conflict, LocalKeys, LocalRelease};
use crate::allocator::options::{AllocatorOptions, Validator};
use crate::allocator::pool::IdPool;
use crate::allocator::state::{AllocatorState, MutationEffects};

#[test]
fn a_key_contains_its_labels_in_the_order_of_their_keys() {
    let labels = [("k8s:b", "2"), ("container:a", "x=y:z"), ("k8s:io.cilium.k8s.policy.cluster", "vms"), ("plain", "")];
    let key = AllocatorKey::from_labels(labels);
    assert_eq!(key.as_str(), "container:a=x=y:z;k8s:b=2;k8s:io.cilium.k8s.policy.cluster=vms;unspec:plain=;");
    assert_eq!(key, AllocatorKey::from_labels(labels.into_iter().rev()));
    assert_eq!(AllocatorKey::from_labels(key.labels()), key);
    assert_eq!((key.label("container:a"), key.label("k8s:c")), (Some("x=y:z"), None));
    assert_eq!(AllocatorKey::from_labels([("k8s:a", "1"), ("vm:a", "2")]).as_str(), "vm:a=2;", "labels are stored by key alone");
}

#[test]
fn numbers_are_parsed_from_digits_and_are_never_0() {
    assert_eq!(["1", "0019", "18446744073709551615"].map(Id::parse), [Some(Id::MIN), Some(id(19)), Some(Id::MAX)]);
    assert_eq!(["", "0", "+1", "-1", " 1", "1x", "18446744073709551616"].map(Id::parse), [None; 7]);
    assert_eq!([IdRange::new(0, 9), IdRange::new(9, 9), IdRange::new(9, 8)], [None; 3]);
}

#[test]
fn a_pool_leases_each_number_once_until_it_is_freed() {
    let mut random = StdRng::seed_from_u64(1);
    let mut pool = IdPool::new(range(10, 14));
    let leased: BTreeSet<_> = (0..5).map(|_| pool.lease_available(&mut random).unwrap()).collect();
    assert_eq!(leased, (10..=14).map(id).collect());
    assert_eq!(pool.lease_available(&mut random), None);
    pool.mark_lease_used(id(10));
    pool.release_lease(id(10));
    pool.free_deleted(id(11));
    assert_eq!(pool.lease_available(&mut random), None, "10 is used, and 11 stays leased after its deletion from the store");
    pool.release_lease(id(11));
    pool.free_deleted(id(10));
    let again: BTreeSet<_> = (0..2).map(|_| pool.lease_available(&mut random).unwrap()).collect();
    assert_eq!(again, [id(10), id(11)].into());
    pool.mark_stored(id(12));
    pool.release_lease(id(12));
    assert_eq!(pool.lease_available(&mut random), None, "another node wrote 12 first");
}

/// Compares the pool with a set of free numbers and a set of leased numbers, which is Cilium's
/// representation.
#[test]
fn a_pool_behaves_like_two_sets() {
    let mut random = StdRng::seed_from_u64(7);
    for last in [2_u64, 3, 17, 64] {
        let mut pool = IdPool::new(range(1, last));
        let (mut free, mut leased): (BTreeSet<Id>, BTreeSet<Id>) = ((1..=last).map(id).collect(), BTreeSet::new());
        for _ in 0..4_000 {
            let number = id(random.random_range(1..=last));
            match random.random_range(0..5) {
                0 => match pool.lease_available(&mut random) {
                    Some(chosen) => assert!(free.remove(&chosen) && leased.insert(chosen)),
                    None => assert!(free.is_empty()),
                },
                1 => {
                    pool.release_lease(number);
                    if leased.remove(&number) {
                        free.insert(number);
                    }
                }
                2 => {
                    pool.mark_lease_used(number);
                    leased.remove(&number);
                }
                3 => {
                    pool.free_deleted(number);
                    if !leased.contains(&number) {
                        free.insert(number);
                    }
                }
                _ => {
                    pool.mark_stored(number);
                    free.remove(&number);
                    leased.remove(&number);
                }
            }
        }
    }
}

#[test]
fn both_ends_of_the_widest_range_are_leased() {
    let mut random = StdRng::seed_from_u64(3);
    let mut pool = IdPool::new(range(u64::MAX - 1, u64::MAX));
    let both: BTreeSet<_> = (0..2).map(|_| pool.lease_available(&mut random).unwrap()).collect();
    assert_eq!((both, pool.lease_available(&mut random)), ([id(u64::MAX - 1), Id::MAX].into(), None));
    assert!(IdPool::new(IdRange::ALL).lease_available(&mut random).is_some());
}

#[test]
fn local_keys_count_their_uses_and_have_one_number_each() {
    let (mut local, a, b) = (LocalKeys::default(), key("a"), key("b"));
    assert_eq!((local.reuse(&a), local.release(&a)), (None, None));
    local.reserve(&a, id(5)).unwrap();
    assert_eq!(local.reuse(&a), None, "the key is unusable until the store has its reference");
    assert_eq!(local.reserve(&a, id(6)), Err(Conflict::OtherId(id(5))));
    assert_eq!(local.reserve(&b, id(5)), Err(Conflict::OtherKey));
    assert_eq!(local.verified(), []);
    local.verify(&a);
    assert_eq!((local.reuse(&a), local.verified()), (Some(id(5)), vec![(id(5), a.clone())]));
    assert_eq!((local.id(&a), local.key(id(5))), (Some(id(5)), Some(&a)));
    assert_eq!(local.release(&a), Some(LocalRelease { id: id(5), last_use: false }));
    assert_eq!(local.release(&a), Some(LocalRelease { id: id(5), last_use: true }));
    assert_eq!((local.release(&a), local.key(id(5))), (None, None));
    local.reserve(&b, id(5)).unwrap();
}

#[test]
fn a_copy_answers_with_old_entries_until_a_list_is_complete() {
    let (mut cache, a, b) = (Cache::default(), key("a"), key("b"));
    cache.insert(id(1), &a, Revision(1));
    cache.insert(id(2), &b, Revision(2));
    cache.begin_list();
    assert_eq!(cache.insert(id(1), &a, Revision(3)), Some(a.clone()), "the number was known before the list");
    cache.insert(id(3), &b, Revision(4));
    assert_eq!((cache.key(id(2)), cache.key(id(3)), cache.id(&b)), (Some(&b), None, Some(id(2))));
    assert_eq!(cache.finish_list(), [(id(2), b.clone())]);
    assert_eq!((cache.key(id(2)), cache.id(&b), cache.len()), (None, Some(id(3)), 2));
    assert_eq!(cache.finish_list(), []);
    cache.begin_list();
    cache.insert(id(3), &b, Revision(5));
    cache.insert(id(4), &a, Revision(6));
    assert_eq!(cache.abort_list(), [(id(4), a.clone())]);
    assert_eq!((cache.id(&a), cache.id(&b), cache.len()), (Some(id(1)), Some(id(3)), 2));
}

#[test]
fn a_key_with_two_numbers_has_the_older_one() {
    let (mut cache, a, b) = (Cache::default(), key("a"), key("b"));
    cache.insert(id(9), &a, Revision(7));
    cache.insert(id(8), &a, Revision(8));
    assert_eq!(cache.id(&a), Some(id(9)), "the oldest number");
    assert_eq!((cache.remove(id(9)), cache.id(&a)), (Some(a.clone()), Some(id(8))));
    assert_eq!(cache.insert(id(8), &b, Revision(9)), Some(a.clone()), "the number belongs to another key now");
    assert_eq!((cache.id(&a), cache.id(&b), cache.remove(id(9))), (None, Some(id(8)), None));
}

#[test]
fn earlier_numbers_are_known_once_the_new_number_is_reported() {
    let (options, a) = (AllocatorOptions { range: range(1, 100), ..options(true) }, key("a"));
    let mut state = AllocatorState::new(&options);
    state.apply(Mutation::ListDone, &options);
    state.cache.insert_unreported(id(7), &a);
    assert_eq!(state.earlier_ids(id(7), &a), None, "it was written here, and the store has not reported it");
    state.apply(Mutation::Upsert(id(7), key("b"), Revision(1)), &options);
    assert_eq!(state.earlier_ids(id(7), &a), None, "the number belonged to another key before");
    state.apply(Mutation::Relisting, &options);
    state.apply(Mutation::Upsert(id(7), a.clone(), Revision(5)), &options);
    assert_eq!(state.earlier_ids(id(7), &a), None, "a list is in key order, not in revision order");
    state.apply(Mutation::Upsert(id(8), a.clone(), Revision(3)), &options);
    state.apply(Mutation::Upsert(id(9), a.clone(), Revision(6)), &options);
    state.apply(Mutation::Relisted, &options);
    assert_eq!(state.earlier_ids(id(7), &a), Some(vec![id(8)]));
    assert_eq!(state.earlier_ids(id(8), &a), Some(vec![]));
}

fn options(protection: bool) -> AllocatorOptions {
    AllocatorOptions { range: range(1, 3), master_key_protection: protection, ..AllocatorOptions::default() }
}

fn event(kind: AllocatorEventKind, number: u64, key: &AllocatorKey) -> MutationEffects {
    MutationEffects { event: Some(AllocatorEvent { kind, id: id(number), key: key.clone() }), restore: None }
}

#[test]
fn numbers_in_use_that_are_deleted_are_restored() {
    let (options, a, mut random) = (options(true), key("a"), StdRng::seed_from_u64(1));
    let mut state = AllocatorState::new(&options);
    assert_eq!(state.apply(Mutation::Upsert(id(1), a.clone(), Revision(1)), &options), event(AllocatorEventKind::Create, 1, &a));
    state.apply(Mutation::ListDone, &options);
    assert_eq!(state.apply(Mutation::Upsert(id(1), a.clone(), Revision(1)), &options), event(AllocatorEventKind::Modify, 1, &a));
    state.local.reserve(&a, id(1)).unwrap();
    let protected = state.apply(Mutation::Delete(id(1)), &options);
    assert_eq!(protected, MutationEffects { event: None, restore: Some((id(1), a.clone())) });
    assert_eq!(state.cache.id(&a), Some(id(1)), "the copy keeps the number");
    state.release(&a, &options);
    assert_eq!(state.apply(Mutation::Delete(id(1)), &options), event(AllocatorEventKind::Delete, 1, &a));
    let all: BTreeSet<_> = (0..3).map(|_| state.pool.lease_available(&mut random).unwrap()).collect();
    assert_eq!(all.len(), 3, "the deleted number is free again");
}

#[test]
fn a_deleted_number_is_free_only_after_its_last_release() {
    let (options, a, mut random) = (options(false), key("a"), StdRng::seed_from_u64(1));
    let mut state = AllocatorState::new(&options);
    state.apply(Mutation::ListDone, &options);
    state.apply(Mutation::Upsert(id(1), a.clone(), Revision(1)), &options);
    state.local.reserve(&a, id(1)).unwrap();
    assert_eq!(state.apply(Mutation::Delete(id(1)), &options), event(AllocatorEventKind::Delete, 1, &a));
    let others: BTreeSet<_> = (0..2).map(|_| state.pool.lease_available(&mut random).unwrap()).collect();
    assert_eq!((others, state.pool.lease_available(&mut random)), ([id(2), id(3)].into(), None));
    assert_eq!(state.release(&a, &options), Some(LocalRelease { id: id(1), last_use: true }));
    assert_eq!(state.pool.lease_available(&mut random), Some(id(1)));
}

#[test]
fn remote_numbers_must_be_in_range_and_have_the_cluster_label() {
    let validator = Validator::remote(range(100, 199), "k8s:io.cilium.k8s.policy.cluster", "vms".into());
    let options = AllocatorOptions { validator: Some(validator), ..AllocatorOptions::default() };
    let mut state = AllocatorState::new(&options);
    state.apply(Mutation::ListDone, &options);
    let foreign = AllocatorKey::from_labels([("k8s:io.cilium.k8s.policy.cluster", "paris")]);
    let unnamed = AllocatorKey::from_labels([("k8s:app", "a")]);
    for refused in [
        Mutation::Upsert(id(99), key("a"), Revision(1)),
        Mutation::Upsert(id(200), key("a"), Revision(1)),
        Mutation::Upsert(id(100), foreign, Revision(1)),
        Mutation::Upsert(id(100), unnamed, Revision(1)),
        Mutation::Delete(id(200)),
    ] {
        assert_eq!(state.apply(refused, &options), MutationEffects::default());
    }
    assert_eq!(state.apply(Mutation::Upsert(id(199), key("a"), Revision(1)), &options), event(AllocatorEventKind::Create, 199, &key("a")));
    assert_eq!(state.apply(Mutation::Delete(id(199)), &options), event(AllocatorEventKind::Delete, 199, &key("a")));
}

#[test]
fn a_mask_must_keep_different_numbers_different() {
    let masked = |min, max, prefix_mask| AllocatorOptions { range: range(min, max), prefix_mask, ..AllocatorOptions::default() };
    let options = masked(1, 255, 0x4d_0000);
    options.check().unwrap();
    assert_eq!(options.masked(id(7)), id(0x4d_0007));
    assert_eq!((options.unmasked(id(0x4d_0007)), options.unmasked(id(0x4e_0007))), (id(7), id(0x4e_0007)));
    // an agent's mask: its numbers contain the mask's bits already
    let agent = masked(0x4d_0000, 0x4d_ffff, 0x4d_0000);
    agent.check().unwrap();
    assert_eq!((agent.masked(id(0x4d_0007)), agent.unmasked(id(0x4d_0007))), (id(0x4d_0007), id(0x4d_0007)));
    let error = masked(1, 255, 0x80).check().unwrap_err();
    assert_eq!(error.to_string(), "the mask 0x80 would give two of the numbers from 1 to 255 the same value");
}
