//! How one kind of one cluster gets from "whatever we hold" to "exactly what the source has": the resync state machine.
//!
//! Receives what a source says ([`Input`]) and answers with what to do ([`Step`]): commands for the one writer, and the next
//! request for the source. Pure: no IO, no clock, no awaiting; the caller performs the requests. Invariants kept here
//! (docs/develop/invariants.md): the cursor is cleared before a list and set after it (1); a stored revision is worth something only in the same
//! history, which the sentinel check shows (2, docs/develop/measurements.md §2); nothing is pruned unless a list is complete, behind its
//! canary where there are canaries, and behind a quiet time where there are none and the history is not the same (3); what the
//! source lost is not deleted (4, `holds`).
//!
//! An agent takes back the identities of a list that breaks off (docs/develop/protocol.md §3.6). Here what a list has brought stays until a list is complete:
//! it was at the source, and only a complete list says that something is not.

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
use crate::kvstore::{ChangedKeys, Event, KeyValue, Page};
use crate::model::{
    Change, ClusterId, Command, Cursor, DeletePoint, EntryKey, EtcdClusterId, MaxConnectedClusters, Revision, Scope, Sentinel,
};

/// What a connection knows of the source before any kind is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The etcd behind the connection.
    pub etcd_cluster_id: EtcdClusterId,
    /// Whether the cluster's keys are in cache form.
    pub cached: bool,
    /// Whether the cluster announces canaries.
    pub canaries: bool,
    /// The cluster's id; 0 for a cluster without a cluster config.
    pub cluster_id: ClusterId,
    /// Which bits of an identity name its cluster.
    pub max_connected_clusters: MaxConnectedClusters,
}

/// What the source has to be asked next. It replaces any request before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Wait for the canary of this kind.
    AwaitCanary,
    /// Read these keys in one transaction, as they are now.
    ReadTogether(Vec<Vec<u8>>),
    /// Read one key as it was at a revision.
    ReadAt(Vec<u8>, Revision),
    /// Read what was put below the watched prefix after this revision, and how many keys there are in all.
    ListChanges(Revision),
    /// Read the keys alone below the watched prefix, as of this revision.
    ListKeys(Revision),
    /// List the watched prefix in full.
    List,
    /// Say which of the held keys the list that is complete did not confirm.
    Compare,
    /// Watch what comes below the watched prefix after this revision, which was read.
    Watch(Revision),
}

/// What the source said.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A connection is there.
    Connected(Source),
    /// The canary exists, or changed.
    Canary(KeyValue),
    /// The answer to [`Request::ReadTogether`], with the server's revision.
    Together(Vec<Option<KeyValue>>, Revision),
    /// The answer to [`Request::ReadAt`]; `Err` where the revision is compacted or ahead of the server.
    At(Result<Option<KeyValue>, HistoryLost>),
    /// The answer to [`Request::ListChanges`].
    Changes {
        /// What was put; `None` where it is too much for one answer.
        changed: Option<ChangedKeys>,
        /// How many keys are held, counting what was put as held.
        held_count: u64,
    },
    /// The answer to [`Request::ListKeys`].
    Keys {
        /// The source's keys.
        listed: Vec<Vec<u8>>,
        /// The keys that are held.
        held: Vec<EntryKey>,
        /// What vouches for the deletion of those that are not listed.
        signs: Signs,
    },
    /// A page of the list.
    Page(Page),
    /// The list is complete.
    ListEnd,
    /// The answer to [`Request::Compare`].
    Absent {
        /// The keys that the list did not confirm.
        keys: Vec<EntryKey>,
        /// What vouches for their deletion.
        signs: Signs,
    },
    /// Events, complete up to a revision.
    Events {
        /// In order.
        events: Vec<Event>,
        /// That revision.
        revision: Revision,
        /// What vouches for the deletes among them.
        signs: Signs,
    },
    /// The signs of a source of which keys are held, now and then while it is watched.
    Vigil {
        /// As they are now.
        signs: Signs,
        /// The time.
        now: Instant,
        /// How much longer than a third of a lease's life they must stand.
        margin: Duration,
    },
    /// What is held is not to be held any longer (`--cache-ttl`).
    Revoke,
    /// The list or the watch cannot go on: its revision is compacted.
    HistoryLost,
    /// The quiet time of a cluster without canaries is over (invariant 3).
    Quiet,
}

/// A revision that the server no longer has, or does not have yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryLost;

/// What to do.
#[derive(Debug, Default, PartialEq)]
pub struct Step {
    /// For the writer, in order.
    pub commands: Vec<Command>,
    /// For the source; `None`: go on with the present request.
    pub request: Option<Request>,
    /// Why keys that were put are no entries: to be logged.
    pub unreadable_keys: Vec<String>,
}

