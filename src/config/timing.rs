//! Waits and intervals, which tests shorten.

use std::time::Duration;

use clap::Args;

use super::values::parse_interval;
use crate::model::parse_duration;

/// Waits and intervals with the values of docs/develop/protocol.md. Hidden options, so that tests
/// can set shorter values.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TimingSettings {
    #[command(flatten)]
    pub cluster: ClusterTiming,

    /// Maximum wait for a data directory that another process has locked
    /// (docs/develop/invariants.md, 8)
    #[arg(long, hide = true, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub store_lock_wait: Duration,

    /// Interval between two reads of the whole config directory without a notification: the
    /// kubelet's own period
    #[arg(long, hide = true, value_name = "TIME", default_value = "60s", value_parser = parse_interval)]
    pub config_rescan_interval: Duration,

    /// Interval between two progress requests on each watch stream (docs/develop/measurements.md)
    #[arg(long, hide = true, value_name = "TIME", default_value = "10s", value_parser = parse_interval)]
    pub progress_interval: Duration,

    /// Time without any cluster after which a finding is reported
    #[arg(long, hide = true, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub no_clusters_wait: Duration,
}

/// Intervals and limits of a remote cluster's task.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ClusterTiming {
    /// Maximum time that one connection waits for a cluster config: 3 minutes, Cilium's limit for
    /// reading it (`pkg/clustermesh/common/remote_cluster.go`).
    ///
    /// After this time a cluster of `--legacy-clusters` is read without a config. If instead
    /// another cluster's config was present for this time, state that was stored without a config
    /// is removed (docs/develop/invariants.md, 3).
    #[arg(long, hide = true, value_name = "TIME", default_value = "180s", value_parser = parse_duration)]
    pub legacy_wait: Duration,

    /// Time without a put of a restored key, after which the keys that a legacy cluster's list did
    /// not confirm are removed (docs/develop/invariants.md, 3: 60 s).
    #[arg(long, hide = true, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub legacy_quiet: Duration,

    /// Time beyond a third of a lease's TTL for which the cluster config and the canary must exist
    /// before a hold ends (docs/develop/invariants.md, 4). etcd revokes up to 1,000 leases per
    /// second (`lease/lessor.go`), and clients renew with a delay of a few round trips.
    #[arg(long, hide = true, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub hold_margin: Duration,

    /// Time without a heartbeat after which a connection counts as dead. Cilium writes the
    /// heartbeat every minute and gives up after two (`pkg/kvstore/heartbeat`, `etcd.go`).
    #[arg(long, hide = true, value_name = "TIME", default_value = "120s", value_parser = parse_interval)]
    pub heartbeat_silence: Duration,

    /// Time without a heartbeat after which the finding about it is critical.
    #[arg(long, hide = true, value_name = "TIME", default_value = "600s", value_parser = parse_interval)]
    pub heartbeat_silence_critical: Duration,

    /// Maximum time without any message on a watch stream: three unanswered progress requests, sent
    /// every 10 s, followed by the keep-alive's time-out of 25 s (`kvstore::ClientOptions`).
    #[arg(long, hide = true, value_name = "TIME", default_value = "55s", value_parser = parse_interval)]
    pub watch_silence: Duration,

    /// First and shortest wait after a failure (docs/develop/invariants.md: 0.8 s).
    #[arg(long, hide = true, value_name = "TIME", default_value = "800ms", value_parser = parse_interval)]
    pub backoff_min: Duration,

    /// Longest wait after a failure (docs/develop/invariants.md: 30 s).
    #[arg(long, hide = true, value_name = "TIME", default_value = "30s", value_parser = parse_interval)]
    pub backoff_max: Duration,

    /// Wait before a cluster that exceeds its limits is read again. Only its operators can fix
    /// this, and each attempt may read as much as the limits allow.
    #[arg(long, hide = true, value_name = "TIME", default_value = "300s", value_parser = parse_interval)]
    pub too_large_wait: Duration,

    /// Interval between two searches for keys that this version does not know. A search needs about
    /// ten requests per cluster, and such keys appear only when the source is upgraded.
    #[arg(long, hide = true, value_name = "TIME", default_value = "300s", value_parser = parse_interval)]
    pub unknown_prefix_interval: Duration,

    /// Interval between two comparisons of the number of keys with the source's. A comparison is
    /// one request per cluster.
    #[arg(long, hide = true, value_name = "TIME", default_value = "60s", value_parser = parse_interval)]
    pub verify_interval: Duration,

    /// Interval between the starts of two comparisons of all keys with the source's. Half an hour,
    /// so that each key is compared at least once an hour, although a comparison of a million keys
    /// takes almost an hour.
    #[arg(long, hide = true, value_name = "TIME", default_value = "30m", value_parser = parse_interval)]
    pub verify_round: Duration,

    /// Interval between two comparisons of the values of one kind of a cluster: once a day, because
    /// the values are most of the bytes.
    #[arg(long, hide = true, value_name = "TIME", default_value = "24h", value_parser = parse_interval)]
    pub verify_values_interval: Duration,

    /// Interval between two log messages about a cluster that is not live.
    #[arg(long, hide = true, value_name = "TIME", default_value = "600s", value_parser = parse_interval)]
    pub remind_interval: Duration,
}
