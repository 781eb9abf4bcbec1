//! The scripted source: an etcd made of a log, which can be compacted, wiped and reloaded.

use super::*;

/// Bugs of watches in old releases of etcd, each of which a test can switch on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EtcdBugs {
    /// A watch from the compacted revision omits a delete at that revision (etcd #18089, #19179).
    pub(super) omits_compacted_deletes: bool,
    /// A new watch gets events from before its start (etcd #20221).
    pub(super) old_events: bool,
    /// A progress notification arrives before the events that it covers (etcd #15220).
    pub(super) progress_ahead: bool,
    /// A watch that fell behind a compaction continues after it without an error (etcd #17529).
    pub(super) skips_compacted_events: bool,
}

#[derive(Clone)]
pub(super) struct FakeEtcd {
    pub(super) id: u64,
    pub(super) revision: i64,
    pub(super) compacted: i64,
    pub(super) keys: BTreeMap<Vec<u8>, KeyValue>,
    pub(super) log: Vec<(i64, Event)>,
    /// Counter that makes every canary different, as time does.
    pub(super) canaries: u64,
    /// Lease of the next puts.
    pub(super) lease: i64,
    pub(super) expired: BTreeSet<i64>,
    /// Expiry times of the leases that are not renewed.
    pub(super) deadlines: BTreeMap<i64, Duration>,
    pub(super) clock: Duration,
    /// Bugs of this release of etcd.
    pub(super) bugs: EtcdBugs,
    /// True for a KVStoreMesh's etcd, false for the cluster's own.
    pub(super) cached: bool,
}

impl FakeEtcd {
    pub(super) fn new(id: u64) -> Self {
        Self {
            id,
            revision: 1,
            compacted: 0,
            keys: BTreeMap::new(),
            log: Vec::new(),
            canaries: 0,
            lease: 7,
            expired: BTreeSet::new(),
            deadlines: BTreeMap::new(),
            clock: Duration::ZERO,
            bugs: EtcdBugs::default(),
            cached: false,
        }
    }

    /// Deletes all keys of a lease in one revision.
    pub(super) fn expire(&mut self, lease: i64) {
        self.expired.insert(lease);
        let expired_keys: Vec<Vec<u8>> = self.keys.values().filter(|put| put.lease.0 == lease).map(|put| put.key.clone()).collect();
        self.revision += 1;
        for key in expired_keys {
            self.keys.remove(&key);
            self.log.push((self.revision, Event::Delete { key, mod_revision: Revision(self.revision) }));
        }
    }

