//! Locks of paths across all processes: first a lock within this process, then etcd's mutex
//! (Cilium's `lock.go`).
//!
//! A path's key in etcd is always deleted before the path is unlocked in this process, even if the
//! task that holds or waits for the lock is dropped. Otherwise the next task here would hold the
//! lock with the same key.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::mutex::{LockKey, acquire, key_of};
use super::path_locks::AbandonedLock;
use super::{Session, SessionState};
use crate::error::printable;
use crate::{KvstoreError, LeaseId};

/// Maximum time to wait for a lock (Cilium: 1 min).
const LOCKING_MAX: Duration = Duration::from_secs(60);
/// Time after which a lock of this process counts as forgotten (Cilium's `staleLockTimeout`).
const STALE_AFTER: Duration = Duration::from_secs(30);
/// Interval between attempts to delete a key.
const CLEANING_INTERVAL: Duration = Duration::from_millis(500);

/// Held lock. Dropping it releases the lock in the background; [`KvLocker::unlock`] reports the
/// result.
pub struct KvLocker {
    held_path: HeldPath,
    lock: LockKey,
    lease_gone: CancellationToken,
}

/// Path that is locked in this process, with its key in etcd if it may exist.
struct HeldPath {
    shared: Arc<SessionState>,
    path: Vec<u8>,
    owner: u64,
    key: Option<Vec<u8>>,
    done: bool,
}

/// Deletes the keys of dropped locks in the background. Has at most one entry per lock.
#[derive(Default)]
pub(super) struct LockCleaner {
    left: Mutex<Vec<AbandonedLock>>,
    more: Notify,
}

impl Session {
    /// Locks a path against other tasks and other processes. The lock is taken away after 30 s.
    ///
    /// # Errors
    /// [`KvstoreError`]; `Timeout` after a minute.
    pub async fn lock_path(&self, path: &[u8]) -> Result<KvLocker, KvstoreError> {
        let limit = LOCKING_MAX;
        let locking = self.traced("lock", path, self.lock(path, false));
        timeout(limit, locking).await.unwrap_or_else(|_| Err(KvstoreError::Timeout { what: format!("locking {}", printable(path)), limit }))
    }

    /// Locks a path without a time limit for waiting or holding. For leaders, which hold the lock
    /// until they end.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn lock_path_for_long(&self, path: &[u8]) -> Result<KvLocker, KvstoreError> {
        self.traced("lock", path, self.lock(path, true)).await
    }

    pub(super) async fn lock(&self, path: &[u8], for_long: bool) -> Result<KvLocker, KvstoreError> {
        let shared = &self.shared;
        let owner = shared.paths.lock(path, for_long).await;
        let mut held_path = HeldPath { shared: Arc::clone(shared), path: path.to_vec(), owner, key: None, done: false };
        let connection = shared.connection(|| format!("locking {}", printable(path))).await?;
        let lease = shared.locks.lease_for(&connection, path).await?;
        let key = key_of(path, lease);
        shared.paths.set_key(path, owner, &key);
        held_path.key = Some(key);
        let lock = acquire(&connection, path, lease).await.inspect_err(|error| shared.note_lost_lock_lease(error, lease))?;
        shared.paths.set_acquired(path, owner);
        Ok(KvLocker { held_path, lock, lease_gone: shared.locks.lost_token(lease) })
    }

    /// Takes away the locks that this process has held for more than 30 s, because their holders
    /// forgot them. Returns their number. A session also does this itself every 30 s.
    #[must_use = "some locks were not released"]
    pub fn run_locks_gc(&self) -> usize {
        self.shared.release_stale_locks()
    }
}

impl KvLocker {
    /// Returns the locked path.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.held_path.path
    }

    /// Returns the key and revision that a transaction compares to be under this lock.
    #[must_use]
    pub fn comparator(&self) -> &LockKey {
        &self.lock
    }

    /// Waits until the lock's lease is lost, and with it the lock. Only operations under the lock
    /// notice that its key was deleted.
    pub async fn lost(&self) {
        self.lease_gone.cancelled().await;
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// [`KvstoreError`]; the lock is then released in the background. `LockLost` if it had been
    /// taken away.
    pub async fn unlock(mut self) -> Result<(), KvstoreError> {
        let (shared, path) = (Arc::clone(&self.held_path.shared), self.held_path.path.clone());
        let what = || format!("unlocking {}", printable(&path));
        if !shared.paths.begin_unlock(&path, self.held_path.owner) {
            self.held_path.done = true;
            return Err(KvstoreError::LockLost { what: format!("{}: lock has already been released", what()) });
        }
        shared.connection(what).await?.delete_at_once(&self.lock.key).await?;
        self.held_path.finish();
        Ok(())
    }
}

impl HeldPath {
    /// Unlocks the path, because its key was deleted or never existed.
    fn finish(&mut self) {
        self.done = true;
        self.shared.locks.release(&self.path);
        self.shared.paths.unlock(&self.path, self.owner);
    }
}

impl Drop for HeldPath {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        if self.key.is_none() {
            self.finish();
        } else {
            self.shared.paths.begin_unlock(&self.path, self.owner);
            self.shared.lock_cleaner.add([AbandonedLock { path: self.path.clone(), owner: self.owner, key: self.key.take() }]);
        }
    }
}

impl LockCleaner {
    fn add(&self, left: impl IntoIterator<Item = AbandonedLock>) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).extend(left);
        self.more.notify_one();
    }
}

impl SessionState {
    /// Forgets the lease of a lock if etcd no longer has it.
    fn note_lost_lock_lease(&self, error: &KvstoreError, lease: LeaseId) {
        if error.is_about_a_lost_lease() {
            self.locks.lose(&[lease]);
        }
    }

    fn release_stale_locks(&self) -> usize {
        let stale = self.paths.abandon_stale(STALE_AFTER);
        let count = stale.len();
        for left in &stale {
            tracing::error!(path = printable(&left.path), "a lock was held for more than 30 s: releasing it");
        }
        self.lock_cleaner.add(stale);
        count
    }

    /// Takes away forgotten locks for as long as the session lives.
    pub(super) async fn sweep_stale_locks(&self) {
        loop {
            tokio::time::sleep(STALE_AFTER).await;
            self.release_stale_locks();
        }
    }

    /// Deletes the keys of dropped locks for as long as the session lives. Their lease is renewed
    /// until then, so no other process could get the lock.
    pub(super) async fn delete_abandoned_locks(&self) {
        loop {
            let Some(connection) = self.connection_at_last().await else { return };
            let left = std::mem::take(&mut *self.lock_cleaner.left.lock().unwrap_or_else(PoisonError::into_inner));
            let mut kept = Vec::new();
            for left in left {
                let deleted = match &left.key {
                    Some(key) => connection.delete_at_once(key).await,
                    None => Ok(()),
                };
                match deleted {
                    // a user who may not delete the key could not have written it
                    Ok(()) | Err(KvstoreError::PermissionDenied { .. }) => {
                        self.locks.release(&left.path);
                        self.paths.unlock(&left.path, left.owner);
                    }
                    Err(error) => {
                        tracing::debug!(path = printable(&left.path), %error, "cannot delete the key of a lock; trying again");
                        kept.push(left);
                    }
                }
            }
            if kept.is_empty() {
                self.lock_cleaner.more.notified().await;
            } else {
                self.lock_cleaner.left.lock().unwrap_or_else(PoisonError::into_inner).extend(kept);
                tokio::time::sleep(CLEANING_INTERVAL).await;
            }
        }
    }
}
