//! Checks during the wait for a cluster config (docs/develop/invariants.md, 3).
//!
//! Each check reports which clusters have a config or nodes in this etcd. If the etcd belongs to
//! another cluster, state that an earlier start stored without a config is removed.

use std::time::{Duration, Instant};

use super::super::ClusterState;
use super::ClusterConnection;
use crate::clustermesh::connection_error::ConnectionError;
use crate::clustermesh::etcd_clusters::find_clusters_in_etcd;
use crate::model::{ClusterName, Kind, Revision, Scope};
use crate::wire::cluster_config::parse_cluster_config;
use crate::wire::keys;
use cilium_kvstore::{Connection, KvstoreError};

/// Number of checks within the wait for a config: one every 10 s by default.
const CHECKS_PER_WAIT: u32 = 18;

/// Shortest interval between two checks, for tests with short waits.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Checks of an etcd without a readable config of the cluster.
pub(super) struct MissingConfigCheck<'a> {
    connection: &'a ClusterConnection<'a>,
    etcd: &'a Connection,
    other: Option<OtherConfig>,
}

/// Config of another cluster in this etcd.
struct OtherConfig {
    cluster: ClusterName,
    /// Create revision, which changes if the config is deleted and written again.
    created: Revision,
    /// Time at which this connection saw it first.
    since: Instant,
}

impl<'a> MissingConfigCheck<'a> {
    pub(super) const fn new(connection: &'a ClusterConnection<'a>, etcd: &'a Connection) -> Self {
        Self { connection, etcd, other: None }
    }

    pub(super) fn interval(&self) -> Duration {
        (self.connection.task.options.timing.cluster.legacy_wait / CHECKS_PER_WAIT).max(CHECK_INTERVAL_MIN)
    }

    /// Returns whether stored state will be removed if nothing changes.
    pub(super) const fn awaits_removal(&self) -> bool {
        self.other.is_some()
    }

    /// Reports which clusters have a config or nodes in this etcd, and removes stored state when
    /// that is due.
    pub(super) async fn check(&mut self, denied: bool, state: &mut ClusterState) -> Result<(), ConnectionError> {
        let reporter = &self.connection.task.context.reporter;
        let missing = find_clusters_in_etcd(self.etcd, &self.connection.task.name, denied).await?;
        reporter.record_contact();
        self.track_other_config(&missing.others, state).await?;
        reporter.set_missing_config(missing);
        Ok(())
    }

    /// Removes the stored state of the cluster once the config of another cluster has been in this
    /// etcd for the legacy wait.
    ///
    /// The time counts within one connection, and so within one run of one etcd process. It
    /// restarts if the other config was deleted in between.
    async fn track_other_config(&mut self, others: &[ClusterName], state: &mut ClusterState) -> Result<(), ConnectionError> {
        if !self.is_stored_without_config(state) {
            self.other = None;
            return Ok(());
        }
        let Some(known) = &self.other else {
            self.other = self.find_other_config(others).await?;
            return Ok(());
        };
        if self.config_create_revision(&known.cluster).await? != Some(known.created) {
            self.other = self.find_other_config(others).await?;
        } else if known.since.elapsed() >= self.connection.task.options.timing.cluster.legacy_wait {
            let (cluster, other) = (&self.connection.task.name, &known.cluster);
            tracing::warn!(%cluster, %other, "removing the stored entries of cluster {cluster}: they were read without a cluster config from an etcd that belongs to cluster {other}");
            self.connection.remove_stored(state).await?;
            self.other = None;
        }
        Ok(())
    }

    async fn find_other_config(&self, others: &[ClusterName]) -> Result<Option<OtherConfig>, ConnectionError> {
        for cluster in others {
            if let Some(created) = self.config_create_revision(cluster).await? {
                return Ok(Some(OtherConfig { cluster: cluster.clone(), created, since: Instant::now() }));
            }
        }
        Ok(None)
    }

    /// Returns the create revision of a cluster's config, if the user may read it and it is valid.
    async fn config_create_revision(&self, cluster: &ClusterName) -> Result<Option<Revision>, ConnectionError> {
        match self.etcd.get(keys::cluster_config_key(cluster).as_bytes(), None).await {
            Ok((config, _)) => Ok(config.filter(|config| parse_cluster_config(&config.value).is_ok()).map(|config| config.create_revision)),
            Err(KvstoreError::PermissionDenied { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether the store has state of the cluster and all of it was read without a config,
    /// judging by the cluster's record and cursors.
    fn is_stored_without_config(&self, state: &ClusterState) -> bool {
        let task = self.connection.task;
        let view = &task.context.mirror.current().view;
        let scopes = Kind::ALL.map(|kind| Scope { cluster: task.name.clone(), kind });
        let cursors = || scopes.iter().filter_map(|scope| view.cursor(scope));
        state.record.config.is_none()
            && cursors().all(|cursor| !cursor.cached && cursor.canary.is_none())
            && (cursors().next().is_some() || scopes.iter().any(|scope| view.scope(scope).is_some_and(|state| state.entry_count > 0)))
    }
}
