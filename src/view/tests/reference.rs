//! Reference implementation of the mirror: every record unpacked, in ordered maps. Slow and large,
//! but easy to verify.

#![allow(dead_code, reason = "the reference keeps all methods, also those that no test calls")]

mod ip_index;
mod lookups;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use imbl::{OrdMap, OrdSet};

use self::ip_index::ReferenceIpIndex;
use crate::feed::{Announcement, Version};
use crate::model::*;
use crate::view::ChangeSet;

/// State of one scope.
#[derive(Debug, Clone, Default)]
struct ReferenceScope {
    cursor: Option<Cursor>,
    confirmed: bool,
    generation: u64,
    entry_count: u64,
    restored_count: u64,
}

/// The mirror in memory. Cloning makes a snapshot.
#[derive(Debug, Clone, Default)]
pub(super) struct ReferenceView {
    entries: OrdMap<EntryKey, Arc<Record>>,
    /// Usable ipcache entries by prefix.
    ipcache: ReferenceIpIndex,
    /// Usable identities by number.
    identities: OrdSet<(u32, EntryKey)>,
    /// Usable ipcache entries by identity.
    identity_ips: OrdSet<(u32, EntryKey)>,
    node_addresses: OrdSet<(std::net::IpAddr, EntryKey)>,
    /// Keys whose newest bytes cannot be used.
    rejected: OrdSet<EntryKey>,
    scopes: OrdMap<Scope, ReferenceScope>,
    clusters: OrdMap<ClusterName, ClusterRecord>,
    phases: OrdMap<ClusterName, ((Phase, u64), Sequence)>,
    findings: OrdMap<EntryKey, (Arc<Object>, Sequence)>,
    /// Number of usable records per kind.
    object_counts: [u64; Kind::STORED.len()],
    sequence: Sequence,
}

impl ReferenceView {
    /// Creates an empty mirror whose first change gets the sequence after `sequence`.
    pub(super) fn starting_at(sequence: Sequence) -> Self {
        Self { sequence, ..Self::default() }
    }

    /// Restores a record.
    pub(super) fn restore(&mut self, record: Record) {
        assert!(record.generation == 0, "a restored record must not claim to be confirmed");
        if record.key.kind != Kind::NodeIp {
            let scope = self.scopes.entry(scope_of(&record.key)).or_default();
            scope.entry_count += 1;
            scope.restored_count += 1;
        }
        self.index(&record);
        self.entries.insert(record.key.clone(), Arc::new(record));
    }

    /// Restores a cursor.
    pub(super) fn restore_cursor(&mut self, scope: Scope, cursor: Cursor) {
        self.scopes.entry(scope).or_default().cursor = Some(cursor);
    }

    /// Restores a cluster record.
    pub(super) fn restore_cluster(&mut self, cluster: ClusterName, record: ClusterRecord) {
        self.clusters.insert(cluster, record);
    }

    pub(super) fn sequence(&self) -> Sequence {
        self.sequence
    }

    fn index(&mut self, record: &Record) {
        if record.rejection.is_some() {
            self.rejected.insert(record.key.clone());
        }
        let Some(object) = &record.object else { return };
        self.object_counts[record.key.kind as usize] += 1;
        match &**object {
            Object::Ip(entry) => {
                self.ipcache.insert(entry.prefix, record.key.clone());
                self.identity_ips.insert((entry.identity, record.key.clone()));
            }
            Object::Identity(identity) => {
                self.identities.insert((identity.id, record.key.clone()));
            }
            Object::Node(node) => {
                for address in &node.addresses {
                    self.node_addresses.insert((address.ip, record.key.clone()));
                }
            }
            Object::Service(_) | Object::ServiceExport(_) | Object::EndpointSlice(_) | Object::Cluster(_) | Object::Finding(_) => {}
        }
    }

