//! What looks wrong, as things that change: each with a place in our order, so that lists of a stream and its changes agree on them.
//!
//! Readers of the mirror find them (`api/findings`) and send them to the writer once in a while, bounded in number. None is stored.

use std::sync::Arc;

use imbl::OrdMap;

use super::phases::Placed;
use super::{Effects, View};
use crate::model::{DeleteReason, EntryKey, FindingChange, Kind, Object, Sequence};

/// All findings that were announced as begun and not as ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Findings {
    by_key: OrdMap<EntryKey, Placed>,
    by_sequence: OrdMap<Sequence, EntryKey>,
}

impl View {
    /// A finding as an object of the change stream.
    fn finding(&self, key: &EntryKey) -> Option<&Arc<Object>> {
        self.findings.by_key.get(key).map(|placed| &placed.object)
    }

    /// What is made here and has no record: a cluster, or a finding.
    #[must_use]
    pub fn made_here(&self, key: &EntryKey) -> Option<&Arc<Object>> {
        match key.kind {
            Kind::Cluster => self.cluster_object(&key.cluster),
            _ => self.finding(key),
        }
    }

    /// All findings from a key on, that one included, in key order.
    pub fn findings_from(&self, start: &EntryKey) -> impl Iterator<Item = (EntryKey, &Arc<Object>)> + use<'_> {
        self.findings.by_key.range(start.clone()..).map(|(key, placed)| (key.clone(), &placed.object))
    }

    /// The findings that changed after a position, in order of sequence.
    pub(super) fn findings_after(&self, position: Sequence) -> impl Iterator<Item = (Sequence, EntryKey)> {
        self.findings.by_sequence.range(position.next()..).map(|(sequence, key)| (*sequence, key.clone()))
    }

    /// These are what they are now; what is as it was is no change.
    pub(super) fn set_findings(&mut self, changes: Vec<FindingChange>, effects: &mut Effects) {
        for (key, object) in changes {
            if self.finding(&key) == object.as_ref() {
                continue;
            }
            self.sequence = self.sequence.next();
            let old = self.findings.by_key.remove(&key);
            if let Some(old) = &old {
                self.findings.by_sequence.remove(&old.sequence);
            }
            if let Some(object) = &object {
                self.findings.by_sequence.insert(self.sequence, key.clone());
                self.findings.by_key.insert(key.clone(), Placed { object: Arc::clone(object), sequence: self.sequence });
            }
            let deleted = object.is_none().then_some(DeleteReason::Deleted);
            effects.announcements.push(self.announced(key, old, object, deleted));
        }
    }
}
