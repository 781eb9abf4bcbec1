//! The clusters whose nodes were never read, so that an address may be of a node that is not known.

use super::clusters::{LISTING_TIME_MAX, PHASE_TIME_MAX};
use crate::handle::{Origin, Reading};
use crate::model::{ClusterName, ClusterStatus, Kind, Phase};

/// The clusters whose nodes were never read. Made once for all findings of a reading.
#[derive(Debug)]
pub(crate) struct UnreadNodes {
    /// Their names.
    pub(super) clusters: Vec<ClusterName>,
    /// Whether one of them is on its way to be read and not late, so that its nodes are expected soon.
    pub(super) is_arriving: bool,
}

impl UnreadNodes {
    /// Those of a reading.
    pub(crate) fn of(reading: &Reading) -> Self {
        let mut clusters = reading.cluster_names();
        clusters.retain(|name| reading.source(name, Kind::Node).origin == Origin::NeverRead);
        let statuses = clusters.iter().filter_map(|name| reading.cluster(name)?.status);
        let is_arriving = statuses.into_iter().any(|status| is_arriving(&status));
        Self { clusters, is_arriving }
    }
}

/// Whether a cluster is on its way to be read. One that takes longer than usual has a finding of its own.
fn is_arriving(status: &ClusterStatus) -> bool {
    let limit = match status.phase {
        Phase::Connecting | Phase::ReadingConfig | Phase::WaitingForCanary => PHASE_TIME_MAX,
        Phase::Listing => LISTING_TIME_MAX,
        _ => return false,
    };
    status.phase_since.elapsed() < limit
}
