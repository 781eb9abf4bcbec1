//! Applies commands to the mirror. It does no IO and reads no clock: the caller passes the time.

use std::sync::Arc;
use std::time::SystemTime;

use crate::feed::{Announcement, Version};
use crate::model::{
    Change, ClusterName, ClusterPhase, ClusterRecord, Command, Cursor, DeleteReason, EntryKey, Kind, Object, Record, Rejection,
    ReplacedRecord, Scope, SourceStamp,
};
use crate::pack::IndexedFields;
use crate::view::index::IndexUpdate;
use crate::view::records::decoding::{decode_object, with_object};
use crate::view::records::location::RecordLocation;
use crate::view::scopes::ScopeNumber;
use crate::view::{ChangeSet, ScopeState, View, key_of, scope_of};

/// Generation of changes before the first list of this process, such as those of a resumed watch.
const FIRST_GENERATION: u32 = 1;

/// Fields of [`Change::Put`].
pub(in crate::view) struct DecodedPut {
    pub(in crate::view) key: EntryKey,
    pub(in crate::view) value: Arc<[u8]>,
    pub(in crate::view) decoded: Result<Arc<Object>, Arc<str>>,
    pub(in crate::view) source: SourceStamp,
}

/// New revision, lease or held mark of a key whose bytes did not change.
struct SourceUpdate {
    key: EntryKey,
    source: SourceStamp,
    /// Decoded object, if the caller has it.
    object: Option<Arc<Object>>,
}

impl View {
    /// Applies one command. `now` is the wall-clock time for rejections.
    #[cfg(any(test, feature = "internals"))]
    pub fn apply(&mut self, command: Command, now: SystemTime) -> ChangeSet {
        self.apply_all(vec![command], now)
    }

    /// Applies commands in order. `now` is the wall-clock time for rejections.
    pub fn apply_all(&mut self, commands: Vec<Command>, now: SystemTime) -> ChangeSet {
        let mut change_set = ChangeSet::default();
        for command in commands {
            self.apply_one(command, now, &mut change_set);
        }
        change_set
    }

    fn apply_one(&mut self, command: Command, now: SystemTime, change_set: &mut ChangeSet) {
        match command {
            Command::BeginObservationGap { scope, last_contact } => self.begin_observation_gap(scope, last_contact, change_set),
            Command::EndObservationGap(scope) => self.end_observation_gap(scope, now, change_set),
            Command::BeginList(scope) => self.begin_list(scope, change_set),
            Command::Apply { scope, changes, cursor } => {
                assert!(changes.iter().all(|change| scope_of(key_of(change)) == scope), "a change must belong to the scope of its command");
                if self.can_pack_puts(&changes) {
                    self.put_packed(changes, now, change_set);
                } else {
                    changes.into_iter().for_each(|change| self.change(change, now, change_set));
                }
                if let Some(cursor) = cursor {
                    self.set_cursor(scope, cursor, now, change_set);
                }
            }
            Command::Prune(scope) => self.prune(&scope, change_set),
            Command::Confirm(scope) => self.confirm(scope),
            Command::StoreCluster { cluster, record } => {
                let before = self.clusters.get(&cluster);
                let notices = before.map(|before| before.notices.clone()).unwrap_or_default();
                let record = ClusterRecord { notices, ..record };
                if before.map(|before| &before.config) != Some(&record.config) {
                    self.scopes.count_cluster_change(&cluster);
                }
                if self.clusters.get(&cluster) != Some(&record) {
                    change_set.clusters.insert(cluster.clone(), Some(record.clone()));
                    self.clusters.insert(cluster.clone(), record);
                    self.update_notices(&cluster, now, change_set);
                }
            }
            Command::Phase { cluster, phase, cause } => self.set_phase(cluster, ClusterPhase { phase: Some(phase), cause }, change_set),
            Command::Findings(changes) => self.set_findings(changes, change_set),
            Command::Heartbeat => self.put_heartbeat(now, change_set),
            Command::Remove { cluster, reason } => self.remove_cluster(&cluster, reason, change_set),
        }
    }

