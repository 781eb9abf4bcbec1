//! How commands change the mirror: one function for each, no IO, no clock but the one that is passed in.

use std::sync::Arc;
use std::time::SystemTime;

use crate::model::{
    Announcement, Change, ClusterName, ClusterPhase, ClusterRecord, Command, Cursor, DeleteReason, EntryKey, Kind, Object, Record,
    Rejection, Scope, SourceStamp,
};
use crate::view::base::decoding::{object_of, version_of, whole};
use crate::view::base::location::RecordLocation;
use crate::view::scopes::ScopeNumber;
use crate::view::{Effects, ScopeState, View, key_of, scope_of};

/// The generation of changes that come before any list of this process: those of a resumed watch.
const FIRST_GENERATION: u32 = 1;

/// A put taken apart, so that its parts have names.
pub(in crate::view) struct Put {
    pub(in crate::view) key: EntryKey,
    pub(in crate::view) value: Arc<[u8]>,
    pub(in crate::view) decoded: Result<Arc<Object>, Arc<str>>,
    pub(in crate::view) source: SourceStamp,
}

/// A put of bytes that are held already, or a mark that the source no longer has the key.
struct Repeat {
    key: EntryKey,
    source: SourceStamp,
    /// What they mean, where that is at hand.
    object: Option<Arc<Object>>,
}

impl View {
    /// Applies one command. `now` is the wall clock, for the times of rejections.
    #[cfg(any(test, feature = "internals"))]
    pub fn apply(&mut self, command: Command, now: SystemTime) -> Effects {
        self.apply_all(vec![command], now)
    }

    /// Applies commands, one after another.
    pub fn apply_all(&mut self, commands: Vec<Command>, now: SystemTime) -> Effects {
        let mut effects = Effects::default();
        for command in commands {
            self.apply_one(command, now, &mut effects);
        }
        effects
    }

    fn apply_one(&mut self, command: Command, now: SystemTime, effects: &mut Effects) {
        match command {
            Command::BeginList(scope) => self.begin_list(scope, effects),
            Command::Apply { scope, changes, cursor } => {
                for change in changes {
                    assert!(scope_of(key_of(&change)) == scope, "a change must belong to the scope of its command");
                    self.change(change, now, effects);
                }
                if let Some(cursor) = cursor {
                    self.set_cursor(scope, cursor, now, effects);
                }
            }
            Command::Prune(scope) => self.prune(&scope, effects),
            Command::Confirm(scope) => self.confirm(scope),
            Command::Remember { cluster, record } => {
                let before = self.clusters.get(&cluster);
                let notices = before.map(|before| before.notices.clone()).unwrap_or_default();
                let record = ClusterRecord { notices, ..record };
                if before.map(|before| &before.config) != Some(&record.config) {
                    self.scopes.cluster_moved(&cluster);
                }
                if self.clusters.get(&cluster) != Some(&record) {
                    effects.clusters.insert(cluster.clone(), Some(record.clone()));
                    self.clusters.insert(cluster.clone(), record);
                    self.notify_of(&cluster, now, effects);
                }
            }
            Command::Phase { cluster, phase, cause } => self.set_phase(cluster, ClusterPhase { phase: Some(phase), cause }, effects),
            Command::Findings(changes) => self.set_findings(changes, effects),
            Command::Beat => self.beat(now, effects),
            Command::Remove { cluster, reason } => self.remove_cluster(&cluster, reason, effects),
        }
    }

    fn begin_list(&mut self, scope: Scope, effects: &mut Effects) {
        let state = self.scopes.entry(scope.clone());
        state.generation = state.generation.max(FIRST_GENERATION) + 1;
        if self.scopes.clear_cursor(&scope) {
            effects.cursors.insert(scope, None);
        }
    }

    fn set_cursor(&mut self, scope: Scope, cursor: Cursor, now: SystemTime, effects: &mut Effects) {
        self.scopes.set_cursor(scope.clone(), cursor.clone());
        self.notify_of_scope(&scope, now, effects);
        effects.cursors.insert(scope, Some(cursor));
    }

    fn confirm(&mut self, scope: Scope) {
        let kind = scope.kind;
        let number = self.scopes.number(scope);
        let state = self.scopes.change(number);
        let was_open = !state.confirmed || state.restored_count > 0;
        state.confirmed = true;
        state.restored_count = 0;
        if was_open {
            self.scopes.moved(number, kind);
        }
    }

