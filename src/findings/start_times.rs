//! Start times of the findings about clusters and the process. A finding without a known start gets
//! the time at which it was detected first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::dto::text::rfc3339;
use crate::model::FindingObject;

/// Start times by finding. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct FindingStartTimes(Arc<StartTimesState>);

#[derive(Debug, Default)]
struct StartTimesState {
    /// Start by id of the finding, for current findings only: some for each cluster.
    since: Mutex<BTreeMap<String, SystemTime>>,
    /// Number of findings that exceed the limits of the change stream.
    untold: AtomicU64,
}

impl FindingStartTimes {
    /// Sets the start of each of the current findings, and forgets findings that are over.
    pub(crate) fn note(&self, findings: &mut [FindingObject]) {
        let now = SystemTime::now();
        let mut known = self.0.since.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *known);
        for finding in findings {
            let since = before.get(&finding.id).copied().unwrap_or(now);
            known.insert(finding.id.clone(), since);
            finding.since.get_or_insert_with(|| rfc3339(since));
        }
    }

    /// Stores the number of findings across keys that exceed the limits of the change stream.
    pub(super) fn note_untold(&self, count: u64) {
        self.0.untold.store(count, Ordering::Relaxed);
    }

    /// Returns the number of findings across keys that exceed the limits of the change stream.
    pub(crate) fn untold(&self) -> u64 {
        self.0.untold.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::finding;

    #[test]
    fn a_finding_is_there_since_it_was_seen_first_until_it_is_over() {
        let ledger = FindingStartTimes::default();
        let noted = |present: bool| {
            let mut findings: Vec<FindingObject> = present.then(|| finding("staleFile", "x", ["paris"], "", "")).into_iter().collect();
            ledger.note(&mut findings);
            let since = findings.pop().and_then(|finding| finding.since);
            (since, ledger.0.since.lock().unwrap().get("staleFile/x").copied())
        };
        let (first, again) = (noted(true), noted(true));
        assert_eq!(first, again);
        assert_eq!((noted(false), first.0.is_some()), ((None, None), true));
        assert_ne!(noted(true).1, first.1);
    }
}
