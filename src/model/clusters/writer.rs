//! Writers behind the remotes' etcds: their last heartbeats, and whether they have been silent for
//! too long.
//!
//! An etcd answers as long as it runs, even after its writer (clustermesh-apiserver, KVStoreMesh)
//! has ended or can no longer write. The age of the mirrored data therefore needs both: the last
//! contact with the etcd, and the last heartbeat, which a writer puts once a minute.

use std::time::{Duration, Instant, SystemTime};

use crate::model::{EtcdClusterId, Revision, Severity};

/// Limits on the silence of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilenceLimits {
    /// Silence after which the age of the data is that of the last heartbeat, and a finding is
    /// published. Cilium's readers reconnect after two minutes (`pkg/kvstore/etcd.go`).
    pub warning: Duration,
    /// Silence after which the finding is critical.
    pub critical: Duration,
}

impl Default for SilenceLimits {
    fn default() -> Self {
        Self { warning: Duration::from_secs(120), critical: Duration::from_secs(600) }
    }
}

/// One put of the heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// Etcd that received the put.
    pub etcd_cluster_id: EtcdClusterId,
    /// Revision of the put.
    pub revision: Revision,
    /// Time in its value, in seconds since 1970 by the writer's clock; `None` if the value is not a
    /// time.
    pub written: Option<i64>,
}

impl Heartbeat {
    /// Returns whether this put came after the other one. Puts of two etcds (replicas, or one that
    /// was recreated) are compared by the times in their values.
    fn is_newer_than(&self, other: &Self) -> bool {
        if self.etcd_cluster_id == other.etcd_cluster_id && self.revision >= other.revision {
            return self.revision > other.revision;
        }
        matches!((self.written, other.written), (Some(this), Some(that)) if this > that)
    }
}

/// State of a cluster's writer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WriterStatus {
    /// Limits on the writer's silence.
    pub limits: SilenceLimits,
    /// Arrival time of the last heartbeat, or the start of the first connection if no heartbeat has
    /// arrived. `None` before the first connection.
    last_heard: Option<Instant>,
    /// Wall-clock time of `last_heard`, for answers.
    last_heard_time: Option<SystemTime>,
    /// Whether a heartbeat arrived since meshkeep started.
    has_heartbeat: bool,
    /// Newest heartbeat of the etcd.
    newest: Option<Heartbeat>,
    /// Alarms and errors that the etcd reports while the writer is silent, such as `NOSPACE`.
    pub etcd_errors: Vec<String>,
}

impl WriterStatus {
    /// Records a new connection, whose etcd has this heartbeat. The heartbeat counts as an arrival
    /// only if it is newer than the last one: a new connection does not make an old heartbeat
    /// younger. The age of the first connection's heartbeat is unknown.
    pub fn record_connection(&mut self, heartbeat: Option<Heartbeat>, now: Instant) {
        if self.last_heard.is_none() {
            (self.last_heard, self.last_heard_time) = (Some(now), Some(SystemTime::now()));
            self.newest = heartbeat;
            return;
        }
        let Some(heartbeat) = heartbeat else { return };
        if self.newest.as_ref().is_none_or(|newest| heartbeat.is_newer_than(newest)) {
            self.record_heartbeat(heartbeat, now);
        }
    }

    /// Records the arrival of a heartbeat.
    pub fn record_heartbeat(&mut self, heartbeat: Heartbeat, now: Instant) {
        (self.last_heard, self.last_heard_time, self.has_heartbeat) = (Some(now), Some(SystemTime::now()), true);
        self.newest = Some(heartbeat);
        self.etcd_errors.clear();
    }

    /// Returns the arrival time of the last heartbeat; `None` if none arrived since meshkeep
    /// started.
    #[must_use]
    pub fn last_heartbeat(&self) -> Option<SystemTime> {
        self.last_heard_time.filter(|_| self.has_heartbeat)
    }

    /// Returns the arrival time of the last heartbeat, or the start of the first connection if none
    /// arrived.
    #[must_use]
    pub const fn last_heard_time(&self) -> Option<SystemTime> {
        self.last_heard_time
    }

    /// Returns the age of the data whose etcd last responded at `contact`: the age of that contact,
    /// or, once the writer is silent, the age of its last heartbeat if that is higher.
    #[must_use]
    pub fn age(&self, contact: Instant, now: Instant) -> Duration {
        let contact_age = now.saturating_duration_since(contact);
        let heartbeat_age = self.last_heard.map_or(Duration::ZERO, |last_heard| now.saturating_duration_since(last_heard));
        if heartbeat_age < self.limits.warning { contact_age } else { contact_age.max(heartbeat_age) }
    }

