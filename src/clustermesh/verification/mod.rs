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
mod ranges;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::time::{MissedTickBehavior, interval_at, sleep_until};

use self::ranges::RangeStart;
use super::connection_error::ConnectionError;
use super::scope::{ClusterContext, ScopeProgress, SourceConnection};
use crate::instruments::{LogLimiter, LogPermit, VerificationRequest};
use crate::model::{ClusterName, Divergence, Kind, KindVerification, Revision, Scope, VerificationRun};
use crate::wire::keys;
use cilium_kvstore::KvstoreError;

/// Limit on how often differences are logged, per cluster and kind.
static DIVERGENCE_LOG: LogLimiter = LogLimiter::new();

/// Maximum average rate at which keys are read for the comparison, in bytes per second and remote.
/// A million keys have some 70 MB in etcd's replies, so they are read within an hour.
const BYTES_PER_SECOND_MAX: u64 = 20_000;

/// Verification of one cluster over one connection.
pub(super) struct Verifier<'a> {
    cluster: &'a ClusterName,
    source: SourceConnection,
    context: &'a ClusterContext,
    /// Progress of each kind, in the order of [`Kind::ALL`].
    scopes: Vec<Arc<ScopeProgress>>,
    /// Difference of the counts of each kind that a comparison of all keys did not confirm, for
    /// instance because of keys that are not entries.
    explained: [i64; Kind::ALL.len()],
    round: Round,
    /// Number of the newest request of a client that was answered.
    answered: u64,
}

/// Comparison of the keys of all kinds, one kind after another.
struct Round {
    started: Instant,
    kind: Kind,
    comparison: KindComparison,
    /// Time at which the next range is due.
    next_range: Instant,
    /// Kind whose values are compared too; `None` for no kind.
    with_values: Option<Kind>,
    /// Time of the last comparison of values, or of the start.
    values_compared: Instant,
}

/// Comparison of the keys of one kind, range by range.
#[derive(Debug, Clone, Default)]
struct KindComparison {
    /// Start of the next range.
    start: RangeStart,
    /// Revision of the first range.
    revision: Option<Revision>,
    key_count: u64,
    /// Keys that differ.
    differing: Vec<String>,
}

/// Progress of a comparison after one range.
enum ComparisonStep {
    /// Another range follows. This one had so many bytes.
    Continues { bytes: u64 },
    /// All ranges were compared.
    Complete,
    /// The kind is being listed, or its watch was interrupted. There is no result.
    Unsettled,
}

impl<'a> Verifier<'a> {
    pub(super) fn new(
        cluster: &'a ClusterName,
        source: SourceConnection,
        context: &'a ClusterContext,
        scopes: Vec<Arc<ScopeProgress>>,
    ) -> Self {
        let now = Instant::now();
        let round = Round {
            started: now,
            kind: Kind::ALL[0],
            comparison: KindComparison::default(),
            next_range: now,
            with_values: None,
            values_compared: now,
        };
        let answered = context.reporter.answered_request();
        Self { cluster, source, context, scopes, explained: [0; Kind::ALL.len()], round, answered }
    }

