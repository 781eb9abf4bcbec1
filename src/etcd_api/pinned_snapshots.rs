//! Snapshots pinned for lists that are read page by page.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::revisions::to_revision;
use crate::admission::Client;
use crate::handle::Reading;

/// Maximum number of pinned snapshots.
///
/// Each snapshot retains the former values of keys that have changed since, and snapshots share
/// these values. After a minute of 1,000 changes/s of 300 B, the oldest retains about 20 MB.
const PINNED_COUNT_MAX: usize = 16;

/// Time that a snapshot stays pinned after the last request that used it. The pages of a list
/// follow each other within seconds.
const PINNED_FOR: Duration = Duration::from_secs(60);

/// Pinned snapshots by revision and client, so that a client with many lists cannot evict the
/// snapshots of another client.
type PinnedMap = BTreeMap<(i64, Client), PinnedSnapshot>;

#[derive(Debug, Default)]
pub(super) struct PinnedSnapshots {
    pinned: Arc<Mutex<PinnedMap>>,
    /// Task that removes expired snapshots. It runs while any are pinned, so that they do not
    /// retain former values until the next request.
    expiry_task: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct PinnedSnapshot {
    reading: Reading,
    last_used: Instant,
}

impl PinnedSnapshots {
    /// Pins a snapshot for the following pages of a list.
    pub(super) fn pin(&self, client: Client, reading: &Reading) {
        let mut pinned = self.pinned();
        let is_first = pinned.is_empty();
        pinned.insert(
            (to_revision(reading.position().sequence), client),
            PinnedSnapshot { reading: reading.clone(), last_used: Instant::now() },
        );
        while pinned.len() > PINNED_COUNT_MAX {
            // evicts the least recently used snapshot of the client with the most snapshots
            let mut counts: BTreeMap<Client, usize> = BTreeMap::new();
            pinned.keys().for_each(|(_, client)| *counts.entry(*client).or_default() += 1);
            let rank = |(_, client): &(i64, Client), pin: &PinnedSnapshot| (Reverse(counts.get(client).copied()), pin.last_used);
            let evicted = pinned.iter().min_by_key(|(key, pin)| rank(key, pin)).map(|(key, _)| *key);
            evicted.and_then(|key| pinned.remove(&key));
        }
        drop(pinned);
        if is_first {
            let mut tasks = self.expiry_task.lock().unwrap_or_else(PoisonError::into_inner);
            while tasks.try_join_next().is_some() {}
            tasks.spawn(remove_expired(Arc::clone(&self.pinned)));
        }
    }

    /// Returns the snapshot of a revision if it is pinned.
    pub(super) fn find(&self, revision: i64) -> Option<Reading> {
        let mut pinned = self.pinned();
        let pinned = pinned.iter_mut().filter(|((pinned_revision, _), _)| *pinned_revision == revision);
        let readings = pinned.map(|(_, pin)| {
            pin.last_used = Instant::now();
            pin.reading.clone()
        });
        readings.last()
    }

    fn pinned(&self) -> MutexGuard<'_, PinnedMap> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes expired snapshots until none is pinned.
async fn remove_expired(pinned: Arc<Mutex<PinnedMap>>) {
    loop {
        let next_expiry = {
            let (mut pinned, now) = (pinned.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
            pinned.retain(|_, pin| now.duration_since(pin.last_used) < PINNED_FOR);
            pinned.values().map(|pin| pin.last_used + PINNED_FOR).min()
        };
        match next_expiry {
            Some(expiry) => sleep_until(expiry).await,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::InMemoryMirror;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pinned_snapshots_expire_without_requests() {
        let (mirror, pinned) = (InMemoryMirror::new(), PinnedSnapshots::default());
        let reading = mirror.reading().await;
        let revision = to_revision(reading.position().sequence);
        for _ in 0..2 {
            pinned.pin(Client::Local, &reading);
            for _ in 0..3 {
                tokio::time::sleep(PINNED_FOR - Duration::from_secs(1)).await;
                assert!(pinned.find(revision).is_some(), "each request extends the time");
            }
            tokio::time::sleep(PINNED_FOR + Duration::from_secs(1)).await;
            assert!(pinned.pinned().is_empty());
        }
    }

    #[tokio::test]
    async fn a_client_with_many_lists_loses_only_its_own_snapshots() {
        let (mut mirror, pinned) = (InMemoryMirror::new(), PinnedSnapshots::default());
        let [greedy, other] = [1, 2].map(|last| Client::from_ip(std::net::IpAddr::from([192, 0, 2, last])));
        let first = mirror.reading().await;
        pinned.pin(other, &first);
        for number in 0..40_u8 {
            mirror.put("10.0.0.1", &[number]);
            pinned.pin(greedy, &mirror.reading().await);
        }
        assert_eq!(pinned.pinned().len(), PINNED_COUNT_MAX);
        assert!(pinned.find(to_revision(first.position().sequence)).is_some());
    }
}
