//! How commands change the mirror: one function for each, no IO, no clock but the one that is passed in.

use std::sync::Arc;
use std::time::SystemTime;

use super::{Effects, ScopeState, View, key_of, scope_of};
use crate::model::{
    Announcement, Change, ClusterName, Command, Cursor, DeleteReason, EntryKey, Kind, Object, Record, Rejection, Scope, SourceStamp,
};

/// The generation of changes that come before any list of this process: those of a resumed watch.
const FIRST_GENERATION: u64 = 1;

/// A put taken apart, so that its parts have names.
struct Put {
    key: EntryKey,
    value: Arc<[u8]>,
    decoded: Result<Arc<Object>, Arc<str>>,
    source: SourceStamp,
}

impl View {
    /// Applies one command. `now` is the wall clock, for the times of rejections.
    pub fn apply(&mut self, command: Command, now: SystemTime) -> Effects {
        let mut effects = Effects::default();
        match command {
            Command::BeginList(scope) => self.begin_list(scope, &mut effects),
            Command::Apply { scope, changes, cursor } => {
                for change in changes {
                    assert!(scope_of(key_of(&change)) == scope, "a change must belong to the scope of its command");
                    self.change(change, now, &mut effects);
                }
                if let Some(cursor) = cursor {
                    self.set_cursor(scope, cursor, &mut effects);
                }
            }
            Command::CompleteList { scope, cursor, prune } => {
                self.set_cursor(scope.clone(), cursor, &mut effects);
                if prune {
                    self.prune(&scope, &mut effects);
                }
            }
            Command::Prune(scope) => self.prune(&scope, &mut effects),
            Command::Confirm(scope) => self.confirm(scope),
            Command::Remember { cluster, record } => {
                if self.clusters.get(&cluster) != Some(&record) {
                    effects.clusters.insert(cluster.clone(), Some(record.clone()));
                    self.clusters.insert(cluster, record);
                }
            }
            Command::Phase { cluster, phase } => self.set_phase(cluster, phase, &mut effects),
            Command::Remove { cluster, reason } => self.remove_cluster(&cluster, reason, &mut effects),
        }
        effects
    }

    fn begin_list(&mut self, scope: Scope, effects: &mut Effects) {
        let state = self.scopes.entry(scope.clone()).or_default();
        state.generation = state.generation.max(FIRST_GENERATION) + 1;
        if state.cursor.take().is_some() {
            effects.cursors.insert(scope, None);
        }
    }

    fn set_cursor(&mut self, scope: Scope, cursor: Cursor, effects: &mut Effects) {
        self.scopes.entry(scope.clone()).or_default().cursor = Some(cursor.clone());
        effects.cursors.insert(scope, Some(cursor));
    }

    fn confirm(&mut self, scope: Scope) {
        let state = self.scopes.entry(scope).or_default();
        state.confirmed = true;
        state.restored_count = 0;
    }

    /// Removes what the last list did not confirm. Only a complete list may lead here (invariant 3).
    fn prune(&mut self, scope: &Scope, effects: &mut Effects) {
        let generation = self.scopes.get(scope).map_or(0, |state| state.generation);
        let gone: Vec<EntryKey> =
            self.in_scope(scope).filter(|record| record.generation < generation).map(|record| record.key.clone()).collect();
        for key in gone {
            self.delete(&key, DeleteReason::Deleted, effects);
        }
        self.confirm(scope.clone());
    }

    fn remove_cluster(&mut self, cluster: &ClusterName, reason: DeleteReason, effects: &mut Effects) {
        for kind in Kind::ALL {
            let scope = Scope { cluster: cluster.clone(), kind };
            let gone: Vec<EntryKey> = self.in_scope(&scope).map(|record| record.key.clone()).collect();
            for key in gone {
                self.delete(&key, reason, effects);
            }
            if self.scopes.remove(&scope).is_some_and(|state| state.cursor.is_some()) {
                effects.cursors.insert(scope, None);
            }
        }
        if self.clusters.remove(cluster).is_some() {
            effects.clusters.insert(cluster.clone(), None);
        }
        // a cluster that is drained because its id changed stays one of the mesh
        if reason == DeleteReason::ClusterRemoved {
            self.remove_phase(cluster, reason, effects);
        }
    }

    fn change(&mut self, change: Change, now: SystemTime, effects: &mut Effects) {
        match change {
            Change::Put { key, value, decoded, source } => self.put(Put { key, value, decoded, source }, now, effects),
            Change::Delete { key } => self.delete(&key, DeleteReason::Deleted, effects),
            Change::Hold { key } => self.hold(&key, effects),
        }
    }