    /// Removes what the last list did not confirm. Only a complete list may lead here (invariant 3).
    fn prune(&mut self, scope: &Scope, effects: &mut Effects) {
        let gone: Vec<EntryKey> = self.unconfirmed_in(scope).collect();
        for key in gone {
            self.delete(&key, DeleteReason::Deleted, effects);
        }
        self.confirm(scope.clone());
    }

    fn remove_cluster(&mut self, cluster: &ClusterName, reason: DeleteReason, effects: &mut Effects) {
        self.withdraw_notices(cluster, reason, effects);
        for kind in Kind::ALL {
            let scope = Scope { cluster: cluster.clone(), kind };
            let gone: Vec<EntryKey> = self.keys_in_scope(&scope).collect();
            for key in gone {
                self.delete(&key, reason, effects);
            }
            if self.scopes.remove(&scope) {
                effects.cursors.insert(scope, None);
            }
        }
        self.scopes.cluster_moved(cluster);
        if self.clusters.remove(cluster).is_some() {
            effects.clusters.insert(cluster.clone(), None);
        }
        // a cluster that is drained because its id changed stays one of the mesh
        if reason == DeleteReason::ClusterRemoved {
            self.remove_phase(cluster, reason, effects);
        }
    }

    fn change(&mut self, change: Change, now: SystemTime, effects: &mut Effects) {
        let old = self.place(key_of(&change));
        match change {
            Change::Put { key, value, decoded, source } => self.put(Put { key, value, decoded, source }, old, now, effects),
            Change::Delete { key } => self.delete_at(old, &key, DeleteReason::Deleted, effects),
            Change::Hold { key } => self.mark_held(old, key, effects),
        }
    }

    /// What the source has lost stays as it is, but for the mark (invariant 4).
    fn mark_held(&mut self, old: Option<RecordLocation>, key: EntryKey, effects: &mut Effects) {
        let Some(old) = old else { return };
        let source = SourceStamp { held: true, ..self.source_at(&old) };
        self.repeat(&old, Repeat { key, source, object: None }, effects);
    }

    fn put(&mut self, put: Put, old: Option<RecordLocation>, now: SystemTime, effects: &mut Effects) {
        let same = old.as_ref().filter(|old| old.is_rejected() == put.decoded.is_err() && old.has_value(&put.value));
        if let Some(same) = same {
            self.repeat(same, Repeat { key: put.key, source: put.source, object: put.decoded.ok() }, effects);
            return;
        }
        let record = self.put_changed(put, old, now, effects);
        if record.key.kind == Kind::Node {
            self.derive(&record, now, effects);
        }
    }

    /// A new key, or other bytes than those that are held at `old`.
    pub(in crate::view) fn put_changed(
        &mut self,
        put: Put,
        old: Option<RecordLocation>,
        now: SystemTime,
        effects: &mut Effects,
    ) -> Arc<Record> {
        self.sequence = self.sequence.next();
        let scope = self.scopes.number(scope_of(&put.key));
        self.scopes.moved(scope, put.key.kind);
        let generation = self.generation_of(scope);
        let record = Arc::new(self.successor(put, old.as_ref(), now, generation));
        effects.announcements.push(Announcement {
            sequence: self.sequence,
            key: record.key.clone(),
            old: old.as_ref().map(|old| old.version(&record.key)),
            new: Some(version_of(&record)),
            revision: Some(record.source.mod_revision),
            replaces: old.as_ref().map(|old| old.history().last),
            deleted: None,
        });
        match &old {
            Some(old) => {
                self.count_confirmed(scope, self.generation_at(old));
                self.exchange(old, Arc::clone(&record));
            }
            None => {
                self.count_entry(&record.key, true);
                self.hold(Arc::clone(&record));
            }
        }
        effects.records.push((record.key.clone(), Some(Arc::clone(&record))));
        record
    }

    /// Equal bytes announce nothing, but their revision and lease are kept (invariant 4) and the key is confirmed.
    fn repeat(&mut self, old: &RecordLocation, repeat: Repeat, effects: &mut Effects) {
        let Repeat { key, source, object } = repeat;
        let scope = self.scopes.number(scope_of(&key));
        let generation = self.generation_of(scope);
        let before = self.generation_at(old);
        let moved = self.source_at(old) != source;
        if before == generation && !moved {
            return;
        }
        self.count_confirmed(scope, before);
        // from the store until now
        if moved || before == 0 {
            self.scopes.moved(scope, key.kind);
        }
        let record = match old {
            RecordLocation::Fresh(record) | RecordLocation::Replaced(_, record) => {
                let record = Arc::new(Record { source, generation, ..(**record).clone() });
                self.put_at(old, Arc::clone(&record));
                whole(&record)
            }
            RecordLocation::Packed(at) => {
                self.base.confirm(at, generation);
                self.base.put_stamp(at, source);
                if !moved {
                    return;
                }
                let bare = self.bare_record_at(at);
                let object = object.or_else(|| object_of(&bare));
                Arc::new(Record { object, ..bare })
            }
        };
        if moved {
            effects.records.push((key, Some(record)));
        }
    }

