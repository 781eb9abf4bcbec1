//! Intervals and limits in the life of a remote cluster, with their sources. Tests shorten them.

use std::time::Duration;

use crate::model::{Backoff, REMINDER_INTERVAL, SilenceLimits};

/// Intervals and limits in the life of a remote cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// Maximum time that one connection waits for a cluster config: 3 minutes, Cilium's limit for
    /// reading it (`pkg/clustermesh/common/remote_cluster.go`).
    ///
    /// After this time a cluster of `--legacy-clusters` is read without a config. If instead
    /// another cluster's config was present for this time, state that was stored without a config
    /// is removed (docs/develop/invariants.md, 3).
    pub legacy_wait: Duration,
    /// Time without a put of a restored key, after which the keys that a legacy cluster's list did
    /// not confirm are removed (docs/develop/invariants.md, 3: 60 s).
    pub legacy_quiet: Duration,
    /// First and shortest wait after a failure (docs/develop/invariants.md: 0.8 s).
    pub backoff_min: Duration,
    /// Longest wait after a failure (docs/develop/invariants.md: 30 s).
    pub backoff_max: Duration,
    /// Time without a heartbeat after which a connection counts as dead. Cilium writes the
    /// heartbeat every minute and gives up after two (`pkg/kvstore/heartbeat`, `etcd.go`).
    pub heartbeat_silence: Duration,
    /// Time without a heartbeat after which the finding about it is critical.
    pub heartbeat_silence_critical: Duration,
    /// Maximum time without any message on a watch stream: three unanswered progress requests, sent
    /// every 10 s, followed by the keep-alive's time-out of 25 s (`kvstore::ClientOptions`).
    pub watch_silence: Duration,
    /// Interval between two checks for missing certificate files. Cilium waits 5 s; the check is
    /// cheap, and users wait for it.
    pub files_interval: Duration,
    /// Time beyond a third of a lease's TTL for which both signs must exist before a hold ends
    /// (docs/develop/invariants.md, 4). etcd revokes up to 1,000 leases per second
    /// (`lease/lessor.go`), and clients renew with a delay of a few round trips.
    pub hold_margin: Duration,
    /// Time for which the services, service exports and endpoint slices of an unreachable cluster
    /// are kept (Cilium's `clustermesh-cache-ttl`). `None` keeps them for ever.
    pub cache_ttl: Option<Duration>,
    /// Wait before a cluster that has more than it may have is read again. People have to fix what
    /// it writes, and each attempt may read as much as the cluster may have.
    pub too_large_wait: Duration,
    /// Interval between two searches for keys that this version does not know. A search needs about
    /// ten requests per cluster, and such keys appear only when the source is upgraded.
    pub unknown_prefix_interval: Duration,
    /// Interval between two log messages about a cluster that is not live.
    pub remind_interval: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            legacy_wait: Duration::from_secs(180),
            legacy_quiet: Duration::from_secs(60),
            backoff_min: Duration::from_millis(800),
            backoff_max: Duration::from_secs(30),
            heartbeat_silence: SilenceLimits::default().warning,
            heartbeat_silence_critical: SilenceLimits::default().critical,
            watch_silence: Duration::from_secs(55),
            files_interval: Duration::from_secs(1),
            hold_margin: Duration::from_secs(30),
            cache_ttl: None,
            too_large_wait: Duration::from_secs(300),
            unknown_prefix_interval: Duration::from_secs(300),
            remind_interval: REMINDER_INTERVAL,
        }
    }
}

impl Timing {
    pub(super) const fn backoff(&self) -> Backoff {
        Backoff::new(self.backoff_min, self.backoff_max)
    }

    /// Returns the limits for the silence of a cluster's writer.
    pub(super) const fn silence_limits(&self) -> SilenceLimits {
        SilenceLimits { warning: self.heartbeat_silence, critical: self.heartbeat_silence_critical }
    }
}

/// Number of checks of a watch within [`Timing::watch_silence`]: one every 11 s by default, so that
/// a silent watch is noticed soon after the limit.
pub(super) const SILENCE_CHECKS: u32 = 5;

/// A connection that lasted this long resets the back-off.
pub(super) const STABLE_CONNECTION: Duration = Duration::from_secs(60);

/// Number of checks of a source with held keys within [`Timing::hold_margin`]: one every 5 s by
/// default.
pub(super) const HOLD_CHECKS_PER_MARGIN: u32 = 6;

/// Shortest interval between two checks of a source with held keys, for tests without a margin.
pub(super) const HOLD_CHECK_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Interval between two writes of the time of the last contact to the store.
pub(super) const CONTACT_STORED_INTERVAL: Duration = Duration::from_secs(30);
