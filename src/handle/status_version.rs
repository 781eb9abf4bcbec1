//! A counter of the changes of all clusters' statuses, and the number of refused keys in them.
//!
//! Changes of a contact, a heartbeat, the start of a phase, the newest event or the expected number
//! of keys do not count: their writers do not signal them, and no entity tag depends on them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::ClusterStatuses;
use crate::model::ClusterStatus;

/// Counts the changes since the start of the process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct StatusVersion(Arc<Mutex<SeenStatuses>>);

#[derive(Debug, Default)]
struct SeenStatuses {
    version: u64,
    /// Number of refused keys of all clusters.
    refused_count: u64,
    statuses: ClusterStatuses,
    /// The statuses, marked as seen when they were counted last.
    receivers: Vec<watch::Receiver<ClusterStatus>>,
}

impl StatusVersion {
    /// Returns the number of changes. A status that is read afterwards is at least as new. Costs
    /// about 3 ns for each cluster.
    pub(super) fn get(&self, statuses: &ClusterStatuses) -> u64 {
        self.update(statuses).version
    }

    /// Returns the number of refused keys of all clusters.
    pub(super) fn refused_count(&self, statuses: &ClusterStatuses) -> u64 {
        self.update(statuses).refused_count
    }

    fn update(&self, statuses: &ClusterStatuses) -> MutexGuard<'_, SeenStatuses> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = &mut *guard;
        let is_replaced = !Arc::ptr_eq(&seen.statuses, statuses);
        if is_replaced {
            seen.statuses = Arc::clone(statuses);
            seen.receivers = statuses.values().cloned().collect();
        }
        // a task that has ended no longer changes its status
        if is_replaced || seen.receivers.iter().any(|status| status.has_changed().unwrap_or(false)) {
            seen.version += 1;
            seen.refused_count = seen.receivers.iter_mut().map(|status| status.borrow_and_update().refused.len() as u64).sum();
        }
        guard
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Instant, SystemTime};

    use super::*;
    use crate::model::{ClusterName, Kind, RefusedKey};

    #[test]
    fn each_signalled_change_and_each_new_set_of_clusters_counts() {
        let cluster = |name: &str| ClusterName::parse(name).unwrap();
        let (sender, receiver) = watch::channel(ClusterStatus::new(Instant::now()));
        let one: ClusterStatuses = Arc::new(BTreeMap::from([(cluster("paris"), receiver.clone())]));
        let version = StatusVersion::default();
        let before = version.get(&one);
        assert_eq!(version.get(&one), before);
        sender.send_modify(|status| status.refused = vec![RefusedKey::new(Kind::Node, b"x", b"", "why", SystemTime::UNIX_EPOCH)]);
        assert_eq!((version.get(&one), version.get(&one), version.refused_count(&one)), (before + 1, before + 1, 1));
        sender.send_if_modified(|status| {
            status.last_contact = Some(Instant::now());
            false
        });
        assert_eq!(version.get(&one), before + 1);
        let two: ClusterStatuses =
            Arc::new(BTreeMap::from([(cluster("paris"), receiver), (cluster("oslo"), one[&cluster("paris")].clone())]));
        assert_eq!((version.get(&two), version.get(&two), version.refused_count(&two)), (before + 2, before + 2, 2));
        drop(sender);
        assert_eq!(version.get(&two), before + 2);
    }
}