    fn begin_list(&mut self, scope: Scope, change_set: &mut ChangeSet) {
        let state = self.scopes.entry(scope.clone());
        state.generation = state.generation.max(FIRST_GENERATION) + 1;
        if self.scopes.clear_cursor(&scope) {
            change_set.cursors.insert(scope, None);
        }
    }

    fn set_cursor(&mut self, scope: Scope, cursor: Cursor, now: SystemTime, change_set: &mut ChangeSet) {
        self.scopes.set_cursor(scope.clone(), cursor.clone());
        self.update_scope_notices(&scope, now, change_set);
        change_set.cursors.insert(scope, Some(cursor));
    }

    fn confirm(&mut self, scope: Scope) {
        let kind = scope.kind;
        let number = self.scopes.number(scope);
        let state = self.scopes.state_mut(number);
        let was_unconfirmed = !state.confirmed || state.restored_count > 0;
        state.confirmed = true;
        state.restored_count = 0;
        if was_unconfirmed {
            self.scopes.count_source_change();
            self.scopes.count_change(number, kind);
        }
    }

    /// Deletes the keys that the last list did not contain. Must only follow a complete list
    /// (invariant 3).
    fn prune(&mut self, scope: &Scope, change_set: &mut ChangeSet) {
        let missing: Vec<EntryKey> = self.unconfirmed_in(scope).collect();
        for key in missing {
            self.delete(&key, DeleteReason::Deleted, change_set);
        }
        self.confirm(scope.clone());
    }

    fn remove_cluster(&mut self, cluster: &ClusterName, reason: DeleteReason, change_set: &mut ChangeSet) {
        self.withdraw_notices(cluster, reason, change_set);
        for kind in Kind::ALL {
            let scope = Scope { cluster: cluster.clone(), kind };
            let keys: Vec<EntryKey> = self.keys_in_scope(&scope).collect();
            for key in keys {
                self.delete(&key, reason, change_set);
            }
            self.remove_observation_gaps(&scope, change_set);
            if self.scopes.remove(&scope) {
                change_set.cursors.insert(scope, None);
            }
        }
        self.scopes.count_cluster_change(cluster);
        if self.clusters.remove(cluster).is_some() {
            change_set.clusters.insert(cluster.clone(), None);
        }
        // a cluster whose id changed is drained but stays in the mesh
        if reason == DeleteReason::ClusterRemoved {
            self.remove_phase(cluster, reason, change_set);
        }
    }

    fn change(&mut self, change: Change, now: SystemTime, change_set: &mut ChangeSet) {
        let old = self.records.locate(key_of(&change));
        match change {
            Change::Put { key, value, decoded, source } => self.put(DecodedPut { key, value, decoded, source }, old, now, change_set),
            Change::Delete { key } => self.delete_at(old, &key, DeleteReason::Deleted, change_set),
            Change::Hold { key } => self.mark_held(old, key, change_set),
        }
    }

    /// Marks a key that the source lost, without another change of its entry (invariant 4).
    fn mark_held(&mut self, old: Option<RecordLocation>, key: EntryKey, change_set: &mut ChangeSet) {
        let Some(old) = old else { return };
        let source = SourceStamp { held: true, ..self.records.source_at(&old) };
        self.update_source(&old, SourceUpdate { key, source, object: None }, change_set);
    }

    fn put(&mut self, put: DecodedPut, old: Option<RecordLocation>, now: SystemTime, change_set: &mut ChangeSet) {
        let same = old.as_ref().filter(|old| old.is_rejected() == put.decoded.is_err() && old.has_value(&put.value));
        if let Some(same) = same {
            self.update_source(same, SourceUpdate { key: put.key, source: put.source, object: put.decoded.ok() }, change_set);
            return;
        }
        let record = self.put_changed(put, old, now, change_set);
        if record.key.kind == Kind::Node {
            self.update_derived(&record, now, change_set);
        }
    }