    /// Runs until the source answers with another history than before. Other errors only delay the
    /// verification.
    pub(super) async fn run(mut self) -> Result<Infallible, ConnectionError> {
        let interval = self.context.timing.cluster.verify_interval;
        // the clusters of a mesh are verified at different moments
        let first = Instant::now() + interval.mul_f64(rand::random());
        let mut tick = interval_at(first.into(), interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.round.next_range = first;
        loop {
            let result = tokio::select! {
                _ = tick.tick() => self.compare_counts().await,
                () = sleep_until(self.round.next_range.into()) => self.continue_round().await,
                request = self.context.verification_requests.take_after(self.cluster.as_str(), self.answered) => {
                    self.answer_request(request).await
                }
            };
            match result {
                Ok(()) => {}
                Err(error @ (KvstoreError::WentBack { .. } | KvstoreError::ClusterIdChanged { .. })) => return Err(error.into()),
                Err(error) => {
                    tracing::debug!(cluster = %self.cluster, %error, "the verification of cluster {} is delayed: {error}", self.cluster);
                    self.round.next_range = self.round.next_range.max(Instant::now() + interval);
                }
            }
        }
    }

    /// Compares the next range of the current round.
    async fn continue_round(&mut self) -> Result<(), KvstoreError> {
        let kind = self.round.kind;
        let mut comparison = std::mem::take(&mut self.round.comparison);
        let with_values = self.round.with_values == Some(kind);
        let step = self.compare_next_range(kind, &mut comparison, with_values).await?;
        let pause = match step {
            ComparisonStep::Continues { bytes } => {
                // reported at once, because the end of the kind may be an hour away; the list that
                // follows interrupts the comparison
                let differing = std::mem::take(&mut comparison.differing);
                if !differing.is_empty() {
                    self.report_differing(kind, &differing);
                }
                self.round.comparison = comparison;
                bytes.saturating_mul(1_000) / BYTES_PER_SECOND_MAX
            }
            ComparisonStep::Complete | ComparisonStep::Unsettled => {
                if matches!(step, ComparisonStep::Complete) {
                    self.finish_comparison(kind, &comparison);
                }
                self.start_next_kind();
                0
            }
        };
        let paused = Instant::now() + std::time::Duration::from_millis(pause);
        self.round.next_range = self.round.next_range.max(paused);
        Ok(())
    }

    /// Moves on to the next kind. After the last one, a new round starts at its time.
    fn start_next_kind(&mut self) {
        if self.round.with_values == Some(self.round.kind) {
            self.round.with_values = None;
            self.round.values_compared = Instant::now();
        }
        let next = Kind::ALL.into_iter().find(|kind| kind.index() > self.round.kind.index());
        if next.is_none() {
            self.round.started += self.context.timing.cluster.verify_round;
            self.round.started = self.round.started.max(Instant::now());
            self.round.next_range = self.round.started;
        }
        self.round.kind = next.unwrap_or(Kind::ALL[0]);
        if self.round.values_compared.elapsed() >= self.context.timing.cluster.verify_values_interval {
            self.round.with_values = Some(self.round.kind);
        }
    }

    /// Answers a request of a client: compares all keys of all kinds at once.
    async fn answer_request(&mut self, request: VerificationRequest) -> Result<(), KvstoreError> {
        let mut kinds = Vec::new();
        let mut result = Ok(());
        for kind in Kind::ALL {
            let comparison = match result {
                Ok(()) => self.compare_kind(kind, request.with_values).await,
                Err(_) => Ok(None),
            };
            let comparison = comparison.unwrap_or_else(|error| {
                result = Err(error);
                None
            });
            let compared = comparison.is_some();
            let KindComparison { revision, key_count, differing, .. } = comparison.unwrap_or_default();
            let differing_count = differing.len() as u64;
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

    /// Compares all keys of a kind at once, and publishes the result. `None` while the kind is
    /// listed.
    async fn compare_kind(&mut self, kind: Kind, with_values: bool) -> Result<Option<KindComparison>, KvstoreError> {
        let mut comparison = KindComparison::default();
        loop {
            match self.compare_next_range(kind, &mut comparison, with_values).await? {
                ComparisonStep::Continues { .. } => {}
                ComparisonStep::Unsettled => return Ok(None),
                ComparisonStep::Complete => {
                    self.finish_comparison(kind, &comparison);
                    return Ok(Some(comparison));
                }
            }
        }
    }

    /// Publishes the result of a complete comparison.
    fn finish_comparison(&self, kind: Kind, comparison: &KindComparison) {
        if !comparison.differing.is_empty() {
            self.report_differing(kind, &comparison.differing);
            return;
        }
        self.context.reporter.change_resource(kind, |resource| {
            let verification = &mut resource.verification;
            verification.verified_at = Some(SystemTime::now());
            verification.verified_revision = comparison.revision;
            verification.keys_compared = comparison.key_count;
        });
    }

    /// Reports keys that differ, and asks for a list of the kind.
    fn report_differing(&self, kind: Kind, differing: &[String]) {
        let (keys, key_count) = (self.shown_keys(kind, differing), differing.len() as u64);
        if let Some(LogPermit { more }) = DIVERGENCE_LOG.permit(&format!("{} {kind}", self.cluster)) {
            let (cluster, first) = (self.cluster, keys.first());
            tracing::error!(%cluster, %kind, key_count, key = first, more, "the mirror of cluster {cluster} differs from its source: listing its {kind} keys again");
        }
        let revision = self.source.connection.newest_revision();
        self.context.reporter.change_status(|status| {
            let verification = &mut status.resource_mut(kind).verification;
            let detections = verification.divergence.as_ref().map_or(0, |before| before.detections) + 1;
            verification.divergence = Some(Divergence { keys, key_count, revision, found: Instant::now(), detections });
        });
        self.progress(kind).request_repair();
    }

    /// Returns the first keys as the source names them.
    fn shown_keys(&self, kind: Kind, names: &[String]) -> Vec<String> {
        let prefix = keys::watched_prefix(kind, self.cluster, self.source.info.cached);
        names.iter().take(Divergence::KEYS_MAX).map(|name| format!("{prefix}{name}")).collect()
    }

    fn progress(&self, kind: Kind) -> &ScopeProgress {
        &self.scopes[kind.index()]
    }

    fn scope(&self, kind: Kind) -> Scope {
        Scope { cluster: self.cluster.clone(), kind }
    }
}
