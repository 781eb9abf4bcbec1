//! Comparison of one kind of one cluster with the target's keys. Both are read in key order, page
//! by page, so that memory stays bounded.

use std::collections::VecDeque;

use super::target::{Target, TargetKey};
use crate::handle::Reading;
use crate::model::{ClusterName, EntryKey, Kind};
use crate::wire::keys::watched_prefix;
use cilium_kvstore::{KeyValue, KvstoreError};

/// Number of keys that are read from the mirror at a time.
const KEYS_AT_ONCE: usize = 1024;

/// Changes that a comparison may make to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AllowedChanges {
    /// The source confirmed the kind: write keys that differ and delete keys that the mirror does
    /// not have.
    All,
    /// The kind was restored from the store and the target has no complete copy: write keys that
    /// differ, delete none.
    Fill,
    /// The kind was restored from the store and the target has a complete copy, which may be newer:
    /// only keep its keys alive.
    Keep,
}

/// Result of a comparison, in numbers of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ComparisonResult {
    /// Keys that stay as they are: they have the right value, or only `Keep` is allowed.
    pub(super) equal: u64,
    /// Keys that were queued for writing.
    pub(super) queued: u64,
    /// Keys that were queued for deletion.
    pub(super) pruned: u64,
}

/// The mirror's keys of the kind, in order.
struct MirrorKeys<'a> {
    reading: &'a Reading,
    fetched: VecDeque<EntryKey>,
    next: Option<EntryKey>,
}

impl MirrorKeys<'_> {
    fn first(&mut self) -> Option<&EntryKey> {
        if self.fetched.is_empty()
            && let Some(start) = self.next.take()
        {
            let mut keys = self.reading.keys_from(&start, KEYS_AT_ONCE + 1);
            self.next = (keys.len() > KEYS_AT_ONCE).then(|| keys.pop()).flatten();
            self.fetched = keys.into();
        }
        self.fetched.front()
    }

    /// Removes and returns the first key if its name sorts before `name`. `None` sorts after every
    /// name.
    fn next_before(&mut self, name: Option<&str>) -> Option<EntryKey> {
        let is_before = self.first().is_some_and(|key| name.is_none_or(|name| key.name.as_str() < name));
        if is_before { self.fetched.pop_front() } else { None }
    }
}

/// Compares a kind and queues the differences that `allowed` allows. Waits while the queue is full.
pub(super) async fn compare(
    target: &Target,
    reading: &Reading,
    (cluster, kind): (&ClusterName, Kind),
    group: u32,
    allowed: AllowedChanges,
) -> Result<ComparisonResult, KvstoreError> {
    let prefix = watched_prefix(kind, cluster, true);
    let mut mirror_keys = MirrorKeys { reading, fetched: VecDeque::new(), next: Some(EntryKey::new(kind, cluster.clone(), "")) };
    let mut compared = ComparisonResult::default();
    let mut pages = target.session.list_pages(prefix.as_bytes()).await?;
    while let Some(page) = pages.next_page().await? {
        for existing in page.key_values {
            let name = existing.key.strip_prefix(prefix.as_bytes()).and_then(|name| str::from_utf8(name).ok());
            if let Some(name) = name {
                while let Some(key) = mirror_keys.next_before(Some(name)) {
                    queue_missing_key(target, key, group, allowed, &mut compared).await;
                }
            }
            let is_in_mirror = name.is_some() && mirror_keys.first().is_some_and(|key| Some(key.name.as_str()) == name);
            let key = if is_in_mirror { mirror_keys.fetched.pop_front() } else { None };
            compare_key(target, reading, &existing, key, group, allowed, &mut compared).await;
        }
    }
    while let Some(key) = mirror_keys.next_before(None) {
        queue_missing_key(target, key, group, allowed, &mut compared).await;
    }
    Ok(compared)
}

/// Handles a key that the target has: adopts its lease, or queues it for writing or deletion.
async fn compare_key(
    target: &Target,
    reading: &Reading,
    existing: &KeyValue,
    key: Option<EntryKey>,
    group: u32,
    allowed: AllowedChanges,
    compared: &mut ComparisonResult,
) {
    let value = key.as_ref().and_then(|key| reading.value(key));
    let is_equal = value.as_ref().is_some_and(|value| *value == existing.value);
    let key = || key.map_or_else(|| TargetKey::parse(&existing.key), TargetKey::Entry);
    if allowed == AllowedChanges::Keep || (is_equal && existing.lease.0 != 0) {
        target.session.adopt(&existing.key, existing.lease);
        compared.equal += 1;
    } else if value.is_some() {
        target.queue.add(key(), group).await;
        compared.queued += 1;
    } else if allowed == AllowedChanges::All {
        target.queue.add(key(), group).await;
        compared.pruned += 1;
    } else {
        target.session.adopt(&existing.key, existing.lease);
    }
}

/// Queues a key that the target does not have.
async fn queue_missing_key(target: &Target, key: EntryKey, group: u32, allowed: AllowedChanges, compared: &mut ComparisonResult) {
    if allowed != AllowedChanges::Keep {
        target.queue.add(TargetKey::Entry(key), group).await;
        compared.queued += 1;
    }
}
