//! State of every scope. A scope has a fixed number, so a change of its state costs the same for
//! any number of scopes.

use std::collections::HashMap;
use std::sync::Arc;

use super::collections::paged_vector::PagedVector;
use crate::model::{ClusterName, Cursor, Kind, Scope};

/// Number of scopes of a cluster: one per kind, of which `Kind::Cluster` is the last.
const SCOPES_PER_CLUSTER: usize = Kind::Cluster as usize + 1;

/// Number of a scope within [`Scopes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScopeNumber(usize);

/// State of one scope, without its cursor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScopeState {
    /// Whether the source has confirmed all entries since meshkeep started.
    pub confirmed: bool,
    /// Number of the newest list, from 2 on. Changes before the first list have 1.
    pub generation: u32,
    /// Number of keys. No etcd has 2^32 of them: with a database of at most 8 GiB
    /// (`--quota-backend-bytes`) that would be 2 bytes each.
    pub entry_count: u32,
    /// Number of restored keys that are not confirmed yet.
    pub restored_count: u32,
}

/// States of all scopes. Numbers are never reused, because there are only a few hundred clusters.
#[derive(Debug, Clone, Default)]
pub(super) struct Scopes {
    /// Index of each cluster, whose scopes have [`SCOPES_PER_CLUSTER`] consecutive numbers. A hash
    /// map, because an ordered one would compare a dozen names per change. A new cluster copies the
    /// whole map.
    clusters: Arc<HashMap<ClusterName, usize>>,
    /// States, 16 bytes each.
    states: PagedVector<Option<ScopeState>>,
    /// Cursors. A scope without one is being listed, or was never complete.
    cursors: PagedVector<Option<Arc<Cursor>>>,
    changes: ChangeCounters,
}

/// Versions of the content of answers. The version of a scope or kind is the number of the last
/// change of an object, of its revision, lease or held mark, of its confirmation, or of its
/// cluster's config or phase. A cursor counts when it is added or removed. All scopes share one
/// counter. A change of a cursor's revision does not count.
#[derive(Debug, Clone, Default)]
struct ChangeCounters {
    count: u64,
    /// Version by scope number. A removed scope keeps its version, so that a new scope of that name
    /// has another one.
    scopes: PagedVector<u64>,
    /// Version by the kind's index. Derived entries count as nodes.
    kinds: [u64; Kind::ALL.len()],
    /// Number of changes of the set of clusters, of a phase or config, or of an origin: far fewer
    /// than changes of objects.
    sources: u64,
}

impl Scopes {
    /// Returns the number of a scope. Assigns one if necessary.
    pub(super) fn number(&mut self, scope: Scope) -> ScopeNumber {
        if let Some(number) = self.find_number(&scope) {
            return number;
        }
        let index = self.clusters.len();
        Arc::make_mut(&mut self.clusters).insert(scope.cluster, index);
        ScopeNumber(index * SCOPES_PER_CLUSTER + scope.kind as usize)
    }

    /// Returns the number of a scope, if its cluster has numbers.
    fn find_number(&self, scope: &Scope) -> Option<ScopeNumber> {
        self.clusters.get(&scope.cluster).map(|index| ScopeNumber(index * SCOPES_PER_CLUSTER + scope.kind as usize))
    }

    /// Returns the state of a scope by number.
    pub(super) fn state(&self, number: ScopeNumber) -> Option<ScopeState> {
        self.states.get(number.0).copied().flatten()
    }

    /// Returns the state of a scope for changes. Creates it if necessary.
    pub(super) fn state_mut(&mut self, number: ScopeNumber) -> &mut ScopeState {
        let state = self.states.get_mut(number.0);
        self.changes.sources += u64::from(state.is_none());
        state.get_or_insert_default()
    }

    /// Returns the state of a scope.
    pub(super) fn get(&self, scope: &Scope) -> Option<ScopeState> {
        self.state(self.find_number(scope)?)
    }

    /// Returns the state of a scope for changes. Creates it if necessary.
    pub(super) fn entry(&mut self, scope: Scope) -> &mut ScopeState {
        let number = self.number(scope);
        self.state_mut(number)
    }

    /// Returns the cursor of a scope.
    pub(super) fn cursor(&self, scope: &Scope) -> Option<&Cursor> {
        self.cursors.get(self.find_number(scope)?.0)?.as_deref()
    }

    /// Counts a change of a scope's content.
    pub(super) fn count_change(&mut self, number: ScopeNumber, kind: Kind) {
        self.changes.count += 1;
        *self.changes.scopes.get_mut(number.0) = self.changes.count;
        if let Some(newest) = self.changes.kinds.get_mut(kind.index()) {
            *newest = self.changes.count;
        }
    }

    /// Counts a change of a source: of its origin, phase or config, or whether it exists.
    pub(super) fn count_source_change(&mut self) {
        self.changes.sources += 1;
    }

    /// Returns the number of changes that [`Scopes::count_source_change`] counted.
    pub(super) const fn source_version(&self) -> u64 {
        self.changes.sources
    }

    /// Counts a change that affects all scopes of a cluster.
    pub(super) fn count_cluster_change(&mut self, cluster: &ClusterName) {
        self.count_source_change();
        for kind in Kind::ALL {
            let number = self.number(Scope { cluster: cluster.clone(), kind });
            self.count_change(number, kind);
        }
    }

    /// Returns the version of a kind: the number of its last change.
    pub(super) fn kind_version(&self, kind: Kind) -> u64 {
        self.changes.kinds.get(kind.index()).copied().unwrap_or_default()
    }

    /// Returns the version of a scope: the number of its last change.
    pub(super) fn scope_version(&self, scope: &Scope) -> u64 {
        self.find_number(scope).and_then(|number| self.changes.scopes.get(number.0)).copied().unwrap_or_default()
    }

    /// Sets the cursor of a scope.
    pub(super) fn set_cursor(&mut self, scope: Scope, cursor: Cursor) {
        let kind = scope.kind;
        let number = self.number(scope);
        self.state_mut(number);
        if self.cursors.get_mut(number.0).replace(Arc::new(cursor)).is_none() {
            self.count_source_change();
            self.count_change(number, kind);
        }
    }

    /// Removes the cursor of a scope. Returns whether it had one.
    pub(super) fn clear_cursor(&mut self, scope: &Scope) -> bool {
        let cleared = self.find_number(scope).filter(|number| self.cursors.get_mut(number.0).take().is_some());
        if let Some(number) = cleared {
            self.count_source_change();
            self.count_change(number, scope.kind);
        }
        cleared.is_some()
    }

    /// Removes the state and the cursor of a scope. Returns whether it had a cursor.
    pub(super) fn remove(&mut self, scope: &Scope) -> bool {
        if let Some(number) = self.find_number(scope) {
            *self.states.get_mut(number.0) = None;
            self.count_source_change();
        }
        self.clear_cursor(scope)
    }

    /// Iterates over the clusters with at least one scope, in no particular order.
    pub(super) fn clusters(&self) -> impl Iterator<Item = &ClusterName> {
        let has_any = |index: usize| {
            (index * SCOPES_PER_CLUSTER..(index + 1) * SCOPES_PER_CLUSTER).any(|number| self.state(ScopeNumber(number)).is_some())
        };
        self.clusters.iter().filter(move |(_, index)| has_any(**index)).map(|(cluster, _)| cluster)
    }
}
