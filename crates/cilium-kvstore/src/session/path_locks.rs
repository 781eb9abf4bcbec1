//! Locks of paths within this process. They are needed because etcd's mutex belongs to a lease, and
//! all tasks of a session share one lease.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Locked paths. Has at most one entry per task that locks.
#[derive(Default)]
pub(super) struct PathLocks {
    table: Mutex<PathTable>,
    unlocked: Notify,
}

#[derive(Default)]
struct PathTable {
    by_path: HashMap<Vec<u8>, PathLock>,
    last_owner: u64,
}

struct PathLock {
    owner: u64,
    /// Time when the lock was acquired in etcd; `None` while the owner still waits in etcd. That
    /// wait has its own time limit.
    acquired_at: Option<Instant>,
    /// Key in etcd; `None` as long as the key cannot exist yet.
    key: Option<Vec<u8>>,
    /// True if the owner may hold the lock without a time limit.
    without_limit: bool,
    /// True if the lock is being released, by its owner or by force.
    releasing: bool,
}

/// Lock to release: first its key in etcd, then its path.
pub(super) struct AbandonedLock {
    pub(super) path: Vec<u8>,
    pub(super) owner: u64,
    pub(super) key: Option<Vec<u8>>,
}

impl PathLocks {
    /// Waits until the path is unlocked, and locks it. Returns a number that identifies the owner.
    pub(super) async fn lock(&self, path: &[u8], without_limit: bool) -> u64 {
        loop {
            let unlocked = self.unlocked.notified();
            if let Some(owner) = self.try_lock(path, without_limit) {
                return owner;
            }
            unlocked.await;
        }
    }

    fn try_lock(&self, path: &[u8], without_limit: bool) -> Option<u64> {
        let mut table = self.table();
        if table.by_path.contains_key(path) {
            return None;
        }
        table.last_owner += 1;
        let owner = table.last_owner;
        table.by_path.insert(path.to_vec(), PathLock { owner, acquired_at: None, key: None, without_limit, releasing: false });
        Some(owner)
    }

    /// Records the key that the owner may have in etcd from now on, while it waits for earlier
    /// keys.
    pub(super) fn set_key(&self, path: &[u8], owner: u64, key: &[u8]) {
        if let Some(path_lock) = self.table().by_path.get_mut(path).filter(|path_lock| path_lock.owner == owner) {
            path_lock.key = Some(key.to_vec());
        }
    }

    /// Records that the owner holds the lock in etcd.
    pub(super) fn set_acquired(&self, path: &[u8], owner: u64) {
        if let Some(path_lock) = self.table().by_path.get_mut(path).filter(|path_lock| path_lock.owner == owner) {
            path_lock.acquired_at = Some(Instant::now());
        }
    }

    /// Starts the release by the owner. Returns false if the lock is already being released by
    /// force.
    pub(super) fn begin_unlock(&self, path: &[u8], owner: u64) -> bool {
        match self.table().by_path.get_mut(path) {
            Some(path_lock) if path_lock.owner == owner && !path_lock.releasing => {
                path_lock.releasing = true;
                true
            }
            _ => false,
        }
    }

    /// Unlocks a path, so that the next task can lock it.
    pub(super) fn unlock(&self, path: &[u8], owner: u64) {
        let mut table = self.table();
        if table.by_path.get(path).is_some_and(|path_lock| path_lock.owner == owner) {
            table.by_path.remove(path);
            drop(table);
            self.unlocked.notify_waiters();
        }
    }

    /// Marks the locks that have been held for longer than `longer_than` as being released, and
    /// returns them.
    pub(super) fn abandon_stale(&self, longer_than: Duration) -> Vec<AbandonedLock> {
        let now = Instant::now();
        let mut table = self.table();
        let is_stale = |path_lock: &PathLock| path_lock.acquired_at.is_some_and(|acquired_at| now - acquired_at > longer_than);
        let stale =
            table.by_path.iter_mut().filter(|(_, path_lock)| !path_lock.without_limit && !path_lock.releasing && is_stale(path_lock));
        let abandoned = stale.map(|(path, path_lock)| {
            path_lock.releasing = true;
            AbandonedLock { path: path.clone(), owner: path_lock.owner, key: path_lock.key.clone() }
        });
        abandoned.collect()
    }

    fn table(&self) -> MutexGuard<'_, PathTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_path_has_one_owner_and_stale_locks_are_abandoned() {
        let locks = Arc::new(PathLocks::default());
        let first = locks.lock(b"a", false).await;
        locks.set_key(b"a", first, b"a/1f");
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(locks.abandon_stale(Duration::from_secs(30)).is_empty(), "an owner that still waits in etcd does not hold the lock");
        locks.set_acquired(b"a", first);
        let other = locks.lock(b"b", true).await;
        locks.set_acquired(b"b", other);
        assert!(tokio::time::timeout(Duration::from_secs(1), locks.lock(b"a", false)).await.is_err());
        tokio::time::advance(Duration::from_secs(31)).await;
        let abandoned = locks.abandon_stale(Duration::from_secs(30));
        let names: Vec<_> = abandoned.iter().map(|lock| (lock.path.as_slice(), lock.owner, lock.key.as_deref())).collect();
        assert_eq!(names, [(&b"a"[..], first, Some(&b"a/1f"[..]))], "b may be held without a time limit");
        assert!(locks.abandon_stale(Duration::from_secs(30)).is_empty(), "each lock is returned once");
        assert!(!locks.begin_unlock(b"a", first), "the lock is being released by force");
        assert!(locks.begin_unlock(b"b", other));
        let waiting = locks.lock(b"a", false);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        locks.unlock(b"a", first + 100);
        assert!(futures_util::poll!(&mut waiting).is_pending(), "another owner's number does not unlock the path");
        locks.unlock(b"a", first);
        assert_ne!(waiting.await, first);
    }
}
