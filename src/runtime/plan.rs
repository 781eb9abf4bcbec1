//! Where a start begins: what it announces anew, and the sequence that its positions count from.
//!
//! Owns: what follows from the marks of the store and the announce journals alone, so that it is known before entries are. Deliberately lacks: the
//! records that are announced anew (`restore`).

use std::collections::BTreeSet;

use crate::commit::{Vouched, vouch};
use crate::model::{ClusterName, EntryKey, Epoch, Kind, Sequence};
use crate::store::{Journal, JournalRun, Loaded};
use crate::view::View;

/// Where a start begins.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) vouched: Vouched,
    /// The keys that are announced anew, with their new sequences.
    pub(super) announced: Vec<(EntryKey, Sequence)>,
    /// Their phases are announced anew behind these, with the last sequences up to the head.
    pub(super) clusters: BTreeSet<ClusterName>,
    pub(super) head: Sequence,
}

/// A start that has given positions out before everything was loaded.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) plan: Plan,
    pub(super) runs: Vec<JournalRun>,
    pub(super) epoch: Epoch,
    pub(super) journal: Journal,
}

impl Plan {
    /// A start from these marks, with these clusters.
    pub(super) fn new(marks: &Loaded, runs: &[JournalRun], clusters: BTreeSet<ClusterName>) -> Self {
        let vouched = vouch(&marks.epochs, marks.covered, marks.floor, runs);
        let mut head = marks.sequence_reserved.max(vouched.newest);
        let is_known_cluster = |key: &&EntryKey| key.kind == Kind::Cluster && clusters.contains(&key.cluster);
        let mut announced = Vec::with_capacity(vouched.keys.len());
        for key in vouched.keys.iter().filter(|key| !is_known_cluster(key)) {
            head = head.next();
            announced.push((key.clone(), head));
        }
        let head = Sequence(head.0 + clusters.len() as u64);
        Self { vouched, announced, clusters, head }
    }

    /// Whether positions that were given out by another plan mean the same by this one.
    pub(super) fn goes_on(&self, begun: &Self) -> bool {
        self.head == begun.head && self.announced == begun.announced && self.clusters == begun.clusters
    }

    /// A mirror of what is known without entries.
    pub(super) fn view(&self, marks: &Loaded) -> View {
        let mut view = View::starting_at(self.head);
        for (name, record) in &marks.clusters {
            view.restore_cluster(name.clone(), record.clone());
        }
        let mut sequence = Sequence(self.head.0 - self.clusters.len() as u64);
        for name in &self.clusters {
            sequence = sequence.next();
            view.restore_phase(name.clone(), sequence);
        }
        for (scope, cursor) in &marks.cursors {
            view.restore_cursor(scope.clone(), cursor.clone());
        }
        view
    }
}
