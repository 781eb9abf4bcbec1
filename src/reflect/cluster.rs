//! Progress of one reflected cluster: the comparison of each kind, and the steps of a withdrawal.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::{Backoff, ClusterName, Kind};
use crate::wire::keys::watched_prefix;
use cilium_kvstore::keys::SYNCED_PREFIX;

/// Wait after the first failed step of a withdrawal (KVStoreMesh: 2 s). It doubles with each
/// failure.
const RETRY_MIN: Duration = Duration::from_secs(2);
/// Maximum wait between attempts. KVStoreMesh gives up after 32 s. meshkeep does not, because the
/// data would stay for as long as its leases are renewed.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// A reflected cluster.
pub(super) struct Cluster {
    pub(super) kinds: BTreeMap<Kind, Progress>,
    /// Set when the client file of the cluster was removed.
    pub(super) withdrawal: Option<Withdrawal>,
}

/// Progress of one kind of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Progress {
    /// Result of the last comparison; `None` if the kind has to be compared.
    pub(super) compared: Option<ComparisonStage>,
    /// True if changes are followed since the comparison. False after `AllowedChanges::Keep`,
    /// because then the mirror's state may be older than the target's.
    pub(super) followed: bool,
    /// Time of the last comparison.
    pub(super) compared_at: Option<Instant>,
    /// True if the kind's canary is written or queued.
    pub(super) has_canary: bool,
    /// Group of the kind's keys in the sync queue.
    pub(super) group: u32,
}

/// Origin of the data that a comparison was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ComparisonStage {
    /// The data was restored from the store.
    Restored,
    /// The source confirmed the data.
    Confirmed,
}

/// Progress of the withdrawal of a cluster.
#[derive(Debug)]
pub(super) struct Withdrawal {
    /// Remaining steps, the next one first.
    steps: Vec<WithdrawalStep>,
    /// Time at which the next step is due.
    pub(super) due: Instant,
    backoff: Backoff,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WithdrawalStep {
    /// Delete the cluster config, so that agents leave the cluster.
    Config(String),
    /// Wait, so that agents can leave.
    Grace(Duration),
    /// Delete all keys below a prefix.
    Prefix(String),
}

impl Cluster {
    pub(super) fn new(first_group: u32) -> Self {
        let kinds = Kind::ALL.into_iter().zip(first_group..);
        let kinds = kinds.map(|(kind, group)| (kind, Progress { group, ..Progress::default() }));
        Self { kinds: kinds.collect(), withdrawal: None }
    }

    /// Resets the progress, so that every kind is compared again.
    pub(super) fn restart(&mut self) {
        self.withdrawal = None;
        self.kinds.values_mut().for_each(|progress| *progress = Progress { group: progress.group, ..Progress::default() });
    }
}

impl Withdrawal {
    /// Creates a withdrawal in KVStoreMesh's order: the config, a grace period, the canaries, the
    /// kinds sorted by the names of their reflectors.
    pub(super) fn new(cluster: &ClusterName, config_key: String, grace: Duration) -> Self {
        let kinds = [Kind::EndpointSlice, Kind::Ip, Kind::Identity, Kind::Node, Kind::ServiceExport, Kind::Service];
        let mut steps = vec![
            WithdrawalStep::Config(config_key),
            WithdrawalStep::Grace(grace),
            WithdrawalStep::Prefix(format!("{SYNCED_PREFIX}/{cluster}/")),
        ];
        steps.extend(kinds.map(|kind| WithdrawalStep::Prefix(watched_prefix(kind, cluster, true))));
        Self { steps, due: Instant::now(), backoff: Backoff::new(RETRY_MIN, RETRY_MAX) }
    }

    pub(super) fn next_step(&self) -> Option<&WithdrawalStep> {
        self.steps.first()
    }

    /// Removes the step that succeeded and schedules the next one.
    pub(super) fn step_succeeded(&mut self) {
        let pause = match self.steps.first() {
            Some(WithdrawalStep::Grace(_)) | None => Duration::ZERO,
            Some(WithdrawalStep::Config(_) | WithdrawalStep::Prefix(_)) => match self.steps.get(1) {
                Some(WithdrawalStep::Grace(grace)) => *grace,
                _ => Duration::ZERO,
            },
        };
        self.steps.remove(0);
        self.due = Instant::now() + pause;
        self.backoff.reset();
    }

    /// Schedules another attempt of the step that failed.
    pub(super) fn step_failed(&mut self) {
        self.due = Instant::now() + self.backoff.next_wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cluster_is_withdrawn_in_the_order_of_kvstoremesh() {
        let paris = ClusterName::parse("paris").unwrap();
        let mut withdrawal = Withdrawal::new(&paris, "cilium/cluster-config/paris".into(), Duration::from_secs(180));
        let mut steps = Vec::new();
        while let Some(step) = withdrawal.next_step().cloned() {
            tokio::time::sleep_until(withdrawal.due).await;
            steps.push(format!("{step:?}"));
            withdrawal.step_succeeded();
        }
        let expected = [
            r#"Config("cilium/cluster-config/paris")"#,
            "Grace(180s)",
            r#"Prefix("cilium/synced/paris/")"#,
            r#"Prefix("cilium/cache/endpointslices/v1/paris/")"#,
            r#"Prefix("cilium/cache/ip/v1/paris/")"#,
            r#"Prefix("cilium/cache/identities/v1/paris/id/")"#,
            r#"Prefix("cilium/cache/nodes/v1/paris/")"#,
            r#"Prefix("cilium/cache/serviceexports/v1/paris/")"#,
            r#"Prefix("cilium/cache/services/v1/paris/")"#,
        ];
        assert_eq!(steps, expected);
    }
}
