//! Locks of paths, across all processes. A lock first locks the path within this process, then with
//! etcd's mutex (Cilium's `lock.go`).
//!
//! A path's key in etcd is always deleted before the path is unlocked in this process, even if the
//! task that holds or waits for the lock is dropped. Otherwise the next task of this process would
//! hold the lock with the same key, and the late delete would take the lock from it.

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
/// Time after which a lock that a task of this process holds counts as forgotten (Cilium's
/// `staleLockTimeout`).
const STALE_AFTER: Duration = Duration::from_secs(30);
/// Interval between attempts to delete the keys of dropped locks.
const CLEANING_INTERVAL: Duration = Duration::from_millis(500);

/// Held lock. Dropping it releases the lock in the background; [`KvLocker::unlock`] reports the
/// result.
pub struct KvLocker {
    held_path: HeldPath,
    lock: LockKey,
    lease_lost: CancellationToken,
}

/// Path that is locked in this process, with its key in etcd if the key may exist.
struct HeldPath {
    shared: Arc<SessionState>,
    path: Vec<u8>,
    owner: u64,
    key: Option<Vec<u8>>,
    released: bool,
}

/// Keys of dropped locks, which a background task deletes. Has at most one entry per lock.
#[derive(Default)]
pub(super) struct LockCleaner {
    abandoned: Mutex<Vec<AbandonedLock>>,
    added: Notify,
}

impl Session {
    /// Locks a path against other tasks and processes. A lock that is held for more than 30 s is
    /// forcibly released by a check that runs every 30 s, so after 60 s at the latest.
    ///
    /// # Errors
    /// [`KvstoreError`]; `Timeout` after a minute.
    pub async fn lock_path(&self, path: &[u8]) -> Result<KvLocker, KvstoreError> {
        let limit = LOCKING_MAX;
        let locking = self.traced("lock", path, self.lock(path, false));
        timeout(limit, locking)
            .await
            .unwrap_or_else(|_| Err(KvstoreError::Timeout { operation: format!("locking {}", printable(path)), limit }))
    }

    /// Locks a path without a time limit for waiting or holding. For leaders, which hold the lock
    /// until they end.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn lock_path_without_limit(&self, path: &[u8]) -> Result<KvLocker, KvstoreError> {
        self.traced("lock", path, self.lock(path, true)).await
    }

    pub(super) async fn lock(&self, path: &[u8], without_limit: bool) -> Result<KvLocker, KvstoreError> {
        let shared = &self.shared;
        let owner = shared.paths.lock(path, without_limit).await;
        let mut held_path = HeldPath { shared: Arc::clone(shared), path: path.to_vec(), owner, key: None, released: false };
        let connection = shared.connection(|| format!("locking {}", printable(path))).await?;
        let lease = shared.lock_leases.lease_for(&connection, path).await?;
        let key = key_of(path, lease);
        shared.paths.set_key(path, owner, &key);
        held_path.key = Some(key);
        let lock = acquire(&connection, path, lease).await.inspect_err(|error| shared.forget_lost_lock_lease(error, lease))?;
        shared.paths.set_acquired(path, owner);
        Ok(KvLocker { held_path, lock, lease_lost: shared.lock_leases.lost_token(lease) })
    }

    /// Forcibly releases the locks that tasks of this process have held for more than 30 s, because
    /// their holders forgot them. Returns the number of these locks. A session also does this
    /// itself every 30 s.
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

    /// Returns the key and create revision that a transaction under this lock must compare.
    #[must_use]
    pub fn comparator(&self) -> &LockKey {
        &self.lock
    }

    /// Waits until the lock's lease is lost, and with it the lock. Does not notice that the lock's
    /// key was deleted: only operations under the lock do.
    pub async fn lost(&self) {
        self.lease_lost.cancelled().await;
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// [`KvstoreError`]; the lock is then released in the background. `LockLost` if the lock was
    /// forcibly released before.
    pub async fn unlock(mut self) -> Result<(), KvstoreError> {
        let (shared, path) = (Arc::clone(&self.held_path.shared), self.held_path.path.clone());
        let operation = || format!("unlocking {}", printable(&path));
        if !shared.paths.begin_unlock(&path, self.held_path.owner) {
            self.held_path.released = true;
            return Err(KvstoreError::LockLost { operation: format!("{}: lock has already been released", operation()) });
        }
        shared.connection(operation).await?.delete_without_permit(&self.lock.key).await?;
        self.held_path.unlock();
        Ok(())
    }
}

impl HeldPath {
    /// Unlocks the path in this process. Its key was deleted from etcd or never existed.
    fn unlock(&mut self) {
        self.released = true;
        self.shared.lock_leases.release(&self.path);
        self.shared.paths.unlock(&self.path, self.owner);
    }
}

impl Drop for HeldPath {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        if self.key.is_none() {
            self.unlock();
        } else {
            self.shared.paths.begin_unlock(&self.path, self.owner);
            self.shared.lock_cleaner.add([AbandonedLock { path: self.path.clone(), owner: self.owner, key: self.key.take() }]);
        }
    }
}

impl LockCleaner {
    fn add(&self, abandoned: impl IntoIterator<Item = AbandonedLock>) {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).extend(abandoned);
        self.added.notify_one();
    }
}

impl SessionState {
    /// Forgets the lease of a lock if etcd no longer has it.
    fn forget_lost_lock_lease(&self, error: &KvstoreError, lease: LeaseId) {
        if error.is_lease_not_found() {
            self.lock_leases.mark_lost(&[lease]);
        }
    }

    fn release_stale_locks(&self) -> usize {
        let stale = self.paths.abandon_stale(STALE_AFTER);
        let count = stale.len();
        for lock in &stale {
            tracing::error!(path = printable(&lock.path), "a lock was held for more than 30 s: releasing it");
        }
        self.lock_cleaner.add(stale);
        count
    }

    /// Forcibly releases forgotten locks while the session exists.
    pub(super) async fn sweep_stale_locks(&self) {
        loop {
            tokio::time::sleep(STALE_AFTER).await;
            self.release_stale_locks();
        }
    }

    /// Deletes the keys of dropped locks while the session exists. Their lease is renewed, so
    /// without this no other process could get such a lock.
    pub(super) async fn delete_abandoned_locks(&self) {
        loop {
            let Some(connection) = self.wait_for_connection().await else { return };
            let abandoned = std::mem::take(&mut *self.lock_cleaner.abandoned.lock().unwrap_or_else(PoisonError::into_inner));
            let mut failed = Vec::new();
            for lock in abandoned {
                let deleted = match &lock.key {
                    Some(key) => connection.delete_without_permit(key).await,
                    None => Ok(()),
                };
                match deleted {
                    // a user who may not delete the key could not have written it
                    Ok(()) | Err(KvstoreError::PermissionDenied { .. }) => {
                        self.lock_leases.release(&lock.path);
                        self.paths.unlock(&lock.path, lock.owner);
                    }
                    Err(error) => {
                        tracing::debug!(path = printable(&lock.path), %error, "cannot delete the key of a lock; trying again");
                        failed.push(lock);
                    }
                }
            }
            if failed.is_empty() {
                self.lock_cleaner.added.notified().await;
            } else {
                self.lock_cleaner.abandoned.lock().unwrap_or_else(PoisonError::into_inner).extend(failed);
                tokio::time::sleep(CLEANING_INTERVAL).await;
            }
        }
    }
}