    /// The record that follows `old` when new bytes come. An unusable value keeps the last usable one (invariant 7).
    fn successor(&self, put: Put, old: Option<&RecordLocation>, now: SystemTime, generation: u64) -> Record {
        let history = old.map(RecordLocation::history);
        let (object, good_value, rejection) = match put.decoded {
            Ok(object) => (Some(object), None, None),
            Err(reason) => {
                let old = old.map(|old| self.record_at(old));
                let first_seen = old.as_ref().and_then(|old| old.rejection.as_ref()).map_or(now, |rejection| rejection.first_seen);
                let object = old.as_ref().and_then(|old| old.object.clone());
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
            create_sequence: history.map_or(self.sequence, |history| history.created),
            last_sequence: self.sequence,
            version: history.map_or(0, |history| history.version) + 1,
            generation,
        }
    }

    /// Deletes a key, and leaves a tombstone with the reason.
    pub(in crate::view) fn delete(&mut self, key: &EntryKey, reason: DeleteReason, effects: &mut Effects) {
        self.delete_at(self.place(key), key, reason, effects);
    }

    /// Deletes a key whose record is at `old`.
    fn delete_at(&mut self, old: Option<RecordLocation>, key: &EntryKey, reason: DeleteReason, effects: &mut Effects) {
        let Some(old) = old else { return };
        self.sequence = self.sequence.next();
        effects.announcements.push(Announcement {
            sequence: self.sequence,
            key: key.clone(),
            old: Some(old.version(key)),
            new: None,
            revision: None,
            replaces: Some(old.history().last),
            deleted: Some(reason),
        });
        let scope = self.scopes.number(scope_of(key));
        self.scopes.moved(scope, key.kind);
        self.count_confirmed(scope, self.generation_at(&old));
        self.release(&old, key);
        self.count_entry(key, false);
        effects.records.push((key.clone(), None));
        if key.kind == Kind::Node {
            for derived in self.derived_from(key) {
                self.delete(&derived, reason, effects);
            }
        }
    }

    /// Counts a key of a scope in or out. What is derived has none.
    pub(super) fn count_entry(&mut self, key: &EntryKey, held: bool) {
        if key.kind.is_mirrored() {
            let scope = self.scope_mut(key);
            scope.entry_count = if held { scope.entry_count + 1 } else { scope.entry_count - 1 };
        }
    }

    /// Takes a restored record off the count of those that wait for confirmation.
    fn count_confirmed(&mut self, scope: ScopeNumber, generation: u64) {
        if generation == 0 && self.scopes.at(scope).is_some_and(|state| !state.confirmed) {
            self.scopes.change(scope).restored_count -= 1;
        }
    }

    /// The generation of what the source says of a scope now.
    fn generation_of(&self, scope: ScopeNumber) -> u64 {
        self.scopes.at(scope).map_or(0, |state| state.generation).max(FIRST_GENERATION).into()
    }

    /// The state of the scope that a key is in, to be changed.
    pub(in crate::view) fn scope_mut(&mut self, key: &EntryKey) -> &mut ScopeState {
        self.scopes.entry(scope_of(key))
    }

    /// A version number of what answers contain of these kinds in these clusters, of all where none is named. It only grows.
    #[must_use]
    pub fn moved(&self, clusters: &[ClusterName], kinds: &[Kind]) -> u64 {
        if clusters.is_empty() {
            return kinds.iter().map(|kind| self.scopes.kind_move(*kind)).max().unwrap_or_default();
        }
        let scopes = clusters.iter().flat_map(|cluster| kinds.iter().map(move |kind| Scope { cluster: cluster.clone(), kind: *kind }));
        scopes.map(|scope| self.scopes.scope_move(&scope)).max().unwrap_or_default()
    }

    /// The stored cursor of a scope.
    #[must_use]
    pub fn cursor(&self, scope: &Scope) -> Option<&Cursor> {
        self.scopes.cursor(scope)
    }
}
