//! Tests of the IO-free parts, and of whole allocators over an in-memory store.

mod collection;
mod concurrency;
mod memory;
mod parts;
mod single;
mod uses;

use super::backend::{Id, IdRange};
use super::key::AllocatorKey;

fn id(number: u64) -> Id {
    Id::new(number).unwrap()
}

fn range(min: u64, max: u64) -> IdRange {
    IdRange::new(min, max).unwrap()
}

fn key(name: &str) -> AllocatorKey {
    AllocatorKey::from_labels([("k8s:app", name), ("k8s:io.cilium.k8s.policy.cluster", "vms")])
}
