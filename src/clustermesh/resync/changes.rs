//! Turns events of a source into changes of entries, and computes the points by which a history is
//! recognised.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::held_keys::HistoryMatch;
use super::{DeleteEvidence, Resync, ResyncStep, SourceInfo};
use crate::model::{Change, Command, Cursor, EntryKey, PutPoint, SourceStamp};
use crate::wire::{self, Context, keys};
use cilium_kvstore::{Event, KeyValue};

impl Resync {
    /// Turns events of the source into changes of entries.
    pub(super) fn apply(&mut self, events: Vec<Event>, evidence: &DeleteEvidence, mut cursor: Option<Cursor>) -> ResyncStep {
        let Some(source) = self.source.clone() else { return ResyncStep::default() };
        let mut step = ResyncStep::default();
        let mut changes = Vec::with_capacity(events.len());
        for event in events {
            let key = match &event {
                Event::Put(put) => &put.key,
                Event::Delete { key, .. } => key,
            };
            match (keys::entry_key(self.scope.kind, &self.scope.cluster, source.cached, key), event) {
                (Ok(key), event) => changes.push(self.entry_change(key, event, evidence, &source)),
                (Err(reason), Event::Put(put)) => {
                    step.unreadable_keys.push(reason.clone());
                    self.unreadable.put(&put.key, &put.value, reason);
                }
                (Err(_), Event::Delete { key, .. }) => self.unreadable.delete(&key),
            }
        }
        if !self.unreadable.is_empty() {
            // a resume could not find deletes by comparing counts: it must list in full
            cursor.iter_mut().chain(&mut self.cursor).for_each(|cursor| cursor.last_put = None);
        }
        if !changes.is_empty() || cursor.is_some() {
            step.commands.push(Command::Apply { scope: self.scope.clone(), changes, cursor });
        }
        step
    }

    /// Turns puts into changes of entries. Unlike deletes, puts need no evidence.
    pub(super) fn apply_puts(&mut self, puts: Vec<KeyValue>, cursor: Option<Cursor>) -> ResyncStep {
        self.apply(puts.into_iter().map(Event::Put).collect(), &DeleteEvidence::default(), cursor)
    }

    fn entry_change(&mut self, key: EntryKey, event: Event, evidence: &DeleteEvidence, source: &SourceInfo) -> Change {
        match event {
            Event::Delete { .. } => {
                let hold = evidence.requires_hold(&key, source.cached, HistoryMatch::Same);
                self.held_keys.delete_or_hold(key, hold, false)
            }
            Event::Put(put) => {
                let context = Context {
                    cluster: &self.scope.cluster,
                    cluster_id: source.cluster_id,
                    max_connected_clusters: source.max_connected_clusters,
                };
                let decoded = wire::decode_shared(&key, &put.value, &context).map(Arc::new).map_err(Arc::from);
                let source = SourceStamp { mod_revision: put.mod_revision, lease: put.lease, held: false };
                self.held_keys.release(&key);
                Change::Put { key, value: put.value, decoded, source }
            }
        }
    }
}

pub(super) fn put_point(put: &KeyValue) -> PutPoint {
    PutPoint { source_key: put.key.clone(), revision: put.mod_revision, value_digest: digest(put) }
}

pub(super) fn matches_put_point(key_value: &KeyValue, stored: &PutPoint) -> bool {
    digest(key_value) == stored.value_digest
}

/// Returns a digest of value and lease. etcd chooses lease ids at random, so an etcd that was wiped
/// and filled again in the same order has other leases, even if values and revisions are the same.
fn digest(put: &KeyValue) -> [u8; 32] {
    let mut digest = Sha256::new_with_prefix(&put.value);
    if put.lease.0 != 0 {
        digest.update(put.lease.0.to_be_bytes());
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LeaseId, Revision};

    #[test]
    fn a_put_is_recognised_by_its_bytes_and_its_lease() {
        let put = |value: &'static [u8], lease| KeyValue {
            key: b"cilium/state/nodes/v1/paris/a".to_vec(),
            value: value.into(),
            create_revision: Revision(3),
            mod_revision: Revision(4),
            version: 2,
            lease: LeaseId(lease),
        };
        let stored = put_point(&put(b"a", 7));
        let is_same = [put(b"a", 7), put(b"a", 8), put(b"a", 0), put(b"b", 7)].map(|put| matches_put_point(&put, &stored));
        assert_eq!(is_same, [true, false, false, false]);
    }
}
