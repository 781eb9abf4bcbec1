//! How one kind of one cluster gets from "whatever we hold" to "exactly what the source has": the resync state machine.
//!
//! Receives what a source says ([`Input`]) and answers with what to do ([`Step`]): commands for the one writer, and the next
//! request for the source. Pure: no IO, no clock, no awaiting; the caller performs the requests. Invariants kept here
//! (design.md): the cursor is cleared before a list and set after it (1); a stored revision is worth something only in the same
//! history, which the sentinel check shows (2, measurements.md §2); nothing is pruned unless a list is complete, behind its
//! canary where there are canaries, and behind a quiet time where there are none and the history is not the same (3).

mod changes;

use std::collections::BTreeSet;
use std::sync::Arc;

use self::changes::{is_value, put_point};
use crate::kvstore::{ChangedKeys, Event, KeyValue, Page};
use crate::model::{
    Change, ClusterId, Command, Cursor, DeletePoint, EntryKey, EtcdClusterId, MaxConnectedClusters, Revision, Scope, Sentinel,
};
use crate::wire::keys;

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
    /// Watch the watched prefix from this revision on.
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
    },
    /// A page of the list.
    Page(Page),
    /// The list is complete.
    ListEnd,
    /// Events, complete up to this revision.
    Events(Vec<Event>, Revision),
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
    /// Keys of the source that are no entries, with the reason: to be logged.
    pub unreadable_keys: Vec<String>,
}

#[derive(Debug)]
enum State {
    /// No connection.
    Idle,
    /// The cluster announces canaries and this kind's has not been seen over this connection.
    AwaitingCanary,
    /// Asking whether the history is the stored one.
    Checking { cursor: Cursor, question: Question },
    /// The history is the stored one: reading what changed since. `changed` waits for the keys that it is compared with.
    Differing { cursor: Cursor, compare_keys: bool, changed: Option<ChangedKeys> },
    /// Reading everything.
    Listing { newest: Option<Newest>, revision: Option<Revision>, same_history: bool },
    /// Complete, and following.
    Watching { prune_owed: bool },
}

/// The newest put of a list.
#[derive(Debug)]
struct Newest {
    key: Vec<u8>,
    revision: Revision,
    value: Arc<[u8]>,
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
    /// The same just before: present.
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
}

impl Resync {
    /// Begins with what the store held.
    #[must_use]
    pub fn new(scope: Scope, cursor: Option<Cursor>) -> Self {
        Self { scope, cursor, source: None, canary: None, state: State::Idle }
    }

    /// Forgets what is held, because the cluster was drained.
    pub fn forget(&mut self) {
        self.cursor = None;
        self.state = State::Idle;
    }

