//! The cluster config over one connection: waits for it, validates it, and follows it while the
//! cluster is mirrored.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use super::super::ClusterState;
use super::ClusterConnection;
use super::missing::MissingConfigCheck;
use crate::clustermesh::connection_error::ConnectionError;
use crate::model::{ClusterConfig, Command, DeleteReason, Kind, Phase};
use crate::wire::cluster_config::{parse_cluster_config, validate_cluster_config, validate_own_config};
use crate::wire::keys;
use cilium_kvstore::{Connection, Event, FollowedRange, KeyValue, KvstoreError};

/// Cluster config as it was read, with the watch that follows its key.
pub(super) struct ReadConfig {
    /// `None` if the cluster has no config and is read as a legacy one.
    pub(super) config: Option<(ClusterConfig, KeyValue)>,
    follow: FollowedRange,
}

impl ClusterConnection<'_> {
    /// Waits for a usable cluster config.
    ///
    /// A cluster without a config is read only if `--legacy-clusters` names it, it never had a
    /// config, and the wait is over (docs/develop/invariants.md, 3).
    pub(super) async fn read_config(&self, connection: &Connection, state: &mut ClusterState) -> Result<ReadConfig, ConnectionError> {
        let key = keys::cluster_config_key(&self.task.name);
        let mut missing = MissingConfigCheck::new(self, connection);
        let started = Instant::now();
        loop {
            match connection.follow(key.as_bytes(), None).await {
                Ok((current, follow)) => return self.await_config(current, follow, missing, state).await,
                Err(KvstoreError::PermissionDenied { .. }) => self.report_missing_config(state),
                Err(error) => return Err(error.into()),
            }
            missing.check(true, state).await?;
            if started.elapsed() >= self.missing_limit(&missing) {
                return Err(ConnectionError::ConfigMissing);
            }
            sleep(missing.interval()).await;
        }
    }

    async fn await_config(
        &self,
        current: Vec<KeyValue>,
        mut follow: FollowedRange,
        mut missing: MissingConfigCheck<'_>,
        state: &mut ClusterState,
    ) -> Result<ReadConfig, ConnectionError> {
        let started = Instant::now();
        // an unusable config is still a config: such a cluster is not a legacy one
        let mut exists = !current.is_empty();
        if let Some(config) = current.into_iter().next().and_then(|key_value| self.parse_config(key_value)) {
            return Ok(ReadConfig { config: Some(config), follow });
        }
        if !exists {
            self.report_missing_config(state);
        }
        let is_legacy = self.is_legacy(state);
        let mut tick = interval(missing.interval());
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let deadline = started + self.missing_limit(&missing);
            tokio::select! {
                events = follow.next() => {
                    let events = events?;
                    exists = events.last().map_or(exists, |event| matches!(event, Event::Put(_)));
                    if let Some(config) = self.newest_config(events) {
                        return Ok(ReadConfig { config: Some(config), follow });
                    }
                }
                _ = tick.tick(), if !exists && !is_legacy => missing.check(false, state).await?,
                () = sleep_until(deadline.into()) => {
                    if exists {
                        let (key, wait) = (keys::cluster_config_key(&self.task.name), self.task.options.timing.cluster.legacy_wait);
                        let text = format!("{key} could not be used for {wait:?}: meshkeep keeps the last known state of the cluster");
                        return Err(ConnectionError::Cluster(text));
                    }
                    return if is_legacy { Ok(ReadConfig { config: None, follow }) } else { Err(ConnectionError::ConfigMissing) };
                }
            }
        }
    }

    /// Returns whether the cluster is read without a config.
    fn is_legacy(&self, state: &ClusterState) -> bool {
        state.record.config.is_none() && self.task.options.legacy_clusters.contains(&self.task.name)
    }

    /// Returns the time that one connection waits for a config: the legacy wait, or twice as long
    /// if stored state is about to be removed. Another connection follows, because the address may
    /// lead to another etcd by then.
    fn missing_limit(&self, missing: &MissingConfigCheck<'_>) -> Duration {
        let wait = self.task.options.timing.cluster.legacy_wait;
        if missing.awaits_removal() { wait * 2 } else { wait }
    }

    fn report_missing_config(&self, state: &ClusterState) {
        let reporter = &self.task.context.reporter;
        let (had_config, is_legacy) = (state.record.config.is_some(), self.is_legacy(state));
        reporter.set_config_refusal(None);
        reporter.change_status(|status| {
            status.config_deleted = had_config;
            status.connected = is_legacy;
        });
        if is_legacy {
            let key = keys::cluster_config_key(&self.task.name);
            let reason = format!("waiting for {key}; the cluster is in --legacy-clusters, so meshkeep will read it without a config");
            reporter.enter_waiting(Phase::ReadingConfig, &reason);
        }
    }

    fn newest_config(&self, events: Vec<Event>) -> Option<(ClusterConfig, KeyValue)> {
        let newest = events.into_iter().filter_map(|event| match event {
            Event::Put(put) => self.parse_config(put),
            Event::Delete { .. } => {
                self.task.context.reporter.set_config_refusal(None);
                None
            }
        });
        newest.last()
    }

    fn parse_config(&self, key_value: KeyValue) -> Option<(ClusterConfig, KeyValue)> {
        match parse_cluster_config(&key_value.value) {
            Ok(config) => Some((config, key_value)),
            Err(reason) => {
                let key = keys::cluster_config_key(&self.task.name);
                self.task.context.reporter.enter_waiting(Phase::ReadingConfig, &format!("{key} cannot be used: {reason}"));
                self.task.context.reporter.set_config_refusal(Some((&key_value.value, &reason)));
                None
            }
        }
    }

    /// Validates the cluster config, reserves its id, and removes entries that were read under
    /// another id (docs/develop/protocol.md §3.3, step 6).
    pub(super) async fn accept_config(
        &self,
        read: Option<&(ClusterConfig, KeyValue)>,
        state: &mut ClusterState,
    ) -> Result<(), ConnectionError> {
        let reporter = &self.task.context.reporter;
        if let Some((config, key_value)) = read {
            let refuse = |reason: String| {
                reporter.set_config_refusal(Some((&key_value.value, &reason)));
                reason
            };
            let options = &self.task.options;
            reporter.change_status(|status| {
                status.claimed_id = Some(config.id);
                status.config_deleted = false;
            });
            let validate = if options.local.as_ref() == Some(&self.task.name) { validate_own_config } else { validate_cluster_config };
            validate(config, options.own_id, options.max_connected_clusters).map_err(|reason| {
                ConnectionError::Cluster(format!("the config of cluster {} is refused: {}", self.task.name, refuse(reason)))
            })?;
            let old_id = state.record.config.as_ref().map(|config| config.id);
            if let Some(old_id) = old_id.filter(|old_id| *old_id != config.id) {
                tracing::warn!(cluster = %self.task.name, old_id = old_id.0, new_id = config.id.0, "the id of cluster {} changed: removing its entries", self.task.name);
                reporter.enter_phase(Phase::Draining);
                self.remove_stored(state).await?;
                self.task.ids.release(&self.task.name);
                state.record.config = None;
            }
            self.task.ids.reserve(config.id, &self.task.name).map_err(|error| ConnectionError::Cluster(refuse(error.to_string())))?;
            state.record.config = Some(config.clone());
        }
        reporter.change_status(|status| {
            status.config.clone_from(&state.record.config);
            status.config_retrieved = read.is_some();
            status.connected = true;
        });
        reporter.set_config_refusal(None);
        reporter.forget_missing_config();
        self.store_record(state).await
    }

    /// Removes the cluster's entries from the mirror. The cluster stays part of the mesh.
    pub(super) async fn remove_stored(&self, state: &mut ClusterState) -> Result<(), ConnectionError> {
        self.send(Command::Remove { cluster: self.task.name.clone(), reason: DeleteReason::Deleted }).await?;
        state.forget();
        Kind::ALL.into_iter().for_each(|kind| self.task.context.reporter.set_held_count(kind, 0));
        Ok(())
    }

    /// Watches the cluster config, and ends the connection when it changes (`clustercfg.go`). A
    /// deleted config does not end it, but deletes are no longer trusted (invariant 4).
    pub(super) async fn watch_config(&self, mut read: ReadConfig) -> Result<Infallible, ConnectionError> {
        let reporter = &self.task.context.reporter;
        loop {
            for event in read.follow.next().await? {
                let Event::Put(put) = event else {
                    reporter.set_writer_key_missing(None, read.config.is_some());
                    reporter.set_config_refusal(None);
                    continue;
                };
                reporter.set_writer_key_missing(None, false);
                let is_unchanged = read.config.as_ref().is_some_and(|(_, current)| current.value == put.value);
                match parse_cluster_config(&put.value) {
                    Ok(_) if is_unchanged => reporter.set_config_refusal(None),
                    Ok(_) => return Err(ConnectionError::Cluster("the cluster config changed".to_owned())),
                    // an unreadable config changes nothing (`clustercfg.go`): it is only reported
                    Err(reason) => reporter.set_config_refusal(Some((&put.value, &reason))),
                }
            }
        }
    }
}
