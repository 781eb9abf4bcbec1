//! Clusters as things that change: where each one is in its life, with a place in our order like every other object.
//!
//! What a cluster's task says in between (errors, ages) is on the board alone; the phase comes through the writer, so that a list and
//! the change stream agree on it at every position (docs/api.md, `cluster` events).

use std::sync::{Arc, LazyLock};

use super::{Effects, View};
use crate::model::{Announcement, ClusterName, ClusterPhase, ClusterRecord, DeleteReason, EntryKey, Object, Phase, Sequence, Version};

/// A cluster of which nothing is known but what the store held: its file was not read yet.
static RESTORED: LazyLock<Arc<Object>> =
    LazyLock::new(|| Arc::new(Object::Cluster(ClusterPhase { phase: Some(Phase::WaitingForFiles), cause: 0 })));

/// What is made here, with its place in our order.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub(super) object: Arc<Object>,
    pub(super) sequence: Sequence,
}

impl View {
    /// Takes in a cluster that the store knows. That it waits for its file is announced at `sequence`: whatever a reader was told before
    /// the start is over.
    pub fn restore_phase(&mut self, cluster: ClusterName, sequence: Sequence) {
        self.phases.insert(cluster, Placed { object: Arc::clone(&RESTORED), sequence });
    }

    /// Where a cluster is in its life; `None` where it is not known or no task has said it yet.
    #[must_use]
    pub fn phase(&self, cluster: &ClusterName) -> Option<Phase> {
        self.cluster_object(cluster)?.as_cluster()?.phase
    }

    /// A cluster as an object of the change stream.
    #[must_use]
    pub fn cluster_object(&self, cluster: &ClusterName) -> Option<&Arc<Object>> {
        self.phases.get(cluster).map(|placed| &placed.object)
    }

    /// All clusters from a key on, that one included, in key order.
    pub fn clusters_from(&self, start: &EntryKey) -> impl Iterator<Item = (EntryKey, &Arc<Object>)> + use<'_> {
        let mut clusters: Vec<(EntryKey, &Arc<Object>)> =
            self.phases.iter().map(|(name, placed)| (EntryKey::of_cluster(name.clone()), &placed.object)).collect();
        clusters.retain(|(key, _)| key >= start);
        clusters.sort_by(|(left, _), (right, _)| left.cmp(right));
        clusters.into_iter()
    }

    /// The clusters whose phase changed after a position, in no particular order.
    pub(super) fn phases_after(&self, position: Sequence) -> impl Iterator<Item = (Sequence, EntryKey)> {
        let after = self.phases.iter().filter(move |(_, placed)| placed.sequence > position);
        after.map(|(name, placed)| (placed.sequence, EntryKey::of_cluster(name.clone())))
    }

    /// A cluster's phase changed, or why it is in it, or its task began. A cluster that was not known is remembered, so that a start without its file can
    /// tell that it is gone.
    pub(super) fn set_phase(&mut self, cluster: ClusterName, told: ClusterPhase, effects: &mut Effects) {
        if self.cluster_object(&cluster).and_then(|object| object.as_cluster()) == Some(&told) {
            return;
        }
        if !self.clusters.contains_key(&cluster) {
            effects.clusters.insert(cluster.clone(), Some(ClusterRecord::default()));
            self.clusters.insert(cluster.clone(), ClusterRecord::default());
        }
        self.sequence = self.sequence.next();
        self.scopes.cluster_moved(&cluster);
        let object = Arc::new(Object::Cluster(told));
        let old = self.phases.insert(cluster.clone(), Placed { object: Arc::clone(&object), sequence: self.sequence });
        effects.announcements.push(self.announced(EntryKey::of_cluster(cluster), old, Some(object), None));
    }

    /// A cluster is gone from the mesh.
    pub(super) fn remove_phase(&mut self, cluster: &ClusterName, reason: DeleteReason, effects: &mut Effects) {
        let Some(old) = self.phases.remove(cluster) else { return };
        self.scopes.cluster_moved(cluster);
        self.sequence = self.sequence.next();
        effects.announcements.push(self.announced(EntryKey::of_cluster(cluster.clone()), Some(old), None, Some(reason)));
    }

    /// The newest change, of something that is made here.
    pub(super) fn announced(
        &self,
        key: EntryKey,
        old: Option<Placed>,
        new: Option<Arc<Object>>,
        deleted: Option<DeleteReason>,
    ) -> Announcement {
        Announcement {
            sequence: self.sequence,
            key,
            replaces: old.as_ref().map(|old| old.sequence),
            old: old.map(|old| Version::made_here(old.object)),
            new: new.map(Version::made_here),
            revision: None,
            deleted,
        }
    }
}
