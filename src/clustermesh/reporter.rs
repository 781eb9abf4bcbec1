//! The status of one cluster, which its tasks update and the APIs read: one watch channel per
//! cluster.
//!
//! [`Reporter`] also logs phases and failures, and limits how often each is logged.

mod config;
mod phases;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use self::phases::{LoggedPhases, awaited_canaries, derive_phase, describe_loss, phase_to_announce, predicate};
use super::connection_error::ConnectionError;
use crate::commit::CommandSender;
use crate::instruments::{LogLimiter, LogPermit};
use crate::model::{
    ClusterName, ClusterStatus, Command, Heartbeat, Kind, Phase, RefusedKey, ResourceStatus, RevisionRollback, UnknownPrefix,
    readable_error,
};

// limits on how often a phase, failure, wait or unknown prefix of a cluster is logged
static PHASE_LOG: LogLimiter = LogLimiter::new();
static FAILURE_LOG: LogLimiter = LogLimiter::new();
static WAIT_LOG: LogLimiter = LogLimiter::new();
static UNKNOWN_PREFIX_LOG: LogLimiter = LogLimiter::new();

/// Writing end of a cluster's status. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Reporter {
    cluster: ClusterName,
    status: Arc<watch::Sender<ClusterStatus>>,
    logged: Arc<Mutex<LoggedPhases>>,
}

impl Reporter {
    pub(super) fn new(cluster: ClusterName) -> (Self, watch::Receiver<ClusterStatus>) {
        let (status, receiver) = watch::channel(ClusterStatus::new(Instant::now()));
        (Self { cluster, status: Arc::new(status), logged: Arc::default() }, receiver)
    }

    /// Enters a phase and logs it.
    pub(super) fn enter_phase(&self, phase: Phase) {
        if self.enter(phase) {
            self.log_phase(phase, None);
        }
    }

    /// Enters a phase. Returns whether the phase changed.
    fn enter(&self, phase: Phase) -> bool {
        self.status.send_if_modified(|status| {
            let changed = status.phase != phase;
            if changed {
                status.phase = phase;
                status.next_retry = None;
            }
            changed
        })
    }

    /// Logs a change of phase, with its cause if that is known.
    fn log_phase(&self, phase: Phase, error: Option<&str>) {
        let (cluster, name) = (&self.cluster, phase.api_name());
        let mut text = predicate(phase).to_owned();
        if phase == Phase::Live {
            text.push_str(&format!(" after {:.1} s", self.logged().since().elapsed().as_secs_f64()));
        }
        match (self.due_phase_log(phase), error) {
            (Some(LogPermit { more }), Some(error)) => tracing::warn!(%cluster, phase = name, error, more, "cluster {cluster} {text}"),
            (Some(LogPermit { more }), None) => tracing::info!(%cluster, phase = name, more, "cluster {cluster} {text}"),
            (None, error) => tracing::debug!(%cluster, phase = name, error, "cluster {cluster} {text} again"),
        }
    }

    /// Returns a permit to log a phase, if a log line is due. The limit is needed because a remote
    /// can alternate between `live` and `sourceLost` as often as it likes.
    fn due_phase_log(&self, phase: Phase) -> Option<LogPermit> {
        self.logged().record_phase(phase).then(|| PHASE_LOG.permit(&format!("{} {}", self.cluster, phase.api_name()))).flatten()
    }

    fn logged(&self) -> MutexGuard<'_, LoggedPhases> {
        self.logged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends each phase with its cause to the committer, so that the phase becomes part of the
    /// change stream. Short phases may be skipped. Runs until the committer ends.
    pub(super) async fn publish_phases(self, commands: CommandSender) {
        let mut status = self.status.subscribe();
        let mut announced = None;
        loop {
            let due = phase_to_announce(announced, &status.borrow_and_update());
            if let Some((phase, cause)) = due {
                let command = Command::Phase { cluster: self.cluster.clone(), phase, cause };
                if commands.send(command).await.is_err() {
                    return;
                }
                if announced.is_none_or(|(before, _)| before != phase) {
                    // `phase_since` is the start of the announced phase: each attempt to reach a
                    // cluster that is backing off enters `connecting`, which is not announced
                    self.status.send_if_modified(|status| {
                        status.phase_since = Instant::now();
                        false
                    });
                }
                announced = due;
            }
            if status.changed().await.is_err() {
                return;
            }
        }
    }

