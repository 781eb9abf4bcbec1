//! Tests of one allocator over a store in memory: uses, failures, losses, events, remote copies.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::memory::{MemoryNode, MemoryStore, WriteFailure};
use super::{id, key, range};
use crate::allocator::api::{AllocateError, Allocation, Allocator, Release};
use crate::allocator::backend::Backend;
use crate::allocator::event::{AllocatorEvent, AllocatorEventKind};
use crate::allocator::options::{AllocatorOptions, Validator};

fn options() -> AllocatorOptions {
    AllocatorOptions { range: range(1, 100), master_key_protection: true, ..AllocatorOptions::default() }
}

fn start(node: &MemoryNode, options: AllocatorOptions) -> Allocator<MemoryNode> {
    Allocator::start(node.clone(), options).unwrap()
}

/// Waits until a condition is true, with the test's paused clock.
async fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition was not met within ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_key_has_one_number_and_each_node_counts_its_uses() {
    let memory = MemoryStore::default();
    let (one, two) = (start(&memory.node("one"), options()), start(&memory.node("two"), options()));
    let first = one.allocate(&key("a")).await.unwrap();
    assert_eq!((first.is_new, first.first_use), (true, true));
    assert_eq!(one.allocate(&key("a")).await.unwrap(), Allocation { id: first.id, is_new: false, first_use: false });
    assert_eq!(two.allocate(&key("a")).await.unwrap(), Allocation { id: first.id, is_new: false, first_use: true });
    assert_ne!(two.allocate(&key("b")).await.unwrap().id, first.id);
    assert_eq!(one.release(&key("a")).await.unwrap(), Release { id: first.id, last_use: false });
    assert_eq!(memory.content().references.len(), 3);
    assert_eq!(one.release(&key("a")).await.unwrap(), Release { id: first.id, last_use: true });
    assert!(matches!(one.release(&key("a")).await, Err(AllocateError::NotInUse)));
    assert_eq!(memory.content().references.len(), 2);
    assert_eq!(one.get(&key("a")).await.unwrap(), Some(first.id));
    assert_eq!(one.get_by_id(first.id).await.unwrap(), Some(key("a")));
    until(|| one.count() == 2).await;
    let mut shown = Vec::new();
    one.for_each(|_, key| shown.push(key.clone()));
    shown.sort();
    assert_eq!(shown, [key("a"), key("b")]);
    one.delete().await;
    assert!(matches!(one.allocate(&key("c")).await, Err(AllocateError::Stopped)));
    two.delete().await;
}

#[tokio::test(start_paused = true)]
async fn attempts_are_retried_with_backoff_up_to_a_limit() {
    let memory = MemoryStore::default();
    let node = memory.node("one");
    let allocator = start(&node, AllocatorOptions { attempts_max: 4, ..options() });
    memory.fail([WriteFailure::Before; 3]);
    let begin = tokio::time::Instant::now();
    assert!(allocator.allocate(&key("a")).await.unwrap().is_new);
    // the waits are 20 ms doubled once, twice and three times
    assert_eq!(begin.elapsed().as_millis() / 10, (40 + 80 + 160) / 10);
    memory.fail([WriteFailure::Before; 4]);
    assert!(matches!(allocator.allocate(&key("b")).await, Err(AllocateError::Backend(_))));
    assert!(allocator.allocate(&key("b")).await.unwrap().is_new);
    let slow = start(&node, AllocatorOptions { allocation_max: Duration::from_millis(100), ..options() });
    memory.fail([WriteFailure::Before; 20]);
    let error = slow.allocate(&key("c")).await.unwrap_err();
    assert_eq!(error.to_string(), "no identity within 100ms; the last attempt: lost the lock of the key: its lease expired");
}

