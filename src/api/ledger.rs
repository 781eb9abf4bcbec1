//! Since when each finding about clusters and the process is there: what has no time of its own is noted when it is seen first. Looks again and again,
//! and has what it finds told in the change stream.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::dto::problems::Finding;
use super::dto::rfc3339;
use super::findings::standing;
use super::state::ApiState;
use super::teller::{Found, Teller};

/// How often to look: a person counts such times in seconds, and 255 clusters take some milliseconds.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How many times as long as a look took to rest behind it: so it takes a twentieth of a core at most, however much is wrong.
const REST_PER_LOOK: u32 = 20;

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
    pub(crate) fn note(&self, findings: &mut [Finding]) {
        let now = SystemTime::now();
        let mut known = self.0.since.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *known);
        for finding in findings {
            let since = before.get(&finding.id).copied().unwrap_or(now);
            known.insert(finding.id.clone(), since);
            finding.since.get_or_insert_with(|| rfc3339(since));
        }
    }

    /// For how many findings across keys the change stream has no room.
    pub(crate) fn untold(&self) -> u64 {
        self.0.untold.load(Ordering::Relaxed)
    }
}

/// Looks again and again at what is wrong, so that it is known since when it is, not since when somebody asked, and tells the writer. Runs until it is
/// dropped, or the writer is gone.
pub(crate) async fn keep(state: ApiState) {
    let mut teller = Teller::default();
    loop {
        let begun = Instant::now();
        if let Some(reading) = state.handle.try_reading() {
            let of_look = state.clone();
            let look = move || {
                let survey = of_look.surveyor.newest();
                let found = Found::of(standing(&of_look, &reading), survey.as_ref(), &reading, SystemTime::now());
                of_look.ledger.0.untold.store(found.left_out, Ordering::Relaxed);
                let changes = teller.changes(found);
                if !changes.is_empty() {
                    of_look.posts.show(teller.told());
                }
                (changes, teller)
            };
            let Ok((changes, after)) = spawn_blocking(look).await else { return };
            teller = after;
            let took = begun.elapsed();
            if !changes.is_empty() && state.handle.tell_findings(changes).await.is_err() {
                return;
            }
            sleep(took.saturating_mul(REST_PER_LOOK).max(LOOK_INTERVAL)).await;
        } else {
            sleep(LOOK_INTERVAL).await;
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
            (since, ledger.0.since.lock().unwrap().get("staleFile/x").copied())
        };
        let (first, again) = (noted(true), noted(true));
        assert_eq!(first, again);
        assert_eq!((noted(false), first.0.is_some()), ((None, None), true));
        assert_ne!(noted(true).1, first.1);
    }
}