#[derive(Debug)]
enum State {
    /// No connection.
    Idle,
    /// The cluster announces canaries and this kind's has not been seen over this connection.
    AwaitingCanary,
    /// Asking whether the history is the stored one; `new_canary`: the canary is not the stored one.
    Checking { cursor: Cursor, question: Question, new_canary: bool },
    /// The history is the stored one: reading what changed since. `changed` waits for the keys that it is compared with.
    Differing { cursor: Cursor, compare_keys: bool, changed: Option<ChangedKeys> },
    /// Reading everything.
    Listing { newest: Option<KeyValue>, revision: Option<Revision>, history: History },
    /// Everything is read: settling what of the held was not. The cursor is set behind that.
    Comparing { cursor: Cursor, history: History },
    /// Complete, and following.
    Watching { prune_owed: bool },
}

/// The questions of the sentinel check, in the order in which they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// Canary and newest put as they are now.
    Now,
    /// The newest put as it was at its revision.
    PutThen,
    /// The newest delete's key at its revision: absent.
    Deleted,
    /// The newest delete's key just before that revision: present.
    BeforeDelete,
}

/// One kind of one cluster. Lives as long as the cluster's file; connections come and go.
#[derive(Debug)]
pub struct Resync {
    scope: Scope,
    /// What is stored, or on its way there.
    cursor: Option<Cursor>,
    source: Option<Source>,
    canary: Option<Sentinel>,
    state: State,
    holds: Holds,
    unreadable: Unreadable,
    /// The present comparison interrupts a watch: the quiet time is over, or the holds are.
    settling: bool,
    /// A list of another history began and none has been complete since: an interruption does not make it the stored one again.
    is_other: bool,
}

impl Resync {
    /// Begins with what the store held.
    #[must_use]
    pub fn new(scope: Scope, cursor: Option<Cursor>) -> Self {
        let is_other = cursor.as_ref().is_some_and(|cursor| cursor.etcd_cluster_id == OTHER_HISTORY);
        let (holds, unreadable) = (Holds::default(), Unreadable::default());
        Self { scope, cursor, source: None, canary: None, state: State::Idle, holds, unreadable, settling: false, is_other }
    }

    /// Forgets what is held, because the cluster was drained.
    pub fn forget(&mut self) {
        (self.cursor, self.is_other) = (None, false);
        self.state = State::Idle;
        self.holds.restart();
        self.unreadable.clear();
    }

    /// How many keys are held though the source has lost them (invariant 4), as far as the present connection has shown.
    #[must_use]
    pub fn held_count(&self) -> usize {
        self.holds.len()
    }

    /// Keys of the source that are no entries.
    #[must_use]
    pub const fn unreadable(&self) -> &Unreadable {
        &self.unreadable
    }

    /// Whether everything that the source has is there, but for what its watch is about to say.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        match self.state {
            State::Watching { .. } => true,
            State::Differing { .. } | State::Comparing { .. } => self.settling,
            State::Idle | State::AwaitingCanary | State::Checking { .. } | State::Listing { .. } => false,
        }
    }

    /// What is stored of this kind once the writer has done all that was asked of it.
    #[must_use]
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }

    /// Whether the canary is still waited for.
    #[must_use]
    pub fn awaits_canary(&self) -> bool {
        matches!(self.state, State::AwaitingCanary)
    }

    /// Whether a prune waits for a quiet time.
    #[must_use]
    pub fn owes_prune(&self) -> bool {
        matches!(self.state, State::Watching { prune_owed: true })
    }

    /// Takes in what the source said.
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
        let sentinel = Sentinel { revision: canary.mod_revision, value: canary.value.to_vec() };
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

    /// A watch that lost its history reads what it missed; a list begins anew.
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

    /// The last commands of a list or comparison: what went, that all the rest is confirmed, and then the cursor, so that a start that finds
    /// the cursor finds everything.
    fn settled(&self, gone: Vec<Change>, cursor: Cursor) -> Vec<Command> {
        let apply = |changes, cursor| Command::Apply { scope: self.scope.clone(), changes, cursor };
        let gone = (!gone.is_empty()).then(|| apply(gone, None));
        gone.into_iter().chain([Command::Confirm(self.scope.clone()), apply(Vec::new(), Some(cursor))]).collect()
    }

    /// What becomes of keys that a list or comparison found gone.
    fn found_gone(&mut self, gone: Vec<EntryKey>, signs: &Signs, history: History) -> Vec<Change> {
        let cached = self.source.as_ref().is_some_and(|source| source.cached);
        gone.into_iter()
            .map(|key| {
                // holds that are over end; what went since the watch's last word is judged like any other
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

    /// Everything is read. The cursor that goes out first can be told from every real one and is never resumed from; the real one
    /// follows once what was not confirmed is settled.
    fn list_end(&mut self) -> Step {
        let (State::Listing { newest, revision: Some(revision), history }, Some(source)) = (&self.state, &self.source) else {
            return self.list(History::Unknown);
        };
        let (history, revision) = (*history, *revision);
        let cursor = Cursor {
            etcd_cluster_id: source.etcd_cluster_id,
            revision,
            cached: source.cached,
            // else counts would say nothing to a resume from it
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

    /// The quiet time is over: what the list did not confirm goes.
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

    /// Where the hold is over, the keys are listed once more and those absent go.
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
