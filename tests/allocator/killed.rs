//! Test of a node in its own process that is killed. Its identities become free after its lease has
//! expired, and not earlier.
//!
//! The test binary runs itself again as the node.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use cilium_kvstore::allocator::{AllocateError, Allocator, AllocatorOptions, CollectionLimits, EtcdBackend, StaleIds};

use super::{BASE, Node, TTL, content, key, options, range, session};
use crate::harness::etcd::Etcd;
use crate::harness::eventually;

/// Environment variable with the client file of the node.
const CHILD_FILE: &str = "MESHKEEP_TEST_ALLOCATOR_CHILD_FILE";

/// Name of the node that is killed.
const KILLED: &str = "10.0.0.9";

/// Number of keys that the killed node uses, which is the size of the range.
const KEYS: usize = 10;

/// Line that the node prints after it has allocated all keys.
const READY: &str = "all keys are allocated";

fn small_range() -> AllocatorOptions {
    AllocatorOptions { range: range(65_536, 65_535 + KEYS as u64), attempts_max: 2, ..options() }
}

/// Child process that is killed at the latest when the test ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // a failure cannot be handled in a destructor
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The node that the other test of this file starts and kills. Does nothing in a normal run.
#[tokio::test]
async fn the_node_that_is_killed() {
    let Ok(file) = std::env::var(CHILD_FILE) else { return };
    let node = Node::of(super::session_of(&file).await, KILLED, small_range());
    for number in 0..KEYS {
        node.allocator.allocate(&key(&number.to_string())).await.unwrap();
    }
    println!("\n{READY}");
    std::future::pending().await
}

#[tokio::test]
async fn identities_of_a_killed_node_are_free_after_its_lease() {
    let etcd = Etcd::start().await;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "allocator::killed::the_node_that_is_killed"]).env(CHILD_FILE, etcd.client_file_yaml());
    let mut child = Process(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let ready = tokio::task::spawn_blocking(move || lines.map_while(Result::ok).any(|line| line == READY));
    assert!(ready.await.unwrap(), "the node ended before it allocated all keys");

    let node = Node::start(&etcd, "10.0.0.1", small_range()).await;
    let shared = node.allocator.allocate(&key("0")).await.unwrap();
    assert!(!shared.is_new);
    let references = async || content(&etcd).await.into_iter().filter(|(name, ..)| name.ends_with(&format!("/{KILLED}"))).count();
    assert_eq!(references().await, KEYS);
    assert!(matches!(node.allocator.allocate(&key("new")).await, Err(AllocateError::Exhausted { .. })));
    let operator =
        Allocator::for_collection(EtcdBackend::new(session(&etcd).await, BASE, "operator"), AllocatorOptions::default()).unwrap();
    let limits = CollectionLimits { range: small_range().range, deletes_per_minute: std::num::NonZeroU32::MAX };
    let mut stale = operator.run_gc(&StaleIds::new(), &limits).await.unwrap().stale;
    assert!(stale.is_empty(), "all numbers are in use: {stale:?}");

    child.0.kill().unwrap();
    let killed = Instant::now();
    eventually("the references of the killed node are deleted", async || (references().await == 0).then_some(())).await;
    // the lease was last renewed at most a third of its time to live before the kill
    assert!(killed.elapsed() >= TTL / 3, "{:?}", killed.elapsed());
    let mut deleted = Vec::new();
    for _ in 0..2 {
        let round = operator.run_gc(&stale, &limits).await.unwrap();
        deleted.extend(round.deleted);
        stale = round.stale;
    }
    assert_eq!((deleted.len(), deleted.contains(&shared.id)), (KEYS - 1, false), "the number that the other node uses stays");
    let free = eventually("a free number", async || node.allocator.allocate(&key("new")).await.ok()).await;
    assert!(free.is_new && deleted.contains(&free.id));
    node.die().await;
}
