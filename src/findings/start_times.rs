//! Start times of the findings about clusters and the process. A finding without a known start gets
//! the time at which it was detected first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::dto::text::rfc3339;
use crate::model::FindingObject;

/// Start times by finding, and the number of findings that the change stream omits. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct FindingStartTimes(Arc<StartTimesState>);

#[derive(Debug, Default)]
struct StartTimesState {
    /// Start by id of the finding, for current findings only: a few for each cluster.
    since: Mutex<BTreeMap<String, SystemTime>>,
    /// Number of findings that exceed the limits of the change stream.
    omitted_count: AtomicU64,
}

impl FindingStartTimes {
    /// Sets the start of each of the current findings, and forgets resolved findings.
    pub(crate) fn record(&self, findings: &mut [FindingObject]) {
        let now = SystemTime::now();
        let mut start_by_id = self.0.since.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *start_by_id);
        for finding in findings {
            let since = before.get(&finding.id).copied().unwrap_or(now);
            start_by_id.insert(finding.id.clone(), since);
            finding.since.get_or_insert_with(|| rfc3339(since));
        }
    }

    /// Stores the number of findings that exceed the limits of the change stream.
    pub(super) fn set_omitted_count(&self, count: u64) {
        self.0.omitted_count.store(count, Ordering::Relaxed);
    }

    /// Returns the number of findings that exceed the limits of the change stream.
    pub(crate) fn omitted_count(&self) -> u64 {
        self.0.omitted_count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FindingKind;

    #[test]
    fn a_finding_keeps_its_start_time_until_it_is_resolved() {
        let start_times = FindingStartTimes::default();
        let record = |present: bool| {
            let mut findings: Vec<FindingObject> =
                present.then(|| FindingObject::new(FindingKind::StaleFile, "x", ["paris"], "")).into_iter().collect();
            start_times.record(&mut findings);
            let since = findings.pop().and_then(|finding| finding.since);
            (since, start_times.0.since.lock().unwrap().get("staleFile/x").copied())
        };
        let (first, again) = (record(true), record(true));
        assert_eq!(first, again);
        assert_eq!((record(false), first.0.is_some()), ((None, None), true));
        assert_ne!(record(true).1, first.1);
    }
}
