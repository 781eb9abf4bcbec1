//! Comparing one kind of one cluster with what stands in the target: both in the order of their keys, page by page.

use std::collections::VecDeque;

use super::target::Target;
use crate::handle::Reading;
use crate::kvstore::{KeyValue, KvstoreError};
use crate::model::{ClusterName, EntryKey, Kind};
use crate::wire::keys::watched_prefix;

/// How many of our keys are fetched at one time.
const KEYS_AT_ONCE: usize = 1024;

/// What may be done to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    /// The source confirmed the kind: write what differs, delete what it does not have.
    All,
    /// The kind is from the store, and the target has no whole copy: write what differs.
    Fill,
    /// The kind is from the store, and the target's copy is whole, perhaps newer: only see that it stays.
    Keep,
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Compared {
    /// Keys that stand as they are to be.
    pub(super) equal: u64,
    /// Keys that were queued.
    pub(super) queued: u64,
    /// Keys that are to go.
    pub(super) pruned: u64,
}

/// Our keys of the kind, in order.
struct Ours<'a> {
    reading: &'a Reading,
    fetched: VecDeque<EntryKey>,
    next: Option<EntryKey>,
}

impl Ours<'_> {
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

    /// The first key, if its name comes before another.
    fn next_before(&mut self, name: Option<&str>) -> Option<EntryKey> {
        let is_before = self.first().is_some_and(|key| name.is_none_or(|name| key.name.as_str() < name));
        if is_before { self.fetched.pop_front() } else { None }
    }
}

/// Compares, and queues what is to be written, as far as there is a right to. Waits where the queue is full.
pub(super) async fn compare(
    target: &Target,
    reading: &Reading,
    (cluster, kind): (&ClusterName, Kind),
    group: u32,
    right: Right,
) -> Result<Compared, KvstoreError> {
    let prefix = watched_prefix(kind, cluster, true);
    let mut ours = Ours { reading, fetched: VecDeque::new(), next: Some(EntryKey::new(kind, cluster.clone(), "")) };
    let mut compared = Compared::default();
    let mut pages = target.session.list_pages(prefix.as_bytes()).await?;
    while let Some(page) = pages.next_page().await? {
        for found in page.key_values {
            let name = found.key.strip_prefix(prefix.as_bytes()).and_then(|name| str::from_utf8(name).ok());
            if let Some(name) = name {
                while let Some(key) = ours.next_before(Some(name)) {
                    add(target, &key, group, right, &mut compared).await;
                }
            }
            let is_ours = name.is_some() && ours.first().is_some_and(|key| Some(key.name.as_str()) == name);
            let key = if is_ours { ours.fetched.pop_front() } else { None };
            settle(target, reading, &found, key, group, right, &mut compared).await;
        }
    }
    while let Some(key) = ours.next_before(None) {
        add(target, &key, group, right, &mut compared).await;
    }
    Ok(compared)
}

/// What becomes of a key that stands in the target.
async fn settle(
    target: &Target,
    reading: &Reading,
    found: &KeyValue,
    key: Option<EntryKey>,
    group: u32,
    right: Right,
    compared: &mut Compared,
) {
    let value = key.as_ref().and_then(|key| reading.record(key)).map(|record| record.value.clone());
    let is_equal = value.as_ref().is_some_and(|value| *value == found.value);
    if right == Right::Keep || (is_equal && found.lease.0 != 0) {
        target.session.adopt(&found.key, found.lease);
        compared.equal += 1;
    } else if value.is_some() {
        target.queue.add(&found.key, group).await;
        compared.queued += 1;
    } else if right == Right::All {
        target.queue.add(&found.key, group).await;
        compared.pruned += 1;
    } else {
        target.session.adopt(&found.key, found.lease);
    }
}

/// A key that the target does not have.
async fn add(target: &Target, key: &EntryKey, group: u32, right: Right, compared: &mut Compared) {
    if right != Right::Keep {
        target.queue.add(key.to_string().as_bytes(), group).await;
        compared.queued += 1;
    }
}
