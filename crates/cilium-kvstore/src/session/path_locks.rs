//! Locks of paths within this process. etcd's mutex belongs to a lease, and all tasks of a session
//! share one.

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
    /// Time when the lock was acquired; `None` while the owner waits in etcd, which has its own
    /// time limit.
    since: Option<Instant>,
    /// Key in etcd, from the moment when it may exist.
    key: Option<Vec<u8>>,
    /// Whether the owner may hold the lock without a time limit.
    for_long: bool,
    /// Whether the owner, or the call that takes the lock away, is releasing it.
    releasing: bool,
}

/// Lock to release: first its key in etcd, then its path.
pub(super) struct AbandonedLock {
    pub(super) path: Vec<u8>,
    pub(super) owner: u64,
    pub(super) key: Option<Vec<u8>>,
}

impl PathLocks {
    /// Waits for a path. Returns the owner's number.
    pub(super) async fn lock(&self, path: &[u8], for_long: bool) -> u64 {
        loop {
            let unlocked = self.unlocked.notified();
            if let Some(owner) = self.try_lock(path, for_long) {
                return owner;
            }
            unlocked.await;
        }
    }

    fn try_lock(&self, path: &[u8], for_long: bool) -> Option<u64> {
        let mut table = self.table();
        if table.by_path.contains_key(path) {
            return None;
        }
        table.last_owner += 1;
        let owner = table.last_owner;
        table.by_path.insert(path.to_vec(), PathLock { owner, since: None, key: None, for_long, releasing: false });
        Some(owner)
    }

    /// Records the key that the owner may have in etcd from now on, while it waits for earlier
    /// keys.
    pub(super) fn set_key(&self, path: &[u8], owner: u64, key: &[u8]) {
        if let Some(path_lock) = self.table().by_path.get_mut(path).filter(|path_lock| path_lock.owner == owner) {
            path_lock.key = Some(key.to_vec());
        }
    }

    /// Records that the owner holds the lock, because no earlier key exists.
    pub(super) fn set_acquired(&self, path: &[u8], owner: u64) {
        if let Some(path_lock) = self.table().by_path.get_mut(path).filter(|path_lock| path_lock.owner == owner) {
            path_lock.since = Some(Instant::now());
        }
    }

    /// Starts the release by the owner. Returns false if the lock was taken away.
    pub(super) fn begin_unlock(&self, path: &[u8], owner: u64) -> bool {
        match self.table().by_path.get_mut(path) {
            Some(path_lock) if path_lock.owner == owner && !path_lock.releasing => {
                path_lock.releasing = true;
                true
            }
            _ => false,
        }
    }

    /// Unlocks a path for the next task.
    pub(super) fn unlock(&self, path: &[u8], owner: u64) {
        let mut table = self.table();
        if table.by_path.get(path).is_some_and(|path_lock| path_lock.owner == owner) {
            table.by_path.remove(path);
            drop(table);
            self.unlocked.notify_waiters();
        }
    }

    /// Takes away the locks that have been held for longer than `longer_than`.
    pub(super) fn abandon_stale(&self, longer_than: Duration) -> Vec<AbandonedLock> {
        let now = Instant::now();
        let mut table = self.table();
        let is_old = |path_lock: &PathLock| path_lock.since.is_some_and(|since| now - since > longer_than);
        let stale = table.by_path.iter_mut().filter(|(_, path_lock)| !path_lock.for_long && !path_lock.releasing && is_old(path_lock));
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
    async fn a_path_has_one_owner_and_stale_owners_lose_it() {
        let locks = Arc::new(PathLocks::default());
        let first = locks.lock(b"a", false).await;
        locks.set_key(b"a", first, b"a/1f");
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(locks.abandon_stale(Duration::from_secs(30)).is_empty(), "who waits for others holds nothing");
        locks.set_acquired(b"a", first);
        let other = locks.lock(b"b", true).await;
        locks.set_acquired(b"b", other);
        assert!(tokio::time::timeout(Duration::from_secs(1), locks.lock(b"a", false)).await.is_err());
        tokio::time::advance(Duration::from_secs(31)).await;
        let abandoned = locks.abandon_stale(Duration::from_secs(30));
        let names: Vec<_> = abandoned.iter().map(|left| (left.path.as_slice(), left.owner, left.key.as_deref())).collect();
        assert_eq!(names, [(&b"a"[..], first, Some(&b"a/1f"[..]))], "b may be held for long");
        assert!(locks.abandon_stale(Duration::from_secs(30)).is_empty(), "once");
        assert!(!locks.begin_unlock(b"a", first), "it was taken away");
        assert!(locks.begin_unlock(b"b", other));
        let waiting = locks.lock(b"a", false);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        locks.unlock(b"a", first + 100);
        assert!(futures_util::poll!(&mut waiting).is_pending(), "only its owner's number frees it");
        locks.unlock(b"a", first);
        assert_ne!(waiting.await, first);
    }
}
