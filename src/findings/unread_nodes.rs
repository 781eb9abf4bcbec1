//! Clusters whose nodes were never read. An unknown address may belong to one of their nodes.

use super::clusters::{LISTING_TIME_MAX, PHASE_TIME_MAX};
use crate::handle::Reading;
use crate::model::{ClusterName, ClusterStatus, Phase};

/// Clusters whose nodes were never read. Computed once for all findings of a reading.
#[derive(Debug)]
pub(crate) struct UnreadNodes {
    pub(super) clusters: Vec<ClusterName>,
    /// Set if one of the clusters is being read and is not late, so that its nodes are expected
    /// soon.
    pub(crate) is_loading: bool,
}

impl UnreadNodes {
    /// Returns the clusters of a reading whose nodes were never read.
    pub(crate) fn new(reading: &Reading) -> Self {
        let summary = reading.summary();
        let mut statuses = summary.unread_nodes.iter().filter_map(|name| summary.cluster(name)?.status.as_ref());
        let is_loading = statuses.any(|status| is_loading(&status.borrow()));
        let clusters = summary.unread_nodes.clone();
        Self { clusters, is_loading }
    }
}

/// Returns whether a cluster is being read. A cluster that needs longer than usual has its own
/// finding.
fn is_loading(status: &ClusterStatus) -> bool {
    let limit = match status.phase {
        Phase::Connecting | Phase::ReadingConfig | Phase::WaitingForCanary => PHASE_TIME_MAX,
        Phase::Listing => LISTING_TIME_MAX,
        _ => return false,
    };
    status.phase_since.elapsed() < limit
}
