//! Since when each finding about clusters and the process is there: what has no time of its own is noted when it is seen first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::dto::problems::Finding;
use super::dto::rfc3339;
use super::findings::standing;
use super::state::ApiState;

/// How often to look: a person counts such times in seconds, and 255 clusters take some milliseconds.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What was seen, by id, and since when. As many as there are findings at once: some for each cluster. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<BTreeMap<String, SystemTime>>>);

impl Ledger {
    /// These are all that there are now: says of each since when, and forgets those that are over.
    pub(crate) fn note(&self, findings: &mut [Finding]) {
        let now = SystemTime::now();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *known);
        for finding in findings {
            let since = before.get(&finding.id).copied().unwrap_or(now);
            known.insert(finding.id.clone(), since);
            finding.since.get_or_insert_with(|| rfc3339(since));
        }
    }
}

/// Looks again and again at what is wrong, so that it is known since when it is, not since when somebody asked. Runs until it is dropped.
pub(crate) async fn keep(state: ApiState) {
    let mut ticks = interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(reading) = state.handle.try_reading() else { continue };
        let state = state.clone();
        if spawn_blocking(move || standing(&state, &reading)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::findings::finding;

    #[test]
    fn a_finding_is_there_since_it_was_seen_first_until_it_is_over() {
        let ledger = Ledger::default();
        let noted = |present: bool| {
            let mut findings: Vec<Finding> = present.then(|| finding("staleFile", "x", ["paris"], "", "")).into_iter().collect();
            ledger.note(&mut findings);
            let since = findings.pop().and_then(|finding| finding.since);
            (since, ledger.0.lock().unwrap().get("staleFile/x").copied())
        };
        let (first, again) = (noted(true), noted(true));
        assert_eq!(first, again);
        assert_eq!((noted(false), first.0.is_some()), ((None, None), true));
        assert_ne!(noted(true).1, first.1);
    }
}
