//! Locks of paths, over all processes: a lock within this process, then etcd's mutex (Cilium's `lock.go`).
//!
//! Whatever happens to the task that holds or waits for one, its key goes before its path is free in this process: the next one here would hold the
//! lock by the same key.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::in_process::Leftover;
use super::mutex::{LockKey, acquire, key_of};
use super::{Session, SessionState};
use crate::error::printable;
use crate::{KvstoreError, LeaseId};

/// How long a lock is waited for (Cilium: 1 min).
const LOCKING_MAX: Duration = Duration::from_secs(60);
/// How long a lock of this process may be held before it counts as forgotten (Cilium's `staleLockTimeout`).
const STALE_AFTER: Duration = Duration::from_secs(30);
/// How often a key that could not be deleted is tried again.
const CLEANING_INTERVAL: Duration = Duration::from_millis(500);

/// A lock that is held. Dropping it lets go in the background; [`KvLocker::unlock`] says whether that went well.
pub struct KvLocker {
    holding: Holding,
    lock: LockKey,
    lease_gone: CancellationToken,
}

/// A path that is held here, and perhaps a key in etcd.
struct Holding {
    shared: Arc<SessionState>,
    path: Vec<u8>,
    owner: u64,
    key: Option<Vec<u8>>,
    done: bool,
}

/// Deletes the keys of holders that were dropped without doing so. Bounded by the locks that there are.
#[derive(Default)]
pub(super) struct Janitor {
    left: Mutex<Vec<Leftover>>,
    more: Notify,
}

impl Session {
    /// Locks a path against everybody: other tasks, other processes. Who holds it for more than 30 s has it taken away.
    ///
    /// # Errors
    /// [`KvstoreError`]; `Timeout` after a minute.
    pub async fn lock_path(&self, path: &[u8]) -> Result<KvLocker, KvstoreError> {
        let limit = LOCKING_MAX;
        let locking = self.traced("lock", path, self.lock(path, false));
        timeout(limit, locking).await.unwrap_or_else(|_| Err(KvstoreError::Timeout { what: format!("locking {}", printable(path)), limit }))
    }

    /// Locks a path, without limits on how long the lock is waited for or held: for leaders, which hold it until they end.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn lock_path_for_long(&self, path: &[u8]) -> Result<KvLocker, KvstoreError> {
        self.traced("lock", path, self.lock(path, true)).await
    }

    pub(super) async fn lock(&self, path: &[u8], for_long: bool) -> Result<KvLocker, KvstoreError> {
        let shared = &self.shared;
        let owner = shared.paths.lock(path, for_long).await;
        let mut holding = Holding { shared: Arc::clone(shared), path: path.to_vec(), owner, key: None, done: false };
        let connection = shared.connection(|| format!("locking {}", printable(path))).await?;
        let lease = shared.locks.lease_for(&connection, path).await?;
        let key = key_of(path, lease);
        shared.paths.set_key(path, owner, &key);
        holding.key = Some(key);
        let lock = acquire(&connection, path, lease).await.inspect_err(|error| shared.note_lost_lock_lease(error, lease))?;
        shared.paths.taken(path, owner);
        Ok(KvLocker { holding, lock, lease_gone: shared.locks.gone(lease) })
    }

    /// Takes the locks that this process has held for more than 30 s away from holders that forgot them; says how many. A session also does this by
    /// itself, each 30 s.
    #[must_use = "how many locks were forgotten is worth a look"]
    pub fn run_locks_gc(&self) -> usize {
        self.shared.sweep_once()
    }
}

impl KvLocker {
    /// What is locked.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.holding.path
    }

    /// What a transaction compares to be under this lock.
    #[must_use]
    pub fn comparator(&self) -> &LockKey {
        &self.lock
    }

    /// Waits until the lock's lease is lost, and with it the lock. (That its key was deleted is noticed only by operations under it.)
    pub async fn lost(&self) {
        self.lease_gone.cancelled().await;
    }

    /// Lets go of the lock.
    ///
    /// # Errors
    /// [`KvstoreError`]; the lock is let go of in the background then. `LockLost` if it had been taken away.
    pub async fn unlock(mut self) -> Result<(), KvstoreError> {
        let (shared, path) = (Arc::clone(&self.holding.shared), self.holding.path.clone());
        let what = || format!("unlocking {}", printable(&path));
        if !shared.paths.begin_unlock(&path, self.holding.owner) {
            self.holding.done = true;
            return Err(KvstoreError::LockLost { what: format!("{}: lock has already been released", what()) });
        }
        shared.connection(what).await?.delete_at_once(&self.lock.key).await?;
        self.holding.finish();
        Ok(())
    }
}

impl Holding {
    /// The key is gone, or never was.
    fn finish(&mut self) {
        self.done = true;
        self.shared.locks.release(&self.path);
        self.shared.paths.unlock(&self.path, self.owner);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        if self.key.is_none() {
            self.finish();
        } else {
            self.shared.paths.begin_unlock(&self.path, self.owner);
            self.shared.janitor.take([Leftover { path: self.path.clone(), owner: self.owner, key: self.key.take() }]);
        }
    }
}

impl Janitor {
    fn take(&self, left: impl IntoIterator<Item = Leftover>) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).extend(left);
        self.more.notify_one();
    }
}

impl SessionState {
    /// etcd does not have the lease that a lock was to hang on.
    fn note_lost_lock_lease(&self, error: &KvstoreError, lease: LeaseId) {
        if error.is_about_a_lost_lease() {
            self.locks.lose(&[lease]);
        }
    }

    fn sweep_once(&self) -> usize {
        let stale = self.paths.take_stale(STALE_AFTER);
        let count = stale.len();
        for left in &stale {
            tracing::error!(path = printable(&left.path), "a lock was held for more than 30 s: it is taken away");
        }
        self.janitor.take(stale);
        count
    }

    /// Runs for as long as the session.
    pub(super) async fn sweep_locks(&self) {
        loop {
            tokio::time::sleep(STALE_AFTER).await;
            self.sweep_once();
        }
    }

    /// Deletes what was left, for as long as the session lives: its lease is renewed until then, so that nobody else would get the lock.
    pub(super) async fn clean_locks(&self) {
        loop {
            let Some(connection) = self.connection_at_last().await else { return };
            let left = std::mem::take(&mut *self.janitor.left.lock().unwrap_or_else(PoisonError::into_inner));
            let mut kept = Vec::new();
            for left in left {
                let deleted = match &left.key {
                    Some(key) => connection.delete_at_once(key).await,
                    None => Ok(()),
                };
                match deleted {
                    // who may not delete it could not write it either
                    Ok(()) | Err(KvstoreError::PermissionDenied { .. }) => {
                        self.locks.release(&left.path);
                        self.paths.unlock(&left.path, left.owner);
                    }
                    Err(error) => {
                        tracing::debug!(path = printable(&left.path), %error, "a lock's key could not be deleted; trying again");
                        kept.push(left);
                    }
                }
            }
            if kept.is_empty() {
                self.janitor.more.notified().await;
            } else {
                self.janitor.left.lock().unwrap_or_else(PoisonError::into_inner).extend(kept);
                tokio::time::sleep(CLEANING_INTERVAL).await;
            }
        }
    }
}
