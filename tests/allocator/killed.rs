//! A node in its own process that is killed: its identities become free once its lease has expired,
//! and not earlier.
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

/// Number of keys that the node uses: all numbers of the range.
const KEYS: usize = 10;

/// Line that the node prints once it uses them.
const READY: &str = "all are used";

fn few() -> AllocatorOptions {
    AllocatorOptions { range: range(65_536, 65_535 + KEYS as u64), attempts_max: 2, ..options() }
}

/// A child process that ends with the test at the latest.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // a failure cannot be handled here
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The node that the other test starts and kills. In a normal run it does nothing.
#[tokio::test]
async fn the_node_that_is_killed() {
    let Ok(file) = std::env::var(CHILD_FILE) else { return };
    let node = Node::of(super::session_of(&file).await, KILLED, few());
    for number in 0..KEYS {
        node.allocator.allocate(&key(&number.to_string())).await.unwrap();
    }
    println!("\n{READY}");
    std::future::pending().await
}

#[tokio::test]
async fn what_a_killed_node_used_is_free_once_its_lease_has_run_out() {
    let etcd = Etcd::start().await;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "allocator::killed::the_node_that_is_killed"]).env(CHILD_FILE, etcd.client_file_yaml());
    let mut child = Process(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let ready = tokio::task::spawn_blocking(move || lines.map_while(Result::ok).any(|line| line == READY));
    assert!(ready.await.unwrap(), "the node ended before it used anything");

    let node = Node::start(&etcd, "10.0.0.1", few()).await;
    let shared = node.allocator.allocate(&key("0")).await.unwrap();
    assert!(!shared.is_new);
    let references = async || content(&etcd).await.into_iter().filter(|(name, ..)| name.ends_with(&format!("/{KILLED}"))).count();
    assert_eq!(references().await, KEYS);
    assert!(matches!(node.allocator.allocate(&key("new")).await, Err(AllocateError::Exhausted { .. })));
    let operator =
        Allocator::for_collection(EtcdBackend::new(session(&etcd).await, BASE, "operator"), AllocatorOptions::default()).unwrap();
    let what = CollectionLimits { range: few().range, deletes_per_minute: std::num::NonZeroU32::MAX };
    let mut stale = operator.run_gc(&StaleIds::new(), &what).await.unwrap().stale;
    assert!(stale.is_empty(), "all are used: {stale:?}");

    child.0.kill().unwrap();
    let killed = Instant::now();
    eventually("the references of the killed node to be gone", async || (references().await == 0).then_some(())).await;
    // the lease was renewed after a third of its life at the latest
    assert!(killed.elapsed() >= TTL / 3, "{:?}", killed.elapsed());
    let mut deleted = Vec::new();
    for _ in 0..2 {
        let round = operator.run_gc(&stale, &what).await.unwrap();
        deleted.extend(round.deleted);
        stale = round.stale;
    }
    assert_eq!((deleted.len(), deleted.contains(&shared.id)), (KEYS - 1, false), "what the other node uses stays");
    let free = eventually("a number that is free", async || node.allocator.allocate(&key("new")).await.ok()).await;
    assert!(free.is_new && deleted.contains(&free.id));
    node.die().await;
}