    /// Returns the severity of the writer's silence; `None` if it is not too long. Only time in
    /// which the etcd answered counts, because the content of an unreachable etcd is unknown.
    #[must_use]
    pub fn silence(&self, contact: Option<Instant>) -> Option<Severity> {
        let silent = contact?.saturating_duration_since(self.last_heard?);
        match silent {
            _ if silent >= self.limits.critical => Some(Severity::Critical),
            _ if silent >= self.limits.warning => Some(Severity::Warning),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heartbeat(etcd: u64, revision: i64, written: Option<i64>) -> Heartbeat {
        Heartbeat { etcd_cluster_id: EtcdClusterId(etcd), revision: Revision(revision), written }
    }

    /// Returns the age and the silence of a writer that was connected to at `start`, the given
    /// seconds later, while its etcd answers.
    fn age_and_silence(writer: &WriterStatus, start: Instant, seconds: u64) -> (u64, Option<Severity>) {
        let now = start + Duration::from_secs(seconds);
        (writer.age(now, now).as_secs(), writer.silence(Some(now)))
    }

    #[test]
    fn a_reconnect_does_not_end_the_silence_of_a_writer() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut writer = WriterStatus::default();
        assert_eq!((writer.silence(Some(start)), writer.age(start, at(500))), (None, Duration::from_secs(500)));
        writer.record_connection(Some(heartbeat(1, 7, None)), start);
        assert_eq!(writer.last_heartbeat(), None);
        writer.record_heartbeat(heartbeat(1, 8, None), at(60));
        assert_eq!(age_and_silence(&writer, start, 179), (0, None));
        assert_eq!(age_and_silence(&writer, start, 180), (120, Some(Severity::Warning)));
        writer.record_connection(Some(heartbeat(1, 8, None)), at(181));
        assert_eq!(age_and_silence(&writer, start, 659), (599, Some(Severity::Warning)));
        writer.record_connection(Some(heartbeat(1, 8, None)), at(659));
        assert_eq!(age_and_silence(&writer, start, 660), (600, Some(Severity::Critical)));
        writer.etcd_errors = vec!["NOSPACE".to_owned()];
        // this heartbeat was put while there was no connection
        writer.record_connection(Some(heartbeat(1, 9, None)), at(700));
        assert_eq!((age_and_silence(&writer, start, 701), writer.etcd_errors.len()), ((0, None), 0));
    }

    #[test]
    fn without_heartbeats_silence_starts_at_the_first_connection() {
        let start = Instant::now();
        let mut writer = WriterStatus::default();
        writer.record_connection(None, start);
        writer.record_connection(None, start + Duration::from_secs(100));
        assert_eq!(age_and_silence(&writer, start, 120), (120, Some(Severity::Warning)));
        // an unreachable etcd reveals nothing about its writer
        assert_eq!(writer.silence(Some(start + Duration::from_secs(10))), None);
        writer.record_connection(Some(heartbeat(1, 9, None)), start + Duration::from_secs(130));
        assert_eq!(age_and_silence(&writer, start, 131), (0, None));
    }

    #[test]
    fn heartbeats_of_two_etcds_are_compared_by_time() {
        for (before, after, is_heard) in [
            (heartbeat(1, 9, Some(100)), heartbeat(2, 5, Some(160)), true),
            (heartbeat(1, 9, Some(100)), heartbeat(2, 50, Some(90)), false),
            (heartbeat(1, 9, Some(100)), heartbeat(2, 50, None), false),
            // recreated under the same id, or restored from a backup
            (heartbeat(1, 9, Some(100)), heartbeat(1, 5, Some(160)), true),
            (heartbeat(1, 9, Some(100)), heartbeat(1, 5, Some(90)), false),
            (heartbeat(1, 9, Some(100)), heartbeat(1, 9, Some(100)), false),
            // the order within one etcd wins over a clock that was set back
            (heartbeat(1, 9, Some(100)), heartbeat(1, 10, Some(50)), true),
        ] {
            let start = Instant::now();
            let mut writer = WriterStatus::default();
            writer.record_connection(Some(before.clone()), start);
            writer.record_connection(Some(after.clone()), start + Duration::from_secs(130));
            assert_eq!(age_and_silence(&writer, start, 131).1.is_none(), is_heard, "{before:?} {after:?}");
        }
    }
}
