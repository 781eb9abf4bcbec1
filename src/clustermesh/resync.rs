//! The resync state machine: brings one kind of one cluster in the mirror to exactly what the
//! source has.
//!
//! [`scope`](super::scope) feeds it what the source answers ([`Input`]), and performs the resulting
//! [`Step`]: commands for the committer and the next request. The machine is pure: no IO, no clock,
//! no await.
//!
//! It keeps these invariants (docs/develop/invariants.md). The cursor is cleared before a list and
//! set after it (1). A stored revision is used only in the same history, which the sentinel check
//! proves (2, docs/develop/measurements.md §2). Entries are removed only after a complete list. If
//! the cluster writes canaries, the list must follow the canary. Otherwise it must be of the same
//! history, or be followed by a quiet time (3). Entries that the source lost are held (4, `holds`).
//!
//! When a list breaks off, an agent drops the identities that it brought
//! (docs/develop/protocol.md §3.6). Here they stay: they were at the source, and only a complete
//! list proves that a key is not.

mod changes;
mod differing;
mod holds;
mod sentinel;
mod unreadable;

use std::time::{Duration, Instant};

use self::changes::put_point;
use self::holds::{History, Holds};
pub use self::holds::{Sign, Signs};
use self::sentinel::OTHER_HISTORY;
pub use self::unreadable::Unreadable;
use crate::model::{
    CanaryPoint, Change, ClusterId, Command, Cursor, DeletePoint, EntryKey, EtcdClusterId, MaxConnectedClusters, Revision, Scope,
};
use cilium_kvstore::{ChangedKeys, Event, KeyValue, Page};

/// Properties of the source that a connection knows before any kind is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Id of the etcd cluster behind the connection.
    pub etcd_cluster_id: EtcdClusterId,
    /// True if the keys are in cache form.
    pub cached: bool,
    /// True if the cluster writes canaries.
    pub canaries: bool,
    /// Id of the cluster; 0 if it has no cluster config.
    pub cluster_id: ClusterId,
    /// Maximum number of clusters, which decides which bits of an identity are the cluster id.
    pub max_connected_clusters: MaxConnectedClusters,
}

/// Next request to the source. It replaces the request before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Wait for the canary of this kind.
    AwaitCanary,
    /// Read the current values of these keys in one transaction.
    ReadTogether(Vec<Vec<u8>>),
    /// Read one key at a revision.
    ReadAt(Vec<u8>, Revision),
    /// Read what was put below the watched prefix after this revision, and the total number of
    /// keys.
    ListChanges(Revision),
    /// List only the keys below the watched prefix, at this revision.
    ListKeys(Revision),
    /// List the watched prefix in full.
    List,
    /// Find the entries that the complete list did not confirm.
    Compare,
    /// Watch the prefix after this revision.
    Watch(Revision),
}

/// Answer or event from the source.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A connection was established.
    Connected(Source),
    /// The canary exists or has changed.
    Canary(KeyValue),
    /// Answer to [`Request::ReadTogether`], with the server's revision.
    Together(Vec<Option<KeyValue>>, Revision),
    /// Answer to [`Request::ReadAt`]. `Err` if the revision is compacted or ahead of the server.
    At(Result<Option<KeyValue>, HistoryLost>),
    /// Answer to [`Request::ListChanges`].
    Changes {
        /// Puts since the revision. `None` if they are too many for one answer.
        changed: Option<ChangedKeys>,
        /// Number of entries, including the keys that were put.
        held_count: u64,
    },
    /// Answer to [`Request::ListKeys`].
    Keys {
        /// Keys of the source.
        listed: Vec<Vec<u8>>,
        /// Keys of the mirror.
        held: Vec<EntryKey>,
        /// Evidence for the deletion of the keys that are not listed.
        signs: Signs,
    },
    /// Page of the list.
    Page(Page),
    /// End of the list.
    ListEnd,
    /// Answer to [`Request::Compare`].
    Absent {
        /// Keys that the list did not confirm.
        keys: Vec<EntryKey>,
        /// Evidence for the deletion of the keys that the list did not confirm.
        signs: Signs,
    },
    /// Events, complete up to a revision.
    Events {
        /// Events in their order.
        events: Vec<Event>,
        /// Revision up to which the events are complete.
        revision: Revision,
        /// Evidence for the deletes among the events.
        signs: Signs,
    },
    /// Signs of a source with held keys, sent at intervals during a watch.
    Vigil {
        /// Current signs.
        signs: Signs,
        /// Current time.
        now: Instant,
        /// Time beyond a third of a lease's TTL for which both signs must exist.
        margin: Duration,
    },
    /// The held keys must be removed (`--cache-ttl`).
    Revoke,
    /// The list or the watch cannot continue, because its revision is compacted.
    HistoryLost,
    /// The quiet time of a cluster without canaries is over (invariant 3).
    Quiet,
}