    /// Stores a new key, or new bytes of the key at `old`.
    pub(in crate::view) fn put_changed(
        &mut self,
        put: DecodedPut,
        old: Option<RecordLocation>,
        now: SystemTime,
        change_set: &mut ChangeSet,
    ) -> Arc<Record> {
        let record = self.announce_put(put, old.as_ref(), now, change_set);
        match &old {
            Some(old) => {
                let scope = self.scopes.number(scope_of(&record.key));
                self.count_confirmed(scope, self.records.generation_at(old));
                self.replace_record(old, Arc::clone(&record));
            }
            None => {
                self.add_to_indices(&record);
                self.records.insert(Arc::clone(&record));
            }
        }
        record
    }

    /// Creates the record that follows `old`, with the next sequence, and announces it. The caller
    /// stores it in the view.
    pub(super) fn announce_put(
        &mut self,
        put: DecodedPut,
        old: Option<&RecordLocation>,
        now: SystemTime,
        change_set: &mut ChangeSet,
    ) -> Arc<Record> {
        self.sequence = self.sequence.next();
        let scope = self.scopes.number(scope_of(&put.key));
        self.scopes.count_change(scope, put.key.kind);
        let generation = self.generation_of(scope);
        let record = Arc::new(self.successor(put, old, now, generation));
        if let Some(old) = old {
            self.add_replaced(old, None, change_set);
        }
        change_set.announcements.push(Announcement {
            sequence: self.sequence,
            key: record.key.clone(),
            old: old.map(|old| old.version(&record.key)),
            new: Some(Version::from_record(&record)),
            revision: Some(record.source.mod_revision),
            replaces: old.map(|old| old.history().last),
            deleted: None,
        });
        change_set.records.push((record.key.clone(), Some(Arc::clone(&record))));
        record
    }

    /// Adds the record that the newest change replaces or deletes to the change set.
    fn add_replaced(&self, old: &RecordLocation, deleted: Option<DeleteReason>, change_set: &mut ChangeSet) {
        if self.collects_replaced {
            let record = old.record().map_or_else(|packed| Arc::new(self.records.bare_record_at(packed)), Arc::clone);
            change_set.replaced.insert(self.sequence, ReplacedRecord { record, deleted });
        }
    }

    /// Stores a new revision, lease or held mark of equal bytes without an announcement (invariant
    /// 4), and confirms the key.
    fn update_source(&mut self, old: &RecordLocation, update: SourceUpdate, change_set: &mut ChangeSet) {
        let SourceUpdate { key, source, object } = update;
        let scope = self.scopes.number(scope_of(&key));
        let generation = self.generation_of(scope);
        let before = self.records.generation_at(old);
        let source_changed = self.records.source_at(old) != source;
        if before == generation && !source_changed {
            return;
        }
        self.count_confirmed(scope, before);
        // answers also change when a restored record is confirmed
        if source_changed || before == 0 {
            self.scopes.count_change(scope, key.kind);
        }
        let record = match old {
            RecordLocation::Overlay(record) | RecordLocation::Replaced(_, record) => {
                let record = Arc::new(Record { source, generation, ..(**record).clone() });
                self.records.replace(old, Arc::clone(&record));
                with_object(&record)
            }
            RecordLocation::Packed(row) => {
                self.records.confirm_row(row, generation, source);
                if !source_changed {
                    return;
                }
                let bare = self.records.bare_record_at(row);
                let object = object.or_else(|| decode_object(&bare));
                Arc::new(Record { object, ..bare })
            }
        };
        if source_changed {
            change_set.records.push((key, Some(record)));
        }
    }