    fn unindex(&mut self, record: &Record) {
        if record.rejection.is_some() {
            self.rejected.remove(&record.key);
        }
        let Some(object) = &record.object else { return };
        self.object_counts[record.key.kind as usize] -= 1;
        match &**object {
            Object::Ip(entry) => {
                self.ipcache.remove(entry.prefix, &record.key);
                self.identity_ips.remove(&(entry.identity, record.key.clone()));
            }
            Object::Identity(identity) => {
                self.identities.remove(&(identity.id, record.key.clone()));
            }
            Object::Node(node) => {
                for address in &node.addresses {
                    self.node_addresses.remove(&(address.ip, record.key.clone()));
                }
            }
            Object::Service(_) | Object::ServiceExport(_) | Object::EndpointSlice(_) | Object::Cluster(_) | Object::Finding(_) => {}
        }
    }
}

fn scope_of(key: &EntryKey) -> Scope {
    Scope { cluster: key.cluster.clone(), kind: key.kind }
}

fn key_of(change: &Change) -> &EntryKey {
    match change {
        Change::Put { key, .. } | Change::Delete { key } | Change::Hold { key } => key,
    }
}

/// Generation of changes before the first list of this process, as from a resumed watch.
const FIRST_GENERATION: u64 = 1;

/// Fields of [`Change::Put`].
struct ReferencePut {
    key: EntryKey,
    value: Arc<[u8]>,
    decoded: Result<Arc<Object>, Arc<str>>,
    source: SourceStamp,
}

impl ReferenceView {
    /// Applies one command. `now` is the wall-clock time for rejections.
    pub(super) fn apply(&mut self, command: Command, now: SystemTime) -> ChangeSet {
        let mut change_set = ChangeSet::default();
        match command {
            Command::BeginList(scope) => self.begin_list(scope, &mut change_set),
            Command::Apply { scope, changes, cursor } => {
                for change in changes {
                    assert!(scope_of(key_of(&change)) == scope, "a change must belong to the scope of its command");
                    self.change(change, now, &mut change_set);
                }
                if let Some(cursor) = cursor {
                    self.set_cursor(scope, cursor, &mut change_set);
                }
            }
            Command::Prune(scope) => self.prune(&scope, &mut change_set),
            Command::Confirm(scope) => self.confirm(scope),
            Command::StoreCluster { cluster, record } => {
                if self.clusters.get(&cluster) != Some(&record) {
                    change_set.clusters.insert(cluster.clone(), Some(record.clone()));
                    self.clusters.insert(cluster, record);
                }
            }
            Command::Phase { cluster, phase, cause } => self.set_phase(cluster, (phase, cause), &mut change_set),
            Command::Findings(changes) => self.set_findings(changes, &mut change_set),
            Command::Heartbeat => unreachable!("the reference has no etcd API"),
            Command::BeginObservationGap { .. } | Command::EndObservationGap(_) => unreachable!("the reference has no times"),
            Command::Remove { cluster, reason } => self.remove_cluster(&cluster, reason, &mut change_set),
        }
        change_set
    }

    fn begin_list(&mut self, scope: Scope, change_set: &mut ChangeSet) {
        let state = self.scopes.entry(scope.clone()).or_default();
        state.generation = state.generation.max(FIRST_GENERATION) + 1;
        if state.cursor.take().is_some() {
            change_set.cursors.insert(scope, None);
        }
    }

    fn set_cursor(&mut self, scope: Scope, cursor: Cursor, change_set: &mut ChangeSet) {
        self.scopes.entry(scope.clone()).or_default().cursor = Some(cursor.clone());
        change_set.cursors.insert(scope, Some(cursor));
    }

    fn confirm(&mut self, scope: Scope) {
        let state = self.scopes.entry(scope).or_default();
        state.confirmed = true;
        state.restored_count = 0;
    }

    /// Deletes the keys that the last list did not contain. Must only follow a complete list
    /// (invariant 3).
    fn prune(&mut self, scope: &Scope, change_set: &mut ChangeSet) {
        let generation = self.scopes.get(scope).map_or(0, |state| state.generation);
        let missing: Vec<EntryKey> =
            self.in_scope(scope).filter(|record| record.generation < generation).map(|record| record.key.clone()).collect();
        for key in missing {
            self.delete(&key, DeleteReason::Deleted, change_set);
        }
        self.confirm(scope.clone());
    }

