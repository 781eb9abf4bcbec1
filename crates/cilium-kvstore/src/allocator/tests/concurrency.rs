//! Many tasks of two nodes over one store. The store sometimes loses responses and references, and
//! a collector runs meanwhile.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use super::memory::{MemoryNode, MemoryStore, WriteFailure};
use super::uses::UseModel;
use super::{key, range};
use crate::allocator::api::Allocator;
use crate::allocator::backend::{Backend, CollectionLimits, StaleIds};
use crate::allocator::options::AllocatorOptions;

async fn work(allocator: Allocator<MemoryNode>, uses: Arc<Mutex<UseModel>>, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..300 {
        let key = key(&format!("app-{}", random.random_range(0..40)));
        // the range is sometimes nearly full
        let Ok(allocation) = allocator.allocate(&key).await else { continue };
        uses.lock().unwrap().begin(&key, allocation.id);
        tokio::time::sleep(Duration::from_millis(random.random_range(0..20))).await;
        uses.lock().unwrap().end(&key, allocation.id);
        allocator.release(&key).await.unwrap();
    }
}

async fn collect(node: MemoryNode) {
    let limits = CollectionLimits { range: range(1, 48), deletes_per_minute: NonZeroU32::MAX };
    let mut stale = StaleIds::new();
    loop {
        stale = node.run_gc(&stale, &limits).await.unwrap().stale;
        // shorter than the sync interval, so that rounds also run before lost references are
        // written again
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

async fn disturb(memory: MemoryStore, nodes: Vec<MemoryNode>) {
    let mut random = StdRng::seed_from_u64(99);
    loop {
        tokio::time::sleep(Duration::from_millis(random.random_range(1..40))).await;
        match random.random_range(0..3) {
            0 => nodes[random.random_range(0..nodes.len())].lose_references(),
            1 => memory.fail([WriteFailure::Before]),
            _ => memory.fail([WriteFailure::After]),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn keys_and_numbers_are_assigned_one_to_one() {
    let memory = MemoryStore::default();
    let nodes = vec![memory.node("one"), memory.node("two")];
    let uses = Arc::new(Mutex::new(UseModel::default()));
    let mut others = JoinSet::new();
    others.spawn(collect(memory.node("collector")));
    others.spawn(disturb(memory.clone(), nodes.clone()));
    let mut workers = JoinSet::new();
    for (index, node) in nodes.iter().enumerate() {
        let options = AllocatorOptions {
            range: range(1, 48),
            master_key_protection: true,
            sync_interval: Some(Duration::from_millis(500)),
            ..AllocatorOptions::default()
        };
        let allocator = Allocator::start(node.clone(), options).unwrap();
        for task in 0..16 {
            workers.spawn(work(allocator.clone(), Arc::clone(&uses), index as u64 * 100 + task));
        }
    }
    workers.join_all().await;
    others.shutdown().await;
    assert!(uses.lock().unwrap().is_empty());
    assert!(memory.content().writes > 1_000, "{}", memory.content().writes);
}
