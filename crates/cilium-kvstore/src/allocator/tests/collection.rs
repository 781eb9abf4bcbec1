//! Tests of the rules of garbage collection, over the in-memory store that the other tests use.

use std::num::NonZeroU32;

use super::memory::MemoryStore;
use super::{id, key, range};
use crate::allocator::api::Allocator;
use crate::allocator::backend::{Backend, CollectionLimits, StaleIds};
use crate::allocator::options::AllocatorOptions;

#[tokio::test]
async fn numbers_unused_for_two_rounds_are_deleted_unless_written_again() {
    let memory = MemoryStore::default();
    let collector = Allocator::for_collection(memory.node("operator"), AllocatorOptions::default()).unwrap();
    let node = memory.node("one");
    let limits = CollectionLimits { range: range(1, 9), deletes_per_minute: NonZeroU32::MIN };
    for number in [1, 2, 3, 10] {
        memory.put(id(number), &key(&number.to_string()));
    }
    let lock = node.lock(&key("3")).await.unwrap();
    assert!(node.acquire_reference(id(3), &key("3"), &lock).await.unwrap());
    let first = collector.run_gc(&StaleIds::new(), &limits).await.unwrap();
    assert_eq!((first.alive, first.stale.len(), first.deleted.len()), (3, 2, 0));
    memory.put(id(2), &key("2"));
    let second = collector.run_gc(&first.stale, &limits).await.unwrap();
    assert_eq!((second.alive, second.stale.len(), second.deleted), (2, 0, vec![id(1)]));
    assert!(!node.acquire_reference(id(1), &key("1"), &node.lock(&key("1")).await.unwrap()).await.unwrap());
}