    /// Creates the record that follows `old`. An unusable value keeps the last usable one
    /// (invariant 7).
    fn successor(&self, put: DecodedPut, old: Option<&RecordLocation>, now: SystemTime, generation: u64) -> Record {
        let history = old.map(RecordLocation::history);
        let (object, good_value, rejection) = match put.decoded {
            Ok(object) => (Some(object), None, None),
            Err(reason) => {
                let old = old.map(|old| self.records.record_at(old));
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

    /// Deletes a key. The announcement becomes a tombstone with the reason.
    pub(in crate::view) fn delete(&mut self, key: &EntryKey, reason: DeleteReason, change_set: &mut ChangeSet) {
        self.delete_at(self.records.locate(key), key, reason, change_set);
    }

    /// Deletes the key whose record is at `old`.
    fn delete_at(&mut self, old: Option<RecordLocation>, key: &EntryKey, reason: DeleteReason, change_set: &mut ChangeSet) {
        let Some(old) = old else { return };
        self.sequence = self.sequence.next();
        change_set.announcements.push(Announcement {
            sequence: self.sequence,
            key: key.clone(),
            old: Some(old.version(key)),
            new: None,
            revision: None,
            replaces: Some(old.history().last),
            deleted: Some(reason),
        });
        self.add_replaced(&old, Some(reason), change_set);
        let scope = self.scopes.number(scope_of(key));
        self.scopes.count_change(scope, key.kind);
        self.count_confirmed(scope, self.records.generation_at(&old));
        self.remove_record(&old, key);
        self.count_entry(key, false);
        change_set.records.push((key.clone(), None));
        if key.kind == Kind::Node {
            for derived in self.derived_keys(key) {
                self.delete(&derived, reason, change_set);
            }
        }
    }

    /// Adds a new record to the counts and the indices.
    pub(super) fn add_to_indices(&mut self, record: &Record) {
        self.count_entry(&record.key, true);
        self.entry_count += usize::from(record.key.kind.is_mirrored());
        self.indices.update(IndexUpdate::Add, &record.key, &IndexedFields::from_record(record), record.rejection.is_some());
    }

    /// Adds a key to the count of its scope, or subtracts it. Derived entries have no scope.
    pub(super) fn count_entry(&mut self, key: &EntryKey, is_added: bool) {
        if key.kind.is_mirrored() {
            let scope = self.scope_mut(key);
            scope.entry_count = if is_added { scope.entry_count + 1 } else { scope.entry_count - 1 };
            // the first and the last entry decide whether a kind without a cursor was ever read
            if scope.entry_count <= 1 {
                self.scopes.count_source_change();
            }
        }
    }

    /// Subtracts a confirmed key from the restored keys of its scope, if it is one of them
    /// (generation 0) and the whole scope is not confirmed yet.
    fn count_confirmed(&mut self, scope: ScopeNumber, generation: u64) {
        if generation == 0 && self.scopes.state(scope).is_some_and(|state| !state.confirmed) {
            self.scopes.state_mut(scope).restored_count -= 1;
        }
    }

    /// Returns the generation of the current list of a scope.
    fn generation_of(&self, scope: ScopeNumber) -> u64 {
        self.scopes.state(scope).map_or(0, |state| state.generation).max(FIRST_GENERATION).into()
    }

    /// Returns the state of a key's scope. Creates the state if there is none.
    pub(in crate::view) fn scope_mut(&mut self, key: &EntryKey) -> &mut ScopeState {
        self.scopes.entry(scope_of(key))
    }

    /// Returns a number that grows whenever answers about these kinds of these clusters change. No
    /// clusters means all.
    #[must_use]
    pub fn content_version(&self, clusters: &[ClusterName], kinds: &[Kind]) -> u64 {
        if clusters.is_empty() {
            return kinds.iter().map(|kind| self.scopes.kind_version(*kind)).max().unwrap_or_default();
        }
        let scopes = clusters.iter().flat_map(|cluster| kinds.iter().map(move |kind| Scope { cluster: cluster.clone(), kind: *kind }));
        scopes.map(|scope| self.scopes.scope_version(&scope)).max().unwrap_or_default()
    }

    /// Returns a number that grows whenever a cluster is added or removed, or its phase, its config
    /// or an origin changes. Unlike [`View::content_version`], it counts no changes of objects.
    #[must_use]
    pub const fn source_version(&self) -> u64 {
        self.scopes.source_version()
    }

    /// Returns the stored cursor of a scope.
    #[must_use]
    pub fn cursor(&self, scope: &Scope) -> Option<&Cursor> {
        self.scopes.cursor(scope)
    }
}