    /// Sets the time of the last contact to now.
    pub(super) fn record_contact(&self) {
        self.status.send_if_modified(|status| {
            status.last_contact = Some(Instant::now());
            status.last_contact_time = Some(SystemTime::now());
            false
        });
    }

    /// Records a new connection and the heartbeat in its etcd. A writer that was silent before
    /// stays silent if it put no heartbeat since the previous connection.
    pub(super) fn record_writer_connection(&self, heartbeat: Option<Heartbeat>) {
        self.status.send_if_modified(|status| {
            status.writer.record_connection(heartbeat, Instant::now());
            false
        });
    }

    pub(super) fn record_heartbeat(&self, heartbeat: Heartbeat) {
        self.status.send_if_modified(|status| {
            status.writer.record_heartbeat(heartbeat, Instant::now());
            false
        });
    }

    pub(super) fn is_writer_silent(&self) -> bool {
        let status = self.status.borrow();
        status.writer.silence(status.last_contact).is_some()
    }

    /// Records the errors that the etcd of a silent writer reports.
    pub(super) fn set_etcd_errors(&self, errors: Vec<String>) {
        self.status.send_if_modified(|status| {
            let changed = status.writer.etcd_errors != errors;
            status.writer.etcd_errors = errors;
            changed
        });
    }

    /// Records a failed attempt; the next one starts after `wait`. A repeated error is logged only
    /// at debug level, because a remote that is down for a day would fill the log.
    pub(super) fn record_failure(&self, error: &str, wait: Duration) {
        let error = &*readable_error(error);
        let retry_in_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let is_new_error = self.status.borrow().last_error.as_deref() != Some(error);
        // the error is set before the phase, because both are announced together
        self.change_status(|status| {
            status.failure_count += 1;
            status.failed_in = Some(status.phase);
            status.last_error = Some(error.to_owned());
            status.last_error_time = Some(SystemTime::now());
        });
        let entered = self.enter(Phase::BackingOff);
        self.change_status(|status| status.next_retry = Some(Instant::now() + wait));
        let phase = Phase::BackingOff.api_name();
        match is_new_error.then(|| FAILURE_LOG.permit(&format!("{} {error}", self.cluster))).flatten() {
            // this line covers the change of phase too
            Some(LogPermit { more }) => {
                tracing::warn!(cluster = %self.cluster, phase, error, retry_in_ms, more, "an attempt to read cluster {} failed: {error}", self.cluster)
            }
            None if entered => self.log_phase(Phase::BackingOff, Some(error)),
            None => {
                tracing::debug!(cluster = %self.cluster, phase, error, retry_in_ms, "an attempt to read cluster {} failed again: {error}", self.cluster)
            }
        }
    }

    /// Records that the cluster exceeds its size limits. This stays until all kinds are read.
    pub(super) fn set_too_large(&self, excess: &ConnectionError) {
        self.change_status(|status| status.too_large = Some(excess.to_string()));
    }

    /// Records that the etcd's revision decreased during the connection that has just ended.
    pub(super) fn record_rollback(&self, error: &ConnectionError) {
        self.change_status(|status| {
            let count = status.revision_rollback.as_ref().map_or(0, |before| before.count) + 1;
            status.revision_rollback = Some(RevisionRollback { error: error.to_string(), last: Instant::now(), count });
        });
    }

    /// Records the error in the cluster's client file, if any, and the warnings about the file.
    pub(super) fn set_file_state(&self, error: Option<String>, warnings: Option<String>) {
        if let Some(warnings) = warnings.as_ref().filter(|warnings| self.status.borrow().file_warnings.as_ref() != Some(warnings)) {
            tracing::warn!(cluster = %self.cluster, "the client file of cluster {} is accepted, but is probably wrong: {warnings}", self.cluster);
        }
        self.status.send_if_modified(|status| {
            let changed = (&status.file_error, &status.file_warnings) != (&error, &warnings);
            (status.file_error, status.file_warnings) = (error, warnings);
            changed
        });
    }

