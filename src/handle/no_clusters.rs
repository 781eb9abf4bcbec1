//! Detects that there is no remote cluster to mirror, and why.
//!
//! A cluster counts if its client file in the config directory can be used. The own cluster does
//! not count, either with an ignored file there or with `--local-etcd`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::Handle;

/// Time without a cluster after which that is a finding. A Secret that is mounted again, or a first
/// cluster that is being added, takes less.
const NO_CLUSTERS_WAIT: Duration = Duration::from_secs(60);

/// Location of the client files of remote clusters, and whether there must be any.
#[derive(Debug, Clone)]
pub struct ClusterFiles {
    /// Path of the config directory.
    pub directory: PathBuf,
    /// True if meshkeep may start before any cluster exists (`--allow-no-clusters`).
    pub may_be_none: bool,
    /// Time without a cluster after which that is a finding.
    pub wait: Duration,
}

impl Default for ClusterFiles {
    fn default() -> Self {
        Self { directory: PathBuf::new(), may_be_none: false, wait: NO_CLUSTERS_WAIT }
    }
}

/// Time since which there is no cluster. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct NoClustersClock(Arc<Mutex<Option<SystemTime>>>);

/// State in which there is no remote cluster to mirror, although there should be one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoClusters {
    /// Reason, which names the directory.
    pub reason: String,
    /// Time at which this was first seen.
    pub since: SystemTime,
    /// True if it has lasted long enough for a finding.
    pub lasts: bool,
}

impl Handle {
    /// Returns the location of the client files.
    #[must_use]
    pub fn cluster_files(&self) -> &ClusterFiles {
        &self.0.cluster_files
    }

    /// Sets the location of the client files.
    #[must_use]
    pub fn with_cluster_files(self, files: ClusterFiles) -> Self {
        self.with(|shared| shared.cluster_files = files)
    }

    /// Returns why there is no remote cluster to mirror. `None` if there is one, if there need not
    /// be any, and before the directory was read.
    #[must_use]
    pub fn no_clusters(&self) -> Option<NoClusters> {
        let reason = self.why_no_clusters().filter(|_| !self.cluster_files().may_be_none);
        let mut since = self.0.no_clusters_clock.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(reason) = reason else {
            *since = None;
            return None;
        };
        let now = SystemTime::now();
        let since = *since.get_or_insert(now);
        // a clock that was set back starts the wait again
        let lasts = now.duration_since(since).is_ok_and(|lasted| lasted >= self.cluster_files().wait);
        Some(NoClusters { reason, since, lasts })
    }

    fn why_no_clusters(&self) -> Option<String> {
        let (state, shown) = (self.directory(), self.cluster_files().directory.display());
        let own = self.0.about.own_cluster.as_ref();
        let board = Arc::clone(&self.0.about.clusters.borrow());
        let mut unusable = state.invalid;
        for (name, status) in board.iter().filter(|(name, _)| own != Some(*name)) {
            match &status.borrow().file_error {
                Some(error) => drop(unusable.insert(name.to_string(), error.clone())),
                None => return None,
            }
        }
        if let Some(error) = &state.error {
            return Some(format!("{shown} cannot be read: {error}"));
        }
        if !state.readable {
            return None;
        }
        let own = own.map(|own| format!(" except that of {own}, the own cluster, which is not mirrored")).unwrap_or_default();
        Some(match (unusable.first_key_value(), unusable.len()) {
            (None, _) => format!("{shown} has no client file of a cluster{own}"),
            (Some((file, reason)), 1) => format!("the only client file in {shown}, {file}, cannot be used: {reason}"),
            (Some((file, reason)), count) => format!("none of the {count} client files in {shown} can be used; {file}: {reason}"),
        })
    }
}
