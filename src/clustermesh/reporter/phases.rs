//! Rules about the phase of a cluster: the phase that follows from its state, the reason for it,
//! and whether it must be announced or logged. The rules are pure.

use std::hash::{DefaultHasher, Hasher};
use std::time::Instant;

use crate::model::{ClusterName, ClusterStatus, Kind, Phase};
use crate::wire::keys::canary_key;

/// Returns the phase to announce and a hash of its cause, if they differ from the last announced
/// ones.
///
/// A cluster that cannot be reached counts as backing off until it is reached. Further attempts are
/// not announced.
pub(super) fn phase_to_announce(announced: Option<(Phase, u64)>, status: &ClusterStatus) -> Option<(Phase, u64)> {
    let was_backing_off = announced.is_some_and(|(phase, _)| phase == Phase::BackingOff);
    if was_backing_off && status.phase == Phase::Connecting {
        return None;
    }
    let cause = status.last_error.as_ref().filter(|_| matches!(status.phase, Phase::BackingOff | Phase::WaitingForFiles));
    // 0 means no cause. Two errors have the same hash, which loses an event, about once in 10^19
    let current = (status.phase, cause.map_or(0, |error| hash_of(error).max(1)));
    (announced != Some(current)).then_some(current)
}

fn hash_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// Returns the phase of a cluster whose kinds are being read.
pub(super) fn derive_phase(status: &ClusterStatus) -> Phase {
    let resources = &status.resources;
    if resources.iter().any(|resource| resource.awaiting_canary) {
        Phase::WaitingForCanary
    } else if !resources.iter().all(|resource| resource.synced) {
        Phase::Listing
    } else if status.config_deleted || resources.iter().any(|resource| resource.canary_deleted || resource.held_count > 0) {
        Phase::SourceLost
    } else {
        Phase::Live
    }
}

/// Phases that were logged since all kinds were last read.
#[derive(Debug)]
pub(super) struct LoggedPhases {
    phases: Vec<Phase>,
    since: Instant,
}

impl Default for LoggedPhases {
    fn default() -> Self {
        Self { phases: Vec::new(), since: Instant::now() }
    }
}

impl LoggedPhases {
    /// Returns the time of the first phase since all kinds were last read, or the start time if no
    /// phase was logged yet.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Records a phase, and returns whether it is new since all kinds were last read. A remote that
    /// is down for a day repeats a few phases at each attempt, which would fill the log.
    pub(super) fn record_phase(&mut self, phase: Phase) -> bool {
        if matches!(phase, Phase::Live | Phase::SourceLost) {
            self.phases.clear();
            return true;
        }
        let is_new = !self.phases.contains(&phase);
        if is_new {
            if self.phases.is_empty() {
                self.since = Instant::now();
            }
            self.phases.push(phase);
        }
        is_new
    }
}

/// Returns the log text for a phase, to be written after `cluster NAME`.
pub(super) fn predicate(phase: Phase) -> &'static str {
    match phase {
        Phase::WaitingForFiles => "waits for its client file or for a certificate or key that the file names",
        Phase::Connecting => "is connecting",
        Phase::ReadingConfig => "is connected, its config is being read",
        Phase::WaitingForCanary => "waits for a canary",
        Phase::Listing => "is being listed",
        Phase::Live => "is live",
        Phase::SourceLost => "has lost keys or its config at the source",
        Phase::BackingOff => "could not be read and waits for the next attempt",
        Phase::Draining => "is being removed",
    }
}

/// Describes what the source has lost, for status and log.
pub(super) fn describe_loss(status: &ClusterStatus) -> String {
    let held: usize = status.resources.iter().map(|resource| resource.held_count).sum();
    let canary = status.resources.iter().any(|resource| resource.canary_deleted);
    let loss = match (status.config_deleted, canary) {
        (true, true) => "its cluster config and canaries were deleted",
        (true, false) => "its cluster config was deleted",
        (false, true) => "one of its canaries was deleted",
        (false, false) => "some of its leases expired",
    };
    format!("{loss}: meshkeep holds deleted keys as stale until the cluster has recovered ({held} keys now)")
}

/// Describes the canaries that are missing, with key and kind, for status and log.
pub(super) fn awaited_canaries(cluster: &ClusterName, status: &ClusterStatus) -> String {
    let cached = status.config.as_ref().is_some_and(|config| config.cached);
    let awaited = Kind::ALL.into_iter().filter(|kind| status.resource(*kind).awaiting_canary);
    let keys: Vec<String> = awaited.map(|kind| format!("{} ({})", canary_key(kind, cluster, cached), kind.api_name())).collect();
    let canaries = if keys.len() == 1 { "canary" } else { "canaries" };
    format!("waiting for the {canaries} {}: the writer has not finished its first sync", keys.join(", "))
}
