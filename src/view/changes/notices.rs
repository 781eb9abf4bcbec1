//! What a KVStoreMesh would write beside the entries, for clients that read the mirror as an etcd: each cluster's config, a canary for each of its
//! resources that was complete once, and the heartbeat. Each has a place in our order like every other key.
//!
//! They are made only once there are such readers, which the first heartbeat says; those of clusters are stored with them, so that after a
//! start they stand as they were before anything is confirmed. The heartbeat is not stored: each start has one of its own.

use std::sync::Arc;
use std::time::SystemTime;

use imbl::OrdMap;
use smol_str::SmolStr;

use crate::model::{Announcement, ClusterName, DeleteReason, EntryKey, Kind, RawRecord, Scope, Sequence, Version};
use crate::view::{Effects, View};
use crate::wire::cluster_config::{Reading, reading_of};
use crate::wire::keys::{HEARTBEAT, canary_key, cluster_config_key, synced_prefix};
use crate::wire::time_text;
use crate::wire::write::cached_cluster_config_value;

/// All that stand now, by their keys.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct Notices {
    by_key: OrdMap<SmolStr, RawRecord>,
    /// Somebody reads the mirror as an etcd.
    are_wanted: bool,
}

impl View {
    /// The notices from a key on, in key order.
    pub fn notices_from(&self, start: &str) -> impl Iterator<Item = &RawRecord> {
        self.notices.by_key.range(SmolStr::from(start)..).map(|(_, notice)| notice)
    }

    /// The notice of a key.
    #[must_use]
    pub fn notice(&self, key: &str) -> Option<&RawRecord> {
        self.notices.by_key.get(key)
    }

    /// Those that changed after a position, in no particular order.
    pub(in crate::view) fn notices_after(&self, position: Sequence) -> impl Iterator<Item = (Sequence, EntryKey)> {
        let after = self.notices.by_key.values().filter(move |notice| notice.last_sequence > position);
        after.map(|notice| (notice.last_sequence, EntryKey::of_notice(notice.key.clone())))
    }

    /// Takes in what the store held of a cluster.
    pub(super) fn restore_notices(&mut self, notices: &[RawRecord]) {
        self.notices.by_key.extend(notices.iter().map(|notice| (notice.key.clone(), notice.clone())));
    }

    /// The heartbeat beats. With the first one all is said that was not, or differently, before.
    pub(in crate::view) fn beat(&mut self, now: SystemTime, effects: &mut Effects) {
        if !std::mem::replace(&mut self.notices.are_wanted, true) {
            let clusters: Vec<ClusterName> = self.clusters.keys().cloned().collect();
            clusters.iter().for_each(|cluster| self.notify_of(cluster, now, effects));
        }
        self.put_notice(HEARTBEAT.into(), time_text(now).into_bytes().into(), effects);
    }

    /// Says of a cluster what its config has become, and which of its resources are complete.
    pub(super) fn notify_of(&mut self, cluster: &ClusterName, now: SystemTime, effects: &mut Effects) {
        let config = self.clusters.get(cluster).and_then(|record| record.config.clone());
        let Some(config) = config.filter(|_| self.notices.are_wanted) else { return };
        let key = SmolStr::from(cluster_config_key(cluster));
        let value: Arc<[u8]> = cached_cluster_config_value(&config).into();
        if self.notice(&key).is_none_or(|notice| notice.value != value) {
            self.put_notice(key, value, effects);
        }
        for kind in Kind::ALL {
            let is_there = reading_of(kind, &config) != Reading::Absent;
            let key = SmolStr::from(canary_key(kind, cluster, true));
            let is_complete = self.cursor(&Scope { cluster: cluster.clone(), kind }).is_some();
            match (is_there, self.notice(&key).is_some()) {
                (true, false) if is_complete => self.put_notice(key, time_text(now).into_bytes().into(), effects),
                (false, true) => self.delete_notice(&key, DeleteReason::Deleted, effects),
                _ => {}
            }
        }
        self.remember_notices(cluster, effects);
    }

    /// Writes the notices of a cluster of which one resource is complete. Its canary stands from then on, also while it is listed again: what agents have of it is
    /// what they would find.
    pub(super) fn notify_of_scope(&mut self, scope: &Scope, now: SystemTime, effects: &mut Effects) {
        if self.notices.are_wanted && self.notice(&canary_key(scope.kind, &scope.cluster, true)).is_none() {
            self.notify_of(&scope.cluster, now, effects);
        }
    }

    /// A cluster goes: its config first, as nobody shall begin to read it now.
    pub(super) fn withdraw_notices(&mut self, cluster: &ClusterName, reason: DeleteReason, effects: &mut Effects) {
        let keys: Vec<SmolStr> = self.notices_of(cluster).into_iter().map(|notice| notice.key).collect();
        keys.iter().for_each(|key| self.delete_notice(key, reason, effects));
    }

    /// What stands of a cluster, in key order.
    fn notices_of(&self, cluster: &ClusterName) -> Vec<RawRecord> {
        let prefix = synced_prefix(cluster);
        let canaries = self.notices_from(&prefix).take_while(|notice| notice.key.starts_with(&prefix));
        self.notice(&cluster_config_key(cluster)).into_iter().chain(canaries).cloned().collect()
    }

    /// Keeps with a cluster what stands of it.
    fn remember_notices(&mut self, cluster: &ClusterName, effects: &mut Effects) {
        let notices = self.notices_of(cluster);
        if let Some(record) = self.clusters.get_mut(cluster)
            && record.notices != notices
        {
            record.notices = notices;
            effects.clusters.insert(cluster.clone(), Some(record.clone()));
        }
    }

    fn put_notice(&mut self, key: SmolStr, value: Arc<[u8]>, effects: &mut Effects) {
        self.sequence = self.sequence.next();
        let old = self.notices.by_key.get(&key);
        let (create_sequence, version) = old.map_or((self.sequence, 1), |old| (old.create_sequence, old.version + 1));
        let notice = RawRecord { key: key.clone(), value, create_sequence, last_sequence: self.sequence, version };
        effects.announcements.push(self.noticed(&key, old, Some(&notice), None));
        self.notices.by_key.insert(key, notice);
    }

    fn delete_notice(&mut self, key: &SmolStr, reason: DeleteReason, effects: &mut Effects) {
        let Some(old) = self.notices.by_key.remove(key) else { return };
        self.sequence = self.sequence.next();
        effects.announcements.push(self.noticed(key, Some(&old), None, Some(reason)));
    }

    fn noticed(&self, key: &SmolStr, old: Option<&RawRecord>, new: Option<&RawRecord>, deleted: Option<DeleteReason>) -> Announcement {
        let version =
            |notice: &RawRecord| Version::bare(Arc::clone(&notice.value), notice.create_sequence, notice.last_sequence, notice.version);
        Announcement {
            sequence: self.sequence,
            key: EntryKey::of_notice(key.clone()),
            old: old.map(version),
            new: new.map(version),
            revision: None,
            replaces: old.map(|old| old.last_sequence),
            deleted,
        }
    }
}
