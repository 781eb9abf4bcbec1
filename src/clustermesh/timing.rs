//! The times in a remote cluster's life, each with where it comes from. Tests shorten them.

use std::time::Duration;

use crate::model::{Backoff, REMINDER_INTERVAL, SilenceLimits};

/// Times of a remote cluster's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// How long a cluster config is waited for over one connection (3 minutes, Cilium's own limit for reading it,
    /// `pkg/clustermesh/common/remote_cluster.go`), and how long another cluster's config must have been in its place before what was stored without
    /// one is removed. A cluster of `--legacy-clusters` is read without one then (docs/develop/invariants.md, 3).
    pub legacy_wait: Duration,
    /// How long no still-restored key may be put before what such a cluster's list did not confirm is pruned (invariant 3: 60 s).
    pub legacy_quiet: Duration,
    /// The first and shortest wait after a failure (docs/develop/invariants.md: 0.8 s).
    pub backoff_min: Duration,
    /// The longest (docs/develop/invariants.md: 30 s).
    pub backoff_max: Duration,
    /// How long the heartbeat may be silent before the connection counts as dead, at the first miss: Cilium writes it each minute and
    /// gives up after two (`pkg/kvstore/heartbeat`, `etcd.go`).
    pub heartbeat_silence: Duration,
    /// How long the heartbeat may be silent before the finding about it is critical.
    pub heartbeat_silence_critical: Duration,
    /// How long a watch stream may say nothing at all: three unanswered questions how far it is, one in 10 s, and the keep-alive's time-out of
    /// 25 s behind them (`kvstore::ClientOptions`).
    pub watch_silence: Duration,
    /// How often missing certificate files are looked for (Cilium waits 5 s; looking is cheap and users watch).
    pub files_interval: Duration,
    /// How much longer than a third of a lease's life the signs must stand (invariant 4): etcd revokes up to 1,000 leases a second
    /// (`lease/lessor.go`), and clients renew with the delay of a few round trips.
    pub hold_margin: Duration,
    /// How long the services, service exports and endpoint slices of a cluster that cannot be read are kept; `None` is for ever
    /// (Cilium's `clustermesh-cache-ttl`).
    pub cache_ttl: Option<Duration>,
    /// How long a cluster that has more than it may have is left alone: what it writes is mended by people, and each try may read all that it
    /// may have.
    pub too_large_wait: Duration,
    /// How often keys that this version does not know are looked for: some ten requests for each cluster, for something that comes with
    /// an upgrade of the source.
    pub unknown_prefix_interval: Duration,
    /// How often a cluster that is not live is told again.
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
    /// The waits between attempts to connect.
    pub(super) const fn backoff(&self) -> Backoff {
        Backoff::new(self.backoff_min, self.backoff_max)
    }

    /// How long a cluster's writer may be silent.
    pub(super) const fn silence_limits(&self) -> SilenceLimits {
        SilenceLimits { warning: self.heartbeat_silence, critical: self.heartbeat_silence_critical }
    }
}

/// How many times within the silence that is allowed a watch is looked at: each 11 s by default, so that it is found out little later.
pub(super) const SILENCE_CHECKS: u32 = 5;

/// A connection that stood so long was a good one: the next failure starts with the shortest wait again.
pub(super) const STABLE_CONNECTION: Duration = Duration::from_secs(60);

/// How many times within the margin the signs of a source of which keys are held are looked at: every 5 s by default.
pub(super) const HOLD_CHECKS_PER_MARGIN: u32 = 6;

/// How often they are looked at where there is no margin.
pub(super) const HOLD_CHECK_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// How often the time of the last contact is stored.
pub(super) const CONTACT_STORED_INTERVAL: Duration = Duration::from_secs(30);
