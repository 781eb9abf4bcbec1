//! The differential list: reads the keys that were put since the stored state, and finds out
//! whether any were deleted (docs/develop/measurements.md §2).

use std::collections::BTreeSet;

use super::changes::put_point;
use super::held_keys::HistoryMatch;
use super::{DeleteEvidence, Request, Resync, ResyncState, ResyncStep};
use crate::model::{Change, Cursor, EntryKey, Revision};
use crate::wire::keys;
use cilium_kvstore::ChangedKeys;

impl Resync {
    /// Reads the keys that were put since the newest stored put.
    pub(super) fn list_changes(&mut self, cursor: Cursor, compare_keys: bool) -> ResyncStep {
        // start at the newest stored put, not at the cursor's revision: a snapshot that was
        // restored in between would hide changes (docs/develop/measurements.md §2)
        let newest = cursor.last_put.as_ref().map_or(Revision(0), |put| put.revision);
        self.state = ResyncState::ListingChanges { cursor, compare_keys, changed: None };
        ResyncStep { request: Some(Request::ListChanges(newest)), ..ResyncStep::default() }
    }

    /// Compares the number of keys at the source with that in the mirror.
    ///
    /// In the same history the source's keys are a subset of the mirror's keys and the puts since.
    /// Equal counts therefore mean that nothing was deleted (docs/develop/measurements.md §2,
    /// "Differential list"). Held keys make the counts unequal. Unreadable keys cannot disturb the
    /// counts: a cursor is resumed from only if there were none when it was stored.
    pub(super) fn compare_counts(&mut self, answer: Option<ChangedKeys>, entry_count: u64) -> ResyncStep {
        let ResyncState::ListingChanges { compare_keys, changed, .. } = &mut self.state else { return ResyncStep::default() };
        let Some(answer) = answer else { return self.list(HistoryMatch::Same) };
        if *compare_keys || answer.total_count != entry_count {
            let revision = answer.revision;
            *changed = Some(answer);
            return ResyncStep { request: Some(Request::ListKeys(revision)), ..ResyncStep::default() };
        }
        self.unreadable.clear();
        self.finish_changes(answer, Vec::new())
    }

    /// Compares the keys in both directions. An entry that is not listed was deleted. If a listed
    /// key is not in the mirror and was not put since, the history is another one.
    pub(super) fn compare_keys(&mut self, listed: &[Vec<u8>], entries: Vec<EntryKey>, evidence: &DeleteEvidence) -> ResyncStep {
        let ResyncState::ListingChanges { changed, .. } = &mut self.state else { return ResyncStep::default() };
        let (Some(changed), Some(source)) = (changed.take(), &self.source) else { return self.list(HistoryMatch::Unknown) };
        let key_of = |key: &Vec<u8>| keys::entry_key(self.scope.kind, &self.scope.cluster, source.cached, key).ok();
        self.unreadable.retain_listed(listed);
        let listed: BTreeSet<EntryKey> = listed.iter().filter_map(key_of).collect();
        let put: BTreeSet<EntryKey> = changed.puts.iter().filter_map(|put| key_of(&put.key)).collect();
        let entries: BTreeSet<EntryKey> = entries.into_iter().collect();
        if listed.iter().any(|key| !entries.contains(key) && !put.contains(key)) {
            return self.list(HistoryMatch::Other);
        }
        let missing = entries.into_iter().filter(|key| !listed.contains(key)).collect();
        let missing_changes = self.delete_or_hold_missing(missing, evidence, HistoryMatch::Same);
        self.finish_changes(changed, missing_changes)
    }

    /// Lists everything again after a verification has found a difference. Does nothing while keys
    /// are held: the end of the hold lists them anyway, and a verification must not end a hold
    /// (docs/develop/invariants.md, 4).
    pub(super) fn repair_divergence(&mut self) -> ResyncStep {
        match self.state {
            ResyncState::Watching { prune_pending: false } if self.held_keys.len() == 0 => self.list(HistoryMatch::Unknown),
            _ => ResyncStep::default(),
        }
    }

    fn finish_changes(&mut self, changed: ChangedKeys, missing_changes: Vec<Change>) -> ResyncStep {
        let ResyncState::ListingChanges { cursor, .. } = &self.state else { return ResyncStep::default() };
        let mut cursor = cursor.clone();
        cursor.revision = changed.revision;
        cursor.canary.clone_from(&self.canary);
        if let Some(newest) = changed.puts.iter().max_by_key(|put| put.mod_revision) {
            cursor.last_put = Some(put_point(newest));
        }
        let mut step = self.apply_puts(changed.puts, None);
        cursor.last_put = cursor.last_put.filter(|_| self.unreadable.is_empty());
        self.cursor = Some(cursor.clone());
        self.state = ResyncState::Watching { prune_pending: false };
        self.interrupts_watch = false;
        step.commands.extend(self.completion_commands(missing_changes, cursor));
        step.request = Some(Request::Watch(changed.revision));
        step
    }
}
