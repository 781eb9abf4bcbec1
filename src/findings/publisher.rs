//! Publishes findings to the change stream (`kind=problem`).
//!
//! [`FindingPublisher`] compares the current findings with those that it published last, and
//! returns one change for each finding that is new, changed or resolved. The comparison runs at
//! intervals (`detector`). It therefore also publishes changes that only the passage of time
//! causes, such as a certificate that is about to expire, and does not publish a finding that
//! begins and ends between two comparisons.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{PUBLISHED_BYTES_MAX, PUBLISHED_COUNT_MAX, UnreadNodes, describe};
use crate::handle::{FindingIndex, Reading};
use crate::model::{EntryKey, FindingChange, FindingObject, Object};

/// Maximum number of changes that one comparison publishes. It limits the tombstones per second if
/// findings begin and end all the time. The largest set is published within 16 s.
const CHANGES_MAX: usize = 512;

/// Minimum age at which a finding across keys is published. Keys that refer to each other arrive
/// over different watches, and one may be a moment later than the other.
const PUBLISHED_AGE_MIN: Duration = Duration::from_secs(1);

/// Findings that were published and are not resolved.
#[derive(Debug, Default)]
pub(crate) struct FindingPublisher {
    published: BTreeMap<EntryKey, Arc<Object>>,
}

/// Current findings, at most [`PUBLISHED_COUNT_MAX`] and [`PUBLISHED_BYTES_MAX`].
#[derive(Debug, Default)]
pub(crate) struct FindingSet {
    by_key: BTreeMap<EntryKey, FindingObject>,
    bytes: usize,
    /// Number of findings that exceed the limits and are not published.
    pub(crate) omitted_count: u64,
}

impl FindingSet {
    /// Collects the findings about clusters and this process, then those across keys that are at
    /// least [`PUBLISHED_AGE_MIN`] old.
    pub(crate) fn collect(current: Vec<FindingObject>, index: Option<&FindingIndex>, reading: &Reading, now: SystemTime) -> Self {
        let mut found = Self::default();
        let (mut omitted_count, total) =
            (0, current.len() as u64 + index.iter().flat_map(|index| index.counts()).map(|(_, count)| count).sum::<u64>());
        for finding in current {
            omitted_count += u64::from(!found.insert(finding));
        }
        let Some(index) = index else { return Self { omitted_count, ..found } };
        let is_old_enough = |finding: &&crate::handle::Finding| {
            index.detected_at(finding).is_some_and(|since| now.duration_since(since).is_ok_and(|age| age >= PUBLISHED_AGE_MIN))
        };
        let unread = UnreadNodes::new(reading);
        for finding in index.findings_from(None).filter(is_old_enough) {
            if let Some(finding) = describe(finding, index, reading, &unread)
                && !found.insert(finding)
            {
                omitted_count = total.saturating_sub(found.by_key.len() as u64);
                break;
            }
        }
        Self { omitted_count, ..found }
    }

    /// Adds a finding. Returns false if the limits do not allow it.
    fn insert(&mut self, finding: FindingObject) -> bool {
        let bytes = self.bytes + finding.text_bytes();
        if self.by_key.len() >= PUBLISHED_COUNT_MAX || bytes > PUBLISHED_BYTES_MAX {
            return false;
        }
        self.bytes = bytes;
        self.by_key.insert(finding.stream_key(), finding);
        true
    }
}

impl FindingPublisher {
    /// Returns the published findings by key.
    pub(super) fn published(&self) -> &BTreeMap<EntryKey, Arc<Object>> {
        &self.published
    }

    /// Returns up to [`CHANGES_MAX`] changes from the published findings to `found`, resolved
    /// findings first, and records them as published.
    pub(crate) fn changes(&mut self, found: FindingSet) -> Vec<FindingChange> {
        let resolved: Vec<EntryKey> =
            self.published.keys().filter(|key| !found.by_key.contains_key(key)).take(CHANGES_MAX).cloned().collect();
        let mut changes: Vec<FindingChange> = resolved.into_iter().map(|key| (key, None)).collect();
        for (key, finding) in found.by_key {
            if changes.len() >= CHANGES_MAX {
                break;
            }
            let before = self.published.get(&key).and_then(|object| object.as_finding());
            if before.is_none_or(|before| !before.has_same_content(&finding)) {
                changes.push((key, Some(Arc::new(Object::Finding(finding.into())))));
            }
        }
        for (key, object) in &changes {
            match object {
                Some(object) => drop(self.published.insert(key.clone(), Arc::clone(object))),
                None => drop(self.published.remove(key)),
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FindingKind;

    fn found(findings: impl IntoIterator<Item = FindingObject>) -> FindingSet {
        let mut found = FindingSet::default();
        findings.into_iter().for_each(|finding| assert!(found.insert(finding)));
        found
    }

    fn lost(cluster: &str, detail: &str) -> FindingObject {
        FindingObject::new(FindingKind::SourceLost, cluster, [cluster], detail)
    }

    fn texts(changes: Vec<FindingChange>) -> Vec<String> {
        let text = |(key, object): (EntryKey, Option<Arc<Object>>)| match object.as_deref().and_then(Object::as_finding) {
            Some(finding) => format!("{key} {}", finding.detail),
            None => format!("{key} over"),
        };
        changes.into_iter().map(text).collect()
    }

    #[test]
    fn each_change_is_published_once_and_resolved_findings_come_first() {
        let mut publisher = FindingPublisher::default();
        let key = |cluster: &str| format!("problem/sourceLost/{cluster}");
        assert_eq!(texts(publisher.changes(found([lost("b", "x"), lost("a", "y")]))), [key("a") + " y", key("b") + " x"]);
        let again = FindingObject { since: Some("2026-01-01T00:00:00Z".to_owned()), ..lost("a", "y") };
        assert_eq!(texts(publisher.changes(found([lost("b", "x"), again]))), Vec::<String>::new());
        assert_eq!(texts(publisher.changes(found([lost("a", "z")]))), [key("b") + " over", key("a") + " z"]);
        assert_eq!(texts(publisher.changes(found([]))), [key("a") + " over"]);
    }

    #[test]
    fn many_findings_are_published_in_steps_and_within_the_limits() {
        let many = |count: usize| {
            (0..count).map(|number| FindingObject::new(FindingKind::StaleFile, &number.to_string(), ["paris"], "x".repeat(100)))
        };
        let mut bounded = FindingSet::default();
        let inserted_count = many(PUBLISHED_COUNT_MAX + 100).filter(|finding| bounded.insert(finding.clone())).count();
        assert_eq!(inserted_count, PUBLISHED_COUNT_MAX);
        let mut long = FindingSet::default();
        let inserted_count =
            many(40).map(|finding| FindingObject { detail: "x".repeat(1 << 20), ..finding }).filter(|one| long.insert(one.clone())).count();
        assert_eq!(inserted_count, 15);
        let mut publisher = FindingPublisher::default();
        let steps: Vec<usize> = (0..4).map(|_| publisher.changes(found(many(CHANGES_MAX * 2 + 7))).len()).collect();
        assert_eq!(steps, [CHANGES_MAX, CHANGES_MAX, 7, 0]);
        assert_eq!([publisher.changes(found([])).len(), publisher.published.len()], [CHANGES_MAX, CHANGES_MAX + 7]);
    }
}