    /// Records whether the source leaves progress requests unanswered.
    pub(super) fn set_progress_unanswered(&self, unanswered: bool) {
        self.status.send_if_modified(|status| std::mem::replace(&mut status.progress_unanswered, unanswered) != unanswered);
    }

    /// Resets the status of a connection or an attempt that ended. `config_deleted` stays set until
    /// the config is read again.
    pub(super) fn reset_connection(&self) {
        self.change_status(|status| {
            status.connected = false;
            status.config_retrieved = false;
            status.progress_unanswered = false;
            for resource in &mut status.resources {
                resource.set_synced(false, status.last_contact_time);
                resource.awaiting_canary = false;
                resource.canary_deleted = false;
            }
        });
    }

    /// Enters a phase that waits for something without a failure, and records the reason.
    pub(super) fn enter_waiting(&self, phase: Phase, reason: &str) {
        let reason = &*readable_error(reason);
        let is_new_reason = self.status.borrow().last_error.as_deref() != Some(reason) || self.status.borrow().phase != phase;
        if is_new_reason {
            self.change_status(|status| {
                status.failed_in = None;
                status.last_error = Some(reason.to_owned());
                status.last_error_time = Some(SystemTime::now());
            });
        }
        let entered = self.enter(phase);
        match is_new_reason.then(|| WAIT_LOG.permit(&format!("{} {reason}", self.cluster))).flatten() {
            Some(LogPermit { more }) => {
                tracing::warn!(cluster = %self.cluster, phase = phase.api_name(), reason, more, "cluster {} waits: {reason}", self.cluster)
            }
            None if entered => self.log_phase(phase, Some(reason)),
            None => {}
        }
    }

    /// Records the state of one kind, and updates the phase.
    pub(super) fn set_kind_state(&self, kind: Kind, synced: bool, awaiting_canary: bool) {
        let changed = self.status.send_if_modified(|status| {
            let last_contact = status.last_contact_time;
            let resource = status.resource_mut(kind);
            let changed = (resource.synced, resource.awaiting_canary) != (synced, awaiting_canary);
            resource.set_synced(synced, last_contact);
            resource.awaiting_canary = awaiting_canary;
            changed
        });
        if changed {
            self.update_phase();
        }
    }

    /// Records the number of held keys of a kind.
    pub(super) fn set_held_count(&self, kind: Kind, held_count: usize) {
        self.change_source_state(|status| std::mem::replace(&mut status.resource_mut(kind).held_count, held_count) != held_count);
    }

    /// Records whether the cluster config (`None`) or the canary of a kind is missing from the
    /// source.
    pub(super) fn set_writer_key_missing(&self, kind: Option<Kind>, missing: bool) {
        self.change_source_state(|status| {
            let writer_key = match kind {
                None => &mut status.config_deleted,
                Some(kind) => &mut status.resource_mut(kind).canary_deleted,
            };
            std::mem::replace(writer_key, missing) != missing
        });
    }

    /// Applies a change that may decide between `live` and `sourceLost`, and updates the phase if
    /// the cluster is in one of them.
    fn change_source_state(&self, change: impl FnOnce(&mut ClusterStatus) -> bool) {
        let changed = self.status.send_if_modified(change);
        if changed && matches!(self.status.borrow().phase, Phase::Live | Phase::SourceLost) {
            self.update_phase();
        }
    }

    /// Enters the phase that follows from the state of all kinds.
    fn update_phase(&self) {
        let (before, phase, loss) = {
            let status = self.status.borrow();
            let phase = derive_phase(&status);
            (status.phase, phase, (phase == Phase::SourceLost).then(|| describe_loss(&status)))
        };
        if phase == Phase::WaitingForCanary {
            // the reason is set before the phase, because both are announced together
            self.set_reason(|status| Some(awaited_canaries(&self.cluster, status)));
        } else if before == Phase::WaitingForCanary {
            self.set_reason(|_| None);
        }
        if self.enter(phase) {
            self.log_phase(phase, loss.as_deref());
        }
        match phase {
            Phase::Live => self.set_reason(|_| None),
            Phase::SourceLost => self.set_reason(|status| Some(describe_loss(status))),
            _ => return,
        }
        self.change_status(|status| (status.too_large, status.failed_in) = (None, None));
    }