    fn remove_cluster(&mut self, cluster: &ClusterName, reason: DeleteReason, change_set: &mut ChangeSet) {
        for kind in Kind::ALL {
            let scope = Scope { cluster: cluster.clone(), kind };
            let keys: Vec<EntryKey> = self.in_scope(&scope).map(|record| record.key.clone()).collect();
            for key in keys {
                self.delete(&key, reason, change_set);
            }
            if self.scopes.remove(&scope).is_some_and(|state| state.cursor.is_some()) {
                change_set.cursors.insert(scope, None);
            }
        }
        if self.clusters.remove(cluster).is_some() {
            change_set.clusters.insert(cluster.clone(), None);
        }
        if reason == DeleteReason::ClusterRemoved
            && let Some(old) = self.phases.remove(cluster)
        {
            self.sequence = self.sequence.next();
            change_set.announcements.push(self.phase_announcement(cluster.clone(), Some(old), None));
        }
    }

    fn set_phase(&mut self, cluster: ClusterName, phase: (Phase, u64), change_set: &mut ChangeSet) {
        let old = self.phases.get(&cluster).copied();
        if old.is_some_and(|(before, _)| before == phase) {
            return;
        }
        if !self.clusters.contains_key(&cluster) {
            change_set.clusters.insert(cluster.clone(), Some(ClusterRecord::default()));
            self.clusters.insert(cluster.clone(), ClusterRecord::default());
        }
        self.sequence = self.sequence.next();
        self.phases.insert(cluster.clone(), (phase, self.sequence));
        change_set.announcements.push(self.phase_announcement(cluster, old, Some(phase)));
    }

    fn phase_announcement(&self, cluster: ClusterName, old: Option<((Phase, u64), Sequence)>, new: Option<(Phase, u64)>) -> Announcement {
        let object = |(phase, cause)| Arc::new(Object::Cluster(ClusterPhase { phase: Some(phase), cause }));
        Announcement {
            sequence: self.sequence,
            key: EntryKey::of_cluster(cluster),
            old: old.map(|(phase, _)| Version::of_own_object(object(phase))),
            new: new.map(|phase| Version::of_own_object(object(phase))),
            revision: None,
            replaces: old.map(|(_, sequence)| sequence),
            deleted: new.is_none().then_some(DeleteReason::ClusterRemoved),
        }
    }

    fn set_findings(&mut self, changes: Vec<FindingChange>, change_set: &mut ChangeSet) {
        for (key, new) in changes {
            let old = self.findings.get(&key).cloned();
            if old.as_ref().map(|(object, _)| object) == new.as_ref() {
                continue;
            }
            self.sequence = self.sequence.next();
            match &new {
                Some(object) => drop(self.findings.insert(key.clone(), (Arc::clone(object), self.sequence))),
                None => drop(self.findings.remove(&key)),
            }
            change_set.announcements.push(Announcement {
                sequence: self.sequence,
                key,
                replaces: old.as_ref().map(|(_, sequence)| *sequence),
                old: old.map(|(object, _)| Version::of_own_object(object)),
                deleted: new.is_none().then_some(DeleteReason::Deleted),
                new: new.map(Version::of_own_object),
                revision: None,
            });
        }
    }

    /// Iterates over the phases and findings with their sequences.
    pub(super) fn phases_and_findings(&self) -> impl Iterator<Item = (Sequence, EntryKey)> {
        let clusters = self.phases.iter().map(|(cluster, (_, sequence))| (*sequence, EntryKey::of_cluster(cluster.clone())));
        clusters.chain(self.findings.iter().map(|(key, (_, sequence))| (*sequence, key.clone())))
    }

