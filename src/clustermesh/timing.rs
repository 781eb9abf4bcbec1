//! Intervals and limits of a remote cluster's task, with their sources. Some of them are settings
//! (`config`), so that tests can shorten them.

use std::time::Duration;

use crate::config::ClusterTiming;
use crate::model::{Backoff, SilenceLimits};

/// Intervals and limits of a remote cluster's task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// Intervals and limits that can be set.
    pub cluster: ClusterTiming,
    /// Time for which the services, service exports and endpoint slices of an unreachable cluster
    /// are kept (Cilium's `clustermesh-cache-ttl`). `None` keeps them forever.
    pub cache_ttl: Option<Duration>,
}

impl Timing {
    pub(super) const fn backoff(&self) -> Backoff {
        Backoff::new(self.cluster.backoff_min, self.cluster.backoff_max)
    }

    /// Returns the limits for the silence of a cluster's writer.
    pub(super) const fn silence_limits(&self) -> SilenceLimits {
        SilenceLimits { warning: self.cluster.heartbeat_silence, critical: self.cluster.heartbeat_silence_critical }
    }
}

/// Interval between two checks for missing certificate files. Cilium waits 5 s; the check is cheap,
/// and users wait for it.
pub(super) const FILES_INTERVAL: Duration = Duration::from_secs(1);

/// Number of checks of a watch within [`ClusterTiming::watch_silence`]: one every 11 s by default,
/// so that a silent watch is noticed soon after the limit.
pub(super) const SILENCE_CHECKS: u32 = 5;

/// A connection that lasted this long resets the back-off.
pub(super) const STABLE_CONNECTION: Duration = Duration::from_secs(60);

/// Number of checks of a source with held keys within [`ClusterTiming::hold_margin`]: one every 5 s
/// by default.
pub(super) const HOLD_CHECKS_PER_MARGIN: u32 = 6;

/// Shortest interval between two checks of a source with held keys, for tests without a margin.
pub(super) const HOLD_CHECK_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Interval between two writes of the time of the last contact to the store.
pub(super) const CONTACT_STORED_INTERVAL: Duration = Duration::from_secs(30);