    /// What the source has lost stays as it is, but for the mark (invariant 4).
    fn hold(&mut self, key: &EntryKey, effects: &mut Effects) {
        let Some(old) = self.entries.get(key).cloned() else { return };
        let generation = self.scope_mut(key).generation.max(FIRST_GENERATION);
        self.repeat(&old, SourceStamp { held: true, ..old.source }, generation, effects);
    }

    fn put(&mut self, put: Put, now: SystemTime, effects: &mut Effects) {
        let generation = self.scopes.get(&scope_of(&put.key)).map_or(0, |state| state.generation).max(FIRST_GENERATION);
        let old = self.entries.get(&put.key).cloned();
        let same = old.as_ref().filter(|old| old.value == put.value && old.rejection.is_some() == put.decoded.is_err());
        if let Some(same) = same {
            self.repeat(&Arc::clone(same), put.source, generation, effects);
            return;
        }
        self.sequence = self.sequence.next();
        let record = Arc::new(self.successor(put, old.as_deref(), now, generation));
        match &old {
            Some(old) => {
                self.unindex(old);
                self.count_confirmed(old);
            }
            None => self.scope_mut(&record.key).entry_count += 1,
        }
        self.index(&record);
        self.entries.insert(record.key.clone(), Arc::clone(&record));
        effects.announcements.push(Announcement {
            sequence: self.sequence,
            key: record.key.clone(),
            old: old.as_ref().and_then(|old| old.object.clone()),
            new: record.object.clone(),
            revision: Some(record.source.mod_revision),
            replaces: old.as_ref().map(|old| old.last_sequence),
            deleted: None,
        });
        effects.records.insert(record.key.clone(), Some(record));
    }

    /// Equal bytes announce nothing, but their revision and lease are kept (invariant 4) and the key is confirmed.
    fn repeat(&mut self, old: &Arc<Record>, source: SourceStamp, generation: u64, effects: &mut Effects) {
        if old.source == source && old.generation == generation {
            return;
        }
        let record = Arc::new(Record { source, generation, ..(**old).clone() });
        self.count_confirmed(old);
        self.entries.insert(record.key.clone(), Arc::clone(&record));
        if old.source != source {
            effects.records.insert(record.key.clone(), Some(record));
        }
    }

    /// The record that follows `old` when new bytes come. An unusable value keeps the last usable one (invariant 7).
    fn successor(&self, put: Put, old: Option<&Record>, now: SystemTime, generation: u64) -> Record {
        let (object, good_value, rejection) = match put.decoded {
            Ok(object) => (Some(object), None, None),
            Err(reason) => {
                let first_seen = old.and_then(|old| old.rejection.as_ref()).map_or(now, |rejection| rejection.first_seen);
                let object = old.and_then(|old| old.object.clone());
                let good_value = old.filter(|_| object.is_some()).map(|old| old.good_value.clone().unwrap_or_else(|| old.value.clone()));
                (object, good_value, Some(Rejection { reason, first_seen, last_seen: now }))
            }
        };
        Record {
            key: put.key,
            value: put.value,
            good_value,
            object,
            rejection,
            source: put.source,
            create_sequence: old.map_or(self.sequence, |old| old.create_sequence),
            last_sequence: self.sequence,
            version: old.map_or(0, |old| old.version) + 1,
            generation,
        }
    }

    fn delete(&mut self, key: &EntryKey, reason: DeleteReason, effects: &mut Effects) {
        let Some(old) = self.entries.remove(key) else { return };
        self.sequence = self.sequence.next();
        self.unindex(&old);
        self.count_confirmed(&old);
        self.scope_mut(key).entry_count -= 1;
        effects.announcements.push(Announcement {
            sequence: self.sequence,
            key: key.clone(),
            old: old.object.clone(),
            new: None,
            revision: None,
            replaces: Some(old.last_sequence),
            deleted: Some(reason),
        });
        effects.records.insert(key.clone(), None);
    }

    /// Takes a restored record off the count of those that wait for confirmation.
    fn count_confirmed(&mut self, old: &Record) {
        let scope = self.scope_mut(&old.key);
        if old.generation == 0 && !scope.confirmed {
            scope.restored_count -= 1;
        }
    }

    fn scope_mut(&mut self, key: &EntryKey) -> &mut ScopeState {
        self.scopes.entry(scope_of(key)).or_default()
    }

    /// The stored cursor of a scope.
    #[must_use]
    pub fn cursor(&self, scope: &Scope) -> Option<&Cursor> {
        self.scopes.get(scope)?.cursor.as_ref()
    }
}
