//! One term of the leader: from the moment this process has the lock until it loses it. Compares
//! every kind with the target, then follows the mirror's changes, and withdraws removed clusters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::cluster::{Cluster, ComparisonStage, Withdrawal, WithdrawalStep};
use super::compare::{AllowedChanges, compare};
use super::target::{CREATED_KEYS_GROUP, Target, TargetKey};
use crate::handle::{Follower, LatestChange, NewestChanges, Origin, Reading};
use crate::model::{ClusterName, DeleteReason, EntryKey, Kind, Phase, Sequence};
use crate::wire::cluster_config::{KindPublication, kind_publication};
use crate::wire::keys::{canary_key, cluster_config_key, watched_prefix};
use crate::wire::write::cached_cluster_config_value;
use cilium_kvstore::{DeleteEvent, DeleteWatcher, KvstoreError, keys};

/// Maximum number of changes that are queued before other events are handled.
const CHANGES_AT_ONCE: usize = 1024;

/// Interval between checks for events without a signal: clusters that were added or removed,
/// canaries whose entries are written.
const TICK: Duration = Duration::from_millis(200);

/// Interval between comparisons of cluster configs with the target (as in Cilium).
const CONFIG_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Interval between heartbeats (Cilium's `HeartbeatWriteInterval`).
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(60);

/// Wait after a failed request to the target.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Prefix of all keys that the reflector writes.
const WATCHED_PREFIX: &[u8] = b"cilium/";

/// Maximum time that a term waits for the watch for deletes before it starts without it.
const DELETE_WATCH_WAIT_MAX: Duration = Duration::from_secs(2);

/// Maximum number of queued deletes. Each is a key of about 100 bytes.
const DELETE_QUEUE_LENGTH_MAX: usize = 1024;

/// The state of a term.
pub(super) struct Term {
    target: Arc<Target>,
    signal: watch::Receiver<Sequence>,
    drain_grace: Duration,
    clusters: BTreeMap<ClusterName, Cluster>,
    next_group: u32,
    /// Position up to which all changes of the mirror are queued.
    follower: Follower,
    /// After a failure, the time of the next request.
    retry_at: Instant,
    delete_watcher: DeleteWatcher,
    audit_interval: Duration,
    /// Kind that is compared again during the current check because its last comparison is old.
    audited: Option<(ClusterName, Kind)>,
}

impl Term {
    pub(super) fn new(target: Arc<Target>, signal: watch::Receiver<Sequence>, (drain_grace, audit_interval): (Duration, Duration)) -> Self {
        let retry_at = Instant::now();
        let delete_watcher = target.session.watch_deletes(WATCHED_PREFIX, DELETE_QUEUE_LENGTH_MAX);
        Self {
            target,
            signal,
            drain_grace,
            clusters: BTreeMap::new(),
            next_group: CREATED_KEYS_GROUP + 1,
            follower: Follower::at(Sequence(0)),
            retry_at,
            delete_watcher,
            audit_interval,
            audited: None,
        }
    }

    /// Runs until the future is dropped.
    pub(super) async fn run(&mut self) {
        let target = Arc::clone(&self.target);
        tokio::select! {
            () = target.queue.run() => {}
            () = write_heartbeats(&target) => {}
            () = self.reflect() => {}
        }
    }

    async fn reflect(&mut self) {
        self.follower = Follower::at(self.target.reading().map_or(Sequence(0), |reading| reading.position().sequence));
        let mut tick = interval(TICK);
        let mut config_tick = interval(CONFIG_INTERVAL);
        for timer in [&mut tick, &mut config_tick] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        // the watch for deletes should run before the first comparison, because the comparison
        // finds only keys that were deleted before it
        drop(tokio::time::timeout(DELETE_WATCH_WAIT_MAX, self.delete_watcher.next()).await);
        loop {
            tokio::select! {
                Some(deleted) = self.delete_watcher.next() => self.handle_delete(deleted).await,
                changed = self.signal.changed() => {
                    if changed.is_err() {
                        // the mirror has stopped, and so will this process
                        return std::future::pending().await;
                    }
                    self.queue_changes().await;
                }
                _ = tick.tick() => self.check_clusters().await,
                _ = config_tick.tick() => self.check_configs().await,
            }
        }
    }

    /// Writes keys again that another client deleted.
    async fn handle_delete(&mut self, deleted: DeleteEvent) {
        match deleted {
            DeleteEvent::Key(key) if key.starts_with(keys::SYNCED_PREFIX.as_bytes()) => self.forget_canaries(|canary| canary == key),
            DeleteEvent::Key(key) => {
                let key = TargetKey::parse(&key);
                if self.target.wants(&key) {
                    let group = match &key {
                        TargetKey::Entry(entry) => self.followed_group(entry),
                        TargetKey::Other(_) => None,
                    };
                    self.target.queue.add(key, group.unwrap_or(CREATED_KEYS_GROUP)).await;
                }
            }
            DeleteEvent::Unknown => {
                tracing::info!("reflecting: deletes in the target may have been missed, comparing all keys again");
                self.compare_all_again();
                self.check_configs().await;
            }
        }
    }

    fn compare_all_again(&mut self) {
        self.forget_canaries(|_| true);
        self.clusters.values_mut().filter(|cluster| cluster.withdrawal.is_none()).for_each(Cluster::restart);
    }

    /// Queues the keys that changed in the mirror.
    async fn queue_changes(&mut self) {
        loop {
            let Some(reading) = self.target.reading() else { return };
            let Ok(NewestChanges { changes, up_to }) = self.follower.newest_changes(&reading, CHANGES_AT_ONCE) else {
                tracing::info!("reflecting: too many changes at once, comparing all keys again");
                self.follower = Follower::at(reading.position().sequence);
                self.compare_all_again();
                return;
            };
            for (_, change) in changes {
                if let LatestChange::Deleted(key, DeleteReason::ClusterRemoved) = &change {
                    self.compare_kind_again(key);
                    continue;
                }
                let key = change.into_key();
                if let Some(group) = self.followed_group(&key) {
                    self.target.queue.add(TargetKey::Entry(key), group).await;
                }
            }
            self.follower.advance_to(up_to);
            if self.follower.is_current(&reading) {
                return;
            }
        }
    }

    /// Marks a kind for another comparison after an entry was deleted with its cluster. If the
    /// cluster was removed, its withdrawal deletes the keys. If it only has a new id, the
    /// comparison follows once the cluster was read again.
    fn compare_kind_again(&mut self, key: &EntryKey) {
        let cluster = self.clusters.get_mut(&key.cluster).filter(|cluster| cluster.withdrawal.is_none());
        if let Some(progress) = cluster.and_then(|cluster| cluster.kinds.get_mut(&key.kind)) {
            (progress.compared, progress.followed) = (None, false);
        }
    }

    /// Returns the group of a key whose kind is followed.
    fn followed_group(&self, key: &EntryKey) -> Option<u32> {
        if !key.kind.is_mirrored() {
            return None;
        }
        let cluster = self.clusters.get(&key.cluster).filter(|cluster| cluster.withdrawal.is_none())?;
        cluster.kinds.get(&key.kind).filter(|progress| progress.followed).map(|progress| progress.group)
    }

    /// Checks every cluster: kinds to compare, canaries that are due, clusters to withdraw.
    async fn check_clusters(&mut self) {
        if Instant::now() < self.retry_at {
            return;
        }
        let Some(reading) = self.target.reading() else { return };
        self.audited = self.oldest_comparison();
        if let Err(error) = self.check_all(&reading).await {
            self.retry_at = Instant::now() + RETRY_INTERVAL;
            if self.target.record_error(Some(error.to_string())) {
                tracing::warn!(%error, hint = error.hint(), "reflecting: cannot compare the target; trying again");
            }
        } else if self.target.record_error(None) {
            tracing::info!("reflecting: the target can be compared again");
        }
    }

    async fn check_all(&mut self, reading: &Reading) -> Result<(), KvstoreError> {
        self.forget_lost_canaries();
        let configured = reading.configured_clusters();
        // withdraws clusters that an earlier term of this process wrote and that were removed since
        let written_clusters = self.target.written_clusters();
        for name in written_clusters.iter().filter(|name| !configured.contains(name)) {
            self.track_cluster(name);
        }
        for name in configured.iter().filter(|name| reading.own_cluster() != Some(*name)) {
            self.track_cluster(name);
            if let Some(cluster) = self.clusters.get_mut(name).filter(|cluster| cluster.withdrawal.is_some()) {
                cluster.restart();
            }
            self.reflect_cluster(name, reading).await?;
        }
        if self.target.directory_is_readable() {
            self.withdraw_removed_clusters(&configured).await;
        }
        Ok(())
    }

    fn track_cluster(&mut self, name: &ClusterName) {
        if !self.clusters.contains_key(name) {
            self.clusters.insert(name.clone(), Cluster::new(self.next_group));
            self.next_group = self.next_group.wrapping_add(u32::try_from(Kind::ALL.len()).unwrap_or(0)).max(CREATED_KEYS_GROUP + 1);
        }
    }

    /// Forgets canaries whose lease was lost. They are written again once all of their entries
    /// exist. Otherwise a reader of a wiped target would treat the missing entries as deleted.
    fn forget_lost_canaries(&mut self) {
        for lost in self.target.take_lost_canaries() {
            self.forget_canaries(|key| lost.contains(key));
        }
    }

    /// Forgets canaries that no longer exist or whose entries may be missing.
    fn forget_canaries(&mut self, is_lost: impl Fn(&[u8]) -> bool) {
        for (name, cluster) in self.clusters.iter_mut().filter(|(_, cluster)| cluster.withdrawal.is_none()) {
            for (kind, progress) in &mut cluster.kinds {
                let key = canary_key(*kind, name, true);
                if is_lost(key.as_bytes()) {
                    self.target.remove_created_key(key.as_bytes());
                    progress.has_canary = false;
                }
            }
        }
    }

    async fn reflect_cluster(&mut self, name: &ClusterName, reading: &Reading) -> Result<(), KvstoreError> {
        // the source does not confirm a cluster that is being removed
        let Some(cluster) = reading.cluster(name).filter(|cluster| cluster.phase != Some(Phase::Draining)) else { return Ok(()) };
        let Some(config) = cluster.record.config else { return Ok(()) };
        self.target.set_reflected(name, true);
        let is_live = reading.source(name, Kind::Node).origin == Origin::Live;
        self.write_config(name, cached_cluster_config_value(&config).into(), is_live).await?;
        for kind in Kind::ALL {
            if kind_publication(kind, &config) == KindPublication::Published {
                self.reflect_kind(name, kind, reading).await?;
            } else {
                self.reflect_unpublished_kind(name, kind, reading).await?;
            }
        }
        Ok(())
    }

    /// Writes a cluster config, or adopts an existing one. If this process has not read the cluster
    /// yet, an existing config may be newer and is kept.
    async fn write_config(&self, name: &ClusterName, value: Arc<[u8]>, is_live: bool) -> Result<(), KvstoreError> {
        let key = cluster_config_key(name);
        if self.target.created_value(key.as_bytes()).is_some_and(|created| created == value || !is_live) {
            return Ok(());
        }
        match self.target.session.get(key.as_bytes()).await? {
            Some(found) if found.lease.0 != 0 && (found.value == value || !is_live) => {
                self.target.session.adopt(&found.key, found.lease);
                self.target.set_created_key(&found.key, found.value);
            }
            _ => self.target.write(key.as_bytes(), value),
        }
        Ok(())
    }

    /// Handles a kind that the cluster does not publish: the target has no keys of it, and its
    /// canary is written immediately, as KVStoreMesh does.
    async fn reflect_unpublished_kind(&mut self, name: &ClusterName, kind: Kind, reading: &Reading) -> Result<(), KvstoreError> {
        let Some(progress) = self.clusters.get(name).and_then(|cluster| cluster.kinds.get(&kind)).copied() else { return Ok(()) };
        // nodes are always published, so their origin shows whether the cluster was read
        let Some(stage) = comparison_stage(reading.source(name, Kind::Node).origin) else { return Ok(()) };
        if progress.compared.is_some_and(|compared| compared >= stage) && !self.is_audited(name, kind) {
            if !progress.has_canary {
                self.write_canary(name, kind, None);
            }
            return Ok(());
        }
        if stage == ComparisonStage::Confirmed {
            self.target.session.delete_prefix(watched_prefix(kind, name, true).as_bytes()).await?;
        }
        let canary = self.target.session.get(canary_key(kind, name, true).as_bytes()).await?;
        let canary = canary.filter(|canary| canary.lease.0 != 0);
        if let Some(canary) = &canary {
            self.target.session.adopt(&canary.key, canary.lease);
        }
        self.write_canary(name, kind, canary.map(|canary| canary.value));
        if let Some(progress) = self.clusters.get_mut(name).and_then(|cluster| cluster.kinds.get_mut(&kind)) {
            (progress.compared, progress.compared_at) = (Some(stage), Some(Instant::now()));
        }
        Ok(())
    }

    async fn reflect_kind(&mut self, name: &ClusterName, kind: Kind, reading: &Reading) -> Result<(), KvstoreError> {
        let Some(progress) = self.clusters.get(name).and_then(|cluster| cluster.kinds.get(&kind)).copied() else { return Ok(()) };
        let Some(stage) = comparison_stage(reading.source(name, kind).origin) else { return Ok(()) };
        let is_due = progress.compared.is_none_or(|compared| compared < stage);
        if is_due || self.is_audited(name, kind) {
            let canary = self.target.session.get(canary_key(kind, name, true).as_bytes()).await?;
            let allowed = match (stage, &canary) {
                (ComparisonStage::Confirmed, _) => AllowedChanges::All,
                (ComparisonStage::Restored, None) => AllowedChanges::Fill,
                (ComparisonStage::Restored, Some(_)) => AllowedChanges::Keep,
            };
            let compared = compare(&self.target, reading, (name, kind), progress.group, allowed).await?;
            if is_due || compared.queued + compared.pruned > 0 {
                tracing::info!(cluster = %name, %kind, may_write = allowed != AllowedChanges::Keep, may_delete = allowed == AllowedChanges::All, equal = compared.equal, written = compared.queued, pruned = compared.pruned, "reflecting: compared {kind} of cluster {name} with the target");
            }
            if let Some(progress) = self.clusters.get_mut(name).and_then(|cluster| cluster.kinds.get_mut(&kind)) {
                (progress.compared, progress.compared_at) = (Some(stage), Some(Instant::now()));
                progress.followed = allowed != AllowedChanges::Keep;
            }
            if let Some(canary) = canary.filter(|canary| canary.lease.0 != 0) {
                self.target.session.adopt(&canary.key, canary.lease);
                self.write_canary(name, kind, Some(canary.value));
            }
            return Ok(());
        }
        let is_written = || self.target.queue.pending(progress.group) == 0 && !self.target.queue.is_restoring();
        if !progress.has_canary && reading.is_complete(name, kind) && is_written() {
            self.write_canary(name, kind, None);
        }
        Ok(())
    }

    /// Returns the kind that has gone longest without a comparison, if that is longer than the
    /// audit interval. Considers only kinds that were compared after their source confirmed them.
    fn oldest_comparison(&self) -> Option<(ClusterName, Kind)> {
        let kinds =
            self.clusters.iter().flat_map(|(name, cluster)| cluster.kinds.iter().map(move |(kind, progress)| (name, kind, progress)));
        let confirmed = kinds.filter(|(.., progress)| progress.compared == Some(ComparisonStage::Confirmed));
        let (compared_at, name, kind) = confirmed.filter_map(|(name, kind, progress)| Some((progress.compared_at?, name, kind))).min()?;
        (compared_at.elapsed() >= self.audit_interval).then(|| (name.clone(), *kind))
    }

    fn is_audited(&self, name: &ClusterName, kind: Kind) -> bool {
        self.audited.as_ref().is_some_and(|audited| (&audited.0, audited.1) == (name, kind))
    }

    /// Writes a canary, or keeps the existing value.
    fn write_canary(&mut self, name: &ClusterName, kind: Kind, existing: Option<Arc<[u8]>>) {
        let key = canary_key(kind, name, true);
        match existing {
            Some(value) => {
                self.target.set_created_key(key.as_bytes(), value);
            }
            None => self.target.write_time(key.as_bytes()),
        }
        if let Some(progress) = self.clusters.get_mut(name).and_then(|cluster| cluster.kinds.get_mut(&kind)) {
            progress.has_canary = true;
        }
    }

    /// Compares the cluster configs with the target, because another client may have changed or
    /// deleted them.
    async fn check_configs(&mut self) {
        for name in self.clusters.keys() {
            let key = cluster_config_key(name);
            let Some(created) = self.target.created_value(key.as_bytes()) else { continue };
            match self.target.session.get(key.as_bytes()).await {
                Ok(found) if found.as_ref().is_some_and(|found| found.value == created && found.lease.0 != 0) => {}
                Ok(_) => self.target.queue.add_now(TargetKey::Other(key.into_bytes()), CREATED_KEYS_GROUP),
                Err(error) => {
                    tracing::debug!(cluster = %name, %error, "reflecting: cannot compare the config of cluster {name}");
                    return;
                }
            }
        }
    }

    /// Withdraws clusters without a client file, step by step. Keys that only an earlier process
    /// wrote expire with their leases.
    async fn withdraw_removed_clusters(&mut self, configured: &[ClusterName]) {
        let mut withdrawn = Vec::new();
        for (name, cluster) in self.clusters.iter_mut().filter(|(name, _)| !configured.contains(name)) {
            let config_key = cluster_config_key(name);
            let withdrawal = cluster.withdrawal.get_or_insert_with(|| {
                tracing::info!(cluster = %name, grace_s = self.drain_grace.as_secs_f64(), "reflecting: cluster {name} has no client file any more, withdrawing it");
                self.target.set_reflected(name, false);
                Withdrawal::new(name, config_key, self.drain_grace)
            });
            if Instant::now() < withdrawal.due {
                continue;
            }
            let result = match withdrawal.next_step() {
                None => {
                    withdrawn.push(name.clone());
                    continue;
                }
                Some(WithdrawalStep::Grace(_)) => Ok(()),
                Some(WithdrawalStep::Config(key)) => {
                    self.target.remove_created_key(key.as_bytes());
                    self.target.session.delete(key.as_bytes()).await.map(drop)
                }
                Some(WithdrawalStep::Prefix(prefix)) => {
                    for kind in Kind::ALL {
                        self.target.remove_created_key(canary_key(kind, name, true).as_bytes());
                    }
                    self.target.session.delete_prefix(prefix.as_bytes()).await.map(drop)
                }
            };
            match result {
                Ok(()) => withdrawal.step_succeeded(),
                Err(error) => {
                    tracing::warn!(cluster = %name, %error, "reflecting: cannot withdraw cluster {name}; trying again");
                    withdrawal.step_failed();
                }
            }
        }
        for name in withdrawn {
            tracing::info!(cluster = %name, "reflecting: cluster {name} is withdrawn");
            self.clusters.remove(&name);
            self.target.set_withdrawn(&name);
        }
    }
}

/// Writes the heartbeat independently of everything else: comparing a large target takes minutes,
/// and readers leave an etcd without a heartbeat after two.
async fn write_heartbeats(target: &Target) {
    let mut ticks = interval(HEARTBEAT_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        target.write_time(keys::HEARTBEAT_PATH.as_bytes());
    }
}

/// Returns the stage that a comparison reaches now; `None` if the source was never read.
fn comparison_stage(origin: Origin) -> Option<ComparisonStage> {
    match origin {
        Origin::Live => Some(ComparisonStage::Confirmed),
        Origin::Restored => Some(ComparisonStage::Restored),
        // a process that serves a dump does not reflect
        Origin::NeverRead | Origin::Dump => None,
    }
}
