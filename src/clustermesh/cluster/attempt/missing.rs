//! What is done while a cluster config cannot be read: whose etcd this is gets reported, and what an earlier start stored of the cluster is removed
//! where it was never the cluster's (docs/develop/invariants.md, 3).

use std::time::{Duration, Instant};

use super::super::Memory;
use super::Attempt;
use crate::clustermesh::failure::AttemptError;
use crate::clustermesh::owner::find_owner;
use crate::kvstore::{Connection, KvstoreError};
use crate::model::{ClusterName, Kind, Revision, Scope};
use crate::wire::cluster_config::parse_cluster_config;
use crate::wire::keys;

/// How many times within the wait for a config it is checked whose etcd this is: every 10 s by default.
const CHECKS_PER_WAIT: u32 = 18;

/// Shortest interval between two checks, for tests with short waits.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// A connection to an etcd without a readable config of the cluster.
pub(super) struct MissingConfigCheck<'a> {
    attempt: &'a Attempt<'a>,
    connection: &'a Connection,
    other: Option<OtherConfig>,
}

/// The config of another cluster in this etcd.
struct OtherConfig {
    cluster: ClusterName,
    /// A config that was deleted and written again has another one.
    created: Revision,
    /// When it was first seen over this connection.
    since: Instant,
}

impl<'a> MissingConfigCheck<'a> {
    pub(super) const fn new(attempt: &'a Attempt<'a>, connection: &'a Connection) -> Self {
        Self { attempt, connection, other: None }
    }

    /// Returns the time between two checks.
    pub(super) fn interval(&self) -> Duration {
        (self.attempt.task.options.timing.legacy_wait / CHECKS_PER_WAIT).max(CHECK_INTERVAL_MIN)
    }

    /// Returns whether stored state is about to be removed, unless something happens meanwhile.
    pub(super) const fn awaits_removal(&self) -> bool {
        self.other.is_some()
    }

    /// Reports whose etcd this is, and removes stored state once that is due.
    pub(super) async fn check(&mut self, denied: bool, memory: &mut Memory) -> Result<(), AttemptError> {
        let reporter = &self.attempt.task.surroundings.reporter;
        let missing = find_owner(self.connection, &self.attempt.task.name, denied).await?;
        reporter.contact();
        self.follow_other(&missing.others, memory).await?;
        reporter.config_missing(missing);
        Ok(())
    }

    /// Removes what is stored of the cluster once another cluster's config has been in this etcd for as long as legacy clusters are waited for. The
    /// time counts within one connection, thus within one life of one etcd process, and starts again when the config was deleted meanwhile.
    async fn follow_other(&mut self, others: &[ClusterName], memory: &mut Memory) -> Result<(), AttemptError> {
        if !self.is_stored_without_config(memory) {
            self.other = None;
            return Ok(());
        }
        let Some(known) = &self.other else {
            self.other = self.find_other(others).await?;
            return Ok(());
        };
        if self.config_created(&known.cluster).await? != Some(known.created) {
            self.other = self.find_other(others).await?;
        } else if known.since.elapsed() >= self.attempt.task.options.timing.legacy_wait {
            let (cluster, other) = (&self.attempt.task.name, &known.cluster);
            tracing::warn!(%cluster, %other, "removing what an earlier start stored of the cluster without a cluster config: its etcd describes another cluster");
            self.attempt.remove_stored(memory).await?;
            self.other = None;
        }
        Ok(())
    }

    async fn find_other(&self, others: &[ClusterName]) -> Result<Option<OtherConfig>, AttemptError> {
        for cluster in others {
            if let Some(created) = self.config_created(cluster).await? {
                return Ok(Some(OtherConfig { cluster: cluster.clone(), created, since: Instant::now() }));
            }
        }
        Ok(None)
    }

    /// Returns the create revision of a cluster's config, if the user may read it and it is one.
    async fn config_created(&self, cluster: &ClusterName) -> Result<Option<Revision>, AttemptError> {
        match self.connection.get(keys::cluster_config_key(cluster).as_bytes(), None).await {
            Ok((found, _)) => Ok(found.filter(|found| parse_cluster_config(&found.value).is_ok()).map(|found| found.create_revision)),
            Err(KvstoreError::PermissionDenied { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether something is stored of the cluster, and nothing of it was read under a config: neither its record nor any cursor shows one.
    fn is_stored_without_config(&self, memory: &Memory) -> bool {
        let task = self.attempt.task;
        let view = &task.surroundings.mirror.current().view;
        let scopes = Kind::ALL.map(|kind| Scope { cluster: task.name.clone(), kind });
        let cursors = || scopes.iter().filter_map(|scope| view.cursor(scope));
        memory.record.config.is_none()
            && cursors().all(|cursor| !cursor.cached && cursor.canary.is_none())
            && (cursors().next().is_some() || scopes.iter().any(|scope| view.scope(scope).is_some_and(|state| state.entry_count > 0)))
    }
}
