//! The records that changed since they were folded into chunks, or never were: whole, with their objects.
//!
//! One ordered set of pointers and no index beside it: a change is what must be quick here. What is asked seldom, the ip entries of an
//! identity and what changed after a position, looks at all of them, some tens of thousands at most.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

use imbl::OrdSet;
use imbl::ordset::RangedIter;
use imbl::shared_ptr::DefaultSharedPtr;

use crate::model::{EntryKey, Object, Record, Sequence};

/// Records that stand above the base.
#[derive(Debug, Clone, Default)]
pub(super) struct Overlay {
    records: OrdSet<ByKey>,
}

/// A record that sorts by its key, with its sequence, so that what changed when is found without a look at each.
#[derive(Debug, Clone)]
pub(super) struct ByKey(pub(super) Arc<Record>, Sequence);

/// Records in key order.
pub(super) type Fresh<'a> = RangedIter<'a, ByKey, DefaultSharedPtr>;

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

impl Borrow<EntryKey> for ByKey {
    fn borrow(&self) -> &EntryKey {
        &self.0.key
    }
}

impl Overlay {
    pub(super) fn get(&self, key: &EntryKey) -> Option<&Arc<Record>> {
        self.records.get(key).map(|found| &found.0)
    }

    /// Puts a record in place of the one of its key, if there is one.
    pub(super) fn insert(&mut self, record: Arc<Record>) {
        let sequence = record.last_sequence;
        self.records.insert(ByKey(record, sequence));
    }

    pub(super) fn remove(&mut self, key: &EntryKey) -> Option<Arc<Record>> {
        self.records.remove(key).map(|found| found.0)
    }

    /// Records from a key on, in key order.
    pub(super) fn from(&self, start: &EntryKey) -> Fresh<'_> {
        self.records.range::<_, EntryKey>(start.clone()..)
    }

    /// Records that changed between two sequences, in no particular order.
    pub(super) fn within(&self, above: Sequence, below: Sequence) -> impl Iterator<Item = (Sequence, &Arc<Record>)> {
        self.records.iter().filter(move |found| found.1 > above && found.1 < below).map(|found| (found.1, &found.0))
    }

    /// The ip entries that name an identity, from a key on, in key order.
    pub(super) fn of_identity(&self, identity: u32, start: &EntryKey) -> impl Iterator<Item = &Arc<Record>> {
        let names = move |record: &&Arc<Record>| matches!(record.object.as_deref(), Some(Object::Ip(entry)) if entry.identity == identity);
        self.from(start).map(|found| &found.0).filter(names)
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }
}
