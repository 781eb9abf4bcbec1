//! Verifies the mirror of one cluster against its source, over one connection.
//!
//! Within one history of an etcd, the bytes of a key are a function of its name and its mod
//! revision. The mirror is therefore right if each of its entries has the source's mod revision,
//! and no other entries exist. Every minute [`Verifier`] compares the number of keys of each kind,
//! which finds lost puts of new keys and lost deletes. In between it reads the keys without values,
//! one range after another, so that each key is compared at least once an hour. A difference is
//! reported only after it was seen at two later revisions ([`comparison`]). The kind is then listed
//! again.

mod comparison;
mod counts;
mod kind_comparison;
mod ranges;
mod repair;
mod round;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::time::{MissedTickBehavior, interval_at, sleep, sleep_until};

use self::kind_comparison::KindComparison;
use self::repair::RepairLimiter;
use self::round::{Round, RoundIntervals};
use super::connection_error::ConnectionError;
use super::scope::{ClusterContext, ScopeProgress, SourceConnection};
use crate::config::ClusterTiming;
use crate::instruments::{LogLimiter, LogPermit, VerificationRequest};
use crate::model::{ClusterName, Divergence, Kind, KindVerification, Scope, VerificationRun};
use crate::wire::cluster_config::KindPublication;
use crate::wire::keys;
use cilium_kvstore::KvstoreError;

/// Limit on how often differences are logged, per cluster and kind.
static DIVERGENCE_LOG: LogLimiter = LogLimiter::new();

/// Maximum time for which a request of a client waits until all kinds are listed and watched.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(30);

/// Time between two attempts to compare a kind that is not yet listed and watched.
const SETTLE_PAUSE: Duration = Duration::from_millis(100);

/// State of a cluster's verification that outlives connections.
#[derive(Debug)]
pub(super) struct VerificationState {
    round: Round,
    /// Limit for the repairs of each kind, in the order of [`Kind::ALL`].
    repairs: [RepairLimiter; Kind::ALL.len()],
    /// Bytes of the source's answers that no pause follows yet.
    unpaced_bytes: u64,
}

/// Verification of one cluster over one connection.
pub(super) struct Verifier<'a> {
    cluster: &'a ClusterName,
    source: SourceConnection,
    context: &'a ClusterContext,
    /// Progress of each kind, in the order of [`Kind::ALL`].
    scopes: Vec<Arc<ScopeProgress>>,
    /// Form in which the cluster publishes each kind, in the same order.
    publications: [KindPublication; Kind::ALL.len()],
    /// Difference of the counts of each kind that a comparison of all keys did not confirm, for
    /// instance because of keys that are not entries.
    explained: [i64; Kind::ALL.len()],
    state: &'a mut VerificationState,
    /// Number of the newest request of a client that was answered.
    answered: u64,
}

/// Part of a kind that a comparison covers at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ComparisonExtent {
    /// All ranges, to name all keys that differ.
    AllRanges,
    /// The ranges up to the first one that differs, to report it and list the kind again soon.
    FirstDifference,
}

/// Progress of a comparison after one range.
enum ComparisonStep {
    /// Another range follows.
    Continues,
    /// All ranges were compared.
    Complete,
    /// There is no result of this range: the kind is being listed, or the mirror stays behind.
    Unsettled,
}

impl VerificationState {
    pub(super) fn new(timing: &ClusterTiming) -> Self {
        let ClusterTiming { verify_interval, verify_round, verify_values_interval, .. } = *timing;
        let intervals = RoundIntervals { interval: verify_interval, round: verify_round, values_interval: verify_values_interval };
        Self {
            round: Round::new(intervals, Instant::now()),
            repairs: Kind::ALL.map(|_| RepairLimiter::new(verify_interval)),
            unpaced_bytes: 0,
        }
    }
}

impl<'a> Verifier<'a> {
    pub(super) fn new(
        cluster: &'a ClusterName,
        source: SourceConnection,
        context: &'a ClusterContext,
        scopes: Vec<Arc<ScopeProgress>>,
        publications: [KindPublication; Kind::ALL.len()],
        state: &'a mut VerificationState,
    ) -> Self {
        let answered = context.reporter.answered_request();
        Self { cluster, source, context, scopes, publications, explained: [0; Kind::ALL.len()], state, answered }
    }

