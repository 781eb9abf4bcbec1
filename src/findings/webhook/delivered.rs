//! Findings that the receiver has accepted, and their difference from the current findings. Does no
//! I/O.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::CurrentFindings;
use crate::findings::{PUBLISHED_BYTES_MAX, PUBLISHED_COUNT_MAX};
use crate::model::{EntryKey, Object, Severity};

/// Finding to post.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingPost {
    pub(super) key: EntryKey,
    /// The current finding, or its last state if it was resolved.
    pub(super) object: Arc<Object>,
    /// Set if the finding appeared, or still exists; otherwise it was resolved.
    pub(super) has_appeared: bool,
}

/// Findings that the receiver has accepted, until it also accepts that they are resolved, and the
/// number of failed attempts of each pending post. The change stream's limits on findings and bytes
/// also apply here, however the receiver answers.
#[derive(Debug, Default)]
pub(super) struct DeliveredFindings {
    accepted: CurrentFindings,
    accepted_bytes: usize,
    /// Number of failed attempts of each pending post.
    attempts: BTreeMap<EntryKey, u32>,
    /// Interval in which a finding that lasts is posted again.
    repeat_interval: Option<Duration>,
    /// Time of the last post of each accepted finding. Empty without a repeat interval.
    posted_at: BTreeMap<EntryKey, Instant>,
}

impl DeliveredFindings {
    /// Creates the state before the first post.
    pub(super) fn new(repeat_interval: Option<Duration>) -> Self {
        Self { repeat_interval, ..Self::default() }
    }

    /// Returns the next post: the one with the fewest failed attempts, so that a finding that the
    /// receiver cannot process does not block others; then resolved findings, then the most severe.
    /// If no finding appeared or was resolved, it is the one that has to be posted again.
    pub(super) fn next_post(&mut self, now: &CurrentFindings, time: Instant) -> Option<PendingPost> {
        let accepted = &self.accepted;
        self.attempts.retain(|key, _| accepted.contains_key(key) || now.contains_key(key));
        let resolved = accepted.iter().filter(|(key, _)| !now.contains_key(key)).map(|(key, object)| (key, object, false));
        let has_capacity = accepted.len() < PUBLISHED_COUNT_MAX && self.accepted_bytes < PUBLISHED_BYTES_MAX;
        let appeared = now.iter().filter(|(key, _)| has_capacity && !accepted.contains_key(key)).map(|(key, object)| (key, object, true));
        let rank = |(key, object, has_appeared): &(&EntryKey, &Arc<Object>, bool)| {
            (self.attempts.get(key).copied().unwrap_or_default(), *has_appeared, severity(object))
        };
        let changed = resolved.chain(appeared).min_by_key(rank);
        let (key, object, has_appeared) = changed.or_else(|| {
            let key = self.next_repeat(time)?;
            Some((key, now.get(key)?, true))
        })?;
        Some(PendingPost { key: key.clone(), object: Arc::clone(object), has_appeared })
    }

    /// Returns the time until a finding has to be posted again. Without such findings, it is longer
    /// than any process lives.
    pub(super) fn time_to_repeat(&self, time: Instant) -> Duration {
        let oldest = self.posted_at.values().min().zip(self.repeat_interval);
        oldest.map_or(Duration::MAX, |(posted, interval)| (*posted + interval).saturating_duration_since(time))
    }

    /// Returns the accepted finding that has to be posted again: the one with the fewest failed
    /// attempts, then the one whose last post is the oldest.
    fn next_repeat(&self, time: Instant) -> Option<&EntryKey> {
        let interval = self.repeat_interval?;
        let due = self.posted_at.iter().filter(|(_, posted)| **posted + interval <= time);
        due.min_by_key(|(key, posted)| (self.attempts.get(*key).copied().unwrap_or_default(), **posted)).map(|(key, _)| key)
    }

    /// Returns the number of pending posts.
    pub(super) fn pending_count(&self, now: &CurrentFindings) -> u64 {
        let resolved = self.accepted.keys().filter(|key| !now.contains_key(key)).count();
        let appeared = now.keys().filter(|key| !self.accepted.contains_key(key)).count();
        (resolved + appeared) as u64
    }

    /// Records that a post needs no further attempt: the receiver has accepted it, or will never
    /// accept it.
    pub(super) fn record_success(&mut self, change: PendingPost, time: Instant) {
        let PendingPost { key, object, has_appeared } = change;
        self.attempts.remove(&key);
        self.posted_at.remove(&key);
        let bytes = |object: &Arc<Object>| object.as_finding().map_or(0, |finding| finding.text_bytes());
        if let Some(accepted) = self.accepted.remove(&key) {
            self.accepted_bytes -= bytes(&accepted);
        }
        if has_appeared {
            self.accepted_bytes += bytes(&object);
            if self.repeat_interval.is_some() {
                self.posted_at.insert(key.clone(), time);
            }
            self.accepted.insert(key, object);
        }
    }

    /// Records a failed attempt.
    pub(super) fn record_failure(&mut self, change: PendingPost) {
        let attempts = self.attempts.entry(change.key).or_default();
        *attempts = attempts.saturating_add(1);
    }
}

