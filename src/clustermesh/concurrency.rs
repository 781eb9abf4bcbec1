//! Limits on concurrent work at the remote etcds: lists of one etcd wait for each other, and
//! connection attempts are spread over time.
//!
//! Many clusters often share one etcd, that of a KVStoreMesh. Lists are therefore counted by the
//! etcd cluster id in the replies, not by client file. A remote that does not answer occupies no
//! slot of another etcd.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::EtcdClusterId;

/// Maximum number of concurrent lists per etcd. From 4 to 16 the rate of partitioned lists hardly
/// grows (docs/develop/measurements.md §2: 390–555k and 440–600k keys/s). Each list costs the
/// server memory and delays its other clients.
const LISTS_PER_ETCD_MAX: usize = 8;

/// Average time between two starts of cluster tasks: 511 clusters start within a second, and a
/// single one starts at once. A start costs about 2 ms of CPU time: a connection, perhaps a TLS
/// handshake, and five small reads.
const START_SPACING: Duration = Duration::from_millis(2);

/// Semaphores for lists, one per etcd. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct ListLimiter {
    etcds: Arc<Mutex<HashMap<EtcdClusterId, Arc<Semaphore>>>>,
}

impl ListLimiter {
    /// Waits for a slot for a list at an etcd. Dropping the permit frees the slot.
    pub(super) async fn acquire(&self, etcd: EtcdClusterId) -> Option<OwnedSemaphorePermit> {
        let slots = {
            let mut etcds = self.etcds.lock().unwrap_or_else(PoisonError::into_inner);
            // forget etcds without lists, otherwise remotes that are recreated again and again
            // would leave semaphores behind
            etcds.retain(|_, slots| slots.available_permits() < LISTS_PER_ETCD_MAX || Arc::strong_count(slots) > 1);
            Arc::clone(etcds.entry(etcd).or_insert_with(|| Arc::new(Semaphore::new(LISTS_PER_ETCD_MAX))))
        };
        // the semaphore is never closed, so this is never `None`
        slots.acquire_owned().await.ok()
    }
}

/// Returns the random wait of a cluster before its first attempt. `random_fraction` is between 0
/// and 1.
pub(super) fn start_wait(cluster_count: usize, random_fraction: f64) -> Duration {
    let others = u32::try_from(cluster_count.saturating_sub(1)).unwrap_or(u32::MAX);
    START_SPACING.saturating_mul(others).mul_f64(random_fraction.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn lists_of_one_etcd_share_its_slots() {
        let list_limiter = ListLimiter::default();
        let mut permits = Vec::new();
        for _ in 0..LISTS_PER_ETCD_MAX {
            permits.push(list_limiter.acquire(EtcdClusterId(1)).now_or_never().expect("must be free"));
        }
        assert!(list_limiter.acquire(EtcdClusterId(1)).now_or_never().is_none(), "no slot is free");
        assert!(list_limiter.acquire(EtcdClusterId(2)).now_or_never().is_some(), "another etcd has its own slots");
        permits.pop();
        assert!(list_limiter.acquire(EtcdClusterId(1)).now_or_never().is_some());
        permits.clear();
        drop(list_limiter.acquire(EtcdClusterId(3)).await);
        assert_eq!(
            list_limiter.etcds.lock().unwrap().keys().copied().collect::<Vec<_>>(),
            [EtcdClusterId(3)],
            "etcds without lists are forgotten"
        );
    }

    #[test]
    fn the_wait_before_a_start_grows_with_the_number_of_clusters() {
        assert_eq!(start_wait(1, 1.0), Duration::ZERO);
        assert_eq!(start_wait(511, 1.0), Duration::from_millis(1_020));
        assert_eq!(start_wait(511, 0.5), Duration::from_millis(510));
    }
}