    /// Runs until the source answers with another history than before. Other errors only delay the
    /// verification.
    pub(super) async fn run(mut self) -> Result<Infallible, ConnectionError> {
        let interval = self.context.timing.cluster.verify_interval;
        // the clusters of a mesh are verified at different moments
        let first = Instant::now() + interval.mul_f64(rand::random());
        let mut tick = interval_at(first.into(), interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.state.round.resume(&self.source.info, self.source.connection.newest_revision(), first);
        // a connection may have ended while keys were read
        let bytes = self.take_unpaced_bytes();
        self.state.round.delay_ranges(bytes, Instant::now());
        loop {
            let result = tokio::select! {
                _ = tick.tick() => self.compare_counts().await,
                () = sleep_until(self.state.round.next_range.into()) => self.continue_round().await,
                request = self.context.verification_requests.wait_after(self.cluster.as_str(), self.answered) => {
                    self.answer_request(request).await
                }
            };
            let bytes = self.take_unpaced_bytes();
            self.state.round.delay_ranges(bytes, Instant::now());
            self.state.round.record_revision(self.source.connection.newest_revision());
            match result {
                Ok(()) => {}
                Err(error) if ends_history(&error) => return Err(error.into()),
                Err(error) => {
                    tracing::debug!(cluster = %self.cluster, %error, "the verification of cluster {} is delayed: {error}", self.cluster);
                }
            }
        }
    }

    /// Compares the next range of the current round. After an error, the kind goes on later.
    async fn continue_round(&mut self) -> Result<(), KvstoreError> {
        let (kind, mut comparison) = self.state.round.current(Instant::now());
        if !self.has_result(kind) {
            self.state.round.skip_kind(Instant::now());
            return Ok(());
        }
        let differing_before = comparison.differing_count;
        let step = self.compare_next_range(kind, &mut comparison).await;
        let (bytes, now) = (self.take_unpaced_bytes(), Instant::now());
        let step = step.inspect_err(|_| self.state.round.delay_kind(bytes, now))?;
        // reported at once, because the end of the kind may be an hour away
        if comparison.differing_count > differing_before && self.report_differing(kind, &comparison) {
            self.state.round.restart_kind(bytes, now);
            return Ok(());
        }
        match step {
            ComparisonStep::Continues => self.state.round.record_range(comparison, bytes, now),
            ComparisonStep::Complete => {
                self.publish_equality(kind, &comparison);
                self.state.round.complete_kind(bytes, now);
            }
            ComparisonStep::Unsettled => self.state.round.delay_kind(bytes, now),
        }
        Ok(())
    }

    /// Returns the bytes of the answers since the last call, which a pause must follow.
    fn take_unpaced_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.state.unpaced_bytes)
    }

    /// Answers a request of a client: compares all keys of all kinds at once. Kinds that the
    /// cluster does not publish have no result.
    async fn answer_request(&mut self, request: VerificationRequest) -> Result<(), KvstoreError> {
        let mut kinds = Vec::new();
        let mut result = Ok(());
        let settled_until = Instant::now() + SETTLE_TIME_MAX;
        for kind in Kind::ALL.into_iter().filter(|kind| self.has_result(*kind)).collect::<Vec<_>>() {
            let comparison = match result {
                Ok(()) => self.compare_settled_kind(kind, request.with_values, settled_until).await,
                Err(_) => Ok(None),
            };
            let comparison = comparison.unwrap_or_else(|error| {
                result = Err(error);
                None
            });
            let compared = comparison.is_some();
            let KindComparison { revision, key_count, differing, differing_count, .. } = comparison.unwrap_or_default();
            kinds.push(KindVerification {
                kind,
                compared,
                key_count,
                revision,
                differing: self.shown_keys(kind, &differing),
                differing_count,
            });
        }
        self.answered = request.number;
        let run = VerificationRun { number: request.number, ended: SystemTime::now(), with_values: request.with_values, kinds };
        self.context.reporter.change_status(|status| status.verification_run = Some(Arc::new(run)));
        result
    }

    /// Returns whether a request compares a kind. A kind that the cluster's config disables may be
    /// watched nevertheless.
    fn has_result(&self, kind: Kind) -> bool {
        match self.publications[kind.index()] {
            KindPublication::Published => true,
            KindPublication::Disabled => self.progress(kind).current().watching,
            KindPublication::Absent => false,
        }
    }

    /// Compares all keys of a kind at once, if necessary after it was listed and its watch began.
    /// `None` if that did not happen in time.
    async fn compare_settled_kind(
        &mut self,
        kind: Kind,
        with_values: bool,
        until: Instant,
    ) -> Result<Option<KindComparison>, KvstoreError> {
        loop {
            let comparison = self.compare_kind(kind, with_values, ComparisonExtent::AllRanges).await?;
            if comparison.is_some() || Instant::now() >= until {
                return Ok(comparison);
            }
            sleep(SETTLE_PAUSE).await;
        }
    }

    /// Compares the keys of a kind at once, and publishes the result. `None` if there is no result
    /// of a range, for instance while the kind is listed.
    async fn compare_kind(
        &mut self,
        kind: Kind,
        with_values: bool,
        extent: ComparisonExtent,
    ) -> Result<Option<KindComparison>, KvstoreError> {
        let mut comparison = KindComparison { with_values, ..KindComparison::default() };
        loop {
            let step = self.compare_next_range(kind, &mut comparison).await?;
            match step {
                ComparisonStep::Unsettled => return Ok(None),
                ComparisonStep::Continues if comparison.is_equal() || extent == ComparisonExtent::AllRanges => continue,
                ComparisonStep::Continues | ComparisonStep::Complete => {}
            }
            if comparison.is_equal() {
                self.publish_equality(kind, &comparison);
            } else {
                self.report_differing(kind, &comparison);
            }
            return Ok(Some(comparison));
        }
    }

    /// Publishes the result of a complete comparison, unless a key differs.
    fn publish_equality(&self, kind: Kind, comparison: &KindComparison) {
        if !comparison.is_equal() {
            return;
        }
        self.context.reporter.change_resource(kind, |resource| {
            let verification = &mut resource.verification;
            verification.verified_at = Some(SystemTime::now());
            verification.verified_revision = comparison.revision;
            verification.keys_compared = comparison.key_count;
        });
    }

    /// Reports the keys that differ so far. Asks for a list of the kind, unless it was listed
    /// recently for the same reason, and returns whether it did.
    fn report_differing(&mut self, kind: Kind, comparison: &KindComparison) -> bool {
        let (keys, key_count) = (self.shown_keys(kind, &comparison.differing), comparison.differing_count);
        if let Some(LogPermit { more }) = DIVERGENCE_LOG.permit(&format!("{} {kind}", self.cluster)) {
            let (cluster, first) = (self.cluster, keys.first());
            tracing::error!(%cluster, %kind, key_count, key = first, more, "the mirror of cluster {cluster} differs from its source in its {kind} keys");
        }
        let revision = self.source.connection.newest_revision();
        self.context.reporter.change_status(|status| {
            let verification = &mut status.resource_mut(kind).verification;
            let detections = verification.divergence.as_ref().map_or(0, |before| before.detections) + 1;
            verification.divergence = Some(Divergence { keys, key_count, revision, found: Instant::now(), detections });
        });
        let is_due = self.state.repairs[kind.index()].permit(Instant::now());
        if is_due {
            self.progress(kind).request_repair();
        }
        is_due
    }

    /// Returns keys as the source names them.
    fn shown_keys(&self, kind: Kind, names: &[String]) -> Vec<String> {
        let prefix = keys::watched_prefix(kind, self.cluster, self.source.info.cached);
        names.iter().map(|name| format!("{prefix}{name}")).collect()
    }

    fn progress(&self, kind: Kind) -> &ScopeProgress {
        &self.scopes[kind.index()]
    }

    fn scope(&self, kind: Kind) -> Scope {
        Scope { cluster: self.cluster.clone(), kind }
    }
}

/// Returns whether the source has another history than before, so that the connection must end.
const fn ends_history(error: &KvstoreError) -> bool {
    matches!(error, KvstoreError::WentBack { .. } | KvstoreError::ClusterIdChanged { .. })
}