#[tokio::test(start_paused = true)]
async fn a_write_without_a_response_is_reused_or_deleted() {
    let memory = MemoryStore::default();
    let allocator = start(&memory.node("one"), AllocatorOptions { attempts_max: 1, ..options() });
    memory.fail([WriteFailure::After]);
    allocator.allocate(&key("a")).await.unwrap_err();
    // the entry exists, and no node refers to it
    let written_id = *memory.content().ids.keys().next().unwrap();
    assert!(memory.content().references.is_empty());
    assert_eq!(allocator.allocate(&key("a")).await.unwrap(), Allocation { id: written_id, is_new: false, first_use: true });
    allocator.release(&key("a")).await.unwrap();
    memory.fail([WriteFailure::After]);
    allocator.allocate(&key("a")).await.unwrap_err();
    assert_eq!(memory.content().references.len(), 1);
    // the key is unused: the next check deletes the reference
    until(|| memory.content().references.is_empty()).await;
    memory.fail([WriteFailure::After]);
    allocator.allocate(&key("a")).await.unwrap_err();
    assert_eq!(allocator.allocate(&key("a")).await.unwrap(), Allocation { id: written_id, is_new: false, first_use: true });
    // a failed release is repeated
    memory.fail([WriteFailure::Before]);
    allocator.release(&key("a")).await.unwrap();
    assert_eq!(memory.content().references.len(), 1);
    until(|| memory.content().references.is_empty()).await;
    assert_eq!(memory.content().ids.keys().collect::<Vec<_>>(), [&written_id]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_allocation_leaves_no_use() {
    let memory = MemoryStore::default();
    let allocator = start(&memory.node("one"), options());
    allocator.wait_for_initial_sync(Duration::from_secs(1)).await.unwrap();
    let lock = memory.node("two").lock(&key("a")).await.unwrap();
    tokio::time::timeout(Duration::from_millis(50), allocator.allocate(&key("a"))).await.unwrap_err();
    drop(lock);
    until(|| memory.content().ids.len() == 1).await;
    until(|| memory.content().references.is_empty()).await;
    assert!(matches!(allocator.release(&key("a")).await, Err(AllocateError::NotInUse)));
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_range_is_an_error_until_a_number_is_collected() {
    let memory = MemoryStore::default();
    let allocator = start(&memory.node("one"), AllocatorOptions { range: range(7, 8), ..options() });
    allocator.allocate(&key("a")).await.unwrap();
    let second = allocator.allocate(&key("b")).await.unwrap();
    let begin = tokio::time::Instant::now();
    let error = allocator.allocate(&key("c")).await.unwrap_err();
    assert_eq!(error.to_string(), "no identity from 7 to 8 is free: all are in use or wait for their collection");
    assert!(begin.elapsed() < Duration::from_millis(1));
    allocator.release(&key("b")).await.unwrap();
    memory.delete(second.id);
    until(|| allocator.count() == 1).await;
    assert_eq!(allocator.allocate(&key("c")).await.unwrap().id, second.id);
}

/// The store loses an entry, and a node that uses its number has not been notified.
#[tokio::test(start_paused = true)]
async fn a_used_number_is_not_reassigned_when_its_entry_is_lost() {
    let memory = MemoryStore::default();
    let (one, two) = (memory.node("one"), memory.node("two"));
    let two_numbers = || AllocatorOptions { range: range(7, 8), ..options() };
    let (first, second) = (start(&one, two_numbers()), start(&two, two_numbers()));
    second.wait_for_initial_sync(Duration::from_secs(1)).await.unwrap();
    two.set_holds_back_events(true);
    let used = first.allocate(&key("a")).await.unwrap().id;
    let other_id = first.allocate(&key("other")).await.unwrap().id;
    assert_eq!(second.allocate(&key("a")).await.unwrap(), Allocation { id: used, is_new: false, first_use: true });
    // the first node writes nothing from now on
    first.delete().await;
    memory.delete(used);
    let error = second.allocate(&key("b")).await.unwrap_err();
    assert!(matches!(error, AllocateError::Exhausted { .. }), "{error}");
    assert_eq!(memory.content().ids.keys().collect::<Vec<_>>(), [&other_id], "the third key has no entry");
}

#[tokio::test(start_paused = true)]
async fn a_refused_number_can_be_chosen_again() {
    let memory = MemoryStore::default();
    let node = memory.node("one");
    let allocator = start(&node, AllocatorOptions { range: range(7, 8), ..options() });
    allocator.wait_for_initial_sync(Duration::from_secs(1)).await.unwrap();
    node.set_holds_back_events(true);
    memory.put(id(7), &key("other"));
    memory.put(id(8), &key("another"));
    assert!(matches!(allocator.allocate(&key("a")).await, Err(AllocateError::Exhausted { .. })));
    memory.delete(id(7));
    // the node does not receive its entry's event, although the entry is written
    allocator.allocate(&key("a")).await.unwrap_err();
    assert_eq!(memory.content().ids[&id(7)].0, key("a"));
}

#[tokio::test(start_paused = true)]
async fn a_remote_copy_ignores_numbers_that_its_validator_refuses() {
    let (own, remote) = (MemoryStore::default(), MemoryStore::default());
    let allocator = start(&own.node("one"), options());
    for number in [99, 150, 200] {
        remote.put(id(number), &key("far"));
    }
    let validator = Validator::remote(range(100, 199), "k8s:io.cilium.k8s.policy.cluster", "vms".into());
    let (sender, mut events) = mpsc::channel(16);
    let cache = allocator.watch_remote(AllocatorOptions { validator: Some(validator), events: Some(sender), ..options() });
    let (node, connection) = (remote.node("far"), CancellationToken::new());
    let changes = async {
        // the last event follows all events of the list
        let first = events.recv().await.unwrap();
        remote.put(id(151), &key("farther"));
        let last = events.recv().await.unwrap();
        (first.id, last.id)
    };
    let changed = tokio::select! {
        () = cache.watch(&node, connection) => unreachable!("the watch must not end"),
        changed = changes => changed,
    };
    assert_eq!((changed, cache.count()), ((id(150), id(151)), 2));
}

#[tokio::test(start_paused = true)]
async fn lost_references_and_used_numbers_are_written_again() {
    let memory = MemoryStore::default();
    let node = memory.node("one");
    let allocator = start(&node, AllocatorOptions { sync_interval: None, ..options() });
    let used = allocator.allocate(&key("a")).await.unwrap().id;
    node.lose_references();
    until(|| memory.content().references.len() == 1).await;
    memory.fail([WriteFailure::Before; 2]);
    memory.delete(used);
    until(|| memory.content().ids.contains_key(&used)).await;
    assert_eq!(allocator.count(), 1, "the copy kept the number");
    allocator.release(&key("a")).await.unwrap();
    memory.delete(used);
    until(|| allocator.count() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_number_given_to_another_key_is_reported_as_lost() {
    let memory = MemoryStore::default();
    let node = memory.node("one");
    let (sender, mut events) = mpsc::channel(16);
    let allocator = start(&node, AllocatorOptions { master_key_protection: false, sync_interval: None, events: Some(sender), ..options() });
    let lost = allocator.allocate(&key("a")).await.unwrap().id;
    memory.delete(lost);
    memory.put(lost, &key("b"));
    node.lose_references();
    loop {
        let event = events.recv().await.unwrap();
        if event.kind == AllocatorEventKind::Lost {
            assert_eq!(event, AllocatorEvent { kind: AllocatorEventKind::Lost, id: lost, key: key("a") });
            break;
        }
    }
    let again = allocator.allocate(&key("a")).await.unwrap();
    assert!(again.id != lost && again.is_new);
}

#[tokio::test(start_paused = true)]
async fn the_copy_is_used_only_if_the_store_agrees() {
    let memory = MemoryStore::default();
    let allocator = start(&memory.node("one"), options());
    allocator.wait_for_initial_sync(Duration::from_secs(1)).await.unwrap();
    memory.put(id(5), &key("a"));
    until(|| allocator.count() == 1).await;
    // another process gave the number to another key, and the copy has not received that yet
    memory.content().ids.insert(id(5), (key("b"), 1));
    let again = allocator.allocate(&key("a")).await.unwrap();
    assert!(again.id != id(5) && again.is_new);
    // a key with two entries: the number that other nodes use wins
    let two = start(&memory.node("two"), options());
    two.wait_for_initial_sync(Duration::from_secs(1)).await.unwrap();
    memory.put(id(1), &key("a"));
    until(|| two.count() == 3).await;
    assert_eq!(two.allocate(&key("a")).await.unwrap().id, again.id);
}

/// Simulates a restart of the store: one node's events are delayed, as by a long list, and the
/// other node's lease expires meanwhile.
#[tokio::test(start_paused = true)]
async fn an_unreported_number_without_references_is_used() {
    let memory = MemoryStore::default();
    let (one, two) = (memory.node("one"), memory.node("two"));
    let (first, second) = (start(&one, options()), start(&two, options()));
    second.wait_for_initial_sync(Duration::from_secs(1)).await.unwrap();
    two.set_holds_back_events(true);
    let used = first.allocate(&key("a")).await.unwrap().id;
    one.lose_references_without_event();
    let a = key("a");
    let mut allocating = Box::pin(second.allocate(&a));
    let written = until(|| memory.content().ids.len() == 2);
    tokio::select! {
        early = &mut allocating => panic!("{early:?} before the store reported its entry"),
        () = written => {}
    }
    two.set_holds_back_events(false);
    assert_eq!(allocating.await.unwrap(), Allocation { id: used, is_new: false, first_use: true });
    assert_eq!(memory.content().ids.keys().collect::<Vec<_>>(), [&used], "the other number is deleted");
    until(|| second.count() == 1).await;
    // a node that receives no events allocates nothing
    two.set_holds_back_events(true);
    assert!(matches!(second.allocate(&key("b")).await, Err(AllocateError::Unconfirmed { .. } | AllocateError::Timeout { .. })));
    until(|| memory.content().references.keys().all(|(used, _)| *used == a)).await;
    two.set_holds_back_events(false);
    let found = second.allocate(&key("b")).await.unwrap();
    assert_eq!(second.get(&key("b")).await.unwrap(), Some(found.id));
}

#[tokio::test(start_paused = true)]
async fn remote_numbers_survive_reconnects() {
    let (own, remote) = (MemoryStore::default(), MemoryStore::default());
    let allocator = start(&own.node("one"), options());
    allocator.allocate(&key("own")).await.unwrap();
    remote.put(id(900), &key("far"));
    remote.put(id(901), &key("farther"));
    let (sender, mut events) = mpsc::channel(16);
    let cache = allocator.watch_remote(AllocatorOptions { events: Some(sender), ..options() });
    let connection = CancellationToken::new();
    let node = remote.node("far");
    let cache = std::sync::Arc::new(cache);
    let watching = {
        let (cache, node, connection) = (std::sync::Arc::clone(&cache), node.clone(), connection.clone());
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { cache.watch(&node, connection).await });
        tasks
    };
    until(|| cache.count() == 2).await;
    let mut shown = Vec::new();
    allocator.for_each(|id, key| shown.push((id.number(), key.to_string())));
    shown[1..].sort();
    assert_eq!(shown[1..], [(900, key("far").to_string()), (901, key("farther").to_string())]);
    assert_eq!(allocator.get(&key("far")).await.unwrap(), None);
    connection.cancel();
    watching.join_all().await;
    assert_eq!(cache.count(), 2, "without a connection the copy stays unchanged");
    remote.delete(id(900));
    remote.put(id(902), &key("new"));
    let connection = CancellationToken::new();
    let again = {
        let (cache, connection) = (std::sync::Arc::clone(&cache), connection.clone());
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { cache.watch(&node, connection).await });
        tasks
    };
    until(|| events.len() == 5).await;
    connection.cancel();
    again.join_all().await;
    let mut changed = Vec::new();
    events.recv_many(&mut changed, 16).await;
    let changed: Vec<_> = changed.into_iter().map(|event| (event.kind, event.id.number())).collect();
    let (create, modify, delete) = (AllocatorEventKind::Create, AllocatorEventKind::Modify, AllocatorEventKind::Delete);
    assert_eq!(changed, [(create, 900), (create, 901), (modify, 901), (create, 902), (delete, 900)]);
    drop(cache);
    let mut count = 0;
    allocator.for_each(|_, _| count += 1);
    assert_eq!(count, 1);
}
