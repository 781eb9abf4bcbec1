//! Since when each finding about clusters and the process is there: what has no time of its own is noted when it is seen first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::dto::text::rfc3339;
use crate::model::ToldFinding;

/// What was seen. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Book>);

#[derive(Debug, Default)]
struct Book {
    /// Since when, by id. As many as there are findings at once: some for each cluster.
    since: Mutex<BTreeMap<String, SystemTime>>,
    /// For how many the change stream has no room.
    untold: AtomicU64,
}

impl Ledger {
    /// These are all that there are now: says of each since when, and forgets those that are over.
    pub(crate) fn note(&self, findings: &mut [ToldFinding]) {
        let now = SystemTime::now();
        let mut known = self.0.since.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *known);
        for finding in findings {
            let since = before.get(&finding.id).copied().unwrap_or(now);
            known.insert(finding.id.clone(), since);
            finding.since.get_or_insert_with(|| rfc3339(since));
        }
    }

    /// Notes for how many findings across keys the change stream has no room.
    pub(super) fn note_untold(&self, count: u64) {
        self.0.untold.store(count, Ordering::Relaxed);
    }

    /// For how many findings across keys the change stream has no room.
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
        let ledger = Ledger::default();
        let noted = |present: bool| {
            let mut findings: Vec<ToldFinding> = present.then(|| finding("staleFile", "x", ["paris"], "", "")).into_iter().collect();
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