    /// Whether everything that the source has is there, but for what its watch is about to say.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        matches!(self.state, State::Watching { .. })
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
            Input::Keys { listed, held } => self.keys(&listed, held),
            Input::Page(page) => self.page(page),
            Input::ListEnd => self.list_end(),
            Input::Events(events, revision) => self.events(events, revision),
            Input::HistoryLost => self.history_lost(),
            Input::Quiet => self.quiet(),
        }
    }

    fn connected(&mut self, source: Source) -> Step {
        let canaries = source.canaries;
        self.source = Some(source);
        self.canary = None;
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
                    self.apply(Vec::new(), Some(cursor))
                }
                _ => Step::default(),
            },
            State::Idle | State::Checking { .. } | State::Differing { .. } | State::Listing { .. } => Step::default(),
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
            | State::Listing { .. } => self.list(false),
        }
    }

    /// Asks whether the history is the stored one, where the stored cursor could belong to this source at all.
    fn check(&mut self) -> Step {
        let Some(source) = &self.source else { return Step::default() };
        let comparable = |cursor: &&Cursor| {
            cursor.etcd_cluster_id == source.etcd_cluster_id
                && cursor.cached == source.cached
                && cursor.last_put.is_some()
                && (!source.canaries || cursor.canary.is_some())
        };
        let Some(cursor) = self.cursor.as_ref().filter(comparable).cloned() else { return self.list(false) };
        let mut keys = vec![keys::canary_key(self.scope.kind, &self.scope.cluster, source.cached).into_bytes()];
        keys.extend(cursor.last_put.as_ref().map(|put| put.source_key.clone()));
        self.state = State::Checking { cursor, question: Question::Now };
        Step { request: Some(Request::ReadTogether(keys)), ..Step::default() }
    }

    fn answered_now(&mut self, found: &[Option<KeyValue>], revision: Revision) -> Step {
        let State::Checking { cursor, question: Question::Now } = &self.state else { return Step::default() };
        let (canary, put) = (found.first().and_then(Option::as_ref), found.get(1).and_then(Option::as_ref));
        let canaries = self.source.as_ref().is_some_and(|source| source.canaries);
        let same_canary = !canaries
            || matches!((canary, &cursor.canary), (Some(now), Some(then)) if now.mod_revision == then.revision && now.value[..] == then.value[..]);
        if revision < cursor.revision || !same_canary {
            return self.list(false);
        }
        let Some(stored) = &cursor.last_put else { return self.list(false) };
        match put {
            Some(put) if put.mod_revision == stored.revision => {
                if is_value(put, stored) {
                    self.ask_about_delete()
                } else {
                    self.list(false)
                }
            }
            Some(put) if put.mod_revision < stored.revision => self.list(false),
            Some(_) | None => {
                let (key, at) = (stored.source_key.clone(), stored.revision);
                self.ask(Question::PutThen, key, at)
            }
        }
    }

    fn answered_then(&mut self, found: Result<Option<KeyValue>, HistoryLost>) -> Step {
        let State::Checking { cursor, question } = &self.state else { return Step::default() };
        match (question, found) {
            (Question::Now, _) => Step::default(),
            (Question::PutThen, Ok(Some(put))) => {
                let same = cursor.last_put.as_ref().is_some_and(|stored| put.mod_revision == stored.revision && is_value(&put, stored));
                if same { self.ask_about_delete() } else { self.list(false) }
            }
            (Question::Deleted, Ok(None)) => match cursor.last_delete.clone() {
                Some(delete) => self.ask(Question::BeforeDelete, delete.source_key, Revision(delete.revision.0 - 1)),
                None => self.same_history(false),
            },
            (Question::BeforeDelete, Ok(Some(_))) => self.same_history(false),
            // the test of the delete cannot be answered: the keys are compared too
            (Question::Deleted | Question::BeforeDelete, Err(HistoryLost)) => self.same_history(true),
            (Question::PutThen | Question::Deleted | Question::BeforeDelete, _) => self.list(false),
        }
    }

    /// The third test is needed only where the newest stored change is a delete.
    fn ask_about_delete(&mut self) -> Step {
        let State::Checking { cursor, .. } = &self.state else { return Step::default() };
        let put = cursor.last_put.as_ref().map(|put| put.revision);
        match cursor.last_delete.clone() {
            Some(delete) if Some(delete.revision) > put => self.ask(Question::Deleted, delete.source_key, delete.revision),
            _ => self.same_history(false),
        }
    }

    fn ask(&mut self, next: Question, key: Vec<u8>, at: Revision) -> Step {
        if let State::Checking { question, .. } = &mut self.state {
            *question = next;
        }
        Step { request: Some(Request::ReadAt(key, at)), ..Step::default() }
    }

    /// The stored state is of this history: read only what changed since. Without canaries just the pruning profits: one of
    /// two histories that look alike may be the other one, so the list is read all the same.
    fn same_history(&mut self, compare_keys: bool) -> Step {
        let canaries = self.source.as_ref().is_some_and(|source| source.canaries);
        let State::Checking { cursor, .. } = &self.state else { return Step::default() };
        if !canaries {
            return self.list(true);
        }
        // from the newest put that we have, never from the cursor's own revision: a snapshot restored in between would hide
        // changes (measurements.md §2)
        let newest = cursor.last_put.as_ref().map_or(Revision(0), |put| put.revision);
        self.state = State::Differing { cursor: cursor.clone(), compare_keys, changed: None };
        Step { request: Some(Request::ListChanges(newest)), ..Step::default() }
    }

    /// In the same history what exists is a part of what is held plus what was put since: equal counts mean that nothing was
    /// deleted (measurements.md §2, "Differential list").
    fn changes(&mut self, answer: Option<ChangedKeys>, held_count: u64) -> Step {
        let State::Differing { compare_keys, changed, .. } = &mut self.state else { return Step::default() };
        let Some(answer) = answer else { return self.list(true) };
        if *compare_keys || answer.total_count != held_count {
            let revision = answer.revision;
            *changed = Some(answer);
            return Step { request: Some(Request::ListKeys(revision)), ..Step::default() };
        }
        self.finish_differing(answer, Vec::new())
    }

    /// Settles the difference both ways: what is held and not listed is gone; what is listed and neither held nor put since
    /// means that the history is not the same after all.
    fn keys(&mut self, listed: &[Vec<u8>], held: Vec<EntryKey>) -> Step {
        let State::Differing { changed, .. } = &mut self.state else { return Step::default() };
        let (Some(changed), Some(source)) = (changed.take(), &self.source) else { return self.list(false) };
        let key_of = |key: &Vec<u8>| keys::entry_key(self.scope.kind, &self.scope.cluster, source.cached, key).ok();
        let listed: BTreeSet<EntryKey> = listed.iter().filter_map(key_of).collect();
        let put: BTreeSet<EntryKey> = changed.puts.iter().filter_map(|put| key_of(&put.key)).collect();
        let held: BTreeSet<EntryKey> = held.into_iter().collect();
        if listed.iter().any(|key| !held.contains(key) && !put.contains(key)) {
            return self.list(false);
        }
        let gone = held.into_iter().filter(|key| !listed.contains(key)).map(|key| Change::Delete { key }).collect();
        self.finish_differing(changed, gone)
    }

    fn finish_differing(&mut self, changed: ChangedKeys, gone: Vec<Change>) -> Step {
        let State::Differing { cursor, .. } = &self.state else { return Step::default() };
        let mut cursor = cursor.clone();
        cursor.revision = changed.revision;
        cursor.canary.clone_from(&self.canary);
        if let Some(newest) = changed.puts.iter().max_by_key(|put| put.mod_revision) {
            cursor.last_put = Some(put_point(&newest.key, newest.mod_revision, &newest.value));
        }
        self.cursor = Some(cursor.clone());
        self.state = State::Watching { prune_owed: false };
        let mut step = self.changed_by(changed.puts.into_iter().map(Event::Put).collect(), gone, Some(cursor));
        step.commands.push(Command::Confirm(self.scope.clone()));
        step.request = Some(Request::Watch(changed.revision.next()));
        step
    }

    fn list(&mut self, same_history: bool) -> Step {
        self.state = State::Listing { newest: None, revision: None, same_history };
        self.cursor = None;
        Step { commands: vec![Command::BeginList(self.scope.clone())], request: Some(Request::List), ..Step::default() }
    }

    fn page(&mut self, page: Page) -> Step {
        let State::Listing { newest, revision, .. } = &mut self.state else { return Step::default() };
        *revision = Some(page.revision);
        for key_value in &page.key_values {
            if newest.as_ref().is_none_or(|newest| key_value.mod_revision > newest.revision) {
                *newest =
                    Some(Newest { key: key_value.key.clone(), revision: key_value.mod_revision, value: Arc::clone(&key_value.value) });
            }
        }
        let events = page.key_values.into_iter().map(Event::Put).collect();
        self.apply(events, None)
    }

    fn list_end(&mut self) -> Step {
        let (State::Listing { newest, revision: Some(revision), same_history }, Some(source)) = (&self.state, &self.source) else {
            return self.list(false);
        };
        let (revision, prune) = (*revision, source.canaries || *same_history);
        let last_put = newest.as_ref().map(|newest| put_point(&newest.key, newest.revision, &newest.value));
        let cursor = Cursor {
            etcd_cluster_id: source.etcd_cluster_id,
            revision,
            cached: source.cached,
            last_put,
            last_delete: None,
            canary: self.canary.clone(),
        };
        self.cursor = Some(cursor.clone());
        self.state = State::Watching { prune_owed: !prune };
        Step {
            commands: vec![Command::CompleteList { scope: self.scope.clone(), cursor, prune }],
            request: Some(Request::Watch(revision.next())),
            ..Step::default()
        }
    }

    fn events(&mut self, events: Vec<Event>, revision: Revision) -> Step {
        let Some(cursor) = &mut self.cursor else { return Step::default() };
        cursor.revision = cursor.revision.max(revision);
        for event in &events {
            match event {
                Event::Put(put) => {
                    cursor.last_put = Some(put_point(&put.key, put.mod_revision, &put.value));
                }
                Event::Delete { key, mod_revision } => {
                    cursor.last_delete = Some(DeletePoint { source_key: key.clone(), revision: *mod_revision });
                }
            }
        }
        let cursor = cursor.clone();
        self.apply(events, Some(cursor))
    }

    fn quiet(&mut self) -> Step {
        match &mut self.state {
            State::Watching { prune_owed } if *prune_owed => {
                *prune_owed = false;
                Step { commands: vec![Command::Prune(self.scope.clone())], ..Step::default() }
            }
            _ => Step::default(),
        }
    }
}

#[cfg(test)]
mod tests;
