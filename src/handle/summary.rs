//! Facts about all clusters that many answers need: phases, origins, and the clusters that were not
//! completely read.
//!
//! They change only with a phase, a config, an origin or a client file. [`Reading::summary`]
//! therefore computes them once per such change, and not for each request. Ages are not among them:
//! they are computed from the time of each cluster's last contact.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::ClusterStatuses;
use super::reading::Reading;
use crate::model::{ClusterId, ClusterName, ClusterStatus, Kind, Origin, Phase};

/// The newest summary, which all readings of one mirror share. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct SummaryCache(Arc<Mutex<Option<Arc<MeshSummary>>>>);

/// Facts about all clusters that are known at one position.
#[derive(Debug)]
pub struct MeshSummary {
    source_version: u64,
    statuses: ClusterStatuses,
    /// Every known cluster, in order of names.
    pub clusters: Vec<ClusterSummary>,
    /// Number of clusters in each phase, without the clusters in `unannounced`.
    phases: BTreeMap<Phase, u64>,
    /// Statuses of the clusters whose tasks have started and whose phases the committer has not
    /// received yet.
    unannounced: Vec<watch::Receiver<ClusterStatus>>,
    /// Clusters of which neither the ipcache nor the nodes were ever read.
    pub(super) never_read: Vec<ClusterName>,
    /// Clusters of which neither the ipcache nor the nodes are confirmed, and one is restored.
    pub(super) restored: Vec<ClusterName>,
    /// Clusters whose nodes were never read.
    pub unread_nodes: Vec<ClusterName>,
    /// True if every cluster with a client file is live, and every kind of it is confirmed.
    pub is_synced: bool,
}

/// Facts about one cluster.
#[derive(Debug)]
pub struct ClusterSummary {
    /// Name of the cluster.
    pub name: ClusterName,
    /// Origin of each kind, in the order of [`Kind::ALL`].
    pub origins: [Origin; Kind::ALL.len()],
    /// Id in the stored cluster config.
    pub config_id: Option<ClusterId>,
    /// Status of the cluster's task. `None` if the cluster has no client file.
    pub status: Option<watch::Receiver<ClusterStatus>>,
}

impl SummaryCache {
    /// Returns the summary for a reading. Computes it if anything changed since the last call.
    fn get(&self, reading: &Reading) -> Arc<MeshSummary> {
        let (version, statuses) = (reading.published().view.source_version(), reading.statuses());
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = |summary: &&Arc<MeshSummary>| summary.source_version == version && Arc::ptr_eq(&summary.statuses, statuses);
        if let Some(summary) = newest.as_ref().filter(is_current) {
            return Arc::clone(summary);
        }
        let summary = Arc::new(MeshSummary::new(reading, version));
        *newest = Some(Arc::clone(&summary));
        summary
    }
}

impl MeshSummary {
    fn new(reading: &Reading, source_version: u64) -> Self {
        let (view, statuses) = (&reading.published().view, reading.statuses());
        let (mut phases, mut unannounced, mut live_count) = (BTreeMap::new(), Vec::new(), 0);
        let (mut never_read, mut restored, mut unread_nodes) = (Vec::new(), Vec::new(), Vec::new());
        let mut clusters = Vec::new();
        for name in view.cluster_names().into_iter().filter(|name| reading.is_known(name)) {
            let origins = Kind::ALL.map(|kind| reading.origin(&name, kind));
            let status = statuses.get(&name).cloned();
            let phase = view.phase(&name);
            match (phase, &status) {
                (Some(phase), _) => *phases.entry(phase).or_default() += 1,
                (None, Some(status)) => unannounced.push(status.clone()),
                (None, None) => {}
            }
            let (ip, node) = (origins[Kind::Ip.index()], origins[Kind::Node.index()]);
            match ip.min(node) {
                Origin::NeverRead => never_read.push(name.clone()),
                Origin::Restored => restored.push(name.clone()),
                Origin::Live | Origin::Dump => {}
            }
            if node == Origin::NeverRead {
                unread_nodes.push(name.clone());
            }
            let is_live = phase == Some(Phase::Live) && origins.iter().all(|origin| *origin == Origin::Live);
            live_count += usize::from(is_live && status.is_some());
            let config_id = view.cluster(&name).and_then(|record| record.config.as_ref()).map(|config| config.id);
            clusters.push(ClusterSummary { name, origins, config_id, status });
        }
        let is_synced = live_count == statuses.len();
        let statuses = Arc::clone(statuses);
        Self { source_version, statuses, clusters, phases, unannounced, never_read, restored, unread_nodes, is_synced }
    }

    /// Returns a cluster by its name.
    #[must_use]
    pub fn cluster(&self, name: &ClusterName) -> Option<&ClusterSummary> {
        let index = self.clusters.binary_search_by(|cluster| cluster.name.cmp(name)).ok()?;
        self.clusters.get(index)
    }
}

impl Reading {
    /// Returns the facts about all clusters at this position.
    #[must_use]
    pub fn summary(&self) -> Arc<MeshSummary> {
        self.summary_cache().get(self)
    }

    /// Returns the number of clusters in each phase.
    #[must_use]
    pub fn phase_counts(&self) -> BTreeMap<Phase, u64> {
        let summary = self.summary();
        let mut counts = summary.phases.clone();
        for status in &summary.unannounced {
            *counts.entry(status.borrow().phase).or_default() += 1;
        }
        counts
    }

    /// Returns the age of a cluster's data, as [`Reading::source`] does.
    #[must_use]
    pub fn age_of(&self, cluster: &ClusterSummary) -> Option<Duration> {
        let age = cluster.status.as_ref().and_then(|status| {
            let status = status.borrow();
            status.last_contact.map(|contact| status.writer.age(contact, self.now()))
        });
        age.or_else(|| stored_age(self.published().view.cluster(&cluster.name)?.last_contact))
    }
}

/// Returns the age of data whose source answered last in an earlier process.
pub(super) fn stored_age(last_contact: Option<SystemTime>) -> Option<Duration> {
    last_contact.map(|time| SystemTime::now().duration_since(time).unwrap_or_default())
}

#[cfg(test)]
mod tests;
