//! The sentinel check: decides whether the source still has the history that the stored cursor
//! belongs to (docs/develop/invariants.md, 2; docs/develop/measurements.md §2).

use super::changes::is_value;
use super::{History, HistoryLost, Question, Request, Resync, State, Step};
use crate::model::{Cursor, EtcdClusterId, Revision};
use crate::wire::keys;
use cilium_kvstore::KeyValue;

/// Etcd cluster id in the cursor of a list of another history until that list is settled. After an
/// interruption the history then still counts as another one. No etcd has this id, because a reply
/// without an id is refused.
pub(super) const OTHER_HISTORY: EtcdClusterId = EtcdClusterId(0);

/// Returns the cursor that is stored while a list of another history runs.
pub(super) fn mark_of_another() -> Cursor {
    let (etcd_cluster_id, revision) = (OTHER_HISTORY, Revision(-1));
    Cursor { etcd_cluster_id, revision, cached: false, last_put: None, last_delete: None, canary: None }
}

impl Resync {
    /// Starts the check, if the stored cursor can belong to this source at all.
    pub(super) fn check(&mut self) -> Step {
        let Some(source) = &self.source else { return Step::default() };
        let Some(cursor) = self.cursor.clone().filter(|cursor| cursor.last_put.is_some()) else { return self.list(History::Unknown) };
        if cursor.etcd_cluster_id != source.etcd_cluster_id || cursor.cached != source.cached {
            return self.list(History::Other);
        }
        let mut keys = vec![keys::canary_key(self.scope.kind, &self.scope.cluster, source.cached).into_bytes()];
        keys.extend(cursor.last_put.as_ref().map(|put| put.source_key.clone()));
        self.state = State::Checking { cursor, question: Question::Now, new_canary: false };
        Step { request: Some(Request::ReadTogether(keys)), ..Step::default() }
    }

    pub(super) fn answered_now(&mut self, found: &[Option<KeyValue>], revision: Revision) -> Step {
        let canaries = self.source.as_ref().is_some_and(|source| source.canaries);
        let State::Checking { cursor, question: Question::Now, new_canary } = &mut self.state else { return Step::default() };
        let (canary, put) = (found.first().and_then(Option::as_ref), found.get(1).and_then(Option::as_ref));
        // a canary that was written again requires a list; the newest put decides whether the
        // history is another one
        *new_canary = canaries && !is_same_canary(canary, cursor);
        if revision < cursor.revision {
            return self.list(History::Other);
        }
        let Some(stored) = &cursor.last_put else { return self.list(History::Unknown) };
        match put {
            Some(put) if put.mod_revision == stored.revision && is_value(put, stored) => self.ask_about_delete(),
            Some(put) if put.mod_revision <= stored.revision => self.list(History::Other),
            Some(_) | None => {
                let (key, at) = (stored.source_key.clone(), stored.revision);
                self.ask(Question::PutThen, key, at)
            }
        }
    }

    pub(super) fn answered_then(&mut self, found: Result<Option<KeyValue>, HistoryLost>) -> Step {
        let State::Checking { cursor, question, .. } = &self.state else { return Step::default() };
        match (question, found) {
            (Question::Now, _) => Step::default(),
            (Question::PutThen, Ok(Some(put))) => {
                let same = cursor.last_put.as_ref().is_some_and(|stored| put.mod_revision == stored.revision && is_value(&put, stored));
                if same { self.ask_about_delete() } else { self.list(History::Other) }
            }
            (Question::Deleted, Ok(None)) => match cursor.last_delete.clone() {
                Some(delete) => self.ask(Question::BeforeDelete, delete.source_key, delete.revision.previous()),
                None => self.same_history(false),
            },
            (Question::BeforeDelete, Ok(Some(_))) => self.same_history(false),
            // the state at the delete is compacted away: compare the keys as well
            (Question::Deleted | Question::BeforeDelete, Err(HistoryLost)) => self.same_history(true),
            (Question::PutThen, Err(HistoryLost)) => self.list(History::Unknown),
            (Question::PutThen, Ok(None)) | (Question::Deleted, Ok(Some(_))) | (Question::BeforeDelete, Ok(None)) => {
                self.list(History::Other)
            }
        }
    }

    /// Asks about the newest delete, if it is newer than the newest put.
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

    /// Continues from the stored state and reads only the changes since.
    ///
    /// The list is read in full behind a canary that was written again, and without canaries,
    /// because another history may look the same. The list may then remove entries at once.
    fn same_history(&mut self, compare_keys: bool) -> Step {
        let canaries = self.source.as_ref().is_some_and(|source| source.canaries);
        let State::Checking { cursor, new_canary, .. } = &self.state else { return Step::default() };
        if !canaries || *new_canary {
            return self.list(History::Same);
        }
        let cursor = cursor.clone();
        self.differ(cursor, compare_keys)
    }
}

fn is_same_canary(now: Option<&KeyValue>, cursor: &Cursor) -> bool {
    matches!((now, &cursor.canary), (Some(now), Some(then)) if now.mod_revision == then.revision && now.value[..] == then.value[..])
}
