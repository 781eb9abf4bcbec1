//! The sentinel check: decides whether the source still has the history that the stored cursor
//! belongs to (docs/develop/invariants.md, 2; docs/develop/measurements.md §2).

use super::changes::matches_put_point;
use super::{HistoryLost, HistoryMatch, Request, Resync, ResyncState, ResyncStep, SentinelQuery};
use crate::model::{Cursor, EtcdClusterId, Revision};
use crate::wire::keys;
use cilium_kvstore::KeyValue;

/// Etcd cluster id in the cursor that is stored until a list of another history is finished. If
/// that list is interrupted, the next connection still treats the history as another one. No etcd
/// has this id, because meshkeep refuses a reply without an id.
pub(super) const OTHER_HISTORY: EtcdClusterId = EtcdClusterId(0);

/// Returns the cursor that is stored while a list of another history runs.
pub(super) fn other_history_cursor() -> Cursor {
    let (etcd_cluster_id, revision) = (OTHER_HISTORY, Revision(0));
    Cursor::new(etcd_cluster_id, revision, false)
}

impl Resync {
    /// Starts the check if the stored cursor can belong to this source; otherwise starts a list.
    pub(super) fn check_sentinel(&mut self) -> ResyncStep {
        let Some(source) = &self.source else { return ResyncStep::default() };
        let Some(cursor) = self.cursor.clone().filter(|cursor| cursor.last_put.is_some()) else { return self.list(HistoryMatch::Unknown) };
        if cursor.etcd_cluster_id != source.etcd_cluster_id || cursor.cached != source.cached {
            return self.list(HistoryMatch::Other);
        }
        let mut keys = vec![keys::canary_key(self.scope.kind, &self.scope.cluster, source.cached).into_bytes()];
        keys.extend(cursor.last_put.as_ref().map(|put| put.source_key.clone()));
        self.state = ResyncState::Checking { cursor, query: SentinelQuery::Current, new_canary: false };
        ResyncStep { request: Some(Request::ReadTogether(keys)), ..ResyncStep::default() }
    }

    pub(super) fn check_current_values(&mut self, key_values: &[Option<KeyValue>], revision: Revision) -> ResyncStep {
        let canaries = self.source.as_ref().is_some_and(|source| source.canaries);
        let ResyncState::Checking { cursor, query: SentinelQuery::Current, new_canary } = &mut self.state else {
            return ResyncStep::default();
        };
        let (canary, put) = (key_values.first().and_then(Option::as_ref), key_values.get(1).and_then(Option::as_ref));
        // a canary that was written again requires a list; the newest put decides whether the
        // history is another one
        *new_canary = canaries && !is_same_canary(canary, cursor);
        if revision < cursor.revision {
            return self.list(HistoryMatch::Other);
        }
        let Some(stored) = &cursor.last_put else { return self.list(HistoryMatch::Unknown) };
        match put {
            Some(put) if put.mod_revision == stored.revision && matches_put_point(put, stored) => self.query_delete(),
            Some(put) if put.mod_revision <= stored.revision => self.list(HistoryMatch::Other),
            Some(_) | None => {
                let (key, put_revision) = (stored.source_key.clone(), stored.revision);
                self.query(SentinelQuery::NewestPut, key, put_revision)
            }
        }
    }

    pub(super) fn check_past_value(&mut self, value: Result<Option<KeyValue>, HistoryLost>) -> ResyncStep {
        let ResyncState::Checking { cursor, query, .. } = &self.state else { return ResyncStep::default() };
        match (query, value) {
            (SentinelQuery::Current, _) => ResyncStep::default(),
            (SentinelQuery::NewestPut, Ok(Some(put))) => {
                let same =
                    cursor.last_put.as_ref().is_some_and(|stored| put.mod_revision == stored.revision && matches_put_point(&put, stored));
                if same { self.query_delete() } else { self.list(HistoryMatch::Other) }
            }
            (SentinelQuery::Deleted, Ok(None)) => match cursor.last_delete.clone() {
                Some(delete) => self.query(SentinelQuery::BeforeDelete, delete.source_key, delete.revision.previous()),
                None => self.resume_history(false),
            },
            (SentinelQuery::BeforeDelete, Ok(Some(_))) => self.resume_history(false),
            // the state at the delete is compacted away: compare the keys as well
            (SentinelQuery::Deleted | SentinelQuery::BeforeDelete, Err(HistoryLost)) => self.resume_history(true),
            (SentinelQuery::NewestPut, Err(HistoryLost)) => self.list(HistoryMatch::Unknown),
            (SentinelQuery::NewestPut, Ok(None)) | (SentinelQuery::Deleted, Ok(Some(_))) | (SentinelQuery::BeforeDelete, Ok(None)) => {
                self.list(HistoryMatch::Other)
            }
        }
    }

    /// Asks about the newest delete, if it is newer than the newest put.
    fn query_delete(&mut self) -> ResyncStep {
        let ResyncState::Checking { cursor, .. } = &self.state else { return ResyncStep::default() };
        let put = cursor.last_put.as_ref().map(|put| put.revision);
        match cursor.last_delete.clone() {
            Some(delete) if Some(delete.revision) > put => self.query(SentinelQuery::Deleted, delete.source_key, delete.revision),
            _ => self.resume_history(false),
        }
    }

    fn query(&mut self, next: SentinelQuery, key: Vec<u8>, revision: Revision) -> ResyncStep {
        if let ResyncState::Checking { query, .. } = &mut self.state {
            *query = next;
        }
        ResyncStep { request: Some(Request::ReadAt(key, revision)), ..ResyncStep::default() }
    }

    /// Resumes from the stored state: reads only the changes since then.
    ///
    /// If the canary was written again or the cluster writes no canaries, it lists in full instead,
    /// because another history could look the same. This list is allowed to remove entries at once,
    /// without a quiet time.
    fn resume_history(&mut self, compare_keys: bool) -> ResyncStep {
        let canaries = self.source.as_ref().is_some_and(|source| source.canaries);
        let ResyncState::Checking { cursor, new_canary, .. } = &self.state else { return ResyncStep::default() };
        if !canaries || *new_canary {
            return self.list(HistoryMatch::Same);
        }
        let cursor = cursor.clone();
        self.list_changes(cursor, compare_keys)
    }
}

fn is_same_canary(now: Option<&KeyValue>, cursor: &Cursor) -> bool {
    matches!((now, &cursor.canary), (Some(now), Some(then)) if now.mod_revision == then.revision && now.value[..] == then.value[..])
}
