//! Objects that meshkeep makes itself: the phases of clusters, and findings. Each change has a
//! sequence, so that the snapshot of a stream and its later changes agree (docs/use/api/streams.md,
//! `cluster` events).
//!
//! A cluster's phase comes from its task, and findings come from `findings`, which limits their
//! number. None of them is stored.

use std::sync::{Arc, LazyLock};

use imbl::OrdMap;

use crate::feed::Announcement;
use crate::feed::Version;
use crate::model::{ClusterName, ClusterPhase, ClusterRecord, DeleteReason, EntryKey, FindingChange, Kind, Object, Phase, Sequence};
use crate::view::{ChangeSet, View};

/// Phase of a cluster that is only known from the store.
static RESTORED: LazyLock<Arc<Object>> =
    LazyLock::new(|| Arc::new(Object::Cluster(ClusterPhase { phase: Some(Phase::WaitingForFiles), cause: 0 })));

/// Phases of clusters and unresolved findings, by key.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct OwnObjects {
    /// Objects with the sequences of their last changes.
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

    /// Iterates over the clusters that have a phase, in key order.
    pub(in crate::view) fn clusters(&self) -> impl Iterator<Item = &ClusterName> {
        self.by_key.keys().take_while(|key| key.kind == Kind::Cluster).map(|key| &key.cluster)
    }
}

impl View {
    /// Returns the phase of a cluster or a finding.
    #[must_use]
    pub fn own_object(&self, key: &EntryKey) -> Option<&Arc<Object>> {
        self.own_objects.by_key.get(key).map(|(object, _)| object)
    }

    /// Iterates over the phases of clusters and then the findings, from a key on, in key order.
    pub fn own_objects_from(&self, start: &EntryKey) -> impl Iterator<Item = (&EntryKey, &Arc<Object>)> + use<'_> {
        self.own_objects.by_key.range(start.clone()..).map(|(key, (object, _))| (key, object))
    }

    /// Iterates over the phases and findings that changed after a position, in order of sequence.
    pub(in crate::view) fn own_objects_after(&self, position: Sequence) -> impl Iterator<Item = (Sequence, EntryKey)> {
        self.own_objects.by_sequence.range(position.next()..).map(|(sequence, key)| (*sequence, key.clone()))
    }

    /// Returns the phase of a cluster; `None` if the cluster is unknown or its task has not
    /// reported yet.
    #[must_use]
    pub fn phase(&self, cluster: &ClusterName) -> Option<Phase> {
        self.own_object(&EntryKey::of_cluster(cluster.clone()))?.as_cluster()?.phase
    }

    /// Restores a cluster of the store in the phase `waitingForFiles`. The caller must not use the
    /// sequence for another change.
    pub fn restore_phase(&mut self, cluster: ClusterName, sequence: Sequence) {
        self.own_objects.insert(EntryKey::of_cluster(cluster), Arc::clone(&RESTORED), sequence);
    }

    /// Sets the phase of a cluster. Also stores an empty record of an unknown cluster, so that the
    /// next start notices if its client file is removed.
    pub(in crate::view) fn set_phase(&mut self, cluster: ClusterName, phase: ClusterPhase, change_set: &mut ChangeSet) {
        if !self.set_own_object(EntryKey::of_cluster(cluster.clone()), Ok(Arc::new(Object::Cluster(phase))), change_set) {
            return;
        }
        self.scopes.count_cluster_change(&cluster);
        if !self.clusters.contains_key(&cluster) {
            change_set.clusters.insert(cluster.clone(), Some(ClusterRecord::default()));
            self.clusters.insert(cluster, ClusterRecord::default());
        }
    }

    /// Removes the phase of a cluster that left the mesh.
    pub(super) fn remove_phase(&mut self, cluster: &ClusterName, reason: DeleteReason, change_set: &mut ChangeSet) {
        if self.set_own_object(EntryKey::of_cluster(cluster.clone()), Err(reason), change_set) {
            self.scopes.count_cluster_change(cluster);
        }
    }

    /// Adds, updates or removes findings.
    pub(in crate::view) fn set_findings(&mut self, changes: Vec<FindingChange>, change_set: &mut ChangeSet) {
        for (key, object) in changes {
            self.set_own_object(key, object.ok_or(DeleteReason::Deleted), change_set);
        }
    }

    /// Sets or removes an object and announces the change. Returns whether it changed.
    fn set_own_object(&mut self, key: EntryKey, new: Result<Arc<Object>, DeleteReason>, change_set: &mut ChangeSet) -> bool {
        if self.own_object(&key) == new.as_ref().ok() {
            return false;
        }
        self.sequence = self.sequence.next();
        let old = self.own_objects.remove(&key);
        if let Ok(object) = &new {
            self.own_objects.insert(key.clone(), Arc::clone(object), self.sequence);
        }
        change_set.announcements.push(Announcement {
            sequence: self.sequence,
            key,
            replaces: old.as_ref().map(|(_, sequence)| *sequence),
            old: old.map(|(object, _)| Version::of_own_object(object)),
            deleted: new.as_ref().err().copied(),
            new: new.ok().map(Version::of_own_object),
            revision: None,
        });
        true
    }
}
