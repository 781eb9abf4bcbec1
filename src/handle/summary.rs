//! Facts about all clusters that many answers need: phases, origins, and the clusters that were not
//! completely read.
//!
//! They change only with a phase, a config, an origin or a client file. The [`SummaryCache`]
//! therefore computes them once per such change, and not for each request (`answers/summary`). Ages
//! are not among them: they are computed from the time of each cluster's last contact.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::ClusterStatuses;
use crate::model::{ClusterId, ClusterName, ClusterStatus, Kind, Origin, Phase};

/// The newest summary, which all readings of one mirror share. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct SummaryCache(Arc<Mutex<Option<Arc<MeshSummary>>>>);

/// Facts about all clusters that are known at one position.
#[derive(Debug)]
pub struct MeshSummary {
    pub(super) source_version: u64,
    pub(super) statuses: ClusterStatuses,
    /// Every known cluster, in order of names.
    pub clusters: Vec<ClusterSummary>,
    /// Number of clusters in each phase, without the clusters in `unannounced`.
    pub(super) phases: BTreeMap<Phase, u64>,
    /// Statuses of the clusters whose tasks have started and whose phases the committer has not
    /// received yet.
    pub(super) unannounced: Vec<watch::Receiver<ClusterStatus>>,
    /// Clusters of which neither the ipcache nor the nodes were ever read.
    pub(super) never_read: Vec<ClusterName>,
    /// Clusters of which neither the ipcache nor the nodes are confirmed, and one is restored.
    pub(super) restored: Vec<ClusterName>,
    /// Clusters whose nodes were never read.
    pub unread_nodes: Vec<ClusterName>,
    /// True if every cluster with a client file is live, and every kind of it is confirmed.
    pub is_synced: bool,
    /// True if the first list of a kind of some cluster is being read.
    pub has_first_lists: bool,
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
    /// Returns the summary for a version of the view and the statuses. Calls `summarize` if either
    /// has changed since the last call.
    pub(super) fn get(&self, version: u64, statuses: &ClusterStatuses, summarize: impl FnOnce() -> MeshSummary) -> Arc<MeshSummary> {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = |summary: &&Arc<MeshSummary>| summary.source_version == version && Arc::ptr_eq(&summary.statuses, statuses);
        if let Some(summary) = newest.as_ref().filter(is_current) {
            return Arc::clone(summary);
        }
        let summary = Arc::new(summarize());
        *newest = Some(Arc::clone(&summary));
        summary
    }
}

impl MeshSummary {
    /// Returns a cluster by its name.
    #[must_use]
    pub fn cluster(&self, name: &ClusterName) -> Option<&ClusterSummary> {
        let index = self.clusters.binary_search_by(|cluster| cluster.name.cmp(name)).ok()?;
        self.clusters.get(index)
    }
}