    fn change(&mut self, change: Change, now: SystemTime, change_set: &mut ChangeSet) {
        match change {
            Change::Put { key, value, decoded, source } => self.put(ReferencePut { key, value, decoded, source }, now, change_set),
            Change::Delete { key } => self.delete(&key, DeleteReason::Deleted, change_set),
            Change::Hold { key } => {
                let Some(old) = self.entries.get(&key).cloned() else { return };
                let generation = self.scope_mut(&key).generation.max(FIRST_GENERATION);
                self.update_source(&old, SourceStamp { held: true, ..old.source }, generation, change_set);
            }
        }
    }

    fn put(&mut self, put: ReferencePut, now: SystemTime, change_set: &mut ChangeSet) {
        let generation = self.scopes.get(&scope_of(&put.key)).map_or(0, |state| state.generation).max(FIRST_GENERATION);
        let old = self.entries.get(&put.key).cloned();
        let same = old.as_ref().filter(|old| old.value == put.value && old.rejection.is_some() == put.decoded.is_err());
        if let Some(same) = same {
            self.update_source(&Arc::clone(same), put.source, generation, change_set);
            return;
        }
        let record = self.put_changed(put, old, now, change_set);
        if record.key.kind == Kind::Node {
            self.update_derived(&record, now, change_set);
        }
    }

    fn put_changed(&mut self, put: ReferencePut, old: Option<Arc<Record>>, now: SystemTime, change_set: &mut ChangeSet) -> Arc<Record> {
        let generation = self.scopes.get(&scope_of(&put.key)).map_or(0, |state| state.generation).max(FIRST_GENERATION);
        self.sequence = self.sequence.next();
        let record = Arc::new(self.successor(put, old.as_deref(), now, generation));
        match &old {
            Some(old) => {
                self.unindex(old);
                self.count_confirmed(old);
            }
            None if record.key.kind == Kind::NodeIp => {}
            None => self.scope_mut(&record.key).entry_count += 1,
        }
        self.index(&record);
        self.entries.insert(record.key.clone(), Arc::clone(&record));
        change_set.announcements.push(Announcement {
            sequence: self.sequence,
            key: record.key.clone(),
            old: old.as_deref().map(version_of),
            new: Some(version_of(&record)),
            revision: Some(record.source.mod_revision),
            replaces: old.as_ref().map(|old| old.last_sequence),
            deleted: None,
        });
        change_set.records.push((record.key.clone(), Some(Arc::clone(&record))));
        record
    }

