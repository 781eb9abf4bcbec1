//! The state of every scope, by a number that it keeps, so that a change of one costs the same whatever the others hold.

use imbl::HashMap;

use super::ScopeState;
use super::shelf::Shelf;
use crate::model::Scope;

/// Names a scope within a [`Scopes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScopeNumber(usize);

/// The states of scopes. Numbers are never given back: there are few hundred clusters, and few come and go.
#[derive(Debug, Clone, Default)]
pub(super) struct Scopes {
    /// By hash: a search in order would compare a dozen names for each change.
    numbers: HashMap<Scope, usize>,
    states: Shelf<ScopeState>,
}

impl Scopes {
    /// The number of a scope, a new one if it has none yet.
    pub(super) fn number(&mut self, scope: Scope) -> ScopeNumber {
        if let Some(number) = self.numbers.get(&scope) {
            return ScopeNumber(*number);
        }
        let number = self.numbers.len();
        self.numbers.insert(scope, number);
        ScopeNumber(number)
    }

    pub(super) fn at(&self, number: ScopeNumber) -> Option<&ScopeState> {
        self.states.get(number.0)
    }

    /// The state of a scope, to be changed; a new one where there is none.
    pub(super) fn change(&mut self, number: ScopeNumber) -> &mut ScopeState {
        self.states.change(number.0)
    }

    pub(super) fn get(&self, scope: &Scope) -> Option<&ScopeState> {
        self.states.get(*self.numbers.get(scope)?)
    }

    /// The same as [`Scopes::change`], by the scope.
    pub(super) fn entry(&mut self, scope: Scope) -> &mut ScopeState {
        let number = self.number(scope);
        self.change(number)
    }

    /// Forgets the state of a scope. Returns whether it had a cursor.
    pub(super) fn remove(&mut self, scope: &Scope) -> bool {
        let Some(number) = self.numbers.get(scope).copied() else { return false };
        self.states.take(number).is_some_and(|state| state.cursor.is_some())
    }

    /// The scopes that have a state, in no particular order.
    pub(super) fn names(&self) -> impl Iterator<Item = &Scope> {
        self.numbers.iter().filter(|(_, number)| self.states.get(**number).is_some()).map(|(scope, _)| scope)
    }
}
