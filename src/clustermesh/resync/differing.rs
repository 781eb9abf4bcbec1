//! The differential list: reads what was put since the stored state, and finds out whether anything
//! was deleted (docs/develop/measurements.md §2).

use std::collections::BTreeSet;

use super::changes::put_point;
use super::holds::History;
use super::{Request, Resync, Signs, State, Step};
use crate::model::{Change, Cursor, EntryKey, Revision};
use crate::wire::keys;
use cilium_kvstore::ChangedKeys;

impl Resync {
    /// Reads what was put since the newest stored put.
    pub(super) fn differ(&mut self, cursor: Cursor, compare_keys: bool) -> Step {
        // start at the newest stored put, not at the cursor's revision: a snapshot that was
        // restored in between would hide changes (docs/develop/measurements.md §2)
        let newest = cursor.last_put.as_ref().map_or(Revision(0), |put| put.revision);
        self.state = State::Differing { cursor, compare_keys, changed: None };
        Step { request: Some(Request::ListChanges(newest)), ..Step::default() }
    }

    /// Compares the number of keys at the source with that in the mirror.
    ///
    /// In the same history the source's keys are a subset of the mirror's keys and the puts since.
    /// Equal counts therefore mean that nothing was deleted (docs/develop/measurements.md §2,
    /// "Differential list"). Held keys make the counts unequal. Unreadable keys cannot disturb the
    /// counts: a cursor is resumed from only if there were none when it was stored.
    pub(super) fn changes(&mut self, answer: Option<ChangedKeys>, held_count: u64) -> Step {
        let State::Differing { compare_keys, changed, .. } = &mut self.state else { return Step::default() };
        let Some(answer) = answer else { return self.list(History::Same) };
        if *compare_keys || answer.total_count != held_count {
            let revision = answer.revision;
            *changed = Some(answer);
            return Step { request: Some(Request::ListKeys(revision)), ..Step::default() };
        }
        self.unreadable.clear();
        self.finish_differing(answer, Vec::new())
    }

    /// Compares the keys in both directions. An entry that is not listed was deleted. A listed key
    /// that is neither an entry nor put since proves another history.
    pub(super) fn keys(&mut self, listed: &[Vec<u8>], held: Vec<EntryKey>, signs: &Signs) -> Step {
        let State::Differing { changed, .. } = &mut self.state else { return Step::default() };
        let (Some(changed), Some(source)) = (changed.take(), &self.source) else { return self.list(History::Unknown) };
        let key_of = |key: &Vec<u8>| keys::entry_key(self.scope.kind, &self.scope.cluster, source.cached, key).ok();
        self.unreadable.keep(listed);
        let listed: BTreeSet<EntryKey> = listed.iter().filter_map(key_of).collect();
        let put: BTreeSet<EntryKey> = changed.puts.iter().filter_map(|put| key_of(&put.key)).collect();
        let held: BTreeSet<EntryKey> = held.into_iter().collect();
        if listed.iter().any(|key| !held.contains(key) && !put.contains(key)) {
            return self.list(History::Other);
        }
        let gone = held.into_iter().filter(|key| !listed.contains(key)).collect();
        let gone = self.found_gone(gone, signs, History::Same);
        self.finish_differing(changed, gone)
    }

    fn finish_differing(&mut self, changed: ChangedKeys, gone: Vec<Change>) -> Step {
        let State::Differing { cursor, .. } = &self.state else { return Step::default() };
        let mut cursor = cursor.clone();
        cursor.revision = changed.revision;
        cursor.canary.clone_from(&self.canary);
        if let Some(newest) = changed.puts.iter().max_by_key(|put| put.mod_revision) {
            cursor.last_put = Some(put_point(newest));
        }
        let mut step = self.apply_puts(changed.puts, None);
        cursor.last_put = cursor.last_put.filter(|_| self.unreadable.is_empty());
        self.cursor = Some(cursor.clone());
        self.state = State::Watching { prune_owed: false };
        self.settling = false;
        step.commands.extend(self.settled(gone, cursor));
        step.request = Some(Request::Watch(changed.revision));
        step
    }
}
