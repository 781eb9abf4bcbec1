//! What is made here and changes like every other object: where each cluster is in its life, and what looks wrong. Each has a place in our
//! order, so that lists of a stream and its changes agree on it at every position (docs/use/api/streams.md, `cluster` events).
//!
//! What a cluster's task says in between (errors, ages) is on the board alone; the phase comes through the writer. Findings are found by readers
//! of the mirror (`findings`), which send them to the writer once in a while, bounded in number. None is stored.

use std::sync::{Arc, LazyLock};

use imbl::OrdMap;

use crate::model::{
    Announcement, ClusterName, ClusterPhase, ClusterRecord, DeleteReason, EntryKey, FindingChange, Kind, Object, Phase, Sequence, Version,
};
use crate::view::{Effects, View};

/// A cluster of which nothing is known but what the store held: its file was not read yet.
static RESTORED: LazyLock<Arc<Object>> =
    LazyLock::new(|| Arc::new(Object::Cluster(ClusterPhase { phase: Some(Phase::WaitingForFiles), cause: 0 })));

/// The phases of clusters, and behind them all findings that were announced as begun and not as ended.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct OwnObjects {
    /// Each with the sequence of its last change.
    by_key: OrdMap<EntryKey, (Arc<Object>, Sequence)>,
    by_sequence: OrdMap<Sequence, EntryKey>,
}

impl OwnObjects {
    fn insert(&mut self, key: EntryKey, object: Arc<Object>, sequence: Sequence) {
        self.by_sequence.insert(sequence, key.clone());
        self.by_key.insert(key, (object, sequence));
    }

    fn remove(&mut self, key: &EntryKey) -> Option<(Arc<Object>, Sequence)> {
        let (object, sequence) = self.by_key.remove(key)?;
        self.by_sequence.remove(&sequence);
        Some((object, sequence))
    }

    /// The clusters that have a phase, in key order.
    pub(in crate::view) fn clusters(&self) -> impl Iterator<Item = &ClusterName> {
        self.by_key.keys().take_while(|key| key.kind == Kind::Cluster).map(|key| &key.cluster)
    }
}

impl View {
    /// What is made here and has no record: a cluster, or a finding.
    #[must_use]
    pub fn made_here(&self, key: &EntryKey) -> Option<&Arc<Object>> {
        self.made.by_key.get(key).map(|(object, _)| object)
    }

    /// All clusters, and behind them all findings, from a key on, that one included, in key order.
    pub fn made_from(&self, start: &EntryKey) -> impl Iterator<Item = (&EntryKey, &Arc<Object>)> + use<'_> {
        self.made.by_key.range(start.clone()..).map(|(key, (object, _))| (key, object))
    }

    /// The clusters and findings that changed after a position, in order of sequence.
    pub(in crate::view) fn made_after(&self, position: Sequence) -> impl Iterator<Item = (Sequence, EntryKey)> {
        self.made.by_sequence.range(position.next()..).map(|(sequence, key)| (*sequence, key.clone()))
    }

    /// Where a cluster is in its life; `None` where it is not known or no task has said it yet.
    #[must_use]
    pub fn phase(&self, cluster: &ClusterName) -> Option<Phase> {
        self.made_here(&EntryKey::of_cluster(cluster.clone()))?.as_cluster()?.phase
    }

    /// Takes in a cluster that the store knows. That it waits for its file is announced at `sequence`, which is its alone: whatever a reader
    /// was told before the start is over.
    pub fn restore_phase(&mut self, cluster: ClusterName, sequence: Sequence) {
        self.made.insert(EntryKey::of_cluster(cluster), Arc::clone(&RESTORED), sequence);
    }

    /// A cluster's phase changed, or why it is in it, or its task began. A cluster that was not known is remembered, so that a start without its file can
    /// tell that it is gone.
    pub(in crate::view) fn set_phase(&mut self, cluster: ClusterName, told: ClusterPhase, effects: &mut Effects) {
        if !self.make(EntryKey::of_cluster(cluster.clone()), Ok(Arc::new(Object::Cluster(told))), effects) {
            return;
        }
        self.scopes.cluster_moved(&cluster);
        if !self.clusters.contains_key(&cluster) {
            effects.clusters.insert(cluster.clone(), Some(ClusterRecord::default()));
            self.clusters.insert(cluster, ClusterRecord::default());
        }
    }

    /// A cluster is gone from the mesh.
    pub(super) fn remove_phase(&mut self, cluster: &ClusterName, reason: DeleteReason, effects: &mut Effects) {
        if self.make(EntryKey::of_cluster(cluster.clone()), Err(reason), effects) {
            self.scopes.cluster_moved(cluster);
        }
    }

    /// These findings are what they are now, or over.
    pub(in crate::view) fn set_findings(&mut self, changes: Vec<FindingChange>, effects: &mut Effects) {
        for (key, object) in changes {
            self.make(key, object.ok_or(DeleteReason::Deleted), effects);
        }
    }

    /// Something is what it is now, or gone for a reason, and that is announced. What is as it was is no change: false.
    fn make(&mut self, key: EntryKey, now: Result<Arc<Object>, DeleteReason>, effects: &mut Effects) -> bool {
        if self.made_here(&key) == now.as_ref().ok() {
            return false;
        }
        self.sequence = self.sequence.next();
        let old = self.made.remove(&key);
        if let Ok(object) = &now {
            self.made.insert(key.clone(), Arc::clone(object), self.sequence);
        }
        effects.announcements.push(Announcement {
            sequence: self.sequence,
            key,
            replaces: old.as_ref().map(|(_, sequence)| *sequence),
            old: old.map(|(object, _)| Version::made_here(object)),
            deleted: now.as_ref().err().copied(),
            new: now.ok().map(Version::made_here),
            revision: None,
        });
        true
    }
}