    /// Sets the reason for the current phase, or clears it.
    fn set_reason(&self, reason: impl FnOnce(&ClusterStatus) -> Option<String>) {
        self.change_status(|status| {
            status.last_error = reason(status);
            if status.last_error.is_some() {
                status.last_error_time = Some(SystemTime::now());
            }
        });
    }

    /// Records the keys of a kind that cannot be read as entries: key, value and reason of each.
    pub(super) fn set_refused_keys<'a>(&self, kind: Kind, refused: impl IntoIterator<Item = (&'a [u8], &'a [u8], &'a str)>) {
        let now = SystemTime::now();
        let refused = refused.into_iter().map(|(key, value, reason)| RefusedKey::new(kind, key, value, reason, now));
        let refused: Vec<RefusedKey> = refused.collect();
        self.status.send_if_modified(|status| {
            let changes = !refused.is_empty() || status.refused.iter().any(|known| known.kind == kind);
            if changes {
                status.set_refused_keys(kind, refused);
            }
            changes
        });
    }

    /// Records the unknown prefixes in the source, and logs the new ones.
    pub(super) fn set_unknown_prefixes(&self, prefixes: Vec<UnknownPrefix>) {
        let before = self.status.borrow().unknown_prefixes.clone();
        for unknown in prefixes.iter().filter(|unknown| !before.iter().any(|known| known.prefix == unknown.prefix)) {
            let UnknownPrefix { prefix, key_count } = unknown;
            let Some(LogPermit { more }) = UNKNOWN_PREFIX_LOG.permit(&format!("{} {prefix}", self.cluster)) else { continue };
            tracing::warn!(
                cluster = %self.cluster, prefix, key_count, more,
                "cluster {} has keys that this version does not know and does not mirror", self.cluster
            );
        }
        if before != prefixes {
            self.change_status(|status| status.unknown_prefixes = prefixes);
        }
    }

    pub(super) fn change_status(&self, change: impl FnOnce(&mut ClusterStatus)) {
        self.status.send_modify(change);
    }

    /// Changes the numbers and times of a kind that are only read on request. Wakes nobody, because
    /// no phase depends on them and they change with each message of a watch.
    pub(super) fn change_resource(&self, kind: Kind, change: impl FnOnce(&mut ResourceStatus)) {
        self.status.send_if_modified(|status| {
            change(status.resource_mut(kind));
            false
        });
    }

    /// Returns the numbers of held entries and of keys that are not entries of a kind.
    pub(super) fn excluded_counts(&self, kind: Kind) -> (u64, u64) {
        let status = self.status.borrow();
        let refused = status.refused.iter().filter(|refused| refused.kind == kind).count();
        (status.resource(kind).held_count as u64, refused as u64)
    }

    /// Returns the number of the newest request for a verification that was answered.
    pub(super) fn answered_request(&self) -> u64 {
        self.status.borrow().verification_run.as_ref().map_or(0, |run| run.number)
    }

    /// Returns whether every kind was synced when the last connection ended.
    pub(super) fn was_live(&self) -> bool {
        matches!(self.status.borrow().phase, Phase::Live | Phase::SourceLost)
    }

    /// Waits until every kind is synced.
    pub(super) async fn wait_until_synced(&self) {
        let mut status = self.status.subscribe();
        // the sender is a field of `self`, so the channel stays open
        let _ = status.wait_for(|status| matches!(status.phase, Phase::Live | Phase::SourceLost)).await;
    }

    /// Returns whether there is a connection with a usable cluster config, or to a legacy cluster.
    pub(super) fn is_connected(&self) -> bool {
        self.status.borrow().connected
    }

    pub(super) fn last_contact_time(&self) -> Option<SystemTime> {
        self.status.borrow().last_contact_time
    }
}

#[cfg(test)]
mod tests;
