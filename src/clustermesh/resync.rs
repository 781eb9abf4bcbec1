//! The resync state machine: makes one kind of one cluster in the mirror equal to the source.
//!
//! [`scope`](super::scope) feeds it the answers of the source ([`Input`]), and performs the
//! resulting [`ResyncStep`]: commands for the committer and the next request. The machine is pure:
//! no IO, no clock, no await.
//!
//! It keeps these invariants (docs/develop/invariants.md). The cursor is cleared before a list and
//! set after it (1). A stored revision is used only in the same history, which the sentinel check
//! proves (2, docs/develop/measurements.md §2). Entries are removed only after a complete list. If
//! the cluster writes canaries, the list must follow the canary. Otherwise it must be of the same
//! history, or be followed by a quiet time (3). Entries that the source lost are held (4,
//! `held_keys`).
//!
//! When a list is interrupted, an agent drops the identities that it has listed
//! (docs/develop/protocol.md §3.6). meshkeep keeps them: they existed at the source, and only a
//! complete list proves that a key does not exist.

mod changes;
mod differential;
mod held_keys;
mod sentinel;
mod unreadable_keys;

use std::time::{Duration, Instant};

use self::changes::put_point;
pub use self::held_keys::{DeleteEvidence, WriterKey};
use self::held_keys::{HeldKeys, HistoryMatch};
use self::sentinel::OTHER_HISTORY;
pub use self::unreadable_keys::UnreadableKeys;
use crate::model::{
    CanaryPoint, Change, ClusterId, Command, Cursor, DeletePoint, EntryKey, EtcdClusterId, MaxConnectedClusters, Revision, Scope,
};
use cilium_kvstore::{ChangedKeys, Event, KeyValue, Page};

/// Properties of the source that a connection knows before any kind is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceInfo {
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

/// Next request to the source. It replaces the previous request.
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
    Connected(SourceInfo),
    /// The canary exists or has changed.
    Canary(KeyValue),
    /// Answer to [`Request::ReadTogether`], with the server's revision.
    CurrentValues(Vec<Option<KeyValue>>, Revision),
    /// Answer to [`Request::ReadAt`]. `Err` if the revision is compacted or ahead of the server.
    PastValue(Result<Option<KeyValue>, HistoryLost>),
    /// Answer to [`Request::ListChanges`].
    Changes {
        /// Puts since the revision. `None` if they are too many for one answer.
        changed: Option<ChangedKeys>,
        /// Number of entries in the mirror once the puts are applied.
        entry_count: u64,
    },
    /// Answer to [`Request::ListKeys`].
    Keys {
        /// Keys of the source.
        listed: Vec<Vec<u8>>,
        /// Keys of the mirror.
        entries: Vec<EntryKey>,
        /// Evidence for the deletion of the keys that are not listed.
        evidence: DeleteEvidence,
    },
    /// Page of the list.
    Page(Page),
    /// End of the list.
    ListEnd,
    /// Answer to [`Request::Compare`].
    UnconfirmedKeys {
        /// Keys that the list did not confirm.
        keys: Vec<EntryKey>,
        /// Evidence for the deletion of the keys that the list did not confirm.
        evidence: DeleteEvidence,
    },
    /// Events, complete up to a revision.
    Events {
        /// Events in their order.
        events: Vec<Event>,
        /// Revision up to which the events are complete.
        revision: Revision,
        /// Evidence for the deletes among the events.
        evidence: DeleteEvidence,
    },
    /// Evidence of a source with held keys, sent at intervals during a watch.
    HoldCheck {
        /// Current evidence.
        evidence: DeleteEvidence,
        /// Current time.
        now: Instant,
        /// Time for which both keys of the writer must exist, in addition to a third of a lease's
        /// TTL.
        margin: Duration,
    },
    /// The held keys must be removed (`--cache-ttl`).
    Revoke,
    /// A verification found keys that differ from the source's.
    Diverged,
    /// The list or the watch cannot continue, because its revision is compacted.
    HistoryLost,
    /// The quiet time of a cluster without canaries is over (invariant 3).
    QuietTimeOver,
}

/// A revision that the server no longer has, or does not have yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryLost;

/// Result of one input.
#[derive(Debug, Default, PartialEq)]
pub struct ResyncStep {
    /// Commands for the committer, in order.
    pub commands: Vec<Command>,
    /// Next request to the source. `None` continues the current request.
    pub request: Option<Request>,
    /// Reasons why keys that were put are not entries, for the log.
    pub unreadable_keys: Vec<String>,
}

