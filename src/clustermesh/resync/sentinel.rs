//! The sentinel check: is the history of the source the one that the stored cursor belongs to (docs/develop/invariants.md, 2;
//! docs/develop/measurements.md §2)?

use super::changes::is_value;
use super::{History, HistoryLost, Question, Request, Resync, State, Step};
use crate::kvstore::KeyValue;
use crate::model::{Cursor, EtcdClusterId, Revision};
use crate::wire::keys;

/// Stands in the cursor of a list of another history until that is settled, so that an interruption in between does not make it the
/// stored one again. No etcd has this id: a reply without one is refused.
pub(super) const OTHER_HISTORY: EtcdClusterId = EtcdClusterId(0);

/// What stands for the cursor while a list of another history runs.
pub(super) fn mark_of_another() -> Cursor {
    let (etcd_cluster_id, revision) = (OTHER_HISTORY, Revision(-1));
    Cursor { etcd_cluster_id, revision, cached: false, last_put: None, last_delete: None, canary: None }
}

impl Resync {
    /// Asks whether the history is the stored one, where the stored cursor could belong to this source at all.
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
        // a canary that was written again asks for a list; whether its history is another one the newest put tells
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
            // the test of the delete cannot be answered: the keys are compared too
            (Question::Deleted | Question::BeforeDelete, Err(HistoryLost)) => self.same_history(true),
            (Question::PutThen, Err(HistoryLost)) => self.list(History::Unknown),
            (Question::PutThen, Ok(None)) | (Question::Deleted, Ok(Some(_))) | (Question::BeforeDelete, Ok(None)) => {
                self.list(History::Other)
            }
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
    /// two histories that look alike may be the other one, so the list is read all the same; and so it is behind a canary that was
    /// written again.
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
