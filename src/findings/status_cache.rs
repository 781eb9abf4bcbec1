//! The findings that follow from the statuses of all clusters, computed once per change.
//!
//! A request would otherwise check each cluster, although nearly always nothing has changed. Some
//! findings begin or end with time alone, such as a phase that lasts too long. The findings are
//! therefore also computed again after [`VALID_MAX`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::clusters::status_findings;
use crate::handle::{MeshSummary, Reading};
use crate::model::FindingObject;

/// Maximum age of the findings: the interval at which they are published.
const VALID_MAX: Duration = Duration::from_secs(1);

/// The newest findings about clusters. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct StatusFindingCache(Arc<Mutex<Option<CachedFindings>>>);

#[derive(Debug)]
struct CachedFindings {
    findings: Vec<FindingObject>,
    computed: Instant,
    summary: Arc<MeshSummary>,
    status_version: u64,
}

impl StatusFindingCache {
    /// Returns the findings at a reading.
    pub(super) fn findings(&self, reading: &Reading) -> Vec<FindingObject> {
        // read before the statuses, which are then at least as new
        let (summary, status_version) = (reading.summary(), reading.status_version());
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = |cached: &&CachedFindings| {
            Arc::ptr_eq(&cached.summary, &summary) && cached.status_version == status_version && cached.computed.elapsed() < VALID_MAX
        };
        if let Some(cached) = newest.as_ref().filter(is_current) {
            return cached.findings.clone();
        }
        let (computed, findings) = (Instant::now(), status_findings(&summary.clusters));
        *newest = Some(CachedFindings { findings: findings.clone(), computed, summary, status_version });
        findings
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use tokio::sync::watch;

    use super::*;
    use crate::commit::MirrorSnapshot;
    use crate::feed::{Feed, Retention};
    use crate::model::{ClusterName, ClusterStatus, Command, Epoch, Phase, Sequence};
    use crate::view::View;

    #[test]
    fn the_findings_are_those_of_the_current_statuses() {
        let paris = ClusterName::parse("paris").unwrap();
        let mut view = View::starting_at(Sequence(0));
        view.apply(Command::Phase { cluster: paris.clone(), phase: Phase::Live, cause: 0 }, SystemTime::UNIX_EPOCH);
        let feed = Feed::starting_at(view.sequence(), Retention { age_max: Duration::from_secs(1), count_max: 1 });
        let (sender, status) = watch::channel(ClusterStatus { phase: Phase::Live, ..ClusterStatus::new(Instant::now()) });
        let snapshot = MirrorSnapshot { view, feed, epoch: Epoch(1), earlier_runs: Arc::default() };
        let reading = Reading::new(Arc::new(snapshot), Arc::new(BTreeMap::from([(paris, status)])));
        let cache = StatusFindingCache::default();
        let compare = |count: usize| {
            let findings = cache.findings(&reading);
            assert_eq!((findings.len(), &findings), (count, &status_findings(&reading.summary().clusters)));
        };
        compare(0);
        sender.send_modify(|status| status.progress_unanswered = true);
        compare(1);
        sender.send_modify(|status| status.too_large = Some("too many keys".to_owned()));
        compare(2);
        compare(2);
        sender.send_modify(|status| (status.progress_unanswered, status.too_large) = (false, None));
        compare(0);
    }
}