#[derive(Debug)]
enum ResyncState {
    /// No connection.
    Idle,
    /// The cluster writes canaries, and this connection has not seen the one of this kind.
    AwaitingCanary,
    /// Checks whether the source has the stored history. `new_canary` says that the canary differs
    /// from the stored one.
    Checking { cursor: Cursor, query: SentinelQuery, new_canary: bool },
    /// The source has the stored history: reads the changes since the stored state. `changed` is
    /// set while the keys are listed for the comparison.
    ListingChanges { cursor: Cursor, compare_keys: bool, changed: Option<ChangedKeys> },
    /// Lists everything.
    Listing { newest: Option<KeyValue>, revision: Option<Revision>, history: HistoryMatch },
    /// The list is complete: deletes or holds the entries that it did not confirm. The cursor is
    /// set afterwards.
    Comparing { cursor: Cursor, history: HistoryMatch },
    /// Complete, and following the watch.
    Watching { prune_pending: bool },
}

/// Reads of the sentinel check, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SentinelQuery {
    /// Current canary and newest put.
    Current,
    /// Newest put at its revision.
    NewestPut,
    /// Key of the newest delete at its revision: must be absent.
    Deleted,
    /// Key of the newest delete one revision before: must exist.
    BeforeDelete,
}

/// State machine of one kind of one cluster. It exists as long as the cluster's client file, across
/// connections.
#[derive(Debug)]
pub struct Resync {
    scope: Scope,
    /// Cursor that is stored or about to be stored.
    cursor: Option<Cursor>,
    source: Option<SourceInfo>,
    canary: Option<CanaryPoint>,
    state: ResyncState,
    held_keys: HeldKeys,
    unreadable: UnreadableKeys,
    /// True if the current comparison interrupts a watch, because the quiet time or a hold is over.
    interrupts_watch: bool,
    /// Number of the newest provisional cursor.
    provisional_number: i64,
    /// True while the mirror still needs a complete list of an etcd with another history. If that
    /// list is interrupted, the next one still counts as a list of another history.
    other_history: bool,
}

impl Resync {
    /// Creates the machine with the stored cursor.
    #[must_use]
    pub fn new(scope: Scope, cursor: Option<Cursor>) -> Self {
        let other_history = cursor.as_ref().is_some_and(|cursor| cursor.etcd_cluster_id == OTHER_HISTORY);
        let provisional_number = cursor.as_ref().map_or(0, |cursor| -cursor.revision.0.min(0));
        let (held_keys, unreadable) = (HeldKeys::default(), UnreadableKeys::default());
        Self {
            scope,
            cursor,
            source: None,
            canary: None,
            state: ResyncState::Idle,
            held_keys,
            unreadable,
            interrupts_watch: false,
            provisional_number,
            other_history,
        }
    }

    /// Resets the machine after the cluster was removed from the mirror.
    pub fn forget(&mut self) {
        (self.cursor, self.other_history) = (None, false);
        self.state = ResyncState::Idle;
        self.held_keys.clear();
        self.unreadable.clear();
    }

    /// Returns the number of held keys (invariant 4), as far as the current connection knows them.
    #[must_use]
    pub fn held_count(&self) -> usize {
        self.held_keys.len()
    }

    /// Returns the keys of the source that are not entries.
    #[must_use]
    pub const fn unreadable(&self) -> &UnreadableKeys {
        &self.unreadable
    }

