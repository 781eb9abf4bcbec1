//! From what a source says to changes of our keys, and the points by which a history is recognised again.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{Resync, Source, Step};
use crate::kvstore::{Event, KeyValue};
use crate::model::{Change, Command, Cursor, EntryKey, PutPoint, Revision, SourceStamp};
use crate::wire::{self, Context, keys};

impl Resync {
    /// Turns the source's events into changes of our keys.
    pub(super) fn apply(&self, events: Vec<Event>, cursor: Option<Cursor>) -> Step {
        self.changed_by(events, Vec::new(), cursor)
    }

    /// The same with changes that are already of our keys, behind the events.
    pub(super) fn changed_by(&self, events: Vec<Event>, more: Vec<Change>, cursor: Option<Cursor>) -> Step {
        let Some(source) = &self.source else { return Step::default() };
        let mut step = Step::default();
        let mut changes = Vec::with_capacity(events.len() + more.len());
        for event in events {
            match self.change(event, source) {
                Ok(change) => changes.push(change),
                Err(reason) => step.unreadable_keys.push(reason),
            }
        }
        changes.extend(more);
        if !changes.is_empty() || cursor.is_some() {
            step.commands.push(Command::Apply { scope: self.scope.clone(), changes, cursor });
        }
        step
    }

    fn change(&self, event: Event, source: &Source) -> Result<Change, String> {
        let key_of = |key: &[u8]| keys::entry_key(self.scope.kind, &self.scope.cluster, source.cached, key);
        match event {
            Event::Delete { key, .. } => Ok(Change::Delete { key: key_of(&key)? }),
            Event::Put(put) => {
                let key: EntryKey = key_of(&put.key)?;
                let context = Context {
                    cluster: &self.scope.cluster,
                    cluster_id: source.cluster_id,
                    max_connected_clusters: source.max_connected_clusters,
                };
                let decoded = wire::decode(&key, &put.value, &context).map(Arc::new).map_err(Arc::from);
                let source = SourceStamp { mod_revision: put.mod_revision, lease: put.lease };
                Ok(Change::Put { key, value: put.value, decoded, source })
            }
        }
    }
}

pub(super) fn put_point(key: &[u8], revision: Revision, value: &[u8]) -> PutPoint {
    PutPoint { source_key: key.to_vec(), revision, value_digest: digest(value) }
}

pub(super) fn is_value(key_value: &KeyValue, stored: &PutPoint) -> bool {
    digest(&key_value.value) == stored.value_digest
}

fn digest(value: &[u8]) -> [u8; 32] {
    Sha256::digest(value).into()
}
