//! Notices: keys that a KVStoreMesh would write in addition to the entries, for clients that read
//! the mirror as an etcd. They are each cluster's config, a canary for each kind that was complete
//! once, and the heartbeat.
//!
//! They exist only once the etcd API puts its first heartbeat. The notices of a cluster are stored
//! with its record, so that they exist right after a restart. The heartbeat is not stored.

use std::sync::Arc;
use std::time::SystemTime;

use imbl::OrdMap;
use smol_str::SmolStr;

use crate::feed::Announcement;
use crate::feed::Version;
use crate::model::{ClusterName, DeleteReason, EntryKey, Kind, RawRecord, Scope, Sequence};
use crate::view::{ChangeSet, View};
use crate::wire::cluster_config::{KindPublication, kind_publication};
use crate::wire::keys::{HEARTBEAT, canary_key, cluster_config_key, synced_prefix};
use crate::wire::time_text;
use crate::wire::write::cached_cluster_config_value;

/// Notices by their keys in etcd.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct Notices {
    by_key: OrdMap<SmolStr, RawRecord>,
    /// Whether the etcd API is enabled.
    are_enabled: bool,
}

impl View {
    /// Iterates over the notices from a key on, in key order.
    pub fn notices_from(&self, start: &str) -> impl Iterator<Item = &RawRecord> {
        self.notices.by_key.range(SmolStr::from(start)..).map(|(_, notice)| notice)
    }

    /// Returns the notice of a key.
    #[must_use]
    pub fn notice(&self, key: &str) -> Option<&RawRecord> {
        self.notices.by_key.get(key)
    }

    /// Iterates over the notices that changed after a position, in no particular order.
    pub(in crate::view) fn notices_after(&self, position: Sequence) -> impl Iterator<Item = (Sequence, EntryKey)> {
        let after = self.notices.by_key.values().filter(move |notice| notice.last_sequence > position);
        after.map(|notice| (notice.last_sequence, EntryKey::of_notice(notice.key.clone())))
    }

    /// Restores the notices of a cluster.
    pub(super) fn restore_notices(&mut self, notices: &[RawRecord]) {
        self.notices.by_key.extend(notices.iter().map(|notice| (notice.key.clone(), notice.clone())));
    }

    /// Puts the heartbeat. The first one also creates or updates all other notices.
    pub(in crate::view) fn put_heartbeat(&mut self, now: SystemTime, change_set: &mut ChangeSet) {
        if !std::mem::replace(&mut self.notices.are_enabled, true) {
            let clusters: Vec<ClusterName> = self.clusters.keys().cloned().collect();
            clusters.iter().for_each(|cluster| self.update_notices(cluster, now, change_set));
        }
        self.put_notice(HEARTBEAT.into(), time_text(now).into_bytes().into(), change_set);
    }

    /// Updates the notices of a cluster: its config, and the canaries of its complete kinds.
    pub(super) fn update_notices(&mut self, cluster: &ClusterName, now: SystemTime, change_set: &mut ChangeSet) {
        let config = self.clusters.get(cluster).and_then(|record| record.config.clone());
        let Some(config) = config.filter(|_| self.notices.are_enabled) else { return };
        let key = SmolStr::from(cluster_config_key(cluster));
        let value: Arc<[u8]> = cached_cluster_config_value(&config).into();
        if self.notice(&key).is_none_or(|notice| notice.value != value) {
            self.put_notice(key, value, change_set);
        }
        for kind in Kind::ALL {
            let is_published = kind_publication(kind, &config) != KindPublication::Absent;
            let key = SmolStr::from(canary_key(kind, cluster, true));
            let is_complete = self.cursor(&Scope { cluster: cluster.clone(), kind }).is_some();
            match (is_published, self.notice(&key).is_some()) {
                (true, false) if is_complete => self.put_notice(key, time_text(now).into_bytes().into(), change_set),
                (false, true) => self.delete_notice(&key, DeleteReason::Deleted, change_set),
                _ => {}
            }
        }
        self.store_notices(cluster, change_set);
    }

    /// Updates the notices of a cluster when one of its scopes became complete. The canary then
    /// exists during later lists as well, because the mirror keeps the entries.
    pub(super) fn update_scope_notices(&mut self, scope: &Scope, now: SystemTime, change_set: &mut ChangeSet) {
        if self.notices.are_enabled && self.notice(&canary_key(scope.kind, &scope.cluster, true)).is_none() {
            self.update_notices(&scope.cluster, now, change_set);
        }
    }

    /// Deletes the notices of a cluster. Deletes its config first, so that no client starts to read
    /// the cluster.
    pub(super) fn withdraw_notices(&mut self, cluster: &ClusterName, reason: DeleteReason, change_set: &mut ChangeSet) {
        let keys: Vec<SmolStr> = self.cluster_notices(cluster).into_iter().map(|notice| notice.key).collect();
        keys.iter().for_each(|key| self.delete_notice(key, reason, change_set));
    }

    /// Returns the notices of a cluster, in key order.
    fn cluster_notices(&self, cluster: &ClusterName) -> Vec<RawRecord> {
        let prefix = synced_prefix(cluster);
        let canaries = self.notices_from(&prefix).take_while(|notice| notice.key.starts_with(&prefix));
        self.notice(&cluster_config_key(cluster)).into_iter().chain(canaries).cloned().collect()
    }

    /// Copies the notices of a cluster to its record, which is stored.
    fn store_notices(&mut self, cluster: &ClusterName, change_set: &mut ChangeSet) {
        let notices = self.cluster_notices(cluster);
        if let Some(record) = self.clusters.get_mut(cluster)
            && record.notices != notices
        {
            record.notices = notices;
            change_set.clusters.insert(cluster.clone(), Some(record.clone()));
        }
    }

    fn put_notice(&mut self, key: SmolStr, value: Arc<[u8]>, change_set: &mut ChangeSet) {
        self.sequence = self.sequence.next();
        let old = self.notices.by_key.get(&key);
        let (create_sequence, version) = old.map_or((self.sequence, 1), |old| (old.create_sequence, old.version + 1));
        let notice = RawRecord { key: key.clone(), value, create_sequence, last_sequence: self.sequence, version };
        change_set.announcements.push(self.notice_announcement(&key, old, Some(&notice), None));
        self.notices.by_key.insert(key, notice);
    }

    fn delete_notice(&mut self, key: &SmolStr, reason: DeleteReason, change_set: &mut ChangeSet) {
        let Some(old) = self.notices.by_key.remove(key) else { return };
        self.sequence = self.sequence.next();
        change_set.announcements.push(self.notice_announcement(key, Some(&old), None, Some(reason)));
    }

    fn notice_announcement(
        &self,
        key: &SmolStr,
        old: Option<&RawRecord>,
        new: Option<&RawRecord>,
        deleted: Option<DeleteReason>,
    ) -> Announcement {
        let version = |notice: &RawRecord| {
            Version::without_object(Arc::clone(&notice.value), notice.create_sequence, notice.last_sequence, notice.version)
        };
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