    /// Returns whether the mirror has everything that the source has, except for pending watch
    /// events.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        match self.state {
            ResyncState::Watching { .. } => true,
            ResyncState::ListingChanges { .. } | ResyncState::Comparing { .. } => self.interrupts_watch,
            ResyncState::Idle | ResyncState::AwaitingCanary | ResyncState::Checking { .. } | ResyncState::Listing { .. } => false,
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
        matches!(self.state, ResyncState::AwaitingCanary)
    }

    /// Returns whether a prune waits for a quiet time.
    #[must_use]
    pub fn has_pending_prune(&self) -> bool {
        matches!(self.state, ResyncState::Watching { prune_pending: true })
    }

    /// Handles one input.
    pub fn step(&mut self, input: Input) -> ResyncStep {
        match input {
            Input::Connected(source) => self.start_connection(source),
            Input::Canary(canary) => self.handle_canary(canary),
            Input::CurrentValues(key_values, revision) => self.check_current_values(&key_values, revision),
            Input::PastValue(key_value) => self.check_past_value(key_value),
            Input::Changes { changed, entry_count } => self.compare_counts(changed, entry_count),
            Input::Keys { listed, entries, evidence } => self.compare_keys(&listed, entries, &evidence),
            Input::Page(page) => self.apply_page(page),
            Input::ListEnd => self.finish_list(),
            Input::UnconfirmedKeys { keys, evidence } => self.finish_comparison(keys, &evidence),
            Input::Events { events, revision, evidence } => self.apply_events(events, revision, &evidence),
            Input::HoldCheck { evidence, now, margin } => self.check_hold(&evidence, now, margin),
            Input::Revoke => self.revoke(),
            Input::Diverged => self.repair_divergence(),
            Input::HistoryLost => self.handle_history_lost(),
            Input::QuietTimeOver => self.end_quiet_time(),
        }
    }

    fn start_connection(&mut self, source: SourceInfo) -> ResyncStep {
        let canaries = source.canaries;
        self.source = Some(source);
        self.canary = None;
        self.interrupts_watch = false;
        self.held_keys.clear();
        if canaries {
            self.state = ResyncState::AwaitingCanary;
            return ResyncStep { request: Some(Request::AwaitCanary), ..ResyncStep::default() };
        }
        self.check_sentinel()
    }

    fn handle_canary(&mut self, canary: KeyValue) -> ResyncStep {
        let canary_point = CanaryPoint { revision: canary.mod_revision, value: canary.value.to_vec() };
        self.canary = Some(canary_point.clone());
        match &self.state {
            ResyncState::AwaitingCanary => self.check_sentinel(),
            ResyncState::Watching { .. } => match &mut self.cursor {
                Some(cursor) if cursor.canary.as_ref() != Some(&canary_point) => {
                    cursor.canary = Some(canary_point);
                    let cursor = cursor.clone();
                    self.apply_puts(Vec::new(), Some(cursor))
                }
                _ => ResyncStep::default(),
            },
            ResyncState::Idle
            | ResyncState::Checking { .. }
            | ResyncState::ListingChanges { .. }
            | ResyncState::Listing { .. }
            | ResyncState::Comparing { .. } => ResyncStep::default(),
        }
    }

    /// Continues after a compaction. After a watch it reads the missed changes. In all other
    /// states, and while a prune is pending, it lists again.
    fn handle_history_lost(&mut self) -> ResyncStep {
        match &self.state {
            ResyncState::Watching { prune_pending: false } => self.check_sentinel(),
            ResyncState::Watching { prune_pending: true }
            | ResyncState::Idle
            | ResyncState::AwaitingCanary
            | ResyncState::Checking { .. }
            | ResyncState::ListingChanges { .. }
            | ResyncState::Comparing { .. }
            | ResyncState::Listing { .. } => self.list(HistoryMatch::Unknown),
        }
    }

    /// Returns the last commands of a list or comparison. The cursor is stored last, so that a
    /// start that loads the cursor also loads everything before it.
    fn completion_commands(&self, missing_changes: Vec<Change>, cursor: Cursor) -> Vec<Command> {
        debug_assert!(cursor.etcd_cluster_id != OTHER_HISTORY, "the cursor after a complete list belongs to the connected etcd");
        let apply = |changes, cursor| Command::Apply { scope: self.scope.clone(), changes, cursor };
        let missing_changes = (!missing_changes.is_empty()).then(|| apply(missing_changes, None));
        missing_changes.into_iter().chain([Command::Confirm(self.scope.clone()), apply(Vec::new(), Some(cursor))]).collect()
    }

    /// Decides for each absent key whether it is deleted or held.
    fn delete_or_hold_missing(&mut self, missing: Vec<EntryKey>, evidence: &DeleteEvidence, history: HistoryMatch) -> Vec<Change> {
        let cached = self.source.as_ref().is_some_and(|source| source.cached);
        missing
            .into_iter()
            .map(|key| {
                // holds whose time has passed are ended here; the usual rules apply to keys that
                // were deleted since the last event
                let is_hold_over = self.interrupts_watch && self.held_keys.contains(&key);
                let hold = evidence.requires_hold(&key, cached && !is_hold_over, history);
                self.held_keys.delete_or_hold(key, hold, true)
            })
            .collect()
    }

    fn list(&mut self, history: HistoryMatch) -> ResyncStep {
        let history = if self.other_history && history == HistoryMatch::Unknown { HistoryMatch::Other } else { history };
        self.other_history = history == HistoryMatch::Other;
        self.unreadable.clear();
        self.state = ResyncState::Listing { newest: None, revision: None, history };
        self.cursor = self.other_history.then(sentinel::other_history_cursor);
        let scope = self.scope.clone();
        let begin = Command::BeginList(scope.clone());
        let store_cursor = self.cursor.clone().map(|cursor| Command::Apply { scope, changes: Vec::new(), cursor: Some(cursor) });
        debug_assert!(self.other_history || self.cursor.is_none(), "no cursor is stored while a list is incomplete (invariant 1)");
        let commands = [begin].into_iter().chain(store_cursor).collect();
        ResyncStep { commands, request: Some(Request::List), ..ResyncStep::default() }
    }

    fn apply_page(&mut self, page: Page) -> ResyncStep {
        let ResyncState::Listing { newest, revision, .. } = &mut self.state else { return ResyncStep::default() };
        *revision = Some(page.revision);
        for key_value in &page.key_values {
            if newest.as_ref().is_none_or(|newest| key_value.mod_revision > newest.mod_revision) {
                *newest = Some(key_value.clone());
            }
        }
        self.apply_puts(page.key_values, None)
    }

    /// Ends the list with a provisional cursor, which differs from every real cursor and is never
    /// resumed from. The real cursor is set once the unconfirmed entries were deleted or held.
    ///
    /// The provisional cursor also differs from that of every earlier list, whose comparison may
    /// have been interrupted. A view with this cursor therefore has all entries of this list.
    fn finish_list(&mut self) -> ResyncStep {
        let (ResyncState::Listing { newest, revision: Some(revision), history }, Some(source)) = (&self.state, &self.source) else {
            return self.list(HistoryMatch::Unknown);
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
        let may_prune = source.canaries || history == HistoryMatch::Same;
        let (provisional, request) = if may_prune {
            self.state = ResyncState::Comparing { cursor: cursor.clone(), history };
            let etcd_cluster_id = if history == HistoryMatch::Other { OTHER_HISTORY } else { cursor.etcd_cluster_id };
            self.provisional_number += 1;
            (Cursor { etcd_cluster_id, revision: Revision(-self.provisional_number), last_put: None, ..cursor }, Request::Compare)
        } else {
            self.state = ResyncState::Watching { prune_pending: true };
            (Cursor { etcd_cluster_id: OTHER_HISTORY, ..cursor }, Request::Watch(revision))
        };
        debug_assert!(
            provisional.revision < Revision(0) || provisional.etcd_cluster_id == OTHER_HISTORY,
            "no start resumes from a provisional cursor"
        );
        self.cursor = Some(provisional.clone());
        let complete = Command::Apply { scope: self.scope.clone(), changes: Vec::new(), cursor: Some(provisional) };
        ResyncStep { commands: vec![complete], request: Some(request), ..ResyncStep::default() }
    }

    fn finish_comparison(&mut self, keys: Vec<EntryKey>, evidence: &DeleteEvidence) -> ResyncStep {
        let ResyncState::Comparing { cursor, history } = &self.state else { return ResyncStep::default() };
        let (cursor, history) = (cursor.clone(), *history);
        let missing_changes = self.delete_or_hold_missing(keys, evidence, history);
        (self.interrupts_watch, self.other_history) = (false, false);
        self.cursor = Some(cursor.clone());
        self.state = ResyncState::Watching { prune_pending: false };
        let request = Some(Request::Watch(cursor.revision));
        ResyncStep { commands: self.completion_commands(missing_changes, cursor), request, ..ResyncStep::default() }
    }

    fn apply_events(&mut self, events: Vec<Event>, revision: Revision, evidence: &DeleteEvidence) -> ResyncStep {
        let Some(cursor) = &mut self.cursor else { return ResyncStep::default() };
        cursor.revision = cursor.revision.max(revision);
        for event in &events {
            if let Event::Delete { key, mod_revision } = event {
                cursor.last_delete = Some(DeletePoint { source_key: key.clone(), revision: *mod_revision });
            }
        }
        // a batch may have hundreds of puts, and only the digest of the last one is needed
        let last_put = events.iter().rev().find_map(|event| if let Event::Put(put) = event { Some(put) } else { None });
        if let Some(put) = last_put {
            cursor.last_put = Some(put_point(put));
        }
        let cursor = cursor.clone();
        self.apply(events, evidence, Some(cursor))
    }

    /// Ends the quiet time: entries that the list did not confirm are removed.
    fn end_quiet_time(&mut self) -> ResyncStep {
        match (&self.state, &self.cursor, &self.source) {
            (ResyncState::Watching { prune_pending: true }, Some(cursor), Some(source)) => {
                let cursor = Cursor { etcd_cluster_id: source.etcd_cluster_id, ..cursor.clone() };
                self.state = ResyncState::Comparing { cursor, history: HistoryMatch::Other };
                self.interrupts_watch = true;
                ResyncStep { request: Some(Request::Compare), ..ResyncStep::default() }
            }
            _ => ResyncStep::default(),
        }
    }
}

#[cfg(test)]
mod tests;
