//! How far one cluster is reflected.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::kvstore::keys::SYNCED_PREFIX;
use crate::model::{Backoff, ClusterName, Kind};
use crate::wire::keys::watched_prefix;

/// The first wait after a step of a withdrawal failed, doubled each time (KVStoreMesh: 2 s).
const RETRY_MIN: Duration = Duration::from_secs(2);
/// The longest (KVStoreMesh gives up after 32 s; here the data would stay for as long as its leases are renewed).
const RETRY_MAX: Duration = Duration::from_secs(60);

/// One cluster.
pub(super) struct Cluster {
    pub(super) kinds: BTreeMap<Kind, Progress>,
    /// Set once its file is gone.
    pub(super) withdrawal: Option<Withdrawal>,
}

/// One kind of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Progress {
    /// What was done.
    pub(super) compared: Option<Stage>,
    /// Whether changes are followed since: not of what only had to stay, for our own state is older.
    pub(super) followed: bool,
    /// When that was.
    pub(super) compared_at: Option<Instant>,
    /// Its canary is written or queued.
    pub(super) has_canary: bool,
    /// The group of its keys in the queue.
    pub(super) group: u32,
}

/// How much a comparison was worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Of what was restored from the store.
    Restored,
    /// Of what the source confirmed.
    Confirmed,
}

/// A cluster on its way out.
#[derive(Debug)]
pub(super) struct Withdrawal {
    /// What is left to do, the next step first.
    steps: Vec<Step>,
    /// When the next one is due.
    pub(super) due: Instant,
    backoff: Backoff,
}

/// One step of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The cluster config goes, so that agents leave the cluster.
    Config(String),
    /// They are given time to.
    Grace(Duration),
    /// Everything below a prefix goes.
    Prefix(String),
}

impl Cluster {
    pub(super) fn new(first_group: u32) -> Self {
        let kinds = Kind::ALL.into_iter().zip(first_group..);
        let kinds = kinds.map(|(kind, group)| (kind, Progress { group, ..Progress::default() }));
        Self { kinds: kinds.collect(), withdrawal: None }
    }

    /// Everything has to be compared again.
    pub(super) fn restart(&mut self) {
        self.withdrawal = None;
        self.kinds.values_mut().for_each(|progress| *progress = Progress { group: progress.group, ..Progress::default() });
    }
}

impl Withdrawal {
    /// KVStoreMesh's order: the config, a while, the canaries, the kinds by the names of their reflectors.
    pub(super) fn new(cluster: &ClusterName, config_key: String, grace: Duration) -> Self {
        let kinds = [Kind::EndpointSlice, Kind::Ip, Kind::Identity, Kind::Node, Kind::ServiceExport, Kind::Service];
        let mut steps = vec![Step::Config(config_key), Step::Grace(grace), Step::Prefix(format!("{SYNCED_PREFIX}/{cluster}/"))];
        steps.extend(kinds.map(|kind| Step::Prefix(watched_prefix(kind, cluster, true))));
        Self { steps, due: Instant::now(), backoff: Backoff::new(RETRY_MIN, RETRY_MAX) }
    }

    /// The next step.
    pub(super) fn step(&self) -> Option<&Step> {
        self.steps.first()
    }

    /// It is done.
    pub(super) fn done(&mut self) {
        let pause = match self.steps.first() {
            Some(Step::Grace(_)) | None => Duration::ZERO,
            Some(Step::Config(_) | Step::Prefix(_)) => match self.steps.get(1) {
                Some(Step::Grace(grace)) => *grace,
                _ => Duration::ZERO,
            },
        };
        self.steps.remove(0);
        self.due = Instant::now() + pause;
        self.backoff.reset();
    }

    /// It failed: it is tried again later.
    pub(super) fn failed(&mut self) {
        self.due = Instant::now() + self.backoff.next_wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cluster_is_withdrawn_in_kvstoremeshs_order_with_a_grace_behind_its_config() {
        let paris = ClusterName::parse("paris").unwrap();
        let mut withdrawal = Withdrawal::new(&paris, "cilium/cluster-config/paris".into(), Duration::from_secs(180));
        let mut told = Vec::new();
        while let Some(step) = withdrawal.step().cloned() {
            tokio::time::sleep_until(withdrawal.due).await;
            told.push(format!("{step:?}"));
            withdrawal.done();
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
        assert_eq!(told, expected);
    }
}
