//! Garbage collection of numbers without references, and of locks whose holders are stuck.

use std::collections::{BTreeMap, HashSet};

use tokio::time::{Duration, Instant, sleep_until};

use super::{EtcdBackend, locked};
use crate::allocator::backend::{BackendError, CollectionLimits, CollectionRound, Id, LockCollection, Locker, StaleIds, StaleLocks};
use crate::allocator::key::AllocatorKey;
use crate::{Condition, KeyValue, Revision, Write};

/// Length of a window of the rate limit (`--identity-gc-rate-interval`). All permits become
/// available again at its end.
const WINDOW: Duration = Duration::from_mins(1);

/// Rate limit of deletions.
struct DeleteRateLimiter {
    deletes_per_window: u32,
    remaining: u32,
    window_end: Instant,
}

impl DeleteRateLimiter {
    fn new(deletes_per_window: u32) -> Self {
        Self { deletes_per_window, remaining: deletes_per_window, window_end: Instant::now() + WINDOW }
    }

    /// Uses a permit. Waits for the next window if no permit is left.
    async fn acquire(&mut self) {
        if self.remaining == 0 {
            sleep_until(self.window_end).await;
        }
        if Instant::now() >= self.window_end {
            (self.remaining, self.window_end) = (self.deletes_per_window, Instant::now() + WINDOW);
        }
        self.remaining -= 1;
    }
}

impl EtcdBackend {
    /// Runs one round of collection. Cilium locks each number to check its references. Here all
    /// references are read first, so that only the unused numbers are locked and checked a second
    /// time.
    pub(super) async fn collect(&self, last_round: &StaleIds, limits: &CollectionLimits) -> Result<CollectionRound, BackendError> {
        let entries = self.session.list_prefix(&self.names.entries()).await?;
        let used_ids = self.read_used_ids().await?;
        let mut round = CollectionRound::default();
        let mut rate_limiter = DeleteRateLimiter::new(limits.deletes_per_minute.get());
        for entry in entries {
            let Some(id) = self.names.id_of(&entry.key).filter(|id| limits.range.contains(*id)) else { continue };
            round.alive += 1;
            match last_round.get(&id) {
                // allocated numbers have no lease; a number with a lease is a
                // clustermesh-apiserver's copy, to which no node refers in this etcd
                _ if entry.lease.0 != 0 => {}
                _ if used_ids.contains(&(self.references_to_labels(&entry.value), id)) => {}
                None => {
                    round.stale.insert(id, entry.mod_revision);
                }
                // written since the last round: the number stays for another full round
                Some(seen) if *seen != entry.mod_revision => {}
                Some(_) => {
                    rate_limiter.acquire().await;
                    match self.delete_unused(id, &entry).await {
                        Ok(true) => {
                            round.alive -= 1;
                            round.deleted.push(id);
                        }
                        Ok(false) => {}
                        Err(error) => {
                            tracing::warn!(id = id.number(), %error, "cannot delete an unused identity: the next round tries again");
                            round.stale.insert(id, entry.mod_revision);
                        }
                    }
                }
            }
        }
        Ok(round)
    }

    /// Returns the prefix of references to labels.
    fn references_to_labels(&self, labels: &[u8]) -> Vec<u8> {
        self.names.references_to(&AllocatorKey::from_text(&String::from_utf8_lossy(labels)))
    }

    /// Returns the numbers in use, each with the prefix of the references to its labels.
    async fn read_used_ids(&self) -> Result<HashSet<(Vec<u8>, Id)>, BackendError> {
        let found = self.session.list_prefix(&self.names.references()).await?;
        let used = found.iter().filter_map(|found| {
            let end = found.key.iter().rposition(|byte| *byte == b'/')?;
            Some((found.key[..=end].to_vec(), Id::parse(str::from_utf8(&found.value).ok()?)?))
        });
        Ok(used.collect())
    }

    /// Deletes a number unless it is now in use or was written again.
    async fn delete_unused(&self, id: Id, entry: &KeyValue) -> Result<bool, BackendError> {
        let lock = self.session.lock_path(&self.names.lock_of_entry(id)).await?;
        let key = AllocatorKey::from_text(&String::from_utf8_lossy(&entry.value));
        let prefix = self.names.references_to(&key);
        let result = async {
            let users = locked(self.session.list_prefix_if_locked(&prefix, &lock).await)?;
            if users.iter().any(|user| self.reference_to(&key, user) == Some(id)) {
                return Ok(false);
            }
            let number = id.to_string();
            let unused = if users.is_empty() {
                Condition::NoKeysBelow(&prefix)
            } else {
                Condition::OnlyOtherValuesBelow(&prefix, number.as_bytes())
            };
            let conditions = [Condition::Locked(&lock), Condition::WrittenAt(&entry.key, entry.mod_revision), unused];
            Ok(self.session.write_if(&conditions, &[Write::Delete(&entry.key)]).await?)
        };
        let result = result.await;
        Locker::unlock(lock).await;
        result
    }

    /// Runs one round of lock collection. Each path may have several lock keys. In the last round,
    /// the oldest of them belonged to the holder, and the others were waiting. Only keys of holders
    /// are deleted.
    pub(super) async fn collect_locks(&self, last_round: &StaleLocks) -> Result<LockCollection, BackendError> {
        let mut holders: BTreeMap<&[u8], (&Vec<u8>, Revision)> = BTreeMap::new();
        for (key, (revision, _)) in last_round {
            let path = key.iter().rposition(|byte| *byte == b'/').map_or(&key[..], |end| &key[..end]);
            let holder = holders.entry(path).or_insert((key, *revision));
            if *revision < holder.1 {
                *holder = (key, *revision);
            }
        }
        let holders: HashSet<&Vec<u8>> = holders.into_values().map(|(key, _)| key).collect();
        let mut round = LockCollection::default();
        for found in self.session.list_prefix(&self.names.locks()).await? {
            let stuck = last_round.get(&found.key) == Some(&(found.mod_revision, found.lease)) && holders.contains(&found.key);
            if stuck && self.session.delete(&found.key).await.is_ok() {
                tracing::warn!(lock = %String::from_utf8_lossy(&found.key), "removed the lock of an identity, because its holder is stuck");
                round.deleted += 1;
            } else {
                round.held.insert(found.key.clone(), (found.mod_revision, found.lease));
            }
        }
        Ok(round)
    }
}
