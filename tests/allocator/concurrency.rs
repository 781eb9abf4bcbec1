//! Two allocators with 16 tasks each over one etcd. Despite failures, a key never gets two numbers,
//! and a number never has two keys.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cilium_kvstore::allocator::{Allocator, AllocatorOptions, CollectionLimits, EtcdBackend, StaleIds};
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::task::JoinSet;

use super::uses::UseModel;
use super::{BASE, Node, TTL, key, options, range, session};
use crate::harness::etcd::Etcd;
use crate::harness::eventually;

/// Number of tasks per allocator.
const TASKS: u64 = 16;

/// Minimum duration of the run: three rounds of the collector, so that some numbers are collected.
const RUN_MIN: Duration = Duration::from_secs(10);

/// Returns the number of keys to allocate: a few hundred, or `MESHKEEP_ALLOCATOR_KEYS` (20,000 in
/// long runs).
fn key_count() -> usize {
    std::env::var("MESHKEEP_ALLOCATOR_KEYS").ok().and_then(|count| count.parse().ok()).unwrap_or(400)
}

/// Returns the interval between two rounds of the collector. It must be longer than the time that a
/// node needs to write its references again after it lost its lease. With thousands of identities,
/// the list after each restart increases that time.
fn collection_interval(count: usize) -> Duration {
    if count > 1_000 { 4 * TTL } else { TTL }
}

/// Returns the minimum interval between two restarts of the etcd. It must be longer than the time
/// that a node needs to list thousands of identities, because a node allocates no new ones before
/// the list is complete.
fn restart_interval(count: usize) -> Duration {
    if count > 1_000 { 2 * TTL } else { Duration::ZERO }
}

/// State that all tasks share.
#[derive(Clone)]
struct Run {
    begin: Instant,
    uses: Arc<Mutex<UseModel>>,
    next: Arc<AtomicUsize>,
    reused: Arc<AtomicUsize>,
}

/// Allocates new keys and keys that other tasks use, and keeps some of them for longer.
async fn work(allocator: Allocator<EtcdBackend>, run: Run, seed: u64, count: usize) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut in_use = Vec::new();
    loop {
        let number = run.next.fetch_add(1, Ordering::Relaxed);
        if number >= count * 2 && run.begin.elapsed() > RUN_MIN {
            break;
        }
        // each key is allocated twice at about the same time, by two tasks of one node or of both
        // nodes
        let key = key(&format!("app-{}", number / 2));
        let allocation = allocator.allocate(&key).await.unwrap_or_else(|error| panic!("{key}: {error}"));
        run.uses.lock().unwrap().begin(&key, allocation.id);
        run.reused.fetch_add(usize::from(!allocation.is_new), Ordering::Relaxed);
        in_use.push((key, allocation.id));
        while in_use.len() > 20 {
            let (key, id) = in_use.swap_remove(random.random_range(0..in_use.len()));
            run.uses.lock().unwrap().end(&key, id);
            allocator.release(&key).await.unwrap();
        }
    }
    for (key, id) in in_use {
        run.uses.lock().unwrap().end(&key, id);
        allocator.release(&key).await.unwrap();
    }
}

/// Runs the collector at an interval, without end.
async fn collect(operator: Allocator<EtcdBackend>, deleted: Arc<AtomicUsize>, interval: Duration) {
    let limits = CollectionLimits { range: range(65_536, 131_071), deletes_per_minute: NonZeroU32::MAX };
    let mut stale = StaleIds::new();
    loop {
        tokio::time::sleep(interval).await;
        if let Ok(round) = operator.run_gc(&stale, &limits).await {
            deleted.fetch_add(round.deleted.len(), Ordering::Relaxed);
            stale = round.stale;
        }
    }
}

/// Revokes a random lease. Returns false if there is none.
async fn revoke_one(etcd: &Etcd, random: &mut StdRng) -> bool {
    let mut client = etcd.client().await;
    let leases: Vec<i64> = client.leases().await.unwrap().leases().iter().map(|lease| lease.id()).collect();
    if leases.is_empty() {
        return false;
    }
    client.lease_revoke(leases[random.random_range(0..leases.len())]).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_numbers_are_assigned_one_to_one() {
    let (mut etcd, count) = (Etcd::start().await, key_count());
    let nodes = [Node::start(&etcd, "10.0.0.1", options()).await, Node::start(&etcd, "10.0.0.2", options()).await];
    let operator = EtcdBackend::new(session(&etcd).await, BASE, "operator");
    let operator = Allocator::for_collection(operator, AllocatorOptions::default()).unwrap();
    let deleted = Arc::new(AtomicUsize::new(0));
    let run = Run { begin: Instant::now(), uses: Arc::default(), next: Arc::default(), reused: Arc::default() };
    let mut collector = JoinSet::new();
    collector.spawn(collect(operator.clone(), Arc::clone(&deleted), collection_interval(count)));
    let mut workers = JoinSet::new();
    for (index, node) in nodes.iter().enumerate() {
        for task in 0..TASKS {
            workers.spawn(work(node.allocator.clone(), run.clone(), index as u64 * TASKS + task, count));
        }
    }
    let mut random = StdRng::seed_from_u64(5);
    let (mut losses, mut restarts, mut restarted) = (0, 0, Instant::now());
    while !workers.is_empty() {
        match tokio::time::timeout(Duration::from_millis(random.random_range(300..900)), workers.join_next()).await {
            Ok(ended) => ended.unwrap().unwrap(),
            Err(_) if random.random_bool(0.3) && restarted.elapsed() >= restart_interval(count) => {
                etcd.kill();
                etcd.restart().await;
                (restarts, restarted) = (restarts + 1, Instant::now());
            }
            // the lease has references or locks
            Err(_) => losses += usize::from(revoke_one(&etcd, &mut random).await),
        }
    }
    let took = run.begin.elapsed();
    eventually("a number is collected", async || (deleted.load(Ordering::Relaxed) > 0).then_some(())).await;
    collector.shutdown().await;
    assert!(run.uses.lock().unwrap().is_empty());
    let (deleted, reused) = (deleted.load(Ordering::Relaxed), run.reused.load(Ordering::Relaxed));
    let keys = run.next.load(Ordering::Relaxed) / 2;
    assert!(reused > 0);
    println!("{keys} keys by 32 tasks in {took:?}: {losses} leases lost, {restarts} restarts, {deleted} collected, {reused} reused");
    for node in nodes {
        node.die().await;
    }
}