    pub(super) fn prefix(&self) -> &'static str {
        if self.cached { CACHED_PREFIX } else { PREFIX }
    }

    pub(super) fn canary(&self) -> &'static [u8] {
        if self.cached { CACHED_CANARY } else { CANARY }
    }

    pub(super) fn lease_life(&self, lease: LeaseId) -> LeaseLife {
        if self.expired.contains(&lease.0) {
            return LeaseLife::NotFound;
        }
        let remaining = self.deadlines.get(&lease.0).map_or(LEASE_TTL, |deadline| deadline.saturating_sub(self.clock));
        LeaseLife::Alive { granted: LEASE_TTL, remaining }
    }

    pub(super) fn writer_key(&self, key: &[u8]) -> WriterKey {
        self.keys.get(key).map_or(WriterKey::Deleted, |put| WriterKey::Present {
            created: put.create_revision,
            lease: put.lease,
            life: self.lease_life(put.lease),
        })
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) {
        self.revision += 1;
        let revision = Revision(self.revision);
        let old = self.keys.get(key);
        let put = KeyValue {
            key: key.to_vec(),
            value: value.into(),
            create_revision: old.map_or(revision, |old| old.create_revision),
            mod_revision: revision,
            version: old.map_or(1, |old| old.version + 1),
            lease: LeaseId(self.lease),
        };
        self.keys.insert(key.to_vec(), put.clone());
        self.log.push((self.revision, Event::Put(put)));
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        if self.keys.remove(key).is_some() {
            self.revision += 1;
            self.log.push((self.revision, Event::Delete { key: key.to_vec(), mod_revision: Revision(self.revision) }));
        }
    }

    pub(super) fn put_canary_and_config(&mut self) {
        self.canaries += 1;
        let value = format!("2026-01-12T09:31:{:02}Z", self.canaries);
        self.put(self.canary(), value.as_bytes());
        self.put(CONFIG, b"{}");
    }

    /// Deletes the data directory and keeps the flags: the id stays, and the revision is 1 again.
    pub(super) fn wipe(&mut self) {
        let (canaries, cached, bugs) = (self.canaries, self.cached, self.bugs);
        *self = Self { canaries, cached, bugs, ..Self::new(self.id) };
    }

    /// Returns the events of a new watch, by revision, up to the current head. `Err` if `from` is
    /// below the compacted revision. A watch from the compacted revision itself is accepted, even
    /// if that is the head.
    pub(super) fn watch(&self, from: i64) -> Result<Vec<(i64, Vec<Event>)>, HistoryLost> {
        if from < self.compacted {
            return Err(HistoryLost);
        }
        let old = if self.bugs.old_events { (from - 3).max(self.compacted) } else { from };
        let is_omitted = |revision: i64, event: &Event| {
            self.bugs.omits_compacted_deletes && revision == self.compacted && matches!(event, Event::Delete { .. })
        };
        let events = self.log.iter().filter(|(revision, event)| *revision >= old && !is_omitted(*revision, event));
        Ok(self.group_by_revision(events))
    }

    /// Returns the events that an open watch gets after those up to a revision.
    pub(super) fn events_after(&self, sent_until: i64) -> Result<Vec<(i64, Vec<Event>)>, HistoryLost> {
        // with the bug `skips_compacted_events`, a watch that is behind continues with the events
        // that are left
        if sent_until.saturating_add(1) < self.compacted && !self.bugs.skips_compacted_events {
            return Err(HistoryLost);
        }
        let sent_until = if self.bugs.skips_compacted_events { sent_until.max(self.compacted) } else { sent_until };
        Ok(self.group_by_revision(self.log.iter().filter(|(revision, _)| *revision > sent_until)))
    }

    fn group_by_revision<'a>(&self, events: impl Iterator<Item = &'a (i64, Event)>) -> Vec<(i64, Vec<Event>)> {
        let mut revisions: BTreeMap<i64, Vec<Event>> = BTreeMap::new();
        for (revision, event) in events.filter(|(_, event)| key_of(event).starts_with(self.prefix().as_bytes())) {
            revisions.entry(*revision).or_default().push(event.clone());
        }
        revisions.into_iter().collect()
    }

    pub(super) fn value_at(&self, key: &[u8], revision: Revision) -> Result<Option<KeyValue>, HistoryLost> {
        if revision.0 < self.compacted || revision.0 > self.revision {
            return Err(HistoryLost);
        }
        let newest = self.log.iter().rev().find(|(logged_at, event)| *logged_at <= revision.0 && key_of(event) == key);
        Ok(newest.and_then(|(_, event)| match event {
            Event::Put(put) => Some(put.clone()),
            Event::Delete { .. } => None,
        }))
    }

    /// Returns the entries below the watched prefix.
    pub(super) fn entries(&self) -> BTreeMap<String, Vec<u8>> {
        self.watched_puts().filter(|put| is_entry(&put.key)).map(|put| (name_of(&put.key), put.value.to_vec())).collect()
    }

    /// Returns the keys below the watched prefix that are not entries.
    pub(super) fn other_keys(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        self.watched_puts().filter(|put| !is_entry(&put.key)).map(|put| (put.key.clone(), put.value.to_vec())).collect()
    }

    fn watched_puts(&self) -> impl Iterator<Item = &KeyValue> {
        self.keys.values().filter(|put| put.key.starts_with(self.prefix().as_bytes()))
    }
}
