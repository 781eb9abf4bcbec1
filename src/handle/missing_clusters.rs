//! Detects that there is no remote cluster to mirror, and finds the reason.
//!
//! A cluster counts if its client file in the config directory can be used. The own cluster never
//! counts: its file in the directory is ignored, and `--local-etcd` adds no remote cluster. The
//! files of the clusters of `--ignore-cluster` are ignored too.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::Handle;
use crate::model::ClusterName;

/// Time without a cluster after which a finding is reported. Mounting a Secret again or adding the
/// first cluster takes less.
const MISSING_CLUSTERS_WAIT: Duration = Duration::from_secs(60);

/// Location of the client files of remote clusters, and whether there must be any.
#[derive(Debug, Clone)]
pub struct ClientFileLocation {
    /// Path of the config directory.
    pub directory: PathBuf,
    /// True if meshkeep may start before any cluster exists (`--allow-no-clusters`).
    pub allow_no_clusters: bool,
    /// Time without a cluster after which a finding is reported.
    pub wait: Duration,
    /// Clusters whose files are ignored (`--ignore-cluster`).
    pub ignored_clusters: Vec<ClusterName>,
}

impl Default for ClientFileLocation {
    fn default() -> Self {
        Self { directory: PathBuf::new(), allow_no_clusters: false, wait: MISSING_CLUSTERS_WAIT, ignored_clusters: Vec::new() }
    }
}

/// Time at which the lack of clusters was first detected; `None` while there is a cluster. Cheap to
/// clone.
#[derive(Debug, Clone, Default)]
pub(super) struct MissingClustersTimer(Arc<Mutex<Option<SystemTime>>>);

/// State in which there is no remote cluster to mirror, although there should be one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingClusters {
    /// Reason, which names the directory.
    pub reason: String,
    /// Time at which this was first seen.
    pub since: SystemTime,
    /// True if it has lasted long enough for a finding.
    pub is_overdue: bool,
}

impl Handle {
    /// Returns the location of the client files.
    #[must_use]
    pub fn cluster_files(&self) -> &ClientFileLocation {
        &self.0.cluster_files
    }

    /// Sets the location of the client files.
    #[must_use]
    pub fn with_cluster_files(self, files: ClientFileLocation) -> Self {
        self.with(|state| state.cluster_files = files)
    }

    /// Returns why there is no remote cluster to mirror. `None` if there is one, if there need not
    /// be any, and before the directory was read.
    #[must_use]
    pub fn missing_clusters(&self) -> Option<MissingClusters> {
        let reason = self.missing_clusters_reason().filter(|_| !self.cluster_files().allow_no_clusters);
        let mut since = self.0.missing_clusters_timer.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(reason) = reason else {
            *since = None;
            return None;
        };
        let now = SystemTime::now();
        let since = *since.get_or_insert(now);
        // after the clock was set back, the wait is longer
        let is_overdue = now.duration_since(since).is_ok_and(|lasted| lasted >= self.cluster_files().wait);
        Some(MissingClusters { reason, since, is_overdue })
    }

    fn missing_clusters_reason(&self) -> Option<String> {
        let (state, directory) = (self.directory(), self.cluster_files().directory.display());
        let own = self.0.process.own_cluster.as_ref();
        let statuses = Arc::clone(&self.0.process.clusters.borrow());
        let mut unusable = state.invalid;
        for (name, status) in statuses.iter().filter(|(name, _)| own != Some(*name)) {
            match &status.borrow().file_error {
                Some(error) => drop(unusable.insert(name.to_string(), error.clone())),
                None => return None,
            }
        }
        if let Some(error) = &state.error {
            return Some(format!("{directory} cannot be read: {error}"));
        }
        if !state.readable {
            return None;
        }
        let own = own.map(|own| format!(" except that of {own}, which is the own cluster and is not mirrored")).unwrap_or_default();
        let ignored: Vec<&str> = self.cluster_files().ignored_clusters.iter().map(ClusterName::as_str).collect();
        let ignored = if ignored.is_empty() { String::new() } else { format!("; --ignore-cluster leaves out {}", ignored.join(", ")) };
        Some(match (unusable.first_key_value(), unusable.len()) {
            (None, _) => format!("{directory} has no client file of a cluster{own}{ignored}"),
            (Some((file, reason)), 1) => format!("the only client file in {directory}, {file}, cannot be used: {reason}"),
            (Some((file, reason)), count) => format!("none of the {count} client files in {directory} can be used; {file}: {reason}"),
        })
    }
}
