//! The state of every scope, by a number that it keeps, so that a change of one costs the same whatever the others hold.

use std::collections::HashMap;
use std::sync::Arc;

use super::collections::paged_vector::PagedVector;
use crate::model::{ClusterName, Cursor, Kind, Scope};

/// How many scopes a cluster may have: one for each kind.
const KINDS: usize = Kind::Cluster as usize + 1;

/// Names a scope within a [`Scopes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScopeNumber(usize);

/// What is known of one scope as a whole, beside its cursor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScopeState {
    /// Whether everything of it was confirmed by the source since meshkeep started.
    pub confirmed: bool,
    /// The number of the last list that began, from 2 on (1: changes before any list).
    pub generation: u32,
    /// How many keys it holds. No etcd has 2^32 of them: that would be 2 B each (`--quota-backend-bytes`, at most 8 GiB).
    pub entry_count: u32,
    /// How many of them come from the store and were not confirmed yet.
    pub restored_count: u32,
}

/// The states of scopes. Numbers are never given back: there are few hundred clusters, and few come and go.
#[derive(Debug, Clone, Default)]
pub(super) struct Scopes {
    /// The place of each cluster, whose scopes have [`KINDS`] numbers one after another. By hash: a search in order would compare a dozen names for
    /// each change. Copied as a whole for each new cluster, seldom.
    clusters: Arc<HashMap<ClusterName, usize>>,
    /// 16 B each.
    states: PagedVector<Option<ScopeState>>,
    /// How far each is mirrored: what has none is in a list, or was never complete.
    cursors: PagedVector<Option<Arc<Cursor>>>,
    moves: Moves,
}

/// A clock of what answers contain: for each scope and kind the last change of an object, its stamp, its source or the phase of its cluster,
/// counted in such changes of all scopes since the process began; what only says how far the source was read is none.
#[derive(Debug, Clone, Default)]
struct Moves {
    count: u64,
    /// By the scope's number. It outlives the scope, so that one that comes back is not taken for what it was.
    scopes: PagedVector<u64>,
    /// The newest of each kind, by its place; what is derived from nodes moves with them.
    kinds: [u64; Kind::ALL.len()],
}

impl Scopes {
    /// The number of a scope, a new one if it has none yet.
    pub(super) fn number(&mut self, scope: Scope) -> ScopeNumber {
        if let Some(number) = self.known(&scope) {
            return number;
        }
        let place = self.clusters.len();
        Arc::make_mut(&mut self.clusters).insert(scope.cluster, place);
        ScopeNumber(place * KINDS + scope.kind as usize)
    }

    /// The number of a scope whose cluster has one.
    fn known(&self, scope: &Scope) -> Option<ScopeNumber> {
        self.clusters.get(&scope.cluster).map(|place| ScopeNumber(place * KINDS + scope.kind as usize))
    }

    /// The state of the scope of a number.
    pub(super) fn at(&self, number: ScopeNumber) -> Option<ScopeState> {
        self.states.get(number.0).copied().flatten()
    }

    /// The state of a scope, to be changed; a new one where there is none.
    pub(super) fn change(&mut self, number: ScopeNumber) -> &mut ScopeState {
        self.states.change(number.0).get_or_insert_default()
    }

    /// The state of a scope, if anything is known of it.
    pub(super) fn get(&self, scope: &Scope) -> Option<ScopeState> {
        self.at(self.known(scope)?)
    }

    /// The state of a scope by its name, to be changed; a new one where there is none.
    pub(super) fn entry(&mut self, scope: Scope) -> &mut ScopeState {
        let number = self.number(scope);
        self.change(number)
    }

    /// How far the source of a scope was read.
    pub(super) fn cursor(&self, scope: &Scope) -> Option<&Cursor> {
        self.cursors.get(self.known(scope)?.0)?.as_deref()
    }

    /// Notes that something of a scope changed.
    pub(super) fn moved(&mut self, number: ScopeNumber, kind: Kind) {
        self.moves.count += 1;
        *self.moves.scopes.change(number.0) = self.moves.count;
        if let Some(newest) = self.moves.kinds.get_mut(kind.place()) {
            *newest = self.moves.count;
        }
    }

    /// Notes that something of a cluster as a whole changed.
    pub(super) fn cluster_moved(&mut self, cluster: &ClusterName) {
        for kind in Kind::ALL {
            let number = self.number(Scope { cluster: cluster.clone(), kind });
            self.moved(number, kind);
        }
    }

    /// When something of a kind changed last.
    pub(super) fn kind_move(&self, kind: Kind) -> u64 {
        self.moves.kinds.get(kind.place()).copied().unwrap_or_default()
    }

    /// When something of a scope changed last.
    pub(super) fn scope_move(&self, scope: &Scope) -> u64 {
        self.known(scope).and_then(|number| self.moves.scopes.get(number.0)).copied().unwrap_or_default()
    }

    /// Sets how far a scope is mirrored.
    pub(super) fn set_cursor(&mut self, scope: Scope, cursor: Cursor) {
        let kind = scope.kind;
        let number = self.number(scope);
        self.change(number);
        if self.cursors.change(number.0).replace(Arc::new(cursor)).is_none() {
            self.moved(number, kind);
        }
    }

    /// Forgets how far a scope is mirrored. Returns whether it had a cursor.
    pub(super) fn clear_cursor(&mut self, scope: &Scope) -> bool {
        let cleared = self.known(scope).filter(|number| self.cursors.change(number.0).take().is_some());
        if let Some(number) = cleared {
            self.moved(number, scope.kind);
        }
        cleared.is_some()
    }

    /// Forgets all of a scope. Returns whether it had a cursor.
    pub(super) fn remove(&mut self, scope: &Scope) -> bool {
        if let Some(number) = self.known(scope) {
            *self.states.change(number.0) = None;
        }
        self.clear_cursor(scope)
    }

    /// The clusters of which any scope has a state, in no particular order.
    pub(super) fn clusters(&self) -> impl Iterator<Item = &ClusterName> {
        let has_any = |place: usize| (place * KINDS..(place + 1) * KINDS).any(|number| self.at(ScopeNumber(number)).is_some());
        self.clusters.iter().filter(move |(_, place)| has_any(**place)).map(|(cluster, _)| cluster)
    }
}