/// A revision that the server no longer has, or does not have yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryLost;

/// Result of one input.
#[derive(Debug, Default, PartialEq)]
pub struct Step {
    /// Commands for the committer, in order.
    pub commands: Vec<Command>,
    /// Next request to the source. `None` continues the current request.
    pub request: Option<Request>,
    /// Reasons why keys that were put are not entries, for the log.
    pub unreadable_keys: Vec<String>,
}

#[derive(Debug)]
enum State {
    /// No connection.
    Idle,
    /// The cluster writes canaries, and this connection has not seen the one of this kind.
    AwaitingCanary,
    /// Checks whether the source has the stored history. `new_canary` says that the canary differs
    /// from the stored one.
    Checking { cursor: Cursor, question: Question, new_canary: bool },
    /// The source has the stored history: reads the changes since. `changed` waits for the keys
    /// that it is compared with.
    Differing { cursor: Cursor, compare_keys: bool, changed: Option<ChangedKeys> },
    /// Lists everything.
    Listing { newest: Option<KeyValue>, revision: Option<Revision>, history: History },
    /// The list is complete: settles the entries that it did not confirm. The cursor is set
    /// afterwards.
    Comparing { cursor: Cursor, history: History },
    /// Complete, and following the watch.
    Watching { prune_owed: bool },
}

/// Questions of the sentinel check, in the order in which they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// Current canary and newest put.
    Now,
    /// Newest put at its revision.
    PutThen,
    /// Key of the newest delete at its revision: must be absent.
    Deleted,
    /// Key of the newest delete one revision before: must exist.
    BeforeDelete,
}

/// State machine of one kind of one cluster. It lives as long as the cluster's file, over many
/// connections.
#[derive(Debug)]
pub struct Resync {
    scope: Scope,
    /// Cursor that is stored or about to be stored.
    cursor: Option<Cursor>,
    source: Option<Source>,
    canary: Option<CanaryPoint>,
    state: State,
    holds: Holds,
    unreadable: Unreadable,
    /// True if the current comparison interrupts a watch, because the quiet time or a hold is over.
    settling: bool,
    /// True if a list of another history has begun and none has completed since. An interrupted
    /// list does not bring back the stored history.
    is_other: bool,
}

impl Resync {
    /// Creates the machine with the stored cursor.
    #[must_use]
    pub fn new(scope: Scope, cursor: Option<Cursor>) -> Self {
        let is_other = cursor.as_ref().is_some_and(|cursor| cursor.etcd_cluster_id == OTHER_HISTORY);
        let (holds, unreadable) = (Holds::default(), Unreadable::default());
        Self { scope, cursor, source: None, canary: None, state: State::Idle, holds, unreadable, settling: false, is_other }
    }

    /// Resets the machine after the cluster was removed from the mirror.
    pub fn forget(&mut self) {
        (self.cursor, self.is_other) = (None, false);
        self.state = State::Idle;
        self.holds.restart();
        self.unreadable.clear();
    }

    /// Returns the number of held keys (invariant 4), as far as the current connection knows them.
    #[must_use]
    pub fn held_count(&self) -> usize {
        self.holds.len()
    }

    /// Returns the keys of the source that are not entries.
    #[must_use]
    pub const fn unreadable(&self) -> &Unreadable {
        &self.unreadable
    }