fn severity(object: &Object) -> Severity {
    object.as_finding().map_or(Severity::Info, |finding| finding.severity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FindingKind, FindingObject};

    fn current<'a>(findings: impl IntoIterator<Item = (FindingKind, &'a str)>) -> CurrentFindings {
        let one = |(kind, cluster): (FindingKind, &str)| {
            let accepted = FindingObject::new(kind, cluster, [cluster], "");
            (accepted.stream_key(), Arc::new(Object::Finding(accepted.into())))
        };
        findings.into_iter().map(one).collect()
    }

    fn post_text(change: Option<&PendingPost>) -> String {
        let sign = |change: &PendingPost| if change.has_appeared { "+" } else { "-" };
        change.map(|change| format!("{}{}", sign(change), change.key)).unwrap_or_default()
    }

    #[test]
    fn a_finding_resolved_before_its_post_is_not_posted() {
        let mut delivered = DeliveredFindings::default();
        let now = current([(FindingKind::SourceLost, "a"), (FindingKind::SourceLost, "b")]);
        let first = delivered.next_post(&now, Instant::now()).unwrap();
        assert_eq!((post_text(Some(&first)), delivered.pending_count(&now)), ("+problem/sourceLost/a".to_owned(), 2));
        delivered.record_success(first, Instant::now());
        assert_eq!(delivered.next_post(&current([(FindingKind::SourceLost, "a")]), Instant::now()), None);
        let resolved = delivered.next_post(&current([]), Instant::now()).unwrap();
        assert_eq!(post_text(Some(&resolved)), "-problem/sourceLost/a");
        delivered.record_success(resolved, Instant::now());
        assert_eq!((delivered.next_post(&current([]), Instant::now()), delivered.accepted_bytes), (None, 0));
    }

    #[test]
    fn severe_findings_are_first_and_failures_delay_no_others() {
        let mut delivered = DeliveredFindings::default();
        let now = current([(FindingKind::StaleFile, "a"), (FindingKind::DuplicateClusterId, "b"), (FindingKind::SourceLost, "c")]);
        let mut accepted = Vec::new();
        for _ in 0..5 {
            let change = delivered.next_post(&now, Instant::now()).unwrap();
            accepted.push(change.key.to_string());
            if change.key.to_string().contains("duplicateClusterID") {
                delivered.record_failure(change)
            } else {
                delivered.record_success(change, Instant::now())
            }
        }
        assert_eq!(accepted[0], "problem/duplicateClusterID/b");
        assert!(accepted[3..].iter().all(|key| key == &accepted[0]), "{accepted:?}");
        assert_eq!(delivered.attempts.len(), 1);
        assert_eq!(
            (
                delivered.next_post(&current([(FindingKind::StaleFile, "a"), (FindingKind::SourceLost, "c")]), Instant::now()),
                delivered.attempts.len()
            ),
            (None, 0)
        );
    }

    /// The receiver accepts new findings, but never accepts that a finding was resolved.
    #[test]
    fn accepted_findings_are_bounded_for_any_receiver() {
        let mut delivered = DeliveredFindings::default();
        let names: Vec<String> = (0..PUBLISHED_COUNT_MAX + 50).map(|number| number.to_string()).collect();
        let early = current(names[..PUBLISHED_COUNT_MAX].iter().map(|name| (FindingKind::StaleFile, name.as_str())));
        for (key, object) in &early {
            delivered.record_success(PendingPost { key: key.clone(), object: Arc::clone(object), has_appeared: true }, Instant::now());
        }
        let late = current(names[PUBLISHED_COUNT_MAX..].iter().map(|name| (FindingKind::StaleFile, name.as_str())));
        for (key, object) in &early {
            delivered.record_failure(PendingPost { key: key.clone(), object: Arc::clone(object), has_appeared: false });
        }
        // a new finding would come first if there were capacity
        let resolved = delivered.next_post(&late, Instant::now()).unwrap();
        assert!(!resolved.has_appeared);
        delivered.record_success(resolved, Instant::now());
        let appeared = delivered.next_post(&late, Instant::now()).unwrap();
        assert!(appeared.has_appeared);
        delivered.record_success(appeared, Instant::now());
        assert!(!delivered.next_post(&late, Instant::now()).unwrap().has_appeared);
    }

    #[test]
    fn findings_that_last_are_repeated_with_their_current_text() {
        let (interval, start) = (Duration::from_secs(60), Instant::now());
        let mut delivered = DeliveredFindings::new(Some(interval));
        let now = current([(FindingKind::SourceLost, "a"), (FindingKind::SourceLost, "b")]);
        for seconds in [0, 1] {
            let post = delivered.next_post(&now, start).unwrap();
            delivered.record_success(post, start + Duration::from_secs(seconds));
        }
        let bytes = delivered.accepted_bytes;
        assert_eq!((delivered.next_post(&now, start + interval / 2), delivered.time_to_repeat(start)), (None, interval));
        let again = delivered.next_post(&now, start + interval).unwrap();
        assert_eq!(post_text(Some(&again)), "+problem/sourceLost/a");
        delivered.record_success(again, start + interval);
        assert_eq!(delivered.accepted_bytes, bytes);
        let failed = delivered.next_post(&now, start + 2 * interval).unwrap();
        assert_eq!(post_text(Some(&failed)), "+problem/sourceLost/b");
        // a failure delays no other finding
        delivered.record_failure(failed);
        assert_eq!(post_text(delivered.next_post(&now, start + 2 * interval).as_ref()), "+problem/sourceLost/a");
        // a resolved finding is posted first, and not again
        let resolved = delivered.next_post(&current([]), start + 2 * interval).unwrap();
        assert!(!resolved.has_appeared);
        delivered.record_success(resolved, start + 2 * interval);
        assert_eq!(delivered.posted_at.len(), 1);
    }
}