    /// Derives the entries of a node, with a second implementation of the rules that builds keys
    /// and values directly.
    fn update_derived(&mut self, node: &Record, now: SystemTime, change_set: &mut ChangeSet) {
        let mut wanted: Vec<(String, String, u32, u8)> = Vec::new();
        let mut host_ip = String::new();
        let host = |ip: IpAddr| format!(r#""IP":"{ip}""#);
        if let Some(Object::Node(node)) = node.object.as_deref() {
            for address in &node.addresses {
                wanted.push((address.ip.to_string(), host(address.ip), 6, 0));
            }
            // the random nodes have CIDRs of /28 and /124
            let pod_cidrs = [(&node.ipv4_pod_cidr, 28, "////8A==", 9), (&node.ipv6_pod_cidr, 124, "////////////////////8A==", 10)];
            let is_dual = node.ipv4_pod_cidr.is_some() && node.ipv6_pod_cidr.is_some();
            for (net, length, mask, world) in pod_cidrs {
                let Some(net) = net else { continue };
                assert_eq!(net.prefix_len(), length);
                let fields = format!(r#""IP":"{}","Mask":"{mask}""#, net.addr());
                wanted.push((net.to_string(), fields, if is_dual { world } else { 2 }, node.encryption_key));
            }
            wanted.extend(node.health_ips.iter().map(|ip| (ip.to_string(), host(*ip), 4, node.encryption_key)));
            wanted.extend(node.ingress_ips.iter().map(|ip| (ip.to_string(), host(*ip), 8, node.encryption_key)));
            // the random nodes have one internal IPv4 address
            let internal = node.addresses.iter().find(|address| address.address_type == "InternalIP");
            host_ip = internal.map(|address| address.ip.to_string()).unwrap_or_default();
        }
        let name = |prefix: &String| format!("{}#{prefix}", node.key.name);
        for (at, (prefix, fields, identity, key)) in wanted.iter().enumerate() {
            let value = format!(r#"{{{fields},"HostIP":"{host_ip}","ID":{identity},"Key":{key}}}"#).into_bytes();
            let entry = EntryKey::new(Kind::NodeIp, node.key.cluster.clone(), name(prefix));
            let old = self.entries.get(&entry).cloned();
            if wanted[..at].iter().all(|(before, ..)| before != prefix) && old.as_ref().is_none_or(|old| *old.value != *value) {
                let source = SourceStamp { mod_revision: node.source.mod_revision, ..SourceStamp::default() };
                let decoded = super::decoded(&entry, &value);
                self.put_changed(ReferencePut { key: entry, value: value.into(), decoded, source }, old, now, change_set);
            }
        }
        for key in self.derived_keys(&node.key) {
            if !wanted.iter().any(|(prefix, ..)| *name(prefix) == *key.name) {
                self.delete(&key, DeleteReason::Deleted, change_set);
            }
        }
    }

    fn derived_keys(&self, node: &EntryKey) -> Vec<EntryKey> {
        let of_node = |key: &&EntryKey| key.kind == Kind::NodeIp && key.origin() == *node;
        self.entries.keys().filter(of_node).cloned().collect()
    }

    /// Stores a new revision, lease or held mark without an announcement (invariant 4), and
    /// confirms the key.
    fn update_source(&mut self, old: &Arc<Record>, source: SourceStamp, generation: u64, change_set: &mut ChangeSet) {
        if old.source == source && old.generation == generation {
            return;
        }
        let record = Arc::new(Record { source, generation, ..(**old).clone() });
        self.count_confirmed(old);
        self.entries.insert(record.key.clone(), Arc::clone(&record));
        if old.source != source {
            change_set.records.push((record.key.clone(), Some(record)));
        }
    }

    /// Creates the record that follows `old`. An unusable value keeps the last usable one
    /// (invariant 7).
    fn successor(&self, put: ReferencePut, old: Option<&Record>, now: SystemTime, generation: u64) -> Record {
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

    fn delete(&mut self, key: &EntryKey, reason: DeleteReason, change_set: &mut ChangeSet) {
        let Some(old) = self.entries.remove(key) else { return };
        self.sequence = self.sequence.next();
        self.unindex(&old);
        self.count_confirmed(&old);
        if key.kind != Kind::NodeIp {
            self.scope_mut(key).entry_count -= 1;
        }
        change_set.announcements.push(Announcement {
            sequence: self.sequence,
            key: key.clone(),
            old: Some(version_of(&old)),
            new: None,
            revision: None,
            replaces: Some(old.last_sequence),
            deleted: Some(reason),
        });
        change_set.records.push((key.clone(), None));
        if key.kind == Kind::Node {
            self.derived_keys(key).iter().for_each(|derived| self.delete(derived, reason, change_set));
        }
    }

    /// Subtracts a restored record from the unconfirmed records of its scope.
    fn count_confirmed(&mut self, old: &Record) {
        if old.key.kind == Kind::NodeIp {
            return;
        }
        let scope = self.scope_mut(&old.key);
        if old.generation == 0 && !scope.confirmed {
            scope.restored_count -= 1;
        }
    }

    fn scope_mut(&mut self, key: &EntryKey) -> &mut ReferenceScope {
        self.scopes.entry(scope_of(key)).or_default()
    }

    pub(super) fn cursor(&self, scope: &Scope) -> Option<&Cursor> {
        self.scopes.get(scope)?.cursor.as_ref()
    }
}

/// Creates a version of a record whose object is in memory.
fn version_of(record: &Record) -> Version {
    Version::from_record(record)
}