    /// Returns whether the mirror has everything that the source has, except for pending watch
    /// events.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        match self.state {
            State::Watching { .. } => true,
            State::Differing { .. } | State::Comparing { .. } => self.settling,
            State::Idle | State::AwaitingCanary | State::Checking { .. } | State::Listing { .. } => false,
        }
    }

    /// Returns the cursor that is stored once the committer has applied all commands.
    #[must_use]
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }

    /// Returns whether the machine waits for the canary.
    #[must_use]
    pub fn awaits_canary(&self) -> bool {
        matches!(self.state, State::AwaitingCanary)
    }

    /// Returns whether a prune waits for a quiet time.
    #[must_use]
    pub fn owes_prune(&self) -> bool {
        matches!(self.state, State::Watching { prune_owed: true })
    }

    /// Handles one input.
    pub fn step(&mut self, input: Input) -> Step {
        match input {
            Input::Connected(source) => self.connected(source),
            Input::Canary(canary) => self.canary_seen(canary),
            Input::Together(found, revision) => self.answered_now(&found, revision),
            Input::At(found) => self.answered_then(found),
            Input::Changes { changed, held_count } => self.changes(changed, held_count),
            Input::Keys { listed, held, signs } => self.keys(&listed, held, &signs),
            Input::Page(page) => self.page(page),
            Input::ListEnd => self.list_end(),
            Input::Absent { keys, signs } => self.absent(keys, &signs),
            Input::Events { events, revision, signs } => self.events(events, revision, &signs),
            Input::Vigil { signs, now, margin } => self.vigil(&signs, now, margin),
            Input::Revoke => self.revoke(),
            Input::HistoryLost => self.history_lost(),
            Input::Quiet => self.quiet(),
        }
    }

    fn connected(&mut self, source: Source) -> Step {
        let canaries = source.canaries;
        self.source = Some(source);
        self.canary = None;
        self.settling = false;
        self.holds.restart();
        if canaries {
            self.state = State::AwaitingCanary;
            return Step { request: Some(Request::AwaitCanary), ..Step::default() };
        }
        self.check()
    }

    fn canary_seen(&mut self, canary: KeyValue) -> Step {
        let sentinel = CanaryPoint { revision: canary.mod_revision, value: canary.value.to_vec() };
        self.canary = Some(sentinel.clone());
        match &self.state {
            State::AwaitingCanary => self.check(),
            State::Watching { .. } => match &mut self.cursor {
                Some(cursor) if cursor.canary.as_ref() != Some(&sentinel) => {
                    cursor.canary = Some(sentinel);
                    let cursor = cursor.clone();
                    self.apply_puts(Vec::new(), Some(cursor))
                }
                _ => Step::default(),
            },
            State::Idle | State::Checking { .. } | State::Differing { .. } | State::Listing { .. } | State::Comparing { .. } => {
                Step::default()
            }
        }
    }

    /// After a watch the missed changes are read. A list starts again.
    fn history_lost(&mut self) -> Step {
        match &self.state {
            State::Watching { prune_owed: false } => self.check(),
            State::Watching { prune_owed: true }
            | State::Idle
            | State::AwaitingCanary
            | State::Checking { .. }
            | State::Differing { .. }
            | State::Comparing { .. }
            | State::Listing { .. } => self.list(History::Unknown),
        }
    }

    /// Returns the last commands of a list or comparison. The cursor comes last, so that a start
    /// that finds the cursor also finds everything before it.
    fn settled(&self, gone: Vec<Change>, cursor: Cursor) -> Vec<Command> {
        debug_assert!(cursor.etcd_cluster_id != OTHER_HISTORY, "the cursor behind a complete list is one of the connected etcd");
        let apply = |changes, cursor| Command::Apply { scope: self.scope.clone(), changes, cursor };
        let gone = (!gone.is_empty()).then(|| apply(gone, None));
        gone.into_iter().chain([Command::Confirm(self.scope.clone()), apply(Vec::new(), Some(cursor))]).collect()
    }

    /// Decides for each absent key whether it is deleted or held.
    fn found_gone(&mut self, gone: Vec<EntryKey>, signs: &Signs, history: History) -> Vec<Change> {
        let cached = self.source.as_ref().is_some_and(|source| source.cached);
        gone.into_iter()
            .map(|key| {
                // expired holds end here; keys that were deleted since the last event are judged as
                // usual
                let over = self.settling && self.holds.has(&key);
                let hold = signs.hold(&key, cached && !over, history);
                self.holds.gone(key, hold, true)
            })
            .collect()
    }

    fn list(&mut self, history: History) -> Step {
        let history = if self.is_other && history == History::Unknown { History::Other } else { history };
        self.is_other = history == History::Other;
        self.unreadable.clear();
        self.state = State::Listing { newest: None, revision: None, history };
        self.cursor = self.is_other.then(sentinel::mark_of_another);
        let scope = self.scope.clone();
        let begin = Command::BeginList(scope.clone());
        let mark = self.cursor.clone().map(|mark| Command::Apply { scope, changes: Vec::new(), cursor: Some(mark) });
        debug_assert!(self.is_other || self.cursor.is_none(), "no cursor is stored while a list is incomplete (invariant 1)");
        let commands = [begin].into_iter().chain(mark).collect();
        Step { commands, request: Some(Request::List), ..Step::default() }
    }

    fn page(&mut self, page: Page) -> Step {
        let State::Listing { newest, revision, .. } = &mut self.state else { return Step::default() };
        *revision = Some(page.revision);
        for key_value in &page.key_values {
            if newest.as_ref().is_none_or(|newest| key_value.mod_revision > newest.mod_revision) {
                *newest = Some(key_value.clone());
            }
        }
        self.apply_puts(page.key_values, None)
    }

    /// Ends the list. The first cursor can be told apart from every real one and is never resumed
    /// from. The real one follows when the unconfirmed entries are settled.
    fn list_end(&mut self) -> Step {
        let (State::Listing { newest, revision: Some(revision), history }, Some(source)) = (&self.state, &self.source) else {
            return self.list(History::Unknown);
        };
        let (history, revision) = (*history, *revision);
        let cursor = Cursor {
            etcd_cluster_id: source.etcd_cluster_id,
            revision,
            cached: source.cached,
            // with unreadable keys, a resume could not compare the counts
            last_put: newest.as_ref().filter(|_| self.unreadable.is_empty()).map(put_point),
            last_delete: None,
            canary: self.canary.clone(),
        };
        let may_prune = source.canaries || history == History::Same;
        let (first, request) = if may_prune {
            self.state = State::Comparing { cursor: cursor.clone(), history };
            let etcd_cluster_id = if history == History::Other { OTHER_HISTORY } else { cursor.etcd_cluster_id };
            (Cursor { etcd_cluster_id, revision: Revision(0), last_put: None, ..cursor }, Request::Compare)
        } else {
            self.state = State::Watching { prune_owed: true };
            (Cursor { etcd_cluster_id: OTHER_HISTORY, ..cursor }, Request::Watch(revision))
        };
        debug_assert!(
            first.revision == Revision(0) || first.etcd_cluster_id == OTHER_HISTORY,
            "no start resumes from a cursor that is set before the keys absent from the list are settled"
        );
        self.cursor = Some(first.clone());
        let complete = Command::Apply { scope: self.scope.clone(), changes: Vec::new(), cursor: Some(first) };
        Step { commands: vec![complete], request: Some(request), ..Step::default() }
    }

    fn absent(&mut self, keys: Vec<EntryKey>, signs: &Signs) -> Step {
        let State::Comparing { cursor, history } = &self.state else { return Step::default() };
        let (cursor, history) = (cursor.clone(), *history);
        let gone = self.found_gone(keys, signs, history);
        (self.settling, self.is_other) = (false, false);
        self.cursor = Some(cursor.clone());
        self.state = State::Watching { prune_owed: false };
        let request = Some(Request::Watch(cursor.revision));
        Step { commands: self.settled(gone, cursor), request, ..Step::default() }
    }

    fn events(&mut self, events: Vec<Event>, revision: Revision, signs: &Signs) -> Step {
        let Some(cursor) = &mut self.cursor else { return Step::default() };
        cursor.revision = cursor.revision.max(revision);
        for event in &events {
            match event {
                Event::Put(put) => {
                    cursor.last_put = Some(put_point(put));
                }
                Event::Delete { key, mod_revision } => {
                    cursor.last_delete = Some(DeletePoint { source_key: key.clone(), revision: *mod_revision });
                }
            }
        }
        let cursor = cursor.clone();
        self.apply(events, signs, Some(cursor))
    }

    /// Ends the quiet time: entries that the list did not confirm are removed.
    fn quiet(&mut self) -> Step {
        match (&self.state, &self.cursor, &self.source) {
            (State::Watching { prune_owed: true }, Some(cursor), Some(source)) => {
                let cursor = Cursor { etcd_cluster_id: source.etcd_cluster_id, ..cursor.clone() };
                self.state = State::Comparing { cursor, history: History::Other };
                self.settling = true;
                Step { request: Some(Request::Compare), ..Step::default() }
            }
            _ => Step::default(),
        }
    }

    /// If the hold is over, lists the keys again and removes the absent ones.
    fn vigil(&mut self, signs: &Signs, now: Instant, margin: Duration) -> Step {
        match (&self.state, &self.cursor) {
            (State::Watching { prune_owed: false }, Some(cursor)) if self.holds.is_over(signs, now, margin) => {
                self.settling = true;
                let cursor = cursor.clone();
                self.differ(cursor, true)
            }
            _ => Step::default(),
        }
    }

    fn revoke(&mut self) -> Step {
        if !matches!(self.state, State::Watching { .. }) {
            return Step::default();
        }
        let changes = self.holds.take().into_iter().map(|key| Change::Delete { key }).collect();
        let (scope, cursor) = (self.scope.clone(), self.cursor.clone());
        Step { commands: vec![Command::Apply { scope, changes, cursor }], ..Step::default() }
    }
}

#[cfg(test)]
mod tests;
