//! Snapshots pinned for lists that are read page by page.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::revisions::revision;
use crate::admission::Client;
use crate::handle::Reading;

/// Maximum number of pinned snapshots.
///
/// Each retains what has changed since, and they share it: about 20 MB for the oldest after a
/// minute of 1,000 changes/s of 300 B.
const PINNED_COUNT_MAX: usize = 16;

/// Time after the last request for which a snapshot stays pinned. The pages of a list follow each
/// other within seconds.
const PINNED_FOR: Duration = Duration::from_secs(60);

/// Pinned snapshots by revision and client, so that a client with many lists cannot evict those of
/// another.
type Kept = BTreeMap<(i64, Client), Pin>;

/// Snapshots pinned for lists.
#[derive(Debug, Default)]
pub(super) struct Pins {
    kept: Arc<Mutex<Kept>>,
    /// Task that removes expired pins. It runs while there are any, because each pin retains all
    /// later changes.
    letting_go: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Pin {
    reading: Reading,
    asked: Instant,
}

impl Pins {
    /// Pins a snapshot for the following pages of a list.
    pub(super) fn keep(&self, client: Client, reading: &Reading) {
        let mut kept = self.kept();
        let is_first = kept.is_empty();
        kept.insert((revision(reading.position().sequence), client), Pin { reading: reading.clone(), asked: Instant::now() });
        while kept.len() > PINNED_COUNT_MAX {
            // the least recently requested one of the client that has most
            let mut counts: BTreeMap<Client, usize> = BTreeMap::new();
            kept.keys().for_each(|(_, client)| *counts.entry(*client).or_default() += 1);
            let rank = |(_, client): &(i64, Client), pin: &Pin| (Reverse(counts.get(client).copied()), pin.asked);
            let next = kept.iter().min_by_key(|(key, pin)| rank(key, pin)).map(|(key, _)| *key);
            next.and_then(|key| kept.remove(&key));
        }
        drop(kept);
        if is_first {
            let mut tasks = self.letting_go.lock().unwrap_or_else(PoisonError::into_inner);
            while tasks.try_join_next().is_some() {}
            tasks.spawn(let_go(Arc::clone(&self.kept)));
        }
    }

    /// Returns the snapshot of a revision if it is pinned.
    pub(super) fn find(&self, revision: i64) -> Option<Reading> {
        let mut kept = self.kept();
        let pins = kept.iter_mut().filter(|((at, _), _)| *at == revision);
        let readings = pins.map(|(_, pin)| {
            pin.asked = Instant::now();
            pin.reading.clone()
        });
        readings.last()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes expired pins until none is left.
async fn let_go(kept: Arc<Mutex<Kept>>) {
    loop {
        let next = {
            let (mut kept, now) = (kept.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
            kept.retain(|_, pin| now.duration_since(pin.asked) < PINNED_FOR);
            kept.values().map(|pin| pin.asked + PINNED_FOR).min()
        };
        match next {
            Some(next) => sleep_until(next).await,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Mirror;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_moment_is_kept_for_the_pages_that_follow_and_no_longer_whether_anybody_comes_or_not() {
        let (mirror, pins) = (Mirror::new(), Pins::default());
        let reading = mirror.reading().await;
        let at = revision(reading.position().sequence);
        for _ in 0..2 {
            pins.keep(Client::Local, &reading);
            for _ in 0..3 {
                tokio::time::sleep(PINNED_FOR - Duration::from_secs(1)).await;
                assert!(pins.find(at).is_some(), "it is asked for again and again");
            }
            tokio::time::sleep(PINNED_FOR + Duration::from_secs(1)).await;
            assert!(pins.kept().is_empty());
        }
    }

    #[tokio::test]
    async fn a_client_that_begins_many_lists_loses_moments_of_its_own() {
        let (mut mirror, pins) = (Mirror::new(), Pins::default());
        let [greedy, other] = [1, 2].map(|last| Client::at(std::net::IpAddr::from([192, 0, 2, last])));
        let first = mirror.reading().await;
        pins.keep(other, &first);
        for number in 0..40_u8 {
            mirror.put("10.0.0.1", &[number]);
            pins.keep(greedy, &mirror.reading().await);
        }
        assert_eq!(pins.kept().len(), PINNED_COUNT_MAX);
        assert!(pins.find(revision(first.position().sequence)).is_some());
    }
}
